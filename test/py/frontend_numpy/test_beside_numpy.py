"""Programs beside NumPy, made by generators: what a caller sees of a compiled call is what NumPy shows.

Each generator has a fixed part here; by hand, thousands: ``python test/py/fuzz.py COUNT FIRST numpy_overlap_programs``,
and so on.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy_loop_expressions
import numpy_order_programs
import numpy_overlap_programs
import numpy_stored_values
import numpy_ufunc_calls
import pytest
from beside_numpy import Case, differs, function_of

import mlirfuse
from mlirfuse.frontend.numpy.functions import elementwise
from mlirfuse.frontend.numpy.graph_breaks import program


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


@pytest.mark.parametrize(
    "result",
    ["np.zeros((2, 3, 4), order='F') + x", "np.maximum(x, x.astype('f4'))", "np.stack([x, x.astype(float)])",
     "np.concatenate([x, x], dtype=float)", "np.asarray(x, float) + 0", "np.array(x, float)"],
)  # fmt: skip
def test_memory_order_of_what_converts_a_broadcast_array(result):
    check(
        Case(f"def f(x):\n    return {result},\n", lambda: (np.broadcast_to(np.arange(12).reshape(3, 4), (2, 3, 4)),))
    )


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_spacing_of_extremes(dtype):
    largest, least = np.finfo(dtype).max, np.finfo(dtype).tiny
    given = np.array([np.inf, -np.inf, np.nan, 0, -0.0, 1, -2.5, largest, -largest, least, -least], dtype)
    check(Case("def f(x):\n    return np.spacing(x),\n", lambda: (given,)))


@pytest.mark.parametrize("shape", [(33, 1), (1, 1), (4, 3)])
@pytest.mark.parametrize(
    "results",
    ["x.max(1, keepdims=True), x", "x.max(1), x.max(1)", "x.max(1, keepdims=True).T, x.min(1)",
     "x.sum(0, keepdims=True).max(1, keepdims=True).min(), x.sum(1), x.any(1)",
     "np.broadcast_to(x, (2, *x.shape)).max(0), x",
     "np.max(np.rint(x).mean(0, keepdims=True), keepdims=True) - np.rint(x).mean(0, keepdims=True).max(0)"],
)  # fmt: skip
def test_reductions_of_one_element_are_new_arrays(results, shape):
    """Also one of another, which both go."""
    source = f"def f(x):\n    v = x.sum(0, keepdims=True)\n    w = v.max(1, keepdims=True)\n    return {results}, v, w, w - w.max(0)\n"
    for kind in ("f8", "i8"):
        check(Case(source, lambda: (np.random.default_rng(0).integers(-9, 9, shape).astype(kind),), ulps=4))


_WITH_AXES_OF_ONE = [
    lambda: np.ones((2, 12), "f4")[::2, ::2], lambda: np.ones((12, 2), "f4")[::2, ::2].T, lambda: np.ones((1, 6)),
    lambda: np.ones((6, 2))[:, :1], lambda: np.broadcast_to(np.ones(4), (3, 4)), lambda: np.ones((3, 4)).T[:, :1],
]  # fmt: skip


@pytest.mark.parametrize("prototype", range(len(_WITH_AXES_OF_ONE)))
@pytest.mark.parametrize("shape", ["(2, 3)", "(2, 1)", "(2, 3, 4)"])
@pytest.mark.parametrize("like", ["a", "a.T", "a[:, :1]", "a * 2"])
def test_another_shape_lies_as_the_prototype(like, shape, prototype):
    source = f"def f(a):\n    return a + 1, np.zeros_like({like}, shape={shape})\n"
    check(Case(source, lambda: (_WITH_AXES_OF_ONE[prototype](),)), calls=2)


@pytest.mark.parametrize("loop", ["", "for k in range(1): "])
def test_onto_every_other_element_as_if_copied(loop):
    """Which NumPy 2.4 does one element after the other."""
    f = function_of(f"def f(b):\n    {loop}b[::2] = b[:2500]\n")
    b = np.arange(5000.0)
    mlirfuse.jit(f)(b)
    np.testing.assert_array_equal(b[::2], np.arange(2500.0))


def test_onto_every_other_element_beside_other_slices_as_numpy():
    def f(b):
        b[1:3] = b[4:6]
        b[::2] = b[:2500]

    found, wanted = np.arange(5000.0), np.arange(5000.0)
    mlirfuse.jit(f)(found)
    f(wanted)
    np.testing.assert_array_equal(found, wanted)


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


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2), (0, 2, 1, 3)])
@pytest.mark.parametrize(
    "results",
    ["np.diagonal(a) * 2, np.tril(np.diagonal(a)), np.diagonal(a, -1)", "np.where(np.diagonal(a, 1, 1, 2) > 3, a[0, 0, 0, 0], 0)",
     "np.diagonal(a, 0, 2, 3).copy('K'), np.diagonal(a)[::-1, :1] + 1, np.diagonal(a).ravel('K')",
     "np.diagonal(np.diagonal(a)) * 2, np.diagonal(a * 2) + 1, np.diagonal(a).sum(1)"],
)  # fmt: skip
def test_what_is_computed_of_diagonals_lies_as_they_do(results, order):
    def make():
        return (np.arange(120.0).reshape(2, 3, 4, 5).transpose(order).copy().transpose(np.argsort(order)),)

    check(Case(f"def f(a):\n    return {results},\n", make), calls=2)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (1, 0, 3, 2)])
@pytest.mark.parametrize(
    "results",
    ["np.abs(a[:, k]), a[k] * 2, a[..., k] + 1", "a[k] * a[k, :1], a[:, k] == a[:, k]", "a[k, :, k] + a[k, :, k]",
     "np.take(a, k, 1), np.take(a, 1, 1), a.take(k) + a[k, k]", "a[k].T * 2, a[k][k] + 1, a[::-1, k] - 1",
     "np.cumsum(a[:, k], 0), a[:, k].sum(1), np.sort(a[k], 0)", "a[:, [k, 0]] * 1, a[k, [0, 1]] * 1, a[k].copy('K')",
     "a[k].ravel('K'), np.zeros_like(a[k]), np.concatenate([a[k], a[k]])"],
)  # fmt: skip
def test_one_index_keeps_the_order_of_the_other_dimensions(results, order):
    def make():
        a = np.empty([(2, 3, 4, 5)[d] for d in order]).transpose(np.argsort(order))
        a[...] = np.arange(120.0).reshape(2, 3, 4, 5)
        return a, 1

    check(Case(f"def f(a, k):\n    return {results},\n", make, ulps=4), calls=2)


@pytest.mark.parametrize("made", ["b", "b[1:]", "b * 2"])
@pytest.mark.parametrize(
    "again",
    ["v.view()", "v[:]", "v.squeeze()", "v.reshape(v.shape)", "v.ravel()", "np.ascontiguousarray(v)", "np.rot90(v, 0)",
     "np.asarray(v)", "v.astype(v.dtype, copy=False)", "v.T.T", "np.append(v, [])", "b[1:], b[1:], v"],
)  # fmt: skip
def test_which_results_are_one_array_and_which_show_its_memory(made, again):
    f = function_of(f"def f(b):\n    v = {made}\n    return v, {again}\n")
    b = np.ones((4, 5))

    def relations(results) -> list:
        arrays = [b, results[0], *(results[1] if isinstance(results[1], tuple) else results[1:])]
        return [(x is y, np.shares_memory(x, y)) for x in arrays for y in arrays]

    assert relations(mlirfuse.jit(f)(b)) == relations(f(b))


@pytest.mark.parametrize("kind", ["f8", "c16"])
@pytest.mark.parametrize("search", ["argmax", "argmin"])
def test_positions_of_extrema_are_row_major(search, kind):
    source = f"def f(a):\n    a += 1\n    return np.{search}(a, 0), np.{search}(a, 1, keepdims=True), a.{search}(-1)\n"
    a = np.asfortranarray(np.random.default_rng(0).integers(0, 9, (4, 4, 3)).astype(kind))
    check(Case(source, lambda: (a.copy("K"),)), calls=2)


@pytest.mark.parametrize("shape", ["(2, 3, 4)", "(4, 3)"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_joined_broadcast_arrays_lie_as_numpys(order, shape):
    """A stride of 0 is the least."""
    source = f"def f(a):\n    v = np.broadcast_to(a, {shape})\n    return np.concatenate([v, v]), np.stack([v, v], 1), v.copy()\n"
    extents = (3, 4) if shape == "(2, 3, 4)" else (4, 1)
    check(Case(source, lambda: (np.ones(extents, order=order),)), calls=2)


_LAYOUTS = {
    "F": lambda: np.asfortranarray(np.arange(24.0).reshape(4, 6)), "broadcast": lambda: np.broadcast_to(np.arange(4.0), (3, 4)),
    "transposed": lambda: np.arange(24.0).reshape(2, 3, 4).transpose(1, 2, 0), "strided": lambda: np.arange(96.0).reshape(8, 12)[::2, ::2],
}  # fmt: skip


@pytest.mark.parametrize("layout", _LAYOUTS)
@pytest.mark.parametrize(
    "results",
    ["np.select([a > 1, a > 2], [a, a * 2])", "np.median(a, 0), np.median(a, -1)", "a.ravel('K'), a.flatten('K')",
     "np.sort(a, 0), np.unique(a)", "np.sort(a, 0), np.sort(a, 0)[a > 5]", "np.partition(a, 1, 0), np.argsort(a, 0), a[a > 2]"],
)  # fmt: skip
def test_order_of_what_numpy_computes_in_steps(results, layout, monkeypatch):
    monkeypatch.setattr(program, "SMALL", 0)
    check(Case(f"def f(a):\n    return {results},\n", lambda: (_LAYOUTS[layout](),)), calls=2)


@pytest.mark.parametrize(
    "number",
    ["{}.T", "np.transpose({})", "{}.squeeze()", "np.squeeze({})", "np.reshape({}, ())", "{}.view()", "{}.reshape(1)",
     "np.flip({})", "np.asarray({})", "{}[...]", "{}[()]", "{}[None]", "np.copy({})", "np.ravel({})", "np.array({}).T"],
)  # fmt: skip
def test_views_of_numbers_are_numbers(number):
    source = f"def f(a):\n    return {number.format('a[1]')}, {number.format('a.sum()')}, a + 1\n"
    check(Case(source, lambda: (np.arange(4.0),)))


@pytest.mark.parametrize("value", [1, 1.0, 1e300, True, np.float64(1), np.float32(1)])
@pytest.mark.parametrize("kind", ["f4", "f2", "i8"])
def test_close_to_a_number_of_python_in_the_type_of_the_array(kind, value):
    source = "def f(a, v):\n    return np.isclose(a, v), np.isclose(v, a), np.isclose(a, v, 1e-3, 0)\n"
    check(Case(source, lambda: (np.array([1, 1.00001, 1.001, 0, 3]).astype(kind), value)))


def test_the_order_of_strides_is_a_condition():
    """Two arrays with gaps whose dimensions lie in another order are two kinds."""
    f = mlirfuse.jit(function_of("def f(a):\n    return a * 2\n"))
    for a in (np.ones((20, 30))[:10, :12], np.ones((30, 40)).T[:10, :12], np.ones((20, 30))[:10, :12]):
        assert f(a).strides == (a * 2).strides


_GENERATORS = {numpy_ufunc_calls: 150, numpy_stored_values: 120, numpy_loop_expressions: 120}


@pytest.mark.parametrize(
    ("generator", "seed"),
    [pytest.param(g, seed, id=f"{g.__name__}-{seed}") for g, count in _GENERATORS.items() for seed in range(count)],
)
def test_generated_programs(generator, seed):
    """Functions over types and keywords, what is stored of values, and expressions in loops."""
    check(generator.generate(seed))


@pytest.mark.parametrize("kind", ["i1", "u8", "f4", "c8"])
@pytest.mark.parametrize(
    "statement",
    ["a[0] = 1j", "a[0] = np.array([2])", "a[1:3] = [[1, 2]]", "a[0] += [1]", "a[0] = np.uint8(200)", "a[[0]] = np.inf",
     "a.fill([1])", "a.fill(a * 2)", "a.fill(1j)", "a = a.sum(initial=[1])", "a = a.sum(initial=np.array(1j))",
     "a = np.array([a[0], -(2**63)], a.dtype)", "a = np.array([a[0], n])", "a = np.stack([a[0], n])", "a[..., 0] = (3,)",
     "a = np.pad(a, 1, constant_values=a)", "a = np.pad(a, 1, constant_values=1e300)", "a = np.nan_to_num(a, nan=1j)",
     "for i in range(1): a[0] = a[1]; a = np.full(3, -n, a.dtype)"],
)  # fmt: skip
def test_what_numpy_refuses_to_store(statement, kind):
    """Or stores in another type than the array's."""
    source = f"def f(a, n):\n    {statement}\n    return a\n"
    check(Case(source, lambda: (np.array([0, 1, 2, 3]).astype(kind), 5), strides=False, sharing=False))


