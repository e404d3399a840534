"""Gradients of pools that read of the image its size alone: torch's ops are told the image itself, which the forward
would keep for it.

::

    avg_pool2d_backward(g, x, …)    ->  avg_pool_backward(g, size of x, …)

:mod:`mlirfuse.frontend.torch.ops.average_pools` and its neighbour for adaptive pools have their rules; where no kernel
is made, torch's own ops run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from mlirfuse.frontend.torch.torch_private import suggest_memory_format

aten = torch.ops.aten

_library = torch.library.Library("mlirfuse", "FRAGMENT")
_IMAGE = "SymInt[] size, bool channels_last"
_WINDOWS = "int[] kernel, int[] stride, int[] padding, bool ceil_mode, bool count_include_pad, int? divisor_override"
_library.define(f"avg_pool_backward(Tensor gradient, {_IMAGE}, {_WINDOWS}) -> Tensor")
_library.define(f"adaptive_avg_pool_backward(Tensor gradient, {_IMAGE}) -> Tensor")
_library.define(f"adaptive_max_pool_backward(Tensor gradient, {_IMAGE}, Tensor places) -> Tensor")
# Each op, and torch's by the dimensions of an image.
_OPS = {
    torch.ops.mlirfuse.avg_pool_backward.default: {
        2: aten.avg_pool2d_backward.default, 3: aten.avg_pool3d_backward.default
    },
    torch.ops.mlirfuse.adaptive_avg_pool_backward.default: {
        2: aten._adaptive_avg_pool2d_backward.default, 3: aten._adaptive_avg_pool3d_backward.default
    },
    torch.ops.mlirfuse.adaptive_max_pool_backward.default: {
        2: aten.adaptive_max_pool2d_backward.default, 3: aten.adaptive_max_pool3d_backward.default
    },
}  # fmt: skip


def _decomposed(op: Any, n: int) -> Callable[..., torch.Tensor]:
    """What torch's op over ``n`` dimensions is traced as."""

    def backward(gradient: torch.Tensor, x: torch.Tensor, *how: Any) -> torch.Tensor:
        return op(gradient, x.shape[-n:], suggest_memory_format(x) is not torch.contiguous_format, *how)

    return backward


DECOMPOSITIONS = {torchs: _decomposed(op, n) for op, by_n in _OPS.items() for n, torchs in by_n.items()}


def _image(gradient: torch.Tensor, size: Sequence[int], channels_last: bool, *_: Any) -> torch.Tensor:
    """An image as the pool was given, or that lies as the gradient: a whole graph may lie otherwise than it was traced
    (:mod:`mlirfuse.frontend.torch.rewrites.channels_last`)."""
    lies = suggest_memory_format(gradient)
    if channels_last:
        lies = {2: torch.channels_last, 3: torch.channels_last_3d}[len(size)]
    shape = (*gradient.shape[: -len(size)], *size)
    return torch.empty(shape, dtype=gradient.dtype, device=gradient.device, memory_format=lies)


def _by_torch(by_n: dict[int, Any]) -> Callable[..., torch.Tensor]:
    """torch's op, which reads no element of the image."""

    def backward(gradient: torch.Tensor, size: Sequence[int], channels_last: bool, *how: Any) -> torch.Tensor:
        return by_n[len(size)](gradient, _image(gradient, size, channels_last), *how)

    return backward


for _op, _by_n in _OPS.items():
    for _key in ("CompositeExplicitAutograd", "Autograd"):  # of the second, dual numbers and gradients are torch's
        _library.impl(_op, _by_torch(_by_n), _key)
    torch.library.register_fake(_op._name, _image, lib=_library)
