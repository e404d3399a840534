"""Inner reductions and normalizations on a GPU: a row (the reduced axes, contiguous) belongs to a warp, a block or a
cluster.

*Persistent*: each thread keeps its part of the row (``vectors_per_thread`` vectors) in registers or, ``in_shared``, in
shared memory: memory is read once, however many phases of reductions there are. A row longer than a block shall hold is
spread over a cluster of blocks that combine through each other's shared memory. *Looped* (``vectors_per_thread == 0``):
every phase passes over the row again. *Split*: a single phase with few rows is spread over several blocks a row, whose
accumulators a second kernel combines.

Threads past the row's end read a clamped vector whose lanes are replaced by the reduction's identity.
"""

from __future__ import annotations

from collections.abc import Iterator

from mlirfuse.analysis.phases import Analysis, is_outer
from mlirfuse.core.device_properties import DeviceProperties
from mlirfuse.lowering.module import GpuKernel
from mlirfuse.lowering.slots import Slots
from mlirfuse.schedule.gpu.access import access_of, hint_of
from mlirfuse.schedule.gpu.heuristics import heuristics_of
from mlirfuse.schedule.gpu.partial import finish
from mlirfuse.schedule.gpu.row_body import RowsBody, row_inputs
from mlirfuse.schedule.gpu.row_choice import (
    Params,
    RowsOfSize,
    accumulators_of,
    choice,
    copied_whole,
    extents,
    leading_bits,
    row_of,
    shared_bytes,
    unaligned_access,
)
from mlirfuse.schedule.gpu.row_storage import in_loops, in_registers, in_shared, vectors_per_iteration
from mlirfuse.schedule.gpu.scheduler import GpuScheduler, check_cluster, check_threads, in_blocks
from mlirfuse.schedule.gpu.unaligned_rows import UnalignedRows
from mlirfuse.schedule.scheduler import Alignments, Sizes, power_of_two, require

MOST_REGISTER_ELEMENTS = 512  # elements in registers of a thread: more is only longer to compile


