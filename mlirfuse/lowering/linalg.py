"""Segments as ``linalg`` on tensors: what a segment computes, spelled in MLIR's own dialects.

Each segment becomes a function of its own, ``@f_segment0``, and the function calls them in order. In a segment

- a chain of elementwise ops is one ``linalg.generic`` over the dimensions of its result, whose body is made by the op table's ``emit``,
  as in a kernel; views that only rename dimensions (permute, broadcast, squeeze, expand_dims) are its indexing maps;
- a reduction is a ``linalg.generic`` with reduction iterators, its accumulator begun by ``linalg.fill``;
- a reshape is ``tensor.collapse_shape`` and ``expand_shape``, a slice ``tensor.extract_slice``, a concatenation ``tensor.insert_slice`` for each
  operand, padding ``tensor.pad``; what needs an index computed from data, or a step backwards, reads by ``tensor.extract`` in a body.

Values between the generics of one segment are kept in their compute type: half types are rounded at casts and results
only, as in kernels. Sizes are ``index`` values, from ``tensor.dim`` of the arguments. Library ops are calls of private
functions, named for the op.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass

from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import graph as gr
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.dtypes import DType
from mlirfuse.ir.effects import writes_in_place
from mlirfuse.ir.graph import Graph, Op, Segment, Value
from mlirfuse.ir.ops import table
from mlirfuse.ir.sizes import Size
from mlirfuse.lowering import math as m
from mlirfuse.lowering import reductions as red
from mlirfuse.lowering.emitter import Emitter, Val
from mlirfuse.lowering.kernel import Kernel
from mlirfuse.passes.base import PassError

I64 = dt.i64


def to_linalg(graphs: list[Graph], kept=()):
    """The MLIR module of segmented graphs (ops outside of segments are lowered in place); ``kept``: the text of what
    else it holds.

    Raises :class:`PassError` for what has no meaning on tensors: writes in place, control flow, composite ops that were
    not taken apart.
    """
    from mlirfuse.core import mlir

    return mlir.parse("module {\n" + "\n".join([*kept, *(_Program(graph).text() for graph in graphs)]) + "\n}\n")


@dataclass(frozen=True, slots=True)
class Dim:
    """The index along a dimension of the iteration space of the body that is being written."""

    number: int


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor that exists: its SSA name, element type, and extents. ``dims``: which dimensions of its value it has;
    the others are 1."""

    name: str
    dtype: DType
    shape: tuple[Size, ...]
    dims: tuple[int, ...]

    @property
    def type(self) -> str:
        return type_of(self.shape, self.dtype)


def type_of(shape, dtype: DType) -> str:
    """MLIR's type below the fusion level, where integers carry no sign."""
    return f"tensor<{''.join(f'{n}x' if isinstance(n, int) else '?x' for n in shape)}{dtype.signless}>"


# An index along one dimension of a value: 0 along an extent of 1, a dimension of the iteration space, or an i64
# computed in the body.
Index = int | Dim | Val

RENAMING = {"broadcast_in_dim", "permute", "squeeze", "expand_dims"}
IN_BODIES = RENAMING | {
    "full",
    "iota",
    "constant",
    "size",
    "extent",
    "dtype_of",
    "take",
    "take_along_axis",
    "uniform",
    "normal",
}


class _Body:
    """The region of a generic in the making: which tensors it reads through which maps, and what has been computed in
    it."""

    def __init__(self, extents):
        self.extents = tuple(extents)
        self.operands: dict[tuple[Tensor, tuple[Index, ...]], Val] = {}
        self.memo: dict[object, Val] = {}


