"""Descriptions of AOTAutograd's compiled graphs: kernels, extern ops, saved tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from mlirfuse.analysis.traffic import NAMES
from mlirfuse.frontend.torch.aot import collectives
from mlirfuse.frontend.torch.aot.collectives import Collective
from mlirfuse.frontend.torch.lower import Lowered
from mlirfuse.inspect import explain as inspected
from mlirfuse.inspect import listing
from mlirfuse.inspect.drawing import page
from mlirfuse.inspect.launches import count
from mlirfuse.inspect.listing import Names
from mlirfuse.inspect.shown import Shown, Table
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Op, Segment, walk
from mlirfuse.runtime.host_program import HostProgram


@dataclass(frozen=True)
class KernelDescription:
    """A segment that launches kernels. ``read`` and ``written``: bytes, or an expression over the graph's sizes."""

    scheduler: str
    ops: list[str]
    lines: list[str]
    read: int | str
    written: int | str
    why: str


@dataclass
class GraphExplanation(Shown):
    """One graph: forward, backward or inference. ``outside``: counts of extern ops by (op, reason, the user's line).
    ``saved``: the tensors that a forward graph saves for the backward, with their bytes. ``recomputed``: counts of
    what a backward graph recomputes, by (op, bytes, reason, the user's line). ``collectives``: in order of their
    starts."""

    which: str
    kernels: list[KernelDescription]
    outside: dict[tuple[str, str, str], int]
    saved: list[tuple[str, int | str]]
    programs: int  # distinct kernel programs: equal layers share one
    source: str  # the host program
    host: HostProgram = field(repr=False)
    collectives: list[Collective] = field(default_factory=list)
    recomputed: dict[tuple[str, int | str, str, str], int] = field(default_factory=dict)

    def summary(self) -> str:
        """One line: numbers of kernels, of their programs, and of extern ops."""
        calls = sum(self.outside.values())
        kernels, programs = count(len(self.kernels), "kernel"), count(self.programs, "program")
        return f"{self.which}: {kernels} ({programs}), {count(calls, 'call')} of torch's own operations"

    def tables(self) -> list[Table]:
        """Tables of kernels, extern ops, collectives, saved tensors and recomputed ops."""
        rows: list[tuple] = [
            (k.scheduler, k.read, k.written, listing.counted(k.ops), ", ".join(k.lines)) for k in self.kernels
        ]
        out = [Table(("scheduler", "bytes read", "bytes written", "ops", "lines"), rows)]
        if self.outside:
            rows = [(op, n, why, line) for (op, why, line), n in self.outside.items()]
            out.append(Table(("torch's own", "times", "why", "line"), rows))
        if self.collectives:
            sent = sum(c.sent for c in self.collectives if isinstance(c.sent, int))
            title = f"over the wire: {sent} bytes from each rank in {len(self.collectives)} collectives"
            rows = [(c.name, c.ranks or "", c.sent, c.meanwhile, listing.place(c.op.loc)) for c in self.collectives]
            out.append(Table(("collective", "ranks", "bytes sent", "meanwhile", "line"), rows, title))
        if self.saved:
            known = [n for _, n in self.saved if isinstance(n, int)]
            title = f"saved for the backward: {len(self.saved)} tensors, {sum(known)} bytes"
            out.append(Table(("tensor", "bytes"), self.saved, title))
        if self.recomputed:
            rows = [(op, n, nbytes, why, line) for (op, nbytes, why, line), n in self.recomputed.items()]
            out.append(Table(("recomputed", "times", "bytes not saved", "why", "line"), rows))
        return out

    def __str__(self) -> str:
        return "\n".join([self.summary(), "\n".join(map(str, self.tables()))]).rstrip("\n")

    def to_html(self) -> str:
        """A self-contained page that draws the graph, with kernels as boxes, for the sizes of the last call."""
        return page(_drawn(self))


def described(which: str, lowered: Lowered, host: HostProgram) -> GraphExplanation:
    """The description of one compiled graph; ``which``: "forward", "backward" or "inference"."""
    kernels = list(kernels_of(walk(host.graph.body)).values())
    outside = Counter((op, why, listing.place(place)) for op, why, place in lowered.outside)
    programs = len(host.launches)
    shared = list(collectives.of_program(host.sequence))
    recomputed = Counter((op, nbytes, why, listing.place(place)) for op, nbytes, why, place in lowered.recomputed)
    return GraphExplanation(
        which, kernels, dict(outside), lowered.saved, programs, host.source, host, shared, dict(recomputed)
    )


def kernels_of(ops: Iterable[Op]) -> dict[Segment, KernelDescription]:
    """The segments of ``ops`` that launch kernels."""
    return {segment: _kernel(segment, of) for segment, of in _members(ops).items() if segment.scheduler != "no-op"}


def _members(ops: Iterable[Op]) -> dict[Segment, list[Op]]:
    members: dict[Segment, list[Op]] = {}
    for op in ops:
        if op.segment is not None:
            members.setdefault(op.segment, []).append(op)
    return members


def _drawn(reported: GraphExplanation) -> inspected.Explanation:
    """The graph as :mod:`mlirfuse.inspect` draws it."""
    graph, env = reported.host.graph, reported.host.last_sizes
    names = Names(graph, env)

    def line(op: Op) -> inspected.Line:
        types = ", ".join(names.type(v) for v in op.results)
        return inspected.Line(names.statement(op), types, listing.place(op.loc), listing.source(op.loc), op)

    kernels, users = [], graph.body.users()
    for segment, ops in _members(graph.ops).items():
        inside = set(ops)
        read = dict.fromkeys(v for op in ops for v in op.operands if v.op not in inside)
        written = [
            v for op in ops for v in op.results if v in graph.returns or any(u not in inside for u in users.get(v, ()))
        ]
        reads, writes = ({names.of(v): names.type(v) for v in values} for values in (read, written))
        nbytes = [sz.known(sz.parse(str(segment.params.get(name, 0))), env) for name in NAMES]
        launches = [] if segment.scheduler == "no-op" else [inspected.Launch(segment.scheduler, "")]
        shown = [line(op) for op in ops if not listing.is_literal(op)]
        kernels.append(
            inspected.ExplainedKernel(
                segment.number,
                segment.scheduler,
                launches,
                shown,
                reads,
                writes,
                nbytes[0],
                nbytes[1],
                {},
                segment.why,
                segment,
            )
        )
    alone = [op for op in graph.ops if op.segment is None and not listing.is_literal(op)]
    outside = [inspected.Outside(line(op), "torch's own op") for op in alone if not op.row.view]
    views = [inspected.Outside(line(op), "other indices, or an alias") for op in graph.ops if op.row.view]
    inputs, outputs = ({names.of(v): names.type(v) for v in values} for values in (graph.args, graph.returns))
    where = reported.host.target.name
    return inspected.Explanation(reported.which, where, inputs, outputs, kernels, outside, views, [], "", graph, names)


def _kernel(segment: Segment, ops: list[Op]) -> KernelDescription:
    lines = list(dict.fromkeys(listing.place(op.loc) for op in ops if op.loc))
    names = [op.name for op in ops if op.row.kind != "create"]
    read, written = (segment.params.get(name, 0) for name in NAMES)
    return KernelDescription(segment.scheduler, names, lines, read, written, segment.why)
