"""Bags of equal size as lookups and a reduction, which one kernel computes: the rows are not stored.

::

    embedding_bag(x, w, mode="sum")     ->   embedding(x, w).sum(1)        for x of two dimensions

torch's op runs for bags of various sizes (``offsets``), ``max_norm``, sparse gradients, gradients by frequency, and
maxima without padding.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import GraphModule, Node

from mlirfuse.frontend.torch.fx import nodes


def as_reductions(module: GraphModule) -> None:
    """Rewrites the bags of equal size in Dynamo's graph."""
    changed = False
    for node, how in nodes.calls_of(module.graph, F.embedding_bag):
        if _is_reduction(how):
            node.target = torch.ops.mlirfuse.embedding_bag.default
            node.args = how["input"], how["weight"], how["per_sample_weights"], how["mode"], how["padding_idx"]
            node.kwargs = {}
            changed = True
    if changed:
        module.recompile()


def _is_reduction(how: dict[str, Any]) -> bool:
    index = _value(how["input"])
    if index is None or index.dim() != 2 or how["offsets"] is not None or how["mode"] not in ("sum", "mean", "max"):
        return False
    if how["max_norm"] is not None or how["scale_grad_by_freq"] or how["sparse"]:
        return False
    if not isinstance(index.shape[1], int) or not index.shape[1]:
        return False
    if how["per_sample_weights"] is not None:
        return how["mode"] == "sum"
    return how["mode"] != "max" or how["padding_idx"] is None


def _value(node: Any) -> torch.Tensor | None:
    return node.meta.get("example_value") if isinstance(node, Node) else None


# As an op, which AOTAutograd's cache can store.
_library = torch.library.Library("mlirfuse", "FRAGMENT")
_library.define("embedding_bag(Tensor index, Tensor weight, Tensor? scales, str mode, int? padding) -> Tensor")


def _reduced(index: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor | None, mode: str,
             padding: int | None) -> torch.Tensor:  # fmt: skip
    rows = F.embedding(index, weight, padding)
    if mode == "max":
        return rows.max(1).values  # a gradient goes to the first of equal elements
    if scales is not None:
        rows = rows * scales.unsqueeze(-1)
    if padding is None:
        return rows.sum(1) if mode == "sum" else rows.mean(1)
    kept = index != (padding if padding >= 0 else padding + weight.shape[0])
    total = torch.where(kept.unsqueeze(-1), rows, 0).sum(1)
    return total if mode == "sum" else total / kept.sum(1, keepdim=True).clamp(min=1).to(total.dtype)


_library.impl("embedding_bag", _reduced, "CompositeImplicitAutograd")
