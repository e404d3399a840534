"""Changes memory layouts inside of an AOTAutograd graph: what reads a tensor whose layout changed is traced again, and
the graph's outputs keep their traced strides."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.fx import GraphModule, Node

from mlirfuse.frontend.torch.fx import layouts, nodes
from mlirfuse.frontend.torch.ops.rules import VIEWS
from mlirfuse.frontend.torch.torch_private import OpOverload, pytree

aten = torch.ops.aten
log = logging.getLogger("mlirfuse")

_STRIDE_DEPENDENT = {aten.as_strided.default, aten.as_strided_scatter.default, aten.as_strided_copy.default}


def unless_it_fails(module: GraphModule, change: Callable[[GraphModule], None], what: str) -> None:
    """``change(module)``. On failure the graph stays unchanged, and the log has ``what`` was kept."""
    before = copy.deepcopy(module.graph)
    try:
        change(module)
    except Exception as error:
        module.graph = before
        log.warning("%s keep their memory format: %s: %s", what, type(error).__name__, error)


class Relayout:
    """Visits the nodes of a graph in order; subclasses override :meth:`choose`."""

    def __init__(self, module: GraphModule):
        self.module, self.graph = module, module.graph
        self.traced: dict[Node, torch.Tensor] = {}  # the traced fake tensors of nodes whose layout changed
        self.restored_nodes: dict[Node, Node] = {}
        self.changed = False

    def run(self) -> None:
        for node in list(self.graph.nodes):
            self.visit(node)
        if self.changed:
            self.graph.eliminate_dead_code()
            self.module.recompile()

    def choose(self, node: Node) -> bool:
        """Changes the operands of a call where another layout is better. Whether it did."""
        return False

    def result(self, node: Node, created: Any) -> Any:
        """``created``, the traced result of a call, in the layout that it is to have."""
        return created

    def visit(self, node: Node) -> None:
        """Updates a node whose operands' layouts may have changed."""
        if node.op == "output":
            node.args = pytree.tree_map(self.restored, node.args, is_leaf=lambda x: isinstance(x, Node))
            return
        if node.op != "call_function":
            return
        before = node.meta.get("val")
        if not self.choose(node) and not any(n in self.traced for n in node.all_input_nodes):
            created = self.result(node, before)
            if created is before:
                return
        elif not _accepts_any_layout(node):
            self.replace(node, node.all_input_nodes, self.restored)
            return
        else:
            try:
                created = self.result(node, nodes.computed(node))
            except (RuntimeError, ValueError):  # a view that is impossible in this memory format
                self.replace(node, node.all_input_nodes, self.restored)
                return
        if any(a.stride() != b.stride() for a, b in zip(_tensors(before), _tensors(created))):
            self.traced[node], self.changed = before, True
            node.meta["val"] = created

    @staticmethod
    def replace(node: Node, operands: Iterable[Any], by: Callable[[Node, Node], Node]) -> None:
        """Replaces operands of ``node``."""
        for operand in dict.fromkeys(operands):
            node.replace_input_with(operand, by(operand, node))

    def restored(self, node: Any, user: Node | None = None) -> Any:
        """``node``, or a copy with its traced layout."""
        if not isinstance(node, Node) or node not in self.traced:
            return node
        if node not in self.restored_nodes:
            traced = self.traced[node]
            if _same_strides(node.meta["val"], traced):
                given = list(traced.shape), list(traced.stride())
                self.restored_nodes[node] = self.insert_after(node, node, aten.as_strided.default, node, *given)
            elif is_view(node):  # recompute the view from a base with its traced layout
                base, *others = node.args
                self.restored_nodes[node] = self.insert_after(
                    node, node, node.target, self.restored(base), *others, **node.kwargs
                )
            else:
                order = layouts.memory_order(traced)
                assert order is not None, f"{node} was traced with gaps in memory"
                packed = self.insert_after(node, node, aten.permute.default, node, list(order))
                packed = self.insert_after(
                    packed, node, aten.clone.default, packed, memory_format=torch.contiguous_format
                )
                self.restored_nodes[node] = self.insert_after(
                    packed, node, aten.permute.default, packed, list(layouts.inverse(order))
                )
        return self.restored_nodes[node]

    def insert_after(self, anchor: Node, like: Node, target: Any, *args: Any, **kwargs: Any) -> Node:
        """A call inserted after ``anchor`` and its operands, with the source location of ``like``."""
        order = {n: k for k, n in enumerate(self.graph.nodes)}
        last = max([anchor, *(a for a in pytree.tree_leaves(args) if isinstance(a, Node))], key=order.__getitem__)
        while last.op == "placeholder" and last.next.op == "placeholder":
            last = last.next
        with self.graph.inserting_after(last):
            created = nodes.call(self.graph, like, target, *args, **kwargs)
        self.changed = True
        return created


def _accepts_any_layout(node: Node) -> bool:
    """Whether an op accepts operands of any layout, with the same results."""
    if node.target in _STRIDE_DEPENDENT:
        return False
    if any("val" not in n.meta for n in node.all_input_nodes):
        return False
    if not isinstance(node.target, OpOverload):
        return getattr(node.target, "__name__", "") == "getitem"
    return node.target.namespace in ("aten", "prims", "mlirfuse") and not node.target._schema.is_mutable


def _same_strides(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether strides are equal, except for extents of 1."""
    return all(n == 1 or s == t for n, s, t in zip(a.shape, a.stride(), b.stride()))


def is_view(node: Node) -> bool:
    return str(node.target) in VIEWS or (getattr(node.target, "__name__", "") == "getitem" and is_view(node.args[0]))


def _tensors(value: Any) -> list[torch.Tensor]:
    return [x for x in pytree.tree_leaves(value) if isinstance(x, torch.Tensor)]
