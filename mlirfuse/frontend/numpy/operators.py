"""Python's operators on traced arrays, traced numbers and sizes."""

from __future__ import annotations

import numbers
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from mlirfuse.frontend.numpy.effects import give_up
from mlirfuse.frontend.numpy.operands import concrete, is_array, operand, trace_of, value_of
from mlirfuse.frontend.numpy.promotion import loop_types
from mlirfuse.frontend.numpy.python_errors import is_refused, is_true, python_value
from mlirfuse.frontend.numpy.python_operators import BINARY, COMPARE, UNARY, name_of
from mlirfuse.frontend.numpy.registry import UFUNCS
from mlirfuse.frontend.numpy.source import fail
from mlirfuse.frontend.numpy.symint import SymInt, integer_of
from mlirfuse.frontend.numpy.traced_array import TracedArray
from mlirfuse.frontend.numpy.traced_scalar import TracedScalar
from mlirfuse.frontend.numpy.ufuncs import call_ufunc, store
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz

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
    if not any(isinstance(x, (TracedArray, SymInt)) for x in operands) or is_refused(t, function, operands):
        return python_value(function, operands)
    kind = type(function(*[_PROTOTYPES[w] if x.__class__ is not int else x for w, x in zip(weak, operands)]))
    if ufunc is np.power and kind is float:
        weak = [float] * 2  # also int to a negative int
    kinds = tuple([int if w is bool and kind is not bool else np.dtype(bool) if w is bool else w for w in weak])
    try:
        types = loop_types(ufunc, kinds)
    except TypeError as error:
        fail(TypeError, str(error))
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
            if kind is int and other == 2 and dtype is dt.bool_ and not self._scalar:
                return call_ufunc(np.square, (self,))  # bool ** 2 is int8, bool to other powers int64
            if kind is float and other == 0.5 and dtype is dt.f16:
                return call_ufunc(np.sqrt, (self,))  # np.power(x, 0.5) differs at -0.0 and -inf
        if other.__class__ not in _PLAIN and not (
            isinstance(other, (TracedArray, np.generic, np.ndarray, int, float, list, tuple)) or is_array(other)
        ):
            return NotImplemented
        pair = (other, self) if reflected else (self, other)
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
        if self._scalar:
            return arithmetic(self, other)
        result = arithmetic(self, other)
        if result is NotImplemented:
            return result
        t = self._trace
        store(t, self, result.value, ufunc.__name__)
        return self

    return method


def _unary_method(ufunc, function):
    def method(self):
        return scalar_operator(function, self) if self._weak is not None else call_ufunc(ufunc, (self,))

    return method


_METHODS: dict[str, Callable] = {
    "__divmod__": lambda self, other: (self // other, self % other),
    "__rdivmod__": lambda self, other: (other // self, other % self),
    "__contains__": lambda self, item: (self == item).any(),
}
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


def _sym_method(function, on_sizes, reflected):
    def method(self, other):
        size = integer_of(other)
        if size is None:
            return _sym_arith(function, *((other, self) if reflected else (self, other)))
        a, b = (size, self.size) if reflected else (self.size, size)
        if function in (operator.floordiv, operator.mod) and self.trace.decide(b, "==", 0):
            return python_value(function, (1, 0))  # raises Python's error
        return self.trace.sym(on_sizes(a, b))

    return method


for _f, _on_sizes in (
    (operator.add, operator.add),
    (operator.sub, operator.sub),
    (operator.mul, sz.mul),
    (operator.floordiv, sz.floordiv),
    (operator.mod, sz.mod),
):
    setattr(SymInt, f"__{name_of(_f)}__", _sym_method(_f, _on_sizes, False))
    setattr(SymInt, f"__r{name_of(_f)}__", _sym_method(_f, _on_sizes, True))


def _sym_power(self, other, modulo=None):
    if modulo is None and isinstance(other, int) and 0 <= other <= 8:
        return self.trace.sym(sz.mul(1, *[self.size] * other))
    return _sym_arith(operator.pow, self, other)


def _sym_operator(function, reflected: bool):
    """An operator whose result is no size."""
    return lambda self, other: _sym_arith(function, *((other, self) if reflected else (self, other)))


for _f in (operator.truediv, operator.lshift, operator.rshift, operator.and_, operator.or_, operator.xor):
    setattr(SymInt, f"__{name_of(_f)}__", _sym_operator(_f, False))
    setattr(SymInt, f"__r{name_of(_f)}__", _sym_operator(_f, True))
setattr(SymInt, "__pow__", _sym_power)  # noqa: B010
setattr(SymInt, "__rpow__", _sym_operator(operator.pow, True))  # noqa: B010
