"""Basic indexing: ints, slices and None give a view."""

from __future__ import annotations

import operator

import numpy as np

from mlirfuse.frontend.numpy.axes import size_of, slice_bound
from mlirfuse.frontend.numpy.operands import is_array, value_of
from mlirfuse.frontend.numpy.source import fail
from mlirfuse.frontend.numpy.symint import SymInt
from mlirfuse.frontend.numpy.traced_array import TracedArray
from mlirfuse.frontend.numpy.traced_scalar import LeafScalar, TracedScalar
from mlirfuse.frontend.numpy.views import At, ExpandDims, Slice, Squeeze
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.sizes import Size


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
        elif isinstance(k, LeafScalar) and k._value.dtype.is_integer and extent not in (0, 1):
            value = int(k.spec.value)  # size arithmetic needs a Python int
            if not t.decide(extent, ">", value) or not t.decide(extent + value, ">=", 0):
                k.concrete()  # a handler's result is valid for this index alone
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
