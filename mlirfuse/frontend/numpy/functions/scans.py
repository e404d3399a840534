"""Scans and sorts along an axis."""

from __future__ import annotations

import numpy as np

from mlirfuse.frontend.numpy.functions.elementwise import chosen
from mlirfuse.frontend.numpy.functions.reductions import accumulation_type, mean
from mlirfuse.frontend.numpy.functions.shaping import reshape, transpose
from mlirfuse.frontend.numpy.memory_order import forced, order_of_new, reduced, strides_of_array
from mlirfuse.frontend.numpy.operands import asarray, value_of
from mlirfuse.frontend.numpy.promotion import dtype_of
from mlirfuse.frontend.numpy.registry import METHODS, implements
from mlirfuse.frontend.numpy.shapes import axes_or_all, flat_axis, no_bools, reduced_axes, size_of
from mlirfuse.frontend.numpy.source import fail, unsupported
from mlirfuse.frontend.numpy.traced_array import TracedArray
from mlirfuse.frontend.numpy.ufuncs import into_out
from mlirfuse.frontend.numpy.views import Permute, read_along
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.dtypes import DType


def _flat(a, axis):
    """The array and axis of a scan or sort: flattened where the axis is None or the array 0-d."""
    x = asarray(a)
    return flat_axis(x if x.ndim else reshape(x, -1), no_bools(axis))


def _scan(row: str, a, axis, to: DType | None, out):
    x, axis = _flat(a, axis)
    t = x._trace
    value = t.emit(row, value_of(t, x, to or x._value.dtype), axis=axis)
    return into_out(TracedArray(t, value), out, row)


def _accumulation(row: str):
    @implements(getattr(np, row))
    def accumulation(a, axis=None, dtype=None, out=None):
        return _scan(row, a, axis, accumulation_type(asarray(a), dtype, out), out)

    return accumulation


cumsum, cumprod = _accumulation("cumsum"), _accumulation("cumprod")


def _extreme(row: str):
    return lambda x, axis, dtype, out: _scan(row, x, axis, None if dtype is None else dtype_of(dtype), out)


def _logaddexp(x, axis, dtype, out):
    own = x._value.dtype
    if dtype is None and not own.is_float:
        dtype = np.logaddexp.resolve_dtypes((own.numpy, own.numpy, None))[-1]
    return _scan("logcumsumexp", x, axis, own if dtype is None else dtype_of(dtype), out)


def _accumulate(function):
    """A ufunc's ``accumulate``, by a scan along one axis. Raises TypeError for a 0-d array, ValueError for several
    axes."""

    def accumulate(array, axis=0, dtype=None, out=None):
        x = asarray(array)
        if not x.ndim:
            fail(TypeError, "cannot accumulate on a scalar")
        axes = reduced_axes(axis, x.ndim)
        if (x.ndim if axes is None else len(axes)) != 1:
            fail(ValueError, "accumulate does not allow multiple axes")
        return function(x, 0 if axes is None else axes[0], dtype, out)

    return accumulate


METHODS |= {
    (ufunc, "accumulate"): _accumulate(function)
    for ufunc, function in (
        (np.add, cumsum), (np.multiply, cumprod), (np.maximum, _extreme("cummax")), (np.minimum, _extreme("cummin")),
        (np.logaddexp, _logaddexp),
    )
}  # fmt: skip


@implements(np.argsort)
def argsort(a, axis=-1, kind=None, order=None, *, stable=None):
    x, axis = _flat(a, axis)
    value = x._trace.emit("argsort", x.value, axis=axis, stable=_stable(kind, stable))
    return TracedArray(x._trace, value)


def _stable(kind: str | None, stable: bool | None) -> bool:
    """Whether the sort must be stable."""
    if kind is not None and kind not in ("quicksort", "stable", "mergesort"):
        unsupported(f"kind={kind!r}", "use 'quicksort' or 'stable'")
    return bool(stable) or kind in ("stable", "mergesort")


@implements(np.sort)
def sort(a, axis=-1, kind=None, order=None, *, stable=None):
    x, axis = flat_axis(asarray(a), axis)
    t = x._trace
    strides = strides_of_array(t, x)  # a copy of the array is sorted, in the array's memory order
    dims = order_of_new(t, strides, x.value.shape)
    there = [] if dims == tuple(range(x.ndim)) else [Permute(dims)]
    ordered = t.emit("sort", read_along(t, x.value, there), axis=dims.index(axis), stable=_stable(kind, stable))
    value = read_along(t, ordered, [step.inverse() for step in there])
    return TracedArray(t, forced(t, value, "K", strides))


@implements(np.median)
def median(a, axis=None, out=None, overwrite_input=False, keepdims=False):
    x = asarray(a)
    axes = axes_or_all(axis, x.ndim)
    kept = [k for k in range(x.ndim) if k not in axes]
    count = sz.product(x._value.shape[k] for k in axes)
    flat = reshape(transpose(x, (*kept, *axes)), (*tuple(x.shape[k] for k in kept), x._trace.sym(count)))
    if not flat._trace.decide(count, ">", 0):
        return into_out(mean(x, axis, keepdims=keepdims), out, "median")
    n = flat.shape[-1]
    if x._value.dtype.kind == "c":
        ordered = sort(flat, -1)
    else:
        last = (n - 1,) if x._value.dtype.is_inexact else ()  # NaN if any element is
        at = tuple(size_of(x._trace, k) for k in ((n - 1) // 2, n // 2, *last))
        ordered = TracedArray(x._trace, x._trace.emit("partition", flat.value, axis=flat.ndim - 1, at=at))
    middle = mean(ordered[..., (n - 1) // 2 : n // 2 + 1], -1)
    if x._value.dtype.is_inexact:
        middle = chosen(np.isnan(ordered[..., -1]), middle.dtype.type(np.nan), middle)
    strides = strides_of_array(x._trace, x)
    if len(axes) == 1 and strides is not None:
        shape = x._trace.shape(x._value)
        x._trace.strides[middle.value] = reduced(x._trace, shape, strides, axes, False, x._trace.shape(middle._value))
    if keepdims:
        middle = reshape(middle, tuple(1 if k in axes else m for k, m in enumerate(x.shape)))
    return into_out(middle, out, "median")
