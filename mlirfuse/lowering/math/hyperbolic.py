"""tanh, sinh, cosh and their inverses."""

from __future__ import annotations

from mlirfuse.lowering.emitter import Emitter, Val
from mlirfuse.lowering.math import coefficients as co
from mlirfuse.lowering.math.arithmetic import below, poly
from mlirfuse.lowering.math.division import has_approximations, rcp_approx, reciprocal
from mlirfuse.lowering.math.exponential import exp_inside, exp_scaled
from mlirfuse.lowering.math.formats import INF, NAN, format_of
from mlirfuse.lowering.math.logarithm import log1p_inside


def tanh(e: Emitter, x: Val) -> Val:
    """The hyperbolic tangent, within 2 ulp: ``1 - 2 / (exp(2x) + 1)``, below 0.6 a polynomial."""
    f = format_of(x)
    a = e.abs(x)
    top = below(e, a, 10.0 if f.bits == 32 else 20.0)  # from there on it rounds to 1
    q = reciprocal(e, e.add(exp_inside(e, e.add(top, top)), 1.0))
    far = e.fma(q, -2.0, 1.0)
    aa = e.mul(a, a)
    near = e.fma(e.mul(a, aa), poly(e, aa, co.TANH[f.bits]), a)
    return e.copysign(e.select(e.cmp("ge", a, 0.6), far, near), x)  # NaN takes the near branch


def _half_exp(e: Emitter, a: Val) -> tuple[Val, Val]:
    """exp(a) / 2 and exp(-a) / 2 for a >= 0."""
    half = exp_scaled(e, a, offset=-1)
    if has_approximations(e, a):
        return half, e.mul(rcp_approx(e, half), 0.25)
    return half, e.div(0.25, half)


def cosh(e: Emitter, x: Val) -> Val:
    """The hyperbolic cosine, within 2 ulp."""
    return e.add(*_half_exp(e, e.abs(x)))


def sinh(e: Emitter, x: Val) -> Val:
    """The hyperbolic sine, within 2 ulp; below 1 a polynomial."""
    f = format_of(x)
    a = e.abs(x)
    far = e.sub(*_half_exp(e, a))
    aa = e.mul(a, a)
    near = e.fma(e.mul(a, aa), poly(e, aa, co.SINH[f.bits]), a)
    return e.copysign(e.select(e.cmp("lt", a, 1.0), near, far), x)


def asinh(e: Emitter, x: Val) -> Val:
    """The inverse hyperbolic sine, within 3 ulp: ``log1p(x + x² / (1 + sqrt(1 + x²)))``, for huge x ``log(x) +
    ln2``."""
    f = format_of(x)
    a = e.abs(x)
    huge = e.cmp("gt", a, 2.0 ** (f.bias // 2 - 3))
    aa = e.mul(a, a)
    arg = e.add(a, e.div(aa, e.add(e.sqrt(e.add(aa, 1.0)), 1.0)))
    y = log1p_inside(e, e.select(huge, a, arg))
    y = e.select(huge, e.add(y, f.ln2[0]), y)
    y = e.select(e.cmp("lt", a, INF), y, a)
    return e.copysign(e.select(e.cmp("lt", a, 2.0 ** -(f.mantissa // 2 + 2)), a, y), x)


def acosh(e: Emitter, x: Val) -> Val:
    """The inverse hyperbolic cosine, within 3 ulp: ``log1p(t + sqrt(t (t + 2)))`` with ``t = x - 1``."""
    f = format_of(x)
    huge = e.cmp("gt", x, 2.0 ** (f.bias // 2 - 3))
    t = e.sub(x, 1.0)
    arg = e.add(t, e.sqrt(e.fma(t, t, e.add(t, t))))
    y = log1p_inside(e, e.select(huge, x, arg))
    y = e.select(huge, e.add(y, f.ln2[0]), y)
    y = e.select(e.cmp("lt", x, INF), y, x)
    y = e.select(e.cmp("eq", x, 1.0), 0.0, y)
    return e.select(e.cmp("ge", x, 1.0), y, e.const(NAN, x.dtype, x.lanes))


def atanh(e: Emitter, x: Val) -> Val:
    """The inverse hyperbolic tangent, within 3 ulp: ``log1p(2x / (1 - x)) / 2``."""
    f = format_of(x)
    a = e.abs(x)
    arg = e.div(e.add(a, a), e.sub(1.0, a))
    y = e.mul(log1p_inside(e, arg), 0.5)
    y = e.select(e.cmp("lt", a, 1.0), y, e.select(e.cmp("eq", a, 1.0), INF, e.const(NAN, x.dtype, x.lanes)))
    return e.copysign(e.select(e.cmp("lt", a, 2.0 ** -(f.mantissa // 2 + 2)), a, y), x)
