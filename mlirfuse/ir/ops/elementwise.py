"""Rows of elementwise ops."""

from __future__ import annotations

import math as pymath

import numpy as np

from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.ops.registry import ANY, BOOL, COMPLEX, FLOAT, INT, NARROW, NUMBER, quietly, row


def _unary(name, doc, ref, takes=ANY, result="same", numpy=None, nvfuser=None, torch=None, cost=1):
    row(
        name,
        "elementwise",
        "x",
        doc,
        takes=takes,
        result=result,
        ref=ref,
        cost=cost,
        numpy=name if numpy is None else numpy,
        nvfuser=name if nvfuser is None else nvfuser,
        torch=name if torch is None else torch,
    )


def _floats(name, ref, doc, cost=10, numpy=None, nvfuser=None, takes=FLOAT, torch=None):
    _unary(name, doc, ref, takes, numpy=numpy, nvfuser=nvfuser, torch=torch, cost=cost)


def _via_f64(function):
    """Return a reference that applies a scalar function of :mod:`math` in float64, rounded to the operand's type: for
    functions that NumPy lacks."""
    vector = np.vectorize(function, otypes=[np.float64])

    def ref(*arrays):
        result = (
            vector(*(np.asarray(a, np.float64) for a in arrays))
            if np.broadcast(*arrays).size
            else np.empty(np.broadcast(*arrays).shape)
        )
        return result.astype(arrays[0].dtype)

    return ref


def _lgamma(x):
    if pymath.isinf(x):
        return pymath.inf
    if x <= 0 and x == int(x):
        return pymath.inf
    try:
        return pymath.lgamma(x)
    except OverflowError:
        return pymath.inf


def _erfinv(y):
    """Newton's method on erf, from Winitzki's closed form; float64."""
    if not -1 < y < 1:
        return pymath.copysign(pymath.inf, y) if abs(y) == 1 else pymath.nan
    if y == 0:
        return y
    w = pymath.log1p(-y * y)
    t = 2 / (pymath.pi * 0.147) + w / 2
    x = pymath.copysign(pymath.sqrt(pymath.sqrt(t * t - w / 0.147) - t), y)
    for _ in range(4):
        error = pymath.erf(x) - y if abs(y) < 0.5 else ((1 - abs(y)) - pymath.erfc(abs(x))) * pymath.copysign(1, y)
        x -= error / (2 / pymath.sqrt(pymath.pi) * pymath.exp(-x * x))
    return x


def _erfcinv(y):
    if not 0 < y < 2:
        return {0.0: pymath.inf, 2.0: -pymath.inf}.get(y, pymath.nan)
    if y >= 0.25:
        return _erfinv(1 - y)
    x = pymath.sqrt(-pymath.log(y * pymath.sqrt(pymath.pi * -pymath.log(y))))
    for _ in range(8):
        if y > 1e-290:
            x += (pymath.erfc(x) - y) / (2 / pymath.sqrt(pymath.pi) * pymath.exp(-x * x))
        else:  # erfc becomes subnormal, with few digits left: the logarithm of its asymptotic series
            u = 1 / (2 * x * x)
            log = (
                -x * x - pymath.log(x * pymath.sqrt(pymath.pi)) + pymath.log1p(u * (-1 + u * (3 + u * (-15 + u * 105))))
            )
            x += (log - pymath.log(y)) / (2 * x + 1 / x)
    return x


def _sigmoid(x):
    with np.errstate(over="ignore"):
        return (1 / (1 + np.exp(-x))).astype(x.dtype)


