"""The typed steps of a host program.

A step reads values and makes values (:class:`mlirfuse.ir.graph.Value`): tensors, or numbers if their dtype is None."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from mlirfuse.analysis.axes import Axes
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Graph, Op, Segment, Value
from mlirfuse.ir.ops import sizes_in


@dataclass(eq=False)
class Step:
    """Base class: the values that a step reads and those that it makes."""

    reads: list[Value]
    makes: list[Value]

    @property
    def bodies(self) -> tuple[Sequence, ...]:
        """The sequences that the step runs, in order."""
        return ()


@dataclass(eq=False)
class Sequence:
    """Steps in order; ``returns`` are read at the end."""

    args: list[Value] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    returns: list[Value] = field(default_factory=list)

    def walk(self) -> Iterator[Step]:
        """All steps, each before those of its bodies."""
        for step in self.steps:
            yield step
            for body in step.bodies:
                yield from body.walk()


class FusedRegion:
    """Consecutive groups of a graph without an extern op between them, as a graph with known layouts of its arguments.
    ``axes`` are those of the whole block. Equal regions are compiled once."""

    def __init__(self, graph: Graph, axes: Axes):
        self.graph, self.axes = graph, axes
        self.values = [*graph.args, *(v for op in graph.ops for v in op.results)]
        sizes = [n for v in self.values for n in v.shape]
        sizes += [n for layout in graph.layouts if layout for n in layout.strides]
        sizes += [n for op in graph.ops for n in sizes_in(op.row.attr_types, op.attrs)]
        # An axis may have the extent of an op outside of the region, in other symbols that are equal at run time.
        used = {v for op in graph.ops for v in (*op.operands, *op.results)}  # an argument may only be written
        sizes += [axis.size for v in self.values if v.dtype is not None and v in used for axis in axes.flat(v)]
        self.symbols = sorted(sz.symbols_of(sizes))


@dataclass(eq=False)
class Kernels(Step):
    """Launches the fused region ``region``. Equal steps share one; ``ops`` are this step's own."""

    region: FusedRegion
    ops: list[Op]

    @property
    def segments(self) -> dict[Segment, Segment]:
        """The segment of ``ops`` that each segment of the launched program stands for."""
        return {a.segment: b.segment for a, b in zip(self.region.graph.ops, self.ops) if a.segment and b.segment}


@dataclass(eq=False)
class Foreach(Step):
    """Launches ``region``, one member of the ``fusion.foreach`` ``op``, once for all members. Reads and makes are those
    of the first member, then those of the second …; results that ``region`` writes over an argument are that
    argument."""

    region: FusedRegion
    op: Op

    @property
    def members(self) -> int:
        return self.op.attrs["members"]


@dataclass(eq=False)
class Call(Step):
    """Runs an op that is not compiled to kernels: an extern op, a view, an unfused op. It may write into its first
    operand (:func:`mlirfuse.ir.effects.writes_in_place`)."""

    op: Op


@dataclass(eq=False)
class Start(Call):
    """Starts a collective with other processes."""


@dataclass(eq=False)
class Wait(Call):
    """Waits for the collective that the :class:`Start` of its operand began; ``held``, its operands, are live until
    here."""

    held: list[Value] = field(default_factory=list)


@dataclass(eq=False)
class Compute(Step):
    """Computes numbers from numbers, or reads one from a tensor, which synchronizes."""

    op: Op


@dataclass(eq=False)
class Guard(Step):
    """Checks that tensors satisfy a ``fusion.guard``."""

    op: Op


@dataclass(eq=False)
class ReadSize(Step):
    """Defines the symbol ``name`` as the extent of the value's dimension ``axis``."""

    name: str
    axis: int


@dataclass(eq=False)
class Assign(Step):
    """Makes each value the value read, without a copy."""


@dataclass(eq=False)
class Pack(Step):
    """Makes the value read row-major, copying it if it is not."""


@dataclass(eq=False)
class Unalias(Step):
    """Makes the first value read, copied if it may share memory with the others, which are written."""


@dataclass(eq=False)
class Copy(Step):
    """Copies the second half of the values read into the first half."""


@dataclass(eq=False)
class Free(Step):
    """Drops the values read."""


@dataclass(eq=False)
class Branch(Step):
    """``scf.if`` on the first value read. Both sides end with an assignment of the values made."""

    then: Sequence
    otherwise: Sequence

    @property
    def bodies(self) -> tuple[Sequence, ...]:
        return self.then, self.otherwise


@dataclass(eq=False)
class For(Step):
    """``scf.for`` from ``reads[0]`` to ``reads[1]`` (exclusive) by ``reads[2]``. ``body.args`` are the counter and the
    loop-carried values, which are assigned before the loop and at the body's end."""

    body: Sequence

    @property
    def bodies(self) -> tuple[Sequence, ...]:
        return (self.body,)


@dataclass(eq=False)
class While(Step):
    """``scf.while``: runs ``before``, tests ``condition``, runs ``after``; loop-carried values as in :class:`For`."""

    before: Sequence
    condition: Value
    after: Sequence

    @property
    def bodies(self) -> tuple[Sequence, ...]:
        return self.before, self.after
