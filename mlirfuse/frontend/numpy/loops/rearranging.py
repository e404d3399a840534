"""Functions that rearrange, join and create arrays in compiled loops, as rules of ``functions.py``."""

from __future__ import annotations

from typing import Any

import numpy as np

from mlirfuse.frontend.numpy.loops import arrays
from mlirfuse.frontend.numpy.loops.functions import FUNCTIONS, METHODS, element_type, extents, known, rule, take
from mlirfuse.frontend.numpy.loops.values import PY_INT, Array, Copied, Lazy, NotOutlinable, Number, Static, Tuple
from mlirfuse.ir import dtypes as dt
from mlirfuse.lowering.elementwise import EMIT
from mlirfuse.lowering.emitter import Val


def _axis(found: Any, rank: int, otherwise: int | None = None) -> int:
    given = known(found, otherwise)
    if not isinstance(given, int) or not -rank <= given < rank:
        raise NotOutlinable("an axis that is no constant in range")
    return given % rank


def _elsewhere(c, found: Any) -> Array:
    """An array, without the name by which it was read: its elements are read at other indices than they are written."""
    array = c.array(found)
    return Array(array.dtype, array.pointer, array.shape, array.strides, array.inner, array.roots, array.base)


# ---- shapes


def _wanted(c, shape: list) -> list[Val]:
    items = shape[0].items if len(shape) == 1 and isinstance(shape[0], Tuple) else shape
    return [c.integer(item) for item in items]


def _reshaped(c, found: Any, wanted: list[Val]) -> Array:
    """``found`` with another shape: a view where its elements are contiguous, else a copy, which must not be written
    into, as NumPy may have a view of it."""
    e, array = c.code, c.array(found)
    total = e.const(1, dt.i64)
    for extent in array.shape:
        total = e.count("muli", total, extent)
    open_axes = [k for k, extent in enumerate(wanted) if e.known(extent) == -1]
    if len(open_axes) > 1:
        raise NotOutlinable("a shape with two unknown extents")
    rest = e.const(1, dt.i64)
    for k, extent in enumerate(wanted):
        rest = rest if k in open_axes else e.count("muli", rest, extent)
    if open_axes:
        filled = e.larger(rest, e.const(1, dt.i64))
        wanted = list(wanted)
        wanted[open_axes[0]] = e.div(total, filled) if e.known(filled) != 1 else total
        rest = e.count("muli", rest, wanted[open_axes[0]])
    if rest.name != total.name:
        e.fail_if(
            e.cmp("ne", rest, total),
            lambda size, other: ValueError(f"cannot reshape array of size {size} into an array of size {other}"),
            total,
            rest,
        )
    strides = arrays.dense_strides(e, array.dtype, wanted)
    contiguous, expected = e.const(True, dt.bool_), e.const(array.dtype.bytes, dt.i64)
    for extent, stride in zip(reversed(array.shape), reversed(array.strides)):
        if stride.name != expected.name and e.known(extent) != 1:
            same = e.or_(e.cmp("eq", stride, expected), e.cmp("eq", extent, 1))
            contiguous = same if e.known(contiguous) else e.and_(contiguous, same)
        expected = e.count("muli", expected, extent)
    if e.known(contiguous):
        return c.view(array, wanted, strides, bool(wanted))
    site, pointer, base = c.fresh_site(), e.slot("!llvm.ptr"), e.slot("i64")
    e.store_pointer(array.pointer, pointer)
    e.store(array.base, base)

    def copy() -> None:
        created = arrays.materialized(e, array, site)
        e.store_pointer(created.pointer, pointer)
        e.store(created.base, base)

    e.branch(contiguous, lambda: None, copy)
    roots = array.roots | {arrays.Site(site), Copied(site)}
    return Array(array.dtype, e.load_pointer(pointer), wanted, strides, bool(wanted), roots, e.load(base, dt.i64))


@rule(np.reshape)
def _reshape(c, args, keywords):
    found, shape = take(args, keywords, "a", "shape")
    return _reshaped(c, found, _wanted(c, [shape]))


def _reshape_method(c, args, keywords):
    if keywords:
        raise NotOutlinable("the order of a reshape")
    return _reshaped(c, args[0], _wanted(c, args[1:]))


METHODS["reshape"] = _reshape_method


@rule(np.ravel, method="ravel")
def _ravel(c, args, keywords):
    (found,) = take(args, keywords, "a")
    return _reshaped(c, found, [c.code.const(-1, dt.i64)])


def _flatten(c, args, keywords):
    (found,) = take(args, keywords, "a")
    return _ravel(c, [arrays.materialized(c.code, found, c.fresh_site())], {})


