"""Diagonals of matrices: read, and inserted."""

from __future__ import annotations

from mlirfuse.frontend.torch.ops.rules import Context, Unsupported, axis, element, rule
from mlirfuse.frontend.torch.ops.shapes import in_own_memory
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.graph import Value


def _order(rank: int, dim1: int, dim2: int) -> tuple[int, ...]:
    """The dimensions with those of the rows and columns last."""
    rows, columns = axis(dim1, rank), axis(dim2, rank)
    return (*(k for k in range(rank) if k not in (rows, columns)), rows, columns)


@rule("aten.diagonal.default", view=True)
def diagonal(c: Context, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    """Reads one column of each row."""
    x = c.b.permute(x, _order(x.rank, dim1, dim2))
    rows, columns = x.rank - 2, x.rank - 1
    length = c.shape[-1]
    if not isinstance(offset, int):
        raise Unsupported("a diagonal of a symbolic number")
    x = c.b.slice(x, rows, max(-offset, 0), length)
    x = c.b.slice(x, columns, max(offset, 0), length)
    each = c.op("iota", shape=(length, 1), axis=0, dtype=dt.i32 if isinstance(length, int) else dt.i64)
    at = c.b.broadcast_to(each, (*x.shape[:-1], 1))
    return c.op("squeeze", c.op("take_along_axis", x, at, axis=columns), axes=(columns,))


@rule("aten.diagonal_scatter.default")
def diagonal_scatter(c: Context, x: Value, source: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    """Each element compares its column with its row's on the diagonal."""
    if not isinstance(offset, int):
        raise Unsupported("a diagonal of a symbolic number")
    if 0 in source.shape:
        return in_own_memory(c, x)
    order = _order(x.rank, dim1, dim2)
    x = c.b.permute(x, order)
    rows, columns = x.shape[-2:]
    others = (1,) * (x.rank - 2)
    row = c.op("iota", shape=(*others, rows, 1), axis=x.rank - 2, dtype=dt.i64)
    column = c.op("iota", shape=(*others, 1, columns), axis=x.rank - 1, dtype=dt.i64)
    hit = c.op("eq", column, c.op("add", row, c.b.constant(offset, dt.i64)) if offset else row)
    at = c.op("sub", c.op("iota", shape=(rows,), axis=0, dtype=dt.i64), c.b.constant(max(-offset, 0), dt.i64))
    at = c.op("maximum", at, c.b.constant(0, dt.i64))
    at = c.op("minimum", at, c.b.size(source.shape[-1] - 1))
    source = c.op("take", c.b.cast(source, element(x)), at, axis=source.rank - 1)
    found = c.op("where", hit, c.op("expand_dims", source, axes=(x.rank - 1,)), x)
    return c.b.permute(found, tuple(order.index(k) for k in range(x.rank)))
