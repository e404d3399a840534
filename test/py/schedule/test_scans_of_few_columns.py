"""Scans down fewer columns than a vector has lanes, on the CPU: memory is gone through as one row."""

from __future__ import annotations

import numpy as np
import pytest
from test_scans import FUNCTIONS, RNG, agree, at_the_end, f16, f32, f64, near, recurrence, recurring

import mlirfuse
from mlirfuse.core import config
from mlirfuse.core.errors import ScheduleError
from mlirfuse.schedule import targets

LANES = targets.of("cpu").properties.vector_bytes // 4
COLUMNS = [n for n in (2, 3, 4, 5, 7, 8, 11, 15, 16) if n <= LANES]
NAME = "scan_few_columns"


@pytest.fixture(autouse=True)
def no_fallback():
    with config.override(fallback=False):
        yield


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_number_of_columns(name, columns):
    """Vectors begin in any column, and memory ends anywhere in one."""
    fn = FUNCTIONS[name](0)
    jitted = mlirfuse.jit(fn, schedule={0: {"scheduler": NAME, "columns": columns}})
    for rows in (2, 15, 16, 17, 63, 100, 333):
        x = RNG.standard_normal((rows, columns)).astype(f32)
        got, want = jitted(x), fn(x.astype(f64))
        for a, b in zip(*[r if isinstance(r, tuple) else (r,) for r in (got, want)], strict=True):
            near(a, b)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("columns", COLUMNS)
def test_parts(columns, reverse):
    """Each goes on from the states of all columns before it, of float64 and of half vectors too."""
    for dtype in (f32, f64, np.int64):
        if columns * np.dtype(dtype).itemsize > 4 * LANES:
            continue
        x = RNG.integers(-3, 4, (3, 5001, columns)).astype(dtype)
        flip = lambda x: np.flip(x, 1) if reverse else x  # noqa: E731
        fn = lambda x: flip(np.cumsum(flip(x), 1))  # noqa: E731
        for split in (2, 5, 64):
            given = {0: {"scheduler": NAME, "columns": columns, "split": split}}
            np.testing.assert_array_equal(mlirfuse.jit(fn, schedule=given)(x), fn(x))
    a, x = (RNG.standard_normal((5001, columns)).astype(f32) for _ in range(2))
    given = {0: {"scheduler": NAME, "columns": columns, "split": 5}}
    got = mlirfuse.jit(recurring(0, reverse), schedule=given)(a / 4, x)
    near(got, recurrence(a / 4, x, 0, reverse) + 1)


@pytest.mark.parametrize("columns", COLUMNS)
def test_nothing_past_the_end_is_touched(columns):
    def fn(x, y):
        y[...] = np.cumsum(x * 2, 0)

    given = [RNG.standard_normal((61, columns)).astype(f32) for _ in range(2)]
    with at_the_end(*given) as (x, y):
        mlirfuse.jit(fn, schedule={0: {"scheduler": NAME, "columns": columns}})(x, y)
        near(y, np.cumsum(x.astype(f64) * 2, 0))


def test_in_place():
    x = RNG.standard_normal((4001, 3)).astype(f32)
    want = np.cumsum(x.astype(f64), 0)

    def fn(x):
        x[...] = np.cumsum(x, 0)

    for split in (1, 4):
        given = x.copy()
        mlirfuse.jit(fn, schedule={0: {"scheduler": NAME, "columns": 3, "split": split}})(given)
        near(given, want)


def test_what_is_taken_so():
    """What lies otherwise, or has more columns, is left to other schedulers. Positions in rows and columns are
    known."""
    one = lambda *shape: RNG.standard_normal(shape).astype(f32)  # noqa: E731
    few = max(2, LANES // 4)
    assert agree(lambda x: np.cumsum(x * 2, 0) + x, one(333, few)) == [NAME]
    assert agree(lambda x: np.cumsum(x, 1), one(7, 333, few)) == [NAME]
    assert agree(lambda x: np.cumsum(np.tril(x), 0), one(333, few)) == [NAME]
    # The result lies as the argument does, so that both have few columns in memory.
    assert agree(lambda x: np.cumsum(x, 1), one(4, 333, few).transpose(2, 1, 0)) == [NAME]
    for other in (
        (lambda x, w: np.cumsum(x * w, 0), one(333, few), one(few)),
        (lambda x, w: np.cumsum(x * w, 0), one(333, few), one(333, 1)),
        (lambda x: np.cumsum(x[:, 1:], 0), one(333, few + 1)),
        (lambda x: np.cumsum(x[::2], 0), one(333, few)),
        (lambda x: np.cumsum(x, 0), one(333, LANES + 1)),
    ):
        assert NAME not in agree(*other)
    x = (RNG.standard_normal((333, few)) * 10).astype(f16)
    near(mlirfuse.jit(lambda x: np.cumsum(x, 0))(x), np.cumsum(x.astype(f64), 0), 1e-3)


def test_nan_and_zeros():
    x = np.full((40, 3), -0.0, f32)
    got = mlirfuse.jit(lambda x: np.cumsum(x, 0))(x)
    assert np.signbit(got).all()
    x[7, 1] = np.nan
    got = mlirfuse.jit(lambda x: (np.cumsum(x, 0), np.maximum.accumulate(x, 0)))(x)
    for values in got:
        np.testing.assert_array_equal(np.isnan(values), (np.arange(40)[:, None] >= 7) & (np.arange(3) == 1))


def test_past_the_caches():
    for columns in (2, 3):
        given = {0: {"scheduler": NAME, "columns": columns, "streamed": True}}
        agree(lambda x: np.cumsum(x, 0), RNG.standard_normal((5001, columns)).astype(f32), schedule=given)


@pytest.mark.parametrize(
    "fields, shape, problem",
    [
        ({"columns": 2}, (50, 3), "there are 3"),
        ({"columns": LANES + 1}, (50, LANES + 1), "lanes"),
        ({"columns": 2, "streamed": True}, (3, 51, 2), "aligned"),
        ({"columns": 2, "split": 0}, (50, 2), "must be at least 1"),
    ],
)
def test_schedules_that_cannot_be(fields, shape, problem):
    with pytest.raises(ScheduleError, match=problem):
        mlirfuse.jit(lambda x: np.cumsum(x, -2), schedule={0: {"scheduler": NAME} | fields})(np.ones(shape, f32))
