"""Pools of maxima as kernels: values, places and gradients are those of eager, whatever windows, memory and types; and
what the backward keeps of them."""

from __future__ import annotations

import re

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from test_gpu_emulated import run
from torch.nn import functional

import mlirfuse.torch
from mlirfuse.frontend.torch import backend
from mlirfuse.ir import dtypes as dt
from mlirfuse.passes import pipelines
from mlirfuse.runtime import load
from mlirfuse.runtime.program import Program
from mlirfuse.schedule import targets
from mlirfuse.schedule.gpu.scheduler_list import SCHEDULERS
from mlirfuse.schedule.scheduler import SizedCall

WINDOWS = {
    "overlapping": dict(kernel_size=3, stride=2, padding=1),
    "apart": dict(kernel_size=2),
    "one after another": dict(kernel_size=3, stride=1, padding=1),
    "with gaps": dict(kernel_size=2, stride=3),
    "uneven": dict(kernel_size=(3, 2), stride=(1, 2), padding=(1, 0)),
    "dilated": dict(kernel_size=3, stride=2, padding=1, dilation=2, ceil_mode=True),
    "dilated unevenly": dict(kernel_size=(2, 3), stride=(3, 1), dilation=(3, 2)),
    "wide": dict(kernel_size=(5, 4), stride=3, padding=2),
    "beyond the end": dict(kernel_size=2, stride=3, ceil_mode=True),
}


@pytest.fixture(autouse=True)
def from_the_start():
    torch._dynamo.reset()


def compiled(f, **options):
    return torch.compile(f, backend="mlirfuse", dynamic=False, options={"fallback": False, **options})


def drawn(shape, dtype=torch.float32):
    """Few different numbers, so that maxima are often equal."""
    given = torch.randint(-9, 9, shape, generator=torch.Generator().manual_seed(0))
    return given.abs() if dtype is torch.uint8 else given.to(dtype)


def gradient(y, x):
    weights = torch.linspace(-1, 1, y.numel(), dtype=torch.float64).reshape(y.shape).to(y.dtype)
    return torch.autograd.grad(y, x, weights)[0]


def calls_of_pools(f, *args):
    report = mlirfuse.torch.explain(f, *args)
    return [name for graph in report.graphs for name, *_ in graph.outside if "pool" in name]


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("shape", [(2, 3, 17, 23), (1, 2, 40, 300), (2, 16, 9, 8), (3, 30, 40)])
@pytest.mark.parametrize("name", WINDOWS)
def test_values_places_and_gradients(name, shape, channels_last):
    """Bit for bit in float32, where sums are in the order of eager; and as they lie in memory."""

    def f(x):
        return functional.max_pool2d(x * 2, **WINDOWS[name], return_indices=True)

    x = drawn(shape)
    if channels_last and len(shape) == 4:
        x = x.to(memory_format=torch.channels_last)
    x.requires_grad_()
    wanted, found = f(x), compiled(f)(x)
    for a, b in zip(found, wanted):
        assert torch.equal(a, b) and a.stride() == b.stride()
    a, b = (gradient(y[0], x) for y in (found, wanted))
    assert torch.equal(a, b) and a.stride() == b.stride()


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_types_with_gradients(dtype, channels_last):
    """Sums of half types are in float32, and rounded once."""
    f = lambda x: functional.max_pool2d(x, 3, 2, 1)  # noqa: E731
    x = drawn((2, 8, 21, 19), dtype)
    x = (x.to(memory_format=torch.channels_last) if channels_last else x).requires_grad_()
    wide = x.detach().double().requires_grad_()
    wanted, found = f(wide), compiled(f)(x)
    assert torch.equal(found.double(), wanted)
    weights = torch.linspace(-1, 1, found.numel()).reshape(found.shape).to(dtype)
    ours, exact = torch.autograd.grad(found, x, weights)[0], torch.autograd.grad(wanted, wide, weights.double())[0]
    assert (ours.double() - exact).abs().max() <= torch.finfo(dtype).eps / 2 * exact.abs().max()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_integers(dtype):
    x = drawn((2, 3, 13, 9), dtype)
    x[0] = torch.iinfo(dtype).min
    f = lambda x: functional.max_pool2d(x, 3, 2, 1, return_indices=True)  # noqa: E731
    for a, b in zip(compiled(f)(x), f(x)):
        assert torch.equal(a, b)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", ["overlapping", "dilated", "wide", "beyond the end"])
