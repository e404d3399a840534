"""Scatter-add on the CPU: adds values to rows selected by indices. A task owns some rows of the result or, if there are
few rows, some columns. It copies the operand, and then reads all indices in order, so that sums do not depend on the
number of threads, and no element is written by two tasks. 16-bit floats accumulate in float32, in the workspace."""

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
from mlirfuse.schedule.cpu.scheduler import CpuScheduler
from mlirfuse.schedule.scheduler import SizedCall
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
        yield from (Tiling(self.name, split=n, own=Owned(c)) for n, c in dict.fromkeys(tried))

    def kernels(self, name: str, analysis: Analysis, slots: Slots, p: Tiling, host: HostProperties) -> list[CpuKernel]:
        return [_ScatterAdd(name, analysis, slots, host, p).kernel()]

    def check(self, analysis: Analysis, p: Tiling, call: SizedCall) -> None:
        p.must("split", p.split >= 1, "at least one task")


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

    def __init__(self, name: str, analysis: Analysis, slots: Slots, host: HostProperties, params: Tiling):
        super().__init__(name, analysis, slots, host)
        self.split, self.by_columns, self.op = params.split, params.own.columns, _op(analysis)
        self.initial, self.added = self.op.operands[0], ops.added_at(self.op.operands)
        self.in_place = slots.place(self.op.result) == slots.place(self.initial)
        self.columns = column_loops(analysis)
        self.lanes = lanes_of(analysis, host) if self.columns else 1
        self.length = size_of(self.columns[-1]) if self.columns else 1
        self.stored = self.k.memories[self.op.result]
        stored, accumulated = self.op.result.dtype, self.op.result.dtype.compute
        self.sums: Memory = self.stored
        if accumulated is not stored:
            pointer = self.args.temporary((self.op, "sums"), sz.mul(self.op.result.numel, accumulated.bytes))
            strides = sz.contiguous_strides(self.op.result.shape)
            self.sums = Memory(pointer, strides, accumulated, accumulated.bytes)

    def kernel(self) -> CpuKernel:
        """The finished kernel."""

        def task(index: Val) -> None:
            rows, columns = self.size(self.op.result.shape[0]), self.size(self.length)
            low_row, high_row, low, high = self.constant(0), rows, self.constant(0), columns
            if self.by_columns:
                unit = sz.mul(sz.ceildiv(self.length, self.split * self.lanes), self.lanes)
                low, high = self.part(index, self.size(unit), columns)
            else:
                unit = sz.ceildiv(self.op.result.shape[0], self.split)
                low_row, high_row = self.part(index, self.size(unit), rows)
            if self.sums is not self.stored or not self.in_place:
                self.over_rows(low_row, high_row, low, high, self.begin)
            owned = None if self.by_columns or self.split == 1 else (low_row, high_row)
            self.over_values(low, high, owned or (self.constant(0), rows))
            if self.sums is not self.stored:
                self.over_rows(low_row, high_row, low, high, self.end)

        self.tasks(task)
        return self.finish(self.split, 1)

    def part(self, index: Val, unit: Val, end: Val) -> tuple[Val, Val]:
        """The begin and end of part ``index`` of ``unit`` elements, at most ``end``."""
        low = self.e.min(self.e.mul(index, unit), end)
        return low, self.e.min(self.e.add(low, unit), end)

    def row_env(self, env: Env, row: Val) -> Env:
        """The env of the result's elements in this row, at the columns of the values at ``env``."""
        return self.k.at_row(self.op, env, Index(row))

    def along(self, env: Env, low: Val, high: Val, visit: Callable[[Env], None], depth: int = 0) -> None:
        """Run ``visit(env)`` for the columns ``low … high`` of the innermost loop, in vectors."""
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
        """Run ``visit(env)`` for the result's elements in the rows ``first … last`` and columns ``low … high``."""

        def one(row: Val, _: list[Val]) -> list[Val]:
            self.along({}, low, high, lambda env: visit(self.row_env(env, row)))
            return []

        self.loop(first, last, 1, [], one)

    def begin(self, env: Env) -> None:
        """Copy the operand's elements to the accumulators."""
        self.k.store(self.op.result, env, self.k.value(self.initial, env), self.sums)

    def end(self, env: Env) -> None:
        """Convert the sums to the result's dtype and store them."""
        self.k.store(self.op.result, env, self.k.reload(self.op.result, env, self.sums))

    def over_values(self, low: Val, high: Val, rows: tuple[Val, Val]) -> None:
        """Add all values whose rows this task owns."""
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
        """Add the values at ``env`` to this row."""
        k = self.k
        value, here = k.value(values, env), self.row_env(env, row)
        k.store(self.op.result, here, self.e.add(k.reload(self.op.result, here, self.sums), value), self.sums)
