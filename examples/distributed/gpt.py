"""A small GPT and what the scripts beside it share: the process group, random words, the loop."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F


class Layer(nn.Module):
    """Causal attention and a feed-forward, each behind a norm, with a residual connection."""

    def __init__(self, width: int, head: int):
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.head = head

    def forward(self, x):
        y = self.first(x)
        heads = (f(y).unflatten(-1, (-1, self.head)).transpose(1, 2) for f in (self.query, self.key, self.value))
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.out(mixed)
        return x + self.down(F.gelu(self.up(self.second(x))))


class GPT(nn.Module):
    """Words, (batch, length), to logits, (batch, length, words)."""

    def __init__(self, words: int = 256, width: int = 64, layers: int = 2, head: int = 16, length: int = 64):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Parameter(0.02 * torch.randn(length, width))
        self.layers = nn.ModuleList(Layer(width, head) for _ in range(layers))
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, words):
        x = self.words(words) + self.places
        for layer in self.layers:
            x = layer(x)
        return self.out(self.norm(x))


def start() -> str:
    """Joins the processes that torchrun started, over NCCL where there are GPUs. Gives the device's type."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    torch.manual_seed(0)
    return device


def batch(step: int, device: str, share: int = 0, shares: int = 1):
    """The words of a step, and those that follow them: all of them, or one of so many shares."""
    made = torch.randint(0, 256, (8, 65), generator=torch.Generator().manual_seed(step)).chunk(shares)[share].to(device)
    return made[:, :-1], made[:, 1:]


def train(model: Callable, parameters, batches) -> None:
    """AdamW for a few steps; rank 0 prints the losses."""
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, foreach=False)  # DTensors and tensors are not one list
    for step, (words, targets) in enumerate(batches):
        loss = F.cross_entropy(model(words).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.4f}")
    dist.destroy_process_group()
