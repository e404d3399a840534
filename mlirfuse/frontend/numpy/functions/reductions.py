"""Reductions over axes, also those that ignore NaN."""

from __future__ import annotations

import functools
import operator
from typing import Any

import numpy as np

from mlirfuse.core.errors import UnsupportedError
from mlirfuse.frontend.numpy.functions.creation import full, full_like
from mlirfuse.frontend.numpy.functions.elementwise import chosen
from mlirfuse.frontend.numpy.functions.shaping import broadcast_to, reshape, transpose
from mlirfuse.frontend.numpy.memory_order import reduced, strides_of_array
from mlirfuse.frontend.numpy.operands import asarray, concrete, trace_of, value_of, wrap
from mlirfuse.frontend.numpy.promotion import dtype_of, result_type_of, sum_type
from mlirfuse.frontend.numpy.registry import METHODS, implements
from mlirfuse.frontend.numpy.shapes import aligned, axes_of, no_bools, reduced_axes
from mlirfuse.frontend.numpy.source import fail, refuse, unsupported
from mlirfuse.frontend.numpy.stored import ELEMENT, stored
from mlirfuse.frontend.numpy.traced_array import TracedArray
from mlirfuse.frontend.numpy.ufuncs import call_ufunc, into_out, no_loop
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.dtypes import DType
from mlirfuse.ir.ops import TABLE
from mlirfuse.runtime import extern_ops

_NO_UFUNCS = {"mean", "var", "std"}  # which reject an axis argument for 0-d arrays


def reduce_axes(x, row: str, axis=None, keepdims=False, to: DType | None = None, **attrs) -> TracedArray:
    """A reduction by the op ``row`` in the dtype ``to``; by a call of NumPy for complex numbers that the op does not
    take."""
    t = x._trace
    axes = reduced_axes(axis, x.ndim, row not in _NO_UFUNCS)
    keepdims = False if keepdims is np._NoValue else bool(keepdims)
    value = value_of(t, x, to or x._value.dtype)
    if value.dtype.kind != "c" or "c" in TABLE[row].takes:
        return wrap(t, t.emit(row, value, axes=axes, keepdims=keepdims, **attrs))
    over = axes if axes is None or len(axes) != 1 else axes[0]
    call = extern_ops.by_numpy(functools.partial(getattr(np, row), axis=over, keepdims=keepdims))
    shape = _kept(t.shape(value), axes, keepdims)
    position = row in ("argmax", "argmin")
    dtype = dt.i64 if position else value.dtype
    found = t.emit("call", value, callee=f"np.{row}", dtypes=(dtype,), shapes=(shape,), function=call)
    strides = strides_of_array(t, x)
    if strides is not None and not position:  # whose results NumPy makes row-major
        t.strides[found] = reduced(t, t.shape(value), strides, axes, keepdims, shape)
    return wrap(t, found)


def _kept(shape, axes, keepdims) -> tuple:
    """The shape of a reduction's result."""
    gone = range(len(shape)) if axes is None else axes
    return tuple(1 if k in gone else n for k, n in enumerate(shape) if keepdims or k not in gone)


def _count(x, axis) -> sz.Size:
    """The number of elements that a reduction combines."""
    axes = reduced_axes(axis, x.ndim, False)
    return sz.product(n for k, n in enumerate(x._value.shape) if axes is None or k in axes)


def _is_empty(x, axes) -> bool:
    """Whether a reduction over these axes combines nothing."""
    return any(n == 0 for k, n in enumerate(x._trace.shape(x._value)) if axes is None or k in axes)


def accumulation_type(x, dtype, out=None) -> DType:
    if dtype is not None:
        return dtype_of(dtype)
    if isinstance(out, TracedArray) and np.can_cast(x.dtype, out.dtype, "same_kind"):
        return out._value.dtype
    return sum_type(x._value.dtype)


