"""The cut of a joint graph: inputs that are overwritten before the backward, random numbers of both passes, memory
budgets, and what checkpoints say."""

from __future__ import annotations

import copy
import functools

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch._functorch import config as functorch
from torch.nn import functional as F
from torch.utils import flop_counter
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import mlirfuse.torch


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


def compiled(f, **more):
    return torch.compile(f, backend="mlirfuse", options={"fallback": False, **more.pop("options", {})}, **more)


# ---- inputs that are written


def in_place(y):
    y.sigmoid_()
    return y


def a_row(x, y):
    y[0] = 3
    return (x * y).exp()


def hidden(x):
    x.data.mul_(2)
    return x**3


def views(x):
    x[0].mul_(3)
    x[1:].sigmoid_()
    return x.cos()


def flat_view(x):
    flat = x.view(-1)
    flat.tanh_()
    return flat * 2, x.exp()


def transposed_view(x):
    x.t().exp_()
    return (x * x).sum(0)


def read_before(x, y):
    before = x.clone().exp() * y
    x.sigmoid_()
    return before * x


def without_gradients(x):
    with torch.no_grad():
        x.mul_(2)
    return x.exp()


def masked(x, y):
    x.masked_fill_(y > 0, 0.5)
    return x * y.exp()


def twice(x):
    x.mul_(2).sin_()
    x.add_(1).exp_()
    return x.sigmoid()


def swapped(x, y):
    before = x.clone()
    x.copy_(y)
    y.copy_(before)
    return x.exp() * y.sin()


def step(f, count, leaves=False):
    """Results, gradients and what is left in the inputs, of tensors that were computed or of leaves."""
    torch.manual_seed(0)
    given = [torch.randn(4, 5, requires_grad=True) for _ in range(count)]
    inputs = given if leaves else [x * 1 for x in given]
    results = f(*inputs)
    results = results if isinstance(results, tuple) else (results,)
    gradients = torch.autograd.grad(sum((y * y).sum() for y in results), given)
    return [*results, *gradients, *inputs]


@pytest.mark.parametrize(
    ("f", "count"),
    [(in_place, 1), (a_row, 2), (views, 1), (flat_view, 1), (transposed_view, 1), (read_before, 2),
     (without_gradients, 1), (masked, 2), (twice, 1), (swapped, 2)],
)  # fmt: skip
def test_gradients_are_of_what_inputs_were(f, count):
    """Also where AOTAutograd writes the input once the forward has returned."""
    torch.testing.assert_close(step(compiled(f), count), step(f, count))


def test_inputs_of_any_size_that_are_written():
    torch.testing.assert_close(step(compiled(read_before, dynamic=True), 2), step(read_before, 2))


def test_a_leaf_that_is_written_through_data():
    torch.testing.assert_close(step(compiled(hidden), 1, leaves=True), step(hidden, 1, leaves=True))


@pytest.mark.parametrize("second", [lambda x: x, lambda x: x.view(-1).view(4, 5), lambda x: x[:]])
def test_inputs_in_the_same_memory(second):
    def f(x, y):
        x.mul_(2)
        return (x * y).exp()

    def run(f):
        leaf = torch.linspace(-1, 1, 20).reshape(4, 5).requires_grad_()
        x = leaf * 1
        result = f(x, second(x))
        return result, *torch.autograd.grad(result.sum(), leaf)

    torch.testing.assert_close(run(compiled(f)), run(f))


def test_buffers_that_the_forward_writes():
    mine = nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.BatchNorm1d(5))
    theirs, x = copy.deepcopy(mine), torch.randn(8, 5)
    run = compiled(mine)
    for f in (run, theirs):
        f(x).pow(3).sum().backward()
    for a, b in zip((*mine.buffers(), *(p.grad for p in mine.parameters())),
                    (*theirs.buffers(), *(p.grad for p in theirs.parameters()))):  # fmt: skip
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


# ---- random numbers of forward and backward

