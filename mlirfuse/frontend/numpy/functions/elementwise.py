"""Elementwise functions other than ufuncs."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from mlirfuse.core.errors import TraceError, UnsupportedError
from mlirfuse.frontend.numpy.functions.composed import traced
from mlirfuse.frontend.numpy.memory_order import checked_order, forced, strides_of_array
from mlirfuse.frontend.numpy.operands import asarray, fresh, operand, trace_of, value_of, wrap
from mlirfuse.frontend.numpy.promotion import kind_of, result_type_of
from mlirfuse.frontend.numpy.registry import implements, lowers
from mlirfuse.frontend.numpy.shapes import aligned
from mlirfuse.frontend.numpy.source import fail, unsupported
from mlirfuse.frontend.numpy.traced_array import TracedArray, TracedScalar
from mlirfuse.frontend.numpy.ufunc_rules import op
from mlirfuse.frontend.numpy.ufuncs import call_ufunc, into_out, store
from mlirfuse.frontend.numpy.views import ComplexPart, ReadOnly
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.graph import Value
from mlirfuse.runtime import numpy_private


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


def _between(t, values, ins, outs):
    x, low, high = values

    def larger_or_smaller(op: str, x: Value, bound: Value) -> Value:
        """``x`` or ``bound``. Where they are equal, which zeros of both signs are, the second operand: as in NumPy
        that is ``x`` for a bound that is one number."""
        return t.emit(op, *aligned(t, [x, bound] if bound.rank else [bound, x]))

    return larger_or_smaller("minimum", larger_or_smaller("maximum", x, low), high)


_CLIPS = numpy_private.clip_ufunc is not None and numpy_private.clip_method is not None
if _CLIPS:
    lowers(numpy_private.clip_ufunc)(_between)
    _clipped = traced(numpy_private.clip_method)


@implements(np.clip)
def clip(a, a_min=np._NoValue, a_max=np._NoValue, out=None, *, min=np._NoValue, max=np._NoValue, **options):
    if not _CLIPS:
        unsupported(f"np.clip in NumPy {np.__version__}", "use np.minimum and np.maximum")
    given = [bound is not np._NoValue for bound in (a_min, a_max)]
    if any(given) and not all(given):
        fail(TypeError, f"clip() missing 1 required positional argument: '{'a_max' if given[0] else 'a_min'}'")
    if any(given) and (min is not np._NoValue or max is not np._NoValue):
        words = "Passing `min` or `max` keyword argument when `a_min` and `a_max` are provided is forbidden."
        fail(ValueError, words)
    low, high = (None if x is np._NoValue else x for x in ((a_min, a_max) if any(given) else (min, max)))
    return _clipped(asarray(a), low, high, out, **options)


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


def _of_row(name: str) -> None:
    @implements(getattr(np, name))
    def of_row(x, out=None):
        return into_out(op(name, asarray(x)), out, name, True)


for _name in ("isposinf", "isneginf", "isreal"):
    _of_row(_name)


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


@implements(np.copyto)
def copyto(dst, src, casting="same_kind", where=True):
    t, to = trace_of(dst, src, where), dt.of(dst.dtype)
    source = operand(t, src)
    kind = kind_of(source)
    if not (
        np.can_cast(kind, to.numpy, casting) if isinstance(kind, np.dtype) else result_type_of((to.numpy, kind)) is to
    ):
        unsupported("np.copyto with such a cast")
    mask = where if where is True else asarray(where)
    if mask is not True and mask._value.dtype is not dt.bool_:
        fail(
            TypeError,
            f"Cannot cast array data from dtype('{mask.dtype}') to dtype('bool') according to the rule 'safe'",
        )
    store(t, dst, value_of(t, source, to), "copyto", casting, mask)


@implements("astype")
def astype(x, dtype, /, *, copy=True, device=None):
    return x.astype(dtype, copy=copy)


@implements(np.copy)
def copy(a, order="K", subok=False):
    x = asarray(a)
    t = x._trace
    return TracedArray(t, forced(t, fresh(t, x.value), checked_order(order), strides_of_array(t, x)))
