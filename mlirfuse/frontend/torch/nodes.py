"""Calls that passes over AOTAutograd's graphs add, each with its fake result."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

from mlirfuse.frontend.torch.torch_private import DisableAutocast, detect_fake_mode, pytree

WHY = "mlirfuse_why"  # in ``meta["custom"]``, which AOTAutograd hands on: why a call is what it is, for ``explain``


def explain(node: Node, why: str) -> None:
    """Notes why ``node`` is called, or called so, for ``explain``."""
    node.meta["custom"] = {**node.meta.get("custom", {}), WHY: why}


def call(graph: Graph, like: Node, target: Any, *args: Any, **kwargs: Any) -> Node:
    """A call where ``graph`` inserts, which stands in the user's program where ``like`` does."""
    created = graph.call_function(target, args, kwargs)
    created.meta.update({key: value for key, value in like.meta.items() if key not in ("val", "tensor_meta")})
    created.meta["val"] = computed(created)
    return created


def computed(node: Node) -> Any:
    """What ``node`` gives, as a fake tensor."""
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    mode = detect_fake_mode(pytree.tree_leaves((args, kwargs)))
    assert mode is not None
    with mode, torch.no_grad(), DisableAutocast():
        return node.target(*args, **kwargs)
