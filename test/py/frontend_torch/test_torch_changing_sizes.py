"""Graphs of sizes that change have the kernels of those of constant sizes."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import mlirfuse.torch  # noqa: F401  # registers the back end
from mlirfuse.frontend.torch import backend
from mlirfuse.passes.segment import SegmentPass

F = torch.nn.functional
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def _costly(x):
    return x.sin().sin().exp().sin().exp().sin().cos().sin()


@pytest.mark.parametrize("rows", [2, 64])
@pytest.mark.parametrize(
    "f",
    [
        lambda x, y: (_costly(x) * y).exp(),  # computed for each row
        lambda x, y: F.layer_norm(x * y, x.shape) * y,
        lambda x, y: (_costly(y) / _costly(y).sum(0, keepdim=True)) * x,
    ],
    ids=["broadcast", "norm", "columns"],
)
def test_graphs_of_changing_sizes_have_the_kernels_of_constant_ones(f, rows, monkeypatch):
    """Predicted times are those of the sizes that were traced."""
    kernels, run = {}, SegmentPass.run

    def recorded(self, graph):
        run(self, graph)
        found = dict.fromkeys(op.segment for op in graph.ops if op.segment is not None)
        kernels.setdefault(dynamic, []).append([segment.scheduler for segment in found])

    monkeypatch.setattr(SegmentPass, "run", recorded)
    for dynamic in (False, True):
        torch._dynamo.reset()
        given = (torch.randn(n, device=DEVICE, requires_grad=True) for n in (1 << 16, (rows, 1 << 16)))
        torch.compile(f, backend="mlirfuse", dynamic=dynamic)(*given).sum().backward()
    assert kernels[True] == kernels[False]


@pytest.mark.parametrize(
    "f",
    [
        lambda x: (x[..., 1:] - x[..., :-1]).exp(),
        lambda x: x[1:-1, 1:-1] * 4 - x[2:, 1:-1] - x[:-2, 1:-1],
        lambda x: x[None, 1:, 2:].permute(2, 0, 1) * 3,
        lambda x: torch.cat([x[:, :1], x[:, 1:] - x[:, :-1]], 1),
        lambda x: torch.roll(x, 1, 1) - x,
        lambda x: torch.roll(x, (-3, 5), (0, 1)) * 2,
        lambda x: torch.roll(x, 2).exp(),
        lambda x: torch.roll(x, x.shape[0] - 1, 1) + 1,
    ],
    ids=["differences", "stencil", "permuted", "joined", "roll", "two rolls", "flat roll", "roll by a size"],
)
def test_slices_and_rolls_are_kernels(f, monkeypatch):
    """The extents of slices are differences of sizes, of which torch's strides are ``max(1, n - 1)``."""
    outside, lower = [], backend.lower
    monkeypatch.setattr(backend, "lower", lambda *given: (outside.append(lower(*given)), outside[-1])[1])
    torch._dynamo.reset()
    run = torch.compile(f, backend="mlirfuse", dynamic=True)
    for shape in ((4, 40), (5, 7), (3, 4), (7, 3)):
        x = torch.randn(shape, device=DEVICE, requires_grad=True)
        ours, eagers = run(x), f(x)
        assert ours.stride() == eagers.stride()
        weights = torch.arange(ours.numel(), dtype=x.dtype, device=DEVICE).reshape(ours.shape)
        found, wanted = ((y.detach(), *torch.autograd.grad(y, x, weights)) for y in (ours, eagers))
        torch.testing.assert_close(found, wanted)
    assert not any(lowered.outside for lowered in outside)


def test_strides_of_extents_of_1_are_eagers():
    """In the graph that Dynamo compiles for a slice of one row, on a CPU."""
    torch._dynamo.reset()
    for f in (lambda x: x[2:].t() * 2, lambda x: x[2:, 2:].t().exp()):
        run = torch.compile(f, backend="mlirfuse", dynamic=True)
        for shape in ((5, 6), (3, 7), (3, 9)):
            x = torch.randn(shape)
            torch.testing.assert_close(run(x), f(x))
            assert run(x).stride() == f(x).stride()
