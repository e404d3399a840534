"""NumPy's functions that read and write at indices."""

from __future__ import annotations

import numpy as np

from mlirfuse.core.errors import TraceError
from mlirfuse.frontend.numpy.axes import axis_of
from mlirfuse.frontend.numpy.broadcasting import broadcast_shape, broadcast_value
from mlirfuse.frontend.numpy.functions.shaping import broadcast_to, reshape
from mlirfuse.frontend.numpy.indices import from_start, indices_of
from mlirfuse.frontend.numpy.memory_order import forced
from mlirfuse.frontend.numpy.operands import asarray, contains_traced, operand, value_of, wrap
from mlirfuse.frontend.numpy.promotion import array_kind, loop_types
from mlirfuse.frontend.numpy.registry import METHODS, implements
from mlirfuse.frontend.numpy.slicing import is_index_array
from mlirfuse.frontend.numpy.source import fail, unsupported
from mlirfuse.frontend.numpy.symint import SymInt
from mlirfuse.frontend.numpy.traced_array import TracedArray
from mlirfuse.frontend.numpy.traced_scalar import TracedScalar
from mlirfuse.frontend.numpy.ufuncs import into_out
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.dtypes import DType


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


def _along(arr, indices, axis) -> tuple[TracedArray, TracedArray, int]:
    """The operands of a function with an index per element along ``axis`` (None: of the flattened array)."""
    x, index = asarray(arr), asarray(indices)
    if axis is None:
        x, axis = reshape(x, -1), 0
    axis = axis_of(axis, x.ndim)
    if index.ndim != x.ndim:
        fail(ValueError, "`indices` and `arr` must have the same number of dimensions")
    return x, index, axis


@implements(np.take_along_axis)
def take_along_axis(arr, indices, axis=-1):
    x, index, axis = _along(arr, indices, axis)
    t = x._trace
    index = indices_of(t, indices if isinstance(indices, np.ndarray) else index, t.shape(x._value)[axis], axis)
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


@implements(np.put_along_axis)
def put_along_axis(arr, indices, values, axis):
    x, index, axis = _along(arr, indices, axis)
    t = x._trace
    shape, given = t.shape(x._value), list(t.shape(index._value))
    for k in range(x.ndim):
        if k != axis and given[k] != shape[k]:
            given[k] = broadcast_shape(t, [(shape[k],), (given[k],)])[0]
    index = indices_of(t, indices if isinstance(indices, np.ndarray) else index, shape[axis], axis)
    at = broadcast_value(t, from_start(t, index.value, shape[axis]), given)
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
