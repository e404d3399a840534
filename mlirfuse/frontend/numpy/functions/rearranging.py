"""Rearranging, joining, splitting, repeating and padding."""

from __future__ import annotations

import builtins
import itertools
import math
import operator

import numpy as np

from mlirfuse.analysis.work import CODE_OF_A_MOVE, MOVE
from mlirfuse.core.errors import ShapeError, UnsupportedError
from mlirfuse.frontend.numpy.functions.shaping import expand_dims, is_fortran, reshape, swapaxes
from mlirfuse.frontend.numpy.indexing import slice_bound
from mlirfuse.frontend.numpy.memory_order import forced
from mlirfuse.frontend.numpy.operands import asarray, fresh, operand, trace_of, value_of, wrap
from mlirfuse.frontend.numpy.promotion import array_kind, dtype_of, result_type_of
from mlirfuse.frontend.numpy.registry import implements
from mlirfuse.frontend.numpy.shapes import axes_of, axis_of, flat_axis, no_bools, size_of
from mlirfuse.frontend.numpy.source import fail, unsupported
from mlirfuse.frontend.numpy.stored import checked, stored
from mlirfuse.frontend.numpy.traced_array import LeafArray, LeafScalar, TracedArray
from mlirfuse.frontend.numpy.ufuncs import check_cast, into_out
from mlirfuse.frontend.numpy.views import Slice
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.dtypes import DType
from mlirfuse.ir.graph import Value
from mlirfuse.passes.segmentation.legality import LARGEST


def joined(arrays, dtype=None, casting="same_kind") -> tuple:
    """The operands as arrays, so that Python's numbers have NumPy's types, and their common dtype. Raises TypeError
    where ``casting`` forbids the cast to ``dtype``."""
    t = trace_of(*arrays)
    arrays = [operand(t, x) for x in arrays]
    to = result_type_of(tuple(array_kind(x) for x in arrays)) if dtype is None else dtype_of(dtype)
    arrays = [asarray(x) for x in arrays]
    for x in arrays if dtype is not None or casting != "same_kind" else ():
        check_cast(x.dtype, to.numpy, "array data", casting)
    return t, arrays, to


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
    axis = axis_of(no_bools(axis), rank)
    words = (
        "all the input array dimensions except for the concatenation axis must match exactly, but along dimension {}, "
        "the array at index 0 has {} and the array at index {} has {}"
    )
    for k, x in enumerate(arrays):
        if x.ndim != rank:
            fail(ShapeError, words.format(0, f"{rank} dimension(s)", k, f"{x.ndim} dimension(s)"))
        for d, (n, m) in enumerate(zip(t.shape(arrays[0]._value), t.shape(x._value))):
            if d != axis and not t.unify(n, m):
                fail(ShapeError, words.format(d, f"size {t.hint(n)}", k, f"size {t.hint(m)}"))
    values = [value_of(t, x, to) for x in arrays]
    if len(values) == 1:
        return into_out(wrap(t, fresh(t, values[0])), out, "concatenate", casting=casting)
    created = _joined(t, values, axis)
    t.refresh(created, t.canonical)
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


@implements(np.array_split)
def array_split(ary, indices_or_sections, axis=0):
    x = asarray(ary)
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
    if t.decide(sz.mod(extent, sections), "==", 0):
        return slices(x, axis, [sz.floordiv(t.canonical(extent), sections)] * sections)
    extent = t.concretise(extent)
    each, extra = divmod(extent, sections)
    return slices(x, axis, [each + 1] * extra + [each] * (sections - extra))


@implements(np.rot90)
def rot90(m, k=1, axes=(0, 1)):
    x = asarray(m)
    a, b = axes_of(tuple(axes), x.ndim)
    k = operator.index(k) % 4
    if k == 0:
        return x.seen_whole()
    if k == 2:
        return np.flip(x, (a, b))
    return swapaxes(np.flip(x, b), a, b) if k == 1 else np.flip(swapaxes(x, a, b), b)


