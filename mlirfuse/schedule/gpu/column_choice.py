"""Chooses the schedule parameters of GPU columns: thread layout, split, and where columns are kept. Used by
:mod:`mlirfuse.schedule.gpu.columns`, with the thresholds of :mod:`mlirfuse.schedule.gpu.tuning.heuristics`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from mlirfuse.analysis import joint
from mlirfuse.analysis.phases import Analysis, late_outputs, points_of, size_of
from mlirfuse.ir.graph import Value
from mlirfuse.lowering import reductions as red
from mlirfuse.schedule.gpu import async_copies
from mlirfuse.schedule.gpu.access import narrowed, widened
from mlirfuse.schedule.gpu.column_body import shared_elements
from mlirfuse.schedule.gpu.tuning import heuristics_of
from mlirfuse.schedule.scheduler import SizedCall, power_from
from mlirfuse.schedule.tiling import Access, Tiling

SHARED = 48 << 10  # bytes of static shared memory of a block


class Needs:
    """Properties of a columns segment that do not depend on sizes."""

    def __init__(self, analysis: Analysis):
        phases, wide, reduced = analysis.once(joint.online), late_outputs(analysis)[0], set(analysis.reduced)
        dtypes = [[d for op in phase for d in red.accumulator_types(op)] for phase in phases]
        down = [v.dtype.bytes for v in analysis.inputs if reduced & set(analysis.axes.flat(v))]
        computed = [op for op in analysis.ops if reduced & set(analysis.axes.flat(op.result))]
        self.one_pass = len(phases) == 1 and analysis.late_values().isdisjoint(wide)  # over the columns
        self.accumulators = len(dtypes[0])  # per column in the first pass
        # Of all passes, each with its own shared memory.
        self.accumulator_bytes = sum(d.bytes for phase in dtypes for d in phase)
        self.element = max(down, default=4)  # bytes of the widest input's elements
        # That vary along the columns; counted again if read at other indices.
        self.inputs = max(1, len(down) + sum(op.row.indexed for op in computed))
        self.written = len(wide)  # full-size outputs
        self.exponentials = any(op.name == "exp" for op in computed)  # of each element
        self.positions = any(op.row.accumulator == "position" for op in phases[0])  # argmax or argmin


def _shared_bytes(analysis: Analysis) -> int:
    """Bytes of shared memory per element of a column."""
    return sum(v.dtype.bytes for v in async_copies.streamed_inputs(analysis))


def _copyable(analysis: Analysis, access: Access) -> bool:
    """Whether columns can be copied to shared memory."""
    lane = analysis.loops(analysis.kept)[-1][-1]
    return async_copies.possible(analysis, access, async_copies.streamed_inputs(analysis), lane)


class ColumnsOfSize:
    """Columns of given sizes, and the candidate parameters for them."""

    def __init__(self, analysis: Analysis, access: Access, call: SizedCall):
        self.analysis, self.call, self.properties = analysis, call, call.properties
        self.heuristics = heuristics = heuristics_of(call.properties).columns
        self.tiles, self.sm_count = heuristics.blocks, call.properties.sm_count
        self.needs = needs = analysis.once(Needs)
        self.one_pass, self.element, self.written = needs.one_pass, needs.element, needs.written
        self.all_columns, self.above, self.all_rows = analysis.values(extents, call.sizes)
        # wider: the rows to coalesce for vectors of 16 bytes, and the access then; 1 and `access` if impossible
        self.wider = coalesced(analysis, access, call) if self.one_pass else (1, access)
        self.coalesced_rows, self.access = self.wider if self.coalesces() else (1, access)
        self.columns, self.rows = self.all_columns * self.coalesced_rows, self.all_rows // self.coalesced_rows
        self.lanes = self.access.lanes
        self.nbytes = self.lanes * self.element  # per access
        self.vectors = -(-self.columns // self.lanes)
        self.tx = min(32, power_from(self.vectors))
        self.work = self.vectors * self.above * self.rows
        self.idle = self.blocks(self.tx) < self.sm_count  # without a split some multiprocessors have no block
        # Little work: many small blocks, but few parts to combine.
        self.little = self.idle and self.work <= heuristics.little
        # Iterations per thread, with 64 parts of 256 threads.
        self.iterations = self.work // (self.blocks(self.tx) * 64 * 256) if self.little else 0
        # Many columns: few threads need to share one.
        many = self.vectors * self.above >= self.sm_count * heuristics.many_columns
        self.many = self.rows <= heuristics.many_rows and many
        busy = self.work <= heuristics.some_work or self.blocks(16) >= self.sm_count // heuristics.some_share
        few = self.rows <= heuristics.few_rows or (self.rows <= heuristics.some_rows and busy)
        self.soon = self.idle and self.coalesced_rows == 1 and few  # read in little time without a split

    def coalesces(self) -> bool:
        """Whether rows should be coalesced: a second kernel combines the partial accumulators."""
        heuristics, wanted = self.heuristics, self.wider[0] * self.heuristics.coalesced_rows_least
        much = self.all_rows * self.all_columns >= heuristics.coalesced_many
        least = wanted // 4 if much else max(wanted, heuristics.coalesced_least)
        return self.one_pass and self.analysis.once(unstacked) and self.all_rows >= least

    def tiling(self, tx: int, ty: int, rows: int, **given: Any) -> Tiling:
        """Parameters with ``rows`` rows per thread in flight."""
        given = {"coalesced_rows": self.coalesced_rows, "unmasked": 1} | given
        return Tiling("columns", self.access, tx, ty, rows_per_thread=rows, **given)

    def candidates(self) -> Iterator[Tiling]:
        """Parameters worth measuring, the heuristic's choice first: before others those that read columns once,
        whatever the number of passes."""
        if not self.one_pass:
            if in_shared := self.choice_in_shared():
                yield in_shared
            yield from self.in_registers()
        first = self.choice()
        yield first
        yield from self.others(first)

    def blocks(self, tx: int) -> int:
        """The number of blocks without a split."""
        return -(-self.vectors // tx) * self.above

    def fits(self, tx: int, ty: int, lanes: int) -> bool:
        """Whether the accumulators of a block's threads fit in shared memory."""
        return (ty + 2) * (tx * lanes + 1) * self.needs.accumulator_bytes <= SHARED

    def params(
        self, tx: int, threads: int, unroll: int, full: float, iterations: int = 2, close: bool = False
    ) -> Tiling:
        """Parameters with blocks of ``threads`` threads, split into as many parts as fill the fraction ``full`` of the
        device's threads with at least ``iterations`` iterations each: a power of two of parts or, with ``close``,
        nearly the exact number."""
        ty = max(1, threads // tx)
        while ty > 1 and (ty > self.rows or not self.fits(tx, ty, self.lanes)):
            ty //= 2
        while unroll > 1 and ty * unroll > self.rows:
            unroll //= 2
        split, blocks = 1, self.blocks(tx)
        if self.one_pass and full:
            wanted = max(full * self.sm_count * (self.properties.threads_per_sm // (tx * ty)), self.sm_count)
            if self.little:
                wanted = min(wanted, 64 * blocks)
            while split * 2 * blocks <= wanted and self.rows // (split * 2) >= ty * unroll * iterations:
                split *= 2
            if close:
                split = max(1, min(int(wanted) // blocks, self.rows // (ty * unroll * iterations)))
                # Rounded down by at most an eighth, for fewer compiled programs.
                split -= split % (1 << max(0, split.bit_length() - 4))
        return self.tiling(tx, ty, unroll, split=split)

    def choice(self) -> Tiling:
        """The heuristic's choice. It splits only if there are too few blocks for the multiprocessors and many rows,
        because a second kernel costs more than it gains, unless a block or a cluster combines the parts."""
        combined = self.unaligned_blocks() or self.cluster_choice()
        if combined or self.coalesced_rows > 1:
            return combined or self.coalesced_partial()
        heuristics = self.heuristics
        if self.written and self.one_pass and self.idle and self.rows >= heuristics.written_rows:
            return self.in_partials()
        if self.soon and self.rows <= heuristics.few_rows and (self.element < 4 or self.blocks(16) < self.sm_count):
            narrower = next(self.narrow(), None)
            if narrower:
                return self.at_once(narrower) if self.element >= 4 else narrower
        alone = self.alone()
        if not self.without_partials(alone):
            return self.in_partials()
        if self.nbytes <= 8 and self.rows <= heuristics.many_rows:
            return self.at_once(alone)
        wide = self.soon and self.nbytes >= 16 and self.element >= 4 and self.blocks(16) < self.sm_count
        if wide and heuristics.many_rows // 2 < self.rows <= heuristics.few_rows:
            return next((p for p in self.in_one_iteration([alone]) if p.tx * p.ty == self.tiles.largest), alone)
        return alone

    def unaligned_blocks(self) -> Tiling | None:
        """Unsplit blocks for rows whose length vectors do not divide, if columns are short or there are enough
        blocks."""
        coalesced_rows, access = self.wider
        if coalesced_rows == 1 or self.written:
            return None
        if not self.analysis.once(unstacked):
            return self.stacked_unaligned_blocks()
        heuristics, blocks = self.heuristics, self.unaligned_block_count(32)
        enough = blocks >= heuristics.met * self.sm_count
        some = heuristics.many_rows < self.all_rows <= heuristics.few_rows
        if not (enough or (some and blocks >= heuristics.met_few * self.sm_count)):
            return None
        # fewer rows of threads have enough work
        wide = access.lanes <= 4 and self.unaligned_block_count(64) >= heuristics.met_wide * self.sm_count
        tiles = self.tiles
        tried = (tiles.unaligned_wide if wide else tiles.unaligned) + (tiles.unaligned_small if enough else ())
        return next(filter(None, (self.unaligned(*given) for given in tried)), None)

    def stacked_unaligned_blocks(self) -> Tiling | None:
        """Like :meth:`unaligned_blocks` with several kept loops, if there are many rows and few idle threads."""
        tiles, least = self.tiles, self.heuristics.met * self.sm_count
        unroll = tiles.stacked_rows[self.rows > tiles.few_stacked]
        for tx, ty in tiles.unaligned_stacked if self.rows >= self.heuristics.met_rows else ():
            enough = self.unaligned_block_count(tx) >= least and self.unaligned_waste(tx) <= tiles.stacked_waste
            if enough and (found := self.unaligned(tx, ty, unroll)):
                return found
        return None

    def unaligned_waste(self, tx: int) -> float:
        """The columns that unaligned blocks have threads for, relative to those that exist."""
        return self.unaligned_block_count(tx) * (tx - 1) * self.wider[1].lanes / (self.all_columns * self.above)

    def cluster_choice(self) -> Tiling | None:
        """Clusters whose blocks combine parts, for few columns of many rows: the smallest clusters that occupy most
        multiprocessors."""
        heuristics = self.heuristics
        many = self.rows > heuristics.few_rows or (self.rows >= heuristics.many_rows and self.element < 4)
        # GELU's gradient and its sum, 4096×2048 bf16: 57 µs in clusters, 28 split.
        if self.written or self.needs.exponentials or self.nbytes < 16 or not many or self.coalesced_rows > 1:
            return None
        accumulators = self.lanes * self.needs.accumulators
        if accumulators > heuristics.cluster_accumulators or self.work * self.nbytes > heuristics.cluster_bytes:
            return None
        share = heuristics.filled if self.rows > heuristics.cluster_long else heuristics.cluster_alone
        if not self.one_pass or self.blocks(min(self.tx, self.tiles.along)) >= share * self.sm_count:
            return None
        found, sm_count = [], self.sm_count
        for widen in (1, 2, 4):
            tx = widen * self.tiles.line_bytes // self.nbytes
            if tx <= self.tx:
                all_ = [(self.blocks(tx) * n, n) for n in self.properties.cluster_sizes[1:]]
                fewest, most = heuristics.cluster_least * sm_count, heuristics.cluster_most * sm_count
                found += [(-(-blocks // sm_count), n, widen) for blocks, n in all_ if fewest <= blocks <= most]
        _, cluster, widen = min(found, default=(0, 0, 0))
        if cluster * self.rows < heuristics.cluster_long or (cluster > 8 and self.needs.accumulators > 2):
            return None
        return next(self.of_cluster(widen, cluster), None)

    def at_once(self, p: Tiling) -> Tiling:
        """``p`` with all rows of a thread in one iteration, if they are few enough."""
        return next(self.in_one_iteration([p]), p)

    def without_partials(self, alone: Tiling) -> bool:
        """Whether one block should have all of a column, with blocks like ``alone``."""
        filled = self.nbytes >= 8 and self.blocks(alone.tx) >= self.heuristics.filled * self.sm_count
        return self.one_pass and (self.soon or self.many or filled)

    def others(self, first: Tiling) -> Iterator[Tiling]:
        """Further candidates."""
        alone, in_partials = self.alone(), self.in_partials()
        usual = [alone, in_partials] if self.without_partials(alone) else [in_partials, alone]
        if self.coalesced_rows > 1:
            usual.insert(0, self.coalesced_partial())
        usual += self.narrow()
        along, full = (self.tx, max(1, self.tx // 2)), (self.heuristics.partials, 1.0)
        tried = itertools.product(along, (128, 256, 512), (2, 4, 8), full)
        found = itertools.chain(self.unaligned_all(), self.in_clusters(), self.in_one_iteration([first, *usual]))
        yield from itertools.chain(usual, found, self.in_shared_memory(), itertools.starmap(self.params, tried))

    def alone(self) -> Tiling:
        """Parameters with one block for all of a column."""
        tiles = self.tiles
        if self.many:
            long = self.rows >= tiles.many_rows and self.vectors * self.above < self.sm_count * tiles.many_vectors
            return self.params(32, tiles.many_threads[long], tiles.rows_a_thread, 0.0)
        # Short kernels: little code to fetch, many blocks, and threads with four rows each.
        if self.rows <= self.heuristics.few_rows and self.idle:
            tx, rows = min(self.tx, tiles.along), tiles.rows_a_thread
            threads = tx << (-(-self.rows // rows) - 1).bit_length()
            return self.params(tx, max(tiles.least, min(tiles.most, threads)), rows, 0.0)
        tx = min(self.tx, tiles.along) if self.lanes > 1 else self.tx
        return self.params(tx, tiles.most, max(tiles.in_flight, self.in_flight()), 0.0)

    def coalesced_partial(self) -> Tiling:
        """Coalesced rows, which a second kernel combines to columns: parts for a fraction of the device's threads, all
        resident at once; smaller blocks if there are many accumulators to exchange."""
        if self.written:
            return self.written_partial()
        full, tiles = self.heuristics.coalesced_partials, self.tiles
        many = self.lanes * self.needs.accumulators > self.heuristics.few_accumulators
        along = tiles.coalesced_along[many] // (1 if self.vectors >= tiles.coalesced_long[many] else 2)
        tx, threads, iterations = min(self.tx, along), tiles.coalesced_threads[many], 1 if many else 2
        return self.params(tx, threads, tiles.rows_a_thread, full, iterations)

    def in_partials(self) -> Tiling:
        """Columns split into parts that fill the device."""
        heuristics, tiles = self.heuristics, self.tiles
        few, full = self.lanes * self.needs.accumulators <= heuristics.few_accumulators, heuristics.partials
        if self.needs.positions and self.one_pass and self.blocks(self.tx) >= tiles.position_blocks:
            tx = max(1, min(self.tx, tiles.partial_bytes // self.nbytes))
            return self.params(tx, tiles.position_threads, tiles.rows_a_thread, 1.0)
        if few and self.one_pass and self.idle and self.written:
            return self.written_partial()
        if self.one_pass and self.idle and not self.little:  # all parts are resident at once; 256 bytes along a row
            if not few and self.written:
                rows = max(2, tiles.written_wide // (self.lanes * self.needs.inputs))
                return self.params(self.tx, tiles.most, rows, heuristics.written_partials)
            if not few:
                rows = max(2, min(tiles.partial_rows, tiles.partial_bytes // (self.nbytes * self.needs.inputs)))
                return self.params(self.tx, tiles.partial_threads, 1 << rows.bit_length() - 1, full)
            tx = max(1, min(self.tx, tiles.partial_bytes // self.nbytes))
            threads = tiles.most if self.work >= tiles.large_work else tiles.partial_threads
            return self.params(tx, threads, max(4, min(16, tiles.partial_rows_bytes // self.nbytes)), full)
        much = self.work >= tiles.work or not self.idle or self.iterations >= tiles.iterations
        threads = tiles.most if much else tiles.partial_threads
        halved = 2 if self.iterations >= 2 and self.tx > 2 else 1
        return self.params(self.tx // halved, threads if few else tiles.least, self.in_flight(), float(halved))

    def written_partial(self) -> Tiling:
        """Parts of columns with few accumulators and full-size outputs. 16-bit floats are loaded by vectors of four:
        more rows are in flight with as many registers."""
        tiles = self.tiles
        if self.lanes == 8 and self.coalesced_rows == 1 and self.element == 2:
            access = narrowed(self.analysis, self.access, 4)
            return ColumnsOfSize(self.analysis, access, self.call).written_partial()
        nbytes = tiles.partial_bytes * (2 if self.coalesced_rows > 1 else 1)
        tx = max(1, min(self.tx, nbytes // self.nbytes))
        rows = max(1, min(tiles.in_flight, tiles.written_bytes // (self.nbytes * self.needs.inputs)))
        most = self.blocks(tx) * self.rows // max(1, tiles.written_threads // tx)  # parts with one row per iteration
        while rows > 1 and most // rows < self.sm_count:
            rows //= 2
        iterations = 2 if most // (2 * rows) >= 2 * self.sm_count else 1
        full = self.heuristics.narrow_partials if self.nbytes == 8 else self.heuristics.partials
        return self.params(tx, tiles.written_threads, rows, full, iterations, close=True)

    def unaligned_block_count(self, tx: int) -> int:
        """The number of unaligned blocks with ``tx`` threads along the columns."""
        return -(-self.all_columns // ((tx - 1) * self.wider[1].lanes)) * self.above

    def unaligned_bytes(self, tx: int, ty: int, lanes: int) -> int:
        """Bytes of shared memory for the accumulators of an unaligned block."""
        return shared_elements(tx, ty, lanes) * self.needs.accumulator_bytes

    def unaligned(self, tx: int, ty: int, unroll: int, split: int = 1) -> Tiling | None:
        """Unaligned blocks, if they have a thread per column, enough shared memory, and rows for one iteration."""
        coalesced_rows, access = self.wider
        fits = max(coalesced_rows, access.lanes) <= ty <= self.tiles.most // tx
        enough = ty // coalesced_rows * unroll * split <= self.all_rows // coalesced_rows
        if not self.written and fits and enough and self.unaligned_bytes(tx, ty, access.lanes) <= SHARED:
            given = {"split": split, "coalesced_rows": coalesced_rows, "unaligned": True}
            return self.tiling(tx, ty, unroll, **given)._replace(access=access)
        return None

    def unaligned_all(self) -> Iterator[Tiling]:
        """Candidates with unaligned blocks."""
        for tx, ty, unroll in itertools.product(*self.tiles.tried_unaligned) if self.wider[0] > 1 else ():
            blocks = self.unaligned_block_count(tx)
            if self.unaligned_waste(tx) > self.tiles.unaligned_waste:
                continue
            split, resident = 1, self.sm_count * (self.properties.threads_per_sm // (tx * ty))
            most = self.heuristics.partials * resident // (2 * blocks)
            while split <= most and self.unaligned(tx, ty, unroll, split * 2):
                split *= 2
            yield from filter(None, (self.unaligned(tx, ty, unroll, partials) for partials in sorted({1, split})))

    def in_clusters(self) -> Iterator[Tiling]:
        """Candidates whose parts a cluster combines."""
        if self.one_pass and self.coalesced_rows == 1:
            for widen, cluster in itertools.product((1, 2, 4), self.properties.cluster_sizes[1:]):
                fewest, most = self.tiles.cluster_range
                blocks = self.blocks(widen * self.tiles.line_bytes // self.nbytes) * cluster
                if fewest * self.sm_count <= blocks <= most * self.sm_count:
                    yield from self.of_cluster(widen, cluster)

    def of_cluster(self, widen: int, cluster: int) -> Iterator[Tiling]:
        """Candidates with clusters of ``cluster`` blocks that read ``widen`` times 128 bytes of a row; first those
        whose threads have one iteration."""
        tiles, lanes = self.tiles, self.lanes * self.needs.inputs
        tx, rows = widen * tiles.line_bytes // self.nbytes, self.rows // cluster
        unroll = 8 if lanes <= tiles.cluster_lanes[0] else 4 if lanes <= tiles.cluster_lanes[1] else 2
        if tx > self.tx or rows < unroll:
            return
        short = self.lanes > 4 and rows < tiles.cluster_wide_rows
        most = tiles.cluster_several if self.needs.accumulators > 1 else tx * 32 if short else tiles.most
        wanted = min(most, tiles.most, tx << (rows // unroll).bit_length() - 1)
        for threads, iteration in (wanted, unroll), (wanted // 2, unroll), (wanted, unroll // 2), (wanted * 2, unroll):
            ty = threads // tx
            if cluster <= ty and threads <= tiles.most and self.fits(tx, ty + cluster, self.lanes):
                yield self.tiling(tx, ty, iteration, cluster=cluster)

    def in_flight(self) -> int:
        """Rows that a thread loads before it uses the first: fewer with full-size outputs."""
        tiles = self.tiles
        much = self.work * self.nbytes >= tiles.much
        nbytes = tiles.in_flight_bytes[0 if self.little else 1 + much]
        rows = max(2 if self.little and self.iterations < 8 else 4, min(16, nbytes // self.nbytes))
        most = max(1, tiles.written_registers // (self.lanes * self.needs.inputs))
        return min(rows, most) if self.written and self.one_pass else rows

    def in_one_iteration(self, given: list[Tiling]) -> Iterator[Tiling]:
        """``given`` with all rows of a thread in one iteration, if those are few."""
        for p in given:
            for threads in dict.fromkeys((p.tx * p.ty, self.tiles.most, self.tiles.largest)):
                ty, lanes = threads // p.tx, p.access.lanes
                unroll = next((n for n in (2, 4, 8, 12, 16) if ty * n >= self.rows), 0)
                # Of the rows, and of the accumulators before and after.
                registers = unroll * lanes * self.element // 4 + lanes * self.needs.accumulator_bytes // 2
                if not unroll or ty > 2 * self.rows or registers > self.heuristics.iteration_registers:
                    continue
                if self.fits(p.tx, ty, lanes) and not (p.unaligned and self.unaligned_bytes(p.tx, ty, lanes) > SHARED):
                    yield p._replace(ty=ty, rows_per_thread=unroll, split=1, unmasked=0)

    def narrow(self) -> Iterator[Tiling]:
        """Candidates with narrower vectors, the narrowest first, so that every multiprocessor has a block without a
        split."""
        if not self.one_pass or self.coalesced_rows > 1:  # coalesced rows need the lanes that they were coalesced for
            return
        for lanes in (n for n in (1, 2, 4, 8) if n < self.lanes and n * self.element >= 4 and self.columns % n == 0):
            if self.sm_count // 2 <= -(-self.columns // (lanes * 32)) * self.above < 4 * self.sm_count:
                narrower = narrowed(self.analysis, self.access, lanes)
                for threads, unroll in itertools.product((self.tiles.most, self.tiles.largest), (8, 16)):
                    yield self.params(32, threads, unroll, 1.0)._replace(access=narrower, split=1)

    def in_registers(self) -> Iterator[Tiling]:
        """Candidates with register-resident columns, with as few threads as possible. First blocks with 128 bytes of a
        row (64 for 16-bit floats); more if there are few rows, so that a thread has some vectors in flight, but not so
        many that multiprocessors have no block."""
        tiles, inputs = self.tiles, self.lanes * self.needs.inputs
        least = tiles.in_registers_along if self.element >= 4 else tiles.in_registers_along // 2
        wanted = max(least, min(32, 1 << max(tiles.in_registers_rows // max(self.rows, 1), 1).bit_length() - 1))
        iterations: tuple[int, ...] = (tiles.in_registers_iteration,)
        while wanted > tiles.in_registers_along // 2 and self.blocks(wanted) < self.sm_count:
            wanted //= 2
        if self.nbytes <= 8:  # narrow vectors: with few columns, a thread has few rows
            wanted = 32
            while wanted > tiles.in_registers_along and wanted * self.nbytes >= tiles.sector_bytes:
                if self.blocks(wanted) >= self.sm_count * tiles.in_registers_blocks[wanted < 32]:
                    break
                wanted //= 2
            if self.blocks(wanted) < self.sm_count:
                iterations = tiles.in_registers_few_iterations[self.rows > tiles.in_registers_few], *iterations
        along = dict.fromkeys(min(self.tx, n) for n in (wanted, 8, 16, 4, 32))
        for tx, iteration in itertools.product(along, iterations):
            if tx < min(self.tx, wanted) and tx * self.nbytes < tiles.sector_bytes:
                continue
            for threads in (128, 256, tiles.most, tiles.largest):
                unroll = power_from(-(-self.rows * tx // threads))
                most = self.heuristics.in_registers // inputs // (2 if threads == tiles.largest else 1)
                if unroll <= min(max(1, most), iteration) and self.fits(tx, threads // tx, self.lanes):
                    yield self.tiling(tx, threads // tx, unroll, persistent=True)
                    break

    def in_shared_memory(self) -> Iterator[Tiling]:
        """Candidates that keep columns in shared memory."""
        if self.can_copy():
            tried = itertools.product((1, 2, 4), (256, 512), self.properties.cluster_sizes)
            yield from filter(None, (self.shared(*given) for given in tried))

    def can_copy(self) -> bool:
        """Whether copying columns to shared memory is possible and saves reads."""
        return not self.one_pass and self.properties.async_copies and self.analysis.once(_copyable, self.access)

    def shared(self, widen: int, threads: int, cluster: int) -> Tiling | None:
        """Clusters of ``cluster`` blocks that read ``widen`` times 64 bytes of a row and keep the columns in shared
        memory; None if they do not fit."""
        tx = max(1, widen * self.tiles.sector_bytes // self.nbytes)
        ty = threads // tx
        stages = -(-self.rows // (ty * cluster))
        # Rounded up by at most an eighth, for fewer compiled programs.
        step = 1 << max(0, stages.bit_length() - 3)
        stages = -(-stages // step) * step
        if tx > self.tx or cluster > ty or not self.fits(tx, ty + cluster, self.lanes):
            return None
        exchanged = (ty + cluster + 2) * (tx * self.lanes + 1) * self.needs.accumulator_bytes
        if self.shared_bytes(stages, threads) + exchanged > self.properties.shared_per_block:
            return None
        return self.tiling(tx, ty, 4, stages=stages, cluster=cluster)

    def shared_bytes(self, stages: int, threads: int) -> int:
        """Bytes of shared memory for ``stages`` rows of each thread."""
        return stages * threads * self.lanes * self.analysis.once(_shared_bytes)

    def choice_in_shared(self) -> Tiling | None:
        """Columns in shared memory, if that is faster than registers, which have room for few rows, and than stages,
        which read the columns twice. 16-bit floats with exponentials qualify only with few rows, since their
        instructions take longer than a second read. The smallest cluster whose blocks fit three to a multiprocessor:
        two for clusters of four or more, seven for smaller clusters of few columns."""
        narrow, room = self.element < 4, self.properties.shared_per_block
        heuristics, tiles = self.heuristics, self.tiles
        cheap = narrow and not self.needs.exponentials
        fewest, largest = heuristics.shared_least[cheap], 16 if cheap else 8
        most = heuristics.shared_most_exponentials if narrow and not cheap else self.rows
        if self.nbytes < 16 or not fewest <= self.rows <= most or not self.can_copy():
            return None
        few = self.blocks(tiles.sector_bytes // self.nbytes)  # without clusters
        for cluster in self.properties.cluster_sizes:
            p, blocks = self.shared(1, tiles.copied_threads, cluster), few * cluster
            several = blocks >= heuristics.shared_few * self.sm_count
            share = tiles.copied_shares[2 if cluster >= tiles.copied_cluster else several]
            if cluster > largest or p is None:
                continue
            nbytes = self.shared_bytes(p.stages, tiles.copied_threads)
            if nbytes > room * share:
                continue
            if narrow:
                better = not self.needs.exponentials or blocks >= self.sm_count
            elif self.rows > heuristics.shared_most_exponentials:  # long columns need more blocks
                better = blocks >= self.sm_count // 2 or nbytes <= room * tiles.copied_shares[0]
            else:
                better = few > 2 * self.sm_count
            return p if better else None
        return None


# ---- rows that are coalesced: treated as one whose length the vector width divides


def extents(analysis: Analysis) -> tuple:
    """The numbers of columns along the innermost kept loop, of points of the outer kept loops, and of rows."""
    *outer, inner = analysis.loops(analysis.kept)
    return size_of(inner), points_of(outer), size_of(analysis.reduced)


def _can_coalesce(analysis: Analysis) -> bool:
    """Whether several rows can be treated as one: all full-size inputs and outputs are contiguous across rows."""
    kept, reduced = analysis.loops(analysis.kept), analysis.loops(analysis.reduced)
    positions = any(op.row.accumulator == "position" for op in analysis.phases[0])
    if not kept or len(reduced) != 1 or analysis.pinned or positions:
        return False
    # A random number depends on its index in its tensor, which is computed from row and column.
    if any(op.row.kind == "random" for op in analysis.ops):
        return False
    domain, across, down = set(analysis.domain), kept[-1][-1], reduced[0][-1]
    return all(
        domain == set(analysis.axes.flat(v))
        and (analysis.axis_stride(v, across), analysis.axis_stride(v, down)) == (1, size_of(kept[-1]))
        for v in _full(analysis)
    )


def _full(analysis: Analysis) -> list[Value]:
    """The inputs with dimensions, and the full-size outputs."""
    return [v for v in analysis.inputs if v.rank] + late_outputs(analysis)[0]


def _widest(analysis: Analysis) -> tuple[list[Value], int]:
    """The full-size inputs and outputs, and the elements of each in an access of at most 16 bytes."""
    full = _full(analysis)
    return full, min(16 // max((v.dtype.bytes for v in full), default=16), 8)


def unstacked(analysis: Analysis) -> bool:
    """Whether there is only one kept loop: the partial accumulators of coalesced rows have no other dimension."""
    return len(analysis.loops(analysis.kept)) == 1


def _steps_above(analysis: Analysis) -> tuple:
    """The strides of inputs along the outer kept loops."""
    above = analysis.loops(analysis.kept)[:-1]
    return tuple(dict.fromkeys(analysis.axis_stride(v, loop[-1]) for v in analysis.inputs if v.rank for loop in above))


def coalesced(analysis: Analysis, access: Access, call: SizedCall) -> tuple[int, Access]:
    """The number of rows to treat as one so that vectors of 16 bytes divide them, and the access then; 1 if
    impossible."""
    columns, _, rows = analysis.values(extents, call.sizes)
    wide, lanes = analysis.once(_widest)
    coalesced_rows = lanes // min(columns & -columns, lanes)
    impossible = rows % coalesced_rows or not analysis.once(_can_coalesce)
    if coalesced_rows == 1 or access.lanes >= lanes or impossible:
        return 1, access
    if any(step % lanes for step in analysis.values(_steps_above, call.sizes)):
        return 1, access
    found = widened(analysis, access, lanes, wide, wide, call)
    return (coalesced_rows, found) if found else (1, access)
