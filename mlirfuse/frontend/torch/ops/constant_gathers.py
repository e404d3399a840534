"""Gradients of gathers whose indices are the same in every call: each element sums what has read it, in a fixed order,
instead of a scatter that adds atomically.

The indices are cut into runs. Of a run with a constant step, or that repeats each element, the gradient is slices of
the values, padded; of another ascending or descending one it is a sum over a window of values that begins on a line.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from mlirfuse.frontend.torch.ops.rules import Context, element
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Value

_MOST_RUNS = 8
_MOST_STEPS = 3  # constant steps of an ascending run, as of one that is clamped at both ends
_UNROLLED = 16  # the most values that are summed one by one; more are a reduction
_MOST = 64  # the most values that one thread sums sequentially


class Line(NamedTuple):
    """The positions that have read element k are among the ``window`` from ``(k * step + add) // of`` on."""

    step: int
    of: int
    add: int
    window: int


def line_through(first: np.ndarray, last: np.ndarray, length: int) -> Line:
    """The line with the smallest windows, for elements that are read at positions from ``first`` to ``last`` of
    ``length``, both ascending; ``first`` is behind ``last`` for one that is not read."""
    elements = len(first)
    each, read = np.arange(elements), first <= last
    found = []
    for step, of in ((length, elements), (length - 1, max(elements - 1, 1))):
        add = int((first * of - each * step)[read].min())
        start = np.maximum(each * step + add, 0) // of
        found.append(Line(step, of, add, min(int((last - start)[read].max()) + 1, length)))
    return min(found, key=lambda line: line.window)


class Run(NamedTuple):
    """The indices from position ``begin`` to before ``end``. ``step``: by which each differs from the one before it;
    ``repeats``: how often each index is repeated, where those that differ do so by ``step``. Without ``step`` the
    indices ascend or descend in another way."""

    begin: int
    end: int
    step: int | None
    repeats: int = 1


def runs_of(index: np.ndarray) -> list[Run] | None:
    """The ascending and descending runs of ``index``, those that differ by a few constant steps cut into these; None
    where they are many."""
    found: list[Run] = []
    signs = np.sign(np.diff(index))
    begin, count = 0, len(index)
    while begin < count:
        own = signs[begin:]
        directions = own[own != 0]
        turns = np.flatnonzero(own == -directions[0]) if len(directions) else directions
        end = begin + 1 + int(turns[0]) if len(turns) else count
        found += _cut(index, begin, end)
        if len(found) > _MOST_RUNS:
            return None
        begin = end
    return found


def _cut(index: np.ndarray, begin: int, end: int) -> list[Run]:
    """An ascending or descending run, cut where its step changes, if there it does so seldom."""
    own = index[begin:end]
    low, high = int(own[0]), int(own[-1])
    each, sign = 1 + abs(high - low), 1 if high >= low else -1
    often = len(own) // each
    if high != low and np.array_equal(own, low + sign * np.arange(each).repeat(often)):
        return [Run(begin, end, sign, often)]
    runs = list(itertools.islice(constant_steps(index, begin, end), _MOST_STEPS + 1))
    return runs if len(runs) <= _MOST_STEPS else [Run(begin, end, None)]


def constant_steps(index: np.ndarray, begin: int, end: int) -> Iterator[Run]:
    """The indices from ``begin`` to before ``end``, cut where their step changes."""
    while begin < end:
        steps = np.diff(index[begin:end])
        changes = np.flatnonzero(steps != steps[:1])
        stop = begin + 1 + int(changes[0]) if len(changes) else end
        yield Run(begin, stop, int(steps[0]) if stop - begin > 1 else 0)
        begin = stop


def summed(c: Context, values: Value, dim: int, index: np.ndarray, extent: sz.Size,
           at: Callable[[Value], Value]) -> Value | None:  # fmt: skip
    """The sums of ``values`` along ``dim`` over equal ``index``, for each number below ``extent``, each in a fixed
    order; None where the indices have no order. ``at(positions)``: the indices at some positions. Values of 16 bits
    are summed as float32, as a kernel does."""
    if not index.size or not isinstance(extent, int) or (index < 0).any() or (index >= extent).any():
        return None
    runs = runs_of(index)
    if runs is None:
        return None
    own = element(values)
    values = c.b.cast(values, dt.f32) if own.kind == "f" and own.bits < 32 else values
    total: Value | None = None
    for run in runs:
        of_run = _Summed(c, values, dim, index[run.begin : run.end], extent, run)
        part = of_run.windows(at) if run.step is None else of_run.slices()
        if part is None:
            return None
        total = part if total is None else c.op("add", total, part)
    return None if total is None else c.b.cast(total, own)


