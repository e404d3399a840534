"""Compiles a loop's expressions: constants, variables, operators, subscripts, calls."""

from __future__ import annotations

import ast
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from mlirfuse import _native
from mlirfuse.frontend.numpy.loops import alternatives, arrays, complex_numbers, range_checks
from mlirfuse.frontend.numpy.loops.arrays import SIZE_BITS, number
from mlirfuse.frontend.numpy.loops.code import Code
from mlirfuse.frontend.numpy.loops.subscripts import Subscripts
from mlirfuse.frontend.numpy.loops.values import (
    PY_BOOL,
    PY_COMPLEX,
    PY_FLOAT,
    PY_INT,
    Array,
    Lazy,
    Method,
    NotOutlinable,
    Number,
    NumberType,
    Static,
    Tuple,
)
from mlirfuse.frontend.numpy.syntax import dotted
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import ops
from mlirfuse.lowering.elementwise import EMIT
from mlirfuse.lowering.emitter import Val

_UFUNC_OF = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.divide,
    ast.FloorDiv: np.floor_divide,
    ast.Mod: np.remainder,
    ast.Pow: np.power,
    ast.BitAnd: np.bitwise_and,
    ast.BitOr: np.bitwise_or,
    ast.BitXor: np.bitwise_xor,
    ast.LShift: np.left_shift,
    ast.RShift: np.right_shift,
    ast.Eq: np.equal,
    ast.NotEq: np.not_equal,
    ast.Lt: np.less,
    ast.LtE: np.less_equal,
    ast.Gt: np.greater,
    ast.GtE: np.greater_equal,
    ast.USub: np.negative,
    ast.Invert: np.invert,
}
_COMPARE = {ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge"}
_OP_OF = {
    getattr(np, serialized): row.name
    for row in ops.TABLE.values()
    if row.kind == "elementwise" and row.name in EMIT
    for serialized in row.numpy
    if isinstance(getattr(np, serialized, None), np.ufunc)
} | {np.absolute: "abs", np.floor: "floor", np.ceil: "ceil", np.trunc: "trunc"}


class Expressions(Subscripts):
    """Compiles expressions. ``outside`` gives the value of a name that is not a variable; ``read`` that of a variable
    (:mod:`mlirfuse.frontend.numpy.loops.statements`)."""

    code: Code
    functions: dict[Any, Callable]
    of_any_type: frozenset  # functions that accept numbers of alternative types
    methods: dict[str, Callable]
    names: dict[str, Any]
    variables: dict[str, Any]
    inline: list[types.FunctionType]

    def read(self, name: str) -> Any:
        raise NotImplementedError

    def inlined(
        self, function: types.FunctionType, node: ast.Call, args: list, keywords: dict, returns: bool = True
    ) -> Any:
        raise NotImplementedError

    # ---- evaluation

    def value(self, node: ast.expr) -> Any:
        method = getattr(self, "_" + type(node).__name__, None)
        if method is None:
            raise NotOutlinable(f"{ast.unparse(node)}: an unsupported expression")
        return method(node)

    def number(self, node: ast.expr) -> Number:
        found = self.value(node)
        if not isinstance(found, Number):
            raise NotOutlinable(f"{ast.unparse(node)} is not a number")
        return found

    def array(self, node: ast.expr | Any) -> Array:
        """The value of an expression as an array in memory."""
        found = self.value(node) if isinstance(node, ast.expr) else node
        if isinstance(found, Lazy):
            found = arrays.materialized(self.code, found, self.fresh_site())
        if not isinstance(found, Array):
            raise NotOutlinable("not an array")
        return found

    def fresh_site(self) -> int:
        """A new allocation site."""
        self.code_sites += 1
        return self.code_sites - 1

    code_sites = 0

    def integer(self, found: Any) -> Val:
        """A number as a 64-bit integer. Raises NotOutlinable for non-integers."""
        if not isinstance(found, Number) or not found.type.dtype.is_integer or found.type.dtype is dt.u64:
            raise NotOutlinable("not an integer where one is needed")
        return self.code.cast(found.val, dt.i64)

    def constant(self, value: int | float | bool | complex) -> Number:
        """A constant Python number."""
        if isinstance(value, complex):
            return Number(self.code.const(value, dt.c128), PY_COMPLEX, known=value)
        kind = PY_BOOL if isinstance(value, bool) else PY_INT if isinstance(value, int) else PY_FLOAT
        if kind is PY_INT and not -(2**62) < value < 2**62:
            raise NotOutlinable("an integer of more than 62 bits")
        bits = int(value).bit_length() if kind is PY_INT else 64
        return Number(self.code.const(value, kind.dtype), kind, bits, value)

    def size(self, val: Val) -> Number:
        """An extent as a Python int."""
        known = self.code.known(val)
        return self.constant(known) if known is not None else Number(val, PY_INT, SIZE_BITS)

    def _Constant(self, node: ast.Constant) -> Any:
        if isinstance(node.value, (bool, int, float, complex)):
            return self.constant(node.value)
        if node.value is None or node.value is Ellipsis or isinstance(node.value, str):
            return Static(node.value)
        raise NotOutlinable(f"the constant {node.value!r}")

    def _Name(self, node: ast.Name) -> Any:
        return self.read(node.id)

    def _Tuple(self, node: ast.Tuple | ast.List) -> Tuple:
        return Tuple([self.value(item) for item in node.elts], isinstance(node, ast.List))

    _List = _Tuple

    def _IfExp(self, node: ast.IfExp) -> Any:
        return self.choice(self.truth(node.test), lambda: self.value(node.body), lambda: self.value(node.orelse))

    def choice(self, condition: Val, then: Callable[[], Any], otherwise: Callable[[], Any]) -> Number:
        """One of two numbers; evaluates only that one."""
        e = self.code
        kept: list[Number] = []
        slots: list[str] = []

        def keep(compute: Callable[[], Any]) -> Callable[[], None]:
            def run() -> None:
                found = compute()
                if not isinstance(found, Number) or found.other is not None:
                    raise NotOutlinable("a conditional expression other than of numbers of one type")
                slots.append(e.slot(found.type.dtype.signless))
                e.store(found.val, slots[-1])
                kept.append(found)

            return run

        e.branch(condition, keep(then), keep(otherwise))
        a, b = (Number(e.load(slot, v.type.dtype), v.type, v.bits) for v, slot in zip(kept, slots))
        return alternatives.merged(e, condition, a, b)

    # ---- truth

    def truth(self, node: ast.expr) -> Val:
        """The truth of an expression, as an i1."""
        e = self.code
        if isinstance(node, ast.BoolOp):
            result = e.slot("i1")
            every = isinstance(node.op, ast.And)
            e.store(self.truth(node.values[0]), result)
            for operand in node.values[1:]:
                so_far = e.load(result, dt.bool_)
                e.branch(
                    so_far if every else e.not_(so_far),
                    lambda operand=operand: e.store(self.truth(operand), result),  # type: ignore[misc]
                )
            return e.load(result, dt.bool_)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return e.not_(self.truth(node.operand))
        return self.truth_of(self.value(node))

    def truth_of(self, found: Any) -> Val:
        if isinstance(found, Tuple):
            return self.code.const(bool(found.items), dt.bool_)
        if isinstance(found, Static) and found.value is None:
            return self.code.const(False, dt.bool_)
        if not isinstance(found, Number):
            raise NotOutlinable("the truth of an array")
        return self.code.cast(found.val, dt.bool_)

    def _BoolOp(self, node: ast.BoolOp) -> Number:
        # `a or b` returns one of its operands; where both are bools that is the logical or.
        for operand in node.values:
            if not isinstance(operand, (ast.Compare, ast.BoolOp)) and not (
                isinstance(operand, ast.UnaryOp) and isinstance(operand.op, ast.Not)
            ):
                raise NotOutlinable("'and' and 'or' other than of conditions")
        return Number(self.truth(node), PY_BOOL)

    # ---- operators

    def _UnaryOp(self, node: ast.UnaryOp) -> Any:
        if isinstance(node.op, ast.Not):
            return Number(self.truth(node), PY_BOOL)
        return alternatives.computed(self.code, lambda v: self._signed(node, v), [self.value(node.operand)])

    def _signed(self, node: ast.UnaryOp, found: Any) -> Any:
        if isinstance(node.op, ast.UAdd) and not (isinstance(found, Number) and found.type.dtype is dt.bool_):
            return found
        if isinstance(found, Number) and found.type.python:
            if found.known is not None and isinstance(node.op, ast.USub):
                return self.constant(-found.known)
            if isinstance(node.op, ast.USub) and found.type.dtype is not dt.bool_:
                return Number(self.code.neg(found.val), found.type, found.bits)
            raise NotOutlinable(f"{ast.unparse(node)}: this operator on Python's numbers")
        return self.ufunc(_UFUNC_OF[type(node.op)], [found])

    def _BinOp(self, node: ast.BinOp) -> Any:
        left, right = self.value(node.left), self.value(node.right)
        return self.binary(node.op, left, right)

    def binary(self, op: ast.operator, left: Any, right: Any) -> Any:
        return alternatives.computed(self.code, lambda a, b: self._binary(op, a, b), [left, right])

    def _binary(self, op: ast.operator, left: Any, right: Any) -> Any:
        if isinstance(op, ast.MatMult):
            return self.functions[np.matmul](self, [left, right], {})
        if isinstance(left, Tuple) or isinstance(right, Tuple):
            if isinstance(op, ast.Add) and isinstance(left, Tuple) and isinstance(right, Tuple):
                return Tuple(left.items + right.items, left.is_list)
            raise NotOutlinable("arithmetic of tuples and lists")
        if isinstance(left, Number) and isinstance(right, Number) and left.type.python and right.type.python:
            return self._of_python(op, left, right)
        ufunc = _UFUNC_OF.get(type(op))
        if ufunc is None:
            raise NotOutlinable("this operator")
        return self.ufunc(ufunc, [left, right])

    def _of_python(self, op: ast.operator, left: Number, right: Number) -> Number:
        """Python's arithmetic on Python numbers."""
        if left.known is not None and right.known is not None:
            try:
                return self.constant(_FOLD[type(op)](left.known, right.known))
            except (KeyError, ArithmeticError, TypeError, ValueError):
                raise NotOutlinable("arithmetic of constants") from None
        if dt.bool_ in (left.type.dtype, right.type.dtype):
            raise NotOutlinable("arithmetic on Python bools")
        e = self.code
        if isinstance(op, (ast.Div, ast.FloorDiv, ast.Mod)):
            zero = e.cmp("eq", right.val, 0)
            if right.known is None:
                numbers = (1, 0) if left.type == right.type == PY_INT else (1.0, 0.0)
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
        name = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.FloorDiv: "floor_div",
                ast.Mod: "mod"}.get(type(op))  # fmt: skip
        if name is None:
            raise NotOutlinable("this operator on Python numbers")
        return Number(EMIT[name](e, a, b), PY_FLOAT)

    def _of_complex(self, op: ast.operator, left: Number, right: Number) -> Number:
        e = self.code
        a, b = (e.cast(v.val, dt.c128) for v in (left, right))
        if isinstance(op, ast.Pow) and right.known == 2:
            return Number(e.mul(a, a), PY_COMPLEX)
        compute = {ast.Add: e.add, ast.Sub: e.sub, ast.Mult: e.mul}.get(type(op))
        if compute is None:
            raise NotOutlinable("this operator on Python complex numbers")
        return Number(compute(a, b), PY_COMPLEX)

    def _float_power(self, a: Val, b: Val, left: Number, right: Number) -> Number:
        e = self.code
        if right.known == 2:
            result = e.mul(a, a)
        elif isinstance(right.known, int) or (left.known is not None and left.known > 0):
            result = EMIT["pow"](e, a, b)
        else:
            raise NotOutlinable("a power of Python numbers, which may be complex")
        finite = e.and_(e.cmp("lt", e.abs(a), float("inf")), e.cmp("lt", e.abs(b), float("inf")))
        over = e.and_(finite, e.cmp("eq", e.abs(result), float("inf")))
        e.fail_if(over, lambda *_: OverflowError(34, "Numerical result out of range"))
        return Number(result, PY_FLOAT)

    def _of_ints(self, op: ast.operator, left: Number, right: Number) -> Number:
        e, a, b = self.code, left.val, right.val
        if isinstance(op, ast.Pow):
            if not isinstance(right.known, int) or not 0 <= right.known <= 8:
                raise NotOutlinable("a power of Python ints")
            found = self.constant(1)
            for _ in range(right.known):
                found = self._of_ints(ast.Mult(), found, left)
            return found
        if isinstance(op, ast.FloorDiv):
            return Number(EMIT["floor_div"](e, a, b), PY_INT, left.bits)
        if isinstance(op, ast.Mod):
            return Number(EMIT["mod"](e, a, b), PY_INT, right.bits)
        if isinstance(op, (ast.BitAnd, ast.BitOr, ast.BitXor)):
            method = {ast.BitAnd: "and_", ast.BitOr: "or_", ast.BitXor: "xor"}[type(op)]
            return Number(getattr(e, method)(a, b), PY_INT, max(left.bits, right.bits))
        if isinstance(op, ast.RShift) and isinstance(right.known, int) and 0 <= right.known < 64:
            return Number(e.shr(a, b), PY_INT, left.bits)
        if isinstance(op, ast.LShift) and isinstance(right.known, int) and 0 <= right.known < 62:
            return self._of_ints(ast.Mult(), left, self.constant(1 << right.known))
        name = {ast.Add: "addi", ast.Sub: "subi", ast.Mult: "muli"}.get(type(op))
        if name is None:
            raise NotOutlinable("this operator on Python ints")
        bits = left.bits + right.bits if name == "muli" else max(left.bits, right.bits) + 1
        if bits <= 62:
            return Number(e.count(name, a, b), PY_INT, bits)
        pair = e.fresh()
        intrinsic = {"addi": "sadd", "subi": "ssub", "muli": "smul"}[name]
        e.line(f'{pair} = "llvm.intr.{intrinsic}.with.overflow"({a}, {b}) : (i64, i64) -> !llvm.struct<(i64, i1)>')
        result = e.op(f"llvm.extractvalue {pair}[0] : !llvm.struct<(i64, i1)>", dt.i64)
        over = e.op(f"llvm.extractvalue {pair}[1] : !llvm.struct<(i64, i1)>", dt.bool_)
        e.fail_if(over, lambda *_: OverflowError("a Python int in a compiled loop exceeds 64 bits"))
        return Number(result, PY_INT)

    def _Compare(self, node: ast.Compare) -> Any:
        values = [node.left, *node.comparators]
        if len(node.ops) == 1:
            return self._compared(node.ops[0], self.value(values[0]), self.value(values[1]))
        pairs = [ast.Compare(a, [op], [b]) for a, op, b in zip(values, node.ops, values[1:])]
        if any(not isinstance(middle, (ast.Name, ast.Constant)) for middle in values[1:-1]):
            raise NotOutlinable("a chain of comparisons")
        return Number(self.truth(ast.BoolOp(ast.And(), list(pairs))), PY_BOOL)

    def _compared(self, op: ast.cmpop, left: Any, right: Any) -> Any:
        return alternatives.computed(self.code, lambda a, b: self._compared_in(op, a, b), [left, right])

    def _compared_in(self, op: ast.cmpop, left: Any, right: Any) -> Any:
        if isinstance(op, (ast.Is, ast.IsNot)):
            none = [isinstance(v, Static) and v.value is None for v in (left, right)]
            if not any(none):
                raise NotOutlinable("'is'")
            return self.constant(all(none) == isinstance(op, ast.Is))
        if type(op) not in _COMPARE:
            raise NotOutlinable("this comparison")
        if isinstance(left, Number) and isinstance(right, Number) and left.type.python and right.type.python:
            a, b = left.val, right.val
            if a.dtype is not b.dtype:
                if dt.bool_ in (a.dtype, b.dtype):
                    raise NotOutlinable("a comparison of Python bools")
                wide = dt.c128 if "c" in (a.dtype.kind, b.dtype.kind) else dt.f64
                a, b = self.code.cast(a, wide), self.code.cast(b, wide)
            return Number(self.code.cmp(_COMPARE[type(op)], a, b), PY_BOOL)
        return self.ufunc(_UFUNC_OF[type(op)], [left, right])

    # ---- ufuncs

    def ufunc(self, function: np.ufunc, operands: list) -> Any:
        """A ufunc of operands, with the dtypes that NumPy selects."""
        return alternatives.computed(self.code, lambda *given: self._ufunc(function, list(given)), operands)

    def _ufunc(self, function: np.ufunc, operands: list) -> Any:
        operands = [self.as_operand(operand) for operand in operands]
        e = self.code
        if function is np.power and len(operands) == 2:
            powered = self._known_power(*operands)
            if powered is not None:
                return powered
        if function is np.square:
            return self.ufunc(np.multiply, [operands[0], operands[0]])
        if function is np.positive:
            return operands[0]
        if function is np.conjugate:
            return self.part(operands[0], "conjugate")
        name = _OP_OF.get(function)
        if name is None or function.nout != 1:
            raise NotOutlinable(f"np.{function.__name__}")
        given = [v.type.operand if isinstance(v, Number) else v.dtype.numpy for v in operands]
        if all(isinstance(kind, type) for kind in given):
            given = [v.type.dtype.numpy for v in operands]
        try:
            *ins, out = map(dt.of, function.resolve_dtypes((*given, None)))
        except TypeError:
            raise NotOutlinable(f"np.{function.__name__} of these types") from None
        if any(kind.bits == 16 and kind.is_float for kind in (*ins, out)):
            raise NotOutlinable("float16")
        if ins[0].kind == "c" and name not in complex_numbers.OPS:
            raise NotOutlinable(f"np.{function.__name__} of complex numbers")
        if function is np.power and ins[0].is_integer and ins[1].is_signed:
            exponent = operands[1]
            if not isinstance(exponent, Number):
                raise NotOutlinable("powers of integers by an array")
            e.fail_if(
                e.cmp("lt", exponent.val, 0),
                lambda *_: ValueError("Integers to negative integer powers are not allowed."),
            )
        if out is dt.bool_ and all(kind.is_integer and kind is not dt.u64 for kind in ins):
            ins = [dt.i64] * len(ins)  # comparisons are by value, whatever the types
        for operand, kind in zip(operands, ins):
            range_checks.fits(e, operand, kind)
        identity = function in (np.floor, np.ceil, np.trunc) and not ins[0].is_float

        def compute(*elements: Val) -> Val:
            cast = [e.cast(x, kind) for x, kind in zip(elements, ins)]
            if name == "exp" and isinstance(cast[0], complex_numbers.ComplexParts):
                return complex_numbers.exponential(e, cast[0])
            return e.cast(cast[0] if identity else EMIT[name](e, *cast), out)

        if all(isinstance(v, Number) for v in operands):
            return number(compute(*(v.val for v in operands)))
        return arrays.elementwise(e, out, compute, operands)

    def _known_power(self, base: Any, exponent: Any) -> Any:
        known = exponent.known if isinstance(exponent, Number) else None
        if known is None:
            return None
        is_float = (base.type.dtype if isinstance(base, Number) else base.dtype).is_float
        if known == 2 and (is_float or isinstance(known, int)):
            return self.ufunc(np.multiply, [base, base])
        if is_float and known == 3:
            return self.ufunc(np.multiply, [self.ufunc(np.multiply, [base, base]), base])
        if is_float and known == 0.5 and not isinstance(base, Number):
            return self.ufunc(np.sqrt, [base])
        return None

    def as_operand(self, found: Any) -> Any:
        if isinstance(found, (Number, Array, Lazy)):
            return found
        raise NotOutlinable("an operand that is neither an array nor a number")

    # ---- attributes and calls

    def _Attribute(self, node: ast.Attribute) -> Any:
        full = dotted(node)
        if full is not None and not self.inline and (full in self.variables or full in self.names):
            return self.read(full)
        found = self.value(node.value)
        name = node.attr
        if isinstance(found, Static):
            owner = found.value
            if isinstance(owner, types.ModuleType) and (owner.__name__.partition(".")[0] in ("numpy", "math")):
                return self.outside(getattr(owner, name))
            if isinstance(owner, np.ufunc):
                return Method(found, name)
            if callable(getattr(type(owner), name, None)):
                raise NotOutlinable(f"the method {full or name} of an object: write it as a function")
            raise NotOutlinable(f"the attribute {full or name} of an object: read it into a variable before the loop")
        if isinstance(found, (Array, Lazy)):
            if name == "shape":
                return Tuple([self.size(extent) for extent in found.shape])
            if name == "ndim":
                return self.constant(len(found.shape))
            if name == "dtype":
                return Static(found.dtype.numpy)
            if name == "size":
                count = self.code.const(1, dt.i64)
                for extent in found.shape:
                    count = self.code.count("muli", count, extent)
                return self.size(count)
            if name == "T":
                array = self.array(found)
                return self.view(array, array.shape[::-1], array.strides[::-1], array.inner and len(array.shape) < 2)
        if isinstance(found, (Array, Lazy, Number)) and name in ("real", "imag"):
            return self.part(found, name)
        if name in self.methods and isinstance(found, (Array, Lazy, Number)):
            return Method(found, name)
        raise NotOutlinable(f"the attribute {name}")

    def part(self, found: Any, name: str) -> Any:
        """The "real" or "imag" part of a number, or of an array as a view; or its "conjugate"."""
        dtype = found.type.dtype if isinstance(found, Number) else found.dtype
        if name == "imag" and dtype.kind != "c":
            raise NotOutlinable("the imaginary part of real numbers")
        if dtype.kind != "c":
            return found
        e, kind = self.code, dtype if name == "conjugate" else dtype.real
        pick = {"real": lambda x: x.re, "imag": lambda x: x.im, "conjugate": e.conj}[name]
        if isinstance(found, Number):
            return Number(pick(found.val), NumberType(kind, found.type.python))
        if isinstance(found, Lazy) or name == "conjugate":
            return arrays.elementwise(e, kind, pick, [found])
        pointer = e.offset(found.pointer, kind.bytes if name == "imag" else 0)
        return Array(kind, pointer, found.shape, found.strides, False, found.roots, found.base)

    def outside(self, value: Any) -> Any:
        """The loop's representation of an object from outside the loop."""
        if type(value) in (bool, int, float, complex):
            return self.constant(value)
        return Static(value)

    def _Call(self, node: ast.Call) -> Any:
        return self.call(node)

    def call(self, node: ast.Call, returns: bool = True) -> Any:
        """The value of a call; None where its result is unused (``returns`` is False)."""
        function = self.value(node.func)
        if any(isinstance(arg, ast.Starred) for arg in node.args) or any(k.arg is None for k in node.keywords):
            raise NotOutlinable("a call with * or **")
        args = [self.value(arg) for arg in node.args]
        keywords = {str(k.arg): self.value(k.value) for k in node.keywords}
        if isinstance(function, Method):
            if isinstance(function.receiver, Static):
                return self._ufunc_method(function, args, keywords)
            return self.methods[function.name](self, [function.receiver, *args], keywords)
        if not isinstance(function, Static):
            raise NotOutlinable("a call of a value")
        called = function.value
        if isinstance(called, _native.Function):  # another jitted function
            called = called.fn  # type: ignore[attr-defined]  # of the class derived from it
        if not returns and not isinstance(called, types.FunctionType):
            raise NotOutlinable(f"line {node.lineno}: an expression that is a statement")
        try:
            rule = self.functions.get(called)
        except TypeError:
            rule = None
        if rule is not None:
            values = [*args, *keywords.values()]
            if called not in self.of_any_type and any(isinstance(v, Number) and v.other is not None for v in values):
                raise NotOutlinable("a function of a number whose type is only known at run time")
            return rule(self, args, keywords)
        if isinstance(called, np.ufunc) and not keywords:
            return self.ufunc(called, args)
        if isinstance(called, types.FunctionType):
            return self.inlined(called, node, args, keywords, returns)
        raise NotOutlinable(f"the function {getattr(called, '__name__', called)}")

    def _ufunc_method(self, method: Method, args: list, keywords: dict) -> Any:
        if method.name != "outer" or keywords or len(args) != 2:
            raise NotOutlinable(f"the method {method.name} of a ufunc")
        first, second = map(self.array, args)
        one, zero = self.code.const(1, dt.i64), self.code.const(0, dt.i64)
        shape = first.shape + [one] * len(second.shape)
        column = self.view(first, shape, first.strides + [zero] * len(second.shape), False)
        return self.ufunc(method.receiver.value, [column, second])


def _raised(function: Callable, *args: Any) -> Exception:
    """The exception that a call raises in Python."""
    try:
        function(*args)
    except Exception as error:
        return error
    raise AssertionError


_FOLD: dict[type, Callable] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
    ast.Pow: lambda a, b: a**b if abs(b) < 64 else a ** float(b),
}
