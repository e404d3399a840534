"""Reductions of ``fd.ops``."""

from __future__ import annotations

import functools

from mlirfuse.frontend.nvfuser import promotion
from mlirfuse.frontend.nvfuser.ops.base import OperatorBase
from mlirfuse.frontend.nvfuser.ops.operation import operation
from mlirfuse.frontend.nvfuser.promotion import DataType, from_dtype
from mlirfuse.frontend.nvfuser.values import Tensor
from mlirfuse.ir import sizes as sz
from mlirfuse.runtime import arrays


class Reductions(OperatorBase):
    """Sums, products, extrema and moments over dimensions."""

    def _reduced(self, dims, rank: int) -> tuple[int, ...]:
        return self._dims(dims, rank, beyond="Reduction on invalid axis", twice="Reduction axes are not unique")

    def _reduce(self, row, arg, dims, keepdim, dtype=None, **attrs) -> Tensor:
        arg = self._tensor(arg)
        axes = tuple(range(arg.ndim)) if dims is None else self._reduced(dims, arg.ndim)
        if self._fd._depth == 1:
            self._fd._shown["dims"] = sorted(axes)
        value = arg.value if dtype is None else self._b.cast(arg.value, dtype)
        if not arg.ndim:
            return self._make(self._b.op(row, self._with_dimension(value), axes=(0,), keepdims=False, **attrs))
        if not axes:
            raise ValueError("No reduction dimensions were given")
        return self._make(self._b.op(row, value, axes=tuple(sorted(axes)), keepdims=bool(keepdim), **attrs))

    def _sum_like(self, row, arg, dims, keepdim, dtype):
        if isinstance(dims, DataType):
            dims, dtype = None, dims
        computed = promotion.reduction_dtype(self._tensor(arg).value.dtype, dtype)
        if self._fd._depth == 1:
            self._fd._shown["dtype"] = from_dtype(computed)
        return self._reduce(row, arg, dims, keepdim, computed)

    @operation
    def sum(self, arg, dims=None, keepdim=False, dtype=DataType.Null):
        """The sum over ``dims`` (default: all), computed and returned as ``dtype``; by default Int for integers and
        bools."""
        return self._sum_like("sum", arg, dims, keepdim, dtype)

    @operation
    def prod(self, arg, dims=None, keepdim=False, dtype=DataType.Null):
        """The product over ``dims`` (default: all), with a sum's dtype. An extern op for complex numbers."""
        if self._tensor(arg).value.dtype.kind == "c":
            return self._complex_product(self._tensor(arg), dims, bool(keepdim), dtype)
        return self._sum_like("prod", arg, dims, keepdim, dtype)

    def _complex_product(self, arg: Tensor, dims, keepdim: bool, dtype) -> Tensor:
        if isinstance(dims, DataType):
            dims, dtype = None, dims
        if dtype not in (None, DataType.Null, from_dtype(arg.value.dtype)):
            arg = self.cast(arg, dtype)
        axes = tuple(range(arg.ndim)) if dims is None else tuple(sorted(self._reduced(dims, arg.ndim)))
        if arg.ndim and not axes:
            raise ValueError("No reduction dimensions were given")
        shape = tuple(1 if d in axes else n for d, n in enumerate(arg.value.shape) if keepdim or d not in axes)
        function = functools.partial(_product, axes, keepdim)
        return self._make(self._called("prod", function, (arg.value,), [(arg.value.dtype, shape)])[0])

    def _extremum(self, row, arg, dims, keepdim):
        if isinstance(dims, DataType):
            dims = None
        return self._reduce(row, arg, dims, keepdim)

    @operation
    def max(self, arg, dims=None, keepdim=False, dtype=DataType.Null):
        """The maximum over ``dims`` (default: all); NaN if any element is. ``dtype`` is unused."""
        return self._extremum("max", arg, dims, keepdim)

    @operation
    def min(self, arg, dims=None, keepdim=False, dtype=DataType.Null):
        """The minimum over ``dims`` (default: all); NaN if any element is. ``dtype`` is unused."""
        return self._extremum("min", arg, dims, keepdim)

    def _moments_input(self, arg, what: str, halves: bool) -> Tensor:
        arg = self._tensor(arg)
        if arg.value.dtype.kind not in "fc":
            raise TypeError(f"{what} is not supported for {arg.dtype}: cast to a float type")
        if arg.value.dtype.bits == 16:
            if not halves:
                raise TypeError(f"{what} is not supported for {arg.dtype} please upcast to float")
            return self.cast(arg, DataType.Float)
        return arg

    def _mean(self, arg: Tensor, dims, keepdim) -> Tensor:
        if arg.value.dtype.kind == "c":
            return self.complex(*(self._mean(part(arg), dims, keepdim) for part in (self.real, self.imag)))
        return self._reduce("mean", arg, dims, keepdim)

    def _variance(self, arg: Tensor, dims, correction, keepdim) -> Tensor:
        """The variance; for complex numbers the sum of the real and imaginary parts' variances."""
        if arg.value.dtype.kind == "c":
            return self.add(*(self._variance(part(arg), dims, correction, keepdim) for part in (self.real, self.imag)))
        return self._reduce("var", arg, dims, keepdim, correction=self._integer(correction, "correction"))

    @operation
    def mean(self, arg, dims=None, keepdim=False):
        """The arithmetic mean over ``dims`` (default: all); Float for Half and BFloat16."""
        return self._mean(self._moments_input(arg, "mean", True), dims, keepdim)

    @operation
    def var(self, arg, dims=None, correction=1, keepdim=False):
        """The variance over ``dims``: squared deviations divided by the count minus ``correction``. Real for complex
        numbers."""
        return self._variance(self._moments_input(arg, "var", True), dims, correction, keepdim)

    @operation
    def std(self, arg, dims=None, correction=1, keepdim=False):
        """The standard deviation over ``dims``."""
        arg = self._moments_input(arg, "std", True)
        if arg.value.dtype.kind == "c":
            return self.sqrt(self._variance(arg, dims, correction, keepdim))
        return self._reduce("std", arg, dims, keepdim, correction=self._integer(correction, "correction"))

    @operation
    def var_mean(self, arg, dims=None, correction=1, keepdim=False):
        """Variance and mean over ``dims``."""
        arg = self._moments_input(arg, "variance_mean", False)
        return self._variance(arg, dims, correction, keepdim), self._mean(arg, dims, keepdim)

    @operation
    def welford(self, arg, dims):
        """Mean, sum of squared deviations and count (a 0-d Int tensor) over ``dims``."""
        arg = self._moments_input(arg, "welford", False)
        if arg.value.dtype.kind == "c":
            raise TypeError(f"welford is not supported for {arg.dtype}: use var_mean")
        axes = self._reduced(dims, arg.ndim)
        count = sz.product(arg.value.shape[a] for a in axes)
        mean = self._reduce("mean", arg, dims, False)
        variance = self._reduce("var", arg, dims, False, correction=0)
        number = self._b.size(count)
        squares = self._make(self._b.elementwise("mul", variance.value, self._b.cast(number, arg.value.dtype)))
        full = self._b.op("full", number, shape=mean.value.shape)
        return mean, squares, self._make(full)


def _product(axes: tuple[int, ...], keepdim: bool, array) -> list:
    """The product over ``axes`` of a torch tensor or NumPy array."""
    if arrays.framework(array) != "torch":
        return [array.prod(axes, keepdims=keepdim)]
    for axis in reversed(axes):  # torch reduces one axis at a time
        array = array.prod(axis, keepdim=keepdim)
    return [array]
