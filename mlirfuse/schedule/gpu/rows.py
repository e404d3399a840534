"""Row reductions and normalizations on a GPU: a row (the reduced axes, contiguous) is processed by a warp, a block or a
cluster.

*Persistent*: each thread keeps its part of the row (``vectors_per_thread`` vectors) in registers or, with
``in_shared``, in shared memory: memory is read once, whatever the number of phases. A row too long for a block is
spread over a cluster, whose blocks combine through distributed shared memory. *Looped* (``vectors_per_thread == 0``):
every phase reads the row again. *Split*: a single phase with few rows is spread over several blocks per row, whose
partial accumulators a second kernel combines.

Threads beyond the row's end read a clamped vector whose lanes are replaced by the reduction's identity."""

from __future__ import annotations

from collections.abc import Iterator

from mlirfuse.analysis.phases import Analysis, is_outer, row_extents
from mlirfuse.lowering.module import GpuKernel
from mlirfuse.schedule.gpu.access import access_of, check_exact, hint_of, stores_strided
from mlirfuse.schedule.gpu.partial import combine_partials
from mlirfuse.schedule.gpu.row_body import RowsBody, UnalignedRows, row_inputs
from mlirfuse.schedule.gpu.row_choice import (
    Row,
    RowsOfSize,
    accumulators_of,
    choice,
    copied_by_16_bytes,
    leading_bits,
    shared_bytes,
    unaligned_access,
)
from mlirfuse.schedule.gpu.row_storage import LoopedRows, in_registers, in_shared, vectors_per_iteration
from mlirfuse.schedule.gpu.scheduler import GpuScheduler, compensated
from mlirfuse.schedule.gpu.tuning import heuristics_of
from mlirfuse.schedule.scheduler import KernelSpec, SizedCall, power_of_two, require
from mlirfuse.schedule.tiling import Tiling

MOST_REGISTER_ELEMENTS = 512  # register-resident elements per thread: more only takes longer to compile


