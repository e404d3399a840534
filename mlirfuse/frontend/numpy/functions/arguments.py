"""What the functions' arguments have in common."""

from __future__ import annotations

import numpy as np

from mlirfuse.core.errors import UnsupportedError
from mlirfuse.frontend.numpy.operands import asarray, operand, trace_of
from mlirfuse.frontend.numpy.promotion import dtype_of, kind_of, result_type_of
from mlirfuse.frontend.numpy.source import fail


def refuse(name: str, **given) -> None:
    """Raises for arguments that are not supported unless they are what NumPy has by default."""
    for key, value in given.items():
        if value is not None and value is not np._NoValue and value is not True:
            fail(
                UnsupportedError,
                f"np.{name}: the argument '{key}' is not supported in a compiled function"
                + (": use np.where on the operand" if key == "where" else ""),
            )


def joined(arrays, dtype=None) -> tuple:
    """Operands of one type."""
    t = trace_of(*arrays)
    arrays = [operand(t, x) for x in arrays]
    to = result_type_of(tuple(kind_of(x) for x in arrays)) if dtype is None else dtype_of(dtype)
    return t, [asarray(x) for x in arrays], to


def checked_order(order: str | None) -> str:
    """One of NumPy's orders, "K" for None. Raises ValueError for others."""
    if order is None:
        return "K"
    if not isinstance(order, str):
        fail(TypeError, f"order must be str, not {type(order).__name__}")
    if order.upper() not in ("C", "F", "A", "K"):
        fail(ValueError, f"order must be one of 'C', 'F', 'A', or 'K' (got '{order}')")
    return order.upper()
