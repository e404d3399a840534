"""Array creation: full, zeros, arange, linspace, eye, asarray …"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from mlirfuse.core.errors import UnsupportedError
from mlirfuse.frontend.numpy.functions.shaping import broadcast_to, ordered
from mlirfuse.frontend.numpy.memory_order import checked_order, forced, is_column_major, is_row_major, strides_of_array
from mlirfuse.frontend.numpy.operands import asarray as as_traced
from mlirfuse.frontend.numpy.operands import concrete, fresh, operand, trace_of, value_of
from mlirfuse.frontend.numpy.promotion import array_kind, dtype_of, kind_of, result_type_of
from mlirfuse.frontend.numpy.registry import creates, implements
from mlirfuse.frontend.numpy.shapes import no_bools, shape_of, size_of
from mlirfuse.frontend.numpy.source import at_users_line, fail
from mlirfuse.frontend.numpy.stored import elements
from mlirfuse.frontend.numpy.traced_array import TracedArray
from mlirfuse.frontend.numpy.views import ExpandDims
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Value


@creates(np.full)
def full(shape, fill_value, dtype=None, order="C", *, device=None, like=None):
    """An array of ``fill_value``; the shape may hold extents of traced arrays."""
    created = _filled(shape, fill_value, dtype)
    forced(created._trace, created._value, checked_order(order))
    return created


def _filled(shape, fill_value, dtype) -> TracedArray:
    t = trace_of(shape, fill_value)
    fill = operand(t, fill_value)
    to = dt.of(array_kind(fill)) if dtype is None else dtype_of(dtype)
    if fill.__class__ is int and dtype is not None:  # has to fit a C integer whatever the type is, bool too
        with at_users_line(OverflowError):
            np.full((), fill, to.numpy)
    shape = tuple(t.extent(n) for n in shape_of(t, shape))
    value = value_of(t, fill, to)
    if value.rank:
        return TracedArray(t, fresh(t, broadcast_to(TracedArray(t, value), [t.sym(n) for n in shape]).value))
    return TracedArray(t, t.emit("full", value, shape=shape))


def _like(prototype, fill, dtype, shape, order) -> TracedArray:
    x = as_traced(prototype)
    t = x._trace
    created = _filled(x.shape if shape is None else shape, fill, x.dtype if dtype is None else dtype)
    order = checked_order(order)
    if created.ndim != x.ndim:  # there is no order to keep
        forced(t, created._value, order if order in "CF" else "C")
        return created
    if order == "K":
        _check_known_order(x, created)
    forced(t, created._value, order, strides_of_array(t, x), t.shape(x._value))
    return created


def _check_known_order(prototype: TracedArray, created: TracedArray) -> None:
    """Checks that the prototype's order in memory orders the axes of ``created``. NumPy's follows the strides of axes
    of extent 1 too, which may be any in an argument that is not contiguous."""
    t, origin = prototype._trace, prototype._buffer.origin
    sizes, strides = t.shape(prototype._value), strides_of_array(t, prototype)
    if origin.op is not None or not any(n == 1 != m for n, m in zip(sizes, t.shape(created._value))):
        return
    if 1 in origin.shape and not (is_row_major(t, strides, sizes) or is_column_major(t, strides, sizes)):
        fail(UnsupportedError, "the order of an array like one with an axis of extent 1: pass order='C'")


def _filled_with(name: str, fill: int) -> None:
    """Registers ``np.{name}`` and ``np.{name}_like``."""

    @creates(getattr(np, name))
    def create(shape, dtype=float, order="C", *, device=None, like=None):
        return full(shape, fill, dtype, order)

    def create_like(a, dtype=None, order="K", subok=True, shape=None, *, device=None):
        return _like(a, fill, dtype, shape, order)

    create.__name__, create.__doc__ = name, f"As np.{name}; the shape may hold extents of traced arrays."
    implements(getattr(np, f"{name}_like"))(creates(getattr(np, f"{name}_like"))(create_like))


for _name, _fill in (("zeros", 0), ("ones", 1), ("empty", 0)):
    _filled_with(_name, _fill)


@creates(np.full_like)
@implements(np.full_like)
def full_like(a, fill_value, dtype=None, order="K", subok=True, shape=None, *, device=None):
    dtype = as_traced(a).dtype if dtype is None else dtype
    fill = as_traced(fill_value, dtype) if isinstance(fill_value, TracedArray) else fill_value
    return _like(a, fill, dtype, shape, order)


@creates(np.arange)
def arange(start=0, stop=None, step=None, dtype=None, *, device=None, like=None):
    """start, start + step, … below stop; extents of traced arrays stay symbolic."""
    if stop is None:
        start, stop = 0, start
    t = trace_of(start, stop, step)
    step = 1 if step is None else step
    if any(
        isinstance(x, (float, np.floating)) or (isinstance(x, TracedArray) and not x._value.dtype.is_integer)
        for x in (start, stop, step)
    ):
        return t.capture(np.arange(*[concrete(x) for x in (start, stop, step)], dtype=dtype))
    step = operator.index(step)
    if step == 0:
        fail(ZeroDivisionError, "division by zero")
    first, last = size_of(t, start), size_of(t, stop)
    span = last - first if step > 0 else first - last
    count = t.extent(sz.ceildiv(span, abs(step))) if t.decide(span, ">", 0) else 0
    to = dt.i64 if dtype is None else dtype_of(dtype)
    wide = to if (to.is_float and to.bits > 16) or to is dt.i64 else dt.i64
    value = t.emit("iota", shape=(count,), axis=0, dtype=wide)
    if step != 1:
        value = t.emit("mul", value, t.builder.constant(step, wide))
    if first != 0:
        value = t.emit("add", value, value_of(t, t.sym(first), wide))
    return TracedArray(t, t.builder.cast(value, to))


@creates(np.linspace)
def linspace(start, stop, num=50, endpoint=True, retstep=False, dtype=None, axis=0, *, device=None):
    """``num`` evenly spaced numbers from start to stop along a new ``axis``, with NumPy's arithmetic and dtypes."""
    num = operator.index(num)
    t = trace_of(start, stop, num)
    kept = result_type_of((kind_of(operand(t, start)), kind_of(operand(t, stop)), float))
    start, stop = (_as_0d_array(as_traced(x, kept.numpy)) for x in (start, stop))
    div, delta = num - 1 if endpoint else num, stop - start
    wide = kept if kept.is_float and kept.bits > 16 else dt.f64
    position = TracedArray(t, t.builder.cast(t.emit("iota", shape=(num,), axis=0, dtype=wide), kept))
    position = position.reshape((num,) + (1,) * delta.ndim)
    step: Any = delta / div if div > 0 else np.nan
    if div > 0:
        result: Any = np.where(step == 0, position / div * delta, position * step)
    else:
        result = position * delta
    result = result + start
    if endpoint and num > 1:
        last = as_traced(np.arange(num) == num - 1).reshape((num,) + (1,) * delta.ndim)
        result = np.where(last, stop, result)
    if dtype is not None and dtype_of(dtype).is_integer:
        result = np.floor(result)
    result = as_traced(result, kept.numpy if dtype is None else dtype)
    result = result if axis == 0 else np.moveaxis(result, 0, axis)
    return (result, step) if retstep else result


