"""NumPy's functions on traced arrays: reductions, element-wise functions, shapes, products, and the array methods of
the same names.

Names are NumPy's own, so that ``sum``, ``max``, ``min`` and ``round`` hide Python's here.
"""

from __future__ import annotations

import builtins
import operator

import ml_dtypes
import numpy as np

from mlirfuse.core.errors import ShapeError, TraceError, UnsupportedError
from mlirfuse.frontend.numpy.api import (
    METHODS,
    aligned,
    asarray,
    axes_of,
    axis_of,
    broadcast_shape,
    call_ufunc,
    concrete,
    contains_traced,
    dtype_of,
    fresh,
    full_shape,
    implements,
    int_range,
    into_out,
    kind_of,
    operand,
    refuse,
    resolve,
    result_type_of,
    shape_of,
    size_of,
    slice_bound,
    store,
    trace_of,
    value_of,
    wrap,
)
from mlirfuse.frontend.numpy.tracing import LeafScalar, TracedArray, fail
from mlirfuse.frontend.numpy.views import Broadcast, ExpandDims, Permute, Reshape, Slice, Squeeze, reshapes_are_views
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.dtypes import DType
from mlirfuse.ir.graph import Value

# ----------------------------------------------------------------------------------------------------------------
# reductions


def _reduce(x, row: str, axis=None, keepdims=False, to: DType | None = None, **attrs) -> TracedArray:
    t = x._trace
    axes = axes_of(axis, x.ndim)
    keepdims = False if keepdims is np._NoValue else bool(keepdims)
    value = value_of(t, x, to or x._value.dtype)
    return wrap(t, t.emit(row, value, axes=axes, keepdims=keepdims, **attrs))


def _accumulation_type(x, dtype, out=None) -> DType:
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
    """``x`` where the mask holds, elsewhere ``neutral``."""
    if where_ is True or where_ is np._NoValue:
        return x
    t = x._trace
    mask = asarray(where_, bool)
    value = t.emit("where", *aligned(t, [mask.value, value_of(t, x, to), t.builder.constant(neutral, to)]))
    return TracedArray(t, value)


def _with_initial(result, initial, ufunc):
    if initial is np._NoValue or initial is None:
        return result
    combined = call_ufunc(ufunc, (result, initial))
    return combined if combined._value.dtype is result._value.dtype else asarray(combined, result.dtype)


@implements(np.sum)
def sum(a, axis=None, dtype=None, out=None, keepdims=False, initial=np._NoValue, where=True):
    x = asarray(a)
    to = _accumulation_type(x, dtype, out)
    result = _reduce(_selected(x, where, 0, to), "any" if to is dt.bool_ else "sum", axis, keepdims, to)
    return into_out(_with_initial(result, initial, np.add), out, "sum")


@implements(np.prod)
def prod(a, axis=None, dtype=None, out=None, keepdims=False, initial=np._NoValue, where=True):
    x = asarray(a)
    to = _accumulation_type(x, dtype, out)
    result = _reduce(_selected(x, where, 1, to), "all" if to is dt.bool_ else "prod", axis, keepdims, to)
    return into_out(_with_initial(result, initial, np.multiply), out, "prod")


def _extreme(name: str, row: str, ufunc, a, axis, out, keepdims, initial, where_):
    x = asarray(a)
    t = x._trace
    if where_ is not True and where_ is not np._NoValue:
        if initial is np._NoValue:
            fail(
                ValueError,
                f"reduction operation '{ufunc.__name__}' does not have an identity, so to use a where mask one has to specify 'initial'",
            )
        x = _selected(x, where_, initial, x._value.dtype)
    axes = axes_of(axis, x.ndim)
    if initial is np._NoValue and any(n == 0 for k, n in enumerate(t.shape(x._value)) if axes is None or k in axes):
        fail(ValueError, f"zero-size array to reduction operation {ufunc.__name__} which has no identity")
    if initial is not np._NoValue and any(n == 0 for n in t.shape(x._value)):
        shape = [
            1 if axes is None or k in axes else n
            for k, n in enumerate(x.shape)
            if keepdims or not (axes is None or k in axes)
        ]
        return into_out(full(tuple(shape), initial, x.dtype), out, name)
    return into_out(_with_initial(_reduce(x, row, axis, keepdims), initial, ufunc), out, name)


@implements(np.max, np.amax)
def max(a, axis=None, out=None, keepdims=False, initial=np._NoValue, where=True):
    return _extreme("max", "max", np.maximum, a, axis, out, keepdims, initial, where)


@implements(np.min, np.amin)
def min(a, axis=None, out=None, keepdims=False, initial=np._NoValue, where=True):
    return _extreme("min", "min", np.minimum, a, axis, out, keepdims, initial, where)


@implements(np.any)
def any_(a, axis=None, out=None, keepdims=False, where=True):
    x = asarray(a)
    return into_out(_reduce(_selected(x, where, 0, x._value.dtype), "any", axis, keepdims), out, "any")


@implements(np.all)
def all_(a, axis=None, out=None, keepdims=False, where=True):
    x = asarray(a)
    return into_out(_reduce(_selected(x, where, 1, x._value.dtype), "all", axis, keepdims), out, "all")


def _float_type(x, dtype=None) -> DType:
    """The type that NumPy takes means in."""
    if dtype is not None:
        found = dtype_of(dtype)
        if not found.is_float:
            fail(UnsupportedError, f"a mean or variance in dtype {found}: use a float dtype")
        return found
    return x._value.dtype if x._value.dtype.is_float else dt.f64


@implements(np.mean)
def mean(a, axis=None, dtype=None, out=None, keepdims=False, where=True):
    x = asarray(a)
    to = _float_type(
        x,
        out.dtype
        if dtype is None and isinstance(out, TracedArray) and x._value.dtype.is_float and out._value.dtype.is_float
        else dtype,
    )
    if where is not True and where is not np._NoValue:
        count = sum(broadcast_to(asarray(where, bool), x.shape), axis, to, keepdims=keepdims)
        return into_out(sum(x, axis, to, keepdims=keepdims, where=where) / count, out, "mean")
    return into_out(_reduce(x, "mean", axis, keepdims, to), out, "mean")


def _variance(row: str, a, axis, dtype, out, ddof, keepdims, where_, mean_, correction):
    refuse(row, where=where_, mean=mean_)
    if correction is not np._NoValue:
        ddof = correction
    x = asarray(a)
    ddof = concrete(ddof)
    return into_out(_reduce(x, row, axis, keepdims, _float_type(x, dtype), correction=ddof), out, row)


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
    t = x._trace
    axes = axes_of(axis, x.ndim)
    if any(n == 0 for k, n in enumerate(t.shape(x._value)) if axes is None or k in axes):
        fail(ValueError, f"attempt to get {row} of an empty sequence")
    return into_out(_reduce(x, row, None if axis is None else operator.index(axis), keepdims), out, row)


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
    kinds = (x.dtype, w.dtype) + ((np.dtype("f8"),) if not x._value.dtype.is_float else ())
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


def _nan_aware(x, neutral):
    return where(isnan_(x), x.dtype.type(neutral), x) if x._value.dtype.is_float else x


def isnan_(x):
    return call_ufunc(np.isnan, (x,))


@implements(np.nansum)
def nansum(a, axis=None, dtype=None, out=None, keepdims=False, initial=np._NoValue, where=True):
    return sum(_nan_aware(asarray(a), 0), axis, dtype, out, keepdims, initial, where)


@implements(np.nanprod)
def nanprod(a, axis=None, dtype=None, out=None, keepdims=False, initial=np._NoValue, where=True):
    return prod(_nan_aware(asarray(a), 1), axis, dtype, out, keepdims, initial, where)


