"""Integer values whose elements depend on their indices by one affine form, as ``clamp(i - j + 3, 0, 5)`` does."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from mlirfuse.ir.graph import Op, Value
from mlirfuse.ir.interpreter import evaluate
from mlirfuse.ir.known_values import folded
from mlirfuse.ir.sizes import Size

_LONGEST = 1 << 16  # the most values of a form
_FAR = 1 << 13  # where extents are not known, a table has the form's values from -_FAR to _FAR
# Ops whose results are piecewise linear in the form where their operands are.
_LINEAR = {"add", "sub", "mul", "minimum", "maximum", "neg", "abs", "cast", "copy", "where", "lt", "le", "gt", "ge"}


class AffineTable(NamedTuple):
    """The element at indices ``x`` is ``numbers[dot(coefficients, x) - low]``. The coefficients have no common divisor,
    the first that is not 0 is positive, and all are 0 for a value that is the same everywhere.

    ``endless``: extents are not known, so the form may have any value. What precedes the table is on the line through
    its first two numbers, what follows it on that through its last two. ``constants``: such a value is piecewise
    linear, and this bounds the constant of each piece; so pieces meet within the table."""

    coefficients: tuple[int, ...]
    low: int
    numbers: np.ndarray
    endless: bool = False
    constants: int = 0


def affine_table(value: Value) -> AffineTable | None:
    """Return the table of an integer or boolean ``value`` that is computed from constants and indices alone; None for
    others, where the form has more than 65,536 values, and for one of extents that are not known unless it is piecewise
    linear with small constants."""
    return folded(value, _whole, _table)


def _whole(v: Value) -> bool:
    """Whether ``v`` is one result of integers or booleans, with elements."""
    return 0 not in v.shape and v.dtype is not None and v.dtype.kind in "iub" and len(v.op.results if v.op else ()) == 1


def _table(op: Op, given: list[AffineTable]) -> AffineTable | None:
    """The table of the result of ``op`` on operands with these tables."""
    shape = op.result.shape
    if op.row.kind == "elementwise":
        return None if op.attrs.get("checked") else _elementwise(op, given)
    if op.name == "constant":
        return AffineTable((), 0, np.asarray(op.attrs["value"]).reshape(1))
    if op.name == "iota":
        along = [int(d == op.attrs["axis"] % len(shape)) for d in range(len(shape))]
        return _of_form(shape, along, lambda form: form.astype(op.attrs["dtype"].numpy))
    if op.name == "full":
        return AffineTable((0,) * len(shape), 0, given[0].numbers)
    return _moved(op, given[0]) if op.row.kind == "shape" and len(given) == 1 else None


def _of_form(shape: Sequence[Size], factors: Sequence[int],
             numbers: Callable[[np.ndarray], np.ndarray]) -> AffineTable | None:  # fmt: skip
    """The table of a value of this shape whose elements are ``numbers(form)``, for the form with these factors."""
    factors = [0 if n == 1 else f for n, f in zip(shape, factors)]
    common = math.gcd(*factors) or 1
    common = -common if next((f for f in factors if f), 1) < 0 else common
    own = tuple(f // common for f in factors)
    if any(f and not isinstance(n, int) for f, n in zip(own, shape)):
        return AffineTable(own, -_FAR, numbers(common * np.arange(-_FAR, _FAR + 1)), True)
    ends = [f * (n - 1) for f, n in zip(own, shape) if isinstance(n, int)]
    low, high = (sum(pick(end, 0) for end in ends) for pick in (min, max))
    return AffineTable(own, low, numbers(common * np.arange(low, high + 1))) if high - low < _LONGEST else None


def _elementwise(op: Op, given: list[AffineTable]) -> AffineTable | None:
    rank = op.result.rank
    given = [t._replace(coefficients=(0,) * (rank - len(t.coefficients)) + t.coefficients) for t in given]
    forms = {t.coefficients: t.low for t in given if any(t.coefficients)}
    if len(forms) > 1:
        return _combined(op, given)
    coefficients, low = next(iter(forms.items()), ((0,) * rank, 0))
    endless = any(t.endless for t in given)
    constants = _constants(op, given) if endless else 0
    if constants is None:
        return None
    numbers = [t.numbers for t in given]
    operands = [Value(v.dtype, x.shape) for v, x in zip(op.operands, numbers)]
    result = Value(op.result.dtype, (max(map(len, numbers)),))
    found = evaluate(Op(op.name, operands, op.attrs, [result]), numbers)[0]
    return AffineTable(coefficients, low, found, endless, constants)


def _constants(op: Op, given: list[AffineTable]) -> int | None:
    """A bound of the constants of an endless result's pieces; None where it is not piecewise linear, or they are
    large."""
    narrow = op.result.dtype.kind != "b" and op.result.dtype.bits < 32  # may wrap around
    if op.name not in _LINEAR or narrow or (op.name == "mul" and all(t.endless for t in given)):
        return None
    bounds = [t.constants if t.endless else int(abs(t.numbers.astype(np.int64)).max()) for t in given]
    found = sum(bounds) if op.name in ("add", "sub") else math.prod(bounds) if op.name == "mul" else max(bounds)
    return found if 4 * max(found, *bounds) <= _FAR else None


def _combined(op: Op, given: list[AffineTable]) -> AffineTable | None:
    """The sum or difference of two values that are affine in different forms."""
    if op.name not in ("add", "sub") or len(given) != 2 or op.result.dtype.kind != "i":
        return None
    factors, base = [0] * op.result.rank, 0
    for table, sign in zip(given, (1, -1 if op.name == "sub" else 1)):
        steps = np.diff(table.numbers)
        if steps.size and (steps != steps[0]).any():
            return None
        step = sign * int(steps[0]) if steps.size else 0
        base += sign * int(table.numbers[0]) - step * table.low
        factors = [f + step * k for f, k in zip(factors, table.coefficients)]
    found = _of_form(op.result.shape, factors, lambda form: (form + base).astype(op.result.dtype.numpy))
    return None if found is None or (found.endless and 4 * abs(base) > _FAR) else found._replace(constants=abs(base))


def _moved(op: Op, table: AffineTable) -> AffineTable | None:
    """The table of a view of a value with this ``table``."""
    shape, own, offset = op.result.shape, table.coefficients, 0
    if op.name == "broadcast_in_dim":
        along = dict(zip(op.attrs["dims"], own))
        factors = [along.get(d, 0) for d in range(len(shape))]
    elif op.name == "permute":
        factors = [own[d] for d in op.attrs["dims"]]
    elif op.name == "slice":
        factors = [f * step for f, step in zip(own, op.attrs["step"])]
        offset = sum(f * start for f, start in zip(own, op.attrs["start"]))
    elif op.name in ("expand_dims", "squeeze", "reshape"):
        given = [(n, f) for n, f in zip(op.operands[0].shape, own) if n != 1]
        if [n for n, _ in given] != [n for n in shape if n != 1]:
            return None  # a reshape that joins or splits dimensions
        rest = iter(given)
        factors = [0 if n == 1 else next(rest)[1] for n in shape]
    else:
        return None
    if table.endless and (offset or math.gcd(*factors) > 1):
        return None
    found = _of_form(shape, factors, lambda form: table.numbers[form + offset - table.low])
    return None if found is None else found._replace(constants=table.constants)
