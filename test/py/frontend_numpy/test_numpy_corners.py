"""Corners of NumPy's functions, each beside NumPy: empty arrays, arrays of rank 0, positions that are not there,
results that nobody may write into."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from beside_numpy import function_of

import mlirfuse

EMPTY, FLAT, NUMBER = (
    np.zeros((0, 3), np.float32),
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.array(3, np.float32),
)
SOLID = np.arange(24.0).reshape(2, 3, 4)


def outcome(function, arguments):
    """What a call gives, in words that compare: its result with all that shows of it, or its error; its warnings."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            result = function(*[np.copy(a) if isinstance(a, np.ndarray) else a for a in arguments])
            writable = isinstance(result, np.ndarray) and result.flags.writeable
            found = (type(result), result.dtype, result.shape, writable, np.asarray(result).tolist())
        except Exception as error:
            found = type(error), str(error).split("\n")[0].removeprefix("axis: ")  # ours go on with the user's line
    # NumPy's own division warns as well.
    return found, [(w.category, str(w.message)) for w in told if "invalid value" not in str(w.message)]


def check(function, *arguments):
    compiled = mlirfuse.jit(function, fallback=False)
    for _ in range(2):
        np.testing.assert_equal(outcome(compiled, arguments), outcome(function, arguments))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("x", [EMPTY, FLAT], ids=["empty", "full"])
@pytest.mark.parametrize("where", [[], np.array([], int)], ids=["list", "array"])
def test_nothing_is_taken(x, axis, where):
    check(lambda x: np.take(x, where, axis=axis), x)


@pytest.mark.parametrize("shape", [(4, 0), (0, 4), (0, 0), (4, 1)])
@pytest.mark.parametrize("mode", ["raise", "clip"])  # NumPy hangs in some of "wrap"
def test_nothing_is_there_to_take(mode, shape):
    """Whether the result is used or not."""
    x, k = np.ones(shape, np.float32), np.zeros(2, int)
    for axis in (0, 1, None):
        for function in (
            lambda x, k: np.take(x, k, axis, mode=mode),
            lambda x, k: np.take(x, k[0], axis, mode=mode),
            lambda x, k: (np.take(x, k, axis, mode=mode), x * 2)[1],
            lambda x, k: (np.take(x[:, 1:], k, axis, mode=mode), x * 2)[1],
            lambda x, k: (x[:, k], x * 2)[1],
        ):
            found, wanted = (outcome(f, (x, k))[0] for f in (mlirfuse.jit(function), function))
            assert found[0] is wanted[0] and (found[0] is IndexError or found[1:3] == wanted[1:3]), (found, wanted)


def test_axes_are_any_sequence():
    check(lambda x: x.transpose(range(3)), SOLID)
    check(lambda x: x.transpose(range(2, -1, -1)), SOLID)
    check(lambda x: x.transpose(np.array([1, 2, 0])), SOLID)
    check(lambda x: x.transpose([1, 0, 2]), SOLID)
    check(lambda x: x.transpose(None), SOLID)
    check(lambda x: np.transpose(x, range(1, 4)), SOLID)  # an AxisError
    check(lambda x: x.reshape(range(2, 5)), SOLID)


def unused_number(x, k):
    x[k]
    return x + 1


def unused_take(x, k):
    np.take(x, k, axis=1)
    return x + 1


def unused_constant(x, k):
    x[:, 2]
    np.take(x, [1, 2], axis=1)
    return x + k


@pytest.mark.parametrize("function", [unused_number, unused_take, unused_constant])
def test_positions_that_are_not_there(function):
    """An error whether what is read is used or not, in the first call and in later ones of the same kind."""
    compiled = mlirfuse.jit(function, fallback=False)
    wide, narrow = np.ones((4, 4), np.float32), np.ones((2, 2), np.float32)
    for x, k in [(wide, 1), (narrow, 1), (wide, 3), (narrow, 3), (wide, 9), (narrow, -2), (narrow, -3), (wide, -3)]:
        found, want = outcome(compiled, (x, k))[0], outcome(function, (x, k))[0]
        assert found[0] is want[0], (x.shape, k, found)


@pytest.mark.parametrize("axis", [-1, 0, 1, None])
@pytest.mark.parametrize("name", ["argsort", "sort", "cumsum", "cumprod"])
def test_sorts_and_scans_of_a_number(name, axis):
    if (name, axis) != ("cumsum", 1) and (name, axis) != ("cumprod", 1):  # NumPy's error counts a dimension more
        check(lambda x: getattr(np, name)(x, axis=axis), NUMBER)


