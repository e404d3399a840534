"""The table of ATen ops that are decomposed while AOTAutograd traces, chosen op by op.

It extends torch's core list: norms, softmax, losses and their gradients become primitives that the schedulers fuse and
the partitioner can cut anywhere. Ops with a better kernel in torch than a chain of index arithmetic stay composite:
attention, padding by repeated elements, scatters, embedding's gradient.

On a GPU a convolution's bias is added by the following kernel, and its gradient summed by the preceding one: torch has
separate kernels for both, which read the whole result again. On a CPU the library's convolution adds the bias itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from mlirfuse.frontend.torch.aot import norms
from mlirfuse.frontend.torch.as_eager import eager_strides, refusals, value_checks, view_scatters
from mlirfuse.frontend.torch.fx import layouts
from mlirfuse.frontend.torch.fx.sizes import is_empty
from mlirfuse.frontend.torch.ops.rules import RULES, VIEWS
from mlirfuse.frontend.torch.rewrites import pool_gradients, pools, random
from mlirfuse.frontend.torch.rewrites.matmul_epilogues import PRODUCTS
from mlirfuse.frontend.torch.torch_private import (
    core_aten_decompositions,
    decomposition_table,
    disable_current_modes,
    get_decompositions,
    statically_known_true,
)

aten = torch.ops.aten

_ALSO_DECOMPOSED = [
    aten.native_layer_norm,
    aten.native_group_norm,
    aten.native_batch_norm,
    aten._native_batch_norm_legit,
    aten._native_batch_norm_legit_no_training,
    aten._native_batch_norm_legit_functional,
    aten._batch_norm_with_update_functional,
    aten._batch_norm_no_update,
    aten.batch_norm_backward,
    aten.linalg_vector_norm,
    aten.dist,
    aten.hardtanh,
    aten.addmv,
    aten.grid_sampler_2d,
]
_NOT_DECOMPOSED = {
    "aten._scaled_dot_product_flash_attention_for_cpu",
    "aten._unsafe_index",
    "aten._unsafe_index_put",
    "aten._unsafe_masked_index",
    "aten._unsafe_masked_index_put_accumulate",
    "aten._unsafe_view",
    "aten.addcdiv",
    "aten.addcmul",
    "aten.affine_grid_generator",
    "aten.baddbmm",
    "aten.cdist",
    "aten.clamp_max",
    "aten.clamp_min",
    "aten.col2im",
    "aten.cudnn_batch_norm",
    "aten.detach",
    "aten.embedding_dense_backward",
    "aten.floor_divide",
    "aten.frac",
    "aten.grid_sampler_2d",
    "aten.im2col",
    "aten.index_add",
    "aten.index_copy",
    "aten.index_fill",  # torch's own takes no negative indices
    "aten.isfinite",
    "aten.isneginf",
    "aten.isposinf",
    "aten.linspace",
    "aten.logaddexp",
    "aten.logaddexp2",
    "aten.masked_fill",
    "aten.max_unpool2d",
    "aten.max_unpool3d",
    "aten.mv",
    "aten.dot",
    "aten.reflection_pad1d",
    "aten.reflection_pad1d_backward",
    "aten.reflection_pad2d",
    "aten.reflection_pad2d_backward",
    "aten.reflection_pad3d",
    "aten.reflection_pad3d_backward",
    "aten.renorm",
    "aten.replication_pad1d",
    "aten.replication_pad2d",
    "aten.replication_pad3d",
    "aten.roll",
    "aten.rsub",
    "aten.select_scatter",
    "aten.slice_scatter",
    "aten.soft_margin_loss_backward",  # 1 - sigmoid(x) cancels
    "aten.squeeze",
    "aten.sum",
    "aten.transpose",
    "aten.t",
    "aten.unbind",
    "aten.unfold_backward",
    "aten.vdot",
}


def _on_gpu(x: torch.Tensor) -> bool:
    return x.device.type == "cuda"


def _convolution(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *how: Any) -> Any:
    if bias is None or not _on_gpu(x):
        return NotImplemented
    return aten.convolution(x, weight, None, *how) + bias.view(-1, *[1] * (weight.dim() - 2))


def _convolution_backward(grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, *how: Any) -> Any:
    *sizes, mask = how
    if not mask[2] or not _on_gpu(grad):
        return NotImplemented
    bias = grad.sum([0, *range(2, grad.dim())])
    if not any(mask[:2]):
        return None, None, bias
    return *aten.convolution_backward(grad, x, weight, *sizes, [*mask[:2], False])[:2], bias


def _copy(x: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """The source of a slice assignment; it is inserted into its tensor next, as no kernel gives results with gaps in
    memory."""
    if layouts.memory_order(x) is not None or source.device != x.device or _owns_memory(x):
        return NotImplemented
    return source.to(x.dtype).expand(x.shape).clone(memory_format=torch.contiguous_format)


def _owns_memory(x: torch.Tensor) -> bool:
    """Whether ``x`` covers all of its storage, gaps included: the user sees its strides."""
    with disable_current_modes():  # the trace cannot record a product of more than two symbols, as this size is
        span = 1 + sum((n - 1) * stride for n, stride in zip(x.shape, x.stride()))
        return statically_known_true(x.untyped_storage().nbytes() == span * x.element_size())


def _softplus(x: torch.Tensor, beta: float = 1, threshold: float = 20) -> torch.Tensor:
    """By ``logaddexp`` with 0, a polynomial of one exponential; torch's own needs a full logarithm."""
    if not x.dtype.is_floating_point:
        return NotImplemented
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    scaled = wide if beta == 1 else wide * beta
    found = aten.logaddexp(scaled, scaled.new_zeros(()))
    return torch.where(scaled > threshold, wide, found if beta == 1 else found / beta).to(x.dtype)


