"""Compiles a loop's control flow: branches, inner loops, jumps, and the user's functions, which are inlined."""

from __future__ import annotations

import ast
import types
from typing import Any

from mlirfuse.frontend.numpy.loops.arrays import SIZE_BITS
from mlirfuse.frontend.numpy.loops.expressions import Expressions
from mlirfuse.frontend.numpy.loops.live_ranges import split_body
from mlirfuse.frontend.numpy.loops.values import (
    PY_INT,
    ArrayType,
    Bytes,
    NotOutlinable,
    Number,
    Static,
    UnsupportedInt,
    require,
)
from mlirfuse.frontend.numpy.loops.variables import Names
from mlirfuse.frontend.numpy.syntax import assigned_names
from mlirfuse.ir import dtypes as dt
from mlirfuse.lowering.emitter import Val

_DEEPEST = 16  # calls in calls
_DEFAULTS = (bool, int, float, complex, str, type(None), type)  # types of supported defaults


class ControlFlow(Expressions):
    """Compiles statements in their order, and what changes it."""

    def body(self, statements: list[ast.stmt]) -> None:
        calls = self.calls
        for statement in statements:
            self.calls = {}
            self.code.where = (self.inline[-1].__code__.co_filename if self.inline else self.file), statement.lineno
            method = getattr(self, "_" + type(statement).__name__, None)
            if method is None:
                raise NotOutlinable(f"line {statement.lineno}: an unsupported statement")
            method(statement)
            if self.definite is None:
                break
        self.calls = calls

    # ---- branches and jumps

    def _If(self, node: ast.If) -> None:
        e = self.code
        condition = self.truth(node.test)
        known = e.known(condition)
        if known is not None:
            self.body(node.body if known else node.orelse)
            return
        self.nesting += 1
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
        self.nesting -= 1
        alive = [way for way, _ in ways if way is not None]
        if alive:
            e.place(after)
        self.definite = set.intersection(*alive) if alive else None
        self.bounded = {k: v for k, v in ways[0][1].items() if k in ways[1][1]}

    def _Break(self, node: ast.Break | ast.Continue) -> None:
        after, again = self.jumps[-1]
        self.code.go(after if isinstance(node, ast.Break) else again)
        self.definite = None

    _Continue = _Break

    def _Raise(self, node: ast.Raise | ast.Return) -> None:
        require(not self.inline, f"line {node.lineno}: a raise in a called function")
        slot, end = self.left
        self.code.store(self.code.const(self.leaves.index(node) + 1, dt.i64), slot)
        self.code.go(end)
        self.definite = None

    def _Return(self, node: ast.Return) -> None:
        if not self.inline:
            self._Raise(node)
            return
        name, end = self.result or ("", "")
        require(self.result is not None and (not name or node.value is not None), f"line {node.lineno}: a return")
        found = None if node.value is None else self.value(node.value)
        if name:
            self.assign(name, found)
        self.code.go(end)
        self.definite = None

    def _While(self, node: ast.While) -> None:
        e = self.code
        require(not node.orelse, "a loop with else")
        head, inside, after = e.block(), e.block(), e.block()
        for name in assigned_names(node.body):
            self.bounded.pop(self.prefix + name, None)
        before = set(self.definite or ())
        e.go(head)
        e.place(head)
        e.fork(self.truth(node.test), inside, after)
        e.place(inside)
        self.trip(node.body, head, after)
        e.place(after)
        self.definite = before

    def trip(self, statements: list[ast.stmt], again: str, after: str) -> None:
        self.jumps.append((after, again))  # targets of break and continue
        self.nesting += 1
        self.body(statements)
        self.nesting -= 1
        self.jumps.pop()
        if self.definite is not None:
            self.code.go(again)

    # ---- loops over ranges

    def _For(self, node: ast.For) -> None:
        e = self.code
        if node.orelse or not isinstance(node.target, ast.Name):
            raise NotOutlinable(f"line {node.lineno}: an unsupported loop")
        counter, call = node.target.id, node.iter
        if not isinstance(call, ast.Call) or self._called(call.func) is not range or call.keywords:
            raise NotOutlinable(f"line {node.lineno}: a loop over something other than a range")
        given = [self.number(arg) for arg in call.args]
        counts = [self.integer(v) for v in given]
        for v, count in zip(given, counts):
            if v.bits > SIZE_BITS:
                bound = 2**SIZE_BITS
                e.fail_if(
                    e.or_(e.cmp("gt", count, bound), e.cmp("lt", count, -bound)),
                    UnsupportedInt("a range in a compiled loop has bounds beyond 2**40"),
                )
        require(1 <= len(counts) <= 3, "a range of something other than numbers")
        start, stop, step = (e.zero, counts[0], e.one) if len(counts) == 1 else (*counts, e.one)[:3]
        known = e.known(step)
        require(known != 0, "a range with step 0")
        if known is None:
            e.fail_if(e.cmp("eq", step, 0), ValueError("range() arg 3 must not be zero"))
        inner = not any(isinstance(s, (ast.For, ast.While)) for s in ast.walk(node) if s is not node)
        accesses = self._monotone(node, counter) if inner and known is not None else []
        for name in assigned_names([node]):
            self.bounded.pop(self.prefix + name, None)
        first = e.slot("i64")
        e.store(start, first)
        if not accesses:
            self._counted(node, counter, first, stop, step)
            return
        assert known is not None
        there = e.cmp("lt" if known > 0 else "gt", start, stop)
        trips = e.div(e.count("subi", e.count("subi", stop, start), 1 if known > 0 else -1), step)
        last = e.count("addi", start, e.count("muli", trips, step))
        yes, checked, after = e.block(), e.block(), e.block()
        fits = self._in_range(counter, accesses, start, last)
        e.fork(e.and_(there, fits), yes, checked)
        outer, definite = self.unchecked, set(self.definite or ())
        rare = e.rare
        for block, safe in ((yes, frozenset((id(s), axis) for s, axis in accesses)), (checked, frozenset())):
            e.place(block)
            e.rare = rare or block == checked
            self.unchecked, self.definite = outer | safe, set(definite)
            self._counted(node, counter, first, stop, step)
            e.go(after)
        self.unchecked, e.rare = outer, rare
        e.place(after)

    def _counted(self, node: ast.For, counter: str, slot: str, stop: Val, step: Val) -> None:
        """The loop over the variable ``counter``; ``slot`` holds its next value."""
        e, name = self.code, self.prefix + counter
        head, inside, again, after = e.block(), e.block(), e.block(), e.block()
        before = set(self.definite or ())
        e.go(head)
        e.place(head)
        now = e.load(slot, dt.i64)
        known = e.known(step)
        if known is None:
            more = e.select(e.cmp("gt", step, 0), e.cmp("lt", now, stop), e.cmp("gt", now, stop))
        else:
            more = e.cmp("lt" if known > 0 else "gt", now, stop)
        e.fork(more, inside, after)
        e.place(inside)
        self.assign(counter, Number(now, PY_INT, SIZE_BITS))
        if counter not in assigned_names(node.body) and self.types[name] == PY_INT:
            self.bounded[name] = SIZE_BITS
        self.trip(node.body, again, after)
        e.place(again)
        e.store(e.count("addi", e.load(slot, dt.i64), step), slot)
        e.again(head)
        e.place(after)
        self.bounded.pop(name, None)
        self.definite = before

    def _called(self, node: ast.expr) -> Any:
        found = self.value(node)
        return found.value if isinstance(found, Static) else None

    # ---- subscripts that the loop's bounds keep in range

    def _monotone(self, node: ast.For, counter: str) -> list[tuple[ast.Subscript, int]]:
        """Subscripts of elements (with their axes) that are sums of the loop variable and loop-invariant terms: in
        range in all iterations if they are in the first and the last."""
        changed = set(assigned_names(node.body)) | {counter}
        out = []
        for found in (s for statement in node.body for s in ast.walk(statement) if isinstance(s, ast.Subscript)):
            if not isinstance(found.value, ast.Name) or found.value.id in changed:
                continue
            if not isinstance(self._peek(found.value.id), ArrayType):
                continue
            for axis, item in enumerate(self._items(found)):
                if isinstance(item, ast.Slice) or not _is_sum(item, counter, changed):
                    continue
                names = [n.id for n in ast.walk(item) if isinstance(n, ast.Name)]
                if not any(isinstance(self._peek(name), ArrayType) for name in names):
                    out.append((found, axis))
        return out if counter not in assigned_names(node.body) else []

    def _peek(self, name: str) -> Any:
        variable = self.variables.get(self.prefix + name)
        return variable.type if variable is not None else None

    def _in_range(self, counter: str, accesses: list, first: Val, last: Val) -> Val:
        """Whether all subscripts are in range in the first and in the last iteration."""
        e = self.code
        fits = e.const(True, dt.bool_)
        seen = set()
        for found, axis in accesses:
            item = self._items(found)[axis]
            serialized = (found.value.id, axis, ast.unparse(item))
            if serialized in seen:
                continue
            seen.add(serialized)
            array = self.value(found.value)
            rank = len(array.shape)
            require(axis < rank and len(self._items(found)) <= rank, "more subscripts than axes")
            moves = any(isinstance(n, ast.Name) and n.id == counter for n in ast.walk(item))
            for end in (first, last) if moves else (first,):
                index = self._at(item, counter, end)
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

    # ---- calls of the user's functions

    def _of_closure(self, names: Names, name: str) -> Any:
        """A closure variable of an inlined function, with its value at the loop's start."""
        changed = name in assigned_names(self.loop)
        require(not changed, f"the variable {name} of a called function, which the loop changes")
        full = next((f"{f}.{name}" for f, value in self.names.items() if value is names.function), "")
        if full in self.variables:
            return self.get(full, self.variables[full])
        require(full in self.names, f"the variable {name} has no known type yet")
        return self.outside(self.names[full])

    def inlined(
        self, function: types.FunctionType, node: ast.Call, args: list, keywords: dict, returns: bool = True
    ) -> Any:
        """Inlines a call; its value, or None where the result is unused (``returns`` is False)."""
        require(function not in self.inline and len(self.inline) <= _DEEPEST, "a function that calls itself")
        definition = split_body(function)
        spec = definition.args
        usual = not (spec.vararg or spec.kwarg or spec.kwonlyargs or spec.posonlyargs)
        require(usual, f"the function {function.__name__}, which has unsupported kinds of parameters")
        names = [arg.arg for arg in spec.args]
        defaults = function.__defaults__ or ()
        known = {n: d for n, d in zip(names[len(names) - len(defaults) :], defaults) if type(d) in _DEFAULTS}
        given = {n: self.outside(d) for n, d in known.items()} | dict(zip(names, args)) | keywords
        require(set(given) == set(names) and len(args) <= len(names), f"the arguments of {function.__name__}")
        e = self.code
        saved = self.prefix, self.result, self.jumps, self.unchecked, self.nesting
        self.prefix = f"{self.prefix}{function.__name__}@{node.lineno}.{node.col_offset}."
        self.nesting = 0
        for name, value in given.items():
            if isinstance(value, (Static, Bytes)):
                self.statics[self.prefix + name] = value
            else:
                self.statics.pop(self.prefix + name, None)
                self.assign(name, value)
        end = e.block()
        before = set(self.definite or ())
        self.result, self.jumps, self.unchecked = ("return" if returns else "", end), [], frozenset()
        self.inline.append(function)
        self.scopes.append(Names(function, self.depends))
        where = e.where
        self.body(definition.body)
        require(self.definite is None or not returns, f"{function.__name__} may return nothing")
        if self.definite is not None:
            e.go(end)
        e.place(end)
        self.scopes.pop()
        self.inline.pop()
        e.where = where
        self.definite = before | ({self.prefix + "return"} if returns else set())
        result = self.read("return") if returns else None
        self.prefix, self.result, self.jumps, self.unchecked, self.nesting = saved
        self.definite = before
        return result


def _is_sum(node: ast.expr, name: str, changed: set[str]) -> bool:
    """Whether ``node`` is a sum of the variable ``name``, constants and loop-invariant variables."""
    if isinstance(node, ast.Constant):
        return type(node.value) is int
    if isinstance(node, ast.Name):
        return node.id == name or node.id not in changed
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        return _is_sum(node.left, name, changed) and _is_sum(node.right, name, changed)
    return False
