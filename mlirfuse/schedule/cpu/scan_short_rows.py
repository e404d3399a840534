"""Scans on the CPU along adjacent rows that are no longer than a vector.

A vector has as many full rows as fit, or one row, and is scanned in a register; values are never combined across rows.
Every vector starts with a row, so that all vectors use the same shuffles. If rows share a vector, those depend on the
row length, which is a schedule parameter then. Unused lanes are masked."""

from __future__ import annotations

from collections.abc import Iterator

from mlirfuse.analysis.phases import Analysis, depends_on, is_outer, late_outputs, size_of
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Op, Value
from mlirfuse.lowering import scans as sc
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.kernel import Env, Flat, Index
from mlirfuse.schedule.cpu.heuristics import heuristics_of
from mlirfuse.schedule.cpu.kernel import CpuBody, CpuKernel, cost_of, lanes_of, store_all, unroll_for
from mlirfuse.schedule.cpu.scan_rows import before
from mlirfuse.schedule.cpu.scheduler import CpuScheduler, can_stream_line, column_extents
from mlirfuse.schedule.scheduler import KernelSpec, SizedCall, require
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
        lanes, least = lanes_of(analysis, call.properties), heuristics_of(call.properties).columns.across_rows
        if is_outer(analysis, call.sizes) or not 1 < length <= lanes or width < least:
            return
        streamed = self.streams(analysis, call)
        extent = length if length <= lanes // 2 or length == lanes else 0
        yield Tiling("scan_short_rows", extent=extent, streamed=streamed)

    def can_stream(self, analysis: Analysis, call: SizedCall) -> bool:
        _, length, _, _ = analysis.values(column_extents, call.sizes)
        unmasked = lanes_of(analysis, call.properties) % length == 0 and len(analysis.loops(analysis.kept)) == 1
        return unmasked and can_stream_line(analysis, call)

    def kernels(self, spec: KernelSpec) -> list[CpuKernel]:
        return [_Kernel(spec).emit()]

    def check(self, analysis: Analysis, p: Tiling, call: SizedCall) -> None:
        _, length, _, _ = analysis.values(column_extents, call.sizes)
        lanes = lanes_of(analysis, call.properties)
        require(length <= lanes, f"rows have {length} elements, and a vector {lanes} lanes")
        p.must("extent", p.extent in (0, length), f"rows have {length} elements")
        p.must("streamed", p.extent > 0 or not p.streamed, "vectors of outputs are masked")
        super().check(analysis, p, call)


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


