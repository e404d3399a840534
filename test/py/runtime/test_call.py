"""`fusion.call`: a function that is not of the op table, among ops that are compiled."""

from __future__ import annotations

import numpy as np
import pytest

from mlirfuse.core.errors import ShapeError, UnsupportedError
from mlirfuse.dialects import fusion
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import interpreter
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.builder import Builder
from mlirfuse.ir.graph import Block, Graph, Layout, Value
from mlirfuse.passes.base import run_pipeline
from mlirfuse.runtime.host_program import HostProgram
from mlirfuse.schedule import targets

N = sz.symbol("s0")


class Log:
    """A function for `fusion.call` that counts its calls."""

    def __init__(self, name: str, seen: list[str]):
        self.name, self.seen = name, seen

    def __call__(self, x):
        self.seen.append(self.name)
        return [x * 2, x.sum(0)]


def graph_of(calls: list[dict]) -> Graph:
    """f(x: s0 x 4) = the first results of the calls of exp(x), added up, and 1."""
    x = Value(dt.f32, (N, 4), name="x")
    b = Builder(Block([x]))
    y = b.op("exp", x)
    total = b.constant(1, dt.f32)
    for attrs in calls:
        given = {"callee": "log", "dtypes": (dt.f32, dt.f32), "shapes": ((N, 4), (4,))} | attrs
        used = given.pop("used", True)
        result = b.op("call", y, **given)[0]
        total = b.op("add", total, result) if used else total
    b.block.returns = [total]
    return Graph("f", b.block, [Layout((4, 1), 16)])


def grouped(graph: Graph) -> Graph:
    return run_pipeline([graph], "fusion-cse,fusion-dce,fusion-group,fusion-segment").graphs[0]


def called(graph: Graph, x: np.ndarray) -> np.ndarray:
    """The result of the compiled ``graph``."""
    (result,) = HostProgram(grouped(graph), targets.cpu()).run([x], {"s0": len(x)})
    return result


def interpreted(graph: Graph, x: np.ndarray) -> np.ndarray:
    (result,) = interpreter.run(grouped(graph), [x])
    return result


@pytest.mark.parametrize("run", [called, interpreted])
def test_kernels_run_around_a_call(run):
    seen: list[str] = []
    graph = graph_of([{"function": Log("a", seen)}])
    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    result = run(graph, x)
    np.testing.assert_allclose(result, 1 + 2 * np.exp(x.astype(np.float64)), rtol=1e-6)
    assert seen == ["a"]
    assert [op.group is None for op in grouped(graph).ops if op.name == "call"] == [True]


def test_calls_with_effects_keep_order_and_number():
    seen: list[str] = []
    first, second = Log("first", seen), Log("second", seen)
    effects = {"effects": True}
    graph = graph_of(
        [
            {"function": first, **effects},
            {"function": second, "used": False, **effects},
            {"function": first, **effects},
        ]
    )
    interpreter.run(grouped(graph), [np.ones((2, 4), np.float32)])
    assert seen == ["first", "second", "first"]


def test_calls_without_effects_are_merged_and_left_out():
    seen: list[str] = []
    first, second = Log("first", seen), Log("second", seen)
    graph = graph_of([{"function": first}, {"function": second, "used": False}, {"function": first}])
    (result,) = interpreter.run(grouped(graph), [np.ones((2, 4), np.float32)])
    assert seen == ["first"]
    np.testing.assert_allclose(result, 1 + 4 * np.exp(np.ones((2, 4))), rtol=1e-6)


def test_text_and_back_is_the_same_without_the_function():
    strides = ((1, N), (1,))
    graph = graph_of([{"function": Log("a", []), "strides": strides}])
    text = fusion.to_module_text([graph])
    assert 'callee = "log"' in text and "function" not in text
    (read,) = fusion.read(fusion.parse(text))
    assert fusion.to_module_text([read]) == text
    (call,) = (op for op in read.ops if op.name == "call")
    assert call.attrs["strides"] == strides and call.attrs["shapes"] == ((N, 4), (4,))
    assert [v.dtype for v in call.results] == [dt.f32, dt.f32]
    with pytest.raises(UnsupportedError, match="call of log: its function is not known"):
        interpreter.run(read, [np.ones((2, 4), np.float32)])


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"shapes": ((N, 4),)}, "2 dtypes for 1 shapes"),
        ({"strides": ((1,), (1,))}, "one element for each dimension"),
    ],
)
def test_what_does_not_fit_is_refused(wrong, message):
    with pytest.raises(ShapeError, match=message):
        graph_of([wrong])
