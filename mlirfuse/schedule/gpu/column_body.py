"""The GPU kernel for columns: threads iterate down them, or keep them in registers, as ``gpu/columns.py`` chooses."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

from mlirfuse.analysis import joint
from mlirfuse.analysis.phases import Analysis, size_of
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Op, Value
from mlirfuse.lowering import compensated_sums
from mlirfuse.lowering import reductions as red
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.kernel import Env, Index
from mlirfuse.lowering.slots import Slots
from mlirfuse.schedule.gpu.block_columns import BlockColumns
from mlirfuse.schedule.gpu.coalesced_columns import written
from mlirfuse.schedule.gpu.kernel import GpuBody, GpuKernel
from mlirfuse.schedule.gpu.partial import partial_memory, store_partial

# Threads per multiprocessor, by lanes, for split columns of 16-bit floats with full-size outputs.
WRITTEN = {8: 768, 4: 1024}

Place = tuple[Env, Val | None]  # of a row, and the condition under which the row exists (None: always)


class ThreadPlace(NamedTuple):
    """A thread's indices in its block, along the columns and down them; its vector's first column; whether that column
    exists; its env."""

    x: Val
    y: Val
    column: Val
    inside: Val
    env: Env


def place_of(body: GpuBody, p, columns: sz.Size, above: Index, block_column: Index) -> ThreadPlace:
    """The ThreadPlace of this thread in the ``block_column``-th block along ``columns``. Threads beyond the last column
    read the last one."""
    e, lanes, loops = body.e, p.access.lanes, body.analysis.loops(body.analysis.kept)
    x, y = e.and_(body.thread, p.tx - 1), body.quotient(body.thread, p.tx)
    column = e.add(e.mul(body.k.scalar(block_column.base), p.tx * lanes), body.wide(e.mul(x, lanes)))
    inside = e.cmp("lt", column, body.size(columns))
    clamped = e.min(column, e.sub(body.size(columns), lanes))
    env: Env = {}
    body.unlinear(env, loops[:-1], above)
    body.set_loop(env, loops[-1], Index(clamped, 1, lanes) if lanes > 1 else Index(clamped))
    return ThreadPlace(x, y, clamped, inside, env)


def rows_of_partial(body: GpuBody, rows: sz.Size, split: int, partial: Index) -> tuple[Val, Val]:
    """The first row of one of ``split`` parts, and the end."""
    e, low, high = body.e, body.e.const(0, body.index), body.size(rows)
    if split > 1:
        length = body.size(sz.ceildiv(rows, split))
        low = e.min(e.mul(body.k.scalar(partial.base), length), high)
        high = e.min(e.add(low, length), high)
    return low, high


def down_rows(
    body: GpuBody, p, step: int, rows: tuple[Val, Val], at: Callable[[Val], Env], carried: list[Val], visit, loop=None
) -> list[Val]:
    """Run ``visit`` over a thread's rows: every ``step``-th of ``rows``, ``p.unroll`` at a time, in a ``loop``."""
    e, (first, high), span = body.e, rows, step * p.unroll
    loop = loop or body.loop

    def rows_from(i: Val) -> list[Val]:
        return [e.add(i, u * step) if u else i for u in range(p.unroll)]

    def clamped(row: Val) -> Place:
        return at(e.min(row, e.sub(high, 1))), e.cmp("lt", row, high)

    if p.in_registers:
        return visit([clamped(row) for row in rows_from(first)], carried)

    def checked(i: Val, state: list[Val]) -> list[Val]:
        return visit([(at(i), None), *map(clamped, rows_from(i)[1:])], state)

    if p.checked:
        return loop(first, high, span, carried, checked)
    last_start = e.sub(high, (p.unroll - 1) * step)
    iterations = e.div(e.max(e.add(e.sub(last_start, first), span - 1), 0), span)
    rest = e.add(first, e.mul(iterations, span))
    carried = loop(first, rest, span, carried, lambda i, state: visit([(at(row), None) for row in rows_from(i)], state))
    if p.unroll == 1:
        return carried
    if _loaded_at_once(body, p):
        return loop(rest, high, span, carried, checked)
    return loop(rest, high, step, carried, lambda i, state: visit([(at(i), None)], state))


def _loaded_at_once(body: GpuBody, p) -> bool:
    """Whether the remainder of the unrolled loop also loads its rows at once: of 1000 rows, 15 were loaded one after
    the other. Not for full-size outputs, which would need their registers twice: SiLU's gradient and its sum,
    20000×2730 bf16, 242 → 320 µs."""
    return not written(body.analysis) and not p.vectors_per_thread and len(body.analysis.once(joint.online)) == 1


def totals_of(
    body: GpuBody, p, phase: list[Op], step: int, rows: tuple[Val, Val], at: Callable[[Val], Env], visit
) -> list[tuple[Val, ...]]:
    """A thread's accumulators over its rows. ``visit`` carries them, and the other arguments are those of
    :func:`down_rows`."""
    e, lanes = body.e, p.access.lanes
    start = [v for op in phase for v in red.identity(e, op, lanes)]
    if not p.blocks:
        return red.grouped(phase, down_rows(body, p, step, rows, at, start, visit))
    loop = functools.partial(body.summed, phase, p.blocks, start)
    totals = down_rows(body, p, step, rows, at, compensated_sums.nothing(e, phase, lanes), visit, loop)
    return red.grouped(phase, compensated_sums.settled(e, phase, totals))


