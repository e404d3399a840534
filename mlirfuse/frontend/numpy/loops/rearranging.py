"""Functions that rearrange, join and create arrays in compiled loops, as rules of ``functions.py``."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from mlirfuse.frontend.numpy.loops import arrays, range_checks
from mlirfuse.frontend.numpy.loops.alternatives import either
from mlirfuse.frontend.numpy.loops.functions import FUNCTIONS, METHODS, axis_of, element_type, extents, known, rule
from mlirfuse.frontend.numpy.loops.values import Array, Copied, Lazy, Number, NumberType, Static, Tuple, require
from mlirfuse.ir import dtypes as dt
from mlirfuse.lowering.elementwise import EMIT
from mlirfuse.lowering.emitter import Val

# ---- shapes


def _reshaped(c, found: Any, wanted: list[Val]) -> Array:
    """``found`` with another shape: a view where its elements are contiguous, else a copy, which must not be written
    into, as NumPy may have a view of it."""
    e, array = c.code, c.array(found)
    total = e.product(array.shape)
    open_axes = [k for k, extent in enumerate(wanted) if e.known(extent) == -1]
    require(len(open_axes) < 2, "a shape with two unknown extents")
    rest = e.product(extent for k, extent in enumerate(wanted) if k not in open_axes)
    if open_axes:
        filled = e.larger(rest, e.one)
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
def _reshape(c, a, shape):
    return _reshaped(c, a, [c.integer(item) for item in (shape.items if isinstance(shape, Tuple) else [shape])])


@rule(np.ravel, method="ravel")
def _ravel(c, a):
    return _reshaped(c, a, [c.code.const(-1, dt.i64)])


@rule(method="flatten")
def _flatten(c, a):
    return _ravel(c, arrays.materialized(c.code, a, c.fresh_site()))


def _permuted(c, array: Array, order: list[int]) -> Array:
    """A view with the axes in another order."""
    shape, strides = [array.shape[k] for k in order], [array.strides[k] for k in order]
    return c.view(array, shape, strides, array.inner and order[-1:] == [len(order) - 1])


@rule(np.transpose)
def transpose(c, a, axes=None):
    """A view with permuted axes: reversed where none are given."""
    array = c.array(a)
    rank = len(array.shape)
    order = [k % rank for k in known(axes, None) or reversed(range(rank))]
    require(sorted(order) == list(range(rank)), "axes that do not match the array")
    return _permuted(c, array, order)


def _of_tuple(function):
    """A method that takes several numbers or a tuple of them."""
    return lambda c, a, *given: function(c, a, given[0] if len(given) == 1 else Tuple(list(given)))


METHODS |= {"reshape": _of_tuple(_reshape), "transpose": _of_tuple(transpose)}


@rule(np.swapaxes, method="swapaxes")
def _swapaxes(c, a, axis1, axis2):
    array = c.array(a)
    order = list(range(len(array.shape)))
    one, other = (axis_of(v, len(order)) for v in (axis1, axis2))
    order[one], order[other] = other, one
    return _permuted(c, array, order)


@rule(np.expand_dims)
def _expand_dims(c, a, axis):
    array = c.array(a)
    return arrays.expanded(c.code, array, [axis_of(axis, len(array.shape) + 1)])


# ---- elements at other indices


@rule(np.roll)
def _roll(c, a, shift, axis=None):
    e, array = c.code, dataclasses.replace(c.array(a), serialized="")  # read at other indices than written
    rank = len(array.shape)
    if isinstance(axis, Tuple) or isinstance(shift, Tuple):
        shifts = shift.items if isinstance(shift, Tuple) else [shift] * len(axis.items)
        axes = axis.items if isinstance(axis, Tuple) else [axis] * len(shifts)
    elif axis is None and rank > 1:
        return _reshaped(c, _roll(c, _ravel(c, array), shift), array.shape)
    else:
        shifts, axes = [shift], [c.constant(0) if axis is None else axis]
    require(len(shifts) == len(axes), "other shifts than axes")
    by: dict[int, Val] = {}
    for one, along in zip(shifts, axes):
        k, count = axis_of(along, rank), c.integer(one)
        by[k] = count if k not in by else e.count("addi", by[k], count)
    for k, count in by.items():  # 0 <= count <= extent - 1, or 0
        extent = e.larger(array.shape[k], e.one)
        by[k] = EMIT["mod"](e, count, extent)

    def at(indices: list[Val], uniform: bool) -> Val:
        given = list(indices)
        for k, count in by.items():
            before = e.count("subi", indices[k], count)
            given[k] = e.select(e.cmp("lt", before, 0), e.count("addi", before, array.shape[k]), before)
        return arrays.element(e, array, given)

    return Lazy(array.dtype, list(array.shape), at, [array])


def _triangle(predicate: str):
    def keep(c, m, k=None):
        value = arrays.lazy(c.code, m)
        e, by = c.code, c.integer(k or c.constant(0))
        require(len(value.shape) > 1, "a triangle of an array of one axis")

        def at(indices: list[Val], uniform: bool) -> Val:
            kept = e.cmp(predicate, e.count("subi", indices[-1], indices[-2]), by)
            return e.select(kept, value.at(indices, uniform), e.const(0, value.dtype))

        return Lazy(value.dtype, value.shape, at, value.reads, value.pairs)

    return keep


FUNCTIONS |= {np.triu: _triangle("ge"), np.tril: _triangle("le")}


@rule(np.diagonal, method="diagonal")
def _diagonal(c, a, offset=None):
    e, array, by = c.code, c.array(a), known(offset, 0)
    require(len(array.shape) == 2 and isinstance(by, int), "a diagonal of other than a matrix, or not constant")
    rows, columns = array.shape
    down, across = (e.count("subi", rows, max(-by, 0)), e.count("subi", columns, max(by, 0)))
    count = e.larger(e.smaller(down, across), e.zero)
    start = e.count("muli", array.strides[0 if by < 0 else 1], abs(by))
    stride = e.count("addi", *array.strides)
    return c.view(array, [count], [stride], False, e.offset(array.pointer, start))


@rule(np.diag)
def _diag(c, v, k=None):
    value, e = arrays.lazy(c.code, v), c.code
    if len(value.shape) != 1:
        return _diagonal(c, v, k)
    by = known(k, 0)
    require(isinstance(by, int), "a diagonal that is not constant")
    shape = [e.count("addi", value.shape[0], abs(by))] * 2
    created = arrays.filled(e, c.fresh_site(), value.dtype, shape, e.const(0, value.dtype))
    arrays.write(e, _diagonal(c, created, k), value, c.fresh_site)
    return created


@rule(np.fill_diagonal)
def _fill_diagonal(c, a, val):
    _fill(c, _diagonal(c, a), val)


@rule(np.trace, method="trace")
def _trace(c, a):
    return FUNCTIONS[np.sum](c, _diagonal(c, a))


@rule(np.eye)
def _eye(c, N, M=None, k=None, dtype=None):
    shape = extents(c, Tuple([N, N if M is None or isinstance(M, Static) else M]))
    kind = element_type(dtype, dt.f64)
    e, by = c.code, c.integer(k or c.constant(0))

    def at(indices: list[Val], uniform: bool) -> Val:
        hit = e.cmp("eq", e.count("subi", indices[1], indices[0]), by)
        return e.select(hit, e.const(1, kind), e.const(0, kind))

    return Lazy(kind, shape, at, [])


@rule(np.identity)
def _identity(c, n, dtype=None):
    return _eye(c, n, dtype=dtype)


@rule(np.diff)
def _diff(c, a, n=None, axis=None):
    array = c.array(a)
    at = axis_of(axis, len(array.shape), -1)
    require(known(n, 1) == 1, "differences of a higher order")
    e = c.code
    shape = list(array.shape)
    shape[at] = e.larger(e.count("subi", shape[at], 1), e.zero)
    low = c.view(array, shape, array.strides, array.inner)
    high = c.view(array, shape, array.strides, array.inner, e.offset(array.pointer, array.strides[at]))
    return c.ufunc(np.subtract if array.dtype is not dt.bool_ else np.not_equal, [high, low])


# ---- joining


def _items(found: Any) -> list:
    require(isinstance(found, Tuple) and found.items, "joining of other than a tuple or list of arrays")
    return found.items


def _joined(c, parts: list, axis: Any) -> Array:
    e = c.code
    values = [arrays.lazy(e, part) for part in parts]
    rank = len(values[0].shape)
    require(rank and all(len(v.shape) == rank for v in values), "joining of arrays of different ranks")
    at = axis_of(axis, rank)
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
    start = e.zero
    for v in values:
        part = [*shape[:at], v.shape[at], *shape[at + 1 :]]
        pointer = e.offset(created.pointer, e.count("muli", start, created.strides[at]))
        view = c.view(created, part, created.strides, created.inner, pointer)
        arrays.write(e, view, Lazy(v.dtype, part, v.at, v.reads, v.pairs), c.fresh_site)
        start = e.count("addi", start, v.shape[at])
    return created


@rule(np.concatenate)
def _concatenate(c, arrays, axis=None):
    return _joined(c, _items(arrays), axis or c.constant(0))


@rule(np.stack)
def _stack(c, arrays, axis=None):
    parts = _items(arrays)
    require(not any(isinstance(part, Number) for part in parts), "np.stack of numbers")
    at = c.constant(axis_of(axis, _rank(c, parts[0]) + 1, 0))
    return _joined(c, [_expand_dims(c, part, at) for part in parts], at)


def _rank(c, part: Any) -> int:
    return len(arrays.lazy(c.code, part).shape)


def _at_least_1d(c, part: Any) -> Any:
    if isinstance(part, Number):
        return arrays.filled(c.code, c.fresh_site(), part.dtype, [c.code.one], part.val)
    return part if _rank(c, part) else _expand_dims(c, part, c.constant(0))


@rule(np.hstack)
def _hstack(c, tup):
    parts = [_at_least_1d(c, part) for part in _items(tup)]
    return _joined(c, parts, c.constant(0 if _rank(c, parts[0]) == 1 else 1))


def _stacking(axis: int):
    """The rule that joins vectors as rows (``axis`` 0) or columns."""

    def join(c, tup):
        parts, at = [_at_least_1d(c, part) for part in _items(tup)], c.constant(axis)
        return _joined(c, [_expand_dims(c, part, at) if _rank(c, part) == 1 else part for part in parts], at)

    return join


FUNCTIONS |= {np.vstack: _stacking(0), np.column_stack: _stacking(1)}


# ---- others


@rule(np.round, np.around, method="round")
def _round(c, a, decimals=None):
    python = isinstance(a, Number) and a.type.python
    require(known(decimals, 0) == 0 and a.dtype.is_float and not python, "rounding to decimals, or of integers")
    return c.mapped(a.dtype, c.code.rint, [a])


@rule(np.array_equal)
def _array_equal(c, a1, a2):
    e, (one, other) = c.code, [arrays.lazy(c.code, v) for v in (a1, a2)]
    if len(one.shape) != len(other.shape):
        return c.constant(False)
    same = e.const(True, dt.bool_)
    for a, b in zip(one.shape, other.shape):
        same = same if a.name == b.name else e.and_(same, e.cmp("eq", a, b))

    def compared() -> Number:
        shaped = Lazy(other.dtype, one.shape, other.at, other.reads, other.pairs)
        return Number(FUNCTIONS[np.all](c, c.ufunc(np.equal, [one, shaped])).val, c.constant(True).type)

    return compared() if e.known(same) else either(e, same, compared, lambda: c.constant(False))


@rule(np.count_nonzero)
def _count_nonzero(c, a):
    e = c.code
    true = c.mapped(dt.i64, lambda x: e.cast(e.cast(x, dt.bool_), dt.i64), [a])
    return Number(FUNCTIONS[np.sum](c, true).val, NumberType(dt.i64, _COUNTS_ARE_INTS), arrays.SIZE_BITS)


_COUNTS_ARE_INTS = type(np.count_nonzero(np.ones(1))) is int  # before NumPy 2.4


@rule(np.copyto)
def _copyto(c, dst, src):
    require(isinstance(dst, Array), "np.copyto into other than an array")
    range_checks.fits(c.code, src, dst.dtype)
    c.write_back(dst, src)


@rule(method="fill")
def _fill(c, a, value):
    require(isinstance(a, Array) and isinstance(value, Number), "a fill by other than a number")
    c.store_all(a, value)
