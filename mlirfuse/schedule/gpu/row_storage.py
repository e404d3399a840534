"""Row kernels by where a row is kept between passes: registers, shared memory, or nowhere."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from contextlib import nullcontext

from mlirfuse.analysis.joint import MaxSumExp
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Op, Value
from mlirfuse.lowering import compensated_sums
from mlirfuse.lowering import reductions as red
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.kernel import Index
from mlirfuse.schedule.gpu.async_copies import AsyncCopies
from mlirfuse.schedule.gpu.partial import partial_memory, store_partial
from mlirfuse.schedule.gpu.row_body import Place, RowsBody, at_own_index, read_by
from mlirfuse.schedule.gpu.unaligned_rows import UnalignedRows

UNROLL = 4  # vectors in flight of a looped row, more if vectors are short
EXPONENTIALS = 16  # elements whose exponentials are computed at once: more only takes longer to compile


def in_registers(rows: RowsBody) -> sz.Size:
    """Emit a kernel in which each thread keeps its part of the row in registers. Returns the grid size."""
    e, k, p, lanes = rows.e, rows.k, rows.p, rows.lanes
    here = rows.env_of(rows.row_of(rows.cluster_index()))
    stride = p.tx * lanes * p.cluster
    start = rows.x_base if rows.rank is None else e.add(rows.x_base, rows.wide(e.mul(rows.rank, p.tx * lanes)))
    places = [
        rows.at(here, e.add(start, c * stride) if c else start, c >= p.unmasked) for c in range(p.vectors_per_thread)
    ]
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
        step = p.vectors_per_thread
        if reduced_precision and isinstance(op, MaxSumExp) and p.vectors_per_thread * lanes > 32:
            step = 1 if p.min_blocks_per_sm > 3 else 2
        elif reduced_precision and op.row.accumulator == "moments" and p.vectors_per_thread * lanes > 64:
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
    Returns the grid size.

    If ``p.unaligned``, the row may be unaligned, and ``rows`` are
    :class:`mlirfuse.schedule.gpu.unaligned_rows.UnalignedRows`."""
    e, k, p, lanes = rows.e, rows.k, rows.p, rows.lanes
    stride = p.tx * lanes * p.cluster
    exact = p.unmasked == p.vectors_per_thread
    inner = range(int(p.unaligned), p.unmasked)  # vectors inside the row
    edges = [c for c in range(p.vectors_per_thread) if c not in inner]
    weights = [] if p.online else rows.shared  # loaded together with the row
    reduced_precision = any(v.dtype.bits == 16 for v in rows.streamed)
    if p.unaligned and len(weights) > 1:  # each vector of weights takes two loads
        at_once: Sequence[int] = (1,)
    elif p.unaligned or not weights:  # more vectors at once only make the code longer
        at_once = (2, 3)
    elif not reduced_precision:
        at_once = range(4, 8)
    else:  # layer norm, 3000×50256 bf16, 216 µs, 236 by two; in clusters, two leave registers for another block
        at_once = (3,) if p.cluster == 1 else (2, 3)
    unroll = min(at_once, key=lambda n: (len(inner) % n, n))  # leaves a small remainder
    start = rows.x_base if rows.rank is None else e.add(rows.x_base, rows.wide(e.mul(rows.rank, p.tx * lanes)))
    staging = AsyncCopies(rows, rows.streamed, lanes, p.vectors_per_thread)
    here, zero = rows.env_of(rows.cluster_index()), e.const(0, rows.index)

    def column(vector: Val) -> Val:
        return e.add(e.mul(vector, stride), start)

    def bring(vector: Val, checked: bool) -> list[Val]:
        """Issue the copy of one vector of each input."""
        place = rows.at(here, column(vector), checked)
        staging.start(e.cast(vector, dt.i32), [(v, place.env) for v in rows.streamed])
        return []

    def bring_end(vector: Val) -> list[Val]:
        """Like :func:`bring`, for a vector that may extend beyond the row and the tensor: then element by element."""
        stage, place = e.cast(vector, dt.i32), rows.at(here, column(vector))
        assert isinstance(rows, UnalignedRows) and place.inside is not None and place.unmasked is not None
        with k.region(f"scf.if {e.extract(place.inside, lanes - 1)} {{", "} else {"):
            staging.start(stage, [(v, place.unmasked) for v in rows.streamed])
        with k.region("", "}"), k.region(f"scf.if {rows.has(column(vector))} {{"):
            staging.put(stage, [k.preload(v, place.env) for v in rows.streamed])
        return []

    def passes(carried: list[Val], visit, weights: Sequence[Value] = ()) -> list[Val]:
        """Run ``visit(places, carried)`` over the thread's vectors, a few at a time, together with vectors of
        ``weights``; all loads are in flight before the first use."""

        def some(vectors_per_thread: list[Val], checked: list[bool], state: list[Val]) -> list[Val]:
            places = [rows.at(here, column(vector), check) for vector, check in zip(vectors_per_thread, checked)]
            for vector, place in zip(vectors_per_thread, places):
                for value, val in zip(rows.streamed, staging.read(e.cast(vector, dt.i32))):
                    k.bind_loaded(value, place.env, val)
            for value in weights:
                for place in places:
                    rows.load_shared(value, place)
            return visit(places, state)

        def iteration(vector: Val, state: list[Val]) -> list[Val]:
            return some([vector, *(e.add(vector, u) for u in range(1, unroll))], [False] * unroll, state)

        def edge(vector: Val, state: list[Val]) -> list[Val]:
            """Visit a vector at the end of the row, which many threads may not have."""
            assert isinstance(rows, UnalignedRows)
            return k.where(rows.has(column(vector)), lambda: some([vector], [True], state), lambda: state, state)

        def consts(vectors_per_thread) -> list[Val]:
            return [e.const(c, rows.index) for c in vectors_per_thread]

        if isinstance(rows, UnalignedRows) and weights:
            rows.load_last_parts(list(weights))
        iterations = len(inner) // unroll * unroll
        if iterations:
            low, high = consts([inner.start, inner.start + iterations])
            carried = rows.loop(low, high, unroll, carried, iteration)
        rest = [*inner[iterations:], *([] if p.unaligned else edges)]
        if rest:
            carried = some(consts(rest), [c in edges for c in rest], carried)
        return functools.reduce(
            lambda state, vector: edge(vector, state), consts(edges) if p.unaligned else [], carried
        )

    def weights_of(phase: list[Op]) -> list[Value]:
        """The weights that the phase itself reads, to be loaded by vectors instead of by elements."""
        return read_by(rows.analysis, phase, rows.shared) if p.unaligned else []

    def reduce(phase: list[Op]) -> list[tuple[Val, ...]]:
        """The accumulators of this thread's part of the row."""
        totals = red.grouped(
            phase,
            passes(
                rows.nothing(phase),
                lambda places, state: rows.accumulated(phase, places, state, True),
                weights_of(phase),
            ),
        )
        return [deviating(op, *total) if op.row.accumulator == "moments" else total for op, total in zip(phase, totals)]

    def deviating(op: Op, count: Val, total: Val, nothing: Val) -> tuple[Val, ...]:
        """The moments accumulator. The squared deviations from this thread's mean need another pass."""
        count = e.const(float(p.vectors_per_thread * lanes), count.dtype) if exact else red.sum_of_lanes(e, count)

        def deviations_from(mean: Val) -> Val:
            return passes(
                [nothing],
                lambda places, state: [e.add(state[0], red.deviations(e, rows.elements_of(op, places), mean))],
                weights_of([op]),
            )[0]

        return red.means_and_deviations(e, count, total, deviations_from)

    rows.loop(zero, e.const(p.unmasked, rows.index), 1, [], lambda chunk, _: bring(chunk, False))
    for c in range(p.unmasked, p.vectors_per_thread):
        bring_end(e.const(c, rows.index)) if p.unaligned else bring(e.const(c, rows.index), True)
    staging.wait(0)
    for phase in rows.phases:
        rows.bind(phase, rows.across(phase, reduce(phase)), here)

    def write(places: list[Place], _: list[Val]) -> list[Val]:
        rows.write(rows.full, places)
        return []

    if rows.full:
        passes([], write, rows.shared)
    rows.write_small(here)
    return rows.kept


