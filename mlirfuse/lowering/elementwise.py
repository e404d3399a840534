"""Emission rules of elementwise ops: ``EMIT[name](e, *operands)`` computes elements in the compute type of the
operands, for any number of lanes. Ops that depend on more than their operands' elements (casts, divisions by a shared
divisor) have a rule in :mod:`mlirfuse.lowering.kernel` instead."""

from __future__ import annotations

import math as pymath
from collections.abc import Callable

import numpy as np

from mlirfuse.ir import dtypes as dt
from mlirfuse.lowering import math as m
from mlirfuse.lowering.emitter import Val


def _is_float(function, otherwise):
    """``function`` for floats; the constant ``otherwise`` for integers and bools."""
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


def _safe_divisor(e, a, b):
    """A divisor for which integer division is defined, and the lanes with ``b == 0``. Replaces 0, and -1 for INT_MIN /
    -1."""
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
    # As in NumPy: computed from the exact remainder, so that the quotient is the true floor.
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


def _int_pow(e, a, b):
    """Exponentiation by squaring; a negative exponent gives 1/a^n rounded toward zero."""
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


def _shift(e, function, a, b):
    """A shift by any amount: by the width or more everything is shifted out as in NumPy, also for negative amounts."""
    a, b = e._pair(a, b)
    unsigned = dt.BY_NAME[f"u{a.dtype.bits}"]
    inside = e.cmp("lt", e.bitcast(b, unsigned), a.dtype.bits)
    fill = e.const(0, a.dtype, a.lanes)
    if function == "shr" and a.dtype.kind == "i":
        fill = e.shr(a, a.dtype.bits - 1)
    # On GPUs LLVM truncates a selected amount to 32 bits: 2**32 would shift by 0.
    amount = e.and_(b, a.dtype.bits - 1) if e.target != "cpu" else e.select(inside, b, e.const(0, b.dtype))
    return e.select(inside, getattr(e, function)(a, amount), fill)


def _shr_logical(e, a, b):
    unsigned = dt.BY_NAME[f"u{a.dtype.bits}"]
    return e.bitcast(_shift(e, "shr", e.bitcast(a, unsigned), e.bitcast(b, unsigned)), a.dtype)


def _gcd_emit(e, a, b):
    """Euclid's algorithm, unrolled to the maximal number of steps for the width (Lamé)."""
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
    """``choose(a, b)``; NaN only if both are NaN."""
    a, b = e._pair(a, b)
    if not a.dtype.is_float:
        return choose(a, b)
    return e.select(e.isnan(a), b, e.select(e.isnan(b), a, choose(a, b)))


def _logaddexp_emit(e, a, b):
    """With the constant 0 as an operand, as in `softplus`, neither an ordering of the operands nor float64 against
    cancellation is needed."""
    for x, other in ((a, b), (b, a)):
        if e.known(other) == 0:
            return m.softplus(e, x)
    return m.logaddexp(e, a, b)


def _eq_emit(e, a, b):
    """On a GPU, a comparison of 64-bit indices that fit in 32 bits with one number for all lanes checks that number's
    range once, and compares the lanes in 32 bits."""
    for lanes, one in ((a, b), (b, a)):
        index = e.narrow(lanes)
        if e.target == "gpu" and index is not None and index.dtype is dt.i32 and one.lanes == 1 < index.lanes:
            low = e.cast(one, dt.i32)
            return e.and_(e.cmp("eq", index, low), e.splat(e.cmp("eq", e.cast(low, one.dtype), one), index.lanes))
    return e.cmp("eq", a, b)


def _truth(e, x):
    return x if x.dtype is dt.bool_ else e.cmp("ne", x, 0)


def _decode_emit(dtype):
    mantissa, bias, _, nan = dt.NARROW_FORMATS[dtype]

    def emit(e, x):
        wide = e.cast(x, dt.u32)
        if dtype is dt.f8e5m2:  # the upper byte of an f16
            return e.cast(e.bitcast(e.cast(e.shl(wide, 8), dt.u16), dt.f16), dt.f32)
        size, sign = e.and_(wide, 0x7F), e.shl(e.and_(wide, 0x80), 24)
        normal = e.add(e.shl(size, 23 - mantissa), (127 - bias) << 23)
        small = e.bitcast(e.mul(e.cast(size, dt.f32), 2.0 ** (1 - bias - mantissa)), dt.u32)
        bits = e.select(e.cmp("lt", size, 1 << mantissa), small, normal)
        bits = e.select(e.cmp("eq", size, nan), e.const(0x7FC00000, dt.u32), bits)
        return e.bitcast(e.or_(bits, sign), dt.f32)

    return emit


