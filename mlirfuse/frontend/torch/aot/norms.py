"""Decompositions of training batch norms, and of the gradients of batch and layer norms, in ATen ops only: torch's own
do the same arithmetic through its Python references, in more ops and up to three times the time. A model has a hundred
norms."""

from __future__ import annotations

import math
from typing import Any

import torch

from mlirfuse.frontend.torch.torch_private import decomposition_table as torchs
from mlirfuse.frontend.torch.torch_private import get_computation_dtype, statically_known_true

aten = torch.ops.aten
_FORWARD = aten._native_batch_norm_legit_functional.default
_BACKWARD = aten.native_batch_norm_backward.default
_LAYER_BACKWARD = aten.native_layer_norm_backward.default


def _cast(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return x if x.dtype is dtype else aten._to_copy.default(x, dtype=dtype)


def _forward(x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, running_mean: torch.Tensor,
             running_var: torch.Tensor, training: bool, momentum: float, eps: float) -> Any:  # fmt: skip
    if not training:
        return torchs[_FORWARD](x, weight, bias, running_mean, running_var, training, momentum, eps)
    wide = _cast(x, get_computation_dtype(x.dtype))
    var, mean = aten.var_mean.correction(wide, [0, *range(2, x.dim())], correction=0)
    rstd = aten.rsqrt.default(aten.add.Tensor(var, eps))
    shape = [x.shape[1], *[1] * (x.dim() - 2)]
    y = aten.sub.Tensor(wide, aten.view.default(mean, shape))
    y = aten.mul.Tensor(y, aten.view.default(rstd, shape))
    if weight is not None:
        y = aten.mul.Tensor(y, aten.view.default(weight, shape))
    if bias is not None:
        y = aten.add.Tensor(y, aten.view.default(bias, shape))
    count = x.numel() / x.shape[1]
    unbiased = aten.mul.Tensor(var, count / (count - 1))
    kept = x.dtype if x.device.type == "cpu" else wide.dtype
    return (
        _cast(y, x.dtype),
        _cast(mean, kept),
        _cast(rstd, kept),
        _update_running(running_mean, mean, momentum),
        _update_running(running_var, unbiased, momentum),
    )


def _update_running(running: torch.Tensor, new: torch.Tensor, momentum: float) -> torch.Tensor:
    return aten.add.Tensor(aten.mul.Tensor(new, momentum), aten.mul.Tensor(running, 1 - momentum))


def _backward(grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor | None, running_mean: torch.Tensor | None,
              running_var: torch.Tensor | None, mean: torch.Tensor | None, rstd: torch.Tensor | None, training: bool,
              eps: float, mask: list[bool]) -> Any:  # fmt: skip
    if not training or mean is None or rstd is None:
        given = grad, x, weight, running_mean, running_var, mean, rstd, training, eps, mask
        return torchs[_BACKWARD](*given)
    dtype = get_computation_dtype(x.dtype)
    wide, mean, rstd = _cast(grad, dtype), _cast(mean, dtype), _cast(rstd, dtype)
    axes = [0, *range(2, x.dim())]
    shape = [x.shape[1], *[1] * (x.dim() - 2)]
    norm = x.shape[1] / x.numel()
    centered = aten.sub.Tensor(_cast(x, dtype), aten.view.default(mean, shape))
    total = aten.sum.dim_IntList(wide, axes)
    product = aten.sum.dim_IntList(aten.mul.Tensor(wide, centered), axes)
    along = aten.mul.Tensor(aten.mul.Tensor(product, norm), aten.mul.Tensor(rstd, rstd))
    scale = rstd if weight is None else aten.mul.Tensor(rstd, weight)
    found = aten.sub.Tensor(wide, aten.mul.Tensor(centered, aten.view.default(along, shape)))
    found = aten.sub.Tensor(found, aten.view.default(aten.mul.Tensor(total, norm), shape))
    found = aten.mul.Tensor(found, aten.view.default(scale, shape))
    weights = x.dtype if weight is None else weight.dtype
    return (
        _cast(found, x.dtype),
        _cast(aten.mul.Tensor(product, rstd), weights) if mask[1] else None,
        _cast(total, weights) if mask[2] else None,
    )


def _layer_backward(grad: torch.Tensor, x: torch.Tensor, normalized: list[int], mean: torch.Tensor, rstd: torch.Tensor,
                    weight: torch.Tensor | None, bias: torch.Tensor | None, mask: list[bool]) -> Any:  # fmt: skip
    axis = x.dim() - len(normalized)
    if axis == 0 or any(statically_known_true(n == 0) for n in x.shape):
        return torchs[_LAYER_BACKWARD](grad, x, normalized, mean, rstd, weight, bias, mask)
    dtype = get_computation_dtype(x.dtype)
    outer, inner = list(range(axis)), list(range(axis, x.dim()))
    wide = _cast(grad, dtype)
    normal = aten.mul.Tensor(aten.sub.Tensor(_cast(x, dtype), mean), rstd)
    found = None
    if mask[0]:
        by_normal = wide if weight is None else aten.mul.Tensor(wide, _cast(weight, dtype))
        total = aten.sum.dim_IntList(by_normal, inner, True)
        along = aten.sum.dim_IntList(aten.mul.Tensor(by_normal, normal), inner, True)
        count = math.prod(x.shape[axis:])
        rest = aten.sub.Tensor(aten.mul.Tensor(by_normal, count), total)
        rest = aten.sub.Tensor(rest, aten.mul.Tensor(normal, along))
        found = _cast(aten.mul.Tensor(aten.div.Tensor(rstd, count), rest), x.dtype)
    weights = biases = None
    if mask[1] and weight is not None:
        weights = _cast(aten.sum.dim_IntList(aten.mul.Tensor(wide, normal), outer), weight.dtype)
    if mask[2] and bias is not None:
        biases = _cast(aten.sum.dim_IntList(wide, outer), bias.dtype)
    return found, weights, biases


DECOMPOSITIONS = {_FORWARD: _forward, _BACKWARD: _backward, _LAYER_BACKWARD: _layer_backward}
