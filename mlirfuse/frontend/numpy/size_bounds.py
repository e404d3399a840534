"""Lower and upper bounds of symbolic sizes."""

from __future__ import annotations

import math

from mlirfuse.ir.sizes import Size

_UNKNOWN = (-math.inf, math.inf)


def size_bounds(size: Size) -> tuple[float, float]:
    """A lower and an upper bound of ``size``; extents that are symbols are at least 2."""
    if isinstance(size, int):
        return size, size
    low = high = 0.0
    for factors, coefficient in size.terms:
        least, most = 1.0, 1.0
        for a, b in map(_atom_bounds, factors):
            if a < 0:
                return _UNKNOWN
            least, most = least * a, math.inf if math.inf in (most, b) else most * b
        ends = sorted((coefficient * least, coefficient * most))
        low, high = low + ends[0], high + ends[1]
    return low, high


def _atom_bounds(atom) -> tuple[float, float]:
    if atom.op == "sym":
        return (2, math.inf) if atom.args[0][0] == "s" else _UNKNOWN
    (low, high), (least, most) = map(size_bounds, atom.args)
    if atom.op == "mod":
        return (0, most - 1) if least > 0 else _UNKNOWN
    if atom.op == "floordiv":
        if least == most > 0:
            return (low // most if low > -math.inf else low, high // most if high < math.inf else high)
        return (0, math.inf) if low >= 0 and least > 0 else _UNKNOWN
    choose = max if atom.op == "max" else min
    return choose(low, least), choose(high, most)