class _Function:
    """Writes the body of one ``func.func``. ``symbol`` gives the ``index`` value of a size symbol."""

    def __init__(self, members: list[Op], symbol):
        self.e = Emitter("linalg")  # neither a CPU's nor a GPU's instructions: plain arith and math
        self.symbol = symbol
        self.tensors: dict[Value, Tensor] = {}
        self.body: _Body | None = None
        self.outer: list[str] = self.e.lines
        self.scalars: dict[Value, Val] = {}
        self.indices: dict[object, str] = {}
        self.stored: set[Value] = _stored(members)
        self.inside = set(members)

    # ---- places

    @contextmanager
    def outside(self):
        """What is emitted in here stands before the op whose region is being written."""
        lines, body, depth = self.e.lines, self.body, self.e.depth
        self.e.lines, self.body, self.e.depth = self.outer, None, 1
        yield
        self.e.lines, self.body, self.e.depth = lines, body, depth

    def emit(self, text: str) -> str:
        name = self.e.fresh()
        self.e.line(f"{name} = {text}")
        return name

    # ---- sizes

    def index(self, size: Size) -> str:
        """A size as an ``index`` value of the function."""
        found = self.indices.get(size)
        if found is None:
            with self.outside():
                found = self.indices[size] = self._index(size)
        return found

    def _index(self, size: Size) -> str:
        if isinstance(size, int):
            name = f"%i{len(self.indices)}"
            self.e.entry.append(f"  {name} = arith.constant {size} : index")
            return name
        total = None
        for factors, coefficient in size.terms:
            product = None if coefficient == 1 and factors else self.index(coefficient)
            for atom in factors:
                factor = self._atom(atom)
                product = factor if product is None else self.emit(f"arith.muli {product}, {factor} : index")
            total = product if total is None else self.emit(f"arith.addi {total}, {product} : index")
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
        """A size as an i64 to compute with."""
        if isinstance(size, int):
            return self.e.const(size, I64)
        key = ("i64", size)
        if key not in self.indices:
            index = self.index(size)
            with self.outside():
                self.indices[key] = self.emit(f"arith.index_cast {index} : index to i64")
        return Val(self.indices[key], I64)

    def dynamic(self, shape) -> list[str]:
        return [self.index(n) for n in shape if not isinstance(n, int)]

    def empty(self, shape, dtype: DType) -> str:
        with self.outside():
            return self.emit(f"tensor.empty({', '.join(self.dynamic(shape))}) : {type_of(shape, dtype)}")

    # ---- tensors

    def tensor(self, value: Value) -> Tensor:
        """``value`` as a tensor that exists, made now if it does not."""
        found = self.tensors.get(value)
        if found is None:
            with self.outside():
                found = self.tensors[value] = self._make(value)
        return found

    def _make(self, value: Value) -> Tensor:
        op = value.op
        if self._in_body(value):
            return self.generic(value, value.dtype.compute)
        if _kind(op) == "reduce":
            return self._reduction(op)
        if op.name == "slice":
            return self._slice(self.full(op.operands[0]), op.attrs["start"], value.shape, op.attrs["step"])
        if op.name == "split":
            return self._split(op, value)
        return {
            "partial_sum": self._partial_sum,
            "reshape": self._reshape,
            "concatenate": self._concatenate,
            "pad": self._pad,
        }[op.name](op)

    def full(self, value: Value, dtype: DType | None = None) -> Tensor:
        """``value`` as a tensor of all of its dimensions, of ``dtype`` if that is given."""
        if dtype is not None and value.rank and value not in self.tensors and self._in_body(value):
            return self.generic(value, dtype)
        if value.rank == 0 and value not in self.tensors and self._in_body(value):
            scalar = self.scalar(value)
            with self.outside():
                scalar = self.e.cast(scalar, dtype or value.dtype.compute)
                made = self.emit(f"tensor.from_elements {scalar} : {type_of((), scalar.dtype)}")
            return Tensor(made, scalar.dtype, (), ())
        tensor = self.tensor(value)
        if dtype is not None and tensor.dtype is not dtype:
            return self.generic(value, dtype)
        if len(tensor.dims) < value.rank:
            groups, at = [], 0
            for number, dim in enumerate(tensor.dims):
                last = value.rank if number == len(tensor.dims) - 1 else dim + 1
                groups.append(list(range(at, last)))
                at = last
            tensor = self._expand(tensor, groups, value.shape)
        return tensor

    def _expand(self, tensor: Tensor, groups, shape) -> Tensor:
        sizes = ", ".join(str(n) if isinstance(n, int) else self.index(n) for n in shape)
        with self.outside():
            to = type_of(shape, tensor.dtype)
            made = self.emit(
                f"tensor.expand_shape {tensor.name} {groups} output_shape [{sizes}] : {tensor.type} into {to}"
            )
        return Tensor(made, tensor.dtype, tuple(shape), tuple(range(len(shape))))

    def _in_body(self, value: Value) -> bool:
        """Whether ``value`` is computed in the body of what uses it, or of a generic of its own."""
        op = value.op
        if op is None or op not in self.inside:
            return False
        if op.name in IN_BODIES or _kind(op) == "elementwise":
            return True
        if _kind(op) == "reduce":
            return not _reduces(op)
        if op.name == "slice":
            return any(step < 0 for step in op.attrs["step"]) or not value.rank
        if op.name == "pad":
            return not _only_adds(op)
        return op.name == "reshape" and _renaming_reshape(op.operands[0].shape, value.shape) is not None

    def _slice(self, source: Tensor, start, shape, step) -> Tensor:
        lists = []
        for sizes in (start, shape, step):
            lists.append("[" + ", ".join(str(n) if isinstance(n, int) else self.index(n) for n in sizes) + "]")
        made = self.emit(
            f"tensor.extract_slice {source.name}{''.join(lists)} : {source.type} to {type_of(shape, source.dtype)}"
        )
        return Tensor(made, source.dtype, tuple(shape), tuple(range(len(shape))))

    def _split(self, op: Op, value: Value) -> Tensor:
        axis, rank = op.attrs["axis"], value.rank
        start: list[Size] = [0] * rank
        for result, size in zip(op.results, op.attrs["sizes"]):
            if result is value:
                break
            start[axis] = start[axis] + size
        return self._slice(self.full(op.operands[0]), start, value.shape, (1,) * rank)

    def _concatenate(self, op: Op) -> Tensor:
        value, axis = op.result, op.attrs["axis"]
        sources = [self.full(v) for v in op.operands]
        dtype = sources[0].dtype
        if any(s.dtype is not dtype for s in sources):
            dtype = value.dtype.compute
            sources = [self.full(v, dtype) for v in op.operands]
        made = self.empty(value.shape, dtype)
        offsets: list[Size] = [0] * value.rank
        for source in sources:
            starts = ", ".join(str(n) if isinstance(n, int) else self.index(n) for n in offsets)
            sizes = ", ".join(str(n) if isinstance(n, int) else self.index(n) for n in source.shape)
            ones = ", ".join("1" for _ in offsets)
            made = self.emit(
                f"tensor.insert_slice {source.name} into {made}[{starts}] [{sizes}] [{ones}] : {source.type} into {type_of(value.shape, dtype)}"
            )
            offsets[axis] = offsets[axis] + source.shape[axis]
        return Tensor(made, dtype, value.shape, tuple(range(value.rank)))

    def _pad(self, op: Op) -> Tensor:
        value = op.result
        source, fill = self.full(op.operands[0]), self.scalar(op.operands[1])
        with self.outside():
            fill = self.e.cast(fill, source.dtype)
        low, high = (", ".join(map(str, op.attrs[key])) for key in ("low", "high"))
        names = ", ".join(f"{self.e.fresh()}: index" for _ in value.shape)
        made = self.e.fresh()
        self.e.line(f"{made} = tensor.pad {source.name} low[{low}] high[{high}] {{")
        self.e.line(f"^bb0({names}):")
        self.e.line(f"  tensor.yield {fill} : {fill.type}")
        self.e.line(f"}} : {source.type} to {type_of(value.shape, source.dtype)}")
        return Tensor(made, source.dtype, value.shape, tuple(range(value.rank)))

    def _reshape(self, op: Op) -> Tensor:
        """Runs of dimensions with one number of elements are collapsed and expanded again."""
        source, shape = self.full(op.operands[0]), op.result.shape
        runs = _runs(source.shape, shape)
        given = source.type
        if len(runs) < len(source.shape):
            extents = [[source.shape[d] for d in old] for old, _ in runs]
            collapsed = [sz.product(run) if all(isinstance(n, int) for n in run) else "?" for run in extents]
            given = type_of(collapsed, source.dtype)
            name = self.emit(
                f"tensor.collapse_shape {source.name} {[old for old, _ in runs]} : {source.type} into {given}"
            )
            source = Tensor(name, source.dtype, tuple(map(sz.product, extents)), tuple(range(len(runs))))
        source = self._cast_type(source, given, [sz.product(shape[d] for d in new) for _, new in runs])
        return self._expand(source, [new for _, new in runs], shape) if len(runs) < len(shape) else source

    def _cast_type(self, tensor: Tensor, given: str, wanted) -> Tensor:
        """``tensor``, whose type is ``given``, with the ``wanted`` extents: one may be known where the other is a
        symbol."""
        to = type_of(wanted, tensor.dtype)
        name = tensor.name if to == given else self.emit(f"tensor.cast {tensor.name} : {given} to {to}")
        return Tensor(name, tensor.dtype, tuple(wanted), tensor.dims)

    # ---- generics

    def generic(self, value: Value, dtype: DType) -> Tensor:
        """A generic over the dimensions of ``value`` that gives it as ``dtype``: read where it is a tensor, else
        computed."""
        body, at = _Body(value.shape), tuple(Dim(k) for k in range(value.rank))
        with self._writing(body) as lines:
            known = value in self.tensors or not self._in_body(value)
            val = self._read(self.tensor(value), at, value) if known else self._compute(value, at)
            val = self.e.cast(val, dtype)
        (name,) = self._write(
            body, lines, [self.empty(value.shape, dtype)], at, [dtype], [val], [], value.op, "parallel"
        )
        return Tensor(name, dtype, value.shape, tuple(range(value.rank)))

    @contextmanager
    def _writing(self, body: _Body):
        """What is emitted in here goes to the region of ``body``."""
        lines: list[str] = []
        saved = self.e.lines, self.e.depth, self.body
        self.e.lines, self.e.depth, self.body = lines, 2, body
        yield lines
        self.e.lines, self.e.depth, self.body = saved

    def _write(
        self, body: _Body, lines, outs, out_map, dtypes, yielded, accumulators, op: Op | None, kinds
    ) -> list[str]:
        """The op itself; gives the names of its results. ``kinds``: the iterators' types, or one for all of them."""
        rank = len(body.extents)
        kinds = [kinds] * rank if isinstance(kinds, str) else kinds
        with self.outside():
            covered = {i.number for _, at in body.operands for i in at if isinstance(i, Dim)} | {
                i.number for i in out_map
            }
            for number in (
                set(range(rank)) - covered
            ):  # a dimension that no tensor has: an empty one says how long it is
                extent = body.extents[number]
                shape_only = Tensor(self.empty((extent,), dt.bool_), dt.bool_, (extent,), (0,))
                body.operands[shape_only, (Dim(number),)] = Val(self.e.fresh(), dt.bool_)
            space = ", ".join(f"d{k}" for k in range(rank))
            maps = [at for _, at in body.operands] + [out_map] * len(outs)
            spelled = ", ".join(
                f"affine_map<({space}) -> ({', '.join(f'd{i.number}' if isinstance(i, Dim) else str(i) for i in at)})>"
                for at in maps
            )
            iterators = ", ".join(f'"{kind}"' for kind in kinds)
            ins = ""
            if body.operands:
                names, types = ", ".join(t.name for t, _ in body.operands), ", ".join(t.type for t, _ in body.operands)
                ins = f" ins({names} : {types})"
            shape = [body.extents[i.number] for i in out_map]
            types = [type_of(shape, d) for d in dtypes]
            blocks = [f"{v.name}: {v.type}" for v in body.operands.values()]
            blocks += (
                [f"{v.name}: {v.type}" for v in accumulators]
                if accumulators
                else [f"{self.e.fresh()}: {d.signless}" for d in dtypes]
            )
            name = self.e.fresh()
            many = f"{name}:{len(outs)}" if len(outs) > 1 else name
            attributes = f"indexing_maps = [{spelled}], iterator_types = [{iterators}]"
            self.e.line(
                f"{many} = linalg.generic {{{attributes}}}{ins} outs({', '.join(outs)} : {', '.join(types)}) {{"
            )
            self.e.line(f"^bb0({', '.join(blocks)}):")
            self.e.lines += lines
            self.e.line(f"  linalg.yield {', '.join(v.name for v in yielded)} : {', '.join(v.type for v in yielded)}")
            result = types[0] if len(types) == 1 else f"({', '.join(types)})"
            where = f' loc("{op.loc[0]}":{op.loc[1]}:0)' if op is not None and op.loc else ""
            self.e.line(f"}} -> {result}{where}")
        return [name] if len(outs) == 1 else [f"{name}#{k}" for k in range(len(outs))]

    def _filled(self, op: Op, shape) -> tuple[list[str], list[DType]]:
        """Tensors of the accumulator's parts, each begun with the reduction's identity."""
        outs, dtypes = [], red.accumulator_types(op)
        for start in red.identity(self.e, op, 1):
            empty, to = self.empty(shape, start.dtype), type_of(shape, start.dtype)
            with self.outside():
                outs.append(self.emit(f"linalg.fill ins({start} : {start.type}) outs({empty} : {to}) -> {to}"))
        return outs, dtypes

    def _reduction(self, op: Op) -> Tensor:
        source = op.operands[0]
        axes = set(table.axes_of(op.attrs, source.rank))
        kept = [d for d in range(source.rank) if d not in axes]
        return self._reduce(op, source.shape, kept, lambda: self.value(source, tuple(Dim(k) for k in range(source.rank))),
                            tuple(kept) if op.attrs.get("keepdims") else tuple(range(len(kept))))  # fmt: skip

    def _reduce(self, op: Op, extents, kept: list[int], element, dims) -> Tensor:
        """Reduces ``element()`` over the dimensions of ``extents`` that are not ``kept``."""
        shape = tuple(extents[d] for d in kept)
        outs, dtypes = self._filled(op, shape)
        body = _Body(extents)
        state = tuple(Val(self.e.fresh(), d) for d in dtypes)
        with self._writing(body) as lines:
            new = red.element(
                self.e, op, element(), self._position(op, [d for d in range(len(extents)) if d not in kept])
            )
            combined = red.combine(self.e, op, state, new)
        kinds = ["parallel" if d in kept else "reduction" for d in range(len(extents))]
        names = self._write(body, lines, outs, tuple(Dim(d) for d in kept), dtypes, combined, state, op, kinds)
        result = red.result(self.e, op, tuple(Val(n, d) for n, d in zip(names, dtypes)))
        return Tensor(result.name, result.dtype, shape, dims)

    def _position(self, op: Op, reduced: list[int]) -> Val | None:
        """The place along the reduced dimensions, row-major, for argmax and argmin."""
        if op.name not in ("argmax", "argmin"):
            return None
        return self._linear([Dim(d) for d in reduced], [op.operands[0].shape[d] for d in reduced])

    def _partial_sum(self, op: Op) -> Tensor:
        """Part p has every parts-th row from row p on: loops over parts, rows of a part, and what is kept."""
        source = op.operands[0]
        axes = table.axes_of(op.attrs, source.rank)
        kept = [d for d in range(source.rank) if d not in axes]
        rows, parts = sz.product(source.shape[d] for d in axes), op.attrs["parts"]
        extents = (parts, sz.ceildiv(rows, parts), *(source.shape[d] for d in kept))

        def element() -> Val:
            e = self.e
            row = e.add(e.mul(self._i64(Dim(1)), parts), self._i64(Dim(0)))
            inside = e.cmp("lt", row, self.size(rows))
            at: list[Index] = [0] * source.rank
            self._spread([source.shape[d] for d in axes], e.min(row, self.size(rows - 1)), axes, at)
            for number, d in enumerate(kept):
                at[d] = Dim(number + 2)
            return e.select(inside, self.value(source, tuple(at)), 0)

        as_sum = Op(
            "sum", op.operands, {"axes": axes, "keepdims": False}, [Value(op.result.dtype, op.result.shape)], loc=op.loc
        )
        return self._reduce(as_sum, extents, [0, *range(2, len(extents))], element, tuple(range(op.result.rank)))

    # ---- values at an index

    def value(self, value: Value, index: tuple[Index, ...]) -> Val:
        """The element of ``value`` at ``index``, in its compute type."""
        if value.rank == 0:
            return self.scalar(value)
        memo = self.body.memo if self.body is not None else {}
        key = value, index
        if key not in memo:
            memo[key] = self._value(value, index)
        return memo[key]

    def scalar(self, value: Value) -> Val:
        """A 0-d value, computed in the function."""
        found = self.scalars.get(value)
        if found is None:
            with self.outside():
                if value in self.tensors or not self._in_body(value):
                    found = self._read(self.tensor(value), (), value)
                else:
                    found = self._compute(value, ())
            self.scalars[value] = found
        return found

    def _value(self, value: Value, index) -> Val:
        if value in self.tensors or value in self.stored or not self._in_body(value):
            return self._read(self.tensor(value), index, value)
        return self._compute(value, index)

    def _read(self, tensor: Tensor, index, value: Value) -> Val:
        e = self.e
        at = tuple(index[d] for d in tensor.dims)
        if self.body is not None and not any(isinstance(i, Val) for i in at):
            key = tensor, at
            if key not in self.body.operands:
                self.body.operands[key] = Val(e.fresh(), tensor.dtype)
            val = self.body.operands[key]
        else:
            places = ", ".join(self._as_index(i) for i in at)
            val = e.op(f"tensor.extract {tensor.name}[{places}] : {tensor.type}", tensor.dtype)
        return e.cast(val, value.dtype.compute)

    def _as_index(self, i: Index) -> str:
        if isinstance(i, int):
            return self.index(i)
        if isinstance(i, Dim):
            key = ("index", i)
            if key not in self.body.memo:
                self.body.memo[key] = Val(self.emit(f"linalg.index {i.number} : index"), I64)
            return self.body.memo[key].name
        return self.emit(f"arith.index_cast {i} : i64 to index")

    def _i64(self, i: Index) -> Val:
        """An index as an i64 to compute with."""
        if isinstance(i, Val):
            return i
        if isinstance(i, int):
            return self.e.const(i, I64)
        key = ("i64", i)
        if key not in self.body.memo:
            name = self._as_index(i)
            self.body.memo[key] = Val(self.emit(f"arith.index_cast {name} : index to i64"), I64)
        return self.body.memo[key]

    def _linear(self, index, extents) -> Val:
        """The row-major position of ``index``."""
        out = self.e.const(0, I64)
        for k, (i, n) in enumerate(zip(index, extents)):
            out = self.e.add(self.e.mul(out, self.size(n)), self._i64(i)) if k else self._i64(i)
        return out

    def _spread(self, extents, linear: Val, places, at: list[Index]) -> None:
        """Sets ``at[place]`` for each of ``places`` from a row-major position."""
        e = self.e
        for k in range(len(places) - 1, -1, -1):
            if k == 0:
                at[places[0]] = linear
            elif extents[k] != 1:
                n = self.size(extents[k])
                quotient = e.div(linear, n)
                at[places[k]] = e.sub(linear, e.mul(quotient, n))
                linear = quotient

    def _compute(self, value: Value, index) -> Val:
        op = value.op
        if value.dtype.kind == "c":
            raise PassError(f"fusion-to-linalg: {op.name} of complex values is not lowered", op.loc)
        rule = getattr(self, f"_at_{op.name}", None)
        if rule is not None:
            return rule(op, index)
        if _kind(op) == "reduce":  # over extents of 1 only
            return self._reduce_of_one(op, index)
        vals = [self.value(v, tuple(0 if n == 1 else i for n, i in zip(v.shape, index))) for v in op.operands]
        return table.TABLE[op.name].emit(self.e, *vals)

    def _reduce_of_one(self, op: Op, index) -> Val:
        source = op.operands[0]
        axes = table.axes_of(op.attrs, source.rank)
        rest = iter(index)
        at = tuple(
            (next(rest) if op.attrs.get("keepdims") else 0) if d in axes else next(rest) for d in range(source.rank)
        )
        at = tuple(0 if n == 1 else i for n, i in zip(source.shape, at))
        new = red.element(self.e, op, self.value(source, at), self.e.const(0, I64))
        return red.result(self.e, op, red.combine(self.e, op, red.identity(self.e, op, 1), new))

    def _at_cast(self, op: Op, index) -> Val:
        val, to = self.value(op.operands[0], index), op.attrs["to"]
        return self.e.cast(self.e.cast(val, to), to.compute)

    def _at_constant(self, op: Op, index) -> Val:
        return self.e.const(op.attrs["value"], op.attrs["dtype"].compute)

    def _at_size(self, op: Op, index) -> Val:
        return self.size(op.attrs["value"])

    def _at_extent(self, op: Op, index) -> Val:
        return self.size(op.operands[0].shape[op.attrs["axis"]])

    def _at_dtype_of(self, op: Op, index) -> Val:
        return self.e.const(dt.ALL.index(op.operands[0].dtype), I64)

    def _at_full(self, op: Op, index) -> Val:
        return self.value(op.operands[0], ())

    def _at_iota(self, op: Op, index) -> Val:
        dtype = op.attrs["dtype"]
        return self.e.cast(self.e.cast(self._i64(index[op.attrs["axis"]]), dtype), dtype.compute)

    def _at_broadcast_in_dim(self, op: Op, index) -> Val:
        source = op.operands[0]
        return self.value(source, tuple(0 if n == 1 else index[d] for d, n in zip(op.attrs["dims"], source.shape)))

    def _at_permute(self, op: Op, index) -> Val:
        at = [0] * len(index)
        for k, d in enumerate(op.attrs["dims"]):
            at[d] = index[k]
        return self.value(op.operands[0], tuple(at))

    def _at_squeeze(self, op: Op, index) -> Val:
        rest = iter(index)
        return self.value(
            op.operands[0], tuple(0 if d in op.attrs["axes"] else next(rest) for d in range(op.operands[0].rank))
        )

    def _at_expand_dims(self, op: Op, index) -> Val:
        return self.value(op.operands[0], tuple(i for d, i in enumerate(index) if d not in op.attrs["axes"]))

    def _at_reshape(self, op: Op, index) -> Val:
        places = _renaming_reshape(op.operands[0].shape, op.result.shape)
        return self.value(op.operands[0], tuple(0 if p is None else index[p] for p in places))

    def _at_slice(self, op: Op, index) -> Val:
        at = []
        for i, start, step in zip(index, op.attrs["start"], op.attrs["step"]):
            scaled = self.e.mul(self._i64(i), step) if i != 0 else self.e.const(0, I64)
            at.append(self.e.add(scaled, self.size(start)))
        return self.value(op.operands[0], tuple(at))

    def _at_pad(self, op: Op, index) -> Val:
        e, source = self.e, op.operands[0]
        fill, inside, at = self.value(op.operands[1], ()), None, []
        if any(n == 0 for n in source.shape):
            return fill
        for i, low, high, n in zip(index, op.attrs["low"], op.attrs["high"], source.shape):
            if low == 0 and high == 0:
                at.append(i)
                continue
            place, last = e.sub(self._i64(i), self.size(low)), self.size(n - 1)
            here = e.and_(e.cmp("ge", place, 0), e.cmp("le", place, last))
            inside = here if inside is None else e.and_(inside, here)
            at.append(e.max(e.min(place, last), 0))
        val = self.value(source, tuple(at))
        return val if inside is None else e.select(inside, val, fill)

    def _held(self, val: Val, extent: Size) -> Val:
        """An index out of an array: negative ones count from the end, out of range is clamped."""
        e = self.e
        i, n = e.cast(val, I64), self.size(extent)
        i = e.select(e.cmp("lt", i, 0), e.add(i, n), i)
        return e.max(e.min(i, e.sub(n, 1)), 0)

    def _at_take(self, op: Op, index) -> Val:
        source, indices = op.operands
        axis = op.attrs["axis"]
        at = tuple(0 if n == 1 else i for n, i in zip(indices.shape, index[axis : axis + indices.rank]))
        held = self._held(self.value(indices, at), source.shape[axis])
        return self.value(source, (*index[:axis], held, *index[axis + indices.rank :]))

    def _at_take_along_axis(self, op: Op, index) -> Val:
        source, indices = op.operands
        axis = op.attrs["axis"]
        held = self._held(
            self.value(indices, tuple(0 if n == 1 else i for n, i in zip(indices.shape, index))), source.shape[axis]
        )
        return self.value(
            source, tuple(held if d == axis else 0 if source.shape[d] == 1 else i for d, i in enumerate(index))
        )

    def _random_words(self, op: Op, index, count: int) -> list[Val]:
        """``count`` random u32 for an element: see :func:`mlirfuse.ir.ops.table.random_words`."""
        e, share = self.e, 4 // count
        seed, offset = (e.cast(self.scalar(v), dt.u64) for v in op.operands)
        position = e.cast(self._linear(index, op.result.shape), dt.u64)
        words = m.philox4x32(e, (e.shr(position, share.bit_length() - 1), offset), seed)
        which = e.cast(e.and_(position, share - 1), dt.u32)
        out = []
        for w in range(count):
            word = words[w]
            for part in range(1, share):
                word = e.select(e.cmp("eq", which, part), words[part * count + w], word)
            out.append(word)
        return out

    _at_uniform, _at_normal = Kernel._uniform, Kernel._normal

    def result(self, value: Value) -> Tensor:
        """``value`` as the function gives it: all dimensions, in its element type."""
        return self.full(value, value.dtype)


