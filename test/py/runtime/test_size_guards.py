"""Guards on sizes are compiled once they are asked often: calls that no record runs ask hundreds of them."""

import numpy as np

import mlirfuse
from mlirfuse.core import deadline
from mlirfuse.ir import sizes as sz
from mlirfuse.runtime.signature import SizeGuard


def test_guards_are_evaluated_by_compiled_functions(monkeypatch):
    n = sz.symbol("s0")
    guard = SizeGuard(sz.floordiv(sz.mul(n, 3), 2), "<", sz.mul(n, n))
    for size in range(20):
        assert guard.holds({"s0": size}) == (size * 3 // 2 < size * size)

    def slow(*_):
        raise AssertionError("a frequent size is substituted symbolically")

    monkeypatch.setattr(sz, "substitute", slow)
    assert guard.holds({"s0": 5}) and not guard.holds({"s0": 0})


def test_later_calls_of_what_takes_too_long_to_compile_substitute_nothing(monkeypatch):
    def halves(x):
        if len(x) == 1:
            return x
        left, right = halves(x[::2]), halves(x[1::2])
        return np.concatenate([left + right, left - right])

    def too_long(*_, **__):
        raise deadline.CompileError("it takes too long")

    monkeypatch.setattr("mlirfuse.frontend.numpy.traced.TracedSpecialization.build", too_long)
    compiled, x = mlirfuse.jit(halves), np.arange(16.0)
    for _ in range(20):
        np.testing.assert_array_equal(compiled(x), halves(x))
    substituted = []
    substitute = sz.substitute
    monkeypatch.setattr(sz, "substitute", lambda size, values: substituted.append(size) or substitute(size, values))
    np.testing.assert_array_equal(compiled(x), halves(x))
    assert not [size for size in substituted if not isinstance(size, int)]
