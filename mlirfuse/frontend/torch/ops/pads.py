"""Pads that repeat elements of the image, and their gradients, in a fixed order."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mlirfuse.frontend.torch.ops import constant_gathers
from mlirfuse.frontend.torch.ops.rules import Context, Unsupported, element, rule
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.graph import Value
from mlirfuse.ir.known_values import known_value

# The elements at positions of the padded image, which are counted from the first element and may be outside.
_Index = Callable[[Context, Value, int], Value]


def _reflected(c: Context, positions: Value, extent: int) -> Value:
    last = c.b.constant(extent - 1, element(positions))
    return c.op("sub", last, c.op("abs", c.op("sub", last, c.op("abs", positions))))


def _replicated(c: Context, positions: Value, extent: int) -> Value:
    first, last = (c.b.constant(n, element(positions)) for n in (0, extent - 1))
    return c.op("minimum", c.op("maximum", positions, first), last)


@rule("aten.reflection_pad1d.default", "aten.reflection_pad2d.default", "aten.reflection_pad3d.default")
def reflection_pad(c: Context, x: Value, padding: Sequence[Any]) -> Value:
    return _padded(c, x, padding, _reflected)


@rule("aten.replication_pad1d.default", "aten.replication_pad2d.default", "aten.replication_pad3d.default")
def replication_pad(c: Context, x: Value, padding: Sequence[Any]) -> Value:
    return _padded(c, x, padding, _replicated)


@rule("aten.reflection_pad1d_backward.default", "aten.reflection_pad2d_backward.default",
      "aten.reflection_pad3d_backward.default")  # fmt: skip
def reflection_pad_backward(c: Context, gradient: Value, x: Value, padding: Sequence[Any]) -> Value:
    return _gradient(c, gradient, padding, _reflected)


@rule("aten.replication_pad1d_backward.default", "aten.replication_pad2d_backward.default",
      "aten.replication_pad3d_backward.default")  # fmt: skip
def replication_pad_backward(c: Context, gradient: Value, x: Value, padding: Sequence[Any]) -> Value:
    return _gradient(c, gradient, padding, _replicated)


def _indices(c: Context, extents: Sequence[Any], padding: Sequence[Any], index: _Index) -> Iterator[tuple[int, Value]]:
    """Each padded dimension, the last first, and the elements that positions along it have. Raises
    :class:`Unsupported` for sizes that are not known."""
    for k, (low, high) in enumerate(zip(padding[::2], padding[1::2])):
        dim = len(extents) - 1 - k
        extent = extents[dim]
        if not all(isinstance(n, int) for n in (extent, low, high)):
            raise Unsupported("a pad of a size that is not known")
        if low or high:
            each = c.op("iota", shape=(extent + low + high,), axis=0, dtype=dt.i32)
            yield dim, index(c, c.op("sub", each, c.b.constant(low, dt.i32)), extent)


def _padded(c: Context, x: Value, padding: Sequence[Any], index: _Index) -> Value:
    given = x
    for dim, at in _indices(c, x.shape, padding, index):
        x = c.op("take", x, at, axis=dim)
    return c.op("copy", x) if x is given else x


def _gradient(c: Context, gradient: Value, padding: Sequence[Any], index: _Index) -> Value:
    given: Value | None = gradient
    for dim, at in _indices(c, c.shape, padding, index):
        known = known_value(at)
        if given is None or known is None:
            raise Unsupported("a pad of many elements")
        given = constant_gathers.summed(c, given, dim, known, c.shape[dim], functools.partial(c.op, "take", at, axis=0))
    if given is None:
        raise Unsupported("a pad of many elements")
    return c.op("copy", given) if given is gradient else given
