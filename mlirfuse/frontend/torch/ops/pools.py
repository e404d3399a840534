"""Rules of max pools (:mod:`mlirfuse.frontend.torch.pools`): shifted reads of the image, and of the windows' offsets.

In the backward each pixel gathers from the windows that contain it, instead of windows scattering to pixels: no pixel
is written twice, and sums are deterministic.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from mlirfuse.frontend.torch.ops.rules import Context, Unsupported, element, rule
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.dtypes import DType
from mlirfuse.ir.graph import Value
from mlirfuse.ir.sizes import Size

_NO_OFFSET = 255  # an offset that no window has


class _PoolDimension(NamedTuple):
    """Windows along a dimension ``d``: window o has the elements ``o * stride - padding + k * dilation`` for k below
    ``kernel``; ``weight``: the factor of ``k`` in an offset."""

    d: int
    kernel: int
    stride: int
    padding: int
    dilation: int
    weight: int


def _dimensions(rank: int, kernel: Sequence[int], *others: Sequence[int]) -> list[_PoolDimension]:
    n = len(kernel)
    weights = [math.prod(kernel[k + 1 :]) for k in range(n)]
    return [_PoolDimension(*given) for given in zip(range(rank - n, rank), kernel, *others, weights)]


@rule("mlirfuse.max_pool.default")
def max_pool(c: Context, x: Value, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int],
             dilation: Sequence[int], ceil_mode: bool) -> list[Value]:  # fmt: skip
    """The first of equal maxima, and the last NaN, as torch's loops over windows find them."""
    dims = _dimensions(x.rank, kernel, stride, padding, dilation)
    padded = ceil_mode or any(padding)
    offset, best = _first_inside(c, dims), None
    for number, at in enumerate(itertools.product(*map(range, kernel))):
        value = _element(c, x, dims, at, padded)
        if best is None:
            best = value
            continue
        larger = c.op("gt", value, best)
        if element(x).is_float:
            larger = c.op("logical_or", larger, c.op("isnan", value))
        best = c.op("where", larger, value, best)
        offset = c.op("where", larger, c.b.constant(number, dt.u8), offset)
    assert best is not None
    return [best, offset]


def _element(c: Context, x: Value, dims: Sequence[_PoolDimension], at: Sequence[int], padded: bool) -> Value:
    """The element ``at`` of each window; outside the image, which ``padded`` windows reach, the smallest value. Pads
    each separately: a shared padded image would be recomputed for each, or stored."""
    start, low, high = [0] * x.rank, [0] * x.rank, [0] * x.rank
    step = [1] * x.rank
    for a, k in zip(dims, at):
        first = k * a.dilation - a.padding
        start[a.d], step[a.d] = first, a.stride
        low[a.d] = -first
        high[a.d] = (c.shape[a.d] - 1) * a.stride + 1 + first - x.shape[a.d]
    if padded:
        x, start = c.op("pad", x, _least(c, element(x)), low=tuple(low), high=tuple(high)), [0] * x.rank
    if x.shape == c.shape:
        return x
    return c.op("slice", x, start=tuple(start), size=c.shape, step=tuple(step))


def _least(c: Context, dtype: DType) -> Value:
    number = -math.inf if dtype.is_float else 0 if dtype.kind == "u" else -(2 ** (dtype.bits - 1))
    return c.b.constant(number, dtype)


def _first_inside(c: Context, dims: Sequence[_PoolDimension]) -> Value:
    """The offset of each window's first element inside the image: the maximum's offset if all its elements are
    minimal."""
    found = c.b.constant(0, dt.i32)
    for a in dims:
        if a.padding:
            first = _of(c, "mul", _iota(c, a.d, dt.i32), -a.stride)
            outside = _of(c, "maximum", _of(c, "add", first, a.padding), 0)
            found = c.op("add", found, _of(c, "mul", _of(c, "ceil_div", outside, a.dilation), a.weight))
    return c.b.cast(found, dt.u8)


