"""What a call passes in, as tracing and dispatch see it: arrays and numbers by type and layout, else constants."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mlirfuse.core.errors import UnsupportedError
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.dtypes import DType


@dataclass(frozen=True)
class ArgSpec:
    """An array or number argument. Strides are in elements; ``align`` in bytes.

    ``scalar``: passed by value (a Python or NumPy number, or a 0-d host array beside CUDA arrays). ``weak``: a Python
    number, by NumPy's promotion. ``writable`` False: writing into it is an error (for a number: ``+=`` makes a new
    one). ``value`` is the number itself for a scalar or a 0-d host array, read where the function uses it as a
    constant.
    """

    dtype: DType
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    align: int = 1
    scalar: bool = False
    weak: bool = False
    device: str = "cpu"
    writable: bool = True
    value: Any = field(default=None, compare=False)

    @staticmethod
    def of(value) -> ArgSpec | Static:
        """What a NumPy array or a number is to a trace; anything else is :class:`Static`."""
        if isinstance(value, np.ndarray):
            dtype, size = dt.of(value.dtype), value.itemsize
            if any(s % size for s in value.strides):
                raise UnsupportedError(
                    f"an array whose strides {value.strides} are no multiples of its items' {size} bytes: pass a copy"
                )
            address = value.ctypes.data
            return ArgSpec(
                dtype,
                value.shape,
                tuple(s // size for s in value.strides),
                (address & -address) & 0xFF or 256,
                writable=value.flags.writeable,
                value=None if value.ndim else value[()],
            )
        if isinstance(value, np.generic):
            return ArgSpec(dt.of(value.dtype), scalar=True, writable=False, value=value)
        if type(value) in _WEAK and not (type(value) is int and not -(2**63) <= value < 2**63):
            return ArgSpec(_WEAK[type(value)], scalar=True, weak=type(value) is not bool, writable=False, value=value)
        return Static(value)


@dataclass(frozen=True)
class Static:
    """An argument that is a constant of the compiled function: a string, None, a dtype …"""

    value: Any


_WEAK = {bool: dt.bool_, int: dt.i64, float: dt.f64, complex: dt.c128}


def layout_of(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    """What compiled code may assume of strides, for each dimension. Part of the key of a call.

    ``k >= 0``: the stride is the product of the extents of the dimensions inside it, ``k`` being the dimension next
    inside (the rank: it is innermost, stride 1); ``-2 - k``: the same, negated; -1: it can be anything. A dimension of
    extent 1, and one of stride 0, is 0.
    """
    rank = len(shape)
    out = [0] * rank
    if 0 in shape:
        return tuple(out)
    expected, inner = 1, rank
    for axis in sorted(
        (a for a in range(rank) if shape[a] != 1 and strides[a] != 0), key=lambda a: (abs(strides[a]), -a)
    ):
        stride = strides[axis]
        if abs(stride) == expected:
            out[axis] = inner + 1 if stride > 0 else -2 - inner
        else:
            out[axis] = -1
        expected, inner = abs(stride) * shape[axis], axis
    return tuple(out)
