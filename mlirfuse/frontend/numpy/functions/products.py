"""Products: dot, tensordot, einsum, cross …"""

from __future__ import annotations

import builtins
import operator

import numpy as np

from mlirfuse.core.errors import ShapeError, UnsupportedError
from mlirfuse.frontend.numpy.axes import axes_of
from mlirfuse.frontend.numpy.functions.arguments import joined, refuse
from mlirfuse.frontend.numpy.functions.joining import stack
from mlirfuse.frontend.numpy.functions.reductions import reduce_axes
from mlirfuse.frontend.numpy.functions.shaping import moveaxis, reshape, transpose
from mlirfuse.frontend.numpy.operands import asarray, fresh, value_of, wrap
from mlirfuse.frontend.numpy.registry import implements
from mlirfuse.frontend.numpy.source import fail, unsupported
from mlirfuse.frontend.numpy.traced_array import TracedArray
from mlirfuse.frontend.numpy.ufuncs import call_ufunc, into_out
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.dtypes import DType


@implements(np.dot)
def dot(a, b, out=None):
    x, y = asarray(a), asarray(b)
    if x.ndim == 0 or y.ndim == 0:
        return into_out(x * y, out, "dot")
    if y.ndim <= 2:
        return into_out(call_ufunc(np.matmul, (x, y)), out, "dot")
    return into_out(tensordot(x, y, ((x.ndim - 1,), (y.ndim - 2,))), out, "dot")


@implements(np.vdot)
def vdot(a, b, /):
    x = asarray(a)
    return dot(reshape(x.conj(), -1), reshape(b, -1))


@implements(np.inner)
def inner(a, b, /):
    x, y = asarray(a), asarray(b)
    return x * y if x.ndim == 0 or y.ndim == 0 else wrap(x._trace, tensordot(x, y, ((-1,), (-1,))).value)


@implements(np.outer, np.linalg.outer)
def outer(a, b, out=None):
    return into_out(reshape(a, (-1, 1)) * reshape(b, (1, -1)), out, "outer")


@implements(np.tensordot, np.linalg.tensordot)
def tensordot(a, b, axes=2):
    x, y = asarray(a), asarray(b)
    if isinstance(axes, (tuple, list)):
        first, second = (axes_of(s, z.ndim) for s, z in zip(axes, (x, y)))
    else:
        count = operator.index(axes)
        first, second = tuple(range(x.ndim - count, x.ndim)), tuple(range(count))
    free_x, free_y = [k for k in range(x.ndim) if k not in first], [k for k in range(y.ndim) if k not in second]
    t = x._trace
    for i, j in zip(first, second):
        if not t.unify(t.shape(x._value)[i], t.shape(y._value)[j]):
            fail(ShapeError, "shape-mismatch for sum")
    k = t.sym(sz.product(t.shape(x._value)[i] for i in first))
    left = reshape(transpose(x, (*free_x, *first)), (t.sym(sz.product(x._value.shape[i] for i in free_x)), k))
    right = reshape(transpose(y, (*second, *free_y)), (k, t.sym(sz.product(y._value.shape[i] for i in free_y))))
    product = call_ufunc(np.matmul, (left, right))
    result = reshape(product, tuple(x.shape[i] for i in free_x) + tuple(y.shape[i] for i in free_y))
    return TracedArray(t, result.value)


