"""Chooses the matrix products that kernels of ours compute together with the elementwise ops on their results: on
Hopper's tensor cores, where that is expected to be faster than the library's product followed by a kernel."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from mlirfuse.core.device_properties import DeviceProperties
from mlirfuse.frontend.torch.fx.nodes import FUSES, explain
from mlirfuse.frontend.torch.ops.rules import VIEWS
from mlirfuse.frontend.torch.rewrites import product_choice
from mlirfuse.frontend.torch.rewrites.float8 import FLOAT8, SCALED_PRODUCT
from mlirfuse.ir.graph import Graph

aten = torch.ops.aten

PRODUCTS = (aten.mm.default, aten.addmm.default)
_VIEWS = {  # of all elements, which a kernel reads through
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten.t.default,
    aten.transpose.int,
    aten.permute.default,
    aten.unsqueeze.default,
    aten.squeeze.dim,
    aten.alias.default,
    aten.detach.default,
}
_CASTS = (aten._to_copy.default, torch.ops.prims.convert_element_type.default)
_TYPES = (torch.float16, torch.bfloat16, torch.float32)
ELEMENTS = 8  # that TMA wants rows and addresses to be aligned to: 16 bytes of the narrowest but float8


def mark(module: GraphModule, properties: Any, mode: str = "auto") -> None:
    """Marks the products of ``module``, an AOTAutograd graph for the device ``properties``, that kernels compute: for
    "auto" those that may be worth it, of which :func:`keep` leaves some."""
    if mode == "never" or not isinstance(properties, DeviceProperties) or not properties.tensor_cores:
        return
    for node in module.graph.nodes:
        if node.target in PRODUCTS and _possible(node) and (mode == "always" or _has_epilogue(node)):
            node.meta[FUSES] = True
        if node.target is SCALED_PRODUCT and mode == "always" and _possible_scaled(node):  # no estimate was measured
            node.meta[FUSES] = True


def keep(module: GraphModule, graph: Graph, properties: Any) -> bool:
    """Unmarks the products of ``module`` for which the library and kernels of the ops are expected to be as fast;
    ``graph``: ``module`` lowered with all of them marked. Whether some were unmarked."""
    marked = [node for node in module.graph.nodes if FUSES in node.meta]
    if not marked:
        return False
    found = product_choice.choose(graph, properties)
    if len(found) != len(marked):  # some were not lowered
        found = [product_choice.Choice(False)] * len(marked)
    for node, choice in zip(marked, found):
        if not choice.fuses:
            del node.meta[FUSES]
            if choice.kernel_us is not None and choice.library_us is not None:
                explain(
                    node,
                    f"{choice.library_us:.0f} µs with what follows, {choice.kernel_us:.0f} as one kernel (estimated)",
                )
    return not all(choice.fuses for choice in found)


def _possible(node: Node) -> bool:
    """Whether a kernel can compute ``node``: TMA can copy its operands, and the tensor cores multiply them."""
    *bias, a, b = node.args
    if any(not isinstance(x, Node) or x.meta["val"].dim() != 1 for x in bias) or node.kwargs:
        return False
    result = node.meta["val"]
    if not (_matrix(a) and _matrix(b) and result.is_contiguous() and result.shape[1] % ELEMENTS == 0):
        return False
    if result.dtype is not torch.float32:
        return True
    along_k = a.meta["val"].stride(1) == 1 and b.meta["val"].stride(0) == 1  # 16-bit operands may be transposed
    return along_k and torch.backends.cuda.matmul.fp32_precision == "tf32"


def _possible_scaled(node: Node) -> bool:
    """Whether a kernel can compute a product of float8 with scales of tensors, or of rows and columns."""
    given = aten._scaled_mm.default._schema.arguments
    a, b, scale_a, scale_b, bias, scale_result, _, _ = (
        node.args[k] if k < len(node.args) else node.kwargs.get(one.name, one.default_value)
        for k, one in enumerate(given)
    )
    result = node.meta["val"]
    if not (_matrix(a, FLOAT8) and _matrix(b, FLOAT8)) or scale_result is not None or result.dtype not in _TYPES:
        return False
    along_k = a.meta["val"].stride(1) == 1 and b.meta["val"].stride(0) == 1
    ends = result.is_contiguous() and result.shape[1] % ELEMENTS == 0
    m, n = result.shape
    scales = [tuple(scale.meta["val"].shape) for scale in (scale_a, scale_b)]
    scaled = all(math.prod(shape) == 1 for shape in scales) or scales == [(m, 1), (1, n)]
    return along_k and ends and scaled and (bias is None or bias.meta["val"].dim() == 1)


def _matrix(node: Any, types: tuple[torch.dtype, ...] = _TYPES) -> bool:
    """Whether ``node`` is a matrix of floats that TMA can copy: a view of all elements of a tensor, with aligned
    rows."""
    if not isinstance(node, Node):
        return False
    fake = node.meta.get("val")
    if not isinstance(fake, torch.Tensor) or fake.dtype not in types or not fake.is_cuda:
        return False
    aligned = max(ELEMENTS, 16 // fake.dtype.itemsize)
    numbers = (*fake.shape, *fake.stride(), fake.storage_offset())
    if not all(isinstance(n, int) for n in numbers) or min(fake.shape) < ELEMENTS:
        return False
    while node.target in _VIEWS:
        node = node.args[0]
    if node.target is operator.getitem:
        node = node.args[0]
    if str(node.target) in VIEWS or fake.storage_offset() % aligned:  # a part of a tensor
        return False
    (rows, columns), (down, across) = fake.shape, fake.stride()
    return (across == 1 and down % aligned == 0 and down >= columns) or (
        down == 1 and across % aligned == 0 and across >= rows
    )


def _has_epilogue(node: Node) -> bool:
    """Whether elementwise ops read the result."""
    users = list(node.users)
    while users:
        user = users.pop()
        if user.target in _VIEWS or user.target in _CASTS:
            users += user.users
        elif torch.Tag.pointwise in getattr(user.target, "tags", ()):
            return True
    return False
