"""Definitions as large as a block of a model, compiled, beside ``MLIRFUSE_DEFINITIONS=reference``, which runs them op by
op: attention with a bias for each pair, triangle updates, a mixture of experts, and random programs of up to 500 ops.

Values stay near 1, so that an error is judged beside the largest value of its output. A small part always runs;
``-m slow`` has more seeds, and the longest programs.
"""

from __future__ import annotations

import math
import random
from unittest import mock

import pytest

torch = pytest.importorskip("torch")

from mlirfuse import DataType, FusionDefinition
from mlirfuse.core import config, environment
from mlirfuse.nvfuser import FusionCache

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
KINDS = {
    torch.float64: (DataType.Double, 1e-12),
    torch.float32: (DataType.Float, 1e-4),
    torch.bfloat16: (DataType.BFloat16, 0.08),
}
dtypes = pytest.mark.parametrize("dtype", KINDS, ids=lambda d: str(d)[6:])


def compared(write, inputs) -> list[torch.Tensor]:
    """The outputs of the definition that ``write(fd, *tensors)`` writes, which agree with its reference's."""
    outputs = []
    for way in ("compiled", "reference"):
        FusionCache.reset()  # it runs equal definitions as the first of them
        with mock.patch.object(environment, "DEFINITIONS", way), config.override(fallback=False):
            with FusionDefinition() as fd:
                for out in write(fd, *map(fd.from_pytorch, inputs)):
                    fd.add_output(out)
            outputs.append(fd.execute([x.clone() for x in inputs]))
    found, wanted = outputs
    assert len(found) == len(wanted)
    for k, (a, b) in enumerate(zip(found, wanted)):
        assert (a.dtype, a.shape) == (b.dtype, b.shape), k
        bound = max(KINDS[x.dtype][1] for x in (a, *inputs)) * max(1.0, b.abs().max().item())
        error = (a.double() - b.double()).abs().max().item()
        assert error <= bound, (k, error, bound)
    return found


def values(dtype, *shapes) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(s, generator=generator).to(DEVICE, dtype) for s in shapes]


# ---- blocks


def layer_norm(fd, x, width: int):
    o, rank = fd.ops, len(x.shape())
    mean = o.mul(o.sum(x, [rank - 1], keepdim=True), 1 / width)
    centered = o.sub(x, mean)
    var = o.mul(o.sum(o.mul(centered, centered), [rank - 1], keepdim=True), 1 / width)
    return o.mul(centered, o.rsqrt(o.add(var, 1e-5)))


def softmax(fd, x):
    o, last = fd.ops, len(x.shape()) - 1
    e = o.exp(o.sub(x, o.max(x, [last], keepdim=True)))
    return o.div(e, o.sum(e, [last], keepdim=True))


@dtypes
def test_attention_with_a_bias_for_each_pair(dtype):
    """Of protein folding: heads attend with the logits of a pair representation, and are gated."""
    kind, _ = KINDS[dtype]
    n, c, h, d = 24, 32, 4, 8

    def write(fd, x, pair, to_qkvg, to_bias, to_out):
        o = fd.ops
        projected = o.reshape(o.matmul(o.cast(layer_norm(fd, x, c), kind), to_qkvg), [n, 4, h, d])
        heads = o.permute(projected, [1, 2, 0, 3])
        q, k, v, g = (o.reshape(o.slice(heads, [i, 0, 0, 0], [i + 1, h, n, d]), [h, n, d]) for i in range(4))
        bias = o.permute(o.matmul(o.cast(layer_norm(fd, pair, c), kind), to_bias), [2, 0, 1])
        logits = o.add(o.mul(o.matmul(q, o.permute(k, [0, 2, 1])), d**-0.5), bias)
        seen = o.matmul(o.cast(softmax(fd, logits), kind), v)
        gated = o.cast(o.mul(seen, o.sigmoid(g)), kind)
        flat = o.reshape(o.permute(gated, [1, 0, 2]), [n, h * d])
        return [o.cast(o.add(x, o.matmul(flat, to_out)), kind), logits]

    shapes = (n, c), (n, n, c), (c, 4 * h * d), (c, h), (h * d, c)
    x, pair, *weights = values(dtype, *shapes)
    compared(write, [x, pair, *(w * w.shape[0] ** -0.5 for w in weights)])


@dtypes
@pytest.mark.parametrize("outgoing", [True, False])
def test_a_triangle_update(dtype, outgoing):
    """Gated projections of a pair representation are multiplied over a third residue."""
    kind, _ = KINDS[dtype]
    n, c = 20, 16

    def write(fd, z, to_ab, to_gates, to_gate, to_out):
        o = fd.ops
        normed = o.cast(layer_norm(fd, z, c), kind)
        both = o.cast(o.mul(o.sigmoid(o.matmul(normed, to_gates)), o.matmul(normed, to_ab)), kind)
        a, b = (o.slice(both, [0, 0, i * c], [n, n, (i + 1) * c]) for i in range(2))
        order = [2, 0, 1] if outgoing else [2, 1, 0]
        a, b = o.permute(a, order), o.permute(b, [2, 1, 0] if outgoing else [2, 0, 1])
        product = o.permute(o.mul(o.matmul(a, b), n**-0.5), [1, 2, 0])
        update = o.matmul(o.cast(layer_norm(fd, product, c), kind), to_out)
        return [o.cast(o.add(z, o.mul(o.sigmoid(o.matmul(normed, to_gate)), update)), kind), product]

    z, *weights = values(dtype, (n, n, c), (c, 2 * c), (c, 2 * c), (c, c), (c, c))
    compared(write, [z, *(w * c**-0.5 for w in weights)])


