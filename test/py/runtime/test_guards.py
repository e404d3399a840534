"""`fusion-guard` at run time: a group is entered under what it was compiled for; on anything else the fallback runs,
with the same result."""

from __future__ import annotations

import numpy as np
import pytest

from mlirfuse.core.errors import ShapeError
from mlirfuse.dialects import fusion
from mlirfuse.ir import interpreter
from mlirfuse.ir.assumptions import Described, failed_assumption
from mlirfuse.ir.graph import Graph
from mlirfuse.passes.base import run_pipeline

PROGRAM = """
func.func @f(%x: tensor<?xf32> {fusion.shape = ["s0"], fusion.strides = ["1"], fusion.align = 16 : i64}, %y: tensor<1x?xf32> {fusion.shape = ["1", "s1"]})
    -> tensor<4xf32> attributes {fusion.device = "cpu"} {
  %0 = "fusion.reshape"(%x) {shape = [4, "s1"]} : (tensor<?xf32>) -> tensor<4x?xf32>
  %1 = "fusion.add"(%0, %y) : (tensor<4x?xf32>, tensor<1x?xf32>) -> tensor<4x?xf32>
  %2 = "fusion.sum"(%1) {axes = [1]} : (tensor<4x?xf32>) -> tensor<4xf32>
  return %2 : tensor<4xf32>
}"""


@pytest.fixture
def graph() -> Graph:
    return run_pipeline(fusion.read(fusion.parse(PROGRAM)), "fusion-group,fusion-guard").graphs[0]


def aligned(count: int) -> np.ndarray:
    memory = np.zeros(count + 16, np.float32)
    start = -memory.ctypes.data % 64 // 4
    return memory[start : start + count]


def arguments(columns: int = 6) -> tuple[np.ndarray, np.ndarray]:
    x, y = aligned(4 * columns), np.arange(columns, dtype=np.float32)[None]
    x[:] = np.arange(4 * columns)
    return x, y


def expected(x, y):
    return (x.reshape(4, -1) + y).sum(1)


def enters_the_group(graph: Graph, args) -> bool:
    """Which branch a call takes: the group's is made to be wrong."""
    _, branch = graph.ops
    (add,) = (op for op in branch.blocks[0].ops if op.name == "add")
    add.name = "sub"
    (result,) = interpreter.run(graph, list(args))
    add.name = "add"
    right = np.array_equal(result, expected(*args))
    assert right or np.array_equal(result, expected(args[0], -args[1]))
    return not right


@pytest.mark.parametrize("columns", [2, 6, 33])
def test_other_sizes_of_the_same_kind_enter(graph, columns):
    assert enters_the_group(graph, arguments(columns))


def strided(x, y):
    wide = aligned(2 * x.size)[::2]
    wide[:] = x
    return wide, y


def misaligned(x, y):
    moved = aligned(x.size + 1)[1:]
    moved[:] = x
    return moved, y


@pytest.mark.parametrize("other", [strided, misaligned])
def test_another_layout_takes_the_fallback(graph, other):
    args = other(*arguments())
    assert not enters_the_group(graph, args)
    (result,) = interpreter.run(graph, list(args))
    assert np.array_equal(result, expected(*args))


def test_sizes_that_no_branch_can_take_are_an_error(graph):
    x, y = arguments()
    with pytest.raises(ShapeError, match="reshape"):
        interpreter.run(graph, [x[:-1], y])


def test_what_is_assumed_and_not_met(graph):
    """Each assumption by itself, and what is said about it."""
    guard, (x, y), symbols = graph.ops[0], arguments(), {"s0": 24, "s1": 6}
    assert failed_assumption(guard, [Described.of(x), Described.of(y)], symbols) is None
    for args, sizes, problem in (
        ([x.astype(np.float64), y], symbols, "input 0 is f64, not f32"),
        ([x, y.astype(np.int32)], symbols, "input 1 is i32, not f32"),
        ([x[None], y], symbols, "input 0 has rank 2, not 1"),
        ([x, np.repeat(y, 4, 0)], symbols, "input 1 has extent 4 in dimension 0, not 1"),
        ([x, y[:, :5]], symbols, "input 1 has extent 5 in dimension 1, not 6"),
        (strided(x, y), symbols, "input 0 has stride 2 in dimension 0, not 1"),
        (misaligned(x, y), symbols, "input 0 is not aligned to 16 bytes"),
        ([x[:20], y], symbols | {"s0": 20}, "s0 == s1*4 does not hold: 20 against 24"),
    ):
        assert failed_assumption(guard, list(map(Described.of, args)), sizes) == problem
