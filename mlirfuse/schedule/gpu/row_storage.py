"""Row kernels by where a row is kept between passes: registers, shared memory, or nowhere."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext

from mlirfuse.analysis.joint import MaxSumExp
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Op, Value
from mlirfuse.lowering import reductions as red
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.kernel import Index
from mlirfuse.schedule.gpu.async_copies import AsyncCopies
from mlirfuse.schedule.gpu.partial import store_partials
from mlirfuse.schedule.gpu.row_body import Place, RowsBody, UnalignedRows, at_own_index, read_by
from mlirfuse.schedule.tiling import Tiling

UNROLL = 4  # vectors in flight of a looped row, more if vectors are short
EXPONENTIALS = 16  # elements whose exponentials are computed at once: more only takes longer to compile
Visit = Callable[[list[Place], list[Val]], list[Val] | None]  # of a thread's places and the loop-carried values


def in_registers(rows: RowsBody) -> sz.Size:
    """Emit a kernel in which each thread keeps its part of the row in registers. Returns the grid size."""
    e, k, p, lanes = rows.e, rows.k, rows.p, rows.lanes
    here = rows.env_of(rows.row_of(rows.cluster_index()))
    stride = p.tx * lanes * p.cluster
    first = rows.first_column()
    columns = [e.add(first, c * stride) if c else first for c in range(p.vectors_per_thread)]
    places = [rows.at(here, column, c >= p.unmasked) for c, column in enumerate(columns)]
    at_once, in_flight = rows.streamed, []
    if p.prefetch:
        loaded = at_own_index(rows.analysis, [*rows.streamed, *rows.shared])
        at_once = read_by(rows.analysis, rows.phases[0], loaded)
        in_flight = [(value, place.env) for value in loaded if value not in at_once for place in places]
    for value in at_once:
        for place in places:
            k.preload(value, place.env)
    for (value, env), val in zip(in_flight, rows.in_flight([k.preload(value, env) for value, env in in_flight])):
        k.bind_loaded(value, env, val)
    reduced_precision = any(v.dtype.bits == 16 for v in rows.streamed)

    # For many elements, deviations from a mean per lane, computed one after the other, need fewer registers.
    totals_of = red.of_thread if p.vectors_per_thread * lanes <= (32 if reduced_precision else 16) else red.total

    def total_of(op: Op) -> tuple[Val, ...]:
        """The accumulator of this thread's part of the row. Reductions that read elements twice process a few vectors
        of 16-bit floats at a time: widened, all of them would need twice the registers."""
        step, elements = p.vectors_per_thread, p.vectors_per_thread * lanes if reduced_precision else 0
        if isinstance(op, MaxSumExp) and elements > 32:
            step = 1 if p.min_blocks_per_sm > 3 else 2
        elif op.row.accumulator == "moments" and elements > 64:
            step = 4
        total: tuple[Val, ...] | None = None
        for at in range(0, p.vectors_per_thread, step):
            with k.forget() if step < p.vectors_per_thread else nullcontext():
                found = rows.elements_of(op, places[at : at + step])
                total = totals_of(e, op, found) if total is None else red.accumulate(e, op, total, found)
        assert total is not None
        return total

    for phase in rows.phases:
        with k.forget() if p.recompute else nullcontext():
            totals = [total_of(op) for op in phase]
        rows.bind(phase, rows.across(phase, totals), here)
        if p.recompute:
            for value in (v for v in rows.streamed if v.dtype.bits == 16):
                for place in places:
                    k.bind_loaded(value, place.env, rows.opaque(k.preload(value, place.env)))
    for place in places:
        rows.write(rows.full, [place])
    rows.write_small(here)
    return sz.ceildiv(rows.kept, p.ty)


def in_shared(rows: RowsBody) -> sz.Size:
    """Emit a kernel in which each thread copies its part of the row to shared memory, and makes its passes there.
    Returns the grid size."""
    return (_UnalignedSharedRows(rows) if isinstance(rows, UnalignedRows) else _SharedRows(rows)).emit()


class _SharedRows:
    """A row in shared memory. Vectors are numbered: ``inner`` are inside the row for every thread, ``edges`` not."""

    def __init__(self, rows: RowsBody):
        self.rows, self.e, self.k, self.p = rows, rows.e, rows.k, rows.p
        e, p, lanes = rows.e, rows.p, rows.lanes
        self.stride = p.tx * lanes * p.cluster
        self.exact = p.unmasked == p.vectors_per_thread
        self.inner = range(int(p.unaligned), p.unmasked)
        self.edges = [c for c in range(p.vectors_per_thread) if c not in self.inner]
        unroll = self.vectors_at_once(any(v.dtype.bits == 16 for v in rows.streamed))
        self.unroll = min(unroll, key=lambda n: (len(self.inner) % n, n))  # leaves a small remainder
        self.start = rows.first_column()
        self.copies = AsyncCopies(rows, rows.streamed, lanes, p.vectors_per_thread)
        self.here, self.zero = rows.env_of(rows.cluster_index()), e.const(0, rows.index)

    def vectors_at_once(self, reduced_precision: bool) -> Sequence[int]:
        """How many vectors may be visited at once."""
        if self.p.online or not self.rows.shared:  # more vectors at once only make the code longer
            return (2, 3)
        if not reduced_precision:
            return range(4, 8)
        # Layer norm, 3000×50256 bf16, 216 µs, 236 by two; in clusters, two leave registers for another block.
        return (3,) if self.p.cluster == 1 else (2, 3)

    def emit(self) -> sz.Size:
        """Emit the kernel. Returns the grid size."""
        rows, count = self.rows, self.e.const(self.p.unmasked, self.rows.index)
        rows.loop(self.zero, count, 1, [], lambda vector, _: self.copy_vector(vector, False))
        for vector in self.consts(range(self.p.unmasked, self.p.vectors_per_thread)):
            self.copy_last(vector)
        self.copies.wait(0)
        for phase in rows.phases:
            rows.bind(phase, rows.across(phase, self.reduce(phase)), self.here)
        if rows.full:
            self.passes([], self.write, rows.shared)
        rows.write_small(self.here)
        return rows.kept

    def column(self, vector: Val) -> Val:
        """The column of this thread's vector."""
        return self.e.add(self.e.mul(vector, self.stride), self.start)

    def consts(self, vectors: Iterable[int]) -> list[Val]:
        return [self.e.const(c, self.rows.index) for c in vectors]

    def copy_vector(self, vector: Val, checked: bool) -> None:
        """Issue the copy of one vector of each input."""
        place = self.rows.at(self.here, self.column(vector), checked)
        self.copies.start(self.e.cast(vector, dt.i32), [(v, place.env) for v in self.rows.streamed])

    def copy_last(self, vector: Val) -> None:
        """Issue the copies of a vector that may be beyond the row."""
        self.copy_vector(vector, True)

    def passes(self, carried: list[Val], visit: Visit, weights: Sequence[Value] = ()) -> list[Val]:
        """Run ``visit(places, carried)`` over the thread's vectors, a few at a time, together with vectors of
        ``weights``; all loads are in flight before the first use."""
        e, rows, inner, unroll = self.e, self.rows, self.inner, self.unroll

        def iteration(vector: Val, state: list[Val]) -> list[Val]:
            vectors = [vector, *(e.add(vector, u) for u in range(1, unroll))]
            return self.visit_some(vectors, [False] * unroll, state, visit, weights)

        iterations = len(inner) // unroll * unroll
        if iterations:
            low, high = self.consts([inner.start, inner.start + iterations])
            carried = rows.loop(low, high, unroll, carried, iteration)
        return self.visit_rest(inner[iterations:], carried, visit, weights)

    def visit_some(
        self, vectors: list[Val], checked: list[bool], state: list[Val], visit: Visit, weights: Sequence[Value]
    ) -> list[Val]:
        """Visit these vectors together."""
        rows = self.rows
        places = [rows.at(self.here, self.column(vector), check) for vector, check in zip(vectors, checked)]
        for vector, place in zip(vectors, places):
            for value, val in zip(rows.streamed, self.copies.read(self.e.cast(vector, dt.i32))):
                self.k.bind_loaded(value, place.env, val)
        for value in weights:
            for place in places:
                rows.load_shared(value, place)
        return visit(places, state) or []

    def visit_rest(self, inner: range, carried: list[Val], visit: Visit, weights: Sequence[Value]) -> list[Val]:
        """Visit the ``inner`` vectors that no iteration has, and the edges."""
        rest = [*inner, *self.edges]
        if not rest:
            return carried
        return self.visit_some(self.consts(rest), [c in self.edges for c in rest], carried, visit, weights)

    def weights_of(self, phase: list[Op]) -> list[Value]:
        """The weights to load by vectors when the phase visits the row."""
        return []

    def reduce(self, phase: list[Op]) -> list[tuple[Val, ...]]:
        """The accumulators of this thread's part of the row."""
        rows = self.rows

        def visit(places: list[Place], state: list[Val]) -> list[Val]:
            return rows.accumulated(phase, places, state, True)

        totals = red.grouped(phase, self.passes(rows.nothing(phase), visit, self.weights_of(phase)))
        moments = [op.row.accumulator == "moments" for op in phase]
        return [self.deviating(op, *total) if m else total for op, m, total in zip(phase, moments, totals)]

    def deviating(self, op: Op, count: Val, total: Val, nothing: Val) -> tuple[Val, ...]:
        """The moments accumulator. The squared deviations from this thread's mean need another pass."""
        e, p = self.e, self.p
        elements = float(p.vectors_per_thread * self.rows.lanes)
        count = e.const(elements, count.dtype) if self.exact else red.sum_of_lanes(e, count)

        def deviations_from(mean: Val) -> list[Val]:
            def visit(places: list[Place], state: list[Val]) -> list[Val]:
                return [*map(e.add, state, red.deviations(e, op, self.rows.elements_of(op, places), mean))]

            return self.passes([nothing] * (2 if red.exact_zero(op) else 1), visit, self.weights_of([op]))

        return red.means_and_deviations(e, op, count, total, deviations_from)

    def write(self, places: list[Place], _: list[Val]) -> None:
        self.rows.write(self.rows.full, places)


