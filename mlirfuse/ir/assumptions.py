"""What a ``fusion.guard`` takes for granted about its inputs, and whether the tensors of a call meet it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.dtypes import DType
from mlirfuse.ir.graph import Op


class Described(NamedTuple):
    """A tensor of a call: its strides are in elements, ``align`` is what divides its address, in bytes."""

    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    align: int

    @classmethod
    def of(cls, array: np.ndarray) -> Described:
        address = array.__array_interface__["data"][0]
        strides = tuple(stride // array.itemsize for stride in array.strides)
        return cls(dt.of(array.dtype), array.shape, strides, address & -address)


def failed_assumption(guard: Op, tensors: list[Described], symbols: dict[str, int]) -> str | None:
    """What of a guard's assumptions ``tensors`` do not meet, or None. ``symbols`` has the sizes of the call."""
    for k, (text, tensor) in enumerate(zip(guard.attrs["types"], tensors)):
        dtype, _, extents = text.partition("[")
        shape = [sz.parse(n) for n in extents.rstrip("]").split(", ") if n]
        if tensor.dtype.name != dtype:
            return f"input {k} is {tensor.dtype}, not {dtype}"
        if len(shape) != len(tensor.shape):
            return f"input {k} has rank {len(tensor.shape)}, not {len(shape)}"
        for axis, (size, extent) in enumerate(zip(shape, tensor.shape)):
            expected = sz.substitute(size, symbols)
            if isinstance(expected, int) and expected != extent:
                return f"input {k} has extent {extent} in dimension {axis}, not {expected}"
        if "strides" in guard.attrs:
            problem = _layout_problem(tensor, guard.attrs["strides"][k], guard.attrs["aligns"][k], symbols)
            if problem:
                return f"input {k} {problem}"
    for text in guard.attrs.get("equal", ()):
        a, b = (sz.substitute(sz.parse(side), symbols) for side in text.split(" == "))
        if a != b:
            return f"{text} does not hold: {a} against {b}"
    return None


def _layout_problem(tensor: Described, strides: str, align: int, symbols: dict[str, int]) -> str | None:
    if 0 not in tensor.shape and tensor.align % align:
        return f"is not aligned to {align} bytes"
    if strides == "any":
        return None
    expected = [sz.substitute(sz.parse(n), symbols) for n in strides.strip("[]").split(", ") if n]
    for axis, (stride, given, extent) in enumerate(zip(expected, tensor.strides, tensor.shape)):
        if isinstance(stride, int) and extent > 1 and stride != given:
            return f"has stride {given} in dimension {axis}, not {stride}"
    return None
