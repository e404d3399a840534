"""Cases of ``torch_kernels.py``: pools and their gradients, what stands around convolutions, reductions and index ops,
each at five sizes (``CASES``), and four-dimensional tensors drawn at random (``drawn``).

A case is a function of tensors in torch's own ops. Its first extent is the batch, which a run on a CPU divides.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

f32, bf16, f16 = torch.float32, torch.bfloat16, torch.float16
DTYPES = {f32: "f32", bf16: "bf16", f16: "f16"}
Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Input:
    """Random normal numbers times ``scale`` and plus ``offset``, or integers below ``below``. ``order``: the dimensions
    from the outermost to the innermost in memory."""

    shape: Shape
    dtype: torch.dtype = f32
    below: int = 0
    order: Shape | None = None
    gradient: bool = False
    scale: float = 1.0
    offset: float = 0.0

    def make(self, device: str, generator: torch.Generator) -> torch.Tensor:
        order = self.order or tuple(range(len(self.shape)))
        shape = [self.shape[d] for d in order]
        if self.below:
            drawn = torch.randint(0, self.below, shape, device=device, generator=generator)
        else:
            drawn = torch.randn(shape, device=device, generator=generator).mul_(self.scale).add_(self.offset)
            drawn = drawn.to(self.dtype)
        return drawn.permute([order.index(d) for d in range(len(order))])


@dataclasses.dataclass(frozen=True)
class Case:
    """A function of inputs. With an input that wants a gradient, a call is forward and backward. ``family``: points of
    a sweep that are neighbours."""

    name: str
    size: str
    dtype: str
    fn: Callable[..., Any]
    inputs: tuple[Input, ...]
    family: int | None = None

    @property
    def trains(self) -> bool:
        return any(given.gradient for given in self.inputs)


def x_of(shape: Sequence[int], dtype=f32, **more: Any) -> Input:
    return Input(tuple(shape), dtype, **more)


def weight(shape: Sequence[int], dtype=f32, **more: Any) -> Input:
    """A weight whose sums over what it reads have variance 1."""
    return Input(tuple(shape), dtype, scale=math.prod(shape[1:]) ** -0.5, **more)


def vector(n: int, dtype=f32, around: float = 0.0, **more: Any) -> Input:
    return Input((n,), dtype, scale=0.1, offset=around, **more)


# --------------------------------------------------------------------------------------------------------------- pools

IMAGES = ((64, 64, 112, 112), (32, 96, 57, 75), (16, 256, 56, 56), (8, 33, 224, 224), (128, 192, 28, 28))
VOLUMES = ((8, 32, 32, 64, 64), (4, 24, 33, 47, 61), (16, 16, 16, 56, 56), (2, 64, 48, 48, 48), (32, 48, 8, 28, 28))
LAST, LAST_3D = (0, 2, 3, 1), (0, 2, 3, 4, 1)


def pool(name: str, shapes, hows, of, dtypes=(f32, bf16, f32, f16, f32), gradient=False, order=None):
    """``of(x, how)`` at each of the shapes with the ``how`` of the same number; every second one in ``order``."""
    for k, (shape, how, dtype) in enumerate(zip(shapes, itertools.cycle(hows), itertools.cycle(dtypes))):
        given = x_of(shape, dtype, gradient=gradient, order=order if k % 2 else None)
        text = ", ".join(f"{key} {value}" for key, value in how.items())
        yield Case(name, f"{show(shape)} {text}", DTYPES[dtype], functools.partial(of, how=how), (given,))


def show(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape))


def windows(*each: Sequence[int]) -> list[dict[str, Any]]:
    return [{"kernel_size": k, "stride": s, "padding": p} for k, s, p in each]


AVERAGES = [
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": 2, "stride": 2},
    {"kernel_size": 3, "stride": 1, "padding": 1, "count_include_pad": False},
    {"kernel_size": 5, "stride": 3, "padding": 2, "ceil_mode": True},
    {"kernel_size": 7, "stride": 7},
]
DILATED = [
    {"kernel_size": 3, "stride": 1, "padding": 1, "dilation": 2},
    {"kernel_size": 2, "stride": 2, "dilation": 3},
    {"kernel_size": 3, "stride": 2, "padding": 1, "dilation": 3},
    {"kernel_size": 4, "stride": 1, "padding": 1, "dilation": 3},
    {"kernel_size": 3, "stride": 1, "padding": 1},
]
PYRAMIDS = ((16, 512, 13, 13), (32, 256, 28, 28), (8, 512, 37, 41), (64, 768, 7, 7), (16, 128, 56, 56))
ADAPTIVE = [{"output_size": n} for n in ((7, 7), (1, 1), (6, 5), (2, 3), (7, 7))]


def pools():
    average = lambda x, how: F.avg_pool2d(x, **how)  # noqa: E731
    largest_3d = lambda x, how: F.max_pool3d(x, **how)  # noqa: E731
    volumes = windows((3, 2, 1), (2, 2, 0), (3, 1, 1), (2, 1, 0), (2, 2, 0))
    yield from pool("average pool", IMAGES, AVERAGES, average, order=LAST)
    yield from pool("average pool, gradient", IMAGES, AVERAGES, average, gradient=True, order=LAST)
    yield from pool("scale, average pool, ReLU, sum", IMAGES, AVERAGES[:3],
                    lambda x, how: F.relu(F.avg_pool2d(x * 0.7 + 0.1, **how)).sum((2, 3)))  # fmt: skip
    lines = ((64, 256, 4096), (32, 77, 8191), (16, 1024, 1500), (128, 64, 3000), (8, 512, 10001))
    yield from pool("average pool, 1-d", lines, AVERAGES, lambda x, how: F.avg_pool1d(x, **how))
    yield from pool("average pool, 3-d", VOLUMES, volumes, lambda x, how: F.avg_pool3d(x, **how), order=LAST_3D)
    yield from pool("adaptive average pool", PYRAMIDS, ADAPTIVE, lambda x, how: F.adaptive_avg_pool2d(x, **how))
    yield from pool("adaptive average pool, gradient", PYRAMIDS, ADAPTIVE,
                    lambda x, how: F.adaptive_avg_pool2d(x, **how), gradient=True)  # fmt: skip
    yield from pool("adaptive max pool", PYRAMIDS, ADAPTIVE, lambda x, how: F.adaptive_max_pool2d(x, **how))
    norms = [{"norm_type": p, "kernel_size": k, "stride": s} for p, k, s in ((2, 3, 2), (3, 2, 2), (1, 5, 3))]
    yield from pool("LP pool", IMAGES, norms, lambda x, how: F.lp_pool2d(x.abs() + 0.1, **how))
    yield from pool("max pool", IMAGES, windows((3, 2, 1), (2, 2, 0), (3, 1, 1), (5, 3, 2), (3, 2, 1)),
                    lambda x, how: F.max_pool2d(x, **how), order=LAST)  # fmt: skip
    yield from pool("max pool, dilated", IMAGES, DILATED, lambda x, how: F.max_pool2d(x, **how))
    yield from pool("max pool, dilated, gradient", IMAGES, DILATED[:3], lambda x, how: F.max_pool2d(x, **how),
                    gradient=True)  # fmt: skip
    wide = [{"kernel_size": 3, "stride": 2, "padding": 1, "dilation": 3}, *volumes[1:]]
    yield from pool("max pool, 3-d", VOLUMES, wide, largest_3d, order=LAST_3D)
    yield from pool("max pool, 3-d, gradient", VOLUMES, volumes, largest_3d, gradient=True)
    unfolded = [{"kernel_size": k, "stride": s, "padding": p} for k, s, p in ((3, 2, 1), (4, 4, 0), (3, 1, 1))]
    few = ((8, 32, 56, 56), (16, 3, 224, 224), (4, 24, 75, 61), (32, 16, 28, 28), (2, 64, 64, 64))
    yield from pool("unfold, sum of squares", few, unfolded, lambda x, how: F.unfold(x, **how).square().sum(1))
    yield from pool("windows of 5, standardized", lines, ({},), windowed)


def windowed(x, how):
    """Each window's middle, less its mean, over its deviation."""
    w = x.unfold(-1, 5, 1)
    return (w[..., 2] - w.mean(-1)) * torch.rsqrt(w.var(-1, correction=0) + 1e-3)


