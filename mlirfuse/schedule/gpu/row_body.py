"""Rows in GPU kernels: a thread's elements of them, and the combination of threads' accumulators."""

from __future__ import annotations

import itertools
from typing import NamedTuple

from mlirfuse.analysis import joint
from mlirfuse.analysis.phases import Analysis, is_reduction, row_extents
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.graph import Op, Value
from mlirfuse.lowering import reductions as red
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.kernel import Env, Index
from mlirfuse.schedule.gpu.kernel import GpuBody
from mlirfuse.schedule.scheduler import KernelSpec


class Place(NamedTuple):
    """A vector of a row: its env, and whether it is inside the row (None: always). A partially valid vector has
    ``inside`` per lane, an ``env`` clamped to the row, and ``unmasked``, the env of the contiguous vector in memory."""

    env: Env
    inside: Val | None
    unmasked: Env | None = None


class RowsBody(GpuBody):
    """A kernel body in which ``p.tx`` threads of each of ``p.cluster`` blocks share a row, and a block has ``p.ty``
    rows (``p``: parameters of :mod:`mlirfuse.schedule.gpu.rows` or :mod:`mlirfuse.schedule.gpu.inner_outer`)."""

    def __init__(self, spec: KernelSpec):
        # With few registers, ptxas spills more if no branch separates the reductions from the code after them.
        super().__init__(spec, short_means=spec.params.min_blocks_per_sm == 1)
        analysis, p = spec.analysis, spec.params
        self.kept, self.length = row_extents(analysis)
        late = analysis.late_values()
        self.early = [v for v in self.full if v not in late]  # that depend on no reduction
        self.streamed, self.shared = analysis.once(row_inputs)
        self.phases = analysis.once(joint.online if p.online else joint.in_phases)
        self.x = self.e.and_(self.thread, p.tx - 1) if p.ty > 1 else self.thread
        self.x_base = self.wide(self.e.mul(self.x, self.lanes))

    def row_of(self, block: Val) -> Val:
        """The row of this thread in the given block or cluster (of the index type), clamped to the last row."""
        return self.own_row(block, self.kept)

    def cluster_index(self) -> Val:
        """The number of this block's cluster, of the index type."""
        return self.wide(self.block if self.rank is None else self.quotient(self.block, self.p.cluster))

    def first_column(self) -> Val:
        """The column of this thread's first vector in its cluster's row."""
        e, rank = self.e, self.rank
        return self.x_base if rank is None else e.add(self.x_base, self.wide(e.mul(rank, self.p.tx * self.lanes)))

    def env_of(self, row: Val) -> Env:
        """The env of a row."""
        return self.point(self.analysis.loops(self.analysis.kept), Index(row))

    def at(self, row: Env, column: Val, checked: bool = True) -> Place:
        """The vector at this column, clamped to the row if ``checked``. (Rows are not empty: no kernel is launched for
        those.)"""
        clamped, inside = self.clamped(column, self.length, self.lanes) if checked else (column, None)
        return Place(self.along(row, Index(clamped, int(self.lanes > 1), self.lanes)), inside)

    def along(self, row: Env, index: Index) -> Env:
        """The env of the elements at this index along a row."""
        return self.point(self.analysis.loops(self.analysis.reduced), index, row)

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
        self.store_at(values, place.env, self.analysis.domain, self.both(self.row_inside, place.inside))

    def write_small(self, row: Env) -> None:
        """Store outputs with one element per row."""
        if not self.small:
            return
        first = self.e.cmp("eq", self.x, 0)
        of_cluster = None if self.rank is None else self.e.cmp("eq", self.rank, 0)
        self.store_at(self.small, row, self.analysis.kept, self.both(first, of_cluster, self.row_inside))


