"""fusion-join-pads: a sum of parts, each padded with zeros, as a concatenation of the parts."""

from __future__ import annotations

import functools
from typing import NamedTuple

from mlirfuse.ir.builder import Builder
from mlirfuse.ir.graph import Block, Graph, Op, Value
from mlirfuse.ir.sizes import Size
from mlirfuse.passes.base import Pass, become, blocks, register

_RESHAPES = "reshape", "expand_dims", "squeeze"


class Place(NamedTuple):
    """What a sum has from ``start`` to ``stop`` along an axis, the sum of ``values`` in this order; zeros are
    elsewhere."""

    start: int
    stop: int
    values: tuple[Value, ...]


class Sum(NamedTuple):
    """``rest``, if there is any, plus what has ``parts`` along ``axis``, no two of them at the same place, reshaped
    from ``shape``."""

    axis: int
    shape: tuple[Size, ...]
    parts: list[Place]
    rest: Value | None = None


@register
class JoinPads(Pass):
    """Rewrites sums of values that are padded with zeros along one dimension, each at another place, to a concatenation
    of the values: where something else is added, only that. Gradients of slices are such sums (of halves that a rotary
    embedding exchanges, of chunks, of the steps of an unrolled recurrence). An element takes one addition and one test
    for each part less, and schedules of concatenations know which part they write. Extents and places have to be
    numbers. Nothing is rounded in another way, and a zero is added where a sum had one: signs of zeros stay.

    Before::

        %0 = "fusion.pad"(%a, %zero) {low = [0, 0], high = [0, 4]}     // 8x4 to 8x8
        %1 = "fusion.add"(%x, %0)
        %2 = "fusion.pad"(%b, %zero) {low = [0, 4], high = [0, 0]}
        %3 = "fusion.add"(%1, %2)

    After::

        %4 = "fusion.add"(%a, %zero)                                   // with zero broadcast
        %5 = "fusion.add"(%b, %zero)
        %6 = "fusion.concatenate"(%4, %5) {axis = 1}
        %3 = "fusion.add"(%x, %6)
    """

    name = "fusion-join-pads"

    def run(self, graph: Graph) -> None:
        for block in blocks(graph):
            while sum(op.name == "pad" for op in block.ops) > 1 and _join(block):
                pass


def _join(block: Block) -> bool:
    """Join parts, but for those within parts; whether there were some."""
    users, returned = block.users(), set(block.returns)
    sums: dict[Value, Sum] = {}  # what is known of values, those left out that are within a larger sum
    for op in block.ops:
        found = None
        if op.name == "pad":
            found = _part_of(op)
        elif op.name in _RESHAPES:
            found = sums.get(op.operands[0])
            found = None if found is None or found.rest is not None or _is_joined(found) else found
        elif op.name == "add" and op.operands[0].shape == op.operands[1].shape == op.result.shape:
            found = _added(op, sums)
        if found is not None:
            sums[op.result] = found
            for value in op.operands:
                if users[value] == [op] and value not in returned:
                    sums.pop(value, None)
    totals = [(value.op, whole) for value, whole in sums.items() if _is_joined(whole)]
    for total, whole in totals:
        assert total is not None and total.name == "add"
        _rewrite(block, total, whole)
    return bool(totals)


def _is_joined(whole: Sum) -> bool:
    return sum(len(part.values) for part in whole.parts) > 1


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
    if start + behind == extent:
        return None
    return Sum(axis, shape, [Place(start, extent - behind, (pad.operands[0],))])


def _added(add: Op, sums: dict[Value, Sum]) -> Sum | None:
    """``add`` as a sum of parts and the rest, if parts can be told from it."""
    first, second = add.operands
    a, b = sums.get(first), sums.get(second)
    if a and b and a[:2] == b[:2] and None in (a.rest, b.rest):
        parts = _together(a, b)
        if parts is not None:
            return Sum(a.axis, a.shape, parts, b.rest if a.rest is None else a.rest)
    for found, other in ((b, first), (a, second)):
        if found and found.rest is None:
            return found._replace(rest=other)
    return None


def _together(a: Sum, b: Sum) -> list[Place] | None:
    """The parts of both; None where two lie over each other, unless they are at the same place and nothing is added
    in between."""
    parts = list(a.parts)
    for part in b.parts:
        over = [k for k, other in enumerate(parts) if part.start < other.stop and other.start < part.stop]
        if not over:
            parts.append(part)
        elif len(over) > 1 or parts[over[0]][:2] != part[:2] or a.rest is not b.rest:
            return None
        else:
            parts[over[0]] = part._replace(values=parts[over[0]].values + part.values)
    return parts


def _rewrite(block: Block, total: Op, whole: Sum) -> None:
    """Have ``total`` concatenate the parts of ``whole``, or add that to the rest."""
    b = Builder(Block(), lambda: total.loc)
    axis, extent, shape = whole.axis, whole.shape[whole.axis], list(whole.shape)
    zero = b.constant(0, total.result.dtype)
    assert isinstance(extent, int)
    pieces, at = [], 0
    for start, stop, values in [*sorted(whole.parts, key=lambda part: part.start), Place(extent, extent, ())]:
        if at < start:
            shape[axis] = start - at
            pieces.append(b.op("full", zero, shape=tuple(shape)))
        if start < stop:
            added = (
                values if len(whole.parts) == 1 or not zero.dtype.is_inexact else (*values, zero)
            )  # to a negative zero
            pieces.append(functools.reduce(lambda x, y: b.op("add", x, b.broadcast_to(y, x.shape)), added))
        at = stop
    joined = b.reshape(b.op("concatenate", *pieces, axis=axis), total.result.shape)
    if whole.rest is not None:
        joined = b.op("add", whole.rest, joined)
    become(block, total, b.block.ops)


def _is_zero(value: Value) -> bool:
    return value.op is not None and value.op.name == "constant" and str(value.op.attrs["value"]) in ("0", "0.0")
