"""The kernel of a matrix product and the ops on its result, for Hopper's tensor cores.

A block computes tiles of the result, one after the other. Its first warp group, the *producer*, has TMA copy tiles of
the operands to a ring of stages in shared memory; the others, the *consumers*, multiply them by ``wgmma`` into
registers: 64 rows of a tile each, or tiles of their own in turns. Two memory barriers of each stage say that it is
full, and that it is empty.

Once a consumer has its sums, it computes the ops on them, writes results to shared memory in rows of 128 bytes, and has
TMA copy them out, while the producer already fills the stages for the next tile. Other matrices that the ops read come
in panels of 64 rows of 128 bytes: each consumer has some in shared memory, which a warp of the producer's fills for it
while the operands' stages are filled and multiplied."""

from __future__ import annotations

from collections.abc import Callable

from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.graph import Value
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.kernel import Index
from mlirfuse.lowering.module import GpuKernel
from mlirfuse.schedule.gpu.kernel import NO_UNROLL
from mlirfuse.schedule.gpu.matmul.epilogue import Epilogue
from mlirfuse.schedule.gpu.matmul.operands import UNIT, Matrix, multiplied
from mlirfuse.schedule.gpu.matmul.params import COLUMNS, PANEL_BYTES, ROW, WARP_GROUP, WGMMA_BYTES, WGMMA_M
from mlirfuse.schedule.gpu.matmul.tile_body import TileBody

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
                for consumer in range(p.consumers if self.panels else 0):
                    with self.leader(e.cmp("eq", self.thread, 32 * (1 + consumer))):
                        self._copy_panels(consumer)
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
            self._yield(Val(f"{loop}#0", dt.i32), Val(f"{loop}#1", dt.i32))

    def _copy_panels(self, consumer: int) -> None:
        """Have TMA copy the panels of a consumer's tiles."""
        e, p = self.e, self.p
        maps = {panel.matrix.value: self._tensor_map(panel.matrix, WGMMA_M) for panel in self.panels}
        first, step, rows = self._tiles_of(e.const(consumer, dt.i32))
        with self._each_tile(first, step, e.const(0, dt.i32), e.const(1, dt.i32)) as (row, column, at, phase):
            for matrix, part, start in self.panels:
                number = e.add(at, consumer * p.panels)
                self.wait(self.mbarrier(p.panel_empty_at, number), phase)
                full, size = self.mbarrier(p.panel_full_at, number), e.const(PANEL_BYTES, dt.i32)
                e.line(f"nvvm.mbarrier.arrive.expect_tx {full}, {size} : !llvm.ptr<3>, i32")
                place = e.add(row, e.add(rows, part * WGMMA_M)), e.add(column, start)
                to = e.add(e.mul(number, PANEL_BYTES), p.panels_at)
                self._copy(maps[matrix.value], matrix, to, *place, WGMMA_M, full)
                at, phase = self.next_panel(at, phase)
            self._yield(at, phase)

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
        zero = e.const(0, dt.i32)
        first, step, rows = self._tiles_of(consumer)
        self.rows_at = e.mul(rows, ROW)
        self.leads = e.cmp("eq", self.lane, 0)
        epilogue = Epilogue(self, consumer)
        self.none = e.fresh()
        e.line(f"{self.none} = llvm.mlir.zero : {self.struct}")
        carried = [zero, zero]
        if p.apart:
            carried = [*self._skip(zero, zero, e.mul(consumer, self.steps)), e.xor(consumer, 1)]
        carried += [zero, zero] if self.panels else []
        with self._each_tile(first, step, *carried) as (row, column, stage, phase, *more):
            turn, panel = more[: p.apart], more[p.apart :]
            if turn:
                self.wait(self.mbarrier(p.turns_at, consumer), turn[0])
            found, now, its, last = (self._added_sums if self.adds else self._sums)(stage, phase)
            if turn:  # all stages of this tile are full: the other's waits tell those that follow from them
                self.arrive(self.mbarrier(p.turns_at, e.xor(consumer, 1)))
                now, its = self._skip(now, its, self.steps)
            if last is not None:
                e.line("nvvm.wgmma.wait.group.sync.aligned 0")
                self.arrive(self.mbarrier(p.empty_at, last))
            panel = epilogue.emit(found, e.add(row, rows), column, panel)
            self._yield(now, its, *(e.xor(one, 1) for one in turn), *panel)
        with self.leader(self.leads):
            e.line("nvvm.cp.async.bulk.wait_group 0")

    def _sums(self, stage: Val, phase: Val) -> tuple[list[str], Val, Val, Val | None]:
        """Multiply a tile whose stages begin with ``stage``: the sums of each 64 rows, the stage behind and its phase,
        and the last stage, whose products are to be waited for."""
        e, p = self.e, self.p
        self.wait(self.mbarrier(p.full_at, stage), phase)
        started = self._multiply(stage, [self.none] * p.parts, "zero")

        def step(carried: list[Val], sums: list[str]) -> tuple[list[Val], list[str]]:
            now, its, before = carried
            self.wait(self.mbarrier(p.full_at, now), its)
            added = self._multiply(now, sums, "one")
            e.line("nvvm.wgmma.wait.group.sync.aligned 1")
            self.arrive(self.mbarrier(p.empty_at, before))
            return [*self.next_stage(now, its), now], added

        (behind, its, last), sums = self._each_step(1, [*self.next_stage(stage, phase), stage], started, step)
        return sums, behind, its, last

    def _added_sums(self, stage: Val, phase: Val) -> tuple[list[str], Val, Val, None]:
        """As :meth:`_sums`, where threads add what each stage gives, in float32; nothing is to be waited for."""
        e, p = self.e, self.p

        def step(carried: list[Val], sums: list[str]) -> tuple[list[Val], list[str]]:
            now, its = carried
            self.wait(self.mbarrier(p.full_at, now), its)
            terms = self._multiply(now, [self.none] * p.parts, "zero")
            e.line("nvvm.wgmma.wait.group.sync.aligned 0")
            self.arrive(self.mbarrier(p.empty_at, now))
            return [*self.next_stage(now, its)], [self._added(x, y) for x, y in zip(sums, terms)]

        (behind, its), sums = self._each_step(0, [stage, phase], [self.none] * p.parts, step)
        return sums, behind, its, None

    def _added(self, sums: str, terms: str) -> str:
        e, total = self.e, self.none
        for n in range(self.p.n // 2):
            x, y = (e.op(f"llvm.extractvalue {of}[{n}] : {self.struct}", dt.f32) for of in (sums, terms))
            before, total = total, e.fresh()
            e.line(f"{total} = llvm.insertvalue {e.add(x, y)}, {before}[{n}] : {self.struct}")
        return total

    def _each_step(
        self,
        first: int,
        numbers: list[Val],
        sums: list[str],
        body: Callable[[list[Val], list[str]], tuple[list[Val], list[str]]],
    ) -> tuple[list[Val], list[str]]:
        """A loop over the steps along K from ``first`` on: ``body`` gives the numbers and sums of the next step from
        those of one. Those behind the last."""
        e, loop, count = self.e, self.e.fresh(), len(numbers)
        names, inside = [Val(e.fresh(), dt.i32) for _ in numbers], [e.fresh() for _ in sums]
        types = ", ".join(["i32"] * count + [self.struct] * len(sums))
        pairs = zip([*names, *inside], [*numbers, *sums])
        head = (
            f"{loop}:{count + len(sums)} = scf.for {e.fresh()} = {e.const(first, dt.i32)} to {self.steps} step "
            f"{e.const(1, dt.i32)} iter_args({', '.join(f'{a} = {b}' for a, b in pairs)}) -> ({types}) : i32 {{"
        )
        with self.k.region(head, NO_UNROLL):
            after, added = body(names, inside)
            e.line(f"scf.yield {', '.join(map(str, [*after, *added]))} : {types}")
        results = [f"{loop}#{n}" for n in range(count + len(sums))]
        return [Val(name, dt.i32) for name in results[:count]], results[count:]

    def _tiles_of(self, consumer: Val) -> tuple[Val, Val, Val]:
        """The first of a consumer's tiles, the step from one to the next, and the first of its rows in a tile."""
        e = self.e
        if self.p.apart:
            return e.add(self.block, e.mul(consumer, self.blocks)), e.mul(self.blocks, 2), e.const(0, dt.i32)
        return self.block, self.blocks, e.mul(consumer, WGMMA_M)

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
        kinds = multiplied(self.product)
        layouts = "row" if self.a_along_k else "col", "col" if self.b_along_k else "row"
        sums, depth = list(sums), WGMMA_BYTES // self.dtype.bytes
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
                    f"D [<f32>, <{scale if k == 0 else 'one'}>], A [<{kinds[0]}>, <one>, <{layouts[0]}>], "
                    f"B [<{kinds[1]}>, <one>, <{layouts[1]}>] : {self.struct} -> {self.struct}"
                )
        e.line("nvvm.wgmma.commit.group.sync.aligned")
        return sums
