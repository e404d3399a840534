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

from mlirfuse.analysis.phases import Analysis, late_outputs, size_of
from mlirfuse.core.device_properties import HostProperties
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Value
from mlirfuse.lowering import compensated_sums
from mlirfuse.lowering import reductions as red
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.kernel import ZERO, Env, Flat, Index
from mlirfuse.lowering.slots import Slots
from mlirfuse.schedule.cpu import partial
from mlirfuse.schedule.cpu.blocked_sums import BLOCKS, CarriedBlocks, StoredBlocks, compensation_interval, rounds
from mlirfuse.schedule.cpu.extents import apart, column_extents, parts, runs_across
from mlirfuse.schedule.cpu.heuristics import heuristics_of
from mlirfuse.schedule.cpu.kernel import CpuBody, CpuKernel, cost_of, lanes_of, rows_grain, store_all
from mlirfuse.schedule.cpu.packed import Packed
from mlirfuse.schedule.cpu.rows import stages
from mlirfuse.schedule.cpu.scheduler import CpuScheduler, check_streamed
from mlirfuse.schedule.cpu.streaming import streams
from mlirfuse.schedule.scheduler import SizedCall, Sizes, require
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

    def takes(self, analysis: Analysis) -> bool:
        return analysis.reduces and bool(analysis.kept)

    def candidates(self, analysis: Analysis, call: SizedCall) -> Iterator[Tiling]:
        if runs_across(analysis, call):
            for params in self._uncompensated(analysis, call):
                share = functools.partial(_share_of_limit, analysis, params, host=call.properties)
                interval = compensation_interval(analysis, call.sizes, share)
                yield params._replace(compensation_interval=interval) if interval else params

    def _uncompensated(self, analysis: Analysis, call: SizedCall) -> Iterator[Tiling]:
        heuristics = heuristics_of(call.properties)
        shared = heuristics.tasks
        kept, reduced, width, height = analysis.values(column_extents, call.sizes)
        full, _ = analysis.once(late_outputs)
        if full or len(analysis.phases) > 1:
            streamed = streams(analysis, full, call)
            persistent = 0 < _stash_bytes(analysis, reduced, call.properties) <= heuristics.rows.stash_bytes
            extent = apart(analysis, call.sizes)
            yield Tiling("columns", split=0, streamed=streamed, extent=extent, persistent=persistent)
            return
        coalesce = folds((height, width), call.properties)
        if reduced <= heuristics.columns.few and not coalesce:
            yield Tiling("columns", split=0, extent=apart(analysis, call.sizes))
            return
        tasks = kept // width * (1 if coalesce else -(-width // heuristics.columns.stretch))
        few = tasks < heuristics.columns.tasks_a_thread * call.properties.threads and kept * reduced >= shared.shared
        few = few and reduced >= heuristics.columns.rows_per_part * parts(call.properties)
        split = parts(call.properties) if few and call.properties.threads > 1 else 1
        yield Tiling("columns", split=split, coalesced_rows=int(not coalesce))

    def better_in_stages(self, analysis: Analysis, p: Tiling, call: SizedCall) -> bool | None:
        """True if there are too few blocks of columns for all threads."""
        full, _ = analysis.once(late_outputs)
        if not full and len(analysis.phases) == 1:
            return None
        kept, reduced, width, _ = analysis.values(column_extents, call.sizes)
        blocks = kept // width * -(-width // (lanes_of(analysis, call.properties) * block_vectors(analysis)))
        tasks = heuristics_of(call.properties).tasks
        return blocks < tasks.tasks_a_thread * call.properties.threads and kept * reduced >= tasks.shared // 8

    def kernels(self, name: str, analysis: Analysis, slots: Slots, p: Tiling, host: HostProperties) -> list[CpuKernel]:
        if p.split == 0:
            return [_InRegisters(name, analysis, slots, p, host).emit()]
        together = _together(analysis, p, host)
        first = _Reduction(name, analysis, slots, p, host).emit()
        return [first, partial.finish(f"{name}_finish", analysis, slots, p.split, host, together)]

    def check(self, analysis: Analysis, p: Tiling, call: SizedCall) -> None:
        full, _ = analysis.once(late_outputs)
        _, _, width, height = analysis.values(column_extents, call.sizes)
        several = bool(full) or len(analysis.phases) > 1
        require(p.split >= 0, f"split = {p.split}: must not be negative")
        require(
            p.compensation_interval > 0 or not _needs_compensation(analysis, p, call),
            "compensation_interval: sums of so many rows need compensated totals",
        )
        require(
            not several or p.split == 0,
            f"split = {p.split}: must be 0 for columns with several passes or full-size outputs",
        )
        require(p.coalesced_rows in (0, 1), f"coalesced_rows = {p.coalesced_rows}: must be 0 or 1")
        if not p.coalesced_rows:
            require(p.split > 0, "coalesced_rows = 0: needs split > 0")
            require(
                folds((height, width), call.properties),
                "coalesced_rows = 0: needs several rows of fewer than "
                f"{heuristics_of(call.properties).tasks.short} elements",
            )
        require(p.extent in (0, apart(analysis, call.sizes)), f"extent = {p.extent}: rows have another distance")
        require(p.extent == 0 or p.split == 0, "extent: needs accumulators in registers (split = 0)")
        if p.persistent:
            nbytes = _stash_bytes(analysis, analysis.values(column_extents, call.sizes)[1], call.properties)
            most = heuristics_of(call.properties).rows.stash_bytes
            require(several and p.split == 0, "persistent: needs several passes, with accumulators in registers")
            require(nbytes <= most, f"persistent: {nbytes} bytes are more than {most}")
        if p.streamed:
            check_streamed(analysis, full, call)


