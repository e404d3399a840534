"""Graphs of sizes that change have the kernels of those of constant sizes."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import mlirfuse.torch  # noqa: F401  # registers the back end
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
