"""Scalar ops of other dialects, which control flow needs: their evaluation on Python's numbers and bools.

The interpreter and host programs use them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from mlirfuse.ir.graph import Op

_ORDERED = (operator.lt, operator.le, operator.gt, operator.ge)
_COMPARED = (operator.eq, operator.ne, *_ORDERED, *_ORDERED)  # indexed by arith.cmpi's predicate


def _element(x, *index):
    """Return one element of a NumPy or torch array as a number; torch waits for the device."""
    return x[tuple(index)].item()


def _truncated(a: int, b: int) -> int:
    """Return the quotient rounded towards 0, as ``arith.divsi``."""
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


# name -> a function of the operands
OPS: dict[str, Callable[..., Any] | None] = {
    "arith.constant": None,
    "arith.cmpi": None,
    "arith.addi": operator.add,
    "arith.subi": operator.sub,
    "arith.muli": operator.mul,
    "arith.divsi": _truncated,
    "arith.remsi": lambda a, b: a - b * _truncated(a, b),
    "arith.floordivsi": operator.floordiv,
    "arith.ceildivsi": lambda a, b: -(-a // b),
    "arith.minsi": min,
    "arith.maxsi": max,
    "arith.andi": operator.and_,
    "arith.ori": operator.or_,
    "arith.xori": operator.xor,
    "arith.index_cast": operator.pos,
    "arith.select": lambda condition, a, b: a if condition else b,
    "tensor.extract": _element,
    "tensor.dim": lambda x, axis: x.shape[axis],
}


def function(op: Op) -> Callable[..., Any]:
    """Return the Python function that computes ``op``, one of :data:`OPS`."""
    if op.name == "arith.constant":
        value = constant(op)
        return lambda: value
    if op.name == "arith.cmpi":
        return _COMPARED[int(str(op.attrs["predicate"]).split()[0])]
    found = OPS[op.name]
    assert found is not None, op.name
    return found


def constant(op: Op) -> bool | int | float:
    """Return the value of an ``arith.constant``."""
    text = str(op.attrs["value"])
    if text in ("true", "false"):
        return text == "true"
    return float(text.split()[0]) if "." in text else int(text.split()[0])