def accumulated(body: GpuBody, phase: list[Op], places: list[Place], state: list[Val]) -> list[Val]:
    """The accumulators ``state`` updated with the elements at ``places``."""
    e, k = body.e, body.k
    for env, _ in places:
        for op in phase:
            k.value(op.operands[0], env)
    out: list[Val] = []
    for op, before in zip(phase, red.grouped(phase, state)):
        elements = [
            (e.splat(k.value(op.operands[0], env), body.access.lanes), body.position(op, env), there)
            for env, there in places
        ]
        out += red.accumulate(e, op, before, elements)
    return out


def walk_down(name: str, analysis: Analysis, slots: Slots, p) -> GpuKernel:
    """The kernel that computes ``analysis`` with ``p`` (:class:`column_choice.Params`), or partial accumulators if it
    is split."""
    assert p.tx & p.tx - 1 == p.ty & p.ty - 1 == 0
    threads = p.tx * p.ty
    min_blocks_per_sm = (
        max(1, 1024 // threads) if p.blocks else 1
    )  # else ptxas uses too many registers for compensated totals
    down, wide = set(analysis.reduced), written(analysis)
    streamed = [v for v in analysis.inputs if down & set(analysis.axes.flat(v))]
    if (
        not p.blocks and p.split > 1 and wide and all(v.dtype.bytes <= 2 for v in streamed)
    ):  # all parts run concurrently
        min_blocks_per_sm = max(1, WRITTEN.get(p.access.lanes, threads) // threads)
    body = GpuBody(name, analysis, slots, p.access, threads, p.cluster, min_blocks_per_sm)
    e, k = body.e, body.k
    lanes = p.access.lanes
    rank = body.cluster_rank() if p.cluster > 1 else None
    if rank is not None:
        body.cluster_arrive(orders=False)  # the matching wait precedes writes to other blocks' shared memory
    kept_loops, loops = analysis.loops(analysis.kept), analysis.loops(analysis.reduced)
    inner, outer = kept_loops[-1], kept_loops[:-1]
    kept, rows = sz.product(a.size for a in analysis.kept), sz.product(a.size for a in analysis.reduced)
    columns, partials = size_of(inner), p.split * p.coalesced_rows
    if p.coalesced_rows > 1:
        columns, rows = sz.mul(columns, p.coalesced_rows), sz.floordiv(rows, p.coalesced_rows)
    small = [v for v in analysis.outputs if v not in wide]
    late = analysis.late_values()
    early, full = [v for v in wide if v not in late], [v for v in wide if v in late]
    phases = analysis.once(joint.online)

    across = sz.ceildiv(columns, p.tx * lanes)
    q, partial = Index(body.wide(body.quotient(body.block, p.cluster))), Index(0)
    if p.split > 1:
        q, partial = k.divmod(q, p.split)
    elif rank is not None:
        partial = Index(body.wide(rank))
    above, block_column = k.divmod(q, across) if outer else (Index(0), q)
    x, y, first_column, inside, base_env = place_of(body, p, columns, above, block_column)
    low, high = rows_of_partial(body, rows, p.split * p.cluster, partial)
    first = e.add(low, body.wide(y))
    block = BlockColumns(body, p.tx, p.ty, x, y)

    def at(row: Val) -> Env:
        env = dict(base_env)
        if p.coalesced_rows > 1:  # the index of the innermost loop is linear over rows and columns
            body.set_loop(env, inner, Index(e.add(e.mul(row, body.size(columns)), first_column), 1, lanes))
            return env
        body.unlinear(env, loops, Index(row))
        return env

    def over_rows(phase: list[Op]) -> list[tuple[Val, ...]]:
        """Each thread's accumulators over its rows. The first phase also writes outputs that need no reduction."""

        def visit(places: list[Place], state: list[Val]) -> list[Val]:
            out = accumulated(body, phase, places, state)
            if phase is phases[0]:
                store(early, places)
            return out

        return totals_of(body, p, phase, p.ty, (first, high), at, visit)

    def store(values: list[Value], places: list[Place]) -> None:
        for env, there in places:
            valid = inside if there is None else e.and_(inside, there)
            body.store_at(values, env, analysis.domain, valid, predicated=there is None)

    needed = bool(full) or len(phases) > 1 or p.cluster > 1  # by all threads, not only by those that store
    for phase in phases:
        totals = block.combine(phase, over_rows(phase), needed)
        if rank is not None:
            totals = block.across_cluster(phase, totals, rank)
        if partials == 1:
            body.bind(phase, totals, base_env)
        else:
            writes = e.and_(inside, e.cmp("eq", y, 0))
            with k.region(f"scf.if {writes} {{"):
                for op, total in zip(phase, totals):
                    for which, v in enumerate(total):
                        memory = partial_memory(body, op, which, sz.mul(kept, partials))
                        of_part = body.size(sz.mul(kept, p.coalesced_rows))
                        offset = e.add(
                            e.mul(k.scalar(partial.base), of_part),
                            e.add(e.mul(k.scalar(above.base), body.size(columns)), first_column),
                        )
                        store_partial(body, memory, offset, v)  # lanes divide the columns
    if full:

        def write(places, state):
            for env, _ in places:
                for value in full:
                    k.value(value, env)
            store(full, places)
            return []

        down_rows(body, p, p.ty, (first, high), at, [], write)
    if small and partials == 1:
        stores = e.and_(inside, e.cmp("eq", y if rank is None else e.add(y, rank), 0))
        body.store_at(small, base_env, analysis.kept, stores)
    grid = sz.mul(sz.product(size_of(loop) for loop in outer), across, p.split)
    return body.finish(grid)
