"""What shares memory with what inside a compiled function: a write into a result or into its argument is seen where
NumPy's is. Every function of NumPy that we have, and every method, on arrays of no dimension, empty, contiguous and
strided."""

import functools
import warnings

import numpy as np
import pytest

import mlirfuse
from mlirfuse import UnsupportedError
from mlirfuse.frontend import tree as trees
from mlirfuse.frontend.numpy import tracing
from mlirfuse.frontend.numpy.graph_breaks import program as pieces
from mlirfuse.frontend.numpy.registry import HANDLED
from mlirfuse.ir import interpreter
from mlirfuse.runtime.signature import ArgSpec

BASE = np.arange(48.0).reshape(6, 8) + 0.5
ARGUMENTS = {
    "0-d": lambda: np.array(3.5),
    "0-d ints": lambda: np.array(3),
    "empty": lambda: np.zeros((0, 3)),
    "one": lambda: np.full((1, 1), 2.5),
    "1-d": lambda: np.arange(5.0) + 0.5,
    "1-d strided": lambda: (np.arange(10.0) + 0.5)[::-2],
    "square": lambda: np.arange(9.0).reshape(3, 3) + 0.5,
    "contiguous": lambda: BASE[:3].copy(),
    "strided": lambda: BASE.copy()[::2, ::-2],
    "transposed": lambda: BASE.copy().T,
    "ints": lambda: np.arange(6).reshape(2, 3),
    "bools": lambda: np.arange(6).reshape(2, 3) > 2,
    "3-d": lambda: np.arange(24.0).reshape(2, 3, 4),
}