@implements(np.nanmax)
def nanmax(a, axis=None, out=None, keepdims=False):
    x = asarray(a)
    if not x._value.dtype.is_float:
        return max(x, axis, out, keepdims)
    nans = isnan_(x)
    result = max(where(nans, x.dtype.type(-np.inf), x), axis, keepdims=keepdims)
    return into_out(where(all_(nans, axis, keepdims=keepdims), x.dtype.type(np.nan), result), out, "nanmax")


@implements(np.nanmin)
def nanmin(a, axis=None, out=None, keepdims=False):
    x = asarray(a)
    if not x._value.dtype.is_float:
        return min(x, axis, out, keepdims)
    nans = isnan_(x)
    result = min(where(nans, x.dtype.type(np.inf), x), axis, keepdims=keepdims)
    return into_out(where(all_(nans, axis, keepdims=keepdims), x.dtype.type(np.nan), result), out, "nanmin")


@implements(np.nanmean)
def nanmean(a, axis=None, dtype=None, out=None, keepdims=False):
    x = asarray(a)
    to = _float_type(x, dtype)
    count = sum(~isnan_(x), axis, to, keepdims=keepdims)
    return into_out(nansum(asarray(x, to), axis, keepdims=keepdims) / count, out, "nanmean")


@implements(np.nanvar)
def nanvar(a, axis=None, dtype=None, out=None, ddof=0, keepdims=False):
    x = asarray(a)
    x = asarray(x, _float_type(x, dtype))
    valid = ~isnan_(x)
    count = sum(valid, axis, x.dtype, keepdims=True)
    d = where(valid, x - nansum(x, axis, keepdims=True) / count, x.dtype.type(0))
    left = sum(valid, axis, x.dtype, keepdims=keepdims) - ddof
    return into_out(where(left > 0, sum(d * d, axis, keepdims=keepdims) / left, x.dtype.type(np.nan)), out, "nanvar")


@implements(np.nanstd)
def nanstd(a, axis=None, dtype=None, out=None, ddof=0, keepdims=False):
    return into_out(call_ufunc(np.sqrt, (nanvar(a, axis, dtype, None, ddof, keepdims),)), out, "nanstd")


def _reduction_method(function, typed: bool):
    """``ufunc.reduce``, which is over the first axis by default."""

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


# ---------------------------------------------------------------------------------------------------------------- scans
# and sorts


def _scan(row: str, a, axis, to: DType | None, out):
    x = asarray(a)
    if axis is None:
        x, axis = reshape(x, -1), 0
    t = x._trace
    value = t.emit(row, value_of(t, x, to or x._value.dtype), axis=axis_of(axis, x.ndim))
    return into_out(TracedArray(t, value), out, row)


@implements(np.cumsum)
def cumsum(a, axis=None, dtype=None, out=None):
    return _scan("cumsum", a, axis, _accumulation_type(asarray(a), dtype, out), out)


@implements(np.cumprod)
def cumprod(a, axis=None, dtype=None, out=None):
    return _scan("cumprod", a, axis, _accumulation_type(asarray(a), dtype, out), out)


def _scan_method(row: str):
    def accumulate(a, axis=0, dtype=None, out=None):
        return _scan(row, a, axis, None if dtype is None else dtype_of(dtype), out)

    return accumulate


def _typed_scan_method(function):
    return lambda a, axis=0, dtype=None, out=None: function(a, axis, dtype, out)


METHODS[np.add, "accumulate"] = _typed_scan_method(cumsum)
METHODS[np.multiply, "accumulate"] = _typed_scan_method(cumprod)
METHODS[np.maximum, "accumulate"] = _scan_method("cummax")
METHODS[np.minimum, "accumulate"] = _scan_method("cummin")


@implements(np.argsort)
def argsort(a, axis=-1, kind=None, order=None, *, stable=None):
    x = asarray(a)
    if axis is None:
        x, axis = reshape(x, -1), 0
    return TracedArray(x._trace, x._trace.emit("argsort", x.value, axis=axis_of(axis, x.ndim)))


@implements(np.sort)
def sort(a, axis=-1, kind=None, order=None, *, stable=None):
    x = asarray(a)
    if axis is None:
        x, axis = reshape(x, -1), 0
    return np.take_along_axis(x, argsort(x, axis), axis)


