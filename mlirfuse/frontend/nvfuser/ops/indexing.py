"""Operations of ``fd.ops`` that read and write elements at indices."""

from __future__ import annotations

from mlirfuse.frontend.nvfuser import promotion
from mlirfuse.frontend.nvfuser.ops.base import OperatorBase
from mlirfuse.frontend.nvfuser.ops.operation import operation
from mlirfuse.frontend.nvfuser.promotion import DataType
from mlirfuse.frontend.nvfuser.values import Scalar, Tensor
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Value


class Indexing(OperatorBase):
    """Selecting, gathering, scattering, embeddings, triangles."""

    def _indices(self, index) -> Tensor | Scalar:
        index = self._fd.as_val(index)
        kind = index.value.dtype if isinstance(index, Tensor) else index.dtype
        if kind not in (dt.i32, dt.i64):
            raise TypeError(f"index must be Int or Int32, not {promotion.from_name(kind)}")
        return index

    def _positions(self, index: Value, value: Value, axis: int) -> Value:
        """``index`` along an axis of ``value``, checked by the kernel that reads it, with negative ones counted from
        the end. On a GPU checked only where ``config.check_indices`` is on, else clamped."""
        return self._b.op("position", index, extent=value.shape[axis], axis=axis, checked=True)

    @operation
    def index_select(self, arg, index, dim):
        """Slices of ``arg`` at ``index``, of rank 0 or 1, along ``dim``."""
        arg, index = self._tensor(arg), self._indices(self._tensor(index, "index"))
        if index.ndim > 1:
            raise ValueError(f"index array must be 1D or scalar tensor, not of rank {index.ndim}")
        axis = self._dim(dim, arg.ndim, beyond="index_select on invalid axis")
        indices = self._positions(self._with_dimension(index.value), arg.value, axis)
        return self._make(self._b.op("take", arg.value, indices, axis=axis))

    @operation
    def select(self, arg, index, dim):
        """The slice of ``arg`` at a scalar ``index`` along ``dim``, without that dimension."""
        arg, index = self._tensor(arg), self._indices(index)
        if isinstance(index, Tensor) and index.ndim:
            raise ValueError("select takes a scalar index; index_select takes several")
        axis = self._dim(dim, arg.ndim)
        if isinstance(index, Tensor):
            value = self._positions(index.value, arg.value, axis)
        else:
            at, extent = index.as_size(), arg.value.shape[axis]
            words = f"the index must be within the extent of dimension {axis}"
            self._within(at + 1, extent, "select", f"{words}")
            self._within(0, at + extent, "select", f"{words}, counted from the end where it is negative")
            value = index.as_value(dt.i64)
        return self._make(self._b.op("take", arg.value, value, axis=axis))

    def _element(self, arg: Tensor, index: Tensor, dim) -> Tensor:
        """The element of a 0-d tensor at a 0-d index."""
        axis = self._dim(dim, 0)
        lookup = self._with_dimension(arg.value)
        indices = self._positions(self._with_dimension(index.value), lookup, axis)
        return self._make(self._b.reshape(self._b.op("take_along_axis", lookup, indices, axis=axis), ()))

    @operation
    def gather(self, arg, index, dim):
        """``out[i, j] = arg[index[i, j], j]`` for dim 0; ``index`` may be smaller than ``arg`` in the other
        dimensions."""
        arg, index = self._tensor(arg), self._indices(self._tensor(index, "index"))
        if arg.ndim != index.ndim:
            raise ValueError(f"arg and index must have the same rank, not {arg.ndim} and {index.ndim}")
        if not arg.ndim:
            return self._element(arg, index, dim)
        axis, value = self._dim(dim, arg.ndim), arg.value
        for k, n in enumerate(index.value.shape):
            if k != axis:
                self._within(n, arg.value.shape[k], "gather", f"index must have at most arg's extent in dimension {k}")
                value = self._b.slice(value, k, 0, n)
        indices = self._positions(index.value, value, axis)
        return self._make(self._b.op("take_along_axis", value, indices, axis=axis))

    @operation
    def take_along_axis(self, arg, index, dim):
        """gather where ``index`` has ``arg``'s extents, or 1, in the other dimensions."""
        arg, index = self._tensor(arg), self._indices(self._tensor(index, "index"))
        if arg.ndim != index.ndim:
            raise ValueError(f"arg and index must have the same rank, not {arg.ndim} and {index.ndim}")
        if not arg.ndim:
            return self._element(arg, index, dim)
        axis = self._dim(dim, arg.ndim, beyond=f"Tensor arguments have dimension {arg.ndim}")
        shape = [list(arg.value.shape), list(index.value.shape)]
        for k in range(arg.ndim):
            if k != axis:
                a, b = shape[0][k], shape[1][k]
                if a != 1 and b != 1:
                    self._fd.equal(a, b, "take_along_axis")
                shape[0][k] = shape[1][k] = b if a == 1 else a
        positions = self._positions(index.value, arg.value, axis)
        lookup, indices = (self._b.broadcast_to(v, s) for v, s in zip((arg.value, positions), shape))
        return self._make(self._b.op("take_along_axis", lookup, indices, axis=axis))

    @operation
    def scatter(self, arg, index, src, dim):
        """``arg`` with ``out[index[i, j], j] = src[i, j]`` for dim 0; ``src`` may be a scalar, or larger
        than ``index``."""
        arg, index, src = (self._tensor(arg), self._indices(self._tensor(index, "index")), self._fd.as_val(src))
        if arg.ndim != index.ndim or (isinstance(src, Tensor) and src.ndim != arg.ndim):
            raise ValueError("arg, index and src must have the same rank")
        if isinstance(src, Tensor) and src.value.dtype is not arg.value.dtype:
            raise TypeError(f"arg and src must have the same dtype, not {arg.dtype} and {src.dtype}")
        axis = self._dim(dim, arg.ndim)
        for k, n in enumerate(index.value.shape):
            if k != axis:
                self._within(n, arg.value.shape[k], "scatter", f"index must have at most arg's extent in dimension {k}")
        values = self._at(src, arg.value.dtype)
        if isinstance(src, Tensor):
            for k, n in enumerate(index.value.shape):
                if values.shape[k] != n:
                    words = f"index must have at most src's extent in dimension {k}"
                    self._within(n, values.shape[k], "scatter", words)
                    values = self._b.slice(values, k, 0, n)
        return self._make(self._b.op("scatter", arg.value, index.value, values, axis=axis))

    @operation
    def index_put_accumulate(self, acc, index, value):
        """``acc`` with row ``value[k]`` added to its row ``index[k]``."""
        acc, index, value = (self._tensor(acc), self._indices(self._tensor(index, "index")), self._tensor(value))
        if acc.ndim != value.ndim or index.ndim != 1 or not acc.ndim:
            raise ValueError(
                f"acc and value must have the same rank and index rank 1, not {acc.ndim}, {value.ndim} and {index.ndim}"
            )
        if acc.value.dtype is not value.value.dtype:
            raise TypeError(f"acc and value must have the same dtype, not {acc.dtype} and {value.dtype}")
        self._fd.equal(index.value.shape[0], value.value.shape[0], "index_put_accumulate")
        for a, b in zip(acc.value.shape[1:], value.value.shape[1:]):
            self._fd.equal(a, b, "index_put_accumulate")
        indices = self._positions(index.value, acc.value, 0)
        return self._make(self._b.op("index_put_accumulate", acc.value, indices, value.value))

    index_accumulate = index_put_accumulate

    @operation
    def embedding_fwd(
        self, input, weight, padding_idx=None, max_norm=None, norm_type=None, scale_grad_by_freq=None, sparse=None
    ):
        """Rows of ``weight`` at ``input``, scaled down to ``max_norm`` where their ``norm_type``-norm is larger. The
        other arguments only affect the backward; ``weight`` is not changed."""
        input, weight = (self._indices(self._tensor(input, "input")), self._tensor(weight, "weight"))
        if weight.ndim != 2:
            raise ValueError(f"weight must have rank 2, not {weight.ndim}")
        positions = self._positions(input.value, weight.value, 0)
        rows = self._make(self._b.op("take", weight.value, positions, axis=0))
        if max_norm is None:
            return rows
        size, order = (self.abs(self.cast(rows, DataType.Float)), 2.0 if norm_type is None else norm_type)
        norm = self.pow(self.sum(self.pow(size, order), [-1], True), self.reciprocal(self._fd.as_val(order)))
        scale = self.div(max_norm, self.add(norm, 1e-7))
        return self.cast(self.mul(rows, self.where(self.gt(norm, max_norm), scale, 1.0)), rows.dtype)

    @operation
    def embedding_bwd(self, grad, input, num_embeddings, padding_idx=None):
        """The gradient of an embedding's weight: rows of ``grad`` summed by index, none for ``padding_idx``."""
        grad, input = (self._tensor(grad, "grad"), self._indices(self._tensor(input, "input")))
        if grad.ndim != input.ndim + 1:
            raise ValueError(f"grad must have one dimension more than input, not {grad.ndim} and {input.ndim}")
        for n, m in zip(grad.value.shape, input.value.shape):
            self._fd.equal(n, m, "embedding_bwd")
        rows, width = self._size(num_embeddings), grad.value.shape[-1]
        self._within(0, rows, "embedding_bwd", "num_embeddings must be 0 or more")
        value = self._b.reshape(grad.value, (sz.product(grad.value.shape[:-1]), width))
        index = self._b.reshape(input.value, (input.value.numel,))
        if padding_idx is not None:
            pad = self._at(self._fd.as_val(padding_idx), input.value.dtype)
            pad = self._b.op(
                "where",
                self._b.op("lt", pad, self._b.constant(0, pad.dtype)),
                self._b.op("add", pad, self._b.cast(self._b.size(rows), pad.dtype)),
                pad,
            )
            keep = self._b.op("expand_dims", self._b.op("ne", index, pad), axes=(1,))
            value = self._b.op("where", keep, value, self._b.constant(0, value.dtype))
        zeros = self._b.op("full", self._b.constant(0, value.dtype), shape=(rows, width))
        index = self._positions(index, zeros, 0)
        return self._make(self._b.op("index_put_accumulate", zeros, index, value))

    @operation
    def triu(self, input, diagonal=0):
        """``input`` with zeros below the given diagonal of the last two dimensions."""
        input, offset = self._tensor(input, "input"), self._fd.as_val(diagonal)
        if input.ndim < 2:
            raise ValueError(f"input tensor for triu must have 2 or more dims, but got {input.ndim} dims")
        rows, columns = input.value.shape[-2:]
        i = self._b.op("iota", shape=(rows, 1), axis=0, dtype=dt.i64)
        j = self._b.op("iota", shape=(1, columns), axis=1, dtype=dt.i64)
        keep = self._b.op("ge", j, self._b.op("add", i, self._at(offset, dt.i64)))
        return self._make(self._b.elementwise("where", keep, input.value, self._b.constant(0, input.value.dtype)))
