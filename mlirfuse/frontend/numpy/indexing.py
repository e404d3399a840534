"""Indexing traced arrays by NumPy's rules: ``x[key]``, ``x[key] = y``, take, and writing at positions."""

from __future__ import annotations

import operator

import numpy as np

from mlirfuse.core.errors import ShapeError, TraceError, UnsupportedError
from mlirfuse.frontend.numpy import tracing as tr
from mlirfuse.frontend.numpy.api import (
    METHODS,
    aligned,
    asarray,
    axis_of,
    broadcast_shape,
    broadcast_value,
    contains_traced,
    implements,
    into_out,
    is_array,
    operand,
    size_of,
    slice_bound,
    value_of,
    wrap,
)
from mlirfuse.frontend.numpy.functions import broadcast_to, moveaxis, reshape, squeeze
from mlirfuse.frontend.numpy.tracing import SymInt, TracedArray, TracedScalar, fail
from mlirfuse.frontend.numpy.views import At, ExpandDims, Slice, Squeeze, in_order
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Value
from mlirfuse.ir.sizes import Size

# ----------------------------------------------------------------------------------------------------------------
# indexing


def slice_of(t, s, extent: Size) -> tuple[Size, Size, int]:
    """(start, number of elements, step) of a Python slice of an extent."""
    step = 1 if s.step is None else operator.index(s.step)
    if step == 0:
        fail(ValueError, "slice step cannot be zero")
    if step > 0:
        start = 0 if s.start is None else slice_bound(t, size_of(t, s.start), extent)
        stop = extent if s.stop is None else slice_bound(t, size_of(t, s.stop), extent)
        span = stop - start
    else:
        start = extent - 1 if s.start is None else _back_bound(t, size_of(t, s.start), extent)
        stop = -1 if s.stop is None else _back_bound(t, size_of(t, s.stop), extent)
        span = start - stop
    if not t.decide(span, ">", 0):
        return 0, 0, 1
    count = t.extent(sz.ceildiv(t.canonical(span), abs(step)))
    return (start, 1, 1) if count == 1 else (t.canonical(start), count, step)


def _back_bound(t, bound: Size, extent: Size) -> Size:
    if t.decide(bound, "<", 0):
        bound = bound + extent
        return bound if t.decide(bound, ">=", 0) else -1
    return bound if t.decide(bound, "<", extent) else extent - 1


def _is_index_array(k) -> bool:
    if isinstance(k, (TracedArray, np.generic)):
        return isinstance(k, TracedArray) and not isinstance(k, TracedScalar)
    return isinstance(k, list) or is_array(k)


def _index_parts(x, key) -> list:
    """The key as a list of one item an axis and None for new axes, the ellipsis written out."""
    key = list(key) if isinstance(key, tuple) else [key]
    used = sum(1 if not _is_mask(k) else k.ndim for k in key if k is not None and k is not Ellipsis)
    if used > x.ndim:
        fail(IndexError, f"too many indices for array: array is {x.ndim}-dimensional, but {used} were indexed")
    at = next((i for i, k in enumerate(key) if k is Ellipsis), None)
    fill = [slice(None)] * (x.ndim - used)
    if at is None:
        key += fill
    else:
        key[at : at + 1] = fill
        if any(k is Ellipsis for k in key):
            fail(IndexError, "an index can only have a single ellipsis ('...')")
    return key


def _is_mask(k) -> bool:
    return isinstance(k, (TracedArray, np.ndarray)) and k.dtype == bool


def getitem(self, key):
    """``x[key]``: a view for ints and slices, a copy for an array of positions."""
    t = self._trace
    parts = _index_parts(self, key)
    for k in parts:
        if (
            _is_mask(k)
            or isinstance(k, (bool, np.bool_))
            or (isinstance(k, list) and any(isinstance(b, (bool, np.bool_)) for b in k))
        ):
            fail(TraceError, "an index that is an array of bools gives as many elements as are true, a shape that depends on values: use "
                 "np.where(mask, x, 0), or multiply by the mask, and keep the shape")  # fmt: skip
    view = (
        _basic(self, [slice(None) if _is_index_array(k) else k for k in parts])
        if not all(map(_is_index_array, parts)) or not parts
        else self
    )
    if not any(_is_index_array(k) for k in parts):
        if parts and all(not isinstance(k, slice) and k is not None for k in parts) and Ellipsis not in _plain(key):
            return TracedArray(t, view.value, scalar=True)
        return view
    return _gather(self, view, parts)


