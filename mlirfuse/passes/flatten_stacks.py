"""fusion-flatten-stacks: a stack along the last dimension but one as concatenated rows."""

from __future__ import annotations

from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Block, Graph, Op, Value
from mlirfuse.passes.base import Pass, register


@register
class FlattenStacks(Pass):
    """Rewrites a stack along the last dimension but one, if it is only a result, and in memory of its own, to a
    concatenation of rows, reshaped: the same memory. Schedulers of concatenations of rows then handle it.

    Before::

        %1 = "fusion.expand_dims"(%x) {axes = [1]}
        %2 = "fusion.expand_dims"(%y) {axes = [1]}
        %3 = "fusion.concatenate"(%1, %2) {axis = 1}      // s0 x 2 x s1

    After::

        %4 = "fusion.concatenate"(%x, %y) {axis = 1}      // s0 x 2*s1
        %3 = "fusion.reshape"(%4) {shape = ["s0", "2", "s1"]}
    """

    name = "fusion-flatten-stacks"

    def run(self, graph: Graph) -> None:
        written = graph.own_results.difference(graph.body.users())
        for op in list(graph.ops):
            rows = _rows(op)
            if op.group is not None and rows is not None and op.result in written:
                _flatten(graph.body, op, rows)


def _rows(op: Op) -> list[Value] | None:
    """Return the values that ``op`` stacks along the last dimension but one, or None."""
    at = op.results[0].rank - 2 if op.results else -1
    if op.name != "concatenate" or at < 1 or op.attrs["axis"] != at:
        return None
    stacked_ops = [value.op for value in op.operands]
    stacked = [
        stacked_op.operands[0]
        for stacked_op in stacked_ops
        if stacked_op is not None and stacked_op.name == "expand_dims" and tuple(stacked_op.attrs["axes"]) == (at,)
    ]
    return stacked if len(stacked) == len(stacked_ops) else None


def _flatten(block: Block, op: Op, rows: list[Value]) -> None:
    """Concatenate ``rows`` in place of the stack ``op``, whose result becomes a view of that."""
    result, at = op.result, rows[0].rank - 1
    length = sz.mul(len(rows), rows[0].shape[at])
    joined = Op("concatenate", rows, {"axis": at}, [Value(result.dtype, (*rows[0].shape[:at], length))], loc=op.loc)
    view = Op("reshape", [joined.result], {"shape": result.shape}, [result], loc=op.loc)
    for created in (joined, view):
        created.group, created.segment, created.origin = op.group, op.segment, op.origin
    index = block.ops.index(op)
    block.ops[index : index + 1] = [joined, view]