def _selected(x, where_, neutral, to: DType) -> TracedArray:
    """``x`` where the mask is true, ``neutral`` elsewhere."""
    if where_ is True or where_ is np._NoValue:
        return x
    t = x._trace
    mask = asarray(where_, bool)
    value = t.emit("where", *aligned(t, [mask.value, value_of(t, x, to), t.builder.constant(neutral, to)]))
    return TracedArray(t, value)


def _with_initial(result, initial, ufunc):
    """The result combined with ``initial``, which is converted to an element as by assignment."""
    if initial is np._NoValue or initial is None:
        return result
    found = stored(trace_of(initial), initial, result._value.dtype, ELEMENT)
    return call_ufunc(ufunc, (result, asarray(found, result.dtype) if isinstance(found, TracedArray) else found))


def _accumulation(name: str, ufunc, of_bools: str):
    @implements(getattr(np, name))
    def accumulation(a, axis=None, dtype=None, out=None, keepdims=False, initial=np._NoValue, where=True):
        x = asarray(a)
        to = accumulation_type(x, dtype, out)
        x = _selected(x, where, ufunc.identity, to)
        result = reduce_axes(x, of_bools if to is dt.bool_ else name, axis, keepdims, to)
        return into_out(_with_initial(result, initial, ufunc), out, name)

    return accumulation


sum, prod = _accumulation("sum", np.add, "any"), _accumulation("prod", np.multiply, "all")


def _extreme(name: str, ufunc):
    @implements(getattr(np, name), getattr(np, f"a{name}"))
    def extreme(a, axis=None, out=None, keepdims=False, initial=np._NoValue, where=True):
        x = asarray(a)
        if where is not True and where is not np._NoValue:
            if initial is np._NoValue:
                fail(
                    ValueError,
                    f"reduction operation '{ufunc.__name__}' does not have an identity, so to use a where mask one has "
                    "to specify 'initial'",
                )
            x = _selected(x, where, initial, x._value.dtype)
        axes = reduced_axes(axis, x.ndim)
        if initial is np._NoValue and _is_empty(x, axes):
            fail(ValueError, f"zero-size array to reduction operation {ufunc.__name__} which has no identity")
        if initial is not np._NoValue and _is_empty(x, None):
            filled = full(_kept(x.shape, axes, keepdims), initial, x.dtype)
            return into_out(wrap(x._trace, filled.value), out, name)
        result = reduce_axes(x, name, axis, keepdims)
        return into_out(_with_initial(result, initial, ufunc), out, name)

    return extreme


max, min = _extreme("max", np.maximum), _extreme("min", np.minimum)


def _truth(a) -> TracedArray:
    """``a`` as an array whose elements ops can compare with 0."""
    x = asarray(a)
    return asarray(x, bool) if x._value.dtype.kind == "c" else x


def _logical(name: str, neutral: int):
    @implements(getattr(np, name))
    def reduction(a, axis=None, out=None, keepdims=False, where=True):
        x = _truth(a)
        return into_out(reduce_axes(_selected(x, where, neutral, x._value.dtype), name, axis, keepdims), out, name)

    return reduction


any_, all_ = _logical("any", 0), _logical("all", 1)


def float_type(x, dtype=None) -> DType:
    """The dtype in which NumPy computes a mean."""
    if dtype is not None:
        found = dtype_of(dtype)
        if not found.is_inexact:
            fail(UnsupportedError, f"a mean or variance in dtype {found}: use a float dtype")
        return found
    return x._value.dtype if x._value.dtype.is_inexact else dt.f64


