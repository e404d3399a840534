"""Corrects dtypes of results where torch's fake tensors differ from its kernels, e.g. ``torch.normal`` of a float16
mean and a float32 deviation: the graph continues with the kernels' dtypes, as eager does."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from mlirfuse.frontend.torch.as_eager import refusals
from mlirfuse.frontend.torch.fx import nodes
from mlirfuse.frontend.torch.ops.rules import RULES
from mlirfuse.frontend.torch.torch_private import OpOverload, disable_current_modes


def correct(module: GraphModule) -> None:
    """Runs the ops of ``module`` that have no rule and operands of several float dtypes on small CPU tensors, and
    recomputes the fake results that depend on a correction."""
    changed: set[Node] = set()
    for node in module.graph.nodes:
        if node.op != "call_function":
            continue
        if changed.intersection(node.all_input_nodes):
            node.meta["val"] = nodes.computed(node)
            changed.add(node)
        dtype = _real_dtype(node)
        if dtype is not None:
            node.meta["val"] = node.meta["val"].to(dtype)
            changed.add(node)


def _real_dtype(node: Node) -> torch.dtype | None:
    """The real dtype of a call's result, where its fake tensor has another."""
    op, fake = node.target, node.meta.get("val")
    if not isinstance(op, OpOverload) or op.namespace != "aten" or str(op) in RULES:
        return None
    if not isinstance(fake, torch.Tensor) or fake.device.type != "cpu" or op._schema.is_mutable:
        return None
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)]
    if len({x.dtype for x in tensors if x.dtype.is_floating_point}) < 2:
        return None
    try:
        with disable_current_modes(), torch.no_grad(), torch.random.fork_rng(devices=[]):
            given: Any = op(*refusals.real(args, 2), **refusals.real(kwargs, 2))
    except Exception:  # the small sizes are invalid, or it rejects the dtypes: then the call itself raises
        return None
    return given.dtype if isinstance(given, torch.Tensor) and given.dtype is not fake.dtype else None
