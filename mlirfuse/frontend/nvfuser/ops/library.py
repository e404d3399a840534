"""Operations of ``fd.ops`` that the arrays' framework runs: scans, sorting and products. Groups form around them."""

from __future__ import annotations

from mlirfuse.frontend.nvfuser import promotion
from mlirfuse.frontend.nvfuser.ops.base import OperatorBase
from mlirfuse.frontend.nvfuser.ops.operation import operation
from mlirfuse.frontend.nvfuser.promotion import DataType
from mlirfuse.frontend.nvfuser.values import Tensor
from mlirfuse.ir.graph import Value


class Library(OperatorBase):
    """Scans, sorting and products."""

    def _scan(self, row, arg, dim, dtype=None) -> Tensor:
        arg = self._tensor(arg)
        value = arg.value if dtype is None else self._b.cast(arg.value, dtype)
        return self._along_dimension(row, arg, value, dim)

    def _along_dimension(self, row: str, arg: Tensor, value: Value, dim, **attrs) -> Tensor:
        """An op along a dimension, of the shape of ``arg``; a tensor of rank 0 has one of extent 1, as in torch."""
        axis = self._dim(dim, arg.ndim)
        made = self._b.op(row, self._with_dimension(value), axis=axis, **attrs)
        return self._make(made if arg.ndim else self._b.reshape(made, ()))

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
        return self._along_dimension("argsort", arg, arg.value, dim, descending=bool(descending))

    @operation
    def topk(self, arg, k, dim=-1, largest=True, sorted=True):
        """The ``k`` largest (or smallest) along ``dim`` in order, and their positions."""
        arg, axis = self._tensor(arg), self._dim(dim, self._tensor(arg).ndim)
        count = self._size(k)
        value = self._with_dimension(arg.value)
        extent = value.shape[axis]
        self._within(0, count, "topk", "k must be 0 or more")
        self._within(count, extent, "topk", f"k must be within the extent of dimension {axis}")
        order = self._b.op("argsort", value, axis=axis, descending=bool(largest))
        indices = self._b.slice(order, axis, 0, count)
        values = self._b.op("take_along_axis", value, indices, axis=axis)
        if not arg.ndim:
            self._fd.equal(count, 1, "topk")
            values, indices = self._b.reshape(values, ()), self._b.reshape(indices, ())
        return self._make(values), self._make(indices)

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
