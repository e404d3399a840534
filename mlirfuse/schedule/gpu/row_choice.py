"""Chooses the schedule parameters of GPU rows: where rows are kept, and by how many threads. Used by
:mod:`mlirfuse.schedule.gpu.rows`, with the thresholds of :mod:`mlirfuse.schedule.gpu.tuning.heuristics`."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

from mlirfuse.analysis import joint
from mlirfuse.analysis.phases import Analysis, late_outputs
from mlirfuse.ir import sizes as sz
from mlirfuse.lowering import reductions as red
from mlirfuse.schedule.gpu import async_copies
from mlirfuse.schedule.gpu.access import by_vectors
from mlirfuse.schedule.gpu.row_body import at_own_index, read_by, row_inputs
from mlirfuse.schedule.gpu.row_storage import UNROLL
from mlirfuse.schedule.gpu.tuning import heuristics_of
from mlirfuse.schedule.gpu.tuning.heuristics import RowRegisterHeuristics
from mlirfuse.schedule.scheduler import SizedCall
from mlirfuse.schedule.tiling import Access, Tiling

REGISTERS = 64 << 10  # per multiprocessor, on every chip
SYSTEM_SHARED = 1 << 10  # bytes of shared memory per block that the system reserves


def choice(analysis: Analysis, *given: Any) -> Tiling:
    """The heuristic's choice. The arguments are those of :class:`RowsOfSize`."""
    return RowsOfSize(analysis, *given).choice()


def leading_bits(rows: int) -> int:
    """``rows`` rounded down to six significant bits, so that one choice is made for numbers that differ by less than
    3%. (Fewer bits would not distinguish one row for each of 132 multiprocessors from fewer.)"""
    rest = max(0, rows.bit_length() - 6)
    return rows >> rest << rest


