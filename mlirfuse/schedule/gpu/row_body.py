"""Rows of a GPU kernel: where a thread is in them, and how the accumulators of threads come together."""

from __future__ import annotations

from typing import NamedTuple

from mlirfuse.analysis import joint
from mlirfuse.analysis.phases import Analysis, is_reduction
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Op, Value
from mlirfuse.lowering import reductions as red
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.kernel import Env, Index
from mlirfuse.lowering.slots import Slots
from mlirfuse.schedule.gpu.kernel import GpuBody


class Place(NamedTuple):
    """Where a vector is: its env, and whether it is inside the row (None: it is). Of one of which a part may be,
    ``inside`` is so of each lane; ``env`` has elements of the row in place of those outside, and ``unmasked`` is the
    env of the vector as it lies in memory."""

    env: Env
    inside: Val | None
    unmasked: Env | None = None


class RowsBody(GpuBody):
    """A kernel in which ``p.tx`` threads of each of ``p.cluster`` blocks share a row, and a block has ``p.ty`` rows
    (``p``: the parameters of
    :mod:`mlirfuse.schedule.gpu.rows` or :mod:`mlirfuse.schedule.gpu.inner_outer`)."""

    def __init__(self, name: str, analysis: Analysis, slots: Slots, p):
        super().__init__(name, analysis, slots, p.access, p.tx * p.ty, p.cluster, p.min_blocks_per_sm)
        self.p, self.lanes = p, p.access.lanes
        self.k.short_means = (
            p.min_blocks_per_sm == 1
        )  # of few registers ptxas spills more where no branch parts the reductions from what follows
        self.kept, self.length = (sz.product(a.size for a in axes) for axes in (analysis.kept, analysis.reduced))
        reduced = set(analysis.reduced)
        self.full = [v for v in analysis.outputs if reduced & set(analysis.axes.flat(v))]
        self.small = [v for v in analysis.outputs if v not in self.full]
        late = analysis.late_values()
        self.early = [v for v in self.full if v not in late]  # which need no reduction
        self.streamed, self.shared = analysis.once(row_inputs)
        self.phases = analysis.once(joint.online if p.online else joint.in_phases)
        self.rank = self.cluster_rank() if p.cluster > 1 else None
        if self.rank is not None:
            self.cluster_arrive(
                orders=False
            )  # waited for before the other blocks' shared memory is written: loads go first
        self.x = self.e.and_(self.thread, p.tx - 1) if p.ty > 1 else self.thread
        self.x_base = self.wide(self.e.mul(self.x, self.lanes))
        self.row_inside: Val | None = None  # where a block's rows may be past the last

    def row_of(self, block: Val) -> Val:
        """The row of this thread in the given block or cluster (of the index type); the last one instead of one past
        it."""
        if self.p.ty == 1:
            return block
        e = self.e
        row = e.add(e.mul(block, self.p.ty), self.wide(self.quotient(self.thread, self.p.tx)))
        self.row_inside = e.cmp("lt", row, self.size(self.kept))
        return e.min(row, e.sub(self.size(self.kept), 1))

    def cluster_index(self) -> Val:
        """The number of this block's cluster, of the index type."""
        return self.wide(self.block if self.rank is None else self.quotient(self.block, self.p.cluster))

    def env_of(self, row: Val) -> Env:
        """The env of a row."""
        env: Env = {}
        self.unlinear(env, self.analysis.loops(self.analysis.kept), Index(row))
        return env

    def at(self, row: Env, column: Val, checked: bool = True) -> Place:
        """The vector at this column; one past the end is held inside the row. (A row of no elements has no inside: no
        kernel is launched for one.)"""
        e = self.e
        inside, held = None, column
        if checked:
            inside = e.cmp("lt", column, self.size(self.length))
            held = e.min(column, e.sub(self.size(self.length), self.lanes))
        return Place(self.along(row, Index(held, 1, self.lanes) if self.lanes > 1 else Index(held)), inside)

    def along(self, row: Env, index: Index) -> Env:
        """The env of what lies along a row at this index."""
        env = dict(row)
        self.unlinear(env, self.analysis.loops(self.analysis.reduced), index)
        return env

    def load_shared(self, value: Value, place: Place) -> None:
        """Loads a vector of what all rows share, for a later use."""
        self.k.preload(value, place.env)

    def nothing(self, phase: list[Op]) -> list[Val]:
        """The accumulators of nothing, as a loop carries them."""
        return [v for op in phase for v in red.identity(self.e, op, red.state_lanes(op, self.lanes))]

    def across(self, phase: list[Op], totals: list[tuple[Val, ...]]) -> list[tuple[Val, ...]]:
        """The rows' accumulators from those of their threads."""
        totals = [red.across_lanes(self.e, op, a) for op, a in zip(phase, totals)]
        totals = self.across_block(phase, totals, self.p.tx)
        return totals if self.rank is None else self.across_cluster(phase, totals, self.rank)

    def write(self, values: list[Value], places) -> None:
        """Stores outputs as long as the rows at these places, all of them computed first."""
        for place in places:
            for value in values:
                self.k.value(value, place.env)
        for place in places:
            self.store(values, place)

    def store(self, values: list[Value], place: Place) -> None:
        """Stores outputs at one place."""
        valid = (
            place.inside
            if self.row_inside is None
            else self.row_inside
            if place.inside is None
            else self.e.and_(self.row_inside, place.inside)
        )
        self.store_at(values, place.env, self.analysis.domain, valid)

    def write_small(self, row: Env) -> None:
        """Stores outputs that have one element a row."""
        if not self.small:
            return
        first = self.e.cmp("eq", self.x, 0)
        if self.rank is not None:
            first = self.e.and_(first, self.e.cmp("eq", self.rank, 0))
        if self.row_inside is not None:
            first = self.e.and_(first, self.row_inside)
        self.store_at(self.small, row, self.analysis.kept, first)


def row_inputs(analysis: Analysis) -> tuple[list[Value], list[Value]]:
    """The inputs with elements along the rows: those that differ from row to row, and what all rows share, weights and
    the like. What has one for many neighbours, as a group norm's weights of channels, is neither: few bytes, that the
    first-level cache has."""
    loops, rows = analysis.loops(analysis.reduced), set(analysis.kept)
    innermost = set(loops[-1]) if loops else set()
    inputs = [v for v in analysis.inputs if innermost & set(analysis.axes.flat(v))]
    streamed = [v for v in inputs if rows & set(analysis.axes.flat(v))] or inputs
    return streamed, [v for v in inputs if v not in streamed]


def at_own_index(analysis: Analysis, inputs: list[Value]) -> list[Value]:
    """Those of ``inputs`` that are read where an element of a row is. Others, through slices and the like, have an
    index of their own for each use."""
    domain = set(analysis.domain)
    return [v for v in inputs if domain.issuperset(analysis.axes.flat(v))]


def read_by(analysis: Analysis, reductions: list[Op], inputs: list[Value]) -> list[Value]:
    """What of ``inputs`` these reductions read, not through other reductions."""
    needed: set[Value] = set()
    left = [op.operands[0] for op in reductions]
    while left:
        value = left.pop()
        if value not in needed:
            needed.add(value)
            left += [] if value.op not in analysis.ops or is_reduction(value.op) else value.op.operands
    return [v for v in inputs if v in needed]
