"""Training programs as users of torch write them. Each is ``program(wrap, to)``: ``wrap`` compiles a function or a
module, or leaves it as it is, ``to`` brings a module or a tensor to the type and device that the program runs in. It
yields, step by step, the tensors that are compared. Random numbers inside of compiled functions are drawn in float32,
so that they are the same in every type."""

from __future__ import annotations

import collections
import copy
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_, parametrizations
from torch.utils._pytree import tree_map

Wrap = Callable[[Any], Any]
STEPS = 5


def _grads(module: nn.Module) -> list[torch.Tensor]:
    return [p.grad.clone() for p in module.parameters() if p.grad is not None]


def _mlp(*widths: int, act: Callable[[], nn.Module] = nn.GELU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b), act()]
    return nn.Sequential(*layers[:-1])


def schedule_and_average(wrap: Wrap, to: Wrap) -> Iterator[list[torch.Tensor]]:
    """AdamW in groups, warm-up and cosine, clipped gradients, and an average of the weights, kept by a compiled function
    that writes in place."""
    model = to(_mlp(12, 32, 32, 5))
    run, average = wrap(model), copy.deepcopy(model)
    decayed = [p for p in model.parameters() if p.ndim > 1]
    other = [p for p in model.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": other, "weight_decay": 0.0}], lr=1e-2, eps=1e-3
    )
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.2, total_iters=2)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, cosine], [2])

    @wrap
    @torch.no_grad()
    def follow(averages, weights, decay):
        for a, w in zip(averages, weights):
            a.mul_(decay).add_(w, alpha=1 - decay)

    for step in range(STEPS):
        x, y = to(torch.randn(16, 12)), to(torch.randint(0, 5, (16,)))
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        loss = F.cross_entropy(run(x), y, label_smoothing=0.1)
        loss.backward()
        norm = clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        schedule.step()
        follow(list(average.parameters()), [p.detach() for p in model.parameters()], 0.9 + 0.01 * step)
        yield [loss.detach(), norm, *_grads(model), *average.parameters()]


def adversaries(wrap: Wrap, to: Wrap) -> Iterator[list[torch.Tensor]]:
    """A generator and a discriminator with spectral norms, whose power iteration writes buffers, in turns."""
    make = to(nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32), nn.LeakyReLU(0.2), nn.Linear(32, 10), nn.Tanh()))
    judge = to(
        nn.Sequential(
            parametrizations.spectral_norm(nn.Linear(10, 24)),
            nn.LeakyReLU(0.2, inplace=True),
            parametrizations.spectral_norm(nn.Linear(24, 1)),
        )
    )
    makes, judges = wrap(make), wrap(judge)
    opts = [torch.optim.RMSprop(m.parameters(), lr=1e-3, eps=1e-3) for m in (make, judge)]
    for _ in range(STEPS):
        real, noise = to(torch.randn(8, 10)), to(torch.randn(8, 6))
        opts[1].zero_grad()
        fake = makes(noise)
        good, bad = judges(real), judges(fake.detach())
        loss = F.binary_cross_entropy_with_logits(good, torch.ones_like(good)) + F.softplus(bad).mean()
        loss.backward()
        seen = [loss.detach(), *_grads(judge)]
        opts[1].step()
        opts[0].zero_grad()
        judge.requires_grad_(False)
        fooled = F.softplus(-judges(makes(noise))).mean()
        fooled.backward()
        judge.requires_grad_(True)
        seen += [fooled.detach(), *_grads(make)]
        opts[0].step()
        yield [*seen, *make.buffers(), *judge.buffers()]


def policy_gradient(wrap: Wrap, to: Wrap) -> Iterator[list[torch.Tensor]]:
    """PPO: advantages by a loop from the end, a categorical policy, ratios that are clipped, entropy."""
    body, actor, critic = to(_mlp(4, 32, 32, act=nn.Tanh)), to(nn.Linear(32, 3)), to(nn.Linear(32, 1))
    every = nn.ModuleList([body, actor, critic])
    optimizer = torch.optim.Adam(every.parameters(), lr=3e-3, eps=1e-3)

    @wrap
    def advantages(rewards, values, done):
        out, last = [], torch.zeros_like(rewards[0])
        for t in reversed(range(len(rewards))):
            after = values[t + 1] if t + 1 < len(rewards) else torch.zeros_like(values[t])
            going = 1.0 - done[t]
            last = rewards[t] + 0.99 * after * going - values[t] + 0.99 * 0.95 * going * last
            out.insert(0, last)
        out = torch.stack(out)
        return (out - out.mean()) / (out.std() + 1e-8), out + values

    @wrap
    def loss_of(seen, actions, before, advantage, returns):
        h = body(seen)
        policy = torch.distributions.Categorical(logits=actor(h))
        ratio = (policy.log_prob(actions) - before).exp()
        clipped = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        value = F.smooth_l1_loss(critic(h).squeeze(-1), returns)
        return -clipped.mean() + 0.5 * value - 0.01 * policy.entropy().mean(), ((ratio - 1).abs() > 0.2).float().mean()

    for _ in range(STEPS):
        seen, actions = to(torch.randn(7, 3, 4)), to(torch.randint(0, 3, (7, 3)))
        rewards, done = to(torch.randn(7, 3)), to((torch.rand(7, 3) < 0.2).float())
        with torch.no_grad():
            h = body(seen)
            before = F.log_softmax(actor(h), -1).gather(-1, actions[..., None]).squeeze(-1)
            values = critic(h).squeeze(-1)
        advantage, returns = advantages(rewards, values, done)
        for _ in range(2):
            optimizer.zero_grad()
            loss, clipped = loss_of(seen, actions, before, advantage, returns)
            loss.backward()
            optimizer.step()
        yield [advantage, returns, loss.detach(), clipped, *_grads(every)]


