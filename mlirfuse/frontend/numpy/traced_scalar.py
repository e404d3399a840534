"""Stand-ins for numbers, whose values the function may need during tracing."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mlirfuse.frontend.numpy.symint import SymInt
from mlirfuse.frontend.numpy.traced_array import TracedArray
from mlirfuse.ir.graph import Value
from mlirfuse.runtime.signature import ArgSpec

if TYPE_CHECKING:
    from mlirfuse.frontend.numpy.trace_state import Trace


class TracedScalar(TracedArray):
    """A number that is an argument or computed from some: known at run time. Where tracing needs it (an axis, a shape,
    a condition …), its value in this call becomes a constant with a guard."""

    __slots__ = ("_compute", "_found", "_operands", "_weak", "later")

    def __init__(
        self,
        trace: Trace,
        value: Value,
        weak: type | None,
        compute: Callable[..., Any] | None,
        operands: Sequence = (),
        later: bool = False,
    ):
        """``compute`` returns the value in this call from those of ``operands``; None where a subclass overrides
        :meth:`concrete`. ``later``: a kernel computes it before the next graph break."""
        super().__init__(trace, value, scalar=True)
        self._weak = weak
        self._compute, self._operands = compute, operands
        self._found: tuple[Any, ...] = ()  # the value, once known
        self.later: bool = later or any(isinstance(x, TracedScalar) and x.later for x in operands)

    def concrete(self):
        """The value in this call; specializes the trace to it. Evaluates operands first and without recursion: a loop's
        result may be as deep as its number of iterations."""
        left: list[TracedScalar] = [self]
        while left:
            last = left[-1]
            before = [x for x in last._operands if isinstance(x, TracedScalar) and x._compute and not x._found]
            if before and not last._found:
                left += before
                continue
            left.pop()
            if not last._found:
                operands = [
                    x.concrete() if isinstance(x, TracedScalar) else int(x) if isinstance(x, SymInt) else x
                    for x in last._operands
                ]
                last._found = (last._compute(*operands),)  # type: ignore[misc]
        return self._found[0]

    def known(self):
        return self.concrete()

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

    def item(self, *args):
        return self.concrete().item() if isinstance(self.concrete(), np.generic) else self.concrete()

    tolist = item

    def is_integer(self) -> bool:
        return self.concrete().is_integer()

    def bit_length(self) -> int:
        return self.concrete().bit_length()

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.concrete(), dtype)


numbers.Number.register(TracedScalar)


class LeafScalar(TracedScalar):
    """A number that is an argument."""

    __slots__ = ("leaf", "spec")

    def __init__(self, trace: Trace, value: Value, spec: ArgSpec, leaf: int):
        is_python = spec.weak or spec.value.__class__ is bool
        super().__init__(
            trace, value, {"b": bool, "i": int, "f": float, "c": complex}[spec.dtype.kind] if is_python else None, None
        )
        self.spec = spec
        self.leaf = leaf

    def concrete(self):
        self._trace.static_leaves[self.leaf] = self.spec.value
        return self.spec.value


class LeafArray(TracedArray):
    """A 0-d array on the host that is an argument. Until it is written into, the trace can specialize to its value."""

    __slots__ = ("leaf", "spec")
    leaf: int
    spec: ArgSpec

    def known(self):
        """The value in this call; specializes the trace to it. None where it is unknown."""
        if self._buffer.version or self.spec.value is None:
            return None
        self._trace.static_leaves[self.leaf] = self.spec.value
        return np.asarray(self.spec.value)