class UnalignedRows(RowsBody):
    """Unaligned rows, one for each block or cluster, read by aligned vectors of which the first may start before the
    row. Columns are counted from the start of that vector.

    With ``shift`` elements between the last multiple of the lanes in memory and the row (``|`` ends a vector of four,
    ``shift`` is 3):

        memory   . . . a | b c d e | f g . .      the row a to g between other rows
        columns -3-2-1 0 | 1 2 3 4 | 5 6 7 8

    The first vector and the last ones have lanes outside of the row. Those contain other rows or no tensor at all:
    their values are not used, and nothing is read beyond the row. Inputs that all rows share, such as weights, have
    another alignment: their vectors are funnel-shifted from two adjacent aligned vectors."""

    def __init__(self, spec: KernelSpec):
        super().__init__(spec)
        first = self.k.offset(self.streamed[0], self.env_of(self.row_of(self.cluster_index())))
        self.shift = self.e.and_(self.k.scalar(first.base), self.lanes - 1)
        # The offset of a vector's first column from a multiple of the lanes.
        self.behind = self.e.and_(self.e.sub(0, self.shift), self.lanes - 1)
        self.last_parts: dict[Value, Val] = {}  # of shared inputs, after their last full vector

    def at(self, row: Env, column: Val, checked: bool = True) -> Place:
        e = self.e
        index = Index(e.sub(column, self.shift), 1, self.lanes, divisor=1)
        if not checked:
            return Place(self.along(row, index), None)
        columns, length = self.k.materialize(index), self.size(self.length)
        unsigned = dt.u32 if self.index is dt.i32 else dt.u64
        # Negative numbers are large as unsigned.
        inside = e.cmp("lt", e.bitcast(columns, unsigned), e.bitcast(length, unsigned))
        clamped = e.max(e.min(columns, e.sub(length, 1)), 0)
        return Place(self.along(row, Index(0, 0, self.lanes, clamped)), inside, self.along(row, index))

    def has(self, column: Val) -> Val:
        """Whether the vector at this column has an element of the row."""
        return self.e.cmp("lt", column, self.e.add(self.size(self.length), self.shift))

    def store(self, values: list[Value], place: Place) -> None:
        """Store the lanes inside the row, as one vector if all are inside."""
        if place.unmasked is None:
            super().store(values, place)
            return
        assert place.inside is not None
        e, k = self.e, self.k
        vals = [e.splat(k.value(v, place.env), self.lanes) for v in values]
        inside = [e.extract(place.inside, lane) for lane in range(self.lanes)]
        with k.region(f"scf.if {e.and_(inside[0], inside[-1])} {{", "} else {"):
            for value, val in zip(values, vals):
                k.store(value, place.unmasked, val)
        with k.region("", "}"):
            for lane in range(self.lanes):
                vectors = {axis: i.vector for axis, i in place.env.items() if i.vector is not None}
                env = place.env | {axis: Index(e.extract(v, lane)) for axis, v in vectors.items()}
                with k.region(f"scf.if {inside[lane]} {{"):
                    for value, val in zip(values, vals):
                        k.store(value, env, e.extract(val, lane))

    # ---- inputs that all rows share

    def load_shared(self, value: Value, place: Place) -> None:
        e, k = self.e, self.k
        if not self._in_vectors(value):
            super().load_shared(value, place)
            return
        start = e.sub(k.scalar(k.offset(value, place.unmasked or place.env).base), self.behind)
        low, high = (self._aligned(value, at, place.unmasked is not None) for at in (start, e.add(start, self.lanes)))
        k.bind_loaded(value, place.env, self._from_two(low, high, e.cast(self.behind, dt.i32)))

    def load_last_parts(self, values: list[Value]) -> None:
        """Load the elements after the last full vector one by one, since a vector there may exceed the tensor."""
        e, k, length = self.e, self.k, self.size(self.length)
        columns = e.min(k.materialize(Index(e.and_(length, -self.lanes), 1, self.lanes)), e.sub(length, 1))
        env = self.along({}, Index(0, 0, self.lanes, columns))
        self.last_parts = {value: k.preload(value, env) for value in values if self._in_vectors(value)}

    def _in_vectors(self, value: Value) -> bool:
        words = self.lanes * self.k.memories[value].dtype.bytes % 4 == 0
        return words and set(self.k.axes.flat(value)) == set(self.analysis.reduced)

    def _aligned(self, value: Value, start: Val, checked: bool) -> Val:
        """The vector at a multiple of the lanes; undefined if it is outside."""
        e, k = self.e, self.k
        if not checked:
            return k.load_aligned(value, start, self.lanes)
        last = e.and_(self.size(self.length), -self.lanes)
        loaded = k.load_aligned(value, e.max(e.min(start, e.sub(last, self.lanes)), 0), self.lanes)
        return e.select(e.cmp("eq", start, last), self.last_parts[value], loaded)

    def _from_two(self, low: Val, high: Val, skipped: Val) -> Val:
        """Funnel-shift two adjacent vectors: the vector that starts at element ``skipped`` (less than the lanes) of the
        first."""
        e, nbytes = self.e, low.dtype.bytes
        words = e.words(low) + e.words(high)
        skipped, wanted = e.mul(skipped, nbytes), len(words) // 2
        step = wanted // 2  # words: one bit of ``skipped`` at a time
        while step >= max(1, nbytes // 4):
            taken = e.cmp("ne", e.and_(skipped, 4 * step), 0)
            words = [e.select(taken, further, word) for word, further in zip(words, words[step:])][: wanted + step]
            step //= 2
        if nbytes < 4:
            bits = e.bitcast(e.mul(e.and_(skipped, 3), 8), dt.u32)
            words = [e.intrinsic("llvm.fshr", further, word, bits) for word, further in itertools.pairwise(words)]
        return e.of_words(words[:wanted], low.dtype, low.lanes)


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
