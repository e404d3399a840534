"""Powers and roots: pow, cbrt and hypot."""

from __future__ import annotations

import math

from mlirfuse.ir import dtypes as dt
from mlirfuse.lowering.emitter import Emitter, Val
from mlirfuse.lowering.math import coefficients as co
from mlirfuse.lowering.math.arithmetic import above, below, fast_two_sum, poly, pow2, to_float, two_product, two_sum
from mlirfuse.lowering.math.division import reciprocal
from mlirfuse.lowering.math.exponential import exp_scaled
from mlirfuse.lowering.math.formats import F64, INF, NAN, bits_of, format_of


def _log_pair(e: Emitter, x: Val) -> tuple[Val, Val]:
    """log(x) of a positive finite x as a pair, with an error of about 2**-33 (float32) or 2**-66 (float64).

    ``x = 2**n m`` and ``log(m) = 2s + s³ P(s²)`` with ``s = (m - 1) / (m + 1)``; s and the larger terms of the last sum
    are pairs."""
    f = format_of(x)
    subnormal = e.cmp("lt", x, f.smallest_normal)
    x = e.select(subnormal, e.mul(x, 2.0**f.mantissa), x)
    bits = e.bitcast(x, f.sint)
    k = e.shr(e.sub(bits, bits_of(math.sqrt(0.5), f)), f.mantissa)
    m = e.bitcast(e.sub(bits, e.shl(k, f.mantissa)), f.dtype)
    n = to_float(e, k, f)
    n = e.select(subnormal, e.sub(n, float(f.mantissa)), n)
    num = e.sub(m, 1.0)
    den = e.add(m, 1.0)
    den_low = e.sub(m, e.sub(den, 1.0))
    inverse = reciprocal(e, den)
    s = e.mul(num, inverse)
    rest = e.fma(e.neg(s), den_low, e.fma(e.neg(s), den, num))
    s_low = e.mul(rest, inverse)
    z, z_low = two_product(e, s, s)
    z_low = e.fma(e.add(s, s), s_low, z_low)
    c = co.LOG_ATANH[f.bits]
    p, p_low = fast_two_sum(e, e.const(c[0], x.dtype, x.lanes), e.mul(z, poly(e, z, c[1:])))
    v, v_low = two_product(e, z, p)
    v_low = e.add(v_low, e.fma(z, p_low, e.mul(z_low, p)))
    t, t_low = two_product(e, s, v)
    t_low = e.add(t_low, e.fma(s, v_low, e.mul(s_low, v)))
    high, low = fast_two_sum(e, e.add(s, s), t)
    low = e.add(low, e.add(e.add(s_low, s_low), t_low))
    top, top_low = two_sum(e, e.mul(n, f.ln2_short[0]), high)
    return fast_two_sum(e, top, e.add(top_low, e.fma(n, f.ln2_short[1], low)))


def _pow_wide(e: Emitter, x: Val, y: Val) -> Val:
    """x**y of float32 x > 0 in float64: ``2**(y log2(x))``, the logarithm as in :func:`_log_pair`."""
    f = F64
    x, y = e.cast(x, dt.f64), e.cast(y, dt.f64)
    bits = e.bitcast(x, f.sint)
    k = e.shr(e.sub(bits, bits_of(math.sqrt(0.5), f)), f.mantissa)
    m = e.bitcast(e.sub(bits, e.shl(k, f.mantissa)), f.dtype)
    s = e.div(e.sub(m, 1.0), e.add(m, 1.0))
    z = e.mul(s, s)
    logarithm = e.fma(e.mul(s, e.fma(z, poly(e, z, co.LOG_ATANH[32]), 2.0)), co.LOG2E, to_float(e, k, f))
    p = above(e, below(e, e.mul(logarithm, y), 200.0), -200.0)
    t = e.add(p, f.magic)
    r = e.sub(p, e.sub(t, f.magic))
    power = e.fma(poly(e, r, co.EXP2[32]), r, 1.0)
    power = e.bitcast(e.add(e.bitcast(power, f.uint), e.shl(e.bitcast(t, f.uint), f.mantissa)), f.dtype)
    return e.cast(power, dt.f32)


