"""The words of a loop's argument block: a header, the variables' values at the loop's start, and those at its end."""

from __future__ import annotations

import ctypes
import functools
import struct
import types
from collections.abc import Sequence
from typing import Any

import numpy as np

from mlirfuse.frontend.numpy.loops.values import ArrayType, NumberType, TupleType, words_of
from mlirfuse.ir import dtypes as dt

# The header: two numbers of an error; the functions that find and hold buffers (runtime/native/loop_buffers.h), and
# what the first takes: the allocator, the next free byte of the arena for small arrays and its end; the log's next
# free word and its end; the functions that grow the log, multiply matrices and compute extern ops; the table of
# addresses.
ALLOCATE, HOLD, ALLOCATOR, ROOM, ROOM_END, LOG, LOG_END, LOG_MORE, MULTIPLY, COMPUTE, TABLE = range(2, 13)
HEADER = 13  # words
_INT, _FLOAT = struct.Struct("q"), struct.Struct("d")


def format_of(dtype: dt.DType) -> str:
    """The format, for :mod:`struct`, of a number in its words; a complex one is two numbers."""
    if dtype.kind == "c":
        return "dd" if dtype is dt.c128 else "ff"
    letter = "q" if dtype is dt.bool_ else {"l": "q", "L": "Q"}.get(dtype.numpy.char, dtype.numpy.char)
    return letter + "x" * (8 - struct.calcsize("=" + letter))


def number(words: Sequence[int], at: int, kind: NumberType) -> Any:
    """The number in the words from ``at`` on."""
    if kind.python and kind.dtype is dt.i64:
        return words[at]
    if kind.dtype is dt.f64:
        found = _FLOAT.unpack(_INT.pack(words[at]))[0]
        return found if kind.python else np.float64(found)
    raw = struct.pack(f"{words_of(kind)}q", *words[at : at + words_of(kind)])
    found = np.frombuffer(raw, kind.dtype.numpy, 1)[0]
    return found.item() if kind.python else found


def put_number(words: Any, at: int, value: Any, dtype: dt.DType) -> None:
    """Writes a number into the words from ``at`` on."""
    found = dtype.numpy.type(value)
    parts = (found.real, found.imag) if dtype.kind == "c" else (found.item(),)
    struct.pack_into("=" + format_of(dtype), words, 8 * at, *parts)


def unpack(words: Sequence[int], at: int, kind: Any, buffers: dict, arrays: dict) -> tuple[Any, int]:
    """The value in the words from ``at`` on, and where they end. ``buffers``: memory by address; ``arrays``: the
    loop's inputs by their words."""
    if isinstance(kind, TupleType):
        items = []
        for item in kind.items:
            found, at = unpack(words, at, item, buffers, arrays)
            items.append(found)
        return tuple(items), at
    if isinstance(kind, NumberType):
        return number(words, at, kind), at + words_of(kind)
    rank = kind.rank
    address, shape = words[at], tuple(words[at + 1 : at + 1 + rank])
    strides = tuple(words[at + 1 + rank : at + 1 + 2 * rank])
    return _array_at(address, shape, strides, kind, buffers, arrays), at + 1 + 2 * rank


@functools.lru_cache(512)  # loops use the same memory again and again
def array_of(dtype: np.dtype, address: int, *sizes: int) -> np.ndarray:
    """The array that words stand for; not one in that memory for empty ones."""
    shape, strides = sizes[: len(sizes) // 2], sizes[len(sizes) // 2 :]
    if 0 in shape:
        return np.empty(shape, dtype)
    first, reach = 0, dtype.itemsize
    for extent, stride in zip(shape, strides):
        first, reach = first + min((extent - 1) * stride, 0), reach + abs((extent - 1) * stride)
    memory: Any = (ctypes.c_char * reach).from_address(address + first)
    return np.ndarray(shape, dtype, memory, -first, strides)


def as_type(value: Any, kind: NumberType) -> Any:
    """A number converted to another type, exactly."""
    found = kind.dtype.numpy.type(value if kind.dtype.kind == "c" else value.real)
    return found.item() if kind.python else found


def _array_at(address: int, shape: tuple, strides: tuple, kind: ArrayType, buffers: dict, arrays: dict) -> np.ndarray:
    """The array at an address: the one of ``arrays`` that lies there, a new one in memory of the loop, which is added
    to them, as its names are names of one array, or a view of one of them."""
    dtype = kind.dtype.numpy
    if kind.inner:
        strides = (*strides[:-1], dtype.itemsize)
    place = (address, *shape, *strides)
    array = arrays.get(place)
    if array is not None and array.dtype == dtype:
        return array
    if 0 in shape:
        return np.empty(shape, dtype)
    start = address if address in buffers else _start(address, buffers)
    if start is not None:
        created = arrays[place] = np.ndarray(shape, dtype, buffers[start], address - start, strides)
        return created
    for array in arrays.values():
        low, high = np.lib.array_utils.byte_bounds(array)
        if low <= address < high:
            return _window(array, address, shape, strides, dtype)
    raise AssertionError("an array of a loop lies in no memory of its own")


def _start(address: int, buffers: dict) -> int | None:
    """The address of the buffer that an address lies in."""
    return next((start for start, buffer in buffers.items() if start <= address < start + buffer.nbytes), None)


def _window(array: np.ndarray, address: int, shape: tuple, strides: tuple, dtype: np.dtype) -> np.ndarray:
    """A view at another address of the memory of ``array``, or of parts of its elements."""
    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    interface = {"shape": shape, "strides": strides, "typestr": dtype.str, "data": (address, False), "version": 3}
    holder = types.SimpleNamespace(__array_interface__=interface, owner=owner)
    return np.asarray(holder)
