"""log, log2, log10, log1p, and logarithms of sums of powers."""

from __future__ import annotations

import math
from collections.abc import Callable

from mlirfuse.ir import dtypes as dt
from mlirfuse.lowering.emitter import Emitter, Val
from mlirfuse.lowering.math import coefficients as co
from mlirfuse.lowering.math.arithmetic import poly, to_float, two_sum, where_rare, x86, x86_vector
from mlirfuse.lowering.math.division import has_approximations, lg2_approx
from mlirfuse.lowering.math.exponential import exp, exp2
from mlirfuse.lowering.math.formats import INF, NAN, bits_of, format_of


def _log_reduce(e: Emitter, x: Val, normal: bool = False) -> tuple[Val, Val]:
    """``x = 2**n (1 + r)``, r in [-1/3, 1/3]: r (exact) and n as a float, for positive x; subnormal ones are scaled up,
    unless all are ``normal``."""
    f = format_of(x)
    if x86_vector(e, x):  # these support subnormal numbers
        m, n = x86(e, "getmant", x, e.const(0, dt.i32), x), x86(e, "getexp", x, x)
        large = e.cmp("gt", m, 4 / 3)  # m is in [1, 2)
        return e.sub(e.select(large, e.mul(m, 0.5), m), 1.0), e.select(large, e.add(n, 1.0), n)
    if not normal:
        subnormal = e.cmp("lt", x, f.smallest_normal)
        x = e.select(subnormal, e.mul(x, 2.0**f.mantissa), x)
    bits = e.bitcast(x, f.sint)
    k = e.shr(e.sub(bits, bits_of(2 / 3, f)), f.mantissa)
    m = e.bitcast(e.sub(bits, e.shl(k, f.mantissa)), f.dtype)
    n = to_float(e, k, f)
    if not normal:
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
    if x86_vector(e, x):
        # the replacement by the class of x: NaN 2 (itself), 0 4 (-inf), -inf and negative 3 (NaN), inf 5 (itself), else
        # 0 (y)
        table = e.const(0x03530422, dt.i32 if x.dtype is dt.f32 else dt.i64, x.lanes)
        return x86(e, "fixupimm", y, x, table, e.const(0, dt.i32))
    y = e.select(e.cmp("lt", x, INF), y, x)
    return e.select(e.cmp("gt", x, 0.0), y, e.select(e.cmp("eq", x, 0.0), -INF, e.const(NAN, x.dtype, x.lanes)))


def log_positive(e: Emitter, x: Val, normal: bool = False) -> Val:
    """log for positive finite arguments; ``normal``: none is subnormal."""
    return _log_finish(e, *_log_reduce(e, x, normal))


def log_of_sum(e: Emitter, x: Val) -> Val:
    """log of a finite value of at least 1, for results that are added to something: on a GPU in float32 by
    ``lg2.approx``, within 2**-22 of the larger of 1 and the result; there -inf for 0."""
    if has_approximations(e, x):
        return e.mul(lg2_approx(e, x), math.log(2))
    return log_positive(e, x, normal=True)


def log(e: Emitter, x: Val) -> Val:
    """The natural logarithm, within 1 ulp: ``log(2**n (1 + r)) = n ln2 + (r + r² (r P(r) - 1/2))``."""
    return _log_special(e, x, log_positive(e, x))


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


def log1p_inside(e: Emitter, x: Val) -> Val:
    """log1p without special values. ``1 + x = 2**n (1 + r)``, where ``r = x 2**-n + (2**-n - 1)`` is rounded once."""
    f = format_of(x)
    bits = e.bitcast(e.add(x, 1.0), f.sint)
    k = e.shr(e.sub(bits, bits_of(2 / 3, f)), f.mantissa)
    four = e.bitcast(e.sub(f.one + (2 << f.mantissa), e.shl(k, f.mantissa)), f.dtype)  # 4 * 2**-n is normal for every n
    quarter = e.mul(x, 0.25)
    r = e.fma(quarter, four, e.fma(four, 0.25, -1.0))
    return _log_finish(e, r, to_float(e, k, f))


def log1p_of_unit(e: Emitter, t: Val) -> Val:
    """log1p for t in [0, 1], within 1.3 ulp, as ``t + t² P(t)``, without a reduction of 1 + t."""
    return e.fma(t, e.mul(t, poly(e, t, co.LOG1P[t.dtype.bits])), t)


def log1p(e: Emitter, x: Val) -> Val:
    """log(1 + x), within 2 ulp."""
    f = format_of(x)
    y = log1p_inside(e, x)
    y = e.select(e.cmp("lt", x, INF), y, x)
    bad = e.select(e.cmp("eq", x, -1.0), -INF, e.const(NAN, x.dtype, x.lanes))
    y = e.select(e.cmp("gt", x, -1.0), y, bad)
    return e.select(e.cmp("lt", e.abs(x), 2.0 ** -(f.mantissa + 2)), x, y)


def logaddexp(e: Emitter, a: Val, b: Val) -> Val:
    """``log(exp(a) + exp(b))``, within 4 ulp of the larger of the result and the smaller operand's contribution. If the
    result is the smaller of these, float32 is computed in float64, and is within 4 ulp from 2**-29 on; near 0 there is
    no such bound, since results may be arbitrarily small."""
    return _log_of_sum(e, a, b, lambda gap: exp(e, gap, negative=True), 1.0)


def logaddexp2(e: Emitter, a: Val, b: Val) -> Val:
    """``log2(2**a + 2**b)``, as accurate as :func:`logaddexp`."""
    return _log_of_sum(e, a, b, lambda gap: exp2(e, gap), math.log(2))


def _log_of_sum(e: Emitter, a: Val, b: Val, power: Callable[[Val], Val], rate: float) -> Val:
    """The larger operand plus the other's contribution: the logarithm of 1 plus the ``power`` of the gap between them,
    to that power's base, whose natural logarithm is ``rate``. Its relative change is at most ``rate`` times that of the
    gap."""

    def added(gap: Val) -> Val:
        return e.mul(log1p_of_unit(e, power(gap)), 1 / rate)

    a, b = e._pair(a, b)
    high, low = e.max(a, b), e.min(a, b)
    gap, lost = two_sum(e, low, e.neg(high))
    same = e.cmp("eq", a, b)  # equal infinities: their difference is NaN
    more = added(e.select(same, 0.0, gap))
    lost = e.select(e.cmp("lt", e.abs(lost), INF), lost, 0.0)
    more = e.fma(e.mul(more, lost), rate, more)
    total = e.add(high, more)
    if a.dtype is not dt.f32:
        return total

    def exactly() -> list[Val]:
        wide, other = e.cast(high, dt.f64), e.cast(low, dt.f64)
        return [e.cast(e.add(wide, added(e.sub(other, wide))), dt.f32)]

    cancels = e.and_(e.cmp("lt", high, 0.0), e.cmp("lt", e.abs(total), more))
    return where_rare(e, cancels, exactly, [total])[0]
