"""fusion-add-at-once: merge a sum of scatter-adds into one scatter-add."""

from __future__ import annotations

from mlirfuse.ir.graph import Block, Graph, Op, Value
from mlirfuse.passes.base import Pass, blocks, register


@register
class AddAtOnce(Pass):
    """Rewrites a sum of two scatter-adds of elements into zeros to one scatter-add of the values of both, where nothing
    else reads them: common subexpressions of the values are computed once, and neither result is stored. The gradient
    of a resized image, for example, is a sum of one scatter-add for each pixel that an element is interpolated from.
    The pass does not run for CPUs, where each task goes over all values and would compute all of them.

    Before::

        %0 = "fusion.index_put_accumulate"(%zeros, %at, %a)    // f32, [s1]; %at: [s0]
        %1 = "fusion.index_put_accumulate"(%zeros, %there, %b) // f32, [s1]; %there: [s0]
        %2 = "fusion.add"(%0, %1)

    After::

        %2 = "fusion.index_put_accumulate"(%zeros, %at, %a, %there, %b)
    """

    name = "fusion-add-at-once"

    def run(self, graph: Graph) -> None:
        for block in list(blocks(graph)):
            if sum(op.name == "index_put_accumulate" for op in block.ops) > 1:
                self._block(block)

    def _block(self, block: Block) -> None:
        for total in [op for op in block.ops if op.name == "add"]:
            found = [_scatter_add(value) for value in total.operands]
            same = total.operands[0].shape == total.operands[1].shape
            if found[0] and found[1] and same and _read_alone(block, total):
                _merge(block, total, found[0], found[1])


def _scatter_add(value: Value) -> Op | None:
    """Return the scatter-add of elements that ``value`` is, or is a view of."""
    op = value.op
    if op is not None and op.name == "reshape":
        value = op.operands[0]
        op = value.op
    return op if op is not None and op.name == "index_put_accumulate" and value.rank == 1 else None


def _read_alone(block: Block, total: Op) -> bool:
    """Whether only ``total`` reads the scatter-adds that it adds, and the views of them."""
    users, returned = block.users(), set(block.returns)
    readers = [(value, total) for value in total.operands]
    readers += [(v.op.operands[0], v.op) for v in total.operands if v.op is not None and v.op.name == "reshape"]
    return all(users[value] == [op] and value not in returned for value, op in readers)


def _merge(block: Block, total: Op, a: Op, b: Op) -> None:
    """Turn ``total`` into the scatter-add of the values of both, if they add as many values to zeros."""
    zeros = _zeros(a.operands[0]) and _zeros(b.operands[0])
    if not zeros or a.operands[1].shape != b.operands[1].shape or a.result.shape != b.result.shape:
        return
    created = Op(
        "index_put_accumulate",
        [*a.operands, *b.operands[1:]],
        {},
        [Value(a.result.dtype, a.result.shape)],
        loc=total.loc,
    )
    created.origin = total.origin
    at = block.ops.index(total)
    if total.result.shape == created.result.shape:
        block.replace(total.result, created.result)
        block.ops[at : at + 1] = [created]
        return
    total.name, total.operands, total.attrs = "reshape", [created.result], {"shape": total.result.shape}
    block.ops.insert(at, created)


def _zeros(value: Value) -> bool:
    op = value.op
    if op is not None and op.name == "reshape":
        op = op.operands[0].op
    if op is None or op.name != "full":
        return False
    filled = op.operands[0].op
    return filled is not None and filled.name == "constant" and str(filled.attrs["value"]) in ("0", "0.0")  # no -0.0
