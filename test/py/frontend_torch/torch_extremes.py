"""Divisions, remainders, powers, exponentials and logarithms of special and extreme values beside eager: each pair of
them, in each type, by tensors and numbers of floats and integers, in three dimensions of 20 elements and in one.

``test_torch_as_eager`` runs them on the CPU, ``torch_on_gpu`` on a GPU; by hand: ``python test/py/frontend_torch/torch_extremes.py
[cpu | cuda]`` prints what differs."""

from __future__ import annotations

import sys
import warnings

import torch

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
SECOND = {"floats": None, "int64": torch.int64, "int32": torch.int32, "uint8": torch.uint8, "bools": torch.bool}
# How far from eager in units of the result's last place; 0: bit by bit. NaN, infinities, zeros and their signs are
# eager's. 16-bit floats are computed with in float32 (docs/reference/limits.md), on a GPU roughly: eager rounds between steps.
BINARY = {
    "/": (lambda x, y: x / y, 0),
    "//": (lambda x, y: x // y, 0),
    "%": (lambda x, y: x % y, 0),
    "fmod": (torch.fmod, 0),
    "div trunc": (lambda x, y: torch.div(x, y, rounding_mode="trunc"), 0),
    "pow": (torch.pow, 4),
}
UNARY = {
    "reciprocal": (torch.reciprocal, 0),
    "rsqrt": (torch.rsqrt, 2),
    "sqrt": (torch.sqrt, 0),
    "exp": (torch.exp, 4),
    "log": (torch.log, 4),
    "exp2": (torch.exp2, 4),
    "log2": (torch.log2, 4),
    "expm1": (torch.expm1, 4),
    "log1p": (torch.log1p, 4),
    "1 / x": (lambda x: 1 / x, 0),
    "x / 3": (lambda x: x / 3, 0),
    "x % 3": (lambda x: x % 3, 0),
    "x // 0.1": (lambda x: x // 0.1, 0),
    "2 ** x": (lambda x: 2**x, 4),
    "x ** 3": (lambda x: x**3, 4),
    "x ** 0.5": (lambda x: x**0.5, 4),
    "x ** -0.5": (lambda x: x**-0.5, 4),
    "x ** -1": (lambda x: x**-1, 4),
    "x ** -2": (lambda x: x**-2, 4),
}
CASES = [(name, dtype, second) for name in BINARY for dtype in FLOATS for second in SECOND]
CASES += [(name, dtype, "") for name in UNARY for dtype in FLOATS]


def special(dtype: torch.dtype) -> torch.Tensor:
    """20 values: zeros of both signs, subnormal, tiny, ordinary, huge, infinite, NaN."""
    info = torch.finfo(dtype)
    values = [0.0, info.smallest_normal / 4, info.tiny, info.tiny * 3, 1.0, 1.5, 3.0, 1e-3, info.max, info.max / 3]
    return torch.tensor([sign * v for v in values[:9] for sign in (1, -1)] + [float("inf"), float("nan")], dtype=dtype)


def special_integers(dtype: torch.dtype) -> torch.Tensor:
    if dtype is torch.bool:
        return torch.tensor([False, True]).repeat(10)
    info = torch.iinfo(dtype)
    return torch.tensor([0, 1, 2, 3, 5, 7, info.max, info.max - 1, info.min, max(info.min, -3)], dtype=dtype).repeat(2)


def operands(name: str, dtype: torch.dtype, second: str, device: str) -> list[tuple[torch.Tensor, ...]]:
    """The calls' operands: all pairs in one dimension, and 20 elements in three."""
    x = special(dtype)
    if name in UNARY:
        given = [(torch.cat([x, -x]),), (x.reshape(2, 2, 5),)]
    else:
        y = x.flip(0) if SECOND[second] is None else special_integers(SECOND[second])
        pairs = torch.cartesian_prod(torch.arange(20), torch.arange(20))
        given = [(x[pairs[:, 0]], y[pairs[:, 1]])]
        given += [(x.reshape(2, 2, 5), y.roll(k).reshape(2, 2, 5)) for k in (0, 3, 7)]
        given += [(x.reshape(4, 5, 1), y.reshape(1, 1, 20))]
    return [tuple(t.to(device) for t in one) for one in given]


def _ordered(x: torch.Tensor) -> torch.Tensor:
    """Floats as integers in their order: neighbours are 1 apart."""
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
    bits = x.contiguous().view(kind).long()
    least = -(2 ** (8 * x.element_size() - 1))
    return torch.where(bits < 0, least - bits, bits)


def far(ours: torch.Tensor, eagers: torch.Tensor, ulps: int) -> torch.Tensor:
    """Where two results are not the same within ``ulps``."""
    if not eagers.is_floating_point():
        return ours != eagers
    special = eagers.isnan() | eagers.isinf() | (eagers == 0)
    nan = ours.isnan() & eagers.isnan()
    same = (ours == eagers) & (torch.signbit(ours) == torch.signbit(eagers)) | nan
    if not ulps:
        return ~same
    near = (_ordered(ours) - _ordered(eagers)).abs() <= ulps
    return ~torch.where(special & (eagers != 0), same, near | same)


def wrong(name: str, dtype: torch.dtype, second: str, device: str) -> str | None:
    """What differs from eager in the first element that does, or None."""
    function, ulps = (BINARY | UNARY)[name]
    # On a GPU quotients are within an ulp: eager multiplies by the reciprocal of a number, and our subnormal quotients
    # of float32 may be the neighbour.
    if device == "cuda" and (dtype in (torch.float16, torch.bfloat16) or name in ("/", "x / 3")):
        ulps = max(ulps, 1)
    torch._dynamo.reset()
    run = torch.compile(function, backend="mlirfuse")
    for given in operands(name, dtype, second, device):
        try:
            eagers = function(*given)
        except (RuntimeError, ZeroDivisionError):
            continue
        ours = run(*given)
        if ours.dtype is not eagers.dtype or ours.shape != eagers.shape:
            return f"{name}: {ours.dtype}{list(ours.shape)} for {eagers.dtype}{list(eagers.shape)}"
        bad = far(ours, eagers, ulps)
        if bad.any() and dtype in (torch.float16, torch.bfloat16):  # of the operands in float32, rounded once
            wide = function(*(t.float() if t.is_floating_point() else t for t in given))
            bad &= far(ours, wide.to(eagers.dtype), ulps)
        if bad.any() and name in ("%", "fmod") and device == "cpu":
            # Eager's vectors give NaN where the quotient overflows, and the remainder for the elements after them.
            each = [
                function(*(t[None] for t in one)) for one in zip(*(t.expand(eagers.shape).flatten() for t in given))
            ]
            bad &= far(ours, torch.cat(each).reshape(eagers.shape), ulps)
        if bad.any():
            at = tuple(bad.nonzero()[0].tolist())
            of = ", ".join(str(t.expand(eagers.shape)[at].item()) for t in given)
            return (
                f"{name} of {dtype} {second}: {int(bad.sum())} of {bad.numel()}, "
                f"({of}) gives {ours[at].item()}, eager {eagers[at].item()}"
            )
    return None


def main(device: str = "cpu") -> int:
    warnings.simplefilter("ignore")
    found = [text for case in CASES if (text := wrong(*case, device))]
    print(*found, f"{len(found)} of {len(CASES)} differ", sep="\n")
    return len(found)


if __name__ == "__main__":
    sys.exit(bool(main(*sys.argv[1:])))
