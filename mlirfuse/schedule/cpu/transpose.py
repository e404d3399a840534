"""Pointwise segments on the CPU that read contiguously along one loop and write contiguously along another.

A task is a tile of the two loops, processed in square blocks of one vector along each loop, or fewer along a short
loop. Values that depend only on inputs contiguous along the *reading* loop are computed in vectors along it; the block
is then transposed in registers, and the rest is computed and stored in vectors along the *writing* loop. Blocks at the
border are masked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from mlirfuse.analysis.phases import Analysis, points_of, size_of
from mlirfuse.core.errors import ScheduleError
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Value
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.kernel import Env, Index
from mlirfuse.lowering.vector_transposes import transposed
from mlirfuse.schedule.cpu.heuristics import heuristics_of
from mlirfuse.schedule.cpu.kernel import CpuBody, CpuKernel, lanes_of, store_all
from mlirfuse.schedule.cpu.scheduler import CpuScheduler
from mlirfuse.schedule.scheduler import KernelSpec, SizedCall, power_of_two, require
from mlirfuse.schedule.tiling import Tiling
from mlirfuse.schedule.transposed import frontier, unmapped_inputs


class Block(NamedTuple):
    """``reading``: the loop along which inputs are contiguous. ``read_lanes``, ``write_lanes``: a block's extents along
    it and along the writing loop."""

    reading: int
    read_lanes: int
    write_lanes: int


def block_of(analysis: Analysis, call: SizedCall) -> tuple[Block, bool] | None:
    """The block, and whether blocks divide both loops.

    The reading loop is the one along which most input bytes are contiguous. None if that is the writing loop, or if
    both loops are shorter than a vector."""
    loops = analysis.loops(analysis.kept)
    if len(loops) < 2:
        return None
    tensors = analysis.once(unmapped_inputs)
    values = analysis.values(_strides_and_extents, call.sizes)
    strides, extents = values[: len(tensors) * len(loops)], values[len(tensors) * len(loops) :]
    votes = [0] * len(loops)
    for at, value in enumerate(tensors):
        here = strides[at * len(loops) : (at + 1) * len(loops)]
        if here[-1] not in (0, 1) and 1 in here:
            votes[here.index(1)] += value.dtype.bytes
    best = max(range(len(loops)), key=votes.__getitem__)
    side = min(lanes_of(analysis, call.properties), heuristics_of(call.properties).transpose.widest)
    if not votes[best] or not max(extents[best], extents[-1]) >= side > 1:
        return None
    height, width = (min(side, 1 << (extent - 1).bit_length()) for extent in (extents[best], extents[-1]))
    return Block(best, height, width), extents[best] % height == 0 and extents[-1] % width == 0


def _strides_and_extents(analysis: Analysis):
    loops = analysis.loops(analysis.kept)
    return [analysis.axis_stride(v, loop[-1]) for v in unmapped_inputs(analysis) for loop in loops] + [
        size_of(loop) for loop in loops
    ]


def _transposed_values(analysis: Analysis, reading, writing) -> list[Value]:
    """The values to compute along the reading loop and to transpose: the inputs that are contiguous along it or, if
    those are not fewer, the values computed from only them."""
    of = lambda v, loop: analysis.axis_stride(v, loop[-1])  # noqa: E731
    inputs = [v for v in analysis.once(unmapped_inputs) if of(v, reading) == 1 and of(v, writing) not in (0, 1)]
    needed = frontier(analysis, inputs)
    return needed if len(needed) <= len(inputs) else inputs


class Transpose(CpuScheduler):
    """Computes output elements from inputs that are contiguous along another dimension."""

    name = "transpose"
    fields = "unmasked", "streamed"
    own = Block

    def takes(self, analysis: Analysis) -> bool:
        return analysis.elementwise and len(analysis.loops(analysis.kept)) > 1

    def candidates(self, analysis: Analysis, call: SizedCall) -> Iterator[Tiling]:
        if found := block_of(analysis, call):
            block, unmasked = found
            streamed = self.streams(analysis, call)
            yield Tiling(self.name, unmasked=int(unmasked), streamed=streamed, own=block)

    def kernels(self, spec: KernelSpec) -> list[CpuKernel]:
        return [_Kernel(spec).emit()]

    def check(self, analysis: Analysis, p: Tiling, call: SizedCall) -> None:
        found, own = block_of(analysis, call), p.own
        if found is None:
            raise ScheduleError(
                "transpose: no input is contiguous along another loop, or both loops are shorter than a vector"
            )
        widest = heuristics_of(call.properties).transpose.widest
        extents = analysis.values(_strides_and_extents, call.sizes)[-len(analysis.loops(analysis.kept)) :]
        reading = found[0].reading
        p.must("reading", own.reading == reading, f"inputs are contiguous along loop {reading}")
        for name, n in (("read_lanes", own.read_lanes), ("write_lanes", own.write_lanes)):
            p.must(name, power_of_two(n) and n <= widest, f"must be a power of two up to {widest}")
        require(max(own.read_lanes, own.write_lanes) > 1, "read_lanes, write_lanes: at least one must exceed 1")
        unmasked = extents[own.reading] % own.read_lanes == 0 and extents[-1] % own.write_lanes == 0
        p.must("unmasked", unmasked or not p.unmasked, "blocks do not divide the loops")
        narrow = own.write_lanes <= lanes_of(analysis, call.properties)
        p.must("streamed", narrow or not p.streamed, "not for blocks that are wider than a vector")
        super().check(analysis, p, call)


class _Kernel(CpuBody):
    """The kernel of a segment. A task is a tile, which consists of blocks of ``height`` by ``width`` elements."""

    def __init__(self, spec: KernelSpec):
        super().__init__(spec)
        analysis, params, host = spec.analysis, spec.params, spec.properties
        reading, self.height, self.width = params.own
        self.unmasked, loops = bool(params.unmasked), analysis.loops(analysis.kept)
        self.writing, self.reading = loops[-1], loops[reading]
        self.outer = [loop for n, loop in enumerate(loops[:-1]) if n != reading]
        self.rows, self.columns = rows, columns = size_of(self.reading), size_of(self.writing)
        # A tile has the same number of elements if one of the loops is short.
        heuristics = heuristics_of(host).transpose
        self.tile_rows = heuristics.rows * sz.floordiv(heuristics.columns, sz.minimum(columns, heuristics.columns))
        self.tile_columns = heuristics.columns * sz.floordiv(heuristics.rows, sz.minimum(rows, heuristics.rows))
        self.values = _transposed_values(analysis, self.reading, self.writing)

    def emit(self) -> CpuKernel:
        """The finished kernel."""
        rows, columns, tile_rows, tile_columns = self.rows, self.columns, self.tile_rows, self.tile_columns
        tiles = sz.ceildiv(rows, tile_rows), sz.ceildiv(columns, tile_columns)
        elements = sz.mul(sz.minimum(rows, tile_rows), sz.minimum(columns, tile_columns))
        tasks = sz.mul(points_of(self.outer), *tiles)
        return self.kernel(self.task, tasks, elements)

    def at(self, env: Env, r: Index, w: Index) -> Env:
        """``env`` at a row and a column."""
        return self.placed(self.placed(env, self.reading, r), self.writing, w)

    def block(self, env: Env, r: Val, w: Val, high_r: Val | None = None, high_w: Val | None = None) -> None:
        """Emit the block that starts at ``r``, ``w``; one that may exceed them has bounds."""
        e, k, analysis, height, width, edge = self.e, self.k, self.analysis, self.height, self.width, high_r is not None
        down, along = ([e.add(low, u) if u else low for u in range(n)] for low, n in ((r, height), (w, width)))
        if edge:  # read the last column instead of columns beyond the bound
            last = e.sub(high_w, 1)
            along = [e.min(here, last) for here in along]
        across = [self.at(env, Index(here), Index(w, 1, width)) for here in down]
        with k.masked(self.below(e.sub(high_r, r), height) if edge else None):
            envs = [[(v, self.at(env, Index(r, 1, height), Index(here))) for here in along] for v in self.values]
            read = [[e.splat(self.read(value, here), height) for value, here in of] for of in envs]
        for value, vectors in zip(self.values, read):
            for here, val in zip(across, transposed(e, vectors)):
                (k.bind_loaded if value in analysis.inputs else k.bind)(value, here, val)
        mask = self.below(e.sub(high_w, w), width) if edge else None
        for at_row, here in zip(down, across):
            if not edge:
                store_all(self, analysis.outputs, [here], analysis.kept)
                continue
            with k.region(f"scf.if {e.cmp('lt', at_row, high_r)} {{"), k.masked(mask):
                store_all(self, analysis.outputs, [here], analysis.kept)

    def read(self, value: Value, env: Env) -> Val:
        """A vector of a transposed value along the reading loop."""
        return (self.k.preload if value in self.analysis.inputs else self.k.value)(value, env)

    def task(self, index: Val) -> None:
        """Transpose a tile."""
        e, height, width = self.e, self.height, self.width
        across, down = sz.ceildiv(self.columns, self.tile_columns), sz.ceildiv(self.rows, self.tile_rows)
        at, w_tile, r_tile = self.divided(index, across, down)
        env = self.point(self.outer, at)
        low_r, low_w = e.mul(r_tile, self.size(self.tile_rows)), e.mul(w_tile, self.size(self.tile_columns))
        high_r = e.min(e.add(low_r, self.size(self.tile_rows)), self.size(self.rows))
        high_w = e.min(e.add(low_w, self.size(self.tile_columns)), self.size(self.columns))
        middle_r = e.add(low_r, e.and_(e.sub(high_r, low_r), -height))
        middle_w = e.add(low_w, e.and_(e.sub(high_w, low_w), -width))

        # Consecutive blocks write adjacent memory, so that a cache line that two of them share is still cached.
        def blocks(r, first, end, *ends):
            return self.loop(first, end, width, [], lambda w, _: self.block(env, r, w, *ends))

        def edge(r, _):
            return blocks(r, e.select(e.cmp("lt", r, middle_r), middle_w, low_w), high_w, high_r, high_w)

        self.loop(low_r, middle_r, height, [], lambda r, _: blocks(r, low_w, middle_w))
        if not self.unmasked:
            self.loop(low_r, high_r, height, [], edge)
