"""Elementary functions and random numbers, expanded to arithmetic on the :class:`Emitter`.

Every function takes and returns Vals of float32 or float64 with any number of lanes, and emits straight-line code for
both targets: fused multiply-adds, selects and integer operations on the exponent. No library is called. Rare expensive
cases are in a branch that is taken if any lane needs it (huge angles; the loop of ``fmod``).

Conventions: "ulp" is the largest observed error against the exact value, in units in the last place, including
subnormal results; tests check each function's bound. Special values are those of C99's annex F, as in NumPy.
Polynomials are minimax approximations (:mod:`mlirfuse.lowering.math.coefficients` documents how they were computed, and
their errors); a function's docstring gives the identity that reduces its argument to the polynomial's range. On the
GPU, float32 functions may use the hardware's ``ex2.approx`` and ``rcp.approx`` where those are accurate to an ulp.

This module exports the functions that ops and kernels use. Each file has a family of them; shared code is in
:mod:`~mlirfuse.lowering.math.formats`, :mod:`~mlirfuse.lowering.math.arithmetic` and
:mod:`~mlirfuse.lowering.math.division`."""

from mlirfuse.lowering.math.division import (
    corrected_reciprocal,
    half_quotient_by,
    inverse,
    quotient_by_inverse,
    quotient_by_number,
    quotient_by_size,
    quotient_of_share,
    reciprocal,
    rough_quotient,
    rounded_reciprocal,
    rsqrt,
)
from mlirfuse.lowering.math.error_function import erf, erfc, erfcinv, erfinv
from mlirfuse.lowering.math.exact import fmod, ldexp, nextafter, nextafter_of
from mlirfuse.lowering.math.exponential import exp, exp2, expm1, gap_between, rough_exp, share_of_larger, sum_of_exp
from mlirfuse.lowering.math.gamma import lgamma
from mlirfuse.lowering.math.hyperbolic import acosh, asinh, atanh, cosh, sinh, tanh
from mlirfuse.lowering.math.logarithm import log, log1p, log2, log10, log_of_sum, log_positive, logaddexp, logaddexp2
from mlirfuse.lowering.math.logistic import rough_sigmoid, sigmoid, silu, softplus
from mlirfuse.lowering.math.power import cbrt, hypot, pow, rough_pow
from mlirfuse.lowering.math.random import (
    normal_from_bits,
    normal_of_words,
    philox4x32,
    uniform_from_bits,
    uniform_of_words,
    words_at,
)
from mlirfuse.lowering.math.trigonometric import acos, asin, atan, atan2, cos, sin, tan

__all__ = [
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "corrected_reciprocal", "cos", "cosh", "erf",
    "erfc", "erfcinv", "erfinv", "exp", "exp2", "expm1", "fmod", "gap_between", "half_quotient_by", "hypot", "inverse",
    "ldexp", "lgamma", "log", "log1p", "log2", "log10", "log_of_sum", "log_positive", "logaddexp", "logaddexp2",
    "nextafter", "nextafter_of", "normal_from_bits", "normal_of_words", "philox4x32", "pow", "quotient_by_inverse",
    "quotient_by_number", "quotient_by_size", "quotient_of_share", "reciprocal", "rough_exp", "rough_pow",
    "rough_quotient", "rough_sigmoid", "rounded_reciprocal", "rsqrt", "share_of_larger", "sigmoid", "silu", "sin",
    "sinh", "softplus", "sum_of_exp", "tan", "tanh", "uniform_from_bits", "uniform_of_words", "words_at",
]  # fmt: skip
