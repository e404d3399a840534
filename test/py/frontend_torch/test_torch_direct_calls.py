"""Calls with gradients past AOTAutograd's runtime wrappers: results and effects are those of eager."""

from __future__ import annotations

import contextvars
import copy

import pytest

torch = pytest.importorskip("torch")
from torch import nn

from mlirfuse.frontend.torch import torch_private as private
from mlirfuse.frontend.torch.aot import direct_calls

pytestmark = pytest.mark.skipif(
    private.coerced_to_format is None or private.innermost is None, reason="this release of torch lacks private names"
)


@pytest.fixture(autouse=True)
def forget():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def is_direct(result) -> bool:
    return result.grad_fn._forward_cls.__module__ == direct_calls.__name__


def outputs(found):
    return list(found) if isinstance(found, tuple) else [found]


class SeveralResults(nn.Module):
    """One without gradient, one that is used, one that may not be."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, x):
        y = self.layer(x)
        return y.tanh(), y.argmax(1), y.exp()


NETS = {
    "layers": lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)),
    "buffers that are written": lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU()),
    "a result that is a view of a product": lambda: nn.Sequential(nn.Unflatten(1, (2, 3)), nn.Linear(3, 4)),
    "several results": SeveralResults,
}


def step(net, x, used=(0, -1)):
    leaf = x.clone().requires_grad_()
    found = outputs(net(leaf))
    sum(found[k].sum() for k in {k % len(found) for k in used}).backward()  # of gradients without memory
    gradients = [leaf.grad, *(p.grad for p in net.parameters())]
    for p in net.parameters():
        p.grad = None
    return found, gradients


def compare(net, run, x, **how):
    """Both are stepped three times; the calls behind the first are direct."""
    for count, size in enumerate((len(x), len(x), len(x) - 2)):
        wanted, gradients = step(net, x[:size], **how)
        found, own = step(run, x[:size], **how)
        assert is_direct(found[0]) or count == 0 or size != len(x)
        for a, b in zip([*wanted, *gradients, *net.buffers()], [*found, *own, *run.buffers()], strict=True):
            torch.testing.assert_close(b, a)
            assert b.requires_grad == a.requires_grad


@pytest.mark.parametrize("which", NETS)
def test_steps(which):
    net = NETS[which]()
    compare(net, torch.compile(copy.deepcopy(net), backend="mlirfuse"), torch.randn(6, 6))


def test_changing_sizes():
    net = NETS["layers"]()
    run = torch.compile(copy.deepcopy(net), backend="mlirfuse", dynamic=True)
    for size in (6, 9, 11):
        wanted, gradients = step(net, x := torch.randn(size, 6))
        found, own = step(run, x)
        for a, b in zip([*wanted, *gradients], [*found, *own], strict=True):
            torch.testing.assert_close(b, a)
    assert is_direct(found[0])


def test_a_result_without_gradient():
    net = SeveralResults()
    compare(net, torch.compile(copy.deepcopy(net), backend="mlirfuse"), torch.randn(6, 6), used=(2,))


def test_autocast():
    net = NETS["layers"]()
    run = torch.compile(copy.deepcopy(net), backend="mlirfuse")
    x = torch.randn(5, 6)
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            wanted, found = net(x), run(x)
            assert found.dtype == wanted.dtype == torch.bfloat16
            wanted.sum().backward()
            found.sum().backward()
        torch.testing.assert_close(found, wanted, atol=0.05, rtol=0.05)
        assert all(p.grad.dtype == torch.float32 for p in run.parameters())
    assert is_direct(found)


@pytest.fixture
def direct():
    """A net whose calls are direct, and its arguments."""
    run, x = torch.compile(NETS["layers"](), backend="mlirfuse"), torch.randn(5, 6)
    for _ in range(2):
        run(x).sum().backward()
        run.zero_grad()
    return run, x


def test_a_backward_twice(direct):
    run, x = direct
    found = run(x)
    weights, given = list(run.parameters()), torch.randn_like(found)
    first = torch.autograd.grad(found, weights, given, retain_graph=True)
    for a, b in zip(first, torch.autograd.grad(found, weights, given), strict=True):
        torch.testing.assert_close(a, b)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(found, weights, given)


def test_batched_gradients(direct):
    run, x = direct
    weights, given = list(run.parameters()), torch.randn(4, 5, 3)
    batched = torch.autograd.grad(run(x), weights, given, is_grads_batched=True)
    each = [torch.autograd.grad(run(x), weights, one) for one in given]
    for found, wanted in zip(batched, zip(*each), strict=True):
        torch.testing.assert_close(found, torch.stack(wanted))


def test_gradients_of_gradients_are_refused(direct):
    run, x = direct
    (gradient,) = torch.autograd.grad(run(x).sum(), [next(run.parameters())], create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        gradient.sum().backward()


def test_a_saved_tensor_that_was_written(direct):
    run, x = direct
    found = run(x)
    with torch.no_grad():
        run._orig_mod[2].weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        found.sum().backward()


def test_versions_of_written_buffers():
    net = NETS["buffers that are written"]()
    run, x = torch.compile(net, backend="mlirfuse"), torch.randn(5, 6)
    versions = []
    for _ in range(3):
        run(x)
        versions.append(net[1].running_mean._version)
    assert versions[0] < versions[1] < versions[2]


def test_hooks_of_saved_tensors(direct):
    run, x = direct
    seen = []

    def pack(tensor):
        seen.append(tensor.shape)
        return tensor.clone()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        found = run(x)
    found.sum().backward()
    assert is_direct(found) and seen


def test_without_recording(direct):
    run, x = direct
    with torch.no_grad():
        assert not run(x).requires_grad


@pytest.mark.parametrize("fn", [lambda x: (x.sin(), x[1:]), lambda x: x.mul_(2).sin()], ids=["view", "written"])
def test_other_graphs_take_all_steps(fn):
    run = torch.compile(fn, backend="mlirfuse")
    for _ in range(2):
        leaf = torch.randn(4, 3, requires_grad=True)
        (found, *_) = outputs(run(leaf * 1))
        assert not is_direct(found)
        found.sum().backward()
        assert leaf.grad is not None


def test_the_threads_context_in_a_backward(direct, monkeypatch):
    run, x = direct
    variable, seen = contextvars.ContextVar("variable", default=0), []
    function = run(x).grad_fn._forward_cls
    compiled = private.innermost(function.compiled_bw)

    def noting(args):
        seen.append(variable.get())
        return (getattr(compiled, "run", None) or compiled)(args)

    monkeypatch.setattr(function.__mro__[1], "compiled_bw", noting)
    token = variable.set(7)
    run(x).sum().backward()
    variable.reset(token)
    assert seen == [7]


def test_dynamo_leaves_a_backward_alone(direct):
    """A backward inside of a compiled region is not compiled itself."""
    run, x = direct
    frames = []

    def noting(module, inputs):
        frames.append(module)
        return module.forward

    def region(found):
        found = found * 2
        torch._dynamo.graph_break()
        found.sum().backward()
        return found + 1

    wanted = torch.compile(region, backend=noting)
    wanted(torch.randn(5, 3, requires_grad=True))
    count = len(frames)
    torch.compile(region, backend=noting)(run(x))
    assert len(frames) - count <= count
