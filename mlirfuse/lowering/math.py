"""Elementary functions and random numbers, expanded into arithmetic on the :class:`Emitter`.

Every function takes and gives Vals of float32 or float64 in any number of lanes and emits straight-line code for both
targets: fused multiply-adds, selects and integer operations on the exponent. No library is called. Rare cases that
would cost every element dearly sit behind a branch that is taken where any lane needs it (huge angles; the loop of
``fmod``).

Conventions. "ulp" is the largest error seen against the exact value, in units of the last place, subnormal results
included; the tests hold each function to its bound. Special values are those of C99's annex F, as NumPy gives them.
Polynomials are minimax ones of our own (:mod:`coefficients`, which says how they were made and how good they are); what
is said below of a function is the identity that reduces its argument to where its polynomial is good. On the GPU,
float32 functions may use the hardware's ``ex2.approx`` and ``rcp.approx`` on arguments where these are good to a unit
in the last place.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.dtypes import DType
from mlirfuse.lowering import coefficients as co
from mlirfuse.lowering.emitter import Emitter, Val

INF, NAN = math.inf, math.nan


# ---- the two formats


@dataclass(frozen=True)
class Format:
    """What the expansions need to know of float32 or float64. Splits of a constant are sums of exact parts, largest
    first."""

    dtype: DType
    uint: DType
    int: DType
    mantissa: int  # bits below the leading one
    bias: int
    one: int  # the bits of 1.0
    magic: float  # adding it rounds to an integer, which then sits in the low bits
    smallest_normal: float
    largest: float
    ln2: tuple[float, float]  # full parts
    ln2_short: tuple[float, float]  # the first one with so few bits that its product with any exponent is exact
    pi_2: tuple[float, float, float]
    exp_low: float  # below: exp is 0
    exp_high: float  # above: exp is infinite

    @property
    def bits(self) -> int:
        return self.dtype.bits


F32 = Format(
    dtype=dt.f32,
    uint=dt.u32,
    int=dt.i32,
    mantissa=23,
    bias=127,
    one=0x3F800000,
    magic=1.5 * 2.0**23,
    smallest_normal=2.0**-126,
    largest=(2 - 2.0**-23) * 2.0**127,
    ln2=co.LN2_F32,
    ln2_short=co.LN2_SHORT_F32,
    pi_2=co.PI_2_F32,
    exp_low=-104.0,
    exp_high=89.0,
)
F64 = Format(
    dtype=dt.f64,
    uint=dt.u64,
    int=dt.i64,
    mantissa=52,
    bias=1023,
    one=0x3FF0000000000000,
    magic=1.5 * 2.0**52,
    smallest_normal=2.0**-1022,
    largest=(2 - 2.0**-52) * 2.0**1023,
    ln2=co.LN2_F64,
    ln2_short=co.LN2_SHORT_F64,
    pi_2=co.PI_2_F64,
    exp_low=-746.0,
    exp_high=710.0,
)


def format_of(x: Val) -> Format:
    """The :class:`Format` of ``x``'s element type."""
    assert x.dtype in (dt.f32, dt.f64), x
    return F32 if x.dtype is dt.f32 else F64


def _bits_of(value: float, f: Format) -> int:
    import numpy as np

    return int(np.array(value, f.dtype.numpy).view(f.uint.numpy))


# ---- helpers


def poly(e: Emitter, x: Val, coefficients) -> Val:
    """``c[0] + c[1] x + c[2] x² + …`` by Horner's rule: the fewest operations; other elements fill the pipeline."""
    total = e.const(coefficients[-1], x.dtype, x.lanes)
    for c in reversed(coefficients[:-1]):
        total = e.fma(total, x, c)
    return total


def pow2(e: Emitter, n: Val, f: Format) -> Val:
    """2 to the power of the integers in ``n``'s low bits (``f.uint``), which must give a normal number."""
    return e.bitcast(e.add(e.shl(n, f.mantissa), f.one), f.dtype)


def scale(e: Emitter, x: Val, n: Val, offset: int = 0) -> Val:
    """``x * 2**(n + offset)``, rounded once, for ``x`` near 1 and the integers in ``n``'s low bits, into subnormals and
    infinity.

    The power is applied in two halves, the first of which leaves a normal number. ``n`` may carry the bits of
    :attr:`Format.magic` above: they fall out.
    """
    f = format_of(x)
    signed = e.bitcast(n, f.int)
    half = e.shr(signed, 1)
    rest = e.sub(signed, half)
    one = f.one + (offset << f.mantissa)
    first = e.bitcast(e.add(e.shl(half, f.mantissa), f.one), f.dtype)
    second = e.bitcast(e.add(e.shl(rest, f.mantissa), one), f.dtype)
    return e.mul(e.mul(x, first), second)


def _scale_magic(e: Emitter, x: Val, t: Val, offset: int = 0) -> Val:
    """:func:`scale` by n where ``t`` is n plus :attr:`Format.magic`."""
    f = format_of(x)
    if _x86_vector(e, x):
        return _scalef(e, x, e.sub(t, f.magic - offset))
    return scale(e, x, e.bitcast(t, f.uint), offset)


def _scale_normal(e: Emitter, x: Val, t: Val) -> Val:
    """As :func:`_scale_magic` where the result is a normal number: the power of two is added to the exponent."""
    if _x86_vector(e, x):
        return _scale_magic(e, x, t)
    f = format_of(x)
    return e.bitcast(e.add(e.bitcast(x, f.uint), e.shl(e.bitcast(t, f.uint), f.mantissa)), f.dtype)


def _x86_vector(e: Emitter, x: Val) -> bool:
    """Whether AVX-512 has instructions for vectors of this type."""
    return {"avx512f", "avx512vl"} <= e.features and e.target == "cpu" and x.lanes * x.dtype.bits in (128, 256, 512)


def _x86(e: Emitter, name: str, *operands: Val) -> Val:
    """AVX-512's instruction ``name`` on all lanes; where one is masked, the last float operand or the first stands in:
    none is."""
    x = operands[0]
    width = x.lanes * x.dtype.bits
    operands += (e.const(-1, dt.i16 if x.lanes == 16 else dt.i8),)
    if width == 512:
        operands += (e.const(4, dt.i32),)  # as the processor is set
    full = f"llvm.x86.avx512.mask.{name}.p{'s' if x.dtype is dt.f32 else 'd'}.{width}"
    types = ", ".join(v.type for v in operands)
    return e.op(
        f'llvm.call_intrinsic "{full}"({", ".join(map(str, operands))}) : ({types}) -> {x.type}', x.dtype, x.lanes
    )


def _scalef(e: Emitter, x: Val, n: Val) -> Val:
    """``x * 2**n`` for whole floats n, rounded once: one instruction."""
    return _x86(e, "scalef", x, n, x)


def _to_float(e: Emitter, k: Val, f: Format) -> Val:
    """Small integers as floats; of 64 bits by :attr:`Format.magic`, for want of an instruction on AVX2."""
    if f.bits == 32:
        return e.cast(k, f.dtype)
    return e.sub(e.bitcast(e.add(k, _bits_of(f.magic, f)), f.dtype), f.magic)


def _below(e: Emitter, x: Val, bound: float) -> Val:
    """The smaller of ``x`` and ``bound``; NaN stays. One instruction on x86."""
    return e.select(e.cmp("gt", x, bound), bound, x)


def _above(e: Emitter, x: Val, bound: float) -> Val:
    """The larger of ``x`` and ``bound``; NaN stays."""
    return e.select(e.cmp("lt", x, bound), bound, x)


def _clamp(e: Emitter, x: Val, low: float, high: float) -> Val:
    """``x`` between two bounds, one of them for NaN: the GPU's own instructions."""
    x = e.intrinsic("llvm.minnum", x, e.const(high, x.dtype, x.lanes))
    return e.intrinsic("llvm.maxnum", x, e.const(low, x.dtype, x.lanes))


def _hardware(e: Emitter, x: Val) -> bool:
    return e.target == "gpu" and x.dtype is dt.f32


def _ex2(e: Emitter, x: Val) -> Val:
    return e.per_lane(lambda v: e.intrinsic("llvm.nvvm.ex2.approx.ftz.f", v), x)


def _rcp(e: Emitter, x: Val) -> Val:
    return e.per_lane(lambda v: e.intrinsic("llvm.nvvm.rcp.approx.ftz.f", v), x)


def reciprocal(e: Emitter, x: Val) -> Val:
    """1 / x within 1 ulp for ``x`` of moderate size (2**-120 to 2**120); may give 0 for larger and is infinite for
    smaller."""
    return _rcp(e, x) if _hardware(e, x) else e.div(1.0, x)


