"""Queries of dtypes: can_cast, result_type, isscalar …"""

from __future__ import annotations

import numpy as np

from mlirfuse.frontend.numpy.operands import asarray, operand, trace_of
from mlirfuse.frontend.numpy.promotion import kind_of, result_type_of
from mlirfuse.frontend.numpy.registry import creates, implements
from mlirfuse.frontend.numpy.symint import SymInt
from mlirfuse.frontend.numpy.traced_array import TracedArray


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


@implements(np.common_type)
def common_type(*arrays):
    kinds = tuple(asarray(a).dtype if asarray(a)._value.dtype.is_inexact else np.dtype("f8") for a in arrays)
    return result_type_of(kinds).numpy.type


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
