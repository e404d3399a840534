"""The reference interpreter: runs a graph op by op through the table's NumPy references. Kernels are tested against it,
and it is the fallback where a function cannot be compiled.

It ignores groups and segments. 16-bit floats are rounded after every op, where a kernel rounds at casts and stores
only.
"""

from __future__ import annotations

import numpy as np

from mlirfuse.core.errors import ShapeError, UnsupportedError
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import scalars
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.assumptions import Described, failed_assumption
from mlirfuse.ir.builder import Builder
from mlirfuse.ir.effects import writes_in_place
from mlirfuse.ir.graph import Block, Graph, Op, Value, walk
from mlirfuse.ir.ops import map_sizes


def run(graph: Graph, args, sizes: dict[str, int] | None = None) -> list[np.ndarray]:
    """Run ``graph`` on ``args``, one array (0-d for a scalar) for each argument. Returns its results.

    Symbols of the arguments' shapes get their values from the arrays; ``sizes`` has any others. Ops that write in place
    write into the arrays of ``args``; nothing else does. A result with an alias is returned like any other: the caller
    stores it.
    """
    if len(args) != len(graph.args):
        raise TypeError(f"{graph.name} takes {len(graph.args)} arguments, got {len(args)}")
    arrays = [np.asarray(a) for a in args]
    symbols = bind(graph, arrays, sizes)
    written = any(writes_in_place(op) for op in walk(graph.body))
    return _Run(symbols, written).block(graph.body, dict(zip(graph.args, arrays)))


def evaluate(op: Op, operands: list[np.ndarray]) -> list[np.ndarray]:
    """Return the results of one op without symbols on these operands."""
    with np.errstate(all="ignore"):
        return _Run({}, False).op(op, operands, {})


def bind(graph: Graph, arrays, sizes: dict[str, int] | None = None) -> dict[str, int]:
    """Return the values of the symbols in the arguments' shapes. Raises :class:`ShapeError` for an array that does not
    fit its argument."""
    symbols: dict[str, int] = dict(sizes or {})
    for k, (value, array) in enumerate(zip(graph.args, arrays)):
        if value.dtype is not None and dt.of(array.dtype) is not value.dtype:
            raise TypeError(f"argument {k} of {graph.name} is {dt.of(array.dtype)}, it was compiled for {value.dtype}")
        if len(value.shape) != array.ndim:
            raise ShapeError(
                f"argument {k} of {graph.name} has rank {array.ndim}, it was compiled for rank {len(value.shape)}"
            )
        for size, extent in zip(value.shape, array.shape):
            name = sz.reported_by(size)
            if name is not None:
                symbols.setdefault(name, extent)
    for k, (value, array) in enumerate(zip(graph.args, arrays)):
        expected = tuple(sz.substitute(n, symbols) for n in value.shape)
        if expected != array.shape and all(isinstance(n, int) for n in expected):
            raise ShapeError(f"argument {k} of {graph.name} has shape {array.shape}, expected {expected}")
    return symbols