def _encode_pairs(e, x, dtype):
    """The bytes of float32 numbers in a float8 type, by an instruction for two numbers. It gives NaN without its
    sign."""
    name = dtype.name.removeprefix("f8").removesuffix("fn")
    asm = f'llvm.inline_asm "cvt.rn.satfinite.{name}x2.f32 $0, $1, $2;", "=h,f,f"'
    zero, pairs = e.const(0.0, dt.f32), []
    for k in range(0, x.lanes, 2):
        low, high = e.extract(x, k), e.extract(x, k + 1) if k + 1 < x.lanes else zero
        pairs.append(e.op(f"{asm} {high}, {low} : (f32, f32) -> i16", dt.u16))
    if x.lanes == 1:
        out = e.cast(pairs[0], dt.u8)
    else:
        words = e.from_lanes(pairs)
        out = e.op(f"llvm.bitcast {words} : {words.type} to {Val('', dt.u8, x.lanes).type}", dt.u8, x.lanes)
    sign = e.cast(e.and_(e.shr(e.bitcast(x, dt.u32), 24), 0x80), dt.u8)
    return e.or_(out, sign)


def _encode_emit(dtype):
    mantissa, bias, largest, nan = dt.NARROW_FORMATS[dtype]
    shift, step = 23 - mantissa, 2.0 ** (1 - bias - mantissa)

    def emit(e, x):
        x = e.cast(x, dt.f32)
        if "float8" in e.features and e.target == "gpu":
            return _encode_pairs(e, x, dtype)
        sign = e.and_(e.shr(e.bitcast(x, dt.u32), 24), 0x80)
        clamped = e.min(e.abs(x), largest)
        bits = e.bitcast(clamped, dt.u32)
        even = e.add(e.and_(e.shr(bits, shift), 1), (1 << shift - 1) - 1)  # rounds halves to even
        normal = e.sub(e.shr(e.add(bits, even), shift), (127 - bias) << mantissa)
        magic = np.float32(step * 2.0**23)  # float32 numbers of this size are multiples of the smallest subnormal
        small = e.sub(e.bitcast(e.add(clamped, float(magic)), dt.u32), int(magic.view(np.uint32)))
        out = e.select(e.cmp("lt", clamped, 2.0 ** (1 - bias)), small, normal)
        out = e.select(e.isnan(x), e.const(nan, dt.u32), out)
        return e.cast(e.or_(out, sign), dt.u8)

    return emit


