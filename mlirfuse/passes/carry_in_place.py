"""fusion-carry-in-place: update loop-carried arrays in place."""

from __future__ import annotations

from collections.abc import Iterator

from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Block, Graph, Op, Value, uses
from mlirfuse.passes.base import Pass, blocks, register


@register
class CarryInPlace(Pass):
    """Turns a ``set_slice`` of a loop-carried array into an ``update`` in place, where nothing reads the old elements
    afterwards: an iteration then writes the slice without copying the rest. A slice of most of the array stays: writing
    another buffer moves less memory. The initial array is copied once before the loop, unless only the loop reads it
    and an op has just created it.

    For loops it undoes fusion-remove-inplace, which has to run before it, and fusion-decompose after it.

    Before::

        %0 = scf.for %i = %a to %b step %c iter_args(%v = %x) -> tensor<?xf32> {
          %1 = "fusion.exp"(%v)
          %2 = "fusion.slice"(%1) {start = ["1"], size = ["4"], step = [1]}
          %3 = "fusion.set_slice"(%v, %2) {start = ["0"], size = ["4"], step = [1]}
          scf.yield %3
        }

    After::

        %0 = "fusion.copy"(%x)
        %1 = scf.for %i = %a to %b step %c iter_args(%v = %0) -> tensor<?xf32> {
          %2 = "fusion.exp"(%v)
          %3 = "fusion.slice"(%2) {start = ["1"], size = ["4"], step = [1]}
          %4 = "fusion.update"(%v, %3) {start = ["0"], size = ["4"], step = [1]}
          scf.yield %4
        }
    """

    name = "fusion-carry-in-place"

    def run(self, graph: Graph) -> None:
        for block in list(blocks(graph)):
            for op in list(block.ops):
                if op.name in ("scf.for", "scf.while"):
                    _loop(block, op)


def _loop(block: Block, loop: Op) -> None:
    body = loop.blocks[-1]
    first = 3 if loop.name == "scf.for" else 0  # of the operands that are carried
    carried = body.args[1:] if loop.name == "scf.for" else body.args
    if loop.name == "scf.while" and loop.blocks[0].returns[1:] != loop.blocks[0].args:
        return  # the loop yields other values than those that the condition was computed from
    for k, value in enumerate(carried):
        windows = list(_windows(body, value))
        if not windows or body.returns[k] is not windows[-1].result or body.returns.count(body.returns[k]) > 1:
            continue
        if any(map(_is_most, windows)) or not all(_last_reader(body, op) for op in windows):
            continue
        for op in windows:
            op.name = "update"
        initial = loop.operands[first + k]
        maker = initial.op
        fresh = maker in block.ops and not maker.blocks and not maker.row.view if maker is not None else False
        read = [*uses(loop), *block.returns, *(v for other in block.ops if other is not loop for v in uses(other))]
        if maker is None or not fresh or maker.row.kind == "library" or read.count(initial) > 1:
            copy = Op("copy", [initial], {}, [Value(initial.dtype, initial.shape)], loc=loop.loc)
            block.ops.insert(block.ops.index(loop), copy)
            loop.operands[first + k] = copy.result


def _windows(body: Block, value: Value) -> Iterator[Op]:
    """Iterate over the ops of ``body`` that write into slices of ``value``, one after the other."""
    for op in body.ops:
        if op.name == "set_slice" and op.operands[0] is value and op.operands[1] is not value:
            yield op
            value = op.result


def _is_most(op: Op) -> bool:
    """Whether the slice is so much of the array that writing all of it anew moves no more memory: in place, the slice
    is stored once more before."""
    shape, size = op.operands[0].shape, op.attrs["size"]
    total, written = sz.product(shape), sz.product(size)
    if isinstance(total, int) and isinstance(written, int):
        return 3 * written >= total
    return all(isinstance(n - m, int) for n, m in zip(shape, size))


def _last_reader(body: Block, op: Op) -> bool:
    """Whether nothing in ``body`` reads the elements that ``op`` overwrites, or a view of them, from ``op`` on."""
    sharing = {op.operands[0]}
    at = body.ops.index(op)
    for k, other in enumerate(body.ops):
        reads = sharing.intersection(uses(other))
        if other is op:
            if op.operands[1] in sharing:  # a view of the written elements
                return False
            continue
        if reads and k > at:
            return False
        if reads and (other.row.view or other.row.calls or other.row.kind == "foreign"):
            sharing.update(other.results)  # may be the operand, or a view of it
    return sharing.isdisjoint(body.returns)
