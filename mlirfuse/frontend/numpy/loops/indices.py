"""Advanced indexing in a loop: elements where a mask is true, or at an index array.

A mask covers the first axes of an array, an index array the first one; each selected entry has the elements of the
remaining axes, one where there are none.
"""

from __future__ import annotations

from mlirfuse.frontend.numpy.loops import arrays
from mlirfuse.frontend.numpy.loops.code import Code
from mlirfuse.frontend.numpy.loops.values import Array, Lazy, NotOutlinable
from mlirfuse.ir import dtypes as dt
from mlirfuse.lowering.emitter import Val


def read(e: Code, array: Array, chosen: Array, site) -> Array | Lazy:
    """``array[chosen]``; ``site()`` numbers an allocation site."""
    if chosen.dtype is dt.bool_:
        return _where_true(e, array, chosen, site())
    _check(e, array, chosen)
    rank = len(chosen.shape)
    unnamed = Array(array.dtype, array.pointer, array.shape, array.strides, array.inner, array.roots, array.base)

    def at(indices: list[Val], uniform: bool) -> Val:
        return arrays.element(e, unnamed, [_position(e, array, chosen, indices[:rank]), *indices[rank:]])

    return Lazy(array.dtype, [*chosen.shape, *array.shape[1:]], at, [unnamed, chosen])


def write(e: Code, array: Array, chosen: Array, value: Lazy, site) -> None:
    """``array[chosen] = value``, whose elements fit the dtype of ``array``."""
    arrays.keeps(value, array)
    arrays.writable(array)
    masked = chosen.dtype is dt.bool_
    if masked:
        check_mask(e, array.shape, chosen)
    else:
        check_extents(e, value, [*chosen.shape, *array.shape[1:]])
        _check(e, array, chosen)
    if chosen.roots & array.roots or any(read.roots & array.roots for read in value.reads):  # at another index
        value = arrays.lazy(e, arrays.materialized(e, value, site()))
    if chosen.roots & array.roots:
        chosen = arrays.materialized(e, chosen, site())
    if masked:
        _into_true(e, array, chosen, value, site)
        return
    value = arrays.stretched(e, value, [*chosen.shape, *array.shape[1:]])
    rank = len(chosen.shape)

    def nest(uniform: bool) -> None:
        with e.each_of([*chosen.shape, *array.shape[1:]]) as indices:
            found = e.cast(value.at(indices, uniform), array.dtype)
            place = [_position(e, array, chosen, indices[:rank]), *indices[rank:]]
            e.store(found, arrays.element_pointer(e, array, place), memory=True)

    arrays.run(e, value.pairs, nest)


# ---- index arrays


def _position(e: Code, array: Array, chosen: Array, indices: list[Val]) -> Val:
    index = e.cast(arrays.element(e, chosen, indices), dt.i64)
    return e.select(e.cmp("lt", index, 0), e.count("addi", index, array.shape[0]), index)


def _check(e: Code, array: Array, chosen: Array) -> None:
    """An IndexError where an index is out of range."""
    if not array.shape or not chosen.dtype.is_integer or chosen.dtype is dt.u64:
        raise NotOutlinable("a subscript by a non-integer array")
    extent, wrong = array.shape[0], e.slot("i64")
    inside = e.const(0, dt.i64)
    e.store(inside, wrong)
    found = e.slot("i1")
    e.store(e.const(False, dt.bool_), found)
    with e.each_of(chosen.shape) as indices:
        index = e.cast(arrays.element(e, chosen, indices), dt.i64)
        bad = e.or_(e.cmp("ge", index, extent), e.cmp("lt", index, e.count("subi", 0, extent)))
        known = e.load(found, dt.bool_)
        e.store(e.select(e.and_(bad, e.not_(known)), index, e.load(wrong, dt.i64)), wrong)
        e.store(e.or_(known, bad), found)
    e.fail_if(e.load(found, dt.bool_), arrays.out_of_bounds(0), e.load(wrong, dt.i64), extent)


