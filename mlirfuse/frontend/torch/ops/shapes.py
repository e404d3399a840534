"""Views, concatenation, creation and indexing."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from mlirfuse.frontend.torch.ops.constant_gathers import constant_steps
from mlirfuse.frontend.torch.ops.indices import along_dimensions, checked, joined
from mlirfuse.frontend.torch.ops.rules import Context, Unsupported, axis, element, rule
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Value
from mlirfuse.ir.known_values import known_value
from mlirfuse.ir.sizes import Size

_MOST_FILLED = 4  # constant steps of the indices of a fill
_MOST_SCATTERED = 16  # values of a row that each of its elements is compared with


def in_own_memory(c: Context, x: Value) -> Value:
    """A copy as a result: an argument or an extern call's result must not be returned itself."""
    return c.op("copy", x)


@rule("mlirfuse.restrided.default")
def restrided(c: Context, x: Value, strides: Any) -> Value:
    return in_own_memory(c, x)


# ---------------------------------------------------------------------------------------------------------------- views


@rule("aten.view.default", "aten.reshape.default", "aten._unsafe_view.default", "aten._reshape_alias.default",
      "aten.squeeze.default", "aten.squeeze.dim", "aten.squeeze.dims", "aten.unsqueeze.default", view=True)  # fmt: skip
def reshape(c: Context, x: Value, *_: Any) -> Value:
    """A reshape to the result's shape."""
    if c.shape == x.shape:
        return x
    ones = [k for k, n in enumerate(c.shape) if n == 1]
    if tuple(n for n in c.shape if n != 1) == tuple(n for n in x.shape if n != 1):  # only extents of 1 come or go
        gone = tuple(k for k, n in enumerate(x.shape) if n == 1)
        bare = c.op("squeeze", x, axes=gone) if gone else x
        return c.op("expand_dims", bare, axes=tuple(ones)) if ones else bare
    return c.b.reshape(x, c.shape)


@rule("aten.permute.default", view=True)
def permute(c: Context, x: Value, dims: Sequence[int]) -> Value:
    return c.b.permute(x, tuple(axis(d, x.rank) for d in dims))


@rule("aten.transpose.int", view=True)
def transpose(c: Context, x: Value, a: int, b: int) -> Value:
    dims = list(range(x.rank))
    if dims:
        a, b = axis(a, x.rank), axis(b, x.rank)
        dims[a], dims[b] = dims[b], dims[a]
    return c.b.permute(x, tuple(dims))


@rule("aten.t.default", view=True)
def t(c: Context, x: Value) -> Value:
    return c.b.permute(x, tuple(reversed(range(x.rank))))


@rule("aten.expand.default", view=True)
def expand(c: Context, x: Value, size: Any, implicit: bool = False) -> Value:
    return c.spread(x)


@rule("prims.broadcast_in_dim.default", view=True)
def broadcast_in_dim(c: Context, x: Value, shape: Any, dims: Sequence[int]) -> Value:
    return c.op("broadcast_in_dim", x, shape=c.shape, dims=tuple(dims))


@rule("aten.alias.default", "aten.detach.default", "aten.view_of.default", "prims.view_of.default", view=True)
def alias(c: Context, x: Value) -> Value:
    return x


