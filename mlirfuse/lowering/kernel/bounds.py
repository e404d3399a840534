"""Bounds of indices that a program computes from indices, sizes and constants: non-negative ones do not count from the
end, and small ones fit in 32 bits. Nothing is known of array elements, nor of values that depend on them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from mlirfuse.ir.graph import Op, Value
from mlirfuse.ir.sizes import Size

DEEPEST = 32  # most ops between an index and the values that it depends on
EXTENT = float(1 << 40)  # of any array, at most
VIEWS = {"reshape", "expand_dims", "squeeze", "broadcast_in_dim", "permute"}


class Bounds(NamedTuple):
    """Bounds of the elements of a value: whether none is negative, and the largest magnitude. No element is NaN or has
    overflowed."""

    positive: bool
    most: float


class Known:
    """The bounds of a kernel's values."""

    def __init__(self) -> None:
        self._found: dict[Value, Bounds | None] = {}

    def of(self, value: Value, depth: int = DEEPEST) -> Bounds | None:
        """The bounds of the elements of ``value``; None if unknown."""
        if value not in self._found:
            found, dtype = self._created(value.op, depth), value.dtype
            representable = dtype.bits >= 32 if dtype.is_float else dtype.kind == "i"
            limit = 2.0 ** (127 if dtype.bits == 32 else 1023) if dtype.is_float else 2.0 ** (dtype.bits - 1)
            self._found[value] = found if representable and found and found.most < limit else None
        return self._found[value]

    def _created(self, op: Op | None, depth: int) -> Bounds | None:
        if op is None or depth == 0:
            return None
        match op.name:
            case "constant":
                number = float(op.attrs["value"])
                return Bounds(number >= 0, abs(number)) if math.isfinite(number) else None
            case "size":  # an expression of symbols may be negative, e.g. n - 8
                number = op.attrs["value"]
                return Bounds(number >= 0, float(abs(number))) if isinstance(number, int) else None
            case "iota":
                return _below(op.result.shape[op.attrs["axis"]])
            case "position":
                return _below(op.attrs["extent"])
        if op.name == "where":
            return self._selected(op, depth)
        if op.name not in RULES and op.name not in VIEWS and op.name not in ("cast", "floor"):
            return None
        operands = [self.of(v, depth - 1) for v in op.operands]
        if len(operands) == 1:
            (found,) = operands
            return found._replace(most=found.most + 1) if found and op.name == "floor" else found
        a, b = operands
        return RULES[op.name](a, b) if a and b else None

    def _selected(self, op: Op, depth: int) -> Bounds | None:
        """Of ``where``; ``where(x < 0, 0, x)`` is not negative."""
        condition, chosen, other = op.operands
        a, b, test = self.of(chosen, depth - 1), self.of(other, depth - 1), condition.op
        if a is None or b is None:
            return None
        least = test is not None and test.name == "lt" and test.operands[0] is other and _is_zero(test.operands[1])
        return Bounds(a.positive and (b.positive or least), max(a.most, b.most))


def _is_zero(value: Value) -> bool:
    return value.op is not None and value.op.name == "constant" and value.op.attrs["value"] == 0


def _below(extent: Size) -> Bounds:
    return Bounds(True, float(extent) if isinstance(extent, int) else EXTENT)


RULES: dict[str, Callable[[Bounds, Bounds], Bounds]] = {
    "add": lambda a, b: Bounds(a.positive and b.positive, a.most + b.most),
    "sub": lambda a, b: Bounds(False, a.most + b.most),
    "mul": lambda a, b: Bounds(a.positive and b.positive, a.most * b.most),
    "mod": lambda a, b: Bounds(b.positive, b.most),
    "maximum": lambda a, b: Bounds(a.positive or b.positive, max(a.most, b.most)),
    "minimum": lambda a, b: Bounds(
        a.positive and b.positive, (min if a.positive and b.positive else max)(a.most, b.most)
    ),
}
