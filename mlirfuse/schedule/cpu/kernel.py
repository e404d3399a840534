"""Building blocks of CPU kernels: thread-pool tasks, vector loops with masked tails, loop-carried accumulators.

Every CPU kernel is ``func.func @name(%begin: i64, %end: i64, %ctx: !llvm.ptr)`` and runs the tasks ``begin … end - 1``.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable
from dataclasses import replace

from mlirfuse.analysis.axes import Axis
from mlirfuse.analysis.phases import Analysis, late_outputs, points_of, size_of
from mlirfuse.core.device_properties import HostProperties
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import ops as table
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Op, Value
from mlirfuse.ir.sizes import Size
from mlirfuse.lowering import reductions as red
from mlirfuse.lowering.elementwise import EMIT
from mlirfuse.lowering.emitter import Emitter, Val
from mlirfuse.lowering.kernel import ZERO, ElementEmitter, Env, Flat, Index, Memory
from mlirfuse.lowering.module import CpuKernel
from mlirfuse.lowering.slots import CpuArguments
from mlirfuse.schedule.body import Body, Loops
from mlirfuse.schedule.cpu.heuristics import heuristics_of
from mlirfuse.schedule.scheduler import KernelSpec

I64 = dt.i64


OFTEN, LONG = 16, 40  # an op with so many uses in a kernel and so many instructions becomes a function


class Elements(ElementEmitter):
    """An :class:`ElementEmitter` with CPU-only features: non-temporal stores, and separate functions for long ops that
    a large kernel uses often, since LLVM's compile time grows with the code."""

    def __init__(self, name: str, e: Emitter, *arguments, streamed: Iterable[Value], **keywords):
        """``streamed``: outputs too large to be cached until their next use."""
        super().__init__(e, *arguments, **keywords)
        self.streamed = frozenset(streamed)
        self.name = name
        self.functions: dict[tuple, str] = {}  # text by op and operand types; "": short, inlined
        self._uses = collections.Counter(op.name for op in self.inside)

    def _computed(self, op: Op, vals: list[Val]) -> Val:
        if self._uses[op.name] < OFTEN or any(self.e.known(val) is not None for val in vals):
            return super()._computed(op, vals)
        key = op.name, *((val.dtype, val.lanes) for val in vals)
        name = f"@{self.name}_{op.name}_{'_'.join(f'{val.lanes}x{val.dtype.name}' for val in vals)}"
        dtype, lanes = op.result.dtype.compute, max(val.lanes for val in vals)
        if key not in self.functions:
            self.functions[key] = self._function(name, op, vals, Val("", dtype, lanes).type)
        if not self.functions[key]:
            return super()._computed(op, vals)
        types = ", ".join(val.type for val in vals)
        call = f"func.call {name}({', '.join(map(str, vals))}) : ({types}) -> {Val('', dtype, lanes).type}"
        return self.e.op(call, dtype, lanes)

    def _function(self, name: str, op: Op, vals: list[Val], type_: str) -> str:
        """The text of a function that computes ``op``, or "" if it should be inlined."""
        e = Emitter(self.e.target, self.e.features)
        given = [Val(f"%a{k}", val.dtype, val.lanes) for k, val in enumerate(vals)]
        result = EMIT[op.name](e, *given)
        if len(e.lines) < LONG or result.type != type_:
            return ""
        head = f"func.func private {name}({', '.join(f'{v}: {v.type}' for v in given)}) -> {type_}"
        return f"{head} {{\n{e.text()}\n  return {result} : {type_}\n}}\n"

    def _store(self, value: Value, env: Env, val: Val, memory: Memory) -> None:
        if value in self.streamed and self.mask is None and val.lanes > 1:
            offset = self._offset(value, memory.strides, env)
            if offset.vector is None and offset.step == 1:
                val, align = self._stored(val, memory), val.lanes * memory.dtype.bytes
                self.e.store_lanes(self.address(memory, offset.base), val, align, flags=", nontemporal")
                return
        super()._store(value, env, val, memory)