@rule("mlirfuse.max_pool_indices.default")
def max_pool_indices(c: Context, offsets: Value, size: Sequence[Size], kernel: Sequence[int], stride: Sequence[int],
                    padding: Sequence[int], dilation: Sequence[int], ceil_mode: bool) -> Value:  # fmt: skip
    offsets, found = c.b.cast(offsets, dt.i64), c.b.constant(0, dt.i64)
    for a, extent in zip(_dimensions(offsets.rank, kernel, stride, padding, dilation), size):
        number = _of(c, "mod", _of(c, "floor_div", offsets, a.weight), a.kernel)
        first = _of(c, "sub", _of(c, "mul", _iota(c, a.d, dt.i64), a.stride), a.padding)
        place = c.op("add", first, _of(c, "mul", number, a.dilation))
        found = c.op("add", _of(c, "mul", found, extent), place)
    return found


@rule("mlirfuse.max_pool_backward.default")
def max_pool_backward(c: Context, gradient: Value, offsets: Value, size: Sequence[Size], kernel: Sequence[int],
                      stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
                      ceil_mode: bool) -> Value:  # fmt: skip
    """In the order of torch's loop over windows, and in its accumulation dtype."""
    if offsets.dtype is not dt.u8:
        raise Unsupported("indices that are not computed from offsets")
    dims, wide = _dimensions(c.out.dim(), kernel, stride, padding, dilation), c.dtype.compute
    none, total = c.b.constant(0, wide), None
    for windows in itertools.product(*(_windows_containing(c, a) for a in dims)):
        hit = c.op("eq", _read(c, offsets, windows, _NO_OFFSET), _offset(c, windows))
        part = c.op("where", hit, c.b.cast(_read(c, gradient, windows, 0), wide), none)
        total = part if total is None else c.op("add", total, part)
    assert total is not None
    return c.b.cast(total, c.dtype)


class _Window(NamedTuple):
    """One of the windows that may contain an index along a dimension: the last that starts at or before it, minus
    ``back``. ``number``: the window's element at each index; ``inside``: whether it is one, None where it always is."""

    along: _PoolDimension
    back: int
    number: Value
    inside: Value | None


def _windows_containing(c: Context, a: _PoolDimension) -> list[_Window]:
    """The candidate windows, the first one first."""
    begin = _of(c, "add", _iota(c, a.d, dt.u32), a.padding)
    behind = _of(c, "mod", begin, a.stride)  # start of the last window
    found = []
    for back in reversed(range((a.kernel - 1) * a.dilation // a.stride + 1)):
        number, inside = _of(c, "add", behind, back * a.stride), None
        if a.dilation > 1:
            inside = _of(c, "eq", _of(c, "mod", number, a.dilation), 0)
            number = _of(c, "floor_div", number, a.dilation)
        if (back + 1) * a.stride > (a.kernel - 1) * a.dilation + 1:
            below = _of(c, "lt", number, a.kernel)
            inside = below if inside is None else c.op("logical_and", inside, below)
        found.append(_Window(a, back, number, inside))
    return found


def _offset(c: Context, windows: Sequence[_Window]) -> Value:
    """Each pixel's offset in a window; ``_NO_OFFSET`` where it is outside."""
    found: Value | None = None
    for window in windows:
        part = _of(c, "mul", window.number, window.along.weight)
        if window.inside is not None:
            part = c.op("where", window.inside, part, c.b.constant(_NO_OFFSET, dt.u32))
        found = part if found is None else c.op("add", found, part)
    assert found is not None
    return c.b.cast(_of(c, "minimum", found, _NO_OFFSET), dt.u8)


def _read(c: Context, x: Value, windows: Sequence[_Window], fill: int) -> Value:
    """The element of ``x`` for a window of each pixel; ``fill`` where there is none."""
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


def _iota(c: Context, d: int, dtype: DType) -> Value:
    """The index along dimension ``d`` of the result, with extents of 1 elsewhere."""
    return c.op("iota", shape=tuple(n if k == d else 1 for k, n in enumerate(c.shape)), axis=d, dtype=dtype)


_NEUTRAL = {"add": 0, "sub": 0, "mul": 1, "floor_div": 1, "ceil_div": 1}  # neutral second operands


def _of(c: Context, name: str, x: Value, by: Value | Size) -> Value:
    """An integer op in the dtype of ``x``."""
    if isinstance(by, int) and _NEUTRAL.get(name) == by:
        return x
    return c.op(name, x, c.value(by, element(x)))
