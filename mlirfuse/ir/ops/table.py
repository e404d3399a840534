"""THE table of operations: each op of the fusion dialect is declared here, once.

From a row derive the dialect's class and verifier, shape and type inference, the NumPy and nvFuser front ends' names,
the reference interpreter (which is also the fallback), what a kernel emits, the documentation and the op-by-op tests.

All operands of an op have one element type (front ends insert the casts), except where ``operands`` says otherwise.
Elementwise operands have the result's rank, or rank 0; extents of 1 broadcast. Half types compute in float32.
"""

from __future__ import annotations

import math as pymath
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mlirfuse.core.errors import ShapeError
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.dtypes import DType
from mlirfuse.lowering import math as m

FLOAT, INT, BOOL, COMPLEX, NARROW = "f", "iu", "b", "c", "n"
NUMBER = FLOAT + INT
ANY = NUMBER + BOOL
SIZE_ATTRS = {"shape", "size", "start", "sizes", "low", "high"}  # attributes that hold sizes


@dataclass(frozen=True)
class OpDef:
    """A row of the table.

    ``kind``: elementwise, reduce, shape, index, create, random, library, composite, update, query, query. ``takes``:
    the dtype kinds of its operands (:attr:`DType.kind`). ``result``: "same", "bool", "i64", "real" or "complex" (of the
    operand), "to" (the attribute) or a function of (dtypes, attrs) that gives the type of each result. ``operands``:
    names; a trailing ``*`` marks a variable number. ``attrs``: name to default (``...``: required). ``infer(shapes,
    attrs)`` gives the results' shapes. ``ref`` computes it on NumPy arrays; ``emit`` in a kernel. ``numpy`` and
    ``nvfuser``: the names front ends know it by. ``expand(b, *values, **attrs)`` rewrites a composite into other ops
    through a :class:`mlirfuse.ir.builder.Builder`. ``cost``: roughly how many instructions an element takes; more than
    :data:`EXPENSIVE` is not recomputed.
    """

    name: str
    kind: str
    operands: tuple[str, ...]
    doc: str
    takes: str = ANY
    result: str | Callable = "same"
    attrs: dict[str, Any] = field(default_factory=dict)
    infer: Callable | None = None
    ref: Callable | None = None
    emit: Callable | None = None
    expand: Callable | None = None
    numpy: tuple[str, ...] = ()
    nvfuser: tuple[str, ...] = ()
    cost: int = 1
    operand_dtypes: Callable | None = (
        None  # (dtypes, attrs) -> error text or None, where "one element type" is not the rule
    )

    @property
    def several(self) -> bool:
        """May have more than one result."""
        return self.name == "split" or callable(self.result)


EXPENSIVE = 8
TABLE: dict[str, OpDef] = {}


def _row(name, kind, operands, doc, **fields) -> None:
    operands = tuple(operands.split())
    for key in ("numpy", "nvfuser"):
        fields[key] = tuple(fields.get(key, "").split())
    TABLE[name] = OpDef(name, kind, operands, doc, **fields)


# ----------------------------------------------------------------------------------------------------------------
# inference


def broadcast_shapes(shapes) -> tuple:
    """The common shape of shapes of one rank (or rank 0) where extents of 1 broadcast. Unequal symbols are taken to be
    equal; the plan of a call checks it."""
    shapes = [s for s in shapes if s] or [()]
    ranks = {len(s) for s in shapes}
    if len(ranks) > 1:
        raise ShapeError(f"operands of ranks {sorted(ranks)}: all must have one rank, or rank 0")
    out = []
    for extents in zip(*shapes):
        big = [e for e in extents if e != 1]
        known = {e for e in big if isinstance(e, int)}
        if len(known) > 1:
            raise ShapeError(
                f"shapes {' and '.join(map(_show, shapes))} do not broadcast: {' against '.join(map(str, sorted(known)))}"
            )
        out.append(min(known) if known else big[0] if big else 1)
    return tuple(out)


def _show(shape) -> str:
    return "(" + ", ".join(map(str, shape)) + ")"


def _elementwise(shapes, attrs):
    return [broadcast_shapes(shapes)]


def axes_of(attrs, rank) -> tuple[int, ...]:
    """The axes that a reduction of an operand of this rank is over, in the order of its dimensions."""
    axes = attrs["axes"]
    return tuple(range(rank)) if axes is None else tuple(sorted(a % rank for a in axes))


def _no_axis(shape, axis):
    raise ShapeError(f"axis {axis} is out of range for an operand of rank {len(shape)}")


def _reduced(shapes, attrs):
    (shape,) = shapes
    axes = axes_of(attrs, len(shape))
    if attrs.get("keepdims"):
        return [tuple(1 if k in axes else n for k, n in enumerate(shape))]
    return [tuple(n for k, n in enumerate(shape) if k not in axes)]


def _given_shape(shapes, attrs):
    return [tuple(attrs["shape"])]


def _broadcast_in_dim(shapes, attrs):
    (shape,), out, dims = shapes, tuple(attrs["shape"]), attrs["dims"]
    if len(dims) != len(shape) or len(set(dims)) != len(dims) or any(not 0 <= d < len(out) for d in dims):
        raise ShapeError(
            f"broadcast_in_dim: dims {list(dims)} do not place a rank-{len(shape)} operand in rank {len(out)}"
        )
    for d, n in zip(dims, shape):
        if n != 1 and isinstance(n, int) and isinstance(out[d], int) and n != out[d]:
            raise ShapeError(f"broadcast_in_dim: extent {n} does not broadcast to {out[d]} in dimension {d}")
    return [out]


def _reshape(shapes, attrs):
    (shape,), out = shapes, tuple(attrs["shape"])
    a, b = sz.product(shape), sz.product(out)
    if isinstance(a, int) and isinstance(b, int) and a != b:
        raise ShapeError(f"cannot reshape {_show(shape)}, {a} elements, into {_show(out)}, {b} elements")
    return [out]


def _permute(shapes, attrs):
    (shape,), dims = shapes, attrs["dims"]
    if sorted(dims) != list(range(len(shape))):
        raise ShapeError(f"permute: dims {list(dims)} are no permutation of {len(shape)} dimensions")
    return [tuple(shape[d] for d in dims)]


def _squeeze(shapes, attrs):
    (shape,), axes = shapes, attrs["axes"]
    for a in axes:
        if shape[a] != 1:
            raise ShapeError(f"squeeze: dimension {a} has extent {shape[a]}, not 1")
    return [tuple(n for k, n in enumerate(shape) if k not in axes)]


def _expand_dims(shapes, attrs):
    (shape,), axes = shapes, attrs["axes"]
    out = list(shape)
    for a in sorted(axes):
        out.insert(a, 1)
    return [tuple(out)]


def _slice(shapes, attrs):
    return [tuple(attrs["size"])]


def _concatenate(shapes, attrs):
    axis = attrs["axis"]
    rest = broadcast_shapes([tuple(n for k, n in enumerate(s) if k != axis) or (1,) for s in shapes])
    total = shapes[0][axis]
    for s in shapes[1:]:
        total = total + s[axis]
    out = list(rest) if len(shapes[0]) > 1 else []
    out.insert(axis, total)
    return [tuple(out)]


def _pad(shapes, attrs):
    return [tuple(lo + n + hi for lo, n, hi in zip(attrs["low"], shapes[0], attrs["high"]))]


