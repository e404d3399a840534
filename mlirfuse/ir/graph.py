"""The tensor-level program as Python objects: what passes read and change.

Walking MLIR through its bindings takes tens of microseconds per op, so a pass works on this representation and the MLIR
is written once. A :class:`Graph` is one function; :mod:`mlirfuse.dialects.fusion` reads it from MLIR and prints it as
MLIR, losslessly.

The graph is flat: an op's group and segment are labels on the op. Printing nests the labelled ops into ``fusion.group``
and ``fusion.segment`` regions whose operands are all that the ops use. Ops with blocks of their own (``scf.if`` …) hold
:class:`Block` objects, whose ops may use values of the enclosing blocks.

Sizes are symbolic (:mod:`mlirfuse.ir.sizes`): a value's ``shape`` is a tuple of ints and expressions over the symbols
that the function's arguments declare. Extents of 0 and 1 are always ints: they have specializations of their own.
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

    A value that is not a tensor (the ``i1`` of a guard) has dtype None and its MLIR type as text in ``type``.
    """

    __slots__ = ("dtype", "name", "op", "shape", "type")

    def __init__(
        self, dtype: DType | None, shape=(), op: Op | None = None, name: str | None = None, type: str | None = None
    ):
        self.dtype: DType = dtype  # type: ignore[assignment]  # None only for a value that is not a tensor
        self.shape: tuple[Size, ...] = tuple(shape)
        # Any: None for an argument; code that knows that there is a producer need not test for it
        self.op: Op | Any = op
        self.name = name
        if type is None:
            assert dtype is not None
            type = _tensor_type(dtype, self.shape)
        self.type = type

    def become(self, dtype: DType, shape: Iterable[Size]) -> None:
        """Change the element type and shape, for all users."""
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
    """Ops that are compiled together. ``number`` counts the groups of the function (:meth:`Graph.number`); ``why``: the
    reason that it is a group of its own; ``notes``: the rejected merges."""

    notes: list[str] = field(default_factory=list)
    why: str = ""
    number: int = -1


@dataclass(eq=False)
class Segment:
    """Ops of one group that become one kernel.

    ``scheduler`` names the scheduler, ``params`` the bytes read and written, ``why`` the reason that the segment is cut
    from the one before it. ``number`` counts the segments of the function (:meth:`Graph.number`), in kernels' names and
    in all output for users. ``schedule``: the fixed parameters of its kernels (:mod:`mlirfuse.schedule.serialize`),
    some or all; the heuristics choose the others for the sizes of each call.
    """

    group: Group
    scheduler: str = ""
    params: dict[str, Any] = field(default_factory=dict)
    why: str = ""
    schedule: dict[str, Any] = field(default_factory=dict)
    number: int = -1


class Op:
    """One operation: its row's name in the op table (without ``fusion.``), operands, attributes and results.
    ``origin``: the composite op that it was decomposed from; the text of the IR does not keep it."""

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
        """The row of the op table; :data:`mlirfuse.ir.ops.FOREIGN` for an op of another dialect."""
        return TABLE.get(self.name, FOREIGN)

    @property
    def cuts(self) -> list[Size]:
        """The indices along a dimension at which another part of the operand begins (:attr:`OpDef.cuts`)."""
        row = self.row
        return sizes_in(row.attr_types, {key: self.attrs[key] for key in row.cuts}) if row.cuts else []

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(v.name or '_' for v in self.operands)})"


class Block:
    """Arguments, ops in order, and the values that the block yields."""

    __slots__ = ("args", "ops", "returns", "terminator")

    def __init__(self, args=(), ops=(), returns=(), terminator: str | None = None):
        self.args: list[Value] = list(args)
        self.ops: list[Op] = list(ops)
        self.returns: list[Value] = list(returns)
        self.terminator = terminator  # the name of its terminator, if not the usual yield

    def users(self) -> dict[Value, list[Op]]:
        """Return for each value the ops of this block (or of blocks nested in them) that use it, in order."""
        out: dict[Value, list[Op]] = {}
        for op in self.ops:
            for value in dict.fromkeys(uses(op)):
                out.setdefault(value, []).append(op)
        return out

    def replace(self, old: Value, new: Value) -> None:
        """Replace every use of ``old`` in this block, its nested blocks and its returns by ``new``. A pass that
        replaces many values uses :class:`Uses`."""
        _replace(self.ops, old, new)
        self.returns = [new if v is old else v for v in self.returns]


