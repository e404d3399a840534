"""Float8 as bytes: rewrites casts from and to ``float8_e4m3fn`` and ``float8_e5m2``, ops that only move such values,
and the products that kernels compute, to ops on uint8. Other ops, such as the library's ``_scaled_mm``, get views of
the bytes.

So a scale, its cast and a transposed copy of the result fuse with what computes their operand.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from mlirfuse.frontend.torch.fx.nodes import FUSES, call, explain
from mlirfuse.frontend.torch.ops.rules import DTYPES, RULES, VIEWS

FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
_CASTS = {torch.ops.aten._to_copy.default, torch.ops.prims.convert_element_type.default}
_MOVES = {
    torch.ops.aten.clone.default,
    torch.ops.aten.cat.default,
    torch.ops.aten.flip.default,
    torch.ops.aten.roll.default,
    torch.ops.aten.repeat.default,
    torch.ops.aten.where.self,
}
_VIEW = torch.ops.aten.view.dtype
SCALED_PRODUCT = torch.ops.aten._scaled_mm.default
_ONE = "one"


@torch.library.custom_op("mlirfuse::encode_float8", mutates_args=())
def encode_float8(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The bytes of ``x`` in ``dtype``, a float8 type, rounded as by torch's cast."""
    return x.to(dtype).view(torch.uint8)


@torch.library.custom_op("mlirfuse::decode_float8", mutates_args=())
def decode_float8(x: torch.Tensor, dtype: torch.dtype, to: torch.dtype) -> torch.Tensor:
    """The numbers in type ``to`` whose bytes in ``dtype``, a float8 type, are ``x``."""
    return x.view(dtype).to(to)


@torch.library.custom_op("mlirfuse::scaled_mm", mutates_args=())
def scaled_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    dtype_a: torch.dtype,
    dtype_b: torch.dtype,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None,
    out_dtype: torch.dtype,
    fast_sums: bool,
) -> torch.Tensor:
    """``aten._scaled_mm`` of matrices whose bytes in types ``dtype_a`` and ``dtype_b`` are ``a`` and ``b``."""
    x, y = a.view(dtype_a), b.view(dtype_b)
    return SCALED_PRODUCT(x, y, scale_a, scale_b, bias, None, out_dtype, fast_sums)


@scaled_mm.register_fake
def _(a, b, dtype_a, dtype_b, scale_a, scale_b, bias, out_dtype, fast_sums):
    return a.new_empty((a.shape[0], b.shape[1]), dtype=out_dtype)


@encode_float8.register_fake
def _(x, dtype):
    return torch.empty_like(x, dtype=torch.uint8)


@decode_float8.register_fake
def _(x, dtype, to):
    return torch.empty_like(x, dtype=to)


def is_float8(node: Any) -> bool:
    value = node.meta.get("val") if isinstance(node, Node) else None
    return isinstance(value, torch.Tensor) and value.dtype in FLOAT8


def is_fusible(node: Node) -> bool:
    """Whether :func:`as_bytes` makes a call with float8 operands or a float8 result one of bytes."""
    tensors = [n.meta["val"] for n in (node, *node.all_input_nodes) if isinstance(n.meta.get("val"), torch.Tensor)]
    if any(x.dtype not in DTYPES and x.dtype not in FLOAT8 for x in tensors):
        return False
    if node.target in _CASTS:
        return True
    return is_float8(node) and (str(node.target) in VIEWS or node.target in _MOVES) and str(node.target) in RULES


def as_bytes(module: GraphModule) -> None:
    """Rewrites ``module`` where kernels can read or write float8."""
    graph = module.graph
    if any(map(is_float8, graph.nodes)):
        rewriter = _Rewriter()
        for node in list(graph.nodes):
            if node.target is SCALED_PRODUCT and FUSES in node.meta:
                rewriter.multiply(node)
            elif node.op == "call_function" and any(map(is_float8, (node, *node.all_input_nodes))) and is_fusible(node):
                rewriter.rewrite(node)
        graph.eliminate_dead_code()
        module.recompile()


def explain_scales(module: GraphModule) -> None:
    """Notes of each float8 product which scales its operands have."""
    for node in module.graph.find_nodes(op="call_function", target=SCALED_PRODUCT):
        values = [n.meta["val"] for n in node.args[:4]]
        sides = [_scales(values[k], values[k + 2], k) for k in range(2)]
        note = f"a float8 product, scales of the first operand: {sides[0]}, of the second: {sides[1]}"
        if all(side == _ONE for side in sides):
            note += "; the largest magnitude is found before the cast, scales of rows would be found by its kernel"
        explain(node, note)


