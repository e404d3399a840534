"""fusion-join-pads: a sum of parts, each padded with zeros, as a concatenation of the parts."""

from __future__ import annotations

from typing import NamedTuple

from mlirfuse.ir.builder import Builder
from mlirfuse.ir.graph import Block, Graph, Op, Value
from mlirfuse.passes.base import Pass, blocks, register


class Part(NamedTuple):
    """What a sum has from ``start`` to ``stop`` along an axis; zeros are elsewhere."""

    start: int
    stop: int
    value: Value


class Sum(NamedTuple):
    """``rest``, if there is any, plus ``parts`` along ``axis``, no two of them at the same place."""

    axis: int
    parts: list[Part]
    rest: Value | None = None


@register
class JoinPads(Pass):
    """Rewrites sums of values that are padded with zeros along one dimension, each at another place, to a concatenation
    of the values: where something else is added, only that. Gradients of slices are such sums (of halves that a rotary
    embedding exchanges, of chunks, of the steps of an unrolled recurrence). An element takes one addition and one test
    for each part less, and schedules of concatenations know which part they write. Extents and places have to be
    numbers. Nothing is rounded in another way; of two zeros of which one is negative the sum is not formed.

    Before::

        %0 = "fusion.pad"(%a, %zero) {low = [0, 0], high = [0, 4]}     // 8x4 to 8x8
        %1 = "fusion.add"(%x, %0)
        %2 = "fusion.pad"(%b, %zero) {low = [0, 4], high = [0, 0]}
        %3 = "fusion.add"(%1, %2)

    After::

        %4 = "fusion.concatenate"(%a, %b) {axis = 1}
        %3 = "fusion.add"(%x, %4)
    """

    name = "fusion-join-pads"

    def run(self, graph: Graph) -> None:
        for block in blocks(graph):
            if sum(op.name == "pad" for op in block.ops) > 1:
                _join(block)


def _join(block: Block) -> None:
    users, returned = block.users(), set(block.returns)
    sums: dict[Value, Sum] = {}  # what is known of values, those left out that are within a larger sum
    for op in block.ops:
        if op.name == "pad" and (part := _part_of(op)) is not None:
            sums[op.result] = part
        elif op.name == "add" and op.operands[0].shape == op.operands[1].shape == op.result.shape:
            found = _added(op, sums)
            if found is not None:
                sums[op.result] = found
                for value in op.operands:
                    if users[value] == [op] and value not in returned:
                        sums.pop(value, None)
    for value, whole in sums.items():
        if len(whole.parts) > 1:
            assert value.op is not None
            _rewrite(block, value.op, whole)


def _part_of(pad: Op) -> Sum | None:
    """What ``pad`` places with zeros on both sides along one dimension."""
    low, high, shape = pad.attrs["low"], pad.attrs["high"], pad.result.shape
    padded = [axis for axis, both in enumerate(zip(low, high)) if both != (0, 0)]
    if len(padded) != 1 or not _is_zero(pad.operands[1]):
        return None
    (axis,) = padded
    start, behind, extent = low[axis], high[axis], shape[axis]
    if not (isinstance(start, int) and isinstance(behind, int) and isinstance(extent, int)) or min(start, behind) < 0:
        return None
    return Sum(axis, [Part(start, extent - behind, pad.operands[0])])


def _added(add: Op, sums: dict[Value, Sum]) -> Sum | None:
    """``add`` as a sum of parts and the rest, if parts can be told from it."""
    known = [(sums.get(value), other) for value, other in zip(add.operands, reversed(add.operands))]
    (a, second), (b, first) = known
    if a and b and a.axis == b.axis and _apart(a, b) and None in (a.rest, b.rest):
        return Sum(a.axis, [*a.parts, *b.parts], b.rest if a.rest is None else a.rest)
    for found, other in ((b, first), (a, second)):
        if found and found.rest is None:
            return found._replace(rest=other)
    return None


def _apart(a: Sum, b: Sum) -> bool:
    return all(x.stop <= y.start or y.stop <= x.start for x in a.parts for y in b.parts)


def _rewrite(block: Block, total: Op, whole: Sum) -> None:
    """Have ``total`` concatenate the parts of ``whole``, or add that to the rest."""
    b = Builder(Block(), lambda: total.loc)
    value, axis = total.result, whole.axis
    zero, extent, shape = b.constant(0, value.dtype), value.shape[axis], list(value.shape)
    assert isinstance(extent, int)
    pieces, at = [], 0
    for start, stop, part in [*sorted(whole.parts, key=lambda part: part.start), Part(extent, extent, value)]:
        if at < start:
            shape[axis] = start - at
            pieces.append(b.op("full", zero, shape=tuple(shape)))
        if start < stop:
            pieces.append(part)
        at = stop
    if whole.rest is None:
        total.name, total.operands, total.attrs = "concatenate", pieces, {"axis": axis}
    else:
        total.operands = [whole.rest, b.op("concatenate", *pieces, axis=axis)]
    for created in b.block.ops:
        created.origin = total.origin
    place = block.ops.index(total)
    block.ops[place:place] = b.block.ops


def _is_zero(value: Value) -> bool:
    return value.op is not None and value.op.name == "constant" and str(value.op.attrs["value"]) in ("0", "0.0")