class RowsOfSize:
    """Rows of given sizes, and the candidate parameters for them. ``wider``: an access with aligned vectors that start
    before the rows, if those are wider.

    The heuristic: a thread keeps about 16 registers of the row, so that several blocks fit a multiprocessor and one
    loads while another computes (:meth:`registers_wanted`). A row that needs more than a block of 512 threads with 32
    registers each is kept in shared memory, at most half of a multiprocessor's, or in that of a cluster; with weights,
    in a cluster's registers if all threads have the same number of vectors. If it cannot be copied there by 16 bytes at
    a time, it is kept by a cluster of blocks of 256 threads, which synchronize less often the more of the row a thread
    has: 64 registers of it, or 32 for 16-bit floats, which need twice as many when widened. Long rows whose length
    vectors of 16 bytes do not divide are copied by aligned vectors that start before the row. Rows that fit nowhere are
    read again in each phase."""

    def __init__(self, analysis: Analysis, access: Access, wider: Access, kept: int, length: int, properties):
        self.analysis, self.properties = analysis, properties
        self.access, self.wider, self.kept, self.length = access, wider, kept, length
        self.row, self.lanes, self.heuristics = analysis.once(Row), access.lanes, heuristics_of(properties).rows
        self.vectors = max(1, -(-self.length // self.lanes))
        self.registers = max(1, self.lanes * self.row.own_bytes // 4)  # per vector
        self.small = self.kept * self.vectors < properties.sm_count * self.heuristics.threads.parallel
        self.wide = self.lanes * self.row.widest == 16
        self.wanted, self.least = self.registers_wanted(), self.least_threads()
        # Layouts in registers: for one block per row, and for a cluster or a larger block.
        sizes, limits = properties.cluster_sizes, self.heuristics.registers
        self.one_block, self.several_blocks = _register_layouts(self.vectors, self.registers, sizes, limits)

    @functools.cached_property
    def best(self) -> tuple[int, int, int] | None:
        """The best layout in registers, if there is any. (Computed on demand: long rows in shared memory do not need
        it.)"""
        return min(self.one_block or self.several_blocks, key=self.cost, default=None)

    def registers_wanted(self) -> int:
        """The registers of the row that a thread should have.

        The usual number; more if it reads as many weights; few for short rows, for 16-bit floats without weights, and
        for rows with weights if the device has a thread for each vector; fewest for 16-bit floats that are reduced in
        one pass. A register of 16-bit floats is two elements to compute: with more weights than rows, 16 are 0.4%
        slower than 32 and compile in 0.6 of the time."""
        heuristics = self.heuristics.registers
        row, sm_count = self.row, self.properties.sm_count
        threads = sm_count * self.properties.threads_per_sm
        short = heuristics.short_vectors_16bit if row.reduced_precision and not row.single else heuristics.short_vectors
        if self.vectors < short:
            by_elements = self.lanes == 1 and self.vectors < heuristics.short_vectors and row.widest <= 4
            return heuristics.short_per_thread * self.registers if by_elements else heuristics.short
        if row.reduced_precision and row.single and self.wide:
            return heuristics.reduced_16bit
        if row.reduced_precision and self.lanes > 1 and not row.weights:
            return heuristics.short
        if row.weights and self.wide and self.kept * self.vectors <= threads:
            return heuristics.short
        if row.reduced_precision and self.wide and row.weights > row.inputs:
            return heuristics.usual
        most = heuristics.beside_weights
        many = self.kept * self.vectors * self.registers // most >= threads // 3  # with so many per thread
        if row.weights_16bit and self.kept > sm_count:
            return most
        return most if row.weights and row.inputs == 1 and self.wide and many else heuristics.usual

    def least_threads(self) -> int:
        """The least threads of a row that is not short."""
        heuristics = self.heuristics.threads
        if self.wide or self.vectors >= heuristics.long_vectors:
            return min(32, heuristics.line_bytes // (self.lanes * self.row.widest))
        return heuristics.medium if self.vectors >= heuristics.medium_vectors else heuristics.least

    def exact(self, place) -> bool:
        """Whether (threads per row, blocks per cluster, vectors per thread) cover a row exactly."""
        tx, cluster, vectors_per_thread = place
        return tx * cluster * vectors_per_thread * self.lanes == self.length

    def cost(self, place) -> tuple:
        """The sort key of layouts in registers; the least is the best."""
        tx, cluster, vectors_per_thread = place
        registers, threads = self.heuristics.registers, self.heuristics.threads
        used = vectors_per_thread * self.registers
        if self.vectors >= registers.short_vectors and tx < self.least:
            return (True,)
        if self.small:
            together, away = cluster * tx > threads.most_together, abs(vectors_per_thread - threads.parallel_per_thread)
            return (False, together, vectors_per_thread > threads.most_parallel_per_thread, cluster, away, tx)
        if cluster == 1:
            idle = tx * vectors_per_thread > threads.idle * self.vectors
            return (False, used > registers.most_alone, tx > registers.largest_block, idle, abs(used - self.wanted), tx)
        wider, large = tx > registers.wide_block, cluster > threads.portable_cluster
        if self.row.weights and self.wide:
            spread, over = cluster * tx > threads.most_beside_weights, used > registers.beside_weights
            widened = self.row.reduced_precision and wider  # costs more than synchronization of blocks
            away, uneven = abs(used - registers.beside_weights), not self.exact(place)
            return (False, used > registers.most, spread, uneven, over, widened, large, wider, away)
        most = registers.most if self.wide else registers.most_narrow
        idle = self.kept * cluster * tx < self.properties.sm_count * threads.busy
        wanted = registers.cluster_16bit if self.row.reduced_precision else registers.most
        return (False, used > most, wider, large, idle, abs(used - wanted))

    def choice(self) -> Tiling:
        """The heuristic's choice."""
        row, looped, threads = self.row, self.heuristics.looped, self.heuristics.threads
        before = next(self.unaligned(), None)
        if before and self.better_unaligned(before):
            return before
        few = self.kept < self.properties.sm_count // threads.few_rows
        if row.single and self.small and few and self.best and self.best[2] <= threads.one_reduction:
            return self.persistent(*self.best)  # a cluster is faster than two kernels
        if (row.one_pass and not self.one_block) or (row.single and self.vectors > looped.single_vectors and self.wide):
            return self.looped()  # nothing to keep
        if self.one_block and not self.crowded:
            assert self.best is not None
            return self.persistent(*self.best)
        in_shared = [] if self.weights_late() else self.in_shared()
        if in_shared:
            return self.in_shared_memory(in_shared[0])
        most = looped.cluster_elements * max(1, self.heuristics.registers.most_alone // self.registers)
        if not self.best or self.vectors > most:
            return self.looped()
        return self.persistent(*self.best)

    def others(self) -> Iterator[Tiling]:
        """All candidates, including the heuristic's choice."""
        places = sorted(self.one_block, key=self.cost) + sorted(self.several_blocks, key=self.cost)
        ordered = [self.persistent(*place) for place in places]
        yield from map(self.in_shared_memory, self.in_shared()[:8])
        yield from (*self.unaligned(), *ordered, self.looped())
        yield from (p._replace(prefetch=not p.prefetch) for p in ordered[:2] if self.row.late)
        for p in ordered:
            tried = [r for r in (1, 2, 3, 4) if r != p.min_blocks_per_sm and r * p.tx <= 1024] if p.cluster > 1 else []
            yield from (p._replace(min_blocks_per_sm=r) for r in tried)

    @property
    def crowded(self) -> bool:
        """Whether a register-resident row of 16-bit floats would leave too few blocks per multiprocessor: one, with
        widened elements and the values that the online form avoids, or two of the largest, with several weights."""
        if not self.row.reduced_precision or not self.wide or self.small or not self.best:
            return False
        heuristics, (tx, cluster, vectors_per_thread) = self.heuristics.registers, self.best
        if self.row.shorter:
            return vectors_per_thread * self.registers > heuristics.crowded
        return self.row.weights > 1 and cluster == 1 and tx >= heuristics.largest_block

    def weights_late(self) -> bool:
        """Whether a row with weights should be register-resident, with all of the weights loaded at once after its
        reductions."""
        if not (self.row.weights and self.wide and self.best) or self.small or self.crowded:
            return False
        heuristics = self.heuristics.registers
        most = heuristics.cluster_16bit if self.row.reduced_precision else heuristics.most
        return self.exact(self.best) and self.best[2] * self.registers <= most

    def persistent(self, tx: int, cluster: int, vectors_per_thread: int) -> Tiling:
        """The parameters of a register-resident row."""
        registers, threads = self.heuristics.registers, self.heuristics.threads
        ty = max(1, threads.block // tx)
        while ty > 1 and ty * tx > 32 and self.kept // ty < self.properties.sm_count:
            ty //= 2
        min_blocks_per_sm = 1
        if cluster > 1 and tx == registers.wide_block:
            used = vectors_per_thread * self.registers
            few = used <= registers.most_alone
            if self.row.reduced_precision:
                min_blocks_per_sm = threads.min_blocks_16bit[0 if few else 1]
            elif not few and used <= registers.most:
                min_blocks_per_sm = threads.min_blocks_32bit
        widened = registers.widened_elements[self.wide]
        return Tiling(
            "rows", self.access, tx, ty, vectors_per_thread, cluster=cluster,
            unmasked=self.length // (tx * cluster * self.lanes),
            recompute=vectors_per_thread * self.lanes > widened,
            min_blocks_per_sm=min_blocks_per_sm,
            online=self.row.shorter and cluster > 1,
            prefetch=min_blocks_per_sm == 1 and self.loaded_first(tx, cluster, vectors_per_thread),
        )  # fmt: skip

    def loaded_first(self, tx: int, cluster: int, vectors_per_thread: int) -> bool:
        """Whether threads load a whole row and its weights before they reduce it: if that takes few registers, more if
        there are few rows. Threads of large blocks have fewer, also for widened 16-bit floats; with many rows, two
        blocks of 512 must fit a multiprocessor."""
        row, heuristics = self.row, self.heuristics.loads
        if not (row.late or row.weights):  # there is nothing else to load
            return False
        loaded = vectors_per_thread * sum(max(1, self.lanes * size // 4) for size in row.sizes)
        few = self.kept * cluster * tx <= self.properties.sm_count * heuristics.few_threads
        if tx > self.heuristics.registers.wide_block:
            widened = vectors_per_thread * self.lanes if row.reduced_precision else 0
            two_blocks = REGISTERS // (2 * self.heuristics.registers.largest_block)
            alone = REGISTERS // tx - heuristics.left_for_others
            if loaded + widened > (alone if few or tx > self.heuristics.registers.largest_block else two_blocks):
                return False
        if few:
            return loaded <= heuristics.few
        narrow = row.reduced_precision and (not self.wide or row.inputs > 1)
        return loaded <= (heuristics.reduced_precision if narrow else heuristics.usual)

    def shared_layouts(self, vectors: int, lanes: int, threads: tuple[int, ...]) -> tuple[_SharedLayout, ...]:
        """The layouts whose shared memory holds rows of so many vectors."""
        kept = min(self.kept, self.properties.sm_count)
        return self.analysis.remembered(_shared_layouts, vectors, lanes, kept, self.properties, threads)

    def in_shared(self) -> list[_SharedLayout]:
        """Layouts in shared memory, best first.

        Preferred are few idle multiprocessors, not a single block on each with fewer threads than several blocks would
        have, at least 512 threads in all without a cluster, all threads with the same number of vectors, and small
        clusters, which are scheduled sooner. If threads cannot have the same number: several blocks per multiprocessor,
        in clusters of at most eight. For 16-bit floats with weights: blocks and threads that hide each other's
        latency."""
        if not (self.properties.async_copies and self.analysis.once(copied_by_16_bytes, self.access)):
            return []
        heuristics = self.heuristics.shared
        found = self.shared_layouts(self.vectors, self.lanes, heuristics.threads)
        places = [p for p in found if p.vectors_per_thread >= heuristics.least_per_thread]
        evenly = [p for p in places if self.exact(p[:3])]
        together = max((p.blocks * p.tx for p in evenly if p.blocks > 1), default=0)

        def cost(p: _SharedLayout) -> tuple:
            usual, large = p.tx == heuristics.threads[0], p.cluster > self.heuristics.threads.portable_cluster
            if self.row.weights and self.row.reduced_precision:
                hidden = p.blocks * p.tx >= heuristics.hiding and p.blocks >= heuristics.hiding_blocks[p.cluster > 1]
                return p.idle, large, not hidden, p.cluster == 2, p.cluster, p not in evenly, not usual
            if not evenly:
                roomy = p.blocks * p.tx >= heuristics.roomy and (self.row.weights or usual)
                return p.idle, large, not roomy, not usual, p.blocks == 1, p.cluster
            threads, uneven = p.blocks * p.tx, p not in evenly
            lonely, few = p.blocks == 1 and p.tx < together, p.cluster == 1 and threads < heuristics.least_alone
            return p.idle, lonely, few, uneven, uneven and threads < heuristics.roomy, p.cluster

        return sorted(places, key=cost)

    def in_shared_memory(self, p: _SharedLayout) -> Tiling:
        """The parameters of a row with this layout in shared memory."""
        given = p.tx, 1, p.vectors_per_thread, 1, 1, p.cluster
        unmasked, online = p.vectors_per_thread - (not self.exact(p[:3])), self.row.shorter
        return Tiling("rows", self.access, *given, unmasked=unmasked, online=online, in_shared=True)

    def unaligned(self) -> Iterator[Tiling]:
        """Parameters for unaligned rows in shared memory by the wider vectors, best first.

        Preferred are few idle multiprocessors; two blocks on each, or one with many threads if one input of 16-bit
        floats has weights, or clusters of at least four with four blocks on each; enough threads for those blocks, but
        each with more vectors than the few at the ends, in a cluster a dozen."""
        length, row, lanes = self.length, self.row, self.wider.lanes
        if not self.lanes < lanes <= length // 2:
            return
        heuristics = self.heuristics.unaligned
        long = length > heuristics.medium_per_thread * heuristics.medium * lanes
        simple = row.reduced_precision and row.inputs == 1 and 0 < row.weights <= 2 and not row.wider_weights
        alone = simple and self.kept >= heuristics.alone_rows * self.properties.sm_count

        def cost(p: _SharedLayout) -> tuple:
            if p.cluster == 1 and p.blocks == 1 and alone:
                return p.idle, False, 1, p.tx != heuristics.alone
            if p.cluster == 1:
                few = row.single or p.blocks <= heuristics.few_blocks
                threads = heuristics.large if few else heuristics.medium if long else heuristics.small
                return p.idle, p.blocks < 2, 1, p.tx != threads
            waiting = p.blocks < heuristics.cluster_blocks or p.cluster < heuristics.cluster_blocks
            least = heuristics.cluster_per_thread[row.weights == 1]
            return p.idle, waiting, p.cluster, p.tx > heuristics.medium, p.vectors_per_thread < least, -p.tx

        threads = (*self.heuristics.shared.threads, heuristics.alone) if alone else self.heuristics.shared.threads
        vectors, fewest = -(-(length + lanes - 1) // lanes), self.heuristics.shared.least_per_thread
        places = self.shared_layouts(vectors, lanes, threads)
        places = tuple(p for p in places if p.cluster == 1 or p.vectors_per_thread >= fewest)
        for p in sorted(places, key=cost):
            unmasked = (length - lanes) // (p.tx * lanes * p.cluster)
            rows = self.in_shared_memory(p)
            yield rows._replace(access=self.wider, unmasked=unmasked, unaligned=True)

    def better_unaligned(self, p: Tiling) -> bool:
        """Whether the unaligned layout is estimated to be faster."""
        row, kept, length, sm_count = self.row, self.kept, self.length, self.properties.sm_count
        heuristics = self.heuristics.unaligned
        if kept * p.cluster < sm_count:
            return False
        if row.wider_weights:  # two vector loads each, which cost more than element loads
            return row.weights == 1 and length >= heuristics.wider
        if row.single:
            return length >= heuristics.reduced
        if row.weights > 1:  # with few rows, a cluster's registers hold more
            narrow = self.lanes * row.widest <= 2
            return kept >= sm_count and (not self.one_block if narrow else length >= heuristics.weighted)
        return length >= heuristics.plain or kept >= heuristics.many_rows * sm_count

    def looped(self) -> Tiling:
        """The parameters of a row that is read again in each phase; split if one pass suffices and there are few
        rows."""
        row, vectors = self.row, self.vectors
        sm_count, threads_per_sm = self.properties.sm_count, self.properties.threads_per_sm
        heuristics = self.heuristics.looped
        tx = heuristics.least
        while tx < heuristics.usual and vectors > tx * UNROLL:
            tx *= 2
        while tx < heuristics.most and tx * 2 <= vectors // UNROLL and not row.single:
            if self.kept * tx >= sm_count * threads_per_sm // 2:
                break
            tx *= 2
        split, blocks, most = 1, sm_count * (threads_per_sm // tx), vectors // (tx * UNROLL * 2)
        if row.one_pass and vectors >= heuristics.huge:
            tx, blocks, most = heuristics.most, heuristics.huge_blocks * sm_count, vectors // (heuristics.most * UNROLL)
        while row.one_pass and split * 2 <= most and split * self.kept < blocks:
            split *= 2
        ty = max(1, self.heuristics.threads.block // tx) if split == 1 else 1
        return Tiling("rows", self.access, tx, ty, split=split, online=row.shorter)


@functools.lru_cache
def _register_layouts(
    vectors: int, registers: int, cluster_sizes: tuple[int, ...], heuristics: RowRegisterHeuristics
) -> tuple[list[tuple[int, int, int]], list[tuple[int, int, int]]]:
    """Layouts that hold a row of so many vectors in registers, as (threads per row, blocks per cluster, vectors per
    thread): those that a single block of the usual size has, and others."""
    one_block: list[tuple[int, int, int]] = []
    several_blocks: list[tuple[int, int, int]] = []
    for tx in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024):
        for cluster in cluster_sizes if tx >= heuristics.wide_block else (1,):
            vectors_per_thread = -(-vectors // (tx * cluster))
            used = vectors_per_thread * registers
            if tx * cluster >= 2 * vectors and tx > 1:
                break
            if used <= (heuristics.most if tx <= heuristics.wide_block else heuristics.most_alone):
                usual = tx <= heuristics.largest_block or len(cluster_sizes) == 1
                by_itself = cluster == 1 and used <= heuristics.most_alone and usual
                (one_block if by_itself else several_blocks).append((tx, cluster, vectors_per_thread))
    return one_block, several_blocks


def accumulators_of(analysis: Analysis) -> int:
    """The number of accumulator components that threads may exchange per row, each with its own shared memory."""
    return sum(len(red.accumulator_types(op)) for phase in analysis.phases for op in phase)


def copied_by_16_bytes(analysis: Analysis, access: Access) -> bool:
    """Whether inputs that differ from row to row can be copied to shared memory 16 bytes at a time."""
    streamed, _ = analysis.once(row_inputs)
    lane = analysis.loops(analysis.reduced)[-1][-1]
    widest = max((v.dtype.bytes for v in streamed), default=0)
    return access.lanes * widest == 16 and async_copies.possible(analysis, access, streamed, lane)


class _SharedLayout(NamedTuple):
    """A layout of a row in shared memory: threads per block, blocks per cluster, vectors per thread; the
    multiprocessors without a block; the blocks that fit a multiprocessor."""

    tx: int
    cluster: int
    vectors_per_thread: int
    idle: int
    blocks: int


def _shared_layouts(
    analysis: Analysis, vectors: int, lanes: int, kept: int, properties, threads: tuple[int, ...]
) -> tuple[_SharedLayout, ...]:
    """The layouts whose shared memory holds rows of so many vectors, for these numbers of ``threads``. ``kept``: rows,
    at most one for each multiprocessor."""
    vector_bytes, accumulators = lanes * analysis.once(Row).row_bytes, analysis.once(accumulators_of)
    found, room = [], properties.shared_per_block
    for tx, cluster in itertools.product(threads, properties.cluster_sizes):
        vectors_per_thread = -(-vectors // (tx * cluster))
        nbytes = shared_bytes(tx, cluster, vectors_per_thread, vector_bytes, accumulators)
        if nbytes <= room:
            blocks, idle = (room + SYSTEM_SHARED) // (nbytes + SYSTEM_SHARED), properties.sm_count - kept * cluster
            found.append(_SharedLayout(tx, cluster, vectors_per_thread, max(0, idle), blocks))
    return tuple(found)


def shared_bytes(tx: int, cluster: int, vectors_per_thread: int, vector_bytes: int, accumulators: int) -> int:
    """Bytes of shared memory of a block: its part of a row, and what its threads exchange."""
    return vectors_per_thread * tx * vector_bytes + accumulators * (16 + tx // 4 + cluster * 8)


def unaligned_access(analysis: Analysis, access: Access, call: SizedCall) -> Access:
    """``access`` with the widest aligned vectors for unaligned rows, of which the first may start before the row;
    unchanged if that is not possible."""
    lanes, like, steps = analysis.once(_unaligned_layout)
    if not call.properties.async_copies or lanes <= access.lanes or any(step < 0 for step in steps(call.sizes)):
        return access
    if any(call.alignments.get(v, 16) < min(16, lanes * v.dtype.bytes) for v in analysis.inputs + like if v.rank):
        return access
    return by_vectors(analysis, access, lanes, [v for v in like if v in analysis.outputs])


def _unaligned_layout(analysis: Analysis) -> tuple:
    """The lanes of aligned vectors for unaligned rows (0: not supported), the inputs and outputs that they are used
    for, and the row strides as a function of sizes. All of those tensors have the same strides, and so the same
    misalignment."""
    reduced, loops = set(analysis.reduced), analysis.loops(analysis.reduced)
    streamed, shared = analysis.once(row_inputs)
    like = [v for v in dict.fromkeys(streamed + analysis.outputs) if reduced & set(analysis.axes.flat(v))]
    kept = [loop[-1] for loop in analysis.loops(analysis.kept)]
    steps = {tuple(analysis.axis_stride(v, axis) for axis in kept) for v in like}
    unmapped = all(set(analysis.axes.flat(v)) <= set(analysis.domain) and v not in analysis.passed_on for v in like)
    along = all(analysis.axis_stride(v, loops[-1][-1]) == 1 for v in like + shared) and len(loops) == 1
    sizes = {v.dtype.bytes for v in streamed}
    lanes = min(8, 16 // max(sizes, default=8))
    copied = all(nbytes <= 4 and lanes * nbytes in async_copies.SIZES for nbytes in sizes)
    possible = bool(sizes) and copied and unmapped and along and len(steps) == 1
    return lanes if possible else 0, like, sz.tuple_function(next(iter(steps), ()))


class Row:
    """Properties of a rows segment that do not depend on sizes. Bytes are those of an element."""

    def __init__(self, analysis: Analysis):
        streamed, shared = analysis.once(row_inputs)
        full, phases, kept = late_outputs(analysis)[0], analysis.once(joint.online), set(analysis.kept)
        nbytes = [v.dtype.bytes for v in streamed]
        own = [v.dtype.bytes for v in streamed if kept <= set(analysis.axes.flat(v))] or nbytes
        loaded = at_own_index(analysis, streamed + shared)
        self.row_bytes = sum(nbytes)  # of all inputs that differ from row to row
        self.own_bytes = sum(own)  # without those that several rows share, e.g. a batch's
        self.widest = widest = max(nbytes, default=4)
        self.single = len(phases) == 1 and not full  # rows are only reduced, in one pass
        self.one_pass = len(phases) == 1 and analysis.late_values().isdisjoint(full)
        self.shorter = len(phases) < len(analysis.phases)  # online forms need fewer passes
        self.reduced_precision = any(v.dtype.bits == 16 for v in streamed)  # some inputs are 16-bit floats
        self.inputs, self.weights = len(streamed), len(shared)  # that differ from row to row, and that all rows share
        self.weights_16bit = any(v.dtype.bits == 16 for v in shared)
        self.wider_weights = any(v.dtype.bytes > widest for v in shared)
        self.sizes = [v.dtype.bytes for v in loaded]  # of inputs that are read at the rows' own indices
        self.late = len(read_by(analysis, analysis.phases[0], loaded)) < len(loaded)  # some only after reductions
