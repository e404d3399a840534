"""Reductions within rows together with partial sums over rows, on a GPU: the backward of layer and RMS norm.

A block takes every ``blocks``-th row: the next row's inputs are loaded before the present one is worked on; within the row it reduces
and writes as :mod:`mlirfuse.schedule.gpu_rows` does, and adds what is summed over the rows to accumulators in registers, which it stores
at the end as its part. A row too long for that (``chunks == 0``) is passed over in a loop, and the parts are added up in memory.
"""

from __future__ import annotations

from typing import Iterator, NamedTuple

from mlirfuse import dtypes as dt
from mlirfuse import sizes as sz
from mlirfuse.graph import Op, Value
from mlirfuse.lowering import reductions as red
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.kernel import Env, Index
from mlirfuse.lowering.slots import Slots
from mlirfuse.schedule.analysis import Analysis
from mlirfuse.schedule import gpu_staging
from mlirfuse.schedule.gpu import Access, GpuBody, GpuKernel
from mlirfuse.schedule.gpu_staging import Staging, streamed_inputs


class Params(NamedTuple):
    """``tx`` threads a row, ``chunks`` vectors a thread (0: looped); ``exact``: they cover the row with none left over; ``resident``: blocks
    that shall fit a multiprocessor at a time; ``stages``: rows that are in or on their way to shared memory (0: the next one to registers)."""

    access: Access
    tx: int
    chunks: int
    exact: bool
    resident: int = 1
    stages: int = 0


def emit(name: str, analysis: Analysis, slots: Slots, p: Params) -> list[GpuKernel]:
    """The kernel that computes ``analysis``."""
    body = GpuBody(name, analysis, slots, p.access, p.tx, 1, p.resident)
    e, k = body.e, body.k
    lanes, partials = p.access.lanes, analysis.partials
    blocks = partials[0].attrs["parts"]
    kept_loops, loops = analysis.loops(analysis.kept), analysis.loops(analysis.reduced)
    rows, length = sz.product(a.size for a in analysis.kept), sz.product(a.size for a in analysis.reduced)
    columns, over_rows = set(analysis.reduced), set(analysis.kept)
    sums = {op.result for op in partials}
    full = [v for v in analysis.outputs if v not in sums and columns & set(analysis.axes.flat(v))]
    small = [v for v in analysis.outputs if v not in sums and v not in full]
    by_row = [v for v in analysis.inputs if over_rows & set(analysis.axes.flat(v))]
    by_column = [v for v in analysis.inputs if v not in by_row]
    block = body.wide(body.block)
    x_base = body.wide(e.mul(body.thread, lanes))

    def at(row_env: Env, column: Val) -> tuple[Env, Val | None]:
        env, inside = dict(row_env), None
        if not p.exact:
            inside = e.cmp("lt", column, body.size(length))
            column = e.min(column, e.sub(body.size(length), lanes))
        body.unlinear(env, loops, Index(column, 1, lanes) if lanes > 1 else Index(column))
        return env, inside

    def row_env(row: Val) -> Env:
        env: Env = {}
        body.unlinear(env, kept_loops, Index(row))
        return env

    def part_env(env: Env, op: Op) -> Env:
        """Where this block's part of a partial sum lies for the columns of ``env``."""
        out = dict(env)
        for axis in k.dims(op.result)[0]:
            out[axis] = Index(block)
        return out

    def contribution(op: Op, env: Env, inside: Val | None) -> tuple[Val, ...]:
        new = red.element(e, op, e.splat(k.value(op.operands[0], env), lanes), body.position(op, env))
        if inside is not None:
            new = tuple(e.select(inside, a, b) for a, b in zip(new, red.identity(e, op, lanes)))
        return new

    def finish_phase(phase: list[Op], totals: list[tuple[Val, ...]], env: Env) -> None:
        totals = body.across_block(phase, [red.across_lanes(e, op, a) for op, a in zip(phase, totals)], p.tx)
        for op, total in zip(phase, totals):
            k.bind(op.result, env, red.result(e, op, total))
        if len(analysis.phases) == 1 and p.tx > 32:
            body.barrier()  # the next row writes the same shared memory

    def persistent() -> None:
        starts = [e.add(x_base, c * p.tx * lanes) if c else x_base for c in range(p.chunks)]
        first_env = row_env(e.min(block, e.sub(body.size(rows), 1)))
        wide = [v for v in by_row if columns & set(analysis.axes.flat(v))]
        narrow = [v for v in by_row if v not in wide]

        staging = Staging(body, wide * len(starts), lanes, p.stages) if p.stages else None

        def vectors(env: Env) -> list[tuple[Value, Env]]:
            """A row's vectors of this thread and where they lie."""
            return [(v, at(env, start)[0]) for start in starts for v in wide]

        def ahead(row: Val, rows_: int) -> Env:
            """The place of the row that this block takes so many turns later, or of the last one."""
            return row_env(e.min(e.add(row, rows_ * blocks) if rows_ else row, e.sub(body.size(rows), 1)))

        def loads(row: Val, turns: int) -> list[Val]:
            """What registers hold of the row ``turns`` later: all of it, but for what is staged."""
            with k.forget():
                env = ahead(row, turns)
                return [k.preload(v, env) for v in narrow] + ([] if staging else [k.preload(v, here) for v, here in vectors(env)])

        for start in starts:
            for v in by_column:
                k.preload(v, at(first_env, start)[0])
        zeros = [e.const(0, op.operands[0].dtype.compute, lanes) for op in partials for _ in starts]
        initial = loads(block, 0)
        if staging:
            for turn in range(p.stages - 1):
                staging.start(e.const(turn, dt.i32), vectors(ahead(block, turn)))
            initial += [e.const(0, dt.i32), e.const(p.stages - 1, dt.i32)]  # the stage of this turn, and that of what is started in it
        count = len(zeros)

        def row_loop(row: Val, state: list[Val]) -> list[Val]:
            accumulators, loaded = state[:count], state[count:]
            following = loads(row, 1)
            env = row_env(row)
            places = [at(env, start) for start in starts]
            if staging:
                stage, free = loaded[-2:]
                staging.start(free, vectors(ahead(row, p.stages - 1)))
                staging.wait(p.stages - 1)
                loaded = loaded[:-2] + staging.read(stage)
                following += [staging.next(stage), staging.next(free)]
            for (v, here), val in zip([(v, env) for v in narrow] + vectors(env), loaded):
                k.bind_loaded(v, here, val)
            for phase in analysis.phases:
                totals = []
                for op in phase:
                    parts = [contribution(op, here, inside) for here, inside in places]
                    while len(parts) > 1:
                        parts = [red.combine(e, op, *parts[i : i + 2]) if i + 1 < len(parts) else parts[i] for i in range(0, len(parts), 2)]
                    totals.append(parts[0])
                finish_phase(phase, totals, env)
            out = []
            for n, op in enumerate(partials):
                for c, (here, _) in enumerate(places):
                    out.append(e.add(accumulators[n * len(starts) + c], e.splat(k.value(op.operands[0], here), lanes)))
            for here, inside in places:
                body.store_at(full, here, analysis.domain, inside)
            if small:
                body.store_at(small, env, analysis.kept, e.cmp("eq", body.thread, 0))
            return out + following

        done = body.loop(block, body.size(rows), blocks, zeros + initial, row_loop)
        for n, op in enumerate(partials):
            for c, start in enumerate(starts):
                here, inside = at(first_env, start)
                store_part(op, here, inside, done[n * len(starts) + c])

    def store_part(op: Op, env: Env, inside: Val | None, val: Val) -> None:
        if inside is None:
            k.store(op.result, part_env(env, op), val)
        else:
            with k.region(f"scf.if {inside} {{"):
                k.store(op.result, part_env(env, op), val)

    def looped() -> None:
        step = p.tx * lanes

        def over_row(env: Env, carried: list[Val], visit) -> list[Val]:
            return body.loop(e.const(0, body.index), body.size(length), step, carried, lambda i, state: visit(*at(env, e.add(i, x_base)), state))

        def clear(env, inside, _):
            for op in partials:
                store_part(op, env, inside, e.const(0, op.operands[0].dtype.compute, lanes))
            return []

        over_row(row_env(e.const(0, body.index)), [], clear)

        def row_loop(row: Val, _):
            env = row_env(row)
            for phase in analysis.phases:

                def add(here, inside, state, phase=phase):
                    pairs = zip(phase, red.grouped(phase, state))
                    return [v for op, before in pairs for v in red.combine(e, op, before, contribution(op, here, inside))]

                done = over_row(env, [v for op in phase for v in red.identity(e, op, lanes)], add)
                finish_phase(phase, red.grouped(phase, done), env)

            def write(here, inside, state):
                for op in partials:
                    val = e.splat(k.value(op.operands[0], here), lanes)
                    memory = k.memories[op.result]
                    place = part_env(here, op)
                    before = k._from_memory(k._load(memory, k._offset(op.result, memory.strides, place)), op.result.dtype)
                    store_part(op, here, inside, e.add(before, val))
                body.store_at(full, here, analysis.domain, inside)
                return []

            over_row(env, [], write)
            if small:
                body.store_at(small, env, analysis.kept, e.cmp("eq", body.thread, 0))
            return []

        body.loop(block, body.size(rows), blocks, [], row_loop)

    persistent() if p.chunks else looped()
    return [body.finish(blocks)]


