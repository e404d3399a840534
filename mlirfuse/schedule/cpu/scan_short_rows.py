"""Scans on the CPU along adjacent rows that are no longer than a vector.

A vector has as many full rows as fit, or one row, and is scanned in a register; values are never combined across rows.
Every vector starts with a row, so that all vectors use the same shuffles. If rows share a vector, those depend on the
row length, which is a schedule parameter then. Unused lanes are masked."""

from __future__ import annotations

from collections.abc import Iterator

from mlirfuse.analysis.phases import Analysis, depends_on, is_outer, late_outputs, size_of
from mlirfuse.core.device_properties import HostProperties
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Op, Value
from mlirfuse.lowering import scans as sc
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.kernel import Env, Flat, Index
from mlirfuse.lowering.slots import Slots
from mlirfuse.schedule.cpu.extents import column_extents
from mlirfuse.schedule.cpu.heuristics import heuristics_of
from mlirfuse.schedule.cpu.kernel import CpuBody, CpuKernel, cost_of, lanes_of, rows_grain, store_all, unroll_for
from mlirfuse.schedule.cpu.scan_rows import before
from mlirfuse.schedule.cpu.scheduler import CpuScheduler
from mlirfuse.schedule.cpu.streaming import can_stream_line, past_caches
from mlirfuse.schedule.scheduler import Alignments, SizedCall, require
from mlirfuse.schedule.tiling import Tiling

I64 = dt.i64


class ScanShortRows(CpuScheduler):
    """Scans along rows of at most one vector, fused with elementwise ops on their domain."""

    name = "scan_short_rows"
    fields = "extent", "streamed"

    def takes(self, analysis: Analysis) -> bool:
        return bool(analysis.scans and analysis.kept and not analysis.phases) and analysis.once(_adjacent_rows)

    def candidates(self, analysis: Analysis, call: SizedCall) -> Iterator[Tiling]:
        _, length, width, _ = analysis.values(column_extents, call.sizes)
        lanes = lanes_of(analysis, call.properties)
        if (
            is_outer(analysis, call.sizes)
            or not 1 < length <= lanes
            or width < heuristics_of(call.properties).columns.across_rows
        ):
            return
        full, _ = analysis.once(late_outputs)
        streamed = past_caches(analysis, full, call) and _can_stream(analysis, length, call.alignments, call.properties)
        yield Tiling(
            "scan_short_rows", extent=length if length <= lanes // 2 or length == lanes else 0, streamed=streamed
        )

    def kernels(self, name: str, analysis: Analysis, slots: Slots, p: Tiling, host: HostProperties) -> list[CpuKernel]:
        return [_Kernel(name, analysis, slots, p, host).emit()]

    def check(self, analysis: Analysis, p: Tiling, call: SizedCall) -> None:
        _, length, _, _ = analysis.values(column_extents, call.sizes)
        lanes = lanes_of(analysis, call.properties)
        require(length <= lanes, f"rows have {length} elements, and a vector {lanes} lanes")
        require(p.extent in (0, length), f"extent = {p.extent}: rows have {length} elements")
        aligned = p.extent > 0 and _can_stream(analysis, length, call.alignments, call.properties)
        require(aligned or not p.streamed, "streamed: vectors of outputs are masked, or not aligned")


def _adjacent_rows(analysis: Analysis) -> bool:
    """Whether a row is one loop, and all full-size outputs are contiguous across rows."""
    if len(analysis.loops(analysis.reduced)) != 1:
        return False
    outer, inner = analysis.loops(analysis.kept)[-1], analysis.loops(analysis.reduced)[0]
    full, _ = late_outputs(analysis)
    for value in full:
        across, along = (analysis.axis_stride(value, loop[-1]) for loop in (outer, inner))
        if along != 1 or across != size_of(inner) or not {*outer, *inner} <= set(analysis.axes.flat(value)):
            return False
    return bool(full)


def _can_stream(analysis: Analysis, length: int, alignments: Alignments, host: HostProperties) -> bool:
    """Whether every vector of full-size outputs is unmasked and aligned for non-temporal stores."""
    full, _ = analysis.once(late_outputs)
    unmasked = lanes_of(analysis, host) % length == 0 and len(analysis.loops(analysis.kept)) == 1
    return unmasked and can_stream_line(analysis, full, alignments, host)


