"""What the user's code asks of values themselves, where a trace has stand-ins for them: see stand_in_programs.py, of
which a fixed part runs here."""

import json
import operator
import random
import types
import warnings

import numpy as np
import pytest
import stand_in_programs
from beside_numpy import function_of

import mlirfuse
from mlirfuse.frontend.numpy.rebuild import with_our_names

_CHOSEN = random.Random(59).sample(stand_in_programs.programs(), 64)


@pytest.mark.parametrize("part", range(8))
def test_generated_programs(part):
    for value, question, guarded in _CHOSEN[part::8]:
        report = stand_in_programs.differs(value, question, guarded, 3000)
        assert report is None, report


def refused(a):
    if a.mean() < 0:
        raise ValueError(f"mean {a.mean()} of {a.shape}", a.shape[0])
    return a * 2


@pytest.mark.parametrize("size", [4, 4000])
def test_the_text_of_the_users_own_errors(size):
    compiled, x = mlirfuse.jit(refused), np.full(size, -2.0)
    for _ in range(2):
        with warnings.catch_warnings(), pytest.raises(ValueError, match=rf"mean -2.0 of \({size},\)") as error:
            warnings.simplefilter("ignore")
            compiled(x)
        assert error.value.args == (f"mean -2.0 of ({size},)", size)
    assert np.array_equal(compiled(-x), x * -2)


def test_a_text_that_always_differs_runs_by_numpy():
    """Not a trace for each text."""
    compiled = mlirfuse.jit(lambda a: (f"{a.sum():.3f}", a + 1))
    with pytest.warns(UserWarning, match="the text of an array or number differs"):
        for k in range(20):
            a = np.full(3000, k / 7)
            text, result = compiled(a)
            assert text == f"{a.sum():.3f}" and np.array_equal(result, a + 1)


def test_one_array_given_twice():
    """It is a specialization of its own, in whatever order calls come; a view of it is another object."""

    def f(x, y):
        return x + 1 if x is y else x - 1

    x, compiled = np.arange(3000.0), mlirfuse.jit(f, fallback=False)
    for args in ((x, x), (x, x[:]), (x, x + 1), (x, x), (x[:], x), (x, x + 1)) * 2:
        assert np.array_equal(compiled(*args), f(*args))
    assert np.array_equal(compiled(np.empty(0), np.empty(0)), np.empty(0))


def test_identity_with_what_is_around_the_function():
    """It cannot be checked at each call: such a function runs by NumPy."""
    table, nothing = np.arange(3000.0), object()
    compiled = mlirfuse.jit(lambda x, other=nothing: (x is table, other is nothing, x + 1))
    with pytest.warns(UserWarning, match="identity of an array from around"):
        assert compiled(table)[:2] == (True, True)
    assert compiled(table + 1, table)[:2] == (False, False) and compiled(table)[:2] == (True, True)


def test_bools_of_python_and_numpy_are_two_kinds():
    compiled = mlirfuse.jit(lambda x, k: (k is True, isinstance(k, bool), x + k), fallback=False)
    x = np.ones(3000)
    for k in (True, np.True_, False, np.False_, True):
        first, second, third = compiled(x, k)
        assert (first, second) == (k is True, isinstance(k, bool)) and np.array_equal(third, x + k)


def test_is_keeps_its_meaning_where_nothing_is_traced():
    def f(x, y):
        return [a is b for a, b in ((x, y), (x, x), (None, y))], x is not y

    names = {"__builtins__": {"__import__": lambda name, *rest: (rest[-1] is rest[-2]) == (name == "mlirfuse is")}}
    created = types.FunctionType(with_our_names(f.__code__, ()), names)
    one, two = object(), object()
    assert created(one, two) == f(one, two) and created(one, one) == f(one, one) and created(one, None) == f(one, None)


def test_handlers_that_catch_everything_hide_no_refusal():
    """What is no error in NumPy is none here, though the function catches all errors."""

    def f(a):
        try:
            return np.unique(a), a.tobytes()[:1]
        except Exception:
            return None

    a = np.ones(3000)
    got, first = mlirfuse.jit(f)(a)
    assert got.tolist() == [1.0] and first == b"\0"


@pytest.mark.parametrize("f", [
    lambda x: x[(1, 2), :] * 2, lambda x: x[range(3)] + 1, lambda x: x[:, (0, -1)], lambda x: x[(), :],
    lambda x: x[(1, 2), (0, 1)],
])  # fmt: skip
def test_tuples_within_an_index_are_positions(f):
    x = np.arange(5000.0).reshape(100, 50)
    assert np.array_equal(mlirfuse.jit(f, fallback=False)(x), f(x))


