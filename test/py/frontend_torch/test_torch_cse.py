"""Which nodes of a joint graph are taken for one value."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses import FakeTensorMode
from torch.fx import Graph

from mlirfuse.frontend.torch.rewrites import cse

aten = torch.ops.aten


class Traced:
    """A graph whose nodes know what they make, as a traced one's do."""

    def __init__(self):
        self.graph, self.mode = Graph(), FakeTensorMode()

    def given(self, *shape):
        node = self.graph.placeholder("x")
        with self.mode:
            node.meta["val"] = torch.empty(shape)
        return node

    def call(self, op, *args, **kwargs):
        node = self.graph.call_function(op, args, kwargs)
        values = torch.fx.map_arg((args, kwargs), lambda n: n.meta["val"])
        with self.mode:
            node.meta["val"] = op(*values[0], **values[1])
        return node

    def merged(self, *results):
        """How many calls are left, and the results."""
        self.graph.output(results)
        cse.eliminate_common_subexpressions(self.graph)
        self.graph.lint()
        return sum(node.op == "call_function" for node in self.graph.nodes), self.graph.output_node().args[0]


def test_equal_calls_are_one_and_so_are_those_that_read_them():
    t = Traced()
    x = t.given(4, 4)
    first = t.call(aten.sum.dim_IntList, t.call(aten.exp.default, x), [0])
    again = t.call(aten.sum.dim_IntList, t.call(aten.exp.default, x), [0])
    assert t.merged(t.call(aten.mul.Tensor, first, again))[0] == 3


@pytest.mark.parametrize("one, other", [(1, 1.0), (0.0, -0.0), (True, 1)])
def test_numbers_of_other_types_or_signs_are_others(one, other):
    t = Traced()
    x = t.given(4)
    a, b = t.call(aten.mul.Tensor, x, one), t.call(aten.mul.Tensor, x, other)
    assert t.merged(t.call(aten.div.Tensor, a, b))[0] == 3


@pytest.mark.parametrize("op", [aten.rand_like.default, aten.empty_like.default])
def test_random_numbers_and_memory_without_values_stay(op):
    t = Traced()
    x = t.given(4)
    assert t.merged(t.call(aten.sub.Tensor, t.call(op, x), t.call(op, x)))[0] == 3


def test_before_and_after_a_write_is_not_the_same():
    t = Traced()
    x = t.given(4)
    before = t.call(aten.exp.default, x)
    t.call(aten.copy_.default, x, before)
    after = t.call(aten.exp.default, x)
    assert t.merged(t.call(aten.sub.Tensor, before, after))[0] == 4


def test_what_tells_a_size_stays():
    t = Traced()
    x = t.given(4)
    places = [t.call(aten.exp.default, x) for _ in range(2)]
    for node in places:
        node.meta["unbacked_bindings"] = {"u0": ()}
    assert t.merged(t.call(aten.sub.Tensor, *places))[0] == 3


def test_two_results_are_two_tensors():
    t = Traced()
    x = t.given(4)
    count, results = t.merged(t.call(aten.exp.default, x), t.call(aten.exp.default, x))
    assert count == 2 and results[0] is not results[1]


def test_two_results_of_ops_with_several_are_two_tensors():
    import mlirfuse.torch  # noqa: F401

    def f(x):
        return x.sort(0).values, x.sort(0).values, x.exp()

    x = torch.randn(6, requires_grad=True)
    first, second, _ = torch.compile(f, backend="mlirfuse")(x)
    with torch.no_grad():
        first.zero_()
    torch.testing.assert_close(second, x.sort(0).values)


def test_where_torch_sees_equal_nodes_so_do_we():
    """On the joint graph of a network that normalizes, drops out and has a residual connection."""
    from torch._functorch.aot_autograd import aot_function
    from torch._functorch.compile_utils import fx_graph_cse
    from torch._functorch.partitioners import default_partition

    counts = []

    def partition(joint, inputs, **options):
        torchs = fx_graph_cse(joint.graph)
        before = len(joint.graph.nodes)
        cse.eliminate_common_subexpressions(joint.graph)
        counts.append((before, len(torchs.nodes), len(joint.graph.nodes)))
        joint.recompile()
        return default_partition(joint, inputs, **options)

    def f(x, w):
        y = torch.nn.functional.layer_norm(x @ w, (8,)).relu()
        return (torch.nn.functional.dropout(y, 0.5) + x).softmax(-1)

    from mlirfuse.frontend.torch.aot import decompositions

    x, w = (torch.randn(8, 8, requires_grad=True) for _ in range(2))
    run = aot_function(f, lambda g, _: g, partition_fn=partition, decompositions=decompositions.Table())
    run(x, w)
    ((before, torchs, ours),) = counts
    assert ours == torchs < before
