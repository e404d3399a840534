"""What is kept for the backward, and for how long; and the lines that tell how far compiling is."""

from __future__ import annotations

import math
import random
import weakref
from functools import partial
from unittest import mock

import pytest

torch = pytest.importorskip("torch")

from functorch.compile import min_cut_rematerialization_partition
from torch._functorch import config as functorch
from torch._functorch.aot_autograd import aot_module
from torch_models import Encoder, EncoderLayer

import mlirfuse.torch
from mlirfuse.frontend.torch import backend
from mlirfuse.frontend.torch.aot import min_cut
from mlirfuse.frontend.torch.aot.partition import partition
from mlirfuse.inspect.progress import Progress
from mlirfuse.lowering.host_order import in_order
from mlirfuse.runtime import events

alive: list[int] = []  # how many of the saved tensors live, at each probe of the backward
saved: list[weakref.ref] = []


@torch.library.custom_op("mlirfuse_test::probe", mutates_args=())
def probe(x: torch.Tensor, backward: bool) -> torch.Tensor:
    if backward:
        alive.append(sum(tensor() is not None for tensor in saved))
    return x.clone()


probe.register_fake(lambda x, backward: torch.empty_like(x))
probe.register_autograd(lambda ctx, gradient: (probe(gradient, True), None))


def test_the_least_cut_is_the_last_of_the_least():
    """As networkx finds it, on networks drawn at random, some without a finite cut."""
    networkx = pytest.importorskip("networkx")
    draw = random.Random(0)
    for _ in range(300):
        places, graph, flow = draw.randint(3, 12), networkx.DiGraph(), min_cut._FlowNetwork()
        for _ in range(4 * places):
            start, end = draw.sample(range(places), 2)
            capacity = math.inf if draw.random() < 0.2 else draw.randint(0, 9)
            if not graph.has_edge(start, end):
                graph.add_edge(start, end, capacity=capacity)
                flow.add(start, end, capacity)
        if 0 in graph and 1 in graph:
            try:
                sink_side = networkx.minimum_cut(graph, 0, 1)[1][1]
            except networkx.NetworkXUnbounded:
                sink_side = None
            assert flow.sink_side(0, 1) == sink_side


def test_saved_tensors_are_freed_when_their_last_reader_ran():
    """The layers' tensors go one layer after another while the backward runs, not at its end."""

    def f(x, weights):
        for w in weights:
            x = probe((x @ w).tanh(), False)
        return x

    torch._dynamo.reset()
    x, weights = torch.randn(8, 8), [torch.randn(8, 8, requires_grad=True) for _ in range(4)]
    y = torch.compile(f, backend="mlirfuse", options={"fallback": False})(x, weights)
    given = {id(t) for t in (x, *weights)}
    alive.clear()
    saved[:] = [weakref.ref(t) for t in y.grad_fn.saved_tensors if id(t) not in given]
    y.sum().backward()
    assert len(alive) == 4 and alive[0] > alive[1] > alive[2] > alive[3] > 0
    assert all(tensor() is None for tensor in saved)


def test_a_weights_gradient_frees_the_operand_before_its_gradient_is_made():
    """Of the products that read a result's gradient."""
    from torch.fx.experimental.proxy_tensor import make_fx

    def backward(g, x, w, other):
        g = g.tanh()
        return (g @ w.t()).sin(), (x.t() @ g).cos(), g @ other

    for donated, order in ([0, 1], [1, 0, 2]), ([0, 1, 2], [1, 0, 2]), ([0, 2], [0, 1, 2]), ([], [0, 1, 2]):
        given = torch.randn(8, 6), torch.randn(8, 10), torch.randn(10, 6), torch.randn(6, 6)
        module = make_fx(backward, tracing_mode="fake")(*given)
        lowered, host = backend.lower_to_host(module, "backward", donated=donated)
        shapes = [(8, 10), (10, 6), (8, 6)]
        products = [op for op in in_order(lowered.graph.body, lowered.graph) if op.row.kind == "library"]
        assert [shapes.index(op.result.shape) for op in products if op.result.shape in shapes] == order
        torch.testing.assert_close(host.run([x.clone() for x in given], {}), list(backward(*given)))


def own(x, w, b):
    """The product's result is saved, and the gradient of ``b`` has its size."""
    return ((x @ w) * b).tanh()


