"""Reductions of what repeats: `fusion-reduce-broadcasts` against float64, and that the kernels read one element."""

import ml_dtypes
import numpy as np
import pytest
import torch

import mlirfuse
import mlirfuse.torch
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.builder import Builder
from mlirfuse.ir.graph import Block, Graph, Value, walk
from mlirfuse.ir.interpreter import run
from mlirfuse.passes.base import run_pipeline

VIEWS = {
    "number": lambda b, g: b.broadcast_to(b.slice(b.reshape(g, (24,)), 0, 5, 1), (2, 3, 4, 5)),
    "rows": lambda b, g: b.broadcast_to(b.reshape(g, (2, 3, 4, 1)), (2, 3, 4, 5)),
    "images": lambda b, g: b.broadcast_to(b.reshape(b.slice(g, 2, 1, 1), (2, 3, 1, 1)), (2, 3, 4, 5)),
    "reshaped": lambda b, g: b.reshape(b.broadcast_to(b.slice(g, 2, 1, 1), (2, 3, 20)), (2, 3, 4, 5)),
}
AXES = [(0,), (1, 3), (2, 3), (0, 2, 3), None]


def _program(view, name, axes, dtype, keepdims):
    g = Value(dtype, (2, 3, 4))
    b = Builder(Block([g]))
    x = VIEWS[view](b, g)
    if dtype is not dt.bool_:
        x = b.op("neg", b.op("mul", x, b.constant(3, dtype)))
    x = b.permute(x, (3, 1, 0, 2))
    b.block.returns = [b.op(name, x, axes=axes, keepdims=keepdims)]
    return Graph("f", b.block, [None])


def _elements(graph):
    """The elements that its reductions read."""
    return sum(op.operands[0].numel for op in walk(graph.body) if op.row.kind == "reduce")


@pytest.mark.parametrize("dtype", [dt.f16, dt.bf16, dt.f32, dt.f64, dt.i8, dt.i64, dt.bool_], ids=lambda d: d.name)
@pytest.mark.parametrize("view", VIEWS)
def test_against_float64(view, dtype):
    names = (
        ("max", "min", "any", "all") + (() if dtype is dt.bool_ else ("sum",)) + (("mean",) if dtype.is_float else ())
    )
    rng = np.random.default_rng(0)
    given = (rng.standard_normal((2, 3, 4)) * 40).astype(dtype.numpy)
    for name in names:
        for axes in AXES:
            before, after = (_program(view, name, axes, dtype, axes == (2, 3)) for _ in range(2))
            run_pipeline([after], "fusion-reduce-broadcasts,fusion-dce")
            (found,) = run(after, [given])
            (expected,) = run(before, [given])
            assert found.shape == expected.shape and found.dtype == expected.dtype
            if not dtype.is_float or name not in ("sum", "mean"):
                np.testing.assert_array_equal(np.asarray(found, float), np.asarray(expected, float), err_msg=name)
                continue
            exact = _program(view, name, axes, dt.f64, axes == (2, 3))
            # of what the type holds: products with 3 are rounded to it
            exact_in = given.astype(np.float64)
            (reference,) = run(exact, [exact_in])
            largest = np.abs(exact_in).max() * 3 * 120
            np.testing.assert_allclose(
                np.asarray(found, float), reference, rtol=0, atol=2 * float(ml_dtypes.finfo(dtype.numpy).eps) * largest
            )
    assert _elements(after) < _elements(before)


def test_reads_one_element_of_each():
    graph = _program("number", "sum", None, dt.f32, False)
    run_pipeline([graph], "fusion-reduce-broadcasts,fusion-dce")
    assert not _elements(graph)
    graph = _program("images", "sum", (0, 1, 2, 3), dt.f32, False)
    run_pipeline([graph], "fusion-reduce-broadcasts,fusion-dce")
    assert _elements(graph) == 6


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 3e38])
def test_what_no_number_multiplies(value):
    """Infinities and overflow as in a sum; without elements the sum is 0, whatever would repeat."""
    n = sz.symbol("s0") - 2

    def program():
        g, x = Value(dt.f32, (3, 1)), Value(dt.f32, (sz.symbol("s0"),))
        b = Builder(Block([g, x]))
        b.block.returns = [b.op("sum", b.broadcast_to(g, (3, n)), axes=(1,))]
        return Graph("f", b.block, [None, None])

    for extent in (2, 3, 9):
        before, after = program(), program()
        run_pipeline([after], "fusion-reduce-broadcasts,fusion-dce")
        given = [np.full((3, 1), value, np.float32), np.zeros(extent, np.float32)]
        np.testing.assert_array_equal(run(after, given)[0], run(before, given)[0])


