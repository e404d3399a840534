"""Casts to float8 as ops on bytes, for what each library does with numbers that are too large."""

from __future__ import annotations

from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.builder import Builder
from mlirfuse.ir.dtypes import DType
from mlirfuse.ir.graph import Value

_NEXT = {dt.f8e4m3fn: 464.0, dt.f8e5m2: 61440.0}  # halfway from the largest number to what would be the next


def encoded(b: Builder, x: Value, to: DType, saturates: bool) -> Value:
    """The bytes (u8) of the float32 ``x`` in ``to``, rounded to nearest, ties to even. What rounds to more than the
    largest number becomes that number if the cast ``saturates``, else NaN in e4m3fn and an infinity in e5m2."""
    bits = b.op(f"encode_{to.name[2:]}", x)
    if saturates:
        return bits
    e4m3 = to is dt.f8e4m3fn
    too_large = b.op("gt" if e4m3 else "ge", b.op("abs", x), b.constant(_NEXT[to], dt.f32))
    larger = b.op("bitwise_or", bits, b.constant(0x7F, dt.u8)) if e4m3 else b.op("add", bits, b.constant(1, dt.u8))
    return b.op("where", too_large, larger, bits)
