"""What the kernel bodies of both targets have in common: loops, and indices of axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from mlirfuse.analysis.axes import Axis
from mlirfuse.analysis.phases import Analysis, size_of
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Op
from mlirfuse.ir.sizes import Size
from mlirfuse.lowering import reductions as red
from mlirfuse.lowering import scans as sc
from mlirfuse.lowering.emitter import Emitter, Val
from mlirfuse.lowering.kernel import ZERO, ElementEmitter, Env, Index, Memory
from mlirfuse.lowering.slots import CpuArguments, GpuArguments

Loops = list[list[Axis]]  # loops over merged axes, outermost first
Iteration = Callable[[Val, list[Val]], list[Val] | None]  # from its index and loop-carried values to the next ones


class Body:
    """Base of kernel bodies. ``index`` is the type of sizes and of loops' variables."""

    LOOP_END: ClassVar[str] = "}"
    BUFFER_ALIGN: ClassVar[int]  # the most bytes that vectors in buffers are aligned to
    analysis: Analysis
    e: Emitter
    k: ElementEmitter
    args: CpuArguments | GpuArguments
    index: dt.DType

    def size(self, size: Size) -> Val:
        """The value of a symbolic size."""
        return self.k.size(size)

    def buffer(self, key, count: Size, dtype: dt.DType) -> Memory:
        """A buffer of ``count`` elements in the workspace, identified by ``key``."""
        stored = dt.u8 if dtype is dt.bool_ else dtype
        return Memory(self.args.temporary(key, sz.mul(count, stored.bytes)), (), stored, stored.bytes)

    def buffer_store(self, memory: Memory, offset: Val, val: Val) -> None:
        """Store ``val`` in a buffer at ``offset``: on a GPU, a multiple of its lanes."""
        val = self.e.cast(val, memory.dtype)
        self.e.store_lanes(self.k.address(memory, offset), val, *self._buffer_access(memory, val.lanes))

    def buffer_load(self, memory: Memory, offset: Val, dtype: dt.DType, lanes: int = 1) -> Val:
        """Load ``lanes`` elements of a buffer at ``offset``: on a GPU, a multiple of ``lanes``."""
        address, access = self.k.address(memory, offset), self._buffer_access(memory, lanes)
        return self.e.cast(self.e.load_lanes(address, memory.dtype, lanes, *access), dtype)

    def _buffer_access(self, memory: Memory, lanes: int) -> tuple[int, Val | None]:
        """The alignment in bytes of a vector in a buffer, and its mask."""
        nbytes = memory.dtype.bytes
        return max(nbytes, min(self.BUFFER_ALIGN, lanes * nbytes)), self.k.mask if lanes > 1 else None

    # ---- loops

    def loop(self, low: Val, high: Val, step: int | Val, carried: list[Val], body: Iteration) -> list[Val]:
        """Emit ``scf.for`` with the loop-carried values ``carried``, whose next values ``body(index, carried)``
        returns, if there are any. Returns their final values."""
        e, kind = self.e, self.index.signless
        by = step if isinstance(step, Val) else e.const(step, self.index)
        i = e.fresh()
        head = f"scf.for {i} = {low} to {high} step {by}"
        if not carried:
            with self.k.region(f"{head} : {kind} {{", self.LOOP_END):
                body(Val(i, self.index), [])
            return []
        inner = [Val(e.fresh(), v.dtype, v.lanes) for v in carried]
        name, types = e.fresh(), ", ".join(v.type for v in carried)
        pairs = ", ".join(f"{a} = {b}" for a, b in zip(inner, carried))
        head = f"{name}:{len(carried)} = {head} iter_args({pairs}) -> ({types})"
        with self.k.region(f"{head} : {kind} {{", self.LOOP_END):
            following = body(Val(i, self.index), inner) or []
            e.line(f"scf.yield {', '.join(v.name for v in following)} : {types}")
        return [Val(f"{name}#{k}", v.dtype, v.lanes) for k, v in enumerate(carried)]

    def nest(self, env: Env, loops: Loops, carried: list[Val], visit, reverse: bool = False, bounds=None) -> list[Val]:
        """Run ``visit(env, carried) -> carried`` at each point of ``loops``, in order or in ``reverse``. ``bounds``:
        the first index of the outermost loop, and the end."""
        if not loops:
            return visit(env, carried) or []
        low, high = bounds or (self.e.const(0, self.index), self.size(size_of(loops[0])))

        def inside(i: Val, state: list[Val]) -> list[Val]:
            at = self.e.sub(self.e.sub(high, 1), i) if reverse else i
            return self.nest(self.placed(env, loops[0], Index(at)), loops[1:], state, visit, reverse)

        return self.loop(low, high, 1, carried, inside)

    def set_loop(self, env: Env, loop: list[Axis], index: Index) -> None:
        """Set a loop over merged axes in ``env``: its innermost axis gets the whole index, the others 0."""
        env.update(dict.fromkeys(loop[:-1], ZERO) | dict.fromkeys(loop[-1:], index))

    def placed(self, env: Env, loop: list[Axis], index: Index) -> Env:
        """``env`` with a loop set."""
        here = dict(env)
        self.set_loop(here, loop, index)
        return here

    def point(self, loops: Loops, linear: Index | Val, env: Env | None = None) -> Env:
        """``env`` with the indices of ``loops`` from one linear row-major index."""
        here, index = dict(env or {}), Index(linear) if isinstance(linear, Val) else linear
        for k, loop in reversed(list(enumerate(loops))):
            at = index
            if k:
                index, at = self.k.divmod(index, size_of(loop))
            self.set_loop(here, loop, at)
        return here

    def linear(self, env: Env, loops: Loops) -> Index:
        """The linear row-major index of a point of ``loops``."""
        index = ZERO
        for loop in loops:
            index = self.k.add(self.k.scale(index, size_of(loop)), env[loop[-1]])
        return index

    # ---- reductions

    def position(self, op: Op, env: Env) -> Val | None:
        """The row-major index along the reduced dimensions, for argmax and argmin; None for other ops."""
        if op.row.accumulator != "position":
            return None
        index = ZERO
        for axis in self.analysis.axes.reduced(op):
            index = self.k.add(self.k.scale(index, axis.size), env.get(axis, ZERO))
        return self.e.cast(self.k.materialize(index), dt.i64)

    def identities(self, reductions: Sequence[Op], lanes: int) -> list[Val]:
        """The initial accumulators of ``reductions``, as a flat list."""
        return [v for op in reductions for v in red.identity(self.e, op, lanes)]

    def bind(self, ops: Sequence[Op], totals: Sequence[tuple[Val, ...]], env: Env) -> None:
        """Bind the reductions' results at ``env``, computed from their accumulators."""
        for op, total in zip(ops, totals):
            for value, val in zip(op.results, red.results(self.e, op, total)):
                self.k.bind(value, env, val)

    # ---- scans

    def nothing_scanned(self, lanes: int) -> list[Val]:
        """The identity states of all scans, as a flat list."""
        return [v for op in self.analysis.scans for v in sc.identity(self.e, op, lanes)]

    def by_scan(self, flat: list[Val]) -> list[sc.State]:
        """A flat list of states, grouped by scan."""
        values = iter(flat)
        return [tuple(next(values) for _ in sc.state_types(op)) for op in self.analysis.scans]
