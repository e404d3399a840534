"""np.linalg.norm."""

from __future__ import annotations

import numpy as np

from mlirfuse.core.errors import UnsupportedError
from mlirfuse.frontend.numpy.axes import axes_of
from mlirfuse.frontend.numpy.functions.reductions import max, min, sum
from mlirfuse.frontend.numpy.functions.shaping import reshape, squeeze
from mlirfuse.frontend.numpy.operands import asarray, concrete, wrap
from mlirfuse.frontend.numpy.registry import implements
from mlirfuse.frontend.numpy.source import fail, unsupported
from mlirfuse.frontend.numpy.ufuncs import call_ufunc


def _squares(x):
    """|x|², elementwise."""
    return x.real * x.real + x.imag * x.imag if x._value.dtype.kind == "c" else x * x


@implements(np.linalg.norm)
def norm(x, ord=None, axis=None, keepdims=False):
    x = asarray(x)
    x = x if x._value.dtype.is_inexact else asarray(x, np.float64)
    if axis is None and (ord is None or (x.ndim == 1 and ord == 2) or (x.ndim == 2 and ord in ("f", "fro"))):
        return call_ufunc(np.sqrt, (sum(_squares(x), None, keepdims=keepdims),))
    axes = tuple(range(x.ndim)) if axis is None else axes_of(axis, x.ndim)
    ord = concrete(ord)
    magnitude = call_ufunc(np.absolute, (x,))
    if len(axes) == 1:
        if ord is None or ord == 2:
            return call_ufunc(np.sqrt, (sum(_squares(x), axes, keepdims=keepdims),))
        if isinstance(ord, str):
            fail(ValueError, f"Invalid norm order '{ord}' for vectors")
        if ord == np.inf:
            return max(magnitude, axes, keepdims=keepdims)
        if ord == -np.inf:
            return min(magnitude, axes, keepdims=keepdims)
        if ord == 0:
            return sum(asarray(x != 0, x._value.dtype.real), axes, keepdims=keepdims)
        if ord == 1:
            return sum(magnitude, axes, keepdims=keepdims)
        return sum(magnitude**ord, axes, keepdims=keepdims) ** (1.0 / ord)
    if len(axes) == 2:
        if ord in (None, "f", "fro"):
            return call_ufunc(np.sqrt, (sum(_squares(x), axes, keepdims=keepdims),))
        rows, columns = axes
        choose = {
            np.inf: (max, columns, rows),
            -np.inf: (min, columns, rows),
            1: (max, rows, columns),
            -1: (min, rows, columns),
        }.get(ord)
        if choose is not None:
            pick, inner_axis, outer_axis = choose
            result = pick(sum(magnitude, inner_axis, keepdims=True), outer_axis, keepdims=True)
            return result if keepdims else wrap(x._trace, squeeze(result, axes).value)
    what = f"np.linalg.norm with ord={ord!r} over {len(axes)} axes"
    unsupported(what, "it needs singular values; use 'fro', 1, -1, inf or -inf")


@implements(np.linalg.vector_norm)
def vector_norm(x, /, *, axis=None, keepdims=False, ord=2):
    x = asarray(x)
    if axis is None and x.ndim != 1:
        result = norm(reshape(x, -1), ord, 0)
        return reshape(result, (1,) * x.ndim) if keepdims else result
    if isinstance(axis, (tuple, list)) and len(axis) > 1:
        if ord != 2:
            fail(UnsupportedError, "np.linalg.vector_norm over several axes supports ord=2 only in a compiled function")
        return (
            norm(x, None, None if len(axis) == x.ndim else axis, keepdims)
            if len(axis) != 2
            else norm(x, "fro", axis, keepdims)
        )
    return norm(x, ord, axis, keepdims)