@pytest.mark.parametrize("statement", ["a.fill([0, 2])", "a.fill([])", "a[1] = (0, a[0])", "a[0] = []"])
def test_a_bool_is_whether_a_sequence_has_elements(statement):
    source = f"def f(a):\n    {statement}\n    return a\n"
    check(Case(source, lambda: (np.array([True, False, True]),), strides=False, sharing=False))


@pytest.mark.parametrize("kind", ["i1", "i4", "u1", "f4"])
@pytest.mark.parametrize(
    "statement",
    ["a[0] = v", "a[:] = v", "a[..., 1:] = v", "a.fill(v)", "a[a > 1] = v", "a[[0, 1]] = v",
     "a = np.pad(a, 1, constant_values=v)"],
)  # fmt: skip
def test_numbers_of_numpy_are_stored_as_numpy_stores_them(statement, kind):
    """Each value by the compiled function of those before it: one that does not fit is refused then, too."""
    f = function_of(f"def f(a, v):\n    {statement}\n    return a\n")
    compiled = mlirfuse.jit(f, fallback=False)
    for given in ([3, 100, -4, 300, 2**40, 5], [2.5, -7.0, 300.0, np.nan, 1.0]):
        for value in np.array(given):
            a = np.arange(4).astype(kind)
            try:
                with np.errstate(all="ignore"):
                    wanted = f(a.copy(), value)
            except (OverflowError, ValueError) as error:
                with pytest.raises(type(error)):
                    compiled(a, value)
            else:
                np.testing.assert_array_equal(compiled(a, value), wanted)


