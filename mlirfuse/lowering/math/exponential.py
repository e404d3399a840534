"""exp, exp2, expm1, and sums of exponentials."""

from __future__ import annotations

import math

from mlirfuse.ir import dtypes as dt
from mlirfuse.lowering.emitter import Emitter, Val
from mlirfuse.lowering.math import coefficients as co
from mlirfuse.lowering.math.arithmetic import above, below, clamp, poly, pow2, scale_magic, scale_normal
from mlirfuse.lowering.math.division import ex2_approx, has_approximations
from mlirfuse.lowering.math.formats import format_of


def exp_reduce(e: Emitter, x: Val, low: Val | None = None) -> tuple[Val, Val]:
    """``x + low = n ln2 + r``, ``|r| <= 0.35``: r, and n plus :attr:`Format.magic`."""
    f = format_of(x)
    t = e.fma(x, co.LOG2E, f.magic)
    n = e.sub(t, f.magic)
    r = e.fma(n, -f.ln2[0], x)  # exact
    r = e.fma(n, -f.ln2[1], r)
    return (r if low is None else e.add(r, low)), t


def exp_poly(e: Emitter, r: Val) -> Val:
    """exp(r) for small r as 1 + r (1 + r P(r))."""
    return poly(e, r, (1.0, 1.0, *co.EXPM1[r.dtype.bits]))


EXPONENT_BITS = 1.5 * 2.0**23 + 127.0  # n plus this has the exponent field of the float32 2**n in its low bits


def fma_down(e: Emitter, a: Val, b: float, c: float) -> Val:
    """``a * b + c`` in float32 on the GPU, rounded down: with a ``c`` like :data:`EXPONENT_BITS`, the floor of the
    product."""
    factor, summand = e.const(b, dt.f32), e.const(c, dt.f32)
    return e.per_lane(
        lambda lane: e.op(
            f'llvm.call_intrinsic "llvm.nvvm.fma.rm.f"({lane}, {factor}, {summand}) : (f32, f32, f32) -> f32', dt.f32
        ),
        a,
    )


def exp_hardware(e: Emitter, x: Val, t: Val, lift: int = 0) -> tuple[Val, Val]:
    """exp(x) as a number in [1, 2) and a power of two, ``2**lift`` times as large, where ``t`` is n plus
    :data:`EXPONENT_BITS`. ex2.approx is most accurate, 1.4 ulp, on [0, 1), hence the floor."""
    r = e.fma(x, co.LOG2E_F32[0], e.sub(EXPONENT_BITS, t))
    r = e.fma(x, co.LOG2E_F32[1], r)
    return ex2_approx(e, r), e.bitcast(e.shl(e.bitcast(e.add(t, float(lift)) if lift else t, dt.u32), 23), dt.f32)


def _power_of(e: Emitter, x: Val, high: float | None) -> Val:
    """For :func:`exp_hardware` over all x: n is clamped so that 2**n is normal, and the hardware's exponential covers
    the rest, up to infinity and down to 0. Without ``high`` n is not clamped from above."""
    t = fma_down(e, x, co.LOG2E, EXPONENT_BITS)
    return clamp(e, t, EXPONENT_BITS - 126.0, None if high is None else EXPONENT_BITS + high)


def exp_inside(e: Emitter, x: Val) -> Val:
    """exp for arguments whose result is a normal number."""
    if has_approximations(e, x):
        return e.mul(*exp_hardware(e, x, fma_down(e, x, co.LOG2E, EXPONENT_BITS)))
    r, t = exp_reduce(e, x)
    return scale_normal(e, exp_poly(e, r), t)


def exp_scaled(e: Emitter, x: Val, low: Val | None = None, factor: Val | None = None, offset: int = 0) -> Val:
    """``exp(x + low) * factor * 2**offset`` over all x, rounded to subnormals once. ``factor`` is near 1 or slightly
    below."""
    f = format_of(x)
    x = above(e, below(e, x, f.exp_high + 1), f.exp_low - 4)
    if low is not None:
        low = e.select(e.cmp("lt", e.abs(low), 1.0), low, 0.0)
    r, t = exp_reduce(e, x, low)
    p = exp_poly(e, r)
    return scale_magic(e, p if factor is None else e.mul(p, factor), t, offset)


def exp(e: Emitter, x: Val, negative: bool = False) -> Val:
    """e**x, within 1 ulp (1.94 on the GPU in float32). ``negative``: no x is above 0, so that none overflows.

    ``exp(n ln2 + r) = 2**n (1 + r + r² P(r))``. On the GPU in float32, the hardware computes 2**r."""
    f = format_of(x)
    if has_approximations(e, x):
        return e.mul(*exp_hardware(e, x, _power_of(e, x, None if negative else 127.0)))
    x = x if negative else below(e, x, f.exp_high)
    r, t = exp_reduce(e, above(e, x, f.exp_low))
    return scale_magic(e, exp_poly(e, r), t)


