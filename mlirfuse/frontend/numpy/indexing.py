"""Indexing by NumPy's rules: ``x[key]`` is a view for ints, slices and None, a gather for index arrays; ``x[key] = y``
writes through the view, or scatters. And NumPy's functions that read and write at indices."""

from __future__ import annotations

import operator
from typing import Any, NoReturn

import numpy as np

from mlirfuse.core.errors import ShapeError, TraceError
from mlirfuse.frontend.numpy.created_array import known_elements
from mlirfuse.frontend.numpy.functions.shaping import broadcast_to, moveaxis
from mlirfuse.frontend.numpy.memory_order import forced, order_of, packed, strides_of
from mlirfuse.frontend.numpy.operands import asarray, contains_traced, is_array, operand, value_of, wrap
from mlirfuse.frontend.numpy.promotion import array_kind, loop_types
from mlirfuse.frontend.numpy.registry import METHODS, implements
from mlirfuse.frontend.numpy.shapes import aligned, broadcast_shape, broadcast_value, fits, flat_axis, no_bools, size_of
from mlirfuse.frontend.numpy.source import fail, unsupported
from mlirfuse.frontend.numpy.stand_in import SymInt
from mlirfuse.frontend.numpy.stored import ELEMENT, PART, SELECTED, stored
from mlirfuse.frontend.numpy.traced_array import LeafScalar, TracedArray, TracedScalar
from mlirfuse.frontend.numpy.ufuncs import into_out
from mlirfuse.frontend.numpy.views import At, ExpandDims, Slice, Squeeze
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.dtypes import DType
from mlirfuse.ir.graph import Value
from mlirfuse.ir.sizes import Size


def slice_of(t, s, extent: Size) -> tuple[Size, Size, int]:
    """(start, number of elements, step) of a Python slice of an extent."""
    step = 1 if s.step is None else operator.index(s.step)
    if step == 0:
        fail(ValueError, "slice step cannot be zero")
    first, last = (0, extent) if step > 0 else (extent - 1, -1)
    start = first if s.start is None else slice_bound(t, size_of(t, s.start), extent, step > 0)
    stop = last if s.stop is None else slice_bound(t, size_of(t, s.stop), extent, step > 0)
    span = stop - start if step > 0 else start - stop
    if not t.decide(span, ">", 0):
        return 0, 0, 1
    count = t.extent(sz.ceildiv(t.canonical(span), abs(step)))
    return (start, 1, 1) if count == 1 else (t.canonical(start), count, step)


def slice_bound(t, bound: Size, extent: Size, up: bool = True) -> Size:
    """The bound of a slice, clamped to the extent as in Python; ``up``: its step is positive."""
    if t.decide(bound, "<", 0):
        bound = bound + extent
        return bound if t.decide(bound, ">=", 0) else 0 if up else -1
    if up:
        return bound if t.decide(bound, "<=", extent) else extent
    return bound if t.decide(bound, "<", extent) else extent - 1


def _out_of_bounds(t, index: int, axis: int, extent: Size) -> NoReturn:
    fail(IndexError, f"index {index} is out of bounds for axis {axis} with size {t.hint(extent)}")


def is_index_array(k) -> bool:
    if isinstance(k, (TracedArray, np.generic)):
        return isinstance(k, TracedArray) and not isinstance(k, TracedScalar)
    return isinstance(k, list) or is_array(k)


def index_components(x, key) -> list:
    """The key as a list with one item per axis and None per new axis; expands the ellipsis."""
    key = [list(k) if isinstance(k, (tuple, range)) else k for k in (key if isinstance(key, tuple) else (key,))]
    used = sum(1 if not is_mask(k) else k.ndim for k in key if k is not None and k is not Ellipsis)
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


def is_mask(k) -> bool:
    return isinstance(k, (TracedArray, np.ndarray)) and k.dtype == bool


