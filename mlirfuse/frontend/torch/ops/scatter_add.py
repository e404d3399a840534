"""Scatter-adds: values added to rows at given indices. On a GPU the order of sums varies: with deterministic algorithms
enabled, torch's own ops run. Where the indices are the same in every call, each row sums its values instead."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from mlirfuse.frontend.torch.ops import affine_gathers, constant_gathers
from mlirfuse.frontend.torch.ops.indices import along_dimensions, checked, joined
from mlirfuse.frontend.torch.ops.rules import Context, Unsupported, axis, element, rule
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Value
from mlirfuse.ir.known_values import known_value


def _add(c: Context, x: Value, index: Value, values: Value) -> Value:
    """``values`` added to the rows of ``x`` at the 1-d ``index``."""
    return _add_along(c, x, 0, index, values)


def _gathered(c: Context, x: Value, dim: int, index: Value, values: Value) -> Value | None:
    """``values`` added at the 1-d ``index`` along ``dim``, each row's in a fixed order; None where the index is not
    constant, or has no order."""
    known = known_value(index) if element(x) != dt.bool_ else None
    if known is None:
        return None
    found = constant_gathers.summed(
        c, c.b.cast(values, element(x)), dim, known, x.shape[dim], functools.partial(c.op, "take", index, axis=0)
    )
    return None if found is None else c.op("add", x, found)


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
    if (found := _gathered(c, x, dim, index, values)) is not None:
        return found
    _can_add(c, x)
    at = checked(c, index, x.shape[dim], dim)
    if not dim:
        return c.op("index_put_accumulate", x, at, values)
    own = tuple(index.shape[0] if d == dim else 1 for d in range(x.rank))
    return _add_elements(c, x, {dim: c.b.reshape(at, own)}, values, values.shape)


@rule("aten.index_put.default")
def index_put(c: Context, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool = False) -> Value:
    if not accumulate:
        raise Unsupported("values that are stored")
    if (found := _gathered_along(c, x, indices, values)) is not None:
        return found
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
    if accumulate and (found := _gathered_along(c, x, indices, values)) is not None:
        return found
    first, alone = indices[0], sum(index is not None for index in indices) == 1
    if not accumulate or (first is not None and alone):
        return index_put(c, x, indices, values, accumulate)
    along = along_dimensions(c.b, indices)
    if any(index.rank != 1 for index in along.values()):
        raise Unsupported("indices of a dimension that vary along several")
    shape = tuple(along[dim].shape[0] if dim in along else n for dim, n in enumerate(x.shape))
    _in_any_order(c)
    own = {dim: tuple(n if k == dim else 1 for k, n in enumerate(shape)) for dim in along}
    at = {dim: c.op("position", c.b.reshape(along[dim], own[dim]), extent=x.shape[dim]) for dim in along}
    return _add_elements(c, x, at, values, shape)


def _gathered_along(c: Context, x: Value, indices: Sequence[Value | None], values: Value) -> Value | None:
    """``values`` added at constant indices along some dimensions, one after the other, in a fixed order; None where
    they are not constant, or have no order."""
    try:
        along = along_dimensions(c.b, indices)
    except Unsupported:
        return None
    known = {dim: known_value(index) for dim, index in along.items()}
    if any(index is None or index.ndim != 1 for index in known.values()) or element(x) == dt.bool_:
        return None
    shape = tuple(along[dim].shape[0] if dim in along else n for dim, n in enumerate(x.shape))
    found: Value | None = c.b.broadcast_to(c.b.cast(values, element(x)), shape)
    for dim in sorted(along, reverse=True):
        index, extent = along[dim], x.shape[dim]
        numbers = known[dim]
        if found is None or numbers is None or not isinstance(extent, int):
            return None
        if (numbers < 0).any():  # they count from the end
            numbers = np.where(numbers < 0, numbers + extent, numbers)
            zero, whole = (c.b.constant(n, element(index)) for n in (0, extent))
            index = c.op("where", c.op("lt", index, zero), c.op("add", index, whole), index)
        found = constant_gathers.summed(c, found, dim, numbers, extent, functools.partial(c.op, "take", index, axis=0))
    return None if found is None else c.op("add", x, found)


@rule("aten.scatter_add.default")
def scatter_add(c: Context, x: Value, dim: int, index: Value, source: Value) -> Value:
    """As in the gradient of a gather: each value has an index of its own, or each row, where the index is broadcast."""
    if not x.rank:
        raise Unsupported("a scalar")
    dim = axis(dim, x.rank)
    for d, n in enumerate(index.shape):  # the first values of a source that has more
        source = c.b.slice(source, d, 0, n)
    row = _broadcast_row(index, dim)
    if row is not None and all(d == dim or n == m for d, (n, m) in enumerate(zip(index.shape, x.shape))):
        row = c.b.reshape(row, (index.shape[dim],))
        if not dim:
            return _add(c, x, row, source)
        if (found := _gathered(c, x, dim, row, source)) is not None:
            return found
    if (found := _gathered_affinely(c, x, dim, index, source)) is not None:
        return found
    _can_add(c, x)
    return _add_elements(c, x, {dim: checked(c, index, x.shape[dim], dim)}, source, index.shape)


def _gathered_affinely(c: Context, x: Value, dim: int, index: Value, source: Value) -> Value | None:
    """``source`` added at ``index`` along ``dim``, in a fixed order; None where the index is no function of an affine
    form of the elements' indices, or other than ``x`` along other dimensions."""
    if element(x) == dt.bool_ or any(d != dim and n != m for d, (n, m) in enumerate(zip(index.shape, x.shape))):
        return None
    found = affine_gathers.summed(c, c.b.cast(source, element(x)), dim, index, x.shape[dim])
    return None if found is None else c.op("add", x, found)


def _broadcast_row(index: Value, dim: int) -> Value | None:
    """The vector along ``dim`` whose elements ``index`` repeats along all other dimensions."""
    if index.op is None or index.op.name != "broadcast_in_dim":
        return None
    (given,) = index.op.operands
    dims = dict(zip(index.op.attrs["dims"], given.shape))
    if dims.get(dim) != index.shape[dim] or any(n != 1 for d, n in dims.items() if d != dim):
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