@implements(np.mean)
def mean(a, axis=None, dtype=None, out=None, keepdims=False, where=True):
    x = asarray(a)
    if dtype is None and isinstance(out, TracedArray) and x._value.dtype.is_inexact and out._value.dtype.is_inexact:
        dtype = out.dtype
    to = float_type(x, dtype)
    if where is not True and where is not np._NoValue:
        count = sum(broadcast_to(asarray(where, bool), x.shape), axis, to, keepdims=keepdims)
        return into_out(sum(x, axis, to, keepdims=keepdims, where=where) / count, out, "mean")
    if to.kind == "c":
        result = sum(x, axis, to, keepdims=keepdims) / asarray(x._trace.sym(_count(x, axis)), to.real)
    else:
        result = reduce_axes(x, "mean", axis, keepdims, to)
    if _is_empty(x, reduced_axes(axis, x.ndim, False)):
        x._trace.warnings["Mean of empty slice"] = None  # NumPy's, which each call of the compiled function gives
    return into_out(result, out, "mean")


def squared(x) -> TracedArray:
    """|x|², elementwise."""
    return x.real * x.real + x.imag * x.imag if x._value.dtype.kind == "c" else x * x


def _refuse_complex(row: str, x: TracedArray, dtype) -> None:
    """Leave a variance with a dtype to NumPy where one of both is complex: its steps differ in what they convert."""
    if dtype is not None and "c" in (x._value.dtype.kind, dtype_of(dtype).kind):
        unsupported(f"np.{row} of complex numbers with a dtype", "convert the result")


def _variance(row: str):
    @implements(getattr(np, row))
    def variance(a, axis=None, dtype=None, out=None, ddof=0, keepdims=False, *, where=True, mean=np._NoValue,
                 correction=np._NoValue):  # fmt: skip
        refuse(row, where=where, mean=mean)
        x = asarray(a)
        _refuse_complex(row, x, dtype)
        ddof = concrete(ddof if correction is np._NoValue else correction)
        if x._value.dtype.kind != "c":
            return into_out(reduce_axes(x, row, axis, keepdims, float_type(x, dtype), correction=ddof), out, row)
        squares = squared(x - np.mean(x, axis, dtype, keepdims=True))
        left = call_ufunc(np.maximum, (x._trace.sym(_count(x, axis)) - ddof, 0))
        result = sum(squares, axis, keepdims=keepdims) / asarray(left, squares.dtype)
        return into_out(call_ufunc(np.sqrt, (result,)) if row == "std" else result, out, row)

    return variance


var, std = _variance("var"), _variance("std")


def _argument(row: str):
    @implements(getattr(np, row))
    def argument(a, axis=None, out=None, *, keepdims=False):
        x = asarray(a)
        axis = None if axis is None else operator.index(no_bools(axis))
        if _is_empty(x, reduced_axes(axis, x.ndim)):
            fail(ValueError, f"attempt to get {row} of an empty sequence")
        axis = axis if x.ndim else None
        return into_out(reduce_axes(x, row, axis, keepdims), out, row)

    return argument


argmax, argmin = _argument("argmax"), _argument("argmin")


@implements(np.count_nonzero)
def count_nonzero(a, axis=None, *, keepdims=False):
    return sum(asarray(a) != 0, axis, np.int64, keepdims=keepdims)


@implements(np.average)
def average(a, axis=None, weights=None, returned=False, *, keepdims=False):
    x = asarray(a)
    if weights is None:
        result = mean(x, axis, keepdims=keepdims)
        if not returned:
            return result
        return result, full_like(result, x._trace.sym(_count(x, axis)))
    w = asarray(weights)
    kinds = (x.dtype, w.dtype) + ((np.dtype("f8"),) if not x._value.dtype.is_inexact else ())
    to = result_type_of(kinds)
    if w.ndim != x.ndim or w.shape != x.shape:
        if axis is None:
            fail(TypeError, "Axis must be specified when shapes of a and weights differ.")
        axes = axes_of(axis, x.ndim)
        if w.ndim != len(axes) or any(n != x.shape[k] for n, k in zip(w.shape, axes)):
            fail(ValueError, "Shape of weights must be consistent with shape of a along specified axis.")
        w = reshape(transpose(w, tuple(np.argsort(axes))), tuple(x.shape[k] if k in axes else 1 for k in range(x.ndim)))
    total = _nonzero(sum(broadcast_to(w, x.shape), axis, to, keepdims=keepdims))
    result = sum(asarray(x, to) * asarray(w, to), axis, keepdims=keepdims) / total
    return (result, total) if returned else result


