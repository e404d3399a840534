"""erf, erfc and their inverses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlirfuse.lowering.emitter import Emitter, Val
from mlirfuse.lowering.math import coefficients as co
from mlirfuse.lowering.math.arithmetic import below, poly, two_product
from mlirfuse.lowering.math.division import quotient
from mlirfuse.lowering.math.exponential import exp2_inside, exp_inside, exp_scaled
from mlirfuse.lowering.math.formats import INF, NAN, format_of
from mlirfuse.lowering.math.logarithm import log_positive


def _erfc_parts(e: Emitter, a: Val) -> tuple[Val, Val, Val]:
    """``erfc(a) = exp(s + low) factor`` for a >= 0."""
    f = format_of(a)
    k, limit = co.ERFC_CENTER[f.bits], co.ERFC_LIMIT[f.bits]
    a = below(e, a, limit)
    t = quotient(e, e.sub(a, k), e.add(a, k))
    factor = quotient(e, poly(e, t, co.ERFC[f.bits]), e.fma(a, 2.0, 1.0))
    s, low = two_product(e, a, a)
    return e.neg(s), e.neg(low), factor


def erfc(e: Emitter, x: Val) -> Val:
    """1 - erf(x), within 4 ulp, also for subnormal results.

    ``exp(-x²) P(t) / (1 + 2x)`` with ``t = (x - k) / (x + k)`` and x² as a pair; below 0.65, ``1 - erf(x)``."""
    a = e.abs(x)
    s, low, factor = _erfc_parts(e, a)
    y = exp_scaled(e, s, low, factor)
    y = e.select(e.cmp("lt", x, 0.0), e.sub(2.0, y), y)
    near = e.sub(1.0, e.fma(x, poly(e, e.mul(x, x), co.ERF[x.dtype.bits]), x))
    return e.select(e.cmp("lt", a, 0.65), near, y)


def erf(e: Emitter, x: Val) -> Val:
    """The error function, within 2 ulp: an odd polynomial below 1; above it ``1 - 2**P(x)`` in float32, 1 - erfc in
    float64."""
    f = format_of(x)
    a = e.abs(x)
    aa = e.mul(a, a)
    near = e.fma(a, poly(e, aa, co.ERF[f.bits]), a)
    if f.bits == 32:
        top = below(e, a, 4.0)
        far = e.sub(1.0, exp2_inside(e, e.mul(top, poly(e, top, co.ERF_HIGH))))
    else:
        s, low, factor = _erfc_parts(e, below(e, a, 6.0))
        far = e.sub(1.0, e.mul(exp_inside(e, s), e.mul(factor, e.add(low, 1.0))))
    return e.copysign(e.select(e.cmp("ge", a, 1.0), far, near), x)  # NaN takes the near branch


def _erfinv_parts(e: Emitter, x: Val, w: Val, s: Val) -> Val:
    """The inverse error function of x as ``x g(w)``, with ``w = -log(1 - x²)`` up to its value for the last x below 1,
    and s the square root of w."""
    intervals: Sequence[Any] = co.ERFINV[x.dtype.bits]  # first (end, coefficients), others (end, center, coefficients)
    (end, coefficients), *others = intervals
    y = poly(e, w, coefficients)
    for next_end, center, coefficients in others:
        y = e.select(e.cmp("lt", w, end), y, poly(e, e.sub(s, center), coefficients))
        end = next_end
    return e.mul(x, y)


def erfinv(e: Emitter, x: Val) -> Val:
    """The inverse of erf, within 2.5 ulp: ``x g(-log(1 - x²))``, with g by polynomials in the logarithm or its square
    root."""
    t = e.fma(e.neg(x), x, 1.0)
    w = e.neg(log_positive(e, t))
    y = _erfinv_parts(e, x, w, e.sqrt(e.max(w, 0.0)))
    y = e.select(e.cmp("eq", t, 0.0), e.mul(x, INF), y)
    return e.select(e.cmp("ge", t, 0.0), y, e.const(NAN, x.dtype, x.lanes))


def erfcinv(e: Emitter, x: Val) -> Val:
    """The inverse of erfc, within 3.5 ulp, also for subnormal x: like :func:`erfinv` of 1 - x, with ``w = -log(x (2 -
    x))``.

    For w beyond erfinv's range, a polynomial in ``(s - k) / (s + k)`` with s the square root of w."""
    f = format_of(x)
    u = e.sub(1.0, x)
    # near 1, t is 1 - u² rounded once; near 0, x (2 - x) keeps x's bits
    t = e.select(e.cmp("lt", e.abs(u), 0.5), e.fma(e.neg(u), u, 1.0), e.mul(x, e.sub(2.0, x)))
    w = e.neg(log_positive(e, t))
    s = e.sqrt(e.max(w, 0.0))
    y = _erfinv_parts(e, u, w, s)
    start, center, coefficients = co.ERFCINV_FAR[f.bits]
    far = e.mul(s, poly(e, quotient(e, e.sub(s, center), e.add(s, center)), coefficients))
    y = e.select(e.cmp("gt", w, start), far, y)
    y = e.select(e.cmp("eq", t, 0.0), e.mul(u, INF), y)
    return e.select(e.cmp("ge", t, 0.0), y, e.const(NAN, x.dtype, x.lanes))