@pytest.mark.parametrize("value", ["2**64", "-2**64", "2**63", "300", "-1", "i - 2"])
@pytest.mark.parametrize("kind", ["?", "i1", "u1", "i8", "u8", "f4"])
@pytest.mark.parametrize(
    "used",
    ["r = a < {}; s = a == {}", "r = {} >= a[1]; s = a[1] != {}", "r = a + {}; s = a", "np.copyto(a, {}); r = s = a"],
)
def test_ints_of_python_in_loops(used, kind, value):
    """Comparisons are by value; else the int becomes the array's type."""
    used = used.replace("{}", value)
    source = f"def f(a):\n    for i in range(2):\n        a[0] = a[1]\n        {used}\n    return r, s, a\n"
    check(Case(source, lambda: (np.array([0, 1, 2, 3]).astype(kind),), sharing=False))


@pytest.mark.parametrize("kind", ["i1", "u1", "i4", "u4", "i8", "u8"])
def test_reciprocals_of_integers_in_loops(kind):
    source = """def f(a, n):
    r, i = [], 0
    while i < n:
        a[0] = 0
        r.append((np.reciprocal(i), np.reciprocal(a[i]), np.reciprocal(a[: i + 1])))
        i += 1
    return r
"""
    check(Case(source, lambda: (np.array([0, 1, 2, 255, 5]).astype(kind), 5), sharing=False))


