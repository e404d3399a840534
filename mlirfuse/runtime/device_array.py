"""An array in CUDA memory that this package allocates, for results of arguments whose framework cannot allocate."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mlirfuse import _native

_DLPACK_CUDA = 2


class DeviceArray:
    """Device memory with a shape and a dtype. It has ``__dlpack__`` and ``__cuda_array_interface__``, so that any CUDA
    framework can use it without a copy. Without an ``owner`` it frees its memory when it is collected. ``stream``: the
    stream that writes it, None where all writes have finished."""

    __slots__ = ("__weakref__", "_owner", "data_ptr", "device", "dtype", "shape", "stream", "strides")

    def __init__(
        self,
        data_ptr: int,
        shape: Sequence[int],
        dtype: Any,
        strides: Sequence[int] | None = None,
        device: int = 0,
        owner: object = None,
        stream: int | None = None,
    ):
        self.data_ptr = data_ptr
        self.shape = tuple(shape)
        self.dtype = np.dtype(dtype)
        self.strides = _contiguous_strides(self.shape, self.dtype.itemsize) if strides is None else tuple(strides)
        self.device = device
        self.stream = stream
        self._owner = owner

    @classmethod
    def from_numpy(cls, array: np.ndarray, device: int = 0) -> DeviceArray:
        """Return a contiguous copy of ``array`` on a device."""
        array = np.asarray(array, order="C")
        copy = cls(_native.mem_alloc(array.nbytes, device), array.shape, array.dtype, None, device)
        _native.copy_to_device(copy.data_ptr, _as_bytes(array))
        return copy

    def __del__(self):
        # A partially constructed object has no pointer, and at exit the module may be gone already.
        if getattr(self, "_owner", self) is None and self.data_ptr and _native is not None:
            _native.mem_free(self.data_ptr)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a 0-d array")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"DeviceArray(shape={self.shape}, dtype={self.dtype}, device={self.device})"

    def numpy(self) -> np.ndarray:
        """Return a copy on the host, after all work on the device."""
        low, high = _extent(self.shape, self.strides, self.dtype.itemsize)
        span = np.empty(high - low, np.uint8)
        _native.synchronize(self.device)
        if span.size:
            _native.copy_from_device(span, self.data_ptr + low)
        return np.ndarray(self.shape, self.dtype, span, -low, self.strides).copy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("a DeviceArray cannot become a NumPy array without a copy")
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    @property
    def __cuda_array_interface__(self) -> dict:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.data_ptr if self.size else 0, False),
            "strides": self.strides,
            "stream": self.stream,
            "version": 3,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return (_DLPACK_CUDA, self.device)

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        """Return a capsule. Waits for running work on the device, unless ``stream=-1``."""
        if copy or (dl_device is not None and tuple(dl_device) != self.__dlpack_device__()):
            raise BufferError("a DeviceArray is exported in place only")
        if stream != -1:
            _native.synchronize(self.device)
        return _export(self)


def _contiguous_strides(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    strides, step = [], itemsize
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def _extent(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> tuple[int, int]:
    """Return the byte range of the elements, relative to the data pointer."""
    if 0 in shape:
        return 0, 0
    reach = [(size - 1) * stride for size, stride in zip(shape, strides)]
    return sum(r for r in reach if r < 0), sum(r for r in reach if r > 0) + itemsize


def _as_bytes(array: np.ndarray) -> np.ndarray:
    """Return the bytes of a contiguous array, also of a dtype that the buffer protocol does not support (bfloat16)."""
    return array.reshape(-1).view(np.uint8)


# ---- DLPack export


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _DLManagedTensor(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_DLManagedTensor))
_DLManagedTensor._fields_ = [("tensor", _DLTensor), ("manager_ctx", ctypes.c_void_p), ("deleter", _Deleter)]

# Exported tensors and the owners of their memory, until a consumer calls the deleter.
_exported: dict[int, tuple] = {}

_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}


@_Deleter
def _delete(managed):
    _exported.pop(ctypes.addressof(managed.contents), None)


_CapsuleDestructor = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_capsule_new = ctypes.pythonapi.PyCapsule_New
_capsule_new.restype = ctypes.py_object
_capsule_new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, _CapsuleDestructor]
_capsule_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_capsule_is_valid.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.c_void_p, ctypes.c_char_p]


@_CapsuleDestructor
def _destroy(capsule):
    # A consumer renames a capsule that it has consumed.
    if _capsule_is_valid(capsule, b"dltensor"):
        _exported.pop(_capsule_pointer(capsule, b"dltensor"), None)


def _export(array: DeviceArray):
    dtype = array.dtype
    code = 4 if dtype.name == "bfloat16" else _CODES.get(dtype.kind)
    if code is None:
        raise BufferError(f"DLPack has no type for {dtype}")
    if any(stride % dtype.itemsize for stride in array.strides):
        raise BufferError("DLPack has no strides that are not a multiple of the item size")
    dims = ctypes.c_int64 * max(array.ndim, 1)
    shape = dims(*array.shape)
    strides = dims(*(stride // dtype.itemsize for stride in array.strides))
    managed = _DLManagedTensor()
    managed.tensor = _DLTensor(
        array.data_ptr if array.size else None,
        _DLPACK_CUDA,
        array.device,
        array.ndim,
        code,
        dtype.itemsize * 8,
        1,
        shape,
        strides,
        0,
    )
    managed.deleter = _delete
    address = ctypes.addressof(managed)
    _exported[address] = (managed, shape, strides, array)
    return _capsule_new(address, b"dltensor", _destroy)
