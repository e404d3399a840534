"""Scatter-adds: values added to rows at given indices. On a GPU the order of sums varies: with deterministic algorithms
enabled, torch's own ops run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from mlirfuse.frontend.torch.ops.indices import along_dimensions, checked, joined
from mlirfuse.frontend.torch.ops.rules import Context, Unsupported, axis, element, rule
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Value
from mlirfuse.ir.known_values import known_value

_MOST_READERS = 64  # elements that one thread sums sequentially


def _add(c: Context, x: Value, index: Value, values: Value) -> Value:
    """``values`` added to the rows of ``x`` at the 1-d ``index``."""
    _can_add(c, x)
    return c.op("index_put_accumulate", x, checked(c, index, x.shape[0], 0), values)


def _can_add(c: Context, x: Value) -> None:
    """Raises :class:`Unsupported` where torch's own op adds to ``x``."""
    if element(x) == dt.bool_:
        raise Unsupported("sums of bools, which are true where one of them is")
    _in_any_order(c)


def _in_any_order(c: Context) -> None:
    if c.out.device.type != "cpu" and torch.are_deterministic_algorithms_enabled():
        raise Unsupported("deterministic scatter-adds on a GPU run as torch's own")


@rule("aten.index_add.default")
def index_add(c: Context, x: Value, dim: int, index: Value, source: Value, *, alpha: Any = 1) -> Value:
    if x.rank == 0 or source.rank != x.rank or index.rank != 1:
        raise Unsupported("a scalar, or an index that is none of a dimension")
    values = source if alpha == 1 else c.elementwise("mul", source, alpha, dtype=element(x))
    return _add_along(c, x, axis(dim, x.rank), index, values)


def _add_along(c: Context, x: Value, dim: int, index: Value, values: Value) -> Value:
    """``values`` added at the 1-d ``index`` along ``dim``."""
    if not dim:
        return _add(c, x, index, values)
    _can_add(c, x)
    at = checked(c, index, x.shape[dim], dim)
    own = tuple(index.shape[0] if d == dim else 1 for d in range(x.rank))
    return _add_elements(c, x, {dim: c.b.reshape(at, own)}, values, values.shape)


@rule("aten.index_put.default")
def index_put(c: Context, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool = False) -> Value:
    if not accumulate:
        raise Unsupported("values that are stored")
    rows, at, dim = joined(c, x, indices)
    _can_add(c, x)
    before, behind = rows.shape[:dim], rows.shape[dim + 1 :]
    values = c.b.broadcast_to(c.b.cast(values, element(x)), (*before, *at.shape, *behind))
    values, at = c.b.reshape(values, (*before, at.numel, *behind)), c.b.reshape(at, (at.numel,))
    if dim:
        own = tuple(at.numel if d == dim else 1 for d in range(rows.rank))
        added = _add_elements(c, rows, {dim: c.b.reshape(at, own)}, values, values.shape)
    else:
        added = c.op("index_put_accumulate", rows, at, values)
    return c.b.reshape(added, x.shape)


@rule("aten._unsafe_index_put.default")
def unsafe_index_put(
    c: Context, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool = False
) -> Value:
    """Indices of several dimensions, as in the gradient of resizing an image: flattened to linear indices."""
    first, alone = indices[0], sum(index is not None for index in indices) == 1
    if not accumulate or (first is not None and alone and known_value(first) is None):
        return index_put(c, x, indices, values, accumulate)
    along = along_dimensions(c.b, indices)
    if any(index.rank != 1 for index in along.values()):
        raise Unsupported("indices of a dimension that vary along several")
    shape = tuple(along[dim].shape[0] if dim in along else n for dim, n in enumerate(x.shape))
    # On a GPU one kernel that adds atomically is faster than a reduction for each dimension (benchmarks/HISTORY.md).
    in_order = c.out.device.type == "cpu" or torch.are_deterministic_algorithms_enabled()
    if in_order and (readers := ascending_readers(along, x.shape)):
        gathered = c.b.broadcast_to(c.b.cast(values, element(x)), shape)
        for dim, most in readers.items():
            gathered = gather_readers(c, gathered, dim, along[dim], x.shape[dim], most)
        return c.op("add", x, gathered)
    _in_any_order(c)
    own = {dim: tuple(n if k == dim else 1 for k, n in enumerate(shape)) for dim in along}
    at = {dim: c.op("position", c.b.reshape(along[dim], own[dim]), extent=x.shape[dim]) for dim in along}
    return _add_elements(c, x, at, values, shape)


@rule("aten.scatter_add.default")
def scatter_add(c: Context, x: Value, dim: int, index: Value, source: Value) -> Value:
    """As in the gradient of a gather: each value has an index of its own, or each row, where the index is broadcast."""
    if not x.rank:
        raise Unsupported("a scalar")
    dim = axis(dim, x.rank)
    for d, n in enumerate(index.shape):  # the first values of a source that has more
        source = c.b.slice(source, d, 0, n)
    row = _broadcast_row(index)
    if row is not None and dim == 0 and index.shape[1:] == x.shape[1:]:
        return _add(c, x, c.b.reshape(row, (index.shape[0],)), source)
    _can_add(c, x)
    return _add_elements(c, x, {dim: checked(c, index, x.shape[dim], dim)}, source, index.shape)


