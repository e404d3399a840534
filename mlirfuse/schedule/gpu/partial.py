"""The second kernel of a split reduction on a GPU: the parts that several blocks left in the workspace are combined."""

from __future__ import annotations

from mlirfuse.analysis.phases import Analysis
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Op
from mlirfuse.lowering import reductions as red
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.kernel import Env, Index, Memory
from mlirfuse.lowering.slots import Slots
from mlirfuse.schedule.gpu.kernel import Access, GpuBody, GpuKernel

THREADS = 256
AT_ONCE = 16  # parts that a thread loads before it combines them


def partial_memory(body: GpuBody, op: Op, partial: int, count: sz.Size) -> Memory:
    """The buffer of one part of a split reduction's accumulators: [split, kept]."""
    dtype = red.accumulator_types(op)[partial]
    stored = dt.u8 if dtype is dt.bool_ else dtype
    return Memory(body.args.temporary((op, partial), sz.mul(count, stored.bytes)), (), stored, stored.bytes)


def store_partial(body: GpuBody, memory: Memory, offset: Val, val: Val) -> None:
    """Stores ``val``, a vector where ``offset`` is a multiple of its lanes."""
    val = body.e.cast(val, memory.dtype)
    address, align = body.k.address(memory, offset), min(16, val.lanes * memory.dtype.bytes)
    body.e.line(f"llvm.store {val}, {address} {{alignment = {align} : i64}} : {val.type}, !llvm.ptr<1>")


def load_partial(body: GpuBody, memory: Memory, offset: Val, dtype: dt.DType, lanes: int = 1) -> Val:
    """Loads a vector of ``lanes``, of which ``offset`` is a multiple."""
    address, align = body.k.address(memory, offset), min(16, lanes * memory.dtype.bytes)
    type_ = memory.dtype.memory if lanes == 1 else Val("", memory.dtype, lanes).type
    val = body.e.op(f"llvm.load {address} {{alignment = {align} : i64}} : !llvm.ptr<1> -> {type_}", memory.dtype, lanes)
    return body.e.cast(val, dtype)


def finish(
    name: str, analysis: Analysis, slots: Slots, access: Access, split: int, phase: list[Op], points: int
) -> GpuKernel:
    """Combines the ``split`` parts of the reductions of ``phase`` and computes what depends on them.
    ``points`` neighbouring kept points, more than one where memory runs along them, are the work of a warp, one alone
    that of as many threads as there are parts."""
    access = Access(access.index, 1, tuple(v.dtype.bytes for v in analysis.inputs + analysis.outputs))
    body = GpuBody(name, analysis, slots, access, THREADS)
    e = body.e
    kept = sz.product(a.size for a in analysis.kept)
    width = 32 if points > 1 else min(THREADS, max(32, 1 << (split - 1).bit_length()))
    t = e.and_(body.thread, width - 1)
    first = body.quotient(t, points)  # of this thread's parts
    group = (
        e.add(e.mul(body.quotient(body.thread, width), points), e.and_(t, points - 1))
        if width < THREADS
        else e.const(0, dt.i32)
    )
    block_points = THREADS // width * points
    point = e.add(e.mul(body.wide(body.block), block_points), body.wide(group))
    inside = e.cmp("lt", point, body.size(kept))
    held = e.min(point, e.sub(body.size(kept), 1))
    env: Env = {}
    body.unlinear(env, analysis.loops(analysis.kept), Index(held))
    lanes = width // points
    count = sz.mul(kept, split)

    def partial(op: Op, at: Val) -> tuple[Val, ...]:
        offset = e.add(e.mul(body.wide(at), body.size(kept)), held)
        return tuple(
            load_partial(body, partial_memory(body, op, w, count), offset, d)
            for w, d in enumerate(red.accumulator_types(op))
        )

    def some(start: Val, partials: int, state: list[tuple[Val, ...]]) -> list[tuple[Val, ...]]:
        """``state`` with every ``lanes``-th of the parts from ``start`` on."""
        places = [e.add(start, n * lanes) if n else start for n in range(partials)]
        out = []
        for op, before in zip(phase, state):
            nothing, found = red.identity(e, op, 1), []
            for at in places:
                loaded = partial(op, e.min(at, split - 1))
                found.append(tuple(e.select(e.cmp("lt", at, split), a, b) for a, b in zip(loaded, nothing)))
            together = red.across_lanes(e, op, tuple(e.from_lanes(list(partials)) for partials in zip(*found)))
            out.append(red.combine(e, op, before, together))
        return out

    def iteration(i: Val, state: list[Val]) -> list[Val]:
        return [v for a in some(e.add(e.cast(i, dt.i32), first), AT_ONCE, red.grouped(phase, state)) for v in a]

    iterations = -(-split // lanes)
    whole = iterations // AT_ONCE * AT_ONCE
    left = (
        1 << (iterations - whole - 1).bit_length() if iterations > whole else 0
    )  # lanes that are combined are a power of two
    state = [red.identity(e, op, 1) for op in phase]
    if whole:
        flat = [v for a in state for v in a]
        state = red.grouped(
            phase,
            body.loop(e.const(0, body.index), e.const(whole * lanes, body.index), AT_ONCE * lanes, flat, iteration),
        )
    if left:
        state = some(e.add(first, whole * lanes) if whole else first, left, state)
    body.bind(
        phase,
        body.across_block(phase, state, width) if points == 1 else body.across_warp(phase, state, 32, points),
        env,
    )
    reduced = set(analysis.reduced)
    small = [v for v in analysis.outputs if not reduced & set(analysis.axes.flat(v))]
    body.store_at(small, env, analysis.kept, e.and_(inside, e.cmp("lt", t, points)))
    return body.finish(sz.ceildiv(kept, block_points))
