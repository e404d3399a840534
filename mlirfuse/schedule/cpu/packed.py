"""Packs inputs for vectors that run across two loops of a CPU kernel (:class:`~mlirfuse.schedule.cpu.kernel.Flat`).

An input that is not contiguous across both loops would need element-wise gathers. Instead some of its rows are copied
by vector loads to an L1-resident buffer in the order of the loops. An input that is the same in all rows is copied once
per task."""

from __future__ import annotations

import itertools

from mlirfuse.analysis.phases import Analysis, size_of
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Value
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.kernel import Env, Index
from mlirfuse.schedule.body import Loops
from mlirfuse.schedule.cpu.kernel import CpuBody


class Packed:
    """Buffers of ``count`` elements for the inputs that vectors of ``lanes`` across ``loops`` (outer, inner) would
    gather. A row has at most ``vectors`` vectors. ``sides``: so many neighbours along a third loop are packed together,
    row by row, because they share cache lines."""

    def __init__(self, body: CpuBody, loops: Loops, count: int, lanes: int, vectors: int = 1, sides: int = 1):
        self.body, self.loops, self.lanes, self.vectors = body, loops, lanes, vectors
        self.room = count + vectors * lanes  # elements per neighbour
        dtypes = {value: body.k.held(body.k.memories[value].dtype) for value in gathered(body.analysis, loops)}
        self._buffers = {value: body.stack(sides * self.room, dtype) for value, dtype in dtypes.items()}
        self._same = [value for value in self._buffers if body.analysis.axis_stride(value, loops[0][-1]) == 0]

    def pack_same(self, sides: list[Env], rows: Val) -> None:
        """Pack the inputs that are the same in all rows, for up to ``rows`` rows."""
        self._pack(self._same, sides, self.body.constant(0), rows)

    def pack(self, sides: list[Env], first: Val, end: Val) -> None:
        """Pack the rows ``first … end`` of the other inputs."""
        self._pack([value for value in self._buffers if value not in self._same], sides, first, end)

    def _pack(self, values: list[Value], sides: list[Env], first: Val, end: Val) -> None:
        body, k, e, lanes = self.body, self.body.k, self.body.e, self.lanes
        outer, inner = self.loops
        extent = body.size(size_of(inner))
        masks = [body.below(e.sub(extent, v * lanes), lanes) for v in range(self.vectors)]

        def row(i, _):
            start = e.mul(e.sub(i, first), extent)
            for (side, env), (v, mask) in itertools.product(enumerate(sides), enumerate(masks)):
                offset = side * self.room + v * lanes
                here = body.placed(body.placed(env, outer, Index(i)), inner, Index(v * lanes, 1, lanes))
                for value in values:
                    with k.masked(mask):
                        val = e.splat(k.preload(value, here), lanes)
                    buffer = self._buffers[value]  # the next row overwrites elements beyond this one
                    body.buffer_store(buffer, e.add(start, offset) if offset else start, e.bitcast(val, buffer.dtype))

        if values:
            body.loop(first, end, 1, [], row)

    def bind(self, env: Env, offset: Val, row: Val | None = None) -> None:
        """Bind the packed inputs at ``env``, whose first lane is element ``offset`` of the rows from ``row`` on,
        counted from the first packed row. The n-th neighbour's offset is greater by n times ``room``."""
        body, k, e = self.body, self.body.k, self.body.e
        later = e.add(offset, e.mul(row, body.size(size_of(self.loops[1])))) if row is not None else offset
        for value, buffer in self._buffers.items():
            val = body.buffer_load(buffer, offset if value in self._same else later, buffer.dtype, self.lanes)
            k.bind_loaded(
                value, env, val if value.dtype is dt.bool_ else e.of_loaded_bits(val, k.memories[value].dtype)
            )


def gathered(analysis: Analysis, loops: Loops) -> list[Value]:
    """The inputs that are contiguous or constant along the inner loop, but not contiguous across both loops."""
    _, inner = loops
    out = []
    for value in analysis.inputs:
        across, along = (analysis.axis_stride(value, loop[-1]) for loop in loops)
        own = set(analysis.axes.flat(value)) <= set(analysis.domain)
        if along in (0, 1) and across != sz.mul(along, size_of(inner)) and own:
            out.append(value)
    return out
