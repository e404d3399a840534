"""Column reductions and normalizations on the CPU: a kept axis is contiguous in memory.

*Reductions* (one phase, outputs over the kept axes): the accumulators of a strip of columns are in an L1-resident
buffer, and a few rows at a time are added to them, so that memory is read sequentially. A task takes a part of the rows
(``split``). If there are few columns, several rows are treated as one (``coalesced``): the accumulators are
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
from mlirfuse.lowering.kernel import Env, Index
from mlirfuse.lowering.slots import Slots
from mlirfuse.schedule.cpu import partial
from mlirfuse.schedule.cpu.blocked_sums import BLOCKS, CarriedBlocks, StoredBlocks, compensates, rounds
from mlirfuse.schedule.cpu.extents import apart, column_extents, parts, runs_across
from mlirfuse.schedule.cpu.heuristics import heuristics_of
from mlirfuse.schedule.cpu.kernel import CpuBody, CpuKernel, cost_of, lanes_of, rows_grain, store_all
from mlirfuse.schedule.cpu.packed import Packed
from mlirfuse.schedule.cpu.streaming import can_stream, streams
from mlirfuse.schedule.scheduler import Alignments, EmittedKernels, Scheduler, Sizes, require

BLOCK_ROWS = 256  # rows summed in registers as one block
GROUPS = 128  # groups of rows added to the accumulators in a buffer as one block


class Params(NamedTuple):
    """``split``: parts of the rows (0: accumulators in registers). ``coalesced``: treat several rows as one.
    ``streamed``: write full-size outputs with non-temporal stores. ``compensated``: use compensated totals, required
    for sums of very many elements. ``row_stride``: elements between adjacent rows, if vectors across rows are shuffled
    out of contiguous vectors; 0: any distance."""

    split: int = 1
    coalesced: bool = False
    streamed: bool = False
    compensated: bool = False
    row_stride: int = 0


def folds(extents: tuple[int, int], host: HostProperties) -> bool:
    """Whether several rows should be treated as one. ``extents`` are those of the innermost reduced and innermost kept
    loop."""
    rows, columns = extents
    return columns < heuristics_of(host).tasks.short and rows > 1


class CpuColumns(Scheduler[Params, HostProperties]):
    """Column reductions and normalizations, and row reductions whose rows are a small fraction of a vector."""

    name = "columns"
    parameters = Params

    def takes(self, analysis: Analysis) -> bool:
        return analysis.reduces and bool(analysis.kept)

    def candidates(
        self, analysis: Analysis, env: Sizes, alignments: Alignments, host: HostProperties
    ) -> Iterator[Params]:
        if runs_across(analysis, env, host):
            for params in self._uncompensated(analysis, env, alignments, host):
                share = functools.partial(_share_of_limit, analysis, params, host=host)
                yield params._replace(compensated=bool(analysis.once(rounds)) and compensates(analysis, env, share))

    def _uncompensated(
        self, analysis: Analysis, env: Sizes, alignments: Alignments, host: HostProperties
    ) -> Iterator[Params]:
        heuristics = heuristics_of(host)
        shared = heuristics.tasks
        kept, reduced, width, height = analysis.values(column_extents, env)
        full, _ = analysis.once(late_outputs)
        if full or len(analysis.phases) > 1:
            streamed = streams(analysis, full, env, alignments, host)
            yield Params(split=0, streamed=streamed, row_stride=apart(analysis, env))
            return
        coalesce = folds((height, width), host)
        if reduced <= heuristics.columns.few and not coalesce:
            yield Params(split=0, row_stride=apart(analysis, env))
            return
        tasks = kept // width * (1 if coalesce else -(-width // heuristics.columns.stretch))
        few = tasks < heuristics.columns.tasks_a_thread * host.threads and kept * reduced >= shared.shared
        few = few and reduced >= heuristics.columns.rows_per_part * parts(host)
        yield Params(split=parts(host) if few and host.threads > 1 else 1, coalesced=coalesce)

    def better_in_stages(self, analysis: Analysis, p: Params, env: Sizes, host: HostProperties) -> bool | None:
        """True if there are too few blocks of columns for all threads."""
        full, _ = analysis.once(late_outputs)
        if not full and len(analysis.phases) == 1:
            return None
        kept, reduced, width, _ = analysis.values(column_extents, env)
        blocks = kept // width * -(-width // (lanes_of(analysis, host) * block_vectors(analysis)))
        tasks = heuristics_of(host).tasks
        return blocks < tasks.tasks_a_thread * host.threads and kept * reduced >= tasks.shared // 8

    def emit(
        self, name: str, analysis: Analysis, slots: Slots, params: Params, properties: HostProperties
    ) -> EmittedKernels:
        yield analysis, _kernels(name, analysis, slots, params, properties)

    def check(self, analysis: Analysis, p: Params, env: Sizes, alignments: Alignments, host: HostProperties) -> None:
        full, _ = analysis.once(late_outputs)
        _, _, width, height = analysis.values(column_extents, env)
        several = bool(full) or len(analysis.phases) > 1
        require(p.split >= 0, f"split = {p.split}: must not be negative")
        require(
            p.compensated or not _needs_compensation(analysis, p, env, host),
            "compensated: sums of so many rows need compensated totals",
        )
        require(
            not several or p.split == 0,
            f"split = {p.split}: must be 0 for columns with several passes or full-size outputs",
        )
        if p.coalesced:
            require(p.split > 0, "coalesced: needs split > 0")
            require(
                folds((height, width), host),
                f"coalesced: needs several rows of fewer than {heuristics_of(host).tasks.short} elements",
            )
        require(p.row_stride in (0, apart(analysis, env)), f"row_stride = {p.row_stride}: rows have another distance")
        require(p.row_stride == 0 or p.split == 0, "row_stride: needs accumulators in registers (split = 0)")
        if p.streamed:
            aligned = bool(full) and can_stream(analysis, full, env, alignments, host)
            require(aligned, "streamed: outputs are not aligned for non-temporal stores")


def _needs_compensation(analysis: Analysis, p: Params, env: Sizes, host: HostProperties) -> bool:
    """Whether there are so many blocks of rows that sums of them lose too much."""
    return bool(analysis.once(rounds)) and _share_of_limit(analysis, p, env, host) >= 1


def _share_of_limit(analysis: Analysis, p: Params, env: Sizes, host: HostProperties) -> float:
    """The blocks of rows that are added up, relative to those from which on sums lose too much."""
    _, reduced, width, height = analysis.values(column_extents, env)
    if p.split == 0:
        return reduced // max(1, height) * -(-height // BLOCK_ROWS) / BLOCKS
    heuristics = heuristics_of(host).columns
    together = max(1, min(heuristics.coalesced // max(1, width), height // heuristics.rows)) if p.coalesced else 1
    rows = -(-reduced // p.split) if reduced == height else reduced  # of a part, at most
    return rows / (GROUPS * _at_once(analysis, host) * together + 1)


def _at_once(analysis: Analysis, host: HostProperties) -> int:
    """Rows that are summed in registers before they are added to accumulators in a buffer."""
    heuristics = heuristics_of(host).columns
    return max(1, min(heuristics.rows, heuristics.instructions // max(1, analysis.once(cost_of))))


def _kernels(name: str, analysis: Analysis, slots: Slots, params: Params, host: HostProperties) -> list[CpuKernel]:
    if params.split == 0:
        return [_in_registers(name, analysis, slots, params, host)]
    first = _reduce(name, analysis, slots, params, host)
    return [
        first,
        partial.finish(f"{name}_finish", analysis, slots, params.split, host, _together(analysis, params, host)),
    ]


def _together(analysis: Analysis, params: Params, host: HostProperties) -> sz.Size:
    """The number of rows treated as one, such that enough of those remain to be added."""
    rows, columns = size_of(analysis.loops(analysis.reduced)[-1]), size_of(analysis.loops(analysis.kept)[-1])
    heuristics = heuristics_of(host).columns
    if not params.coalesced:
        return 1
    return sz.maximum(1, sz.minimum(sz.floordiv(heuristics.coalesced, columns), sz.floordiv(rows, heuristics.rows)))


def _reduce(name: str, analysis: Analysis, slots: Slots, params: Params, host: HostProperties) -> CpuKernel:
    """The kernel that accumulates the parts."""
    body = CpuBody(name, analysis, slots, host)
    e, k, split = body.e, body.k, params.split
    (phase,) = analysis.phases
    *outer, inner = analysis.loops(analysis.kept)
    loops = analysis.loops(analysis.reduced)
    kept = sz.product(a.size for a in analysis.kept)
    columns, together = size_of(inner), _together(analysis, params, host)
    memories = partial.buffers(body, phase, kept, sz.mul(split, together))
    lanes = lanes_of(analysis, host)
    heuristics = heuristics_of(host)
    at_once = _at_once(analysis, host)
    stretch = sz.mul(columns, together) if params.coalesced else sz.minimum(columns, heuristics.columns.stretch)
    stretches = 1 if params.coalesced else sz.ceildiv(columns, heuristics.columns.stretch)
    packed = None
    if params.coalesced:
        count, vectors = heuristics.columns.coalesced * at_once, -(-heuristics.tasks.short // lanes)
        packed = Packed(body, (loops[-1], inner), count, lanes, vectors)
    group = e.mul(body.size(together), at_once)
    totals = params.compensated and compensated_sums.round_off(phase)
    sums = StoredBlocks(body, phase, memories, stretch, lanes) if totals else None
    rows = sz.mul(sz.ceildiv(size_of(loops[0]), split), *map(size_of, loops[1:]))
    block = e.mul(group, GROUPS)  # rows per block of the accumulators

    def task(index):
        at, part = k.divmod(Index(index), split)
        at, which = k.divmod(at, stretches)
        env: Env = {}
        row = k.scalar(at.base)
        body.unlinear(env, outer, row)
        left = e.mul(k.scalar(which.base), body.size(stretch))
        right = e.min(e.add(left, body.size(stretch)), body.size(sz.mul(columns, together)))
        place = e.add(
            e.mul(k.scalar(part.base), body.size(sz.mul(kept, together))),
            e.mul(row, body.size(sz.mul(columns, together))),
        )

        def clear(indices, mask, state):
            for i in indices:
                partial.save(body, memories, e.add(place, k.scalar(i.base)), body.identities(phase, lanes))
            return []

        body.vectors(left, right, lanes, [], clear, 1)
        if sums:
            sums.begin(e.cmp("gt", body.size(rows), block), left, right, place)

        def add(here: Env, low, high, count: int):
            """Add ``count`` rows from ``low`` on (coalesced: as many of them as are below ``high``) to the
            accumulators."""
            if packed:
                packed.pack([here], low, e.min(e.add(low, e.mul(body.size(together), count)), high))

            def step(indices, mask, state):
                (i,) = indices
                envs = []
                for u in range(count):
                    envs.append(dict(here))
                    if packed is not None:
                        origin = e.add(low, e.mul(body.size(together), u)) if u else low
                        flats.append(body.flat((loops[-1], inner), origin, i, envs[-1]))
                        packed.bind(envs[-1], k.scalar(i.base), e.sub(origin, low))
                    else:
                        body.set_loop(envs[-1], loops[-1], Index(e.add(low, u) if u else low))
                        body.set_loop(envs[-1], inner, i)
                offset = e.add(place, k.scalar(i.base))
                before = partial.load(body, phase, memories, offset, lanes)
                partial.save(body, memories, offset, accumulate(before, envs, mask))
                return []

            flats: list = []

            def accumulate(before, envs, mask):
                out: list[Val] = []
                for op, state in zip(phase, red.grouped(phase, before)):
                    elements = []
                    for u, here in enumerate(envs):
                        k.flat = flats[u - len(envs)] if params.coalesced else None
                        elements.append((e.splat(k.value(op.operands[0], here), lanes), body.position(op, here), mask))
                    out += red.accumulate(e, op, state, elements, body.in_order(op))
                k.flat = None
                return out

            stop = right
            if params.coalesced and count == 1:
                stop = e.min(right, e.mul(e.sub(high, low), body.size(columns)))
            body.vectors(left, stop, lanes, [], step, 1)

        def nest(depth: int, here: Env, added: list[Val]) -> list[Val]:
            """``added``: the number of rows in the accumulators, if they are sums."""
            low, high = body.constant(0), body.size(size_of(loops[depth]))
            if depth == 0 and split > 1:
                length = body.size(sz.ceildiv(size_of(loops[0]), split))
                low = e.min(e.mul(k.scalar(part.base), length), high)
                high = e.min(e.add(low, length), high)
            if depth < len(loops) - 1:

                def inside(i, added):
                    deeper = dict(here)
                    body.set_loop(deeper, loops[depth], Index(i))
                    return nest(depth + 1, deeper, added)

                return body.loop(low, high, 1, added, inside)
            if packed:
                packed.pack_same([here], body.size(together))

            def one(start, added):
                end = e.min(e.add(start, block), high) if sums else high
                middle = e.sub(end, e.rem(e.sub(end, start), group))
                if at_once > 1:
                    body.loop(start, middle, group, [], lambda i, _: add(here, i, end, at_once) or [])
                else:
                    middle = start
                body.loop(middle, end, body.size(together), [], lambda i, _: add(here, i, end, 1) or [])
                return [sums.count(e.add(added[0], e.sub(end, start)), block)] if sums else []

            return body.loop(low, high, block, added, one) if sums else one(low, [])

        nest(0, env, [body.constant(0)] if sums else [])
        if sums:
            sums.end()

    body.tasks(task)
    tasks = sz.mul(sz.product(size_of(loop) for loop in outer), stretches, split)
    return body.finish(tasks, 1)


def _in_registers(name: str, analysis: Analysis, slots: Slots, params: Params, host: HostProperties) -> CpuKernel:
    """The kernel for blocks of columns with accumulators in registers."""
    full, small = late_outputs(analysis)
    body = CpuBody(name, analysis, slots, host, full if params.streamed else ())
    e, k = body.e, body.k
    *outer, inner = analysis.loops(analysis.kept)
    loops = analysis.loops(analysis.reduced)
    if params.row_stride:
        body.constant_steps(size_of(loops[-1]), params.row_stride)
    lanes = lanes_of(analysis, host)
    vectors = block_vectors(analysis)
    block = lanes * vectors
    columns = size_of(inner)

    def over_rows(env: Env, carried, step, blocks: CarriedBlocks | None = None):
        """Run ``step(env, carried)`` over the rows. With ``blocks``, ``carried`` are the values that those carry, and
        ``step`` carries the accumulators of one block of rows."""

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

    def some(env: Env, starts: list[Index], mask) -> None:
        """Compute all phases and outputs for the vectors of columns at ``starts``."""
        envs = []
        for start in starts:
            envs.append(dict(env))
            body.set_loop(envs[-1], inner, start)

        def at(here: Env, u: int) -> Env:
            return {**here, **{axis: envs[u][axis] for axis in inner}}

        for phase in analysis.phases:
            width = len(body.identities(phase, lanes))

            def step(here, state, phase=phase, width=width):
                out = []
                for u in range(len(starts)):
                    before = state[u * width : (u + 1) * width]
                    out += body.accumulate(phase, before, [at(here, u)], mask, lanes)
                return out

            blocks = CarriedBlocks(body, phase * len(starts), lanes, number_of_blocks, params.compensated)
            done = blocks.end(over_rows(env, blocks.start, step, blocks))
            for u, here in enumerate(envs):
                for op, total in zip(phase, done[u * len(phase) :]):
                    k.bind(op.result, here, red.result(e, op, total))
        for here in envs:
            body.hoist(here, invariant)
        if full:

            def write(here, _):
                store_all(body, full, [at(here, u) for u in range(len(starts))], analysis.domain)
                return []

            over_rows(env, [], write)
        store_all(body, small, envs, analysis.kept)

    def task(index):
        env: Env = {}
        row, block_at = k.divmod(Index(index), sz.ceildiv(columns, block))
        body.unlinear(env, outer, k.scalar(row.base))
        low = e.mul(k.scalar(block_at.base), block)
        high = e.min(e.add(low, block), body.size(columns))

        def step(indices, mask, state):
            some(env, indices, mask)
            return []

        body.vectors(low, high, lanes, [], step, vectors)

    number_of_blocks = sz.mul(*map(size_of, loops[:-1]), sz.ceildiv(size_of(loops[-1]), BLOCK_ROWS))
    invariant = _invariant(analysis)
    body.tasks(task)
    rows = sz.product(a.size for a in analysis.reduced)
    tasks = sz.mul(sz.product(size_of(loop) for loop in outer), sz.ceildiv(columns, block))
    return body.finish(tasks, rows_grain(sz.mul(rows, block), host))


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