def corrected_reciprocal(e: Emitter, x: Val) -> Val:
    """As :func:`reciprocal`, corrected by one of Newton's steps where that is an approximation: rounded, but in rare
    cases."""
    r = reciprocal(e, x)
    return e.fma(e.fma(e.neg(x), r, 1.0), r, r) if _hardware(e, x) else r


def rsqrt(e: Emitter, x: Val) -> Val:
    """``1 / sqrt(x)`` within 1 ulp: of a GPU's approximation, within 2 ulp, and one of Newton's steps, which leaves
    zeros and infinities alone. A square root and a division, each with a branch for subnormals, take three times the
    instructions."""
    if not _hardware(e, x):
        return e.div(1.0, e.sqrt(x))
    y = e.per_lane(lambda v: e.intrinsic("llvm.nvvm.rsqrt.approx.f", v), x)
    better = e.fma(e.mul(y, 0.5), e.fma(e.neg(e.mul(x, y)), y, 1.0), y)
    return e.select(e.isnan(better), y, better)


def quotient(e: Emitter, a, b: Val) -> Val:
    """a / b within 1 ulp for finite ``a`` and ``b`` of moderate size."""
    if not _hardware(e, b):
        return e.div(a, b)
    r = _rcp(e, b)
    q = e.mul(a, r)
    return e.fma(e.fma(e.neg(q), b, a), r, q)


def inverse(e: Emitter, b: Val) -> tuple[Val, Val]:
    """A power of two ``s`` and ``r`` with ``(a * s) * r = a / b`` within 2.5 ulp on a GPU, for all float32 ``a``: ``b
    s`` lies in [1/2, 1), for the largest and the smallest ``b`` in [1, 4) and below 1/2, so that only a quotient that
    overflows does so on the way, and none from 2^-125 on loses places."""
    exponent = e.and_(e.bitcast(b, dt.i32), 0x7F800000)
    s = e.bitcast(e.max(e.sub(0x7E800000, exponent), 0x00800000), dt.f32)
    return s, _rcp(e, e.mul(b, s))


def rough_quotient(e: Emitter, a: Val, b: Val) -> Val:
    """``a / b`` within 2 ulp for all float32: `div.full` of a GPU, in half the instructions of a division that
    rounds."""
    a, b = e._pair(a, b)
    lanes = [
        e.op(
            f'llvm.inline_asm "div.full.f32 $0, $1, $2;", "=f,f,f" {e.extract(a, k)}, {e.extract(b, k)} : (f32, f32) -> f32',
            a.dtype,
        )
        for k in range(a.lanes)
    ]
    return e.from_lanes(lanes)


def quotient_by_inverse(e: Emitter, a: Val, b: Val, s: Val, r: Val) -> Val:
    """``a / b`` with ``s`` and ``r`` of :func:`inverse`: a quotient corrected by what it leaves (Markstein, 1990). It
    is rounded as the division's but for about one in 2^22, and within 1 ulp below 2^-100, 2 below 2^-125, where what is
    left is not exact."""
    return _corrected(e, e.mul(a, s), e.mul(b, s), r)


def quotient_by_size(e: Emitter, a: Val, n: Val) -> Val:
    """``a / n`` of float32 on a GPU, as exact as :func:`quotient_by_inverse`, where ``n`` is a number of elements,
    maybe 0."""
    return _corrected(e, a, n, _rcp(e, n))


def _corrected(e: Emitter, a: Val, b: Val, r: Val) -> Val:
    """``a / b`` from ``r``, about ``1 / b``. Infinities and zeros leave nothing to correct by; a quotient within an ulp
    of the largest float may be infinite."""
    q = e.mul(a, r)
    left = e.fma(e.neg(q), b, a)
    corrected = e.fma(left, r, q)
    return e.select(e.or_(e.cmp("eq", left, 0.0), e.isnan(corrected)), q, corrected)


def _rare(e: Emitter, condition: Val, then, otherwise: list[Val]) -> list[Val]:
    """``then()`` where ``condition`` holds, else ``otherwise``; ``then`` is only run if any lane needs it."""
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


# ---- pairs: a value as the unevaluated sum of two, about twice the precision


def two_sum(e: Emitter, a: Val, b: Val) -> tuple[Val, Val]:
    """``a + b`` exactly."""
    s = e.add(a, b)
    t = e.sub(s, a)
    return s, e.add(e.sub(a, e.sub(s, t)), e.sub(b, t))


def fast_two_sum(e: Emitter, a: Val, b: Val) -> tuple[Val, Val]:
    """``a + b`` exactly where ``|a| >= |b|``."""
    s = e.add(a, b)
    return s, e.sub(b, e.sub(s, a))


def two_product(e: Emitter, a: Val, b) -> tuple[Val, Val]:
    """``a * b`` exactly."""
    p = e.mul(a, b)
    return p, e.fma(a, b, e.neg(p))


# ---- exponentials


def _exp_reduce(e: Emitter, x: Val, low: Val | None = None) -> tuple[Val, Val]:
    """``x + low = n ln2 + r``, ``|r| <= 0.35``: r, and n plus :attr:`Format.magic`."""
    f = format_of(x)
    t = e.fma(x, co.LOG2E, f.magic)
    n = e.sub(t, f.magic)
    r = e.fma(n, -f.ln2[0], x)  # exact
    r = e.fma(n, -f.ln2[1], r)
    return (r if low is None else e.add(r, low)), t


def _exp_poly(e: Emitter, r: Val) -> Val:
    """exp(r) for small r as 1 + r (1 + r P(r))."""
    return poly(e, r, (1.0, 1.0, *co.EXPM1[r.dtype.bits]))


_POWER = 1.5 * 2.0**23 + 127.0  # added to n, it leaves the exponent of the float32 2**n in the low bits


def _fma_down(e: Emitter, a: Val, b: float, c: float) -> Val:
    """``a * b + c`` in float32 on the GPU, rounded down: with a ``c`` like :data:`_POWER`, the floor of the product."""
    b, c = e.const(b, dt.f32), e.const(c, dt.f32)
    return e.per_lane(
        lambda lane: e.op(
            f'llvm.call_intrinsic "llvm.nvvm.fma.rm.f"({lane}, {b}, {c}) : (f32, f32, f32) -> f32', dt.f32
        ),
        a,
    )


def _exp_hardware(e: Emitter, x: Val, t: Val, lift: int = 0) -> tuple[Val, Val]:
    """exp(x) as a number in [1, 2) and a power of two, ``2**lift`` times as large, where ``t`` is n plus
    :data:`_POWER`. ex2.approx is at its best,
    1.4 ulp, on [0, 1), hence the floor."""
    r = e.fma(x, co.LOG2E_F32[0], e.sub(_POWER, t))
    r = e.fma(x, co.LOG2E_F32[1], r)
    return _ex2(e, r), e.bitcast(e.shl(e.bitcast(e.add(t, float(lift)) if lift else t, dt.u32), 23), dt.f32)


def _power_of(e: Emitter, x: Val) -> Val:
    """For :func:`_exp_hardware` over all x: n stays where 2**n is normal, and the hardware's exponential takes what is
    left over, up to infinity and down to 0."""
    return _clamp(e, _fma_down(e, x, co.LOG2E, _POWER), _POWER - 126.0, _POWER + 127.0)


def _exp_inside(e: Emitter, x: Val) -> Val:
    """exp for arguments whose result is a normal number."""
    if _hardware(e, x):
        return e.mul(*_exp_hardware(e, x, _fma_down(e, x, co.LOG2E, _POWER)))
    r, t = _exp_reduce(e, x)
    return _scale_normal(e, _exp_poly(e, r), t)


def _exp_scaled(e: Emitter, x: Val, low: Val | None = None, factor: Val | None = None, offset: int = 0) -> Val:
    """``exp(x + low) * factor * 2**offset`` over all x, rounded to subnormals once. ``factor`` lies near 1 or a little
    below."""
    f = format_of(x)
    x = _above(e, _below(e, x, f.exp_high + 1), f.exp_low - 4)
    if low is not None:
        low = e.select(e.cmp("lt", e.abs(low), 1.0), low, 0.0)
    r, t = _exp_reduce(e, x, low)
    p = _exp_poly(e, r)
    return _scale_magic(e, p if factor is None else e.mul(p, factor), t, offset)


def exp(e: Emitter, x: Val) -> Val:
    """e**x, within 1 ulp (1.94 on the GPU in float32).

    ``exp(n ln2 + r) = 2**n (1 + r + r² P(r))``. On the GPU in float32, 2**r comes from the hardware.
    """
    f = format_of(x)
    if _hardware(e, x):
        return e.mul(*_exp_hardware(e, x, _power_of(e, x)))
    x = _above(e, _below(e, x, f.exp_high), f.exp_low)
    r, t = _exp_reduce(e, x)
    return _scale_magic(e, _exp_poly(e, r), t)