def _plain(key) -> list:
    return [k for k in (key if isinstance(key, tuple) else (key,)) if k is Ellipsis]


def _basic(x, parts) -> TracedArray:
    """The view that ints, slices and None make."""
    t = x._trace
    axis, start, size, step, drop, new = 0, [], [], [], [], []
    dynamic = []
    shape = t.shape(x._value)
    kept = 0
    for k in parts:
        if k is None:
            new.append(kept)
            kept += 1
            continue
        extent = shape[axis]
        if isinstance(k, slice):
            s, n, p = slice_of(t, k, extent)
            kept += 1
        elif isinstance(k, tr.LeafScalar) and k._value.dtype.is_integer and extent not in (0, 1):
            value = int(k.spec.value)  # of a NumPy number: sizes are computed with Python's
            if not t.decide(extent, ">", value) or not t.decide(extent + value, ">=", 0):
                fail(IndexError, f"index {value} is out of bounds for axis {axis} with size {t.hint(extent)}")
            dynamic.append((axis, k, extent))
            s, n, p = 0, extent, 1
            drop.append(axis)
        else:
            try:
                n = size_of(t, k)
            except TypeError as error:
                if getattr(error, "_located", False):
                    raise
                fail(
                    IndexError,
                    "only integers, slices (`:`), ellipsis (`...`), None and integer arrays are valid indices",
                )
            if t.decide(n, "<", 0):
                n = n + extent
            if not t.decide(n, "<", extent) or not t.decide(n, ">=", 0):
                given = t.hint(k.size) if isinstance(k, SymInt) else operator.index(k)
                fail(IndexError, f"index {given} is out of bounds for axis {axis} with size {t.hint(extent)}")
            s, n, p = t.canonical(n), 1, 1
            drop.append(axis)
        start.append(s)
        size.append(n)
        step.append(p)
        axis += 1
    shape = t.shape(x._value)
    view = x
    if any((s, n, p) != (0, m, 1) for s, n, p, m in zip(start, size, step, shape)):
        view = view.step(Slice(tuple(start), tuple(size), tuple(step)))
    removed = [a for a in drop if a not in [d[0] for d in dynamic]]
    if removed:
        view = view.step(Squeeze(tuple(removed)))
    for a, k, extent in reversed(dynamic):
        t.index_ranges.setdefault(k.leaf, []).append((sz.mul(extent, -1), extent - 1))
        view = view.step(At(a - len([r for r in removed if r < a]), value_of(t, k, dt.i64)))
    if new:
        view = view.step(ExpandDims(tuple(new)))
    return x.alias() if view is x else view


def _indices(t, k, extent: Size) -> TracedArray:
    """An array of positions as int64, not checked against the extent."""
    if isinstance(k, list):
        k = asarray(k) if contains_traced(k) else np.asarray(k, np.int64 if not k else None)
    if isinstance(k, np.ndarray):
        if k.dtype.kind not in "iu":
            fail(IndexError, "arrays used as indices must be of integer type")
        low, high = (int(k.min()), int(k.max())) if k.size else (0, 0)
        if k.size and not (t.decide(extent, ">", high) and t.decide(extent + low, ">=", 0)):
            wrong = high if high >= t.hint(extent) else low
            fail(IndexError, f"index {wrong} is out of bounds for an axis with size {t.hint(extent)}")
    k = asarray(k)
    if not k._value.dtype.is_integer:
        fail(IndexError, f"arrays used as indices must be of integer type, not {k.dtype}")
    return k if k._value.dtype in (dt.i64, dt.i32) else asarray(k, np.int64)


