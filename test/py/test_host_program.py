"""The host program: library ops and calls between programs of kernels, views, sizes that values tell, lifetimes,
arguments that are written, branches, loops and guards."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from mlirfuse.core.errors import ShapeError
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.builder import Builder
from mlirfuse.ir.graph import Block, Graph, Layout, Value
from mlirfuse.lowering import host_steps as st
from mlirfuse.passes.base import run_pipeline
from mlirfuse.runtime.host_program import HostProgram
from mlirfuse.schedule import targets
from mlirfuse.tools.run import of_text


def program(text: str, **options):
    return of_text(text, **options)


def kinds(sequence: st.Sequence) -> list[str]:
    return [type(step).__name__ for step in sequence.walk() if not isinstance(step, (st.Free, st.Assign))]


def floats(*shape, seed=0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


LAYERS = """
func.func @f(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}, %w: tensor<?x?xf32> {fusion.shape = ["s1", "s1"]})
    -> tensor<?x?xf32> attributes {fusion.device = "cpu"} {
  %0 = "fusion.matmul"(%x, %w) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  %1 = "fusion.tanh"(%0) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %2 = "fusion.matmul"(%1, %w) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  %3 = "fusion.tanh"(%2) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %4 = "fusion.matmul"(%3, %w) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  %5 = "fusion.exp"(%4) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  return %5 : tensor<?x?xf32>
}"""


def layers(x, w):
    x, w = np.float64(x), np.float64(w)
    return np.exp(np.tanh(np.tanh(x @ w) @ w) @ w)


def test_equal_groups_compile_once():
    f = program(LAYERS)
    x, w = floats(8, 16), floats(16, 16) / 8
    np.testing.assert_allclose(f(x, w)[0], layers(x, w), rtol=1e-5)
    assert kinds(f.host.sequence) == ["Call", "Kernels"] * 3
    first, second, third = [f.host.launches[step.part] for step in f.host.kernels]
    assert first is second and first is not third
    assert len(first.program({}).variants) == 1


def test_other_sizes_compile_nothing():
    f = program(LAYERS)
    w = floats(16, 16) / 8
    f(floats(8, 16), w)
    known = [dict(f.host.launches[step.part].program({}).variants) for step in f.host.kernels]
    x = floats(40, 16, seed=1)
    np.testing.assert_allclose(f(x, w)[0], layers(x, w), rtol=1e-5)
    assert [f.host.launches[step.part].program({}).variants for step in f.host.kernels] == known


def test_torch_tensors_stay_torchs():
    torch = pytest.importorskip("torch")
    x, w = floats(8, 16), floats(16, 16) / 8
    (result,) = program(LAYERS)(torch.from_numpy(x), torch.from_numpy(w))
    assert isinstance(result, torch.Tensor)
    np.testing.assert_allclose(result.numpy(), layers(x, w), rtol=1e-5)


def test_no_elements():
    f = program(LAYERS)
    (result,) = f(floats(0, 16), floats(16, 16))
    assert result.shape == (0, 16) and result.dtype == np.float32


def test_a_tensor_of_another_shape_is_an_error():
    f = program(LAYERS)
    with pytest.raises(ShapeError, match=r"argument 1 .* shape \(8, 16\), expected \(16, 16\)"):
        f(floats(4, 16), floats(8, 16))


# ---------------------------------------------------------------------------------------------------------------- calls


def graph_with_call(function, strides=None, shape=("s0", "s1"), after="exp"):
    """exp(function(neg(x))), with what ``function`` gives of this layout and shape."""
    sizes = tuple(sz.parse(n) for n in ("s0", "s1"))
    x = Value(dt.f32, sizes)
    graph = Graph("f", Block([x]), [Layout(sz.contiguous_strides(sizes), 16)], device="cpu")
    b = Builder(graph.body)
    made = tuple(sz.parse(n) for n in shape)
    strides = None if strides is None else [tuple(map(sz.parse, strides))]
    called = b.op(
        "call", b.op("neg", x), callee="test.f", dtypes=[dt.f32], shapes=[made], strides=strides, function=function
    )
    graph.body.returns = [b.op(after, called) if after else called]
    return HostProgram(run_pipeline([graph], "fusion-to-segments").graphs[0], targets.cpu())


def test_what_a_call_gives_is_read_as_it_lies():
    seen = []

    def transposed(x):
        made = np.asfortranarray(2 * x)
        seen.append(made)
        return [made]

    host = graph_with_call(transposed, strides=("1", "s0"))
    x = floats(5, 7)
    (result,) = host.run([x], {"s0": 5, "s1": 7})
    np.testing.assert_allclose(result, np.exp(np.float64(-2 * x)), rtol=1e-6)
    assert "Pack" not in kinds(host.sequence)


@pytest.mark.parametrize("strides", [None, ("s1", "1")])
def test_a_call_that_gives_another_layout_than_it_stated(strides):
    host = graph_with_call(lambda x: [np.asfortranarray(2 * x)], strides=strides)
    x = floats(5, 7)
    for _ in range(2):
        (result,) = host.run([x], {"s0": 5, "s1": 7})
        np.testing.assert_allclose(result, np.exp(np.float64(-2 * x)), rtol=1e-6)


def test_a_call_that_gives_another_shape_is_an_error():
    host = graph_with_call(lambda x: [x[:-1]])
    with pytest.raises(ShapeError, match=r"call gave f32\[4, 7\], the program was compiled for f32\[5, 7\]"):
        host.run([floats(5, 7)], {"s0": 5, "s1": 7})


def test_sizes_that_a_result_tells():
    host = graph_with_call(lambda x: [x[x[:, 0] > 0]], shape=("u0", "s1"))
    for seed in (1, 2, 3, 4):
        x = floats(40, 7, seed=seed)
        (result,) = host.run([x], {"s0": 40, "s1": 7})
        np.testing.assert_allclose(result, np.exp(np.float64(-x)[-x[:, 0] > 0]), rtol=1e-6)
    assert len(host.launches[host.kernels[-1].part].program({}).variants) == 1


def test_no_rows_were_found():
    host = graph_with_call(lambda x: [x[:0]], shape=("u0", "s1"))
    assert host.run([floats(3, 7)], {"s0": 3, "s1": 7})[0].shape == (0, 7)


def test_values_are_freed_after_their_last_reader():
    class Array(np.ndarray):
        pass

    alive, seen = [], []

    def function(x):
        gc.collect()
        alive.append(seen[0]() is not None if seen else None)
        made = (2 * x).view(Array)
        seen.append(weakref.ref(made))
        return [np.asarray(made)]

    sizes = (sz.parse("s0"),)
    x = Value(dt.f32, sizes)
    graph = Graph("f", Block([x]), [Layout((1,), 16)], device="cpu")
    b = Builder(graph.body)
    call = dict(callee="test.f", dtypes=[dt.f32], shapes=[sizes], function=function)
    first = b.op("call", x, **call)
    second = b.op("call", b.op("exp", first), **call)
    graph.body.returns = [second]
    host = HostProgram(run_pipeline([graph], "fusion-to-segments").graphs[0], targets.cpu())
    given = floats(10)
    np.testing.assert_allclose(host.run([given], {"s0": 10})[0], 2 * np.exp(2 * np.float64(given)), rtol=1e-6)
    assert alive == [None, False]


def test_an_argument_that_nobody_holds_is_freed():
    class Array(np.ndarray):
        pass

    watched = []
    host = graph_with_call(lambda x: watched.append(watched[0]() is None) or [x])
    given = [floats(5, 7).view(Array)]
    watched.append(weakref.ref(given[0]))
    host.function({"s0": 5, "s1": 7})(given)
    assert given == [] and watched[1] is True
