"""Values of a loop's variables as the words of its code's argument block."""

from __future__ import annotations

import ctypes
import struct
import types
from collections.abc import Sequence
from typing import Any

import numpy as np

from mlirfuse import _native
from mlirfuse.frontend.numpy.loops.values import ArrayType, NumberType, TupleType, words_of
from mlirfuse.ir import dtypes as dt

_INT, _FLOAT = struct.Struct("q"), struct.Struct("d")
_TWO_INTS, _TWO_FLOATS = struct.Struct("qq"), struct.Struct("dd")


def pack(words: list[int], value: Any, kind: Any) -> None:
    if isinstance(kind, ArrayType):
        words += _native.array_layout(value)[0]
    elif isinstance(kind, TupleType):
        for item, inner in zip(value, kind.items):
            pack(words, item, inner)
    elif kind.dtype is dt.c128:
        words += _TWO_INTS.unpack(_TWO_FLOATS.pack(value.real, value.imag))
    elif kind.dtype is dt.c64:
        words += _INT.unpack(struct.pack("ff", value.real, value.imag))
    elif kind.dtype is dt.f64:
        words.append(_INT.unpack(_FLOAT.pack(value))[0])
    elif kind.dtype is dt.f32:
        words.append(struct.unpack("i", struct.pack("f", value))[0])
    else:
        number = int(value)
        words.append(number - 2**64 if number >= 2**63 else number)


def unpack(memory: list[int], at: int, kind: Any, buffers: dict, arrays: dict) -> tuple[Any, int]:
    if isinstance(kind, TupleType):
        items = []
        for item in kind.items:
            found, at = unpack(memory, at, item, buffers, arrays)
            items.append(found)
        return tuple(items), at
    if isinstance(kind, NumberType):
        return number(memory, at, kind), at + words_of(kind)
    rank = kind.rank
    address, shape = memory[at], tuple(memory[at + 1 : at + 1 + rank])
    strides = tuple(memory[at + 1 + rank : at + 1 + 2 * rank])
    return _array_at(address, shape, strides, kind, buffers, arrays), at + 1 + 2 * rank


def array_at(address: int, shape: Sequence[int], strides: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """The array at an address; not one for empty ones."""
    if 0 in shape:
        return np.empty(shape, dtype)
    first, reach = 0, dtype.itemsize
    for extent, stride in zip(shape, strides):
        first, reach = first + min((extent - 1) * stride, 0), reach + abs((extent - 1) * stride)
    memory: Any = (ctypes.c_char * reach).from_address(address + first)
    return np.ndarray(shape, dtype, memory, -first, strides)


def as_type(value: Any, kind: NumberType) -> Any:
    """A number converted to another type, exactly."""
    if not kind.python:
        return kind.dtype.numpy.type(value if kind.dtype.kind == "c" else value.real)
    value = value.real if kind.dtype.kind != "c" else value
    return float(value) if kind.dtype.is_float else bool(value) if kind.dtype is dt.bool_ else int(value)


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


def number(words: Sequence[int], at: int, kind: NumberType) -> Any:
    """The number in the words from ``at`` on."""
    word = words[at]
    if kind.dtype is dt.c128:
        found = complex(*_TWO_FLOATS.unpack(_TWO_INTS.pack(word, words[at + 1])))
        return found if kind.python else np.complex128(found)
    if kind.dtype is dt.f64:
        found = _FLOAT.unpack(_INT.pack(word))[0]
        return found if kind.python else np.float64(found)
    if kind.python:
        return bool(word) if kind.dtype is dt.bool_ else word
    return np.frombuffer(_INT.pack(word), kind.dtype.numpy, 1)[0]
