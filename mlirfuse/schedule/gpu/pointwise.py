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

from mlirfuse.analysis.axes import Axis
from mlirfuse.analysis.phases import Analysis, size_of
from mlirfuse.core.errors import ScheduleError
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.foreach import LEAST
from mlirfuse.lowering.kernel import ZERO, Env, Flat, Index
from mlirfuse.lowering.module import GpuKernel
from mlirfuse.schedule.gpu.access import access_of, check_exact, known_multiples, narrowed, of_slices
from mlirfuse.schedule.gpu.kernel import GpuBody
from mlirfuse.schedule.gpu.pointwise_choice import (
    PointwiseOfSize,
    Rows,
    coalesced,
    extents_of,
    steps_across,
)
from mlirfuse.schedule.gpu.scheduler import GpuScheduler
from mlirfuse.schedule.gpu.tuning import heuristics_of
from mlirfuse.schedule.gpu.windows import read_at_once
from mlirfuse.schedule.scheduler import KernelSpec, SizedCall, Sizes, power_of_two, require
from mlirfuse.schedule.tiling import Access, Tiling

Place = tuple[Env, Val | None]  # a row, and whether it is inside (None: always)
Column = tuple[Index, Val | None, Index, Index]  # a vector: its index, whether it is inside, its lanes' rows, columns
_LONG = 1 << 28  # elements, more than any device has threads for
MOST_UNROLLED = 64  # vectors per thread along columns or rows: more only takes longer to compile