# ------------------------------------------------------------------------------------------------------- convolutions


def tanh_average(x, w, b):
    return F.avg_pool2d(torch.tanh(F.conv2d(x, w, b) - 0.5) - 0.2, 2)


def transition(x, scale, shift, mean, var, w):
    """Between the blocks of a dense net, in evaluation."""
    return F.avg_pool2d(F.conv2d(F.relu(F.batch_norm(x, mean, var, scale, shift)), w), 2)


def dense_block(x, scale, shift, w):
    """The end of one in training, and a transition."""
    return F.avg_pool2d(F.conv2d(F.relu(F.batch_norm(x, None, None, scale, shift, training=True)), w), 2)


def transposed_mish(x, w, b):
    y = F.mish(F.conv_transpose2d(x, w, b, stride=2, padding=1, output_padding=1))
    return F.hardtanh(y + 0.5, -1, 1) * 2


def transposed_3d(x, w, b):
    y = F.conv_transpose3d(x, w, b, stride=2, padding=1)
    return F.hardswish(F.layer_norm(y, y.shape[-1:]))


def residual_block(x, w1, w2, *norms):
    """Two convolutions, each with a batch norm in evaluation: scale, shift, mean and variance of each."""
    (a, b, c, d), (e, f, g, h) = norms[:4], norms[4:]
    y = F.relu(F.batch_norm(F.conv2d(x, w1, padding=1), c, d, a, b))
    return F.relu(F.batch_norm(F.conv2d(y, w2, padding=1), g, h, e, f) + x)


