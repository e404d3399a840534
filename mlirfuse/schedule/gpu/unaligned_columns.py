"""Columns of rows whose length vectors do not divide, each reduced by one GPU block.

Rows of 7 elements, read by aligned vectors of 4 (``|`` is a vector's start): the vectors of row 1 start 3 elements
before it, those of row 2 two before, and so on; those of row 4 start with it again, as in every fourth row:

    row 0   |a b c d|e f g      row 2   |f g a b|c d e f|g
    row 1   |e f g a|b c d e|f g        row 3   |g a b c|d e f g|

A row of threads processes rows with the same misalignment. Its accumulators include a few columns before the block's,
which are dropped; those of all rows of threads are combined in shared memory, column by column. There may be several
kept loops, e.g. several matrices, if each matrix has the alignment of the first."""

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


def reduce_unaligned(name: str, analysis: Analysis, slots: Slots, p) -> GpuKernel:
    """The kernel that computes ``analysis`` with ``p``, or partial accumulators
    if it is split. A block computes one vector of columns fewer than its threads read."""
    body = GpuBody(name, analysis, slots, p.access, p.tx * p.ty)
    e, k, lanes = body.e, body.k, p.access.lanes
    *outer, loop = analysis.loops(analysis.kept)
    phase = analysis.once(joint.online)[0]
    columns, rows = size_of(loop), sz.floordiv(sz.product(a.size for a in analysis.reduced), p.coalesced_rows)
    coalesced = body.size(sz.mul(columns, p.coalesced_rows))  # elements after which the misalignment repeats

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
    clamped = e.add(e.add(first_column, body.wide(e.mul(x, lanes))), e.sub(row_begins, shift))
    clamped = e.min(clamped, e.sub(coalesced, lanes))  # nothing is read beyond the last column
    low, high = rows_of_partial(body, rows, p.split, part)

    def at(row: Val) -> Env:
        env = dict(base_env)
        # The index of the innermost loop is linear over rows and columns.
        body.set_loop(env, loop, Index(e.add(e.mul(row, coalesced), clamped), 1, lanes))
        return env

    mine = (e.add(low, body.wide(body.quotient(y, p.coalesced_rows))), high)
    visit = functools.partial(accumulated, body, phase)
    state = totals_of(body, p, phase, p.ty // p.coalesced_rows, mine, at, visit)
    totals = _combine(body, p, phase, state, x, y, e.cast(shift, dt.i32))

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
    """Elements of shared memory to combine one accumulator component of a block's threads."""
    width = (tx + 1) * lanes
    return ty * (width + width // 32)


def _combine(
    body: GpuBody, p, phase: list[Op], totals: list[tuple[Val, ...]], x: Val, y: Val, shift: Val
) -> list[tuple[Val, ...]]:
    """The combined accumulators of the block's column whose number is the thread's. ``shift`` columns of this thread's
    row of threads precede the block's first."""
    e, lanes = body.e, p.access.lanes
    width = shared_elements(p.tx, 1, lanes)
    varying = list(dict.fromkeys(v for total in totals for v in total if e.known(v) is None))
    given = {v: body.reserve(shared_elements(p.tx, p.ty, lanes) * v.dtype.bytes) for v in varying}

    def padded(column: Val) -> Val:
        """The index of a column, after ``lanes`` columns before the first. Every 33rd word is padding, so that the
        vectors of neighbouring threads start in different banks."""
        at = e.add(column, lanes)
        return e.add(at, body.quotient(at, 32))

    row, first = e.mul(y, width), e.sub(e.mul(x, lanes), shift)
    indices = [e.add(row, padded(e.add(first, lane))) for lane in range(lanes)]
    for v in varying:
        for lane, at in enumerate(indices):
            body.shared_store(body.shared_address(given[v], at, v.dtype.bytes), e.extract(v, lane))
    body.barrier()
    own = padded(e.min(body.thread, (p.tx - 1) * lanes - 1))

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
