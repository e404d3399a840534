"""Calls of attention kernels that skip what a mask hides, in Dynamo's graph: torch's flash kernel with a window, and
flex attention's template with blocks of the mask (:mod:`mlirfuse.frontend.torch.attention.masked_attention`)."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch.fx import GraphModule, Node

from mlirfuse.frontend.torch.attention import masked_attention
from mlirfuse.frontend.torch.attention.mask_patterns import MaskPattern
from mlirfuse.frontend.torch.fx import sizes
from mlirfuse.frontend.torch.fx.nodes import explain
from mlirfuse.frontend.torch.torch_private import (
    DisableAutocast,
    FakeTensor,
    has_triton,
    is_traceable_wrapper_subclass,
    statically_known_true,
)

_FEWEST_KEYS = 1024  # for fewer, compiling a template does not pay


def argument(node: Node, name: str, index: int) -> Any:
    """An argument of ``scaled_dot_product_attention``."""
    return node.kwargs.get(name, node.args[index] if len(node.args) > index else None)


def example(node: Any) -> torch.Tensor | None:
    """The fake tensor of ``node``; None for what is no tensor."""
    value = node.meta.get("example_value") if isinstance(node, Node) else None
    return value if isinstance(value, torch.Tensor) else None


def _operands(node: Node) -> list[Any]:
    return [argument(node, name, k) for k, name in enumerate(("query", "key", "value"))]


def _unsupported(node: Node) -> str | None:
    """What keeps the attention from kernels for 16-bit floats on a GPU, as the end of a sentence; None: nothing."""
    out, operands = example(node), [example(x) for x in _operands(node)]
    if out is None or any(x is None or x.dim() != 4 or is_traceable_wrapper_subclass(x) for x in operands):
        return "takes tensors of 4 dimensions"
    q, k, v = operands
    assert q is not None and k is not None and v is not None
    if any(x.device.type != "cuda" for x in (q, k, v)):
        return "runs on a GPU"
    if torch.cuda.is_available() and torch.cuda.get_device_capability(q.device) < (8, 0):
        return "runs on a GPU from Ampere on"
    if out.dtype not in (torch.float16, torch.bfloat16):
        return "takes float16 and bfloat16"
    heads = (q.shape[1], k.shape[1], v.shape[1])
    if not all(isinstance(n, int) for n in (*heads, q.shape[3], k.shape[3], v.shape[3])):
        return "takes known numbers of heads and features"
    shared = bool(argument(node, "enable_gqa", 7)) and heads[0] % heads[1] == 0
    if heads[1] != heads[2] or (heads[0] != heads[1] and not shared):
        return "takes as many heads of keys as of queries, or fewer with enable_gqa"
    alike = [(q.shape[0], k.shape[0]), (k.shape[0], v.shape[0]), (k.shape[2], v.shape[2]), (q.shape[3], k.shape[3])]
    if not all(statically_known_true(a == b) for a, b in alike):
        return "takes queries, keys and values of equal batches and sizes"
    return None


# ---- windows


def takes_windows(node: Node) -> bool:
    """Whether torch's flash kernel with windows takes the attention's operands; it aligns the last query with the last
    key."""
    if _unsupported(node) is not None or not torch.backends.cuda.flash_sdp_enabled() or argument(node, "is_causal", 5):
        return False
    q, k, v = (example(x) for x in _operands(node))
    assert q is not None and k is not None and v is not None
    known = all(isinstance(n, int) for n in (*q.shape, *k.shape, *v.shape))
    return known and q.shape[2] <= k.shape[2] and q.shape[3] == v.shape[3] and q.shape[3] % 8 == 0 and q.shape[3] <= 256


def windowed(module: GraphModule, node: Node, pattern: MaskPattern) -> None:
    """Replaces the attention by the flash kernel with a window, with the last query at the last key."""
    queries, keys = (int(example(x).shape[2]) for x in _operands(node)[:2])  # type: ignore[union-attr]
    window_left = -1 if pattern.window_left is None else int(sympy.Integer(pattern.window_left)) + keys - queries
    with module.graph.inserting_before(node):
        rows = [_method(node, "transpose", x, 1, 2) for x in _cast(node)]
        sizes_and_flags = (None, None, queries, keys, argument(node, "dropout_p", 4) or 0.0, True, False)
        how = {"scale": argument(node, "scale", 6)}
        if window_left >= 0:
            how |= {"window_size_left": window_left, "window_size_right": 0}
        found = _function(node, torch.ops.aten._flash_attention_forward.default, *rows, *sizes_and_flags, **how)
        created = _method(node, "transpose", _function(node, operator.getitem, found, 0), 1, 2)
    explain(found, f"the mask is {pattern}: the flash kernel's window")
    _replace(module, node, created)


# ---- blocks of a mask


def refusal(node: Node, mask: Node, pattern: MaskPattern) -> str | None:
    """Why flex attention's template does not take the attention, as the end of a sentence; None where it does."""
    if (unsupported := _unsupported(node)) is not None:
        return unsupported
    if not has_triton():
        return "needs Triton"
    if not (torch.backends.cuda.flash_sdp_enabled() and torch.backends.cuda.mem_efficient_sdp_enabled()):
        return "is used where no kernel of torch's is disabled"
    if argument(node, "dropout_p", 4) or argument(node, "is_causal", 5):
        return "has no dropout"
    if not pattern.has_blocks:
        return "takes boolean masks that are inputs, or masks of False, 0 and -inf that the same graph computes"
    q, k, v = (example(x) for x in _operands(node))
    shown = example(mask)
    assert q is not None and k is not None and v is not None and shown is not None
    if not all(16 <= n <= 256 for n in (q.shape[3], v.shape[3])):
        return "takes 16 to 256 features a head"
    if sizes.hint_or(k.shape[2], _FEWEST_KEYS) < _FEWEST_KEYS or sizes.hint_or(q.shape[2], 128) < 128:
        return f"pays from {_FEWEST_KEYS} keys on"
    wanted = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    given = [*[1] * (4 - shown.dim()), *shown.shape]
    if shown.dim() > 4 or not all(statically_known_true(a == b) or a == 1 for a, b in zip(given, wanted)):
        return "takes masks of (batches, heads, queries, keys)"
    if any(isinstance(n, torch.SymInt) and m == 1 for n, m in zip(wanted[2:], given[2:])):
        return "takes masks of all queries and keys if their number is symbolic"
    return None


