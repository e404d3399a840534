"""Structures of the ABI of exported libraries, for ctypes."""

import ctypes

ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class Tensor(ctypes.Structure):
    """DLPack's."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("dtype", ctypes.c_uint8 * 4),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class CallOptions(ctypes.Structure):
    """mlirfuse_call."""

    _fields_ = [
        ("abi", ctypes.c_uint32),
        ("stream", ctypes.c_void_p),
        ("allocate", ALLOCATE),
        ("loop", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    ]
