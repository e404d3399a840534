"""Column reductions and normalizations on a GPU: a kept axis is contiguous in memory, and the reduced axes are rows.

``tx`` threads are along the columns, each with one vector of them, and ``ty`` along the rows. A thread iterates down
its rows with several loads in flight, and the block's threads of one column combine through shared memory. Few columns
are split among blocks, whose accumulators a cluster or a second kernel combines. If vectors do not divide the row
length, several adjacent rows are *coalesced* to one whose length they divide; the second kernel combines the partial
accumulators of each column, or a block does (``reduce_unaligned``). Columns that fit in a block's registers, or
in the shared memory of a cluster (``SharedColumns``), are read once, whatever the number of phases."""

from __future__ import annotations

from collections.abc import Iterator

from mlirfuse.analysis import joint
from mlirfuse.analysis.phases import Analysis, is_outer
from mlirfuse.lowering.module import GpuKernel
from mlirfuse.schedule.gpu.access import access_of, check_exact, hint_of, stores_strided
from mlirfuse.schedule.gpu.column_body import ColumnsBody, SharedColumns, reduce_unaligned
from mlirfuse.schedule.gpu.column_choice import SHARED, ColumnsOfSize, Needs, coalesced, extents, unstacked
from mlirfuse.schedule.gpu.partial import combine_partials
from mlirfuse.schedule.gpu.scheduler import GpuScheduler, compensated
from mlirfuse.schedule.gpu.tuning import heuristics_of
from mlirfuse.schedule.scheduler import KernelSpec, SizedCall, power_of_two, require
from mlirfuse.schedule.tiling import Tiling

MOST_REGISTER_ELEMENTS = 512  # per thread and iteration: more only takes longer to compile


class GpuColumns(GpuScheduler):
    """Column reductions and normalizations."""

    name = "columns"
    fields = (
        "access", "tx", "ty", "rows_per_thread", "split", "cluster", "stages", "coalesced_rows", "unmasked",
        "unaligned", "persistent", "compensation_interval",
    )  # fmt: skip

    def takes(self, analysis: Analysis) -> bool:
        return analysis.reduces

    def candidates(self, analysis: Analysis, call: SizedCall) -> Iterator[Tiling]:
        if not is_outer(analysis, call.sizes):
            return
        access = access_of(analysis, True, call, hint_of(analysis, call))
        _, _, rows = analysis.values(extents, call.sizes)
        for p in ColumnsOfSize(analysis, access, call).candidates():
            resident = p.persistent or p.stages
            yield p if resident else compensated(p, analysis, rows // _rows_per_iteration(p))

    def better_in_stages(self, analysis: Analysis, p: Tiling, call: SizedCall) -> bool | None:
        """Whether columns are neither register-resident nor in shared memory, and stages use more of the device; or
        results have to be transposed."""
        if stores_strided(analysis, True, call):
            return True
        if analysis.once(Needs).one_pass:
            return None
        columns, above, rows = analysis.values(extents, call.sizes)
        blocks = -(-columns // (p.tx * p.access.lanes)) * above
        heuristics = heuristics_of(call.properties).columns
        long = blocks < call.properties.sm_count or rows >= heuristics.shared_rows_long
        return not p.persistent and not p.stages and rows >= heuristics.shared_rows_least and long

    def kernels(self, spec: KernelSpec) -> list[GpuKernel]:
        """One kernel, or two if columns are split."""
        p = spec.params
        if p.unaligned:
            kernels = [reduce_unaligned(spec)]
        else:
            kernels = [(SharedColumns if p.stages else ColumnsBody)(spec).emit()]
        partials = p.split if p.unaligned else p.split * p.coalesced_rows
        if partials > 1:
            # Columns per warp: one if they are few and have many parts.
            points = 1 if p.tx < 32 and partials >= 64 else 8
            kernels.append(combine_partials(spec, partials, spec.analysis.once(joint.online)[0], points))
        return kernels

    def check(self, analysis: Analysis, p: Tiling, call: SizedCall) -> None:
        require(is_outer(analysis, call.sizes), "columns: for these sizes a reduced axis is contiguous, not a kept one")
        columns = ColumnsOfSize(analysis, p.access, call)
        needs, rows = columns.needs, columns.all_rows // p.coalesced_rows
        p.must("coalesced_rows", power_of_two(p.coalesced_rows), "must be a power of two")
        if p.coalesced_rows > 1:
            _check_coalesced(analysis, p, call)
        else:
            self.check_access(analysis, p, True, call)
            require(not p.unaligned, "unaligned: needs coalesced_rows > 1")
        p.must("split", p.split == 1 or needs.one_pass, "not for columns with several passes")
        p.excludes("split", "cluster", "persistent", "stages")
        p.excludes("compensation_interval", "persistent", "stages")
        p.excludes("coalesced_rows", "persistent", "stages", "cluster")
        p.excludes("persistent", "stages", "cluster")
        p.must("cluster", p.cluster <= p.ty, f"must not exceed ty = {p.ty}")
        if p.unaligned:
            least = max(p.coalesced_rows, p.access.lanes)
            p.must("ty", p.ty >= least, f"must be at least {least} for unaligned rows")
            nbytes = columns.unaligned_bytes(p.tx, p.ty, p.access.lanes)
            require(nbytes <= SHARED, f"unaligned: needs {nbytes} bytes of shared memory, {SHARED} are available")
            return
        needed = (p.ty + p.cluster + 1) * (p.tx * p.access.lanes + 1) * needs.accumulator_bytes
        fits = needed <= SHARED or bool(p.stages)
        require(fits, f"tx, ty: need {needed} bytes of shared memory, {SHARED} are available")
        if p.stages:
            require(columns.can_copy(), "stages: columns cannot be copied to shared memory")
            covered = p.ty * p.cluster * p.stages
            require(covered >= rows, f"ty * cluster * stages = {covered}: there are {rows} rows")
            nbytes, room = columns.shared_bytes(p.stages, p.tx * p.ty) + needed, call.properties.shared_per_block
            p.must("stages", nbytes <= room, f"{nbytes} bytes of shared memory, but a block has {room}")
        else:
            p.must("cluster", p.cluster == 1 or needs.one_pass, "columns with several passes need stages")
        covered = p.ty * p.rows_per_thread if p.persistent else rows
        require(covered >= rows, f"persistent: ty * rows_per_thread = {covered} must cover {rows} rows")
        most = MOST_REGISTER_ELEMENTS // p.access.lanes
        few = f"a thread has at most {MOST_REGISTER_ELEMENTS} elements at a time"
        p.must("rows_per_thread", p.rows_per_thread <= most, few)


def _check_coalesced(analysis: Analysis, p: Tiling, call: SizedCall) -> None:
    """Raise :class:`ScheduleError` unless rows can be coalesced as ``p`` says."""
    rows, access = coalesced(analysis, access_of(analysis, True, call)._replace(lanes=1), call)
    require(analysis.once(Needs).one_pass and rows > 1, "coalesced_rows: these rows cannot be coalesced")
    require(p.unaligned or analysis.once(unstacked), "coalesced_rows: several kept loops need unaligned")
    p.must("coalesced_rows", p.coalesced_rows == rows, f"must be {rows}, with vectors of {access.lanes}")
    check_exact(p.access, access)


def _rows_per_iteration(p: Tiling) -> int:
    """Rows that all threads of a column process in one iteration."""
    threads = p.ty if p.unaligned else p.ty * p.coalesced_rows
    return threads * p.rows_per_thread * p.split * p.cluster