def check_extents(e: Code, value: Lazy, shape: list[Val]) -> None:
    """A ValueError where ``value`` does not broadcast to the indexing result's ``shape``."""
    if len(value.shape) > len(shape):
        raise NotOutlinable("more axes than the target has")
    for have, want in zip(value.shape, shape[len(shape) - len(value.shape) :]):
        if have.name != want.name and e.known(have) != 1:
            wrong = e.and_(e.cmp("ne", have, want), e.cmp("ne", have, 1))
            e.fail_if(wrong, lambda a, b: ValueError(
                f"shape mismatch: value array of shape ({a},) could not be broadcast to indexing result of shape ({b},)"
            ), have, want)  # fmt: skip


# ---- masks


def check_mask(e: Code, shape: list[Val], mask: Array, first: int = 0) -> None:
    """An IndexError where a mask has other extents than the axes from number ``first`` on, of this shape."""
    if not mask.shape or len(mask.shape) > len(shape):
        raise NotOutlinable("a mask with more axes than the array")
    for axis, (have, want) in enumerate(zip(mask.shape, shape), first):
        e.fail_if(e.cmp("ne", have, want), _other_extent(axis), have, want)


def _other_extent(axis: int):
    return lambda have, want: IndexError(
        f"boolean index did not match indexed array along axis {axis}; size of axis is {want} but size of "
        f"corresponding boolean axis is {have}"
    )


def _count(e: Code, mask: Array) -> Val:
    total = e.slot("i64")
    e.store(e.const(0, dt.i64), total)
    with e.each_of(mask.shape) as indices:
        more = e.cast(arrays.element(e, mask, indices), dt.i64)
        e.store(e.count("addi", e.load(total, dt.i64), more), total)
    return e.load(total, dt.i64)


def _where_true(e: Code, array: Array, mask: Array, site: int) -> Array:
    """The elements in a new array. Single-element entries are written unconditionally, and overwritten by the next
    where the mask is false: the array has room for one more."""
    check_mask(e, array.shape, mask)
    count, rest = _count(e, mask), array.shape[len(mask.shape) :]
    created = arrays.dense(e, site, array.dtype, [e.count("addi", count, 1), *rest])
    created.shape[0] = count
    at = e.slot("i64")
    e.store(e.const(0, dt.i64), at)
    with e.each_of(mask.shape) as indices:
        true, place = arrays.element(e, mask, indices), e.load(at, dt.i64)
        with e.each_of(_if_true(e, true, rest) if rest else []) as inner:
            found = arrays.element(e, array, [*indices, *inner])
            e.store(found, arrays.element_pointer(e, created, [place, *inner]), memory=True)
        e.store(e.count("addi", place, e.cast(true, dt.i64)), at)
    return created


def _into_true(e: Code, array: Array, mask: Array, value: Lazy, site) -> None:
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
    check_extents(e, value, [count, *rest])
    if value.shape and value.computed:  # in vectors, which the scattered stores below are not
        value = arrays.lazy(e, arrays.materialized(e, value, site()))
    value = arrays.stretched(e, value, [count, *rest])
    at = e.slot("i64")

    def nest(uniform: bool) -> None:
        e.store(e.const(0, dt.i64), at)
        with e.each_of(mask.shape) as indices:
            true, place = arrays.element(e, mask, indices), e.load(at, dt.i64)
            with e.each_of(_if_true(e, true, rest or [e.const(1, dt.i64)])) as inner:
                inner = inner if rest else []
                found = e.cast(value.at([place, *inner], uniform), array.dtype)
                e.store(found, arrays.element_pointer(e, array, [*indices, *inner]), memory=True)
            e.store(e.count("addi", place, e.cast(true, dt.i64)), at)

    arrays.run(e, value.pairs, nest)


def _if_true(e: Code, true: Val, rest: list[Val]) -> list[Val]:
    """The extents of an entry; 0 where its mask is false."""
    return [e.select(true, rest[0], e.const(0, dt.i64)), *rest[1:]]