METHODS["flatten"] = _flatten


def permuted(c, found: Any, order: list[int]) -> Array:
    """A view with the axes in another order."""
    array = c.array(found)
    shape, strides = [array.shape[k] for k in order], [array.strides[k] for k in order]
    return c.view(array, shape, strides, array.inner and order[-1:] == [len(order) - 1])


@rule(np.transpose)
def _transpose(c, args, keywords):
    found, axes = take(args, keywords, "a", "axes")
    return _transposed(c, [found] + ([] if axes is None else [axes]), {})


def _transposed(c, args, keywords):
    if keywords:
        raise NotOutlinable("transpose with keywords")
    array, axes = c.array(args[0]), [known(v) for v in args[1:]]
    rank = len(array.shape)
    order = list(axes[0]) if len(axes) == 1 and isinstance(axes[0], tuple) else axes
    if order in ([], [None]):
        order = list(range(rank))[::-1]
    if sorted(k % rank for k in order) != list(range(rank)):
        raise NotOutlinable("axes that do not match the array")
    return permuted(c, array, [k % rank for k in order])


METHODS["transpose"] = _transposed


@rule(np.swapaxes, method="swapaxes")
def _swapaxes(c, args, keywords):
    found, one, other = take(args, keywords, "a", "axis1", "axis2")
    array = c.array(found)
    order = list(range(len(array.shape)))
    a, b = (_axis(v, len(order)) for v in (one, other))
    order[a], order[b] = b, a
    return permuted(c, array, order)


@rule(np.expand_dims)
def _expand_dims(c, args, keywords):
    found, axis = take(args, keywords, "a", "axis")
    array = c.array(found)
    at = _axis(axis, len(array.shape) + 1)
    shape, strides = list(array.shape), list(array.strides)
    shape.insert(at, c.code.const(1, dt.i64))
    strides.insert(at, c.code.const(0, dt.i64))
    return c.view(array, shape, strides, array.inner and at < len(shape) - 1)


# ---- elements at other indices


@rule(np.roll)
def _roll(c, args, keywords):
    found, shift, axis = take(args, keywords, "a", "shift", "axis")
    e, array = c.code, _elsewhere(c, found)
    rank = len(array.shape)
    if isinstance(axis, Tuple) or isinstance(shift, Tuple):
        shifts = shift.items if isinstance(shift, Tuple) else [shift] * len(axis.items)
        axes = axis.items if isinstance(axis, Tuple) else [axis] * len(shifts)
    elif axis is None and rank > 1:
        flat = _roll(c, [_reshaped(c, array, [e.const(-1, dt.i64)]), shift], {})
        return _reshaped(c, flat, array.shape)
    else:
        shifts, axes = [shift], [c.constant(0) if axis is None else axis]
    if len(shifts) != len(axes):
        raise NotOutlinable("other shifts than axes")
    by: dict[int, Val] = {}
    for one, along in zip(shifts, axes):
        k, count = _axis(along, rank), c.integer(one)
        by[k] = count if k not in by else e.count("addi", by[k], count)
    for k, count in by.items():  # 0 <= count <= extent - 1, or 0
        extent = e.larger(array.shape[k], e.const(1, dt.i64))
        by[k] = EMIT["mod"](e, count, extent)

    def at(indices: list[Val], uniform: bool) -> Val:
        given = list(indices)
        for k, count in by.items():
            before = e.count("subi", indices[k], count)
            given[k] = e.select(e.cmp("lt", before, 0), e.count("addi", before, array.shape[k]), before)
        return arrays.element(e, array, given)

    return Lazy(array.dtype, list(array.shape), at, [array])


def _triangle(upper: bool):
    def keep(c, args, keywords):
        found, diagonal = take(args, keywords, "m", "k")
        value = arrays.lazy(c.code, found)
        e, by = c.code, c.integer(diagonal or c.constant(0))
        if len(value.shape) < 2:
            raise NotOutlinable("a triangle of an array of one axis")

        def at(indices: list[Val], uniform: bool) -> Val:
            away = e.count("subi", indices[-1], indices[-2])
            kept = e.cmp("ge" if upper else "le", away, by)
            return e.select(kept, value.at(indices, uniform), e.const(0, value.dtype))

        return Lazy(value.dtype, value.shape, at, value.reads, value.pairs)

    return keep


FUNCTIONS |= {np.triu: _triangle(True), np.tril: _triangle(False)}


