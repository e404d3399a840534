"""Programs with a Python number in each argument that takes one, whose value changes over five calls, beside eager:
Dynamo makes a symbol of it. By hand: ``python test/py/frontend_torch/torch_numbers.py [seed] [count]`` makes random ones and prints
each that differs, with what AOTAutograd alone gives."""

from __future__ import annotations

import random
import sys
import warnings

import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree

import mlirfuse.torch  # noqa: F401 (registers the backend, also where mlirfuse is not installed)

# Of x, 12 by 9, and an integer; those that eager refuses for a value are refused.
INTEGERS = (
    "x[{k}:] * 2", "x[:{k}] * 2", "x[{k}::2] * 2", "x[:, {k}:] + 1", "x[{k}:{j}] * 2", "x[{k}] * 2", "x[:, {k}] * 2",
    "x[1:, {k}:{j}] * 2", "x.select(0, {k}) * 2", "x.narrow(0, {k}, 2) * 2", "x.narrow(1, {k}, 1) * 2",
    "torch.slice_scatter(x, x[{k}:] * 3, 0, {k}) * 2", "torch.slice_scatter(x, x[:, {k}:{j}] * 3, 1, {k}, {j})",
    "torch.select_scatter(x, x[0] * 3, 0, {k}) * 2", "torch.select_scatter(x, x[:, 0] * 3, 1, {k})",
    "x.roll({k}, 0) * 2", "x.roll({k}) * 2", "x.roll(({k}, {j}), (0, 1)) * 2", "x.diagonal({k}) * 2",
    "x.diagonal_scatter(x.diagonal({k}) * 3, {k})", "x.tril({k}) * 2", "x.triu({k}) * 2", "F.pad(x, ({k}, 1)) * 2",
    "F.pad(x, (0, 0, {k}, {j})) * 2", "torch.arange({k}, {k} + 5) * x[0, 0]", "torch.arange({k}, -20, -1) * x[0, 0]",
    "torch.arange({k}, {k} + 20, 3, dtype=torch.float32) * x[0, 0]", "torch.full((2, 3), {k}) * x[0, 0]",
    "torch.full((abs({k}), 2), 1.5) * x[0, 0]", "x.clamp({k}, {j}) * 2", "x.masked_fill(x > {k}, {j})", "x % {k}",
    "x * {k} + {j}", "x - ({k} > 0)", "x.clone().fill_({k}) * x", "x.tensor_split(({k},))[1] * 2",
    "x.split(abs({k}) + 1)[-1] * 2", "x.repeat(abs({k}), 1) * 2", "x[torch.arange(3) - {k}] * 2", "x[[{k}, {j}]] * 2",
    "x.cumsum(0)[{k}] * 2", "x[{k}:].flip(0) * 2", "torch.cat([x[{k}:], x[:{k}]]) * 2", "x[{k}:].sum(0) * 2",
    "x.index_fill(0, torch.tensor([0, 2]), {k})", "x.std(0, correction=abs({k}) % 5)", "x[..., {k}:-1] @ x[..., {k}:-1].t()",
    "x[None].expand(abs({k}), -1, -1) * 2", "x.movedim(0, 1)[{k}:] * 2", "x.as_strided((2, 2), (1, 3), abs({k})) * 2",
)  # fmt: skip
WRITES = (
    "y[{k}:] = 3.0", "y[{k}] = 3.0", "y[:, {k}:{j}] = x[:, {k}:{j}] * 2", "y[{k}:].mul_(2)", "y[:, {k}].add_(x[:, 0])",
    "y[{k}::2] += 1", "y.select(1, {k}).zero_()", "y.narrow(0, {k}, 2).copy_(x[:2] * 5)", "y[{k}:{j}].fill_({k})",
)  # fmt: skip
INTEGER_TERMS = (
    "n",
    "-n",
    "n - 6",
    "6 - n",
    "-n - 1",
    "2 * n - 7",
    "n - 20",
    "n // 2",
    "-(n // 2) - 1",
    "n % 5",
    "n + 8",
)
INTEGER_VALUES = (3, 4, 6, 2, 8)

