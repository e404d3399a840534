"""Outer reductions and normalizations on a GPU: memory runs along a kept axis, the reduced axes are rows above each other.

``tx`` threads lie along the columns, each with a vector of them, ``ty`` along the rows; a thread walks down its rows with several loads
in flight, and the block's threads of one column combine through shared memory. Few columns are split over several blocks, whose
accumulators a second kernel combines.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlirfuse import dtypes as dt
from mlirfuse import sizes as sz
from mlirfuse.graph import Op
from mlirfuse.lowering import reductions as red
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.kernel import Env, Index
from mlirfuse.lowering.slots import Slots
from mlirfuse.schedule.analysis import Analysis, size_of
from mlirfuse.schedule.gpu import Access, GpuBody, GpuKernel
from mlirfuse.schedule.gpu_rows import finish, partial_memory


@dataclass(frozen=True)
class Params:
    """``tx`` threads along columns and ``ty`` along rows, ``unroll`` rows in flight a thread, ``split`` blocks along the rows."""

    access: Access
    tx: int
    ty: int
    unroll: int
    split: int = 1


def emit(name: str, analysis: Analysis, slots: Slots, p: Params) -> list[GpuKernel]:
    """The kernels that compute ``analysis``: two if it is split."""
    body = GpuBody(name, analysis, slots, p.access, p.tx * p.ty)
    e, k = body.e, body.k
    lanes = p.access.lanes
    kept_loops, loops = analysis.loops(analysis.kept), analysis.loops(analysis.reduced)
    inner, outer = kept_loops[-1], kept_loops[:-1]
    kept, rows = sz.product(a.size for a in analysis.kept), sz.product(a.size for a in analysis.reduced)
    columns = size_of(inner)
    reduced = set(analysis.reduced)
    full = [v for v in analysis.outputs if reduced & set(analysis.axes.flat(v))]
    small = [v for v in analysis.outputs if v not in full]

    tile = p.tx * lanes
    across = sz.ceildiv(columns, tile)
    q, part = k.divmod(Index(body.wide(body.block)), p.split) if p.split > 1 else (Index(body.wide(body.block)), Index(0))
    above, block_column = k.divmod(q, across) if outer else (Index(0), q)
    t = body.thread
    x = e.and_(t, p.tx - 1)
    y = e.bitcast(e.shr(e.bitcast(t, dt.u32), p.tx.bit_length() - 1), dt.i32)
    column = e.add(e.mul(k.scalar(block_column.base), tile), body.wide(e.mul(x, lanes)))
    inside = e.cmp("lt", column, body.size(columns))
    held = e.min(column, e.sub(body.size(columns), lanes))
    base_env: Env = {}
    body.unlinear(base_env, outer, above)
    body.set_loop(base_env, inner, Index(held, 1, lanes) if lanes > 1 else Index(held))
    low, high = e.const(0, body.index), body.size(rows)
    if p.split > 1:
        length = body.size(sz.ceildiv(rows, p.split))
        low = e.min(e.mul(k.scalar(part.base), length), high)
        high = e.min(e.add(low, length), high)
    first = e.add(low, body.wide(y))

    def at(row: Val) -> Env:
        env = dict(base_env)
        body.unlinear(env, loops, Index(row))
        return env

    def over_rows(phase: list[Op]) -> list[tuple[Val, ...]]:
        """Each thread's accumulators over its rows."""
        start = [v for _ in range(p.unroll) for op in phase for v in red.identity(e, op, lanes)]
        last = e.sub(high, 1)

        def iteration(i, state):
            width = len(state) // p.unroll
            places = []
            for u in range(p.unroll):
                row = e.add(i, u * p.ty) if u else i
                places.append((at(e.min(row, last) if u else row), e.cmp("lt", row, high) if u else None))
            for env, _ in places:
                for op in phase:
                    k.value(op.operands[0], env)
            out = []
            for u, (env, here) in enumerate(places):
                at_ = u * width
                for op in phase:
                    w = len(red.accumulator_types(op))
                    new = red.element(e, op, e.splat(k.value(op.operands[0], env), lanes), body.position(op, env))
                    if here is not None:
                        new = tuple(e.select(here, a, b) for a, b in zip(new, red.identity(e, op, lanes)))
                    out += red.combine(e, op, tuple(state[at_ : at_ + w]), new)
                    at_ += w
            return out

        done = body.loop(first, high, p.ty * p.unroll, start, iteration)
        width, totals, at_ = len(done) // p.unroll, [], 0
        for op in phase:
            w = len(red.accumulator_types(op))
            parts = [tuple(done[u * width + at_ : u * width + at_ + w]) for u in range(p.unroll)]
            at_ += w
            while len(parts) > 1:
                parts = [red.combine(e, op, parts[i], parts[i + 1]) for i in range(0, len(parts), 2)]
            totals.append(parts[0])
        return totals

    def down_block(phase: list[Op], totals: list[tuple[Val, ...]]) -> list[tuple[Val, ...]]:
        """Combines the block's rows; every thread gets its columns' result."""
        if p.ty == 1:
            return totals
        offsets = []
        for total in totals:
            for v in total:
                offsets.append(body.reserve(p.ty * tile * v.dtype.bytes))
        steps = p.ty.bit_length() - 1

        def slot(offset, row, v):
            index = e.add(e.mul(row, p.tx), x)
            return body.shared_address(offset, index, v.dtype.bytes * lanes)

        for s in range(steps):  # the upper half hands its accumulators to the lower half
            half = p.ty >> (s + 1)
            upper = e.and_(e.cmp("ge", y, half), e.cmp("lt", y, 2 * half))
            with k.region(f"scf.if {upper} {{"):
                for offset, v in zip(offsets, [v for total in totals for v in total]):
                    body.shared_store(slot(offset, y, v), v, min(16, v.dtype.bytes * lanes))
            body.barrier()
            other = e.min(e.add(y, half), p.ty - 1)
            combined, at_ = [], 0
            for op, total in zip(phase, totals):
                loaded = []
                for v in total:
                    loaded.append(body.shared_load(slot(offsets[at_], other, v), v.dtype, lanes, min(16, v.dtype.bytes * lanes)))
                    at_ += 1
                merged = red.combine(e, op, total, tuple(loaded))
                lower = e.cmp("lt", y, half)
                combined.append(tuple(e.select(lower, a, b) for a, b in zip(merged, total)))
            totals = combined
        if full or len(analysis.phases) > 1:
            zero = e.const(0, dt.i32)
            with k.region(f"scf.if {e.cmp('eq', y, 0)} {{"):
                for offset, v in zip(offsets, [v for total in totals for v in total]):
                    body.shared_store(slot(offset, zero, v), v, min(16, v.dtype.bytes * lanes))
            body.barrier()
            shared, at_ = [], 0
            for total in totals:
                parts = []
                for v in total:
                    parts.append(body.shared_load(slot(offsets[at_], zero, v), v.dtype, lanes, min(16, v.dtype.bytes * lanes)))
                    at_ += 1
                shared.append(tuple(parts))
            totals = shared
        return totals

    for phase in analysis.phases:
        totals = down_block(phase, over_rows(phase))
        if p.split == 1:
            for op, total in zip(phase, totals):
                k.bind(op.result, base_env, red.result(e, op, total))
        else:
            writes = e.and_(inside, e.cmp("eq", y, 0))
            with k.region(f"scf.if {writes} {{"):
                for op, total in zip(phase, totals):
                    for which, v in enumerate(total):
                        memory = partial_memory(body, op, which, sz.mul(kept, p.split))
                        offset = e.add(e.mul(k.scalar(part.base), body.size(kept)), e.add(e.mul(k.scalar(above.base), body.size(columns)), held))
                        v = e.cast(v, memory.dtype)
                        align = memory.dtype.bytes
                        e.line(f"llvm.store {v}, {k.address(memory, offset)} {{alignment = {align} : i64}} : {v.type}, !llvm.ptr<1>")
    if full:

        def write(i, state):
            places = [(e.add(i, u * p.ty) if u else i) for u in range(p.unroll)]
            last = e.sub(high, 1)
            envs = [(at(e.min(row, last)), e.cmp("lt", row, high)) for row in places]
            for env, _ in envs:
                for value in full:
                    k.value(value, env)
            for env, here in envs:
                body.store_at(full, env, analysis.domain, e.and_(inside, here))
            return []

        body.loop(first, high, p.ty * p.unroll, [], write)
    if small and p.split == 1:
        body.store_at(small, base_env, analysis.kept, e.and_(inside, e.cmp("eq", y, 0)))
    grid = sz.mul(sz.product(size_of(loop) for loop in outer), across, p.split)
    kernels = [body.finish(grid)]
    if p.split > 1:
        kernels.append(finish(f"{name}_finish", analysis, slots, p.access, p.split))
    return kernels