class _UnalignedSharedRows(_SharedRows):
    """A row that may be unaligned: its first and last vectors extend beyond it."""

    rows: UnalignedRows

    def vectors_at_once(self, reduced_precision: bool) -> Sequence[int]:
        several = len(self.rows.shared) > 1 and not self.p.online  # each vector of weights takes two loads
        return (1,) if several else (2, 3)

    def copy_last(self, vector: Val) -> None:
        """Issue the copies of a vector that may extend beyond the row and the tensor: then element by element."""
        rows, e, k = self.rows, self.e, self.k
        stage, place = e.cast(vector, dt.i32), rows.at(self.here, self.column(vector))
        assert place.inside is not None and place.unmasked is not None
        with k.region(f"scf.if {e.extract(place.inside, rows.lanes - 1)} {{", "} else {"):
            self.copies.start(stage, [(v, place.unmasked) for v in rows.streamed])
        with k.region("", "}"), k.region(f"scf.if {rows.has(self.column(vector))} {{"):
            self.copies.put(stage, [k.preload(v, place.env) for v in rows.streamed])

    def passes(self, carried: list[Val], visit: Visit, weights: Sequence[Value] = ()) -> list[Val]:
        if weights:
            self.rows.load_last_parts(list(weights))
        return super().passes(carried, visit, weights)

    def visit_rest(self, inner: range, carried: list[Val], visit: Visit, weights: Sequence[Value]) -> list[Val]:
        """Like the base class; each edge by itself, which many threads do not have."""
        if inner:
            carried = self.visit_some(self.consts(inner), [False] * len(inner), carried, visit, weights)
        for vector in self.consts(self.edges):
            visited = functools.partial(self.visit_some, [vector], [True], carried, visit, weights)
            carried = self.k.where(self.rows.has(self.column(vector)), visited, lambda state=carried: state, carried)
        return carried

    def weights_of(self, phase: list[Op]) -> list[Value]:
        """The weights that the phase itself reads."""
        return read_by(self.rows.analysis, phase, self.rows.shared)


