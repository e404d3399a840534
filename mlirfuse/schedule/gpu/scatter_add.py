"""Scatter-add on a GPU: adds values to rows selected by indices. One kernel copies the operand to the result, a second
adds the values, and a third converts sums of 16-bit floats or short integers, which are accumulated in 32 bits in the
workspace.

Threads add atomically, so that float sums depend on timing. ``ordered``: a thread adds all values of a column in order,
which is slow for few columns, but deterministic. ``shared_elements``: many values of few elements, as in a histogram,
would serialize in memory, so each block first adds its share of them in shared memory."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from mlirfuse.analysis.phases import Analysis
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import ops
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Op, Value
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.kernel import Env, Index, Memory
from mlirfuse.lowering.module import GpuKernel
from mlirfuse.lowering.slots import Slots
from mlirfuse.schedule.gpu.access import access_of
from mlirfuse.schedule.gpu.scatter_add_body import ScatterAddBody, in_place, op_of, sums_type
from mlirfuse.schedule.gpu.scheduler import LARGEST_BLOCK, GpuScheduler
from mlirfuse.schedule.scheduler import SizedCall, power_of_two, require
from mlirfuse.schedule.tiling import Tiling

THREADS_PER_BLOCK = 256
ITEMS_PER_THREAD = 4  # all loaded before the first is added
MOST_PER_THREAD = 32
BLOCKS = 4  # per multiprocessor, for sums in shared memory
MOST_SHARED = 4096  # words of 32 bits
LEAST, LEAST_IN_ALL = 16, 1 << 16  # least values for sums in shared memory: per element, and in all


class Sums(NamedTuple):
    """``ordered``: a thread adds all values of a column, in order. ``shared_elements``: elements in shared memory in
    which each of ``split`` blocks first adds its share of the values (0: none)."""

    ordered: bool = False
    shared_elements: int = 0


class ScatterAdd(GpuScheduler):
    """Adds values to rows selected by indices."""

    name = "scatter_add"
    fields = "access", "tx", "vectors_per_thread", "split"
    own = Sums

    def takes(self, analysis: Analysis) -> bool:
        return analysis.scatter_add is not None

    def candidates(self, analysis: Analysis, call: SizedCall) -> Iterator[Tiling]:
        access = access_of(analysis, True, call)
        aligns = tuple(analysis.stored(v).bytes for v in analysis.inputs + analysis.outputs)
        access = access._replace(lanes=1, aligns=aligns, multiples=frozenset())
        rows, count = analysis.values(_sizes, call.sizes)
        op = op_of(analysis)
        room, blocks = 1 << max(0, rows - 1).bit_length(), BLOCKS * call.properties.sm_count
        usual = max(1, ITEMS_PER_THREAD // len(ops.added_at(op.operands)))

        def params(threads: int, items: int, split: int = 1, own: Sums = Sums()) -> Tiling:  # noqa: B008
            return Tiling(self.name, access, threads, vectors_per_thread=items, split=split, own=own)

        if _words(op) and room * _words(op) <= MOST_SHARED and count >= max(LEAST * rows, LEAST_IN_ALL):
            yield params(THREADS_PER_BLOCK, ITEMS_PER_THREAD, blocks, Sums(shared_elements=room))
        first = params(THREADS_PER_BLOCK, usual)
        yield first
        yield params(THREADS_PER_BLOCK // 2, usual, own=Sums(ordered=True))
        tried = itertools.product((THREADS_PER_BLOCK, 2 * THREADS_PER_BLOCK), (1, 2, 4, 8))
        yield from (p for p in (params(*given) for given in tried) if p != first)

    def kernels(self, name: str, analysis: Analysis, slots: Slots, p: Tiling) -> list[GpuKernel]:
        op = op_of(analysis)
        first, last = (f"{name}_{what}" for what in ("begin", "end"))
        narrow = sums_type(op) is not op.result.dtype
        kernels = [_ScatterAdd(name, analysis, slots, p).add()]
        if narrow or not in_place(analysis, slots):
            kernels.insert(0, _ScatterAdd(first, analysis, slots, p).begin())
        if narrow:
            kernels.append(_ScatterAdd(last, analysis, slots, p).end())
        return kernels

    def check(self, analysis: Analysis, p: Tiling, call: SizedCall) -> None:
        require(p.access.lanes == 1, f"lanes = {p.access.lanes}: must be 1")
        self.check_access(analysis, p, True, call)
        rows, _ = analysis.values(_sizes, call.sizes)
        words = _words(op_of(analysis)) * p.own.shared_elements
        require(
            p.own.shared_elements == 0 or p.own.shared_elements >= rows,
            f"shared_elements = {p.own.shared_elements}: must be 0, or at least the result's {rows} elements",
        )
        require(
            words <= MOST_SHARED and p.split >= 1,
            f"shared_elements: needs {words} words of at most {MOST_SHARED}, and split > 0",
        )
        require(
            not p.own.shared_elements or (words > 0 and not p.own.ordered),
            "shared_elements: excludes ordered, and 64-bit floats",
        )
        require(
            1 <= p.vectors_per_thread <= MOST_PER_THREAD,
            f"vectors_per_thread = {p.vectors_per_thread}: must be from 1 to {MOST_PER_THREAD}",
        )
        require(power_of_two(p.tx), f"tx = {p.tx}: must be a power of two")
        require(p.tx <= LARGEST_BLOCK, f"tx = {p.tx}: a block has at most {LARGEST_BLOCK}")


def _sizes(analysis: Analysis) -> tuple:
    """The number of elements of the result, and of values."""
    op = op_of(analysis)
    return op.result.numel, op.operands[2].numel


def _words(op: Op) -> int:
    """The 32-bit words of a sum in shared memory; 0 if it has no atomic addition for the type there."""
    dtype = sums_type(op)
    return 0 if dtype.is_float and dtype.bits > 32 else dtype.bits // 32


class _ScatterAdd(ScatterAddBody):
    """The body of one of the kernels."""

    def __init__(self, name: str, analysis: Analysis, slots: Slots, p: Tiling):
        super().__init__(name, analysis, slots, p.access, p.tx)
        self.p, self.elements, accumulated = p, p.vectors_per_thread, self.sums_type
        self.sums = self.k.memories[self.op.result]
        if accumulated is not self.op.result.dtype:
            pointer = self.args.temporary((self.op, "sums"), sz.mul(self.op.result.numel, accumulated.bytes))
            strides = sz.contiguous_strides(self.op.result.shape)
            self.sums = Memory(pointer, strides, accumulated, accumulated.bytes)

    def for_each_element(self, like: Value, load: Callable[[Env], Any], store: Callable[[Env, Any], None]) -> GpuKernel:
        """The kernel that runs ``store(env, load(env))`` for each element of ``like``. A thread first loads all of its
        elements."""
        e, axes = self.e, self.analysis.axes.flat(like)
        count = sz.product(a.size for a in axes)
        block = self.threads * self.elements
        first = e.add(e.mul(self.wide(self.block), block), self.wide(self.thread))

        def places(checked: bool) -> list[tuple[Env, Val | None, Any]]:
            out = []
            for n in range(self.elements):
                at, inside = e.add(first, n * self.threads) if n else first, None
                if checked:
                    inside = e.cmp("lt", at, self.size(count))
                    at = e.min(at, e.sub(self.size(count), 1))
                env: Env = {}
                self.unlinear(env, [[a] for a in axes], Index(at))
                out.append((env, inside, load(env)))
            return out

        def all_of_them(checked: bool) -> None:
            for env, inside, loaded in places(checked):
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
        """The kernel that copies the operand to the accumulators."""
        result = self.op.result
        k = self.k
        return self.for_each_element(
            result, lambda env: k.value(self.initial, env), lambda env, val: k.store(result, env, val, self.sums)
        )

    def end(self) -> GpuKernel:
        """The kernel that converts the sums to the result's dtype."""
        result, k = self.op.result, self.k

        return self.for_each_element(
            result, lambda env: k.reload(result, env, self.sums), lambda env, total: k.store(result, env, total)
        )

    def add(self) -> GpuKernel:
        """The kernel that adds the values."""
        if self.p.own.shared_elements:
            return self.add_in_shared()
        if not self.p.own.ordered:
            return self.for_each_element(
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
                self.where_inside(here, self.loaded(here), self.non_atomically)
                return []

            self.loop(self.e.const(0, self.index), self.size(self.indices.shape[0]), 1, [], one)
        return self.finish(sz.ceildiv(count, self.threads))

    def add_in_shared(self) -> GpuKernel:
        """The kernel that adds each block's values in shared memory, and then those sums to the result. In 64-bit sums
        the lower word carries into the upper."""
        e, k, p, result, sum_type = self.e, self.k, self.p, self.op.result, self.sums.dtype
        word = sum_type if sum_type.bits == 32 else dt.u32
        word_offsets = [self.reserve(p.own.shared_elements * 4) for _ in range(sum_type.bits // 32)]
        first, end = self.wide(self.thread), e.const(p.own.shared_elements, self.index)

        def address(number: int, at: Val) -> str:
            return self.shared_address(word_offsets[number], e.cast(at, dt.i32), 4)

        def clear(at: Val, _: list[Val]) -> list[Val]:
            for number in range(len(word_offsets)):
                self.shared_store(address(number, at), e.const(0, word))
            return []

        def added(number: int, at: Val, val: Val) -> Val:
            kind = "fadd" if word.is_float else "add"
            text = f'llvm.atomicrmw {kind} {address(number, at)}, {val} syncscope("block") monotonic'
            return e.op(f"{text} : !llvm.ptr<3>, {val.type}", word)

        def add(env: Env, value: Val) -> None:
            shared = Memory("", sz.contiguous_strides(result.shape), sum_type, sum_type.bytes)
            at, val = k.scalar(k.offset(result, env, shared).base), e.cast(value, sum_type)
            if len(word_offsets) == 1:
                added(0, at, val)
                return
            low, high = e.halves(val)
            before = added(0, at, low)
            carried = e.cmp("gt", before, e.sub(e.const(0xFFFFFFFF, dt.u32), low))
            rest = e.add(high, e.select(carried, e.const(1, dt.u32), e.const(0, dt.u32)))
            with k.region(f"scf.if {e.cmp('ne', rest, 0)} {{"):
                added(1, at, rest)

        axes, iteration = self.analysis.axes.flat(self.values), p.tx * p.vectors_per_thread
        count = self.size(sz.product(a.size for a in axes))
        length = self.size(sz.ceildiv(sz.product(a.size for a in axes), p.split))
        low = e.min(e.mul(self.wide(self.block), length), count)
        high = e.min(e.add(low, length), count)

        def values(start: Val, _: list[Val]) -> list[Val]:
            found = []
            for n in range(p.vectors_per_thread):
                at = e.add(e.add(start, first), n * p.tx)
                env: Env = {}
                self.unlinear(env, [[a] for a in axes], Index(e.min(at, e.sub(high, 1))))
                found.append((env, e.cmp("lt", at, high), self.loaded(env)))
            for env, inside, loaded in found:
                with k.region(f"scf.if {inside} {{"):
                    self.where_inside(env, loaded, add)
            return []

        def settle(at: Val, _: list[Val]) -> list[Val]:
            words = [self.shared_load(address(number, at), word) for number in range(len(word_offsets))]
            total = e.of_halves(words[0], words[1], sum_type) if len(words) == 2 else words[0]
            env: Env = {}
            self.unlinear(env, [[a] for a in self.analysis.axes.flat(result)], Index(at))
            with k.region(f"scf.if {e.cmp('ne', total, 0)} {{"):
                self.to_sum(env, total)
            return []

        self.loop(first, end, p.tx, [], clear)
        self.barrier()
        self.loop(low, high, iteration, [], values)
        self.barrier()
        self.loop(first, self.size(result.numel), p.tx, [], settle)
        return self.finish(p.split)

    def loaded(self, env: Env) -> list[tuple[Val, Val, Val]]:
        """For each value to add, the row, whether that row exists, and the value."""
        k = self.k
        position = k.dim_index(k.dims(self.values)[0], env)
        return [(*self.row_of(indices, position), k.value(values, env)) for indices, values in self.added]

    def where_inside(self, env: Env, loaded: list[tuple[Val, Val, Val]], add: Callable[[Env, Val], None]) -> None:
        """Run ``add(the result's env, value)`` for each value whose row exists."""
        for row, inside, value in loaded:
            with self.leader(inside):
                add(self.k.at_row(self.op, env, Index(row)), value)

    def to_sum(self, env: Env, value: Val) -> None:
        """Add ``value`` atomically to the accumulator at ``env``."""
        self.atomically(self.sums, self.k.offset(self.op.result, env, self.sums).base, value)

    def non_atomically(self, env: Env, value: Val) -> None:
        """Add ``value`` to the accumulator at ``env``, not atomically."""
        k, result = self.k, self.op.result
        before = self.e.cast(k.reload(result, env, self.sums), self.sums.dtype)
        k.store(result, env, self.e.add(before, self.e.cast(value, self.sums.dtype)), self.sums)
