"""Column scans on a GPU, across contiguous memory: a kept axis is contiguous, and the scanned axes are rows.

``tx`` threads are along the columns, each with one vector of them, and ``ty`` along the rows. In an iteration each
thread scans a few consecutive rows; the warp's threads of one column combine by shuffles, and the block's warps through
shared memory, from which each gets the state of the warps before it. The state after an iteration is carried to the
next: one pass over memory. If rows are not aligned for vectors, a thread has several columns, ``tx`` apart.

A few long columns use a *chained* scan over blocks, like rows (``gpu/scan_rows.py``)."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator

from mlirfuse.analysis.phases import Analysis, apart, is_outer
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Op
from mlirfuse.lowering import scans as sc
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.kernel import Env, Index
from mlirfuse.lowering.module import GpuKernel
from mlirfuse.schedule.gpu.access import access_of, hint_of, narrowed
from mlirfuse.schedule.gpu.chained_scan import Asker
from mlirfuse.schedule.gpu.column_body import place_of
from mlirfuse.schedule.gpu.column_choice import extents
from mlirfuse.schedule.gpu.scan_body import Places, ScanKernel, elements_of, numbers, pairs, widest_bytes
from mlirfuse.schedule.gpu.scheduler import WARP, GpuScheduler
from mlirfuse.schedule.gpu.tuning import heuristics_of
from mlirfuse.schedule.scheduler import KernelSpec, SizedCall, power_from, power_of_two, power_to, require
from mlirfuse.schedule.tiling import Access, Tiling

MOST_REGISTER_ELEMENTS = 64  # per thread and iteration: their states are in registers together
REGISTER_STATES = 16  # state components of a chained thread for which MIN_THREADS_PER_SM is requested
MIN_THREADS_PER_SM = 1024  # otherwise ptxas aims at more threads and spills; not needed for other numbers of components
MOST_THREADS = 1024  # per block: the lanes of one warp scan the states of all warps
SHARED = 48 << 10  # bytes of shared memory


class ScanColumns(GpuScheduler):
    """Scans down columns, fused with elementwise ops on their domain."""

    name = "scan_columns"
    fields = "access", "tx", "ty", "vectors_per_thread", "rows_per_thread", "chained"

    def takes(self, analysis: Analysis) -> bool:
        return bool(analysis.scans) and bool(analysis.kept) and not analysis.phases

    def candidates(self, analysis: Analysis, call: SizedCall) -> Iterator[Tiling]:
        if not is_outer(analysis, call.sizes):
            return
        yield from _ColumnsOfSize(analysis, call).candidates()

    def kernels(self, spec: KernelSpec) -> list[GpuKernel]:
        kernel = _Kernel(spec)
        return kernel.emit(kernel.chains)

    def check(self, analysis: Analysis, p: Tiling, call: SizedCall) -> None:
        require(is_outer(analysis, call.sizes), "scan_columns: for these sizes a scanned axis is contiguous")
        self.check_access(analysis, p, True, call)
        p.must("tx", p.tx <= WARP, f"must be at most {WARP}, a warp")
        p.must("ty", p.ty == 1 or p.tx * p.ty >= WARP, "must be 1, or make a block of at least a warp")
        p.must("chained", not p.chained or analysis.once(apart), "not for scans that depend on each other")
        p.must("chained", not p.chained or power_of_two(p.chained), "must be a power of two")
        alone = p.vectors_per_thread == 1 or (not p.chained and p.access.lanes == 1)
        p.must("vectors_per_thread", alone, "needs lanes = 1 and chained = 0")
        few = power_of_two(p.rows_per_thread) and p.rows_per_thread * p.width <= MOST_REGISTER_ELEMENTS
        most = f"must be a power of two, with at most {MOST_REGISTER_ELEMENTS} elements per thread"
        p.must("rows_per_thread", few, most)
        nbytes = _bytes(analysis, p.tx, p.ty, p.width)
        require(nbytes <= SHARED, f"tx, ty: need {nbytes} bytes of shared memory, {SHARED} are available")


class _ColumnsOfSize:
    """Columns of given sizes, and the candidate parameters for them."""

    def __init__(self, analysis: Analysis, call: SizedCall):
        self.analysis, self.sm_count = analysis, call.properties.sm_count
        self.scans = heuristics_of(call.properties).scans
        self.heuristics, self.widest = self.scans.columns, analysis.once(widest_bytes)
        self.access = access_of(analysis, True, call, hint_of(analysis, call))
        self.columns, self.above, self.length = analysis.values(extents, call.sizes)
        self.share = self.above / self.sm_count  # points of the outer kept loops per multiprocessor
        self.odd = self.access.lanes == 1 and self.length >= self.heuristics.odd.least

    def candidates(self) -> Iterator[Tiling]:
        """Parameters worth measuring, the heuristic's choice first."""
        heuristics, chained, count = self.heuristics, self.heuristics.chained, self.sm_count
        many, enough, few = heuristics.in_flight
        usual = max(1, heuristics.rows // 2) if self.odd else heuristics.rows
        widths = [self.params(strip, enough, usual) for strip in heuristics.strips]
        strip, in_flight = heuristics.strips[-1], few
        for least, all_ in ((heuristics.enough, heuristics.strips[:-1]), (heuristics.least, heuristics.strips)):
            fitting = [n for n, p in zip(all_, widths) if self.blocks(p) >= least * count]
            if fitting:
                strip, in_flight = fitting[0], enough if least == heuristics.enough else few
                filled = self.blocks(self.params(strip, many, usual)) >= heuristics.many * count
                in_flight = many if filled else in_flight
                break
        first = self.params(strip, in_flight, usual)
        if self.odd:
            yield from self.several_columns()
        least_rows = chained.few if self.blocks(first) < heuristics.least * count else chained.many
        if self.length >= least_rows and self.analysis.once(apart):
            narrow = self.chained_narrow()
            long = self.length >= chained.tall_blocks * count * narrow.ty * narrow.rows_per_thread
            alone = self.above == 1 and chained.tall_columns <= self.columns <= WARP and long
            other = self.chained_unaligned() if self.odd else self.chained()
            yield from [narrow, other] if alone else [other]
        widest, narrowest = heuristics.strips[0], heuristics.strips[-1]
        others = (widest, few, usual), (strip, in_flight, 1), (strip, many, 2), (narrowest, few, usual)
        yield from [first, *(self.params(*tried) for tried in others)]

    def blocks(self, p: Tiling) -> int:
        """The number of blocks that are not chained."""
        return -(-self.columns // (p.tx * p.width)) * self.above

    def fitted(self, lanes: int) -> Access:
        """The access with vectors of ``lanes``."""
        return self.access if lanes == self.access.lanes else narrowed(self.analysis, self.access, lanes)

    def params(self, strip: int, in_flight: int, rows: int) -> Tiling:
        """Parameters with ``in_flight`` bytes of a strip in flight per block, or the whole strip."""
        heuristics, widest = self.heuristics, self.widest
        word = heuristics.word if strip <= heuristics.narrow else heuristics.pair
        lanes = min(self.access.lanes, max(1, word // widest))
        tx = min(WARP, power_from(-(-self.columns // lanes)), max(1, strip // (lanes * widest)))
        # Few blocks per multiprocessor.
        alone = -(-self.columns // (tx * lanes)) * self.above < heuristics.many * self.sm_count
        fewest = power_from(max(1, -(-self.length * tx // (heuristics.threads if alone else WARP))))
        rows = min(self.rows(rows, lanes), fewest)
        most = heuristics.block if self.odd and in_flight < heuristics.in_flight[2] else MOST_THREADS
        down = max(1, min(most, in_flight // (rows * lanes * widest)) // tx)
        while down > 1 and (down // 2 * rows >= self.length or _bytes(self.analysis, tx, down, lanes) > SHARED):
            down //= 2
        return Tiling("scan_columns", self.fitted(lanes), tx, max(down, WARP // tx) if down > 1 else 1, 1, rows)

    def chained(self) -> Tiling:
        """A chained scan with blocks of one iteration each; the narrower they are, the more rows they have."""
        heuristics, columns = self.heuristics, self.columns
        wide = columns >= WARP * heuristics.chained.lanes and not self.analysis.once(pairs)
        lanes = min(self.access.lanes, heuristics.chained.lanes) if wide else 1
        idle, least = (-(-columns // (WARP * n)) * WARP * n / columns for n in (lanes, 1))
        if idle > heuristics.chained.idle * least:
            lanes = 1
        rows, tx = self.rows(heuristics.rows, lanes), min(WARP, power_from(-(-columns // lanes)))
        p = Tiling("scan_columns", self.fitted(lanes), tx, heuristics.block // tx, 1, rows, chained=1)
        tall = p._replace(rows_per_thread=2 * rows)
        return self.fitting(tall if lanes == 1 and self.tall(tall) else p)

    def chained_narrow(self) -> Tiling:
        """A chained scan for few columns, whose only strip is one chain: iterations of many rows make it short."""
        heuristics, tx = self.heuristics, min(WARP, power_from(self.columns))
        most = max(1, heuristics.chained.tall_bytes // (tx * self.widest))
        rows = self.rows(power_to(min(heuristics.chained.tall, most)), 1)
        vectors, chained = narrowed(self.analysis, self.access, 1), 2 if tx == WARP else 1
        return self.fitting(Tiling("scan_columns", vectors, tx, heuristics.block // tx, 1, rows, chained=chained))

    def chained_unaligned(self) -> Tiling:
        """A chained scan for rows that are not aligned for vectors."""
        heuristics, odd = self.heuristics, self.heuristics.odd
        narrow, short = self.columns * self.share < WARP, self.widest <= odd.short
        iteration = odd.iteration if narrow else odd.iteration // 2
        rows = heuristics.rows if narrow or short else heuristics.rows // 2
        ty, chained = min(iteration // rows, heuristics.block // WARP), 1 if narrow else 2
        tx = min(WARP, power_from(self.columns))
        p = Tiling("scan_columns", self.access, tx, ty * (WARP // tx), 1, rows, chained=chained)
        tall = p._replace(rows_per_thread=2 * rows)
        return self.fitting(tall if short and self.tall(tall) else p)

    def several_columns(self) -> Iterator[Tiling]:
        """Strips with several columns per thread, if there are enough of them for all multiprocessors. All strips of a
        multiprocessor are resident together, with the fewer threads the more there are. Not for expensive scans, which
        are slower this way."""
        heuristics, odd, beside = self.heuristics, self.heuristics.odd, self.heuristics.odd.vectors_per_thread

        def strips(beside: int) -> float:
            return -(-self.columns // (WARP * beside)) * self.share

        if strips(beside) < odd.enough * self.analysis.once(numbers):
            beside //= 2
        strips_per_sm = strips(beside)
        if strips_per_sm < odd.enough or any(op.row.cost >= self.scans.costly_scan for op in self.analysis.scans):
            return
        ty = odd.warps // math.ceil(strips_per_sm) if strips_per_sm <= odd.together else odd.beyond
        nbytes = odd.bytes if self.widest > odd.short or strips_per_sm <= odd.few else odd.bytes // 2
        rows = elements_of(self.analysis, min(nbytes // self.widest, heuristics.rows)) // beside
        ty = min(power_to(ty), heuristics.block // WARP)
        yield self.fitting(Tiling("scan_columns", self.access, WARP, ty, beside, max(rows, odd.rows)))

    def rows(self, most: int, lanes: int) -> int:
        """Rows of a thread with ``lanes`` columns: ``most``, or fewer if states have several components."""
        if self.analysis.once(pairs):
            return min(most, MOST_REGISTER_ELEMENTS // (2 * lanes))
        return elements_of(self.analysis, most)

    def tall(self, p: Tiling) -> bool:
        """Whether iterations with twice the rows are faster: few strips, at least one iteration of each per
        multiprocessor, and registers hold their elements."""
        chained, strips = self.heuristics.chained, -(-self.columns // (p.tx * p.width)) * self.share
        iterations = strips * (self.length // (p.ty * p.rows_per_thread))
        fits = p.rows_per_thread * p.tx * p.width * self.widest <= chained.tall_bytes
        few = self.columns * self.share < chained.tall_strips
        return few and fits and iterations >= chained.tall_blocks and self.analysis.once(numbers) == 1

    def fitting(self, p: Tiling) -> Tiling:
        """``p``, with fewer rows of threads if a block's shared memory has no room for their states."""
        while p.ty > 1 and _bytes(self.analysis, p.tx, p.ty, p.width) > SHARED:
            p = p._replace(ty=p.ty // 2)
        return p


def _strips(analysis: Analysis, p: Tiling) -> tuple[sz.Size, sz.Size]:
    """The number of strips of columns, each as wide as a block, and of iterations per strip."""
    columns, above, length = extents(analysis)
    return sz.mul(sz.ceildiv(columns, p.tx * p.width), above), sz.ceildiv(length, p.ty * p.rows_per_thread)


def _bytes(analysis: Analysis, tx: int, ty: int, columns: int) -> int:
    """Bytes of shared memory of a block."""
    return 2 * (tx * ty // WARP) * (tx + 1) * columns * 8 * analysis.once(numbers) if tx * ty > WARP else 0


class _Kernel(ScanKernel):
    """The kernel of a segment. A thread has some rows of each of its vectors of columns."""

    def __init__(self, spec: KernelSpec):
        analysis, p = spec.analysis, spec.params
        states, threads = p.rows_per_thread * p.access.lanes * analysis.once(numbers), p.tx * p.ty
        full = p.chained and states == REGISTER_STATES
        min_blocks_per_sm = max(1, MIN_THREADS_PER_SM // threads) if full else 1
        super().__init__(spec, min_blocks_per_sm=min_blocks_per_sm)
        k, self.iteration, self.lanes_of_state = self.k, p.ty * p.rows_per_thread, p.width
        self.columns, above, _ = extents(analysis)
        self.chains, self.iterations = _strips(analysis, p)
        strip = self.begin(sz.mul(self.columns, above), p.ty * p.chained)
        self.outer, block_column = k.divmod(strip, sz.ceildiv(self.columns, p.tx * p.width))
        blocks = [block_column]
        if p.vectors_per_thread > 1:
            first = k.scale(block_column, p.vectors_per_thread)
            blocks = [k.add(first, Index(n)) for n in range(p.vectors_per_thread)]
        self.vectors = [place_of(self, p, self.columns, self.outer, block) for block in blocks]
        self.place = self.vectors[0]
        self.first = self.wide(self.e.mul(self.place.y, p.rows_per_thread))
        self.warps = threads // WARP  # 0: one row of threads
        self.warp, self.lane = self.thread_warp(), self.e.and_(self.thread, WARP - 1)
        self.reserve_states(2 * max(1, self.warps) * (p.tx + 1) * p.width * 8, self.warps > 1 or p.chained > 0)

    def places(self, start: Val) -> list[Places]:
        e, rows = self.e, range(self.p.rows_per_thread)
        return [[self.along(at.env, e.add(e.add(start, self.first), u), 1) for u in rows] for at in self.vectors]

    def runs_of(self, op: Op, places: list[Places]) -> tuple[list[list[sc.State]], list[sc.State]]:
        combine = functools.partial(sc.combine, self.e, op)
        runs = []
        for rows in places:
            elements = (sc.element(self.e, op, self.k.operands(op, here), self.lanes) for here, _ in rows)
            runs.append(list(itertools.accumulate(elements, combine)))
        return runs, [self.beside([run[-1] for run in runs])]

    def bind_runs(self, op: Op, places: list[Places], runs: list[list[sc.State]], before: list[sc.State]) -> None:
        for n, (rows, run) in enumerate(zip(places, runs)):
            begin = self.of_vector(before[0], n)
            for (here, _), state in zip(rows, run):
                self.k.bind(op.result, here, sc.result(self.e, op, sc.combine(self.e, op, begin, state)))

    def store_places(self, places: list[Places]) -> None:
        for rows, at in zip(places, self.vectors):
            for here, inside in rows:
                self.store_at(self.full, here, self.analysis.domain, self.e.and_(at.inside, inside))

    def points(self) -> list[tuple[Env, Val | None]]:
        return [(at.env, self.e.and_(at.inside, self.e.cmp("eq", at.y, 0))) for at in self.vectors]

    def own_point(self) -> Val:
        of_outer = self.e.mul(self.k.scalar(self.outer.base), self.size(self.columns))
        return self.e.add(of_outer, self.place.column)

    def beside(self, states: list[sc.State]) -> sc.State:
        """The states of all vectors of a thread as one vector."""
        return states[0] if len(states) == 1 else tuple(map(self.e.from_lanes, map(list, zip(*states))))

    def of_vector(self, state: sc.State, n: int) -> sc.State:
        """The state of one of them."""
        return tuple(self.e.extract(v, n) for v in state) if self.p.vectors_per_thread > 1 else state

    # ---- exchange between threads

    def starts(
        self, at: int, op: Op, carried: sc.State, totals: list[sc.State], parity: Val
    ) -> tuple[list[sc.State], sc.State]:
        e, tx, (total,) = self.e, self.p.tx, totals
        if self.p.ty == 1:
            return [carried], sc.combine(e, op, carried, total)
        nothing = sc.identity(e, op, self.p.width)
        before = nothing
        if tx < WARP:

            def above(state: sc.State, nothing: sc.State, n: int) -> sc.State:
                return sc.select(e, e.cmp("ge", self.lane, n), self._up(state, n), nothing)

            scanned = sc.along(e, op, total, [tx << n for n in range((WARP // tx).bit_length() - 1)], above)
            before, total = above(scanned, nothing, tx), scanned
        if self.warps > 1:
            upper, all_ = self._of_warps(at, op, total, e.mul(parity, self.warps))
            begin, state = sc.combine(e, op, carried, upper), sc.combine(e, op, carried, all_)
        else:
            last = e.add(self.place.x, WARP - tx)
            end = tuple(e.per_lane(lambda v: self.exchanged(v, "idx", last), v) for v in total)
            begin, state = carried, sc.combine(e, op, carried, end)
        return [sc.combine(e, op, begin, before) if tx < WARP else begin], state

    def asker(self) -> Asker:
        """Each row of threads reads the states of some other parts, and the first row those of the columns."""
        e, place = self.e, self.place
        first = self.wide(e.mul(place.y, self.p.chained))
        numbers = [e.add(first, n) for n in range(self.p.chained)]
        leads = e.cmp("eq", place.y, 0)
        return Asker(numbers, leads, e.and_(leads, place.inside), place.x)

    def _of_warps(self, at: int, op: Op, total: sc.State, slot: Val) -> tuple[sc.State, sc.State]:
        """The state of a column's rows in the warps before this one, and in all warps. The last lanes of each warp hold
        its ``total``; neighbouring threads scan those of a column by shuffles."""
        e, tx, warps = self.e, self.p.tx, self.warps
        with self.leader(e.cmp("ge", self.lane, WARP - tx)):
            self.put(self.offsets[at], self._index(slot, self.warp, self.place.x), total)
        self.barrier()
        which, column = e.and_(self.thread, warps - 1), self.quotient(self.thread, warps)
        column = e.min(column, tx)  # surplus threads read the padding between two warps' states
        index = self._index(slot, which, column)

        def above(state: sc.State, nothing: sc.State, n: int) -> sc.State:
            return sc.select(e, e.cmp("ge", which, n), self._up(state, n), nothing)

        steps = [1 << n for n in range(warps.bit_length() - 1)]
        scanned = sc.along(e, op, self.get(self.offsets[at], index, total), steps, above)
        with self.leader(e.cmp("lt", self.thread, warps * tx)):
            self.put(self.offsets[at], index, scanned)
        self.barrier()
        upper = self.get(self.offsets[at], self._index(slot, e.max(e.sub(self.warp, 1), 0), self.place.x), total)
        upper = sc.select(e, e.cmp("gt", self.warp, 0), upper, sc.identity(e, op, self.p.width))
        return upper, self.get(self.offsets[at], self._index(slot, e.const(warps - 1, dt.i32), self.place.x), total)

    def _index(self, slot: Val, warp: Val, x: Val) -> Val:
        """The index of the state of a warp's column; padded, so that neighbouring warps use different banks."""
        return self.e.add(self.e.mul(self.e.add(slot, warp), self.p.tx + 1), x)

    def _up(self, state: sc.State, n: int) -> sc.State:
        return tuple(self.e.per_lane(lambda v: self.exchanged(v, "up", n), v) for v in state)