def autoencoder(wrap: Wrap, to: Wrap) -> Iterator[list[torch.Tensor]]:
    """Variational: a normal latent that is sampled inside, KL of distributions, transposed convolutions."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.down = nn.Sequential(nn.Conv2d(1, 8, 4, 2, 1), nn.SiLU(), nn.Conv2d(8, 8, 4, 2, 1), nn.SiLU())
            self.both, self.wide = nn.Linear(8 * 16, 2 * 6), nn.Linear(6, 8 * 16)
            self.up = nn.Sequential(
                nn.ConvTranspose2d(8, 8, 4, 2, 1), nn.GroupNorm(2, 8), nn.SiLU(), nn.ConvTranspose2d(8, 1, 4, 2, 1)
            )

        def forward(self, x):
            mean, log = self.both(self.down(x).flatten(1)).chunk(2, -1)
            z = torch.distributions.Normal(mean, (log / 2).exp())
            sample = mean + z.scale * torch.randn(mean.shape, device=mean.device).to(mean.dtype)
            again = self.up(self.wide(sample).view(-1, 8, 4, 4))
            prior = torch.distributions.Normal(torch.zeros_like(mean), torch.ones_like(mean))
            return again, torch.distributions.kl_divergence(z, prior).sum(-1).mean()

    model = to(Model())
    run, optimizer = wrap(model), torch.optim.Adamax(model.parameters(), lr=1e-3, eps=1e-3)
    for step in range(STEPS):
        x = to(torch.rand(4, 1, 16, 16))
        optimizer.zero_grad()
        again, apart = run(x)
        loss = F.binary_cross_entropy_with_logits(again, x, reduction="none").sum((1, 2, 3)).mean() + 0.1 * step * apart
        loss.backward()
        optimizer.step()
        yield [loss.detach(), again.detach(), *_grads(model)]


def recurrence(wrap: Wrap, to: Wrap) -> Iterator[list[torch.Tensor]]:
    """A gated cell by hand over a batch of lengths, its state carried from batch to batch and detached."""

    class Cell(nn.Module):
        def __init__(self, inner, width):
            super().__init__()
            self.gates, self.new = nn.Linear(inner + width, 2 * width), nn.Linear(inner + width, width)
            self.first = nn.Parameter(torch.zeros(width))

        def forward(self, xs, h, lengths):
            if h is None:
                h = self.first.expand(xs.shape[1], -1)
            out = []
            for t, x in enumerate(xs):
                r, z = self.gates(torch.cat([x, h], -1)).sigmoid().chunk(2, -1)
                n = self.new(torch.cat([x, r * h], -1)).tanh()
                h = torch.where((t < lengths)[:, None], (1 - z) * n + z * h, h)
                out.append(h)
            return torch.stack(out), h

    cell, head = to(Cell(5, 16)), to(nn.Linear(16, 5))
    run, optimizer = wrap(cell), torch.optim.SGD([*cell.parameters(), *head.parameters()], lr=0.1, momentum=0.9)
    h = None
    for step in range(STEPS):
        xs, lengths = to(torch.randn(6 + step // 3, 4, 5)), to(torch.tensor([6, 3, 5, 1]))
        optimizer.zero_grad()
        out, h = run(xs, h, lengths)
        loss = F.mse_loss(head(out[:-1]), xs[1:])
        loss.backward()
        optimizer.step()
        h = h.detach()
        yield [loss.detach(), h, *_grads(cell)]


def contrast(wrap: Wrap, to: Wrap) -> Iterator[list[torch.Tensor]]:
    """Two towers, a learned temperature that is clamped in place, a queue of negatives in a buffer."""

    class Towers(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = _mlp(8, 32, 16), _mlp(6, 32, 16)
            self.scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))
            self.register_buffer("queue", F.normalize(torch.randn(12, 16), dim=-1))
            self.register_buffer("place", torch.zeros((), dtype=torch.long))

        def forward(self, a, b):
            a, b = F.normalize(self.one(a), dim=-1), F.normalize(self.two(b), dim=-1)
            scale = self.scale.exp()
            logits = torch.cat([a @ b.t(), a @ self.queue.clone().t()], 1) * scale
            target = torch.arange(len(a), device=a.device)
            loss = (F.cross_entropy(logits, target) + F.cross_entropy(logits[:, : len(a)].t(), target)) / 2
            with torch.no_grad():
                rows = (self.place + torch.arange(len(b), device=b.device)) % len(self.queue)
                self.queue[rows] = b
                self.place.copy_((self.place + len(b)) % len(self.queue))
            return loss, (logits.argmax(1) == target).sum()

    model = to(Towers())
    run, optimizer = wrap(model), torch.optim.SGD(model.parameters(), lr=0.2)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss, right = run(to(torch.randn(5, 8)), to(torch.randn(5, 6)))
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            model.scale.clamp_(0, math.log(15))
        yield [loss.detach(), right, model.queue.clone(), model.place.clone(), *_grads(model)]


class _Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, steps, keep):
        ctx.save_for_backward(x)
        ctx.keep = keep
        return (x * steps).round() / steps

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * (x.abs() <= ctx.keep), None, None


def codebook(wrap: Wrap, to: Wrap) -> Iterator[list[torch.Tensor]]:
    """An autograd Function with a straight-through gradient, and a codebook of moving averages: distances, one-hot rows,
    sums by position into buffers."""

    class Quantized(nn.Module):
        def __init__(self):
            super().__init__()
            self.inward, self.outward = _mlp(6, 24, 8), _mlp(8, 24, 6)
            self.register_buffer("codes", torch.randn(10, 8))
            self.register_buffer("counts", torch.ones(10))
            self.register_buffer("sums", self.codes.clone())

        def forward(self, x):
            z = _Rounded.apply(self.inward(x), 64, 3.0)
            nearest = torch.cdist(z, self.codes).argmin(-1)
            found = self.codes[nearest]
            if self.training:
                with torch.no_grad():
                    hot = F.one_hot(nearest, 10).to(z.dtype)
                    self.counts.mul_(0.9).add_(hot.sum(0), alpha=0.1)
                    self.sums.mul_(0.9).index_add_(0, nearest, z.detach(), alpha=0.1)
                    self.codes.copy_(self.sums / (self.counts[:, None] + 1e-5))
            commit = (z - found.detach()).square().mean()
            return self.outward(z + (found - z).detach()), commit, nearest

    model = to(Quantized())
    run, optimizer = wrap(model), torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(STEPS):
        x = to(torch.randn(9, 6))
        optimizer.zero_grad()
        again, commit, nearest = run(x)
        loss = F.mse_loss(again, x) + 0.25 * commit
        loss.backward()
        optimizer.step()
        yield [loss.detach(), nearest, *_grads(model), *(b.clone() for b in model.buffers())]


def low_rank(wrap: Wrap, to: Wrap) -> Iterator[list[torch.Tensor]]:
    """LoRA: frozen weights beneath adapters; half of the way they are merged and taken out again, and more unfreezes."""

    class Adapted(nn.Module):
        def __init__(self, base, rank=3):
            super().__init__()
            self.base = base.requires_grad_(False)
            self.down = nn.Parameter(torch.randn(rank, base.in_features) / 4)
            self.up = nn.Parameter(torch.zeros(base.out_features, rank))
            self.scaling = 2 / rank

        def forward(self, x):
            return self.base(x) + F.linear(F.linear(x, self.down), self.up) * self.scaling

    base = _mlp(8, 24, 24, 4)
    for k in (0, 2):
        base[k] = Adapted(base[k])
    base[4].requires_grad_(False)
    model = to(base)
    run = wrap(model)
    for step in range(STEPS):
        if step == 3:
            model[4].bias.requires_grad_(True)
            with torch.no_grad():
                model[0].base.weight += model[0].up @ model[0].down * model[0].scaling
                model[0].up.zero_()
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.2)
        optimizer.zero_grad()
        loss = F.cross_entropy(run(to(torch.randn(6, 8))), to(torch.randint(0, 4, (6,))))
        loss.backward()
        optimizer.step()
        assert (model[4].bias.grad is not None) == (step >= 3) and model[2].base.weight.grad is None
        yield [loss.detach(), *_grads(model)]


def quantiles(wrap: Wrap, to: Wrap) -> Iterator[list[torch.Tensor]]:
    """Quantile regression with targets that are missing (NaN), crossings penalized, coverage by sorting."""
    model, levels = to(_mlp(3, 32, 5)), to(torch.tensor([0.05, 0.25, 0.5, 0.75, 0.95]))

    @wrap
    def loss_of(x, y):
        known = ~y.isnan()
        guess = model(x)
        apart = torch.where(known, y, 0.0)[:, None] - guess
        pinball = torch.maximum(levels * apart, (levels - 1) * apart)
        pinball = (pinball * known[:, None]).sum(0) / known.sum().clamp_min(1)
        crossed = F.relu(guess[:, :-1] - guess[:, 1:] + 0.01).pow(2).mean()
        below = ((y[:, None] <= guess) & known[:, None]).to(x.dtype).sum(0) / known.sum()
        return pinball.mean() + crossed, pinball, below, guess.sort(-1).values, torch.nanmedian(y), torch.nanmean(y)

    optimizer = torch.optim.NAdam(model.parameters(), lr=1e-2, eps=1e-3)
    for _ in range(STEPS):
        x, y = to(torch.randn(20, 3)), to(torch.randn(20))
        y[::4] = float("nan")
        optimizer.zero_grad()
        loss, *more = loss_of(x, y)
        loss.backward()
        optimizer.step()
        yield [loss.detach(), *(m.detach() for m in more), *_grads(model)]


def windows(wrap: Wrap, to: Wrap) -> Iterator[list[torch.Tensor]]:
    """Patches, shifted windows, pixel shuffle, unfold and einsum: what einops would write."""

    class Windowed(nn.Module):
        def __init__(self, width=16, heads=2, side=4):
            super().__init__()
            self.patch, self.qkv = nn.Linear(3 * 4, width), nn.Linear(width, 3 * width)
            self.bias = nn.Parameter(torch.zeros(heads, side * side, side * side))
            self.norm, self.out, self.heads, self.side = nn.LayerNorm(width), nn.Linear(width, 12), heads, side

        def windowed(self, x, shift):
            b, h, w, c = x.shape
            s = self.side
            x = torch.roll(x, (-shift, -shift), (1, 2)) if shift else x
            parts = x.view(b, h // s, s, w // s, s, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, s * s, c)
            q, k, v = self.qkv(self.norm(parts)).view(len(parts), s * s, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            weights = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5 + self.bias
            mixed = torch.einsum("bhij,bhjd->bihd", weights.softmax(-1), v).flatten(2)
            mixed = mixed.view(b, h // s, w // s, s, s, c).transpose(2, 3).reshape(b, h, w, c)
            return torch.roll(mixed, (shift, shift), (1, 2)) if shift else mixed

        def forward(self, x):
            b, _, h, w = x.shape
            y = self.patch(x.unfold(2, 2, 2).unfold(3, 2, 2).permute(0, 2, 3, 1, 4, 5).flatten(3))
            y = y + self.windowed(y, 0)
            y = y + self.windowed(y, self.side // 2)
            near = F.unfold(y.permute(0, 3, 1, 2), 3, padding=1).view(b, 16, 9, h // 2, w // 2).amax(2)
            return F.pixel_shuffle(self.out(y).permute(0, 3, 1, 2), 2), near.mean((2, 3))

    model = to(Windowed())
    run, optimizer = wrap(model), torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        x = to(torch.randn(2, 3, 16, 16))
        optimizer.zero_grad()
        again, near = run(x)
        loss = F.l1_loss(again, x) + near.square().mean()
        loss.backward()
        optimizer.step()
        yield [loss.detach(), again.detach(), *_grads(model)]


def masks_in_place(wrap: Wrap, to: Wrap) -> Iterator[list[torch.Tensor]]:
    """Masks that are written into: fills, assignments by masks, positions and slices, diagonals, scatters."""
    layer = to(nn.Linear(6, 6))

    @wrap
    def run(x, keep, rows, told):
        y = layer(x)
        y = y.masked_fill(~keep[:, None], 0.0)
        y[:, ::2] *= 2
        y[1:, 0] += y[:-1, 1].detach()
        y[y > 1.5] = 1.5
        y[rows, rows] = x[rows, 0] * 3
        z = y.clone()
        z.diagonal().fill_(1).mul_(2)
        z.scatter_(1, rows[:, None], -y[rows, 2:3])
        z.masked_fill_(torch.ones_like(z, dtype=torch.bool).triu(1), -1e9)
        weights = z.softmax(-1) * 1
        weights[0].zero_()
        z.clamp_(max=4).relu_()
        index = torch.zeros_like(z).index_put_((rows, rows.flip(0)), x.new_ones(3), accumulate=True)
        keep.logical_not_()
        told.index_fill_(1, rows, 0.25)[2:] -= x[2:]
        return weights @ y, z, index, torch.masked_select(y.detach(), y.detach() > 0).sum()

    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for step in range(STEPS):
        x, told, keep = to(torch.randn(6, 6)), to(torch.zeros(6, 6)), to(torch.arange(6) % 3 != step % 3)
        optimizer.zero_grad()
        out, z, index, total = run(x, keep, to(torch.tensor([0, 4, 2])), told)
        loss = out.square().sum() + z.sum()
        loss.backward()
        optimizer.step()
        yield [loss.detach(), out.detach(), z.detach(), index, total, told, keep, *_grads(layer)]


def from_meta(wrap: Wrap, to: Wrap) -> Iterator[list[torch.Tensor]]:
    """Made on the device ``meta`` and filled; the forward asks tensors there for shapes."""

    class Planned(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = nn.Conv1d(2, 4, 3, stride=2)
            with torch.no_grad():
                plan = self.one(torch.empty(1, 2, 17, device="meta"))
            self.two = nn.Linear(plan.flatten(1).shape[1], 3)
            self.register_buffer("shape", torch.empty(5, 3, device="meta"))

        def forward(self, x):
            y = self.two(self.one(x).relu().flatten(1))
            told = torch.empty_like(y, device="meta").t().unsqueeze(0).expand(2, -1, -1)
            return y * told.shape[1] + self.shape.shape[0], told.sum(0)

    with torch.device("meta"):
        model = Planned()
    shape = model._buffers.pop("shape")
    model.to_empty(device="cpu")
    model._buffers["shape"] = shape
    torch.manual_seed(1)
    for part in (model.one, model.two):
        part.reset_parameters()
    model.one, model.two = to(model.one), to(model.two)
    run, optimizer = wrap(model), torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        optimizer.zero_grad()
        y, told = run(to(torch.randn(4, 2, 17)))
        assert told.is_meta and told.shape == (3, 4)
        loss = y.square().mean()
        loss.backward()
        optimizer.step()
        yield [loss.detach(), *_grads(model)]


def bags(wrap: Wrap, to: Wrap) -> Iterator[list[torch.Tensor]]:
    """Recommendation: bags of embeddings in three modes, weighted, dot products of pairs, Adagrad."""

    class Recommender(nn.Module):
        def __init__(self):
            super().__init__()
            self.sums = nn.EmbeddingBag(20, 8, mode="sum", padding_idx=0)
            self.means = nn.EmbeddingBag(15, 8, mode="mean")
            self.most = nn.EmbeddingBag(15, 8, mode="max")
            self.one = nn.Embedding(9, 8, max_norm=None, padding_idx=3)
            self.dense, self.top = _mlp(4, 16, 8, act=nn.ReLU), _mlp(8 + 10, 16, 1, act=nn.ReLU)

        def forward(self, dense, words, starts, weights, one):
            parts = [
                self.dense(dense),
                self.sums(words, starts, per_sample_weights=weights),
                self.means(words % 15, starts),
                self.most(words % 15, starts),
                self.one(one),
            ]
            stacked = torch.stack(parts, 1)
            pairs = torch.bmm(stacked, stacked.transpose(1, 2))
            i, j = torch.tril_indices(5, 5, offset=-1, device=dense.device)
            return self.top(torch.cat([parts[0], pairs[:, i, j]], 1)).squeeze(1)

    model = to(Recommender())
    run, optimizer = wrap(model), torch.optim.Adagrad(model.parameters(), lr=0.05, eps=1e-3)
    for step in range(STEPS):
        n = 11 + step
        words, starts = to(torch.randint(0, 20, (n,))), to(torch.tensor([0, 3, 3, 7]))
        optimizer.zero_grad()
        score = run(to(torch.randn(4, 4)), words, starts, to(torch.rand(n)), to(torch.tensor([1, 3, 8, 1])))
        loss = F.binary_cross_entropy_with_logits(score, to(torch.tensor([1.0, 0, 1, 0])))
        loss.backward()
        optimizer.step()
        yield [loss.detach(), *_grads(model)]


def frequencies(wrap: Wrap, to: Wrap) -> Iterator[list[torch.Tensor]]:
    """A Fourier layer with complex weights, and a spectral loss."""

    class Spectral(nn.Module):
        def __init__(self, width=6, modes=5):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(width, width, modes, 2) / width)
            self.around, self.modes = nn.Conv1d(width, width, 1), modes

        def forward(self, x):
            z = torch.fft.rfft(x, dim=-1)
            mixed = torch.einsum("bim,iom->bom", z[..., : self.modes], torch.view_as_complex(self.weight))
            out = torch.zeros_like(z)
            out[..., : self.modes] = mixed
            return F.gelu(torch.fft.irfft(out, n=x.shape[-1], dim=-1) + self.around(x))

    model = to(nn.Sequential(nn.Conv1d(1, 6, 1), Spectral(), Spectral(), nn.Conv1d(6, 1, 1)))
    run, optimizer = wrap(model), torch.optim.SGD(model.parameters(), lr=0.05)

    @wrap
    def loss_of(y, wanted):
        a, b = torch.fft.fft2(y), torch.fft.fft2(wanted)
        return (y - wanted).square().mean() + (a - b).abs().mean() * 0.01 + (a * b.conj()).real.mean() * 1e-4

    for step in range(STEPS):
        x = to(torch.randn(3, 1, 16 if step < 3 else 20))
        optimizer.zero_grad()
        loss = loss_of(run(x), x.cumsum(-1))
        loss.backward()
        optimizer.step()
        yield [loss.detach(), *_grads(model)]


def graphs(wrap: Wrap, to: Wrap) -> Iterator[list[torch.Tensor]]:
    """Attention over the edges of a graph whose number changes: gathers, softmax by scattering, pools."""

    class Edges(nn.Module):
        def __init__(self, width=8):
            super().__init__()
            self.lin, self.a, self.out = nn.Linear(width, width), nn.Linear(2 * width, 1), nn.Linear(width, 3)

        def forward(self, x, edges, batch, count: int):
            for _ in range(2):
                source, target = edges
                h = self.lin(x)
                score = F.leaky_relu(self.a(torch.cat([h[source], h[target]], -1)).squeeze(-1), 0.2)
                most = torch.full_like(x[:, 0], -torch.inf).scatter_reduce(0, target, score, "amax").detach()
                weight = (score - most[target]).exp()
                total = torch.zeros_like(x[:, 0]).scatter_add(0, target, weight)
                mixed = torch.zeros_like(h).index_add(0, target, h[source] * (weight / total[target])[:, None])
                x = F.elu(mixed) + x
            size = torch.bincount(batch, minlength=count).clamp(min=1)
            pooled = x.new_zeros(count, x.shape[1]).scatter_add_(0, batch[:, None].expand_as(x), x)
            return self.out(pooled / size[:, None])

    model = to(Edges())
    run, optimizer = wrap(model), torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        nodes, edges = 10 + step, 25 + 2 * step
        batch = to(torch.arange(nodes) * 3 // nodes)
        optimizer.zero_grad()
        given = to(torch.randn(nodes, 8)), to(torch.randint(0, nodes, (2, edges))), batch
        loss = F.cross_entropy(run(*given, 3), to(torch.tensor([0, 2, 1])))
        loss.backward()
        optimizer.step()
        yield [loss.detach(), *_grads(model)]


def chains(wrap: Wrap, to: Wrap) -> Iterator[list[torch.Tensor]]:
    """A conditional random field: the forward algorithm as a loop of logsumexp, the best path, and CTC."""
    scores, moves = to(nn.Linear(6, 5)), to(nn.Parameter(torch.randn(5, 5) / 3))
    moves = nn.Parameter(moves.detach())

    @wrap
    def loss_of(x, tags, mask):
        emit = scores(x)
        alpha = emit[:, 0]
        for t in range(1, x.shape[1]):
            new = torch.logsumexp(alpha[:, :, None] + moves, 1) + emit[:, t]
            alpha = torch.where(mask[:, t, None], new, alpha)
        gold = (emit.gather(2, tags[..., None]).squeeze(2) * mask).sum(1)
        gold = gold + (moves[tags[:, :-1], tags[:, 1:]] * mask[:, 1:]).sum(1)
        return (alpha.logsumexp(1) - gold).mean()

    @wrap
    @torch.no_grad()
    def best(x):
        emit, back = scores(x), []
        v = emit[:, 0]
        for t in range(1, x.shape[1]):
            v, where = (v[:, :, None] + moves).max(1)
            v = v + emit[:, t]
            back.append(where)
        path = [v.argmax(1)]
        for where in reversed(back):
            path.insert(0, where.gather(1, path[0][:, None]).squeeze(1))
        return torch.stack(path, 1)

    @wrap
    def temporal(x, tags):
        logits = F.log_softmax(scores(x), -1).transpose(0, 1)
        return F.ctc_loss(logits, tags[:, :3].clamp(min=1), (7, 7, 7), (3, 2, 1), zero_infinity=True)

    every = [*scores.parameters(), moves]
    optimizer = torch.optim.SGD(every, lr=0.1)
    for _ in range(STEPS):
        x, tags = to(torch.randn(3, 7, 6)), to(torch.randint(0, 5, (3, 7)))
        mask = to(torch.arange(7) < torch.tensor([[7], [4], [2]]))
        optimizer.zero_grad()
        one, two = loss_of(x, tags, mask), temporal(x, tags)
        (one + two).backward()
        optimizer.step()
        yield [one.detach(), two.detach(), best(x), *(p.grad.clone() for p in every)]


def physics(wrap: Wrap, to: Wrap) -> Iterator[list[torch.Tensor]]:
    """A network whose derivatives stand in the loss, by ``torch.func`` inside, and an integration in steps."""
    model = to(_mlp(2, 16, 16, 1, act=nn.Tanh))

    @wrap
    def loss_of(points):
        u = lambda p: model(p).squeeze(-1)  # noqa: E731
        first = torch.func.vmap(torch.func.grad(u))(points)
        second = torch.func.vmap(lambda p: torch.func.jacfwd(torch.func.grad(u))(p).diagonal())(points)
        return (first[:, 1] - 0.1 * second[:, 0] + u(points) * first[:, 0]).square().mean()

    @wrap
    def integrated(y):
        h = 0.1
        for _ in range(4):
            a = model(y)
            b = model(y + h / 2 * a)
            c = model(y + h / 2 * b)
            y = y + h / 6 * (a + 2 * b + 2 * c + model(y + h * c))
        return y

    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(to(torch.randn(7, 2))) + integrated(to(torch.randn(5, 2))).square().mean()
        loss.backward()
        optimizer.step()
        yield [loss.detach(), *_grads(model)]


def learning_to_learn(wrap: Wrap, to: Wrap) -> Iterator[list[torch.Tensor]]:
    """MAML: inner steps by ``torch.func.grad`` of a functional call, mapped over tasks, in one compiled function."""
    model = to(_mlp(1, 16, 1))
    names = [n for n, _ in model.named_parameters()]

    @wrap
    def loss_of(params, x, y, far, wanted):
        def fit(params, x, y):
            return F.mse_loss(torch.func.functional_call(model, params, (x,)), y)

        def task(x, y, far, wanted):
            inner = params
            for _ in range(2):
                slope = torch.func.grad(fit)(inner, x, y)
                inner = {n: inner[n] - 0.1 * slope[n] for n in names}
            return fit(inner, far, wanted)

        return torch.func.vmap(task)(x, y, far, wanted).mean()

    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, eps=1e-3)
    for _ in range(STEPS):
        x, far, phase = to(torch.randn(3, 5, 1)), to(torch.randn(3, 5, 1)), to(torch.rand(3, 1, 1))
        optimizer.zero_grad()
        loss = loss_of(dict(model.named_parameters()), x, (x + phase).sin(), far, (far + phase).sin())
        loss.backward()
        optimizer.step()
        yield [loss.detach(), *_grads(model)]


def experts(wrap: Wrap, to: Wrap) -> Iterator[list[torch.Tensor]]:
    """Tokens routed to two of four experts, each expert's rows chosen by a mask, so that sizes depend on values."""

    class Routed(nn.Module):
        def __init__(self, width=8):
            super().__init__()
            self.route = nn.Linear(width, 4, bias=False)
            self.experts = nn.ModuleList(_mlp(width, 16, width, act=nn.SiLU) for _ in range(4))

        def forward(self, x):
            weights, chosen = self.route(x).softmax(-1).topk(2)
            weights = weights / weights.sum(-1, keepdim=True)
            out = torch.zeros_like(x)
            for k, expert in enumerate(self.experts):
                rows, slot = torch.where(chosen == k)
                out.index_add_(0, rows, expert(x[rows]) * weights[rows, slot, None])
            load = F.one_hot(chosen, 4).to(x.dtype).mean((0, 1))
            return x + out, 4 * (load * self.route(x).softmax(-1).mean(0)).sum()

    model = to(Routed())
    run, optimizer = wrap(model), torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        x = to(torch.randn(12, 8))
        optimizer.zero_grad()
        out, balance = run(x)
        loss = (out - x.roll(1, 0)).square().mean() + 0.01 * balance
        loss.backward()
        optimizer.step()
        yield [loss.detach(), *_grads(model)]


