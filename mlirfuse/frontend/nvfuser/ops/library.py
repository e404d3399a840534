"""Operations of ``fd.ops`` that the arrays' framework runs: scans, sorting and products. Groups form around them."""

from __future__ import annotations

from mlirfuse.frontend.nvfuser import promotion
from mlirfuse.frontend.nvfuser.ops.base import OperatorBase
from mlirfuse.frontend.nvfuser.ops.operation import operation
from mlirfuse.frontend.nvfuser.promotion import DataType
from mlirfuse.frontend.nvfuser.values import Tensor


class Library(OperatorBase):
    """Scans, sorting and products."""

    def _scan(self, row, arg, dim, dtype=None) -> Tensor:
        arg = self._tensor(arg)
        value = arg.value if dtype is None else self._b.cast(arg.value, dtype)
        return self._make(self._b.op(row, value, axis=self._dim(dim, arg.ndim)))

    @operation
    def cumsum(self, arg, dim):
        """Running sums along ``dim``; of integers and bools as Int."""
        return self._scan("cumsum", arg, dim, promotion.reduction_dtype(self._tensor(arg).value.dtype, DataType.Null))

    @operation
    def cumprod(self, arg, dim):
        """Running products along ``dim``; of integers and bools as Int."""
        return self._scan("cumprod", arg, dim, promotion.reduction_dtype(self._tensor(arg).value.dtype, DataType.Null))

    @operation
    def cummax(self, arg, dim):
        """Running maxima along ``dim``."""
        return self._scan("cummax", arg, dim)

    @operation
    def cummin(self, arg, dim):
        """Running minima along ``dim``."""
        return self._scan("cummin", arg, dim)

    @operation
    def argsort(self, arg, dim=-1, descending=False, stable=False):
        """The order that sorts ``arg`` along ``dim``."""
        arg = self._tensor(arg)
        return self._make(self._b.op("argsort", arg.value, axis=self._dim(dim, arg.ndim), descending=bool(descending)))

    @operation
    def topk(self, arg, k, dim=-1, largest=True, sorted=True):
        """The ``k`` largest (or smallest) along ``dim`` in order, and their positions."""
        arg, axis = self._tensor(arg), self._dim(dim, self._tensor(arg).ndim)
        count = self._size(k)
        extent = arg.value.shape[axis]
        self._within(0, count, "topk", "k must be 0 or more")
        self._within(count, extent, "topk", f"k must be within the extent of dimension {axis}")
        order = self._b.op("argsort", arg.value, axis=axis, descending=bool(largest))
        indices = self._b.slice(order, axis, 0, count)
        return self._make(self._b.op("take_along_axis", arg.value, indices, axis=axis)), self._make(indices)

    @operation
    def matmul(self, arg1, arg2):
        """The matrix product, as torch's."""
        a, b = self._tensor(arg1, "arg1").value, self._tensor(arg2, "arg2").value
        if a.dtype is not b.dtype:
            raise TypeError(f"A and B must have one type, not {arg1.dtype} and {arg2.dtype}")
        if a.rank and b.rank:
            self._fd.equal(a.shape[-1], b.shape[-2] if b.rank > 1 else b.shape[0], "matmul")
        return self._make(self._b.op("matmul", a, b))

    @operation
    def linear(self, arg1, arg2, bias=None):
        """``arg1`` times ``arg2`` transposed, plus ``bias``."""
        values = [self._tensor(t).value for t in (arg1, arg2, bias) if t is not None]
        if len({v.dtype for v in values}) > 1:
            raise TypeError("input, weight and bias must have one type")
        if values[0].rank and values[1].rank:
            self._fd.equal(values[0].shape[-1], values[1].shape[-1], "linear")
        if len(values) == 3 and values[2].rank and values[1].rank > 1:
            self._fd.equal(values[1].shape[0], values[2].shape[0], "linear")
        return self._make(self._b.op("linear", *values))
