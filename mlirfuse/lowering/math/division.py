"""Reciprocals, quotients and reciprocal square roots, and the GPU's approximations."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from mlirfuse.ir import dtypes as dt
from mlirfuse.lowering.emitter import Emitter, Val


def has_approximations(e: Emitter, x: Val) -> bool:
    return e.target == "gpu" and x.dtype is dt.f32


def ex2_approx(e: Emitter, x: Val) -> Val:
    return e.per_lane(lambda v: e.intrinsic("llvm.nvvm.ex2.approx.ftz.f", v), x)


def lg2_approx(e: Emitter, x: Val) -> Val:
    return e.per_lane(lambda v: e.intrinsic("llvm.nvvm.lg2.approx.ftz.f", v), x)


def rcp_approx(e: Emitter, x: Val) -> Val:
    return e.per_lane(lambda v: e.intrinsic("llvm.nvvm.rcp.approx.ftz.f", v), x)


def reciprocal(e: Emitter, x: Val) -> Val:
    """1 / x within 1 ulp for 2**-120 <= ``|x|`` <= 2**120; may be 0 for larger, and infinite for smaller ``x``."""
    return rcp_approx(e, x) if has_approximations(e, x) else e.div(1.0, x)


def corrected_reciprocal(e: Emitter, x: Val) -> Val:
    """Like :func:`reciprocal`, but an approximation is corrected by one Newton step: correctly rounded, except in rare
    cases."""
    r = reciprocal(e, x)
    return e.fma(e.fma(e.neg(x), r, 1.0), r, r) if has_approximations(e, x) else r


def rsqrt(e: Emitter, x: Val) -> Val:
    """``1 / sqrt(x)`` within 1 ulp: a GPU's approximation, within 2 ulp, and one Newton step that preserves zeros and
    infinities. A square root and a division, each with a branch for subnormals, take three times the instructions."""
    if not has_approximations(e, x):
        return e.div(1.0, e.sqrt(x))
    y = e.per_lane(lambda v: e.intrinsic("llvm.nvvm.rsqrt.approx.f", v), x)
    better = e.fma(e.mul(y, 0.5), e.fma(e.neg(e.mul(x, y)), y, 1.0), y)
    return e.select(e.isnan(better), y, better)


def quotient(e: Emitter, a, b: Val) -> Val:
    """a / b within 1 ulp for finite ``a`` and ``b`` of moderate size."""
    if not has_approximations(e, b):
        return e.div(a, b)
    r = rcp_approx(e, b)
    q = e.mul(a, r)
    return e.fma(e.fma(e.neg(q), b, a), r, q)


def inverse(e: Emitter, b: Val) -> tuple[Val, Val]:
    """A power of two ``s`` with the sign of ``b``, and ``r``, such that ``(a * s) * r = a / b`` within 2.5 ulp on a
    GPU, for all float32 ``a``. ``b s`` is in [1/2, 1), for the largest and the smallest ``b`` in [1, 4) and below 1/2,
    so that intermediate results only overflow if the quotient does, and quotients from 2^-125 on keep their
    precision."""
    exponent = e.and_(e.bitcast(b, dt.i32), 0x7F800000)
    s = e.copysign(e.bitcast(e.max(e.sub(0x7E800000, exponent), 0x00800000), dt.f32), b)
    return s, rcp_approx(e, e.mul(b, s))


def rough_quotient(e: Emitter, a: Val, b: Val) -> Val:
    """``a / b`` within 2 ulp for all float32: `div.full` of a GPU, with half the instructions of a correctly rounded
    division."""
    a, b = e._pair(a, b)
    asm = 'llvm.inline_asm "div.full.f32 $0, $1, $2;", "=f,f,f"'
    pairs = [(e.extract(a, k), e.extract(b, k)) for k in range(a.lanes)]
    return e.from_lanes([e.op(f"{asm} {x}, {y} : (f32, f32) -> f32", a.dtype) for x, y in pairs])


def quotient_by_inverse(e: Emitter, a: Val, b: Val, s: Val, r: Val) -> Val:
    """``a / b`` with ``s`` and ``r`` of :func:`inverse`: a quotient corrected by its remainder (Markstein, 1990). It
    equals the correctly rounded division except for about one in 2^22, and is within 1 ulp below 2^-100, 2 below
    2^-125, where the remainder is not exact."""
    return _corrected(e, e.mul(a, s), e.mul(b, s), r)


def quotient_of_share(e: Emitter, a: Val, b: Val, r: Val) -> Val:
    """``a / b`` of float32 on a GPU, if ``0 <= a <= 1 <= b <= 2**126`` or either is NaN, and ``r`` is the approximate
    reciprocal of ``b``: as exact as :func:`quotient_by_inverse`, without a check for infinities."""
    q = e.mul(a, r)
    return e.fma(e.fma(q, b, e.neg(a)), e.neg(r), q)


def rounded_reciprocal(e: Emitter, x: Val) -> Val:
    """``1 / x`` for all ``x``: for float32 on a GPU as exact as :func:`quotient_by_inverse`, without a branch for
    subnormals, which would prevent overlap with the surrounding code."""
    if not has_approximations(e, x):
        return e.div(1.0, x)
    return quotient_by_inverse(e, e.const(1.0, x.dtype, x.lanes), x, *inverse(e, x))


def quotient_by_size(e: Emitter, a: Val, n: Val) -> Val:
    """``a / n`` of float32 on a GPU for a number of elements ``n``, possibly 0: as exact as
    :func:`quotient_by_inverse`."""
    return _corrected(e, a, n, rcp_approx(e, n))


def _corrected(e: Emitter, a: Val, b: Val, r: Val) -> Val:
    """``a / b`` from ``r``, about ``1 / b``, for ``b`` without a sign. Infinities have no remainder to correct by; a
    quotient within an ulp of the largest float may be infinite. The excess is subtracted, rather than the remainder
    added: if it is zero, -0 is added, which preserves zeros of both signs."""
    q = e.mul(a, r)
    more = e.fma(q, b, e.neg(a))
    corrected = e.fma(more, e.neg(r), q)
    return e.select(e.isnan(corrected), q, corrected)


NUMBER_BITS = 20  # significant bits of a divisor up to which no quotient is nearer to a midpoint than 2**-45


def quotient_by_number(e: Emitter, a: Val, number: float) -> Val | None:
    """``a / number`` of float32 on a GPU, correctly rounded where the quotient is at least 2**-100, else within an ulp;
    None if the divisor has more than ``NUMBER_BITS`` significant bits, or its inverse is extreme.

    The inverse is the sum of two floats of one sign, within 2**-47 (Brisebarre, Muller and Raina, 2004), so that
    infinities stay: two instructions, where a division takes more than ten, and a branch."""
    mantissa, _ = math.frexp(number) if math.isfinite(number) else (0.0, 0)
    if not mantissa or mantissa * 2**NUMBER_BITS % 1 or not 2.0**-100 <= abs(number) <= 2.0**100:
        return None
    inverse = Fraction(1) / abs(Fraction(number))
    high = np.float32(float(inverse))
    if Fraction(float(high)) > inverse:
        high = np.nextafter(high, np.float32(0))
    rest = math.copysign(float(inverse - Fraction(float(high))), number)
    most = math.copysign(float(high), number)
    return e.fma(a, most, e.mul(a, rest)) if rest else e.mul(a, most)


def half_quotient_by(e: Emitter, a: Val, number: float) -> Val | None:
    """``a / number`` of float32 on a GPU within 1.5 ulp for all ``a``, as a multiplication; None if the inverse is not
    a normal number. A division takes more than ten instructions, and a branch for subnormals."""
    if not 2.0**-126 <= abs(float(number)) <= 2.0**126:
        return None
    return e.mul(a, float(np.float32(1 / np.float64(number))))
