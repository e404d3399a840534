"""Broadcasting of symbolic shapes."""

from __future__ import annotations

from mlirfuse.core.errors import ShapeError
from mlirfuse.frontend.numpy.source import fail
from mlirfuse.ir.graph import Value
from mlirfuse.ir.sizes import Size


def broadcast_shape(t, shapes, what: str = "operands could not be broadcast together") -> tuple[Size, ...]:
    """The broadcast shape; unifies equal extents. Raises ShapeError with NumPy's message."""
    rank = max(len(s) for s in shapes)
    out = []
    for k in range(rank):
        found: Size = 1
        for shape in shapes:
            if k < len(shape):
                extent = shape[len(shape) - 1 - k]
                if extent == 1 or extent is found or extent == found:
                    continue
                if found == 1:
                    found = extent
                elif not t.unify(found, extent):
                    seen = " ".join(
                        "(" + ",".join(map(str, t.hints_of(s))) + ("," if len(s) == 1 else "") + ")" for s in shapes
                    )
                    fail(ShapeError, f"{what} with shapes {seen}")
                elif isinstance(extent, int):
                    found = extent
        out.append(found)
    return tuple([t.canonical(n) for n in reversed(out)])


def aligned(t, values: list[Value], what="operands could not be broadcast together") -> list[Value]:
    """The values with equal ranks (or rank 0); checks that their extents broadcast."""
    first = None
    for value in values:
        if value.shape:
            if first is None:
                first = value.shape
            elif value.shape != first:
                break
    else:
        return values
    shapes = [t.shape(v) for v in values if v.shape]
    broadcast_shape(t, shapes, what)
    rank = max(len(s) for s in shapes)
    return [t.emit("expand_dims", v, axes=tuple(range(rank - v.rank))) if 0 < v.rank < rank else v for v in values]


def broadcast_value(t, value: Value, shape) -> Value:
    shape = tuple(shape)
    if t.shape(value) == shape:
        return value
    return t.emit("broadcast_in_dim", value, shape=shape, dims=tuple(range(len(shape) - value.rank, len(shape))))


def full_shape(t, values) -> tuple[Size, ...]:
    return broadcast_shape(t, [t.shape(v) for v in values])


def fits(t, own, shape) -> bool:
    """Whether a value of shape ``own`` broadcasts to ``shape``; unifies equal extents."""
    return len(own) <= len(shape) and all(n == 1 or t.unify(n, m) for n, m in zip(reversed(own), reversed(shape)))
