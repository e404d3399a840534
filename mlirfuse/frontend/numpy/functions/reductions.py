"""Reductions over axes."""

from __future__ import annotations

import functools
import operator

import numpy as np

from mlirfuse.core.errors import UnsupportedError
from mlirfuse.frontend.numpy.axes import axes_of, reduced_axes
from mlirfuse.frontend.numpy.broadcasting import aligned
from mlirfuse.frontend.numpy.functions.arguments import refuse
from mlirfuse.frontend.numpy.functions.creation import full, full_like
from mlirfuse.frontend.numpy.functions.shaping import broadcast_to, reshape, transpose
from mlirfuse.frontend.numpy.operands import asarray, concrete, value_of, wrap
from mlirfuse.frontend.numpy.promotion import dtype_of, result_type_of
from mlirfuse.frontend.numpy.registry import METHODS, implements
from mlirfuse.frontend.numpy.source import fail
from mlirfuse.frontend.numpy.traced_array import TracedArray
from mlirfuse.frontend.numpy.ufuncs import call_ufunc, into_out
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.dtypes import DType
from mlirfuse.runtime import extern_ops

_NO_UFUNCS = {"mean", "var", "std"}  # which reject an axis argument for 0-d arrays


def reduce_axes(x, row: str, axis=None, keepdims=False, to: DType | None = None, **attrs) -> TracedArray:
    t = x._trace
    axes = axes_of(axis, x.ndim) if row in _NO_UFUNCS else reduced_axes(axis, x.ndim)
    keepdims = False if keepdims is np._NoValue else bool(keepdims)
    value = value_of(t, x, to or x._value.dtype)
    return wrap(t, t.emit(row, value, axes=axes, keepdims=keepdims, **attrs))


def _by_library(name: str, function, x, axis, keepdims, to: DType) -> TracedArray:
    """A reduction by a call of NumPy's ``function``, where no kernel can compute it: products and extrema of complex
    numbers."""
    t = x._trace
    axes = reduced_axes(axis, x.ndim)
    keepdims = False if keepdims is np._NoValue else bool(keepdims)
    value = value_of(t, x, to) if to.kind == "c" else x.value
    shape = tuple(
        1 if axes is None or k in axes else n
        for k, n in enumerate(t.shape(value))
        if keepdims or not (axes is None or k in axes)
    )
    over = axes if axes is None or len(axes) != 1 else axes[0]
    call = extern_ops.by_numpy(functools.partial(function, axis=over, keepdims=keepdims))
    return wrap(t, t.emit("call", value, callee=f"np.{name}", dtypes=(to,), shapes=(shape,), function=call))


def accumulation_type(x, dtype, out=None) -> DType:
    if dtype is not None:
        return dtype_of(dtype)
    if isinstance(out, TracedArray) and np.can_cast(x.dtype, out.dtype, "same_kind"):
        return out._value.dtype
    kind = x._value.dtype
    if kind.kind in "b":
        return dt.i64
    if kind.is_integer and kind.bits < 64:
        return dt.i64 if kind.kind == "i" else dt.u64
    return kind


def _selected(x, where_, neutral, to: DType) -> TracedArray:
    """``x`` where the mask is true, ``neutral`` elsewhere."""
    if where_ is True or where_ is np._NoValue:
        return x
    t = x._trace
    mask = asarray(where_, bool)
    value = t.emit("where", *aligned(t, [mask.value, value_of(t, x, to), t.builder.constant(neutral, to)]))
    return TracedArray(t, value)


def _with_initial(result, initial, ufunc):
    if initial is np._NoValue or initial is None:
        return result
    return call_ufunc(ufunc, (result, _as_element(initial, result._value.dtype)))


def _as_element(initial, to: DType):
    """``initial`` as an element of dtype ``to``, converted as by assignment."""
    if isinstance(initial, TracedArray):
        return asarray(initial, to.numpy)
    if to.kind != "c" and isinstance(initial, (complex, np.complexfloating)):
        fail(TypeError, "int() argument must be a string, a bytes-like object or a real number, not 'complex'")
    try:
        return np.array(initial, to.numpy)[()] if initial.__class__ in (int, bool) else to.numpy.type(initial)
    except OverflowError as error:
        fail(OverflowError, str(error))


@implements(np.sum)
def sum(a, axis=None, dtype=None, out=None, keepdims=False, initial=np._NoValue, where=True):
    x = asarray(a)
    to = accumulation_type(x, dtype, out)
    result = reduce_axes(_selected(x, where, 0, to), "any" if to is dt.bool_ else "sum", axis, keepdims, to)
    return into_out(_with_initial(result, initial, np.add), out, "sum")


