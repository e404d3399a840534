"""fusion-inner-outer: sums over the rows in the kernel of reductions within the rows."""

from __future__ import annotations

from mlirfuse.analysis.axes import Axes
from mlirfuse.analysis.phases import is_reduction
from mlirfuse.ir.builder import Builder
from mlirfuse.ir.graph import Block, Graph, Group, Op, Value
from mlirfuse.passes.base import Pass, blocks, register


@register
class InnerOuter(Pass):
    """Splits sums over the rows of a tensor whose rows are also normalized, or written, in the same group, into partial
    sums and a sum of those: the partial sums then run in the kernel that processes the rows, and the tensor is read
    once. So the backward of layer norm becomes one pass over its inputs, and a small kernel for the gradients of weight
    and bias. Where sizes make that slower, the scheduler, which gets both from `fusion-segment`, does without
    (:mod:`mlirfuse.schedule.multi_stage`). ``parts``: the number of partial sums, one for each block of the kernel.

    Before::

        %m = "fusion.sum"(%a) {axes = [1]}            // within the rows
        %dx = … of %m, over the rows
        %dw = "fusion.sum"(%b) {axes = [0]}           // over the rows

    After::

        %m = "fusion.sum"(%a) {axes = [1]}
        %dx = …
        %p = "fusion.partial_sum"(%b) {axes = [0], parts = 264}
        %dw = "fusion.sum"(%p) {axes = [0]}
    """

    name = "fusion-inner-outer"
    parts: int = 264

    def run(self, graph: Graph) -> None:
        for block in list(blocks(graph)):
            groups: dict[Group, list[Op]] = {}
            for op in block.ops:
                if op.group is not None:
                    groups.setdefault(op.group, []).append(op)
            for members in groups.values():
                self._group(block, members)

    def _group(self, block: Block, members: list[Op]) -> None:
        axes = Axes(members)
        reads = _sources(members)
        inner = [op for op in members if is_reduction(op) and axes.reduced(op) and self._within_rows(op, axes)]
        chosen = []  # chosen before the first is split: the axes are those of the unchanged program
        for op in members:
            if op.name != "sum" or not axes.reduced(op) or self._within_rows(op, axes):
                continue
            operand = op.operands[0]
            full, over = axes.flat(operand), axes.reduced(op)
            for other in inner:
                if (
                    set(axes.reduced(other)) == set(full) - set(over)
                    and axes.flat(other.operands[0]) == [*over, *axes.reduced(other)]
                    and _shared(reads[operand] & reads[other.operands[0]])
                ):
                    chosen.append(op)
                    break
        for op in chosen:
            self._split(block, op)

    def _within_rows(self, op: Op, axes: Axes) -> bool:
        reduced = axes.reduced(op)
        return axes.flat(op.operands[0])[-len(reduced) :] == reduced

    def _split(self, block: Block, op: Op) -> None:
        scratch = Builder(Block(), lambda: op.loc)
        operand = op.operands[0]
        rows = sorted(a % operand.rank for a in op.attrs["axes"])
        columns = [d for d in range(operand.rank) if d not in rows]
        if columns and columns[0] < len(rows):  # rows before columns
            operand = scratch.op("permute", operand, dims=(*rows, *columns))
            rows = list(range(len(rows)))
        partial = scratch.op("partial_sum", operand, axes=tuple(rows), parts=self.parts)
        total = scratch.op("sum", partial, axes=(0,))
        if op.attrs["keepdims"]:
            total = scratch.op("reshape", total, shape=op.result.shape)
        at = block.ops.index(op)
        for new in scratch.block.ops:
            new.group = op.group
        block.ops[at : at + 1] = scratch.block.ops
        assert total.op is not None
        total.op.results, op.result.op = op.results, total.op  # its uses do not change


def _shared(sources: set[Value]) -> bool:
    return any(v.rank > 1 for v in sources)


def _sources(members: list[Op]) -> dict[Value, set[Value]]:
    """Return for each value the group's inputs that it is computed from elementwise, not through reductions."""
    out: dict[Value, set[Value]] = {}
    for op in members:
        found: set[Value] = set()
        for v in op.operands:
            found |= out.get(v, {v})
        for result in op.results:
            out[result] = set() if is_reduction(op) else found
    for op in members:
        for v in op.operands:
            out.setdefault(v, {v})
    return out
