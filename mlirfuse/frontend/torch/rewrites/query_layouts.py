"""Lays out queries of attention such that what joins the heads of its result is no copy.

Attention's result lies in memory like its query. A query that a rotation or a concatenation computes is row-major, with
the heads outermost, so models join the heads by a copy (``out.transpose(1, 2).reshape(…)``), and the backward needs
both: the result for attention's gradient, the copy for that of the layer behind. A kernel can as well write the query
with the heads next to the features. Then the copy is the result itself, and so are the gradients' copies.
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

_Order = tuple[int, ...]  # dimensions, from the outermost in memory to the innermost

# Ops whose first result lies in memory like their first operand.
_NAMES = (
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_flash_attention_forward",
)
_FORWARD = {getattr(aten, name).default for name in _NAMES if hasattr(aten, name)}
_BACKWARD = {getattr(aten, found).default for name in _NAMES if hasattr(aten, found := f"{name}_backward")}
_BACKWARD.add(aten._flash_attention_backward.default)
_VIEWS_OF_ALL = {
    aten.alias.default,
    aten.detach.default,
    aten.view.default,
    aten.reshape.default,
    aten._unsafe_view.default,
    aten.expand.default,
}
_COMPUTED = {aten._to_copy.default, aten.cat.default, aten.clone.default}  # by kernels, beside elementwise ops


def join_heads_in_place(module: GraphModule) -> None:
    """Changes layouts of ``module``, an AOTAutograd graph, in place. On failure the graph stays unchanged."""
    if any(node.target in _FORWARD for node in module.graph.nodes):
        relayout.unless_it_fails(module, lambda changed: _Queries(changed).run(), "attention's queries")


class _Queries(relayout.Relayout):
    def __init__(self, module: GraphModule):
        super().__init__(module)
        self.orders: dict[Node, _Order] = {}  # of queries
        self.copies: list[Node] = []
        for node in self.graph.nodes:
            if node.target in _FORWARD:
                self.consider(node)

    def consider(self, attention: Node) -> None:
        """Choose the layout of a query, if all copies of the result want the same one."""
        found = _computed_query(attention)
        result = next((user for user in attention.users if user.args[1] == 0), None)
        if found is None or result is None or not isinstance(result.meta.get("val"), torch.Tensor):
            return
        copies = list(_copies(result, tuple(range(result.meta["val"].dim()))))
        if len({order for _, order in copies}) != 1 or any(map(_is_returned, [result, *(c for c, _ in copies)])):
            return
        query, dims = found
        self.orders[query] = tuple(dims[k] for k in copies[0][1])
        self.copies += [copy for copy, _ in copies]

    def result(self, node: Node, created: Any) -> Any:
        order = self.orders.get(node)
        if order is None:
            return created
        return created.new_empty([created.shape[d] for d in order]).permute(layouts.inverse(order))

    def run(self) -> None:
        super().run()
        for copy in self.copies:
            (source,) = copy.args
            if _order(source) == _order(copy) is not None:
                copy.replace_all_uses_with(source)
                self.graph.erase_node(copy)
        if self.copies:
            self.module.recompile()


def _computed_query(attention: Node) -> tuple[Node, _Order] | None:
    """The tensor that a kernel computes as the query, for attention alone, and its dimension that each of the query's
    is; None where a query lies in memory that others read."""
    node, users = attention.args[0], {attention}
    assert isinstance(node, Node)
    value = node.meta.get("val")
    dims: _Order = tuple(range(value.dim())) if isinstance(value, torch.Tensor) else ()
    while all(user in users or user.target in _BACKWARD for user in node.users):
        if node.op != "call_function":
            return None
        moved = _moved(node)
        if moved is None:
            elementwise = isinstance(node.target, OpOverload) and torch.Tag.pointwise in node.target.tags
            return (node, dims) if (elementwise or node.target in _COMPUTED) and _order(node) is not None else None
        users, dims = {node}, tuple(moved[d] for d in dims)
        node = node.args[0]
    return None


def _copies(node: Node, dims: _Order) -> Iterator[tuple[Node, _Order]]:
    """The row-major copies of views of attention's result, and for each the order of the result's dimensions that
    makes it needless. ``dims``: the result's dimension that each of ``node`` is."""
    for user in node.users:
        if user.target is aten.clone.default:
            row_major = tuple(range(len(dims)))
            if _order(user) == row_major != _order(node):
                yield user, dims
        elif (moved := _moved(user)) is not None:
            yield from _copies(user, tuple(dims[d] for d in moved))


def _moved(node: Node) -> _Order | None:
    """The operand's dimension that each dimension of a view of all elements is; None for other ops."""
    if node.target not in (*_VIEWS_OF_ALL, aten.transpose.int, aten.permute.default):
        return None
    given, made = node.args[0].meta.get("val"), node.meta.get("val")
    rank = given.dim()
    if node.target is aten.permute.default:
        return tuple(d % rank for d in node.args[1])
    dims = list(range(rank))
    if node.target is aten.transpose.int:
        a, b = node.args[1:]
        dims[a], dims[b] = dims[b], dims[a]
        return tuple(dims)
    return tuple(dims) if sizes.shape(given.shape) == sizes.shape(made.shape) else None


def _order(node: Node) -> _Order | None:
    value = node.meta.get("val")
    try:
        return layouts.memory_order(value) if isinstance(value, torch.Tensor) else None
    except sizes.OpaqueSize:
        return None


def _is_returned(node: Node) -> bool:
    """Whether the graph returns a view of ``node``."""
    return any(user.op == "output" or (relayout.is_view(user) and _is_returned(user)) for user in node.users)
