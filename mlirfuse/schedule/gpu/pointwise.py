"""Pointwise segments on a GPU.

The domain has an inner loop (columns, contiguous if possible) and the loops around it (rows). A block processes a tile
of ``ty * rows_per_thread`` rows by ``tx * lanes * vectors_per_thread`` columns. A thread evaluates all of its elements
before it stores any, so that its loads are in flight together. Threads beyond the border compute a clamped element and
store nothing.

Rows whose length vectors do not divide are coalesced if memory is contiguous across them: vectors cross row boundaries,
and inputs that vary along only one of the two loops, such as a bias, are read element by element."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mlirfuse.analysis.axes import Axis
from mlirfuse.analysis.phases import Analysis, size_of
from mlirfuse.core.device_properties import DeviceProperties
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Value
from mlirfuse.ir.sizes import Size
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.foreach import LEAST
from mlirfuse.lowering.kernel import ZERO, Env, Flat, Index
from mlirfuse.lowering.module import GpuKernel
from mlirfuse.lowering.slots import Slots
from mlirfuse.schedule.gpu.access import WIDEST, Access, access_of, hint_of, known_multiples, moved, narrowed, of_slices
from mlirfuse.schedule.gpu.kernel import GpuBody
from mlirfuse.schedule.gpu.scan_body import power_from, power_to
from mlirfuse.schedule.gpu.scheduler import GpuScheduler, check_threads
from mlirfuse.schedule.gpu.tuning import heuristics_of
from mlirfuse.schedule.gpu.windows import of_window, read_at_once, rows_read, unaligned_reads
from mlirfuse.schedule.scheduler import Alignments, Sizes, power_of_two, require

WARP = 32
_LONG = 1 << 28  # elements, more than any device has threads for
MOST_UNROLLED = 64  # vectors per thread along columns or rows: more only takes longer to compile


class Params(NamedTuple):
    """``tx`` threads along columns and ``ty`` along rows, with ``vectors_per_thread`` and ``rows_per_thread``.
    ``row_segments``: the rows are coalesced to so many segments, of each of which a thread takes a vector at the same
    offset (0: not coalesced). ``runs``: if none of a thread's vectors crosses a row boundary, elements that several of
    its vectors need are loaded once, in loads of so many elements. ``ragged``: the last vector of all elements is
    partial."""

    access: Access
    tx: int
    ty: int
    vectors_per_thread: int
    rows_per_thread: int
    row_segments: int = 0
    runs: int = 0
    ragged: bool = False


class _Kernel:
    """The kernel of a segment. A thread has ``vectors_per_thread`` vectors of each of ``rows_per_thread`` rows."""

    def __init__(self, name: str, analysis: Analysis, slots: Slots, p: Params):
        self.analysis, self.p = analysis, p
        self.body = body = GpuBody(name, analysis, slots, p.access, p.tx * p.ty)
        self.e, self.k = e, k = body.e, body.k
        self.loops = loops = analysis.loops(analysis.kept)
        self.columns, self.rows = columns, _ = _extents(analysis, p.row_segments)
        self.inner, self.outer = loops[-1:], loops[:-1]
        self.middle: list[Axis] = []
        if p.row_segments and self.outer:
            *self.outer, self.middle = self.outer
            self.segment_rows = sz.floordiv(size_of(self.middle), p.row_segments)
        self.lanes = p.access.lanes
        self.tile_columns = p.tx * self.lanes * p.vectors_per_thread
        self.tile_rows = p.ty * (1 if p.row_segments > 1 else p.rows_per_thread)
        self.across = across = sz.ceildiv(columns, self.tile_columns)
        block = body.wide(body.block)
        if across == 1 or not self.outer:
            zero = e.const(0, body.index)
            self.block_row, self.block_column = (block, zero) if across == 1 and self.outer else (zero, block)
        else:
            q, r = k.divmod(Index(block), across)
            self.block_row, self.block_column = k.scalar(q.base), k.scalar(r.base)
        t = body.thread
        self.x = e.and_(t, p.tx - 1) if p.ty > 1 else t
        y = body.quotient(t, p.tx) if p.ty > 1 else e.const(0, dt.i32)
        self.first_column = e.add(e.mul(self.block_column, self.tile_columns), body.wide(e.mul(self.x, self.lanes)))
        self.first_row = e.add(e.mul(self.block_row, self.tile_rows), body.wide(y))

    def emit(self) -> list[GpuKernel]:
        """The finished kernel."""
        p, k = self.p, self.k
        crossing = p.runs and bool(self.middle)  # vectors may cross row boundaries
        if p.rows_per_thread * p.vectors_per_thread == 1 and not p.runs and not p.ragged:
            self.tile(True)
        else:  # a full tile needs no check per vector, which would keep its loads from being in flight together
            with k.region(f"scf.if {self.is_full(bool(crossing))} {{", "} else {"):
                if crossing and p.ragged:
                    with k.region(f"scf.if {self.in_one_row()} {{", "} else {"):
                        self.tile(False, p.runs)
                    with k.region("", "}"):
                        self.tile(False)
                else:
                    self.tile(False, p.runs)
            with k.region("", "}"):
                self.elements() if p.ragged else self.tile(True)
        grid = sz.mul(self.across, sz.ceildiv(self.rows, self.tile_rows)) if self.loops else 1
        return [self.body.finish(grid)]

    def is_full(self, crossing: bool) -> Val:
        """Whether all of the block's tile is inside, and, if vectors may be ``crossing`` rows, this thread's do not."""
        e, body, p = self.e, self.body, self.p
        last_column = e.add(e.mul(self.block_column, self.tile_columns), self.tile_columns)
        full = e.cmp("le", last_column, body.size(self.columns))
        if self.outer and p.row_segments <= 1:
            last_row = e.add(e.mul(self.block_row, self.tile_rows), self.tile_rows)
            full = e.and_(full, e.cmp("le", last_row, body.size(self.rows)))
        if crossing and not p.ragged:
            full = e.and_(full, self.in_one_row())
        return full

    def row_of(self, u: int, clamped: bool):
        """The env of a thread's row ``u`` without its columns, clamped to the domain if ``clamped``, and whether it is
        inside (None: always)."""
        e, body = self.e, self.body
        env: Env = {}
        row, inside = self.first_row, None
        if self.p.row_segments > 1:
            body.set_loop(env, self.middle, self.k.scale(Index(u), self.segment_rows))
        elif self.outer:
            row = e.add(self.first_row, u * self.p.ty) if u else self.first_row
            if clamped:
                inside = e.cmp("lt", row, body.size(self.rows))
                row = e.min(row, e.sub(body.size(self.rows), 1))
        body.unlinear(env, self.outer, Index(row))
        return env, inside

    def column_of(self, w: int, clamped: bool, runs: int):
        """A thread's vector ``w``, clamped to the row if ``clamped``: its index, whether it is inside (None: always),
        and for coalesced rows the row and column of each lane; with ``runs`` all lanes are in one row."""
        e, k, lanes = self.e, self.k, self.lanes
        column, inside = e.add(self.first_column, w * self.p.tx * lanes) if w else self.first_column, None
        if clamped:
            inside = e.cmp("lt", column, self.body.size(self.columns))
            column = e.min(column, e.sub(self.body.size(self.columns), lanes))
        index = Index(column, 1, lanes) if lanes > 1 else Index(column)
        if not self.middle:
            return index, inside, ZERO, index
        width = size_of(self.inner[0])
        if runs:
            down, along = k.divmod(Index(column), width)
            return index, inside, down, Index(along.base, 1, lanes, divisor=min(lanes, k.power_in(width)))
        return index, inside, *k.divmod(index, width)

    def in_one_row(self) -> Val:
        """Whether none of a thread's vectors crosses the boundary of coalesced rows."""
        e, k, width = self.e, self.k, size_of(self.inner[0])
        starts = range(self.p.vectors_per_thread)
        columns = [e.add(self.first_column, w * self.p.tx * self.lanes) for w in starts]
        rests = [k.scalar(k.divmod(Index(column), width)[1].base) for column in columns]
        return functools.reduce(e.and_, (e.cmp("le", rest, e.sub(self.body.size(width), self.lanes)) for rest in rests))

    def at(self, row, column):
        """The env at a row and a column, whether it is inside, and how its vector crosses rows (or None)."""
        (env, row_inside), (index, inside, down, along) = row, column
        env, flat, inner, middle = dict(env), None, self.inner[0], self.middle
        if middle:
            origin = env.get(middle[-1], ZERO).base
            self.body.set_loop(env, middle, self.k.add(Index(origin), down))
            flat = Flat((middle[-1], inner[-1]), size_of(inner), origin, index, env[middle[-1]], along)
        self.body.set_loop(env, inner, along)
        if row_inside is not None:
            inside = row_inside if inside is None else self.e.and_(row_inside, inside)
        return env, inside, flat

    def places(self, clamped: bool, runs: int) -> list:
        """Where a thread's vectors are, as :meth:`at` returns it."""
        if not self.loops:
            return [({}, self.e.cmp("eq", self.body.thread, 0), None)]
        rows = [self.row_of(u, clamped) for u in range(self.p.rows_per_thread)]
        columns = [self.column_of(w, clamped, runs) for w in range(self.p.vectors_per_thread)]
        return [self.at(row, column) for row in rows for column in columns]

    def tile(self, clamped: bool, runs: int = 0) -> None:
        """Compute and store all vectors of a thread: loads first, so that they are in flight together."""
        analysis, k, here = self.analysis, self.k, self.places(clamped, runs)
        for env, _, flat in here:
            with k.coalesced(flat, runs):
                for value in analysis.outputs:
                    k.value(value, env)
        for env, valid, flat in here:
            with k.coalesced(flat, runs):
                self.body.store_at(analysis.outputs, env, analysis.kept, valid)

    def elements(self) -> None:
        """Compute the tile's elements up to the end of memory, one by one."""
        analysis, e, k, body = self.analysis, self.e, self.k, self.body
        first = e.mul(self.block_column, self.tile_columns)
        last = e.min(e.add(first, self.tile_columns), body.size(self.columns))

        def one(column: Val, carried: list[Val]) -> list[Val]:
            index = Index(column)
            split = k.divmod(index, size_of(self.inner[0])) if self.middle else (ZERO, index)
            for row in [self.row_of(u, True) for u in range(self.p.rows_per_thread)]:
                env, valid, flat = self.at(row, (index, None, *split))
                with k.coalesced(flat):
                    body.store_at(analysis.outputs, env, analysis.kept, valid)
            return carried

        body.loop(e.add(first, body.wide(self.x)), last, self.p.tx, [], one)


