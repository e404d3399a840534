"""Parameters of float32 and float64 for the expansions of functions."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.dtypes import DType
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.math import coefficients as co

INF, NAN = math.inf, math.nan


@dataclass(frozen=True)
class Format:
    """Parameters of float32 or float64. A split constant is a sum of exact parts, largest first."""

    dtype: DType
    uint: DType
    sint: DType
    mantissa: int  # bits below the leading one
    bias: int
    one: int  # the bits of 1.0
    magic: float  # adding it rounds to an integer, which then sits in the low bits
    smallest_normal: float
    largest: float
    ln2: tuple[float, float]  # full parts
    ln2_short: tuple[float, float]  # the first one with so few bits that its product with any exponent is exact
    pi_2: tuple[float, float, float]
    exp_low: float  # below: exp is 0
    exp_high: float  # above: exp is infinite

    @property
    def bits(self) -> int:
        return self.dtype.bits


F32 = Format(
    dtype=dt.f32,
    uint=dt.u32,
    sint=dt.i32,
    mantissa=23,
    bias=127,
    one=0x3F800000,
    magic=1.5 * 2.0**23,
    smallest_normal=2.0**-126,
    largest=(2 - 2.0**-23) * 2.0**127,
    ln2=co.LN2_F32,
    ln2_short=co.LN2_SHORT_F32,
    pi_2=co.PI_2_F32,
    exp_low=-104.0,
    exp_high=89.0,
)


F64 = Format(
    dtype=dt.f64,
    uint=dt.u64,
    sint=dt.i64,
    mantissa=52,
    bias=1023,
    one=0x3FF0000000000000,
    magic=1.5 * 2.0**52,
    smallest_normal=2.0**-1022,
    largest=(2 - 2.0**-52) * 2.0**1023,
    ln2=co.LN2_F64,
    ln2_short=co.LN2_SHORT_F64,
    pi_2=co.PI_2_F64,
    exp_low=-746.0,
    exp_high=710.0,
)


def format_of(x: Val) -> Format:
    """The :class:`Format` of ``x``'s element type."""
    assert x.dtype in (dt.f32, dt.f64), x
    return F32 if x.dtype is dt.f32 else F64


def bits_of(value: float, f: Format) -> int:
    return int(np.array(value, f.dtype.numpy).view(f.uint.numpy))
