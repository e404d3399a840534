"""The positions by which tensors are indexed."""

from __future__ import annotations

from collections.abc import Sequence

from mlirfuse.core import config
from mlirfuse.frontend.torch.ops.rules import Context, Unsupported, element, rule
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.builder import Builder
from mlirfuse.ir.graph import Value
from mlirfuse.ir.sizes import Size


def positions(index: Value) -> Value:
    """``index``. Raises :class:`Unsupported` for what chooses otherwise than by numbers."""
    if index.dtype not in (dt.i32, dt.i64):
        raise Unsupported(f"positions that are {index.dtype}")
    return index


def checked(c: Context, index: Value, extent: Size, dim: int, wraps: bool = False) -> Value:
    """The positions ``index`` along dimension ``dim``, of this ``extent``: an IndexError of the call if one is not
    there, on a CPU and where ``config.check_indices`` is on. ``wraps``: negative ones count from the end."""
    index = positions(index)
    if c.out.device.type != "cpu" and not config.check_indices:
        return c.op("position", index, extent=extent, axis=dim, wraps=wraps)
    return c.op("position", index, extent=extent, axis=dim, checked=True, wraps=wraps)


@rule("mlirfuse.checked.default")
def checked_values(c: Context, x: Value, holds: Value, message: str) -> Value:
    """An index of an axis of one element, which is not there where ``holds`` is false, carries the check."""
    zero, outside = c.b.constant(0, dt.i32), c.b.constant(1, dt.i32)
    index = c.b.elementwise("where", holds, zero, outside)
    index = c.op("position", index, extent=1, checked=True, message=message)
    return c.b.elementwise("where", c.b.elementwise("eq", index, zero), x, c.b.constant(0, element(x)))


def along_dimensions(b: Builder, indices: Sequence[Value | None]) -> dict[int, Value]:
    """The positions along each dimension that is indexed, where these are neighbours and each one's positions differ
    along one dimension of their own: ``x[:, rows[:, None], columns]``. Those along one dimension have any shape, those
    along several are vectors. Raises :class:`Unsupported` for others."""
    given = {place: positions(index) for place, index in enumerate(indices) if index is not None}
    count, first = len(given), min(given, default=0)
    if list(given) != list(range(first, first + count)):
        raise Unsupported("positions along dimensions that are no neighbours")
    if count <= 1:
        return given
    for own, (place, index) in enumerate(given.items()):
        shape = (1,) * (count - index.rank) + index.shape
        if len(shape) > count or any(n != 1 for d, n in enumerate(shape) if d != own):
            raise Unsupported("positions that differ along several dimensions")
        given[place] = b.reshape(index, (shape[own],))
    return given
