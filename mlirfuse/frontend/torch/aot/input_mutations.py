"""Inputs that a graph mutates at its end: norms' statistics, parameters that an optimizer steps.

AOTAutograd ends a graph with a ``copy_`` for each of them. Those that overwrite a whole input become results that alias
it (:attr:`mlirfuse.ir.graph.Graph.aliases`): kernels write into it directly where nothing reads it later, and the rest
is copied by one call per dtype.

Where an op inserts a few elements into such an input, e.g. a cache of keys and values, torch's in-place op writes them:
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

from mlirfuse.frontend.torch.fx import layouts
from mlirfuse.frontend.torch.ops.rules import VIEWS
from mlirfuse.frontend.torch.torch_private import pytree

aten = torch.ops.aten

_LARGE = 4  # minimum ratio of input to inserted elements; a smaller input is rewritten by kernels


def _put_slice(x: torch.Tensor, source: torch.Tensor, *where: Any, **named: Any) -> torch.Tensor:
    aten.slice.Tensor(x, *where, **named).copy_(source)
    return x


def _put_select(x: torch.Tensor, source: torch.Tensor, dim: int, index: int) -> torch.Tensor:
    aten.select.int(x, dim, index).copy_(source)
    return x


def _put_diagonal(x: torch.Tensor, source: torch.Tensor, *where: Any, **named: Any) -> torch.Tensor:
    aten.diagonal.default(x, *where, **named).copy_(source)
    return x


_IN_PLACE: dict[Any, tuple[int, Callable[..., torch.Tensor]]] = {  # op -> (inserted argument, in-place op)
    aten.index_copy.default: (3, aten.index_copy_.default),
    aten.index_put.default: (2, aten.index_put_.default),
    aten.scatter.src: (3, aten.scatter_.src),
    aten.slice_scatter.default: (1, _put_slice),
    aten.select_scatter.default: (1, _put_select),
    aten.diagonal_scatter.default: (1, _put_diagonal),
}


def at_end(module: GraphModule) -> set[Node]:
    """The copies at the end of ``module``, an AOTAutograd graph, that satisfy :func:`_alone`."""
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
    """The ops that insert a few elements into an input with no other reader, of those that ``copies`` (from
    :func:`at_end`) write, and functions that do so in place. Excludes what aliases a result: results have memory of
    their own."""
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
    """Whether the op inserts its argument ``place`` into a small part of its first argument."""
    if len(created.args) <= place or (len(created.args) > 3 and created.target is aten.index_put.default):
        return False  # accumulation has kernels
    into, put = created.args[0].meta["val"], created.args[place].meta["val"]
    counts = put.numel(), into.numel()
    if not all(isinstance(n, int) for n in counts) or into.stride() != created.meta["val"].stride():
        return False
    return put.dtype is into.dtype and counts[1] >= _LARGE * counts[0]


def _is_given_back(created: Node) -> bool:
    """Whether a result of the graph may share memory with ``created``."""
    memory = layouts.storage(created.meta["val"])
    given = [x for x in pytree.tree_leaves(created.graph.output_node().args) if isinstance(x, Node)]
    return memory is None or any(layouts.storage(x.meta.get("val")) == memory for x in given)


def _alone(node: Node) -> bool:
    """Whether a copy overwrites a whole input with an equal-shaped tensor of the same dtype and device in other memory,
    and its result is unused."""
    if node.users or len(node.args) != 2 or node.kwargs:
        return False
    to, source = node.args
    if not (isinstance(to, Node) and isinstance(source, Node)) or to.op != "placeholder" or _root(source) is not None:
        return False
    a, b = to.meta["val"], source.meta["val"]
    return (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device)


def _root(node: Node) -> Node | None:
    """The input whose memory ``node`` may share."""
    while node.op == "call_function" and str(node.target) in VIEWS and isinstance(node.args[0], Node):
        node = node.args[0]
    return node if node.op in ("placeholder", "get_attr") else None