@dtypes
def test_a_mixture_of_experts(dtype):
    """Each token's two best experts, weighted; every expert sees every token."""
    kind, _ = KINDS[dtype]
    tokens, c, hidden, experts = 40, 16, 24, 5

    def write(fd, x, to_gates, up, down):
        o = fd.ops
        scores = softmax(fd, o.matmul(x, to_gates))
        best, _ = o.topk(scores, 2, 1, True, True)
        least = o.slice(best, [0, 1], [tokens, 2])
        weights = o.where(o.ge(scores, least), scores, 0.0)
        weights = o.div(weights, o.sum(weights, [1], keepdim=True))
        spread = o.broadcast_in_dim(x, [experts, tokens, c], [1, 2])
        inner = o.matmul(spread, up)
        inner = o.cast(o.mul(inner, o.sigmoid(inner)), kind)
        outer = o.mul(
            o.matmul(inner, down), o.broadcast_in_dim(o.permute(weights, [1, 0]), [experts, tokens, 1], [0, 1])
        )
        return [o.cast(o.add(o.sum(outer, [0]), x), kind), o.cast(o.sum(weights, [0]), kind)]

    x, to_gates, up, down = values(dtype, (tokens, c), (c, experts), (experts, c, hidden), (experts, hidden, c))
    if dtype is torch.bfloat16:  # which experts are best does not depend on how products are rounded
        to_gates, x = to_gates.sign(), x.sign()
        x[:, 0] = torch.arange(tokens, device=DEVICE, dtype=dtype) / 8
    compared(write, [x, to_gates * c**-0.5, up * c**-0.5, down * hidden**-0.5])


# ---- random programs

UNARY = ("tanh", "sin", "cos", "sigmoid", "relu", "neg", "abs", "erf")
BINARY = ("add", "sub", "mul", "maximum", "minimum")


class Chain:
    """A random program of ``count`` ops: elementwise ones, reductions that are broadcast back or not, permutations,
    reshapes and casts between the types. ``outputs``: how many of its values, spread over it, it gives."""

    def __init__(self, seed: int, count: int, outputs: int):
        self.seed, self.count, self.outputs = seed, count, outputs

    def __call__(self, fd, *inputs):
        self.fd, self.rng = fd, random.Random(self.seed)
        self.pool = [(x, tuple(shape)) for x, shape in zip(inputs, SHAPES)]
        kept = []
        while len(self.pool) < self.count:
            choice = self.rng.random()
            made = (self.unary if choice < 0.3 else self.binary if choice < 0.6 else self.reduction if choice < 0.75
                    else self.permutation if choice < 0.85 else self.reshape if choice < 0.9 else self.cast)()  # fmt: skip
            self.pool.append(made)
            if len(self.pool) % max(1, self.count // self.outputs) == 0:
                kept.append(made[0])
        return [*kept[: self.outputs - 1], self.pool[-1][0]]

    def pick(self):
        """A value, rather a new one."""
        at = max(self.rng.randrange(len(self.pool)) for _ in range(2))
        return self.pool[at]

    def unary(self):
        x, shape = self.pick()
        return getattr(self.fd.ops, self.rng.choice(UNARY))(x), shape

    def binary(self):
        x, shape = self.pick()
        fitting = [(y, s) for y, s in self.pool if len(s) == len(shape) and all(m in (1, n) for n, m in zip(shape, s))]
        y, _ = self.rng.choice(fitting)
        name = self.rng.choice(BINARY)
        made = getattr(self.fd.ops, name)(x, y)
        return (self.fd.ops.mul(made, 0.5) if name in ("add", "sub") else made), shape

    def reduction(self):
        x, shape = self.pick()
        axis, o = self.rng.randrange(len(shape)), self.fd.ops
        name = self.rng.choice(("sum", "max", "min"))
        made = getattr(o, name)(x, [axis], keepdim=True)
        if name == "sum":
            made = o.mul(made, 1 / shape[axis])
        narrow = (*shape[:axis], 1, *shape[axis + 1 :])
        if self.rng.random() < 0.5:
            return made, narrow
        return o.sub(x, made) if name != "sum" else o.mul(o.sub(x, made), 0.5), shape

    def permutation(self):
        x, shape = self.pick()
        order = self.rng.sample(range(len(shape)), len(shape))
        return self.fd.ops.permute(x, order), tuple(shape[k] for k in order)

    def reshape(self):
        x, shape = self.pick()
        wide = self.rng.choice([s for s in SHAPES if math.prod(s) == math.prod(shape)] or [shape])
        return self.fd.ops.reshape(x, list(wide)), tuple(wide)

    def cast(self):
        x, shape = self.pick()
        return self.fd.ops.cast(x, self.rng.choice([kind for kind, _ in KINDS.values()])), shape


SHAPES = [(6, 8, 10), (8, 6, 10), (10, 6, 8), (6, 8, 1), (1, 8, 10)]


def of_types(dtype) -> list[torch.Tensor]:
    """The inputs: the first of ``dtype``, the others of all three."""
    kinds = [dtype, *KINDS]
    return [x.to(kinds[k % len(kinds)]) for k, x in enumerate(values(torch.float64, *SHAPES))]


@dtypes
@pytest.mark.parametrize("seed", range(3))
def test_random_chains(seed, dtype):
    compared(Chain(seed, 50 + 25 * seed, 4), of_types(dtype))


def test_two_hundred_ops_with_twenty_outputs():
    assert len(compared(Chain(7, 200, 20), of_types(torch.float32))) == 20


@pytest.mark.slow
@dtypes
@pytest.mark.parametrize("count", [50, 100, 200, 350, 500])
@pytest.mark.parametrize("seed", range(10, 20))
def test_long_random_chains(seed, count, dtype):
    compared(Chain(seed, count, 1 + count // 10), of_types(dtype))
