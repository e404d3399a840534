"""Windows over images, as pools have them: shifted reads of what is pooled, and of what a place of the image finds in
the windows that it is in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from mlirfuse.frontend.torch.ops.rules import Context, element
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.dtypes import DType
from mlirfuse.ir.graph import Value
from mlirfuse.ir.sizes import Size

MOST = 64  # elements of a window, or windows of an element, that a kernel reads one by one


class Along(NamedTuple):
    """Windows along a dimension ``d``: window o has the elements ``o * stride - padding + k * dilation`` for k below
    ``kernel``, and its ``k`` counts ``weight`` in an offset."""

    d: int
    kernel: int
    stride: int
    padding: int
    dilation: int
    weight: int


def dimensions(rank: int, kernel: Sequence[int], *others: Sequence[int]) -> list[Along]:
    n = len(kernel)
    weights = [math.prod(kernel[k + 1 :]) for k in range(n)]
    return [Along(*given) for given in zip(range(rank - n, rank), kernel, *others, weights)]


def shifted(c: Context, x: Value, dims: Sequence[Along], at: Sequence[int],
            fill: Value | None) -> Value:  # fmt: skip
    """The element ``at`` of each window; outside of the image it is ``fill``, where None says that none is. Each is
    padded by itself: what they had in common would be computed again for each, or stored."""
    start, low, high = [0] * x.rank, [0] * x.rank, [0] * x.rank
    step = [1] * x.rank
    for a, k in zip(dims, at):
        first = k * a.dilation - a.padding
        start[a.d], step[a.d] = first, a.stride
        low[a.d] = -first
        high[a.d] = (c.shape[a.d] - 1) * a.stride + 1 + first - x.shape[a.d]
    if fill is not None:
        x, start = c.op("pad", x, fill, low=tuple(low), high=tuple(high)), [0] * x.rank
    if x.shape == c.shape:
        return x
    return c.op("slice", x, start=tuple(start), size=c.shape, step=tuple(step))


class Window(NamedTuple):
    """One of the windows that a place along a dimension may be in: the last that begins there or before, less ``back``.
    ``number``: which of its elements along the dimension each place is; ``inside``: whether it is one, None where it
    always is."""

    along: Along
    back: int
    number: Value
    inside: Value | None


def windows_around(c: Context, a: Along) -> list[Window]:
    """From the first on."""
    begin = of(c, "add", counted(c, a.d, dt.u32), a.padding)
    behind = of(c, "mod", begin, a.stride)  # the beginning of the last window
    found = []
    for back in reversed(range((a.kernel - 1) * a.dilation // a.stride + 1)):
        number, inside = of(c, "add", behind, back * a.stride), None
        if a.dilation > 1:
            inside = of(c, "eq", of(c, "mod", number, a.dilation), 0)
            number = of(c, "floor_div", number, a.dilation)
        if (back + 1) * a.stride > (a.kernel - 1) * a.dilation + 1:
            below = of(c, "lt", number, a.kernel)
            inside = below if inside is None else c.op("logical_and", inside, below)
        found.append(Window(a, back, number, inside))
    return found


def read(c: Context, x: Value, windows: Sequence[Window], fill: int) -> Value:
    """What ``x`` has for a window of each place of the image; ``fill`` where there is none."""
    count = x.rank - len(windows)
    shape, repeated, places = list(x.shape[:count]), list(x.shape[:count]), list(range(count))
    low, high = [0] * x.rank, [0] * x.rank
    for a, back, *_ in windows:
        places.append(len(shape))
        shape += [x.shape[a.d], a.stride]
        repeated.append(sz.mul(x.shape[a.d], a.stride))
        low[a.d] = back * a.stride - a.padding
        high[a.d] = c.shape[a.d] - low[a.d] - repeated[-1]
    if max(a.stride for a, *_ in windows) > 1:
        x = c.b.reshape(c.op("broadcast_in_dim", x, shape=tuple(shape), dims=tuple(places)), repeated)
    return c.op("pad", x, c.b.constant(fill, element(x)), low=tuple(low), high=tuple(high))


def counted(c: Context, d: int, dtype: DType) -> Value:
    """The position along dimension ``d`` of the result, with extents of 1 elsewhere."""
    return c.op("iota", shape=tuple(n if k == d else 1 for k, n in enumerate(c.shape)), axis=d, dtype=dtype)


_SAME = {"add": 0, "sub": 0, "mul": 1, "floor_div": 1, "ceil_div": 1}  # what these may be done by without a change


def of(c: Context, name: str, x: Value, by: Value | Size) -> Value:
    """An op on integers, in the type of ``x``."""
    if isinstance(by, int) and _SAME.get(name) == by:
        return x
    return c.op(name, x, c.value(by, element(x)))