@implements(np.median)
def median(a, axis=None, out=None, overwrite_input=False, keepdims=False):
    x = asarray(a)
    axes = tuple(range(x.ndim)) if axis is None else axes_of(axis, x.ndim)
    kept = [k for k in range(x.ndim) if k not in axes]
    flat = reshape(transpose(x, (*kept, *axes)), tuple(x.shape[k] for k in kept) + (-1,))
    ordered = sort(flat, -1)
    n = ordered.shape[-1]
    middle = mean(ordered[..., (n - 1) // 2 : n // 2 + 1], -1)
    if x._value.dtype.is_float:
        middle = where(isnan_(ordered[..., -1]), middle.dtype.type(np.nan), middle)
    if keepdims:
        middle = reshape(middle, tuple(1 if k in axes else m for k, m in enumerate(x.shape)))
    return into_out(middle, out, "median")


# ----------------------------------------------------------------------------------------------------------------
# elementwise functions


@implements(np.where)
def where(condition, *branches):
    if len(branches) != 2:
        fail(TraceError, "np.where(condition) alone gives as many positions as there are true values, a shape that depends on values: "
             "use np.where(condition, a, b)")  # fmt: skip
    t = trace_of(condition, *branches)
    condition = asarray(condition, bool)
    a, b = (operand(t, x) for x in branches)
    to = result_type_of((kind_of(a), kind_of(b)))
    values = aligned(t, [condition.value, value_of(t, a, to, True), value_of(t, b, to, True)])
    return wrap(t, t.emit("where", *values))


_CLIP = np._core.umath.clip  # what np.clip promotes by, with both bounds


@implements(np.clip)
def clip(a, a_min=np._NoValue, a_max=np._NoValue, out=None, *, min=np._NoValue, max=np._NoValue, dtype=None):
    low = a_min if min is np._NoValue else min
    high = a_max if max is np._NoValue else max
    low, high = (None if x is np._NoValue else x for x in (low, high))
    t = trace_of(a, low, high)
    x = operand(t, a)
    bounds = [None if y is None else operand(t, y) for y in (low, high)]
    if kind_of(x) not in (int, float) and dt.of(kind_of(x)).is_integer:  # a Python int beyond the type bounds nothing
        low, high = int_range(dt.of(kind_of(x)))
        bounds = [
            y.concrete() if isinstance(y, LeafScalar) and y._weak is int and not low <= y.spec.value <= high else y
            for y in bounds
        ]
        bounds = [
            None if y.__class__ is int and (y <= low if k == 0 else y >= high) else y for k, y in enumerate(bounds)
        ]
    given = [y for y in (x, *bounds) if y is not None]
    if dtype is not None:
        to = dtype_of(dtype)
    elif len(given) == 1:
        to = result_type_of((kind_of(x),))
    else:
        to = resolve(_CLIP if len(given) == 3 else np.maximum, given)[-1]
    value = value_of(t, x, to)
    for row, bound in zip(("maximum", "minimum"), bounds):
        if bound is not None:
            value = t.emit(row, *aligned(t, [value, value_of(t, bound, to)]))
    if bounds == [None, None]:
        value = fresh(t, value)
    return into_out(wrap(t, value), out, "clip", True)


@implements(np.round, np.around)
def round(a, decimals=0, out=None):
    x = asarray(a)
    t, to, decimals = x._trace, x._value.dtype, operator.index(decimals)
    if to is dt.bool_:
        return into_out(wrap(t, value_of(t, x, dt.f16)), out, "round", True)
    if to.is_integer:
        if decimals >= 0:
            return into_out(wrap(t, fresh(t, x.value)), out, "round", True)
        unit = 10**-decimals
        half = asarray(call_ufunc(np.rint, (asarray(x, np.float64) / unit,)) * unit, x.dtype)
        return into_out(half, out, "round", True)
    if decimals == 0:
        return into_out(wrap(t, t.emit("round", x.value)), out, "round", True)
    unit = t.builder.constant(10.0 ** abs(decimals), to)
    first, second = ("mul", "div") if decimals > 0 else ("div", "mul")
    return into_out(wrap(t, t.emit(second, t.emit("round", t.emit(first, x.value, unit)), unit)), out, "round", True)


@implements(np.fix)
def fix(x, out=None):
    return into_out(call_ufunc(np.trunc, (x,)), out, "fix", True)


@implements(np.isposinf)
def isposinf(x, out=None):
    x = asarray(x)
    return into_out(wrap(x._trace, x._trace.emit("isposinf", x.value)), out, "isposinf", True)


@implements(np.isneginf)
def isneginf(x, out=None):
    x = asarray(x)
    return into_out(wrap(x._trace, x._trace.emit("isneginf", x.value)), out, "isneginf", True)


@implements(np.isreal)
def isreal(x):
    x = asarray(x)
    return wrap(x._trace, x._trace.emit("isreal", x.value))


@implements(np.real)
def real(val):
    x = asarray(val)
    return wrap(x._trace, x._trace.emit("real", x.value)) if iscomplexobj(x) else x


@implements(np.imag)
def imag(val):
    x = asarray(val)
    return wrap(x._trace, x._trace.emit("imag", x.value)) if iscomplexobj(x) else zeros_like(x)


@implements(np.iscomplexobj)
def iscomplexobj(x):
    return asarray(x)._value.dtype.kind == "c"


@implements(np.isrealobj)
def isrealobj(x):
    return not iscomplexobj(x)


@implements(np.nan_to_num)
def nan_to_num(x, copy=True, nan=0.0, posinf=None, neginf=None):
    x = asarray(x)
    if not x._value.dtype.is_float:
        return wrap(x._trace, fresh(x._trace, x.value))
    info = ml_dtypes.finfo(x.dtype)
    kind = x.dtype.type
    y = where(call_ufunc(np.isnan, (x,)), kind(nan), x)
    y = where(isposinf(x), kind(info.max if posinf is None else posinf), y)
    y = where(isneginf(x), kind(info.min if neginf is None else neginf), y)
    if not copy:
        store(x._trace, x, y.value, "nan_to_num")
        return x
    return y


@implements(np.isclose)
def isclose(a, b, rtol=1e-05, atol=1e-08, equal_nan=False):
    t = trace_of(a, b, rtol, atol)
    x, y = asarray(a) if contains_traced(a) else operand(t, a), asarray(b) if contains_traced(b) else operand(t, b)
    y = asarray(y)
    y = y if y._value.dtype.is_float else asarray(y, np.float64)
    close = (call_ufunc(np.absolute, (x - y,)) <= atol + rtol * call_ufunc(np.absolute, (y,))) & call_ufunc(
        np.isfinite, (y,)
    ) | (x == y)
    if equal_nan:
        close = close | (isnan_(asarray(x)) & isnan_(y))
    return close


@implements(np.allclose)
def allclose(a, b, rtol=1e-05, atol=1e-08, equal_nan=False):
    return all_(isclose(a, b, rtol, atol, equal_nan))


@implements(np.array_equal)
def array_equal(a1, a2, equal_nan=False):
    a, b = asarray(a1), asarray(a2)
    if a.ndim != b.ndim or any(n != m for n, m in zip(a.shape, b.shape)):
        return False
    same = a == b
    if equal_nan and a._value.dtype.is_float and b._value.dtype.is_float:
        same = same | (isnan_(a) & isnan_(b))
    return all_(same)


@implements(np.sinc)
def sinc(x):
    x = asarray(x)
    x = x if x._value.dtype.is_float else asarray(x, np.float64)
    y = np.pi * x
    return where(x == 0, x.dtype.type(1), call_ufunc(np.sin, (y,)) / y)


@implements(np.select)
def select(condlist, choicelist, default=0):
    if len(condlist) != len(choicelist):
        fail(ValueError, "list of cases must be same length as list of conditions")
    t = trace_of(*condlist, *choicelist, default)
    for k, condition in enumerate(condlist):
        if asarray(condition)._value.dtype is not dt.bool_:
            fail(TypeError, f"invalid entry {k} in condlist: should be boolean ndarray")
    choices = [operand(t, x) for x in [*choicelist, default]]
    to = result_type_of(tuple(kind_of(x) for x in choices))
    result = asarray(choices[-1], to)
    for condition, choice in zip(reversed(condlist), reversed(choices[:-1])):
        result = where(condition, asarray(choice, to), result)
    return result


@implements("astype")
def astype(x, dtype, /, *, copy=True, device=None):
    return x.astype(dtype, copy=copy)


@implements(np.copy)
def copy(a, order="K", subok=False):
    x = asarray(a)
    return TracedArray(x._trace, fresh(x._trace, x.value))


@implements(np.can_cast)
def can_cast(from_, to, casting="safe"):
    return np.can_cast(from_.dtype if isinstance(from_, TracedArray) else from_, to, casting)


@implements(np.result_type)
def result_type(*arrays_and_dtypes):
    t = trace_of(*arrays_and_dtypes)
    kinds = []
    for x in arrays_and_dtypes:
        kinds.append(np.dtype(x) if isinstance(x, (type, str, np.dtype)) else kind_of(operand(t, x)))
    return result_type_of(tuple(kinds)).numpy


@implements(np.common_type)
def common_type(*arrays):
    kinds = tuple(asarray(a).dtype if asarray(a)._value.dtype.is_float else np.dtype("f8") for a in arrays)
    return result_type_of(kinds).numpy.type


@implements(np.min_scalar_type)
def min_scalar_type(a):
    return asarray(a).dtype


@implements(np.shape)
def shape(a):
    return asarray(a).shape


@implements(np.ndim)
def ndim(a):
    return asarray(a).ndim


@implements(np.size)
def size(a, axis=None):
    x = asarray(a)
    return x.size if axis is None else x.shape[axis_of(axis, x.ndim)]


# ----------------------------------------------------------------------------------------------------------------
# shapes


@implements(np.reshape)
def reshape(a, /, shape=None, order="C", *, copy=None):
    x = asarray(a)
    t = x._trace
    if order == "F":
        target = shape if isinstance(shape, (tuple, list)) else (shape,)
        return transpose(reshape(transpose(x), tuple(reversed(target))))
    target = list(shape_of(t, shape))
    old = t.shape(x._value)
    numel = sz.product(old)
    unknown = [k for k, n in enumerate(target) if isinstance(n, int) and n == -1]
    shown = tuple(-1 if k in unknown else t.hint(n) for k, n in enumerate(target))
    message = f"cannot reshape array of size {t.hint(numel)} into shape ({','.join(map(str, shown))}{',' if len(shown) == 1 else ''})"
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
        return x.alias()
    if copy:
        x = TracedArray(t, fresh(t, x.value))
    return x.step(Reshape(tuple(target)))


@implements(np.ravel)
def ravel(a, order="C"):
    if order not in ("C", "K", "A"):
        return reshape(a, -1, order)
    x = asarray(a)
    if x.ndim == 1:  # unlike reshape, a copy where it is not contiguous
        step = Reshape(x._trace.shape(x._value))
        return x.alias() if reshapes_are_views(x._trace, x._buffer.origin, (*x._path, step)) else x.step(step)
    return reshape(x, -1)


@implements(np.transpose, np.permute_dims)
def transpose(a, axes=None):
    x = asarray(a)
    if axes is None:
        axes = tuple(reversed(range(x.ndim)))
    axes = axes_of(tuple(axes), x.ndim)
    if len(axes) != x.ndim:
        fail(ValueError, "axes don't match array")
    return x.alias() if axes == tuple(range(x.ndim)) else x.step(Permute(axes))


@implements(np.swapaxes)
def swapaxes(a, axis1, axis2):
    x = asarray(a)
    order = list(range(x.ndim))
    i, j = axis_of(axis1, x.ndim), axis_of(axis2, x.ndim)
    order[i], order[j] = order[j], order[i]
    return transpose(x, order)


@implements(np.matrix_transpose, np.linalg.matrix_transpose)
def matrix_transpose(x, /):
    return swapaxes(x, -1, -2)


@implements(np.moveaxis)
def moveaxis(a, source, destination):
    x = asarray(a)
    source, destination = axes_of(source, x.ndim), axes_of(destination, x.ndim)
    if len(source) != len(destination):
        fail(ValueError, "`source` and `destination` arguments must have the same number of elements")
    order = [k for k in range(x.ndim) if k not in source]
    for where_to, axis in sorted(zip(destination, source)):
        order.insert(where_to, axis)
    return transpose(x, order)


@implements(np.rollaxis)
def rollaxis(a, axis, start=0):
    x = asarray(a)
    axis = axis_of(axis, x.ndim)
    start = operator.index(start)
    start = start + x.ndim if start < 0 else start
    order = [k for k in range(x.ndim) if k != axis]
    order.insert(start - 1 if axis < start else start, axis)
    return transpose(x, order)


@implements(np.expand_dims)
def expand_dims(a, axis):
    x = asarray(a)
    rank = x.ndim + (len(axis) if isinstance(axis, (tuple, list)) else 1)
    return x.step(ExpandDims(tuple(sorted(axes_of(axis, rank)))))


@implements(np.squeeze)
def squeeze(a, axis=None):
    x = asarray(a)
    extents = x._trace.shape(x._value)
    axes = tuple(k for k, n in enumerate(extents) if n == 1) if axis is None else axes_of(axis, x.ndim)
    if any(extents[k] != 1 for k in axes):
        fail(ShapeError, "cannot select an axis to squeeze out which has size not equal to one")
    return x.step(Squeeze(tuple(sorted(axes)))) if axes else x.alias()


@implements(np.broadcast_to)
def broadcast_to(array, shape, subok=False):
    x = asarray(array)
    t = x._trace
    target, own = shape_of(t, shape), t.shape(x._value)
    ok = len(own) <= len(target)
    for n, m in zip(reversed(own), reversed(target)):
        ok = ok and (n == 1 or t.unify(n, m))
    if not ok:
        fail(ShapeError, "operands could not be broadcast together with remapped shapes [original->remapped]: "
             f"{t.hints_of(own)} and requested shape {t.hints_of(target)}")  # fmt: skip
    target = tuple(map(t.canonical, target))
    return x.step(Broadcast(target)) if t.shape(x._value) != target else x.alias()


@implements(np.broadcast_arrays)
def broadcast_arrays(*args, subok=False):
    arrays = [asarray(x) for x in args]
    shape = full_shape(arrays[0]._trace, [x._value for x in arrays])
    return tuple(broadcast_to(x, [x._trace.sym(n) for n in shape]) for x in arrays)


@implements(np.broadcast_shapes)
def broadcast_shapes(*args):
    t = trace_of(*args)
    return tuple(t.sym(n) for n in broadcast_shape(t, [shape_of(t, s) for s in args]))


@implements(np.atleast_1d)
def atleast_1d(*arys):
    out = tuple(reshape(x, (1,)) if not x.ndim else x for x in map(asarray, arys))
    return out[0] if len(out) == 1 else out


@implements(np.atleast_2d)
def atleast_2d(*arys):
    out = []
    for x in map(asarray, arys):
        out.append(expand_dims(x, tuple(range(2 - x.ndim))) if x.ndim < 2 else x)
    return out[0] if len(out) == 1 else tuple(out)


@implements(np.atleast_3d)
def atleast_3d(*arys):
    out = []
    for x in map(asarray, arys):
        out.append(
            reshape(x, (1, 1, 1))
            if x.ndim == 0
            else expand_dims(x, (0, 2))
            if x.ndim == 1
            else expand_dims(x, 2)
            if x.ndim == 2
            else x
        )
    return out[0] if len(out) == 1 else tuple(out)


def _joined(arrays, dtype=None) -> tuple:
    """Operands of one type."""
    t = trace_of(*arrays)
    arrays = [operand(t, x) for x in arrays]
    to = result_type_of(tuple(kind_of(x) for x in arrays)) if dtype is None else dtype_of(dtype)
    return t, [asarray(x) for x in arrays], to


@implements(np.concatenate, np.concat)
def concatenate(arrays, axis=0, out=None, *, dtype=None, casting="same_kind"):
    arrays = list(arrays)
    if not arrays:
        fail(ValueError, "need at least one array to concatenate")
    t, arrays, to = _joined(arrays, dtype)
    if axis is None:
        arrays, axis = [reshape(x, -1) for x in arrays], 0
    if any(x.ndim == 0 for x in arrays):
        fail(ValueError, "zero-dimensional arrays cannot be concatenated")
    rank = arrays[0].ndim
    axis = axis_of(axis, rank)
    for k, x in enumerate(arrays):
        if x.ndim != rank:
            fail(
                ShapeError,
                "all the input array dimensions except for the concatenation axis must match exactly, but along dimension 0, the array "
                f"at index 0 has {rank} dimension(s) and the array at index {k} has {x.ndim} dimension(s)",
            )
        for d, (n, m) in enumerate(zip(t.shape(arrays[0]._value), t.shape(x._value))):
            if d != axis and not t.unify(n, m):
                fail(
                    ShapeError,
                    f"all the input array dimensions except for the concatenation axis must match exactly, but along dimension {d}, "
                    f"the array at index 0 has size {t.hint(n)} and the array at index {k} has size {t.hint(m)}",
                )
    values = [value_of(t, x, to) for x in arrays]
    if len(values) == 1:
        return into_out(wrap(t, fresh(t, values[0])), out, "concatenate")
    made = t.emit("concatenate", *values, axis=axis)
    made.shape = tuple(t.canonical(n) for n in made.shape)
    return into_out(wrap(t, made), out, "concatenate")


@implements(np.stack)
def stack(arrays, axis=0, out=None, *, dtype=None, casting="same_kind"):
    t, arrays, to = _joined(list(arrays), dtype)
    axis = axis_of(axis, arrays[0].ndim + 1)
    for x in arrays[1:]:
        if x.ndim != arrays[0].ndim or not all(
            t.unify(n, m) for n, m in zip(t.shape(x._value), t.shape(arrays[0]._value))
        ):
            fail(ShapeError, "all input arrays must have the same shape")
    return concatenate([expand_dims(x, axis) for x in arrays], axis, out, dtype=to.numpy)


@implements(np.vstack)
def vstack(tup, *, dtype=None, casting="same_kind"):
    arrays = [atleast_2d(x) for x in tup]
    return concatenate(arrays, 0, dtype=dtype)


@implements(np.hstack)
def hstack(tup, *, dtype=None, casting="same_kind"):
    arrays = [atleast_1d(x) for x in tup]
    return concatenate(arrays, 0 if arrays[0].ndim == 1 else 1, dtype=dtype)


@implements(np.dstack)
def dstack(tup):
    return concatenate([atleast_3d(x) for x in tup], 2)


@implements(np.column_stack)
def column_stack(tup):
    return concatenate([atleast_2d(x).T if asarray(x).ndim < 2 else x for x in tup], 1)


@implements(np.append)
def append(arr, values, axis=None):
    if axis is None:
        return concatenate([ravel(arr), ravel(values)])
    return concatenate([arr, values], axis)


def _piece(x, axis: int, start, n) -> TracedArray:
    """``n`` slices along an axis, as a view."""
    shape = x._trace.shape(x._value)
    starts = tuple(start if k == axis else 0 for k in range(len(shape)))
    extents = tuple(x._trace.extent(n) if k == axis else m for k, m in enumerate(shape))
    return x.step(Slice(starts, extents, (1,) * len(shape)))


def _pieces(x, axis: int, sizes) -> list:
    """Consecutive slices, as views."""
    out, start = [], 0
    for n in sizes:
        out.append(_piece(x, axis, start, n))
        start = start + x._trace.extent(n)
    return out


def _split(a, indices_or_sections, axis, even: bool):
    x = asarray(a)
    t = x._trace
    axis = axis_of(axis, x.ndim)
    extent = t.shape(x._value)[axis]
    if isinstance(indices_or_sections, (tuple, list, np.ndarray)):
        points = [slice_bound(t, size_of(t, p), extent) for p in indices_or_sections]
        bounds = [0, *points, extent]  # which need not ascend
        return [_piece(x, axis, a, b - a if t.decide(a, "<", b) else 0) for a, b in zip(bounds, bounds[1:])]
    sections = operator.index(indices_or_sections)
    if sections <= 0:
        fail(ValueError, "number sections must be larger than 0.")
    if even or t.hint(extent) % sections == 0:
        if not t.unify(sz.mod(extent, sections), 0) if even else not t.decide(sz.mod(extent, sections), "==", 0):
            fail(ShapeError, "array split does not result in an equal division")
        return _pieces(x, axis, [sz.floordiv(t.canonical(extent), sections)] * sections)
    extent = t.concretise(extent)
    each, extra = divmod(extent, sections)
    return _pieces(x, axis, [each + 1] * extra + [each] * (sections - extra))


@implements(np.split)
def split(ary, indices_or_sections, axis=0):
    return _split(ary, indices_or_sections, axis, True)


@implements(np.array_split)
def array_split(ary, indices_or_sections, axis=0):
    return _split(ary, indices_or_sections, axis, False)


@implements(np.vsplit)
def vsplit(ary, indices_or_sections):
    return split(ary, indices_or_sections, 0)


@implements(np.hsplit)
def hsplit(ary, indices_or_sections):
    return split(ary, indices_or_sections, 1 if asarray(ary).ndim > 1 else 0)


@implements(np.dsplit)
def dsplit(ary, indices_or_sections):
    return split(ary, indices_or_sections, 2)


@implements("unstack")
def unstack(x, /, *, axis=0):
    x = moveaxis(x, axis, 0)
    return tuple(x[k] for k in range(len(x)))


@implements(np.flip)
def flip(m, axis=None):
    x = asarray(m)
    shape = x._trace.shape(asarray(m)._value)
    axes = axes_of(axis, x.ndim) if axis is not None else tuple(range(x.ndim))
    if not axes or not shape:
        return x.alias()
    start = tuple(n - 1 if k in axes and n != 0 else 0 for k, n in enumerate(shape))
    step = tuple(-1 if k in axes and n not in (0, 1) else 1 for k, n in enumerate(shape))
    return x.step(Slice(start, shape, step))


@implements(np.fliplr)
def fliplr(m):
    return flip(m, 1)


@implements(np.flipud)
def flipud(m):
    return flip(m, 0)


@implements(np.rot90)
def rot90(m, k=1, axes=(0, 1)):
    x = asarray(m)
    a, b = axes_of(tuple(axes), x.ndim)
    k = operator.index(k) % 4
    if k == 0:
        return x
    if k == 2:
        return flip(x, (a, b))
    return swapaxes(flip(x, b), a, b) if k == 1 else flip(swapaxes(x, a, b), b)


@implements(np.roll)
def roll(a, shift, axis=None):
    x = asarray(a)
    if axis is None:
        return reshape(roll(reshape(x, -1), shift, 0), x.shape)
    axes = axis if isinstance(axis, (tuple, list)) else (axis,)
    shifts = shift if isinstance(shift, (tuple, list)) else (shift,) * len(axes)
    axes = axes if len(axes) > 1 else tuple(axes) * len(shifts)
    t = x._trace
    x = TracedArray(t, fresh(t, x.value))
    for s, ax in zip(shifts, axes):
        ax = axis_of(ax, x.ndim)
        extent = t.shape(x._value)[ax]
        s = size_of(t, s)
        if extent in (0, 1) or s == 0:
            continue
        if isinstance(s, int) and t.decide(extent, ">", abs(s)):
            cut = s if s > 0 else extent + s
        else:
            cut = t.concretise(s) % t.concretise(extent)
            extent = t.canonical(extent)
        if cut == 0:
            continue
        head, tail = _pieces(x, ax, [extent - cut, cut])
        x = concatenate([tail, head], ax)
    return x


@implements(np.tile)
def tile(A, reps):
    x = asarray(A)
    t = x._trace
    reps = [size_of(t, r) for r in (reps if isinstance(reps, (tuple, list)) else (reps,))]
    rank = builtins.max(x.ndim, len(reps))
    reps = [1] * (rank - len(reps)) + reps
    shape = (1,) * (rank - x.ndim) + t.shape(x._value)
    between, dims = [], []
    for r, n in zip(reps, shape):
        between.append(r)
        dims.append(len(between))
        between.append(n)
    value = t.emit("reshape", x.value, shape=shape) if rank != x.ndim else x.value
    value = t.emit("broadcast_in_dim", value, shape=tuple(between), dims=tuple(dims))
    value = t.emit("reshape", value, shape=tuple(t.extent(sz.mul(r, n)) for r, n in zip(reps, shape)))
    return TracedArray(t, value)


@implements(np.repeat)
def repeat(a, repeats, axis=None):
    x = asarray(a)
    if axis is None:
        x, axis = reshape(x, -1), 0
    if (isinstance(repeats, TracedArray) and repeats.ndim) or (
        isinstance(repeats, (list, tuple, np.ndarray)) and np.size(repeats) != 1
    ):
        fail(UnsupportedError, "np.repeat with an array of counts has a shape that depends on values: use one count")
    t = x._trace
    repeats = np.asarray(repeats).item() if isinstance(repeats, (list, tuple, np.ndarray)) else repeats
    axis, count = axis_of(axis, x.ndim), size_of(t, repeats)
    shape = t.shape(x._value)
    between = shape[: axis + 1] + (count,) + shape[axis + 1 :]
    dims = tuple(k if k <= axis else k + 1 for k in range(len(shape)))
    value = t.emit("broadcast_in_dim", x.value, shape=between, dims=dims)
    value = t.emit("reshape", value, shape=shape[:axis] + (t.extent(sz.mul(shape[axis], count)),) + shape[axis + 1 :])
    return TracedArray(t, value)


@implements(np.pad)
def pad(array, pad_width, mode="constant", constant_values=0, **kwargs):
    x = asarray(array)
    t = x._trace
    if isinstance(pad_width, dict):
        pad_width = [pad_width.get(k, pad_width.get(k - x.ndim, (0, 0))) for k in range(x.ndim)]
    widths = _pairs(pad_width, x.ndim, "pad_width", lambda n: size_of(t, n))
    if any(isinstance(n, int) and n < 0 for pair in widths for n in pair):
        fail(ValueError, "index can't contain negative values")
    if mode == "edge" or (mode in ("reflect", "wrap", "symmetric") and not kwargs.get("reflect_type", "even") == "odd"):
        return _pad_by_index(x, widths, mode)
    if mode not in ("constant", "empty"):
        fail(
            UnsupportedError,
            f"np.pad with mode '{mode}' is not supported in a compiled function: use constant, edge, reflect, symmetric or wrap",
        )
    values = _pairs(constant_values, x.ndim, "constant_values", lambda n: n)
    result, shape = x.value, t.shape(x._value)
    fills = {id(v) if isinstance(v, TracedArray) else repr(v): v for pair in values for v in pair}
    if len(fills) == 1:
        low, high = zip(*widths) if widths else ((), ())
        fill = value_of(t, operand(t, next(iter(fills.values()))), x._value.dtype, True)
        return TracedArray(t, _sized(t, t.emit("pad", result, fill, low=tuple(low), high=tuple(high))))
    for k in range(len(shape)):
        for side in (0, 1):
            if widths[k][side] != 0:
                low = tuple(widths[k][0] if side == 0 and d == k else 0 for d in range(len(shape)))
                high = tuple(widths[k][1] if side == 1 and d == k else 0 for d in range(len(shape)))
                result = t.emit(
                    "pad", result, value_of(t, operand(t, values[k][side]), x._value.dtype, True), low=low, high=high
                )
    return TracedArray(t, _sized(t, result))


def _sized(t, value: Value) -> Value:
    """``value`` with extents of 0 and 1 as ints."""
    shape = tuple(t.extent(n) for n in value.shape)
    if shape != value.shape:
        value.shape = shape
        value.type = Value(value.dtype, shape).type
    return value


def _pairs(given, rank: int, name: str, convert) -> list[tuple]:
    """NumPy's ways to spell a pair for each axis."""
    if isinstance(given, np.ndarray):
        given = given.tolist()
    if not isinstance(given, (tuple, list)):
        return [(convert(given),) * 2] * rank
    if len(given) == 1:
        given = given[0]
        if not isinstance(given, (tuple, list)):
            return [(convert(given),) * 2] * rank
        return [tuple(map(convert, given * 2 if len(given) == 1 else given))] * rank
    if not isinstance(given[0], (tuple, list)):
        if len(given) != 2:
            fail(ValueError, f"{name}: one number, a pair, or a pair for each of {rank} axes")
        return [tuple(map(convert, given))] * rank
    if len(given) != rank:
        fail(ValueError, f"{name} has {len(given)} pairs, the array {rank} axes")
    return [tuple(map(convert, pair)) * (2 if len(pair) == 1 else 1) for pair in given]


def _pad_by_index(x, widths, mode: str):
    t = x._trace
    for axis, (low, high) in enumerate(widths):
        if low == 0 and high == 0:
            continue
        n = t.shape(x._value)[axis]
        if n == 0:
            fail(ValueError, f"can't extend empty axis {axis} using modes other than 'constant' or 'empty'")
        total = t.extent(low + n + high)
        position = t.emit("sub", t.emit("iota", shape=(total,), axis=0, dtype=dt.i64), t.builder.size(low))
        if mode == "edge":
            position = t.emit("minimum", t.emit("maximum", position, t.builder.size(0)), t.builder.size(n - 1))
        elif mode == "wrap":
            position = t.emit("mod", position, t.builder.size(n))
        elif n == 1:
            position = t.emit("mul", position, t.builder.size(0))
        else:
            period = sz.mul(n, 2) - (2 if mode == "reflect" else 0)
            position = t.emit("mod", position, t.builder.size(period))
            mirrored = t.emit("sub", t.builder.size(period - (0 if mode == "reflect" else 1)), position)
            position = t.emit("minimum", position, mirrored)
        x = TracedArray(t, t.emit("take", x.value, position, axis=axis))
    return x


@implements(np.diff)
def diff(a, n=1, axis=-1, prepend=np._NoValue, append=np._NoValue):
    x = asarray(a)
    axis = axis_of(axis, x.ndim)
    ends = [None if e is np._NoValue else asarray(e) for e in (prepend, append)]
    ends = [
        e if e is None or e.ndim else broadcast_to(e, tuple(1 if k == axis else m for k, m in enumerate(x.shape)))
        for e in ends
    ]
    parts = [p for p in (ends[0], x, ends[1]) if p is not None]
    x = concatenate(parts, axis) if len(parts) > 1 else x
    if operator.index(n) < 0:
        fail(ValueError, f"order must be non-negative but got {n}")
    for _ in range(operator.index(n)):
        after, before = (x[(slice(None),) * axis + (slice(*bounds),)] for bounds in ((1, None), (None, -1)))
        x = call_ufunc(np.not_equal if x._value.dtype is dt.bool_ else np.subtract, (after, before))
    return x


def _band(x, k, keep_lower: bool):
    x = asarray(x)
    t = x._trace
    x = x if x.ndim > 1 else broadcast_to(x, (x.shape[0], x.shape[0]))
    n, m = t.shape(x._value)[-2:]
    row = t.emit("iota", shape=(n, 1), axis=0, dtype=dt.i64)
    column = t.emit("iota", shape=(1, m), axis=1, dtype=dt.i64)
    offset = value_of(t, operand(t, k), dt.i64)
    mask = t.emit("le" if keep_lower else "ge", column, t.emit("add", row, offset))
    zero = t.builder.constant(0, x._value.dtype)
    return wrap(t, t.emit("where", *aligned(t, [mask, x.value, zero])))


@implements(np.tril)
def tril(m, k=0):
    return _band(m, k, True)


@implements(np.triu)
def triu(m, k=0):
    return _band(m, k, False)


@implements(np.diagonal, np.linalg.diagonal)
def diagonal(a, offset=0, axis1=0, axis2=1):
    x = asarray(a)
    x = moveaxis(x, (axis1, axis2), (-2, -1))
    t = x._trace
    offset = operator.index(offset)
    n, m = t.shape(x._value)[-2:]
    n, m = (n, m - offset) if offset >= 0 else (n + offset, m)
    length = t.extent(n if t.decide(n, "<=", m) else m)
    if not t.decide(length, ">", 0):  # the diagonal lies past the edge
        return full(x.shape[:-2] + (0,), 0, x.dtype)
    columns = t.emit("iota", shape=(length,), axis=0, dtype=dt.i64)
    shifted = t.emit("add", columns, t.builder.size(abs(offset)))
    rows_at, columns_at = (columns, shifted) if offset >= 0 else (shifted, columns)
    width = t.shape(x._value)[-1]
    flat = reshape(x, x.shape[:-2] + (-1,))
    index = t.emit("add", t.emit("mul", rows_at, t.builder.size(width)), columns_at)
    return TracedArray(t, t.emit("take", flat.value, index, axis=flat.ndim - 1))


@implements(np.diag)
def diag(v, k=0):
    x = asarray(v)
    if x.ndim == 2:
        return diagonal(x, k)
    if x.ndim != 1:
        fail(ValueError, "Input must be 1- or 2-d.")
    t, k = x._trace, operator.index(k)
    n = t.shape(x._value)[0]
    side = t.extent(n + abs(k))
    row = t.emit("iota", shape=(side, 1), axis=0, dtype=dt.i64)
    column = t.emit("iota", shape=(1, side), axis=1, dtype=dt.i64)
    on = t.emit("eq", column, t.emit("add", row, t.builder.constant(k, dt.i64)))
    padded = t.emit(
        "pad", x.value, t.builder.constant(0, x._value.dtype), low=(builtins.max(k, 0),), high=(builtins.max(-k, 0),)
    )
    spread = t.emit("expand_dims", padded, axes=(0,))
    return wrap(t, t.emit("where", on, spread, t.builder.constant(0, x._value.dtype)))


@implements(np.trace, np.linalg.trace)
def trace(a, offset=0, axis1=0, axis2=1, dtype=None, out=None):
    return sum(diagonal(a, offset, axis1, axis2), -1, dtype, out)


@implements(np.meshgrid)
def meshgrid(*xi, copy=True, sparse=False, indexing="xy"):
    arrays = [reshape(x, -1) for x in xi]
    rank = len(arrays)
    out = [reshape(x, tuple(-1 if k == d else 1 for d in range(rank))) for k, x in enumerate(arrays)]
    if indexing == "xy" and rank > 1:
        out = [swapaxes(x, 0, 1) for x in out]
    return tuple(out) if sparse else tuple(wrap(x._trace, fresh(x._trace, x.value)) for x in broadcast_arrays(*out))


# ----------------------------------------------------------------------------------------------------------------
# products


@implements(np.dot)
def dot(a, b, out=None):
    x, y = asarray(a), asarray(b)
    if x.ndim == 0 or y.ndim == 0:
        return into_out(x * y, out, "dot")
    if y.ndim <= 2:
        return into_out(call_ufunc(np.matmul, (x, y)), out, "dot")
    return into_out(tensordot(x, y, ((x.ndim - 1,), (y.ndim - 2,))), out, "dot")


@implements(np.vdot)
def vdot(a, b, /):
    return dot(reshape(a, -1), reshape(b, -1))


@implements(np.inner)
def inner(a, b, /):
    x, y = asarray(a), asarray(b)
    return x * y if x.ndim == 0 or y.ndim == 0 else tensordot(x, y, ((-1,), (-1,)))


@implements(np.outer, np.linalg.outer)
def outer(a, b, out=None):
    return into_out(reshape(a, (-1, 1)) * reshape(b, (1, -1)), out, "outer")


@implements(np.tensordot, np.linalg.tensordot)
def tensordot(a, b, axes=2):
    x, y = asarray(a), asarray(b)
    if isinstance(axes, (tuple, list)):
        first, second = (axes_of(s, z.ndim) for s, z in zip(axes, (x, y)))
    else:
        count = operator.index(axes)
        first, second = tuple(range(x.ndim - count, x.ndim)), tuple(range(count))
    free_x, free_y = [k for k in range(x.ndim) if k not in first], [k for k in range(y.ndim) if k not in second]
    t = x._trace
    for i, j in zip(first, second):
        if not t.unify(t.shape(x._value)[i], t.shape(y._value)[j]):
            fail(ShapeError, "shape-mismatch for sum")
    k = t.sym(sz.product(t.shape(x._value)[i] for i in first))
    left = reshape(transpose(x, (*free_x, *first)), (t.sym(sz.product(x._value.shape[i] for i in free_x)), k))
    right = reshape(transpose(y, (*second, *free_y)), (k, t.sym(sz.product(y._value.shape[i] for i in free_y))))
    product = call_ufunc(np.matmul, (left, right))
    result = reshape(product, tuple(x.shape[i] for i in free_x) + tuple(y.shape[i] for i in free_y))
    return wrap(t, result.value)


@implements(np.einsum)
def einsum(subscripts, *operands, out=None, optimize=False, **kwargs):
    refuse("einsum", **kwargs)
    if not isinstance(subscripts, str):
        fail(UnsupportedError, "np.einsum with lists of labels: give the subscripts as a string")
    spec = subscripts.replace(" ", "")
    if "." in spec:
        fail(UnsupportedError, "np.einsum with an ellipsis is not supported in a compiled function: name all axes")
    terms, _, result = spec.partition("->")
    terms = terms.split(",")
    if "->" not in spec:
        result = "".join(sorted(c for c in set("".join(terms)) if builtins.sum(term.count(c) for term in terms) == 1))
    t, arrays, to = _joined(operands)
    if len(terms) != len(arrays) or any(len(term) != x.ndim for term, x in zip(terms, arrays)):
        fail(ValueError, f"einsum: subscripts '{subscripts}' do not fit operands of ranks {[x.ndim for x in arrays]}")
    if any(len(set(term)) != len(term) for term in terms):
        fail(UnsupportedError, "np.einsum with a label twice in one operand takes a diagonal: use np.diagonal first")
    extents: dict = {}
    for term, x in zip(terms, arrays):
        for label, n in zip(term, t.shape(x._value)):
            if not t.unify(extents.setdefault(label, n), n):
                fail(ShapeError, f"einsum: label '{label}' has extents {t.hint(extents[label])} and {t.hint(n)}")
    arrays = [TracedArray(t, value_of(t, x, to)) for x in arrays]
    have, left = "", None
    for k, (term, x) in enumerate(zip(terms, arrays)):
        later = set(result).union(*terms[k + 1 :])
        x, term = _sum_out(x, term, later | set(have), to)
        if left is None:
            left, have = _sum_out(x, term, later, to)
            continue
        both, mine, theirs = (
            [c for c in have if c in term],
            [c for c in have if c not in term],
            [c for c in term if c not in have],
        )
        gone, batch = [c for c in both if c not in later], [c for c in both if c in later]
        if gone and mine and theirs:
            one, two = _as_matrices(left, have, batch, mine, gone), _as_matrices(x, term, batch, gone, theirs)
            shape = [left.shape[have.index(c)] for c in batch + mine] + [x.shape[term.index(c)] for c in theirs]
            left, have = reshape(call_ufunc(np.matmul, (one, two)), shape), "".join(batch + mine + theirs)
        else:
            labels = batch + mine + theirs + gone
            one, two = (reshape(transpose(y, [s.index(c) for c in labels if c in s]), [y.shape[s.index(c)] if c in s else 1 for c in labels])
                        for y, s in ((left, have), (x, term)))  # fmt: skip
            left, have = _sum_out(call_ufunc(np.multiply, (one, two)), "".join(labels), later, to)
    left = transpose(left, [have.index(c) for c in result])
    return into_out(wrap(t, fresh(t, left.value) if left.value.op is None else left.value), out, "einsum")


def _sum_out(x, labels: str, keep, to: DType):
    """``x`` summed over the axes whose labels are not kept."""
    axes = tuple(k for k, c in enumerate(labels) if c not in keep)
    if axes:
        x = _reduce(x, "any" if to is dt.bool_ else "sum", axes)
    return x, "".join(c for c in labels if c in keep)


def _as_matrices(x, labels: str, batch, rows, columns) -> TracedArray:
    """``x`` with the axes of ``rows`` made one and those of ``columns`` too, behind those of ``batch``."""
    t, extents = x._trace, dict(zip(labels, x._value.shape))
    shape = [extents[c] for c in batch] + [sz.product(extents[c] for c in some) for some in (rows, columns)]
    return reshape(transpose(x, [labels.index(c) for c in batch + rows + columns]), [t.sym(n) for n in shape])


@implements(np.trapezoid)
def trapezoid(y, x=None, dx=1.0, axis=-1):
    y = asarray(y)
    axis = axis_of(axis, y.ndim)
    if x is not None:
        d = diff(x, axis=-1 if asarray(x).ndim == 1 else axis)
        dx = reshape(d, tuple(-1 if k == axis else 1 for k in range(y.ndim))) if d.ndim == 1 else d
    before, after = (slice(None),) * axis + (slice(None, -1),), (slice(None),) * axis + (slice(1, None),)
    return sum(dx * (y[after] + y[before]) / 2.0, axis)


@implements(np.linalg.vecdot)
def vecdot(x1, x2, /, *, axis=-1):
    return sum(asarray(x1) * asarray(x2), axis)


@implements(np.linalg.matmul)
def linalg_matmul(x1, x2, /):
    return call_ufunc(np.matmul, (x1, x2))


@implements(np.cross, np.linalg.cross)
def cross(a, b, axisa=-1, axisb=-1, axisc=-1, axis=None):
    if axis is not None:
        axisa = axisb = axisc = axis
    x, y = moveaxis(a, axisa, -1), moveaxis(b, axisb, -1)
    t = x._trace
    if not t.unify(t.shape(x._value)[-1], 3) or not t.unify(t.shape(y._value)[-1], 3):
        fail(ShapeError, "np.cross: both operands must have 3 components")
    (a0, a1, a2), (b0, b1, b2) = ([z[..., k] for k in range(3)] for z in (x, y))
    return moveaxis(stack([a1 * b2 - a2 * b1, a2 * b0 - a0 * b2, a0 * b1 - a1 * b0], -1), -1, axisc)


@implements(np.linalg.norm)
def norm(x, ord=None, axis=None, keepdims=False):
    x = asarray(x)
    x = x if x._value.dtype.is_float else asarray(x, np.float64)
    if axis is None and (ord is None or (x.ndim == 1 and ord == 2) or (x.ndim == 2 and ord in ("f", "fro"))):
        return call_ufunc(np.sqrt, (sum(x * x, None, keepdims=keepdims),))
    axes = tuple(range(x.ndim)) if axis is None else axes_of(axis, x.ndim)
    ord = concrete(ord)
    magnitude = call_ufunc(np.absolute, (x,))
    if len(axes) == 1:
        if ord is None or ord == 2:
            return call_ufunc(np.sqrt, (sum(x * x, axes, keepdims=keepdims),))
        if isinstance(ord, str):
            fail(ValueError, f"Invalid norm order '{ord}' for vectors")
        if ord == np.inf:
            return max(magnitude, axes, keepdims=keepdims)
        if ord == -np.inf:
            return min(magnitude, axes, keepdims=keepdims)
        if ord == 0:
            return sum(asarray(x != 0, x.dtype), axes, keepdims=keepdims)
        if ord == 1:
            return sum(magnitude, axes, keepdims=keepdims)
        return sum(magnitude**ord, axes, keepdims=keepdims) ** (1.0 / ord)
    if len(axes) == 2:
        if ord in (None, "f", "fro"):
            return call_ufunc(np.sqrt, (sum(x * x, axes, keepdims=keepdims),))
        rows, columns = axes
        choose = {
            np.inf: (max, columns, rows),
            -np.inf: (min, columns, rows),
            1: (max, rows, columns),
            -1: (min, rows, columns),
        }.get(ord)
        if choose is not None:
            pick, inner_axis, outer_axis = choose
            result = pick(sum(magnitude, inner_axis, keepdims=True), outer_axis, keepdims=True)
            return result if keepdims else wrap(x._trace, squeeze(result, axes).value)
    fail(UnsupportedError, f"np.linalg.norm with ord={ord!r} over {len(axes)} axes is not supported in a compiled function: "
         "it needs singular values; use 'fro', 1, -1, inf or -inf")  # fmt: skip


@implements(np.linalg.vector_norm)
def vector_norm(x, /, *, axis=None, keepdims=False, ord=2):
    x = asarray(x)
    if axis is None and x.ndim != 1:
        result = norm(reshape(x, -1), ord, 0)
        return reshape(result, (1,) * x.ndim) if keepdims else result
    if isinstance(axis, (tuple, list)) and len(axis) > 1:
        if ord != 2:
            fail(UnsupportedError, "np.linalg.vector_norm over several axes supports ord=2 only in a compiled function")
        return (
            norm(x, None, None if len(axis) == x.ndim else axis, keepdims)
            if len(axis) != 2
            else norm(x, "fro", axis, keepdims)
        )
    return norm(x, ord, axis, keepdims)


# ----------------------------------------------------------------------------------------------------------------
# creation


def full(shape, fill_value, dtype=None):
    """An array of ``fill_value``, whose shape may hold what ``x.shape`` holds."""
    t = trace_of(shape, fill_value)
    fill = operand(t, fill_value)
    kind = kind_of(fill)
    to = dt.of({int: np.int64, float: np.float64}.get(kind, kind)) if dtype is None else dtype_of(dtype)
    shape = tuple(t.extent(n) for n in shape_of(t, shape))
    value = value_of(t, fill, to)
    if value.rank:
        return TracedArray(t, fresh(t, broadcast_to(TracedArray(t, value), [t.sym(n) for n in shape]).value))
    return TracedArray(t, t.emit("full", value, shape=shape))


def _like(prototype, fill, dtype, shape):
    x = asarray(prototype)
    return full(x.shape if shape is None else shape, fill, x.dtype if dtype is None else dtype)


@implements(np.zeros_like)
def zeros_like(a, dtype=None, order="K", subok=True, shape=None, *, device=None):
    return _like(a, 0, dtype, shape)


@implements(np.ones_like)
def ones_like(a, dtype=None, order="K", subok=True, shape=None, *, device=None):
    return _like(a, 1, dtype, shape)


@implements(np.empty_like)
def empty_like(prototype, dtype=None, order="K", subok=True, shape=None, *, device=None):
    return _like(prototype, 0, dtype, shape)


@implements(np.full_like)
def full_like(a, fill_value, dtype=None, order="K", subok=True, shape=None, *, device=None):
    x = asarray(a)
    dtype = x.dtype if dtype is None else dtype
    return full(
        x.shape if shape is None else shape,
        asarray(fill_value, dtype) if isinstance(fill_value, TracedArray) else fill_value,
        dtype,
    )


# ---------------------------------------------------------------------------------------------------------------- array
# methods


def _method(name):
    def mark(function):
        setattr(TracedArray, name, function)
        return function

    return mark


for _name, _f in {
    "sum": sum,
    "prod": prod,
    "max": max,
    "min": min,
    "any": any_,
    "all": all_,
    "mean": mean,
    "var": var,
    "std": std,
    "argmax": argmax,
    "argmin": argmin,
    "clip": clip,
    "round": round,
    "ravel": ravel,
    "squeeze": squeeze,
    "swapaxes": swapaxes,
    "dot": dot,
    "repeat": repeat,
    "diagonal": diagonal,
    "trace": trace,
    "cumsum": cumsum,
    "cumprod": cumprod,
    "argsort": argsort,
}.items():
    setattr(TracedArray, _name, _f)
TracedArray.T = property(lambda self: transpose(self))
TracedArray.mT = property(lambda self: matrix_transpose(self))
TracedArray.real = property(real)
TracedArray.imag = property(imag)
TracedArray.conj = TracedArray.conjugate = lambda self: call_ufunc(np.conjugate, (self,))
TracedArray.__copy__ = lambda self: copy(self)
TracedArray.__deepcopy__ = lambda self, memo: copy(self)


@_method("reshape")
def _reshape_method(self, *shape, order="C", copy=None):
    return reshape(self, shape[0] if len(shape) == 1 else shape, order, copy=copy)


@_method("transpose")
def _transpose_method(self, *axes):
    if len(axes) == 1 and (axes[0] is None or isinstance(axes[0], (tuple, list))):
        axes = axes[0]
    return transpose(self, axes or None)


@_method("astype")
def _astype(self, dtype, order="K", casting="unsafe", subok=True, copy=True):
    to, t = dtype_of(dtype), self._trace
    if not np.can_cast(self.dtype, to.numpy, casting):
        fail(TypeError, f"Cannot cast array data from {self.dtype!r} to {to.numpy!r} according to the rule '{casting}'")
    if to is self._value.dtype and not copy:
        return self
    if to is self._value.dtype and self._weak is None:
        return TracedArray(t, fresh(t, self.value), scalar=self._scalar)
    return TracedArray(
        t, t.emit("cast", self.value, to=to) if to is not self._value.dtype else self.value, scalar=self._scalar
    )


@_method("copy")
def _copy_method(self, order="C"):
    value = fresh(self._trace, self.value)
    if order == "C":
        self._trace.contiguous.add(value)
    return TracedArray(self._trace, value, scalar=self._scalar)


@_method("flatten")
def _flatten(self, order="C"):
    x = reshape(self, -1, order)
    return TracedArray(x._trace, fresh(x._trace, x.value) if x.value is self.value else x.value)


@_method("sort")
def _sort_method(self, axis=-1, kind=None, order=None, *, stable=None):
    self.assign(sort(self, axis).value)


@_method("view")
def _view_method(self, dtype=None, type=None):
    if dtype is None:
        return self.alias()
    fail(
        UnsupportedError,
        "x.view(dtype), the bits of an array as another type, is not supported in a compiled function: use x.astype(dtype)",
    )
