"""Random concatenations of slices of one tensor have the same results, to the last bit, as permutations of it."""

from __future__ import annotations

import random

import numpy as np
import pytest

from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import interpreter
from mlirfuse.ir.builder import Builder
from mlirfuse.ir.graph import Block, Graph, Value
from mlirfuse.passes.base import run_pipeline

NUMBERS = np.array([0, -0.0, 0.1, 1.7, -3, 1e8, np.inf], "float32")


def cut(b: Builder, x: Value, axis: int, count: int, strided: bool) -> list[Value]:
    """``x`` in ``count`` slices along ``axis``, of neighbours or of every ``count``-th element."""
    size = x.shape[axis] // count
    return [b.slice(x, axis, k if strided else k * size, size, count if strided else 1) for k in range(count)]


def viewed(b: Builder, draw: random.Random, x: Value) -> Value:
    """A view of ``x``, or what an op with a constant computes of it."""
    how = draw.randrange(5)
    if how == 0:
        return b.permute(x, draw.sample(range(x.rank), x.rank))
    if how == 1:
        return b.op("expand_dims", x, axes=(draw.randrange(x.rank + 1),))
    if how == 2:
        return b.op("add", x, b.broadcast_to(b.constant(0, x.dtype), x.shape))
    return b.reshape(x, (*x.shape[:-2], x.shape[-2] * x.shape[-1])) if how == 3 and x.rank > 1 else x


def random_program(seed: int) -> Graph:
    """A tensor that is cut once or twice, its slices viewed all in the same way, and put together, in order or not."""
    draw = random.Random(seed)
    graph = Graph("f", Block([Value(dt.f32, (4, 6, 8))]))
    b, x = Builder(graph.body), graph.args[0]

    def together(x: Value, depth: int) -> Value:
        axis = draw.choice([d for d, n in enumerate(x.shape) if n % 2 == 0])
        parts = cut(b, x, axis, 2, draw.random() < 0.5)
        if depth and parts[0].shape[-1] % 2 == 0:
            state = draw.getstate()
            found = []
            for part in parts:  # all alike
                draw.setstate(state)
                found.append(together(part, depth - 1))
            parts = found
        state = draw.getstate()
        for k, part in enumerate(parts):
            draw.setstate(state)
            parts[k] = viewed(b, draw, part)
        if draw.random() < 0.1:
            parts.reverse()
        if draw.random() < 0.1:
            parts[0] = b.op("neg", parts[0])
        return b.op("concatenate", *parts, axis=draw.randrange(parts[0].rank))

    graph.body.returns = [together(x, draw.randrange(3))]
    return graph


def test_random_concatenations_are_equal():
    permuted = 0
    for seed in range(400):
        graph = random_program(seed)
        inputs = [np.random.default_rng(seed).choice(NUMBERS, v.shape) for v in graph.args]
        before = interpreter.run(graph.copy(), inputs)
        run_pipeline(graph, "fusion-permute-slices,fusion-dce")
        permuted += not any(op.name == "concatenate" for op in graph.ops)
        for got, wanted in zip(interpreter.run(graph, inputs), before, strict=True):
            np.testing.assert_array_equal(got.view(np.int32), wanted.view(np.int32), f"seed {seed}")
    assert permuted > 200


def concatenated(shape, axis, *slices) -> Graph:
    graph = Graph("f", Block([Value(dt.f32, shape)]))
    b = Builder(graph.body)
    graph.body.returns = [b.op("concatenate", *(b.slice(graph.args[0], *s) for s in slices), axis=axis)]
    return graph


@pytest.mark.parametrize(
    ("slices", "permuted"),
    [
        ([(1, 0, 4), (1, 4, 4)], True),  # the tensor itself
        ([(1, k, 2, 4) for k in (0, 2, 1, 3)], True),  # of two loops
        ([(1, k, 2, 4) for k in (0, 2, 3, 1)], False),  # of none
        ([(1, 4, 4), (1, 0, 4)], False),  # not from the first element on: rolled
        ([(1, 0, 4), (1, 0, 4)], False),  # not all of it
        ([(1, 0, 4), (1, 2, 4)], False),
        ([(1, 0, 3), (1, 3, 5)], False),  # of several sizes
    ],
)
def test_what_is_a_permutation(slices, permuted):
    graph = concatenated((3, 8), 1, *slices)
    x = np.arange(24, dtype="float32").reshape(3, 8)
    before = interpreter.run(graph.copy(), [x])
    run_pipeline(graph, "fusion-permute-slices,fusion-dce")
    assert any(op.name == "concatenate" for op in graph.ops) is not permuted
    np.testing.assert_array_equal(interpreter.run(graph, [x])[0], before[0])
