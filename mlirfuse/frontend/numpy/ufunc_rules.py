"""Lowering rules from NumPy's ufuncs to ops.

A rule takes the trace, the operands' values converted to the dtypes of NumPy's loop, those dtypes, and the result
dtypes; it returns the result's value, or several. A :func:`formula` is a rule in NumPy's notation.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable

import numpy as np

from mlirfuse.core.errors import ShapeError
from mlirfuse.frontend.numpy.operands import asarray, fresh, wrap
from mlirfuse.frontend.numpy.python_operators import COMPARE, name_of
from mlirfuse.frontend.numpy.registry import COMPLEX, UFUNCS, lowers, registers
from mlirfuse.frontend.numpy.shapes import aligned, broadcast_shape
from mlirfuse.frontend.numpy.source import fail
from mlirfuse.frontend.numpy.traced_array import TracedArray
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import ops


def of_row(name: str) -> Callable:
    """The rule that emits one op."""
    return lambda t, values, ins, outs: t.emit(name, *aligned(t, values))


for _row in ops.TABLE.values():
    if _row.kind == "elementwise":
        _ufuncs = (getattr(np, serialized, None) for serialized in _row.numpy)
        UFUNCS |= {ufunc: of_row(_row.name) for ufunc in _ufuncs if isinstance(ufunc, np.ufunc)}
UFUNCS[np.float_power] = of_row("pow")


def formula_rule(function: Callable, wide: bool = False) -> Callable:
    """The rule for a function of traced arrays; ``wide``: it computes in float64."""

    def lower(t, values, ins, outs):
        given = [TracedArray(t, v if not wide or v.dtype is dt.f64 else t.emit("cast", v, to=dt.f64)) for v in values]
        found = function(*given)
        several = found if isinstance(found, tuple) else (found,)
        created = tuple(asarray(x, to.numpy).value for x, to in zip(several, outs))
        return created if isinstance(found, tuple) else created[0]

    return lower


def formula(*ufuncs, rules=UFUNCS):
    """Decorator: registers a function of traced arrays as the rule of these ufuncs; ``rules``: :data:`COMPLEX` for
    complex operands."""
    return lambda function: registers(rules, *ufuncs)(formula_rule(function))


def op(name: str, *operands: TracedArray) -> TracedArray:
    """An op on traced arrays, which broadcast."""
    t = operands[0]._trace
    return wrap(t, t.emit(name, *aligned(t, [x.value for x in operands])))


# ---- real numbers


@lowers(np.positive)
def _positive(t, values, ins, outs):
    return fresh(t, values[0])


@lowers(np.conjugate)
def _conjugate(t, values, ins, outs):
    return t.emit("conj", values[0]) if ins[0].kind == "c" else fresh(t, values[0])


def _identity_for_bools(name):
    def either(t, values, ins, outs):
        same = ins[0] is dt.bool_ or (ins[0].is_integer and name != "abs")
        return fresh(t, values[0]) if same else t.emit(name, values[0])

    return either


for _ufunc in (np.absolute, np.floor, np.ceil, np.trunc):
    UFUNCS[_ufunc] = _identity_for_bools("abs" if _ufunc is np.absolute else _ufunc.__name__)


_FORMULAS: dict[np.ufunc, Callable] = {
    np.square: lambda x: x * x,
    np.divmod: lambda x, y: (op("floor_div", x, y), op("mod", x, y)),
    **dict.fromkeys((np.deg2rad, np.radians), lambda x: x * (math.pi / 180)),
    **dict.fromkeys((np.rad2deg, np.degrees), lambda x: x * (180 / math.pi)),
}
UFUNCS |= {ufunc: formula_rule(function) for ufunc, function in _FORMULAS.items()}


@lowers(np.reciprocal)
def _reciprocal(t, values, ins, outs):
    (x,), (dtype, *_) = values, ins
    if dtype.is_float:
        return t.emit("reciprocal", x)
    one, zero = (t.builder.constant(n, dtype) for n in (1, 0))
    if dtype.kind != "c":
        of_zero, inverse = t.builder.constant(reciprocal_of_zero(dtype), dtype), t.emit("trunc_div", one, x)
    else:  # NaN of 0, and zeros with the signs of the conjugate, which a quotient of 1 + 0i does not have
        of_zero, inverse = t.builder.constant(complex(np.nan, np.nan), dtype), t.emit("reciprocal", x)
        signs = t.emit("real", x), t.emit("neg", t.emit("imag", x))
        parts = [t.emit("copysign", t.emit(name, inverse), sign) for name, sign in zip(("real", "imag"), signs)]
        inverse = t.emit("complex", *parts)
    return t.emit("where", t.emit("eq", x, zero), of_zero, inverse)


def reciprocal_of_zero(dtype: dt.DType) -> int:
    """NumPy's reciprocal of an integer 0: infinity, cast."""
    with np.errstate(all="ignore"):
        return np.reciprocal(np.zeros(64, dtype.numpy))[0].item()


