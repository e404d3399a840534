"""Chooses the matrix products that kernels of ours compute together with the elementwise ops on their results: on
Hopper's tensor cores, where that is expected to be faster than the library's product followed by a kernel."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from mlirfuse.core.device_properties import DeviceProperties
from mlirfuse.frontend.torch.ops.rules import VIEWS
from mlirfuse.schedule.gpu.matmul import model

aten = torch.ops.aten

FUSES = "mlirfuse_fuses"  # key in ``meta`` of a product that a kernel computes
MODES = ("auto", "always", "never")
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
ELEMENTS = 8  # that TMA wants rows and addresses to be aligned to: 16 bytes


def mark(module: GraphModule, properties: Any, mode: str = "auto") -> None:
    """Marks the products of ``module``, an AOTAutograd graph for the device ``properties``, that kernels compute."""
    if mode == "never" or not isinstance(properties, DeviceProperties) or not properties.tensor_cores:
        return
    for node in module.graph.nodes:
        if node.target in PRODUCTS and _possible(node) and (mode == "always" or _pays(node, properties)):
            node.meta[FUSES] = True


def _possible(node: Node) -> bool:
    """Whether a kernel can compute ``node``: TMA can copy its operands."""
    *bias, a, b = node.args
    if any(not isinstance(x, Node) or x.meta["val"].dim() != 1 for x in bias) or node.kwargs:
        return False
    result = node.meta["val"]
    return _matrix(a) and _matrix(b) and result.is_contiguous() and result.shape[1] % ELEMENTS == 0


def _matrix(node: Any) -> bool:
    """Whether ``node`` is a matrix of 16-bit floats that TMA can copy: a view of all elements of a tensor, with aligned
    rows."""
    if not isinstance(node, Node):
        return False
    fake = node.meta.get("val")
    if not isinstance(fake, torch.Tensor) or fake.dtype not in (torch.float16, torch.bfloat16) or not fake.is_cuda:
        return False
    numbers = (*fake.shape, *fake.stride(), fake.storage_offset())
    if not all(isinstance(n, int) for n in numbers) or min(fake.shape) < ELEMENTS:
        return False
    while node.target in _VIEWS:
        node = node.args[0]
    if node.target is operator.getitem:
        node = node.args[0]
    if str(node.target) in VIEWS or fake.storage_offset() % ELEMENTS:  # a part of a tensor
        return False
    (rows, columns), (down, across) = fake.shape, fake.stride()
    return (across == 1 and down % ELEMENTS == 0 and down >= columns) or (
        down == 1 and across % ELEMENTS == 0 and across >= rows
    )


def _pays(node: Node, properties: DeviceProperties) -> bool:
    """Whether the kernel is expected to be faster than the library's product and a kernel for the ops on its result."""
    a, b = node.args[-2:]
    (m, k), n = a.meta["val"].shape, b.meta["val"].shape[1]
    return _has_epilogue(node) and model.pays(m, n, k, properties)


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