def basic_view(x, parts) -> TracedArray:
    """The view selected by ints, slices and None."""
    t = x._trace
    shape = t.shape(x._value)
    taken: list[tuple[Size, Size, int]] = []  # start, extent and step by axis
    drop, new, dynamic = [], [], []
    kept = 0
    for k in parts:
        if k is None:
            new.append(kept)
            kept += 1
            continue
        axis = len(taken)
        extent = shape[axis]
        if isinstance(k, slice):
            taken.append(slice_of(t, k, extent))
            kept += 1
        elif isinstance(k, LeafScalar) and k._value.dtype.is_integer and extent not in (0, 1):
            value = int(k.spec.value)  # size arithmetic needs a Python int
            if not t.decide(extent, ">", value) or not t.decide(extent + value, ">=", 0):
                k.concrete()  # a handler's result is valid for this index alone
                _out_of_bounds(t, value, axis, extent)
            dynamic.append((axis, k, extent))
            taken.append((0, extent, 1))
        else:
            try:
                n = size_of(t, k)
            except TypeError as error:
                if getattr(error, "_located", False):
                    raise
                valid = "integers, slices (`:`), ellipsis (`...`), None and integer arrays"
                fail(IndexError, f"only {valid} are valid indices")
            if t.decide(n, "<", 0):
                n = n + extent
            if not t.decide(n, "<", extent) or not t.decide(n, ">=", 0):
                _out_of_bounds(t, t.hint(k.size) if isinstance(k, SymInt) else operator.index(k), axis, extent)
            taken.append((t.canonical(n), 1, 1))
            drop.append(axis)
    view = x
    if any(one != (0, n, 1) for one, n in zip(taken, t.shape(x._value))):
        view = view.step(Slice(*zip(*taken)))
    if drop:
        view = view.step(Squeeze(tuple(drop)))
    for a, k, extent in reversed(dynamic):
        t.index_ranges.setdefault(k.leaf, []).append((sz.mul(extent, -1), extent - 1))
        view = view.step(At(a - sum(d < a for d in drop), value_of(t, k, dt.i64)))
    if new:
        view = view.step(ExpandDims(tuple(new)))
    return x.alias() if view is x else view


def indices_of(t, k, extent: Size, axis: int = 0, checked: bool = True) -> TracedArray:
    """An index array for ``axis`` of this extent, as 32- or 64-bit integers. Checks constant indices now; the kernel
    checks others, if ``checked``, and wraps negative ones."""
    known = known_elements(k)
    if known is not None:
        k = known
    if isinstance(k, list):
        k = asarray(k) if contains_traced(k) else np.asarray(k, np.int64 if not k else None)
    if isinstance(k, np.ndarray):
        if k.dtype.kind not in "iu":
            fail(IndexError, "arrays used as indices must be of integer type")
        low, high = (int(k.min()), int(k.max())) if k.size else (0, 0)
        if k.size and not (t.decide(extent, ">", high) and t.decide(extent + low, ">=", 0)):
            _out_of_bounds(t, high if high >= t.hint(extent) else low, axis, extent)
        checked = False
    k = asarray(k)
    if not k._value.dtype.is_integer:
        fail(IndexError, f"arrays used as indices must be of integer type, not {k.dtype}")
    if checked and extent == 0 and 0 not in k._value.shape:  # whether anything uses the elements or not
        fail(IndexError, f"index 0 is out of bounds for axis {axis} with size 0")
    k = k if k._value.dtype in (dt.i64, dt.i32) else asarray(k, np.int64)
    if not (checked and t.checks_indices):
        return k
    return wrap(t, t.emit("position", k.value, extent=extent, axis=axis, checked=True))


