"""Columns in the shared memory of a GPU block or cluster: memory is read once, whatever the number of phases.

Each thread copies its part of the block's columns there, and makes its passes over that. The rows are distributed among
the blocks of a cluster, which exchange the accumulators of the columns that they share."""

from __future__ import annotations

from mlirfuse.analysis import joint
from mlirfuse.analysis.phases import Analysis, size_of
from mlirfuse.ir import sizes as sz
from mlirfuse.lowering import reductions as red
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.kernel import Env, Index
from mlirfuse.lowering.slots import Slots
from mlirfuse.schedule.gpu import async_copies
from mlirfuse.schedule.gpu.async_copies import AsyncCopies, streamed_inputs
from mlirfuse.schedule.gpu.block_columns import BlockColumns
from mlirfuse.schedule.gpu.coalesced_columns import written
from mlirfuse.schedule.gpu.column_body import Place, accumulated, down_rows, place_of
from mlirfuse.schedule.gpu.kernel import GpuBody, GpuKernel
from mlirfuse.schedule.tiling import Access


def in_shared(name: str, analysis: Analysis, slots: Slots, p) -> GpuKernel:
    """The kernel that computes ``analysis`` with ``p``."""
    body = GpuBody(name, analysis, slots, p.access, p.tx * p.ty, p.cluster)
    e, k, lanes = body.e, body.k, p.access.lanes
    rank = body.cluster_rank() if p.cluster > 1 else e.const(0, body.block.dtype)
    if p.cluster > 1:
        body.cluster_arrive(orders=False)  # the matching wait precedes writes to other blocks' shared memory
    kept_loops, loops = analysis.loops(analysis.kept), analysis.loops(analysis.reduced)
    inner, outer = kept_loops[-1], kept_loops[:-1]
    columns, rows = size_of(inner), sz.product(a.size for a in analysis.reduced)
    streamed, wide = streamed_inputs(analysis), written(analysis)
    small = [v for v in analysis.outputs if v not in wide]

    across = sz.ceildiv(columns, p.tx * lanes)
    number = Index(body.wide(body.quotient(body.block, p.cluster)))
    above, block_column = k.divmod(number, across) if outer else (Index(0), number)
    x, y, _, inside, base_env = place_of(body, p, columns, above, block_column)
    first, step = body.wide(e.add(e.mul(rank, p.ty), y)), p.ty * p.cluster
    iterations = e.div(e.max(e.add(e.sub(body.size(rows), first), step - 1), 0), step)  # of this thread, one per row
    zero = e.const(0, body.index)
    copies = AsyncCopies(body, streamed, lanes, p.stages)

    def at(iteration: Val) -> Env:
        env = dict(base_env)
        body.unlinear(env, loops, Index(e.add(first, e.mul(iteration, step))))
        return env

    def bring(iteration: Val, _: list[Val]) -> list[Val]:
        env = at(iteration)
        copies.start(e.cast(iteration, y.dtype), [(v, env) for v in streamed])
        return []

    def found(iteration: Val) -> Env:
        env = at(iteration)
        for value, val in zip(streamed, copies.read(e.cast(iteration, y.dtype))):
            k.bind_loaded(value, env, val)
        return env

    body.loop(zero, iterations, 1, [], bring)
    copies.wait(0)
    block = BlockColumns(body, p.tx, p.ty, x, y)
    for phase in analysis.once(joint.online):
        start = [v for op in phase for v in red.identity(e, op, lanes)]
        state = down_rows(
            body,
            p,
            1,
            (zero, iterations),
            found,
            start,
            lambda places, state, phase=phase: accumulated(body, phase, places, state),
        )
        totals = block.combine(phase, red.grouped(phase, state), needed=True)
        if p.cluster > 1:
            totals = block.across_cluster(phase, totals, rank)
        body.bind(phase, totals, base_env)

    def write(places: list[Place], state: list[Val]) -> list[Val]:
        for env, _ in places:
            body.store_at(wide, env, analysis.domain, inside)
        return []

    if wide:
        down_rows(body, p, 1, (zero, iterations), found, [], write)
    if small:
        body.store_at(small, base_env, analysis.kept, e.and_(inside, e.cmp("eq", first, 0)))
    return body.finish(sz.mul(sz.product(size_of(loop) for loop in outer), across))


def possible(analysis: Analysis, access: Access) -> bool:
    """Whether columns can be copied to shared memory."""
    return async_copies.possible(analysis, access, streamed_inputs(analysis), analysis.loops(analysis.kept)[-1][-1])
