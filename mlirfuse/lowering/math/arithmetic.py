"""Shared arithmetic: polynomials, scaling by powers of two, pairs of floats, bounds, and branches for rare cases."""

from __future__ import annotations

from mlirfuse.ir import dtypes as dt
from mlirfuse.lowering.emitter import Emitter, Val
from mlirfuse.lowering.math.formats import Format, bits_of, format_of


def poly(e: Emitter, x: Val, coefficients) -> Val:
    """``c[0] + c[1] x + c[2] x² + …`` by Horner's rule, which has the fewest operations; other elements fill the
    pipeline."""
    total = e.const(coefficients[-1], x.dtype, x.lanes)
    for c in reversed(coefficients[:-1]):
        total = e.fma(total, x, c)
    return total


def to_float(e: Emitter, k: Val, f: Format) -> Val:
    """Small integers as floats; 64-bit ones by :attr:`Format.magic`, since AVX2 has no instruction for it."""
    if f.bits == 32:
        return e.cast(k, f.dtype)
    return e.sub(e.bitcast(e.add(k, bits_of(f.magic, f)), f.dtype), f.magic)


def below(e: Emitter, x: Val, bound: float) -> Val:
    """The smaller of ``x`` and ``bound``; NaN is preserved. One instruction on x86, and for float32 on a GPU."""
    if e.target == "gpu" and x.dtype is dt.f32:
        return e.min(x, bound)
    return e.select(e.cmp("gt", x, bound), bound, x)


def above(e: Emitter, x: Val, bound: float) -> Val:
    """The larger of ``x`` and ``bound``; NaN is preserved. Like :func:`below`."""
    if e.target == "gpu" and x.dtype is dt.f32:
        return e.max(x, bound)
    return e.select(e.cmp("lt", x, bound), bound, x)


def clamp(e: Emitter, x: Val, low: float, high: float | None) -> Val:
    """``x`` clamped to two bounds, or to a lower one; a bound for NaN: the GPU's own instructions."""
    if high is not None:
        x = e.intrinsic("llvm.minnum", x, e.const(high, x.dtype, x.lanes))
    return e.intrinsic("llvm.maxnum", x, e.const(low, x.dtype, x.lanes))


def where_rare(e: Emitter, condition: Val, then, otherwise: list[Val]) -> list[Val]:
    """``then()`` where ``condition`` holds, else ``otherwise``; ``then`` only runs if any lane needs it."""
    any_lane = condition
    if condition.lanes > 1:
        any_lane = e.op(f"vector.reduction <or>, {condition} : {condition.type} into i1", dt.bool_)
    name = e.fresh()
    types = ", ".join(v.type for v in otherwise)
    count = f":{len(otherwise)}" if len(otherwise) > 1 else ""
    e.line(f"{name}{count} = scf.if {any_lane} -> ({types}) {{")
    e.depth += 1
    slow = [e.select(condition, s, o) for s, o in zip(then(), otherwise, strict=True)]
    e.line(f"scf.yield {', '.join(v.name for v in slow)} : {types}")
    e.depth -= 1
    e.line("} else {")
    e.depth += 1
    e.line(f"scf.yield {', '.join(v.name for v in otherwise)} : {types}")
    e.depth -= 1
    e.line("}")
    if len(otherwise) == 1:
        return [Val(name, otherwise[0].dtype, otherwise[0].lanes)]
    return [Val(f"{name}#{k}", v.dtype, v.lanes) for k, v in enumerate(otherwise)]


def pow2(e: Emitter, n: Val, f: Format) -> Val:
    """2 to the power of the integers in ``n``'s low bits (``f.uint``); the result must be normal."""
    return e.bitcast(e.add(e.shl(n, f.mantissa), f.one), f.dtype)


def scale(e: Emitter, x: Val, n: Val, offset: int = 0) -> Val:
    """``x * 2**(n + offset)``, rounded once, for ``x`` near 1 and the integers in ``n``'s low bits, including subnormal
    and infinite results.

    The power is applied in two halves, of which the first leaves a normal number. ``n`` may have the upper bits of
    :attr:`Format.magic`, which are shifted out."""
    f = format_of(x)
    signed = e.bitcast(n, f.sint)
    half = e.shr(signed, 1)
    rest = e.sub(signed, half)
    one = f.one + (offset << f.mantissa)
    first = e.bitcast(e.add(e.shl(half, f.mantissa), f.one), f.dtype)
    second = e.bitcast(e.add(e.shl(rest, f.mantissa), one), f.dtype)
    return e.mul(e.mul(x, first), second)


def scale_magic(e: Emitter, x: Val, t: Val, offset: int = 0) -> Val:
    """:func:`scale` by n, where ``t`` is n plus :attr:`Format.magic`."""
    f = format_of(x)
    if x86_vector(e, x):
        return _scalef(e, x, e.sub(t, f.magic - offset))
    return scale(e, x, e.bitcast(t, f.uint), offset)


def scale_normal(e: Emitter, x: Val, t: Val) -> Val:
    """Like :func:`scale_magic`, if the result is a normal number: adds the power to the exponent."""
    if x86_vector(e, x):
        return scale_magic(e, x, t)
    f = format_of(x)
    return e.bitcast(e.add(e.bitcast(x, f.uint), e.shl(e.bitcast(t, f.uint), f.mantissa)), f.dtype)


def x86_vector(e: Emitter, x: Val) -> bool:
    """Whether AVX-512 has instructions for vectors of this type."""
    return {"avx512f", "avx512vl"} <= e.features and e.target == "cpu" and x.lanes * x.dtype.bits in (128, 256, 512)


def x86(e: Emitter, name: str, *operands: Val) -> Val:
    """AVX-512's instruction ``name`` on all lanes. Its masked form's pass-through operand, the last float one, is not
    used."""
    x = operands[0]
    width = x.lanes * x.dtype.bits
    operands += (e.const(-1, dt.i16 if x.lanes == 16 else dt.i8),)
    if width == 512:
        operands += (e.const(4, dt.i32),)  # the current rounding mode
    full = f"llvm.x86.avx512.mask.{name}.p{'s' if x.dtype is dt.f32 else 'd'}.{width}"
    types = ", ".join(v.type for v in operands)
    return e.op(
        f'llvm.call_intrinsic "{full}"({", ".join(map(str, operands))}) : ({types}) -> {x.type}', x.dtype, x.lanes
    )


def _scalef(e: Emitter, x: Val, n: Val) -> Val:
    """``x * 2**n`` for integral floats n, rounded once: one instruction."""
    return x86(e, "scalef", x, n, x)


def two_sum(e: Emitter, a: Val, b: Val) -> tuple[Val, Val]:
    """``a + b`` as an exact pair."""
    s = e.add(a, b)
    t = e.sub(s, a)
    return s, e.add(e.sub(a, e.sub(s, t)), e.sub(b, t))


def fast_two_sum(e: Emitter, a: Val, b: Val) -> tuple[Val, Val]:
    """``a + b`` as an exact pair if ``|a| >= |b|``."""
    s = e.add(a, b)
    return s, e.sub(b, e.sub(s, a))


def two_product(e: Emitter, a: Val, b) -> tuple[Val, Val]:
    """``a * b`` as an exact pair."""
    p = e.mul(a, b)
    return p, e.fma(a, b, e.neg(p))
