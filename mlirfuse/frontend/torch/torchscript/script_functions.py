"""TorchScript's ops on numbers, strings, lists and dicts (of tensors too) as Python functions."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

_DTYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32,
           torch.float64, torch.complex32, torch.complex64, torch.complex128, torch.bool, None, None, None,
           torch.bfloat16)  # fmt: skip
_FORMATS = (torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d)


def as_dtype(x: Any) -> Any:
    """The dtype for TorchScript's number of it; anything else unchanged."""
    return _DTYPES[x] if isinstance(x, int) else x


def as_format(x: Any) -> Any:
    """:func:`as_dtype` for memory formats."""
    return _FORMATS[x] if isinstance(x, int) else x


def as_layout(x: Any) -> Any:
    """:func:`as_dtype` for layouts."""
    return torch.strided if isinstance(x, int) else x


def _tensor(data: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> torch.Tensor:
    return torch.tensor(data, dtype=as_dtype(dtype), device=device, requires_grad=requires_grad)


def _divided(a: Any, b: Any, rounding_mode: str | None = None) -> Any:
    if rounding_mode is None:
        return a / b
    return a // b if rounding_mode == "floor" or (a < 0) == (b < 0) else -(-a // b)


def _print(*values: Any) -> None:
    print(*values)


_ANY: dict[str, Callable[..., Any]] = {  # for operands of any type
    "aten::Int": int,
    "aten::Float": float,
    "aten::Bool": bool,
    "aten::IntImplicit": int,
    "aten::FloatImplicit": float,
    "aten::ScalarImplicit": lambda x: x.item() if isinstance(x, torch.Tensor) else x,
    "aten::__is__": operator.is_,
    "aten::__isnot__": operator.is_not,
    "aten::__getitem__": operator.getitem,
    "aten::_unwrap_optional": lambda x: x,
    "aten::len": len,
    "aten::list": list,
    "aten::dict": dict,
    "aten::str": str,
    "aten::tensor": _tensor,
    "aten::device": torch.device,
    "aten::is_grad_enabled": torch.is_grad_enabled,
    "aten::is_autocast_enabled": torch.is_autocast_enabled,
    "aten::is_autocast_cpu_enabled": lambda: torch.is_autocast_enabled("cpu"),
    "aten::warn": lambda *_: None,
    "prim::NumToTensor": lambda x: x,
    "prim::unchecked_cast": lambda x: x,
    "prim::unchecked_unwrap_optional": lambda x: x,
    "prim::Uninitialized": lambda *_: None,
    "prim::Print": _print,
    "prim::device": lambda x: x.device,
    "prim::dtype": lambda x: x.dtype,
    "prim::layout": lambda x: x.layout,
    "prim::type": lambda x: x.type,
    "prim::is_cuda": lambda x: x.is_cuda,
    "prim::is_meta": lambda x: x.is_meta,
    "prim::is_nested": lambda x: x.is_nested,
    "prim::is_quantized": lambda x: x.is_quantized,
    "prim::is_sparse": lambda x: x.is_sparse,
    "prim::requires_grad": lambda x: x.requires_grad,
    "prim::shape": lambda x: list(x.shape),
    "prim::min": min,
    "prim::max": max,
    "prim::abs": abs,
    "prim::rangelist": lambda n: list(range(n)),
    "prim::StringIndex": operator.getitem,
    "prim::TupleIndex": operator.getitem,
    "prim::data": lambda x: x.data,
}
_NUMBERS: dict[str, Callable[..., Any]] = {
    **{name: getattr(math, name) for name in dir(math) if callable(getattr(math, name)) and name[0] != "_"},
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": _divided,
    "floordiv": operator.floordiv,
    "floor_divide": operator.floordiv,
    "remainder": operator.mod,
    "divmod": divmod,
    "pow": operator.pow,
    "neg": operator.neg,
    "abs": abs,
    "round": lambda x: float(round(x)),
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "__and__": operator.and_,
    "__or__": operator.or_,
    "__xor__": operator.xor,
    "__lshift__": operator.lshift,
    "__rshift__": operator.rshift,
    "bitwise_not": operator.invert,
    "__not__": operator.not_,
    "__range_length": lambda begin, end, step: len(range(begin, end, step)),
    "__derive_index": lambda k, begin, step: begin + k * step,
    "mathremainder": math.remainder,
}


def _put(values: Any, key: Any, x: Any) -> Any:
    values[key] = x
    return values


def _delete(values: Any, key: Any) -> None:
    del values[key]


def _method(name: str) -> Callable[..., Any]:
    """A method by name; Dynamo traces this where it does not trace ``str.upper``."""
    return lambda values, *more: getattr(values, name)(*more)


_LISTS: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "add_": lambda values, more: values.extend(more) or values,
    "mul": operator.mul,
    "append": lambda values, x: values.append(x) or values,
    "slice": lambda values, begin=None, end=None, step=1: values[begin:end:step],
    "sort": lambda values, reverse=False: values.sort(reverse=reverse),
    "sorted": sorted,
    "any": any,
    "all": all,
    "sum": sum,
    "_set_item": _put,
    "Delete": _delete,
    "__contains__": operator.contains,
    **{
        name: _method(name)
        for name in ("clear", "copy", "count", "extend", "index", "insert", "pop", "remove", "reverse")
    },
}
_DICTS: dict[str, Callable[..., Any]] = {
    "keys": lambda values: list(values.keys()),
    "values": lambda values: list(values.values()),
    "items": lambda values: list(values.items()),
    "_set_item": _put,
    "Delete": _delete,
    "__contains__": operator.contains,
    **{name: _method(name) for name in ("clear", "copy", "get", "pop", "popitem", "setdefault", "update")},
}


def _search(name: str) -> Callable[..., Any]:
    """A string search method with optional bounds: an end of -1 means the string's end."""
    return lambda text, what, begin=0, end=-1: getattr(text, name)(what, begin, len(text) if end == -1 else end)


_TEXT: dict[str, Callable[..., Any]] = {
    **{name: _method(name) for name in dir(str) if name[0] != "_"},
    **{name: _search(name) for name in ("count", "find", "rfind", "index", "rindex", "startswith", "endswith")},
    "slice": lambda text, begin=None, end=None, step=1: text[begin:end:step],
    "percentFormat": lambda text, *values: text % values,
    "__contains__": operator.contains,
    "ord": ord,
}
_OF_TENSORS = ("dim", "numel", "size", "stride", "is_contiguous", "is_floating_point", "is_complex")
_TENSORS: dict[str, Callable[..., Any]] = {name: getattr(torch.Tensor, name) for name in _OF_TENSORS}
_TENSORS["size"] = lambda x, *d: x.size(*d) if d else list(x.shape)
_TENSORS["stride"] = lambda x, *d: x.stride(*d) if d else list(x.stride())
_BY_TYPE = {"ListType": _LISTS, "DictType": _DICTS, "StringType": _TEXT, "TensorType": _TENSORS}


def python_of(kind: str, types: Sequence[str], tensors: bool) -> Callable[..., Any] | None:
    """The Python function of the op ``kind``; None for one of ATen's ops on tensors.

    ``types``: the kinds of the operands' types. ``tensors``: whether some of them are or contain tensors.
    """
    short = kind.split("::")[1]
    found = _ANY.get(kind) or _BY_TYPE.get(types[0] if types else "", {}).get(short)
    return found if found is not None or tensors else _NUMBERS.get(short)