@creates(np.eye)
def eye(N, M=None, k=0, dtype=float, order="C", *, device=None, like=None):
    """Ones on the k-th diagonal, else zeros."""
    return _by_diagonal("eq", no_bools(N), no_bools(M), k, dtype, order)


@creates(np.tri)
def tri(N, M=None, k=0, dtype=float, *, like=None):
    """Ones on and below the k-th diagonal, else zeros."""
    return _by_diagonal("le", N, M, k, dtype, "C")


def _by_diagonal(op: str, N, M, k, dtype, order) -> TracedArray:
    t = trace_of(N, M, k)
    n = t.extent(size_of(t, N))
    m = n if M is None else t.extent(size_of(t, M))
    on = compared_with_diagonal(t, op, n, m, k)
    return TracedArray(t, forced(t, t.builder.cast(on, dtype_of(dtype)), checked_order(order)))


def compared_with_diagonal(t, op: str, n: sz.Size, m: sz.Size, k) -> Value:
    """Whether the column of each element of an n×m matrix compares so with its row's on the k-th diagonal."""
    row = t.emit("iota", shape=(n, 1), axis=0, dtype=dt.i64)
    column = t.emit("iota", shape=(1, m), axis=1, dtype=dt.i64)
    return t.emit(op, column, t.emit("add", row, value_of(t, operand(t, k), dt.i64)))


@creates(np.identity)
def identity(n, dtype=float, *, like=None):
    """Ones on the diagonal, else zeros."""
    return eye(n, dtype=dtype)


def _converted(a, dtype, order, copy: bool | None = None) -> TracedArray:
    """``a`` as an array of a type and memory order; a new one where these differ or ``copy`` asks for one. Raises
    ValueError where a copy is needed that ``copy`` forbids."""
    x = _as_0d_array(as_traced(a, dtype))
    if isinstance(a, TracedArray) and x._value.dtype is not a._value.dtype:
        forced(x._trace, x._value, "K", strides_of_array(x._trace, a))
    result = ordered(x, order, bool(copy))
    given = isinstance(a, TracedArray) and not a._scalar and result._buffer is a._buffer
    if copy is not None and not copy and not given:
        fail(ValueError, "Unable to avoid copy while creating an array as requested.")
    return result


@creates(np.asarray, np.asanyarray)
def asarray(a, dtype=None, order=None, *, device=None, copy=None, like=None):
    """``a`` as an array; lists of traced values are stacked."""
    return _converted(elements(a, dtype), dtype, order, copy)


@creates(np.array)
def array(a, dtype=None, copy=True, order="K", subok=False, ndmin=0, like=None):
    """``a`` as a new array; lists of traced values are stacked."""
    x = _converted(elements(a, dtype), dtype, order, copy)
    return np.expand_dims(x, tuple(range(ndmin - x.ndim))) if x.ndim < ndmin else x


@creates(np.asfortranarray)
def asfortranarray(a, dtype=None, *, like=None):
    """``a`` itself where it is F-contiguous, else a copy."""
    return _converted(a, dtype, "F")


@creates(np.ascontiguousarray)
def ascontiguousarray(a, dtype=None, *, like=None):
    """``a`` itself where it is C-contiguous, else a copy; at least 1-d."""
    x = _converted(a, dtype, "C")
    return x if x.ndim else x.step(ExpandDims((0,)))


def _as_0d_array(x) -> TracedArray:
    """A number as a 0-d array."""
    return TracedArray(x._trace, x.value) if x._scalar else x
