"""Rows of extern ops, for which no kernels are generated: products, convolutions, sorting, scattering, and calls of
functions that are not in this table. They run through the arrays' own framework, and groups form around them."""

from __future__ import annotations

import math as pymath

import numpy as np

from mlirfuse.core.errors import ShapeError, UnsupportedError
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.ops.registry import ALL_TYPES, ANY, COMPLEX, FLOAT, axis_of, broadcast_shapes, row, scattered_dtypes


def _along_axis(shapes, attrs):
    if shapes[0]:
        axis_of(attrs["axis"], len(shapes[0]))
    return [shapes[0]]


def _matmul(shapes, attrs):
    a, b = shapes[:2]
    if not a or not b:
        raise ShapeError("matmul: operands must have at least one dimension")
    if len(a) == 1 or len(b) == 1:
        return [(a[:-1] if len(a) > 1 else ()) + (b[:-2] + b[-1:] if len(b) > 1 else ())]
    rank = max(len(a), len(b))
    batch = broadcast_shapes([(1,) * (rank - len(s)) + s[:-2] or (1,) for s in (a, b)]) if rank > 2 else ()
    return [(*batch, a[-2], b[-1])]


def _linear(shapes, attrs):
    return [shapes[0][:-1] + shapes[1][:-1]]


def _linear_ref(x, w, *bias):
    out = x @ np.swapaxes(w, -1, -2) if w.ndim > 1 else x @ w
    return out + bias[0] if bias else out


def _linear_bias(b, x, w, *bias):
    return b.elementwise("add", b.op("linear", x, w), bias[0]) if bias else None


row(
    "matmul",
    "library",
    "a b",
    "matrix product, as NumPy's",
    takes=ALL_TYPES,
    infer=_matmul,
    ref=np.matmul,
    numpy="matmul",
    nvfuser="matmul",
)
row(
    "linear",
    "library",
    "x w bias*",
    "x times w transposed, plus bias",
    takes=FLOAT,
    infer=_linear,
    ref=_linear_ref,
    expand=_linear_bias,
    nvfuser="linear",
)


def _attention(shapes, attrs):
    q, k, v = shapes
    if not 2 < len(q) == len(k) == len(v):
        raise ShapeError(
            f"attention: query, key and value must have one rank of at least 3, not {len(q)}, {len(k)} and {len(v)}"
        )
    return [q[:-1] + v[-1:]]


def _attention_ref(q, k, v, causal, scale):
    wide = np.float64 if q.dtype == np.float64 else np.float32
    scores = (
        q.astype(wide)
        @ np.swapaxes(k, -1, -2).astype(wide)
        * (1 / pymath.sqrt(q.shape[-1]) if scale is None else scale)
    )
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=np.bool_), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True) @ v.astype(wide)).astype(q.dtype)


row(
    "attention",
    "library",
    "query key value",
    "softmax(query key^T * scale) value over the last two dimensions; scale is 1 / sqrt(width) where it "
    "is None; causal: position i sees up to i",
    takes=FLOAT,
    attrs={"causal": False, "scale": None},
    infer=_attention,
    ref=_attention_ref,
    nvfuser="sdpfa_fwd",
)


_SORTED = 512  # elements along an axis below which NumPy's full sort is as fast as its partition


def _sort_name(stable: bool):
    """Return NumPy's name of a sort: the one that is not stable is faster."""
    return "stable" if stable else None


def _argsort_ref(x, axis, descending, stable):
    """NaN counts as the largest."""
    if not descending:
        return np.argsort(x, axis=axis, kind=_sort_name(stable)).astype(np.int64, copy=False)
    flipped = np.flip(x, axis)
    last = x.shape[axis] - 1
    return np.flip(last - np.argsort(flipped, axis=axis, kind=_sort_name(stable)), axis).astype(np.int64)


def _top(shapes, attrs):
    shape, axis, count = list(shapes[0]), attrs["axis"], attrs["count"]
    axis_of(axis, len(shape))
    if count < 1 or (isinstance(shape[axis], int) and count > shape[axis]):
        raise ShapeError(f"topk: count must be between 1 and the extent {shape[axis]} of axis {axis}, not {count}")
    shape[axis] = count
    return [tuple(shape)]


def _topk_ref(x, axis, count, largest):
    part = slice(-count, None) if largest else slice(None, count)
    where = (slice(None),) * (axis % x.ndim) + (part,)
    if x.shape[axis] < _SORTED:
        few = np.sort(x, axis)[where]
    else:
        few = np.sort(np.partition(x, -count if largest else count - 1, axis)[where], axis)
    return np.flip(few, axis) if largest else few


def _scatter_ref(x, indices, values, axis):
    out = x.copy()
    where = list(np.ix_(*map(np.arange, indices.shape))) if indices.ndim else []
    if where:
        where[axis] = indices
        out[tuple(where)] = values if values.ndim == 0 else values[tuple(slice(0, n) for n in indices.shape)]
    return out


