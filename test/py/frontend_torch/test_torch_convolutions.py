"""A convolution's bias on a GPU: added by what follows, its gradient summed by what comes before."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from test_torch_ways import compiled
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch_models import error, gradients

from mlirfuse.frontend.torch.aot import decompositions


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch):
    torch._dynamo.reset()
    torch.manual_seed(0)
    monkeypatch.setattr(decompositions, "_on_gpu", lambda x: True)


class Of(nn.Module):
    """A convolution, what follows it, and the mean."""

    def __init__(self, convolution, frozen=()):
        super().__init__()
        self.convolution = convolution
        for name in frozen:
            getattr(convolution, name).requires_grad_(False)

    def forward(self, x):
        return torch.nn.functional.silu(self.convolution(x)).square().mean()


MODELS = {
    "lines": (lambda: nn.Conv1d(3, 6, 3), (2, 3, 9)),
    "images": (lambda: nn.Conv2d(3, 6, 3, 2, 1), (2, 3, 9, 8)),
    "volumes": (lambda: nn.Conv3d(2, 4, 2), (2, 2, 4, 5, 3)),
    "depthwise": (lambda: nn.Conv2d(4, 4, 3, groups=4), (2, 4, 6, 6)),
    "transposed": (lambda: nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2), (2, 4, 5, 5)),
    "one image": (lambda: nn.Conv2d(3, 6, 3), (3, 9, 8)),
    "no bias": (lambda: nn.Conv2d(3, 6, 3, bias=False), (2, 3, 9, 8)),
}


@pytest.mark.parametrize("frozen", [(), ("weight",), ("bias",)], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_eager(name, frozen):
    make, shape = MODELS[name]
    if name == "no bias" and frozen:
        pytest.skip("nothing is left to learn, or there is none")
    model, x = Of(make(), frozen), torch.randn(shape)
    exact = gradients(copy.deepcopy(model).double(), x.double())
    wanted = gradients(copy.deepcopy(model), x)
    found = gradients(compiled(model), x)
    assert error(found, exact) <= 2 * error(wanted, exact) + 1e-6


def traced():
    """The convolution and its gradient as AOTAutograd traces them."""

    def f(x, w, b):
        loss = torch.nn.functional.conv2d(x, w, b).tanh().sum()
        return torch.autograd.grad(loss, (x, w, b))

    given = [torch.randn(shape, requires_grad=True) for shape in ((2, 3, 9, 8), (6, 3, 3, 3), (6,))]
    nodes = make_fx(f, decomposition_table=decompositions.Table())(*given).graph.nodes
    forward, backward = [n for n in nodes if "convolution" in str(n.target)]
    return forward.args[2], backward.args[-1][2]


def test_no_kernel_of_torch_adds_a_bias_or_sums_its_gradient():
    assert traced() == (None, False)


def test_on_a_cpu_the_library_does(monkeypatch):
    monkeypatch.undo()
    bias, sums = traced()
    assert bias is not None and sums