def _take(shapes, attrs):
    shape, indices = shapes
    axis = attrs["axis"]
    return [shape[:axis] + indices + shape[axis + 1 :]]


def _take_along(shapes, attrs):
    shape, indices = shapes
    if len(shape) != len(indices):
        raise ShapeError(f"take_along_axis: indices have rank {len(indices)}, the operand rank {len(shape)}")
    return [indices]


def _split(shapes, attrs):
    (shape,), axis = shapes, attrs["axis"]
    return [shape[:axis] + (n,) + shape[axis + 1 :] for n in attrs["sizes"]]


def _same(shapes, attrs):
    return [shapes[0]]


def _matmul(shapes, attrs):
    a, b = shapes[:2]
    if not a or not b:
        raise ShapeError("matmul: operands must have at least one dimension")
    if len(a) == 1 or len(b) == 1:
        return [(a[:-1] if len(a) > 1 else ()) + (b[:-2] + b[-1:] if len(b) > 1 else ())]
    rank = max(len(a), len(b))
    batch = broadcast_shapes([(1,) * (rank - len(s)) + s[:-2] or (1,) for s in (a, b)]) if rank > 2 else ()
    return [batch + (a[-2], b[-1])]


def _linear(shapes, attrs):
    return [shapes[0][:-1] + shapes[1][:-1]]


# ----------------------------------------------------------------------------------------------------------------
# elementwise


def _floats(name, ref, emit, doc, cost=10, numpy=None, nvfuser=None, takes=FLOAT):
    _row(name, "elementwise", "x", doc, takes=takes, ref=ref, emit=emit, cost=cost,
         numpy=name if numpy is None else numpy, nvfuser=name if nvfuser is None else nvfuser)  # fmt: skip


def _via_f64(function):
    """A scalar function of :mod:`math` over arrays, at float64, rounded to the operand's type: for what NumPy lacks."""
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


_floats("exp", np.exp, m.exp, "e to the x", takes=FLOAT + COMPLEX)
_floats("exp2", np.exp2, m.exp2, "2 to the x")
_floats("expm1", np.expm1, m.expm1, "exp(x) - 1 without cancellation", 14)
_floats("log", np.log, m.log, "natural logarithm")
_floats("log2", np.log2, m.log2, "logarithm to base 2")
_floats("log10", np.log10, m.log10, "logarithm to base 10")
_floats("log1p", np.log1p, m.log1p, "log(1 + x) without cancellation", 14)
_floats("sqrt", np.sqrt, lambda e, x: e.sqrt(x), "square root", 6, takes=FLOAT + COMPLEX)
_floats("rsqrt", lambda x: (1 / np.sqrt(x)).astype(x.dtype), m.rsqrt, "1 / sqrt(x)", 8, takes=FLOAT + COMPLEX)
_floats("cbrt", np.cbrt, m.cbrt, "cube root", 14, nvfuser="")
_floats("sin", np.sin, m.sin, "sine", 20)
_floats("cos", np.cos, m.cos, "cosine", 20)
_floats("tan", np.tan, m.tan, "tangent", 24)
_floats("asin", np.arcsin, m.asin, "inverse sine", 16, "arcsin asin")
_floats("acos", np.arccos, m.acos, "inverse cosine", 16, "arccos acos")
_floats("atan", np.arctan, m.atan, "inverse tangent", 16, "arctan atan")
_floats("sinh", np.sinh, m.sinh, "hyperbolic sine", 16)
_floats("cosh", np.cosh, m.cosh, "hyperbolic cosine", 16)
_floats("tanh", np.tanh, m.tanh, "hyperbolic tangent", 14)
_floats("asinh", np.arcsinh, m.asinh, "inverse hyperbolic sine", 20, "arcsinh asinh")
_floats("acosh", np.arccosh, m.acosh, "inverse hyperbolic cosine", 20, "arccosh acosh")
_floats("atanh", np.arctanh, m.atanh, "inverse hyperbolic tangent", 20, "arctanh atanh")
_floats("erf", _via_f64(pymath.erf), m.erf, "error function", 16, "")
_floats("erfc", _via_f64(pymath.erfc), m.erfc, "1 - erf(x) without cancellation", 20, "")
_floats("erfinv", _via_f64(_erfinv), m.erfinv, "inverse of erf", 24, "")
_floats("erfcinv", _via_f64(_erfcinv), m.erfcinv, "inverse of erfc", 24, "")
_floats("lgamma", _via_f64(_lgamma), m.lgamma, "logarithm of the absolute value of the gamma function", 40, "")
_floats("sigmoid", _sigmoid, m.sigmoid, "1 / (1 + exp(-x))", 14, "")
_floats("silu", lambda x: x * _sigmoid(x), m.silu, "x * sigmoid(x)", 15, "")
_floats("reciprocal", lambda x: (1 / x).astype(x.dtype), lambda e, x: e.div(1.0, x), "1 / x", 4, takes=FLOAT + COMPLEX)
_floats("frac", lambda x: x - np.trunc(x), lambda e, x: e.sub(x, e.trunc(x)), "x - trunc(x)", 2, "")


def _unary(name, doc, ref, emit, takes=ANY, result="same", numpy=None, nvfuser=None, cost=1):
    _row(name, "elementwise", "x", doc, takes=takes, result=result, ref=ref, emit=emit, cost=cost,
         numpy=name if numpy is None else numpy, nvfuser=name if nvfuser is None else nvfuser)  # fmt: skip


def _is_float(function, otherwise):
    """``function`` for floats; a constant for integers and bools."""
    return lambda e, x: function(e, x) if x.dtype.is_float else e.const(otherwise, dt.bool_, x.lanes)


def _sign(e, x):
    if not x.dtype.is_float:
        positive = e.cast(e.cmp("gt", x, 0), x.dtype)
        return positive if x.dtype.kind == "u" else e.sub(positive, e.cast(e.cmp("lt", x, 0), x.dtype))
    negative = e.select(e.cmp("lt", x, 0.0), e.const(-1.0, x.dtype), e.select(e.isnan(x), x, 0.0))
    return e.select(e.cmp("gt", x, 0.0), 1.0, negative)


def _signbit_emit(e, x):
    if not x.dtype.is_float:
        return e.cmp("lt", x, 0)
    bits = {32: dt.i32, 64: dt.i64}[x.dtype.bits]
    return e.cmp("lt", e.bitcast(x, bits), 0)


def _rounding(function):
    return lambda x: np.copy(x) if x.dtype.kind in "iu" else function(x).astype(x.dtype)


_unary("neg", "-x", np.negative, lambda e, x: e.neg(x), NUMBER + COMPLEX, numpy="negative")
_unary("abs", "absolute value", np.abs, lambda e, x: e.abs(x), NUMBER + COMPLEX, "real", numpy="absolute abs fabs")
_unary("sign", "-1, 0 or 1; NaN stays", np.sign, _sign, NUMBER, nvfuser="sign")
_unary("floor", "largest integer not above x", _rounding(np.floor), lambda e, x: e.floor(x), NUMBER)
_unary("ceil", "smallest integer not below x", _rounding(np.ceil), lambda e, x: e.ceil(x), NUMBER)
_unary("trunc", "toward zero", _rounding(np.trunc), lambda e, x: e.trunc(x), NUMBER, numpy="trunc fix")
_unary("round", "to the nearest integer, halves to even", _rounding(np.rint), lambda e, x: e.rint(x), NUMBER,
       numpy="rint")  # fmt: skip
