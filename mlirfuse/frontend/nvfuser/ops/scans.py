"""Scans as kernels; sorts as extern ops of the arrays' framework."""

from __future__ import annotations

import functools

from mlirfuse.frontend.nvfuser import promotion, sorting
from mlirfuse.frontend.nvfuser.ops.base import OperatorBase
from mlirfuse.frontend.nvfuser.ops.operation import operation
from mlirfuse.frontend.nvfuser.promotion import DataType
from mlirfuse.frontend.nvfuser.values import Tensor
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.graph import Value


class Scans(OperatorBase):
    """Cumulative sums, products and extrema; sorting."""

    def _scan(self, row, arg, dim, dtype=None) -> Tensor:
        arg = self._tensor(arg)
        value = arg.value if dtype is None else self._b.cast(arg.value, dtype)
        return self._along_dimension(row, arg, value, dim)

    def _along_dimension(self, row: str, arg: Tensor, value: Value, dim, **attrs) -> Tensor:
        """An op along a dimension, with the shape of ``arg``; a 0-d tensor counts as 1-d with extent 1, as in torch."""
        axis = self._dim(dim, arg.ndim)
        created = self._b.op(row, self._with_dimension(value), axis=axis, **attrs)
        return self._make(created if arg.ndim else self._b.reshape(created, ()))

    @operation
    def cumsum(self, arg, dim):
        """Cumulative sums along ``dim``; of integers and bools as Int."""
        return self._scan("cumsum", arg, dim, promotion.reduction_dtype(self._tensor(arg).value.dtype, DataType.Null))

    @operation
    def cumprod(self, arg, dim):
        """Cumulative products along ``dim``; of integers and bools as Int."""
        return self._scan("cumprod", arg, dim, promotion.reduction_dtype(self._tensor(arg).value.dtype, DataType.Null))

    @operation
    def cummax(self, arg, dim):
        """Cumulative maxima along ``dim``."""
        return self._scan("cummax", arg, dim)

    @operation
    def cummin(self, arg, dim):
        """Cumulative minima along ``dim``."""
        return self._scan("cummin", arg, dim)

    @operation
    def argsort(self, arg, dim=-1, descending=False, stable=False):
        """The indices that sort ``arg`` along ``dim``; equal elements in torch's order, or with ``stable`` in input
        order."""
        arg = self._tensor(arg)
        axis, value = self._dim(dim, arg.ndim), self._with_dimension(arg.value)
        function = functools.partial(sorting.argsort, axis, bool(descending), bool(stable))
        order = self._called("argsort", function, (value,), [(dt.i64, value.shape)])[0]
        return self._make(order if arg.ndim else self._b.reshape(order, ()))

    @operation
    def topk(self, arg, k, dim=-1, largest=True, sorted=True):
        """The ``k`` largest (or smallest) elements along ``dim`` in order, and their indices; ties are broken as in
        torch."""
        arg, axis = self._tensor(arg), self._dim(dim, self._tensor(arg).ndim)
        count = self._size(k)
        value = self._with_dimension(arg.value)
        self._within(0, count, "topk", "k must be 0 or more")
        self._within(count, value.shape[axis], "topk", f"k must be within the extent of dimension {axis}")
        shape = tuple(count if d == axis else n for d, n in enumerate(value.shape))
        function = functools.partial(sorting.topk, axis, bool(largest))
        results = [(value.dtype, shape), (dt.i64, shape)]
        values, indices = self._called("topk", function, (value,), results, (count,))
        if not arg.ndim:
            self._fd.equal(count, 1, "topk")
            values, indices = self._b.reshape(values, ()), self._b.reshape(indices, ())
        return self._make(values), self._make(indices)
