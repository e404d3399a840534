"""cuDNN's attention by plans that no other layout shares.

A plan of the backward fixes the strides of the result and of its gradient, but torch (2.5 to 2.13 at least) caches
plans by the strides of query, key, value and bias alone. A gradient in another layout than that of the first call, be
it eager's or another graph's, is then read at wrong addresses: gradients are silently wrong. Here both always lie in
memory like the query, and the dropout probability, which is part of the cache's key, is one that eager does not pass.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.fx import Node

FORWARD = torch.ops.aten._scaled_dot_product_cudnn_attention.default
BACKWARD = torch.ops.aten._scaled_dot_product_cudnn_attention_backward.default


def with_own_plans(node: Node) -> Callable[..., Any] | None:
    """What computes ``node``, of an AOTAutograd graph, from the same arguments by plans that eager does not use; None
    for what is not cuDNN's attention. The graph keeps its op, which has derivatives."""
    return _CALLS.get(node.target)


@functools.cache
def _own(dropout_p: float) -> float:
    """An equal probability with other bits, which torch compares: -0, or the next smaller float32, a part of 2⁻²⁴."""
    return float(np.nextafter(np.float32(dropout_p), np.float32(0))) if dropout_p else -0.0


@functools.cache
def _order(strides: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """The dimensions from the outermost in memory to the innermost, and the inverse permutation."""
    order = sorted(range(len(strides)), key=strides.__getitem__, reverse=True)
    return order, sorted(range(len(strides)), key=order.__getitem__)


def like_query(x: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """``x``, dense in memory with its dimensions in the query's order, as torch allocates attention's result."""
    order, inverse = _order(query.stride())
    rows = x.permute(order)
    return x if rows.is_contiguous() else rows.contiguous().permute(inverse)


def _forward(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_bias: torch.Tensor | None,
             compute_log_sumexp: bool, dropout_p: float = 0.0, *more: Any, **kwargs: Any) -> Any:  # fmt: skip
    dropout_p = _own(dropout_p) if dropout_p else 0.0  # the backward's: both draw the same mask
    return FORWARD(query, key, value, attn_bias, compute_log_sumexp, dropout_p, *more, **kwargs)


def _backward(grad_out: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, out: torch.Tensor,
              *given: Any, **kwargs: Any) -> Any:  # fmt: skip
    *middle, dropout_p, is_causal = given
    grad_out, out = like_query(grad_out, query), like_query(out, query)
    return BACKWARD(grad_out, query, key, value, out, *middle, _own(dropout_p), is_causal, **kwargs)


_CALLS: dict[Any, Callable[..., Any]] = {FORWARD: _forward, BACKWARD: _backward}
