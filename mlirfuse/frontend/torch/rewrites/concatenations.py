"""Concatenations without the operands that have no elements.

torch lets a tensor of shape ``[0]`` stand among operands of any rank, and caches of keys and values start with one. It
is a constant of the graph that no kernel reads, for which the whole concatenation would be torch's.

::

    empty = lift_fresh_copy(constant)      # [0]
    keys = cat([empty, k], 2)          ->  keys = cat([k], 2), which a kernel of its readers computes
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

from mlirfuse.frontend.torch.fx.sizes import is_empty


def drop_empty_operands(graph: Graph) -> None:
    """Removes operands without elements from each concatenation whose dtype does not come from them alone."""
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.cat.default):
        operands: list[Any] = list(node.args[0])
        kept = [x for x in operands if not (isinstance(x, Node) and is_empty(x.meta["val"]))]
        if len(kept) < len(operands) and any(x.meta["val"].dtype == node.meta["val"].dtype for x in kept):
            node.update_arg(0, kept)
            for x in set(operands) - set(kept):
                if not x.users and x.target is torch.ops.aten.lift_fresh_copy.default:
                    graph.erase_node(x)
