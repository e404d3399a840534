"""Compiles PTX to a GPU's machine code by NVIDIA's nvJitLink, where that is installed, as it is with torch.

The driver compiles PTX too, but one module at a time in a process, regardless of threads: 16 kernels take 40 ms each in
one thread or in sixteen, and by nvJitLink 43 ms in one and 4.9 in sixteen (one H100 and 16 cores, driver 580.159.04,
CUDA 13.0, 2026-11-25). Loading the result takes the driver 0.04 ms.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os

from mlirfuse.lowering.ptx import specific
from mlirfuse.runtime import cache

_PTX = 2  # NVJITLINK_INPUT_PTX


_SONAMES = ("libnvJitLink.so.13", "libnvJitLink.so.12")


@functools.cache
def _library() -> ctypes.CDLL | None:
    for name in _SONAMES:  # torch may have loaded it already; a search takes 0.2 s
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name, os.RTLD_NOLOAD | os.RTLD_NOW)
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        return ctypes.CDLL(load_nvidia_dynamic_lib("nvJitLink").abs_path)
    except Exception:  # not installed, or another failure of the search: the driver compiles
        return None


@functools.cache
def _version() -> str:
    major, minor = ctypes.c_uint(), ctypes.c_uint()
    version = getattr(_library(), "nvJitLinkVersion", None)
    if version is None or version(ctypes.byref(major), ctypes.byref(minor)):
        return ""
    return f"{major.value}.{minor.value}"


def of(ptx: str, chip: str) -> bytes | None:
    """Return the machine code of a PTX module for ``chip`` ("sm_90"); None where nvJitLink is missing, or does not
    support it. Releases the GIL."""
    if not _version():
        return None
    chip = specific(ptx, chip)
    key = cache.key("cubin", ptx, chip, _version())
    found = cache.load(key)
    if found is None:
        found = _compiled(ptx.encode(), chip)
        if found is not None:
            cache.store(key, found)
    return found


def _compiled(ptx: bytes, chip: str) -> bytes | None:
    library = _library()
    assert library is not None
    handle, options = ctypes.c_void_p(), (ctypes.c_char_p * 1)(f"-arch={chip}".encode())
    if library.nvJitLinkCreate(ctypes.byref(handle), ctypes.c_uint32(1), options):
        return None
    try:
        size = ctypes.c_size_t()
        if (
            library.nvJitLinkAddData(handle, _PTX, ptx, ctypes.c_size_t(len(ptx)), b"kernels")
            or library.nvJitLinkComplete(handle)
            or library.nvJitLinkGetLinkedCubinSize(handle, ctypes.byref(size))
        ):
            return None
        code = ctypes.create_string_buffer(size.value)
        return None if library.nvJitLinkGetLinkedCubin(handle, code) else code.raw
    finally:
        library.nvJitLinkDestroy(ctypes.byref(handle))
