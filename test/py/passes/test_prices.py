"""Segments are compared with the same work cut in two, by predicted times; the fit finds coefficients again."""

from __future__ import annotations

import dataclasses
import json
import math
import random

import numpy as np
import pytest
from counting import lines_of

from mlirfuse.analysis import cost, device_costs
from mlirfuse.analysis.axes import Axes
from mlirfuse.core.device_properties import DeviceProperties
from mlirfuse.core.errors import FusionIRError
from mlirfuse.dialects import fusion
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import interpreter
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.builder import Builder
from mlirfuse.ir.graph import Block, Graph, Value
from mlirfuse.passes.base import run_pipeline
from mlirfuse.tools import fit_costs

CUT = "fusion-group{single-op=true horizontal=true},fusion-segment{prices=h200}"
LONG, SHORT = 100_000, 200  # rows of 64 columns: columns that a multiprocessor does not keep, and those that it does


def columns(rows: sz.Size, costly: int, dtype=dt.f32) -> Graph:
    """Gradients of two arrays as in a batch norm's backward: sums over rows of what ``costly`` sines of an element
    give, and for each element what depends on the sums."""
    graph = Graph("f", Block([Value(dtype, (rows, 64)), Value(dtype, (rows, 64))]))
    b, (x, y) = Builder(graph.body), graph.args
    g = x
    for _ in range(costly):
        g = b.op("sin", g)
    g = b.op("mul", g, y)
    total = b.op("sum", g, axes=(0,), keepdims=True)
    graph.body.returns = [b.op("sub", g, b.op("mul", total, total)), total]
    return graph


def cut(graph: Graph) -> list[str]:
    """The reasons of a graph's segments, in order."""
    run_pipeline(graph, CUT)
    return [segment.why for segment in dict.fromkeys(op.segment for op in graph.ops)]


def run(graph: Graph) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return interpreter.run(
        graph, [rng.standard_normal([int(n) for n in v.shape]).astype("float32") for v in graph.args]
    )


