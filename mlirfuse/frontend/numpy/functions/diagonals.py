"""Diagonals and triangles of matrices."""

from __future__ import annotations

import builtins
import operator

import numpy as np

from mlirfuse.frontend.numpy.broadcasting import aligned
from mlirfuse.frontend.numpy.functions.reductions import sum
from mlirfuse.frontend.numpy.functions.shaping import broadcast_to, moveaxis
from mlirfuse.frontend.numpy.operands import asarray, operand, value_of, wrap
from mlirfuse.frontend.numpy.registry import implements
from mlirfuse.frontend.numpy.source import fail
from mlirfuse.frontend.numpy.views import Diagonal
from mlirfuse.ir import dtypes as dt


def _band(x, k, keep_lower: bool):
    x = asarray(x)
    t = x._trace
    x = x if x.ndim > 1 else broadcast_to(x, (x.shape[0], x.shape[0]))
    n, m = t.shape(x._value)[-2:]
    row = t.emit("iota", shape=(n, 1), axis=0, dtype=dt.i64)
    column = t.emit("iota", shape=(1, m), axis=1, dtype=dt.i64)
    offset = value_of(t, operand(t, k), dt.i64)
    mask = t.emit("le" if keep_lower else "ge", column, t.emit("add", row, offset))
    zero = t.builder.constant(0, x._value.dtype)
    return wrap(t, t.emit("where", *aligned(t, [mask, x.value, zero])))


@implements(np.tril)
def tril(m, k=0):
    return _band(m, k, True)


@implements(np.triu)
def triu(m, k=0):
    return _band(m, k, False)


@implements(np.diagonal)
def diagonal(a, offset=0, axis1=0, axis2=1):
    x = moveaxis(a, (axis1, axis2), (-2, -1))
    t = x._trace
    offset = operator.index(offset)
    row, column = (0, offset) if offset >= 0 else (-offset, 0)
    n, m = t.shape(x._value)[-2:]
    n, m = n - row, m - column
    length = t.extent(n if t.decide(n, "<=", m) else m) if t.decide(n, ">", 0) and t.decide(m, ">", 0) else 0
    return x.step(Diagonal(row, column, length))


@implements(np.linalg.diagonal)
def matrix_diagonal(x, /, *, offset=0):
    return diagonal(x, offset, -2, -1)


@implements(np.diag)
def diag(v, k=0):
    x = asarray(v)
    if x.ndim == 2:
        return diagonal(x, k)
    if x.ndim != 1:
        fail(ValueError, "Input must be 1- or 2-d.")
    t, k = x._trace, operator.index(k)
    n = t.shape(x._value)[0]
    side = t.extent(n + abs(k))
    row = t.emit("iota", shape=(side, 1), axis=0, dtype=dt.i64)
    column = t.emit("iota", shape=(1, side), axis=1, dtype=dt.i64)
    on = t.emit("eq", column, t.emit("add", row, t.builder.constant(k, dt.i64)))
    padded = t.emit(
        "pad", x.value, t.builder.constant(0, x._value.dtype), low=(builtins.max(k, 0),), high=(builtins.max(-k, 0),)
    )
    spread = t.emit("expand_dims", padded, axes=(0,))
    return wrap(t, t.emit("where", on, spread, t.builder.constant(0, x._value.dtype)))


@implements(np.linalg.trace)
def matrix_trace(x, /, *, offset=0, dtype=None):
    return trace(x, offset, -2, -1, dtype)


@implements(np.trace)
def trace(a, offset=0, axis1=0, axis2=1, dtype=None, out=None):
    return sum(diagonal(a, offset, axis1, axis2), -1, dtype, out)
