"""TorchScript's modules and functions as Python's, compiled and trained."""

from __future__ import annotations

import copy
import io
import warnings
from typing import NamedTuple

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import mlirfuse.torch
from mlirfuse.core.errors import UnsupportedError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class Looped(nn.Module):
    """A loop, a branch on data of the call, a submodule, dropout that asks for the mode, a buffer."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
        self.drop, self.count = nn.Dropout(0.5), 3
        self.register_buffer("shift", torch.ones(4))

    def forward(self, x, deep: bool):
        for k in range(self.count):
            x = torch.tanh(self.inner(x)) + self.shift * k
        if deep:
            x = self.drop(x) * 2
        else:
            x = x.view(x.size(0) * 2, -1)
        n = 0
        while n < x.size(0):
            n += 2
        return x.sum(-1).to(torch.float64), n


def scripted(model):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(model)


@pytest.mark.parametrize("loaded", [False, True])
def test_a_script_module_keeps_names_storage_and_modes_and_trains(loaded):
    torch._dynamo.reset()
    script = scripted(Looped())
    if loaded:
        file = io.BytesIO()
        torch.jit.save(script, file)
        file.seek(0)
        script = torch.jit.load(file)
    model = mlirfuse.torch.from_torchscript(script)
    assert [n for n, _ in model.named_parameters()] == [n for n, _ in script.named_parameters()]
    assert [n for n, _ in model.named_buffers()] == [n for n, _ in script.named_buffers()]
    ours, theirs = dict(model.named_parameters()), dict(script.named_parameters())
    assert all(ours[n].data_ptr() == theirs[n].data_ptr() for n in ours)
    x = torch.randn(6, 4)
    model.eval(), script.eval()
    run = torch.compile(model, backend="mlirfuse", options={"fallback": False})
    for deep in (True, False):
        torch.testing.assert_close(run(x, deep), script(x, deep), rtol=1e-5, atol=1e-5)
    run(x, False)[0].sum().backward()
    found = {n: p.grad.clone() for n, p in ours.items()}
    model.zero_grad(), script.zero_grad()
    script(x, False)[0].sum().backward()
    for n, p in script.named_parameters():
        torch.testing.assert_close(found[n], p.grad)
    model.train()
    assert not torch.equal(run(x, True)[0], run(x, True)[0])  # dropout, again


def test_a_traced_module():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5)).eval()
    x = torch.randn(2, 3, 8, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(copy.deepcopy(model), x)
    ours = mlirfuse.torch.from_torchscript(traced)
    torch.testing.assert_close(torch.compile(ours, backend="mlirfuse")(x), model(x))


def test_a_script_function():
    def f(x, n: int):
        y = x * n
        for _ in range(n):
            y = y + x.sin()
        return y if n > 2 else y - 1

    script = scripted(f)
    x = torch.randn(5)
    torch.testing.assert_close(mlirfuse.torch.from_torchscript(script)(x, 3), f(x, 3))
    torch.testing.assert_close(torch.compile(script, backend="mlirfuse")(x, 2), f(x, 2))


# ---- what users' scripts hold


class Containers(nn.Module):
    """Lists, dicts and text that hold tensors, filled and asked in every way."""

    def forward(self, x: dict[str, torch.Tensor], xs: list[torch.Tensor], n: int):
        out: dict[str, torch.Tensor] = {}
        for k, v in x.items():
            out[k.upper() + "_"] = v * n
        if "a" in x:
            out["sum"] = x["a"].sum()
        many: list[torch.Tensor] = []
        for y in xs[::-1]:
            if y.size(0) > 3:
                continue
            many.append(y.sin())
        many += [xs[0]]
        many.insert(0, xs[-1])
        last = many.pop()
        counts = sorted([len(many), 3, n])
        counts.reverse()
        counts.extend([n & 6, 7 // n, -7 % n])
        counts[0] = 9
        named = {"k": counts}
        text = ",".join([str(n), "b"]) + f"{n}"
        told = (text, text.find("b"), text.split(","), n**2, float(n) / 3, round(2.5), not bool(n), named["k"])
        return out, torch.stack(many).sum(0) + last, told


class Told(NamedTuple):
    a: torch.Tensor
    n: int


class Defaults(nn.Module):
    """Arguments with defaults, by name; a named tuple; ways out of loops; assertions; numbers of the module."""

    def __init__(self):
        super().__init__()
        self.scale, self.names, self.dims = 0.5, ["a", "b"], (1, 2)
        self.weight = nn.Parameter(torch.randn(4, 4))

    def encoded(self, x, twice: bool = False):
        y = x @ self.weight
        return y @ self.weight if twice else y

    def forward(self, x, mask: torch.Tensor | None = None, n: int = 2):
        if mask is not None:
            x = x * mask
        if n == 0:
            return Told(x, 0), (x,)
        assert x.dim() == 2, "rows"
        k = 0
        while True:
            k += 1
            x = self.encoded(x, False) * self.scale
            if k >= n:
                break
        far = x * len(self.names) + self.dims[1]
        if torch.jit.is_scripting():
            x = x + far
        return Told(x, k), (far,)


class Written(nn.Module):
    """Writes by index and mask, made tensors, counted calls, types that change."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x, i):
        self.calls += 1
        y = self.norm(x).clone()
        with torch.no_grad():
            fixed = y * 2
        y[:, 1] = 0
        y[i] = y[i] * 2
        y[y > 0.5] = 0.5
        created = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.arange(x.shape[0], dtype=x.dtype), torch.full([2], 1.5)
        return (
            (y + fixed)[..., ::2] * self.calls,
            created,
            y.to(torch.bfloat16),
            x.max(dim=1)[1],
            torch.zeros_like(x, dtype=torch.int),
        )


