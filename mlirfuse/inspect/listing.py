"""Ops as text, one line each, with names and the user's Python line. Used by dumps and explanations."""

from __future__ import annotations

import linecache
import os
from collections import Counter
from collections.abc import Iterable

import numpy as np

from mlirfuse.core import notebook
from mlirfuse.core.errors import place as place_of_line
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Graph, Op, Value


class Names:
    """A name for each value of a graph: its own, ``arg3``, or ``t0``, ``t1`` … in program order. ``env``: values of the
    size symbols."""

    def __init__(self, graph: Graph, env: dict[str, int] | None = None):
        self.graph = graph
        self.env = env or {}
        self._names: dict[Value, str] = {}
        self._taken: set[str] = set()
        self._count = 0
        for k, value in enumerate(graph.args):
            self._names[value] = self._free(value.name if value.name and value.name.isidentifier() else f"arg{k}")
        for op in graph.ops:
            for value in op.results:
                self.of(value)

    def _free(self, name: str) -> str:
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name

    def of(self, value: Value) -> str:
        """Return the name of ``value``; a scalar constant or a size is written out."""
        found = self._names.get(value)
        if found is None:
            op = value.op
            if op is not None and is_literal(op):
                found = self._literal(op)
            else:
                found = self._free(f"t{self._count}")
                self._count += 1
            self._names[value] = found
        return found

    def _literal(self, op: Op) -> str:
        if op.name == "constant":
            return literal(op.attrs["value"])
        if op.name == "size":
            return str(sz.substitute(op.attrs["value"], self.env))
        return self.of(op.operands[0])

    def type(self, value: Value) -> str:
        """Return ``f32[64, 256]``; for a scalar ``f32``."""
        if value.dtype is None:
            return value.type
        shape = ", ".join(str(sz.substitute(n, self.env)) for n in value.shape)
        return f"{value.dtype}[{shape}]" if value.shape else str(value.dtype)

    def expression(self, op: Op) -> str:
        """Return ``sum(x, axes=[1])``."""
        words = [self.of(v) for v in op.operands]
        for key, value in op.attrs.items():
            if value is None or value is False or key in ("dtype", "note"):
                continue
            words.append(f"{key}={self._attribute(value)}")
        return f"{op.name}({', '.join(words)})"

    def _attribute(self, value) -> str:
        if isinstance(value, (tuple, list)):
            return "[" + ", ".join(self._attribute(v) for v in value) + "]"
        if isinstance(value, sz.Expr):
            return str(sz.substitute(value, self.env))
        return str(value) if isinstance(value, (dt.DType, int, np.generic)) else repr(value)

    def statement(self, op: Op) -> str:
        """Return ``t3 = sum(x, axes=[1])``."""
        return f"{', '.join(self.of(v) for v in op.results)} = {self.expression(op)}"


def is_literal(op: Op) -> bool:
    """Whether :class:`Names` writes the op out at its uses: a number, a size, either with a cast."""
    if len(op.results) != 1 or op.result.shape:
        return False
    if op.name == "cast":
        return op.operands[0].op is not None and is_literal(op.operands[0].op)
    return op.row.literal


def literal(value) -> str:
    """Return the shortest text of a number that is unique for its type."""
    return repr(value.item()) if isinstance(value, np.generic) and value.dtype.itemsize >= 8 else str(value)


def place(loc: tuple[str, int] | None) -> str:
    """Return ``norms.py:12``, ``Cell In[5], line 3`` in a notebook, or "" if unknown."""
    if loc is None:
        return ""
    return place_of_line(*loc) if notebook.cell(loc[0]) else place_of_line(os.path.basename(loc[0]), loc[1])


def source(loc: tuple[str, int] | None) -> str:
    """Return the source line, if its file can be read."""
    return linecache.getline(*loc).strip() if loc else ""


def statements(ops: list[Op], names: Names, indent: str = "  ") -> str:
    """Format the ops that are not literals, a line each: statement, type, Python line, and its text where it differs
    from that of the op before."""
    rows, last = [], None
    for op in ops:
        if is_literal(op):
            continue
        text = source(op.loc) if op.loc != last else ""
        last = op.loc
        rows.append((names.statement(op), ", ".join(names.type(v) for v in op.results), place(op.loc), text))
    return table(rows, indent)


def table(rows, indent: str = "", headings=()) -> str:
    """Format rows of text in columns, a line each."""
    rows = [tuple(map(str, row)) for row in ([headings] if headings else []) + list(rows)]
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "".join(indent + "  ".join(cell.ljust(w) for cell, w in zip(row, widths)).rstrip() + "\n" for row in rows)


def bytes_text(count: float) -> str:
    """Return ``3.2 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    raise AssertionError


def counted(names: Iterable[str]) -> str:
    """``add, 2 × mul``."""
    return ", ".join(f"{n} × {name}" if n > 1 else name for name, n in Counter(names).items())