@pytest.mark.parametrize("hooks", [False, True])
def test_donated_tensors_are_written_over(hooks):
    """A gradient lies where a saved tensor lay that nobody else has; not where the graph is kept. Also once hooks have
    seen saved tensors, as those of checkpoints do."""
    torch._dynamo.reset()
    given = [torch.randn(8, 8) for _ in range(2)] + [torch.randn(8, 8, requires_grad=True)]
    (wanted,) = torch.autograd.grad(own(*given).sum(), given[2])
    run = torch.compile(own, backend="mlirfuse", options={"fallback": False})
    if hooks:
        torch.utils.checkpoint.checkpoint(run, *given, use_reentrant=False).sum().backward()
        given[2].grad = None
    for retained in (False, True):
        y = run(*given)
        places = {t.data_ptr() for t in y.grad_fn.saved_tensors} - {t.data_ptr() for t in (*given, y)}
        before = y.detach().clone()
        loss = y.sum()
        gradients = torch.autograd.grad(loss, given[2], retain_graph=retained)
        assert (gradients[0].data_ptr() in places) != retained
        if retained:
            gradients += torch.autograd.grad(loss, given[2])
        for gradient in gradients:
            torch.testing.assert_close(gradient, wanted)
        assert torch.equal(before, y)


@pytest.mark.parametrize("keep", [lambda x: x, torch.Tensor.detach, lambda x: x.flatten()[::2]])
def test_saved_tensors_that_hooks_hold_are_not_written_over(keep):
    """What ``saved_tensors_hooks`` packed, or views of it, belong to the user, who may read it after the backward."""
    torch._dynamo.reset()
    given = [torch.randn(8, 8) for _ in range(2)] + [torch.randn(8, 8, requires_grad=True)]
    run = torch.compile(own, backend="mlirfuse", options={"fallback": False})
    for _ in range(4):
        held: list[torch.Tensor] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x, held=held: held.append(keep(x)) or x, lambda x: x):
            y = run(*given)
        before = [x.detach().clone() for x in held]
        assert len(held) > 1
        y.sum().backward()
        assert all(map(torch.equal, before, held))


def test_what_an_op_with_effects_is_beside_is_not_written_over():
    """The checks of a linear algebra op put a token before the forward's results: torch's list of tensors that nobody
    else has is one place off, at the user's own weight, data and incoming gradient."""

    def inverse(a, w, x):
        return torch.linalg.inv(a).sum() * w.exp().sum() * x

    def solved(a, w, x):
        return torch.linalg.solve(a, x) * w.detach().cos() * w

    def density(a, w, x):
        return torch.distributions.MultivariateNormal(x[0], a).log_prob(x * w.sigmoid())

    device = "cuda" if torch.cuda.is_available() else "cpu"
    a = torch.eye(3, device=device) * 2
    for f in (inverse, solved, density):
        torch._dynamo.reset()
        w, x = torch.randn(3, 3, requires_grad=True, device=device), torch.randn(3, 3, device=device)
        run = torch.compile(f, backend="mlirfuse", options={"fallback": False})
        incoming = torch.randn_like(f(a, w, x))
        before = [t.detach().clone() for t in (a, w, x, incoming)]
        for _ in range(2):
            y = run(a, w, x)
            torch.testing.assert_close(y, f(a, w, x))
            (gradient,) = torch.autograd.grad(y, w, incoming)
            torch.testing.assert_close(gradient, *torch.autograd.grad(f(a, w, x), w, incoming))
            assert all(map(torch.equal, before, (a, w, x, incoming)))


def test_what_others_still_read_is_not_written_over():
    """Saved tensors that are an output or a view of one, that two kernels read, or that a product reads later."""

    def f(x, w):
        h = x @ w
        a = h.exp()
        return a, a.t(), h.sin() * a, (a * 2) @ w, h[1:] * 3

    torch._dynamo.reset()
    mine, theirs = [[torch.linspace(-1, 1, 64).reshape(8, 8).requires_grad_() for _ in range(2)] for _ in range(2)]
    outputs = torch.compile(f, backend="mlirfuse", options={"fallback": False})(*mine)
    before = [y.detach().clone() for y in outputs]
    sum(y.square().sum() for y in outputs).backward()
    sum(y.square().sum() for y in f(*theirs)).backward()
    for a, b in zip(mine, theirs):
        torch.testing.assert_close(a.grad, b.grad)
    assert all(map(torch.equal, before, outputs))


