"""Implementations of grouped and scaled matmuls: torch's GPU kernels where they accept the operands, else one matmul
per group."""

from __future__ import annotations

import itertools
import sys
from typing import Any

import numpy as np

from mlirfuse.ir.dtypes import DType
from mlirfuse.runtime import arrays


def grouped(dtype: DType, a, b, ends) -> list:
    """``a`` times ``b``, with one or both in groups that end at ``ends``: rows of ``a`` (m, k) times matrices (g, k,
    n); matrices (g, m, k) times columns of ``b`` (k, n); or the reduced dimension of both, giving (g, m, n)."""
    torch = _torch(a)
    bf16 = torch and a.dtype == torch.bfloat16 and dtype.name == "bf16"
    if bf16 and _has_kernel(torch, "_grouped_mm", a, (9, 0)):
        return [torch._grouped_mm(a, b, offs=ends.int(), out_dtype=torch.bfloat16)]
    return [_cast(_by_group(_widened(a), _widened(b), ends), dtype)]


def scaled(dtype: DType, options: tuple[str, ...], a, b, scale_a, scale_b, *more) -> list:
    """(a * scale_a) @ (b * scale_b) times alpha, plus a bias per column; scales are one number, or one per row of ``a``
    and per column of ``b``."""
    torch, given = _torch(a), dict(zip(options, more))
    if torch and a.element_size() == 1 and not given and _has_kernel(torch, "_scaled_mm", a, (8, 9)):
        kind, columns = arrays.torch_dtype(dtype), b.mT.contiguous().mT
        return [torch._scaled_mm(a, columns, scale_a.float(), scale_b.float(), out_dtype=kind)]
    return [_cast(_finished(_times(a, scale_a) @ _times(b, scale_b), given), dtype)]


def scaled_grouped(dtype: DType, options: tuple[str, ...], a, b, ends, scale_a, scale_b, *more) -> list:
    """:func:`grouped` of ``a`` and ``b`` times their scales, which broadcast to them."""
    out = _by_group(_times(a, scale_a), _times(b, scale_b), ends)
    return [_cast(_finished(out, dict(zip(options, more))), dtype)]


def _has_kernel(torch: Any, name: str, array, capability: tuple[int, int]) -> bool:
    """Whether torch has a kernel of this name, and the array's GPU supports it."""
    return array.is_cuda and hasattr(torch, name) and torch.cuda.get_device_capability(array.device) >= capability


def _torch(array):
    return sys.modules["torch"] if arrays.framework(array) == "torch" else None


def _widened(array):
    """The array in float32, or in float64 if it is."""
    torch = _torch(array)
    if torch:
        return array if array.dtype == torch.float64 else array.float()
    return array if array.dtype == np.float64 else array.astype(np.float32)


def _cast(array, dtype: DType):
    return array.to(arrays.torch_dtype(dtype)) if _torch(array) else array.astype(dtype.numpy)


def _times(values, scale):
    return _widened(values) * _widened(scale)


def _finished(out, given: dict[str, Any]):
    if "alpha" in given:
        out = out * _widened(given["alpha"])
    return out + _widened(given["bias"]) if "bias" in given else out


def _by_group(a, b, ends):
    """The groups' matmuls, concatenated along the rows or columns, or stacked."""
    torch = _torch(a)
    join, stack = (torch.cat, torch.stack) if torch else (np.concatenate, np.stack)
    bounds = [0, *np.asarray(arrays.to_numpy(ends)).tolist()]
    extent = a.shape[0] if a.ndim == 2 and b.ndim == 3 else b.shape[1] if a.ndim == 3 else a.shape[1]
    if sorted(bounds) != bounds or (bounds[-1] != extent and a.ndim != b.ndim) or bounds[-1] > extent:
        raise ValueError(f"offsets must not decrease, and end at the extent {extent}, not {bounds[1:]}")
    spans = list(itertools.pairwise(bounds))
    if a.ndim == 2 and b.ndim == 3:
        return join([a[low:high] @ m for (low, high), m in zip(spans, b)], 0)
    if a.ndim == 3:
        return join([m @ b[:, low:high] for (low, high), m in zip(spans, a)], 1)
    return stack([a[:, low:high] @ b[low:high] for low, high in spans], 0)
