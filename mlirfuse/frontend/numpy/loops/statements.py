"""Compiles a loop's statements: assignments, branches, inner loops, and inlined user functions."""

from __future__ import annotations

import ast
import types
from collections.abc import Collection
from typing import Any

import numpy as np

from mlirfuse.frontend.numpy.loops import (  # products and reductions bring rules of FUNCTIONS
    arrays,
    indices,
    products,  # noqa: F401
    range_checks,
    reductions,  # noqa: F401
)
from mlirfuse.frontend.numpy.loops.arrays import SIZE_BITS
from mlirfuse.frontend.numpy.loops.code import Code
from mlirfuse.frontend.numpy.loops.functions import FUNCTIONS, METHODS, OF_ANY_TYPE
from mlirfuse.frontend.numpy.loops.values import (
    PY_INT,
    Array,
    ArrayType,
    Lazy,
    NotOutlinable,
    Number,
    NumberType,
    Site,
    Static,
    Tuple,
    kind_of,
    words_of,
)
from mlirfuse.frontend.numpy.loops.variables import Names, Slots, Variables
from mlirfuse.frontend.numpy.syntax import appended, parsed
from mlirfuse.ir import dtypes as dt
from mlirfuse.lowering.emitter import Val


class Statements(Variables):
    """Emits the code of one loop. ``types``: the variables' types as known so far; ``roots``: the memory that array
    variables may lie in; ``extents``: their known extents; all grow from one pass to the next. ``loop``: the whole
    statement; ``leaves``: statements that leave the function; ``lists``: names of lists that it appends to; ``file``:
    the source file."""

    functions = FUNCTIONS
    methods = METHODS
    of_any_type = OF_ANY_TYPE

    def __init__(
        self,
        names: dict[str, Any],
        kinds: dict[str, Any],
        others: dict[str, NumberType],
        roots: dict[str, frozenset],
        extents: dict[str, tuple],
        small: set[str],
        loop: ast.stmt,
        leaves: list[ast.stmt],
        lists: Collection[str],
        file: str,
    ):
        self.code = Code()
        self.loop, self.leaves, self.lists = [loop], leaves, lists
        self.left = (self.code.slot("i64"), self.code.block())  # the leaving statement's number, the exit block
        self.code.entry.append(f"  llvm.store {self.code.const(0, dt.i64)}, {self.left[0]} : i64, !llvm.ptr")
        self.appends: list[tuple[str, Any]] = []  # for each append its list, and the value's type
        self.names = names  # objects that the loop refers to and does not assign
        self.types, self.roots, self.extents, self.small = kinds, roots, extents, small
        self.others = others
        self.variables: dict[str, Slots] = {}
        self.definite: set[str] | None = set()  # variables assigned on all paths; None: unreachable
        self.jumps: list[tuple[str, str]] = []
        self.bounded: dict[str, int] = {}
        self.unchecked: frozenset = frozenset()
        self.prefix, self.file = "", file
        self.inline: list[types.FunctionType] = []
        self.result: tuple[str, str] | None = None  # of the inlined function: its variable ("": none) and its end block
        self.arrays = 0
        self._scopes: list[dict[str, Any]] = []

    def read(self, name: str) -> Any:
        full = self.prefix + name
        variable = self.variables.get(full)
        if variable is not None:
            if self.definite is not None and full not in self.definite:
                unbound = self.code.not_(self.code.load(variable.assigned, dt.bool_))
                self.code.fail_if(
                    unbound,
                    lambda *_: UnboundLocalError(
                        f"cannot access local variable '{name}' where it is not associated with a value"
                    ),
                )
            return self.get(full, variable)
        if full in self.types:  # assigned below, in an earlier iteration of the enclosing loop
            self.declare(full, self.types[full])
            return self.read(name)
        names = self._scopes[-1] if self._scopes else self.names
        if isinstance(names, Names) and name in names.free:
            return self._of_closure(names, name)
        if name not in names:
            raise NotOutlinable(f"the variable {name} has no known type yet")
        return self.outside(names[name])

    def _of_closure(self, names: Names, name: str) -> Any:
        """A closure variable of an inlined function, with its value at the loop's start."""
        if name in _assigned(self.loop):
            raise NotOutlinable(f"the variable {name} of a called function, which the loop changes")
        full = next((f"{f}.{name}" for f, value in self.names.items() if value is names.function), "")
        if full in self.variables:
            return self.get(full, self.variables[full])
        if full not in self.names:
            raise NotOutlinable(f"the variable {name} has no known type yet")
        return self.outside(self.names[full])

    # ---- statements

    def body(self, statements: list[ast.stmt]) -> None:
        for statement in statements:
            self.code.where = (self.inline[-1].__code__.co_filename if self.inline else self.file), statement.lineno
            method = getattr(self, "_" + type(statement).__name__, None)
            if method is None:
                raise NotOutlinable(f"line {statement.lineno}: an unsupported statement")
            method(statement)
            if self.definite is None:
                return

    def _Pass(self, node: ast.Pass) -> None:
        pass

    def _Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant):
            return
        name = appended(node)
        if name is None and isinstance(node.value, ast.Call):
            self.call(node.value, returns=False)
            return
        if name is None or self.inline or name.id not in self.lists or type(self.names.get(name.id)) is not list:
            raise NotOutlinable(f"line {node.lineno}: an expression that is a statement")
        assert isinstance(node.value, ast.Call)
        self._append(name.id, self.value(node.value.args[0]))

    def _append(self, name: str, found: Any) -> None:
        """Logs an append: its number, and the words of the value. An array is logged by its memory, which is not
        reused."""
        e = self.code
        if isinstance(found, Tuple):
            found = Tuple([self.array(v) if isinstance(v, Lazy) else v for v in found.items], found.is_list)
        found = self.array(found) if isinstance(found, Lazy) else found
        if isinstance(found, Number) and found.other is not None:
            raise NotOutlinable("a number whose type is only known at run time is appended")
        kind = kind_of(found)
        self.appends.append((name, kind))
        place = e.log(1 + words_of(kind))
        e.store(e.const(len(self.appends) - 1, dt.i64), place)
        self._note(found, place, 8)

    def _note(self, found: Any, place: str, at: int) -> int:
        e = self.code
        if isinstance(found, Number):
            e.store(e.cast(found.val, dt.i64) if found.type.dtype is dt.bool_ else found.val, e.offset(place, at))
            return at + 8 * words_of(found.type)
        if isinstance(found, Tuple):
            for item in found.items:
                at = self._note(item, place, at)
            return at
        for site in sorted(root for root in found.roots if isinstance(root, Site)):
            e.hold(site.number, found.base)
        e.store_pointer(found.pointer, e.offset(place, at))
        for k, size in enumerate([*found.shape, *found.strides]):
            e.store(size, e.offset(place, at + 8 * (k + 1)))
        return at + 8 * words_of(found.type)

    def _Assign(self, node: ast.Assign) -> None:
        value = self.value(node.value)
        if isinstance(value, Lazy) and (len(node.targets) > 1 or isinstance(node.targets[0], ast.Name)):
            value = self.array(value)
        for target in node.targets:
            self.store(target, value)

    def _AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.store(node.target, self.value(node.value))

    def store(self, target: ast.expr, value: Any) -> None:
        """``target = value``."""
        if isinstance(target, ast.Name):
            self.assign(target.id, value)
        elif isinstance(target, (ast.Tuple, ast.List)):
            self._unpack(target, value)
        elif isinstance(target, ast.Subscript):
            array = self.value(target.value)
            if not isinstance(array, Array):
                raise NotOutlinable(f"line {target.lineno}: writing into something other than an array")
            self.write(array, target, value)
        else:
            raise NotOutlinable(f"line {target.lineno}: an unsupported assignment")

    def _unpack(self, target: ast.Tuple | ast.List, value: Any) -> None:
        if isinstance(value, Array) and len(value.shape) == 1 and len(target.elts) <= 8:
            e, count = self.code, len(target.elts)
            e.fail_if(
                e.cmp("ne", value.shape[0], count),
                lambda *_: ValueError(f"an array of another length is unpacked into {count} variables"),
            )
            at = [arrays.element(e, value, [e.const(k, dt.i64)]) for k in range(count)]
            value = Tuple([arrays.number(v) for v in at])
        if not isinstance(value, Tuple) or len(value.items) != len(target.elts):
            raise NotOutlinable(f"line {target.lineno}: unpacking of something other than a tuple of that length")
        items = [self.array(item) if isinstance(item, Lazy) else item for item in value.items]
        for part, item in zip(target.elts, items):
            if isinstance(part, ast.Starred):
                raise NotOutlinable("unpacking with *")
            self.store(part, item)

    def write(self, array: Array, target: ast.Subscript, value: Any) -> None:
        """``array[…] = value``."""
        e = self.code
        if isinstance(value, Tuple):
            value = self.functions[np.array](self, [value], {})
        place = self.element_of(array, target)
        if place is not None:
            if not isinstance(value, Number):
                raise NotOutlinable(f"line {target.lineno}: an array is written into an element")
            range_checks.stored(e, value, array.dtype)
            e.store(e.cast(value.val, array.dtype), place, memory=True)
            return
        if not isinstance(target.slice, (ast.Tuple, ast.Slice, ast.Constant)):
            chosen = self.value(target.slice)
            if isinstance(chosen, (Array, Lazy)):
                if isinstance(value, Number) and chosen.dtype is dt.bool_ and len(chosen.shape) == len(array.shape):
                    self._masked(array, chosen, value)
                    return
                if isinstance(value, Number):
                    range_checks.cut_fits(e, value, array.dtype)
                indices.write(e, array, self.array(chosen), arrays.lazy(e, value), self.fresh_site)
                return
        view = self.viewed(array, target)
        if isinstance(value, Number):
            range_checks.stored(e, value, view.dtype)
            arrays.fill(e, view, e.cast(value.val, view.dtype))
            return
        arrays.write(e, view, arrays.lazy(e, value), self.fresh_site)

    def _masked(self, array: Array, mask: Any, value: Number) -> None:
        """Writes a number where a mask over all axes is true."""
        e = self.code
        mask = arrays.lazy(e, mask)
        range_checks.cut_fits(e, value, array.dtype)
        if arrays.conflicts(array, mask):
            mask = arrays.lazy(e, self.array(mask))
        for have, want in zip(mask.shape, array.shape):
            e.fail_if(e.cmp("ne", have, want), lambda a, b: IndexError(
                f"boolean index did not match indexed array: size {b} but size of corresponding boolean axis is {a}"
            ), have, want)  # fmt: skip
        val = e.cast(value.val, array.dtype)

        def nest(uniform: bool) -> None:
            with e.each_of(array.shape) as indices:
                place = arrays.element_pointer(e, array, indices)
                old = e.load(place, array.dtype, memory=True)
                e.store(e.select(mask.at(indices, uniform), val, old), place, memory=True)

        arrays.run(e, mask.pairs, nest)

    def _AugAssign(self, node: ast.AugAssign) -> None:
        e, target = self.code, node.target
        if isinstance(target, ast.Name):
            before = self.value(target)
            if isinstance(before, Array):
                self._in_place(before, node.op, self.value(node.value))
                return
            self.assign(target.id, self.binary(node.op, before, self.value(node.value)))
            return
        if not isinstance(target, ast.Subscript):
            raise NotOutlinable(f"line {node.lineno}: an unsupported assignment")
        array = self.value(target.value)
        if not isinstance(array, Array):
            raise NotOutlinable(f"line {node.lineno}: writing into something other than an array")
        place = self.element_of(array, target)
        if place is not None:
            old = arrays.number(e.load(place, array.dtype, memory=True))
            new = self.binary(node.op, old, self.value(node.value))
            if not isinstance(new, Number):
                raise NotOutlinable(f"line {node.lineno}: an array is written into an element")
            range_checks.stored(e, new, array.dtype)
            e.store(e.cast(new.val, array.dtype), place, memory=True)
            return
        chosen = self.chosen(target)
        if chosen is None:
            self._in_place(self.viewed(array, target), node.op, self.value(node.value))
            return
        taken = indices.read(e, array, chosen, self.fresh_site)
        result = self.binary(node.op, taken, self.value(node.value))
        if not isinstance(result, (Array, Lazy)) or not _same_kind(result.dtype, array.dtype):
            raise NotOutlinable("an in-place update with another kind of numbers")
        indices.write(e, array, chosen, arrays.lazy(e, result), self.fresh_site)

    def _in_place(self, view: Array, op: ast.operator, value: Any) -> None:
        new = self.binary(op, view, value)
        if not isinstance(new, (Array, Lazy)) or not _same_kind(new.dtype, view.dtype):
            raise NotOutlinable("an in-place update with another kind of numbers")
        arrays.write(self.code, view, arrays.lazy(self.code, new), self.fresh_site)

    def _If(self, node: ast.If) -> None:
        e = self.code
        condition = self.truth(node.test)
        yes, no, after = e.block(), e.block(), e.block()
        e.fork(condition, yes, no)
        before, bounded = self.definite, dict(self.bounded)
        ways = []
        for block, statements in ((yes, node.body), (no, node.orelse)):
            e.place(block)
            self.definite, self.bounded = None if before is None else set(before), dict(bounded)
            self.body(statements)
            if self.definite is not None:
                e.go(after)
            ways.append((self.definite, self.bounded))
        alive = [way for way, _ in ways if way is not None]
        if alive:
            e.place(after)
        self.definite = set.intersection(*alive) if alive else None
        self.bounded = {k: v for k, v in ways[0][1].items() if k in ways[1][1]}

    def _Break(self, node: ast.Break) -> None:
        self.code.go(self.jumps[-1][0])
        self.definite = None

    def _Continue(self, node: ast.Continue) -> None:
        self.code.go(self.jumps[-1][1])
        self.definite = None

    def _Raise(self, node: ast.Raise | ast.Return) -> None:
        if self.inline:
            raise NotOutlinable(f"line {node.lineno}: a raise in a called function")
        slot, end = self.left
        self.code.store(self.code.const(self.leaves.index(node) + 1, dt.i64), slot)
        self.code.go(end)
        self.definite = None

    def _Return(self, node: ast.Return) -> None:
        if not self.inline:
            self._Raise(node)
            return
        name, end = self.result or ("", "")
        if self.result is None or (name and node.value is None):
            raise NotOutlinable(f"line {node.lineno}: a return")
        found = None if node.value is None else self.value(node.value)
        if name:
            self.assign(name, found)
        self.code.go(end)
        self.definite = None

    def _While(self, node: ast.While) -> None:
        e = self.code
        if node.orelse:
            raise NotOutlinable("a loop with else")
        head, inside, after = e.block(), e.block(), e.block()
        for name in _assigned(node.body):
            self.bounded.pop(self.prefix + name, None)
        before = set(self.definite or ())
        e.go(head)
        e.place(head)
        e.fork(self.truth(node.test), inside, after)
        e.place(inside)
        self._trip(node.body, head, after)
        e.place(after)
        self.definite = before

    def _trip(self, statements: list[ast.stmt], again: str, after: str) -> None:
        self.jumps.append((after, again))  # targets of break and continue
        self.body(statements)
        self.jumps.pop()
        if self.definite is not None:
            self.code.go(again)

    def _For(self, node: ast.For) -> None:
        e = self.code
        if node.orelse or not isinstance(node.target, ast.Name):
            raise NotOutlinable(f"line {node.lineno}: an unsupported loop")
        call = node.iter
        if not isinstance(call, ast.Call) or self._called(call.func) is not range or call.keywords:
            raise NotOutlinable(f"line {node.lineno}: a loop over something other than a range")
        given = [self.number(arg) for arg in call.args]
        counts = [self.integer(v) for v in given]
        for v, count in zip(given, counts):
            if v.bits > SIZE_BITS:
                bound = 2**SIZE_BITS
                e.fail_if(
                    e.or_(e.cmp("gt", count, bound), e.cmp("lt", count, -bound)),
                    lambda *_: OverflowError("a range in a compiled loop has bounds beyond 2**40"),
                )
        start, stop, step = _range_of(e, counts)
        known = e.known(step)
        if known is None or known == 0:
            raise NotOutlinable("a range with a step that is not constant")
        inner = not any(isinstance(s, (ast.For, ast.While)) for s in ast.walk(node) if s is not node)
        accesses = self._monotone(node) if inner else []
        for name in _assigned([node]):
            self.bounded.pop(self.prefix + name, None)
        first = e.slot("i64")
        e.store(start, first)
        if not accesses:
            self._counted(node, first, stop, known)
            return
        there = e.cmp("lt" if known > 0 else "gt", start, stop)
        trips = e.div(e.count("subi", e.count("subi", stop, start), 1 if known > 0 else -1), step)
        last = e.count("addi", start, e.count("muli", trips, step))
        yes, checked, after = e.block(), e.block(), e.block()
        fits = self._in_range(node, accesses, start, last)
        e.fork(e.and_(there, fits), yes, checked)
        outer, definite = self.unchecked, set(self.definite or ())
        rare = e.rare
        for block, safe in ((yes, frozenset((id(s), axis) for s, axis in accesses)), (checked, frozenset())):
            e.place(block)
            e.rare = rare or block == checked
            self.unchecked, self.definite = outer | safe, set(definite)
            self._counted(node, first, stop, known)
            e.go(after)
        self.unchecked, e.rare = outer, rare
        e.place(after)

    def _counted(self, node: ast.For, counter: str, stop: Val, step: int) -> None:
        e = self.code
        assert isinstance(node.target, ast.Name)
        name = self.prefix + node.target.id
        head, inside, again, after = e.block(), e.block(), e.block(), e.block()
        before = set(self.definite or ())
        e.go(head)
        e.place(head)
        now = e.load(counter, dt.i64)
        e.fork(e.cmp("lt" if step > 0 else "gt", now, stop), inside, after)
        e.place(inside)
        self.assign(node.target.id, Number(now, PY_INT, SIZE_BITS))
        if node.target.id not in _assigned(node.body) and self.types[name] == PY_INT:
            self.bounded[name] = SIZE_BITS
        self._trip(node.body, again, after)
        e.place(again)
        e.store(e.count("addi", e.load(counter, dt.i64), step), counter)
        e.again(head)
        e.place(after)
        self.bounded.pop(name, None)
        self.definite = before

    def _called(self, node: ast.expr) -> Any:
        found = self.value(node)
        return found.value if isinstance(found, Static) else None

    # ---- subscripts that the loop's bounds keep in range

    def _monotone(self, node: ast.For) -> list[tuple[ast.Subscript, int]]:
        """Subscripts of elements (with their axes) that are sums of the loop variable and loop-invariant terms: in
        range in all iterations if they are in the first and the last."""
        assert isinstance(node.target, ast.Name)
        changed = set(_assigned(node.body)) | {node.target.id}
        out = []
        for found in (s for statement in node.body for s in ast.walk(statement) if isinstance(s, ast.Subscript)):
            if not isinstance(found.value, ast.Name) or found.value.id in changed:
                continue
            if not isinstance(self._peek(found.value.id), ArrayType):
                continue
            for axis, item in enumerate(self._items(found)):
                if isinstance(item, ast.Slice) or not _is_sum(item, node.target.id, changed):
                    continue
                names = [n.id for n in ast.walk(item) if isinstance(n, ast.Name)]
                if not any(isinstance(self._peek(name), ArrayType) for name in names):
                    out.append((found, axis))
        return out if node.target.id not in _assigned(node.body) else []

    def _peek(self, name: str) -> Any:
        variable = self.variables.get(self.prefix + name)
        return variable.type if variable is not None else None

    def _in_range(self, node: ast.For, accesses: list, first: Val, last: Val) -> Val:
        """Whether all subscripts are in range in the first and in the last iteration."""
        e = self.code
        assert isinstance(node.target, ast.Name)
        fits = e.const(True, dt.bool_)
        seen = set()
        for found, axis in accesses:
            item = self._items(found)[axis]
            serialized = (found.value.id, axis, ast.unparse(item))
            if serialized in seen:
                continue
            seen.add(serialized)
            array = self.value(found.value)
            if axis >= len(array.shape) or len(self._items(found)) > len(array.shape):
                raise NotOutlinable("more subscripts than axes")
            ends = (first, last) if any(isinstance(n, ast.Name) and n.id == node.target.id for n in ast.walk(item)) \
                else (first,)  # fmt: skip
            for end in ends:
                index = self._at(item, node.target.id, end)
                unsigned = Val(index.name, dt.u64)
                fits = e.and_(fits, e.cmp("lt", unsigned, Val(array.shape[axis].name, dt.u64)))
        return fits

    def _at(self, item: ast.expr, name: str, end: Val) -> Val:
        """A sum (see :func:`_is_sum`) at one value of the loop variable."""
        if isinstance(item, ast.Name) and item.id == name:
            return end
        if isinstance(item, ast.BinOp):
            op = "addi" if isinstance(item.op, ast.Add) else "subi"
            return self.code.count(op, self._at(item.left, name, end), self._at(item.right, name, end))
        return self.integer(self.value(item))

    # ---- inlined user functions

    def inlined(
        self, function: types.FunctionType, node: ast.Call, args: list, keywords: dict, returns: bool = True
    ) -> Any:
        """Inlines a call; its value, or None where the result is unused (``returns`` is False)."""
        if function in self.inline or len(self.inline) > 4:
            raise NotOutlinable("a function that calls itself")
        definition = parsed(function)
        spec = definition.args
        if spec.vararg or spec.kwarg or spec.kwonlyargs or spec.posonlyargs:
            raise NotOutlinable(f"the function {function.__name__}, which has unsupported kinds of parameters")
        names = [arg.arg for arg in spec.args]
        defaults = function.__defaults__ or ()
        numbers = {n: d for n, d in zip(names[len(names) - len(defaults) :], defaults) if type(d) in _NUMBERS}
        given = {n: self.constant(d) for n, d in numbers.items()} | dict(zip(names, args)) | keywords
        if set(given) != set(names) or len(args) > len(names):
            raise NotOutlinable(f"the arguments of {function.__name__}")
        e = self.code
        saved = self.prefix, self.result, self.jumps, self.unchecked
        self.prefix = f"{self.prefix}{function.__name__}@{node.lineno}.{node.col_offset}."
        for name, value in given.items():
            self.assign(name, value)
        end = e.block()
        before = set(self.definite or ())
        self.result, self.jumps, self.unchecked = ("return" if returns else "", end), [], frozenset()
        self.inline.append(function)
        self._scopes.append(Names(function))
        where = e.where
        self.body(definition.body)
        if self.definite is not None and returns:
            raise NotOutlinable(f"{function.__name__} may return nothing")
        if self.definite is not None:
            e.go(end)
        e.place(end)
        self._scopes.pop()
        self.inline.pop()
        e.where = where
        self.definite = before | ({self.prefix + "return"} if returns else set())
        result = self.read("return") if returns else None
        self.prefix, self.result, self.jumps, self.unchecked = saved
        self.definite = before
        return result


