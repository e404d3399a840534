"""sin, cos, tan and their inverses; huge angles are reduced by Payne and Hanek's method."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.dtypes import DType
from mlirfuse.lowering.emitter import Emitter, Val
from mlirfuse.lowering.math import coefficients as co
from mlirfuse.lowering.math.arithmetic import fast_two_sum, poly, two_product, two_sum, where_rare
from mlirfuse.lowering.math.division import quotient
from mlirfuse.lowering.math.formats import F64, INF, NAN, format_of


def sin_poly(e: Emitter, r: Val, rr: Val, low: Val | None = None) -> Val:
    """sin(r + low), rounded once beside ``r``."""
    cubed, p = e.mul(r, rr), poly(e, rr, co.SIN[r.dtype.bits])
    if low is None:
        return e.fma(cubed, p, r)
    return e.add(r, e.fma(cubed, p, e.mul(low, e.fma(rr, -0.5, 1.0))))


def cos_poly(e: Emitter, rr: Val, r: Val | None = None, low: Val | None = None) -> Val:
    """cos(r + low) as ``(1 - r²/2) + r⁴ P(r²) - r low``, with what the difference loses put back."""
    head = e.fma(rr, -0.5, 1.0)
    lost = e.fma(rr, -0.5, e.sub(1.0, head))
    if r is not None and low is not None:
        lost = e.fma(e.neg(r), low, lost)
    return e.add(head, e.fma(e.mul(rr, rr), poly(e, rr, co.COS[rr.dtype.bits]), lost))


def _trig_reduce(e: Emitter, x: Val) -> tuple[Val, Val | None, Val]:
    """``x = q pi/2 + r + low``: r in about [-pi/4, pi/4], low (None in float32) and q in the low bits of an integer."""
    f = format_of(x)
    t = e.fma(x, 2 / math.pi, f.magic)
    n = e.sub(t, f.magic)
    q = e.bitcast(t, f.uint)
    r = e.fma(n, -f.pi_2[0], x)  # exact
    huge = e.not_(e.cmp("le", e.abs(x), co.TRIG_LIMIT[f.bits]))
    if f.bits == 32:
        r = e.fma(n, -f.pi_2[2], e.fma(n, -f.pi_2[1], r))
        r, q = where_rare(e, huge, lambda: _payne_hanek_32(e, x), [r, q])
        return r, None, q
    p, p_low = two_product(e, n, f.pi_2[1])
    high, low = two_sum(e, r, e.neg(p))
    low = e.sub(low, e.fma(n, f.pi_2[2], p_low))
    r, low = fast_two_sum(e, high, low)
    r, low, q = where_rare(e, huge, lambda: _payne_hanek_64(e, x), [r, low, q])
    return r, low, q


def _word(e: Emitter, index: Val, words: Sequence[int], count: int, dtype: DType) -> list[Val]:
    """``words[index], …, words[index + count - 1]`` by selects on the bits of ``index``."""
    bit = 1
    while bit * 2 < len(words) - count + 1:
        bit *= 2
    row: list = [e.const(w, dtype, index.lanes) for w in words]
    while bit:
        chosen = e.cmp("ne", e.and_(index, bit), 0)
        width = count + bit - 1
        row = [e.select(chosen, row[min(k + bit, len(row) - 1)], row[k]) for k in range(width)]
        bit //= 2
    return row


def _payne_hanek_32(e: Emitter, x: Val) -> list[Val]:
    """Reduction of any |x| >= 4: the mantissa times the 96 bits of 2/pi that matter for its exponent."""
    bits = e.bitcast(x, dt.u32)
    mantissa = e.or_(e.and_(bits, 0x7FFFFF), 0x800000)
    # x = mantissa * 2**s; needed are the product's integer part modulo 4 and 62 bits of its fraction
    s = e.sub(e.and_(e.shr(bits, 23), 255), 150)  # -21 … 104
    s = e.add(
        s, 24
    )  # bits of 2/pi from here on: earlier ones contribute multiples of 4 (the table starts with 26 zeros)
    w = _word(e, e.shr(s, 5), co.TWO_OVER_PI_32, 4, dt.u32)
    s = e.and_(s, 31)
    wide = [e.cast(v, dt.u64) for v in w]
    shift = e.cast(s, dt.u64)
    pairs = [e.or_(e.shl(wide[k], 32), wide[k + 1]) for k in range(3)]
    cut = [e.and_(e.shr(p, e.sub(32, shift)), 0xFFFFFFFF) for p in pairs]  # 96 bits
    m = e.cast(mantissa, dt.u64)
    product = e.add(e.shl(e.mul(m, cut[0]), 32), e.add(e.mul(m, cut[1]), e.shr(e.mul(m, cut[2]), 32)))
    # the top two bits are the quadrant; round to the nearest one
    rounded = e.add(product, 1 << 61)
    q = e.cast(e.shr(rounded, 62), dt.u32)
    fraction = e.bitcast(e.shl(product, 2), dt.i64)  # a signed fraction of a quadrant, after rounding
    r = e.cast(e.mul(e.cast(fraction, dt.f64), math.pi / 2 * 2.0**-64), dt.f32)
    negative = e.cmp("lt", x, 0.0)
    r = e.select(negative, e.neg(r), r)
    q = e.select(negative, e.sub(0, q), q)
    infinite = e.not_(e.cmp("lt", e.abs(x), INF))
    return [e.select(infinite, e.const(NAN, dt.f32, x.lanes), r), q]


def _multiply_high(e: Emitter, a: Val, b: Val) -> tuple[Val, Val]:
    """The low and the high word of ``a * b``."""
    low, high = e.fresh(), e.fresh()
    e.line(f"{low}, {high} = arith.mului_extended {a}, {b} : {a.type}")
    return Val(low, a.dtype, a.lanes), Val(high, a.dtype, a.lanes)


def _payne_hanek_64(e: Emitter, x: Val) -> list[Val]:
    """Like :func:`_payne_hanek_32`, with 192 bits of 2/pi and a fraction of 126 bits."""
    bits = e.bitcast(x, dt.u64)
    mantissa = e.or_(e.and_(bits, (1 << 52) - 1), 1 << 52)
    s = e.add(e.sub(e.and_(e.shr(bits, 52), 2047), 1075), 64)
    w = _word(e, e.shr(s, 6), co.TWO_OVER_PI_64, 4, dt.u64)
    s = e.and_(s, 63)
    back = e.sub(63, s)
    cut = [e.or_(e.shl(w[k], s), e.shr(e.shr(w[k + 1], 1), back)) for k in range(3)]
    # bits 128 … 255 of the product of 53 with 192 bits, the top ones (multiples of 4 quadrants) dropped
    _, h2 = _multiply_high(e, mantissa, cut[2])
    l1, h1 = _multiply_high(e, mantissa, cut[1])
    low = e.add(l1, h2)
    carry = e.cast(e.cmp("lt", low, l1), dt.u64)
    high = e.add(e.mul(mantissa, cut[0]), e.add(h1, carry))
    q = e.shr(e.add(high, 1 << 61), 62)
    top = e.bitcast(e.or_(e.shl(high, 2), e.shr(low, 62)), dt.i64)
    bottom = e.shl(low, 2)
    # the fraction as a pair: 64 signed bits do not fit a float64, so its halves are converted separately
    a = e.mul(e.cast(e.shr(top, 32), dt.f64), 2.0**-32)
    b = e.mul(e.cast(e.and_(e.bitcast(top, dt.u64), 0xFFFFFFFF), dt.f64), 2.0**-64)
    c = e.mul(e.cast(e.shr(bottom, 11), dt.f64), 2.0**-117)
    high, low = two_sum(e, a, b)
    high, low = fast_two_sum(e, high, e.add(low, c))
    r, r_low = two_product(e, high, F64.pi_2[0])
    r_low = e.add(r_low, e.fma(high, F64.pi_2[1], e.mul(low, F64.pi_2[0])))
    r, r_low = fast_two_sum(e, r, r_low)
    negative = e.cmp("lt", x, 0.0)
    flip = lambda v: e.select(negative, e.neg(v), v)  # noqa: E731
    infinite = e.not_(e.cmp("lt", e.abs(x), INF))
    q = e.select(negative, e.sub(0, q), q)
    return [e.select(infinite, e.const(NAN, dt.f64, x.lanes), flip(r)), flip(r_low), q]


def _sin_cos(e: Emitter, x: Val) -> tuple[Val, Val, Val]:
    """sin and cos of the reduced argument, and the quadrant."""
    r, low, q = _trig_reduce(e, x)
    rr = e.mul(r, r)
    return sin_poly(e, r, rr, low), cos_poly(e, rr, r, low), q


def quadrant(e: Emitter, s: Val, c: Val, q: Val) -> Val:
    """sin of an angle in quadrant q: s, c, -s or -c."""
    f = format_of(s)
    y = e.select(e.cmp("eq", e.and_(q, 1), 0), s, c)
    sign = e.shl(e.and_(q, 2), f.bits - 2)
    return e.bitcast(e.xor(e.bitcast(y, f.uint), sign), f.dtype)


def sin(e: Emitter, x: Val) -> Val:
    """The sine, within 2 ulp for every finite x; reduced by the nearest multiple of pi/2 with sufficient precision."""
    f = format_of(x)
    y = quadrant(e, *_sin_cos(e, x))
    return e.select(e.cmp("lt", e.abs(x), 2.0 ** -(f.mantissa // 2 + 2)), x, y)  # keeps -0


def cos(e: Emitter, x: Val) -> Val:
    """The cosine, within 2 ulp for every finite x."""
    s, c, q = _sin_cos(e, x)
    return quadrant(e, s, c, e.add(q, 1))


def tan(e: Emitter, x: Val) -> Val:
    """The tangent, within 4 ulp for every finite x, as the quotient of sine and cosine."""
    f = format_of(x)
    s, c, q = _sin_cos(e, x)
    odd = e.cmp("ne", e.and_(q, 1), 0)
    y = quotient(e, e.select(odd, e.neg(c), s), e.select(odd, s, c))
    return e.select(e.cmp("lt", e.abs(x), 2.0 ** -(f.mantissa // 2 + 2)), x, y)


def _asin_poly(e: Emitter, t: Val, tt: Val) -> Val:
    return e.fma(e.mul(t, tt), poly(e, tt, co.ASIN[t.dtype.bits]), t)


def _asin_reduce(e: Emitter, x: Val) -> tuple[Val, Val, Val]:
    """|x|, whether it is above 1/2, and asin of |x| or (where above) of ``sqrt((1 - |x|) / 2)``."""
    a = e.abs(x)
    large = e.cmp("gt", a, 0.5)
    half = e.fma(a, -0.5, 0.5)
    tt = e.select(large, half, e.mul(a, a))
    t = e.select(large, e.sqrt(half), a)
    return a, large, _asin_poly(e, t, tt)


def asin(e: Emitter, x: Val) -> Val:
    """The arc sine, within 2.5 ulp: above 1/2, ``pi/2 - 2 asin(sqrt((1 - x) / 2))``."""
    f = format_of(x)
    _, large, p = _asin_reduce(e, x)
    far = e.sub(f.pi_2[0], e.sub(e.add(p, p), f.pi_2[1]))
    return e.copysign(e.select(large, far, p), x)


def acos(e: Emitter, x: Val) -> Val:
    """The arc cosine, within 1.2 ulp."""
    f = format_of(x)
    _, large, p = _asin_reduce(e, x)
    negative = e.cmp("lt", x, 0.0)
    twice = e.add(p, p)
    far = e.select(negative, e.sub(2 * f.pi_2[0], e.sub(twice, 2 * f.pi_2[1])), twice)
    near = e.sub(f.pi_2[0], e.sub(e.select(negative, e.neg(p), p), f.pi_2[1]))
    return e.select(large, far, near)


def _atan_poly(e: Emitter, t: Val) -> Val:
    tt = e.mul(t, t)
    return e.fma(e.mul(t, tt), poly(e, tt, co.ATAN[t.dtype.bits]), t)


def atan(e: Emitter, x: Val) -> Val:
    """The arc tangent, within 2 ulp: above 1, ``pi/2 - atan(1/x)``."""
    f = format_of(x)
    a = e.abs(x)
    large = e.cmp("gt", a, 1.0)
    p = _atan_poly(e, e.select(large, e.div(1.0, a), a))
    return e.copysign(e.select(large, e.sub(f.pi_2[0], e.sub(p, f.pi_2[1])), p), x)


def atan2(e: Emitter, y: Val, x: Val) -> Val:
    """The angle of the point (x, y), within 2.5 ulp; signs of zeros and infinities as in C."""
    f = format_of(x)
    ax, ay = e.abs(x), e.abs(y)
    steep = e.cmp("gt", ay, ax)
    large, small = e.select(steep, ay, ax), e.select(steep, ax, ay)
    t = e.div(small, large)
    t = e.select(e.cmp("eq", large, 0.0), 0.0, t)  # both zero
    p = _atan_poly(e, t)
    p = e.select(e.cmp("eq", small, INF), f.pi_2[0] / 2, p)  # both infinite
    left = e.cmp("ne", e.shr(e.bitcast(x, f.uint), f.bits - 1), 0)
    # 0, a quarter or half a turn, and the angle away from it, which is rounded once: exact beside infinities.
    away = e.select(e.cmp("ne", steep, left), e.neg(p), p)
    beside = e.add(f.pi_2[0], e.add(away, f.pi_2[1]))
    behind = e.add(2 * f.pi_2[0], e.add(away, 2 * f.pi_2[1]))
    p = e.select(steep, beside, e.select(left, behind, p))
    p = e.copysign(p, y)
    nan = e.cmp("uno", x, y)
    return e.select(nan, e.add(x, y), p)
