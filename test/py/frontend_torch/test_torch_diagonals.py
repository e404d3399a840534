"""Diagonals read, inserted and summed, and their gradients: without calls of torch's ops."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import mlirfuse.torch  # noqa: F401
from mlirfuse.passes.segment import SegmentPass

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BOUND = {torch.float32: 2e-6, torch.bfloat16: 2e-2}


def assigned(x, y):
    x = x * 2
    x.diagonal(-1, 1, 2).copy_(y)
    return x


def filled(x, y):
    return (x * 3).index_fill(1, torch.tensor([5, 2, 0, 1], device=x.device), 2.5) * y.sum()


# Of a 3-d tensor and the diagonal below the main one of its last two dimensions.
PROGRAMS = {
    "read": lambda x, y: x.sin().diagonal(1, 0, 1).cos() + y.sum(),
    "of others' dimensions": lambda x, y: torch.diagonal(x.exp(), -2, 2, 0) * 2 - y.mean(),
    "inserted": lambda x, y: torch.diagonal_scatter(x.sin(), y.cos(), -1, 1, 2) * 2,
    "inserted, transposed": lambda x, y: torch.diagonal_scatter(x.mT, y, 1, 1, 2).exp(),
    "assigned": assigned,
    "embedded": lambda x, y: torch.diag_embed(x.sin(), -2, 1, 3) * y.sum(),
    "trace": lambda x, y: x[0].sin().trace() + y[0].diag().exp().sum(),
    "filled": filled,
}


def compiled(f, **options):
    torch._dynamo.reset()
    return torch.compile(f, backend="mlirfuse", options={"fallback": False}, **options)


def differentiated(f, *given, incoming=None):
    """The result, and gradients of the arguments."""
    given = [x.detach().clone().requires_grad_() for x in given]
    found = f(*given)
    return [found, *torch.autograd.grad(found, given, torch.ones_like(found) if incoming is None else incoming)]


@pytest.fixture
def calls(monkeypatch):
    """The calls of torch's ops that compute, in all graphs that are compiled."""
    found, run = [], SegmentPass.run

    def recorded(self, graph):
        run(self, graph)
        found.extend(op for op in graph.ops if op.name == "call" and not op.attrs["shares"])

    monkeypatch.setattr(SegmentPass, "run", recorded)
    return found


@pytest.mark.parametrize("dtype", BOUND, ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_diagonals(name, dtype, calls):
    """Against float64, with eager's strides, in kernels alone."""
    f = PROGRAMS[name]
    torch.manual_seed(0)
    x, y = (torch.randn(s, device=DEVICE).to(dtype) for s in ((4, 6, 5), (4, 5)))
    wide = differentiated(f, x.double(), y.double())
    eager, found = differentiated(f, x, y), differentiated(compiled(f), x, y)
    for ours, wanted, own in zip(found, wide, eager):
        scale = 1 + wanted.abs().max().item()
        torch.testing.assert_close(ours.double(), wanted, rtol=BOUND[dtype], atol=4 * scale * BOUND[dtype])
        assert ours.stride() == own.stride()
    assert not calls


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
@pytest.mark.parametrize("name", ["read", "inserted", "assigned", "embedded"])
def test_diagonals_of_sizes_that_change(name, dtype):
    f = PROGRAMS[name]
    run = compiled(f, dynamic=True)
    for a, n, m in ((4, 6, 5), (3, 4, 9), (7, 3, 8)):
        x = torch.randn(a, n, m, device=DEVICE).to(dtype)
        y = torch.randn(a, min(n - 1, m), device=DEVICE).to(dtype)
        for ours, wanted in zip(differentiated(run, x, y), differentiated(f, x, y)):
            torch.testing.assert_close(ours, wanted)
            assert ours.stride() == wanted.stride()


def test_a_diagonal_is_a_view():
    """A result shares the memory of what it was taken from, and writes reach an argument."""

    def f(x):
        y = x * 2
        d = y.diagonal(1)
        x.diagonal().add_(1)
        return y, d, x.diagonal(-1)

    x, own = (torch.arange(64.0, device=DEVICE).reshape(8, 8) for _ in range(2))
    y, d, below = compiled(f)(x)
    for ours, wanted in zip((y, d, below, x), (*f(own), own)):
        torch.testing.assert_close(ours, wanted)
        assert ours.stride() == wanted.stride()
    d.zero_()
    below.fill_(5)
    assert y[0, 1] == 0 and x[1, 0] == 5


def test_indices_out_of_bounds_are_not_filled():
    def f(x):
        return x.index_fill(0, torch.tensor([1, 5], device=x.device), 3.0) * 2

    if DEVICE == "cpu":
        with pytest.raises(IndexError):
            compiled(f)(torch.zeros(4))