@pytest.mark.parametrize("kind", ["c8", "c16"])
@pytest.mark.parametrize(
    "results", ["a ** -1, a ** -3", "np.power(a, -2), a ** 2", "a[i] ** n", "np.power(a[i], -n - 1), a[i] ** -2"]
)
def test_powers_of_a_complex_zero(results, kind):
    """Negative ones are NaN, not infinite."""
    source = f"""def f(a, n):
    r = []
    for i in range(len(a)):
        a[0] = a[1]
        r.append(({results},))
    return r, a ** -n, a ** -4
"""
    for n in (-3, -1, 2):
        check(Case(source, lambda: (np.array([1, 0, -0.0, 2j, 1 + 1j]).astype(kind), n), ulps=8, sharing=False))


@pytest.mark.parametrize("value", [200, 300, -1, 2**31, 2**32, 2**63])
@pytest.mark.parametrize("kind", ["u1", "i4", "u8"])
@pytest.mark.parametrize("given", ["v", "{}"])
def test_ints_of_python_beyond_the_type_of_the_other_branch(given, kind, value):
    source = f"def f(a, v):\n    return np.where(a > 1, a, {given.format(value)}), np.where(a > 1, 2, a)\n"
    check(Case(source, lambda: (np.arange(4).astype(kind), value)))


