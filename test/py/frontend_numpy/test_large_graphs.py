"""Deep and wide functions: no stack that a long chain overflows, work in proportion to ops and arguments, and kernels
that stay of a size that compiles."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import mlirfuse
from mlirfuse.passes.segmentation import legality
from mlirfuse.schedule.cpu import kernel


def chain(count: int):
    def function(x):
        for k in range(count):
            x = x + np.float32(k % 7)
        return x

    return function, [np.ones((3, 5), np.float32)]


def sum_of_arguments(count: int):
    def function(*xs):
        total = xs[0]
        for x in xs[1:]:
            total = total + x
        return total

    return function, [np.full((3, 5), k % 11, np.float32) for k in range(count)]


def many_results(count: int):
    def function(x):
        return [x + np.float32(k) for k in range(count)]

    return function, [np.ones((3, 5), np.float32)]


def sum_of_sines(count: int):
    def function(x):
        total = np.sin(x)
        for k in range(1, count):
            total = total + np.sin(x * np.float32(k))
        return total

    return function, [np.linspace(0, 1, 15, dtype=np.float32).reshape(3, 5)]


def segmented(created) -> str:
    function, args = created
    return mlirfuse.jit(function, fallback=False).lower(*args).as_text("segmented")


def test_a_chain_of_ten_thousand_ops():
    function, args = chain(10_000)
    result = mlirfuse.jit(function, fallback=False)(*args)
    np.testing.assert_array_equal(result, np.full((3, 5), 1 + sum(k % 7 for k in range(10_000)), np.float32))


def nested(x, depth: int, containers=(lambda x: [x], lambda x: (x,), lambda x: {"in": x})):
    for k in range(depth):
        x = containers[k % len(containers)](x)
    return x


def innermost(nest):
    depth = 0
    while not hasattr(nest, "dtype"):
        nest, depth = nest["in" if isinstance(nest, dict) else 0], depth + 1
    return nest, depth


@pytest.mark.parametrize("depth", [500, 5000])
def test_arguments_and_results_nested_deep(depth):
    x = np.arange(4, dtype=np.float32)
    compiled = mlirfuse.jit(lambda nest, y: nested(innermost(nest)[0] + y, depth), fallback=False)
    for _ in range(2):
        found, levels = innermost(compiled(nested(x, depth), x))
        np.testing.assert_array_equal(found, x + x)
        assert levels == depth
    mixed = mlirfuse.jit(lambda a, b: (a["p"][0] + b[1], [], {}, [a["p"][1]]), fallback=False)
    assert mixed({"p": (x, 3)}, ([], 2.0))[1:] == ([], {}, [3])


def test_what_contains_itself_is_an_error():
    x = np.ones(3, np.float32)
    cyclic: list = [x]
    cyclic.append([cyclic])
    named: dict = {"x": x}
    named["self"] = (named,)
    for fallback in (False, True):
        first = mlirfuse.jit(lambda nest: nest[0] + 1, fallback=fallback)
        with pytest.raises(mlirfuse.TraceError, match="a list contains itself"):
            first(cyclic)
        with pytest.raises(mlirfuse.TraceError, match="a dict contains itself"):
            first(x, named)
        np.testing.assert_array_equal(first([x, [x], [x]]), x + 1)  # the same one twice is no cycle

    def around(x):
        result = [x + 1]
        result.append(result)
        return result

    with pytest.raises(mlirfuse.TraceError, match="a list contains itself"):
        mlirfuse.jit(around, fallback=False)(x)
    result = mlirfuse.jit(around)(x)  # in pieces, of which none gives the list
    assert result[1] is result
    np.testing.assert_array_equal(result[0], x + 1)


def slices(x):
    for k in range(1200):
        x = x[1:] if k % 2 else x.T
    return x


def reshapes(x):
    for k in range(1200):
        x = x.reshape((4, 5) if k % 2 else (10, 2))
    return x


@pytest.mark.thorough
@pytest.mark.parametrize("chain", [slices, reshapes])
@pytest.mark.parametrize("then", [lambda x: x, lambda x: x + 1], ids=["view", "kernel"])
def test_a_chain_of_views(chain, then):
    x = np.arange(605 * 603, dtype=np.float32).reshape(605, 603) if chain is slices else np.arange(20.0).reshape(5, 4)
    np.testing.assert_array_equal(mlirfuse.jit(lambda x: then(chain(x)), fallback=False)(x), then(chain(x)))


def test_a_thousand_arguments():
    function, args = sum_of_arguments(1000)
    np.testing.assert_array_equal(mlirfuse.jit(function, fallback=False)(*args), function(*args))


def calls_to_compile(created) -> int:
    """How many Python functions run, ours and others', from the trace to the segments."""
    count = 0

    def profile(frame, event, argument):
        nonlocal count
        count += event == "call"

    segmented(created)  # what is done once a process
    sys.setprofile(profile)
    try:
        segmented(created)
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("make", [chain, sum_of_arguments, many_results])
def test_work_is_in_proportion(make):
    """Twice as many ops, arguments or results take about twice as much work; a quadratic part would show."""
    small, large = calls_to_compile(make(100)), calls_to_compile(make(400))
    assert large <= 4.5 * small, (small, large)


def test_what_a_large_kernel_computes_often_stands_once(monkeypatch):
    """A function of its own, with the same results to the bit."""

    def compiled():
        function = mlirfuse.jit(sum_of_sines(20)[0], fallback=False)
        return function.lower(x).as_text("tiled").count("func.func private"), function(x)

    x = np.linspace(-9, 9, 77, dtype=np.float32)
    functions, found = compiled()
    monkeypatch.setattr(kernel, "OFTEN", 21)
    none, want = compiled()
    assert (functions, none) == (1, 0)
    np.testing.assert_array_equal(found, want)


def test_a_kernel_takes_no_more_than_compiles_well():
    """Sums of sines: a cost of 22 for each term."""
    terms = 3 * legality.LARGEST // 22
    assert segmented(sum_of_sines(50)).count('"fusion.segment"') == 1
    text = segmented(sum_of_sines(terms))
    assert 3 <= text.count('"fusion.segment"') <= 6
    assert legality.TOO_LARGE in text
    function, args = sum_of_sines(legality.LARGEST // 22 + 20)
    exact = function(args[0].astype(np.float64))
    np.testing.assert_allclose(mlirfuse.jit(function, fallback=False)(*args), exact, atol=1e-4)
