"""Adaptive pools of means and maxima: window o of ``pooled`` along a dimension has the places from ``o * extent //
pooled`` to before ``ceil((o + 1) * extent / pooled)``. Values and gradients are gathered, in a fixed order; where the
extents divide, means are those of other pools."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mlirfuse.frontend.torch.ops import average_pools
from mlirfuse.frontend.torch.ops.rules import Context, Unsupported, element, rule, without_negative_zero
from mlirfuse.frontend.torch.ops.windows import MOST, dimensions, of
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Value


class _Adaptive(NamedTuple):
    """Dimension ``d`` of ``extent`` places, and its windows."""

    d: int
    extent: int
    pooled: int

    @property
    def most(self) -> int:
        """The elements of the largest window."""
        return max(
            -(-(o + 1) * self.extent // self.pooled) - o * self.extent // self.pooled for o in range(self.pooled)
        )

    @property
    def around(self) -> int:
        """The windows of the place that is in most."""
        n, m = self.extent, self.pooled
        return max(-(-(i + 1) * m // n) - i * m // n for i in range(n))


def _dimensions(image: Sequence[sz.Size], pooled: Sequence[sz.Size], n: int) -> list[_Adaptive]:
    sizes = list(zip(image, pooled))[-n:]
    if not all(isinstance(x, int) and x for pair in sizes for x in pair):
        raise Unsupported("adaptive windows of sizes that are not known")
    first = len(image) - n
    return [_Adaptive(first + k, *pair) for k, pair in enumerate(sizes)]  # type: ignore[arg-type]


def _in_loops(c: Context, by_place: bool) -> bool:
    """Whether torch's loop takes less time: on a CPU for gradients, channels-last images and 16-bit floats. Of
    row-major float32 it takes 1.1 to 4 times as long, as it has no vectors."""
    return c.out.device.type == "cpu" and (by_place or c.dtype.bits < 32 or not c.out.is_contiguous())


def _line(c: Context, rank: int, d: int, n: int) -> Value:
    """The numbers 0 … n - 1 along dimension ``d``."""
    return c.op("iota", shape=tuple(n if k == d else 1 for k in range(rank)), axis=d, dtype=dt.i32)


def _bounds(c: Context, rank: int, a: _Adaptive, many: int, of_many: int) -> tuple[Value, Value]:
    """For each of ``many`` numbers along ``a.d`` the first of ``of_many`` that meet it, and the one behind the last:
    the places of a window, or the windows of a place."""
    line = _line(c, rank, a.d, many)
    first = of(c, "floor_div", of(c, "mul", line, of_many), many)
    behind = of(c, "ceil_div", of(c, "mul", of(c, "add", line, 1), of_many), many)
    return first, behind


def _gathered(c: Context, x: Value, dims: Sequence[_Adaptive], by_place: bool,
              others: Sequence[Value] = ()) -> Iterator[tuple[list[Value], list[Value], Value | None]]:  # fmt: skip
    """The elements of each window, or those of ``x`` of each window that a place is in, one by one: those of ``x`` and
    of ``others``, their indices along the dimensions, and where there is such a one (None: everywhere)."""
    if _in_loops(c, by_place):
        raise Unsupported("adaptive windows of several sizes, which torch's loop reads in less time on a CPU")
    counts = [a.around if by_place else a.most for a in dims]
    if math.prod(counts) > MOST:
        raise Unsupported("large adaptive windows")
    bounds = [_bounds(c, x.rank, a, *((a.extent, a.pooled) if by_place else (a.pooled, a.extent))) for a in dims]
    for at in itertools.product(*map(range, counts)):
        values, indices, inside = [x, *others], [], None
        for a, k, (first, behind) in zip(dims, at, bounds):
            index = of(c, "add", first, k)
            if k:
                there = c.op("lt", index, behind)
                inside = there if inside is None else c.op("logical_and", inside, there)
                index = of(c, "minimum", index, (a.pooled if by_place else a.extent) - 1)
            flat = c.b.reshape(index, (index.shape[a.d],))
            values = [c.op("take", v, flat, axis=a.d) for v in values]
            indices.append(index)
        yield values, indices, inside


def _avg_pool(c: Context, x: Value, size: Sequence[sz.Size], *, n: int) -> Value:
    """Over the last ``n`` dimensions."""
    dims = _dimensions(x.shape, c.shape, n)
    if (kernel := _equal(dims)) is not None:
        return average_pools.means(c, x, dimensions(x.rank, kernel, kernel, [0] * n, [1] * n), math.prod(kernel))
    wide = average_pools.accumulator(c)
    none, total = c.b.constant(0, wide), None
    for (value,), _, inside in _gathered(c, c.b.cast(x, wide), dims, False):
        part = value if inside is None else c.op("where", inside, value, none)
        total = part if total is None else c.op("add", total, part)
    assert total is not None
    return c.b.cast(c.op("div", without_negative_zero(c, total), c.b.cast(_counts(c, x.rank, dims), wide)), c.dtype)


@rule("mlirfuse.adaptive_avg_pool_backward.default")
def avg_pool_backward(c: Context, gradient: Value, size: Sequence[sz.Size], channels_last: bool) -> Value:
    n, rank = len(size), gradient.rank
    dims = _dimensions(c.shape, gradient.shape, n)
    if (kernel := _equal(dims)) is not None:
        along = dimensions(rank, kernel, kernel, [0] * n, [1] * n)
        return average_pools.spread(c, gradient, along, math.prod(kernel))
    wide = average_pools.accumulator(c)
    share = c.op("div", c.b.cast(gradient, wide), c.b.cast(_counts(c, rank, dims), wide))
    none, total = c.b.constant(0, wide), None
    for (value,), _, inside in _gathered(c, share, dims, True):
        part = value if inside is None else c.op("where", inside, value, none)
        total = part if total is None else c.op("add", total, part)
    assert total is not None
    return c.b.cast(total, c.dtype)


def _equal(dims: Sequence[_Adaptive]) -> list[int] | None:
    """The windows' sizes, where all windows along a dimension have one."""
    return [a.extent // a.pooled for a in dims] if all(a.extent % a.pooled == 0 for a in dims) else None


def _counts(c: Context, rank: int, dims: Sequence[_Adaptive]) -> Value:
    """How many elements each window has."""
    found: Value | None = None
    for a in dims:
        first, behind = _bounds(c, rank, a, a.pooled, a.extent)
        count = c.op("sub", behind, first)
        found = count if found is None else c.op("mul", found, count)
    assert found is not None
    return found


def _max_pool(c: Context, x: Value, size: Sequence[sz.Size], *, n: int) -> list[Value]:
    """The first of equal maxima, and the last NaN, as torch's loops over windows find them; and its place in the
    image, counted row by row."""
    dims = _dimensions(x.shape, c.shape, n)
    best: Value | None = None
    place: Value | None = None
    for (value,), indices, inside in _gathered(c, x, dims, False):
        at = _place(c, dims, indices)
        if best is None or place is None:
            best, place = value, c.b.broadcast_to(at, c.shape)
            continue
        larger = c.op("gt", value, best)
        if element(x).is_float:
            larger = c.op("logical_or", larger, c.op("isnan", value))
        if inside is not None:
            larger = c.op("logical_and", larger, inside)
        best, place = c.op("where", larger, value, best), c.op("where", larger, at, place)
    assert best is not None and place is not None
    return [best, place]


@rule("mlirfuse.adaptive_max_pool_backward.default")
def max_pool_backward(c: Context, gradient: Value, size: Sequence[sz.Size], channels_last: bool,
                      places: Value) -> Value:  # fmt: skip
    dims, wide = _dimensions(c.shape, gradient.shape, len(size)), average_pools.accumulator(c)
    own = _place(c, dims, [_line(c, gradient.rank, a.d, a.extent) for a in dims])
    places = c.b.cast(places, element(own))
    none, total = c.b.constant(0, wide), None
    for (value, place), _, inside in _gathered(c, c.b.cast(gradient, wide), dims, True, [places]):
        hit = c.op("eq", place, own)
        if inside is not None:
            hit = c.op("logical_and", hit, inside)
        part = c.op("where", hit, value, none)
        total = part if total is None else c.op("add", total, part)
    assert total is not None
    return c.b.cast(total, c.dtype)


def _place(c: Context, dims: Sequence[_Adaptive], indices: Sequence[Value]) -> Value:
    """The place in the image, counted row by row, that ``indices`` along the dimensions name."""
    found: Value | None = None
    dtype = dt.i32 if math.prod(a.extent for a in dims) < 1 << 31 else dt.i64
    for a, index in zip(dims, (c.b.cast(index, dtype) for index in indices)):
        found = index if found is None else c.op("add", of(c, "mul", found, a.extent), index)
    assert found is not None
    return found


for _n in (2, 3):
    rule(f"aten._adaptive_avg_pool{_n}d.default")(functools.partial(_avg_pool, n=_n))
    rule(f"aten.adaptive_max_pool{_n}d.default")(functools.partial(_max_pool, n=_n))
