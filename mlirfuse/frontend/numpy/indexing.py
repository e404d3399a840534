"""``x[key]`` and ``x[key] = y`` by NumPy's rules."""

from __future__ import annotations

import numpy as np

from mlirfuse.core.errors import ShapeError, TraceError
from mlirfuse.frontend.numpy.broadcasting import aligned, broadcast_value, fits
from mlirfuse.frontend.numpy.indices import gather, scatter
from mlirfuse.frontend.numpy.operands import asarray, value_of
from mlirfuse.frontend.numpy.slicing import basic_view, index_components, is_index_array, is_mask
from mlirfuse.frontend.numpy.source import fail, unsupported
from mlirfuse.frontend.numpy.stored import ELEMENT, PART, SELECTED, stored
from mlirfuse.frontend.numpy.traced_array import TracedArray


def getitem(self, key):
    """``x[key]``: a view for ints and slices, a copy for index arrays."""
    t = self._trace
    if self._weak is not None:
        fail(TypeError, f"'{self._class_name}' object is not subscriptable")
    if self._scalar and any(k is not None and k is not Ellipsis for k in (key if isinstance(key, tuple) else (key,))):
        fail(IndexError, "invalid index to scalar variable.")
    parts = index_components(self, key)
    for k in parts:
        if (
            is_mask(k)
            or isinstance(k, (bool, np.bool_))
            or (isinstance(k, list) and any(isinstance(b, (bool, np.bool_)) for b in k))
        ):
            fail(
                TraceError,
                "an index that is an array of bools selects as many elements as are true, a shape that depends on "
                "values: use np.where(mask, x, 0), or multiply by the mask, and keep the shape",
            )
    view = (
        basic_view(self, [slice(None) if is_index_array(k) else k for k in parts])
        if not all(map(is_index_array, parts)) or not parts
        else self
    )
    if not any(is_index_array(k) for k in parts):
        if isinstance(key, tuple) and not key and not self.ndim:
            return TracedArray(t, view.value, scalar=True)
        if parts and all(not isinstance(k, slice) and k is not None for k in parts) and Ellipsis not in _ellipses(key):
            return TracedArray(t, view.value, scalar=True)
        return view
    return gather(self, view, parts)


def _ellipses(key) -> list:
    return [k for k in (key if isinstance(key, tuple) else (key,)) if k is Ellipsis]


def setitem(self, key, new) -> None:
    """``x[key] = new``, as a functional update."""
    if self._scalar:
        fail(TypeError, f"'{self._class_name}' object does not support item assignment")
    t = self._trace
    if is_mask(key) or (isinstance(key, tuple) and len(key) == 1 and is_mask(key[0])):
        _set_masked(self, key[0] if isinstance(key, tuple) else key, new)
        return
    parts = index_components(self, key)
    if any(is_mask(k) or isinstance(k, (bool, np.bool_)) for k in parts):
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
    one = bool(parts) and not any(isinstance(k, slice) or k is None for k in parts) and Ellipsis not in _ellipses(key)
    value = value_of(t, stored(t, new, dtype, ELEMENT if one else PART, target.ndim), dtype)
    shape, own = t.shape(target._value), t.shape(value)
    while len(own) > len(shape) and own[0] == 1:
        value = t.emit("squeeze", value, axes=(0,))
        own = own[1:]
    if not fits(t, own, shape):
        fail(ShapeError, f"could not broadcast input array from shape {t.hints_of(own)} into shape {t.hints_of(shape)}")
    target.assign(broadcast_value(t, value, t.shape(target._value)))


def fill(self, value) -> None:
    """``x.fill(value)``, which takes what an element can be set to."""
    t, dtype = self._trace, self._value.dtype
    self.assign(broadcast_value(t, value_of(t, stored(t, value, dtype, ELEMENT), dtype), t.shape(self._value)))


def _set_masked(self, mask, new) -> None:
    t = self._trace
    mask = asarray(mask)
    if mask.ndim > self.ndim:
        fail(IndexError, f"too many indices for array: array is {self.ndim}-dimensional, but {mask.ndim} were indexed")
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