EMIT: dict[str, Callable[..., Val]] = {
    "exp": m.exp,
    "exp2": m.exp2,
    "expm1": m.expm1,
    "log": m.log,
    "log2": m.log2,
    "log10": m.log10,
    "log1p": m.log1p,
    "sqrt": lambda e, x: e.sqrt(x),
    "rsqrt": m.rsqrt,
    "cbrt": m.cbrt,
    "sin": m.sin,
    "cos": m.cos,
    "tan": m.tan,
    "asin": m.asin,
    "acos": m.acos,
    "atan": m.atan,
    "sinh": m.sinh,
    "cosh": m.cosh,
    "tanh": m.tanh,
    "asinh": m.asinh,
    "acosh": m.acosh,
    "atanh": m.atanh,
    "erf": m.erf,
    "erfc": m.erfc,
    "erfinv": m.erfinv,
    "erfcinv": m.erfcinv,
    "lgamma": m.lgamma,
    "sigmoid": m.sigmoid,
    "silu": m.silu,
    "reciprocal": m.rounded_reciprocal,
    "frac": lambda e, x: e.sub(x, e.trunc(x)),
    "neg": lambda e, x: e.neg(x),
    "abs": lambda e, x: e.abs(x),
    "sign": _sign,
    "floor": lambda e, x: e.floor(x),
    "ceil": lambda e, x: e.ceil(x),
    "trunc": lambda e, x: e.trunc(x),
    "round": lambda e, x: e.rint(x),
    "relu": lambda e, x: e.max(x, 0),
    "isnan": _is_float(lambda e, x: e.isnan(x), False),
    "isinf": _is_float(lambda e, x: e.cmp("eq", e.abs(x), pymath.inf), False),
    "isfinite": _is_float(lambda e, x: e.cmp("lt", e.abs(x), pymath.inf), True),
    "isposinf": _is_float(lambda e, x: e.cmp("eq", x, pymath.inf), False),
    "isneginf": _is_float(lambda e, x: e.cmp("eq", x, -pymath.inf), False),
    "isreal": lambda e, x: e.const(True, dt.bool_, x.lanes),
    "signbit": _signbit_emit,
    "logical_not": lambda e, x: e.cmp("eq", x, 0) if x.dtype is not dt.bool_ else e.not_(x),
    "bitwise_not": lambda e, x: e.not_(x),
    "add": lambda e, a, b: e.add(a, b) if a.dtype is not dt.bool_ else e.or_(a, b),
    "sub": lambda e, a, b: e.sub(a, b),
    "mul": lambda e, a, b: e.mul(a, b) if a.dtype is not dt.bool_ else e.and_(a, b),
    "div": lambda e, a, b: e.div(a, b),
    "trunc_div": _trunc_div_emit,
    "floor_div": _floor_div_emit,
    "ceil_div": _ceil_div_emit,
    "mod": _mod_emit,
    "fmod": _fmod_emit,
    "pow": lambda e, a, b: m.pow(e, a, b) if a.dtype.is_float else _int_pow(e, a, b),
    "atan2": lambda e, a, b: m.atan2(e, a, b),
    "hypot": lambda e, a, b: m.hypot(e, a, b),
    "copysign": lambda e, a, b: e.copysign(a, b),
    "nextafter": lambda e, a, b: m.nextafter(e, a, b),
    "eq": _eq_emit,
    "logaddexp": _logaddexp_emit,
    "logaddexp2": m.logaddexp2,
    "maximum": lambda e, a, b: e.max(a, b),
    "minimum": lambda e, a, b: e.min(a, b),
    "fmax": lambda e, a, b: _minmax_nan(e, a, b, e.max),
    "fmin": lambda e, a, b: _minmax_nan(e, a, b, e.min),
    "gcd": _gcd_emit,
    "logical_and": lambda e, a, b: e.and_(_truth(e, a), _truth(e, b)),
    "logical_or": lambda e, a, b: e.or_(_truth(e, a), _truth(e, b)),
    "logical_xor": lambda e, a, b: e.xor(_truth(e, a), _truth(e, b)),
    "bitwise_and": lambda e, a, b: e.and_(a, b),
    "bitwise_or": lambda e, a, b: e.or_(a, b),
    "bitwise_xor": lambda e, a, b: e.xor(a, b),
    "shift_left": lambda e, a, b: _shift(e, "shl", a, b),
    "shift_right": lambda e, a, b: _shift(e, "shr", a, b),
    "shift_right_logical": _shr_logical,
    "real": lambda e, x: x,
    "imag": lambda e, x: x,
    "conj": lambda e, x: x,
    "where": lambda e, c, a, b: e.select(c, a, b),
    "copy": lambda e, x: x,
    "segment_set": lambda e, x: x,
} | {p: (lambda e, a, b, p=p: e.cmp(p, a, b)) for p in ("ne", "lt", "le", "gt", "ge")}
for _dtype in dt.NARROW_FORMATS:
    EMIT[f"decode_{_dtype.name[2:]}"] = _decode_emit(_dtype)
    EMIT[f"encode_{_dtype.name[2:]}"] = _encode_emit(_dtype)
# Approximations for a GPU of float32 results that are rounded to 16-bit floats.
ROUGH: dict[str, Callable[..., Val]] = {
    "pow": m.rough_pow,
    "sigmoid": m.rough_sigmoid,
    "silu": lambda e, x: e.mul(x, m.rough_sigmoid(e, x)),
}
