"""Row scans on the CPU, along contiguous memory. A task is a row, i.e. a point of the kept axes.

A vector is scanned in a register in log2(lanes) steps, and combined with the state that is carried from vector to
vector. Any number of dependent scans needs a single pass over memory. The dependence chain of a row of n elements has
``n / lanes + log2(lanes)`` operations, where a scalar loop has n.

Reductions of the same row come first, one pass per phase. The row must stay in the core's private cache meanwhile.

A single row is split among threads (``split``): one kernel computes the state of each part, in the workspace, and
another scans the parts, each starting from the combined states of the parts before it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from mlirfuse.analysis.phases import Analysis, apart, is_outer, points_of, row_extents, size_of
from mlirfuse.core.device_properties import HostProperties
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Value
from mlirfuse.lowering import scans as sc
from mlirfuse.lowering.emitter import Emitter, Val
from mlirfuse.lowering.kernel import Env, Flat, Index
from mlirfuse.schedule.cpu.accumulators import Accumulators, in_workspace
from mlirfuse.schedule.cpu.heuristics import heuristics_of
from mlirfuse.schedule.cpu.kernel import CpuKernel, cost_of, store_all, unroll_for
from mlirfuse.schedule.cpu.rows import RowsBody, needs_compensation
from mlirfuse.schedule.cpu.scheduler import CpuScheduler, across_scanned_rows, parts
from mlirfuse.schedule.scheduler import KernelSpec, SizedCall, require
from mlirfuse.schedule.tiling import Tiling


class ScanRows(CpuScheduler):
    """Scans along rows, fused with elementwise ops on their domain."""

    name = "scan_rows"
    fields = "split", "streamed"

    def takes(self, analysis: Analysis) -> bool:
        return bool(analysis.scans)

    def candidates(self, analysis: Analysis, call: SizedCall) -> Iterator[Tiling]:
        if is_outer(analysis, call.sizes) or across_scanned_rows(analysis, call):
            return
        kept, length = analysis.values(row_extents, call.sizes)
        streamed = self.streams(analysis, call)
        few = kept < call.properties.threads and kept * length >= 4 * heuristics_of(call.properties).tasks.shared
        if analysis.phases and (
            few or needs_compensation(analysis, call) or not _cached(analysis, length, call.properties)
        ):
            return
        if few and analysis.once(can_split):
            yield Tiling("scan_rows", split=parts(call.properties), streamed=streamed)
        yield Tiling("scan_rows", streamed=streamed)

    def kernels(self, spec: KernelSpec) -> list[CpuKernel]:
        return kernels(spec, ScannedRows)

    def check(self, analysis: Analysis, p: Tiling, call: SizedCall) -> None:
        alone = p.split == 1 or analysis.once(can_split)
        p.must("split", alone, "not for scans of scans, with reductions, or for rows of several loops")
        short = not analysis.phases or not needs_compensation(analysis, call)
        require(short, "rows are too long: sums of so many elements need a kernel of their own (multi_stage)")
        super().check(analysis, p, call)


def can_split(analysis: Analysis) -> bool:
    """Whether rows are one loop, and a part's state can be computed without the states of the parts before it."""
    return apart(analysis) and not analysis.phases and len(analysis.loops(analysis.reduced)) == 1


def _cached(analysis: Analysis, length: int, host: HostProperties) -> bool:
    """Whether a row is still in the core's private cache when it is read again."""
    return length * sum(v.dtype.bytes for v in analysis.once(_along)) <= host.own_cache // 2


def _along(analysis: Analysis) -> list[Value]:
    """The inputs that vary along the rows."""
    return [v for v in analysis.inputs if set(analysis.reduced) & set(analysis.axes.flat(v))]


def kernels(spec: KernelSpec, body: type[ScannedRows]) -> list[CpuKernel]:
    """The kernels of scans, whose bodies are of the class ``body``: two if rows are split."""
    states = [_states(body(spec._replace(name=f"{spec.name}_states")))] if spec.params.split > 1 else []
    return [*states, _rows(body(spec))]


