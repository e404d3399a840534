"""Shape manipulation: reshape, transpose, broadcast …"""

from __future__ import annotations

from typing import Any

import numpy as np

from mlirfuse.core.errors import ShapeError
from mlirfuse.frontend.numpy.memory_order import (
    checked_order,
    forced,
    is_column_major,
    is_row_major,
    may_be_view,
    order_of_flat,
    strides_of_array,
)
from mlirfuse.frontend.numpy.operands import asarray, fresh, trace_of
from mlirfuse.frontend.numpy.registry import implements
from mlirfuse.frontend.numpy.shapes import axes_of, axis_of, broadcast_shape, fits, no_bools, shape_of
from mlirfuse.frontend.numpy.source import fail
from mlirfuse.frontend.numpy.traced_array import TracedArray
from mlirfuse.frontend.numpy.views import Broadcast, ExpandDims, Permute, ReadOnly, Reshape, Squeeze
from mlirfuse.ir import sizes as sz


def _shown(x: TracedArray) -> TracedArray:
    """An array to be viewed: NumPy makes one of a Python number."""
    return x if x._weak is None else TracedArray(x._trace, fresh(x._trace, x.value))


@implements(np.reshape)
def reshape(a, /, shape=None, order="C", *, copy=None):
    x = _shown(asarray(a))
    t = x._trace
    if order not in ("C", "F", "A"):
        fail(
            ValueError,
            f"order '{order}' is not permitted for reshaping" if order == "K" else "order must be one of 'C', 'F', 'A'",
        )
    if order == "F" or (order == "A" and is_fortran(x)):
        target = shape if isinstance(shape, (tuple, list)) else (shape,)
        return transpose(reshape(transpose(x), tuple(reversed(target)), copy=copy))
    target = list(shape_of(t, shape))
    old = t.shape(x._value)
    numel = sz.product(old)
    unknown = [k for k, n in enumerate(target) if isinstance(n, int) and n == -1]
    shown = tuple(-1 if k in unknown else t.hint(n) for k, n in enumerate(target))
    message = (
        f"cannot reshape array of size {t.hint(numel)} into shape "
        f"({','.join(map(str, shown))}{',' if len(shown) == 1 else ''})"
    )
    if len(unknown) > 1:
        fail(ValueError, "can only specify one unknown dimension")
    if unknown:
        known = sz.product(n for k, n in enumerate(target) if k not in unknown)
        if (t.hint(known) == 0) or t.hint(numel) % t.hint(known):
            fail(ShapeError, message)
        exact = sz.quotient(numel, known)
        if exact is None:
            t.unify(sz.mod(numel, known), 0)
            numel, known = t.canonical(numel), t.canonical(known)
            exact = sz.floordiv(numel, known)
        target[unknown[0]] = t.extent(exact)
        target = [t.canonical(n) for n in target]
    elif any(isinstance(n, int) and n < 0 for n in target):
        fail(ShapeError, "negative dimensions are not allowed")
    elif not t.unify(numel, sz.product(target)):
        fail(ShapeError, message)
    else:
        target = [t.canonical(n) for n in target]
    if tuple(target) == t.shape(x._value):
        return x.seen_whole()
    strides = strides_of_array(t, x)
    if not copy and (strides is None or may_be_view(t, strides, x._value.shape, target)):
        return x.step(Reshape(tuple(target)))
    if copy is not None and not copy:
        fail(ValueError, "Unable to avoid creating a copy while reshaping.")
    created = t.emit("copy", t.emit("reshape", x.value, shape=tuple(target)))
    return TracedArray(t, forced(t, created, "C"), scalar=x._scalar)


@implements(np.ravel)
def ravel(a, order="C"):
    x, order = asarray(a), checked_order(order)
    if x.ndim == 1:
        return x.alias() if (created := ordered(x, "C")) is x else created
    t = x._trace
    if order == "K":
        strides = strides_of_array(t, x)
        x = x if strides is None else transpose(x, order_of_flat(t, strides, t.shape(x._value)))
    elif order == "F" or (order == "A" and is_fortran(x)):
        x = transpose(x)
    return reshape(ordered(x, "C"), -1)  # unlike reshape, a view only of a contiguous array


