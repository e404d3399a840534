"""The steps of a host program, in the order in which they run: typed, so that whoever reads a program need not guess.

A step reads values and makes values (:class:`mlirfuse.ir.graph.Value`): tensors, or numbers where their dtype is None.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from mlirfuse.analysis.axes import Axes
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Graph, Op, Segment, Value
from mlirfuse.ir.ops import sizes_in


@dataclass(eq=False)
class Step:
    """What every step has: the values it reads and those it makes."""

    reads: list[Value]
    makes: list[Value]

    @property
    def bodies(self) -> tuple[Sequence, ...]:
        """The sequences that the step runs, in order."""
        return ()


@dataclass(eq=False)
class Sequence:
    """Steps in order; ``returns`` are read at their end."""

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
    """Groups of a graph with no library op between them, as a graph of their own: the values they need, their ops, the
    values that others need. Layouts of its arguments are known. ``axes``: those of the whole block. What is compiled
    of a part serves all steps that have it."""

    def __init__(self, graph: Graph, axes: Axes):
        self.graph, self.axes = graph, axes
        self.values = [*graph.args, *(v for op in graph.ops for v in op.results)]
        sizes = [n for v in self.values for n in v.shape]
        sizes += [n for layout in graph.layouts if layout for n in layout.strides]
        sizes += [n for op in graph.ops for n in sizes_in(op.row.attr_types, op.attrs)]
        # An axis may have its extent from ops around the part, in other symbols that are equal in a call.
        used = {v for op in graph.ops for v in (*op.operands, *op.results)}  # an argument may be written alone
        sizes += [axis.size for v in self.values if v.dtype is not None and v in used for axis in axes.flat(v)]
        self.symbols = sorted(sz.symbols_of(sizes))


@dataclass(eq=False)
class Kernels(Step):
    """``part`` is launched: one program of kernels. Equal steps share a part; ``ops`` are this one's own."""

    part: FusedRegion
    ops: list[Op]

    @property
    def segments(self) -> dict[Segment, Segment]:
        """Which segment of ``ops`` each segment of the launched program stands for."""
        return {a.segment: b.segment for a, b in zip(self.part.graph.ops, self.ops) if a.segment and b.segment}


@dataclass(eq=False)
class Foreach(Step):
    """``part``, one member of the ``fusion.foreach`` ``op``, is launched once for all. Reads and makes are those of the
    first member, then those of the second …; results that ``part`` writes over an argument are that argument."""

    part: FusedRegion
    op: Op

    @property
    def members(self) -> int:
        return self.op.attrs["members"]


@dataclass(eq=False)
class Call(Step):
    """An op that no kernel of ours computes: a library's, a view, an op left unfused. It may write into its first
    operand (:func:`mlirfuse.ir.effects.writes_in_place`)."""

    op: Op


@dataclass(eq=False)
class Start(Call):
    """Starts a collective, which other processes take part in."""


@dataclass(eq=False)
class Wait(Call):
    """Waits for what the :class:`Start` of its operand does; ``held``, its operands, live until here."""

    held: list[Value] = field(default_factory=list)


@dataclass(eq=False)
class Compute(Step):
    """Numbers made of numbers, or read from a tensor, which waits for it."""

    op: Op


@dataclass(eq=False)
class Guard(Step):
    """Whether the tensors meet what a ``fusion.guard`` states."""

    op: Op


@dataclass(eq=False)
class Learn(Step):
    """The symbol ``name`` is the extent of the value's dimension ``axis``, from here on."""

    name: str
    axis: int


@dataclass(eq=False)
class Assign(Step):
    """Each value made is the value read, no copy."""


@dataclass(eq=False)
class Pack(Step):
    """The value made is the value read, copied where it is not row-major."""


@dataclass(eq=False)
class Apart(Step):
    """The value made is the first one read, copied where it may lie in the memory of the others, which are written."""


@dataclass(eq=False)
class Copy(Step):
    """The elements of the values in the second half of those read are written into those in the first."""


@dataclass(eq=False)
class Free(Step):
    """The values read are not needed any more."""


@dataclass(eq=False)
class Branch(Step):
    """``scf.if``: the first value read decides. Both sides end by assigning what the step makes."""

    then: Sequence
    otherwise: Sequence

    @property
    def bodies(self) -> tuple[Sequence, ...]:
        return self.then, self.otherwise


@dataclass(eq=False)
class For(Step):
    """``scf.for`` from ``reads[0]`` to before ``reads[1]`` by ``reads[2]``. ``body.args`` are the counter and the
    carried values, which are assigned before the loop and at the body's end."""

    body: Sequence

    @property
    def bodies(self) -> tuple[Sequence, ...]:
        return (self.body,)


@dataclass(eq=False)
class While(Step):
    """``scf.while``: ``before`` runs, ``condition`` is read, then ``after`` runs; carried values as in :class:`For`."""

    before: Sequence
    condition: Value
    after: Sequence

    @property
    def bodies(self) -> tuple[Sequence, ...]:
        return self.before, self.after
