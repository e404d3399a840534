"""Random sums of padded parts have the same results, to the last bit, as concatenations; an unrolled recurrence's
gradients are priced and cut."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from mlirfuse.analysis.work import work_of
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import interpreter
from mlirfuse.ir.builder import Builder
from mlirfuse.ir.graph import Block, Graph, Value
from mlirfuse.passes.base import run_pipeline

EXTENT = 12
NUMBERS = np.array([0, -0.0, 0.1, 1.7, -3, 1e8, np.inf], "float32")  # sums of which are rounded, and signs of zeros
CUT = "fusion-join-pads,fusion-group{single-op=true horizontal=true},fusion-segment{prices=h200 splits=h200}"


def padded(b: Builder, x: Value, start: int, axis: int) -> Value:
    low, high = [0, 0], [0, 0]
    low[axis], high[axis] = start, EXTENT - start - x.shape[axis]
    return b.op("pad", x, b.constant(0, x.dtype), low=tuple(low), high=tuple(high))


def random_sum(seed: int) -> Graph:
    """Parts at random places, some over each other or along the other axis, and whole arrays, added in a random
    order; partial sums are returned, too."""
    draw = random.Random(seed)
    graph = Graph("f", Block())
    b, values = Builder(graph.body), []
    for _ in range(draw.randint(2, 7)):
        start, axis = draw.randrange(EXTENT), draw.choice((0, 1, 1, 1))
        stop = draw.randint(start + 1, EXTENT)
        whole = draw.random() < 0.2
        shape = [EXTENT, EXTENT]
        shape[axis] = EXTENT if whole else stop - start
        x = Value(dt.f32, tuple(shape))
        graph.args.append(x)
        values.append(x if whole else padded(b, x, start, axis))
    returned = []
    while len(values) > 1:
        draw.shuffle(values)
        values.append(b.op("add", values.pop(), values.pop()))
        if draw.random() < 0.2:
            returned.append(values[-1])
    graph.body.returns = [*returned, *values]
    return graph


def test_random_sums_are_equal():
    joined = 0
    for seed in range(300):
        graph = random_sum(seed)
        rng = np.random.default_rng(seed)
        inputs = [rng.choice(NUMBERS, v.shape) for v in graph.args]
        before = interpreter.run(graph.copy(), inputs)
        run_pipeline(graph, "fusion-join-pads,fusion-dce")
        joined += any(op.name == "concatenate" for op in graph.ops)
        for got, wanted in zip(interpreter.run(graph, inputs), before, strict=True):
            np.testing.assert_array_equal(got.view(np.int32), wanted.view(np.int32), f"seed {seed}")
    assert joined > 50


def test_a_sum_that_is_reshaped_is_joined_once():
    graph = Graph("f", Block([Value(dt.f32, (2, 2)), Value(dt.f32, (2, 2))]))
    b = Builder(graph.body)
    first, second = graph.args
    pads = [((0, 0), (0, 2)), ((0, 2), (0, 0))]
    x, y = (b.op("pad", v, b.constant(0, dt.f32), low=low, high=high) for v, (low, high) in zip((first, second), pads))
    graph.body.returns = [b.reshape(b.op("add", x, y), (8,))]
    inputs = [np.ones((2, 2), "float32"), np.full((2, 2), 2, "float32")]
    run_pipeline(graph, "fusion-join-pads,fusion-dce")
    assert sum(op.name == "concatenate" for op in graph.ops) == 1
    np.testing.assert_array_equal(interpreter.run(graph, inputs)[0], [1, 1, 2, 2] * 2)


@pytest.mark.parametrize("start", [0, 1, 3, 12])
def test_empty_parts_are_none(start):
    graph = Graph("f", Block([Value(dt.f32, (6, EXTENT)), Value(dt.f32, (0, EXTENT)), Value(dt.f32, (3, EXTENT))]))
    b = Builder(graph.body)
    values = [padded(b, v, k, 0) for v, k in zip(graph.args, (1, start, 9))]
    graph.body.returns = [b.op("add", b.op("add", values[0], values[1]), values[2])]
    inputs = [np.ones((6, EXTENT), "float32"), np.ones((0, EXTENT), "float32"), np.ones((3, EXTENT), "float32")]
    run_pipeline(graph, "fusion-join-pads,fusion-dce")
    wanted = np.zeros((EXTENT, EXTENT), "float32")
    wanted[1:7] = wanted[9:] = 1
    np.testing.assert_array_equal(interpreter.run(graph, inputs)[0], wanted)


@pytest.mark.parametrize("steps, extents", [((2,), (8,)), ((3,), (10,)), ((2, 2), (8, 6)), ((2, 3), (7, 9))])
def test_elements_between_each_other_are_interleaved(steps, extents):
    """Of each place in a step one array, written into zeros along one dimension after the other, and all added: no
    element is tested for its place, where rows are whole not even by a pad."""
    graph = Graph("f", Block())
    b, total = Builder(graph.body), None
    wanted = np.zeros(extents, "float32")
    inputs = []
    for starts in itertools.product(*map(range, steps)):
        window = tuple(slice(k, None, s) for k, s in zip(starts, steps))
        inputs.append(np.random.default_rng(len(inputs)).standard_normal(wanted[window].shape).astype("float32"))
        wanted[window] = inputs[-1]
        placed = Value(dt.f32, inputs[-1].shape)
        graph.args.append(placed)
        for axis in reversed(range(len(steps))):
            shape = (*placed.shape[:axis], *extents[axis:])
            base = b.op("full", b.constant(0, dt.f32), shape=shape)
            where = [(k, s) if d == axis else (0, 1) for d, (k, s) in enumerate(zip(starts, steps))]
            start, step = zip(*where)
            placed = b.op("set_slice", base, placed, start=start, size=placed.shape, step=step)
        total = placed if total is None else b.op("add", total, placed)
    graph.body.returns = [total]
    run_pipeline(graph, "fusion-decompose,fusion-join-pads,fusion-dce")
    assert not {"where", "take", "iota"} & {op.name for op in graph.ops}
    if all(n % s == 0 for n, s in zip(extents, steps)):
        assert {op.name for op in graph.ops if not op.row.view} == {"constant", "add", "concatenate"}
    np.testing.assert_array_equal(interpreter.run(graph, inputs)[0], wanted)


def test_a_part_written_into_zeros_is_padded():
    graph = Graph("f", Block([Value(dt.f32, (4, EXTENT))]))
    b, (x,) = Builder(graph.body), graph.args
    base = b.op("full", b.constant(2, dt.f32), shape=(EXTENT, EXTENT))
    whole = b.op("set_slice", base, x, start=(3, 0), size=x.shape, step=(1, 1))
    graph.body.returns = [whole]
    given = np.arange(4 * EXTENT, dtype="float32").reshape(4, EXTENT)
    run_pipeline(graph, "fusion-decompose,fusion-dce")
    assert [op.name for op in graph.ops if op.name != "constant"] == ["pad"]
    wanted = np.full((EXTENT, EXTENT), 2, "float32")
    wanted[3:7] = given
    np.testing.assert_array_equal(interpreter.run(graph, [given])[0], wanted)


def recurrence(steps: int) -> Graph:
    """Gradients of ``decay`` of ``s[i] = decay[:, i] * s[i - 1]``, as a chain of products whose parts are padded."""
    graph = Graph("f", Block([Value(dt.f32, (4096, steps, 64)), Value(dt.f32, (4096, 64))]))
    b, (decay, last) = Builder(graph.body), graph.args
    total, g = None, last
    for k in reversed(range(steps)):
        part = b.op("slice", decay, start=(0, k, 0), size=(4096, 1, 64), step=(1, 1, 1))
        g = b.op("exp", b.op("mul", g, b.op("squeeze", part, axes=(1,))))
        row = b.op("expand_dims", g, axes=(1,))
        both = {"low": (0, k, 0), "high": (0, steps - 1 - k, 0)}
        placed = b.op("pad", row, b.constant(0, dt.f32), **both)
        total = placed if total is None else b.op("add", total, placed)
    graph.body.returns = [total]
    return graph


@pytest.mark.parametrize("steps", [16, 80])  # fewer and more paths than are told apart
def test_a_chain_is_stored_instead_of_computed_for_each_part(steps):
    """The last step alone depends on all: one kernel would compute ``steps`` squared / 2 products."""
    graph = recurrence(steps)
    run_pipeline(graph, CUT)
    users, returned = graph.body.users(), set(graph.returns)
    computed = 0
    for segment in dict.fromkeys(op.segment for op in graph.ops):
        ops = [op for op in graph.ops if op.segment is segment]
        made = [v for op in ops for v in op.results]
        outs = [v for v in made if v in returned or any(user.segment is not segment for user in users.get(v, ()))]
        counts = work_of(reversed(ops), outs, lambda v: int(np.prod(v.shape))).counts
        computed += sum(counts.get(op, 0) for op in ops if op.name == "exp")
    assert computed <= 4 * steps * 4096 * 64
