"""Pointwise segments on a GPU that read contiguously along one loop and write contiguously along another, or along
both.

A block processes a tile of ``tile`` by ``tile`` elements of the two loops. Values that depend only on inputs contiguous
along the *reading* loop are computed along it and stored in shared memory; after a barrier each thread loads its
elements from there, reads other inputs directly, and writes along the *writing* loop. Where results are contiguous
along either loop, as those of a copy beside its transposed copy, everything is computed once, along the reading loop:
what is contiguous along it is stored from there, and only the other results are stored in shared memory. Rows of the
shared tile are padded by one word to avoid bank conflicts on both sides."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

from mlirfuse.analysis.phases import Analysis, points_of, size_of
from mlirfuse.core.device_properties import DeviceProperties
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Value
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.kernel import Env, Index
from mlirfuse.lowering.module import GpuKernel
from mlirfuse.schedule.gpu.access import access_of, hint_of
from mlirfuse.schedule.gpu.kernel import GpuBody
from mlirfuse.schedule.gpu.scheduler import LARGEST_BLOCK, WARP, GpuScheduler
from mlirfuse.schedule.gpu.tuning import heuristics_of
from mlirfuse.schedule.scheduler import Alignments, KernelSpec, SizedCall, power_of_two, require
from mlirfuse.schedule.tiling import Tiling
from mlirfuse.schedule.transposed import frontier, selected_inputs, unmapped_inputs

WIDEST_VECTOR = 8  # elements
Numbers = dict[Value, tuple[tuple[int, ...], tuple[int, ...]]]  # strides along the loops and in memory, of a call


class Tile(NamedTuple):
    """``tile``: the side of a block's tile; ``reading``: the loop along which values in shared memory are contiguous;
    ``read_lanes``: vector width along it; ``shared_values``: those values, by index among the inputs and then the ops'
    results; ``along_reading``: consecutive blocks are along the reading loop; ``writing``: the loop along which values
    from shared memory are stored, the innermost unless that is the reading one; ``along_both``: results are written
    along both loops, those that are not contiguous along the writing one as soon as they are computed."""

    tile: int
    reading: int
    read_lanes: int
    shared_values: tuple[int, ...]
    along_reading: bool
    writing: int = -1
    along_both: bool = False


class _Kernel(GpuBody):
    """The kernel of a segment."""

    def __init__(self, spec: KernelSpec):
        super().__init__(spec)
        analysis, p = spec.analysis, spec.params
        e, k, own = self.e, self.k, p.own
        loops, nodes = analysis.loops(analysis.kept), _nodes(analysis)
        self.tile, self.read_lanes, self.along_both = own.tile, own.read_lanes, own.along_both
        self.writing, self.reading = loops[own.writing], loops[own.reading]
        outer = [loop for loop in loops if loop is not self.writing and loop is not self.reading]
        self.width, self.height = size_of(self.writing), size_of(self.reading)
        self.in_shared = [nodes[n] for n in own.shared_values]
        self.late = self.in_shared if own.along_both else analysis.outputs  # what is stored from shared memory
        self.early = [v for v in analysis.outputs if v not in self.late]
        self.dtypes = {v: _shared_dtype(v, analysis) for v in self.in_shared}
        across, down = sz.ceildiv(self.width, own.tile), sz.ceildiv(self.height, own.tile)
        rest, block = k.divmod(Index(self.wide(self.block)), down if own.along_reading else across)
        above, other = k.divmod(rest, across if own.along_reading else down) if outer else (Index(0), rest)
        block_w, block_r = (other, block) if own.along_reading else (block, other)
        self.base_w, self.base_r = (e.mul(k.scalar(b.base), own.tile) for b in (block_w, block_r))
        self.base_env = self.point(outer, above)
        self.pitch = {v: own.tile + max(1, 4 // self.dtypes[v].bytes) for v in self.in_shared}
        self.offsets = {v: self.reserve(own.tile * self.pitch[v] * self.dtypes[v].bytes) for v in self.in_shared}
        self.grid = sz.mul(points_of(outer), across, down)

    def emit(self) -> GpuKernel:
        """The finished kernel."""
        targets = self.targets()
        self.fill([env for _, env, _ in targets])
        self.barrier()
        self.load_transposed(targets)
        for _, env, _ in targets:
            for value in self.late:
                self.k.value(value, env)
        for _, env, inside in targets:
            self.store_at(self.late, env, self.analysis.kept, inside)
        return self.finish(self.grid)

    def at(self, local_w: Val, local_r: Val, lanes_w: int, lanes_r: int) -> tuple[Env, Val]:
        """The env of a vector of the tile, clamped to the domain, and whether it is inside."""
        e = self.e
        w, r = e.add(self.base_w, self.wide(local_w)), e.add(self.base_r, self.wide(local_r))
        inside = e.and_(e.cmp("lt", w, self.size(self.width)), e.cmp("lt", r, self.size(self.height)))
        w, r = e.min(w, e.sub(self.size(self.width), lanes_w)), e.min(r, e.sub(self.size(self.height), lanes_r))
        env = self.placed(self.base_env, self.writing, Index(w, int(lanes_w > 1), lanes_w))
        return self.placed(env, self.reading, Index(r, int(lanes_r > 1), lanes_r)), inside

    def split(self, lanes: int) -> tuple[Val, Val]:
        """The first element along a row of the tile of a thread's vectors, and the first of their rows."""
        vectors = self.tile // lanes
        along, line = self.e.and_(self.thread, vectors - 1), self.quotient(self.thread, vectors)
        return self.e.mul(along, lanes), line

    def lines(self, line: Val, lanes: int) -> Iterator[Val]:
        """The rows of the tile of which a thread has a vector, the first of which is ``line``."""
        step = self.threads // (self.tile // lanes)
        return (self.e.add(line, n * step) for n in range(self.tile // step))

    def addresses(self, value: Value, local_w: Val, local_r: Val, step: int, lanes: int) -> list[str]:
        """Where elements of a value's tile are in shared memory, the first of them at these indices, ``step`` elements
        apart."""
        nbytes, first = self.dtypes[value].bytes, self.e.add(self.e.mul(local_w, self.pitch[value]), local_r)
        base = self.shared_address(self.offsets[value], first, nbytes)
        return [self.beyond(base, n * step * nbytes) for n in range(lanes)]

    def uniform_inputs(self) -> list[Value]:
        """The inputs of what is stored from shared memory that do not vary along the writing loop."""
        inputs, along, left = self.analysis.inputs, self.writing[-1], [] if self.along_both else list(self.late)
        known, found = dict.fromkeys(self.in_shared), []
        while left:
            value = left.pop()
            if value in known:
                continue
            known[value] = None
            if value not in inputs:
                left += value.op.operands if value.op is not None else []
            elif self.analysis.axis_stride(value, along) == 0:
                found.append(value)
        return found

    def fill(self, later: list) -> None:
        """Store to shared memory, and what is contiguous along the reading loop to global memory: vectors along that
        loop, one row per index of the writing loop. Prefetch for the envs ``later`` what does not vary along that."""
        e, k, lanes, inputs = self.e, self.k, self.read_lanes, self.analysis.inputs
        local_r, line = self.split(lanes)
        loaded, places = [], []
        for local_w in self.lines(line, lanes):
            env, inside = self.at(local_w, local_r, 1, lanes)
            places.append((env, inside))
            loaded += [(v, local_w, k.preload(v, env) if v in inputs else k.value(v, env)) for v in self.in_shared]
        for env, value in itertools.product(later, self.uniform_inputs()):
            k.preload(value, env)
        for value, local_w, val in loaded:
            for lane, address in enumerate(self.addresses(value, local_w, local_r, 1, lanes)):
                self.shared_store(address, e.extract(val, lane))
        for env, inside in places if self.early else ():
            self.store_at(self.early, env, self.analysis.kept, inside)

    def targets(self) -> list:
        """For each of a thread's vectors along the writing loop, one row per index of the reading loop: that index, the
        env, and whether it is inside."""
        lanes = self.access.lanes
        local_w, line = self.split(lanes)
        return [(local_r, *self.at(local_w, local_r, lanes, 1)) for local_r in self.lines(line, lanes)]

    def load_transposed(self, targets: list) -> None:
        """Load the vectors ``targets`` from shared memory."""
        k, lanes = self.k, self.access.lanes
        local_w, _ = self.split(lanes)
        for local_r, env, _ in targets:
            for value in self.in_shared:
                addresses = self.addresses(value, local_w, local_r, self.pitch[value], lanes)
                elements = [self.shared_load(address, self.dtypes[value]) for address in addresses]
                (k.bind_loaded if value in self.analysis.inputs else k.bind)(value, env, self.e.from_lanes(elements))


class Transpose(GpuScheduler):
    """Computes output elements from inputs that are contiguous along another dimension."""

    name = "transpose"
    fields = "access", "tx"
    own = Tile

    def takes(self, analysis: Analysis) -> bool:
        return analysis.elementwise and bool(analysis.once(_read_in_order) or analysis.once(_windowed))

    def candidates(self, analysis: Analysis, call: SizedCall) -> Iterator[Tiling]:
        """Parameters for segments with an input over the whole domain that is contiguous along another loop than the
        output's innermost; else none."""
        extents, rows, results = analysis.once(_numbers)(call.sizes)
        given, outputs = dict(zip(analysis.inputs, rows)), dict(zip(analysis.outputs, results))
        plans = (_tiled(analysis, plan, extents, call) for plan in _plans(analysis, given, outputs, len(extents) - 1))
        for found in plans:
            if (first := next(found, None)) is not None:
                yield first
                yield from found
                return

    def kernels(self, spec: KernelSpec) -> list[GpuKernel]:
        return [_Kernel(spec).emit()]

    def widest(self, analysis: Analysis, p: Tiling) -> list[int]:
        """The bytes of the widest vector of each input and output; inputs in shared memory have vectors along the
        reading loop."""
        along = analysis.loops(analysis.kept)[p.own.reading][-1]
        out = super().widest(analysis, p)
        for at, value in enumerate(analysis.inputs):
            if analysis.axis_stride(value, along) != 0:
                out[at] = max(out[at], p.own.read_lanes * analysis.stored(value).bytes)
        if p.own.along_both:
            nodes = _nodes(analysis)
            late = [nodes[n] for n in p.own.shared_values]
            for at, value in enumerate(analysis.outputs, len(analysis.inputs)):
                out[at] = (p.access.lanes if value in late else p.own.read_lanes) * analysis.stored(value).bytes
        return out

    def check(self, analysis: Analysis, p: Tiling, call: SizedCall) -> None:
        found = list(self.candidates(analysis, call))
        require(
            bool(found),
            "transpose: for these sizes no input is contiguous along another loop, or extents are too short",
        )
        own, wanted = p.own, found[0].own
        p.must("reading", own.reading == wanted.reading, f"inputs are contiguous along loop {wanted.reading}")
        for name in ("writing", "along_both", "shared_values"):
            p.must(name, p.value(name) == wanted._asdict()[name], f"must be {wanted._asdict()[name]}")
        require(power_of_two(own.tile) and power_of_two(p.tx), "tile, tx: must be powers of two")
        p.must("tx", 32 <= p.tx <= LARGEST_BLOCK, f"must be from 32 to {LARGEST_BLOCK}")
        most = max(c.own.read_lanes for c in found), max(c.access.lanes for c in found)
        for name, lanes in (("read_lanes", own.read_lanes), ("lanes", p.access.lanes)):
            known = power_of_two(lanes) and lanes <= own.tile
            require(known, f"{name} = {lanes}: must be a power of two up to tile = {own.tile}")
            vectors = own.tile // lanes
            fits = vectors <= p.tx and p.tx // vectors <= own.tile
            require(fits, f"{name} = {lanes}: {p.tx} threads do not divide {own.tile} rows of {vectors} vectors")
            widest = most[name == "lanes"]
            aligned = lanes <= widest or (name == "lanes" and not own.along_both)
            require(aligned, f"{name} = {lanes}: at most {widest} for these sizes and alignments")
        self.check_access(analysis, p, True, call, innermost=not own.along_both)


class _Plan(NamedTuple):
    """Values to transpose in shared memory, and the loops along which they are contiguous before and after.
    ``windows``: inputs are read at other indices. Tensors come with their strides in memory."""

    reading: int
    writing: int
    in_shared: tuple[Value, ...]
    along_reading: list  # the tensors with vectors along the reading loop
    along_writing: list  # the outputs with vectors along the writing one, if others are along the reading one
    windows: bool = False


def _plans(analysis: Analysis, given: Numbers, outputs: Numbers, innermost: int) -> Iterator[_Plan]:
    """What can be transposed, the best first: all outputs, where inputs are read at other indices, as by a pool, and
    are contiguous along one loop, which is not the innermost; some outputs, if others are contiguous along the loop
    along which inputs are, and no input is in the order of the former; or inputs."""
    if windowed := analysis.once(_windowed):
        for n in reversed(range(innermost)):
            read = [(v, strides) for v, (along, strides) in given.items() if along[n] == 1]
            across = any(along[n] and along[-1] for along, _ in given.values())
            if {v for v, _ in read}.issuperset(windowed) and not across:
                yield _Plan(n, innermost, tuple(analysis.outputs), read, [], True)
        return

    def contiguous(numbers: Numbers, one: int, other: int) -> list:
        return [(v, strides) for v, (along, strides) in numbers.items() if along[one] == 1 < abs(along[other])]

    given = {v: given[v] for v in analysis.once(_read_in_order)}
    for n in reversed(range(innermost)):
        for r, w in ((innermost, n), (n, innermost)):
            read, early, late = contiguous(given, r, w), contiguous(outputs, r, w), contiguous(outputs, w, r)
            if read and early and late and not contiguous(given, w, r):
                yield _Plan(r, w, tuple(v for v, _ in late), read + early, late)
    for n in reversed(range(innermost)):
        if read := contiguous(given, n, innermost):
            yield _Plan(n, innermost, analysis.once(_frontier, tuple(v for v, _ in read)), read, [])


def _tiled(analysis: Analysis, plan: _Plan, extents: tuple[int, ...], call: SizedCall) -> Iterator[Tiling]:
    """Parameters for a plan, none where a loop is short or shared memory has no room. Of inputs alone, fewer may be in
    shared memory."""
    heuristics, both = heuristics_of(call.properties).transpose, bool(plan.along_writing)
    height, width = extents[plan.reading], extents[plan.writing]
    shortest = min(height, width)
    positions, widest = analysis.once(_numbered, plan.in_shared)
    tile = heuristics.tile if widest <= 4 else heuristics.tile_wide
    if plan.windows and shortest <= tile // 2:
        tile //= 2
    room = min(heuristics.shared, call.properties.shared_per_block // 2) // (tile * (tile + 4) * widest)
    fits = room >= len(positions) or not (plan.windows or both)
    elements = math.prod(extents) if plan.windows else height * width
    short = shortest < heuristics.least_extent if plan.windows else shortest <= heuristics.least_extent
    if not fits or short or elements < heuristics.least_elements:
        return
    access = access_of(analysis, True, call, hint_of(analysis, call))
    read_lanes, write_lanes = _lanes(plan.along_reading, height, call.alignments), access.lanes
    if both:
        read_lanes = min(read_lanes, WIDEST_VECTOR)
        write_lanes = min(_lanes(plan.along_writing, width, call.alignments), WIDEST_VECTOR)
        access = access._replace(multiples=frozenset())
    tensors, writing = analysis.inputs + analysis.outputs, -1 if plan.writing == len(extents) - 1 else plan.writing
    positions = positions[: max(1, room)]
    for layout in _layouts(tile, (height, width), math.prod(extents), widest, call.properties):
        along_reading, along_writing = min(read_lanes, layout.lanes), min(write_lanes, layout.lanes)
        lanes = dict.fromkeys([v for v, _ in plan.along_reading], along_reading)
        lanes |= dict.fromkeys([v for v, _ in plan.along_writing], along_writing)
        usual = along_reading if both else along_writing
        aligns = tuple(
            lanes[v] * v.dtype.bytes if v in lanes else min(align, usual * analysis.stored(v).bytes)
            for v, align in zip(tensors, access.aligns)
        )
        own = Tile(layout.size, plan.reading, along_reading, positions, layout.along_reading, writing, both)
        yield Tiling("transpose", access._replace(lanes=along_writing, aligns=aligns), layout.tx, own=own)


class _Layout(NamedTuple):
    """A tile of ``size`` by ``size`` elements, and ``tx`` threads with a vector of it each; consecutive blocks are
    ``along_reading`` or not."""

    size: int
    tx: int
    along_reading: bool

    @property
    def lanes(self) -> int:
        """The widest vectors, so that each thread has one."""
        return self.size * self.size // self.tx


def _windowed(analysis: Analysis) -> list[Value]:
    """The inputs that are read at other indices, of segments whose outputs have all axes."""
    loops, kept = analysis.loops(analysis.kept), set(analysis.kept)
    if len(loops) < 2 or any(set(analysis.axes.flat(v)) != kept for v in analysis.outputs):
        return []
    selected = analysis.once(selected_inputs)
    return [v for v in analysis.inputs if not set(analysis.axes.flat(v)) <= kept and v not in selected]


def _read_in_order(analysis: Analysis) -> list[Value]:
    """The inputs that are read at the indices of the loops, but for dimensions of which an element is selected."""
    return analysis.once(unmapped_inputs) + analysis.once(selected_inputs)


def _lanes(tensors: list, extent: int, alignments: Alignments) -> int:
    """The widest vectors along a loop of ``extent`` in which all ``tensors`` are contiguous; each with its strides."""
    lanes = max(1, 16 // max(v.dtype.bytes for v, _ in tensors))
    for v, strides in tensors:
        limit = alignments.get(v, 256)
        for stride in strides:
            step = stride * v.dtype.bytes
            limit = min(limit, step & -step if step and stride != 1 else 256)
        while lanes > 1 and (extent % lanes or lanes * v.dtype.bytes > max(limit, v.dtype.bytes)):
            lanes //= 2
    return lanes


def _layouts(
    tile: int, extents: tuple[int, int], elements: int, widest: int, properties: DeviceProperties
) -> Iterator[_Layout]:
    """Layouts, the best first, for the reading and the writing loop of these ``extents``, and so many ``elements`` in
    all. ``widest``: bytes of the widest elements in shared memory."""
    heuristics, (height, width) = heuristics_of(properties).transpose, extents
    few, many, size = heuristics.threads, heuristics.many_threads, tile * tile * widest
    tiles = -(-height // tile) * -(-width // tile) * (elements // (height * width))
    layouts = [(tile, few), (tile // 2, few), (tile, many)]
    covered = [-(-height // side) * -(-width // side) * side * side for side in (tile, tile // 2)]
    empty = tile // 2 >= WARP and covered[0] > heuristics.idle * covered[1]
    if tiles < properties.sm_count or empty:
        layouts = [layouts[1], layouts[0]]  # less than a tile per multiprocessor, or tiles that are partly empty
    elif tiles >= heuristics.many_tiles * properties.sm_count and size >= many * heuristics.thread_bytes:
        layouts = [layouts[2], *layouts[:2]]
    along_reading = height <= heuristics.along_reading * width  # else concurrent blocks write to too many lines
    for (side, threads), first in itertools.product(layouts, (along_reading, not along_reading)):
        yield _Layout(side, threads, first)


def _numbers(analysis: Analysis):
    """A function from sizes to the loops' extents, and for each input and each output its strides along the loops and
    in memory."""
    loops = analysis.loops(analysis.kept)
    extents = [size_of(loop) for loop in loops]
    numbers, texts = list(extents), [sz.serialized(extents)]
    for tensors in (analysis.inputs, analysis.outputs):
        along = [[analysis.axis_stride(v, loop[-1]) for loop in loops] for v in tensors]
        strides = [analysis.strides[v] for v in tensors]
        pairs = ", ".join(f"({sz.serialized(a)}, {sz.serialized(s)})" for a, s in zip(along, strides))
        texts.append(f"({pairs},)")
        numbers += itertools.chain(*along, *strides)
    return sz.function(", ".join(texts), sz.symbols_of(numbers))


def _numbered(analysis: Analysis, in_shared: tuple[Value, ...]) -> tuple[tuple[int, ...], int]:
    """The node numbers of values in shared memory, and the bytes of the widest one's elements."""
    nodes = _nodes(analysis)
    return tuple([nodes.index(v) for v in in_shared]), max(_shared_dtype(v, analysis).bytes for v in in_shared)


def _nodes(analysis: Analysis) -> list[Value]:
    return analysis.inputs + [v for op in analysis.ops for v in op.results]


def _shared_dtype(value: Value, analysis: Analysis) -> dt.DType:
    """The dtype of a value in shared memory: the memory dtype for an input, else the compute dtype."""
    dtype = value.dtype if value in analysis.inputs else value.dtype.compute
    return dt.u8 if dtype is dt.bool_ and value in analysis.inputs else dtype


def _frontier(analysis: Analysis, in_shared: tuple[Value, ...]) -> tuple[Value, ...]:
    """Instead of inputs, the last values that depend on them alone, if those take fewer bytes: each needs a tile."""
    needed, selected = frontier(analysis, [*in_shared]), set(in_shared).intersection(analysis.once(selected_inputs))
    fewer = sum(_shared_dtype(v, analysis).bytes for v in needed) <= sum(v.dtype.bytes for v in in_shared)
    return tuple(needed) if selected or (needed and fewer) else in_shared
