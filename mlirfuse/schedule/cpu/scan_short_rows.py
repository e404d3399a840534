"""Scans on the CPU along adjacent rows that are no longer than a vector.

A vector has as many full rows as fit, or one row, and is scanned in a register; values are never combined across rows.
Every vector starts with a row, so that all vectors use the same shuffles. If rows share a vector, those depend on the
row length, which is a schedule parameter then. Unused lanes are masked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from mlirfuse.analysis.phases import Analysis, depends_on, is_outer, late_outputs, size_of
from mlirfuse.core.device_properties import HostProperties
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Value
from mlirfuse.lowering import scans as sc
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.kernel import Env, Flat, Index
from mlirfuse.lowering.slots import Slots
from mlirfuse.schedule.cpu.extents import column_extents
from mlirfuse.schedule.cpu.heuristics import heuristics_of
from mlirfuse.schedule.cpu.kernel import CpuBody, CpuKernel, cost_of, lanes_of, rows_grain, store_all, unroll_for
from mlirfuse.schedule.cpu.scan_rows import before
from mlirfuse.schedule.cpu.streaming import can_stream_line, past_caches
from mlirfuse.schedule.scheduler import Alignments, EmittedKernels, Scheduler, Sizes, require

I64 = dt.i64


class Params(NamedTuple):
    """``length``: the row length, if several rows share a vector or a row fills one; 0: one row of any length per
    vector. ``streamed``: write full-size outputs with non-temporal stores."""

    length: int
    streamed: bool = False


class ScanShortRows(Scheduler[Params, HostProperties]):
    """Scans along rows of at most one vector, fused with elementwise ops on their domain."""

    name = "scan_short_rows"
    parameters = Params

    def takes(self, analysis: Analysis) -> bool:
        return bool(analysis.scans and analysis.kept and not analysis.phases) and analysis.once(_adjacent_rows)

    def candidates(
        self, analysis: Analysis, env: Sizes, alignments: Alignments, host: HostProperties
    ) -> Iterator[Params]:
        _, length, width, _ = analysis.values(column_extents, env)
        lanes = lanes_of(analysis, host)
        if is_outer(analysis, env) or not 1 < length <= lanes or width < heuristics_of(host).columns.across_rows:
            return
        full, _ = analysis.once(late_outputs)
        streamed = past_caches(analysis, full, env, host) and _can_stream(analysis, length, alignments, host)
        yield Params(length if length <= lanes // 2 or length == lanes else 0, streamed)

    def emit(
        self, name: str, analysis: Analysis, slots: Slots, params: Params, properties: HostProperties
    ) -> EmittedKernels:
        yield analysis, [_kernel(name, analysis, slots, params, properties)]

    def check(self, analysis: Analysis, p: Params, env: Sizes, alignments: Alignments, host: HostProperties) -> None:
        _, length, _, _ = analysis.values(column_extents, env)
        lanes = lanes_of(analysis, host)
        require(length <= lanes, f"rows have {length} elements, and a vector {lanes} lanes")
        require(p.length in (0, length), f"length = {p.length}: rows have {length} elements")
        aligned = p.length > 0 and _can_stream(analysis, length, alignments, host)
        require(aligned or not p.streamed, "streamed: vectors of outputs are masked, or not aligned")


def _adjacent_rows(analysis: Analysis) -> bool:
    """Whether a row is one loop, and all full-size outputs are contiguous across rows."""
    if len(analysis.loops(analysis.reduced)) != 1:
        return False
    outer, inner = analysis.loops(analysis.kept)[-1], analysis.loops(analysis.reduced)[0]
    full, _ = late_outputs(analysis)
    for value in full:
        across, along = (analysis.axis_stride(value, loop[-1]) for loop in (outer, inner))
        if along != 1 or across != size_of(inner) or not {*outer, *inner} <= set(analysis.axes.flat(value)):
            return False
    return bool(full)


def _can_stream(analysis: Analysis, length: int, alignments: Alignments, host: HostProperties) -> bool:
    """Whether every vector of full-size outputs is unmasked and aligned for non-temporal stores."""
    full, _ = analysis.once(late_outputs)
    unmasked = lanes_of(analysis, host) % length == 0 and len(analysis.loops(analysis.kept)) == 1
    return unmasked and can_stream_line(analysis, full, alignments, host)


def _kernel(name: str, analysis: Analysis, slots: Slots, params: Params, host: HostProperties) -> CpuKernel:
    """The kernel. A task is a tile of rows."""
    full, small = late_outputs(analysis)
    body = CpuBody(name, analysis, slots, host, full if params.streamed else ())
    e, k, lanes, scans = body.e, body.k, lanes_of(analysis, host), analysis.scans
    reverse = bool(scans[0].attrs["reverse"])
    *around, outer = analysis.loops(analysis.kept)
    (inner,) = analysis.loops(analysis.reduced)
    rows, length = size_of(outer), params.length or size_of(inner)
    together = lanes // params.length if params.length else 1  # rows of a vector
    # The row of each lane. Unused lanes repeat the last row.
    rows_of = [min(lane // params.length, together - 1) if params.length else 0 for lane in range(lanes)]
    column = Index(0, 1, lanes)
    if together > 1:
        lane = e.iota(I64, lanes)
        row_of = e.bitcast(e.div(e.bitcast(lane, dt.u64), params.length), I64)
        column = Index(0, 0, lanes, e.sub(lane, e.mul(row_of, params.length)))
    same, of_row = _same_in_all_rows(analysis, outer), _of_rows(analysis, outer, inner)
    steps = [1 << n for n in range(((params.length or lanes) - 1).bit_length())]

    def lanes_of_rows(count: Val | None) -> Val | None:
        """The mask of the lanes of ``count`` rows, or of ``together``; None: all lanes."""
        if count is None and params.length and lanes % params.length == 0:
            return None
        return body.below(e.mul(body.constant(together) if count is None else count, body.size(length)), lanes)

    def scanned(env: Env, first: Val, count: Val | None = None) -> None:
        """Scan ``count`` rows from ``first`` on, or ``together``."""
        here = dict(env)
        body.set_loop(here, inner, column)
        if together == 1:
            body.set_loop(here, outer, Index(first))
        else:
            row = Index(0, 0, lanes, e.add(e.splat(first, lanes), row_of))
            body.set_loop(here, outer, row)
            at = Index(e.mul(first, params.length), 1, lanes, divisor=1)
            k.flat = Flat((outer[-1], inner[-1]), size_of(inner), body.constant(0), at, row, column)
            spread(here, first, count)
        with k.masked(lanes_of_rows(count)):
            for op in scans:
                run = sc.element(e, op, k.operands(op, here), lanes)
                run = sc.along(e, op, run, steps, before(e, reverse, params.length or lanes))
                k.bind(op.result, here, sc.result(e, op, run))
            store_all(body, full, [here], analysis.domain)
        k.flat = None

    def spread(here: Env, first: Val, count: Val | None) -> None:
        """Load inputs that are constant along rows once per row, and broadcast them to the row's lanes."""
        n = 1 << (together - 1).bit_length()
        row_env = dict(here)
        body.set_loop(row_env, outer, Index(first, 1, n, divisor=1))
        for value in of_row:
            exact = count is None and n == together
            with k.masked(None if exact else body.below(body.constant(together) if count is None else count, n)):
                val = k.preload(value, row_env)
            mask = ", ".join(map(str, rows_of))
            k.bind_loaded(
                value, here, e.op(f"vector.shuffle {val}, {val} [{mask}] : {val.type}, {val.type}", val.dtype, lanes)
            )

    def task(index: Val) -> None:
        env: Env = {}
        top, bottom = body.block_of(env, around, index, rows, height)
        body.set_loop(env, inner, column)
        k.mask = lanes_of_rows(None) if together == 1 else None
        body.hoist(env, same)
        k.mask = None
        unroll = unroll_for(cost_of(analysis))
        middle = e.sub(bottom, e.cast(e.rem(e.cast(e.sub(bottom, top), dt.u64), together * unroll), I64))

        def several(first: Val, _: list[Val]) -> list[Val]:
            for u in range(unroll):
                scanned(env, e.add(first, u * together) if u else first)
            return []

        def rest(first: Val, _: list[Val]) -> list[Val]:
            scanned(env, first, e.min(e.sub(bottom, first), together))
            return []

        body.loop(top, middle, together * unroll, [], several)
        body.loop(middle, bottom, together, [], rest)
        if small:
            body.vectors(top, bottom, lanes, [], lambda indices, mask, state: of_rows(env, indices))

    def of_rows(env: Env, indices: list[Index]) -> list[Val]:
        """Store outputs with one element per row."""
        for i in indices:
            here = {axis: index for axis, index in env.items() if axis not in inner}
            body.set_loop(here, outer, i)
            store_all(body, small, [here], analysis.kept)
        return []

    tile = heuristics_of(host).tasks.tile
    height = (
        -(-tile // (params.length or lanes) // lanes) * lanes
    )  # a multiple of a vector also for outputs with one element per row
    body.tasks(task)
    tasks = sz.mul(sz.product(size_of(loop) for loop in around), sz.ceildiv(rows, height))
    return body.finish(tasks, rows_grain(sz.mul(sz.minimum(rows, height), length), host))


def _same_in_all_rows(analysis: Analysis, rows) -> list[Value]:
    """Values that are the same in all rows, and depend on no scan."""
    varying = depends_on(analysis, rows)
    for op in analysis.ops:
        if op in analysis.scans or any(v in varying for v in op.operands):
            varying.update(op.results)
    return [v for op in analysis.ops for v in op.results if v not in varying]


def _of_rows(analysis: Analysis, rows, along) -> list[Value]:
    """The inputs that are constant along a row, and contiguous across rows."""
    strides = {v: [analysis.axis_stride(v, loop[-1]) for loop in (rows, along)] for v in analysis.inputs}
    domain = set(analysis.domain)
    return [v for v, found in strides.items() if found == [1, 0] and set(analysis.axes.flat(v)) <= domain]