@pytest.mark.parametrize("value", [2**31, 2**63, 2**64, -(2**63), -(2**70), 300])
@pytest.mark.parametrize("kind", ["?", "i1", "u8", "f4", "c16"])
@pytest.mark.parametrize("given", ["v", "{}"])
def test_ints_of_python_that_fill_arrays(given, kind, value):
    """They have to fit a C integer, of bools too."""
    value_text = given.format(value)
    source = f"def f(a, v):\n    return np.full_like(a, {value_text}), np.full(a.shape, {value_text}, '{kind}')\n"
    check(Case(source, lambda: (np.arange(4).astype(kind), value)))


def test_casts_beyond_a_type_are_not_compared(monkeypatch):
    """NumPy's vectors and the elements after them give different integers for such floats."""
    case = Case("def f(a):\n    return np.round(a, -1)\n", lambda: (np.full(9, 2**32 - 1, np.uint32),), strides=False)
    assert differs(case) is None
    fits = dataclasses.replace(case, make=lambda: (np.full(9, 2**32 - 9, np.uint32),))
    monkeypatch.setattr(mlirfuse, "jit", lambda f: lambda *args: f(*args) + 1)
    assert differs(case) is None and differs(fits)


def test_ints_of_python_are_refused_where_numpy_refuses_them(monkeypatch):
    """As ``np.where`` does from NumPy 2.5 on."""
    monkeypatch.setattr(elementwise, "WHERE_WRAPS", False)
    f = mlirfuse.jit(lambda a, v: np.where(a > 1, a, v), fallback=False)
    a = np.arange(4, dtype=np.uint8)
    np.testing.assert_array_equal(f(a, 200), np.array([200, 200, 2, 3], np.uint8))
    for value in (-1, 256, 2**31, 2**63):
        with pytest.raises(OverflowError, match=f"Python integer {value} out of bounds for uint8"):
            f(a, value)


@pytest.mark.parametrize("n", [3, np.int64(3), np.uint8(2), True, 2.5, np.float32(2)])
@pytest.mark.parametrize(
    "repeated",
    ["[2] * n, n * (1, 2)", "np.array([2] * n) * a[1]", "[a[1]] * n", "n == [3], n != [3]", "n + [1]",
     "n < [1]", "[1, 2] * a.argmax(), (1, 2) * a[2]", "n * [[1, 2], [3]]", "a * [n] * 4", "a[2] + [1, 2], np.multiply([1, 2], n)"],
)  # fmt: skip
def test_numbers_repeat_sequences(repeated, n):
    """As Python's and NumPy's numbers do; arrays multiply their elements."""
    source = f"def f(a, n):\n    return {repeated},\n"
    for kind in ("i4", "f8"):
        check(Case(source, lambda: (np.arange(4).astype(kind), n), sharing=False, specializations=False))


