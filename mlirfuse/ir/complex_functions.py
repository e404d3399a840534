"""Elementary functions of complex numbers in real arithmetic, for the pass `fusion-split-complex`.

A number is a pair of values, its real and its imaginary part. Zeros, infinities and NaN in either part give the results
of Annex G of the C standard, as torch does on the CPU. Branch cuts are those of C; on a cut, the sign of a zero selects
the side. No intermediate result overflows or underflows where the final one does not.

Sources: W. Kahan, "Branch cuts for complex elementary functions" (1987), for the inverse functions and ``sqrt``; the
others are their definitions in real and imaginary parts, without cancellation. ``test_complex_functions.py`` states and
measures their accuracy.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import ops as table
from mlirfuse.ir.builder import Builder
from mlirfuse.ir.graph import Value

Pair = tuple[Value, Value]  # real and imaginary parts


class RealOps:
    """Real ops by name, on values and numbers: ``r.mul(a, 2.0)``."""

    def __init__(self, builder: Builder):
        self.b = builder

    def __getattr__(self, name: str):
        if name.startswith("_") or name not in table.TABLE:
            raise AttributeError(name)

        def make(*operands, **attrs):
            dtype = next(v.dtype for v in reversed(operands) if isinstance(v, Value))
            return self.b.op(
                name, *(v if isinstance(v, Value) else self.b.constant(v, dtype) for v in operands), **attrs
            )

        return make

    def number(self, number: float, like: Value) -> Value:
        """Return ``number`` in the type of ``like``."""
        return self.b.constant(number, like.dtype)

    def any(self, *conditions: Value) -> Value:
        out = conditions[0]
        for c in conditions[1:]:
            out = self.logical_or(out, c)
        return out

    def all(self, *conditions: Value) -> Value:
        out = conditions[0]
        for c in conditions[1:]:
            out = self.logical_and(out, c)
        return out

    def either_infinite(self, x: Value, y: Value) -> Value:
        return self.logical_or(self.isinf(x), self.isinf(y))


class _Format:
    """Properties of a real type. ``log_max``: an integer below the logarithm of its largest number."""

    def __init__(self, eps: float, max_exponent: int, log_max: float):
        self.eps = eps
        self.root_eps = math.sqrt(eps)
        self.max_exponent = max_exponent
        self.log_max = log_max


_FORMATS = {dt.f32: _Format(2.0**-23, 128, 88.0), dt.f64: _Format(2.0**-52, 1024, 709.0)}


def _format(x: Value) -> _Format:
    return _FORMATS[x.dtype]


def multiply(r: RealOps, x: Pair, y: Pair) -> Pair:
    (a, b), (c, d) = x, y
    return r.sub(r.mul(a, c), r.mul(b, d)), r.add(r.mul(a, d), r.mul(b, c))


def quotient(r: RealOps, x: Pair, y: Pair) -> Pair:
    """Divide, scaled by the larger part of the divisor (Smith 1962), so that no square overflows. By 0: each part by
    itself."""
    (a, b), (c, d) = x, y
    first = r.ge(r.abs(c), r.abs(d))
    big, small = r.where(first, c, d), r.where(first, d, c)
    by_zero = r.logical_and(r.eq(c, 0), r.eq(d, 0))
    ratio = r.div(small, big)
    over = r.where(by_zero, 0.0, r.add(big, r.mul(small, ratio)))
    near, far = r.where(first, a, b), r.where(first, b, a)
    real = r.where(by_zero, a, r.add(near, r.mul(far, ratio)))
    # The imaginary part is (b - a * ratio) or (b * ratio - a).
    imag = r.sub(r.where(first, b, r.mul(b, ratio)), r.where(first, r.mul(a, ratio), a))
    return r.div(real, over), r.div(r.where(by_zero, b, imag), over)


def reciprocal(r: RealOps, z: Pair) -> Pair:
    return quotient(r, (r.number(1.0, z[0]), r.number(0.0, z[0])), z)


def sqrt(r: RealOps, z: Pair) -> Pair:
    """Return the principal square root. Very large and very small numbers are scaled by a power of 4."""
    re, im = z
    form = _format(re)
    a, b = r.abs(re), r.abs(im)
    largest = r.maximum(a, b)
    half = form.max_exponent // 4
    huge, tiny = r.ge(largest, 2.0 ** (form.max_exponent - 2)), r.lt(largest, 2.0 ** (4 - 2 * half))
    one = r.number(1.0, re)
    scale = r.where(huge, 2.0**-4, r.where(tiny, 2.0 ** (2 * half), one))
    a, b = r.mul(a, scale), r.mul(b, scale)
    long = r.sqrt(r.mul(r.add(a, r.hypot(a, b)), 0.5))
    short = r.where(r.eq(long, 0), long, r.div(r.mul(b, 0.5), long))
    back = r.where(huge, 2.0**2, r.where(tiny, 2.0**-half, one))
    long, short = r.mul(long, back), r.mul(short, back)
    right, infinite = r.ge(re, 0), r.isinf(im)
    real, imag = r.where(right, long, short), r.where(right, short, long)
    return r.where(infinite, math.inf, real), r.copysign(r.where(infinite, math.inf, imag), im)


def rsqrt(r: RealOps, z: Pair) -> Pair:
    return reciprocal(r, sqrt(r, z))


def _grown(r: RealOps, exponent: Value) -> tuple[Value, Value]:
    """Return two factors of e to the ``exponent``: the second is not 1 where a single number could overflow."""
    limit = _format(exponent).log_max
    over = r.gt(exponent, limit)
    return (
        r.exp(r.where(over, r.sub(exponent, limit), exponent)),
        r.where(over, math.exp(limit), r.number(1.0, exponent)),
    )


def exp(r: RealOps, z: Pair) -> Pair:
    re, im = z
    scale, more = _grown(r, re)
    # In glibc's order: beside a part that overflows the other one is its.
    real, imag = (r.mul(scale, r.mul(part, more)) for part in (r.cos(im), r.sin(im)))
    lost = r.logical_not(r.isfinite(im))  # no angle
    up, down = r.logical_and(lost, r.eq(re, math.inf)), r.logical_and(lost, r.eq(re, -math.inf))
    real = r.where(up, math.inf, r.where(down, 0.0, real))
    imag = r.where(down, r.copysign(0.0, im), r.where(r.eq(im, 0), im, imag))
    return r.where(r.eq(im, 0), r.exp(re), real), imag


def _log_parts(r: RealOps, z: Pair) -> tuple[Value, Value, Value, Value]:
    """Return the larger part of ``z``, half the logarithm of ``(abs(z) / larger part) ** 2``, the angle, and whether a
    part is infinite."""
    re, im = z
    a, b = r.abs(re), r.abs(im)
    first = r.ge(a, b)
    big, small = r.where(first, a, b), r.where(first, b, a)
    ratio = r.where(r.eq(big, 0), small, r.div(small, big))  # a NaN may be the smaller
    return big, r.mul(r.log1p(r.mul(ratio, ratio)), 0.5), r.atan2(im, re), r.either_infinite(re, im)


def log(r: RealOps, z: Pair) -> Pair:
    """log(big) + log1p((small / big)^2) / 2: where the two terms cancel, their error is small relative to the angle."""
    big, rest, angle, infinite = _log_parts(r, z)
    return r.where(infinite, math.inf, r.add(r.log(big), rest)), angle


def _log_to_base(logarithm: str, base: float) -> Callable[[RealOps, Pair], Pair]:
    def log_to_base(r: RealOps, z: Pair) -> Pair:
        factor = 1 / math.log(base)
        big, rest, angle, infinite = _log_parts(r, z)
        real = r.add(getattr(r, logarithm)(big), r.mul(rest, factor))
        return r.where(infinite, math.inf, real), r.mul(angle, factor)

    return log_to_base


def _hyperbolic(r: RealOps, x: Value) -> tuple[Value, Value, Value]:
    """Return sinh and cosh of ``x`` up to a common factor, and that factor: not 1 where they could overflow."""
    limit = _format(x).log_max
    size = r.abs(x)
    over = r.gt(size, limit)
    near = r.where(over, r.number(0.0, x), x)
    far = r.exp(r.where(over, r.sub(size, limit), r.number(0.0, x)))
    return (
        r.where(over, r.copysign(far, x), r.sinh(near)),
        r.where(over, far, r.cosh(near)),
        r.where(over, math.exp(limit) * 0.5, r.number(1.0, x)),
    )


def sinh(r: RealOps, z: Pair) -> Pair:
    x, y = z
    s, c, more = _hyperbolic(r, x)
    real = r.mul(s, r.mul(r.cos(y), more))
    imag = r.mul(c, r.mul(r.sin(y), more))
    lost = r.logical_and(r.isinf(x), r.logical_not(r.isfinite(y)))
    return r.where(lost, math.inf, r.where(r.eq(x, 0), x, real)), r.where(r.eq(y, 0), y, imag)


def cosh(r: RealOps, z: Pair) -> Pair:
    x, y = z
    s, c, more = _hyperbolic(r, x)
    real = r.mul(c, r.mul(r.cos(y), more))
    imag = r.mul(s, r.mul(r.sin(y), more))
    lost = r.logical_and(r.isinf(x), r.logical_not(r.isfinite(y)))
    lost_zero = r.logical_and(r.logical_or(r.eq(x, 0), r.eq(y, 0)), r.isnan(imag))  # 0 times an infinity or NaN
    signed = r.where(r.isnan(x), r.abs(x), x)
    zero = r.where(r.isfinite(y), r.mul(r.copysign(0.0, signed), r.copysign(1.0, y)), 0.0)
    real = r.where(r.eq(y, 0), r.cosh(x), r.where(lost, math.inf, real))
    return real, r.where(lost_zero, zero, imag)


def tanh(r: RealOps, z: Pair) -> Pair:
    """(sinh x cosh x + i sin y cos y) / (sinh^2 x + cos^2 y); for large |x|, where sinh and cosh are equal, 1 and 4 sin
    y cos y e^(-2 |x|)."""
    x, y = z
    size = r.abs(x)
    far = r.gt(size, -0.75 * math.log(_format(x).eps))
    near = r.where(far, r.number(0.0, x), x)
    s, c, sin_y, cos_y = r.sinh(near), r.cosh(near), r.sin(y), r.cos(y)
    under = r.add(r.mul(s, s), r.mul(cos_y, cos_y))
    sin_cos = r.mul(sin_y, cos_y)
    real = r.where(far, r.copysign(1.0, x), r.div(r.mul(s, c), under))
    decayed = r.mul(r.exp(r.neg(size)), 2.0)
    imag = r.where(far, r.mul(r.mul(sin_cos, decayed), decayed), r.div(sin_cos, under))
    aimless, limit = r.logical_not(r.isfinite(y)), r.isinf(x)
    real = r.where(r.logical_and(aimless, r.logical_not(limit)), math.nan, real)
    imag = r.where(r.logical_and(aimless, limit), r.copysign(0.0, y), r.where(r.eq(y, 0), y, imag))
    return r.where(r.eq(x, 0), x, real), imag


def _rotated(function: Callable[[RealOps, Pair], Pair]) -> Callable[[RealOps, Pair], Pair]:
    """-i f(i z): tan from tanh, asinh from asin, atan from atanh, and nearly sin from sinh."""

    def rotated(r: RealOps, z: Pair) -> Pair:
        real, imag = function(r, (r.neg(z[1]), z[0]))
        return imag, r.neg(real)

    return rotated


def sin(r: RealOps, z: Pair) -> Pair:
    """-i sinh(i z), except that an infinity with an undefined angle is positive."""
    real, imag = _rotated(sinh)(r, z)
    return real, r.where(r.logical_and(r.isnan(real), r.isinf(imag)), math.inf, imag)


def cos(r: RealOps, z: Pair) -> Pair:
    return cosh(r, (r.neg(z[1]), z[0]))


def _roots(r: RealOps, z: Pair) -> tuple[Value, Value, Value, Value, Value, Value]:
    """Return, for the inverse functions: ``|x|`` and ``|y|``, scaled down by 16 where a product of roots could
    overflow; the summand that this adds to a logarithm; sqrt(1 - z) without its sign, (a, b), and sqrt(1 + z), (c, d),
    of ``|x| + i |y|``."""
    x, y = r.abs(z[0]), r.abs(z[1])
    huge = r.ge(r.maximum(x, y), 2.0 ** (_format(x).max_exponent - 4))
    scale = r.where(huge, 1 / 16, r.number(1.0, x))
    x, y = r.mul(x, scale), r.mul(y, scale)
    added = r.where(huge, math.log(16), r.number(0.0, x))
    a, b = sqrt(r, (r.sub(1.0, x), y))
    c, d = sqrt(r, (r.add(x, 1.0), y))
    size = r.add(r.asinh(r.add(r.mul(a, d), r.mul(b, c))), added)
    return x, a, b, c, d, size


def asin(r: RealOps, z: Pair) -> Pair:
    x, a, b, c, d, size = _roots(r, z)
    infinite = r.either_infinite(*z)
    real = r.atan2(x, r.add(r.mul(a, c), r.mul(b, d)))
    real = r.where(infinite, r.atan2(r.abs(z[0]), r.abs(z[1])), r.where(r.eq(z[0], 0), x, real))
    return r.copysign(real, z[0]), r.copysign(r.where(infinite, math.inf, size), z[1])


def acos(r: RealOps, z: Pair) -> Pair:
    _, a, _, c, _, size = _roots(r, z)
    infinite = r.either_infinite(*z)
    left = r.lt(z[0], 0)
    real = r.mul(r.atan2(r.where(left, c, a), r.where(left, a, c)), 2.0)
    real = r.where(infinite, r.atan2(r.abs(z[1]), z[0]), r.where(r.eq(z[0], 0), math.pi / 2, real))
    return real, r.neg(r.copysign(r.where(infinite, math.inf, size), z[1]))


def acosh(r: RealOps, z: Pair) -> Pair:
    real, imag = acos(r, z)
    return r.abs(imag), r.copysign(real, z[1])


def atanh(r: RealOps, z: Pair) -> Pair:
    """The atanh of ``|x| + i |y|``, with the signs of the parts."""
    x, y = r.abs(z[0]), r.abs(z[1])
    form = _format(x)
    infinite = r.either_infinite(x, y)
    first = r.ge(x, y)
    big, small = r.where(first, x, y), r.where(first, y, x)
    far = r.gt(big, 2.0 ** (form.max_exponent // 2 - 2))
    ratio = r.div(small, big)
    beyond = r.div(r.div(r.div(x, big), big), r.add(r.mul(ratio, ratio), 1.0))  # the real part of 1 / z
    one_minus_x = r.sub(1.0, x)
    square = r.mul(y, y)
    pole = r.logical_and(r.eq(x, 1.0), r.lt(y, form.root_eps))
    size = r.mul(r.log1p(r.div(r.mul(x, 4.0), r.add(r.mul(one_minus_x, one_minus_x), square))), 0.25)
    size = r.where(pole, r.mul(r.sub(math.log(2), r.log(y)), 0.5), size)
    size = r.where(infinite, 0.0, r.where(far, beyond, size))
    angle = r.mul(r.atan2(r.mul(y, 2.0), r.sub(r.mul(one_minus_x, r.add(x, 1.0)), square)), 0.5)
    quarter = r.where(r.isnan(y), y, r.where(r.logical_and(r.isnan(x), r.isfinite(y)), x, math.pi / 2))
    angle = r.where(r.logical_or(infinite, far), quarter, angle)
    return r.copysign(r.where(r.eq(x, 0), x, size), z[0]), r.copysign(
        r.where(r.eq(y, 0), _angle_on_axis(r, x), angle), z[1]
    )


def _angle_on_axis(r: RealOps, x: Value) -> Value:
    """Return the imaginary part of atanh of a real ``x``, which is not NaN, at or above 0."""
    return r.where(r.gt(x, 1.0), math.pi / 2, r.where(r.isnan(x), x, r.number(0.0, x)))


def sigmoid(r: RealOps, z: Pair) -> Pair:
    """1 / (1 + e^-z), or e^z / (1 + e^z) for a negative real part."""
    left = r.lt(z[0], 0)
    w = exp(r, (r.where(left, z[0], r.neg(z[0])), r.where(left, z[1], r.neg(z[1]))))
    over = (r.where(left, w[0], 1.0), r.where(left, w[1], 0.0))
    return quotient(r, over, (r.add(w[0], 1.0), w[1]))


def power(r: RealOps, x: Pair, y: Pair) -> Pair:
    """e^(y log x); 1 where y is 0, and 0 where x is 0 and the real part of y is above 0."""
    real, imag = exp(r, multiply(r, y, log(r, x)))
    nothing = r.all(r.eq(x[0], 0), r.eq(x[1], 0), r.gt(y[0], 0))
    one = r.logical_and(r.eq(y[0], 0), r.eq(y[1], 0))
    return (
        r.where(one, 1.0, r.where(nothing, 0.0, real)),
        r.where(r.logical_or(one, nothing), 0.0, imag),
    )


FUNCTIONS: dict[str, Callable[..., Pair]] = {
    "mul": multiply,
    "div": quotient,
    "reciprocal": reciprocal,
    "sqrt": sqrt,
    "rsqrt": rsqrt,
    "exp": exp,
    "log": log,
    "log2": _log_to_base("log2", 2.0),
    "log10": _log_to_base("log10", 10.0),
    "sinh": sinh,
    "cosh": cosh,
    "tanh": tanh,
    "sin": sin,
    "cos": cos,
    "tan": _rotated(tanh),
    "asin": asin,
    "acos": acos,
    "asinh": _rotated(asin),
    "acosh": acosh,
    "atanh": atanh,
    "atan": _rotated(atanh),
    "sigmoid": sigmoid,
    "pow": power,
}
