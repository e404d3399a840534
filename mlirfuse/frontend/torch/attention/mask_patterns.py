"""Classifies attention masks as functions of (batch, head, query, key), so that kernels need no mask tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from sympy.core.function import AppliedUndef

from mlirfuse.frontend.torch.attention.index_cases import cases, disjunction
from mlirfuse.frontend.torch.attention.index_expressions import INPUT, Indexed, dim, same, size_of

QUERY, KEY = sympy.Symbol("query", integer=True, nonnegative=True), sympy.Symbol("key", integer=True, nonnegative=True)


_DOCUMENTS, _PADDING, _CHOICE = "documents given by values", "padding given by values", "a choice of masks"
_POSITIONS = "an order of positions given by values"
_HIDDEN_KEYS, _INDICES = "keys that are hidden from all queries", "a pattern of indices"
_EMPTY_ROWS = "rows that may hide every key"
_INPUT = "an input of the graph"
_BLOCKS = {_INPUT, _POSITIONS, _DOCUMENTS, _PADDING, _CHOICE, _HIDDEN_KEYS, _INDICES, _EMPTY_ROWS}


@dataclass(frozen=True)
class MaskPattern:
    """Which of ``keys`` keys each of ``queries`` queries sees.

    Query ``q`` sees key ``k`` where ``k >= q - window_left`` and ``k <= q + causal_offset`` (None: no limit), and where
    all ``other_conditions`` hold: texts for ``explain`` about what depends on values, or has no kernel argument.
    """

    queries: sympy.Expr
    keys: sympy.Expr
    causal_offset: sympy.Expr | None = None
    window_left: sympy.Expr | None = None
    other_conditions: tuple[str, ...] = ()

    @property
    def hides_nothing(self) -> bool:
        """Whether every query sees every key."""
        return self.causal_offset is None and self.window_left is None and not self.other_conditions

    @property
    def is_causal(self) -> bool:
        """Whether query ``q`` sees the keys up to ``q``, as with ``is_causal=True``."""
        return self.causal_offset == 0 and self.window_left is None and not self.other_conditions

    @property
    def is_lower_right(self) -> bool:
        """Whether it is causal with the last query aligned to the last key, optionally within a window."""
        ends_together = self.causal_offset is not None and same(self.causal_offset, self.keys - self.queries)
        return ends_together and not self.other_conditions

    @property
    def has_blocks(self) -> bool:
        """Whether it hides exactly, by False or -inf, and in blocks rather than here and there."""
        return _BLOCKS.issuperset(self.other_conditions)

    def __str__(self) -> str:
        names = (
            []
            if self.causal_offset is None
            else ["causal" if self.causal_offset == 0 else f"keys up to query + {self.causal_offset}"]
        )
        names += [] if self.window_left is None else [f"a window of {sympy.expand(self.window_left + 1)}"]
        return " and ".join([*names, *self.other_conditions]) or "nothing hidden"


def pattern_of(mask: Indexed, queries: Any, keys: Any) -> MaskPattern:
    """The pattern of a boolean mask, or of an additive float mask; ``queries``, ``keys``: attention's extents.
    Raises :class:`mlirfuse.frontend.torch.attention.index_expressions.Unknown`."""
    rank, q, k = len(mask.shape), size_of(queries), size_of(keys)
    at = {dim(rank - 1): KEY}
    if rank > 1:
        at[dim(rank - 2)] = QUERY
    body = mask.body.xreplace(at)
    shown = body if mask.dtype is torch.bool else _shown(body, mask.dtype)
    if shown is None:
        return MaskPattern(q, k, other_conditions=("added values",))
    exact = mask.dtype is torch.bool or all(v in (0, -sympy.oo) for v, _ in cases(body))
    found = _conjunction(_parts(shown, q, k), q, k)
    if not exact and not _every_row_sees(found):
        return MaskPattern(q, k, other_conditions=("rows that hide every key by a finite number",))
    if mask.dtype is not torch.bool and not _every_row_sees(found):
        return MaskPattern(q, k, found.causal_offset, found.window_left, (*found.other_conditions, _EMPTY_ROWS))
    return found


def _shown(body: Any, dtype: torch.dtype) -> Any:
    """Where an additive mask is 0, if it hides everything else."""
    hides = torch.finfo(dtype).min
    pairs = cases(body)
    if not all(value.is_number and (value == 0 or value <= hides) for value, _ in pairs):
        return None
    return disjunction([(sympy.true if value == 0 else sympy.false, c) for value, c in pairs])


def _every_row_sees(pattern: MaskPattern) -> bool:
    """Whether each query sees its own position, or key 0."""
    if pattern.other_conditions or (
        pattern.window_left is not None and not _never_below(pattern.window_left, pattern.queries, pattern.keys)
    ):
        return False
    if pattern.causal_offset is None:
        return pattern.window_left is None
    return _never_below(pattern.causal_offset, pattern.queries, pattern.keys)


def _parts(shown: Any, queries: sympy.Expr, keys: sympy.Expr) -> list[Any]:
    """The conditions that must all hold, without those that always do."""

    def settled(part: Any) -> Any:
        if isinstance(part, (sympy.And, sympy.Or, sympy.Not)):
            return part.func(*map(settled, part.args))
        positive = _at_least_zero(part)
        if positive is None:
            return part
        if _never_below(positive, queries, keys):
            return sympy.true
        return sympy.false if _never_below(sympy.expand(-positive - 1), queries, keys) else part

    found = settled(shown)
    if found == sympy.true:
        return []
    return list(found.args) if isinstance(found, sympy.And) else [found]


def _at_least_zero(part: Any) -> sympy.Expr | None:
    """``e`` for an integer condition equivalent to ``e >= 0``."""
    if isinstance(part, (sympy.Ge, sympy.Gt)):
        return sympy.expand(part.lhs - part.rhs - int(isinstance(part, sympy.Gt)))
    if isinstance(part, (sympy.Le, sympy.Lt)):
        return sympy.expand(part.rhs - part.lhs - int(isinstance(part, sympy.Lt)))
    return None


def _never_below(e: sympy.Expr, queries: sympy.Expr, keys: sympy.Expr) -> bool:
    """Whether ``e``, linear in query and key, is nonnegative for all of them and all sizes of at least 1."""
    for index, n in ((QUERY, queries), (KEY, keys)):
        slope = e.coeff(index)
        if not slope.is_number or (e - slope * index).has(index):
            return False
        e = sympy.expand(e.xreplace({index: n - 1 if slope < 0 else sympy.Integer(0)}))
    if not all(s.is_integer and s.is_positive for s in e.free_symbols) or e.atoms(sympy.Function):
        return False
    least = sympy.expand(e.xreplace({s: s + 1 for s in e.free_symbols}))
    terms = least.as_coefficients_dict()
    polynomial = all(term.is_polynomial(*least.free_symbols) for term in terms)
    return polynomial and all(bool(factor >= 0) for factor in terms.values())


def _conjunction(parts: Sequence[Any], queries: sympy.Expr, keys: sympy.Expr) -> MaskPattern:
    causal_offset: sympy.Expr | None = None
    window_left: sympy.Expr | None = None
    others = []
    for part in parts:
        e = _at_least_zero(part)
        slopes = None if e is None else (e.coeff(QUERY), e.coeff(KEY))
        if e is None or slopes not in ((1, -1), (-1, 1)):
            others.append(_described(part))
            continue
        limit = sympy.expand(e - slopes[0] * QUERY - slopes[1] * KEY)
        held = causal_offset if slopes == (1, -1) else window_left
        if limit.has(QUERY, KEY) or limit.atoms(sympy.Function):
            others.append(_described(part))
            continue
        if held is None or _never_below(sympy.expand(held - limit), queries, keys):
            held = limit
        elif not _never_below(sympy.expand(limit - held), queries, keys):
            others.append("two limits of unknown order")
        causal_offset, window_left = (held, window_left) if slopes == (1, -1) else (causal_offset, held)
    return MaskPattern(queries, keys, causal_offset, window_left, tuple(dict.fromkeys(others)))


def _described(part: Any) -> str:
    """A description of what a kernel would have to read."""
    if part == sympy.false:
        return "everything hidden"
    if isinstance(part, sympy.Eq) and part.atoms(AppliedUndef) and _is_swapped(part):
        return _DOCUMENTS
    if _is_order(part):
        return _POSITIONS
    if isinstance(part, sympy.Or):
        return _CHOICE
    if _is_input(part):
        return _INPUT
    if part.atoms(AppliedUndef):
        return _PADDING if not part.has(QUERY) and part.has(KEY) else "values of the call"
    return _HIDDEN_KEYS if not part.has(QUERY) else _INDICES


def _is_input(part: Any) -> bool:
    """Whether ``part`` is a Boolean input of queries and keys: those of models hide padding or documents, rather than
    here and there."""
    if not isinstance(part, (sympy.Ne, sympy.Eq)) or part.rhs != 0 or not isinstance(part.lhs, AppliedUndef):
        return False
    return str(part.lhs.func).startswith(INPUT) and {QUERY, KEY} <= set(part.lhs.args)


def _is_swapped(part: sympy.Eq) -> bool:
    return part.lhs != part.rhs and bool(_swapped(part.lhs) == part.rhs)


def _is_order(part: Any) -> bool:
    """Whether ``part`` compares one function of values at the query with the same at the key, up to a distance."""
    e = _at_least_zero(part)
    values = None if e is None else e - e.as_coeff_Add()[0]
    return bool(values is not None and values.atoms(AppliedUndef) and sympy.expand(_swapped(values) + values) == 0)


def _swapped(e: Any) -> Any:
    return e.xreplace({QUERY: KEY, KEY: QUERY})