@implements(np.roll)
def roll(a, shift, axis=None):
    x = asarray(a)
    if axis is None:
        return reshape(roll(reshape(x, -1), shift, 0), x.shape)
    axes = axis if isinstance(axis, (tuple, list)) else (axis,)
    shifts = shift if isinstance(shift, (tuple, list)) else (shift,) * len(axes)
    axes = axes if len(axes) > 1 else tuple(axes) * len(shifts)
    t = x._trace
    x = TracedArray(t, fresh(t, x.value))
    for s, ax in zip(shifts, axes):
        ax = axis_of(ax, x.ndim)
        extent = t.shape(x._value)[ax]
        s = size_of(t, s)
        if extent in (0, 1) or s == 0:
            continue
        if isinstance(s, int) and t.decide(extent, ">", abs(s)):
            cut = s if s > 0 else extent + s
        else:
            cut = t.concretise(s) % t.concretise(extent)
            extent = t.canonical(extent)
        if cut == 0:
            continue
        x = TracedArray(t, t.emit("roll", x.value, axis=ax, shift=cut))
    return x


@implements(np.tile)
def tile(A, reps):
    x = asarray(A)
    t = x._trace
    reps = [size_of(t, r) for r in (reps if isinstance(reps, (tuple, list)) else (reps,))]
    rank = builtins.max(x.ndim, len(reps))
    reps = [1] * (rank - len(reps)) + reps
    shape = (1,) * (rank - x.ndim) + t.shape(x._value)
    between = tuple(itertools.chain.from_iterable(zip(reps, shape)))
    value = t.emit("reshape", x.value, shape=shape) if rank != x.ndim else x.value
    value = t.emit("broadcast_in_dim", value, shape=between, dims=tuple(range(1, 2 * rank, 2)))
    value = t.emit("reshape", value, shape=tuple(t.extent(sz.mul(r, n)) for r, n in zip(reps, shape)))
    return TracedArray(t, value)


@implements(np.repeat)
def repeat(a, repeats, axis=None):
    x, axis = flat_axis(asarray(a), no_bools(axis))
    if (isinstance(repeats, TracedArray) and repeats.ndim) or (
        isinstance(repeats, (list, tuple, np.ndarray)) and np.size(repeats) != 1
    ):
        fail(UnsupportedError, "np.repeat with an array of counts has a shape that depends on values: use one count")
    t = x._trace
    repeats = np.asarray(repeats).item() if isinstance(repeats, (list, tuple, np.ndarray)) else repeats
    count = size_of(t, repeats)
    shape = t.shape(x._value)
    between = (*shape[: axis + 1], count, *shape[axis + 1 :])
    dims = tuple(k if k <= axis else k + 1 for k in range(len(shape)))
    value = t.emit("broadcast_in_dim", x.value, shape=between, dims=dims)
    value = t.emit("reshape", value, shape=(*shape[:axis], t.extent(sz.mul(shape[axis], count)), *shape[axis + 1 :]))
    return TracedArray(t, forced(t, value, "C"))


@implements(np.pad)
def pad(array, pad_width, mode="constant", constant_values=0, **kwargs):
    x = asarray(array)
    created = _padded(x, pad_width, mode, constant_values, kwargs)
    forced(x._trace, created._value, "F" if is_fortran(x) else "C")
    return created


