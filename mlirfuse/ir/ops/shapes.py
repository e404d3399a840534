"""Rows of ops that only rearrange elements: views, concatenation and padding."""

from __future__ import annotations

import numpy as np

from mlirfuse.core.errors import ShapeError
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.ops.registry import ALL_TYPES, broadcast_shapes, front_axis, row, show


def _broadcast_in_dim(shapes, attrs):
    (shape,), out, dims = shapes, tuple(attrs["shape"]), attrs["dims"]
    if len(dims) != len(shape) or len(set(dims)) != len(dims) or any(not 0 <= d < len(out) for d in dims):
        raise ShapeError(
            f"broadcast_in_dim: dims {list(dims)} do not map a rank-{len(shape)} operand to rank {len(out)}"
        )
    for d, n in zip(dims, shape):
        if n != 1 and isinstance(n, int) and isinstance(out[d], int) and n != out[d]:
            raise ShapeError(f"broadcast_in_dim: extent {n} does not broadcast to {out[d]} in dimension {d}")
    return [out]


def _reshape(shapes, attrs):
    (shape,), out = shapes, tuple(attrs["shape"])
    a, b = sz.product(shape), sz.product(out)
    if isinstance(a, int) and isinstance(b, int) and a != b:
        raise ShapeError(f"cannot reshape {show(shape)}, {a} elements, into {show(out)}, {b} elements")
    return [out]


def _permute(shapes, attrs):
    (shape,), dims = shapes, attrs["dims"]
    if sorted(dims) != list(range(len(shape))):
        raise ShapeError(f"permute: dims {list(dims)} are no permutation of {len(shape)} dimensions")
    return [tuple(shape[d] for d in dims)]


def _squeeze(shapes, attrs):
    (shape,), axes = shapes, attrs["axes"]
    for a in axes:
        front_axis(a, len(shape))
        if shape[a] != 1:
            raise ShapeError(f"squeeze: dimension {a} has extent {shape[a]}, not 1")
    return [tuple(n for k, n in enumerate(shape) if k not in axes)]


def _expand_dims(shapes, attrs):
    (shape,), axes = shapes, attrs["axes"]
    out = list(shape)
    if len(set(axes)) < len(axes) or not all(0 <= a < len(shape) + len(axes) for a in axes):
        raise ShapeError(f"axes {list(axes)} are not indices of new axes in a result of rank {len(shape) + len(axes)}")
    for a in sorted(axes):
        out.insert(a, 1)
    return [tuple(out)]


def _slice(shapes, attrs):
    if not len(shapes[0]) == len(attrs["start"]) == len(attrs["size"]) == len(attrs["step"]):
        raise ShapeError(f"start, size and step must have {len(shapes[0])} elements, one per dimension of the operand")
    if 0 in attrs["step"]:
        raise ShapeError("a step is 0")
    return [tuple(attrs["size"])]


def _concatenate(shapes, attrs):
    axis = front_axis(attrs["axis"], min(map(len, shapes)))
    rest = broadcast_shapes([tuple(n for k, n in enumerate(s) if k != axis) or (1,) for s in shapes])
    total = shapes[0][axis]
    for s in shapes[1:]:
        total = total + s[axis]
    out = list(rest) if len(shapes[0]) > 1 else []
    out.insert(axis, total)
    return [tuple(out)]


def _pad(shapes, attrs):
    if not len(shapes[0]) == len(attrs["low"]) == len(attrs["high"]):
        raise ShapeError(f"low and high must have {len(shapes[0])} elements, one per dimension of the operand")
    return [tuple(lo + n + hi for lo, n, hi in zip(attrs["low"], shapes[0], attrs["high"]))]


def _split(shapes, attrs):
    (shape,), axis = shapes, front_axis(attrs["axis"], len(shapes[0]))
    return [(*shape[:axis], n, *shape[axis + 1 :]) for n in attrs["sizes"]]


def _slice_ref(x, start, size, step):
    """Return a view, which matters where it is written into."""
    stops = [s + n * p for s, n, p in zip(start, size, step)]
    return x[tuple(slice(s, stop if stop >= 0 else None, p) for s, stop, p in zip(start, stops, step))]


def _pad_ref(x, value, low, high):
    out = np.full(tuple(l + n + h for l, n, h in zip(low, x.shape, high)), value, x.dtype)
    source = tuple(slice(max(0, -l), n - max(0, -h)) for l, n, h in zip(low, x.shape, high))
    target = tuple(
        slice(max(0, l), max(0, l) + max(0, n - max(0, -l) - max(0, -h))) for l, n, h in zip(low, x.shape, high)
    )
    out[target] = x[source]
    return out