def _broadcast_row(index: Value) -> Value | None:
    """The vector whose elements ``index`` repeats along all dimensions but the first."""
    if index.op is None or index.op.name != "broadcast_in_dim":
        return None
    (given,) = index.op.operands
    dims = dict(zip(index.op.attrs["dims"], given.shape))
    if dims.get(0) != index.shape[0] or any(n != 1 for d, n in dims.items() if d):
        return None
    return given


def _add_elements(c: Context, x: Value, at: dict[int, Value], values: Value, shape: Sequence[sz.Size]) -> Value:
    """``x`` with ``values`` of this ``shape`` added where ``at`` says along some dimensions, and at their own indices
    along the others."""
    place: Value = c.b.constant(0, dt.i64)
    stride: sz.Size = 1
    for dim in reversed(range(x.rank)):
        own = tuple(n if k == dim else 1 for k, n in enumerate(shape))
        along = c.b.cast(at[dim], dt.i64) if dim in at else c.op("iota", shape=own, axis=dim, dtype=dt.i64)
        place = c.op("add", place, c.op("mul", along, c.b.size(stride)))
        stride = sz.mul(stride, x.shape[dim])
    linear, of = (
        c.b.reshape(c.b.broadcast_to(v, shape), (sz.product(shape),)) for v in (place, c.b.cast(values, element(x)))
    )
    return c.b.reshape(c.op("index_put_accumulate", c.b.reshape(x, (x.numel,)), linear, of), x.shape)


def ascending_readers(along: dict[int, Value], shape: Sequence[sz.Size]) -> dict[int, int] | None:
    """For the gradient of a gather with constant ascending indices, as in resizing or repeating: the maximal number of
    equal indices along each dimension, the last dimension first. None where an index is not constant, or so many are
    equal that one thread's sum takes longer than scattering."""
    most = {}
    for dim in sorted(along, reverse=True):
        index = known_value(along[dim])
        extent = shape[dim]
        if index is None or not index.size or not isinstance(extent, int):
            return None
        if (index < 0).any() or (index >= extent).any() or (np.diff(index) < 0).any():
            return None
        most[dim] = int(np.bincount(index).max())
        if most[dim] > _MOST_READERS:
            return None
    return most


def gather_readers(c: Context, values: Value, dim: int, index: Value, extent: sz.Size, most: int) -> Value:
    """The sums of ``values`` along ``dim`` over equal ``index``, for each number below ``extent``, in ascending order.
    ``index``: ascending; ``most``: the maximal number of equal ones."""
    index = c.op("expand_dims", c.b.cast(index, dt.i64), axes=(0,))
    count = index.shape[1]
    each = c.op("iota", shape=(extent, 1), axis=0, dtype=dt.i64)

    def number_of(compare: str) -> Value:
        return c.op("sum", c.b.cast(c.op(compare, index, each), dt.i64), axes=(1,), keepdims=False)

    first, end = number_of("lt"), number_of("le")
    # The readers of each element are stacked in a leading axis, so that a kernel's accesses follow the result's layout.
    at = c.op("add", c.op("iota", shape=(most, 1), axis=0, dtype=dt.i64), c.op("expand_dims", first, axes=(0,)))
    there = c.op("lt", at, c.op("expand_dims", end, axes=(0,)))
    at = c.b.reshape(c.op("minimum", at, c.b.constant(count - 1, dt.i64)), (sz.mul(most, extent),))
    shape = (*values.shape[:dim], most, extent, *values.shape[dim + 1 :])
    own = tuple(n if d in (dim, dim + 1) else 1 for d, n in enumerate(shape))
    read = c.b.reshape(c.op("take", values, at, axis=dim), shape)
    read = c.op("where", c.b.reshape(there, own), read, c.b.constant(0, element(values)))
    return c.op("sum", read, axes=(dim,), keepdims=False)


@rule("aten.embedding_dense_backward.default")
def embedding_dense_backward(
    c: Context, gradient: Value, index: Value, rows: Any, padding: int, scale_by_frequency: bool
) -> Value:
    if scale_by_frequency:
        raise Unsupported("gradients scaled by the frequency of rows")
    width, count = gradient.shape[-1], index.numel
    values, at = c.b.reshape(gradient, (count, width)), c.b.reshape(index, (count,))
    if padding >= 0:
        kept = c.op("expand_dims", c.op("ne", at, c.b.constant(padding, element(at))), axes=(1,))
        values = c.op("where", kept, values, c.b.constant(0, element(values)))
    zeros = c.op("full", c.b.constant(0, element(gradient)), shape=c.shape)
    return _add(c, zeros, at, values)
