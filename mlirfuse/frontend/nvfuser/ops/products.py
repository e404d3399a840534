"""Matrix products, as extern ops of the arrays' framework between groups of kernels."""

from __future__ import annotations

import functools

from mlirfuse.frontend.nvfuser import product_kernels
from mlirfuse.frontend.nvfuser.ops.base import OperatorBase
from mlirfuse.frontend.nvfuser.ops.operation import operation
from mlirfuse.frontend.nvfuser.promotion import DataType, to_dtype
from mlirfuse.ir import dtypes as dt


class Products(OperatorBase):
    """Matrix products, also grouped and scaled."""

    @operation
    def matmul(self, arg1, arg2):
        """The matrix product, as torch.matmul."""
        a, b = self._tensor(arg1, "arg1").value, self._tensor(arg2, "arg2").value
        if a.dtype is not b.dtype:
            raise TypeError(f"A and B must have the same dtype, not {arg1.dtype} and {arg2.dtype}")
        if a.rank and b.rank:
            self._fd.equal(a.shape[-1], b.shape[-2] if b.rank > 1 else b.shape[0], "matmul")
        return self._make(self._b.op("matmul", a, b))

    @operation
    def linear(self, arg1, arg2, bias=None):
        """``arg1`` times ``arg2`` transposed, plus ``bias``."""
        values = [self._tensor(t).value for t in (arg1, arg2, bias) if t is not None]
        if len({v.dtype for v in values}) > 1:
            raise TypeError("input, weight and bias must have the same dtype")
        if values[0].rank and values[1].rank:
            self._fd.equal(values[0].shape[-1], values[1].shape[-1], "linear")
        if len(values) == 3 and values[2].rank and values[1].rank > 1:
            self._fd.equal(values[1].shape[0], values[2].shape[0], "linear")
        return self._make(self._b.op("linear", *values))

    def _product_in_groups(self, mat1, mat2, offsets) -> tuple:
        """Shape and operands of a grouped matmul; ``offsets``, Int32 of shape (g,), holds the groups' ends."""
        a, b, ends = (self._tensor(t, n).value for t, n in ((mat1, "mat1"), (mat2, "mat2"), (offsets, "offsets")))
        if ends.rank != 1 or ends.dtype not in (dt.i32, dt.i64):
            raise TypeError("offsets must be integers of rank 1, the groups' ends")
        if (a.rank, b.rank) not in ((2, 3), (3, 2), (2, 2)):
            raise ValueError(f"mat1 and mat2 must have rank 2 and 3, 3 and 2, or both 2, not {a.rank} and {b.rank}")
        self._fd.equal(a.shape[-1], b.shape[-2], "grouped_mm")
        for stack in (a, b):
            if stack.rank == 3:
                self._fd.equal(stack.shape[0], ends.shape[0], "grouped_mm")
        groups = (ends.shape[0],) if a.rank == b.rank else ()
        return (*groups, a.shape[-2], b.shape[-1]), a, b, ends

    @operation
    def grouped_mm(self, mat1, mat2, offsets):
        """A matmul per group: rows of ``mat1`` (m, k), in groups that end at ``offsets``, times ``mat2`` (g, k, n);
        ``mat1`` (g, m, k) times columns of ``mat2`` (k, n); or groups of the reduced dimension, giving (g, m, n)."""
        shape, a, b, ends = self._product_in_groups(mat1, mat2, offsets)
        if a.dtype is not b.dtype or a.dtype.kind != "f":
            raise TypeError(f"mat1 and mat2 must have the same float type, not {mat1.dtype} and {mat2.dtype}")
        function = functools.partial(product_kernels.grouped, a.dtype)
        return self._make(self._called("grouped_mm", function, (a, b, ends), [(a.dtype, shape)])[0])

    def _scale_options(self, alpha, bias, beta) -> tuple[tuple[str, ...], list]:
        if beta is not None:
            raise ValueError("beta is not supported: add the scaled tensor to the result")
        given = {name: self._tensor(t, name).value for name, t in (("alpha", alpha), ("bias", bias)) if t is not None}
        return tuple(given), list(given.values())

    @operation
    def scaled_mm(self, mat1, mat2, scale1, scale2, alpha=None, bias=None, beta=None, dtype=DataType.BFloat16):
        """(``mat1`` (m, k) * ``scale1``) @ (``mat2`` (k, n) * ``scale2``) * ``alpha`` + ``bias``, as ``dtype``. Scales
        are one number, or (m, 1) and (1, n). The other two results, of block scales, are None."""
        a, b, *scales = (self._tensor(t, "mat1").value for t in (mat1, mat2, scale1, scale2))
        if a.rank != 2 or b.rank != 2:
            raise ValueError(f"mat1 and mat2 must have rank 2, not {a.rank} and {b.rank}")
        self._fd.equal(a.shape[1], b.shape[0], "scaled_mm")
        names, more = self._scale_options(alpha, bias, beta)
        target = to_dtype(dtype)
        function = functools.partial(product_kernels.scaled, target, names)
        created = self._called("scaled_mm", function, (a, b, *scales, *more), [(target, (a.shape[0], b.shape[1]))])
        return self._make(created[0]), None, None

    @operation
    def scaled_grouped_mm(
        self, mat1, mat2, offsets, scale1, scale2, alpha=None, bias=None, beta=None, dtype=DataType.BFloat16
    ):
        """grouped_mm of ``mat1`` and ``mat2`` times scales that broadcast to them, as ``dtype``."""
        shape, a, b, ends = self._product_in_groups(mat1, mat2, offsets)
        scales = [self._tensor(t, "scale").value for t in (scale1, scale2)]
        names, more = self._scale_options(alpha, bias, beta)
        target = to_dtype(dtype)
        function = functools.partial(product_kernels.scaled_grouped, target, names)
        created = self._called("scaled_grouped_mm", function, (a, b, ends, *scales, *more), [(target, shape)])
        return self._make(created[0]), None, None
