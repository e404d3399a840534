"""Reductions that ignore NaN."""

from __future__ import annotations

import numpy as np

from mlirfuse.frontend.numpy.functions.elementwise import chosen, isnan_
from mlirfuse.frontend.numpy.functions.reductions import all_, float_type, max, min, prod, sum
from mlirfuse.frontend.numpy.operands import asarray
from mlirfuse.frontend.numpy.registry import implements
from mlirfuse.frontend.numpy.source import unsupported
from mlirfuse.frontend.numpy.ufuncs import call_ufunc, into_out


def _nan_aware(x, neutral):
    return chosen(isnan_(x), x.dtype.type(neutral), x) if x._value.dtype.is_inexact else x


@implements(np.nansum)
def nansum(a, axis=None, dtype=None, out=None, keepdims=False, initial=np._NoValue, where=True):
    return sum(_nan_aware(asarray(a), 0), axis, dtype, out, keepdims, initial, where)


@implements(np.nanprod)
def nanprod(a, axis=None, dtype=None, out=None, keepdims=False, initial=np._NoValue, where=True):
    return prod(_nan_aware(asarray(a), 1), axis, dtype, out, keepdims, initial, where)


def _nan_extreme(name: str, reduce, lowest: float):
    @implements(getattr(np, name))
    def extreme(a, axis=None, out=None, keepdims=False):
        x = asarray(a)
        if not x._value.dtype.is_inexact:
            return reduce(x, axis, out, keepdims)
        nans = isnan_(x)
        result = reduce(chosen(nans, x.dtype.type(lowest), x), axis, keepdims=keepdims)
        return into_out(chosen(all_(nans, axis, keepdims=keepdims), x.dtype.type(np.nan), result), out, name)

    return extreme


nanmax, nanmin = _nan_extreme("nanmax", max, -np.inf), _nan_extreme("nanmin", min, np.inf)


@implements(np.nanmean)
def nanmean(a, axis=None, dtype=None, out=None, keepdims=False):
    x = asarray(a)
    to = float_type(x, dtype)
    count = sum(~isnan_(x), axis, to, keepdims=keepdims)
    return into_out(nansum(asarray(x, to), axis, keepdims=keepdims) / count, out, "nanmean")


@implements(np.nanvar)
def nanvar(a, axis=None, dtype=None, out=None, ddof=0, keepdims=False):
    x = asarray(a)
    if x._value.dtype.kind != "c" and float_type(x, dtype).kind == "c":
        unsupported("np.nanvar of real numbers in a complex dtype")
    x = asarray(x, float_type(x, dtype))
    valid = ~isnan_(x)
    count = sum(valid, axis, x.dtype, keepdims=True)
    d = chosen(valid, x - nansum(x, axis, keepdims=True) / count, x.dtype.type(0))
    squares = d.real * d.real + d.imag * d.imag if x._value.dtype.kind == "c" else d * d
    left = sum(valid, axis, squares.dtype, keepdims=keepdims) - ddof
    result = sum(squares, axis, keepdims=keepdims) / left
    return into_out(chosen(left > 0, result, squares.dtype.type(np.nan)), out, "nanvar")


@implements(np.nanstd)
def nanstd(a, axis=None, dtype=None, out=None, ddof=0, keepdims=False):
    return into_out(call_ufunc(np.sqrt, (nanvar(a, axis, dtype, None, ddof, keepdims),)), out, "nanstd")