class Layers(nn.Module):
    """Modules in lists and dicts; a recurrent one, convolutions and an encoder layer, whose scripts are torch's own."""

    def __init__(self):
        super().__init__()
        self.named = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)})
        self.words, self.memory = nn.Embedding(10, 4, padding_idx=0), nn.LSTM(4, 8, batch_first=True)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.wide = nn.Conv2d(3, 4, 3, padding="same")

    def forward(self, words, picture):
        x = self.words(words)
        for k, layer in self.named.items():
            x = layer(x).relu() + len(k)
        y, (h, _) = self.memory(x)
        future = torch.jit.fork(torch.sin, y)
        picture = nn.functional.interpolate(picture, scale_factor=2.0, mode="bilinear", align_corners=False)
        return self.layer(torch.jit.wait(future)), h[0], self.wide(picture).mean((2, 3))


X = torch.linspace(-1, 1, 12).view(3, 4)
WORDS, PICTURE = torch.tensor([[1, 5, 0], [2, 9, 3]]), torch.linspace(-1, 1, 75 * 2).view(2, 3, 5, 5)
SCRIPTS = [
    (Containers, ({"a": X, "b": X * 2}, [X, X + 1, X.repeat(2, 1)[:3]], 2), {}),
    (Defaults, (X,), {}),
    (Defaults, (X,), {"n": 3, "mask": X > 0}),
    (Defaults, (X, None, 0), {}),
    (Written, (X, torch.tensor([0, 2])), {}),
    (Layers, (WORDS, PICTURE), {}),
]


def same(found, wanted):
    for a, b in zip(*map(torch.utils._pytree.tree_leaves, (found, wanted)), strict=True):
        assert type(a) is type(b)
        if isinstance(b, torch.Tensor):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
        else:
            assert a == b


@pytest.mark.parametrize(("make", "args", "kwargs"), SCRIPTS)
@pytest.mark.parametrize("train", [False, True])
def test_what_scripts_hold(make, args, kwargs, train):
    """Compiled, from a script and as it was written: results and gradients; a second call follows the first's
    writes."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    script = scripted(make().train(train))
    theirs = scripted(make().train(train))
    theirs.load_state_dict(script.state_dict())
    ours = mlirfuse.torch.from_torchscript(script)
    run = torch.compile(ours, backend="mlirfuse", options={"fallback": False})
    for _ in range(2):
        found, wanted = run(*args, **kwargs), theirs(*args, **kwargs)
        same(found, wanted)
        assert type(found) is type(wanted)
    same(dict(ours.named_buffers()), dict(theirs.named_buffers()))
    for out in (found, wanted):
        leaves = [x for x in torch.utils._pytree.tree_leaves(out) if isinstance(x, torch.Tensor) and x.requires_grad]
        if leaves:
            sum(x.float().square().sum() for x in leaves).backward()
    same([p.grad for p in ours.parameters()], [p.grad for p in theirs.parameters()])


class Exporting(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    @torch.jit.export
    def encoded(self, x, twice: bool = False):
        y = self.inner(x)
        return self.inner(y) if twice else y

    def forward(self, x):
        return self.encoded(x, True).tanh()


def test_methods_that_a_script_exports():
    script = scripted(Exporting())
    ours = mlirfuse.torch.from_torchscript(script)
    torch.testing.assert_close(torch.compile(ours.encoded, backend="mlirfuse")(X, twice=True), script.encoded(X, True))
    torch.testing.assert_close(torch.compile(ours, backend="mlirfuse")(X), script(X))


def test_traced_and_frozen():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(layer, torch.randn(2, 5, 8), check_trace=False)
        frozen = torch.jit.freeze(torch.jit.script(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()))
    for script, x in ((traced, torch.randn(3, 7, 8)), (frozen, PICTURE)):
        torch._dynamo.reset()
        ours = mlirfuse.torch.from_torchscript(script)
        run = torch.compile(ours, backend="mlirfuse", fullgraph=True)  # numbers of a trace are numbers
        torch.testing.assert_close(run(x), script(x), rtol=1e-5, atol=1e-5)


def test_a_class_of_a_script_is_refused():
    @torch.jit.script
    class Total:
        def __init__(self, n: int):
            self.n = n

    def f(x, n: int):
        total = Total(n)
        return x * total.n

    with pytest.raises(UnsupportedError, match="own classes are not supported"):
        mlirfuse.torch.from_torchscript(scripted(f))