def _merged_indices(x, view, parts, writing: bool) -> tuple:
    """For the view that remains after ints and slices, and its index arrays: the view, its value with the indexed axes
    merged, the index array of the merged axis, that axis, and whether NumPy puts the index arrays' dimensions in its
    place (else first).

    Several indices are bounded per axis, as an index past one axis's end would address the next row: reads clamp it,
    writes move it past the merged extent, which the kernel reports."""
    t = x._trace
    kept = [k for k in parts if k is None or isinstance(k, slice) or is_index_array(k)]  # the view's axes
    arrays = [(axis, k) for axis, k in enumerate(kept) if is_index_array(k)]
    given = [a for a, k in enumerate(k for k in parts if k is not None) if is_index_array(k)]
    advanced = [i for i, k in enumerate(parts) if is_index_array(k) or not (k is None or isinstance(k, slice))]
    in_place = advanced == list(range(advanced[0], advanced[-1] + 1))
    axes = [a for a, _ in arrays]
    if len(arrays) > 1 and axes != list(range(axes[0], axes[-1] + 1)):
        view = moveaxis(view, axes, range(len(axes)))
        axes, in_place = list(range(len(axes))), False
    shape = t.shape(view._value)
    indices = [indices_of(t, k, shape[a], g) for a, g, (_, k) in zip(axes, given, arrays)]
    value, index = view.value, indices[0].value
    if len(indices) > 1:
        flat: Any = None
        merged = sz.product(shape[a] for a in axes)
        zero, end = t.builder.constant(0, dt.i64), t.builder.size(merged)
        for a, k in zip(axes, indices):
            at = from_start(t, value_of(t, k, dt.i64), shape[a])
            if writing and not t.checks_indices:
                at = t.emit("where", t.emit("lt", at, zero), end, at)
                at = t.emit("where", t.emit("ge", at, t.builder.size(shape[a])), end, at)
            else:
                at = t.emit("maximum", t.emit("minimum", at, t.builder.size(shape[a] - 1)), zero)
            if flat is not None:
                words = "shape mismatch: indexing arrays could not be broadcast together"
                at = t.emit("add", *aligned(t, [t.emit("mul", flat, t.builder.size(shape[a])), at], words))
            flat = at
        value = t.emit("reshape", value, shape=(*shape[: axes[0]], t.extent(merged), *shape[axes[-1] + 1 :]))
        index = flat
    return view, value, index, axes[0], in_place


def from_start(t, index: Value, extent: Size) -> Value:
    """The indices with negative ones wrapped once. Indices still negative stay unchanged, an error on writes: wrapped
    here, they would wrap again."""
    counted = t.emit("add", index, t.builder.cast(t.builder.size(extent), index.dtype))
    zero = t.builder.constant(0, index.dtype)
    outside = t.emit("lt", counted, zero)
    return t.emit("where", outside, index, t.emit("where", t.emit("lt", index, zero), counted, index))


def gather(x, view, parts) -> TracedArray:
    """Reads ``view``, which is ``x`` indexed by the ints and slices of ``parts``, at the index arrays that remain."""
    t = x._trace
    _, value, index, axis, in_place = _merged_indices(x, view, parts, writing=False)
    result = TracedArray(t, t.emit("take", value, index, axis=axis))
    if not in_place and axis != 0:
        result = moveaxis(result, range(axis, axis + index.rank), range(index.rank))
    strides = strides_of(t, value)
    if strides is not None:
        first = axis if in_place else 0
        strides = _gathered(t, result.value, strides[:axis] + strides[axis + 1 :], first, index.rank)
    t.strides[result.value] = strides
    return wrap(t, result.value)


def _gathered(t, created: Value, others, axis: int, rank: int):
    """A gather's result in NumPy's memory layout: the index dimensions, ``rank`` from ``axis`` on, outermost, then the
    others in the order of their strides ``others``."""
    shape = t.shape(created)
    rest = [*range(axis), *range(axis + rank, created.rank)]
    order = order_of(t, others, [shape[d] for d in rest])
    return packed(shape, [*range(axis, axis + rank), *(rest[k] for k in order)])


