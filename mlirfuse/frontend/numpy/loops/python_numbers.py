"""Python's arithmetic on Python's numbers in a loop: ints in 64 bits, floats and complex numbers, with Python's
errors."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from mlirfuse.frontend.numpy.loops.subscripts import Subscripts
from mlirfuse.frontend.numpy.loops.values import (
    PY_BOOL,
    PY_COMPLEX,
    PY_FLOAT,
    PY_INT,
    NotOutlinable,
    Number,
    UnsupportedInt,
    require,
)
from mlirfuse.frontend.numpy.python_operators import BINARY, by_squaring
from mlirfuse.ir import dtypes as dt
from mlirfuse.lowering.elementwise import EMIT
from mlirfuse.lowering.emitter import Val

_ARITHMETIC = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div"}
_OF_FLOATS = _ARITHMETIC | {ast.FloorDiv: "floor_div", ast.Mod: "mod"}
_BITWISE: dict[type, str] = {ast.BitAnd: "and_", ast.BitOr: "or_", ast.BitXor: "xor"}


class PythonNumbers(Subscripts):
    """Compiles operators on Python's numbers."""

    def of_python(self, op: ast.operator, left: Number, right: Number) -> Number:
        """Python's arithmetic on Python numbers."""
        if left.known is not None and right.known is not None:
            try:
                return self.constant(_FOLD[type(op)](left.known, right.known))
            except (KeyError, ArithmeticError, TypeError, ValueError):
                raise NotOutlinable("arithmetic of constants") from None
        e = self.code
        if left.type == right.type == PY_BOOL and type(op) in _BITWISE:
            return Number(getattr(e, _BITWISE[type(op)])(left.val, right.val), PY_BOOL)
        left, right = self.of_bool(left), self.of_bool(right)
        if isinstance(op, (ast.Div, ast.FloorDiv, ast.Mod)):
            zero = e.cmp("eq", right.val, 0)
            if right.known is None:
                numbers = (1j, 0j) if PY_COMPLEX in (left.type, right.type) else (1.0, 0.0)
                numbers = (1, 0) if left.type == right.type == PY_INT else numbers
                e.fail_if(zero, lambda *_: _raised(_FOLD[type(op)], *numbers))
            elif not right.known:
                raise NotOutlinable("a division by 0")
        if left.type == right.type == PY_INT and not isinstance(op, ast.Div):
            return self._of_ints(op, left, right)
        if PY_COMPLEX in (left.type, right.type):
            return self._of_complex(op, left, right)
        a, b = (e.cast(v.val, dt.f64) for v in (left, right))
        if isinstance(op, ast.Pow):
            return self._float_power(a, b, left, right)
        require(type(op) in _OF_FLOATS, "this operator on Python numbers")
        return Number(EMIT[_OF_FLOATS[type(op)]](e, a, b), PY_FLOAT)

    def compared(self, name: str, left: Number, right: Number) -> Number:
        """A comparison of Python numbers, which does not round an int to a float."""
        e = self.code
        if left.dtype is not right.dtype:
            left, right = self.of_bool(left), self.of_bool(right)
        if left.dtype is right.dtype:
            return Number(e.cmp(name, left.val, right.val), PY_BOOL)
        wide = dt.c128 if PY_COMPLEX in (left.type, right.type) else dt.f64
        a, b = e.cast(left.val, wide), e.cast(right.val, wide)
        found = e.cmp(name, a, b)
        if wide is dt.f64 and _may_be_wide(left) and _may_be_wide(right):
            # Rounding keeps the order; where it makes them equal, the int is compared with what it was rounded to.
            rests = [self._rest(v) if v.type == PY_INT else e.const(0, dt.i64) for v in (left, right)]
            found = e.select(e.cmp("eq", a, b), e.cmp(name, *rests), found)
        return Number(found, PY_BOOL)

    def _rest(self, found: Number) -> Val:
        """What rounding an int to a float took from it; of ints near 2**63, which is beyond 64 bits, any number with
        its sign."""
        e = self.code
        rounded = e.cast(found.val, dt.f64)
        rest = e.count("subi", found.val, e.cast(rounded, dt.i64))
        return e.select(e.cmp("ge", rounded, 2.0**63), e.const(-1, dt.i64), rest)

    def _of_complex(self, op: ast.operator, left: Number, right: Number) -> Number:
        e = self.code
        a, b = (e.cast(v.val, dt.c128) for v in (left, right))
        if isinstance(op, ast.Pow) and isinstance(right.known, int) and right.known > 0:
            return Number(by_squaring(e.mul, a, right.known, e.const(1, dt.c128)), PY_COMPLEX)
        require(type(op) in _ARITHMETIC, "this operator on Python complex numbers")
        return Number(getattr(e, _ARITHMETIC[type(op)])(a, b), PY_COMPLEX)

    def _float_power(self, a: Val, b: Val, left: Number, right: Number) -> Number:
        e = self.code
        if right.known == 2:
            result = e.mul(a, a)
        else:
            result = EMIT["pow"](e, a, b)
            self._check_power(a, b, left, right)
        finite = e.and_(e.cmp("lt", e.abs(a), float("inf")), e.cmp("lt", e.abs(b), float("inf")))
        over = e.and_(finite, e.cmp("eq", e.abs(result), float("inf")))
        e.fail_if(over, OverflowError(34, "Numerical result out of range"))
        return Number(result, PY_FLOAT)

    def _check_power(self, a: Val, b: Val, left: Number, right: Number) -> None:
        """Errors for powers of Python floats that have no value, or a complex one."""
        e, known = self.code, left.known
        if known is None and not isinstance(right.known, int):
            fraction = e.and_(e.cmp("ne", EMIT["floor"](e, b), b), e.cmp("lt", e.abs(b), float("inf")))
            negative = e.and_(e.cmp("lt", a, 0.0), e.cmp("gt", a, float("-inf")))
            e.fail_if(e.and_(negative, fraction), TypeError(
                "a power of a negative Python number in a compiled loop, which is complex: make it complex or NumPy's"
            ))  # fmt: skip
        elif isinstance(known, (int, float)) and known < 0 and not isinstance(right.known, int):
            raise NotOutlinable("a power of Python numbers, which may be complex")
        if not known and not (isinstance(right.known, (int, float)) and right.known >= 0):
            e.fail_if(e.and_(e.cmp("eq", a, 0.0), e.cmp("lt", b, 0.0)), lambda *_: _raised(lambda: 0.0**-1.0))

    def _of_ints(self, op: ast.operator, left: Number, right: Number) -> Number:
        e, a, b = self.code, left.val, right.val
        if isinstance(op, ast.Pow):
            return self._int_power(left, right)
        if isinstance(op, ast.FloorDiv):
            return Number(EMIT["floor_div"](e, a, b), PY_INT, left.bits)
        if isinstance(op, ast.Mod):
            return Number(EMIT["mod"](e, a, b), PY_INT, right.bits)
        if type(op) in _BITWISE:
            return Number(getattr(e, _BITWISE[type(op)])(a, b), PY_INT, max(left.bits, right.bits))
        if isinstance(op, (ast.RShift, ast.LShift)):
            return self._shifted(op, left, right)
        require(type(op) in _ARITHMETIC, "this operator on Python ints")
        name = _ARITHMETIC[type(op)]
        bits = left.bits + right.bits if name == "mul" else max(left.bits, right.bits) + 1
        if bits <= 62:
            return Number(e.count(f"{name}i", a, b), PY_INT, bits)
        pair = e.fresh()
        e.line(f'{pair} = "llvm.intr.s{name}.with.overflow"({a}, {b}) : (i64, i64) -> !llvm.struct<(i64, i1)>')
        result = e.op(f"llvm.extractvalue {pair}[0] : !llvm.struct<(i64, i1)>", dt.i64)
        over = e.op(f"llvm.extractvalue {pair}[1] : !llvm.struct<(i64, i1)>", dt.bool_)
        e.fail_if(over, _beyond_64_bits)
        return Number(result, PY_INT)

    def of_bool(self, found: Number) -> Number:
        """A Python bool as an int; other numbers as they are."""
        return Number(self.code.cast(found.val, dt.i64), PY_INT, 1) if found.type == PY_BOOL else found

    def _shifted(self, op: ast.operator, left: Number, right: Number) -> Number:
        e, count = self.code, right.val
        if right.known is None:
            e.fail_if(e.cmp("lt", count, 0), ValueError("negative shift count"))
        elif right.known < 0:
            raise NotOutlinable("a negative shift count")
        if isinstance(op, ast.RShift):
            return Number(e.shr(left.val, e.smaller(count, e.const(63, dt.i64))), PY_INT, left.bits)
        if right.known is not None and right.known < 62:
            return self._of_ints(ast.Mult(), left, self.constant(1 << right.known))
        e.fail_if(e.and_(e.cmp("gt", count, 61), e.cmp("ne", left.val, 0)), _beyond_64_bits)
        by = e.shl(e.one, e.smaller(count, e.const(61, dt.i64)))
        return self._of_ints(ast.Mult(), left, Number(by, PY_INT, 62))

    def power(self, base: Val, exponent: Val, multiply: Callable[[Val, Val], Val]) -> Val:
        """A power by squaring, for an exponent that is not negative."""
        e, kind = self.code, base.dtype
        result, square, rest = (e.slot_with(v) for v in (e.const(1, kind), base, exponent))
        times = lambda slot: e.store(multiply(e.load(slot, kind), e.load(square, kind)), slot)  # noqa: E731
        head, inside, after = e.block(), e.block(), e.block()
        e.go(head)
        e.place(head)
        e.fork(e.cmp("gt", e.load(rest, dt.i64), 0), inside, after)
        e.place(inside)
        e.branch(e.cmp("ne", e.and_(e.load(rest, dt.i64), e.one), 0), lambda: times(result))
        e.store(e.shr(e.load(rest, dt.i64), e.one), rest)
        e.branch(e.cmp("gt", e.load(rest, dt.i64), 0), lambda: times(square))
        e.go(head)
        e.place(after)
        return e.load(result, kind)

    def _int_power(self, left: Number, right: Number) -> Number:
        """A power of Python ints by squaring. A negative exponent, whose result is a float, is an error."""
        e = self.code
        if right.known is not None:
            require(right.known >= 0, "a negative power of Python ints")
            of_known = lambda a, b: self._of_ints(ast.Mult(), a, b)  # noqa: E731
            return by_squaring(of_known, left, right.known) if right.known else self.constant(1)
        e.fail_if(e.cmp("lt", right.val, 0), UnsupportedInt(
            "a Python int to a negative power in a compiled loop, which is a float: make the base a float"
        ))  # fmt: skip
        if left.known == 2:
            return self._shifted(ast.LShift(), self.constant(1), right)
        number = lambda val: Number(val, PY_INT)  # noqa: E731
        times = lambda a, b: self._of_ints(ast.Mult(), number(a), number(b)).val  # noqa: E731
        return number(self.power(left.val, right.val, times))


def _may_be_wide(found: Number) -> bool:
    """Whether an int may not be exact as a float; whether a float may be one that such an int is rounded to."""
    known = found.known
    if found.type == PY_INT:
        return found.bits > 53 if known is None else float(known) != known
    return known is None or abs(known) >= 2**53


def _beyond_64_bits(*_) -> Exception:
    return UnsupportedInt("a Python int in a compiled loop exceeds 64 bits")


def _raised(function: Callable, *args: Any) -> Exception:
    """The exception that a call raises in Python."""
    try:
        function(*args)
    except Exception as error:
        return error
    raise AssertionError


def _power(a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int) and abs(a) > 1 and b >= 64:
        raise OverflowError  # not computed, as it may have many digits
    return a**b


_FOLD = {node: function for node, (_, function) in BINARY.items()} | {ast.Pow: _power}