def diffusion(wrap: Wrap, to: Wrap) -> Iterator[list[torch.Tensor]]:
    """Noise by a schedule of cumulative products, times as sines, weights that are averaged by one call, and a few
    steps of sampling."""
    model, betas = to(_mlp(4 + 8, 32, 4, act=nn.SiLU)), torch.linspace(1e-4, 0.3, 20)
    kept = to((1 - betas).cumprod(0))
    shadow = [p.detach().clone() for p in model.parameters()]

    def noise_of(x, t):
        angles = t[:, None] * torch.exp(torch.arange(4, device=x.device, dtype=x.dtype) * -math.log(100.0) / 4)
        return model(torch.cat([x, angles.sin(), angles.cos()], -1))

    @wrap
    def loss_of(x, t, noise):
        a = kept[t][:, None]
        weight = (a / (1 - a)).clamp(max=5.0)
        found = noise_of(a.sqrt() * x + (1 - a).sqrt() * noise, t)
        return ((found - noise).square() * weight).mean()

    @wrap
    @torch.no_grad()
    def sampled(x, times: list[int]):
        for t, before in zip(times, [*times[1:], -1]):
            a = kept[t]
            b = kept[before] if before >= 0 else torch.ones_like(a)
            e = noise_of(x, torch.full((len(x),), t, device=x.device))
            x = b.sqrt() * ((x - (1 - a).sqrt() * e) / a.sqrt()).clamp(-2, 2) + (1 - b).sqrt() * e
        return x

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(to(torch.randn(8, 4)), to(torch.randint(0, 20, (8,))), to(torch.randn(8, 4)))
        loss.backward()
        optimizer.step()
        torch._foreach_lerp_(shadow, [p.detach() for p in model.parameters()], 0.1)
        yield [loss.detach(), sampled(to(torch.randn(3, 4)), [15, 9, 2]), *_grads(model), *shadow]


