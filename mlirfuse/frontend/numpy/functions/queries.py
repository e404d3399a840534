"""Questions about arrays and dtypes: array_equal, can_cast, result_type, isscalar …"""

from __future__ import annotations

import numpy as np

from mlirfuse.frontend.numpy.functions.reductions import all_
from mlirfuse.frontend.numpy.graph_breaks.calls import python_bool
from mlirfuse.frontend.numpy.operands import asarray, operand, trace_of
from mlirfuse.frontend.numpy.promotion import kind_of, result_type_of
from mlirfuse.frontend.numpy.registry import creates, implements
from mlirfuse.frontend.numpy.stand_in import SymInt
from mlirfuse.frontend.numpy.traced_array import TracedArray


@implements(np.allclose)
def allclose(a, b, rtol=1e-05, atol=1e-08, equal_nan=False):
    return python_bool(all_(np.isclose(a, b, rtol, atol, equal_nan)))


@implements(np.array_equal)
def array_equal(a1, a2, equal_nan=False):
    a, b = asarray(a1), asarray(a2)
    if a.ndim != b.ndim or any(n != m for n, m in zip(a.shape, b.shape)):
        return False
    same = a == b
    if equal_nan and a._value.dtype.is_inexact and b._value.dtype.is_inexact:
        same = same | (np.isnan(a) & np.isnan(b))
    return python_bool(all_(same))


@implements(np.can_cast)
def can_cast(from_, to, casting="safe"):
    return np.can_cast(from_.dtype if isinstance(from_, TracedArray) else from_, to, casting)


@implements(np.result_type)
def result_type(*arrays_and_dtypes):
    t = trace_of(*arrays_and_dtypes)
    kinds = tuple(
        np.dtype(x) if isinstance(x, (type, str, np.dtype)) else kind_of(operand(t, x)) for x in arrays_and_dtypes
    )
    return result_type_of(kinds).numpy


@creates(np.isscalar)
def isscalar(element):
    if isinstance(element, TracedArray):
        return element._stands_for is not np.ndarray
    return isinstance(element, SymInt) or np.isscalar(element)


@creates(np.iterable)
def iterable(y):
    return y.ndim > 0 if isinstance(y, TracedArray) else np.iterable(y)


@implements(np.min_scalar_type)
def min_scalar_type(a):
    return asarray(a).dtype
