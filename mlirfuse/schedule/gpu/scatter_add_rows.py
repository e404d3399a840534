"""Scatter-add of wide rows on a GPU, by sorting: each row of the result has its own threads, and is written once.

The values are sorted by row with a counting sort. One kernel counts the values of each row and numbers them, a second
assigns each row a range in a list, and a third writes the values' indices there; then each row sums its range in
registers. By comparison, atomic addition (``scatter_add.py``) writes the result first, reads it again, and needs 32-bit
accumulators for 16-bit floats.

A row with many values is split into chunks of ``chunk`` values, each with its own threads. Chunks add their sums
atomically to sums in the workspace, which a last kernel stores. Float sums therefore depend on timing here, too."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from mlirfuse.analysis.axes import Axis
from mlirfuse.analysis.phases import Analysis
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import ops
from mlirfuse.ir import sizes as sz
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.kernel import Env, Index, Memory
from mlirfuse.lowering.module import GpuKernel
from mlirfuse.schedule.gpu.access import access_of, hint_of
from mlirfuse.schedule.gpu.scatter_add import ScatterAddBody, op_of, sums_type
from mlirfuse.schedule.gpu.scheduler import WARP, GpuScheduler
from mlirfuse.schedule.gpu.tuning import heuristics_of
from mlirfuse.schedule.gpu.tuning.heuristics import ScatterAddHeuristics
from mlirfuse.schedule.scheduler import KernelSpec, SizedCall, Sizes, power_from, power_of_two
from mlirfuse.schedule.tiling import Tiling

SORT_THREADS = 256  # threads per block of the kernels that sort
MOST_PER_THREAD = 16
NEAR = 1.1  # costs up to this multiple of the least count as equal
FOUND = 4  # vectors that a thread loads in the time that finding its row's values takes
LIST, CHUNKS, COUNTS = range(3)  # words: the list's length, the number of chunks, and the first row's count


class Chunks(NamedTuple):
    """``chunk``: most values of a chunk, a power of two. A block has ``ty`` rows or chunks, and a thread loads
    ``rows_per_thread`` values before it adds them."""

    chunk: int


class ScatterAddRows(GpuScheduler):
    """Adds values to wide rows selected by indices."""

    name = "scatter_add_rows"
    fields = "access", "tx", "ty", "vectors_per_thread", "rows_per_thread"
    own = Chunks

    def takes(self, analysis: Analysis) -> bool:
        """Whether the innermost loop is along rows of values, so that vectors are. Several index tensors are left to
        atomics."""
        if analysis.scatter_add is None or len(ops.added_at(op_of(analysis).operands)) > 1:
            return False
        loops = analysis.loops(analysis.kept)
        return bool(loops) and loops[-1] in analysis.once(_columns)

    def candidates(self, analysis: Analysis, call: SizedCall) -> Iterator[Tiling]:
        heuristics = heuristics_of(call.properties).scatter_add
        rows, count, width = analysis.values(_sizes, call.sizes)
        if not _worth(analysis, heuristics, rows, count, width):
            return
        access = access_of(analysis, True, call, hint_of(analysis, call))
        vectors = -(-width // access.lanes)
        all_ = (min(rows, count) + count // heuristics.chunk) * vectors  # of all rows and chunks
        busy = max(1, all_ // (call.properties.sm_count * call.properties.threads_per_sm))
        words = sums_type(op_of(analysis)).bits // 32
        most = max(1, min(heuristics.most_across, heuristics.registers // (access.lanes * words), busy))
        layouts = [(tx, n) for tx in (WARP, 2 * WARP, 4 * WARP) for n in range(1, most + 1)] if vectors > WARP else []
        layouts = _best_first(layouts, vectors) or [(power_from(vectors), 1)]

        def params(layout: tuple[int, int], chunk: int, items: int) -> Tiling:
            tx, n = layout
            return Tiling(self.name, access, tx, max(1, heuristics.threads // tx), n, items, own=Chunks(chunk))

        items = max(1, min(heuristics.items_per_thread, heuristics.in_flight // (layouts[0][1] * words)))
        tried = itertools.product(layouts, (heuristics.chunk, 2 * heuristics.chunk), (4, 2, 1))
        found = (params(*given) for given in ((layouts[0], heuristics.chunk, items), *tried))
        yield from (p for p in found if _fits(analysis, p, call.sizes))

    def kernels(self, spec: KernelSpec) -> list[GpuKernel]:
        def body(what: str, threads: int = SORT_THREADS) -> _SortedScatterAdd:
            return _SortedScatterAdd(spec._replace(name=f"{spec.name}{what}"), threads)

        threads = spec.params.tx * spec.params.ty
        return [
            body("_begin").begin(),
            body("_count").count(),
            body("_ranges").assign_ranges(),
            body("_list").fill_list(),
            body("", threads).add(),
            body("_end", threads).end(),
        ]

    def check(self, analysis: Analysis, p: Tiling, call: SizedCall) -> None:
        self.check_access(analysis, p, True, call)
        p.must("chunk", power_of_two(p.own.chunk), "must be a power of two")
        p.must("chunk", _fits(analysis, p, call.sizes), "too many values, or too many words for the sums of chunks")
        for what in ("rows_per_thread", "vectors_per_thread"):
            p.must(what, 1 <= p.value(what) <= MOST_PER_THREAD, f"must be from 1 to {MOST_PER_THREAD}")


def _columns(analysis: Analysis) -> list[list[Axis]]:
    """The loops along a row of values."""
    rows = set(analysis.axes.dims(op_of(analysis).operands[2])[0])
    return [loop for loop in analysis.loops(analysis.kept) if not rows & set(loop)]


def _sizes(analysis: Analysis) -> tuple:
    """The number of rows of the result, of rows of values, and of elements per row."""
    op = op_of(analysis)
    return op.result.shape[0], op.operands[1].shape[0], sz.product(op.result.shape[1:])


def _worth(analysis: Analysis, heuristics: ScatterAddHeuristics, rows: int, count: int, width: int) -> bool:
    """Whether sorting the values is estimated to be faster than adding them in memory."""
    op = op_of(analysis)
    nbytes, few = op.result.dtype.bytes, rows * width <= heuristics.few
    narrow = sums_type(op) is not op.result.dtype
    enough = width * nbytes >= heuristics.row_bytes[narrow] and count * width * nbytes >= heuristics.least_bytes[narrow]
    return enough and not few and (narrow or count * heuristics.rows_a_value >= rows)


def _fits(analysis: Analysis, p: Tiling, env: Sizes) -> bool:
    """Whether 32-bit words hold the numbers of values, and the index type the offsets of words."""
    rows, count, width = analysis.values(_sizes, env)
    chunks = count // p.own.chunk + 1
    words = chunks * width * (sums_type(op_of(analysis)).bits // 32) + rows + chunks + COUNTS
    numbers = max(count + p.own.chunk + MOST_PER_THREAD, rows + chunks)
    return numbers < 1 << 31 and (p.access.index is dt.i64 or words + SORT_THREADS < 1 << 31)


def _best_first(layouts: list[tuple[int, int]], vectors: int) -> list[tuple[int, int]]:
    """(Threads per row, vectors per thread), ordered by the work of all threads of a row: each processes its vectors,
    and finds the values of its row in the time of a few vectors. Among nearly equal costs most threads are first, whose
    tiles leave the fewest partial ones: 16384×8191 bf16 230 µs with 128; 32 take half as long again."""
    cost = {(tx, n): -(-vectors // (tx * n)) * tx * (n + FOUND) for tx, n in layouts}
    near = NEAR * min(cost.values(), default=0)

    def key(layout: tuple[int, int]) -> tuple:
        far = cost[layout] > near
        return far, 0 if far else -layout[0], cost[layout]

    return sorted(layouts, key=key)


class _SortedScatterAdd(ScatterAddBody):
    """The body of one of the kernels."""

    def __init__(self, spec: KernelSpec, threads: int):
        super().__init__(spec, threads)
        analysis, p = spec.analysis, self.p
        self.rows, self.value_rows, self.width = _sizes(analysis)
        self.chunks = sz.floordiv(self.value_rows, p.own.chunk) + 1  # beyond the first chunk of each row, and one more
        nbytes = self.sums_type.bytes
        sums = sz.mul(sz.mul(self.chunks, self.width), nbytes // 4)
        self.cleared = sums + self.rows + self.chunks + COUNTS
        words = self._buffer("words", self.cleared)
        self.between_blocks.add(words.pointer)
        self.words, self.first_word = words, sums
        self.sums = Memory(words.pointer, (), self.sums_type, nbytes)

    def _buffer(self, what: str, count: sz.Size) -> Memory:
        """A workspace buffer of ``count`` words."""
        return self.buffer((self.op, what), count, dt.i32)

    # ---- words

    def _word(self, number: int | sz.Size, at: Val | None = None) -> Val:
        """The offset of a word after the sums."""
        first = self.size(self.first_word + number)
        return first if at is None else self.e.add(first, at)

    def _number(self, at: Val) -> Val:
        """The offset of the word with a chunk's number in its row; 0 there means that the chunk does not exist."""
        return self._word(self.rows + COUNTS, at)

    def _load(self, memory: Memory, at: Val) -> Val:
        return self.buffer_load(memory, at, self.index)

    def _added(self, at: Val, val: Val) -> Val:
        """Add ``val`` atomically to a word, and return its previous value."""
        return self.wide(self.atomic_add(self.k.address(self.words, at), self.e.cast(val, dt.i32)))

    # ---- the kernels that sort

    def begin(self) -> GpuKernel:
        """The kernel that initializes words to 0, and sums to the identity: -0.0 for floats, which preserves the sign
        of zeros."""
        e = self.e

        def one(at: Val) -> None:
            word = e.const(0, dt.i32)
            if self.sums_type.is_float:
                upper = e.cmp("lt", at, self.size(self.first_word))
                if self.sums_type.bits == 64:
                    upper = e.and_(upper, e.cmp("ne", e.and_(at, 1), 0))
                word = e.select(upper, e.const(-(1 << 31), dt.i32), word)
            self.buffer_store(self.words, at, word)

        return self.of_each(self.cleared, one)

    def count(self) -> GpuKernel:
        """The kernel that counts the values of each row, and numbers each value in its row."""

        def one(at: Val) -> None:
            row, inside = self.row_of(self.indices, Index(at))
            with self.leader(inside):
                number = self._added(self._word(COUNTS, row), self.e.const(1, dt.i32))
                self.buffer_store(self._buffer("numbers", self.value_rows), at, number)

        return self.of_each(self.value_rows, one)

    def assign_ranges(self) -> GpuKernel:
        """The kernel that assigns each row a range of the list, in any order of rows, and the chunks after the first of
        each row."""
        e, last = self.e, self.size(self.rows - 1)
        at = self.grid_thread()
        row, inside = e.min(at, last), e.cmp("le", at, last)
        count = e.select(inside, self._load(self.words, self._word(COUNTS, row)), e.const(0, self.index))
        lane, up_to = e.and_(self.thread, WARP - 1), count
        for n in (1, 2, 4, 8, 16):
            up_to = e.select(e.cmp("ge", lane, n), e.add(up_to, self.exchanged(up_to, "up", n)), up_to)
        of_last, zero = e.cmp("eq", lane, WARP - 1), e.const(0, self.index)
        (first,) = self.k.where(of_last, lambda: [self._added(self._word(LIST), up_to)], lambda: [zero], [zero])
        start = e.add(self.exchanged(first, "idx", WARP - 1), e.sub(up_to, count))
        more = e.shr(e.max(e.sub(count, 1), 0), self.p.own.chunk.bit_length() - 1)
        with self.leader(inside):
            self.buffer_store(self._buffer("starts", self.rows), row, start)
            with self.leader(e.cmp("gt", more, 0)):
                chunk = self._added(self._word(CHUNKS), more)
                self.buffer_store(self._buffer("chunks", self.rows), row, chunk)

                def one(n: Val, _: list[Val]) -> None:
                    self.buffer_store(self.words, self._number(e.add(chunk, n)), e.add(n, 1))
                    self.buffer_store(self._buffer("rows", self.chunks), e.add(chunk, n), row)

                self.loop(zero, more, 1, [], one)
        return self.finish(sz.ceildiv(self.rows, self.threads))

    def fill_list(self) -> GpuKernel:
        """The kernel that writes each value's index to its row's range of the list."""

        def one(at: Val) -> None:
            row, inside = self.row_of(self.indices, Index(at))
            with self.leader(inside):
                start = self._load(self._buffer("starts", self.rows), row)
                number = self._load(self._buffer("numbers", self.value_rows), at)
                self.buffer_store(self._buffer("list", self.value_rows), self.e.add(start, number), at)

        return self.of_each(self.value_rows, one)

    # ---- the kernels that add

    def _tiles(self, units: sz.Size) -> tuple[Val, list[tuple[Val, Val]], Val, sz.Size]:
        """This thread's unit, its vectors' columns and whether each is inside the row, whether it has any, and the grid
        size."""
        e, p, lanes = self.e, self.p, self.p.access.lanes
        tile = p.tx * lanes * p.vectors_per_thread
        across = sz.ceildiv(self.width, tile)
        down, along = self.k.divmod(Index(self.wide(self.block)), across)
        x = e.and_(self.thread, p.tx - 1)
        unit = e.add(e.mul(self.k.scalar(down.base), p.ty), self.wide(self.quotient(self.thread, p.tx)))
        first = e.add(e.mul(self.k.scalar(along.base), tile), self.wide(e.mul(x, lanes)))
        last = self.size(self.width - lanes)
        columns = [e.add(first, n * p.tx * lanes) if n else first for n in range(p.vectors_per_thread)]
        places = [(e.min(column, last), e.cmp("le", column, last)) for column in columns]
        there = e.and_(e.cmp("lt", unit, self.size(units)), places[0][1])
        return unit, places, there, sz.mul(sz.ceildiv(units, p.ty), across)

    def _at(self, column: Val) -> Env:
        """The env of the elements of a row from ``column`` on."""
        loops, lanes = self.analysis.once(_columns), self.p.access.lanes
        env = self.point(loops, Index(column))
        return self.placed(env, loops[-1], Index(env[loops[-1][-1]].base, 1, lanes)) if lanes > 1 else env

    def _store_row(self, env: Env, row: Val, total: Val) -> None:
        """Store the operand's elements plus ``total``."""
        here = self.k.at_row(self.op, env, Index(row))
        initial = self.e.cast(self.k.value(self.initial, here), self.sums_type)
        self.k.store(self.op.result, here, self.e.add(self.e.splat(initial, self.p.access.lanes), total))

    def add(self) -> GpuKernel:
        """The kernel that sums the listed values of each row and each chunk."""
        e, k, p, lanes = self.e, self.k, self.p, self.p.access.lanes
        unit, places, there, grid = self._tiles(self.rows + self.chunks)
        zero = e.const(0, self.index)

        def of_chunk() -> list[Val]:
            chunk = e.sub(unit, self.size(self.rows))
            number = self._load(self.words, self._number(chunk))
            row = self._load(self._buffer("rows", self.chunks), chunk)
            return [e.select(e.cmp("gt", number, 0), row, e.const(-1, self.index)), number]

        def value(env: Env, at: Val) -> Val:
            here = dict(env)
            k.spread(k.dims(self.values)[0], Index(at), here)
            return e.splat(e.cast(k.value(self.values, here), self.sums_type), lanes)

        with self.leader(there):
            is_row = e.cmp("lt", unit, self.size(self.rows))
            row, number = k.where(is_row, lambda: [unit, zero], of_chunk, [zero, zero])
            envs = [self._at(column) for column, _ in places]
            with self.leader(e.cmp("ge", row, 0)):
                count = self._load(self.words, self._word(COUNTS, row))
                start = self._load(self._buffer("starts", self.rows), row)
                low = e.add(start, e.mul(number, p.own.chunk))
                high = e.min(e.add(low, p.own.chunk), e.add(start, count))

                def some(first: Val, sums: list[Val]) -> list[Val]:
                    listed, found = self._buffer("list", self.value_rows), []
                    for n in range(p.rows_per_thread):
                        at = e.add(first, n)
                        position = self._load(listed, e.min(at, e.sub(high, 1)))
                        found.append((e.cmp("lt", at, high), [value(env, position) for env in envs]))
                    for inside, vals in found:
                        sums = [e.select(inside, e.add(total, val), total) for total, val in zip(sums, vals)]
                    return sums

                nothing = e.const(-0.0 if self.sums_type.is_float else 0, self.sums_type, lanes)
                totals = self.loop(low, high, p.rows_per_thread, [nothing] * p.vectors_per_thread, some)

                def store(chunk: Val | None) -> None:
                    """Store the totals of a row, or add those of a ``chunk`` to its row's sums."""
                    for env, (column, inside), total in zip(envs, places, totals):
                        with self.leader(inside):
                            if chunk is None:
                                self._store_row(env, row, total)
                                continue
                            first = e.add(e.mul(chunk, self.size(self.width)), column)
                            for lane in range(lanes):
                                at = e.add(first, lane) if lane else first
                                self.atomically(self.sums, at, e.extract(total, lane))

                with k.region(f"scf.if {e.cmp('gt', count, p.own.chunk)} {{", "} else {"):
                    store(self._load(self._buffer("chunks", self.rows), row))
                with k.region("", "}"), self.leader(e.cmp("gt", count, 0) if self.in_place else None):
                    store(None)
        return self.finish(grid)

    def end(self) -> GpuKernel:
        """The kernel that stores the sums of rows with several chunks."""
        e, lanes = self.e, self.p.access.lanes
        chunk, places, there, grid = self._tiles(self.chunks)
        # The second chunk's sums are those of the row.
        with self.leader(there), self.leader(e.cmp("eq", self._load(self.words, self._number(chunk)), 1)):
            row = self._load(self._buffer("rows", self.chunks), chunk)
            first = e.mul(chunk, self.size(self.width))
            for column, inside in places:
                with self.leader(inside):
                    total = self.buffer_load(self.sums, e.add(first, column), self.sums_type, lanes)
                    self._store_row(self._at(column), row, total)
        return self.finish(grid)