class _Run:
    def __init__(self, symbols: dict[str, int], written: bool):
        self.symbols = symbols
        self.declared = set(symbols)  # by arguments; other symbols belong to results of control flow
        self.written = written  # some op writes in place, so that views have to share memory
        self.known: dict = {}

    def size(self, size) -> int:
        if isinstance(size, int):
            return size
        found = self.known.get(size)
        if found is None:
            found = sz.substitute(size, self.symbols)
            if not isinstance(found, int):
                raise ShapeError(
                    f"size {size} is unknown: no argument's shape has {', '.join(sorted(sz.symbols(found)))}"
                )
            self.known[size] = found
        return found

    def block(self, block: Block, values: dict[Value, np.ndarray]) -> list[np.ndarray]:
        """Run ``block``; ``values``: those of the enclosing blocks and of its arguments."""
        with np.errstate(all="ignore"):
            for op in block.ops:
                values.update(zip(op.results, self.op(op, [values[v] for v in op.operands], values)))
        return [values[v] for v in block.returns]

    def op(self, op: Op, operands: list[np.ndarray], values: dict) -> list:
        row = op.row
        if row.kind == "foreign":
            results = self.foreign(op, operands, values)
            self.learn(op.results, results)
            return results
        if row.ref is None:
            out = self.composite(op, row, operands)
        else:
            attrs = map_sizes(row.attr_types, {key: op.attrs[key] for key in row.attrs}, self.size)
            if writes_in_place(op) and not operands[0].flags.writeable:
                raise UnsupportedError(
                    f"{_location_prefix(op)}{op.name} writes into an array that is read-only, or whose elements overlap"
                )
            try:
                result = row.ref(*operands, **attrs)
            except ValueError as error:  # NumPy's error for incompatible shapes
                raise ShapeError(f"{_location_prefix(op)}{op.name} of {_shapes(operands)}: {error}") from error
            out = list(result) if row.several else [result]
        out = [np.asarray(a).astype(v.dtype.numpy, copy=False) for a, v in zip(out, op.results)]
        for value, array in zip(op.results, out):
            expected = tuple(map(self.size, value.shape))
            if array.shape != expected:  # NumPy broadcasts an extent of 1 that the program assumes to equal another
                raise ShapeError(
                    f"{_location_prefix(op)}{op.name} of {_shapes(operands)} gives {array.shape}, "
                    f"the program was compiled for {expected}"
                )
        if "inplace" in op.attrs:
            operands[0][...] = out[0]
            return operands[:1]
        if self.written and row.view and any(a.size and not np.may_share_memory(a, operands[0]) for a in out):
            raise UnsupportedError(
                f"{op.name} of an array with strides {operands[0].strides} is no view: copy it before writing into it"
            )
        return out

    def learn(self, values: list[Value], arrays) -> None:
        """Bind symbols that only the result of control flow defines, again at each execution."""
        for value, array in zip(values, arrays):
            for size, extent in zip(value.shape, np.shape(array)):
                if (
                    isinstance(size, sz.Expr)
                    and size.is_symbol
                    and str(size) not in self.declared
                    and self.symbols.get(str(size)) != extent
                ):
                    self.symbols[str(size)] = extent
                    self.known.clear()

    def composite(self, op: Op, row, operands) -> list:
        inner = Block([Value(v.dtype, v.shape) for v in op.operands])
        results = row.expand(Builder(inner), *inner.args, **{key: op.attrs[key] for key in row.attrs})
        inner.returns = results if isinstance(results, list) else [results]
        return self.block(inner, dict(zip(inner.args, operands)))

    def foreign(self, op: Op, operands, values) -> list:
        """Run control flow, and the few scalar ops that it needs. Numbers are Python's."""
        if op.name == "scf.if":
            branch = op.blocks[0] if operands[0] else op.blocks[1] if len(op.blocks) > 1 else Block()
            return self.block(branch, dict(values))
        if op.name == "scf.for":
            carried = operands[3:]
            for k in range(int(operands[0]), int(operands[1]), int(operands[2])):
                self.learn(op.blocks[0].args, [k, *carried])
                carried = self.block(op.blocks[0], dict(values) | dict(zip(op.blocks[0].args, [k, *carried])))
            return carried
        if op.name == "scf.while":
            before, after = op.blocks
            carried = operands
            while True:
                self.learn(before.args, carried)
                condition, *carried = self.block(before, dict(values) | dict(zip(before.args, carried)))
                if not condition:
                    return carried
                self.learn(after.args, carried)
                carried = self.block(after, dict(values) | dict(zip(after.args, carried)))
        if op.name == "foreach":
            return self.foreach(op, operands)
        if op.name == "guard":
            return [failed_assumption(op, list(map(Described.of, operands)), self.symbols) is None]
        if op.name in scalars.OPS:
            return [scalars.function(op)(*operands)]
        raise UnsupportedError(f"the interpreter does not know '{op.name}'")

    def foreach(self, op: Op, operands) -> list:
        """Return each member's results, in the shapes of the op's results."""
        (block,) = op.blocks
        out = []
        for k in range(op.attrs["members"]):
            given = operands[k * len(block.args) : (k + 1) * len(block.args)]
            lines = [a.reshape(-1) if v.shape else a for v, a in zip(block.args, given)]
            self.learn(block.args, lines)
            out += self.block(block, dict(zip(block.args, lines)))
        return [a.reshape(tuple(map(self.size, v.shape))) for v, a in zip(op.results, out)]


def _location_prefix(op: Op) -> str:
    return f"{op.loc[0]}:{op.loc[1]}: " if op.loc else ""


def _shapes(arrays) -> str:
    return ", ".join(str(np.shape(a)) for a in arrays)
