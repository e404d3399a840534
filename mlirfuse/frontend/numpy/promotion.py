"""NumPy's type promotion."""

from __future__ import annotations

import functools

import numpy as np

from mlirfuse.core.errors import UnsupportedError
from mlirfuse.frontend.numpy.source import at_users_line, fail
from mlirfuse.frontend.numpy.stand_in import SymInt
from mlirfuse.frontend.numpy.traced_array import TracedArray
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.dtypes import DType


def kind_of(x):
    """An operand's dtype, or int, float or complex for a Python number, which promotes weakly."""
    if isinstance(x, TracedArray):
        weak = x._weak
        if weak is None or weak is bool:
            return x._value.dtype.numpy
        return weak
    if x.__class__ is SymInt:
        return int
    if x.__class__ is bool:
        return np.dtype(bool)
    if isinstance(x, np.generic):
        return x.dtype
    return x.__class__


def array_kind(x) -> np.dtype:
    """The dtype of an operand that NumPy makes an array of: a Python number's is NumPy's own for it."""
    kind = kind_of(x)
    return np.dtype(_OF_PYTHON.get(kind, kind))


_OF_PYTHON = {int: np.int64, float: np.float64, complex: np.complex128}


def int_range(dtype: DType) -> tuple[int, int]:
    return (0, 2**dtype.bits - 1) if dtype.kind == "u" else (-(2 ** (dtype.bits - 1)), 2 ** (dtype.bits - 1) - 1)


def sum_type(dtype: DType) -> DType:
    """The dtype in which NumPy adds and multiplies elements of this one: integers of 64 bits."""
    if dtype.kind in "bi":
        return dt.i64
    return dt.u64 if dtype.kind == "u" else dtype


def dtype_of(dtype) -> DType:
    """An element type from a dtype argument. Raises UnsupportedError."""
    with at_users_line(TypeError, kind=UnsupportedError):
        return dt.of(dtype)


def _bfloat16_as_half(find):
    """``find(…, kinds)``, a NumPy type query, with bfloat16 promoted as float16 is; bfloat16 with float16 gives
    float32.

    NumPy handles ml_dtypes' bfloat16 like any user dtype, with two differences to correct: a Python float counts as
    float16, so ``x * 2.0`` would be float32 where ``x * 2`` is bfloat16; and functions without a bfloat16 loop (matmul,
    clip, degrees) return float32.
    """

    @functools.cache
    @functools.wraps(find)
    def types(*given):
        *what, kinds = given
        if _BFLOAT16 not in kinds or _HALF in kinds:
            return find(*what, kinds)
        found = find(*what, tuple(_HALF if k == _BFLOAT16 else k for k in kinds))
        return tuple(dt.bf16 if d is dt.f16 else d for d in found)

    return types


_BFLOAT16, _HALF = dt.bf16.numpy, dt.f16.numpy


@_bfloat16_as_half
def loop_types(ufunc, kinds: tuple) -> tuple[DType, ...]:
    """The dtypes of the loop that NumPy selects for the ufunc: inputs, then outputs."""
    outputs = (None,) * (ufunc.nin + ufunc.nout - len(kinds))
    found = ufunc.resolve_dtypes(kinds + outputs)
    if any(d.kind == "O" for d in found):  # NumPy compares two Python ints exactly, as objects
        found = ufunc.resolve_dtypes(tuple(np.dtype(np.int64) if k is int else k for k in kinds) + outputs)
    return tuple(dt.of(d) for d in found)


@_bfloat16_as_half
def _result_type(kinds: tuple) -> tuple[DType]:
    return (dt.of(np.result_type(*[{int: 0, float: 0.0, complex: 0j}.get(k, k) for k in kinds])),)


def result_type_of(kinds: tuple) -> DType:
    """NumPy's common dtype of dtypes, and of int, float and complex for Python numbers."""
    with at_users_line(TypeError):
        return _result_type(kinds)[0]


def resolve(ufunc, operands):
    try:
        return loop_types(ufunc, tuple([kind_of(x) for x in operands]))
    except TypeError as error:
        fail(TypeError if "supported" not in str(error) or "dtype" not in str(error) else UnsupportedError, str(error))
