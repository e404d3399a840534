"""Joining and splitting arrays."""

from __future__ import annotations

import itertools
import math
import operator

import numpy as np

from mlirfuse.analysis.work import CODE_OF_A_MOVE, MOVE
from mlirfuse.core.errors import ShapeError
from mlirfuse.frontend.numpy.axes import axis_of, size_of, slice_bound
from mlirfuse.frontend.numpy.functions.arguments import joined
from mlirfuse.frontend.numpy.functions.shaping import (
    atleast_1d,
    atleast_2d,
    atleast_3d,
    expand_dims,
    moveaxis,
    ravel,
    reshape,
)
from mlirfuse.frontend.numpy.operands import asarray, fresh, value_of, wrap
from mlirfuse.frontend.numpy.registry import implements
from mlirfuse.frontend.numpy.source import fail
from mlirfuse.frontend.numpy.traced_array import TracedArray
from mlirfuse.frontend.numpy.ufuncs import into_out
from mlirfuse.frontend.numpy.views import Slice
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Value
from mlirfuse.passes.segmentation.legality import LARGEST


@implements(np.concatenate, np.concat)
def concatenate(arrays, axis=0, out=None, *, dtype=None, casting="same_kind"):
    arrays = list(arrays)
    if not arrays:
        fail(ValueError, "need at least one array to concatenate")
    if dtype is not None and out is not None:
        fail(TypeError, "concatenate() only takes `out` or `dtype` as an argument, but both were provided.")
    t, arrays, to = joined(arrays, dtype, casting)
    if axis is None:
        arrays, axis = [reshape(x, -1) for x in arrays], 0
    if any(x.ndim == 0 for x in arrays):
        fail(ValueError, "zero-dimensional arrays cannot be concatenated")
    rank = arrays[0].ndim
    axis = axis_of(axis, rank)
    for k, x in enumerate(arrays):
        if x.ndim != rank:
            fail(
                ShapeError,
                "all the input array dimensions except for the concatenation axis must match "
                "exactly, but along dimension 0, the array "
                f"at index 0 has {rank} dimension(s) and the array at index {k} has {x.ndim} dimension(s)",
            )
        for d, (n, m) in enumerate(zip(t.shape(arrays[0]._value), t.shape(x._value))):
            if d != axis and not t.unify(n, m):
                fail(
                    ShapeError,
                    "all the input array dimensions except for the concatenation axis must match "
                    f"exactly, but along dimension {d}, "
                    f"the array at index 0 has size {t.hint(n)} and the array at index {k} has size {t.hint(m)}",
                )
    values = [value_of(t, x, to) for x in arrays]
    if len(values) == 1:
        return into_out(wrap(t, fresh(t, values[0])), out, "concatenate", casting=casting)
    created = _joined(t, values, axis)
    created.shape = tuple(t.canonical(n) for n in created.shape)
    return into_out(wrap(t, created), out, "concatenate", casting=casting)


def _joined(t, values: list[Value], axis: int) -> Value:
    """The concatenation of values of one dtype. A kernel tests an element against each operand in turn, so code size
    and time grow with their number: many operands are concatenated in groups first, sqrt(n) groups of sqrt(n)."""
    run = math.isqrt(len(values))
    if len(values) > _MOST_JOINED:
        runs = [values[k : k + run] for k in range(0, len(values), run)]
        values = [_joined(t, some, axis) if len(some) > 1 else some[0] for some in runs]
    return t.emit("concatenate", *values, axis=axis)


_MOST_JOINED = LARGEST // (MOVE * CODE_OF_A_MOVE)  # operands of one op: more make the kernel too large


@implements(np.stack)
def stack(arrays, axis=0, out=None, *, dtype=None, casting="same_kind"):
    t, arrays, to = joined(list(arrays), dtype, casting)
    axis = axis_of(axis, arrays[0].ndim + 1)
    for x in arrays[1:]:
        if x.ndim != arrays[0].ndim or not all(
            t.unify(n, m) for n, m in zip(t.shape(x._value), t.shape(arrays[0]._value))
        ):
            fail(ShapeError, "all input arrays must have the same shape")
    parts = [expand_dims(asarray(x, to.numpy), axis) for x in arrays]
    return concatenate(parts, axis, out, casting=casting)


