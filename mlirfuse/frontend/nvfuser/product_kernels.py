"""What runs grouped and scaled products of definitions: torch's kernels on a GPU where they take the operands, else a
product for each group."""

from __future__ import annotations

from typing import Any

import numpy as np

from mlirfuse.core.errors import UnsupportedError
from mlirfuse.ir.dtypes import DType
from mlirfuse.runtime import arrays


def grouped(dtype: DType, a, b, ends) -> list:
    """``a`` times ``b``, of which one or both are in groups that end at ``ends``: the rows of ``a`` (m, k) by matrices
    (g, k, n); the columns of ``b`` (k, n) by matrices (g, m, k); or the reduced dimension of both, to (g, m, n)."""
    torch = _torch(a, "grouped_mm")
    if a.is_cuda and a.dtype == torch.bfloat16 and dtype.name == "bf16":
        return [torch._grouped_mm(a, b, offs=ends.int(), out_dtype=torch.bfloat16)]
    wide = torch.float64 if a.dtype == torch.float64 else torch.float32
    return [_by_group(torch, a.to(wide), b.to(wide), ends).to(arrays.torch_dtype(dtype))]


def scaled(dtype: DType, options: tuple[str, ...], a, b, scale_a, scale_b, *more) -> list:
    """(a * scale_a) times (b * scale_b), times alpha, plus a bias for each column; scales are one number, or one for
    each row of ``a`` and each column of ``b``."""
    torch, given = _torch(a, "scaled_mm"), dict(zip(options, more))
    kind = arrays.torch_dtype(dtype)
    if a.is_cuda and a.element_size() == 1 and not given:
        columns = b.mT.contiguous().mT
        return [torch._scaled_mm(a, columns, scale_a.float(), scale_b.float(), out_dtype=kind)]
    out = _scaled_down(a, scale_a) @ _scaled_down(b, scale_b)
    return [_finished(out, given).to(kind)]


def scaled_grouped(dtype: DType, options: tuple[str, ...], a, b, ends, scale_a, scale_b, *more) -> list:
    """As ``grouped``, with ``a`` and ``b`` times their scales, which broadcast to them."""
    torch, given = _torch(a, "scaled_grouped_mm"), dict(zip(options, more))
    out = _by_group(torch, _scaled_down(a, scale_a), _scaled_down(b, scale_b), ends)
    return [_finished(out, given).to(arrays.torch_dtype(dtype))]


def _torch(array, name: str):
    if arrays.framework(array) != "torch":
        raise UnsupportedError(f"fd.ops.{name} runs torch's products: pass torch tensors")
    import torch

    return torch


def _scaled_down(values, scale):
    return values.float() * scale.float()


def _finished(out, given: dict[str, Any]):
    if "alpha" in given:
        out = out * given["alpha"].float()
    return out + given["bias"].float() if "bias" in given else out


def _by_group(torch, a, b, ends):
    bounds = [0, *np.asarray(arrays.to_numpy(ends)).tolist()]
    spans = list(zip(bounds, bounds[1:]))
    if a.ndim == 2 and b.ndim == 3:
        return torch.cat([a[low:high] @ m for (low, high), m in zip(spans, b)])
    if a.ndim == 3:
        return torch.cat([m @ b[:, low:high] for (low, high), m in zip(spans, a)], 1)
    return torch.stack([a[:, low:high] @ b[low:high] for low, high in spans])
