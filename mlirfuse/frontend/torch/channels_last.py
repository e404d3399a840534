"""Converts a graph's convolutions to channels-last memory format.

A convolution whose input and weight are channels-last gives a channels-last result; elementwise ops, norms, pools and
gradients preserve the format. So only external tensors are converted, in the graph, where a kernel writes them anyway:
images, and each weight once per step. The graph's outputs keep their traced strides.

::

    convolution(x, w)   ->   convolution(clone(x, channels_last), clone(w, channels_last))
    return y            ->   return clone(y, contiguous_format)
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.fx import GraphModule, Node

from mlirfuse.frontend.torch import layouts, nodes
from mlirfuse.frontend.torch.ops.rules import VIEWS
from mlirfuse.frontend.torch.torch_private import OpOverload, pytree

aten = torch.ops.aten
log = logging.getLogger("mlirfuse")

_CONVOLUTIONS = {aten.convolution.default: 2, aten.convolution_backward.default: 3}  # number of operands
_STRIDE_DEPENDENT = {aten.as_strided.default, aten.as_strided_scatter.default, aten.as_strided_copy.default}
# Inductor's rule for training: beyond these, channels-last was slower than it helped.
_MAX_NODES = 300  # of the graph per convolution
_FEW_CHANNELS = 64  # a convolution with at most this many input and output channels is small


def convert_if_it_pays(module: GraphModule, wanted: bool | None) -> None:
    """Converts the graph (:func:`convert`) if ``wanted``, or if ``wanted`` is None and it pays. On failure the graph
    stays unchanged."""
    if wanted or (wanted is None and pays(module)):
        before = copy.deepcopy(module.graph)
        try:
            convert(module)
        except Exception as error:
            module.graph = before
            log.warning("convolutions keep their memory format: %s: %s", type(error).__name__, error)


def pays(module: GraphModule) -> bool:
    """Whether all convolutions of a graph run faster channels-last: on a GPU, on tensor cores, with known sizes, enough
    channels, and at least half as many outputs as summed elements."""
    found = [node for node in module.graph.nodes if node.target is aten.convolution.default]
    if not found or len(module.graph.nodes) >= _MAX_NODES * len(found):
        return False
    pairs = [tuple(n.meta["val"] for n in node.args[:2]) for node in found]
    if not all(map(_uses_tensor_cores, (x for x, _ in pairs))) or not all(_are_static(*pair) for pair in pairs):
        return False
    shapes = [weight.shape for _, weight in pairs]
    grouped = any(node.args[8] > 1 and shape[1] > 1 for node, shape in zip(found, shapes))
    narrow = any(shape[0] * 2 <= shape[1] and len(shape) > 2 and shape[2] > 1 for shape in shapes)
    return not grouped and not narrow and not all(max(shape[:2]) <= _FEW_CHANNELS for shape in shapes)


def _uses_tensor_cores(x: torch.Tensor) -> bool:
    half = x.dtype in (torch.float16, torch.bfloat16)
    return x.device.type == "cuda" and (half or (x.dtype is torch.float32 and torch.backends.cudnn.allow_tf32))


def _are_static(*tensors: torch.Tensor) -> bool:
    return all(isinstance(n, int) for t in tensors for n in t.shape)


def convert(module: GraphModule) -> None:
    """Converts the 2-d and 3-d convolutions of ``module``, an AOTAutograd graph, to channels-last in place, where their
    sizes are known. The graph's outputs keep their strides."""
    converter = _Converter(module)
    for node in list(module.graph.nodes):
        converter.visit(node)
    if converter.changed:
        module.graph.eliminate_dead_code()
        module.recompile()


class _Converter:
    def __init__(self, module: GraphModule):
        self.graph = module.graph
        self.traced: dict[Node, torch.Tensor] = {}  # the traced fake tensors of nodes whose layout changed
        self.converted: dict[Node, Node] = {}
        self.restored_nodes: dict[Node, Node] = {}
        self.changed = False

    def visit(self, node: Node) -> None:
        """Updates a node whose operands' layouts may have changed."""
        if node.op == "output":
            node.args = pytree.tree_map(self.restored, node.args, is_leaf=lambda x: isinstance(x, Node))
            return
        if node.op != "call_function":
            return
        if node.target in _CONVOLUTIONS and self.is_convertible(node):
            self.replace(node, node.args[: _CONVOLUTIONS[node.target]], self.channels_last)
        elif not any(n in self.traced for n in node.all_input_nodes):
            return
        elif not _accepts_any_layout(node):
            self.replace(node, node.all_input_nodes, self.restored)
            return
        try:
            created = nodes.computed(node)
        except (RuntimeError, ValueError):  # a view that is impossible in this memory format
            self.replace(node, node.all_input_nodes, self.restored)
            return
        before = node.meta["val"]
        if any(a.stride() != b.stride() for a, b in zip(_tensors(before), _tensors(created))):
            self.traced[node] = before
            node.meta["val"] = created

    @staticmethod
    def is_convertible(node: Node) -> bool:
        """Whether a convolution has images of known sizes."""
        operands = [n.meta["val"] for n in node.args[: _CONVOLUTIONS[node.target]]]
        return all(x.dim() == 4 for x in operands) and _are_static(*operands)

    @staticmethod
    def replace(node: Node, operands: Iterable[Any], by: Callable[[Node, Node], Node]) -> None:
        """Replaces operands of ``node``."""
        for operand in dict.fromkeys(operands):
            node.replace_input_with(operand, by(operand, node))

    def channels_last(self, node: Node, user: Node) -> Node:
        """``node``, or a channels-last copy."""
        if node.meta["val"].is_contiguous(memory_format=torch.channels_last):
            return node
        if node not in self.converted:
            self.converted[node] = self.insert_after(
                node, user, aten.clone.default, node, memory_format=torch.channels_last
            )
        return self.converted[node]

    def restored(self, node: Any, user: Node | None = None) -> Any:
        """``node``, or a copy with its traced layout."""
        if not isinstance(node, Node) or node not in self.traced:
            return node
        if node not in self.restored_nodes:
            traced = self.traced[node]
            if _same_strides(node.meta["val"], traced):
                given = list(traced.shape), list(traced.stride())
                self.restored_nodes[node] = self.insert_after(node, node, aten.as_strided.default, node, *given)
            elif _is_view(node):  # recompute the view from a base with its traced layout
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


def _is_view(node: Node) -> bool:
    return str(node.target) in VIEWS or (getattr(node.target, "__name__", "") == "getitem" and _is_view(node.args[0]))


def _tensors(value: Any) -> list[torch.Tensor]:
    return [x for x in pytree.tree_leaves(value) if isinstance(x, torch.Tensor)]
