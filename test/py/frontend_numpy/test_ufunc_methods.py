"""Methods of ufuncs, and numbers that NumPy's C code does not take for integers, each beside NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from beside_numpy import Case, differs


def _arrays(kind: str):
    return lambda: (np.array([[0, 1, 2, 3], [5, 7, 1, 2], [3, 0, 4, 6]]).astype(kind), 3, True)


def _check(expression: str, kind: str = "f8") -> None:
    case = Case(f"def f(a, k, true):\n    return a.shape, {expression}\n", _arrays(kind), ulps=8, computed="f2")
    found = differs(case)
    assert found is None, found


@pytest.mark.parametrize("kind", ["?", "u1", "f2", "f4", "c8"])
@pytest.mark.parametrize("other", ["k", "2.5", "true", "a[0, 1]", "[1, 2]", "a.shape[0]"])
def test_outer_takes_numbers_with_numpys_own_types(other, kind):
    """A Python number is no weak operand here."""
    _check(f"np.add.outer(a[0], {other}), np.maximum.outer({other}, a[0])", kind)


@pytest.mark.parametrize("kind", ["?", "i1", "u2", "i4", "f2", "f4", "c8"])
@pytest.mark.parametrize("ufunc", ["add", "multiply", "maximum", "minimum", "logaddexp"])
def test_types_of_accumulate(ufunc, kind):
    _check(f"np.{ufunc}.accumulate(a), np.{ufunc}.accumulate(a[:0], -1)", kind)


@pytest.mark.parametrize("ufunc", ["add", "multiply", "maximum", "minimum", "logaddexp"])
@pytest.mark.parametrize(
    "call", ["(a, None)", "(a[0], None)", "(a[0, 0])", "(a, (1,))", "(a, (0, 1))", "(a, true)", "(a, 2)"]
)
def test_the_axis_of_accumulate(ufunc, call):
    _check(f"np.{ufunc}.accumulate{call}")


@pytest.mark.parametrize("dtype", ["'f4'", "'i8'", "bool", "'?'", "None", "object"])
@pytest.mark.parametrize("ufunc", ["logical_and", "logical_or"])
def test_types_of_logical_reductions(ufunc, dtype):
    _check(f"np.{ufunc}.reduce(a, dtype={dtype}), np.{ufunc}.reduce(a, None)")


@pytest.mark.parametrize(
    "expression",
    ["np.zeros((true,) * 2)", "np.ones(true)", "np.full([true, 2], 1)", "np.eye(true)", "np.eye(2, true)", "np.tri(true)",
     "np.zeros_like(a, shape=(true,))", "a.reshape(true, -1)", "np.broadcast_to(a[0], (true, 4))", "a.transpose(true, false)",
     "np.sum(a, true)", "a.max(axis=(true,))", "np.mean(a, true)", "np.argmax(a, true)", "np.cumsum(a, true)", "np.take(a, 0, true)",
     "np.repeat(a, 2, true)", "np.concatenate([a, a], true)", "np.squeeze(a[:, :1], true)", "np.pad(a, true)", "np.argsort(a, true)",
     "np.repeat(a, true)", "np.tile(a, true)", "np.roll(a, true)", "np.stack([a, a], true)", "np.flip(a, true)", "np.sort(a, true)",
     "np.swapaxes(a, true, false)", "np.diff(a, true)", "np.zeros(a[0, 0] == 0)"],
)  # fmt: skip
def test_bools_where_numpy_wants_integers(expression):
    _check(expression.replace("false", "not true"))
