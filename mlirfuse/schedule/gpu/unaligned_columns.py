"""Columns of rows that vectors do not divide, all of a column in one block of a GPU.

Rows of 7 elements, read by vectors of 4 (``|`` begins one): the vectors of row 1 begin 3 elements before it, those of
row 2 two before, and so on, and those of row 4 with it again, as in every fourth row:

    row 0   |a b c d|e f g      row 2   |f g a b|c d e f|g
    row 1   |e f g a|b c d e|f g        row 3   |g a b c|d e f g|

A row of threads takes rows that begin alike. What it has is of a few columns before the block's too, of which nothing
is made, and meets in shared memory what the others have, each column at its place. Columns may lie above each other, as
those of several matrices do, where each matrix begins as the first does.
"""

from __future__ import annotations

import functools

from mlirfuse.analysis import joint
from mlirfuse.analysis.phases import Analysis, size_of
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Op
from mlirfuse.lowering import reductions as red
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.kernel import Env, Index
from mlirfuse.lowering.slots import Slots
from mlirfuse.schedule.gpu.column_body import accumulated, rows_of_partial, totals_of
from mlirfuse.schedule.gpu.kernel import GpuBody, GpuKernel
from mlirfuse.schedule.gpu.partial import partial_memory, store_partial


def gather(name: str, analysis: Analysis, slots: Slots, p) -> GpuKernel:
    """The kernel that computes ``analysis`` with ``p`` (``gpu_columns.Params``), or the accumulators of its parts if it
    is split. A block has as many columns less than its threads' vectors as one vector has."""
    body = GpuBody(name, analysis, slots, p.access, p.tx * p.ty)
    e, k, lanes = body.e, body.k, p.access.lanes
    *outer, loop = analysis.loops(analysis.kept)
    phase = analysis.once(joint.online)[0]
    columns, rows = size_of(loop), sz.floordiv(sz.product(a.size for a in analysis.reduced), p.coalesced_rows)
    coalesced = body.size(
        sz.mul(columns, p.coalesced_rows)
    )  # elements of rows that begin differently; then they begin so again

    tile = (p.tx - 1) * lanes
    across = sz.ceildiv(columns, tile)
    block = Index(body.wide(body.block))
    block, part = k.divmod(block, p.split) if p.split > 1 else (block, Index(0))
    above, block_column = k.divmod(block, across) if outer else (Index(0), block)
    base_env: Env = {}
    body.unlinear(base_env, outer, above)
    x, y = e.and_(body.thread, p.tx - 1), body.quotient(body.thread, p.tx)
    row_begins = e.mul(body.wide(e.and_(y, p.coalesced_rows - 1)), body.size(columns))
    shift = e.and_(row_begins, lanes - 1)
    first_column = e.mul(k.scalar(block_column.base), tile)
    held = e.add(e.add(first_column, body.wide(e.mul(x, lanes))), e.sub(row_begins, shift))
    held = e.min(held, e.sub(coalesced, lanes))  # behind the last column nothing is read
    low, high = rows_of_partial(body, rows, p.split, part)

    def at(row: Val) -> Env:
        env = dict(base_env)
        body.set_loop(
            env, loop, Index(e.add(e.mul(row, coalesced), held), 1, lanes)
        )  # memory is one row: a place in it stands for row and column
        return env

    mine = (e.add(low, body.wide(body.quotient(y, p.coalesced_rows))), high)
    visit = functools.partial(accumulated, body, phase)
    state = totals_of(body, p, phase, p.ty // p.coalesced_rows, mine, at, visit)
    totals = _meet(body, p, phase, state, x, y, e.cast(shift, dt.i32))

    column = e.add(first_column, body.wide(body.thread))
    inside = e.and_(e.cmp("lt", body.thread, tile), e.cmp("lt", column, body.size(columns)))
    if p.split > 1:
        with k.region(f"scf.if {inside} {{"):
            kept = sz.product(a.size for a in analysis.kept)
            first_kept = e.mul(k.scalar(above.base), body.size(columns))
            offset = e.add(e.mul(k.scalar(part.base), body.size(kept)), e.add(first_kept, column))
            for op, total in zip(phase, totals):
                for which, v in enumerate(total):
                    store_partial(body, partial_memory(body, op, which, sz.mul(kept, p.split)), offset, v)
    else:
        env = dict(base_env)
        body.set_loop(env, loop, Index(e.min(column, e.sub(body.size(columns), 1))))
        body.bind(phase, totals, env)
        body.store_at(analysis.outputs, env, analysis.kept, inside)
    return body.finish(sz.mul(sz.product(size_of(loop) for loop in outer), across, p.split))


def shared_elements(tx: int, ty: int, lanes: int) -> int:
    """Elements of shared memory in which one accumulator of a block's threads meets."""
    width = (tx + 1) * lanes
    return ty * (width + width // 32)


def _meet(
    body: GpuBody, p, phase: list[Op], totals: list[tuple[Val, ...]], x: Val, y: Val, shift: Val
) -> list[tuple[Val, ...]]:
    """The accumulators of the block's column whose number is the thread's. ``shift`` columns of this thread's row lie
    before the block's first."""
    e, lanes = body.e, p.access.lanes
    width = shared_elements(p.tx, 1, lanes)
    moving = list(dict.fromkeys(v for total in totals for v in total if e.known(v) is None))
    given = {v: body.reserve(shared_elements(p.tx, p.ty, lanes) * v.dtype.bytes) for v in moving}

    def place(column: Val) -> Val:
        """Behind ``lanes`` places for what lies before the first; every 33rd is left out, so that vectors of neighbours
        begin in different banks."""
        at = e.add(column, lanes)
        return e.add(at, body.quotient(at, 32))

    row, first = e.mul(y, width), e.sub(e.mul(x, lanes), shift)
    places = [e.add(row, place(e.add(first, lane))) for lane in range(lanes)]
    for v in moving:
        for lane, at in enumerate(places):
            body.shared_store(body.shared_address(given[v], at, v.dtype.bytes), e.extract(v, lane))
    body.barrier()
    own = place(e.min(body.thread, (p.tx - 1) * lanes - 1))

    def rows_of(v: Val) -> Val:
        if v not in given:
            return e.const(e.known(v), v.dtype, p.ty)
        return e.from_lanes(
            [
                body.shared_load(body.shared_address(given[v], e.add(own, n * width), v.dtype.bytes), v.dtype)
                for n in range(p.ty)
            ]
        )

    return [red.across_lanes(e, op, tuple(map(rows_of, total))) for op, total in zip(phase, totals)]