def _native_dropout_backward(gradient: torch.Tensor, kept: torch.Tensor, scale: float) -> torch.Tensor:
    """In the gradient's memory order, as eager's on a CPU; torch's own is row-major, as eager's on a GPU."""
    created = gradient * (kept.type_as(gradient) * scale)
    return created if gradient.device.type == "cpu" else created.contiguous()


def _isin(elements: torch.Tensor, tests: torch.Tensor, **how: Any) -> torch.Tensor:
    """torch's decomposition; not where that searches a sorted tensor of floats, as it finds no infinity beside NaN."""
    few = not elements.dtype.is_floating_point or tests.numel() < 10.0 * pow(elements.numel(), 0.145)
    return decomposition_table[aten.isin.Tensor_Tensor](elements, tests, **how) if few else NotImplemented


def _smooth_l1_loss_backward(grad: torch.Tensor, x: torch.Tensor, target: torch.Tensor, reduction: int,
                             beta: float) -> torch.Tensor:  # fmt: skip
    """torch's own takes the sign of the error, which is 0 for NaN: the loss would be NaN and its gradient 0."""
    wide = torch.promote_types(x.dtype, torch.float32)
    error = x.to(wide) - target.to(wide)
    grad = grad.to(wide) / x.numel() if reduction == 1 else grad.to(wide)  # 1: the mean
    inside = grad * error / beta if beta else error
    return torch.where(error <= -beta, -grad, torch.where(error >= beta, grad, inside)).to(x.dtype)


def _logit_backward(grad: torch.Tensor, x: torch.Tensor, eps: float | None = None) -> torch.Tensor:
    """torch's own gives 0 at NaN."""
    inside = decomposition_table[aten.logit_backward.default](grad, x)
    return inside if eps is None or eps < 0 else torch.where((x < eps) | (x > 1 - eps), 0.0, inside)


