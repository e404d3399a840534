"""Guards on numbers that are known only at run time: the outcome of a branch, and whether Python's operators raise an
error (a zero divisor, a negative shift count, a power of zero or of a negative number)."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mlirfuse.frontend.numpy.operands import concrete
from mlirfuse.frontend.numpy.source import fail
from mlirfuse.frontend.numpy.symint import SymInt
from mlirfuse.frontend.numpy.traced_array import TracedArray
from mlirfuse.frontend.numpy.traced_scalar import LeafScalar, TracedScalar
from mlirfuse.frontend.numpy.ufuncs import call_ufunc
from mlirfuse.runtime.signature import COMPARE, OPPOSITE, NumberGuard, NumberStep

_MOST_STEPS = 64  # of a guard's computation, which each new value repeats
_UFUNCS = {"==": np.equal, "<": np.less, ">": np.greater}
_DIVISIONS = {operator.truediv, operator.floordiv, operator.mod, divmod}
_SHIFTS = {operator.lshift, operator.rshift}


def is_refused(t, function: Callable, operands: Sequence[Any]) -> bool:
    """Whether Python's ``function`` of these numbers raises an error or, for a power, gives a complex number of real
    ones. Records what the answer depends on as guards of the trace."""
    if len(operands) != 2:
        return False
    left, right = operands
    if function in _DIVISIONS:
        return _compares(t, right, "==")
    if function in _SHIFTS:
        return _compares(t, right, "<")
    if function is not operator.pow or complex in (_kind(left), _kind(right)):
        return function is operator.pow and right.__class__ is int and right < 0 and _compares(t, left, "==")
    if isinstance(right, TracedScalar):
        return not _compares(t, left, ">")
    fractional = isinstance(right, float) and not right.is_integer()
    return (right < 0 and _compares(t, left, "==")) or (fractional and _compares(t, left, "<"))


def is_true(x: TracedScalar) -> bool:
    """``bool(x)``: a guard of the trace, or the value in this call, to which the trace is then specialized."""
    return bool(x.concrete()) if x.later or x._found else _compares(x._trace, x, "!=", True)


def python_value(function: Callable, operands: Sequence[Any]) -> Any:
    """``function`` of the values in this call, to which the trace is specialized. Raises Python's error at the user's
    line."""
    try:
        return function(*map(concrete, operands))
    except (ArithmeticError, TypeError, ValueError) as error:
        return fail(type(error), str(error))


def _kind(x: Any) -> type | None:
    return x._weak if isinstance(x, TracedScalar) else x.__class__


def _compares(t, x: Any, op: str, decides: bool = False) -> bool:
    """Whether ``x op 0``; ``decides``: see :class:`NumberGuard`."""
    if x.__class__ is SymInt:
        return t.decide(x.size, op, 0)
    if not isinstance(x, TracedScalar):
        return bool(COMPARE[op](x, 0))
    if x.later:  # branches on this alone, not on the value
        return bool(call_ufunc(_UFUNCS[op], (TracedArray(t, x.value, scalar=True), 0)))
    guard, given = _guard_of(t, x)
    value = guard.value(given.__getitem__, t.hints) if guard else None
    if guard is None or value is None or value != value:  # no comparison with a NaN holds
        return bool(COMPARE[op](x.concrete(), 0))
    holds = bool(COMPARE[op](value, 0))
    guard = NumberGuard(guard.steps, op if holds else OPPOSITE[op], decides)
    t.number_guards.setdefault((x.value, op, decides), guard)
    return holds


def _guard_of(t, x: TracedScalar) -> tuple[NumberGuard | None, dict[int, Any]]:
    """The guard ``x != 0`` and the values of its arguments in this call; None where the computation of ``x`` is long,
    or reads more than arguments and sizes."""
    steps: dict[int, NumberStep] = {}
    number: dict[int, int] = {}
    given: dict[int, Any] = {}
    left: list[TracedScalar] = [x]
    while left:
        last = left[-1]
        if id(last) in number:
            left.pop()
            continue
        before = [y for y in last._operands if isinstance(y, TracedScalar) and id(y) not in number]
        if before:
            left += before
            if len(left) > _MOST_STEPS:
                return None, given
            continue
        left.pop()
        if isinstance(last, LeafScalar):
            given[last.leaf] = last.spec.value
            step = NumberStep(None, (last.leaf,))
        elif last._compute is None or not last._operands or any(_is_array(y) for y in last._operands):
            return None, given
        else:
            step = NumberStep(last._compute, tuple(_operand(t, y, number) for y in last._operands))
        number[id(last)] = len(steps)
        steps[len(steps)] = step
        if len(steps) > _MOST_STEPS:
            return None, given
    return NumberGuard(tuple(steps.values()), "!="), given


def _is_array(x: Any) -> bool:
    return isinstance(x, TracedArray) and not isinstance(x, TracedScalar)


def _operand(t, x: Any, number: dict[int, int]) -> tuple[str, Any]:
    if isinstance(x, TracedScalar):
        return "step", number[id(x)]
    return ("size", t.canonical(x.size)) if x.__class__ is SymInt else ("value", x)
