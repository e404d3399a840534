"""Unaligned rows on a GPU, read by aligned vectors of which the first may start before the row.

With ``shift`` elements between the last multiple of the lanes in memory and the row (``|`` ends a vector of four,
``shift`` is 3):

    memory   . . . a | b c d e | f g . .      the row a to g between other rows
    columns -3-2-1 0 | 1 2 3 4 | 5 6 7 8

The first vector and the last ones have lanes outside of the row. Those contain other rows or no tensor at all: their
values are not used, and nothing is read beyond the row. Inputs that all rows share, such as weights, have another
alignment: their vectors are funnel-shifted from two adjacent aligned vectors."""

from __future__ import annotations

import itertools

from mlirfuse.analysis.phases import Analysis
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.graph import Value
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.kernel import Env, Index
from mlirfuse.lowering.slots import Slots
from mlirfuse.schedule.gpu.row_body import Place, RowsBody


class UnalignedRows(RowsBody):
    """A kernel body in which each block or cluster has one row. Columns are counted from the start of the row's first
    vector."""

    def __init__(self, name: str, analysis: Analysis, slots: Slots, p):
        super().__init__(name, analysis, slots, p)
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
        inside = e.cmp(
            "lt", e.bitcast(columns, unsigned), e.bitcast(length, unsigned)
        )  # negative numbers are large as unsigned
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
                env = {
                    axis: Index(e.extract(i.vector, lane)) if i.vector is not None else i
                    for axis, i in place.env.items()
                }
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