def _merged_indices(x, view, parts, writing: bool) -> tuple:
    """For a view indexed by ints and slices and the arrays of positions that are left: the view, its value with the
    arrays' axes made one, the position array for that axis, the axis, and whether NumPy puts the arrays' dimensions in
    place (else first).

    Of several arrays each is held to its own axis, as one past its end would be an element of the next row: clamped
    where it is read, and where it is written beyond the end of all, which is an error there."""
    t = x._trace
    arrays, axis = [], 0
    for k in parts:
        if _is_index_array(k):
            arrays.append((axis, k))
            axis += 1
        elif k is None or isinstance(k, slice):
            axis += 1
    advanced = [i for i, k in enumerate(parts) if _is_index_array(k) or not (k is None or isinstance(k, slice))]
    in_place = advanced == list(range(advanced[0], advanced[-1] + 1))
    axes = [a for a, _ in arrays]
    if len(arrays) > 1 and axes != list(range(axes[0], axes[-1] + 1)):
        view = moveaxis(view, axes, range(len(axes)))
        axes, in_place = list(range(len(axes))), False
    shape = t.shape(view._value)
    indices = [_indices(t, k, shape[a]) for a, (_, k) in zip(axes, arrays)]
    value, index = view.value, indices[0].value
    if len(indices) > 1:
        flat, merged = None, sz.product(shape[a] for a in axes)
        zero, end = t.builder.constant(0, dt.i64), t.builder.size(merged)
        for a, k in zip(axes, indices):
            at = _from_start(t, value_of(t, k, dt.i64), shape[a])
            if writing:
                at = t.emit("where", t.emit("lt", at, zero), end, at)
                at = t.emit("where", t.emit("ge", at, t.builder.size(shape[a])), end, at)
            else:
                at = t.emit("maximum", t.emit("minimum", at, t.builder.size(shape[a] - 1)), zero)
            if flat is not None:
                words = "shape mismatch: indexing arrays could not be broadcast together"
                at = t.emit("add", *aligned(t, [t.emit("mul", flat, t.builder.size(shape[a])), at], words))
            flat = at
        value = t.emit("reshape", value, shape=shape[: axes[0]] + (t.extent(merged),) + shape[axes[-1] + 1 :])
        index = flat
    return view, value, index, axes[0], in_place


def _from_start(t, index: Value, extent: Size) -> Value:
    """Positions with negative ones counted from the end. Those before the first element stay what they are, an error
    where they are written: counted once, they would be counted again."""
    counted, zero = (
        t.emit("add", index, t.builder.cast(t.builder.size(extent), index.dtype)),
        t.builder.constant(0, index.dtype),
    )
    return t.emit(
        "where", t.emit("lt", counted, zero), index, t.emit("where", t.emit("lt", index, zero), counted, index)
    )


def _gather(x, view, parts) -> TracedArray:
    """``view`` is ``x`` indexed by the ints and slices of ``parts``; what is left are the arrays of positions."""
    t = x._trace
    _, value, index, axis, in_place = _merged_indices(x, view, parts, writing=False)
    result = TracedArray(t, t.emit("take", value, index, axis=axis))
    if not in_place and axis != 0:
        result = moveaxis(result, range(axis, axis + index.rank), range(index.rank))
        if in_order(t, value) and in_order(
            t, index
        ):  # as in memory, where the positions' dimensions are always the first
            t.contiguous.add(result.value)
    return wrap(t, result.value)


def _scatter(x, parts, new) -> None:
    """``x[parts] = new`` with arrays of positions among the parts."""
    t = x._trace
    view = _basic(x, [slice(None) if _is_index_array(k) else k for k in parts])
    view, value, index, axis, in_place = _merged_indices(x, view, parts, writing=True)
    shape = t.shape(value)
    inner = shape[:axis] + t.shape(index) + shape[axis + 1 :]
    source = TracedArray(t, value_of(t, operand(t, new), value.dtype))
    if not in_place and axis != 0:  # NumPy's result has the positions' dimensions first
        rank = index.rank
        first = broadcast_to(source, [t.sym(n) for n in t.shape(index) + shape[:axis] + shape[axis + 1 :]])
        source = moveaxis(first, range(rank), range(axis, axis + rank))
    own = t.shape(source._value)
    while len(own) > len(inner) and own[0] == 1:
        source = squeeze(source, 0)
        own = own[1:]
    if len(own) > len(inner) or any(n != 1 and not t.unify(n, m) for n, m in zip(reversed(own), reversed(inner))):
        fail(ShapeError, f"shape mismatch: value array of shape {t.hints_of(own)} could not be broadcast to indexing result of shape "
             f"{t.hints_of(inner)}")  # fmt: skip
    count = t.extent(sz.product(t.shape(index)))
    flat_shape = shape[:axis] + (count,) + shape[axis + 1 :]
    values = (
        t.builder.reshape(broadcast_value(t, source.value, tuple(map(t.canonical, inner))), flat_shape)
        if own
        else source.value
    )
    index = t.builder.reshape(_from_start(t, index, shape[axis]), (count,))
    index = t.emit("broadcast_in_dim", index, shape=flat_shape, dims=(axis,)) if len(flat_shape) > 1 else index
    made = t.emit("scatter", value, index, values, axis=axis)
    view.assign(t.builder.reshape(made, t.shape(view._value)))


