"""Reductions along rows fused with partial sums over rows, on a GPU: when to do so, and the choice of parameters. The
kernels are in :mod:`mlirfuse.schedule.gpu.inner_outer_body`."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from mlirfuse.analysis import stages
from mlirfuse.analysis.phases import Analysis, row_extents
from mlirfuse.lowering.module import GpuKernel
from mlirfuse.schedule.gpu import async_copies
from mlirfuse.schedule.gpu.access import access_of, hint_of
from mlirfuse.schedule.gpu.inner_outer_body import SummedRows, streamed_rows, sums_bytes
from mlirfuse.schedule.gpu.row_body import row_inputs
from mlirfuse.schedule.gpu.row_choice import REGISTERS
from mlirfuse.schedule.gpu.rows import MOST_REGISTER_ELEMENTS
from mlirfuse.schedule.gpu.scheduler import GpuScheduler, compensated
from mlirfuse.schedule.gpu.tuning import heuristics_of
from mlirfuse.schedule.gpu.tuning.heuristics import InnerOuterHeuristics
from mlirfuse.schedule.scheduler import KernelSpec, SizedCall, require
from mlirfuse.schedule.tiling import Access, Tiling

COMPENSATED_THREADS_PER_SM = 512  # limits the registers of 16-bit floats


class InnerOuter(GpuScheduler):
    """Reductions along rows with partial sums over rows."""

    name = "inner_outer"
    fields = (
        "access", "tx", "ty", "vectors_per_thread", "stages", "unmasked", "min_blocks_per_sm", "compensation_interval",
    )  # fmt: skip

    def takes(self, analysis: Analysis) -> bool:
        return bool(analysis.partials) and not analysis.finishing

    def candidates(self, analysis: Analysis, call: SizedCall) -> Iterator[Tiling]:
        rows, _ = analysis.values(row_extents, call.sizes)
        blocks = analysis.partials[0].attrs["parts"]
        for p in self._uncompensated(analysis, call):
            p = compensated(p, analysis, rows // (p.ty * blocks))
            # Limits the registers, of which ptxas would use more for compensated totals with 16-bit floats.
            if p.compensation_interval and analysis.once(_registers)[2]:
                p = p._replace(min_blocks_per_sm=max(p.min_blocks_per_sm, COMPENSATED_THREADS_PER_SM // (p.tx * p.ty)))
            yield p

    def _uncompensated(self, analysis: Analysis, call: SizedCall) -> Iterator[Tiling]:
        access = access_of(analysis, False, call, hint_of(analysis, call))
        _, length = analysis.values(row_extents, call.sizes)
        first = analysis.remembered(_first, access, length, call.properties)
        yield from [first] if first else []
        yield from _ordered(analysis, access, length, call.properties)

    def kernels(self, spec: KernelSpec) -> list[GpuKernel]:
        rows = SummedRows(spec)
        rows.visit()
        return [rows.finish(rows.blocks)]

    def check(self, analysis: Analysis, p: Tiling, call: SizedCall) -> None:
        self.check_access(analysis, p, False, call)
        _, length = analysis.values(row_extents, call.sizes)
        lanes, threads = p.access.lanes, p.tx * p.ty
        covered, most = p.tx * p.width, MOST_REGISTER_ELEMENTS
        require(covered >= length, f"tx * vectors_per_thread * lanes = {covered}: a row has {length} elements")
        inside = min(p.vectors_per_thread, length // (p.tx * lanes))
        p.must("unmasked", p.unmasked <= inside, f"{inside} vectors are inside the row for every thread")
        require(p.width <= most, f"vectors_per_thread * lanes: at most {most} elements per thread")
        nbytes = sums_bytes(analysis, p)
        if p.stages:
            p.must("stages", p.stages > 1, "must be 0, or at least 2")
            require(call.properties.async_copies, f"stages: {call.properties.chip} has no asynchronous copies")
            require(analysis.once(_copyable, p.access), "stages: rows cannot be copied to shared memory")
            nbytes += p.stages * threads * p.width * analysis.once(_registers)[1]
        room = call.properties.shared_per_block
        require(nbytes <= room, f"stages, ty: need {nbytes} bytes of shared memory, a block has {room}")


def _first(analysis: Analysis, *given) -> Tiling | None:
    return next(_ordered(analysis, *given), None)


def _ordered(analysis: Analysis, access: Access, length: int, properties) -> Iterator[Tiling]:
    """Parameters for rows of this length, best first; none for rows that a block's registers do not hold.

    A block has as many rows as make 256 threads, or 128 if each widens many elements. If all threads have the same
    number of vectors, rows are copied through shared memory two iterations ahead. Otherwise one iteration ahead, for
    short rows of 16-bit floats and for rows of 1024 threads, which have no registers for the next one; for other rows
    the bounds check of each copy costs more than it gains, and for the shortest rows the copies themselves do."""
    lanes, (registers, nbytes, reduced_precision) = access.lanes, analysis.once(_registers)
    heuristics = heuristics_of(properties).inner_outer
    room = properties.shared_per_block // 2 - heuristics.left_shared  # two blocks per multiprocessor

    def without_copies() -> Iterator[Tiling]:
        for tx, vectors_per_thread in _places(length, lanes, lanes * registers, reduced_precision, heuristics):
            usual, less, more = heuristics.block, heuristics.block // 2, heuristics.block * 2
            much = vectors_per_thread * lanes > heuristics.widened or vectors_per_thread == heuristics.most_per_thread
            threads = (less, usual, more) if much else (usual, more, less)
            # Several rows per block only if a row has few threads.
            for ty in [*(n // tx for n in threads if tx < heuristics.block and n > tx), 1]:
                unmasked = vectors_per_thread - (tx * vectors_per_thread * lanes > length)
                p = Tiling("inner_outer", access, tx, ty, vectors_per_thread, unmasked=unmasked)
                if sums_bytes(analysis, p) <= room:
                    yield p

    in_shared = properties.async_copies and analysis.once(_copyable, access)
    for p in without_copies():
        iteration, others = p.tx * p.ty * p.width * nbytes, sums_bytes(analysis, p)
        most = room if p.tx < 1024 else 2 * room  # the registers of 1024 threads leave one block
        exact = p.unmasked == p.vectors_per_thread
        stages = heuristics.stages[exact] if in_shared else ()
        prefetched = [p._replace(stages=n) for n in stages if n * iteration + others <= most]
        odd = (p.tx > 512 and lanes > 1) or (8 < p.tx < 256 and lanes > 2 and reduced_precision)
        first = p.tx > 8 if exact else odd
        yield from [*prefetched, p] if first else [p, *prefetched]
    yield from (p._replace(min_blocks_per_sm=r) for p in without_copies() for r in (2, 3, 4) if r * p.tx * p.ty <= 1024)


@functools.lru_cache
def _places(
    length: int, lanes: int, registers: float, reduced_precision: bool, heuristics: InnerOuterHeuristics
) -> list[tuple[int, int]]:
    """(Threads per row, vectors per thread), best first. A thread uses ``registers`` per vector for inputs of this and
    the next iteration and for accumulators: at most 96, and about 64 if there is a choice, except for long odd rows of
    16-bit floats. Preferred are few threads per row, all with the same number of vectors or few with fewer."""
    vectors = -(-length // lanes)

    def cost(place: tuple[int, int]) -> tuple:
        tx, vectors_per_thread = place
        over = tx * vectors_per_thread * lanes - length  # elements of threads beyond the row's end
        long = over and reduced_precision and tx >= heuristics.long_threads
        if vectors_per_thread > (heuristics.most_per_thread_long if long else heuristics.most_per_thread):
            return (True, 0, -tx)
        most = heuristics.most_registers if long else heuristics.registers
        return (False, over, vectors_per_thread * registers > most, tx)

    places = [(tx, -(-vectors // tx)) for tx in (1024, 512, 256, 128, 64, 32, 16, 8)]
    fitting = [p for p in places if p[1] * registers <= heuristics.most_registers and (p[0] == 8 or p[0] < 2 * vectors)]
    return sorted(fitting, key=cost)


def _registers(analysis: Analysis) -> tuple[float, int, bool]:
    """Per element of a row, for all streamed inputs and sums: registers per thread, bytes of the inputs, and whether
    those are 16-bit floats."""
    sizes = [v.dtype.bytes for v in analysis.once(streamed_rows)]
    return len(analysis.partials) + sum(sizes) / 2, sum(sizes), max(sizes, default=4) < 4


def rereading_is_cheaper(analysis: Analysis, env: dict[str, int]) -> bool:
    """Whether reading the inputs of the sums again takes no more bytes than writing and reading partial sums: there are
    few rows."""
    return _more_to_read(analysis, env) <= 0


def separate_is_faster(analysis: Analysis, p: Tiling, call: SizedCall) -> bool:
    """Whether separate kernels for rows and columns are faster than one pass over the rows.

    They are if a multiprocessor's registers do not hold a row of each input, sum and weight, or if reading the inputs
    again is faster than writing and reading the partial sums plus the prologue and epilogue of blocks; an eighth of
    that counts for rows that are read element by element, because other kernels suffer more from that."""
    _, length = analysis.values(row_extents, call.sizes)
    streamed, shared = analysis.once(row_inputs)
    registers = p.vectors_per_thread * p.access.lanes * p.tx * (len(streamed) + len(shared) + len(analysis.partials))
    if registers > REGISTERS:
        return True
    heuristics = heuristics_of(call.properties).inner_outer
    share = heuristics.beginning_elements if p.access.lanes == 1 else 1
    beginning = heuristics.beginning * len(analysis.partials) / share
    return length * _more_to_read(analysis, call.sizes) < beginning


def _more_to_read(analysis: Analysis, env: dict[str, int]) -> int:
    """Bytes per column for reading the inputs of the sums again, minus those for writing and reading partial sums."""
    rows, _ = analysis.values(row_extents, env)
    row, partial_sums = analysis.once(_column_bytes)
    return rows * row - 2 * partial_sums


def _column_bytes(analysis: Analysis) -> tuple[int, int]:
    """Bytes per column of the inputs of the sums in each row, and of the partial sums."""
    return sum(v.dtype.bytes for v in analysis.once(stages.read_again)), sum(
        op.attrs["parts"] * op.result.dtype.compute.bytes for op in analysis.partials
    )


def _copyable(analysis: Analysis, access: Access) -> bool:
    """Whether rows can be copied asynchronously to shared memory."""
    lane = analysis.loops(analysis.reduced)[-1][-1]
    return async_copies.possible(analysis, access, analysis.once(streamed_rows), lane)
