"""Images resized and rolled in graphs of torch's, against float64; their gradients, too."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch")

import mlirfuse.torch
from mlirfuse.frontend.torch import backend
from mlirfuse.frontend.torch.rewrites import resizing

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


@pytest.mark.parametrize("mode", SHAPES)
def test_a_gradient_of_resizing_gathers(mode, monkeypatch):
    """No pixel's gradient is scattered, and a kernel computes all of an element's along a dimension."""
    modules, lower = {}, backend.lower

    def spied(module, which, *given):
        modules[which] = module
        return lower(module, which, *given)

    monkeypatch.setattr(backend, "lower", spied)
    x = torch.randn(SHAPES[mode], device=DEVICE, requires_grad=True)
    created = mlirfuse.torch.explain(lambda x: F.interpolate(x, scale_factor=2, mode=mode), x)
    assert not any("index_put" in str(node.target) for node in modules["backward"].graph.nodes)
    assert len(created.graphs[-1].kernels) <= x.dim() - 1 and not created.graphs[-1].outside


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "linear", "bicubic"])
@pytest.mark.parametrize("seed", range(6))
def test_windows_hold_all_pixels_of_an_element(mode, seed):
    """The weights in a window are the columns of the map from elements to pixels; outside of it they are 0."""
    r = random.Random(seed)
    elements, pixels = r.randint(1, 40), r.randint(1, 90)
    how = {"size": pixels} if r.random() < 0.5 else {"scale_factor": pixels / elements}
    if mode in ("linear", "bicubic") and r.random() < 0.5:
        how["align_corners"] = True
    eye = torch.eye(elements, dtype=torch.float64)[None]
    if mode == "bicubic":  # one column, which is the mean of itself
        sizes = {name: (n, 1) if name == "size" else (n, 1.0) for name, n in how.items() if name != "align_corners"}
        wanted = F.interpolate(eye[..., None], mode=mode, **how | sizes)[0, ..., 0]
    else:
        wanted = F.interpolate(eye, mode=mode, **how)[0]
    pixels = wanted.shape[1]
    (dimension,) = resizing.dimensions([elements], [pixels], mode, **how)
    gradient = torch.randn(1, pixels, dtype=torch.float64)
    found = resizing.gathered(gradient, 1, dimension)
    torch.testing.assert_close(found, gradient @ wanted.T, rtol=1e-9, atol=1e-9)
    count = dimension.windows()[-1]
    most = int((wanted != 0).sum(1).max())
    assert count <= most + 3  # edges have wider windows, and two roundings of a position are covered


def test_a_transformed_function_resizes():
    """torch.func's transforms have torch's own gradient."""
    f = torch.func.grad(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear").square().sum())
    x = torch.randn(2, 3, 4, 5, device=DEVICE)
    torch.testing.assert_close(compiled(f)(x), f(x), rtol=2e-5, atol=1e-5)
    batched = torch.vmap(f)
    torch.testing.assert_close(compiled(batched)(x[:, None]), batched(x[:, None]), rtol=2e-5, atol=1e-5)


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