def candidates(analysis: Analysis, access: Access, env: dict[str, int], machine) -> Iterator[Params]:
    """Parameters worth trying, the model's choice first: as many threads a row as keep a thread's share of inputs (this row's and the
    next one's) and accumulators in about 64 registers."""
    (length,) = analysis.values(_length, env)
    vectors = -(-length // access.lanes)
    nbytes = sum([v.dtype.bytes for v in analysis.once(streamed_inputs)])
    registers = access.lanes * len(analysis.partials) + 2 * access.lanes * nbytes // 4
    places = []  # (threads a row, vectors a thread)
    for tx in (1024, 512, 256, 128, 64, 32):
        chunks = -(-vectors // tx)
        if chunks * registers <= 96 and (tx == 32 or tx < 2 * vectors):
            places.append((tx, chunks))
    places.sort(key=lambda place: (False, place[0]) if place[1] * registers <= 64 else (True, -place[0]))

    def params(tx: int, chunks: int, stages: int = 0) -> Params:
        return Params(access, tx, chunks, chunks * tx * access.lanes == length, stages=stages)

    if machine.async_copies and analysis.once(_stageable, access):
        room = machine.shared_per_block // 2 - 2048  # two blocks a multiprocessor
        for tx, chunks in places:
            turn = tx * chunks * access.lanes * nbytes
            yield from (params(tx, chunks, n) for n in (3, 2, 4, 6) if n * turn <= room)
    found = [params(*place) for place in places]
    yield from found
    yield from (p._replace(resident=r) for p in found for r in (2, 3, 4) if r * p.tx <= 1024)
    yield Params(access, 512 if vectors > 256 else 128, 0, False)


def _length(analysis: Analysis) -> tuple:
    return (sz.product(a.size for a in analysis.reduced),)


def _stageable(analysis: Analysis, access: Access) -> bool:
    """Whether rows can be brought to shared memory ahead of their turn."""
    return gpu_staging.possible(analysis, access, analysis.once(streamed_inputs), analysis.loops(analysis.reduced)[-1][-1])
