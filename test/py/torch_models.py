"""Small models with random weights that the torch tests train, and what compares them with eager."""

from __future__ import annotations

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
