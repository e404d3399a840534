"""Pools of maxima (:mod:`mlirfuse.frontend.torch.rewrites.pools`): shifted reads of the image, and of what is told of
windows.

A place of the image reads the windows that it is in, rather than a window adding to a place: no place is written twice,
and the sums are the same in each call.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from mlirfuse.frontend.torch.ops.rules import Context, Unsupported, element, rule
from mlirfuse.frontend.torch.ops.windows import Along, Window, counted, dimensions, of, read, shifted, windows_around
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.dtypes import DType
from mlirfuse.ir.graph import Value
from mlirfuse.ir.sizes import Size

_NONE = 255  # an offset that no window has


@rule("mlirfuse.max_pool.default")
def max_pool(c: Context, x: Value, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int],
             dilation: Sequence[int], ceil_mode: bool) -> list[Value]:  # fmt: skip
    """The first of equal maxima, and the last NaN, as torch's loops over windows find them."""
    dims = dimensions(x.rank, kernel, stride, padding, dilation)
    fill = _least(c, element(x)) if ceil_mode or any(padding) else None
    offset, best = _first_inside(c, dims), None
    for number, at in enumerate(itertools.product(*map(range, kernel))):
        value = shifted(c, x, dims, at, fill)
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


def _least(c: Context, dtype: DType) -> Value:
    number = -math.inf if dtype.is_float else 0 if dtype.kind == "u" else -(2 ** (dtype.bits - 1))
    return c.b.constant(number, dtype)


def _first_inside(c: Context, dims: Sequence[Along]) -> Value:
    """The offset of each window's first element that is in the image: that of what has no larger one than padding."""
    found = c.b.constant(0, dt.i32)
    for a in dims:
        if a.padding:
            first = of(c, "mul", counted(c, a.d, dt.i32), -a.stride)
            outside = of(c, "maximum", of(c, "add", first, a.padding), 0)
            found = c.op("add", found, of(c, "mul", of(c, "ceil_div", outside, a.dilation), a.weight))
    return c.b.cast(found, dt.u8)


@rule("mlirfuse.max_pool_indices.default")
def max_pool_indices(c: Context, offsets: Value, size: Sequence[Size], kernel: Sequence[int], stride: Sequence[int],
                    padding: Sequence[int], dilation: Sequence[int], ceil_mode: bool) -> Value:  # fmt: skip
    offsets, found = c.b.cast(offsets, dt.i64), c.b.constant(0, dt.i64)
    for a, extent in zip(dimensions(offsets.rank, kernel, stride, padding, dilation), size):
        number = of(c, "mod", of(c, "floor_div", offsets, a.weight), a.kernel)
        first = of(c, "sub", of(c, "mul", counted(c, a.d, dt.i64), a.stride), a.padding)
        place = c.op("add", first, of(c, "mul", number, a.dilation))
        found = c.op("add", of(c, "mul", found, extent), place)
    return found


@rule("mlirfuse.max_pool_backward.default")
def max_pool_backward(c: Context, gradient: Value, offsets: Value, size: Sequence[Size], kernel: Sequence[int],
                      stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
                      ceil_mode: bool) -> Value:  # fmt: skip
    """In the order of torch's loop over windows, in the type that it adds in."""
    if offsets.dtype is not dt.u8:
        raise Unsupported("indices that are not computed from offsets")
    dims, wide = dimensions(c.out.dim(), kernel, stride, padding, dilation), c.dtype.compute
    none, total = c.b.constant(0, wide), None
    for windows in itertools.product(*(windows_around(c, a) for a in dims)):
        hit = c.op("eq", read(c, offsets, windows, _NONE), _offset(c, windows))
        part = c.op("where", hit, c.b.cast(read(c, gradient, windows, 0), wide), none)
        total = part if total is None else c.op("add", total, part)
    assert total is not None
    return c.b.cast(total, c.dtype)


def _offset(c: Context, windows: Sequence[Window]) -> Value:
    """The offset of each place of the image in a window; ``_NONE`` where it is not in it."""
    found: Value | None = None
    for window in windows:
        part = of(c, "mul", window.number, window.along.weight)
        if window.inside is not None:
            part = c.op("where", window.inside, part, c.b.constant(_NONE, dt.u32))
        found = part if found is None else c.op("add", found, part)
    assert found is not None
    return c.b.cast(of(c, "minimum", found, _NONE), dt.u8)