def mask_blocks(module: GraphModule, mask: Node, like: Node) -> list[Node]:
    """The tensors of the mask's blocks, computed after it, for :func:`masked` of attentions like ``like``."""
    q, k, _ = (example(x) for x in _operands(like))
    assert q is not None and k is not None
    queries, keys = (n if isinstance(n, int) else -1 for n in (q.shape[2], k.shape[2]))
    after = mask
    if mask.op == "placeholder":
        after = module.graph.find_nodes(op="placeholder")[-1]
    with module.graph.inserting_after(after):
        found = _function(mask, masked_attention.MASK_BLOCKS, mask, queries, keys)
    parts = []
    after = found
    for k in range(len(found.meta["example_value"])):
        with module.graph.inserting_after(after):
            after = _function(mask, operator.getitem, found, k)
        parts.append(after)
    return parts


def masked(module: GraphModule, node: Node, blocks: Sequence[Node], pattern: str) -> None:
    """Replaces the attention by one that skips hidden blocks."""
    scale, query = argument(node, "scale", 6), example(_operands(node)[0])
    assert query is not None
    with module.graph.inserting_before(node):
        scale = query.shape[3] ** -0.5 if scale is None else scale
        found = _function(node, masked_attention.FORWARD, *_cast(node), list(blocks), scale)
        created = _function(node, operator.getitem, found, 0)
    explain(found, f"the mask is {pattern}: flex attention's kernel, which skips blocks that are hidden")
    _replace(module, node, created)


# ---- nodes


def _cast(node: Node) -> list[Node]:
    """The attention's operands in its result's dtype: autocast converts them in torch's function alone."""
    dtype = example(node).dtype  # type: ignore[union-attr]
    return [x if example(x).dtype is dtype else _method(node, "to", x, dtype) for x in _operands(node)]  # type: ignore[union-attr]


def _replace(module: GraphModule, node: Node, created: Node) -> None:
    node.replace_all_uses_with(created)
    module.graph.erase_node(node)


def _function(like: Node, target: Any, *args: Any, **kwargs: Any) -> Node:
    """A call at the graph's insertion point, in the module and at the line of ``like``, with its fake result."""
    return _with_example(like.graph.call_function(target, args, kwargs), like)


def _method(like: Node, name: str, *args: Any) -> Node:
    return _with_example(like.graph.call_method(name, args), like)


def _with_example(created: Node, like: Node) -> Node:
    created.meta = {key: value for key, value in like.meta.items() if key != "example_value"}
    args, kwargs = torch.fx.map_arg((created.args, created.kwargs), lambda n: n.meta["example_value"])
    mode = next((x.fake_mode for x in (like.meta["example_value"], *args) if isinstance(x, FakeTensor)), None)
    call = getattr(args[0], str(created.target)) if created.op == "call_method" else created.target
    given = args[1:] if created.op == "call_method" else args
    grad = any(isinstance(x, torch.Tensor) and x.requires_grad for x in (like.meta["example_value"], *args))
    with mode or contextlib.nullcontext(), torch.set_grad_enabled(grad), DisableAutocast():
        created.meta["example_value"] = call(*given, **kwargs)
    return created
