"""Elementary functions and random numbers, expanded into arithmetic on the :class:`Emitter`.

Every function takes and gives Vals of float32 or float64 in any number of lanes and emits straight-line code for both
targets: fused multiply-adds, selects and integer operations on the exponent. No library is called. Rare cases that
would cost every element dearly sit behind a branch that is taken where any lane needs it (huge angles; the loop of
``fmod``).

Conventions. "ulp" is the largest error seen against the exact value, in units of the last place, subnormal results
included; the tests hold each function to its bound. Special values are those of C99's annex F, as NumPy gives them.
Polynomials are minimax ones of our own (:mod:`mlirfuse.lowering.math.coefficients`, which says how they were made and
how good they are); what a function's docstring says is the identity that reduces its argument to where its polynomial
is good. On the GPU, float32 functions may use the hardware's ``ex2.approx`` and ``rcp.approx`` on arguments where these
are good to a unit in the last place.

The functions that ops and kernels use are named here; a file holds a family of them, and what families share is in
:mod:`~mlirfuse.lowering.math.formats`, :mod:`~mlirfuse.lowering.math.arithmetic` and
:mod:`~mlirfuse.lowering.math.division`.
"""

from mlirfuse.lowering.math.division import (
    corrected_reciprocal,
    half_quotient_by,
    inverse,
    quotient_by_inverse,
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
from mlirfuse.lowering.math.power import cbrt, hypot, pow
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
    "quotient_by_size", "quotient_of_share", "reciprocal", "rough_exp", "rough_quotient", "rough_sigmoid",
    "rounded_reciprocal", "rsqrt", "share_of_larger", "sigmoid", "silu", "sin", "sinh", "softplus", "sum_of_exp",
    "tan", "tanh", "uniform_from_bits", "uniform_of_words", "words_at",
]  # fmt: skip