def sum_of_exp(e: Emitter, xs: list[Val], base: Val) -> Val:
    """The sum of ``exp(x - base)`` over ``xs``, none above ``base``; x may be -inf.

    On the GPU in float32, the hardware's exponential of the rounded ``t = (x - base) log2(e)``, and apart from it the
    sum of what the rounding left over: a term is within ``(2 + |t| / 8)`` ulp of its own.
    """
    low = -130.0  # the exponential is 0 from here on, and its corrections are finite
    if not _hardware(e, base):
        return _pairwise(e, (exp(e, e.sub(x, base)) for x in xs))
    rest = None

    def power(x: Val) -> Val:
        nonlocal rest
        d = e.max(e.sub(x, base), low)
        t = e.mul(d, co.LOG2E)
        y, left = _ex2(e, t), e.fma(d, co.LOG2E, e.neg(t))
        rest = e.mul(y, left) if rest is None else e.fma(y, left, rest)
        return y

    total = _pairwise(e, map(power, xs))
    return e.fma(rest, math.log(2), total)


def _pairwise(e: Emitter, vals) -> Val:
    """The sum of vals, pairwise; each is added as soon as its partner is there, so that few are held."""
    sums: list[tuple[int, Val]] = []  # of so many vals each
    for val in vals:
        count = 1
        while sums and sums[-1][0] == count:
            val, count = e.add(sums.pop()[1], val), 2 * count
        sums.append((count, val))
    total = sums.pop()[1]
    while sums:
        total = e.add(sums.pop()[1], total)
    return total


def exp2(e: Emitter, x: Val) -> Val:
    """2**x, within 1 ulp (1.7 on the GPU in float32); exact for integers. ``2**(n + r) = 2**n (1 + r P(r))``."""
    f = format_of(x)
    if _hardware(e, x):
        n = _clamp(e, e.floor(x), -126.0, 127.0)
        power = pow2(e, e.bitcast(e.add(n, f.magic), f.uint), f)
        return e.mul(_ex2(e, e.sub(x, n)), power)
    x = _above(e, _below(e, x, f.bias + 2.0), -(f.bias + f.mantissa + 2.0))
    t = e.add(x, f.magic)
    r = e.sub(x, e.sub(t, f.magic))
    p = e.fma(poly(e, r, co.EXP2[f.bits]), r, 1.0)
    return _scale_magic(e, p, t)


def _exp2_inside(e: Emitter, x: Val) -> Val:
    """exp2 for arguments whose result is a normal number."""
    f = format_of(x)
    if _hardware(e, x):
        return _ex2(e, x)
    t = e.add(x, f.magic)
    r = e.sub(x, e.sub(t, f.magic))
    return _scale_normal(e, e.fma(poly(e, r, co.EXP2[f.bits]), r, 1.0), t)


def _expm1_half(e: Emitter, x: Val) -> Val:
    """(e**x - 1) / 2 for x of which neither tiny nor negative-zero values matter; infinite above the range of exp."""
    f = format_of(x)
    x = _above(e, _below(e, x, f.exp_high), -2.0 * f.mantissa)
    r, t = _exp_reduce(e, x)
    q = e.fma(e.mul(r, r), poly(e, r, co.EXPM1[f.bits]), r)
    half = e.bitcast(e.add(e.shl(e.bitcast(t, f.uint), f.mantissa), f.one - (1 << f.mantissa)), f.dtype)
    return e.fma(half, q, e.sub(half, 0.5))


def expm1(e: Emitter, x: Val) -> Val:
    """e**x - 1, within 2 ulp: ``2**n q + (2**n - 1)`` with ``q = expm1(r)``, at half size so that 2**n cannot
    overflow."""
    f = format_of(x)
    y = e.add(h := _expm1_half(e, x), h)
    tiny = e.cmp("lt", e.abs(x), 2.0 ** -(f.mantissa + 2))
    return e.select(tiny, x, y)


# ---- logarithms


def _log_reduce(e: Emitter, x: Val) -> tuple[Val, Val]:
    """``x = 2**n (1 + r)``, r in [-1/3, 1/3]: r (exact) and n as a float, for x positive; subnormal ones are scaled
    up."""
    f = format_of(x)
    if _x86_vector(e, x):  # these know subnormal numbers
        m, n = _x86(e, "getmant", x, e.const(0, dt.i32), x), _x86(e, "getexp", x, x)
        large = e.cmp("gt", m, 4 / 3)  # m is in [1, 2)
        return e.sub(e.select(large, e.mul(m, 0.5), m), 1.0), e.select(large, e.add(n, 1.0), n)
    subnormal = e.cmp("lt", x, f.smallest_normal)
    x = e.select(subnormal, e.mul(x, 2.0**f.mantissa), x)
    bits = e.bitcast(x, f.int)
    k = e.shr(e.sub(bits, _bits_of(2 / 3, f)), f.mantissa)
    m = e.bitcast(e.sub(bits, e.shl(k, f.mantissa)), f.dtype)
    n = _to_float(e, k, f)
    n = e.select(subnormal, e.sub(n, float(f.mantissa)), n)
    return e.sub(m, 1.0), n


def _log_tail(e: Emitter, r: Val, low: Val | None = None) -> Val:
    """log(1 + r) - r (+ low) as ``r² (r P(r) - 1/2)``."""
    u = e.fma(poly(e, r, co.LOG[r.dtype.bits]), r, -0.5)
    rr = e.mul(r, r)
    return e.mul(rr, u) if low is None else e.fma(rr, u, low)


def _log_finish(e: Emitter, r: Val, n: Val) -> Val:
    """log(2**n (1 + r))."""
    f = format_of(r)
    tail = _log_tail(e, r, e.mul(n, f.ln2[1]))
    return e.fma(n, f.ln2[0], e.add(r, tail))


def _log_special(e: Emitter, x: Val, y: Val) -> Val:
    """``y`` with the special values of a logarithm of ``x``."""
    if _x86_vector(e, x):
        # what to put, by the class of x: NaN 2 (itself), 0 4 (-inf), -inf and negative 3 (NaN), inf 5 (itself), else 0
        # (y)
        table = e.const(0x03530422, dt.i32 if x.dtype is dt.f32 else dt.i64, x.lanes)
        return _x86(e, "fixupimm", y, x, table, e.const(0, dt.i32))
    y = e.select(e.cmp("lt", x, INF), y, x)
    return e.select(e.cmp("gt", x, 0.0), y, e.select(e.cmp("eq", x, 0.0), -INF, e.const(NAN, x.dtype, x.lanes)))


def _log_positive(e: Emitter, x: Val) -> Val:
    """log for positive finite arguments."""
    return _log_finish(e, *_log_reduce(e, x))


def log(e: Emitter, x: Val) -> Val:
    """The natural logarithm, within 1 ulp: ``log(2**n (1 + r)) = n ln2 + (r + r² (r P(r) - 1/2))``."""
    return _log_special(e, x, _log_positive(e, x))


def log2(e: Emitter, x: Val) -> Val:
    """The logarithm to base 2, within 2 ulp; exact for powers of two."""
    r, n = _log_reduce(e, x)
    return _log_special(e, x, e.fma(e.add(r, _log_tail(e, r)), co.LOG2E, n))


def log10(e: Emitter, x: Val) -> Val:
    """The logarithm to base 10, within 3 ulp."""
    f = format_of(x)
    r, n = _log_reduce(e, x)
    y = e.add(r, _log_tail(e, r))
    high, low = co.LOG10_2_SHORT[f.bits]
    return _log_special(e, x, e.fma(n, high, e.fma(y, co.LOG10E, e.mul(n, low))))


def _log1p_inside(e: Emitter, x: Val) -> Val:
    """log1p without its special values. ``1 + x = 2**n (1 + r)``, where ``r = x 2**-n + (2**-n - 1)`` is rounded
    once."""
    f = format_of(x)
    bits = e.bitcast(e.add(x, 1.0), f.int)
    k = e.shr(e.sub(bits, _bits_of(2 / 3, f)), f.mantissa)
    four = e.bitcast(e.sub(f.one + (2 << f.mantissa), e.shl(k, f.mantissa)), f.dtype)  # 4 * 2**-n is normal for every n
    quarter = e.mul(x, 0.25)
    r = e.fma(quarter, four, e.fma(four, 0.25, -1.0))
    return _log_finish(e, r, _to_float(e, k, f))


