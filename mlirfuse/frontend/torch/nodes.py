"""Insertion of calls into AOTAutograd's graphs, with their fake results."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

from mlirfuse.frontend.torch.torch_private import DisableAutocast, detect_fake_mode, pytree

WHY = "mlirfuse_why"  # key in ``meta["custom"]``, which AOTAutograd preserves: the reason for a call, for ``explain``


def explain(node: Node, why: str) -> None:
    """Records why ``node`` is called, or called so, for ``explain``."""
    node.meta["custom"] = {**node.meta.get("custom", {}), WHY: why}


def call(graph: Graph, like: Node, target: Any, *args: Any, **kwargs: Any) -> Node:
    """A call at the graph's insertion point, with the source location of ``like``."""
    created = graph.call_function(target, args, kwargs)
    created.meta.update({key: value for key, value in like.meta.items() if key not in ("val", "tensor_meta")})
    created.meta["val"] = computed(created)
    return created


def computed(node: Node) -> Any:
    """The fake tensor of ``node``'s result."""
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    mode = detect_fake_mode(pytree.tree_leaves((args, kwargs)))
    assert mode is not None
    with mode, torch.no_grad(), DisableAutocast():
        return node.target(*args, **kwargs)
