"""Maxima, minima and their positions on the CPU: one element decides, wherever it is."""

import ml_dtypes
import numpy as np
import pytest

import mlirfuse
from mlirfuse.core import config

FLOATS = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]


@pytest.fixture(autouse=True)
def no_fallback():
    with config.override(fallback=False):
        yield


def data(shape, dtype):
    return np.random.default_rng(0).uniform(-2, 2, shape).astype(dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", ["max", "min"])
def test_extremes_that_are_at_any_place(name, dtype):
    """A NaN, or what is the largest or smallest, is found wherever it is, in a row of its own or among others."""
    best = {"max": 9, "min": -9}[name]
    f, g = mlirfuse.jit(lambda x: getattr(x, name)(1)), mlirfuse.jit(lambda x: getattr(x.T, name)(0))
    of_all = mlirfuse.jit(lambda x: getattr(x, name)())
    for n in (1, 2, 16, 31, 64, 65, 100, 127, 129, 257, 300):
        for value in (best, np.nan):
            x = data((n + 1, n), dtype)
            x[np.arange(n), np.arange(n)] = value
            rest = getattr(x[n], name)()  # the last row has none
            for got in (f(x), g(x)):
                np.testing.assert_array_equal(got.astype(np.float64), [value] * n + [rest])
    x = data((1 << 18) + 77, dtype)
    for at in (0, 63, 64, 4095, 4096, 5000, 1 << 17, (1 << 18) - 1, len(x) - 65, len(x) - 2, len(x) - 1):
        for value in (best, np.nan):
            changed = x.copy()
            changed[at] = value
            np.testing.assert_array_equal(float(of_all(changed)), value)


@pytest.mark.parametrize("name", ["any", "all", "max", "min", "argmax", "argmin"])
@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int32, np.int64], ids=str)
def test_the_one_element_that_decides(name, dtype):
    """By itself, and with all behind it like it: at the ends of rows vectors take elements again."""
    others, one = (1, 0) if name in ("all", "min", "argmin") else (0, 1)
    fn = lambda x: getattr(x, name)(1)  # noqa: E731
    f = mlirfuse.jit(fn)
    for n in (65, 100, 129, 1000):
        alone = np.where(np.eye(n, dtype=bool), one, others).astype(dtype)
        behind = np.where(np.tri(n, dtype=bool).T, one, others).astype(dtype)
        for x in (alone, behind):
            np.testing.assert_array_equal(f(x), fn(x))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_first_positions(name, dtype):
    """Of what is best, and of NaNs, which are better than all; equal ones before, among and behind it."""
    best, f = {"argmax": 9, "argmin": -9}[name], mlirfuse.jit(lambda x: getattr(x, name)(1))
    for n in (1, 16, 31, 64, 65, 100, 127, 129, 257, 300):
        for value, later in ((best, 0), (best, best), (np.nan, best), (np.nan, np.nan)):
            x = data((n, n), dtype)
            x[np.tri(n, k=-1, dtype=bool).T & (data((n, n), dtype).astype(np.float32) > 1)] = later
            x[np.arange(n), np.arange(n)] = value
            np.testing.assert_array_equal(f(x), np.arange(n))
            if value is np.nan:
                x[np.tri(n, k=-1, dtype=bool)] = best
                np.testing.assert_array_equal(f(x), np.arange(n))
    infinite = mlirfuse.jit(lambda x: getattr(x, name)(1))
    np.testing.assert_array_equal(infinite(np.full((3, 301), np.inf * -np.sign(best)).astype(dtype)), 0)


@pytest.mark.parametrize("size", [1, 1000, (1 << 18) + 77])
def test_first_positions_of_all(size):
    """In parts that threads share, and in pieces of rows."""
    f, pieces = mlirfuse.jit(lambda x: x.argmax()), mlirfuse.jit(lambda x: (x[:, :100] * 2).argmax())
    x = data(size, np.float32)
    for at in {0, 63 % size, size // 2, size - 1, max(0, size - 65)}:
        for value in (9, np.nan):
            changed = x.copy()
            changed[[at, size - 1]] = value
            assert f(changed) == at
    assert f(np.full(size, -np.inf, np.float32)) == 0
    x = data((size // 130 + 1, 130), np.float32)
    for row in (0, len(x) // 2, len(x) - 1):
        changed = x.copy()
        changed[row, [7, 99]] = changed[:, 100:] = 9
        assert pieces(changed) == row * 100 + 7


def test_positions_of_what_is_computed():
    """After another pass over the row, of values that are kept from it, and beside other reductions."""
    x = data((40, 333), np.float32)

    def fn(x):
        e = np.exp(x - x.max(1, keepdims=True))
        return e.argmax(1), e.argmin(1), e.max(1), (np.sin(x) * x).argmin(1), x.sum(1) > 0

    for got, want in zip(mlirfuse.jit(fn)(x), fn(x)):
        np.testing.assert_allclose(got, want, rtol=1e-6)
