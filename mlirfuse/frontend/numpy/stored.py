"""What NumPy stores of a value that is written into an array: its conversions, and what it refuses to store."""

from __future__ import annotations

from typing import Any

import numpy as np

from mlirfuse.frontend.numpy.operands import contains_traced, operand, trace_of, value_of, wrap
from mlirfuse.frontend.numpy.promotion import dtype_of, int_range
from mlirfuse.frontend.numpy.source import at_users_line, fail
from mlirfuse.frontend.numpy.traced_array import LeafScalar, TracedArray, TracedScalar
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.dtypes import DType

ELEMENT, PART, SELECTED = 0, slice(None), [0]  # how a write addresses an array of one element


def stored(t, new: Any, dtype: DType, index: Any = PART, rank: int | None = None) -> Any:
    """``new`` as an operand of a write into elements of ``dtype``.

    Numbers and lists that are known are converted by NumPy itself, whose errors they raise: TypeError for a complex
    number or a sequence, OverflowError and ValueError for numbers that the type cannot hold. ``index``: a key of this
    kind, for an array of one element. ``rank``: the most dimensions that a list may have.
    """
    if isinstance(new, TracedScalar) and new._weak is float and dtype.is_integer:
        new = new.concrete()
    if isinstance(new, TracedScalar) and new._weak is complex and dtype.kind not in "cb":
        _refused(1j, dtype, index)
    if index is not SELECTED and isinstance(new, LeafScalar) and new._weak is None:
        new = checked(t, new, dtype)
    zero_d = isinstance(new, np.ndarray) and not new.ndim
    if new.__class__ in (int, float, complex, bool) or isinstance(new, np.generic) or zero_d:
        return operand(t, _converted(new, dtype, index))
    if isinstance(new, (list, tuple)):
        if index == ELEMENT:
            _refused(type(new)([1]), dtype, index)
            return operand(t, _converted(bool(new), dtype, index))  # of bool, which a sequence has as any object
        source = _known_list(new, dtype) if not contains_traced(new) else new
        source = operand(t, source)
        if rank is not None and isinstance(source, TracedArray) and source.ndim > rank:
            fail(
                ValueError,
                "setting an array element with a sequence. The requested array would exceed the maximum number of "
                f"dimension of {rank}.",
            )
        return source
    source = operand(t, new)
    if index == ELEMENT and isinstance(source, TracedArray) and source.ndim:
        single = all(n == 1 for n in source._value.shape)
        _refused(np.ones((1 if single else 2,) * source.ndim), dtype, index)
    return source


def checked(t, new: LeafScalar, dtype: DType) -> Any:
    """``new``, a number among the arguments that is written, as one of NumPy's, into elements of ``dtype``. For signed
    integers NumPy checks it: where no guard of the trace tells that it fits, this is its value."""
    own = new._value.dtype
    if not (dtype.is_integer and dtype.is_signed) or own is dt.bool_:
        return new
    low, high = int_range(dtype)
    if not own.is_integer or not low <= new.spec.value <= high:
        return new.concrete()
    if int_range(own)[0] < low or int_range(own)[1] > high:
        t.scalar_ranges.setdefault(new.leaf, set()).add((low, high))
    return new


def _converted(new: Any, dtype: DType, index: Any) -> Any:
    """NumPy's element for a known number or sequence."""
    if isinstance(new, (np.complexfloating, np.ndarray)) and dtype.kind not in "cb":
        new = new.real  # without NumPy's warning
    element = np.zeros(1, dtype.numpy)
    with at_users_line(TypeError, ValueError, OverflowError), np.errstate(all="ignore"):
        element[index] = new
    return element[0]


_refused = _converted  # of an example of a value: raises NumPy's error for such a write, if this NumPy refuses it


def _known_list(new: list | tuple, dtype: DType) -> np.ndarray:
    with at_users_line(TypeError, ValueError, OverflowError), np.errstate(all="ignore"):
        return np.array(new, dtype.numpy)


def elements(given: Any, dtype: Any) -> Any:
    """The list ``given`` with its numbers converted, one by one, to elements of ``dtype``; what is no list of traced
    values, and a list without a dtype, as it is."""
    if dtype is None or not (isinstance(given, (list, tuple)) and contains_traced(given)):
        return given
    t, to = trace_of(given), dtype_of(dtype)
    return [
        elements(x, dtype)
        if isinstance(x, (list, tuple))
        else x
        if getattr(x, "ndim", 0)
        else wrap(t, value_of(t, stored(t, x, to, ELEMENT), to))
        for x in given
    ]
