"""Images resized and rolled in graphs of torch's, against float64; their gradients, too."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import mlirfuse.torch

F = torch.nn.functional
SHAPES = {
    "bilinear": (2, 3, 5, 7),
    "bicubic": (1, 2, 6, 5),
    "trilinear": (1, 2, 3, 4, 5),
    "linear": (2, 3, 9),
    "nearest": (2, 3, 4, 5),
    "nearest-exact": (1, 2, 5, 6),
}
ALIGNED = {"scale_factor": 1.7, "align_corners": True}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BOUND = {torch.float32: 2e-5, torch.bfloat16: 3e-2}


def compiled(fn, **more):
    torch._dynamo.reset()
    return torch.compile(fn, backend="mlirfuse", options={"fallback": False}, **more)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(1)


@pytest.mark.parametrize("dtype", BOUND, ids=str)
@pytest.mark.parametrize("mode", SHAPES)
@pytest.mark.parametrize("how", [{"scale_factor": 2}, {"scale_factor": 0.6}, ALIGNED], ids=["2", "0.6", "aligned"])
def test_resized(mode, how, dtype):
    if mode.startswith("nearest") and how is ALIGNED:
        pytest.skip("nearest neighbours have no corners")

    def resized(x):
        return F.interpolate(x, mode=mode, **how) * 2

    x = torch.randn(SHAPES[mode], device=DEVICE).to(dtype).requires_grad_()
    wide = x.detach().double().requires_grad_()
    found, wanted = compiled(resized)(x), resized(wide)
    torch.testing.assert_close(found.double(), wanted, rtol=BOUND[dtype], atol=4 * BOUND[dtype])
    incoming = torch.randn_like(wanted).to(dtype)
    (gradient,) = torch.autograd.grad(found, x, incoming)
    (wanted,) = torch.autograd.grad(wanted, wide, incoming.double())
    torch.testing.assert_close(gradient.double(), wanted, rtol=BOUND[dtype], atol=6 * BOUND[dtype])


def test_resizing_is_one_kernel():
    """Positions are computed where they are used, and pixels that they choose are read there."""
    created = mlirfuse.torch.explain(
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), torch.randn(2, 3, 8, 8, device=DEVICE)
    )
    (graph,) = created.graphs
    assert len(graph.kernels) == 1 and not graph.outside


@pytest.mark.skipif(DEVICE == "cpu", reason="on a GPU")
@pytest.mark.parametrize("mode", SHAPES)
def test_a_gradient_of_resizing_is_one_kernel(mode):
    """It adds what each element has of each pixel's gradient, and stores none of that before."""
    x = torch.randn(SHAPES[mode], device=DEVICE, requires_grad=True)
    created = mlirfuse.torch.explain(lambda x: F.interpolate(x, scale_factor=2, mode=mode).sin(), x)
    backward = created.graphs[-1]
    assert len(backward.kernels) == 1 and not backward.outside


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str)
@pytest.mark.parametrize(
    "how", [(1,), (-3, 0), ((2, -9), (0, 2)), ((1, 1), (1, 1)), (0, 1), (100,)], ids=lambda how: str(how)
)
def test_rolled(how, dtype):
    x = (torch.randn(5, 6, 7, device=DEVICE) * 3).to(dtype)
    assert torch.equal(compiled(lambda x: torch.roll(x, *how))(x), torch.roll(x, *how))


def test_rolled_by_sizes_that_change():
    run = compiled(lambda x: torch.roll(x, (1, 2), (0, 1)) * x, dynamic=True)
    for rows in (3, 4, 5):
        x = torch.randn(rows, 4, device=DEVICE)
        torch.testing.assert_close(run(x), torch.roll(x, (1, 2), (0, 1)) * x, rtol=0, atol=0)