def _padded(x, pad_width, mode: str, constant_values, kwargs: dict) -> TracedArray:
    t = x._trace
    if isinstance(pad_width, dict):
        pad_width = [pad_width.get(k, pad_width.get(k - x.ndim, (0, 0))) for k in range(x.ndim)]
    widths = _pairs(pad_width, x.ndim, "pad_width", lambda n: size_of(t, no_bools(n)))
    if any(isinstance(n, int) and n < 0 for pair in widths for n in pair):
        fail(ValueError, "index can't contain negative values")
    if mode == "edge" or (mode in ("reflect", "wrap", "symmetric") and kwargs.get("reflect_type", "even") != "odd"):
        return _pad_by_index(x, widths, mode)
    if mode not in ("constant", "empty"):
        unsupported(f"np.pad with mode '{mode}'", "use constant, edge, reflect, symmetric or wrap")
    values = _pairs(constant_values, x.ndim, "constant_values", lambda n: n)
    result = x.value
    fills = {id(v) if isinstance(v, TracedArray) else repr(v): v for pair in values for v in pair}
    if len(fills) == 1:
        low, high = zip(*widths) if widths else ((), ())
        fill = _filling(t, next(iter(fills.values())), x._value.dtype)
        result = t.emit("pad", result, fill, low=tuple(low), high=tuple(high))
        t.refresh(result, t.extent)
        return TracedArray(t, result)
    none = (0,) * x.ndim
    for k, side in itertools.product(range(x.ndim), (0, 1)):
        if widths[k][side] != 0:
            added = (*none[:k], widths[k][side], *none[k + 1 :])
            low, high = (none, added) if side else (added, none)
            fill = _filling(t, values[k][side], x._value.dtype)
            result = t.emit("pad", result, fill, low=low, high=high)
    t.refresh(result, t.extent)
    return TracedArray(t, result)


def _filling(t, value, dtype: DType) -> Value:
    """One of the ``constant_values`` as an element, converted as NumPy does: from an array to elements."""
    if isinstance(value, TracedArray) and value.ndim:
        unsupported("np.pad with an array as constant_values", "give numbers")
    known = value if isinstance(value, TracedArray) else np.asarray(value)[()]
    if dtype.is_integer and isinstance(value, LeafArray):  # whether it fits depends on its value
        element = value.known()
        known = value if element is None else element[()]
    if isinstance(value, LeafScalar) and value._weak is int:
        known = checked(t, value, dtype)
    return value_of(t, stored(t, known, dtype), dtype, True)


def _pairs(given, rank: int, name: str, convert) -> list[tuple]:
    """A pair for each axis, from any of NumPy's notations. Raises ValueError for other shapes."""
    given = given.tolist() if isinstance(given, np.ndarray) else given
    given = given if isinstance(given, (tuple, list)) else [given]
    pairs = given if isinstance(given[0], (tuple, list)) else [given]
    pairs = [tuple(map(convert, pair)) * (2 if len(pair) == 1 else 1) for pair in pairs]
    pairs = pairs * rank if len(pairs) == 1 else pairs
    if len(pairs) != rank or any(len(pair) != 2 for pair in pairs):
        fail(ValueError, f"{name}: give one number, a pair, or a pair for each of the {rank} axes")
    return pairs


def _pad_by_index(x, widths, mode: str):
    t = x._trace
    if all(low == 0 and high == 0 for low, high in widths):
        return TracedArray(t, fresh(t, x.value))
    for axis, (low, high) in enumerate(widths):
        if low == 0 and high == 0:
            continue
        n = t.shape(x._value)[axis]
        if n == 0:
            fail(ValueError, f"can't extend empty axis {axis} using modes other than 'constant' or 'empty'")
        total = t.extent(low + n + high)
        position = t.emit("sub", t.emit("iota", shape=(total,), axis=0, dtype=dt.i64), t.builder.size(low))
        if mode == "edge":
            position = t.emit("minimum", t.emit("maximum", position, t.builder.size(0)), t.builder.size(n - 1))
        elif mode == "wrap":
            position = t.emit("mod", position, t.builder.size(n))
        elif n == 1:
            position = t.emit("mul", position, t.builder.size(0))
        else:
            period = sz.mul(n, 2) - (2 if mode == "reflect" else 0)
            position = t.emit("mod", position, t.builder.size(period))
            mirrored = t.emit("sub", t.builder.size(period - (0 if mode == "reflect" else 1)), position)
            position = t.emit("minimum", position, mirrored)
        x = TracedArray(t, t.emit("take", x.value, position, axis=axis))
    return x
