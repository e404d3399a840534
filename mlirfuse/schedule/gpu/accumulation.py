"""Accumulations on a GPU: values added to rows that indices choose. One kernel begins the result with the operand, a
second adds the values, a third stores sums as half types or short integers, which are added up in 32 bits in the
workspace.

Threads add atomically, so that float sums depend on the order in which they come. ``ordered``: a thread has a column
and adds its values one after the other, which takes long where columns are few, and gives the same sums each time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

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

BLOCK = 256  # threads
EACH = 4  # elements of a thread, all loaded before one is added
MOST_EACH = 32


class Params(NamedTuple):
    """``threads`` of a block; ``ordered``: a thread adds all values of a column, in order; ``each``: elements of a
    thread."""

    access: Access
    threads: int
    ordered: bool
    each: int = 1


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
        yield Params(access, BLOCK, False, EACH)
        yield Params(access, BLOCK // 2, True, EACH)
        yield from (
            Params(access, n, False, each)
            for n in (BLOCK, 2 * BLOCK)
            for each in (1, 2, 4, 8)
            if (n, each) != (BLOCK, EACH)
        )

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
        require(1 <= p.each <= MOST_EACH, f"each = {p.each}: 1 to {MOST_EACH}")
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
        self.op, self.ordered, self.elements = analysis.accumulation, p.ordered, p.each
        self.initial, self.indices, self.values = self.op.operands
        held = _sums_type(self.op)
        self.stored = self.sums = self.k.memories[self.op.result]
        if held is not self.op.result.dtype:
            place = self.args.temporary((self.op, "sums"), sz.mul(self.op.result.numel, held.bytes))
            strides = sz.contiguous_strides(self.op.result.shape)
            self.sums = Memory(place, strides, held, held.bytes)
        self.k.memories[self.op.result] = self.sums

    def each(self, like: Value, load: Callable[[Env], Any], store: Callable[[Env, Any], None]) -> GpuKernel:
        """``store(env, load(env))`` for each element of ``like``: a thread loads all of its own first."""
        e, axes = self.e, self.analysis.axes.flat(like)
        count = sz.product(a.size for a in axes)
        block = self.threads * self.elements
        first = e.add(e.mul(self.wide(self.block), block), self.wide(self.thread))

        def places(held: bool) -> list[tuple[Env, Val | None, Any]]:
            out = []
            for n in range(self.elements):
                at, inside = e.add(first, n * self.threads) if n else first, None
                if held:
                    inside = e.cmp("lt", at, self.size(count))
                    at = e.min(at, e.sub(self.size(count), 1))
                env: Env = {}
                self.unlinear(env, [[a] for a in axes], Index(at))
                out.append((env, inside, load(env)))
            return out

        def all_of_them(held: bool) -> None:
            for env, inside, loaded in places(held):
                if inside is None:
                    store(env, loaded)
                    continue
                with self.k.region(f"scf.if {inside} {{"):
                    store(env, loaded)

        end = e.mul(e.add(self.wide(self.block), 1), block)
        with self.k.region(f"scf.if {e.cmp('le', end, self.size(count))} {{", "} else {"):
            all_of_them(False)
        with self.k.region("", "}"):
            all_of_them(True)
        return self.finish(sz.ceildiv(count, block))

    def begin(self) -> GpuKernel:
        """The operand's elements, before anything is added."""
        result = self.op.result
        k = self.k
        return self.each(result, lambda env: k.value(self.initial, env), lambda env, val: k.store(result, env, val))

    def end(self) -> GpuKernel:
        """Sums as they are stored."""
        result, k = self.op.result, self.k

        def sums(env: Env) -> Val:
            k.memories[result] = self.sums
            total = k.reload(result, env)
            k.memories[result] = self.stored
            return total

        return self.each(result, sums, lambda env, total: k.store(result, env, total))

    def add(self) -> GpuKernel:
        """The values."""
        if not self.ordered:
            return self.each(self.values, self.loaded, functools.partial(self.where_inside, add=self.atomically))
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
                self.where_inside(here, self.loaded(here), self.plainly)
                return []

            self.loop(self.e.const(0, self.index), self.size(self.indices.shape[0]), 1, [], one)
        return self.finish(sz.ceildiv(count, self.threads))

    def loaded(self, env: Env) -> tuple[Val, Val]:
        """A value and its row."""
        k = self.k
        of_index = dict(env)
        k.spread(k.dims(self.indices)[0], k.dim_index(k.dims(self.values)[0], env), of_index)
        return k.value(self.indices, of_index), k.value(self.values, env)

    def where_inside(self, env: Env, loaded: tuple[Val, Val], add: Callable[[Env, Val], None]) -> None:
        """``add(the result's env, value)`` for a value whose row there is."""
        e, k, (row, value) = self.e, self.k, loaded
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
