"""Random programs of 5 to 40 operations, compiled and plain; how they are made and what may differ:
:mod:`random_programs`.

A failure prints the seed, the program and a smaller one that fails in the same way. ``MLIRFUSE_TEST_RANDOM_PROGRAMS=5000``
tries more seeds than there is time for in every run; ``python test/py/helpers/random_programs.py FIRST COUNT`` does so without
pytest.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
import random_programs as rp

import mlirfuse

MORE = int(os.environ.get("MLIRFUSE_TEST_RANDOM_PROGRAMS", "0"))


@pytest.fixture(autouse=True)
def no_cache(monkeypatch):
    monkeypatch.setenv("MLIRFUSE_CACHE", "0")


def run(seed: int, **options) -> None:
    program = rp.make(seed, **options)
    failure = rp.check(program)
    if failure:
        pytest.fail(rp.report(program, failure), pytrace=False)


# Seeds that have failed, each for a reason of its own; see the commits that fixed them.
FOUND = [6, 18, 33, 38, 47, 54, 216, 318, 1065, 1081, 3135, 3758, 3885, 3886, 3990]


@pytest.mark.parametrize("seed", FOUND)
def test_programs_that_failed_once(seed):
    run(seed)


@pytest.mark.parametrize("seed", range(40 + MORE))
def test_small(seed):
    """Up to a few hundred elements: every branch of every loop, sizes of 1 among them, then other sizes on the same
    compilation."""
    run(100_000 + seed, large=False)


@pytest.mark.parametrize("seed", range(8 + MORE // 8))
def test_large(seed):
    """Enough elements for several threads and for reductions in parts."""
    run(200_000 + seed, large=True)


@pytest.mark.parametrize("seed", range(6 + MORE // 8))
def test_special_values(seed):
    """NaN, infinities, zeros of both signs, the extremes of integers."""
    run(300_000 + seed, special=True, length=(5, 15))


@pytest.mark.parametrize("seed", range(300 + MORE))
def test_by_linalg(seed):
    """By linalg and MLIR's own passes in place of our schedulers: short programs, a call of each."""
    program = rp.make(400_000 + seed, large=False, length=(3, 10), special=seed % 4 == 0)
    program.calls = program.calls[:1]
    failure = rp.check(program, mlirfuse.jit(program.function(), fallback=False, lowering="linalg"))
    if failure:
        pytest.fail(rp.report(program, failure), pytrace=False)


def test_a_wrong_result_is_found_and_reduced():
    """The test of the test: a function that is off by a few roundings passes, one that is off by more does not."""
    program = rp.make(400_000, length=(6, 10), large=False)
    plain = program.function()

    def off_by(factor):
        def wrong(*args):
            results = plain(*args)
            first = np.asarray(results[0])
            return (first * first.dtype.type(factor) if first.dtype.kind == "f" else ~first, *results[1:])

        return wrong

    assert rp.check(program, plain) is None
    found = rp.check(program, off_by(1.01))
    assert found and "result 0" in found[0]
    assert rp.difference("x", np.float32(1.0), rp.Runs({"x": np.float32(1.0)}, [{"x": np.float64(1.0)}] * 3)) is None
    assert rp.difference("x", np.float32(1.1), rp.Runs({"x": np.float32(1.0)}, [{"x": np.float64(1.0)}] * 3))
