"""Pools of means, adaptive pools, LP pools and unfolding as kernels: values and gradients against eager in float64,
whatever windows, memory and types; none of them runs as torch's own op or scatters."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from test_gpu_emulated import run
from test_torch_pools import compiled, kernels_on_gpu
from torch.nn import functional

import mlirfuse.torch
from mlirfuse.frontend.torch import backend
from mlirfuse.frontend.torch.ops import adaptive_pools
from mlirfuse.ir.graph import walk

MEANS = {
    "overlapping": dict(kernel_size=3, stride=2, padding=1),
    "apart": dict(kernel_size=2),
    "one after another": dict(kernel_size=3, stride=1, padding=1),
    "with gaps": dict(kernel_size=2, stride=3),
    "beyond the end": dict(kernel_size=3, stride=2, padding=1, ceil_mode=True),
    "without padding counted": dict(kernel_size=3, stride=2, padding=1, ceil_mode=True, count_include_pad=False),
    "divided by a number": dict(kernel_size=2, stride=2, divisor_override=3),
}
SHAPES = {1: (2, 3, 21), 2: (2, 3, 13, 10), 3: (2, 3, 7, 8, 9)}
OTHERS = {
    "uneven means": (lambda x: functional.avg_pool2d(x, (3, 2), (1, 2), (1, 0)), (2, 3, 13, 10)),
    "means without a batch": (lambda x: functional.avg_pool2d(x, 2), (3, 12, 10)),
    "means of large windows": (lambda x: functional.avg_pool2d(x, (9, 10)), (2, 3, 20, 31)),
    "equal adaptive means": (lambda x: functional.adaptive_avg_pool2d(x, (4, 5)), (2, 3, 12, 10)),
    "adaptive means": (lambda x: functional.adaptive_avg_pool2d(x, (5, 4)), (2, 3, 17, 15)),
    "adaptive means of more": (lambda x: functional.adaptive_avg_pool2d(x, (7, 5)), (2, 3, 5, 3)),
    "adaptive means of lines": (lambda x: functional.adaptive_avg_pool1d(x, 5), (2, 3, 17)),
    "adaptive means of volumes": (lambda x: functional.adaptive_avg_pool3d(x, (3, 2, 5)), (2, 3, 8, 5, 7)),
    "equal adaptive maxima": (lambda x: functional.adaptive_max_pool2d(x, (4, 5)), (2, 3, 12, 10)),
    "maxima of images": (lambda x: functional.adaptive_max_pool2d(x, 1), (2, 3, 17, 15)),
    "adaptive maxima": (lambda x: functional.adaptive_max_pool2d(x, (5, 4)), (2, 3, 17, 15)),
    "adaptive maxima of more": (lambda x: functional.adaptive_max_pool2d(x, (7, 5)), (2, 3, 5, 3)),
    "adaptive maxima of lines": (lambda x: functional.adaptive_max_pool1d(x, 5), (2, 3, 17)),
    "adaptive maxima of volumes": (lambda x: functional.adaptive_max_pool3d(x, (3, 2, 5)), (2, 3, 8, 5, 7)),
    "norms of lines": (lambda x: functional.lp_pool1d(x, 2, 3, 2), (2, 3, 17)),
    "norms": (lambda x: functional.lp_pool2d(x, 3, (3, 2), 2, ceil_mode=True), (2, 3, 16, 15)),
    "norms of volumes": (lambda x: functional.lp_pool3d(x, 2, 2), (2, 3, 8, 6, 4)),
    "columns": (lambda x: functional.unfold(x, (3, 2), dilation=(2, 1), padding=(1, 2), stride=(2, 3)), (2, 3, 13, 10)),
    "columns added up": (
        lambda x: functional.fold(x, (13, 10), (3, 2), dilation=(2, 1), padding=(1, 2), stride=(2, 3)), (2, 18, 30)
    ),
    "windows": (lambda x: x.unfold(2, 4, 3).unfold(3, 3, 1).amax((-1, -2)), (2, 3, 13, 10)),
    "windows of the last": (lambda x: x.unfold(-1, 3, 2).sin(), (2, 21)),
}  # fmt: skip


@pytest.fixture(autouse=True)
def from_the_start(monkeypatch):
    """As on a GPU, where adaptive windows of several sizes are gathered too."""
    torch._dynamo.reset()
    monkeypatch.setattr(adaptive_pools, "_in_loops", lambda *_: False)


def drawn(shape, channels_last=False, dtype=torch.float32):
    """Numbers above 0, so that roots of sums of powers have gradients."""
    x = torch.rand(shape, generator=torch.Generator().manual_seed(0)) + 0.5
    return x.to(dtype, memory_format=torch.channels_last if channels_last else torch.contiguous_format).requires_grad_()


def gradient(y, x):
    weights = torch.linspace(-1, 1, y.numel(), dtype=torch.float64).reshape(y.shape).to(y.dtype)
    return torch.autograd.grad(y, x, weights)[0]


def check(f, x, rounds=4):
    """Values and gradients within ``rounds`` roundings of the largest, and in the memory that eager has. Gives what ran
    as torch's own, and the ops that add at indices."""
    outside = []

    def observer(which, lowered, host):
        outside.extend(name for name, *_ in lowered.outside)
        outside.extend(op.name for op in walk(host.graph.body) if op.row.kind == "accumulate")

    exact = x.detach().double().requires_grad_()
    backend.observers.append(observer)
    try:
        y = compiled(f)(x)
        found = y, gradient(y, x)
    finally:
        backend.observers.remove(observer)
    reference, eager = f(exact), f(x)
    pairs = zip(found, (reference, gradient(reference, exact)), (eager, gradient(eager, x)))
    for value, wanted, like in pairs:
        assert value.dtype is x.dtype and value.stride() == like.stride()
        atol = rounds * torch.finfo(x.dtype).eps * float(wanted.detach().abs().max())
        torch.testing.assert_close(value.double(), wanted, rtol=0, atol=atol)
    return outside


