"""Inputs that a graph writes at its end (statistics of norms, parameters that an optimizer steps), written by one call.

AOTAutograd ends a graph with a ``copy_`` for each of them: three for each batch norm, four for each parameter of Adam,
each a launch. torch's ``_foreach_copy_`` writes many tensors at a launch.

::

    copy_(mean, a); copy_(variance, b)   ->   _foreach_copy_([mean, variance], [a, b])
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from mlirfuse.frontend.torch.ops.rules import VIEWS

aten = torch.ops.aten


def gather(module: GraphModule) -> None:
    """Makes one call of the copies at the end of ``module``, a graph of AOTAutograd's, by device and type, in place."""
    groups: dict[Any, list[Node]] = {}
    written: set[Node] = set()
    for node in reversed(module.graph.nodes):
        if node.op == "output":
            continue
        if node.target is not aten.copy_.default:
            break
        if _alone(node) and node.args[0] not in written:
            written.add(node.args[0])
            to = node.args[0].meta["val"]
            groups.setdefault((to.device, to.dtype), []).append(node)
    for copies in groups.values():
        if len(copies) < 2:
            continue
        copies.reverse()
        pairs = [list(side) for side in zip(*(node.args for node in copies))]
        with module.graph.inserting_before(copies[-1]):
            made = module.graph.call_function(aten._foreach_copy_.default, tuple(pairs))
        made.meta = {key: value for key, value in copies[-1].meta.items() if key != "val"} | {"val": None}
        for node in copies:
            module.graph.erase_node(node)
    if groups:
        module.recompile()


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