def detection(wrap: Wrap, to: Wrap) -> Iterator[list[torch.Tensor]]:
    """Boxes: overlaps, matches by argmin, focal and dice losses, a bilinear crop of a feature map."""
    body = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.InstanceNorm2d(8, affine=True), nn.Hardswish(), nn.AvgPool2d(2))
    model = to(
        nn.ModuleDict({"body": body, "box": nn.Linear(8, 4), "kind": nn.Linear(8, 3), "mask": nn.Conv2d(8, 1, 1)})
    )

    def overlap(a, b):
        size = lambda t: (t[..., 2:] - t[..., :2]).clamp(min=0).prod(-1)  # noqa: E731
        common = (torch.min(a[:, None, 2:], b[None, :, 2:]) - torch.max(a[:, None, :2], b[None, :, :2])).clamp(min=0)
        both = common.prod(-1)
        return both / (size(a)[:, None] + size(b) - both + 1e-6)

    @wrap
    def loss_of(picture, boxes, kinds, mask):
        features = model["body"](picture)
        rows = features.flatten(2).transpose(1, 2)[0]
        place, size = model["box"](rows).sigmoid().chunk(2, -1)
        found = torch.cat([place - size / 2, place + size / 2], -1)
        match = (-overlap(found, boxes) + torch.cdist(found, boxes, p=1)).argmin(0)
        logits = model["kind"](rows)
        target = torch.zeros_like(logits)
        target[match, kinds] = 1
        p = logits.sigmoid()
        focal = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
        focal = (focal * (1 - p * target - (1 - p) * (1 - target)) ** 2 * 0.25).sum()
        grid = F.affine_grid(
            torch.eye(2, 3, device=picture.device, dtype=picture.dtype)[None] * 0.7, (1, 8, 6, 6), False
        )
        crop = F.grid_sample(features, grid, align_corners=False)
        drawn = F.interpolate(model["mask"](crop), scale_factor=2, mode="bilinear", align_corners=False).sigmoid()
        dice = 1 - (2 * (drawn * mask).sum() + 1) / (drawn.sum() + mask.sum() + 1)
        return (
            focal + dice + F.smooth_l1_loss(found[match], boxes) + (1 - overlap(found[match], boxes).diagonal()).mean()
        )

    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(STEPS):
        corner = torch.rand(3, 2) * 0.5
        boxes = to(torch.cat([corner, corner + 0.2 + torch.rand(3, 2) * 0.3], -1))
        optimizer.zero_grad()
        mask = to((torch.rand(1, 1, 12, 12) > 0.5).float())
        loss = loss_of(to(torch.randn(1, 3, 16, 16)), boxes, to(torch.tensor([0, 2, 1])), mask)
        loss.backward()
        optimizer.step()
        yield [loss.detach(), *_grads(model)]