_floats("exp", np.exp, "e to the x", takes=FLOAT + COMPLEX)
_floats("exp2", np.exp2, "2 to the x")
_floats("expm1", np.expm1, "exp(x) - 1 without cancellation", 14)
_floats("log", np.log, "natural logarithm", takes=FLOAT + COMPLEX)
_floats("log2", np.log2, "logarithm to base 2", takes=FLOAT + COMPLEX)
_floats("log10", np.log10, "logarithm to base 10", takes=FLOAT + COMPLEX)
_floats("log1p", np.log1p, "log(1 + x) without cancellation", 14)
_floats("sqrt", np.sqrt, "square root", 6, takes=FLOAT + COMPLEX)
_floats("rsqrt", lambda x: (1 / np.sqrt(x)).astype(x.dtype), "1 / sqrt(x)", 8, takes=FLOAT + COMPLEX)
_floats("cbrt", np.cbrt, "cube root", 14, nvfuser="", torch="")
_floats("sin", np.sin, "sine", 20, takes=FLOAT + COMPLEX)
_floats("cos", np.cos, "cosine", 20, takes=FLOAT + COMPLEX)
_floats("tan", np.tan, "tangent", 24, takes=FLOAT + COMPLEX)
_floats("asin", np.arcsin, "inverse sine", 16, "arcsin asin", takes=FLOAT + COMPLEX)
_floats("acos", np.arccos, "inverse cosine", 16, "arccos acos", takes=FLOAT + COMPLEX)
_floats("atan", np.arctan, "inverse tangent", 16, "arctan atan", takes=FLOAT + COMPLEX)
_floats("sinh", np.sinh, "hyperbolic sine", 16, takes=FLOAT + COMPLEX)
_floats("cosh", np.cosh, "hyperbolic cosine", 16, takes=FLOAT + COMPLEX)
_floats("tanh", np.tanh, "hyperbolic tangent", 14, takes=FLOAT + COMPLEX)
_floats("asinh", np.arcsinh, "inverse hyperbolic sine", 20, "arcsinh asinh", takes=FLOAT + COMPLEX)
_floats("acosh", np.arccosh, "inverse hyperbolic cosine", 20, "arccosh acosh", takes=FLOAT + COMPLEX)
_floats("atanh", np.arctanh, "inverse hyperbolic tangent", 20, "arctanh atanh", takes=FLOAT + COMPLEX)
_floats("erf", _via_f64(pymath.erf), "error function", 16, "")
_floats("erfc", _via_f64(pymath.erfc), "1 - erf(x) without cancellation", 20, "")
_floats("erfinv", _via_f64(_erfinv), "inverse of erf", 24, "")
_floats("erfcinv", _via_f64(_erfcinv), "inverse of erfc", 24, "", torch="")
_floats("lgamma", _via_f64(_lgamma), "logarithm of the absolute value of the gamma function", 40, "")
_floats("sigmoid", _sigmoid, "1 / (1 + exp(-x))", 14, "", takes=FLOAT + COMPLEX)
_floats("silu", lambda x: x * _sigmoid(x), "x * sigmoid(x)", 15, "")
_floats("reciprocal", lambda x: (1 / x).astype(x.dtype), "1 / x", 4, takes=FLOAT + COMPLEX)
_floats("frac", lambda x: x - np.trunc(x), "x - trunc(x)", 2, "")


def _rounding(function):
    return lambda x: np.copy(x) if x.dtype.kind in "iu" else function(x).astype(x.dtype)


_unary("neg", "-x", np.negative, NUMBER + COMPLEX, numpy="negative")
_unary("abs", "absolute value", np.abs, NUMBER + COMPLEX, "real", numpy="absolute abs fabs")
_unary("sign", "-1, 0 or 1; NaN stays", np.sign, NUMBER, nvfuser="sign", torch="")
_unary("floor", "largest integer not above x", _rounding(np.floor), NUMBER)
_unary("ceil", "smallest integer not below x", _rounding(np.ceil), NUMBER)
_unary("trunc", "toward zero", _rounding(np.trunc), NUMBER, numpy="trunc fix")
_unary("round", "to the nearest integer, halves to even", _rounding(np.rint), NUMBER, numpy="rint")
_unary("relu", "the larger of x and 0; NaN stays", lambda x: np.maximum(x, x.dtype.type(0)), NUMBER, numpy="")
_unary("isnan", "is NaN", np.isnan, ANY + COMPLEX, "bool")
_unary("isinf", "is +inf or -inf", np.isinf, ANY + COMPLEX, "bool")
_unary("isfinite", "is neither NaN nor infinite", np.isfinite, ANY + COMPLEX, "bool")
_unary("isposinf", "is +inf", lambda x: x == np.inf, ANY, "bool")
_unary("isneginf", "is -inf", lambda x: x == -np.inf, ANY, "bool")
_unary("isreal", "has no imaginary part", np.isreal, ANY + COMPLEX, "bool", torch="")
_unary(
    "signbit", "has its sign bit set", lambda x: np.signbit(x) if x.dtype.kind not in "iub" else x < 0, NUMBER, "bool"
)
_unary("logical_not", "is zero", np.logical_not, ANY, "bool")
_unary("bitwise_not", "bits inverted", np.invert, INT + BOOL, numpy="invert bitwise_not bitwise_invert")


def _binary(name, doc, ref, takes=NUMBER, result="same", numpy=None, nvfuser=None, torch=None, cost=1):
    row(
        name,
        "elementwise",
        "a b",
        doc,
        takes=takes,
        result=result,
        ref=ref,
        cost=cost,
        numpy=name if numpy is None else numpy,
        nvfuser=name if nvfuser is None else nvfuser,
        torch=name if torch is None else torch,
    )


