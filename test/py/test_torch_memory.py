"""What is kept for the backward, and for how long; and the lines that tell how far compiling is."""

from __future__ import annotations

import weakref

import pytest

torch = pytest.importorskip("torch")

from functorch.compile import min_cut_rematerialization_partition
from torch._functorch.aot_autograd import aot_module
from torch_models import EncoderLayer

from mlirfuse.core import events
from mlirfuse.frontend.torch import backend
from mlirfuse.frontend.torch.options import Options
from mlirfuse.frontend.torch.partition import partition
from mlirfuse.inspect.progress import Progress

alive: list[int] = []  # how many of the saved tensors live, at each probe of the backward
saved: list[weakref.ref] = []


@torch.library.custom_op("mlirfuse_test::probe", mutates_args=())
def probe(x: torch.Tensor, backward: bool) -> torch.Tensor:
    if backward:
        alive.append(sum(tensor() is not None for tensor in saved))
    return x.clone()


probe.register_fake(lambda x, backward: torch.empty_like(x))
probe.register_autograd(lambda ctx, gradient: (probe(gradient, True), None))


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


def kept_bytes(partition_fn, **options) -> tuple[int, set]:
    """Bytes and types of what the forward of a layer of BERT's keeps, beside parameters and inputs."""
    found = []

    def observe(joint, inputs, **more):
        forward, backward = partition_fn(joint, inputs, **more)
        given = {n.meta["val"].untyped_storage()._cdata for n in forward.graph.find_nodes(op="placeholder")}
        tensors = [n.meta["val"] for n in forward.graph.output_node().args[0][1:] if "val" in n.meta]
        made = {t.untyped_storage()._cdata: t for t in tensors if isinstance(t, torch.Tensor)}
        found.append([t for storage, t in made.items() if storage not in given])
        return forward, backward

    torch.manual_seed(0)
    compilers = {**backend.compilers(Options(**options)), "partition_fn": observe}
    x = torch.randn(2, 8, 32, requires_grad=True)
    aot_module(EncoderLayer(p=0.1), **compilers)(x).sum().backward()
    return sum(t.numel() * t.element_size() for t in found[0]), {t.dtype for t in found[0]}


def test_less_is_kept_than_by_torchs_partition():
    """By the masks of both dropouts, a byte an element: they are computed again of a seed. A norm's statistics, a number
    a row, may be kept instead."""
    ours, types = kept_bytes(partition)
    theirs, their_types = kept_bytes(min_cut_rematerialization_partition, eager_random=True)
    assert torch.bool in their_types and torch.bool not in types
    masks, seed, statistics = 2 * (2 * 8 * 32), 8, 2 * (2 * 8) * 4
    assert ours <= theirs - masks + seed + statistics


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
