"""Inputs that a graph writes at its end: statistics of norms, parameters that an optimizer steps.

AOTAutograd ends a graph with a ``copy_`` for each of them. Those that write all of an input are results that alias it
(:attr:`mlirfuse.ir.graph.Graph.aliases`): kernels write there as they compute, where nobody reads it later, and what is
left is copied by one call for each type.

Where such an input is what an op puts a few elements into, a cache of keys and values, torch's op writes them there:
neither a kernel nor a copy touches the rest.

    %new = index_copy(%cache, 2, %position, %key)             %new = index_copy_(%cache, 2, %position, %key)
    %seen = attention(%query, %new, …)                  →     %seen = attention(%query, %new, …)
    copy_(%cache, %new)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule, Node

from mlirfuse.frontend.torch import layouts
from mlirfuse.frontend.torch.ops.rules import VIEWS
from mlirfuse.frontend.torch.torch_private import pytree

aten = torch.ops.aten

_LARGE = 4  # times as large as what is put into it: what is smaller, kernels write whole with all else that they do


def _put_slice(x: torch.Tensor, source: torch.Tensor, *where: Any, **named: Any) -> torch.Tensor:
    aten.slice.Tensor(x, *where, **named).copy_(source)
    return x


def _put_select(x: torch.Tensor, source: torch.Tensor, dim: int, index: int) -> torch.Tensor:
    aten.select.int(x, dim, index).copy_(source)
    return x


_IN_PLACE: dict[Any, tuple[int, Callable[..., torch.Tensor]]] = {  # which argument is put there, and by what
    aten.index_copy.default: (3, aten.index_copy_.default),
    aten.index_put.default: (2, aten.index_put_.default),
    aten.scatter.src: (3, aten.scatter_.src),
    aten.slice_scatter.default: (1, _put_slice),
    aten.select_scatter.default: (1, _put_select),
}


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


def in_place(copies: set[Node]) -> dict[Node, Callable[..., torch.Tensor]]:
    """Of what ``copies``, those of :func:`at_end`, write: the ops that put a few elements into that input, which nobody
    else reads, and the functions that do it where the input lies. What a graph gives back lies in memory of its own."""
    found = {}
    for copy in copies:
        to, created = copy.args
        if created.target not in _IN_PLACE or created.args[0] is not to or set(to.users) != {created, copy}:
            continue
        place, function = _IN_PLACE[created.target]
        if _puts_few(created, place) and not _is_given_back(created):
            found[created] = function
    return found


def _puts_few(created: Node, place: int) -> bool:
    """Whether an op, of whose arguments one, at ``place``, is put into the first, writes little of that."""
    if len(created.args) <= place or (len(created.args) > 3 and created.target is aten.index_put.default):
        return False  # what is accumulated has kernels
    into, put = created.args[0].meta["val"], created.args[place].meta["val"]
    counts = put.numel(), into.numel()
    if not all(isinstance(n, int) for n in counts) or into.stride() != created.meta["val"].stride():
        return False
    return put.dtype is into.dtype and counts[1] >= _LARGE * counts[0]


def _is_given_back(created: Node) -> bool:
    """Whether a result of the graph lies, or may lie, in the memory of ``created``."""
    memory = layouts.storage(created.meta["val"])
    given = [x for x in pytree.tree_leaves(created.graph.output_node().args) if isinstance(x, Node)]
    return memory is None or any(layouts.storage(x.meta.get("val")) == memory for x in given)


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