def choose(analysis: Analysis, access: Access, env: dict[str, int], machine) -> Params:
    """A warp's columns or what there is of them, rows for the other threads, and a split until the machine is full."""
    loops = analysis.loops(analysis.kept)
    columns = sz.substitute(size_of(loops[-1]), env)
    above = sz.substitute(sz.product(size_of(loop) for loop in loops[:-1]), env)
    rows = sz.substitute(sz.product(a.size for a in analysis.reduced), env)
    vectors = -(-columns // access.lanes)
    reduced = set(analysis.reduced)
    tx = 1
    while tx < 32 and tx < vectors:
        tx *= 2
    parts = sum(len(red.accumulator_types(op)) for op in analysis.phases[0])
    threads = 256 if access.lanes * parts <= 8 else 128
    ty = max(1, threads // tx)
    while ty > 1 and ty > rows:
        ty //= 2
    unroll = 4
    while unroll > 1 and ty * unroll > rows:
        unroll //= 2
    blocks = -(-vectors // tx) * above
    full = any(reduced & set(analysis.axes.flat(v)) for v in analysis.outputs)
    split = 1
    if len(analysis.phases) == 1 and not full:
        wanted = machine.sm_count * (machine.threads_per_sm // (tx * ty))
        while split * 2 * blocks <= wanted and rows // (split * 2) >= ty * unroll * 2:
            split *= 2
    return Params(access, tx, ty, unroll, split)
