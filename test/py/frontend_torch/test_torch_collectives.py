"""Functional collectives in compiled graphs: what the host program does between start and wait, and around them. One
process, whose process group has two ranks of which the other is made up."""

from __future__ import annotations

import contextlib

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import checkpoint

import mlirfuse.torch
from mlirfuse.frontend.torch import backend
from mlirfuse.lowering import host_steps as st

RANKS = 2


@pytest.fixture(scope="module", autouse=True)
def two_ranks():
    dist.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    yield
    dist.destroy_process_group()


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


def all_reduce(x):
    return funcol.all_reduce(x, "sum", dist.group.WORLD)


@contextlib.contextmanager
def programs():
    found: list[st.Sequence] = []

    def observer(which, lowered, host):
        found.append(host.sequence)

    backend.observers.append(observer)
    try:
        yield found
    finally:
        backend.observers.remove(observer)


def compiled(f, *args):
    """The results of ``f`` and the steps of each of its graphs, gradients' among them where an argument has one."""
    with programs() as found:
        out = torch.compile(f, backend="mlirfuse", options={"fallback": False}, fullgraph=True)(*args)
        if any(x.requires_grad for x in args):
            out.sum().backward()
    return out, [list(sequence.walk()) for sequence in found]


def told(steps) -> list[str]:
    """Kernels, calls that are no views, starts and waits in order."""
    out = []
    for step in steps:
        if isinstance(step, st.Call):
            name = step.op.attrs["callee"].split(".")[1] if step.op.row.calls else step.op.name
            if name not in ("view", "permute", "t", "as_strided", "_unsafe_view", "transpose", "getitem"):
                out.append(name)
        elif isinstance(step, st.Kernels):
            out += ["kernel"] * len({op.segment for op in step.ops})
    return out


def test_what_does_not_need_a_collective_runs_under_it():
    def f(x, y):
        reduced = all_reduce(x.exp()) + 1  # written before the product, read after it
        return reduced, (y @ y).tanh()

    x, y = torch.randn(2, 4, 4)
    _, (steps,) = compiled(f, x, y)
    assert told(steps) == ["kernel", "all_reduce", "mm", "kernel", "wait_tensor", "kernel"]


def test_a_collective_starts_before_what_no_collective_needs():
    def f(x, y):
        other = (y @ y).tanh()
        return other, all_reduce(x.exp()) + 1

    x, y = torch.randn(2, 4, 4)
    _, (steps,) = compiled(f, x, y)
    assert told(steps) == ["kernel", "all_reduce", "mm", "kernel", "wait_tensor", "kernel"]


def test_collectives_keep_their_order_and_their_number():
    """Equal ones are two, one that nobody reads stays, and the second starts before the first is waited for."""

    def f(x):
        first, second = all_reduce(x), all_reduce(x)
        all_reduce(x * 2)
        return first + second

    _, (steps,) = compiled(f, torch.randn(4))
    names = told(steps)
    assert names.count("all_reduce") == names.count("wait_tensor") == 3
    assert [n for n in names if n != "kernel"][:3] == ["all_reduce"] * 3


def test_no_collective_is_computed_again():
    """In a checkpoint, whose other ops are."""

    def region(x):
        return all_reduce(x.sin()).exp()

    def f(x):
        return checkpoint(region, x, use_reentrant=False)

    _, (forward, backward) = compiled(f, torch.randn(4, requires_grad=True))
    assert told(forward).count("all_reduce") == 1 and told(backward).count("all_reduce") <= 1
    started = [s for s in backward if isinstance(s, st.Start)]
    gradients = {v for s in backward if isinstance(s, st.Kernels) for v in s.makes}
    assert all(s.reads[0] in gradients for s in started)


def test_operands_live_until_the_wait():
    def f(x, y):
        reduced = all_reduce(x.exp())
        return (y @ y).tanh(), reduced + 1

    x, y = torch.randn(2, 4, 4)
    _, (steps,) = compiled(f, x, y)
    (start,) = (k for k, step in enumerate(steps) if isinstance(step, st.Start))
    (wait,) = (k for k, step in enumerate(steps) if isinstance(step, st.Wait))
    (freed,) = (k for k, step in enumerate(steps) if isinstance(step, st.Free) and steps[start].reads[0] in step.reads)
    assert start + 1 < wait < freed


@pytest.mark.parametrize("dim", [0, 1])
def test_a_kernel_writes_where_a_reduce_scatter_reads(dim):
    """Along another dimension than the first the parts lie one behind the other: the kernel writes them so."""

    def f(x):
        return funcol.reduce_scatter_tensor(torch.nn.functional.gelu(x), "sum", dim, dist.group.WORLD)

    _, (steps,) = compiled(f, torch.randn(4, 6, 8))
    assert told(steps) == ["kernel", "reduce_scatter_tensor", "wait_tensor"]
    (start,) = (step for step in steps if isinstance(step, st.Start))
    assert start.reads[0] in next(step for step in steps if isinstance(step, st.Kernels)).makes


@pytest.mark.parametrize("dim", [0, 1])
def test_a_kernel_reads_where_a_gather_has_written(dim):
    def f(x):
        return torch.nn.functional.gelu(funcol.all_gather_tensor(x, dim, dist.group.WORLD)) * 2

    _, (steps,) = compiled(f, torch.randn(4, 6, 8))
    assert told(steps) == ["all_gather_into_tensor", "wait_tensor", "kernel"]


def test_a_product_is_reduced_where_it_lies():
    """If nobody else reads it; else torch copies it first."""

    def f(x, y):
        return all_reduce((x @ y).view(2, 8)) + 1

    def g(x, y):
        product = x @ y
        return all_reduce(product) + product

    x, y = torch.randn(2, 4, 4)
    _, (steps,) = compiled(f, x, y)
    assert told(steps) == ["mm", "all_reduce_", "wait_tensor", "kernel"]
    _, (steps,) = compiled(g, x, y)
    assert told(steps) == ["mm", "all_reduce", "wait_tensor", "kernel"]


def test_gathers_do_not_start_all_at_once():
    def f(*shards):
        y = 1.0
        for shard in shards:
            y = (y * funcol.all_gather_tensor(shard, 0, dist.group.WORLD)).sin()
        return y

    _, (steps,) = compiled(f, *torch.randn(5, 4))
    in_flight = most = 0
    for name in told(steps):
        in_flight += (name == "all_gather_into_tensor") - (name == "wait_tensor")
        most = max(most, in_flight)
    assert most == 2


def test_explain_tells_of_collectives():
    def f(x, y):
        return all_reduce(x.exp()) + 1, (y @ y).tanh()

    graph = mlirfuse.torch.explain(f, *torch.randn(2, 4, 4)).graphs[0]
    (found,) = graph.collectives
    assert (found.name, found.ranks, found.kernels, dict(found.calls)) == ("all_reduce", RANKS, 1, {"mm": 1})
    assert found.sent == 2 * (RANKS - 1) * 4 * 4 * 4 // RANKS  # each part goes round twice
    assert "over the wire: 64 bytes from each rank in 1 collectives" in str(graph)
    assert "1 kernels, mm" in str(graph)