def _ceil_div(a, b):
    if a.dtype.kind not in "iu":
        return np.ceil(a / b)
    return -((-a) // b) if a.dtype.kind not in "iu" else np.where(b == 0, 0, (a // b) + (a % b != 0)).astype(a.dtype)


def _trunc_div(a, b):
    if a.dtype.kind in "iu":
        safe = np.where(b == 0, b.dtype.type(1), b)
        return np.where(
            b == 0, 0, np.trunc_divide(a, safe) if hasattr(np, "trunc_divide") else (a - np.fmod(a, safe)) // safe
        ).astype(a.dtype)
    return np.trunc(a / b)


def _pow_ref(a, b):
    if a.dtype.kind == "i" and np.any(b < 0):
        inverse = np.where(a == 1, 1, np.where(a == -1, np.where(b % 2 == 1, -1, 1), 0))
        return np.where(b < 0, inverse, np.power(a, np.maximum(b, 0))).astype(a.dtype)
    return np.power(a, b)


def _shr_logical_ref(a, b):
    unsigned = np.dtype(f"u{a.dtype.itemsize}")
    return np.right_shift(
        a.view(unsigned) if a.ndim else np.asarray(a).view(unsigned), np.asarray(b).astype(unsigned)
    ).view(a.dtype)


_binary("add", "a + b", np.add, ANY + COMPLEX, torch="")
_binary("sub", "a - b", np.subtract, NUMBER + COMPLEX, numpy="subtract", torch="")
_binary("mul", "a * b", np.multiply, ANY + COMPLEX, numpy="multiply", torch="")
_binary(
    "div",
    "a / b of floats",
    quietly(np.divide),
    FLOAT + COMPLEX,
    numpy="divide true_divide",
    nvfuser="div truediv",
    cost=4,
    torch="",
)
_binary("trunc_div", "a / b rounded toward zero; integers by 0 give 0", quietly(_trunc_div), cost=8, numpy="", torch="")
_binary(
    "floor_div",
    "a / b rounded down; integers by 0 give 0",
    quietly(np.floor_divide),
    cost=20,
    numpy="floor_divide",
    nvfuser="",
    torch="",
)
_binary("ceil_div", "a / b rounded up; integers by 0 give 0", quietly(_ceil_div), cost=10, numpy="", torch="")
_binary(
    "mod",
    "remainder with the divisor's sign; integers by 0 give 0",
    quietly(np.remainder),
    cost=20,
    numpy="remainder mod",
    nvfuser="remainder",
    torch="",
)
_binary(
    "fmod",
    "remainder with the dividend's sign; integers by 0 give 0",
    quietly(np.fmod),
    cost=20,
    nvfuser="fmod mod",
    torch="",
)
_binary("pow", "a to the b", quietly(_pow_ref), NUMBER + COMPLEX, cost=40, numpy="power pow", torch="")
_binary("atan2", "the angle of (b, a)", np.arctan2, FLOAT, cost=24, numpy="arctan2 atan2")
_binary("hypot", "sqrt(a*a + b*b) without overflow", quietly(np.hypot), FLOAT, cost=16, nvfuser="")
_binary("copysign", "a with b's sign", np.copysign, FLOAT, nvfuser="")
_binary(
    "nextafter",
    "the next number after a toward b, b where they are equal",  # float16 too, as NumPy from 2.5 on
    lambda a, b: np.where(a == b, b, np.nextafter(a, b)),
    FLOAT,
    cost=8,
)
_binary("logaddexp", "log(exp(a) + exp(b))", quietly(np.logaddexp), FLOAT, cost=30, nvfuser="")
_binary("logaddexp2", "log2(2**a + 2**b)", quietly(np.logaddexp2), FLOAT, cost=30, nvfuser="")
_binary("maximum", "the larger; NaN if either is", np.maximum, ANY)
_binary("minimum", "the smaller; NaN if either is", np.minimum, ANY)
_binary("fmax", "the larger; NaN if both are", np.fmax, ANY, nvfuser="")
_binary("fmin", "the smaller; NaN if both are", np.fmin, ANY, nvfuser="")
_binary("gcd", "greatest common divisor", np.gcd, INT, cost=400)
for _name, _numpy, _function in (
    ("eq", "equal", np.equal),
    ("ne", "not_equal", np.not_equal),
    ("lt", "less", np.less),
    ("le", "less_equal", np.less_equal),
    ("gt", "greater", np.greater),
    ("ge", "greater_equal", np.greater_equal),
):
    _takes = ANY + COMPLEX if _name in ("eq", "ne") else ANY
    _binary(_name, f"a {_name} b", _function, _takes, "bool", numpy=_numpy)
_binary("logical_and", "both nonzero", np.logical_and, ANY, "bool")
_binary("logical_or", "either nonzero", np.logical_or, ANY, "bool")
_binary("logical_xor", "exactly one nonzero", np.logical_xor, ANY, "bool", nvfuser="")
_binary("bitwise_and", "bits of both", np.bitwise_and, INT + BOOL)
_binary("bitwise_or", "bits of either", np.bitwise_or, INT + BOOL)
_binary("bitwise_xor", "bits of exactly one", np.bitwise_xor, INT + BOOL)
_binary(
    "shift_left",
    "a shifted left by b bits",
    np.left_shift,
    INT,
    numpy="left_shift bitwise_left_shift",
    nvfuser="bitwise_left_shift",
    torch="",
)
_binary(
    "shift_right",
    "a shifted right by b bits, keeping the sign",
    np.right_shift,
    INT,
    numpy="right_shift bitwise_right_shift",
    nvfuser="bitwise_right_shift",
    torch="",
)
_binary(
    "shift_right_logical",
    "a shifted right by b bits, zeros coming in",
    _shr_logical_ref,
    INT,
    numpy="",
    nvfuser="logical_right_shift",
    torch="",
)


def _complex_ref(a, b):
    out = np.empty(np.broadcast_shapes(a.shape, b.shape), dt.of(a.dtype).complex.numpy)
    out.real, out.imag = a, b
    return out


def _cast_ref(x, to):
    if to.kind == "n":
        largest = np.float32(dt.NARROW_FORMATS[to][2])
        x = np.clip(x.astype(np.float32), -largest, largest)
    return x.astype(to.numpy)


def _where_dtypes(dtypes, attrs):
    if dtypes[0] is not dt.bool_:
        return f"the condition is {dtypes[0]}, not bool"
    return None if dtypes[1] is dtypes[2] else f"the branches are {dtypes[1]} and {dtypes[2]}, not of one element type"


_unary("real", "the real part", np.real, ANY + COMPLEX, "real", numpy="", torch="")
_unary("imag", "the imaginary part", np.imag, COMPLEX, "real", numpy="", torch="")
_unary("conj", "the complex conjugate", np.conj, NUMBER + COMPLEX, numpy="", nvfuser="", torch="")
_binary("complex", "the complex number a + b i", _complex_ref, FLOAT, "complex", numpy="", torch="")
row(
    "where",
    "elementwise",
    "condition a b",
    "a where condition, else b",
    chooses=True,
    ref=np.where,
    operand_dtypes=_where_dtypes,
    numpy="where",
    nvfuser="where",
)
row(
    "cast",
    "elementwise",
    "x",
    "conversion to another element type",
    result="to",
    attrs={"to": ...},
    takes=ANY + COMPLEX + NARROW,
    ref=quietly(_cast_ref),
    nvfuser="cast",
)
row(
    "copy",
    "elementwise",
    "x",
    "a copy in separate memory",
    identity=True,
    ref=np.copy,
    takes=ANY + COMPLEX + NARROW,
    numpy="copy",
    nvfuser="set",
)
row(
    "segment_set",
    "elementwise",
    "x",
    "the same values; a barrier: its operand and its users go into different kernels",
    identity=True,
    barrier=True,
    ref=np.copy,
    takes=ANY + COMPLEX + NARROW,
    nvfuser="segment_set",
)
for _dtype in dt.NARROW_FORMATS:
    row(
        f"decode_{_dtype.name[2:]}",
        "elementwise",
        "x",
        f"the f32 number whose {_dtype} has these bits",
        takes="u",
        result="to",
        attrs={"to": dt.f32},
        ref=lambda x, to, t=_dtype: np.asarray(x, np.uint8).view(t.numpy).astype(to.numpy),
        cost=8,
    )
    row(
        f"encode_{_dtype.name[2:]}",
        "elementwise",
        "x",
        f"the bits of the nearest {_dtype}; larger values, infinities too, become the largest",
        takes=FLOAT,
        result="to",
        attrs={"to": dt.u8},
        ref=lambda x, to, t=_dtype: _cast_ref(x, t).view(np.uint8) | np.where(np.isnan(x), np.uint8(0x7F), np.uint8(0)),
        cost=12,
    )
