"""fusion-flatten-stacks: what is stacked along the last dimension but one is joined rows."""

from __future__ import annotations

from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Block, Graph, Op, Value
from mlirfuse.passes.base import Pass, register


@register
class FlattenStacks(Pass):
    """Makes a stack along the last dimension but one, if it is only a result, and in memory of its own, rows that are
    joined, in its shape: the same memory. What joins rows of any length then knows of it.

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
    """What ``op`` stacks along the last dimension but one, or None."""
    at = op.results[0].rank - 2 if op.results else -1
    if op.name != "concatenate" or at < 1 or op.attrs["axis"] != at:
        return None
    parts = [value.op for value in op.operands]
    stacked = [
        part.operands[0]
        for part in parts
        if part is not None and part.name == "expand_dims" and tuple(part.attrs["axes"]) == (at,)
    ]
    return stacked if len(stacked) == len(parts) else None


def _flatten(block: Block, op: Op, rows: list[Value]) -> None:
    """Joins ``rows`` in place of the stack ``op``, whose result becomes a view of that."""
    result, at = op.result, rows[0].rank - 1
    length = sz.mul(len(rows), rows[0].shape[at])
    joined = Op("concatenate", rows, {"axis": at}, [Value(result.dtype, (*rows[0].shape[:at], length))], loc=op.loc)
    view = Op("reshape", [joined.result], {"shape": result.shape}, [result], loc=op.loc)
    for created in (joined, view):
        created.group, created.segment, created.origin = op.group, op.segment, op.origin
    place = block.ops.index(op)
    block.ops[place : place + 1] = [joined, view]
