"""Tensors whose values are not in their memory: torch's ZeroTensors, which have none, and negated and conjugated
views."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import mlirfuse
from mlirfuse.core.errors import UnsupportedError
from mlirfuse.nvfuser import DataType, FusionDefinition

X = torch.tensor([0.5, -1.0, 2.0])
ZERO = torch._efficientzerotensor(3)
NEGATED = torch.tensor([1j, 2j, -3j]).conj().imag
assert NEGATED.is_neg()


@pytest.mark.parametrize("f", [
    lambda x, y: (x * 2 + y, y.sin()),
    lambda x, y: (y[1:], y.view(3, 1), y.reshape(1, 3) + x, y.expand(2, 3) * 1, y),
    lambda x, y: (torch.outer(x, y) @ x, x @ y + 1, torch.cat([x, y]), torch.where(y > 0, x, y), y.sum()),
])  # fmt: skip
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_functions_take_them(f, dynamic):
    compiled = torch.compile(f, backend="mlirfuse", dynamic=dynamic)
    for y in (ZERO, X, NEGATED, ZERO, X + 1):
        for ours, eagers in zip(compiled(X, y), f(X, y), strict=True):
            torch.testing.assert_close(ours, eagers)


def test_zeros_without_memory_are_immutable():
    def f(x, y):
        y.add_(x)
        return y * 2

    compiled = torch.compile(f, backend="mlirfuse")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="immutable"):
            compiled(X, ZERO)
        torch.testing.assert_close(compiled(X, X.clone()), X * 4)
    with pytest.raises(ValueError, match="read-only"):
        mlirfuse.jit(lambda x, y: y.__iadd__(x))(X, ZERO)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.bool])
def test_jit_takes_zeros_without_memory(dtype):
    f, zeros = mlirfuse.jit(lambda x, y: x * 2 + y), torch._efficientzerotensor
    for y in (zeros(3, dtype=dtype), X, zeros(3, dtype=dtype)):
        torch.testing.assert_close(f(X, y), X * 2 + y)


@pytest.mark.parametrize("dtype, defined", [
    (torch.float64, DataType.Double), (torch.complex64, DataType.ComplexFloat),
])  # fmt: skip
@pytest.mark.parametrize("how", ["jit", "compile", "definition"])
def test_views_of_zeros_without_memory(how, dtype, defined):
    """Their addresses are their offsets, which is no memory either."""

    def f(x, y):
        return x * 2 + y

    with FusionDefinition() as fd:
        x, y = (fd.define_tensor(shape=[-1], dtype=d) for d in (DataType.Float, defined))
        fd.add_output(fd.ops.add(fd.ops.mul(x, fd.define_scalar(2.0)), y))
    run = {
        "jit": mlirfuse.jit(f),
        "compile": torch.compile(f, backend="mlirfuse"),
        "definition": lambda x, y: fd.execute([x, y])[0],
    }[how]
    zeros = torch._efficientzerotensor
    for y in (
        zeros(6, dtype=dtype)[2:5],
        zeros(6, dtype=dtype)[1::2],
        zeros(1, dtype=dtype).expand(3),
        zeros(2**20, dtype=dtype)[2**19 : 2**19 + 3],
        zeros(2**21, dtype=dtype)[:: 2**20][:1].expand(3),
        torch.arange(3).to(dtype),
        zeros(6, dtype=dtype)[2:5],
    ):
        torch.testing.assert_close(run(X, y), f(X, y))


def test_other_tensors_without_memory_are_refused():
    f = mlirfuse.jit(lambda x, y: x * 2 + y)
    freed, functional = torch.ones(6), torch._to_functional_tensor(torch.ones(6))
    views = [y[part] for y in (freed, functional) for part in (slice(3), slice(3, 6))]
    freed.untyped_storage().resize_(0)
    for y in views:
        with pytest.raises(ValueError, match="a Tensor has no memory"):
            f(X, y)


def test_jit_writes_through_conjugated_views():
    def f(y, x):
        y += x
        y[1:] *= 3j
        return y * 2

    ours = mlirfuse.jit(f)
    for lazy in (True, False, True):
        given = [torch.tensor([1 + 2j, 3j, 4 - 1j]) for _ in range(2)]
        views = [z.conj() if lazy else z for z in given]
        torch.testing.assert_close(ours(views[0], X), f(views[1], X))
        torch.testing.assert_close(given[0], given[1])


def test_jit_refuses_negated_views():
    """Their memory has the values negated, which no kernel is told."""
    f = mlirfuse.jit(lambda x, y: x * 2 + y)
    for _ in range(2):
        f(X, NEGATED.resolve_neg())
        with pytest.raises(UnsupportedError, match=r"argument 'y' is a negated view: pass tensor.resolve_neg\(\)"):
            f(X, NEGATED)


def test_definitions_take_them():
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor(shape=[-1], dtype=DataType.Float) for _ in range(2))
        fd.add_output(fd.ops.add(fd.ops.mul(x, fd.define_scalar(2.0)), y))
    for y in (X, ZERO, NEGATED, X, ZERO):
        torch.testing.assert_close(fd.execute([X, y])[0], X * 2 + y)
