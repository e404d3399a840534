"""Building blocks of GPU kernels: block and thread indices, reductions across lanes, warps, blocks and clusters.

A kernel is a ``gpu.func`` whose parameters are the pointers and sizes that it uses. Its shared memory is one static
array, and one dynamic array."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from mlirfuse.analysis.axes import Axis
from mlirfuse.analysis.phases import late_outputs
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Op, Value
from mlirfuse.ir.sizes import Size
from mlirfuse.lowering import compensated_sums
from mlirfuse.lowering import reductions as red
from mlirfuse.lowering.emitter import Emitter, Val
from mlirfuse.lowering.kernel import STAY_L2, WIDEST, ElementEmitter, Env, Index, Memory
from mlirfuse.lowering.mapping import mapped
from mlirfuse.lowering.module import GpuKernel
from mlirfuse.lowering.ptx import TENSOR_MAP_ALIGNMENT
from mlirfuse.lowering.slots import GpuArguments
from mlirfuse.schedule.body import Body
from mlirfuse.schedule.scheduler import KernelSpec

# The end of a loop. Schedulers unroll as far as useful; further unrolling by LLVM and ptxas makes compilation up to
# three times as long.
NO_UNROLL = "} {loop_annotation = #llvm.loop_annotation<unroll = <disable = true>>}"
_TENSOR_MAP = f" {{{TENSOR_MAP_ALIGNMENT}}}"


class GpuBody(Body):
    """Base of GPU kernel bodies: the function, its arguments, loops, shared memory, cross-thread reductions."""

    LOOP_END = NO_UNROLL
    BUFFER_ALIGN = WIDEST
    args: GpuArguments
    row_inside: Val | None = None  # whether this thread's row exists; None: always

    def __init__(self, spec: KernelSpec, threads: int = 0, min_blocks_per_sm: int = 0, **options: Any):
        """``threads``, ``min_blocks_per_sm``: those of the parameters, if they are 0; ``options``: of the
        :class:`ElementEmitter`."""
        self.name, self.analysis, slots, self.p, _ = spec
        analysis, access = self.analysis, self.p.access
        self.access, self.lanes, self.threads = access, access.lanes, threads or self.p.tx * self.p.ty
        self.cluster, self.min_blocks_per_sm = self.p.cluster, min_blocks_per_sm or self.p.min_blocks_per_sm
        self.full, self.small = late_outputs(analysis)
        self.e = Emitter("gpu", slots.features)
        self.e.depth = 2
        self.index = access.index
        self.args = GpuArguments(self.e, slots, self.index)
        self.shared_bytes = self.dynamic_bytes = 0
        self.dynamic_alignment = 16  # bytes
        self.sets_registers = False  # warps change their number of registers, which ptxas then has to be told
        self.cluster_begun = False
        self.between_blocks: set[str] = set()  # parameters for memory that other blocks write concurrently
        written = [*(set(analysis.outputs) - analysis.passed_on), *analysis.results]
        taken = slots.written | {slots.place(v) for v in written}  # what is read there may change
        memories: dict[Value, Memory] = {}
        for value, align in zip(analysis.inputs + analysis.outputs, access.aligns):
            if value not in memories or value in analysis.passed_on:
                memories[value] = self._tensor(value, align, slots.place(value) in taken)
        args, ops = self.args, set(analysis.ops)
        given = (args.scalar, access.multiples, access.lanes, args.inverse, args.reports)
        self.k = ElementEmitter(self.e, analysis.axes, memories, args.size, self.index, ops, *given, **options)
        for value, strides in analysis.results.items():
            self.k.copies[value] = Memory(self.args.place(value), strides, value.dtype, value.dtype.bytes)
        self.block = self._variable("block")
        self.thread = self._variable("thread")
        self.rank = self.special("cluster.ctarank") if self.cluster > 1 else None  # of this block in its cluster
        if self.rank is not None:
            self.cluster_arrive(orders=False)  # the wait is before writes to other blocks' shared memory, after loads

    def _tensor(self, value: Value, align: int, taken: bool) -> Memory:
        """The memory of an input or output, and how to access it; ``taken``: a kernel of this call writes there."""
        analysis, hint = self.analysis, self.access.hint
        span, strides = analysis.span(value) if value in analysis.inputs else None, analysis.strides[value]
        if value in analysis.passed_on:
            dtype = analysis.stored(value)
            pointer = self.args.temporary((value.op, "result"), sz.mul(value.numel, dtype.bytes))
            return Memory(pointer, strides, dtype, align, span=span)
        read_only = value not in analysis.outputs and not taken
        along = set(analysis.domain) - (analysis.pinned if hint == STAY_L2 else set())
        # Not for weights: reductions along rows have no register left for the policy.
        hinted = read_only and (not analysis.phases or along <= set(analysis.axes.flat(value)))
        return Memory(self.args.place(value), strides, value.dtype, align, read_only, hint if hinted else "", span)

    def _variable(self, loop: str) -> Val:
        """The variable of the enclosing loop over blocks or threads: :mod:`mlirfuse.lowering.mapping`."""
        val = Val(self.e.fresh(), dt.i32)
        self.e.entry.append(f"  {val} = arith.index_cast %{loop} : index to i32")
        return val

    def special(self, register: str) -> Val:
        """A special register of a thread, i32."""
        val = Val(self.e.fresh(), dt.i32)
        self.e.entry.append(f"  {val} = nvvm.read.ptx.sreg.{register} : i32")
        return val

    def wide(self, val: Val) -> Val:
        """An i32 cast to the index type."""
        return self.e.cast(val, self.index)

    def grid_thread(self) -> Val:
        """The number of this thread in the grid."""
        return self.e.add(self.e.mul(self.wide(self.block), self.threads), self.wide(self.thread))

    def of_each(self, count: Size, one: Callable[[Val], object]) -> GpuKernel:
        """The finished kernel that runs ``one(number)`` for each of ``count`` numbers, in one thread each."""
        number = self.grid_thread()
        with self.leader(self.e.cmp("lt", number, self.size(count))):
            one(number)
        return self.finish(sz.ceildiv(count, self.threads))

    def clamped(self, index: Val, extent: Size, lanes: int = 1) -> tuple[Val, Val]:
        """``index``, or that of the last ``lanes`` elements if it is beyond a loop of ``extent``; whether it is
        not."""
        e, high = self.e, self.size(extent)
        inside = e.cmp("lt", index, high)
        return e.min(index, e.sub(high, lanes)), inside

    def own_row(self, block: Val, rows: Size) -> Val:
        """The row of this thread in the given block or cluster (of the index type), clamped to the last of ``rows``.
        Sets ``row_inside`` if a block has several."""
        if self.p.ty == 1:
            return block
        row = self.e.add(self.e.mul(block, self.p.ty), self.wide(self.quotient(self.thread, self.p.tx)))
        row, self.row_inside = self.clamped(row, rows)
        return row

    def quotient(self, val: Val, by: int) -> Val:
        """A non-negative i32 divided by a power of two."""
        e = self.e
        return e.bitcast(e.shr(e.bitcast(val, dt.u32), by.bit_length() - 1), dt.i32) if by > 1 else val

    def _noalias(self, name: str, type_: str) -> str:
        return " {llvm.noalias}" if "ptr" in type_ and name not in self.between_blocks else ""

    def finish(self, grid: Size) -> GpuKernel:
        """The finished kernel, with ``grid`` blocks or clusters."""
        shared = ""
        for what, linkage, count, used, alignment in (
            ("shared", "internal", self.shared_bytes, self.shared_bytes, 16),
            ("dynamic", "external", 0, self.dynamic_bytes, self.dynamic_alignment),
        ):
            if used:
                shared += (
                    f"  llvm.mlir.global {linkage} @{self.name}_{what}() {{addr_space = 3 : i32, "
                    f"alignment = {alignment} : i64}} : !llvm.array<{count} x i8>\n"
                )
        parameters = ", ".join(
            f"{name}: {type_}{_TENSOR_MAP if type_ == '!llvm.ptr' else self._noalias(name, type_)}"
            for name, type_ in self.args.passed.values()
        )
        attributes = f"known_block_size = array<i32: {self.threads}, 1, 1>"  # becomes nvvm.maxntid
        if self.min_blocks_per_sm > 1 or self.sets_registers:
            attributes += f", nvvm.minctasm = {self.min_blocks_per_sm} : i32"
        if self.cluster > 1:
            attributes += f", nvvm.cluster_dim = array<i32: {self.cluster}, 1, 1>"
        head = shared + f"  gpu.func @{self.name}({parameters}) kernel attributes {{{attributes}}} {{"
        text, passed = mapped(self.e.text(), self.threads), dict(self.args.passed)
        launch = sz.mul(grid, self.cluster), self.threads, self.cluster, passed, self.shared_bytes, self.dynamic_bytes
        return GpuKernel(self.name, head, text, *launch)

    # ---- loops and conditions

    def each_block(
        self, low: Val, high: Val, step: int, iterations: int, carried: list[Val], block: Callable
    ) -> list[Val]:
        """Divide the iterations of a loop from ``low`` to ``high`` by ``step`` into blocks of ``iterations``, and run
        ``block(low, high, carried) -> carried`` for each."""
        e, span = self.e, step * iterations
        count = e.add(e.div(e.sub(e.max(e.sub(high, low), 1), 1), span), 1)  # does not overflow the index type

        def one(number: Val, state: list[Val]) -> list[Val]:
            start = e.add(low, e.mul(number, span))
            return block(start, e.add(start, e.min(e.sub(high, start), span)), state)

        return self.loop(e.const(0, self.index), count, 1, carried, one)

    def totals(
        self, phase: list[Op], interval: int, start: list[Val], run: Callable, lanes: int = 1
    ) -> list[tuple[Val, ...]]:
        """The accumulators of a phase after ``run(carried, loop)``, which carries those of a thread from ``start`` on
        through calls of ``loop``. With an ``interval``, they are added to compensated totals of ``lanes`` after each so
        many iterations."""
        e = self.e
        if not interval:
            return red.grouped(phase, run(start, self.loop))

        def summed(low: Val, high: Val, step: int, totals: list[Val], iteration: Callable) -> list[Val]:
            def block(low: Val, high: Val, totals: list[Val]) -> list[Val]:
                done = red.grouped(phase, self.loop(low, high, step, start, iteration))
                if all(v.lanes == 1 for v in totals):
                    done = [red.across_lanes(e, op, a) for op, a in zip(phase, done)]
                return compensated_sums.added(e, phase, totals, [v for a in done for v in a])

            return self.each_block(low, high, step, interval, totals, block)

        done = run(compensated_sums.nothing(e, phase, lanes), summed)
        return red.grouped(phase, compensated_sums.settled(e, phase, done))

    def opaque(self, val: Val) -> Val:
        """``val``, hidden from the compiler's common-subexpression elimination: values computed from it before are not
        kept for reuse. For 16-bit floats, whose widened values would need twice the registers."""
        e = self.e
        if val.lanes * val.dtype.bits < 32:
            return val
        hidden = [e.op(f'llvm.inline_asm "", "=r,0" {word} : (i32) -> i32', dt.u32) for word in e.words(val)]
        return e.of_words(hidden, val.dtype, val.lanes)

    def in_flight(self, vals: list[Val]) -> list[Val]:
        """``vals``, with their loads ordered before everything that follows.

        LLVM would sink a load into the branch that uses it, and ptxas would move it next to its use, so that each is
        waited for alone. Neither moves the operand of opaque assembly across a possible end of the kernel: a trap whose
        condition, a tensor at address 1, is never true, which they do not know."""
        if not vals:
            return []
        e = self.e
        pinned = [self._pinned(val) for val in vals]
        tensor = next(iter(self.k.memories.values())).pointer
        never = e.cmp("eq", e.op(f"llvm.ptrtoint {tensor} : {self.k.pointer_type} to i64", dt.i64), 1)
        e.line(f'llvm.inline_asm has_side_effects "@$0 trap;", "b" {never} : (i1) -> ()')
        return pinned

    def _pinned(self, val: Val) -> Val:
        """``val``, pinned in registers at this point; values of 8 bits are not."""
        e, bits = self.e, val.lanes * val.dtype.bits
        if bits < 16:
            return val
        if bits == 16:
            word = e.op(f"llvm.bitcast {val} : {val.type} to i16", dt.u16)
            return e.op(f"llvm.bitcast {self._pinned_word(word)} : i16 to {val.type}", val.dtype, val.lanes)
        return e.of_words([self._pinned_word(word) for word in e.words(val)], val.dtype, val.lanes)

    def _pinned_word(self, word: Val) -> Val:
        register = "h" if word.dtype.bits == 16 else "r"
        text = f'llvm.inline_asm has_side_effects "", "={register},0" {word} : ({word.type}) -> {word.type}'
        return self.e.op(text, word.dtype)

    # ---- global memory

    def atomic_add(self, address: str, val: Val, shared: bool = False) -> Val:
        """Add ``val`` atomically to the number at ``address`` in global memory, or in the block's ``shared`` memory.
        Returns the number before."""
        kind, (scope, space) = "fadd" if val.dtype.is_float else "add", ("block", 3) if shared else ("device", 1)
        text = f'llvm.atomicrmw {kind} {address}, {val} syncscope("{scope}") monotonic'
        return self.e.op(f"{text} : !llvm.ptr<{space}>, {val.type}", val.dtype)

    # ---- memory shared by a block

    def barrier(self) -> None:
        """A barrier of the block."""
        self.e.line("gpu.barrier")

    def warp_barrier(self) -> None:
        """A barrier of the warp, which orders its shared-memory accesses."""
        self.e.line(f"nvvm.bar.warp.sync {self.e.const(-1, dt.i32)} : i32")

    def reserve(self, nbytes: int) -> int:
        """Reserve static shared memory; return its byte offset."""
        offset = (self.shared_bytes + 15) // 16 * 16
        self.shared_bytes = offset + nbytes
        return offset

    def reserve_dynamic(self, nbytes: int) -> int:
        """Reserve dynamic shared memory, which may exceed the static limit; return its byte offset."""
        offset = (self.dynamic_bytes + 15) // 16 * 16
        self.dynamic_bytes = offset + nbytes
        return offset

    def dynamic_address(self, base: int, offset: Val) -> str:
        """The address ``base + offset`` (bytes; i32) in the memory of :meth:`reserve_dynamic`."""
        return self.shared_address(base, offset, 1, "dynamic")

    def shared_address(self, offset: int, index: Val, nbytes: int, memory: str = "shared") -> str:
        """The address of element ``index`` (i32, elements of ``nbytes``) after the byte ``offset`` in static shared
        memory, or in "dynamic"."""
        base = self.e.fresh()
        self.e.line(f"{base} = llvm.mlir.addressof @{self.name}_{memory} : !llvm.ptr<3>")
        at = self.e.add(self.e.mul(index, nbytes), offset)
        name = self.e.fresh()
        self.e.line(f"{name} = llvm.getelementptr {base}[{at}] : (!llvm.ptr<3>, i32) -> !llvm.ptr<3>, i8")
        return name

    def beyond(self, address: str, nbytes: int) -> str:
        """The address ``nbytes`` after one in shared memory: an offset in the instruction."""
        if not nbytes:
            return address
        name = self.e.fresh()
        self.e.line(f"{name} = llvm.getelementptr {address}[{nbytes}] : (!llvm.ptr<3>) -> !llvm.ptr<3>, i8")
        return name

    def shared_store(self, address: str, val: Val, align: int = 0, space: int = 3) -> None:
        """Store ``val`` at an address in shared memory, or in distributed shared memory (``space`` 7)."""
        val = self.e.cast(val, dt.u8) if val.dtype is dt.bool_ else val
        self.e.store_lanes(address, val, align or val.dtype.bytes, pointer=f"!llvm.ptr<{space}>")

    def shared_load(self, address: str, dtype: dt.DType, lanes: int = 1, align: int = 0) -> Val:
        """Load ``lanes`` elements from an address in shared memory."""
        stored = dt.u8 if dtype is dt.bool_ else dtype
        val = self.e.load_lanes(address, stored, lanes, align or stored.bytes, pointer="!llvm.ptr<3>")
        return self.e.cmp("ne", val, 0) if dtype is dt.bool_ else val

    def store_in_block(self, address: str, block: Val, val: Val, align: int = 0) -> None:
        """Store ``val`` at the same address in the distributed shared memory of another block of the cluster."""
        there = self.e.fresh()
        self.e.line(f"{there} = nvvm.mapa {address}, {block} : !llvm.ptr<3> -> !llvm.ptr<7>")
        self.shared_store(there, val, align, space=7)

    # ---- reductions in a thread

    def elements_of(self, op: Op, places) -> list[tuple]:
        """The operands of ``op`` at these places, in the form that :func:`mlirfuse.lowering.reductions.total` takes."""
        value, lanes = op.operands[0], self.access.lanes
        return [(self.e.splat(self.k.value(value, p.env), lanes), self.position(op, p.env), p.inside) for p in places]

    def accumulated(self, phase: list[Op], places, state: list[Val], gather: bool = False) -> list[Val]:
        """``state`` updated with the elements at these places. With ``gather``, moments have the sum in place of the
        mean."""
        for place in places:
            for op in phase:
                self.k.value(op.operands[0], place.env)
        out: list[Val] = []
        for op, before in zip(phase, red.grouped(phase, state)):
            found, sums = self.elements_of(op, places), gather and op.row.accumulator == "moments"
            out += red.gather(self.e, before, found) if sums else red.accumulate(self.e, op, before, found)
        return out

    # ---- reductions across threads

    def shuffle(self, val: Val, offset: int) -> Val:
        """The value of the lane whose number differs in the bit ``offset``."""
        return self.exchanged(val, "xor", offset)

    def exchanged(self, val: Val, mode: str, by: int | Val) -> Val:
        """The value of another lane of the warp: whose number differs in the bit ``by`` ("xor"), is lower by ``by``
        ("up"; the own value if there is none), or is ``by`` ("idx")."""
        e, dtype = self.e, val.dtype
        if e.known(val) is not None:
            return val
        if dtype.bits == 64:
            low, high = (self.exchanged(half, mode, by) for half in e.halves(val))
            return e.of_halves(low, high, dtype)
        if dtype.bits < 32:
            return e.cast(self.exchanged(e.cast(val, dt.u32 if dtype.kind in "ub" else dt.i32), mode, by), dtype)
        lane = by if isinstance(by, Val) else e.const(by, dt.i32)
        width, name = e.const(32, dt.i32), e.fresh()
        e.line(f"{name}, {name}_valid = gpu.shuffle {mode} {val}, {lane}, {width} : {val.type}")
        return Val(name, dtype)

    def across_warp(
        self, ops: list[Op], accumulators: list[tuple[Val, ...]], width: int, step: int = 1
    ) -> list[tuple[Val, ...]]:
        """The combined accumulators of every ``step``-th lane in each group of ``width`` neighbouring lanes (a power of
        two up to 32), in all of those lanes."""
        offsets = [1 << k for k in reversed(range(step.bit_length() - 1, width.bit_length() - 1))]

        def pairwise(combine, a: tuple[Val, ...]) -> tuple[Val, ...]:
            return functools.reduce(lambda a, offset: combine(a, tuple(self.shuffle(v, offset) for v in a)), offsets, a)

        def fold(function, val: Val) -> Val:
            return functools.reduce(lambda val, offset: function(val, self.shuffle(val, offset)), offsets, val)

        return [red.across(self.e, op, a, pairwise, fold) if offsets else a for op, a in zip(ops, accumulators)]

    def across_block(self, ops: list[Op], accumulators: list[tuple[Val, ...]], width: int) -> list[tuple[Val, ...]]:
        """The combined accumulators of each group of ``width`` neighbouring threads (a power of two), in all of those
        threads."""
        accumulators = self.across_warp(ops, accumulators, min(width, 32))
        warps = width // 32
        if warps <= 1:
            return accumulators
        e = self.e
        lane, warp = e.and_(self.thread, 31), self.thread_warp()
        exchange = Exchange(self, accumulators, self.threads // 32, pitch=8)
        with self.leader(e.cmp("eq", lane, 0)):
            exchange.store(warp)
        self.barrier()
        first = e.and_(warp, -warps)  # this group's first warp
        source = e.add(first, e.and_(lane, warps - 1))
        loaded = {v: exchange.load(v, source) for v in exchange.offsets}
        return self.across_warp(ops, [tuple(loaded.get(v, v) for v in a) for a in accumulators], warps)

    def thread_warp(self) -> Val:
        """The number of this thread's warp in its block."""
        return self.quotient(self.thread, 32)

    def leader(self, condition: Val | None):
        """A region that runs where the condition holds; None: always."""
        return nullcontext() if condition is None else self.k.region(f"scf.if {condition} {{")

    def both(self, *conditions: Val | None) -> Val | None:
        """Whether all ``conditions`` hold; None: always."""
        return functools.reduce(lambda a, b: b if a is None else a if b is None else self.e.and_(a, b), conditions)

    def cluster_arrive(self, orders: bool = True) -> None:
        """The arrive half of a cluster barrier; with ``orders``, it releases this block's earlier writes."""
        self.e.line(f"nvvm.cluster.arrive{'' if orders else '.relaxed'} {{aligned}}")

    def cluster_wait(self) -> None:
        """The wait half of a cluster barrier: waits until all blocks have arrived."""
        self.e.line("nvvm.cluster.wait {aligned}")

    def cluster_begins(self) -> None:
        """On the first call, wait until all blocks of the cluster run, so that their shared memory may be written."""
        if not self.cluster_begun:
            self.cluster_wait()
            self.cluster_begun = True

    def across_cluster(self, ops: list[Op], accumulators: list[tuple[Val, ...]], rank: Val) -> list[tuple[Val, ...]]:
        """Combine the accumulators of a cluster's blocks: each block writes its own to every block's shared memory. A
        call of :meth:`cluster_arrive` must precede the first of these."""
        e = self.e
        self.cluster_begins()
        exchange = Exchange(self, accumulators, self.cluster, pitch=8)
        with self.leader(e.cmp("lt", self.thread, self.cluster)):
            exchange.store_in_block(rank, self.thread)
        self.cluster_arrive()
        self.cluster_wait()
        blocks = [e.const(n, dt.i32) for n in range(self.cluster)]
        return [exchange.combined(op, a, blocks) for op, a in zip(ops, accumulators)]

    def store_at(
        self, outputs: list[Value], env: Env, domain: list[Axis], valid: Val | None, predicated: bool = False
    ) -> None:
        """Store ``outputs`` at ``env`` if ``valid``, with predicated stores instead of a branch if ``predicated`` and
        possible. An output that lacks some of the domain's axes is stored where those are 0."""
        k = self.k
        vals = [k.value(v, env) for v in outputs]  # before any store, so that no load waits for one
        rows: list[tuple[Value, Val, list[Index]]] = []
        for value, val in zip(outputs, vals):
            own = {a for dim in k.dims(value) for a in dim}
            rows.append((value, val, [env[a] for a in domain if a not in own and a in env and env[a] != Index(0)]))
        rows.sort(key=lambda row: bool(row[2]))
        if valid is not None and predicated and not any(missing for _, _, missing in rows):
            for value, val, _ in rows:
                k.store_if(valid, value, env, val)
            return
        with self.leader(valid):
            for value, val, missing in rows:
                k.store_at_zero(value, env, val, missing)


