"""Elementwise results beside row-major tensors are row-major within a graph; what a user sees has eager's strides."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from test_torch_ways import compiled
from torch import nn
from torch_models import error, gradients

from mlirfuse.frontend.torch import backend
from mlirfuse.frontend.torch.as_eager import eager_strides
from mlirfuse.frontend.torch.backend import observers


class Rows(nn.Module):
    """A convolution's result as rows, and layers that add to it, as a vision transformer has them."""

    def __init__(self, width=16, depth=2):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def rows(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        for norm, layer in zip(self.norms, self.layers):
            x = x + 0.5 * layer(norm(x))
        return x

    def forward(self, x):
        return self.rows(x).square().mean()


class Seen(Rows):
    def forward(self, x):
        return self.rows(x)


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    torch._dynamo.reset()
    torch.manual_seed(0)
    monkeypatch.setattr(eager_strides, "_needs_trial", lambda op, tensors: False)  # as on a GPU


def turned(monkeypatch) -> list[str]:
    """The names of elementwise ops whose results graphs store in another order, as they are compiled."""
    found: list[str] = []

    def observer(which, lowered, host):
        for op in lowered.graph.ops:
            source = op.operands[0].op if op.name == "copy" else None
            if source is not None and source.name == "permute" and source.operands[0].op is not None:
                found.extend([source.operands[0].op.name] * (source.operands[0].op.row.kind == "elementwise"))

    monkeypatch.setattr("mlirfuse.frontend.torch.backend.observers", [*observers, observer])
    return found


def test_a_residual_stream_is_row_major(monkeypatch):
    """Against float64, as close as eager: sums of 16 products of float32, four times eager's error at most."""
    model, x = Rows(), torch.randn(2, 3, 16, 16)
    wanted = gradients(copy.deepcopy(model).double(), x.double())
    eager = error(gradients(copy.deepcopy(model), x), wanted)
    stored = turned(monkeypatch)
    assert error(gradients(compiled(model), x), wanted) <= 4 * eager + 1e-7
    assert "add" not in stored


def test_what_a_user_sees_has_eagers_strides():
    model, x = Seen(), torch.randn(2, 3, 16, 16)
    wanted, found = model(x), compiled(model)(x)
    assert found.stride() == wanted.stride() != found.contiguous().stride()
    torch.testing.assert_close(found, wanted)


def test_a_result_between_equal_orders_keeps_them(monkeypatch):
    """Nothing is row-major beside it."""
    stored = turned(monkeypatch)
    x, y, z = (torch.randn(4, 6, 8).transpose(1, 2) for _ in range(3))
    f = lambda x, y, z: ((x + y) * z).sum(1)  # noqa: E731
    torch.testing.assert_close(compiled(f)(x, y, z), f(x, y, z))
    assert "add" in stored


class Gated(nn.Module):
    """Channels weighted by what their means give, as mobile nets have them: the gradient of a mean repeats a row."""

    def __init__(self, width=8):
        super().__init__()
        self.conv, self.last = nn.Conv2d(3, width, 3), nn.Conv2d(width, width, 1)
        self.gate = nn.Conv2d(width, width, 1)

    def forward(self, x):
        x = nn.functional.silu(self.conv(x))
        return self.last(x * torch.sigmoid(self.gate(x.mean((2, 3), keepdim=True)))).float().square().mean()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_means_leave_convolutions_channels_last(monkeypatch, dtype):
    incoming, lower = [], backend.lower

    def watched(function):
        def call(*operands):
            incoming.append(operands[0])
            return function(*operands)

        return call

    def lowered(*given):
        found = lower(*given)
        for op in found.graph.body.ops:
            if op.name == "call" and "convolution_backward" in op.attrs["callee"]:
                op.attrs["function"] = watched(op.attrs["function"])
        return found

    monkeypatch.setattr(backend, "lower", lowered)
    run, x = compiled(Gated(), options={"channels_last": True}), torch.randn(2, 3, 10, 10)
    with torch._functorch.config.patch(enable_autograd_cache=False):
        with torch.autocast("cpu", dtype, enabled=dtype is not torch.float32):
            loss = run(x)
        loss.backward()
    images = [grad for grad in incoming if grad.shape[-1] > 1]
    assert len(images) == 2
    assert all(grad.is_contiguous(memory_format=torch.channels_last) for grad in images)
