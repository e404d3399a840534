"""Reductions along rows fused with partial sums over rows, on a GPU: the backward of layer norm and RMS norm.

A block processes every ``blocks``-th group of ``ty`` rows. The next group's inputs are prefetched before the current
one is computed. Within a row its threads reduce and write like :mod:`mlirfuse.schedule.gpu.rows`, and add the summands
of the sums over rows to accumulators in registers. At the end the block combines those of its rows, and stores one
partial sum."""

from __future__ import annotations

import functools
from collections.abc import Callable

from mlirfuse.analysis.phases import Analysis
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Op, Value
from mlirfuse.lowering import compensated_sums
from mlirfuse.lowering import reductions as red
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.kernel import Env, Index, Memory
from mlirfuse.schedule.gpu.async_copies import AsyncCopies, streamed_inputs
from mlirfuse.schedule.gpu.row_body import Place, RowsBody, at_own_index
from mlirfuse.schedule.scheduler import KernelSpec
from mlirfuse.schedule.tiling import Tiling

AfterBlock = Callable[[list[Val]], list[Val]]  # of the loop-carried values, after each block of iterations


class SummedRows(RowsBody):
    """Kernel body with ``blocks`` blocks, each of which processes rows in a loop and computes partial sums over them.
    Rows are in registers, or copied to shared memory some iterations before; the sums over them are in registers."""

    def __init__(self, spec: KernelSpec):
        super().__init__(spec)
        analysis, p = spec.analysis, spec.params
        self.partials, self.blocks = analysis.partials, analysis.partials[0].attrs["parts"]
        sums = {op.result for op in self.partials}
        self.full = [v for v in self.full if v not in sums]
        self.number = self.wide(self.block)  # of this block, and its first iteration
        self.streamed = analysis.once(streamed_rows)
        over_rows, inputs = set(analysis.kept), at_own_index(analysis, analysis.inputs)
        by_row = [v for v in inputs if over_rows & set(analysis.axes.flat(v))]
        self.narrow = [v for v in by_row if v not in self.streamed]  # with one element per row
        self.same = [v for v in inputs if v not in by_row]  # shared by all rows
        copied = self.streamed * p.vectors_per_thread
        self.copies = AsyncCopies(self, copied, self.lanes, p.stages) if p.stages else None
        # The offset in shared memory where a block combines the sums of its rows.
        self.sums_offset = self.reserve_dynamic(sums_bytes(analysis, p)) if p.ty > 1 else 0

    def each_iteration(self, carried: list[Val], iteration, after_block=None) -> list[Val]:
        """Run ``iteration(number, carried)`` for every iteration of this block, and ``after_block(carried)`` after each
        ``p.compensation_interval`` of them."""
        iterations = self.size(sz.ceildiv(self.kept, self.p.ty))
        if not (self.p.compensation_interval and after_block):
            return self.loop(self.number, iterations, self.blocks, carried, iteration)

        def one_block(low: Val, high: Val, carried: list[Val]) -> list[Val]:
            return after_block(self.loop(low, high, self.blocks, carried, iteration))

        return self.each_block(self.number, iterations, self.blocks, self.p.compensation_interval, carried, one_block)

    def memories_of_totals(self, op: Op, count: sz.Size) -> list[Memory]:
        """Memory for the compensated totals of a sum over rows, with ``count`` elements per block: the sums, and their
        rounding errors."""
        count, types = sz.mul(count, self.blocks), enumerate(compensated_sums.types(op))
        return [self.buffer((op, "total", component), count, dtype) for component, dtype in types]

    def reduced(self, phase: list[Op], totals: list[tuple[Val, ...]], row: Env) -> None:
        """Bind the reductions of a row, combined from the accumulators of its threads."""
        self.bind(phase, self.across(phase, totals), row)
        if len(self.phases) == 1 and self.p.tx > 32:
            self.barrier()  # the next iteration writes the same shared memory

    def summand(self, op: Op, place: Place) -> Val:
        """The summand of a sum over rows at this place; 0 for a row beyond the last."""
        val = self.e.splat(self.k.value(op.operands[0], place.env), self.lanes)
        return val if self.row_inside is None else self.e.select(self.row_inside, val, 0)

    def partial_env(self, op: Op, place: Place) -> Env:
        """The env of this block's partial sum for the columns at this place."""
        return place.env | {axis: Index(self.number) for axis in self.k.dims(op.result)[0]}

    def _store_own_partial(self, op: Op, place: Place, val: Val) -> None:
        """Store this block's partial sum for the columns at this place."""
        with self.leader(place.inside):
            self.k.store(op.result, self.partial_env(op, place), val)

    # Prefetched values are bound by their indices, so that those along a row are computed once, before the loop.

    @functools.cached_property
    def columns(self) -> list[Place]:
        """The places of this thread's vectors along each row."""
        first, step = self.x_base, self.p.tx * self.lanes
        columns = [self.e.add(first, n * step) if n else first for n in range(self.p.vectors_per_thread)]
        return [self.at({}, column, n >= self.p.unmasked) for n, column in enumerate(columns)]

    def vectors(self, row: Env) -> list[tuple[Value, Env]]:
        """This thread's vectors of a row's streamed inputs."""
        return [(v, row | place.env) for place in self.columns for v in self.streamed]

    def env_later(self, iteration: Val, iterations: int) -> Env:
        """The env of this thread's row, ``iterations`` iterations after ``iteration``, clamped to the last row. Also
        sets ``row_inside`` for that row, until :meth:`arrived` sets it back."""
        e, later = self.e, self.e.add(iteration, iterations * self.blocks) if iterations else iteration
        row = self.row_of(later)
        return self.env_of(row if self.p.ty > 1 else e.min(row, e.sub(self.size(self.kept), 1)))

    def loads(self, iteration: Val, iterations: int) -> list[Val]:
        """Prefetch the row ``iterations`` iterations later to registers, except for inputs that are copied to shared
        memory."""
        with self.k.forget():
            env = self.env_later(iteration, iterations)
            vectors = [] if self.copies else self.vectors(env)
            return [self.k.preload(v, here) for v, here in [*((v, env) for v in self.narrow), *vectors]]

    def visit(self) -> None:
        """Compute all rows of this block."""
        e, stages = self.e, self.p.stages
        for place in self.columns:
            for v in self.same:
                self.k.preload(v, place.env)
        sums = [e.const(0, op.operands[0].dtype.compute, self.lanes) for op in self.partials for _ in self.columns]
        loaded = self.loads(self.number, 0)
        if self.copies:
            for later in range(stages - 1):
                self.copies.start(e.const(later, dt.i32), self.vectors(self.env_later(self.number, later)))
            # The stage of this iteration, and the one that it issues copies to.
            loaded += [e.const(0, dt.i32), e.const(stages - 1, dt.i32)]

        def iteration(number: Val, carried: list[Val]) -> list[Val]:
            following = self.loads(number, 1)
            here = self.arrived(number, carried[len(sums) :], following)
            return self.computed(here, carried[: len(sums)]) + following

        def iterations(after_block: AfterBlock | None = None) -> list[Val]:
            return self.each_iteration(sums + loaded, iteration, after_block)

        done, count = self.in_totals(iterations) if self.p.compensation_interval else iterations(), len(self.columns)
        for at, op in enumerate(self.partials):
            self.store_sums(op, done[at * count : (at + 1) * count])

    def in_totals(self, iterations: Callable[[AfterBlock], list[Val]]) -> list[Val]:
        """The sums over all ``iterations(after_block)``, whose loop carries the sums of one block of iterations. Each
        thread has its own compensated totals in memory."""
        e, p, lanes = self.e, self.p, self.lanes
        own = e.mul(e.add(e.mul(self.number, self.threads), self.wide(self.thread)), p.vectors_per_thread * lanes)
        rounded, count = filter(compensated_sums.rounded, self.partials), self.threads * p.vectors_per_thread * lanes
        memories = {op: self.memories_of_totals(op, count) for op in rounded}
        places = [
            (at * p.vectors_per_thread + vector, op, e.add(own, vector * lanes))
            for at, op in enumerate(self.partials)
            if op in memories
            for vector in range(p.vectors_per_thread)
        ]

        def zero(op: Op) -> Val:
            return e.const(0, op.operands[0].dtype.compute, lanes)

        def added(op: Op, offset: Val, val: Val) -> list[Val]:
            before = [self.buffer_load(memory, offset, memory.dtype, lanes) for memory in memories[op]]
            return compensated_sums.added(e, [op], before, [val])

        def keep(op: Op, offset: Val, vals: list[Val]) -> None:
            for memory, val in zip(memories[op], vals):
                self.buffer_store(memory, offset, val)

        def after_block(carried: list[Val]) -> list[Val]:
            for at, op, offset in places:
                keep(op, offset, added(op, offset, carried[at]))
                carried = [*carried[:at], zero(op), *carried[at + 1 :]]
            return carried

        for _, op, offset in places:
            keep(op, offset, [zero(op)] * len(memories[op]))
        done = iterations(after_block)
        for at, op, offset in places:
            done[at] = compensated_sums.settled(e, [op], added(op, offset, done[at]))[0]
        return done

    def arrived(self, iteration: Val, loaded: list[Val], following: list[Val]) -> Env:
        """The env of an iteration's row. Binds its prefetched inputs, from ``loaded`` or from shared memory, and
        appends to ``following`` what the loop carries to the next iteration."""
        if self.copies:
            *loaded, stage, free = loaded
            self.copies.start(free, self.vectors(self.env_later(iteration, self.p.stages - 1)))
            self.copies.wait(self.p.stages - 1)
            loaded += self.copies.read(stage)
            following += [self.copies.next(stage), self.copies.next(free)]
        here = self.env_of(self.row_of(iteration))
        for (v, env), val in zip([*((v, here) for v in self.narrow), *self.vectors(here)], loaded):
            self.k.bind_loaded(v, env, val)
        return here

    def computed(self, row: Env, sums: list[Val]) -> list[Val]:
        """Reduce and write a row; return ``sums`` plus its summands."""
        places = [place._replace(env=row | place.env) for place in self.columns]
        for phase in self.phases:
            self.reduced(phase, [red.total(self.e, op, self.elements_of(op, places)) for op in phase], row)
        pairs = [(op, place) for op in self.partials for place in places]
        sums = [self.e.add(before, self.summand(op, place)) for before, (op, place) in zip(sums, pairs)]
        for place in places:
            self.store(self.full, place)
        self.write_small(row)
        return sums

    def store_sums(self, op: Op, sums: list[Val]) -> None:
        """Store this block's partial sum, combined from its threads' vectors ``sums``."""
        if self.p.ty == 1:
            for place, val in zip(self.columns, sums):
                self._store_own_partial(op, place, val)
            return
        e, p, lanes, nbytes = self.e, self.p, self.lanes, sums[0].dtype.bytes
        if op is not self.partials[0]:
            self.barrier()  # wait until the previous sum has been read

        def address(y: Val, vector: Val) -> str:
            """The address of a vector in row ``y`` of threads."""
            number = e.add(e.mul(y, p.tx * p.vectors_per_thread), vector)
            return self.dynamic_address(self.sums_offset, e.mul(number, lanes * nbytes))

        align = min(16, lanes * nbytes)
        for n, val in enumerate(sums):
            self.shared_store(address(self.quotient(self.thread, p.tx), e.add(self.x, n * p.tx)), val, align)
        self.barrier()
        for iteration in range(-(-p.vectors_per_thread // p.ty)):
            vector = e.add(self.thread, iteration * self.threads)
            place = self.at({}, self.wide(e.mul(vector, lanes)))
            with self.leader(place.inside):
                addresses = (address(e.const(y, dt.i32), vector) for y in range(p.ty))
                partial_sums = [self.shared_load(at, sums[0].dtype, lanes, align) for at in addresses]
                self.k.store(op.result, self.partial_env(op, place), red.in_pairs(e.add, partial_sums))


def streamed_rows(analysis: Analysis) -> list[Value]:
    """The inputs that vary along rows and columns, and are read at the rows' own indices."""
    return at_own_index(analysis, streamed_inputs(analysis))


def sums_bytes(analysis: Analysis, p: Tiling) -> int:
    """Bytes of shared memory in which a block combines the sums of its rows, one sum after the other."""
    widest = max(op.operands[0].dtype.compute.bytes for op in analysis.partials)
    return p.tx * p.ty * p.width * widest if p.ty > 1 else 0
