"""Errors of NumPy's that depend on values: a call raises what NumPy raises for it, also where other calls were fine."""

import re

import numpy as np
import pytest

import mlirfuse

X, ROWS = np.arange(6.0), np.arange(6.0).reshape(2, 3)


def outcome(f, *args):
    """The result, or the class of the error and its text."""
    try:
        return f(*[a.copy() if isinstance(a, np.ndarray) else a for a in args])
    except Exception as error:
        return type(error), re.escape(str(error).splitlines()[0])


AVERAGES = {
    "all": (lambda x, w: np.average(x, weights=w), X, (X + 1, X * 0, np.array([1.0, -1, 1, -1, 1, -1]))),
    "integers": (lambda x, w: np.average(x, weights=w), np.arange(3), (np.array([1, 2, 3]), np.array([1, -2, 1]))),
    "rows": (lambda x, w: np.average(x, 1, w), ROWS, (ROWS + 1, ROWS - 1, ROWS * [[0], [1]])),
    "an axis": (lambda x, w: np.average(x, 1, w, True), ROWS, (np.ones(3), np.array([1.0, 0, -1]))),
    "complex": (lambda x, w: np.average(x, weights=w), X, (X + 1j, X * 0j, np.array([1, -1, 1j, -1j, 1, -1]))),
    "float32": (lambda x, w: np.average(x, weights=w), X.astype("f4"), (X.astype("f4") + 1, X.astype("f4") * 0)),
    "after a branch": (lambda x, w: np.average(x, weights=w) if x.sum() > 0 else x, X, (X + 1, X * 0)),
}


@pytest.mark.parametrize("fallback", [True, False])
@pytest.mark.parametrize("name", AVERAGES)
def test_weights_that_sum_to_zero(name, fallback):
    f, x, weights = AVERAGES[name]
    if name == "after a branch" and not fallback:
        pytest.skip("one graph does not have it")
    compiled = mlirfuse.jit(f, fallback=fallback)
    for w in (*weights, weights[0]):
        found, expected = outcome(compiled, x, w), outcome(f, x, w)
        if isinstance(expected, tuple) and expected[0] is ZeroDivisionError:
            assert found == expected
        else:
            for a, b in zip(np.atleast_1d(found), np.atleast_1d(expected), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-6)
    with pytest.raises(ZeroDivisionError, match="Weights sum to zero"):
        compiled(x, weights[1])


def test_a_handler_sees_that_weights_sum_to_zero():
    def f(x, w):
        try:
            return np.average(x, weights=w)
        except ZeroDivisionError:
            return x.max() * 10

    compiled = mlirfuse.jit(f, fallback=True)
    for w in (X + 1, X * 0, X + 2):
        np.testing.assert_allclose(compiled(X, w), f(X, w))


@pytest.mark.parametrize("f", [
    lambda x: np.array(x, np.int64, copy=False),
    lambda x: np.array(x, order="F", copy=False) + 1,
    lambda x: np.array([x[0], x[1]], copy=False) + 1,
    lambda x: np.array(x[0, 0], copy=False) + 1,
    lambda x: np.asarray(x, np.float32, copy=False),
    lambda x: np.asarray(x.T, order="C", copy=False) + 1,
    lambda x: np.asanyarray(x, np.float32, copy=False),
    lambda x: np.reshape(x.T, (6,), copy=False) + 1,
    lambda x: x.T.reshape(6, copy=False) + 1,
    lambda x: x.reshape(6, order="F", copy=False) + 1,
    lambda x: (x + 1).T.reshape(6, copy=False),
    lambda x: np.array(x, copy=False) + 1,
    lambda x: np.asarray(x.T, order="F", copy=False) + 1,
    lambda x: x.reshape(3, 2, copy=False) + 1,
    lambda x: x.T.reshape(6, order="F", copy=False) + 1,
])  # fmt: skip
def test_a_copy_that_is_forbidden(f):
    found, expected = outcome(mlirfuse.jit(f, fallback=False), ROWS), outcome(f, ROWS)
    if isinstance(expected, tuple):
        assert issubclass(found[0], expected[0])
        assert found[1].startswith(expected[1])
    else:
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("f", [
    lambda x: np.arange(0, 5, 0) + x[0], lambda x: np.arange(0, x.shape[0], 0) + x[0],
    lambda x: np.arange(x.shape[0], 0, x.shape[0] - 6) + x[0],
])  # fmt: skip
def test_ranges_without_a_step(f):
    with pytest.raises(ZeroDivisionError, match="division by zero"):
        mlirfuse.jit(f, fallback=False)(X)


class _NotCopied:
    """An argument that `copy.deepcopy` refuses."""

    scale = 2.0

    def __deepcopy__(self, memo):
        raise TypeError("no copies of this")


def test_an_error_beside_an_argument_that_has_no_copies():
    """NumPy's own error is looked for on copies, and there are none."""
    x = np.arange(3.0)
    with pytest.raises(IndexError, match="index 7 is out of bounds"):
        mlirfuse.jit(lambda x, i, held: x[i] * held.scale, fallback=False)(x, np.array([0, 7]), _NotCopied())