class ScannedRows(RowsBody):
    """A CPU kernel body with loops along a row that carry scan states, each replicated in all lanes.

    ``around``: the loops over rows. ``unit``: the length of parts is a multiple of it. ``steps``: the lane distances at
    which a vector is scanned. ``kept_lanes``: lanes of a state in the workspace."""

    def __init__(self, spec: KernelSpec):
        super().__init__(spec)
        analysis = spec.analysis
        self.scans, self.unroll, self.split = analysis.scans, unroll_for(cost_of(analysis)), self.p.split
        self.reverse = bool(self.scans[0].attrs["reverse"])
        self.around, self.unit, self.kept_lanes = analysis.loops(analysis.kept), self.lanes, 1
        self.steps = [1 << n for n in range(self.lanes.bit_length() - 1)]

    @property
    def number(self) -> sz.Size:
        """The number of rows."""
        return points_of(self.around)

    def extent(self, depth: int) -> sz.Size:
        """The extent of the loop at this depth."""
        return size_of(self.loops[depth])

    def place(self, env: Env, start: Val) -> Flat | None:
        """Set the innermost loop in ``env`` to the vector that starts at ``start``. Returns how it crosses rows."""
        self.set_loop(env, self.loops[-1], Index(start, int(self.lanes > 1), self.lanes))
        return None

    def behind(self, state: sc.State, run: sc.State) -> tuple[sc.State, sc.State]:
        """The two states whose combination the next vector continues: the one before a vector, and the end of its scan
        ``run``."""
        last = 0 if self.reverse else self.lanes - 1
        return state, tuple(self.e.splat(self.e.extract(v, last), self.lanes) for v in run)

    def states(self) -> Accumulators:
        """The states of parts in the workspace, [split, kept]."""
        return in_workspace(self, self.scans, sz.mul(self.number, self.split, self.kept_lanes), sc.state_types)

    def part_of(self, index: Val) -> tuple[Val, Val, Env]:
        """The part, the row, and the row's env of a task."""
        at, part = self.divided(index, self.split)
        return part, at, self.point(self.around, at)

    def along(self, env: Env, carried: list[Val], visit, part: Val | None = None) -> list[Val]:
        """Run ``visit(env, mask, carried)`` for each vector of a row, or of a part of it, in scan order."""

        def innermost(env: Env, carried: list[Val]) -> list[Val]:
            extent = self.extent(len(self.loops) - 1)
            low, high = self.constant(0), self.size(extent)
            if part is not None:
                length = self.size(sz.mul(sz.ceildiv(extent, self.split * self.unit), self.unit))
                low, high = self.part(part, length, high)

            def vectors(start: Val, count: int, mask: Val | None, state: list[Val]) -> list[Val]:
                for u in reversed(range(count)) if self.reverse else range(count):
                    here, at = dict(env), self.e.add(start, u * self.lanes) if u else start
                    with self.k.coalesced(self.place(here, at)):
                        state = visit(here, mask, state)
                return state

            return self.in_scan_order(low, high, carried, vectors)

        return self.nest(env, self.loops[:-1], carried, innermost, self.reverse)

    def in_scan_order(self, low: Val, high: Val, carried: list[Val], vectors) -> list[Val]:
        """Run ``vectors(start, count, mask, carried)`` for full vectors, unrolled, and for those of the masked
        remainder, which come last, or first in reverse."""
        e, lanes, step = self.e, self.lanes, self.lanes * self.unroll
        middle = e.add(low, e.and_(e.sub(high, low), -step))

        def full(i: Val, state: list[Val]) -> list[Val]:
            return vectors(e.sub(first, i) if self.reverse else i, self.unroll, None, state)

        def masked(i: Val, state: list[Val]) -> list[Val]:
            start = e.sub(end, e.sub(i, middle)) if self.reverse else i
            mask = self.below(e.min(e.sub(high, start), lanes), lanes)
            with self.k.masked(mask):
                return vectors(start, 1, mask, state)

        if not self.reverse:
            return self.loop(middle, high, lanes, self.loop(low, middle, step, carried, full), masked)
        end = e.sub(e.add(e.and_(e.add(e.sub(high, middle), lanes - 1), -lanes), middle), lanes)
        carried = self.loop(middle, high, lanes, carried, masked)
        first = e.sub(e.add(low, middle), step)
        return self.loop(low, middle, step, carried, full)

    def scanned(self, env: Env, mask: Val | None, carried: list[Val]) -> list[Val]:
        """The states after a vector. Binds the results of its scans."""
        e, lanes = self.e, self.lanes
        out: list[Val] = []
        for op, state in zip(self.scans, self.by_scan(carried)):
            run = sc.element(e, op, self.k.operands(op, env), lanes)
            if mask is not None:
                run = sc.select(e, mask, run, sc.identity(e, op, lanes))
            run = sc.along(e, op, run, self.steps, before(e, self.reverse, lanes))
            self.k.bind(op.result, env, sc.result(e, op, sc.combine(e, op, state, run)))
            out += sc.combine(e, op, *self.behind(state, run))
        return out

    def states_of(self, part: Val, row: Val) -> Val:
        """The offset of a part's states in the buffers."""
        return self.e.mul(self.e.add(self.e.mul(part, self.size(self.number)), row), self.kept_lanes)


