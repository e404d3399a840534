"""Arrays of any framework: NumPy arrays and numbers, torch tensors, objects with ``__cuda_array_interface__``. Their
framework, layout and device, and conversions to and from NumPy."""

from __future__ import annotations

import functools
import sys
from typing import Any

import numpy as np

from mlirfuse.core.errors import UnsupportedError
from mlirfuse.ir import dtypes as dt
from mlirfuse.runtime.signature import ArgSpec, Static, alignment

_DLPACK_CPU = 1


def framework(value) -> str | None:
    """Return "numpy", "torch" or "cupy"; "own" for any other CUDA array, whose results are :class:`DeviceArray`; None
    for an object that is not an array."""
    if isinstance(value, np.ndarray):
        return "numpy"
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return "torch"
    if hasattr(value, "__cuda_array_interface__"):
        return "cupy" if type(value).__module__.split(".")[0] == "cupy" else "own"
    return None


@functools.cache
def torch_dtypes() -> dict[Any, dt.DType]:
    """Return the :class:`DType` of each of torch's dtypes. Both have NumPy's names."""
    import torch

    return {getattr(torch, t.numpy.name): t for t in dt.BY_NAME.values() if hasattr(torch, t.numpy.name)}


def torch_dtype(dtype: dt.DType):
    """Return torch's dtype for a :class:`DType`."""
    import torch

    return getattr(torch, dtype.numpy.name)


def _of_torch(dtype) -> dt.DType:
    found = torch_dtypes().get(dtype)
    if found is None:
        raise UnsupportedError(f"torch dtype {dtype} is not supported: convert the tensor first")
    return found


def address_of(value) -> int:
    """Return the address of an array's first element."""
    kind = framework(value)
    if kind == "numpy":
        return value.ctypes.data
    return value.data_ptr() if kind == "torch" else value.__cuda_array_interface__["data"][0]