class CpuBody(Body):
    """Base of CPU kernel bodies: the function, its arguments, loops."""

    BUFFER_ALIGN = 0  # those of their elements
    k: Elements
    args: CpuArguments

    def __init__(self, spec: KernelSpec, prefetch: int = 0):
        self.name, self.analysis, slots, self.p, self.host = spec
        analysis, host, self.index = self.analysis, self.host, I64
        self.full, self.small = late_outputs(analysis)
        streamed = full_outputs(analysis) if self.p.streamed else ()
        self.e = Emitter("cpu", host.features)
        self.args = args = CpuArguments(self.e, slots, I64)
        self.e.depth, self.lanes = 2, lanes_of(analysis, host)
        memories = {value: self.memory(value) for value in analysis.inputs + analysis.outputs}
        given = analysis.axes, memories, args.size, I64, set(analysis.ops), args.scalar
        self.k = Elements(self.name, self.e, *given, reports=args.reports, streamed=streamed, prefetch=prefetch)
        for value, strides in analysis.results.items():
            self.k.copies[value] = Memory(args.place(value), strides, value.dtype, value.dtype.bytes)

    def memory(self, value: Value) -> Memory:
        """The memory of a tensor."""
        dtype = self.analysis.stored(value)
        if value in self.analysis.passed_on:
            pointer = self.args.temporary((value.op, "result"), sz.mul(value.numel, dtype.bytes))
        else:
            pointer = self.args.place(value)
        return Memory(pointer, self.analysis.strides[value], dtype, dtype.bytes)

    def constant_steps(self, size: Size, value: int) -> None:
        """Replace input strides equal to ``size`` by the constant ``value``."""
        for v in self.analysis.inputs:
            memory = self.k.memories[v]
            strides = tuple(value if stride == size else stride for stride in memory.strides)
            self.k.memories[v] = replace(memory, strides=strides)

    def constant(self, value: int) -> Val:
        """An i64 constant."""
        return self.e.const(value, I64)

    def kernel(self, task: Callable[[Val], object], tasks: Size, elements: Size = 0) -> CpuKernel:
        """The finished kernel, which runs ``task(number)`` for this call's share of ``tasks`` tasks. A thread takes
        as many at a time as give it about ``grain`` elements, if a task has ``elements``; 0: one."""
        one = self.constant(1)
        self.e.depth = 1
        with self.k.region(f"scf.for %task = %begin to %end step {one} : i64 {{"):
            task(Val("%task", I64))
        if self.k.streamed:  # non-temporal stores need a fence to become visible to other threads
            self.e.line('llvm.call_intrinsic "llvm.x86.sse.sfence"() : () -> ()')
        text = f"func.func @{self.name}(%begin: i64, %end: i64, %ctx: !llvm.ptr) {{\n{self.e.text()}\n  return\n}}"
        grain = heuristics_of(self.host).tasks.grain if elements != 0 else 1
        at_a_time = sz.maximum(1, sz.floordiv(grain, sz.maximum(1, elements)))
        text = "".join(self.k.functions.values()) + text
        return CpuKernel(self.name, text, tasks, at_a_time, tuple(self.args.passed))

    # ---- loops

    def divided(self, index: Val, *counts: Size) -> tuple[Val, ...]:
        """The row-major indices of a task: the first, followed by those below ``counts``."""
        at, found = Index(index), list[Val]()
        for count in reversed(counts):
            at, rest = self.k.divmod(at, count)
            found.insert(0, self.k.scalar(rest.base))
        return self.k.scalar(at.base), *found

    def tile(self, number: Val, length: Size, extent: Size) -> tuple[Val, Val]:
        """The begin and end of a tile of ``length`` elements of a loop, which begins before its end."""
        low = self.e.mul(number, self.size(length))
        return low, self.e.min(self.e.add(low, self.size(length)), self.size(extent))

    def part(self, number: Val, length: Val, end: Val) -> tuple[Val, Val]:
        """The begin and end of a part of ``length`` elements, empty if it is beyond ``end``."""
        low = self.e.min(self.e.mul(number, length), end)
        return low, self.e.min(self.e.add(low, length), end)

    def of_blocks(
        self, around: Loops, count: Size, length: int, elements: Size, visit: Callable[[Env, Val, Val], object]
    ) -> CpuKernel:
        """The finished kernel whose tasks of ``elements`` are blocks: at each point of the loops ``around``, ``count``
        indices are divided into blocks of ``length``. ``visit(env, low, high)`` computes one."""

        def task(index: Val) -> None:
            point, at = self.k.divmod(Index(index), sz.ceildiv(count, length))
            env = self.point(around, self.k.scalar(point.base))
            visit(env, *self.tile(self.k.scalar(at.base), length, count))

        return self.kernel(task, sz.mul(points_of(around), sz.ceildiv(count, length)), elements)

    def of_columns(
        self, around: Loops, inner: list[Axis], vectors: int, rows: Size, visit: Callable[..., None]
    ) -> CpuKernel:
        """The finished kernel whose tasks are blocks of so many ``vectors`` of the loop ``inner``, over ``rows``.
        ``visit(env, indices, mask)`` computes the vectors at these indices."""

        def block(env: Env, low: Val, high: Val) -> None:
            self.vectors(low, high, self.lanes, [], lambda starts, mask, _: visit(env, starts, mask), vectors)

        length = self.lanes * vectors
        return self.of_blocks(around, size_of(inner), length, sz.mul(rows, length), block)

    def below(self, count: Val, lanes: int) -> Val:
        """The mask of lanes below ``count``, which is at most ``lanes``. The inline assembly hides constants from LLVM
        22, which else turns a masked store of one lane into a store of that lane's type before truncation, beyond the
        end of the buffer."""
        dtype = dt.i32 if lanes <= 16 else dt.i16
        if any(self.analysis.stored(v).bytes < 4 for v in self.analysis.outputs):
            count = self.e.op(f'llvm.inline_asm "", "=r,0" {count} : ({count.type}) -> {count.type}', count.dtype)
        return self.e.cmp("lt", self.e.iota(dtype, lanes), self.e.splat(self.e.cast(count, dtype), lanes))

    def vectors(
        self,
        low: Val,
        high: Val,
        lanes: int,
        carried: list[Val],
        body: Callable[[list[Index], Val | None, list[Val]], list[Val] | None],
        unroll: int = 1,
        overlapped_tail: bool = False,
    ) -> list[Val]:
        """Run ``body(indices, mask, carried) -> carried`` over ``low … high``: ``unroll`` vectors of ``lanes`` at a
        time, then the remainder one masked vector at a time. ``overlapped_tail``: the remainder is handled by the last
        ``unroll`` vectors before ``high``, unmasked; they visit elements again, and may start before ``low``."""
        e, step = self.e, lanes * unroll
        middle = e.add(low, e.and_(e.sub(high, low), -step)) if step > 1 else high

        def wide(i, state):
            starts = [e.add(i, u * lanes) if u else i for u in range(unroll)]
            return body([Index(start, int(lanes > 1), lanes) for start in starts], None, state)

        carried = self.loop(low, middle, step, carried, wide)
        if step == 1:
            return carried
        if overlapped_tail:  # a loop of at most one iteration
            return self.loop(middle, high, step, carried, lambda _, state: wide(e.sub(high, step), state))

        def narrow(i, state):
            if lanes == 1:
                return body([Index(i)], None, state)
            mask = self.below(e.sub(high, i), lanes)
            with self.k.masked(mask):
                return body([Index(i, 1, lanes)], mask, state)

        return self.loop(middle, high, lanes, carried, narrow)

    def flat(self, loops: Loops, origin: Val, index: Index, env: Env) -> Flat:
        """Vector lanes across two loops; sets both in ``env``. ``index`` is below the heuristic ``tile``, and the inner
        loop is shorter than ``short``: in that range division by multiplication is exact."""
        e, lanes, extent = self.e, index.lanes, size_of(loops[1])
        at = e.cast(self.k.materialize(index), dt.u32)
        size = e.cast(self.size(extent), dt.u32)
        tasks = heuristics_of(self.host).tasks
        shift = (tasks.tile * tasks.short).bit_length() - 1
        inverse = e.div(e.add(size, (1 << shift) - 1), size)  # a scalar: LLVM moves it out of the loop
        row = e.shr(e.mul(at, e.splat(inverse, lanes)), shift)
        column = e.sub(at, e.mul(row, e.splat(size, lanes)))
        row = e.add(e.bitcast(e.cast(row, dt.u64), I64), e.splat(origin, lanes))
        outer, inner = (Index(0, 0, lanes, v) for v in (row, e.bitcast(e.cast(column, dt.u64), I64)))
        for loop, position in zip(loops, (outer, inner)):
            self.set_loop(env, loop, position)
        return Flat((loops[0][-1], loops[1][-1]), extent, origin, index, outer, inner)

    # ---- buffers

    def stack(self, count: Size, dtype: dt.DType) -> Memory:
        """A buffer on the stack, live until the function returns."""
        stored = dt.u8 if dtype is dt.bool_ else dtype
        size, name = self.size(count), f"%stack{len(self.e.entry)}"
        text = f"llvm.alloca {size} x {stored.memory} {{alignment = 64 : i64}} : (i64) -> !llvm.ptr"
        self.e.entry.append(f"  {name} = {text}")
        return Memory(name, (), stored, stored.bytes)

    # ---- reductions

    def accumulate(self, reductions: list[Op], state: list[Val], envs: list[Env], mask: Val | None) -> list[Val]:
        """The accumulators ``state`` updated with the elements at ``envs``, which follow theirs in loop order."""
        out: list[Val] = []
        for op, before in zip(reductions, red.grouped(reductions, state)):
            out += red.accumulate(self.e, op, before, self.elements(op, envs, mask), self.in_order(op))
        return out

    def elements(self, op: Op, envs: list[Env], mask: Val | None) -> list[tuple]:
        """The operands of ``op`` at ``envs``, one env per vector, in the form that :func:`red.total` takes."""
        value = op.operands[0]
        return [(self.e.splat(self.k.value(value, env), self.lanes), self.position(op, env), mask) for env in envs]

    def merge(self, reductions: list[Op], a: list[Val], b: list[Val]) -> list[Val]:
        """The accumulators ``a`` and ``b`` combined. The elements of ``a`` precede those of ``b`` in loop order."""
        pairs = zip(reductions, red.grouped(reductions, a), red.grouped(reductions, b))
        return [v for op, x, y in pairs for v in red.combine(self.e, op, x, y, self.in_order(op))]

    def in_order(self, op: Op) -> bool:
        """Whether the loops visit the elements that ``op`` reduces in the order of their indices."""
        return self.analysis.reduced == self.analysis.axes.reduced(op)

    def hoist(self, env: Env, among) -> None:
        """Compute ``among`` here, outside of inner loops: none of them depends on those loops' axes."""
        for value in among:
            self.k.value(value, env)