def _diagonal_view(c, array: Array, by: int) -> Array:
    e = c.code
    rows, columns = array.shape
    down, across = (e.count("subi", rows, max(-by, 0)), e.count("subi", columns, max(by, 0)))
    count = e.larger(e.smaller(down, across), e.const(0, dt.i64))
    offset = e.count("muli", array.strides[0 if by < 0 else 1], abs(by))
    stride = e.count("addi", *array.strides)
    return c.view(array, [count], [stride], False, e.offset(array.pointer, offset))


@rule(np.diag, np.diagonal, method="diagonal")
def _diag(c, args, keywords):
    found, diagonal = take(args, keywords, "v", "k")
    by, value = known(diagonal, 0), arrays.lazy(c.code, found)
    e = c.code
    if not isinstance(by, int) or not 1 <= len(value.shape) <= 2:
        raise NotOutlinable("a diagonal that is not constant")
    if len(value.shape) == 2:
        return _diagonal_view(c, c.array(found), by)
    created = arrays.dense(e, c.fresh_site(), value.dtype, [e.count("addi", value.shape[0], abs(by))] * 2)
    arrays.fill(e, created, e.const(0, value.dtype))
    arrays.write(e, _diagonal_view(c, created, by), value, c.fresh_site)
    return created


@rule(np.fill_diagonal)
def _fill_diagonal(c, args, keywords):
    found, value = take(args, keywords, "a", "val")
    array = c.array(found)
    if len(array.shape) != 2 or not isinstance(value, Number):
        raise NotOutlinable("a diagonal of other than a matrix, or by an array")
    view = _diagonal_view(c, array, 0)
    c.store_all(view, value)
    return None


@rule(np.trace, method="trace")
def _trace(c, args, keywords):
    (found,) = take(args, keywords, "a")
    array = c.array(found)
    if len(array.shape) != 2:
        raise NotOutlinable("a trace of other than a matrix")
    return FUNCTIONS[np.sum](c, [_diagonal_view(c, array, 0)], {})


@rule(np.eye, np.identity)
def _eye(c, args, keywords):
    rows, columns, diagonal, dtype = take(args, keywords, "N", "M", "k", "dtype")
    shape = extents(c, Tuple([rows, rows if columns is None or isinstance(columns, Static) else columns]))
    kind = element_type(dtype, dt.f64)
    e, by = c.code, c.integer(diagonal or c.constant(0))

    def at(indices: list[Val], uniform: bool) -> Val:
        hit = e.cmp("eq", e.count("subi", indices[1], indices[0]), by)
        return e.select(hit, e.const(1, kind), e.const(0, kind))

    return Lazy(kind, shape, at, [])


@rule(np.diff)
def _diff(c, args, keywords):
    found, count, axis = take(args, keywords, "a", "n", "axis")
    array = c.array(found)
    at = _axis(axis, len(array.shape), -1)
    if known(count, 1) != 1:
        raise NotOutlinable("differences of a higher order")
    e = c.code
    shape = list(array.shape)
    shape[at] = e.larger(e.count("subi", shape[at], 1), e.const(0, dt.i64))
    low = c.view(array, shape, array.strides, array.inner)
    high = c.view(array, shape, array.strides, array.inner, e.offset(array.pointer, array.strides[at]))
    return c.ufunc(np.subtract if array.dtype is not dt.bool_ else np.not_equal, [high, low])


# ---- joining


def _items(found: Any) -> list:
    if not isinstance(found, Tuple) or not found.items:
        raise NotOutlinable("joining of other than a tuple or list of arrays")
    return found.items


def _joined(c, parts: list, axis: Any) -> Array:
    e = c.code
    values = [arrays.lazy(e, part) for part in parts]
    rank = len(values[0].shape)
    if any(len(v.shape) != rank for v in values) or not rank:
        raise NotOutlinable("joining of arrays of different ranks")
    at = _axis(axis, rank)
    kind = dt.of(np.result_type(*(v.dtype.numpy for v in values)))
    shape = list(values[0].shape)
    for v in values[1:]:
        for k in range(rank):
            if k != at and v.shape[k].name != shape[k].name:
                e.fail_if(e.cmp("ne", v.shape[k], shape[k]), lambda a, b: ValueError(
                    "all the input array dimensions except for the concatenation axis must match exactly, but there "
                    f"are {b} and {a}"
                ), v.shape[k], shape[k])  # fmt: skip
        shape[at] = e.count("addi", shape[at], v.shape[at])
    created = arrays.dense(e, c.fresh_site(), kind, shape)
    start = e.const(0, dt.i64)
    for v in values:
        part = [*shape[:at], v.shape[at], *shape[at + 1 :]]
        pointer = e.offset(created.pointer, e.count("muli", start, created.strides[at]))
        view = c.view(created, part, created.strides, created.inner, pointer)
        arrays.write(e, view, Lazy(v.dtype, part, v.at, v.reads, v.pairs), c.fresh_site)
        start = e.count("addi", start, v.shape[at])
    return created