def _threshold(x: torch.Tensor, threshold: float, value: float) -> torch.Tensor:
    """As eager's kernels, which cast both numbers to the type of integers first: -1.5 is -1."""
    if not x.dtype.is_floating_point:
        threshold, value = int(threshold), int(value)
    return torch.where(x <= threshold, x.new_full((), value), x)


def _vector_norm(x: torch.Tensor, ord: Any = 2, dim: Any = None, keepdim: bool = False, *,
                 dtype: Any = None) -> torch.Tensor:  # fmt: skip
    """torch 2.11's own keeps a dimension of extent 1 that is counted from the end."""
    if dim is not None:
        dim = [d % max(x.dim(), 1) for d in ([dim] if isinstance(dim, int) else dim)]
    return decomposition_table[aten.linalg_vector_norm.default](x, ord, dim, keepdim, dtype=dtype)


def _unless(op: Any, refused: Callable[[torch.Tensor], bool]) -> Callable[..., Any]:
    """The decomposition of ``op``, but for tensors that it refuses and eager takes."""

    def decomposed(x: torch.Tensor, *how: Any, **named: Any) -> Any:
        return NotImplemented if refused(x) else decomposition_table[op](x, *how, **named)

    return decomposed


_CONVOLUTIONS = {
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
}


class Table(Mapping[Any, Callable[..., Any]]):
    """A mapping from overload to decomposition, built on first use, as cached graphs need none. ``random``: use this
    back end's random numbers, else eager's."""

    def __init__(self, random: bool = True):
        self._random = random

    @functools.cached_property
    def _found(self) -> dict[Any, Callable[..., Any]]:
        found = _table()
        if self._random:
            return found
        ours = {**random.DECOMPOSITIONS, **value_checks.RANDOM}
        return {op: f for op, f in found.items() if op not in ours}

    def __getitem__(self, op: Any) -> Callable[..., Any]:
        return self._found[op]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


@functools.cache
def _table() -> dict[Any, Callable[..., Any]]:
    found = {**core_aten_decompositions(), **get_decompositions(_ALSO_DECOMPOSED)}
    found = {op: f for op, f in found.items() if str(getattr(op, "_overloadpacket", op)) not in _NOT_DECOMPOSED}
    found |= {
        **_CONVOLUTIONS,
        aten.copy.default: _copy,
        aten.softplus.default: _softplus,
        aten.threshold.default: _threshold,
        aten.linalg_vector_norm.default: _vector_norm,
        aten.logit_backward.default: _logit_backward,
        aten.isin.Tensor_Tensor: _isin,
        aten.native_dropout_backward.default: _native_dropout_backward,
        aten.smooth_l1_loss_backward.default: _smooth_l1_loss_backward,
        # Without elements, a softmax takes types that have no maximum.
        **{op: _unless(op, is_empty) for op in (aten._softmax.default, aten._log_softmax.default)},
        aten.nan_to_num.default: _unless(aten.nan_to_num.default, torch.is_complex),
        **norms.DECOMPOSITIONS,
        **pool_gradients.DECOMPOSITIONS,
        **pools.DECOMPOSITIONS,
        **value_checks.DECOMPOSITIONS,
        **view_scatters.DECOMPOSITIONS,
        **random.DECOMPOSITIONS,
        **value_checks.RANDOM,
    }
    created = {op: refusals.unless_refused(op, eager_strides.as_eager(op, f)) for op, f in found.items()}
    return {
        **created,
        **{op: eager_strides.as_eager(op, None) for op in _undecomposed_overloads() if op not in created},
    }


def _undecomposed_overloads() -> Iterator[Any]:
    """ATen's overloads that are not decomposed and have rules, without views and products, which are contiguous."""
    products = [str(op) for op in PRODUCTS]
    for name in RULES:
        if name.startswith("aten.") and name not in VIEWS and name not in products:
            _, packet, overload = name.split(".")
            found = getattr(getattr(aten, packet, None), overload, None)
            if found is not None:
                yield found
