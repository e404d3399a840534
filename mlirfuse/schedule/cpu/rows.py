"""Row reductions and normalizations on the CPU: reductions along contiguous memory. A task is a row, i.e. a point of
the kept axes.

Each phase of reductions, and the writing of full-size outputs, is a pass over the row, which stays in cache. Expensive
values that later passes need are stored in a buffer of the row's length (``persistent``). Rows of a few vectors are
register-resident (``vectors_per_thread``).

If there are too few rows for all threads, a task takes a part of one and stores partial accumulators (``split``); see
:mod:`~mlirfuse.schedule.cpu.accumulators`.

Sums add the vectors in flight first, then blocks of :data:`BLOCK_VECTORS` of those, then the blocks
(:mod:`mlirfuse.schedule.cpu.accumulators`), then the lanes: the error stays near that of pairwise summation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mlirfuse.analysis.phases import Analysis, depends_on, is_reduction, late_outputs, row_extents, size_of
from mlirfuse.core.device_properties import HostProperties
from mlirfuse.ir import ops as table
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Op, Value
from mlirfuse.lowering import reductions as red
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.kernel import Env, Index
from mlirfuse.schedule.cpu import accumulators
from mlirfuse.schedule.cpu.accumulators import CarriedBlocks
from mlirfuse.schedule.cpu.heuristics import RowHeuristics, heuristics_of
from mlirfuse.schedule.cpu.kernel import CpuBody, CpuKernel, Stash, cost_of, lanes_of, store_all, unroll_for
from mlirfuse.schedule.cpu.scheduler import CpuScheduler, one_pass, parts, runs_across
from mlirfuse.schedule.scheduler import KernelSpec, SizedCall, require
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
    return analysis.once(_stages, threshold)


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
        vectors = math.ceil(reduced / lanes_of(analysis, call.properties))
        split = analysis.once(one_pass) and _few(kept, reduced, call.properties)
        if not split and vectors <= heuristics.in_registers and len(analysis.loops(analysis.reduced)) == 1:
            yield Tiling("rows", vectors_per_thread=1 << (vectors - 1).bit_length())
            return
        interval = accumulators.compensation_interval(analysis, call, _share_of_limit)
        p = Tiling("rows", compensation_interval=interval, unmasked=int(can_visit_again(analysis, call)))
        if split:
            yield p._replace(split=parts(call.properties))
            return
        persistent = 0 < reduced * stash_bytes(analysis, heuristics) <= heuristics.stash_bytes
        yield p._replace(persistent=persistent, streamed=self.streams(analysis, call))

    def better_in_stages(self, analysis: Analysis, p: Tiling, call: SizedCall) -> bool | None:
        """True if there are too few rows for all threads."""
        if analysis.once(one_pass):
            return None
        kept, reduced = analysis.values(row_extents, call.sizes)
        much = kept * reduced >= 2 * heuristics_of(call.properties).tasks.shared
        return much and _few(kept, reduced, call.properties)

    def kernels(self, spec: KernelSpec) -> list[CpuKernel]:
        if spec.params.split > 1:
            return [_split_rows(spec), accumulators.combine_partials(spec)]
        return [(_register_rows if spec.params.vectors_per_thread else _long_rows)(spec)]

    def check(self, analysis: Analysis, p: Tiling, call: SizedCall) -> None:
        heuristics = heuristics_of(call.properties).rows
        _, reduced = analysis.values(row_extents, call.sizes)
        compensated = p.compensation_interval > 0 or not needs_compensation(analysis, call)
        p.must("compensation_interval", compensated, f"sums of {reduced} elements need one")
        alone = p.split == 1 or analysis.once(one_pass)
        p.must("split", alone, "not for rows with several passes or full-size outputs")
        again = not p.unmasked or can_visit_again(analysis, call)
        p.must("unmasked", again, "not for sums, nor for rows shorter than the vectors in flight")
        p.excludes("split", "vectors_per_thread", "persistent", "streamed")
        if p.vectors_per_thread:
            room = p.vectors_per_thread * lanes_of(analysis, call.properties)
            require(len(analysis.loops(analysis.reduced)) == 1, "vectors_per_thread: a row must be one loop")
            p.must("vectors_per_thread", reduced <= room, f"{room} elements, a row has {reduced}")
            most = heuristics.most_in_registers
            p.must("vectors_per_thread", p.vectors_per_thread <= most, f"must be at most {most} vectors")
        p.excludes("vectors_per_thread", "persistent", "streamed")
        nbytes = reduced * stash_bytes(analysis, heuristics) if p.persistent else 0
        fits = nbytes <= heuristics.stash_bytes
        require(fits, f"persistent: a row needs {nbytes} bytes, more than {heuristics.stash_bytes}")
        super().check(analysis, p, call)


def needs_compensation(analysis: Analysis, call: SizedCall) -> bool:
    """Whether a row has so many blocks that sums of them lose too much."""
    return accumulators.sums_lose_too_much(analysis, call, _share_of_limit)


def _share_of_limit(analysis: Analysis, call: SizedCall) -> float:
    """The blocks of a row relative to those from which on sums of them lose too much."""
    segments, length = analysis.values(_row_segments, call.sizes)
    lanes = lanes_of(analysis, call.properties)
    least = BLOCK_VECTORS * lanes * unroll_for(analysis.once(cost_of))  # of a block of any stage
    return segments * -(-length // least) / accumulators.BLOCKS


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


def stash_bytes(analysis: Analysis, heuristics: RowHeuristics) -> int:
    """Bytes per element of the stash buffers."""
    return sum(value.dtype.compute.bytes for stage in stages(analysis, heuristics.stash) for value in stage.kept)


class RowsBody(CpuBody):
    """A CPU kernel body with loops over a row."""

    def __init__(self, spec: KernelSpec):
        super().__init__(spec)
        analysis = spec.analysis
        self.loops, self.invariant = analysis.loops(analysis.reduced), invariant_by_phase(analysis)
        self.stages = stages(analysis, heuristics_of(self.host).rows.stash if self.p.persistent else None)
        self.length = size_of(analysis.reduced)
        self.stash = Stash(self, [stage.kept for stage in self.stages], self.length, self._index_in_row)

    def row(self, index: Val) -> Env:
        """The env of a row."""
        return self.point(self.analysis.loops(self.analysis.kept), index)

    def rows(self, task: Callable[[Val], object]) -> CpuKernel:
        """The finished kernel, whose tasks are rows."""
        return self.kernel(task, size_of(self.analysis.kept), self.length)

    def over(self, env: Env, at: int, carried, step, bounds=None, blocks: CarriedBlocks | None = None) -> list[Val]:
        """Run ``step(envs, mask, carried)`` for stage ``at`` over the row, with the innermost loop in vectors;
        ``bounds`` are those of the outermost loop. With ``blocks``, ``carried`` are the values that those carry, and
        ``step`` carries the accumulators of one block."""
        *outer, loop = self.loops
        unroll, again = unroll_for(self.stages[at].cost), self.visits_again(at)

        def along(env: Env, carried):
            start, stop = bounds if bounds and not outer else (self.constant(0), self.size(size_of(loop)))

            def vectors(indices, mask, state):
                return step([self.placed(env, loop, i) for i in indices], mask, state)

            def run(low, high, state):
                return self.vectors(low, high, self.lanes, state, vectors, unroll, again)

            return blocks.over(start, stop, self.block(at), carried, run) if blocks else run(start, stop, carried)

        return self.nest(env, outer, carried, along, bounds=bounds)

    def reduce(self, env: Env, at: int, bounds=None) -> list[tuple[Val, ...]]:
        """The accumulators over the row of each reduction of phase ``at``."""
        phase, again = self.analysis.phases[at], self.visits_again(at)
        by_start = {op for op in phase if op.row.accumulator == "position" and again and self.in_order(op)}
        self.hoist(env, self.invariant[at])

        def step(envs, mask, state):
            self.stash.recall(envs, at)
            following: list[Val] = []
            for op, before in zip(phase, red.grouped(phase, state)):
                elements = self.elements(op, envs, mask)
                if op in by_start:
                    following += red.accumulate_start(self.e, op, before, elements, self._index_in_row(envs[0]))
                else:
                    following += red.accumulate(self.e, op, before, elements, self.in_order(op))
            self.stash.keep(envs, at)
            return following

        number = sz.mul(*map(size_of, self.loops[:-1]), sz.ceildiv(size_of(self.loops[-1]), self.block(at)))
        blocks = CarriedBlocks(self, phase, self.lanes, number, bool(self.p.compensation_interval))
        done = blocks.end(self.over(env, at, blocks.start, step, bounds, blocks))
        totals = [red.across_lanes(self.e, op, a) for op, a in zip(phase, done)]
        return [self._located(env, at, op, *a) if op in by_start else a for op, a in zip(phase, totals)]

    def visits_again(self, at: int) -> bool:
        """Whether stage ``at`` visits elements again at the ends of rows."""
        return bool(self.p.unmasked) and at < len(self.analysis.phases) and _idempotent(self.analysis.phases[at])

    def _located(self, env: Env, at: int, op: Op, best: Val, start: Val) -> tuple[Val, Val]:
        """The best value and its index, which is in the vectors in flight that begin at ``start``."""
        here, loop = self.point(self.loops, start, env), self.loops[-1]
        envs = []
        for u in range(unroll_for(self.stages[at].cost)):
            first = self.k.scalar(here[loop[-1]].base)
            envs.append(self.placed(here, loop, Index(self.e.add(first, u * self.lanes), 1, self.lanes)))
        self.stash.recall(envs, at)
        vals = [value for value, _, _ in self.elements(op, envs, None)]
        return best, self.e.add(start, red.first_offset(self.e, vals, best))

    def block(self, at: int) -> int:
        """Elements of a row that stage ``at`` sums as one block."""
        return BLOCK_VECTORS * self.lanes * unroll_for(self.stages[at].cost)

    def write(self, env: Env) -> None:
        """Store full-size outputs."""
        last = len(self.analysis.phases)
        self.hoist(env, self.invariant[last])

        def step(envs, mask, state):
            self.stash.recall(envs, last)
            store_all(self, self.full, envs, self.analysis.domain)

        self.over(env, last, [], step)

    def _index_in_row(self, env: Env, _: int = 0) -> Val:
        """The linear index of ``env`` in the row."""
        return self.k.scalar(self.linear(env, self.loops).base)


def invariant_by_phase(analysis: Analysis) -> list[list[Value]]:
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


def _long_rows(spec: KernelSpec) -> CpuKernel:
    """The kernel for rows that are passed over in memory."""
    body, analysis = RowsBody(spec), spec.analysis

    def task(index: Val) -> None:
        env = body.row(index)
        for at, phase in enumerate(analysis.phases):
            body.bind(phase, body.reduce(env, at), env)
        if body.full:
            body.write(env)
        store_all(body, body.small, [env], analysis.kept)

    return body.rows(task)


def _register_rows(spec: KernelSpec) -> CpuKernel:
    """The kernel for register-resident rows of one loop: each element is loaded and computed once."""
    body, analysis = RowsBody(spec), spec.analysis
    e, k, lanes, (loop,) = body.e, body.k, body.lanes, body.loops
    starts = range(0, body.p.vectors_per_thread * lanes, lanes)
    masks = [body.below(e.sub(body.size(size_of(loop)), start), lanes) for start in starts]

    def row_of(op: Op, env: Env, mask: Val) -> tuple:
        with k.masked(mask, kept=True):
            return body.elements(op, [env], mask)[0]

    def task(index: Val) -> None:
        env = body.row(index)
        envs = [body.placed(env, loop, Index(body.constant(start), 1, lanes)) for start in starts]
        for phase in analysis.phases:
            rows = [[row_of(op, here, mask) for here, mask in zip(envs, masks)] for op in phase]
            for op, row in zip(phase, rows):
                total = red.across_lanes(e, op, red.total(e, op, row, body.in_order(op)))
                body.bind([op], [total], env)
        for here, mask in zip(envs, masks):
            with k.masked(mask, kept=True):
                store_all(body, body.full, [here], analysis.domain)
        store_all(body, body.small, [env], analysis.kept)

    return body.rows(task)


def _split_rows(spec: KernelSpec) -> CpuKernel:
    """The kernel for parts of rows: a task stores the accumulators of one part in the workspace."""
    body, split = RowsBody(spec), spec.params.split
    (phase,) = spec.analysis.phases
    first = size_of(body.loops[0])
    unit = body.lanes if len(body.loops) == 1 else 1
    length = sz.mul(sz.ceildiv(first, split * unit), unit)
    kept = size_of(spec.analysis.kept)
    partials = accumulators.in_workspace(body, phase, sz.mul(kept, split))

    def task(index: Val) -> None:
        at, part = body.divided(index, split)
        env = body.row(at)
        bounds = body.part(part, body.size(length), body.size(first))
        totals = [val for total in body.reduce(env, 0, bounds) for val in total]
        partials.save(body.e.add(body.e.mul(part, body.size(kept)), at), totals)

    return body.kernel(task, sz.mul(kept, split))