# What is called, on an array a. Where NumPy refuses an argument there is nothing to compare.
CALLS = """
a[()] | a[...] | a[None] | a[1:] | a[::-1] | a[0] | a[..., 0] | a[[0, 1]] | a[:, None] | a[-1:] | a[:0] | a.T | a.mT
a.real | a.imag | a.conj() | a.conjugate() | a.copy() | a.flatten() | a.ravel() | a.reshape(-1) | a.reshape(a.shape)
a.astype(a.dtype) | a.astype(a.dtype, copy=False) | a.astype(np.float32) | a.squeeze() | a.transpose() | a.view()
a.swapaxes(0, 0) | a.swapaxes(0, -1) | a.clip(0, 9) | a.clip() | a.round() | a.repeat(1) | a.repeat(2) | a.diagonal()
a.take([0]) | a.take(0) | a.take([0], 0) | a.sum() | a.sum(0) | a.sum(()) | a.sum(keepdims=True) | a.prod() | a.max()
a.min() | a.max(0) | a.mean() | a.mean(0) | a.var() | a.std() | a.any() | a.all() | a.argmax() | a.argmin()
a.cumsum() | a.cumprod() | a.argsort() | a.trace() | a.dot(2.0) | a.dot(a) | +a | -a | abs(a) | a + 0 | a * 1 | a ** 1
a ** 2 | a == a | (a != 2)[()] | (a > 2)[()] ** 2 | a[()] ** 2 | a[()] + 1 | np.positive(a) | np.conjugate(a)
np.absolute(a) | np.floor(a) | np.ceil(a) | np.trunc(a) | np.square(a) | np.sqrt(a) | np.maximum(a, a) | np.array(a)
np.array(a, copy=False) if a.dtype != bool else a | np.asarray(a) | np.ascontiguousarray(a[None]) | np.copy(a)
np.real(a) | np.imag(a) | np.round(a) | np.around(a, 1) | np.fix(a) | np.clip(a, None, None) | np.clip(a, 0, 9)
np.clip(a, 0, None) | np.nan_to_num(a) | np.nan_to_num(a, copy=False) | np.where(a > 1, a, a) | np.where(True, a, a)
np.select([a > 1], [a]) | np.sinc(a) | np.isreal(a) | np.isposinf(a) | np.isneginf(a) | np.isclose(a, a)
np.allclose(a, a) | np.array_equal(a, a) | np.reshape(a, -1) | np.reshape(a, a.shape) | np.ravel(a) | np.ravel(a, "F")
np.transpose(a) | np.permute_dims(a) | np.swapaxes(a, 0, 0) | np.matrix_transpose(a) | np.moveaxis(a, 0, 0)
np.moveaxis(a, 0, -1) | np.rollaxis(a, 0) | np.expand_dims(a, 0) | np.expand_dims(a, ()) | np.squeeze(a)
np.broadcast_to(a, a.shape) | np.broadcast_to(a, (2, *a.shape)) | np.broadcast_arrays(a)[0]
np.broadcast_arrays(a, a)[1] | np.atleast_1d(a) | np.atleast_2d(a) | np.atleast_3d(a) | np.atleast_1d(a, a)[0]
np.concatenate([a]) | np.concatenate([a, a]) | np.concat([a], 0) | np.stack([a]) | np.vstack([a]) | np.hstack([a])
np.dstack([a]) | np.column_stack([a]) | np.append(a, 1.0) | np.append(a, a, 0) | np.split(a, 1)[0]
np.array_split(a, 2)[0] | np.array_split(a, 2)[1] | np.vsplit(a, 1)[0] | np.hsplit(a, 1)[0] | np.dsplit(a, 1)[0]
np.unstack(a)[0] | np.flip(a) | np.flip(a, ()) | np.flip(a, 0) | np.fliplr(a) | np.flipud(a) | np.rot90(a)
np.rot90(a, 0) | np.rot90(a, 2) | np.rot90(a, 3) | np.roll(a, 0) | np.roll(a, 1) | np.roll(a, 1, 0) | np.tile(a, 1)
np.tile(a, (1, 1)) | np.tile(a, 2) | np.tile(a, ()) | np.repeat(a, 1) | np.repeat(a, 1, 0) | np.pad(a, 0)
np.pad(a, 0, mode="edge") | np.pad(a, 0, mode="wrap") | np.pad(a, 0, mode="reflect") | np.pad(a, 0, mode="symmetric")
np.pad(a, 1) | np.pad(a, 1, mode="edge") | np.pad(a, ((0, 0), (0, 0)), mode="edge")
np.pad(a, ((0, 1), (0, 0)), mode="wrap") | np.diff(a, 0) | np.diff(a) | np.tril(a) | np.triu(a) | np.diagonal(a)
np.diagonal(a, 1) | np.diagonal(a, -1) | np.diagonal(a, 9) | np.linalg.diagonal(a) | np.diag(a) | np.trace(a)
np.linalg.trace(a) | np.meshgrid(a)[0] | np.meshgrid(a, a)[1] | np.meshgrid(a, copy=False)[0]
np.meshgrid(a, a, copy=False)[0] | np.meshgrid(a, a, copy=False, sparse=True)[1] | np.meshgrid(a, a, sparse=True)[0]
np.meshgrid(a, a, indexing="ij")[0] | np.meshgrid(a, a, copy=False, indexing="ij")[0] | np.dot(a, 1.0) | np.dot(a, a)
np.vdot(a, a) | np.inner(a, a) | np.outer(a, a) | np.linalg.outer(a, a) | np.tensordot(a, a, 0)
np.linalg.tensordot(a, a, 0) | np.einsum("i->i", a) | np.einsum("ij->ij", a) | np.einsum("ij->ji", a)
np.einsum("ij->i", a) | np.einsum("ij", a) | np.einsum("ij,ij->ij", a, a) | np.linalg.vecdot(a, a)
np.linalg.matmul(a, a.T) | np.cross(a, a) | np.linalg.cross(a, a) | np.linalg.norm(a) | np.linalg.vector_norm(a)
np.linalg.norm(a, axis=0) | np.linalg.matrix_norm(a) | np.linalg.matrix_transpose(a) | np.trapezoid(a)
np.average(a) | np.average(a, 0)
np.sum(a) | np.sum(a, ()) | np.prod(a) | np.max(a) | np.amax(a, 0) | np.min(a) | np.any(a) | np.all(a, 0) | np.mean(a)
np.var(a) | np.std(a, 0) | np.argmax(a) | np.argmin(a, 0) | np.count_nonzero(a) | np.ptp(a) | np.ptp(a, 0)
np.nansum(a) | np.nansum(a, ()) | np.nanprod(a) | np.nanmax(a) | np.nanmin(a) | np.nanmean(a) | np.nanvar(a)
np.nanstd(a) | np.cumsum(a) | np.cumsum(a, 0) | np.cumprod(a) | np.sort(a) | np.sort(a, 0) | np.argsort(a)
np.median(a) | np.median(a, 0) | np.take(a, [0]) | np.take(a, 0) | np.take(a, 0, 0)
np.take_along_axis(a, np.argsort(a, 0), 0) | np.zeros_like(a) | np.ones_like(a) | np.full_like(a, 2)
np.astype(a, a.dtype) | np.astype(a, a.dtype, copy=False) | np.add.reduce(a) | np.add.reduce(a, ())
np.add.accumulate(a) | np.maximum.reduce(a) | np.angle(a) | np.iscomplex(a)
"""
CALLS = [call.strip() for line in CALLS.strip().splitlines() for call in line.split(" | ")]
NO_ARRAY = {
    "can_cast",
    "copyto",
    "result_type",
    "common_type",
    "min_scalar_type",
    "shape",
    "ndim",
    "size",
    "iscomplexobj",
    "isrealobj",
    "broadcast_shapes",
    "empty_like",
    "put_along_axis",
    "amin",
}