class _Kernel(GpuBody):
    """The kernel of a segment. A thread has ``vectors_per_thread`` vectors of each of ``rows_per_thread`` rows."""

    def __init__(self, spec: KernelSpec):
        super().__init__(spec)
        analysis, p = spec.analysis, spec.params
        e, k = self.e, self.k
        self.row_segments, self.runs, self.ragged = p.own
        self.loops = loops = analysis.loops(analysis.kept)
        self.columns, self.rows = extents_of(analysis, self.row_segments)
        self.inner, self.outer = loops[-1:], loops[:-1]
        self.middle: list[Axis] = []
        if self.row_segments and self.outer:
            *self.outer, self.middle = self.outer
            self.segment_rows = sz.floordiv(size_of(self.middle), self.row_segments)
        self.crossing = self.runs > 0 and bool(self.middle)  # vectors may cross row boundaries
        self.tile_columns = p.tx * p.width
        self.tile_rows = p.ty * (1 if self.row_segments > 1 else p.rows_per_thread)
        self.across = across = sz.ceildiv(self.columns, self.tile_columns)
        block = self.wide(self.block)
        if across == 1 or not self.outer:
            zero = e.const(0, self.index)
            self.block_row, self.block_column = (block, zero) if across == 1 and self.outer else (zero, block)
        else:
            self.block_row, self.block_column = (k.scalar(i.base) for i in k.divmod(Index(block), across))
        self.x, y = self.thread, e.const(0, dt.i32)
        if p.ty > 1:
            self.x, y = e.and_(self.thread, p.tx - 1), self.quotient(self.thread, p.tx)
        self.first_column = e.add(e.mul(self.block_column, self.tile_columns), self.wide(e.mul(self.x, self.lanes)))
        self.first_row = e.add(e.mul(self.block_row, self.tile_rows), self.wide(y))

    def emit(self) -> GpuKernel:
        """The finished kernel."""
        p = self.p
        if p.rows_per_thread * p.vectors_per_thread == 1 and not self.runs and not self.ragged:
            self.tile(True)
        else:  # a full tile needs no check per vector, which would keep its loads from being in flight together
            self.k.where(self.is_full(), self.full_tile, self.elements if self.ragged else lambda: self.tile(True))
        return self.finish(sz.mul(self.across, sz.ceildiv(self.rows, self.tile_rows)) if self.loops else 1)

    def full_tile(self) -> None:
        """Compute vectors that are all inside, of ragged rows separately those that cross row boundaries."""
        if self.crossing and self.ragged:
            self.k.where(self.in_one_row(), lambda: self.tile(False, self.runs), lambda: self.tile(False))
        else:
            self.tile(False, self.runs)

    def is_full(self) -> Val:
        """Whether all of the block's tile is inside, and, if no other code handles those, no vector crosses rows."""
        e = self.e
        last_column = e.add(e.mul(self.block_column, self.tile_columns), self.tile_columns)
        full = e.cmp("le", last_column, self.size(self.columns))
        if self.outer and self.row_segments <= 1:
            last_row = e.add(e.mul(self.block_row, self.tile_rows), self.tile_rows)
            full = e.and_(full, e.cmp("le", last_row, self.size(self.rows)))
        if self.crossing and not self.ragged:
            full = e.and_(full, self.in_one_row())
        return full

    def row_of(self, u: int, clamped: bool) -> Place:
        """The env of a thread's row ``u`` without its columns, clamped to the domain if ``clamped``, and whether it is
        inside (None: always)."""
        e, row, inside = self.e, self.first_row, None
        env: Env = {}
        if self.row_segments > 1:
            self.set_loop(env, self.middle, self.k.scale(Index(u), self.segment_rows))
        elif self.outer:
            row = e.add(self.first_row, u * self.p.ty) if u else self.first_row
            if clamped:
                row, inside = self.clamped(row, self.rows)
        return self.point(self.outer, Index(row), env), inside

    def column_of(self, w: int, clamped: bool, runs: int) -> Column:
        """A thread's vector ``w``, clamped to the row if ``clamped``: its index, whether it is inside (None: always),
        and for coalesced rows the row and column of each lane; with ``runs`` all lanes are in one row."""
        e, k, lanes = self.e, self.k, self.lanes
        column, inside = e.add(self.first_column, w * self.p.tx * lanes) if w else self.first_column, None
        if clamped:
            column, inside = self.clamped(column, self.columns, lanes)
        index = Index(column, int(lanes > 1), lanes)
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
        return functools.reduce(e.and_, (e.cmp("le", rest, e.sub(self.size(width), self.lanes)) for rest in rests))

    def at(self, row: Place, column: Column) -> tuple[Env, Val | None, Flat | None]:
        """The env at a row and a column, whether it is inside, and how its vector crosses rows (or None)."""
        (env, row_inside), (index, inside, down, along) = row, column
        flat, inner, middle = None, self.inner[0], self.middle
        if middle:
            origin = env.get(middle[-1], ZERO).base
            env = self.placed(env, middle, self.k.add(Index(origin), down))
            flat = Flat((middle[-1], inner[-1]), size_of(inner), origin, index, env[middle[-1]], along)
        return self.placed(env, inner, along), self.both(row_inside, inside), flat

    def places(self, clamped: bool, runs: int) -> list[tuple[Env, Val | None, Flat | None]]:
        """Where a thread's vectors are, as :meth:`at` returns it."""
        if not self.loops:
            return [({}, self.e.cmp("eq", self.thread, 0), None)]
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
                self.store_at(analysis.outputs, env, analysis.kept, valid)

    def elements(self) -> None:
        """Compute the tile's elements up to the end of memory, one by one."""
        analysis, e, k = self.analysis, self.e, self.k
        first = e.mul(self.block_column, self.tile_columns)
        last = e.min(e.add(first, self.tile_columns), self.size(self.columns))

        def one(column: Val, carried: list[Val]) -> list[Val]:
            index = Index(column)
            split = k.divmod(index, size_of(self.inner[0])) if self.middle else (ZERO, index)
            for row in [self.row_of(u, True) for u in range(self.p.rows_per_thread)]:
                env, valid, flat = self.at(row, (index, None, *split))
                with k.coalesced(flat):
                    self.store_at(analysis.outputs, env, analysis.kept, valid)
            return carried

        self.loop(e.add(first, self.wide(self.x)), last, self.p.tx, [], one)


