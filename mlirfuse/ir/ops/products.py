"""Rows of matrix products that kernels compute, with the ops around them; other products are extern ops."""

from __future__ import annotations

import numpy as np

from mlirfuse.core.errors import ShapeError
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.ops.registry import FLOAT, row, show


def _dot(shapes, attrs):
    a, b = shapes
    if len(a) != 2 or len(b) != 2:
        raise ShapeError(f"dot: operands {show(a)} and {show(b)}: both must have rank 2")
    if a[1] != b[0] and isinstance(a[1], int) and isinstance(b[0], int):
        raise ShapeError(f"dot: operands {show(a)} and {show(b)}: the first has {a[1]} columns, the second {b[0]} rows")
    return [(a[0], b[1])]


def _dot_ref(a, b, tf32):
    wide = np.float64 if a.dtype == np.float64 else np.float32
    return (a.astype(wide) @ b.astype(wide)).astype(a.dtype)


def _float8_dot_types(dtypes, attrs):
    if any(t is not dt.u8 for t in dtypes):
        return "the operands must have type ui8"
    unknown = [name for name in attrs["formats"] if name not in FLOAT8]
    return f"formats {list(attrs['formats'])}: must be two of {list(FLOAT8)}" if unknown else None


def _float8_dot_ref(a, b, formats, fast_sums):
    x, y = (v.view(FLOAT8[name].numpy).astype(np.float32) for v, name in zip((a, b), formats))
    return x @ y


FLOAT8 = {t.name[2:]: t for t in dt.NARROW_FORMATS}  # by the names that attributes have

row(
    "float8_dot",
    "product",
    "a b",
    "the product of two matrices of float8, whose bytes the operands are; sums in float32, with ``fast_sums`` in the "
    "fewer bits that tensor cores have for them",
    takes="u",
    result="f32",
    operand_dtypes=_float8_dot_types,
    attrs={"formats": ..., "fast_sums": False},
    infer=_dot,
    ref=_float8_dot_ref,
    cost=8,
)
row(
    "dot",
    "product",
    "a b",
    "the product of two matrices, by a kernel that also computes the ops on its result; sums in float32; ``tf32``: "
    "float32 factors may be rounded to 11 bits",
    takes=FLOAT,
    attrs={"tf32": False},
    infer=_dot,
    ref=_dot_ref,
    cost=8,
)
