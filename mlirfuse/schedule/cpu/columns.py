"""Column reductions and normalizations on the CPU: a kept axis is contiguous in memory.

*Reductions* (one phase, outputs over the kept axes): the accumulators of a strip of columns are in an L1-resident
buffer, and a few rows at a time are added to them, so that memory is read sequentially. A task takes a part of the rows
(``split``). If there are few columns, several rows are treated as one (``coalesced_rows`` is 0): the accumulators are
``[coalesced rows, columns]``, and are combined at the end like those of parts.

*Normalizations*, and reductions of few rows: a task is a block of columns with its accumulators in registers. Each
phase, and the pass that writes, iterates over the rows."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import NamedTuple

from mlirfuse.analysis.phases import Analysis, points_of, size_of
from mlirfuse.core.device_properties import HostProperties
from mlirfuse.ir import sizes as sz
from mlirfuse.lowering import compensated_sums
from mlirfuse.lowering import reductions as red
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.kernel import Env, Flat, Index
from mlirfuse.schedule.cpu import accumulators
from mlirfuse.schedule.cpu.accumulators import CarriedBlocks, StoredBlocks
from mlirfuse.schedule.cpu.heuristics import heuristics_of
from mlirfuse.schedule.cpu.kernel import CpuBody, CpuKernel, Stash, cost_of, lanes_of, store_all
from mlirfuse.schedule.cpu.packed import Packed
from mlirfuse.schedule.cpu.rows import invariant_by_phase, stages, stash_bytes
from mlirfuse.schedule.cpu.scheduler import CpuScheduler, apart, column_extents, one_pass, parts, runs_across
from mlirfuse.schedule.scheduler import KernelSpec, SizedCall, require
from mlirfuse.schedule.tiling import Tiling

BLOCK_ROWS = 256  # rows summed in registers as one block
GROUPS = 128  # groups of rows added to the accumulators in a buffer as one block


def folds(extents: tuple[int, int], host: HostProperties) -> bool:
    """Whether several rows should be treated as one. ``extents`` are those of the innermost reduced and innermost kept
    loop."""
    rows, columns = extents
    return columns < heuristics_of(host).tasks.short and rows > 1


class CpuColumns(CpuScheduler):
    """Column reductions and normalizations, and row reductions whose rows are a small fraction of a vector."""

    name = "columns"
    fields = "split", "coalesced_rows", "persistent", "compensation_interval", "streamed", "extent"
    may_be_zero = "split", "coalesced_rows"

    def takes(self, analysis: Analysis) -> bool:
        return analysis.reduces and bool(analysis.kept)

    def candidates(self, analysis: Analysis, call: SizedCall) -> Iterator[Tiling]:
        if runs_across(analysis, call):
            for params in self._uncompensated(analysis, call):
                share = functools.partial(_share_of_limit, params)
                interval = accumulators.compensation_interval(analysis, call, share)
                yield params._replace(compensation_interval=interval) if interval else params

    def _uncompensated(self, analysis: Analysis, call: SizedCall) -> Iterator[Tiling]:
        heuristics, host = heuristics_of(call.properties), call.properties
        kept, reduced, width, height = analysis.values(column_extents, call.sizes)
        in_registers = Tiling("columns", split=0)
        if not analysis.once(one_pass):
            streamed, extent = self.streams(analysis, call), apart(analysis, call.sizes)
            persistent = 0 < _stash_bytes(analysis, reduced, host) <= heuristics.rows.stash_bytes
            yield in_registers._replace(streamed=streamed, extent=extent, persistent=persistent)
            return
        coalesce = folds((height, width), host)
        if reduced <= heuristics.columns.few and not coalesce:
            yield in_registers._replace(extent=apart(analysis, call.sizes))
            return
        tasks = kept // width * (1 if coalesce else -(-width // heuristics.columns.stretch))
        few = tasks < heuristics.columns.tasks_a_thread * host.threads and kept * reduced >= heuristics.tasks.shared
        few = few and reduced >= heuristics.columns.rows_per_part * parts(host)
        split = parts(host) if few and host.threads > 1 else 1
        yield Tiling("columns", split=split, coalesced_rows=int(not coalesce))

    def better_in_stages(self, analysis: Analysis, p: Tiling, call: SizedCall) -> bool | None:
        """True if there are too few blocks of columns for all threads."""
        if analysis.once(one_pass):
            return None
        kept, reduced, width, _ = analysis.values(column_extents, call.sizes)
        blocks = kept // width * -(-width // (lanes_of(analysis, call.properties) * block_vectors(analysis)))
        tasks = heuristics_of(call.properties).tasks
        return blocks < tasks.tasks_a_thread * call.properties.threads and kept * reduced >= tasks.shared // 8

    def kernels(self, spec: KernelSpec) -> list[CpuKernel]:
        if spec.params.split == 0:
            return [_InRegisters(spec).emit()]
        together = _together(spec.analysis, spec.params, spec.properties)
        return [_Reduction(spec).emit(), accumulators.combine_partials(spec, together)]

    def check(self, analysis: Analysis, p: Tiling, call: SizedCall) -> None:
        heuristics, host = heuristics_of(call.properties), call.properties
        _, reduced, width, height = analysis.values(column_extents, call.sizes)
        lossy = accumulators.sums_lose_too_much(analysis, call, functools.partial(_share_of_limit, p))
        p.must("compensation_interval", p.compensation_interval > 0 or not lossy, "sums of so many rows need totals")
        once = analysis.once(one_pass)
        p.must("split", once or p.split == 0, "must be 0 for columns with several passes or full-size outputs")
        p.must("coalesced_rows", p.coalesced_rows <= 1, "must be 0 or 1")
        short = f"needs several rows of fewer than {heuristics.tasks.short} elements, and split > 0"
        p.must("coalesced_rows", p.coalesced_rows == 1 or (folds((height, width), host) and p.split > 0), short)
        p.must("extent", p.extent in (0, apart(analysis, call.sizes)), "rows have another distance")
        require(p.extent == 0 or p.split == 0, "extent: needs accumulators in registers (split = 0)")
        if p.persistent:
            nbytes, most = _stash_bytes(analysis, reduced, host), heuristics.rows.stash_bytes
            require(not once and p.split == 0, "persistent: needs several passes, with accumulators in registers")
            require(nbytes <= most, f"persistent: {nbytes} bytes are more than {most}")
        super().check(analysis, p, call)


def _stash_bytes(analysis: Analysis, rows: int, host: HostProperties) -> int:
    """The bytes of a task's stash buffers."""
    return rows * lanes_of(analysis, host) * block_vectors(analysis) * stash_bytes(analysis, heuristics_of(host).rows)