class _Kernel(CpuBody):
    """The kernel of a segment. A task is a tile of rows."""

    def __init__(self, spec: KernelSpec):
        super().__init__(spec)
        analysis, e, lanes, extent = spec.analysis, self.e, self.lanes, self.p.extent
        *self.around, self.outer = analysis.loops(analysis.kept)
        (self.inner,) = analysis.loops(analysis.reduced)
        self.extent, self.rows, self.length = extent, size_of(self.outer), extent or size_of(self.inner)
        self.together = together = lanes // extent if extent else 1  # rows of a vector
        # The row of each lane. Unused lanes repeat the last row.
        self.rows_of = [min(lane // extent, together - 1) if extent else 0 for lane in range(lanes)]
        self.column = Index(0, 1, lanes)
        if together > 1:
            lane = e.iota(I64, lanes)
            self.row_of = e.bitcast(e.div(e.bitcast(lane, dt.u64), extent), I64)
            self.column = Index(0, 0, lanes, e.sub(lane, e.mul(self.row_of, extent)))
        self.same = _same_in_all_rows(analysis, self.outer)
        self.of_row = _of_rows(analysis, self.outer, self.inner)
        self.steps = [1 << n for n in range(((extent or lanes) - 1).bit_length())]
        tile = heuristics_of(self.host).tasks.tile
        # Rows of a task: a multiple of a vector also for outputs with one element per row.
        self.height = -(-tile // (extent or lanes) // lanes) * lanes

    def emit(self) -> CpuKernel:
        """The finished kernel."""
        elements = sz.mul(sz.minimum(self.rows, self.height), self.length)
        return self.of_blocks(self.around, self.rows, self.height, elements, self.task)

    def lanes_of_rows(self, count: Val | None) -> Val | None:
        """The mask of the lanes of ``count`` rows, or of ``together``; None: all lanes."""
        if count is None and self.extent and self.lanes % self.extent == 0:
            return None
        rows = self.constant(self.together) if count is None else count
        return self.below(self.e.mul(rows, self.size(self.length)), self.lanes)

    def scanned(self, env: Env, first: Val, count: Val | None = None) -> None:
        """Scan ``count`` rows from ``first`` on, or ``together``."""
        e, lanes, flat = self.e, self.lanes, None
        row = Index(first) if self.together == 1 else Index(0, 0, lanes, e.add(e.splat(first, lanes), self.row_of))
        here = self.placed(self.placed(env, self.inner, self.column), self.outer, row)
        if self.together > 1:
            at, axes = Index(e.mul(first, self.extent), 1, lanes, divisor=1), (self.outer[-1], self.inner[-1])
            flat = Flat(axes, size_of(self.inner), self.constant(0), at, row, self.column)
        with self.k.coalesced(flat):
            if flat is not None:
                self.spread(here, first, count)
            mask = self.lanes_of_rows(count)
            with self.k.masked(mask):
                for op in self.analysis.scans:
                    self.scan(op, here, mask)
                store_all(self, self.full, [here], self.analysis.domain)

    def scan(self, op: Op, here: Env, mask: Val | None) -> None:
        """Compute a scan of the rows of a vector."""
        e, length = self.e, self.extent or self.lanes
        run = sc.element(e, op, self.k.operands(op, here), self.lanes)
        if mask is not None and not self.extent and op.attrs["reverse"]:  # starts in lanes after the row's
            run = sc.select(e, mask, run, sc.identity(e, op, self.lanes))
        run = sc.along(e, op, run, self.steps, before(e, bool(op.attrs["reverse"]), length))
        self.k.bind(op.result, here, sc.result(e, op, run))

    def spread(self, here: Env, first: Val, count: Val | None) -> None:
        """Load inputs that are constant along rows once per row, and broadcast them to the row's lanes."""
        e, k, together = self.e, self.k, self.together
        n = 1 << (together - 1).bit_length()
        row_env = self.placed(here, self.outer, Index(first, 1, n, divisor=1))
        exact = count is None and n == together
        for value in self.of_row:
            with k.masked(None if exact else self.below(self.constant(together) if count is None else count, n)):
                val = k.preload(value, row_env)
            k.bind_loaded(value, here, e.shuffle(val, val, self.rows_of))

    def task(self, env: Env, top: Val, bottom: Val) -> None:
        """Scan the rows of a tile."""
        e, together = self.e, self.together
        self.set_loop(env, self.inner, self.column)
        with self.k.masked(self.lanes_of_rows(None) if together == 1 else None, kept=True):
            self.hoist(env, self.same)
        unroll = unroll_for(cost_of(self.analysis))
        middle = e.sub(bottom, e.cast(e.rem(e.cast(e.sub(bottom, top), dt.u64), together * unroll), I64))

        def several(first: Val, _: list[Val]) -> None:
            for u in range(unroll):
                self.scanned(env, e.add(first, u * together) if u else first)

        def rest(first: Val, _: list[Val]) -> None:
            self.scanned(env, first, e.min(e.sub(bottom, first), together))

        self.loop(top, middle, together * unroll, [], several)
        self.loop(middle, bottom, together, [], rest)
        if self.small:
            self.vectors(top, bottom, self.lanes, [], lambda indices, mask, state: self.of_rows(env, indices))

    def of_rows(self, env: Env, indices: list[Index]) -> None:
        """Store outputs with one element per row."""
        outside = {axis: index for axis, index in env.items() if axis not in self.inner}
        for i in indices:
            store_all(self, self.small, [self.placed(outside, self.outer, i)], self.analysis.kept)


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
