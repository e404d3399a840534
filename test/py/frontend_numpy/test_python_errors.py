"""Errors of Python's operators on numbers among the arguments: raised in the calls that Python raises them in, also by
a trace of other numbers, and without a trace for each number."""

import random
import re

import numpy as np
import pytest
from beside_numpy import function_of

import mlirfuse
from mlirfuse.runtime import counters

RAISING = {  # by expressions: numbers k that are fine, and those that Python refuses
    "7 % k": ((3, -2, 5), (0,)),
    "7 // k": ((3, -2, 5), (0,)),
    "7 / k": ((3, -2, 5), (0,)),
    "divmod(7, k)": ((3, -2, 5), (0,)),
    "7.5 % k": ((3, -2, 5), (0,)),
    "k // k": ((3, -2, 5), (0,)),
    "a.shape[0] % k": ((3, -2, 5), (0,)),
    "7 % (k - 2)": ((3, 1, 5), (2,)),
    "7 // (a.shape[0] - k)": ((3, 5, 1), (4,)),
    "1 / (k * k)": ((3.0, -2.0, 0.5), (0.0,)),
    "1 << k": ((3, 0, 5), (-1, -7)),
    "64 >> k": ((3, 0, 5), (-1,)),
    "k ** -1": ((3.0, -2.0, 5.0), (0.0,)),
    "0.0 ** k": ((3.0, 0.0, 2.5), (-1.0,)),
}
BODIES = {
    "used": "x = {e}\n    return a + 1, x",
    "dead": "x = {e}\n    return a + 1",
    "after a write": "a[a > 1] = 3\n    x = {e}\n    return a, x",
    "after a branch": "if a.sum() > 1:\n        a = a * 2\n    x = {e}\n    return a, x",
    "after a loop": "for i in range(len(a)):\n        a[i] = a[i] * 2 + i\n    x = {e}\n    return a, x",
}


def _outcome(f, k):
    a = np.arange(4.0)
    try:
        return f(a, k), a
    except (ArithmeticError, ValueError) as error:
        return type(error), a


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("expression", RAISING)
def test_a_trace_of_other_numbers_raises_python_s_error(expression, body):
    source = f"def f(a, k):\n    {BODIES[body].format(e=expression)}\n"
    plain, compiled = function_of(source), mlirfuse.jit(function_of(source))
    fine, refused = RAISING[expression]
    for k in (*fine, *refused, *fine, *refused):
        got, want = _outcome(compiled, k), _outcome(plain, k)
        if isinstance(want[0], type):
            assert got[0] is want[0], (k, got, want)
        else:
            for x, y in zip(*(outcome[0] if isinstance(outcome[0], tuple) else outcome for outcome in (got, want))):
                np.testing.assert_allclose(x, y, rtol=1e-14)
        np.testing.assert_array_equal(got[1], want[1])  # what was written before the error


def test_numbers_of_one_sign_share_a_specialization():
    @mlirfuse.jit
    def f(a, h, n):
        return a * (1.0 / (h * h)), 7 % n, 1 << n

    before = counters.specializations
    for k in range(1, 12):
        f(np.ones(3), k / 3, k)
    assert counters.specializations == before + 1


@pytest.mark.parametrize(
    "expression",
    [
        "1 / (h * h)",
        "1 / (2.5 - abs(-h) - 9)",
        "1 / (n + 1)",
        "1 / (n * len(a) - 0.5)",
        "h ** -0.5",
        "7.5 % h",
        "1 << n",
    ],
)
def test_a_number_new_to_a_call_finds_the_record_of_the_last_one(expression):
    f = mlirfuse.jit(function_of(f"def f(a, h, n):\n    return a * ({expression})\n"))
    plain = function_of(f"def f(a, h, n):\n    return a * ({expression})\n")
    a = np.arange(3.0)
    f(a, 0.5, 1)
    (entry,) = f._entries.values()
    missed = entry.dispatch.misses
    for k in range(2, 40):
        np.testing.assert_allclose(f(a, k / 7, k), plain(a, k / 7, k), rtol=1e-14)
    assert entry.dispatch.misses == missed


