"""Parsing of axis, shape and slice arguments."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, overload

import numpy as np

from mlirfuse.core.errors import TraceError
from mlirfuse.frontend.numpy.created_array import known_elements
from mlirfuse.frontend.numpy.source import as_numpys, fail
from mlirfuse.frontend.numpy.symint import SymInt
from mlirfuse.frontend.numpy.traced_array import TracedArray
from mlirfuse.frontend.numpy.traced_scalar import LeafScalar
from mlirfuse.ir.sizes import Size


def axis_of(axis, rank: int) -> int:
    """The axis as a non-negative int. Raises AxisError if it is out of bounds."""
    number = operator.index(axis)
    if not -rank <= number < rank:
        raise as_numpys(np.exceptions.AxisError(number, rank))
    return number % rank


@overload
def axes_of(axis: None, rank: int) -> None: ...


@overload
def axes_of(axis: int | Sequence[Any] | np.ndarray, rank: int) -> tuple[int, ...]: ...


def axes_of(axis: Any, rank: int) -> tuple[int, ...] | None:
    """The axes (None, an int, a tuple) as non-negative ints; None stays None."""
    if axis is None:
        return None
    if isinstance(axis, (tuple, list, range, np.ndarray)):
        axes = tuple(axis_of(a, rank) for a in axis)
        if len(set(axes)) != len(axes):
            fail(ValueError, "duplicate value in 'axis'")
        return axes
    return (axis_of(axis, rank),)


def reduced_axes(axis: Any, rank: int) -> tuple[int, ...] | None:
    """:func:`axes_of` for a reduction, which accepts 0 and -1 as the axis of a 0-d array, as NumPy's ufuncs do."""
    if rank == 0 and not isinstance(axis, (tuple, list, type(None))) and operator.index(axis) in (0, -1):
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
    """A shape argument (an int, a sequence) as symbolic sizes."""
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


def slice_bound(t, bound: Size, extent: Size) -> Size:
    """The bound of a slice with a positive step, clamped to the extent as in Python."""
    if t.decide(bound, "<", 0):
        bound = bound + extent
        return bound if t.decide(bound, ">=", 0) else 0
    return bound if t.decide(bound, "<=", extent) else extent
