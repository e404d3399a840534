"""GPU kernels for columns whose threads iterate down them, or keep them in registers or in shared memory, as
``gpu/columns.py`` chooses."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import NamedTuple

from mlirfuse.analysis import joint
from mlirfuse.analysis.phases import Analysis, late_outputs, points_of, row_extents, size_of
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Op, Value
from mlirfuse.lowering import reductions as red
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.kernel import Env, Index
from mlirfuse.schedule.gpu.async_copies import AsyncCopies, streamed_inputs
from mlirfuse.schedule.gpu.kernel import Exchange, GpuBody, GpuKernel
from mlirfuse.schedule.gpu.partial import store_partials
from mlirfuse.schedule.gpu.row_body import Place
from mlirfuse.schedule.scheduler import KernelSpec
from mlirfuse.schedule.tiling import Tiling

# Threads per multiprocessor, by lanes, for split columns of 16-bit floats with full-size outputs.
WRITTEN = {8: 768, 4: 1024}


class ThreadPlace(NamedTuple):
    """A thread's indices in its block, along the columns and down them; its vector's first column; whether that column
    exists; its env."""

    x: Val
    y: Val
    column: Val
    inside: Val
    env: Env


def place_of(body: GpuBody, p: Tiling, columns: sz.Size, above: Index, block_column: Index) -> ThreadPlace:
    """The ThreadPlace of this thread in the ``block_column``-th block along ``columns``. Threads beyond the last column
    read the last one."""
    e, lanes, loops = body.e, p.access.lanes, body.analysis.loops(body.analysis.kept)
    x, y = e.and_(body.thread, p.tx - 1), body.quotient(body.thread, p.tx)
    column = e.add(e.mul(body.k.scalar(block_column.base), p.tx * lanes), body.wide(e.mul(x, lanes)))
    clamped, inside = body.clamped(column, columns, lanes)
    env = body.point(loops[:-1], above)
    return ThreadPlace(x, y, clamped, inside, body.placed(env, loops[-1], Index(clamped, int(lanes > 1), lanes)))


def rows_of_partial(body: GpuBody, rows: sz.Size, split: int, partial: Index) -> tuple[Val, Val]:
    """The first row of one of ``split`` parts, and the end."""
    e, low, high = body.e, body.e.const(0, body.index), body.size(rows)
    if split > 1:
        length = body.size(sz.ceildiv(rows, split))
        low = e.min(e.mul(body.k.scalar(partial.base), length), high)
        high = e.min(e.add(low, length), high)
    return low, high


class RowsDown(NamedTuple):
    """A thread's rows: every ``step``-th from ``first`` up to ``end``, at the envs ``at(row)``, ``p.rows_per_thread``
    at a time."""

    body: GpuBody
    p: Tiling
    step: int
    first: Val
    end: Val
    at: Callable[[Val], Env]

    def visit(self, carried: list[Val], visit, loop=None) -> list[Val]:
        """Run ``visit(places, carried) -> carried`` over the rows, in a ``loop``."""
        e, at, step, first, high, unroll = self.body.e, self.at, self.step, self.first, self.end, self.p.rows_per_thread
        span, loop = step * unroll, loop or self.body.loop

        def rows_from(i: Val) -> list[Val]:
            return [e.add(i, u * step) if u else i for u in range(unroll)]

        def clamped(row: Val) -> Place:
            return Place(at(e.min(row, e.sub(high, 1))), e.cmp("lt", row, high))

        if self.p.persistent:
            return visit([clamped(row) for row in rows_from(first)], carried)

        def checked(i: Val, state: list[Val]) -> list[Val]:
            return visit([Place(at(i), None), *map(clamped, rows_from(i)[1:])], state)

        def full(i: Val, state: list[Val]) -> list[Val]:
            return visit([Place(at(row), None) for row in rows_from(i)], state)

        if not self.p.unmasked:
            return loop(first, high, span, carried, checked)
        last_start = e.sub(high, (unroll - 1) * step)
        iterations = e.div(e.max(e.add(e.sub(last_start, first), span - 1), 0), span)
        rest = e.add(first, e.mul(iterations, span))
        carried = loop(first, rest, span, carried, full)
        if unroll == 1:
            return carried
        if self._loaded_at_once():
            return loop(rest, high, span, carried, checked)
        return loop(rest, high, step, carried, lambda i, state: visit([Place(at(i), None)], state))

    def _loaded_at_once(self) -> bool:
        """Whether the remainder of the unrolled loop also loads its rows at once: of 1000 rows, 15 were loaded one
        after the other. Not for full-size outputs, which would need their registers twice: SiLU's gradient and its sum,
        20000×2730 bf16, 242 → 320 µs."""
        analysis = self.body.analysis
        full, _ = late_outputs(analysis)
        return not full and not self.p.stages and len(analysis.once(joint.online)) == 1

    def reduce(self, phase: list[Op], also: Callable[[list[Place]], object] | None = None) -> list[tuple[Val, ...]]:
        """The thread's accumulators over the rows, at whose places ``also`` runs, too."""
        body, lanes = self.body, self.p.access.lanes

        def visit(places: list[Place], state: list[Val]) -> list[Val]:
            out = body.accumulated(phase, places, state)
            if also:
                also(places)
            return out

        def run(carried: list[Val], loop) -> list[Val]:
            return self.visit(carried, visit, loop)

        return body.totals(phase, self.p.compensation_interval, body.identities(phase, lanes), run, lanes)


