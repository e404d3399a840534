"""Explanations of a compiled call: as text by ``print(jit(f).explain(*args))``, and as a drawing by
``.explain(*args).save("f.html")``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from mlirfuse.analysis import traffic
from mlirfuse.core.errors import CompileError, UnsupportedError
from mlirfuse.inspect import listing
from mlirfuse.inspect.drawing import page
from mlirfuse.inspect.launches import count, threads_text
from mlirfuse.inspect.listing import Names
from mlirfuse.inspect.shown import Shown
from mlirfuse.ir.graph import Graph, Op, Segment


@dataclass
class Launch:
    """A launch of a kernel: its name in the code, and its threads."""

    name: str
    threads: str


@dataclass
class Line:
    """An op: its statement, the types of its results, and its location in the user's program ("" if unknown)."""

    text: str
    type: str
    place: str
    source: str
    op: Op = field(repr=False)


@dataclass
class ExplainedKernel:
    """A segment and its kernels. ``launches`` is empty where it only changes metadata, and where it is part of the
    launch of the kernel with the number ``within``; a split reduction has two."""

    number: int
    scheduler: str
    launches: list[Launch]
    ops: list[Line]
    reads: dict[str, str]  # names and types
    writes: dict[str, str]
    bytes_read: int
    bytes_written: int
    params: dict
    why: str  # why it is cut from the segment before it, or why its group is separate
    segment: Segment = field(repr=False)
    within: int | None = None

    @property
    def computes(self) -> bool:
        """Whether a kernel is launched for it, alone or with others."""
        return bool(self.launches) or self.within is not None

    @property
    def threads(self) -> list[str]:
        """The threads of each of its launches, as text."""
        alone = "nothing to launch" if self.within is None else f"in the launch of kernel {self.within}"
        return [launch.threads for launch in self.launches] or [alone]

    @property
    def title(self) -> str:
        return f"{'segment' if self.scheduler == 'no-op' else 'kernel'} {self.number}, {self.scheduler}"

    @property
    def chosen(self) -> str:
        """The parameters that are on, as text."""
        return ", ".join(f"{key}={value}" for key, value in self.params.items() if value is not False)


@dataclass
class Outside:
    """An op that is in no kernel, and why."""

    line: Line
    why: str


@dataclass
class Explanation(Shown):
    """The explanation of a call with certain arguments. ``str()`` is a summary; :meth:`save` draws it.

    ``views``: view ops without kernels: inside a kernel they change its indices, at the end they are aliases.
    ``notes``: merges that grouping rejected. ``problem``: why nothing is compiled, if so.
    """

    name: str
    target: str
    inputs: dict[str, str]
    outputs: dict[str, str]
    kernels: list[ExplainedKernel]
    outside: list[Outside]
    views: list[Outside]
    notes: list[str]
    problem: str
    graph: Graph = field(repr=False)
    names: Names = field(repr=False)

    @property
    def launches(self) -> int:
        """The number of kernels that a call launches."""
        return sum(len(k.launches) for k in self.kernels)

    @property
    def bytes_read(self) -> int:
        return sum(k.bytes_read for k in self.kernels)

    @property
    def bytes_written(self) -> int:
        return sum(k.bytes_written for k in self.kernels)

    def launched(self) -> Iterator[tuple[ExplainedKernel, int, int]]:
        """Iterate over the launched kernels, each with the bytes that its launches read and write, for merged segments
        too."""
        for kernel in self.kernels:
            if kernel.launches:
                done = [kernel, *(k for k in self.kernels if k.within == kernel.number)]
                yield kernel, sum(k.bytes_read for k in done), sum(k.bytes_written for k in done)

    @staticmethod
    def of(lowered) -> Explanation:
        """Return the explanation of a :class:`mlirfuse.inspect.lowered.Lowered`."""
        return _explain(lowered)

    def summary(self) -> str:
        """Return one line: kernels, launches, bytes."""
        text = f"{self.name} for {self.target}: "
        if self.problem:
            return text + f"runs op by op: {self.problem}"
        created = [k for k in self.kernels if k.computes]
        text += f"{count(len(created), 'kernel')}, {count(self.launches, 'launch', 'es')}"
        if self.launches:
            text += f", {listing.bytes_text(self.bytes_read)} read and {listing.bytes_text(self.bytes_written)} written"
        if self.outside:
            text += f"; {count(len(self.outside), 'op')} outside of kernels"
        return text

    def __str__(self) -> str:
        out = [self.summary() + "\n"]
        if self.kernels:
            rows = [
                (
                    k.number,
                    k.scheduler,
                    len(k.launches),
                    len(k.ops),
                    listing.bytes_text(k.bytes_read),
                    listing.bytes_text(k.bytes_written),
                    "; ".join(k.threads),
                    k.why,
                )
                for k in self.kernels
            ]
            headings = (
                "kernel",
                "scheduler",
                "launches",
                "ops",
                "reads",
                "writes",
                "threads",
                "why it is a kernel of its own",
            )
            if len(self.kernels) == 1:
                out.append(listing.table([row[:-1] for row in rows], "  ", headings[:-1]))
            else:
                out.append(listing.table(rows, "  ", headings))
        for k in self.kernels:
            head = (
                f"{k.title}: {', '.join(k.reads) or 'nothing'} -> {', '.join(k.writes)}"
                if k.computes
                else f"{k.title}: nothing to launch"
            )
            out.append(head + (f"\n  chosen: {k.chosen}" if k.chosen else "") + "\n" + _lines(k.ops))
        if self.outside:
            out.append(
                "outside of kernels:\n"
                + listing.table([(o.line.text, o.line.type, o.why, o.line.place) for o in self.outside], "  ")
            )
        if self.views:
            out.append(
                "views, which cost no kernel:\n"
                + listing.table([(o.line.text, o.line.type, o.why, o.line.place) for o in self.views], "  ")
            )
        if self.notes:
            out.append("not merged:\n" + "".join(f"  {note}\n" for note in self.notes))
        return "\n".join([*out, *map(str, self.rejections())])

    def to_html(self) -> str:
        """Return one self-contained page that draws the graph, its segments as boxes."""
        return page(self)


