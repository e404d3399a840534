"""Column scans on the CPU with fewer columns than vector lanes, over memory that is contiguous across all rows.

All rows are scanned as one row, like in :mod:`~mlirfuse.schedule.cpu.scan_rows`, except that an element's predecessor
is as many elements before it as there are columns. A vector has several rows or parts of rows, and may start in any
column; the shuffle that carries states to the next vector is the same for all vectors. The number of columns is a
schedule parameter, because shuffle masks are constants."""

from __future__ import annotations

import math
from collections.abc import Iterator

from mlirfuse.analysis.phases import Analysis, is_outer, late_outputs, size_of
from mlirfuse.core.device_properties import HostProperties
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.lowering import scans as sc
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.kernel import Env, Flat, Index
from mlirfuse.schedule.cpu.heuristics import heuristics_of
from mlirfuse.schedule.cpu.kernel import CpuKernel, lanes_of
from mlirfuse.schedule.cpu.scan_rows import ScannedRows, can_split, kernels
from mlirfuse.schedule.cpu.scheduler import CpuScheduler, can_stream_line, column_extents, parts
from mlirfuse.schedule.scheduler import KernelSpec, SizedCall
from mlirfuse.schedule.tiling import Tiling


class ScanFewColumns(CpuScheduler):
    """Scans down a few columns, fused with elementwise ops on their domain."""

    name = "scan_few_columns"
    fields = "split", "streamed", "extent"

    def takes(self, analysis: Analysis) -> bool:
        return bool(analysis.scans and analysis.kept and not analysis.phases) and analysis.once(_is_one_row)

    def candidates(self, analysis: Analysis, call: SizedCall) -> Iterator[Tiling]:
        kept, rows, columns, _ = analysis.values(column_extents, call.sizes)
        heuristics, threads = heuristics_of(call.properties), call.properties.threads
        fits = is_outer(analysis, call.sizes) and _fits(analysis, columns, call.properties)
        if not fits or rows < heuristics.columns.across_rows:
            return
        lanes = lanes_of(analysis, call.properties)
        if lanes % columns and lanes <= heuristics.columns.turned * columns:
            return
        streamed = self.streams(analysis, call)
        p, many = Tiling("scan_few_columns", streamed=streamed, extent=columns), 4 * heuristics.tasks.shared
        if kept // columns < threads and kept * rows >= many and analysis.once(can_split):
            yield p._replace(split=parts(call.properties))
        yield p

    def can_stream(self, analysis: Analysis, call: SizedCall) -> bool:
        return len(analysis.loops(analysis.kept)) == 1 and can_stream_line(analysis, call)

    def kernels(self, spec: KernelSpec) -> list[CpuKernel]:
        return kernels(spec, _FewColumns)

    def check(self, analysis: Analysis, p: Tiling, call: SizedCall) -> None:
        _, _, columns, _ = analysis.values(column_extents, call.sizes)
        p.must("extent", p.extent == columns, f"there are {columns} columns")
        p.must("extent", _fits(analysis, columns, call.properties), "must be from 2 to a vector's lanes")
        p.must("split", p.split == 1 or analysis.once(can_split), "not for scans of scans")
        super().check(analysis, p, call)


def _fits(analysis: Analysis, columns: int, host: HostProperties) -> bool:
    return 1 < columns <= lanes_of(analysis, host)


def _is_one_row(analysis: Analysis) -> bool:
    """Whether each tensor that is read or written is contiguous across all rows, or (inputs only) constant."""
    full, small = late_outputs(analysis)
    loops = analysis.loops(analysis.reduced)
    if len(loops) != 1 or small:
        return False
    (down,), inner = loops, analysis.loops(analysis.kept)[-1]
    steps = {v: [analysis.axis_stride(v, loop[-1]) for loop in (down, inner)] for v in analysis.inputs + full}
    row = [size_of(inner), 1]
    return all(found == row or (found == [0, 0] and v not in full) for v, found in steps.items()) and all(
        set(analysis.axes.flat(v)) <= set(analysis.domain) for v in analysis.inputs
    )


class _FewColumns(ScannedRows):
    """The kernel body with a loop over all rows as one."""

    def __init__(self, spec: KernelSpec):
        super().__init__(spec)
        analysis, columns = spec.analysis, self.p.extent
        *self.around, self.inner = analysis.loops(analysis.kept)
        self.columns, self.invariant = columns, [[]]
        self.unit, self.kept_lanes = math.lcm(self.lanes, columns), self.lanes
        self.steps = [n * columns for n in self.steps if n * columns < self.lanes]

    def extent(self, depth: int) -> sz.Size:
        return sz.mul(size_of(self.loops[0]), self.columns)

    def place(self, env: Env, start: Val) -> Flat:
        k, e, lanes = self.k, self.e, self.lanes
        line = Index(start, 1, lanes)
        at = e.bitcast(k.materialize(line), dt.u64)
        row = e.div(at, self.columns)  # LLVM removes it if unused
        column = e.sub(at, e.mul(row, self.columns))
        outer, inner = (Index(0, 0, lanes, e.bitcast(v, dt.i64)) for v in (row, column))
        self.set_loop(env, self.loops[0], outer)
        self.set_loop(env, self.inner, inner)
        axes = (self.loops[0][-1], self.inner[-1])
        return Flat(axes, size_of(self.inner), self.constant(0), line, outer, inner)

    def behind(self, state: sc.State, run: sc.State) -> tuple[sc.State, sc.State]:
        last = 0 if self.reverse else self.lanes - self.columns  # the first lane of the last row
        begin = self.lanes if self.reverse else 0
        picked = [last + (lane - begin) % self.columns for lane in range(self.lanes)]
        permuted = state if self.lanes % self.columns == 0 else self._picked(state, picked)
        return permuted, self._picked(run, picked)

    def _picked(self, state: sc.State, lanes: list[int]) -> sc.State:
        return tuple(self.e.shuffle(v, v, lanes) for v in state)