def test_an_index_new_to_a_call_finds_the_record_of_the_last_one():
    f = mlirfuse.jit(lambda a, k: a[k] * 2)
    a = np.arange(100.0)
    f(a, 7)
    (entry,) = f._entries.values()
    missed = entry.dispatch.misses
    assert [f(a, k) for k in range(1, 99)] == [2 * k for k in range(1, 99)]
    assert entry.dispatch.misses == missed
    assert f(a, -3) == 194 and f(a[:50], 3) == 6
    for k, x in ((100, a), (-101, a), (50, a[:50])):
        with pytest.raises(IndexError):
            f(x, k)


BRANCHES = [
    "a * h if h > 1 else a - h", "a * min(h, 1.5)", "a * max(2 * h - n, 1)", "a if 0 < h * n <= 4 and h != 2 else -a",
    "a * 2 if not (h - 1) else a / n", "a * (h if h >= n else n)", "a * (1 if h == 1 else h)", "a + (len(a) > n) * h",
]  # fmt: skip


@pytest.mark.parametrize("expression", BRANCHES)
def test_branches_on_numbers_are_guards(expression):
    """Of their outcomes, not of the numbers: as many traces as there are outcomes."""
    source = f"def f(a, h, n):\n    return {expression}\n"
    plain, compiled = function_of(source), mlirfuse.jit(function_of(source))
    a = np.arange(3.0)
    values = [0.25, 0.5, 1.0, 1.25, 1.5, 2.0, 3.0, -1.0, -0.0, 0.0, float("inf"), float("nan")]
    before = counters.specializations
    for _ in range(2):
        for h in values:
            for n in (1, 2, 3):
                with np.errstate(invalid="ignore"):
                    np.testing.assert_array_equal(compiled(a, h, n), plain(a, h, n), err_msg=f"{h}, {n}")
    # Where NaN decides alone, without an order, its trace is for it.
    assert counters.specializations - before <= 12
    (entry,) = compiled._entries.values()
    missed = entry.dispatch.misses
    for k in range(20):
        compiled(a, 1.25 + k / 1000, 1)
    assert entry.dispatch.misses == missed


def test_a_loop_over_a_number_ends():
    """Each comparison is a guard until they are too long: then the numbers are constants."""
    source = "def f(a, t, end):\n    while t < end:\n        a, t = a + t, t + 0.5\n    return a, t\n"
    plain, compiled = function_of(source), mlirfuse.jit(function_of(source))
    for end in (0.0, 2.0, 2.25, 60.0, 61.0):
        got, want = compiled(np.arange(3.0), 0.0, end), plain(np.arange(3.0), 0.0, end)
        np.testing.assert_array_equal(got[0], want[0])
        assert got[1] == want[1]


def _numbers(rng: random.Random) -> list:
    special = (0, 0.0, -0.0, 1, -1, True, False, 2**20, 1e308, -1e-320, float("inf"), float("nan"))
    return [rng.choice((*special, rng.randint(-4, 4), rng.uniform(-2, 2))) for _ in range(2)]


@pytest.mark.parametrize("seed", range(12))
def test_guards_of_random_computations_hold_in_every_call(seed):
    """Divisions by what is computed of numbers: results and errors are Python's, call after call."""
    rng = random.Random(seed)
    expression = "p"
    for _ in range(rng.randint(1, 4)):
        expression = rng.choice(("({e} {o} {x})", "({x} {o} {e})", "abs({e})", "(-{e})")).format(
            e=expression, o=rng.choice("+-*/"), x=rng.choice(("p", "q", "len(a)", "2", "0.5", "True"))
        )
    source = f"def f(a, p, q):\n    return a * 1, 1.0 / {expression}\n"
    plain, compiled = function_of(source), mlirfuse.jit(function_of(source))
    a = np.arange(3.0)
    for p, q in [_numbers(rng) for _ in range(40)]:
        try:
            want = plain(a, p, q)[1]
        except ArithmeticError as error:
            with pytest.raises(type(error)):
                compiled(a, p, q)
            continue
        got = compiled(a, p, q)[1]
        assert type(got) is type(want), (expression, p, q)
        np.testing.assert_allclose(got, want, rtol=1e-13, atol=1e-307, err_msg=f"{expression} of {p!r}, {q!r}")