def _broadcast_ref(x, shape, dims):
    expanded = [1] * len(shape)
    for d, n in zip(dims, x.shape):
        expanded[d] = n
    return np.broadcast_to(x.reshape(expanded), shape)


def _split_ref(x, axis, sizes):
    return np.split(x, np.cumsum(sizes)[:-1], axis) if sizes else []


def _split_slices(b, x, axis, sizes):
    out, start = [], 0
    for size in sizes:
        out.append(b.slice(x, axis, start, size))
        start = start + size
    return out


row(
    "broadcast_in_dim",
    "shape",
    "x",
    "operand dimension k becomes dims[k] of shape; the others repeat",
    takes=ALL_TYPES,
    attrs={"shape": ..., "dims": ...},
    infer=_broadcast_in_dim,
    ref=_broadcast_ref,
    nvfuser="broadcast_in_dim",
    view="repeated",
    in_order=True,
)
row(
    "reshape",
    "shape",
    "x",
    "the same elements in row-major order in another shape",
    takes=ALL_TYPES,
    attrs={"shape": ...},
    infer=_reshape,
    ref=lambda x, shape: x.reshape(shape),
    numpy="reshape",
    nvfuser="reshape",
    view="all",
    in_order=True,
)
row(
    "permute",
    "shape",
    "x",
    "result dimension k is operand dimension dims[k]",
    takes=ALL_TYPES,
    attrs={"dims": ...},
    infer=_permute,
    ref=lambda x, dims: x.transpose(dims),
    numpy="transpose permute_dims",
    nvfuser="permute",
    view="all",
)
row(
    "squeeze",
    "shape",
    "x",
    "removes the axes, which have extent 1",
    takes=ALL_TYPES,
    attrs={"axes": ...},
    infer=_squeeze,
    ref=lambda x, axes: np.squeeze(x, tuple(axes)),
    numpy="squeeze",
    nvfuser="squeeze",
    view="all",
    in_order=True,
)
row(
    "expand_dims",
    "shape",
    "x",
    "adds axes of extent 1 at these indices of the result",
    takes=ALL_TYPES,
    attrs={"axes": ...},
    infer=_expand_dims,
    ref=lambda x, axes: np.expand_dims(x, tuple(axes)),
    numpy="expand_dims",
    view="all",
    in_order=True,
)
row(
    "slice",
    "shape",
    "x",
    "element i is operand element start + i * step; size is the result's shape; step may be negative",
    takes=ALL_TYPES,
    attrs={"start": ..., "size": ..., "step": ...},
    infer=_slice,
    ref=_slice_ref,
    nvfuser="slice",
    view="some",
    indexed=True,
    cuts=("start",),
)
row(
    "concatenate",
    "shape",
    "x*",
    "operands concatenated along axis",
    takes=ALL_TYPES,
    attrs={"axis": ...},
    infer=_concatenate,
    ref=lambda *x, axis: np.concatenate(x, axis),
    numpy="concatenate concat",
    nvfuser="cat",
    indexed=True,
)
row(
    "pad",
    "shape",
    "x value",
    "low and high elements of value added on each side of each dimension; negative ones cut off",
    takes=ALL_TYPES,
    attrs={"low": ..., "high": ...},
    infer=_pad,
    ref=_pad_ref,
    numpy="pad",
    nvfuser="pad",
    indexed=True,
    cuts=("low",),
)


def _roll(shapes, attrs):
    (shape,), shift = shapes, attrs["shift"]
    extent = shape[front_axis(attrs["axis"], len(shape))]
    if isinstance(shift, int) and not (shift >= 0 and (not isinstance(extent, int) or shift < max(extent, 1))):
        raise ShapeError(f"roll: shift {shift} is not one of 0 … {extent} - 1, for axis {attrs['axis']}")
    return [shape]


row(
    "roll",
    "shape",
    "x",
    "element i along axis is operand element i - shift, wrapping around; 0 <= shift < the extent",
    takes=ALL_TYPES,
    attrs={"axis": ..., "shift": ...},
    infer=_roll,
    ref=lambda x, axis, shift: np.roll(x, shift, axis),
    numpy="roll",
    indexed=True,
    cuts=("shift",),
)
row(
    "split",
    "shape",
    "x",
    "consecutive slices of these sizes along axis",
    takes=ALL_TYPES,
    attrs={"axis": ..., "sizes": ...},
    infer=_split,
    ref=_split_ref,
    expand=_split_slices,
    numpy="split array_split",
    nvfuser="split chunk",
    view="some",
)
