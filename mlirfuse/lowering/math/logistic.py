"""sigmoid, silu and softplus."""

from __future__ import annotations

from mlirfuse.lowering.emitter import Emitter, Val
from mlirfuse.lowering.math import coefficients as co
from mlirfuse.lowering.math.arithmetic import above, scale_magic
from mlirfuse.lowering.math.division import has_approximations, quotient, reciprocal
from mlirfuse.lowering.math.exponential import (
    EXPONENT_BITS,
    exp,
    exp_hardware,
    exp_poly,
    exp_reduce,
    fma_down,
    rough_exp,
)
from mlirfuse.lowering.math.formats import INF, NAN, format_of
from mlirfuse.lowering.math.logarithm import log1p_of_unit


def sigmoid(e: Emitter, x: Val) -> Val:
    """``1 / (1 + exp(-x))``, within 2.5 ulp (3.5 on the GPU in float32), also for subnormal results."""
    a = e.abs(x)
    t = exp(e, e.neg(a), negative=True)
    return quotient(e, e.select(e.cmp("lt", x, 0.0), t, 1.0), e.add(t, 1.0))


def rough_sigmoid(e: Emitter, x: Val) -> Val:
    """``1 / (1 + exp(-x))`` of float32 on a GPU within ``(4 + |x| / 5)`` ulp; 0 if that is subnormal."""
    return reciprocal(e, e.add(rough_exp(e, e.neg(x)), 1.0))


def silu(e: Emitter, x: Val) -> Val:
    """``x / (1 + exp(-x))``, within 3 ulp (4 on the GPU in float32), also for subnormal results; NaN for -inf.

    For negative x it is ``x exp(x) / (1 + exp(x))``, with x multiplied in before the power of two, with which the
    exponential would be subnormal earlier."""
    f = format_of(x)
    clamped = above(e, x, f.exp_low - 16)  # below, the result is 0
    down = e.neg(e.abs(clamped))
    if has_approximations(e, x):
        p, lifted = exp_hardware(
            e, down, above(e, fma_down(e, down, co.LOG2E, EXPONENT_BITS), EXPONENT_BITS - 149.0), 32
        )
        power = e.mul(lifted, 2.0**-32)  # exact, down to the smallest subnormal number
        t, product = e.mul(p, power), e.mul(e.mul(p, clamped), power)
    else:
        r, n = exp_reduce(e, above(e, down, f.exp_low - 16))
        p = exp_poly(e, r)
        t, product = scale_magic(e, p, n), scale_magic(e, e.mul(p, clamped), n)
    y = quotient(e, e.select(e.cmp("lt", x, 0.0), product, x), e.add(t, 1.0))
    if has_approximations(e, x):
        y = e.select(e.cmp("eq", x, INF), x, y)  # the GPU's quotient does not support infinities
    return e.select(e.cmp("eq", x, -INF), e.const(NAN, x.dtype, x.lanes), y)


def softplus(e: Emitter, x: Val) -> Val:
    """``log(1 + exp(x))`` as ``max(x, 0) + log1p(exp(-|x|))``, within 3 ulp (4 on the GPU in float32)."""
    t = exp(e, e.neg(e.abs(x)), negative=True)
    return e.add(above(e, x, 0.0), log1p_of_unit(e, t))
