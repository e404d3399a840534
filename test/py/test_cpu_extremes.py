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
