"""Random programs of views, writes in place and gradients beside eager: values, types, strides, what requires a
gradient, what shares memory, what is written into arguments, and gradients are compared, and what eager refuses.

By hand: ``python test/py/frontend_torch/torch_view_programs.py FIRST LAST`` prints each program that differs, made as small as it
still differs, with what AOTAutograd alone gives (``backend="aot_eager"``)."""

from __future__ import annotations

import random
import re
import sys
import warnings
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch_program_search import Search, without_one

import mlirfuse.torch  # noqa: F401 (registers the backend, also where mlirfuse is not installed)

_VIEWS = (
    "{x}[1:]", "{x}[:-1]", "{x}[::2]", "{x}[0]", "{x}[-1]", "{x}[:, 1]", "{x}[:, 1:]", "{x}[..., -1]", "{x}[None]",
    "{x}[:, None]", "{x}.t()", "{x}.transpose(0, -1)", "{x}.view(-1)", "{x}.reshape(-1)", "{x}.flatten()", "{x}.unsqueeze(-1)",
    "{x}.squeeze()", "{x}.squeeze(0)", "{x}.expand(3, *{x}.shape)", "{x}.diagonal()", "{x}.narrow(0, 1, 1)", "{x}.select(0, 1)",
    "{x}.select(-1, -2)", "{x}.chunk(2)[1]", "{x}.split(1)[-1]", "{x}.unbind(0)[1]", "{x}.unfold(0, 2, 1)", "{x}.movedim(0, -1)",
    "{x}.detach()", "{x}.as_strided((2, 2), (1, 2), 1)", "{x}.view_as({x})", "{x}.swapaxes(0, 1)", "{x}.view(2, -1)",
    "{x}.tensor_split(2)[0]", "{x}.view(torch.int32)", "{x}.real", "{x}[1:][:, :2]", "{x}.mT", "{x}.unflatten(0, (2, -1))",
    "{x}.alias()" if hasattr(torch.Tensor, "alias") else "{x}[:]", "{x}.permute(*reversed(range({x}.dim())))", "{x}.data",
)  # fmt: skip
_COMPUTED = (
    "{x} * 2", "{x} + {y}", "{x} * {y}", "{x} - {x}.mean()", "torch.sin({x})", "{x}.sum(0)", "{x}.sum()", "{x} @ {y}", "{x}.clone()",
    "torch.cat([{x}, {x}])", "{x}.contiguous()", "{x}.softmax(-1)", "{x}.cumsum(0)", "torch.where({x} > 0, {x}, {y})",
    "{x}[i]", "{x}[:, i]", "{x}.to(torch.float64)", "{x}.relu()", "{x}.amax(0)", "{x}.index_select(0, i)", "{x}[{x} > 0.1]",
    "torch.stack([{x}, {x}])", "torch.zeros_like({x})", "torch.ones(2, 4)", "{x}.flip(0)", "{x}.roll(1, 0)", "{x}.repeat(2, 1)",
    "F.layer_norm({x}, {x}.shape[-1:])", "{x}.exp()", "{x}.tanh()", "{x}.sigmoid()", "{x}.new_zeros(3, 4)", "{x}.max(0).values",
    "torch.empty_like({x}).copy_({y})", "{x}.tril()", "{x} ** 2", "{x}.gather(0, j)", "F.dropout({x}, 0.0)", "{x}.half()", "{x} > 0",
)  # fmt: skip
_WRITES = (
    "{x}.mul_(2)", "{x}.add_({y})", "{x}.copy_({y})", "{x}[0] = 3.0", "{x}[1:] = {y}", "{x}[1:] = {x}[:-1]", "{x}.zero_()",
    "{x}.sigmoid_()", "{x}.masked_fill_({x} > 0.2, 0.5)", "{x} += {y}", "{x} *= 0.5", "{x}[:, 0] += 1", "{x}[..., 1].mul_(3)",
    "{x}.index_add_(0, i, {y}[i])", "{x}[i] = {y}[i]", "{x}[i] = 1.5", "{x}.t_()", "{x}.transpose_(0, 1)", "{x}.unsqueeze_(0)",
    "{x}.squeeze_(0)", "{x}.relu_()", "{x}.clamp_(-0.5, 0.5)", "{x}.scatter_(0, j, 1.0)", "{x}.fill_diagonal_(2.0)",
    "{x}.detach().mul_(2)", "{x}.data.add_(1)", "with torch.no_grad(): {x}.mul_(2)", "{x}.index_fill_(0, i, 2.0)", "{x}.exp_()",
    "{x}.index_put_((i,), {y}[i], accumulate=True)", "{x}[{x} > 0] = 0.1", "torch.mul({x}, 2, out={y})", "{x}.tanh_()",
    "{x}.fill_(0.7)", "{x}.addcmul_({y}, {y})", "{x}.select(0, 0).copy_({x}[1])", "{x}.view(-1)[2] = 4.0", "{x}.neg_()",
    "{x}.lerp_({y}, 0.5)", "{x}.pow_(2)", "{x}.cumsum_(0)", "F.relu({x}, inplace=True)", "{x}.t().copy_({y})", "{x}.sub_({x}.mean())",
    "{x}.diagonal().zero_()", "{x}[::2].add_({x}[::2])", "{x}.detach_()", "torch._dynamo.graph_break()",
)  # fmt: skip
_LAYOUTS = {
    "row-major": lambda x: x,
    "transposed": lambda x: x.t().contiguous().t(),
    "sliced": lambda x: torch.cat([x, x], 1).reshape(-1, 2 * x.shape[1])[:, : x.shape[1]],
}
_REFUSED = "backward: RuntimeError"
# Floats whose last digit may not be eager's: as ints, their difference is of any size after some arithmetic.
_ROUNDED = re.compile(
    r"mean|sum|sin|softmax|layer_norm|exp|tanh|sigmoid|\*\* 2|pow_|lerp_|addcmul_|@|index_add_|accumulate|float64|half"
)
# How the second argument lies to the first.
_SECOND = ("apart", "apart", "apart", "same", "view", "overlapping")


