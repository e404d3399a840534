"""Exact operations on floats: fmod, nextafter and ldexp."""

from __future__ import annotations

from mlirfuse.ir import dtypes as dt
from mlirfuse.lowering.emitter import Emitter, Val
from mlirfuse.lowering.math.arithmetic import pow2, scale
from mlirfuse.lowering.math.formats import INF, NAN, format_of


def fmod(e: Emitter, x: Val, y: Val) -> Val:
    """The remainder of the truncated quotient, with the sign of ``x``; exact.

    Long division: subtracts a multiple of ``y 2**k``, with k such that the quotient has few enough digits for the
    remainder to be exact. One iteration suffices for x up to 2**22 (2**51 in float64) times y."""
    f = format_of(x)
    a, b = e.abs(x), e.abs(y)
    lanes = x.lanes
    valid = e.and_(e.cmp("lt", a, INF), e.cmp("gt", b, 0.0))
    valid = e.and_(valid, e.not_(e.isnan(b)))
    zero = e.const(0.0, x.dtype, lanes)
    a = e.select(valid, a, zero)
    divisor = e.select(e.and_(valid, e.cmp("lt", b, INF)), b, e.const(INF, x.dtype, lanes))
    subnormal = e.cmp("lt", divisor, f.smallest_normal)
    field = e.shr(e.bitcast(e.select(subnormal, e.mul(divisor, 2.0**f.mantissa), divisor), f.sint), f.mantissa)
    field = e.select(subnormal, e.sub(field, f.mantissa), field)  # the exponent, extended to subnormal numbers

    type_, name, carried, inside = a.type, e.fresh(), e.fresh(), e.fresh()
    e.line(f"{name} = scf.while ({carried} = {a}) : ({type_}) -> {type_} {{")
    e.depth += 1
    any_lane = more = e.cmp("ge", Val(carried, x.dtype, lanes), divisor)
    if lanes > 1:
        any_lane = e.op(f"vector.reduction <or>, {more} : {more.type} into i1", dt.bool_)
    e.line(f"scf.condition({any_lane}) {carried} : {type_}")
    e.depth -= 1
    e.line("} do {")
    e.line(f"^bb0({inside}: {type_}):")
    e.depth += 1
    now = Val(inside, x.dtype, lanes)
    gap = e.sub(e.sub(e.shr(e.bitcast(now, f.sint), f.mantissa), field), f.mantissa - 1)
    gap = e.max(gap, 0)
    part = e.min(gap, f.bias)
    shifted = e.mul(e.mul(divisor, pow2(e, part, f)), pow2(e, e.sub(gap, part), f))
    q = e.trunc(e.div(now, shifted))
    left = e.fma(e.neg(q), shifted, now)
    left = e.select(e.cmp("lt", left, 0.0), e.add(left, shifted), left)  # the quotient was rounded up
    left = e.select(e.cmp("ge", now, divisor), left, now)
    e.line(f"scf.yield {left} : {type_}")
    e.depth -= 1
    e.line("}")
    result = e.copysign(Val(name, x.dtype, lanes), x)
    bad = e.or_(e.not_(e.cmp("lt", e.abs(x), INF)), e.not_(e.cmp("gt", b, 0.0)))
    return e.select(bad, e.const(NAN, x.dtype, lanes), result)


def nextafter(e: Emitter, x: Val, y: Val) -> Val:
    """The next value after ``x`` toward ``y``; ``y`` where they are equal."""
    f = format_of(x)
    bits = e.bitcast(x, f.uint)
    away = e.cmp("eq", e.cmp("lt", x, y), e.cmp("gt", x, 0.0))  # the magnitude grows
    stepped = e.select(away, e.add(bits, 1), e.sub(bits, 1))
    smallest = e.or_(e.and_(e.bitcast(y, f.uint), 1 << (f.bits - 1)), 1)
    stepped = e.select(e.cmp("eq", x, 0.0), smallest, stepped)
    result = e.select(e.cmp("eq", x, y), y, e.bitcast(stepped, f.dtype))
    return e.select(e.cmp("uno", x, y), e.const(NAN, x.dtype, x.lanes), result)


def _nextafter_16bit(e: Emitter, x: Val, y: Val, dtype: dt.DType) -> Val:
    """:func:`nextafter` for numbers of a 16-bit float type, given as float32."""
    unsigned = dt.u16
    bits = e.bitcast(e.cast(x, dtype), unsigned)
    away = e.cmp("eq", e.cmp("lt", x, y), e.cmp("gt", x, 0.0))
    stepped = e.select(away, e.add(bits, 1), e.sub(bits, 1))
    smallest = e.or_(e.and_(e.bitcast(e.cast(y, dtype), unsigned), 1 << 15), 1)
    stepped = e.select(e.cmp("eq", x, 0.0), smallest, stepped)
    stepped = e.select(e.cmp("eq", x, y), e.bitcast(e.cast(y, dtype), unsigned), stepped)
    stepped = e.select(e.cmp("uno", x, y), e.bitcast(e.const(NAN, dtype, x.lanes), unsigned), stepped)
    return e.bitcast(stepped, dtype)


def nextafter_of(e: Emitter, x: Val, y: Val, dtype: dt.DType) -> Val:
    """The result of the op ``nextafter`` for operands of ``dtype``, in the compute type: 16-bit floats are rounded to
    the type first."""
    if dtype is dtype.compute:
        return nextafter(e, x, y)
    a, b = (e.cast(e.cast(v, dtype), dtype.compute) for v in (x, y))
    return e.cast(_nextafter_16bit(e, a, b, dtype), dtype.compute)


def ldexp(e: Emitter, x: Val, n: Val) -> Val:
    """``x * 2**n`` for an i32 ``n``, rounded once."""
    f = format_of(x)
    # three steps, of which only the last may round: x is first made normal, and its exponent removed
    n = e.max(e.min(n, 5000), -5000)
    wide = e.cast(n, f.sint)
    subnormal = e.cmp("lt", e.abs(x), f.smallest_normal)
    normal = e.select(subnormal, e.mul(x, 2.0 ** (f.mantissa + 1)), x)
    bits = e.bitcast(normal, f.sint)
    exponent = e.sub(e.and_(e.shr(bits, f.mantissa), 2 * f.bias + 1), f.bias)
    unit = e.bitcast(e.sub(bits, e.shl(exponent, f.mantissa)), f.dtype)
    total = e.add(exponent, wide)
    total = e.select(subnormal, e.sub(total, f.mantissa + 1), total)
    total = e.max(e.min(total, f.bias + 2), -(f.bias + f.mantissa + 2))
    y = scale(e, unit, e.bitcast(total, f.uint))
    finite = e.and_(e.cmp("lt", e.abs(x), INF), e.cmp("ne", x, 0.0))
    return e.select(finite, y, x)
