"""Shared by GPU scatter-add kernels."""

from __future__ import annotations

from mlirfuse.analysis.phases import Analysis
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import ops
from mlirfuse.ir.graph import Op, Value
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.kernel import Index, Memory
from mlirfuse.lowering.slots import Slots
from mlirfuse.schedule.gpu.kernel import GpuBody
from mlirfuse.schedule.tiling import Access


def sums_type(op: Op) -> dt.DType:
    """The accumulator dtype: the compute dtype, of at least 32 bits."""
    held = op.result.dtype.compute
    return held if held.bits >= 32 else dt.i32 if held.kind == "i" else dt.u32


def op_of(analysis: Analysis) -> Op:
    """The scatter-add op of a segment."""
    assert analysis.scatter_add is not None
    return analysis.scatter_add


def in_place(analysis: Analysis, slots: Slots) -> bool:
    """Whether the result overwrites its operand, which then is an input."""
    op = op_of(analysis)
    return op.operands[0] in analysis.inputs and slots.place(op.operands[0]) == slots.place(op.result)


class ScatterAddBody(GpuBody):
    """Base of the kernel bodies."""

    def __init__(self, name: str, analysis: Analysis, slots: Slots, access: Access, threads: int):
        super().__init__(name, analysis, slots, access, threads)
        self.op = op_of(analysis)
        self.initial, self.added = self.op.operands[0], ops.added_at(self.op.operands)
        self.indices, self.values = self.added[0]
        self.sums_type = sums_type(self.op)
        self.in_place = in_place(analysis, slots)

    def row_of(self, indices: Value, position: Index) -> tuple[Val, Val]:
        """The row that the index at ``position`` selects, and whether that row exists."""
        e, k = self.e, self.k
        env: dict = {}
        k.spread(k.dims(indices)[0], position, env)
        row = k.value(indices, env)
        extent = e.cast(self.size(self.op.result.shape[0]), row.dtype)
        return e.cast(row, self.index), e.and_(e.cmp("ge", row, 0), e.cmp("lt", row, extent))

    def atomically(self, memory: Memory, offset: Val | int, value: Val) -> None:
        """Add ``value`` atomically to an element of ``memory``."""
        value = self.e.cast(value, memory.dtype)
        kind, name = "fadd" if value.dtype.is_float else "add", self.e.fresh()
        self.e.line(
            f"{name} = llvm.atomicrmw {kind} {self.k.address(memory, offset)}, {value} "
            f'syncscope("device") monotonic : {self.k.pointer_type}, {value.type}'
        )
