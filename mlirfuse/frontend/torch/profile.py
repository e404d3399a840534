"""Profiles a model's step: each kernel, each extern op, and the gaps between them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from itertools import accumulate
from typing import Any

import torch

from mlirfuse.analysis import traffic
from mlirfuse.frontend.torch.explain import compiled, section, step
from mlirfuse.frontend.torch.lower import Lowered
from mlirfuse.frontend.torch.ops.rules import VIEWS
from mlirfuse.frontend.torch.reports.description import GraphExplanation, described, kernels_of
from mlirfuse.frontend.torch.torch_private import gpu_sleep
from mlirfuse.inspect import listing
from mlirfuse.inspect.launches import is_of
from mlirfuse.inspect.shown import Table, Tables, page
from mlirfuse.inspect.timing import Times, timed
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Segment, Value
from mlirfuse.lowering import host_steps as st
from mlirfuse.runtime.host_program import HostProgram

_ROUNDS = 5
_STEPS_PER_STALL = 100  # steps of a host program queued during a stall: a device's queue holds a few thousand entries
_COLORS = {"kernel": "#5b8bc9", "library": "#d0913a", "copy": "#c0392b", "view": "#9aa5b1", "host": "#8d6bbf"}


@dataclass
class Row:
    """A part of a step. ``kind``: "kernel" of this back end; "library", an extern op; "copy" between layouts, or into
    an argument; "view"; "host", numbers and checks; "gap", in which none of these runs. ``graph``: the index in
    :attr:`Profile.graphs`; None: outside of graphs.

    ``ms``: device time, on the CPU the host's; ``host_ms``: the host's time to queue or run it; ``start``: ms since the
    start of the step. ``read`` and ``written``: bytes, for an extern op those of its operands and results.
    ``segment``: a kernel's, in its graph.
    """

    graph: int | None
    kind: str
    what: str
    start: float
    ms: float
    host_ms: float
    read: int = 0
    written: int = 0
    ops: str = ""
    lines: str = ""
    segment: Segment | None = field(default=None, repr=False)


@dataclass
class Profile(Tables):
    """The fastest of several steps of a model. ``ms``: the whole step on the device; :attr:`rows`: its parts in the
    order in which they ran. ``str()`` gives a table; :meth:`save` adds drawings."""

    graphs: list[GraphExplanation] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    ms: float = 0.0
    host_ms: float = 0.0

    def summary(self) -> str:
        """One line: the step's time, and its parts' by kind."""
        kinds: dict[str, list[Row]] = {}
        for row in self.rows:
            kinds.setdefault(row.kind, []).append(row)
        parts = [f"{kind} {_ms(rows)} ({len(rows)})" for kind, rows in sorted(kinds.items(), key=_by_time)]
        return f"a step: {self.ms:.3f} ms, of the host {self.host_ms:.3f} ms: {', '.join(parts)}"

    def tables(self) -> list[Table]:
        """Each graph's rows, equal ones merged, slowest first."""
        out = []
        for graph, reported in [*enumerate(self.graphs), (None, None)]:
            rows = [row for row in self.rows if row.graph == graph]
            if rows:
                out.append(_table(rows, f"{reported.which if reported else 'outside of graphs'}: {_ms(rows)} ms"))
        return out

    def to_html(self) -> str:
        """A page with the step's timeline, the tables, and the drawing of each graph."""
        parts = [f"<h1>{escape(self.summary())}</h1>", self._timeline()]
        return page(self.summary(), [*parts, *(t.to_html() for t in self.tables()), *map(section, self.graphs)])

    def _timeline(self) -> str:
        """The timeline at window width: a box for each part, and each graph's start below."""
        scale, boxes, names = 100 / max(self.ms, 1e-9), [], []
        for row in self.rows:
            if row.kind != "gap":
                tip = f"{row.what}: {row.ms:.4f} ms, {_bytes(row.read + row.written)}\n{row.ops}\n{row.lines}"
                box = f'x="{row.start * scale:.3f}" width="{max(row.ms * scale, 0.02):.3f}" y="0" height="60"'
                boxes.append(f'<rect {box} fill="{_COLORS[row.kind]}"><title>{escape(tip)}</title></rect>')
        for at, reported in enumerate(self.graphs):
            begins = [row.start for row in self.rows if row.graph == at]
            if begins:
                left = min(begins) * scale
                side = f"right: {100 - left:.1f}%" if left > 85 else f"left: {left:.1f}%"
                names.append(f'<span style="position: absolute; {side}">{escape(reported.which)}</span>')
        keys = "".join(f'<span style="color: {color}">■ {kind}</span> &nbsp; ' for kind, color in _COLORS.items())
        size = 'viewBox="0 0 100 60" width="100%" height="60" preserveAspectRatio="none"'
        svg = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{"".join(boxes)}</svg>'
        return f'{svg}<div style="position: relative; height: 1.6em">{"".join(names)}</div><div>{keys}</div>'