class Pointwise(GpuScheduler):
    """Computes output elements from input elements."""

    name = "pointwise"
    fields = "access", "tx", "ty", "vectors_per_thread", "rows_per_thread"
    own = Rows

    def takes(self, analysis: Analysis) -> bool:
        return analysis.elementwise

    def candidates(self, analysis: Analysis, call: SizedCall) -> Iterator[Tiling]:
        return PointwiseOfSize(analysis, call, True).candidates()

    def together(self, analyses: Sequence[Analysis], call: SizedCall) -> list[Tiling] | None:
        """Group 1-D segments by vector width, and tune each group as one segment with all of its elements.

        First a group of the segments with the widest vectors, and others that support that width; then one of the rest,
        with the width that all of those support. None if a segment is not one contiguous loop."""
        if any(len(analysis.loops(analysis.kept)) != 1 or analysis.pinned for analysis in analyses):
            return None
        own = [access_of(analysis, True, call) for analysis in analyses]
        counts = [analysis.values(extents_of, call.sizes, 0)[0] for analysis in analyses]
        out: list[Tiling | None] = [None] * len(analyses)
        left = list(range(len(analyses)))
        for all_of_them in (False, True):
            widest = max(((own[at].lanes, own[at].aligns) for at in left), default=None)
            found = [at for at in left if all_of_them or (own[at].lanes, own[at].aligns) == widest]
            if len(found) >= LEAST:
                largest = max(found, key=lambda at: counts[at])
                sizes = _as_long(analyses[largest], call.sizes, counts[largest], sum(counts[at] for at in found))
                best = next(PointwiseOfSize(analyses[largest], call._replace(sizes=sizes), False).candidates())
                lanes = min(best.access.lanes, *(own[at].lanes for at in found))
                fitted = {at: narrowed(analyses[at], own[at], lanes) for at in left if own[at].lanes >= lanes}
                aligns = tuple(map(min, *(fitted[at].aligns for at in found)))
                found = [at for at in left if at in found or (at in fitted and fitted[at].aligns == aligns)]
                index = dt.i64 if any(own[at].index is dt.i64 for at in found) else dt.i32
                for at in found:
                    line = fitted[at].multiples.intersection(extents_of(analyses[at], 0)[:1])
                    out[at] = best._replace(access=Access(index, lanes, aligns, line, best.access.hint))
            left = [at for at in left if at not in found]
        return [p or next(PointwiseOfSize(a, call, False).candidates()) for a, p in zip(analyses, out)]

    def kernels(self, spec: KernelSpec) -> list[GpuKernel]:
        return [_Kernel(spec).emit()]

    def check(self, analysis: Analysis, p: Tiling, call: SizedCall) -> None:
        for name in ("vectors_per_thread", "rows_per_thread"):
            p.must(name, 1 <= p.value(name) <= MOST_UNROLLED, f"must be from 1 to {MOST_UNROLLED}")
        outer, (row_segments, runs, ragged) = len(analysis.loops(analysis.kept)) - 1, p.own
        require(not ragged or row_segments == 1, "ragged: needs row_segments = 1")
        most = read_at_once(analysis, call) or 1
        fits = runs == 0 or (row_segments <= 1 and power_of_two(runs) and runs <= most)
        p.must("runs", fits, f"must be 0, or a power of two up to {most} with row_segments <= 1")
        if row_segments:
            self._check_coalesced(analysis, p, call)
            outer = max(outer - 1, 0)
        elif runs and p.access.lanes > 1 and (wide := of_slices(analysis, p.access, call)):
            fits = power_of_two(p.access.lanes) and p.access.lanes <= wide.lanes
            require(fits, f"lanes = {p.access.lanes}: must be a power of two up to {wide.lanes}")
            check_exact(p.access, narrowed(analysis, wide, p.access.lanes))
        else:
            self.check_access(analysis, p, True, call)
        rows_are = p.ty * p.rows_per_thread
        alone = outer > 0 or row_segments > 1 or rows_are == 1
        require(alone, f"ty * rows_per_thread = {rows_are}: must be 1, as there is only one loop")

    @staticmethod
    def _check_coalesced(analysis: Analysis, p: Tiling, call: SizedCall) -> None:
        """Raise :class:`ScheduleError` unless rows can be coalesced as ``p`` says."""
        lanes, segments = p.access.lanes, p.own.row_segments
        most = heuristics_of(call.properties).pointwise.coalesced
        found = coalesced(analysis, access_of(analysis, True, call)._replace(lanes=1), call, most)
        if found is None:
            raise ScheduleError("row_segments: outputs are not contiguous across rows, or not aligned for vectors")
        access = found[1]
        fitted = narrowed(analysis, access, lanes) if 1 <= lanes <= access.lanes and power_of_two(lanes) else access
        check_exact(p.access, fitted._replace(multiples=known_multiples(analysis, lanes, call)))
        elements, _ = analysis.values(extents_of, call.sizes, 1)
        rows, *_ = analysis.values(steps_across, call.sizes)
        full = segments > 0 and rows % segments == 0 and (p.own.ragged or elements % (segments * lanes) == 0)
        p.must("row_segments", full, f"must divide {rows} rows into full vectors")
        one = segments == 1 or (p.ty == 1 and p.rows_per_thread == segments)
        require(one, "row_segments: needs ty = 1 and rows_per_thread = row_segments")


def _as_long(analysis: Analysis, env: Sizes, own: int, all_: int) -> Sizes:
    """``env`` with a size changed such that the loop of ``analysis``, of ``own`` elements, has about ``all_`` elements
    (or enough for any device), and the same powers of two divide it; unchanged if the size is constant."""
    symbols = sorted(sz.symbols_of(axis.size for axis in analysis.domain))
    times = min(all_, max(own, _LONG)) // own | 1
    return env | {symbols[0]: env[symbols[0]] * times} if symbols else env