def test_integers_wrap_around():
    x = np.array([[100], [-77]], np.int8)
    f = mlirfuse.jit(lambda x: np.sum(np.broadcast_to(x, (2, 1000)), axis=1, dtype=np.int8))
    np.testing.assert_array_equal(f(x), np.broadcast_to(x, (2, 1000)).sum(1, dtype=np.int8))


def test_what_is_written_in_place_does_not_repeat():
    def f(x):
        y = np.zeros(x.shape)
        y[1:] += x[1:]
        return y.sum(0)

    x = np.random.default_rng(1).standard_normal((7, 5))
    np.testing.assert_allclose(mlirfuse.jit(f)(x), x[1:].sum(0), rtol=1e-14)


def test_a_long_chain_needs_no_recursion():
    g = Value(dt.f32, (1,))
    b = Builder(Block([g]))
    x = b.broadcast_to(g, (1000,))
    for _ in range(3000):
        x = b.op("neg", x)
    b.block.returns = [b.op("sum", x)]
    graph = Graph("f", b.block, [None])
    run_pipeline([graph], "fusion-reduce-broadcasts,fusion-dce")
    assert not _elements(graph)
    assert run(graph, [np.float32([2])])[0] == 2000


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dynamic", [False, True])
def test_the_bias_behind_a_mean(dtype, dynamic):
    """As AOTAutograd spells the gradient of a bias: a sum of an expanded gradient, in its channels-last copy too."""

    def f(g, like):
        spread = (g / like[0, 0].numel()).expand(like.shape).clone(memory_format=torch.channels_last)
        return spread * 2, spread.sum([0, 2, 3])

    g, like = torch.randn(4, 1, 1, dtype=dtype), torch.zeros(3, 4, 20, 30, dtype=dtype)
    torch._dynamo.reset()
    found = torch.compile(f, backend="mlirfuse", dynamic=dynamic)(g, like)
    expected = g.double()[:, 0, 0] / 600 * 1800
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(found[1].double(), expected, rtol=2 * eps, atol=0)
    with torch._dynamo.config.patch(assume_static_by_default=not dynamic):
        described = mlirfuse.torch.explain(f, g, like).graphs[0]
    assert [k.scheduler for k in described.kernels] == ["pointwise"]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int8, np.bool_])
@pytest.mark.parametrize("keepdims", [False, True])
def test_axes_of_extent_1(dtype, keepdims):
    """As NumPy gives them, the sign of zero too, and without a reduction."""

    def program(x):
        names = ("sum", "mean", "max", "min", "any", "all", "var")
        return tuple(getattr(x, name)((1, 3), keepdims=keepdims) for name in names)

    x = np.array([-0.0, 1, 0, 3], np.float64).reshape(2, 1, 2, 1).astype(dtype)
    for found, expected in zip(mlirfuse.jit(program)(x), program(x), strict=True):
        assert found.dtype == expected.dtype and found.shape == expected.shape
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))
    (segment,) = mlirfuse.jit(program).explain(x).kernels
    assert segment.scheduler == "pointwise"


def test_axes_of_extent_1_in_a_chain():
    """Each reduction of what another gave; results are memory of their own, also of rank 0."""

    def program(x):
        total = x.sum((0, 1), keepdims=True)
        return total - total.max(1, keepdims=True), total.sum(0), x.max(0).min(0)

    x = np.arange(6, dtype=np.float32).reshape(1, 6)
    for found, expected in zip(mlirfuse.jit(program)(x), program(x), strict=True):
        np.testing.assert_array_equal(found, expected)
    for fn in (lambda x: x.amax(0), lambda x: x.amin(()), lambda x: x[0, 0].amax(), lambda x: x.sum(0)):
        given = torch.ones(1, 4)
        found = torch.compile(fn, backend="mlirfuse", fullgraph=True)(given)
        assert torch.equal(found, fn(given)) and not found._is_view()
        found.zero_()
        assert torch.equal(given, torch.ones(1, 4))
