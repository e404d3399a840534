"""Which rows of a GPU's kernels are kept where, and by how many threads: what :mod:`mlirfuse.schedule.gpu.rows` chooses
for the sizes of a call, by the thresholds of :mod:`mlirfuse.schedule.gpu.heuristics`."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

from mlirfuse.analysis import joint
from mlirfuse.analysis.phases import Analysis
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Value
from mlirfuse.lowering import reductions as red
from mlirfuse.schedule.gpu import async_copies as gpu_staging
from mlirfuse.schedule.gpu.access import Access
from mlirfuse.schedule.gpu.heuristics import RowRegisterHeuristics, heuristics_of
from mlirfuse.schedule.gpu.row_body import at_own_index, read_by, row_inputs
from mlirfuse.schedule.gpu.row_storage import UNROLL

REGISTERS = 64 << 10  # of a multiprocessor, on every chip
SYSTEM_SHARED = 1 << 10  # bytes of shared memory that the system takes for each block


class Params(NamedTuple):
    """``tx`` threads along a row and ``ty`` rows a block; ``vectors_per_thread`` vectors a thread (0: looped);
    ``cluster`` blocks a row; ``split`` blocks a row that combine in a second kernel; ``unmasked``: how many of the
    chunks lie inside the row for every thread, so that they need no check; ``recompute``: values are computed again in
    each phase from what was loaded, which needs fewer registers; ``min_blocks_per_sm``: blocks that shall fit a
    multiprocessor at a time, which bounds their registers; ``online``: softmax's maximum and sum are one reduction;
    ``in_shared``: the vectors are kept in shared memory, not in registers; ``unaligned``: they begin before the row,
    where memory is aligned for them; ``prefetch``: weights, and what else is read for the time after the reductions,
    are under way before them; ``blocks``: turns of a looped row after which sums go to running totals (0: never)."""

    access: Access
    tx: int
    ty: int
    vectors_per_thread: int
    cluster: int = 1
    split: int = 1
    unmasked: int = 0
    recompute: bool = False
    min_blocks_per_sm: int = 1
    online: bool = False
    in_shared: bool = False
    unaligned: bool = False
    prefetch: bool = False
    blocks: int = 0


def choice(analysis: Analysis, *given: Any) -> Params:
    """The model's for rows that are given as to :class:`RowsOfSize`."""
    return RowsOfSize(analysis, *given).choice()


def leading_bits(rows: int) -> int:
    """``rows`` to six bits: for numbers of rows that differ by less than 3% the choice is made once. (Fewer bits would
    not tell one row for each of 132 multiprocessors from fewer.)"""
    rest = max(0, rows.bit_length() - 6)
    return rows >> rest << rest


