"""Scatter-add on a GPU: adds values to rows selected by indices. One kernel copies the operand to the result, a second
adds the values, and a third converts sums of 16-bit floats or short integers, which are accumulated in 32 bits in the
workspace.

Threads add atomically, so that float sums depend on timing. ``ordered``: a thread adds all values of a column in order,
which is slow for few columns, but deterministic. ``shared_elements``: many values of few elements, as in a histogram,
would serialize in memory, so each block first adds its share of them in shared memory."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from mlirfuse.analysis.axes import Axis
from mlirfuse.analysis.phases import Analysis, size_of
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import ops
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Op, Value
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.kernel import Env, Index, Memory
from mlirfuse.lowering.module import GpuKernel
from mlirfuse.schedule.gpu.access import access_of
from mlirfuse.schedule.gpu.kernel import GpuBody
from mlirfuse.schedule.gpu.scheduler import GpuScheduler
from mlirfuse.schedule.scheduler import KernelSpec, SizedCall, require
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

        def params(threads: int, items: int, split: int = 1, **own: Any) -> Tiling:
            return Tiling(self.name, access, threads, vectors_per_thread=items, split=split, own=Sums(**own))

        if _words(op) and room * _words(op) <= MOST_SHARED and count >= max(LEAST * rows, LEAST_IN_ALL):
            yield params(THREADS_PER_BLOCK, ITEMS_PER_THREAD, blocks, shared_elements=room)
        yield params(THREADS_PER_BLOCK, usual)
        yield params(THREADS_PER_BLOCK // 2, usual, ordered=True)
        tried = itertools.product((THREADS_PER_BLOCK, 2 * THREADS_PER_BLOCK), (1, 2, 4, 8))
        yield from itertools.starmap(params, tried)

    def kernels(self, spec: KernelSpec) -> list[GpuKernel]:
        op = op_of(spec.analysis)
        narrow = sums_type(op) is not op.result.dtype
        kernels = [_ScatterAdd(spec).add()]
        if narrow or not in_place(spec):
            kernels.insert(0, _ScatterAdd(spec._replace(name=f"{spec.name}_begin")).begin())
        if narrow:
            kernels.append(_ScatterAdd(spec._replace(name=f"{spec.name}_end")).end())
        return kernels

    def check(self, analysis: Analysis, p: Tiling, call: SizedCall) -> None:
        require(p.access.lanes == 1, f"lanes = {p.access.lanes}: must be 1")
        self.check_access(analysis, p, True, call)
        rows, _ = analysis.values(_sizes, call.sizes)
        elements, most = p.own.shared_elements, MOST_PER_THREAD
        words = _words(op_of(analysis)) * elements
        p.must("shared_elements", elements in (0, max(elements, rows)), f"must be 0, or at least the result's {rows}")
        require(words <= MOST_SHARED and p.split >= 1, f"shared_elements: {words} words, more than {MOST_SHARED}")
        atomic = not elements or (words > 0 and not p.own.ordered)
        require(atomic, "shared_elements: excludes ordered, and 64-bit floats")
        p.must("vectors_per_thread", 1 <= p.vectors_per_thread <= most, f"must be from 1 to {most}")


def _sizes(analysis: Analysis) -> tuple:
    """The number of elements of the result, and of values."""
    op = op_of(analysis)
    return op.result.numel, op.operands[2].numel


def _words(op: Op) -> int:
    """The 32-bit words of a sum in shared memory; 0 if it has no atomic addition for the type there."""
    dtype = sums_type(op)
    return 0 if dtype.is_float and dtype.bits > 32 else dtype.bits // 32


def sums_type(op: Op) -> dt.DType:
    """The accumulator dtype: the compute dtype, of at least 32 bits."""
    held = op.result.dtype.compute
    return held if held.bits >= 32 else dt.i32 if held.kind == "i" else dt.u32


def op_of(analysis: Analysis) -> Op:
    """The scatter-add op of a segment."""
    assert analysis.scatter_add is not None
    return analysis.scatter_add


def in_place(spec: KernelSpec) -> bool:
    """Whether the result overwrites its operand, which then is an input."""
    op, place = op_of(spec.analysis), spec.slots.place
    return op.operands[0] in spec.analysis.inputs and place(op.operands[0]) == place(op.result)


class ScatterAddBody(GpuBody):
    """Base of the kernel bodies."""

    def __init__(self, spec: KernelSpec, threads: int = 0):
        super().__init__(spec, threads)
        self.op = op_of(spec.analysis)
        self.initial, self.added = self.op.operands[0], ops.added_at(self.op.operands)
        self.indices, self.values = self.added[0]
        self.sums_type = sums_type(self.op)
        self.in_place = in_place(spec)

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
        self.atomic_add(self.k.address(memory, offset), self.e.cast(value, memory.dtype))


class _ScatterAdd(ScatterAddBody):
    """The body of one of the kernels."""

    def __init__(self, spec: KernelSpec):
        super().__init__(spec)
        self.elements, accumulated = self.p.vectors_per_thread, self.sums_type
        self.sums = self.k.memories[self.op.result]
        if accumulated is not self.op.result.dtype:
            pointer = self.args.temporary((self.op, "sums"), sz.mul(self.op.result.numel, accumulated.bytes))
            strides = sz.contiguous_strides(self.op.result.shape)
            self.sums = Memory(pointer, strides, accumulated, accumulated.bytes)

    def at(self, axes: Sequence[Axis], number: Val) -> Env:
        """The env of an element of a tensor with these ``axes``, by its number."""
        return self.point([[a] for a in axes], Index(number))

    def for_each_element(self, like: Value, load: Callable[[Env], Any], store: Callable[[Env, Any], None]) -> GpuKernel:
        """The kernel that runs ``store(env, load(env))`` for each element of ``like``. A thread first loads all of its
        elements."""
        e, axes = self.e, self.analysis.axes.flat(like)
        count = size_of(axes)
        block = self.threads * self.elements
        first = e.add(e.mul(self.wide(self.block), block), self.wide(self.thread))

        def run(checked: bool) -> None:
            found: list[tuple[Env, Val | None, Any]] = []
            for n in range(self.elements):
                at, inside = e.add(first, n * self.threads) if n else first, None
                if checked:
                    at, inside = self.clamped(at, count)
                env = self.at(axes, at)
                found.append((env, inside, load(env)))
            for env, inside, loaded in found:
                with self.leader(inside):
                    store(env, loaded)

        end = e.mul(e.add(self.wide(self.block), 1), block)
        self.k.where(e.cmp("le", end, self.size(count)), lambda: run(False), lambda: run(True))
        return self.finish(sz.ceildiv(count, block))

    def begin(self) -> GpuKernel:
        """The kernel that copies the operand to the accumulators."""
        k, result = self.k, self.op.result
        store = functools.partial(k.store, result, memory=self.sums)
        return self.for_each_element(result, lambda env: k.value(self.initial, env), store)

    def end(self) -> GpuKernel:
        """The kernel that converts the sums to the result's dtype."""
        k, result = self.k, self.op.result
        store = functools.partial(k.store, result)
        return self.for_each_element(result, lambda env: k.reload(result, env, self.sums), store)

    def add(self) -> GpuKernel:
        """The kernel that adds the values."""
        if self.p.own.shared_elements:
            return self.add_in_shared()
        if not self.p.own.ordered:
            add = functools.partial(self.where_inside, add=self.to_sum)
            return self.for_each_element(self.values, self.loaded, add)
        rows = self.analysis.axes.dims(self.values)[0]
        columns = [a for a in self.analysis.axes.flat(self.values) if a not in rows]

        def of_column(at: Val) -> None:
            env = self.at(columns, at)

            def one(row: Val, _: list[Val]) -> None:
                here = dict(env)
                self.k.spread(rows, Index(row), here)
                self.where_inside(here, self.loaded(here), self.non_atomically)

            self.loop(self.e.const(0, self.index), self.size(self.indices.shape[0]), 1, [], one)

        return self.of_each(size_of(columns), of_column)

    def add_in_shared(self) -> GpuKernel:
        """The kernel that adds each block's values in shared memory, and then those sums to the result. In 64-bit sums
        the lower word carries into the upper."""
        e, k, p, result, sum_type = self.e, self.k, self.p, self.op.result, self.sums.dtype
        word = sum_type if sum_type.bits == 32 else dt.u32
        word_offsets = [self.reserve(p.own.shared_elements * 4) for _ in range(sum_type.bits // 32)]
        first, end = self.wide(self.thread), e.const(p.own.shared_elements, self.index)

        def address(number: int, at: Val) -> str:
            return self.shared_address(word_offsets[number], e.cast(at, dt.i32), 4)

        def clear(at: Val, _: list[Val]) -> None:
            for number in range(len(word_offsets)):
                self.shared_store(address(number, at), e.const(0, word))

        def add(env: Env, value: Val) -> None:
            shared = Memory("", sz.contiguous_strides(result.shape), sum_type, sum_type.bytes)
            at, val = k.scalar(k.offset(result, env, shared).base), e.cast(value, sum_type)
            if len(word_offsets) == 1:
                self.atomic_add(address(0, at), val, shared=True)
                return
            low, high = e.halves(val)
            before = self.atomic_add(address(0, at), low, shared=True)
            carried = e.cmp("gt", before, e.sub(e.const(0xFFFFFFFF, dt.u32), low))
            rest = e.add(high, e.select(carried, e.const(1, dt.u32), e.const(0, dt.u32)))
            with self.leader(e.cmp("ne", rest, 0)):
                self.atomic_add(address(1, at), rest, shared=True)

        axes, iteration = self.analysis.axes.flat(self.values), p.tx * p.vectors_per_thread
        count = self.size(size_of(axes))
        length = self.size(sz.ceildiv(size_of(axes), p.split))
        low = e.min(e.mul(self.wide(self.block), length), count)
        high = e.min(e.add(low, length), count)

        def values(start: Val, _: list[Val]) -> None:
            found = []
            for n in range(p.vectors_per_thread):
                at = e.add(e.add(start, first), n * p.tx)
                env = self.at(axes, e.min(at, e.sub(high, 1)))
                found.append((env, e.cmp("lt", at, high), self.loaded(env)))
            for env, inside, loaded in found:
                with self.leader(inside):
                    self.where_inside(env, loaded, add)

        def settle(at: Val, _: list[Val]) -> None:
            words = [self.shared_load(address(number, at), word) for number in range(len(word_offsets))]
            total = e.of_halves(words[0], words[1], sum_type) if len(words) == 2 else words[0]
            env = self.at(self.analysis.axes.flat(result), at)
            with self.leader(e.cmp("ne", total, 0)):
                self.to_sum(env, total)

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