def _states(body: ScannedRows) -> CpuKernel:
    """The kernel that stores the scan states of parts in the workspace. A task is a part of a row."""
    states = body.states()

    def task(index: Val) -> None:
        part, row, env = body.part_of(index)
        done = body.along(env, body.nothing_scanned(body.lanes), body.scanned, part)
        states.save(body.states_of(part, row), done if body.kept_lanes > 1 else [body.e.extract(v, 0) for v in done])

    return body.kernel(task, sz.mul(body.number, body.split))


def _rows(body: ScannedRows) -> CpuKernel:
    """The kernel that scans. A task is a row, or a part of one."""
    analysis, last = body.analysis, len(body.analysis.phases)
    states = body.states() if body.split > 1 else None

    def visit(env: Env, mask: Val | None, carried: list[Val]) -> list[Val]:
        carried = body.scanned(env, mask, carried)
        store_all(body, body.full, [env], analysis.domain)
        return carried

    def task(index: Val) -> None:
        part, row, env = body.part_of(index)
        for at, phase in enumerate(analysis.phases):
            body.bind(phase, body.reduce(env, at), env)
        body.hoist(env, body.invariant[last])
        carried = _before(body, states, part, row) if states else body.nothing_scanned(body.lanes)
        body.along(env, carried, visit, part if states else None)
        first = body.e.cmp("eq", part, 0) if states and body.small else None
        with body.k.region(f"scf.if {first} {{") if first else contextlib.nullcontext():
            store_all(body, body.small, [env], analysis.kept)

    length = sz.product(map(body.extent, range(len(body.loops))))
    return body.kernel(task, sz.mul(body.number, body.split), 0 if states else length)


def _before(body: ScannedRows, states: Accumulators, part: Val, row: Val) -> list[Val]:
    """The combined states of all parts before this one."""
    e = body.e
    count = e.sub(e.const(body.split - 1, part.dtype), part) if body.reverse else part

    def one(i: Val, carried: list[Val]) -> list[Val]:
        which = e.sub(e.const(body.split - 1, i.dtype), i) if body.reverse else i
        found = [e.splat(v, body.lanes) for v in states.load(body.states_of(which, row), body.kept_lanes)]
        pairs = zip(body.scans, body.by_scan(carried), body.by_scan(found))
        return [v for op, a, b in pairs for v in sc.combine(e, op, a, b)]

    return body.loop(body.constant(0), count, 1, body.nothing_scanned(body.lanes), one)


def before(e: Emitter, reverse: bool, row: int):
    """The shift function for :func:`~mlirfuse.lowering.scans.along`, for vectors of rows of ``row`` lanes: each lane
    gets the value ``n`` lanes before it in its row, or the identity."""

    def shifted(state: sc.State, nothing: sc.State, n: int) -> sc.State:
        lanes = state[0].lanes
        inside = [(lane % row + n < row) if reverse else lane % row >= n for lane in range(lanes)]
        sources = [lane + n if reverse else lane - n for lane in range(lanes)]
        picked = [lanes + at if here and at < lanes else k for k, (here, at) in enumerate(zip(inside, sources))]
        return tuple(e.shuffle(none, v, picked) for v, none in zip(state, nothing))

    return shifted