def _min_blocks_per_sm(analysis: Analysis, p: Tiling) -> int:
    """The blocks that a multiprocessor should hold, which limits a thread's registers."""
    threads, down = p.tx * p.ty, set(analysis.reduced)
    streamed = [v for v in analysis.inputs if down & set(analysis.axes.flat(v))]
    if p.stages:
        return 1
    if p.compensation_interval:
        return max(1, 1024 // threads)  # else ptxas uses too many registers for compensated totals
    full, _ = late_outputs(analysis)
    if p.split > 1 and full and all(v.dtype.bytes <= 2 for v in streamed):  # all parts run concurrently
        return max(1, WRITTEN.get(p.access.lanes, threads) // threads)
    return 1


class ColumnsBody(GpuBody):
    """The kernel of a segment whose threads walk down columns, or partial accumulators if it is split."""

    def __init__(self, spec: KernelSpec):
        analysis, p = spec.analysis, spec.params
        super().__init__(spec, min_blocks_per_sm=_min_blocks_per_sm(analysis, p))
        self.phases, late = analysis.once(joint.online), analysis.late_values()
        *self.outer, self.inner = analysis.loops(analysis.kept)
        self.kept, self.rows = row_extents(analysis)
        self.columns, self.partials = size_of(self.inner), p.split * p.coalesced_rows
        if p.coalesced_rows > 1:
            self.columns, self.rows = sz.mul(self.columns, p.coalesced_rows), sz.floordiv(self.rows, p.coalesced_rows)
        self.early, self.full = [v for v in self.full if v not in late], [v for v in self.full if v in late]
        self.across = sz.ceildiv(self.columns, p.tx * p.access.lanes)
        q, self.partial = Index(self.wide(self.quotient(self.block, p.cluster))), Index(0)
        if p.split > 1:
            q, self.partial = self.k.divmod(q, p.split)
        elif self.rank is not None and not p.stages:
            self.partial = Index(self.wide(self.rank))
        self.above, block_column = self.k.divmod(q, self.across) if self.outer else (Index(0), q)
        place = place_of(self, p, self.columns, self.above, block_column)
        self.x, self.y, self.first_column, self.inside, self.base_env = place
        self.down = self.rows_down()

    def rows_down(self) -> RowsDown:
        """This thread's rows."""
        p = self.p
        low, high = rows_of_partial(self, self.rows, p.split * p.cluster, self.partial)
        return RowsDown(self, p, p.ty, self.e.add(low, self.wide(self.y)), high, self.at)

    def emit(self) -> GpuKernel:
        """The finished kernel."""
        e, p = self.e, self.p
        needed = bool(self.full) or len(self.phases) > 1 or p.cluster > 1  # by all threads, not only those that store
        for phase in self.phases:
            # The first phase also writes outputs that need no reduction.
            also = (lambda places: self.store(self.early, places)) if self.early and phase is self.phases[0] else None
            totals = self.combine(phase, self.down.reduce(phase, also), needed)
            if self.rank is not None:
                totals = self.across_blocks(phase, totals, self.rank)
            if self.partials == 1:
                self.bind(phase, totals, self.base_env)
            else:
                with self.leader(e.and_(self.inside, e.cmp("eq", self.y, 0))):  # lanes divide the columns
                    store_partials(self, phase, totals, self.own_partial, sz.mul(self.kept, self.partials))
        if self.full:
            self.down.visit([], self.write)
        if self.small and self.partials == 1:
            self.store_at(self.small, self.base_env, self.analysis.kept, e.and_(self.inside, self.has_first_row()))
        return self.finish(sz.mul(points_of(self.outer), self.across, p.split))

    def combine(self, phase: list[Op], totals: list[tuple[Val, ...]], needed: bool) -> list[tuple[Val, ...]]:
        """The accumulators of the block's columns, combined from those of its threads: by a tree reduction if a
        combination is one instruction per lane, else by one exchange. The first row of threads gets the results, or all
        threads if ``needed``."""
        if self.p.ty == 1:
            return totals
        if all(len(total) == 1 for total in totals):
            return [(v,) for v in self._tree_reduce(phase, [v for (v,) in totals], needed)]
        return self._exchanged(phase, totals)

    def _tree_reduce(self, phase: list[Op], vals: list[Val], needed: bool) -> list[Val]:
        """Combine single-component accumulators by a tree reduction over the rows of threads."""
        e, lanes = self.e, self.lanes
        offsets = [self.reserve(self.p.ty * self.p.tx * lanes * v.dtype.bytes) for v in vals]

        def address(offset: int, row: Val, v: Val) -> str:
            return self.shared_address(offset, e.add(e.mul(row, self.p.tx), self.x), v.dtype.bytes * lanes)

        def store() -> None:
            for offset, v in zip(offsets, vals):
                self.shared_store(address(offset, self.y, v), v, min(16, v.dtype.bytes * lanes))

        def load(offset: int, row: Val, v: Val) -> Val:
            return self.shared_load(address(offset, row, v), v.dtype, lanes, min(16, v.dtype.bytes * lanes))

        half = self.p.ty
        while half > 1:
            half //= 2
            with self.leader(e.and_(e.cmp("ge", self.y, half), e.cmp("lt", self.y, 2 * half))):
                store()
            self.barrier()
            other, lower = e.min(e.add(self.y, half), self.p.ty - 1), e.cmp("lt", self.y, half)
            vals = [
                e.select(lower, red.combine(e, op, (v,), (load(offset, other, v),))[0], v)
                for op, offset, v in zip(phase, offsets, vals)
            ]
        if needed:
            with self.leader(e.cmp("eq", self.y, 0)):
                store()
            self.barrier()
            vals = [load(offset, e.const(0, dt.i32), v) for offset, v in zip(offsets, vals)]
        return vals

    def _exchanged(self, phase: list[Op], totals: list[tuple[Val, ...]]) -> list[tuple[Val, ...]]:
        """Combine the accumulators of each column in neighbouring threads, after an exchange through shared memory."""
        e, lanes = self.e, self.lanes
        tile = self.p.tx * lanes
        threads = min(32, max(1, self.p.ty // lanes))  # per column
        partials, at_once = self.p.ty // threads, min(tile, self.p.tx * self.p.ty // threads)
        stride = tile + 1  # padded, so that the rows of a column are in different banks
        given = Exchange(self, totals, self.p.ty * stride)
        found = [
            [self.reserve(tile * v.dtype.bytes) if v in given.offsets else None for v in total] for total in totals
        ]
        own = e.mul(self.x, lanes)
        begin = e.add(e.mul(self.y, stride), own)
        given.store_lanes([e.add(begin, lane) for lane in range(lanes)])
        self.barrier()
        first = e.and_(self.thread, threads - 1)
        group = self.quotient(self.thread, threads)

        for start in range(0, tile, at_once):
            column = e.add(e.and_(group, at_once - 1), start)
            rows = [e.add(first, n * threads) for n in range(partials)]
            indices = [e.add(e.mul(row, stride), column) for row in rows]
            combined = [given.combined(op, total, indices) for op, total in zip(phase, totals)]
            combined = self.across_warp(phase, combined, threads)
            with self.leader(e.cmp("eq", first, 0)):
                for offset, val in itertools.chain(*map(zip, found, combined)):
                    if offset is not None:
                        self.shared_store(self.shared_address(offset, column, val.dtype.bytes), val)
        self.barrier()

        def result_of(offset: int | None, done: Val) -> Val:
            if offset is None:  # a count of rows, the same in every column
                return e.splat(done, lanes)
            at = self.shared_address(offset, own, done.dtype.bytes)
            return self.shared_load(at, done.dtype, lanes, min(16, done.dtype.bytes * lanes))

        return [tuple(map(result_of, offsets, done)) for offsets, done in zip(found, combined)]

    def across_blocks(self, phase: list[Op], totals: list[tuple[Val, ...]], rank: Val) -> list[tuple[Val, ...]]:
        """Combine the accumulators of a cluster's blocks for the columns that they share. Each row of threads writes
        its block's accumulators, which all of its threads hold, into another block's distributed shared memory; there
        must be at least as many rows of threads as blocks."""
        e = self.e
        self.cluster_begins()
        exchange = Exchange(self, totals, self.cluster * self.p.tx, self.lanes)

        def index(block: Val) -> Val:
            return e.add(e.mul(block, self.p.tx), self.x)

        with self.leader(e.cmp("lt", self.y, self.cluster)):
            exchange.store_in_block(index(rank), self.y)
        self.cluster_arrive()
        self.cluster_wait()
        blocks = [index(e.const(block, dt.i32)) for block in range(self.cluster)]

        def combined(op: Op, total: tuple[Val, ...]) -> tuple[Val, ...]:
            of_blocks = [tuple(exchange.load(v, block) for v in total) for block in blocks]
            return functools.reduce(functools.partial(red.combine, e, op), of_blocks)

        return [combined(op, total) for op, total in zip(phase, totals)]

    def has_first_row(self) -> Val:
        """Whether this thread's rows begin with the first of the columns."""
        return self.e.cmp("eq", self.y if self.rank is None else self.e.add(self.y, self.rank), 0)

    def at(self, row: Val) -> Env:
        """The env of this thread's vector of a row."""
        if self.p.coalesced_rows > 1:  # the index of the innermost loop is linear over rows and columns
            linear = self.e.add(self.e.mul(row, self.size(self.columns)), self.first_column)
            return self.placed(self.base_env, self.inner, Index(linear, 1, self.access.lanes))
        return self.point(self.analysis.loops(self.analysis.reduced), Index(row), self.base_env)

    def own_partial(self) -> Val:
        """The offset of this block's partial accumulators."""
        e, k = self.e, self.k
        of_part = self.size(sz.mul(self.kept, self.p.coalesced_rows))
        of_previous = e.mul(k.scalar(self.partial.base), of_part)
        of_columns = e.mul(k.scalar(self.above.base), self.size(self.columns))
        return e.add(of_previous, e.add(of_columns, self.first_column))

    def store(self, values: list[Value], places: list[Place]) -> None:
        """Store full-size outputs."""
        for place in places:
            valid = self.both(self.inside, place.inside)
            self.store_at(values, place.env, self.analysis.domain, valid, predicated=place.inside is None)

    def write(self, places: list[Place], state: list[Val]) -> None:
        """Compute and store full-size outputs that need the reductions."""
        for place in places:
            for value in self.full:
                self.k.value(value, place.env)
        self.store(self.full, places)


class SharedColumns(ColumnsBody):
    """Columns in the shared memory of a block or cluster: memory is read once, whatever the number of phases.

    Each thread copies its part of the block's columns there, and makes its passes over that. The rows are distributed
    among the blocks of a cluster, which exchange the accumulators of the columns that they share."""

    def rows_down(self) -> RowsDown:
        e, p = self.e, self.p
        rank = self.rank or e.const(0, self.block.dtype)
        self.first, self.step = self.wide(e.add(e.mul(rank, p.ty), self.y)), p.ty * p.cluster
        rounded = e.add(e.sub(self.size(self.rows), self.first), self.step - 1)
        self.iterations = e.div(e.max(rounded, 0), self.step)  # of this thread, one per row
        self.streamed, self.early, self.full = streamed_inputs(self.analysis), [], late_outputs(self.analysis)[0]
        self.copies = AsyncCopies(self, self.streamed, p.access.lanes, p.stages)
        return RowsDown(self, p, 1, e.const(0, self.index), self.iterations, self.found)

    def emit(self) -> GpuKernel:
        self.loop(self.down.first, self.down.end, 1, [], self.bring)
        self.copies.wait(0)
        return super().emit()

    def has_first_row(self) -> Val:
        return self.e.cmp("eq", self.first, 0)

    def at(self, row: Val) -> Env:
        return super().at(self.e.add(self.first, self.e.mul(row, self.step)))

    def bring(self, iteration: Val, _: list[Val]) -> None:
        """Copy an iteration's row."""
        env = self.at(iteration)
        self.copies.start(self.e.cast(iteration, self.y.dtype), [(v, env) for v in self.streamed])

    def found(self, iteration: Val) -> Env:
        """The env of an iteration's row, whose copied values are bound."""
        env = self.at(iteration)
        for value, val in zip(self.streamed, self.copies.read(self.e.cast(iteration, self.y.dtype))):
            self.k.bind_loaded(value, env, val)
        return env

    def write(self, places: list[Place], state: list[Val]) -> None:
        for place in places:
            self.store_at(self.full, place.env, self.analysis.domain, self.inside)


def reduce_unaligned(spec: KernelSpec) -> GpuKernel:
    """The kernel for columns of rows whose length vectors do not divide, each reduced by one block, or the kernel of
    partial accumulators if they are split.

    Rows of 7 elements, read by aligned vectors of 4 (``|`` is a vector's start): the vectors of row 1 start 3 elements
    before it, those of row 2 two before, and so on; those of row 4 start with it again, as in every fourth row:

        row 0   |a b c d|e f g      row 2   |f g a b|c d e f|g
        row 1   |e f g a|b c d e|f g        row 3   |g a b c|d e f g|

    A row of threads processes rows with the same misalignment. Its accumulators include a few columns before the
    block's, which are dropped; those of all rows of threads are combined in shared memory, column by column. There may
    be several kept loops, e.g. several matrices, if each matrix has the alignment of the first. A block computes one
    vector of columns fewer than its threads read."""
    body, analysis, p = GpuBody(spec), spec.analysis, spec.params
    e, k, lanes = body.e, body.k, p.access.lanes
    *outer, loop = analysis.loops(analysis.kept)
    phase = analysis.once(joint.online)[0]
    columns, rows = size_of(loop), sz.floordiv(size_of(analysis.reduced), p.coalesced_rows)
    coalesced = body.size(sz.mul(columns, p.coalesced_rows))  # elements after which the misalignment repeats

    tile = (p.tx - 1) * lanes
    across = sz.ceildiv(columns, tile)
    block = Index(body.wide(body.block))
    block, part = k.divmod(block, p.split) if p.split > 1 else (block, Index(0))
    above, block_column = k.divmod(block, across) if outer else (Index(0), block)
    base_env = body.point(outer, above)
    x, y = e.and_(body.thread, p.tx - 1), body.quotient(body.thread, p.tx)
    row_begins = e.mul(body.wide(e.and_(y, p.coalesced_rows - 1)), body.size(columns))
    shift = e.and_(row_begins, lanes - 1)
    first_column = e.mul(k.scalar(block_column.base), tile)
    clamped = e.add(e.add(first_column, body.wide(e.mul(x, lanes))), e.sub(row_begins, shift))
    clamped = e.min(clamped, e.sub(coalesced, lanes))  # nothing is read beyond the last column
    low, high = rows_of_partial(body, rows, p.split, part)

    def at(row: Val) -> Env:  # the index of the innermost loop is linear over rows and columns
        return body.placed(base_env, loop, Index(e.add(e.mul(row, coalesced), clamped), 1, lanes))

    first = e.add(low, body.wide(body.quotient(y, p.coalesced_rows)))
    state = RowsDown(body, p, p.ty // p.coalesced_rows, first, high, at).reduce(phase)
    totals = _combine_unaligned(body, p, phase, state, x, y, e.cast(shift, dt.i32))

    column = e.add(first_column, body.wide(body.thread))
    inside = e.and_(e.cmp("lt", body.thread, tile), e.cmp("lt", column, body.size(columns)))
    if p.split > 1:
        with body.leader(inside):
            kept = size_of(analysis.kept)
            first_kept = e.mul(k.scalar(above.base), body.size(columns))
            offset = e.add(e.mul(k.scalar(part.base), body.size(kept)), e.add(first_kept, column))
            store_partials(body, phase, totals, lambda: offset, sz.mul(kept, p.split))
    else:
        env = body.placed(base_env, loop, Index(e.min(column, e.sub(body.size(columns), 1))))
        body.bind(phase, totals, env)
        body.store_at(analysis.outputs, env, analysis.kept, inside)
    return body.finish(sz.mul(points_of(outer), across, p.split))


def shared_elements(tx: int, ty: int, lanes: int) -> int:
    """Elements of shared memory to combine one accumulator component of a block's threads."""
    width = (tx + 1) * lanes
    return ty * (width + width // 32)


def _combine_unaligned(
    body: GpuBody, p: Tiling, phase: list[Op], totals: list[tuple[Val, ...]], x: Val, y: Val, shift: Val
) -> list[tuple[Val, ...]]:
    """The combined accumulators of the block's column whose number is the thread's. ``shift`` columns of this thread's
    row of threads precede the block's first."""
    e, lanes = body.e, p.access.lanes
    width = shared_elements(p.tx, 1, lanes)
    exchange = Exchange(body, totals, shared_elements(p.tx, p.ty, lanes))

    def padded(column: Val) -> Val:
        """The index of a column, after ``lanes`` columns before the first. Every 33rd word is padding, so that the
        vectors of neighbouring threads start in different banks."""
        at = e.add(column, lanes)
        return e.add(at, body.quotient(at, 32))

    row, first = e.mul(y, width), e.sub(e.mul(x, lanes), shift)
    exchange.store_lanes([e.add(row, padded(e.add(first, lane))) for lane in range(lanes)])
    body.barrier()
    own = padded(e.min(body.thread, (p.tx - 1) * lanes - 1))
    rows = [e.add(own, n * width) for n in range(p.ty)]
    return [exchange.combined(op, total, rows) for op, total in zip(phase, totals)]
