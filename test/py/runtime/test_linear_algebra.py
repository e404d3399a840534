"""NumPy's linear algebra without its Python code gives NumPy's results, types, warnings and errors."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import mlirfuse
from mlirfuse.runtime.linear_algebra import direct

RNG = np.random.default_rng(7)
SQUARE = RNG.random((5, 5)) + 5 * np.eye(5)
MATRICES = {
    "doubles": SQUARE,
    "columns": np.asfortranarray(SQUARE),
    "strided": RNG.random((10, 10))[::2, ::2] + 5 * np.eye(5),
    "complex": SQUARE + 1j * (SQUARE - SQUARE.T),
    "singles": SQUARE.astype(np.float32),
    "ints": np.eye(5, dtype=np.int64) * 3,
    "stacked": np.stack([SQUARE, 2 * SQUARE]),
    "one": np.array([[4.0]]),
    "large": np.eye(3) * 1e200,
    "tiny": np.eye(3) * 1e-200,
    "singular": np.zeros((3, 3)),
    "negative": -SQUARE,
    "with a NaN": np.where(np.eye(5, dtype=bool), np.nan, SQUARE),
    "infinite": np.where(np.eye(5, dtype=bool), np.inf, SQUARE),
    "not square": RNG.random((3, 5)),
    "empty": np.zeros((0, 0)),
    "a vector": np.arange(3.0),
    "a list": [[2.0, 0.0], [0.0, 3.0]],
}


def outcome(function, *args):
    """The result, or the error, of a call, with the messages of its warnings."""
    with warnings.catch_warnings(record=True) as met:
        warnings.simplefilter("always")
        try:
            found = function(*args)
        except Exception as error:
            found = error
    return found, [str(w.message) for w in met]


def assert_same(found, expected):
    assert type(found) is type(expected)
    if isinstance(expected, Exception):
        assert str(found) == str(expected)
    elif isinstance(expected, tuple):
        assert len(found) == len(expected)
        for a, b in zip(found, expected):
            assert_same(a, b)
    else:
        assert found.dtype == expected.dtype and found.shape == expected.shape
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", ["inv", "det", "cholesky", "eigh"])
@pytest.mark.parametrize("matrix", MATRICES)
def test_of_one_matrix(name, matrix):
    function = getattr(np.linalg, name)
    given = MATRICES[matrix]
    for errors in ("warn", "raise"):
        with np.errstate(all=errors):
            (found, messages), (expected, same) = outcome(direct(function), given), outcome(function, given)
        assert_same(found, expected)
        assert messages == same


@pytest.mark.parametrize("matrix", MATRICES)
@pytest.mark.parametrize("right", ["vector", "matrix", "complex", "too long"])
def test_solve(matrix, right):
    a = MATRICES[matrix]
    n = len(a)
    b = {"vector": np.arange(n) + 1.0, "matrix": RNG.random((n, 2)), "complex": np.ones(n) * 1j}.get(
        right, np.ones(n + 1)
    )
    (found, messages), (expected, same) = outcome(direct(np.linalg.solve), a, b), outcome(np.linalg.solve, a, b)
    assert_same(found, expected)
    assert messages == same


def test_options_go_to_numpy():
    assert_same(direct(np.linalg.eigh)(SQUARE, UPLO="U"), np.linalg.eigh(SQUARE, UPLO="U"))
    assert direct(np.linalg.svd) is np.linalg.svd


def repeated(a, b, steps):
    x = np.zeros_like(b)
    for _ in range(steps):
        x = x + np.linalg.solve(a, b - a @ x)
        values, vectors = np.linalg.eigh(a @ a.T)
        b = b + 0.01 * values * np.linalg.det(np.linalg.inv(a)) + vectors[0] * 0
    return x


def test_in_native_loops():
    want = repeated(SQUARE, np.arange(5.0), 3)
    fused = mlirfuse.jit(repeated)
    for _ in range(2):
        np.testing.assert_allclose(fused(SQUARE, np.arange(5.0), 3), want, rtol=1e-9)
    with pytest.raises(np.linalg.LinAlgError, match="Singular matrix"):
        fused(np.zeros((5, 5)), np.arange(5.0), 3)


def whitened(x):
    values, vectors = np.linalg.eigh(x.T @ x)
    return x @ vectors / np.sqrt(values)


def test_between_subgraphs():
    x = RNG.random((1000, 4))
    fused = mlirfuse.jit(whitened)
    for _ in range(2):
        np.testing.assert_allclose(fused(x), whitened(x), rtol=1e-9)


def shifted(x):
    return np.convolve(x, x[:3]) + offset


offset = 1.0


def test_small_calls_are_the_users_function():
    """Small arrays skip the steps between subgraphs, and see what has changed around the function."""
    global offset
    x, large = np.arange(20.0), np.arange(5000.0)
    fused = mlirfuse.jit(shifted)
    for value in (1.0, 2.0):
        offset = value
        for given in (x, large, x):
            np.testing.assert_allclose(fused(given), shifted(given))
    with pytest.raises(ValueError, match="empty"):
        fused(np.zeros(0))
