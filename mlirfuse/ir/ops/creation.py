"""Rows of ops that create tensors, and of queries of a tensor's properties."""

from __future__ import annotations

import numpy as np

from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.ops.attributes import ELEMENT, SIZE
from mlirfuse.ir.ops.registry import ALL_TYPES, NUMBER, axis_of, given_shape, row


def _iota(shapes, attrs):
    axis_of(attrs["axis"], len(attrs["shape"]))
    return given_shape(shapes, attrs)


def _extent(shapes, attrs):
    axis_of(attrs["axis"], len(shapes[0]))
    return [()]


row(
    "constant",
    "create",
    "",
    "a 0-d constant",
    result="dtype",
    takes=ALL_TYPES,
    attrs={"value": ..., "dtype": ...},
    types={"value": ELEMENT},
    infer=lambda s, a: [()],
    ref=lambda value, dtype: np.asarray(value).astype(dtype.numpy),
)
row(
    "full",
    "create",
    "value",
    "value everywhere",
    chooses=True,
    takes=ALL_TYPES,
    attrs={"shape": ...},
    infer=given_shape,
    ref=lambda v, shape: np.full(shape, v),
    numpy="full",
    nvfuser="full",
)
row(
    "iota",
    "create",
    "",
    "the index along axis",
    result="dtype",
    takes=NUMBER,
    attrs={"shape": ..., "axis": 0, "dtype": ...},
    indexed=True,
    infer=_iota,
    ref=lambda shape, axis, dtype: np.broadcast_to(
        np.arange(shape[axis]).reshape([-1 if k == axis else 1 for k in range(len(shape))]), shape
    ).astype(dtype.numpy),
    nvfuser="iota",
)
row(
    "size",
    "create",
    "",
    "a size as a 0-d i64",
    result="i64",
    attrs={"value": ...},
    types={"value": SIZE},
    infer=lambda s, a: [()],
    ref=lambda value: np.asarray(value, np.int64),
    nvfuser="size",
)
row(
    "extent",
    "query",
    "x",
    "the extent of a dimension as a 0-d i64; the elements are not read",
    result="i64",
    takes=ALL_TYPES,
    attrs={"axis": ...},
    infer=_extent,
    ref=lambda x, axis: np.asarray(x.shape[axis], np.int64),
)
row(
    "dtype_of",
    "query",
    "x",
    "the element type as a 0-d i64, its index in dtypes.ALL; the elements are not read",
    result="i64",
    takes=ALL_TYPES,
    infer=lambda s, a: [()],
    ref=lambda x: np.asarray(dt.ALL.index(dt.of(x.dtype)), np.int64),
)
