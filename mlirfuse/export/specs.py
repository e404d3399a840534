"""What an exported function takes: dtypes and shapes with named sizes."""

from __future__ import annotations

import keyword
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlirfuse.core.errors import UnsupportedError
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.sizes import Size

_TEXT = re.compile(r"([A-Za-z_]\w*)(?:\[(.*)\])?")
_ALIGNED = 256  # bytes, of stand-ins: kernels assume nothing beyond
_RESERVED = ("max", "min", "inverse_of", "floordiv", "mod")
_SCALARS = {"float": 1.0, "int": 1, "bool": True}


@dataclass(frozen=True)
class ShapeDtype:
    """An array argument of an exported function.

    ``shape`` and ``strides`` (in elements) have an int, or a name such as "n" for what a call may choose: one name is
    one number, wherever it stands. ``strides`` None: C-contiguous. ``dtype``: what NumPy takes, "bfloat16" too. Raises
    ValueError for other sizes, TypeError for a dtype that is not compiled.
    """

    shape: tuple[int | str, ...]
    dtype: Any = "float32"
    strides: tuple[int | str, ...] | None = None

    def __post_init__(self) -> None:
        shape = (self.shape,) if isinstance(self.shape, (int, str)) else tuple(self.shape)
        object.__setattr__(self, "shape", tuple(_size(n) for n in shape))
        object.__setattr__(self, "dtype", dtype_of(self.dtype))
        if self.strides is not None:
            strides = tuple(_size(n, negative=True) for n in self.strides)
            object.__setattr__(self, "strides", strides)
            if len(strides) != len(self.shape):
                raise ValueError(f"{len(strides)} strides for a shape of {len(self.shape)} dimensions: {self}")

    @property
    def sizes(self) -> tuple[Size, ...]:
        """The extents as sizes."""
        return tuple(map(_as_size, self.shape))

    @property
    def steps(self) -> tuple[Size, ...]:
        """The strides as sizes, in elements."""
        return sz.contiguous_strides(self.sizes) if self.strides is None else tuple(map(_as_size, self.strides))

    def stand_in(self, sizes: dict[str, int]) -> np.ndarray:
        """An array of this shape, whatever that is, over a few bytes: to be looked at, not to be read."""
        dtype = np.dtype(self.dtype.numpy)
        memory = np.zeros(2 * _ALIGNED, np.uint8)
        start = -memory.ctypes.data % _ALIGNED
        base = memory[start : start + dtype.itemsize].view(dtype)
        shape, steps = ([sz.substitute(n, sizes) for n in given] for given in (self.sizes, self.steps))
        return np.lib.stride_tricks.as_strided(base, shape, [n * dtype.itemsize for n in steps])

    def __str__(self) -> str:
        strides = "" if self.strides is None else f":{','.join(map(str, self.strides))}"
        return f"{np.dtype(self.dtype.numpy).name}[{','.join(map(str, self.shape))}{strides}]"


def parse(text: str) -> ShapeDtype | int | float | bool:
    """The argument that ``text`` writes: ``float32[n,1024]``, with strides ``float32[n,1024:s,1]``, or a number: its
    type (``float``, ``int``, ``bool``), or its value, which the function may use as a constant. Raises ValueError."""
    text = text.strip()
    if text in _SCALARS:
        return _SCALARS[text]
    if text in ("True", "False"):
        return text == "True"
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            pass
    found = _TEXT.fullmatch(text)
    if found is None or found[2] is None:
        raise ValueError(f"no argument '{text}': write float32[n,1024], float32[n,m:s,1] with strides, or float")
    shape, _, strides = found[2].partition(":")
    return ShapeDtype(_listed(shape), found[1], _listed(strides) if strides else None)


def _listed(text: str) -> tuple[int | str, ...]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    return tuple(int(part) if re.fullmatch(r"-?\d+", part) else part for part in parts)


def of_example(value: Any, name: str) -> Any:
    """The spec of an argument, which may be given as an array like it; numbers and what is no array stay."""
    if isinstance(value, np.ndarray):
        strides = tuple(s // value.itemsize for s in value.strides)
        dense = strides == sz.contiguous_strides(value.shape)
        return ShapeDtype(value.shape, value.dtype, None if dense else strides)
    if type(value).__module__.split(".")[0] == "torch" and hasattr(value, "stride"):
        dense = tuple(value.stride()) == sz.contiguous_strides(tuple(value.shape))
        dtype = str(value.dtype).removeprefix("torch.")
        return ShapeDtype(tuple(value.shape), dtype, None if dense else tuple(value.stride()))
    if hasattr(value, "__array__") and not isinstance(value, (np.generic, ShapeDtype)):
        raise UnsupportedError(f"argument '{name}': give a mlirfuse.export.ShapeDtype or a NumPy array like it")
    return value


def dtype_of(value: Any) -> dt.DType:
    """Our dtype for what NumPy takes. Raises TypeError, and :class:`UnsupportedError` for complex numbers."""
    if isinstance(value, dt.DType):
        return value
    if isinstance(value, str) and value == "bfloat16":
        return dt.bf16
    found = dt.of(np.dtype(value))
    if found.kind not in "fiub":
        raise UnsupportedError(f"exported functions take no {np.dtype(value).name}: pass its parts as arrays of floats")
    return found


def _size(size: Any, negative: bool = False) -> int | str:
    if isinstance(size, str):
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", size):
            raise ValueError(f"a size is an int or a name such as 'n', not {size!r}")
        if keyword.iskeyword(size) or size in _RESERVED or size.startswith("align_"):
            raise ValueError(f"a size cannot be called {size!r}, which has a meaning of its own in what is exported")
        return size
    number = int(size)
    if number < 0 and not negative:
        raise ValueError(f"an extent is not negative: {number}")
    return number


def _as_size(size: int | str) -> Size:
    return sz.symbol(size) if isinstance(size, str) else size


def names_of(specs: Sequence[Any]) -> tuple[list[str], list[str]]:
    """The names of extents, and of strides alone, in the order in which they stand."""
    arrays = [spec for spec in specs if isinstance(spec, ShapeDtype)]
    extents = dict.fromkeys(n for spec in arrays for n in spec.shape if isinstance(n, str))
    strides = dict.fromkeys(n for spec in arrays for n in spec.strides or () if isinstance(n, str))
    return list(extents), [n for n in strides if n not in extents]
