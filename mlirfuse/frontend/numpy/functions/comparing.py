"""Comparison of arrays: isclose, allclose, array_equal."""

from __future__ import annotations

import numpy as np

from mlirfuse.frontend.numpy.functions.elementwise import isnan_
from mlirfuse.frontend.numpy.functions.reductions import all_
from mlirfuse.frontend.numpy.graph_breaks.calls import python_bool
from mlirfuse.frontend.numpy.operands import asarray, contains_traced, operand, trace_of
from mlirfuse.frontend.numpy.promotion import kind_of
from mlirfuse.frontend.numpy.registry import implements


@implements(np.isclose)
def isclose(a, b, rtol=1e-05, atol=1e-08, equal_nan=False):
    t = trace_of(a, b, rtol, atol)
    x, y = asarray(a) if contains_traced(a) else operand(t, a), asarray(b) if contains_traced(b) else operand(t, b)
    if kind_of(y) is int or isinstance(y, bool):
        y = y * 1.0  # Python's numbers do not widen x
    elif not isinstance(y, (float, complex)):
        y = asarray(y)
        y = y if y._value.dtype.is_inexact else asarray(y, np.float64)
    close = (abs(x - y) <= atol + rtol * abs(y)) & np.isfinite(y) | (x == y)
    if equal_nan:
        close = close | (isnan_(asarray(x)) & isnan_(y))
    return close


@implements(np.allclose)
def allclose(a, b, rtol=1e-05, atol=1e-08, equal_nan=False):
    return python_bool(all_(isclose(a, b, rtol, atol, equal_nan)))


@implements(np.array_equal)
def array_equal(a1, a2, equal_nan=False):
    a, b = asarray(a1), asarray(a2)
    if a.ndim != b.ndim or any(n != m for n, m in zip(a.shape, b.shape)):
        return False
    same = a == b
    if equal_nan and a._value.dtype.is_inexact and b._value.dtype.is_inexact:
        same = same | (isnan_(a) & isnan_(b))
    return python_bool(all_(same))