FLOATS = (
    "x * {e}", "x.clamp(max={e})", "x.clamp({e}, {g})", "x.clamp_min({e}) + {g}", "x.abs() ** {e}", "F.leaky_relu(x, {e})",
    "torch.full((3,), {e}) * x[0, :3]", "torch.full_like(x, {e}) * x", "x.clone().fill_({e}) * x", "x.lerp(x * 2, {e})",
    "x.masked_fill(x > 0, {e})", "torch.add(x, x * 2, alpha={e})", "torch.sub(x, x * 2, alpha={e})", "F.threshold(x, {e}, {g})",
    "F.layer_norm(x, (9,), eps=abs({e}))", "torch.where(x > {e}, x, {g})", "(x > {e}) * x", "F.elu(x, {e})", "x / ({e} + 9)",
    "{e} - x", "F.softplus(x, beta=abs({e}) + 0.1)", "F.hardtanh(x, -abs({e}) - 0.1, abs({e}) + 0.1)", "x % (abs({e}) + 0.1)",
    "F.huber_loss(x, x * 2, delta=abs({e}) + 0.1)", "F.smooth_l1_loss(x, x * 2, beta=abs({e}))", "x.renorm(2, 0, abs({e}))",
    "torch.addcmul(x, x, x, value={e})", "torch.addcdiv(x, x, x + 9, value={e})", "torch.addmm(x, x, torch.eye(9), alpha={e})",
    "x.norm(p=abs({e}) + 1)", "(x / 0 * 0).nan_to_num({e})", "x * 2 if {e} > 1 else x * 3", "x[: int(abs({e})) + 1] * {g}",
    "torch.tensor({e}) * x", "torch.copysign(x, {e})", "F.pad(x, (1, 1), value={e})", "(x / (abs({e}) + 0.1)).softmax(0)",
    "x.scatter(0, torch.zeros(1, 9, dtype=torch.long), {e})", "x.index_fill(0, torch.tensor([1]), {e})", "x.half() * {e}",
    "x.int() * {e}", "(x > 0) + {e}", "(x * {e}).sum() + {g}", "x.clone().add_(x, alpha={e})", "x.clone().mul_({e}).add_({g})",
    "(x * 2, {e})", "(x * {e}, {g}, {e} > 1)", "x * max({e}, {g})", "torch.isclose(x, x * 1.1, atol=abs({e})) * x",
)  # fmt: skip
FLOAT_TERMS = ("n", "-n", "n * 2", "n + 1", "n * n", "1 - n", "0.5", "n / 3")
FLOAT_VALUES = (0.5, 0.25, 2.0, 0.1, 3.5)


def program(text: str):
    """A function of x and n whose result ``text`` says; a write is one into a copy of x."""
    if text.split(";")[0] in _WRITTEN:
        body = f"    y = x.clone()\n    {text}\n    return y * 2"
    else:
        body = f"    return {text}"
    scope = {"torch": torch, "F": F}
    exec(f"def f(x, n):\n{body}", scope)
    return scope["f"]


_WRITTEN: set[str] = set()


def random_program(choose: random.Random) -> tuple[str, tuple]:
    """A program's text, and the values of n."""
    if choose.random() < 0.5:
        template = choose.choice(INTEGERS + WRITES)
        text = template.format(k=f"({choose.choice(INTEGER_TERMS)})", j=f"({choose.choice(INTEGER_TERMS)})")
        if template in WRITES:
            _WRITTEN.add(text)
        return text, INTEGER_VALUES
    template = choose.choice(FLOATS)
    return template.format(e=f"({choose.choice(FLOAT_TERMS)})", g=f"({choose.choice(FLOAT_TERMS)})"), FLOAT_VALUES


def outcome(f, x: torch.Tensor, n):
    """The results of ``f`` and the gradient of ``x``, or None where it is refused."""
    x = x.clone().requires_grad_()
    try:
        created = pytree.tree_leaves(f(x, n))
    except (RuntimeError, IndexError, ValueError, TypeError, ZeroDivisionError):
        return None
    smooth = [y for y in created if isinstance(y, torch.Tensor) and y.requires_grad]
    grads = []
    if smooth:
        total = sum((y * torch.arange(y.numel()).reshape(y.shape)).sum() for y in smooth)
        grads = list(torch.autograd.grad(total, x, allow_unused=True))
    return [y.detach() if isinstance(y, torch.Tensor) else y for y in created] + grads


def equal(a, b, rtol: float = 2e-5) -> bool:
    if a is None or b is None:
        return a is b
    if len(a) != len(b):
        return False
    for x, y in zip(a, b):
        if not isinstance(y, torch.Tensor) or not isinstance(x, torch.Tensor):
            if type(x) is not type(y) or x != y:
                return False
        elif (
            x.dtype is not y.dtype
            or x.shape != y.shape
            or x.stride() != y.stride()
            or not torch.allclose(x.double(), y.double(), rtol, 2e-4, equal_nan=True)
        ):
            return False
    return True


def wrong_values(text: str, values: tuple, backend: str = "mlirfuse") -> list:
    """The values of n, in order, for which the compiled program differs from eager."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    x, f = torch.randn(12, 9), program(text)
    run = torch.compile(f, backend=backend)
    rtol = 2.0**-10 if ".half()" in text else 2e-5  # gradients are not rounded to float16 on their way to float32
    return [n for n in values if not equal(outcome(run, x, n), outcome(f, x, n), rtol)]


def main(seed: int = 0, count: int = 1000) -> None:
    choose, found, torchs = random.Random(seed), 0, 0
    warnings.simplefilter("ignore")
    for _ in range(count):
        text, values = random_program(choose)
        wrong = wrong_values(text, values)
        if wrong:
            theirs = wrong_values(text, values, "aot_eager")
            found, torchs = found + (not theirs), torchs + bool(theirs)
            print(
                text,
                "wrong for n =",
                wrong,
                f"of {values}",
                f"(AOTAutograd alone: {theirs})" if theirs else "",
                flush=True,
            )
    print(f"{count} programs, {found} wrong, {torchs} more with AOTAutograd alone")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
