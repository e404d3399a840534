"""Rows of scans: element i along an axis from elements up to i, or with ``reverse`` from i on. 16-bit floats accumulate
in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.ops.registry import ANY, COMPLEX, FLOAT, NUMBER, axis_of, broadcast_shapes, quietly, row

COST = 16  # instructions per element: five shuffle steps across lanes, and the carry


def _scanned(shapes, attrs):
    shape = broadcast_shapes(shapes)
    axis_of(attrs["axis"], len(shape))
    return [shape]


def _scan(name: str, operands: str, doc: str, function: Callable[..., Any], takes: str, numpy: str = "",
          nvfuser: str = "", cost: int = COST) -> None:  # fmt: skip
    """Register a scan. ``function(*arrays, axis)`` scans forward; it gets 16-bit floats in float32."""

    def ref(*arrays: np.ndarray, axis: int, reverse: bool = False) -> np.ndarray:
        stored = arrays[-1].dtype
        is_16bit = stored.itemsize == 2 and dt.of(stored).is_float
        wide = np.broadcast_arrays(*[x.astype(np.float32) if is_16bit else x for x in arrays])
        flipped = [np.flip(x, axis) for x in wide] if reverse else wide
        found = function(*flipped, axis).astype(stored)
        return np.flip(found, axis) if reverse else found

    row(
        name,
        "scan",
        operands,
        doc,
        takes=takes,
        attrs={"axis": ..., "reverse": False},
        infer=_scanned,
        ref=quietly(ref),
        numpy=numpy,
        nvfuser=nvfuser,
        cost=cost,
    )


def _recurrence(a: np.ndarray, b: np.ndarray, axis: int) -> np.ndarray:
    a, h = np.moveaxis(a, axis, 0), np.moveaxis(b, axis, 0).copy()
    for t in range(1, len(h)):
        h[t] += a[t] * h[t - 1]
    return np.moveaxis(h, 0, axis)


_scan(
    "cumsum",
    "x",
    "running sums along axis",
    lambda x, axis: np.cumsum(x, axis, x.dtype),
    NUMBER + COMPLEX,
    "cumsum",
    "cumsum",
)
_scan(
    "cumprod",
    "x",
    "running products along axis",
    lambda x, axis: np.cumprod(x, axis, x.dtype),
    NUMBER + COMPLEX,
    "cumprod",
    "cumprod",
)
_scan(
    "cummax",
    "x",
    "running maxima along axis; NaN from the first NaN on",
    np.maximum.accumulate,
    ANY + COMPLEX,
    nvfuser="cummax",
)
_scan(
    "cummin",
    "x",
    "running minima along axis; NaN from the first NaN on",
    np.minimum.accumulate,
    ANY + COMPLEX,
    nvfuser="cummin",
)
_scan(
    "logcumsumexp",
    "x",
    "logarithms of the running sums of exponentials along axis",
    np.logaddexp.accumulate,
    FLOAT,
    cost=10 * COST,
)
_scan(
    "linear_recurrence",
    "a b",
    "h with h[t] = a[t] * h[t - 1] + b[t] along axis, and h[0] = b[0]; operands broadcast",
    _recurrence,
    NUMBER,
    cost=2 * COST,
)
