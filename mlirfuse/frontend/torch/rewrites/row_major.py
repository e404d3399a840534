"""Makes elementwise results row-major where they only take over one operand's other memory order.

Eager gives the result of ``x + y`` the strides of the first operand that has no ties. Where ``x`` is a convolution's
result seen as rows (``x.flatten(2).transpose(1, 2)``) and ``y`` comes from a layer, a model's whole residual stream
then lies in the order of ``x``, and each kernel that reads it beside row-major tensors reads memory with strides.
Within a compiled graph nobody sees such a tensor's strides; outputs keep theirs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from mlirfuse.frontend.torch.fx import layouts, sizes
from mlirfuse.frontend.torch.rewrites import relayout
from mlirfuse.frontend.torch.torch_private import OpOverload

aten = torch.ops.aten

_CONVOLUTIONS = {aten.convolution.default, aten.convolution_backward.default}


def prefer(module: GraphModule) -> None:
    """Changes the layouts of ``module``, an AOTAutograd graph, in place. On failure the graph stays unchanged."""
    if any(_is_torn(node) for node in module.graph.nodes):
        relayout.unless_it_fails(module, lambda changed: _RowMajor(changed).run(), "elementwise results")


class _RowMajor(relayout.Relayout):
    def result(self, node: Node, created: Any) -> Any:
        if _is_elementwise(node) and isinstance(created, torch.Tensor) and _is_torn(node, created):
            return created.new_empty(created.shape)
        return created


def _is_elementwise(node: Node) -> bool:
    return isinstance(node.target, OpOverload) and torch.Tag.pointwise in node.target.tags


def _is_torn(node: Node, result: Any = None) -> bool:
    """Whether an elementwise op gives a result in another order than row-major, while as many of the tensors of its
    size around it are row-major. ``result``: the fake tensor, if it is not the traced one."""
    if not _is_elementwise(node):
        return False
    result = node.meta.get("val") if result is None else result
    if not isinstance(result, torch.Tensor) or _is_row_major(result) is not False:
        return False
    operands = list(_orders(node.all_input_nodes, result))
    if all(operands) or not any(operands):
        return False
    users = [x for user in node.users for x in _of_user(user, node, result)]
    around = operands + users
    return 2 * sum(around) >= len(around)


def _of_user(user: Node, node: Node, result: torch.Tensor) -> Iterator[bool]:
    """Whether the tensors are row-major that ``user`` reads beside ``node``, or that it makes of it; of a cast, those
    that its users do."""
    if user.target in _CONVOLUTIONS:
        yield False
    elif user.target is aten.clone.default:
        yield from _orders([user], result)
    elif _is_elementwise(user):
        others = [n for n in user.all_input_nodes if n is not node]
        yield from _orders(others, result)
        if not others:
            for further in user.users:
                yield from _of_user(further, user, result)


def _orders(nodes: list[Node], like: torch.Tensor) -> Iterator[bool]:
    """Whether each of the nodes' tensors of the shape of ``like`` is row-major, where its memory is dense. What only
    repeats fewer elements has no order of its own: a kernel computes it where it is read."""
    for node in nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and value.dim() == like.dim() and not _repeats(node):
            found = _is_row_major(value)
            if found is not None and sizes.shape(value.shape) == sizes.shape(like.shape):
                yield found


def _repeats(node: Node) -> bool:
    """Whether a tensor is expanded from a smaller one, or computed from such tensors alone."""
    if node.target is aten.expand.default:
        return True
    return _is_elementwise(node) and bool(node.all_input_nodes) and all(map(_repeats, node.all_input_nodes))


def _is_row_major(x: torch.Tensor) -> bool | None:
    """None for a tensor with gaps in memory, and where only values tell its sizes."""
    try:
        order = layouts.memory_order(x) if x.layout is torch.strided else None
    except sizes.OpaqueSize:
        return None
    return None if order is None else order == tuple(range(len(order)))