def kept_bytes(partition_fn, **options) -> tuple[int, set]:
    """Bytes and types of what the forward of a layer of BERT's keeps, beside parameters and inputs."""
    found = []

    def observe(joint, inputs, **more):
        forward, backward = partition_fn(joint, inputs, **more)
        given = {n.meta["val"].untyped_storage()._cdata for n in forward.graph.find_nodes(op="placeholder")}
        tensors = [n.meta["val"] for n in forward.graph.output_node().args[0][1:] if "val" in n.meta]
        created = {t.untyped_storage()._cdata: t for t in tensors if isinstance(t, torch.Tensor)}
        found.append([t for storage, t in created.items() if storage not in given])
        return forward, backward

    torch.manual_seed(0)
    compilers = {**backend.compilers(**options), "partition_fn": observe}
    x = torch.randn(2, 8, 32, requires_grad=True)
    aot_module(EncoderLayer(p=0.1), **compilers)(x).sum().backward()
    return sum(t.numel() * t.element_size() for t in found[0]), {t.dtype for t in found[0]}


def test_less_is_kept_than_by_torchs_partition():
    """By the masks of both dropouts, a byte an element: they are computed again of a seed. A norm's statistics, a
    number a row, may be kept instead."""
    ours, types = kept_bytes(partition)
    theirs, their_types = kept_bytes(min_cut_rematerialization_partition, eager_random=True)
    assert torch.bool in their_types and torch.bool not in types
    masks, seed, statistics = 2 * (2 * 8 * 32), 8, 2 * (2 * 8) * 4
    assert ours <= theirs - masks + seed + statistics


def torchs_partition(joint, inputs, backend_options=None, **options):
    return min_cut_rematerialization_partition(joint, inputs, **options)


def explained(f, *given, theirs=False, **options):
    """Bytes that the graphs' kernels move, and what is kept with its bytes; ``theirs``: by torch's own cut."""
    with mock.patch.object(backend, "partition", torchs_partition if theirs else partition):
        graphs = mlirfuse.torch.explain(f, *given, options=options).graphs
    return (
        sum(k.read + k.written for g in graphs for k in g.kernels),
        [kept for g in graphs for kept in g.saved],
        graphs,
    )


def bfloat16_products(f):
    def run(*given):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return f(*given)

    return run


def test_a_cast_of_a_half_type_is_kept_as_the_half_type():
    """The float32 value that the gradient needs has the numbers of the product's bfloat16 ones."""

    def f(x, w):
        return ((x @ w).float().sin() + 2).log()

    given = torch.randn(16, 16, requires_grad=True), torch.randn(16, 32, requires_grad=True)
    run = bfloat16_products(f)
    _, kept, _ = explained(run, *given)
    assert sorted(n for _, n in kept) == [2 * 16 * 16, 2 * 16 * 32, 2 * 16 * 32]  # x, w and their product
    wanted = torch.autograd.grad(run(*given).sum(), given)
    found = torch.autograd.grad(torch.compile(run, backend="mlirfuse")(*given).sum(), given)
    for a, b in zip(found, wanted):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)