def stem(x, w, scale, shift):
    y = F.batch_norm(F.conv2d(x, w, stride=2, padding=3), None, None, scale, shift, training=True)
    return F.max_pool2d(F.relu(y), 3, 2, 1)


def residual_training(x, w, scale, shift):
    y = F.batch_norm(F.conv2d(x, w, padding=1), None, None, scale, shift, training=True)
    return F.relu(y + x)


def norm_dropout(x, w, scale, shift):
    """Dropout's numbers differ between implementations: only a share of 1e-9 is dropped."""
    y = F.batch_norm(F.conv2d(x, w, padding=1), None, None, scale, shift, training=True)
    return F.dropout(F.silu(y), 1e-9)


def depthwise(x, w, scale, shift, mean, var):
    y = F.conv2d(x, w, padding=w.shape[-1] // 2, groups=x.shape[1])
    return F.hardswish(F.batch_norm(y, mean, var, scale, shift))


def convolution_3d(x, w, b):
    return F.max_pool3d(F.gelu(F.conv3d(x, w, b, padding=1)), 2)


def norm_of(c: int, dtype=f32, running: bool = False, gradient: bool = False) -> tuple[Input, ...]:
    """Scale and shift, and in evaluation mean and variance."""
    learnt = vector(c, dtype, 1.0, gradient=gradient), vector(c, dtype, gradient=gradient)
    return (*learnt, vector(c, dtype), vector(c, dtype, 1.0)) if running else learnt


def convolved(name, shapes, fn, weights, norms=lambda c: (), gradient=False, dtypes=(f32, bf16, f32, f16, f32)):
    """``weights(c)``: the shapes of the weights of images of ``c`` channels; then ``norms(c)``."""
    for shape, dtype in zip(shapes, dtypes):
        of = [weight(s, dtype, gradient=gradient) if len(s) > 1 else vector(*s, dtype) for s in weights(shape[1])]
        given = x_of(shape, dtype, gradient=gradient), *of, *norms(shape[1])
        if not gradient:
            given = tuple(dataclasses.replace(i, dtype=dtype) for i in given)
        yield Case(name, show(shape), DTYPES[dtype], fn, given)


def convolutions():
    run, train = functools.partial(norm_of, running=True), functools.partial(norm_of, gradient=True)
    images = ((32, 64, 64, 64), (16, 48, 56, 57), (8, 128, 32, 32), (64, 32, 64, 64), (4, 96, 128, 128))
    yield from convolved(
        "convolution, tanh, average pool", images, tanh_average, lambda c: [(2 * c, c, 3, 3), (2 * c,)]
    )
    yield from convolved(
        "dense net's transition", images, transition, lambda c: [], lambda c: (*run(c), weight((c // 2, c, 1, 1)))
    )
    yield from convolved("dense net's transition, training", images, dense_block, lambda c: [],
                         lambda c: (*train(c), weight((c // 2, c, 1, 1), gradient=True)), True, (f32,) * 5)  # fmt: skip
    yield from convolved(
        "transposed convolution, Mish, add, Hardtanh", images, transposed_mish, lambda c: [(c, c, 3, 3), (c,)]
    )
    volumes = ((4, 16, 16, 32, 32), (2, 32, 8, 28, 28), (8, 24, 12, 16, 20), (1, 32, 32, 32, 32), (16, 16, 8, 16, 16))
    yield from convolved(
        "transposed convolution, 3-d, layer norm", volumes, transposed_3d, lambda c: [(c, c, 4, 4, 4), (c,)]
    )
    yield from convolved(
        "convolution, 3-d, GELU, max pool", volumes, convolution_3d, lambda c: [(2 * c, c, 3, 3, 3), (2 * c,)]
    )
    yield from convolved(
        "residual block, evaluation", images, residual_block, lambda c: [(c, c, 3, 3)] * 2, lambda c: (*run(c), *run(c))
    )
    photos = ((32, 3, 224, 224), (16, 3, 192, 192), (8, 3, 256, 256), (64, 3, 128, 128), (16, 3, 225, 225))
    yield from convolved(
        "stem, training", photos, stem, lambda c: [(64, 3, 7, 7)], lambda c: train(64), True, (f32,) * 5
    )
    yield from convolved(
        "residual, training", images, residual_training, lambda c: [(c, c, 3, 3)], train, True, (f32,) * 5
    )
    yield from convolved(
        "norm and dropout, training", images, norm_dropout, lambda c: [(c, c, 3, 3)], train, True, (f32,) * 5
    )
    thin = ((16, 96, 56, 56), (8, 240, 28, 28), (32, 672, 14, 14), (4, 32, 112, 112), (16, 144, 57, 57))
    yield from convolved("depthwise convolution, norm, Hardswish", thin, depthwise, lambda c: [(c, 1, 5, 5)], run)


# ---------------------------------------------------------------------------------------------------------- reductions


def window_attention(scores, table, index):
    """Swin's bias by relative position, added to the scores of windows."""
    bias = table[index.view(-1)].view(*index.shape, -1).permute(2, 0, 1)
    return torch.softmax(scores + bias.unsqueeze(0), -1)


def patch_merging(x, w, b):
    b_, h, w_, c = x.shape
    y = x.reshape(b_, h // 2, 2, w_ // 2, 2, c).permute(0, 1, 3, 4, 2, 5).flatten(3)
    return F.layer_norm(y, (4 * c,), w, b)


def gelu_and_bias(x, b):
    return F.gelu(x + b, approximate="tanh")


def norm(x, w, b):
    return F.layer_norm(x, x.shape[-1:], w, b)


def rms(x, w):
    return x * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6).to(x.dtype) * w


def sums_both_ways(x):
    return x.sum(0), x.sum(-1), x.amax((0, 1)) if x.dim() > 2 else x.square().sum(-1)


def broadcast_sums(x, y):
    return (x.unsqueeze(1) * y.unsqueeze(0)).sum((0, 2))


def relative_entropy(x):
    return (x.softmax(1) * x.log_softmax(1)).sum(1)


def thin_norm(x):
    return (x - x.mean(0)) * torch.rsqrt(x.var(0, correction=0) + 1e-5)


def of_shapes(name, fn, dtype, *each: Sequence[Input]):
    """A case for each sequence of inputs, named by the shape of the largest."""
    for inputs in each:
        largest = max((i.shape for i in inputs), key=math.prod)
        yield Case(name, show(largest), DTYPES[dtype], fn, tuple(inputs))


def bias_of_windows(n: int, heads: int, side: int, dtype):
    area = side * side
    table = x_of(((2 * side - 1) ** 2, heads), f32, gradient=True)
    scores = x_of((n, heads, area, area), dtype, gradient=True)
    return scores, table, x_of((area, area), below=(2 * side - 1) ** 2)


def reductions():
    bias = [bias_of_windows(*s, bf16) for s in ((1024, 3, 7), (512, 6, 7), (256, 12, 7), (128, 4, 8), (64, 16, 12))]
    yield from of_shapes("Swin's position bias, gradient", window_attention, bf16, *bias)
    merged = [(x_of(s, bf16, gradient=True), vector(4 * s[-1], bf16, 1.0, gradient=True), vector(4 * s[-1], bf16, gradient=True))
              for s in ((96, 56, 56, 96), (96, 28, 28, 192), (64, 14, 14, 384), (32, 60, 44, 96), (16, 64, 64, 128))]  # fmt: skip
    yield from of_shapes("Swin's patch merging, gradient", patch_merging, bf16, *merged)
    gelus = [(x_of((r, c), bf16, gradient=True), vector(c, bf16, gradient=True))
             for r, c in ((8192, 3072), (7000, 5120), (12000, 2730), (3001, 11009), (16384, 1536))]  # fmt: skip
    yield from of_shapes("GELU and bias, gradient", gelu_and_bias, bf16, *gelus)
    long = [(x_of(s, f16), vector(s[1], f16, 1.0), vector(s[1], f16))
            for s in ((2048, 18432), (1024, 16384), (4096, 12288), (777, 20480), (512, 25000))]  # fmt: skip
    yield from of_shapes("layer norm of long rows", norm, f16, *long)
    yield from of_shapes("layer norm of few rows", norm, f32, *(
        (x_of(s), vector(s[1], f32, 1.0), vector(s[1])) for s in ((64, 768), (16, 1024), (32, 3072), (128, 512), (48, 1536))))  # fmt: skip
    yield from of_shapes("RMS norm of few rows", rms, bf16, *(
        (x_of(s, bf16), vector(s[1], bf16, 1.0)) for s in ((16, 5120), (8, 4096), (64, 2048), (32, 7168), (4, 16384))))  # fmt: skip
    rows = ((400_003, 3), (100_001, 17), (65_536, 31), (7, 1_000_003), (200_000, 5))
    yield from of_shapes("softmax of narrow rows", lambda x: x.softmax(-1), f32, *((x_of(s),) for s in rows))
    yield from of_shapes("sums of thin columns", lambda x: x.sum(0), f32, *((x_of(s),) for s in rows))
    yield from of_shapes("columns standardized", thin_norm, f32, *(
        (x_of(s),) for s in ((65_537, 5), (8191, 33), (3, 300_007), (50_000, 12), (1023, 1001))))  # fmt: skip
    yield from of_shapes("one input along several axes", sums_both_ways, f32, *(
        (x_of(s),) for s in ((4096, 4096), (64, 128, 513), (8192, 1000), (7, 333, 2048), (300, 70, 129))))  # fmt: skip
    yield from of_shapes("sum of broadcast products", broadcast_sums, f32, *(
        (x_of((a, c)), x_of((b, c))) for a, b, c in ((256, 512, 256), (33, 1000, 513), (1024, 64, 128), (7, 4096, 1024), (500, 300, 77))))  # fmt: skip
    permuted = ((32, 64, 56, 56), (8, 33, 127, 65), (64, 128, 16, 16), (2, 1000, 40, 41), (128, 3, 96, 96))
    yield from of_shapes(
        "sum of a permuted input", lambda x: x.sum((0, 2, 3)), f32, *((x_of(s, order=LAST),) for s in permuted)
    )
    yield from of_shapes(
        "entropy along a permuted axis", relative_entropy, bf16, *((x_of(s, bf16, order=LAST),) for s in permuted)
    )


# ---------------------------------------------------------------------------------------------------------- index ops


def deberta(scores, to_key, to_query):
    """Content to position and position to content: gathers along the last dimension with computed indices."""
    n, span = scores.shape[-1], to_key.shape[-1] // 2
    at = torch.arange(n, device=scores.device)
    index = torch.clamp(at[:, None] - at[None, :] + span, 0, 2 * span - 1).expand(scores.shape)
    c2p = torch.gather(to_key, -1, index)
    p2c = torch.gather(to_query, -1, torch.clamp(2 * span - index, 0, 2 * span - 1)).transpose(-1, -2)
    return torch.softmax(scores + c2p + p2c, -1)


def t5(scores, table):
    """T5's buckets: half exact, half logarithmic."""
    n = scores.shape[-1]
    at = torch.arange(n, device=scores.device)
    distance = at[None, :] - at[:, None]
    bucket = (distance > 0).long() * 16
    distance = distance.abs()
    far = 8 + (torch.log(distance.float() / 8) / math.log(128 / 8) * 8).long()
    bucket = bucket + torch.where(distance < 8, distance, far.clamp(max=15))
    return torch.softmax(scores + F.embedding(bucket, table).permute(2, 0, 1).unsqueeze(0), -1)


def causal(scores, lengths):
    n = scores.shape[-1]
    at = torch.arange(n, device=scores.device)
    keep = (at[:, None] >= at[None, :]) & (at[None, None, None, :] < lengths[:, None, None, None])
    return torch.softmax(scores.masked_fill(~keep, -1e4), -1)


def rolled(x):
    """Row r turned by r places."""
    r, c = x.shape
    at = torch.arange(c, device=x.device)
    return torch.gather(x, -1, (at[None, :] + torch.arange(r, device=x.device)[:, None]) % c) * 2


def one_hot(index, w):
    return F.one_hot(index, w.shape[0]).to(w.dtype) @ w


def one_hot_counts(index, x):
    """How much each expert is given, and its probability."""
    hot = F.one_hot(index, x.shape[-1]).to(x.dtype)
    return hot.mean(0), (x.softmax(-1) * hot).sum(-1)


def bag(mode, index, w):
    return F.embedding_bag(index, w, mode=mode)


def index_ops():
    attended = ((8, 12, 256, 256), (4, 16, 384, 384), (16, 8, 130, 130), (2, 12, 512, 512), (1, 24, 333, 333))
    spans = [
        (
            x_of(s, bf16, gradient=True),
            x_of((*s[:3], 512), bf16, gradient=True),
            x_of((*s[:3], 512), bf16, gradient=True),
        )
        for s in attended
    ]
    yield from of_shapes("DeBERTa's positions, gradient", deberta, bf16, *spans)
    yield from of_shapes("T5's positions, gradient", t5, bf16, *(
        (x_of(s, bf16, gradient=True), x_of((32, s[1]), f32, gradient=True)) for s in attended))  # fmt: skip
    yield from of_shapes("causal and padding mask", causal, bf16, *(
        (x_of(s, bf16), x_of((s[0],), below=s[-1])) for s in attended))  # fmt: skip
    yield from of_shapes("rows turned by a gather", rolled, f32, *(
        (x_of(s),) for s in ((4096, 4096), (1000, 8191), (16384, 513), (64, 100_000), (300, 777))))  # fmt: skip
    hot = ((8192, 64, 512), (4096, 1000, 256), (512, 4096, 768), (20_000, 32, 128), (1000, 17, 2048))
    yield from of_shapes(
        "product of one-hot rows", one_hot, bf16, *((x_of((n,), below=k), x_of((k, c), bf16)) for n, k, c in hot)
    )
    yield from of_shapes(
        "counts by one-hot rows", one_hot_counts, f32, *((x_of((n,), below=k), x_of((n, k))) for n, k, _ in hot)
    )
    bags = (
        (4096, 32, 50_000, 64),
        (1024, 100, 10_000, 300),
        (16_384, 8, 100_000, 128),
        (256, 256, 30_522, 768),
        (333, 7, 1000, 33),
    )
    for mode in ("sum", "mean", "max"):
        yield from of_shapes(f"embedding bag, {mode}", functools.partial(bag, mode), f32, *(
            (x_of((n, k), below=words), x_of((words, c))) for n, k, words, c in bags))  # fmt: skip
    segmented = ((8, 150, 96, 96), (4, 19, 128, 129), (16, 21, 56, 56), (2, 150, 64, 64), (32, 8, 48, 50))
    yield from of_shapes("resizing under cross entropy, gradient", resized_loss, f32, *(
        (x_of((n, c, h // 4, w // 4), gradient=True), x_of((n, h // 4 * 4, w // 4 * 4), below=c)) for n, c, h, w in segmented))  # fmt: skip


def resized_loss(x, labels):
    y = F.interpolate(x, size=labels.shape[-2:], mode="bilinear", align_corners=False)
    return F.cross_entropy(y, labels)


# --------------------------------------------------------------------------------------------------------------- drawn


def standardized(x, axes):
    return (x - x.mean(axes, keepdim=True)) * torch.rsqrt(x.var(axes, keepdim=True, correction=0) + 1e-5)


def extents(rng: random.Random, most: float) -> list[int]:
    """Four extents whose product is from 2^14 to 2^most, logarithmically uniform; a third of them powers of 2."""
    shares = [rng.expovariate(1) for _ in range(4)]
    bits = rng.uniform(14, most)
    found = []
    for share in shares:
        e = bits * share / sum(shares)
        found.append(2 ** round(e) if rng.random() < 1 / 3 else max(1, round(2**e)))
    return found


def near(shape: Sequence[int], rng: random.Random) -> list[Shape]:
    """The shape, and three with one extent twice, half and one more."""
    found = [tuple(shape)]
    for change in (lambda n: 2 * n, lambda n: max(1, n // 2), lambda n: n + 1):
        d = max(range(4), key=lambda k: (shape[k] > 1, rng.random()))
        found.append(tuple(change(n) if k == d else n for k, n in enumerate(shape)))
    return found


def drawn_function(rng: random.Random):
    """Name, function, and whether the second input lies otherwise or is broadcast."""
    axes = tuple(sorted(rng.sample(range(4), rng.choice((1, 1, 2, 2, 3)))))
    others = tuple(sorted(rng.sample(range(4), rng.choice((1, 2)))))
    order = tuple(rng.sample(range(4), 4))
    return rng.choice([
        (f"sum {axes}", lambda x, y: x.sum(axes)),
        (f"max {axes}", lambda x, y: x.amax(axes)),
        (f"mean, variance {axes}", lambda x, y: torch.var_mean(x, axes)),
        (f"softmax {axes[0]}", lambda x, y: x.softmax(axes[0])),
        (f"standardized {axes}", lambda x, y: standardized(x, axes)),
        (f"ReLU of a sum, {order}", lambda x, y: F.relu(x + y)),
        (f"copy to {order}", lambda x, y: (x * 2).permute(order).contiguous()),
        (f"sums {axes} and {others}", lambda x, y: (x.sum(axes), x.square().sum(others))),
        (f"sum of products {axes}", lambda x, y: (x * y).sum(axes)),
        (f"product, sum {axes}", lambda x, y: (x * y, (x * y).sum(axes))),
    ])  # fmt: skip


def drawn(count: int, seed: int, most: float = 24.5) -> list[Case]:
    """``count`` families of four shapes that are neighbours: an operation, axes, orders of memory and a dtype."""
    rng, found = random.Random(seed), []
    for family in range(count):
        name, fn = drawn_function(rng)
        dtype = rng.choice((f32, f32, bf16, f16))
        orders = [rng.choice((None, LAST, tuple(rng.sample(range(4), 4)))) for _ in range(2)]
        spread = [rng.random() < 0.25 for _ in range(4)]
        for shape in near(extents(rng, most), rng):
            second = tuple(1 if wide else n for wide, n in zip(spread, shape))
            given = Input(shape, dtype, order=orders[0]), Input(second, dtype, order=orders[1])
            text = f"{show(shape)} {''.join(map(str, orders[0] or range(4)))}"
            found.append(Case(name, text, DTYPES[dtype], fn, given, family))
    return found


def cases() -> list[Case]:
    return [*pools(), *convolutions(), *reductions(), *index_ops()]
