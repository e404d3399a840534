"""``options={"channels_last": True}``: convolutions and what is between them lie channels-last, results as eager's."""

from __future__ import annotations

import copy
from unittest import mock

import pytest

torch = pytest.importorskip("torch")

from test_torch_ways import compiled, same
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from torch_models import ResNet, UNet, error, gradients

import mlirfuse.torch
from mlirfuse.frontend.torch.rewrites import channels_last
from mlirfuse.passes.segmentation.copies import Copies
from mlirfuse.runtime import launches

ON = {"channels_last": True}


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


class ConvNeXt(nn.Module):
    """Depthwise convolutions, norms and products over channels, a layer's scale, and a convolution that shrinks."""

    def __init__(self, width=8):
        super().__init__()
        self.stem, self.shrink = nn.Conv2d(3, width, 4, 4), nn.Conv2d(width, 2 * width, 2, 2)
        self.depth, self.norm = nn.Conv2d(width, width, 7, padding=3, groups=width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale, self.head = nn.Parameter(torch.ones(width) / 10), nn.Linear(2 * width, 5)

    def forward(self, x, targets):
        x = self.stem(x)
        y = self.norm(self.depth(x).permute(0, 2, 3, 1))
        x = x + (self.scale * self.down(F.gelu(self.up(y)))).permute(0, 3, 1, 2)
        return F.cross_entropy(self.head(self.shrink(x).mean((2, 3))), targets)


def labelled(batch, extent, classes):
    return torch.randn(batch, 3, extent, extent), torch.randint(0, classes, (batch,))


CASES = {
    "ResNet": (ResNet, lambda: labelled(4, 32, 10)),
    "ConvNeXt": (ConvNeXt, lambda: labelled(2, 32, 5)),
    "U-Net": (UNet, lambda: (torch.randn(2, 3, 16, 16), torch.rand(2), torch.randn(2, 3, 16, 16))),
}


NAMES = ["ResNet", "ConvNeXt", pytest.param("U-Net", marks=pytest.mark.slow)]


@pytest.mark.parametrize("name", NAMES)
def test_gradients_and_their_strides(name, monkeypatch):
    """Against float64, as close as eager; no program gets a copy because a call gave another layout than was traced."""
    make, batch = CASES[name]
    model, given = make(), batch()
    wide = [x.double() if x.is_floating_point() else x for x in given]
    wanted = gradients(copy.deepcopy(model).double(), *wide)
    eager = error(gradients(copy.deepcopy(model), *given), wanted)
    copies, restrided = [], launches.restrided
    monkeypatch.setattr(launches, "restrided", lambda *args: copies.append(args[1:]) or restrided(*args))
    found = gradients(compiled(model, options=ON), *given)
    assert error(found, wanted) <= 4 * eager + 1e-7
    gradient = [p.grad for p in model.parameters()]
    assert [g.stride() for g in gradient] == [p.stride() for p in model.parameters()]
    assert not copies


def turning(graph) -> list[int]:
    """The bytes that each kernel writes which only copies."""
    return sorted(k.written for k in graph.kernels if k.ops and set(k.ops) <= {"copy", "permute"})


@pytest.mark.parametrize("name", NAMES)
def test_only_images_weights_and_their_gradients_are_turned(name, monkeypatch):
    # A pool behind a contiguous convolution reads fewer bytes by it, which is no cost of the other order.
    monkeypatch.setattr(Copies, "move_boundaries", lambda self: False)
    make, batch = CASES[name]
    model, given = make(), batch()
    before, after = (mlirfuse.torch.explain(model, *given, options=o).graphs for o in ({"channels_last": False}, ON))
    weights = [m.weight for m in model.modules() if isinstance(m, nn.Conv2d)]
    weights = [4 * w.numel() for w in weights if w.shape[2] > 1 and w.shape[1] > 1]  # others lie both ways
    images = [4 * given[0].numel()]
    assert turning(after[0]) == sorted(images + weights)
    assert turning(after[1]) == sorted(weights)
    if name != "U-Net":  # of a group norm's input what is a view of another result is stored by itself
        moved = lambda graph: sum(k.read + k.written for k in graph.kernels)  # noqa: E731
        extra = [moved(b) - moved(a) for a, b in zip(before, after)]
        assert extra[0] <= 2 * sum(images + weights) and extra[1] <= 2 * sum(weights)


def test_batch_norm_in_training_is_our_kernels_in_that_layout():
    model, given = ResNet(), labelled(4, 32, 10)
    for graph in mlirfuse.torch.explain(model, *given, options=ON).graphs:
        assert not any("batch_norm" in op for op, _, _ in graph.outside)
        assert any(k.scheduler == "normalization" for k in graph.kernels)
    ours, theirs = copy.deepcopy(model), copy.deepcopy(model)
    for _ in range(2):
        compiled(ours, options=ON)(*given), theirs(*given)
    for (key, a), b in zip(ours.state_dict().items(), theirs.state_dict().values()):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5, msg=key)


