"""fusion-reverse-scans: a scan between two reversals as a reverse scan."""

from __future__ import annotations

from mlirfuse.analysis.phases import is_scan
from mlirfuse.ir.graph import Block, Graph, Op, Value
from mlirfuse.passes.base import Pass, blocks, register


@register
class ReverseScans(Pass):
    """Rewrites a scan of an operand reversed along its axis, whose result is only used reversed again, to the reverse
    scan without reversals. The gradient of a cumulative sum has this form. Operands that are constant along the axis,
    as a recurrence's factor may be, need no reversal.

    Before::

        %0 = "fusion.slice"(%x) {start = ["s0 - 1"], size = ["s0"], step = [-1]}
        %1 = "fusion.cumsum"(%0) {axis = 0, reverse = false}
        %2 = "fusion.slice"(%1) {start = ["s0 - 1"], size = ["s0"], step = [-1]}
        return %2

    After::

        %0 = "fusion.cumsum"(%x) {axis = 0, reverse = true}
        return %0
    """

    name = "fusion-reverse-scans"

    def run(self, graph: Graph) -> None:
        for block in list(blocks(graph)):
            for op in [op for op in block.ops if is_scan(op) and op.group is None]:
                self._reverse(block, op)

    @staticmethod
    def _reverse(block: Block, op: Op) -> None:
        axis = op.attrs["axis"] % op.result.rank
        given = [_unreversed(v, axis) for v in op.operands]
        readers = block.users().get(op.result, [])
        if op.result in block.returns or not readers or not all(_reverses(u, axis) for u in readers):
            return
        if any(v is None for v in given) or all(v is w for v, w in zip(given, op.operands)):
            return
        turned = Op(
            op.name,
            [v for v in given if v is not None],
            op.attrs | {"axis": axis, "reverse": not op.attrs["reverse"]},
            [Value(op.result.dtype, op.result.shape)],
            loc=op.loc,
        )
        block.ops[block.ops.index(op)] = turned
        for reader in readers:
            block.replace(reader.result, turned.result)
        block.ops = [other for other in block.ops if other not in readers]


def _unreversed(value: Value, axis: int) -> Value | None:
    """Return the value that ``value`` is the reversal of along ``axis``; itself where it is constant along it; else
    None."""
    while value.op is not None and value.op.row.identity:
        value = value.op.operands[0]
    if not value.rank or value.shape[axis] == 1 or _repeats(value.op, axis):
        return value
    return value.op.operands[0] if value.op is not None and _reverses(value.op, axis) else None


def _repeats(op: Op | None, axis: int) -> bool:
    """Whether the result of ``op`` is constant along ``axis``."""
    if op is None or op.name != "broadcast_in_dim":
        return False
    source = dict(zip(op.attrs["dims"], op.operands[0].shape))
    return source.get(axis, 1) == 1


def _reverses(op: Op, axis: int) -> bool:
    """Whether ``op`` only reverses its operand along ``axis``."""
    if op.name != "slice" or op.group is not None:
        return False
    shape = op.operands[0].shape
    start, step = [0] * len(shape), [1] * len(shape)
    start[axis], step[axis] = shape[axis] - 1, -1
    return (tuple(op.attrs["start"]), tuple(op.attrs["step"]), op.result.shape) == (tuple(start), tuple(step), shape)
