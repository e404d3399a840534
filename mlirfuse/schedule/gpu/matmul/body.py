"""The kernel of a matrix product and the ops on its result, for Hopper's tensor cores.

A block computes tiles of the result, one after the other. Its first warp group, the *producer*, has TMA copy tiles of
the operands to a ring of stages in shared memory; the others, the *consumers*, multiply them by ``wgmma`` into
registers: 64 rows of a tile each, or tiles of their own in turns. Two memory barriers of each stage say that it is
full, and that it is empty.

Once a consumer has its sums, it computes the ops on them, writes results to shared memory in rows of 128 bytes, and has
TMA copy them out, while the producer already fills the stages for the next tile. Other matrices that the ops read come
to the stages the same way."""

from __future__ import annotations

from collections.abc import Callable

from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.graph import Value
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.kernel import Index
from mlirfuse.lowering.module import GpuKernel
from mlirfuse.schedule.gpu.kernel import NO_UNROLL
from mlirfuse.schedule.gpu.matmul.epilogue import Epilogue
from mlirfuse.schedule.gpu.matmul.operands import TYPES, UNIT, Matrix
from mlirfuse.schedule.gpu.matmul.params import COLUMNS, ROW, WARP_GROUP, WGMMA_BYTES, WGMMA_M
from mlirfuse.schedule.gpu.matmul.tile_body import Panel, TileBody

PRODUCER_REGISTERS, CONSUMER_REGISTERS = 40, 232  # of a thread; 168 at launch


class MatmulBody(TileBody):
    """Emits the kernel of one product."""

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
                self.wait(self.mbarrier(p.empty_at, now), its)
                fill(self.mbarrier(p.full_at, now), e.mul(now, p.stage_bytes), row, column, e.mul(k, self.tile_k))
                self._yield(*self.next_stage(now, its))
            now, its = Val(f"{loop}#0", dt.i32), Val(f"{loop}#1", dt.i32)
            for panels in self.panels:
                self.wait(self.mbarrier(p.empty_at, now), its)
                self._copy_panels(panels, maps, now, row, column)
                now, its = self.next_stage(now, its)
            self._yield(now, its)

    def _copy_panels(self, panels: list[Panel], maps: dict[Value, str], stage: Val, row: Val, column: Val) -> None:
        """Have TMA copy ``panels`` of the tile at ``row`` and ``column`` to a stage."""
        e, p = self.e, self.p
        full, at = self.mbarrier(p.full_at, stage), e.mul(stage, p.stage_bytes)
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
            address = self.address(e.add(e.add(at, e.mul(here, ROW)), swizzled))
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
            e.line(f"{target} = llvm.addrspacecast {self.address(to)} : !llvm.ptr<3> to !llvm.ptr<7>")
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
        epilogue = Epilogue(self, self.rows_at)
        none = e.fresh()
        e.line(f"{none} = llvm.mlir.zero : {self.struct}")
        used = e.add(self.steps, len(self.panels))  # stages of a tile
        first, step, carried = self.block, self.blocks, [zero, zero]
        if p.apart:
            first, step = e.add(first, e.mul(consumer, step)), e.mul(step, 2)
            carried = [*self._skip(zero, zero, e.mul(consumer, used)), e.xor(consumer, 1)]
        with self._each_tile(first, step, *carried) as (row, column, stage, phase, *turn):
            if turn:
                self.wait(self.mbarrier(p.turns_at, consumer), turn[0])
            self.wait(self.mbarrier(p.full_at, stage), phase)
            started = self._multiply(stage, [none] * p.parts, "zero")
            now, its, before = (Val(e.fresh(), dt.i32) for _ in range(3))
            sums = [e.fresh() for _ in range(p.parts)]
            second, its_phase = self.next_stage(stage, phase)
            types = ", ".join(["i32"] * 3 + [self.struct] * p.parts)
            loop, from_zero = e.fresh(), "".join(f", {name} = {value}" for name, value in zip(sums, started))
            head = (
                f"{loop}:{3 + p.parts} = scf.for {e.fresh()} = {one} to {self.steps} step {one} iter_args({now} = "
                f"{second}, {its} = {its_phase}, {before} = {stage}{from_zero}) -> ({types}) : i32 {{"
            )
            with self.k.region(head, NO_UNROLL):
                self.wait(self.mbarrier(p.full_at, now), its)
                added = self._multiply(now, sums, "one")
                e.line("nvvm.wgmma.wait.group.sync.aligned 1")
                self.release(before)
                after, next_phase = self.next_stage(now, its)
                e.line(f"scf.yield {after}, {next_phase}, {now}, {', '.join(added)} : {types}")
            now, its = Val(f"{loop}#0", dt.i32), Val(f"{loop}#1", dt.i32)
            if turn:
                self._pass_turn(consumer, now, its)
            e.line("nvvm.wgmma.wait.group.sync.aligned 0")
            self.release(Val(f"{loop}#2", dt.i32))
            found = [f"{loop}#{3 + part}" for part in range(p.parts)]
            now, its = epilogue.emit(found, e.add(row, rows), column, now, its)
            self._yield(*((*self._skip(now, its, used), e.xor(turn[0], 1)) if turn else (now, its)))
        with self.leader(self.leads):
            e.line("nvvm.cp.async.bulk.wait_group 0")

    def _pass_turn(self, consumer: Val, stage: Val, phase: Val) -> None:
        """Let the other consumer multiply, once all stages of this one's tile are full, its panels from ``stage`` on,
        too: a wait for a stage tells one phase from the next only, and the other's waits are for later ones."""
        for _ in self.panels:
            self.wait(self.mbarrier(self.p.full_at, stage), phase)
            stage, phase = self.next_stage(stage, phase)
        barrier = self.mbarrier(self.p.turns_at, self.e.xor(consumer, 1))
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