def profile(model: Any, *args: Any, options: dict[str, Any] | None = None, **kwargs: Any) -> Profile:
    """Compiles ``model`` for these arguments, as :func:`explain` does, and times the parts of a step: a call, and the
    backward where outputs require gradients. Runs the step about ten times; it must be the same each time.

    Times come from the host's clock on the CPU, and from CUDA events on a GPU, which add one or two microseconds per
    part. On a GPU the device is stalled repeatedly until the host has queued work, and that time is subtracted: no part
    waits for the host. A real step takes the larger of the device's and the host's time. Kernels of a program that
    launches several are timed one by one in separate steps, and share the program's time.
    """
    clock, reported = _Clock(), Profile()

    def observer(which: str, lowered: Lowered, host: HostProgram) -> None:
        reported.graphs.append(described(which, lowered, host))
        host.watch(_Watch(clock, len(reported.graphs) - 1))

    with compiled(model, options, observer) as run:
        for _ in range(2):
            step(run, model, args, kwargs)
        clock.on_gpu = any(graph.host.target.device is not None for graph in reported.graphs)
        best: tuple[list[_Span], float, float] | None = None
        for _ in range(_ROUNDS):
            found = clock.round(lambda: step(run, model, args, kwargs))
            best = found if best is None or found[1] < best[1] else best
        assert best is not None
        spans, reported.ms, reported.host_ms = best
        with timed(clock.hold_launches if clock.on_gpu else None) as clock.launched:
            for _ in range(2):  # the first makes what times them
                shares = clock.round(lambda: step(run, model, args, kwargs))[0]
        alike = [(s.graph, s.place) for s in spans] == [(s.graph, s.place) for s in shares]
    reported.rows = list(_rows(reported, spans, shares if alike else spans))
    return reported


# ---- measuring


@dataclass
class _Span:
    """A step of a host program: host and device milliseconds since the round's start."""

    graph: int
    place: int
    host: tuple[float, float]
    device: tuple[float, float]
    kernels: Times = field(default_factory=list)


