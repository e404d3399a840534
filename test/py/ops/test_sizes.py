"""Symbolic sizes: what stands for symbols, in whatever order it is learned."""

from __future__ import annotations

import itertools
import random

import pytest

from mlirfuse.ir import sizes as sz
from mlirfuse.ir.sizes import Expr, Size, Substitution

A, B, C, D = (sz.symbol(f"s{k}") for k in range(4))


def eager(learned: list[tuple[str, Size]], size: Size) -> Size:
    """Every equation applied to all before it as it is learned."""
    known: dict[str, Size] = {}
    for name, value in learned:
        known = {k: sz.substitute(v, {name: value}) for k, v in known.items()} | {name: value}
    return sz.substitute(size, known)


def lazy(learned: list[tuple[str, Size]], size: Size) -> Size:
    substitution = Substitution()
    for name, value in learned:
        substitution.add(name, value)
        substitution(A * B + C)  # what is asked between changes nothing
    return substitution(size)


EQUATIONS: list[tuple[str, Size]] = [("s3", C), ("s2", B), ("s1", A), ("s0", 12)]


@pytest.mark.parametrize("order", list(itertools.permutations(EQUATIONS)))
def test_chains_in_any_order(order):
    learned: list[tuple[str, Size]] = []
    for name, value in order:  # in what is known by then, as a trace learns it
        learned.append((name, eager(learned, value)))
    for size in (A, D, A * D + B, sz.floordiv(D, 3), sz.maximum(C, D)):
        assert lazy(learned, size) == eager(learned, size)
    assert lazy(learned, D) == 12


def test_a_symbol_in_what_stands_for_it_is_replaced_once():
    rounded = sz.mul(6, sz.floordiv(A, 6))
    assert lazy([("s0", rounded)], A) == rounded
    assert lazy([("s1", A), ("s0", rounded)], B) == rounded
    assert lazy([("s0", rounded), ("s0", 18)], A) == 18
    assert sz.mod(lazy([("s0", rounded)], A), 6) == 0


@pytest.mark.parametrize("seed", range(50))
def test_random_equations(seed):
    g = random.Random(seed)
    names = [f"s{k}" for k in range(8)]
    learned: list[tuple[str, Size]] = []
    for name in g.sample(names, 7):  # of what is known already, as a trace learns it
        others = [n for n in names if n != name and n not in dict(learned)]
        value: Size = eager(learned, sz.symbol(g.choice(others)) * g.randint(1, 3) + g.randint(0, 2))
        learned.append((name, value))
    for name in names:
        size = sz.symbol(name) * sz.symbol(g.choice(names)) + 1
        assert lazy(learned, size) == eager(learned, size)


def test_ten_thousand_symbols_that_are_one():
    substitution = Substitution()
    for k in reversed(range(1, 10_000)):
        substitution.add(f"s{k}", sz.symbol(f"s{k - 1}"))
    found = substitution(sz.symbol("s9999"))
    assert isinstance(found, Expr) and found == sz.symbol("s0")


def test_a_size_that_is_asked_for_often_is_what_it_was():
    """From some times on it is computed by a function of its own; what lacks a value is as before."""
    n, m = sz.symbol("n"), sz.symbol("m")
    size = sz.maximum(sz.floordiv(sz.mul(n, 3) + m, 4), 2)
    for k in range(40):
        assert sz.known(size, {"n": k, "m": 5}) == max((3 * k + 5) // 4, 2)
        assert sz.evaluated(size, {"n": k}) == sz.substitute(size, {"n": k})
        with pytest.raises(KeyError, match="m"):
            sz.known(size, {"n": k})
