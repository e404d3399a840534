"""Rows in GPU kernels: a thread's elements of them, and the combination of threads' accumulators."""

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
from mlirfuse.schedule.gpu.coalesced_columns import written
from mlirfuse.schedule.gpu.kernel import GpuBody


class Place(NamedTuple):
    """A vector of a row: its env, and whether it is inside the row (None: always). A partially valid vector has
    ``inside`` per lane, an ``env`` clamped to the row, and ``unmasked``, the env of the contiguous vector in memory."""

    env: Env
    inside: Val | None
    unmasked: Env | None = None


class RowsBody(GpuBody):
    """A kernel body in which ``p.tx`` threads of each of ``p.cluster`` blocks share a row, and a block has ``p.ty``
    rows (``p``: parameters of :mod:`mlirfuse.schedule.gpu.rows` or :mod:`mlirfuse.schedule.gpu.inner_outer`)."""

    def __init__(self, name: str, analysis: Analysis, slots: Slots, p):
        # With few registers, ptxas spills more if no branch separates the reductions from the code after them.
        short_means = p.min_blocks_per_sm == 1
        super().__init__(
            name, analysis, slots, p.access, p.tx * p.ty, p.cluster, p.min_blocks_per_sm, short_means=short_means
        )
        self.p, self.lanes = p, p.access.lanes
        self.kept, self.length = (sz.product(a.size for a in axes) for axes in (analysis.kept, analysis.reduced))
        self.full = written(analysis)
        self.small = [v for v in analysis.outputs if v not in self.full]
        late = analysis.late_values()
        self.early = [v for v in self.full if v not in late]  # that depend on no reduction
        self.streamed, self.shared = analysis.once(row_inputs)
        self.phases = analysis.once(joint.online if p.online else joint.in_phases)
        self.rank = self.cluster_rank() if p.cluster > 1 else None
        if self.rank is not None:
            self.cluster_arrive(orders=False)  # the wait is before writes to other blocks' shared memory, after loads
        self.x = self.e.and_(self.thread, p.tx - 1) if p.ty > 1 else self.thread
        self.x_base = self.wide(self.e.mul(self.x, self.lanes))
        self.row_inside: Val | None = None  # set if a block's rows may exceed the last

    def row_of(self, block: Val) -> Val:
        """The row of this thread in the given block or cluster (of the index type), clamped to the last row."""
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
        """The vector at this column, clamped to the row if ``checked``. (Rows are not empty: no kernel is launched for
        those.)"""
        e = self.e
        inside, clamped = None, column
        if checked:
            inside = e.cmp("lt", column, self.size(self.length))
            clamped = e.min(column, e.sub(self.size(self.length), self.lanes))
        return Place(self.along(row, Index(clamped, 1, self.lanes) if self.lanes > 1 else Index(clamped)), inside)

    def along(self, row: Env, index: Index) -> Env:
        """The env of the elements at this index along a row."""
        env = dict(row)
        self.unlinear(env, self.analysis.loops(self.analysis.reduced), index)
        return env

    def load_shared(self, value: Value, place: Place) -> None:
        """Load a vector of an input that all rows share, for later use."""
        self.k.preload(value, place.env)

    def nothing(self, phase: list[Op]) -> list[Val]:
        """The identity accumulators of a phase, as a flat list."""
        return [v for op in phase for v in red.identity(self.e, op, red.state_lanes(op, self.lanes))]

    def across(self, phase: list[Op], totals: list[tuple[Val, ...]]) -> list[tuple[Val, ...]]:
        """The rows' accumulators, combined from those of their threads."""
        totals = [red.across_lanes(self.e, op, a) for op, a in zip(phase, totals)]
        totals = self.across_block(phase, totals, self.p.tx)
        return totals if self.rank is None else self.across_cluster(phase, totals, self.rank)

    def write(self, values: list[Value], places) -> None:
        """Store full-size outputs at these places; computes all of them before the first store."""
        for place in places:
            for value in values:
                self.k.value(value, place.env)
        for place in places:
            self.store(values, place)

    def store(self, values: list[Value], place: Place) -> None:
        """Store outputs at one place."""
        valid = (
            place.inside
            if self.row_inside is None
            else self.row_inside
            if place.inside is None
            else self.e.and_(self.row_inside, place.inside)
        )
        self.store_at(values, place.env, self.analysis.domain, valid)

    def write_small(self, row: Env) -> None:
        """Store outputs with one element per row."""
        if not self.small:
            return
        first = self.e.cmp("eq", self.x, 0)
        if self.rank is not None:
            first = self.e.and_(first, self.e.cmp("eq", self.rank, 0))
        if self.row_inside is not None:
            first = self.e.and_(first, self.row_inside)
        self.store_at(self.small, row, self.analysis.kept, first)


def row_inputs(analysis: Analysis) -> tuple[list[Value], list[Value]]:
    """The inputs that vary along the rows: those that differ from row to row, and those that all rows share, such as
    weights. An input that is constant over many neighbours, such as a group norm's per-channel weights, is neither: L1
    holds it."""
    loops, rows = analysis.loops(analysis.reduced), set(analysis.kept)
    innermost = set(loops[-1]) if loops else set()
    inputs = [v for v in analysis.inputs if innermost & set(analysis.axes.flat(v))]
    streamed = [v for v in inputs if rows & set(analysis.axes.flat(v))] or inputs
    return streamed, [v for v in inputs if v not in streamed]


def at_own_index(analysis: Analysis, inputs: list[Value]) -> list[Value]:
    """The ``inputs`` that are read at the rows' own indices. Others, e.g. through slices, have other indices at each
    use."""
    domain = set(analysis.domain)
    return [v for v in inputs if domain.issuperset(analysis.axes.flat(v))]


def read_by(analysis: Analysis, reductions: list[Op], inputs: list[Value]) -> list[Value]:
    """The ``inputs`` that these reductions read, not counting reads through other reductions."""
    needed: set[Value] = set()
    left = [op.operands[0] for op in reductions]
    while left:
        value = left.pop()
        if value not in needed:
            needed.add(value)
            left += [] if value.op not in analysis.ops or is_reduction(value.op) else value.op.operands
    return [v for v in inputs if v in needed]
