"""Row reductions and normalizations on the CPU: reductions along contiguous memory. A task is a row, i.e. a point of
the kept axes.

Each phase of reductions, and the writing of full-size outputs, is a pass over the row, which stays in cache. Expensive
values that later passes need are stored in a buffer of the row's length (``persistent``). Rows of a few vectors are
register-resident (``vectors_per_thread``).

If there are too few rows for all threads, a task takes a part of one and stores partial accumulators (``split``); see
:mod:`partial`.

Sums add the vectors in flight first, then blocks of :data:`BLOCK_VECTORS` of those, then the blocks
(:mod:`mlirfuse.schedule.cpu.blocked_sums`), then the lanes: the error stays near that of pairwise summation."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mlirfuse.analysis.phases import Analysis, depends_on, is_reduction, late_outputs, size_of
from mlirfuse.core.device_properties import HostProperties
from mlirfuse.ir import ops as table
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Op, Value
from mlirfuse.lowering import reductions as red
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.kernel import ZERO, Env, Index
from mlirfuse.lowering.slots import Slots
from mlirfuse.schedule.cpu import partial
from mlirfuse.schedule.cpu.blocked_sums import BLOCKS, CarriedBlocks, compensation_interval, rounds
from mlirfuse.schedule.cpu.extents import parts, row_extents, runs_across
from mlirfuse.schedule.cpu.heuristics import RowHeuristics, heuristics_of
from mlirfuse.schedule.cpu.kernel import CpuBody, CpuKernel, cost_of, lanes_of, rows_grain, store_all, unroll_for
from mlirfuse.schedule.cpu.scheduler import CpuScheduler, check_streamed
from mlirfuse.schedule.cpu.streaming import streams
from mlirfuse.schedule.scheduler import SizedCall, Sizes, require
from mlirfuse.schedule.tiling import Tiling

BLOCK_VECTORS = 64


@dataclass
class Stage:
    """One pass over a row: a phase of reductions, or the final pass that writes outputs. ``kept``: values that later
    stages load from a buffer; ``cost``: approximate instructions per element."""

    kept: list[Value]
    cost: int


def stages(analysis: Analysis, threshold: int | None) -> list[Stage]:
    """The passes over a row. Values that cost at least ``threshold`` instructions and are needed again are kept; None:
    none."""
    return analysis.once(_stages_from(threshold))


@functools.cache
def _stages_from(threshold: int | None) -> Callable[[Analysis], list[Stage]]:
    return lambda analysis: _stages(analysis, threshold)


def _stages(analysis: Analysis, threshold: int | None) -> list[Stage]:
    varying = depends_on(analysis, analysis.reduced)
    expensive = set() if threshold is None else _expensive(analysis, varying, threshold)
    roots = [[op.operands[0] for op in phase] for phase in analysis.phases] + [late_outputs(analysis)[0]]
    first: dict[Value, Stage] = {}  # the stage that computes a value first
    out: list[Stage] = []
    for values in roots:
        stage, needed = Stage([], 0), set(values)
        for op in reversed(analysis.ops):
            value = next((v for v in op.results if v in needed and v in varying), None)
            if value is None or is_reduction(op):
                continue
            if value in first and value in expensive:
                kept = first[value].kept
                kept += [value] if value not in kept else []
                continue
            first.setdefault(value, stage)
            stage.cost += table.TABLE[op.name].cost
            needed.update(op.operands)
        out.append(stage)
    return out


def _expensive(analysis: Analysis, varying: set[Value], threshold: int) -> set[Value]:
    """The results of elementwise ops that take at least ``threshold`` instructions to compute from inputs and
    reductions."""
    total: dict[Value, int] = {}
    for op in analysis.ops:
        for value in op.results if not is_reduction(op) else ():
            if value in varying:
                total[value] = min(threshold, table.TABLE[op.name].cost + sum(total.get(v, 0) for v in op.operands))
    return {v for v, cost in total.items() if cost == threshold and v.op.row.kind == "elementwise"}


class CpuRows(CpuScheduler):
    """Row reductions and normalizations."""

    name = "rows"
    fields = "vectors_per_thread", "split", "unmasked", "persistent", "compensation_interval", "streamed"

    def takes(self, analysis: Analysis) -> bool:
        return analysis.reduces

    def candidates(self, analysis: Analysis, call: SizedCall) -> Iterator[Tiling]:
        if runs_across(analysis, call):
            return
        heuristics = heuristics_of(call.properties).rows
        kept, reduced = analysis.values(row_extents, call.sizes)
        full, _ = analysis.once(late_outputs)
        if not full and _few(kept, reduced, call.properties) and len(analysis.phases) == 1:
            yield Tiling(
                "rows",
                split=parts(call.properties),
                compensation_interval=_interval(analysis, call),
                unmasked=int(can_visit_again(analysis, call)),
            )
            return
        vectors = math.ceil(reduced / lanes_of(analysis, call.properties))
        if vectors <= heuristics.in_registers and len(analysis.loops(analysis.reduced)) == 1:
            yield Tiling("rows", vectors_per_thread=1 << (vectors - 1).bit_length())
            return
        length = reduced * _stash_bytes(analysis, heuristics)
        yield Tiling(
            "rows",
            persistent=0 < length <= heuristics.stash_bytes,
            streamed=streams(analysis, full, call),
            compensation_interval=_interval(analysis, call),
            unmasked=int(can_visit_again(analysis, call)),
        )

    def better_in_stages(self, analysis: Analysis, p: Tiling, call: SizedCall) -> bool | None:
        """True if there are too few rows for all threads."""
        full, _ = analysis.once(late_outputs)
        if not full and len(analysis.phases) == 1:
            return None
        kept, reduced = analysis.values(row_extents, call.sizes)
        return kept * reduced >= 2 * heuristics_of(call.properties).tasks.shared and _few(
            kept, reduced, call.properties
        )

    def kernels(self, name: str, analysis: Analysis, slots: Slots, p: Tiling, host: HostProperties) -> list[CpuKernel]:
        if p.split > 1:
            first = _split_rows(name, analysis, slots, p, host)
            return [first, partial.finish(f"{name}_finish", analysis, slots, p.split, host)]
        if p.vectors_per_thread:
            return [_register_rows(name, analysis, slots, p, host)]
        return [_long_rows(name, analysis, slots, p, host)]

    def check(self, analysis: Analysis, p: Tiling, call: SizedCall) -> None:
        heuristics = heuristics_of(call.properties).rows
        full, _ = analysis.once(late_outputs)
        _, reduced = analysis.values(row_extents, call.sizes)
        require(
            p.split >= 1 and p.vectors_per_thread >= 0, "split: at least 1, and vectors_per_thread must not be negative"
        )
        require(
            p.compensation_interval > 0 or not needs_compensation(analysis, call),
            f"compensation_interval: sums of {reduced} elements need one",
        )
        if p.split > 1:
            require(
                not full and len(analysis.phases) == 1, "split: not for rows with several passes or full-size outputs"
            )
        p.excludes("split", "vectors_per_thread", "persistent", "streamed")
        if p.unmasked:
            require(
                can_visit_again(analysis, call),
                "unmasked: not for sums, nor for rows shorter than the vectors in flight",
            )
        if p.vectors_per_thread:
            room = p.vectors_per_thread * lanes_of(analysis, call.properties)
            require(len(analysis.loops(analysis.reduced)) == 1, "vectors_per_thread: a row must be one loop")
            require(
                reduced <= room, f"vectors_per_thread = {p.vectors_per_thread}: {room} elements, a row has {reduced}"
            )
            require(
                p.vectors_per_thread <= heuristics.most_in_registers,
                f"vectors_per_thread = {p.vectors_per_thread}: must be at most {heuristics.most_in_registers} vectors",
            )
        p.excludes("vectors_per_thread", "persistent", "streamed")
        if p.persistent:
            nbytes = reduced * _stash_bytes(analysis, heuristics)
            require(
                nbytes <= heuristics.stash_bytes,
                f"persistent: a row needs {nbytes} bytes, more than {heuristics.stash_bytes}",
            )
        if p.streamed:
            check_streamed(analysis, full, call)


def needs_compensation(analysis: Analysis, call: SizedCall) -> bool:
    """Whether a row has so many blocks that sums of them lose too much."""
    return bool(analysis.once(rounds)) and _share_of_limit(analysis, call.sizes, call.properties) >= 1


def _interval(analysis: Analysis, call: SizedCall) -> int:
    """The compensation interval."""
    share = functools.partial(_share_of_limit, analysis, host=call.properties)
    return compensation_interval(analysis, call.sizes, share)


def _share_of_limit(analysis: Analysis, env: Sizes, host: HostProperties) -> float:
    """The blocks of a row relative to those from which on sums of them lose too much."""
    segments, length = analysis.values(_row_segments, env)
    least = BLOCK_VECTORS * lanes_of(analysis, host) * unroll_for(analysis.once(cost_of))  # of a block of any stage
    return segments * -(-length // least) / BLOCKS


def can_visit_again(analysis: Analysis, call: SizedCall) -> bool:
    """Whether some phase is idempotent, and the innermost reduced loop is at least as long as the vectors in flight."""
    heuristics = heuristics_of(call.properties).rows
    unroll = max(
        unroll_for(stage.cost) for threshold in (None, heuristics.stash) for stage in stages(analysis, threshold)
    )
    _, length = analysis.values(_row_segments, call.sizes)
    return any(map(_idempotent, analysis.phases)) and length >= unroll * lanes_of(analysis, call.properties)


def _idempotent(phase: list[Op]) -> bool:
    """Whether reducing an element twice gives the same as once."""
    return {op.name for op in phase} <= {"max", "min", "any", "all", "argmax", "argmin"}


def _row_segments(analysis: Analysis) -> list[sz.Size]:
    """The number of contiguous segments of a row, and their length."""
    *outer, inner = map(size_of, analysis.loops(analysis.reduced))
    return [sz.product(outer), inner]


def _few(kept: int, reduced: int, host: HostProperties) -> bool:
    """Whether there are too few rows for all threads, but enough work to share."""
    tasks = heuristics_of(host).tasks
    return kept * reduced >= tasks.shared and kept < tasks.tasks_a_thread * host.threads and host.threads > 1


def _stash_bytes(analysis: Analysis, heuristics: RowHeuristics) -> int:
    """Bytes per element of the stash buffers."""
    return sum(value.dtype.compute.bytes for stage in stages(analysis, heuristics.stash) for value in stage.kept)


class RowsBody(CpuBody):
    """A CPU kernel body with loops over a row."""

    def __init__(self, name, analysis, slots, host, streamed=(), stash=False, compensated=False, overlapped_tail=False):
        super().__init__(name, analysis, slots, host, streamed)
        self.compensated, self.overlapped_tail = compensated, overlapped_tail
        self.loops = analysis.loops(analysis.reduced)
        self.lanes = lanes_of(analysis, host)
        self.invariant = _invariant(analysis)
        self.stages = stages(analysis, heuristics_of(host).rows.stash if stash else None)
        length = sz.product(a.size for a in analysis.reduced)
        self.kept = [
            (at, v, self.stack(length, v.dtype.compute)) for at, stage in enumerate(self.stages) for v in stage.kept
        ]

    def over(
        self, env: Env, at: int, carried, step, low=None, high=None, blocks: CarriedBlocks | None = None
    ) -> list[Val]:
        """Run ``step(envs, mask, carried)`` for stage ``at`` over the row, with the innermost loop in vectors; ``low``
        and ``high`` bound the outermost loop. With ``blocks``, ``carried`` are the values that those carry, and
        ``step`` carries the accumulators of one block."""
        zero, unroll = self.constant(0), unroll_for(self.stages[at].cost)
        overlapped_tail = self.visits_again(at)

        def nest(depth: int, env: Env, carried):
            loop, extent = self.loops[depth], size_of(self.loops[depth])
            start, stop = (low, high) if depth == 0 and low is not None else (zero, self.size(extent))
            if depth < len(self.loops) - 1:

                def inside(i, state):
                    deeper = dict(env)
                    self.set_loop(deeper, loop, Index(i))
                    return nest(depth + 1, deeper, state)

                return self.loop(start, stop, 1, carried, inside)

            def vectors(indices, mask, state):
                envs = [dict(env) for _ in indices]
                for here, i in zip(envs, indices):
                    self.set_loop(here, loop, i)
                return step(envs, mask, state)

            if blocks is None:
                return self.vectors(start, stop, self.lanes, carried, vectors, unroll)
            length = self.block(at)

            def one(i, state):
                end = self.e.min(self.e.add(i, length), stop)
                return blocks.add(
                    state,
                    self.vectors(i, end, self.lanes, blocks.empty, vectors, unroll, overlapped_tail=overlapped_tail),
                )

            return self.loop(start, stop, length, carried, one)

        return nest(0, env, carried)

    def reduce(self, env: Env, at: int, low=None, high=None) -> list[tuple[Val, ...]]:
        """The accumulators over the row of each reduction of phase ``at``."""
        phase = self.analysis.phases[at]
        by_start = {
            op for op in phase if op.row.accumulator == "position" and self.visits_again(at) and self.in_order(op)
        }
        self.hoist(env, self.invariant[at])

        def step(envs, mask, state):
            self.recall(envs, at)
            following: list[Val] = []
            for op, before in zip(phase, red.grouped(phase, state)):
                elements = self.elements(op, envs, mask, self.lanes)
                if op in by_start:
                    following += red.accumulate_start(self.e, op, before, elements, self._index_in_row(envs[0]))
                else:
                    following += red.accumulate(self.e, op, before, elements, self.in_order(op))
            self.keep(envs, at)
            return following

        number = sz.mul(*map(size_of, self.loops[:-1]), sz.ceildiv(size_of(self.loops[-1]), self.block(at)))
        blocks = CarriedBlocks(self, phase, self.lanes, number, self.compensated)
        done = blocks.end(self.over(env, at, blocks.start, step, low, high, blocks))
        totals = [red.across_lanes(self.e, op, a) for op, a in zip(phase, done)]
        return [self._located(env, at, op, *a) if op in by_start else a for op, a in zip(phase, totals)]

    def visits_again(self, at: int) -> bool:
        """Whether stage ``at`` visits elements again at the ends of rows."""
        return self.overlapped_tail and at < len(self.analysis.phases) and _idempotent(self.analysis.phases[at])

    def _located(self, env: Env, at: int, op: Op, best: Val, start: Val) -> tuple[Val, Val]:
        """The best value and its index, which is in the vectors in flight that begin at ``start``."""
        here = dict(env)
        self.unlinear(here, self.loops, start)
        envs = []
        for u in range(unroll_for(self.stages[at].cost)):
            envs.append(dict(here))
            first = self.k.scalar(here[self.loops[-1][-1]].base)
            self.set_loop(envs[-1], self.loops[-1], Index(self.e.add(first, u * self.lanes), 1, self.lanes))
        self.recall(envs, at)
        vals = [value for value, _, _ in self.elements(op, envs, None, self.lanes)]
        return best, self.e.add(start, red.first_offset(self.e, vals, best))

    def block(self, at: int) -> int:
        """Elements of a row that stage ``at`` sums as one block."""
        return BLOCK_VECTORS * self.lanes * unroll_for(self.stages[at].cost)

    def write(self, env: Env, outputs: list[Value]) -> None:
        """Store full-size outputs."""
        last = len(self.analysis.phases)
        self.hoist(env, self.invariant[last])

        def step(envs, mask, state):
            self.recall(envs, last)
            store_all(self, outputs, envs, self.analysis.domain)
            return []

        self.over(env, last, [], step)

    def keep(self, envs: list[Env], at: int) -> None:
        """Store values that phases after ``at`` need in the stash."""
        for phase, value, memory in self.kept:
            if phase == at:
                for env in envs:
                    self.put(memory, self._index_in_row(env), self.e.splat(self.k.value(value, env), self.lanes))

    def recall(self, envs: list[Env], at: int) -> None:
        """Bind values that phases before ``at`` stored in the stash."""
        for phase, value, memory in self.kept:
            if phase < at:
                for env in envs:
                    self.k.bind(value, env, self.get(memory, self._index_in_row(env), value.dtype.compute, self.lanes))

    def _index_in_row(self, env: Env) -> Val:
        """The linear index of ``env`` in the row."""
        index = ZERO
        for loop in self.loops:
            index = self.k.add(self.k.scale(index, size_of(loop)), env[loop[-1]])
        return self.k.scalar(index.base)


def _invariant(analysis: Analysis) -> list[list[Value]]:
    """For each phase, and for the final pass, the values that do not vary along the row and depend on the phase before
    it."""
    varying = depends_on(analysis, analysis.reduced)
    level: dict[Value, int] = {op.result: at + 1 for at, phase in enumerate(analysis.phases) for op in phase}
    out: list[list[Value]] = [[] for _ in range(len(analysis.phases) + 1)]
    for op in analysis.ops:
        latest = max((level.get(v, 0) for v in op.operands), default=0)
        for value in op.results:
            if value not in level:
                level[value] = latest
                if value not in varying:
                    out[latest].append(value)
    return out


def _long_rows(name: str, analysis: Analysis, slots: Slots, params: Tiling, host: HostProperties) -> CpuKernel:
    """The kernel for rows that are passed over in memory."""
    full, small = late_outputs(analysis)
    streamed, (stash, totals, overlapped_tail) = (
        full if params.streamed else (),
        (params.persistent, bool(params.compensation_interval), bool(params.unmasked)),
    )
    body = RowsBody(name, analysis, slots, host, streamed, stash, totals, overlapped_tail)

    def task(index):
        env: Env = {}
        body.unlinear(env, analysis.loops(analysis.kept), index)
        for at, phase in enumerate(analysis.phases):
            for op, total in zip(phase, body.reduce(env, at)):
                body.k.bind(op.result, env, red.result(body.e, op, total))
        if full:
            body.write(env, full)
        if small:
            store_all(body, small, [env], analysis.kept)

    body.tasks(task)
    return body.finish(sz.product(a.size for a in analysis.kept), _grain(analysis, host))


def _register_rows(name: str, analysis: Analysis, slots: Slots, params: Tiling, host: HostProperties) -> CpuKernel:
    """The kernel for register-resident rows of one loop: each element is loaded and computed once."""
    full, small = late_outputs(analysis)
    body = RowsBody(name, analysis, slots, host)
    e, k, lanes = body.e, body.k, body.lanes
    (loop,) = body.loops
    masks = [body.below(e.sub(body.size(size_of(loop)), u * lanes), lanes) for u in range(params.vectors_per_thread)]

    def row_of(op: Op, env: Env, mask: Val):
        with k.masked(mask, kept=True):
            return e.splat(k.value(op.operands[0], env), lanes), body.position(op, env), mask

    def task(index):
        env: Env = {}
        body.unlinear(env, analysis.loops(analysis.kept), index)
        envs = []
        for u in range(params.vectors_per_thread):
            envs.append(dict(env))
            body.set_loop(envs[-1], loop, Index(body.constant(u * lanes), 1, lanes))
        for phase in analysis.phases:
            rows = [[row_of(op, here, mask) for here, mask in zip(envs, masks)] for op in phase]
            for op, row in zip(phase, rows):
                total = red.across_lanes(e, op, red.total(e, op, row, body.in_order(op)))
                k.bind(op.result, env, red.result(e, op, total))
        for here, mask in zip(envs, masks):
            with k.masked(mask, kept=True):
                store_all(body, full, [here], analysis.domain)
        store_all(body, small, [env], analysis.kept)

    body.tasks(task)
    return body.finish(sz.product(a.size for a in analysis.kept), _grain(analysis, host))


def _split_rows(name: str, analysis: Analysis, slots: Slots, params: Tiling, host: HostProperties) -> CpuKernel:
    """The kernel for parts of rows: a task stores the accumulators of one part in the workspace."""
    body = RowsBody(
        name,
        analysis,
        slots,
        host,
        compensated=bool(params.compensation_interval),
        overlapped_tail=bool(params.unmasked),
    )
    e, k, split = body.e, body.k, params.split
    (phase,) = analysis.phases
    first = size_of(body.loops[0])
    unit = body.lanes if len(body.loops) == 1 else 1
    length = sz.mul(sz.ceildiv(first, split * unit), unit)
    kept = sz.product(a.size for a in analysis.kept)
    buffers = partial.buffers(body, phase, kept, split)

    def task(index):
        at, part = (k.scalar(i.base) for i in k.divmod(Index(index), split))
        env: Env = {}
        body.unlinear(env, analysis.loops(analysis.kept), at)
        low = e.min(e.mul(part, body.size(length)), body.size(first))
        high = e.min(e.add(low, body.size(length)), body.size(first))
        for total, memories in zip(body.reduce(env, 0, low, high), buffers):
            for val, memory in zip(total, memories):
                body.put(memory, e.add(e.mul(part, body.size(kept)), at), val)

    body.tasks(task)
    return body.finish(sz.mul(kept, split), 1)


def _grain(analysis: Analysis, host: HostProperties) -> sz.Size:
    return rows_grain(sz.product(a.size for a in analysis.reduced), host)