@pytest.mark.parametrize("n", SHAPES)
@pytest.mark.parametrize("name", MEANS)
def test_means(name, n):
    given = dict(MEANS[name])
    if n == 1 and given.pop("divisor_override", None):
        pytest.skip("of lines torch takes no divisor")
    f = lambda x: getattr(functional, f"avg_pool{n}d")(x * 1.5, **given)  # noqa: E731
    assert not check(f, drawn(SHAPES[n]))


@pytest.mark.parametrize("name", OTHERS)
def test_other_windows(name):
    f, shape = OTHERS[name]
    assert not check(lambda x: f(x * 1.5), drawn(shape), rounds=16)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", ["overlapping", "without padding counted"])
def test_channels_last_and_types(name, dtype):
    """16-bit floats sum in float32: the error is that of one rounding, and of the gradient's."""
    check(lambda x: functional.avg_pool2d(x, **MEANS[name]), drawn((2, 8, 13, 10), True, dtype), rounds=2)


@pytest.mark.parametrize("pool", [functional.adaptive_avg_pool2d, functional.adaptive_max_pool2d])
def test_adaptive_windows_of_a_cpu(monkeypatch, pool):
    """Row-major images of float32 by kernels, others by torch's loops."""
    monkeypatch.undo()
    x = torch.randn(2, 3, 17, 15)
    for given, in_loops in ((x, 0), (x.to(memory_format=torch.channels_last), 1), (x.bfloat16(), 1)):
        f = lambda x: pool(x, (5, 4))  # noqa: E731
        assert len([row for graph in mlirfuse.torch.explain(f, given).graphs for row in graph.outside]) == in_loops
        torch.testing.assert_close(torch.compile(f, backend="mlirfuse", dynamic=False)(given), f(given))


def test_places_of_adaptive_maxima():
    """Of equal ones the first, of NaNs the last, as eager has them."""
    x = torch.randint(-2, 3, (2, 3, 17, 15), generator=torch.Generator().manual_seed(0)).float()
    x[0, 1, 3, 4:9] = torch.nan
    for size in ((5, 4), (17, 3), (17, 5)):
        f = lambda x, size=size: functional.adaptive_max_pool2d(x, size, return_indices=True)  # noqa: E731
        for a, b in zip(compiled(f)(x), f(x)):
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", ["overlapping", "without padding counted"])
def test_sizes_that_change(name):
    f = lambda x: functional.avg_pool2d(x.sin(), **MEANS[name])  # noqa: E731
    g = torch.compile(f, backend="mlirfuse", dynamic=True, options={"fallback": False})
    for n in (9, 12, 30, 31):
        x = drawn((2, 3, n, n + 3))
        torch.testing.assert_close(g(x), f(x))
        torch.testing.assert_close(gradient(g(x), x), gradient(f(x), x))


def test_it_is_one_kernel_with_what_is_around():
    """The product before and the cast behind; the gradient with both of theirs."""
    report = mlirfuse.torch.explain(lambda x: functional.avg_pool2d(x * 2, 3, 2, 1).tanh(), drawn((2, 8, 16, 16)))
    assert [len(graph.kernels) for graph in report.graphs] == [1, 1]


@pytest.mark.parametrize("name", [name for name in OTHERS if "means" in name or "maxima" in name])
def test_no_image_is_kept(name):
    """Of what is pooled a gradient reads the size, and places of maxima."""
    f, shape = OTHERS[name]
    forward, _ = mlirfuse.torch.explain(lambda x: f(x * 1.5), drawn(shape)).graphs
    kept = f(drawn(shape)).numel() * (1 if "equal" in name else 8) if "maxima" in name else 0
    assert sum(nbytes for _, nbytes in forward.saved) == kept


@pytest.mark.parametrize(
    "f", [lambda x: functional.avg_pool2d(x, 9, 4), lambda x: functional.adaptive_avg_pool2d(x, 2)]
)
def test_windows_of_many_elements_that_overlap_are_torchs(f):
    x = drawn((1, 2, 41, 39))
    assert any("avg_pool" in name for name in check(f, x, rounds=64))


@pytest.mark.parametrize("name", ["overlapping", "without padding counted"])
def test_kernels_of_a_gpu(monkeypatch, name):
    f = lambda x: functional.avg_pool2d(x, **MEANS[name])  # noqa: E731
    x = drawn((2, 8, 12, 14))
    (forward, params), (backward, others), _ = kernels_on_gpu(monkeypatch, f, x)
    wanted = f(x)
    (values,) = run(forward, {}, params, [x.detach().numpy()])
    torch.testing.assert_close(torch.from_numpy(values), wanted.detach())
    weights = torch.linspace(-1, 1, wanted.numel()).reshape(wanted.shape)
    (found,) = run(backward, {}, others, [weights.numpy()])
    torch.testing.assert_close(torch.from_numpy(found), torch.autograd.grad(wanted, x, weights)[0])
