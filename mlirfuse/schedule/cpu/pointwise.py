"""Pointwise segments on the CPU: output elements computed from input elements, without reductions.

The domain's axes merge into as few loops as strides allow. A task is a tile of the two innermost loops: a part of one
row if rows are long, several rows if they are short. Rows shorter than a vector share vectors (``coalesced_rows``
is 0)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from mlirfuse.analysis.axes import Axis
from mlirfuse.analysis.phases import Analysis, depends_on, kept_extents, points_of, size_of
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Op, Value
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.kernel import Env, Index
from mlirfuse.schedule.body import Loops
from mlirfuse.schedule.cpu.heuristics import heuristics_of
from mlirfuse.schedule.cpu.kernel import CpuBody, CpuKernel, cost_of, lanes_of, store_all, unroll_for
from mlirfuse.schedule.cpu.packed import Packed, gathered
from mlirfuse.schedule.cpu.scheduler import CpuScheduler, output_bytes
from mlirfuse.schedule.scheduler import KernelSpec, SizedCall
from mlirfuse.schedule.tiling import Tiling

TOGETHER = 4  # rows that share what gathers need
MOST_SIDES = 8  # limits code size: the packing code is replicated for each


def can_flatten(analysis: Analysis, call: SizedCall, vectors: int) -> bool:
    """Whether vectors can run across the two innermost loops, and rows are shorter than ``vectors`` vectors."""
    loops, extents = analysis.loops(analysis.kept), analysis.values(kept_extents, call.sizes)
    longest = min(vectors * lanes_of(analysis, call.properties), heuristics_of(call.properties).tasks.short)
    if len(loops) < 2 or extents[-1] >= longest:
        return False
    lanes = set(loops[-1]) | set(loops[-2])
    return all(lanes <= set(analysis.axes.flat(v)) for v in analysis.outputs)


def _flattens(analysis: Analysis, call: SizedCall) -> int:
    """The maximal number of vectors per row if vectors should run across rows; else 0.

    Rows are shorter than one vector; or than two and not a multiple of one, if outputs do not fit in the cores' private
    caches: there the masked stores of a row's tail take two or three times as long as full ones."""
    if can_flatten(analysis, call, 1):
        return 1
    far = output_bytes(analysis, call) > call.properties.own_cache * call.properties.threads
    if not far or not can_flatten(analysis, call, 2) or not analysis.once(_without_gathers):
        return 0
    return 2 if analysis.values(kept_extents, call.sizes)[-1] % lanes_of(analysis, call.properties) else 0


def _without_gathers(analysis: Analysis) -> bool:
    """Whether vectors across the two innermost loops need no gathers: each tensor is contiguous across both loops, or
    packed."""
    loops = analysis.loops(analysis.kept)
    (across, along), row = (loop[-1] for loop in loops[-2:]), size_of(loops[-1])
    packed = gathered(analysis, loops[-2:])
    for value in analysis.inputs + analysis.outputs:
        steps = [analysis.axis_stride(value, axis) for axis in (across, along)]
        if not set(analysis.axes.flat(value)) <= set(analysis.domain):
            return False
        if steps != [row, 1] and (value in analysis.outputs or (steps != [0, 0] and value not in packed)):
            return False
    return True


