"""Conversion of users' operands to traced arrays and values of a dtype."""

from __future__ import annotations

from typing import Any

import numpy as np

from mlirfuse.core.errors import TraceError
from mlirfuse.frontend.numpy.promotion import array_kind, dtype_of, int_range
from mlirfuse.frontend.numpy.source import at_users_line, fail
from mlirfuse.frontend.numpy.stand_in import NumberStandIn, StandIn, SymInt
from mlirfuse.frontend.numpy.trace_state import current
from mlirfuse.frontend.numpy.traced_array import LeafScalar, TracedArray
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.dtypes import DType
from mlirfuse.ir.graph import Value


def trace_of(*xs):
    """The trace that the operands belong to, or the current one."""
    for x in xs:
        if isinstance(x, StandIn):
            return x._trace
        if isinstance(x, (list, tuple)) and x and (found := trace_of(*x)) is not None:
            return found
    return current()


def is_array(x) -> bool:
    return isinstance(x, np.ndarray) or hasattr(x, "__cuda_array_interface__") or hasattr(x, "__dlpack__")


def operand(t, x):
    """``x`` as a traced array, a SymInt, or a Python or NumPy number. Raises TraceError for other types."""
    if isinstance(x, TracedArray):
        if x._trace is not t:
            fail(
                TraceError,
                "an array traced by another compiled function was used here: it escaped from that function's trace",
            )
        return x
    if x.__class__ in (int, float, complex, bool, SymInt) or isinstance(x, np.generic):
        return x
    if isinstance(x, np.ndarray) and x.ndim == 0:
        return x[()]
    if is_array(x):
        return t.capture(x)
    if isinstance(x, (list, tuple)):
        if contains_traced(x):
            return np.stack([asarray(item) for item in x])
        return t.capture(np.asarray(x))
    for kind in _PYTHON_NUMBERS:
        if isinstance(x, kind):
            return kind(x)
    fail(TraceError, f"a {type(x).__name__} cannot be used with a traced array: pass an array or a number")


_PYTHON_NUMBERS: tuple[Any, ...] = (int, float, complex)  # also of classes derived from them


def contains_traced(x) -> bool:
    if isinstance(x, StandIn):
        return True
    return isinstance(x, (list, tuple)) and any(contains_traced(item) for item in x)


def value_of(t, x, dtype: DType, wrapping: bool = False) -> Value:
    """``x`` as a value of ``dtype``. Raises OverflowError for a Python int that does not fit, unless ``wrapping``."""
    if isinstance(x, TracedArray):
        value = x.value
        if value.dtype is dtype:
            return value
        if not wrapping:
            _check_weak_int(t, x, dtype)
        return t.emit("cast", value, to=dtype)
    if x.__class__ is SymInt:
        if dtype.is_integer and dtype.bits < 64 and not wrapping and not t.decide(x.size, "<=", int_range(dtype)[1]):
            fail(OverflowError, f"Python integer {t.hint(x.size)} out of bounds for {dtype.numpy.name}")
        value = t.builder.size(t.canonical(x.size))
        return value if dtype is dt.i64 else t.emit("cast", value, to=dtype)
    if x.__class__ is int and dtype.is_integer:
        low, high = int_range(dtype)
        if not low <= x <= high:
            if not wrapping:
                fail(OverflowError, f"Python integer {x} out of bounds for {dtype.numpy.name}")
            x = (x - low) % 2**dtype.bits + low
    with at_users_line(OverflowError):
        return t.builder.constant(x, dtype)


def _check_weak_int(t, x, dtype: DType) -> None:
    """Checks that a Python int known at run time fits its dtype, as NumPy checks it: a guard of the trace."""
    if x._weak is not int or not dtype.is_integer:
        return
    low, high = int_range(dtype)
    if isinstance(x, LeafScalar) and low <= x.spec.value <= high:
        value = x.spec.value
        t.scalar_ranges.setdefault(x.leaf, set()).add((low, high))
    elif dtype is dt.i64:
        return
    else:
        value = x.concrete()
    if not low <= value <= high:
        fail(OverflowError, f"Python integer {value} out of bounds for {dtype.numpy.name}")


def wrap(t, value: Value) -> TracedArray:
    """A new traced array; a number where it is 0-d, as NumPy's functions return."""
    return TracedArray(t, value, scalar=not value.shape)


def asarray(x, dtype=None) -> TracedArray:
    """``x`` as a traced array; with ``dtype``, converted."""
    t = trace_of(x)
    x = operand(t, x)
    if not isinstance(x, TracedArray):
        x = TracedArray(t, value_of(t, x, dt.of(array_kind(x))))
    if dtype is not None and x._value.dtype is not dtype_of(dtype):
        return wrap(t, value_of(t, x, dtype_of(dtype)))
    return x


def typed(x: TracedArray) -> TracedArray:
    """``x``; a Python number as an array of NumPy's type for it, which promotion does not treat as weak."""
    return x if x._weak is None else TracedArray(x._trace, x.value)


def inexact(x) -> TracedArray:
    """``x`` as a traced array of floating-point or complex numbers."""
    x = asarray(x)
    return x if x._value.dtype.is_inexact else asarray(x, np.float64)


def fresh(t, value: Value) -> Value:
    return t.emit("copy", value)


def concrete(x):
    """The value of a number in this call; specializes the trace to it."""
    return x.concrete() if isinstance(x, NumberStandIn) else x
