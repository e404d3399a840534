"""Attention with a mask whose hidden blocks are skipped: an op that runs by flex attention's template.

``mask_blocks`` finds on the device which blocks of a boolean mask are hidden, visible or mixed, so no value is read
back and CUDA graphs capture it. The template skips hidden blocks and reads the mask in mixed ones alone. Where the
template does not compile, the ops run as ``scaled_dot_product_attention`` with that mask.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import BlockMask
from torch.utils import flop_counter

from mlirfuse.frontend.torch.attention import flex_attention, inductor_calls
from mlirfuse.frontend.torch.torch_private import statically_known_true

BLOCK = 128  # rows and columns of a mask's block
_library = torch.library.Library("mlirfuse", "FRAGMENT")
_library.define("mask_blocks(Tensor mask, SymInt queries, SymInt keys) -> Tensor[]")
_library.define(
    "masked_attention(Tensor query, Tensor key, Tensor value, Tensor[] mask, float scale) -> (Tensor, Tensor)"
)
_library.define(
    "masked_attention_backward(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor out, Tensor logsumexp, "
    "Tensor[] mask, float scale) -> (Tensor, Tensor, Tensor)"
)
MASK_BLOCKS = torch.ops.mlirfuse.mask_blocks.default
FORWARD = torch.ops.mlirfuse.masked_attention.default
BACKWARD = torch.ops.mlirfuse.masked_attention_backward.default
_INSTEAD = "attention runs with its mask as a tensor"


def _mask_blocks(mask: torch.Tensor, queries: int, keys: int) -> list[torch.Tensor]:
    """A boolean mask, or an additive one of 0 and -inf, that broadcasts to ``(batches, heads, queries, keys)``, as a
    boolean one whose broadcast batches and heads have extent 1, and the tensors of its :class:`BlockMask` in the
    constructor's order. ``queries``, ``keys``: -1 for those of the mask."""
    seen = mask if mask.dtype is torch.bool else mask == 0
    seen = seen[(None,) * (4 - seen.dim())].expand(-1, -1, queries, keys)
    for axis in range(2):
        if statically_known_true(seen.stride(axis) == 0):
            seen = seen.narrow(axis, 0, 1)
    padded = _padded(_padded(seen, 2), 3)
    batches, heads, rows, columns = padded.shape
    blocks = padded.reshape(batches, heads, rows // BLOCK, BLOCK, columns // BLOCK, BLOCK)
    visible = blocks.sum((3, 5), dtype=torch.int32)
    full = visible == BLOCK * BLOCK
    mixed = (visible > 0) & ~full
    by_rows = [x for blocks in (mixed, full) for x in _ordered(blocks)]
    by_columns = [x for blocks in (mixed, full) for x in _ordered(blocks.mT)]
    return [seen, *by_rows, *by_columns]


def _padded(seen: torch.Tensor, axis: int) -> torch.Tensor:
    """The mask with whole blocks along ``axis``: what is added is hidden. An index, which a kernel computes on the way,
    rather than a copy."""
    count = seen.shape[axis]
    if statically_known_true(count % BLOCK == 0):
        return seen
    index = torch.arange((count + BLOCK - 1) // BLOCK * BLOCK, device=seen.device)
    within = (index < count).view(*[1] * axis, -1, *[1] * (3 - axis))
    return seen.index_select(axis, index.clamp(max=count - 1)) & within


def _ordered(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """For each row the number of blocks, and the column indices, those of the blocks first."""
    flags = blocks.to(torch.int32, memory_format=torch.contiguous_format)
    order = flags.argsort(dim=-1, descending=True, stable=True)
    return flags.sum(-1, dtype=torch.int32), order.to(torch.int32)


_library.impl("mask_blocks", _mask_blocks, "CompositeImplicitAutograd")


# ---- the ops, without a template


def _dense(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Sequence[torch.Tensor],
           scale: float) -> torch.Tensor:  # fmt: skip
    gqa = query.shape[1] != key.shape[1]
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):  # cuDNN's backward: see cudnn_attention.py
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask[0], scale=scale, enable_gqa=gqa)


def _forward(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Sequence[torch.Tensor],
             scale: float) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    out, logsumexp = _fake_forward(query, key, value, mask, scale)
    out.copy_(_dense(query, key, value, mask, scale))
    return out, logsumexp.zero_()


def _fake_forward(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Sequence[torch.Tensor],
                  scale: float) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    out = query.new_empty((*query.shape[:3], value.shape[-1]))
    if statically_known_true(query.stride(1) < query.stride(2)):  # heads inside of a token: so is the result
        out = query.new_empty((query.shape[0], query.shape[2], query.shape[1], value.shape[-1])).transpose(1, 2)
    return out, query.new_empty(query.shape[:3], dtype=torch.float32)


def _backward(grad: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, out: torch.Tensor,
              logsumexp: torch.Tensor, mask: Sequence[torch.Tensor], scale: float
              ) -> tuple[torch.Tensor, ...]:  # fmt: skip
    with torch.enable_grad():
        given = [x.detach().requires_grad_() for x in (query, key, value)]
        found = torch.autograd.grad(_dense(given[0], given[1], given[2], mask, scale), given, grad)
    return tuple(torch.empty_like(x).copy_(g) for x, g in zip((query, key, value), found))


def _fake_backward(grad: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                   *_: Any) -> tuple[torch.Tensor, ...]:  # fmt: skip
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


for _device in ("CPU", "CUDA"):
    _library.impl("masked_attention", _forward, _device)
    _library.impl("masked_attention_backward", _backward, _device)
torch.library.register_fake("mlirfuse::masked_attention", _fake_forward, lib=_library)
torch.library.register_fake("mlirfuse::masked_attention_backward", _fake_backward, lib=_library)


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    query, key, value, mask, ctx.scale = inputs
    ctx.save_for_backward(query, key, value, *output, *mask)
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, grad: torch.Tensor | None, _: Any) -> Any:
    if grad is None:
        return None, None, None, None, None
    query, key, value, out, logsumexp, *mask = ctx.saved_tensors
    found = BACKWARD(grad, query, key, value, out, logsumexp, mask, ctx.scale)
    return *found, [None] * len(mask), None


