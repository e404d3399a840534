"""Cross entropy of a linear layer without materializing all logits: loops over chunks of rows and blocks of words.

Logits of 8192 rows × 128256 words take 2 GiB in bfloat16, and their gradient as much. Here a chunk of logits is in
memory at a time, and its gradient is written over it.

``linear_loss`` returns a scalar: its forward computes the gradients for an upstream gradient of 1, and the backward
scales them. If all rows' logits fit into the memory of the weight gradient, they are one chunk, stored there: each
block of logits is overwritten by its words' gradients, and one block of the logits' gradient lies beside it.
``linear_rows`` returns the per-row terms of any loss, and recomputes the logits in the backward, block by block.

Gradients accumulate in float32 at least; of 16-bit weights, over several chunks, as the sum of two 16-bit numbers.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch

from mlirfuse.frontend.torch.torch_private import assert_async

ROWS = 2048  # of a chunk; from about 1200 on, the product hides the read of its accumulator on an H100
BLOCK_BYTES = 256 << 20  # of a block of the logits' gradient, about
MIN_WORDS = 1024  # of a block
MIN_COMPILED = 1 << 16  # elements of the smallest block for which kernels are compiled


class Plan(NamedTuple):
    """``rows`` of a chunk, ``words`` of a block; ``shared``: logits are stored in the weight gradient's memory."""

    rows: int
    words: int
    shared: bool

    @staticmethod
    def of(rows: int, words: int, features: int, itemsize: int, gradient: int) -> Plan:
        """The plan of a scalar loss. ``itemsize``: bytes of a logit; ``gradient``: bytes of an element of the weight
        gradient, 0 where that is not needed."""
        shared = 0 < rows * itemsize <= features * gradient and gradient % itemsize == 0
        chunk = rows if shared else _even(rows, ROWS)
        return Plan(chunk, words_of_block(chunk, words, itemsize), shared)

    def bytes_of(self, rows: int, words: int, features: int, itemsize: int, gradient: int) -> int:
        """The bytes that a plan for these sizes takes beside operands and gradients."""
        logits = 0 if self.words >= words and self.shared else self.rows * itemsize
        logits *= self.words if self.shared else words
        rest = words * features * gradient if gradient == 2 and rows > self.rows else 0
        return logits + rest


def _even(count: int, most: int, multiple: int = 1) -> int:
    """The size of equal parts of ``count``, at most ``most``, in multiples of ``multiple``."""
    size = ceildiv(count, max(1, ceildiv(count, most)))
    return max(1, ceildiv(size, multiple) * multiple)


