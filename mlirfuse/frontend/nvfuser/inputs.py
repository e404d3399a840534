"""Inputs of a definition's call: described as arrays, and checked against the declarations."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mlirfuse.core.errors import MlirfuseError
from mlirfuse.frontend.nvfuser.promotion import from_dtype
from mlirfuse.frontend.nvfuser.values import InputError, Scalar, Tensor, at_line
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.dtypes import DType
from mlirfuse.runtime import arrays

if TYPE_CHECKING:
    from mlirfuse.frontend.nvfuser.recorder import Recorder


@dataclass(frozen=True)
class Description:
    """An array: strides in elements; ``device`` as "cpu" or "cuda:0"."""

    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    device: str


def is_torch(value) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def describe(value) -> Description | None:
    """``value`` as an array; None if it is not an array. Raises InputError for an unsupported array."""
    if is_torch(value):
        dtype = arrays.torch_dtypes().get(value.dtype)
        if dtype is None:
            raise InputError(f"a tensor of {value.dtype} is not supported: cast it first")
        if value.layout is not sys.modules["torch"].strided or value.device.type not in ("cpu", "cuda"):
            raise InputError(
                f"a tensor of layout {value.layout} on {value.device} is not supported: pass a strided one on a CPU or "
                "a GPU"
            )
        return Description(dtype, tuple(value.shape), tuple(value.stride()), str(value.device))
    if isinstance(value, np.ndarray):
        try:
            dtype = dt.of(value.dtype)
        except TypeError as error:
            raise InputError(str(error)) from error
        if any(s % value.itemsize for s in value.strides):
            raise InputError(
                "an array whose strides are not multiples of its element size is not supported: copy it first"
            )
        return Description(dtype, value.shape, tuple(s // value.itemsize for s in value.strides), "cpu")
    interface = getattr(value, "__cuda_array_interface__", None)
    if interface is not None:
        dtype, shape = dt.of(np.dtype(interface["typestr"])), tuple(interface["shape"])
        strides = interface.get("strides")
        elements: tuple = sz.contiguous_strides(shape) if strides is None else tuple(s // dtype.bytes for s in strides)
        device = getattr(value, "device", None)
        return Description(dtype, shape, elements, f"cuda:{getattr(device, 'id', 0)}")
    return None


def detached(values) -> list:
    """``values`` with torch tensors that require gradients detached: definitions record no gradients, as nvFuser's do
    not."""
    return [v.detach() if is_torch(v) and v.requires_grad else v for v in values]


def flatten(inputs) -> list:
    """The inputs with vectors (lists or tuples of numbers) expanded."""
    flat: list = []
    for value in inputs:
        if isinstance(value, (list, tuple)):
            flat.extend(value)
        else:
            flat.append(value)
    return [v.item() if isinstance(v, np.generic) else v for v in detached(flat)]


_SCALARS = {"f": (bool, int, float), "i": (bool, int), "u": (bool, int), "b": (bool,), "c": (bool, int, float, complex)}


def check(definition: Recorder, flat: list, device) -> dict[str, int]:
    """The symbols' values for the inputs ``flat``. Raises :class:`InputError` where they do not match
    ``definition``."""
    declared = definition.inputs
    if len(flat) != len(declared):
        raise wrong_number(len(declared), flat)
    symbols: dict[str, int] = {}
    devices: dict[str, int] = {}
    written = {declared.index(o.alias) for o in definition.outputs if o.alias is not None}
    for k, (val, given) in enumerate(zip(declared, flat)):
        if isinstance(val, Scalar):
            _check_scalar(k, val, given)
            if val.dtype.kind in "iu":
                symbols[f"v{k}"] = int(given)
            continue
        d = describe(given)
        name = f"{at_line(val.declaration.loc)}Expected input {k}, tv{val.number}"
        if d is None:
            raise InputError(f"{name}, to be an at::Tensor but got {_scalar_text(given)}")
        if d.dtype is not val.value.dtype:
            expected, got = (val.dtype.value, from_dtype(d.dtype).value if _has_name(d.dtype) else str(d.dtype))
            raise InputError(f"{name}, to be bound to a tensor of dtype {expected}, but got a tensor of dtype {got}")
        if len(d.shape) != val.ndim:
            raise InputError(
                f"{name}, to be bound to a tensor of rank {val.ndim}, but got a tensor of rank {len(d.shape)}"
            )
        if val.declaration.is_cpu and d.device != "cpu":
            raise InputError(f"{name}, to be a CPU scalar tensor (is_cpu=True), but it is on {d.device}")
        if not val.declaration.is_cpu or k in written:
            devices.setdefault(d.device, k)
        _check_layout(definition, k, val, d, name, symbols)
    if len(devices) > 1:
        where = ", ".join(f"input {k} on {name}" for name, k in devices.items())
        raise InputError(
            f"the inputs are on several devices: {where}; nothing is copied between devices (a CPU scalar "
            "tensor needs is_cpu=True)"
        )
    return symbols


def wrong_number(expected: int, flat) -> InputError:
    return InputError(f"Number of inputs does not match: this fusion has {expected} inputs, but received {len(flat)}")


def check_device(flat, device) -> None:
    """Raises :class:`InputError` where an array, other than a CPU scalar, is not on ``device``."""
    wanted = device_text(device)
    for k, value in enumerate(flat):
        d = describe(value)
        if (
            d is not None
            and (d.shape or d.device != "cpu")
            and d.device != wanted
            and not (wanted == "cuda" and d.device.startswith("cuda"))
        ):
            raise InputError(f"input {k} is on {d.device}, but device={wanted} was requested")


def _has_name(dtype: DType) -> bool:
    try:
        from_dtype(dtype)
    except MlirfuseError:
        return False
    return True


def device_text(device) -> str:
    return f"cuda:{device}" if isinstance(device, int) else str(device)


def _scalar_text(value) -> str:
    return f"scalar {value:g}" if isinstance(value, (int, float)) else f"{type(value).__name__}"


def _check_scalar(k: int, val: Scalar, given) -> None:
    if isinstance(given, np.generic):
        given = given.item()
    if not isinstance(given, (bool, int, float, complex)):
        d = describe(given)
        if d is not None:
            got = from_dtype(d.dtype).value if _has_name(d.dtype) else str(d.dtype)
            raise InputError(
                f"Expected input {k}, {val.dtype.name[0]}{val.number}, to be a scalar but got {got} tensor "
                f"of rank {len(d.shape)}"
            )
        raise InputError(
            f"Expected input {k}, {val.dtype.name[0]}{val.number}, to be a scalar but got {type(given).__name__}"
        )
    if type(given) not in _SCALARS[val.dtype.kind]:
        shown = f"({given.real:g},{given.imag:g})" if isinstance(given, complex) else f"{given}"
        raise InputError(
            f"Scalar value {shown} is not compatible with the expected data type: {val.data_type.value}. (input {k})"
        )


def _check_layout(definition, k, val: Tensor, d: Description, name, symbols) -> None:
    declaration, layout = val.declaration, definition.layouts[k]
    for dim, (n, extent) in enumerate(zip(d.shape, val.value.shape)):
        if isinstance(extent, int):
            if n != extent:
                raise InputError(f"{name}, to have extent {extent} in dimension {dim}, but its shape is {d.shape}")
        else:
            symbols[str(extent)] = n
    for dim, stride in enumerate(layout.strides):
        if isinstance(stride, sz.Expr) and stride.is_symbol and str(stride)[0] == "t":
            symbols[str(stride)] = d.strides[dim]
    if 0 in d.shape:
        return
    expected = 1
    for contiguous, dim in reversed(list(zip(declaration.contiguity, declaration.memory_order))):
        n, stride = d.shape[dim], d.strides[dim]
        if n == 1:
            continue
        if contiguous is None:
            if declaration.shape[dim] != 1 and stride != 0:
                raise InputError(
                    f"{name}, to be expanded (stride 0) in dimension {dim}, but its strides are {d.strides}"
                )
            continue
        if contiguous and stride != expected:
            raise InputError(
                f"{name}, to be contiguous in dimension {dim} (a stride of {expected}), but shape "
                f"{d.shape} has strides {d.strides}: "
                f"declare contiguity False there, or make it contiguous"
            )
        expected = stride * n


def compute_tensor_descriptor(sizes, strides) -> tuple[list[bool | None], list[int]]:
    """Contiguity, outermost in memory first, and stride order of an array with these sizes and strides (in
    elements)."""
    if len(sizes) != len(strides):
        raise InputError("compute_tensor_descriptor: Sizes and strides must have the same number of dimensions")
    for k, s in enumerate(strides):
        if s < 0:
            raise InputError(f"negative stride on tensor is not supported: strides[{k}]={s}")
    rank = len(sizes)
    memory = sorted((d for d in range(rank) if strides[d]), key=lambda d: -strides[d])
    for d in range(rank):  # dimensions of stride 0 keep their positions
        if not strides[d]:
            memory.insert(d, d)
    contiguity: list[bool | None] = [None] * rank
    expected = 1
    for place in range(rank - 1, -1, -1):
        d = memory[place]
        if strides[d] and sizes[d] != 1:
            contiguity[place] = strides[d] == expected
            expected = strides[d] * sizes[d]
    order = [0] * rank
    for place, d in enumerate(memory):
        order[d] = rank - 1 - place
    return contiguity, order


def compute_contiguity(sizes, strides) -> list[bool | None]:
    """Contiguity of each dimension, None for those that broadcast (the older API)."""
    return compute_tensor_descriptor(sizes, strides)[0]
