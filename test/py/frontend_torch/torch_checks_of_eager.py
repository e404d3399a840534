"""What eager refuses, compiled functions refuse: types, numbers, values and indices. By hand:
``python test/py/frontend_torch/torch_checks_of_eager.py [name ...]`` runs all programs over all types and prints those that differ."""

from __future__ import annotations

import itertools
import sys
import warnings

import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree

import mlirfuse.torch  # noqa: F401 (registers the backend, also where mlirfuse is not installed)

DTYPES = (torch.int64, torch.int32, torch.uint8, torch.bool, torch.float32, torch.float16)

UNARY = [
    "abs",
    "neg",
    "sign",
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log10",
    "log1p",
    "sqrt",
    "rsqrt",
    "reciprocal",
    "sigmoid",
    "tanh",
    "sin",
    "cos",
    "tan",
    "asin",
    "atan",
    "sinh",
    "erf",
    "floor",
    "ceil",
    "round",
    "trunc",
    "frac",
    "logical_not",
    "bitwise_not",
    "isnan",
    "square",
    "relu",
    "lgamma",
    "sinc",
    "logit",
    "sgn",
    "nan_to_num",
    "sum",
    "mean",
    "prod",
    "amax",
    "amin",
    "max",
    "min",
    "argmax",
    "argmin",
    "any",
    "all",
    "std",
    "var",
    "median",
    "norm",
    "nansum",
    "count_nonzero",
]
ACTIVATIONS = [
    "silu",
    "gelu",
    "relu",
    "relu6",
    "elu",
    "selu",
    "celu",
    "leaky_relu",
    "softplus",
    "softsign",
    "hardtanh",
    "hardswish",
    "hardsigmoid",
    "logsigmoid",
    "mish",
    "tanhshrink",
    "softshrink",
]
BINARY = [
    "add",
    "sub",
    "mul",
    "div",
    "floor_divide",
    "remainder",
    "fmod",
    "pow",
    "maximum",
    "minimum",
    "fmax",
    "atan2",
    "hypot",
    "copysign",
    "eq",
    "lt",
    "bitwise_and",
    "logical_and",
    "bitwise_left_shift",
    "logaddexp",
    "xlogy",
    "rsub",
    "float_power",
]
LOSSES = [
    "mse_loss",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "kl_div",
    "soft_margin_loss",
]

# name -> a function, and of how many tensors of 4 by 4
OF_TYPES = {name: (getattr(torch, name), 1) for name in UNARY}
OF_TYPES |= {f"F.{name}": (getattr(F, name), 1) for name in ACTIVATIONS}
OF_TYPES |= {name: (getattr(torch, name), 2) for name in BINARY}
OF_TYPES |= {f"F.{name}": (getattr(F, name), 2) for name in LOSSES}
OF_TYPES |= {
    "softmax": (lambda x: x.softmax(0), 1),
    "log_softmax": (lambda x: x.log_softmax(-1), 1),
    "argmax(0)": (lambda x: x.argmax(0), 1),
    "cumsum": (lambda x: x.cumsum(0), 1),
    "logsumexp": (lambda x: x.logsumexp(0), 1),
    "var(0)": (lambda x: x.var(0), 1),
    "softmax(dtype)": (lambda x: x.softmax(0, dtype=torch.float32), 1),
    "lerp": (lambda x, y: torch.lerp(x, y, 0.5), 2),
    "clamp": (lambda x: x.clamp(0.5, 1.5), 1),
    "clamp of bools": (lambda x: x.clamp(False, True), 1),
    "addcmul": (lambda x, y: torch.addcmul(x, y, x), 2),
    "addcdiv": (lambda x, y: torch.addcdiv(x, y, y), 2),
    "alpha": (lambda x, y: torch.add(x, y, alpha=0.5), 2),
    "minus True": (lambda x: x - True, 1),
    "layer_norm": (lambda x: F.layer_norm(x, (4,)), 1),
    "batch_norm": (lambda x: F.batch_norm(x, None, None, training=True), 1),
    "cross_entropy": (lambda x, y: F.cross_entropy(x, y[:, 0]), 2),
    "nll_loss": (lambda x, y: F.nll_loss(x, y[:, 0]), 2),
    "embedding": (lambda x, y: F.embedding(x, y), 2),
    "gather": (lambda x, y: y.gather(0, x), 2),
    "avg_pool": (lambda x: F.avg_pool1d(x, 2), 1),
    "dropout": (lambda x: F.dropout(x, 0.0), 1),
    "glu": (lambda x: F.glu(x), 1),
    "x ** 0.5": (lambda x: x**0.5, 1),
    "2 ** x": (lambda x: 2**x, 1),
    "x % 1.5": (lambda x: x % 1.5, 1),
    "in place": (lambda x: x.clone().mul_(1.5), 1),
}