class _Summed(NamedTuple):
    """What a run of indices, ``numbers``, adds to the sums."""

    c: Context
    values: Value
    dim: int
    numbers: np.ndarray
    extent: int
    run: Run

    def slices(self) -> Value:
        """By slices of the values."""
        c, dim, (begin, end, step, repeats) = self.c, self.dim, self.run
        count = end - begin
        if not step:  # one element has read all
            if count > _UNROLLED:
                part = c.op("sum", c.b.slice(self.values, dim, begin, count), axes=(dim,), keepdims=True)
                return self._placed(part, int(self.numbers[0]), 1)
            repeats = count
        low, high = sorted((int(self.numbers[0]), int(self.numbers[-1])))
        descends = self.numbers[0] > self.numbers[-1]
        sign = -1 if descends else 1
        size = count // repeats
        total: Value | None = None
        for k in range(repeats):
            start = begin + (count - 1 - k if descends else k)
            part = self._sliced(start, size, sign * repeats)
            total = part if total is None else c.op("add", total, part)
        assert total is not None
        return self._placed(total, low, max(1, (high - low) // max(size - 1, 1)))

    def _sliced(self, start: int, size: int, step: int) -> Value:
        x, dim = self.values, self.dim
        if (start, size, step) == (0, x.shape[dim], 1):
            return x
        starts, steps = (
            [given if d == dim else rest for d in range(x.rank)] for given, rest in ((start, 0), (step, 1))
        )
        shape = tuple(size if d == dim else n for d, n in enumerate(x.shape))
        return self.c.op("slice", x, start=tuple(starts), size=shape, step=tuple(steps))

    def _placed(self, part: Value, low: int, step: int) -> Value:
        """``part`` at each ``step``-th element from ``low`` on, between zeros."""
        c, dim, size = self.c, self.dim, part.shape[self.dim]
        if size == self.extent:
            return part
        zero = c.b.constant(0, part.dtype)
        if step == 1:  # by less code than a pad, which is a load of its own for elements at the borders
            first, last, none = (c.b.constant(n, dt.i32) for n in (low, size - 1, 0))
            at = c.op("sub", c.op("iota", shape=(self.extent,), axis=0, dtype=dt.i32), first)
            inside = c.op("logical_and", c.op("ge", at, none), c.op("le", at, last))
            inside = c.b.reshape(inside, tuple(self.extent if d == dim else 1 for d in range(part.rank)))
            at = c.op("minimum", c.op("maximum", at, none), last)
            return c.op("where", inside, c.op("take", part, at, axis=dim), zero)
        shape = tuple(self.extent if d == dim else n for d, n in enumerate(part.shape))
        start, steps = (
            [given if d == dim else rest for d in range(part.rank)] for given, rest in ((low, 0), (step, 1))
        )
        zeros = c.op("full", zero, shape=shape)
        return c.op("set_slice", zeros, part, start=tuple(start), size=part.shape, step=tuple(steps))

    def windows(self, at: Callable[[Value], Value]) -> Value | None:
        """By a window of values for each element."""
        c, index = self.c, self.numbers
        descends, length = index[0] > index[-1], len(index)
        ascending = index[::-1] if descends else index
        low, high = int(ascending[0]), int(ascending[-1])
        each = np.arange(low, high + 1)
        first, end = (np.searchsorted(ascending, each, side) for side in ("left", "right"))
        line = line_through(first, end - 1, length)
        if line.window > _MOST:
            return None
        number = dt.i32 if (high - low + 2) * (line.step + 1) + abs(line.add) < 1 << 31 else dt.i64

        def of(name: str, x: Value, by: int) -> Value:
            return c.op(name, x, c.b.constant(by, number))

        here = c.op("iota", shape=(high - low + 1,), axis=0, dtype=number)
        start = of("add", of("mul", here, line.step), line.add)
        start = of("minimum", of("floor_div", of("maximum", start, 0), line.of), length - line.window)
        own = tuple(high - low + 1 if d == self.dim else 1 for d in range(self.values.rank))

        def read(position: Value, here: Value, shape: tuple[sz.Size, ...], own: tuple[sz.Size, ...]) -> Value:
            if descends:
                position = c.op("sub", c.b.constant(self.run.end - 1, number), position)
            else:
                position = of("add", position, self.run.begin)
            hit = c.op("eq", c.b.cast(at(position), number), of("add", here, low))
            found = c.b.reshape(c.op("take", self.values, position, axis=self.dim), shape)
            return c.op("where", c.b.reshape(hit, own), found, c.b.constant(0, self.values.dtype))

        shape = tuple(high - low + 1 if d == self.dim else n for d, n in enumerate(self.values.shape))
        if line.window <= _UNROLLED:
            total = read(start, here, shape, own)
            for k in range(1, line.window):
                total = c.op("add", total, read(of("add", start, k), here, shape, own))
        else:
            behind = c.op("iota", shape=(line.window, 1), axis=0, dtype=number)
            flat = (line.window * (high - low + 1),)
            start, here = (
                c.b.reshape(c.b.broadcast_to(v, (line.window, high - low + 1)), flat)
                for v in (
                    c.op("add", behind, c.op("expand_dims", start, axes=(0,))),
                    c.op("expand_dims", here, axes=(0,)),
                )
            )
            # The window is a leading axis, so that a kernel's accesses follow the result's layout.
            wide, along = ((*s[: self.dim], line.window, *s[self.dim :]) for s in (shape, own))
            total = c.op("sum", read(start, here, wide, along), axes=(self.dim,), keepdims=False)
        return self._placed(total, low, 1)