def describe(value, name: str = "x") -> ArgSpec | Static:
    """Return the :class:`ArgSpec` of an argument; :class:`Static` for an object that is not an array or number. Raises
    :class:`UnsupportedError`, with a remedy in terms of the argument's ``name``."""
    kind = framework(value)
    if kind == "torch":
        if value.requires_grad and sys.modules["torch"].is_grad_enabled():
            raise UnsupportedError(
                "a tensor that requires grad: mlirfuse records no gradients; pass tensor.detach() or call under "
                "torch.no_grad()"
            )
        if value.layout is not sys.modules["torch"].strided:
            raise UnsupportedError(f"a tensor of layout {value.layout}: pass tensor.to_dense()")
        if value.is_neg():
            raise UnsupportedError("a negated view: pass tensor.resolve_neg()")
        return ArgSpec(
            _of_torch(value.dtype),
            tuple(value.shape),
            tuple(value.stride()),
            alignment(address_of(value)),
            device=value.device.type,
            writable=zeros_in_memory(value) is None,
        )
    if kind in ("cupy", "own"):
        interface = value.__cuda_array_interface__
        own = getattr(value, "dtype", None)  # may be bfloat16, which the interface's type strings cannot express
        dtype = dt.of(own if isinstance(own, np.dtype) else np.dtype(interface["typestr"]))
        shape = tuple(interface["shape"])
        strides = interface.get("strides")
        if strides is None:
            strides, running = [], dtype.bytes
            for n in reversed(shape):
                strides.insert(0, running)
                running *= n
        address, read_only = interface["data"]
        return ArgSpec(
            dtype,
            shape,
            tuple(s // dtype.bytes for s in strides),
            alignment(address),
            device="cuda",
            writable=not read_only,
        )
    if isinstance(value, np.ndarray) and type(value) not in (np.ndarray, np.memmap):
        remedy = _conversion_to_numpy(value, name)
        raise UnsupportedError(
            f"{_named(value)}, an array with semantics of its own: pass the underlying array, {remedy}"
        )
    spec = ArgSpec.of(value)
    if isinstance(spec, Static):
        _check_constant(value, name)
    return spec


def _named(value) -> str:
    """Return an object's type as users write it, with an article: "a pandas.Series"."""
    kind = type(value)
    package = kind.__module__.partition(".")[0]
    public = package != "builtins" and getattr(sys.modules.get(package), kind.__name__, None) is kind
    name = f"{package}.{kind.__name__}" if public and package != "__main__" else kind.__qualname__
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


# Attributes of other libraries' arrays, and how users convert with them to a NumPy array.
_REMEDIES = {"to_numpy": "to_numpy()", "compute": "compute()", "magnitude": "magnitude", "value": "value"}


def _conversion_to_numpy(value, name: str) -> str:
    """Return how the user gets a NumPy array from an object of another library."""
    if isinstance(value, getattr(sys.modules.get("numpy.ma"), "MaskedArray", ())):  # importing it takes 20 ms
        return f"np.ma.getdata({name})"
    conversions = [
        f"{name}.{conversion}" for attribute, conversion in _REMEDIES.items() if hasattr(type(value), attribute)
    ]
    return conversions[0] if conversions else f"np.asarray({name})"


_ARRAY_PROTOCOLS = ("__array_ufunc__", "__array_function__", "__dlpack__", "to_numpy")


def _check_constant(value, name: str) -> None:
    """Raise UnsupportedError for an object that cannot be a constant of compiled code: an array or a table of another
    library, or a mutable object without a hash."""
    kind = type(value)
    if issubclass(kind, (type, str, np.generic, np.dtype)):
        return
    if any(hasattr(kind, protocol) for protocol in _ARRAY_PROTOCOLS):
        raise UnsupportedError(
            f"{_named(value)}, which has semantics of its own: pass {_conversion_to_numpy(value, name)}"
        )
    if hasattr(kind, "__dataclass_fields__"):  # the fields that the function reads are compared at each call
        return
    try:
        hash(value)
    except TypeError:
        remedy = "pass its arrays and numbers, or a list, a tuple or a dict of them"
        raise UnsupportedError(f"{_named(value)}, which is not an array or number and has no hash: {remedy}") from None


def host_array(value):
    """Return ``value``; an array in host memory with DLPack (jax's) as a NumPy view."""
    if framework(value) is None and hasattr(type(value), "__dlpack__") and value.__dlpack_device__()[0] == _DLPACK_CPU:
        return np.from_dlpack(value)
    return value


def spec_of(array) -> ArgSpec:
    """Return the :class:`ArgSpec` of an array."""
    spec = describe(array)
    assert isinstance(spec, ArgSpec)
    return spec


def device_of(value) -> tuple | None:
    """Return ("cpu",) or ("cuda", index) for an array; None for anything else."""
    kind = framework(value)
    if kind is None:
        return None
    if kind == "numpy":
        return ("cpu",)
    if kind == "torch":
        return ("cpu",) if value.device.type == "cpu" else (value.device.type, value.device.index or 0)
    device = getattr(value, "device", None)
    return "cuda", getattr(device, "id", 0) if not isinstance(device, int) else device


def to_numpy(value) -> np.ndarray:
    """Return a NumPy array of the same elements, on the host."""
    kind = framework(value)
    if kind == "torch":
        host = resolved(value.detach()).cpu()
        if host.dtype == sys.modules["torch"].bfloat16:
            return host.view(sys.modules["torch"].int16).numpy().view(dt.bf16.numpy)
        if host.dtype.is_floating_point and host.element_size() == 1:
            return host.view(sys.modules["torch"].uint8).numpy().view(_of_torch(host.dtype).numpy)
        return host.numpy()
    if kind == "cupy":
        return value.get()
    if kind == "own":
        from mlirfuse.runtime.device_array import DeviceArray

        if not isinstance(value, DeviceArray):  # a view of its memory
            spec, (_, device) = spec_of(value), device_of(value) or ("cuda", 0)
            strides = [s * spec.dtype.bytes for s in spec.strides]
            value = DeviceArray(address_of(value), spec.shape, spec.dtype.numpy, strides, device, owner=value)
        return value.numpy()
    return np.asarray(value)


def resolved(array):
    """Return an array whose memory has its values: a copy of a torch tensor that torch conjugates, negates or knows to
    be zero as it is read, else ``array``."""
    if framework(array) != "torch":
        return array
    zeros = zeros_in_memory(array)
    return array.resolve_conj().resolve_neg() if zeros is None else zeros


def zeros_in_memory(tensor):
    """Return zeros with the shape and strides of a torch tensor that has no memory since torch knows it to be zero (a
    ZeroTensor); None for any other tensor."""
    if not tensor.numel() or tensor.data_ptr() != tensor.storage_offset() * tensor.element_size():
        return None
    # torch has no public question for it: of tensors without memory, whose storage has bytes, only it has a clone
    # with memory (a fake or a functional tensor has another of its kind).
    if not tensor.untyped_storage().nbytes() or not _has_memory(tensor.detach().clone()):
        return None
    torch = sys.modules["torch"]
    span = 1 + sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride()))
    return torch.zeros(span, dtype=tensor.dtype, device=tensor.device).as_strided(tensor.shape, tensor.stride())


def _has_memory(tensor) -> bool:
    try:
        return tensor.untyped_storage().data_ptr() != 0
    except RuntimeError:  # of storages without a pointer
        return False


def from_numpy(array: np.ndarray, like):
    """Return ``array`` as an array of the framework and device of ``like``."""
    kind = framework(like)
    if kind == "torch":
        torch = sys.modules["torch"]
        if not array.size:  # NumPy's have strides of 0
            return torch.empty(array.shape, dtype=torch_dtype(dt.of(array.dtype)), device=like.device)
        array = np.ascontiguousarray(array) if array.ndim else array.copy()
        if array.dtype == dt.bf16.numpy:
            host = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        elif dt.of(array.dtype).kind == "n":
            host = torch.from_numpy(array.view(np.uint8)).view(torch_dtype(dt.of(array.dtype)))
        else:
            host = torch.from_numpy(array)
        return host.to(like.device)
    if kind == "cupy":
        import cupy

        return cupy.asarray(array)
    if kind == "own":
        from mlirfuse.runtime.device_array import DeviceArray

        return DeviceArray.from_numpy(array)
    return array


def write_into(target, array: np.ndarray) -> None:
    """Overwrite ``target``'s elements."""
    if framework(target) == "numpy":
        target[...] = array
    elif framework(target) == "torch":
        target.copy_(from_numpy(np.asarray(array), target))
    else:
        target[...] = from_numpy(np.asarray(array), target)
