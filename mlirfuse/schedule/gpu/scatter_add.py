"""Accumulations on a GPU: values added to rows that indices choose. One kernel begins the result with the operand, a
second adds the values, a third stores sums as half types or short integers, which are added up in 32 bits in the
workspace.

Threads add atomically, so that float sums depend on the order in which they come. ``ordered``: a thread has a column
and adds its values one after the other, which takes long where columns are few, and gives the same sums each time.
``shared``: many values of few elements, as of a histogram's, would wait for each other in memory: each block adds up a
share of them in its own shared memory, then those sums.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from mlirfuse.analysis.phases import Analysis
from mlirfuse.core.device_properties import DeviceProperties
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import ops
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Op, Value
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.kernel import Env, Index, Memory
from mlirfuse.lowering.module import GpuKernel
from mlirfuse.lowering.slots import Slots
from mlirfuse.schedule.gpu.access import Access, access_of
from mlirfuse.schedule.gpu.scatter_add_body import ScatterAddBody, in_place, op_of, sums_type
from mlirfuse.schedule.gpu.scheduler import LARGEST_BLOCK, GpuScheduler
from mlirfuse.schedule.scheduler import Alignments, Sizes, power_of_two, require

THREADS_PER_BLOCK = 256  # threads
ITEMS_PER_THREAD = 4  # elements of a thread, all loaded before one is added
MOST_PER_THREAD = 32
BLOCKS = 4  # a multiprocessor, which add up in shared memory
MOST_SHARED = 4096  # words of 32 bits
LEAST, LEAST_IN_ALL = 16, 1 << 16  # values that are worth that: of each element, and in all


class Params(NamedTuple):
    """``threads`` of a block; ``ordered``: a thread adds all values of a column, in order; ``items_per_thread``:
    elements of a thread at a time; ``shared``: elements of shared memory in which each of so many ``blocks`` adds up
    its share of the values first (0: none does)."""

    access: Access
    threads: int
    ordered: bool
    items_per_thread: int = 1
    shared: int = 0
    blocks: int = 0


class ScatterAdd(GpuScheduler[Params]):
    """Values added to rows that indices choose."""

    name = "scatter_add"
    parameters = Params

    def takes(self, analysis: Analysis) -> bool:
        return analysis.scatter_add is not None

    def candidates(
        self, analysis: Analysis, env: Sizes, alignments: Alignments, properties: DeviceProperties
    ) -> Iterator[Params]:
        access = access_of(analysis, True, env, alignments)
        each = tuple(analysis.stored(v).bytes for v in analysis.inputs + analysis.outputs)
        access = access._replace(lanes=1, aligns=each, multiples=frozenset())
        rows, count = analysis.values(_sizes, env)
        op = op_of(analysis)
        room, blocks = 1 << max(0, rows - 1).bit_length(), BLOCKS * properties.sm_count
        if _words(op) and room * _words(op) <= MOST_SHARED and count >= max(LEAST * rows, LEAST_IN_ALL):
            yield Params(access, THREADS_PER_BLOCK, False, ITEMS_PER_THREAD, room, blocks)
        usual = max(1, ITEMS_PER_THREAD // len(ops.added_at(op.operands)))
        yield Params(access, THREADS_PER_BLOCK, False, usual)
        yield Params(access, THREADS_PER_BLOCK // 2, True, usual)
        yield from (
            Params(access, n, False, each)
            for n in (THREADS_PER_BLOCK, 2 * THREADS_PER_BLOCK)
            for each in (1, 2, 4, 8)
            if (n, each) != (THREADS_PER_BLOCK, usual)
        )

    def kernels(self, name: str, analysis: Analysis, slots: Slots, p: Params) -> list[GpuKernel]:
        op = op_of(analysis)
        first, last = (f"{name}_{what}" for what in ("begin", "end"))
        narrow = sums_type(op) is not op.result.dtype
        kernels = [_ScatterAdd(name, analysis, slots, p).add()]
        if narrow or not in_place(analysis, slots):
            kernels.insert(0, _ScatterAdd(first, analysis, slots, p).begin())
        if narrow:
            kernels.append(_ScatterAdd(last, analysis, slots, p).end())
        return kernels

    def check(
        self, analysis: Analysis, p: Params, env: Sizes, alignments: Alignments, properties: DeviceProperties
    ) -> None:
        require(p.access.lanes == 1, f"lanes = {p.access.lanes}: elements are added one by one")
        self.check_access(analysis, p, True, env, alignments, properties)
        rows, _ = analysis.values(_sizes, env)
        words = _words(op_of(analysis)) * p.shared
        require(p.shared == 0 or p.shared >= rows, f"shared = {p.shared}: there are {rows} elements")
        require(words <= MOST_SHARED and p.blocks >= (p.shared > 0), f"shared: {words} words, at most {MOST_SHARED}")
        require(not p.shared or (words > 0 and not p.ordered), "shared: not in order, nor of 64-bit floats")
        require(
            1 <= p.items_per_thread <= MOST_PER_THREAD,
            f"items_per_thread = {p.items_per_thread}: 1 to {MOST_PER_THREAD}",
        )
        require(power_of_two(p.threads), f"threads = {p.threads}: a power of two")
        require(p.threads <= LARGEST_BLOCK, f"threads = {p.threads}: a block has at most {LARGEST_BLOCK}")


def _sizes(analysis: Analysis) -> tuple:
    """Elements of the result, and values."""
    op = op_of(analysis)
    return op.result.numel, op.operands[2].numel


def _words(op: Op) -> int:
    """The words of 32 bits that a sum takes in shared memory, which adds no others by itself; 0: it is not added
    there."""
    held = sums_type(op)
    return 0 if held.is_float and held.bits > 32 else held.bits // 32


class _ScatterAdd(ScatterAddBody):
    """One of the kernels."""

    def __init__(self, name: str, analysis: Analysis, slots: Slots, p: Params):
        super().__init__(name, analysis, slots, p.access, p.threads)
        self.p, self.elements, held = p, p.items_per_thread, self.sums_type
        self.stored = self.sums = self.k.memories[self.op.result]
        if held is not self.op.result.dtype:
            place = self.args.temporary((self.op, "sums"), sz.mul(self.op.result.numel, held.bytes))
            strides = sz.contiguous_strides(self.op.result.shape)
            self.sums = Memory(place, strides, held, held.bytes)
        self.k.memories[self.op.result] = self.sums

    def items_per_thread(self, like: Value, load: Callable[[Env], Any], store: Callable[[Env, Any], None]) -> GpuKernel:
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
        return self.items_per_thread(
            result, lambda env: k.value(self.initial, env), lambda env, val: k.store(result, env, val)
        )

    def end(self) -> GpuKernel:
        """Sums as they are stored."""
        result, k = self.op.result, self.k

        def sums(env: Env) -> Val:
            k.memories[result] = self.sums
            total = k.reload(result, env)
            k.memories[result] = self.stored
            return total

        return self.items_per_thread(result, sums, lambda env, total: k.store(result, env, total))

    def add(self) -> GpuKernel:
        """The values."""
        if self.p.shared:
            return self.add_in_shared()
        if not self.p.ordered:
            return self.items_per_thread(
                self.values, self.loaded, functools.partial(self.where_inside, add=self.to_sum)
            )
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

    def add_in_shared(self) -> GpuKernel:
        """The values of each block in shared memory, then those sums. Of 64 bits the lower word gives the upper one its
        carry."""
        e, k, p, result, held = self.e, self.k, self.p, self.op.result, self.sums.dtype
        word = held if held.bits == 32 else dt.u32
        parts = [self.reserve(p.shared * 4) for _ in range(held.bits // 32)]
        first, end = self.wide(self.thread), e.const(p.shared, self.index)

        def place(part: int, at: Val) -> str:
            return self.shared_address(parts[part], e.cast(at, dt.i32), 4)

        def clear(at: Val, _: list[Val]) -> list[Val]:
            for part in range(len(parts)):
                self.shared_store(place(part, at), e.const(0, word))
            return []

        def added(part: int, at: Val, val: Val) -> Val:
            kind = "fadd" if word.is_float else "add"
            text = f'llvm.atomicrmw {kind} {place(part, at)}, {val} syncscope("block") monotonic'
            return e.op(f"{text} : !llvm.ptr<3>, {val.type}", word)

        def add(env: Env, value: Val) -> None:
            strides = sz.contiguous_strides(result.shape)
            k.memories[result] = Memory("", strides, held, held.bytes)
            at, val = k.scalar(k.offset(result, env).base), e.cast(value, held)
            k.memories[result] = self.sums
            if len(parts) == 1:
                added(0, at, val)
                return
            low, high = e.halves(val)
            before = added(0, at, low)
            carried = e.cmp("gt", before, e.sub(e.const(0xFFFFFFFF, dt.u32), low))
            rest = e.add(high, e.select(carried, e.const(1, dt.u32), e.const(0, dt.u32)))
            with k.region(f"scf.if {e.cmp('ne', rest, 0)} {{"):
                added(1, at, rest)

        axes, iteration = self.analysis.axes.flat(self.values), p.threads * p.items_per_thread
        count = self.size(sz.product(a.size for a in axes))
        length = self.size(sz.ceildiv(sz.product(a.size for a in axes), p.blocks))
        low = e.min(e.mul(self.wide(self.block), length), count)
        high = e.min(e.add(low, length), count)

        def values(start: Val, _: list[Val]) -> list[Val]:
            found = []
            for n in range(p.items_per_thread):
                at = e.add(e.add(start, first), n * p.threads)
                env: Env = {}
                self.unlinear(env, [[a] for a in axes], Index(e.min(at, e.sub(high, 1))))
                found.append((env, e.cmp("lt", at, high), self.loaded(env)))
            for env, inside, loaded in found:
                with k.region(f"scf.if {inside} {{"):
                    self.where_inside(env, loaded, add)
            return []

        def settle(at: Val, _: list[Val]) -> list[Val]:
            words = [self.shared_load(place(part, at), word) for part in range(len(parts))]
            total = e.of_halves(words[0], words[1], held) if len(words) == 2 else words[0]
            env: Env = {}
            self.unlinear(env, [[a] for a in self.analysis.axes.flat(result)], Index(at))
            with k.region(f"scf.if {e.cmp('ne', total, 0)} {{"):
                self.to_sum(env, total)
            return []

        self.loop(first, end, p.threads, [], clear)
        self.barrier()
        self.loop(low, high, iteration, [], values)
        self.barrier()
        self.loop(first, self.size(result.numel), p.threads, [], settle)
        return self.finish(p.blocks)

    def loaded(self, env: Env) -> list[tuple[Val, Val, Val]]:
        """The row of each value that is added, whether there is such a row, and the value."""
        k = self.k
        position = k.dim_index(k.dims(self.values)[0], env)
        return [(*self.row_of(indices, position), k.value(values, env)) for indices, values in self.added]

    def where_inside(self, env: Env, loaded: list[tuple[Val, Val, Val]], add: Callable[[Env, Val], None]) -> None:
        """``add(the result's env, value)`` for each value whose row there is."""
        for row, inside, value in loaded:
            with self.leader(inside):
                add(self.k.at_row(self.op, env, Index(row)), value)

    def to_sum(self, env: Env, value: Val) -> None:
        self.atomically(self.sums, self.k.offset(self.op.result, env).base, value)

    def plainly(self, env: Env, value: Val) -> None:
        k, result = self.k, self.op.result
        before = self.e.cast(k.reload(result, env), self.sums.dtype)
        k.store(result, env, self.e.add(before, self.e.cast(value, self.sums.dtype)))
