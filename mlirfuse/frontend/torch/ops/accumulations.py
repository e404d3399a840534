"""Values added to rows that positions choose. On a GPU sums depend on the order in which values come: where algorithms
shall be deterministic they are torch's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mlirfuse.frontend.torch.ops.rules import Context, Unsupported, axis, element, rule
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.graph import Value


def _add(c: Context, x: Value, index: Value, values: Value) -> Value:
    """``values`` added to the rows of ``x``; ``index`` of rank 1, negative ones from the end."""
    if c.out.device.type != "cpu" and torch.are_deterministic_algorithms_enabled():
        raise Unsupported("additions at positions that are deterministic are torch's own on a GPU")
    if index.dtype not in (dt.i32, dt.i64):
        raise Unsupported(f"positions that are {index.dtype}")
    rows = c.op("position", index, extent=x.shape[0], checked=True)
    return c.op("index_put_accumulate", x, rows, values)


@rule("aten.index_add.default")
def index_add(c: Context, x: Value, dim: int, index: Value, source: Value, *, alpha: Any = 1) -> Value:
    if x.rank == 0 or source.rank != x.rank or index.rank != 1 or axis(dim, x.rank):
        raise Unsupported("positions along another dimension than the first")
    values = source if alpha == 1 else c.elementwise("mul", source, alpha, dtype=element(x))
    none = c.op("lt", index, c.b.constant(0, element(index)))  # here they do not count from the end
    return _add(c, x, c.op("where", none, c.b.cast(c.b.size(x.shape[0]), element(index)), index), values)


@rule("aten.index_put.default", "aten._unsafe_index_put.default")
def index_put(c: Context, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool = False) -> Value:
    index, *others = indices
    if not accumulate or index is None or any(i is not None for i in others) or index.rank != 1:
        raise Unsupported("values that are put, or positions in several dimensions")
    shape = (index.shape[0], *x.shape[1:])
    return _add(c, x, index, c.b.broadcast_to(c.b.cast(values, element(x)), shape))


@rule("aten.embedding_dense_backward.default")
def embedding_dense_backward(
    c: Context, gradient: Value, index: Value, rows: Any, padding: int, scale_by_frequency: bool
) -> Value:
    if scale_by_frequency:
        raise Unsupported("gradients that are divided by how often a row is used")
    width, count = gradient.shape[-1], index.numel
    values, at = c.b.reshape(gradient, (count, width)), c.b.reshape(index, (count,))
    if padding >= 0:
        kept = c.op("expand_dims", c.op("ne", at, c.b.constant(padding, element(at))), axes=(1,))
        values = c.op("where", kept, values, c.b.constant(0, element(values)))
    zeros = c.op("full", c.b.constant(0, element(gradient)), shape=c.shape)
    return _add(c, zeros, at, values)