@implements(np.put_along_axis)
def put_along_axis(arr, indices, values, axis):
    x, index = asarray(arr), asarray(indices)
    t = x._trace
    if axis is None:
        x, axis = reshape(x, -1), 0
    axis = axis_of(axis, x.ndim)
    if index.ndim != x.ndim:
        fail(ValueError, "`indices` and `arr` must have the same number of dimensions")
    shape, given = t.shape(x._value), list(t.shape(index._value))
    for k in range(x.ndim):
        if k != axis and given[k] != shape[k]:
            given[k] = broadcast_shape(t, [(shape[k],), (given[k],)])[0]
    index = _indices(t, indices if isinstance(indices, np.ndarray) else index, shape[axis])
    at = broadcast_value(t, _from_start(t, index.value, shape[axis]), given)
    source = value_of(t, operand(t, values), x._value.dtype)
    if source.rank:
        source = broadcast_to(TracedArray(t, source), [t.sym(n) for n in given]).value
    x.assign(t.emit("scatter", x.value, at, source, axis=axis))


def _add_at(a, indices, b) -> None:
    """np.add.at for positions along the first axis."""
    if not isinstance(a, TracedArray):
        fail(
            TraceError,
            "np.add.at would write traced values into an array from outside the function: make it an argument",
        )
    t = a._trace
    if isinstance(indices, tuple) and len(indices) == 1:
        indices = indices[0]
    if isinstance(indices, tuple) or not _is_index_array(indices):
        fail(
            UnsupportedError,
            "np.add.at with indices other than one array of positions is not supported in a compiled function",
        )
    extent = t.shape(a._value)[0]
    index = _from_start(t, _indices(t, indices, extent).value, extent)
    rest = t.shape(a._value)[1:]
    values = broadcast_to(asarray(b, a.dtype), [t.sym(n) for n in t.shape(index) + rest])
    count = t.extent(sz.product(t.shape(index)))
    made = t.emit(
        "index_put_accumulate",
        a.value,
        t.builder.reshape(index, (count,)),
        t.builder.reshape(values.value, (count, *rest)),
    )
    a.assign(made)


METHODS[np.add, "at"] = _add_at


def setitem(self, key, new) -> None:
    """``x[key] = new``, made functional."""
    if self._scalar:
        fail(TypeError, "a number does not support item assignment: it is no array")
    t = self._trace
    if _is_mask(key) or (isinstance(key, tuple) and len(key) == 1 and _is_mask(key[0])):
        _set_masked(self, key[0] if isinstance(key, tuple) else key, new)
        return
    parts = _index_parts(self, key)
    if any(_is_mask(k) or isinstance(k, (bool, np.bool_)) for k in parts):
        fail(
            UnsupportedError,
            "assignment to a mask beside other indices is not supported in a compiled function: use np.where(mask, new, x)",
        )
    if any(_is_index_array(k) for k in parts):
        _scatter(self, parts, new)
        return
    target = _basic(self, parts)
    if isinstance(new, TracedArray) and new._buffer is target._buffer and new._path == target._path and not new._scalar:
        if not target._buffer.writable and target._buffer.captured is None:
            fail(ValueError, "assignment destination is read-only")
        return  # the second half of x[k] += y, which has been written
    dtype = target._value.dtype
    source = _whole(operand(t, new), dtype)
    value = value_of(t, source, dtype)
    shape, own = t.shape(target._value), t.shape(value)
    while len(own) > len(shape) and own[0] == 1:
        value = t.emit("squeeze", value, axes=(0,))
        own = own[1:]
    if len(own) > len(shape) or any(n != 1 and not t.unify(n, m) for n, m in zip(reversed(own), reversed(shape))):
        fail(ShapeError, f"could not broadcast input array from shape {t.hints_of(own)} into shape {t.hints_of(shape)}")
    target.assign(broadcast_value(t, value, t.shape(target._value)))


