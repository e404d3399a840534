"""Elementwise functions other than ufuncs."""

from __future__ import annotations

import operator
from typing import Any

import ml_dtypes
import numpy as np

from mlirfuse.core.errors import TraceError, UnsupportedError
from mlirfuse.frontend.numpy.memory_order import checked_order, forced, strides_of_array
from mlirfuse.frontend.numpy.operands import asarray, fresh, operand, trace_of, value_of, wrap
from mlirfuse.frontend.numpy.promotion import int_range, kind_of, resolve, result_type_of
from mlirfuse.frontend.numpy.registry import implements
from mlirfuse.frontend.numpy.shapes import aligned
from mlirfuse.frontend.numpy.source import fail, unsupported
from mlirfuse.frontend.numpy.traced_array import LeafScalar, TracedArray, TracedScalar
from mlirfuse.frontend.numpy.ufunc_rules import op
from mlirfuse.frontend.numpy.ufuncs import call_ufunc, check_cast, into_out, loop_of, store
from mlirfuse.frontend.numpy.views import ComplexPart, ReadOnly
from mlirfuse.ir import dtypes as dt


def _wraps() -> bool:
    """Whether this NumPy's ``np.where`` wraps Python ints that do not fit; else it raises OverflowError."""
    try:
        np.where(True, np.uint8(1), 256)
    except OverflowError:
        return False
    return True


WHERE_WRAPS = _wraps()


@implements(np.where)
def where(condition, *branches):
    result = chosen(condition, *branches)
    return TracedArray(result._trace, result.value)  # an array even where it is 0-d


def chosen(condition, *branches):
    """``np.where``; a number where the result is 0-d."""
    if len(branches) != 2:
        fail(
            TraceError,
            "np.where(condition) alone gives the indices of true values, whose shape depends on values: use "
            "np.where(condition, a, b)",
        )
    t = trace_of(condition, *branches)
    condition = asarray(condition, bool)
    for x in branches:
        if x.__class__ is int and not -(2**63) <= x < 2**64:
            fail(UnsupportedError, f"np.where: the integer {x} fits no NumPy dtype: use a float")
    a, b = (operand(t, x) for x in branches)
    to = result_type_of((kind_of(a), kind_of(b)))
    values = aligned(t, [condition.value, value_of(t, a, to, WHERE_WRAPS), value_of(t, b, to, WHERE_WRAPS)])
    return wrap(t, t.emit("where", *values))


_CLIP = np._core.umath.clip  # type: ignore[attr-defined]  # no stub; np.clip's promotion with both bounds


@implements(np.clip)
def clip(a, a_min=np._NoValue, a_max=np._NoValue, out=None, *, min=np._NoValue, max=np._NoValue, dtype=None):
    low = a_min if min is np._NoValue else min
    high = a_max if max is np._NoValue else max
    low, high = (None if x is np._NoValue else x for x in (low, high))
    t = trace_of(a, low, high)
    x = operand(t, a)
    bounds = [None if y is None else operand(t, y) for y in (low, high)]
    if kind_of(x) not in (int, float) and dt.of(kind_of(x)).is_integer:  # no bound: outside the range
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
        to = loop_of(_CLIP if len(given) == 3 else np.maximum, given, dtype, "same_kind")[-1]
    elif len(given) == 1:
        to = result_type_of((kind_of(x),))
    else:
        to = resolve(_CLIP if len(given) == 3 else np.maximum, given)[-1]
    value = value_of(t, x, to)
    for row, bound in zip(("maximum", "minimum"), bounds):
        if bound is not None:
            value = t.emit(row, *aligned(t, [value, value_of(t, bound, to)]))
    if all(bound is None for bound in bounds):
        value = fresh(t, value)
    return into_out(wrap(t, value), out, "clip", True)


@implements(np.round, np.around)
def round(a, decimals=0, out=None):
    x = asarray(a)
    t, to, decimals = x._trace, x._value.dtype, operator.index(decimals)
    if to is dt.bool_:
        if decimals:
            fail(TypeError, "np.round of booleans takes no decimals: NumPy cannot cast their product to bool")
        return into_out(wrap(t, value_of(t, x, dt.f16)), out, "round", True)
    if to.is_integer:
        if decimals >= 0:
            return into_out(wrap(t, fresh(t, x.value)), out, "round", True)
        unit = 10**-decimals
        half = asarray(call_ufunc(np.rint, (asarray(x, np.float64) / unit,)) * unit, x.dtype)
        return into_out(wrap(t, forced(t, fresh(t, half.value), "A", strides_of_array(t, x))), out, "round", True)
    if decimals == 0:
        return into_out(call_ufunc(np.rint, (x,)), out, "round", True)
    if x._value.dtype.kind == "c":  # NumPy scales and rounds the real and imaginary parts separately
        parts = [round(part, decimals).value for part in (real(x), imag(x))]
        created = forced(t, t.emit("complex", *parts), "K", strides_of_array(t, x))
        return into_out(wrap(t, created), out, "round", True)
    unit = t.builder.constant(10.0 ** abs(decimals), to)
    first, second = ("mul", "div") if decimals > 0 else ("div", "mul")
    created = t.emit(second, t.emit("round", t.emit(first, x.value, unit)), unit)
    return into_out(wrap(t, forced(t, created, "A", strides_of_array(t, x))), out, "round", True)


