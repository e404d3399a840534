"""The kernel of a matrix product and the ops on its result, for Hopper's tensor cores.

A block computes tiles of the result, one after the other. Its first warp group, the *producer*, has TMA copy tiles of
the operands to a ring of stages in shared memory; the others, the *consumers*, multiply them by ``wgmma`` into
registers: 64 rows of a tile each, or tiles of their own in turns. Two memory barriers of each stage say that it is
full, and that it is empty.

Once a consumer has its sums, it computes the ops on them, writes results to shared memory in rows of 128 bytes, and has
TMA copy them out, while the producer already fills the stages for the next tile. Other matrices that the ops read come
to the stages the same way."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from mlirfuse.analysis.phases import Analysis
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.graph import Value
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.kernel import Env, Index
from mlirfuse.lowering.module import GpuKernel
from mlirfuse.lowering.slots import Slots
from mlirfuse.schedule.gpu.kernel import NO_UNROLL, GpuBody
from mlirfuse.schedule.gpu.matmul import operands
from mlirfuse.schedule.gpu.matmul.operands import TYPES, UNIT, Matrix
from mlirfuse.schedule.gpu.matmul.params import (
    COLUMNS,
    ROW,
    STAGING,
    WARP_GROUP,
    WARP_ROWS,
    WGMMA_BYTES,
    WGMMA_M,
    Layout,
)
from mlirfuse.schedule.tiling import Tiling

PRODUCER_REGISTERS, CONSUMER_REGISTERS = 40, 232  # of a thread; 168 at launch
_TIMEOUT = 10_000_000  # nanoseconds that a wait for a barrier may suspend a thread, before it looks again


class MatmulBody(GpuBody):
    """Emits the kernel of one product."""

    def __init__(self, name: str, analysis: Analysis, slots: Slots, params: Tiling):
        p = Layout(params)
        super().__init__(name, analysis, slots, p.access, p.threads)
        self.p = p
        found = operands.operands(analysis)
        assert analysis.product is not None
        self.found, self.product = found, analysis.product
        # Whether rows of the operands' tiles are along K in shared memory.
        self.a_along_k, self.b_along_k = (not p.tma or m is None or m.contiguous == 1 for m in found[:2])
        self.dtype = analysis.product.operands[0].dtype
        self.tile_k = ROW // self.dtype.bytes
        added = [found.added[n] for n in p.added]
        all_panels = [
            Panel(matrix, start)
            for block in range(0, p.n, COLUMNS)
            for matrix in added
            for start in range(block, block + COLUMNS, matrix.columns)
        ]
        most = p.panels_per_stage
        self.panels = [all_panels[n : n + most] for n in range(0, len(all_panels), most)]  # of each stage
        self.dynamic_alignment, self.sets_registers = 1024, True  # bytes: the swizzle's period
        self.reserve_dynamic(p.shared_bytes)
        e = self.e
        self.m, self.n, self.depth = (self.i32(size) for size in operands.extents(analysis))
        self.memory = e.fresh()
        e.line(f"{self.memory} = llvm.mlir.addressof @{name}_dynamic : !llvm.ptr<3>")
        self.warp = self._uniform(e.bitcast(e.shr(e.bitcast(self.thread, dt.u32), 5), dt.i32))
        self.lane = e.and_(self.thread, 31)
        self.blocks = self.special("nctaid.x")
        self.down, self.across = self._ceildiv(self.m, p.m), self._ceildiv(self.n, p.n)
        self.tiles, self.steps = e.mul(self.down, self.across), self._ceildiv(self.depth, self.tile_k)
        self.struct = f"!llvm.struct<({', '.join(['f32'] * (p.n // 2))})>"

    def kernel(self) -> GpuKernel:
        """The kernel."""
        e, p = self.e, self.p
        self._initialize()
        with self.k.region(f"scf.if {e.cmp('lt', self.warp, WARP_GROUP // 32)} {{", "} else {"):
            e.line(f"nvvm.setmaxregister decrease {PRODUCER_REGISTERS}")
            if p.tma:
                with self.leader(e.cmp("eq", self.thread, 0)):
                    self._produce()
            else:
                self._produce()
        with self.k.region("", "}"):
            e.line(f"nvvm.setmaxregister increase {CONSUMER_REGISTERS}")
            self._consume()
        return self.finish(p.blocks)

    # ---- numbers

    def i32(self, size) -> Val:
        return self.e.cast(self.size(size), dt.i32)

    def _uniform(self, val: Val) -> Val:
        """``val``, which is equal in all threads of a warp, in a form that ptxas knows to be."""
        zero, mask = self.e.const(0, dt.i32), self.e.const(-1, dt.i32)
        return self.e.op(f"nvvm.shfl.sync idx {mask}, {val}, {zero}, {self.e.const(31, dt.i32)} : i32 -> i32", dt.i32)

    def _ceildiv(self, val: Val, by: int) -> Val:
        """An i32 divided by a number, rounded up."""
        e = self.e
        return e.bitcast(e.div(e.bitcast(e.add(val, by - 1), dt.u32), by), dt.i32)

    # ---- shared memory and barriers

    def _at(self, offset: Val | int) -> str:
        """The address ``offset`` bytes into shared memory."""
        name, val = self.e.fresh(), offset if isinstance(offset, Val) else self.e.const(offset, dt.i32)
        self.e.line(f"{name} = llvm.getelementptr {self.memory}[{val}] : (!llvm.ptr<3>, i32) -> !llvm.ptr<3>, i8")
        return name

    def _barrier(self, at: int, stage: Val) -> str:
        """The barrier of ``stage`` in the array at ``at``."""
        return self._at(self.e.add(self.e.mul(stage, 8), at))

    def _initialize(self) -> None:
        e, p = self.e, self.p
        with self.leader(e.cmp("eq", self.thread, 0)):
            for stage in range(p.stages):
                for at, count in (
                    (p.full_at, 1 if p.tma else WARP_GROUP),
                    (p.empty_at, p.readers),
                ):
                    barrier = self._at(at + 8 * stage)
                    e.line(f"nvvm.mbarrier.init {barrier}, {e.const(count, dt.i32)} : !llvm.ptr<3>, i32")
            for consumer in range(p.consumers if p.apart else 0):
                barrier = self._at(p.turns_at + 8 * consumer)
                e.line(f"nvvm.mbarrier.init {barrier}, {e.const(p.readers, dt.i32)} : !llvm.ptr<3>, i32")
            e.line("nvvm.fence.mbarrier.init")
        self.barrier()

    def fence(self) -> None:
        """Order this thread's accesses to shared memory before those of TMA and ``wgmma`` that follow a barrier."""
        self.e.line("nvvm.fence.proxy {kind = #nvvm.proxy_kind<async.shared>, space = #nvvm.shared_space<cta>}")

    def _wait(self, barrier: str, phase: Val) -> None:
        timeout = self.e.const(_TIMEOUT, dt.i32)
        self.e.line(f"nvvm.mbarrier.try_wait.parity {barrier}, {phase}, {timeout} : !llvm.ptr<3>, i32, i32")

    def _next(self, stage: Val, phase: Val) -> tuple[Val, Val]:
        """The stage after ``stage``, and the phase of its barriers."""
        e = self.e
        after = e.add(stage, 1)
        wraps = e.cmp("eq", after, self.p.stages)
        return e.select(wraps, e.const(0, dt.i32), after), e.select(wraps, e.xor(phase, 1), phase)

    def _skip(self, stage: Val, phase: Val, used: Val) -> tuple[Val, Val]:
        """The stage that is ``used`` stages after ``stage``, and the phase of its barriers."""
        e = self.e
        after = e.add(stage, used)
        times = e.bitcast(e.div(e.bitcast(after, dt.u32), self.p.stages), dt.i32)
        return e.sub(after, e.mul(times, self.p.stages)), e.xor(phase, e.and_(times, 1))

    # ---- loops

    @contextmanager
    def _each_tile(self, first: Val, step: Val, *carried: Val) -> Iterator[tuple[Val, ...]]:
        """A loop over the tiles from ``first`` on by ``step``: the first row and column of a tile, and what is carried
        from one to the next, as :meth:`_yield` at the end of the body says; ``carried`` for the first."""
        e, p, tile = self.e, self.p, Val(self.e.fresh(), dt.i32)
        names = [Val(e.fresh(), dt.i32) for _ in carried]
        given = ", ".join(f"{name} = {value}" for name, value in zip(names, carried))
        head = (
            f"{e.fresh()}:{len(names)} = scf.for {tile} = {first} to {self.tiles} step {step} "
            f"iter_args({given}) -> ({', '.join(['i32'] * len(names))}) : i32 {{"
        )
        with self.k.region(head, NO_UNROLL):
            down, across = self._place(tile)
            yield e.mul(down, p.m), e.mul(across, p.n), *names

    def _place(self, tile: Val) -> tuple[Val, Val]:
        """The row and column of a tile among the tiles, in an order that uses few rows and columns at a time: groups of
        ``group`` rows, each from the first column to the last."""
        e, group = self.e, self.p.group

        def div(a: Val, b: Val | int) -> Val:
            b = b if isinstance(b, Val) else e.const(b, dt.i32)
            return e.bitcast(e.div(e.bitcast(a, dt.u32), e.bitcast(b, dt.u32)), dt.i32)

        of_group = e.mul(self.across, group)
        number = div(tile, of_group)
        above, inside = e.mul(number, group), e.sub(tile, e.mul(number, of_group))
        rows = e.min(e.sub(self.down, above), group)
        across = div(inside, rows)
        return e.add(above, e.sub(inside, e.mul(across, rows))), across

    def _yield(self, *carried: Val | str) -> None:
        self.e.line(f"scf.yield {', '.join(map(str, carried))} : {', '.join(['i32'] * len(carried))}")

    # ---- the producer

    def _produce(self) -> None:
        e, p = self.e, self.p
        fill = self._copies() if p.tma else self._loads
        maps = {panel.matrix.value: self._tensor_map(panel.matrix, p.m) for panels in self.panels for panel in panels}
        zero, one = e.const(0, dt.i32), e.const(1, dt.i32)
        with self._each_tile(self.block, self.blocks, zero, one) as (row, column, stage, phase):
            k, now, its, loop = Val(e.fresh(), dt.i32), Val(e.fresh(), dt.i32), Val(e.fresh(), dt.i32), e.fresh()
            head = (
                f"{loop}:2 = scf.for {k} = {e.const(0, dt.i32)} to {self.steps} step {e.const(1, dt.i32)} "
                f"iter_args({now} = {stage}, {its} = {phase}) -> (i32, i32) : i32 {{"
            )
            with self.k.region(head, NO_UNROLL):
                self._wait(self._barrier(p.empty_at, now), its)
                fill(self._barrier(p.full_at, now), e.mul(now, p.stage_bytes), row, column, e.mul(k, self.tile_k))
                self._yield(*self._next(now, its))
            now, its = Val(f"{loop}#0", dt.i32), Val(f"{loop}#1", dt.i32)
            for panels in self.panels:
                self._wait(self._barrier(p.empty_at, now), its)
                self._copy_panels(panels, maps, now, row, column)
                now, its = self._next(now, its)
            self._yield(now, its)

    def _copy_panels(self, panels: list[Panel], maps: dict[Value, str], stage: Val, row: Val, column: Val) -> None:
        """Have TMA copy ``panels`` of the tile at ``row`` and ``column`` to a stage."""
        e, p = self.e, self.p
        full, at = self._barrier(p.full_at, stage), e.mul(stage, p.stage_bytes)
        size = e.const(len(panels) * p.panel_bytes, dt.i32)
        e.line(f"nvvm.mbarrier.arrive.expect_tx {full}, {size} : !llvm.ptr<3>, i32")
        for n, panel in enumerate(panels):
            to, first = e.add(at, n * p.panel_bytes), e.add(column, panel.start)
            self._copy(maps[panel.matrix.value], panel.matrix, to, row, first, p.m, full)

    def _copies(self) -> Callable[[str, Val, Val, Val, Val], None]:
        """What has TMA fill a stage: of its barrier, its offset, and the first row, column and index along K."""
        e, p, (a, b) = self.e, self.p, self.found[:2]
        assert isinstance(a, Matrix) and isinstance(b, Matrix)
        map_a, map_b = self._tensor_map(a, p.m), self._tensor_map(b, p.n)

        def fill(full: str, at: Val, row: Val, column: Val, depth: Val) -> None:
            size = e.const(p.stage_bytes, dt.i32)
            e.line(f"nvvm.mbarrier.arrive.expect_tx {full}, {size} : !llvm.ptr<3>, i32")
            self._copy(map_a, a, at, row, depth, p.m, full)
            self._copy(map_b, b, e.add(at, p.a_bytes), column, depth, p.n, full)

        return fill

    def _loads(self, full: str, at: Val, row: Val, column: Val, depth: Val) -> None:
        """Have the producer's threads load a stage, with zeros around the operands, as TMA would have laid it out."""
        e, p, (a, b) = self.e, self.p, self.product.operands
        axes = self.analysis.axes
        self._load(a, axes.dims(a), at, row, self.m, depth, p.m)
        self._load(b, axes.dims(b)[::-1], e.add(at, p.a_bytes), column, self.n, depth, p.n)
        self.fence()
        e.line(f"{e.fresh()} = nvvm.mbarrier.arrive {full} : !llvm.ptr<3> -> i64")

    def _load(self, value: Value, dims: list, at: Val, first: Val, extent: Val, depth: Val, rows: int) -> None:
        """Load ``rows`` rows of ``value`` with the axes ``dims``, 16 bytes a thread at a time. ``extent``: its rows."""
        e, units, elements = self.e, ROW // UNIT, UNIT // self.dtype.bytes
        unit, line = e.and_(self.thread, units - 1), self.quotient(self.thread, units)
        step, i = WARP_GROUP // units, Val(e.fresh(), dt.i32)
        head = f"scf.for {i} = {e.const(0, dt.i32)} to {e.const(rows, dt.i32)} step {e.const(step, dt.i32)} : i32 {{"
        with self.k.region(head, NO_UNROLL):
            here = e.add(line, i)
            row, k = e.add(first, here), e.add(depth, e.mul(unit, elements))
            vals = []
            for n in range(elements):
                env: dict = {}
                inside = e.and_(e.cmp("lt", row, extent), e.cmp("lt", e.add(k, n), self.depth))
                for dim, index, most in ((dims[0], row, extent), (dims[1], e.add(k, n), self.depth)):
                    self.k.spread(dim, Index(self.wide(e.min(index, e.sub(most, 1)))), env)
                val = self.k.value(value, env)
                vals.append(e.cast(e.select(inside, val, e.const(0, val.dtype)), value.dtype))
            swizzled = e.mul(e.xor(unit, e.and_(here, 7)), UNIT)
            address = self._at(e.add(e.add(at, e.mul(here, ROW)), swizzled))
            self.shared_store(address, e.from_lanes(vals), UNIT)

    def _tensor_map(self, matrix: Matrix, rows: int) -> str:
        along, other = matrix.contiguous, 1 - matrix.contiguous
        box = (matrix.columns, rows if along == 1 else self.tile_k)
        extents = matrix.extents[along], matrix.extents[other]
        return self.args.tensor_map(matrix.value, matrix.value.dtype, extents, matrix.pitch, box)

    def _copy(self, tensor_map: str, matrix: Matrix, at: Val, row: Val, depth: Val, rows: int, full: str) -> None:
        """Have TMA copy ``rows`` rows of an operand from ``row``, ``depth`` on, to ``at`` in shared memory."""
        e = self.e
        boxes = [(at, depth, row)]
        if matrix.contiguous == 0:
            boxes = [(e.add(at, n * ROW), e.add(row, n), depth) for n in range(0, rows, COLUMNS)]
        for to, x, y in boxes:
            target = e.fresh()
            e.line(f"{target} = llvm.addrspacecast {self._at(to)} : !llvm.ptr<3> to !llvm.ptr<7>")
            e.line(
                f"nvvm.cp.async.bulk.tensor.shared.cluster.global {target}, {tensor_map}, {full}, box[{x}, {y}] : "
                "!llvm.ptr<7>, !llvm.ptr"
            )

    # ---- the consumers

    def _consume(self) -> None:
        e, p = self.e, self.p
        consumer = e.sub(self.quotient(self.warp, WARP_GROUP // 32), 1)
        base = e.fresh()
        e.line(f"{base} = llvm.ptrtoint {self.memory} : !llvm.ptr<3> to i32")
        self.base = Val(base, dt.i32)
        zero, one = e.const(0, dt.i32), e.const(1, dt.i32)
        # The first of this consumer's rows in a tile.
        rows = zero if p.apart else e.mul(consumer, WGMMA_M)
        self.rows_at = e.mul(rows, ROW)
        self.leads = e.cmp("eq", self.lane, 0)
        epilogue = Epilogue(self)
        none = e.fresh()
        e.line(f"{none} = llvm.mlir.zero : {self.struct}")
        used = e.add(self.steps, len(self.panels))  # stages of a tile
        first, step, carried = self.block, self.blocks, [zero, zero]
        if p.apart:
            first, step = e.add(first, e.mul(consumer, step)), e.mul(step, 2)
            carried = [*self._skip(zero, zero, e.mul(consumer, used)), e.xor(consumer, 1)]
        with self._each_tile(first, step, *carried) as (row, column, stage, phase, *turn):
            if turn:
                self._wait(self._barrier(p.turns_at, consumer), turn[0])
            self._wait(self._barrier(p.full_at, stage), phase)
            started = self._multiply(stage, [none] * p.parts, "zero")
            now, its, before = (Val(e.fresh(), dt.i32) for _ in range(3))
            sums = [e.fresh() for _ in range(p.parts)]
            second, its_phase = self._next(stage, phase)
            types = ", ".join(["i32"] * 3 + [self.struct] * p.parts)
            loop, from_zero = e.fresh(), "".join(f", {name} = {value}" for name, value in zip(sums, started))
            head = (
                f"{loop}:{3 + p.parts} = scf.for {e.fresh()} = {one} to {self.steps} step {one} iter_args({now} = "
                f"{second}, {its} = {its_phase}, {before} = {stage}{from_zero}) -> ({types}) : i32 {{"
            )
            with self.k.region(head, NO_UNROLL):
                self._wait(self._barrier(p.full_at, now), its)
                added = self._multiply(now, sums, "one")
                e.line("nvvm.wgmma.wait.group.sync.aligned 1")
                self._release(before)
                after, next_phase = self._next(now, its)
                e.line(f"scf.yield {after}, {next_phase}, {now}, {', '.join(added)} : {types}")
            now, its = Val(f"{loop}#0", dt.i32), Val(f"{loop}#1", dt.i32)
            if turn:
                self._pass_turn(consumer, now, its)
            e.line("nvvm.wgmma.wait.group.sync.aligned 0")
            self._release(Val(f"{loop}#2", dt.i32))
            found = [f"{loop}#{3 + part}" for part in range(p.parts)]
            now, its = epilogue.emit(found, e.add(row, rows), column, now, its)
            self._yield(*((*self._skip(now, its, used), e.xor(turn[0], 1)) if turn else (now, its)))
        with self.leader(self.leads):
            e.line("nvvm.cp.async.bulk.wait_group 0")

    def _pass_turn(self, consumer: Val, stage: Val, phase: Val) -> None:
        """Let the other consumer multiply, once all stages of this one's tile are full, its panels from ``stage`` on,
        too: a wait for a stage tells one phase from the next only, and the other's waits are for later ones."""
        for _ in self.panels:
            self._wait(self._barrier(self.p.full_at, stage), phase)
            stage, phase = self._next(stage, phase)
        barrier = self._barrier(self.p.turns_at, self.e.xor(consumer, 1))
        with self.leader(self.leads):
            self.e.line(f"{self.e.fresh()} = nvvm.mbarrier.arrive {barrier} : !llvm.ptr<3> -> i64")

    def _descriptor(self, at: Val, along_k: bool) -> Val:
        """The descriptor of an operand at the address ``at`` for ``wgmma``: rows of 128 bytes, along K or across it,
        swizzled, in groups of 8."""
        e = self.e
        unit = e.and_(e.shr(e.bitcast(at, dt.u32), 4), 0x3FFF)
        along_rows = 1 if along_k else self.tile_k * ROW >> 4  # not used if K is contiguous
        fixed = 1 << 62 | 8 * ROW >> 4 << 32 | along_rows << 16
        return e.or_(e.cast(unit, dt.u64), fixed)

    def _multiply(self, stage: Val, sums: list[str], scale: str) -> list[str]:
        """Start to add the products of the tiles in ``stage`` to ``sums``, of 64 rows each; "zero" for ``scale``: sums
        start from 0."""
        e, p = self.e, self.p
        at = e.add(self.base, e.mul(stage, p.stage_bytes))
        firsts = [
            self._descriptor(e.add(at, e.add(self.rows_at, part * WGMMA_M * ROW)), self.a_along_k)
            for part in range(p.parts)
        ]
        second = self._descriptor(e.add(at, p.a_bytes), self.b_along_k)
        layouts = "row" if self.a_along_k else "col", "col" if self.b_along_k else "row"
        sums, kind, depth = list(sums), TYPES[self.dtype], WGMMA_BYTES // self.dtype.bytes
        e.line("nvvm.wgmma.fence.aligned")
        for k in range(0, self.tile_k, depth):
            along, across = k * self.dtype.bytes, k * ROW
            steps = [(along if along_k else across) >> 4 for along_k in (self.a_along_k, self.b_along_k)]
            for part, first in enumerate(firsts):
                x, y = (e.add(d, step) if step else d for d, step in zip((first, second), steps))
                shape = f"<m = {WGMMA_M}, n = {p.n}, k = {depth}>"
                before, sums[part] = sums[part], e.fresh()
                e.line(
                    f"{sums[part]} = nvvm.wgmma.mma_async {x}, {y}, {before}, {shape}, "
                    f"D [<f32>, <{scale if k == 0 else 'one'}>], A [<{kind}>, <one>, <{layouts[0]}>], "
                    f"B [<{kind}>, <one>, <{layouts[1]}>] : {self.struct} -> {self.struct}"
                )
        e.line("nvvm.wgmma.commit.group.sync.aligned")
        return sums

    def _release(self, stage: Val) -> None:
        """Signal that this warp has read ``stage``."""
        barrier = self._barrier(self.p.empty_at, stage)
        with self.leader(self.leads):
            self.e.line(f"{self.e.fresh()} = nvvm.mbarrier.arrive {barrier} : !llvm.ptr<3> -> i64")


class Panel(NamedTuple):
    """Columns of a tile of an input other than the operands, as many as are in a row in shared memory, from column
    ``start`` of the tile on."""

    matrix: Matrix
    start: int


class Place(NamedTuple):
    """An element of the result, or a vector of adjacent columns. ``env`` has its indices, or those of the last element
    if it is outside."""

    env: Env
    row: Val
    column: Val


class SubTile(NamedTuple):
    """What a consumer computes of 64 rows of a tile: the ``number`` of the 64 rows among its own, the thread's sums,
    the first row of its warp, and its two rows and their indices."""

    number: int
    values: list[Val]
    warp_row: Val
    rows: tuple[Val, Val]
    envs: tuple[Env, Env]


class Epilogue:
    """Emits the ops on a consumer's sums, and what stores their results.

    A thread has the columns 8 j + 2 (lane mod 4) + (0, 1) of the rows lane / 4 and lane / 4 + 8 of its warp's 16."""

    def __init__(self, body: MatmulBody):
        self.body, self.e, self.k = body, body.e, body.k
        e, p = self.e, body.p
        self.stored: tuple[Matrix, ...] = body.found.stored if p.tma else ()
        self.direct = [*body.found.direct, *([] if p.tma else [matrix.value for matrix in body.found.stored])]
        self.maps = [
            body.args.tensor_map(m.value, m.value.dtype, (m.extents[1], m.extents[0]), m.pitch, (m.columns, WARP_ROWS))
            for m in self.stored
        ]
        warp = e.sub(body.warp, WARP_GROUP // 32)
        self.warp_row = e.mul(e.and_(body.warp, 3), WARP_ROWS)
        self.staging = e.add(e.mul(warp, STAGING), p.staging_at)
        # stmatrix takes from each lane the address of a row of one of four 8 x 8 matrices.
        matrix, row = body.quotient(body.lane, 8), e.and_(body.lane, 7)
        line = e.mul(e.add(row, e.mul(e.and_(matrix, 1), 8)), ROW)
        right = body.quotient(matrix, 2)
        self.units = [e.add(line, e.mul(e.xor(e.add(right, unit), row), 16)) for unit in range(0, 8, 2)]
        self.thread_row = body.quotient(body.lane, 4)
        self.thread_column = e.mul(e.and_(body.lane, 3), 2)
        analysis = body.analysis
        rows, columns = analysis.axes.dims(body.product.result)
        self.loops = analysis.loops(analysis.kept)
        self.rows, self.columns = rows, columns
        m, n, _ = operands.extents(analysis)  # known sizes that are multiples of a tile's need no bounds
        self.full_rows, self.full_columns = isinstance(m, int) and m % p.m == 0, isinstance(n, int) and n % p.n == 0
        # Where a thread's elements are in a warp's rows in shared memory: of its first row, by columns of 8.
        self.elements = {nbytes: self._elements(nbytes) for nbytes in (2, 4)}
        self.panel_at = e.add(body.rows_at, e.mul(self.warp_row, ROW))  # of this warp's rows in a panel

    def _elements(self, nbytes: int) -> list[Val]:
        """The offsets of a thread's two elements of ``nbytes`` in its row, for each 8 columns of 128 bytes."""
        e, line = self.e, self.e.mul(self.thread_row, ROW)
        at = e.mul(self.thread_column, nbytes)
        unit, inside = e.bitcast(e.shr(e.bitcast(at, dt.u32), 4), dt.i32), e.and_(at, UNIT - 1)
        step = 8 * nbytes // UNIT
        units = (e.xor(self.thread_row, e.add(unit, first)) for first in range(0, ROW // UNIT, step))
        return [e.add(e.add(line, inside), e.mul(unit, UNIT)) for unit in units]

    def emit(self, sums: list[str], row: Val, column: Val, stage: Val, phase: Val) -> tuple[Val, Val]:
        """Compute and store the results of the tile of 64 rows for each of ``sums``, from ``row``, ``column`` on. The
        panels of other inputs are in stages from ``stage`` on; returns the stage after them, and its phase."""
        body, e, p = self.body, self.e, self.body.p
        parts = [self._sub_tile(name, e.add(row, n * WGMMA_M), n) for n, name in enumerate(sums)]
        across = e.add(column, self.thread_column)
        stores, panels = itertools.count(), itertools.chain.from_iterable(body.panels)
        taken, of_block = 0, sum(map(len, body.panels)) // (p.n // COLUMNS)
        for start in range(0, p.n, COLUMNS):
            with self.k.forget():
                pairs = [self._pairs(part, start, across) for part in parts]
                for panel in itertools.islice(panels, of_block):
                    at = taken % p.panels_per_stage
                    if at == 0:
                        body._wait(body._barrier(p.full_at, stage), phase)
                    memory = e.add(e.mul(stage, p.stage_bytes), at * p.panel_bytes)
                    for part, its in zip(parts, pairs):
                        here = self._columns(its, panel.start - start, panel.matrix)
                        self._read(panel.matrix.value, here, e.add(memory, part.number * WGMMA_M * ROW))
                    taken += 1
                    if at == p.panels_per_stage - 1 or taken == sum(map(len, body.panels)):
                        body.fence()  # TMA writes the stage next, which is not ordered after threads' loads otherwise
                        body.warp_barrier()
                        body._release(stage)
                        stage, phase = body._next(stage, phase)
                for part, its in zip(parts, pairs):
                    self._store_all(part, its, e.add(column, start), stores)
        return stage, phase

    def _sub_tile(self, sums: str, row: Val, number: int) -> SubTile:
        e, body = self.e, self.body
        values = [e.op(f"llvm.extractvalue {sums}[{n}] : {body.struct}", dt.f32) for n in range(body.p.n // 2)]
        warp_row = e.add(row, self.warp_row)
        first = e.add(warp_row, self.thread_row)
        rows = (first, e.add(first, 8))
        return SubTile(number, values, warp_row, rows, (self._row(rows[0]), self._row(rows[1])))

    def _pairs(self, part: SubTile, start: int, across: Val) -> list[list[Place]]:
        """The thread's elements in 64 columns from ``start`` on: two columns each, by column, then by row."""
        pairs = []
        for j in range(start // 8, (start + COLUMNS) // 8):
            for half in range(2):
                values = part.values[4 * j + 2 * half : 4 * j + 2 * half + 2]
                pairs.append(self._places(values, part.envs[half], part.rows[half], self.e.add(across, 8 * j)))
        return pairs

    def _store_all(self, part: SubTile, pairs: list[list[Place]], column: Val, stores: Iterator[int]) -> None:
        """Store the results of 64 columns from ``column`` on."""
        for matrix, tensor_map in zip(self.stored, self.maps):
            for at in range(0, COLUMNS, matrix.columns):
                here = self._columns(pairs, at, matrix)
                to = self.e.add(column, at), part.warp_row
                self._store(matrix.value, here, tensor_map, next(stores), to)
        for place in itertools.chain.from_iterable(pairs) if self.direct else ():
            self.body.store_at(self.direct, place.env, self.body.analysis.domain, self._inside(place))

    def _inside(self, place: Place) -> Val | None:
        """Whether the result has these elements; None if it has all."""
        e, body = self.e, self.body
        if self.full_rows and self.full_columns:
            return None
        return e.and_(e.cmp("lt", place.row, body.m), e.cmp("lt", place.column, body.n))

    @staticmethod
    def _columns(pairs: list[list[Place]], at: int, matrix: Matrix) -> list[list[Place]]:
        """Those of ``pairs`` that are in a row of ``matrix`` in shared memory, from column ``at`` of 64 on."""
        return pairs[at // 4 : (at + matrix.columns) // 4]

    def _read(self, value: Value, pairs: list[list[Place]], at: Val) -> None:
        """Read the elements of an input at ``pairs`` from shared memory."""
        e, nbytes = self.e, value.dtype.bytes
        at = e.add(at, self.panel_at)
        for n, pair in enumerate(pairs):
            address = self.body._at(e.add(e.add(at, self.elements[nbytes][n // 2]), n % 2 * 8 * ROW))
            both = self.body.shared_load(address, value.dtype, 2, 2 * nbytes)
            for k, place in enumerate(pair):
                self.k.bind_loaded(value, place.env, both if len(pair) == 1 else e.extract(both, k))

    def _places(self, values: list[Val], env: Env, row: Val, column: Val) -> list[Place]:
        """Where these sums of two columns are: one vector, or two elements."""
        e, lanes, found = self.e, self.body.access.lanes, []
        for at in range(0, len(values), lanes):
            first = e.add(column, at)
            inside = self.body.wide(first if self.full_columns else e.min(first, e.sub(self.body.n, lanes)))
            here = dict(env)
            self._spread(here, self.columns, Index(inside, 1, lanes) if lanes > 1 else Index(inside))
            self.k.bind(self.body.product.result, here, e.from_lanes(values[at : at + lanes]))
            found.append(Place(here, row, first))
        return found

    def _row(self, row: Val) -> Env:
        env: Env = {}
        inside = row if self.full_rows else self.e.min(row, self.e.sub(self.body.m, 1))
        self._spread(env, self.rows, Index(self.body.wide(inside)))
        return env

    def _spread(self, env: dict, axes: list, index: Index) -> None:
        """Set ``axes`` of one dimension from its index. Those that are one loop in the memory of every tensor are not
        divided."""
        loops = [[axis for axis in loop if axis in axes] for loop in self.loops]
        env.update(self.body.point([loop for loop in loops if loop], index))

    def _store(self, value: Value, pairs: list[list[Place]], tensor_map: str, number: int, to: tuple[Val, Val]) -> None:
        """Have TMA store 16 rows of 128 bytes of ``value``, whose elements are at ``pairs``, to a column and row: the
        store ``number`` of a tile."""
        body, e = self.body, self.e
        last_of_tile = body.p.parts * sum(body.p.n // matrix.columns for matrix in self.stored) - 1
        same_buffer = number == 0 and last_of_tile % 2 == 0  # as the last store of the tile before
        vals = [[self.k.value(value, place.env) for place in pair] for pair in pairs]
        memory = e.add(self.staging, number % 2 * (STAGING // 2))
        with body.leader(body.leads):
            e.line(f"nvvm.cp.async.bulk.wait_group {0 if same_buffer else 1} {{read}}")
        body.warp_barrier()
        if value.dtype.bytes == 4:
            self._stage_words(vals, memory)
        else:
            self._stage_matrices([self._word(pair, value.dtype) for pair in vals], memory)
        body.fence()
        body.warp_barrier()
        with body.leader(body.leads):
            e.line(
                f"nvvm.cp.async.bulk.tensor.global.shared.cta {tensor_map}, {body._at(memory)}, "
                f"box[{to[0]}, {to[1]}] : !llvm.ptr, !llvm.ptr<3>"
            )
            e.line("nvvm.cp.async.bulk.commit.group")

    def _stage_matrices(self, words: list[str], memory: Val) -> None:
        """Store pairs of 16-bit floats to the buffer at ``memory``, swizzled."""
        for u, unit in enumerate(self.units):
            four = ", ".join(words[4 * u : 4 * u + 4])
            self.e.line(
                f"nvvm.stmatrix {self.body._at(self.e.add(memory, unit))}, {four} {{layout = #nvvm.mma_layout<row>, "
                "shape = #nvvm.ld_st_matrix_shape<m = 8, n = 8>, eltType = #nvvm.ld_st_matrix_elt_type<b16>} : "
                "!llvm.ptr<3>, i32, i32, i32, i32"
            )

    def _stage_words(self, vals: list[list[Val]], memory: Val) -> None:
        """Store pairs of float32 to the buffer at ``memory``, swizzled."""
        e = self.e
        for n, pair in enumerate(vals):
            address = self.body._at(e.add(e.add(memory, self.elements[4][n // 2]), n % 2 * 8 * ROW))
            both = e.from_lanes(pair) if len(pair) > 1 else e.splat(pair[0], 2)
            self.body.shared_store(address, both, 8)

    def _word(self, vals: list[Val], dtype: dt.DType) -> str:
        """Two elements as a register of 16-bit floats."""
        e = self.e
        val = e.from_lanes([e.cast(v, dtype) for v in vals]) if len(vals) > 1 else e.cast(e.splat(vals[0], 2), dtype)
        name = e.fresh()
        e.line(f"{name} = llvm.bitcast {val} : {val.type} to i32")
        return name
