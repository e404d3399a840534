"""Outer reductions and normalizations on a GPU: memory runs along a kept axis, the reduced axes are rows above each
other.

``tx`` threads lie along the columns, each with a vector of them, ``ty`` along the rows; a thread walks down its rows
with several loads in flight, and the block's threads of one column combine through shared memory. Few columns are split
over several blocks, whose accumulators meet in a cluster, or are combined by a second kernel. Rows of odd lengths are
*folded*: several of them, one behind the other, are one row of a length that vectors divide; the second kernel combines
what came of each column in them, or a block gathers it (``gpu/unaligned_columns.py``). Columns that a block's registers
hold, or the shared memory of a cluster's (``gpu/shared_columns.py``), are read once, however many phases there are.
"""

from __future__ import annotations

from collections.abc import Iterator

from mlirfuse.analysis import joint
from mlirfuse.analysis.phases import Analysis, is_outer
from mlirfuse.core.device_properties import DeviceProperties
from mlirfuse.lowering.module import GpuKernel
from mlirfuse.lowering.slots import Slots
from mlirfuse.schedule.gpu.access import access_of, hint_of
from mlirfuse.schedule.gpu.coalesced_columns import coalesced, extents, unstacked
from mlirfuse.schedule.gpu.column_body import walk_down
from mlirfuse.schedule.gpu.column_choice import SHARED, ColumnsOfSize, Params, needs_of
from mlirfuse.schedule.gpu.heuristics import heuristics_of
from mlirfuse.schedule.gpu.partial import finish
from mlirfuse.schedule.gpu.scheduler import GpuScheduler, check_cluster, check_threads, in_blocks
from mlirfuse.schedule.gpu.shared_columns import in_shared
from mlirfuse.schedule.gpu.unaligned_columns import gather
from mlirfuse.schedule.scheduler import Alignments, Sizes, power_of_two, require

MOST_REGISTER_ELEMENTS = 512  # elements of a turn of a thread: more is only longer to compile


