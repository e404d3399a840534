"""Rearranging elements: flip, roll, tile, repeat."""

from __future__ import annotations

import builtins
import operator

import numpy as np

from mlirfuse.core.errors import UnsupportedError
from mlirfuse.frontend.numpy.axes import axes_of, axis_of, size_of
from mlirfuse.frontend.numpy.functions.shaping import broadcast_arrays, reshape, swapaxes
from mlirfuse.frontend.numpy.memory_order import forced
from mlirfuse.frontend.numpy.operands import asarray, fresh
from mlirfuse.frontend.numpy.registry import implements
from mlirfuse.frontend.numpy.source import fail
from mlirfuse.frontend.numpy.traced_array import TracedArray
from mlirfuse.frontend.numpy.views import Slice
from mlirfuse.ir import sizes as sz


@implements(np.flip)
def flip(m, axis=None):
    x = asarray(m)
    shape = x._trace.shape(asarray(m)._value)
    axes = axes_of(axis, x.ndim) if axis is not None else tuple(range(x.ndim))
    if not shape:
        return x[()]
    if not axes:
        return x.seen_whole()
    start = tuple(n - 1 if k in axes and n != 0 else 0 for k, n in enumerate(shape))
    step = tuple(-1 if k in axes and n not in (0, 1) else 1 for k, n in enumerate(shape))
    return x.step(Slice(start, shape, step))


@implements(np.fliplr)
def fliplr(m):
    return flip(m, 1)


@implements(np.flipud)
def flipud(m):
    return flip(m, 0)


@implements(np.rot90)
def rot90(m, k=1, axes=(0, 1)):
    x = asarray(m)
    a, b = axes_of(tuple(axes), x.ndim)
    k = operator.index(k) % 4
    if k == 0:
        return x.seen_whole()
    if k == 2:
        return flip(x, (a, b))
    return swapaxes(flip(x, b), a, b) if k == 1 else flip(swapaxes(x, a, b), b)


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
    between, dims = [], []
    for r, n in zip(reps, shape):
        between.append(r)
        dims.append(len(between))
        between.append(n)
    value = t.emit("reshape", x.value, shape=shape) if rank != x.ndim else x.value
    value = t.emit("broadcast_in_dim", value, shape=tuple(between), dims=tuple(dims))
    value = t.emit("reshape", value, shape=tuple(t.extent(sz.mul(r, n)) for r, n in zip(reps, shape)))
    return TracedArray(t, value)


@implements(np.repeat)
def repeat(a, repeats, axis=None):
    x = asarray(a)
    if axis is None:
        x, axis = reshape(x, -1), 0
    if (isinstance(repeats, TracedArray) and repeats.ndim) or (
        isinstance(repeats, (list, tuple, np.ndarray)) and np.size(repeats) != 1
    ):
        fail(UnsupportedError, "np.repeat with an array of counts has a shape that depends on values: use one count")
    t = x._trace
    repeats = np.asarray(repeats).item() if isinstance(repeats, (list, tuple, np.ndarray)) else repeats
    axis, count = axis_of(axis, x.ndim), size_of(t, repeats)
    shape = t.shape(x._value)
    between = (*shape[: axis + 1], count, *shape[axis + 1 :])
    dims = tuple(k if k <= axis else k + 1 for k in range(len(shape)))
    value = t.emit("broadcast_in_dim", x.value, shape=between, dims=dims)
    value = t.emit("reshape", value, shape=(*shape[:axis], t.extent(sz.mul(shape[axis], count)), *shape[axis + 1 :]))
    return TracedArray(t, forced(t, value, "C"))


@implements(np.meshgrid)
def meshgrid(*xi, copy=True, sparse=False, indexing="xy"):
    rank = len(xi)
    places = [1, 0, *range(2, rank)] if indexing == "xy" and rank > 1 else range(rank)
    out = [reshape(x, tuple(-1 if k == place else 1 for k in range(rank))) for x, place in zip(xi, places)]
    if not sparse and out:
        out = broadcast_arrays(*out)
    return tuple(TracedArray(x._trace, fresh(x._trace, x.value)) for x in out) if copy else tuple(out)