class Stash:
    """Buffers on the stack for values that a pass computes and later passes need: ``kept`` has those of each pass.
    ``offset(env, u)`` is the place of the elements at ``env``, the ``u``-th vector in flight, of
    ``length``."""

    def __init__(self, body: CpuBody, kept: list[list[Value]], length: Size, offset: Callable[[Env, int], Val]):
        self.body, self.offset = body, offset
        passes = [(at, value) for at, values in enumerate(kept) for value in values]
        self.buffers = [(at, value, body.stack(length, value.dtype.compute)) for at, value in passes]

    def keep(self, envs: Iterable[Env], at: int, first: int = 0) -> None:
        """Store what pass ``at`` computes for others; the number of the first vector is ``first``."""
        body = self.body
        for computed, value, memory in self.buffers:
            for u, env in enumerate(envs, first) if computed == at else ():
                body.buffer_store(memory, self.offset(env, u), body.e.splat(body.k.value(value, env), body.lanes))

    def recall(self, envs: Iterable[Env], at: int, first: int = 0) -> None:
        """Bind what passes before the ``at``-th stored."""
        body = self.body
        for computed, value, memory in self.buffers:
            for u, env in enumerate(envs, first) if computed < at else ():
                body.k.bind(value, env, body.buffer_load(memory, self.offset(env, u), value.dtype.compute, body.lanes))