@formula(np.modf)
def _modf(x):
    whole = np.trunc(x)
    return np.copysign(np.where(np.isinf(x), 0, x - whole), x), whole


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


@formula(np.heaviside)
def _heaviside(x, h):
    return np.where(np.isnan(x), x, np.where(x == 0, h, np.where(x < 0, 0, x.dtype.type(1))))


@formula(np.spacing)
def _spacing(x):
    far = x.dtype.type(math.inf)  # float16: toward infinity; others: away from 0
    toward = np.where(np.isinf(x), x, far) if x.dtype == np.float16 else np.where(x < 0, -far, far)
    return np.nextafter(x, toward) - x


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
UFUNCS |= {ufunc: _comparison(name) for ufunc, name in COMPARISONS.items()}


@lowers(np.matmul)
def _matmul(t, values, ins, outs):
    a, b = values
    if not a.shape or not b.shape:
        fail(ValueError, "matmul: a 0-d operand has no matrix dimension; use * for a product with a number")
    inner_a, inner_b = t.shape(a)[-1], t.shape(b)[-2 if b.rank > 1 else -1]
    if not t.unify(inner_a, inner_b):
        fail(
            ShapeError,
            "matmul: Input operand 1 has a mismatch in its core dimension 0, with gufunc signature "
            f"(n?,k),(k,m?)->(n?,m?) (size {t.hint(inner_b)} is different from {t.hint(inner_a)})",
        )
    batch = t.shape(a)[:-2], t.shape(b)[:-2]
    if all(batch):
        broadcast_shape(t, batch, "matmul: operands could not be broadcast together")
    return t.emit("matmul", a, b)


# ---- complex numbers, for ops that take real operands only: NumPy's formulas in the real and imaginary parts


def _complex(real, imag):
    return op("complex", real, imag)


@formula(np.log1p, rules=COMPLEX)
def _log1p(z):
    beside, imag = z.real + 1, z.imag
    return _complex(np.log(np.hypot(beside, imag)), np.arctan2(imag, beside))


@formula(np.expm1, rules=COMPLEX)
def _expm1(z):
    real, imag = z.real, z.imag
    half = np.sin(imag * 0.5)
    return _complex(np.expm1(real) * np.cos(imag) - half * half * 2, np.exp(real) * np.sin(imag))


_COMPLEX_FORMULAS: dict[np.ufunc, Callable] = {
    np.exp2: lambda z: np.exp(_complex(z.real * math.log(2), z.imag * math.log(2))),
    np.rint: lambda z: _complex(np.rint(z.real), np.rint(z.imag)),
    np.logical_not: lambda z: z == 0,
}
COMPLEX |= {ufunc: formula_rule(function) for ufunc, function in _COMPLEX_FORMULAS.items()}


def _of_truths(ufunc):
    return formula_rule(lambda x, y: ufunc(x.astype(bool), y.astype(bool)))


COMPLEX |= {ufunc: _of_truths(ufunc) for ufunc in (np.logical_and, np.logical_or, np.logical_xor)}


@formula(np.sign, rules=COMPLEX)
def _sign(z):
    """z / |z|; 0 for 0; the direction of an infinite part; NaN where there is none."""
    parts = z.real, z.imag
    size = np.hypot(*parts)
    nowhere = np.isinf(parts[0]) & np.isinf(parts[1]) | np.isnan(size)
    one = z.real.dtype.type(1)

    def turned(part):
        far = np.where(np.isinf(part), np.copysign(one, part), 0)
        return np.where(nowhere, math.nan, np.where(np.isinf(size), far, np.where(size == 0, 0, part / size)))

    return _complex(*map(turned, parts))


@formula(np.power, np.float_power, rules=COMPLEX)
def _power(base, exponent):
    """As NumPy: 0 to a power that is not positive real is NaN, except 1 for the power 0."""
    created = op("pow", base, exponent)
    zero = (base.real == 0) & (base.imag == 0)
    undefined = zero & ~((exponent.real >= 0) & (exponent.imag == 0))
    return _complex(np.where(undefined, math.nan, created.real), np.where(undefined, math.nan, created.imag))


def _ordered(compare, x, y):
    """``compare(x, y)`` by the real parts, then by the imaginary parts."""
    strict = {operator.le: operator.lt, operator.ge: operator.gt}.get(compare, compare)
    known = ~(np.isnan(x.imag) | np.isnan(y.imag))
    return strict(x.real, y.real) & known | (x.real == y.real) & compare(x.imag, y.imag)


COMPLEX |= {
    ufunc: formula_rule(functools.partial(_ordered, compare))
    for ufunc, compare in COMPARE.values()
    if compare not in (operator.eq, operator.ne)
}


def _extreme(compare, nan_wins: bool):
    return formula_rule(lambda x, y: np.where(_ordered(compare, x, y) | np.isnan(x if nan_wins else y), x, y))


COMPLEX[np.maximum], COMPLEX[np.minimum] = _extreme(operator.ge, True), _extreme(operator.le, True)
COMPLEX[np.fmax], COMPLEX[np.fmin] = _extreme(operator.ge, False), _extreme(operator.le, False)