def _scales(x: torch.Tensor, scale: torch.Tensor, summed_first: int) -> str:
    """What a product's operand ``x`` has scales for; ``summed_first``: 1 if its first dimension is summed."""
    if scale.dtype is torch.float8_e8m0fnu:
        return "powers of two of 32 elements each"
    if scale.numel() == 1:
        return _ONE
    kept, summed = (x.shape[1], x.shape[0]) if summed_first else x.shape
    by_kept, by_summed = scale.shape[::-1] if summed_first else scale.shape
    if by_summed == 1:
        return f"one of each {'column' if summed_first else 'row'}"
    return f"one of each block of {-(-kept // by_kept)}x{-(-summed // by_summed)}"


class _Rewriter:
    def __init__(self) -> None:
        self.bytes: dict[Node, Node] = {}  # by a float8 node

    def rewrite(self, node: Node) -> None:
        if str(node.target) in VIEWS:
            return  # rewritten where a kernel reads it
        (source,) = node.args[:1]
        with node.graph.inserting_before(node):
            if node.target not in _CASTS or (is_float8(source) and source.meta["val"].dtype is node.meta["val"].dtype):
                self._result(node, self._moved(node))
                return
            x = source
            if is_float8(source):
                to = torch.float32 if is_float8(node) else node.meta["val"].dtype
                x = call(
                    node.graph,
                    node,
                    torch.ops.mlirfuse.decode_float8.default,
                    self._bytes(source),
                    source.meta["val"].dtype,
                    to,
                )
            if is_float8(node):
                x = call(node.graph, node, torch.ops.mlirfuse.encode_float8.default, x, node.meta["val"].dtype)
                self._result(node, x)
                return
        x.meta["val"] = node.meta["val"]  # with its strides
        node.replace_all_uses_with(x)
        node.graph.erase_node(node)

    def multiply(self, node: Node) -> None:
        """Replaces a product by one of its operands' bytes."""
        given = dict(zip((one.name for one in SCALED_PRODUCT._schema.arguments), node.args)) | dict(node.kwargs)
        operands = given["self"], given["mat2"]
        places = [self._bytes(x) for x in operands]
        dtypes, result = [x.meta["val"].dtype for x in operands], node.meta["val"].dtype
        scales, fast = (given["scale_a"], given["scale_b"]), given.get("use_fast_accum", False)
        with node.graph.inserting_before(node):
            target = torch.ops.mlirfuse.scaled_mm.default
            created = call(node.graph, node, target, *places, *dtypes, *scales, given.get("bias"), result, fast)
        node.replace_all_uses_with(created)
        node.graph.erase_node(node)

    def _result(self, node: Node, created: Node) -> None:
        """Replaces ``node``, of float8, by a view of the bytes ``created``."""
        created.meta["val"] = _bytes_of_fake(node.meta["val"])
        with node.graph.inserting_before(node):
            view = call(node.graph, node, _VIEW, created, node.meta["val"].dtype)
        self.bytes[view] = created
        node.replace_all_uses_with(view)
        node.graph.erase_node(node)

    def _moved(self, node: Node) -> Node:
        """The call of ``node`` on bytes, at the graph's insertion point."""
        args = torch.fx.map_arg(node.args, lambda n: self._bytes(n) if is_float8(n) else n)
        kwargs = {name: value for name, value in node.kwargs.items() if name == "memory_format"}
        target = torch.ops.aten.clone.default if node.target in _CASTS else node.target
        kwargs = kwargs if target is torch.ops.aten.clone.default else dict(node.kwargs)
        args = args[:1] if node.target in _CASTS else args
        created: Node = node.graph.call_function(target, args, kwargs)
        created.meta.update(node.meta)
        created.meta["val"] = _bytes_of_fake(node.meta["val"])
        return created

    def _bytes(self, node: Node) -> Node:
        """The bytes of a float8 node, computed right after it."""
        if node not in self.bytes:
            if node.op == "call_function" and str(node.target) in VIEWS and node.target is not _VIEW:
                source = self._bytes(node.args[0])
                with node.graph.inserting_after(max(node, source)):
                    created = node.graph.call_function(node.target, (source, *node.args[1:]), dict(node.kwargs))
                created.meta.update(node.meta)
                created.meta["val"] = _bytes_of_fake(node.meta["val"])
            else:
                with node.graph.inserting_after(_last_placeholder(node)):
                    created = call(node.graph, node, _VIEW, node, torch.uint8)
            self.bytes[node] = created
        return self.bytes[node]


def _last_placeholder(node: Node) -> Node:
    return node.graph.find_nodes(op="placeholder")[-1] if node.op == "placeholder" else node


def _bytes_of_fake(fake: torch.Tensor) -> torch.Tensor:
    with fake.fake_mode, torch.no_grad():
        return fake.view(torch.uint8)