def log1p(e: Emitter, x: Val) -> Val:
    """log(1 + x), within 2 ulp."""
    f = format_of(x)
    y = _log1p_inside(e, x)
    y = e.select(e.cmp("lt", x, INF), y, x)
    bad = e.select(e.cmp("eq", x, -1.0), -INF, e.const(NAN, x.dtype, x.lanes))
    y = e.select(e.cmp("gt", x, -1.0), y, bad)
    return e.select(e.cmp("lt", e.abs(x), 2.0 ** -(f.mantissa + 2)), x, y)


# ---- trigonometry


def _sin_poly(e: Emitter, r: Val, rr: Val) -> Val:
    return e.fma(e.mul(r, rr), poly(e, rr, co.SIN[r.dtype.bits]), r)


def _cos_poly(e: Emitter, rr: Val) -> Val:
    """cos(r) as ``(1 - r²/2) + r⁴ P(r²)``, with what the difference loses put back."""
    head = e.fma(rr, -0.5, 1.0)
    lost = e.fma(rr, -0.5, e.sub(1.0, head))
    return e.add(head, e.fma(e.mul(rr, rr), poly(e, rr, co.COS[rr.dtype.bits]), lost))


def _trig_reduce(e: Emitter, x: Val) -> tuple[Val, Val | None, Val]:
    """``x = q pi/2 + r + low``: r in about [-pi/4, pi/4], low (None in float32) and q in the low bits of an integer."""
    f = format_of(x)
    t = e.fma(x, 2 / math.pi, f.magic)
    n = e.sub(t, f.magic)
    q = e.bitcast(t, f.uint)
    r = e.fma(n, -f.pi_2[0], x)  # exact
    huge = e.not_(e.cmp("le", e.abs(x), co.TRIG_LIMIT[f.bits]))
    if f.bits == 32:
        r = e.fma(n, -f.pi_2[2], e.fma(n, -f.pi_2[1], r))
        r, q = _rare(e, huge, lambda: _payne_hanek_32(e, x), [r, q])
        return r, None, q
    p, p_low = two_product(e, n, f.pi_2[1])
    high, low = two_sum(e, r, e.neg(p))
    low = e.sub(low, e.fma(n, f.pi_2[2], p_low))
    r, low = fast_two_sum(e, high, low)
    r, low, q = _rare(e, huge, lambda: _payne_hanek_64(e, x), [r, low, q])
    return r, low, q


def _word(e: Emitter, index: Val, words: list[int], count: int, dtype: DType) -> list[Val]:
    """``words[index], …, words[index + count - 1]`` by selects on the bits of ``index``."""
    bit = 1
    while bit * 2 < len(words) - count + 1:
        bit *= 2
    row: list = [e.const(w, dtype, index.lanes) for w in words]
    while bit:
        chosen = e.cmp("ne", e.and_(index, bit), 0)
        width = count + bit - 1
        row = [e.select(chosen, row[min(k + bit, len(row) - 1)], row[k]) for k in range(width)]
        bit //= 2
    return row


def _payne_hanek_32(e: Emitter, x: Val) -> list[Val]:
    """Reduction of any |x| >= 4: the mantissa times the 96 bits of 2/pi that matter for its exponent."""
    bits = e.bitcast(x, dt.u32)
    mantissa = e.or_(e.and_(bits, 0x7FFFFF), 0x800000)
    # x = mantissa * 2**s; the product's integer part modulo 4 and 62 bits of fraction are wanted
    s = e.sub(e.and_(e.shr(bits, 23), 255), 150)  # -21 … 104
    s = e.add(s, 24)  # bits of 2/pi from here on: those before make multiples of 4 (the table begins with 26 zeros)
    w = _word(e, e.shr(s, 5), co.TWO_OVER_PI_32, 4, dt.u32)
    s = e.and_(s, 31)
    wide = [e.cast(v, dt.u64) for v in w]
    shift = e.cast(s, dt.u64)
    pairs = [e.or_(e.shl(wide[k], 32), wide[k + 1]) for k in range(3)]
    cut = [e.and_(e.shr(p, e.sub(32, shift)), 0xFFFFFFFF) for p in pairs]  # 96 bits
    m = e.cast(mantissa, dt.u64)
    product = e.add(e.shl(e.mul(m, cut[0]), 32), e.add(e.mul(m, cut[1]), e.shr(e.mul(m, cut[2]), 32)))
    # the top two bits are the quadrant; round to the nearest one
    rounded = e.add(product, 1 << 61)
    q = e.cast(e.shr(rounded, 62), dt.u32)
    fraction = e.bitcast(e.shl(product, 2), dt.i64)  # a signed fraction of a quadrant, after rounding
    r = e.cast(e.mul(e.cast(fraction, dt.f64), math.pi / 2 * 2.0**-64), dt.f32)
    negative = e.cmp("lt", x, 0.0)
    r = e.select(negative, e.neg(r), r)
    q = e.select(negative, e.sub(0, q), q)
    infinite = e.not_(e.cmp("lt", e.abs(x), INF))
    return [e.select(infinite, e.const(NAN, dt.f32, x.lanes), r), q]


def _multiply_high(e: Emitter, a: Val, b: Val) -> tuple[Val, Val]:
    """The low and the high word of ``a * b``."""
    low, high = e.fresh(), e.fresh()
    e.line(f"{low}, {high} = arith.mului_extended {a}, {b} : {a.type}")
    return Val(low, a.dtype, a.lanes), Val(high, a.dtype, a.lanes)


def _payne_hanek_64(e: Emitter, x: Val) -> list[Val]:
    """As :func:`_payne_hanek_32`, with 192 bits of 2/pi and a fraction of 126 bits."""
    bits = e.bitcast(x, dt.u64)
    mantissa = e.or_(e.and_(bits, (1 << 52) - 1), 1 << 52)
    s = e.add(e.sub(e.and_(e.shr(bits, 52), 2047), 1075), 64)
    w = _word(e, e.shr(s, 6), co.TWO_OVER_PI_64, 4, dt.u64)
    s = e.and_(s, 63)
    back = e.sub(63, s)
    cut = [e.or_(e.shl(w[k], s), e.shr(e.shr(w[k + 1], 1), back)) for k in range(3)]
    # bits 128 … 255 of the product of 53 with 192 bits, the top ones (multiples of 4 quadrants) dropped
    _, h2 = _multiply_high(e, mantissa, cut[2])
    l1, h1 = _multiply_high(e, mantissa, cut[1])
    low = e.add(l1, h2)
    carry = e.cast(e.cmp("lt", low, l1), dt.u64)
    high = e.add(e.mul(mantissa, cut[0]), e.add(h1, carry))
    q = e.shr(e.add(high, 1 << 61), 62)
    top = e.bitcast(e.or_(e.shl(high, 2), e.shr(low, 62)), dt.i64)
    bottom = e.shl(low, 2)
    # the fraction as a pair: 64 signed bits do not fit a float64, so its upper and lower halves are converted apart
    a = e.mul(e.cast(e.shr(top, 32), dt.f64), 2.0**-32)
    b = e.mul(e.cast(e.and_(e.bitcast(top, dt.u64), 0xFFFFFFFF), dt.f64), 2.0**-64)
    c = e.mul(e.cast(e.shr(bottom, 11), dt.f64), 2.0**-117)
    high, low = two_sum(e, a, b)
    high, low = fast_two_sum(e, high, e.add(low, c))
    r, r_low = two_product(e, high, F64.pi_2[0])
    r_low = e.add(r_low, e.fma(high, F64.pi_2[1], e.mul(low, F64.pi_2[0])))
    r, r_low = fast_two_sum(e, r, r_low)
    negative = e.cmp("lt", x, 0.0)
    flip = lambda v: e.select(negative, e.neg(v), v)  # noqa: E731
    infinite = e.not_(e.cmp("lt", e.abs(x), INF))
    q = e.select(negative, e.sub(0, q), q)
    return [e.select(infinite, e.const(NAN, dt.f64, x.lanes), flip(r)), flip(r_low), q]


def _sin_cos(e: Emitter, x: Val) -> tuple[Val, Val, Val]:
    """sin and cos of the reduced argument, and the quadrant."""
    r, low, q = _trig_reduce(e, x)
    rr = e.mul(r, r)
    s, c = _sin_poly(e, r, rr), _cos_poly(e, rr)
    if low is not None:
        s = e.fma(low, e.fma(rr, -0.5, 1.0), s)
        c = e.fma(e.neg(r), low, c)
    return s, c, q


def _quadrant(e: Emitter, s: Val, c: Val, q: Val) -> Val:
    """sin of an angle in quadrant q: s, c, -s or -c."""
    f = format_of(s)
    y = e.select(e.cmp("eq", e.and_(q, 1), 0), s, c)
    sign = e.shl(e.and_(q, 2), f.bits - 2)
    return e.bitcast(e.xor(e.bitcast(y, f.uint), sign), f.dtype)