@implements(np.fix)
def fix(x, out=None):
    return np.trunc(x, out=out)


def isnan_(x):
    return call_ufunc(np.isnan, (x,))


def _of_row(name: str):
    @implements(getattr(np, name))
    def of_row(x, out=None):
        return into_out(op(name, asarray(x)), out, name, True)

    return of_row


isposinf, isneginf, isreal = map(_of_row, ("isposinf", "isneginf", "isreal"))


def _part(x, name: str):
    """The real or imaginary part of a complex array, as a view; of a number, a number."""
    if isinstance(x, TracedScalar):
        kind = float if x._weak is complex else None
        return TracedScalar(x._trace, x._trace.emit(name, x.value), kind, lambda: getattr(x.concrete(), name))
    return op(name, x) if x._scalar else x.step(ComplexPart(name))


@implements(np.real)
def real(val):
    x = asarray(val)
    return _part(x, "real") if x._value.dtype.kind == "c" else x


@implements(np.imag)
def imag(val):
    x = asarray(val)
    if x._value.dtype.kind == "c":
        return _part(x, "imag")
    zeros: Any = np.zeros_like(x, order="A")
    return wrap(x._trace, zeros.value) if x._scalar else zeros.step(ReadOnly())


@implements(np.nan_to_num)
def nan_to_num(x, copy=True, nan=0.0, posinf=None, neginf=None):
    x = asarray(x)
    for new in (nan, posinf, neginf):
        traced = isinstance(new, TracedScalar) and new._value.dtype.kind != "c"
        if new is not None and not traced and not isinstance(new, (int, float, np.integer, np.floating)):
            unsupported("np.nan_to_num by other than real numbers", "give numbers")
    if x._value.dtype.kind == "c":
        parts = [nan_to_num(part, True, nan, posinf, neginf).value for part in (real(x), imag(x))]
        created = x._trace.emit("complex", *parts)
        if not copy:
            store(x._trace, x, created, "nan_to_num")
        return wrap(x._trace, created) if copy or not x.ndim else x
    if not x._value.dtype.is_float:
        return wrap(x._trace, fresh(x._trace, x.value)) if copy or not x.ndim else x
    info = ml_dtypes.finfo(x.dtype)
    kind = x.dtype.type
    y = chosen(call_ufunc(np.isnan, (x,)), kind(nan), x)
    y = chosen(isposinf(x), kind(info.max if posinf is None else posinf), y)
    y = chosen(isneginf(x), kind(info.min if neginf is None else neginf), y)
    if not copy:
        store(x._trace, x, y.value, "nan_to_num")
        return x if x.ndim else wrap(x._trace, y.value)
    return y


@implements(np.select)
def select(condlist, choicelist, default=0):
    if len(condlist) != len(choicelist):
        fail(ValueError, "list of cases must be same length as list of conditions")
    if not condlist:
        fail(ValueError, "select with an empty condition list is not possible")
    t = trace_of(*condlist, *choicelist, default)
    for k, condition in enumerate(condlist):
        if asarray(condition)._value.dtype is not dt.bool_:
            fail(TypeError, f"invalid entry {k} in condlist: should be boolean ndarray")
    choices = [operand(t, x) for x in [*choicelist, default]]
    to = result_type_of(tuple(kind_of(x) for x in choices))
    for choice in choices[:-1]:
        own = np.dtype(kind_of(choice))
        if not np.can_cast(own, to.numpy, "same_kind"):
            check_cast(own, to.numpy, "array data")
    result = asarray(choices[-1], to)
    for condition, choice in zip(reversed(condlist), reversed(choices[:-1])):
        result = where(condition, asarray(choice, to), result)
    forced(t, result.value, "C")
    return result


@implements("astype")
def astype(x, dtype, /, *, copy=True, device=None):
    return x.astype(dtype, copy=copy)


@implements(np.copy)
def copy(a, order="K", subok=False):
    x = asarray(a)
    t = x._trace
    return TracedArray(t, forced(t, fresh(t, x.value), checked_order(order), strides_of_array(t, x)))
