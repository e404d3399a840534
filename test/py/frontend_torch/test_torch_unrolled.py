"""Reductions of a few elements as elementwise ops in a GPU's kernels: where, and with what results."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from test_gpu_emulated import run

import mlirfuse.torch  # noqa: F401  (the back end)
from mlirfuse.frontend.torch import backend
from mlirfuse.ir.graph import walk
from mlirfuse.passes import pipelines
from mlirfuse.runtime.program import Program
from mlirfuse.schedule import targets


def of_kernels(monkeypatch, fn, *inputs):
    """What kernels for an H100 compute, and the names of the reductions in them."""
    target, lower, found = targets.of("cuda:sm_90"), backend.lower, []
    arrays = [x.numpy() for x in inputs]

    def spied(module, which, *given):
        graph = lower(module, which, *given).graph
        graph.device = "cuda"
        program = Program(pipelines.lower_to_segments(graph, target.properties), target, {})
        params = program.parameters({}, {})
        found.append(run(program, {}, params, arrays))
        found.append([op.name for op in walk(program.graph.body) if op.row.kind == "reduce"])
        found.append([one.scheduler for one in params])
        return lower(module, which, *given)

    monkeypatch.setattr(backend, "lower", spied)
    torch._dynamo.reset()
    torch.compile(fn, backend="mlirfuse", dynamic=False)(*inputs)
    return found


def drawn(*shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def windows(*shape, n=5, dtype=torch.float32):
    return drawn(*shape, dtype=dtype).unfold(-1, n, 1)


def turned(*shape, dtype=torch.float32):
    """Contiguous along the second dimension."""
    return drawn(*shape, dtype=dtype).transpose(1, 2).contiguous().transpose(1, 2)


def standardized(w):
    return (w[..., 2] - w.mean(-1)) * torch.rsqrt(w.var(-1, correction=0) + 1e-3)


def heads_of_groups(x):
    """The gradient of keys that three heads share."""
    return x.unflatten(1, (2, 3)).sum(2)


def products(x, y):
    return (x * y).sum(0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("fn, inputs", [
    (standardized, lambda dtype: [windows(3, 40, dtype=dtype)]),
    (lambda w: w.amax(-1) - w.amin(-1), lambda dtype: [windows(3, 41, n=3, dtype=dtype)]),
    (products, lambda dtype: [drawn(2, 70, 66, dtype=dtype), turned(2, 70, 66, dtype=dtype)]),
    (products, lambda dtype: [drawn(3, 9, 34, dtype=dtype), turned(3, 9, 34, dtype=dtype)]),
    (lambda x: x.amax(0), lambda dtype: [turned(2, 65, 80, dtype=dtype)]),
    (lambda x: x.sum(0), lambda dtype: [drawn(2, 30, 40, dtype=dtype)]),
    (heads_of_groups, lambda dtype: [drawn(2, 6, 10, 16, dtype=dtype)]),
    (heads_of_groups, lambda dtype: [drawn(2, 10, 6, 16, dtype=dtype).transpose(1, 2)]),
])  # fmt: skip
def test_few_elements(monkeypatch, fn, inputs, dtype):
    given = inputs(dtype)
    ((got,), reductions, _) = of_kernels(monkeypatch, fn, *given)
    want = fn(*(x.double() for x in given))
    torch.testing.assert_close(
        torch.from_numpy(got).double(), want, rtol=0, atol=(2e-2 if dtype is torch.float16 else 1e-5) * want.abs().max()
    )
    assert not reductions


@pytest.mark.parametrize("fn, inputs", [
    (lambda w: w.sum(-1), [windows(3, 40, n=9)]),  # more than a few
    (lambda x: x.sum(0), [drawn(9, 30, 40)]),
    (lambda x: x.sum(-1), [drawn(30, 40, 4)]),  # along memory
    (lambda x, y: (x * y, (x * y).sum(0)), [drawn(2, 30, 40), turned(2, 30, 40)]),  # all is needed
    (lambda w: w / w.sum(-1, keepdim=True), [windows(3, 40, n=3)]),
])  # fmt: skip
def test_what_stays(monkeypatch, fn, inputs):
    _, reductions, _ = of_kernels(monkeypatch, fn, *inputs)
    assert reductions


def test_sums_of_negative_zeros(monkeypatch):
    """Sums start from 0."""
    ((got,), reductions, _) = of_kernels(monkeypatch, lambda x, y: (x + y).sum(0), -0.0 * turned(2, 9, 34).abs(),
                                      -0.0 * drawn(2, 9, 34).abs())  # fmt: skip
    assert not reductions and not torch.from_numpy(got).signbit().any()


def test_they_are_transposed_by_tiles(monkeypatch):
    """Elements of the operand that lies otherwise go through shared memory."""
    x, y = drawn(2, 70, 66), turned(2, 70, 66)
    ((got,), _, schedulers) = of_kernels(monkeypatch, products, x, y)
    assert schedulers == ["transpose"]
    torch.testing.assert_close(torch.from_numpy(got), products(x, y))
