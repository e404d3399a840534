"""The bias of a small product on the CPU is added by the kernel that reads it: values and gradients against float64,
and which products keep theirs."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.nn import functional as F

from mlirfuse.frontend.torch import backend


@pytest.fixture
def products(monkeypatch):
    """The products that compiled graphs call."""
    found = []

    def observe(which, lowered, host):
        found.extend(name for name, *_ in lowered.outside if "mm" in name)

    monkeypatch.setattr(backend, "observers", [observe])
    torch._dynamo.reset()
    return found


@pytest.mark.parametrize("training", [False, True])
def test_a_layer_and_its_gradients(training, products):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(24, 40), nn.GELU(), nn.Linear(40, 8), nn.LayerNorm(8))
    x = torch.randn(3, 5, 24)
    results = []
    for module, given in ((copy.deepcopy(net).double(), x.double()), (net, x)):
        run = module if module is not net else torch.compile(net, backend="mlirfuse")
        leaf = given.clone().requires_grad_(training)
        with torch.set_grad_enabled(training):
            out = run(leaf)
        if training:
            out.sin().sum().backward()
        results.append([out.detach(), leaf.grad, *(p.grad for p in module.parameters())] if training else [out])
    for wanted, found in zip(*results):
        assert found.stride() == wanted.stride()
        assert (found.double() - wanted).norm() <= 1e-6 * wanted.norm()
    assert products.count("aten.addmm.default") == (2 if training else 0)


OTHERS = {
    "returned": lambda x, w, b: F.linear(x, w, b),
    "read by a product too": lambda x, w, b: (y := F.linear(x, w, b)).relu() @ y.T,
    "scaled": lambda x, w, b: torch.addmm(b, x, w.T, beta=2).relu(),
    "large": lambda x, w, b: F.linear(x.repeat(60, 1), w.repeat(10, 1), b.repeat(10)).relu(),
    "rounded before": lambda x, w, b: F.linear(x.bfloat16(), w.bfloat16(), b.bfloat16()).relu(),
}


@pytest.mark.parametrize("which", OTHERS)
def test_others_keep_it(which, products):
    torch.manual_seed(0)
    x, w, b = torch.randn(6, 24), torch.randn(40, 24), torch.randn(40)
    found = torch.compile(OTHERS[which], backend="mlirfuse")(x, w, b)
    torch.testing.assert_close(found, OTHERS[which](x, w, b))
    assert products.count("aten.addmm.default") == 1