def pow(e: Emitter, x: Val, y: Val) -> Val:
    """x**y, within 2 ulp: ``exp(y log|x|)``, the logarithm and the product as pairs (in float64 for float32 on the
    CPU).

    Special values as C's pow.
    """
    f = format_of(x)
    ax, ay = e.abs(x), e.abs(y)
    if f.bits == 32 and e.target == "cpu":
        r = _pow_wide(e, ax, y)
    else:
        high, low = _log_pair(e, ax)
        # beyond 2**(bias/2), where the product's components could overflow, the result is 0 or infinite, as for a
        # smaller y
        limit = 2.0 ** (f.bias // 2)
        yy = above(e, below(e, y, limit), -limit)
        p, p_low = two_product(e, high, yy)
        r = exp_scaled(e, p, e.fma(low, yy, p_low))
    # zeros and infinities: |x|**y is 0 or infinite by whether |x| < 1 and y < 0 differ
    grows = e.cmp("eq", e.cmp("gt", ax, 1.0), e.cmp("gt", y, 0.0))
    extreme = e.select(grows, e.const(INF, x.dtype, x.lanes), 0.0)
    edge = e.or_(e.cmp("eq", ax, 0.0), e.cmp("eq", ax, INF))
    r = e.select(edge, extreme, r)
    # signs: a negative x needs an integer y, and an odd one keeps the sign
    integral = e.cmp("eq", e.trunc(y), y)
    half = e.mul(y, 0.5)
    odd = e.and_(integral, e.cmp("ne", e.trunc(half), half))
    negative = e.cmp("ne", e.shr(e.bitcast(x, f.uint), f.bits - 1), 0)
    r = e.select(e.and_(negative, odd), e.neg(r), r)
    finite = e.and_(e.cmp("lt", x, 0.0), e.and_(e.cmp("gt", x, -INF), e.not_(integral)))
    nan = e.or_(finite, e.cmp("uno", x, y))
    r = e.select(nan, e.const(NAN, x.dtype, x.lanes), r)
    # an infinite y with |x| = 1, x = 1, y = 0: exactly 1
    one = e.or_(e.cmp("eq", x, 1.0), e.cmp("eq", y, 0.0))
    one = e.or_(one, e.and_(e.cmp("eq", x, -1.0), e.cmp("eq", ay, INF)))
    return e.select(one, 1.0, r)


def _with_subnormals(e: Emitter, name: str, x: Val) -> Val:
    """A GPU's approximation, without flushing subnormals to zero."""
    text = f'llvm.inline_asm "{name}.approx.f32 $0, $1;", "=f,f"'
    return e.per_lane(lambda v: e.op(f"{text} {v} : (f32) -> f32", v.dtype), x)


MOST_ROUGH = 64  # largest magnitude of such an exponent: the logarithm's error of 2**-22 is multiplied by it


def rough_pow(e: Emitter, x: Val, y: Val) -> Val:
    """x**y of float32 on a GPU within ``16 + |y| (4 + |log2(x)|)`` ulp, where y is a constant of at most
    ``MOST_ROUGH``; else as :func:`pow`. Special values as C's pow."""
    number = e.known(y)
    if number is None or not 0 < abs(float(number)) <= MOST_ROUGH:
        return pow(e, x, y)
    number, ax = float(number), e.abs(x)
    r = _with_subnormals(e, "ex2", e.mul(_with_subnormals(e, "lg2", ax), number))
    if number % 2 == 0:
        return r
    if number % 2 == 1:
        return e.select(e.cmp("ne", e.shr(e.bitcast(x, dt.u32), 31), 0), e.neg(r), r)
    finite = e.and_(e.cmp("lt", x, 0.0), e.cmp("gt", x, -INF))
    return e.select(finite, e.const(NAN, x.dtype, x.lanes), r)


def cbrt(e: Emitter, x: Val) -> Val:
    """The cube root, within 1 ulp.

    With ``x = 2**(3k) m``, m in [1, 8): a polynomial for ``m**(-1/3)``, a Halley step, and a Newton step for the
    root."""
    f = format_of(x)
    a = e.abs(x)
    subnormal = e.cmp("lt", a, f.smallest_normal)
    up = 3 * (f.mantissa // 3 + 1)
    scaled = e.select(subnormal, e.mul(a, 2.0**up), a)
    bits = e.bitcast(scaled, f.sint)
    exponent = e.sub(e.shr(bits, f.mantissa), f.bias)
    k = e.floor(e.mul(e.add(e.cast(exponent, f.dtype), 0.5), 1 / 3))  # floor(exponent / 3): never near an integer
    k = e.bitcast(e.add(k, f.magic), f.sint)
    k3 = e.add(e.add(k, k), k)
    magic3 = 3 * bits_of(f.magic, f)
    j = e.sub(e.add(exponent, magic3), k3)  # 0, 1 or 2
    unit = e.bitcast(e.or_(e.and_(bits, (1 << f.mantissa) - 1), f.one), f.dtype)  # in [1, 2)
    one, two = e.cmp("eq", j, 1), e.cmp("eq", j, 2)
    m = e.mul(unit, e.select(two, 4.0, e.select(one, 2.0, e.const(1.0, x.dtype, x.lanes))))
    start = e.select(two, 0.25 ** (1 / 3), e.select(one, 0.5 ** (1 / 3), e.const(1.0, x.dtype, x.lanes)))
    z = e.mul(poly(e, unit, co.RCBRT[f.bits]), start)
    h = e.fma(e.neg(e.mul(m, z)), e.mul(z, z), 1.0)
    z = e.fma(e.mul(z, h), e.fma(h, 2 / 9, 1 / 3), z)
    zz = e.mul(z, z)
    y = e.mul(m, zz)
    y = e.fma(e.fma(e.mul(y, y), y, e.neg(m)), e.mul(zz, -1 / 3), y)
    y = e.mul(y, pow2(e, e.bitcast(k, f.uint), f))
    y = e.select(subnormal, e.mul(y, 2.0 ** -(up // 3)), y)
    finite = e.and_(e.cmp("gt", a, 0.0), e.cmp("lt", a, INF))
    return e.copysign(e.select(finite, y, a), x)


def hypot(e: Emitter, x: Val, y: Val) -> Val:
    """``sqrt(x² + y²)`` without intermediate overflow or underflow, within 1.5 ulp; infinite if either operand is, even
    with a NaN."""
    f = format_of(x)
    ax, ay = e.abs(x), e.abs(y)
    swap = e.cmp("lt", ax, ay)
    large, small = e.select(swap, ay, ax), e.select(swap, ax, ay)
    edge = f.bias // 2 - 4
    huge, tiny = e.cmp("gt", large, 2.0**edge), e.cmp("lt", large, 2.0**-edge)
    up, down = 2.0 ** (edge + 2 * f.mantissa), 2.0 ** -(edge + 8)
    one = e.const(1.0, x.dtype, x.lanes)
    factor = e.select(huge, down, e.select(tiny, up, one))
    back = e.select(huge, 1 / down, e.select(tiny, 1 / up, one))
    large, small = e.mul(large, factor), e.mul(small, factor)
    y2 = e.mul(e.sqrt(e.fma(large, large, e.mul(small, small))), back)
    infinite = e.or_(e.cmp("eq", ax, INF), e.cmp("eq", ay, INF))
    y2 = e.select(e.cmp("uno", x, y), e.const(NAN, x.dtype, x.lanes), y2)
    return e.select(infinite, INF, y2)
