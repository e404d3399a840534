"""Random numbers: Philox's counter-based generator, and uniform and normal numbers from its words."""

from __future__ import annotations

import math

from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.dtypes import DType
from mlirfuse.lowering.emitter import Emitter, Val
from mlirfuse.lowering.math.formats import F32, F64
from mlirfuse.lowering.math.logarithm import log_positive
from mlirfuse.lowering.math.trigonometric import cos_poly, quadrant, sin_poly


def _words(e: Emitter, v, count: int) -> list[Val]:
    """The u32 words, lowest first, of u32 and u64 Vals."""
    words = []
    for part in v if isinstance(v, (tuple, list)) else [v]:
        if part.dtype.bits == 64:
            part = e.bitcast(part, dt.u64)
            words += [e.cast(part, dt.u32), e.cast(e.shr(part, 32), dt.u32)]
        else:
            words.append(e.bitcast(part, dt.u32))
    lanes = max(w.lanes for w in words)
    assert len(words) <= count, (words, count)
    return [e.splat(w, lanes) for w in words] + [e.const(0, dt.u32, lanes)] * (count - len(words))


def words_at(e: Emitter, position: Val, seed: Val, offset: Val, count: int) -> list[Val]:
    """``count`` (1, 2 or 4) random u32 for the element at the linear index ``position`` (all u64): 4 // count elements
    share one draw."""
    share = 4 // count
    words = philox4x32(e, (e.shr(position, share.bit_length() - 1), offset), seed)
    which = e.cast(e.and_(position, share - 1), dt.u32)
    out = []
    for w in range(count):
        word = words[w]
        for part in range(1, share):
            word = e.select(e.cmp("eq", which, part), words[part * count + w], word)
        out.append(word)
    return out


def philox4x32(e: Emitter, counter, key) -> tuple[Val, Val, Val, Val]:
    """Philox-4x32-10: four random u32 for each 128-bit counter, under a 64-bit key.

    ``counter`` is a u64, or up to four u32 or two u64, lowest first (cuRAND and torch use the lower half for the offset
    and the upper one for the subsequence); ``key`` a u64 or two u32. Missing words are 0."""
    c = _words(e, counter, 4)
    k = _words(e, key, 2)
    lanes = max(c[0].lanes, k[0].lanes)
    c, k = [e.splat(v, lanes) for v in c], [e.splat(v, lanes) for v in k]
    for round_ in range(10):
        if round_:
            k = [e.add(k[0], 0x9E3779B9), e.add(k[1], 0xBB67AE85)]
        low0, high0 = multiply_wide(e, c[0], 0xD2511F53)
        low1, high1 = multiply_wide(e, c[2], 0xCD9E8D57)
        c = [e.xor(e.xor(high1, c[1]), k[0]), low1, e.xor(e.xor(high0, c[3]), k[1]), low0]
    return c[0], c[1], c[2], c[3]


def multiply_wide(e: Emitter, a: Val, factor: int) -> tuple[Val, Val]:
    """The low and high words of the 64-bit product of u32s."""
    wide = e.mul(e.cast(a, dt.u64), factor)
    return e.cast(wide, dt.u32), e.cast(e.shr(wide, 32), dt.u32)


def uniform_from_bits(e: Emitter, bits: Val, dtype: DType, more: Val | None = None) -> Val:
    """A uniform number in [0, 1): float32 from the upper 24 bits of a u32; float64 from 53 bits of a u64, or of two
    u32."""
    if dtype is dt.f32:
        if bits.dtype.bits == 64:
            bits = e.cast(e.shr(bits, 32), dt.u32)
        return e.mul(e.cast(e.bitcast(e.shr(bits, 8), dt.i32), dt.f32), 2.0**-24)
    if bits.dtype.bits == 32:
        assert more is not None
        bits = _join(e, bits, more)
    return e.mul(e.cast(e.bitcast(e.shr(bits, 11), dt.i64), dt.f64), 2.0**-53)


def _join(e: Emitter, low: Val, high: Val) -> Val:
    return e.or_(e.cast(low, dt.u64), e.shl(e.cast(high, dt.u64), 32))


def normal_from_bits(e: Emitter, a: Val, b: Val, dtype: DType) -> tuple[Val, Val]:
    """Two independent standard normal numbers (Box and Muller) from two u32 (float32) or two u64 (float64)."""
    f = F32 if dtype is dt.f32 else F64
    assert a.dtype.bits == b.dtype.bits == f.bits, (a, b, dtype)
    unit = 2.0**-f.bits
    u = e.fma(e.cast(a, dtype), unit, unit / 2)  # in (0, 1]
    radius = e.sqrt(e.max(e.mul(log_positive(e, u), -2.0), 0.0))
    # b is an angle in revolutions: its upper two bits, rounded, are the quadrant, and the rest is a signed fraction of
    # one
    q = e.shr(e.add(b, 1 << (f.bits - 3)), f.bits - 2)
    r = e.mul(e.cast(e.bitcast(e.shl(b, 2), f.sint), dtype), math.pi / 2 * unit)
    rr = e.mul(r, r)
    s, c = sin_poly(e, r, rr), cos_poly(e, rr)
    return e.mul(radius, quadrant(e, s, c, e.add(q, 1))), e.mul(radius, quadrant(e, s, c, q))


def uniform_of_words(e: Emitter, words: list[Val], dtype: DType) -> Val:
    """The result of the op ``uniform`` from one u32, or two for float64: rounded to ``dtype``, in its compute type."""
    val = uniform_from_bits(e, words[0], dtype.compute, *words[1:])
    return e.cast(e.cast(val, dtype), dtype.compute)


def normal_of_words(e: Emitter, words: list[Val], dtype: DType) -> Val:
    """The result of the op ``normal`` from two u32, or four for float64: rounded to ``dtype``, in its compute type."""
    if dtype is dt.f64:
        words = [_join(e, *words[:2]), _join(e, *words[2:])]
    a, b = words
    val, _ = normal_from_bits(e, a, b, dtype.compute)
    return e.cast(e.cast(val, dtype), dtype.compute)
