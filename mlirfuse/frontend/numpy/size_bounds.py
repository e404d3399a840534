"""Lower and upper bounds of symbolic sizes."""

from __future__ import annotations

import math

from mlirfuse.ir.sizes import Size


def size_bound(size: Size, low: bool) -> float:
    """A lower (``low``) or upper bound of ``size``; symbols are at least 2."""
    if isinstance(size, int):
        return size
    total = 0.0
    for factors, coefficient in size.terms:
        least, most = 1.0, 1.0
        for atom in factors:
            a, b = _atom_bounds(atom)
            if a < 0:
                return -math.inf if low else math.inf
            least, most = least * a, math.inf if most == math.inf or b == math.inf else most * b
        total += coefficient * (least if (coefficient > 0) == low else most)
        if total != total:
            return -math.inf if low else math.inf
    return total


def _atom_bounds(atom) -> tuple[float, float]:
    if atom.op == "sym":
        return (2, math.inf) if atom.args[0][0] == "s" else (-math.inf, math.inf)
    a, b = atom.args
    if atom.op == "mod":
        return (0, size_bound(b, False) - 1) if size_bound(b, True) > 0 else (-math.inf, math.inf)
    if atom.op == "floordiv":
        if isinstance(b, int) and b > 0:
            high = size_bound(a, False)
            low = size_bound(a, True)
            return (low // b if low > -math.inf else low, high // b if high < math.inf else high)
        return (0, math.inf) if size_bound(a, True) >= 0 and size_bound(b, True) > 0 else (-math.inf, math.inf)
    choose = max if atom.op == "max" else min
    return choose(size_bound(a, True), size_bound(b, True)), choose(size_bound(a, False), size_bound(b, False))
