"""Which values Python's ints of a trace can have, so that none is computed that 64 bits do not hold, and none is
rounded to a float where Python does not round it.

An int among the arguments is assumed to be below 2**31 in magnitude where the function computes with it, as a guard of
the trace; in a call with a larger one, or where more is needed, below the next power of two. From that follow the
ranges of what is computed. Where 64 bits may not hold a result, the caller computes it from this call's values, with
Python's own ints.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from mlirfuse.frontend.numpy.python_operators import COMPARE
from mlirfuse.frontend.numpy.stand_in import SymInt
from mlirfuse.frontend.numpy.traced_array import LeafScalar, TracedScalar, operands_first
from mlirfuse.ir.graph import Value
from mlirfuse.ir.sizes import Size
from mlirfuse.runtime.signature import NumberGuard, NumberStep

if TYPE_CHECKING:
    from mlirfuse.frontend.numpy.trace_state import Trace

Range = tuple[int, int]  # closed
_ASSUMED = 31  # bits of an argument's magnitude
_SIZE = 47  # bits of a size's
_SHIFTS = 5  # bits of numbers by which a small int may be shifted
_COEFFICIENT = 2**10  # up to which multiples of sizes are sizes
_INT64 = (-(2**63), 2**63 - 1)
_FLOAT64 = (-(2**53), 2**53)  # what is exact as a float
_PRODUCT = 26  # bits of numbers whose product is
_COMPARISONS = {function for _, function in COMPARE.values()}


def may_outgrow(t: Trace, function: Callable, operands: Sequence[Any]) -> bool:
    """Whether 64 bits may not hold ``function`` of these ints, by what the trace assumes of them; it assumes more
    where that helps: first what holds for most other calls, too. False where nothing is known of an operand."""

    def outgrows() -> bool:
        found = _of_op(t, function, operands)
        return found is not None and not _within(found, _INT64)

    return outgrows() and _holds_assuming(
        outgrows,
        lambda: _narrow_sizes(t, operands),
        lambda: function is operator.lshift and _narrow_shift(t, *operands),
        lambda: _narrow(t, operands, _SHIFTS),
        lambda: _narrow(t, operands, 0),
    )


def may_round(t: Trace, function: Callable, operands: Sequence[Any]) -> bool:
    """Whether ``function`` compares ints with floats, or divides ints, that may not be exact as floats, by what the
    trace assumes of them: Python does not round them first. Assumes more where that helps. False where nothing is
    known of an operand."""
    ints = [x for x in operands if x.__class__ is SymInt or _kind(x) in (int, bool)]
    if function in _COMPARISONS:
        if len(ints) == len(operands):
            return False
    elif function is not operator.truediv or len(ints) < 2:
        return False

    def rounds() -> bool:
        return not all(found is None or _is_exact(found) for found in [_of(t, x) for x in ints])

    return rounds() and _holds_assuming(
        rounds,
        lambda: _narrow_sizes(t, ints),
        lambda: _narrow(t, ints, _PRODUCT),
        lambda: _narrow(t, ints, _SHIFTS),
        lambda: _narrow(t, ints, 0),
    )


def _holds_assuming(problem: Callable[[], bool], *assumptions: Callable[[], bool]) -> bool:
    """Whether there is still a ``problem`` under all of these assumptions, made one by one while there is. Each returns
    whether it says more than those before."""
    return not any(assume() and not problem() for assume in assumptions)


def _is_exact(found: Range) -> bool:
    """Whether every int of a range is exact as a float."""
    try:
        return _within(found, _FLOAT64) or found[0] == found[1] == float(found[0])
    except OverflowError:
        return False


def _kind(x: Any) -> type | None:
    return x._weak if isinstance(x, TracedScalar) else x.__class__


def size_may_outgrow(t: Trace, size: Size) -> bool:
    """Whether a size may be beyond what the trace assumes of one: below 2**47 in magnitude, by a guard where it has a
    power of an extent or a large coefficient."""
    if isinstance(size, int) or all(
        abs(coefficient) <= _COEFFICIENT and len(set(factors)) == len(factors) for factors, coefficient in size.terms
    ):
        return False
    return not (t.decide(size, "<", 2**_SIZE) and t.decide(size, ">", -(2**_SIZE)))


def _within(found: Range, bounds: Range) -> bool:
    return bounds[0] <= found[0] and found[1] <= bounds[1]


def _of_op(t: Trace, function: Callable, operands: Sequence[Any]) -> Range | None:
    rule = _RULES.get(function)
    ranges = [_of(t, x) for x in operands]
    return None if rule is None or any(r is None for r in ranges) else rule(*ranges)


def _of(t: Trace, x: Any) -> Range | None:
    """The range of an operand; None for what is no int, or computed elsewhere."""
    if x.__class__ is SymInt:
        return t.int_ranges.get(x.size, (-(2**_SIZE), 2**_SIZE))
    if not isinstance(x, TracedScalar):
        return (int(x), int(x)) if isinstance(x, int) else None
    if x._weak not in (int, bool) or x.later:
        return None
    for number in operands_first(x, lambda y: y._value in t.int_ranges):
        t.int_ranges[number._value] = _of_scalar(t, number)
    return t.int_ranges[x._value]


def _of_scalar(t: Trace, x: TracedScalar) -> Range | None:
    if x._weak is bool:
        return 0, 1
    if x._weak is not int or x.later:
        return None
    if isinstance(x, LeafScalar):
        bits = max(_ASSUMED, int(x.spec.value).bit_length())
        return _assume(t, x, 2**bits) if bits < 64 else _INT64
    return _of_op(t, x._compute, x._operands) if x._compute is not None and x._operands else None


def _assume(t: Trace, x: LeafScalar, bound: int) -> Range:
    """Makes ``abs(x) < bound`` a guard of the trace, in place of a weaker one."""
    steps = (
        NumberStep(None, (x.leaf,)),
        NumberStep(operator.abs, (("step", 0),)),
        NumberStep(operator.sub, (("step", 1), ("value", bound))),
    )
    t.number_guards[x.value, "in range", False] = NumberGuard(steps, "<")
    return 1 - bound, bound - 1


def _computed_from(operands: Sequence[Any]) -> list[Any]:
    """The operands, and what they are computed from."""
    found: dict[int, Any] = {}
    left = list(operands)
    while left:
        x = left.pop()
        if id(x) not in found:
            found[id(x)] = x
            left += x._operands if isinstance(x, TracedScalar) else ()
    return list(found.values())


def _narrow_sizes(t: Trace, operands: Sequence[Any]) -> bool:
    """Assumes of the sizes that ``operands`` are computed from that they are as small as arguments; whether that is
    less than before."""
    most = 2**_ASSUMED
    sizes = {x.size for x in _computed_from(operands) if x.__class__ is SymInt} - t.int_ranges.keys()
    small = [s for s in sizes if t.decide(s, "<", most) and t.decide(s, ">", -most)]
    return _with_ranges(t, dict.fromkeys(small, (-most, most)))


def _narrow_shift(t: Trace, x: Any, by: Any) -> bool:
    """Assumes of a number that is an argument that ``x`` may be shifted by it; whether that is less than before."""
    shifted = _of(t, x)
    if shifted is None or not isinstance(by, LeafScalar) or by._weak is not int:
        return False
    bound = 64 - _most(shifted).bit_length()
    if not abs(by.spec.value) < bound <= t.int_ranges[by._value][1]:
        return False
    return _with_ranges(t, {by._value: _assume(t, by, bound)})


def _narrow(t: Trace, operands: Sequence[Any], least: int) -> bool:
    """Assumes of all arguments that ``operands`` are computed from that they have no more bits than in this call, or
    than ``least``; whether that is less than before."""
    ranges = {}
    for x in _computed_from(operands):
        if isinstance(x, LeafScalar) and x._weak is int:
            bound = 2 ** max(least, int(x.spec.value).bit_length())
            known = t.int_ranges.get(x._value)
            if known is not None and known[1] >= bound:
                ranges[x._value] = _assume(t, x, bound)
    return _with_ranges(t, ranges)


def _with_ranges(t: Trace, ranges: dict[Any, Range]) -> bool:
    """Sets the ranges of sizes and arguments, of which those of what is computed follow anew; whether there are any."""
    if ranges:
        t.int_ranges = {x: r for x, r in t.int_ranges.items() if not isinstance(x, Value) or x.op is None} | ranges
    return bool(ranges)


# ---- the ranges of Python's operators


def _corners(function: Callable) -> Callable[..., Range]:
    """Of a function that is monotonic in each operand."""

    def rule(a: Range, b: Range) -> Range:
        found = [function(x, y) for x in a for y in b]
        return min(found), max(found)

    return rule


def _most(*ranges: Range) -> int:
    return max(abs(end) for r in ranges for end in r)


def _as_wide(*ranges: Range) -> Range:
    """Of operators whose results have no more bits than their operands."""
    most = 2 ** _most(*ranges).bit_length()
    return -most, most - 1


def _power(a: Range, b: Range) -> Range:
    bits, most = _most(a).bit_length(), max(b[1], 0)
    return (-(2**64), 2**64) if bits * most > 128 else (-(_most(a) ** most), _most(a) ** most)


def _shifted(a: Range, b: Range) -> Range:
    by = min(max(b[1], 0), 64)
    return min(a[0], a[0] << by), max(a[1], a[1] << by)


_RULES: dict[Callable | None, Callable[..., Range]] = {
    operator.add: _corners(operator.add), operator.sub: _corners(operator.sub), operator.mul: _corners(operator.mul),
    operator.neg: lambda a: (-a[1], -a[0]), operator.invert: lambda a: (~a[1], ~a[0]), operator.pos: lambda a: a,
    operator.abs: lambda a: (0, _most(a)), operator.pow: _power, operator.lshift: _shifted,
    operator.rshift: lambda a, b: _as_wide(a), operator.and_: _as_wide, operator.or_: _as_wide, operator.xor: _as_wide,
    operator.floordiv: lambda a, b: (-_most(a), _most(a)), operator.mod: lambda a, b: (-_most(b), _most(b)),
}  # fmt: skip