def transport(wrap: Wrap, to: Wrap) -> Iterator[list[torch.Tensor]]:
    """Sinkhorn's loop until it is near, as Python's ``while`` over a number that is read back; soft ranks."""
    model, heat = to(_mlp(3, 16, 2)), 1.5  # with little heat float32 is far from float64

    @wrap
    def step_of(f, g, cost):
        f = -torch.logsumexp((g[None] - cost) / heat, 1) * heat
        new = -torch.logsumexp((f[:, None] - cost) / heat, 0) * heat
        return f, new, (new - g).abs().max()

    @wrap
    def cost_of(a, b):
        return (a[:, None] - b[None]).square().sum(-1)

    @wrap
    def ranks(x):
        return torch.sigmoid((x[:, :, None] - x[:, None]) / 0.5).sum(1) + 0.5

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        y = model(to(torch.randn(6, 3)))
        cost = cost_of(y, to(torch.randn(5, 2)))
        f, g, count = torch.zeros_like(cost[:, 0]), torch.zeros_like(cost[0]), 0
        while count < 8:
            f, g, moved = step_of(f, g, cost)
            count += 1
            if moved.item() < 1e-9:
                break
        plan = ((f[:, None] + g - cost) / heat).exp()
        loss = (plan * cost).sum() + ranks(y).var()
        loss.backward()
        optimizer.step()
        yield [loss.detach(), *_grads(model)]