def test_programs_by_the_array_api_standard():
    def f(v):
        xp = v.__array_namespace__()
        out = xp.zeros(v.shape[0], device=v.device)
        out[:] = xp.sum(xp.exp(v - xp.max(v, axis=-1, keepdims=True)), axis=-1)
        return xp.astype(xp.concat([out, xp.asarray([1.0])]), xp.float32)

    x = np.random.default_rng(0).random((30, 200))
    compiled = mlirfuse.jit(f, fallback=False)
    assert np.allclose(compiled(x), f(x)) and compiled(x).dtype == np.float32


def test_code_that_is_not_the_users_has_no_hooks():
    """As docs/reference/limits.md says: C code sees that a computed number is no float."""
    compiled = mlirfuse.jit(lambda a: (json.JSONEncoder(default=str).encode([a.mean()]), a + 1))
    assert compiled(np.ones(3000))[0] in ('["1.0"]', "[1.0]")
    assert mlirfuse.jit(lambda a: (json.dumps([a.mean()], default=str), a + 1))(np.ones(3000))[0] == "[1.0]"


def test_identity_as_a_function():
    f = lambda x, y: (operator.is_(x, y), operator.is_not(x, x), x + y)  # noqa: E731
    x, compiled = np.ones(3000), mlirfuse.jit(f, fallback=False)
    for args in ((x, x), (x, x[:]), (x, x)):
        assert compiled(*args)[:2] == f(*args)[:2]


def test_numpy_bools_decide_and_arrays_of_no_dimensions_show_as_arrays():
    def chosen(a, b, flag):
        try:
            return (b if flag else a) * 2, "none"
        except Exception as error:
            return a, type(error).__name__

    a, f = np.arange(4.0), mlirfuse.jit(chosen)
    for flag in (np.True_, np.False_, True, False, np.float32(0), np.int8(2)):
        found, error = f(a, a + 1, flag)
        assert error == "none" and np.array_equal(found, chosen(a, a + 1, flag)[0])

    def shown(z):
        return repr(z), str([z]), f"{z!r}", z + 1

    for z in (np.array(4.0), np.array(3, np.int16), np.array(True)):
        assert mlirfuse.jit(shown)(z)[:3] == shown(z)[:3]


def test_relative_imports_within_the_function():
    scope = {"__name__": "numpy.program", "__package__": "numpy"}
    exec("def f(x):\n    from . import pi\n    return x * pi", scope)
    f = mlirfuse.jit(scope["f"], fallback=False)
    np.testing.assert_array_equal(f(np.arange(3.0)), np.arange(3.0) * np.pi)


def test_numpys_functions_that_are_traced_as_its_code_are_those_of_its_views():
    x = np.arange(12.0).reshape(3, 4)
    for program in (
        lambda x: np.moveaxis(x, 0, 1),
        lambda x: np.rollaxis(x, 1),
        lambda x: np.flip(x, 1),
        lambda x: np.split(x, 2, 1)[1],
        lambda x: np.atleast_3d(x),
        lambda x: np.diff(x, 0),
    ):
        result = mlirfuse.jit(program, fallback=False)(x)
        np.testing.assert_array_equal(result, program(x))
        assert np.may_share_memory(result, x) and result.strides == program(x).strides


_ATTRIBUTES = [
    "real", "imag", "conjugate()", "is_integer()", "as_integer_ratio()", "hex()", "numerator", "denominator",
    "bit_length()", "bit_count()", "shape", "ndim", "dtype", "T", "size", "item()", "tolist()", "conj()",
    "sum()", "astype(float)", "nbytes", "byteswap()", "flat", "of_no_number",
]  # fmt: skip


@pytest.mark.parametrize(
    "number", ["x", "x + 1", "x * a.shape[0]", "a.shape[0]", "a.sum()", "float(a[0])", "int(a[1])"]
)
def test_attributes_of_numbers(number):
    """Python's numbers have Python's attributes, with Python's types, and none of NumPy's."""
    lines = [f"    try: found.append(x.{name})\n    except AttributeError: found.append(-1)\n" for name in _ATTRIBUTES]
    ours = [
        function_of(f"def f(a, x):\n    found, x = [], {number}\n{line}    return found, a + 1\n") for line in lines
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for f, name in zip(ours, _ATTRIBUTES, strict=True):
            compiled, a = mlirfuse.jit(f), np.array([1.0, 3.0])
            for x in (3, 2.5, True, 1 + 2j, -7, 2.0, np.float32(2)):
                assert repr(compiled(a, x)) == repr(f(a, x)) or "object at" in repr(f(a, x)), (name, x)


def test_parts_of_complex_arguments_share_a_specialization():
    def f(a, x):
        return a * x.real + x.imag, x.conjugate(), (x * x).imag

    compiled, a = mlirfuse.jit(f, fallback=False), np.ones(3)
    compiled(a, 1 + 2j)
    before = mlirfuse.counters.specializations
    for k in range(5):
        assert repr(compiled(a, k - 2j)) == repr(f(a, k - 2j))
    assert mlirfuse.counters.specializations == before
