"""Inner reductions and normalizations on a GPU: a row (the reduced axes, contiguous) belongs to a warp, a block or a
cluster.

*Persistent*: each thread keeps its part of the row (``chunks`` vectors) in registers or, ``staged``, in shared memory:
memory is read once, however many phases of reductions there are. A row longer than a block shall hold is spread over a
cluster of blocks that combine through each other's shared memory. *Looped* (``chunks == 0``): every phase passes over
the row again. *Split*: a single phase with few rows is spread over several blocks a row, whose accumulators a second
kernel combines.

Threads past the row's end read a clamped vector whose lanes are replaced by the reduction's identity.
"""

from __future__ import annotations

from collections.abc import Iterator

from mlirfuse.analysis.phases import Analysis, is_outer
from mlirfuse.core.device_properties import Machine
from mlirfuse.lowering.module import GpuKernel
from mlirfuse.lowering.slots import Slots
from mlirfuse.schedule.gpu.access import access_of, hint_of
from mlirfuse.schedule.gpu.heuristics import model_of
from mlirfuse.schedule.gpu.partial import finish
from mlirfuse.schedule.gpu.row_body import Rows as RowsBody
from mlirfuse.schedule.gpu.row_body import row_inputs
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
    shifted_access,
)
from mlirfuse.schedule.gpu.row_storage import in_loops, in_registers, in_shared, vectors_a_turn
from mlirfuse.schedule.gpu.scheduler import GpuScheduler, check_cluster, check_threads, in_blocks
from mlirfuse.schedule.gpu.unaligned_rows import ShiftedRows
from mlirfuse.schedule.scheduler import Alignments, Sizes, power_of_two, require

MOST_HELD = 512  # elements in registers of a thread: more is only longer to compile


class Rows(GpuScheduler[Params]):
    """Reductions along rows, and what is as long as they are."""

    name = "rows"
    parameters = Params

    def takes(self, analysis: Analysis) -> bool:
        return analysis.reduces

    def candidates(self, analysis: Analysis, env: Sizes, alignments: Alignments, machine: Machine) -> Iterator[Params]:
        _, length = analysis.values(extents, env)
        inputs = [v for some in analysis.once(row_inputs) for v in some]
        for p in self._modelled(analysis, env, alignments, machine):
            turn = p.tx * p.access.lanes * vectors_a_turn(p, inputs)
            yield p if p.chunks else in_blocks(p, analysis, length // (p.split * turn))

    def _modelled(self, analysis: Analysis, env: Sizes, alignments: Alignments, machine: Machine) -> Iterator[Params]:
        if is_outer(analysis, env):
            return
        hint = hint_of(analysis, env, machine)
        access = access_of(analysis, False, env, alignments, hint)
        kept, length = analysis.values(extents, env)
        may_shift = (
            length >= model_of(machine).rows.shifted.shortest and access.lanes * analysis.once(row_of).widest < 16
        )
        wider = shifted_access(analysis, access, env, alignments, machine) if may_shift else access
        first = analysis.remembered(choice, access, wider, leading_bits(kept), length, machine)
        yield first
        if not may_shift:
            wider = shifted_access(analysis, access, env, alignments, machine)
        others = RowsOfSize(analysis, access, wider, kept, length, machine).others()
        yield from (p for p in dict.fromkeys(others) if p != first)

    def better_in_stages(self, analysis: Analysis, p: Params, env: Sizes, machine: Machine) -> bool | None:
        """Where blocks are few and each has much to read."""
        if analysis.once(row_of).one_pass:
            return None
        kept, length = analysis.values(extents, env)
        blocks = -(-kept // p.ty) * p.cluster
        nbytes = kept * length * analysis.once(row_of).row_bytes
        model = model_of(machine).rows.stages
        if p.chunks:  # in registers, or a cluster's shared memory
            return blocks <= machine.sm_count // model.kept_share and nbytes >= model.kept_bytes * blocks
        return blocks < machine.sm_count // model.looped_share and nbytes >= model.looped_bytes * blocks

    def kernels(self, name: str, analysis: Analysis, slots: Slots, p: Params) -> list[GpuKernel]:
        """Two if the rows are split."""
        rows = (ShiftedRows if p.shifted else RowsBody)(name, analysis, slots, p)
        form = in_shared if p.staged else in_registers if p.chunks else in_loops
        kernels = [rows.finish(form(rows))]
        if p.split > 1:
            kernels.append(finish(f"{name}_finish", analysis, slots, p.access, p.split, rows.phases[0], points=1))
        return kernels

    def check(self, analysis: Analysis, p: Params, env: Sizes, alignments: Alignments, machine: Machine) -> None:
        _, length = analysis.values(extents, env)
        row, lanes = analysis.once(row_of), p.access.lanes
        if p.shifted:
            require(p.staged, "shifted: rows that begin at any element are staged")
            wider = shifted_access(analysis, p.access._replace(lanes=1), env, alignments, machine)
            require(
                lanes == wider.lanes > 1 and p.access.aligns == wider.aligns,
                f"shifted: such vectors have {wider.lanes} elements here"
                if wider.lanes > 1
                else "shifted: not these rows",
            )
        else:
            self.check_access(analysis, p, False, env, alignments, machine)
        check_threads(p.tx, p.ty)
        check_cluster(p.cluster, machine)
        threads, most = p.tx * p.ty, machine.threads_per_sm
        require(p.resident >= 1 and p.resident * threads <= most, f"resident = {p.resident}: at most {most // threads}")
        require(
            p.cluster == 1 or (p.ty == 1 and p.tx >= p.cluster), "cluster: its blocks have one row, and as many threads"
        )
        require(p.chunks >= 0 and p.split >= 1 and p.blocks >= 0, "chunks, split, blocks: not negative")
        require(not p.blocks or not p.chunks, "blocks: of rows in loops")
        if not p.chunks:
            require(
                p.cluster == 1 and not p.staged and not p.ahead,
                "chunks = 0: rows are in no cluster, not staged, not ahead",
            )
            require(p.split == 1 or (p.ty == 1 and row.one_pass), "split: rows alone in a block, in one pass")
            require(power_of_two(p.split), f"split = {p.split}: a power of two")
            return
        require(p.split == 1, "split: rows that are kept are not")
        stride = p.tx * p.cluster * lanes
        held, needed = p.chunks * stride, length + lanes - 1 if p.shifted else length
        require(held >= needed, f"tx * cluster * chunks * lanes = {held}: a row has {needed} elements")
        inside = max(0, (length - lanes) // stride) if p.shifted else length // stride
        require(
            0 <= p.whole <= min(p.chunks, inside),
            f"whole = {p.whole}: {min(p.chunks, inside)} chunks are inside the row",
        )
        if not p.staged:
            held = p.chunks * lanes
            require(held <= MOST_HELD, f"chunks * lanes = {held}: a thread holds at most {MOST_HELD} elements")
            return
        require(machine.async_copies, f"staged: {machine.chip} has no copies to shared memory")
        require(p.ty == 1, f"ty = {p.ty}: staged rows are alone in a block")
        require(p.shifted or analysis.once(copied_whole, p.access), "staged: rows cannot be copied 16 bytes at a time")
        vector_bytes, accumulators = lanes * row.row_bytes, analysis.once(accumulators_of)
        nbytes = shared_bytes(p.tx, p.cluster, p.chunks, vector_bytes, accumulators)
        room = machine.shared_per_block
        require(nbytes <= room, f"chunks = {p.chunks}: {nbytes} bytes of shared memory, a block has {room}")
