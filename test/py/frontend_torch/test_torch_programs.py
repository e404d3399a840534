"""Random torch programs with views, writes into views, products and reductions: results and gradients as eager's."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F
from torch_ops_harness import compiled

STEPS = 14
UNARY = (
    torch.sin,
    torch.tanh,
    torch.sigmoid,
    F.gelu,
    F.silu,
    torch.abs,
    lambda x: (x * x + 1).log(),
    lambda x: x.clamp(-1, 1),
)
BINARY = (
    torch.add,
    torch.sub,
    torch.mul,
    torch.maximum,
    lambda a, b: a / (b.abs() + 1),
    lambda a, b: torch.where(a > b, a, b * 2),
)


def _view(rng: random.Random, x):
    way = rng.randrange(6)
    d = rng.randrange(x.ndim) if x.ndim else 0
    if not x.ndim or way == 0:
        return x.unsqueeze(0)
    if way == 1:
        return x.transpose(0, -1)
    if way == 2 and x.shape[d] > 2:
        return x.narrow(d, 1, x.shape[d] - 1)
    if way == 3 and x.ndim > 1:
        return x.select(d, rng.randrange(x.shape[d]))
    if way == 4:
        return x.reshape(-1) if rng.random() < 0.5 else x.flip(d)
    return x[..., :: rng.choice((1, 2))]


def _norm(rng: random.Random, x):
    if x.ndim < 1:
        return x
    ways = (
        lambda: F.softmax(x, -1),
        lambda: F.layer_norm(x, x.shape[-1:]),
        lambda: x - x.mean(0, keepdim=True),
        lambda: x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-3),
        lambda: x.cumsum(-1),
        lambda: (x.unsqueeze(-1) - x.unsqueeze(-2)).sigmoid().sum(-1),
        lambda: torch.logsumexp(x.unsqueeze(-1) * x.unsqueeze(-2), -2),
    )
    return rng.choice(ways)()


def _write(rng: random.Random, x):
    """Writes into a view of what is computed, and so into it."""
    y = x * 1
    part = _view(rng, y) if y.ndim else y
    rng.choice((lambda: part.mul_(0.5), lambda: part.add_(1), lambda: part.copy_(part.detach().cos()), part.zero_))()
    return y


def program(seed: int):
    """A function of three tensors."""

    def run(a, b, w):
        rng = random.Random(seed)
        have = [a, b]
        for _ in range(STEPS):
            x = rng.choice(have[-4:])
            kind = rng.randrange(8)
            if kind < 2:
                y = rng.choice(UNARY)(x)
            elif kind == 2:
                other = rng.choice([t for t in have if t.shape == x.shape])
                y = rng.choice(BINARY)(x, other)
            elif kind == 3:
                y = _view(rng, x)
            elif kind == 4:
                y = _norm(rng, x)
            elif kind == 5:
                y = _write(rng, x)
            elif kind == 6 and x.ndim >= 2 and x.shape[-1] == w.shape[0]:
                y = x @ w
            elif x.ndim >= 2:
                y = x.sum(rng.randrange(x.ndim), keepdim=rng.random() < 0.5)
            else:
                y = torch.cat([x.reshape(-1), x.reshape(-1) * 2])
            have.append(y)
        return tuple(have[-3:])

    return run


def _outcome(f, inputs):
    given = [x.clone().requires_grad_() for x in inputs]
    out = f(*given)
    weights = [torch.linspace(-1, 1, y.numel(), dtype=torch.float64).reshape(y.shape).to(y.dtype) for y in out]
    smooth = [(y, v) for y, v in zip(out, weights) if y.requires_grad]
    grads = (
        torch.autograd.grad([y for y, _ in smooth], given, [v for _, v in smooth], allow_unused=True) if smooth else ()
    )
    # What is written into a view has, for extents of 1, the strides of the ops that AOTAutograd makes of the write.
    strides = [[s for n, s in zip(y.shape, y.stride()) if n != 1] for y in out]
    return [y.detach() for y in out], grads, strides


def check(seed: int) -> None:
    torch.manual_seed(seed)
    inputs = [torch.randn(3, 4, 6), torch.randn(3, 4, 6), torch.randn(6, 6)]
    f = program(seed)
    exact, exact_grads, _ = _outcome(f, [x.double() for x in inputs])
    eager, eager_grads, strides = _outcome(f, inputs)
    ours, grads, our_strides = _outcome(compiled(f), inputs)
    assert our_strides == strides
    for a, b, c in zip((*ours, *grads), (*eager, *eager_grads), (*exact, *exact_grads)):
        assert (a is None) == (b is None)
        if a is None or not b.numel():
            continue
        assert a.shape == b.shape
        bound = 2 * (b - c).abs().max() + 1e-6 * (1 + c.abs().max())
        assert (a - c).abs().max() <= bound


@pytest.mark.parametrize("seed", [*range(12), 146])  # in 146 a kernel has a copy of views of views
def test_random_programs(seed):
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12, 312))
def test_many_random_programs(seed):
    check(seed)
