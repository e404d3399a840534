"""Arrays that an exported function reads from around it: their content is part of what is exported."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlirfuse.core.errors import UnsupportedError
from mlirfuse.export.specs import ShapeDtype, of_example
from mlirfuse.frontend.numpy.scope import Captured
from mlirfuse.runtime import arrays

MOST_BYTES = 256 << 20  # of all constants of a function
ALIGNED = 64  # bytes: of each constant's content, in a library and in a file


@dataclass(frozen=True)
class Constant:
    """An array with its ``content``, which begins ``offset`` bytes before the first element."""

    spec: ShapeDtype
    content: bytes
    offset: int

    @property
    def alignment(self) -> int:
        """The bytes, at most ``ALIGNED``, that the first element's address is a multiple of."""
        return min(self.offset & -self.offset or ALIGNED, ALIGNED)

    @property
    def bits(self) -> int:
        """A 0-d array's value as 64 bits, of a float those of a double: what kernels expect of a number."""
        value = np.frombuffer(self.content, self.spec.dtype.numpy, 1, self.offset)[0]
        return int(np.float64(value).view(np.int64)) if self.spec.dtype.is_float else int(value)


class Constants:
    """The constants of a function ``name``, each once."""

    def __init__(self, name: str):
        self.name = name
        self.found: list[Constant] = []
        self._by_object: dict[int, tuple[Any, int]] = {}

    def number(self, captured: Captured) -> int:
        """The index of a captured array among the constants. Raises :class:`UnsupportedError`."""
        array = captured.array
        if captured.paths and captured.paths[0][1][-1:] == (("attr", "drawn"),):
            raise UnsupportedError(
                f"{self.name} draws random numbers without a seed, which a call would have to bring: pass numbers or "
                "a seed as an argument"
            )
        if id(array) not in self._by_object:
            constant = self._constant(arrays.to_numpy(array), _name_of(captured))
            if constant not in self.found:
                self.found.append(constant)
            self._by_object[id(array)] = array, self.found.index(constant)
        return self._by_object[id(array)][1]

    def _constant(self, array: np.ndarray, name: str) -> Constant:
        if not array.size:
            return Constant(of_example(array, name), bytes(ALIGNED), 0)
        reach = [(n - 1) * s for n, s in zip(array.shape, array.strides)]
        low, high = sum(r for r in reach if r < 0), sum(r for r in reach if r > 0) + array.itemsize
        if sum(len(constant.content) for constant in self.found) + high - low > MOST_BYTES:
            raise UnsupportedError(
                f"{self.name} reads arrays from around it ({name} and others) of more than {MOST_BYTES >> 20} MiB, "
                "which would all be in what is exported: make them arguments"
            )
        first = array.__array_interface__["data"][0]
        return Constant(of_example(array, name), ctypes.string_at(first + low, high - low), -low)


def _name_of(captured: Captured) -> str:
    steps: Sequence = captured.paths[0][1] if captured.paths else ()
    return next((str(key) for how, key in reversed(steps) if isinstance(key, str)), "an array created while tracing")