# What is done with the result r and the argument a; r is copied where it is returned.
PROGRAMS = {
    "writes the result": "r += 1\n    return a * 1, r * 1",
    "writes the argument": "a += 1\n    return r * 1",
    "the result, then the argument": "r += 1\n    a += 2\n    return a * 1, r * 1",
    "the argument, then the result": "a += 2\n    r += 1\n    return a * 1, r * 1",
    "sets elements": "r[...] = 4\n    return a * 1, r * 1",
    "uses it": "return r ** 2, r * 2, r + 1",
}


# What is refused, with an error that says so: a write through memory that may or may not be shared, or through a view
# that repeats elements; an axis of an array that has none.
REFUSED = (
    "depends on the array's memory layout",
    "it is a broadcast view",
    "is out of bounds for array of dimension 0",
)


def test_every_function_is_here():
    named = {f.__name__ for f in HANDLED}
    missing = {
        name for name in named - NO_ARRAY if not any(f"np.{name}(" in c or f"linalg.{name}(" in c for c in CALLS)
    }
    assert not missing


def run(fn, a):
    """What the call gives and leaves in its argument, or the error's type."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = fn(a)
    except Exception as error:
        return error
    return (*(result if isinstance(result, tuple) else (result,)), a)


COMPILED = "strided"  # the kind of argument for which the program is compiled; for the others the trace is interpreted


def interpreted(fn, a):
    """What the trace of ``fn`` says, op by op; what it writes into its argument is written."""
    leaves, tree = trees.flatten(((a,), {}))
    traced = tracing.trace(fn, [ArgSpec.of(a)], tree)
    arrays = [a] + [c.array for c in traced.captured]
    sizes = traced.sizes(arrays)
    results = interpreter.run(traced.graph, arrays, sizes)
    for position in traced.mutated.values():
        a[...] = results[position]
    return traced.result(results, leaves, sizes)


@pytest.mark.parametrize("call", CALLS)
def test_call(call):
    """``call`` in every program, on every argument that NumPy takes it for."""
    for what, rest in PROGRAMS.items():
        scope = {"np": np}
        exec(f"def program(a):\n    r = {call}\n    {rest}", scope)
        compiled = mlirfuse.jit(scope["program"], fallback=True)
        program = scope["program"]
        for kind, make in ARGUMENTS.items():
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    eval(call, {"np": np, "a": make()})
            except Exception:
                continue
            ours = compiled if kind == COMPILED else functools.partial(interpreted, program)
            expected, got = run(program, make()), run(ours, make())
            where = f"{call}, {what}, {kind}"
            if isinstance(got, Exception) and any(words in str(got) for words in REFUSED):
                continue
            if isinstance(expected, Exception):
                assert isinstance(got, (ValueError, TypeError, UnsupportedError)), (where, expected, got)
                continue
            assert not isinstance(got, Exception), (where, got)
            for e, g in zip(expected, got, strict=True):
                assert np.asarray(e).dtype == np.asarray(g).dtype, (where, e, g)
                np.testing.assert_allclose(g, e, rtol=1e-12, atol=1e-12, err_msg=where)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: (x.sum(0), x.sum(0)),
        lambda x: (x.sum(0), x.sum(0, keepdims=True)),
        lambda x: (x.max(keepdims=True), x.max()[None, None]),
        lambda x: (x @ x, x @ x),
        lambda x: (x @ x, (x @ x)[None]),
        lambda x: (np.sort(x), np.sort(x)),
        lambda x: (x + 1, x + 1),
    ],
)
def test_equal_results_are_two_arrays(fn):
    x = np.arange(16.0).reshape(4, 4)
    first, second = mlirfuse.jit(fn, fallback=False)(x)
    assert not np.shares_memory(first, second)
    first[...] = -1
    np.testing.assert_array_equal(second, fn(x)[1])


def written_and_turned(x):
    x[0] += 1
    return x.T.T


@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("fn", [
    lambda x: x[:], lambda x: (x[...], x + 1), lambda x: (x.reshape(x.shape), x, x[:]), lambda x: x.T.T,
    lambda x: x.view() if x.sum() > -1 else x + 1, lambda x: np.broadcast_to(x, x.shape), written_and_turned,
])  # fmt: skip
def test_a_view_of_all_of_an_argument(fn, small, monkeypatch):
    """It is another array in the same memory."""
    monkeypatch.setattr(pieces, "SMALL", 10**9 if small else 0)
    jitted = mlirfuse.jit(fn)
    for _ in range(2):
        x = np.arange(16.0).reshape(4, 4)
        got, want = (f(x) if isinstance(f(x), tuple) else (f(x),) for f in (jitted, fn))
        for g, w in zip(got, want):
            assert (g is x, np.shares_memory(g, x), g.flags.writeable) == (
                w is x,
                np.shares_memory(w, x),
                w.flags.writeable,
            )
            np.testing.assert_array_equal(g, w)


def written_then_viewed(x, y):
    before = x[1:, ::-1]
    x[0] = y
    return before, x.T, np.flip(x), x.reshape(-1), x[::2, None], x.sum()


@pytest.mark.parametrize("layout", [lambda x: x, lambda x: x.T, lambda x: x[::2], lambda x: x[:, ::-1]])
def test_views_of_an_argument_that_is_written_are_views(layout):
    for size in (4, 80):
        mine, its = (layout(np.arange(2.0 * size * size).reshape(2 * size, size)) for _ in range(2))
        jitted = mlirfuse.jit(written_then_viewed)
        for k in range(2):
            got, want = jitted(mine, 7.0 + k), written_then_viewed(its, 7.0 + k)
            for g, w in zip(got, want):
                assert np.shares_memory(g, mine) == np.shares_memory(w, its)
                np.testing.assert_array_equal(g, w)
            got[1][...], want[1][...] = 5, 5
            np.testing.assert_array_equal(mine, its)


@pytest.mark.parametrize("fn", [
    lambda x, k: x[k], lambda x, k: (x[:, k], x[k, 1:].sum()), lambda x, k: x[1:, k][::-1],
    lambda x, k: (x.__setitem__(0, 3), x[k], x.T[k, 1:], x[k, k])[1:],
])  # fmt: skip
def test_a_view_at_a_position_that_is_an_argument(fn, monkeypatch):
    """x[k] of a whole row shares the argument's memory; one element is a number."""
    jitted = mlirfuse.jit(fn)
    for k in (1, 2, -1, 0, 9, -5):
        mine, its = (np.arange(16.0).reshape(4, 4) for _ in range(2))
        try:
            want = fn(its, k)
        except IndexError:
            with pytest.raises(IndexError):
                jitted(mine, k)
            continue
        got = jitted(mine, k)
        for g, w in zip(*(v if isinstance(v, tuple) else (v,) for v in (got, want))):
            assert type(g) is type(w) and np.shares_memory(g, mine) == np.shares_memory(w, its)
            np.testing.assert_array_equal(g, w)


