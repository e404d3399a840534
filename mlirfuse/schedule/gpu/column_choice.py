"""Which columns of a GPU's kernels are kept where, and by how many threads: what :mod:`mlirfuse.schedule.gpu.columns`
chooses for the sizes of a call, by the thresholds of :mod:`mlirfuse.schedule.gpu.heuristics`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from mlirfuse.analysis import joint
from mlirfuse.analysis.phases import Analysis
from mlirfuse.ir.graph import Value
from mlirfuse.lowering import reductions as red
from mlirfuse.schedule.gpu.access import Access, narrowed
from mlirfuse.schedule.gpu.async_copies import streamed_inputs
from mlirfuse.schedule.gpu.coalesced_columns import coalesced, extents, unstacked, written
from mlirfuse.schedule.gpu.heuristics import heuristics_of
from mlirfuse.schedule.gpu.shared_columns import possible
from mlirfuse.schedule.gpu.unaligned_columns import shared_elements

SHARED = 48 << 10  # bytes a block may use without asking


class Params(NamedTuple):
    """What columns may have; ``tx`` and ``ty`` are powers of two."""

    access: Access
    tx: int  # threads along columns
    ty: int  # along rows
    unroll: int  # rows in flight a thread
    split: int = 1  # blocks along the rows, each a part
    coalesced_rows: int = 1  # rows that are taken as one
    # each turn sees to it that its rows are there, so that what is left over takes one turn and not one a row
    checked: bool = False
    in_registers: bool = False  # all rows are taken in one turn, and kept in registers
    unaligned: bool = False  # the rows of a fold meet in a block, not in the second kernel
    vectors_per_thread: int = 0  # rows of a thread that shared memory keeps
    cluster: int = 1  # blocks that share columns, and what they have of them without a second kernel
    blocks: int = 0  # turns after which sums go to running totals (0: never)


class _Needs(NamedTuple):
    """What columns need whatever their sizes."""

    one_pass: bool  # one over the columns does
    accumulators: int  # of a column in the first pass
    accumulator_bytes: int  # of the accumulators of all passes, each of which has its own shared memory
    element: int  # bytes of the widest input's elements
    inputs: int  # with elements of their own along the columns; counted again where they are read at other places
    written: int  # outputs with such
    exponentials: bool  # of each element
    positions: bool  # of a column's largest or smallest element


def needs_of(analysis: Analysis) -> _Needs:
    reduced, late, phases = set(analysis.reduced), analysis.late_values(), analysis.once(joint.online)
    wide = written(analysis)
    held = [[d for op in phase for d in red.accumulator_types(op)] for phase in phases]
    down = [v.dtype.bytes for v in analysis.inputs if reduced & set(analysis.axes.flat(v))]
    one_pass = len(phases) == 1 and late.isdisjoint(wide)
    moved = [op for op in analysis.ops if op.row.indexed and reduced & set(analysis.axes.flat(op.result))]
    exponentials = any(op.name == "exp" and reduced & set(analysis.axes.flat(op.result)) for op in analysis.ops)
    positions = any(op.row.accumulator == "position" for op in phases[0])
    return _Needs(
        one_pass,
        len(held[0]),
        sum(d.bytes for phase in held for d in phase),
        max(down, default=4),
        max(1, len(down) + len(moved)),
        len(wide),
        exponentials,
        positions,
    )


def _shared_bytes(analysis: Analysis) -> int:
    """Of one column's elements in a row."""
    return sum(v.dtype.bytes for v in streamed_inputs(analysis))


