"""Gradients of gathers at indices that an affine form of the element's own determines, such as relative positions: by
kernels that gather, in a fixed order."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from scatters import scatters_and_calls
from test_gpu_emulated import run
from test_torch_pools import compiled, kernels_on_gpu

from mlirfuse.frontend.torch.ops import affine_gathers
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import interpreter
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.affine_tables import affine_table
from mlirfuse.ir.builder import Builder
from mlirfuse.ir.graph import Block, Graph, Value
from mlirfuse.passes.segment import SegmentPass

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BOUND = {torch.float32: 4e-6, torch.bfloat16: 2e-2}


def iota(b, n, axis, rank):
    return b.op("iota", shape=tuple(n if d == axis else 1 for d in range(rank)), axis=axis, dtype=dt.i64)


def by(b, name, x, number):
    return b.op(name, x, b.constant(number, dt.i64))


def drawn(r: random.Random, b: Builder, shape) -> Value:
    """An index of this shape: a function of an affine form, clamped, divided or reflected."""

    x = b.constant(r.randint(-4, 4), dt.i64)
    for d in r.sample(range(len(shape)), len(shape)):
        part = by(b, "mul", iota(b, shape[d], d, len(shape)), r.choice([-2, -1, -1, 0, 1, 1, 2]))
        x = b.op(r.choice(["add", "sub"]), x, part) if x.rank else b.op("add", part, x)
    for _ in range(r.randint(0, 2)):
        name, number = r.choice([("maximum", -3), ("minimum", 5), ("floor_div", 2), ("mul", -1), ("add", 7)])
        x = b.op("abs", x) if r.random() < 0.1 else by(b, name, x, number)
    if r.random() < 0.3:  # negative indices count from the end
        x = b.op("where", by(b, "lt", x, 0), by(b, "add", x, 40), x)
    if r.random() < 0.3:
        x = b.op("slice", x, start=(1, 0, 0)[: x.rank], size=(1, *x.shape[1:]), step=(2, 1, 1)) if x.shape[0] > 1 else x
    return b.broadcast_to(x, shape)


def test_tables_are_what_the_interpreter_computes():
    r, found = random.Random(0), 0
    for _ in range(200):
        graph = Graph("f", Block([]))
        b = Builder(graph.body)
        shape = tuple(r.randint(1, 7) for _ in range(3))
        index = drawn(r, b, shape)
        graph.body.returns = [index, b.op("squeeze", b.op("permute", b.op("expand_dims", index, axes=(1,)),
                                                          dims=(3, 1, 0, 2)), axes=(1,))]  # fmt: skip
        for value, wanted in zip(graph.body.returns, interpreter.run(graph, [])):
            table = affine_table(value)
            if table is not None:
                found += 1
                form = np.tensordot(table.coefficients, np.indices(value.shape), 1)
                np.testing.assert_array_equal(table.numbers[form - table.low], wanted)
    assert found > 350


def test_unknown_values_have_no_table():
    b = Builder(Block([Value(dt.i64, (3, 4))]))
    i, j = (iota(b, 4, axis, 2) for axis in (0, 1))
    assert affine_table(b.op("add", i, b.op("mul", j, j))) is None
    assert affine_table(b.op("maximum", i, j)) is None
    assert affine_table(b.op("cast", i, to=dt.f32)) is None
    assert affine_table(b.block.args[0]) is None
    assert affine_table(b.op("reshape", b.op("add", i, j), shape=(16,))) is None


def symbolic(clamp):
    """An index ``clamp(b, i - j)`` of unknown extents, and the table of ``clamp`` on any form."""
    n, m = sz.symbol("s0"), sz.symbol("s1")
    b = Builder(Block([Value(dt.f32, (n, m))]))
    i, j = (b.op("iota", shape=s, axis=axis, dtype=dt.i64) for axis, s in enumerate([(n, 1), (1, m)]))
    return clamp(b, b.op("sub", i, j))


def test_tables_of_unknown_extents():
    """They are right for any value of the form, also beyond the table."""

    def clamp(b, x):
        x = b.op("abs", by(b, "sub", by(b, "mul", x, -2), 5))
        x = b.op("where", by(b, "lt", x, 30), x, by(b, "add", b.op("neg", x), 40))
        return by(b, "maximum", by(b, "minimum", x, 25), -9)

    table = affine_table(symbolic(clamp))
    assert table is not None and table.endless and table.coefficients == (1, -1)
    form = np.arange(-20000, 20000)
    wanted = abs(-2 * form - 5)
    wanted = np.clip(np.where(wanted < 30, wanted, 40 - wanted), -9, 25)
    at = np.clip(form - table.low, 0, len(table.numbers) - 1)  # the ends are constant
    np.testing.assert_array_equal(table.numbers[at], wanted)


@pytest.mark.parametrize(
    "clamp",
    [
        lambda b, x: by(b, "maximum", by(b, "minimum", x, 5000), 0),  # may have another piece beyond the table
        lambda b, x: by(b, "add", by(b, "add", x, 2000), 2000),
        lambda b, x: by(b, "mod", x, 5000),
        lambda b, x: by(b, "floor_div", x, 5000),
        lambda b, x: b.op("mul", x, x),
        lambda b, x: b.op("cast", x, to=dt.i8),
    ],
)
def test_tables_of_unknown_extents_are_of_small_pieces(clamp):
    assert affine_table(symbolic(clamp)) is None


def test_sums_are_those_of_a_scatter():
    r, gathered = random.Random(1), 0
    for _ in range(300):
        shape = tuple(r.randint(1, 9) for _ in range(3))
        dim, extent = r.randrange(3), r.randint(8, 24)
        graph = Graph("f", Block([Value(dt.f64, shape)]))
        b = Builder(graph.body)
        index = drawn(r, b, shape)
        for name, end in (("maximum", 0), ("minimum", extent - 1)) if r.random() < 0.8 else ():
            index = b.op(name, index, b.constant(end, dt.i64))
        found = affine_gathers.summed(SimpleNamespace(b=b, op=b.op), graph.args[0], dim, index, extent)
        if found is None:
            continue
        gathered += 1
        graph.body.returns = [found, index]
        values = np.random.default_rng(r.randrange(99)).standard_normal(shape)
        sums, at = interpreter.run(graph, [values])
        wanted = np.zeros(sums.shape)
        np.add.at(wanted, tuple(at if d == dim else each for d, each in enumerate(np.indices(shape))), values)
        np.testing.assert_allclose(sums, wanted, rtol=1e-12, atol=1e-12)
    assert gathered > 100


def relative(length, span, sign=1):
    """As of the attention of a DeBERTa: from each query to each key, clamped."""
    each = torch.arange(length, device=DEVICE)
    return torch.clamp(sign * (each[:, None] - each[None, :]) + span, 0, 2 * span - 1)


def gathered(x, index, dim=-1):
    return torch.gather(x, dim, index.expand(*x.shape[: x.dim() - 2], *index.shape))


# The length and the span: no index is clamped, one, a few at both ends, most.
CASES = [(17, 23), (17, 17), (17, 16), (17, 14), (33, 4), (8, 1)]


def both(x, y, length, span):
    """Content to position, and position to content."""
    there, back = gathered(x, relative(length, span)), gathered(y, relative(length, span, -1)).transpose(-1, -2)
    return torch.softmax(there / 8 + back / 8, -1)


def columns(x, y, length, span):
    return gathered(x.transpose(-1, -2), relative(length, span), -2) * gathered(y.transpose(-1, -2),
                                                                                relative(length, span, -1), -2)  # fmt: skip


def strided(x, y, length, span):
    """Every other position; one that reads each element twice."""
    index = (relative(length, span)[::2, ::2] * 2 + 1) // 2
    return gathered(x[:, : len(index)], index) + gathered(y[:, : len(index)], index // 2)


@pytest.mark.parametrize("f", [both, columns, strided], ids=lambda f: f.__name__)
@pytest.mark.parametrize("length, span, dtype", [*((*case, torch.float32) for case in CASES), (33, 4, torch.bfloat16)])
def test_gradients_gather(f, length, span, dtype, monkeypatch):
    """Against float64, without a scatter or a call of torch's."""
    calls = scatters_and_calls(monkeypatch)
    torch._dynamo.reset()
    torch.manual_seed(0)
    given = [torch.randn(3, length, 2 * span, device=DEVICE).to(dtype).requires_grad_() for _ in range(2)]
    wide = [x.detach().double().requires_grad_() for x in given]
    found, wanted = compiled(f)(*given, length, span), f(*wide, length, span)
    incoming = torch.randn_like(found)
    ours, eager = torch.autograd.grad(found, given, incoming), torch.autograd.grad(wanted, wide, incoming.double())
    for a, b in zip(ours, eager):
        torch.testing.assert_close(a.double(), b, rtol=BOUND[dtype], atol=BOUND[dtype])
    assert not calls


