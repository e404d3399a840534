"""Lowering rules of ufuncs on complex operands, for ops that take real operands only: NumPy's formulas in the real and
imaginary parts. Complex numbers compare by their real parts, then by their imaginary parts."""

from __future__ import annotations

import math

import numpy as np

from mlirfuse.frontend.numpy.broadcasting import aligned
from mlirfuse.frontend.numpy.registry import COMPLEX, lowers
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.graph import Value


class _Ops:
    """Ops of a trace by name, on values and numbers: ``o.mul(a, 2.0)``."""

    def __init__(self, t):
        self.t = t

    def __getattr__(self, name: str):
        def emit(*operands):
            dtype = next(v.dtype for v in reversed(operands) if isinstance(v, Value))
            return self.t.emit(
                name, *(v if isinstance(v, Value) else self.t.builder.constant(v, dtype) for v in operands)
            )

        return emit

    def parts(self, z: Value) -> tuple[Value, Value]:
        return self.real(z), self.imag(z)


@lowers(np.log1p, rules=COMPLEX)
def _log1p(t, values, ins, outs):
    o = _Ops(t)
    re, im = o.parts(values[0])
    beside = o.add(re, 1.0)
    return o.complex(o.log(o.hypot(beside, im)), o.atan2(im, beside))


@lowers(np.expm1, rules=COMPLEX)
def _expm1(t, values, ins, outs):
    o = _Ops(t)
    re, im = o.parts(values[0])
    half = o.sin(o.mul(im, 0.5))
    real = o.sub(o.mul(o.expm1(re), o.cos(im)), o.mul(o.mul(half, half), 2.0))
    return o.complex(real, o.mul(o.exp(re), o.sin(im)))


@lowers(np.exp2, rules=COMPLEX)
def _exp2(t, values, ins, outs):
    o = _Ops(t)
    return o.exp(o.complex(*(o.mul(part, math.log(2)) for part in o.parts(values[0]))))


@lowers(np.rint, rules=COMPLEX)
def _rint(t, values, ins, outs):
    o = _Ops(t)
    return o.complex(*map(o.round, o.parts(values[0])))


@lowers(np.logical_not, rules=COMPLEX)
def _logical_not(t, values, ins, outs):
    return t.emit("eq", values[0], t.builder.constant(0, ins[0]))


def _logical(name: str):
    def lower(t, values, ins, outs):
        return t.emit(name, *(t.emit("cast", v, to=dt.bool_) for v in aligned(t, values)))

    return lower


for _name in ("logical_and", "logical_or", "logical_xor"):
    COMPLEX[getattr(np, _name)] = _logical(_name)


@lowers(np.sign, rules=COMPLEX)
def _sign(t, values, ins, outs):
    """z / |z|; 0 for 0; the direction of an infinite part; NaN where there is none."""
    o = _Ops(t)
    re, im = o.parts(values[0])
    size = o.hypot(re, im)
    infinite = tuple(o.where(o.isinf(part), o.copysign(1.0, part), 0.0) for part in (re, im))
    both = o.logical_and(o.isinf(re), o.isinf(im))
    nowhere = o.logical_or(both, o.isnan(size))
    out = []
    for part, far in zip((re, im), infinite):
        turned = o.where(o.isinf(size), far, o.where(o.eq(size, 0.0), 0.0, o.div(part, size)))
        out.append(o.where(nowhere, math.nan, turned))
    return o.complex(*out)


@lowers(np.power, np.float_power, rules=COMPLEX)
def _power(t, values, ins, outs):
    """As NumPy: 0 to a power that is not positive real is NaN, except 1 for the power 0."""
    o = _Ops(t)
    base, exponent = aligned(t, values)
    created = o.pow(base, exponent)
    (a, b), (c, d) = o.parts(base), o.parts(exponent)
    zero = o.logical_and(o.eq(a, 0.0), o.eq(b, 0.0))
    defined = o.logical_and(o.ge(c, 0.0), o.eq(d, 0.0))
    undefined = o.logical_and(zero, o.logical_not(defined))
    return o.complex(*(o.where(undefined, math.nan, part) for part in o.parts(created)))


def _ordered(o: _Ops, name: str, x: Value, y: Value) -> Value:
    """``x name y`` for complex values, where name is lt, le, gt or ge."""
    (a, b), (c, d) = o.parts(x), o.parts(y)
    strict = getattr(o, name[0] + "t")(a, c)
    known = o.logical_not(o.logical_or(o.isnan(b), o.isnan(d)))
    return o.logical_or(o.logical_and(strict, known), o.logical_and(o.eq(a, c), getattr(o, name)(b, d)))


def _comparison(name: str):
    def lower(t, values, ins, outs):
        return _ordered(_Ops(t), name, *aligned(t, values))

    return lower


for _serialized, _name in (("less", "lt"), ("less_equal", "le"), ("greater", "gt"), ("greater_equal", "ge")):
    COMPLEX[getattr(np, _serialized)] = _comparison(_name)


def _extreme(name: str, first_if_nan: bool):
    def lower(t, values, ins, outs):
        o = _Ops(t)
        x, y = aligned(t, values)
        first = o.logical_or(_ordered(o, name, x, y), o.isnan(x if first_if_nan else y))
        return o.where(first, x, y)

    return lower


for _serialized, _name, _first in (
    ("maximum", "ge", True),
    ("minimum", "le", True),
    ("fmax", "ge", False),
    ("fmin", "le", False),
):
    COMPLEX[getattr(np, _serialized)] = _extreme(_name, _first)
