"""Callbacks of compiled loops: allocation, growth of the append log, matrix products."""

from __future__ import annotations

import ctypes
import functools
import threading
from typing import Any

import numpy as np

from mlirfuse import _native
from mlirfuse.frontend.numpy.loops import words
from mlirfuse.frontend.numpy.loops.values import PY_FLOAT, NumberType
from mlirfuse.ir import dtypes as dt
from mlirfuse.runtime import extern_ops

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
    log, header = running.log, (ctypes.c_int64 * words.HEADER).from_address(arguments)
    if log:
        _end(log, header)
    try:
        chunk = np.empty(max(_CHUNK << min(len(log), 8), size // 8), np.int64)
    except MemoryError:
        return 0
    log.append([chunk, 0])
    header[words.LOG] = chunk.ctypes.data
    header[words.LOG_END] = chunk.ctypes.data + chunk.nbytes
    return 1


def _end(log: list, header: Any) -> None:
    """Notes how far the log's last chunk is used."""
    log[-1][1] = (header[words.LOG] - log[-1][0].ctypes.data) // 8


def append(log: list, header: Any, appends: list, values: dict, buffers: dict, arrays: dict) -> None:
    """Appends the logged values to the lists among ``values``; ``appends``: for each append in the code the list and
    the value's type."""
    _end(log, header)
    if len(set(appends)) == 1 and appends[0][1] in _FLOATS:
        name, kind = appends[0]
        for chunk, count in log:
            numbers = chunk[1:count:2].view(np.float64)
            values[name].extend(numbers.tolist() if kind.python else list(numbers))
        return
    lists = [values[name].append for name, _ in appends]
    for chunk, count in log:
        logged, at = chunk[:count].tolist(), 0
        while at < count:
            number = logged[at]
            found, at = words.unpack(logged, at + 1, appends[number][1], buffers, arrays)
            lists[number](found)


_Words = ctypes.c_int64 * 15


@ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)
def _multiply(places: int, number: int) -> int:
    """Writes ``left @ right`` into a third matrix; ``places`` points to their 15 words (pointers, extents, strides),
    ``number`` is NumPy's type number. 0 on failure."""
    try:
        _product(_matrices(number, *_Words.from_address(places)))
    except Exception:
        return 0
    return 1


@functools.lru_cache(256)  # loops use the same memory again and again
def _matrices(number: int, *given: int) -> list[np.ndarray]:
    return [words.array_of(_INEXACT[number], *given[k : k + 5]) for k in (0, 5, 10)]


@extern_ops.quiet
def _product(given: list[np.ndarray]) -> None:
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
_FLOATS = (PY_FLOAT, NumberType(dt.f64, False))
_CALLBACKS = {
    words.ALLOCATOR: _allocate, words.LOG_MORE: _more, words.MULTIPLY: _multiply, words.COMPUTE: _compute
}  # fmt: skip
_ADDRESSES = {word: ctypes.cast(function, ctypes.c_void_p).value or 0 for word, function in _CALLBACKS.items()} | {
    words.ALLOCATE: _native.symbols()["mlirfuse_loop_allocate"], words.HOLD: _native.symbols()["mlirfuse_loop_hold"]
}  # fmt: skip
HEADER = [_ADDRESSES.get(word, 0) for word in range(words.HEADER)]