class ColumnsOfSize:
    """Columns of given sizes, and the parameters that they may have."""

    def __init__(
        self, analysis: Analysis, access: Access, env: dict[str, int], alignments: dict[Value, int], properties
    ):
        self.analysis, self.properties, self.heuristics = analysis, properties, heuristics_of(properties).columns
        self.given = (env, alignments, properties)
        self.tiles = self.heuristics.blocks
        self.sm_count, self.threads_per_sm, heuristics = properties.sm_count, properties.threads_per_sm, self.heuristics
        (
            self.one_pass,
            self.accumulators,
            self.accumulator_bytes,
            self.element,
            self.inputs,
            self.written,
            self.exponentials,
            self.positions,
        ) = analysis.once(needs_of)
        self.columns, self.above, self.rows = analysis.values(extents, env)
        self.coalesced_rows, self.access, self.foldable = (
            1,
            access,
            (1, access),
        )  # foldable: how blocks that gather columns fold them, where that is possible
        self.all_columns, self.all_rows = self.columns, self.rows  # not folded
        if self.one_pass:
            self.foldable = coalesced(analysis, access, env, alignments)
            wanted = self.foldable[0] * heuristics.coalesced_rows_least
            if analysis.once(unstacked) and self.rows >= (
                wanted // 4
                if self.rows * self.columns >= heuristics.coalesced_many
                else max(wanted, heuristics.coalesced_least)
            ):
                self.coalesced_rows, self.access = self.foldable
        self.columns, self.rows = self.columns * self.coalesced_rows, self.rows // self.coalesced_rows
        self.lanes = self.access.lanes
        self.nbytes = self.lanes * self.element  # of an access
        self.vectors = -(-self.columns // self.lanes)
        self.tx = 1
        while self.tx < 32 and self.tx < self.vectors:
            self.tx *= 2
        self.work = self.vectors * self.above * self.rows
        self.idle = self.blocks(self.tx) < self.sm_count  # multiprocessors that without parts have no block
        self.little = (
            self.idle and self.work <= heuristics.little
        )  # many small blocks for it, but not many parts to finish
        self.iterations = (
            self.work // (self.blocks(self.tx) * 64 * 256) if self.little else 0
        )  # of a thread, with 64 parts of 256 threads
        self.many = (
            self.rows <= heuristics.many_rows and self.vectors * self.above >= self.sm_count * heuristics.many_columns
        )  # columns: few threads need to share one
        few = self.rows <= heuristics.few_rows or (
            self.rows <= heuristics.some_rows
            and (self.work <= heuristics.some_work or self.blocks(16) >= self.sm_count // heuristics.some_share)
        )
        self.soon = self.idle and self.coalesced_rows == 1 and few  # read by what blocks there are

    def candidates(self) -> Iterator[Params]:
        """Parameters worth trying, all different, the model's choice first."""
        found = itertools.chain(() if self.one_pass else self.kept(), self.modelled())
        first = next(found)
        yield first
        yield from (p for p in dict.fromkeys(found) if p != first)

    def kept(self) -> Iterator[Params]:
        """Columns that are read once, however many passes there are."""
        found = self.kept_in_shared()
        if found:
            yield found
        yield from self.in_registers()

    def modelled(self) -> Iterator[Params]:
        """Others, first the model's choice among them."""
        first = self.choice()
        yield first
        yield from self.others(first)

    def blocks(self, tx: int) -> int:
        """How many there are without parts."""
        return -(-self.vectors // tx) * self.above

    def fits(self, tx: int, ty: int, lanes: int) -> bool:
        """Whether the accumulators of a block's threads fit into shared memory."""
        return (ty + 2) * (tx * lanes + 1) * self.accumulator_bytes <= SHARED

    def params(
        self, tx: int, threads: int, unroll: int, full: float, iterations: int = 2, close: bool = False
    ) -> Params:
        """Blocks of so many threads; as many parts as fill a share ``full`` of the machine's threads, each of some
        ``iterations`` at least: a power of two of them, or ``close`` to what fills it."""
        ty = max(1, threads // tx)
        while ty > 1 and (ty > self.rows or not self.fits(tx, ty, self.lanes)):
            ty //= 2
        while unroll > 1 and ty * unroll > self.rows:
            unroll //= 2
        split, blocks = 1, self.blocks(tx)
        if self.one_pass and full:
            wanted = max(full * self.sm_count * (self.threads_per_sm // (tx * ty)), self.sm_count)
            if self.little:
                wanted = min(wanted, 64 * blocks)
            while split * 2 * blocks <= wanted and self.rows // (split * 2) >= ty * unroll * iterations:
                split *= 2
            if close:
                split = max(1, min(int(wanted) // blocks, self.rows // (ty * unroll * iterations)))
                split -= split % (1 << max(0, split.bit_length() - 4))  # few variants: an eighth less, at most
        return Params(self.access, tx, ty, unroll, split, self.coalesced_rows)

    def choice(self) -> Params:
        """The model's. Where there are blocks for the multiprocessors without parts, or few rows, there are none: a
        second kernel costs more than it helps, unless parts meet in a block or a cluster."""
        met = self.met_in_block() or self.met_in_cluster()
        if met or self.coalesced_rows > 1:
            return met or self.coalesced_partial()
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
        if (
            self.soon
            and self.nbytes >= 16
            and self.element >= 4
            and heuristics.many_rows // 2 < self.rows <= heuristics.few_rows
            and self.blocks(16) < self.sm_count
        ):
            return next((p for p in self.in_one_iteration([alone]) if p.tx * p.ty == self.tiles.largest), alone)
        return alone

    def met_in_block(self) -> Params | None:
        """Rows that vectors do not divide, gathered by blocks without parts: where a column is soon done, or there are
        blocks enough."""
        coalesced_rows, access = self.foldable
        if coalesced_rows == 1 or self.written:
            return None
        if not self.analysis.once(unstacked):
            return self.stacked_met_in_block()
        heuristics, blocks = self.heuristics, self.gathering(32)
        enough = blocks >= heuristics.met * self.sm_count
        few = (
            heuristics.many_rows < self.all_rows <= heuristics.few_rows and blocks >= heuristics.met_few * self.sm_count
        )
        if not (enough or few):
            return None
        # fewer rows of threads have enough to do
        wide = access.lanes <= 4 and self.gathering(64) >= heuristics.met_wide * self.sm_count
        tiles = self.tiles
        tried = (tiles.unaligned_wide if wide else tiles.unaligned) + (tiles.unaligned_small if enough else ())
        return next(filter(None, (self.unaligned(*given) for given in tried)), None)

    def stacked_met_in_block(self) -> Params | None:
        """The same of columns above each other, where rows are many and few threads have no column."""
        tiles, blocks = self.tiles, self.heuristics.met * self.sm_count
        tried = tiles.unaligned_stacked if self.rows > tiles.few_stacked else tiles.unaligned_stacked_few
        wasteful = lambda tx: self.unaligned_waste(tx) > tiles.stacked_waste  # noqa: E731
        found = (self.unaligned(*p) for p in tried if self.gathering(p[0]) >= blocks and not wasteful(p[0]))
        return next(filter(None, found), None) if self.rows >= self.heuristics.met_rows else None

    def unaligned_waste(self, tx: int) -> float:
        """Columns for which such blocks have threads, for each that there is."""
        return self.gathering(tx) * (tx - 1) * self.foldable[1].lanes / (self.all_columns * self.above)

    def met_in_cluster(self) -> Params | None:
        """Few columns, of many rows, in parts that meet in a cluster: for most multiprocessors, of few blocks a
        cluster."""
        heuristics = self.heuristics
        many = self.rows > heuristics.few_rows or (self.rows >= heuristics.many_rows and self.element < 4)
        if (
            self.written  # GELU's gradient and its sum, 4096×2048 bf16: 57 µs in clusters, 28 in parts
            or self.exponentials
            or self.nbytes < 16
            or not many
            or self.lanes * self.accumulators > heuristics.cluster_accumulators
            or self.work * self.nbytes > heuristics.cluster_bytes
        ):
            return None
        share = heuristics.filled if self.rows > heuristics.cluster_long else heuristics.cluster_alone
        if (
            not self.one_pass
            or self.coalesced_rows > 1
            or self.blocks(min(self.tx, self.tiles.along)) >= share * self.sm_count
        ):
            return None
        found, sm_count = [], self.sm_count
        for widen in (1, 2, 4):
            tx = widen * self.tiles.line_bytes // self.nbytes
            if tx <= self.tx:
                blocks = self.blocks(tx)
                found += [
                    (-(-blocks * n // sm_count), n, widen)
                    for n in self.properties.cluster_sizes[1:]
                    if heuristics.cluster_least * sm_count <= blocks * n <= heuristics.cluster_most * sm_count
                ]
        _, cluster, widen = min(found, default=(0, 0, 0))
        if cluster * self.rows < heuristics.cluster_long or (cluster > 8 and self.accumulators > 2):
            return None
        return next(self.of_cluster(widen, cluster), None)

    def at_once(self, p: Params) -> Params:
        """``p`` with as many rows a turn as a thread has, if these are few enough."""
        return next(self.in_one_iteration([p]), p)

    def without_partials(self, alone: Params) -> bool:
        """Whether each column is left to one block, in blocks like ``alone``."""
        return self.one_pass and (
            self.soon
            or self.many
            or (self.nbytes >= 8 and self.blocks(alone.tx) >= self.heuristics.filled * self.sm_count)
        )

    def others(self, first: Params) -> Iterator[Params]:
        """What else is worth trying."""
        alone, in_partials = self.alone(), self.in_partials()
        modelled = [alone, in_partials] if self.without_partials(alone) else [in_partials, alone]
        if self.coalesced_rows > 1:
            modelled.insert(0, self.coalesced_partial())
        modelled += self.narrow()
        tried = itertools.product(
            (self.tx, max(1, self.tx // 2)), (128, 256, 512), (2, 4, 8), (self.heuristics.partials, 1.0)
        )
        found = [*modelled, *self.in_blocks(), *self.in_clusters(), *self.in_one_iteration([first, *modelled])]
        return iter(dict.fromkeys([*found, *self.in_shared_memory(), *(self.params(*given) for given in tried)]))

    def alone(self) -> Params:
        """One block for all of a column."""
        tiles = self.tiles
        if self.many:
            long = self.rows >= tiles.many_rows and self.vectors * self.above < self.sm_count * tiles.many_vectors
            threads = tiles.many_threads_long if long else tiles.many_threads
            return self.params(32, threads, tiles.rows_a_thread, 0.0)
        if (
            self.rows <= self.heuristics.few_rows and self.idle
        ):  # soon done: little code to fetch, many blocks, and threads for four rows each
            tx, rows = min(self.tx, tiles.along), tiles.rows_a_thread
            threads = tx << (-(-self.rows // rows) - 1).bit_length()
            return self.params(tx, max(tiles.least, min(tiles.most, threads)), rows, 0.0)
        tx = min(self.tx, tiles.along) if self.lanes > 1 else self.tx
        return self.params(tx, tiles.most, max(tiles.in_flight, self.in_flight()), 0.0)

    def coalesced_partial(self) -> Params:
        """Folded rows, of which a second kernel makes columns: parts for a quarter of the machine's threads, which all
        run at once, small ones where there are many accumulators to exchange."""
        if self.written:
            return self.written_partial()
        full, tiles = self.heuristics.coalesced_partials, self.tiles
        many = self.lanes * self.accumulators > self.heuristics.few_accumulators
        along = tiles.coalesced_along if self.vectors >= tiles.coalesced_long[many] else tiles.coalesced_along_short
        iterations = 1 if many else 2
        return self.params(
            min(self.tx, along[many]), tiles.coalesced_threads[many], tiles.rows_a_thread, full, iterations
        )

    def in_partials(self) -> Params:
        """Parts of columns, until the machine is full."""
        heuristics, tiles = self.heuristics, self.tiles
        few, full = self.lanes * self.accumulators <= heuristics.few_accumulators, heuristics.partials
        if self.positions and self.one_pass and self.blocks(self.tx) >= tiles.position_blocks:
            tx = max(1, min(self.tx, tiles.partial_bytes // self.nbytes))
            return self.params(tx, tiles.position_threads, tiles.rows_a_thread, 1.0)
        if few and self.one_pass and self.idle and self.written:
            return self.written_partial()
        if self.one_pass and self.idle and not self.little:  # all parts run at once, none waits; 256 bytes along
            if not few and self.written:
                return self.params(self.tx, tiles.most, max(2, self.rows_written()), heuristics.written_partials)
            if not few:
                rows = max(2, min(tiles.partial_rows, tiles.partial_bytes // (self.nbytes * self.inputs)))
                return self.params(self.tx, tiles.partial_threads, 1 << rows.bit_length() - 1, full)
            tx = max(1, min(self.tx, tiles.partial_bytes // self.nbytes))
            threads = tiles.most if self.work >= tiles.large_work else tiles.partial_threads
            return self.params(tx, threads, max(4, min(16, tiles.partial_rows_bytes // self.nbytes)), full)
        much = self.work >= tiles.work or not self.idle or self.iterations >= tiles.iterations
        threads = tiles.most if much else tiles.partial_threads
        halved = 2 if self.iterations >= 2 and self.tx > 2 else 1
        return self.params(self.tx // halved, threads if few else tiles.least, self.in_flight(), float(halved))

    def written_partial(self) -> Params:
        """Parts of columns of few accumulators, of whose elements something is written on the way. Half types are
        loaded by vectors of four: more rows are under way in as many registers."""
        tiles = self.tiles
        if self.lanes == 8 and self.coalesced_rows == 1 and self.element == 2:
            access = narrowed(self.analysis, self.access, 4)
            return ColumnsOfSize(self.analysis, access, *self.given).written_partial()
        nbytes = tiles.partial_bytes * (2 if self.coalesced_rows > 1 else 1)
        tx = max(1, min(self.tx, nbytes // self.nbytes))
        rows = max(1, min(tiles.in_flight, tiles.written_bytes // (self.nbytes * self.inputs)))
        most = self.blocks(tx) * self.rows // max(1, tiles.written_threads // tx)  # parts of a turn of one row
        while rows > 1 and most // rows < self.sm_count:
            rows //= 2
        iterations = 2 if most // (2 * rows) >= 2 * self.sm_count else 1
        full = self.heuristics.narrow_partials if self.nbytes == 8 else self.heuristics.partials
        return self.params(tx, tiles.written_threads, rows, full, iterations, close=True)

    def rows_written(self) -> int:
        """Rows under way of wide vectors that something is made of."""
        return max(1, self.tiles.written_wide // (self.lanes * self.inputs))

    def gathering(self, tx: int) -> int:
        """The blocks that gather what rows that vectors do not divide have of their columns, of ``tx`` threads along
        them."""
        return -(-self.all_columns // ((tx - 1) * self.foldable[1].lanes)) * self.above

    def meeting(self, tx: int, ty: int, lanes: int) -> int:
        """Bytes of shared memory in which the accumulators of such blocks meet."""
        return shared_elements(tx, ty, lanes) * self.accumulator_bytes

    def unaligned(self, tx: int, ty: int, unroll: int, split: int = 1) -> Params | None:
        """Such blocks, if there are a thread for each of a block's columns, shared memory, and rows for a turn."""
        coalesced_rows, access = self.foldable
        enough = not self.written and (
            max(coalesced_rows, access.lanes) <= ty <= self.tiles.most // tx
            and ty // coalesced_rows * unroll * split <= self.all_rows // coalesced_rows
        )
        if enough and self.meeting(tx, ty, access.lanes) <= SHARED:
            return Params(access, tx, ty, unroll, split, coalesced_rows, unaligned=True)
        return None

    def in_blocks(self) -> Iterator[Params]:
        """Such blocks to try."""
        folds = self.foldable[0] > 1
        for tx, ty, unroll in itertools.product(*self.tiles.tried_unaligned) if folds else ():
            blocks = self.gathering(tx)
            if self.unaligned_waste(tx) > self.tiles.unaligned_waste:
                continue
            split = 1
            while split * 2 * blocks <= self.heuristics.partials * self.sm_count * (
                self.threads_per_sm // (tx * ty)
            ) and self.unaligned(tx, ty, unroll, split * 2):
                split *= 2
            for partials in sorted({1, split}):
                found = self.unaligned(tx, ty, unroll, partials)
                if found:
                    yield found

    def in_clusters(self) -> Iterator[Params]:
        """Parts whose accumulators meet in a cluster to try."""
        if self.one_pass and self.coalesced_rows == 1:
            for widen, cluster in itertools.product((1, 2, 4), self.properties.cluster_sizes[1:]):
                fewest, most = self.tiles.cluster_range
                blocks = self.blocks(widen * self.tiles.line_bytes // self.nbytes) * cluster
                if fewest * self.sm_count <= blocks <= most * self.sm_count:
                    yield from self.of_cluster(widen, cluster)

    def of_cluster(self, widen: int, cluster: int) -> Iterator[Params]:
        """Blocks of a cluster that read so many times 128 bytes of a row: first such whose threads have a turn each."""
        tiles, lanes = self.tiles, self.lanes * self.inputs
        tx, rows = widen * tiles.line_bytes // self.nbytes, self.rows // cluster
        unroll = 8 if lanes <= tiles.cluster_lanes[0] else 4 if lanes <= tiles.cluster_lanes[1] else 2
        if tx > self.tx or rows < unroll:
            return
        short = self.lanes > 4 and rows < tiles.cluster_wide_rows
        most = tiles.cluster_several if self.accumulators > 1 else tx * 32 if short else tiles.most
        wanted = min(most, tiles.most, tx << (rows // unroll).bit_length() - 1)
        for threads, iteration in (
            (wanted, unroll),
            (wanted // 2, unroll),
            (wanted, unroll // 2),
            (wanted * 2, unroll),
        ):
            ty = threads // tx
            if cluster <= ty and threads <= tiles.most and self.fits(tx, ty + cluster, self.lanes):
                yield Params(self.access, tx, ty, iteration, cluster=cluster)

    def in_flight(self) -> int:
        """Rows that a thread loads before it takes the first: fewer where it makes something of all their elements."""
        tiles = self.tiles
        much = self.work * self.nbytes >= tiles.much
        nbytes = tiles.bytes_little if self.little else tiles.bytes_much if much else tiles.bytes_usual
        rows = max(2 if self.little and self.iterations < 8 else 4, min(16, nbytes // self.nbytes))
        return (
            min(rows, max(1, tiles.written_registers // (self.lanes * self.inputs)))
            if self.written and self.one_pass
            else rows
        )

    def in_one_iteration(self, given: list[Params]) -> Iterator[Params]:
        """``given`` with as many rows a turn as a thread has, where those are few."""
        for p in given:
            for threads in dict.fromkeys((p.tx * p.ty, self.tiles.most, self.tiles.largest)):
                ty, lanes = threads // p.tx, p.access.lanes
                unroll = next((n for n in (2, 4, 8, 12, 16) if ty * n >= self.rows), 0)
                registers = (
                    unroll * lanes * self.element // 4 + lanes * self.accumulator_bytes // 2
                )  # of the rows, and of accumulators before and after
                if not unroll or ty > 2 * self.rows or registers > self.heuristics.iteration_registers:
                    continue
                if self.fits(p.tx, ty, lanes) and not (p.unaligned and self.meeting(p.tx, ty, lanes) > SHARED):
                    yield p._replace(ty=ty, unroll=unroll, split=1, checked=True)

    def narrow(self) -> Iterator[Params]:
        """Narrower vectors, the narrowest first, so that a block for each multiprocessor needs no parts."""
        if not self.one_pass or self.coalesced_rows > 1:  # folded rows take the lanes that they were folded for
            return
        values = self.analysis.inputs + self.analysis.outputs
        for lanes in (n for n in (1, 2, 4, 8) if n < self.lanes and n * self.element >= 4 and self.columns % n == 0):
            if self.sm_count // 2 <= -(-self.columns // (lanes * 32)) * self.above < 4 * self.sm_count:
                aligns = tuple([min(a, lanes * v.dtype.bytes) for a, v in zip(self.access.aligns, values)])
                narrower = self.access._replace(lanes=lanes, aligns=aligns)
                for threads, unroll in itertools.product((self.tiles.most, self.tiles.largest), (8, 16)):
                    yield self.params(32, threads, unroll, 1.0)._replace(access=narrower, split=1)

    def in_registers(self) -> Iterator[Params]:
        """Parameters that keep columns in registers, as few threads as do it: first where a block's rows are 128 bytes,
        of half types 64; longer where there are few rows, so that a thread has some vectors under way, but not so long
        that multiprocessors have no block."""
        tiles = self.tiles
        least = tiles.in_registers_along if self.element >= 4 else tiles.in_registers_along // 2
        wanted = max(least, min(32, 1 << max(tiles.in_registers_rows // max(self.rows, 1), 1).bit_length() - 1))
        iterations: tuple[int, ...] = (tiles.in_registers_iteration,)
        while wanted > tiles.in_registers_along // 2 and self.blocks(wanted) < self.sm_count:
            wanted //= 2
        if self.nbytes <= 8:  # narrow vectors; of few columns, threads with few rows each
            wanted = 32
            while (
                wanted > tiles.in_registers_along
                and wanted * self.nbytes >= tiles.sector_bytes
                and self.blocks(wanted) < self.sm_count * tiles.in_registers_blocks[wanted < 32]
            ):
                wanted //= 2
            if self.blocks(wanted) < self.sm_count:
                iterations = (
                    tiles.in_registers_few_iterations[self.rows > tiles.in_registers_few],
                    tiles.in_registers_iteration,
                )
        for tx, iteration in itertools.product(
            dict.fromkeys(min(self.tx, n) for n in (wanted, 8, 16, 4, 32)), iterations
        ):
            if tx < min(self.tx, wanted) and tx * self.nbytes < tiles.sector_bytes:
                continue
            for threads in (128, 256, tiles.most, tiles.largest):
                unroll = 1 << (-(-self.rows * tx // threads) - 1).bit_length()
                most = (
                    self.heuristics.in_registers // (self.lanes * self.inputs) // (2 if threads == tiles.largest else 1)
                )
                if unroll <= min(max(1, most), iteration) and self.fits(tx, threads // tx, self.lanes):
                    yield Params(self.access, tx, threads // tx, unroll, in_registers=True)
                    break

    def in_shared_memory(self) -> Iterator[Params]:
        """Parameters that keep columns in shared memory to try."""
        if self.can_copy():
            for widen, threads, cluster in itertools.product((1, 2, 4), (256, 512), self.properties.cluster_sizes):
                p = self.shared(widen, threads, cluster)
                if p:
                    yield p

    def can_copy(self) -> bool:
        """Whether there is a reason to copy columns to shared memory, and a way."""
        return not self.one_pass and self.properties.async_copies and self.analysis.once(possible, self.access)

    def shared(self, widen: int, threads: int, cluster: int) -> Params | None:
        """Blocks of a cluster that read so many times 64 bytes of a row, if they have room for the columns."""
        tx = max(1, widen * self.tiles.sector_bytes // self.nbytes)
        ty = threads // tx
        vectors_per_thread = -(-self.rows // (ty * cluster))
        vectors_per_thread = (
            -(-vectors_per_thread // (step := 1 << max(0, vectors_per_thread.bit_length() - 3))) * step
        )  # few variants: an eighth more than needed, at most
        if tx > self.tx or cluster > ty or not self.fits(tx, ty + cluster, self.lanes):
            return None
        nbytes = (
            self.shared_bytes(vectors_per_thread, threads)
            + (ty + cluster + 2) * (tx * self.lanes + 1) * self.accumulator_bytes
        )
        return (
            Params(self.access, tx, ty, 4, vectors_per_thread=vectors_per_thread, cluster=cluster)
            if nbytes <= self.properties.shared_per_block
            else None
        )

    def shared_bytes(self, vectors_per_thread: int, threads: int) -> int:
        """Of shared memory, so many rows for each of a block's threads."""
        return vectors_per_thread * threads * self.lanes * self.analysis.once(_shared_bytes)

    def kept_in_shared(self) -> Params | None:
        """Columns in shared memory, where that takes less time than registers, which hold few rows, and than stages,
        which read them once more: of half types with exponentials, whose instructions take longer than that, few rows
        only. As few blocks a cluster as leave room for three of them on a multiprocessor: for two, where a cluster has
        four or more, and for seven, where it has fewer and there are few columns."""
        half, room = self.element < 4, self.properties.shared_per_block
        heuristics, tiles = self.heuristics, self.tiles
        if half and self.exponentials:
            fewest, most, largest = heuristics.shared_least, heuristics.shared_most_exponentials, 8
        else:
            fewest, largest = (heuristics.shared_least_16bit, 16) if half else (heuristics.shared_least, 8)
            most = self.rows
        if self.nbytes < 16 or not fewest <= self.rows <= most or not self.can_copy():
            return None
        few = self.blocks(tiles.sector_bytes // self.nbytes)  # without clusters
        for cluster in self.properties.cluster_sizes:
            p, blocks = self.shared(1, tiles.copied_threads, cluster), few * cluster
            if cluster >= tiles.copied_cluster:
                share = tiles.copied_share_cluster
            else:
                share = tiles.copied_share_few if blocks < heuristics.shared_few * self.sm_count else tiles.copied_share
            if (
                cluster > largest
                or p is None
                or self.shared_bytes(p.vectors_per_thread, tiles.copied_threads) > room * share
            ):
                continue
            if half:
                better = not self.exponentials or blocks >= self.sm_count
            elif self.rows > heuristics.shared_most_exponentials:  # long columns want some blocks more
                better = (
                    blocks >= self.sm_count // 2
                    or self.shared_bytes(p.vectors_per_thread, tiles.copied_threads) <= room * tiles.copied_share_few
                )
            else:
                better = few > 2 * self.sm_count
            return p if better else None
        return None
