"""Windows of a tensor as a tensor, and what is added up from them: gathered, no place is written twice."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from mlirfuse.frontend.torch.ops.rules import Context, Unsupported, axis, rule
from mlirfuse.frontend.torch.ops.windows import MOST, Along, counted, dimensions, of, windows_around
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Value
from mlirfuse.ir.sizes import Size


def _gathered(c: Context, x: Value, a: Along, count: Size) -> Value:
    """``x`` with the elements of ``count`` windows along ``a.d`` in its place, one offset of all windows after the
    other: element ``k * count + o`` is ``o * stride - padding + k * dilation``. None is outside."""
    line = c.op("iota", shape=(a.kernel, count), axis=1, dtype=dt.i64)
    offset = c.op("iota", shape=(a.kernel, count), axis=0, dtype=dt.i64)
    places = of(c, "sub", c.op("add", of(c, "mul", line, a.stride), of(c, "mul", offset, a.dilation)), a.padding)
    return c.op("take", x, c.b.reshape(places, (sz.mul(a.kernel, count),)), axis=a.d)


@rule("aten.unfold.default", view=True)
def unfold(c: Context, x: Value, dimension: int, size: int, step: int) -> Value:
    """Of windows that touch. Others are torch's view, which is read as it lies."""
    if not x.rank or size != step:
        raise Unsupported("windows that overlap, or have gaps between them")
    d = axis(dimension, x.rank)
    count = c.shape[d]
    x = c.b.slice(x, d, 0, sz.mul(count, size))
    split = c.b.reshape(x, (*x.shape[:d], count, size, *x.shape[d + 1 :]))
    return c.b.permute(split, (*(k for k in range(x.rank + 1) if k != d + 1), d + 1))


@rule("aten.unfold_backward.default")
def unfold_backward(c: Context, gradient: Value, sizes: Any, dim: int, size: int, step: int) -> Value:
    rank = gradient.rank - 1
    if not rank:
        raise Unsupported("windows of a number")
    d = axis(dim, rank)
    order = (*range(d), rank, *range(d, rank))  # offsets before windows
    return _folded(c, c.b.permute(gradient, order), [Along(d, size, step, 0, 1, 1)])


@rule("aten.im2col.default")
def im2col(c: Context, x: Value, kernel: Sequence[int], dilation: Sequence[int], padding: Sequence[int],
           stride: Sequence[int]) -> Value:  # fmt: skip
    first = x.rank - 2
    if any(padding):
        low = (*[0] * first, *padding)
        x = c.op("pad", x, c.b.constant(0, c.dtype), low=low, high=low)
    counts = []
    for a in dimensions(x.rank, kernel, stride, [0, 0], dilation):
        counts.append(sz.floordiv(x.shape[a.d] - (a.kernel - 1) * a.dilation - 1, a.stride) + 1)
        x = _gathered(c, x, a, counts[-1])
    (m, n), (p, q) = kernel, counts
    split = c.b.reshape(x, (*x.shape[:first], m, p, n, q))
    places = first, first + 2, first + 1, first + 3
    return c.b.reshape(c.b.permute(split, (*range(first), *places)), c.shape)


@rule("aten.col2im.default")
def col2im(c: Context, x: Value, size: Sequence[Size], kernel: Sequence[int], dilation: Sequence[int],
           padding: Sequence[int], stride: Sequence[int]) -> Value:  # fmt: skip
    dims = dimensions(x.rank + 1, kernel, stride, padding, dilation)
    counts = [sz.floordiv(n + 2 * a.padding - (a.kernel - 1) * a.dilation - 1, a.stride) + 1
              for n, a in zip(size, dims)]  # fmt: skip
    lead = c.shape[:-2]
    split = c.b.reshape(x, (*lead, *kernel, *counts))
    first = len(lead)
    return _folded(c, c.b.permute(split, (*range(first), first, first + 2, first + 1, first + 3)), dims)


def _folded(c: Context, x: Value, dims: Sequence[Along]) -> Value:
    """What the windows have for each place of the result, added up. ``x`` has two dimensions in place of each of
    ``dims``: offsets in a window, and windows."""
    if not c.dtype.is_float:
        raise Unsupported("sums of windows of integers")
    around = [windows_around(c, a) for a in dims]
    if math.prod(map(len, around)) > MOST:
        raise Unsupported("windows that overlap much")
    wide, shape = c.dtype.compute, list(x.shape)
    counts = [shape[a.d + 1 + k] for k, a in enumerate(dims)]
    for a in reversed(dims):
        at = a.d + dims.index(a)
        shape[at : at + 2] = [sz.mul(shape[at], shape[at + 1])]
    x = c.b.cast(c.b.reshape(x, tuple(shape)), wide)
    none, total = c.b.constant(0, wide), None
    for windows in itertools.product(*around):
        part = x
        for window, count in zip(windows, counts):
            part = _of_window(c, part, window, count)
        for window, count in zip(windows, counts):
            for condition in _there(c, window, count):
                part = c.op("where", condition, part, none)
        total = part if total is None else c.op("add", total, part)
    assert total is not None
    return c.b.cast(total, c.dtype)


def _number(c: Context, window: Any) -> Value:
    """Which window each place along a dimension reads; it may be none."""
    a = window.along
    begin = of(c, "add", counted(c, a.d, dt.i64), a.padding)
    return of(c, "sub", of(c, "floor_div", begin, a.stride), window.back)


def _of_window(c: Context, x: Value, window: Any, count: Size) -> Value:
    a = window.along
    place = c.op("add", of(c, "mul", c.b.cast(window.number, dt.i64), count), _number(c, window))
    last = sz.mul(a.kernel, count) - 1
    inside = of(c, "minimum", of(c, "maximum", place, 0), last)
    return c.op("take", x, c.b.reshape(inside, (c.shape[a.d],)), axis=a.d)


def _there(c: Context, window: Any, count: Size) -> list[Value]:
    """The conditions that the window is one, and that it has the place."""
    number = _number(c, window)
    found = [of(c, "ge", number, 0), of(c, "lt", number, count)]
    return found if window.inside is None else [*found, window.inside]
