"""Arrays in a loop: elements, views by subscripts, elementwise expressions, and writes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from mlirfuse.frontend.numpy.loops.values import Array, Copied, Lazy, NotOutlinable, Number, NumberType, Site, require
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.dtypes import DType
from mlirfuse.lowering.emitter import Val

if TYPE_CHECKING:
    from mlirfuse.frontend.numpy.loops.code import Code

SIZE_BITS = 40  # extents and loop counters are below 2 ** 40


def out_of_bounds(axis: int | None):
    """A function that builds the IndexError for an index and an extent. ``axis``: None for bytes."""
    if axis is None:
        return lambda index, size: IndexError("index out of range")
    return lambda index, size: IndexError(f"index {index} is out of bounds for axis {axis} with size {size}")


def position(e: Code, index: Val, extent: Val, axis: int | None, checked: bool) -> Val:
    """An index with negative values wrapped; raises an IndexError out of range. Without ``checked`` it is known to be
    in range and not negative. ``axis``: None for bytes."""
    known = e.known(index)
    if not checked:
        return index
    if known is not None and known < 0:
        from_start = e.count("addi", extent, index)
        if e.least(from_start) < 0:
            e.fail_if(e.cmp("lt", from_start, 0), out_of_bounds(axis), index, extent)
        return from_start
    if known is not None and e.least(extent) > known:
        return index
    if known is None:
        from_start = e.select(e.cmp("lt", index, 0), e.count("addi", index, extent), index)
    else:
        from_start = index
    unsigned = lambda v: Val(v.name, dt.u64)  # noqa: E731
    e.fail_if(e.cmp("ge", unsigned(from_start), unsigned(extent)), out_of_bounds(axis), index, extent)
    return from_start


def sliced(e: Code, extent: Val, start: Val | None, stop: Val | None, step: Val | None) -> tuple[Val, Val, Val]:
    """Start, count and step of a slice, clamped as in Python."""
    step = step or e.one
    known = e.known(step)
    if known is None:
        e.fail_if(e.cmp("eq", step, 0), ValueError("slice step cannot be zero"))
        down = e.cmp("lt", step, 0)
        low = e.select(down, e.const(-1, dt.i64), e.zero)
        high = e.select(down, e.count("subi", extent, 1), extent)
        first, last = e.select(down, high, low), e.select(down, low, high)
    elif known == 0:
        raise NotOutlinable("a slice with step 0")
    elif known > 0:
        low, high = first, last = e.zero, extent
    else:
        low, high = e.const(-1, dt.i64), e.count("subi", extent, 1)
        first, last = high, low

    def clamped(v: Val | None, otherwise: Val) -> Val:
        if v is None:
            return otherwise
        fixed = e.known(v)
        if fixed is not None and fixed >= 0:
            return v if fixed == 0 and e.known(low) == 0 else e.smaller(v, high)
        if fixed is not None:
            return e.larger(e.count("addi", extent, v), low)
        if e.least(v) < 0:
            v = e.select(e.cmp("lt", v, 0), e.count("addi", v, extent), v)
        return e.smaller(e.larger(v, low), high)

    begin, end = clamped(start, first), clamped(stop, last)
    if known is None:
        span = e.select(e.cmp("lt", step, 0), e.count("subi", begin, end), e.count("subi", end, begin))
        size = e.abs(step)
    else:
        span = e.count("subi", *((end, begin) if known > 0 else (begin, end)))
        size = e.const(abs(known), dt.i64)
    if e.known(size) == 1:
        return begin, e.larger(span, e.zero), step
    if e.least(span) >= 0 and known is not None:
        return begin, e.steps(span, abs(known)), step
    count = e.div(e.count("addi", span, e.count("subi", size, 1)), size)
    return begin, e.select(e.cmp("gt", span, 0), count, e.zero), step


def element_pointer(e: Code, array: Array, indices: list[Val]) -> str:
    """A pointer to the element at these indices."""
    offset = e.zero
    for index, stride in zip(indices, array.strides):
        offset = e.count("addi", offset, e.count("muli", index, stride))
    return e.offset(array.pointer, offset)


def element(e: Code, array: Array, indices: list[Val]) -> Val:
    return e.load(element_pointer(e, array, indices), array.dtype, memory=True)


def dense(e: Code, site: int, dtype: DType, shape: list[Val]) -> Array:
    """A new C-contiguous array."""
    strides = dense_strides(e, dtype, shape)
    base, pointer = e.allocate(site, e.product(shape), dtype)
    return Array(dtype, pointer, list(shape), strides, bool(shape), frozenset([Site(site)]), base)


def dense_strides(e: Code, dtype: DType, shape: list[Val]) -> list[Val]:
    """The strides of a C-contiguous array."""
    strides = [e.const(dtype.bytes, dt.i64)]
    for extent in reversed(shape[1:]):
        strides.insert(0, e.count("muli", strides[0], extent))
    return strides[: len(shape)]


def filled(e: Code, site: int, dtype: DType, shape: list[Val], val: Val) -> Array:
    """A new C-contiguous array of one value."""
    created = dense(e, site, dtype, shape)
    fill(e, created, val)
    return created


def expanded(e: Code, array: Array, axes: Iterable[int]) -> Array:
    """The view with new axes, of extent 1, at these indices of the result."""
    shape, strides, new = list(array.shape), list(array.strides), list(axes)
    for axis in new:
        shape.insert(axis, e.one)
        strides.insert(axis, e.zero)
    inner = array.inner and len(shape) - 1 not in new
    return dataclasses.replace(array, shape=shape, strides=strides, inner=inner, serialized="")


# ---- expressions over elements


def lazy(e: Code, value) -> Lazy:
    """An array or a number as a lazy expression."""
    if isinstance(value, Lazy):
        return value
    if isinstance(value, Number):
        return Lazy(value.dtype, [], lambda indices, uniform: value.val, [])
    require(isinstance(value, Array), "an operand that is neither an array nor a number")
    return Lazy(value.dtype, value.shape, lambda indices, uniform: element(e, value, indices), [value])


def broadcast(e: Code, shapes: list[list[Val]]) -> tuple[list[Val], list[tuple[Val, Val]]]:
    """The broadcast shape, and the pairs of extents that must be equal or 1."""
    rank = max(map(len, shapes))
    out, pairs = [], []
    for axis in range(rank):
        extents = [s[axis - rank + len(s)] for s in shapes if axis - rank + len(s) >= 0]
        result = extents[0]
        for extent in extents[1:]:
            if extent.name == result.name or e.known(extent) == 1:
                continue
            if e.known(result) == 1:
                result = extent
            elif e.known(extent) is None or e.known(extent) != e.known(result):
                combined = e.select(e.cmp("eq", result, 1), extent, result)
                pairs.append((result, extent))
                result = combined
        out.append(result)
    return out, pairs


def _operand_indices(e: Code, shape: list[Val], whole: list[Val], indices: list[Val], uniform: bool) -> list[Val]:
    """The indices at which an operand of ``shape`` is read for an element of the result."""
    mine = indices[len(indices) - len(shape) :]
    out = []
    for extent, of_all, index in zip(shape, whole[len(whole) - len(shape) :], mine):
        if e.known(extent) == 1:
            out.append(e.zero)
        elif uniform or extent.name == of_all.name:
            out.append(index)
        else:
            out.append(e.select(e.cmp("eq", extent, 1), e.zero, index))
    return out


def elementwise(e: Code, dtype: DType, compute, operands: list) -> Lazy:
    """``compute(*elements)`` over broadcast operands."""
    parts = [lazy(e, operand) for operand in operands]
    shape, pairs = broadcast(e, [part.shape for part in parts])

    def at(indices: list[Val], uniform: bool) -> Val:
        given = [part.at(_operand_indices(e, part.shape, shape, indices, uniform), uniform) for part in parts]
        return compute(*given)

    reads = [array for part in parts for array in part.reads]
    return Lazy(dtype, shape, at, reads, [pair for part in parts for pair in part.pairs] + pairs, True)


def _unequal(e: Code, value: Lazy, shape: list[Val]) -> list[tuple[Val, Val]]:
    """The extents of ``value`` that may have to be stretched to those of ``shape``, with these."""
    require(len(value.shape) <= len(shape), "more axes than the target has")
    pairs = zip(value.shape, shape[len(shape) - len(value.shape) :])
    return [(have, want) for have, want in pairs if have.name != want.name and e.known(have) != 1]


def check_extents(e: Code, value: Lazy, shape: list[Val], error: Callable[[int, int], Exception]) -> None:
    """An error where ``value`` does not broadcast to ``shape``, from the extent it has and the one that is wanted."""
    for have, want in _unequal(e, value, shape):
        e.fail_if(e.and_(e.cmp("ne", have, want), e.cmp("ne", have, 1)), error, have, want)


def stretched(e: Code, value: Lazy, shape: list[Val]) -> Lazy:
    """``value`` broadcast to ``shape``, which has at least as many axes."""
    pairs = [(want, have) for have, want in _unequal(e, value, shape)]
    return Lazy(
        value.dtype,
        shape,
        lambda indices, uniform: value.at(_operand_indices(e, value.shape, shape, indices, uniform), uniform),
        value.reads,
        value.pairs + pairs,
    )


def _mismatch(left: int, right: int) -> Exception:
    return ValueError(f"operands could not be broadcast together with shapes ({left},) ({right},)")


def _no_room(have: int, want: int) -> Exception:
    return ValueError(f"could not broadcast input array from shape ({have},) into shape ({want},)")


def run(e: Code, pairs: Iterable[tuple[Val, Val]], body) -> None:
    """Emits ``body(uniform)``: with ``uniform`` where all ``pairs`` of extents are equal; without, where those that
    differ are 1."""
    unequal = None
    seen = set()
    for a, b in pairs:
        if (a.name, b.name) in seen:
            continue
        seen.add((a.name, b.name))
        differ = e.cmp("ne", a, b)
        unequal = differ if unequal is None else e.or_(unequal, differ)
    if unequal is None:
        body(True)
        return

    def uneven() -> None:
        for a, b in pairs:
            wrong = e.cmp("ne", a, b)
            for v in (a, b):
                wrong = wrong if e.least(v) > 1 else e.and_(wrong, e.cmp("ne", v, 1))
            e.fail_if(wrong, _mismatch, a, b)
        if all(e.least(a) > 1 and e.least(b) > 1 for a, b in pairs):  # an error has been raised before
            return
        rare, e.rare = e.rare, True
        body(False)
        e.rare = rare

    e.branch(unequal, uneven, lambda: body(True))


def same_view(a: Array, b: Array) -> bool:
    """Whether two arrays are known to be the same view."""
    return a is b or (bool(a.serialized) and a.serialized == b.serialized)


def conflicts(target: Array, value: Lazy) -> bool:
    """Whether writing ``target`` element by element may overwrite elements that are read later."""
    return any(target.roots & read.roots and not same_view(target, read) for read in value.reads)


def apart(e: Code, value: Lazy, target: Array, site) -> Lazy:
    """``value``, evaluated now where it reads memory that ``target`` may share, for writes at other indices."""
    shared = any(read.roots & target.roots for read in value.reads)
    return lazy(e, materialized(e, value, site())) if shared else value


def keeps(value: Lazy, target: Array) -> None:
    """Raises NotOutlinable where complex values are written into an array of real ones."""
    require(not value.dtype.kind == "c" != target.dtype.kind, "complex numbers as real ones")


def store_each(e: Code, target: Array, at, pairs: Iterable[tuple[Val, Val]] = ()) -> None:
    """Stores ``at(indices, uniform)`` into each element; ``pairs``: as of :func:`run`."""

    def nest(uniform: bool) -> None:
        with e.each_of(target.shape) as indices:
            e.store(at(indices, uniform), element_pointer(e, target, indices), memory=True)

    run(e, pairs, nest)


def write(e: Code, target: Array, value: Lazy, site) -> None:
    """``target[...] = value``, evaluated fully before any write where they conflict; ``site()`` numbers an allocation
    site."""
    keeps(value, target)
    writable(target)
    if conflicts(target, value):
        value = lazy(e, materialized(e, value, site()))
    check_extents(e, value, target.shape, _no_room)
    value = stretched(e, value, target.shape)
    store_each(e, target, lambda indices, uniform: e.cast(value.at(indices, uniform), target.dtype), value.pairs)


def materialized(e: Code, value, site: int) -> Array:
    """A new array with the elements of an array or an expression."""
    value = lazy(e, value)
    created = dense(e, site, value.dtype, value.shape)
    store_each(e, created, value.at, value.pairs)
    return created


def writable(target: Array) -> None:
    """Raises NotOutlinable for memory that is read-only, or may be a copy where NumPy has a view."""
    known = not any(isinstance(root, Copied) for root in target.roots)
    require(known, "writing into a read-only array, or a reshaped one that may be a copy")


def fill(e: Code, target: Array, val: Val) -> None:
    writable(target)
    store_each(e, target, lambda indices, uniform: val)


# ---- reductions


def reduced(e: Code, value: Lazy, axes: list[int], start: Sequence[Val], combine, site) -> Array | Number:
    """Folds elements over some axes: from the values ``start`` on, ``combine(*so far, element)`` gives the next ones;
    the result is the first value. A number where the axes are all."""
    rest = [axis for axis in range(len(value.shape)) if axis not in axes]
    slots = [e.slot(val.dtype.signless) for val in start]
    kind = start[0].dtype

    def over(outer: list[Val], uniform: bool) -> Val:
        for val, slot in zip(start, slots):
            e.store(val, slot)
        with e.each_of([value.shape[axis] for axis in axes]) as inner:
            at = dict(zip(rest, outer)) | dict(zip(axes, inner))
            so_far = [e.load(slot, val.dtype) for val, slot in zip(start, slots)]
            found = combine(*so_far, value.at([at[axis] for axis in range(len(at))], uniform))
            for val, slot in zip(found, slots):
                e.store(val, slot)
        return e.load(slots[0], kind)

    if not rest:
        run(e, value.pairs, lambda uniform: over([], uniform) and None)
        return number(e.load(slots[0], kind))
    created = dense(e, site(), kind, [value.shape[axis] for axis in rest])
    store_each(e, created, over, value.pairs)
    return created


def fast_add(e: Code, a: Val, b: Val) -> Val:
    """A sum whose order is free, so that it can be vectorized."""
    if not a.dtype.is_float:
        return e.add(a, b)
    return e.op(f"arith.addf {a}, {b} fastmath<reassoc> : {a.type}", a.dtype)


def number(val: Val, python: bool = False) -> Number:
    return Number(val, NumberType(val.dtype, python))