def scatter(x, parts, new) -> None:
    """``x[parts] = new`` with index arrays among the parts."""
    t = x._trace
    view = _without_arrays(x, parts)
    view, value, index, axis, in_place = _merged_indices(x, view, parts, writing=True)
    shape = t.shape(value)
    inner = shape[:axis] + t.shape(index) + shape[axis + 1 :]
    source = TracedArray(t, value_of(t, stored(t, new, value.dtype, SELECTED), value.dtype))
    if not in_place and axis != 0:  # NumPy's result has the index dimensions first
        rank = index.rank
        first = broadcast_to(source, [t.sym(n) for n in t.shape(index) + shape[:axis] + shape[axis + 1 :]])
        source = moveaxis(first, range(rank), range(axis, axis + rank))
    message = "shape mismatch: value array of shape {} could not be broadcast to indexing result of shape {}"
    values = _assignable(t, source.value, inner, message)
    count = t.extent(sz.product(t.shape(index)))
    flat_shape = (*shape[:axis], count, *shape[axis + 1 :])
    if values.rank:
        values = t.builder.reshape(broadcast_value(t, values, tuple(map(t.canonical, inner))), flat_shape)
    index = t.builder.reshape(from_start(t, index, shape[axis]), (count,))
    index = t.emit("broadcast_in_dim", index, shape=flat_shape, dims=(axis,)) if len(flat_shape) > 1 else index
    created = t.emit("scatter", value, index, values, axis=axis)
    view.assign(t.builder.reshape(created, t.shape(view._value)))


def getitem(self, key):
    """``x[key]``: a view for ints and slices, a copy for index arrays."""
    t = self._trace
    if self._weak is not None:
        fail(TypeError, f"'{self._class_name}' object is not subscriptable")
    if self._scalar and any(k is not None and k is not Ellipsis for k in (key if isinstance(key, tuple) else (key,))):
        fail(IndexError, "invalid index to scalar variable.")
    parts = index_components(self, key)
    if any(_is_bool(b) for k in parts for b in (k if isinstance(k, list) else [k])):
        fail(
            TraceError,
            "an index that is an array of bools selects as many elements as are true, a shape that depends on "
            "values: use np.where(mask, x, 0), or multiply by the mask, and keep the shape",
        )
    if any(map(is_index_array, parts)):
        return gather(self, _without_arrays(self, parts), parts)
    view = basic_view(self, parts)
    return TracedArray(t, view.value, scalar=True) if _selects_one(key, parts) else view


def _selects_one(key, parts) -> bool:
    """Whether a key of ints alone selects an element: not where it has an ellipsis, for a 0-d view."""
    dots = any(k is Ellipsis for k in (key if isinstance(key, tuple) else (key,)))
    return not dots and not any(k is None or isinstance(k, slice) for k in parts)


def _is_bool(k) -> bool:
    return is_mask(k) or isinstance(k, (bool, np.bool_))


def _without_arrays(x, parts) -> TracedArray:
    """``x`` indexed by the ints, slices and None of the parts."""
    if all(map(is_index_array, parts)):
        return x
    return basic_view(x, [slice(None) if is_index_array(k) else k for k in parts])


def setitem(self, key, new) -> None:
    """``x[key] = new``, as a functional update."""
    if self._scalar:
        fail(TypeError, f"'{self._class_name}' object does not support item assignment")
    t = self._trace
    parts = index_components(self, key)
    if is_mask(key) or (isinstance(key, tuple) and len(key) == 1 and is_mask(key[0])):
        _set_masked(self, parts[0], new)
        return
    if any(map(_is_bool, parts)):
        unsupported("assignment to a mask combined with other indices", "use np.where(mask, new, x)")
    if any(is_index_array(k) for k in parts):
        scatter(self, parts, new)
        return
    target = basic_view(self, parts)
    if isinstance(new, TracedArray) and new._buffer is target._buffer and new._path == target._path and not new._scalar:
        if not target._buffer.writable and target._buffer.captured is None:
            fail(ValueError, "assignment destination is read-only")
        return  # x[k] += y: the in-place operator has written it
    dtype = target._value.dtype
    to = ELEMENT if parts and _selects_one(key, parts) else PART
    message = "could not broadcast input array from shape {} into shape {}"
    value = _assignable(t, value_of(t, stored(t, new, dtype, to, target.ndim), dtype), t.shape(target._value), message)
    target.assign(broadcast_value(t, value, t.shape(target._value)))


