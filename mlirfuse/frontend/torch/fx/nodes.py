"""Nodes of FX graphs: calls inserted into AOTAutograd's with their fake results, notes, and the modes they run in."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.fx import Graph, Node

from mlirfuse.frontend.torch.torch_private import DisableAutocast, detect_fake_mode, pytree, set_grad_enabled

WHY = "mlirfuse_why"  # key in ``meta["custom"]``, which AOTAutograd preserves: the reason for a call, for ``explain``

FUSES = "mlirfuse_fuses"  # key in ``meta`` of a product that a kernel computes


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


def modes(graph: Graph) -> dict[Node, tuple[bool, int]]:
    """For each node of Dynamo's graph whether autograd records it, and how many of torch.func's transforms (vmap, grad,
    jvp) it runs under."""
    enabled, depth, found = torch.is_grad_enabled(), 0, {}
    for node in graph.nodes:
        name = getattr(node.target, "__name__", "") if node.op == "call_function" else ""
        if node.target is set_grad_enabled:
            enabled = node.args[0]
        depth += name.endswith("_increment_nesting") - name.endswith("_decrement_nesting")
        found[node] = enabled, depth
    return found


def calls_of(graph: Graph, function: Callable[..., Any]) -> Iterator[tuple[Node, dict[str, Any]]]:
    """Yield the calls of ``function`` in Dynamo's graph, and their arguments by name, defaults among them."""
    signature = inspect.signature(function)
    for node in graph.find_nodes(op="call_function", target=function):
        given = signature.bind(*node.args, **node.kwargs)
        given.apply_defaults()
        yield node, given.arguments
