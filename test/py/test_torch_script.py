"""TorchScript's modules and functions as Python's, compiled and trained."""

from __future__ import annotations

import copy
import io
import warnings

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import mlirfuse.torch

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class Looped(nn.Module):
    """A loop, a branch on data of the call, a submodule, dropout that asks for the mode, a buffer."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
        self.drop, self.count = nn.Dropout(0.5), 3
        self.register_buffer("shift", torch.ones(4))

    def forward(self, x, deep: bool):
        for k in range(self.count):
            x = torch.tanh(self.inner(x)) + self.shift * k
        if deep:
            x = self.drop(x) * 2
        else:
            x = x.view(x.size(0) * 2, -1)
        n = 0
        while n < x.size(0):
            n += 2
        return x.sum(-1).to(torch.float64), n


def scripted(model):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(model)


@pytest.mark.parametrize("loaded", [False, True])
def test_a_script_module_keeps_names_storage_and_modes_and_trains(loaded):
    torch._dynamo.reset()
    script = scripted(Looped())
    if loaded:
        file = io.BytesIO()
        torch.jit.save(script, file)
        file.seek(0)
        script = torch.jit.load(file)
    model = mlirfuse.torch.from_torchscript(script)
    assert [n for n, _ in model.named_parameters()] == [n for n, _ in script.named_parameters()]
    assert [n for n, _ in model.named_buffers()] == [n for n, _ in script.named_buffers()]
    ours, theirs = dict(model.named_parameters()), dict(script.named_parameters())
    assert all(ours[n].data_ptr() == theirs[n].data_ptr() for n in ours)
    x = torch.randn(6, 4)
    model.eval(), script.eval()
    run = torch.compile(model, backend="mlirfuse", options={"fallback": False})
    for deep in (True, False):
        torch.testing.assert_close(run(x, deep), script(x, deep), rtol=1e-5, atol=1e-5)
    run(x, False)[0].sum().backward()
    found = {n: p.grad.clone() for n, p in ours.items()}
    model.zero_grad(), script.zero_grad()
    script(x, False)[0].sum().backward()
    for n, p in script.named_parameters():
        torch.testing.assert_close(found[n], p.grad)
    model.train()
    assert not torch.equal(run(x, True)[0], run(x, True)[0])  # dropout, again


def test_a_traced_module():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5)).eval()
    x = torch.randn(2, 3, 8, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(copy.deepcopy(model), x)
    ours = mlirfuse.torch.from_torchscript(traced)
    torch.testing.assert_close(torch.compile(ours, backend="mlirfuse")(x), model(x))


def test_a_script_function():
    def f(x, n: int):
        y = x * n
        for _ in range(n):
            y = y + x.sin()
        return y if n > 2 else y - 1

    script = scripted(f)
    x = torch.randn(5)
    torch.testing.assert_close(mlirfuse.torch.from_torchscript(script)(x, 3), f(x, 3))
    torch.testing.assert_close(torch.compile(script, backend="mlirfuse")(x, 2), f(x, 2))
