"""Cross entropy of a linear layer without materializing all logits: a loop over chunks of rows.

Logits of 8192 rows × 128256 words take 2 GiB in bfloat16, and their gradient as much. Here only one chunk is in memory
at a time, in forward and backward.

``linear_loss`` returns a scalar: its forward computes the gradients for an upstream gradient of 1, chunk by chunk, and
the backward scales them. ``linear_rows`` returns the per-row terms of any loss, and recomputes the logits in the
backward. Weight gradients accumulate in float32 at least.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch

ROWS = 2048  # of a chunk; from about 1200 on, the product hides the read of its accumulator on an H100
MIN_COMPILED = 1 << 16  # elements of the smallest chunk for which kernels are compiled


def chunks(rows: int) -> Iterator[tuple[int, int]]:
    """(start, end) of each chunk of rows."""
    count = max(1, -(-rows // ROWS))
    size = -(-rows // count) if rows else 1
    return ((at, min(at + size, rows)) for at in range(0, rows, size))


# ---- transforms of logits before the loss: ``float32;div 30.0;tanh;mul 30.0``


def parsed(transforms: str) -> list[tuple[str, float]]:
    """The transforms as (name, number)."""
    return [(name, float(number or 0)) for name, _, number in (s.partition(" ") for s in transforms.split(";") if s)]


def _transformed(x: torch.Tensor, transforms: str) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """``x`` in float32 at least after the transforms, and the result of each ``tanh``."""
    y, kept = x.to(_wide(x.dtype)), []
    for name, number in parsed(transforms):
        if name == "tanh":
            y = y.tanh()
            kept.append(y)
        else:
            y = y * number if name == "mul" else y / number
    return y, kept


def _transforms_backward(d: torch.Tensor, transforms: str, kept: list[torch.Tensor]) -> torch.Tensor:
    """The gradient with respect to the transforms' input, from ``d`` with respect to their output."""
    left = list(kept)
    for name, number in reversed(parsed(transforms)):
        if name == "tanh":
            y = left.pop()
            d = d * (1 - y * y)
        else:
            d = d * number if name == "mul" else d / number
    return d


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype is torch.float64 else torch.float32


# ---- one chunk


def _rows_of(logits: torch.Tensor, target: torch.Tensor, transforms: str) -> torch.Tensor:
    """For each row the logsumexp, the target's logit and the sum of logits: 3 × rows."""
    y, _ = _transformed(logits, transforms)
    picked, _ = _transformed(logits.gather(1, target[:, None])[:, 0], transforms)
    return torch.stack([torch.logsumexp(y, 1), picked, y.sum(1)])


def _gradient_of(logits: torch.Tensor, target: torch.Tensor, lse: torch.Tensor, factors: torch.Tensor, transforms: str
                 ) -> torch.Tensor:  # fmt: skip
    """The gradient of logits; ``factors``: the gradients of :func:`_rows_of`'s results, 3 × rows."""
    y, kept = _transformed(logits, transforms)
    words = torch.arange(y.shape[1], device=y.device)
    here = words[None, :] == target[:, None]
    d = (y - lse[:, None]).exp() * factors[0][:, None] + torch.where(here, factors[1][:, None], 0) + factors[2][:, None]
    return _transforms_backward(d, transforms, kept).to(logits.dtype)