@pytest.mark.parametrize("kind", [None, "quicksort", "stable", "mergesort"])
def test_equal_elements_are_sorted_in_numpys_order(kind):
    """Without ``kind`` NumPy does not keep the order of equal elements; it has one for them all the same."""
    x = np.random.default_rng(0).integers(0, 7, (3, 2000))
    compiled = mlirfuse.jit(lambda x: (np.argsort(x, kind=kind), np.sort(x / -2.0, 0, kind=kind)), fallback=False)
    for found, want in zip(compiled(x), (np.argsort(x, kind=kind), np.sort(x / -2.0, 0, kind=kind))):
        np.testing.assert_array_equal(found, want)


REDUCTIONS = (
    "sum prod max min any all argmax argmin mean var std ptp median average count_nonzero "
    "nansum nanprod nanmax nanmin nanmean"
)


@pytest.mark.parametrize("name", REDUCTIONS.split())
def test_reductions_of_a_number(name):
    """NumPy's ufuncs take 0 and -1 as the axis of an array of rank 0, its means do not."""
    for axis in (0, -1, (), None, (0,)):
        if name not in ("argmax", "argmin") or not isinstance(axis, tuple):
            check(lambda x, axis=axis: getattr(np, name)(x, axis=axis), NUMBER)
    compiled = mlirfuse.jit(lambda x: getattr(np, name)(x, axis=1), fallback=False)
    with pytest.raises(np.exceptions.AxisError, match="axis 1 is out of bounds"):
        compiled(NUMBER)


def test_reductions_of_a_number_as_methods():
    check(lambda x: x.sum(0), NUMBER)
    check(lambda x: x.max(axis=-1), NUMBER)
    check(lambda x: x.sum(axis=0, keepdims=True), NUMBER)
    check(lambda x: np.add.reduce(x), NUMBER)
    check(lambda x: np.maximum.reduce(x, axis=-1), NUMBER)
    check(lambda x: x.argmax(axis=()), NUMBER)  # a TypeError


@pytest.mark.parametrize("function", [np.median, np.mean])
@pytest.mark.parametrize("axis", [0, 1, None])
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (2, 3)])
def test_the_middle_of_nothing(function, axis, shape):
    """NaN and NumPy's warning, at every call."""
    check(lambda x: function(x, axis=axis), np.ones(shape, np.float32))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: np.broadcast_to(x, (4, 2, 3)),
        lambda x: np.broadcast_to(x, (2, 3)),
        lambda x: np.broadcast_to(x + 1, (4, 2, 3)),
        lambda x: np.broadcast_to(x, (4, 2, 3))[0],
        lambda x: np.broadcast_to(x, (4, 2, 3)).T,
        lambda x: np.broadcast_to(x, (4, 2, 3)).reshape(8, 3),
        lambda x: np.broadcast_to(x, (4, 2, 3)) + 1,
        lambda x: np.broadcast_to(x, (4, 2, 3)).copy(),
        lambda x: np.diagonal(x),
        lambda x: x[0],
    ],
)
def test_who_may_write_into_a_result(function):
    check(function, FLAT)


def test_a_broadcast_result_beside_another():
    x = FLAT.copy()
    repeated, other = mlirfuse.jit(lambda x: (np.broadcast_to(x, (4, 2, 3)), x * 2), fallback=False)(x)
    assert not repeated.flags.writeable and other.flags.writeable and x.flags.writeable


def raises_midway(x):
    x += 1
    if x.shape[0] == 2:
        raise RuntimeError("no")
    return x[9]


@pytest.mark.parametrize("rows, error", [(2, RuntimeError), (3, IndexError)])
def test_what_raises_midway_leaves_its_arguments_untouched(rows, error):
    x = np.zeros((rows, 2))
    with pytest.raises(error):
        mlirfuse.jit(raises_midway, fallback=False)(x)
    assert not x.any()


