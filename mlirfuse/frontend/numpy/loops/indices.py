"""Advanced indexing in a loop: elements where a mask is true, or at index arrays, lists and masks beside numbers,
slices and None.

A mask covers the first axes of an array, an index array one axis. As in NumPy, numbers beside an index array are index
arrays without axes; all of them broadcast, and the result has their axes where they stood, or first where other items
stand between them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from mlirfuse.frontend.numpy.loops import arrays
from mlirfuse.frontend.numpy.loops.code import Code
from mlirfuse.frontend.numpy.loops.values import Array, Lazy, require
from mlirfuse.ir import dtypes as dt
from mlirfuse.lowering.emitter import Val

# ---- index arrays


@dataclass
class Basic:
    """A slice of an axis, or None (``stride`` 0): the part of the result's axis, with its offset in bytes. ``inner``:
    it is contiguous, and the array's last."""

    count: Val
    stride: Val
    offset: Val
    inner: bool = False


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
        self.code, self.array, self.dtype = e, array, array.dtype
        self.chosen = [item for item in items if isinstance(item, Advanced)]
        self.kept = [item for item in items if isinstance(item, Basic)]
        places = [k for k, item in enumerate(items) if isinstance(item, Advanced)]
        together = places[-1] - places[0] + 1 == len(places)
        self.first = places[0] if together else 0  # where the axes of the index arrays begin
        self.parts = [arrays.lazy(e, item.index) for item in self.chosen]
        self.common, self.pairs = arrays.broadcast(e, [part.shape for part in self.parts])
        kept = [item.count for item in self.kept]
        self.shape = [*kept[: self.first], *self.common, *kept[self.first :]]
        self._checked = False

    def _check(self) -> None:
        """An IndexError where an index is out of range; of the first check alone."""
        for item in () if self._checked else self.chosen:
            if isinstance(item.index, Array):
                _check(self.code, item.index, item)
        self._checked = True

    def _pointer(self, indices: list[Val], uniform: bool) -> str:
        e, rank = self.code, len(self.common)
        mine = indices[self.first : self.first + rank]
        offset = e.zero
        for item, part in zip(self.chosen, self.parts):
            index = e.cast(arrays.stretched(e, part, self.common).at(mine, uniform), dt.i64)
            if isinstance(item.index, Array):
                index = e.select(e.cmp("lt", index, 0), e.count("addi", index, item.extent), index)
            offset = e.count("addi", offset, e.count("muli", index, item.stride))
        for kept, index in zip(self.kept, indices[: self.first] + indices[self.first + rank :]):
            offset = e.count("addi", offset, e.count("addi", kept.offset, e.count("muli", index, kept.stride)))
        return e.offset(self.array.pointer, offset)

    def read(self) -> Lazy:
        self._check()

        def at(indices: list[Val], uniform: bool) -> Val:
            return self.code.load(self._pointer(indices, uniform), self.dtype, memory=True)

        unnamed = dataclasses.replace(self.array, serialized="")  # not read at the element that is written
        reads = [unnamed, *(array for part in self.parts for array in part.reads)]
        return Lazy(self.dtype, self.shape, at, reads, list(self.pairs))

    def write(self, value: Lazy, site: Callable[[], int]) -> None:
        """``array[items] = value``; ``site()`` numbers an allocation site."""
        e, array = self.code, self.array
        arrays.keeps(value, array)
        arrays.check_extents(e, value, self.shape, _mismatch)
        self._check()
        value = arrays.apart(e, value, array, site)
        self.parts = [arrays.apart(e, part, array, site) for part in self.parts]
        value = arrays.stretched(e, value, self.shape)

        def nest(uniform: bool) -> None:
            with e.each_of(self.shape) as indices:
                found = e.cast(value.at(indices, uniform), array.dtype)
                e.store(found, self._pointer(indices, uniform), memory=True)

        arrays.run(e, value.pairs + self.pairs, nest)


def _check(e: Code, chosen: Array, item: Advanced) -> None:
    """An IndexError where an index is out of range."""
    require(chosen.dtype.is_integer and chosen.dtype is not dt.u64, "a subscript by a non-integer array")
    wrong, found = e.slot_with(e.zero), e.slot_with(e.const(False, dt.bool_))
    with e.each_of(chosen.shape) as indices:
        index = e.cast(arrays.element(e, chosen, indices), dt.i64)
        bad = e.or_(e.cmp("ge", index, item.extent), e.cmp("lt", index, e.count("subi", 0, item.extent)))
        known = e.load(found, dt.bool_)
        e.store(e.select(e.and_(bad, e.not_(known)), index, e.load(wrong, dt.i64)), wrong)
        e.store(e.or_(known, bad), found)
    e.fail_if(e.load(found, dt.bool_), arrays.out_of_bounds(item.axis), e.load(wrong, dt.i64), item.extent)


def _mismatch(have: int, want: int) -> Exception:
    return ValueError(
        f"shape mismatch: value array of shape ({have},) could not be broadcast to indexing result of shape ({want},)"
    )


# ---- masks


