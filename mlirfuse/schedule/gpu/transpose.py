"""Pointwise segments on a GPU that read contiguously along one loop and write contiguously along another.

A block processes a tile of ``tile`` by ``tile`` elements of the two loops. Values that depend only on inputs contiguous
along the *reading* loop are computed along it and stored in shared memory; after a barrier each thread loads its
elements from there, reads other inputs directly, and writes along the *writing* loop. Rows of the shared tile are
padded by one word to avoid bank conflicts on both sides."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

from mlirfuse.analysis.phases import Analysis, size_of
from mlirfuse.core.device_properties import DeviceProperties
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Value
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.kernel import Index
from mlirfuse.lowering.module import GpuKernel
from mlirfuse.lowering.slots import Slots
from mlirfuse.schedule.gpu.access import Access, access_of, hint_of
from mlirfuse.schedule.gpu.kernel import GpuBody
from mlirfuse.schedule.gpu.scheduler import LARGEST_BLOCK, GpuScheduler
from mlirfuse.schedule.gpu.tuning import heuristics_of
from mlirfuse.schedule.scheduler import Alignments, Sizes, power_of_two, require


class Params(NamedTuple):
    """``reading``: the loop along which values in shared memory are contiguous; ``read_lanes``: vector width along it;
    ``in_shared``: those values, by index among the inputs and then the ops' results; ``along_reading``: consecutive
    blocks are along the reading loop; ``threads`` per block."""

    access: Access
    tile: int
    reading: int
    read_lanes: int
    in_shared: tuple[int, ...]
    along_reading: bool
    threads: int


def _emit(name: str, analysis: Analysis, slots: Slots, p: Params) -> list[GpuKernel]:
    """The kernel that computes ``analysis``."""
    body = GpuBody(name, analysis, slots, p.access, p.threads)
    e, k = body.e, body.k
    loops = analysis.loops(analysis.kept)
    writing, reading = loops[-1], loops[p.reading]
    outer = [loop for n, loop in enumerate(loops[:-1]) if n != p.reading]
    width, height = size_of(writing), size_of(reading)
    lanes = p.access.lanes
    in_shared = [_nodes(analysis)[n] for n in p.in_shared]
    dtypes = {v: _shared_dtype(v, analysis) for v in in_shared}

    block, across, down = Index(body.wide(body.block)), sz.ceildiv(width, p.tile), sz.ceildiv(height, p.tile)
    if p.along_reading:
        rest, block_r = k.divmod(block, down)
        above, block_w = k.divmod(rest, across) if outer else (Index(0), rest)
    else:
        rest, block_w = k.divmod(block, across)
        above, block_r = k.divmod(rest, down) if outer else (Index(0), rest)
    base_w, base_r = (e.mul(k.scalar(b.base), p.tile) for b in (block_w, block_r))
    base_env: dict = {}
    body.unlinear(base_env, outer, above)
    pitch = {v: p.tile + max(1, 4 // dtypes[v].bytes) for v in in_shared}
    offsets = {v: body.reserve(p.tile * pitch[v] * dtypes[v].bytes) for v in in_shared}

    def at(w: Val, r: Val, lanes_w: int, lanes_r: int, clamped: bool):
        env = dict(base_env)
        inside = e.and_(e.cmp("lt", w, body.size(width)), e.cmp("lt", r, body.size(height)))
        if clamped:
            w, r = e.min(w, e.sub(body.size(width), lanes_w)), e.min(r, e.sub(body.size(height), lanes_r))
        body.set_loop(env, writing, Index(w, 1, lanes_w) if lanes_w > 1 else Index(w))
        body.set_loop(env, reading, Index(r, 1, lanes_r) if lanes_r > 1 else Index(r))
        return env, inside

    def split(vectors: int) -> tuple[Val, Val]:
        """A thread's vector along a row of the tile, and its row."""
        along = e.and_(body.thread, vectors - 1)
        return along, body.quotient(body.thread, vectors)

    # Store to shared memory: vectors along the reading loop, one row per index of the writing loop.
    vectors = p.tile // p.read_lanes
    along, line = split(vectors)
    step = p.threads // vectors
    local_r = e.mul(along, p.read_lanes)
    loaded = []
    for n in range(p.tile // step):
        local_w = e.add(line, n * step)
        env, _ = at(e.add(base_w, body.wide(local_w)), e.add(base_r, body.wide(local_r)), 1, p.read_lanes, True)
        loaded += [
            (value, local_w, k.preload(value, env) if value in analysis.inputs else k.value(value, env))
            for value in in_shared
        ]
    for value, local_w, val in loaded:
        for lane in range(p.read_lanes):
            index = e.add(e.mul(local_w, pitch[value]), e.add(local_r, lane))
            body.shared_store(body.shared_address(offsets[value], index, dtypes[value].bytes), e.extract(val, lane))
    body.barrier()

    # Load from shared memory: vectors along the writing loop, one row per index of the reading loop.
    vectors = p.tile // lanes
    along, line = split(vectors)
    step = p.threads // vectors
    local_w = e.mul(along, lanes)
    places = []
    for n in range(p.tile // step):
        local_r = e.add(line, n * step)
        env, inside = at(e.add(base_w, body.wide(local_w)), e.add(base_r, body.wide(local_r)), lanes, 1, True)
        for value in in_shared:
            parts = []
            for lane in range(lanes):
                index = e.add(e.mul(e.add(local_w, lane), pitch[value]), local_r)
                parts.append(
                    body.shared_load(body.shared_address(offsets[value], index, dtypes[value].bytes), dtypes[value])
                )
            (k.bind_loaded if value in analysis.inputs else k.bind)(value, env, e.from_lanes(parts))
        places.append((env, inside))
    for env, _ in places:
        for value in analysis.outputs:
            k.value(value, env)
    for env, inside in places:
        body.store_at(analysis.outputs, env, analysis.kept, inside)
    grid = sz.mul(sz.product(size_of(loop) for loop in outer), sz.ceildiv(width, p.tile), sz.ceildiv(height, p.tile))
    return [body.finish(grid)]


class Transpose(GpuScheduler[Params]):
    """Computes output elements from inputs that are contiguous along another dimension."""

    name = "transpose"
    parameters = Params

    def takes(self, analysis: Analysis) -> bool:
        alone = analysis.elementwise
        return alone and bool(analysis.once(_unmapped_inputs))

    def candidates(
        self, analysis: Analysis, env: Sizes, alignments: Alignments, properties: DeviceProperties
    ) -> Iterator[Params]:
        """Parameters for segments with an input over the whole domain that is contiguous along another loop than the
        output's innermost; else none."""
        return _candidates(analysis, env, alignments, properties)

    def kernels(self, name: str, analysis: Analysis, slots: Slots, p: Params) -> list[GpuKernel]:
        return _emit(name, analysis, slots, p)

    def widest(self, analysis: Analysis, p: Params) -> list[int]:
        """The bytes of the widest vector of each input and output; inputs in shared memory have vectors along the
        reading loop."""
        along = analysis.loops(analysis.kept)[p.reading][-1]
        out = super().widest(analysis, p)
        for at, value in enumerate(analysis.inputs):
            if analysis.axis_stride(value, along) != 0:
                out[at] = max(out[at], p.read_lanes * analysis.stored(value).bytes)
        return out

    def check(
        self, analysis: Analysis, p: Params, env: Sizes, alignments: Alignments, properties: DeviceProperties
    ) -> None:
        found = list(self.candidates(analysis, env, alignments, properties))
        require(
            bool(found),
            "transpose: for these sizes no input is contiguous along another loop, or extents are too short",
        )
        wanted, most = found[0], max(c.read_lanes for c in found)
        require(
            p.reading == wanted.reading, f"reading = {p.reading}: inputs are contiguous along loop {wanted.reading}"
        )
        require(
            p.in_shared == wanted.in_shared,
            f"in_shared = {list(p.in_shared)}: must be {list(wanted.in_shared)}",
        )
        require(power_of_two(p.tile) and power_of_two(p.threads), "tile, threads: must be powers of two")
        require(32 <= p.threads <= LARGEST_BLOCK, f"threads = {p.threads}: must be from 32 to {LARGEST_BLOCK}")
        for name, lanes in (("read_lanes", p.read_lanes), ("lanes", p.access.lanes)):
            require(
                power_of_two(lanes) and lanes <= p.tile,
                f"{name} = {lanes}: must be a power of two up to tile = {p.tile}",
            )
            vectors = p.tile // lanes
            fits = vectors <= p.threads and p.threads // vectors <= p.tile
            require(fits, f"{name} = {lanes}: {p.threads} threads do not divide {p.tile} rows of {vectors} vectors")
        require(p.read_lanes <= most, f"read_lanes = {p.read_lanes}: at most {most} for these sizes and alignments")
        self.check_access(analysis, p, True, env, alignments, properties)


def _candidates(
    analysis: Analysis, env: Sizes, alignments: Alignments, properties: DeviceProperties
) -> Iterator[Params]:
    inputs = analysis.once(_unmapped_inputs)
    if not inputs:
        return
    heuristics = heuristics_of(properties).transpose
    extents, rows = analysis.once(_numbers)(env)
    width = extents[-1]
    for n, extent in reversed(list(enumerate(extents[:-1]))):
        read = [(v, strides) for v, (along, strides) in zip(inputs, rows) if along[n] == 1 and along[-1] not in (0, 1)]
        if not read or min(extent, width) <= heuristics.least_extent or extent * width < heuristics.least_elements:
            continue
        positions, widest = analysis.once(_values_in_shared, tuple([v for v, _ in read]))
        tile = heuristics.tile if widest <= 4 else heuristics.tile_wide
        room = min(heuristics.shared, properties.shared_per_block // 2)
        positions = positions[: max(1, room // (tile * (tile + 4) * widest))]
        lanes = max(1, 16 // max(v.dtype.bytes for v, _ in read))
        for v, strides in read:
            limit = alignments.get(v, 256)
            for stride in strides:
                step = stride * v.dtype.bytes
                limit = min(limit, step & -step if step and stride != 1 else 256)
            while lanes > 1 and (extent % lanes or lanes * v.dtype.bytes > max(limit, v.dtype.bytes)):
                lanes //= 2
        tiles = -(-extent // tile) * -(-width // tile) * math.prod(extents[:n] + extents[n + 1 : -1])
        few, many = heuristics.threads, heuristics.many_threads
        layouts = [(tile, few), (tile // 2, few), (tile, many)]  # tiles and threads
        if tiles < properties.sm_count:
            layouts = [layouts[1], layouts[0]]  # less than a tile per multiprocessor
        elif (
            tiles >= heuristics.many_tiles * properties.sm_count
            and tile * tile * widest >= many * heuristics.thread_bytes
        ):
            layouts = [layouts[2], *layouts[:2]]
        access = access_of(analysis, True, env, alignments, hint_of(analysis, env, properties))
        along_reading = extent <= heuristics.along_reading * width  # else concurrent blocks write to too many lines
        for (size, threads), first in itertools.product(layouts, (along_reading, not along_reading)):
            most = size * size // threads  # lanes, so that each thread has a vector of the tile
            read_lanes, write_lanes = min(lanes, most), min(access.lanes, most)
            both = analysis.inputs + analysis.outputs
            aligns = [min(a, write_lanes * analysis.stored(v).bytes) for a, v in zip(access.aligns, both)]
            for v, _ in read:
                aligns[analysis.inputs.index(v)] = read_lanes * v.dtype.bytes
            narrowed = access._replace(lanes=write_lanes, aligns=tuple(aligns))
            yield Params(narrowed, size, n, read_lanes, positions, first, threads)
        return


def _unmapped_inputs(analysis: Analysis) -> list[Value]:
    """The inputs that may be read along another loop than the innermost."""
    domain = set(analysis.kept)
    return (
        [v for v in analysis.inputs if _direct(analysis, v, domain)] if len(analysis.loops(analysis.kept)) > 1 else []
    )


def _numbers(analysis: Analysis):
    """A function from sizes to the loops' extents, and for each unmapped input its strides along the loops and in
    memory."""
    loops = analysis.loops(analysis.kept)
    extents = [size_of(loop) for loop in loops]
    along = [[analysis.axis_stride(v, loop[-1]) for loop in loops] for v in analysis.once(_unmapped_inputs)]
    strides = [analysis.strides[v] for v in analysis.once(_unmapped_inputs)]
    pairs = ", ".join(f"({sz.serialized(a)}, {sz.serialized(s)})" for a, s in zip(along, strides))
    return sz.function(
        f"{sz.serialized(extents)}, ({pairs},)", sz.symbols_of([*extents, *itertools.chain(*along, *strides)])
    )


def _values_in_shared(analysis: Analysis, read: tuple[Value, ...]) -> tuple[tuple[int, ...], int]:
    """The node numbers of the values to store in shared memory for these inputs, and the bytes of the widest one's
    elements."""
    in_shared = _frontier(analysis, list(read))
    nodes = _nodes(analysis)
    return tuple([nodes.index(v) for v in in_shared]), max(_shared_dtype(v, analysis).bytes for v in in_shared)


def _nodes(analysis: Analysis) -> list[Value]:
    return analysis.inputs + [v for op in analysis.ops for v in op.results]


def _shared_dtype(value: Value, analysis: Analysis) -> dt.DType:
    """The dtype of a value in shared memory: the memory dtype for an input, else the compute dtype."""
    dtype = value.dtype if value in analysis.inputs else value.dtype.compute
    return dt.u8 if dtype is dt.bool_ and value in analysis.inputs else dtype


def _frontier(analysis: Analysis, in_shared: list[Value]) -> list[Value]:
    """Instead of inputs, the last values that depend on them alone, if those take fewer bytes: each needs a tile."""
    alone, needed = set(in_shared), []
    for op in analysis.ops:
        if (
            op.row.kind in ("elementwise", "create")
            and all(v in alone or not v.rank for v in op.operands)
            and op.operands
        ):
            alone.update(op.results)
        elif op.name == "constant":
            continue
        else:
            needed += [v for v in op.operands if v in alone and v.rank]
    needed += [v for v in analysis.outputs if v in alone]
    needed = list(dict.fromkeys(needed))
    fewer = sum(_shared_dtype(v, analysis).bytes for v in needed) <= sum(v.dtype.bytes for v in in_shared)
    return needed if needed and fewer else in_shared


def _direct(analysis: Analysis, value: Value, domain: set) -> bool:
    axes = set(analysis.axes.flat(value))
    return axes <= domain and not axes & analysis.pinned and len(axes) > 1
