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
    """Run ``visit`` over a thread's rows: every ``step``-th of ``rows``, ``p.rows_per_thread`` at a time, in a
    ``loop``."""
    e, (first, high), span = body.e, rows, step * p.rows_per_thread
    loop = loop or body.loop

    def rows_from(i: Val) -> list[Val]:
        return [e.add(i, u * step) if u else i for u in range(p.rows_per_thread)]

    def clamped(row: Val) -> Place:
        return at(e.min(row, e.sub(high, 1))), e.cmp("lt", row, high)

    if p.persistent:
        return visit([clamped(row) for row in rows_from(first)], carried)

    def checked(i: Val, state: list[Val]) -> list[Val]:
        return visit([(at(i), None), *map(clamped, rows_from(i)[1:])], state)

    if not p.unmasked:
        return loop(first, high, span, carried, checked)
    last_start = e.sub(high, (p.rows_per_thread - 1) * step)
    iterations = e.div(e.max(e.add(e.sub(last_start, first), span - 1), 0), span)
    rest = e.add(first, e.mul(iterations, span))
    carried = loop(first, rest, span, carried, lambda i, state: visit([(at(row), None) for row in rows_from(i)], state))
    if p.rows_per_thread == 1:
        return carried
    if _loaded_at_once(body, p):
        return loop(rest, high, span, carried, checked)
    return loop(rest, high, step, carried, lambda i, state: visit([(at(i), None)], state))


def _loaded_at_once(body: GpuBody, p) -> bool:
    """Whether the remainder of the unrolled loop also loads its rows at once: of 1000 rows, 15 were loaded one after
    the other. Not for full-size outputs, which would need their registers twice: SiLU's gradient and its sum,
    20000×2730 bf16, 242 → 320 µs."""
    return not written(body.analysis) and not p.stages and len(body.analysis.once(joint.online)) == 1


def totals_of(
    body: GpuBody, p, phase: list[Op], step: int, rows: tuple[Val, Val], at: Callable[[Val], Env], visit
) -> list[tuple[Val, ...]]:
    """A thread's accumulators over its rows. ``visit`` carries them, and the other arguments are those of
    :func:`down_rows`."""
    e, lanes = body.e, p.access.lanes
    start = [v for op in phase for v in red.identity(e, op, lanes)]
    if not p.compensation_interval:
        return red.grouped(phase, down_rows(body, p, step, rows, at, start, visit))
    loop = functools.partial(body.summed, phase, p.compensation_interval, start)
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
    """The kernel that computes ``analysis`` with ``p`` (of the columns scheduler), or partial accumulators if it
    is split."""
    return _Kernel(name, analysis, slots, p).emit()