@pytest.mark.parametrize("kind", ["i4", "u4", "i8", "f4", "c8"])
@pytest.mark.parametrize(
    "value",
    ["np.positive(i)", "np.positive(i * 0.5)", "np.conjugate(i)", "np.conj(i * 1j)", "np.negative(i), np.absolute(i), np.square(i)",
     "np.positive(a), np.conj(a)", "a @ a", "np.dot(a, a)", "a.dot(a)", "np.vdot(a, a), np.inner(a, a)", "a @ a.astype('i2')"],
)  # fmt: skip
def test_types_of_numbers_in_loops(value, kind):
    source = f"def f(a, n):\n    for i in range(n):\n        a[0] = a[1]\n        r = {value}\n    return r\n"
    check(Case(source, lambda: (np.array([0, 1, 2, 3, 5, 7]).astype(kind), 4), ulps=4, sharing=False))


@pytest.mark.parametrize("kind", ["i8", "f8", "?", "c16"])
@pytest.mark.parametrize(
    "kept",
    ["np.count_nonzero(a)", "np.linalg.norm(a, 1)", "np.linalg.norm(a, np.inf)", "a[i] ** 2", "a ** 2", "np.square(a)",
     "np.conj(a[i])", "np.meshgrid(a, a)", "(np.sort(a), i)", "np.sort(a)", "(i, (np.sort(a)[::2], a + a))", "a.real",
     "np.cross(a[:3], a[:3])", "np.cov(a[None])", "[np.linalg.svd(np.outer(a, a))[1]]"],
)  # fmt: skip
def test_what_a_loop_appends(kept, kind):
    """Values of their types, in memory that nothing else takes, and which later writes reach."""
    source = f"""def f(a):
    kept, i = [], 0
    while i < 5:
        a[i] = a[i] + a[1]
        t = {kept}
        kept.append(t)
        if isinstance(t, np.ndarray) and t.ndim:
            t[0] = a[1]
        i += 1
    return kept, t
"""
    check(Case(source, lambda: (np.arange(6).astype(kind),), ulps=16, strides=False), calls=2)


def test_names_of_one_array_stay_names_of_one_array():
    source = "def f(a):\n    for i in range(2): a[i] = 1; t = u = a * 2; v = t\n    return t is u, v is u, t is a, t\n"
    check(Case(source, lambda: (np.arange(4.0),)), calls=2)


def _numbers(*kinds: str):
    return lambda: tuple(np.array([0, 1, 2, 3, 5, 7]).astype(k) for k in kinds)


_VALUES = [
    ("np.lcm(a * 2**59, b)", "i8", "i8"), ("np.reciprocal(a)", "i4", "i4"), ("np.reciprocal(a)", "u1", "u1"),
    ("np.spacing(-a), np.spacing(np.zeros(2, 'f4') * a[1] * -1)", "f4", "f4"), ("np.spacing(-a)", "f2", "f2"),
    ("np.linspace(a[0], a[1], 3)", "f4", "f4"), ("np.linspace(a[0], a[1], 3)", "f2", "?"), ("np.linspace(a[0], b[1], 3)", "c8", "i2"),
    ("np.angle(a)", "i1", "f4"), ("np.angle(b)", "f8", "f4"), ("np.nanstd(a + 1j), np.nanvar(a * 1j, ddof=1)", "c16", "f8"),
    ("np.nanvar(a, 0, dtype='f4'), np.nanstd(a, dtype='c16')", "c16", "f8"),
    ("np.var(a, dtype='c8'), a.std(dtype='c16')", "c8", "f8"), ("np.var(a, dtype='c8')", "f4", "f8"),
    ("np.power(a, b)", "i8", "i8"), ("np.power(a, -b)", "i8", "i8"), ("a ** -1", "i8", "i8"), ("np.power(a + 2j, b)", "c16", "i8"),
    ("np.logical_or(a, 1, dtype='f4')", "i8", "i8"), ("np.heaviside(a, 1, dtype='i4')", "i8", "i8"), ("np.clip(a, 0, 1, dtype='i4')", "f8", "f8"),
    ("np.add.reduce(a, initial=1j)", "i8", "i8"), ("np.add.reduce(a, initial=1.5)", "i8", "i8"), ("np.max(a, initial=300)", "u1", "u1"),
    ("np.concatenate([a, b], dtype='?', casting='no')", "i8", "i8"), ("np.select([a > 2], [-1], a)", "u1", "u1"), ("np.round(a > 1, 1)", "i8", "i8"),
    ("np.where(a > 1, a, 2**70)", "u1", "u1"), ("np.add(a, b, casting='no')", "i8", "f8"), ("np.add(a, b, order='F')", "i8", "f8"),
    ("np.add.at(a, [0, 1, 1], True), a", "?", "?"), ("np.add.at(a, [0, 1], 1.5), a", "i8", "i8"), ("a.astype('u1', casting='safe')", "i8", "i8"),
    ("np.power(a, 2, casting='equiv')", "u2", "u2"), ("np.power(a, 2, casting='safe')", "f4", "f4"), ("np.pad(a, 1, constant_values=((300, 0),))", "i1", "i1"),
]  # fmt: skip