_unary(
    "relu",
    "the larger of x and 0; NaN stays",
    lambda x: np.maximum(x, x.dtype.type(0)),
    lambda e, x: e.max(x, 0),
    NUMBER,
    numpy="",
)
_unary("isnan", "is NaN", np.isnan, _is_float(lambda e, x: e.isnan(x), False), ANY + COMPLEX, "bool")
_unary(
    "isinf",
    "is +inf or -inf",
    np.isinf,
    _is_float(lambda e, x: e.cmp("eq", e.abs(x), pymath.inf), False),
    ANY + COMPLEX,
    "bool",
)
_unary(
    "isfinite",
    "is neither NaN nor infinite",
    np.isfinite,
    _is_float(lambda e, x: e.cmp("lt", e.abs(x), pymath.inf), True),
    ANY + COMPLEX,
    "bool",
)
_unary(
    "isposinf", "is +inf", lambda x: x == np.inf, _is_float(lambda e, x: e.cmp("eq", x, pymath.inf), False), ANY, "bool"
)
_unary(
    "isneginf",
    "is -inf",
    lambda x: x == -np.inf,
    _is_float(lambda e, x: e.cmp("eq", x, -pymath.inf), False),
    ANY,
    "bool",
)
_unary(
    "isreal", "has no imaginary part", np.isreal, lambda e, x: e.const(True, dt.bool_, x.lanes), ANY + COMPLEX, "bool"
)
_unary(
    "signbit",
    "has its sign bit set",
    lambda x: np.signbit(x) if x.dtype.kind not in "iub" else x < 0,
    _signbit_emit,
    NUMBER,
    "bool",
)
_unary(
    "logical_not",
    "is zero",
    np.logical_not,
    lambda e, x: e.cmp("eq", x, 0) if x.dtype is not dt.bool_ else e.not_(x),
    ANY,
    "bool",
)
_unary(
    "bitwise_not",
    "bits inverted",
    np.invert,
    lambda e, x: e.not_(x),
    INT + BOOL,
    numpy="invert bitwise_not bitwise_invert",
)


def _binary(name, doc, ref, emit, takes=NUMBER, result="same", numpy=None, nvfuser=None, cost=1):
    _row(name, "elementwise", "a b", doc, takes=takes, result=result, ref=ref, emit=emit, cost=cost,
         numpy=name if numpy is None else numpy, nvfuser=name if nvfuser is None else nvfuser)  # fmt: skip


def _quietly(function):
    """``function`` without NumPy's warnings: a kernel does not warn either."""

    def ref(*args, **kwargs):
        with np.errstate(all="ignore"):
            return function(*args, **kwargs)

    return ref


def _safe_divisor(e, a, b):
    """An integer divisor with which division is defined, and where it was not: b == 0, or INT_MIN / -1."""
    bad = e.cmp("eq", b, 0)
    if a.dtype.kind == "i":
        low = -(2 ** (a.dtype.bits - 1))
        bad = e.or_(bad, e.and_(e.cmp("eq", a, low), e.cmp("eq", b, -1)))
    return e.select(bad, e.const(1, b.dtype), b), e.cmp("eq", b, 0)


def _trunc_div_emit(e, a, b):
    if a.dtype.is_float:
        return e.trunc(e.div(a, b))
    a, b = e._pair(a, b)
    divisor, zero = _safe_divisor(e, a, b)
    return e.select(zero, e.const(0, a.dtype), e.div(a, divisor))


def _floor_div_emit(e, a, b):
    a, b = e._pair(a, b)
    if not a.dtype.is_float:
        divisor, zero = _safe_divisor(e, a, b)
        q = e.div(a, divisor)
        if a.dtype.kind == "i":
            r = e.sub(a, e.mul(q, divisor))
            lower = e.and_(e.cmp("ne", r, 0), e.cmp("ne", e.cmp("lt", r, 0), e.cmp("lt", divisor, 0)))
            q = e.select(lower, e.sub(q, 1), q)
        return e.select(zero, e.const(0, a.dtype), q)
    # As NumPy: from the exact remainder, so that the quotient is the true floor.
    r = m.fmod(e, a, b)
    q = e.div(e.sub(a, r), b)
    wrong = e.and_(e.cmp("ne", r, 0.0), e.cmp("ne", e.cmp("lt", r, 0.0), e.cmp("lt", b, 0.0)))
    q = e.select(wrong, e.sub(q, 1.0), q)
    near = e.floor(q)
    near = e.select(e.cmp("gt", e.sub(q, near), 0.5), e.add(near, 1.0), near)
    near = e.select(e.cmp("eq", q, 0.0), e.copysign(e.const(0.0, a.dtype, a.lanes), e.div(a, b)), near)
    return e.select(e.cmp("eq", b, 0.0), e.div(a, b), near)


def _mod_emit(e, a, b):
    a, b = e._pair(a, b)
    if not a.dtype.is_float:
        return e.select(e.cmp("eq", b, 0), e.const(0, a.dtype), e.sub(a, e.mul(_floor_div_emit(e, a, b), b)))
    r = m.fmod(e, a, b)
    wrong = e.cmp("ne", e.cmp("lt", r, 0.0), e.cmp("lt", b, 0.0))
    return e.select(e.cmp("ne", r, 0.0), e.select(wrong, e.add(r, b), r), e.copysign(e.const(0.0, a.dtype, a.lanes), b))


def _fmod_emit(e, a, b):
    a, b = e._pair(a, b)
    if a.dtype.is_float:
        return m.fmod(e, a, b)
    return e.select(e.cmp("eq", b, 0), e.const(0, a.dtype), e.sub(a, e.mul(_trunc_div_emit(e, a, b), b)))