RANDOM = {
    "dropout": lambda y: F.dropout(y, 0.5),
    "rand_like": lambda y: y * torch.rand_like(y),
    "bernoulli": lambda y: y * torch.bernoulli(torch.full_like(y, 0.5)),
    "normal": lambda y: y * torch.normal(0.0, 1.0, y.shape),
    "randint": lambda y: y * torch.randint(0, 9, y.shape),
}


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize(("name", "eager_random"), [*((name, False) for name in RANDOM), ("dropout", True)])
def test_both_passes_have_the_same_random_numbers(name, eager_random, checkpointed):
    """Whatever is recomputed: the gradient of a random multiple is that multiple."""
    f = RANDOM[name]
    model = (lambda x: checkpoint(f, x * 2, use_reentrant=False)) if checkpointed else lambda x: f(x * 2)
    for budget in (0.0, 0.3):
        torch._dynamo.reset()
        x = torch.rand(16, 16).add(1).requires_grad_()
        with functorch.patch(activation_memory_budget=budget):
            y = compiled(model, options={"eager_random": eager_random})(x)
            (gradient,) = torch.autograd.grad(y.sum(), x)
        torch.testing.assert_close(gradient * x, y)


@pytest.mark.parametrize("budget", [0.0, 0.5])
def test_attention_with_dropout_has_one_mask(budget):
    """The result is linear in the values: their gradient times the values, summed, is the result, summed."""
    q, v = torch.randn(2, 2, 8, 4), torch.randn(2, 2, 8, 4, requires_grad=True)
    with functorch.patch(activation_memory_budget=budget):
        y = compiled(lambda v: F.scaled_dot_product_attention(q, q, v * 1, dropout_p=0.5))(v)
        (gradient,) = torch.autograd.grad(y.sum(), v)
    torch.testing.assert_close((gradient * v).sum(), y.sum(), rtol=1e-4, atol=1e-4)


# ---- settings


def layers(x, *weights):
    for w in weights:
        x = (x @ w).tanh()
    return x


def kept(f, *given, **settings):
    """Bytes that are saved beyond inputs, and the backward's own ops; gradients are eager's."""
    with functorch.patch(**settings):
        told = mlirfuse.torch.explain(f, *given)
        torch._dynamo.reset()
        mine = torch.autograd.grad(compiled(f)(*given).sum(), given)
    torch.testing.assert_close(mine, torch.autograd.grad(f(*given).sum(), given), rtol=1e-4, atol=1e-4)
    forward, backward = told.graphs
    inputs = sum(t.numel() * 4 for t in given)
    return sum(n for _, n in forward.saved) - inputs, sum(backward.outside.values())


def test_less_budget_saves_less_and_computes_more():
    given = [torch.randn(32, 32).div(6).requires_grad_() for _ in range(7)]
    found = [kept(layers, *given, activation_memory_budget=b) for b in (1.0, 0.5, 0.25, 0.0)]
    memory, work = zip(*found)
    assert memory[0] > memory[1] > memory[2] > memory[3] and work[0] < work[1] < work[2] <= work[3]
    assert memory[1] <= memory[3] + 0.5 * (memory[0] - memory[3])


def feed_forward(x, *weights):
    """Elementwise results that are saved by default, and cost no product to compute again."""
    for up, down in zip(weights[::2], weights[1::2]):
        x = x + F.gelu(F.layer_norm(x, x.shape[-1:]) @ up, approximate="tanh") @ down
    return x


def test_a_budget_is_a_fraction_of_what_is_saved_by_default():
    """As torch counts; first without products that are computed again, where that is enough."""
    given = [torch.randn(64, 32).requires_grad_()]
    given += [torch.randn(*shape).div(8).requires_grad_() for shape in 4 * [(32, 128), (128, 32)]]
    held = {x.untyped_storage().data_ptr() for x in given}

    def saved(budget):
        torch._dynamo.reset()
        storages = {}
        with functorch.patch(activation_memory_budget=budget):
            run = compiled(feed_forward)
            run(*given).sum().backward()
            with torch.autograd.graph.saved_tensors_hooks(lambda x: storages.setdefault(x.data_ptr(), x), lambda x: x):
                loss = run(*given).sum()
        with flop_counter.FlopCounterMode(display=False) as count:
            loss.backward()
        return sum(x.nbytes for k, x in storages.items() if k not in held), count.get_total_flops()

    default, cheap, less = (saved(budget) for budget in (1.0, 0.6, 0.4))
    assert 0.8 * 0.6 <= cheap[0] / default[0] <= 0.6
    assert cheap[1] == default[1]
    assert 0.4 * default[0] - 64 * 128 * 4 < less[0] <= 0.4 * default[0]  # a product's result does not fit beside
    assert less[1] > default[1]


