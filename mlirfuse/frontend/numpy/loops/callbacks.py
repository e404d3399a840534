"""What compiled loops call: memory for arrays, room for their log, products of matrices."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import numpy as np

from mlirfuse.ir import dtypes as dt
from mlirfuse.runtime import extern_ops

# Words: two numbers of an error, what allocates, the log's place and end, what makes it larger, what multiplies, the
# room for small arrays and its end.
HEADER = 9
_CHUNK = 2**13  # words of a log, at first
running = threading.local()  # .created: of the call that runs in this thread, its buffers by address; .log: see _more


@ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
def _allocate(site: int, size: int) -> int:
    """The address of new memory for the loop that runs; 0 where there is none."""
    try:
        created = np.empty(max(size, 1), np.uint8)
    except (MemoryError, ValueError):
        return 0
    address = created.__array_interface__["data"][0]
    running.created[address] = created
    return address


@ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)
def _more(arguments: int, size: int) -> int:
    """More room for the log of the loop that runs, whose argument is at this address: a new chunk, in ``.log`` with how
    many words the one before it has got. 0 where there is none."""
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


@ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)
def _multiply(places: int, number: int) -> int:
    """``left @ right`` into a third matrix, which lie as the 15 words at ``places`` say, with elements of NumPy's type
    ``number``. 0 where that fails."""
    words = (ctypes.c_int64 * 15).from_address(places)[:]
    try:
        left, right, into = (_matrix(_INEXACT[number], *words[at : at + 5]) for at in (0, 5, 10))
        _product((left, right, into))
    except Exception:
        return 0
    return 1


@extern_ops.quiet
def _product(given: tuple) -> None:
    left, right, into = given
    np.matmul(left, right, out=into)


def _matrix(dtype: np.dtype, address: int, rows: int, columns: int, down: int, across: int) -> np.ndarray:
    reach = (max(rows, 1) - 1) * abs(down) + (max(columns, 1) - 1) * abs(across) + dtype.itemsize
    start = min(down, 0) * max(rows - 1, 0) + min(across, 0) * max(columns - 1, 0)
    memory: Any = (ctypes.c_char * reach).from_address(address + start)
    return np.ndarray((rows, columns), dtype, memory, -start, (down, across))


_INEXACT: dict[int, np.dtype] = {t.numpy.num: t.numpy for t in (dt.f32, dt.f64, dt.c64, dt.c128)}
_MULTIPLY = ctypes.cast(_multiply, ctypes.c_void_p).value
_MORE = ctypes.cast(_more, ctypes.c_void_p).value
_ALLOCATOR = ctypes.cast(_allocate, ctypes.c_void_p).value
FIRST_WORDS: list[int] = [0, 0, _ALLOCATOR or 0, 0, 0, _MORE or 0, _MULTIPLY or 0, 0, 0]
