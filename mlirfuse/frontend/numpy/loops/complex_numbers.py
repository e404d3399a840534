"""Complex arithmetic in a loop's code, on real and imaginary parts, on top of
:class:`~mlirfuse.lowering.emitter.Emitter`: NumPy's formulas, and those of :mod:`mlirfuse.ir.complex_functions`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mlirfuse.frontend.numpy.loops.values import require
from mlirfuse.frontend.numpy.python_operators import UNMULTIPLIED, by_squaring
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.complex_functions import FUNCTIONS, RealOps
from mlirfuse.ir.dtypes import DType
from mlirfuse.lowering.elementwise import EMIT
from mlirfuse.lowering.emitter import Emitter, Val

# The table's ops that accept complex operands, by formulas of the emitter or elsewhere: those that are as NumPy's.
OF_EMITTER = frozenset(["add", "sub", "mul", "div", "neg", "abs", "eq", "ne"])
OPS = (OF_EMITTER | set(FUNCTIONS)) - {"pow", "reciprocal", "rsqrt"}


@dataclass(frozen=True, slots=True)
class ComplexParts(Val):
    """A complex value: ``name`` identifies it, but is not a name in the code."""

    re: Val = None  # type: ignore[assignment]
    im: Val = None  # type: ignore[assignment]


def parts(re: Val, im: Val) -> ComplexParts:
    """The complex value of two floats of one type."""
    return ComplexParts(f"{re.name}, {im.name}", re.dtype.complex, 1, re, im)


def _by_parts(name: str) -> Any:
    """A method of emitters that computes real and imaginary parts separately."""
    of_real = getattr(Emitter, name)

    def method(self: Emitter, a: Any, *others: Any) -> Val:
        if not isinstance(a, ComplexParts):
            return of_real(self, a, *others)
        return parts(of_real(self, a.re, *(x.re for x in others)), of_real(self, a.im, *(x.im for x in others)))

    return method


class ComplexEmitter(Emitter):
    """An emitter that also accepts complex values, where both operands are complex."""

    def const(self, value: Any, dtype: DType, lanes: int = 1) -> Val:
        if dtype.kind != "c":
            return super().const(value, dtype, lanes)
        value = complex(value)
        return parts(super().const(value.real, dtype.real), super().const(value.imag, dtype.real))

    def cast(self, a: Val, dtype: DType) -> Val:
        """Casts; complex to real keeps the real part, which the caller must have allowed."""
        if isinstance(a, ComplexParts):
            if dtype.kind == "c":
                return a if dtype is a.dtype else parts(super().cast(a.re, dtype.real), super().cast(a.im, dtype.real))
            if dtype is dt.bool_:
                return self.or_(self.cmp("ne", a.re, 0), self.cmp("ne", a.im, 0))
            return super().cast(a.re, dtype)
        if dtype.kind == "c":
            return parts(super().cast(a, dtype.real), super().const(0, dtype.real))
        return super().cast(a, dtype)

    def select(self, condition: Val, a: Any, b: Any) -> Val:
        if isinstance(a, ComplexParts) and isinstance(b, ComplexParts):
            return parts(super().select(condition, a.re, b.re), super().select(condition, a.im, b.im))
        return super().select(condition, a, b)

    def cmp(self, predicate: str, a: Any, b: Any) -> Val:
        if not isinstance(a, ComplexParts):
            return super().cmp(predicate, a, b)
        b = b if isinstance(b, ComplexParts) else self.const(b, a.dtype)
        require(predicate in ("eq", "ne"), "an order of complex numbers")
        re, im = super().cmp(predicate, a.re, b.re), super().cmp(predicate, a.im, b.im)
        return self.and_(re, im) if predicate == "eq" else self.or_(re, im)

    add, sub, neg = map(_by_parts, ("add", "sub", "neg"))

    def conj(self, a: Val) -> Val:
        return parts(a.re, super().neg(a.im)) if isinstance(a, ComplexParts) else a

    def abs(self, a: Val) -> Val:
        return EMIT["hypot"](self, a.re, a.im) if isinstance(a, ComplexParts) else super().abs(a)

    def mul(self, a: Any, b: Any) -> Val:
        return self.function("mul", a, b) if isinstance(a, ComplexParts) else super().mul(a, b)

    def div(self, a: Any, b: Any) -> Val:
        """Division by Smith's algorithm, which scales by the divisor's larger part, as NumPy rounds it."""
        if not isinstance(a, ComplexParts):
            return super().div(a, b)
        times, plus, minus, over = super().mul, super().add, super().sub, super().div
        size_re, size_im = super().abs(b.re), super().abs(b.im)
        upper = super().cmp("ge", size_re, size_im)
        pick = lambda x, y: super(ComplexEmitter, self).select(upper, x, y)  # noqa: E731
        large, small = pick(b.re, b.im), pick(b.im, b.re)
        ratio = over(small, large)
        scale = over(super().const(1, large.dtype), plus(large, times(small, ratio)))
        first = pick(plus(a.re, times(a.im, ratio)), plus(times(a.re, ratio), a.im))
        second = pick(minus(a.im, times(a.re, ratio)), minus(times(a.im, ratio), a.re))
        nothing = self.and_(super().cmp("eq", size_re, 0), super().cmp("eq", size_im, 0))
        return self.select(
            nothing, parts(over(a.re, size_re), over(a.im, size_re)), parts(times(first, scale), times(second, scale))
        )

    def function(self, name: str, *operands: Any) -> ComplexParts:
        """A function of complex numbers, by the name of its op."""
        return parts(*FUNCTIONS[name](_EmittedOps(self), *((v.re, v.im) for v in operands)))  # type: ignore[arg-type]


class _EmittedOps(RealOps):
    """Real ops, by their names, that emit code."""

    def __init__(self, e: Emitter):
        self.e = e

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in EMIT:
            raise AttributeError(name)

        def emit(*operands: Any) -> Val:
            dtype = next(v.dtype for v in reversed(operands) if isinstance(v, Val))
            return EMIT[name](self.e, *(v if isinstance(v, Val) else self.e.const(v, dtype) for v in operands))

        return emit

    def number(self, number: float, like: Any) -> Any:
        return self.e.const(number, like.dtype)


def integer_power(e: ComplexEmitter, x: Val, exponent: int) -> Val:
    """``x ** exponent``, as NumPy's of its numbers."""
    one = e.const(1, x.dtype)
    if not exponent:
        return one
    if exponent in UNMULTIPLIED:
        zero = e.const(0, x.dtype)
        return e.select(e.cmp("eq", x, zero), zero, by_squaring(e.mul, x, exponent))
    result = by_squaring(e.mul, x, abs(exponent), one)
    return inverse_power(e, x, result) if exponent < 0 else result


def inverse_power(e: ComplexEmitter, x: Val, power: Val) -> Val:
    """``1 / power``, a power of ``x``; NumPy's of 0 is NaN."""
    nan = e.const(complex(math.nan, math.nan), x.dtype)
    return e.select(e.cmp("eq", x, 0), nan, e.div(e.const(1, x.dtype), power))
