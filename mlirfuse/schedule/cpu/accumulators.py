"""Accumulators in memory, and in several levels.

*Split reductions*: tasks store the accumulators of their parts in the workspace, ``[partials, kept]``, and another
kernel combines them (:func:`combine_partials`).

*Blocked, compensated summation* of long reductions: a loop sums a block of elements in uncompensated accumulators;
block sums are added in a second set of accumulators, and every :data:`BLOCKS` blocks those are added to compensated
totals (:mod:`mlirfuse.lowering.compensated_sums`). Reductions of fewer blocks pay only a comparison per block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from mlirfuse.analysis.phases import Analysis, points_of, size_of
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Op
from mlirfuse.ir.sizes import Size
from mlirfuse.lowering import compensated_sums
from mlirfuse.lowering import reductions as red
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.kernel import Env, Memory
from mlirfuse.schedule.cpu.kernel import CpuBody, CpuKernel, store_all
from mlirfuse.schedule.scheduler import KernelSpec, SizedCall

BLOCKS = 64
HEADROOM = 0.5


class Accumulators(NamedTuple):
    """Accumulators in memory: ``buffers`` of each component, with its type, in the order of a flat list of them."""

    body: CpuBody
    buffers: list[tuple[Memory, dt.DType]]

    def load(self, offset: Val, lanes: int) -> list[Val]:
        """Those at ``offset``."""
        return [self.body.buffer_load(memory, offset, dtype, lanes) for memory, dtype in self.buffers]

    def save(self, offset: Val, vals: list[Val]) -> None:
        """Store ``vals`` at ``offset``."""
        for (memory, _), val in zip(self.buffers, vals, strict=True):
            self.body.buffer_store(memory, offset, val)


def in_workspace(
    body: CpuBody, ops: list[Op], count: Size, types: Callable[[Op], Sequence[dt.DType]] = red.accumulator_types
) -> Accumulators:
    """``count`` accumulators of ``ops`` in the workspace, of the ``types`` of each op."""
    components = [(op, k, dtype) for op in ops for k, dtype in enumerate(types(op))]
    return Accumulators(body, [(body.buffer((op, k), count, dtype), dtype) for op, k, dtype in components])


def combine_partials(spec: KernelSpec, together: Size = 1) -> CpuKernel:
    """The kernel that combines partial accumulators and computes everything that depends on them. A task is a point of
    the outer kept loops, and iterates over the innermost one in vectors.

    The partial accumulators are [split, outer kept loops, together, innermost kept loop]."""
    body, analysis, split = CpuBody(spec._replace(name=f"{spec.name}_finish")), spec.analysis, spec.params.split
    e, loops, (phase,), many = body.e, analysis.loops(analysis.kept), analysis.phases, together != 1
    kept, columns = size_of(analysis.kept), size_of(loops[-1]) if loops else 1
    partials = in_workspace(body, phase, sz.mul(kept, split, together))
    body.lanes = lanes = body.lanes if loops else 1

    def combine(env: Env, row: Val, column: Val) -> None:
        def add(partial: Val, state: list[Val]) -> list[Val]:
            of_partial = e.mul(partial, body.size(sz.mul(kept, together)))
            start = e.add(of_partial, e.mul(row, body.size(sz.mul(columns, together))))

            def one(k: Val, state: list[Val]) -> list[Val]:
                offset = e.add(start, e.add(e.mul(k, body.size(columns)), column))
                partial = partials.load(offset, lanes)
                if many:
                    return compensated_sums.added(e, phase, state, partial)
                pairs = zip(phase, red.grouped(phase, state), red.grouped(phase, partial))
                return [v for op, a, b in pairs for v in red.combine(e, op, a, b)]

            zero = body.constant(0)
            return body.loop(zero, body.size(together), 1, state, one) if many else one(zero, state)

        begin = compensated_sums.nothing(e, phase, lanes) if many else body.identities(phase, lanes)
        done = body.loop(body.constant(0), body.constant(split), 1, begin, add)
        body.bind(phase, red.grouped(phase, compensated_sums.settled(e, phase, done) if many else done), env)
        store_all(body, analysis.outputs, [env], analysis.kept)

    def task(index: Val) -> None:
        if not loops:
            combine({}, body.constant(0), body.constant(0))
            return
        env = body.point(loops[:-1], index)

        def step(indices, mask, state):
            combine(body.placed(env, loops[-1], indices[0]), index, body.k.scalar(indices[0].base))

        body.vectors(body.constant(0), body.size(columns), lanes, [], step)

    outer = points_of(loops[:-1])
    return body.kernel(task, outer, sz.mul(columns, split, together))


def rounds(analysis: Analysis) -> bool:
    """Whether a segment has sums that round, i.e. of floating-point elements."""
    return any(map(compensated_sums.round_off, analysis.phases))


Share = Callable[[Analysis, SizedCall], float]  # the blocks of a call relative to those from which on sums need totals


def sums_lose_too_much(analysis: Analysis, call: SizedCall, share: Share) -> bool:
    """Whether sums of the blocks that a call has need compensated totals."""
    return analysis.once(rounds) and share(analysis, call) >= 1


def compensation_interval(analysis: Analysis, call: SizedCall, share: Share) -> int:
    """The blocks after which sums are added to compensated totals; 0: never. Where the first call of a specialization
    has more than :data:`HEADROOM` of those from which on sums need them, all its calls are compensated: sizes that vary
    around the limit run one compiled program."""
    first = call._replace(sizes=dict(analysis.hint))
    known = analysis.once(rounds) and first.sizes.keys() >= call.sizes.keys()
    needed = sums_lose_too_much(analysis, call, share) or (known and share(analysis, first) > HEADROOM)
    return BLOCKS if needed else 0


class CarriedBlocks:
    """Block accumulators carried by loops over at most ``count`` blocks. ``start`` has the initial loop-carried values:
    the accumulators of some blocks, and for sums also the number of blocks in them and the compensated totals. Without
    ``totals`` there are fewer than :data:`BLOCKS` blocks."""

    def __init__(self, body: CpuBody, phase: list[Op], lanes: int, count: Size, totals: bool = True):
        self.body, self.phase, self.lanes = body, phase, lanes
        self.empty = body.identities(phase, lanes)
        self.start = list(self.empty)
        if totals and compensated_sums.round_off(phase):
            self.few = body.e.cmp("lt", body.size(count), BLOCKS)
            self.start += [body.constant(0), *compensated_sums.nothing(body.e, phase, lanes)]

    def over(
        self, low: Val, high: Val, length: int, carried: list[Val], run: Callable[[Val, Val, list[Val]], list[Val]]
    ) -> list[Val]:
        """The loop-carried values after the blocks of ``length`` from ``low`` to ``high``, for each of which
        ``run(low, high, empty)`` returns the accumulators."""
        e = self.body.e

        def one(i: Val, state: list[Val]) -> list[Val]:
            return self.add(state, run(i, e.min(e.add(i, length), high), self.empty))

        return self.body.loop(low, high, length, carried, one)

    def add(self, carried: list[Val], block: list[Val]) -> list[Val]:
        """The loop-carried values after adding another block's accumulators."""
        body, e, width = self.body, self.body.e, len(self.empty)
        block_sums = body.merge(self.phase, carried[:width], block)
        if len(carried) == width:
            return block_sums
        number, totals = e.add(carried[width], 1), carried[width + 1 :]
        return body.k.where(
            e.cmp("lt", number, BLOCKS),
            lambda: [*block_sums, number, *totals],
            lambda: [*self.empty, body.constant(0), *self._added(totals, block_sums)],
            carried,
        )

    def end(self, carried: list[Val]) -> list[tuple[Val, ...]]:
        """The final accumulators of all blocks."""
        body, width = self.body, len(self.empty)
        block_sums, totals = carried[:width], carried[width + 1 :]
        if len(carried) > width:
            final = lambda: compensated_sums.settled(body.e, self.phase, self._added(totals, block_sums))  # noqa: E731
            block_sums = body.k.where(self.few, lambda: block_sums, final, block_sums)
        return red.grouped(self.phase, block_sums)

    def _added(self, totals: list[Val], block_sums: list[Val]) -> list[Val]:
        return compensated_sums.added(self.body.e, self.phase, totals, block_sums, self.body.in_order)


