"""Pads float16 and bfloat16 matmuls whose row sizes are not multiples of 16 bytes.

Kernels for aligned rows take a third to a half of the time of those for unaligned ones; a vocabulary of 50257 words is
the usual case. Zeros are appended to the operands, and the extra rows and columns of the product cut off. A kernel that
computes an operand writes the padded tensor itself.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx import GraphModule, Node

aten = torch.ops.aten

BYTES = 16  # required alignment of rows for the fast kernels
# The number of multiply-adds from which padding pays, copies of operands included. On an H100 the products
# of GPT-2's vocabulary (16384×768×50257, bfloat16) take 8.4 to 13.3 ms as they are; 77 MB are copied in 0.06.
MIN_MULTIPLY_ADDS = 1 << 32


def pad(module: GraphModule) -> None:
    """Pads the matmuls of ``module``, an AOTAutograd graph, in place. Results and their strides stay the same."""
    padder = _Padder(module)
    for node in list(module.graph.nodes):
        if node.target is aten.mm.default:
            padder.pad_matmul(node)
    if padder.changed:
        module.graph.eliminate_dead_code()
        module.recompile()


def pad_both(forward: GraphModule, backward: GraphModule, given: int) -> None:
    """:func:`pad` for both parts of a joint graph: an operand that both pad alike is saved padded. ``given``: the
    number of the forward's outputs that are not saved."""
    pad(forward)
    pad(backward)
    output = forward.graph.output_node()
    results = list(output.args[0])
    kept = {node.name: node for node in results[given:] if isinstance(node, Node) and node not in results[:given]}
    for saved in backward.graph.find_nodes(op="placeholder"):
        node, users = kept.get(saved.name), list(saved.users)
        pads = [user.args[1:] for user in users if user.target is aten.constant_pad_nd.default]
        if node is None or not pads or len(pads) != len(users) or any(args != pads[0] for args in pads):
            continue
        same = (user for user in node.users if user.target is aten.constant_pad_nd.default and user.args[1:] == pads[0])
        padded = next(same, None)
        if padded is None:
            continue
        results = [padded if result is node else result for result in results]
        saved.meta["val"] = padded.meta["val"]
        for user in users:
            user.replace_all_uses_with(saved)
            backward.graph.erase_node(user)
    if results != list(output.args[0]):
        output.args = (tuple(results),)
        forward.recompile()
        backward.recompile()


class _Padder:
    def __init__(self, module: GraphModule):
        self.module, self.changed = module, False
        self.padded: dict[tuple[Node, int, int], Node] = {}  # (node, dimension, elements appended)

    def pad_matmul(self, node: Node) -> None:
        """``node`` = a (m × k) · b (k × n)."""
        a, b = node.args
        if not (isinstance(a, Node) and isinstance(b, Node)) or not _can_be_padded(a, b):
            return
        (m, k), n = a.meta["val"].shape, b.meta["val"].shape[1]
        step = BYTES // a.meta["val"].element_size()
        rows, inner, columns = (-extent % step for extent in (m, k, n))
        if _is_row_major(a):  # m is not the length of a row then
            rows = 0
        if not (rows or inner or columns) or m * k * n < MIN_MULTIPLY_ADDS:
            return
        with self.module.graph.inserting_before(node):
            left = self.append(self.append(a, 0, rows), 1, inner)
            right = self.append(self.append(b, 0, inner), 1, columns)
            created = self.call(aten.mm.default, left, right)
            if columns:
                created = self.call(aten.slice.Tensor, created, 1, 0, n)
            if rows:
                created = self.call(aten.slice.Tensor, created, 0, 0, m)
            if rows or columns:
                created = self.call(aten.clone.default, created, memory_format=torch.contiguous_format)
        created.meta.update({key: value for key, value in node.meta.items() if key != "val"})
        node.replace_all_uses_with(created)
        self.module.graph.erase_node(node)
        self.changed = True

    def append(self, node: Node, dimension: int, count: int) -> Node:
        """``node`` with ``count`` zeros appended along ``dimension``; for a transposed tensor pads its base, so that
        its rows are aligned."""
        if not count:
            return node
        if node.target in (aten.t.default, aten.permute.default) and node.meta["val"].dim() == 2:
            base = self.append(node.args[0], 1 - dimension, count)
            return self.call(aten.permute.default, base, [1, 0])
        key = node, dimension, count
        if key not in self.padded:
            with self.module.graph.inserting_after(node):
                amounts = [0, count] if dimension == 1 else [0, 0, 0, count]
                self.padded[key] = self.call(aten.constant_pad_nd.default, node, amounts, 0.0)
        return self.padded[key]

    def call(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        """A call with its fake result."""
        created = self.module.graph.call_function(target, args, kwargs)
        given, named = torch.fx.map_arg((args, kwargs), lambda n: n.meta["val"])
        created.meta["val"] = target(*given, **named)
        return created


def _can_be_padded(a: Node, b: Node) -> bool:
    """Whether these are operands of a float16 or bfloat16 matmul on a GPU, with known sizes."""
    left, right = a.meta.get("val"), b.meta.get("val")
    if not isinstance(left, torch.Tensor) or not isinstance(right, torch.Tensor) or left.device.type != "cuda":
        return False
    known = all(isinstance(extent, int) for extent in (*left.shape, *right.shape))
    return known and left.dtype in (torch.float16, torch.bfloat16) and math.prod(left.shape) > 0


def _is_row_major(a: Node) -> bool:
    return bool(a.meta["val"].stride(1) == 1)
