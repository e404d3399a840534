"""Range checks of conversions, with the errors that NumPy raises."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mlirfuse.frontend.numpy.loops.code import Code
from mlirfuse.frontend.numpy.loops.values import PY_INT, Number, require
from mlirfuse.ir import dtypes as dt
from mlirfuse.lowering.elementwise import EMIT
from mlirfuse.lowering.emitter import Val


def fits(e: Code, found: Any, kind: dt.DType) -> None:
    """Raises OverflowError where ``found`` is a Python int outside the range of ``kind``. Raises NotOutlinable for a
    complex number as a real one."""
    real = kind.kind not in "cb"
    require(not (real and isinstance(found, Number) and found.dtype.kind == "c"), "a complex number as a real one")
    if not isinstance(found, Number) or found.type != PY_INT or not kind.is_integer or kind is dt.i64:
        return
    if kind.is_signed and found.bits <= kind.bits - 2:
        return
    info = np.iinfo(kind.numpy)
    if found.known is None or not info.min <= found.known <= info.max:
        _within(e, found.val, kind)


def stored(e: Code, found: Number, kind: dt.DType) -> None:
    """:func:`fits` for assignments to elements: NumPy integers must fit too, if ``kind`` is signed, and floats
    truncated to integers. NumPy's wrap around in an unsigned ``kind``."""
    own = found.dtype
    if found.type.python or not (own.is_integer and kind.is_integer and kind.is_signed):
        cut_fits(e, found, kind, kind.is_signed)
    elif own.bits > kind.bits or (own.bits == kind.bits and not own.is_signed):
        _within(e, found.val, kind)


def cut_fits(e: Code, found: Number, kind: dt.DType, scalars: bool = False) -> None:
    """:func:`fits` for assignments through a mask or an index array: Python floats truncated to integers must fit too.
    ``scalars``: NumPy's floats, too."""
    fits(e, found, kind)
    if found.dtype.is_float and kind.is_integer and (found.type.python or scalars):
        _cut_within(e, found, kind)


def _cut_within(e: Code, found: Number, kind: dt.DType) -> None:
    """An error where a truncated float is outside the range of ``kind``."""
    info = np.iinfo(kind.numpy)
    low, high = int(info.min), int(info.max)
    if found.known is not None and low <= found.known <= high:
        return
    x = e.cast(found.val, dt.f64)
    above = e.cmp("ge", x, -(2.0**63)) if low == -(2**63) else e.cmp("gt", x, float(low - 1))
    held = e.and_(above, e.cmp("lt", x, float(high + 1)))
    beyond = e.not_(e.cmp("lt", EMIT["abs"](e, x), 2.0**63))
    infinite = e.and_(beyond, e.cmp("eq", EMIT["abs"](e, x), math.inf))
    what = e.select(e.cmp("ne", x, x), 3, e.select(infinite, 2, e.select(beyond, 1, e.zero)))

    def error(n: int, kind_of_error: int) -> Exception:
        if kind_of_error == 3:
            return ValueError("cannot convert float NaN to integer")
        return OverflowError(
            "cannot convert float infinity to integer" if kind_of_error == 2
            else "Python int too large to convert to C long" if kind_of_error == 1
            else f"Python integer {n} out of bounds for {info.dtype}"
        )  # fmt: skip

    e.fail_if(e.not_(held), error, e.select(beyond, 0.0, x), what)


def _within(e: Code, val: Val, kind: dt.DType) -> None:
    """An OverflowError where an integer is outside the range of ``kind``."""
    info = np.iinfo(kind.numpy)
    low, high = int(info.min), min(int(info.max), 2**63 - 1)
    over = e.cmp("gt", val, high)
    if val.dtype.is_signed:
        over = e.or_(e.cmp("lt", val, low), over)
    large, signed = "Python int too large to convert to C long", val.dtype.is_signed
    e.fail_if(
        over,
        lambda n, _: OverflowError(f"Python integer {n} out of bounds for {info.dtype}" if signed or n >= 0 else large),
        val,
    )