def is_fortran(x) -> bool:
    """Whether ``x`` is F-contiguous and not C-contiguous."""
    t, shape = x._trace, x._value.shape
    strides = strides_of_array(t, x)
    return is_column_major(t, strides, shape) and not is_row_major(t, strides, shape)


def ordered(x, order: str | None, copy: bool = False) -> TracedArray:
    """``x`` in a memory order; a copy only where the order differs or ``copy`` asks for one."""
    t, strides, order = x._trace, strides_of_array(x._trace, x), checked_order(order)
    lies = {"C": is_row_major, "F": is_column_major}.get(order)
    if not copy and (lies is None or lies(t, strides, x._value.shape)):
        return x
    return TracedArray(t, forced(t, fresh(t, x.value), order, strides))


@implements(np.transpose, np.permute_dims)
def transpose(a, axes=None):
    x = _shown(asarray(a))
    if axes is None:
        axes = tuple(reversed(range(x.ndim)))
    axes = axes_of(no_bools(tuple(axes)), x.ndim)
    if len(axes) != x.ndim:
        fail(ValueError, "axes don't match array")
    return x.seen_whole() if axes == tuple(range(x.ndim)) else x.step(Permute(axes))


@implements(np.swapaxes)
def swapaxes(a, axis1, axis2):
    x = asarray(a)
    order = list(range(x.ndim))
    i, j = axis_of(axis1, x.ndim), axis_of(axis2, x.ndim)
    order[i], order[j] = order[j], order[i]
    return transpose(x, order)


@implements(np.matrix_transpose)
def matrix_transpose(x, /):
    return swapaxes(x, -1, -2)


moveaxis: Any = np.moveaxis  # of traced arrays: composed


@implements(np.expand_dims)
def expand_dims(a, axis):
    x = asarray(a)
    rank = x.ndim + (len(axis) if isinstance(axis, (tuple, list)) else 1)
    return x.step(ExpandDims(tuple(sorted(axes_of(axis, rank)))))


@implements(np.squeeze)
def squeeze(a, axis=None):
    x = _shown(asarray(a))
    extents = x._trace.shape(x._value)
    axes = tuple(k for k, n in enumerate(extents) if n == 1) if axis is None else axes_of(no_bools(axis), x.ndim)
    if any(extents[k] != 1 for k in axes):
        fail(ShapeError, "cannot select an axis to squeeze out which has size not equal to one")
    return x.step(Squeeze(tuple(sorted(axes)))) if axes else x


@implements(np.broadcast_to)
def broadcast_to(array, shape, subok=False):
    x = asarray(array)
    t = x._trace
    x = TracedArray(t, fresh(t, x.value)) if x._scalar else x  # a view of a new array
    target, own = shape_of(t, shape), t.shape(x._value)
    if not fits(t, own, target):
        fail(
            ShapeError,
            "operands could not be broadcast together with remapped shapes [original->remapped]: "
            f"{t.hints_of(own)} and requested shape {t.hints_of(target)}",
        )
    target = tuple(map(t.canonical, target))
    dims = tuple(range(len(target) - x.ndim, len(target)))
    return x.step(Broadcast(target, dims) if t.shape(x._value) != target else ReadOnly())


@implements(np.broadcast_arrays)
def broadcast_arrays(*args, subok=False):
    arrays = [asarray(x) for x in args]
    t = arrays[0]._trace
    shape = broadcast_shape(t, [t.shape(x._value) for x in arrays])
    return tuple(x if t.shape(x._value) == shape else broadcast_to(x, [t.sym(n) for n in shape]) for x in arrays)


@implements(np.broadcast_shapes)
def broadcast_shapes(*args):
    t = trace_of(*args)
    return tuple(t.sym(n) for n in broadcast_shape(t, [shape_of(t, s) for s in args]))
