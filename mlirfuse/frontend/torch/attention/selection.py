"""Selects eager's attention kernel: rewrites masks in Dynamo's graph before AOTAutograd decomposes
``scaled_dot_product_attention``.

During tracing torch sees a mask as just a tensor. It does not notice a mask that hides nothing, a broadcast mask has
strides that no fused kernel accepts (torch then falls back to a matmul, a float32 softmax and another matmul), and a
causal mask is not recognized, so no flash kernel takes it. Tracing also ranks kernels differently from eager.

So masks are analysed as functions of query and key index (:mod:`mlirfuse.frontend.torch.attention.mask_patterns`): a
causal mask becomes ``is_causal``, and other masks go to kernels that skip what they hide
(:mod:`mlirfuse.frontend.torch.attention.attention_calls`). Masks that this cannot prove are evaluated here if they are
small and constant; else the mask stays.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import sympy
import torch
from torch.fx import GraphModule, Node
from torch.nn.attention import SDPBackend, sdpa_kernel

from mlirfuse.frontend.torch.attention import attention_calls, index_expressions
from mlirfuse.frontend.torch.attention.attention_calls import argument, example
from mlirfuse.frontend.torch.attention.index_cases import Unknown
from mlirfuse.frontend.torch.attention.index_expressions import Expressions, MutatedTensor
from mlirfuse.frontend.torch.attention.mask_patterns import MaskPattern, pattern_of
from mlirfuse.frontend.torch.fx import purity
from mlirfuse.frontend.torch.fx.nodes import explain, modes
from mlirfuse.frontend.torch.torch_private import unset_fake_temporarily

_LARGEST = 1 << 26  # elements of a mask that is evaluated at compile time


def simplify_masks(module: GraphModule) -> None:
    """Replaces attention masks in Dynamo's graph where their pattern is provable: no mask, causal, or a window.
    Materializes rows of other masks. Covers called subgraphs, such as those of checkpoints."""
    attentions = torch.nn.functional.scaled_dot_product_attention
    if any(n.target is attentions for m in module.modules() if isinstance(m, GraphModule) for n in m.graph.nodes):
        _MaskRewriter(module, Expressions(module)).run()


class _MaskRewriter:
    """A graph, and the known patterns of its masks."""

    def __init__(self, module: GraphModule, expressions: Expressions, transformed: bool = False):
        """``transformed``: the graph is called under a transform of torch.func, which these kernels do not take."""
        self.module, self.expressions = module, expressions
        self.transformed = {node for node, (_, depth) in modes(module.graph).items() if depth or transformed}
        self.patterns: dict[Any, MaskPattern | None] = {}
        self.blocks: dict[Node, list[Node]] = {}
        self.without: set[Node] = set()  # masks that some attention no longer reads

    def run(self) -> None:
        changed = False
        for node in list(self.module.graph.nodes):
            if node.target is torch.nn.functional.scaled_dot_product_attention and node.op == "call_function":
                changed |= self.attention(node)
            elif (called := self.expressions.called(node)) is not None:
                _MaskRewriter(called.module, called, node in self.transformed).run()
        if changed:
            for mask in self.without:
                _erase(self.module, mask)
            self.module.recompile()

    def attention(self, node: Node) -> bool:
        """Rewrites one attention; whether it changed."""
        mask = argument(node, "attn_mask", 3)
        value = mask.meta.get("example_value") if isinstance(mask, Node) else None
        query, key = (example(argument(node, name, k)) for k, name in enumerate(("query", "key")))
        if not isinstance(mask, Node) or value is None or query is None or key is None or value.requires_grad:
            return False
        try:
            pattern = self.pattern(mask, value, query.shape[-2], key.shape[-2])
        except MutatedTensor:
            pattern = None
            explain(node, "the mask stays a tensor: it is written in place, which prevents its analysis")
        if pattern is not None and self.replace_mask(node, mask, pattern):
            self.without.add(mask)
            return True
        if value.device.type == "cuda" and value.dim() and value.stride(-1) != 1:
            with self.module.graph.inserting_before(node):
                rows = self.module.graph.call_method("contiguous", (mask,))
            rows.meta["example_value"] = value.contiguous()
            _set(node, rows, bool(argument(node, "is_causal", 5)))
            return True
        return False

    def pattern(self, mask: Node, value: torch.Tensor, queries: Any, keys: Any) -> MaskPattern | None:
        """The mask's pattern; None where unknown. Raises :class:`MutatedTensor`."""
        known = mask, str(queries), str(keys)
        if known not in self.patterns:
            try:
                found = pattern_of(self.expressions.of(mask), queries, keys)
            except Unknown:
                found = None
            if found is None or found.other_conditions:
                found = _computed(self.module, mask, value, queries, keys) or found
            self.patterns[known] = found
        return self.patterns[known]

    def replace_mask(self, node: Node, mask: Node, pattern: MaskPattern) -> bool:
        """Replaces the mask by an equivalent argument; whether the attention no longer needs it."""
        if pattern.hides_nothing:
            _set(node, None, bool(argument(node, "is_causal", 5)))
            explain(node, "the mask hides nothing: no mask")
        elif pattern.is_causal:
            _set(node, None, True)
            explain(node, "the mask is causal: is_causal")
        elif node in self.transformed:
            explain(node, f"the mask stays a tensor: {pattern}; a transform of torch.func computes attention")
            return False
        elif pattern.is_lower_right and attention_calls.takes_windows(node):
            attention_calls.windowed(self.module, node, pattern)
        elif (refused := attention_calls.refusal(node, mask, pattern)) is None:
            attention_calls.masked(self.module, node, self.mask_blocks(mask, node), str(pattern))
        else:
            explain(
                node,
                f"the mask stays a tensor: {pattern}; flex attention's kernel, which skips what it hides, {refused}",
            )
            return False
        return True

    def mask_blocks(self, mask: Node, like: Node) -> list[Node]:
        """The mask and its blocks for :func:`attention_calls.masked`, computed once, after the mask."""
        if mask not in self.blocks:
            self.blocks[mask] = attention_calls.mask_blocks(self.module, mask, like)
        return self.blocks[mask]


