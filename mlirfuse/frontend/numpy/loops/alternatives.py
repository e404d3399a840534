"""Numbers whose type is only known at run time: ``max(0, x[i])`` is a Python int or a NumPy float.

They are computed in the type that holds both. A result must have one type, or two again: the code is emitted for each
combination of types to find out, and kept for the common one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from mlirfuse.frontend.numpy.loops.code import Code
from mlirfuse.frontend.numpy.loops.values import NotOutlinable, Number, NumberType, joined, require
from mlirfuse.ir import dtypes as dt
from mlirfuse.lowering.emitter import Val

_WEAK_BITS = 40  # limit of a Python int stored as another type, exactly


def merged(e: Code, condition: Val, a: Number, b: Number) -> Number:
    """``a`` where ``condition``, else ``b``."""
    kind = joined(a.type, b.type)
    assert isinstance(kind, NumberType)
    val = e.select(condition, e.cast(a.val, kind.dtype), e.cast(b.val, kind.dtype))
    flags = [flag_of(e, v, kind) for v in (a, b)]
    weak = {other for other, _ in flags if other is not None}
    require(len(weak) <= 1, "a number of three possible types")
    other = (weak.pop(), e.select(condition, flags[0][1], flags[1][1])) if weak else None
    return Number(val, kind, max(a.bits, b.bits), other=other)


def flag_of(e: Code, found: Number, kind: NumberType) -> tuple[NumberType | None, Val]:
    """The alternative type of a number, other than ``kind``, and the condition under which it has it."""
    if found.type == kind:
        return found.other or (None, e.const(False, dt.bool_))
    require(found.other is None, "a number of three possible types")
    return found.type, e.const(True, dt.bool_)


def computed(e: Code, compute: Callable[..., Any], operands: list) -> Any:
    """``compute(*operands)``, where some operands may have one of two types."""
    mixed = [k for k, v in enumerate(operands) if isinstance(v, Number) and v.other is not None]
    if not mixed:
        return compute(*operands)
    require(len(mixed) <= 2, "too many numbers whose types are only known at run time")
    before, errors = len(e.lines), len(e.errors)
    try:
        return _same_errors(e, compute, operands, mixed)
    except _OtherErrors:
        del e.lines[before:], e.errors[errors:]
        return _by_branches(e, compute, operands, mixed[0])


class _OtherErrors(NotOutlinable):
    """Which errors an operation may raise depends on a type that is only known at run time."""


def _by_branches(e: Code, compute: Callable[..., Any], operands: list, at: int) -> Number:
    """``compute(*operands)`` by a branch on the type of the operand ``at``."""
    operand = operands[at]
    run = lambda given: computed(e, compute, [*operands[:at], given, *operands[at + 1 :]])  # noqa: E731
    other, usual = _other(e, operand), _usual(operand)
    found = either(e, operand.other[1], lambda: run(other), lambda: run(usual))
    assert found is not None
    return found


def _usual(v: Number) -> Number:
    return Number(v.val, v.type, v.bits)


def _other(e: Code, v: Number) -> Number:
    """The number in its other type."""
    assert v.other is not None
    kind = v.other[0]
    return Number(e.cast(v.val, kind.dtype), kind, min(_WEAK_BITS, v.dtype.bits - 2))


def either(e: Code, condition: Val, then: Callable[[], Any], otherwise: Callable[[], Any]) -> Number | None:
    """``then()`` where ``condition``, else ``otherwise()``, of which only that one is evaluated: numbers of one type
    each, or both None."""
    kept: list[tuple[Number, str]] = []

    def keep(compute: Callable[[], Any]) -> Callable[[], None]:
        def run() -> None:
            found = compute()
            if found is not None:
                one_type = isinstance(found, Number) and found.other is None
                require(one_type, "a choice other than of numbers, or of one whose type is only known at run time")
                kept.append((found, e.slot_with(found.val)))

        return run

    e.branch(condition, keep(then), keep(otherwise))
    if not kept:
        return None
    require(len(kept) == 2, "a choice of a number and an array")
    a, b = (Number(e.load(slot, v.dtype), v.type, v.bits) for v, slot in kept)
    return merged(e, condition, a, b)


def _same_errors(e: Code, compute: Callable[..., Any], operands: list, mixed: list[int]) -> Any:
    errors = len(e.errors)
    result = compute(*(_usual(v) if k in mixed else v for k, v in enumerate(operands)))
    errors = len(e.errors) - errors
    flag, weak = None, None
    for combination in itertools.product((False, True), repeat=len(mixed)):
        if not any(combination):
            continue
        kind = _type_with(e, compute, operands, dict(zip(mixed, combination)), errors)
        if kind == _type(result):
            continue
        number = isinstance(kind, NumberType) and isinstance(result, Number)
        require(number and weak in (None, kind), "a result whose type is only known at run time")
        weak, here = kind, e.const(True, dt.bool_)
        for k, is_other in zip(mixed, combination):
            condition = operands[k].other[1]
            here = e.and_(here, condition if is_other else e.not_(condition))
        flag = here if flag is None else e.or_(flag, here)
    if weak is None or flag is None:
        return result
    require(joined(weak, result.type) == result.type, "a result whose type is only known at run time")
    return Number(result.val, result.type, result.bits, other=(weak, flag))


def _type_with(e: Code, compute: Callable[..., Any], operands: list, others: dict[int, bool], errors: int) -> Any:
    """The result's type where some operands have their other type. Discards the emitted code."""
    lines, failures, sites = len(e.lines), len(e.errors), e.sites
    given = list(operands)
    for k, is_other in others.items():
        given[k] = _other(e, operands[k]) if is_other else _usual(operands[k])
    kind = _type(compute(*given))
    more = len(e.errors) - failures
    del e.lines[lines:], e.errors[failures:]
    if more != errors or e.sites != sites:
        raise _OtherErrors("an error that depends on a type only known at run time")
    return kind


def _type(found: Any) -> Any:
    return found.type if isinstance(found, Number) else getattr(found, "dtype", None)