def _assignable(t, value: Value, shape, message: str) -> Value:
    """``value`` without leading axes of extent 1 that an array of this shape lacks. Raises ShapeError with the
    ``message`` for both shapes where it does not broadcast."""
    own = t.shape(value)
    while len(own) > len(shape) and own[0] == 1:
        value, own = t.emit("squeeze", value, axes=(0,)), own[1:]
    if not fits(t, own, shape):
        fail(ShapeError, message.format(t.hints_of(own), t.hints_of(shape)))
    return value


def fill(self, value) -> None:
    """``x.fill(value)``, which takes what an element can be set to."""
    t, dtype = self._trace, self._value.dtype
    self.assign(broadcast_value(t, value_of(t, stored(t, value, dtype, ELEMENT), dtype), t.shape(self._value)))


def _set_masked(self, mask, new) -> None:
    t = self._trace
    mask = asarray(mask)
    for k, (n, m) in enumerate(zip(t.shape(self._value), t.shape(mask._value))):
        if not t.unify(n, m):  # a mask does not broadcast
            fail(
                IndexError,
                f"boolean index did not match indexed array along axis {k}; size of axis is "
                f"{t.hint(n)} but size of corresponding "
                f"boolean axis is {t.hint(m)}: use x[...] = np.where(mask, value, x), which broadcasts it",
            )
    source = stored(t, new, self._value.dtype, SELECTED)
    if isinstance(source, TracedArray) and source.ndim:
        fail(
            TraceError,
            "x[mask] = values needs as many values as the mask has true elements, a number that depends on values: use "
            "x[...] = np.where(mask, values_of_the_shape_of_x, x); a single number can be assigned",
        )
    value = mask.value
    if mask.ndim < self.ndim:
        value = t.emit("expand_dims", value, axes=tuple(range(mask.ndim, self.ndim)))
    new_value = t.emit("where", *aligned(t, [value, value_of(t, source, self._value.dtype), self.value]))
    self.assign(broadcast_value(t, new_value, t.shape(self._value)))


@implements(np.take)
def take(a, indices, axis=None, out=None, mode="raise"):
    x = asarray(a)
    t = x._trace
    x, axis = flat_axis(x, no_bools(axis))
    extent = t.shape(x._value)[axis]
    if extent == 0 and 0 not in asarray(indices)._value.shape:
        outer, inner = x._value.shape[:axis], x._value.shape[axis + 1 :]
        if 0 not in outer and (mode == "raise" or 0 not in inner):
            fail(IndexError, "cannot do a non-empty take from an empty axes.")
        mode = "clip"  # there are no elements to take
    number = isinstance(indices, (int, np.integer, SymInt, TracedScalar)) and not isinstance(indices, bool)
    if number and mode == "raise":
        one = x[(slice(None),) * axis + (indices,)].value
        return into_out(wrap(t, forced(t, t.emit("copy", one), "C") if one.rank > 1 else one), out, "take")
    if isinstance(indices, (tuple, list, np.ndarray)) and not contains_traced(indices) and mode == "raise":
        given = indices if isinstance(indices, list) and not indices else np.asarray(indices)
        index = indices_of(t, given, extent, axis)
    else:
        index = indices_of(t, asarray(indices), extent, axis, mode == "raise")
    value = value_of(t, index, dt.i64) if mode == "wrap" else index.value
    if mode == "wrap":
        value = t.emit("mod", value, t.builder.size(extent))
    elif mode == "clip":
        value = t.emit("maximum", value, t.builder.constant(0, value.dtype))
    taken = t.emit("take", x.value, value, axis=axis)
    return into_out(wrap(t, forced(t, taken, "C")), out, "take")  # unlike indexing's, whatever the order of x


