"""What prices the boundary between two segments rests on: the cheapest cut of a graph beside all cuts of small ones, axes
of what is computed in both segments, and values that a graph computes of constants."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest

from mlirfuse.analysis.axes import Axes
from mlirfuse.analysis.min_cut import sink_side
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.builder import Builder
from mlirfuse.ir.graph import Block, Value
from mlirfuse.ir.known_values import known_value


def cost(edges, behind) -> float:
    return sum(c for a, b, c in edges if a not in behind and b in behind)


@pytest.mark.parametrize("seed", range(400))
def test_no_cut_is_cheaper(seed):
    rng = random.Random(seed)
    inner = list(range(rng.randint(3, 7)))
    nodes = ["source", *inner, "sink"]
    pairs = [(a, b) for a in nodes for b in nodes if a != b and a != "sink" and b != "source"]
    edges = [(a, b, rng.choice((1, 2, 3, 5, math.inf))) for a, b in pairs if rng.random() < 0.35]
    cuts = [
        {"sink", *some} for count in range(len(inner) + 1) for some in itertools.combinations(inner, count)
    ]  # the fewest nodes first
    least = min(cost(edges, cut) for cut in cuts)
    found = sink_side(edges, "source", "sink")
    if math.isinf(least):
        assert found is None
    else:
        assert cost(edges, found) == least
        assert len(found) == min(len(cut) for cut in cuts if cost(edges, cut) == least)


@pytest.mark.parametrize("name, attrs", [
    ("slice", dict(start=(0, 0), size=(4, 8), step=(1, 1))),
    ("pad", dict(low=(0, 1), high=(2, 0))),
])  # fmt: skip
def test_what_two_segments_compute_has_one_set_of_axes(name, attrs):
    """Kernels see the axes anew: of two equal ops that read elsewhere, as of two equal elementwise ones."""
    argument = Value(dt.f32, (4, 16))
    b = Builder(Block([argument]))
    given = (argument, b.constant(0, dt.f32)) if name == "pad" else (argument,)
    one, other = b.op(name, *given, **attrs), b.op(name, *given, **attrs)
    assert one is not other
    axes = Axes([one.op, other.op] if name == "slice" else [given[1].op, one.op, other.op])
    assert axes.flat(one) == axes.flat(other)


def test_values_of_constants_are_known():
    argument = Value(dt.i64, (4,))
    b = Builder(Block([argument]))
    place = b.op("iota", shape=(4,), axis=0, dtype=dt.i64)
    half = b.op("minimum", b.op("add", place, b.constant(1, dt.i64)), b.constant(3, dt.i64))
    assert known_value(half).tolist() == np.minimum(np.arange(4) + 1, 3).tolist()
    assert known_value(b.op("add", half, argument)) is None
    assert known_value(b.op("iota", shape=(1 << 20,), axis=0, dtype=dt.i64)) is None