class StoredBlocks:
    """Block accumulators ``stored`` of a strip of columns, with compensated totals on the stack."""

    def __init__(self, phase: list[Op], stored: Accumulators, stretch: Size, lanes: int):
        self.body, self.phase, self.stored, self.lanes = stored.body, phase, stored, lanes
        types = [dtype for op in phase for dtype in compensated_sums.types(op)]
        self.totals = Accumulators(self.body, [(self.body.stack(stretch, dtype), dtype) for dtype in types])

    def begin(self, several: Val, left: Val, right: Val, place: Val) -> None:
        """Start with the columns ``left`` to ``right``, whose accumulators start at offset ``place``. ``several``:
        there is more than one block of rows."""
        self.several, self.left, self.right, self.place = several, left, right, place
        empty = compensated_sums.nothing(self.body.e, self.phase, self.lanes)
        self._at_each(several, lambda column, _: self.totals.save(column, empty))

    def count(self, rows: Val, block: Val) -> Val:
        """Add the accumulators to the totals if they hold ``block`` rows or more; return the number of rows that they
        hold then."""
        body, e = self.body, self.body.e
        full = e.and_(self.several, e.cmp("ge", rows, block))
        empty = body.identities(self.phase, self.lanes)

        def move(column: Val, offset: Val) -> None:
            self.totals.save(column, self._sum(column, offset))
            self.stored.save(offset, empty)

        self._at_each(full, move)
        return e.select(full, e.const(0, dt.i64), rows)

    def end(self) -> None:
        """Write the final totals into the accumulators."""

        def settle(column: Val, offset: Val) -> None:
            total = self._sum(column, offset)
            self.stored.save(offset, compensated_sums.settled(self.body.e, self.phase, total))

        self._at_each(self.several, settle)

    def _sum(self, column: Val, offset: Val) -> list[Val]:
        before, block = self.totals.load(column, self.lanes), self.stored.load(offset, self.lanes)
        return compensated_sums.added(self.body.e, self.phase, before, block, self.body.in_order)

    def _at_each(self, condition: Val, visit: Callable[[Val, Val], None]) -> None:
        """If ``condition`` holds, call ``visit(column, offset)`` for each vector, with its offsets in the totals and in
        the memories."""
        body, e = self.body, self.body.e

        def step(indices, mask, state):
            at = body.k.scalar(indices[0].base)
            visit(e.sub(at, self.left), e.add(self.place, at))

        with body.k.region(f"scf.if {condition} {{"):
            body.vectors(self.left, self.right, self.lanes, [], step)
