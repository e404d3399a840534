"""What the producer and the consumers of a product's kernel share: its tiles, and rings in shared memory with barriers
that say that a part is full or empty: of stages for the operands, of panels for each consumer's other inputs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from mlirfuse.ir import dtypes as dt
from mlirfuse.lowering.emitter import Val
from mlirfuse.schedule.gpu.kernel import NO_UNROLL, GpuBody
from mlirfuse.schedule.gpu.matmul import operands
from mlirfuse.schedule.gpu.matmul.operands import Matrix
from mlirfuse.schedule.gpu.matmul.params import COLUMNS, ROW, WARP_GROUP, Layout
from mlirfuse.schedule.scheduler import KernelSpec

_TIMEOUT = 10_000_000  # nanoseconds that a wait for a barrier may suspend a thread, before it looks again


class Panel(NamedTuple):
    """A part of a consumer's tile of an input other than the operands: the ``number`` of its 64 rows among the
    consumer's, and as many columns as are in a row in shared memory, from column ``start`` of the tile on."""

    matrix: Matrix
    number: int
    start: int


class TileBody(GpuBody):
    """Emits the loop over tiles, the order of the stages, and what waits for them and passes them on.

    ``leads``: whether a thread is the first of its warp, of consumers only."""

    leads: Val
    p: Layout  # type: ignore[assignment]  # of the parameters

    def __init__(self, spec: KernelSpec):
        analysis, p = spec.analysis, Layout(spec.params)
        super().__init__(spec, p.threads)
        self.p = p
        found = operands.operands(analysis)
        assert analysis.product is not None
        self.found, self.product = found, analysis.product
        # Whether rows of the operands' tiles are along K in shared memory.
        self.a_along_k, self.b_along_k = (not p.tma or m is None or m.contiguous == 1 for m in found[:2])
        self.dtype, self.adds = analysis.product.operands[0].dtype, operands.adds(analysis)
        self.tile_k = ROW // self.dtype.bytes
        added = [found.added[n] for n in p.added]
        self.panels = [  # of a tile of a consumer, in the order in which it reads them
            Panel(matrix, part, start)
            for block in range(0, p.n, COLUMNS)
            for part in range(p.parts)
            for matrix in added
            for start in range(block, block + COLUMNS, matrix.columns)
        ]
        self.dynamic_alignment, self.sets_registers = 1024, True  # bytes: the swizzle's period
        self.reserve_dynamic(p.shared_bytes)
        e = self.e
        self.m, self.n, self.depth = (self.i32(size) for size in operands.extents(analysis))
        self.memory = e.fresh()
        e.line(f"{self.memory} = llvm.mlir.addressof @{self.name}_dynamic : !llvm.ptr<3>")
        self.warp = self._uniform(e.bitcast(e.shr(e.bitcast(self.thread, dt.u32), 5), dt.i32))
        self.lane = e.and_(self.thread, 31)
        self.blocks = self.special("nctaid.x")
        self.down, self.across = self._ceildiv(self.m, p.m), self._ceildiv(self.n, p.n)
        self.tiles, self.steps = e.mul(self.down, self.across), self._ceildiv(self.depth, self.tile_k)
        self.struct = f"!llvm.struct<({', '.join(['f32'] * (p.n // 2))})>"

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

    def address(self, offset: Val | int) -> str:
        """The address ``offset`` bytes into shared memory."""
        name, val = self.e.fresh(), offset if isinstance(offset, Val) else self.e.const(offset, dt.i32)
        self.e.line(f"{name} = llvm.getelementptr {self.memory}[{val}] : (!llvm.ptr<3>, i32) -> !llvm.ptr<3>, i8")
        return name

    def mbarrier(self, at: int, stage: Val) -> str:
        """The barrier of ``stage`` in the array at ``at``."""
        return self.address(self.e.add(self.e.mul(stage, 8), at))

    def _initialize(self) -> None:
        e, p = self.e, self.p
        with self.leader(e.cmp("eq", self.thread, 0)):
            for at, barriers, arrivals in (
                (p.full_at, p.stages, 1 if p.tma else WARP_GROUP),
                (p.empty_at, p.stages, p.readers),
                (p.turns_at, p.consumers if p.apart else 0, p.readers),
                (p.panel_full_at, p.all_panels, 1),
                (p.panel_empty_at, p.all_panels, WARP_GROUP // 32),
            ):
                for number in range(barriers):
                    barrier = self.address(at + 8 * number)
                    e.line(f"nvvm.mbarrier.init {barrier}, {e.const(arrivals, dt.i32)} : !llvm.ptr<3>, i32")
            e.line("nvvm.fence.mbarrier.init")
        self.barrier()

    def fence(self) -> None:
        """Order this thread's accesses to shared memory before those of TMA and ``wgmma`` that follow a barrier."""
        self.e.line("nvvm.fence.proxy {kind = #nvvm.proxy_kind<async.shared>, space = #nvvm.shared_space<cta>}")

    def wait(self, barrier: str, phase: Val) -> None:
        timeout = self.e.const(_TIMEOUT, dt.i32)
        self.e.line(f"nvvm.mbarrier.try_wait.parity {barrier}, {phase}, {timeout} : !llvm.ptr<3>, i32, i32")

    def next_stage(self, stage: Val, phase: Val) -> tuple[Val, Val]:
        """The stage after ``stage``, and the phase of its barriers."""
        return self._next_of(self.p.stages, stage, phase)

    def next_panel(self, panel: Val, phase: Val) -> tuple[Val, Val]:
        """The panel after ``panel``, counted among those of a consumer, and the phase of its barriers."""
        return self._next_of(self.p.panels, panel, phase)

    def _next_of(self, count: int, at: Val, phase: Val) -> tuple[Val, Val]:
        e = self.e
        after = e.add(at, 1)
        wraps = e.cmp("eq", after, count)
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

    def arrive(self, barrier: str) -> None:
        """Have this warp of a consumer arrive at ``barrier``."""
        with self.leader(self.leads):
            self.e.line(f"{self.e.fresh()} = nvvm.mbarrier.arrive {barrier} : !llvm.ptr<3> -> i64")
