"""Blocked, compensated summation of long reductions on the CPU. A loop sums a block of elements in uncompensated
accumulators; block sums are added in a second set of accumulators, and every :data:`BLOCKS` blocks those are added to
compensated totals (:mod:`mlirfuse.lowering.compensated_sums`).

Reductions of fewer blocks pay only a comparison per block."""

from __future__ import annotations

from collections.abc import Callable

from mlirfuse.analysis.phases import Analysis
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Op
from mlirfuse.lowering import compensated_sums
from mlirfuse.lowering import reductions as red
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.kernel import Memory
from mlirfuse.schedule.cpu import partial
from mlirfuse.schedule.cpu.kernel import CpuBody
from mlirfuse.schedule.scheduler import Sizes

BLOCKS = 64
HEADROOM = 0.5


def rounds(analysis: Analysis) -> bool:
    """Whether a segment has sums that round, i.e. of floating-point elements."""
    return any(map(compensated_sums.round_off, analysis.phases))


def compensation_interval(analysis: Analysis, env: Sizes, share: Callable[[Sizes], float]) -> int:
    """The blocks after which sums are added to compensated totals; 0: never. ``share``: how much of the blocks from
    which on sums need them a call with these sizes has. Where the first call of a specialization has more than
    :data:`HEADROOM` of them, all its calls are compensated: sizes that vary around the limit run one compiled
    program."""
    hint = analysis.hint
    if not analysis.once(rounds):
        return 0
    needed = share(env) >= 1 or (all(name in hint for name in env) and share(dict(hint)) > HEADROOM)
    return BLOCKS if needed else 0


class CarriedBlocks:
    """Block accumulators carried by loops over at most ``count`` blocks. ``start`` has the initial loop-carried values:
    the accumulators of some blocks, and for sums also the number of blocks in them and the compensated totals. Without
    ``totals`` there are fewer than :data:`BLOCKS` blocks."""

    def __init__(self, body: CpuBody, phase: list[Op], lanes: int, count: sz.Size, totals: bool = True):
        self.body, self.phase, self.lanes = body, phase, lanes
        self.empty = body.identities(phase, lanes)
        self.start = list(self.empty)
        if totals and compensated_sums.round_off(phase):
            self.few = body.e.cmp("lt", body.size(count), BLOCKS)
            self.start += [body.constant(0), *compensated_sums.nothing(body.e, phase, lanes)]

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
    """Block accumulators of a strip of columns, stored in ``memories``, with compensated totals on the stack."""

    def __init__(self, body: CpuBody, phase: list[Op], memories: list[list[Memory]], stretch: sz.Size, lanes: int):
        self.body, self.phase, self.memories, self.lanes = body, phase, memories, lanes
        self.totals = [[body.stack(stretch, dtype) for dtype in compensated_sums.types(op)] for op in phase]

    def begin(self, several: Val, left: Val, right: Val, place: Val) -> None:
        """Start with the columns ``left`` to ``right``, whose accumulators start at offset ``place``. ``several``:
        there is more than one block of rows."""
        self.several, self.left, self.right, self.place = several, left, right, place
        empty = compensated_sums.nothing(self.body.e, self.phase, self.lanes)
        self._at_each(several, lambda column, _: partial.save(self.body, self.totals, column, empty))

    def count(self, rows: Val, block: Val) -> Val:
        """Add the accumulators to the totals if they hold ``block`` rows or more; return the number of rows that they
        hold then."""
        body, e = self.body, self.body.e
        full = e.and_(self.several, e.cmp("ge", rows, block))
        empty = body.identities(self.phase, self.lanes)

        def move(column: Val, offset: Val) -> None:
            partial.save(body, self.totals, column, self._sum(column, offset))
            partial.save(body, self.memories, offset, empty)

        self._at_each(full, move)
        return e.select(full, e.const(0, dt.i64), rows)

    def end(self) -> None:
        """Write the final totals into the accumulators."""
        body = self.body

        def settle(column: Val, offset: Val) -> None:
            partial.save(
                body, self.memories, offset, compensated_sums.settled(body.e, self.phase, self._sum(column, offset))
            )

        self._at_each(self.several, settle)

    def _sum(self, column: Val, offset: Val) -> list[Val]:
        body, phase = self.body, self.phase
        before = partial.load(body, phase, self.totals, column, self.lanes, compensated_sums.types)
        block = partial.load(body, phase, self.memories, offset, self.lanes)
        return compensated_sums.added(body.e, phase, before, block, body.in_order)

    def _at_each(self, condition: Val, visit: Callable[[Val, Val], None]) -> None:
        """If ``condition`` holds, call ``visit(column, offset)`` for each vector, with its offsets in the totals and in
        the memories."""
        body, e = self.body, self.body.e

        def step(indices, mask, state):
            at = body.k.scalar(indices[0].base)
            visit(e.sub(at, self.left), e.add(self.place, at))

        with body.k.region(f"scf.if {condition} {{"):
            body.vectors(self.left, self.right, self.lanes, [], step)
