"""What a call is given: arrays of NumPy, torch and CuPy, whatever speaks DLPack or ``__cuda_array_interface__``, and
numbers."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np


class Array(NamedTuple):
    """An array: its dtype's name as NumPy has it, strides in elements, the address of its first element, its device
    ("cpu", "cuda:0"), and who made it ("numpy", "torch", "cupy", "own")."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    address: int
    device: str
    framework: str
    itemsize: int
    writable: bool

    @property
    def alignment(self) -> int:
        """The largest power of two, up to 256, that divides the address."""
        return min(self.address & -self.address, 256) if self.address else 256

    @property
    def span(self) -> tuple[int, int]:
        """The bytes from its first to behind its last."""
        if 0 in self.shape:
            return self.address, self.address
        reach = [(n - 1) * s * self.itemsize for n, s in zip(self.shape, self.strides)]
        low, high = sum(r for r in reach if r < 0), sum(r for r in reach if r > 0)
        return self.address + low, self.address + high + self.itemsize

    @property
    def overlaps_itself(self) -> bool:
        """Whether elements may share memory."""
        reach = 1
        for step, n in sorted((abs(step), n) for step, n in zip(self.strides, self.shape) if n != 1):
            if step < reach and 0 not in self.shape:
                return True
            reach = step * n
        return False


def described(value: Any, name: str) -> Array | None:
    """``value`` as an array; None for one that has to be made NumPy's first (:func:`of_dlpack`). Raises TypeError for
    what is no array, ValueError for one whose strides are no multiples of its items."""
    if isinstance(value, np.ndarray):
        if type(value) not in (np.ndarray, np.memmap):
            raise TypeError(f"{name} is a {type(value).__name__}, an array of another meaning: pass np.asarray({name})")
        size = value.itemsize
        if any(s % size for s in value.strides):
            raise ValueError(
                f"{name} has strides {value.strides}, no multiples of its items' {size} bytes: pass a copy"
            )
        strides = tuple(s // size for s in value.strides)
        address = value.__array_interface__["data"][0]
        dtype = value.dtype.name if value.dtype.isnative else f"byte-swapped {value.dtype.name}"
        return Array(dtype, value.shape, strides, address, "cpu", "numpy", size, value.flags.writeable)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        if value.requires_grad and torch.is_grad_enabled():
            raise TypeError(f"{name} requires grad, and no gradients are recorded: pass {name}.detach()")
        if value.is_neg() or value.is_conj():
            raise TypeError(f"{name} is a view that torch has yet to negate: pass {name}.resolve_neg()")
        device = "cpu" if value.device.type == "cpu" else f"{value.device.type}:{value.device.index}"
        dtype = str(value.dtype).removeprefix("torch.")
        where = value.data_ptr(), device, "torch", value.element_size(), True
        return Array(dtype, tuple(value.shape), tuple(value.stride()), *where)
    interface = getattr(value, "__cuda_array_interface__", None)
    if interface is not None:
        return _of_interface(value, interface)
    if hasattr(value, "__dlpack__"):
        return None
    raise TypeError(f"{name} is an array, and not {type(value).__name__}")


def _of_interface(value: Any, interface: dict[str, Any]) -> Array:
    dtype, shape = np.dtype(interface["typestr"]), tuple(interface["shape"])
    address, read_only = interface["data"]
    strides = interface.get("strides")
    if strides is None:
        steps, running = [], 1
        for n in reversed(shape):
            steps.append(running)
            running *= n
        strides = tuple(s * dtype.itemsize for s in reversed(steps))
    framework = "cupy" if type(value).__module__.split(".")[0] == "cupy" else "own"
    device = f"cuda:{getattr(getattr(value, 'device', None), 'id', 0)}"
    elements = tuple(s // dtype.itemsize for s in strides)
    return Array(dtype.name, shape, elements, address, device, framework, dtype.itemsize, not read_only)


def of_dlpack(value: Any) -> np.ndarray:
    """A NumPy array over the memory of another framework's on the host."""
    return np.from_dlpack(value)


def code_and_bits(dtype: str) -> tuple[int, int]:
    """DLPack's code and the bits of a dtype, by its name."""
    if dtype == "bfloat16":
        return 4, 16
    found = np.dtype(dtype)
    return {"i": 0, "u": 1, "f": 2, "b": 6}[found.kind], 8 * found.itemsize
