"""Reductions, and row ops: softmax and its relatives are decomposed before lowering."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mlirfuse.frontend.torch.ops.rules import Context, Unsupported, axes, axis, element, rule, without_negative_zero
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Value

Dims = Sequence[int] | int | None


def _require_elements(x: Value) -> None:
    if any(n == 0 for n in x.shape):
        raise Unsupported("a tensor without elements")


def _reduce(c: Context, name: str, x: Value, dims: Dims, keepdim: bool, **more: Any) -> Value:
    _require_elements(x)
    if not x.rank:
        x, dims, keepdim = c.op("expand_dims", x, axes=(0,)), None, False
    return c.op(name, x, axes=axes(dims, x.rank), keepdims=keepdim, **more)


@rule("aten.sum.dim_IntList")
def total(
    c: Context, x: Value, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None, name: str = "sum"
) -> Value:
    wide = c.dtype.compute
    found = _reduce(c, name, c.b.cast(x, wide), dim, keepdim)
    return c.b.cast(without_negative_zero(c, found), c.dtype)


@rule("aten.mean.dim")
def mean(c: Context, x: Value, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    return total(c, x, dim, keepdim, name="mean")


@rule("aten.sum.default")
def total_of_all(c: Context, x: Value, *, dtype: Any = None) -> Value:
    return total(c, x)


@rule("aten.mean.default")
def mean_of_all(c: Context, x: Value, *, dtype: Any = None) -> Value:
    return total(c, x, name="mean")


@rule("aten.prod.dim_int")
def prod(c: Context, x: Value, dim: Dims, keepdim: bool = False, *, dtype: Any = None) -> Value:
    return c.b.cast(_reduce(c, "prod", c.b.cast(x, c.dtype.compute), dim, keepdim), c.dtype)


@rule("aten.prod.default")
def prod_of_all(c: Context, x: Value, *, dtype: Any = None) -> Value:
    return prod(c, x, None)


@rule("aten.amax.default")
def amax(c: Context, x: Value, dim: Dims = (), keepdim: bool = False) -> Value:
    return _reduce(c, "max", x, dim, keepdim)


@rule("aten.amin.default")
def amin(c: Context, x: Value, dim: Dims = (), keepdim: bool = False) -> Value:
    return _reduce(c, "min", x, dim, keepdim)


@rule("aten.max.default")
def max_of_all(c: Context, x: Value) -> Value:
    return amax(c, x)


@rule("aten.min.default")
def min_of_all(c: Context, x: Value) -> Value:
    return amin(c, x)


@rule("aten.argmax.default")
def argmax(c: Context, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    return _reduce(c, "argmax", x, dim, keepdim)


@rule("aten.argmin.default")
def argmin(c: Context, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    return _reduce(c, "argmin", x, dim, keepdim)


@rule("aten.max.dim")
def max_with_index(c: Context, x: Value, dim: int, keepdim: bool = False) -> list[Value]:
    return [_reduce(c, "max", x, dim, keepdim), _reduce(c, "argmax", x, dim, keepdim)]


@rule("aten.min.dim")
def min_with_index(c: Context, x: Value, dim: int, keepdim: bool = False) -> list[Value]:
    return [_reduce(c, "min", x, dim, keepdim), _reduce(c, "argmin", x, dim, keepdim)]


def _truth(c: Context, name: str, x: Value, dims: Dims, keepdim: bool) -> Value:
    if c.dtype is not dt.bool_:  # for uint8 torch's result is uint8
        raise Unsupported(f"{name} of {x.dtype}")
    if isinstance(dims, Sequence) and not dims:  # over no dimension, where sums and maxima are over all
        return c.b.elementwise("ne", x, c.b.constant(0, element(x)))
    return _reduce(c, name, x, dims, keepdim)


@rule("aten.any.dim", "aten.any.dims", "aten.any.default")
def any_(c: Context, x: Value, dim: Dims = None, keepdim: bool = False) -> Value:
    return _truth(c, "any", x, dim, keepdim)


@rule("aten.all.dim", "aten.all.dims", "aten.all.default")
def all_(c: Context, x: Value, dim: Dims = None, keepdim: bool = False) -> Value:
    return _truth(c, "all", x, dim, keepdim)


def _variance(c: Context, name: str, x: Value, dim: Dims, correction: Any, keepdim: bool) -> Value:
    """The variance or standard deviation. Of equal elements it is exactly 0, as by eager's Welford updates: callers
    compare it with 0 and divide by it, and by noise that makes random numbers. Where the graph adds a positive number
    to the variance, noise does no harm, and kernels need not avoid it."""
    correction = 1 if correction is None else correction
    if correction != int(correction):
        raise Unsupported("a non-integer correction")
    count = sz.product(x.shape[k] for k in (axes(dim, x.rank) or range(x.rank))) if x.rank else 1
    wide = c.b.cast(x, element(x).compute)
    exact = name == "std" or not c.guarded
    if isinstance(count, int) and count <= correction:  # the squared deviations over 0: infinite, or NaN
        mean = _reduce(c, "var", wide, dim, keepdim, correction=0, exact_zero=exact)
        found = c.op("div", c.op("mul", mean, c.b.constant(count, wide.dtype)), c.b.constant(0, wide.dtype))
        return c.b.cast(found if name == "var" else c.op("sqrt", found), c.dtype)
    return c.b.cast(_reduce(c, name, wide, dim, keepdim, correction=int(correction), exact_zero=exact), c.dtype)


@rule("aten.var.correction")
def var(c: Context, x: Value, dim: Dims = None, *, correction: Any = None, keepdim: bool = False) -> Value:
    return _variance(c, "var", x, dim, correction, keepdim)


@rule("aten.std.correction")
def std(c: Context, x: Value, dim: Dims = None, *, correction: Any = None, keepdim: bool = False) -> Value:
    return _variance(c, "std", x, dim, correction, keepdim)


@rule("aten.var_mean.correction")
def var_mean(c: Context, x: Value, dim: Dims = None, *, correction: Any = None, keepdim: bool = False) -> list[Value]:
    return [_variance(c, "var", x, dim, correction, keepdim), total(c, x, dim, keepdim, name="mean")]


@rule("aten._softmax.default")
def softmax(c: Context, x: Value, dim: int, half_to_float: bool) -> Value:
    return _row(c, "softmax", x, dim=dim)


@rule("aten._log_softmax.default")
def log_softmax(c: Context, x: Value, dim: int, half_to_float: bool) -> Value:
    return _row(c, "log_softmax", x, dim=dim)


@rule("aten._softmax_backward_data.default")
def softmax_backward(c: Context, dy: Value, y: Value, dim: int, input_dtype: torch.dtype) -> Value:
    return _row(c, "softmax_backward", dy, y, dim=dim)


@rule("aten._log_softmax_backward_data.default")
def log_softmax_backward(c: Context, dy: Value, y: Value, dim: int, input_dtype: torch.dtype) -> Value:
    return _row(c, "log_softmax_backward", dy, y, dim=dim)


def _row(c: Context, name: str, *operands: Value, dim: int) -> Value:
    x = operands[0]
    _require_elements(x)
    if not x.rank:
        raise Unsupported("a softmax of a 0-d tensor")
    wide = c.dtype if c.dtype.bits >= element(x).bits else element(x)
    created = c.op(name, *(c.b.cast(v, wide) for v in operands), axis=axis(dim, x.rank))
    return c.b.cast(created, c.dtype)


_MOST_BINS = 1024
_MOST_COMPARED = 1 << 24  # numbers times bins: each bin compares all numbers


@rule("aten.histc.default")
def histogram(c: Context, x: Value, bins: int = 100, low: Any = 0, high: Any = 0) -> Value:
    """How many of the integers ``x`` are in each bin, as routers count the words of experts. A bin counts those whose
    bin is its number; integers in floats are exact, so that no rounding decides."""
    _require_elements(x)
    given = x.op.operands[0] if x.op is not None and x.op.name == "cast" else x
    if not element(given).is_integer or not float(low).is_integer() or not float(high).is_integer():
        raise Unsupported("numbers that are not integers")
    if element(x).bits < 32:
        raise Unsupported("integers that its operand's type rounds")
    low, width, count = int(low), int(high) - int(low), given.numel
    if not 0 < width <= 4 * _MOST_BINS or bins > _MOST_BINS:
        raise Unsupported("many bins, or bounds that the numbers decide")
    if not isinstance(count, int) or count * bins > _MOST_COMPARED:
        raise Unsupported("more numbers than each bin can compare")
    numbers = c.op("sub", c.b.cast(c.b.reshape(given, (1, count)), dt.i64), c.b.constant(low, dt.i64))
    inside = c.b.elementwise("logical_and", c.op("ge", numbers, c.b.constant(0, dt.i64)),
                             c.op("le", numbers, c.b.constant(width, dt.i64)))  # fmt: skip
    own = c.op("floor_div", c.op("mul", numbers, c.b.constant(bins, dt.i64)), c.b.constant(width, dt.i64))
    own = c.op("minimum", own, c.b.constant(bins - 1, dt.i64))  # the last bin has the upper bound too
    here = c.op("iota", shape=(bins, 1), axis=0, dtype=dt.i64)
    hit = c.b.elementwise("logical_and", inside, c.op("eq", own, here))
    return c.b.cast(c.op("sum", c.b.cast(hit, dt.i64), axes=(1,), keepdims=False), c.dtype)
