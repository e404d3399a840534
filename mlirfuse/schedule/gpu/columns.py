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
from mlirfuse.core.device_properties import Machine
from mlirfuse.lowering.module import GpuKernel
from mlirfuse.lowering.slots import Slots
from mlirfuse.schedule.gpu.access import access_of, hint_of
from mlirfuse.schedule.gpu.coalesced_columns import extents, folded, unstacked
from mlirfuse.schedule.gpu.column_body import walk_down
from mlirfuse.schedule.gpu.column_choice import SHARED, ColumnsOfSize, Params, needs_of
from mlirfuse.schedule.gpu.heuristics import model_of
from mlirfuse.schedule.gpu.partial import finish
from mlirfuse.schedule.gpu.scheduler import GpuScheduler, check_cluster, check_threads, in_blocks
from mlirfuse.schedule.gpu.shared_columns import in_shared
from mlirfuse.schedule.gpu.unaligned_columns import gather
from mlirfuse.schedule.scheduler import Alignments, Sizes, power_of_two, require

MOST_HELD = 512  # elements of a turn of a thread: more is only longer to compile


class Columns(GpuScheduler[Params]):
    """Reductions down columns, and what is as long as they are."""

    name = "columns"
    parameters = Params

    def takes(self, analysis: Analysis) -> bool:
        return analysis.reduces

    def candidates(self, analysis: Analysis, env: Sizes, alignments: Alignments, machine: Machine) -> Iterator[Params]:
        if not is_outer(analysis, env):
            return iter(())
        access = access_of(analysis, True, env, alignments, hint_of(analysis, env, machine))
        found = ColumnsOfSize(analysis, access, env, alignments, machine).candidates()
        _, _, rows = analysis.values(extents, env)
        return (p if p.held or p.chunks else in_blocks(p, analysis, rows // _rows_a_turn(p)) for p in found)

    def better_in_stages(self, analysis: Analysis, p: Params, env: Sizes, machine: Machine) -> bool | None:
        """A block walks down columns slowly, with a few rows under way."""
        if analysis.once(needs_of).one_pass:
            return None
        columns, above, rows = analysis.values(extents, env)
        blocks = -(-columns // (p.tx * p.access.lanes)) * above
        model = model_of(machine).columns
        long = blocks < machine.sm_count or rows >= model.staged_long
        return not p.held and not p.chunks and rows >= model.staged_rows and long

    def kernels(self, name: str, analysis: Analysis, slots: Slots, p: Params) -> list[GpuKernel]:
        """Two if there are parts."""
        if p.chunks:
            return [in_shared(name, analysis, slots, p)]
        kernels = [(gather if p.gathered else walk_down)(name, analysis, slots, p)]
        parts = p.split if p.gathered else p.split * p.fold
        if parts > 1:
            # columns of a warp: one where they are few and have many parts, each with threads of its own
            points = 1 if p.tx < 32 and parts >= 64 else 8
            phase = analysis.once(joint.online)[0]
            kernels.append(finish(f"{name}_finish", analysis, slots, p.access, parts, phase, points))
        return kernels

    def check(self, analysis: Analysis, p: Params, env: Sizes, alignments: Alignments, machine: Machine) -> None:
        require(is_outer(analysis, env), "columns: for these sizes memory runs along the reduced axes")
        columns = ColumnsOfSize(analysis, p.access, env, alignments, machine)
        needs, rows = analysis.once(needs_of), columns.all_rows
        check_threads(p.tx, p.ty)
        check_cluster(p.cluster, machine)
        for name, n in (("unroll", p.unroll), ("split", p.split), ("fold", p.fold)):
            require(n >= 1, f"{name} = {n}: one at least")
        require(power_of_two(p.fold), f"fold = {p.fold}: a power of two")
        if p.fold > 1:
            fold, access = folded(analysis, p.access._replace(lanes=1), env, alignments)
            require(needs.one_pass and fold > 1, "fold: these rows cannot be folded")
            require(p.gathered or analysis.once(unstacked), "fold: columns above each other are gathered")
            same = p.fold == fold and p.access.lanes == access.lanes and p.access.aligns == access.aligns
            require(same, f"fold = {p.fold}: here {fold} rows of vectors of {access.lanes} are taken as one")
            require(not p.held and not p.chunks and p.cluster == 1, "fold: rows are not held, in chunks or in clusters")
            rows //= fold
        else:
            self.check_access(analysis, p, True, env, alignments, machine)
            require(not p.gathered, "gathered: rows that are folded")
        require(p.split == 1 or needs.one_pass, "split: columns that take more than one pass")
        require(
            p.split == 1 or (p.cluster == 1 and not p.held and not p.chunks), "split: beside cluster, held or chunks"
        )
        require(p.blocks >= 0, f"blocks = {p.blocks}: not negative")
        require(not p.blocks or not (p.held or p.chunks), "blocks: of columns that are walked down")
        require(p.cluster <= p.ty, f"cluster = {p.cluster}: a row of threads for each of its blocks, ty = {p.ty}")
        if p.gathered:
            least = max(p.fold, p.access.lanes)
            require(p.ty >= least, f"gathered: ty = {p.ty}, a block has {least} rows of threads at least")
            nbytes = columns.meeting(p.tx, p.ty, p.access.lanes)
            require(nbytes <= SHARED, f"gathered: {nbytes} bytes of shared memory, {SHARED} are there")
            return
        needed = (p.ty + p.cluster + 1) * (p.tx * p.access.lanes + 1) * needs.held_bytes
        require(needed <= SHARED or bool(p.chunks), f"tx, ty: {needed} bytes of shared memory, {SHARED} are there")
        if p.chunks:
            require(columns.can_copy(), "chunks: columns cannot be copied to shared memory")
            held = p.ty * p.cluster * p.chunks
            require(held >= rows, f"ty * cluster * chunks = {held}: there are {rows} rows")
            nbytes, room = columns.staged_bytes(p.chunks, p.tx * p.ty) + needed, machine.shared_per_block
            require(nbytes <= room, f"chunks = {p.chunks}: {nbytes} bytes of shared memory, a block has {room}")
            require(not p.held, "held: not beside chunks")
        else:
            require(p.cluster == 1 or needs.one_pass, "cluster: columns that are read once, or in chunks")
        if p.held:
            require(p.cluster == 1 and p.ty * p.unroll >= rows, f"held: ty * unroll = {p.ty * p.unroll}, {rows} rows")
        most = MOST_HELD // p.access.lanes
        require(p.unroll <= most, f"unroll = {p.unroll}: a thread has at most {MOST_HELD} elements at a time")


def _rows_a_turn(p: Params) -> int:
    """Rows of which all threads of a column take theirs in a turn."""
    threads = p.ty if p.gathered else p.ty * p.fold
    return threads * p.unroll * p.split * p.cluster
