"""Writes the text of one function on tensors: its lines and sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import contextmanager
from dataclasses import dataclass

from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import ops as table
from mlirfuse.ir.dtypes import DType
from mlirfuse.ir.graph import Op
from mlirfuse.ir.sizes import Size
from mlirfuse.lowering.emitter import Emitter, Val

I64 = dt.i64


@dataclass(frozen=True, slots=True)
class Dim:
    """The index along a dimension of the current body's iteration space."""

    number: int


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor: its SSA name, element type, and extents. ``dims``: the dimensions of its value that it has; the others
    are 1."""

    name: str
    dtype: DType
    shape: tuple[Size, ...]
    dims: tuple[int, ...]

    @property
    def type(self) -> str:
        return type_of(self.shape, self.dtype)


def type_of(shape, dtype: DType) -> str:
    """The MLIR type below the fusion level, where integers are signless."""
    return f"tensor<{''.join(f'{n}x' if isinstance(n, int) else '?x' for n in shape)}{dtype.signless}>"


# An index along one dimension of a value: 0 along an extent of 1, a dimension of the iteration space, or an i64
# computed in the body.
Index = int | Dim | Val


class Body:
    """The region of a generic under construction: the tensors that it reads, by indexing map, and memoized values."""

    def __init__(self, extents):
        self.extents = tuple(extents)
        self.operands: dict[tuple[Tensor, tuple[Index, ...]], Val] = {}
        self.memo: dict[object, Val] = {}


class Writer:
    """Writes the body of one ``func.func``. ``symbol`` returns the ``index`` value of a size symbol."""

    def __init__(self, symbol: Callable[[str], str], on_device: bool):
        # Uses arith and math instead of target-specific instructions; but on a device no math, which MLIR's conversion
        # for GPUs lowers to calls of a library that is not available.
        self.e = Emitter("gpu" if on_device else "linalg")
        self.symbol = symbol
        self.body: Body | None = None
        self.outer: list[str] = self.e.lines
        self.indices: dict[object, str] = {}

    # ---- lines

    @contextmanager
    def outside(self):
        """Lines emitted in this context precede the op whose region is being written."""
        lines, body, depth = self.e.lines, self.body, self.e.depth
        self.e.lines, self.body, self.e.depth = self.outer, None, 1
        yield
        self.e.lines, self.body, self.e.depth = lines, body, depth

    def emit(self, text: str) -> str:
        name = self.e.fresh()
        self.e.line(f"{name} = {text}")
        return name

    def index(self, size: Size) -> str:
        """A size as an ``index`` value of the function."""
        found = self.indices.get(size)
        if found is None:
            with self.outside():
                found = self.indices[size] = self._index(size)
        return found

    def _index(self, size: Size) -> str:
        if isinstance(size, int):
            name = self.e.fresh()
            self.e.entry.append(f"  {name} = arith.constant {size} : index")
            return name
        total: str | None = None
        for factors, coefficient in size.terms:
            product: str | None = None if coefficient == 1 and factors else self.index(coefficient)
            for atom in factors:
                factor = self._atom(atom)
                product = factor if product is None else self.emit(f"arith.muli {product}, {factor} : index")
            total = product if total is None else self.emit(f"arith.addi {total}, {product} : index")
        assert total is not None  # 0 is an int
        return total

    def _atom(self, atom) -> str:
        if atom.op == "sym":
            return self.symbol(atom.args[0])
        a, b = (self.index(x) for x in atom.args)
        if atom.op == "mod":
            quotient = self.emit(f"arith.floordivsi {a}, {b} : index")
            product = self.emit(f"arith.muli {quotient}, {b} : index")
            return self.emit(f"arith.subi {a}, {product} : index")
        name = {"floordiv": "floordivsi", "max": "maxsi", "min": "minsi"}[atom.op]
        return self.emit(f"arith.{name} {a}, {b} : index")

    def size(self, size: Size) -> Val:
        """A size as an i64."""
        if isinstance(size, int):
            return self.e.const(size, I64)
        key = ("i64", size)
        if key not in self.indices:
            index = self.index(size)
            with self.outside():
                self.indices[key] = self.emit(f"arith.index_cast {index} : index to i64")
        return Val(self.indices[key], I64)

    def serialized(self, sizes: Iterable[Size]) -> str:
        """Sizes as operands of ``tensor`` ops: numbers if they are constant, else values."""
        return ", ".join(str(n) if isinstance(n, int) else self.index(n) for n in sizes)

    def dynamic(self, shape) -> list[str]:
        return [self.index(n) for n in shape if not isinstance(n, int)]

    def empty(self, shape, dtype: DType) -> str:
        with self.outside():
            return self.emit(f"tensor.empty({', '.join(self.dynamic(shape))}) : {type_of(shape, dtype)}")


def kind_of(op: Op | None) -> str:
    return op.row.kind if op is not None and op.name in table.TABLE else ""