class _Kernel:
    """The kernel of a segment. A task is a tile of rows."""

    def __init__(self, name: str, analysis: Analysis, slots: Slots, params: Tiling, host: HostProperties):
        self.analysis, self.params, self.host = analysis, params, host
        self.full, self.small = late_outputs(analysis)
        self.body = body = CpuBody(name, analysis, slots, host, self.full if params.streamed else ())
        self.e, self.k, self.lanes = body.e, body.k, lanes_of(analysis, host)
        e, lanes = self.e, self.lanes
        *self.around, self.outer = analysis.loops(analysis.kept)
        (self.inner,) = analysis.loops(analysis.reduced)
        self.rows, self.length = size_of(self.outer), params.extent or size_of(self.inner)
        self.together = together = lanes // params.extent if params.extent else 1  # rows of a vector
        # The row of each lane. Unused lanes repeat the last row.
        self.rows_of = [min(lane // params.extent, together - 1) if params.extent else 0 for lane in range(lanes)]
        self.column = Index(0, 1, lanes)
        if together > 1:
            lane = e.iota(I64, lanes)
            self.row_of = e.bitcast(e.div(e.bitcast(lane, dt.u64), params.extent), I64)
            self.column = Index(0, 0, lanes, e.sub(lane, e.mul(self.row_of, params.extent)))
        self.same = _same_in_all_rows(analysis, self.outer)
        self.of_row = _of_rows(analysis, self.outer, self.inner)
        self.steps = [1 << n for n in range(((params.extent or lanes) - 1).bit_length())]
        tile = heuristics_of(host).tasks.tile
        # Rows of a task: a multiple of a vector also for outputs with one element per row.
        self.height = -(-tile // (params.extent or lanes) // lanes) * lanes

    def emit(self) -> CpuKernel:
        """The finished kernel."""
        self.body.tasks(self.task)
        tasks = sz.mul(sz.product(size_of(loop) for loop in self.around), sz.ceildiv(self.rows, self.height))
        return self.body.finish(tasks, rows_grain(sz.mul(sz.minimum(self.rows, self.height), self.length), self.host))

    def lanes_of_rows(self, count: Val | None) -> Val | None:
        """The mask of the lanes of ``count`` rows, or of ``together``; None: all lanes."""
        body, length = self.body, self.params.extent
        if count is None and length and self.lanes % length == 0:
            return None
        rows = body.constant(self.together) if count is None else count
        return body.below(self.e.mul(rows, body.size(self.length)), self.lanes)

    def scanned(self, env: Env, first: Val, count: Val | None = None) -> None:
        """Scan ``count`` rows from ``first`` on, or ``together``."""
        body, e, lanes, here, flat = self.body, self.e, self.lanes, dict(env), None
        body.set_loop(here, self.inner, self.column)
        if self.together == 1:
            body.set_loop(here, self.outer, Index(first))
        else:
            row = Index(0, 0, lanes, e.add(e.splat(first, lanes), self.row_of))
            body.set_loop(here, self.outer, row)
            at, axes = Index(e.mul(first, self.params.extent), 1, lanes, divisor=1), (self.outer[-1], self.inner[-1])
            flat = Flat(axes, size_of(self.inner), body.constant(0), at, row, self.column)
        with self.k.coalesced(flat):
            if flat is not None:
                self.spread(here, first, count)
            with self.k.masked(self.lanes_of_rows(count)):
                for op in self.analysis.scans:
                    self.scan(op, here)
                store_all(body, self.full, [here], self.analysis.domain)

    def scan(self, op: Op, here: Env) -> None:
        """Compute a scan of the rows of a vector."""
        e, length = self.e, self.params.extent or self.lanes
        run = sc.element(e, op, self.k.operands(op, here), self.lanes)
        run = sc.along(e, op, run, self.steps, before(e, bool(op.attrs["reverse"]), length))
        self.k.bind(op.result, here, sc.result(e, op, run))

    def spread(self, here: Env, first: Val, count: Val | None) -> None:
        """Load inputs that are constant along rows once per row, and broadcast them to the row's lanes."""
        body, e, k, together = self.body, self.e, self.k, self.together
        n = 1 << (together - 1).bit_length()
        row_env = dict(here)
        body.set_loop(row_env, self.outer, Index(first, 1, n, divisor=1))
        lanes = ", ".join(map(str, self.rows_of))
        for value in self.of_row:
            exact = count is None and n == together
            with k.masked(None if exact else body.below(body.constant(together) if count is None else count, n)):
                val = k.preload(value, row_env)
            shuffled = f"vector.shuffle {val}, {val} [{lanes}] : {val.type}, {val.type}"
            k.bind_loaded(value, here, e.op(shuffled, val.dtype, self.lanes))

    def task(self, index: Val) -> None:
        """Scan the rows of a tile."""
        body, e, together, lanes = self.body, self.e, self.together, self.lanes
        env: Env = {}
        top, bottom = body.block_of(env, self.around, index, self.rows, self.height)
        body.set_loop(env, self.inner, self.column)
        with self.k.masked(self.lanes_of_rows(None) if together == 1 else None, kept=True):
            body.hoist(env, self.same)
        unroll = unroll_for(cost_of(self.analysis))
        middle = e.sub(bottom, e.cast(e.rem(e.cast(e.sub(bottom, top), dt.u64), together * unroll), I64))

        def several(first: Val, _: list[Val]) -> list[Val]:
            for u in range(unroll):
                self.scanned(env, e.add(first, u * together) if u else first)
            return []

        def rest(first: Val, _: list[Val]) -> list[Val]:
            self.scanned(env, first, e.min(e.sub(bottom, first), together))
            return []

        body.loop(top, middle, together * unroll, [], several)
        body.loop(middle, bottom, together, [], rest)
        if self.small:
            body.vectors(top, bottom, lanes, [], lambda indices, mask, state: self.of_rows(env, indices))

    def of_rows(self, env: Env, indices: list[Index]) -> list[Val]:
        """Store outputs with one element per row."""
        for i in indices:
            here = {axis: index for axis, index in env.items() if axis not in self.inner}
            self.body.set_loop(here, self.outer, i)
            store_all(self.body, self.small, [here], self.analysis.kept)
        return []


def _same_in_all_rows(analysis: Analysis, rows) -> list[Value]:
    """Values that are the same in all rows, and depend on no scan."""
    varying = depends_on(analysis, rows)
    for op in analysis.ops:
        if op in analysis.scans or any(v in varying for v in op.operands):
            varying.update(op.results)
    return [v for op in analysis.ops for v in op.results if v not in varying]


def _of_rows(analysis: Analysis, rows, along) -> list[Value]:
    """The inputs that are constant along a row, and contiguous across rows."""
    strides = {v: [analysis.axis_stride(v, loop[-1]) for loop in (rows, along)] for v in analysis.inputs}
    domain = set(analysis.domain)
    return [v for v, found in strides.items() if found == [1, 0] and set(analysis.axes.flat(v)) <= domain]
