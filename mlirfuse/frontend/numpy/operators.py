"""Python's operators on traced arrays, traced numbers and sizes.

On numbers that are known only at run time, guards record the outcome of a branch, and whether the operator raises an
error (a zero divisor, a negative shift count, a power of zero or of a negative number)."""

from __future__ import annotations

import numbers
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mlirfuse.frontend.numpy.effects import give_up
from mlirfuse.frontend.numpy.int_ranges import may_outgrow, may_round, size_may_outgrow
from mlirfuse.frontend.numpy.operands import concrete, is_array, operand, trace_of, value_of
from mlirfuse.frontend.numpy.promotion import loop_types
from mlirfuse.frontend.numpy.python_operators import BINARY, COMPARE, UNARY, name_of
from mlirfuse.frontend.numpy.registry import UFUNCS
from mlirfuse.frontend.numpy.source import at_users_line
from mlirfuse.frontend.numpy.stand_in import StandIn, SymInt, integer_of
from mlirfuse.frontend.numpy.traced_array import LeafScalar, TracedArray, TracedScalar, is_number, operands_first
from mlirfuse.frontend.numpy.ufuncs import call_ufunc, store
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.runtime import signature
from mlirfuse.runtime.signature import OPPOSITE, NumberGuard, NumberStep

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
    if function is not operator.pow or complex in (_weak_kind(left), _weak_kind(right)):
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
    with at_users_line(ArithmeticError, TypeError, ValueError):
        return function(*map(concrete, operands))


def _compares(t, x: Any, op: str, decides: bool = False) -> bool:
    """Whether ``x op 0``; ``decides``: see :class:`NumberGuard`."""
    if x.__class__ is SymInt:
        return t.decide(x.size, op, 0)
    if not isinstance(x, TracedScalar):
        return bool(signature.COMPARE[op](x, 0))
    if x.later:  # branches on this alone, not on the value
        return bool(call_ufunc(_UFUNCS[op], (TracedArray(t, x.value, scalar=True), 0)))
    guard, given = _guard_of(t, x)
    value = guard.value(given.__getitem__, t.hints) if guard else None
    if guard is None or value is None or value != value:  # no comparison with a NaN holds
        return bool(signature.COMPARE[op](x.concrete(), 0))
    holds = bool(signature.COMPARE[op](value, 0))
    guard = NumberGuard(guard.steps, op if holds else OPPOSITE[op], decides)
    t.number_guards.setdefault((x.value, op, decides), guard)
    return holds


def _guard_of(t, x: TracedScalar) -> tuple[NumberGuard | None, dict[int, Any]]:
    """The guard ``x != 0`` and the values of its arguments in this call; None where the computation of ``x`` is long,
    or reads more than arguments and sizes."""
    steps: list[NumberStep] = []
    number: dict[int, int] = {}
    given: dict[int, Any] = {}
    for last in operands_first(x, lambda y: id(y) in number, _MOST_STEPS):
        if isinstance(last, LeafScalar):
            given[last.leaf] = last.spec.value
            step = NumberStep(None, (last.leaf,))
        elif last._compute is None or not last._operands or not all(map(is_number, last._operands)):
            return None, given
        else:
            step = NumberStep(last._compute, tuple(_operand(t, y, number) for y in last._operands))
        number[id(last)] = len(steps)
        steps.append(step)
        if len(steps) > _MOST_STEPS:
            return None, given
    return (NumberGuard(tuple(steps), "!=") if id(x) in number else None), given


def _operand(t, x: Any, number: dict[int, int]) -> tuple[str, Any]:
    if isinstance(x, TracedScalar):
        return "step", number[id(x)]
    return ("size", t.canonical(x.size)) if x.__class__ is SymInt else ("value", x)


_UNARY = (*UNARY.values(), (np.absolute, operator.abs))
_OPERATOR_UFUNCS = {f: u for u, f in (*BINARY.values(), *COMPARE.values(), *_UNARY)}


def scalar_operator(function, *inputs):
    """A Python operator on numbers, one of them known only at run time, with Python's semantics."""
    t = trace_of(*inputs)
    ufunc = _OPERATOR_UFUNCS[function]
    operands = [operand(t, x) for x in inputs]
    weak: list[Any] = [_weak_kind(x) for x in operands]
    if any(w is None for w in weak):
        return call_ufunc(ufunc, operands)
    if ufunc is np.power and weak[1] is int and operands[1].__class__ is not int:
        operands[1] = concrete(operands[1])
    if not any(isinstance(x, StandIn) for x in operands) or is_refused(t, function, operands):
        return python_value(function, operands)
    kind = type(function(*[_PROTOTYPES[w] if x.__class__ is not int else x for w, x in zip(weak, operands)]))
    if (kind is int and may_outgrow(t, function, operands)) or may_round(t, function, operands):
        return python_value(function, operands)
    if ufunc is np.power and kind is float:
        weak = [float] * 2  # also int to a negative int
    kinds = tuple([int if w is bool and kind is not bool else np.dtype(bool) if w is bool else w for w in weak])
    with at_users_line(TypeError):
        types = loop_types(ufunc, kinds)
    value = UFUNCS[ufunc](
        t, [value_of(t, x, d) for x, d in zip(operands, types)], types[: ufunc.nin], types[ufunc.nin :]
    )
    return TracedScalar(t, value, kind, function, operands)


_PROTOTYPES = {int: 1, float: 1.0, complex: 1j, bool: True}


def _weak_kind(x) -> type | None:
    """The Python type of a Python number; None for NumPy's numbers and arrays."""
    if isinstance(x, TracedArray):
        return x._weak
    return int if x.__class__ is SymInt else None if isinstance(x, np.generic) else x.__class__


