"""Elementwise functions at infinities, NaN, signed zeros, subnormals and where exp overflows, within the tolerances of
``torch.testing.assert_close``: definitions and ``torch.compile`` beside torch's eager ops, ``jit`` beside NumPy.

A value may also be near what the next larger type gives, as torch's float32 sinh overflows too early. Where torch has
NaN and the limit exists (complex pow and sigmoid), any value does.
"""

from __future__ import annotations

import numpy as np
import pytest

import mlirfuse
from mlirfuse import DataType, FusionDefinition

torch = pytest.importorskip("torch")
import mlirfuse.torch

UNARY = ("exp", "log", "log2", "log10", "asin", "asinh", "acos", "acosh", "atan", "atanh", "sin", "cos", "tan", "sinh",
         "cosh", "tanh", "sqrt", "rsqrt", "reciprocal", "sigmoid")  # fmt: skip
REAL = ("log1p", "expm1")
BINARY = ("pow", "div", "mul")
NUMPY = {"asin": "arcsin", "asinh": "arcsinh", "acos": "arccos", "acosh": "arccosh", "atan": "arctan",
         "atanh": "arctanh", "pow": "power", "div": "divide", "mul": "multiply"}  # fmt: skip
DTYPES = {
    torch.float32: DataType.Float,
    torch.float64: DataType.Double,
    torch.float16: DataType.Half,
    torch.bfloat16: DataType.BFloat16,
    torch.complex64: DataType.ComplexFloat,
    torch.complex128: DataType.ComplexDouble,
}
TOLERANCES = {  # relative, absolute: torch.testing's
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float32: (1.3e-6, 1e-5),
    torch.float64: (1e-7, 1e-7),
    torch.complex64: (1.3e-6, 1e-5),
    torch.complex128: (1e-7, 1e-7),
}
WIDER = {
    **dict.fromkeys([torch.float16, torch.bfloat16, torch.float32], torch.float64),
    torch.complex64: torch.complex128,
}


def reals(dtype) -> torch.Tensor:
    info = torch.finfo(dtype)
    edge = float(np.log(info.max))
    found = [0.0, -0.0, 1, -1, 0.5, -0.5, 2, -3, 1e-3, np.pi, -np.pi / 2, 1 + info.eps, 1 - info.eps / 2, 1e4, -1e4]
    found += [info.tiny, -info.tiny, info.max, -info.max, info.max / 2, info.max**0.5, info.tiny**0.5]
    found += [edge, 0.999 * edge, 1.002 * edge, -edge, float(np.log(info.tiny)), np.inf, -np.inf, np.nan]
    return torch.tensor(found, dtype=torch.float64).to(dtype)


def grid(dtype) -> torch.Tensor:
    """The edges; of a complex type each with each."""
    if not dtype.is_complex:
        return torch.cat([reals(dtype), torch.linspace(-20, 20, 101).to(dtype)])
    parts = reals(torch.float32 if dtype is torch.complex64 else torch.float64)
    real, imag = parts.repeat_interleave(len(parts)), parts.repeat(len(parts))
    return torch.complex(real, imag)


def pairs(dtype) -> tuple[torch.Tensor, torch.Tensor]:
    x = grid(dtype)[:: 11 if dtype.is_complex else 3]
    return x.repeat_interleave(len(x)), x.repeat(len(x))


def near(a: torch.Tensor, b: torch.Tensor, dtype) -> torch.Tensor:
    """Where they are within the tolerances, complex numbers as points of the plane or part by part."""
    relative, absolute = TOLERANCES[dtype]
    if dtype.is_complex:
        parts = [near(getattr(a, part), getattr(b, part), getattr(torch, f"float{torch.finfo(dtype).bits}"))
                 for part in ("real", "imag")]  # fmt: skip
        finite = torch.isfinite(a) & torch.isfinite(b)
        return parts[0] & parts[1] | finite & ((a - b).abs() <= absolute + relative * b.abs())
    same = (a == b) | (torch.isnan(a) & torch.isnan(b))
    finite = torch.isfinite(a) & torch.isfinite(b)
    return same | finite & ((a - b).abs() <= absolute + relative * b.abs())


def check(name: str, found: torch.Tensor, given: tuple, eager=None) -> None:
    """``eager``: what is right, else torch's own."""
    dtype = given[0].dtype
    expected = getattr(torch, name)(*given) if eager is None else eager
    right = near(found, expected, dtype) | torch.isnan(expected)
    if dtype.is_complex and name == "pow":  # where the argument of its exp is large, its angle is any
        base, exponent = given
        right |= ~(exponent.abs() * torch.log(base).abs() < 8)
    if dtype in WIDER:
        right |= near(found, getattr(torch, name)(*(x.to(WIDER[dtype]) for x in given)).to(dtype), dtype)
    if not right.all():
        at = int((~right).nonzero()[0])
        raise AssertionError(
            f"{name} of {[x[at].item() for x in given]}: {found[at].item()}, expected {expected[at].item()}; "
            f"{int((~right).sum())} of {len(right)} differ"
        )


def names(dtype) -> tuple[str, ...]:
    return UNARY if dtype.is_complex else UNARY + REAL


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_definitions(dtype):
    x, (a, b) = grid(dtype), pairs(dtype)
    with FusionDefinition() as fd:
        tensors = [fd.define_tensor([-1], [True], dtype=DTYPES[dtype]) for _ in range(3)]
        for name in (*names(dtype), *BINARY):
            y = getattr(fd.ops, name)(*(tensors[:1] if name not in BINARY else tensors[1:]))
            fd.add_output(fd.ops.cast(y, DTYPES[dtype]))
    found = fd.execute([x, a, b])
    for name, y in zip((*names(dtype), *BINARY), found):
        check(name, y, (a, b) if name in BINARY else (x,))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_torch_graphs(dtype):
    x, (a, b) = grid(dtype), pairs(dtype)

    def every(x, a, b):
        return [getattr(torch, n)(x) for n in names(dtype)] + [getattr(torch, n)(a, b) for n in BINARY]

    torch._dynamo.reset()
    for name, y in zip((*names(dtype), *BINARY), torch.compile(every, backend="mlirfuse", fullgraph=True)(x, a, b)):
        check(name, y, (a, b) if name in BINARY else (x,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.complex128], ids=str)
def test_jit(dtype):
    given = [x.numpy() for x in (grid(dtype), *pairs(dtype))]
    functions = [(n, getattr(np, NUMPY.get(n, n))) for n in (*names(dtype), *BINARY) if hasattr(np, NUMPY.get(n, n))]

    def every(x, a, b):
        return [f(a, b) if name in BINARY else f(x) for name, f in functions]

    with np.errstate(all="ignore"):
        expected = every(*given)
        found = mlirfuse.jit(every, fallback=False)(*given)
    tensors = [torch.from_numpy(x) for x in given]
    for (name, _), y, right in zip(functions, found, expected):
        if dtype.is_complex and name in ("mul", "reciprocal"):  # NumPy's depend on the processor's fused multiply-add
            continue
        check(
            name, torch.from_numpy(y), tuple(tensors[1:]) if name in BINARY else (tensors[0],), torch.from_numpy(right)
        )