def test_gradients_of_sizes_that_change_gather(monkeypatch):
    scatters, run = [], SegmentPass.run

    def recorded(self, graph):
        run(self, graph)
        scatters.extend(op.name for op in graph.ops if op.name == "index_put_accumulate")

    monkeypatch.setattr(SegmentPass, "run", recorded)
    torch._dynamo.reset()
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(4, 18, device=DEVICE))

    def f(x, y):
        return both(x @ weight.to(x.dtype), y @ weight.to(y.dtype), x.shape[1], 9)

    found = torch.compile(f, backend="mlirfuse", dynamic=True, options={"fallback": False})
    for heads, length in ((3, 17), (2, 9), (5, 2), (2, 40), (4, 10)):
        given = [torch.randn(heads, length, 4, device=DEVICE, requires_grad=True) for _ in range(2)]
        wide = [x.detach().double().requires_grad_() for x in given]
        incoming = torch.randn(heads, length, length, device=DEVICE)
        ours = torch.autograd.grad(found(*given), given, incoming)
        for a, b in zip(ours, torch.autograd.grad(f(*wide), wide, incoming.double())):
            torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-5)
    assert not scatters


def test_indices_that_are_read_scatter():
    """From memory, or in an order that is not of a form."""
    x = torch.randn(3, 9, 12, requires_grad=True)
    each = torch.arange(9)
    for index in (torch.randint(0, 12, (3, 9, 9)), each[:, None] * each[None, :] % 12):
        f = lambda x: torch.gather(x, -1, index.expand(3, 9, 9)).square()  # noqa: E731
        ours, eager = (torch.autograd.grad(run(x).sum(), x)[0] for run in (compiled(f), f))
        torch.testing.assert_close(ours, eager)


@pytest.mark.parametrize("length, span", [(24, 32), (24, 8)])
def test_kernels_of_a_gpu(length, span, monkeypatch):
    def f(x):
        there, back = (gathered(x, relative(length, span, sign)) for sign in (1, -1))
        return there / 8 + back.transpose(-1, -2) / 4

    x = torch.randn(2, length, 2 * span, requires_grad=True)
    _, (backward, params), found = kernels_on_gpu(monkeypatch, f, x)
    assert "scatter_add" not in {p.scheduler for p in params}
    incoming = torch.randn(found.shape)
    (wanted,) = torch.autograd.grad(f(x), x, incoming)
    (gradient,) = run(backward, {}, params, [incoming.numpy()])
    np.testing.assert_allclose(gradient, wanted.numpy(), rtol=1e-5, atol=1e-6)