def vectors_per_iteration(p: Tiling, inputs: Iterable[Value]) -> int:
    """Vectors of a thread per iteration of a looped row: at least 32 bytes of each input in flight."""
    widest = max((v.dtype.bytes for v in inputs), default=4)
    unroll = max(UNROLL, min(16, 32 // (p.access.lanes * widest)))
    return min(unroll, max(1, EXPONENTIALS // p.access.lanes)) if p.online else unroll


class LoopedRows:
    """A row that every phase reads from memory again, in spans of all threads' vectors; ``part``: the block's part of
    it, or None."""

    def __init__(self, rows: RowsBody):
        self.rows, self.e, self.k, self.p = rows, rows.e, rows.k, rows.p
        e, p = rows.e, rows.p
        row, self.part = rows.wide(rows.block), None
        if p.split > 1:
            q, r = rows.k.divmod(Index(row), p.split)
            row, self.part = rows.k.scalar(q.base), rows.k.scalar(r.base)
        self.row = rows.row_of(row)
        self.here = rows.env_of(self.row)
        self.step, self.unroll = p.tx * rows.lanes, vectors_per_iteration(p, rows.streamed + rows.shared)
        self.span = span = self.step * self.unroll
        limit = rows.size(rows.length)
        low, high = e.const(0, rows.index), limit
        if self.part is not None:
            length_of_part = rows.size(sz.mul(sz.ceildiv(rows.length, p.split * span), span))
            low = e.min(e.mul(self.part, length_of_part), limit)
            # In an order that cannot overflow the index type.
            high = e.add(low, e.min(length_of_part, e.sub(limit, low)))
        # Full spans first, without checks; the remainder in one more iteration, with checks.
        self.low, self.high = low, high
        self.middle = e.add(low, e.mul(e.div(e.sub(high, low), span), span))
        self.last_span = e.sub(e.add(low, self.middle), span)

    def emit(self) -> sz.Size:
        """Emit the kernel. Returns the grid size."""
        rows, p, phases = self.rows, self.p, self.rows.phases
        for passes, phase in enumerate(phases):
            totals = rows.across(phase, self.reduce(phase, passes % 2 == 1))
            if p.split > 1:
                with rows.leader(self.e.cmp("eq", rows.x, 0)):
                    store_partials(rows, phase, totals, self.own_partial, sz.mul(rows.kept, p.split))
                return sz.mul(rows.kept, p.split)
            rows.bind(phase, totals, self.here)
        late = [v for v in rows.full if v not in rows.early]

        def write(places: list[Place], _: list[Val]) -> None:
            rows.write(late, places)

        if late:
            self.over_row([], write, len(phases) % 2 == 1)
        rows.write_small(self.here)
        return sz.ceildiv(rows.kept, p.ty)

    def column(self, i: Val, vector: int) -> Val:
        """The column of this thread's vector in the span at ``i``."""
        column = self.e.add(i, self.rows.x_base)
        return self.e.add(column, vector * self.step) if vector else column

    def places(self, i: Val, checked: bool) -> list[Place]:
        """This thread's vectors in the span at ``i``."""
        return [self.rows.at(self.here, self.column(i, u), checked) for u in range(self.unroll)]

    def over_row(self, carried: list[Val], visit: Visit, backwards: bool = False, loop=None) -> list[Val]:
        """Visit the row, in a ``loop``. Every other pass runs backwards, so that it starts with what is still
        cached."""
        e, loop = self.e, loop or self.rows.loop

        def full_span(i: Val, state: list[Val]) -> list[Val] | None:
            return visit(self.places(e.sub(self.last_span, i) if backwards else i, False), state)

        def last(i: Val, state: list[Val]) -> list[Val] | None:
            places = self.places(i, True)
            if self.part is not None:
                ends = [e.cmp("lt", self.column(i, u), self.high) for u in range(self.unroll)]
                places = [place._replace(inside=e.and_(place.inside, end)) for place, end in zip(places, ends)]
            return visit(places, state)

        spans = (self.low, self.middle, self.span, full_span), (self.middle, self.high, self.span, last)
        for low, high, span, body in reversed(spans) if backwards else spans:
            carried = loop(low, high, span, carried, body)
        return carried

    def reduce(self, phase: list[Op], backwards: bool) -> list[tuple[Val, ...]]:
        """The accumulators of this thread's part of the row. The first phase also writes outputs that need no
        reduction."""
        rows = self.rows

        def add(places: list[Place], state: list[Val]) -> list[Val]:
            state = rows.accumulated(phase, places, state)
            if phase is rows.phases[0] and rows.early:
                rows.write(rows.early, places)
            return state

        def run(carried: list[Val], loop) -> list[Val]:
            return self.over_row(carried, add, backwards, loop)

        return rows.totals(phase, self.p.compensation_interval, rows.nothing(phase), run)

    def own_partial(self) -> Val:
        """The offset of this block's partial accumulators."""
        return self.e.add(self.e.mul(self.part, self.rows.size(self.rows.kept)), self.row)