@pytest.mark.parametrize("again", [False, True])
def test_saved_tensors_offloaded_to_the_cpu(again):
    """torch's hooks get each saved tensor, and what they give back is what the backward reads, a second time too."""
    given = [torch.randn(32, 32).div(6).requires_grad_() for _ in range(7)]
    expected = torch.autograd.grad(layers(*given).sum(), given)
    packed, unpacked = [], []

    class Offloaded(torch.autograd.graph.save_on_cpu):
        def __init__(self):
            super().__init__()
            pack, unpack = self.pack_hook, self.unpack_hook
            self.pack_hook = lambda x: packed.append(x.shape) or pack(x)
            self.unpack_hook = lambda x: unpacked.append(1) or unpack(x)

    run = compiled(layers)
    with Offloaded():
        y = run(*given).sum()
    for _ in range(1 + again):
        found = torch.autograd.grad(y, given, retain_graph=again)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert packed
    assert len(unpacked) >= len(packed)


@pytest.mark.skipif(not hasattr(functorch, "enable_activation_offloading"), reason="torch before 2.10")
def test_offloaded_activations_are_cut_by_torch(monkeypatch):
    from mlirfuse.frontend.torch import torch_private

    cut, seen = torch_private.torchs_partition, []
    monkeypatch.setattr(torch_private, "torchs_partition", lambda *a, **k: seen.append(1) or cut(*a, **k))
    given = [torch.randn(32, 32).div(6).requires_grad_() for _ in range(7)]
    with functorch.patch(enable_activation_offloading=True):
        found = torch.autograd.grad(compiled(layers)(*given).sum(), given)
    assert seen
    expected = torch.autograd.grad(layers(*given).sum(), given)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_a_budget_out_of_range_says_so():
    x = torch.randn(4, requires_grad=True)
    with (
        functorch.patch(activation_memory_budget=2.0),
        pytest.raises(Exception, match="budget must be from 0 to 1, not 2"),
    ):
        compiled(lambda x: x.sin())(x)


def test_reductions_are_recomputed_where_torchs_setting_allows_it():
    def f(x):
        return ((x * x).sum(1, keepdim=True) * x).sin() * x

    x = torch.randn(64, 2).requires_grad_()
    for settings in ({"ban_recompute_reductions": False}, {"aggressive_recomputation": True}):
        assert kept(f, x, **settings)[0] <= kept(f, x)[0]


@pytest.mark.parametrize("policy", [CheckpointPolicy.MUST_SAVE, CheckpointPolicy.MUST_RECOMPUTE])
def test_selective_checkpoints(policy):
    """What a policy says of products is done."""

    def choose(context, op, *args, **kwargs):
        return policy if op is torch.ops.aten.mm.default else CheckpointPolicy.PREFER_RECOMPUTE

    contexts = functools.partial(create_selective_checkpoint_contexts, choose)
    given = [torch.randn(8, 8).requires_grad_() for _ in range(3)]
    f = lambda *given: checkpoint(layers, *given, use_reentrant=False, context_fn=contexts)  # noqa: E731
    told = mlirfuse.torch.explain(f, *given)
    again = [op for op, *_ in told.graphs[1].recomputed]
    assert ("aten.mm.default" in again) == (policy is CheckpointPolicy.MUST_RECOMPUTE)
    torch._dynamo.reset()
    mine = torch.autograd.grad(compiled(f)(*given).sum(), given)
    torch.testing.assert_close(mine, torch.autograd.grad(layers(*given).sum(), given))