class GpuRows(GpuScheduler[Params]):
    """Reductions along rows, and what is as long as they are."""

    name = "rows"
    parameters = Params

    def takes(self, analysis: Analysis) -> bool:
        return analysis.reduces

    def candidates(
        self, analysis: Analysis, env: Sizes, alignments: Alignments, properties: DeviceProperties
    ) -> Iterator[Params]:
        _, length = analysis.values(extents, env)
        inputs = [v for some in analysis.once(row_inputs) for v in some]
        for p in self._modelled(analysis, env, alignments, properties):
            iteration = p.tx * p.access.lanes * vectors_per_iteration(p, inputs)
            yield p if p.vectors_per_thread else in_blocks(p, analysis, length // (p.split * iteration))

    def _modelled(
        self, analysis: Analysis, env: Sizes, alignments: Alignments, properties: DeviceProperties
    ) -> Iterator[Params]:
        if is_outer(analysis, env):
            return
        hint = hint_of(analysis, env, properties)
        access = access_of(analysis, False, env, alignments, hint)
        kept, length = analysis.values(extents, env)
        may_shift = (
            length >= heuristics_of(properties).rows.unaligned.shortest
            and access.lanes * analysis.once(row_of).widest < 16
        )
        wider = unaligned_access(analysis, access, env, alignments, properties) if may_shift else access
        first = analysis.remembered(choice, access, wider, leading_bits(kept), length, properties)
        yield first
        if not may_shift:
            wider = unaligned_access(analysis, access, env, alignments, properties)
        others = RowsOfSize(analysis, access, wider, kept, length, properties).others()
        yield from (p for p in dict.fromkeys(others) if p != first)

    def better_in_stages(self, analysis: Analysis, p: Params, env: Sizes, properties: DeviceProperties) -> bool | None:
        """Where blocks are few and each has much to read."""
        if analysis.once(row_of).one_pass:
            return None
        kept, length = analysis.values(extents, env)
        blocks = -(-kept // p.ty) * p.cluster
        nbytes = kept * length * analysis.once(row_of).row_bytes
        heuristics = heuristics_of(properties).rows.stages
        if p.vectors_per_thread:  # in registers, or a cluster's shared memory
            return blocks <= properties.sm_count // heuristics.kept_share and nbytes >= heuristics.kept_bytes * blocks
        return blocks < properties.sm_count // heuristics.looped_share and nbytes >= heuristics.looped_bytes * blocks

    def kernels(self, name: str, analysis: Analysis, slots: Slots, p: Params) -> list[GpuKernel]:
        """Two if the rows are split."""
        rows = (UnalignedRows if p.unaligned else RowsBody)(name, analysis, slots, p)
        form = in_shared if p.in_shared else in_registers if p.vectors_per_thread else in_loops
        kernels = [rows.finish(form(rows))]
        if p.split > 1:
            kernels.append(finish(f"{name}_finish", analysis, slots, p.access, p.split, rows.phases[0], points=1))
        return kernels

    def check(
        self, analysis: Analysis, p: Params, env: Sizes, alignments: Alignments, properties: DeviceProperties
    ) -> None:
        _, length = analysis.values(extents, env)
        row, lanes = analysis.once(row_of), p.access.lanes
        if p.unaligned:
            require(p.in_shared, "unaligned: rows that begin at any element are staged")
            wider = unaligned_access(analysis, p.access._replace(lanes=1), env, alignments, properties)
            require(
                lanes == wider.lanes > 1 and p.access.aligns == wider.aligns,
                f"unaligned: such vectors have {wider.lanes} elements here"
                if wider.lanes > 1
                else "unaligned: not these rows",
            )
        else:
            self.check_access(analysis, p, False, env, alignments, properties)
        check_threads(p.tx, p.ty)
        check_cluster(p.cluster, properties)
        threads, most = p.tx * p.ty, properties.threads_per_sm
        require(
            p.min_blocks_per_sm >= 1 and p.min_blocks_per_sm * threads <= most,
            f"min_blocks_per_sm = {p.min_blocks_per_sm}: at most {most // threads}",
        )
        require(
            p.cluster == 1 or (p.ty == 1 and p.tx >= p.cluster), "cluster: its blocks have one row, and as many threads"
        )
        require(p.vectors_per_thread >= 0 and p.split >= 1 and p.blocks >= 0, "chunks, split, blocks: not negative")
        require(not p.blocks or not p.vectors_per_thread, "blocks: of rows in loops")
        if not p.vectors_per_thread:
            require(
                p.cluster == 1 and not p.in_shared and not p.prefetch,
                "vectors_per_thread = 0: rows are in no cluster, not staged, not ahead",
            )
            require(p.split == 1 or (p.ty == 1 and row.one_pass), "split: rows alone in a block, in one pass")
            require(power_of_two(p.split), f"split = {p.split}: a power of two")
            return
        require(p.split == 1, "split: rows that are kept are not")
        stride = p.tx * p.cluster * lanes
        held, needed = p.vectors_per_thread * stride, length + lanes - 1 if p.unaligned else length
        require(held >= needed, f"tx * cluster * vectors_per_thread * lanes = {held}: a row has {needed} elements")
        inside = max(0, (length - lanes) // stride) if p.unaligned else length // stride
        require(
            0 <= p.unmasked <= min(p.vectors_per_thread, inside),
            f"unmasked = {p.unmasked}: {min(p.vectors_per_thread, inside)} chunks are inside the row",
        )
        if not p.in_shared:
            held = p.vectors_per_thread * lanes
            require(
                held <= MOST_REGISTER_ELEMENTS,
                f"vectors_per_thread * lanes = {held}: a thread holds at most {MOST_REGISTER_ELEMENTS} elements",
            )
            return
        require(properties.async_copies, f"in_shared: {properties.chip} has no copies to shared memory")
        require(p.ty == 1, f"ty = {p.ty}: staged rows are alone in a block")
        require(
            p.unaligned or analysis.once(copied_whole, p.access), "in_shared: rows cannot be copied 16 bytes at a time"
        )
        vector_bytes, accumulators = lanes * row.row_bytes, analysis.once(accumulators_of)
        nbytes = shared_bytes(p.tx, p.cluster, p.vectors_per_thread, vector_bytes, accumulators)
        room = properties.shared_per_block
        require(
            nbytes <= room,
            f"vectors_per_thread = {p.vectors_per_thread}: {nbytes} bytes of shared memory, a block has {room}",
        )
