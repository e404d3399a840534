"""Loops of CPU kernels: tasks shared by the thread pool, vector lanes, masked tails, carried accumulators.

Every CPU kernel is ``func.func @name(%begin: i64, %end: i64, %ctx: !llvm.ptr)`` and works off the tasks ``begin … end - 1``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable

from mlirfuse import dtypes as dt
from mlirfuse import sizes as sz
from mlirfuse.graph import Op, Value
from mlirfuse.lowering import llvm
from mlirfuse.lowering import reductions as red
from mlirfuse.lowering.emitter import Emitter, Val
from mlirfuse.lowering.kernel import Env, Index, Kernel, Memory
from mlirfuse.lowering.slots import CpuArguments, Slots
from mlirfuse.schedule.analysis import Analysis, size_of
from mlirfuse.schedule.axes import Axis
from mlirfuse.sizes import Size

I64 = dt.i64


@dataclass
class CpuKernel:
    """A kernel's text, how many tasks it has, and how many a thread should take at a time at least."""

    name: str
    text: str
    tasks: Size
    grain: Size


class CpuBody:
    """What the schedulers of CPU kernels share: the function, its arguments, loops."""

    def __init__(self, name: str, analysis: Analysis, slots: Slots, inside=None):
        self.name, self.analysis = name, analysis
        self.e = Emitter("cpu", llvm.host_features())
        self.args = CpuArguments(self.e, slots, I64)
        self.e.depth = 2
        memories = {}
        for value in analysis.inputs + analysis.outputs:
            memories[value] = Memory(self.args.place(value), analysis.strides[value], value.dtype, value.dtype.bytes)
        self.k = Kernel(self.e, analysis.axes, memories, self.args.size, I64, set(analysis.ops) if inside is None else inside, self.args.scalar)

    def size(self, size: Size) -> Val:
        return self.k.size(size)

    def finish(self, tasks: Size, grain: Size) -> CpuKernel:
        body = self.e.text()
        text = (
            f"func.func @{self.name}(%begin: i64, %end: i64, %ctx: !llvm.ptr) {{\n{body}\n  return\n}}"
        )
        return CpuKernel(self.name, text, tasks, grain)

    def tasks(self, body: Callable[[Val], None]) -> None:
        """The loop over this call's tasks."""
        one = self.e.const(1, I64)
        self.e.depth = 1
        with self.k.region(f"scf.for %task = %begin to %end step {one} : i64 {{"):
            body(Val("%task", I64))

    def loop(self, low: Val, high: Val, step: int, carried: list[Val], body: Callable[[Val, list[Val]], list[Val]]) -> list[Val]:
        """``scf.for`` carrying ``carried``; ``body(index, carried)`` gives their next values. Returns their last ones."""
        e = self.e
        by = e.const(step, I64)
        i = e.fresh()
        if not carried:
            with self.k.region(f"scf.for {i} = {low} to {high} step {by} : i64 {{"):
                body(Val(i, I64), [])
            return []
        inner = [Val(e.fresh(), v.dtype, v.lanes) for v in carried]
        name = e.fresh()
        pairs = ", ".join(f"{a} = {b}" for a, b in zip(inner, carried))
        types = ", ".join(v.type for v in carried)
        with self.k.region(f"{name}:{len(carried)} = scf.for {i} = {low} to {high} step {by} iter_args({pairs}) -> ({types}) : i64 {{"):
            following = body(Val(i, I64), inner)
            e.line(f"scf.yield {', '.join(v.name for v in following)} : {types}")
        return [Val(f"{name}#{k}", v.dtype, v.lanes) for k, v in enumerate(carried)]

    def when(self, condition: Val, carried: list[Val], body: Callable[[], list[Val]]) -> list[Val]:
        """``scf.if``: ``body``'s values where the condition holds, else ``carried``."""
        e = self.e
        if not carried:
            with self.k.region(f"scf.if {condition} {{"):
                body()
            return []
        name, types = e.fresh(), ", ".join(v.type for v in carried)
        with self.k.region(f"{name}:{len(carried)} = scf.if {condition} -> ({types}) {{", "} else {"):
            e.line(f"scf.yield {', '.join(v.name for v in body())} : {types}")
        e.line(f"  scf.yield {', '.join(v.name for v in carried)} : {types}")
        e.line("}")
        return [Val(f"{name}#{k}", v.dtype, v.lanes) for k, v in enumerate(carried)]

    def set_loop(self, env: Env, loop: list[Axis], index: Index) -> None:
        """The env of a loop over merged axes: all of its index is on the innermost one."""
        for axis in loop[:-1]:
            env[axis] = Index(0)
        env[loop[-1]] = index

    def unlinear(self, env: Env, loops: list[list[Axis]], linear: Val) -> None:
        """Sets the loops' indices from one index over all of them, row-major."""
        index = Index(linear)
        for k, loop in reversed(list(enumerate(loops))):
            if k == 0:
                self.set_loop(env, loop, index)
            else:
                index, here = self.k.divmod(index, size_of(loop))
                self.set_loop(env, loop, here)

    def vectors(self, low: Val, high: Val, lanes: int, carried: list[Val], body, unroll: int = 1) -> list[Val]:
        """Runs ``body(index, mask, carried) -> carried`` over ``low … high`` in vectors of ``lanes``, the last one masked.

        With ``unroll`` > 1, ``carried`` are that many sets of accumulators, one for each of as many vectors in flight.
        """
        e = self.e
        width = len(carried) // unroll
        step = lanes * unroll
        span = e.sub(high, low)
        whole = e.mul(e.div(span, e.const(step, I64)), step)
        middle = e.add(low, whole)

        def wide(i, state):
            out = []
            for u in range(unroll):
                at = i if u == 0 else e.add(i, u * lanes)
                out += body(Index(at, 1, lanes) if lanes > 1 else Index(at), None, state[u * width : (u + 1) * width])
            return out

        carried = self.loop(low, middle, step, carried, wide)
        if unroll > 1:
            first = self.loop(
                middle, e.add(low, e.mul(e.div(span, e.const(lanes, I64)), lanes)), lanes, carried[:width],
                lambda i, state: body(Index(i, 1, lanes), None, state),
            )  # fmt: skip
            carried = first + carried[width:]
            middle = e.add(low, e.mul(e.div(span, e.const(lanes, I64)), lanes))
        if lanes == 1:
            return carried
        left = e.sub(high, middle)

        def tail():
            mask = e.cmp("lt", e.iota(I64, lanes), e.splat(left, lanes))
            with self.k.masked(mask):
                return body(Index(middle, 1, lanes), mask, carried[:width])

        first = self.when(e.cmp("gt", left, 0), carried[:width], tail)
        return (first or []) + carried[width:]

    def accumulate(self, reductions: list[Op], env: Env, mask: Val | None, state: list[Val], lanes: int) -> list[Val]:
        """Adds the elements at ``env`` to the accumulators ``state`` of ``reductions``."""
        out, at = [], 0
        for op in reductions:
            width = len(red.accumulator_types(op))
            val = self.e.splat(self.k.value(op.operands[0], env), lanes)
            new = red.element(self.e, op, val, self.position(op, env))
            if mask is not None:
                nothing = red.identity(self.e, op, lanes)
                new = tuple(self.e.select(mask, a, b) for a, b in zip(new, nothing))
            out += red.combine(self.e, op, tuple(state[at : at + width]), new)
            at += width
        return out

    def position(self, op: Op, env: Env) -> Val | None:
        """The place along the reduced dimensions, row-major, for argmax and argmin."""
        if op.name not in ("argmax", "argmin"):
            return None
        index = Index(0)
        for axis in self.analysis.axes.reduced(op):
            index = self.k.add(self.k.scale(index, axis.size), env.get(axis, Index(0)))
        return self.e.cast(self.k.materialize(index), I64)

    def identities(self, reductions: list[Op], lanes: int) -> list[Val]:
        return [v for op in reductions for v in red.identity(self.e, op, lanes)]