def _set(node: Node, mask: Node | None, causal: bool) -> None:
    kwargs = dict(node.kwargs)
    kwargs.update(zip(("dropout_p", "is_causal"), node.args[4:]))
    node.args = node.args[:3]
    node.kwargs = {**kwargs, "attn_mask": mask, "is_causal": causal}


def _erase(module: GraphModule, node: Node) -> None:
    """Erases the pure calls that only ``node`` used."""
    left = [node]
    while left:
        n = left.pop()
        if n.op in ("call_function", "call_method") and not n.users and not n._erased and index_expressions.has_rule(n):
            left += n.all_input_nodes
            module.graph.erase_node(n)


# ---- masks evaluated at compile time


def _computed(module: GraphModule, mask: Node, value: torch.Tensor, queries: Any, keys: Any) -> MaskPattern | None:
    """The pattern of a constant boolean mask, by its values; None for other masks, and for those that hide something
    and are not causal."""
    sizes = all(isinstance(n, int) for n in (*value.shape, queries, keys))
    if value.dtype != torch.bool or value.dim() < 2 or not sizes or value.numel() > _LARGEST:
        return None
    needed: dict[Node, None] = {}
    left = [mask]
    while left:
        node = left.pop()
        if node in needed:
            continue
        if node.op not in ("call_function", "call_method") or not purity.is_function(node, module):
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
    except Exception:  # a mask that cannot be evaluated here stays
        return None
    return _pattern_of_values(values[mask])


def _pattern_of_values(shown: Any) -> MaskPattern | None:
    if not isinstance(shown, torch.Tensor):
        return None
    queries, keys = (sympy.Integer(n) for n in shown.shape[-2:])
    if bool(shown.all()):
        return MaskPattern(queries, keys)
    if queries == keys and torch.equal(shown, torch.ones_like(shown).tril()):
        return MaskPattern(queries, keys, sympy.Integer(0))
    return None


@contextlib.contextmanager
def kernels_of_eager() -> Iterator[None]:
    """A context in which attention is traced to the kernels that eager selects among the enabled ones: cuDNN first
    where eager prefers it, else flash. cuDNN always precedes the remaining kernels: with a mask they take three times
    as long."""
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
    """Whether eager ranks cuDNN before flash kernels (``check_prefer_cudnn_attention`` in torch's ``sdp_utils.cpp``):
    on Hopper and Blackwell from cuDNN 9.15 on, unless the user's settings differ."""
    deprioritized = os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED", "0") == "1"
    recent = (torch.backends.cudnn.version() or 0) >= 91500
    return recent and not deprioritized and torch.cuda.get_device_capability() in ((9, 0), (10, 0))