def _ceil_div(a, b):
    if a.dtype.kind not in "iu":
        return np.ceil(a / b)
    return -((-a) // b) if a.dtype.kind not in "iu" else np.where(b == 0, 0, (a // b) + (a % b != 0)).astype(a.dtype)


def _ceil_div_emit(e, a, b):
    a, b = e._pair(a, b)
    if a.dtype.is_float:
        return e.ceil(e.div(a, b))
    divisor, zero = _safe_divisor(e, a, b)
    q = e.div(a, divisor)
    r = e.sub(a, e.mul(q, divisor))
    higher = e.cmp("ne", r, 0)
    if a.dtype.kind == "i":
        higher = e.and_(higher, e.cmp("eq", e.cmp("lt", r, 0), e.cmp("lt", divisor, 0)))
    return e.select(zero, e.const(0, a.dtype), e.select(higher, e.add(q, 1), q))


def _trunc_div(a, b):
    if a.dtype.kind in "iu":
        safe = np.where(b == 0, b.dtype.type(1), b)
        return np.where(
            b == 0, 0, np.trunc_divide(a, safe) if hasattr(np, "trunc_divide") else (a - np.fmod(a, safe)) // safe
        ).astype(a.dtype)
    return np.trunc(a / b)


def _int_pow(e, a, b):
    """By squaring; a negative exponent gives what rounding 1/a^n toward zero gives."""
    one = e.const(1, a.dtype, max(a.lanes, b.lanes))
    result, base, left = one, e.splat(a, one.lanes), e.splat(b, one.lanes)
    for bit in range(min(a.dtype.bits, 64)):
        take = e.cmp("ne", e.and_(e.shr(left, bit) if bit else left, 1), 0)
        result = e.select(take, e.mul(result, base), result)
        if bit < a.dtype.bits - 1:
            base = e.mul(base, base)
    if a.dtype.kind == "u":
        return result
    negative = e.cmp("lt", left, 0)
    a = e.splat(a, one.lanes)
    odd = e.cmp("ne", e.and_(left, 1), 0)
    inverse = e.select(
        e.cmp("eq", a, 1), one, e.select(e.cmp("eq", a, -1), e.select(odd, a, one), e.const(0, a.dtype, a.lanes))
    )
    return e.select(negative, inverse, result)


def _pow_ref(a, b):
    if a.dtype.kind == "i" and np.any(b < 0):
        inverse = np.where(a == 1, 1, np.where(a == -1, np.where(b % 2 == 1, -1, 1), 0))
        return np.where(b < 0, inverse, np.power(a, np.maximum(b, 0))).astype(a.dtype)
    return np.power(a, b)


def _shift(e, function, a, b):
    """A shift by as much as the width or more (NumPy: everything is shifted out), or by a negative amount."""
    a, b = e._pair(a, b)
    unsigned = dt.BY_NAME[f"u{a.dtype.bits}"]
    inside = e.cmp("lt", e.bitcast(b, unsigned), a.dtype.bits)
    fill = e.const(0, a.dtype, a.lanes)
    if function == "shr" and a.dtype.kind == "i":
        fill = e.shr(a, a.dtype.bits - 1)
    shifted = getattr(e, function)(a, e.select(inside, b, e.const(0, b.dtype)))
    return e.select(inside, shifted, fill)


def _shr_logical(e, a, b):
    unsigned = dt.BY_NAME[f"u{a.dtype.bits}"]
    return e.bitcast(_shift(e, "shr", e.bitcast(a, unsigned), e.bitcast(b, unsigned)), a.dtype)


def _shr_logical_ref(a, b):
    unsigned = np.dtype(f"u{a.dtype.itemsize}")
    return np.right_shift(
        a.view(unsigned) if a.ndim else np.asarray(a).view(unsigned), np.asarray(b).astype(unsigned)
    ).view(a.dtype)


def _gcd_emit(e, a, b):
    """Euclid's algorithm, unrolled to the longest chain that the width admits (Lamé)."""
    a, b = e._pair(a, b)
    a, b = e.abs(a), e.abs(b)
    unsigned = dt.BY_NAME[f"u{a.dtype.bits}"]
    dtype = a.dtype
    a, b = e.bitcast(a, unsigned), e.bitcast(b, unsigned)
    for _ in range({8: 13, 16: 25, 32: 48, 64: 93}[dtype.bits]):
        zero = e.cmp("eq", b, 0)
        r = e.rem(a, e.select(zero, e.const(1, unsigned), b))
        a, b = e.select(zero, a, b), e.select(zero, b, r)
    return e.bitcast(a, dtype)


def _minmax_nan(e, a, b, choose):
    """NaN only where both are NaN."""
    a, b = e._pair(a, b)
    if not a.dtype.is_float:
        return choose(a, b)
    return e.select(e.isnan(a), b, e.select(e.isnan(b), a, choose(a, b)))


def _logaddexp_emit(e, a, b):
    a, b = e._pair(a, b)
    high = e.max(a, b)
    difference = e.neg(e.abs(e.sub(a, b)))
    same = e.cmp("eq", a, b)  # equal infinities: their difference is NaN
    value = e.add(high, m.log1p(e, m.exp(e, e.select(same, e.const(0.0, a.dtype), difference))))
    return value


_binary("add", "a + b", np.add, lambda e, a, b: e.add(a, b) if a.dtype is not dt.bool_ else e.or_(a, b), ANY + COMPLEX)
_binary("sub", "a - b", np.subtract, lambda e, a, b: e.sub(a, b), NUMBER + COMPLEX, numpy="subtract")
_binary(
    "mul",
    "a * b",
    np.multiply,
    lambda e, a, b: e.mul(a, b) if a.dtype is not dt.bool_ else e.and_(a, b),
    ANY + COMPLEX,
    numpy="multiply",
)
_binary(
    "div",
    "a / b of floats",
    _quietly(np.divide),
    lambda e, a, b: e.div(a, b),
    FLOAT + COMPLEX,
    numpy="divide true_divide",
    nvfuser="div truediv",
    cost=4,
)
_binary(
    "trunc_div",
    "a / b rounded toward zero; integers by 0 give 0",
    _quietly(_trunc_div),
    _trunc_div_emit,
    cost=8,
    numpy="",
)
_binary(
    "floor_div",
    "a / b rounded down; integers by 0 give 0",
    _quietly(np.floor_divide),
    _floor_div_emit,
    cost=20,
    numpy="floor_divide",
    nvfuser="",
)
_binary("ceil_div", "a / b rounded up; integers by 0 give 0", _quietly(_ceil_div), _ceil_div_emit, cost=10, numpy="")
_binary("mod", "remainder with the divisor's sign; integers by 0 give 0", _quietly(np.remainder), _mod_emit, cost=20, numpy="remainder mod",
        nvfuser="remainder")  # fmt: skip
_binary(
    "fmod",
    "remainder with the dividend's sign; integers by 0 give 0",
    _quietly(np.fmod),
    _fmod_emit,
    cost=20,
    nvfuser="fmod mod",
)
_binary(
    "pow",
    "a to the b",
    _quietly(_pow_ref),
    lambda e, a, b: m.pow(e, a, b) if a.dtype.is_float else _int_pow(e, a, b),
    cost=40,
    numpy="power pow",
)
_binary(
    "atan2", "the angle of (b, a)", np.arctan2, lambda e, a, b: m.atan2(e, a, b), FLOAT, cost=24, numpy="arctan2 atan2"
)
_binary(
    "hypot",
    "sqrt(a*a + b*b) without overflow",
    _quietly(np.hypot),
    lambda e, a, b: m.hypot(e, a, b),
    FLOAT,
    cost=16,
    nvfuser="",
)
_binary("copysign", "a with b's sign", np.copysign, lambda e, a, b: e.copysign(a, b), FLOAT, nvfuser="")
_binary(
    "nextafter", "the next number after a toward b", np.nextafter, lambda e, a, b: m.nextafter(e, a, b), FLOAT, cost=8
)
_binary("logaddexp", "log(exp(a) + exp(b))", _quietly(np.logaddexp), _logaddexp_emit, FLOAT, cost=30, nvfuser="")
_binary("maximum", "the larger; NaN if either is", np.maximum, lambda e, a, b: e.max(a, b), ANY)
_binary("minimum", "the smaller; NaN if either is", np.minimum, lambda e, a, b: e.min(a, b), ANY)
_binary("fmax", "the larger; NaN if both are", np.fmax, lambda e, a, b: _minmax_nan(e, a, b, e.max), ANY, nvfuser="")
_binary("fmin", "the smaller; NaN if both are", np.fmin, lambda e, a, b: _minmax_nan(e, a, b, e.min), ANY, nvfuser="")
_binary("gcd", "greatest common divisor", np.gcd, _gcd_emit, INT, cost=400)
for _name, _numpy, _function in (
    ("eq", "equal", np.equal),
    ("ne", "not_equal", np.not_equal),
    ("lt", "less", np.less),
    ("le", "less_equal", np.less_equal),
    ("gt", "greater", np.greater),
    ("ge", "greater_equal", np.greater_equal),
):
    _takes = ANY + COMPLEX if _name in ("eq", "ne") else ANY
    _binary(_name, f"a {_name} b", _function, lambda e, a, b, p=_name: e.cmp(p, a, b), _takes, "bool", numpy=_numpy)


def _truth(e, x):
    return x if x.dtype is dt.bool_ else e.cmp("ne", x, 0)


_binary("logical_and", "both nonzero", np.logical_and, lambda e, a, b: e.and_(_truth(e, a), _truth(e, b)), ANY, "bool")
_binary("logical_or", "either nonzero", np.logical_or, lambda e, a, b: e.or_(_truth(e, a), _truth(e, b)), ANY, "bool")
_binary(
    "logical_xor",
    "exactly one nonzero",
    np.logical_xor,
    lambda e, a, b: e.xor(_truth(e, a), _truth(e, b)),
    ANY,
    "bool",
    nvfuser="",
)
_binary("bitwise_and", "bits of both", np.bitwise_and, lambda e, a, b: e.and_(a, b), INT + BOOL)
_binary("bitwise_or", "bits of either", np.bitwise_or, lambda e, a, b: e.or_(a, b), INT + BOOL)
_binary("bitwise_xor", "bits of exactly one", np.bitwise_xor, lambda e, a, b: e.xor(a, b), INT + BOOL)
_binary("shift_left", "a shifted left by b bits", np.left_shift, lambda e, a, b: _shift(e, "shl", a, b), INT, numpy="left_shift bitwise_left_shift",
        nvfuser="bitwise_left_shift")  # fmt: skip
_binary("shift_right", "a shifted right by b bits, keeping the sign", np.right_shift, lambda e, a, b: _shift(e, "shr", a, b), INT,
        numpy="right_shift bitwise_right_shift", nvfuser="bitwise_right_shift")  # fmt: skip
_binary("shift_right_logical", "a shifted right by b bits, zeros coming in", _shr_logical_ref, _shr_logical, INT, numpy="",
        nvfuser="logical_right_shift")  # fmt: skip


def _complex_ref(a, b):
    out = np.empty(np.broadcast_shapes(a.shape, b.shape), dt.of(a.dtype).complex.numpy)
    out.real, out.imag = a, b
    return out


# Of a float of a byte: bits of the mantissa, bias of the exponent, the largest number, the bits of a NaN.
NARROW_FORMATS = {dt.f8e4m3fn: (3, 7, 448.0, 0x7F), dt.f8e5m2: (2, 15, 57344.0, 0x7E)}


def _cast_ref(x, to):
    if to.kind == "n":
        x = np.clip(x.astype(np.float32), *(sign * np.float32(NARROW_FORMATS[to][2]) for sign in (-1, 1)))
    return x.astype(to.numpy)


def _decode_emit(dtype):
    mantissa, bias, _, nan = NARROW_FORMATS[dtype]

    def emit(e, x):
        wide = e.cast(x, dt.u32)
        if dtype is dt.f8e5m2:  # the upper half of an f16
            return e.cast(e.bitcast(e.cast(e.shl(wide, 8), dt.u16), dt.f16), dt.f32)
        size, sign = e.and_(wide, 0x7F), e.shl(e.and_(wide, 0x80), 24)
        normal = e.add(e.shl(size, 23 - mantissa), (127 - bias) << 23)
        small = e.bitcast(e.mul(e.cast(size, dt.f32), 2.0 ** (1 - bias - mantissa)), dt.u32)
        bits = e.select(e.cmp("lt", size, 1 << mantissa), small, normal)
        bits = e.select(e.cmp("eq", size, nan), e.const(0x7FC00000, dt.u32), bits)
        return e.bitcast(e.or_(bits, sign), dt.f32)

    return emit


def _encode_emit(dtype):
    mantissa, bias, largest, nan = NARROW_FORMATS[dtype]
    shift, step = 23 - mantissa, 2.0 ** (1 - bias - mantissa)

    def emit(e, x):
        x = e.cast(x, dt.f32)
        sign = e.and_(e.shr(e.bitcast(x, dt.u32), 24), 0x80)
        held = e.min(e.abs(x), largest)
        bits = e.bitcast(held, dt.u32)
        even = e.add(e.and_(e.shr(bits, shift), 1), (1 << shift - 1) - 1)  # rounds halves to even
        normal = e.sub(e.shr(e.add(bits, even), shift), (127 - bias) << mantissa)
        magic = np.float32(step * 2.0**23)  # numbers that large are multiples of the smallest one
        small = e.sub(e.bitcast(e.add(held, float(magic)), dt.u32), int(magic.view(np.uint32)))
        out = e.select(e.cmp("lt", held, 2.0 ** (1 - bias)), small, normal)
        out = e.select(e.isnan(x), e.const(nan, dt.u32), out)
        return e.cast(e.or_(out, sign), dt.u8)

    return emit


def _where_dtypes(dtypes, attrs):
    if dtypes[0] is not dt.bool_:
        return f"the condition is {dtypes[0]}, not bool"
    return None if dtypes[1] is dtypes[2] else f"the branches are {dtypes[1]} and {dtypes[2]}, not of one element type"


_unary("real", "the real part", np.real, lambda e, x: x, ANY + COMPLEX, "real", numpy="")
_unary("imag", "the imaginary part", np.imag, lambda e, x: x, COMPLEX, "real", numpy="")
_unary("conj", "the complex conjugate", np.conj, lambda e, x: x, NUMBER + COMPLEX, numpy="", nvfuser="")
_binary("complex", "the complex number a + b i", _complex_ref, None, FLOAT, "complex", numpy="")

_row("where", "elementwise", "condition a b", "a where condition, else b", ref=np.where, emit=lambda e, c, a, b: e.select(c, a, b),
     operand_dtypes=_where_dtypes, numpy="where", nvfuser="where")  # fmt: skip
_row("cast", "elementwise", "x", "conversion to another element type", result="to", attrs={"to": ...}, takes=ANY + COMPLEX + NARROW,
     ref=_quietly(_cast_ref), emit=None, nvfuser="cast")  # fmt: skip
_row("copy", "elementwise", "x", "the same values in memory of their own", ref=np.copy, emit=lambda e, x: x, takes=ANY + COMPLEX + NARROW,
     numpy="copy", nvfuser="set")  # fmt: skip
_row("segment_set", "elementwise", "x", "the same values; its operand and its users go into different kernels", ref=np.copy,
     emit=lambda e, x: x, takes=ANY + COMPLEX + NARROW, nvfuser="segment_set")  # fmt: skip
for _dtype, (_mantissa, _bias, _largest, _) in NARROW_FORMATS.items():
    _row(
        f"decode_{_dtype.name[2:]}",
        "elementwise",
        "x",
        f"the f32 number whose {_dtype} has these bits",
        takes="u",
        result="to",
        attrs={"to": dt.f32},
        ref=lambda x, to, t=_dtype: np.asarray(x, np.uint8).view(t.numpy).astype(to.numpy),
        emit=_decode_emit(_dtype),
        cost=8,
    )
    _row(
        f"encode_{_dtype.name[2:]}",
        "elementwise",
        "x",
        f"the bits of the nearest {_dtype}; what is larger than all, infinities too, as the largest",
        takes=FLOAT,
        result="to",
        attrs={"to": dt.u8},
        ref=lambda x, to, t=_dtype: _cast_ref(x, t).view(np.uint8),
        emit=_encode_emit(_dtype),
        cost=12,
    )

# ----------------------------------------------------------------------------------------------------------------
# reductions


def _np_axes(x, axes):
    return tuple(range(x.ndim)) if axes is None else tuple(axes)


def _reduction(name, doc, function, takes=NUMBER, result="same", numpy=None, nvfuser=None, **attrs):
    def ref(x, axes=None, keepdims=False, **kwargs):
        wide = x.astype(np.float32) if x.dtype.itemsize == 2 and dt.of(x.dtype).is_float else x
        return np.asarray(function(wide, axis=_np_axes(x, axes), keepdims=keepdims, **kwargs))

    _row(
        name,
        "reduce",
        "x",
        doc,
        takes=takes,
        result=result,
        attrs={"axes": None, "keepdims": False, **attrs},
        infer=_reduced,
        ref=_quietly(ref),
        numpy=name if numpy is None else numpy,
        nvfuser=name if nvfuser is None else nvfuser,
    )


def _same_dtype(function):
    return lambda x, **kwargs: function(x, **kwargs).astype(x.dtype)


def _arg(function):
    def ref(x, axis, keepdims):
        axes = sorted(a % x.ndim for a in axis)
        kept = tuple(n for k, n in enumerate(x.shape) if k not in axes)
        rows = np.moveaxis(x, axes, range(-len(axes), 0)) if axes else x
        found = function(rows.reshape(kept + (pymath.prod(x.shape[a] for a in axes),)), axis=-1).astype(np.int64)
        return found.reshape(tuple(1 if k in axes else n for k, n in enumerate(x.shape))) if keepdims else found

    return ref


_reduction("sum", "sum", lambda x, **k: np.sum(x, dtype=x.dtype, **k), NUMBER + COMPLEX)
_reduction("prod", "product", lambda x, **k: np.prod(x, dtype=x.dtype, **k))
_reduction("max", "largest; NaN if any is", np.max, ANY, numpy="max amax")
_reduction("min", "smallest; NaN if any is", np.min, ANY, numpy="min amin")
_reduction("any", "is any nonzero", np.any, ANY, "bool", nvfuser="")
_reduction("all", "are all nonzero", np.all, ANY, "bool", nvfuser="")
_reduction(
    "argmax",
    "position in row-major order along the axes, of the first largest; of the first NaN if there is one",
    _arg(np.argmax),
    ANY,
    "i64",
    nvfuser="",
)
_reduction(
    "argmin",
    "position in row-major order along the axes, of the first smallest; of the first NaN if there is one",
    _arg(np.argmin),
    ANY,
    "i64",
    nvfuser="",
)
_reduction("mean", "arithmetic mean", np.mean, FLOAT)
_reduction(
    "m2",
    "sum of squared deviations from the mean, in one pass (Welford; Chan, Golub and LeVeque 1979)",
    lambda x, axis, **k: np.sum((x - np.mean(x, axis, keepdims=True)) ** 2, axis, **k),
    FLOAT,
    numpy="",
    nvfuser="",
)
_reduction(
    "var",
    "variance, divisor n - correction",
    lambda x, correction, **k: np.var(x, ddof=correction, **k),
    FLOAT,
    correction=0,
)
_reduction(
    "std",
    "standard deviation, divisor n - correction",
    lambda x, correction, **k: np.std(x, ddof=correction, **k),
    FLOAT,
    correction=0,
)


def _partial(shapes, attrs):
    (shape,) = shapes
    return [(attrs["parts"],) + tuple(n for k, n in enumerate(shape) if k not in attrs["axes"])]


def _partial_ref(x, axes, parts):
    rows = np.moveaxis(x, axes, range(len(axes))).reshape(
        (-1,) + tuple(n for k, n in enumerate(x.shape) if k not in axes)
    )
    return np.stack([np.sum(rows[p::parts], axis=0, dtype=x.dtype) for p in range(parts)])


_row("partial_sum", "partial", "x", "sums over axes in parts: part p has every parts-th row from row p on; a further sum over the parts is the sum",
     takes=NUMBER, attrs={"axes": ..., "parts": ...}, infer=_partial, ref=_partial_ref)  # fmt: skip

# ----------------------------------------------------------------------------------------------------------------
# shapes

ALL_TYPES = ANY + COMPLEX + NARROW


def _slice_ref(x, start, size, step):
    """A view, which matters where it is written into."""
    stops = [s + n * p for s, n, p in zip(start, size, step)]
    return x[tuple(slice(s, stop if stop >= 0 else None, p) for s, stop, p in zip(start, stops, step))]


def _pad_ref(x, value, low, high):
    out = np.full(tuple(l + n + h for l, n, h in zip(low, x.shape, high)), value, x.dtype)
    source = tuple(slice(max(0, -l), n - max(0, -h)) for l, n, h in zip(low, x.shape, high))
    target = tuple(
        slice(max(0, l), max(0, l) + max(0, n - max(0, -l) - max(0, -h))) for l, n, h in zip(low, x.shape, high)
    )
    out[target] = x[source]
    return out


def _broadcast_ref(x, shape, dims):
    expanded = [1] * len(shape)
    for d, n in zip(dims, x.shape):
        expanded[d] = n
    return np.broadcast_to(x.reshape(expanded), shape)


def _split_ref(x, axis, sizes):
    return np.split(x, np.cumsum(sizes)[:-1], axis) if sizes else []


def _split_slices(b, x, axis, sizes):
    out, start = [], 0
    for size in sizes:
        out.append(b.slice(x, axis, start, size))
        start = start + size
    return out


def _index_dtypes(dtypes, attrs):
    return None if dtypes[1] in (dt.i32, dt.i64) else f"the indices are {dtypes[1]}, not i32 or i64"


def _shape(name, operands, doc, infer, ref, attrs, takes=ALL_TYPES, numpy="", nvfuser="", **more):
    _row(
        name,
        more.pop("kind", "shape"),
        operands,
        doc,
        takes=takes,
        attrs=attrs,
        infer=infer,
        ref=ref,
        numpy=numpy,
        nvfuser=nvfuser,
        **more,
    )


_shape("broadcast_in_dim", "x", "operand dimension k becomes dims[k] of shape; the others repeat", _broadcast_in_dim, _broadcast_ref,
       {"shape": ..., "dims": ...}, nvfuser="broadcast_in_dim")  # fmt: skip
_shape("reshape", "x", "the same elements in row-major order in another shape", _reshape, lambda x, shape: x.reshape(shape), {"shape": ...},
       numpy="reshape", nvfuser="reshape")  # fmt: skip
_shape("permute", "x", "result dimension k is operand dimension dims[k]", _permute, lambda x, dims: x.transpose(dims), {"dims": ...},
       numpy="transpose permute_dims", nvfuser="permute")  # fmt: skip
_shape("squeeze", "x", "without the axes, which have extent 1", _squeeze, lambda x, axes: np.squeeze(x, tuple(axes)), {"axes": ...},
       numpy="squeeze", nvfuser="squeeze")  # fmt: skip
_shape("expand_dims", "x", "with new axes of extent 1 at these places of the result", _expand_dims, lambda x, axes: np.expand_dims(x, tuple(axes)),
       {"axes": ...}, numpy="expand_dims")  # fmt: skip
_shape("slice", "x", "element i is operand element start + i * step; size is the result's shape; step may be negative", _slice, _slice_ref,
       {"start": ..., "size": ..., "step": ...}, nvfuser="slice")  # fmt: skip
_shape("concatenate", "x*", "operands joined along axis", _concatenate, lambda *x, axis: np.concatenate(x, axis), {"axis": ...},
       numpy="concatenate concat", nvfuser="cat")  # fmt: skip
_shape("pad", "x value", "low and high elements of value added on each side of each dimension; negative ones cut off", _pad, _pad_ref,
       {"low": ..., "high": ...}, numpy="pad", nvfuser="pad")  # fmt: skip
_shape("split", "x", "consecutive pieces of these sizes along axis", _split, _split_ref, {"axis": ..., "sizes": ...}, expand=_split_slices, numpy="split array_split",
       nvfuser="split chunk")  # fmt: skip
_shape("take", "x indices", "slices at indices along axis; negative indices count from the end; out of range is clamped", _take,
       lambda x, i, axis: np.take(x, np.where(i < 0, i + x.shape[axis], i), axis, mode="clip"), {"axis": ...}, kind="index",
       operand_dtypes=_index_dtypes, numpy="take", nvfuser="index_select")  # fmt: skip
_shape(
    "take_along_axis",
    "x indices",
    "element at indices along axis, the other coordinates kept; negative indices count from the end; out of range is clamped",
    _take_along,
    lambda x, i, axis: np.take_along_axis(
        x, np.clip(np.where(i < 0, i + x.shape[axis], i), 0, x.shape[axis] - 1), axis
    ),
    {"axis": ...},
    kind="index",
    operand_dtypes=_index_dtypes,
    numpy="take_along_axis",
    nvfuser="gather take_along_axis",
)

# ----------------------------------------------------------------------------------------------------------------
# creation

_row("constant", "create", "", "a 0-d constant", result="dtype", takes=ALL_TYPES, attrs={"value": ..., "dtype": ...}, infer=lambda s, a: [()],
     ref=lambda value, dtype: np.asarray(value).astype(dtype.numpy))  # fmt: skip
_row("full", "create", "value", "value everywhere", takes=ALL_TYPES, attrs={"shape": ...}, infer=_given_shape,
     ref=lambda v, shape: np.full(shape, v), numpy="full", nvfuser="full")  # fmt: skip
_row("iota", "create", "", "the position along axis", result="dtype", takes=NUMBER, attrs={"shape": ..., "axis": 0, "dtype": ...}, infer=_given_shape,
     ref=lambda shape, axis, dtype: np.broadcast_to(np.arange(shape[axis]).reshape([-1 if k == axis else 1 for k in range(len(shape))]), shape)
     .astype(dtype.numpy), nvfuser="iota")  # fmt: skip
_row("size", "create", "", "a size as a 0-d i64", result="i64", attrs={"value": ...}, infer=lambda s, a: [()],
     ref=lambda value: np.asarray(value, np.int64), nvfuser="size")  # fmt: skip

_row("extent", "query", "x", "the extent of a dimension as a 0-d i64; the elements are not read", result="i64", takes=ALL_TYPES, attrs={"axis": ...},
     infer=lambda s, a: [()] if -len(s[0]) <= a["axis"] < len(s[0]) else _no_axis(s[0], a["axis"]),
     ref=lambda x, axis: np.asarray(x.shape[axis], np.int64))  # fmt: skip
_row("dtype_of", "query", "x", "the element type as a 0-d i64, its place in dtypes.ALL; the elements are not read", result="i64", takes=ALL_TYPES,
     infer=lambda s, a: [()], ref=lambda x: np.asarray(dt.ALL.index(dt.of(x.dtype)), np.int64))  # fmt: skip

_M0, _M1, _W0, _W1 = 0xD2511F53, 0xCD9E8D57, 0x9E3779B9, 0xBB67AE85


def philox(counter: np.ndarray, key: int) -> np.ndarray:
    """Philox-4x32-10 (Salmon et al., SC'11): for counters [n, 4] of uint32 and a 64-bit key, [n, 4] random uint32."""
    c = [counter[:, k].astype(np.uint64) for k in range(4)]
    k0, k1 = key & 0xFFFFFFFF, (key >> 32) & 0xFFFFFFFF
    for _ in range(10):
        p0, p1 = c[0] * np.uint64(_M0), c[2] * np.uint64(_M1)
        c = [(p1 >> np.uint64(32)) ^ c[1] ^ np.uint64(k0), p1 & np.uint64(0xFFFFFFFF),
             (p0 >> np.uint64(32)) ^ c[3] ^ np.uint64(k1), p0 & np.uint64(0xFFFFFFFF)]  # fmt: skip
        k0, k1 = (k0 + _W0) & 0xFFFFFFFF, (k1 + _W1) & 0xFFFFFFFF
    return np.stack(c, 1).astype(np.uint32)


def random_words(seed, offset, numel: int, count: int) -> np.ndarray:
    """[numel, count] words (count 1, 2 or 4). A Philox block serves 4 / count elements in turn; block b has counter (b
    low, b high, offset low, offset high) and key seed."""
    share = 4 // count
    b = np.arange(-(-numel // share), dtype=np.uint64)
    offset = int(offset) & 0xFFFFFFFFFFFFFFFF
    counter = np.stack(
        [
            b & np.uint64(0xFFFFFFFF),
            b >> np.uint64(32),
            np.full_like(b, offset & 0xFFFFFFFF),
            np.full_like(b, offset >> 32),
        ],
        1,
    )
    return philox(counter, int(seed) & 0xFFFFFFFFFFFFFFFF).reshape(-1, count)[:numel]


def _join(low, high):
    return low.astype(np.uint64) | (high.astype(np.uint64) << np.uint64(32))


def _uniform_ref(seed, offset, shape, dtype):
    words = random_words(seed, offset, pymath.prod(shape), 2 if dtype is dt.f64 else 1)
    if dtype is dt.f64:
        value = (_join(words[:, 0], words[:, 1]) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    else:
        value = (words[:, 0] >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)
    return value.reshape(shape).astype(dtype.numpy)


def _normal_ref(seed, offset, shape, dtype):
    words = random_words(seed, offset, pymath.prod(shape), 4 if dtype is dt.f64 else 2)
    if dtype is dt.f64:
        a, b, unit = _join(words[:, 0], words[:, 1]), _join(words[:, 2], words[:, 3]), 2.0**-64
    else:
        a, b, unit = words[:, 0], words[:, 1], 2.0**-32
    u, turns = (a.astype(np.float64) + 0.5) * unit, b.astype(np.float64) * unit
    return (np.sqrt(-2 * np.log(u)) * np.cos(2 * np.pi * turns)).reshape(shape).astype(dtype.numpy)


def _random_dtypes(dtypes, attrs):
    return None if set(dtypes) <= {dt.i64, dt.u64} else "seed and offset must be 64-bit integers"


_row(
    "uniform",
    "random",
    "seed offset",
    "uniform in [0, 1), by Philox: the same numbers for a seed and an offset on every target",
    takes=INT,
    result="dtype",
    attrs={"shape": ..., "dtype": ...},
    infer=_given_shape,
    ref=_uniform_ref,
    operand_dtypes=_random_dtypes,
    cost=60,
)
_row(
    "normal",
    "random",
    "seed offset",
    "standard normal, by Box and Muller from Philox",
    takes=INT,
    result="dtype",
    attrs={"shape": ..., "dtype": ...},
    infer=_given_shape,
    ref=_normal_ref,
    operand_dtypes=_random_dtypes,
    cost=100,
)

# ----------------------------------------------------------------------------------------------------------------
# library


def _linear_ref(x, w, *bias):
    out = x @ np.swapaxes(w, -1, -2) if w.ndim > 1 else x @ w
    return out + bias[0] if bias else out


_row("matmul", "library", "a b", "matrix product, as NumPy's", takes=ALL_TYPES, infer=_matmul, ref=lambda a, b: np.asarray(a @ b), numpy="matmul",
     nvfuser="matmul")  # fmt: skip
_row(
    "linear",
    "library",
    "x w bias*",
    "x times w transposed, plus bias",
    takes=FLOAT,
    infer=_linear,
    ref=_linear_ref,
    nvfuser="linear",
)


def _attention(shapes, attrs):
    q, k, v = shapes
    if not 2 < len(q) == len(k) == len(v):
        raise ShapeError(
            f"attention: query, key and value must have one rank of at least 3, not {len(q)}, {len(k)} and {len(v)}"
        )
    return [q[:-1] + v[-1:]]


def _attention_ref(q, k, v, causal, scale):
    wide = np.float64 if q.dtype == np.float64 else np.float32
    scores = (
        q.astype(wide)
        @ np.swapaxes(k, -1, -2).astype(wide)
        * (1 / pymath.sqrt(q.shape[-1]) if scale is None else scale)
    )
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True) @ v.astype(wide)).astype(q.dtype)


_row("attention", "library", "query key value", "softmax(query key^T * scale) value over the last two dimensions; scale is 1 / sqrt(width) where it "
     "is None; causal: position i sees up to i", takes=FLOAT, attrs={"causal": False, "scale": None}, infer=_attention, ref=_attention_ref,
     nvfuser="sdpfa_fwd")  # fmt: skip


def _scattered_dtypes(dtypes, attrs):
    if dtypes[1] not in (dt.i32, dt.i64):
        return f"the indices are {dtypes[1]}, not i32 or i64"
    return None if dtypes[0] is dtypes[2] else f"the values are {dtypes[2]}, not {dtypes[0]}"


def _scan_ref(function):
    def ref(x, axis):
        wide = x.astype(np.float32) if x.dtype.itemsize == 2 and dt.of(x.dtype).is_float else x
        with np.errstate(all="ignore"):
            return function(wide, axis=axis).astype(x.dtype)

    return ref


def _argsort_ref(x, axis, descending):
    """Stable; NaN counts as the largest."""
    if not descending:
        return np.argsort(x, axis=axis, kind="stable").astype(np.int64)
    flipped = np.flip(x, axis)
    last = x.shape[axis] - 1
    return np.flip(last - np.argsort(flipped, axis=axis, kind="stable"), axis).astype(np.int64)


def _scatter_ref(x, indices, values, axis):
    out = x.copy()
    where = list(np.ix_(*map(np.arange, indices.shape))) if indices.ndim else []
    if where:
        where[axis] = indices
        out[tuple(where)] = values if values.ndim == 0 else values[tuple(slice(0, n) for n in indices.shape)]
    return out


def _index_put_accumulate_ref(x, indices, values):
    out = x.astype(np.float32) if x.dtype.itemsize == 2 and dt.of(x.dtype).is_float else x.copy()
    np.add.at(out, indices, values.astype(out.dtype))
    return out.astype(x.dtype)


for _name, _doc, _function, _takes in (
    ("cumsum", "running sums along axis", np.cumsum, NUMBER),
    ("cumprod", "running products along axis", np.cumprod, NUMBER),
    ("cummax", "running maxima along axis; NaN from the first NaN on", np.maximum.accumulate, ANY),
    ("cummin", "running minima along axis; NaN from the first NaN on", np.minimum.accumulate, ANY),
):
    _row(
        _name,
        "library",
        "x",
        _doc,
        takes=_takes,
        attrs={"axis": ...},
        infer=_same,
        ref=_scan_ref(_function),
        nvfuser=_name,
    )
_row("argsort", "library", "x", "the positions that sort along axis; stable; NaN counts as the largest", result="i64",
     attrs={"axis": ..., "descending": False}, infer=_same, ref=_argsort_ref, nvfuser="argsort topk")  # fmt: skip
_row(
    "scatter",
    "library",
    "x indices values",
    "x with values, of the indices' shape or 0-d, put at indices along axis, the other coordinates kept",
    takes=ALL_TYPES,
    attrs={"axis": ...},
    infer=_same,
    ref=_scatter_ref,
    operand_dtypes=_scattered_dtypes,
    nvfuser="scatter",
)
_row(
    "index_put_accumulate",
    "library",
    "x indices values",
    "x with values[k] added to row indices[k]",
    takes=NUMBER,
    infer=_same,
    ref=_index_put_accumulate_ref,
    operand_dtypes=_scattered_dtypes,
    nvfuser="index_put_accumulate index_accumulate",
)


def result_dtypes(row: OpDef, operand_dtypes, attrs) -> list[DType]:
    """The element types of the results. Raises TypeError, naming operand and rule, where operands do not fit."""
    if row.operand_dtypes:
        problem = row.operand_dtypes(operand_dtypes, attrs)
        if problem:
            raise TypeError(f"{row.name}: {problem}")
    elif len(set(operand_dtypes)) > 1:
        raise TypeError(
            f"{row.name}: operands are {', '.join(map(str, operand_dtypes))}; all must have one element type"
        )
    if not row.operand_dtypes and operand_dtypes and operand_dtypes[0].kind not in row.takes:
        kinds = {
            "f": "floats",
            "i": "integers",
            "u": "unsigned integers",
            "b": "bools",
            "c": "complex",
            "n": "floats of a byte",
        }
        raise TypeError(
            f"{row.name}: operand 0 is {operand_dtypes[0]}; it takes {', '.join(kinds[k] for k in row.takes)}"
        )
    if callable(row.result):
        return row.result(operand_dtypes, attrs)
    if row.result == "same":
        dtype = operand_dtypes[-1]
        if row.kind == "index" or row.name == "pad":
            dtype = operand_dtypes[0]
    else:
        dtype = (
            {"bool": dt.bool_, "i64": dt.i64}.get(row.result) or _of_operand(row, operand_dtypes) or attrs[row.result]
        )
    return [dtype] * len(attrs["sizes"]) if row.name == "split" else [dtype]


def _of_operand(row: OpDef, dtypes) -> DType | None:
    return getattr(dtypes[0], row.result) if row.result in ("real", "complex") else None


def result_shapes(row: OpDef, shapes, attrs) -> list[tuple]:
    """The symbolic shapes of the results. Raises :class:`ShapeError`."""
    return (row.infer or _elementwise)(list(shapes), attrs)


from mlirfuse.ir.ops import composites  # noqa: E402, F401  (the composite rows of the same table)