REFUSED = [
    "x[10]", "x + np.ones(4)", "x.reshape(5, 5)", "np.sum(x, axis=5)", "np.stack([x, x[:1]])", "np.take(x, 9)",
    "x @ np.ones(7)", "np.split(x, 2)", "x.astype('zz')", "x[:0].max()", "x.__setitem__(slice(0, 2), np.ones(4))",
    "x[0, 0]", "int(x * 1)", "x << 1", "-(x > 0)", "x.nosuch", "x[0][0]", "x.sum()['a']", "len(x[0])", "list(x.sum())",
    "x[0][0] = 1", "np.select([], [], x)", "float(x[0]).nosuch",
]  # fmt: skip


@pytest.mark.parametrize("refused", REFUSED)
def test_a_handler_sees_numpys_error(refused):
    """Its class, and its text without our line of the program."""
    source = f"""def f(x):
    try:
        {refused}
    except Exception as error:
        return type(error).__name__, str(error).strip()
"""
    x = np.ones(3)
    assert mlirfuse.jit(function_of(source))(x) == function_of(source)(x)


def test_numbers_have_no_elements():
    source = """def f(x, k):
    seen = []
    try: k[0]
    except TypeError as error: seen.append(str(error))
    try: len(k)
    except TypeError as error: seen.append(str(error))
    try: list(k)
    except TypeError as error: seen.append(str(error))
    return seen, x + k
"""
    for k in (2.5, 3, True):
        assert mlirfuse.jit(function_of(source))(np.ones(3), k)[0] == function_of(source)(np.ones(3), k)[0]


def test_a_wrong_axis_is_told():
    source = """def f(x):
    try: return x.sum(axis=5)
    except np.exceptions.AxisError as error: return error.axis, error.ndim
"""
    assert mlirfuse.jit(function_of(source))(np.ones(3)) == (5, 1)
    with pytest.raises(np.exceptions.AxisError) as raised:
        mlirfuse.jit(function_of("def f(x):\n    return x.sum(axis=5)\n"))(np.ones(3))
    assert (raised.value.axis, raised.value.ndim) == (5, 1)


def test_an_error_that_leaves_the_function_names_the_line():
    def caught_before(x):
        try:
            return x[10]
        except IndexError as error:
            raise KeyError(f"none: {error}") from error

    with pytest.raises(KeyError, match=r"^'none: index 10 is out of bounds for axis 0 with size 3'$"):
        mlirfuse.jit(caught_before)(np.ones(3))
    for refused, kind in (("x[10]", IndexError), ("x + np.ones(4)", mlirfuse.ShapeError)):
        f = function_of(f"def f(x):\n    try:\n        return {refused}\n    finally:\n        pass\n")
        with pytest.raises(kind, match=rf":3: return {re.escape(refused)}"):
            mlirfuse.jit(f, fallback=False)(np.ones(3))


def test_a_power_of_a_negative_number_is_complex():
    @mlirfuse.jit
    def f(a, x, y):
        return a * 1, x**y

    for x, y in ((2.0, 0.5), (-8.0, 0.5), (-8.0, 2.0), (3.0, -0.5)):
        got = f(np.ones(3), x, y)[1]
        assert type(got) is type(x**y) and abs(got - x**y) <= 1e-14 * abs(x**y)
