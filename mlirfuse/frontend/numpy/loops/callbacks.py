"""Callbacks of compiled loops: allocation, growth of the append log, matrix products."""

from __future__ import annotations

import ctypes
import threading

import numpy as np

from mlirfuse.frontend.numpy.loops.words import array_at
from mlirfuse.ir import dtypes as dt
from mlirfuse.runtime import extern_ops

# Words: two numbers of an error, the allocator, the log's position and end, the log's growth function, the product
# function, the arena for small arrays and its end, the function that computes extern ops, the
# table of addresses that the code uses.
HEADER = 11
KEEP = -1  # no extern op's number
_CHUNK = 2**13  # initial words of a log
running = threading.local()  # .buffers: this thread's call's buffers by address; .log: see _more;
# .externs: the call's extern ops; .kept: by their numbers, the addresses of their results; .error: what one raised


@ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
def _allocate(site: int, size: int) -> int:
    """Allocates memory for the running loop; its address, or 0 on failure."""
    try:
        created = np.empty(max(size, 1), np.uint8)
    except (MemoryError, ValueError):
        return 0
    address = created.__array_interface__["data"][0]
    running.buffers[address] = created
    return address


@ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)
def _more(arguments: int, size: int) -> int:
    """Grows the running loop's log, whose argument block is at this address: appends a chunk to ``.log``, with the
    number of words used in the one before. 0 on failure."""
    log, words = running.log, (ctypes.c_int64 * HEADER).from_address(arguments)
    if log:
        log[-1][1] = filled(log[-1][0], words[3])
    try:
        chunk = np.empty(max(_CHUNK << min(len(log), 8), size // 8), np.int64)
    except MemoryError:
        return 0
    log.append([chunk, 0])
    words[3] = chunk.ctypes.data
    words[4] = words[3] + chunk.nbytes
    return 1


def filled(chunk: np.ndarray, end: int) -> int:
    return (end - chunk.ctypes.data) // 8


_Words = ctypes.c_int64 * 15
_products: dict[tuple, tuple] = {}  # the operands of recent products: loops use the same memory again and again
_MOST_PRODUCTS = 256


@ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)
def _multiply(places: int, number: int) -> int:
    """Writes ``left @ right`` into a third matrix; ``places`` points to their 15 words (pointers, extents, strides),
    ``number`` is NumPy's type number. 0 on failure."""
    try:
        key = (number, *_Words.from_address(places))
        given = _products.get(key)
        if given is None:
            if len(_products) > _MOST_PRODUCTS:
                _products.clear()
            dtype = _INEXACT[number]
            matrices = [array_at(key[k], key[k + 1 : k + 3], key[k + 3 : k + 5], dtype) for k in (1, 6, 11)]
            given = _products[key] = tuple(matrices)
        _product(given)
    except Exception:
        return 0
    return 1


@extern_ops.quiet
def _product(given: tuple) -> None:
    left, right, into = given
    np.matmul(left, right, out=into)


@ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
def _compute(place: int, number: int, bases: int) -> int:
    """Computes an extern op of the running loop on the operands at ``place``. Its earlier results are freed unless a
    variable uses them: those whose addresses are at ``bases``. 0 where it raises an error. For the number
    :data:`KEEP`: keeps the result at the address ``place`` until the loop's end."""
    try:
        if number == KEEP:
            for addresses in running.kept.values():
                if place in addresses:
                    addresses.remove(place)
            return 1
        extern, buffers = running.externs[number], running.buffers
        kept = running.kept.get(number)
        if kept:
            used = extern.used(bases)
            for address in kept:
                if address not in used:
                    del buffers[address]
            kept[:] = [address for address in kept if address in used]
        else:
            kept = running.kept[number] = []
        for address, value in extern.compute(place):
            buffers[address] = value
            kept.append(address)
    except BaseException as error:
        running.error = error
        return 0
    return 1


def raised(*_: int) -> Exception:
    """What the last extern op raised."""
    return running.error


_INEXACT: dict[int, np.dtype] = {t.numpy.num: t.numpy for t in (dt.f32, dt.f64, dt.c64, dt.c128)}
_MULTIPLY = ctypes.cast(_multiply, ctypes.c_void_p).value
_MORE = ctypes.cast(_more, ctypes.c_void_p).value
_ALLOCATOR = ctypes.cast(_allocate, ctypes.c_void_p).value
_COMPUTE = ctypes.cast(_compute, ctypes.c_void_p).value
FIRST_WORDS: list[int] = [
    0, 0, _ALLOCATOR or 0, 0, 0, _MORE or 0, _MULTIPLY or 0, 0, 0, _COMPUTE or 0, 0
]  # fmt: skip
ARENA, TABLE = 7, 10  # the numbers of words: the arena's next free position, which its end follows; the table
