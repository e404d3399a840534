"""NumPy programs of several functions run compiled, with NumPy's results: time loops that call helpers, stages, arrays
that shrink, solvers and draws in loops (benchmarks/programs/composed.py)."""

from __future__ import annotations

import copy
import math
import pathlib
import sys
import warnings

import numpy as np
import pytest

import mlirfuse

sys.path.append(str(pathlib.Path(__file__).parents[3] / "benchmarks"))
from programs.composed import PROGRAMS

TRACED = {"expm", "contracted", "adler", "wave", "horizontal-diffusion", "upwind", "fast-trace", "clipped-sum",
          "inside-polygon", "reshaped-rows"}  # fmt: skip
# Sums are ordered differently, and iterations carry that on: bounds relative to the largest element.
BOUNDS = {np.dtype("f4"): 1e-5, np.dtype("f8"): 1e-10, np.dtype("c16"): 1e-10}


def same(got, want) -> None:
    if isinstance(want, (tuple, list)):
        assert type(got) is type(want) and len(got) == len(want)
        for one, other in zip(got, want):
            same(one, other)
    elif isinstance(want, np.random.Generator):
        assert got.bit_generator.state == want.bit_generator.state
    elif isinstance(want, (np.ndarray, np.generic)):
        assert type(got) is type(want) and got.dtype == want.dtype and got.shape == want.shape
        bound = BOUNDS.get(want.dtype)
        if bound is None:
            np.testing.assert_array_equal(got, want)
        else:
            np.testing.assert_allclose(got, want, rtol=0, atol=bound * np.abs(want).max(initial=1e-300))
    elif isinstance(want, float):
        assert type(got) is float and abs(got - want) <= 1e-10 * abs(want)
    else:
        assert type(got) is type(want) and got == want


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name, monkeypatch):
    fn, make, sizes = PROGRAMS[name]
    jitted = mlirfuse.jit(fn)
    with warnings.catch_warnings():
        warnings.simplefilter("error", mlirfuse.FallbackWarning)
        for _ in range(3):
            given, expected = copy.deepcopy(make(sizes[0])), make(sizes[0])
            with np.errstate(all="ignore"):
                want = fn(*expected)
            same(jitted(*given), want)
            same(list(given), list(expected))
    loops = jitted.eager.loops
    assert any(loop.ran for loop in loops) == (name not in TRACED)
    assert not [loop.refused for loop in loops if loop.refused]


@pytest.mark.parametrize("shape", [(8,), (6, 6)])
def test_products_of_a_multiple_with_itself(shape):
    """The factor of a product's operand moves behind it, unless both operands are the multiple."""
    x = np.arange(math.prod(shape), dtype=np.float64).reshape(shape) + 1
    for fn in (
        lambda x: (y := x * 2) @ y,
        lambda x: (x * 3) @ (x * 3).T,
        lambda x: np.dot(y := np.arange(len(x), dtype=np.float32) * 0.5, y),
    ):
        np.testing.assert_allclose(mlirfuse.jit(fn, fallback=False)(x), fn(x), rtol=1e-12)
