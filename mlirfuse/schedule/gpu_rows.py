"""Inner reductions and normalizations on a GPU: a row (the reduced axes, contiguous) belongs to a warp, a block or a cluster.

*Persistent*: each thread keeps its part of the row in registers (``chunks`` vectors): memory is read once, however many phases of
reductions there are. A row longer than a block can hold is spread over a cluster of blocks that combine through each other's shared
memory. *Looped* (``chunks == 0``): every phase passes over the row again. *Split*: a single phase with few rows is spread over
several blocks a row, whose accumulators a second kernel combines.

Threads past the row's end read a clamped vector whose lanes are replaced by the reduction's identity.
"""

from __future__ import annotations

import functools
from contextlib import nullcontext
from typing import Iterator, NamedTuple

from mlirfuse import dtypes as dt
from mlirfuse import sizes as sz
from mlirfuse.graph import Op
from mlirfuse.lowering import reductions as red
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.kernel import Env, Index
from mlirfuse.lowering.slots import Slots
from mlirfuse.schedule import joint
from mlirfuse.schedule.analysis import Analysis
from mlirfuse.schedule.gpu import Access, GpuBody, GpuKernel
from mlirfuse.schedule.gpu_partial import finish, partial_memory, store_partial


class Params(NamedTuple):
    """``tx`` threads along a row and ``ty`` rows a block; ``chunks`` vectors a thread (0: looped); ``cluster`` blocks a row;
    ``split`` blocks a row that combine in a second kernel; ``whole``: how many of the chunks lie inside the row for every thread, so that
    they need no check; ``recompute``: values are computed again in each phase from what was loaded, which needs fewer registers;
    ``resident``: blocks that shall fit a multiprocessor at a time, which bounds their registers; ``online``: softmax's maximum and sum are one
    reduction."""

    access: Access
    tx: int
    ty: int
    chunks: int
    cluster: int = 1
    split: int = 1
    whole: int = 0
    recompute: bool = False
    resident: int = 1
    online: bool = False


UNROLL = 4  # vectors in flight of the looped form, more where a vector is short