def quantized_training(wrap: Wrap, to: Wrap) -> Iterator[list[torch.Tensor]]:
    """Fake quantization with observers that write their extremes in place, and weights by their channel."""

    class Fake(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("low", torch.tensor(0.0))
            self.register_buffer("high", torch.tensor(0.0))

        def forward(self, x):
            if self.training:
                self.low.copy_(torch.minimum(self.low * 0.9, x.detach().amin()))
                self.high.copy_(torch.maximum(self.high * 0.9, x.detach().amax()))
            scale = ((self.high - self.low) / 255).clamp(min=1e-4)
            zero = (-self.low / scale).round().clamp(0, 255)
            q = ((x / scale).round() + zero).clamp(0, 255)
            inside = (x >= self.low) & (x <= self.high)
            return x * inside + ((q - zero) * scale - x * inside).detach()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two, self.fake, self.after = nn.Linear(6, 16), nn.Linear(16, 4), Fake(), Fake()

        def forward(self, x):
            w = self.one.weight
            scale = w.detach().abs().amax(1) / 127
            w = torch.fake_quantize_per_channel_affine(
                w.float(), scale.float(), torch.zeros(16, dtype=torch.int32, device=w.device), 0, -128, 127
            ).to(w.dtype)
            h = self.after(F.linear(self.fake(x), w, self.one.bias).relu())
            return self.two(h), (h * 16).to(torch.int8)

    model = to(Net())
    run, optimizer = wrap(model), torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        model.train(step != 3)
        optimizer.zero_grad()
        y, codes = run(to(torch.randn(5, 6)))
        assert codes.dtype is torch.int8
        loss = y.square().mean()
        loss.backward()
        optimizer.step()
        yield [loss.detach(), *_grads(model), *(b.clone() for b in model.buffers())]


def filtered(wrap: Wrap, to: Wrap) -> Iterator[list[torch.Tensor]]:
    """A Kalman filter: solves and Cholesky factors, which are torch's, between small arithmetic."""
    move, seen = nn.Parameter(to(torch.eye(3) + 0.1 * torch.randn(3, 3))), nn.Parameter(to(torch.randn(2, 3)))
    noise = nn.Parameter(to(torch.zeros(2)))

    @wrap
    def likelihood(ys):
        mean, cov, eye = torch.zeros_like(move[0]), torch.eye(3, device=ys.device, dtype=ys.dtype), 0.1
        total = 0.0
        for y in ys:
            mean, cov = move @ mean, move @ cov @ move.mT + eye * torch.eye(3, device=ys.device, dtype=ys.dtype)
            s = seen @ cov @ seen.mT + torch.diag(noise.exp())
            gain = torch.linalg.solve(s, seen @ cov).mT
            normal = torch.distributions.MultivariateNormal(seen @ mean, s, validate_args=False)
            total = total + normal.log_prob(y)
            mean = mean + gain @ (y - seen @ mean)
            cov = cov - gain @ seen @ cov
            cov = (cov + cov.mT) / 2
        return -total / len(ys), mean

    every = [move, seen, noise]
    optimizer = torch.optim.SGD(every, lr=0.01)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss, mean = likelihood(to(torch.randn(4, 2)))
        loss.backward()
        optimizer.step()
        yield [loss.detach(), mean.detach(), *(p.grad.clone() for p in every)]


Told = collections.namedtuple("Told", ["logits", "state"])


@dataclasses.dataclass
class Batch:
    words: torch.Tensor
    places: torch.Tensor | None = None
    weights: dict[str, torch.Tensor] = dataclasses.field(default_factory=dict)


def structures(wrap: Wrap, to: Wrap) -> Iterator[list[torch.Tensor]]:
    """Data classes, named tuples, dicts and ``None`` in and out; hooks on modules, tensors and gradients; a counter of
    calls; weights that are tied; an optimizer step in the backward."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.head = nn.Embedding(11, 8), nn.Linear(8, 11, bias=False)
            self.head.weight = self.words.weight
            self.mix, self.calls = nn.Linear(8, 8), 0
            self.register_buffer("seen", torch.zeros((), dtype=torch.long))

        def forward(self, batch, *, state=None, **more):
            self.calls += 1
            self.seen += 1
            h = self.words(batch.words)
            if batch.places is not None:
                h = h + batch.places
            for name in sorted(batch.weights):
                h = h * batch.weights[name]
            h = self.mix(h).tanh() + (0 if state is None else state)
            h.register_hook(lambda g: g * 0.5)
            return {"told": Told(self.head(h), h.mean(1, keepdim=True)), "more": (more.get("scale", 1.0), None)}

    model = to(Net())
    names = {p: n for n, p in model.named_parameters()}
    noted: dict[str, torch.Tensor] = {}  # by name: parameters may get their gradients in another order
    model.mix.register_forward_pre_hook(lambda module, given: (given[0] * 1.5,))
    model.mix.register_forward_hook(lambda module, given, out: out + given[0] * 0.1)
    model.words.weight.register_hook(lambda g: noted.update(hooked=g.detach().clone()))
    opts = {p: torch.optim.SGD([p], lr=0.05) for p in model.parameters()}

    def stepped(p):
        noted[names[p]] = p.grad.clone()
        opts[p].step()
        opts[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(stepped)
    run, state = wrap(model), None
    for step in range(STEPS):
        words = to(torch.randint(0, 11, (3, 5)))
        places = to(torch.randn(5, 8)) if step % 2 else None
        batch = Batch(words, places, {"a": to(torch.rand(5, 1) + 0.5), "b": to(torch.rand(8) + 0.5)})
        out = run(batch, state=state, scale=2.0 + step)
        told, (scale, nothing) = out["told"], out["more"]
        assert isinstance(told, Told) and nothing is None and scale == 2.0 + step
        loss = F.cross_entropy(told.logits.flatten(0, 1) / scale, words.flatten())
        noted.clear()
        loss.backward()
        state = told.state.detach()
        seen = [noted[name] for name in sorted(noted)]
        yield [loss.detach(), state, *seen, *(p.detach().clone() for p in model.parameters()), model.seen.clone()]
    assert model.calls == STEPS


def long_memory(wrap: Wrap, to: Wrap) -> Iterator[list[torch.Tensor]]:
    """torch's own recurrent modules, packed by length, between layers, with gradients accumulated over halves."""
    layers = [nn.LSTM(5, 8, 2, batch_first=True, bidirectional=True), nn.GRU(16, 8, batch_first=True), nn.Linear(8, 5)]
    model = to(nn.ModuleList(layers))

    @wrap
    def run(x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x * 2, lengths, batch_first=True, enforce_sorted=False)
        out, _ = nn.utils.rnn.pad_packed_sequence(model[0](packed)[0], batch_first=True)
        return model[2](model[1](out.tanh())[0]).sigmoid()

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        losses = []
        for _ in range(2):
            x = to(torch.randn(3, 6, 5))
            losses.append((run(x, torch.tensor([6, 2, 4])) - x).square().mean() / 2)
            losses[-1].backward()
        seen = [*(loss.detach() for loss in losses), *_grads(model)]
        optimizer.step()
        yield seen


def gumbel_tree(wrap: Wrap, to: Wrap) -> Iterator[list[torch.Tensor]]:
    """Soft decisions: a tree's paths as products, straight-through one-hot choices of noise given, entropies."""
    split, leaves = to(nn.Linear(5, 7)), nn.Parameter(to(torch.randn(8, 3)))

    @wrap
    def run(x, noise, heat):
        right = split(x).sigmoid()
        reach = x.new_ones(len(x), 1)
        for level in range(3):
            p = right[:, 2**level - 1 : 2 ** (level + 1) - 1]
            reach = torch.stack([reach * (1 - p), reach * p], -1).flatten(1)
        soft = ((reach + 1e-6).log() + noise).div(heat).softmax(-1)
        hard = torch.zeros_like(soft).scatter_(-1, soft.argmax(-1, keepdim=True), 1.0)
        chosen = hard - soft.detach() + soft
        entropy = -torch.special.xlogy(reach, reach).sum(-1)
        return chosen @ leaves, entropy.mean(), torch.special.entr(reach.mean(0)).sum()

    every = [*split.parameters(), leaves]
    optimizer = torch.optim.SGD(every, lr=0.2)
    for step in range(STEPS):
        x, noise = to(torch.randn(10, 5)), to(-(-torch.rand(10, 8).clamp(1e-6).log()).log())
        optimizer.zero_grad()
        out, entropy, spread = run(x, noise, 1.0 / (step + 1))
        loss = F.cross_entropy(out, to(torch.arange(10) % 3)) + 0.1 * entropy - 0.1 * spread
        loss.backward()
        optimizer.step()
        yield [loss.detach(), out.detach(), *(p.grad.clone() for p in every)]


PROGRAMS = (
    schedule_and_average,
    adversaries,
    policy_gradient,
    autoencoder,
    recurrence,
    contrast,
    codebook,
    low_rank,
    quantiles,
    windows,
    masks_in_place,
    from_meta,
    bags,
    frequencies,
    graphs,
    chains,
    physics,
    learning_to_learn,
    experts,
    diffusion,
    detection,
    transport,
    quantized_training,
    filtered,
    structures,
    long_memory,
    gumbel_tree,
)


def taken(program: Callable[[Wrap, Wrap], Iterator[list[torch.Tensor]]], wrap: Wrap, dtype, device):
    """What ``program`` yields, from the same seed each time."""

    def to(x):
        if isinstance(x, nn.Module) or x.is_floating_point():
            return x.to(device=device, dtype=dtype)
        return x.to(device)

    torch.manual_seed(0)
    return [tree_map(lambda x: x.detach().clone(), step) for step in program(wrap, to)]


def check(program, device: str = "cpu") -> None:
    """Compiled, a program gives in each step what it gives in eager: types, shapes, integers; floating-point numbers are
    no further from float64 than four times eager's, and 1e-5 of the largest of the step."""

    def wrap(f):
        return torch.compile(f, backend="mlirfuse", options={"fallback": False, "eager_random": True})

    eager, exact = (taken(program, lambda f: f, dtype, device) for dtype in (torch.float32, torch.float64))
    torch._dynamo.reset()
    ours = taken(program, wrap, torch.float32, device)
    assert len(ours) == len(eager) == STEPS
    for step, (found, wanted, reference) in enumerate(zip(ours, eager, exact, strict=True)):
        assert len(found) == len(wanted)
        scale = max(float(c.abs().max()) for c in reference if c.is_floating_point() and c.numel())
        for k, (a, b, c) in enumerate(zip(found, wanted, reference, strict=True)):
            what = f"step {step}, tensor {k}"
            assert a.dtype is b.dtype and a.shape == b.shape and a.device == b.device, what
            if not b.is_floating_point():
                assert torch.equal(a, b), what
                continue
            assert torch.equal(a.isnan(), b.isnan()), what
            ours_off, eager_off = (float((x - c).abs().nan_to_num().max()) if c.numel() else 0.0 for x in (a, b))
            assert ours_off <= 4 * eager_off + 1e-5 * scale, f"{what}: {ours_off} from float64, eager {eager_off}"
