"""Attention's kernel is eager's: decided on Dynamo's graph, before AOTAutograd takes ``scaled_dot_product_attention``
apart.

While a graph is traced, a mask is a tensor like any other: one that hides nothing is not seen to, and one that is
broadcast along its rows has strides that no fused kernel takes. Either leaves torch with its plain formulas, a product,
a softmax in float32 and another product. One that hides what comes later is not seen to be causal, and no flash kernel
takes it. And among the kernels that do take a call, tracing prefers others than eager.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.nn.attention import SDPBackend, sdpa_kernel

from mlirfuse.frontend.torch.torch_private import unset_fake_temporarily

_LARGEST = 1 << 26  # elements of a mask that is computed while compiling, to see whether it hides anything


def prepare(module: GraphModule) -> None:
    """Says in the attentions of Dynamo's graph what their masks hide, where the graph alone tells: nothing, or what is
    behind each position. Gives other masks rows in memory."""
    known: dict[Node, torch.Tensor | None] = {}
    changed = False
    for node in module.graph.nodes:
        if node.op != "call_function" or node.target is not torch.nn.functional.scaled_dot_product_attention:
            continue
        mask = _argument(node, "attn_mask", 3)
        value = mask.meta.get("example_value") if isinstance(mask, Node) else None
        if not isinstance(mask, Node) or not isinstance(value, torch.Tensor):
            continue
        if mask not in known:
            known[mask] = _computed(module, mask, value)
        shown = known[mask]
        if shown is not None and bool(shown.all()):
            _set(node, None, bool(_argument(node, "is_causal", 5)))
        elif shown is not None and _is_causal(shown):
            _set(node, None, True)
        elif value.device.type == "cuda" and value.dim() and value.stride(-1) != 1:
            with module.graph.inserting_before(node):
                rows = module.graph.call_method("contiguous", (mask,))
            rows.meta["example_value"] = value.contiguous()
            _set(node, rows, bool(_argument(node, "is_causal", 5)))
        else:
            continue
        changed = True
    if changed:
        module.graph.eliminate_dead_code()
        module.recompile()


def _argument(node: Node, name: str, place: int) -> Any:
    return node.kwargs.get(name, node.args[place] if len(node.args) > place else None)


def _set(node: Node, mask: Node | None, causal: bool) -> None:
    kwargs = dict(node.kwargs)
    kwargs.update(zip(("dropout_p", "is_causal"), node.args[4:]))
    node.args = node.args[:3]
    node.kwargs = {**kwargs, "attn_mask": mask, "is_causal": causal}


def _is_causal(mask: torch.Tensor) -> bool:
    """Whether each position sees those up to itself, as many as there are queries."""
    queries, keys = mask.shape[-2:]
    return queries == keys and torch.equal(mask, torch.ones_like(mask).tril())


def _computed(module: GraphModule, mask: Node, value: torch.Tensor) -> torch.Tensor | None:
    """A mask of booleans that follows from the graph alone, else None."""
    known_sizes = all(isinstance(n, int) for n in value.shape)
    if value.dtype != torch.bool or value.dim() < 2 or not known_sizes or value.numel() > _LARGEST:
        return None
    needed: dict[Node, None] = {}
    left = [mask]
    while left:
        node = left.pop()
        if node in needed:
            continue
        if node.op not in ("call_function", "call_method") or not _is_plain(node):
            return None
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
    except Exception:  # what cannot be computed here stays as it is
        return None
    return values[mask] if isinstance(values[mask], torch.Tensor) else None


def _is_plain(node: Node) -> bool:
    """Whether the node is a pure function: no random numbers, no writes."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return not node.is_impure() and not name.endswith("_") and "rand" not in name and "dropout" not in name


@contextlib.contextmanager
def eagers_kernels() -> Iterator[None]:
    """Inside, attention is traced to the kernels that eager takes, of those that the user has left on: cuDNN's first
    where eager prefers them, else flash kernels. cuDNN's come before the others in any case: with a mask they take a
    third of the time."""
    enabled = {
        SDPBackend.FLASH_ATTENTION: torch.backends.cuda.flash_sdp_enabled(),
        SDPBackend.CUDNN_ATTENTION: torch.backends.cuda.cudnn_sdp_enabled(),
        SDPBackend.EFFICIENT_ATTENTION: torch.backends.cuda.mem_efficient_sdp_enabled(),
        SDPBackend.MATH: torch.backends.cuda.math_sdp_enabled(),
    }
    allowed = [backend for backend, on in enabled.items() if on]
    if not torch.cuda.is_available() or not allowed:
        yield
        return
    if _prefers_cudnn():
        allowed.sort(key=lambda backend: backend is not SDPBackend.CUDNN_ATTENTION)
    with sdpa_kernel(allowed, set_priority=True):
        yield


def _prefers_cudnn() -> bool:
    """Whether eager asks cuDNN before flash kernels (``check_prefer_cudnn_attention`` in torch's ``sdp_utils.cpp``): on
    Hopper and Blackwell from cuDNN 9.15 on, unless the user says otherwise."""
    deprioritized = os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED", "0") == "1"
    recent = (torch.backends.cudnn.version() or 0) >= 91500
    return recent and not deprioritized and torch.cuda.get_device_capability() in ((9, 0), (10, 0))
