"""Gradients of gathers whose indices are a function of an affine form of the element's own, such as the relative
positions ``clamp(i - j + span, 0, 2 * span - 1)``: each element reads what has read it, instead of a scatter that adds
atomically.

Along the gathered dimension, an element of the result and the other dimensions' indices determine the form, and the
form the one position that has it. So a run of the form's values that ascends or descends by a constant step is a gather
at positions that are computed; one that is constant, as of indices that are clamped, is a masked sum.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mlirfuse.frontend.torch.ops.constant_gathers import Run, runs_of
from mlirfuse.frontend.torch.ops.rules import Context, element
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.affine_tables import AffineTable, affine_table
from mlirfuse.ir.graph import Value
from mlirfuse.ir.sizes import Size

_MOST_READS = 8  # of values by an element
_FEW = 2  # values of a form: constant runs of so many are read by the element itself


def summed(c: Context, values: Value, dim: int, index: Value, extent: object) -> Value | None:
    """The sums of ``values`` along ``dim`` over equal ``index``, of the same shape, for each number below ``extent``,
    each in a fixed order; None where the index is not a function of an affine form that varies along ``dim``, or has
    too many runs. Values of 16 bits are summed as float32, as a kernel does."""
    table = affine_table(index) if isinstance(extent, int) and index.shape == values.shape else None
    if table is None or not isinstance(extent, int) or not table.coefficients[dim]:
        return None
    if (table.numbers < 0).any() or (table.numbers >= extent).any():
        return None
    runs = runs_of(table.numbers)
    if runs is None or (table.endless and (runs[0].step != 0 or runs[-1].step != 0)):
        return None
    if any(run.step is None for run in runs) or sum(map(_reads, runs)) > _MOST_READS:
        return None
    own = element(values)
    values = c.b.cast(values, dt.f32) if own.kind == "f" and own.bits < 32 else values
    of = _Summed(c, values, dim, table, extent, _number(table, runs, extent, values.shape))
    total: Value | None = None
    for run in runs:
        part = of.gathered(run) if _reads(run) else of.masked(run)
        total = part if total is None else c.op("add", total, part)
    return None if total is None else c.b.cast(total, own)


def _reads(run: Run) -> int:
    """The values that an element reads for this run, where it is no sum."""
    if run.step:
        return run.repeats
    return run.end - run.begin if run.end - run.begin <= _FEW else 0


def _number(table: AffineTable, runs: list[Run], extent: int, shape: Sequence[Size]) -> dt.DType:
    """The dtype that has room for positions and values of the form."""
    largest = len(table.numbers) + extent * max(run.repeats for run in runs)
    for f, n in zip(table.coefficients, shape):
        if f and not isinstance(n, int):
            return dt.i64
        largest += abs(f) * n if isinstance(n, int) else 0
    return dt.i32 if 2 * largest < 1 << 31 else dt.i64


class _Summed(NamedTuple):
    """What runs of a table add to the sums. ``number``: the dtype of positions."""

    c: Context
    values: Value
    dim: int
    table: AffineTable
    extent: int
    number: dt.DType

    def masked(self, run: Run) -> Value:
        """A constant run: the sum of all values in it, for the one element that has been read."""
        c = self.c
        form = self._form(range(self.values.rank))
        assert form is not None
        inside = self._between(form, *self._ends(run))
        kept = self.values if inside is None else c.op("where", inside, self.values, self._zero())
        total = c.op("sum", kept, axes=(self.dim,), keepdims=True)
        read = self._of("eq", self._iota(self.dim, self.extent), int(self.table.numbers[run.begin]))
        return c.op("where", read, total, self._zero())

    def gathered(self, run: Run) -> Value:
        """A run with a step: a value for each element, or a few that follow each other."""
        repeats = run.repeats if run.step else run.end - run.begin
        total: Value | None = None
        for k in range(repeats):
            part = self._read(run, repeats, k)
            total = part if total is None else self.c.op("add", total, part)
        assert total is not None
        return total

    def _read(self, run: Run, repeats: int, k: int) -> Value:
        """The ``k``-th of the values that read an element in ``run``; 0 where there is none."""
        c, dim, table = self.c, self.dim, self.table
        first = int(table.numbers[run.begin])
        nth, exact = self._divided(self._of("sub", self._iota(dim, self.extent), first), run.step or 1)
        form = self._of("add", self._of("mul", nth, repeats), run.begin + k + table.low)
        masks = [exact, self._between(form, *self._ends(run))]
        rest = self._form(d for d in range(self.values.rank) if d != dim)
        along = form if rest is None else c.op("sub", form, rest)
        position, exact = self._divided(along, table.coefficients[dim])
        count, last = (c.b.cast(c.b.size(n), self.number) for n in (self.values.shape[dim], self.values.shape[dim] - 1))
        masks += [exact, self._between(position, 0, None), c.op("lt", position, count)]
        inside = functools.reduce(functools.partial(c.op, "logical_and"), [m for m in masks if m is not None])
        shape = tuple(self.extent if d == dim else size for d, size in enumerate(self.values.shape))
        position = c.op("minimum", self._of("maximum", position, 0), last)
        found = c.op("take_along_axis", self.values, c.b.broadcast_to(position, shape), axis=dim)
        return c.op("where", inside, found, self._zero())

    def _zero(self) -> Value:
        return self.c.b.constant(0, self.values.dtype)

    def _of(self, name: str, x: Value, by: int) -> Value:
        if (name in ("add", "sub") and by == 0) or (name == "mul" and by == 1):
            return x
        return self.c.op(name, x, self.c.b.constant(by, self.number))

    def _iota(self, d: int, extent: int | None = None) -> Value:
        """The indices along dimension ``d`` of the values, or of this extent."""
        size = self.values.shape[d] if extent is None else extent
        own = tuple(size if k == d else 1 for k in range(self.values.rank))
        return self.c.op("iota", shape=own, axis=d, dtype=self.number)

    def _form(self, dims: Iterable[int]) -> Value | None:
        """What the indices along ``dims`` add to the form; None where they add nothing."""
        parts = [self._of("mul", self._iota(d), f) for d in dims if (f := self.table.coefficients[d])]
        return functools.reduce(functools.partial(self.c.op, "add"), parts) if parts else None

    def _ends(self, run: Run) -> tuple[int | None, int | None]:
        """The first value of the form in ``run`` and that behind the last; None where the form has none beyond."""
        low, last = self.table.low, len(self.table.numbers)
        return (run.begin + low if run.begin else None), (run.end + low if run.end < last else None)

    def _divided(self, x: Value, by: int) -> tuple[Value, Value | None]:
        """``x`` divided by ``by``, and where the result is exact: None for everywhere."""
        if abs(by) == 1:
            return (x if by == 1 else self.c.op("neg", x)), None
        found = self._of("floor_div", x, by)
        return found, self.c.op("eq", self._of("mul", found, by), x)

    def _between(self, x: Value, low: int | None, end: int | None) -> Value | None:
        """Whether ``x`` is in ``low`` to before ``end``, where these are given; None where neither is."""
        bounds = [self._of(name, x, by) for name, by in (("ge", low), ("lt", end)) if by is not None]
        return functools.reduce(functools.partial(self.c.op, "logical_and"), bounds) if bounds else None