def test_numbers_that_are_none_or_infinite(name, channels_last):
    """The last NaN of a window counts, and of a window that is all -inf the first element in the image."""
    f = lambda x: functional.max_pool2d(x, **WINDOWS[name], return_indices=True)  # noqa: E731
    x = drawn((3, 8, 24, 26))
    x[0] = -torch.inf
    x[1][torch.rand(x[1].shape, generator=torch.Generator().manual_seed(1)) < 0.2] = torch.nan
    x[2, :, :12] = -torch.inf
    x[2, :, 5:20:5] = torch.inf
    x = (x.to(memory_format=torch.channels_last) if channels_last else x).requires_grad_()
    wanted, found = f(x), compiled(f)(x)
    torch.testing.assert_close(found[0], wanted[0], rtol=0, atol=0, equal_nan=True)
    assert torch.equal(found[1], wanted[1])
    assert torch.equal(gradient(found[0], x), gradient(wanted[0], x))


@pytest.mark.parametrize("f, shape", [
    (lambda x: functional.max_pool1d(x, 3, 2, 1), (2, 5, 31)),
    (lambda x: functional.max_pool3d(x, 2, ceil_mode=True), (2, 3, 7, 8, 9)),
    (lambda x: functional.max_pool3d(x, (3, 2, 1), 2, (1, 1, 0)), (3, 7, 8, 9)),
    (lambda x: functional.max_pool3d(x, 3, 2, 1), (2, 3, 7, 8, 9)),
], ids=["a line", "a volume", "a volume alone", "a volume of overlapping windows"])  # fmt: skip
def test_images_of_other_dimensions(f, shape):
    x = drawn(shape).requires_grad_()
    assert not calls_of_pools(f, x)
    wanted, found = f(x), compiled(f)(x)
    assert torch.equal(found, wanted) and torch.equal(gradient(found, x), gradient(wanted, x))


def test_volumes_channels_last():
    f = lambda x: functional.max_pool3d(x, 2)  # noqa: E731
    x = drawn((2, 8, 6, 8, 10)).to(memory_format=torch.channels_last_3d).requires_grad_()
    wanted, found = f(x), compiled(f)(x)
    a, b = gradient(found, x), gradient(wanted, x)
    assert torch.equal(found, wanted) and found.stride() == wanted.stride()
    assert torch.equal(a, b) and a.stride() == b.stride()


def test_windows_of_many_elements_are_torchs():
    f = lambda x: functional.max_pool2d(x, 9, 1, 4)  # noqa: E731
    x = drawn((2, 3, 20, 20)).requires_grad_()
    assert len(calls_of_pools(f, x)) == 2
    found = compiled(f)(x)
    assert torch.equal(found, f(x)) and torch.equal(gradient(found, x), gradient(f(x), x))


def test_places_of_another_pool():
    """A backward that is told places by the user runs as torch's own, without an image."""

    def f(gradients, x, places):
        windows = [3, 3], [2, 2], [1, 1], [1, 1], False
        return torch.ops.aten.max_pool2d_with_indices_backward(gradients * 2, x, *windows, places)

    x = drawn((2, 3, 11, 13))
    y, places = functional.max_pool2d(x, 3, 2, 1, return_indices=True)
    assert torch.equal(compiled(f)(y, x, places), f(y, x, places))


def test_gradients_in_one_graph():
    f = lambda x: torch.func.grad(lambda x: (functional.max_pool2d(x, 3, 2, 1) ** 2).sum())(x)  # noqa: E731
    x = drawn((2, 3, 11, 13))
    assert not calls_of_pools(f, x)
    assert torch.equal(compiled(f)(x), f(x))


