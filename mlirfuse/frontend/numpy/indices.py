"""Advanced indexing: gathers and scatters by index arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from mlirfuse.core.errors import ShapeError
from mlirfuse.frontend.numpy.broadcasting import aligned, broadcast_value, fits
from mlirfuse.frontend.numpy.created_array import known_elements
from mlirfuse.frontend.numpy.functions.shaping import broadcast_to, moveaxis, squeeze
from mlirfuse.frontend.numpy.memory_order import order_of, packed, strides_of
from mlirfuse.frontend.numpy.operands import asarray, contains_traced, value_of, wrap
from mlirfuse.frontend.numpy.slicing import basic_view, is_index_array
from mlirfuse.frontend.numpy.source import fail
from mlirfuse.frontend.numpy.stored import SELECTED, stored
from mlirfuse.frontend.numpy.traced_array import TracedArray
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Value
from mlirfuse.ir.sizes import Size


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
            wrong = high if high >= t.hint(extent) else low
            fail(IndexError, f"index {wrong} is out of bounds for axis {axis} with size {t.hint(extent)}")
        checked = False
    k = asarray(k)
    if not k._value.dtype.is_integer:
        fail(IndexError, f"arrays used as indices must be of integer type, not {k.dtype}")
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
    arrays, axis = [], 0
    for k in parts:
        if is_index_array(k):
            arrays.append((axis, k))
            axis += 1
        elif k is None or isinstance(k, slice):
            axis += 1
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
    counted, zero = (
        t.emit("add", index, t.builder.cast(t.builder.size(extent), index.dtype)),
        t.builder.constant(0, index.dtype),
    )
    return t.emit(
        "where", t.emit("lt", counted, zero), index, t.emit("where", t.emit("lt", index, zero), counted, index)
    )


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
    view = basic_view(x, [slice(None) if is_index_array(k) else k for k in parts])
    view, value, index, axis, in_place = _merged_indices(x, view, parts, writing=True)
    shape = t.shape(value)
    inner = shape[:axis] + t.shape(index) + shape[axis + 1 :]
    source = TracedArray(t, value_of(t, stored(t, new, value.dtype, SELECTED), value.dtype))
    if not in_place and axis != 0:  # NumPy's result has the index dimensions first
        rank = index.rank
        first = broadcast_to(source, [t.sym(n) for n in t.shape(index) + shape[:axis] + shape[axis + 1 :]])
        source = moveaxis(first, range(rank), range(axis, axis + rank))
    own = t.shape(source._value)
    while len(own) > len(inner) and own[0] == 1:
        source = squeeze(source, 0)
        own = own[1:]
    if not fits(t, own, inner):
        fail(
            ShapeError,
            f"shape mismatch: value array of shape {t.hints_of(own)} could not be broadcast to indexing result of "
            f"shape {t.hints_of(inner)}",
        )
    count = t.extent(sz.product(t.shape(index)))
    flat_shape = (*shape[:axis], count, *shape[axis + 1 :])
    values = (
        t.builder.reshape(broadcast_value(t, source.value, tuple(map(t.canonical, inner))), flat_shape)
        if own
        else source.value
    )
    index = t.builder.reshape(from_start(t, index, shape[axis]), (count,))
    index = t.emit("broadcast_in_dim", index, shape=flat_shape, dims=(axis,)) if len(flat_shape) > 1 else index
    created = t.emit("scatter", value, index, values, axis=axis)
    view.assign(t.builder.reshape(created, t.shape(view._value)))
