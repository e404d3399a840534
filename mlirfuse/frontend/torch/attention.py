"""Attention's kernel is eager's: decided on Dynamo's graph, before AOTAutograd takes ``scaled_dot_product_attention``
apart.

While a graph is traced, a mask is a tensor like any other: one that hides nothing is not seen to, and one that is
broadcast along its rows has strides that no fused kernel takes. Either leaves torch with its plain formulas, a product,
a softmax in float32 and another product. And among the kernels that do take a call, tracing prefers others than eager.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import GraphModule, Node
from torch.nn.attention import SDPBackend, sdpa_kernel

_LARGEST = 1 << 26  # elements of a mask that is computed while compiling, to see whether it hides anything


def prepare(module: GraphModule) -> None:
    """Takes masks that hide nothing from the attentions of Dynamo's graph, and gives the others rows in memory."""
    changed = False
    for node in module.graph.nodes:
        if node.op != "call_function" or node.target is not torch.nn.functional.scaled_dot_product_attention:
            continue
        mask = node.kwargs.get("attn_mask", node.args[3] if len(node.args) > 3 else None)
        value = mask.meta.get("example_value") if isinstance(mask, Node) else None
        if not isinstance(value, torch.Tensor):
            continue
        if value.dtype == torch.bool and _hides_nothing(module, mask, value):
            _set_mask(node, None)
            changed = True
        elif value.device.type == "cuda" and value.dim() and value.stride(-1) != 1:
            with module.graph.inserting_before(node):
                rows = module.graph.call_method("contiguous", (mask,))
            rows.meta["example_value"] = value.contiguous()
            _set_mask(node, rows)
            changed = True
    if changed:
        module.graph.eliminate_dead_code()
        module.recompile()


def _set_mask(node: Node, mask: Node | None) -> None:
    if len(node.args) > 3:
        node.args = (*node.args[:3], mask, *node.args[4:])
    else:
        node.kwargs = {**node.kwargs, "attn_mask": mask}


def _hides_nothing(module: GraphModule, mask: Node, value: torch.Tensor) -> bool:
    """Whether ``mask`` follows from the graph alone and is true everywhere. It is computed to see that."""
    if not all(isinstance(n, int) for n in value.shape) or value.numel() > _LARGEST:
        return False
    needed: dict[Node, None] = {}
    left = [mask]
    while left:
        node = left.pop()
        if node in needed:
            continue
        if node.op not in ("call_function", "call_method") or not _is_plain(node):
            return False
        needed[node] = None
        left += node.all_input_nodes
    values: dict[Node, Any] = {}
    try:
        with torch.no_grad(), unset_fake_temporarily():
            for node in module.graph.nodes:
                if node in needed:
                    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: values[n])
                    call = getattr(args[0], node.target) if node.op == "call_method" else node.target
                    values[node] = call(*(args[1:] if node.op == "call_method" else args), **kwargs)
            return bool(values[mask].all())
    except Exception:  # what cannot be computed here stays as it is
        return False


def _is_plain(node: Node) -> bool:
    """Whether the node is a pure function: no random numbers, no writes."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return not node.is_impure() and not name.endswith("_") and "rand" not in name and "dropout" not in name


@contextlib.contextmanager
def eagers_kernels() -> Iterator[None]:
    """Inside, attention is traced to the kernel that eager takes first, of those that the user has left on."""
    order = [
        (SDPBackend.FLASH_ATTENTION, torch.backends.cuda.flash_sdp_enabled()),
        (SDPBackend.EFFICIENT_ATTENTION, torch.backends.cuda.mem_efficient_sdp_enabled()),
        (SDPBackend.CUDNN_ATTENTION, torch.backends.cuda.cudnn_sdp_enabled()),
        (SDPBackend.MATH, torch.backends.cuda.math_sdp_enabled()),
    ]
    allowed = [backend for backend, enabled in order if enabled]
    if not torch.cuda.is_available() or not allowed:
        yield
        return
    with sdpa_kernel(allowed, set_priority=True):
        yield
