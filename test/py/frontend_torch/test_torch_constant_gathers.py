"""Gradients of gathers at indices that are the same in every call: by kernels that gather, in a fixed order."""

from __future__ import annotations

import functools
import random
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from scatters import scatters_and_calls

import mlirfuse.torch  # noqa: F401
from mlirfuse.frontend.torch.ops import constant_gathers
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import interpreter
from mlirfuse.ir.builder import Builder
from mlirfuse.ir.graph import Block, Graph, Value

F = torch.nn.functional
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BOUND = {torch.float32: 2e-6, torch.bfloat16: 2e-2}
KINDS = ["affine", "repeated", "reflect", "edge", "wrap", "rounded", "sorted", "turning", "unordered"]


def drawn(r: random.Random, kind: str, extent: int) -> np.ndarray:
    """Indices below ``extent``."""
    count = r.randint(1, 60)
    each = np.arange(count)
    if kind in ("reflect", "edge", "wrap"):
        return np.pad(np.arange(extent), (r.randint(0, extent - 1), r.randint(0, extent - 1)), mode=kind)
    found = {
        "affine": each * r.choice([-3, -2, -1, 1, 2, 3]) + r.randrange(extent),
        "repeated": each // r.randint(1, 20) + r.randint(0, 3),
        "rounded": each * r.randint(1, 9) // r.randint(1, 9),
        "sorted": np.sort([r.randrange(extent) for _ in each]),
        "turning": np.concatenate([each // 2, each[::-1] // 3, each]),
        "unordered": np.array([r.randrange(extent) for _ in each]),
    }[kind]
    found = found[(found >= 0) & (found < extent)]
    return found[::-1] if r.random() < 0.5 else found


@pytest.mark.parametrize("kind", KINDS)
def test_sums_are_those_of_a_scatter(kind):
    r, refused = random.Random(0), 0
    for _ in range(60):
        extent = r.randint(1, 40)
        index = drawn(r, kind, extent).astype(np.int64)
        dim, width = r.randint(0, 1), 3
        shape = (len(index), width) if dim == 0 else (width, len(index))
        if not index.size:
            continue
        graph = Graph("f", Block([Value(dt.f64, shape), Value(dt.i64, (len(index),))]))
        b = Builder(graph.body)
        at = functools.partial(b.op, "take", graph.args[1], axis=0)
        found = constant_gathers.summed(SimpleNamespace(b=b, op=b.op), graph.args[0], dim, index, extent, at)
        if found is None:
            refused += 1
            continue
        graph.body.returns = [found]
        values = np.random.default_rng(r.randrange(99)).standard_normal(shape)
        wanted = np.zeros((extent, width) if dim == 0 else (width, extent))
        np.add.at(wanted, index if dim == 0 else (slice(None), index), values)
        np.testing.assert_allclose(interpreter.run(graph, [values, index])[0], wanted, rtol=1e-12, atol=1e-12)
    assert (refused > 20) == (kind == "unordered") and (kind == "unordered" or not refused)


def pad(mode, *sizes):
    return lambda x: F.pad(x, sizes, mode=mode)


PROGRAMS = {
    "repeated": lambda x: x[:, torch.arange(12, device=x.device) // 2],
    "interleaved": lambda x: x[:, :, torch.arange(28, device=x.device) // 4],
    "reversed": lambda x: x.index_select(2, torch.arange(6, -1, -1, device=x.device)),
    "strided": lambda x: x[..., torch.arange(0, 9, 2, device=x.device)],
    "from the end": lambda x: x[..., torch.arange(-5, 0, device=x.device)],
    "two dimensions": lambda x: x[
        :, :, (torch.arange(14, device=x.device) // 2)[:, None], torch.arange(9, device=x.device)
    ],
    "rounded": lambda x: x[..., torch.arange(31, device=x.device) * 2 // 7],
    "gather": lambda x: torch.gather(x, 3, (torch.arange(18, device=x.device) // 2).expand(2, 6, 7, 18)),
    "rows of a table": lambda x: F.embedding(torch.arange(5, device=x.device)[None], x[0, 0]),
    "reflect 1d": lambda x: pad("reflect", 2, 1)(x[0]),
    "reflect 2d": pad("reflect", 2, 1, 3, 2),
    "reflect 3d": lambda x: pad("reflect", 2, 1, 3, 2, 1, 0)(x[None]),
    "replicate 1d": lambda x: pad("replicate", 20, 1)(x[0]),
    "replicate 2d": pad("replicate", 2, 1, 3, 2),
    "replicate 3d": lambda x: pad("replicate", 2, 1, 0, 2, 1, 1)(x[None]),
    "circular 1d": lambda x: pad("circular", 9, 1)(x[0]),
    "circular 2d": pad("circular", 2, 1, 7, 0),
    "circular 3d": lambda x: pad("circular", 0, 3, 2, 0, 1, 1)(x[None]),
    "circular of other strides": lambda x: pad("circular", 1, 1, 0, 0)(x.transpose(2, 3)),
}


@pytest.mark.parametrize("dtype", BOUND, ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_gather(name, dtype, monkeypatch):
    """Against float64; with strides as eager's, and without a scatter or a call of torch's."""
    calls = scatters_and_calls(monkeypatch)
    torch._dynamo.reset()
    f = PROGRAMS[name]
    torch.manual_seed(0)
    x = torch.randn(2, 6, 7, 9, device=DEVICE).to(dtype).requires_grad_()
    wide, own = x.detach().double().requires_grad_(), x.detach().clone().requires_grad_()
    found = torch.compile(lambda x: f(x) * 2, backend="mlirfuse", options={"fallback": False})(x)
    wanted, eager = f(wide) * 2, f(own) * 2
    incoming = torch.randn_like(found)
    for y, g in ((found, incoming), (wanted, incoming.double()), (eager, incoming)):
        y.backward(g)
    assert found.stride() == eager.stride() and x.grad.stride() == own.grad.stride()
    torch.testing.assert_close(found.double(), wanted, rtol=BOUND[dtype], atol=BOUND[dtype])
    torch.testing.assert_close(x.grad.double(), wide.grad, rtol=BOUND[dtype], atol=4 * BOUND[dtype])
    assert not calls


def compiled(f, **options):
    torch._dynamo.reset()
    return torch.compile(f, backend="mlirfuse", options={"fallback": False}, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.int16], ids=str)
def test_circular_pads_of_sizes_that_change(dtype):
    f = pad("circular", 2, 1, 0, 3)
    run = compiled(f, dynamic=True)
    for shape in ((2, 3, 4, 5), (3, 2, 7, 6), (1, 2, 3, 2)):
        x = torch.randn(shape, device=DEVICE).mul(9).to(dtype)
        x = x.requires_grad_() if dtype is not torch.int16 else x
        found, wanted = run(x), f(x)
        assert torch.equal(found, wanted) and found.stride() == wanted.stride()
        if dtype is not torch.int16:
            incoming = torch.randint(-4, 5, wanted.shape, device=DEVICE).to(dtype)  # sums are exact
            ours, eager = (torch.autograd.grad(y, x, incoming)[0] for y in (found, wanted))
            torch.testing.assert_close(ours, eager)


def test_circular_pads_are_results_of_their_own():
    """Also where nothing is padded; and pixels that negative sizes cut off are not read."""
    for sizes in ((0, 0, 0, 0), (-2, 1, 1, -1)):
        x = torch.randn(2, 3, 4, 5, device=DEVICE)
        f = pad("circular", *sizes)
        found, wanted = compiled(f)(x), f(x)
        assert torch.equal(found, wanted) and found.data_ptr() != x.data_ptr()


def test_circular_pads_under_transforms():
    """Second derivatives, and ``torch.func``'s transforms."""
    x = torch.randn(2, 5, device=DEVICE, requires_grad=True)

    def f(x):
        return (pad("circular", 2, 3)(x) ** 3).sum()

    twice = torch.func.vmap(torch.func.grad(f))
    torch.testing.assert_close(compiled(twice)(x[:, None]), twice(x[:, None]))
    (first,) = torch.autograd.grad(f(x), x, create_graph=True)
    torch.testing.assert_close(compiled(torch.func.grad(f))(x), first)


@pytest.mark.parametrize(
    "f, message",
    [
        (pad("circular", 6, 0), "wrapping around more than once"),
        (lambda x: F.pad(x, (1, 1), mode="circular", value=3), "take in value argument"),
    ],
)
def test_errors_of_circular_pads_are_eagers(f, message):
    for run in (f, compiled(f)):
        with pytest.raises(Exception, match=message):
            run(torch.zeros(2, 5, device=DEVICE))