def _whole(source, dtype):
    """A Python float as what NumPy stores of it in an array of integers: an int, which must fit."""
    if not dtype.is_integer:
        return source
    if isinstance(source, TracedScalar) and source._weak is float:
        source = source.concrete()
    return int(source) if source.__class__ is float else source


def _set_masked(self, mask, new) -> None:
    t = self._trace
    mask = asarray(mask)
    if mask.ndim > self.ndim:
        fail(IndexError, f"too many indices for array: array is {self.ndim}-dimensional, but {mask.ndim} were indexed")
    for k, (n, m) in enumerate(zip(t.shape(self._value), t.shape(mask._value))):
        if not t.unify(n, m):  # a mask does not broadcast
            fail(
                IndexError,
                f"boolean index did not match indexed array along axis {k}; size of axis is {t.hint(n)} but size of corresponding "
                f"boolean axis is {t.hint(m)}: use x[...] = np.where(mask, value, x), which broadcasts it",
            )
    source = _whole(operand(t, new), self._value.dtype)
    if isinstance(source, TracedArray) and source.ndim:
        fail(TraceError, "x[mask] = values takes as many values as the mask has true elements, a number that depends on values: use "
             "x[...] = np.where(mask, values_of_the_shape_of_x, x); a single number can be assigned")  # fmt: skip
    value = mask.value
    if mask.ndim < self.ndim:
        value = t.emit("expand_dims", value, axes=tuple(range(mask.ndim, self.ndim)))
    new_value = t.emit("where", *aligned(t, [value, value_of(t, source, self._value.dtype), self.value]))
    self.assign(broadcast_value(t, new_value, t.shape(self._value)))


@implements(np.take)
def take(a, indices, axis=None, out=None, mode="raise"):
    x = asarray(a)
    t = x._trace
    if axis is None:
        x, axis = reshape(x, -1), 0
    axis = axis_of(axis, x.ndim)
    extent = t.shape(x._value)[axis]
    number = isinstance(indices, (int, np.integer, SymInt, TracedScalar)) and not isinstance(indices, bool)
    if number and mode == "raise":
        return into_out(wrap(t, x[(slice(None),) * axis + (indices,)].value), out, "take")
    if isinstance(indices, (tuple, list, np.ndarray)) and not contains_traced(indices) and mode == "raise":
        index = _indices(t, np.asarray(indices), extent)
    else:
        index = _indices(t, asarray(indices), extent)
    value = value_of(t, index, dt.i64) if mode == "wrap" else index.value
    if mode == "wrap":
        value = t.emit("mod", value, t.builder.size(extent))
    elif mode == "clip":
        value = t.emit("maximum", value, t.builder.constant(0, value.dtype))
    taken = t.emit("take", x.value, value, axis=axis)
    t.contiguous.add(taken)  # unlike indexing's, whatever the order of x
    return into_out(wrap(t, taken), out, "take")


@implements(np.take_along_axis)
def take_along_axis(arr, indices, axis=-1):
    x, index = asarray(arr), asarray(indices)
    t = x._trace
    if axis is None:
        x, axis = reshape(x, -1), 0
    axis = axis_of(axis, x.ndim)
    if index.ndim != x.ndim:
        fail(ValueError, "`indices` and `arr` must have the same number of dimensions")
    index = _indices(t, indices if isinstance(indices, np.ndarray) else index, t.shape(x._value)[axis])
    own, other = list(t.shape(x._value)), list(t.shape(index._value))
    target, given = list(own), list(other)
    for k in range(x.ndim):
        if k != axis and own[k] != other[k]:
            common = broadcast_shape(t, [(own[k],), (other[k],)])[0]
            target[k] = given[k] = common
    return wrap(
        t,
        t.emit(
            "take_along_axis", broadcast_value(t, x.value, target), broadcast_value(t, index.value, given), axis=axis
        ),
    )


TracedArray.__getitem__ = getitem
TracedArray.__setitem__ = setitem
TracedArray.take = take
TracedArray.fill = lambda self, value: setitem(self, Ellipsis, value)