@pytest.mark.parametrize(
    "expression",
    ["np.transpose(k)", "np.squeeze(k)", "np.reshape(k, (1, 1))", "np.ravel(k)", "np.median(k)", "np.dot(k, k)", "np.vdot(k, k)",
     "np.inner(k, k)", "np.swapaxes([[k]], 0, 1)"],
)  # fmt: skip
@pytest.mark.parametrize("number", [1.5, math.nan, 3, True, 1 + 2j, np.float32(2), np.int8(3)])
def test_functions_of_numbers(expression, number):
    """NumPy makes arrays of Python's numbers first: results are arrays, or NumPy's numbers."""
    function = function_of(f"def f(k):\n    return {expression}\n")
    compiled = mlirfuse.jit(function)
    for _ in range(2):
        found, wanted = compiled(number), function(number)
        assert type(found) is type(wanted)
        np.testing.assert_equal(found, wanted)
        assert getattr(found, "dtype", None) == getattr(wanted, "dtype", None)


def test_an_array_made_of_a_number_is_writable_unless_broadcast():
    check(lambda k: np.broadcast_to(k, (2, 2)), 1.5)
    check(lambda k: np.transpose(k), 1.5)


HOLES = np.array([[3, np.nan, -4, np.inf], [-np.inf, 0, 1.5, -0.0]])


@pytest.mark.parametrize(
    "function",
    [
        lambda x: np.nansum(x, 1, initial=2, keepdims=True),
        lambda x: np.nansum(x, where=x > 0),
        lambda x: np.nanprod(x[:, 1:3], axis=0),
        lambda x: np.nan_to_num(x, nan=1, posinf=7),
        lambda x: (np.nan_to_num(x, copy=False, neginf=-2), x),
        lambda x: np.nan_to_num(x[0, 1]),
        lambda x: np.nan_to_num(x + 1j * x[::-1], nan=2.0),
        lambda x: np.select([x > 1, x < 0], [x, -x], 7),
        lambda x: np.select([x[0] > 1], [x], default=np.float32(2)),
        lambda x: np.isclose(x, x, equal_nan=True),
        lambda x: np.isclose(x[0, 0], 3),
        lambda x: np.ptp(x[:, 2:], axis=1),
        lambda x: np.common_type(x, x.astype("f4"))(2),
        lambda x: np.clip(x, -1, None),
        lambda x: x.clip(max=1.25),
        lambda x: np.clip(1.25, x.astype("f4"), np.float32(2)),  # NumPy's number is a double
        lambda x: np.clip(np.clip(x, -9, 9).astype("u1"), -300, 300),
        lambda x: np.clip(np.clip(x, -9, 9).astype("u1"), 300, None),  # an OverflowError
        lambda x: (np.clip(x, 0, 1, out=x), x),
        lambda x: np.fix(x),
        lambda x: np.clip(x, 0, 1),  # keeps the sign of zeros
        lambda x: np.clip(x, -1, -0.0),
        lambda x: np.clip(x, 0, 1, min=1),  # a ValueError
        lambda x: np.clip(x, 0),  # a TypeError
        lambda x: np.linalg.norm(x[:0], np.inf),
        lambda x: np.max(x[:0], initial=3),
        lambda x: np.dot(np.asfortranarray(x[:, :3]), 2),  # row-major, unlike a product of elements
        *(lambda x, n=n: np.linalg.norm(x[:, ::2], n) for n in (1, -1, np.inf, -np.inf)),
        *(lambda x, n=n: np.linalg.norm(x[:, 2:], n, axis=1, keepdims=True) for n in (0, 1, np.inf, -np.inf, "fro")),
    ],
)
def test_functions_in_numpys_own_code(function):
    check(lambda x: function(x), HOLES)


@pytest.mark.parametrize(
    "write",
    [
        lambda x, y: np.copyto(x, y),
        lambda x, y: np.copyto(x, y[0]),
        lambda x, y: np.copyto(x, 3),
        lambda x, y: np.copyto(x, 3, where=y > 0),
        lambda x, y: np.copyto(x[:, ::2], x[:, 1::2].copy(), where=[True, False]),
        lambda x, y: np.copyto(x, [1, 2, 3, 4], casting="unsafe"),
        lambda x, y: np.copyto(y, x, casting="unsafe"),
        lambda x, y: np.copyto(x, y, where=y),  # a TypeError
    ],
)
def test_copyto(write):
    def function(x, y):
        write(x, y)
        return x, y

    for kind in ("f8", "f4", "i4"):
        check(function, np.arange(8).reshape(2, 4).astype(kind), np.arange(-4, 4, dtype="i2").reshape(2, 4))