def lanes_of(analysis: Analysis) -> int:
    """Vector lanes: 64 bytes of the widest element that is computed with."""
    widest = max(v.dtype.compute.bits for op in analysis.ops for v in list(op.operands) + list(op.results))
    return 64 // max(widest // 8, 4)


def store_outputs(body: CpuBody, outputs: list[Value], env: Env, domain: list[Axis]) -> None:
    """Stores ``outputs`` at ``env``. One that lacks some of the domain's axes is stored where these are at 0."""
    k, e = body.k, body.e
    vals = [k.value(value, env) for value in outputs]  # before any store: an output may be written over an input
    for value, val in zip(outputs, vals):
        own = {a for dim in k.dims(value) for a in dim}
        missing = [env[a] for a in domain if a not in own and a in env and env[a] != Index(0)]
        condition = None
        for index in missing:
            at_zero = e.cmp("eq", k.scalar(index.base), 0)
            condition = at_zero if condition is None else e.and_(condition, at_zero)
        if condition is None:
            k.store(value, env, val)
        else:
            with k.region(f"scf.if {condition} {{"):
                k.store(value, env, val)


def rows_grain(elements_a_task: Size, target: int = 16384) -> Size:
    """Tasks a thread takes at a time, so that it has about ``target`` elements."""
    return sz.maximum(1, sz.floordiv(target, sz.maximum(1, elements_a_task)))
