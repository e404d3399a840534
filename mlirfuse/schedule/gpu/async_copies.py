"""Asynchronous copies from global to shared memory (``cp.async``), issued several loop iterations before their use.

Each thread copies the elements that it reads itself, so that it waits for its own copies and needs no barrier."""

from __future__ import annotations

from mlirfuse.analysis.axes import Axis
from mlirfuse.analysis.phases import Analysis
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.graph import Value
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.kernel import STAY_L2, Env
from mlirfuse.schedule.gpu.kernel import GpuBody
from mlirfuse.schedule.tiling import Access

SIZES = (4, 8, 16)  # bytes of one copy


class AsyncCopies:
    """A multi-stage buffer in shared memory for ``stages`` loop iterations. In each iteration, a thread copies one
    vector of each of ``values``, in this order."""

    def __init__(self, body: GpuBody, values: list[Value], lanes: int, stages: int):
        self.body, self.lanes, self.stages = body, lanes, stages
        self.memories = [body.k.memories[v] for v in values]
        self.offsets, self.iteration_bytes = [], 0
        for memory in self.memories:
            self.offsets.append(self.iteration_bytes)
            self.iteration_bytes += body.threads * lanes * memory.dtype.bytes
        self.base = body.reserve_dynamic(stages * self.iteration_bytes)
        if any(memory.hint == STAY_L2 for memory in self.memories):
            lower_lanes = body.e.bitcast(body.special("lanemask.lt"), dt.u32)
            # Always 0: no mask of lower lanes has bit 31.
            self.nothing = body.e.bitcast(body.e.shr(lower_lanes, 31), dt.i32)

    def start(self, stage: Val, places: list[tuple[Value, Env]]) -> None:
        """Issue the copies of one iteration into ``stage`` (i32), and commit them as one group."""
        e, k = self.body.e, self.body.k
        for at, ((value, env), memory) in enumerate(zip(places, self.memories)):
            nbytes = self.lanes * memory.dtype.bytes
            cache = "cg" if nbytes == 16 else "ca"
            if memory.hint == STAY_L2 and nbytes == 16:
                self._start_hinted(self._address(stage, at), k.place(value, env))
                continue
            operands = f"{self._address(stage, at)}, {k.place(value, env)}, {nbytes}, cache =  {cache}"
            e.line(f"nvvm.cp.async.shared.global {operands} : !llvm.ptr<3>, !llvm.ptr<1>")
        e.line("nvvm.cp.async.commit.group")

    def _start_hinted(self, there: str, here: str) -> None:
        """Issue one copy with an L2 cache policy that keeps its source. ptxas (13.0) emits an illegal instruction for
        such a copy if its address is partly uniform; the xor with a per-thread value that is always 0 prevents that."""
        e = self.body.e
        address = e.xor(e.op(f"llvm.ptrtoint {there} : !llvm.ptr<3> to i32", dt.i32), self.nothing)
        text = "cp.async.cg.shared.global.L2::cache_hint [$0], [$1], 16, $2;"
        operands = f"{address}, {here}, {self.body.k.policy()} : (i32, !llvm.ptr<1>, i64) -> ()"
        e.line(f'llvm.inline_asm has_side_effects "{text}", "r,l,l" {operands}')

    def put(self, stage: Val, vals: list[Val]) -> None:
        """Store loaded vectors, in their memory format, where :meth:`start` would copy them."""
        for at, val in enumerate(vals):
            self.body.shared_store(self._address(stage, at), val, self.lanes * val.dtype.bytes)

    def wait(self, others: int) -> None:
        """Wait until at most ``others`` of the latest iterations' copies are in flight."""
        self.body.e.line(f"nvvm.cp.async.wait.group {others}")

    def read(self, stage: Val) -> list[Val]:
        """The vectors of the iteration in ``stage``, in their memory format."""
        found = []
        for at, memory in enumerate(self.memories):
            dtype = self.body.k.held(memory.dtype)
            found.append(self.body.shared_load(self._address(stage, at), dtype, self.lanes, self.lanes * dtype.bytes))
        return found

    def next(self, stage: Val) -> Val:
        """The stage after ``stage``."""
        e = self.body.e
        following = e.add(stage, 1)
        return e.select(e.cmp("eq", following, self.stages), e.const(0, dt.i32), following)

    def _address(self, stage: Val, at: int) -> str:
        e, nbytes = self.body.e, self.lanes * self.memories[at].dtype.bytes
        offset = e.add(e.mul(stage, self.iteration_bytes), self.offsets[at])
        return self.body.dynamic_address(self.base, e.add(offset, e.mul(self.body.thread, nbytes)))


def possible(analysis: Analysis, access: Access, values: list[Value], lane: Axis) -> bool:
    """Whether one ``cp.async`` can copy each vector of ``values`` along ``lane``, on a device that has them."""
    known = dict(zip(analysis.inputs, access.aligns))
    copyable = all(access.lanes * v.dtype.bytes in SIZES and known[v] >= access.lanes * v.dtype.bytes for v in values)
    return bool(values) and copyable and all(analysis.axis_stride(v, lane) == 1 for v in values)


def streamed_inputs(analysis: Analysis) -> list[Value]:
    """The inputs that vary along both kept and reduced axes, i.e. memory that is read once."""
    reduced, kept = set(analysis.reduced), set(analysis.kept)
    return [v for v in analysis.inputs if reduced & set(analysis.axes.flat(v)) and kept & set(analysis.axes.flat(v))]