_NUMBERS = (bool, int, float, complex)  # types of supported defaults


def _same_kind(source: dt.DType, target: dt.DType) -> bool:
    return np.can_cast(source.numpy, target.numpy, "same_kind")


def _range_of(e: Code, counts: list[Val]) -> tuple[Val, Val, Val]:
    zero, one = e.const(0, dt.i64), e.const(1, dt.i64)
    if len(counts) == 1:
        return zero, counts[0], one
    if len(counts) == 2:
        return counts[0], counts[1], one
    if len(counts) != 3:
        raise NotOutlinable("a range of something other than numbers")
    return counts[0], counts[1], counts[2]


def _assigned(statements: list[ast.stmt]) -> set[str]:
    """The names that statements assign."""
    return {
        n.id
        for statement in statements
        for n in ast.walk(statement)
        if isinstance(n, ast.Name) and isinstance(n.ctx, (ast.Store, ast.Del))
    }


def _is_sum(node: ast.expr, name: str, changed: set[str]) -> bool:
    """Whether ``node`` is a sum of the variable ``name``, constants and loop-invariant variables."""
    if isinstance(node, ast.Constant):
        return type(node.value) is int
    if isinstance(node, ast.Name):
        return node.id == name or node.id not in changed
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        return _is_sum(node.left, name, changed) and _is_sum(node.right, name, changed)
    return False