def _along(arr, indices, axis) -> tuple[TracedArray, Value, int, list[Size]]:
    """The operands of a function with an index per element along ``axis`` (None: of the flattened array), and the
    indices' shape broadcast to the array's but for this axis."""
    (x, axis), index = flat_axis(asarray(arr), axis), asarray(indices)
    if index.ndim != x.ndim:
        fail(ValueError, "`indices` and `arr` must have the same number of dimensions")
    t, shape = x._trace, x._trace.shape(x._value)
    index = indices_of(t, indices if isinstance(indices, np.ndarray) else index, shape[axis], axis)
    pairs = enumerate(zip(shape, t.shape(index._value)))
    given = [m if k == axis or n == m else broadcast_shape(t, [(n,), (m,)])[0] for k, (n, m) in pairs]
    return x, index.value, axis, given


@implements(np.take_along_axis)
def take_along_axis(arr, indices, axis=-1):
    x, index, axis, given = _along(arr, indices, axis)
    t = x._trace
    target = [*given[:axis], t.shape(x._value)[axis], *given[axis + 1 :]]
    operands = broadcast_value(t, x.value, target), broadcast_value(t, index, given)
    return wrap(t, t.emit("take_along_axis", *operands, axis=axis))


@implements(np.put_along_axis)
def put_along_axis(arr, indices, values, axis):
    x, index, axis, given = _along(arr, indices, axis)
    t = x._trace
    at = broadcast_value(t, from_start(t, index, t.shape(x._value)[axis]), given)
    source = value_of(t, operand(t, values), x._value.dtype)
    if source.rank:
        source = broadcast_to(TracedArray(t, source), [t.sym(n) for n in given]).value
    x.assign(t.emit("scatter", x.value, at, source, axis=axis))


def _add_at(a, indices, b) -> None:
    """np.add.at for indices along the first axis."""
    if not isinstance(a, TracedArray):
        fail(
            TraceError,
            "np.add.at would write traced values into an array from outside the function: make it an argument",
        )
    t = a._trace
    if isinstance(indices, tuple) and len(indices) == 1:
        indices = indices[0]
    if isinstance(indices, tuple) or not is_index_array(indices):
        unsupported("np.add.at with indices other than one integer array")
    extent = t.shape(a._value)[0]
    index = indices_of(t, indices, extent).value
    if not (t.checks_indices and isinstance(indices, TracedArray)):  # otherwise the kernel checks and wraps indices
        index = from_start(t, index, extent)
    rest, to = t.shape(a._value)[1:], a._value.dtype
    added = operand(t, b)
    if not _adds_alike(to, added):
        unsupported("np.add.at of a wider type than the array's")
    wide = dt.i32 if to is dt.bool_ else to  # booleans: logical or
    source = TracedArray(t, t.builder.cast(value_of(t, added, to, wrapping=True), wide))
    values = broadcast_to(source, [t.sym(n) for n in t.shape(index) + rest])
    count = t.extent(sz.product(t.shape(index)))
    created = t.emit(
        "index_put_accumulate",
        t.builder.cast(a.value, wide),
        t.builder.reshape(index, (count,)),
        t.builder.reshape(values.value, (count, *rest)),
    )
    a.assign(t.builder.cast(created, to))


def _adds_alike(to: DType, added) -> bool:
    """Whether sums in ``to`` are those of np.add.at, which makes an array of a number, adds in the common type and
    converts each sum."""
    if isinstance(added, int) and not -(2**63) <= added < 2**63:
        return False
    try:
        loop = loop_types(np.add, (to.numpy, array_kind(added)))[-1]
    except TypeError:
        return False
    if loop is to or (loop.is_integer and to.is_integer):
        return True
    known = isinstance(added, (int, float, np.generic))
    with np.errstate(all="ignore"):  # an exact sum is rounded alike from float64
        return known and to in (dt.f32, dt.f16) and loop is dt.f64 and bool(to.numpy.type(added) == np.float64(added))


METHODS[np.add, "at"] = _add_at