class _Clock:
    """The timing marks of one round, by the host's clock and, on a GPU, by events."""

    def __init__(self) -> None:
        self.on_gpu = False
        self.stall_ms, self.cycles = 0.0, 0  # stall length, and device cycles per millisecond
        self.stalls: list[tuple[Any, Any]] = []  # events around each stall of the round
        self.steps = 0
        self.marks: list[tuple[int, int, Any, Any]] = []  # graph, step, mark before, mark after
        self.launched: Times = []  # times of single kernels, if enabled
        self.launched_before: list[int] = []  # their number before each step

    def now(self) -> tuple[float, Any, int]:
        """The host's time, an event, and the number of stalls so far."""
        return time.perf_counter(), _event() if self.on_gpu else None, len(self.stalls)

    def stall(self) -> None:
        """Called before a step: every so many steps stalls the device until the host has queued all up to the next
        stall."""
        if self.on_gpu and self.steps % _STEPS_PER_STALL == 0:
            before = _event()
            gpu_sleep(int(self.stall_ms * self.cycles))
            self.stalls.append((before, _event()))
        self.steps += 1

    def hold_launches(self, stream: int, launches: int) -> None:
        """Before the kernels of a program: holds the device until the host has queued them."""
        gpu_sleep(int(0.02 * (2 + launches) * self.cycles))

    def calibrate(self) -> None:
        """Measures the device's clock; called before the first round on a GPU."""
        for cycles in (1_000, 10_000_000):  # the first loads the kernel
            before = _event()
            gpu_sleep(cycles)
            after = _event()
            torch.cuda.synchronize()
        self.cycles, self.stall_ms = int(cycles / before.elapsed_time(after)), 20.0

    def round(self, run: Any) -> tuple[list[_Span], float, float]:
        """The spans of ``run()``, and its total milliseconds on the device and the host."""
        self.marks, self.launched_before, self.stalls, self.steps = [], [], [], 0
        if self.on_gpu:
            if not self.cycles:
                self.calibrate()
            torch.cuda.synchronize()
        begin = self.now()
        run()
        end = self.now()
        if self.on_gpu:
            torch.cuda.synchronize()

        stalled = [0.0, *accumulate(before.elapsed_time(after) for before, after in self.stalls)]

        def since(mark: tuple[float, Any, int]) -> tuple[float, float]:
            host = 1e3 * (mark[0] - begin[0])
            return host, begin[1].elapsed_time(mark[1]) - stalled[mark[2]] if self.on_gpu else host

        spans = []
        for k, (graph, place, before, after) in enumerate(self.marks):
            (h0, d0), (h1, d1) = since(before), since(after)
            kernels = slice(
                self.launched_before[k], self.launched_before[k + 1] if k + 1 < len(self.launched_before) else None
            )
            spans.append(_Span(graph, place, (h0, h1), (d0, d1), self.launched[kernels]))
        host_ms, ms = since(end)
        if self.stalls:
            self.stall_ms = 1.5 * host_ms / len(self.stalls)
        return spans, ms, host_ms


def _event() -> Any:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


class _Watch:
    """Observes the steps of graph number ``graph``'s host program."""

    def __init__(self, clock: _Clock, graph: int):
        self.clock, self.graph = clock, graph
        self.begin: tuple[float, Any, int] = (0.0, None, 0)

    def before(self, place: int) -> None:
        self.clock.stall()
        self.clock.launched_before.append(len(self.clock.launched))
        self.begin = self.clock.now()

    def after(self, place: int) -> None:
        self.clock.marks.append((self.graph, place, self.begin, self.clock.now()))


# ---- rows


def _rows(reported: Profile, spans: list[_Span], shares: list[_Span]) -> Iterator[Row]:
    """The parts of the step, and the gaps between them."""
    at = host_at = 0.0
    last: int | None = None
    for span, share in zip(spans, shares):
        graph = span.graph if span.graph == last else None
        yield Row(graph, "gap", "between", at, span.device[0] - at, span.host[0] - host_at)
        yield from _parts(reported.graphs[span.graph].host, span, share.kernels)
        at, host_at, last = span.device[1], span.host[1], span.graph
    yield Row(None, "gap", "between", at, reported.ms - at, reported.host_ms - host_at)