@implements(np.prod)
def prod(a, axis=None, dtype=None, out=None, keepdims=False, initial=np._NoValue, where=True):
    x = asarray(a)
    to = accumulation_type(x, dtype, out)
    x = _selected(x, where, 1, to)
    if to.kind == "c":
        result = _by_library("prod", np.prod, x, axis, keepdims, to)
    else:
        result = reduce_axes(x, "all" if to is dt.bool_ else "prod", axis, keepdims, to)
    return into_out(_with_initial(result, initial, np.multiply), out, "prod")


def _extreme(name: str, row: str, ufunc, a, axis, out, keepdims, initial, where_):
    x = asarray(a)
    t = x._trace
    if where_ is not True and where_ is not np._NoValue:
        if initial is np._NoValue:
            fail(
                ValueError,
                f"reduction operation '{ufunc.__name__}' does not have an identity, so to use a where "
                "mask one has to specify 'initial'",
            )
        x = _selected(x, where_, initial, x._value.dtype)
    axes = reduced_axes(axis, x.ndim)
    if initial is np._NoValue and any(n == 0 for k, n in enumerate(t.shape(x._value)) if axes is None or k in axes):
        fail(ValueError, f"zero-size array to reduction operation {ufunc.__name__} which has no identity")
    if initial is not np._NoValue and any(n == 0 for n in t.shape(x._value)):
        shape = [
            1 if axes is None or k in axes else n
            for k, n in enumerate(x.shape)
            if keepdims or not (axes is None or k in axes)
        ]
        return into_out(full(tuple(shape), initial, x.dtype), out, name)
    if x._value.dtype.kind == "c":
        result = _by_library(name, getattr(np, name), x, axis, keepdims, x._value.dtype)
    else:
        result = reduce_axes(x, row, axis, keepdims)
    return into_out(_with_initial(result, initial, ufunc), out, name)


@implements(np.max, np.amax)
def max(a, axis=None, out=None, keepdims=False, initial=np._NoValue, where=True):
    return _extreme("max", "max", np.maximum, a, axis, out, keepdims, initial, where)


@implements(np.min, np.amin)
def min(a, axis=None, out=None, keepdims=False, initial=np._NoValue, where=True):
    return _extreme("min", "min", np.minimum, a, axis, out, keepdims, initial, where)


def _truth(a) -> TracedArray:
    """``a`` as an array whose elements ops can compare with 0."""
    x = asarray(a)
    return asarray(x, bool) if x._value.dtype.kind == "c" else x


@implements(np.any)
def any_(a, axis=None, out=None, keepdims=False, where=True):
    x = _truth(a)
    return into_out(reduce_axes(_selected(x, where, 0, x._value.dtype), "any", axis, keepdims), out, "any")


@implements(np.all)
def all_(a, axis=None, out=None, keepdims=False, where=True):
    x = _truth(a)
    return into_out(reduce_axes(_selected(x, where, 1, x._value.dtype), "all", axis, keepdims), out, "all")


def float_type(x, dtype=None) -> DType:
    """The dtype in which NumPy computes a mean."""
    if dtype is not None:
        found = dtype_of(dtype)
        if not found.is_inexact:
            fail(UnsupportedError, f"a mean or variance in dtype {found}: use a float dtype")
        return found
    return x._value.dtype if x._value.dtype.is_inexact else dt.f64


def warn_of_nothing(x, axes) -> None:
    """Records NumPy's warning for the mean of an empty slice; each call of the compiled function gives it."""
    if any(n == 0 for k, n in enumerate(x._trace.shape(x._value)) if axes is None or k in axes):
        x._trace.warnings["Mean of empty slice"] = None


@implements(np.mean)
def mean(a, axis=None, dtype=None, out=None, keepdims=False, where=True):
    x = asarray(a)
    to = float_type(
        x,
        out.dtype
        if dtype is None and isinstance(out, TracedArray) and x._value.dtype.is_inexact and out._value.dtype.is_inexact
        else dtype,
    )
    if where is not True and where is not np._NoValue:
        count = sum(broadcast_to(asarray(where, bool), x.shape), axis, to, keepdims=keepdims)
        return into_out(sum(x, axis, to, keepdims=keepdims, where=where) / count, out, "mean")
    if to.kind == "c":
        axes = axes_of(axis, x.ndim)
        count = sz.product(n for k, n in enumerate(x._value.shape) if axes is None or k in axes)
        result = sum(x, axis, to, keepdims=keepdims) / asarray(x._trace.sym(count), to.real)
    else:
        result = reduce_axes(x, "mean", axis, keepdims, to)
    warn_of_nothing(x, axes_of(axis, x.ndim))
    return into_out(result, out, "mean")


