"""Finished segments are cut in two where a kernel would compute a costly value several times."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest

import mlirfuse
from mlirfuse.analysis import cost, device_costs
from mlirfuse.analysis.axes import Axes
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import interpreter
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.builder import Builder
from mlirfuse.ir.graph import Block, Graph, Value
from mlirfuse.passes.base import run_pipeline
from mlirfuse.passes.segmentation import merging, splits

GROUP = "fusion-group{single-op=true horizontal=true}"
# A device for which tensors of tests are large: launches take no time, and rows of more than 4 elements are not kept.
TINY = dataclasses.replace(
    device_costs.H200, launch=1e-12, phase=0.0, code=0.0, cached_byte=device_costs.H200.byte, row=4, column=4
)


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    monkeypatch.setitem(splits.DEVICES, "tiny", TINY)


@pytest.fixture
def any_gain(monkeypatch):
    monkeypatch.setattr(merging, "ROUGH", 0.02)


def segments(graph: Graph) -> list[list]:
    return [[op for op in graph.ops if op.segment is s] for s in dict.fromkeys(op.segment for op in graph.ops)]


def price(graph: Graph) -> float:
    """The predicted time of all segments."""
    users, axes, total = graph.body.users(), Axes(graph.ops, own=graph.own_results), 0.0
    for ops in segments(graph):
        inside = set(ops)
        stored = [
            v
            for op in ops
            for v in op.results
            if v in graph.returns or any(user not in inside for user in users.get(v, ()))
        ]
        found = cost.of_kernel(ops, stored, axes, {}, lambda v: max(1, sz.supposed(v.numel)))
        total += cost.seconds(found, TINY) if found is not None else 0
    return total


def drawn(seed: int) -> Graph:
    """A graph of costly ops, broadcasts, reductions, gathers and shifted reads."""
    r = random.Random(seed)
    x, y, z = Value(dt.f64, (24, 64)), Value(dt.f64, (64,)), Value(dt.f64, (24, 1))
    index = Value(dt.i64, (40,))
    graph = Graph("f", Block([x, y, z, index]))
    b = Builder(graph.body)
    wide, values = [x], [x, y, z]
    for _ in range(r.randint(8, 24)):
        kind, v = r.choice(["chain", "chain", "binary", "binary", "reduce", "take", "shift"]), r.choice(values)
        if kind == "chain":
            for _ in range(r.randint(1, 4)):
                v = b.op(r.choice(["sin", "exp", "tanh"]), b.elementwise("mul", v, b.constant(0.5, dt.f64)))
        elif kind == "binary":
            v = b.elementwise(r.choice(["add", "mul"]), v, r.choice(wide))
        elif kind == "reduce":
            v = b.op(r.choice(["sum", "max"]), r.choice(wide), axes=(r.randint(0, 1),), keepdims=True)
        elif kind == "take":
            rows = b.slice(b.op("take", r.choice(wide), index, axis=0), 0, r.randint(0, 16), 24)
            v = b.elementwise("add", rows, v)
        else:
            v = r.choice(wide)
            v = b.op("sub", b.slice(v, 1, 1, 63), b.slice(v, 1, 0, 63))
            v = b.elementwise("mul", x, b.op("sum", v, axes=(1,), keepdims=True))
        values.append(v)
        wide += [v] if tuple(v.shape) == (24, 64) else []
    users = graph.body.users()
    graph.body.returns = [v for v in dict.fromkeys(values[3:]) if not users.get(v)]
    return graph


def run(graph: Graph) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return interpreter.run(
        graph,
        [
            rng.integers(0, 24, 40) if v.dtype is dt.i64 else rng.standard_normal([int(n) for n in v.shape])
            for v in graph.args
        ],
    )


def test_random_graphs_get_no_slower(any_gain):
    """By the prices that decide; each cut says both, and the results stay."""
    cut = 0
    for seed in range(120):
        graph = drawn(seed)
        whole, before = graph.copy(), run(graph.copy())
        run_pipeline(whole, f"{GROUP},fusion-segment")
        run_pipeline(graph, f"{GROUP},fusion-segment{{splits=tiny}}")
        assert price(graph) <= price(whole) * (1 + 1e-9), seed
        cut += len(segments(graph)) > len(segments(whole))
        for segment in dict.fromkeys(op.segment for op in graph.ops):
            if "one kernel with the segment before it would take" in segment.why:
                one, two = (float(part.split(" µs")[0].split()[-1]) for part in segment.why.split(","))
                assert two < one
        for got, wanted in zip(run(graph), before, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-12)
    assert cut > 30


def costly(x, count=6):
    for k in range(count):
        x = np.sin(x * np.float32(k + 0.5)) + np.float32(1)
    return x


def softmax(x, axis):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


PROGRAMS = {
    "broadcast to rows": lambda x, y: costly(y)[None, :] + x,
    "broadcast, then summed": lambda x, y: (costly(y)[None, :] * x).sum(1),
    "a few cheap ops, then summed": lambda x, y: (((y - 1) * y * np.float32(0.5) + y * y)[None, :] * x).sum(1),
    "broadcast to columns, then summed": lambda x, y: (costly(y)[:, None] * x).sum(0),
    "broadcast into a softmax": lambda x, y: softmax(x + costly(y)[None, :], 1),
    "columns walked again": lambda x, y: softmax(costly(x), 0),
    "one exponential": lambda x, y: np.exp(y)[None, :] + x,
    "a square root": lambda x, y: x * (y / np.sqrt(y + np.float32(1)))[None, :],
    "two tables": lambda x, y: x * np.cos(y * y)[None, :] * np.float32(2) + np.sin(y * y)[None, :] * x,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_costly_value_is_stored_once(name):
    """On a CPU, whose numbers are compared with float64."""
    f = PROGRAMS[name]
    rng = np.random.default_rng(0)
    x, y = rng.random((512, 512), dtype=np.float32), rng.random(512, dtype=np.float32)
    compiled = mlirfuse.jit(f)
    text = compiled.lower(x, y).as_text("segmented")
    assert text.count('"fusion.segment"') == 2 and "would take" in text
    wanted = f(x.astype(np.float64), y.astype(np.float64))
    np.testing.assert_allclose(compiled(x, y), wanted, rtol=2e-4, atol=1e-5)


def returned_and_broadcast(x, y):
    scale = np.exp(y)
    return scale, x * scale


def sum_of_rows_beside_a_copy(x, y):
    total = np.zeros_like(y)
    for k in range(8):
        total += x[k] * np.float32(k + 1)
    return total, x.copy()


@pytest.mark.parametrize("f", [returned_and_broadcast, sum_of_rows_beside_a_copy])
def test_a_result_that_a_kernel_would_compute_for_each_row_has_its_own(f):
    rng = np.random.default_rng(1)
    x, y = rng.random((512, 512), dtype=np.float32), rng.random(512, dtype=np.float32)
    compiled = mlirfuse.jit(f)
    assert compiled.lower(x, y).as_text("segmented").count('"fusion.segment"') == 2
    for got, wanted in zip(compiled(x, y), f(x, y), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5)


@pytest.mark.parametrize(
    "f",
    [
        lambda x, y: costly(y)[:, None] + x,  # computed once for a row
        lambda x, y: softmax(costly(x, 2), 1) + y,
        lambda x, y: x * np.float32(2) + y * y,
    ],
    ids=["shared by a row", "rows that are kept", "cheap"],
)
def test_one_kernel_where_that_is_faster(f):
    x, y = np.zeros((512, 512), np.float32), np.zeros(512, np.float32)
    assert mlirfuse.jit(f).lower(x, y).as_text("segmented").count('"fusion.segment"') == 1


def test_indices_are_computed_where_they_are_read():
    """However many elements they are broadcast to."""
    x, index = Value(dt.f32, (100_000, 64)), Value(dt.i64, (64,))
    graph = Graph("f", Block([x, index]))
    b = Builder(graph.body)
    at = index
    for _ in range(40):
        at = b.elementwise("maximum", b.elementwise("mul", at, b.constant(3, dt.i64)), b.constant(0, dt.i64))
    graph.body.returns = [b.op("exp", b.op("take", x, b.elementwise("minimum", at, b.constant(63, dt.i64)), axis=1))]
    run_pipeline(graph, f"{GROUP},fusion-segment{{splits=h200}}")
    assert len(segments(graph)) == 1


def test_pairs_are_compared_once_until_one_changes(monkeypatch):
    """Merging to a fixed point asks for the same pairs again and again."""
    compared, asked = [], 0
    refusal, merge = merging.refusal, merging.Segmenter._merge

    def counted(drafts, a, b):
        compared.append((a, b, sorted(a.ops, key=id), sorted(b.ops, key=id), a.outs.copy(), b.outs.copy(), dict(a.ins)))
        return refusal(drafts, a, b)

    def merged(segmenter, *pair, **how):
        nonlocal asked
        asked += 1
        return merge(segmenter, *pair, **how)

    monkeypatch.setattr(merging, "refusal", counted)
    monkeypatch.setattr(merging.Segmenter, "_merge", merged)
    for seed in range(8):
        run_pipeline(drawn(seed), f"{GROUP},fusion-segment{{splits=tiny}}")
    assert asked > len(compared)
    assert all(compared.count(one) == 1 for one in compared)
