"""Differences and integrals along an axis."""

from __future__ import annotations

import operator

import numpy as np

from mlirfuse.frontend.numpy.axes import axis_of
from mlirfuse.frontend.numpy.functions.joining import concatenate
from mlirfuse.frontend.numpy.functions.reductions import sum
from mlirfuse.frontend.numpy.functions.shaping import broadcast_to, reshape
from mlirfuse.frontend.numpy.operands import asarray
from mlirfuse.frontend.numpy.registry import implements
from mlirfuse.frontend.numpy.source import fail
from mlirfuse.frontend.numpy.ufuncs import call_ufunc
from mlirfuse.ir import dtypes as dt


@implements(np.diff)
def diff(a, n=1, axis=-1, prepend=np._NoValue, append=np._NoValue):
    x = asarray(a)
    axis = axis_of(axis, x.ndim)
    ends = [None if e is np._NoValue else asarray(e) for e in (prepend, append)]
    ends = [
        e if e is None or e.ndim else broadcast_to(e, tuple(1 if k == axis else m for k, m in enumerate(x.shape)))
        for e in ends
    ]
    parts = [p for p in (ends[0], x, ends[1]) if p is not None]
    x = concatenate(parts, axis) if len(parts) > 1 else x
    if operator.index(n) < 0:
        fail(ValueError, f"order must be non-negative but got {n}")
    for _ in range(operator.index(n)):
        after, before = (x[(slice(None),) * axis + (slice(*bounds),)] for bounds in ((1, None), (None, -1)))
        x = call_ufunc(np.not_equal if x._value.dtype is dt.bool_ else np.subtract, (after, before))
    return x


@implements(np.trapezoid)
def trapezoid(y, x=None, dx=1.0, axis=-1):
    y = asarray(y)
    axis = axis_of(axis, y.ndim)
    if x is not None:
        d = diff(x, axis=-1 if asarray(x).ndim == 1 else axis)
        dx = reshape(d, tuple(-1 if k == axis else 1 for k in range(y.ndim))) if d.ndim == 1 else d
    before, after = (slice(None),) * axis + (slice(None, -1),), (slice(None),) * axis + (slice(1, None),)
    return sum(dx * (y[after] + y[before]) / 2.0, axis)
