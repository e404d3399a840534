"""Checks and conversions shared by the functions' arguments."""

from __future__ import annotations

import numpy as np

from mlirfuse.core.errors import UnsupportedError
from mlirfuse.frontend.numpy.operands import asarray, operand, trace_of
from mlirfuse.frontend.numpy.promotion import array_kind, dtype_of, result_type_of
from mlirfuse.frontend.numpy.source import fail
from mlirfuse.frontend.numpy.ufuncs import check_cast


def refuse(name: str, **given) -> None:
    """Raises for unsupported arguments that differ from NumPy's defaults."""
    for key, value in given.items():
        if value is not None and value is not np._NoValue and value is not True:
            fail(
                UnsupportedError,
                f"np.{name}: the argument '{key}' is not supported in a compiled function"
                + (": use np.where on the operand" if key == "where" else ""),
            )


def joined(arrays, dtype=None, casting="same_kind") -> tuple:
    """The operands as arrays, so that Python's numbers have NumPy's types, and their common dtype. Raises TypeError
    where ``casting`` forbids the cast to ``dtype``."""
    t = trace_of(*arrays)
    arrays = [operand(t, x) for x in arrays]
    to = result_type_of(tuple(array_kind(x) for x in arrays)) if dtype is None else dtype_of(dtype)
    arrays = [asarray(x) for x in arrays]
    for x in arrays if dtype is not None or casting != "same_kind" else ():
        check_cast(x.dtype, to.numpy, "array data", casting)
    return t, arrays, to
