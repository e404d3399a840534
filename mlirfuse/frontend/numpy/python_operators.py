"""Python's operators: for each node of its syntax a ufunc, and a function of the module ``operator``."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

Operators = dict[type[ast.AST], tuple[np.ufunc, Callable]]
BINARY: Operators = {
    ast.Add: (np.add, operator.add),
    ast.Sub: (np.subtract, operator.sub),
    ast.Mult: (np.multiply, operator.mul),
    ast.Div: (np.true_divide, operator.truediv),
    ast.FloorDiv: (np.floor_divide, operator.floordiv),
    ast.Mod: (np.remainder, operator.mod),
    ast.Pow: (np.power, operator.pow),
    ast.BitAnd: (np.bitwise_and, operator.and_),
    ast.BitOr: (np.bitwise_or, operator.or_),
    ast.BitXor: (np.bitwise_xor, operator.xor),
    ast.LShift: (np.left_shift, operator.lshift),
    ast.RShift: (np.right_shift, operator.rshift),
    ast.MatMult: (np.matmul, operator.matmul),
}
COMPARE: Operators = {
    ast.Eq: (np.equal, operator.eq),
    ast.NotEq: (np.not_equal, operator.ne),
    ast.Lt: (np.less, operator.lt),
    ast.LtE: (np.less_equal, operator.le),
    ast.Gt: (np.greater, operator.gt),
    ast.GtE: (np.greater_equal, operator.ge),
}
UNARY: Operators = {
    ast.USub: (np.negative, operator.neg),
    ast.UAdd: (np.positive, operator.pos),
    ast.Invert: (np.invert, operator.invert),
}


def by_squaring(multiply: Callable[[Any, Any], Any], base: Any, exponent: int, one: Any = None) -> Any:
    """``base ** exponent`` for an exponent above 0, with the products that NumPy computes. ``one``: what the first of
    them multiplies, which makes infinite complex numbers NaN."""
    result, square = one, base
    while exponent:
        if exponent & 1:
            result = square if result is None else multiply(result, square)
        exponent >>= 1
        square = multiply(square, square) if exponent else square
    return result


# The exponents of NumPy's complex powers that do not begin with a product by 1, which leaves no -0.0 of a power of 0;
# NumPy gives 0 for these, too.
UNMULTIPLIED = (1, 2, 3)


def name_of(function: Callable) -> str:
    """The name of an operator's method without underscores: "and" for ``operator.and_``."""
    return function.__name__.strip("_")