def _binary_method(ufunc, function, reflected: bool):
    def method(self, other):
        if ufunc is np.power and not reflected:
            kind, dtype = other.__class__, self._value.dtype
            if kind is int and other == 2 and (dtype is dt.bool_ or dtype.kind == "c") and not self._scalar:
                # bool ** 2 is int8, bool to other powers int64; np.power(z, 2) has no -0.0 of zeros
                return call_ufunc(np.square, (self,))
            if kind is int and other == -1 and dtype.kind == "c" and not self._scalar:
                return call_ufunc(np.reciprocal, (self,))  # np.power(z, -1) is NaN of infinite numbers
            if kind is float and other == 0.5 and (dtype is dt.f16 or (dtype.kind == "c" and not self._scalar)):
                return call_ufunc(np.sqrt, (self,))  # np.power(x, 0.5) differs at -0.0 and -inf
        if other.__class__ not in _PLAIN and not (
            isinstance(other, (TracedArray, np.generic, np.ndarray, int, float, list, tuple)) or is_array(other)
        ):
            return NotImplemented
        pair = (other, self) if reflected else (self, other)
        if isinstance(other, (list, tuple)) and self._scalar:
            if function is operator.mul:
                return NotImplemented  # Python repeats the sequence
            if self._weak is not None:
                return python_value(function, pair)
        if self._weak is not None and (other.__class__ in _PLAIN or getattr(other, "_weak", None) is not None):
            return scalar_operator(function, *pair)
        return call_ufunc(ufunc, pair)

    return method


_PLAIN = {int, float, complex, bool, SymInt}


def _comparison_method(ufunc, function):
    arithmetic = _binary_method(ufunc, function, False)

    def method(self, other):
        equality = ufunc in (np.equal, np.not_equal)
        if other is None or isinstance(other, (str, bytes, type, np.dtype)):
            if isinstance(self, TracedScalar):
                return function(self.concrete(), other) if equality else NotImplemented
            if not equality:
                return NotImplemented
            answer = ufunc is np.not_equal
            if self.ndim:
                return np.full_like(self, answer, dtype=bool)
            return answer if self._scalar and other is None else np.bool_(answer)
        result = arithmetic(self, other)
        if result is NotImplemented and equality:  # otherwise Python would compare identities
            give_up(f"a comparison with a {type(other).__name__}")
        return result

    return method


def _in_place_method(ufunc, function):
    arithmetic = _binary_method(ufunc, function, False)

    def method(self, other):
        result = arithmetic(self, other)
        if self._scalar or result is NotImplemented:
            return result
        return store(self._trace, self, result.value, ufunc.__name__)

    return method


def _unary_method(ufunc, function):
    def method(self):
        return scalar_operator(function, self) if self._weak is not None else call_ufunc(ufunc, (self,))

    return method


_METHODS: dict[str, Callable] = {"__contains__": lambda self, item: (self == item).any()}
for _u, _f in BINARY.values():
    _METHODS[f"__{name_of(_f)}__"] = _binary_method(_u, _f, False)
    _METHODS[f"__r{name_of(_f)}__"] = _binary_method(_u, _f, True)
    _METHODS[f"__i{name_of(_f)}__"] = _in_place_method(_u, _f)
for _u, _f in _UNARY:
    _METHODS[f"__{name_of(_f)}__"] = _unary_method(_u, _f)
for _u, _f in COMPARE.values():
    _METHODS[f"__{name_of(_f)}__"] = _comparison_method(_u, _f)
    setattr(TracedScalar, f"__{name_of(_f)}__", _METHODS[f"__{name_of(_f)}__"])  # which has a __hash__ of its own
for _name, _method in _METHODS.items():
    setattr(TracedArray, _name, _method)
TracedScalar.__bool__ = is_true  # type: ignore[assignment,method-assign]


def _sym_arith(function, a, b):
    if isinstance(a, (list, tuple, str)) or isinstance(b, (list, tuple, str)):
        return function(int(a) if isinstance(a, SymInt) else a, int(b) if isinstance(b, SymInt) else b)
    if isinstance(a, (numbers.Number, np.generic, SymInt)) and isinstance(b, (numbers.Number, np.generic, SymInt)):
        return scalar_operator(function, a, b)
    return NotImplemented


_ON_SIZES = {  # operators whose result is a size
    operator.add: operator.add, operator.sub: operator.sub, operator.mul: sz.mul, operator.floordiv: sz.floordiv,
    operator.mod: sz.mod, operator.pow: lambda size, times: sz.mul(1, *[size] * times),
}  # fmt: skip


def _sym_method(function, reflected: bool):
    def method(self, other, modulo=None):
        a, b = (other, self) if reflected else (self, other)
        if modulo is not None:
            return python_value(pow, (a, b, modulo))
        x, y = integer_of(a), integer_of(b)
        power = function is operator.pow and not (isinstance(b, int) and 0 <= b <= 8)
        if x is None or y is None or power or function not in _ON_SIZES:
            return _sym_arith(function, a, b)
        if function in (operator.floordiv, operator.mod) and self._trace.decide(y, "==", 0):
            return python_value(function, (1, 0))  # raises Python's error
        size = _ON_SIZES[function](x, y)
        return python_value(function, (a, b)) if size_may_outgrow(self._trace, size) else self._trace.sym(size)

    return method


for _u, _f in BINARY.values():
    if _f is not operator.matmul:
        setattr(SymInt, f"__{name_of(_f)}__", _sym_method(_f, False))
        setattr(SymInt, f"__r{name_of(_f)}__", _sym_method(_f, True))
