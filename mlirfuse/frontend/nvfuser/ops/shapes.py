"""Shape operations of ``fd.ops``, slices, pads and concatenation; and sizes as scalars."""

from __future__ import annotations

import itertools

import numpy as np

from mlirfuse.core.errors import ShapeError
from mlirfuse.frontend.nvfuser.ops.base import OperatorBase
from mlirfuse.frontend.nvfuser.ops.operation import operation, query
from mlirfuse.frontend.nvfuser.promotion import DataType
from mlirfuse.frontend.nvfuser.values import (
    Scalar,
    Tensor,
    Vector,
)
from mlirfuse.ir import sizes as sz

_CLASS = {"b": "b", "i": "i", "u": "i", "f": "f", "n": "f", "c": "c"}  # types that a pad's value may have


class Shapes(OperatorBase):
    """Broadcasts, reshapes, slices, pads, concatenation; ``size`` and ``shape``."""

    @operation
    def broadcast(self, arg, is_broadcast_dim):
        """``arg`` with new dimensions of extent 1 where flagged."""
        arg, flags = self._tensor(arg), [bool(f) for f in self._list(is_broadcast_dim, "is_broadcast_dim")]
        if flags.count(False) != arg.ndim:
            raise ValueError(
                f"is_broadcast_dim has {flags.count(False)} dimensions that are not broadcast, but the tensor "
                f"has rank {arg.ndim}"
            )
        axes = tuple(k for k, f in enumerate(flags) if f)
        return self._make(self._b.op("expand_dims", arg.value, axes=axes) if axes else arg.value)

    @operation
    def broadcast_in_dim(self, arg, shape, broadcast_dims):
        """``arg`` with dimension k at ``broadcast_dims[k]`` of a tensor of this shape, repeated along the other
        dimensions."""
        arg, sizes, dims = (
            self._tensor(arg),
            self._sizes(shape, "shape"),
            self._integers(broadcast_dims, "broadcast_dims"),
        )
        if len(sizes) < len(dims):
            raise ValueError("broadcast_dims vector size is too big for output shape!")
        if arg.ndim != len(dims):
            raise ValueError(f"The broadcast dimensions should match the input dimensions: {arg.ndim} vs {len(dims)}")
        if any(not 0 <= d < len(sizes) for d in dims):
            raise ValueError(f"Invalid broadcast_dims value: {dims} for an output of rank {len(sizes)}")
        if any(a >= b for a, b in itertools.pairwise(dims)):
            raise ValueError("Broadcast dimension is not greater than the previous value.")
        if len(dims) < len(sizes) and self._fd._depth == 1:
            self._fd._number("tv")  # nvFuser makes a tensor for the broadcast and one for the expansion
        return self._expanded(arg, sizes, dims)

    @operation
    def expand(self, arg, shape):
        """``arg`` with dimensions of extent 1 repeated to ``shape``; -1 keeps a dimension."""
        arg, sizes = self._tensor(arg), self._sizes(shape, "shape")
        if len(sizes) < arg.ndim:
            raise ValueError(f"the expanded shape has {len(sizes)} dimensions, but the tensor has {arg.ndim}")
        return self._expanded(arg, sizes, list(range(len(sizes) - arg.ndim, len(sizes))))

    def _expanded(self, arg, sizes, dims) -> Tensor:
        back = dict(zip(dims, arg.value.shape))
        out = []
        for k, n in enumerate(sizes):
            if n == -1:
                if k not in back:
                    raise ValueError(f"the extent of the new dimension {k} must be given")
                n = back[k]
            elif k in back and back[k] != 1:
                self._fd.equal(back[k], n, "expand")
                n = back[k] if not isinstance(n, int) else n
            out.append(n)
        if tuple(out) == arg.value.shape and dims == list(range(len(out))):
            return self._make(arg.value, expanded=arg.expanded)
        expanded = [k for k in range(len(out)) if out[k] != 1 and (k not in back or back[k] == 1)]
        return self._make(
            self._b.op("broadcast_in_dim", arg.value, shape=tuple(out), dims=tuple(dims)), expanded=expanded
        )

    @operation
    def squeeze(self, arg, dims, squeeze_expanded=False):
        """``arg`` without the broadcast dimensions ``dims``; with ``squeeze_expanded`` also without expanded ones."""
        arg = self._tensor(arg)
        axes = self._dims(dims, arg.ndim)
        value = arg.value
        for a in axes:
            n = value.shape[a]
            if n == 1:
                continue
            if squeeze_expanded and a in arg.expanded:
                value = self._b.slice(value, a, 0, 1)
            elif isinstance(n, int) or _is_input_extent(n):
                raise ValueError(
                    f"Squeeze dimension should be of extent 1: dimension {a} is "
                    f"{'not broadcast' if not isinstance(n, int) else n}"
                )
            else:
                self._fd.equal(n, 1, "squeeze")
                value = self._b.reshape(value, [1 if k == a else m for k, m in enumerate(value.shape)])
        return self._make(self._b.op("squeeze", value, axes=tuple(sorted(axes))) if axes else value)

    @operation
    def permute(self, arg, dims):
        """Dimension k of the result is dimension ``dims[k]`` of ``arg``."""
        arg = self._tensor(arg)
        if len(self._list(dims, "dims")) != arg.ndim:
            raise ValueError("Operator permute expects `dims` argument to have the same length as input!")
        beyond = f"dims argument is out of range, expects -{arg.ndim} to {arg.ndim - 1}"
        return self._make(self._b.permute(arg.value, self._dims(dims, arg.ndim, beyond=beyond)))

    @operation
    def reshape(self, arg, new_shape):
        """The elements in row-major order in a new shape; one extent may be -1."""
        arg = self._tensor(arg)
        sizes = self._sizes(new_shape, "new_shape")
        return self._make(self._reshaped(arg.value, sizes))

    def _reshaped(self, value, sizes):
        unknown = [k for k, n in enumerate(sizes) if n == -1]
        if len(unknown) > 1:
            raise ValueError("A maximum of one value of -1 can be in a new shape")
        total = value.numel
        if unknown:
            known = sz.product(n for n in sizes if n != -1)
            if known == 0 or (isinstance(total, int) and isinstance(known, int) and total % known):
                raise ShapeError(f"cannot reshape {total} elements into {sizes}")
            sizes[unknown[0]] = sz.floordiv(total, known)
            if sz.quotient(total, known) is None:
                self._fd.equal(sz.mul(known, sizes[unknown[0]]), total, "reshape")
        else:
            wanted = sz.product(sizes)
            if isinstance(total, int) and isinstance(wanted, int) and total != wanted:
                raise ShapeError(f"Total element counts across view operation must match: {total} and {wanted}")
            self._fd.equal(wanted, total, "reshape")
        return self._b.reshape(value, tuple(sizes))

    @operation
    def view(self, arg, original_shape, new_shape):
        """The older API's reshape: ``arg`` must have ``original_shape``."""
        arg = self._tensor(arg)
        sizes = self._sizes(original_shape, "original_shape")
        if len(sizes) != arg.ndim:
            raise ValueError(f"original_shape has {len(sizes)} dimensions, but the tensor has {arg.ndim}")
        for n, m in zip(sizes, arg.value.shape):
            self._fd.equal(n, m, "view")
        return self._make(self._reshaped(arg.value, self._sizes(new_shape, "new_shape")))

    @operation
    def slice(self, arg, start_indices, end_indices, strides=None, manual_normalization=False):
        """Elements from start up to end (exclusive) of each dimension, clamped to the extents unless
        ``manual_normalization``."""
        arg = self._tensor(arg)
        starts = self._sizes(start_indices, "start_indices", check=False)
        ends = self._sizes(end_indices, "end_indices", check=False)
        steps = [1] * len(starts) if strides is None else self._sizes(strides, "strides", check=False)
        if len(ends) != len(starts):
            raise ValueError(
                f"Slice indexing attribute dimensions don't match! Start Indices: {len(starts)} End "
                f"Indices: {len(ends)}"
            )
        if len(steps) != len(starts):
            raise ValueError(
                f"Slice start_indices and strides don't match! Start Indices: {len(starts)} Strides: {len(steps)}"
            )
        if len(starts) != arg.ndim:
            raise ValueError(
                f"Number of tensor dimensions does not match slice dimensions! Tensor-dims: {arg.ndim} "
                f"Slice-dims: {len(starts)}"
            )
        from_, sizes = [], []
        for k, (start, end, step, extent) in enumerate(zip(starts, ends, steps, arg.value.shape)):
            if not isinstance(step, int) or step < 1:
                raise ValueError("Slice operation strides must be constants of 1 or more")
            start, end = self._slice_bounds(k, start, end, extent, manual_normalization)
            from_.append(start)
            sizes.append(end - start if step == 1 else sz.ceildiv(end - start, step))
        if all(s == 0 for s in from_) and tuple(sizes) == arg.value.shape and all(s == 1 for s in steps):
            return self._make(arg.value, expanded=arg.expanded)
        return self._make(self._b.op("slice", arg.value, start=tuple(from_), size=tuple(sizes), step=tuple(steps)))

    def _slice_bounds(self, k: int, start, end, extent, normalized: bool) -> tuple:
        """Start and end of a slice along dimension ``k``, clamped to its extent unless ``normalized``. Bounds known
        only at a call are checked by it."""
        low, order = "must be greater than or equal to", f"in dimension {k}"
        self._within(0, start, "slice", f"Slice operation start_indices {low} 0, {order}")
        if normalized or (isinstance(start, int) and isinstance(end, int)):
            self._within(start, end, "slice", f"Slice operation end_indices {low} start_indices, {order}")
        if normalized:
            self._within(end, extent, "slice", f"Slice operation end_indices must be within the extent, {order}")
            return start, end
        self._within(0, end, "slice", f"Slice operation end_indices {low} 0, {order}")
        reach = sz.minimum(end, extent)
        end = self._fd.at_most(end, extent, f"end {k}")
        return (start if start == 0 else self._fd.at_most(start, reach, f"start {k}")), end

    @operation
    def pad(self, arg, pad_widths, value=None):
        """``arg`` padded with ``value`` (0 by default): ``pad_widths`` are before and after the last dimension, then
        the one before it, …"""
        arg, widths = (self._tensor(arg), self._sizes(pad_widths, "pad_widths", check=False))
        if len(widths) % 2:
            raise ValueError(f"Invalid number of padding widths: {len(widths)}, two for each dimension are needed")
        if len(widths) > 2 * arg.ndim:
            raise ValueError(
                f"Number of pad widths must be at most twice the input dimension: {len(widths)} for rank {arg.ndim}"
            )
        low, high = [0] * arg.ndim, [0] * arg.ndim
        for k in range(len(widths) // 2):
            axis = arg.ndim - 1 - k
            low[axis], high[axis] = (widths[2 * k], widths[2 * k + 1])
            left = arg.value.shape[axis] + low[axis] + high[axis]
            if not all(isinstance(n, int) and n >= 0 for n in (low[axis], high[axis])):
                self._within(0, left, "pad", f"extent_int >= 0: negative pads exceed the extent of dimension {axis}")
        if all(n == 0 for n in low + high):
            return self._make(arg.value)
        fill = self._fd.as_val(0 if value is None else value)
        if isinstance(fill, Tensor) and fill.ndim:
            raise TypeError("pad: value must be a scalar")
        kind = arg.value.dtype.kind
        if isinstance(value, Scalar) and _CLASS[fill.dtype.kind] != _CLASS[kind]:
            raise TypeError(
                f"Tensor arg and pad value must have the same dtype. They are {arg.dtype} and {fill.data_type}: give a "
                "number, or a scalar of the tensor's type"
            )
        if not isinstance(fill, Tensor) and "biufc".index(fill.dtype.kind) > "biufc".index(kind.replace("n", "f")):
            raise TypeError(f"Tensor arg and pad value must have the same dtype. {value} is not a {arg.dtype}")
        return self._make(
            self._b.op("pad", arg.value, self._at(fill, arg.value.dtype), low=tuple(low), high=tuple(high))
        )

    @operation
    def cat(self, tensors, dim=0, manual_padding=False):
        """Tensors concatenated along ``dim``; dtypes are promoted."""
        tensors = [self._tensor(t, "tensors") for t in self._list(tensors, "tensors")]
        if not tensors:
            raise ValueError("Attempting to concatenate empty list of tensors")
        rank = tensors[0].ndim
        if any(t.ndim != rank for t in tensors) or rank == 0:
            raise ValueError(
                "Unexpected number of dimensions: cat needs tensors of equal rank, at least 1, not "
                f"{[t.ndim for t in tensors]}"
            )
        axis = self._dim(dim, rank, beyond="Invalid dimension to cat")
        common = self._common(tensors, halves_to_float=False)
        values = [self._b.cast(t.value, common) for t in tensors]
        for k in range(rank):
            for v in values[1:]:
                if k != axis:
                    self._fd.equal(values[0].shape[k], v.shape[k], "cat")
        return self._make(
            self._b.op("concatenate", *values, axis=axis) if len(values) > 1 else self._b.op("copy", values[0])
        )

    @operation
    def split(self, arg, sizes, dim=0):
        """Consecutive slices of these sizes along ``dim``."""
        arg = self._tensor(arg)
        axis, sizes = self._dim(dim, arg.ndim), self._sizes(sizes, "sizes", check=False)
        total = 0
        for n in sizes:
            total = total + n
        for k, n in enumerate(sizes):
            self._within(0, n, "split", f"the size of slice {k} must be 0 or more")
        self._fd.equal(total, arg.value.shape[axis], "split")
        return self._slices(arg, axis, sizes)

    def _slices(self, arg, axis, sizes) -> list[Tensor]:
        out, start = [], 0
        for n in sizes:
            out.append(self._make(self._b.slice(arg.value, axis, start, n)))
            start = start + n
        return out

    @operation
    def chunk(self, arg, chunks, dim=0):
        """``chunks`` slices along ``dim``, equal but for the last; fewer where the extent is known to be too small, as
        in torch. Where the extent is unknown, there are ``chunks``, and a call with an extent that gives fewer
        raises."""
        arg = self._tensor(arg)
        axis, extent = (self._dim(dim, arg.ndim), arg.value.shape[self._dim(dim, arg.ndim)])
        chunks = self._integer(chunks, "chunks")
        if chunks < 1:
            raise ValueError(f"chunk expects chunks to be positive, not {chunks}")
        step = sz.ceildiv(extent, chunks)
        before = sz.mul(step, chunks - 1)
        if not isinstance(extent, int) or self._fd._replay is not None:  # an extent may be known only in a call
            self._within(
                before + sz.minimum(extent, 1),
                extent,
                "chunk",
                f"the extent of dimension {axis} gives fewer than {chunks} slices, as in torch: "
                "ask for fewer, or declare the extent",
            )
        if isinstance(extent, int):
            length = -(-extent // chunks)
            sizes = [min(length, extent - at) for at in range(0, extent, length)] if extent else [0] * chunks
        else:
            sizes = [step] * (chunks - 1) + [extent - before]
        return self._slices(arg, axis, sizes)

    @operation
    def flip(self, arg, dims):
        """``arg`` with the elements along ``dims`` in reverse order."""
        arg = self._tensor(arg)
        axes = self._dims(dims, arg.ndim)
        start = tuple(n - 1 if k in axes else 0 for k, n in enumerate(arg.value.shape))
        step = tuple(-1 if k in axes else 1 for k in range(arg.ndim))
        return self._make(self._b.op("slice", arg.value, start=start, size=arg.value.shape, step=step))

    # -- sizes

    @operation
    def size(self, arg, dim):
        """The extent of a dimension, as a scalar."""
        arg = self._tensor(arg)
        beyond = "The dimension requested is beyond the bounds of the shape of the indexed tensor!"
        return Scalar(self._fd, DataType.Int, size=arg.value.shape[self._dim(dim, arg.ndim, beyond=beyond)])

    @query
    def shape(self, arg) -> Vector:
        """The extents, as a vector of scalars."""
        return Vector(self.size(arg, k) for k in range(self._tensor(arg).ndim))

    tensor_sizes = shape

    @query
    def at(self, vector, index: int) -> Scalar:
        """Element ``index`` of a vector."""
        if not isinstance(vector, Vector):
            raise TypeError(f"a vector is needed, as from fd.ops.shape, not {type(vector).__name__}")
        if isinstance(index, bool) or not isinstance(index, (int, np.integer)):
            raise TypeError(f"the index must be an integer, not {type(index).__name__}")
        if not -len(vector) <= index < len(vector):
            raise ValueError(
                "The index requested is beyond the bounds of the indexed vector! "
                f"The index {index} is out of bounds of a vector of size {len(vector)}"
            )
        return vector[index]


def _is_input_extent(size) -> bool:
    return isinstance(size, sz.Expr) and size.is_symbol and str(size)[0] == "s"