def _variance(row: str, a, axis, dtype, out, ddof, keepdims, where_, mean_, correction):
    refuse(row, where=where_, mean=mean_)
    if correction is not np._NoValue:
        ddof = correction
    x = asarray(a)
    ddof = concrete(ddof)
    if x._value.dtype.kind == "c":
        deviation = x - mean(x, axis, dtype, keepdims=True)
        squares = deviation.real * deviation.real + deviation.imag * deviation.imag
        axes = axes_of(axis, x.ndim)
        count = sz.product(n for k, n in enumerate(x._value.shape) if axes is None or k in axes)
        left = call_ufunc(np.maximum, (x._trace.sym(count) - ddof, 0))
        result = sum(squares, axis, keepdims=keepdims) / asarray(left, squares.dtype)
        return into_out(call_ufunc(np.sqrt, (result,)) if row == "std" else result, out, row)
    return into_out(reduce_axes(x, row, axis, keepdims, float_type(x, dtype), correction=ddof), out, row)


@implements(np.var)
def var(
    a, axis=None, dtype=None, out=None, ddof=0, keepdims=False, *, where=True, mean=np._NoValue, correction=np._NoValue
):
    return _variance("var", a, axis, dtype, out, ddof, keepdims, where, mean, correction)


@implements(np.std)
def std(
    a, axis=None, dtype=None, out=None, ddof=0, keepdims=False, *, where=True, mean=np._NoValue, correction=np._NoValue
):
    return _variance("std", a, axis, dtype, out, ddof, keepdims, where, mean, correction)


def _argument(row: str, a, axis, out, keepdims):
    x = asarray(a)
    axis = None if axis is None else operator.index(axis)
    axes = reduced_axes(axis, x.ndim)
    if any(n == 0 for k, n in enumerate(x._trace.shape(x._value)) if axes is None or k in axes):
        fail(ValueError, f"attempt to get {row} of an empty sequence")
    if x._value.dtype.kind == "c":
        return into_out(_by_library(row, getattr(np, row), x, axis if x.ndim else None, keepdims, dt.i64), out, row)
    return into_out(reduce_axes(x, row, axis if x.ndim else None, keepdims), out, row)


@implements(np.argmax)
def argmax(a, axis=None, out=None, *, keepdims=False):
    return _argument("argmax", a, axis, out, keepdims)


@implements(np.argmin)
def argmin(a, axis=None, out=None, *, keepdims=False):
    return _argument("argmin", a, axis, out, keepdims)


@implements(np.count_nonzero)
def count_nonzero(a, axis=None, *, keepdims=False):
    return sum(asarray(a) != 0, axis, np.int64, keepdims=keepdims)


@implements(np.ptp)
def ptp(a, axis=None, out=None, keepdims=False):
    x = asarray(a)
    return into_out(max(x, axis, keepdims=keepdims) - min(x, axis, keepdims=keepdims), out, "ptp")


@implements(np.average)
def average(a, axis=None, weights=None, returned=False, *, keepdims=False):
    x = asarray(a)
    if weights is None:
        result = mean(x, axis, keepdims=keepdims)
        if not returned:
            return result
        t = x._trace
        axes = axes_of(axis, x.ndim)
        count = t.sym(sz.product(n for k, n in enumerate(x._value.shape) if axes is None or k in axes))
        return result, full_like(result, count)
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
    total = sum(broadcast_to(w, x.shape), axis, to, keepdims=keepdims)
    result = sum(asarray(x, to) * asarray(w, to), axis, keepdims=keepdims) / total
    return (result, total) if returned else result


def _reduction_method(function, typed: bool):
    """``ufunc.reduce``, whose default axis is 0."""

    def reduce(x, axis=0, dtype=None, out=None, **kwargs):
        if typed:
            return function(x, axis=axis, dtype=dtype, out=out, **kwargs)
        return function(x if dtype is None else asarray(x, dtype), axis=axis, out=out, **kwargs)

    return reduce


for _ufunc, _function in (
    (np.add, sum),
    (np.multiply, prod),
    (np.maximum, max),
    (np.minimum, min),
    (np.logical_or, any_),
    (np.logical_and, all_),
):
    METHODS[_ufunc, "reduce"] = _reduction_method(_function, _ufunc in (np.add, np.multiply))