@dataclass
class Program:
    """``lines``: the statements of a function of x, y, an index i and an index j; ``returns``: names. ``grads``: which
    of x and y require gradients: by being made of leaves (what is written into), or as leaves."""

    lines: list[str]
    returns: list[str]
    layout: str = "row-major"
    second: str = "apart"
    grads: tuple[str, str] = ("made", "none")
    dtype: torch.dtype = torch.float32
    after: bool = False  # whether the caller writes into the results

    @property
    def text(self) -> str:
        body = [
            *self.lines,
            f"return {', '.join(self.returns)}{',' * (len(self.returns) == 1)}" if self.returns else "",
        ]
        return "def f(x, y, i, j):\n" + "".join(f"    {line}\n" for line in body if line)

    def function(self):
        scope = {"torch": torch, "F": F}
        exec(self.text, scope)
        return scope["f"]

    def arguments(self, seed: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """New arguments, and the leaves that they are made of."""
        generator = torch.Generator().manual_seed(seed)
        leaves, given = [], []
        for how in self.grads:
            x = _LAYOUTS[self.layout]((torch.rand(4, 4, generator=generator) - 0.3).to(self.dtype))
            x = x.requires_grad_(how != "none")
            leaves.append(x)
            given.append(x * 1 if how == "made" else x)
        if self.second == "same":
            given[1] = given[0]
        elif self.second == "view":
            given[1] = given[0].t()
        elif self.second == "overlapping":
            given = [given[0][:3], given[0][1:]]
        return [*given, torch.tensor([1, 0]), torch.tensor([[0, 1, 0, 1]])], leaves

    def __str__(self) -> str:
        return f"x, y: {self.layout}, y {self.second} (gradients: {', '.join(self.grads)})\n{self.text}" + (
            "# the caller writes x.mul_(2) into each result" * self.after
        )


def generate(seed: int) -> Program:
    """The program of a seed: of statements that eager runs, but for a few."""
    r = random.Random(seed)
    program = Program([], [], r.choice((*_LAYOUTS, "row-major")), r.choice(_SECOND), tuple(
        r.choice(("made", "made", "none", "leaf")) for _ in range(2)))  # fmt: skip
    names = ["x", "y"]
    for k in range(r.randint(2, 7)):
        kind = r.choice((_VIEWS, _VIEWS, _COMPUTED, _WRITES, _WRITES))
        text = r.choice(kind).format(x=r.choice(names[-4:]), y=r.choice(names))
        if kind is not _WRITES:
            text = f"v{k} = {text}"
        tried = replace(program, lines=[*program.lines, text])
        with warnings.catch_warnings():  # results are not resized: a line of limits.md
            warnings.filterwarnings("error", message=".*was resized")
            refused = isinstance(outcome(tried.function(), tried, 0, check=False), str)
        if refused and ("out=" in text or r.random() < 0.95):
            continue
        program = tried
        names += [f"v{k}"] * (kind is not _WRITES)
    program.after = r.random() < 0.3
    program.returns = r.sample(names, r.randint(1, min(3, len(names))))
    return program


def outcome(f, program: Program, seed: int, check: bool = True):
    """All that a caller sees of a call and of its backward; text where it is refused."""
    given, leaves = program.arguments(seed)
    try:
        created = f(*given) or ()
        for x in dict.fromkeys(created) if program.after else ():
            x.mul_(2)
        tensors = [*created, *given[:2]]
        seen = [_described(x) for x in tensors]  # eager refuses some views of what was written as they are looked at
    except Exception as error:
        return type(error).__name__
    if not check:
        return None
    shared = [(a is b, _memory(a) == _memory(b)) for n, a in enumerate(tensors) for b in tensors[:n]]
    smooth = [x for x in tensors if x.requires_grad and x.numel()]
    grads = []
    if smooth:
        total = sum((x.double() * torch.arange(1, x.numel() + 1).reshape(x.shape)).sum() for x in smooth)
        wanted = [x for x in leaves if x.requires_grad]
        try:
            grads = torch.autograd.grad(total, wanted, allow_unused=True)
        except Exception as error:
            return f"backward: {type(error).__name__}"
        grads = [_described(g) if g is not None else None for g in grads]
    return seen, shared, grads


def _memory(x: torch.Tensor) -> int:
    return x.untyped_storage().data_ptr() if x.numel() else id(x)


def _described(x: torch.Tensor) -> tuple:
    return x.dtype, tuple(x.shape), x.stride(), x.requires_grad, x.is_leaf, x.detach().clone()


def _close(ours: torch.Tensor, eagers: torch.Tensor, exact: tuple | None, narrow: bool) -> bool:
    """Whether values are eager's within a bound of their type (``narrow``: that of float16, as they are computed from
    such), and what eager itself errs where that is known."""
    bound = 2e-2 if narrow else 2e-3 if ours.dtype is torch.float16 else 2e-5
    ours, eagers = ours.double(), eagers.double()
    errs = bound + bound * eagers.abs()
    if exact is not None and exact[-1].shape == eagers.shape:
        errs = errs + 8 * (eagers - exact[-1].double()).abs()
    return bool(((ours == eagers) | (ours.isnan() & eagers.isnan()) | ((ours - eagers).abs() <= errs)).all())


def difference(ours, eagers, exact=None, narrow: bool = False, values: bool = True) -> str | None:
    """What of two outcomes is not the same, or None. ``exact``: what eager gives in double precision; ``values``:
    whether elements are compared, too."""
    if isinstance(ours, str) or isinstance(eagers, str):
        refused = isinstance(ours, str) and isinstance(eagers, str)
        return (
            None
            if refused
            else f"{ours if isinstance(ours, str) else 'no error'}, eager: {eagers if isinstance(eagers, str) else 'no error'}"
        )
    for what, one, other in (("result", ours[0], eagers[0]), ("gradient", ours[2], eagers[2])):
        for k, (a, b) in enumerate(zip(one, other)):
            if (a is None) != (b is None):
                return f"{what} {k}: {a}, eager: {b}"
            if a is None:
                continue
            if what == "gradient":
                a, b = (*a[:2], None, *a[3:]), (*b[:2], None, *b[3:])
            if a[:-1] != b[:-1]:
                return f"{what} {k}: {a[:-1]}, eager: {b[:-1]}"
            if values and not _close(a[-1], b[-1], exact and exact[0 if what == "result" else 2][k], narrow):
                return f"{what} {k}: {a[-1]}, eager: {b[-1]}"
    return None if ours[1] == eagers[1] else f"sharing: {ours[1]}, eager: {eagers[1]}"


def differs(program: Program, backend: str = "mlirfuse", calls: int = 2) -> str | None:
    """What is not the same in compiled calls as in eager's, None where all is."""
    torch._dynamo.reset()
    f = program.function()
    run = torch.compile(f, backend=backend)
    narrow = ".half()" in program.text
    values = not (".view(torch.int32)" in program.text and _ROUNDED.search(program.text))
    for seed in range(calls):
        ours, eagers = outcome(run, program, seed), outcome(f, program, seed)
        refused = [isinstance(x, str) and x == _REFUSED for x in (ours, eagers)]
        # What the caller writes into may be saved, or computed again; nobody writes into what is not returned.
        alone = program.after and (refused[1] or isinstance(outcome(f, replace(program, after=False), seed), str))
        if alone or (program.after and refused[0] and _shares_an_argument(eagers)):
            return differs(replace(program, after=False), backend, calls)
        if refused[0] and not refused[1] and backend == "mlirfuse" and _is_refused_by_torchs_cut(f, program, seed):
            continue
        if refused[1] and not isinstance(ours, str):
            # Eager refuses what was written since it was saved; compiled functions may compute it again.
            if ".data" in program.text:  # what is written through it is seen by eager's backward, but not under this:
                continue
            with torch.autograd.graph.allow_mutation_on_saved_tensors():
                eagers = outcome(f, program, seed)
        if difference(ours, eagers, None, narrow, values):
            exact = outcome(f, replace(program, dtype=torch.float64), seed)
            comparable = not isinstance(exact, str) and not isinstance(eagers, str)
            if found := difference(ours, eagers, exact if comparable else None, narrow, values):
                return found
    return None


def _shares_an_argument(seen) -> bool:
    """Whether a result shares memory with an argument in eager: then the caller writes into an input, from which a
    backward may compute (a line of limits.md)."""
    if isinstance(seen, str):
        return False
    tensors, shared, _ = seen
    results = len(tensors) - 2
    rows = [shared[n * (n - 1) // 2 :][:results] for n in (results, results + 1)]
    return any(memory for row in rows for _, memory in row)


def _is_refused_by_torchs_cut(f, program: Program, seed: int) -> bool:
    """Whether torch's own cut recomputes, too, from an input that has been written since."""
    torch._dynamo.reset()
    return outcome(torch.compile(f, backend="aot_eager_decomp_partition"), program, seed) == _REFUSED


def smaller(program: Program) -> list[Program]:
    """The programs that lack one thing each."""
    fewer = [replace(program, lines=lines) for lines in without_one(program.lines)]
    fewer += [replace(program, returns=returns) for returns in without_one(program.returns)]
    grads = [("none", "none"), (program.grads[0], "none")]
    simple = [("layout", "row-major"), ("after", False), ("second", "apart"), *(("grads", found) for found in grads)]
    return fewer + [replace(program, **{key: v}) for key, v in simple if getattr(program, key) != v]


SEARCH = Search(generate, differs, lambda program: isinstance(outcome(program.function(), program, 0), str), smaller)
problem = SEARCH.problem

if __name__ == "__main__":
    sys.exit(bool(SEARCH.main(*map(int, sys.argv[1:3]))))