def test_equal_ops_are_computed_once():
    x = np.arange(16.0).reshape(4, 4)

    def fn(x):
        return (x @ x) / x.sum(0) - (x @ x + 1) * x.sum(0, keepdims=True) + np.sort(x) * np.sort(x)

    text = mlirfuse.jit(fn).lower(x).as_text("segmented")
    assert [text.count(f'"fusion.{op}"') for op in ("matmul", "sum", "sort")] == [1, 1, 1]
    np.testing.assert_allclose(mlirfuse.jit(fn)(x), fn(x), rtol=1e-12)


RESULTS_OF_ONE_MEMORY = [
    lambda x: (x + 1, lambda y: (y, y.T)),
    lambda x: (x + 1, lambda y: (y[1:], y[:, ::-1], y)),
    lambda x: (x * 2, lambda y: {"all": y, "rows": [y[0], y[-1]], "flat": y.reshape(-1)}),
    lambda x: (x * 2, lambda y: (y[1:], y[1:].T, y.sum(0))),
    lambda x: (x - 1, lambda y: (y, y)),
]


@pytest.mark.parametrize("k", range(len(RESULTS_OF_ONE_MEMORY)))
def test_results_that_share_memory_in_numpy_share_it(k):
    def results(x):
        created, parts = RESULTS_OF_ONE_MEMORY[k](x)
        created[1:, 1] = 7
        return parts(created)

    jitted = mlirfuse.jit(results)
    for size in (3, 60):
        given = np.arange(size * 40.0).reshape(size, 40)
        for write in range(len(trees.flatten(results(given))[0])):
            got, want = (trees.flatten(f(given.copy()))[0] for f in (jitted, results))
            assert [type(x) for x in got] == [type(x) for x in want]
            assert [got[0] is x for x in got] == [want[0] is x for x in want]
            for side in (got, want):
                side[write][...] = -3
            for a, b in zip(got, want):
                np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.zeros((8, 2, 5), np.float32),
        lambda: np.zeros((8, 4, 5), np.float32)[:, ::2],
        lambda: np.zeros((8, 2, 10), np.float32)[:, :, ::2],
        lambda: np.zeros((5, 2, 8), np.float32).T,
        lambda: np.zeros((2, 8, 5), np.float32).transpose(1, 0, 2),
    ],
)
@pytest.mark.parametrize(
    "fn", [lambda x, y: np.concatenate([x, y * 2], 1).reshape(8, 2, 5), lambda x, y: np.stack([x, y * 2], 1)]
)
def test_joined_rows_in_another_shape_lie_as_the_argument(fn, make):
    """The argument's memory, and its own where nobody gives any."""
    x, y = (np.arange(40, dtype=np.float32).reshape(8, 5) + n for n in (0, 100))
    out = make()

    @mlirfuse.jit
    def into(x, y, out):
        out[...] = fn(x, y)

    into(x, y, out)
    np.testing.assert_array_equal(out, fn(x, y))
    np.testing.assert_array_equal(mlirfuse.jit(fn)(x, y), fn(x, y))