def _unroll(analysis: Analysis, lanes: int) -> int:
    """Vectors in flight of the looped form: at least 32 bytes of each input a thread."""
    reduced = set(analysis.reduced)
    widest = max((v.dtype.bytes for v in analysis.inputs if reduced & set(analysis.axes.flat(v))), default=4)
    return max(UNROLL, min(16, 32 // (lanes * widest)))


def emit(name: str, analysis: Analysis, slots: Slots, p: Params) -> list[GpuKernel]:
    """The kernels that compute ``analysis``: two if it is split."""
    body = GpuBody(name, analysis, slots, p.access, p.tx * p.ty, p.cluster, p.resident)
    e, k = body.e, body.k
    lanes = p.access.lanes
    kept_loops, loops = analysis.loops(analysis.kept), analysis.loops(analysis.reduced)
    kept, length = sz.product(a.size for a in analysis.kept), sz.product(a.size for a in analysis.reduced)
    reduced = set(analysis.reduced)
    full = [v for v in analysis.outputs if reduced & set(analysis.axes.flat(v))]
    small = [v for v in analysis.outputs if v not in full]
    phases = analysis.once(joint.online if p.online else joint.in_phases)

    rank = body.cluster_rank() if p.cluster > 1 else None
    block = body.block
    if p.cluster > 1:
        body.cluster_arrive()  # waited for before the other blocks' shared memory is written: loads go first
        block = e.bitcast(e.shr(e.bitcast(block, dt.u32), p.cluster.bit_length() - 1), dt.i32)
    block, part = body.wide(block), None
    if p.split > 1:
        q, r = k.divmod(Index(block), p.split)
        block, part = k.scalar(q.base), k.scalar(r.base)
    t = body.thread
    x = e.and_(t, p.tx - 1) if p.ty > 1 else t
    row = block
    if p.ty > 1:
        row = e.add(e.mul(block, p.ty), body.wide(e.bitcast(e.shr(e.bitcast(t, dt.u32), p.tx.bit_length() - 1), dt.i32)))
    row_inside = e.cmp("lt", row, body.size(kept)) if p.ty > 1 else None
    held_row = e.min(row, e.sub(body.size(kept), 1)) if p.ty > 1 else row
    base_env: Env = {}
    body.unlinear(base_env, kept_loops, Index(held_row))
    x_base = body.wide(e.mul(x, lanes))

    def at(column: Val, checked: bool = True) -> tuple[Env, Val | None]:
        """The env of a vector at this column, and whether it is inside the row (None: it is)."""
        env = dict(base_env)
        inside, held = None, column
        if checked:
            inside = e.cmp("lt", column, body.size(length))
            held = e.min(column, e.sub(body.size(length), lanes))
        body.unlinear(env, loops, Index(held, 1, lanes) if lanes > 1 else Index(held))
        return env, inside

    def elements_of(op: Op, places) -> list[tuple]:
        """What ``op`` reduces at these places, as :func:`mlirfuse.lowering.reductions.total` takes it."""
        return [(e.splat(k.value(op.operands[0], env), lanes), body.position(op, env), inside) for env, inside in places]

    def across(phase: list[Op], totals: list[tuple[Val, ...]]) -> list[tuple[Val, ...]]:
        totals = [red.across_lanes(e, op, a) for op, a in zip(phase, totals)]
        totals = body.across_block(phase, totals, p.tx)
        return body.across_cluster(phase, totals, rank) if p.cluster > 1 else totals

    if p.chunks:
        stride = p.tx * lanes * p.cluster
        start = x_base if rank is None else e.add(x_base, body.wide(e.mul(rank, p.tx * lanes)))
        places = [at(e.add(start, c * stride) if c else start, c >= p.whole) for c in range(p.chunks)]
        wide_inputs = [v for v in analysis.inputs if reduced & set(analysis.axes.flat(v))]
        rows = set(analysis.kept)
        streamed = [v for v in wide_inputs if rows & set(analysis.axes.flat(v))] or wide_inputs
        shared = [v for v in wide_inputs if v not in streamed]  # weights and the like: in the cache; kept only if there is room
        if p.chunks * lanes * sum(v.dtype.bytes for v in shared) > 4 * 24:
            shared = []
        halves = any(v.dtype.bits == 16 for v in streamed)
        for value in (*streamed, *shared):
            for env, _ in places:
                k.preload(value, env)

        def run(phase: list[Op]) -> list[tuple[Val, ...]]:
            return [total_of(op) for op in phase]

        def total_of(op: Op) -> tuple[Val, ...]:
            """The accumulator of this thread's part of the row. What looks at elements twice takes some vectors of half types at a time:
            widened, all of them would need twice the registers."""
            at_once = p.chunks
            if halves and isinstance(op, red.MaxSumExp) and p.chunks * lanes > 32:
                at_once = 1 if p.resident > 3 else 2
            elif halves and op.name == "m2" and p.chunks * lanes > 64:
                at_once = 4
            total = None
            for at in range(0, p.chunks, at_once):
                with k.forget() if at_once < p.chunks else nullcontext():
                    rows = elements_of(op, places[at : at + at_once])
                    total = red.total(e, op, rows) if total is None else red.accumulate(e, op, total, rows)
            return total

        for phase in phases:
            if p.recompute:
                with k.forget():
                    totals = run(phase)
            else:
                totals = run(phase)
            body.bind(phase, across(phase, totals), base_env)
            if p.recompute:
                for value in (v for v in streamed if v.dtype.bits == 16):
                    for env, _ in places:
                        k.bind_loaded(value, env, body.opaque(k.preload(value, env)))
        if full:
            for env, inside in places:
                valid = inside if row_inside is None else row_inside if inside is None else e.and_(row_inside, inside)
                body.store_at(full, env, analysis.domain, valid)
    else:
        step, unroll = p.tx * lanes, _unroll(analysis, lanes)
        limit = body.size(length)
        low, high = e.const(0, body.index), limit
        if part is not None:
            length_of_part = body.size(sz.mul(sz.ceildiv(length, p.split * step * unroll), step * unroll))
            low = e.min(e.mul(part, length_of_part), limit)
            high = e.min(e.add(low, length_of_part), limit)
        span = step * unroll

        # Whole spans first, without checks; what is left over in one more turn, checked.
        middle = e.add(low, e.mul(e.div(e.sub(high, low), span), span))

        def vectors(i: Val, checked: bool):
            return [at(e.add(e.add(i, x_base), u * step) if u else e.add(i, x_base), checked) for u in range(unroll)]

        last_span = e.sub(e.add(low, middle), span)

        def over_row(carried: list[Val], visit, backwards: bool = False) -> list[Val]:
            """Visits the row; every second pass goes backwards, so that it finds in the cache what the pass before it read last."""

            def whole(carried):
                return body.loop(low, middle, span, carried, lambda i, state: visit(vectors(e.sub(last_span, i) if backwards else i, False), state))

            if not backwards:
                carried = whole(carried)

            def last(i, state):
                places = vectors(i, True)
                if part is not None:
                    ends = [e.cmp("lt", e.add(e.add(i, x_base), u * step), high) for u in range(unroll)]
                    places = [(env, e.and_(inside, end)) for (env, inside), end in zip(places, ends)]
                return visit(places, state)

            carried = body.loop(middle, high, span, carried, last)
            return whole(carried) if backwards else carried

        for passes, phase in enumerate(phases):

            def add(places, state, phase=phase):
                for env, _ in places:
                    for op in phase:
                        k.value(op.operands[0], env)
                out, base = [], 0
                for op in phase:
                    w = len(red.accumulator_types(op))
                    out += red.accumulate(e, op, tuple(state[base : base + w]), elements_of(op, places))
                    base += w
                return out

            done = over_row([v for op in phase for v in red.identity(e, op, red.state_lanes(op, lanes))], add, passes % 2 == 1)
            totals, base = [], 0
            for op in phase:
                w = len(red.accumulator_types(op))
                totals.append(tuple(done[base : base + w]))
                base += w
            totals = across(phase, totals)
            if p.split > 1:
                with body.leader(e.cmp("eq", x, 0)):
                    for op, total in zip(phase, totals):
                        for which, v in enumerate(total):
                            memory = partial_memory(body, op, which, sz.mul(kept, p.split))
                            store_partial(body, memory, e.add(e.mul(part, body.size(kept)), row), v)
            else:
                body.bind(phase, totals, base_env)
        if full:

            def write(places, state):
                for env, _ in places:
                    for value in full:
                        k.value(value, env)
                for env, inside in places:
                    valid = inside if row_inside is None else row_inside if inside is None else e.and_(row_inside, inside)
                    body.store_at(full, env, analysis.domain, valid)
                return []

            over_row([], write, len(phases) % 2 == 1)
    if small and p.split == 1:
        first = e.cmp("eq", x, 0)
        if rank is not None:
            first = e.and_(first, e.cmp("eq", rank, 0))
        if row_inside is not None:
            first = e.and_(first, row_inside)
        body.store_at(small, base_env, analysis.kept, first)
    grid = sz.mul(sz.ceildiv(kept, p.ty), p.split)
    kernels = [body.finish(grid)]
    if p.split > 1:
        kernels.append(finish(f"{name}_finish", analysis, slots, p.access, p.split, phases[0], points=1))
    return kernels


def candidates(analysis: Analysis, access: Access, env: dict[str, int], machine) -> Iterator[Params]:
    """Parameters worth trying for these sizes, the model's choice first.

    The model: a thread keeps about 16 registers of the row, so that several blocks fit a multiprocessor and load while another computes; 32
    where it reads weights of half types too, whose share of its instructions falls with the threads that a row has.
    A row that needs more than a block of 512 threads with 32 registers each takes a cluster of blocks of 256 threads, which exchange
    less often the more of the row a thread has: 64 registers of it, of half types, which take twice as many widened, 32; one that eight such blocks cannot hold is read again in each phase.
    """
    kept, length = analysis.values(_extents, env)
    lanes = access.lanes
    vectors = max(1, -(-length // lanes))
    row_bytes, single, shorter, halves, wanted = analysis.once(_row)
    registers = max(1, lanes * row_bytes // 4)  # of one chunk
    small = kept * vectors < machine.sm_count * 1024  # not a vector for each thread of half the machine: all in parallel

    alone, shared = _places(vectors, registers, machine.clusters)

    def cost(place) -> tuple:
        tx, cluster, chunks = place
        held = chunks * registers
        if vectors >= 32 and tx < 32:  # less than a warp along a row spreads its accesses
            return (True,)
        if small:
            return (False, cluster * tx > 16 * 1024, chunks > 4, cluster, chunks, tx)
        if cluster == 1:
            return (False, held > 32, tx > 512, abs(held - wanted), tx)
        idle = kept * cluster * tx < machine.sm_count * 512
        return (False, held > 64, tx > 256, cluster > 8, idle, abs(held - (32 if halves else 64)))

    def persistent(tx: int, cluster: int, chunks: int) -> Params:
        ty = max(1, 128 // tx)
        while ty > 1 and ty * tx > 32 and kept // ty < machine.sm_count:
            ty //= 2
        whole = length // (tx * cluster * lanes)
        resident = 1
        if cluster > 1 and tx == 256:
            held = chunks * registers
            resident = (4 if held <= 32 else 2) if halves else 3 if 32 < held <= 64 else 1
        return Params(access, tx, ty, chunks, cluster, 1, whole, chunks * lanes > 16, resident, shorter and cluster > 1)

    def looped() -> Params:
        tx = 32
        while tx < 512 and vectors > tx * UNROLL:
            tx *= 2
        while tx < 1024 and tx * 2 <= vectors // UNROLL and kept * tx < machine.sm_count * machine.threads_per_sm // 2 and not single:
            tx *= 2
        blocks = machine.sm_count * (machine.threads_per_sm // tx)
        split = 1
        if single and kept < blocks:
            most = max(1, vectors // (tx * UNROLL * 2))
            while split * 2 <= most and split * kept < blocks:
                split *= 2
        return Params(access, tx, max(1, 128 // tx) if split == 1 else 1, 0, 1, split, online=shorter)

    best = min(alone or shared, key=cost, default=None)
    if single and small and best and kept < machine.sm_count // 16 and best[2] <= 8:
        loop_first = False  # a cluster at a time is sooner done than two kernels
    elif single and (not alone or vectors > 2048):
        loop_first = True  # one pass: nothing to keep
    else:
        loop_first = vectors > 8 * 1024 * max(1, 32 // registers)  # more than eight blocks of a cluster hold with room for another cluster
    if loop_first:
        yield looped()
    elif best:
        yield persistent(*best)
    ordered = [persistent(*place) for place in sorted(alone, key=cost) + sorted(shared, key=cost)]
    yield from ordered if loop_first else ordered[1:]
    for p in ordered:
        if p.cluster > 1:
            yield from (p._replace(resident=r) for r in (1, 2, 3, 4) if r != p.resident and r * p.tx <= 1024)
    if not loop_first:
        yield looped()


@functools.lru_cache
def _places(vectors: int, registers: int, clusters: bool) -> tuple[list, list]:
    """Places that hold a row of so many vectors, as (threads along the row, blocks a cluster, chunks a thread): in a block alone, and others."""
    alone, shared = [], []
    for tx in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024):
        for cluster in (1, 2, 4, 8, 16) if tx >= 256 and clusters else (1,):
            chunks = -(-vectors // (tx * cluster))
            held = chunks * registers
            if tx * cluster >= 2 * vectors and tx > 1:
                break
            if held <= (64 if tx <= 256 else 32):
                by_itself = cluster == 1 and held <= 32 and (tx <= 512 or not clusters)
                (alone if by_itself else shared).append((tx, cluster, chunks))
    return alone, shared


def _extents(analysis: Analysis) -> tuple:
    """Rows and their length."""
    return sz.product(a.size for a in analysis.kept), sz.product(a.size for a in analysis.reduced)


def _row(analysis: Analysis) -> tuple[int, bool, bool, bool, int]:
    """The bytes of a row's elements at one place, of inputs that are not the same for all rows; whether the rows are only reduced, in one pass
    at most; whether online forms make it fewer passes; whether any elements are of half types; the registers of a row that a thread shall have."""
    reduced, rows = set(analysis.reduced), set(analysis.kept)
    wide = [v for v in analysis.inputs if reduced & set(analysis.axes.flat(v))]
    streamed = [v for v in wide if not rows or rows & set(analysis.axes.flat(v))] or wide
    written = any(reduced & set(analysis.axes.flat(v)) for v in analysis.outputs)
    phases = analysis.once(joint.online)
    weights = any(v.dtype.bits == 16 for v in wide if v not in streamed)
    single, shorter = len(phases) == 1 and not written, len(phases) < len(analysis.phases)
    return sum(v.dtype.bytes for v in streamed), single, shorter, any(v.dtype.bits == 16 for v in streamed), 32 if weights else 16