def _nonzero(total: TracedArray) -> TracedArray:
    """``total``; where an element is zero, the kernel finds an index out of range, and NumPy runs the call, which then
    raises its own error."""
    t = total._trace
    if not t.checks_indices:
        return total
    zero = asarray(total == 0, np.int64)
    return total + asarray(wrap(t, t.emit("position", zero.value, extent=1, axis=0, checked=True)), total.dtype)


def reduction_method(function, typed: bool):
    """A method of a ufunc, whose default axis is 0; ``typed``: the function takes a dtype."""

    def reduce(x, axis=0, dtype=None, out=None, **kwargs):
        if typed:
            kwargs["dtype"] = dtype
        return function(x if typed or dtype is None else asarray(x, dtype), axis=axis, out=out, **kwargs)

    return reduce


METHODS[np.add, "reduce"], METHODS[np.multiply, "reduce"] = (reduction_method(f, True) for f in (sum, prod))
METHODS |= {
    (ufunc, "reduce"): reduction_method(function, False) for ufunc, function in ((np.maximum, max), (np.minimum, min))
}


def _logical_method(function, ufunc):
    def reduce(x, axis=0, dtype=None, out=None, **kwargs):
        if dtype is not None and np.dtype(dtype) == object:
            unsupported(f"np.{ufunc.__name__}.reduce to objects", "use bool")
        if dtype is not None and np.dtype(dtype) != bool:
            no_loop(ufunc)
        return function(x, axis=axis, out=out, **kwargs)

    return reduce


METHODS |= {
    (ufunc, "reduce"): _logical_method(function, ufunc)
    for ufunc, function in ((np.logical_or, any_), (np.logical_and, all_))
}


nansum: Any = np.nansum  # of traced arrays: composed


def _nan_extreme(name: str, reduce, lowest: float):
    @implements(getattr(np, name))
    def extreme(a, axis=None, out=None, keepdims=False):
        x = asarray(a)
        if not x._value.dtype.is_inexact:
            return reduce(x, axis, out, keepdims)
        nans = np.isnan(x)
        result = reduce(chosen(nans, x.dtype.type(lowest), x), axis, keepdims=keepdims)
        return into_out(chosen(all_(nans, axis, keepdims=keepdims), x.dtype.type(np.nan), result), out, name)

    return extreme


nanmax, nanmin = _nan_extreme("nanmax", max, -np.inf), _nan_extreme("nanmin", min, np.inf)


@implements(np.nanmean)
def nanmean(a, axis=None, dtype=None, out=None, keepdims=False):
    x = asarray(a)
    to = float_type(x, dtype)
    count = sum(~np.isnan(x), axis, to, keepdims=keepdims)
    return into_out(nansum(asarray(x, to), axis, keepdims=keepdims) / count, out, "nanmean")


@implements(np.nanvar)
def nanvar(a, axis=None, dtype=None, out=None, ddof=0, keepdims=False):
    x = asarray(a)
    _refuse_complex("nanvar", x, dtype)
    x = asarray(x, float_type(x, dtype))
    valid = ~np.isnan(x)
    count = sum(valid, axis, x.dtype, keepdims=True)
    d = chosen(valid, x - nansum(x, axis, keepdims=True) / count, x.dtype.type(0))
    squares = squared(d)
    left = sum(valid, axis, squares.dtype, keepdims=keepdims) - ddof
    result = sum(squares, axis, keepdims=keepdims) / left
    return into_out(chosen(left > 0, result, squares.dtype.type(np.nan)), out, "nanvar")


@implements(np.nanstd)
def nanstd(a, axis=None, dtype=None, out=None, ddof=0, keepdims=False):
    return into_out(call_ufunc(np.sqrt, (nanvar(a, axis, dtype, None, ddof, keepdims),)), out, "nanstd")