@pytest.mark.parametrize("expression, first, second", _VALUES)
def test_values_types_and_refusals(expression, first, second):
    check(
        Case(
            f"def f(a, b):\n    return {expression},\n",
            _numbers(first, second),
            ulps=4,
            sharing=False,
            specializations=False,
        )
    )


@pytest.mark.parametrize("kind", ["?", "i1", "u1", "i8", "u8", "f2", "f4", "f8", "c8"])
@pytest.mark.parametrize(
    "value",
    [
        10,
        300,
        -1,
        2.5,
        0.1,
        2**63,
        True,
        np.int64(10),
        np.uint8(3),
        np.float64(0.1),
        np.float32(0.1),
        np.arange(4),
        np.ones(4) / 3,
    ],
    ids=repr,
)
def test_sums_at_indices_are_rounded_as_numpys(value, kind):
    """Also where NumPy adds integers of 64 bits in float64."""
    source = f"def f(a, i, v):\n    np.add.at(a, i, {value!r} if v is None else v)\n    return a\n"

    def make(given) -> tuple:
        large = [2**62, 3, 100] if kind in ("i8", "u8") else [250, 3, 100]
        return np.array(large).astype(kind), np.array([0, 0, 1, 0]), given

    for given in (value, *([None] if isinstance(value, (int, float)) and not isinstance(value, np.generic) else [])):
        check(Case(source, lambda given=given: make(given), sharing=False))


@pytest.mark.parametrize("call, value", [("exp", 1000.0), ("sinh", 1e4), ("log", 0.0), ("log", -np.inf), ("sqrt", -1.0), ("sin", np.inf),
                                         ("exp", np.inf), ("exp", np.nan), ("log1p", -1.0)])  # fmt: skip
def test_errors_of_math_in_loops(call, value):
    source = f"def f(x):\n    for i in range(len(x)): x[i] = math.{call}(x[i])\n    return x\n"
    check(Case(source, lambda: (np.array([value, 1.0]),), ulps=4))


@pytest.mark.parametrize("word", ["raise", "warn", "ignore"])
@pytest.mark.parametrize("loop", ["", "for k in range(len(x)): x[k] = 1 / x[k]\n            "])
def test_errstate_takes_effect(word, loop):
    source = f"""def f(x):
    try:
        with np.errstate(all="{word}"):
            {loop}return 1 / x + 1
    except FloatingPointError:
        return x * 0 - 7
"""
    check(Case(source, lambda: (np.array([0.0, 1.0]),), sharing=False))


def test_many_parts_are_joined_in_runs():
    """So that no kernel looks for its elements in hundreds of operands."""

    def joined(x):
        return np.concatenate([x[k : k + 3] * k for k in range(150)])

    x = np.arange(200.0)
    lowered = mlirfuse.jit(joined).lower(x)
    most = max(
        line.partition(") {axis")[0].count("%")
        for line in lowered.as_text("fusion").splitlines()
        if "concatenate" in line
    )
    assert most < 20
    np.testing.assert_array_equal(mlirfuse.jit(joined)(x), joined(x))
