"""Inputs that a graph writes at its end: statistics of norms, parameters that an optimizer steps.

AOTAutograd ends a graph with a ``copy_`` for each of them. Those that write all of an input are results that alias it
(:attr:`mlirfuse.ir.graph.Graph.aliases`): kernels write there as they compute, where nobody reads it later, and what is
left is copied by one call for each type.
"""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from mlirfuse.frontend.torch.ops.rules import VIEWS

aten = torch.ops.aten


def at_end(module: GraphModule) -> set[Node]:
    """The copies at the end of ``module``, a graph of AOTAutograd's, that :func:`_alone` holds for."""
    found: set[Node] = set()
    written: set[Node] = set()
    for node in reversed(module.graph.nodes):
        if node.op == "output":
            continue
        if node.target is not aten.copy_.default:
            break
        if _alone(node) and node.args[0] not in written:
            written.add(node.args[0])
            found.add(node)
    return found


def _alone(node: Node) -> bool:
    """Whether a copy writes all of an input with what lies elsewhere, of its shape, type and device, and nobody reads
    its result."""
    if node.users or len(node.args) != 2 or node.kwargs:
        return False
    to, source = node.args
    if not (isinstance(to, Node) and isinstance(source, Node)) or to.op != "placeholder" or _root(source) is not None:
        return False
    a, b = to.meta["val"], source.meta["val"]
    return (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device)


def _root(node: Node) -> Node | None:
    """The input that ``node`` may lie in."""
    while node.op == "call_function" and str(node.target) in VIEWS and isinstance(node.args[0], Node):
        node = node.args[0]
    return node if node.op in ("placeholder", "get_attr") else None