def _kind(op: Op | None) -> str:
    return table.TABLE[op.name].kind if op is not None and op.name in table.TABLE else ""


def _reduces(op: Op) -> bool:
    """Whether a reduction reduces more than extents of 1."""
    source = op.operands[0]
    return any(source.shape[d] != 1 for d in table.axes_of(op.attrs, source.rank))


def _only_adds(op: Op) -> bool:
    """Whether a pad is known to cut nothing off."""
    return all(isinstance(n, int) and n >= 0 for key in ("low", "high") for n in op.attrs[key])


def _renaming_reshape(old, new) -> tuple[int | None, ...] | None:
    """For each old dimension the new one that it becomes (None for an extent of 1), where a reshape only adds or drops
    extents of 1."""
    before = [n for n in old if n != 1]
    after = [(k, n) for k, n in enumerate(new) if n != 1]
    if before != [n for _, n in after]:
        return None
    places = iter(k for k, _ in after)
    return tuple(None if n == 1 else next(places) for n in old)


def _runs(old, new) -> list[tuple[list[int], list[int]]]:
    """The shortest runs of old and of new dimensions that have one number of elements; one run of all where sizes do
    not tell."""
    runs: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old) and j < len(new):
        a, b = old[i], new[j]
        left, right = [i], [j]
        i, j = i + 1, j + 1
        while a != b:
            grow_left = i < len(old) and (j >= len(new) or sz.quotient(b, a) is not None)
            if grow_left:
                a, left, i = sz.mul(a, old[i]), [*left, i], i + 1
            elif j < len(new):
                b, right, j = sz.mul(b, new[j]), [*right, j], j + 1
            else:
                return [(list(range(len(old))), list(range(len(new))))]
        runs.append((left, right))
    if not runs:
        return [(list(range(len(old))), list(range(len(new))))]
    for k in range(i, len(old)):  # extents of 1 at the end
        runs[-1][0].append(k)
    for k in range(j, len(new)):
        runs[-1][1].append(k)
    return runs