def _parts(host: HostProgram, span: _Span, times: Times) -> Iterator[Row]:
    """The rows of one step of a host program."""
    step, env = host.sequence.steps[span.place], host.last_sizes
    start, ms, host_ms = span.device[0], span.device[1] - span.device[0], span.host[1] - span.host[0]

    def row(kind: str, what: str, part: float = 1.0, **more: Any) -> Row:
        return Row(span.graph, kind, what, start, part * ms, part * host_ms, **more)

    if isinstance(step, st.Kernels):
        kernels = kernels_of(step.ops)
        taken = _by_segment(host, step, times)
        if not kernels:
            yield row("view", "views")
        for segment, kernel in kernels.items():
            read, written = (sz.known(sz.parse(str(n)), env) for n in (kernel.read, kernel.written))
            total = sum(taken.values())
            part = taken.get(segment, 0.0) / total if total else 1 / len(kernels)
            ops, lines = listing.counted(kernel.ops), ", ".join(kernel.lines)
            bytes_ = {"read": read, "written": written}
            created = row("kernel", kernel.scheduler, part, **bytes_, ops=ops, lines=lines, segment=segment)
            yield created
            start += created.ms
    elif isinstance(step, st.Foreach):
        for segment, kernel in kernels_of(step.op.blocks[0].ops).items():
            what, lines = f"{step.members} × {kernel.scheduler}", ", ".join(kernel.lines)
            bytes_ = {"read": _nbytes(step.reads, env), "written": _nbytes(step.makes, env)}
            yield row("kernel", what, **bytes_, ops=listing.counted(kernel.ops), lines=lines, segment=segment)
    elif isinstance(step, st.Call):
        name = step.op.attrs["callee"] if step.op.row.calls else step.op.name
        view = step.op.row.view or name in VIEWS
        read, written = (0, 0) if view else (_nbytes(step.reads, env), _nbytes(step.makes, env))
        where = listing.place(step.op.loc)
        yield row("view" if view else "library", name, read=read, written=written, lines=where)
    elif isinstance(step, (st.Pack, st.Unalias, st.Copy)):
        moved = _nbytes(step.reads[len(step.reads) // 2 :] if isinstance(step, st.Copy) else step.reads[-1:], env)
        yield row("copy", type(step).__name__.lower(), read=moved, written=moved)
    else:
        yield row("host", type(step).__name__.lower())


def _by_segment(host: HostProgram, step: st.Kernels, times: Times) -> dict[Any, float]:
    """The milliseconds of each segment of ``step``."""
    program = host.launches[step.region].program(host.last_sizes)
    own = step.segments
    taken = {s: sum(ms for name, ms in times if is_of(s, name)) for s in program.steps}
    for numbers in program.launches:
        steps = program.steps[numbers.start : numbers.stop]
        if len(steps) > 1 and not all(taken[s] for s in steps):  # some share other segments' launches: split by bytes
            moved = {s: sum(traffic.of_step(s, host.last_sizes)) for s in steps}
            share = sum(taken[s] for s in steps) / (sum(moved.values()) or 1)
            taken |= {s: share * n for s, n in moved.items()}
    return {own[s.segment]: ms for s, ms in taken.items() if s.segment in own}


def _nbytes(values: list[Value], env: dict[str, int]) -> int:
    """The bytes of the values with known dtypes."""
    total = 0
    for value in dict.fromkeys(values):
        if value.dtype is not None:
            try:
                total += sz.known(value.numel, env) * value.dtype.bytes
            except KeyError:  # an unbacked size
                continue
    return total


# ---- formatting


def _ms(rows: list[Row]) -> str:
    return f"{sum(row.ms for row in rows):.3f}"


def _by_time(kind_and_rows: tuple[Any, list[Row]]) -> float:
    return -sum(row.ms for row in kind_and_rows[1])


def _bytes(n: int) -> str:
    return listing.bytes_text(n) if n else ""


def _table(rows: list[Row], title: str) -> Table:
    """Merges equal rows, slowest first."""
    alike: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        lines = row.lines if row.kind != "view" else ""
        alike.setdefault((row.kind, row.what, row.ops, lines, row.read, row.written), []).append(row)
    total = sum(row.ms for row in rows)
    cells, numbers = [], []
    for (kind, what, ops, lines, read, written), same in sorted(alike.items(), key=_by_time):
        ms, host_ms = sum(row.ms for row in same), sum(row.host_ms for row in same)
        share, rate = 100 * ms / total if total else 0.0, (read + written) * len(same) / ms / 1e6 if ms else 0.0
        numbers.append((ms, share, len(same), read, written, rate, host_ms))
        shown = f"{ms:.3f}", f"{share:.1f}%" if total else "", str(len(same)), kind, what, _bytes(read), _bytes(written)
        cells.append((*shown, f"{rate:.1f}" if rate else "", f"{host_ms:.3f}", ops, lines))
    headings = (
        "ms",
        "share",
        "times",
        "kind",
        "what",
        "bytes read",
        "bytes written",
        "GB/s",
        "host ms",
        "ops",
        "lines",
    )
    sorted_by = ("ms", "share", "times", "bytes read", "bytes written", "GB/s", "host ms")
    return Table(headings, cells, title, dict(zip(sorted_by, zip(*numbers))))
