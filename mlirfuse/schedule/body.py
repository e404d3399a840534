"""What the kernel bodies of both targets have in common: loops, and indices of axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from mlirfuse.analysis.axes import Axis
from mlirfuse.analysis.phases import Analysis, size_of
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.graph import Op
from mlirfuse.ir.sizes import Size
from mlirfuse.lowering import scans as sc
from mlirfuse.lowering.emitter import Emitter, Val
from mlirfuse.lowering.kernel import ZERO, ElementEmitter, Env, Index


class Body:
    """Base of kernel bodies. ``index`` is the type of sizes and of loops' variables."""

    LOOP_END: ClassVar[str] = "}"
    analysis: Analysis
    e: Emitter
    k: ElementEmitter
    index: dt.DType

    def size(self, size: Size) -> Val:
        """The value of a symbolic size."""
        return self.k.size(size)

    def loop(
        self, low: Val, high: Val, step: int | Val, carried: list[Val], body: Callable[[Val, list[Val]], list[Val]]
    ) -> list[Val]:
        """Emit ``scf.for`` with the loop-carried values ``carried``, whose next values ``body(index, carried)``
        returns. Returns their final values."""
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
            following = body(Val(i, self.index), inner)
            e.line(f"scf.yield {', '.join(v.name for v in following)} : {types}")
        return [Val(f"{name}#{k}", v.dtype, v.lanes) for k, v in enumerate(carried)]

    def set_loop(self, env: Env, loop: list[Axis], index: Index) -> None:
        """Set a loop over merged axes in ``env``: its innermost axis gets the whole index, the others 0."""
        env.update(dict.fromkeys(loop[:-1], ZERO) | dict.fromkeys(loop[-1:], index))

    def unlinear(self, env: Env, loops: list[list[Axis]], linear: Index | Val) -> None:
        """Set the indices of ``loops`` from one linear row-major index."""
        index = Index(linear) if isinstance(linear, Val) else linear
        for k, loop in reversed(list(enumerate(loops))):
            here = index
            if k:
                index, here = self.k.divmod(index, size_of(loop))
            self.set_loop(env, loop, here)

    def position(self, op: Op, env: Env) -> Val | None:
        """The row-major index along the reduced dimensions, for argmax and argmin; None for other ops."""
        if op.row.accumulator != "position":
            return None
        index = ZERO
        for axis in self.analysis.axes.reduced(op):
            index = self.k.add(self.k.scale(index, axis.size), env.get(axis, ZERO))
        return self.e.cast(self.k.materialize(index), dt.i64)

    # ---- scans

    def nothing_scanned(self, lanes: int) -> list[Val]:
        """The identity states of all scans, as a flat list."""
        return [v for op in self.analysis.scans for v in sc.identity(self.e, op, lanes)]

    def by_scan(self, flat: list[Val]) -> list[sc.State]:
        """A flat list of states, grouped by scan."""
        values = iter(flat)
        return [tuple(next(values) for _ in sc.state_types(op)) for op in self.analysis.scans]