row(
    "argsort",
    "library",
    "x",
    "the indices that sort along axis; NaN counts as the largest; without stable equal elements are in NumPy's order",
    takes=ANY + COMPLEX,
    result="i64",
    attrs={"axis": ..., "descending": False, "stable": True},
    infer=_along_axis,
    ref=_argsort_ref,
    nvfuser="argsort topk",
)
row(
    "sort",
    "library",
    "x",
    "the elements in order along axis; NaN counts as the largest",
    takes=ANY + COMPLEX,
    attrs={"axis": ..., "stable": True},
    infer=_along_axis,
    ref=lambda x, axis, stable: np.sort(x, axis=axis, kind=_sort_name(stable)),
    numpy="sort",
)
row(
    "partition",
    "library",
    "x",
    "the elements along axis in such an order that those at the indices at are where a sort would have them, with "
    "none larger before them and none smaller behind; NaN is the largest",
    takes=ANY,
    attrs={"axis": ..., "at": ...},
    infer=_along_axis,
    ref=lambda x, axis, at: np.partition(x, list(at), axis),
)
row(
    "topk",
    "library",
    "x",
    "the count largest elements along axis from the largest on, or the smallest from the smallest on; NaN is the "
    "largest",
    takes=ANY,
    attrs={"axis": ..., "count": ..., "largest": True},
    infer=_top,
    ref=_topk_ref,
)
row(
    "scatter",
    "library",
    "x indices values",
    "x with values, of the indices' shape or 0-d, put at indices along axis, the other coordinates kept",
    takes=ALL_TYPES,
    attrs={"axis": ...},
    infer=_along_axis,
    ref=_scatter_ref,
    operand_dtypes=scattered_dtypes,
    nvfuser="scatter",
)


def _conv_shape(shapes, attrs):
    x, w = shapes[:2]
    rank = len(x) - 2
    if rank < 1 or len(w) != len(x):
        raise ShapeError(
            f"conv: the operand must be [N, C, …] and the weight [O, C / groups, …], of one rank; "
            f"they have ranks {len(x)} and {len(w)}"
        )
    if min(attrs["stride"], default=1) < 1 or min(attrs["dilation"], default=1) < 1 or attrs["groups"] < 1:
        raise ShapeError("conv: stride, dilation and groups must be at least 1")
    out = []
    for k in range(rank):
        stride, padding, dilation = (_per_axis(attrs[a], rank)[k] for a in ("stride", "padding", "dilation"))
        out.append(sz.floordiv(x[2 + k] + (2 * padding - 1) - (w[2 + k] - 1) * dilation, stride) + 1)
    return [(x[0], w[0], *out)]


def _per_axis(value, rank):
    values = tuple(value)
    if len(values) not in (1, rank):
        raise ShapeError(f"conv: {list(values)} must have one element or one for each of the {rank} axes")
    return values * rank if len(values) == 1 else values


def _conv_ref(x, w, *bias, stride, padding, dilation, groups):
    rank = x.ndim - 2
    stride, padding, dilation = (_per_axis(v, rank) for v in (stride, padding, dilation))
    padded = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in padding)])
    spans = [d * (k - 1) + 1 for d, k in zip(dilation, w.shape[2:])]
    windows = np.lib.stride_tricks.sliding_window_view(padded, spans, axis=tuple(range(2, 2 + rank)))
    windows = windows[
        (slice(None),) * 2 + tuple(slice(None, None, s) for s in stride) + tuple(slice(None, None, d) for d in dilation)
    ]
    taps = (1, *range(2 + rank, 2 + 2 * rank))
    outputs = [
        np.tensordot(part, kernel, axes=(taps, tuple(range(1, 2 + rank))))
        for part, kernel in zip(np.split(windows, groups, 1), np.split(w, groups, 0))
    ]
    out = np.moveaxis(np.concatenate(outputs, -1), -1, 1).astype(x.dtype)
    return out + bias[0].reshape(1, -1, *(1,) * rank) if bias else out


def _conv_bias(b, x, w, *bias, **attrs):
    if not bias:
        return None
    y = b.op("conv", x, w, **attrs)
    return b.op("add", y, b.reshape(bias[0], (1, *bias[0].shape, *(1,) * (x.rank - 2))))


row(
    "conv",
    "library",
    "x w bias*",
    "convolution of [N, C, …] with [O, C / groups, …], plus bias; stride, padding and dilation for each axis",
    takes=FLOAT,
    attrs={"stride": (1,), "padding": (0,), "dilation": (1,), "groups": 1},
    infer=_conv_shape,
    ref=_conv_ref,
    expand=_conv_bias,
)


def _called(*operands, callee, sizes, function, **_):
    if function is None:
        raise UnsupportedError(f"call of {callee}: its function is not known, as the program was read from text")
    return function(*operands, *sizes)


def _call_shapes(shapes, attrs):
    given = [tuple(shape) for shape in attrs["shapes"]]
    strides = attrs["strides"]
    if len(attrs["dtypes"]) != len(given):
        raise ShapeError(f"call of {attrs['callee']}: {len(attrs['dtypes'])} dtypes for {len(given)} shapes")
    if strides is not None and [len(s) for s in strides] != [len(s) for s in given]:
        raise ShapeError(f"call of {attrs['callee']}: strides do not have one element for each dimension of shapes")
    return given


row(
    "call",
    "library",
    "x*",
    "the results of a function that is not in this table, callee by name: function(*operands, *sizes) returns the list "
    "of them. strides, in elements, are those of each result where they are not row-major. A call with effects keeps "
    "its order and is never removed. A collective, among that many ranks, is a start, or the wait for the start that "
    "its operand is from: starts keep their order, each runs once, and all else may move across. One that consumes "
    "writes into its first operand, which nothing else reads, and returns it, and is never removed. shares: the index "
    "of the operand in whose memory each result is, -1 for its own memory; without it that is unknown",
    takes=ALL_TYPES,
    attrs={
        "callee": ...,
        "dtypes": ...,
        "shapes": ...,
        "strides": None,
        "effects": False,
        "consumes": False,
        "shares": None,
        "collective": None,
        "ranks": None,
        "sizes": (),
        "function": None,
    },
    operand_dtypes=lambda dtypes, attrs: None,
    result=lambda dtypes, attrs: list(attrs["dtypes"]),
    infer=_call_shapes,
    ref=_called,
    calls=True,
)
