"""Scatter-add on the CPU: adds values to rows selected by indices. A task owns some rows of the result or, if there are
few rows, some columns. It copies the operand, and then reads all indices in order, so that sums do not depend on the
number of threads, and no element is written by two tasks. 16-bit floats accumulate in float32, in the workspace."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

from mlirfuse.analysis.axes import Axis
from mlirfuse.analysis.phases import Analysis, size_of
from mlirfuse.ir import ops
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Op, Value
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.kernel import Env, Index, Memory
from mlirfuse.schedule.cpu.heuristics import heuristics_of
from mlirfuse.schedule.cpu.kernel import CpuBody, CpuKernel, lanes_of
from mlirfuse.schedule.cpu.scheduler import CpuScheduler
from mlirfuse.schedule.scheduler import KernelSpec, SizedCall
from mlirfuse.schedule.tiling import Tiling


class Owned(NamedTuple):
    """``columns``: each of ``split`` tasks owns a part of the result's columns, not of its rows."""

    columns: bool = False


class ScatterAdd(CpuScheduler):
    """Adds values to rows selected by indices."""

    name = "scatter_add"
    fields = ("split",)
    own = Owned

    def takes(self, analysis: Analysis) -> bool:
        return analysis.scatter_add is not None

    def candidates(self, analysis: Analysis, call: SizedCall) -> Iterator[Tiling]:
        values, rows, width = analysis.values(_extents, call.sizes)
        lanes = lanes_of(analysis, call.properties)
        heuristics, threads = heuristics_of(call.properties), call.properties.threads
        columns = rows < heuristics.scatter_add.rows_a_task * threads and width >= 2 * lanes * threads
        parts = threads if columns else min(threads, max(1, width // heuristics.scatter_add.columns_a_task))
        if values + rows * width < heuristics.tasks.shared:
            parts, columns = 1, False
        tried = (parts, columns), (threads, False), (threads, True), (1, False)
        yield from (Tiling(self.name, split=n, own=Owned(c)) for n, c in tried)

    def kernels(self, spec: KernelSpec) -> list[CpuKernel]:
        return [_ScatterAdd(spec).emit()]


def _extents(analysis: Analysis) -> list[sz.Size]:
    """The number of values, of rows of the result, and of its columns along the innermost loop."""
    op = _op(analysis)
    columns = column_loops(analysis)
    return [op.operands[2].numel, op.result.shape[0], size_of(columns[-1]) if columns else 1]


def _op(analysis: Analysis) -> Op:
    assert analysis.scatter_add is not None
    return analysis.scatter_add


def column_loops(analysis: Analysis) -> list[list[Axis]]:
    """The loops over a row of the values, and of the result."""
    along = {a for dim in analysis.axes.dims(_op(analysis).operands[2])[1:] for a in dim}
    return analysis.loops([a for a in analysis.kept if a in along])


class _ScatterAdd(CpuBody):
    """The kernel body."""

    def __init__(self, spec: KernelSpec):
        super().__init__(spec)
        analysis, slots, params = spec.analysis, spec.slots, spec.params
        self.split, self.by_columns, self.op = params.split, params.own.columns, _op(analysis)
        self.initial, self.added = self.op.operands[0], ops.added_at(self.op.operands)
        self.in_place = slots.place(self.op.result) == slots.place(self.initial)
        self.columns = column_loops(analysis)
        self.lanes = self.lanes if self.columns else 1
        self.length = size_of(self.columns[-1]) if self.columns else 1
        self.stored = self.k.memories[self.op.result]
        stored, accumulated = self.op.result.dtype, self.op.result.dtype.compute
        self.sums: Memory = self.stored
        if accumulated is not stored:
            pointer = self.args.temporary((self.op, "sums"), sz.mul(self.op.result.numel, accumulated.bytes))
            strides = sz.contiguous_strides(self.op.result.shape)
            self.sums = Memory(pointer, strides, accumulated, accumulated.bytes)

    def emit(self) -> CpuKernel:
        """The finished kernel."""
        result, k = self.op.result, self.k

        def begin(env: Env) -> None:
            k.store(result, env, k.value(self.initial, env), self.sums)

        def end(env: Env) -> None:
            k.store(result, env, k.reload(result, env, self.sums))

        def task(index: Val) -> None:
            zero, rows, columns = self.constant(0), self.size(result.shape[0]), self.size(self.length)
            part, across = (zero, rows), (zero, columns)
            if self.by_columns:
                unit = sz.mul(sz.ceildiv(self.length, self.split * self.lanes), self.lanes)
                across = self.part(index, self.size(unit), columns)
            else:
                part = self.part(index, self.size(sz.ceildiv(result.shape[0], self.split)), rows)
            if self.sums is not self.stored or not self.in_place:
                self.over_rows(part, across, begin)
            self.over_values(across, (zero, rows) if self.by_columns or self.split == 1 else part)
            if self.sums is not self.stored:
                self.over_rows(part, across, end)

        return self.kernel(task, self.split)

    def row_env(self, env: Env, row: Val) -> Env:
        """The env of the result's elements in this row, at the columns of the values at ``env``."""
        return self.k.at_row(self.op, env, Index(row))

    def along(self, env: Env, across: tuple[Val, Val], visit: Callable[[Env], None]) -> None:
        """Run ``visit(env)`` for the columns ``across`` (begin and end) of the innermost loop, in vectors."""
        if not self.columns:
            visit(env)
            return
        *outer, loop = self.columns

        def vectors(env: Env, _: list[Val]) -> list[Val]:
            def some(indices: list[Index], mask: Val | None, state: list[Val]) -> None:
                for index in indices:
                    visit(self.placed(env, loop, index))

            return self.vectors(*across, self.lanes, [], some)

        self.nest(env, outer, [], vectors)

    def over_rows(self, rows: tuple[Val, Val], across: tuple[Val, Val], visit: Callable[[Env], None]) -> None:
        """Run ``visit(env)`` for the result's elements in these rows and columns."""

        def one(row: Val, _: list[Val]) -> None:
            self.along({}, across, lambda env: visit(self.row_env(env, row)))

        self.loop(*rows, 1, [], one)

    def over_values(self, across: tuple[Val, Val], rows: tuple[Val, Val]) -> None:
        """Add all values whose rows this task owns."""
        e, k = self.e, self.k
        first, _ = self.added[0]

        def one(at: Val, _: list[Val]) -> None:
            for indices, values in self.added:
                env: Env = {}
                k.spread(k.dims(values)[0], Index(at), env)
                of_index = dict(env)
                k.spread(k.dims(indices)[0], Index(at), of_index)
                row = e.cast(k.value(indices, of_index), self.args.index)
                mine = e.and_(e.cmp("ge", row, rows[0]), e.cmp("lt", row, rows[1]))
                with k.region(f"scf.if {mine} {{"):
                    self.along(env, across, functools.partial(self.add, values, row))

        self.loop(self.constant(0), self.size(first.shape[0]), 1, [], one)

    def add(self, values: Value, row: Val, env: Env) -> None:
        """Add the values at ``env`` to this row."""
        k = self.k
        value, here = k.value(values, env), self.row_env(env, row)
        k.store(self.op.result, here, self.e.add(k.reload(self.op.result, here, self.sums), value), self.sums)
