"""Accumulations on the CPU: values added to rows that indices choose. A task owns a part of the result: some rows, or
where these are few some columns. It begins them with the operand, and goes over all indices, in order; so that the sums
do not depend on the threads, and nothing is written by two. Half types accumulate in float32, in the workspace.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

from mlirfuse.analysis.axes import Axis
from mlirfuse.analysis.phases import Analysis, size_of
from mlirfuse.core.device_properties import HostProperties
from mlirfuse.ir import ops
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Op, Value
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.kernel import Env, Index, Memory
from mlirfuse.lowering.slots import Slots
from mlirfuse.schedule.cpu.heuristics import heuristics_of
from mlirfuse.schedule.cpu.kernel import CpuBody, CpuKernel, lanes_of
from mlirfuse.schedule.scheduler import Alignments, EmittedKernels, Scheduler, Sizes, require


class Params(NamedTuple):
    """``tasks``: tasks, each with a part of the result's rows, or with ``columns`` of its columns."""

    tasks: int
    columns: bool


class ScatterAdd(Scheduler[Params, HostProperties]):
    """Values added to rows that indices choose."""

    name = "scatter_add"
    parameters = Params

    def takes(self, analysis: Analysis) -> bool:
        return analysis.scatter_add is not None

    def candidates(
        self, analysis: Analysis, env: Sizes, alignments: Alignments, host: HostProperties
    ) -> Iterator[Params]:
        values, rows, width = analysis.values(_extents, env)
        lanes = lanes_of(analysis, host)
        heuristics, threads = heuristics_of(host), host.threads
        columns = rows < heuristics.scatter_add.rows_a_task * threads and width >= 2 * lanes * threads
        parts = threads if columns else min(threads, max(1, width // heuristics.scatter_add.columns_a_task))
        if values + rows * width < heuristics.tasks.shared:
            parts, columns = 1, False
        yield from dict.fromkeys(Params(*p) for p in ((parts, columns), (threads, False), (threads, True), (1, False)))

    def emit(
        self, name: str, analysis: Analysis, slots: Slots, params: Params, properties: HostProperties
    ) -> EmittedKernels:
        yield analysis, [_ScatterAdd(name, analysis, slots, properties, params).kernel()]

    def check(self, analysis: Analysis, p: Params, env: Sizes, alignments: Alignments, host: HostProperties) -> None:
        require(p.tasks >= 1, f"tasks = {p.tasks}: one at least")


def _extents(analysis: Analysis) -> list[sz.Size]:
    """Values, rows of the result, and its columns along the innermost loop."""
    op = _op(analysis)
    columns = column_loops(analysis)
    return [op.operands[2].numel, op.result.shape[0], size_of(columns[-1]) if columns else 1]


def _op(analysis: Analysis) -> Op:
    assert analysis.scatter_add is not None
    return analysis.scatter_add


def column_loops(analysis: Analysis) -> list[list[Axis]]:
    """The loops over a row of values, and of the result."""
    along = {a for dim in analysis.axes.dims(_op(analysis).operands[2])[1:] for a in dim}
    return analysis.loops([a for a in analysis.kept if a in along])


class _ScatterAdd(CpuBody):
    """The kernel."""

    def __init__(self, name: str, analysis: Analysis, slots: Slots, host: HostProperties, params: Params):
        super().__init__(name, analysis, slots, host)
        self.params, self.op = params, _op(analysis)
        self.initial, self.added = self.op.operands[0], ops.added_at(self.op.operands)
        self.in_place = slots.place(self.op.result) == slots.place(self.initial)
        self.columns = column_loops(analysis)
        self.lanes = lanes_of(analysis, host) if self.columns else 1
        self.length = size_of(self.columns[-1]) if self.columns else 1
        self.stored = self.k.memories[self.op.result]
        stored, held = self.op.result.dtype, self.op.result.dtype.compute
        self.sums: Memory = self.stored
        if held is not stored:
            place = self.args.temporary((self.op, "sums"), sz.mul(self.op.result.numel, held.bytes))
            strides = sz.contiguous_strides(self.op.result.shape)
            self.sums = Memory(place, strides, held, held.bytes)

    def kernel(self) -> CpuKernel:
        params = self.params

        def task(index: Val) -> None:
            rows, columns = self.size(self.op.result.shape[0]), self.size(self.length)
            low_row, high_row, low, high = self.constant(0), rows, self.constant(0), columns
            if params.columns:
                unit = sz.mul(sz.ceildiv(self.length, params.tasks * self.lanes), self.lanes)
                low, high = self.part(index, self.size(unit), columns)
            else:
                unit = sz.ceildiv(self.op.result.shape[0], params.tasks)
                low_row, high_row = self.part(index, self.size(unit), rows)
            if self.sums is not self.stored or not self.in_place:
                self.over_rows(low_row, high_row, low, high, self.begin)
            whole = None if params.columns or params.tasks == 1 else (low_row, high_row)
            self.over_values(low, high, whole or (self.constant(0), rows))
            if self.sums is not self.stored:
                self.over_rows(low_row, high_row, low, high, self.end)

        self.tasks(task)
        return self.finish(params.tasks, 1)

    def part(self, index: Val, unit: Val, end: Val) -> tuple[Val, Val]:
        low = self.e.min(self.e.mul(index, unit), end)
        return low, self.e.min(self.e.add(low, unit), end)

    def row_env(self, env: Env, row: Val) -> Env:
        """The env of the result's elements in this row, where ``env`` says which columns of the values."""
        return self.k.at_row(self.op, env, Index(row))

    def along(self, env: Env, low: Val, high: Val, visit: Callable[[Env], None], depth: int = 0) -> None:
        """``visit(env)`` for the columns between ``low`` and ``high`` along the innermost loop, in vectors."""
        if not self.columns:
            visit(env)
            return
        loop = self.columns[depth]
        if depth < len(self.columns) - 1:

            def inside(i: Val, _: list[Val]) -> list[Val]:
                deeper = dict(env)
                self.set_loop(deeper, loop, Index(i))
                self.along(deeper, low, high, visit, depth + 1)
                return []

            self.loop(self.constant(0), self.size(size_of(loop)), 1, [], inside)
            return

        def some(indices: list[Index], mask: Val | None, state: list[Val]) -> list[Val]:
            for index in indices:
                here = dict(env)
                self.set_loop(here, loop, index)
                visit(here)
            return []

        self.vectors(low, high, self.lanes, [], some)

    def over_rows(self, first: Val, last: Val, low: Val, high: Val, visit: Callable[[Env], None]) -> None:
        def one(row: Val, _: list[Val]) -> list[Val]:
            self.along({}, low, high, lambda env: visit(self.row_env(env, row)))
            return []

        self.loop(first, last, 1, [], one)

    def begin(self, env: Env) -> None:
        """The operand's elements, before anything is added."""
        self.k.memories[self.op.result] = self.sums
        self.k.store(self.op.result, env, self.k.value(self.initial, env))

    def end(self, env: Env) -> None:
        """Sums as they are stored."""
        self.k.memories[self.op.result] = self.sums
        total = self.k.reload(self.op.result, env)
        self.k.memories[self.op.result] = self.stored
        self.k.store(self.op.result, env, total)

    def over_values(self, low: Val, high: Val, rows: tuple[Val, Val]) -> None:
        """Adds all values whose rows are this task's."""
        e, k = self.e, self.k
        first, _ = self.added[0]

        def one(at: Val, _: list[Val]) -> list[Val]:
            for indices, values in self.added:
                env: Env = {}
                k.spread(k.dims(values)[0], Index(at), env)
                of_index = dict(env)
                k.spread(k.dims(indices)[0], Index(at), of_index)
                row = e.cast(k.value(indices, of_index), self.args.index)
                mine = e.and_(e.cmp("ge", row, rows[0]), e.cmp("lt", row, rows[1]))
                with k.region(f"scf.if {mine} {{"):
                    self.along(env, low, high, functools.partial(self.add, values, row))
            return []

        self.loop(self.constant(0), self.size(first.shape[0]), 1, [], one)

    def add(self, values: Value, row: Val, env: Env) -> None:
        k = self.k
        k.memories[self.op.result] = self.sums
        value, here = k.value(values, env), self.row_env(env, row)
        k.store(self.op.result, here, self.e.add(k.reload(self.op.result, here), value))
