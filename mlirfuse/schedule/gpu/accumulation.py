"""Accumulations on a GPU: values added to rows that indices choose. One kernel begins the result with the operand, a
second adds the values, a third stores sums as half types or short integers, which are added up in 32 bits in the
workspace.

Threads add atomically, so that float sums depend on the order in which they come. ``ordered``: a thread has a column
and adds its values one after the other, which takes long where columns are few, and gives the same sums each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from mlirfuse.analysis.phases import Analysis
from mlirfuse.core.machine import Machine
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Op, Value
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.kernel import Env, Index, Memory
from mlirfuse.lowering.module import GpuKernel
from mlirfuse.lowering.slots import Slots
from mlirfuse.schedule.gpu.access import Access, access_of
from mlirfuse.schedule.gpu.kernel import GpuBody
from mlirfuse.schedule.gpu.scheduler import LARGEST_BLOCK, GpuScheduler
from mlirfuse.schedule.scheduler import Alignments, Sizes, power_of_two, require

BLOCK = 256  # threads, of an element each


class Params(NamedTuple):
    """``threads`` of a block; ``ordered``: a thread adds all values of a column, in order."""

    access: Access
    threads: int
    ordered: bool


class Accumulation(GpuScheduler[Params]):
    """Values added to rows that indices choose."""

    name = "accumulation"
    parameters = Params

    def takes(self, analysis: Analysis) -> bool:
        return analysis.accumulation is not None

    def candidates(self, analysis: Analysis, env: Sizes, alignments: Alignments, machine: Machine) -> Iterator[Params]:
        access = access_of(analysis, True, env, alignments)
        each = tuple(analysis.stored(v).bytes for v in analysis.inputs + analysis.outputs)
        access = access._replace(lanes=1, aligns=each, multiples=frozenset())
        yield from (Params(access, BLOCK, False), Params(access, 2 * BLOCK, False), Params(access, BLOCK // 2, True))

    def kernels(self, name: str, analysis: Analysis, slots: Slots, p: Params) -> list[GpuKernel]:
        op = analysis.accumulation
        assert op is not None
        first, last = (f"{name}_{what}" for what in ("begin", "end"))
        in_place = slots.place(op.result) == slots.place(op.operands[0])
        narrow = _sums_type(op) is not op.result.dtype
        kernels = [_Accumulation(name, analysis, slots, p).add()]
        if narrow or not in_place:
            kernels.insert(0, _Accumulation(first, analysis, slots, p).begin())
        if narrow:
            kernels.append(_Accumulation(last, analysis, slots, p).end())
        return kernels

    def check(self, analysis: Analysis, p: Params, env: Sizes, alignments: Alignments, machine: Machine) -> None:
        require(p.access.lanes == 1, f"lanes = {p.access.lanes}: elements are added one by one")
        self.check_access(analysis, p, True, env, alignments, machine)
        require(power_of_two(p.threads), f"threads = {p.threads}: a power of two")
        require(p.threads <= LARGEST_BLOCK, f"threads = {p.threads}: a block has at most {LARGEST_BLOCK}")


def _sums_type(op: Op) -> dt.DType:
    """The type that values are added up in: that which they are computed in, and of at least 32 bits."""
    held = op.result.dtype.compute
    return held if held.bits >= 32 else dt.i32 if held.kind == "i" else dt.u32


class _Accumulation(GpuBody):
    """One of the kernels."""

    def __init__(self, name: str, analysis: Analysis, slots: Slots, p: Params):
        super().__init__(name, analysis, slots, p.access, p.threads)
        assert analysis.accumulation is not None
        self.op, self.ordered = analysis.accumulation, p.ordered
        self.initial, self.indices, self.values = self.op.operands
        held = _sums_type(self.op)
        self.stored = self.sums = self.k.memories[self.op.result]
        if held is not self.op.result.dtype:
            place = self.args.temporary((self.op, "sums"), sz.mul(self.op.result.numel, held.bytes))
            strides = sz.contiguous_strides(self.op.result.shape)
            self.sums = Memory(place, strides, held, held.bytes)
        self.k.memories[self.op.result] = self.sums

    def each(self, like: Value, visit: Callable[[Env], None]) -> GpuKernel:
        """``visit(env)`` in a thread for each element of ``like``."""
        axes = self.analysis.axes.flat(like)
        count = sz.product(a.size for a in axes)
        at = self.e.add(self.e.mul(self.wide(self.block), self.threads), self.wide(self.thread))
        with self.k.region(f"scf.if {self.e.cmp('lt', at, self.size(count))} {{"):
            env: Env = {}
            self.unlinear(env, [[a] for a in axes], Index(at))
            visit(env)
        return self.finish(sz.ceildiv(count, self.threads))

    def begin(self) -> GpuKernel:
        """The operand's elements, before anything is added."""
        result = self.op.result
        return self.each(result, lambda env: self.k.store(result, env, self.k.value(self.initial, env)))

    def end(self) -> GpuKernel:
        """Sums as they are stored."""
        result, k = self.op.result, self.k

        def one(env: Env) -> None:
            k.memories[result] = self.sums
            total = k.reload(result, env)
            k.memories[result] = self.stored
            k.store(result, env, total)

        return self.each(result, one)

    def add(self) -> GpuKernel:
        """The values."""
        if not self.ordered:
            return self.each(self.values, lambda env: self.where_inside(env, self.atomically))
        rows = self.analysis.axes.dims(self.values)[0]
        columns = [a for a in self.analysis.axes.flat(self.values) if a not in rows]
        count = sz.product(a.size for a in columns)
        at = self.e.add(self.e.mul(self.wide(self.block), self.threads), self.wide(self.thread))
        with self.k.region(f"scf.if {self.e.cmp('lt', at, self.size(count))} {{"):
            env: Env = {}
            self.unlinear(env, [[a] for a in columns] or [[]], Index(at))

            def one(row: Val, _: list[Val]) -> list[Val]:
                here = dict(env)
                self.k.spread(rows, Index(row), here)
                self.where_inside(here, self.plainly)
                return []

            self.loop(self.e.const(0, self.index), self.size(self.indices.shape[0]), 1, [], one)
        return self.finish(sz.ceildiv(count, self.threads))

    def where_inside(self, env: Env, add: Callable[[Env, Val], None]) -> None:
        """``add(the result's env, value)`` for a value whose row there is."""
        e, k = self.e, self.k
        of_index = dict(env)
        k.spread(k.dims(self.indices)[0], k.dim_index(k.dims(self.values)[0], env), of_index)
        row, value = k.value(self.indices, of_index), k.value(self.values, env)
        extent = e.cast(self.size(self.op.result.shape[0]), row.dtype)
        with k.region(f"scf.if {e.and_(e.cmp('ge', row, 0), e.cmp('lt', row, extent))} {{"):
            add(k.at_row(self.op, env, Index(e.cast(row, self.index))), value)

    def atomically(self, env: Env, value: Val) -> None:
        value = self.e.cast(value, self.sums.dtype)
        address = self.k.address(self.sums, self.k.offset(self.op.result, env).base)
        kind = "fadd" if value.dtype.is_float else "add"
        name = self.e.fresh()
        self.e.line(
            f'{name} = llvm.atomicrmw {kind} {address}, {value} syncscope("device") monotonic : '
            f"{self.k.pointer_type}, {value.type}"
        )

    def plainly(self, env: Env, value: Val) -> None:
        k, result = self.k, self.op.result
        before = self.e.cast(k.reload(result, env), self.sums.dtype)
        k.store(result, env, self.e.add(before, self.e.cast(value, self.sums.dtype)))
