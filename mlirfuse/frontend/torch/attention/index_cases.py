"""Piecewise sympy expressions: integers, booleans and floats selected by conditions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch

_MOST_CASES = 16  # of a piecewise value


class Unknown(Exception):
    """No rule expresses the tensor."""


def number(x: Any) -> tuple[Any, torch.dtype]:
    if isinstance(x, bool):
        return sympy.true if x else sympy.false, torch.bool
    if isinstance(x, int):
        return sympy.Integer(x), torch.int64
    if isinstance(x, float) and not math.isnan(x):
        exact = sympy.Integer(int(x)) if not math.isinf(x) and x == int(x) else sympy.Float(x, 17)
        return ((sympy.oo if x > 0 else -sympy.oo) if math.isinf(x) else exact), torch.float32
    if isinstance(x, sympy.Expr):
        return x, torch.int64
    raise Unknown(f"{x} is not a number")


class Choice(sympy.Expr):
    """The first value whose condition holds, as ``value, condition, value, condition, …``; the last condition is
    true."""

    def __new__(cls, *args: Any) -> Any:
        """The value itself where no condition decides."""
        kept: list[tuple[Any, Any]] = []
        for value, condition in zip(args[::2], args[1::2]):
            if condition != sympy.false:
                kept.append((value, condition))
            if condition == sympy.true:
                break
        while len(kept) > 1 and kept[-2][0] == kept[-1][0]:
            kept[-2:] = [(kept[-1][0], sympy.true)]
        if len(kept) == 1:
            return kept[0][0]
        return super().__new__(cls, *itertools.chain.from_iterable(kept))


def cases(body: Any) -> list[tuple[Any, Any]]:
    """The (value, condition) pairs of ``body``; the first condition that holds selects, the last always holds."""
    if isinstance(body, Choice):
        return list(zip(body.args[::2], body.args[1::2]))
    if is_condition(body):
        return [(sympy.Integer(1), body), (sympy.Integer(0), sympy.true)]
    return [(body, sympy.true)]


def is_condition(body: Any) -> bool:
    return isinstance(body, sympy.logic.boolalg.Boolean) and not isinstance(body, sympy.Symbol)


def chosen(pairs: Sequence[tuple[Any, Any]]) -> Any:
    """A piecewise value: the first value whose condition holds."""
    if len(pairs) > _MOST_CASES:
        raise Unknown("too many cases")
    return Choice(*itertools.chain.from_iterable(pairs))


def each(function: Callable[..., Any], *bodies: Any) -> Any:
    """``function`` applied to piecewise values."""
    pairs = []
    for combination in itertools.product(*map(cases, bodies)):
        condition = sympy.And(*(c for _, c in combination))
        if condition != sympy.false:
            pairs.append((function(*(value for value, _ in combination)), condition))
    return chosen(pairs)


def disjunction(pairs: Sequence[tuple[Any, Any]]) -> Any:
    """The condition under which the selected boolean is true."""
    out: list[Any] = []
    before: list[Any] = []
    for value, condition in pairs:
        out.append(sympy.And(condition, value, *(sympy.Not(c) for c in before)))
        before.append(condition)
    return sympy.Or(*out)


def compare(kind: str, a: Any, b: Any) -> Any:
    """A comparison of integers, or of constants."""

    def leaf(x: Any, y: Any) -> Any:
        numbers = x.is_number and y.is_number
        if not numbers and not (x.is_integer and y.is_integer):
            raise Unknown("a comparison of floats")
        if kind in ("eq", "ne"):
            found = sympy.sympify(bool(x == y)) if numbers else sympy.Eq(x, y)
            return found if kind == "eq" else sympy.Not(found)
        more, less = (x, y) if kind in ("gt", "ge") else (y, x)
        strict = kind in ("gt", "lt")
        if numbers:
            return sympy.sympify(bool(more > less if strict else more >= less))
        return sympy.Ge(sympy.expand(more - less - int(strict)), 0)

    return disjunction([
        (leaf(x, y), sympy.And(c, d)) for (x, c), (y, d) in itertools.product(cases(a), cases(b))
    ])  # fmt: skip


def cast(body: Any, source: torch.dtype, target: torch.dtype) -> Any:
    """A cast. Raises :class:`Unknown` for one that rounds."""
    if source is target or (source is not torch.bool and target is torch.int64 and not source.is_floating_point):
        return body
    if target is torch.bool:
        return compare("ne", body, sympy.Integer(0))
    if source is torch.bool:
        return chosen(cases(body))
    pairs = cases(body)
    if target.is_floating_point and all(value.is_number for value, _ in pairs):
        return chosen([(rounded(value, target), c) for value, c in pairs])
    if not source.is_floating_point and target in (torch.int32, torch.int16, torch.int8, torch.uint8):
        if all(value.is_number and torch.iinfo(target).min <= value <= torch.iinfo(target).max for value, _ in pairs):
            return body
        if target is torch.int32:  # indices; no tensor is large enough for them to wrap
            return body
    raise Unknown(f"{source} as {target}")


def rounded(value: Any, dtype: torch.dtype) -> Any:
    return number(float(torch.tensor(float(value), dtype=dtype)))[0]
