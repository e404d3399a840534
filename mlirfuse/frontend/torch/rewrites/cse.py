"""Common subexpression elimination on a joint graph before it is partitioned, so that what the backward recomputes is
recognized as the forward's value.

torch's ``fx_graph_cse`` does the same, but imports Inductor's lowering, most of a second.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator
from typing import Any

import torch
from torch.fx import Graph, Node

from mlirfuse.frontend.torch.torch_private import (
    HigherOrderOperator,
    OpOverload,
    StorageWeakRef,
    free_unbacked_symbols,
)

aten = torch.ops.aten
_MAKES_NEW = {aten.empty, aten.empty_like, aten.empty_strided, aten.new_empty, aten.new_empty_strided}


def eliminate_common_subexpressions(graph: Graph) -> None:
    """Removes duplicates of equal nodes from ``graph``. Keeps random ops, uninitialized memory, writing ops and nodes
    on different sides of one, unbacked sizes, and aliases of outputs: two outputs are two tensors."""
    results = {storage for node in graph.output_node().all_input_nodes for storage in _storages(node)}
    known: dict[Hashable, Node] = {}
    writes = 0
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        if isinstance(node.target, OpOverload) and node.target._schema.is_mutable:
            writes += 1
        elif _deterministic(node) and results.isdisjoint(_storages(node)):
            try:
                first = known.setdefault((node.target, writes, _serialized(node.args), _serialized(node.kwargs)), node)
            except TypeError:  # an unhashable argument
                continue
            if first is not node:
                node.replace_all_uses_with(first)
                graph.erase_node(node)


def _deterministic(node: Node) -> bool:
    """Whether equal nodes have equal results, as far as known."""
    target = node.target
    if isinstance(target, OpOverload):
        if torch.Tag.nondeterministic_seeded in target.tags or target.overloadpacket in _MAKES_NEW:
            return False
    elif isinstance(target, HigherOrderOperator):
        return False
    value = node.meta.get("val")
    of_values = isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)) and free_unbacked_symbols(value)
    return not of_values and not node.meta.get("unbacked_bindings")


def _storages(node: Node) -> Iterator[StorageWeakRef]:
    """The storages of a node's results."""
    value = node.meta.get("val")
    for one in value if isinstance(value, (tuple, list)) else [value]:
        with contextlib.suppress(NotImplementedError):  # sparse tensors have none
            if isinstance(one, torch.Tensor):
                yield StorageWeakRef(one.untyped_storage())


def _serialized(argument: Any) -> Hashable:
    """``argument`` as a key that respects types and signs: 1 differs from 1.0, and 0.0 from -0.0."""
    if isinstance(argument, (tuple, list)):
        return type(argument), tuple([_serialized(a) for a in argument])
    if isinstance(argument, dict):
        return dict, tuple([(key, _serialized(a)) for key, a in argument.items()])
    if isinstance(argument, slice):
        return slice, _serialized((argument.start, argument.stop, argument.step))
    if isinstance(argument, (float, complex)):
        return type(argument), repr(argument)
    return type(argument), argument