def sin(e: Emitter, x: Val) -> Val:
    """The sine, within 2 ulp for every finite x; the nearest multiple of pi/2 is subtracted first, with bits enough."""
    f = format_of(x)
    y = _quadrant(e, *_sin_cos(e, x))
    return e.select(e.cmp("lt", e.abs(x), 2.0 ** -(f.mantissa // 2 + 2)), x, y)  # keeps -0


def cos(e: Emitter, x: Val) -> Val:
    """The cosine, within 2 ulp for every finite x."""
    s, c, q = _sin_cos(e, x)
    return _quadrant(e, s, c, e.add(q, 1))


def tan(e: Emitter, x: Val) -> Val:
    """The tangent, within 4 ulp for every finite x, as the quotient of sine and cosine."""
    f = format_of(x)
    s, c, q = _sin_cos(e, x)
    odd = e.cmp("ne", e.and_(q, 1), 0)
    y = quotient(e, e.select(odd, e.neg(c), s), e.select(odd, s, c))
    return e.select(e.cmp("lt", e.abs(x), 2.0 ** -(f.mantissa // 2 + 2)), x, y)


def _asin_poly(e: Emitter, t: Val, tt: Val) -> Val:
    return e.fma(e.mul(t, tt), poly(e, tt, co.ASIN[t.dtype.bits]), t)


def _asin_reduce(e: Emitter, x: Val) -> tuple[Val, Val, Val]:
    """|x|, whether it is above 1/2, and asin of |x| or (where above) of ``sqrt((1 - |x|) / 2)``."""
    a = e.abs(x)
    large = e.cmp("gt", a, 0.5)
    half = e.fma(a, -0.5, 0.5)
    tt = e.select(large, half, e.mul(a, a))
    t = e.select(large, e.sqrt(half), a)
    return a, large, _asin_poly(e, t, tt)


def asin(e: Emitter, x: Val) -> Val:
    """The arc sine, within 2.5 ulp: above 1/2, ``pi/2 - 2 asin(sqrt((1 - x) / 2))``."""
    f = format_of(x)
    _, large, p = _asin_reduce(e, x)
    far = e.sub(f.pi_2[0], e.sub(e.add(p, p), f.pi_2[1]))
    return e.copysign(e.select(large, far, p), x)


def acos(e: Emitter, x: Val) -> Val:
    """The arc cosine, within 1.2 ulp."""
    f = format_of(x)
    _, large, p = _asin_reduce(e, x)
    negative = e.cmp("lt", x, 0.0)
    twice = e.add(p, p)
    far = e.select(negative, e.sub(2 * f.pi_2[0], e.sub(twice, 2 * f.pi_2[1])), twice)
    near = e.sub(f.pi_2[0], e.sub(e.select(negative, e.neg(p), p), f.pi_2[1]))
    return e.select(large, far, near)


def _atan_poly(e: Emitter, t: Val) -> Val:
    tt = e.mul(t, t)
    return e.fma(e.mul(t, tt), poly(e, tt, co.ATAN[t.dtype.bits]), t)


def atan(e: Emitter, x: Val) -> Val:
    """The arc tangent, within 2 ulp: above 1, ``pi/2 - atan(1/x)``."""
    f = format_of(x)
    a = e.abs(x)
    large = e.cmp("gt", a, 1.0)
    p = _atan_poly(e, e.select(large, e.div(1.0, a), a))
    return e.copysign(e.select(large, e.sub(f.pi_2[0], e.sub(p, f.pi_2[1])), p), x)


def atan2(e: Emitter, y: Val, x: Val) -> Val:
    """The angle of the point (x, y), within 2.5 ulp; signs of zeros and infinities as in C."""
    f = format_of(x)
    ax, ay = e.abs(x), e.abs(y)
    steep = e.cmp("gt", ay, ax)
    large, small = e.select(steep, ay, ax), e.select(steep, ax, ay)
    t = e.div(small, large)
    t = e.select(e.cmp("eq", small, INF), 1.0, t)  # both infinite
    t = e.select(e.cmp("eq", large, 0.0), 0.0, t)  # both zero
    p = _atan_poly(e, t)
    p = e.select(steep, e.sub(f.pi_2[0], e.sub(p, f.pi_2[1])), p)
    left = e.cmp("ne", e.shr(e.bitcast(x, f.uint), f.bits - 1), 0)
    p = e.select(left, e.sub(2 * f.pi_2[0], e.sub(p, 2 * f.pi_2[1])), p)
    p = e.copysign(p, y)
    nan = e.cmp("uno", x, y)
    return e.select(nan, e.add(x, y), p)


# ---- hyperbolic functions


def tanh(e: Emitter, x: Val) -> Val:
    """The hyperbolic tangent, within 2 ulp: ``1 - 2 / (exp(2x) + 1)``, below 0.6 a polynomial."""
    f = format_of(x)
    a = e.abs(x)
    top = _below(e, a, 10.0 if f.bits == 32 else 20.0)  # from there on it rounds to 1
    q = reciprocal(e, e.add(_exp_inside(e, e.add(top, top)), 1.0))
    far = e.fma(q, -2.0, 1.0)
    aa = e.mul(a, a)
    near = e.fma(e.mul(a, aa), poly(e, aa, co.TANH[f.bits]), a)
    return e.copysign(e.select(e.cmp("ge", a, 0.6), far, near), x)  # NaN takes the near way


def _half_exp(e: Emitter, a: Val) -> tuple[Val, Val]:
    """exp(a) / 2 and exp(-a) / 2 for a >= 0."""
    half = _exp_scaled(e, a, offset=-1)
    if _hardware(e, a):
        return half, e.mul(_rcp(e, half), 0.25)
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
    y = _log1p_inside(e, e.select(huge, a, arg))
    y = e.select(huge, e.add(y, f.ln2[0]), y)
    y = e.select(e.cmp("lt", a, INF), y, a)
    return e.copysign(e.select(e.cmp("lt", a, 2.0 ** -(f.mantissa // 2 + 2)), a, y), x)


def acosh(e: Emitter, x: Val) -> Val:
    """The inverse hyperbolic cosine, within 3 ulp: ``log1p(t + sqrt(t (t + 2)))`` with ``t = x - 1``."""
    f = format_of(x)
    huge = e.cmp("gt", x, 2.0 ** (f.bias // 2 - 3))
    t = e.sub(x, 1.0)
    arg = e.add(t, e.sqrt(e.fma(t, t, e.add(t, t))))
    y = _log1p_inside(e, e.select(huge, x, arg))
    y = e.select(huge, e.add(y, f.ln2[0]), y)
    y = e.select(e.cmp("lt", x, INF), y, x)
    y = e.select(e.cmp("eq", x, 1.0), 0.0, y)
    return e.select(e.cmp("ge", x, 1.0), y, e.const(NAN, x.dtype, x.lanes))


def atanh(e: Emitter, x: Val) -> Val:
    """The inverse hyperbolic tangent, within 3 ulp: ``log1p(2x / (1 - x)) / 2``."""
    f = format_of(x)
    a = e.abs(x)
    arg = e.div(e.add(a, a), e.sub(1.0, a))
    y = e.mul(_log1p_inside(e, arg), 0.5)
    y = e.select(e.cmp("lt", a, 1.0), y, e.select(e.cmp("eq", a, 1.0), INF, e.const(NAN, x.dtype, x.lanes)))
    return e.copysign(e.select(e.cmp("lt", a, 2.0 ** -(f.mantissa // 2 + 2)), a, y), x)


def sigmoid(e: Emitter, x: Val) -> Val:
    """``1 / (1 + exp(-x))``, within 2.5 ulp (3.5 on the GPU in float32), also where it is subnormal."""
    a = e.abs(x)
    t = exp(e, e.neg(a))
    return quotient(e, e.select(e.cmp("lt", x, 0.0), t, 1.0), e.add(t, 1.0))


def silu(e: Emitter, x: Val) -> Val:
    """``x / (1 + exp(-x))``, within 3 ulp (4 on the GPU in float32), also where it is subnormal; NaN of -inf.

    Of negative x it is ``x exp(x) / (1 + exp(x))``: x is multiplied in before the power of two, which makes the
    exponential subnormal first.
    """
    f = format_of(x)
    held = _above(e, x, f.exp_low - 16)  # below, the result is 0
    down = e.neg(e.abs(held))
    if _hardware(e, x):
        p, lifted = _exp_hardware(e, down, _above(e, _fma_down(e, down, co.LOG2E, _POWER), _POWER - 149.0), 32)
        power = e.mul(lifted, 2.0**-32)  # exact, down to the least subnormal number
        t, product = e.mul(p, power), e.mul(e.mul(p, held), power)
    else:
        r, n = _exp_reduce(e, _above(e, down, f.exp_low - 16))
        p = _exp_poly(e, r)
        t, product = _scale_magic(e, p, n), _scale_magic(e, e.mul(p, held), n)
    y = quotient(e, e.select(e.cmp("lt", x, 0.0), product, x), e.add(t, 1.0))
    if _hardware(e, x):
        y = e.select(e.cmp("eq", x, INF), x, y)  # no quotient of an infinity there
    return e.select(e.cmp("eq", x, -INF), e.const(NAN, x.dtype, x.lanes), y)


def softplus(e: Emitter, x: Val) -> Val:
    """``log(1 + exp(x))`` as ``max(x, 0) + log1p(exp(-|x|))``, within 3 ulp."""
    t = exp(e, e.neg(e.abs(x)))
    y = e.select(e.cmp("lt", t, 2.0 ** -(format_of(x).mantissa + 2)), t, _log1p_inside(e, t))
    return e.add(_above(e, x, 0.0), y)


# ---- the error function


def _erfc_parts(e: Emitter, a: Val) -> tuple[Val, Val, Val]:
    """``erfc(a) = exp(s + low) factor`` for a >= 0."""
    f = format_of(a)
    k, limit = co.ERFC_CENTER[f.bits], co.ERFC_LIMIT[f.bits]
    a = _below(e, a, limit)
    t = quotient(e, e.sub(a, k), e.add(a, k))
    factor = quotient(e, poly(e, t, co.ERFC[f.bits]), e.fma(a, 2.0, 1.0))
    s, low = two_product(e, a, a)
    return e.neg(s), e.neg(low), factor


def erfc(e: Emitter, x: Val) -> Val:
    """1 - erf(x), within 4 ulp, also where it is subnormal.

    ``exp(-x²) P(t) / (1 + 2x)`` with ``t = (x - k) / (x + k)`` and x² taken as a pair; below 0.65, ``1 - erf(x)``.
    """
    a = e.abs(x)
    s, low, factor = _erfc_parts(e, a)
    y = _exp_scaled(e, s, low, factor)
    y = e.select(e.cmp("lt", x, 0.0), e.sub(2.0, y), y)
    near = e.sub(1.0, e.fma(x, poly(e, e.mul(x, x), co.ERF[x.dtype.bits]), x))
    return e.select(e.cmp("lt", a, 0.65), near, y)


def erf(e: Emitter, x: Val) -> Val:
    """The error function, within 2 ulp: an odd polynomial below 1; above it ``1 - 2**P(x)`` in float32, 1 - erfc in
    float64."""
    f = format_of(x)
    a = e.abs(x)
    aa = e.mul(a, a)
    near = e.fma(a, poly(e, aa, co.ERF[f.bits]), a)
    if f.bits == 32:
        top = _below(e, a, 4.0)
        far = e.sub(1.0, _exp2_inside(e, e.mul(top, poly(e, top, co.ERF_HIGH))))
    else:
        s, low, factor = _erfc_parts(e, _below(e, a, 6.0))
        far = e.sub(1.0, e.mul(_exp_inside(e, s), e.mul(factor, e.add(low, 1.0))))
    return e.copysign(e.select(e.cmp("ge", a, 1.0), far, near), x)  # NaN takes the near way


# ---- powers and roots


def _log_pair(e: Emitter, x: Val) -> tuple[Val, Val]:
    """log(x) of a positive finite x as a pair, about 2**-33 (float32) or 2**-66 (float64) off.

    ``x = 2**n m`` and ``log(m) = 2s + s³ P(s²)`` with ``s = (m - 1) / (m + 1)``, s and the last sum's greater terms as
    pairs.
    """
    f = format_of(x)
    subnormal = e.cmp("lt", x, f.smallest_normal)
    x = e.select(subnormal, e.mul(x, 2.0**f.mantissa), x)
    bits = e.bitcast(x, f.int)
    k = e.shr(e.sub(bits, _bits_of(math.sqrt(0.5), f)), f.mantissa)
    m = e.bitcast(e.sub(bits, e.shl(k, f.mantissa)), f.dtype)
    n = _to_float(e, k, f)
    n = e.select(subnormal, e.sub(n, float(f.mantissa)), n)
    num = e.sub(m, 1.0)
    den = e.add(m, 1.0)
    den_low = e.sub(m, e.sub(den, 1.0))
    inverse = reciprocal(e, den)
    s = e.mul(num, inverse)
    rest = e.fma(e.neg(s), den_low, e.fma(e.neg(s), den, num))
    s_low = e.mul(rest, inverse)
    z, z_low = two_product(e, s, s)
    z_low = e.fma(e.add(s, s), s_low, z_low)
    c = co.LOG_ATANH[f.bits]
    p, p_low = fast_two_sum(e, e.const(c[0], x.dtype, x.lanes), e.mul(z, poly(e, z, c[1:])))
    v, v_low = two_product(e, z, p)
    v_low = e.add(v_low, e.fma(z, p_low, e.mul(z_low, p)))
    t, t_low = two_product(e, s, v)
    t_low = e.add(t_low, e.fma(s, v_low, e.mul(s_low, v)))
    high, low = fast_two_sum(e, e.add(s, s), t)
    low = e.add(low, e.add(e.add(s_low, s_low), t_low))
    top, top_low = two_sum(e, e.mul(n, f.ln2_short[0]), high)
    return fast_two_sum(e, top, e.add(top_low, e.fma(n, f.ln2_short[1], low)))


def _pow_wide(e: Emitter, x: Val, y: Val) -> Val:
    """x**y of float32 x > 0 in float64: ``2**(y log2(x))``, the logarithm as in :func:`_log_pair`."""
    f = F64
    x, y = e.cast(x, dt.f64), e.cast(y, dt.f64)
    bits = e.bitcast(x, f.int)
    k = e.shr(e.sub(bits, _bits_of(math.sqrt(0.5), f)), f.mantissa)
    m = e.bitcast(e.sub(bits, e.shl(k, f.mantissa)), f.dtype)
    s = e.div(e.sub(m, 1.0), e.add(m, 1.0))
    z = e.mul(s, s)
    logarithm = e.fma(e.mul(s, e.fma(z, poly(e, z, co.LOG_ATANH[32]), 2.0)), co.LOG2E, _to_float(e, k, f))
    p = _above(e, _below(e, e.mul(logarithm, y), 200.0), -200.0)
    t = e.add(p, f.magic)
    r = e.sub(p, e.sub(t, f.magic))
    power = e.fma(poly(e, r, co.EXP2[32]), r, 1.0)
    power = e.bitcast(e.add(e.bitcast(power, f.uint), e.shl(e.bitcast(t, f.uint), f.mantissa)), f.dtype)
    return e.cast(power, dt.f32)


def pow(e: Emitter, x: Val, y: Val) -> Val:
    """x**y, within 2 ulp: ``exp(y log|x|)``, the logarithm and the product as pairs (in float64 for float32 on the
    CPU).

    Special values as C's pow.
    """
    f = format_of(x)
    ax, ay = e.abs(x), e.abs(y)
    if f.bits == 32 and e.target == "cpu":
        r = _pow_wide(e, ax, y)
    else:
        high, low = _log_pair(e, ax)
        # beyond 2**(bias/2), where the product's parts could overflow, the result is 0 or infinite: a smaller y gives
        # the same
        limit = 2.0 ** (f.bias // 2)
        yy = _above(e, _below(e, y, limit), -limit)
        p, p_low = two_product(e, high, yy)
        r = _exp_scaled(e, p, e.fma(low, yy, p_low))
    # zeros and infinities: |x|**y is 0 or infinite by whether |x| < 1 and y < 0 differ
    grows = e.cmp("eq", e.cmp("gt", ax, 1.0), e.cmp("gt", y, 0.0))
    extreme = e.select(grows, e.const(INF, x.dtype, x.lanes), 0.0)
    edge = e.or_(e.cmp("eq", ax, 0.0), e.cmp("eq", ax, INF))
    r = e.select(edge, extreme, r)
    # signs: a negative x needs an integer y, and an odd one keeps the sign
    whole = e.cmp("eq", e.trunc(y), y)
    half = e.mul(y, 0.5)
    odd = e.and_(whole, e.cmp("ne", e.trunc(half), half))
    negative = e.cmp("ne", e.shr(e.bitcast(x, f.uint), f.bits - 1), 0)
    r = e.select(e.and_(negative, odd), e.neg(r), r)
    finite = e.and_(e.cmp("lt", x, 0.0), e.and_(e.cmp("gt", x, -INF), e.not_(whole)))
    nan = e.or_(finite, e.cmp("uno", x, y))
    r = e.select(nan, e.const(NAN, x.dtype, x.lanes), r)
    # an infinite y with |x| = 1, x = 1, y = 0: exactly 1
    one = e.or_(e.cmp("eq", x, 1.0), e.cmp("eq", y, 0.0))
    one = e.or_(one, e.and_(e.cmp("eq", x, -1.0), e.cmp("eq", ay, INF)))
    return e.select(one, 1.0, r)


def cbrt(e: Emitter, x: Val) -> Val:
    """The cube root, within 1 ulp.

    With ``x = 2**(3k) m``, m in [1, 8): a polynomial for ``m**(-1/3)``, a step of Halley's, and one of Newton's on the
    root.
    """
    f = format_of(x)
    a = e.abs(x)
    subnormal = e.cmp("lt", a, f.smallest_normal)
    up = 3 * (f.mantissa // 3 + 1)
    scaled = e.select(subnormal, e.mul(a, 2.0**up), a)
    bits = e.bitcast(scaled, f.int)
    exponent = e.sub(e.shr(bits, f.mantissa), f.bias)
    k = e.floor(e.mul(e.add(e.cast(exponent, f.dtype), 0.5), 1 / 3))  # floor(exponent / 3): never near an integer
    k = e.bitcast(e.add(k, f.magic), f.int)
    k3 = e.add(e.add(k, k), k)
    magic3 = 3 * _bits_of(f.magic, f)
    j = e.sub(e.add(exponent, magic3), k3)  # 0, 1 or 2
    unit = e.bitcast(e.or_(e.and_(bits, (1 << f.mantissa) - 1), f.one), f.dtype)  # in [1, 2)
    one, two = e.cmp("eq", j, 1), e.cmp("eq", j, 2)
    m = e.mul(unit, e.select(two, 4.0, e.select(one, 2.0, e.const(1.0, x.dtype, x.lanes))))
    start = e.select(two, 0.25 ** (1 / 3), e.select(one, 0.5 ** (1 / 3), e.const(1.0, x.dtype, x.lanes)))
    z = e.mul(poly(e, unit, co.RCBRT[f.bits]), start)
    h = e.fma(e.neg(e.mul(m, z)), e.mul(z, z), 1.0)
    z = e.fma(e.mul(z, h), e.fma(h, 2 / 9, 1 / 3), z)
    zz = e.mul(z, z)
    y = e.mul(m, zz)
    y = e.fma(e.fma(e.mul(y, y), y, e.neg(m)), e.mul(zz, -1 / 3), y)
    y = e.mul(y, pow2(e, e.bitcast(k, f.uint), f))
    y = e.select(subnormal, e.mul(y, 2.0 ** -(up // 3)), y)
    plain = e.and_(e.cmp("gt", a, 0.0), e.cmp("lt", a, INF))
    return e.copysign(e.select(plain, y, a), x)


def hypot(e: Emitter, x: Val, y: Val) -> Val:
    """``sqrt(x² + y²)`` without overflow or underflow on the way, within 1.5 ulp; infinite if either is, even with a
    NaN."""
    f = format_of(x)
    ax, ay = e.abs(x), e.abs(y)
    swap = e.cmp("lt", ax, ay)
    large, small = e.select(swap, ay, ax), e.select(swap, ax, ay)
    edge = f.bias // 2 - 4
    huge, tiny = e.cmp("gt", large, 2.0**edge), e.cmp("lt", large, 2.0**-edge)
    up, down = 2.0 ** (edge + 2 * f.mantissa), 2.0 ** -(edge + 8)
    one = e.const(1.0, x.dtype, x.lanes)
    factor = e.select(huge, down, e.select(tiny, up, one))
    back = e.select(huge, 1 / down, e.select(tiny, 1 / up, one))
    large, small = e.mul(large, factor), e.mul(small, factor)
    y2 = e.mul(e.sqrt(e.fma(large, large, e.mul(small, small))), back)
    infinite = e.or_(e.cmp("eq", ax, INF), e.cmp("eq", ay, INF))
    y2 = e.select(e.cmp("uno", x, y), e.const(NAN, x.dtype, x.lanes), y2)
    return e.select(infinite, INF, y2)


# ---- exact operations


def fmod(e: Emitter, x: Val, y: Val) -> Val:
    """The remainder of the quotient truncated, with the sign of ``x``; exact.

    Long division: a multiple of ``y 2**k`` is taken off, k such that the quotient has few enough digits for the
    remainder to be exact. One round is enough until x is 2**22 (2**51 in float64) times y.
    """
    f = format_of(x)
    a, b = e.abs(x), e.abs(y)
    lanes = x.lanes
    valid = e.and_(e.cmp("lt", a, INF), e.cmp("gt", b, 0.0))
    valid = e.and_(valid, e.not_(e.isnan(b)))
    zero = e.const(0.0, x.dtype, lanes)
    a = e.select(valid, a, zero)
    divisor = e.select(e.and_(valid, e.cmp("lt", b, INF)), b, e.const(INF, x.dtype, lanes))
    subnormal = e.cmp("lt", divisor, f.smallest_normal)
    field = e.shr(e.bitcast(e.select(subnormal, e.mul(divisor, 2.0**f.mantissa), divisor), f.int), f.mantissa)
    field = e.select(subnormal, e.sub(field, f.mantissa), field)  # the exponent as if there were no subnormal numbers

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
    gap = e.sub(e.sub(e.shr(e.bitcast(now, f.int), f.mantissa), field), f.mantissa - 1)
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


def nextafter_half(e: Emitter, x: Val, y: Val, dtype: dt.DType) -> Val:
    """:func:`nextafter` among the numbers of a half type, of float32 values that are such numbers."""
    unsigned = dt.u16
    bits = e.bitcast(e.cast(x, dtype), unsigned)
    away = e.cmp("eq", e.cmp("lt", x, y), e.cmp("gt", x, 0.0))
    stepped = e.select(away, e.add(bits, 1), e.sub(bits, 1))
    smallest = e.or_(e.and_(e.bitcast(e.cast(y, dtype), unsigned), 1 << 15), 1)
    stepped = e.select(e.cmp("eq", x, 0.0), smallest, stepped)
    equal = (
        bits if dtype is dt.f16 else e.bitcast(e.cast(y, dtype), unsigned)
    )  # of two zeros NumPy gives x for float16, y for the others
    stepped = e.select(e.cmp("eq", x, y), equal, stepped)
    stepped = e.select(e.cmp("uno", x, y), e.bitcast(e.const(NAN, dtype, x.lanes), unsigned), stepped)
    return e.bitcast(stepped, dtype)


def ldexp(e: Emitter, x: Val, n: Val) -> Val:
    """``x * 2**n`` for an i32 ``n``, rounded once."""
    f = format_of(x)
    # in three steps, the last of which alone may round: x is first made normal and its exponent taken off
    n = e.max(e.min(n, 5000), -5000)
    wide = e.cast(n, f.int)
    subnormal = e.cmp("lt", e.abs(x), f.smallest_normal)
    normal = e.select(subnormal, e.mul(x, 2.0 ** (f.mantissa + 1)), x)
    bits = e.bitcast(normal, f.int)
    exponent = e.sub(e.and_(e.shr(bits, f.mantissa), 2 * f.bias + 1), f.bias)
    unit = e.bitcast(e.sub(bits, e.shl(exponent, f.mantissa)), f.dtype)
    total = e.add(exponent, wide)
    total = e.select(subnormal, e.sub(total, f.mantissa + 1), total)
    total = e.max(e.min(total, f.bias + 2), -(f.bias + f.mantissa + 2))
    y = scale(e, unit, e.bitcast(total, f.uint))
    plain = e.and_(e.cmp("lt", e.abs(x), INF), e.cmp("ne", x, 0.0))
    return e.select(plain, y, x)


# ---- inverse error functions and the logarithm of the gamma function


def _erfinv_parts(e: Emitter, x: Val, w: Val, s: Val) -> Val:
    """The inverse error function of x as ``x g(w)``; ``w = -log(1 - x²)`` up to that of the last x below 1, and s is
    its root."""
    (end, coefficients), *others = co.ERFINV[x.dtype.bits]
    y = poly(e, w, coefficients)
    for next_end, center, coefficients in others:
        y = e.select(e.cmp("lt", w, end), y, poly(e, e.sub(s, center), coefficients))
        end = next_end
    return e.mul(x, y)


def erfinv(e: Emitter, x: Val) -> Val:
    """The inverse of erf, within 2.5 ulp: ``x g(-log(1 - x²))``, g by polynomials in the logarithm or its root."""
    t = e.fma(e.neg(x), x, 1.0)
    w = e.neg(_log_positive(e, t))
    y = _erfinv_parts(e, x, w, e.sqrt(e.max(w, 0.0)))
    y = e.select(e.cmp("eq", t, 0.0), e.mul(x, INF), y)
    return e.select(e.cmp("ge", t, 0.0), y, e.const(NAN, x.dtype, x.lanes))


def erfcinv(e: Emitter, x: Val) -> Val:
    """The inverse of erfc, within 3.5 ulp, also for subnormal x: as :func:`erfinv` of 1 - x, with ``w = -log(x (2 -
    x))``.

    For w beyond what erfinv meets, a polynomial in ``(s - k) / (s + k)`` with s the root of w.
    """
    f = format_of(x)
    u = e.sub(1.0, x)
    # near 1, t is 1 - u² rounded once; near 0, x (2 - x) keeps x's bits
    t = e.select(e.cmp("lt", e.abs(u), 0.5), e.fma(e.neg(u), u, 1.0), e.mul(x, e.sub(2.0, x)))
    w = e.neg(_log_positive(e, t))
    s = e.sqrt(e.max(w, 0.0))
    y = _erfinv_parts(e, u, w, s)
    start, center, coefficients = co.ERFCINV_FAR[f.bits]
    far = e.mul(s, poly(e, quotient(e, e.sub(s, center), e.add(s, center)), coefficients))
    y = e.select(e.cmp("gt", w, start), far, y)
    y = e.select(e.cmp("eq", t, 0.0), e.mul(u, INF), y)
    return e.select(e.cmp("ge", t, 0.0), y, e.const(NAN, x.dtype, x.lanes))


def _sin_pi(e: Emitter, a: Val) -> Val:
    """|sin(pi a)| for a >= 0."""
    f = format_of(a)
    t = e.abs(e.sub(a, e.rint(a)))
    swap = e.cmp("gt", t, 0.25)
    r = e.mul(e.select(swap, e.sub(0.5, t), t), 2 * f.pi_2[0])
    rr = e.mul(r, r)
    return e.select(swap, _cos_poly(e, rr), _sin_poly(e, r, rr))


def lgamma(e: Emitter, x: Val) -> Val:
    """log|gamma(x)|, for x > 0 within 1 ulp in float32, which is computed in float64, and within 4 ulp in float64.

    For x < 0, where the function crosses zero between its poles, within 1e-8 besides 4 ulp in float32, and in float64
    within 1e-15 times ``1 + |log|sin(pi x)|| + lgamma(1 - x)``. Arguments below 1 are moved up by one (``lgamma(1 + x)
    - log(x)``) or reflected (``-log(|sin(pi x)| / pi) - lgamma(1 - x)``); up to 8 there are polynomials, above it
    Stirling's series.
    """
    if x.dtype is dt.f32:
        return e.cast(_lgamma(e, e.cast(x, dt.f64), 32), dt.f32)
    return _lgamma(e, x, 64)


def _lgamma(e: Emitter, x: Val, precision: int) -> Val:
    a = e.abs(x)
    negative, small = e.cmp("lt", x, 0.0), e.cmp("lt", x, 1.0)
    above = e.select(small, a, e.sub(x, 1.0))  # the argument z less 1
    z = e.select(small, e.add(a, 1.0), x)
    t = e.sub(above, 1.0)
    near = e.add(e.mul(e.mul(above, t), poly(e, t, co.LGAMMA_NEAR[precision])), 0.0)  # no -0
    middle = poly(e, e.sub(z, 5.5), co.LGAMMA_MIDDLE[precision])
    inverse = e.div(1.0, z)
    series = e.mul(inverse, poly(e, e.mul(inverse, inverse), co.LGAMMA_FAR[precision]))
    far = e.fma(e.sub(z, 0.5), e.sub(_log_positive(e, z), 1.0), e.add(series, co.LGAMMA_CONSTANT))
    y = e.select(e.cmp("lt", z, 3.0), near, e.select(e.cmp("lt", z, 8.0), middle, far))
    reflected = e.select(e.cmp("lt", a, 2.0**-60), a, e.mul(_sin_pi(e, a), 1 / math.pi))
    argument = e.select(negative, reflected, a)
    logarithm = e.select(e.cmp("eq", argument, 0.0), -INF, _log_positive(e, argument))
    y = e.select(small, e.sub(e.select(negative, e.neg(y), y), logarithm), y)
    pole = e.or_(e.cmp("eq", a, INF), e.and_(negative, e.cmp("eq", argument, 0.0)))
    y = e.select(pole, INF, y)
    return e.select(e.isnan(x), x, y)


# ---- random numbers


def _words(e: Emitter, v, count: int) -> list[Val]:
    """u32 words, lowest first, of u32 and u64 Vals."""
    words = []
    for part in v if isinstance(v, (tuple, list)) else [v]:
        if part.dtype.bits == 64:
            part = e.bitcast(part, dt.u64)
            words += [e.cast(part, dt.u32), e.cast(e.shr(part, 32), dt.u32)]
        else:
            words.append(e.bitcast(part, dt.u32))
    lanes = max(w.lanes for w in words)
    assert len(words) <= count, (words, count)
    return [e.splat(w, lanes) for w in words] + [e.const(0, dt.u32, lanes)] * (count - len(words))


def philox4x32(e: Emitter, counter, key) -> tuple[Val, Val, Val, Val]:
    """Philox-4x32-10: four random u32 for each counter of 128 bits under a key of 64.

    ``counter`` is a u64, or up to four u32 or two u64, lowest first (cuRAND and torch put the offset into the lower
    half and the subsequence into the upper one); ``key`` a u64 or two u32. What is left out is 0.
    """
    c = _words(e, counter, 4)
    k = _words(e, key, 2)
    lanes = max(c[0].lanes, k[0].lanes)
    c, k = [e.splat(v, lanes) for v in c], [e.splat(v, lanes) for v in k]
    for round_ in range(10):
        if round_:
            k = [e.add(k[0], 0x9E3779B9), e.add(k[1], 0xBB67AE85)]
        low0, high0 = multiply_wide(e, c[0], 0xD2511F53)
        low1, high1 = multiply_wide(e, c[2], 0xCD9E8D57)
        c = [e.xor(e.xor(high1, c[1]), k[0]), low1, e.xor(e.xor(high0, c[3]), k[1]), low0]
    return tuple(c)


def multiply_wide(e: Emitter, a: Val, factor: int) -> tuple[Val, Val]:
    """Low and high word of the 64-bit product of u32s."""
    wide = e.mul(e.cast(a, dt.u64), factor)
    return e.cast(wide, dt.u32), e.cast(e.shr(wide, 32), dt.u32)


def uniform_from_bits(e: Emitter, bits: Val, dtype: DType, more: Val | None = None) -> Val:
    """A uniform number in [0, 1): float32 of the upper 24 bits of a u32; float64 of 53 bits of a u64, or of two u32."""
    if dtype is dt.f32:
        if bits.dtype.bits == 64:
            bits = e.cast(e.shr(bits, 32), dt.u32)
        return e.mul(e.cast(e.bitcast(e.shr(bits, 8), dt.i32), dt.f32), 2.0**-24)
    if bits.dtype.bits == 32:
        bits = _join(e, bits, more)
    return e.mul(e.cast(e.bitcast(e.shr(bits, 11), dt.i64), dt.f64), 2.0**-53)


def _join(e: Emitter, low: Val, high: Val) -> Val:
    return e.or_(e.cast(low, dt.u64), e.shl(e.cast(high, dt.u64), 32))


def normal_from_bits(e: Emitter, a: Val, b: Val, dtype: DType) -> tuple[Val, Val]:
    """Two independent normal numbers of mean 0 and variance 1 (Box and Muller) of two u32 (float32) or two u64
    (float64)."""
    f = F32 if dtype is dt.f32 else F64
    assert a.dtype.bits == b.dtype.bits == f.bits, (a, b, dtype)
    unit = 2.0**-f.bits
    u = e.fma(e.cast(a, dtype), unit, unit / 2)  # in (0, 1]
    radius = e.sqrt(e.max(e.mul(_log_positive(e, u), -2.0), 0.0))
    # b is an angle in turns: its upper two bits, rounded, are the quadrant and the rest a signed fraction of one
    q = e.shr(e.add(b, 1 << (f.bits - 3)), f.bits - 2)
    r = e.mul(e.cast(e.bitcast(e.shl(b, 2), f.int), dtype), math.pi / 2 * unit)
    rr = e.mul(r, r)
    s, c = _sin_poly(e, r, rr), _cos_poly(e, rr)
    return e.mul(radius, _quadrant(e, s, c, e.add(q, 1))), e.mul(radius, _quadrant(e, s, c, q))
