"""Arrays that a function makes with the user's own NumPy, and writes traced values into."""

import functools
import types

import numpy as np
import pytest
from numpy import empty as make_empty
from numpy import zeros

import mlirfuse

X = np.random.default_rng(1).standard_normal((4, 6))


def check(fn, *args):
    """``fn`` compiled gives what it gives under NumPy, twice, in arrays of its own, and compiles."""
    expected = fn(*[a.copy() if isinstance(a, np.ndarray) else a for a in args])
    compiled = mlirfuse.jit(fn, fallback=False)
    for _ in range(2):
        got = compiled(*[a.copy() if isinstance(a, np.ndarray) else a for a in args])
        ours, theirs = (r if isinstance(r, (tuple, list)) else [r] for r in (got, expected))
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs):
            assert type(a) is type(b) and np.asarray(a).dtype == np.asarray(b).dtype
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)
            if isinstance(a, np.ndarray):
                a[...] = 7  # what the caller writes is not seen by the next call


def row_sums(x):
    out = np.empty(x.shape[0])
    for i in range(x.shape[0]):
        out[i] = x[i].sum()
    return out


def laplace(u):
    out = np.zeros(u.shape)
    out[1:-1, 1:-1] = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:] - 4 * u[1:-1, 1:-1]
    return out


def rotation(x):
    c, s = np.cos(x[0, 0]), np.sin(x[0, 0])
    return np.array([[c, -s], [s, c]]) @ x[:2]


def in_a_helper(x):
    return row_sums(x) * 2


def imported_names(x):
    out = zeros((2, 2))
    out[0, 0] = x.sum()
    other = make_empty(3)
    other[:] = x[0, :3]
    return out, other


def imported_inside(x):
    import numpy as other_name
    from numpy import full

    out, more = other_name.ones(3), full((3,), 2.5)
    out[0], more[1] = x[0, 0], x[1, 1]
    return out + more


def nested(x):
    def every_second(y):
        out = np.ones_like(y)
        out[::2] = y[::2]
        return out

    return every_second(x) + sum(every_second(row).sum() for row in x)


def weights(x):
    w = np.array([0.25, 0.5, 0.25])
    w[1] = x[0, 0]
    return w * x[:3, 0]


def grids(x):
    gx, gy = np.meshgrid(x[0], x[1])
    return gx * gy + np.linspace(0, 1, 6), np.arange(4) + x[:, 0], np.linspace(x[0, 0], x[1, 1], 5)


def unit_row(x):
    m = np.eye(4)
    m[0] = x[0, :4]
    return m @ x


def positions(x):
    order = np.array([2, 0, 1])
    return x[order] + x[order[::-1]]


def shapes(x):
    half = np.array(x.shape) // 2
    return x.reshape(np.array(x.shape)[::-1]) + 1, x[: half[0], : half[1]] + 1


def copies(x):
    a = np.zeros(3)
    a[:] = [1, 2, 3]
    b = a.copy()
    view = b[1:]
    view += x[0, 0]
    return a, b


def constants_only(x):
    return x + 1, np.zeros(3), np.linspace(0, 1, 4), np.arange(x.shape[0])


def gathered(x):
    return np.asarray([row.max() for row in x])


def histogram(x):
    out = np.zeros(3, dtype=np.int64)
    for k in np.arange(3):
        out[k] = (x > k - 1.0).sum()
    return out


def made_then_reduced(x):
    return x * np.ones((3,)).sum() + np.full((6,), 2).max()


PROGRAMS = [
    row_sums,
    laplace,
    rotation,
    in_a_helper,
    imported_names,
    imported_inside,
    nested,
    weights,
    grids,
    unit_row,
    positions,
    shapes,
    copies,
    constants_only,
    gathered,
    histogram,
    made_then_reduced,
]


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda f: f.__name__)
def test_programs(fn):
    check(fn, X)


def test_of_closures_and_partials():
    module = types.ModuleType("made_helpers")
    exec(
        "import numpy as np\ndef first(x):\n    out = np.zeros(2)\n    out[0] = x[0, 0]\n    return out",
        module.__dict__,
    )
    library, scale = np, 3.0

    def closed(x, times):
        out = library.zeros_like(x)
        out[0] = x[0] * scale * times
        return out + module.first(x)[0]

    check(functools.partial(closed, times=2.0), X)


def test_of_methods():
    class Model:
        def __init__(self):
            self.w = np.arange(6.0)

        def step(self, x):
            out = np.zeros(x.shape)
            out[0] = x[0] * self.w
            return out

    check(Model().step, X)


def test_another_compiled_function_makes_them():
    inner = mlirfuse.jit(row_sums)
    check(lambda x: inner(x) + 1, X)


def test_new_sizes_run_on_one_compilation():
    compiled = mlirfuse.jit(laplace, fallback=False)
    compiled(X)
    before = mlirfuse.counters.specializations
    for shape in ((5, 9), (33, 17)):
        x = np.random.default_rng(2).standard_normal(shape)
        np.testing.assert_allclose(compiled(x), laplace(x), rtol=1e-12, atol=1e-14)
    assert mlirfuse.counters.specializations == before


def test_results_that_are_one_object_stay_one():
    def twice(x):
        out = np.zeros(3)
        return out, out, x + 1

    a, b, _ = mlirfuse.jit(twice)(X)
    assert a is b


def test_outside_arrays_are_given_as_they_are():
    table = np.arange(3.0)

    def with_table(x):
        return x + 1, table

    compiled = mlirfuse.jit(with_table)
    assert compiled(X)[1] is table and compiled(X)[1] is table


def test_numpy_itself_is_not_changed():
    seen = []

    def watching(x):
        seen_type = type(np.zeros(2))
        return x * (2.0 if seen_type is np.ndarray else 3.0)

    mlirfuse.jit(watching)(X)
    assert type(np.zeros(2)) is np.ndarray and zeros is np.zeros and watching.__globals__["np"] is np and not seen


@pytest.mark.parametrize("created", [
    np.array([0.0, -0.0, 0.0], np.float32),
    np.array([np.nan, np.nan]),
    np.full((300, 400), 2.5)[::2, ::3],
    np.r_[np.zeros(70_000), 1.0],  # differs where nobody has looked at first
    np.zeros((0, 3)),
    np.asfortranarray(np.full((5, 6), 7, np.int8)),
])  # fmt: skip
def test_arrays_of_one_number_are_known_by_their_bits(created):
    def fn(x):
        here = np.array(created)
        return (np.copysign(1.0, here) if here.dtype.kind == "f" else here * 1) + x[0] * 0

    x = np.ones(2)
    np.testing.assert_array_equal(mlirfuse.jit(fn)(x), fn(x))