HALF, OVER = torch.full((3,), 0.5), torch.tensor([0.5, 1.5, 0.5])
OF_NUMBERS = {  # what eager refuses, and close to it what it takes
    "bce target": (F.binary_cross_entropy, (HALF, OVER)),
    "bce input": (F.binary_cross_entropy, (OVER, HALF)),
    "bce negative": (F.binary_cross_entropy, (OVER - 1, HALF)),
    "bce nan": (F.binary_cross_entropy, (OVER * float("nan"), HALF)),
    "bce weight": (lambda x, t: F.binary_cross_entropy(x, t, weight=t * 3), (HALF, HALF)),
    "bce ends": (F.binary_cross_entropy, (torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.0]))),
    "smooth_l1 beta": (lambda x: F.smooth_l1_loss(x, x * 0, beta=-1.0), (HALF,)),
    "huber delta": (lambda x: F.huber_loss(x, x * 0, delta=-1.0), (HALF,)),
    "huber delta 0": (lambda x: F.huber_loss(x, x * 0, delta=0.0), (HALF,)),
    "softshrink": (lambda x: F.softshrink(x, -1.0), (HALF,)),
    "celu": (lambda x: F.celu(x, 0.0), (HALF,)),
    "gelu": (lambda x: F.gelu(x, approximate="no"), (HALF,)),
    "dropout": (lambda x: torch.dropout(x, 1.5, True), (HALF,)),
    "dropout negative": (lambda x: torch.dropout(x, -0.5, True), (HALF,)),
    "bernoulli": (torch.bernoulli, (OVER,)),
    "bernoulli negative": (torch.bernoulli, (-OVER,)),
    "bernoulli p": (lambda x: torch.bernoulli(x, 1.5), (HALF,)),
    "norm of complex p": (lambda x: x.renorm(-1.0, 0, 1.0), (HALF.view(3, 1),)),
    "multi_margin p": (lambda x: F.multi_margin_loss(x.view(1, 3), torch.tensor([0]), p=3), (HALF,)),
    "multinomial": (lambda x: torch.multinomial(x, 1) * 0, (-OVER,)),
    "normal std": (lambda x: torch.normal(x, -1.0) * 0, (HALF,)),
    "glu": (F.glu, (HALF,)),
    "group_norm": (lambda x: F.group_norm(x.view(1, 3), 2), (HALF,)),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x.view(1, 3, 1, 1), 2), (HALF,)),
    "cat": (lambda x: torch.cat([x, x[None]]), (HALF,)),
    "one_hot": (lambda x: F.one_hot(x, 3), (torch.tensor([0, 3]),)),
    "one_hot negative": (lambda x: F.one_hot(x, 3), (torch.tensor([0, -1]),)),
    "divided by 0": (lambda x, y: x // y, (torch.tensor([3]), torch.tensor([0]))),
    "rest by 0": (lambda x, y: x % y, (torch.tensor([3]), torch.tensor([0]))),
    "negative power": (lambda x, y: x**y, (torch.tensor([3]), torch.tensor([-1]))),
    "rrelu": (lambda x: F.rrelu(x, 0.5, 0.1), (HALF,)),
    "cumsum": (lambda x: x.cumsum(3), (HALF,)),
}

# name -> a function of x, 6 by 5, and three indices, one of which may not be there; the extent along which they index
OF_INDICES = {
    "gather 0": (lambda x, i: torch.gather(x, 0, i[:, None] + torch.zeros(1, 5, dtype=i.dtype)) * 2, 6),
    "gather 1": (lambda x, i: torch.gather(x[:3], 1, i[:, None]) * 2, 5),
    "gather part": (lambda x, i: torch.gather(x, 0, i[:, None]) * 2, 6),
    "take_along_dim": (lambda x, i: torch.take_along_dim(x, i[None], 1) * 2, 5),
    "take": (lambda x, i: torch.take(x, i) * 2, 30),
    "index_select 0": (lambda x, i: x.index_select(0, i) * 2, 6),
    "index_select 1": (lambda x, i: x.index_select(1, i) * 2, 5),
    "x[i]": (lambda x, i: x[i] * 2, 6),
    "x[:, i]": (lambda x, i: x[:, i] * 2, 5),
    "x[i, j]": (lambda x, i: x[i, i.flip(0)] * 2, 5),
    "embedding": (lambda x, i: F.embedding(i, x) * 2, 6),
    "embedding padding": (lambda x, i: F.embedding(i, x, padding_idx=1) * 2, 6),
    "embedding_bag": (lambda x, i: F.embedding_bag(i[None], x) * 2, 6),
    "cross_entropy": (lambda x, i: F.cross_entropy(x[:3], i), 5),
    "cross_entropy none": (lambda x, i: F.cross_entropy(x[:3], i, reduction="none"), 5),
    "cross_entropy smooth": (lambda x, i: F.cross_entropy(x[:3], i, label_smoothing=0.1), 5),
    "cross_entropy weight": (lambda x, i: F.cross_entropy(x[:3], i, weight=torch.ones(5)), 5),
    "cross_entropy ignored": (lambda x, i: F.cross_entropy(x[:3], i, ignore_index=1), 5),
    "nll_loss": (lambda x, i: F.nll_loss(x[:3], i), 5),
    "nll_loss of images": (lambda x, i: F.nll_loss(x.t()[None, :, :3, None].contiguous(), i[None, :, None]), 5),
    "multi_margin": (lambda x, i: F.multi_margin_loss(x[:3], i), 5),
    "index_add 0": (lambda x, i: x.index_add(0, i, x[:3]), 6),
    "index_add 1": (lambda x, i: x.index_add(1, i, x[:, :3]), 5),
    "index_copy": (lambda x, i: x.index_copy(0, i, x[:3] * 2), 6),
    "index_fill": (lambda x, i: x.index_fill(0, i, 2.0), 6),
    "scatter": (lambda x, i: x.scatter(0, i[:, None].expand(-1, 5), x[:3] * 2), 6),
    "scatter value": (lambda x, i: x[:3].scatter(1, i[:, None], 2.0) * 2, 5),
    "scatter_add": (lambda x, i: x.scatter_add(0, i[:, None].expand(-1, 5), x[:3]), 6),
    "scatter_reduce": (lambda x, i: x.scatter_reduce(0, i[:, None].expand(-1, 5), x[:3], "sum"), 6),
    "index_put": (lambda x, i: x.index_put((i,), x[:3] * 2), 6),
    "index_put accumulate": (lambda x, i: x.index_put((i,), x[:3], accumulate=True), 6),
    "put": (lambda x, i: x.put(i, x[0, :3]), 30),
    "one_hot": (lambda x, i: F.one_hot(i, 5) * x[:3], 5),
}


