"""Compiles a loop's expressions: constants, variables, operators, subscripts, calls."""

from __future__ import annotations

import ast
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from mlirfuse.frontend.numpy.loops import alternatives, arrays, callbacks, complex_numbers, draws, externs, range_checks
from mlirfuse.frontend.numpy.loops.arrays import SIZE_BITS, number
from mlirfuse.frontend.numpy.loops.functions import ATTRIBUTES, FUNCTIONS, METHODS, OF_ANY_TYPE, OF_NUMBERS, applied
from mlirfuse.frontend.numpy.loops.helpers import plain
from mlirfuse.frontend.numpy.loops.python_numbers import PythonNumbers
from mlirfuse.frontend.numpy.loops.values import (
    PY_BOOL,
    PY_INT,
    PYTHONS,
    Array,
    ArrayType,
    Copied,
    Lazy,
    Method,
    NotOutlinable,
    Number,
    NumberType,
    Site,
    Static,
    Tuple,
    require,
    words_of,
)
from mlirfuse.frontend.numpy.promotion import loop_types
from mlirfuse.frontend.numpy.python_operators import BINARY, COMPARE, UNARY, UNMULTIPLIED, name_of
from mlirfuse.frontend.numpy.syntax import dotted
from mlirfuse.frontend.numpy.ufunc_rules import reciprocal_of_zero
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import ops
from mlirfuse.lowering.elementwise import EMIT
from mlirfuse.lowering.emitter import Emitter, Val

_UFUNC_OF = {node: ufunc for node, (ufunc, _) in (BINARY | COMPARE | UNARY).items()}
_MOST_SQUARED = 100  # from here on NumPy takes a complex power by logarithms
_OP_OF = {
    getattr(np, serialized): row.name
    for row in ops.TABLE.values()
    if row.kind == "elementwise" and row.name in EMIT
    for serialized in row.numpy
    if isinstance(getattr(np, serialized, None), np.ufunc)
} | {np.absolute: "abs", np.floor: "floor", np.ceil: "ceil", np.trunc: "trunc"}
_COMPARISONS = {ufunc for ufunc, _ in COMPARE.values()}


def _reciprocal_of_integer(e: Emitter, x: Val) -> Val:
    return e.select(e.cmp("eq", x, 0), reciprocal_of_zero(x.dtype), EMIT["trunc_div"](e, e.const(1, x.dtype), x))


