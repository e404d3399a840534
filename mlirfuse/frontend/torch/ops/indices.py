"""Index tensors of indexing ops."""

from __future__ import annotations

from collections.abc import Sequence

from mlirfuse.core import config
from mlirfuse.frontend.torch.ops.rules import Context, Unsupported, element, rule
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.builder import Builder
from mlirfuse.ir.graph import Value
from mlirfuse.ir.sizes import Size


def positions(index: Value) -> Value:
    """``index``. Raises :class:`Unsupported` for boolean masks and other non-integers."""
    if index.dtype not in (dt.i32, dt.i64):
        raise Unsupported(f"indices of dtype {index.dtype}")
    return index


def checked(c: Context, index: Value, extent: Size, dim: int, wraps: bool = False) -> Value:
    """The indices ``index`` along dimension ``dim`` of this ``extent``, checked on a CPU and where
    ``config.check_indices`` is on: the call raises IndexError for one out of bounds. ``wraps``: negative ones count
    from the end."""
    index = positions(index)
    if c.out.device.type != "cpu" and not config.check_indices:
        return c.op("position", index, extent=extent, axis=dim, wraps=wraps)
    return c.op("position", index, extent=extent, axis=dim, checked=True, wraps=wraps)


def joined(c: Context, x: Value, indices: Sequence[Value | None]) -> tuple[Value, Value, int]:
    """``x`` with the indexed dimensions as one, an index into that one, checked, and its dimension. Negative indices
    count from the end. Raises :class:`Unsupported` where the indexed dimensions are not adjacent, and for boolean
    masks."""
    given = {dim: positions(index) for dim, index in enumerate(indices) if index is not None}
    first, count = min(given), len(given)
    if list(given) != list(range(first, first + count)):
        raise Unsupported("indices of dimensions that are not adjacent")
    at = [checked(c, index, x.shape[dim], dim, wraps=True) for dim, index in given.items()]
    if count == 1:
        return x, at[0], first
    linear: Value = c.b.cast(at[0], dt.i64)
    for dim, index in zip(list(given)[1:], at[1:]):
        linear = c.b.elementwise("add", c.b.elementwise("mul", linear, c.b.size(x.shape[dim])), c.b.cast(index, dt.i64))
    extent = sz.product(x.shape[first : first + count])
    return c.b.reshape(x, (*x.shape[:first], extent, *x.shape[first + count :])), linear, first


@rule("mlirfuse.checked.default")
def checked_values(c: Context, x: Value, holds: Value, message: str) -> Value:
    """``x`` with a run-time check of ``holds``: an index into an axis of extent 1 is out of bounds where it is
    false."""
    zero, outside = c.b.constant(0, dt.i32), c.b.constant(1, dt.i32)
    index = c.b.elementwise("where", holds, zero, outside)
    index = c.op("position", index, extent=1, checked=True, message=message)
    return c.b.elementwise("where", c.b.elementwise("eq", index, zero), x, c.b.constant(0, element(x)))


def along_dimensions(b: Builder, indices: Sequence[Value | None]) -> dict[int, Value]:
    """The indices by dimension, where the indexed dimensions are adjacent and each index tensor varies along a
    dimension of its own: ``x[:, rows[:, None], columns]``. A single index tensor has any shape, several are vectors.
    Raises :class:`Unsupported` for others."""
    given = {place: positions(index) for place, index in enumerate(indices) if index is not None}
    count, first = len(given), min(given, default=0)
    if list(given) != list(range(first, first + count)):
        raise Unsupported("indices of dimensions that are not adjacent")
    if count <= 1:
        return given
    for own, (place, index) in enumerate(given.items()):
        shape = (1,) * (count - index.rank) + index.shape
        if len(shape) > count or any(n != 1 for d, n in enumerate(shape) if d != own):
            raise Unsupported("indices that vary along several dimensions")
        given[place] = b.reshape(index, (shape[own],))
    return given