def operand(dtype: torch.dtype, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return (torch.rand(4, 4, generator=generator) * 0.9 + 0.05).to(dtype)
    return torch.randint(0, 2 if dtype is torch.bool else 4, (4, 4), generator=generator).to(dtype)


def outcome(function, given, gradients: bool = False):
    """The results as a list, the gradient of the first tensor too; None where it is refused."""
    given = [x.clone().requires_grad_() if gradients and not k else x for k, x in enumerate(given)]
    try:
        created = [x for x in pytree.tree_leaves(function(*given)) if isinstance(x, torch.Tensor)]
        if gradients and created[0].requires_grad:
            created += torch.autograd.grad(created[0].sum(), given[0])
    except Exception:
        return None
    return [x.detach() for x in created]


def equal(ours, eagers) -> bool:
    if ours is None or eagers is None:
        return ours is eagers
    for a, b in zip(ours, eagers):
        tolerance = 2e-3 if b.dtype is torch.float16 else 1e-5
        if a.dtype is not b.dtype or a.shape != b.shape:
            return False
        wide = torch.complex128 if b.is_complex() else torch.float64
        if not torch.allclose(a.to(wide), b.to(wide), tolerance, tolerance, equal_nan=True):
            return False
    return len(ours) == len(eagers)


def run(function, given, gradients: bool = False, backend: str = "mlirfuse"):
    torch._dynamo.reset()
    return outcome(torch.compile(function, backend=backend), given, gradients)


def wrong_types(name: str, dtypes=DTYPES) -> list:
    """The types with which a program of :data:`OF_TYPES` differs from eager."""
    function, count = OF_TYPES[name]
    found = []
    for types in itertools.product(dtypes, repeat=count):
        given = [operand(dtype, seed) for seed, dtype in enumerate(types)]
        if not equal(run(function, given), outcome(function, given)):
            found.append(types)
    return found


def wrong_indices(name: str, dtypes=(torch.int64, torch.int32), backend: str = "mlirfuse") -> list:
    """The indices, of a type, forward alone or with the gradient, with which one of :data:`OF_INDICES` differs."""
    function, extent = OF_INDICES[name]
    x = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    found = []
    for dtype, gradients in itertools.product(dtypes, (False, True)):
        torch._dynamo.reset()
        compiled = torch.compile(function, backend=backend)
        for k in (0, extent - 1, -1, extent, -extent, -extent - 1, 2**31 - 1):
            given = x, torch.tensor([0, k, 1], dtype=dtype)
            if not equal(outcome(compiled, given, gradients), outcome(function, given, gradients)):
                found.append((k, dtype, gradients))
    return found


def main(names: list[str]) -> None:
    warnings.simplefilter("ignore")
    chosen = lambda known: [name for name in known if not names or name in names]  # noqa: E731
    for name in chosen(OF_TYPES):
        for types in wrong_types(name):
            given = [operand(dtype, seed) for seed, dtype in enumerate(types)]
            theirs = run(OF_TYPES[name][0], given, backend="aot_eager")
            torchs = "" if equal(theirs, outcome(OF_TYPES[name][0], given)) else "AOTAutograd alone too"
            print(name, types, torchs, flush=True)
    for name in chosen(OF_NUMBERS):
        function, given = OF_NUMBERS[name]
        ours, eagers = run(function, given), outcome(function, given)
        if not equal(ours, eagers):
            print(
                name, "eager gives", eagers, "compiled", ours, "AOTAutograd", run(function, given, backend="aot_eager")
            )
    for name in chosen(OF_INDICES):
        wrong = wrong_indices(name)
        if wrong:
            print(name, wrong, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
