"""Solves the equalities of a definition's extents: unified symbols, and divisions of dimensions by reshapes."""

from __future__ import annotations

import math

from mlirfuse.ir import sizes as sz
from mlirfuse.ir.sizes import Size


def reshape_rule(a: Size, b: Size) -> tuple[list[str], list[str], int | None] | None:
    """What the equality of two products implies for a reshape's dimensions: the symbols that cancel, where they are not
    0; and the symbols whose values it fixes or, with a divisor, the one that must be its multiple. None where it
    implies nothing."""
    if isinstance(a, int) or (not isinstance(b, int) and any(f.op != "sym" for f in b.terms[0][0])):
        a, b = b, a
    if any(isinstance(x, sz.Expr) and len(x.terms) != 1 for x in (a, b)):
        return None
    left, right = (list(x.terms[0][0]) if isinstance(x, sz.Expr) else [] for x in (a, b))
    cancelled = []
    for factor in list(left):
        if factor in right and factor.op == "sym":
            left.remove(factor)
            right.remove(factor)
            cancelled.append(factor.args[0])
    if not left:
        left, right = right, left
    names = [f.args[0] for f in left if f.op == "sym"]
    if not right and names and len(names) == len(left):
        return cancelled, names, None
    if len(left) == 1 and left[0].op == "floordiv":
        left, right, a, b = right, left, b, a
    if len(right) == 1 and right[0].op == "floordiv" and not cancelled:
        whole, by = right[0].args
        assert isinstance(a, sz.Expr) and isinstance(b, sz.Expr)  # each has a symbolic factor
        if isinstance(by, int) and b.terms[0][1] == by and whole == a and left and all(f.op == "sym" for f in left):
            innermost = max((f.args[0] for f in left), key=lambda s: int(s[1:]))
            return [], [innermost], by // math.gcd(by, a.terms[0][1])
    return None


def unify(equalities) -> dict[str, Size]:
    """The replacement of each symbol, from extents that must be equal: a constant, else the earliest extent."""
    parent: dict[Size, Size] = {}

    def find(x):
        while parent.get(x, x) != x:
            x = parent[x]
        return x

    def preference(x):
        if isinstance(x, int):
            return (0, x)
        name = str(x)
        return ({"s": 1, "v": 2}.get(name[0], 3), int(name[1:]))

    for a, b in equalities:
        if all(isinstance(x, int) or (x.is_symbol and str(x)[0] in "sv") for x in (a, b)):
            a, b = sorted((find(a), find(b)), key=preference)
            if a != b and not isinstance(b, int):
                parent[b] = a
    return {str(x): find(x) for x in list(parent)}