def test_what_long_columns_repeat_is_stored_once():
    graph = columns(LONG, 8)
    before = run(graph.copy())
    _, second = cut(graph)
    assert "one kernel with the segment before it would take" in second and "two take" in second and "µs" in second
    for got, wanted in zip(run(graph), before, strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("rows, costly", [(LONG, 0), (SHORT, 8)], ids=["cheap", "short"])
def test_one_kernel_where_it_is_faster(rows, costly):
    assert len(cut(columns(rows, costly))) == 1


def read_back(graph: Graph) -> Graph:
    return fusion.read(fusion.parse(fusion.to_module_text([graph])))[0]


@pytest.mark.parametrize("rows, segments", [(LONG, 2), (SHORT, 1)])
def test_hints_decide_for_sizes_that_change(rows, segments):
    """As the numbers themselves do, also in a graph that is read from its text."""
    symbolic = columns(sz.symbol("s0"), 8)
    symbolic.hints = {"s0": rows}
    for graph in (columns(rows, 8), symbolic.copy(), read_back(symbolic)):
        assert len(cut(graph)) == segments


def test_hints_name_sizes_of_the_graph():
    graph = columns(sz.symbol("s0"), 1)
    for hints, message in (({"s1": 5}, "has the size 's1'"), ({"s0": 2.5}, "is not a symbol and its value")):
        graph.hints = hints
        with pytest.raises(FusionIRError, match=message):
            read_back(graph)


def test_the_cut_goes_through_the_narrowest_values():
    """What is computed wide of half-precision values is computed again, and these are stored."""
    graph = Graph("f", Block([Value(dt.bf16, (LONG, 64)), Value(dt.bf16, (LONG, 64))]))
    b, (x, y) = Builder(graph.body), graph.args
    g = x
    for _ in range(8):
        g = b.cast(b.op("sin", b.cast(g, dt.f32)), dt.bf16)
    wide = b.cast(b.op("mul", g, y), dt.f32)
    total = b.op("sum", wide, axes=(0,), keepdims=True)
    graph.body.returns = [b.cast(b.op("sub", wide, b.op("mul", total, total)), dt.bf16), total]
    assert len(cut(graph)) == 2
    segments = dict.fromkeys(op.segment for op in graph.ops)
    first, second = ([op for op in graph.ops if op.segment is s] for s in segments)
    made = {v for op in first for v in op.results}
    crossing = {v for op in second for v in op.operands if v in made and v.shape[0] == LONG}
    assert [v.dtype for v in crossing] == [dt.bf16]


def test_features():
    graph = columns(LONG, 1)
    run_pipeline(graph, CUT)
    elements = lambda v: math.prod(v.shape)  # noqa: E731
    found = cost.of_kernel(graph.ops, graph.returns, Axes(graph.ops), {}, elements)
    n = LONG * 64
    assert found.moved == 4 * (3 * n + 64)
    assert (found.columns, found.reduced, found.row, found.phases) == (n, 0, LONG, 1)
    assert found.reread == 8 * n and found.repeated >= 2 * n and found.gathered == found.added == 0


@pytest.mark.parametrize("axis, shifted", [(1, 2), (0, 0)])
def test_elements_that_a_reduction_loads_one_by_one(axis, shifted):
    """Of rows that are reduced, those moved along the row, and not those moved across, or without a reduction."""
    graph = Graph("moved", Block([Value(dt.f32, (256, 512))]))
    (x,), b = graph.args, Builder(graph.body)
    moves = [b.op("roll", x, shift=n, axis=axis) for n in (1, 3)]
    summand = b.op("mul", *moves)
    graph.body.returns = [b.op("sum", summand, axes=(1,))]
    elements = lambda v: math.prod(v.shape)  # noqa: E731
    found = cost.of_kernel(graph.ops, graph.returns, Axes(graph.ops), {}, elements)
    assert found.shifted == shifted * 256 * 512
    assert not cost.of_kernel(graph.ops[:-1], [summand], Axes(graph.ops), {}, elements).shifted


def test_positions_in_rows_that_are_reduced_are_not_loaded():
    graph = Graph("positions", Block([Value(dt.f32, (256, 512))]))
    (x,), b = graph.args, Builder(graph.body)
    places = b.op("iota", dtype=dt.f32, shape=x.shape, axis=1)
    graph.body.returns = [b.op("sum", b.op("mul", x, places), axes=(1,))]
    found = cost.of_kernel(graph.ops, graph.returns, Axes(graph.ops), {}, lambda v: math.prod(v.shape))
    assert (found.shifted, found.moved, found.reduced) == (0, 4 * 256 * 513, 256 * 512)


def test_a_faster_memory_stores_more():
    """What memory takes for a byte decides, not how fast the device is altogether."""
    slow, fast = (
        dataclasses.replace(device_costs.H200, byte=device_costs.H200.byte * factor) for factor in (16, 1 / 16)
    )
    both = cost.Features(3e9, instructions=1e9, columns=1e8, row=1e6, phases=1, reread=2e9, repeated=1e9)
    two = cost.Features(4e9, instructions=1e9, columns=1e8, row=1e6, phases=1)
    assert cost.seconds(two, slow) < cost.seconds(both, slow)
    assert cost.seconds(both, fast) > cost.seconds(two, fast)
    assert device_costs.nearest(DeviceProperties.of_architecture("sm_90")) == "h100"


def test_the_fit_finds_coefficients(tmp_path, capsys):
    """Of times that other coefficients predict, with 2% of noise."""
    r, rows = random.Random(0), []
    true = dataclasses.replace(device_costs.H200, byte=5e-13, instruction=1e-13, launch=4e-6)
    for _ in range(300):
        moved = 10 ** r.uniform(5, 9)
        features = cost.Features(moved, instructions=moved * r.uniform(0, 40), columns=moved * r.choice([0, 0.25]))
        ms = 1e3 * cost.seconds(features, true) * math.exp(r.gauss(0, 0.02))
        rows.append({"scheduler": "pointwise", "ms": ms, "ops": "", "features": features._asdict()})
    path = tmp_path / "kernels.json"
    path.write_text(json.dumps(rows))
    found = fit_costs.fit(fit_costs.records(path))
    for name in ("byte", "instruction", "launch"):
        assert abs(math.log(getattr(found, name) / getattr(true, name))) < 0.1, name
    assert fit_costs.main([str(path), "--present"]) == 0
    assert "300 kernels, predictions off by a factor of" in capsys.readouterr().out


def test_comparisons_are_near_linear():
    def chain(count):
        graph = Graph("f", Block([Value(dt.f32, (LONG, 64)), Value(dt.f32, (LONG, 64))]))
        b, (x, h) = Builder(graph.body), graph.args
        while len(graph.ops) < count:
            h = b.op("sin", b.op("add", b.op("neg", h), x))
            if len(graph.ops) % 12 == 0:
                h = b.op("sub", h, b.op("mean", h, axes=(0,), keepdims=True))
        graph.body.returns = [h]
        return graph

    def lines(count):
        graph = chain(count)
        return lines_of(lambda: run_pipeline([graph], CUT))

    assert lines(1600) < 1.5 * 8 * lines(200)


def test_rows_are_gathered_again():
    """By the other group that reads them, rather than stored; a small table is stored for that, not computed for each
    row."""
    graph = Graph("f", Block([Value(dt.f32, (256, 64)), Value(dt.i64, (8192,)), Value(dt.f32, (64, 64))]))
    b, (x, index, w) = Builder(graph.body), graph.args
    table = b.op("sin", x)
    rows = b.op("take", table, index, axis=0)
    product = b.op("matmul", b.op("exp", rows), w)
    graph.body.returns = [b.op("mul", rows, product)]
    before = interpreted(graph.copy())
    run_pipeline(graph, "fusion-group{single-op=true horizontal=true},fusion-compute-again")
    product = next(op for op in graph.ops if op.name == "matmul")
    takes = [op for op in graph.ops if op.name == "take"]
    assert len(takes) == 2 and takes[0].operands == takes[1].operands
    assert sum(op.name == "sin" for op in graph.ops) == 1
    assert graph.ops.index(product) < graph.ops.index(takes[1])
    for got, wanted in zip(interpreted(graph), before, strict=True):
        np.testing.assert_array_equal(got, wanted)


def interpreted(graph: Graph) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    given = [rng.standard_normal((256, 64)), rng.integers(0, 256, 8192), rng.standard_normal((64, 64))]
    return interpreter.run(graph, [x.astype(v.dtype.numpy) for x, v in zip(given, graph.args)])