torch.library.register_autograd("mlirfuse::masked_attention", _gradients, setup_context=_save, lib=_library)


@flop_counter.register_flop_formula(torch.ops.mlirfuse.masked_attention)
def _flops(query: Any, key: Any, value: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
    """Operations without a mask: an upper bound."""
    batches, heads, queries, features = query
    return 2 * batches * heads * queries * key[2] * (features + value[3])


@flop_counter.register_flop_formula(torch.ops.mlirfuse.masked_attention_backward)
def _backward_flops(grad: Any, *given: Any, out_shape: Any = None, **_: Any) -> int:
    return 5 * _flops(*given[:3]) // 2


# ---- by the template


def _seen(batch: Any, head: Any, query: Any, key: Any, mask: torch.Tensor) -> torch.Tensor:
    """The mask's value, for flex attention; extents of 1 are broadcast."""
    return mask[batch if mask.shape[0] > 1 else batch * 0, head if mask.shape[1] > 1 else head * 0, query, key]


def _flex(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Sequence[torch.Tensor],
          scale: float) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """The result, and the logsumexp of each row's scores."""
    seen, *blocks = mask
    block_mask = BlockMask((query.shape[2], key.shape[2]), *blocks, BLOCK_SIZE=(BLOCK, BLOCK), mask_mod=_seen)
    options = dict.fromkeys(("PRESCALE_QK", "ROWS_GUARANTEED_SAFE", "BLOCKS_ARE_CONTIGUOUS", "OUTPUT_MAX"), False)
    options |= {"WRITE_DQ": True, "OUTPUT_LOGSUMEXP": True}
    out, logsumexp, *_ = flex_attention.FORWARD(
        query, key, value, _same_score, block_mask.as_tuple(), scale, options, (), (seen,)
    )
    return out, logsumexp


def _same_score(score: torch.Tensor, *_: Any) -> torch.Tensor:
    return score


def _on_cpu(node: Node) -> bool:
    return node.meta["val"][0].device.type == "cpu"  # no template gives what the backward needs


def _forward_alone(node: Node, module: GraphModule) -> inductor_calls.Alone | None:
    if _on_cpu(node):
        return None
    query, key, value, mask, scale = node.args
    inputs = [query, key, value, *mask]

    def forward(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *mask: torch.Tensor) -> Any:
        return _flex(query, key, value, mask, scale)

    return _alone(forward, inputs, [x.meta["val"] for x in inputs], node.meta["val"])


def _backward_alone(node: Node, module: GraphModule) -> inductor_calls.Alone | None:
    if _on_cpu(node):
        return None
    grad, query, key, value, out, logsumexp, mask, scale = node.args
    inputs = [grad, query, key, value, out, logsumexp, *mask]
    fakes = [x.meta["val"] for x in inputs]
    fakes[1:4] = [x.detach().requires_grad_() for x in fakes[1:4]]

    def backward(grad: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, out: torch.Tensor,
                 logsumexp: torch.Tensor, *mask: torch.Tensor) -> Any:  # fmt: skip
        with torch.enable_grad():
            found, _ = _flex(query, key, value, mask, scale)
            return torch.autograd.grad(found, (query, key, value), grad)

    alone = _alone(backward, inputs, fakes, node.meta["val"])
    _use_results(alone.module)
    return alone


def _use_results(module: GraphModule) -> None:
    """Replaces the forward that the trace of a backward repeats by its results, which are inputs."""
    (call,) = module.graph.find_nodes(op="call_function", target=flex_attention.FORWARD)
    given = module.graph.find_nodes(op="placeholder")[4:6]
    for part in list(call.users):
        if part.args[1] < 2:
            part.replace_all_uses_with(given[part.args[1]])
        module.graph.erase_node(part)
    module.graph.erase_node(call)
    module.recompile()


def _alone(
    function: Callable[..., Any], inputs: list[Any], fakes: list[Any], results: Sequence[Any]
) -> inductor_calls.Alone:
    traced = inductor_calls.traced(function, fakes)
    traced.graph.eliminate_dead_code()
    (outputs,) = traced.graph.output_node().args
    for node, fake in zip(outputs, results):
        node.meta["val"] = fake
    traced.graph.output_node().meta["user_visible_output_idxs"] = list(range(len(outputs)))  # with the fakes' strides
    return inductor_calls.Alone(traced, inputs, list(range(len(outputs))), _INSTEAD)


inductor_calls.GRAPHS |= {FORWARD: _forward_alone, BACKWARD: _backward_alone}