@implements(np.vstack)
def vstack(tup, *, dtype=None, casting="same_kind"):
    arrays = [atleast_2d(x) for x in tup]
    return concatenate(arrays, 0, dtype=dtype, casting=casting)


@implements(np.hstack)
def hstack(tup, *, dtype=None, casting="same_kind"):
    arrays = [atleast_1d(x) for x in tup]
    return concatenate(arrays, 0 if arrays[0].ndim == 1 else 1, dtype=dtype, casting=casting)


@implements(np.dstack)
def dstack(tup):
    return concatenate([atleast_3d(x) for x in tup], 2)


@implements(np.column_stack)
def column_stack(tup):
    return concatenate([atleast_2d(x).T if asarray(x).ndim < 2 else x for x in tup], 1)


@implements(np.append)
def append(arr, values, axis=None):
    if axis is None:
        return concatenate([ravel(arr), ravel(values)])
    return concatenate([arr, values], axis)


def _slice(x, axis: int, start, n) -> TracedArray:
    """``n`` slices along an axis from ``start``, as a view."""
    shape = x._trace.shape(x._value)
    starts = tuple(start if k == axis else 0 for k in range(len(shape)))
    extents = tuple(x._trace.extent(n) if k == axis else m for k, m in enumerate(shape))
    return x.step(Slice(starts, extents, (1,) * len(shape)))


def slices(x, axis: int, sizes) -> list:
    """Consecutive slices, as views."""
    out, start = [], 0
    for n in sizes:
        out.append(_slice(x, axis, start, n))
        start = start + x._trace.extent(n)
    return out


def _split(a, indices_or_sections, axis, even: bool):
    x = asarray(a)
    t = x._trace
    axis = axis_of(axis, x.ndim)
    extent = t.shape(x._value)[axis]
    if isinstance(indices_or_sections, (tuple, list, np.ndarray)):
        points = [slice_bound(t, size_of(t, p), extent) for p in indices_or_sections]
        bounds = [0, *points, extent]  # not necessarily ascending
        return [_slice(x, axis, a, b - a if t.decide(a, "<", b) else 0) for a, b in itertools.pairwise(bounds)]
    sections = operator.index(indices_or_sections)
    if sections <= 0:
        fail(ValueError, "number sections must be larger than 0.")
    if even or t.hint(extent) % sections == 0:
        if not t.unify(sz.mod(extent, sections), 0) if even else not t.decide(sz.mod(extent, sections), "==", 0):
            fail(ShapeError, "array split does not result in an equal division")
        return slices(x, axis, [sz.floordiv(t.canonical(extent), sections)] * sections)
    extent = t.concretise(extent)
    each, extra = divmod(extent, sections)
    return slices(x, axis, [each + 1] * extra + [each] * (sections - extra))


@implements(np.split)
def split(ary, indices_or_sections, axis=0):
    return _split(ary, indices_or_sections, axis, True)


@implements(np.array_split)
def array_split(ary, indices_or_sections, axis=0):
    return _split(ary, indices_or_sections, axis, False)


@implements(np.vsplit)
def vsplit(ary, indices_or_sections):
    return split(ary, indices_or_sections, 0)


@implements(np.hsplit)
def hsplit(ary, indices_or_sections):
    return split(ary, indices_or_sections, 1 if asarray(ary).ndim > 1 else 0)


@implements(np.dsplit)
def dsplit(ary, indices_or_sections):
    return split(ary, indices_or_sections, 2)


@implements("unstack")
def unstack(x, /, *, axis=0):
    x = moveaxis(x, axis, 0)
    return tuple(x[k] for k in range(len(x)))
