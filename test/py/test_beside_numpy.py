"""Programs beside NumPy, made by generators: what a caller sees of a compiled call is what NumPy shows.

Each generator has a fixed part here; by hand, thousands: ``PYTHONPATH=test/py python -m numpy_overlap_programs FIRST
LAST``, and so on.
"""

from __future__ import annotations

import pathlib
import sys

import numpy as np
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import numpy_order_programs
import numpy_overlap_programs
from beside_numpy import Case, differs, function_of

import mlirfuse


@pytest.fixture(autouse=True)
def no_cache(monkeypatch):
    monkeypatch.setenv("MLIRFUSE_CACHE", "0")


def check(case: Case, calls: int = 1) -> None:
    found = differs(case, calls)
    if found:
        pytest.fail(f"{found}\n{case.source}", pytrace=False)


@pytest.mark.parametrize("seed", range(50))
def test_overlapping_reads_and_writes(seed):
    check(numpy_overlap_programs.generate(seed))


def _square(side: int = 100) -> np.ndarray:
    return np.arange(float(side * side)).reshape(side, side)


@pytest.mark.parametrize(
    "statement",
    ["b[::-1] = b", "b[:] = b[::-1]", "b[1:] = b[:-1]", "b[:-1] = b[1:]", "b[2500:] = b[::-2]", "a[:] = a.T",
     "a.T[:] = a", "a[1:] = a[:-1]", "a[:, ::-1] = a", "a[::-1, ::-1] = a.T", "t = a + 0; a[:] = c; c[:] = t",
     "a[::-1] = a; c[:] = a @ c", "t = c.copy(); c[::-1] = a; a[::-1] = t", "a += a[::-1]", "a[1:] -= a[:-1]"],
)  # fmt: skip
def test_a_statement_reads_all_before_it_writes(statement):
    source = f"def f(a, b, c):\n    {statement}\n"
    check(Case(source, lambda: (_square(), np.arange(5000.0), -_square())), calls=2)


@pytest.mark.parametrize("loop", ["", "for k in range(1): "])
def test_onto_every_other_element_as_if_copied(loop):
    """Which NumPy 2.4 does one element after the other."""
    f = function_of(f"def f(b):\n    {loop}b[::2] = b[:2500]\n")
    b = np.arange(5000.0)
    mlirfuse.jit(f)(b)
    np.testing.assert_array_equal(b[::2], np.arange(2500.0))


@pytest.mark.parametrize("seed", range(60))
def test_order_of_memory_and_sharing(seed):
    check(numpy_order_programs.generate(seed))


@pytest.mark.parametrize("layout", ["C", "F", "strided"])
@pytest.mark.parametrize(
    "results",
    ["a.T.ravel(), a.T.ravel()", "a.copy(), a.copy()", "np.diagonal(a, 1), a[::-1].diagonal()", "z.T, z * 2",
     "z[1:], z[:, ::2], z * 2", "z.real, z.imag, z + 1", "z.astype('f8'), z", "a * 2 + 1, np.exp(a), a > 0.5",
     "a.ravel('K'), a.flatten('A')", "(a * 2).T, (a * 2)[::-1]"],
)  # fmt: skip
def test_results_lie_and_share_as_numpys(results, layout):
    def make():
        a = np.arange(30.0).reshape(5, 6)
        a = {"C": a, "F": np.asfortranarray(a), "strided": np.arange(120.0).reshape(10, 12)[::2, ::2]}[layout]
        return a, a.copy("K") + 1j

    check(Case(f"def f(a, z):\n    return {results},\n", make, ulps=4), calls=2)


def test_the_order_of_strides_is_a_condition():
    """Two arrays with gaps whose dimensions lie in another order are two kinds."""
    f = mlirfuse.jit(function_of("def f(a):\n    return a * 2\n"))
    for a in (np.ones((20, 30))[:10, :12], np.ones((30, 40)).T[:10, :12], np.ones((20, 30))[:10, :12]):
        assert f(a).strides == (a * 2).strides
