"""Python's ints among the arguments: what 64 bits do not hold is Python's own, whatever the calls before were."""

from __future__ import annotations

import numpy as np
import pytest
from beside_numpy import function_of

import mlirfuse

NUMBERS = [3, -1, 50, 0, 2**20, -(2**31), 2**40, 63, -(2**62), 2**63 - 1, -(2**63), 2**64, 5]


@pytest.mark.parametrize(
    "expression",
    ["n * n * n * n", "n + 1, n - 1, -n, abs(n), ~n", "n * k, n - k, n + k", "x * (n + n)", "x + n * n", "(n * n) >> 60",
     "n * k // 7 * k", "(n * 6364136223846793005 + 1442695040888963407) % 2**64", "sum([n] * 9)", "n & -1, n | k, n ^ k, n * True",
     "np.where(x > 1, n * n, x)", "n * n > 2**64, n + k == k", "(n + k) * (n - k) + n % 7 * k", "np.full(2, n * 1.0) * n"],
)  # fmt: skip
def test_arithmetic(expression):
    f = function_of(f"def f(x, n, k):\n    return {expression}, x + 1\n")
    _compare(f, mlirfuse.jit(f), [(n, k) for n in NUMBERS for k in NUMBERS[:: len(NUMBERS) // 4]])


@pytest.mark.parametrize("expression", ["1 << n", "n << 3", "n ** 5", "(n << 2) ** 3", "n ** k", "3 ** n"])
def test_powers_and_shifts(expression):
    f = function_of(f"def f(x, n, k):\n    return {expression}, x + 1\n")
    _compare(f, mlirfuse.jit(f), [(n, k) for n in (3, 62, 63, 64, 100, 5, 1000) for k in (2, 30)])


@pytest.mark.parametrize(
    "expression",
    ["s ** 8, s ** 8 + n, x * s ** 8", "n * (s + 2**64), max(n + s + 2**64, s)", "(s * 6364136223846793005 + 1) * n, s * 2**62 - s * 2**62",
     "x + (s * 6364136223846793005 + 1442695040888963407) % 2**64", "s * s * s, (s ** 3 + n) * s", "x.astype('i8') * (s ** 8 % 10**9)",
     "pow(s, 2, 7), pow(s, 50, 7) * n, pow(n, s, 7), pow(3, s, 7), pow(2, 3, s), pow(s, -1, 7)"],
)  # fmt: skip
def test_sizes(expression):
    f = function_of(f"def f(x, n):\n    s = x.shape[0]\n    return {expression}\n")
    compiled = mlirfuse.jit(f)
    for extent in (3, 300, 301, 4, 3, 0, 1):
        for n in (2, 2**31, 2**64):
            x = np.ones(extent)
            assert _outcome(compiled, x, n) == _outcome(f, x, n), (extent, n)


def test_sizes_share_a_specialization():
    compiled = mlirfuse.jit(function_of("def f(x, n):\n    s = x.shape[0]\n    return x * (s * s * s + n * s)\n"))
    compiled(np.ones(5), 3)
    before = mlirfuse.counters.specializations
    for extent in range(2, 40):
        assert compiled(np.ones(extent), 3)[1] == extent**3 + 3 * extent
    assert mlirfuse.counters.specializations == before


@pytest.mark.parametrize(
    "expression",
    ["n == y, n != y, y < n, n <= y, y >= n", "n == 2.0**53, n > 9007199254740993.5, -n == -(2.0**53), n == y + 0j",
     "y == 2**53 + 1, y < 2**53 + 1, y >= -(2**53) - 1, y == 2**60, y < 10**400", "n / 3, 3 / n, n / k, n / (2**53 + 1), n / 2**60",
     "n * k == y, n * n > y, (n + k) / n, n * k / 7", "float(n) == n, int(y) == y, min(n, y), max(y, n)", "x + n if n == y else x - n",
     "True / n, (n > k) / n, n == (y > 1), x.shape[0] / n, x.shape[0] == y, x.shape[0] * n < y"],
)  # fmt: skip
def test_ints_beside_floats(expression):
    """Python compares an int and a float, and divides ints, without rounding the ints to floats."""
    f = function_of(f"def f(x, n, k, y):\n    return {expression}, x + 1\n")
    ints = [3, 2**53 + 1, 2**53, -(2**53) - 1, 2**62 + 1, 2**63 - 1, 94906267, -7, 2**64 + 1]
    floats = [2.0**53, 3.0, -(2.0**53), 2.0**63, 2.5, float("nan"), float("inf"), 2.0**60, 9007199326062089.0]
    _compare(f, mlirfuse.jit(f), [(n, k, y) for n in ints for k in (3, 2**55 + 1) for y in floats])


def test_small_ints_beside_floats_share_a_specialization():
    f = function_of(
        "def f(x, n, k, y):\n    return (x + (n < y) * (n * k != y)) / (n / k), n * k / 3, n / x.shape[0]\n"
    )
    compiled = mlirfuse.jit(f)
    compiled(np.ones(3), 3, 4, 2.5)
    before = mlirfuse.counters.specializations
    for n in range(-20, 20):
        x = np.ones(abs(n) + 2)
        assert _outcome(compiled, x, n * 10**6, n * 7 + 1, n / 2) == _outcome(f, x, n * 10**6, n * 7 + 1, n / 2)
    assert mlirfuse.counters.specializations == before


def test_a_chain_of_ints_that_grows():
    f = function_of("def f(x, n):\n    v = n\n    for _ in range(300):\n        v = v * 3 + n\n    return v, x * n\n")
    _compare(f, mlirfuse.jit(f), [(n,) for n in (1, -2, 0)])


def test_small_ints_share_a_specialization():
    compiled = mlirfuse.jit(function_of("def f(x, n, k):\n    return x * (n * k + n - k)\n"))
    compiled(np.ones(3), 3, 4)
    before = mlirfuse.counters.specializations
    for n in range(-20, 20):
        assert compiled(np.ones(3), n * 10**6, n).tolist() == [n * 10**6 * n + n * 10**6 - n] * 3
    assert mlirfuse.counters.specializations == before


def _compare(f, compiled, calls) -> None:
    for numbers in calls:
        x = np.arange(3.0)
        for _ in range(2):
            assert _outcome(compiled, x, *numbers) == _outcome(f, x, *numbers), numbers


def _outcome(f, *args) -> str:
    try:
        with np.errstate(all="ignore"):
            return repr(f(*args))
    except Exception as error:
        return type(error).__name__
