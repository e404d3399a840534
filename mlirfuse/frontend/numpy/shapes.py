"""Axes, shapes and bounds that are arguments, and broadcasting of symbolic shapes."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from mlirfuse.core.errors import ShapeError, TraceError
from mlirfuse.frontend.numpy.created_array import known_elements
from mlirfuse.frontend.numpy.source import as_numpys, fail
from mlirfuse.frontend.numpy.stand_in import SymInt
from mlirfuse.frontend.numpy.traced_array import LeafScalar, TracedArray
from mlirfuse.ir.graph import Value
from mlirfuse.ir.sizes import Size


def axis_of(axis, rank: int) -> int:
    """The axis as a non-negative int. Raises AxisError if it is out of bounds."""
    number = operator.index(axis)
    if not -rank <= number < rank:
        raise as_numpys(np.exceptions.AxisError(number, rank))
    return number % rank


def no_bools(numbers: Any) -> Any:
    """``numbers`` (one, a sequence). Raises TypeError where one is a bool: NumPy's C code takes none as an integer."""
    for n in numbers if isinstance(numbers, (tuple, list)) else (numbers,):
        if n.__class__ is bool or (isinstance(n, TracedArray) and not n.ndim and n._value.dtype.kind == "b"):
            fail(TypeError, "an integer is required")
    return numbers


def axes_of(axis: Any, rank: int) -> tuple[int, ...]:
    """The axes (an int, a tuple) as non-negative ints."""
    if isinstance(axis, (tuple, list, range, np.ndarray)):
        axes = tuple(axis_of(a, rank) for a in axis)
        if len(set(axes)) != len(axes):
            fail(ValueError, "duplicate value in 'axis'")
        return axes
    return (axis_of(axis, rank),)


def axes_or_all(axis: Any, rank: int) -> tuple[int, ...]:
    """:func:`axes_of`; all axes for None."""
    return tuple(range(rank)) if axis is None else axes_of(axis, rank)


def reduced_axes(axis: Any, rank: int, of_ufunc: bool = True) -> tuple[int, ...] | None:
    """:func:`axes_of` for a reduction; None, for all axes, stays None. A ufunc's accepts 0 and -1 as the axis of a 0-d
    array."""
    if axis is None:
        return None
    no_bools(axis)
    if of_ufunc and rank == 0 and not isinstance(axis, (tuple, list)) and operator.index(axis) in (0, -1):
        return ()
    return axes_of(axis, rank)


def size_of(t, n) -> Size:
    """An extent or an index as a symbolic size."""
    if n.__class__ is int:
        return n
    if n.__class__ is SymInt:
        return t.canonical(n.size)
    if isinstance(n, TracedArray) and t.session is not None and not (n.ndim or isinstance(n, LeafScalar)):
        n = t.session.size(n) if n._value.dtype.is_integer and known_elements(n) is None else n
        return n.size if n.__class__ is SymInt else operator.index(n)
    return operator.index(n)


def shape_of(t, shape) -> tuple[Size, ...]:
    """A shape argument (an int, a sequence) as symbolic sizes. Raises TypeError for bools."""
    no_bools(shape)
    if isinstance(shape, (tuple, list, range)):
        return tuple([size_of(t, n) for n in shape])
    if isinstance(shape, np.ndarray):
        return tuple(int(n) for n in shape.reshape(-1))
    known = known_elements(shape)
    if known is not None and known.ndim:
        return tuple(int(n) for n in known.reshape(-1))
    if isinstance(shape, TracedArray) and shape.ndim:
        fail(
            TraceError,
            "a shape that is a traced array: a shape must not depend on array values; use "
            "x.shape or arguments that are ints",
        )
    return (size_of(t, shape),)


def flat_axis(x: Any, axis) -> tuple[Any, int]:
    """The array and axis of a function along an axis: the flattened array where the axis is None."""
    return (np.reshape(x, -1), 0) if axis is None else (x, axis_of(axis, x.ndim))


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


def fits(t, own, shape) -> bool:
    """Whether a value of shape ``own`` broadcasts to ``shape``; unifies equal extents."""
    return len(own) <= len(shape) and all(n == 1 or t.unify(n, m) for n, m in zip(reversed(own), reversed(shape)))