def _stored(members: list[Op]) -> set[Value]:
    """Elementwise values that are computed once and stored: what several ops use, and what is repeated along other
    dimensions."""
    users: dict[Value, list[Op]] = {}
    for op in members:
        for value in dict.fromkeys(op.operands):
            users.setdefault(value, []).append(op)
    free: set[Value] = set()
    out: set[Value] = set()
    for op in members:
        row = table.TABLE.get(op.name)
        if row is None:
            continue
        if (
            row.kind == "create"
            or op.name in RENAMING
            or (op.name == "reshape" and all(v in free for v in op.operands))
        ):
            if all(v in free for v in op.operands):
                free.update(op.results)
            continue
        if row.kind == "elementwise" and all(v in free for v in op.operands):
            free.update(op.results)
            continue
        if row.kind not in ("elementwise", "random", "index"):
            continue
        value = op.result
        if value.rank and (
            len(users.get(value, ())) > 1 or any(_repeats(value, user) for user in users.get(value, ()))
        ):
            out.add(value)
    return out


def _repeats(value: Value, user: Op) -> bool:
    if user.name == "broadcast_in_dim":
        return True
    return _kind(user) == "elementwise" and user.result.shape != value.shape


class _Program:
    """One graph: a function, and one for each of its segments."""

    def __init__(self, graph: Graph):
        self.graph = graph
        self.functions: list[str] = []
        self.where: dict[
            str, tuple[int, int, int]
        ] = {}  # argument, dimension, and how many times the symbol that extent is
        for k, value in enumerate(graph.args):
            if value.dtype is None:
                raise PassError(f"fusion-to-linalg: argument {k} of {graph.name} is no tensor")
            for d, n in enumerate(value.shape):
                for name in sz.symbols(n):
                    by = 1 if sz.told_by(n) == name else sz.quotient(n, sz.symbol(name))
                    if isinstance(by, int) and (name not in self.where or by < self.where[name][2]):
                        self.where[name] = k, d, by
        for op in graph.ops:
            _check(op)

    def text(self) -> str:
        graph = self.graph
        loose = [op for op in graph.ops if op.segment is None]
        main = self.main = _Function(loose, self._symbol)
        for k, value in enumerate(graph.args):
            main.tensors[value] = Tensor(f"%arg{k}", value.dtype, value.shape, tuple(range(value.rank)))
        ordered = gr.topological(graph.ops, {op: op.segment for op in graph.ops if op.segment is not None})
        users, returned = graph.body.users(), set(graph.returns)
        runs: list[tuple[Segment | None, list[Op]]] = []
        for op in ordered:
            if op.segment is not None and runs and runs[-1][0] is op.segment:
                runs[-1][1].append(op)
            else:
                runs.append((op.segment, [op]))
        for segment, members in runs:
            inside = set(members)
            outs = [
                v
                for op in members
                for v in op.results
                if v in returned or any(u not in inside for u in users.get(v, ()))
            ]
            if segment is not None:
                self._segment(segment, members, outs)
            elif _kind(members[0]) == "library":
                self._library(members[0])
            else:
                for value in outs:  # in its element type, as it passes between kernels
                    if value.rank or _kind(value.op) != "create":
                        main.tensors[value] = main.result(value)
        results = [main.result(v) for v in graph.returns]
        head = ", ".join(f"%arg{k}: {type_of(v.shape, v.dtype)}{self._attributes(k)}" for k, v in enumerate(graph.args))
        types = [t.type for t in results]
        spelled = ", ".join(
            t + (f" {{fusion.alias = {graph.aliases[k]} : i64}}" if k in graph.aliases else "")
            for k, t in enumerate(types)
        )
        main.e.line(f"return {', '.join(t.name for t in results)} : {', '.join(types)}" if results else "return")
        arrow = f" -> ({spelled})" if results else ""
        self.functions.append(f"func.func @{graph.name}({head}){arrow} {{\n{main.e.text()}\n}}")
        return "\n".join(self.functions)

    def _attributes(self, k: int) -> str:
        value, given = self.graph.args[k], []
        if value.name:
            given.append(f'fusion.name = "{value.name}"')
        if k in self.graph.scalars:
            given.append("fusion.scalar")
        return f" {{{', '.join(given)}}}" if given else ""

    def _symbol(self, name: str) -> str:
        """A size symbol in the main function."""
        key = ("symbol", name)
        main = self.main
        if key not in main.indices:
            if name not in self.where:
                raise PassError(
                    f"fusion-to-linalg: size symbol {name} is the extent of no argument of {self.graph.name}"
                )
            k, d, by = self.where[name]
            value, axis = self.graph.args[k], main.index(d)
            main.indices[key] = f"%{name}"
            extent = f"%{name}" if by == 1 else f"%{name}_times_{by}"
            main.e.entry.append(f"  {extent} = tensor.dim %arg{k}, {axis} : {type_of(value.shape, value.dtype)}")
            if by != 1:
                main.e.entry.append(f"  %{name} = arith.divui {extent}, {main.index(by)} : index")
        return main.indices[key]

    def _segment(self, segment: Segment, members: list[Op], outs: list[Value]) -> None:
        made = {v for op in members for v in op.results}
        ins = [v for v in dict.fromkeys(v for op in members for v in op.operands) if v not in made]
        symbols: dict[str, None] = {}

        def symbol(name: str) -> str:
            symbols[name] = None
            return f"%{name}"

        function = _Function(members, symbol)
        for k, value in enumerate(ins):
            function.tensors[value] = Tensor(f"%in{k}", value.dtype, value.shape, tuple(range(value.rank)))
        results = [function.result(v) for v in outs]
        types = ", ".join(t.type for t in results)
        function.e.line(f"return {', '.join(t.name for t in results)} : {types}" if results else "return")
        head = ", ".join(
            [f"%in{k}: {type_of(v.shape, v.dtype)}" for k, v in enumerate(ins)] + [f"%{s}: index" for s in symbols]
        )
        from mlirfuse.dialects.fusion import attribute

        given = {"scheduler": segment.scheduler, "params": segment.params, "why": segment.why}
        attrs = ", ".join(f"fusion.{key} = {attribute(x)}" for key, x in given.items() if x)
        attrs = f" attributes {{{attrs}}}" if attrs else ""
        name = f"{self.graph.name}_segment{len(self.functions)}"
        self.functions.append(f"func.func private @{name}({head}) -> ({types}){attrs} {{\n{function.e.text()}\n}}")
        given = [self.main.full(v, v.dtype) for v in ins]
        sizes = [self._symbol(s) for s in symbols]
        operands = ", ".join([t.name for t in given] + sizes)
        signature = ", ".join([t.type for t in given] + ["index"] * len(sizes))
        self._call(name, operands, signature, outs)

    def _call(self, name: str, operands: str, signature: str, outs: list[Value]) -> None:
        e = self.main.e
        result = e.fresh()
        types = ", ".join(type_of(v.shape, v.dtype) for v in outs)
        many = f"{result}:{len(outs)}" if len(outs) > 1 else result
        e.line(f"{many} = call @{name}({operands}) : ({signature}) -> ({types})")
        for k, value in enumerate(outs):
            place = result if len(outs) == 1 else f"{result}#{k}"
            self.main.tensors[value] = Tensor(place, value.dtype, value.shape, tuple(range(value.rank)))

    def _library(self, op: Op) -> None:
        from mlirfuse.dialects.fusion import attribute

        given = [self.main.full(v, v.dtype) for v in op.operands]
        signature = ", ".join(t.type for t in given)
        types = ", ".join(type_of(v.shape, v.dtype) for v in op.results)
        name = f"{self.graph.name}_{op.name}{len(self.functions)}"
        attrs = "".join(
            f", fusion.{key} = {attribute(x)}" for key, x in op.attrs.items() if x is not None and key != "note"
        )
        self.functions.append(
            f'func.func private @{name}({signature}) -> ({types}) attributes {{fusion.op = "{op.name}"{attrs}}}'
        )
        self._call(name, ", ".join(t.name for t in given), signature, op.results)


def _check(op: Op) -> None:
    """Raises where ``op`` has no meaning on tensors, or was to be rewritten before."""
    row = table.TABLE.get(op.name)
    if row is None:
        raise PassError(
            f"fusion-to-linalg: '{op.name}' is no tensor op: control flow and other dialects are not lowered", op.loc
        )
    if writes_in_place(op):
        raise PassError(
            f"fusion-to-linalg: {op.name} writes into its first operand: run fusion-remove-inplace first", op.loc
        )
    if row.kind == "composite" or op.name in ("mean", "var", "std"):
        raise PassError(f"fusion-to-linalg: {op.name} is composite: run fusion-decompose first", op.loc)