class Expressions(PythonNumbers):
    """Compiles expressions. ``outside`` gives the value of a name that is not a variable; ``read`` that of a variable
    (:mod:`mlirfuse.frontend.numpy.loops.statements`)."""

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
        require(isinstance(found, Array), "not an array")
        return found

    def stored(self, found: Any) -> Any:
        """A value with its lazy arrays in memory."""
        if isinstance(found, Tuple):
            return Tuple([self.stored(item) for item in found.items], found.is_list)
        return self.array(found) if isinstance(found, Lazy) else found

    def fresh_site(self) -> int:
        """A new allocation site."""
        self.sites += 1
        return self.sites - 1

    def integer(self, found: Any) -> Val:
        """A number as a 64-bit integer. Raises NotOutlinable for non-integers."""
        integer = isinstance(found, Number) and found.dtype.is_integer and found.dtype is not dt.u64
        require(integer, "not an integer where one is needed")
        return self.code.cast(found.val, dt.i64)

    def constant(self, value: int | float | bool | complex) -> Number:
        """A constant Python number."""
        kind = PYTHONS[type(value)]
        require(kind is not PY_INT or -(2**62) < value < 2**62, "an integer of more than 62 bits")  # type: ignore[operator]
        bits = value.bit_length() if isinstance(value, int) and kind is PY_INT else 64
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
        condition = self.truth(node.test)
        known = self.code.known(condition)
        if known is not None:
            return self.value(node.body if known else node.orelse)
        hidden = f"?{node.lineno}.{node.col_offset}"  # a variable, where both are arrays

        def evaluated(branch: ast.expr) -> Any:
            found = self.value(branch)
            if not isinstance(found, (Array, Lazy)):
                return found
            self.assign(hidden, found)
            return None

        found = alternatives.either(self.code, condition, lambda: evaluated(node.body), lambda: evaluated(node.orelse))
        return self.read(hidden) if found is None else found

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
        require(isinstance(found, Number), "the truth of an array")
        return self.code.cast(found.val, dt.bool_)

    def _BoolOp(self, node: ast.BoolOp) -> Number:
        # `a or b` returns one of its operands; where both are bools that is the logical or.
        for operand in node.values:
            negated = isinstance(operand, ast.UnaryOp) and isinstance(operand.op, ast.Not)
            condition = negated or isinstance(operand, (ast.Compare, ast.BoolOp))
            require(condition, "'and' and 'or' other than of conditions")
        return Number(self.truth(node), PY_BOOL)

    # ---- operators

    def _UnaryOp(self, node: ast.UnaryOp) -> Any:
        if isinstance(node.op, ast.Not):
            return Number(self.truth(node), PY_BOOL)
        return alternatives.computed(self.code, lambda v: self._signed(node, v), [self.value(node.operand)])

    def _signed(self, node: ast.UnaryOp, found: Any) -> Any:
        if isinstance(node.op, ast.UAdd) and not (isinstance(found, Number) and found.dtype is dt.bool_):
            return found
        if isinstance(found, Number) and found.type.python:
            if found.known is not None and isinstance(node.op, ast.USub):
                return self.constant(-found.known)
            found = self.of_bool(found)
            if isinstance(node.op, ast.UAdd):
                return found
            if isinstance(node.op, ast.USub):
                return Number(self.code.neg(found.val), found.type, found.bits)
            if isinstance(node.op, ast.Invert) and found.type == PY_INT:
                return Number(self.code.xor(found.val, self.code.const(-1, dt.i64)), PY_INT, min(found.bits + 1, 64))
            raise NotOutlinable(f"{ast.unparse(node)}: this operator on Python's numbers")
        return self.ufunc(_UFUNC_OF[type(node.op)], [found])

    def _BinOp(self, node: ast.BinOp) -> Any:
        left, right = self.value(node.left), self.value(node.right)
        return self.binary(node.op, left, right)

    def binary(self, op: ast.operator, left: Any, right: Any) -> Any:
        return alternatives.computed(self.code, lambda a, b: self._binary(op, a, b), [left, right])

    def _binary(self, op: ast.operator, left: Any, right: Any) -> Any:
        if isinstance(op, ast.MatMult):
            return FUNCTIONS[np.matmul](self, left, right)
        if isinstance(left, Tuple) or isinstance(right, Tuple):
            if isinstance(op, ast.Add) and isinstance(left, Tuple) and isinstance(right, Tuple):
                return Tuple(left.items + right.items, left.is_list)
            raise NotOutlinable("arithmetic of tuples and lists")
        if isinstance(left, Number) and isinstance(right, Number) and left.type.python and right.type.python:
            return self.of_python(op, left, right)
        return self.ufunc(_UFUNC_OF[type(op)], [left, right])

    def _Compare(self, node: ast.Compare) -> Any:
        values = [node.left, *node.comparators]
        if len(node.ops) == 1:
            return self._compared(node.ops[0], self.value(values[0]), self.value(values[1]))
        pairs = [ast.Compare(a, [op], [b]) for a, op, b in zip(values, node.ops, values[1:])]
        plain = all(isinstance(middle, (ast.Name, ast.Constant)) for middle in values[1:-1])
        require(plain, "a chain of comparisons")
        return Number(self.truth(ast.BoolOp(ast.And(), list(pairs))), PY_BOOL)

    def _compared(self, op: ast.cmpop, left: Any, right: Any) -> Any:
        return alternatives.computed(self.code, lambda a, b: self._compared_in(op, a, b), [left, right])

    def _compared_in(self, op: ast.cmpop, left: Any, right: Any) -> Any:
        if isinstance(op, (ast.Is, ast.IsNot)):
            none = [isinstance(v, Static) and v.value is None for v in (left, right)]
            require(any(none), "'is'")
            return self.constant(all(none) == isinstance(op, ast.Is))
        require(type(op) in COMPARE, "this comparison")
        ufunc, function = COMPARE[type(op)]
        if isinstance(left, Static) and isinstance(right, Static) and type(left.value) is type(right.value) is str:
            return self.constant(function(left.value, right.value))
        if isinstance(left, Number) and isinstance(right, Number) and left.type.python and right.type.python:
            return self.compared(name_of(function), left, right)
        return self.ufunc(ufunc, [left, right])

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
            require(operands[0].dtype is not dt.bool_, "np.square of booleans")
            return self.ufunc(np.multiply, [operands[0], operands[0]])
        if function is np.positive:
            require(operands[0].dtype is not dt.bool_, "np.positive of booleans")
            return self.cast(operands[0], operands[0].dtype)  # NumPy's number of Python's
        if function is np.conjugate:
            require(operands[0].dtype is not dt.bool_, "np.conjugate of booleans")
            return self.part(self.cast(operands[0], operands[0].dtype), "conjugate")
        name = _OP_OF.get(function)
        if name is None or function.nout != 1:
            raise NotOutlinable(f"np.{function.__name__}")
        try:
            *ins, out = loop_types(function, tuple([v.operand for v in operands]))
        except TypeError:
            raise NotOutlinable(f"np.{function.__name__} of these types") from None
        require(not any(kind.bits == 16 and kind.is_float for kind in (*ins, out)), "float16")
        require(ins[0].kind != "c" or name in complex_numbers.OPS, f"np.{function.__name__} of complex numbers")
        if function is np.power and ins[0].is_integer and ins[1].is_signed:
            exponent = operands[1]
            require(isinstance(exponent, Number), "powers of integers by an array")
            e.fail_if(e.cmp("lt", exponent.val, 0), ValueError("Integers to negative integer powers are not allowed."))
        if out is dt.bool_ and all(kind.is_integer and kind is not dt.u64 for kind in ins):
            ins = [dt.i64] * len(ins)  # comparisons are by value, whatever the types
        if function in _COMPARISONS and ins == [dt.u64, dt.u64]:
            operands = self._not_negative(operands)
        for operand, kind in zip(operands, ins):
            range_checks.fits(e, operand, kind)
        identity = function in (np.floor, np.ceil, np.trunc) and not ins[0].is_float
        emit = _reciprocal_of_integer if function is np.reciprocal and ins[0].is_integer else EMIT[name]

        def compute(*elements: Val) -> Val:
            cast = [e.cast(x, kind) for x, kind in zip(elements, ins)]
            if ins[0].kind == "c" and name not in complex_numbers.OF_EMITTER:
                return e.function(name, *cast)
            return e.cast(cast[0] if identity else emit(e, *cast), out)

        return self.mapped(out, compute, operands)

    def _not_negative(self, operands: list) -> list:
        """The operands of a comparison of uint64, which NumPy makes by value: a negative Python int and the other one
        compare as 0 and 1."""
        e = self.code
        for k, v in enumerate(operands):
            if isinstance(v, Number) and v.type == PY_INT and not (v.known is not None and v.known >= 0):
                negative, other = e.cmp("lt", v.val, 0), operands[1 - k]
                other = self.mapped(dt.u64, lambda x, n=negative: e.select(n, e.const(1, dt.u64), x), [other])
                number = Number(e.select(negative, e.zero, v.val), PY_INT, v.bits)
                return [number, other] if k == 0 else [other, number]
        return operands

    def mapped(self, dtype: dt.DType, compute: Callable[..., Val], operands: list) -> Number | Lazy:
        """``compute(*elements)``, of this dtype: a number of numbers, else an array."""
        if all(isinstance(v, Number) for v in operands):
            return number(compute(*(v.val for v in operands)))
        return arrays.elementwise(self.code, dtype, compute, operands)

    def cast(self, found: Any, dtype: dt.DType) -> Any:
        """A number or an array as NumPy's of another dtype."""
        return self.mapped(dtype, lambda x: self.code.cast(x, dtype), [found])

    def _known_power(self, base: Any, exponent: Any) -> Any:
        known = exponent.known if isinstance(exponent, Number) else None
        if base.dtype.kind == "c" and isinstance(exponent, Number) and exponent.type == PY_INT:
            return self._complex_power(base, exponent, base.dtype)
        if known is None:
            return None
        require(base.dtype is not dt.bool_ or base.type == PY_BOOL, "a power of booleans")
        is_float = base.dtype.is_float
        if known == 2 and (is_float or isinstance(known, int)):
            return self.ufunc(np.multiply, [base, base])
        if is_float and known == 3:
            return self.ufunc(np.multiply, [self.ufunc(np.multiply, [base, base]), base])
        if is_float and known == 0.5 and not isinstance(base, Number):
            return self.ufunc(np.sqrt, [base])
        return None

    def _complex_power(self, base: Any, exponent: Number, dtype: dt.DType) -> Any:
        """A power of complex numbers by a Python int."""
        e, power = self.code, complex_numbers.integer_power
        if exponent.known == -1 and not isinstance(base, Number):  # np.reciprocal
            return self.mapped(dtype, lambda x: complex_numbers.inverse_power(e, x, x), [base])
        if exponent.known is not None and abs(exponent.known) < _MOST_SQUARED:
            return self.mapped(dtype, lambda x: power(e, e.cast(x, dtype), exponent.known), [base])
        if not isinstance(base, Number):
            return None
        found = self.power(base.val, e.abs(exponent.val), e.mul)
        for n in UNMULTIPLIED:
            found = e.select(e.cmp("eq", exponent.val, n), power(e, base.val, n), found)
        inverse = complex_numbers.inverse_power(e, base.val, found)
        return number(e.select(e.cmp("lt", exponent.val, 0), inverse, found))

    def as_operand(self, found: Any) -> Any:
        require(isinstance(found, (Number, Array, Lazy)), "an operand that is neither an array nor a number")
        return found

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
            if draws.is_generator(owner) and not name.startswith("_"):
                return Static(getattr(owner, name))
            if callable(getattr(type(owner), name, None)):
                raise NotOutlinable(f"the method {full or name} of an object: write it as a function")
            raise NotOutlinable(f"the attribute {full or name} of an object: read it into a variable before the loop")
        if name in (OF_NUMBERS if isinstance(found, Number) else ATTRIBUTES):
            return ATTRIBUTES[name](self, self.as_operand(found))
        if name in METHODS:
            return Method(self.as_operand(found), name)
        raise NotOutlinable(f"the attribute {name}")

    def part(self, found: Any, name: str) -> Any:
        """The "real" or "imag" part of a number, or of an array as a view; or its "conjugate"."""
        dtype = found.dtype
        require(name != "imag" or dtype.kind == "c", "the imaginary part of real numbers")
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
        return self.constant(value) if type(value) in PYTHONS else Static(value)

    def _Call(self, node: ast.Call) -> Any:
        key = id(node), self.prefix
        if key not in self.calls:
            self.calls[key] = self.call(node)
        return self.calls[key]

    def call(self, node: ast.Call, returns: bool = True) -> Any:
        """The value of a call; None where its result is unused (``returns`` is False)."""
        function = self.value(node.func)
        starred = any(isinstance(arg, ast.Starred) for arg in node.args) or any(k.arg is None for k in node.keywords)
        require(not starred, "a call with * or **")
        args = [self.value(arg) for arg in node.args]
        keywords = {str(k.arg): self.value(k.value) for k in node.keywords}
        if isinstance(function, Method):
            if not isinstance(function.receiver, Static):
                return applied(METHODS[function.name], self, [function.receiver, *args], keywords)
            require(function.name == "outer", f"the method {function.name} of a ufunc")
            return applied(Expressions.outer, self, [function.receiver.value, *args], keywords)
        require(isinstance(function, Static), "a call of a value")
        called = plain(function.value)
        try:
            rule = FUNCTIONS.get(called)
        except TypeError:
            rule = None
        if rule is not None:
            values = [*args, *keywords.values()]
            one_type = not any(isinstance(v, Number) and v.other is not None for v in values)
            require(one_type or called in OF_ANY_TYPE, "a function of a number whose type is only known at run time")
            return self._or_extern(called, lambda: applied(rule, self, args, keywords), args, keywords)
        if isinstance(called, np.ufunc):
            return self._or_extern(called, lambda: self._ufunc_into(called, args, dict(keywords)), args, keywords)
        if draws.is_generator(getattr(called, "__self__", None)):
            return self._or_extern(called, lambda: draws.draw(self, called, args, keywords), args, keywords)
        if externs.supported(called):
            return self.extern(called, args, keywords)
        if isinstance(called, types.FunctionType):
            return self.inlined(called, node, args, keywords, returns)
        raise NotOutlinable(f"the function {getattr(called, '__name__', called)}")

    def _or_extern(self, called: Any, compute: Callable[[], Any], args: list, keywords: dict) -> Any:
        """``compute()`` or, where that is not supported, a call of NumPy's function."""
        e = self.code
        lines, errors = len(e.lines), len(e.errors)
        try:
            return compute()
        except NotOutlinable:
            if not externs.supported(called):
                raise
            del e.lines[lines:], e.errors[errors:]
            return self.extern(called, args, keywords)

    def extern(self, called: Any, args: list, keywords: dict) -> Any:
        """A call of NumPy's function as an extern op."""
        e = self.code
        given = [self.stored(v) for v in args], {k: self.stored(v) for k, v in keywords.items()}
        made = externs.Extern(called, *given, self.name_of(getattr(called, "__self__", None)))
        self.externs.append(made)
        number_, place, at = len(self.externs) - 1, e.slot(f"!llvm.array<{max(made.words, 1)} x i64>"), 0
        for operand in made.operands:
            at = e.note(operand, place, at)
        e.fail_if(e.not_(e.compute(place, number_)), callbacks.raised)
        results: list[Any] = []
        for kind, shares in zip(made.leaves, made.shares):
            if isinstance(kind, ArrayType):
                results.append(self._result(kind, place, at, shares))
            elif kind.dtype is dt.bool_:
                results.append(Number(e.cmp("ne", e.load(e.offset(place, at), dt.i64), 0), kind))
            else:
                results.append(Number(e.load(e.offset(place, at), kind.dtype), kind))
            at += 8 * words_of(kind)
        return _tuples(made.results.unflatten(results))

    def _result(self, kind: ArrayType, place: str, at: int, copied: bool) -> Array:
        """An extern op's array, whose words are at ``place``, in memory of its own. ``copied``: NumPy's is a view."""
        e, site = self.code, self.fresh_site()
        self.extern_sites.add(site)
        shape = [e.load(e.offset(place, at + 8 * (k + 1)), dt.i64) for k in range(kind.rank)]
        base, pointer = e.load(e.offset(place, at), dt.i64), e.load_pointer(e.offset(place, at))
        strides = arrays.dense_strides(e, kind.dtype, shape)
        roots: frozenset = frozenset([Site(site), Copied(site)] if copied else [Site(site)])
        return Array(kind.dtype, pointer, shape, strides, bool(shape), roots, base)

    def name_of(self, value: Any) -> str:
        """The variable that is this generator; "" for none."""
        return next((name for name, found in self.names.items() if found is value is not None), "")

    def _ufunc_into(self, function: np.ufunc, args: list, keywords: dict) -> Any:
        """A call of a ufunc, whose result may be written into an array."""
        into = keywords.pop("out", None) if len(args) <= function.nin else args[function.nin]
        require(not keywords and len(args) <= function.nin + 1, f"the arguments of np.{function.__name__}")
        found = self.ufunc(function, args[: function.nin])
        if into is None or (isinstance(into, Static) and into.value is None):
            return found
        if isinstance(into, Tuple) and len(into.items) == 1:
            into = into.items[0]
        require(isinstance(into, Array), "out= of something other than an array")
        self.write_back(into, found)
        return into

    def outer(self, function: np.ufunc, a: Any, b: Any) -> Any:
        """A ufunc of all pairs of elements of two arrays."""
        first, second = self.array(a), self.array(b)
        rank = len(first.shape)
        return self.ufunc(function, [arrays.expanded(self.code, first, range(rank, rank + len(second.shape))), second])


def _tuples(found: Any) -> Any:
    """Values in Python's tuples as values of the loop."""
    return Tuple([_tuples(item) for item in found]) if isinstance(found, tuple) else found