def _share_of_limit(p: Tiling, analysis: Analysis, call: SizedCall) -> float:
    """The blocks of rows that are added up, relative to those from which on sums lose too much."""
    _, reduced, width, height = analysis.values(column_extents, call.sizes)
    if p.split == 0:
        return reduced // max(1, height) * -(-height // BLOCK_ROWS) / accumulators.BLOCKS
    heuristics, together = heuristics_of(call.properties).columns, 1
    if not p.coalesced_rows:
        together = max(1, min(heuristics.coalesced // max(1, width), height // heuristics.rows))
    rows = -(-reduced // p.split) if reduced == height else reduced  # of a part, at most
    return rows / (GROUPS * _at_once(analysis, call.properties) * together + 1)


def _at_once(analysis: Analysis, host: HostProperties) -> int:
    """Rows that are summed in registers before they are added to accumulators in a buffer."""
    heuristics = heuristics_of(host).columns
    return max(1, min(heuristics.rows, heuristics.instructions // max(1, analysis.once(cost_of))))


def _together(analysis: Analysis, params: Tiling, host: HostProperties) -> sz.Size:
    """The number of rows treated as one, such that enough of those remain to be added."""
    if params.coalesced_rows:
        return 1
    rows, columns = (size_of(analysis.loops(axes)[-1]) for axes in (analysis.reduced, analysis.kept))
    heuristics = heuristics_of(host).columns
    return sz.maximum(1, sz.minimum(sz.floordiv(heuristics.coalesced, columns), sz.floordiv(rows, heuristics.rows)))


class _Reduction(CpuBody):
    """The kernel that accumulates the parts. A task adds a part of the rows of a strip of columns to its accumulators,
    which are in memory."""

    def __init__(self, spec: KernelSpec):
        super().__init__(spec)
        analysis, params, host = spec.analysis, spec.params, spec.properties
        self.split = params.split
        (self.phase,) = analysis.phases
        *self.outer, self.inner = analysis.loops(analysis.kept)
        self.loops = analysis.loops(analysis.reduced)
        self.kept = size_of(analysis.kept)
        self.columns, self.together = size_of(self.inner), _together(analysis, params, host)
        self.partials = accumulators.in_workspace(self, self.phase, sz.mul(self.kept, self.split, self.together))
        self.at_once = _at_once(analysis, host)
        heuristics, self.packed = heuristics_of(host), None
        self.stretches: sz.Size = 1
        if not params.coalesced_rows:
            self.stretch = sz.mul(self.columns, self.together)
            count, vectors = heuristics.columns.coalesced * self.at_once, -(-heuristics.tasks.short // self.lanes)
            self.packed = Packed(self, [self.loops[-1], self.inner], count, self.lanes, vectors)
        else:
            self.stretch = sz.minimum(self.columns, heuristics.columns.stretch)
            self.stretches = sz.ceildiv(self.columns, heuristics.columns.stretch)
        self.group = self.e.mul(self.size(self.together), self.at_once)
        totals = params.compensation_interval and compensated_sums.round_off(self.phase)
        self.sums = StoredBlocks(self.phase, self.partials, self.stretch, self.lanes) if totals else None
        self.part_rows = sz.mul(sz.ceildiv(size_of(self.loops[0]), self.split), *map(size_of, self.loops[1:]))
        self.block = self.e.mul(self.group, GROUPS)  # rows per block of the accumulators

    def emit(self) -> CpuKernel:
        """The finished kernel."""
        tasks = sz.mul(points_of(self.outer), self.stretches, self.split)
        return self.kernel(self.task, tasks)

    def task(self, index: Val) -> None:
        """Clear the accumulators of a strip of columns, and add a part of the rows to them."""
        e, row_length = self.e, sz.mul(self.columns, self.together)
        row, which, part = self.divided(index, self.stretches, self.split)
        env = self.point(self.outer, row)
        left, right = self.tile(which, self.stretch, row_length)
        of_part = e.mul(part, self.size(sz.mul(self.kept, self.together)))
        place = e.add(of_part, e.mul(row, self.size(row_length)))
        strip = _Strip(left, right, place)

        def clear(indices, mask, state):
            for i in indices:
                offset = e.add(place, self.k.scalar(i.base))
                self.partials.save(offset, self.identities(self.phase, self.lanes))

        self.vectors(left, right, self.lanes, [], clear)
        if self.sums:
            self.sums.begin(e.cmp("gt", self.size(self.part_rows), self.block), left, right, place)
        bounds = None
        if self.split > 1:
            high = self.size(size_of(self.loops[0]))
            bounds = self.part(part, self.size(sz.ceildiv(size_of(self.loops[0]), self.split)), high)
        start, visit = [self.constant(0)] if self.sums else [], functools.partial(self.innermost, strip, bounds)
        self.nest(env, self.loops[:-1], start, visit, bounds=bounds)
        if self.sums:
            self.sums.end()

    def innermost(self, strip: _Strip, bounds: tuple[Val, Val] | None, here: Env, added: list[Val]) -> list[Val]:
        """Add the rows of the innermost loop; ``bounds`` are those of the outermost. ``added``: the number of rows in
        the accumulators, if they are sums."""
        e, loops, sums = self.e, self.loops, self.sums
        low, high = bounds if bounds and len(loops) == 1 else (self.constant(0), self.size(size_of(loops[-1])))
        if self.packed:
            self.packed.pack_same([here], self.size(self.together))
        if sums is None:
            self.groups(strip, here, low, high)
            return []

        def one(start, added):
            end = e.min(e.add(start, self.block), high)
            self.groups(strip, here, start, end)
            return [sums.count(e.add(added[0], e.sub(end, start)), self.block)]

        return self.loop(low, high, self.block, added, one)

    def groups(self, strip: _Strip, here: Env, start: Val, end: Val) -> None:
        """Add the rows from ``start`` to ``end``, a few at a time, then the rest."""
        e, at_once = self.e, self.at_once
        middle = e.sub(end, e.rem(e.sub(end, start), self.group))
        if at_once > 1:
            self.loop(start, middle, self.group, [], lambda i, _: self.add(strip, here, i, end, at_once))
        else:
            middle = start
        self.loop(middle, end, self.size(self.together), [], lambda i, _: self.add(strip, here, i, end, 1))

    def add(self, strip: _Strip, here: Env, low: Val, high: Val, count: int) -> None:
        """Add ``count`` rows from ``low`` on (coalesced: as many of them as are below ``high``) to the accumulators."""
        e, k, packed, loops = self.e, self.k, self.packed, [self.loops[-1], self.inner]
        if packed:
            packed.pack([here], low, e.min(e.add(low, e.mul(self.size(self.together), count)), high))

        def row_of(u: int, i: Index) -> tuple[Env, Flat | None]:
            if packed is None:
                row = self.placed(here, loops[0], Index(e.add(low, u) if u else low))
                return self.placed(row, self.inner, i), None
            env, origin = dict(here), e.add(low, e.mul(self.size(self.together), u)) if u else low
            flat = self.flat(loops, origin, i, env)
            packed.bind(env, k.scalar(i.base), e.sub(origin, low))
            return env, flat

        def step(indices, mask, state):
            (i,) = indices
            rows = [row_of(u, i) for u in range(count)]
            offset = e.add(strip.place, k.scalar(i.base))
            self.partials.save(offset, self.accumulated(self.partials.load(offset, self.lanes), rows, mask))

        stop = strip.right
        if packed and count == 1:
            stop = e.min(stop, e.mul(e.sub(high, low), self.size(self.columns)))
        self.vectors(strip.left, stop, self.lanes, [], step)

    def accumulated(self, before: list[Val], rows: list[tuple[Env, Flat | None]], mask: Val | None) -> list[Val]:
        """The accumulators after some rows."""
        out: list[Val] = []
        for op, state in zip(self.phase, red.grouped(self.phase, before)):
            elements = []
            for here, flat in rows:
                with self.k.coalesced(flat):
                    elements += self.elements(op, [here], mask)
            with self.k.coalesced(rows[-1][1]):
                out += red.accumulate(self.e, op, state, elements, self.in_order(op))
        return out


class _Strip(NamedTuple):
    """Columns from ``left`` to ``right``, and the place of their accumulators in memory."""

    left: Val
    right: Val
    place: Val


class _InRegisters(CpuBody):
    """The kernel for blocks of columns with accumulators in registers."""

    def __init__(self, spec: KernelSpec):
        super().__init__(spec)
        analysis, params, host = spec.analysis, spec.params, spec.properties
        *self.outer, self.inner = analysis.loops(analysis.kept)
        self.loops = loops = analysis.loops(analysis.reduced)
        if params.extent:
            self.constant_steps(size_of(loops[-1]), params.extent)
        self.unroll, self.compensated = block_vectors(analysis), bool(params.compensation_interval)
        self.block, self.columns = self.lanes * self.unroll, size_of(self.inner)
        self.number_of_blocks = sz.mul(*map(size_of, loops[:-1]), sz.ceildiv(size_of(loops[-1]), BLOCK_ROWS))
        self.rows = size_of(analysis.reduced)
        self.invariant = [v for values in invariant_by_phase(analysis)[1:] for v in values]
        passes = stages(analysis, heuristics_of(host).rows.stash if params.persistent else None)
        self.stash = Stash(self, [stage.kept for stage in passes], sz.mul(self.rows, self.block), self._in_stash)

    def emit(self) -> CpuKernel:
        """The finished kernel."""
        return self.of_columns(self.outer, self.inner, self.unroll, self.rows, self.some)

    def over_rows(self, env: Env, carried, step, blocks: CarriedBlocks | None = None) -> list[Val]:
        """Run ``step(env, carried)`` over the rows. With ``blocks``, ``carried`` are the values that those carry, and
        ``step`` carries the accumulators of one block of rows."""
        if blocks is None:
            return self.nest(env, self.loops, carried, step)
        *outer, loop = self.loops

        def along(here: Env, carried):
            def rows(low, high, state):
                return self.nest(here, [loop], state, step, bounds=(low, high))

            return blocks.over(self.constant(0), self.size(size_of(loop)), BLOCK_ROWS, carried, rows)

        return self.nest(env, outer, carried, along)

    def some(self, env: Env, starts: list[Index], mask: Val | None) -> None:
        """Compute all phases and outputs for the vectors of columns at ``starts``."""
        lanes, analysis = self.lanes, self.analysis
        envs = [self.placed(env, self.inner, start) for start in starts]

        def recalled(here: Env, at: int) -> Iterator[Env]:
            for u, start in enumerate(starts):
                there = self.placed(here, self.inner, start)
                self.stash.recall([there], at, u)
                yield there
                self.stash.keep([there], at, u)

        for number, phase in enumerate(analysis.phases):
            width = len(self.identities(phase, lanes))

            def step(here, state, number=number, phase=phase, width=width):
                out: list[Val] = []
                for u, there in enumerate(recalled(here, number)):
                    out += self.accumulate(phase, state[u * width : (u + 1) * width], [there], mask)
                return out

            blocks = CarriedBlocks(self, phase * len(starts), lanes, self.number_of_blocks, self.compensated)
            done = blocks.end(self.over_rows(env, blocks.start, step, blocks))
            for u, here in enumerate(envs):
                self.bind(phase, done[u * len(phase) :], here)
        for here in envs:
            self.hoist(here, self.invariant)
        if self.full:

            def write(here, _):
                store_all(self, self.full, list(recalled(here, len(analysis.phases))), analysis.domain)

            self.over_rows(env, [], write)
        store_all(self, self.small, envs, analysis.kept)

    def _in_stash(self, env: Env, u: int) -> Val:
        """Where the stash has the ``u``-th vector of a row's columns."""
        row = self.k.scalar(self.linear(env, self.loops).base)
        return self.e.add(self.e.mul(row, self.block), u * self.lanes)


def block_vectors(analysis: Analysis) -> int:
    """Vectors of columns per iteration, such that their accumulators fit in registers."""
    most = max(sum(len(red.accumulator_types(op)) for op in phase) for phase in analysis.phases)
    return 8 if most == 1 and cost_of(analysis) < 30 else 4 if most <= 2 else 2
