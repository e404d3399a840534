"""Small nets of many kinds, for :mod:`torch_cpu_models`: each a function that returns a module and its inputs."""

from __future__ import annotations

import itertools
import math

import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, causal: bool = False):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=self.causal).transpose(1, 2).reshape(b, t, c))


class Layer(nn.Module):
    """A transformer's layer; ``post``: norms behind the sums, as in BERT."""

    def __init__(self, width: int, heads: int, causal: bool = False, post: bool = False, dropout: float = 0.0):
        super().__init__()
        self.attention, self.post, self.drop = Attention(width, heads, causal), post, nn.Dropout(dropout)
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        first, second = self.norms
        if self.post:
            x = first(x + self.drop(self.attention(x)))
            return second(x + self.drop(self.mlp(x)))
        x = x + self.drop(self.attention(first(x)))
        return x + self.drop(self.mlp(second(x)))


class Words(nn.Module):
    """An encoder, or a decoder, of words; its logits."""

    def __init__(self, width: int, layers: int, heads: int, words: int = 4000, **how):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Parameter(torch.randn(512, width) * 0.02)
        self.layers = nn.Sequential(*(Layer(width, heads, **how) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words)

    def forward(self, ids):
        return self.head(self.norm(self.layers(self.words(ids) + self.places[: ids.shape[1]])))


class Patches(nn.Module):
    """A vision transformer."""

    def __init__(self, width: int = 192, layers: int = 4, heads: int = 3, patch: int = 16, size: int = 128):
        super().__init__()
        self.patch = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, width) * 0.02)
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 100)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.places
        return self.head(self.norm(self.layers(x))[:, 0])


class MixerLayer(nn.Module):
    def __init__(self, width: int, tokens: int):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.tokens = nn.Sequential(nn.Linear(tokens, width), nn.GELU(), nn.Linear(width, tokens))
        self.channels = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.tokens(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norms[1](x))