class GpuColumns(GpuScheduler[Params]):
    """Reductions down columns, and what is as long as they are."""

    name = "columns"
    parameters = Params

    def takes(self, analysis: Analysis) -> bool:
        return analysis.reduces

    def candidates(
        self, analysis: Analysis, env: Sizes, alignments: Alignments, properties: DeviceProperties
    ) -> Iterator[Params]:
        if not is_outer(analysis, env):
            return iter(())
        access = access_of(analysis, True, env, alignments, hint_of(analysis, env, properties))
        found = ColumnsOfSize(analysis, access, env, alignments, properties).candidates()
        _, _, rows = analysis.values(extents, env)
        return (
            p if p.in_registers or p.vectors_per_thread else in_blocks(p, analysis, rows // _rows_per_iteration(p))
            for p in found
        )

    def better_in_stages(self, analysis: Analysis, p: Params, env: Sizes, properties: DeviceProperties) -> bool | None:
        """A block walks down columns slowly, with a few rows under way."""
        if analysis.once(needs_of).one_pass:
            return None
        columns, above, rows = analysis.values(extents, env)
        blocks = -(-columns // (p.tx * p.access.lanes)) * above
        heuristics = heuristics_of(properties).columns
        long = blocks < properties.sm_count or rows >= heuristics.shared_rows_long
        return not p.in_registers and not p.vectors_per_thread and rows >= heuristics.shared_rows_least and long

    def kernels(self, name: str, analysis: Analysis, slots: Slots, p: Params) -> list[GpuKernel]:
        """Two if there are parts."""
        if p.vectors_per_thread:
            return [in_shared(name, analysis, slots, p)]
        kernels = [(gather if p.unaligned else walk_down)(name, analysis, slots, p)]
        partials = p.split if p.unaligned else p.split * p.coalesced_rows
        if partials > 1:
            # columns of a warp: one where they are few and have many parts, each with threads of its own
            points = 1 if p.tx < 32 and partials >= 64 else 8
            phase = analysis.once(joint.online)[0]
            kernels.append(finish(f"{name}_finish", analysis, slots, p.access, partials, phase, points))
        return kernels

    def check(
        self, analysis: Analysis, p: Params, env: Sizes, alignments: Alignments, properties: DeviceProperties
    ) -> None:
        require(is_outer(analysis, env), "columns: for these sizes memory runs along the reduced axes")
        columns = ColumnsOfSize(analysis, p.access, env, alignments, properties)
        needs, rows = analysis.once(needs_of), columns.all_rows
        check_threads(p.tx, p.ty)
        check_cluster(p.cluster, properties)
        for name, n in (("unroll", p.unroll), ("split", p.split), ("fold", p.coalesced_rows)):
            require(n >= 1, f"{name} = {n}: one at least")
        require(power_of_two(p.coalesced_rows), f"coalesced_rows = {p.coalesced_rows}: a power of two")
        if p.coalesced_rows > 1:
            coalesced_rows, access = coalesced(analysis, p.access._replace(lanes=1), env, alignments)
            require(needs.one_pass and coalesced_rows > 1, "coalesced_rows: these rows cannot be folded")
            require(p.unaligned or analysis.once(unstacked), "coalesced_rows: columns above each other are gathered")
            same = (
                p.coalesced_rows == coalesced_rows
                and p.access.lanes == access.lanes
                and p.access.aligns == access.aligns
            )
            require(
                same,
                f"coalesced_rows = {p.coalesced_rows}: here {coalesced_rows} rows of vectors of {access.lanes} as one",
            )
            require(
                not p.in_registers and not p.vectors_per_thread and p.cluster == 1,
                "coalesced_rows: rows are not held, in chunks or in clusters",
            )
            rows //= coalesced_rows
        else:
            self.check_access(analysis, p, True, env, alignments, properties)
            require(not p.unaligned, "unaligned: rows that are folded")
        require(p.split == 1 or needs.one_pass, "split: columns that take more than one pass")
        require(
            p.split == 1 or (p.cluster == 1 and not p.in_registers and not p.vectors_per_thread),
            "split: beside cluster, held or chunks",
        )
        require(p.blocks >= 0, f"blocks = {p.blocks}: not negative")
        require(not p.blocks or not (p.in_registers or p.vectors_per_thread), "blocks: of columns that are walked down")
        require(p.cluster <= p.ty, f"cluster = {p.cluster}: a row of threads for each of its blocks, ty = {p.ty}")
        if p.unaligned:
            least = max(p.coalesced_rows, p.access.lanes)
            require(p.ty >= least, f"unaligned: ty = {p.ty}, a block has {least} rows of threads at least")
            nbytes = columns.meeting(p.tx, p.ty, p.access.lanes)
            require(nbytes <= SHARED, f"unaligned: {nbytes} bytes of shared memory, {SHARED} are there")
            return
        needed = (p.ty + p.cluster + 1) * (p.tx * p.access.lanes + 1) * needs.accumulator_bytes
        require(
            needed <= SHARED or bool(p.vectors_per_thread),
            f"tx, ty: {needed} bytes of shared memory, {SHARED} are there",
        )
        if p.vectors_per_thread:
            require(columns.can_copy(), "vectors_per_thread: columns cannot be copied to shared memory")
            held = p.ty * p.cluster * p.vectors_per_thread
            require(held >= rows, f"ty * cluster * vectors_per_thread = {held}: there are {rows} rows")
            nbytes, room = columns.shared_bytes(p.vectors_per_thread, p.tx * p.ty) + needed, properties.shared_per_block
            require(
                nbytes <= room,
                f"vectors_per_thread = {p.vectors_per_thread}: {nbytes} bytes of shared memory, a block has {room}",
            )
            require(not p.in_registers, "in_registers: not beside chunks")
        else:
            require(p.cluster == 1 or needs.one_pass, "cluster: columns that are read once, or in chunks")
        if p.in_registers:
            require(
                p.cluster == 1 and p.ty * p.unroll >= rows,
                f"in_registers: ty * unroll = {p.ty * p.unroll}, {rows} rows",
            )
        most = MOST_REGISTER_ELEMENTS // p.access.lanes
        require(
            p.unroll <= most, f"unroll = {p.unroll}: a thread has at most {MOST_REGISTER_ELEMENTS} elements at a time"
        )


def _rows_per_iteration(p: Params) -> int:
    """Rows of which all threads of a column take theirs in a turn."""
    threads = p.ty if p.unaligned else p.ty * p.coalesced_rows
    return threads * p.unroll * p.split * p.cluster