def rough_exp(e: Emitter, x: Val) -> Val:
    """e**x of float32 on a GPU within ``(2 + |x| / 5)`` ulp; 0 if that is subnormal."""
    return ex2_approx(e, e.mul(x, co.LOG2E))


NO_POWER = -130.0  # the hardware's exponential is 0 from here down, and corrections are finite


def gap_between(e: Emitter, a: Val, b: Val) -> Val:
    """``a - b``; 0 for equal infinities, or NaN on a GPU in float32, where :func:`share_of_larger` handles that."""
    gap = e.sub(a, b)
    return gap if has_approximations(e, a) else e.select(e.cmp("eq", a, b), 0.0, gap)


def share_of_larger(e: Emitter, gap: Val) -> Val:
    """exp(-|gap|), to be added to at least 1: on a GPU in float32 within an ulp of 1, and 0 for NaN."""
    below = e.neg(e.abs(gap))
    if has_approximations(e, gap):
        return rough_exp(e, clamp(e, below, NO_POWER, None))
    return exp(e, below, negative=True)


def sum_of_exp(e: Emitter, xs: list[Val], base: Val) -> Val:
    """The sum of ``exp(x - base)`` over ``xs``, none above ``base``; x may be -inf.

    On the GPU in float32, the hardware's exponential of the rounded ``t = (x - base) log2(e)``, plus a separate sum of
    the rounding errors' contributions: a term is within ``(2 + |t| / 8)`` of its ulps."""
    if not has_approximations(e, base):
        return _pairwise(e, (exp(e, e.sub(x, base), negative=True) for x in xs))
    rest = None

    def power(x: Val) -> Val:
        nonlocal rest
        d = e.max(e.sub(x, base), NO_POWER)
        t = e.mul(d, co.LOG2E)
        y, left = ex2_approx(e, t), e.fma(d, co.LOG2E, e.neg(t))
        rest = e.mul(y, left) if rest is None else e.fma(y, left, rest)
        return y

    total = _pairwise(e, map(power, xs))
    return e.fma(rest, math.log(2), total)


def _pairwise(e: Emitter, vals) -> Val:
    """The pairwise sum of vals; each is added as soon as possible, so that few are live."""
    sums: list[tuple[int, Val]] = []  # (number of vals, sum)
    for val in vals:
        count = 1
        while sums and sums[-1][0] == count:
            val, count = e.add(sums.pop()[1], val), 2 * count
        sums.append((count, val))
    total = sums.pop()[1]
    while sums:
        total = e.add(sums.pop()[1], total)
    return total


def exp2(e: Emitter, x: Val) -> Val:
    """2**x, within 1 ulp (1.7 on the GPU in float32); exact for integers. ``2**(n + r) = 2**n (1 + r P(r))``."""
    f = format_of(x)
    if has_approximations(e, x):
        n = clamp(e, e.floor(x), -126.0, 127.0)
        power = pow2(e, e.bitcast(e.add(n, f.magic), f.uint), f)
        return e.mul(ex2_approx(e, e.sub(x, n)), power)
    x = above(e, below(e, x, f.bias + 2.0), -(f.bias + f.mantissa + 2.0))
    t = e.add(x, f.magic)
    r = e.sub(x, e.sub(t, f.magic))
    p = e.fma(poly(e, r, co.EXP2[f.bits]), r, 1.0)
    return scale_magic(e, p, t)


def exp2_inside(e: Emitter, x: Val) -> Val:
    """exp2 for arguments whose result is a normal number."""
    f = format_of(x)
    if has_approximations(e, x):
        return ex2_approx(e, x)
    t = e.add(x, f.magic)
    r = e.sub(x, e.sub(t, f.magic))
    return scale_normal(e, e.fma(poly(e, r, co.EXP2[f.bits]), r, 1.0), t)


def _expm1_half(e: Emitter, x: Val) -> Val:
    """(e**x - 1) / 2, inaccurate for tiny x, and without the sign of zeros; infinite above the range of exp."""
    f = format_of(x)
    x = above(e, below(e, x, f.exp_high), -2.0 * f.mantissa)
    r, t = exp_reduce(e, x)
    q = e.fma(e.mul(r, r), poly(e, r, co.EXPM1[f.bits]), r)
    half = e.bitcast(e.add(e.shl(e.bitcast(t, f.uint), f.mantissa), f.one - (1 << f.mantissa)), f.dtype)
    return e.fma(half, q, e.sub(half, 0.5))


def expm1(e: Emitter, x: Val) -> Val:
    """e**x - 1, within 2 ulp: ``2**n q + (2**n - 1)`` with ``q = expm1(r)``, halved so that 2**n cannot overflow."""
    f = format_of(x)
    y = e.add(h := _expm1_half(e, x), h)
    tiny = e.cmp("lt", e.abs(x), 2.0 ** -(f.mantissa + 2))
    return e.select(tiny, x, y)