def _stash_bytes(analysis: Analysis, rows: int, host: HostProperties) -> int:
    """The bytes of a task's stash buffers."""
    kept = [v for stage in stages(analysis, heuristics_of(host).rows.stash) for v in stage.kept]
    return rows * lanes_of(analysis, host) * block_vectors(analysis) * sum(v.dtype.compute.bytes for v in kept)


def _needs_compensation(analysis: Analysis, p: Tiling, call: SizedCall) -> bool:
    """Whether there are so many blocks of rows that sums of them lose too much."""
    return bool(analysis.once(rounds)) and _share_of_limit(analysis, p, call.sizes, call.properties) >= 1


def _share_of_limit(analysis: Analysis, p: Tiling, env: Sizes, host: HostProperties) -> float:
    """The blocks of rows that are added up, relative to those from which on sums lose too much."""
    _, reduced, width, height = analysis.values(column_extents, env)
    if p.split == 0:
        return reduced // max(1, height) * -(-height // BLOCK_ROWS) / BLOCKS
    heuristics = heuristics_of(host).columns
    together = (
        max(1, min(heuristics.coalesced // max(1, width), height // heuristics.rows)) if not p.coalesced_rows else 1
    )
    rows = -(-reduced // p.split) if reduced == height else reduced  # of a part, at most
    return rows / (GROUPS * _at_once(analysis, host) * together + 1)


def _at_once(analysis: Analysis, host: HostProperties) -> int:
    """Rows that are summed in registers before they are added to accumulators in a buffer."""
    heuristics = heuristics_of(host).columns
    return max(1, min(heuristics.rows, heuristics.instructions // max(1, analysis.once(cost_of))))


def _together(analysis: Analysis, params: Tiling, host: HostProperties) -> sz.Size:
    """The number of rows treated as one, such that enough of those remain to be added."""
    rows, columns = size_of(analysis.loops(analysis.reduced)[-1]), size_of(analysis.loops(analysis.kept)[-1])
    heuristics = heuristics_of(host).columns
    if params.coalesced_rows:
        return 1
    return sz.maximum(1, sz.minimum(sz.floordiv(heuristics.coalesced, columns), sz.floordiv(rows, heuristics.rows)))


class _Reduction:
    """The kernel that accumulates the parts. A task adds a part of the rows of a strip of columns to its accumulators,
    which are in memory."""

    def __init__(self, name: str, analysis: Analysis, slots: Slots, params: Tiling, host: HostProperties):
        self.analysis, self.params = analysis, params
        self.body = body = CpuBody(name, analysis, slots, host)
        self.e, self.k, self.split = body.e, body.k, params.split
        (self.phase,) = analysis.phases
        *self.outer, self.inner = analysis.loops(analysis.kept)
        self.loops = analysis.loops(analysis.reduced)
        self.kept = sz.product(a.size for a in analysis.kept)
        self.columns, self.together = size_of(self.inner), _together(analysis, params, host)
        self.memories = partial.buffers(body, self.phase, self.kept, sz.mul(self.split, self.together))
        self.lanes, self.at_once = lanes_of(analysis, host), _at_once(analysis, host)
        heuristics, self.packed = heuristics_of(host), None
        self.stretches: sz.Size = 1
        if not params.coalesced_rows:
            self.stretch = sz.mul(self.columns, self.together)
            count, vectors = heuristics.columns.coalesced * self.at_once, -(-heuristics.tasks.short // self.lanes)
            self.packed = Packed(body, (self.loops[-1], self.inner), count, self.lanes, vectors)
        else:
            self.stretch = sz.minimum(self.columns, heuristics.columns.stretch)
            self.stretches = sz.ceildiv(self.columns, heuristics.columns.stretch)
        self.group = self.e.mul(body.size(self.together), self.at_once)
        totals = params.compensation_interval and compensated_sums.round_off(self.phase)
        self.sums = StoredBlocks(body, self.phase, self.memories, self.stretch, self.lanes) if totals else None
        self.part_rows = sz.mul(sz.ceildiv(size_of(self.loops[0]), self.split), *map(size_of, self.loops[1:]))
        self.block = self.e.mul(self.group, GROUPS)  # rows per block of the accumulators

    def emit(self) -> CpuKernel:
        """The finished kernel."""
        self.body.tasks(self.task)
        tasks = sz.mul(sz.product(size_of(loop) for loop in self.outer), self.stretches, self.split)
        return self.body.finish(tasks, 1)

    def task(self, index: Val) -> None:
        """Clear the accumulators of a strip of columns, and add a part of the rows to them."""
        body, e, k = self.body, self.e, self.k
        at, part = k.divmod(Index(index), self.split)
        at, which = k.divmod(at, self.stretches)
        env: Env = {}
        row = k.scalar(at.base)
        body.unlinear(env, self.outer, row)
        left = e.mul(k.scalar(which.base), body.size(self.stretch))
        right = e.min(e.add(left, body.size(self.stretch)), body.size(sz.mul(self.columns, self.together)))
        of_part = e.mul(k.scalar(part.base), body.size(sz.mul(self.kept, self.together)))
        place = e.add(of_part, e.mul(row, body.size(sz.mul(self.columns, self.together))))
        strip = _Strip(left, right, place, k.scalar(part.base) if self.split > 1 else None)

        def clear(indices, mask, state):
            for i in indices:
                offset = e.add(place, k.scalar(i.base))
                partial.save(body, self.memories, offset, body.identities(self.phase, self.lanes))
            return []

        body.vectors(left, right, self.lanes, [], clear, 1)
        if self.sums:
            self.sums.begin(e.cmp("gt", body.size(self.part_rows), self.block), left, right, place)
        self.nest(strip, 0, env, [body.constant(0)] if self.sums else [])
        if self.sums:
            self.sums.end()

    def nest(self, strip: _Strip, depth: int, here: Env, added: list[Val]) -> list[Val]:
        """Add the rows of the loops from ``depth`` on. ``added``: the number of rows in the accumulators, if they are
        sums."""
        body, e, loops = self.body, self.e, self.loops
        low, high = body.constant(0), body.size(size_of(loops[depth]))
        if depth == 0 and strip.part is not None:
            length = body.size(sz.ceildiv(size_of(loops[0]), self.split))
            low = e.min(e.mul(strip.part, length), high)
            high = e.min(e.add(low, length), high)
        if depth < len(loops) - 1:

            def inside(i, added):
                deeper = dict(here)
                body.set_loop(deeper, loops[depth], Index(i))
                return self.nest(strip, depth + 1, deeper, added)

            return body.loop(low, high, 1, added, inside)
        if self.packed:
            self.packed.pack_same([here], body.size(self.together))
        if not self.sums:
            self.groups(strip, here, low, high)
            return []
        sums = self.sums

        def one(start, added):
            end = e.min(e.add(start, self.block), high)
            self.groups(strip, here, start, end)
            return [sums.count(e.add(added[0], e.sub(end, start)), self.block)]

        return body.loop(low, high, self.block, added, one)

    def groups(self, strip: _Strip, here: Env, start: Val, end: Val) -> None:
        """Add the rows from ``start`` to ``end``, a few at a time, then the rest."""
        body, e, at_once = self.body, self.e, self.at_once
        middle = e.sub(end, e.rem(e.sub(end, start), self.group))
        if at_once > 1:
            body.loop(start, middle, self.group, [], lambda i, _: self.add(strip, here, i, end, at_once))
        else:
            middle = start
        body.loop(middle, end, body.size(self.together), [], lambda i, _: self.add(strip, here, i, end, 1))

    def add(self, strip: _Strip, here: Env, low: Val, high: Val, count: int) -> list[Val]:
        """Add ``count`` rows from ``low`` on (coalesced: as many of them as are below ``high``) to the accumulators.
        Returns no loop-carried values."""
        body, e, k, packed = self.body, self.e, self.k, self.packed
        if packed:
            packed.pack([here], low, e.min(e.add(low, e.mul(body.size(self.together), count)), high))

        def step(indices, mask, state):
            (i,) = indices
            rows = []
            for u in range(count):
                env, flat = dict(here), None
                if packed is not None:
                    origin = e.add(low, e.mul(body.size(self.together), u)) if u else low
                    flat = body.flat((self.loops[-1], self.inner), origin, i, env)
                    packed.bind(env, k.scalar(i.base), e.sub(origin, low))
                else:
                    body.set_loop(env, self.loops[-1], Index(e.add(low, u) if u else low))
                    body.set_loop(env, self.inner, i)
                rows.append((env, flat))
            offset = e.add(strip.place, k.scalar(i.base))
            before = partial.load(body, self.phase, self.memories, offset, self.lanes)
            partial.save(body, self.memories, offset, self.accumulated(before, rows, mask))
            return []

        stop = strip.right
        if packed and count == 1:
            stop = e.min(stop, e.mul(e.sub(high, low), body.size(self.columns)))
        body.vectors(strip.left, stop, self.lanes, [], step, 1)
        return []

    def accumulated(self, before: list[Val], rows: list[tuple[Env, Flat | None]], mask: Val | None) -> list[Val]:
        """The accumulators after some rows."""
        body = self.body
        out: list[Val] = []
        for op, state in zip(self.phase, red.grouped(self.phase, before)):
            elements = []
            for here, flat in rows:
                with self.k.coalesced(flat):
                    val = self.e.splat(self.k.value(op.operands[0], here), self.lanes)
                    elements.append((val, body.position(op, here), mask))
            with self.k.coalesced(rows[-1][1]):
                out += red.accumulate(self.e, op, state, elements, body.in_order(op))
        return out


class _Strip(NamedTuple):
    """Columns from ``left`` to ``right``, the place of their accumulators in memory, and the part of the rows (None:
    all)."""

    left: Val
    right: Val
    place: Val
    part: Val | None


class _InRegisters:
    """The kernel for blocks of columns with accumulators in registers."""

    def __init__(self, name: str, analysis: Analysis, slots: Slots, params: Tiling, host: HostProperties):
        self.analysis, self.params, self.host = analysis, params, host
        self.full, self.small = late_outputs(analysis)
        self.body = body = CpuBody(name, analysis, slots, host, self.full if params.streamed else ())
        self.e, self.k = body.e, body.k
        *self.outer, self.inner = analysis.loops(analysis.kept)
        self.loops = loops = analysis.loops(analysis.reduced)
        if params.extent:
            body.constant_steps(size_of(loops[-1]), params.extent)
        self.lanes, self.vectors = lanes_of(analysis, host), block_vectors(analysis)
        self.block, self.columns = self.lanes * self.vectors, size_of(self.inner)
        self.number_of_blocks = sz.mul(*map(size_of, loops[:-1]), sz.ceildiv(size_of(loops[-1]), BLOCK_ROWS))
        self.invariant = _invariant(analysis)
        length = sz.mul(sz.product(a.size for a in analysis.reduced), self.block)
        self.kept = [
            (at, value, body.stack(length, value.dtype.compute))
            for at, stage in enumerate(stages(analysis, heuristics_of(host).rows.stash) if params.persistent else ())
            for value in stage.kept
        ]

    def emit(self) -> CpuKernel:
        """The finished kernel."""
        self.body.tasks(self.task)
        rows = sz.product(a.size for a in self.analysis.reduced)
        tasks = sz.mul(sz.product(size_of(loop) for loop in self.outer), sz.ceildiv(self.columns, self.block))
        return self.body.finish(tasks, rows_grain(sz.mul(rows, self.block), self.host))

    def task(self, index: Val) -> None:
        """Compute a block of columns."""
        body, e, k = self.body, self.e, self.k
        env: Env = {}
        row, block_at = k.divmod(Index(index), sz.ceildiv(self.columns, self.block))
        body.unlinear(env, self.outer, k.scalar(row.base))
        low = e.mul(k.scalar(block_at.base), self.block)
        high = e.min(e.add(low, self.block), body.size(self.columns))

        def step(indices, mask, state):
            self.some(env, indices, mask)
            return []

        body.vectors(low, high, self.lanes, [], step, self.vectors)

    def over_rows(self, env: Env, carried, step, blocks: CarriedBlocks | None = None):
        """Run ``step(env, carried)`` over the rows. With ``blocks``, ``carried`` are the values that those carry, and
        ``step`` carries the accumulators of one block of rows."""
        body, e, loops = self.body, self.e, self.loops

        def nest(depth: int, here: Env, carried):
            low, high = body.constant(0), body.size(size_of(loops[depth]))

            def inside(i, state):
                deeper = dict(here)
                body.set_loop(deeper, loops[depth], Index(i))
                return step(deeper, state) if depth == len(loops) - 1 else nest(depth + 1, deeper, state)

            if depth < len(loops) - 1 or blocks is None:
                return body.loop(low, high, 1, carried, inside)

            def one(i, state):
                return blocks.add(state, body.loop(i, e.min(e.add(i, BLOCK_ROWS), high), 1, blocks.empty, inside))

            return body.loop(low, high, BLOCK_ROWS, carried, one)

        return nest(0, env, carried)

    def some(self, env: Env, starts: list[Index], mask: Val | None) -> None:
        """Compute all phases and outputs for the vectors of columns at ``starts``."""
        body, e, lanes, analysis = self.body, self.e, self.lanes, self.analysis
        envs = []
        for start in starts:
            envs.append(dict(env))
            body.set_loop(envs[-1], self.inner, start)

        def at(here: Env, u: int) -> Env:
            return {**here, **{axis: envs[u][axis] for axis in self.inner}}

        for number, phase in enumerate(analysis.phases):
            width = len(body.identities(phase, lanes))

            def step(here, state, number=number, phase=phase, width=width):
                out = []
                for u in range(len(starts)):
                    before, there = state[u * width : (u + 1) * width], at(here, u)
                    self.recall(there, number, u)
                    out += body.accumulate(phase, before, [there], mask, lanes)
                    self.keep(there, number, u)
                return out

            blocks = CarriedBlocks(
                body, phase * len(starts), lanes, self.number_of_blocks, bool(self.params.compensation_interval)
            )
            done = blocks.end(self.over_rows(env, blocks.start, step, blocks))
            for u, here in enumerate(envs):
                for op, total in zip(phase, done[u * len(phase) :]):
                    self.k.bind(op.result, here, red.result(e, op, total))
        for here in envs:
            body.hoist(here, self.invariant)
        if self.full:

            def write(here, _):
                there = [at(here, u) for u in range(len(starts))]
                for u, each in enumerate(there):
                    self.recall(each, len(analysis.phases), u)
                store_all(body, self.full, there, analysis.domain)
                return []

            self.over_rows(env, [], write)
        store_all(body, self.small, envs, analysis.kept)

    def keep(self, env: Env, at: int, u: int) -> None:
        """Store values of the ``u``-th vector of columns that passes behind the ``at``-th need."""
        for first, value, memory in self.kept:
            if first == at:
                val = self.e.splat(self.k.value(value, env), self.lanes)
                self.body.put(memory, self._in_stash(env, u), val)

    def recall(self, env: Env, at: int, u: int) -> None:
        """Bind values that passes before the ``at``-th stored."""
        for first, value, memory in self.kept:
            if first < at:
                val = self.body.get(memory, self._in_stash(env, u), value.dtype.compute, self.lanes)
                self.k.bind(value, env, val)

    def _in_stash(self, env: Env, u: int) -> Val:
        """Where the stash has the ``u``-th vector of a row's columns."""
        row = ZERO
        for loop in self.loops:
            row = self.k.add(self.k.scale(row, size_of(loop)), env[loop[-1]])
        return self.e.add(self.e.mul(self.k.scalar(row.base), self.block), u * self.lanes)


def _invariant(analysis: Analysis) -> list[Value]:
    """Values that depend on the reductions but do not vary along the rows."""
    reduced = set(analysis.reduced)
    late = analysis.late_values()
    found = [v for op in analysis.ops for v in op.results if v in late and not reduced & set(analysis.axes.flat(v))]
    bound = {op.result for phase in analysis.phases for op in phase}
    return [v for v in found if v not in bound]


def block_vectors(analysis: Analysis) -> int:
    """Vectors of columns per iteration, such that their accumulators fit in registers."""
    most = max(sum(len(red.accumulator_types(op)) for op in phase) for phase in analysis.phases)
    return 8 if most == 1 and cost_of(analysis) < 30 else 4 if most <= 2 else 2
