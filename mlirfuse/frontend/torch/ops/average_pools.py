"""Pools of means: shifted reads of the image, or a reduction where windows are large and stand apart; gradients are
gathered from the windows that a place is in, in a fixed order. 16-bit floats sum in float32."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence

from mlirfuse.frontend.torch.ops.rules import Context, Unsupported, rule, without_negative_zero
from mlirfuse.frontend.torch.ops.windows import MOST, Along, dimensions, of, read, shifted, windows_around
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Value
from mlirfuse.ir.sizes import Size

Numbers = Sequence[int] | int
_FEW = 16  # elements of a window that are read one by one though it touches others


def _along(rank: int, n: int, *numbers: Numbers) -> list[Along]:
    """Windows over the last ``n`` of ``rank`` dimensions, by kernel, stride (none: the kernel) and padding. Raises
    :class:`Unsupported` for sizes that are symbols."""
    kernel, stride, padding = (_each(n, given) for given in numbers)
    if not all(isinstance(x, int) for x in (*kernel, *stride, *padding)):
        raise Unsupported("windows of sizes that are not known")
    return dimensions(rank, kernel, stride or kernel, padding, [1] * n)


def _each(n: int, given: Numbers) -> list[int]:
    given = list(given) if isinstance(given, Sequence) else [given]
    return given * (n // len(given)) if given else []


def _avg_pool(c: Context, x: Value, kernel: Numbers, stride: Numbers = (), padding: Numbers = 0,
              ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None, *,
              n: int) -> Value:  # fmt: skip
    """Over the last ``n`` dimensions."""
    dims = _along(x.rank, n, kernel, stride, padding)
    divisor = _divisor(c, dims, x.shape, c.shape, ceil_mode, count_include_pad, divisor_override)
    return means(c, x, dims, divisor, ceil_mode or any(a.padding for a in dims))


@rule("mlirfuse.avg_pool_backward.default")
def avg_pool_backward(c: Context, gradient: Value, size: Sequence[Size], channels_last: bool, kernel: Numbers,
                      stride: Numbers, padding: Numbers, ceil_mode: bool, count_include_pad: bool,
                      divisor_override: int | None) -> Value:  # fmt: skip
    dims = _along(gradient.rank, len(size), kernel, stride, padding)
    divisor = _divisor(c, dims, c.shape, gradient.shape, ceil_mode, count_include_pad, divisor_override)
    return spread(c, gradient, dims, divisor)


def means(c: Context, x: Value, dims: Sequence[Along], divisor: Value | int, padded: bool = False) -> Value:
    """The sums of windows over ``divisor``. ``padded``: some end outside of the image."""
    wide, total = accumulator(c), None
    x = c.b.cast(x, wide)
    count, touching = math.prod(a.kernel for a in dims), not padded and all(a.kernel == a.stride for a in dims)
    if count > _FEW and touching:
        total = _reduced(c, x, dims)
    elif count > MOST:
        raise Unsupported("large windows that overlap, or end outside of the image")
    else:
        fill, parts = c.b.constant(0, wide) if padded else None, itertools.product(*(range(a.kernel) for a in dims))
        for at in parts:
            part = shifted(c, x, dims, at, fill)
            total = part if total is None else c.op("add", total, part)
    assert total is not None
    return c.b.cast(c.op("div", without_negative_zero(c, total), c.value(divisor, wide)), c.dtype)


def accumulator(c: Context) -> dt.DType:
    """The type that sums are in. Raises :class:`Unsupported` for integers."""
    if not c.dtype.is_float:
        raise Unsupported("means of integers")
    return c.dtype.compute


def _reduced(c: Context, x: Value, dims: Sequence[Along]) -> Value:
    """The sums of windows that touch each other and nothing else, as a reduction."""
    first = x.rank - len(dims)
    shape = list(x.shape[:first])
    for a in dims:
        shape += [c.shape[a.d], a.kernel]
        x = c.b.slice(x, a.d, 0, sz.mul(c.shape[a.d], a.kernel))
    return c.op("sum", c.b.reshape(x, tuple(shape)), axes=tuple(range(first + 1, len(shape), 2)))


def _divisor(c: Context, dims: Sequence[Along], image: Sequence[Size], pooled: Sequence[Size], ceil_mode: bool,
             with_padding: bool, override: int | None) -> Value | int:  # fmt: skip
    """What each window's sum is divided by: a number, or an integer for each window."""
    if override is not None:
        return override
    if not ceil_mode and (with_padding or not any(a.padding for a in dims)):
        return math.prod(a.kernel for a in dims)
    found: Value | None = None
    for a in dims:
        extent = tuple(n if d == a.d else 1 for d, n in enumerate(pooled))
        begin = of(c, "sub", of(c, "mul", c.op("iota", shape=extent, axis=a.d, dtype=dt.i64), a.stride), a.padding)
        end = of(c, "minimum", of(c, "add", begin, a.kernel), image[a.d] + a.padding)
        if not with_padding:
            begin, end = of(c, "maximum", begin, 0), of(c, "minimum", end, image[a.d])
        count = c.op("sub", end, begin)
        found = count if found is None else c.op("mul", found, count)
    assert found is not None
    return found


def spread(c: Context, gradient: Value, dims: Sequence[Along], divisor: Value | int) -> Value:
    """The gradient of a pool of means: at each place the sum of those of the windows that it is in, from the first on.
    A number is divided by at the end."""
    wide = accumulator(c)
    gradient = c.b.cast(gradient, wide)
    if isinstance(divisor, Value):
        gradient = c.op("div", gradient, c.b.cast(divisor, wide))
    around = [windows_around(c, a) for a in dims]
    if math.prod(map(len, around)) > MOST:
        raise Unsupported("windows that overlap much")
    none, total = c.b.constant(0, wide), None
    for windows in itertools.product(*around):
        part = read(c, gradient, windows, 0)
        inside = [w.inside for w in windows if w.inside is not None]
        for condition in inside:
            part = c.op("where", condition, part, none)
        total = part if total is None else c.op("add", total, part)
    assert total is not None
    if isinstance(divisor, int):
        total = c.op("div", total, c.b.constant(divisor, wide))
    return c.b.cast(total, c.dtype)


for _n in (2, 3):
    rule(f"aten.avg_pool{_n}d.default")(functools.partial(_avg_pool, n=_n))
