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

from mlirfuse.analysis.phases import Analysis, apart, is_outer, size_of
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Op
from mlirfuse.lowering import scans as sc
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.kernel import Env, Index
from mlirfuse.lowering.module import GpuKernel
from mlirfuse.lowering.slots import Slots
from mlirfuse.schedule.gpu import chained_scan
from mlirfuse.schedule.gpu.access import access_of, hint_of, narrowed
from mlirfuse.schedule.gpu.column_body import ThreadPlace, place_of
from mlirfuse.schedule.gpu.scan_body import ScanBody, elements_of, numbers, pairs, power_from, power_to, widest_bytes
from mlirfuse.schedule.gpu.scheduler import GpuScheduler, check_tiling
from mlirfuse.schedule.gpu.tuning import heuristics_of
from mlirfuse.schedule.gpu.tuning.scan_heuristics import ColumnScanHeuristics, ScanHeuristics
from mlirfuse.schedule.scheduler import SizedCall, power_of_two, require
from mlirfuse.schedule.tiling import Access, Tiling

WARP = 32
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
        access = access_of(analysis, True, call, hint_of(analysis, call))
        columns, above, length = analysis.values(_extents, call.sizes)
        scans, count = heuristics_of(call.properties).scans, call.properties.sm_count
        heuristics, widest = scans.columns, analysis.once(widest_bytes)
        usual = heuristics.rows
        many, enough, few = heuristics.in_flight

        odd = access.lanes == 1 and length >= heuristics.odd.least
        if odd:
            usual = max(1, usual // 2)

        def params(strip: int, in_flight: int, rows: int = usual) -> Tiling:
            """Parameters with ``in_flight`` bytes of a strip in flight per block, or the whole strip."""
            lanes = min(
                access.lanes, max(1, (heuristics.word if strip <= heuristics.narrow else heuristics.pair) // widest)
            )
            tx = min(WARP, power_from(-(-columns // lanes)), max(1, strip // (lanes * widest)))
            alone = -(-columns // (tx * lanes)) * above < heuristics.many * count  # few blocks per multiprocessor
            fewest = power_from(max(1, -(-length * tx // (heuristics.threads if alone else WARP))))
            rows = min(_rows(analysis, rows, lanes), fewest)
            most = heuristics.block if odd and in_flight < few else MOST_THREADS
            down = max(1, min(most, in_flight // (rows * lanes * widest)) // tx)
            while down > 1 and (down // 2 * rows >= length or _bytes(analysis, tx, down, lanes) > SHARED):
                down //= 2
            vectors = access if lanes == access.lanes else narrowed(analysis, access, lanes)
            return Tiling("scan_columns", vectors, tx, max(down, WARP // tx) if down > 1 else 1, 1, rows)

        def blocks(p: Tiling) -> int:
            return -(-columns // (p.tx * p.width)) * above

        widths = [params(strip, enough) for strip in heuristics.strips]
        strip, in_flight = heuristics.strips[-1], few
        for least, all_ in ((heuristics.enough, heuristics.strips[:-1]), (heuristics.least, heuristics.strips)):
            fitting = [n for n, p in zip(all_, widths) if blocks(p) >= least * count]
            if fitting:
                strip, in_flight = fitting[0], enough if least == heuristics.enough else few
                in_flight = many if blocks(params(strip, many)) >= heuristics.many * count else in_flight
                break
        first = params(strip, in_flight)
        if odd:
            yield from self._several_columns(analysis, access, columns, above / count, scans)
        least_rows = heuristics.chained.few if blocks(first) < heuristics.least * count else heuristics.chained.many
        if length >= least_rows and analysis.once(apart):
            narrow = self._chained_narrow(analysis, access, columns, heuristics)
            long = length >= heuristics.chained.tall_blocks * count * narrow.ty * narrow.rows_per_thread
            chosen = [narrow] if above == 1 and heuristics.chained.tall_columns <= columns <= WARP and long else []
            chained = self._chained_unaligned if odd else self._chained
            chosen.append(chained(analysis, access, columns, length, above / count, heuristics))
            yield from dict.fromkeys(chosen)
        others = [
            (heuristics.strips[0], few, usual),
            (strip, in_flight, 1),
            (strip, many, 2),
            (heuristics.strips[-1], few, usual),
        ]
        yield from dict.fromkeys([first, *(params(*tried) for tried in others)])

    @staticmethod
    def _chained(
        analysis: Analysis, access: Access, columns: int, length: int, share: float, heuristics: ColumnScanHeuristics
    ) -> Tiling:
        """A chained scan with blocks of one iteration each; the narrower they are, the more rows they have."""
        wide = columns >= WARP * heuristics.chained.lanes and not analysis.once(pairs)
        lanes = min(access.lanes, heuristics.chained.lanes) if wide else 1
        idle, least = (-(-columns // (WARP * n)) * WARP * n / columns for n in (lanes, 1))
        if idle > heuristics.chained.idle * least:
            lanes = 1
        rows, tx = _rows(analysis, heuristics.rows, lanes), min(WARP, power_from(-(-columns // lanes)))
        vectors = access if lanes == access.lanes else narrowed(analysis, access, lanes)
        p = Tiling("scan_columns", vectors, tx, heuristics.block // tx, 1, rows, chained=1)
        tall = p._replace(rows_per_thread=2 * rows)
        return _fitting(
            analysis, tall if lanes == 1 and _tall(analysis, tall, columns, length, share, heuristics) else p
        )

    @staticmethod
    def _chained_narrow(analysis: Analysis, access: Access, columns: int, heuristics: ColumnScanHeuristics) -> Tiling:
        """A chained scan for few columns, whose only strip is one chain: iterations of many rows make it short."""
        tx = min(WARP, power_from(columns))
        most = max(1, heuristics.chained.tall_bytes // (tx * analysis.once(widest_bytes)))
        rows = _rows(analysis, power_to(min(heuristics.chained.tall, most)), 1)
        vectors, chained = narrowed(analysis, access, 1), 2 if tx == WARP else 1
        return _fitting(analysis, Tiling("scan_columns", vectors, tx, heuristics.block // tx, 1, rows, chained=chained))

    @staticmethod
    def _chained_unaligned(
        analysis: Analysis, access: Access, columns: int, length: int, share: float, heuristics: ColumnScanHeuristics
    ) -> Tiling:
        """A chained scan for rows that are not aligned for vectors. ``share``: points of the outer kept loops per
        multiprocessor."""
        narrow, short = columns * share < WARP, analysis.once(widest_bytes) <= heuristics.odd.short
        iteration = heuristics.odd.iteration if narrow else heuristics.odd.iteration // 2
        rows = heuristics.rows if narrow or short else heuristics.rows // 2
        ty, chained = min(iteration // rows, heuristics.block // WARP), 1 if narrow else 2
        tx = min(WARP, power_from(columns))
        p = Tiling("scan_columns", access, tx, ty * (WARP // tx), 1, rows, chained=chained)
        tall = p._replace(rows_per_thread=2 * rows)
        return _fitting(analysis, tall if short and _tall(analysis, tall, columns, length, share, heuristics) else p)

    @staticmethod
    def _several_columns(
        analysis: Analysis, access: Access, columns: int, share: float, scans: ScanHeuristics
    ) -> Iterator[Tiling]:
        """Strips with several columns per thread, if there are enough of them for all multiprocessors. All strips of a
        multiprocessor are resident together, with the fewer threads the more there are. Not for expensive scans, which
        are slower this way."""
        heuristics, odd, widest = scans.columns, scans.columns.odd, analysis.once(widest_bytes)

        def strips(beside: int) -> float:
            return -(-columns // (WARP * beside)) * share

        beside = (
            odd.vectors_per_thread
            if strips(odd.vectors_per_thread) >= odd.enough * analysis.once(numbers)
            else odd.vectors_per_thread // 2
        )
        strips_per_sm = strips(beside)
        if strips_per_sm < odd.enough or any(op.row.cost >= scans.costly_scan for op in analysis.scans):
            return
        ty = odd.warps // math.ceil(strips_per_sm) if strips_per_sm <= odd.together else odd.beyond
        nbytes = odd.bytes if widest > odd.short or strips_per_sm <= odd.few else odd.bytes // 2
        rows = elements_of(analysis, min(nbytes // widest, heuristics.rows)) // beside
        ty = min(power_to(ty), heuristics.block // WARP)
        yield _fitting(analysis, Tiling("scan_columns", access, WARP, ty, beside, max(rows, odd.rows)))

    def kernels(self, name: str, analysis: Analysis, slots: Slots, p: Tiling) -> list[GpuKernel]:
        if not p.chained:
            return [_Kernel(name, analysis, slots, p).emit()]
        words = ScanBody(f"{name}_words", analysis, slots, p.access, chained_scan.THREADS)
        columns, above, _ = _extents(analysis)
        _, iterations = _strips(analysis, p)
        empty = chained_scan.emptied(words, sz.mul(columns, above), iterations, p.ty * p.chained)
        return [empty, _Kernel(name, analysis, slots, p).emit()]

    def check(self, analysis: Analysis, p: Tiling, call: SizedCall) -> None:
        require(is_outer(analysis, call.sizes), "scan_columns: for these sizes a scanned axis is contiguous")
        self.check_access(analysis, p, True, call)
        check_tiling(p, call.properties)
        require(p.tx <= WARP, f"tx = {p.tx}: must be at most {WARP}, a warp")
        require(p.ty == 1 or p.tx * p.ty >= WARP, f"ty = {p.ty}: must be 1, or make a block of at least a warp")
        require(not p.chained or analysis.once(apart), "chained: not for scans that depend on each other")
        require(not p.chained or power_of_two(p.chained), f"chained = {p.chained}: must be a power of two")
        require(
            p.vectors_per_thread == 1 or (not p.chained and p.access.lanes == 1),
            f"vectors_per_thread = {p.vectors_per_thread}: needs lanes = 1 and chained = 0",
        )
        elements = p.rows_per_thread * p.width
        require(
            power_of_two(p.rows_per_thread) and elements <= MOST_REGISTER_ELEMENTS,
            f"rows_per_thread = {p.rows_per_thread}: must be a power of two, with at most {MOST_REGISTER_ELEMENTS} "
            "elements per thread",
        )
        nbytes = _bytes(analysis, p.tx, p.ty, p.width)
        require(nbytes <= SHARED, f"tx, ty: need {nbytes} bytes of shared memory, {SHARED} are available")


def _rows(analysis: Analysis, most: int, lanes: int) -> int:
    """Rows of a thread with ``lanes`` columns: ``most``, or fewer if states have several components."""
    if analysis.once(pairs):
        return min(most, MOST_REGISTER_ELEMENTS // (2 * lanes))
    return elements_of(analysis, most)


def _tall(
    analysis: Analysis, p: Tiling, columns: int, length: int, share: float, heuristics: ColumnScanHeuristics
) -> bool:
    """Whether iterations with twice the rows are faster: few strips, at least one iteration of each per multiprocessor,
    and registers hold their elements."""
    iterations = -(-columns // (p.tx * p.width)) * share * (length // (p.ty * p.rows_per_thread))
    fits = p.rows_per_thread * p.tx * p.width * analysis.once(widest_bytes) <= heuristics.chained.tall_bytes
    few = columns * share < heuristics.chained.tall_strips
    return few and fits and iterations >= heuristics.chained.tall_blocks and analysis.once(numbers) == 1


def _extents(analysis: Analysis) -> tuple:
    """The numbers of columns of the innermost kept loop, of points of the loops around it, and of rows."""
    *outer, inner = analysis.loops(analysis.kept)
    return size_of(inner), sz.product(map(size_of, outer)), sz.product(a.size for a in analysis.reduced)


def _strips(analysis: Analysis, p: Tiling) -> tuple[sz.Size, sz.Size]:
    """The number of strips of columns, each as wide as a block, and of iterations per strip."""
    columns, above, length = _extents(analysis)
    return sz.mul(sz.ceildiv(columns, p.tx * p.width), above), sz.ceildiv(length, p.ty * p.rows_per_thread)


def _bytes(analysis: Analysis, tx: int, ty: int, columns: int) -> int:
    """Bytes of shared memory of a block."""
    return 2 * (tx * ty // WARP) * (tx + 1) * columns * 8 * analysis.once(numbers) if tx * ty > WARP else 0


def _fitting(analysis: Analysis, p: Tiling) -> Tiling:
    """``p``, with fewer rows of threads if a block's shared memory has no room for their states."""
    while p.ty > 1 and _bytes(analysis, p.tx, p.ty, p.width) > SHARED:
        p = p._replace(ty=p.ty // 2)
    return p


ThreadRows = list[tuple[Env, Val]]


class _Kernel:
    """The kernel of a segment."""

    def __init__(self, name: str, analysis: Analysis, slots: Slots, p: Tiling):
        self.analysis, self.p = analysis, p
        states, threads = p.rows_per_thread * p.access.lanes * analysis.once(numbers), p.tx * p.ty
        full = p.chained and states == REGISTER_STATES
        min_blocks_per_sm = max(1, MIN_THREADS_PER_SM // threads) if full else 1
        self.body = body = ScanBody(name, analysis, slots, p.access, threads, min_blocks_per_sm)
        self.e, self.k, self.lanes, self.iteration = body.e, body.k, p.access.lanes, p.ty * p.rows_per_thread
        k = self.k
        self.columns, above, _ = _extents(analysis)
        across = sz.ceildiv(self.columns, p.tx * p.width)
        self.strips, self.iterations = _strips(analysis, p)
        strip = Index(body.wide(body.block))
        points = sz.mul(self.columns, above)
        self.chain = chained_scan.ScanChain(body, points, self.iterations, p.ty * p.chained) if p.chained else None
        if self.chain:
            which, strip = k.divmod(Index(self.chain.ticket()), self.strips)
            self.part = k.scalar(which.base)
        self.outer, block_column = k.divmod(strip, across)
        several = p.vectors_per_thread > 1
        self.places = [
            place_of(
                body,
                p,
                self.columns,
                self.outer,
                k.add(k.scale(block_column, p.vectors_per_thread), Index(n)) if several else block_column,
            )
            for n in range(p.vectors_per_thread)
        ]
        self.first = body.wide(self.e.mul(self.places[0].y, p.rows_per_thread))
        self.exchange = _Exchange(body, p, self.places[0])

    def emit(self) -> GpuKernel:
        """The finished kernel."""
        e, body = self.e, self.body
        if self.chain:
            self.alone(self.chain)
        else:
            low, high = e.const(0, body.index), body.size(body.length)
            body.loop(low, high, self.iteration, body.nothing_scanned(self.p.width), self.one)
        if body.small:
            for at in self.places:
                first_row = e.and_(at.inside, e.cmp("eq", at.y, 0))
                first_row = e.and_(first_row, e.cmp("eq", self.part, 0)) if self.chain else first_row
                body.store_at(body.small, at.env, self.analysis.kept, first_row)
        return body.finish(sz.mul(self.strips, self.iterations) if self.chain else self.strips)

    def rows_from(self, start: Val, env: Env) -> ThreadRows:
        """This thread's rows of an iteration, and whether each exists."""
        e = self.e
        return [self.body.along(env, e.add(e.add(start, self.first), u), 1) for u in range(self.p.rows_per_thread)]

    def loaded(self, start: Val) -> list[ThreadRows]:
        """The rows of each of this thread's vectors, loaded."""
        vectors = [self.rows_from(start, at.env) for at in self.places]
        for value in self.body.loaded:
            for here, _ in itertools.chain(*vectors):
                self.k.preload(value, here)
        return vectors

    def runs_of(self, op: Op, rows: ThreadRows) -> list[sc.State]:
        """The inclusive scan of this thread's rows. Beyond the last row it is undefined, and not stored."""
        elements = (sc.element(self.e, op, self.k.operands(op, here), self.lanes) for here, _ in rows)
        return list(itertools.accumulate(elements, functools.partial(sc.combine, self.e, op)))

    def bind(self, op: Op, rows: ThreadRows, runs: list[sc.State], begin: sc.State) -> None:
        """Bind the results; ``begin`` is the state before the rows."""
        for (here, _), run in zip(rows, runs):
            self.k.bind(op.result, here, sc.result(self.e, op, sc.combine(self.e, op, begin, run)))

    def store(self, rows: ThreadRows, at: ThreadPlace) -> None:
        """Store full-size outputs."""
        for here, inside in rows:
            self.body.store_at(self.body.full, here, self.analysis.domain, self.e.and_(at.inside, inside))

    def beside(self, states: list[sc.State]) -> sc.State:
        """The states of all vectors of a thread as one vector."""
        return states[0] if len(states) == 1 else tuple(map(self.e.from_lanes, map(list, zip(*states))))

    def of_vector(self, state: sc.State, n: int) -> sc.State:
        """The state of one of them."""
        return tuple(self.e.extract(v, n) for v in state) if self.p.vectors_per_thread > 1 else state

    def one(self, start: Val, carried: list[Val]) -> list[Val]:
        """An iteration down the columns."""
        e, body = self.e, self.body
        vectors = self.loaded(start)
        following: list[Val] = []
        parity = e.and_(e.cast(e.shr(start, self.iteration.bit_length() - 1), dt.i32), 1)
        for at, (op, state) in enumerate(zip(body.scans, body.by_scan(carried))):
            runs = [self.runs_of(op, rows) for rows in vectors]
            begin, after = self.exchange.starts(at, op, state, self.beside([run[-1] for run in runs]), parity)
            for n, (rows, run) in enumerate(zip(vectors, runs)):
                self.bind(op, rows, run, self.of_vector(begin, n))
            following += after
        for rows, here in zip(vectors, self.places):
            self.store(rows, here)
        return following

    def alone(self, chain: chained_scan.ScanChain) -> None:
        """The iteration of a chained block."""
        e, k, body, place, starts = self.e, self.k, self.body, self.places[0], self.exchange.starts
        (rows,) = self.loaded(e.mul(self.part, self.iteration))
        runs = [self.runs_of(op, rows) for op in body.scans]
        nothing, zero = body.by_scan(body.nothing_scanned(self.lanes)), e.const(0, dt.i32)
        found = [starts(n, op, nothing[n], run[-1], zero) for n, (op, run) in enumerate(zip(body.scans, runs))]
        column = e.add(e.mul(k.scalar(self.outer.base), body.size(self.columns)), place.column)
        prefixes = chain.begin(self.part, column, [after for _, after in found], self.exchange.asker())
        part_again, _ = k.divmod(Index(chain.ticket_again()), self.strips)
        again = self.rows_from(e.mul(k.scalar(part_again.base), self.iteration), place.env)
        for value in body.loaded:
            for (there, _), (here, _) in zip(rows, again):
                k.bind_loaded(value, here, k.preload(value, there))
        for op, run, (before, _), state in zip(body.scans, runs, found, prefixes):
            self.bind(op, again, run, sc.combine(e, op, state, before))
        self.store(again, place)


class _Exchange:
    """Computes the state before each thread's rows by exchanging states between the threads of a column."""

    def __init__(self, body: ScanBody, p: Tiling, place: ThreadPlace):
        self.body, self.e, self.p, self.place = body, body.e, p, place
        self.warps = p.tx * p.ty // WARP  # 0: one row of threads
        self.warp, self.lane = body.thread_warp(), body.e.and_(body.thread, WARP - 1)
        nbytes = 2 * max(1, self.warps) * (p.tx + 1) * p.width * 8
        shared = self.warps > 1 or p.chained
        self.offsets = [[body.reserve(nbytes) for _ in sc.state_types(op)] if shared else [] for op in body.scans]

    def starts(self, at: int, op: Op, carried: sc.State, total: sc.State, parity: Val) -> tuple[sc.State, sc.State]:
        """The state before this thread's rows, which have the state ``total``, and the state after the iteration, for
        the ``at``-th scan. ``parity``: of the iteration. Its totals are in another buffer than those of the previous
        iteration, which may still be read."""
        body, e, tx = self.body, self.e, self.p.tx
        if self.p.ty == 1:
            return carried, sc.combine(e, op, carried, total)
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
            end = tuple(e.per_lane(lambda v: body.exchanged(v, "idx", last), v) for v in total)
            begin, state = carried, sc.combine(e, op, carried, end)
        return (sc.combine(e, op, begin, before) if tx < WARP else begin), state

    def asker(self) -> chained_scan.Asker:
        """The :class:`Asker` in which each row of threads reads the states of some other parts, and the first row those
        of the columns."""
        body, e, place, lanes = self.body, self.e, self.place, self.p.access.lanes
        first = body.wide(e.mul(place.y, self.p.chained))
        numbers = [e.add(first, n) for n in range(self.p.chained)]
        leads = e.cmp("eq", place.y, 0)

        def after(n: int, op: Op, state: sc.State) -> sc.State:
            return self.starts(n, op, sc.identity(e, op, lanes), state, e.const(1, dt.i32))[1]

        return chained_scan.Asker(numbers, leads, e.and_(leads, place.inside), after, self.offsets, place.x)

    def _of_warps(self, at: int, op: Op, total: sc.State, slot: Val) -> tuple[sc.State, sc.State]:
        """The state of a column's rows in the warps before this one, and in all warps. The last lanes of each warp hold
        its ``total``; neighbouring threads scan those of a column by shuffles."""
        body, e, tx, warps = self.body, self.e, self.p.tx, self.warps
        with body.leader(e.cmp("ge", self.lane, WARP - tx)):
            body.put(self.offsets[at], self._index(slot, self.warp, self.place.x), total)
        body.barrier()
        which, column = e.and_(body.thread, warps - 1), body.quotient(body.thread, warps)
        column = e.min(column, tx)  # surplus threads read the padding between two warps' states
        index = self._index(slot, which, column)

        def above(state: sc.State, nothing: sc.State, n: int) -> sc.State:
            return sc.select(e, e.cmp("ge", which, n), self._up(state, n), nothing)

        steps = [1 << n for n in range(warps.bit_length() - 1)]
        scanned = sc.along(e, op, body.get(self.offsets[at], index, total), steps, above)
        with body.leader(e.cmp("lt", body.thread, warps * tx)):
            body.put(self.offsets[at], index, scanned)
        body.barrier()
        upper = body.get(self.offsets[at], self._index(slot, e.max(e.sub(self.warp, 1), 0), self.place.x), total)
        upper = sc.select(e, e.cmp("gt", self.warp, 0), upper, sc.identity(e, op, self.p.width))
        return upper, body.get(self.offsets[at], self._index(slot, e.const(warps - 1, dt.i32), self.place.x), total)

    def _index(self, slot: Val, warp: Val, x: Val) -> Val:
        """The index of the state of a warp's column; padded, so that neighbouring warps use different banks."""
        return self.e.add(self.e.mul(self.e.add(slot, warp), self.p.tx + 1), x)

    def _up(self, state: sc.State, n: int) -> sc.State:
        return tuple(self.e.per_lane(lambda v: self.body.exchanged(v, "up", n), v) for v in state)
