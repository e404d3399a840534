"""Rows of ops whose operand is read at indices that another operand gives."""

from __future__ import annotations

import numpy as np

from mlirfuse.core.errors import ShapeError
from mlirfuse.ir.ops.registry import ALL_TYPES, front_axis, index_dtypes, row


def _take(shapes, attrs):
    shape, indices = shapes
    axis = front_axis(attrs["axis"], len(shape))
    return [shape[:axis] + indices + shape[axis + 1 :]]


def _take_along(shapes, attrs):
    shape, indices = shapes
    if len(shape) != len(indices):
        raise ShapeError(f"take_along_axis: indices have rank {len(indices)}, the operand rank {len(shape)}")
    front_axis(attrs["axis"], len(shape))
    return [indices]


row(
    "take",
    "index",
    "x indices",
    "slices at indices along axis; negative indices count from the end; out of range is clamped",
    takes=ALL_TYPES,
    attrs={"axis": ...},
    infer=_take,
    ref=lambda x, i, axis: np.take(x, np.where(i < 0, i + x.shape[axis], i), axis, mode="clip"),
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
    ref=lambda x, i, axis: np.take_along_axis(
        x, np.clip(np.where(i < 0, i + x.shape[axis], i), 0, x.shape[axis] - 1), axis
    ),
    operand_dtypes=index_dtypes,
    numpy="take_along_axis",
    nvfuser="gather take_along_axis",
    indexed=True,
)