class Pointwise(CpuScheduler):
    """Computes output elements from input elements."""

    name = "pointwise"
    fields = "vectors_per_thread", "rows_per_thread", "coalesced_rows", "streamed"
    may_be_zero = ("coalesced_rows",)

    def takes(self, analysis: Analysis) -> bool:
        return analysis.elementwise

    def candidates(self, analysis: Analysis, call: SizedCall) -> Iterator[Tiling]:
        if vectors := _flattens(analysis, call):
            sides = _sides(analysis, call)
            yield Tiling("pointwise", vectors_per_thread=vectors, rows_per_thread=sides, coalesced_rows=0)
            return
        yield Tiling("pointwise", streamed=self.streams(analysis, call))

    def kernels(self, spec: KernelSpec) -> list[CpuKernel]:
        analysis, p, host = spec.analysis, spec.params, spec.properties
        heuristics = heuristics_of(host).pointwise
        prefetch = heuristics.ahead if sum(op.row.indexed for op in analysis.ops) >= heuristics.positions else 0
        body = CpuBody(spec, prefetch)
        loops = analysis.loops(analysis.kept)
        if not loops:
            return [body.kernel(lambda index: store_all(body, analysis.outputs, [{}], []), 1)]
        return [_line(body, loops[0]) if len(loops) == 1 else _tiles(body, loops, p)]

    def check(self, analysis: Analysis, p: Tiling, call: SizedCall) -> None:
        p.must("coalesced_rows", p.coalesced_rows <= 1, "must be 0 or 1")
        fits = p.coalesced_rows or (can_flatten(analysis, call, p.vectors_per_thread) and not p.streamed)
        p.must("coalesced_rows", bool(fits), "needs rows shorter than its vectors, and streamed = false")
        most = MOST_SIDES if not p.coalesced_rows and len(analysis.loops(analysis.kept)) > 2 else 1
        p.must("rows_per_thread", p.rows_per_thread <= most, f"must be from 1 to {most}")
        super().check(analysis, p, call)


