"""Ops that are no kernels of ours (products, convolutions, scans, sorting, scattering), run by the arrays' own
framework where they lie.

NumPy arrays take the op table's reference. What a CUDA framework has no function for goes through the host, with a
warning that says so.
"""

from __future__ import annotations

import functools
import sys
import warnings

import numpy as np

from mlirfuse.ir import ops as table
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Op
from mlirfuse.runtime import arrays


def run(op: Op, given, env: dict[str, int], like) -> list:
    """The results of an op that no kernel computes. ``given``: its operands, arrays or numbers; ``like``: an array
    beside which results of numbers are made."""
    kind = arrays.framework(like)
    functions = {"torch": _TORCH, "cupy": _CUPY}.get(kind, {})
    row = table.TABLE[op.name]
    attrs = table.map_sizes(row.attr_types, {k: op.attrs[k] for k in row.attrs}, lambda n: sz.substitute(n, env))
    if row.calls:
        placed = [
            _placed(a, v, like, kind) if functions else np.asarray(arrays.to_numpy(a), v.dtype.numpy)
            for a, v in zip(given, op.operands)
        ]
        return list(row.ref(*placed, **attrs))
    if op.name in functions:
        results = functions[op.name](*(_placed(a, v, like, kind) for a, v in zip(given, op.operands)), **attrs)
        results = results if isinstance(results, (list, tuple)) else [results]
        return [_compact(r, kind) for r in results]
    if row.kind == "library" and arrays.device_of(like) not in (None, ("cpu",)):
        _tell(op.name, kind)
    with np.errstate(all="ignore"):
        results = row.ref(*(np.asarray(arrays.to_numpy(a), v.dtype.numpy) for a, v in zip(given, op.operands)), **attrs)
    results = results if len(op.results) > 1 else [results]
    if row.kind != "library":  # a constant or a size, which only library ops read: each has its own within kernels
        return [np.asarray(r, v.dtype.numpy) for r, v in zip(results, op.results)]
    return [arrays.from_numpy(np.asarray(r, v.dtype.numpy, order="C"), like) for r, v in zip(results, op.results)]


def like(leaves):
    """The array among a call's arguments that says where results are made: one with dimensions before one without,
    which may be a CPU scalar."""
    found = [a for a in leaves if arrays.framework(a)]
    return next(
        (a for a in found if arrays.device_of(a) != ("cpu",)),
        next((a for a in found if a.ndim), found[0] if found else np.empty(0)),
    )


def _placed(array, value, like, kind: str):
    """An operand as the framework takes it: constants and numbers become 0-d arrays beside ``like``."""
    if arrays.framework(array) == kind and arrays.device_of(array) == arrays.device_of(like):
        return array
    if kind == "torch" and not value.shape:  # filled there: a copy from the host would wait
        return _torch().full(
            (), np.asarray(arrays.to_numpy(array)).item(), dtype=arrays.torch_dtype(value.dtype), device=like.device
        )
    return arrays.from_numpy(np.asarray(arrays.to_numpy(array), value.dtype.numpy), like)


def _compact(array, kind: str):
    if kind == "torch":
        return array.contiguous()
    import cupy

    return cupy.ascontiguousarray(array)


@functools.cache
def _tell(name: str, kind: str | None) -> None:
    warnings.warn(f"mlirfuse runs '{name}' on the host: {kind} arrays have no function for it here", stacklevel=3)


# ---------------------------------------------------------------------------------------------------------------- torch


def _torch():
    return sys.modules["torch"]


def _widened(function):
    """Half types computed in float32, as the op table says."""

    def call(x, *more, **attrs):
        torch = _torch()
        if x.dtype not in (torch.float16, torch.bfloat16):
            return function(x, *more, **attrs)
        more = [m.float() if m.is_floating_point() else m for m in more]
        return function(x.float(), *more, **attrs).to(x.dtype)

    return call


def _scatter(x, index, values, axis):
    return x.scatter(axis, index.long(), values.expand(index.shape))


def _argsort(x, axis, descending):
    return _torch().argsort(x, dim=axis, descending=descending, stable=True)


def _conv(x, w, *bias, stride, padding, dilation, groups):
    function = getattr(_torch().nn.functional, f"conv{x.ndim - 2}d")
    return function(x, w, *bias, stride=tuple(stride), padding=tuple(padding), dilation=tuple(dilation), groups=groups)


_TORCH = {
    "matmul": lambda a, b: _torch().matmul(a, b),
    "linear": lambda x, w, *bias: _torch().nn.functional.linear(x, w, *bias),
    "conv": _conv,
    "attention": lambda q, k, v, causal, scale: _torch().nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=causal, scale=scale
    ),
    "cumsum": _widened(lambda x, axis: x.cumsum(axis, dtype=x.dtype)),
    "cumprod": _widened(lambda x, axis: x.cumprod(axis, dtype=x.dtype)),
    "cummax": lambda x, axis: x.cummax(axis).values,
    "cummin": lambda x, axis: x.cummin(axis).values,
    "argsort": _argsort,
    "scatter": _scatter,
    "index_put_accumulate": _widened(lambda x, index, values: x.index_add(0, index, values)),
}

# ---------------------------------------------------------------------------------------------------------------- CuPy


def _cupy_accumulate(x, index, values):
    import cupy

    out = x.copy()
    cupy.add.at(out, index, values)
    return out


_CUPY = {
    "matmul": lambda a, b: a @ b,
    "cumsum": lambda x, axis: x.cumsum(axis, dtype=x.dtype),
    "cumprod": lambda x, axis: x.cumprod(axis, dtype=x.dtype),
    "index_put_accumulate": _cupy_accumulate,
}