@rule("aten.slice.Tensor", view=True)
def slice_(c: Context, x: Value, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> Value:
    if not isinstance(step, int):
        raise Unsupported("a symbolic step")
    dim = axis(dim, x.rank)
    first = _first(c, start, x.shape[dim])
    return c.b.slice(x, dim, first, c.shape[dim], step)


def _first(c: Context, start: Size | None, extent: Size) -> Size:
    """The start of a slice, clamped to 0 … ``extent``; negative ones count from the end."""
    if start is None or start == 0:
        return 0
    start = _from_front(c, start, extent)
    if c.known(start, "<=", extent):
        return start if c.known(start, ">=", 0) else sz.maximum(start, 0)
    return sz.minimum(start if c.known(start, ">=", 0) else sz.maximum(start, 0), extent)


def _from_front(c: Context, index: Size, extent: Size) -> Size:
    """``index`` plus ``extent`` where it is negative."""
    if c.known(index, ">=", 0):
        return index
    if c.known(index, "<", 0):
        return index + extent
    negative = sz.minimum(sz.maximum(sz.mul(index, -1), 0), 1)  # 1 for a negative index, else 0
    return index + sz.mul(negative, extent)


@rule("aten.select.int", view=True)
def select(c: Context, x: Value, dim: int, index: Size) -> Value:
    dim = axis(dim, x.rank)
    place = _from_front(c, index, x.shape[dim])
    return c.op("squeeze", c.b.slice(x, dim, place, 1), axes=(dim,))


@rule("aten.split.Tensor", view=True)
def split(c: Context, x: Value, size: Size, dim: int = 0) -> list[Value]:
    raise Unsupported("decomposed earlier")


@rule("aten.split_with_sizes.default", view=True)
def split_with_sizes(c: Context, x: Value, extents: Sequence[Size], dim: int = 0) -> list[Value]:
    dim, start, out = axis(dim, x.rank), 0, []
    for n in extents:
        out.append(c.b.slice(x, dim, start, n))
        start = start + n
    return out


@rule("aten.unbind.int", view=True)
def unbind(c: Context, x: Value, dim: int = 0) -> list[Value]:
    dim = axis(dim, x.rank)
    count = x.shape[dim]
    if not isinstance(count, int):
        raise Unsupported("a symbolic number of results")
    return [c.op("squeeze", c.b.slice(x, dim, k, 1), axes=(dim,)) for k in range(count)]


# ----------------------------------------------------------------------------------------------------------------
# concatenation


@rule("aten.roll.default")
def roll(c: Context, x: Value, shifts: Sequence[int] | int, dims: Sequence[int] | int = ()) -> Value:
    shifts, dims = ([given] if isinstance(given, int) else list(given) for given in (shifts, dims))
    flat = x if dims else c.b.reshape(x, (x.numel,))
    for shift, dim in zip(shifts, [axis(d, x.rank) for d in dims] or [0]):
        extent = flat.shape[dim]
        if isinstance(extent, int) and isinstance(shift, int):
            if extent and shift % extent:
                flat = c.op("roll", flat, axis=dim, shift=shift % extent)
        else:
            flat = _rolled(c, flat, dim, sz.mod(shift, extent))
    return in_own_memory(c, c.b.reshape(flat, x.shape))


def _rolled(c: Context, x: Value, dim: int, shift: Size) -> Value:
    """``x`` moved by ``shift`` elements, less than its extent, as its last part before its first."""
    rest = x.shape[dim] - shift
    start = tuple(rest if k == dim else 0 for k in range(x.rank))
    sizes = [(*x.shape[:dim], n, *x.shape[dim + 1 :]) for n in (shift, rest)]
    ones = (1,) * x.rank
    last = c.op("slice", x, start=start, size=sizes[0], step=ones)
    return c.op("concatenate", last, c.op("slice", x, start=(0,) * x.rank, size=sizes[1], step=ones), axis=dim)


@rule("aten.flip.default", "prims.rev.default")
def flip(c: Context, x: Value, dims: Sequence[int]) -> Value:
    turned = {axis(d, x.rank) for d in dims}
    if not turned:
        return in_own_memory(c, x)
    start = tuple(n - 1 if k in turned else 0 for k, n in enumerate(x.shape))
    step = tuple(-1 if k in turned else 1 for k in range(x.rank))
    return in_own_memory(c, c.op("slice", x, start=start, size=x.shape, step=step))


@rule("aten.cat.default")
def cat(c: Context, tensors: Sequence[Value], dim: int = 0) -> Value:
    rank = len(c.shape)
    if any(v.rank != rank for v in tensors):
        raise Unsupported("an empty tensor of another rank among the operands")
    parts = [c.b.cast(v, c.dtype) for v in tensors if v.shape[axis(dim, rank)] != 0]
    if len(parts) < 2:
        return in_own_memory(c, parts[0])
    return c.op("concatenate", *parts, axis=axis(dim, rank))


@rule("aten.constant_pad_nd.default")
def constant_pad_nd(c: Context, x: Value, pad: Sequence[Size], value: Any = 0) -> Value:
    low: list[Size] = [0] * x.rank
    high: list[Size] = [0] * x.rank
    for k in range(len(pad) // 2):
        low[x.rank - 1 - k], high[x.rank - 1 - k] = pad[2 * k], pad[2 * k + 1]
    return c.op("pad", x, c.value(value, element(x)), low=tuple(low), high=tuple(high))


@rule("aten.repeat.default")
def repeat(c: Context, x: Value, repeats: Sequence[Size]) -> Value:
    """Repeats: broadcasts to [r0, n0, r1, n1, …], then reshapes to the products."""
    extents = (1,) * (len(repeats) - x.rank) + x.shape
    if all(n == 1 or r == 1 for r, n in zip(repeats, extents)):
        return c.op("copy", c.spread(x))
    shape = tuple(m for r, n in zip(repeats, extents) for m in (r, n))
    places = tuple(2 * (k + len(repeats) - x.rank) + 1 for k in range(x.rank))
    return in_own_memory(c, c.b.reshape(c.op("broadcast_in_dim", x, shape=shape, dims=places), c.shape))


@rule("aten.slice_scatter.default")
def slice_scatter(c: Context, x: Value, source: Value, dim: int = 0, start: Any = None, end: Any = None,
                  step: Any = 1) -> Value:  # fmt: skip
    dim = axis(dim, x.rank)
    if not isinstance(step, int):
        raise Unsupported("a symbolic step")
    return _placed(c, x, source, dim, _first(c, start, x.shape[dim]), step)


@rule("aten.select_scatter.default")
def select_scatter(c: Context, x: Value, source: Value, dim: int, index: Size) -> Value:
    dim = axis(dim, x.rank)
    place = _from_front(c, index, x.shape[dim])
    return _placed(c, x, c.op("expand_dims", source, axes=(dim,)), dim, place, 1)


def _placed(c: Context, x: Value, source: Value, dim: int, start: Size, step: int) -> Value:
    starts = tuple(start if k == dim else 0 for k in range(x.rank))
    steps = tuple(step if k == dim else 1 for k in range(x.rank))
    if 0 in source.shape:
        return in_own_memory(c, x)
    source = c.b.cast(source, element(x))
    return c.op("set_slice", x, source, start=starts, size=source.shape, step=steps)


# ----------------------------------------------------------------------------------------------------------------
# creation


@rule("aten.full.default", "aten.full_like.default")
def full(c: Context, _: Any, value: Any, **options: Any) -> Value:
    return _filled(c, value)


@rule("aten.new_full.default")
def new_full(c: Context, x: Value, size: Any, value: Any, **options: Any) -> Value:
    return _filled(c, value)


@rule("aten.zeros.default", "aten.zeros_like.default", "aten.new_zeros.default")
def zeros(c: Context, *_: Any, **options: Any) -> Value:
    return _filled(c, 0)


@rule("aten.ones.default", "aten.ones_like.default", "aten.new_ones.default")
def ones(c: Context, *_: Any, **options: Any) -> Value:
    return _filled(c, 1)


@rule("aten.scalar_tensor.default")
def scalar_tensor(c: Context, value: Any, **options: Any) -> Value:
    return _filled(c, value)


def _filled(c: Context, value: Any) -> Value:
    number = c.value(value, c.dtype)
    return c.op("full", number, shape=c.shape) if c.shape else number


@rule("aten.arange.start_step")
def arange(c: Context, start: Any, end: Any, step: Any = 1, **options: Any) -> Value:
    return _iota(c, start, step)


@rule("aten.arange.default")
def arange_to(c: Context, end: Any, **options: Any) -> Value:
    return _iota(c, 0, 1)


@rule("aten.arange.start")
def arange_from(c: Context, start: Any, end: Any, **options: Any) -> Value:
    return _iota(c, start, 1)


@rule("prims.iota.default")
def iota(c: Context, length: Size, *, start: Any, step: Any, **options: Any) -> Value:
    return _iota(c, start, step)


def _iota(c: Context, start: Any, step: Any) -> Value:
    if isinstance(start, sz.Expr) or isinstance(step, sz.Expr):
        number: dt.DType = dt.i64
    elif isinstance(start, float) or isinstance(step, float):
        raise Unsupported("non-integer steps")
    else:
        number = dt.i64
    if 0 in c.shape or (not c.dtype.is_integer and c.dtype.bits < 32):
        raise Unsupported("no elements, or indices in float16 or bfloat16")
    x: Any = c.op("iota", shape=c.shape, axis=0, dtype=number)
    if step != 1:
        x = c.op("mul", x, c.value(step, number))
    if start != 0:
        x = c.op("add", x, c.value(start, number))
    return c.b.cast(x, c.dtype)


# ----------------------------------------------------------------------------------------------------------------
# indexing


@rule("aten.embedding.default")
def embedding(c: Context, table: Value, index: Value, *_: Any) -> Value:
    return c.op("take", table, checked(c, index, table.shape[0], 0), axis=0)


@rule("aten.index_select.default")
def index_select(c: Context, x: Value, dim: int, index: Value) -> Value:
    if not x.rank or index.rank != 1:
        raise Unsupported("a scalar, or a scalar index")
    dim = axis(dim, x.rank)
    return c.op("take", x, checked(c, index, x.shape[dim], dim), axis=dim)


@rule("aten._unsafe_index.Tensor")
def unsafe_index(c: Context, x: Value, indices: Sequence[Value | None]) -> Value:
    """Indexes one dimension after the other, as in resizing an image. All indices are in bounds: torch computes
    them."""
    for place, index in along_dimensions(c.b, indices).items():
        x = c.op("take", x, index, axis=place)
    return x


@rule("aten.index.Tensor")
def index(c: Context, x: Value, indices: Sequence[Value | None]) -> Value:
    x, at, dim = joined(c, x, indices)
    return c.op("take", x, at, axis=dim)


@rule("aten.index_fill.int_Scalar", "aten.index_fill.int_Tensor")
def index_fill(c: Context, x: Value, dim: int, index: Value, value: Any) -> Value:
    """Fills slices, for indices that are the same in every call and have a few constant steps, as in the gradient of a
    trace."""
    known = known_value(index)
    extent = x.shape[axis(dim, x.rank)] if x.rank else None
    if known is None or not known.size or not isinstance(extent, int):
        raise Unsupported("indices that differ between calls, or a scalar")
    known = np.where(known < 0, known + extent, known).ravel()
    if (known < 0).any() or (known >= extent).any():
        raise Unsupported("indices out of bounds")
    runs = list(itertools.islice(constant_steps(known, 0, known.size), _MOST_FILLED + 1))
    if len(runs) > _MOST_FILLED:
        raise Unsupported("indices of many steps")
    value = c.value(value, element(x))
    for run in runs:
        first, step = int(known[run.begin]), run.step or 1
        last = int(known[run.end - 1])
        start, count = min(first, last), abs(last - first) // abs(step) + 1
        windows = [(0, n, 1) for n in x.shape]
        windows[axis(dim, x.rank)] = start, count, abs(step)
        starts, size, steps = zip(*windows)
        x = c.op("set_slice", x, value, start=starts, size=size, step=steps)
    return x


@rule("aten.gather.default")
def gather(c: Context, x: Value, dim: int, index: Value, sparse_grad: bool = False) -> Value:
    dim = axis(dim, x.rank)
    if not x.rank:
        raise Unsupported("a scalar")
    for d, n in enumerate(index.shape):  # the first elements along the other dimensions
        x = x if d == dim else c.b.slice(x, d, 0, n)
    return c.op("take_along_axis", x, checked(c, index, x.shape[dim], dim), axis=dim)


@rule("aten.scatter.src")
def scatter_source(c: Context, x: Value, dim: int, index: Value, source: Value) -> Value:
    """A few values of each row, as in the gradient of top-k: each element compares its position with the indices. Of
    equal indices the last one stays."""
    dim = axis(dim, x.rank)
    given = index.shape[dim] if x.rank else 0
    if not isinstance(given, int) or not 0 < given <= _MOST_SCATTERED or index.shape != source.shape:
        raise Unsupported("many values per row, or some of the source")
    if any(a != b for k, (a, b) in enumerate(zip(x.shape, index.shape)) if k != dim):
        raise Unsupported("indices for a part of the tensor")
    index = checked(c, index, x.shape[dim], dim)
    here = c.op("iota", shape=tuple(n if k == dim else 1 for k, n in enumerate(x.shape)), axis=dim, dtype=index.dtype)
    for k in range(given):
        hit = c.op("eq", here, c.b.slice(index, dim, k, 1))
        x = c.op("where", hit, c.b.cast(c.b.slice(source, dim, k, 1), element(x)), x)
    return x


@rule("aten.scatter.value")
def scatter_value(c: Context, x: Value, dim: int, index: Value, value: Any) -> Value:
    """One index per row, as in the gradient of cross entropy: the value where the position equals the index."""
    dim = axis(dim, x.rank)
    if (
        not x.rank
        or index.shape[dim] != 1
        or any(a != b for k, (a, b) in enumerate(zip(x.shape, index.shape)) if k != dim)
    ):
        raise Unsupported("several indices per row")
    index = checked(c, index, x.shape[dim], dim)
    shape = tuple(n if k == dim else 1 for k, n in enumerate(x.shape))
    here = c.op("iota", shape=shape, axis=dim, dtype=index.dtype)
    hit = c.op("eq", here, index)
    return c.op("where", hit, c.value(value, element(x)), x)