class Masked:
    """The elements of ``array`` where a mask over its first axes is true; ``site()`` numbers an allocation site."""

    def __init__(self, e: Code, array: Array, mask: Array | Lazy, site: Callable[[], int]):
        self.code, self.array, self.dtype = e, array, array.dtype
        self.mask, self.site = arrays.lazy(e, mask), site
        self._stored = mask if isinstance(mask, Array) else None
        check_mask(e, array.shape, self.mask.shape)

    def _in_memory(self) -> Array:
        if self._stored is None:
            self._stored = arrays.materialized(self.code, self.mask, self.site())
        return self._stored

    def read(self) -> Array:
        """The elements in a new array. Single-element entries are written unconditionally, and overwritten by the next
        where the mask is false: the array has room for one more."""
        e, array, mask = self.code, self.array, self._in_memory()
        count, rest = _count(e, mask), array.shape[len(mask.shape) :]
        created = arrays.dense(e, self.site(), array.dtype, [e.count("addi", count, 1), *rest])
        created.shape[0] = count
        with _each_true(e, mask, rest) as (indices, place, inner):
            found = arrays.element(e, array, [*indices, *inner])
            e.store(found, arrays.element_pointer(e, created, [place, *inner]), memory=True)
        return created

    def write(self, value: Lazy, site: Callable[[], int]) -> None:
        """``array[mask] = value``."""
        e, array = self.code, self.array
        arrays.keeps(value, array)
        value = arrays.apart(e, value, array, site)
        if not value.shape and len(self.mask.shape) == len(array.shape):
            self._write_number(value.at([], True))
            return
        mask = self._in_memory()
        if mask.roots & array.roots:
            mask = arrays.materialized(e, mask, site())
        count, rest = _count(e, mask), array.shape[len(mask.shape) :]
        if not rest and value.shape:
            have = value.shape[0]
            e.fail_if(
                e.and_(e.cmp("ne", have, count), e.cmp("ne", have, 1)),
                lambda a, b: ValueError(
                    f"NumPy boolean array indexing assignment cannot assign {a} input values to the {b} output values "
                    "where the mask is true"
                ),
                have,
                count,
            )
        arrays.check_extents(e, value, [count, *rest], _mismatch)
        if value.shape and value.computed:  # in vectors, which the scattered stores below are not
            value = arrays.lazy(e, arrays.materialized(e, value, site()))
        value = arrays.stretched(e, value, [count, *rest])

        def nest(uniform: bool) -> None:
            with _each_true(e, mask, rest or [e.one]) as (indices, place, inner):
                inner = inner if rest else []
                found = e.cast(value.at([place, *inner], uniform), array.dtype)
                e.store(found, arrays.element_pointer(e, array, [*indices, *inner]), memory=True)

        arrays.run(e, value.pairs, nest)

    def _write_number(self, number: Val) -> None:
        """Writes a number where a mask over all axes is true."""
        e, array, mask = self.code, self.array, self.mask
        if arrays.conflicts(array, mask):
            mask = arrays.lazy(e, self._in_memory())
        val = e.cast(number, array.dtype)

        def chosen(indices: list[Val], uniform: bool) -> Val:
            return e.select(mask.at(indices, uniform), val, arrays.element(e, array, indices))

        arrays.store_each(e, array, chosen, mask.pairs)


def check_mask(e: Code, shape: list[Val], mask: list[Val], first: int = 0) -> None:
    """An IndexError where a mask has other extents than the axes from number ``first`` on, of this shape."""
    require(0 < len(mask) <= len(shape), "a mask with more axes than the array")
    for axis, (have, want) in enumerate(zip(mask, shape), first):
        e.fail_if(e.cmp("ne", have, want), _other_extent(axis), have, want)


def _other_extent(axis: int):
    return lambda have, want: IndexError(
        f"boolean index did not match indexed array along axis {axis}; size of axis is {want} but size of "
        f"corresponding boolean axis is {have}"
    )


@contextmanager
def _each_true(e: Code, mask: Array, entry: list[Val]) -> Iterator[tuple[list[Val], Val, list[Val]]]:
    """A loop over a mask, and where it is true over the extents ``entry``: the mask's indices, the number of true
    elements before, and the entry's indices. Without extents its body runs where the mask is false, too."""
    at = e.slot_with(e.zero)
    with e.each_of(mask.shape) as indices:
        true, place = arrays.element(e, mask, indices), e.load(at, dt.i64)
        with e.each_of([e.select(true, entry[0], e.zero), *entry[1:]] if entry else []) as inner:
            yield indices, place, inner
        e.store(e.count("addi", place, e.cast(true, dt.i64)), at)


def _count(e: Code, mask: Array) -> Val:
    total = e.slot_with(e.zero)
    with e.each_of(mask.shape) as indices:
        more = e.cast(arrays.element(e, mask, indices), dt.i64)
        e.store(e.count("addi", e.load(total, dt.i64), more), total)
    return e.load(total, dt.i64)


def true_at(e: Code, mask: Array, site: Callable[[], int]) -> list[Array]:
    """The indices where a mask is true: per axis an array of int64."""
    count, created = _count(e, mask), []
    for _ in mask.shape:  # room for one more, as entries are written unconditionally
        array = arrays.dense(e, site(), dt.i64, [e.count("addi", count, 1)])
        array.shape[0] = count
        created.append(array)
    with _each_true(e, mask, []) as (indices, place, _):
        for array, index in zip(created, indices):
            e.store(index, arrays.element_pointer(e, array, [place]), memory=True)
    return created
