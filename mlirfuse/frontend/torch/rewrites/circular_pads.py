"""Circular pads as gathers along one dimension after the other, and their gradients as sums of slices.

torch writes an image into an empty tensor, then copies its borders within that, one after the other. A kernel instead
reads each pixel where it is in the image, and the gradient of an element is that of its pixel and of the copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from mlirfuse.frontend.torch import torch_private

aten = torch.ops.aten


def as_gathers(module: GraphModule) -> None:
    """Rewrites calls of ``pad`` with ``mode="circular"`` in Dynamo's graph."""
    changed = False
    for node in module.graph.find_nodes(op="call_function", target=torch_private.pad):
        x, padding, mode, value = _arguments(*node.args, **node.kwargs)
        if mode == "circular" and not value:
            node.target, node.args, node.kwargs = torch.ops.mlirfuse.pad_circular.default, (x, padding), {}
            changed = True
    if changed:
        module.recompile()


def _arguments(input: Node, pad: Any, mode: Any = "constant", value: Any = None) -> tuple[Node, Any, Any, Any]:
    return input, pad, mode, value


# As an op, which AOTAutograd's cache can store.
_library = torch.library.Library("mlirfuse", "FRAGMENT")
_library.define("pad_circular(Tensor x, SymInt[] padding) -> Tensor")


def _padded(x: torch.Tensor, padding: Sequence[Any]) -> torch.Tensor:
    if torch_private.functorch_interpreter() is not None or any(n < 0 for n in padding):
        return aten._pad_circular(x, padding)
    given = x
    for k, (low, high) in enumerate(zip(padding[::2], padding[1::2])):
        dim = x.dim() - 1 - k
        if low or high:
            records = x.requires_grad and torch.is_grad_enabled()
            x = _Wrapped.apply(x, dim, low, high) if records else _wrapped(x, dim, low, high)
    return x.clone(memory_format=torch.contiguous_format) if x is given else x.contiguous()


_library.impl("pad_circular", _padded, "CompositeImplicitAutograd")


def _wrapped(x: torch.Tensor, dim: int, low: Any, high: Any) -> torch.Tensor:
    extent = x.shape[dim]
    each = torch.arange(extent + low + high, device=x.device) - low
    each = torch.where(each < 0, each + extent, torch.where(each >= extent, each - extent, each))
    return aten._unsafe_index(x, [*[None] * dim, each])


class _Wrapped(torch.autograd.Function):
    """:func:`_wrapped`."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dim: int, low: Any, high: Any) -> torch.Tensor:
        ctx.extents = dim, x.shape[dim], low, high
        return _wrapped(x, dim, low, high)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        dim, extent, low, high = ctx.extents
        total = gradient.narrow(dim, low, extent)
        behind = [0, 0] * (gradient.dim() - 1 - dim)
        if low:
            copies = gradient.narrow(dim, 0, low)
            total = total + aten.constant_pad_nd(copies, [*behind, extent - low, 0])
        if high:
            copies = gradient.narrow(dim, low + extent, high)
            total = total + aten.constant_pad_nd(copies, [*behind, 0, extent - high])
        return total, None, None, None
