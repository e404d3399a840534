"""Lowering rules from NumPy's ufuncs to ops.

A rule takes the trace, the operands' values converted to the dtypes of NumPy's loop, those dtypes, and the result
dtypes; it returns the result's value, or several.
"""

from __future__ import annotations

import math

import numpy as np

from mlirfuse.core.errors import ShapeError
from mlirfuse.frontend.numpy.broadcasting import aligned, broadcast_shape
from mlirfuse.frontend.numpy.operands import fresh
from mlirfuse.frontend.numpy.python_operators import COMPARE, name_of
from mlirfuse.frontend.numpy.registry import UFUNCS, lowers
from mlirfuse.frontend.numpy.source import fail
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import ops


def _row_ufunc(name):
    def lower(t, values, ins, outs):
        return t.emit(name, *aligned(t, values))

    return lower


for _row in ops.TABLE.values():
    if _row.kind == "elementwise":
        for _serialized in _row.numpy:
            _function = getattr(np, _serialized, None)
            if isinstance(_function, np.ufunc):
                UFUNCS[_function] = _row_ufunc(_row.name)


@lowers(np.positive)
def _positive(t, values, ins, outs):
    return fresh(t, values[0])


@lowers(np.conjugate)
def _conjugate(t, values, ins, outs):
    return t.emit("conj", values[0]) if ins[0].kind == "c" else fresh(t, values[0])


def _identity_for_bools(name):
    lower = _row_ufunc(name)

    def either(t, values, ins, outs):
        same = ins[0] is dt.bool_ or (ins[0].is_integer and name != "abs")
        return fresh(t, values[0]) if same else lower(t, values, ins, outs)

    return either


for _serialized, _name in (("absolute", "abs"), ("floor", "floor"), ("ceil", "ceil"), ("trunc", "trunc")):
    UFUNCS[getattr(np, _serialized)] = _identity_for_bools(_name)


@lowers(np.square)
def _square(t, values, ins, outs):
    return t.emit("mul", values[0], values[0])


@lowers(np.reciprocal)
def _reciprocal(t, values, ins, outs):
    if ins[0].is_float:
        return t.emit("reciprocal", values[0])
    if ins[0].kind == "c":  # a division by 0 gives an infinity, its reciprocal in NumPy does not
        zero = t.emit("eq", values[0], t.builder.constant(0, ins[0]))
        nan = t.builder.constant(complex(np.nan, np.nan), ins[0])
        return t.emit("where", zero, nan, t.emit("reciprocal", values[0]))
    (x,), (dtype, *_) = values, ins
    with np.errstate(all="ignore"):
        of_zero = np.reciprocal(np.zeros(64, dtype.numpy))[0].item()  # the result of casting infinity to the dtype
    zero = t.emit("eq", x, t.builder.constant(0, dtype))
    return t.emit(
        "where", zero, t.builder.constant(of_zero, dtype), t.emit("trunc_div", t.builder.constant(1, dtype), x)
    )


@lowers(np.float_power)
def _float_power(t, values, ins, outs):
    return t.emit("pow", *aligned(t, values))


@lowers(np.divmod)
def _divmod(t, values, ins, outs):
    values = aligned(t, values)
    return t.emit("floor_div", *values), t.emit("mod", *values)


@lowers(np.modf)
def _modf(t, values, ins, outs):
    (x,) = values
    unsigned = t.emit("trunc", x)
    infinite = t.emit("isinf", x)
    part = t.emit("where", infinite, t.builder.constant(0, ins[0]), t.emit("sub", x, unsigned))
    return t.emit("copysign", part, x), unsigned


@lowers(np.lcm)
def _lcm(t, values, ins, outs):
    dtype = ins[0]
    unsigned = dt.of(f"u{dtype.bytes}")  # NumPy computes with magnitudes in the unsigned dtype
    if dtype is not unsigned:
        values = [t.emit("cast", t.emit("abs", v), to=unsigned) for v in values]
    a, b = aligned(t, values)
    divisor = t.emit("maximum", t.emit("gcd", a, b), t.builder.constant(1, unsigned))
    product = t.emit("mul", t.emit("trunc_div", a, divisor), b)
    return product if dtype is unsigned else t.emit("cast", product, to=dtype)


@lowers(np.heaviside)
def _heaviside(t, values, ins, outs):
    x, h = aligned(t, values)
    zero, one = t.builder.constant(0, ins[0]), t.builder.constant(1, ins[0])
    y = t.emit("where", t.emit("eq", x, zero), h, t.emit("where", t.emit("lt", x, zero), zero, one))
    return t.emit("where", t.emit("isnan", x), x, y)


@lowers(np.deg2rad, np.radians)
def _deg2rad(t, values, ins, outs):
    return t.emit("mul", values[0], t.builder.constant(math.pi / 180, ins[0]))


@lowers(np.rad2deg, np.degrees)
def _rad2deg(t, values, ins, outs):
    return t.emit("mul", values[0], t.builder.constant(180 / math.pi, ins[0]))


@lowers(np.spacing)
def _spacing(t, values, ins, outs):
    (x,) = values
    far, zero = t.builder.constant(math.inf, ins[0]), t.builder.constant(0, ins[0])
    limit = far  # float16: toward infinity; others: away from 0
    if ins[0] is not dt.f16:
        limit = t.emit("where", t.emit("lt", x, zero), t.builder.constant(-math.inf, ins[0]), far)
    return t.emit("sub", t.emit("nextafter", x, limit), x)


def _comparison(name):
    def lower(t, values, ins, outs):
        a, b = aligned(t, values)
        if ins[0] is ins[1]:
            return t.emit(name, a, b)
        # int64 against uint64: exact, as NumPy compares them.
        signed_first = ins[0] is dt.i64
        signed, other = (a, b) if signed_first else (b, a)
        negative = t.emit("lt", signed, t.builder.constant(0, dt.i64))
        cast = t.emit("cast", signed, to=dt.u64)
        result = t.emit(name, cast, other) if signed_first else t.emit(name, other, cast)
        when_negative = {"eq": False, "ne": True}.get(name, (name in ("lt", "le")) == signed_first)
        if when_negative:
            return t.emit("logical_or", negative, result)
        return t.emit("logical_and", t.emit("logical_not", negative), result)

    return lower


COMPARISONS = {ufunc: name_of(function) for ufunc, function in COMPARE.values()}


for _function, _name in COMPARISONS.items():
    UFUNCS[_function] = _comparison(_name)


@lowers(np.matmul)
def _matmul(t, values, ins, outs):
    a, b = values
    if not a.shape or not b.shape:
        fail(ValueError, "matmul: a 0-d operand has no matrix dimension; use * for a product with a number")
    (inner_a, inner_b), batch = (
        (t.shape(a)[-1], t.shape(b)[-2 if b.rank > 1 else -1]),
        (t.shape(a)[:-2], t.shape(b)[:-2]),
    )
    if not t.unify(inner_a, inner_b):
        fail(
            ShapeError,
            "matmul: Input operand 1 has a mismatch in its core dimension 0, with gufunc signature "
            f"(n?,k),(k,m?)->(n?,m?) (size {t.hint(inner_b)} is different from {t.hint(inner_a)})",
        )
    if batch[0] and batch[1]:
        broadcast_shape(t, batch, "matmul: operands could not be broadcast together")
    return t.emit("matmul", a, b)