def vectors_per_iteration(p, inputs: Iterable[Value]) -> int:
    """Vectors of a thread per iteration of a looped row: at least 32 bytes of each input in flight."""
    widest = max((v.dtype.bytes for v in inputs), default=4)
    unroll = max(UNROLL, min(16, 32 // (p.access.lanes * widest)))
    return min(unroll, max(1, EXPONENTIALS // p.access.lanes)) if p.online else unroll


def in_loops(rows: RowsBody) -> sz.Size:
    """Emit a kernel in which every phase reads the row, or this block's part of it, from memory again. Returns the grid
    size."""
    e, k, p, lanes, phases = rows.e, rows.k, rows.p, rows.lanes, rows.phases
    row, part = rows.wide(rows.block), None
    if p.split > 1:
        q, r = k.divmod(Index(row), p.split)
        row, part = k.scalar(q.base), k.scalar(r.base)
    row = rows.row_of(row)
    here = rows.env_of(row)
    step, unroll = p.tx * lanes, vectors_per_iteration(p, rows.streamed + rows.shared)
    span = step * unroll
    limit = rows.size(rows.length)
    low, high = e.const(0, rows.index), limit
    if part is not None:
        length_of_part = rows.size(sz.mul(sz.ceildiv(rows.length, p.split * span), span))
        low = e.min(e.mul(part, length_of_part), limit)
        high = e.add(low, e.min(length_of_part, e.sub(limit, low)))  # in an order that cannot overflow the index type

    # Full spans first, without checks; the remainder in one more iteration, with checks.
    middle = e.add(low, e.mul(e.div(e.sub(high, low), span), span))
    last_span = e.sub(e.add(low, middle), span)

    def vectors(i: Val, checked: bool):
        return [
            rows.at(here, e.add(e.add(i, rows.x_base), u * step) if u else e.add(i, rows.x_base), checked)
            for u in range(unroll)
        ]

    def over_row(carried: list[Val], visit, backwards: bool = False, loop=rows.loop) -> list[Val]:
        """Visit the row. Every other pass runs backwards, so that it starts with what is still cached."""

        def full_spans(carried):
            return loop(
                low,
                middle,
                span,
                carried,
                lambda i, state: visit(vectors(e.sub(last_span, i) if backwards else i, False), state),
            )

        if not backwards:
            carried = full_spans(carried)

        def last(i, state):
            places = vectors(i, True)
            if part is not None:
                ends = [e.cmp("lt", e.add(e.add(i, rows.x_base), u * step), high) for u in range(unroll)]
                places = [place._replace(inside=e.and_(place.inside, end)) for place, end in zip(places, ends)]
            return visit(places, state)

        carried = loop(middle, high, span, carried, last)
        return full_spans(carried) if backwards else carried

    for passes, phase in enumerate(phases):

        def add(places, state: list[Val], phase=phase) -> list[Val]:
            state = rows.accumulated(phase, places, state)
            if phase is phases[0] and rows.early:
                rows.write(rows.early, places)
            return state

        backwards = passes % 2 == 1
        if p.blocks:
            in_blocks = functools.partial(rows.summed, phase, p.blocks, rows.nothing(phase))
            done = compensated_sums.settled(
                e, phase, over_row(compensated_sums.nothing(e, phase, 1), add, backwards, in_blocks)
            )
        else:
            done = over_row(rows.nothing(phase), add, backwards)
        totals = rows.across(phase, red.grouped(phase, done))
        if p.split > 1:
            with rows.leader(e.cmp("eq", rows.x, 0)):
                for op, total in zip(phase, totals):
                    for which, v in enumerate(total):
                        memory = partial_memory(rows, op, which, sz.mul(rows.kept, p.split))
                        store_partial(rows, memory, e.add(e.mul(part, rows.size(rows.kept)), row), v)
            return sz.mul(rows.kept, p.split)
        rows.bind(phase, totals, here)
    late = [v for v in rows.full if v not in rows.early]

    def write(places: list[Place], _: list[Val]) -> list[Val]:
        rows.write(late, places)
        return []

    if late:
        over_row([], write, len(phases) % 2 == 1)
    rows.write_small(here)
    return sz.ceildiv(rows.kept, p.ty)