def _rows_and_gradient(logits: torch.Tensor, target: torch.Tensor, factors: torch.Tensor, transforms: str
                       ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    rows = _rows_of(logits, target, transforms)
    return rows, _gradient_of(logits, target, rows[0], factors, transforms)


@functools.cache
def _compiled(function: Any) -> Any:
    return torch.compile(function, backend="mlirfuse")


def _fused(function: Any, logits: torch.Tensor, *args: Any) -> Any:
    """``function`` compiled by this back end: run op by op, it would hold several float32 copies of a chunk."""
    return (_compiled(function) if logits.numel() >= MIN_COMPILED else function)(logits, *args)


def _logits(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return torch.nn.functional.linear(x, weight, bias)


class _Sums:
    """Accumulates gradients of x, weight and bias over chunks; ``needs``: which of them."""

    def __init__(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, needs: list[bool]):
        wide = _wide(weight.dtype)
        self.x = torch.empty_like(x) if needs[0] else None
        self.weight = torch.zeros(weight.shape, dtype=wide, device=x.device) if needs[1] else None
        bias_is_needed = needs[2] and bias is not None
        self.bias = torch.zeros(weight.shape[0], dtype=wide, device=x.device) if bias_is_needed else None

    def add(self, a: int, b: int, d: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> None:
        """Adds the gradient ``d`` of the logits of rows ``a`` to ``b``, whose inputs are ``x``."""
        if self.x is not None:
            self.x[a:b] = d @ weight
        if self.weight is not None:
            _add_product(self.weight, d.t(), x)
        if self.bias is not None:
            self.bias += d.sum(0, dtype=self.bias.dtype)

    def results(self, like: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> list[torch.Tensor]:
        """The three gradients in their tensors' dtypes; an empty tensor where not needed."""
        none = like.new_empty(0)
        given = zip((self.x, self.weight, self.bias), (like, weight, bias))
        return [none.clone() if g is None or t is None else g.to(t.dtype) for g, t in given]


def _add_product(total: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    """``total += a @ b``, accumulated in the dtype of ``total``."""
    if a.dtype is total.dtype:
        total.addmm_(a, b)
    elif a.device.type == "cuda":
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
    else:
        total += a.to(total.dtype) @ b.to(total.dtype)


# ---- the ops


@torch.library.custom_op("mlirfuse::linear_loss", mutates_args=())
def linear_loss(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, target: torch.Tensor,
                factors: torch.Tensor, smoothing: float, transforms: str, dtype: torch.dtype, needs: list[bool]
                ) -> list[torch.Tensor]:  # fmt: skip
    """Σ factors[n] · (cross entropy of row n), and its gradients with respect to x (rows × features), weight (words ×
    features) and bias. The product is computed in ``dtype``; ``transforms``: of the logits before the loss."""
    w, b = weight.to(dtype), None if bias is None else bias.to(dtype)
    words, sums = weight.shape[0], _Sums(x, weight, bias, needs)
    loss = torch.zeros((), dtype=_wide(dtype), device=x.device)
    for first, end in chunks(x.shape[0]):
        part, words_of, f = x[first:end].to(dtype), target[first:end], factors[first:end].to(loss.dtype)
        logits = _logits(part, w, b)
        each = torch.stack([f, -(1 - smoothing) * f, -(smoothing / words) * f])
        if any(needs):
            rows, d = _fused(_rows_and_gradient, logits, words_of, each, transforms)
            sums.add(first, end, d, part, w)
            del d
        else:
            rows = _fused(_rows_of, logits, words_of, transforms)
        loss += torch.where(f == 0, 0, rows * each).sum()
        del logits
    return [loss, *sums.results(x, weight, bias)]


@linear_loss.register_fake
def _(x, weight, bias, target, factors, smoothing, transforms, dtype, needs):
    none = x.new_empty(0)
    given = [
        torch.empty_like(t) if t is not None and need else none.clone() for t, need in zip((x, weight, bias), needs)
    ]
    return [x.new_empty((), dtype=_wide(dtype)), *given]


def _keep_gradients(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.set_materialize_grads(False)
    ctx.needs = inputs[-1]
    ctx.save_for_backward(*output[1:])


def _times_gradients(ctx: Any, grads: list[torch.Tensor | None]) -> Any:
    g = grads[0]
    found = [
        x * g.to(_wide(x.dtype)) if need and g is not None and x.numel() else None
        for x, need in zip(ctx.saved_tensors, ctx.needs)
    ]
    found = [f if f is None else f.to(x.dtype) for f, x in zip(found, ctx.saved_tensors)]
    return (*found, None, None, None, None, None, None)


linear_loss.register_autograd(_times_gradients, setup_context=_keep_gradients)


@torch.library.custom_op("mlirfuse::linear_rows", mutates_args=())
def linear_rows(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, target: torch.Tensor, transforms: str,
                dtype: torch.dtype, needs: list[bool]) -> torch.Tensor:  # fmt: skip
    """For each row of logits the logsumexp, the target's logit and the sum of logits: 3 × rows."""
    w, b = weight.to(dtype), None if bias is None else bias.to(dtype)
    found = torch.empty((3, x.shape[0]), dtype=_wide(dtype), device=x.device)
    for first, end in chunks(x.shape[0]):
        logits = _logits(x[first:end].to(dtype), w, b)
        found[:, first:end] = _fused(_rows_of, logits, target[first:end], transforms)
    return found


@linear_rows.register_fake
def _(x, weight, bias, target, transforms, dtype, needs):
    return x.new_empty((3, x.shape[0]), dtype=_wide(dtype))


@torch.library.custom_op("mlirfuse::linear_rows_backward", mutates_args=())
def linear_rows_backward(grad: torch.Tensor, rows: torch.Tensor, x: torch.Tensor, weight: torch.Tensor,
                         bias: torch.Tensor | None, target: torch.Tensor, transforms: str, dtype: torch.dtype,
                         needs: list[bool]) -> list[torch.Tensor]:  # fmt: skip
    """The gradients of x, weight and bias; ``rows``: the result of :func:`linear_rows`, ``grad``: its gradient."""
    w, b = weight.to(dtype), None if bias is None else bias.to(dtype)
    sums = _Sums(x, weight, bias, needs)
    for first, end in chunks(x.shape[0]):
        part, words_of = x[first:end].to(dtype), target[first:end]
        logits = _logits(part, w, b)
        d = _fused(_gradient_of, logits, words_of, rows[0, first:end], grad[:, first:end], transforms)
        sums.add(first, end, d, part, w)
        del logits, d
    return sums.results(x, weight, bias)


@linear_rows_backward.register_fake
def _(grad, rows, x, weight, bias, target, transforms, dtype, needs):
    none = x.new_empty(0)
    return [
        torch.empty_like(t) if t is not None and need else none.clone() for t, need in zip((x, weight, bias), needs)
    ]


def _keep_operands(ctx: Any, inputs: Any, output: Any) -> None:
    x, weight, bias, target, ctx.transforms, ctx.dtype, ctx.needs = inputs
    ctx.save_for_backward(output, x, weight, bias, target)


def _rows_backward(ctx: Any, grad: torch.Tensor) -> Any:
    found = linear_rows_backward(grad, *ctx.saved_tensors, ctx.transforms, ctx.dtype, ctx.needs)
    return (*(g if need else None for g, need in zip(found, ctx.needs)), None, None, None, None)


linear_rows.register_autograd(_rows_backward, setup_context=_keep_operands)