def test_half_types_are_turned_as_they_are_cast():
    """Under autocast no kernel only turns: what casts an image or a weight writes it channels-last."""

    class Rounded(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = ResNet()

        def forward(self, *given):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return self.inner(*given)

    model, given = Rounded(), labelled(4, 32, 10)
    before, after = (mlirfuse.torch.explain(model, *given, options=o).graphs for o in ({"channels_last": False}, ON))
    for a, b in zip(before, after):
        assert not turning(b)
        assert sum(k.read + k.written for k in b.kernels) == sum(k.read + k.written for k in a.kernels)


conv = nn.Conv2d(3, 6, 3, padding=1)
RESULTS = {
    "a convolution's": lambda x: conv(x),
    "views of it": lambda x: (conv(x)[:, ::2], conv(x).permute(0, 2, 3, 1), conv(x).flatten(1)),
    "it and what is computed of it": lambda x: (y := conv(x), y.relu(), y.mean((2, 3)), y[:, :1].expand(-1, 4, -1, -1)),
    "by its memory": lambda x: (conv(x) * 2).as_strided((2, 7), (5, 3), 1) + 1,
    "one image, one channel": lambda x: conv(x)[:1, :1] + 1,
    "transposed": lambda x: F.conv_transpose2d(x * 2, conv.weight.transpose(0, 1)),
    "given channels-last": lambda x: conv(x.to(memory_format=torch.channels_last)),
    "a sequence's": lambda x: F.conv1d(x[:, :, 0], conv.weight[:, :, 0]),
}


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", RESULTS)
def test_results_lie_as_in_eager(name, training):
    f, x = RESULTS[name], torch.randn(2, 3, 8, 8)
    with torch.set_grad_enabled(training):
        same(compiled(f, options=ON)(x), f(x), rtol=1e-4, atol=1e-5)


@torch.library.custom_op("mlirfuse_test::memory", mutates_args=())
def memory(x: torch.Tensor) -> torch.Tensor:
    return torch.tensor(x.stride())


memory.register_fake(lambda x: torch.empty(x.dim(), dtype=torch.int64))


def test_a_users_op_gets_what_was_traced():
    f = lambda x: memory(conv(x) + 1)  # noqa: E731
    x = torch.randn(2, 3, 8, 8)
    assert torch.equal(compiled(f, options=ON)(x), f(x))


def test_a_graph_where_that_fails_stays_as_it_was(monkeypatch, caplog):
    broken = mock.Mock(side_effect=ZeroDivisionError("broken"))
    monkeypatch.setattr(channels_last._Converter, "restored", broken)
    x = torch.randn(2, 3, 8, 8)
    same(compiled(conv, options=ON)(x), conv(x), rtol=1e-4, atol=1e-5)
    assert broken.called and "broken" in caplog.text


def test_sizes_that_change_stay_as_they_are():
    run = compiled(conv, options=ON, dynamic=True)
    for batch in (2, 3, 5):
        x = torch.randn(batch, 3, 8, 8)
        same(run(x), conv(x), rtol=1e-4, atol=1e-5)


def test_on_a_cpu_nothing_is_turned_by_itself():
    model, given = ResNet(), labelled(4, 32, 10)
    assert not any(map(turning, mlirfuse.torch.explain(model, *given).graphs))


def rule(monkeypatch, shape, groups=1, more=0, training=True):
    """What is decided for one convolution, as on a GPU."""
    monkeypatch.setattr(channels_last, "_uses_tensor_cores", lambda x: True)

    def f(x, w):
        x = torch.nn.functional.conv2d(x, w, groups=groups)
        for _ in range(more):
            x = x.sin()
        return x

    return channels_last.pays(make_fx(f)(torch.empty(1, shape[1] * groups, 8, 8), torch.empty(shape)), training)


def test_when_it_pays_on_a_gpu(monkeypatch):
    assert rule(monkeypatch, (128, 64, 3, 3))
    assert rule(monkeypatch, (128, 1, 3, 3), groups=128)  # depthwise
    assert not rule(monkeypatch, (128, 2, 3, 3), groups=64)
    assert not rule(monkeypatch, (64, 128, 3, 3))  # half as many results
    assert rule(monkeypatch, (64, 128, 1, 1))  # but for 1×1
    assert not rule(monkeypatch, (64, 64, 3, 3))  # few channels
    assert not rule(monkeypatch, (128, 64, 3, 3), more=300)


def test_without_gradients_operations_are_weighted(monkeypatch):
    """As by Inductor: only grouped convolutions lose."""
    assert rule(monkeypatch, (64, 64, 3, 3), training=False)
    assert rule(monkeypatch, (64, 128, 3, 3), training=False)
    assert not rule(monkeypatch, (128, 2, 3, 3), groups=64, training=False)
    assert not rule(monkeypatch, (128, 64, 3, 3), more=300, training=False)