def _replace(ops: Iterable[Op], old: Value, new: Value) -> None:
    """Replace every use of ``old`` by ``ops`` and in their blocks."""
    for op in ops:
        op.operands = [new if v is old else v for v in op.operands]
        for block in op.blocks:
            _replace(block.ops, old, new)
            block.returns = [new if v is old else v for v in block.returns]


class Uses:
    """The ops of a block that use each value, kept while values are replaced: each replacement then takes the time of
    the ops that use the value, not of the whole block."""

    def __init__(self, block: Block):
        self._block, self._users = block, block.users()

    def add(self, op: Op) -> None:
        """Count what ``op``, which is new in the block, uses."""
        for value in dict.fromkeys(uses(op)):
            self._users.setdefault(value, []).append(op)

    def replace(self, old: Value, new: Value) -> None:
        """As :meth:`Block.replace`."""
        users = self._users.pop(old, [])
        _replace(users, old, new)
        self._users.setdefault(new, []).extend(users)
        self._block.returns = [new if v is old else v for v in self._block.returns]


def uses(op: Op) -> Iterator[Value]:
    """Iterate over the operands of ``op`` and all outer values that its blocks use."""
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
    """Iterate over all ops of ``block`` and of the blocks nested in them, in pre-order."""
    for op in block.ops:
        yield op
        for nested in op.blocks:
            yield from walk(nested)


@dataclass
class Layout:
    """The memory layout of an argument. Strides are in elements; ``align`` is a power of two in bytes."""

    strides: tuple[Size, ...]
    align: int = 1


@dataclass(frozen=True)
class Window:
    """The slice of a tensor that another is written into: element i goes to ``start + i * step``."""

    start: tuple[Size, ...]
    step: tuple[int, ...]

    def update(self, target: Value, value: Value) -> Op:
        """Return an op that writes ``value`` there."""
        attrs = {"start": self.start, "size": value.shape, "step": self.step}
        return Op("update", [target, value], attrs, [Value(target.dtype, target.shape)])


@dataclass(eq=False)
class Graph:
    """One function.

    ``layouts``: one for each of ``body.args`` (None: unknown); ``scalars``: the arguments passed by value, as 0-d
    tensors. ``aliases`` maps a result's index to the argument that it is written into: all of the argument, or the
    slice in ``windows`` for that index. ``device`` is "cpu", "cuda" or None where it is unknown. ``parts`` and
    ``result_parts`` map the index of an argument or result that is another tensor's memory reinterpreted to the part:
    the "re" or the "im" of a complex tensor, two real ones with doubled strides, an "im" right after its "re"
    (`fusion-split-complex`); the "bits" of float8 (`fusion-narrow-floats`). ``numbers``: the symbols that a call
    defines by an argument that is a number, not by a tensor's shape. ``donated``: the arguments that the caller no
    longer needs: results may be written over them. ``equal``: the pairs of sizes that each
    call has to meet, of a graph read from text; None: the front end that made the graph ensures them. ``hints``: values
    of symbols in a typical call, where one is known, for predictions: the first call's.
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
    hints: dict[str, int] = field(default_factory=dict)

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
        """The groups and the segments in program order, those in nested blocks too."""
        groups: dict[Group, None] = {}
        segments: dict[Segment, None] = {}
        for op in walk(self.body):
            if op.group is not None:
                groups[op.group] = None
            if op.segment is not None:
                segments[op.segment] = None
        return list(groups), list(segments)

    def number(self) -> None:
        """Number the groups and segments that have no number, in program order. Numbers do not change afterwards:
        removal leaves a gap."""
        for labels in self.labels():
            last = max((label.number for label in labels), default=-1)
            for at, label in enumerate((label for label in labels if label.number < 0), last + 1):
                label.number = at

    def copy(self) -> Graph:
        """Return a copy with the same ops, groups and segments; attributes are shared, as nothing changes them in
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
            dict(self.hints),
        )