class SqueezeExcite(torch.nn.Module):
    """A convolution, its norm and activation, which a gate multiplies that follows from all of an image, and
    another."""

    def __init__(self, channels, out):
        super().__init__()
        nn = torch.nn
        of = partial(nn.Conv2d, bias=False)
        gate = nn.AdaptiveAvgPool2d(1), of(channels, 4, 1), nn.SiLU(), of(4, channels, 1), nn.Sigmoid()
        self.first = nn.Sequential(of(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.SiLU())
        self.gate, self.last = nn.Sequential(*gate), nn.Sequential(of(channels, out, 1), nn.BatchNorm2d(out))

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = self.first(x)
            return self.last(x * self.gate(x)).float().exp().mean()


def test_what_is_made_of_as_many_bytes_is_not_kept_beside_them():
    """Two kernels of the backward need what the norm gives, with the gate's convolutions between them: both make it of
    the convolution's result, and the activation's derivative with it; neither stores any of that for the other."""
    torch.manual_seed(0)
    block, x = SqueezeExcite(32, 8), torch.randn(4, 32, 32, 32)
    _, kept, (_, backward) = explained(block, x, channels_last=True)
    large = 2 * x.numel()
    assert [n for _, n in kept if n >= large] == 3 * [large]  # what the two convolutions read, and what the norm does
    written = sum(k.written for k in backward.kernels)
    assert written <= 1.5 * large  # the gradients of what both convolutions gave, the second a quarter as large
    run = torch.compile(block, backend="mlirfuse", options={"channels_last": True})
    mine, theirs = (torch.autograd.grad(f(x), list(block.parameters())) for f in (run, block))
    for a, b in zip(mine, theirs):
        assert (a - b).norm() <= 0.05 * b.norm() + 1e-3


def test_products_and_statistics_are_not_computed_again():
    layer, x = EncoderLayer(p=0.1), torch.randn(2, 8, 32, requires_grad=True)
    _, kept, (forward, backward) = explained(layer, x)
    count = lambda graph, what: sum(n for (op, _, _), n in graph.outside.items() if what in op)  # noqa: E731
    assert count(forward, "addmm") == 6 and count(backward, "addmm") == 0 and count(backward, "aten.mm") == 12
    assert count(backward, "attention") == 1
    assert sum(n == 2 * 8 * 4 for _, n in kept) >= 2  # a number a row, of each norm


def test_a_residual_stream_is_not_added_up_again_from_all_layers():
    """That would keep still less, and move a fifth more."""

    def f(x, *weights):
        for w in weights:
            x = x + (torch.nn.functional.layer_norm(x, (32,)) @ w).tanh()
        return x

    given = [torch.randn(s, 32, requires_grad=True) for s in (64, *[32] * 4)]
    ours, kept, _ = explained(f, *given)
    theirs, their_kept, _ = explained(f, *given, theirs=True)
    assert ours <= theirs and sum(n for _, n in kept) <= sum(n for _, n in their_kept)


def test_less_is_kept_and_moved_than_with_torchs_cut():
    torch.manual_seed(0)
    run = bfloat16_products(Encoder(layers=1, p=0.1))
    batch = torch.randint(0, 50, (3, 8)), torch.randint(0, 50, (3, 8))
    ours, kept, _ = explained(run, *batch)
    theirs, their_kept, _ = explained(run, *batch, theirs=True)
    assert ours < theirs and sum(n for _, n in kept) < sum(n for _, n in their_kept)


def test_the_choice_is_the_same_each_time():
    """Nodes hash by their addresses, which differ from process to process and from rank to rank."""
    batch = torch.randint(0, 50, (3, 8)), torch.randint(0, 50, (3, 8))
    first, second = (explained(Encoder(layers=1, p=0.1), *batch)[1] for _ in range(2))
    assert first == second and first


def test_a_budget_of_memory_is_torchs():
    layer, x = EncoderLayer(), torch.randn(2, 8, 32, requires_grad=True)
    _, all_of_it, _ = explained(layer, x)
    with functorch.patch(activation_memory_budget=0.1, activation_memory_budget_solver="greedy"):
        _, less, _ = explained(layer, x)
    assert sum(n for _, n in less) < sum(n for _, n in all_of_it)


def test_progress():
    """The first line after two seconds, the next ones five apart; after a pause it begins anew."""
    now, lines = [0.0], []
    progress = Progress(lines.append, lambda: now[0])
    for seconds in (0, 1.5, 2.5, 4, 7.4, 7.6, 30, 31):
        now[0] = seconds
        progress.advanced(events.Advanced("the forward graph", 2))
    assert lines == [
        "mlirfuse: compiling, 2 s: the forward graph; 0 of 6 programs of kernels\n",
        "mlirfuse: compiling, 8 s: the forward graph; 0 of 12 programs of kernels\n",
    ]
    now[0] = 33
    progress.compiled(None)
    assert lines[2:] == ["mlirfuse: compiling, 3 s: kernels; 1 of 4 programs of kernels\n"]


def test_graphs_report_how_far_they_are():
    heard = []
    stop = events.observe(events.Advanced, heard.append)
    try:
        torch._dynamo.reset()
        torch.compile(lambda x, w: ((x * 2) @ w).tanh(), backend="mlirfuse")(torch.ones(3, 4), torch.ones(4, 5))
    finally:
        stop()
    assert "the inference graph after fusion-segment" in [event.what for event in heard]
    assert sum(event.programs for event in heard) == 2  # before and after the product