class Mixer(nn.Module):
    def __init__(self, width: int = 256, layers: int = 4, patch: int = 32, size: int = 224):
        super().__init__()
        self.patch = nn.Conv2d(3, width, patch, patch)
        self.layers = nn.Sequential(*(MixerLayer(width, (size // patch) ** 2) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 100)

    def forward(self, x):
        return self.head(self.norm(self.layers(self.patch(x).flatten(2).transpose(1, 2))).mean(1))


def convolved(i: int, o: int, kernel: int = 3, stride: int = 1, groups: int = 1, act=nn.ReLU):
    conv = nn.Conv2d(i, o, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(o), *([act()] if act else []))


class Residual(nn.Module):
    def __init__(self, i: int, o: int, stride: int):
        super().__init__()
        self.body = nn.Sequential(convolved(i, o, 3, stride), convolved(o, o, act=None))
        self.skip = nn.Identity() if i == o and stride == 1 else convolved(i, o, 1, stride, act=None)

    def forward(self, x):
        return F.relu(self.body(x) + self.skip(x))


def residual_net(widths=(32, 64, 128)):
    blocks, i = [], widths[0]
    for k, width in enumerate(widths):
        blocks += [Residual(i, width, 1 + (k > 0)), Residual(width, width, 1)]
        i = width
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 100))
    return nn.Sequential(convolved(3, widths[0], 7, 2), nn.MaxPool2d(3, 2, 1), *blocks, *head)


class Inverted(nn.Module):
    """MobileNet's block, with squeeze and excitation."""

    def __init__(self, i: int, o: int, stride: int, act=nn.Hardswish):
        super().__init__()
        m = 4 * i
        self.expand, self.depth = convolved(i, m, 1, act=act), convolved(m, m, 3, stride, m, act=act)
        self.squeeze, self.excite = nn.Conv2d(m, m // 4, 1), nn.Conv2d(m // 4, m, 1)
        self.project, self.same = convolved(m, o, 1, act=None), i == o and stride == 1

    def forward(self, x):
        y = self.depth(self.expand(x))
        y = y * F.hardsigmoid(self.excite(F.relu(self.squeeze(y.mean((2, 3), keepdim=True)))))
        y = self.project(y)
        return x + y if self.same else y


def mobile_net(act=nn.Hardswish):
    shapes = [(16, 24, 2), (24, 24, 1), (24, 40, 2), (40, 40, 1), (40, 80, 2), (80, 80, 1)]
    body = [Inverted(*shape, act) for shape in shapes]
    return nn.Sequential(convolved(3, 16, 3, 2), *body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(80, 100))


class UNet(nn.Module):
    """With group norms; ``time``: a diffusion step's embedding is added in each block."""

    def __init__(self, width: int = 32, time: bool = False, out: int = 4):
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.ModuleList([self.block(width, width), self.block(width, 2 * width)])
        self.middle = self.block(2 * width, 2 * width)
        self.up = nn.ModuleList([self.block(4 * width, width), self.block(2 * width, width)])
        self.time = nn.ModuleList([nn.Linear(64, n * width) for n in (1, 2, 2)]) if time else None
        self.last = nn.Conv2d(width, 3 if time else out, 1)

    @staticmethod
    def block(i, o):
        return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.GroupNorm(8, o), nn.SiLU(),
                             nn.Conv2d(o, o, 3, padding=1), nn.GroupNorm(8, o), nn.SiLU())  # fmt: skip

    def forward(self, x, t=None):
        embedded = 0
        if t is not None:
            angles = t[:, None] * torch.exp(-math.log(1e4) * torch.arange(32, device=t.device) / 32)
            embedded = torch.cat([angles.sin(), angles.cos()], 1)
        add = lambda y, k: y if t is None else y + self.time[k](embedded)[:, :, None, None]  # noqa: E731
        x = self.first(x)
        a = add(self.down[0](x), 0)
        b = add(self.down[1](F.max_pool2d(a, 2)), 1)
        x = add(self.middle(F.avg_pool2d(b, 2)), 2)
        x = self.up[0](torch.cat([F.interpolate(x, scale_factor=2, mode="bilinear"), b], 1))
        x = self.up[1](torch.cat([F.interpolate(x, scale_factor=2, mode="nearest"), a], 1))
        return self.last(x)


class AutoEncoder(nn.Module):
    def __init__(self, width: int = 32, code: int = 64):
        super().__init__()
        self.encode = nn.Sequential(nn.Conv2d(3, width, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(width, 2 * width, 4, 2, 1),
                                    nn.BatchNorm2d(2 * width), nn.LeakyReLU(0.2), nn.Flatten(),
                                    nn.Linear(2 * width * 64, 2 * code))  # fmt: skip
        self.decode = nn.Sequential(nn.Linear(code, 2 * width * 64), nn.Unflatten(1, (2 * width, 8, 8)), nn.ReLU(),
                                    nn.ConvTranspose2d(2 * width, width, 4, 2, 1), nn.BatchNorm2d(width), nn.ReLU(),
                                    nn.ConvTranspose2d(width, 3, 4, 2, 1), nn.Sigmoid())  # fmt: skip

    def forward(self, x):
        mean, log_variance = self.encode(x).chunk(2, 1)
        return self.decode(mean + torch.exp(0.5 * log_variance) * torch.linspace(-1, 1, mean.shape[1]))


class Tagger(nn.Module):
    def __init__(self, rnn=nn.LSTM, width: int = 128, layers: int = 2):
        super().__init__()
        self.words = nn.Embedding(2000, width)
        self.rnn = rnn(width, width, layers, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, 20)

    def forward(self, ids):
        return self.head(torch.tanh(self.rnn(self.words(ids))[0]))


class Cells(nn.Module):
    """Recurrent cells, step by step."""

    def __init__(self, cell=nn.GRUCell, width: int = 64):
        super().__init__()
        self.cell, self.head = cell(32, width), nn.Linear(width, 10)

    def forward(self, x):
        h = x.new_zeros(len(x), self.cell.hidden_size)
        for step in range(x.shape[1]):
            h = self.cell(x[:, step], h)
        return self.head(h)


class GraphNet(nn.Module):
    """Messages along edges, summed at their destinations."""

    def __init__(self, width: int = 128, layers: int = 3, aggregate: str = "index_add"):
        super().__init__()
        self.aggregate = aggregate
        mlp = lambda i: nn.Sequential(nn.Linear(i, width), nn.SiLU(), nn.Linear(width, width))  # noqa: E731
        self.edge, self.node = (nn.ModuleList([mlp(2 * width) for _ in range(layers)]) for _ in range(2))
        self.norms, self.head = nn.ModuleList([nn.LayerNorm(width) for _ in range(layers)]), nn.Linear(width, 1)

    def forward(self, x, edges):
        source, target = edges
        for edge, node, norm in zip(self.edge, self.node, self.norms):
            messages = edge(torch.cat([x[source], x[target]], -1))
            if self.aggregate == "index_add":
                gathered = torch.zeros_like(x).index_add(0, target, messages)
            else:
                index = target[:, None].expand_as(messages)
                gathered = torch.zeros_like(x).scatter_reduce(0, index, messages, self.aggregate, include_self=False)
            x = norm(x + node(torch.cat([x, gathered], -1)))
        return self.head(x)


class GraphConvolution(nn.Module):
    """Graph convolutions with degrees, and attention over edges by a softmax of each destination."""

    def __init__(self, width: int = 64):
        super().__init__()
        self.first, self.second, self.score = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(2 * width, 1)
        self.head = nn.Linear(width, 7)

    def forward(self, x, edges):
        source, target = edges
        n = x.shape[0]
        degree = x.new_zeros(n).index_add(0, target, x.new_ones(len(target))).clamp(min=1)
        weight = (degree[source] * degree[target]).rsqrt()
        x = F.relu(x.new_zeros(n, x.shape[1]).index_add(0, target, self.first(x)[source] * weight[:, None]))
        y = self.second(x)
        scores = F.leaky_relu(self.score(torch.cat([y[source], y[target]], 1)).squeeze(1), 0.2)
        most = x.new_full((n,), -1e9).scatter_reduce(0, target, scores, "amax")
        e = torch.exp(scores - most[target])
        total = x.new_zeros(n).index_add(0, target, e)
        return self.head(torch.zeros_like(y).index_add(0, target, y[source] * (e / total[target])[:, None]))


class Recommender(nn.Module):
    """Embedding bags, products of their pairs, MLPs: as DLRM."""

    def __init__(self, tables: int = 8, width: int = 32):
        super().__init__()
        self.bags = nn.ModuleList([nn.EmbeddingBag(5000, width, mode="sum") for _ in range(tables)])
        self.bottom = nn.Sequential(nn.Linear(13, 128), nn.ReLU(), nn.Linear(128, width), nn.ReLU())
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(
            nn.Linear(pairs + width, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 1)
        )
        self.register_buffer("pairs", torch.tril_indices(tables + 1, tables + 1, -1))

    def forward(self, dense, bags):
        x = self.bottom(dense)
        every = torch.stack([x, *(bag(index) for bag, index in zip(self.bags, bags))], 1)
        products = torch.bmm(every, every.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return torch.sigmoid(self.top(torch.cat([x, products], 1)))


class Rotary(nn.Module):
    """A decoder as Llama's: RMS norms, rotated queries and keys, gated SiLU."""

    def __init__(self, width: int = 256, layers: int = 3, heads: int = 4, words: int = 4000):
        super().__init__()
        self.words, self.head, self.heads = nn.Embedding(words, width), nn.Linear(width, words, bias=False), heads
        linear = lambda i, o: nn.ModuleList([nn.Linear(i, o, bias=False) for _ in range(layers)])  # noqa: E731
        self.qkv, self.out = linear(width, 3 * width), linear(width, width)
        self.gate, self.up, self.down = linear(width, 3 * width), linear(width, 3 * width), linear(3 * width, width)
        self.norms = nn.ModuleList([nn.RMSNorm(width) for _ in range(2 * layers + 1)])

    def rotated(self, x):
        t, d = x.shape[-2:]
        angles = torch.arange(t)[:, None] * 1e4 ** (-torch.arange(0, d, 2) / d)
        cos, sin = (torch.cat([f, f], -1) for f in (angles.cos(), angles.sin()))
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat([-b, a], -1) * sin

    def forward(self, ids):
        x = self.words(ids)
        b, t, c = x.shape
        for k in range(len(self.qkv)):
            q, k_, v = (
                y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv[k](self.norms[2 * k](x)).chunk(3, -1)
            )
            y = F.scaled_dot_product_attention(self.rotated(q), self.rotated(k_), v, is_causal=True)
            x = x + self.out[k](y.transpose(1, 2).reshape(b, t, c))
            y = self.norms[2 * k + 1](x)
            x = x + self.down[k](F.silu(self.gate[k](y)) * self.up[k](y))
        return self.head(self.norms[-1](x))


def small_mlp(act=nn.Tanh, norm=False):
    layers, widths = [], (20, 64, 64, 64, 64)
    for i, o in itertools.pairwise(widths):
        layers += [nn.Linear(i, o), *([nn.LayerNorm(o)] if norm else []), act()]
    return nn.Sequential(*layers, nn.Linear(64, 3))


def images(batch: int, size: int):
    return (torch.randn(batch, 3, size, size),)


def words(batch: int, length: int, most: int = 2000):
    return (torch.randint(0, most, (batch, length)),)


def graph(nodes: int, edges: int, width: int):
    return torch.randn(nodes, width), torch.randint(0, nodes, (2, edges))


def bags(batch: int, tables: int = 8, length: int = 5):
    return torch.randn(batch, 13), [torch.randint(0, 5000, (batch, length)) for _ in range(tables)]


NETS = {
    "bert-1": lambda: (Words(256, 4, 4, post=True), words(1, 64)),
    "bert-8": lambda: (Words(256, 3, 4, post=True, dropout=0.1), words(8, 64)),
    "decoder": lambda: (Words(192, 3, 3, causal=True), words(4, 96)),
    "llama": lambda: (Rotary(), words(2, 96)),
    "vit": lambda: (Patches(), images(2, 128)),
    "mixer-1": lambda: (Mixer(), images(1, 224)),
    "mixer-16": lambda: (Mixer(layers=3), images(16, 224)),
    "resnet": lambda: (residual_net(), images(4, 96)),
    "mobilenet": lambda: (mobile_net(), images(4, 96)),
    "unet": lambda: (UNet(), images(2, 64)),
    "diffusion": lambda: (UNet(time=True), (*images(2, 32), torch.tensor([10.0, 700.0]))),
    "autoencoder": lambda: (AutoEncoder(), images(16, 32)),
    "lstm": lambda: (Tagger(), words(8, 40)),
    "gru": lambda: (Tagger(nn.GRU), words(4, 30)),
    "cells": lambda: (Cells(), (torch.randn(8, 30, 32),)),
    "graph": lambda: (GraphNet(), graph(256, 2048, 128)),
    "graph-max": lambda: (GraphNet(64, 2, "amax"), graph(500, 4000, 64)),
    "graph-attention": lambda: (GraphConvolution(), graph(1000, 6000, 64)),
    "recommender": lambda: (Recommender(), bags(128)),
    "mlp": lambda: (small_mlp(), (torch.randn(64, 20),)),
    "mlp-norm": lambda: (small_mlp(nn.SiLU, True), (torch.randn(256, 20),)),
}
