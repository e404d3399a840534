"""The second kernel of a split reduction on a GPU, which combines partial accumulators in the workspace."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mlirfuse.analysis.phases import size_of
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Op
from mlirfuse.lowering import reductions as red
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.kernel import Index, Memory
from mlirfuse.schedule.gpu.kernel import GpuBody, GpuKernel
from mlirfuse.schedule.scheduler import KernelSpec
from mlirfuse.schedule.tiling import Access, Tiling

THREADS = 256
AT_ONCE = 16  # partial accumulators that a thread loads before it combines them


def _buffers(body: GpuBody, op: Op, count: sz.Size) -> Iterator[tuple[Memory, dt.DType]]:
    """The buffers of the accumulator's components of a split reduction, [split, kept], with their types."""
    for component, dtype in enumerate(red.accumulator_types(op)):
        yield body.buffer((op, component), count, dtype), dtype


def store_partials(
    body: GpuBody, phase: list[Op], totals: list[tuple[Val, ...]], offset: Callable[[], Val], count: sz.Size
) -> None:
    """Store accumulators as the partial ones at ``offset()`` of ``count``."""
    for op, total in zip(phase, totals):
        for (memory, _), val in zip(_buffers(body, op, count), total):
            body.buffer_store(memory, offset(), val)


def combine_partials(spec: KernelSpec, split: int, phase: list[Op], points: int) -> GpuKernel:
    """The kernel that combines the ``split`` partial accumulators of ``phase`` and computes everything that depends on
    them.

    A warp processes ``points`` neighbouring kept points, more than one if they are contiguous in memory; a single point
    is processed by as many threads as there are parts."""
    analysis, index = spec.analysis, spec.params.access.index
    access = Access(index, 1, tuple(v.dtype.bytes for v in analysis.inputs + analysis.outputs))
    body = GpuBody(spec._replace(name=f"{spec.name}_finish", params=Tiling("partial", access, THREADS)))
    e, kept = body.e, size_of(analysis.kept)
    width = 32 if points > 1 else min(THREADS, max(32, 1 << (split - 1).bit_length()))
    t = e.and_(body.thread, width - 1)
    first, group = body.quotient(t, points), e.const(0, dt.i32)  # of this thread's partial accumulators
    if width < THREADS:
        group = e.add(e.mul(body.quotient(body.thread, width), points), e.and_(t, points - 1))
    block_points = THREADS // width * points
    point = e.add(e.mul(body.wide(body.block), block_points), body.wide(group))
    clamped, inside = body.clamped(point, kept)
    env = body.point(analysis.loops(analysis.kept), Index(clamped))
    lanes, count = width // points, sz.mul(kept, split)

    def partial(op: Op, at: Val) -> tuple[Val, ...]:
        offset = e.add(e.mul(body.wide(at), body.size(kept)), clamped)
        return tuple(body.buffer_load(memory, offset, dtype) for memory, dtype in _buffers(body, op, count))

    def some(start: Val, partials: int, state: list[tuple[Val, ...]]) -> list[tuple[Val, ...]]:
        """``state`` combined with every ``lanes``-th partial accumulator from ``start`` on."""
        numbers = [e.add(start, n * lanes) if n else start for n in range(partials)]
        out = []
        for op, before in zip(phase, state):
            nothing, found = red.identity(e, op, 1), []
            for at in numbers:
                loaded = partial(op, e.min(at, split - 1))
                found.append(tuple(e.select(e.cmp("lt", at, split), a, b) for a, b in zip(loaded, nothing)))
            together = red.across_lanes(e, op, tuple(e.from_lanes(list(partials)) for partials in zip(*found)))
            out.append(red.combine(e, op, before, together))
        return out

    def iteration(i: Val, state: list[Val]) -> list[Val]:
        return [v for a in some(e.add(e.cast(i, dt.i32), first), AT_ONCE, red.grouped(phase, state)) for v in a]

    iterations = -(-split // lanes)
    unrolled = iterations // AT_ONCE * AT_ONCE
    # A power of two, as the vectors that are combined.
    left = 1 << (iterations - unrolled - 1).bit_length() if iterations > unrolled else 0
    state = [red.identity(e, op, 1) for op in phase]
    if unrolled:
        low, high = e.const(0, body.index), e.const(unrolled * lanes, body.index)
        flat = [v for a in state for v in a]
        state = red.grouped(phase, body.loop(low, high, AT_ONCE * lanes, flat, iteration))
    if left:
        state = some(e.add(first, unrolled * lanes) if unrolled else first, left, state)
    alone = points == 1
    totals = body.across_block(phase, state, width) if alone else body.across_warp(phase, state, 32, points)
    body.bind(phase, totals, env)
    body.store_at(body.small, env, analysis.kept, e.and_(inside, e.cmp("lt", t, points)))
    return body.finish(sz.ceildiv(kept, block_points))