class Exchange:
    """Accumulators in static shared memory, by which threads get those of others: ``count`` of each component that
    differs between threads, in vectors of ``lanes``. All threads know the other components, which are constants.
    ``pitch``: bytes from one to the next, if not those of a vector."""

    def __init__(self, body: GpuBody, accumulators: list[tuple[Val, ...]], count: int, lanes: int = 1, pitch: int = 0):
        self.body, self.e, self.lanes, self.pitch = body, body.e, lanes, pitch
        varying = dict.fromkeys(v for a in accumulators for v in a if body.e.known(v) is None)
        self.offsets = {v: body.reserve(count * self._bytes(v)) for v in varying}

    def _bytes(self, v: Val) -> int:
        return self.pitch or self.lanes * v.dtype.bytes

    def _address(self, v: Val, index: Val) -> str:
        return self.body.shared_address(self.offsets[v], index, self._bytes(v))

    def store(self, index: Val) -> None:
        """Store this thread's components as the ``index``-th."""
        for v in self.offsets:
            self.body.shared_store(self._address(v, index), v, min(16, v.dtype.bytes * self.lanes))

    def store_lanes(self, indices: list[Val]) -> None:
        """Store each lane of this thread's components, by its index."""
        for v in self.offsets:
            for lane, index in enumerate(indices):
                self.body.shared_store(self._address(v, index), self.e.extract(v, lane))

    def store_in_block(self, index: Val, block: Val) -> None:
        """Store this thread's components as the ``index``-th in the shared memory of another block of the cluster."""
        for v in self.offsets:
            self.body.store_in_block(self._address(v, index), block, v, min(16, v.dtype.bytes * self.lanes))

    def load(self, v: Val, index: Val) -> Val:
        """The ``index``-th of the component that is ``v`` in this thread."""
        if v not in self.offsets:
            return self.e.const(self.e.known(v), v.dtype, self.lanes)
        align = min(16, v.dtype.bytes * self.lanes)
        return self.body.shared_load(self._address(v, index), v.dtype, self.lanes, align)

    def combined(self, op: Op, accumulator: tuple[Val, ...], indices: list[Val]) -> tuple[Val, ...]:
        """The accumulators of ``op`` at all ``indices``, combined; they have one lane."""
        e, known = self.e, self.e.known

        def vector(v: Val) -> Val:
            if v not in self.offsets:
                return e.const(known(v), v.dtype, len(indices))
            return e.from_lanes([self.load(v, index) for index in indices])

        return red.across_lanes(e, op, tuple(map(vector, accumulator)))
