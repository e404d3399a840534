"""np.pad."""

from __future__ import annotations

import numpy as np

from mlirfuse.frontend.numpy.axes import size_of
from mlirfuse.frontend.numpy.functions.shaping import is_fortran
from mlirfuse.frontend.numpy.memory_order import forced
from mlirfuse.frontend.numpy.operands import asarray, fresh, value_of
from mlirfuse.frontend.numpy.registry import implements
from mlirfuse.frontend.numpy.source import fail, unsupported
from mlirfuse.frontend.numpy.stored import stored
from mlirfuse.frontend.numpy.traced_array import TracedArray
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.dtypes import DType
from mlirfuse.ir.graph import Value


@implements(np.pad)
def pad(array, pad_width, mode="constant", constant_values=0, **kwargs):
    x = asarray(array)
    created = _padded(x, pad_width, mode, constant_values, kwargs)
    forced(x._trace, created._value, "F" if is_fortran(x) else "C")
    return created


def _padded(x, pad_width, mode: str, constant_values, kwargs: dict) -> TracedArray:
    t = x._trace
    if isinstance(pad_width, dict):
        pad_width = [pad_width.get(k, pad_width.get(k - x.ndim, (0, 0))) for k in range(x.ndim)]
    widths = _pairs(pad_width, x.ndim, "pad_width", lambda n: size_of(t, n))
    if any(isinstance(n, int) and n < 0 for pair in widths for n in pair):
        fail(ValueError, "index can't contain negative values")
    if mode == "edge" or (mode in ("reflect", "wrap", "symmetric") and kwargs.get("reflect_type", "even") != "odd"):
        return _pad_by_index(x, widths, mode)
    if mode not in ("constant", "empty"):
        unsupported(f"np.pad with mode '{mode}'", "use constant, edge, reflect, symmetric or wrap")
    values = _pairs(constant_values, x.ndim, "constant_values", lambda n: n)
    result, shape = x.value, t.shape(x._value)
    fills = {id(v) if isinstance(v, TracedArray) else repr(v): v for pair in values for v in pair}
    if len(fills) == 1:
        low, high = zip(*widths) if widths else ((), ())
        fill = _filling(t, next(iter(fills.values())), x._value.dtype)
        return TracedArray(t, _sized(t, t.emit("pad", result, fill, low=tuple(low), high=tuple(high))))
    for k in range(len(shape)):
        for side in (0, 1):
            if widths[k][side] != 0:
                low = tuple(widths[k][0] if side == 0 and d == k else 0 for d in range(len(shape)))
                high = tuple(widths[k][1] if side == 1 and d == k else 0 for d in range(len(shape)))
                fill = _filling(t, values[k][side], x._value.dtype)
                result = t.emit("pad", result, fill, low=low, high=high)
    return TracedArray(t, _sized(t, result))


def _filling(t, value, dtype: DType) -> Value:
    """One of the ``constant_values`` as an element, converted as NumPy does: from an array to elements."""
    if isinstance(value, TracedArray) and value.ndim:
        unsupported("np.pad with an array as constant_values", "give numbers")
    known = np.asarray(value)[()] if value.__class__ in (int, float, complex, bool) else value
    return value_of(t, stored(t, known, dtype), dtype, True)


def _sized(t, value: Value) -> Value:
    """``value`` with extents of 0 and 1 as ints."""
    shape = tuple(t.extent(n) for n in value.shape)
    if shape != value.shape:
        value.shape = shape
        value.type = Value(value.dtype, shape).type
    return value


def _pairs(given, rank: int, name: str, convert) -> list[tuple]:
    """A pair for each axis, from any of NumPy's notations. Raises ValueError for other shapes."""
    if isinstance(given, np.ndarray):
        given = given.tolist()
    if not isinstance(given, (tuple, list)):
        return [(convert(given),) * 2] * rank
    if len(given) == 1:
        given = given[0]
        if not isinstance(given, (tuple, list)):
            return [(convert(given),) * 2] * rank
        return [tuple(map(convert, given * 2 if len(given) == 1 else given))] * rank
    if not isinstance(given[0], (tuple, list)):
        if len(given) != 2:
            fail(ValueError, f"{name}: give one number, a pair, or a pair for each of the {rank} axes")
        return [tuple(map(convert, given))] * rank
    if len(given) != rank:
        fail(ValueError, f"{name} has {len(given)} pairs, but the array has {rank} axes")
    return [tuple(map(convert, pair)) * (2 if len(pair) == 1 else 1) for pair in given]


def _pad_by_index(x, widths, mode: str):
    t = x._trace
    if all(low == 0 and high == 0 for low, high in widths):
        return TracedArray(t, fresh(t, x.value))
    for axis, (low, high) in enumerate(widths):
        if low == 0 and high == 0:
            continue
        n = t.shape(x._value)[axis]
        if n == 0:
            fail(ValueError, f"can't extend empty axis {axis} using modes other than 'constant' or 'empty'")
        total = t.extent(low + n + high)
        position = t.emit("sub", t.emit("iota", shape=(total,), axis=0, dtype=dt.i64), t.builder.size(low))
        if mode == "edge":
            position = t.emit("minimum", t.emit("maximum", position, t.builder.size(0)), t.builder.size(n - 1))
        elif mode == "wrap":
            position = t.emit("mod", position, t.builder.size(n))
        elif n == 1:
            position = t.emit("mul", position, t.builder.size(0))
        else:
            period = sz.mul(n, 2) - (2 if mode == "reflect" else 0)
            position = t.emit("mod", position, t.builder.size(period))
            mirrored = t.emit("sub", t.builder.size(period - (0 if mode == "reflect" else 1)), position)
            position = t.emit("minimum", position, mirrored)
        x = TracedArray(t, t.emit("take", x.value, position, axis=axis))
    return x