def _min_blocks_per_sm(analysis: Analysis, p) -> int:
    """The blocks that a multiprocessor should hold, which limits a thread's registers."""
    threads, down = p.tx * p.ty, set(analysis.reduced)
    streamed = [v for v in analysis.inputs if down & set(analysis.axes.flat(v))]
    if p.compensation_interval:
        return max(1, 1024 // threads)  # else ptxas uses too many registers for compensated totals
    if p.split > 1 and written(analysis) and all(v.dtype.bytes <= 2 for v in streamed):  # all parts run concurrently
        return max(1, WRITTEN.get(p.access.lanes, threads) // threads)
    return 1


class _Kernel:
    """The kernel of a segment whose threads walk down columns."""

    def __init__(self, name: str, analysis: Analysis, slots: Slots, p):
        assert p.tx & p.tx - 1 == p.ty & p.ty - 1 == 0
        self.analysis, self.p = analysis, p
        wide = written(analysis)
        self.body = body = GpuBody(
            name, analysis, slots, p.access, p.tx * p.ty, p.cluster, _min_blocks_per_sm(analysis, p)
        )
        self.e, self.k, self.lanes = e, k, lanes = body.e, body.k, p.access.lanes
        self.rank = rank = body.cluster_rank() if p.cluster > 1 else None
        if rank is not None:
            body.cluster_arrive(orders=False)  # the matching wait precedes writes to other blocks' shared memory
        *self.outer, self.inner = analysis.loops(analysis.kept)
        self.loops = analysis.loops(analysis.reduced)
        self.kept, rows = sz.product(a.size for a in analysis.kept), sz.product(a.size for a in analysis.reduced)
        self.columns, self.partials = size_of(self.inner), p.split * p.coalesced_rows
        if p.coalesced_rows > 1:
            self.columns, rows = sz.mul(self.columns, p.coalesced_rows), sz.floordiv(rows, p.coalesced_rows)
        late = analysis.late_values()
        self.small = [v for v in analysis.outputs if v not in wide]
        self.early, self.full = [v for v in wide if v not in late], [v for v in wide if v in late]
        self.phases = analysis.once(joint.online)

        self.across = across = sz.ceildiv(self.columns, p.tx * lanes)
        q, self.partial = Index(body.wide(body.quotient(body.block, p.cluster))), Index(0)
        if p.split > 1:
            q, self.partial = k.divmod(q, p.split)
        elif rank is not None:
            self.partial = Index(body.wide(rank))
        self.above, block_column = k.divmod(q, across) if self.outer else (Index(0), q)
        place = place_of(body, p, self.columns, self.above, block_column)
        x, self.y, self.first_column, self.inside, self.base_env = place
        low, high = rows_of_partial(body, rows, p.split * p.cluster, self.partial)
        self.part = e.add(low, body.wide(self.y)), high
        self.block = BlockColumns(body, p.tx, p.ty, x, self.y)

    def emit(self) -> GpuKernel:
        """The finished kernel."""
        e, p = self.e, self.p
        needed = bool(self.full) or len(self.phases) > 1 or p.cluster > 1  # by all threads, not only those that store
        for phase in self.phases:
            totals = self.block.combine(phase, self.over_rows(phase), needed)
            if self.rank is not None:
                totals = self.block.across_cluster(phase, totals, self.rank)
            if self.partials == 1:
                self.body.bind(phase, totals, self.base_env)
            else:
                self.store_partials(phase, totals)
        if self.full:
            down_rows(self.body, p, p.ty, self.part, self.at, [], self.write)
        if self.small and self.partials == 1:
            first = e.cmp("eq", self.y if self.rank is None else e.add(self.y, self.rank), 0)
            self.body.store_at(self.small, self.base_env, self.analysis.kept, e.and_(self.inside, first))
        return self.body.finish(sz.mul(sz.product(size_of(loop) for loop in self.outer), self.across, p.split))

    def at(self, row: Val) -> Env:
        """The env of this thread's vector of a row."""
        e, body, env = self.e, self.body, dict(self.base_env)
        if self.p.coalesced_rows > 1:  # the index of the innermost loop is linear over rows and columns
            index = Index(e.add(e.mul(row, body.size(self.columns)), self.first_column), 1, self.lanes)
            body.set_loop(env, self.inner, index)
            return env
        body.unlinear(env, self.loops, Index(row))
        return env

    def over_rows(self, phase: list[Op]) -> list[tuple[Val, ...]]:
        """Each thread's accumulators over its rows. The first phase also writes outputs that need no reduction."""

        def visit(places: list[Place], state: list[Val]) -> list[Val]:
            out = accumulated(self.body, phase, places, state)
            if phase is self.phases[0]:
                self.store(self.early, places)
            return out

        return totals_of(self.body, self.p, phase, self.p.ty, self.part, self.at, visit)

    def store(self, values: list[Value], places: list[Place]) -> None:
        """Store full-size outputs."""
        for env, there in places:
            valid = self.inside if there is None else self.e.and_(self.inside, there)
            self.body.store_at(values, env, self.analysis.domain, valid, predicated=there is None)

    def store_partials(self, phase: list[Op], totals: list[tuple[Val, ...]]) -> None:
        """Store the accumulators of a part of the rows in the workspace."""
        e, k, body = self.e, self.k, self.body
        writes = e.and_(self.inside, e.cmp("eq", self.y, 0))
        with k.region(f"scf.if {writes} {{"):
            for op, total in zip(phase, totals):
                for which, v in enumerate(total):
                    memory = partial_memory(body, op, which, sz.mul(self.kept, self.partials))
                    of_part = body.size(sz.mul(self.kept, self.p.coalesced_rows))
                    offset = e.add(
                        e.mul(k.scalar(self.partial.base), of_part),
                        e.add(e.mul(k.scalar(self.above.base), body.size(self.columns)), self.first_column),
                    )
                    store_partial(body, memory, offset, v)  # lanes divide the columns

    def write(self, places: list[Place], state: list[Val]) -> list[Val]:
        """Compute and store full-size outputs that need the reductions."""
        for env, _ in places:
            for value in self.full:
                self.k.value(value, env)
        self.store(self.full, places)
        return []
