"""Vectors on their way from memory into shared memory (``cp.async``), several turns of a loop ahead of their use.

Each thread copies what it will itself read: it waits for its own copies, and needs no barrier.
"""

from __future__ import annotations

from mlirfuse.analysis.axes import Axis
from mlirfuse.analysis.phases import Analysis
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.graph import Value
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.kernel import STAY_L2, Env
from mlirfuse.schedule.gpu.kernel import Access, GpuBody

SIZES = (4, 8, 16)  # bytes that one copy can have


class AsyncCopies:
    """Shared memory for ``stages`` turns of a loop, in each of which a thread brings the vectors of ``values``, in this
    order."""

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
            self.nothing = body.e.bitcast(body.e.shr(lower_lanes, 31), dt.i32)  # the last lane is lower than none

    def start(self, stage: Val, places: list[tuple[Value, Env]]) -> None:
        """Starts the copies of one turn into ``stage`` (i32): each vector from where it lies."""
        e, k = self.body.e, self.body.k
        for at, ((value, env), memory) in enumerate(zip(places, self.memories)):
            nbytes = self.lanes * memory.dtype.bytes
            cache = "cg" if nbytes == 16 else "ca"
            if memory.hint == STAY_L2 and nbytes == 16:
                self._start_hinted(self._address(stage, at), k.place(value, env))
                continue
            e.line(
                f"nvvm.cp.async.shared.global {self._address(stage, at)}, {k.place(value, env)}, {nbytes}, "
                f"cache =  {cache} : !llvm.ptr<3>, !llvm.ptr<1>"
            )
        e.line("nvvm.cp.async.commit.group")

    def _start_hinted(self, there: str, here: str) -> None:
        """One copy whose source stays in the second-level cache. ptxas (13.0) makes an illegal instruction of one with
        a policy and with an address that is partly uniform: so each address goes through what only the threads know to
        be nothing."""
        e = self.body.e
        address = e.xor(e.op(f"llvm.ptrtoint {there} : !llvm.ptr<3> to i32", dt.i32), self.nothing)
        text = "cp.async.cg.shared.global.L2::cache_hint [$0], [$1], 16, $2;"
        e.line(
            f'llvm.inline_asm has_side_effects "{text}", "r,l,l" {address}, {here}, '
            f"{self.body.k.policy()} : (i32, !llvm.ptr<1>, i64) -> ()"
        )

    def put(self, stage: Val, vals: list[Val]) -> None:
        """Stores vectors that were loaded, as they are in memory, where :meth:`start` would copy them to."""
        for at, val in enumerate(vals):
            self.body.shared_store(self._address(stage, at), val, self.lanes * val.dtype.bytes)

    def wait(self, others: int) -> None:
        """Waits until at most this many of the turns that were started last are under way."""
        self.body.e.line(f"nvvm.cp.async.wait.group {others}")

    def read(self, stage: Val) -> list[Val]:
        """The vectors of the turn in ``stage``, as they are in memory."""
        found = []
        for at, memory in enumerate(self.memories):
            dtype = self.body.k.held(memory.dtype)
            found.append(self.body.shared_load(self._address(stage, at), dtype, self.lanes, self.lanes * dtype.bytes))
        return found

    def next(self, stage: Val) -> Val:
        """The stage of the next turn."""
        e = self.body.e
        following = e.add(stage, 1)
        return e.select(e.cmp("eq", following, self.stages), e.const(0, dt.i32), following)

    def _address(self, stage: Val, at: int) -> str:
        e, nbytes = self.body.e, self.lanes * self.memories[at].dtype.bytes
        offset = e.add(e.mul(stage, self.iteration_bytes), self.offsets[at])
        return self.body.dynamic_address(self.base, e.add(offset, e.mul(self.body.thread, nbytes)))


def possible(analysis: Analysis, access: Access, values: list[Value], lane: Axis) -> bool:
    """Whether every vector of these inputs along ``lane`` can be copied at once, by a machine that has such copies."""
    known = dict(zip(analysis.inputs, access.aligns))
    whole = all(access.lanes * v.dtype.bytes in SIZES and known[v] >= access.lanes * v.dtype.bytes for v in values)
    return bool(values) and whole and all(analysis.axis_stride(v, lane) == 1 for v in values)


def streamed_inputs(analysis: Analysis) -> list[Value]:
    """The inputs with elements of their own for each kept and each reduced index: memory that is read once."""
    reduced, kept = set(analysis.reduced), set(analysis.kept)
    return [v for v in analysis.inputs if reduced & set(analysis.axes.flat(v)) and kept & set(analysis.axes.flat(v))]