class RowsOfSize:
    """Rows of given sizes, and the parameters that they may have. ``wider``: an access by vectors that begin before the
    rows, where those are wider.

    The model: a thread keeps about 16 registers of the row, so that several blocks fit a multiprocessor and load while
    another computes (:meth:`registers_wanted`). A row that needs more than a block of 512 threads with 32 registers
    each is kept in shared memory, half of a multiprocessor's at most, or that of a cluster's blocks; beside weights in
    a cluster's registers, if all threads have as much of it. Where it cannot be copied there 16 bytes at a time, it
    takes a cluster of blocks of 256 threads, which exchange less often the more of the row a thread has: 64 registers
    of it, of half types, which take twice as many widened, 32. Long rows that vectors of 16 bytes do not divide are
    copied by such as begin before the row. One that nothing holds is read again in each phase.
    """

    def __init__(self, analysis: Analysis, access: Access, wider: Access, kept: int, length: int, properties):
        self.analysis, self.access, self.wider, self.kept, self.length, self.properties = (
            analysis,
            access,
            wider,
            kept,
            length,
            properties,
        )
        self.row, self.lanes, self.heuristics = analysis.once(row_of), access.lanes, heuristics_of(properties).rows
        self.vectors = max(1, -(-self.length // self.lanes))
        self.registers = max(1, self.lanes * self.row.own_bytes // 4)  # of one chunk
        self.small = self.kept * self.vectors < properties.sm_count * self.heuristics.threads.parallel
        self.wide = self.lanes * self.row.widest == 16
        self.wanted, self.least = self.registers_wanted(), self.least_threads()
        self.alone, self.shared = _places(
            self.vectors, self.registers, properties.cluster_sizes, self.heuristics.registers
        )

    @functools.cached_property
    def best(self) -> tuple[int, int, int] | None:
        """The best place in registers, if there is any. (Looked for once it is asked for, which long rows in shared
        memory do without.)"""
        return min(self.alone or self.shared, key=self.cost, default=None)

    def registers_wanted(self) -> int:
        """How many registers of the row a thread shall have: the usual number; more where it reads as many weights too;
        few of one that is short, of half types without weights, or beside weights where the machine has a thread for
        each vector; the fewest of half types that are only reduced, in one pass. Of half types a register is two
        elements to compute: with more weights than rows, 16 are 0.4% slower than 32 and compile in 0.6 of the time."""
        heuristics = self.heuristics.registers
        row, sm_count, threads = (
            self.row,
            self.properties.sm_count,
            self.properties.sm_count * self.properties.threads_per_sm,
        )
        short = heuristics.short_vectors_16bit if row.reduced_precision and not row.single else heuristics.short_vectors
        if self.vectors < short:
            by_elements = self.lanes == 1 and self.vectors < heuristics.short_vectors and row.widest <= 4
            return heuristics.short_per_thread * self.registers if by_elements else heuristics.short
        if row.reduced_precision and row.single and self.wide:
            return heuristics.reduced_16bit
        if (row.reduced_precision and self.lanes > 1 and not row.weights) or (
            row.weights and self.wide and self.kept * self.vectors <= threads
        ):
            return heuristics.short
        if row.reduced_precision and self.wide and row.weights > row.inputs:
            return heuristics.usual
        most = heuristics.beside_weights
        many = self.kept * self.vectors * self.registers // most >= threads // 3  # threads, if each has so many
        beside = (row.weights_16bit and self.kept > sm_count) or (
            row.weights and row.inputs == 1 and self.wide and many
        )
        return most if beside else heuristics.usual

    def least_threads(self) -> int:
        """How many threads a row that is not short shall have."""
        heuristics = self.heuristics.threads
        if self.wide or self.vectors >= heuristics.long_vectors:
            return min(32, heuristics.line_bytes // (self.lanes * self.row.widest))
        return heuristics.medium if self.vectors >= heuristics.medium_vectors else heuristics.least

    def exact(self, place) -> bool:
        """Whether all threads have as much of a row at (threads along it, blocks a cluster, chunks a thread)."""
        tx, cluster, vectors_per_thread = place
        return tx * cluster * vectors_per_thread * self.lanes == self.length

    def cost(self, place) -> tuple:
        """The order of such places in registers: the least is the best."""
        tx, cluster, vectors_per_thread = place
        registers, threads = self.heuristics.registers, self.heuristics.threads
        held = vectors_per_thread * self.registers
        if self.vectors >= registers.short_vectors and tx < self.least:
            return (True,)
        if self.small:
            together, away = cluster * tx > threads.most_together, abs(vectors_per_thread - threads.parallel_per_thread)
            return (False, together, vectors_per_thread > threads.most_parallel_per_thread, cluster, away, tx)
        if cluster == 1:
            idle = tx * vectors_per_thread > threads.idle * self.vectors
            return (False, held > registers.most_alone, tx > registers.largest_block, idle, abs(held - self.wanted), tx)
        wider, large = tx > registers.wide_block, cluster > threads.portable_cluster
        if self.row.weights and self.wide:
            return (
                False,
                held > registers.most,
                cluster * tx > threads.most_beside_weights,
                not self.exact(place),
                held > registers.beside_weights,
                self.row.reduced_precision and wider,  # costs more than blocks that wait for each other
                large,
                wider,
                abs(held - registers.beside_weights),
            )
        most = registers.most if self.wide else registers.most_narrow
        idle = self.kept * cluster * tx < self.properties.sm_count * threads.busy
        wanted = registers.cluster_16bit if self.row.reduced_precision else registers.most
        return (False, held > most, wider, large, idle, abs(held - wanted))

    def choice(self) -> Params:
        """The model's."""
        row, looped, threads = self.row, self.heuristics.looped, self.heuristics.threads
        before = next(self.unaligned(), None)
        if before and self.better_unaligned(before):
            return before
        few = self.kept < self.properties.sm_count // threads.few_rows
        if row.single and self.small and few and self.best and self.best[2] <= threads.one_reduction:
            return self.persistent(*self.best)  # a cluster at a time is sooner done than two kernels
        if (row.one_pass and not self.alone) or (row.single and self.vectors > looped.single_vectors and self.wide):
            return self.looped()  # nothing to keep
        if self.alone and not self.crowded:
            assert self.best is not None
            return self.persistent(*self.best)
        in_shared = [] if self.weights_late() else self.in_shared()
        if in_shared:
            return self.in_shared_memory(in_shared[0])
        held = looped.cluster_elements * max(1, self.heuristics.registers.most_alone // self.registers)
        if not self.best or self.vectors > held:
            return self.looped()
        return self.persistent(*self.best)

    def others(self) -> Iterator[Params]:
        """What else is worth trying, the model's choice among it."""
        ordered = [
            self.persistent(*place) for place in sorted(self.alone, key=self.cost) + sorted(self.shared, key=self.cost)
        ]
        yield from map(self.in_shared_memory, self.in_shared()[:8])
        yield from (*self.unaligned(), *ordered, self.looped())
        yield from (p._replace(prefetch=not p.prefetch) for p in ordered[:2] if self.row.late)
        for p in ordered:
            if p.cluster > 1:
                yield from (
                    p._replace(min_blocks_per_sm=r)
                    for r in (1, 2, 3, 4)
                    if r != p.min_blocks_per_sm and r * p.tx <= 1024
                )

    @property
    def crowded(self) -> bool:
        """Whether a row in registers, half types widened and what the online form does without, would leave a
        multiprocessor to one block."""
        row = self.row
        return bool(
            row.shorter
            and row.reduced_precision
            and self.wide
            and not self.small
            and self.best
            and self.best[2] * self.registers > self.heuristics.registers.crowded
        )

    def weights_late(self) -> bool:
        """Whether a row beside weights belongs into registers, where all of the weights are loaded at once when the
        row's reductions are done."""
        if not (self.row.weights and self.wide and self.best) or self.small or self.crowded:
            return False
        heuristics = self.heuristics.registers
        most = heuristics.cluster_16bit if self.row.reduced_precision else heuristics.most
        return self.exact(self.best) and self.best[2] * self.registers <= most

    def persistent(self, tx: int, cluster: int, vectors_per_thread: int) -> Params:
        """The row in registers."""
        registers, threads = self.heuristics.registers, self.heuristics.threads
        ty = max(1, threads.block // tx)
        while ty > 1 and ty * tx > 32 and self.kept // ty < self.properties.sm_count:
            ty //= 2
        min_blocks_per_sm = 1
        if cluster > 1 and tx == registers.wide_block:
            held = vectors_per_thread * self.registers
            few = held <= registers.most_alone
            if self.row.reduced_precision:
                min_blocks_per_sm = threads.min_blocks_16bit[0 if few else 1]
            elif not few and held <= registers.most:
                min_blocks_per_sm = threads.min_blocks_32bit
        widened = registers.widened_elements if self.wide else registers.widened_elements_narrow
        return Params(
            self.access, tx, ty, vectors_per_thread, cluster,
            unmasked=self.length // (tx * cluster * self.lanes),
            recompute=vectors_per_thread * self.lanes > widened,
            min_blocks_per_sm=min_blocks_per_sm,
            online=self.row.shorter and cluster > 1,
            prefetch=min_blocks_per_sm == 1 and self.loaded_first(tx, cluster, vectors_per_thread),
        )  # fmt: skip

    def loaded_first(self, tx: int, cluster: int, vectors_per_thread: int) -> bool:
        """Whether threads load all of a row and its weights before they reduce it: what takes few registers, more where
        rows are few. Threads of large blocks have fewer, also for half types widened; where rows are many, two blocks
        of 512 shall fit a multiprocessor."""
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
        return loaded <= (
            heuristics.reduced_precision
            if row.reduced_precision and (not self.wide or row.inputs > 1)
            else heuristics.usual
        )

    def in_shared(self) -> list[_Place]:
        """Rows in shared memory, best first: few multiprocessors idle, not one block on each with fewer threads than
        several would have, nor fewer than 512 in all without a cluster, all threads with as many vectors, few blocks a
        cluster, which find room sooner. Where threads cannot have as many: several blocks on a multiprocessor, in
        clusters of at most eight. Half types beside weights: blocks and threads that hide each other's waiting."""
        if not (self.properties.async_copies and self.analysis.once(copied_whole, self.access)):
            return []
        heuristics = self.heuristics.shared
        found = _shared_places(self.analysis, self.vectors, self.lanes, self.kept, self.properties, heuristics.threads)
        places = [p for p in found if p.vectors_per_thread >= heuristics.least_per_thread]
        evenly = [p for p in places if self.exact(p[:3])]
        together = max((p.blocks * p.tx for p in evenly if p.blocks > 1), default=0)

        def cost(p: _Place) -> tuple:
            usual, large = p.tx == heuristics.threads[0], p.cluster > self.heuristics.threads.portable_cluster
            if self.row.weights and self.row.reduced_precision:
                hidden = p.blocks * p.tx >= heuristics.hiding and p.blocks >= heuristics.hiding_blocks[p.cluster > 1]
                return p.idle, large, not hidden, p.cluster == 2, p.cluster, p not in evenly, not usual
            if not evenly:
                roomy = p.blocks * p.tx >= heuristics.roomy and (self.row.weights or usual)
                return p.idle, large, not roomy, not usual, p.blocks == 1, p.cluster
            threads, uneven = p.blocks * p.tx, p not in evenly
            return (
                p.idle,
                p.blocks == 1 and p.tx < together,
                p.cluster == 1 and threads < heuristics.least_alone,
                uneven,
                uneven and threads < heuristics.roomy,
                p.cluster,
            )

        return sorted(places, key=cost)

    def in_shared_memory(self, p: _Place) -> Params:
        """The row at such a place."""
        return Params(
            self.access,
            p.tx,
            1,
            p.vectors_per_thread,
            p.cluster,
            unmasked=p.vectors_per_thread - (not self.exact(p[:3])),
            online=self.row.shorter,
            in_shared=True,
        )

    def unaligned(self) -> Iterator[Params]:
        """Rows in shared memory by the wider vectors, best first: few multiprocessors idle; two blocks on each, or one
        that has many threads, where one input of half types is beside weights, or clusters of at least four of which
        four are on each; enough threads for those blocks, but each with more vectors than the few at the ends, in a
        cluster a dozen."""
        length, row, lanes = self.length, self.row, self.wider.lanes
        if not self.lanes < lanes <= length // 2:
            return
        heuristics = self.heuristics.unaligned
        long = length > heuristics.medium_per_thread * heuristics.medium * lanes
        plain = row.reduced_precision and row.inputs == 1 and 0 < row.weights <= 2 and not row.wider_weights
        alone = plain and self.kept >= heuristics.alone_rows * self.properties.sm_count

        def cost(p: _Place) -> tuple:
            if p.cluster == 1 and p.blocks == 1 and alone:
                return p.idle, False, 1, p.tx != heuristics.alone
            if p.cluster == 1:
                few = row.single or p.blocks <= heuristics.few_blocks
                return (
                    p.idle,
                    p.blocks < 2,
                    1,
                    p.tx != (heuristics.large if few else heuristics.medium if long else heuristics.small),
                )
            waiting = p.blocks < heuristics.cluster_blocks or p.cluster < heuristics.cluster_blocks
            least = heuristics.cluster_per_thread_weighted if row.weights == 1 else heuristics.cluster_per_thread
            return p.idle, waiting, p.cluster, p.tx > heuristics.medium, p.vectors_per_thread < least, -p.tx

        threads = (*self.heuristics.shared.threads, heuristics.alone) if alone else self.heuristics.shared.threads
        vectors = -(-(length + lanes - 1) // lanes)
        places = _shared_places(self.analysis, vectors, lanes, self.kept, self.properties, threads)
        for p in sorted(
            (p for p in places if p.cluster == 1 or p.vectors_per_thread >= self.heuristics.shared.least_per_thread),
            key=cost,
        ):
            whole = (length - lanes) // (p.tx * lanes * p.cluster)
            yield Params(
                self.wider,
                p.tx,
                1,
                p.vectors_per_thread,
                p.cluster,
                unmasked=whole,
                online=row.shorter,
                in_shared=True,
                unaligned=True,
            )

    def better_unaligned(self, p: Params) -> bool:
        """Whether rows take less time so."""
        row, kept, length, sm_count = self.row, self.kept, self.length, self.properties.sm_count
        heuristics = self.heuristics.unaligned
        if kept * p.cluster < sm_count:
            return False
        if row.wider_weights:  # two vectors each, which are more to load than their elements
            return row.weights == 1 and length >= heuristics.wider
        if row.single:
            return length >= heuristics.reduced
        if row.weights > 1:  # of few rows a cluster's registers hold more at once
            return kept >= sm_count and (
                not self.alone if self.lanes * row.widest <= 2 else length >= heuristics.weighted
            )
        return length >= heuristics.plain or kept >= heuristics.many_rows * sm_count

    def looped(self) -> Params:
        """The row in nothing: in parts, where one pass does and there are few rows."""
        row, vectors, sm_count, threads_per_sm = (
            self.row,
            self.vectors,
            self.properties.sm_count,
            self.properties.threads_per_sm,
        )
        heuristics = self.heuristics.looped
        tx = heuristics.least
        while tx < heuristics.usual and vectors > tx * UNROLL:
            tx *= 2
        while (
            tx < heuristics.most
            and tx * 2 <= vectors // UNROLL
            and self.kept * tx < sm_count * threads_per_sm // 2
            and not row.single
        ):
            tx *= 2
        split, blocks, most = 1, sm_count * (threads_per_sm // tx), vectors // (tx * UNROLL * 2)
        if row.one_pass and vectors >= heuristics.huge:
            tx, blocks, most = heuristics.most, heuristics.huge_blocks * sm_count, vectors // (heuristics.most * UNROLL)
        while row.one_pass and split * 2 <= most and split * self.kept < blocks:
            split *= 2
        ty = max(1, self.heuristics.threads.block // tx) if split == 1 else 1
        return Params(self.access, tx, ty, 0, split=split, online=row.shorter)


@functools.lru_cache
def _places(
    vectors: int, registers: int, cluster_sizes: tuple[int, ...], heuristics: RowRegisterHeuristics
) -> tuple[list[tuple[int, int, int]], list[tuple[int, int, int]]]:
    """Places that hold a row of so many vectors, as (threads along the row, blocks a cluster, chunks a thread): in a
    block alone, and others."""
    alone: list[tuple[int, int, int]] = []
    shared: list[tuple[int, int, int]] = []
    for tx in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024):
        for cluster in cluster_sizes if tx >= heuristics.wide_block else (1,):
            vectors_per_thread = -(-vectors // (tx * cluster))
            held = vectors_per_thread * registers
            if tx * cluster >= 2 * vectors and tx > 1:
                break
            if held <= (heuristics.most if tx <= heuristics.wide_block else heuristics.most_alone):
                usual = tx <= heuristics.largest_block or len(cluster_sizes) == 1
                by_itself = cluster == 1 and held <= heuristics.most_alone and usual
                (alone if by_itself else shared).append((tx, cluster, vectors_per_thread))
    return alone, shared


def extents(analysis: Analysis) -> tuple:
    """Rows and their length."""
    return sz.product(a.size for a in analysis.kept), sz.product(a.size for a in analysis.reduced)


def accumulators_of(analysis: Analysis) -> int:
    """How many numbers threads may exchange for a row, each of which has shared memory of its own."""
    return sum(len(red.accumulator_types(op)) for phase in analysis.phases for op in phase)


def copied_whole(analysis: Analysis, access: Access) -> bool:
    """Whether what differs from row to row can be copied to shared memory 16 bytes at a time."""
    streamed, _ = analysis.once(row_inputs)
    lane = analysis.loops(analysis.reduced)[-1][-1]
    widest = max((v.dtype.bytes for v in streamed), default=0)
    return access.lanes * widest == 16 and gpu_staging.possible(analysis, access, streamed, lane)


class _Place(NamedTuple):
    """Where a row in shared memory is: threads of a block, blocks of a cluster, vectors a thread; multiprocessors that
    have none of it, and how many such blocks find room on one."""

    tx: int
    cluster: int
    vectors_per_thread: int
    idle: int
    blocks: int


def _shared_places(
    analysis: Analysis, vectors: int, lanes: int, kept: int, properties, threads: tuple[int, ...]
) -> tuple[_Place, ...]:
    """The places whose shared memory holds rows of so many vectors, of so many ``threads``."""
    return _places_in_shared(
        vectors,
        lanes * analysis.once(row_of).row_bytes,
        analysis.once(accumulators_of),
        min(kept, properties.sm_count),
        properties,
        threads,
    )


@functools.lru_cache
def _places_in_shared(
    vectors: int, vector_bytes: int, accumulators: int, kept: int, properties, threads: tuple[int, ...]
) -> tuple[_Place, ...]:
    found = []
    for tx in threads:
        for cluster in properties.cluster_sizes:
            vectors_per_thread = -(-vectors // (tx * cluster))
            nbytes = shared_bytes(tx, cluster, vectors_per_thread, vector_bytes, accumulators)
            if nbytes <= properties.shared_per_block:
                blocks = (properties.shared_per_block + SYSTEM_SHARED) // (nbytes + SYSTEM_SHARED)
                found.append(
                    _Place(tx, cluster, vectors_per_thread, max(0, properties.sm_count - kept * cluster), blocks)
                )
    return tuple(found)


def shared_bytes(tx: int, cluster: int, vectors_per_thread: int, vector_bytes: int, accumulators: int) -> int:
    """Of a block: its part of a row, and what its threads exchange."""
    return vectors_per_thread * tx * vector_bytes + accumulators * (16 + tx // 4 + cluster * 8)


def unaligned_access(
    analysis: Analysis, access: Access, env: dict[str, int], alignments: dict[Value, int], properties
) -> Access:
    """``access`` with the widest vectors for rows that may begin at any element, of which those begin before it; as it
    is where there are none."""
    lanes, like, steps = analysis.once(_shiftable)
    if not properties.async_copies or lanes <= access.lanes or any(step < 0 for step in steps(env)):
        return access
    if any(alignments.get(v, 16) < min(16, lanes * v.dtype.bytes) for v in analysis.inputs + like if v.rank):
        return access
    aligns = [
        min(16, lanes * v.dtype.bytes) if v in like and v in analysis.outputs else analysis.stored(v).bytes
        for v in analysis.inputs + analysis.outputs
    ]
    return access._replace(lanes=lanes, aligns=tuple(aligns), multiples=frozenset())


def _shiftable(analysis: Analysis) -> tuple:
    """The lanes of vectors that may begin before a row (0: they may not), the inputs and outputs that they are of, and
    how far apart their rows are, given the sizes of a call: all lie along the rows alike, so that they begin as far
    before it."""
    reduced, loops = set(analysis.reduced), analysis.loops(analysis.reduced)
    streamed, shared = analysis.once(row_inputs)
    like = [v for v in dict.fromkeys(streamed + analysis.outputs) if reduced & set(analysis.axes.flat(v))]
    kept = [loop[-1] for loop in analysis.loops(analysis.kept)]
    steps = {tuple(analysis.axis_stride(v, axis) for axis in kept) for v in like}
    plain = all(set(analysis.axes.flat(v)) <= set(analysis.domain) and v not in analysis.passed_on for v in like)
    along = all(analysis.axis_stride(v, loops[-1][-1]) == 1 for v in like + shared) and len(loops) == 1
    sizes = {v.dtype.bytes for v in streamed}
    lanes = min(8, 16 // max(sizes, default=8))
    copied = all(nbytes <= 4 and lanes * nbytes in gpu_staging.SIZES for nbytes in sizes)
    return (
        (lanes if sizes and copied and plain and along and len(steps) == 1 else 0),
        like,
        sz.tuple_function(next(iter(steps), ())),
    )


class _Row(NamedTuple):
    """What is read of a row, and what for: ``row_bytes`` of its elements at one place, of inputs that are not the same
    for all rows, ``own_bytes`` without what several rows share, such as a batch's, and ``widest``, of one of these;
    ``single``: rows are only reduced, in one pass; ``one_pass``: what else is written needs no reduction; ``shorter``:
    online forms make it fewer passes; ``reduced_precision``: some elements are of half types; ``inputs`` and
    ``weights``: how many there are that differ from row to row, and that all rows share;
    ``weights_16bit``: some of these are of half types; ``wider_weights``: some are wider than what is read of a row;
    ``sizes``: the bytes of an element of each input that is read where a row's element is; ``late``: some of those are
    read after the first reductions only."""

    row_bytes: int
    own_bytes: int
    widest: int
    single: bool
    one_pass: bool
    shorter: bool
    reduced_precision: bool
    inputs: int
    weights: int
    weights_16bit: bool
    wider_weights: bool
    sizes: tuple[int, ...]
    late: bool


def row_of(analysis: Analysis) -> _Row:
    reduced = set(analysis.reduced)
    streamed, shared = analysis.once(row_inputs)
    written = [v for v in analysis.outputs if reduced & set(analysis.axes.flat(v))]
    phases = analysis.once(joint.online)
    reduced_precision, weights_16bit = (any(v.dtype.bits == 16 for v in values) for values in (streamed, shared))
    nbytes = [v.dtype.bytes for v in streamed]
    own = [v.dtype.bytes for v in streamed if set(analysis.kept) <= set(analysis.axes.flat(v))] or nbytes
    loaded = at_own_index(analysis, streamed + shared)
    return _Row(
        sum(nbytes),
        sum(own),
        max(nbytes, default=4),
        len(phases) == 1 and not written,
        len(phases) == 1 and analysis.late_values().isdisjoint(written),
        len(phases) < len(analysis.phases),
        reduced_precision,
        len(streamed),
        len(shared),
        weights_16bit,
        any(v.dtype.bytes > max(nbytes, default=4) for v in shared),
        tuple(v.dtype.bytes for v in loaded),
        len(read_by(analysis, analysis.phases[0], loaded)) < len(loaded),
    )