def full_outputs(analysis: Analysis) -> list[Value]:
    """The outputs over the whole domain: those with a reduced axis, or all if there is none."""
    return late_outputs(analysis)[0] if analysis.reduced else analysis.outputs


def lanes_of(analysis: Analysis, host: HostProperties) -> int:
    """Vector lanes: a register's worth of the widest element that is computed in vectors.

    Beside floats only those integers count that are accumulated. Others, as indices, take several registers: an op on
    two costs as much an element as one with half as many lanes, and all others cost half."""
    return host.vector_bytes * 8 // analysis.once(_widest_bits)


def _widest_bits(analysis: Analysis) -> int:
    values = [v for op in analysis.ops for v in (*op.operands, *(op.results if not _of_a_row(op) else ()))]
    values = _in_vectors(analysis, values) or values
    if any(v.dtype.is_float for v in values):
        carried = {v for op in analysis.ops if op.row.kind in ("reduce", "scan") for v in op.operands}
        values = [v for v in values if v.dtype.is_float or v in carried]
    return max(v.dtype.compute.bits for v in values)


def _in_vectors(analysis: Analysis, values: list[Value]) -> list[Value]:
    """Those of a pointwise segment's ``values`` that may vary along its innermost loop. Others are scalars in its
    vectors: what a row is divided by, counted in 64-bit integers."""
    if not analysis.elementwise or not analysis.kept:
        return values
    inner, domain = set(analysis.loops(analysis.kept)[-1]), set(analysis.domain)
    axes = {v: set(analysis.axes.flat(v)) for v in values}
    return [v for v in values if axes[v] & inner or not axes[v] <= domain]


def _of_a_row(op: Op) -> bool:
    """Whether the results, indices, are wider than the operands but few, one per row."""
    return op.row.accumulator == "position"


def cost_of(analysis: Analysis) -> int:
    """The approximate number of instructions per element."""
    return sum(table.TABLE[op.name].cost for op in analysis.ops if op.name in table.TABLE)


def unroll_for(cost: int) -> int:
    """Vectors in flight if an element takes ``cost`` instructions: cheaper elements need more of them for
    instruction-level parallelism."""
    return 4 if cost < 8 else 2 if cost < 40 else 1


def store_all(body: CpuBody, outputs: list[Value], envs: list[Env], domain: list[Axis]) -> None:
    """Store ``outputs`` at all of ``envs``. Computes everything before the first store, because an output may overwrite
    an input."""
    vals = [[body.k.value(value, env) for value in outputs] for env in envs]
    for env, here in zip(envs, vals):
        for value, val in zip(outputs, here):
            own = {a for dim in body.k.dims(value) for a in dim}
            missing = [env.get(a, ZERO) for a in domain if a not in own]
            body.k.store_at_zero(value, env, val, [index for index in missing if index != ZERO])
