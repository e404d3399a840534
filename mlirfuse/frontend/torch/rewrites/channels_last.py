"""Converts a graph's convolutions to channels-last memory format.

A convolution whose input and weight are channels-last gives a channels-last result; elementwise ops, norms, pools and
gradients preserve the format. So only external tensors are converted, in the graph, where a kernel writes them anyway:
images, and each weight once per step. The graph's outputs keep their traced strides.

::

    convolution(x, w)   ->   convolution(clone(x, channels_last), clone(w, channels_last))
    return y            ->   return clone(y, contiguous_format)
"""

from __future__ import annotations

import math
import operator

import torch
from torch.fx import GraphModule, Node

from mlirfuse.frontend.torch.rewrites import relayout

aten = torch.ops.aten

_CONVOLUTIONS = {aten.convolution.default: 2, aten.convolution_backward.default: 3}  # number of operands
# Inductor's rules: beyond these, channels-last was slower than it helped.
_MAX_NODES = 300  # of the graph per convolution
_FEW_CHANNELS = 64  # a convolution with at most this many input and output channels is small
# Without gradients: time channels-last over time row-major, weighted by the convolutions' operations.
_GROUPED, _SMALL, _NARROW, _OTHERS = 1.358, 0.783, 0.725, 0.823


def convert_if_it_pays(module: GraphModule, wanted: bool | None, training: bool) -> None:
    """Converts the graph (:func:`convert`) if ``wanted``, or if ``wanted`` is None and it pays. On failure the graph
    stays unchanged."""
    if wanted or (wanted is None and pays(module, training)):
        relayout.unless_it_fails(module, convert, "convolutions")


def pays(module: GraphModule, training: bool) -> bool:
    """Whether the convolutions of a graph run faster channels-last, on a GPU, on tensor cores, with known sizes."""
    found = [node for node in module.graph.nodes if node.target is aten.convolution.default]
    if not found or len(module.graph.nodes) >= _MAX_NODES * len(found):
        return False
    pairs = [tuple(n.meta["val"] for n in node.args[:2]) for node in found]
    if not all(map(_uses_tensor_cores, (x for x, _ in pairs))) or not all(_are_static(*pair) for pair in pairs):
        return False
    shapes = [weight.shape for _, weight in pairs]
    grouped = [node.args[8] > 1 and shape[1] > 1 for node, shape in zip(found, shapes)]
    small = [max(shape[:2]) <= _FEW_CHANNELS for shape in shapes]
    narrow = [shape[0] * 2 <= shape[1] and len(shape) > 2 and shape[2] > 1 for shape in shapes]
    if training:
        return not any(grouped) and not any(narrow) and not all(small)
    factors = [_GROUPED if g else _SMALL if s else _NARROW if n else _OTHERS for g, s, n in zip(grouped, small, narrow)]
    operations = [_operations(node, x, weight) for node, (x, weight) in zip(found, pairs)]
    return sum(map(operator.mul, factors, operations)) <= sum(operations)


def _operations(node: Node, x: torch.Tensor, weight: torch.Tensor) -> int:
    """Multiplications of a convolution: each element of the result, or of a transposed one's image, takes a filter."""
    images = x if node.args[6] else node.meta["val"]
    return images.numel() * math.prod(weight.shape[1:])


def _uses_tensor_cores(x: torch.Tensor) -> bool:
    half = x.dtype in (torch.float16, torch.bfloat16)
    return x.device.type == "cuda" and (half or (x.dtype is torch.float32 and torch.backends.cudnn.allow_tf32))


def _are_static(*tensors: torch.Tensor) -> bool:
    return all(isinstance(n, int) for t in tensors for n in t.shape)


def convert(module: GraphModule) -> None:
    """Converts the 2-d and 3-d convolutions of ``module``, an AOTAutograd graph, to channels-last in place, where their
    sizes are known. The graph's outputs keep their strides."""
    _Converter(module).run()


class _Converter(relayout.Relayout):
    def __init__(self, module: GraphModule):
        super().__init__(module)
        self.converted: dict[Node, Node] = {}

    def choose(self, node: Node) -> bool:
        if node.target not in _CONVOLUTIONS or not self.is_convertible(node):
            return False
        self.replace(node, node.args[: _CONVOLUTIONS[node.target]], self.channels_last)
        return True

    @staticmethod
    def is_convertible(node: Node) -> bool:
        """Whether a convolution has images of known sizes."""
        operands = [n.meta["val"] for n in node.args[: _CONVOLUTIONS[node.target]]]
        return all(x.dim() == 4 for x in operands) and _are_static(*operands)

    def channels_last(self, node: Node, user: Node) -> Node:
        """``node``, or a channels-last copy."""
        if node.meta["val"].is_contiguous(memory_format=torch.channels_last):
            return node
        if node not in self.converted:
            self.converted[node] = self.insert_after(
                node, user, aten.clone.default, node, memory_format=torch.channels_last
            )
        return self.converted[node]
