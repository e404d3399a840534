"""Advanced indexing in a loop by several items: index arrays, lists and masks beside numbers, slices and None.

As in NumPy, numbers beside an index array are index arrays without axes; all of them broadcast, and the result has
their axes where they stood, or first where other items stand between them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mlirfuse.frontend.numpy.loops import arrays
from mlirfuse.frontend.numpy.loops.code import Code
from mlirfuse.frontend.numpy.loops.indices import check_extents
from mlirfuse.frontend.numpy.loops.values import Array, Lazy, NotOutlinable
from mlirfuse.ir import dtypes as dt
from mlirfuse.lowering.emitter import Val


@dataclass
class Basic:
    """A slice of an axis, or None (``stride`` 0): the part of the result's axis, with its offset in bytes."""

    count: Val
    stride: Val
    offset: Val


@dataclass
class Advanced:
    """An index array (or a number, which is in range) of an axis with this number, extent and stride."""

    index: Any
    axis: int
    extent: Val
    stride: Val


class Selection:
    """The elements of ``array`` that ``items`` select."""

    def __init__(self, e: Code, array: Array, items: list[Basic | Advanced]):
        self.code, self.array = e, array
        self.chosen = [item for item in items if isinstance(item, Advanced)]
        self.kept = [item for item in items if isinstance(item, Basic)]
        places = [k for k, item in enumerate(items) if isinstance(item, Advanced)]
        together = places[-1] - places[0] + 1 == len(places)
        self.first = places[0] if together else 0  # where the axes of the index arrays begin
        self.parts = [arrays.lazy(e, item.index) for item in self.chosen]
        self.common, self.pairs = arrays.broadcast(e, [part.shape for part in self.parts])
        kept = [item.count for item in self.kept]
        self.shape = [*kept[: self.first], *self.common, *kept[self.first :]]
        for item in self.chosen:
            if isinstance(item.index, Array):
                _check(e, item.index, item)

    def _pointer(self, indices: list[Val], uniform: bool) -> str:
        e, rank = self.code, len(self.common)
        mine = indices[self.first : self.first + rank]
        offset = e.const(0, dt.i64)
        for item, part in zip(self.chosen, self.parts):
            index = e.cast(arrays.stretched(e, part, self.common).at(mine, uniform), dt.i64)
            if isinstance(item.index, Array):
                index = e.select(e.cmp("lt", index, 0), e.count("addi", index, item.extent), index)
            offset = e.count("addi", offset, e.count("muli", index, item.stride))
        for kept, index in zip(self.kept, indices[: self.first] + indices[self.first + rank :]):
            offset = e.count("addi", offset, e.count("addi", kept.offset, e.count("muli", index, kept.stride)))
        return e.offset(self.array.pointer, offset)

    @property
    def reads(self) -> list[Array]:
        """The arrays that a read looks at, none of which is known to be read at the element that is written."""
        found = self.array
        unnamed = Array(found.dtype, found.pointer, found.shape, found.strides, found.inner, found.roots, found.base)
        return [unnamed, *(array for part in self.parts for array in part.reads)]

    def read(self) -> Lazy:
        def at(indices: list[Val], uniform: bool) -> Val:
            return self.code.load(self._pointer(indices, uniform), self.array.dtype, memory=True)

        return Lazy(self.array.dtype, self.shape, at, self.reads, list(self.pairs))

    def write(self, value: Lazy, site) -> None:
        """``array[items] = value``; ``site()`` numbers an allocation site."""
        e, array = self.code, self.array
        arrays.keeps(value, array)
        arrays.writable(array)
        check_extents(e, value, self.shape)
        if any(read.roots & array.roots for read in value.reads):  # at another index
            value = arrays.lazy(e, arrays.materialized(e, value, site()))
        for k, part in enumerate(self.parts):
            if any(read.roots & array.roots for read in part.reads):
                self.parts[k] = arrays.lazy(e, arrays.materialized(e, part, site()))
        value = arrays.stretched(e, value, self.shape)

        def nest(uniform: bool) -> None:
            with e.each_of(self.shape) as indices:
                found = e.cast(value.at(indices, uniform), array.dtype)
                e.store(found, self._pointer(indices, uniform), memory=True)

        arrays.run(e, value.pairs + self.pairs, nest)


def _check(e: Code, chosen: Array, item: Advanced) -> None:
    """An IndexError where an index is out of range."""
    if not chosen.dtype.is_integer or chosen.dtype is dt.u64:
        raise NotOutlinable("a subscript by a non-integer array")
    wrong, found = e.slot("i64"), e.slot("i1")
    e.store(e.const(0, dt.i64), wrong)
    e.store(e.const(False, dt.bool_), found)
    with e.each_of(chosen.shape) as indices:
        index = e.cast(arrays.element(e, chosen, indices), dt.i64)
        bad = e.or_(e.cmp("ge", index, item.extent), e.cmp("lt", index, e.count("subi", 0, item.extent)))
        known = e.load(found, dt.bool_)
        e.store(e.select(e.and_(bad, e.not_(known)), index, e.load(wrong, dt.i64)), wrong)
        e.store(e.or_(known, bad), found)
    e.fail_if(e.load(found, dt.bool_), arrays.out_of_bounds(item.axis), e.load(wrong, dt.i64), item.extent)


def true_at(e: Code, mask: Array, site) -> list[Array]:
    """The indices where a mask is true: per axis an array of int64."""
    total = e.slot("i64")
    e.store(e.const(0, dt.i64), total)
    with e.each_of(mask.shape) as indices:
        more = e.cast(arrays.element(e, mask, indices), dt.i64)
        e.store(e.count("addi", e.load(total, dt.i64), more), total)
    count = e.load(total, dt.i64)
    created = []
    for _ in mask.shape:  # room for one more, as entries are written unconditionally
        array = arrays.dense(e, site(), dt.i64, [e.count("addi", count, 1)])
        array.shape[0] = count
        created.append(array)
    e.store(e.const(0, dt.i64), total)
    with e.each_of(mask.shape) as indices:
        place = e.load(total, dt.i64)
        for array, index in zip(created, indices):
            e.store(index, arrays.element_pointer(e, array, [place]), memory=True)
        e.store(e.count("addi", place, e.cast(arrays.element(e, mask, indices), dt.i64)), total)
    return created
