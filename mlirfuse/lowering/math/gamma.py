"""The logarithm of the gamma function."""

from __future__ import annotations

import math

from mlirfuse.ir import dtypes as dt
from mlirfuse.lowering.emitter import Emitter, Val
from mlirfuse.lowering.math import coefficients as co
from mlirfuse.lowering.math.arithmetic import poly
from mlirfuse.lowering.math.formats import INF, format_of
from mlirfuse.lowering.math.logarithm import log_positive
from mlirfuse.lowering.math.trigonometric import cos_poly, sin_poly


def _sin_pi(e: Emitter, a: Val) -> Val:
    """|sin(pi a)| for a >= 0."""
    f = format_of(a)
    t = e.abs(e.sub(a, e.rint(a)))
    swap = e.cmp("gt", t, 0.25)
    r = e.mul(e.select(swap, e.sub(0.5, t), t), 2 * f.pi_2[0])
    rr = e.mul(r, r)
    return e.select(swap, cos_poly(e, rr), sin_poly(e, r, rr))


def lgamma(e: Emitter, x: Val) -> Val:
    """log|gamma(x)|, for x > 0 within 1 ulp in float32, which is computed in float64, and within 4 ulp in float64.

    For x < 0, where the function has zeros between its poles, the error is within 4 ulp plus 1e-8 in float32, and in
    float64 within 1e-15 times ``1 + |log|sin(pi x)|| + lgamma(1 - x)``. Arguments below 1 are shifted by one
    (``lgamma(1 + x) - log(x)``) or reflected (``-log(|sin(pi x)| / pi) - lgamma(1 - x)``); polynomials are used up to
    8, Stirling's series above."""
    if x.dtype is dt.f32:
        return e.cast(_lgamma(e, e.cast(x, dt.f64), 32), dt.f32)
    return _lgamma(e, x, 64)


def _lgamma(e: Emitter, x: Val, precision: int) -> Val:
    a = e.abs(x)
    negative, small = e.cmp("lt", x, 0.0), e.cmp("lt", x, 1.0)
    above = e.select(small, a, e.sub(x, 1.0))  # z - 1
    z = e.select(small, e.add(a, 1.0), x)
    t = e.sub(above, 1.0)
    near = e.add(e.mul(e.mul(above, t), poly(e, t, co.LGAMMA_NEAR[precision])), 0.0)  # no -0
    middle = poly(e, e.sub(z, 5.5), co.LGAMMA_MIDDLE[precision])
    inverse = e.div(1.0, z)
    series = e.mul(inverse, poly(e, e.mul(inverse, inverse), co.LGAMMA_FAR[precision]))
    far = e.fma(e.sub(z, 0.5), e.sub(log_positive(e, z), 1.0), e.add(series, co.LGAMMA_CONSTANT))
    y = e.select(e.cmp("lt", z, 3.0), near, e.select(e.cmp("lt", z, 8.0), middle, far))
    reflected = e.select(e.cmp("lt", a, 2.0**-60), a, e.mul(_sin_pi(e, a), 1 / math.pi))
    argument = e.select(negative, reflected, a)
    logarithm = e.select(e.cmp("eq", argument, 0.0), -INF, log_positive(e, argument))
    y = e.select(small, e.sub(e.select(negative, e.neg(y), y), logarithm), y)
    pole = e.or_(e.cmp("eq", a, INF), e.and_(negative, e.cmp("eq", argument, 0.0)))
    y = e.select(pole, INF, y)
    return e.select(e.isnan(x), x, y)
