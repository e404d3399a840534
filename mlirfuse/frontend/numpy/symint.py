"""SymInt: a symbolic size, as user code sees it."""

from __future__ import annotations

import numbers
import sys
from typing import TYPE_CHECKING

import numpy as np

from mlirfuse.frontend.numpy.operator_types import Operators
from mlirfuse.frontend.numpy.source import is_internal
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.sizes import Expr, Size
from mlirfuse.runtime.signature import COMPARE

if TYPE_CHECKING:
    from mlirfuse.frontend.numpy.trace_state import Trace


class SymInt(Operators):
    """A symbolic size, as in ``x.shape`` during tracing. Arithmetic stays symbolic; a comparison, ``int()``,
    ``range()`` or use as an index records a guard. In array arithmetic it is a number known at run time."""

    __slots__ = ("size", "trace")
    __array_priority__ = 1000

    def __init__(self, trace: Trace, size: Expr):
        self.trace = trace
        self.size = size

    def __int__(self) -> int:
        return self.trace.concretise(self.size)

    __index__ = __int__

    def __float__(self) -> float:
        return float(int(self))

    def __complex__(self) -> complex:
        return complex(int(self))

    def __hash__(self):
        return hash(int(self))

    def __bool__(self) -> bool:
        return self.trace.decide(self.size, "!=", 0)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """``int``, for user code and for libraries other than NumPy."""
        return type(self) if is_internal(sys._getframe(1).f_code.co_filename) else int

    def __repr__(self) -> str:
        return repr(int(self)) if self.trace.running else f"SymInt({self.size})"

    def __format__(self, spec: str) -> str:
        return format(int(self), spec)

    def __bytes__(self) -> bytes:
        return bytes(int(self))

    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        return self

    def __reduce_ex__(self, protocol):
        return int, (int(self),)

    def __dir__(self) -> list[str]:
        return dir(int)

    def __array__(self, dtype=None, copy=None):
        return np.asarray(int(self), dtype)

    def __neg__(self):
        return self.trace.sym(sz.mul(self.size, -1))

    def __pos__(self):
        return self

    def __abs__(self):
        return self if self.trace.decide(self.size, ">=", 0) else -self

    def __invert__(self):
        return self.trace.sym(-self.size - 1)

    def __round__(self, digits=None):
        return self

    def __trunc__(self):
        return self

    __floor__ = __ceil__ = __trunc__

    def __divmod__(self, other):
        return self // other, self % other

    def __rdivmod__(self, other):
        return other // self, other % self


numbers.Integral.register(SymInt)


def integer_of(x) -> Size | None:
    """A Python or NumPy integer or a SymInt as a size; None for anything else."""
    cls = x.__class__
    if cls is int or cls is bool:
        return int(x)
    if cls is SymInt:
        return x.size
    return int(x) if isinstance(x, np.integer) else None


def _sym_compare(op):
    function = COMPARE[op]

    def method(self, other):
        size = integer_of(other)
        if size is not None:
            return self.trace.decide(self.size, op, size)
        if isinstance(other, float):
            return function(int(self), other)
        return NotImplemented

    return method


for _name, _op in (("eq", "=="), ("ne", "!="), ("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">=")):
    setattr(SymInt, f"__{_name}__", _sym_compare(_op))