@pytest.mark.parametrize("way", ["tangents", "batches"])
def test_calls_that_torch_transforms(way):
    """They run op by op, and ours among them."""
    f = lambda x: functional.max_pool2d(x.sin(), 3, 2, 1)  # noqa: E731
    x = torch.randn(2, 3, 11, 13, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    g = compiled(f)
    if way == "tangents":
        with torch.no_grad():
            wanted, found = (torch.func.jvp(h, (x,), (x.cos(),)) for h in (f, g))
    else:
        x.requires_grad_()
        weights = torch.randn(3, *f(x).shape, dtype=torch.float64)
        wanted, found = (torch.autograd.grad(h(x), x, weights, is_grads_batched=True) for h in (f, g))
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", ["overlapping", "apart", "dilated"])
def test_sizes_that_change(name, channels_last):
    f = lambda x: functional.max_pool2d(x.sin(), **WINDOWS[name], return_indices=True)  # noqa: E731
    g = torch.compile(f, backend="mlirfuse", dynamic=True, options={"fallback": False})
    for n in (9, 12, 30, 31):
        x = torch.randn(2, 3, n, n + 3, generator=torch.Generator().manual_seed(n))
        x = (x.to(memory_format=torch.channels_last) if channels_last else x).requires_grad_()
        (y, places), (wanted, wanted_places) = g(x), f(x)
        torch.testing.assert_close(y, wanted)
        assert torch.equal(places, wanted_places)
        torch.testing.assert_close(gradient(y, x), gradient(wanted, x))


class Stem(torch.nn.Module):
    """As image models begin."""

    def __init__(self):
        super().__init__()
        self.convolution, self.norm = torch.nn.Conv2d(3, 8, 3, padding=1, bias=False), torch.nn.BatchNorm2d(8)
        self.following = torch.nn.Conv2d(8, 4, 1)

    def forward(self, x):
        return self.following(functional.max_pool2d(self.norm(self.convolution(x)).relu(), 3, 2, 1)).square().sum()


@pytest.mark.parametrize("channels_last", [False, True])
def test_a_training_step(channels_last):
    """A convolution, batch norm, relu, pool and convolution, against float64."""
    torch.manual_seed(0)
    exact, x = Stem().double(), torch.randn(4, 3, 32, 40, dtype=torch.float64)
    model = Stem()
    model.load_state_dict(exact.state_dict())
    exact(x).backward()
    compiled(model, channels_last=channels_last)(x.float()).backward()
    for (name, a), b in zip(model.named_parameters(), exact.parameters()):
        torch.testing.assert_close(a.grad.double(), b.grad, rtol=1e-4, atol=1e-4 * float(b.grad.abs().max()), msg=name)


def test_what_is_kept():
    """The first convolution's result, which the norm's backward reads, the maxima, which the second's does, and a byte
    a maximum: neither the image of the pool, of which its backward takes the size, nor places of eight bytes."""
    (_, _, height, width) = shape = (4, 8, 32, 40)
    report = mlirfuse.torch.explain(Stem(), torch.randn(4, 3, height, width))
    kept = sum(nbytes for graph in report.graphs for _, nbytes in graph.saved)
    image, maxima, result = 4 * torch.Size(shape).numel(), torch.Size(shape).numel() // 4, 4 * 4 * 4 * 16 * 20
    assert kept - image - maxima - 4 * maxima - result in range(1000)  # and statistics of channels


def test_it_is_one_kernel_with_what_is_around():
    """The maxima and their bytes with the product before and the sum after; the gradient with the product's."""
    report = mlirfuse.torch.explain(
        lambda x: functional.max_pool2d(x * 2, 3, 2, 1) + 1, torch.randn(2, 8, 16, 16, requires_grad=True)
    )
    assert [len(graph.kernels) for graph in report.graphs] == [1, 1]
    assert not [row for graph in report.graphs for row in graph.outside]


def kernels_on_gpu(monkeypatch, f, x):
    """The programs of kernels of ``f``'s forward and backward for an H100, each with its parameters; results are as
    they lie in memory. The last: what ``f`` gives."""
    target, programs, lower = targets.of("cuda:sm_90"), {}, backend.lower

    def spied(module, which, *given):
        graph = lower(module, which, *given).graph
        graph.device, block = "cuda", graph.body
        block.returns = [v.op.operands[0] if v.op is not None and v.op.name == "call" else v for v in block.returns]
        block.ops = [op for op in block.ops if op.name != "call"]
        program = Program(pipelines.lower_to_segments(graph, target.properties), target, {})
        params = tuple(SCHEDULERS.choose(step.analysis, SizedCall({}, {}, target.properties)) for step in program.steps)
        programs[which] = program, params
        return lower(module, which, *given)

    monkeypatch.setattr(backend, "lower", spied)
    y = compiled(f)(x)
    y.sum().backward()
    return programs["forward"], programs["backward"], y


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", ["overlapping", "apart", "uneven", "dilated"])
def test_kernels_of_a_gpu(monkeypatch, name, channels_last):
    def packed(x):
        return x.detach().permute(0, 2, 3, 1).contiguous().numpy() if channels_last else x.detach().numpy()

    f = lambda x: functional.max_pool2d(x, **WINDOWS[name])  # noqa: E731
    x = drawn((2, 8, 12, 14))
    x = (x.to(memory_format=torch.channels_last) if channels_last else x).requires_grad_()
    (forward, params), (backward, others), _ = kernels_on_gpu(monkeypatch, f, x)
    wanted = f(x)
    values, offsets = run(forward, {}, params, [packed(x)])
    assert (values == packed(wanted)).all()
    weights = torch.linspace(-1, 1, wanted.numel()).reshape(wanted.shape)
    given = [offsets if v.dtype is dt.u8 else packed(weights) for v in backward.graph.args]
    (found,) = run(backward, {}, others, given)
    assert (found == packed(torch.autograd.grad(wanted, x, weights)[0])).all()


@pytest.mark.parametrize("stride, kernel", [(2, 3), (3, 4)])
def test_gradients_of_volumes_are_stencils(monkeypatch, stride, kernel):
    f = lambda x: functional.max_pool3d(x, kernel, stride, kernel // 2)  # noqa: E731
    x = drawn((2, 2, 6, 8, 24)).requires_grad_()
    (forward, params), (backward, others), wanted = kernels_on_gpu(monkeypatch, f, x)
    assert [p.scheduler for p in others] == ["stencil"]
    _, offsets = run(forward, {}, params, [x.detach().numpy()])
    weights = torch.linspace(-1, 1, wanted.numel()).reshape(wanted.shape)
    given = [offsets if v.dtype is dt.u8 else weights.numpy() for v in backward.graph.args]
    (found,) = run(backward, {}, others, given)
    assert (found == torch.autograd.grad(f(x), x, weights)[0].numpy()).all()


def test_a_pool_is_transposed_by_tiles(monkeypatch):
    """Read along channels and written along rows, with a bias of each channel."""
    bias = torch.linspace(-1, 1, 20)

    def f(x):
        return functional.avg_pool2d(torch.tanh(x + bias[:, None, None]), 3, 2, 1).contiguous() + 1

    x = drawn((2, 20, 41, 38)).to(memory_format=torch.channels_last).requires_grad_()
    (forward, params), _, wanted = kernels_on_gpu(monkeypatch, f, x)
    assert params[0].scheduler == "transpose"
    image = x.detach().permute(0, 2, 3, 1).contiguous().numpy()
    given = [image if v.rank == 4 else bias.numpy() for v in forward.graph.args]
    found = run(forward, {}, params, given)[0]
    np.testing.assert_allclose(found, wanted.detach().numpy(), atol=1e-6)


@pytest.mark.parametrize("norm", [False, True])
def test_kernels_of_a_gpu_read_vectors(monkeypatch, norm):
    """Channels-last, what is read of windows is vectors of 16 bytes, and of 8 of their offsets; behind a norm too,
    whose result the pool reads as it lies."""
    normalized = torch.nn.BatchNorm2d(64)
    x = torch.randn(8, 64, 56, 56, dtype=torch.bfloat16).to(memory_format=torch.channels_last).requires_grad_()

    def f(x):
        x = normalized(x.float()).to(x.dtype).relu() if norm else x
        return functional.max_pool2d(x, 3, 2, 1)

    for (program, params), inputs in zip(kernels_on_gpu(monkeypatch, f, x)[:2], (9, 8)):
        module = program.target.write(program, params, program.slots())
        text = load.ptx_of(module.tiled(), "sm_90")
        kernels = [kernel for kernel in re.split(r"(?=\.visible \.entry)", text) if "st.global" in kernel]
        windows = max(kernels, key=lambda kernel: len(re.findall(r"ld\.global", kernel)))
        assert len(re.findall(r"ld\.global\S*\.v[24]\.b32", windows)) >= inputs
        assert not re.search(r"ld\.global\S*\.b(8|16)\b", windows)


def test_sums_of_a_gradient_do_not_read_windows_one_by_one(monkeypatch):
    """Row-major, the gradient of the maxima is stored by a kernel that reads windows at once, and the norm reads it."""
    normalized = torch.nn.BatchNorm2d(64)
    x = torch.randn(16, 64, 112, 112, dtype=torch.bfloat16, requires_grad=True)
    pool = lambda x: functional.max_pool2d(normalized(x).relu(), 3, 2, 1)  # noqa: E731
    _, (_, params), _ = kernels_on_gpu(monkeypatch, pool, x)
    assert [p.scheduler for p in params] == ["stencil", "rows"]


def test_halves_of_rows_that_are_swapped_are_no_stencil(monkeypatch):
    """No vector is read twice in the gradient of rotary embeddings."""

    def rotary(x):
        halves = torch.cat((-x[..., 64:], x[..., :64]), -1)
        return x * 0.5 + halves * 0.25

    _, (_, params), _ = kernels_on_gpu(monkeypatch, rotary, torch.randn(64, 128, requires_grad=True))
    assert [p.scheduler for p in params] == ["pointwise"]


def test_a_backward_of_other_windows_goes_by_places():
    """An offset says where a maximum is to windows as its own alone."""
    x, g, aten = torch.randn(2, 3, 8, 8), torch.randn(2, 3, 4, 4), torch.ops.aten

    def f(x, g):
        _, places = aten.max_pool2d_with_indices(x * 2, [3, 3], [2, 2], [1, 1])
        return aten.max_pool2d_with_indices_backward(g, x, [2, 2], [2, 2], [0, 0], [1, 1], False, places)

    torch.testing.assert_close(torch.compile(f, backend="mlirfuse")(x, g), f(x, g))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last], ids=str)
def test_maxima_of_16_bits_are_exact(dtype, order):
    """A maximum over a window is one of its elements, NaN, infinities, subnormal numbers and zeros of both signs too,
    though its comparisons and selections are of float32."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 24, 12, 14, generator=generator).to(dtype)
    tiny = torch.finfo(dtype).tiny / 4
    for k, special in enumerate((float("nan"), float("inf"), float("-inf"), 0.0, -0.0, tiny, -tiny)):
        x.view(-1)[k::31] = special
    x[0, 0] = -torch.inf
    x[0, 1, ::2], x[0, 1, 1::2] = 0.0, -0.0
    x = x.to(memory_format=order)

    def pools(x):
        adaptive = functional.adaptive_max_pool2d(x, (3, 2))
        return functional.max_pool2d(x, 3, 2, 1), adaptive, torch.where(x > adaptive.amax(), x, -x)

    for found, expected in zip(torch.compile(pools, backend="mlirfuse")(x), pools(x)):
        assert found.dtype is dtype and found.stride() == expected.stride()
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