def _lines(ops: list[Line]) -> str:
    rows, last = [], None
    for line in ops:
        rows.append((line.text, line.type, line.place, line.source if line.op.loc != last else ""))
        last = line.op.loc
    return listing.table(rows, "  ") if rows else ""


def _explain(lowered) -> Explanation:
    graph, env, target = lowered.segmented(), lowered.env, lowered.target
    names = Names(graph, env)
    problem, code = "", []
    try:
        code = lowered.parts()
    except (CompileError, UnsupportedError) as error:
        problem = str(error)

    def line(op: Op) -> Line:
        types = ", ".join(names.type(v) for v in op.results)
        return Line(names.statement(op), types, listing.place(op.loc), listing.source(op.loc), op)

    members: dict[Segment, list[Op]] = {}
    for op in graph.ops:
        if op.segment is not None:
            members.setdefault(op.segment, []).append(op)
    kernels: list[ExplainedKernel] = []

    def kernel(segment: Segment, ops, launches, reads, writes, nbytes, params, within=None) -> None:
        ops = [line(op) for op in ops if not listing.is_literal(op)]
        read, stored = nbytes
        kernels.append(
            ExplainedKernel(
                segment.number,
                segment.scheduler,
                launches,
                ops,
                reads,
                writes,
                read,
                stored,
                params,
                segment.why,
                segment,
                within,
            )
        )

    launched: dict[Segment, set[Op]] = {}
    for program in code:
        for segment, step, choice, created in program.steps():
            analysis = step.analysis
            here = _standing_for(step.segment, program.program.graph, members.get(segment, []))
            ops = [here.get(op, op) for op in analysis.ops]
            launched[segment] = set(ops)
            launches = [Launch(k.name, threads_text(k, env)) for k in created]
            read = [here.get(v, v) for v in dict.fromkeys(analysis.inputs + analysis.scalars)]
            stored = [here.get(v, v) for v in analysis.written]
            reads, writes = ({names.of(v): names.type(v) for v in values} for values in (read, stored))
            kernel(segment, ops, launches, reads, writes, traffic.of_step(step, env), choice, program.within(step))
    aliases = {value: view for program in code for value, view in program.program.views.items()}
    for segment, ops in members.items():
        if segment not in launched:
            segment.scheduler = segment.scheduler if problem else "no-op"
            kernel(segment, ops, [], {}, {}, (0, 0), {})
    kernels.sort(key=lambda k: k.number)
    number_of = {k.segment: k.number for k in kernels}
    outside = [
        Outside(line(op), _why_outside(op))
        for op in graph.ops
        if op.group is None and not op.row.view and not listing.is_literal(op)
    ]
    views = []
    for op in graph.ops:
        if op.row.view and not (op.name == "broadcast_in_dim" and not op.operands[0].rank):
            root = next((aliases[v][0] for v in op.results if v in aliases), None)
            if root is not None:
                views.append(Outside(line(op), f"an alias of {names.of(root)}"))
            elif op in launched.get(op.segment, ()):
                views.append(Outside(line(op), f"other indices inside kernel {number_of[op.segment]}"))
            elif not problem:
                views.append(Outside(line(op), f"an alias of {names.of(op.operands[0])}"))
    notes = [
        note for group in dict.fromkeys(op.group for op in graph.ops if op.group is not None) for note in group.notes
    ]
    where = target.name if target.name == "cpu" else f"{target.name}:{target.properties.chip}"
    inputs = {names.of(v): names.type(v) for v in graph.args}
    outputs = {names.of(v): names.type(v) for v in graph.returns}
    return Explanation(lowered.name, where, inputs, outputs, kernels, outside, views, notes, problem, graph, names)


def _standing_for(segment: Segment, program: Graph, ops: list[Op]) -> dict[Any, Any]:
    """Return the op or value of ``ops`` that each one of a program's ``segment`` represents."""
    out: dict[Any, Any] = {}
    for op, other in zip((op for op in program.ops if op.segment is segment), ops):
        out[op] = other
        out.update(zip((*op.operands, *op.results), (*other.operands, *other.results)))
    return out


def _why_outside(op: Op) -> str:
    return op.attrs.get("note") or "not grouped with another op, and single_op is off"