@rule(np.concatenate)
def _concatenate(c, args, keywords):
    found, axis = take(args, keywords, "arrays", "axis")
    return _joined(c, _items(found), axis or c.constant(0))


def _with_axis(c, part: Any, at: int) -> Array:
    if isinstance(part, Number):
        created = arrays.dense(c.code, c.fresh_site(), part.type.dtype, [c.code.const(1, dt.i64)])
        arrays.fill(c.code, created, part.val)
        return created
    return _expand_dims(c, [part, c.constant(at)], {})


@rule(np.stack)
def _stack(c, args, keywords):
    found, axis = take(args, keywords, "arrays", "axis")
    parts = _items(found)
    if any(isinstance(part, Number) for part in parts):
        raise NotOutlinable("np.stack of numbers")
    rank = len(arrays.lazy(c.code, parts[0]).shape) + 1
    at = _axis(axis, rank, 0)
    return _joined(c, [_with_axis(c, part, at) for part in parts], c.constant(at))


def _rank(c, part: Any) -> int:
    return 0 if isinstance(part, Number) else len(arrays.lazy(c.code, part).shape)


@rule(np.hstack)
def _hstack(c, args, keywords):
    parts = [_with_axis(c, part, 0) if not _rank(c, part) else part for part in _items(*take(args, keywords, "tup"))]
    return _joined(c, parts, c.constant(0 if _rank(c, parts[0]) == 1 else 1))


@rule(np.vstack)
def _vstack(c, args, keywords):
    parts = [_with_axis(c, part, 0) if not _rank(c, part) else part for part in _items(*take(args, keywords, "tup"))]
    parts = [_with_axis(c, part, 0) if _rank(c, part) == 1 else part for part in parts]
    return _joined(c, parts, c.constant(0))


@rule(np.column_stack)
def _column_stack(c, args, keywords):
    parts = [_with_axis(c, part, 1) if _rank(c, part) == 1 else part for part in _items(*take(args, keywords, "tup"))]
    return _joined(c, parts, c.constant(1))


# ---- others


@rule(np.round, np.around, method="round")
def _round(c, args, keywords):
    found, decimals = take(args, keywords, "a", "decimals")
    e = c.code
    dtype = found.type.dtype if isinstance(found, Number) else found.dtype
    if known(decimals, 0) != 0 or not dtype.is_float or (isinstance(found, Number) and found.type.python):
        raise NotOutlinable("rounding to decimals, or of integers")
    if isinstance(found, Number):
        return arrays.number(e.rint(found.val))
    return arrays.elementwise(e, dtype, e.rint, [found])


@rule(np.array_equal)
def _array_equal(c, args, keywords):
    one, other = (arrays.lazy(c.code, v) for v in take(args, keywords, "a1", "a2"))
    e, result = c.code, c.code.slot("i1")
    if len(one.shape) != len(other.shape):
        return c.constant(False)
    same = e.const(True, dt.bool_)
    for a, b in zip(one.shape, other.shape):
        same = same if a.name == b.name else e.and_(same, e.cmp("eq", a, b))

    def compare() -> None:
        shaped = Lazy(other.dtype, one.shape, other.at, other.reads, other.pairs)
        equal = c.ufunc(np.equal, [one, shaped])
        e.store(FUNCTIONS[np.all](c, [equal], {}).val, result)

    if e.known(same):
        compare()
    else:
        e.store(e.const(False, dt.bool_), result)
        e.branch(same, compare)
    return Number(e.load(result, dt.bool_), c.constant(True).type)


@rule(np.count_nonzero)
def _count_nonzero(c, args, keywords):
    (found,) = take(args, keywords, "a")
    e = c.code
    value = arrays.lazy(e, found)
    true = arrays.elementwise(e, dt.i64, lambda x: e.cast(e.cast(x, dt.bool_), dt.i64), [value])
    return Number(FUNCTIONS[np.sum](c, [true], {}).val, PY_INT, arrays.SIZE_BITS)


@rule(np.copyto)
def _copyto(c, args, keywords):
    into, value = take(args, keywords, "dst", "src")
    if not isinstance(into, Array):
        raise NotOutlinable("np.copyto into other than an array")
    c.write_back(into, value)
    return None


def _fill(c, args, keywords):
    into, value = take(args, keywords, "a", "value")
    if not isinstance(into, Array) or not isinstance(value, Number):
        raise NotOutlinable("a fill by other than a number")
    c.store_all(into, value)
    return None


METHODS["fill"] = _fill
