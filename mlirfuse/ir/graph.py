"""The tensor-level program as plain Python objects: what the passes look at and change.

Walking MLIR through its bindings costs tens of microseconds an op, so a pass works on this snapshot and the IR is
written once. A :class:`Graph` is one function; :mod:`mlirfuse.dialects.fusion` reads it from MLIR and prints it as
MLIR, without loss.

The graph is flat: an op's membership in a group and a segment is a label on the op, not a nesting. Printing nests the
labelled ops into ``fusion.group`` and ``fusion.segment`` regions whose operands are all that they use. Ops with blocks
of their own (``scf.if`` …) hold :class:`Block` objects, whose ops may use values of the blocks around them.

Sizes are symbolic (:mod:`mlirfuse.ir.sizes`): a value's ``shape`` is a tuple of ints and expressions over the symbols
that the function's arguments declare. Extents of 0 and 1 are always ints: a kind of call is compiled for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from mlirfuse.ir import sizes as sz
from mlirfuse.ir.dtypes import DType
from mlirfuse.ir.ops import FOREIGN, TABLE, OpDef, sizes_in
from mlirfuse.ir.sizes import Size


def _tensor_type(dtype: DType, shape: tuple[Size, ...]) -> str:
    return f"tensor<{''.join(f'{n if isinstance(n, int) else chr(63)}x' for n in shape)}{dtype.mlir}>"


class Value:
    """A tensor: element type and symbolic shape; ``op`` is its producer (None for an argument).

    What is no tensor (the ``i1`` of a guard) has dtype None and MLIR's spelling of its type in ``type``.
    """

    __slots__ = ("dtype", "name", "op", "shape", "type")

    def __init__(
        self, dtype: DType | None, shape=(), op: Op | None = None, name: str | None = None, type: str | None = None
    ):
        self.dtype: DType = dtype  # type: ignore[assignment]  # None only for what is no tensor, which few files meet
        self.shape: tuple[Size, ...] = tuple(shape)
        # Any: None for an argument, which those that know that there is a producer need not ask about
        self.op: Op | Any = op
        self.name = name
        if type is None:
            assert dtype is not None
            type = _tensor_type(dtype, self.shape)
        self.type = type

    def become(self, dtype: DType, shape: Iterable[Size]) -> None:
        """The value gets another element type and shape, for all that use it."""
        self.dtype, self.shape = dtype, tuple(shape)
        self.type = _tensor_type(dtype, self.shape)

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def numel(self) -> Size:
        return sz.product(self.shape)

    def __repr__(self) -> str:
        return f"{self.name or 'value'}: {self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(eq=False)
class Group:
    """Ops that are compiled together. ``number`` counts the groups of the function (:meth:`Graph.number`); ``why`` is
    the reason that it is a group of its own, ``notes`` are the merges that were refused."""

    notes: list[str] = field(default_factory=list)
    why: str = ""
    number: int = -1


@dataclass(eq=False)
class Segment:
    """Ops of one group that become one kernel.

    ``scheduler`` names what kind of segment it is, ``params`` what it reads and writes, ``why`` the reason it is cut
    from the segment before it. ``number`` counts the segments of the function (:meth:`Graph.number`), in kernels'
    names and wherever people meet it. ``schedule`` is what has been decided about its kernels
    (:mod:`mlirfuse.schedule.serialize`): some parameters or all; the model chooses the others for the sizes of each
    call.
    """

    group: Group
    scheduler: str = ""
    params: dict[str, Any] = field(default_factory=dict)
    why: str = ""
    schedule: dict[str, Any] = field(default_factory=dict)
    number: int = -1


class Op:
    """One operation: its row's name in the op table (without ``fusion.``), operands, attributes and results.
    ``origin`` is the composite op that it is a part of, where a pass has taken that apart; text does not keep it."""

    __slots__ = ("attrs", "blocks", "group", "loc", "name", "operands", "origin", "results", "segment")

    def __init__(self, name, operands, attrs=None, results=(), blocks=(), loc=None):
        self.name: str = name
        self.operands: list[Value] = list(operands)
        self.attrs: dict[str, Any] = dict(attrs or {})
        self.results: list[Value] = list(results)
        self.blocks: list[Block] = list(blocks)
        self.loc: tuple[str, int] | None = loc  # file and line of the user's program
        self.group: Group | None = None
        self.segment: Segment | None = None
        self.origin: Op | None = None
        for result in self.results:
            result.op = self

    @property
    def result(self) -> Value:
        (only,) = self.results
        return only

    @property
    def row(self) -> OpDef:
        """What the op table knows of it; :data:`mlirfuse.ir.ops.FOREIGN` for an op of another dialect."""
        return TABLE.get(self.name, FOREIGN)

    @property
    def cuts(self) -> list[Size]:
        """Where along a dimension another part of the operand begins (:attr:`OpDef.cuts`)."""
        row = self.row
        return sizes_in(row.attr_types, {key: self.attrs[key] for key in row.cuts}) if row.cuts else []

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(v.name or '_' for v in self.operands)})"


class Block:
    """Arguments, ops in order, and the values that the block gives to what surrounds it."""

    __slots__ = ("args", "ops", "returns", "terminator")

    def __init__(self, args=(), ops=(), returns=(), terminator: str | None = None):
        self.args: list[Value] = list(args)
        self.ops: list[Op] = list(ops)
        self.returns: list[Value] = list(returns)
        self.terminator = terminator  # the name of the op that ends it, where it is not the usual yield

    def users(self) -> dict[Value, list[Op]]:
        """For each value, the ops of this block (or of blocks within them) that use it, in order."""
        out: dict[Value, list[Op]] = {}
        for op in self.ops:
            for value in dict.fromkeys(uses(op)):
                out.setdefault(value, []).append(op)
        return out

    def replace(self, old: Value, new: Value) -> None:
        """Every use of ``old`` in this block, its nested blocks and its returns becomes ``new``."""
        for op in walk(self):
            op.operands = [new if v is old else v for v in op.operands]
            for block in op.blocks:
                block.returns = [new if v is old else v for v in block.returns]
        self.returns = [new if v is old else v for v in self.returns]


def uses(op: Op) -> Iterator[Value]:
    """Operands of ``op`` and everything its blocks use from outside them."""
    yield from op.operands
    for block in op.blocks:
        inner = set(block.args)
        for nested in block.ops:
            for value in uses(nested):
                if value not in inner:
                    yield value
            inner.update(nested.results)
        for value in block.returns:
            if value not in inner:
                yield value


def shows_argument(value: Value) -> bool:
    """Whether ``value`` is an argument, or a view of one."""
    while value.op is not None and value.op.row.view:
        value = value.op.operands[0]
    return value.op is None


def walk(block: Block) -> Iterator[Op]:
    """All ops of ``block`` and of the blocks nested in them, each op before its nested ones."""
    for op in block.ops:
        yield op
        for nested in op.blocks:
            yield from walk(nested)


@dataclass
class Layout:
    """How an argument lies in memory. Strides are in elements; ``align`` is a power of two in bytes."""

    strides: tuple[Size, ...]
    align: int = 1


@dataclass(frozen=True)
class Window:
    """The part of a tensor that another is written into: element i goes to ``start + i * step``."""

    start: tuple[Size, ...]
    step: tuple[int, ...]

    def update(self, target: Value, value: Value) -> Op:
        """The op that writes ``value`` there."""
        attrs = {"start": self.start, "size": value.shape, "step": self.step}
        return Op("update", [target, value], attrs, [Value(target.dtype, target.shape)])


@dataclass(eq=False)
class Graph:
    """One function.

    ``layouts`` belongs to ``body.args``, one each (None: not known); ``scalars`` are the arguments passed by value, as
    0-d tensors. ``aliases`` maps a result's position to the argument that it is written into, whole or, where
    ``windows`` has one for the position, into that part of it. ``device`` is "cpu", "cuda" or None where it is not
    known. ``parts`` and ``result_parts`` say by position which arguments and results are
    other tensors' memory reinterpreted: the "re" or the "im" of a complex tensor, two real ones with doubled strides,
    an "im" behind its "re" (`fusion-split-complex`); the "bits" of floats of a byte (`fusion-narrow-floats`).
    ``numbers``: the symbols that a call tells by an argument that is a number, not by a tensor's shape. ``donated``:
    the arguments that the caller gives away: results may be written over them. ``equal``: the pairs of sizes that a
    call has to meet, of a graph that was read from text; None: the front end that made the graph sees to what its ops
    need.
    """

    name: str
    body: Block
    layouts: list[Layout | None] = field(default_factory=list)
    scalars: set[int] = field(default_factory=set)
    aliases: dict[int, int] = field(default_factory=dict)
    device: str | None = None
    parts: dict[int, str] = field(default_factory=dict)
    result_parts: dict[int, str] = field(default_factory=dict)
    numbers: set[str] = field(default_factory=set)
    windows: dict[int, Window] = field(default_factory=dict)
    donated: set[int] = field(default_factory=set)
    equal: list[tuple[Size, Size]] | None = None

    @property
    def args(self) -> list[Value]:
        return self.body.args

    @property
    def ops(self) -> list[Op]:
        return self.body.ops

    @property
    def returns(self) -> list[Value]:
        return self.body.returns

    @property
    def own_results(self) -> set[Value]:
        """The results that are not written into an argument."""
        return set(self.returns) - {self.returns[k] for k in self.aliases}

    def labels(self) -> tuple[list[Group], list[Segment]]:
        """The groups and the segments, those in nested blocks too, in the order in which they stand."""
        groups: dict[Group, None] = {}
        segments: dict[Segment, None] = {}
        for op in walk(self.body):
            if op.group is not None:
                groups[op.group] = None
            if op.segment is not None:
                segments[op.segment] = None
        return list(groups), list(segments)

    def number(self) -> None:
        """Gives each group and segment that has no number the next one, in the order in which they stand. A number
        stays: what a pass takes away leaves a gap."""
        for labels in self.labels():
            last = max((label.number for label in labels), default=-1)
            for at, label in enumerate((label for label in labels if label.number < 0), last + 1):
                label.number = at

    def copy(self) -> Graph:
        """A graph of its own with the same ops, groups and segments; attributes are shared, as nothing changes them in
        place."""
        values: dict[Value, Value] = {}
        labels: dict[Any, Any] = {None: None}

        def value(v: Value) -> Value:
            if v not in values:
                values[v] = Value(v.dtype, v.shape, None, v.name, v.type)
            return values[v]

        def group(g: Group) -> Group:
            if g not in labels:
                labels[g] = Group(list(g.notes), g.why, g.number)
            return labels[g]

        def segment(s: Segment) -> Segment:
            if s not in labels:
                labels[s] = Segment(group(s.group), s.scheduler, dict(s.params), s.why, dict(s.schedule), s.number)
            return labels[s]

        def block(b: Block) -> Block:
            return Block(map(value, b.args), map(op, b.ops), map(value, b.returns), b.terminator)

        def op(o: Op) -> Op:
            created = Op(o.name, map(value, o.operands), o.attrs, map(value, o.results), map(block, o.blocks), o.loc)
            created.group, created.segment = o.group and group(o.group), o.segment and segment(o.segment)
            return created

        layouts = [layout and Layout(tuple(layout.strides), layout.align) for layout in self.layouts]
        return Graph(
            self.name,
            block(self.body),
            layouts,
            set(self.scalars),
            dict(self.aliases),
            self.device,
            dict(self.parts),
            dict(self.result_parts),
            set(self.numbers),
            dict(self.windows),
            set(self.donated),
            self.equal and list(self.equal),
        )