def written_onto(b, a):
    b[:] = a[::-1]
    return a[::-1]


def reversed_onto(b, a):
    b[::-1] = a
    return a[::-1]


def a_part_onto(b, a):
    b[2:] = a[2:]
    return a[2:], b


def the_result_of_others(b, a):
    b[:] = a[::-1] + 1
    return b[1:]


@pytest.mark.parametrize("fn", [written_onto, reversed_onto, a_part_onto, the_result_of_others])
def test_views_that_are_written_onto_another_argument_stay_views(fn):
    a, b = np.arange(64.0), np.zeros(64)
    want_a, want_b = a.copy(), b.copy()
    first = lambda x: x[0] if isinstance(x, tuple) else x  # noqa: E731
    got, want = first(mlirfuse.jit(fn)(b, a)), first(fn(want_b, want_a))
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(b, want_b)
    for mine, wanted in ((a, want_a), (b, want_b)):
        assert np.shares_memory(got, mine) == np.shares_memory(want, wanted)


@pytest.mark.parametrize("number", [3.5, 2, True, np.float64(1.5), np.float32(2.5), np.int64(3)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128", "int64"])
def test_libraries_take_numbers_that_fill_arrays(dtype, number):
    """An array of one number is a view of it, also of a Python number, which has no memory of NumPy's."""

    def f(x, number):
        x[...] = number
        return np.matmul(x, x.T)

    x, y = np.ones((5, 8), dtype), np.ones((5, 8), dtype)
    got, want = mlirfuse.jit(f)(x, number), f(y, number)
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(x, y)
