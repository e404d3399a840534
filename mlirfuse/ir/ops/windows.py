"""Rows of slice assignments: into a copy, or in place."""

from __future__ import annotations

from mlirfuse.core.errors import ShapeError
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.ops.registry import ALL_TYPES, row


def _window(shape, start, size, step):
    """Return the slices of a window, as NumPy takes them."""
    stops = [s + n * p for s, n, p in zip(start, size, step)]
    return tuple(slice(s, stop if stop >= 0 else None, p) for s, stop, p in zip(start, stops, step))


def _set_slice_ref(x, value, start, size, step):
    out = x.copy()
    out[_window(x.shape, start, size, step)] = value
    return out


def _update_ref(dest, value, start, size, step):
    dest[_window(dest.shape, start, size, step)] = value
    return dest


def _set_slice(b, x, value, start, size, step):
    """Select the value's element inside the window, else x; pad it with what x is filled with."""
    value = b.broadcast_to(value, size)
    if x.op is not None and x.op.name == "full" and 0 not in size and _is_padded(x.shape, start, step):
        for axis, (extent, first, stride) in enumerate(zip(x.shape, start, step)):
            value = _spread(b, value, x.op.operands[0], axis, extent, first, stride)
        return value
    inside = None
    for axis, (first, count, stride) in enumerate(zip(start, size, step)):
        extent = x.shape[axis]
        if (first, count, stride) == (0, extent, 1):
            continue
        at = b.op("iota", shape=tuple(extent if k == axis else 1 for k in range(x.rank)), axis=axis, dtype=dt.i64)
        offset = b.op("sub", at, b.size(first)) if stride > 0 else b.op("sub", b.size(first), at)
        index = b.op("floor_div", offset, b.constant(abs(stride), dt.i64)) if abs(stride) != 1 else offset
        conditions = [] if first == 0 and stride > 0 else [b.op("ge", offset, b.constant(0, dt.i64))]
        if stride != 1 or first + count != extent:
            conditions.append(b.op("lt", index, b.size(count)))
        if abs(stride) != 1:
            conditions.append(b.op("eq", b.op("mul", index, b.constant(abs(stride), dt.i64)), offset))
        for condition in conditions:
            inside = condition if inside is None else b.op("logical_and", inside, condition)
        if stride == 1:
            value = _pad_to(b, value, axis, first, extent)
        elif count != 0:
            rows = b.reshape(b.op("maximum", index, b.constant(0, dt.i64)), (extent,))
            value = b.op("take", value, rows, axis=axis)
    if inside is None:
        return b.op("copy", value)
    if 0 in size:
        return b.op("copy", x)
    return b.op("where", inside, value, x)


def _is_padded(shape, start, step):
    """Whether a window's elements lie in order, along the dimensions with a step at known places."""
    return bool(step) and all(
        s == 1 or (s > 1 and isinstance(n, int) and isinstance(k, int)) for n, k, s in zip(shape, start, step)
    )


def _spread(b, value, fill, axis, extent, first, stride):
    """Place the elements of ``value`` along ``axis`` from ``first`` of ``extent`` on, ``stride`` apart, with ``fill``
    around: as rows of ``stride`` elements, each with one of them."""
    if stride == 1:
        return _pad_to(b, value, axis, first, extent, fill)
    rows, (row, place) = -(-extent // stride), divmod(first, stride)
    value = b.op("expand_dims", _pad_to(b, value, axis, row, rows, fill), axes=(axis + 1,))
    value = _pad_to(b, value, axis + 1, place, stride, fill)
    value = b.reshape(value, (*value.shape[:axis], rows * stride, *value.shape[axis + 2 :]))
    return _pad_to(b, value, axis, 0, extent, fill)


def _pad_to(b, value, axis, first, extent, fill=None):
    """Pad ``value`` with ``fill``, or with zeros, so that its element 0 is at ``first`` of ``extent``."""
    if first == 0 and value.shape[axis] == extent:
        return value
    low, high = [0] * value.rank, [0] * value.rank
    low[axis], high[axis] = first, extent - first - value.shape[axis]
    fill = b.constant(0, value.dtype) if fill is None else fill
    return b.op("pad", value, fill, low=tuple(low), high=tuple(high))


def _window_shape(shapes, attrs):
    x, value = shapes
    if not len(x) == len(attrs["start"]) == len(attrs["size"]) == len(attrs["step"]):
        raise ShapeError(f"start, size and step must have {len(x)} elements, one per dimension of the first operand")
    if 0 in attrs["step"]:
        raise ShapeError("a step is 0")
    if len(value) > len(x):
        raise ShapeError(f"the value has rank {len(value)}, the first operand {len(x)}")
    for n, m in zip(value[::-1], tuple(attrs["size"])[::-1]):
        if isinstance(n, int) and isinstance(m, int) and n not in (1, m):
            raise ShapeError(f"a value of extent {n} does not fill a window of extent {m}")
    return [x]


_WINDOW = {"start": ..., "size": ..., "step": ...}
row(
    "set_slice",
    "composite",
    "x value",
    "x with the elements start + i * step replaced by value, which repeats to size",
    takes=ALL_TYPES,
    attrs=_WINDOW,
    infer=_window_shape,
    ref=_set_slice_ref,
    expand=_set_slice,
)
row(
    "update",
    "update",
    "dest value",
    "writes value into the elements start + i * step of dest, in place; returns dest",
    takes=ALL_TYPES,
    attrs=_WINDOW,
    infer=_window_shape,
    ref=_update_ref,
)