class GpuRows(GpuScheduler):
    """Row reductions and normalizations."""

    name = "rows"
    fields = (
        "access", "tx", "ty", "vectors_per_thread", "split", "cluster", "unmasked", "unaligned", "in_shared",
        "recompute", "online", "prefetch", "min_blocks_per_sm", "compensation_interval",
    )  # fmt: skip

    def takes(self, analysis: Analysis) -> bool:
        return analysis.reduces

    def candidates(self, analysis: Analysis, call: SizedCall) -> Iterator[Tiling]:
        _, length = analysis.values(row_extents, call.sizes)
        inputs = [v for some in analysis.once(row_inputs) for v in some]
        for p in self._uncompensated(analysis, call):
            iteration = p.tx * p.access.lanes * vectors_per_iteration(p, inputs)
            yield p if p.vectors_per_thread else compensated(p, analysis, length // (p.split * iteration))

    def _uncompensated(self, analysis: Analysis, call: SizedCall) -> Iterator[Tiling]:
        if is_outer(analysis, call.sizes):
            return
        access = access_of(analysis, False, call, hint_of(analysis, call))
        kept, length = analysis.values(row_extents, call.sizes)
        long = length >= heuristics_of(call.properties).rows.unaligned.shortest
        may_be_unaligned = long and access.lanes * analysis.once(Row).widest < 16
        wider = unaligned_access(analysis, access, call) if may_be_unaligned else access
        yield analysis.remembered(choice, access, wider, leading_bits(kept), length, call.properties)
        if not may_be_unaligned:
            wider = unaligned_access(analysis, access, call)
        yield from RowsOfSize(analysis, access, wider, kept, length, call.properties).others()

    def better_in_stages(self, analysis: Analysis, p: Tiling, call: SizedCall) -> bool | None:
        """True if there are few blocks with much to read each, or results to be transposed."""
        if stores_strided(analysis, False, call):
            return True
        if analysis.once(Row).one_pass:
            return None
        kept, length = analysis.values(row_extents, call.sizes)
        blocks = -(-kept // p.ty) * p.cluster
        # Rows that are read at other indices, those of a slice, have no inputs of their own.
        each = analysis.once(Row).row_bytes or analysis.phases[0][0].operands[0].dtype.bytes
        nbytes = kept * length * each
        heuristics = heuristics_of(call.properties).rows.stages
        share, least = heuristics.looped_share, heuristics.looped_bytes
        few = blocks < call.properties.sm_count // share
        if p.vectors_per_thread:  # in registers, or a cluster's shared memory
            share, least = heuristics.kept_share, heuristics.kept_bytes
            few = blocks <= call.properties.sm_count // share
        return few and nbytes >= least * blocks

    def kernels(self, spec: KernelSpec) -> list[GpuKernel]:
        """One kernel, or two if rows are split."""
        p = spec.params
        rows = (UnalignedRows if p.unaligned else RowsBody)(spec)
        if p.vectors_per_thread:
            grid = in_shared(rows) if p.in_shared else in_registers(rows)
        else:
            grid = LoopedRows(rows).emit()
        kernels = [rows.finish(grid)]
        if p.split > 1:
            kernels.append(combine_partials(spec, p.split, rows.phases[0], points=1))
        return kernels

    def check(self, analysis: Analysis, p: Tiling, call: SizedCall) -> None:
        _, length = analysis.values(row_extents, call.sizes)
        row, lanes = analysis.once(Row), p.access.lanes
        if p.unaligned:
            require(p.in_shared, "unaligned: needs in_shared")
            wider = unaligned_access(analysis, access_of(analysis, False, call)._replace(lanes=1), call)
            require(wider.lanes > 1, "unaligned: not supported for these rows")
            check_exact(p.access, wider)
        else:
            self.check_access(analysis, p, False, call)
        p.must("cluster", p.cluster == 1 or (p.ty == 1 and p.tx >= p.cluster), "needs ty = 1 and tx >= cluster")
        p.excludes("vectors_per_thread", "compensation_interval", "split")
        if not p.vectors_per_thread:
            alone = p.cluster == 1 and not p.in_shared and not p.prefetch
            require(alone, "vectors_per_thread = 0: excludes cluster, in_shared and prefetch")
            require(p.split == 1 or (p.ty == 1 and row.one_pass), "split: needs ty = 1, and rows with one pass")
            p.must("split", power_of_two(p.split), "must be a power of two")
            return
        check_vectors(p, length)
        if not p.in_shared:
            return
        require(call.properties.async_copies, f"in_shared: {call.properties.chip} has no asynchronous copies")
        require(p.ty == 1, f"ty = {p.ty}: in_shared needs ty = 1")
        copied = p.unaligned or analysis.once(copied_by_16_bytes, p.access)
        require(copied, "in_shared: rows cannot be copied 16 bytes at a time")
        vector_bytes, accumulators = lanes * row.row_bytes, analysis.once(accumulators_of)
        nbytes = shared_bytes(p.tx, p.cluster, p.vectors_per_thread, vector_bytes, accumulators)
        room = call.properties.shared_per_block
        p.must("vectors_per_thread", nbytes <= room, f"{nbytes} bytes of shared memory, but a block has {room}")


def check_vectors(p: Tiling, length: int) -> None:
    """Raise :class:`ScheduleError` unless a row's threads have vectors for all of its ``length`` elements, unmasked
    ones are inside, and registers hold them."""
    lanes, stride = p.access.lanes, p.tx * p.cluster * p.access.lanes
    covered, needed = p.vectors_per_thread * stride, length + lanes - 1 if p.unaligned else length
    fits = covered >= needed
    require(fits, f"tx * cluster * vectors_per_thread * lanes = {covered}: a row has {needed} elements")
    inside = max(0, (length - lanes) // stride) if p.unaligned else length // stride
    most = min(p.vectors_per_thread, inside)
    p.must("unmasked", p.unmasked <= most, f"{most} vectors are inside the row for every thread")
    few = f"vectors_per_thread * lanes = {p.width}: at most {MOST_REGISTER_ELEMENTS} elements per thread"
    require(p.in_shared or p.width <= MOST_REGISTER_ELEMENTS, few)
