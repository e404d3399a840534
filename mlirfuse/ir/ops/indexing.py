"""Rows of ops that read or write at indices given by another operand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from mlirfuse.core.errors import ShapeError
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.ops.attributes import BOOL, SIZE, TEXT
from mlirfuse.ir.ops.registry import (
    ALL_TYPES,
    COMPLEX,
    NUMBER,
    front_axis,
    index_dtypes,
    quietly,
    row,
    scattered_dtypes,
    show,
)

T = TypeVar("T")


def _take(shapes, attrs):
    shape, indices = shapes
    axis = front_axis(attrs["axis"], len(shape))
    return [shape[:axis] + indices + shape[axis + 1 :]]


def _index_dtypes(dtypes, attrs):
    return None if dtypes[0] in (dt.i32, dt.i64) else f"the indices are {dtypes[0]}, not i32 or i64"


def _index(x, extent, axis, checked, wraps, message):
    inside = (x >= (-extent if wraps else 0)) & (x < extent)
    if checked and not inside.all():
        if message:
            raise RuntimeError(message)
        raise IndexError(f"index {x[~inside].flat[0]} is out of bounds for axis {axis} with size {extent}")
    return np.clip(np.where((x < 0) & wraps, x + extent, x), 0, max(extent - 1, 0)).astype(x.dtype)


row(
    "position",
    "elementwise",
    "x",
    "x counted from the first element of an axis with this extent, where negative ones count from the end if it wraps, "
    "and clamped to it; checked: the call raises IndexError where it is out of range, RuntimeError with a message",
    attrs={"extent": ..., "axis": 0, "checked": False, "wraps": True, "message": ""},
    types={"extent": SIZE, "checked": BOOL, "wraps": BOOL, "message": TEXT},
    ref=_index,
    operand_dtypes=_index_dtypes,
    cost=2,
)


def _take_along(shapes, attrs):
    shape, indices = shapes
    if len(shape) != len(indices):
        raise ShapeError(f"take_along_axis: indices have rank {len(indices)}, the operand rank {len(shape)}")
    front_axis(attrs["axis"], len(shape))
    return [indices]


def _taken(x, i, axis):
    """Zeros where the axis is empty: nothing uses what an index that has not been checked reads there."""
    if not x.shape[axis] and i.size:
        return np.zeros(x.shape[:axis] + i.shape + x.shape[axis + 1 :], x.dtype)
    return np.take(x, np.where(i < 0, i + x.shape[axis], i), axis, mode="clip")


def _taken_along(x, i, axis):
    if not x.shape[axis] and i.size:
        return np.zeros(i.shape, x.dtype)
    return np.take_along_axis(x, np.clip(np.where(i < 0, i + x.shape[axis], i), 0, x.shape[axis] - 1), axis)


row(
    "take",
    "index",
    "x indices",
    "slices at indices along axis; negative indices count from the end; out of range is clamped",
    takes=ALL_TYPES,
    attrs={"axis": ...},
    infer=_take,
    ref=_taken,
    operand_dtypes=index_dtypes,
    numpy="take",
    nvfuser="index_select",
    indexed=True,
)
row(
    "take_along_axis",
    "index",
    "x indices",
    "element at indices along axis, the other coordinates kept; negative indices count from the end; out of range is "
    "clamped",
    takes=ALL_TYPES,
    attrs={"axis": ...},
    infer=_take_along,
    ref=_taken_along,
    operand_dtypes=index_dtypes,
    numpy="take_along_axis",
    nvfuser="gather take_along_axis",
    indexed=True,
)


def added_at(operands: Sequence[T]) -> list[tuple[T, T]]:
    """Return the pairs of indices and values of an ``index_put_accumulate``."""
    return list(zip(operands[1::2], operands[2::2]))


def _accumulated(shapes, attrs):
    shape, first, *_ = shapes
    for indices, values in added_at(shapes):
        if len(indices) != 1 or not shape or len(values) != len(shape):
            raise ShapeError(
                f"index_put_accumulate: operand {show(shape)}, indices {show(indices)} and values {show(values)}: the "
                "indices have rank 1, and the values the operand's rank"
            )
        if indices != first and not sz.symbols(indices[0]) and not sz.symbols(first[0]):
            raise ShapeError(
                f"index_put_accumulate: indices {show(first)} and {show(indices)}: all must have the same length"
            )
    return [shape]


def _accumulated_dtypes(dtypes, attrs):
    if len(dtypes) % 2 == 0:
        return "indices without values"
    problems = (scattered_dtypes([dtypes[0], *pair], attrs) for pair in added_at(dtypes))
    return next(filter(None, problems), None)


def _accumulated_ref(x, *added):
    is_16bit = x.dtype.itemsize == 2 and dt.of(x.dtype).is_float
    out = x.astype(np.float32) if is_16bit else x.copy()
    for indices, values in added_at((x, *added)):
        np.add.at(out, indices, values.astype(out.dtype))
    return out.astype(x.dtype)


row(
    "index_put_accumulate",
    "accumulate",
    "x indices values more*",
    "x with values[k] added to row indices[k], for each pair of indices and values; 16-bit floats in float32",
    takes=NUMBER + COMPLEX,
    infer=_accumulated,
    ref=quietly(_accumulated_ref),
    operand_dtypes=_accumulated_dtypes,
    nvfuser="index_put_accumulate index_accumulate",
    indexed=True,
    cost=8,
)
