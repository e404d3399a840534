"""What the dispatcher compares of the numbers that a specialization's guards read.

A guard ``h*h != 0`` needs the sign of ``h*h``, not ``h``: the dispatcher computes it at each call (see
``native/conditions.h``), so that a new number costs no more than one that has been there. Of guards with other steps
than sums, products, quotients and comparisons of Python's numbers and of extents the numbers themselves are in the key.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from mlirfuse.ir import sizes as sz
from mlirfuse.runtime.signature import NumberGuard

if TYPE_CHECKING:
    from mlirfuse.runtime.specializations import Specialization

Steps = tuple[tuple[Any, ...], ...]
_CODES: dict[Callable[..., Any], str] = {
    operator.add: "add",
    operator.sub: "subtract",
    operator.mul: "multiply",
    operator.truediv: "divide",
    operator.neg: "negative",
    operator.abs: "absolute",
    abs: "absolute",
    operator.lt: "less",
    operator.le: "at_most",
    operator.eq: "equal",
}
_SWAPPED = {operator.gt: "less", operator.ge: "at_most"}
_MOST_STEPS = 64  # as native/conditions.h
_MOST_IN_ALL = 128  # steps of a specialization, each some nanoseconds a call: a value in the key costs less
_NUMBERS = (int, float, bool)


class _Unsupported(Exception):
    """A guard that the dispatcher cannot evaluate."""


def split(specialization: Specialization, leaves: Sequence) -> tuple[set[Steps], set[int]]:
    """The conditions whose signs decide the guards of ``specialization`` on numbers, and the leaves whose values have
    to be compared instead. ``leaves``: those of a call that it was created for."""
    assumes = specialization.assumes
    if not specialization.shape_cacheable or specialization.identical is not None:
        return set(), assumes.values
    conditions: set[Steps] = set()
    values = {leaf for leaf, _ in assumes.constants}
    for guard in assumes.number_guards:
        try:
            conditions.add(_Builder(specialization, leaves).guard(guard))
        except _Unsupported:
            values |= guard.leaves
    bounds: list[tuple[int, sz.Size]] = [(k, n) for k, pairs in assumes.scalar_ranges.items() for p in pairs for n in p]
    bounds += [(k, n) for k, pairs in assumes.index_ranges.items() for p in pairs for n in p]
    for leaf, bound in bounds:
        try:
            conditions.add(_Builder(specialization, leaves).distance(leaf, bound))
        except _Unsupported:
            values.add(leaf)
    conditions = {steps for steps in conditions if not {s[1] for s in steps if s[0] == "leaf"} <= values}
    if sum(map(len, conditions)) > _MOST_IN_ALL:
        return set(), assumes.values
    return conditions, values


class _Builder:
    """Steps of a condition; each method returns the index of its result's."""

    def __init__(self, specialization: Specialization, leaves: Sequence):
        self.specialization, self.leaves = specialization, leaves
        self.steps: list[tuple[Any, ...]] = []

    def _add(self, *step: Any) -> int:
        if len(self.steps) == _MOST_STEPS:
            raise _Unsupported
        self.steps.append(step)
        return len(self.steps) - 1

    def guard(self, guard: NumberGuard) -> Steps:
        at: list[int] = []
        for step in guard.steps:
            if step.compute is None:
                at.append(self._leaf(step.operands[0]))
            elif step.compute is operator.pos:
                at.append(self._operand(step.operands[0], at))
            elif step.compute in _CODES:
                at.append(self._add(_CODES[step.compute], *[self._operand(x, at) for x in step.operands]))
            elif step.compute in _SWAPPED:
                at.append(self._add(_SWAPPED[step.compute], *[self._operand(x, at) for x in reversed(step.operands)]))
            elif step.compute is operator.ne:
                equal = self._add("equal", *[self._operand(x, at) for x in step.operands])
                at.append(self._add("subtract", self._value(1), equal))
            else:
                raise _Unsupported
        return tuple(self.steps)

    def distance(self, leaf: int, bound: sz.Size) -> Steps:
        """``leaf - bound``, whose sign says on which side of the bound the number is."""
        self._add("subtract", self._leaf(leaf), self._size(bound))
        return tuple(self.steps)

    def _leaf(self, leaf: int) -> int:
        if type(self.leaves[leaf]) not in _NUMBERS:
            raise _Unsupported
        return self._add("leaf", leaf)

    def _operand(self, operand: tuple[str, Any], at: list[int]) -> int:
        what, x = operand
        if what == "step":
            return at[x]
        return self._size(x) if what == "size" else self._value(x)

    def _value(self, x: Any) -> int:
        if type(x) not in _NUMBERS or (type(x) is int and not -(2**63) <= x < 2**63):
            raise _Unsupported
        return self._add("value", x)

    def _size(self, size: sz.Size) -> int:
        """A polynomial of extents."""
        if isinstance(size, int):
            return self._value(size)
        total = None
        for atoms, coefficient in size.terms:
            term = self._value(coefficient)
            for atom in atoms:
                if atom.op != "sym":
                    raise _Unsupported
                argument, what, axis = self.specialization.assumes.symbols[atom.args[0]]
                if what != "shape":
                    raise _Unsupported
                extent = self._add("extent", self.specialization.leaf_of_arg[argument], axis)
                term = self._add("multiply", term, extent)
            total = term if total is None else self._add("add", total, term)
        return self._value(0) if total is None else total