def ceildiv(a: int, b: int) -> int:
    return -(-a // b)


def words_of_block(rows: int, words: int, itemsize: int) -> int:
    """The words of a block for a chunk of ``rows``."""
    return _even(words, max(MIN_WORDS, BLOCK_BYTES // (max(1, rows) * itemsize)), 128)


def parts(count: int, size: int) -> list[tuple[int, int]]:
    """(start, end) of each part of ``count``."""
    return [(at, min(at + size, count)) for at in range(0, count, size)]


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


# ---- one block: the logits of a chunk's rows and of some words


def _rows_of(logits: torch.Tensor, target: torch.Tensor, transforms: str) -> torch.Tensor:
    """For each row the logsumexp, the target's logit (0 if it is not among these words) and the sum of logits: 3 ×
    rows."""
    y, _ = _transformed(logits, transforms)
    words = logits.shape[1]
    picked, _ = _transformed(logits.gather(1, target.clamp(0, words - 1)[:, None])[:, 0], transforms)
    picked = torch.where((target >= 0) & (target < words), picked, 0)
    return torch.stack([torch.logsumexp(y, 1), picked, y.sum(1)])


def _normalizers(lse: torch.Tensor) -> torch.Tensor:
    """What a softmax subtracts from each row, by its logsumexp: NaN where that is infinite, from inf - inf."""
    return lse * torch.where(lse.isinf(), torch.nan, 1.0)


def _gradient_of(logits: torch.Tensor, target: torch.Tensor, lse: torch.Tensor, factors: torch.Tensor, transforms: str
                 ) -> torch.Tensor:  # fmt: skip
    """The gradient of logits; ``factors``: the gradients of :func:`_rows_of`'s results, 3 × rows."""
    y, kept = _transformed(logits, transforms)
    words = torch.arange(y.shape[1], device=y.device)
    here = words[None, :] == target[:, None]
    d = (y - lse[:, None]).exp() * factors[0][:, None] + torch.where(here, factors[1][:, None], 0) + factors[2][:, None]
    return _transforms_backward(d, transforms, kept).to(logits.dtype)


def _overwrite_by_gradient(logits: torch.Tensor, *args: Any) -> None:
    """Writes :func:`_gradient_of` over ``logits``."""
    logits.copy_(_gradient_of(logits, *args))


def _add_to_pair(high: torch.Tensor, low: torch.Tensor, x: torch.Tensor) -> None:
    """``high + low += x``, both 16-bit: the error of an addition is at most 2⁻¹⁸ of the sum (float16: 2⁻²⁴)."""
    total = high.to(x.dtype) + low.to(x.dtype) + x
    rounded = total.to(high.dtype)
    low.copy_(total - rounded.to(x.dtype))
    high.copy_(rounded)


@functools.cache
def _compiled(function: Any) -> Any:
    return torch.compile(function, backend="mlirfuse")


def _fused(function: Any, logits: torch.Tensor, *args: Any) -> Any:
    """``function`` compiled by this back end: run op by op, it would hold several float32 copies of a block."""
    return (_compiled(function) if logits.numel() >= MIN_COMPILED else function)(logits, *args)


def _checked(target: torch.Tensor, words: int) -> torch.Tensor:
    """``target``. A label that is no word is an error, on a GPU an assertion of the device, as in eager."""
    assert_async(((target >= 0) & (target < words)).all(), "cross entropy: a label is out of bounds")
    return target


# ---- operands and gradients


class _Weights:
    """Blocks of weight and bias in ``dtype``. ``whole``: the weight is cast once, not block by block."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype, whole: bool):
        self.weight, self.bias, self.dtype = weight.to(dtype) if whole else weight, bias, dtype

    def block(self, a: int, b: int) -> torch.Tensor:
        return self.weight[a:b].to(self.dtype)

    def logits(self, x: torch.Tensor, a: int, b: int, out: torch.Tensor | None = None) -> torch.Tensor:
        """The logits of words ``a`` to ``b``: rows × (b - a)."""
        w = self.block(a, b).t()
        if self.bias is None:
            return torch.mm(x, w, out=out)
        return torch.addmm(self.bias[a:b].to(self.dtype), x, w, out=out)


class _Sums:
    """Gradients of x, weight and bias, accumulated over chunks of rows and blocks of words; ``needs``: which of
    them; ``several``: there are several chunks."""

    def __init__(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, needs: list[bool],
                 several: bool = False):  # fmt: skip
        self.wide = _wide(weight.dtype)
        self.in_pairs = several and weight.dtype is not self.wide
        self.like = x, weight, bias
        self.x = x.new_empty(x.shape) if needs[0] else None
        create = weight.new_empty if len(x) and not self.in_pairs else weight.new_zeros
        self.weight = create(weight.shape) if needs[1] else None
        self.rest: torch.Tensor | None = None  # what ``weight`` is short of, where it has less than float32's bits
        bias_is_needed = needs[2] and bias is not None
        self.bias = torch.zeros(weight.shape[0], dtype=self.wide, device=x.device) if bias_is_needed else None
        self.x_sum: torch.Tensor | None = None

    def add(self, at: int, words: tuple[int, int], d: torch.Tensor, x: torch.Tensor, weights: _Weights) -> None:
        """Adds what follows from ``d``, the gradient of the logits of ``words`` and of the rows from ``at`` on; ``x``:
        these rows. Blocks of all words follow each other."""
        a, b = words
        if self.x is not None:
            if self.x_sum is None:
                self.x_sum = x.new_empty(x.shape, dtype=_wide(x.dtype))
            _product(self.x_sum, d, weights.block(a, b), a > 0)
            if b == weights.weight.shape[0]:
                self.x[at : at + len(x)] = self.x_sum
                self.x_sum = None
        if self.weight is not None:
            self._add_to_weight(at, a, d.t(), x)
        if self.bias is not None:
            self.bias[a:b] += d.sum(0, dtype=self.bias.dtype)

    def _add_to_weight(self, at: int, word: int, d: torch.Tensor, x: torch.Tensor) -> None:
        assert self.weight is not None
        if not self.in_pairs:
            _product(self.weight[word : word + len(d)], d, x, at > 0)
            return
        if self.rest is None:
            self.rest = torch.zeros_like(self.weight)
        for a, b in parts(len(d), max(1, BLOCK_BYTES // (x.shape[1] * self.wide.itemsize))):
            product = x.new_empty((b - a, x.shape[1]), dtype=self.wide)
            _product(product, d[a:b], x, False)
            here = slice(word + a, word + b)
            _fused(_add_to_pair, self.weight[here], self.rest[here], product)

    def results(self) -> list[torch.Tensor]:
        """The three gradients in their tensors' dtypes; an empty tensor where not needed."""
        none = self.like[0].new_empty(0)
        given = zip((self.x, self.weight, self.bias), self.like)
        found = [none.clone() if g is None or t is None else g.to(t.dtype) for g, t in given]
        if self.weight is not None and not self.like[1].is_contiguous():
            found[1] = found[1].t().contiguous().t()  # as :func:`_fakes`
        return found


def _product(out: torch.Tensor, a: torch.Tensor, b: torch.Tensor, adds: bool) -> None:
    """``out = a @ b``, or ``out += a @ b``, accumulated in float32 at least and rounded once."""
    if a.device.type == "cuda" and a.dtype is not out.dtype and out.dtype is torch.float32:
        torch.addmm(out, a, b, beta=int(adds), out_dtype=out.dtype, out=out)
        return
    if a.dtype is not out.dtype:
        wide = torch.promote_types(_wide(a.dtype), _wide(out.dtype))
        a, b = a.to(wide), b.to(wide)
    if a.dtype is not out.dtype:
        out.copy_(out + a @ b if adds else a @ b)
    elif adds:
        out.addmm_(a, b)
    else:
        torch.mm(a, b, out=out)


def _fakes(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, needs: list[bool]) -> list[torch.Tensor]:
    """Gradients with the strides of eager's: a weight's is row-major where the weight is, else column-major."""
    found = [
        x.new_empty(0) if t is None or not need else t.new_empty(t.shape) for t, need in zip((x, weight, bias), needs)
    ]
    if needs[1] and not weight.is_contiguous():
        found[1] = weight.new_empty(weight.t().shape).t()
    return found


# ---- the ops


@torch.library.custom_op("mlirfuse::linear_loss", mutates_args=())
def linear_loss(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, target: torch.Tensor,
                factors: torch.Tensor, smoothing: float, transforms: str, dtype: torch.dtype, needs: list[bool]
                ) -> list[torch.Tensor]:  # fmt: skip
    """Σ factors[n] · (cross entropy of row n), and its gradients with respect to x (rows × features), weight (words ×
    features) and bias. The product is computed in ``dtype``; ``transforms``: of the logits before the loss."""
    count, words = len(x), len(weight)
    plan = Plan.of(count, words, x.shape[1], dtype.itemsize, weight.dtype.itemsize * needs[1])
    sums, target = _Sums(x, weight, bias, needs, plan.rows < count), _checked(target, words)
    weights = _Weights(weight, bias, dtype, plan.rows < count)
    loss, blocks = torch.zeros((), dtype=_wide(dtype), device=x.device), parts(words, plan.words)
    for first, end in parts(count, plan.rows):
        part, words_of, f = x[first:end].to(dtype), target[first:end], factors[first:end].to(loss.dtype)
        each = torch.stack([f, -(1 - smoothing) * f, -(smoothing / words) * f])
        stored: list[torch.Tensor] = []
        rows = _Rows(end - first, loss)
        for a, b in blocks:
            out = _within(sums.weight, a, b, part) if plan.shared else None
            logits = weights.logits(part, a, b, out)
            rows.add(_fused(_rows_of, logits, words_of - a, transforms))
            if any(needs):
                stored.append(logits)
            del logits
        rows.values[0] = _normalizers(rows.values[0])
        stored.reverse()
        for a, b in blocks if any(needs) else []:
            d, given = stored.pop(), (words_of - a, rows.values[0], each, transforms)
            if plan.shared:
                d = _fused(_gradient_of, d, *given)
            else:
                _fused(_overwrite_by_gradient, d, *given)
            sums.add(first, (a, b), d, part, weights)
            del d
        terms = 3 if smoothing else 2  # a sum of logits of which one is -inf is no number
        loss += torch.where(f == 0, 0, rows.values[:terms] * each[:terms]).sum()
    return [loss, *sums.results()]


class _Rows:
    """The terms of a chunk's rows, accumulated over blocks of words: 3 × rows."""

    def __init__(self, rows: int, like: torch.Tensor):
        self.values = like.new_zeros((3, rows))
        self.values[0] = -torch.inf

    def add(self, block: torch.Tensor) -> None:
        self.values[0] = torch.logaddexp(self.values[0], block[0])
        self.values[1:] += block[1:]


def _within(gradient: torch.Tensor | None, a: int, b: int, x: torch.Tensor) -> torch.Tensor:
    """The logits of words ``a`` to ``b`` within the memory of these words' gradients."""
    assert gradient is not None
    return gradient[a:b].view(-1).view(x.dtype)[: len(x) * (b - a)].view(len(x), b - a)


@linear_loss.register_fake
def _(x, weight, bias, target, factors, smoothing, transforms, dtype, needs):
    return [x.new_empty((), dtype=_wide(dtype)), *_fakes(x, weight, bias, needs)]


def _keep_gradients(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.set_materialize_grads(False)
    ctx.needs = inputs[-1]
    ctx.save_for_backward(*output[1:])


def _times_gradients(ctx: Any, grads: list[torch.Tensor | None]) -> Any:
    g = grads[0]
    found = [
        x * g.to(_wide(x.dtype)) if need and g is not None else None for x, need in zip(ctx.saved_tensors, ctx.needs)
    ]
    found = [f if f is None else f.to(x.dtype) for f, x in zip(found, ctx.saved_tensors)]
    return (*found, None, None, None, None, None, None)


linear_loss.register_autograd(_times_gradients, setup_context=_keep_gradients)


@torch.library.custom_op("mlirfuse::linear_rows", mutates_args=())
def linear_rows(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, target: torch.Tensor, transforms: str,
                dtype: torch.dtype, needs: list[bool]) -> torch.Tensor:  # fmt: skip
    """For each row of logits the logsumexp, the target's logit and the sum of logits: 3 × rows."""
    weights, target, part = _Weights(weight, bias, dtype, False), _checked(target, len(weight)), x.to(dtype)
    found = _Rows(len(x), x.new_empty(0, dtype=_wide(dtype)))
    for a, b in parts(len(weight), words_of_block(len(x), len(weight), dtype.itemsize)):
        found.add(_fused(_rows_of, weights.logits(part, a, b), target - a, transforms))
    return found.values


@linear_rows.register_fake
def _(x, weight, bias, target, transforms, dtype, needs):
    return x.new_empty((3, x.shape[0]), dtype=_wide(dtype))


@torch.library.custom_op("mlirfuse::linear_rows_backward", mutates_args=())
def linear_rows_backward(grad: torch.Tensor, rows: torch.Tensor, x: torch.Tensor, weight: torch.Tensor,
                         bias: torch.Tensor | None, target: torch.Tensor, transforms: str, dtype: torch.dtype,
                         needs: list[bool]) -> list[torch.Tensor]:  # fmt: skip
    """The gradients of x, weight and bias; ``rows``: the result of :func:`linear_rows`, ``grad``: its gradient."""
    weights, part, sums = _Weights(weight, bias, dtype, False), x.to(dtype), _Sums(x, weight, bias, needs)
    for a, b in parts(len(weight), words_of_block(len(x), len(weight), dtype.itemsize)):
        d = weights.logits(part, a, b)
        _fused(_overwrite_by_gradient, d, target - a, rows[0], grad, transforms)
        sums.add(0, (a, b), d, part, weights)
        del d
    return sums.results()


@linear_rows_backward.register_fake
def _(grad, rows, x, weight, bias, target, transforms, dtype, needs):
    return _fakes(x, weight, bias, needs)


def _keep_operands(ctx: Any, inputs: Any, output: Any) -> None:
    x, weight, bias, target, ctx.transforms, ctx.dtype, ctx.needs = inputs
    ctx.save_for_backward(output, x, weight, bias, target)


def _rows_backward(ctx: Any, grad: torch.Tensor) -> Any:
    found = linear_rows_backward(grad, *ctx.saved_tensors, ctx.transforms, ctx.dtype, ctx.needs)
    return (*(g if need else None for g, need in zip(found, ctx.needs)), None, None, None, None)


linear_rows.register_autograd(_rows_backward, setup_context=_keep_operands)


# ---- two distributions


def _divergence_of(student: torch.Tensor, teacher: torch.Tensor, transforms: str) -> torch.Tensor:
    """For each row the logsumexp of the student's and of the teacher's logits, and the mean of the teacher's less the
    student's logits under the teacher's distribution: 3 × rows."""
    of_student, of_teacher = transforms.split("|")
    (s, _), (t, _) = _transformed(student, of_student), _transformed(teacher, of_teacher)
    lse = torch.logsumexp(t, 1)
    p = (t - lse[:, None]).exp()
    return torch.stack([torch.logsumexp(s, 1), lse, torch.where(p > 0, p * (t - s), 0).sum(1)])


def _overwrite_by_divergence_gradient(student: torch.Tensor, teacher: torch.Tensor, lses: torch.Tensor,
                                      grad: torch.Tensor, transforms: str) -> None:  # fmt: skip
    """Writes the gradient of the student's logits over them."""
    of_student, of_teacher = transforms.split("|")
    (s, kept), (t, _) = _transformed(student, of_student), _transformed(teacher, of_teacher)
    d = ((s - lses[0][:, None]).exp() - (t - lses[1][:, None]).exp()) * grad[:, None]
    student.copy_(_transforms_backward(d, of_student, kept))


@torch.library.custom_op("mlirfuse::linear_kl", mutates_args=())
def linear_kl(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, teacher_x: torch.Tensor,
              teacher_weight: torch.Tensor, teacher_bias: torch.Tensor | None, transforms: str,
              dtype: torch.dtype, teacher_dtype: torch.dtype, needs: list[bool]) -> list[torch.Tensor]:  # fmt: skip
    """For each row the divergence KL(teacher, student) of two linear layers' softmax; and the logsumexp of both, 2 ×
    rows. ``transforms``: the student's, "|" and the teacher's."""
    sides = _Weights(weight, bias, dtype, False), _Weights(teacher_weight, teacher_bias, teacher_dtype, False)
    x, teacher_x = x.to(dtype), teacher_x.to(teacher_dtype)
    found = x.new_zeros((3, len(x)), dtype=_wide(dtype))
    found[:2] = -torch.inf
    for a, b in parts(len(weight), words_of_block(len(x), len(weight), 2 * dtype.itemsize)):
        block = _fused(_divergence_of, sides[0].logits(x, a, b), sides[1].logits(teacher_x, a, b), transforms)
        lses = torch.logaddexp(found[:2], block[:2])
        old, new = (found[1] - lses[1]).exp(), (block[1] - lses[1]).exp()
        found[2] = torch.where(old > 0, old * found[2], 0) + torch.where(new > 0, new * block[2], 0)
        found[:2] = lses
    found[:2] = _normalizers(found[:2])
    return [found[2] - found[1] + found[0], found[:2].clone()]


@linear_kl.register_fake
def _(x, weight, bias, teacher_x, teacher_weight, teacher_bias, transforms, dtype, teacher_dtype, needs):
    wide = _wide(dtype)
    return [x.new_empty(x.shape[:1], dtype=wide), x.new_empty((2, x.shape[0]), dtype=wide)]


@torch.library.custom_op("mlirfuse::linear_kl_backward", mutates_args=())
def linear_kl_backward(grad: torch.Tensor, lses: torch.Tensor, x: torch.Tensor, weight: torch.Tensor,
                       bias: torch.Tensor | None, teacher_x: torch.Tensor, teacher_weight: torch.Tensor,
                       teacher_bias: torch.Tensor | None, transforms: str, dtype: torch.dtype,
                       teacher_dtype: torch.dtype,
                       needs: list[bool]) -> list[torch.Tensor]:  # fmt: skip
    """The gradients of the student's x, weight and bias."""
    sides = _Weights(weight, bias, dtype, False), _Weights(teacher_weight, teacher_bias, teacher_dtype, False)
    part, teacher_x, sums = x.to(dtype), teacher_x.to(teacher_dtype), _Sums(x, weight, bias, needs)
    for a, b in parts(len(weight), words_of_block(len(x), len(weight), 2 * dtype.itemsize)):
        d = sides[0].logits(part, a, b)
        teacher = sides[1].logits(teacher_x, a, b)
        _fused(_overwrite_by_divergence_gradient, d, teacher, lses, grad, transforms)
        del teacher
        sums.add(0, (a, b), d, part, sides[0])
        del d
    return sums.results()


@linear_kl_backward.register_fake
def _(grad, lses, x, weight, bias, teacher_x, teacher_weight, teacher_bias, transforms, dtype, teacher_dtype, needs):
    return _fakes(x, weight, bias, needs)


def _keep_both(ctx: Any, inputs: Any, output: Any) -> None:
    *operands, ctx.transforms, ctx.dtype, ctx.teacher_dtype, ctx.needs = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(output[1], *operands)


def _divergence_backward(ctx: Any, grads: list[torch.Tensor | None]) -> Any:
    if grads[0] is None:
        return (None,) * 10
    found = linear_kl_backward(grads[0], *ctx.saved_tensors, ctx.transforms, ctx.dtype, ctx.teacher_dtype, ctx.needs)
    return (*(g if need else None for g, need in zip(found, ctx.needs)), *(None,) * 7)


linear_kl.register_autograd(_divergence_backward, setup_context=_keep_both)