@implements(np.einsum)
def einsum(subscripts, *operands, out=None, optimize=False, **kwargs):
    refuse("einsum", **kwargs)
    if not isinstance(subscripts, str):
        fail(UnsupportedError, "np.einsum with lists of labels is not supported: give the subscripts as a string")
    spec = subscripts.replace(" ", "")
    if "." in spec:
        unsupported("np.einsum with an ellipsis", "name all axes")
    inputs, _, result = spec.partition("->")
    terms = inputs.split(",")
    if "->" not in spec:
        result = "".join(sorted(c for c in set("".join(terms)) if builtins.sum(term.count(c) for term in terms) == 1))
    t, arrays, to = joined(operands)
    if len(terms) != len(arrays) or any(len(term) != x.ndim for term, x in zip(terms, arrays)):
        fail(ValueError, f"einsum: subscripts '{subscripts}' do not fit operands of ranks {[x.ndim for x in arrays]}")
    if any(len(set(term)) != len(term) for term in terms):
        fail(UnsupportedError, "np.einsum with a label twice in one operand is not supported: take np.diagonal first")
    if len(arrays) == 1 and len(result) == len(terms[0]) and out is None:
        return transpose(arrays[0], [terms[0].index(c) for c in result])  # a writable view
    extents: dict = {}
    for term, x in zip(terms, arrays):
        for label, n in zip(term, t.shape(x._value)):
            if not t.unify(extents.setdefault(label, n), n):
                fail(ShapeError, f"einsum: label '{label}' has extents {t.hint(extents[label])} and {t.hint(n)}")
    arrays = [TracedArray(t, value_of(t, x, to)) for x in arrays]
    have, left = "", None
    for k, (term, x) in enumerate(zip(terms, arrays)):
        later = set(result).union(*terms[k + 1 :])
        x, term = _sum_out(x, term, later | set(have), to)
        if left is None:
            left, have = _sum_out(x, term, later, to)
            continue
        both, mine, theirs = (
            [c for c in have if c in term],
            [c for c in have if c not in term],
            [c for c in term if c not in have],
        )
        gone, batch = [c for c in both if c not in later], [c for c in both if c in later]
        if gone and mine and theirs:
            one, two = _as_matrices(left, have, batch, mine, gone), _as_matrices(x, term, batch, gone, theirs)
            shape = [left.shape[have.index(c)] for c in batch + mine] + [x.shape[term.index(c)] for c in theirs]
            left, have = reshape(call_ufunc(np.matmul, (one, two)), shape), "".join(batch + mine + theirs)
        else:
            labels = batch + mine + theirs + gone
            one, two = (
                reshape(
                    transpose(y, [s.index(c) for c in labels if c in s]),
                    [y.shape[s.index(c)] if c in s else 1 for c in labels],
                )
                for y, s in ((left, have), (x, term))
            )
            left, have = _sum_out(call_ufunc(np.multiply, (one, two)), "".join(labels), later, to)
    left = transpose(left, [have.index(c) for c in result])
    return into_out(wrap(t, fresh(t, left.value) if left.value.op is None else left.value), out, "einsum")


def _sum_out(x, labels: str, keep, to: DType):
    """``x`` summed over the axes whose labels are not kept."""
    axes = tuple(k for k, c in enumerate(labels) if c not in keep)
    if axes:
        x = reduce_axes(x, "any" if to is dt.bool_ else "sum", axes)
    return x, "".join(c for c in labels if c in keep)


def _as_matrices(x, labels: str, batch, rows, columns) -> TracedArray:
    """``x`` as a batch of matrices: the axes of ``rows`` merged, then those of ``columns``, after those of
    ``batch``."""
    t, extents = x._trace, dict(zip(labels, x._value.shape))
    shape = [extents[c] for c in batch] + [sz.product(extents[c] for c in some) for some in (rows, columns)]
    return reshape(transpose(x, [labels.index(c) for c in batch + rows + columns]), [t.sym(n) for n in shape])


@implements(np.linalg.vecdot)
def vecdot(x1, x2, /, *, axis=-1):
    product = asarray(x1).conj() * asarray(x2)
    return reduce_axes(product, "any" if product._value.dtype is dt.bool_ else "sum", operator.index(axis))


@implements(np.linalg.matmul)
def linalg_matmul(x1, x2, /):
    return call_ufunc(np.matmul, (x1, x2))


@implements(np.cross, np.linalg.cross)
def cross(a, b, axisa=-1, axisb=-1, axisc=-1, axis=None):
    if axis is not None:
        axisa = axisb = axisc = axis
    x, y = moveaxis(a, axisa, -1), moveaxis(b, axisb, -1)
    t = x._trace
    if not t.unify(t.shape(x._value)[-1], 3) or not t.unify(t.shape(y._value)[-1], 3):
        fail(ShapeError, "np.cross: both operands must have 3 components")
    (a0, a1, a2), (b0, b1, b2) = ([z[..., k] for k in range(3)] for z in (x, y))
    return moveaxis(stack([a1 * b2 - a2 * b1, a2 * b0 - a0 * b2, a0 * b1 - a1 * b0], -1), -1, axisc)
