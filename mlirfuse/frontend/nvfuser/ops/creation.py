"""Creation operations of ``fd.ops``: constants, ranges and random numbers."""

from __future__ import annotations

import math
import sys

import numpy as np

from mlirfuse.frontend.nvfuser.ops.base import OperatorBase
from mlirfuse.frontend.nvfuser.ops.operation import operation
from mlirfuse.frontend.nvfuser.promotion import DataType, from_dtype, to_dtype
from mlirfuse.frontend.nvfuser.values import Scalar, Tensor
from mlirfuse.ir import dtypes as dt


class Creation(OperatorBase):
    """The k-th random operation uses offset k of the call's seed, and each element its position."""

    @operation
    def full(self, shape, fill_value, dtype=None):
        """A tensor filled with ``fill_value``."""
        fill, sizes = self._fd.as_val(fill_value), self._given(shape, "full")
        if isinstance(fill, Tensor) and fill.ndim:
            raise TypeError("full: fill_value must be a scalar")
        kind = fill.value.dtype if isinstance(fill, Tensor) else fill.dtype
        return self._make(
            self._b.op("full", self._at(fill, kind if dtype is None else to_dtype(dtype)), shape=tuple(sizes))
        )

    def _given(self, shape, what: str) -> list:
        """The extents of a new tensor."""
        sizes = self._sizes(shape, "shape", check=False)
        for k, n in enumerate(sizes):
            words = f"extent_int >= 0: the extents of {what} must be given, -1 has no meaning here"
            self._within(0, n, what, f"extent {k}: {words}")
        return sizes

    @operation
    def iota(self, length, start=None, step=None, dtype=DataType.Int):
        """``start + k * step`` for k below ``length``; from 0 in steps of 1 unless given."""
        if isinstance(length, (float, complex)) or (isinstance(length, Scalar) and not length.dtype.is_integer):
            raise TypeError("length must be integer: an Int scalar or a Python int")
        n, target = self._size(length), to_dtype(dtype)
        self._within(0, n, "iota", "length must be non-negative.")
        if target.kind not in "iuf":
            raise TypeError(f"iota: supports integers and floats, not {dtype}")
        wide = dt.f64 if target is dt.f64 else dt.f32 if target.kind == "f" else target
        out = self._b.op("iota", shape=(n,), axis=0, dtype=wide)
        for other, row, neutral in ((step, "mul", 1), (start, "add", 0)):
            if other is not None:
                other, name = self._fd.as_val(other), "step" if row == "mul" else "start"
                if isinstance(other, Scalar):
                    self._check_iota(other, name, target)
                if not (isinstance(other, Scalar) and other.constant == neutral):
                    out = self._b.op(row, out, self._at(other, wide))
        return self._make(self._b.cast(out, target))

    def _seeds(self, rng_seed, rng_offset):
        if (rng_seed is None) != (rng_offset is None):
            raise ValueError("rng_seed and rng_offset must be provided together!")
        if rng_seed is not None:
            return [self._at(self._fd.as_val(v), dt.i64) for v in (rng_seed, rng_offset)]
        seed = self._fd.hidden_argument("seed", _call_seed)[0]
        return [seed, self._b.constant(self._fd._number("random"), dt.i64)]

    def _random(self, row, shape, dtype, rng_seed, rng_offset, scale, shift) -> Tensor:
        target = to_dtype(dtype)
        if target.kind != "f":
            raise TypeError(f"Random distributions only create floating point types, not {dtype}")
        sizes = self._given(shape, row)
        created = target if target is dt.f64 else dt.f32
        out = self._b.op(row, *self._seeds(rng_seed, rng_offset), shape=tuple(sizes), dtype=created)
        if scale is not None:
            out = self._b.op("mul", out, self._at(scale, created))
        if shift is not None:
            out = self._b.op("add", out, self._at(shift, created))
        return self._make(self._b.cast(out, target))

    def _check_iota(self, given: Scalar, name: str, target) -> None:
        if given.dtype.kind == "c":
            raise TypeError(
                f"iota: {name} dtype does not match specified dtype argument: it is {given.data_type}, not "
                f"{from_dtype(target)}"
            )
        if isinstance(given.constant, float) and not math.isfinite(given.constant):
            raise ValueError(f"iota: length, start, step must be finite numbers. {name} is {given.constant}")
        if name == "step" and given.constant == 0:
            raise ValueError("iota: step value must not equal zero.")

    @operation
    def uniform(self, minval, maxval, shape, dtype=DataType.Float, rng_seed=None, rng_offset=None):
        """Uniform in [minval, maxval). Without a seed, a new one each call, from torch's generator."""
        minval, maxval = self._operands(minval, maxval)
        return self._random("uniform", shape, dtype, rng_seed, rng_offset, self.sub(maxval, minval), minval)

    @operation
    def normal(self, mean, std, shape, dtype=DataType.Float, rng_seed=None, rng_offset=None):
        """Normally distributed. Without a seed, a new one each call, from torch's generator."""
        mean, std = self._operands(mean, std)
        return self._random("normal", shape, dtype, rng_seed, rng_offset, std, mean)

    def _shape_of(self, arg) -> list[Scalar]:
        return [Scalar(self._fd, DataType.Int, size=n) for n in arg.value.shape]

    @operation
    def rand_like(self, x, rng_seed=None, rng_offset=None):
        """Uniform in [0, 1), with the shape and dtype of ``x``."""
        x = self._tensor(x)
        return self._random("uniform", self._shape_of(x), x.dtype, rng_seed, rng_offset, None, None)

    @operation
    def randn_like(self, x, rng_seed=None, rng_offset=None):
        """Standard normal, with the shape and dtype of ``x``."""
        x = self._tensor(x)
        return self._random("normal", self._shape_of(x), x.dtype, rng_seed, rng_offset, None, None)

    @operation
    def dropout(self, x, prob, scale=None, rng_seed=None, rng_offset=None):
        """``x`` times ``scale`` where a uniform number is below ``prob`` (the probability of keeping), else 0; and the
        mask. ``scale`` defaults to 1 / prob."""
        x, prob = self._tensor(x), self._fd.as_val(prob)
        created = dt.f64 if x.value.dtype is dt.f64 else dt.f32
        draw = self._random("uniform", self._shape_of(x), from_dtype(created), rng_seed, rng_offset, None, None)
        mask = self.lt(draw, prob)
        scale = self.reciprocal(prob) if scale is None else self._fd.as_val(scale)
        return self.mul(self.mul(x, self.cast(mask, x.dtype)), scale), mask


def _call_seed(bindings) -> int:
    """A seed for a call, from torch's generator where torch is loaded, else from NumPy's."""
    torch = sys.modules.get("torch")
    if torch is not None:
        return int(torch.randint(2**62, (), dtype=torch.int64))
    return int(np.random.randint(2**62, dtype=np.int64))