def _sides(analysis: Analysis, call: SizedCall) -> int:
    """The number of neighbours along the third loop that are handled together: those that share a cache line of a
    packed input, if the line would be evicted before the next neighbour's task. Lines whose distance has a large
    power-of-two factor map to few cache sets."""
    if len(analysis.loops(analysis.kept)) < 3:
        return 1
    heuristics, (third, rows, columns) = heuristics_of(call.properties), analysis.values(kept_extents, call.sizes)[-3:]
    rows, line, found = min(rows, heuristics.tasks.tile // columns), heuristics.pointwise.line, 1
    steps = iter(analysis.values(_packed_steps, call.sizes))
    for near, far in zip(steps, steps):
        if 0 < near <= line // 2 < far and rows > call.properties.own_cache // max(line, far & -far):
            found = max(found, line // near)
    return min(third, MOST_SIDES, found)


def _packed_steps(analysis: Analysis) -> list[sz.Size]:
    """For each packed input, the strides in bytes along the third and the second loop, counted from the innermost."""
    third, second, first = analysis.loops(analysis.kept)[-3:]
    return [
        sz.mul(analysis.axis_stride(value, loop[-1]), value.dtype.bytes)
        for value in gathered(analysis, [second, first])
        for loop in (third, second)
    ]


def _line(body: CpuBody, loop: list[Axis]) -> CpuKernel:
    """A kernel with one loop: a task is a range of it."""
    extent, tile = size_of(loop), heuristics_of(body.host).tasks.tile

    def task(index: Val) -> None:
        _columns(body, [{}], loop, *body.tile(index, tile, extent))

    return body.kernel(task, sz.ceildiv(extent, tile), tile)


def _tiles(body: CpuBody, loops: Loops, params: Tiling) -> CpuKernel:
    """A kernel with several loops: a task is a tile of the two innermost ones."""
    e, sides = body.e, params.rows_per_thread
    *outer, middle, inner = loops
    rows, columns, tile = size_of(middle), size_of(inner), heuristics_of(body.host).tasks.tile
    together = _rows_together(body.analysis, middle, inner)
    height, width = sz.maximum(together, sz.floordiv(tile, columns)), sz.minimum(columns, tile)
    down, across = sz.ceildiv(rows, height), sz.ceildiv(columns, width)
    third = outer.pop() if sides > 1 else []
    beside = sz.ceildiv(size_of(third), sides) if third else 1
    invariant = _invariant(body.analysis, inner)

    def task(index: Val) -> None:
        at, group, row, column = body.divided(index, beside, down, across)
        env = body.point(outer, at)
        top, bottom = body.tile(row, height, rows)
        if not params.coalesced_rows:
            side = _Sides(third, e.mul(group, sides), sides) if third else None
            _flat(body, env, [middle, inner], top, bottom, params.vectors_per_thread, side)
            return
        left, right = body.tile(column, width, columns)

        def lines(i, _):
            found = []
            for n in range(together):  # beyond the last one, it is repeated
                at = e.min(e.add(i, n), e.sub(bottom, 1)) if n else i
                found.append(body.placed(env, middle, Index(at)))
                body.hoist(found[-1], invariant)
            _columns(body, found, inner, left, right)

        body.loop(top, bottom, together, [], lines)

    tasks = sz.mul(points_of(outer), beside, down, across)
    return body.kernel(task, tasks, sz.mul(height, width, sides))


def _rows_together(analysis: Analysis, middle, inner) -> int:
    """How many rows share the indices of gathers: more than one where those vary along a row alone, as in resizing."""
    rows, down, along = size_of(middle), set(middle), set(inner)
    for op in analysis.ops:
        if op.name in ("take", "take_along_axis"):
            varying = _axes_of_indices(analysis, op)
            if varying & along and not varying & down and isinstance(rows, int) and rows >= TOGETHER:
                return TOGETHER
    return 1


def _axes_of_indices(analysis: Analysis, op: Op) -> set[Axis]:
    """The axes of the result of a gather along which its indices vary."""
    indices, dims = op.operands[1], analysis.axes.dims(op.result)
    first = op.attrs["axis"] if op.name == "take" else 0
    return {a for d, n in enumerate(indices.shape) if n != 1 for a in dims[first + d]}


def _invariant(analysis: Analysis, inner) -> list[Value]:
    """Values that do not vary along the innermost loop."""
    varying = depends_on(analysis, inner)
    return [v for op in analysis.ops for v in op.results if v not in varying]


def _columns(body: CpuBody, rows: list[Env], loop: list[Axis], low: Val, high: Val) -> None:
    """Compute the columns ``low … high`` of some rows in vectors."""
    analysis = body.analysis

    def step(indices, mask, state):
        envs = [body.placed(row, loop, i) for row, i in itertools.product(rows, indices)]
        store_all(body, analysis.outputs, envs, analysis.kept)

    body.vectors(low, high, body.lanes, [], step, unroll_for(cost_of(analysis)) if len(rows) == 1 else 1)


class _Sides(NamedTuple):
    """``together`` neighbours along ``loop``, starting at ``first``; fewer at its end."""

    loop: list[Axis]
    first: Val
    together: int


def _flat(body: CpuBody, env: Env, loops: Loops, top: Val, bottom: Val, vectors: int, sides: _Sides | None) -> None:
    """Process the rows ``top … bottom`` in vectors that cross row boundaries."""
    e, k, analysis, lanes, extent = body.e, body.k, body.analysis, body.lanes, size_of(loops[1])
    heuristics, beside = heuristics_of(body.host).pointwise, sides.together if sides else 1
    element = sum(v.dtype.bytes for v in gathered(analysis, loops)) * beside
    # At least two rows.
    count = max(2 * vectors * lanes, min(heuristics.packed, heuristics.packed_bytes // max(1, element)))
    rows = body.size(sz.floordiv(count, extent))
    packed = Packed(body, loops, count, lanes, vectors, beside)

    def at(n: Val) -> Env:
        """The env of the n-th neighbour."""
        return body.placed(env, sides.loop, Index(e.add(sides.first, n))) if sides else dict(env)

    together, last = [env], body.constant(0)
    if sides:  # beyond the loop's end the last neighbour is repeated
        last = e.min(body.constant(beside - 1), e.sub(body.size(size_of(sides.loop)), e.add(sides.first, 1)))
        together = [at(e.min(body.constant(n), last)) for n in range(beside)]

    def some(first, _):
        end = e.min(e.add(first, rows), bottom)
        packed.pack(together, first, end)

        def one(n, _):
            room = e.mul(n, packed.room) if sides else None

            def step(indices, mask, state):
                [index] = indices
                here = at(n)
                with k.coalesced(body.flat(loops, first, index, here)):
                    packed.bind(here, e.add(index.base, room) if room is not None else index.base)
                    store_all(body, analysis.outputs, [here], analysis.kept)

            body.vectors(body.constant(0), e.mul(e.sub(end, first), body.size(extent)), lanes, [], step)

        if sides:
            return body.loop(body.constant(0), e.add(last, 1), 1, [], one)
        return one(body.constant(0), [])

    packed.pack_same(together, e.min(rows, e.sub(bottom, top)))
    body.loop(top, bottom, rows, [], some)
