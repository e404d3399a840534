"""Small models with random weights that the torch tests train, and what compares them with eager."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch
from torch import nn
from torch.nn import functional as F


class EncoderLayer(nn.Module):
    """BERT's: attention, feed-forward, each with dropout, a residual connection and a layer norm behind it."""

    def __init__(self, width=32, heads=4, inner=64, p=0.0):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out, self.up, self.down = nn.Linear(width, width), nn.Linear(width, inner), nn.Linear(inner, width)
        self.first, self.second = nn.LayerNorm(width, eps=1e-12), nn.LayerNorm(width, eps=1e-12)
        self.heads, self.p = heads, p

    def forward(self, x):
        split = [f(x).view(*x.shape[:2], self.heads, -1).transpose(1, 2) for f in (self.query, self.key, self.value)]
        mixed = F.scaled_dot_product_attention(*split).transpose(1, 2).reshape(x.shape)
        x = self.first(x + F.dropout(self.out(mixed), self.p, self.training))
        return self.second(x + F.dropout(self.down(F.gelu(self.up(x))), self.p, self.training))


class Encoder(nn.Module):
    """Embeddings, equal layers, the cross entropy of each word."""

    def __init__(self, words=50, width=32, layers=2, p=0.0):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(64, width)
        self.norm, self.p = nn.LayerNorm(width), p
        self.layers = nn.ModuleList(EncoderLayer(width, p=p) for _ in range(layers))
        self.head = nn.Linear(width, words)

    def forward(self, words, targets):
        x = self.norm(self.words(words) + self.places(torch.arange(words.shape[1], device=words.device)))
        x = F.dropout(x, self.p, self.training)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), targets.flatten(), ignore_index=0)


class ResidualBlock(nn.Module):
    def __init__(self, inner, outer, stride):
        super().__init__()
        self.one, self.two = (
            nn.Conv2d(inner, outer, 3, stride, 1, bias=False),
            nn.Conv2d(outer, outer, 3, 1, 1, bias=False),
        )
        self.norm_one, self.norm_two = nn.BatchNorm2d(outer), nn.BatchNorm2d(outer)
        self.around = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x):
        y = F.relu(self.norm_one(self.one(x)), inplace=True)
        return F.relu(self.norm_two(self.two(y)) + self.around(x))


class ResNet(nn.Module):
    """Convolutions, batch norms, pools, residual connections."""

    def __init__(self, classes=10):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        )
        self.blocks = nn.Sequential(ResidualBlock(8, 16, 2), ResidualBlock(16, 16, 1))
        self.head = nn.Linear(16, classes)

    def forward(self, x, targets):
        y = self.blocks(self.stem(x)).mean((2, 3))
        return F.cross_entropy(self.head(y), targets)


class TimedBlock(nn.Module):
    """A diffusion model's: group norms, convolutions, and a scale and shift of the time."""

    def __init__(self, inner, outer, times=16):
        super().__init__()
        self.first, self.second = nn.GroupNorm(4, inner), nn.GroupNorm(4, outer)
        self.one, self.two = nn.Conv2d(inner, outer, 3, padding=1), nn.Conv2d(outer, outer, 3, padding=1)
        self.time, self.around = nn.Linear(times, 2 * outer), nn.Conv2d(inner, outer, 1)

    def forward(self, x, time):
        scale, shift = self.time(F.silu(time))[:, :, None, None].chunk(2, 1)
        y = self.second(self.one(F.silu(self.first(x)))) * (1 + scale) + shift
        return self.around(x) + self.two(F.silu(y))


class UNet(nn.Module):
    """A diffusion model's: sines of the time, down, attention in the middle, up beside what went down."""

    def __init__(self, width=8, times=16):
        super().__init__()
        self.times = nn.Sequential(nn.Linear(times, times), nn.SiLU(), nn.Linear(times, times))
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.down, self.below = TimedBlock(width, width), TimedBlock(width, 2 * width)
        self.shrink, self.middle = (
            nn.Conv2d(width, width, 3, 2, 1),
            nn.MultiheadAttention(2 * width, 2, batch_first=True),
        )
        self.up, self.norm = TimedBlock(3 * width, width), nn.GroupNorm(4, width)
        self.head = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, noisy, time, noise):
        frequencies = torch.logspace(0, 3, 8, dtype=noisy.dtype, device=noisy.device)
        angles = time[:, None] * frequencies
        time = self.times(torch.cat([angles.sin(), angles.cos()], 1))
        wide = self.down(self.stem(noisy), time)
        low = self.below(self.shrink(wide), time)
        places = low.flatten(2).transpose(1, 2)
        low = low + self.middle(places, places, places, need_weights=False)[0].transpose(1, 2).reshape(low.shape)
        x = self.up(torch.cat([F.interpolate(low, scale_factor=2.0, mode="nearest"), wide], 1), time)
        return F.mse_loss(self.head(F.silu(self.norm(x))), noise)


def gradients(model: nn.Module, *inputs: torch.Tensor) -> list[torch.Tensor]:
    """The loss and the gradients of one step."""
    model.zero_grad()
    loss = model(*inputs)
    loss.backward()
    owner = getattr(model, "_orig_mod", model)
    return [loss.detach(), *(p.grad.clone() for p in owner.parameters() if p.grad is not None)]


def error(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> float:
    """The largest difference, over the largest element of what is wanted."""
    assert len(found) == len(wanted)
    scale = max(float(b.abs().max()) for b in wanted)
    return max(float((a.double() - b.double()).abs().max()) for a, b in zip(found, wanted)) / scale


def published(name: str) -> ModuleType:
    """``transformers`` or ``timm``; the test is skipped where it is not installed. Both import torchvision, whose Python
    loads beside a torch that its compiled part does not fit once the names of two ops are known."""
    try:
        import torchvision  # noqa: F401
    except ModuleNotFoundError:
        pass
    except RuntimeError:
        for op in ("nms", "qnms"):
            _torchvision.define(f"{op}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        for module in [m for m in sys.modules if m.split(".")[0] == "torchvision"]:
            del sys.modules[module]
    return pytest.importorskip(name, exc_type=ImportError)


_torchvision = torch.library.Library("torchvision", "FRAGMENT")