class Pointwise(GpuScheduler[Params]):
    """Computes output elements from input elements."""

    name = "pointwise"
    parameters = Params

    def takes(self, analysis: Analysis) -> bool:
        return analysis.elementwise

    def candidates(
        self, analysis: Analysis, env: Sizes, alignments: Alignments, properties: DeviceProperties
    ) -> Iterator[Params]:
        """Parameters worth measuring, the heuristic's choice first.

        Blocks have 512 threads along the columns; 256 if there is little work or that leaves fewer threads idle, or
        along several rows if there are few columns. Threads have several vectors if vectors are short and there is work
        for all threads, or if L2 holds much of the data and the kernel is latency-bound."""
        return self._candidates(analysis, env, alignments, properties, True)

    def _candidates(
        self, analysis: Analysis, env: Sizes, alignments: Alignments, properties: DeviceProperties, folds: bool
    ) -> Iterator[Params]:
        """See :meth:`candidates`. ``folds``: vectors may cross row boundaries, and the last vector may be partial."""
        read, written = moved(analysis, env, properties)
        heuristics = heuristics_of(properties).pointwise
        cached = read + written < heuristics_of(properties).access.staying
        access = access_of(analysis, True, env, alignments, hint_of(analysis, env, properties))
        columns, rows = analysis.values(_plain_extents, env)
        window = bool(analysis.pinned) and analysis.once(unaligned_reads) > 1
        at_once = read_at_once(analysis, env, alignments) if window else 0
        least = min((analysis.stored(v).bytes for v in analysis.inputs), default=1)
        read_rows = analysis.once(rows_read) if analysis.pinned else 1
        under = read_rows > 1 and columns * rows >= heuristics.rows_shared
        odd = under and columns % 2 == 1 and columns >= heuristics.long_under and read_rows <= 3
        odd = odd and at_once >= heuristics.at_once and least <= 4 and analysis.once(unaligned_reads) > read_rows
        under = under and not odd  # otherwise odd rows would be written element by element
        coalesce = folds and (columns % 8 or window) and not under
        spread = properties.sm_count * properties.threads_per_sm // heuristics.spread
        found = _coalesced(analysis, access, env, alignments, heuristics.coalesced) if coalesce else None
        if found and found[2] and columns * rows < found[1].lanes * spread:
            found = None  # fetching the code for the last elements takes longer than vectors save
        parts, access, ragged = found or (0, access, False)
        row = columns
        if parts:
            columns, rows = analysis.values(_flat_extents, env)
        if not parts:
            access = _narrowed(analysis, access, columns * rows, spread, heuristics.least_bytes)
        runs = 0
        wide = of_slices(analysis, access, env, alignments) if under and window else None
        lanes = min(wide.lanes, heuristics.lanes_under) if wide else 1
        if wide and lanes > access.lanes and _busy(-(-columns // lanes)):
            access = narrowed(analysis, wide, lanes)
            runs = max(1, min(at_once, heuristics.bytes_under // least))
        vectors = -(-columns // access.lanes)

        def params(threads: int, wanted: int) -> Params:
            tx = threads if vectors >= threads else 1 << max(0, vectors - 1).bit_length()
            # No two threads have the same element: one that overwrites an argument is read only once.
            ty = threads // tx if rows > 1 else 1
            full = properties.sm_count * (properties.threads_per_sm // threads)
            across, down = 1, 1
            while across * down < wanted:
                if tx == threads and vectors >= tx * across * 2 and vectors * rows // (threads * across * 2) >= full:
                    across *= 2
                elif tx < threads and rows // (ty * down * 2) >= full:
                    down *= 2
                else:
                    break
            return Params(access, tx, ty, across, down, min(parts, 1), runs, ragged)

        several_rows = vectors < heuristics.several_rows  # a block spans rows
        few = vectors * rows < properties.sm_count * properties.threads_per_sm
        large, small = heuristics.block, heuristics.small_block
        threads = small if several_rows or few or -(-vectors // large) * 2 > -(-vectors // small) else large
        rows_a_thread = heuristics.cached_rows[len(analysis.inputs) == 1] if cached else 1
        of_long_rows = analysis.once(_vectors_a_thread, access.lanes, heuristics.most_vectors, heuristics.in_flight)
        first = params(threads, rows_a_thread if several_rows else of_long_rows)
        if parts and analysis.pinned:
            busy = columns * rows >= access.lanes * spread
            several = 0
            if not window:  # elements are read one by one, which few threads would do slowly
                least_threads = properties.sm_count * properties.threads_per_sm // heuristics.spread_coalesced
                fewer = [n for n in (4, 2) if n < access.lanes and columns * rows <= n * least_threads]
                access = narrowed(analysis, access, fewer[-1]) if fewer else access
                vectors, ragged = -(-columns // access.lanes), ragged and columns % access.lanes != 0
            if window:
                lanes, several = of_window(access.lanes, 0 if row == columns else row, busy, least, heuristics)
                if lanes < access.lanes:
                    known = known_multiples(analysis, lanes, env, alignments) if row % lanes == 0 else frozenset()
                    access = narrowed(analysis, access, lanes)._replace(multiples=known)
                    vectors, ragged = -(-columns // lanes), columns % lanes != 0
            alone = row == columns or row % access.lanes == 0  # no vector crosses a row boundary
            runs = min(at_once, heuristics.at_once) if window and (alone or (busy and row >= heuristics.run)) else 0
            if runs and odd and least == 4:
                several, runs = heuristics.of_three_rows
            if columns * rows < spread * heuristics.soon:
                several, runs = 1, 0  # the time of short kernels is dominated by fetching their code
            written = access.lanes * analysis.once(_written)
            in_flight = max(1, min(heuristics.most_vectors, heuristics.in_flight // written))
            first = params(small // 2, 1 if several else in_flight)
            across = several if several and vectors >= first.tx * several else first.vectors_per_thread
            parts, first = 1, first._replace(runs=runs, vectors_per_thread=across)
            first = _of_several_vectors(first, vectors, rows, properties) if cached and not window else first
        elif not parts and analysis.pinned and first.vectors_per_thread < heuristics.most_vectors:
            wide_concat = analysis.once(_most_concatenated) > 1 and analysis.once(_written) * access.lanes >= WIDEST
            if cached and wide_concat:
                first = _of_several_vectors(params(small // 2, 1), vectors, rows, properties)
            else:
                first = _of_several_rows(analysis, first, env, properties)
        elif not parts and analysis.once(_column_share) >= heuristics.shared:
            first = _that_share_columns(analysis, first, env, properties)
        if parts > 1:
            yield Params(access, small, 1, 1, parts, parts)
        yield first
        if first.runs:
            yield from (first._replace(runs=n) for n in (1, 2, 8) if n <= at_once and n != first.runs)
        others = (params(threads, wanted) for threads in (small, small // 2, large) for wanted in (1, 2, 4, 8))
        yield from (p for p in dict.fromkeys(others) if p != first)

    def together(
        self, analyses: Sequence[Analysis], env: Sizes, alignments: Alignments, properties: DeviceProperties
    ) -> list[Params] | None:
        """Group 1-D segments by vector width, and tune each group as one segment with all of its elements.

        First a group of the segments with the widest vectors, and others that support that width; then one of the rest,
        with the width that all of those support. None if a segment is not one contiguous loop."""
        if any(len(analysis.loops(analysis.kept)) != 1 or analysis.pinned for analysis in analyses):
            return None
        own = [access_of(analysis, True, env, alignments) for analysis in analyses]
        counts = [analysis.values(_plain_extents, env)[0] for analysis in analyses]
        out: list[Params | None] = [None] * len(analyses)
        left = list(range(len(analyses)))
        for all_of_them in (False, True):
            widest = max(((own[at].lanes, own[at].aligns) for at in left), default=None)
            found = [at for at in left if all_of_them or (own[at].lanes, own[at].aligns) == widest]
            if len(found) >= LEAST:
                largest = max(found, key=lambda at: counts[at])
                sizes = _as_long(analyses[largest], env, counts[largest], sum(counts[at] for at in found))
                best = next(self._candidates(analyses[largest], sizes, alignments, properties, False))
                lanes = min(best.access.lanes, *(own[at].lanes for at in found))
                fitted = {at: narrowed(analyses[at], own[at], lanes) for at in left if own[at].lanes >= lanes}
                aligns = tuple(map(min, *(fitted[at].aligns for at in found)))
                found = [at for at in left if at in found or (at in fitted and fitted[at].aligns == aligns)]
                index = dt.i64 if any(own[at].index is dt.i64 for at in found) else dt.i32
                for at in found:
                    line = fitted[at].multiples.intersection(_plain_extents(analyses[at])[:1])
                    out[at] = best._replace(access=Access(index, lanes, aligns, line, best.access.hint))
            left = [at for at in left if at not in found]
        chosen = (p or next(self._candidates(a, env, alignments, properties, False)) for a, p in zip(analyses, out))
        return list(chosen)

    def kernels(self, name: str, analysis: Analysis, slots: Slots, p: Params) -> list[GpuKernel]:
        return _Kernel(name, analysis, slots, p).emit()

    def check(
        self, analysis: Analysis, p: Params, env: Sizes, alignments: Alignments, properties: DeviceProperties
    ) -> None:
        check_threads(p.tx, p.ty)
        for name, n in (("vectors_per_thread", p.vectors_per_thread), ("rows_per_thread", p.rows_per_thread)):
            require(1 <= n <= MOST_UNROLLED, f"{name} = {n}: must be from 1 to {MOST_UNROLLED}")
        outer = len(analysis.loops(analysis.kept)) - 1
        require(not p.ragged or p.row_segments == 1, "ragged: needs row_segments = 1")
        most = read_at_once(analysis, env, alignments)
        require(
            p.runs == 0 or (p.row_segments <= 1 and power_of_two(p.runs) and p.runs <= most),
            f"runs = {p.runs}: must be 0, or a power of two up to {most} with row_segments <= 1",
        )
        if p.row_segments:
            narrow = p.access._replace(lanes=1)
            found = _coalesced(analysis, narrow, env, alignments, heuristics_of(properties).pointwise.coalesced)
            require(
                found is not None, "row_segments: outputs are not contiguous across rows, or not aligned for vectors"
            )
            assert found is not None
            _, access, _ = found
            lanes = p.access.lanes
            fitted = narrowed(analysis, access, lanes) if 1 <= lanes <= access.lanes and power_of_two(lanes) else access
            require(
                p.access.lanes == fitted.lanes and p.access.aligns == fitted.aligns,
                f"row_segments: lanes must be at most {access.lanes}, with matching aligns",
            )
            known = known_multiples(analysis, lanes, env, alignments)
            require(p.access.multiples <= known, f"multiples: not all are known to be multiples of {lanes}")
            (elements, _), (rows, *_) = analysis.values(_flat_extents, env), analysis.values(_steps_across, env)
            require(
                p.row_segments > 0
                and rows % p.row_segments == 0
                and (p.ragged or elements % (p.row_segments * lanes) == 0),
                f"row_segments = {p.row_segments}: must divide {rows} rows into full vectors",
            )
            outer = max(outer - 1, 0)
            require(
                p.row_segments == 1 or (p.ty == 1 and p.rows_per_thread == p.row_segments),
                "row_segments: needs ty = 1 and rows_per_thread = row_segments",
            )
        elif p.runs and p.access.lanes > 1 and (wide := _wide(analysis, p.access.hint, env, alignments)):
            fits = power_of_two(p.access.lanes) and p.access.lanes <= wide.lanes
            require(fits, f"lanes = {p.access.lanes}: must be a power of two up to {wide.lanes}")
            wide = narrowed(analysis, wide, p.access.lanes)
            require(p.access.aligns == wide.aligns, f"aligns: must be {wide.aligns}, as vectors may be unaligned")
            require(p.access.index in (wide.index, dt.i64), "index = i32: for these sizes offsets need 64 bits")
            require(
                p.access.multiples <= wide.multiples,
                f"multiples: not all are known to be multiples of {p.access.lanes}",
            )
        else:
            self.check_access(analysis, p, True, env, alignments, properties)
        rows_are = p.ty * p.rows_per_thread
        require(
            outer > 0 or p.row_segments > 1 or rows_are == 1,
            f"ty * rows_per_thread = {rows_are}: must be 1, as there is only one loop",
        )


def _as_long(analysis: Analysis, env: Sizes, own: int, all_: int) -> Sizes:
    """``env`` with a size changed such that the loop of ``analysis``, of ``own`` elements, has about ``all_`` elements
    (or enough for any device), and the same powers of two divide it; unchanged if the size is constant."""
    symbols = sorted(sz.symbols_of(axis.size for axis in analysis.domain))
    times = min(all_, max(own, _LONG)) // own | 1
    return env | {symbols[0]: env[symbols[0]] * times} if symbols else env


def _narrowed(analysis: Analysis, access: Access, elements: int, threads: int, least: int) -> Access:
    """``access`` with vectors of ``least`` bytes, if ``threads`` threads suffice for all of them: the time of short
    kernels is dominated by fetching their code."""
    sizes = [analysis.stored(v).bytes for v in analysis.inputs + analysis.outputs]
    lanes = max(1, least // max(sizes, default=least))
    if lanes >= access.lanes or elements > threads * lanes:
        return access
    return narrowed(analysis, access, lanes)


def _written(analysis: Analysis) -> int:
    """The bytes of an element of the widest output."""
    return max(analysis.stored(v).bytes for v in analysis.outputs)


def _busy(vectors: int) -> bool:
    """Whether warps along a row leave few threads without a vector."""
    return -(-vectors // WARP) * WARP <= 1.25 * vectors


def _of_several_vectors(p: Params, vectors: int, rows: int, properties: DeviceProperties) -> Params:
    """``p`` with more vectors per thread, as long as every multiprocessor has blocks. ``vectors``: per row. A thread
    loads from all operands of a concatenation, and these loads are in flight together."""
    heuristics = heuristics_of(properties).pointwise
    most = vectors * rows // (p.tx * p.ty * heuristics.blocks_joined * properties.sm_count)
    most = power_to(max(1, min(most, heuristics.most_vectors)))
    down = min(max(1, most // 2), power_to(max(1, rows // p.ty)))
    across = min(most // down, power_to(max(1, vectors // p.tx)))
    return p._replace(vectors_per_thread=max(across, p.vectors_per_thread), rows_per_thread=down)


def _of_several_rows(analysis: Analysis, p: Params, env: Sizes, properties: DeviceProperties) -> Params:
    """``p``, or, if remapped rows allow only narrow vectors, parameters with several adjacent rows per thread. Those
    have enough bytes in flight, share values that depend only on the column, and load elements that adjacent rows have
    in common once. The number of threads along a row is chosen to leave few of them idle."""
    heuristics, lanes = heuristics_of(properties).pointwise, p.access.lanes
    columns, rows, read, elements = analysis.values(_work, env)
    written = analysis.once(_written)
    operands = analysis.once(_most_concatenated)
    if operands > 1 and lanes * written >= WIDEST:
        return _of_aligned_operands(analysis, p, rows, columns, properties)
    if lanes * written >= WIDEST or lanes * read >= heuristics.in_flight * max(elements, 1):
        return p
    vectors = -(-columns // lanes)
    short = p.runs and min(analysis.stored(v).bytes for v in analysis.inputs) < 4
    threads = heuristics.small_block // 2 if short else heuristics.small_block
    most = min(threads, power_from(vectors))
    idle = {tx: -(-vectors // tx) * tx / vectors for tx in (most, most // 2, most // 4, most // 8) if tx >= WARP}
    fewest = min(idle, key=lambda tx: idle[tx], default=most)
    tx = next((tx for tx, share in idle.items() if share <= heuristics.idle), fewest)
    ty = threads // tx if rows > 1 else 1
    in_flight = heuristics.in_flight_concat if operands > 1 else heuristics.in_flight
    most_rows = heuristics.most_rows // lanes if p.runs else heuristics.most_rows
    wanted = min(most_rows, round(in_flight * elements / max(1, lanes * read * operands)))
    full = properties.sm_count * (properties.threads_per_sm // (tx * ty))
    down = 1
    while down * 2 <= wanted and -(-vectors // tx) * (rows // (ty * down * 2)) >= full:
        down *= 2
    more = p.runs or down > p.vectors_per_thread * p.rows_per_thread
    return p._replace(tx=tx, ty=ty, vectors_per_thread=1, rows_per_thread=down) if more else p


def _of_aligned_operands(
    analysis: Analysis, p: Params, rows: int, columns: int, properties: DeviceProperties
) -> Params:
    """``p``, or, if vectors of 16 bytes divide long concatenated rows, of which a thread loads all operands, parameters
    with more vectors of half that size."""
    heuristics, access = heuristics_of(properties).pointwise, narrowed(analysis, p.access, p.access.lanes // 2)
    tx, vectors = heuristics.whole_parts, -(-columns // access.lanes)
    ty, down = heuristics.small_block // tx, 1
    full = properties.sm_count * (properties.threads_per_sm // (tx * ty))
    while down < heuristics.most_vectors and -(-vectors // tx) * (rows // (ty * down * 2)) >= full:
        down *= 2
    return Params(access, tx, ty, 1, down) if down > 1 and vectors >= tx else p


def _wide(analysis: Analysis, hint: str, env: Sizes, alignments: Alignments) -> Access | None:
    """The access of rows that are not coalesced, and whose inputs may be unaligned."""
    return of_slices(analysis, access_of(analysis, True, env, alignments, hint), env, alignments)


def _column_share(analysis: Analysis) -> float:
    """The instructions, including loads, whose results depend only on the column, relative to those per element."""
    loops = analysis.loops(analysis.kept)
    if len(loops) < 2:
        return 0.0
    column, counts = set(loops[-1]), {True: 0, False: 0}
    costs = [(v, 1) for v in analysis.inputs]
    costs += [(op.result, op.row.cost) for op in analysis.ops if op.results and not op.row.view]
    for value, cost in costs:
        axes = {a for dim in analysis.axes.dims(value) for a in dim}
        if axes:
            counts[axes <= column] += cost
    return counts[True] / max(1, counts[False])


def _that_share_columns(analysis: Analysis, p: Params, env: Sizes, properties: DeviceProperties) -> Params:
    """``p``, or parameters with several rows per thread, which share values that depend only on the column, and vectors
    of half the bytes, so that registers hold those values."""
    heuristics = heuristics_of(properties).pointwise
    columns, rows = analysis.values(_plain_extents, env)
    sizes = [analysis.stored(v).bytes for v in analysis.inputs + analysis.outputs]
    lanes = min(p.access.lanes, max(1, heuristics.shared_bytes // min(sizes)))
    aligns = tuple(max(n, min(a, lanes * n)) for a, n in zip(p.access.aligns, sizes))
    vectors = -(-columns // lanes)
    tx = min(heuristics.small_block, power_from(vectors))
    ty = heuristics.small_block // tx
    blocks = -(-vectors // tx) * (rows // (ty * heuristics.shared_rows))
    if blocks < properties.sm_count * (properties.threads_per_sm // (tx * ty)):
        return p
    access = p.access._replace(lanes=lanes, aligns=aligns)
    return Params(access, tx, ty, 1, heuristics.shared_rows)


def _most_concatenated(analysis: Analysis) -> int:
    """The most operands of a concatenation; a thread loads an element of each for each of its own."""
    return max((len(op.operands) for op in analysis.ops if op.name == "concatenate"), default=1)


def _work(analysis: Analysis) -> tuple:
    """The numbers of columns and rows, the bytes of inputs, and the number of elements."""
    read = sum((sz.mul(v.numel, v.dtype.bytes) for v in analysis.inputs), 0)
    return (*_plain_extents(analysis), read, sz.product(a.size for a in analysis.domain))


def _coalesced(
    analysis: Analysis, access: Access, env: dict[str, int], alignments: dict[Value, int], many: int
) -> tuple[int, Access, bool] | None:
    """The number of segments to coalesce rows to, the access, and whether the last vector is partial; None if
    coalescing does not give wider vectors. One segment, or several that share values if many inputs of 16-bit floats
    are read element by element."""
    wide = analysis.once(_contiguous_across_rows)
    if not wide:
        return None
    lanes = min(16 // max(analysis.stored(v).bytes for v in wide), 8)
    rows, *steps = analysis.values(_steps_across, env)
    elements = analysis.values(_flat_extents, env)[0]
    limits = [*steps, *(alignments.get(v, 16) // analysis.stored(v).bytes for v in wide), lanes]
    lanes = min(n & -n for n in limits if n)
    if lanes <= access.lanes:
        return None
    aligns = tuple(analysis.stored(v).bytes * (lanes if v in wide else 1) for v in analysis.inputs + analysis.outputs)
    several = lanes == 8 and analysis.once(_by_elements) > 1 and elements >= many
    segments = next((n for n in (4, 2) if elements % (n * lanes) == 0 and rows % n == 0), 1) if several else 1
    return segments, access._replace(lanes=lanes, aligns=aligns, multiples=frozenset()), elements % lanes != 0


def _contiguous_across_rows(analysis: Analysis) -> list[Value]:
    """The tensors that are contiguous across the two innermost loops (or along the only one); none if an output is not.
    Inputs that are also read at other indices are excluded, because their vectors may be unaligned."""
    loops = analysis.loops(analysis.kept)
    if not loops:
        return []
    inner = loops[-1]
    moved = {v for op in analysis.ops if op.row.indexed for v in op.operands}
    tensors = dict.fromkeys([v for v in analysis.inputs if v not in moved] + analysis.outputs)
    wide = [v for v in tensors if analysis.axis_stride(v, inner[-1]) == 1]
    for middle in loops[-2:-1]:
        wide = [v for v in wide if analysis.axis_stride(v, middle[-1]) == size_of(inner)]
    return wide if set(analysis.outputs) <= set(wide) else []


def _by_elements(analysis: Analysis) -> int:
    """The number of inputs that vary along the columns but not along the rows."""
    inner = analysis.loops(analysis.kept)[-1][-1]
    return sum(
        analysis.axis_stride(v, inner) != 0 and v not in analysis.once(_contiguous_across_rows) for v in analysis.inputs
    )


def _steps_across(analysis: Analysis) -> tuple:
    """The extent of the second innermost loop, and the strides along the outer loops of tensors that are accessed by
    vectors across rows."""
    *around, _ = analysis.loops(analysis.kept)
    steps = [analysis.axis_stride(v, loop[-1]) for v in analysis.once(_contiguous_across_rows) for loop in around[:-1]]
    return (size_of(around[-1]) if around else 1, *dict.fromkeys(steps))


def _extents(analysis: Analysis, segments: int) -> tuple[Size, Size]:
    """The numbers of columns and rows, with rows coalesced to ``parts`` segments (0: not)."""
    sizes = [size_of(loop) for loop in analysis.loops(analysis.kept)] or [1]
    if segments and len(sizes) > 1:
        return sz.mul(sizes[-1], sz.floordiv(sizes[-2], segments)), sz.product(sizes[:-2])
    return sizes[-1], sz.product(sizes[:-1])


def _plain_extents(analysis: Analysis) -> tuple:
    return _extents(analysis, 0)


def _flat_extents(analysis: Analysis) -> tuple:
    return _extents(analysis, 1)


def _vectors_a_thread(analysis: Analysis, lanes: int, most: int, in_flight: int) -> int:
    """Vectors along the columns per thread: several inputs, including sliced and concatenated ones, need some bytes in
    flight."""
    columns, domain = set((analysis.loops(analysis.kept) or [[]])[-1]), set(analysis.domain)
    axes = {v: set(analysis.axes.flat(v)) for v in analysis.inputs}
    inputs = [v for v in analysis.inputs if columns & axes[v] or not domain >= axes[v]]
    nbytes = lanes * max(v.dtype.bytes for v in inputs) * len(inputs) if inputs else 0
    return max(1, min(most, in_flight // nbytes)) if len(inputs) > 1 else 1
