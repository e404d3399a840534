"""Reductions along rows fused with partial sums over rows, on a GPU: the backward of layer norm and RMS norm.

A block processes every ``blocks``-th group of ``ty`` rows. The next group's inputs are prefetched before the current
one is computed. Within a row its threads reduce and write like :mod:`mlirfuse.schedule.gpu.rows`, and add the summands
of the sums over rows to accumulators in registers. At the end the block combines those of its rows, and stores one
partial sum."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

from mlirfuse.analysis import stages
from mlirfuse.analysis.phases import Analysis, row_extents
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Op, Value
from mlirfuse.lowering import compensated_sums
from mlirfuse.lowering import reductions as red
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.kernel import Env, Index, Memory
from mlirfuse.lowering.module import GpuKernel
from mlirfuse.schedule.gpu import async_copies
from mlirfuse.schedule.gpu.access import access_of, hint_of
from mlirfuse.schedule.gpu.async_copies import AsyncCopies, streamed_inputs
from mlirfuse.schedule.gpu.row_body import Place, RowsBody, at_own_index, row_inputs
from mlirfuse.schedule.gpu.row_choice import REGISTERS
from mlirfuse.schedule.gpu.rows import check_vectors
from mlirfuse.schedule.gpu.scheduler import GpuScheduler, compensated
from mlirfuse.schedule.gpu.tuning import heuristics_of
from mlirfuse.schedule.gpu.tuning.heuristics import InnerOuterHeuristics
from mlirfuse.schedule.scheduler import KernelSpec, SizedCall, require
from mlirfuse.schedule.tiling import Access, Tiling

COMPENSATED_THREADS_PER_SM = 512  # limits the registers of 16-bit floats
AfterBlock = Callable[[list[Val]], list[Val]]  # of the loop-carried values, after each block of iterations


class InnerOuter(GpuScheduler):
    """Reductions along rows with partial sums over rows."""

    name = "inner_outer"
    fields = (
        "access", "tx", "ty", "vectors_per_thread", "stages", "unmasked", "min_blocks_per_sm", "compensation_interval",
    )  # fmt: skip

    def takes(self, analysis: Analysis) -> bool:
        return bool(analysis.partials) and not analysis.finishing

    def candidates(self, analysis: Analysis, call: SizedCall) -> Iterator[Tiling]:
        rows, _ = analysis.values(row_extents, call.sizes)
        blocks = analysis.partials[0].attrs["parts"]
        for p in self._uncompensated(analysis, call):
            p = compensated(p, analysis, rows // (p.ty * blocks))
            # Limits the registers, of which ptxas would use more for compensated totals with 16-bit floats.
            if p.compensation_interval and analysis.once(_registers)[2]:
                p = p._replace(min_blocks_per_sm=max(p.min_blocks_per_sm, COMPENSATED_THREADS_PER_SM // (p.tx * p.ty)))
            yield p

    def _uncompensated(self, analysis: Analysis, call: SizedCall) -> Iterator[Tiling]:
        access = access_of(analysis, False, call, hint_of(analysis, call))
        _, length = analysis.values(row_extents, call.sizes)
        first = analysis.remembered(_first, access, length, call.properties)
        yield from [first] if first else []
        yield from _ordered(analysis, access, length, call.properties)

    def kernels(self, spec: KernelSpec) -> list[GpuKernel]:
        rows = SummedRows(spec)
        rows.visit()
        return [rows.finish(rows.blocks)]

    def check(self, analysis: Analysis, p: Tiling, call: SizedCall) -> None:
        self.check_access(analysis, p, False, call)
        _, length = analysis.values(row_extents, call.sizes)
        check_vectors(p, length)
        nbytes = sums_bytes(analysis, p)
        if p.stages:
            p.must("stages", p.stages > 1, "must be 0, or at least 2")
            require(call.properties.async_copies, f"stages: {call.properties.chip} has no asynchronous copies")
            require(analysis.once(_copyable, p.access), "stages: rows cannot be copied to shared memory")
            nbytes += p.stages * p.tx * p.ty * p.width * analysis.once(_registers)[1]
        room = call.properties.shared_per_block
        require(nbytes <= room, f"stages, ty: need {nbytes} bytes of shared memory, a block has {room}")


def _first(analysis: Analysis, *given) -> Tiling | None:
    return next(_ordered(analysis, *given), None)


def _ordered(analysis: Analysis, access: Access, length: int, properties) -> Iterator[Tiling]:
    """Parameters for rows of this length, best first; none for rows that a block's registers do not hold.

    A block has as many rows as make 256 threads, or 128 if each widens many elements. If all threads have the same
    number of vectors, rows are copied through shared memory two iterations ahead. Otherwise one iteration ahead, for
    short rows of 16-bit floats and for rows of 1024 threads, which have no registers for the next one; for other rows
    the bounds check of each copy costs more than it gains, and for the shortest rows the copies themselves do."""
    lanes, (registers, nbytes, reduced_precision) = access.lanes, analysis.once(_registers)
    heuristics = heuristics_of(properties).inner_outer
    room = properties.shared_per_block // 2 - heuristics.left_shared  # two blocks per multiprocessor

    def without_copies() -> Iterator[Tiling]:
        for tx, vectors_per_thread in _places(length, lanes, lanes * registers, reduced_precision, heuristics):
            usual, less, more = heuristics.block, heuristics.block // 2, heuristics.block * 2
            much = vectors_per_thread * lanes > heuristics.widened or vectors_per_thread == heuristics.most_per_thread
            threads = (less, usual, more) if much else (usual, more, less)
            # Several rows per block only if a row has few threads.
            for ty in [*(n // tx for n in threads if tx < heuristics.block and n > tx), 1]:
                unmasked = vectors_per_thread - (tx * vectors_per_thread * lanes > length)
                p = Tiling("inner_outer", access, tx, ty, vectors_per_thread, unmasked=unmasked)
                if sums_bytes(analysis, p) <= room:
                    yield p

    in_shared = properties.async_copies and analysis.once(_copyable, access)
    for p in without_copies():
        iteration, others = p.tx * p.ty * p.width * nbytes, sums_bytes(analysis, p)
        most = room if p.tx < 1024 else 2 * room  # the registers of 1024 threads leave one block
        exact = p.unmasked == p.vectors_per_thread
        stages = heuristics.stages[exact] if in_shared else ()
        prefetched = [p._replace(stages=n) for n in stages if n * iteration + others <= most]
        odd = (p.tx > 512 and lanes > 1) or (8 < p.tx < 256 and lanes > 2 and reduced_precision)
        first = p.tx > 8 if exact else odd
        yield from [*prefetched, p] if first else [p, *prefetched]
    yield from (p._replace(min_blocks_per_sm=r) for p in without_copies() for r in (2, 3, 4) if r * p.tx * p.ty <= 1024)


@functools.lru_cache
def _places(
    length: int, lanes: int, registers: float, reduced_precision: bool, heuristics: InnerOuterHeuristics
) -> list[tuple[int, int]]:
    """(Threads per row, vectors per thread), best first. A thread uses ``registers`` per vector for inputs of this and
    the next iteration and for accumulators: at most 96, and about 64 if there is a choice, except for long odd rows of
    16-bit floats. Preferred are few threads per row, all with the same number of vectors or few with fewer."""
    vectors = -(-length // lanes)

    def cost(place: tuple[int, int]) -> tuple:
        tx, vectors_per_thread = place
        over = tx * vectors_per_thread * lanes - length  # elements of threads beyond the row's end
        long = over and reduced_precision and tx >= heuristics.long_threads
        if vectors_per_thread > (heuristics.most_per_thread_long if long else heuristics.most_per_thread):
            return (True, 0, -tx)
        most = heuristics.most_registers if long else heuristics.registers
        return (False, over, vectors_per_thread * registers > most, tx)

    places = [(tx, -(-vectors // tx)) for tx in (1024, 512, 256, 128, 64, 32, 16, 8)]
    fitting = [p for p in places if p[1] * registers <= heuristics.most_registers and (p[0] == 8 or p[0] < 2 * vectors)]
    return sorted(fitting, key=cost)


def _registers(analysis: Analysis) -> tuple[float, int, bool]:
    """Per element of a row, for all streamed inputs and sums: registers per thread, bytes of the inputs, and whether
    those are 16-bit floats."""
    sizes = [v.dtype.bytes for v in analysis.once(streamed_rows)]
    return len(analysis.partials) + sum(sizes) / 2, sum(sizes), max(sizes, default=4) < 4


def rereading_is_cheaper(analysis: Analysis, env: dict[str, int]) -> bool:
    """Whether reading the inputs of the sums again takes no more bytes than writing and reading partial sums: there are
    few rows."""
    return _more_to_read(analysis, env) <= 0


def separate_is_faster(analysis: Analysis, p: Tiling, call: SizedCall) -> bool:
    """Whether separate kernels for rows and columns are faster than one pass over the rows.

    They are if a multiprocessor's registers do not hold a row of each input, sum and weight, or if reading the inputs
    again is faster than writing and reading the partial sums plus the prologue and epilogue of blocks; an eighth of
    that counts for rows that are read element by element, because other kernels suffer more from that."""
    _, length = analysis.values(row_extents, call.sizes)
    streamed, shared = analysis.once(row_inputs)
    registers = p.vectors_per_thread * p.access.lanes * p.tx * (len(streamed) + len(shared) + len(analysis.partials))
    if registers > REGISTERS:
        return True
    heuristics = heuristics_of(call.properties).inner_outer
    share = heuristics.beginning_elements if p.access.lanes == 1 else 1
    beginning = heuristics.beginning * len(analysis.partials) / share
    return length * _more_to_read(analysis, call.sizes) < beginning


def _more_to_read(analysis: Analysis, env: dict[str, int]) -> int:
    """Bytes per column for reading the inputs of the sums again, minus those for writing and reading partial sums."""
    rows, _ = analysis.values(row_extents, env)
    row, partial_sums = analysis.once(_column_bytes)
    return rows * row - 2 * partial_sums


def _column_bytes(analysis: Analysis) -> tuple[int, int]:
    """Bytes per column of the inputs of the sums in each row, and of the partial sums."""
    return sum(v.dtype.bytes for v in analysis.once(stages.read_again)), sum(
        op.attrs["parts"] * op.result.dtype.compute.bytes for op in analysis.partials
    )


def _copyable(analysis: Analysis, access: Access) -> bool:
    """Whether rows can be copied asynchronously to shared memory."""
    lane = analysis.loops(analysis.reduced)[-1][-1]
    return async_copies.possible(analysis, access, analysis.once(streamed_rows), lane)


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
