"""Stand-ins: what stands for an array, a number or a size while a function is traced."""

from __future__ import annotations

import math
import numbers
import sys
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from mlirfuse.frontend.numpy.source import is_internal
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.sizes import Expr, Size
from mlirfuse.runtime.signature import COMPARE

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.lib.mixins import NDArrayOperatorsMixin

    from mlirfuse.frontend.numpy.trace_state import Trace

    class _Operators(NDArrayOperatorsMixin):
        __array_ufunc__: ClassVar[Callable[..., Any]]
        __array_function__: ClassVar[Callable[..., Any]]
        __torch_function__: ClassVar[Any]
else:

    class _Operators:
        """Operators and protocols that operators.py and protocols.py attach to each class of stand-ins; those modules
        need the functions, which need these classes."""

        __slots__ = ()


class StandIn(_Operators):
    """What user code sees in place of an object of the class :attr:`_stands_for`."""

    __slots__ = ()
    __array_priority__ = 1000
    _trace: Trace
    _stands_for: Any

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """The class that it stands for, for user code and for libraries other than NumPy."""
        return type(self) if is_internal(sys._getframe(1).f_code.co_filename) else self._stands_for

    def __dir__(self) -> list[str]:
        return dir(self._stands_for)

    def __divmod__(self, other):
        return self // other, self % other

    def __rdivmod__(self, other):
        return other // self, other % self


class NumberStandIn(StandIn):
    """A stand-in for a number. Where Python needs the number itself, the trace is specialized to it."""

    __slots__ = ()

    def concrete(self) -> Any:
        """The value in this call; specializes the trace to it."""
        raise NotImplementedError

    def __hash__(self) -> int:  # consistent with __eq__ of numbers
        return hash(self.concrete())

    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        return self

    def __round__(self, digits=None):
        return round(self.concrete(), digits)

    def __trunc__(self):
        return math.trunc(self.concrete())

    def __floor__(self):
        return math.floor(self.concrete())

    def __ceil__(self):
        return math.ceil(self.concrete())

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.concrete(), dtype)


class SymInt(NumberStandIn):
    """A symbolic size, as in ``x.shape`` during tracing. Arithmetic stays symbolic; a comparison, ``int()``,
    ``range()`` or use as an index records a guard. In array arithmetic it is a number known at run time."""

    __slots__ = ("_trace", "size")
    _stands_for = int

    def __init__(self, trace: Trace, size: Expr):
        self._trace = trace
        self.size = size

    def concrete(self) -> int:
        return self._trace.concretise(self.size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.concrete() if hasattr(int, name) else 0, name)

    __int__ = __index__ = concrete  # Python also takes it in float(), complex() and bytes()

    def __bool__(self) -> bool:
        return self._trace.decide(self.size, "!=", 0)

    def __repr__(self) -> str:
        return repr(int(self)) if self._trace.running else f"SymInt({self.size})"

    def __format__(self, spec: str) -> str:
        return format(int(self), spec)

    def __reduce_ex__(self, protocol):
        return int, (int(self),)

    def __neg__(self):
        return self._trace.sym(sz.mul(self.size, -1))

    def __pos__(self):
        return self

    __trunc__ = __floor__ = __ceil__ = __pos__

    def __abs__(self):
        return self if self._trace.decide(self.size, ">=", 0) else -self

    def __invert__(self):
        return self._trace.sym(-self.size - 1)

    def __round__(self, digits=None):
        return self


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
            return self._trace.decide(self.size, op, size)
        if isinstance(other, float):
            return function(int(self), other)
        return NotImplemented

    return method


for _name, _op in (("eq", "=="), ("ne", "!="), ("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">=")):
    setattr(SymInt, f"__{_name}__", _sym_compare(_op))
