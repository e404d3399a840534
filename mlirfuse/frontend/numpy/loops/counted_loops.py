"""Compiles ``for`` loops over ranges."""

from __future__ import annotations

import ast
from typing import Any

from mlirfuse.frontend.numpy.loops.arrays import SIZE_BITS
from mlirfuse.frontend.numpy.loops.code import Code
from mlirfuse.frontend.numpy.loops.inlining import Inlining
from mlirfuse.frontend.numpy.loops.values import (
    PY_INT,
    ArrayType,
    NotOutlinable,
    Number,
    Static,
    UnsupportedInt,
    require,
)
from mlirfuse.frontend.numpy.syntax import assigned_names
from mlirfuse.ir import dtypes as dt
from mlirfuse.lowering.emitter import Val


class CountedLoops(Inlining):
    """Compiles loops over ranges."""

    def _For(self, node: ast.For) -> None:
        e = self.code
        require(not node.orelse and isinstance(node.target, ast.Name), f"line {node.lineno}: an unsupported loop")
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
                    UnsupportedInt("a range in a compiled loop has bounds beyond 2**40"),
                )
        start, stop, step = _range_of(e, counts)
        known = e.known(step)
        require(known != 0, "a range with step 0")
        if known is None:
            e.fail_if(e.cmp("eq", step, 0), ValueError("range() arg 3 must not be zero"))
        inner = not any(isinstance(s, (ast.For, ast.While)) for s in ast.walk(node) if s is not node)
        accesses = self._monotone(node) if inner and known is not None else []
        for name in assigned_names([node]):
            self.bounded.pop(self.prefix + name, None)
        first = e.slot("i64")
        e.store(start, first)
        if not accesses:
            self._counted(node, first, stop, step)
            return
        assert known is not None
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
            self._counted(node, first, stop, step)
            e.go(after)
        self.unchecked, e.rare = outer, rare
        e.place(after)

    def _counted(self, node: ast.For, counter: str, stop: Val, step: Val) -> None:
        e = self.code
        assert isinstance(node.target, ast.Name)
        name = self.prefix + node.target.id
        head, inside, again, after = e.block(), e.block(), e.block(), e.block()
        before = set(self.definite or ())
        e.go(head)
        e.place(head)
        now = e.load(counter, dt.i64)
        known = e.known(step)
        if known is None:
            more = e.select(e.cmp("gt", step, 0), e.cmp("lt", now, stop), e.cmp("gt", now, stop))
        else:
            more = e.cmp("lt" if known > 0 else "gt", now, stop)
        e.fork(more, inside, after)
        e.place(inside)
        self.assign(node.target.id, Number(now, PY_INT, SIZE_BITS))
        if node.target.id not in assigned_names(node.body) and self.types[name] == PY_INT:
            self.bounded[name] = SIZE_BITS
        self.trip(node.body, again, after)
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
        changed = set(assigned_names(node.body)) | {node.target.id}
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
        return out if node.target.id not in assigned_names(node.body) else []

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
            rank = len(array.shape)
            require(axis < rank and len(self._items(found)) <= rank, "more subscripts than axes")
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


def _range_of(e: Code, counts: list[Val]) -> tuple[Val, Val, Val]:
    if len(counts) == 1:
        return e.zero, counts[0], e.one
    if len(counts) == 2:
        return counts[0], counts[1], e.one
    require(len(counts) == 3, "a range of something other than numbers")
    return counts[0], counts[1], counts[2]


def _is_sum(node: ast.expr, name: str, changed: set[str]) -> bool:
    """Whether ``node`` is a sum of the variable ``name``, constants and loop-invariant variables."""
    if isinstance(node, ast.Constant):
        return type(node.value) is int
    if isinstance(node, ast.Name):
        return node.id == name or node.id not in changed
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        return _is_sum(node.left, name, changed) and _is_sum(node.right, name, changed)
    return False
