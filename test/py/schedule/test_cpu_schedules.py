"""The CPU schedulers against NumPy in float64: odd sizes, dtypes, strides, and that each scheduler is met by some
shape."""

import ctypes
import mmap
import platform
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest

import mlirfuse
from mlirfuse.core import config
from mlirfuse.core.errors import CompileError, ScheduleError
from mlirfuse.lowering import llvm
from mlirfuse.runtime import counters
from mlirfuse.runtime.program import Program
from mlirfuse.schedule import targets

SIZES = [1, 2, 3, 15, 16, 17, 31, 33, 100, 257, 770, 1023]
FLOATS = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]
EPS = {2: 2e-2, 4: 2e-5, 8: 1e-12}


@pytest.fixture(autouse=True)
def no_fallback():
    with config.override(fallback=False):
        yield


def data(shape, dtype=np.float32, seed=0, low=-2.0, high=2.0):
    rng = np.random.default_rng(seed)
    dtype = np.dtype(dtype)
    if dtype == np.bool_:
        return rng.random(shape) < 0.5
    if dtype.kind in "iu":
        return rng.integers(0 if dtype.kind == "u" else -9, 10, shape).astype(dtype)
    return rng.uniform(low, high, shape).astype(dtype)


def wide(x):
    return x.astype(np.float64) if x.dtype.kind == "f" or x.dtype == ml_dtypes.bfloat16 else x


def check(jitted, fn, *args, rtol=None, scale=1.0):
    got = jitted(*args)
    with np.errstate(all="ignore"):
        expected = fn(*[wide(a) if isinstance(a, np.ndarray) else a for a in args])
    for g, e in zip(
        got if isinstance(got, tuple) else (got,), expected if isinstance(expected, tuple) else (expected,)
    ):
        assert np.shape(g) == np.shape(e)
        g = np.asarray(g)
        if g.dtype.kind in "iub" and g.dtype != ml_dtypes.bfloat16:
            np.testing.assert_array_equal(g, e)
        else:
            bound = (rtol or EPS[g.dtype.itemsize]) * scale
            np.testing.assert_allclose(g.astype(np.float64), e, rtol=bound, atol=bound)


# ---- functions


def relu(x, y):
    return np.maximum((x + y) * 1.5, 0)


def bias(x, b):
    return np.exp(x) * 0.5 + b


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def layer_norm(x, w, b):
    d = x - x.mean(-1, keepdims=True)
    return w * (d / np.sqrt((d * d).mean(-1, keepdims=True) + 1e-5)) + b


def batch_norm(x, w, b):
    mean = x.mean((0, 2), keepdims=True)
    d = x - mean
    variance = (d * d).mean((0, 2), keepdims=True)
    return w[:, None] * d / np.sqrt(variance + 1e-5) + b[:, None], mean[0, :, 0]


def gelu_norm(x):
    g = 0.5 * x * (1 + np.tanh(x))
    return g / np.sqrt((g * g).mean(-1, keepdims=True) + 1e-6)


# ---- pointwise


@pytest.mark.parametrize("dtype", [*FLOATS, np.int32, np.int64, np.uint8], ids=str)
def test_pointwise_lines(dtype):
    f = mlirfuse.jit(lambda x, y: np.maximum(x + y, x - y))
    for n in [*SIZES, 8191, 8193, 20011]:
        x, y = data(n, dtype, 1), data(n, dtype, 2)
        check(f, lambda x, y: np.maximum(x + y, x - y), x, y)


def test_pointwise_bool():
    f = mlirfuse.jit(lambda x, y, m: np.where(m & (x < y), x, y))
    for n in SIZES:
        x, y, m = data(n, seed=1), data(n, seed=2), data(n, bool)
        check(f, lambda x, y, m: np.where(m & (x < y), x, y), x, y, m)
    g = mlirfuse.jit(lambda m, k: (m ^ k) | ~m)
    for n in [*SIZES, 9001]:
        m, k = data(n, bool, 1), data(n, bool, 2)
        check(g, lambda m, k: (m ^ k) | ~m, m, k)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("columns", [1, 2, 3, 5, 15, 16, 17, 63, 64, 65, 770, 9000])
def test_pointwise_rows(columns, dtype):
    f = mlirfuse.jit(bias)
    for rows in (1, 2, 17, 300):
        check(f, bias, data((rows, columns), dtype), data(columns, dtype, 1))
        check(f, bias, data((rows, columns), dtype), data((rows, 1), dtype, 1))


def test_pointwise_small_inner_loops():
    f = mlirfuse.jit(lambda x, b: x * 2 + b)
    for shape in [(50, 3, 3), (7, 2, 2), (1000, 4, 3), (3, 1000, 2), (9, 5, 40)]:
        x = data(shape)
        check(f, lambda x, b: x * 2 + b, x, data(shape[-1], seed=1))
        check(f, lambda x, b: x * 2 + b, x, data((shape[1], 1), seed=1))
        check(f, lambda x, b: x * 2 + b, x, data((shape[0], 1, 1), seed=1))


def strided(shape, how, dtype=np.float32):
    if how == "transposed":
        return data(shape[::-1], dtype).T
    if how == "steps":
        return data([2 * n + 1 for n in shape], dtype)[tuple(slice(1, None, 2) for _ in shape)]
    if how == "negative":
        return data(shape, dtype)[tuple(slice(None, None, -1) for _ in shape)]
    if how == "misaligned":
        flat = data(int(np.prod(shape)) + 3, dtype)[3:]
        return flat.reshape(shape)
    return np.broadcast_to(data((*shape[:-1], 1), dtype), shape)


@pytest.mark.parametrize("how", ["transposed", "steps", "negative", "misaligned", "zero"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int8], ids=str)
def test_strides(how, dtype):
    f, s, r = mlirfuse.jit(lambda x, y: x + y), mlirfuse.jit(lambda x: x.sum(-1)), mlirfuse.jit(lambda x: x.max(0))
    for shape in [(5, 7), (33, 17), (64, 64), (100, 257), (3, 20, 31)]:
        x, y = strided(shape, how, dtype), data(shape, dtype, 3)
        check(f, lambda x, y: x + y, x, y)
        check(s, lambda x: x.sum(-1), x, scale=4)
        check(r, lambda x: x.max(0), x)


# ---- transposes


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8, ml_dtypes.bfloat16])
def test_every_second_to_fifth_element_and_backwards(dtype):
    """Vectors of them are picked out of whole ones: of what they span nothing else is read, where memory ends behind or
    before it."""
    page = mmap.PAGESIZE
    memory = mmap.mmap(-1, 4 * page)
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for at in (0, 3):
        assert protect(ctypes.c_void_p(start + at * page), ctypes.c_size_t(page), 0) == 0
    size = np.dtype(dtype).itemsize
    for start, step in (
        (0, 2),
        (1, 2),
        (0, 3),
        (2, 3),
        (0, 4),
        (3, 4),
        (0, 5),
        (None, -1),
        (None, -2),
        (-2, -2),
        (None, -3),
        (None, -4),
        (-4, -4),
    ):
        fn = lambda x, start=start, step=step: x[:, start::step] + x[:, start::step]  # noqa: E731
        compiled = mlirfuse.jit(fn, fallback=False)
        for columns in (40, 41, 64, 65, 127, 130, 131, 132, 133):
            for offset in (page, 3 * page - 3 * columns * size):  # right behind what may not be read, and right before
                x = np.frombuffer(memory, dtype, 3 * columns, offset).reshape(3, columns)
                x[...] = np.arange(3 * columns).reshape(3, columns) % 60
                assert np.array_equal(compiled(x), fn(x))


@pytest.mark.parametrize("dtype", [*FLOATS, np.int8, np.int16, np.int32, bool], ids=str)
def test_transposes(dtype):
    f = mlirfuse.jit(lambda x: x.T.copy())
    for shape in [(1, 5), (3, 3), (16, 16), (17, 33), (64, 64), (100, 257), (130, 70), (1023, 31)]:
        check(f, lambda x: x.T, data(shape, dtype))


@pytest.mark.parametrize("dtype", [*FLOATS, np.int8, np.int16, np.int32, bool], ids=str)
@pytest.mark.parametrize("short", [2, 3, 4, 5, 8, 9, 15, 16, 17])
def test_transposes_of_short_rows_and_columns(short, dtype):
    f = mlirfuse.jit(lambda x: x.T.copy())
    for long in (2, 16, 17, 100, 5003):
        check(f, lambda x: x.T, data((long, short), dtype))
        check(f, lambda x: x.T, data((short, long), dtype))
        check(f, lambda x: x.T, data((2 * long, short + 3), dtype)[::2, 1:-2])


@pytest.mark.parametrize("dtype", [*FLOATS, np.int8, bool], ids=str)
@pytest.mark.parametrize("block", [(8, 1), (1, 8), (4, 1), (1, 2), (2, 8)], ids=str)
def test_blocks_of_one_element_along_a_loop(block, dtype):
    """As loops have whose extents are symbols of which the sizes in use make 1."""
    schedule = {0: {"scheduler": "transpose", "read_lanes": block[0], "write_lanes": block[1], "unmasked": 0}}
    f = mlirfuse.jit(lambda x: x.T.copy(), schedule=schedule, fallback=False)
    for shape in [(16, 16), (24, 40), (33, 17)]:
        check(f, lambda x: x.T, data(shape, dtype))


@pytest.mark.parametrize("order", [(0, 2, 1), (2, 1, 0), (1, 0, 2), (1, 2, 0), (2, 0, 1)])
def test_permutes(order):
    f = mlirfuse.jit(lambda x, y: np.transpose(x + 1, order) * y)
    for shape in [(3, 5, 7), (16, 32, 48), (20, 33, 65), (2, 300, 40), (3, 300, 4), (50, 2, 9), (5, 17, 130)]:
        x = data(shape)
        y = data([shape[k] for k in order], seed=1)
        check(f, lambda x, y: np.transpose(x + 1, order) * y, x, y)


def test_transposed_inputs_of_several_kinds():
    f = mlirfuse.jit(lambda a, b, c, d: (np.exp(a + b).T + c) * d)
    for n, m in [(16, 16), (40, 70), (65, 129), (3, 200), (200, 3)]:
        args = data((n, m)), data((n, m), seed=1), data((m, n), seed=2), data(n, seed=3)
        check(f, lambda a, b, c, d: (np.exp(a + b).T + c) * d, *args)
    g = mlirfuse.jit(lambda a: (a.T * 2, a.T + a[0, 0]))
    check(g, lambda a: (a.T * 2, a.T + a[0, 0]), data((50, 90)))
    h = mlirfuse.jit(lambda a: a + a.T)
    check(h, lambda a: a + a.T, data((77, 77)))


def differences(x):
    return np.exp(x)[:, :, None] - x[:, None]


def soft_ranks(x):
    return (1 / (1 + np.exp(x[:, None] - x[:, :, None]))).sum(-1)


def weighted_differences(x):
    total = (x[:, :, None] * x[:, None]).sum(-1)
    return (total[:, None] * (x[:, :, None] - 1)).sum(-1)


@pytest.mark.parametrize("f", [differences, soft_ranks, weighted_differences])
def test_pairs_in_batches(f):
    """A dimension of ``x`` stands for two of the result, beside one that stands for itself."""
    for shape in [(3, 5), (4, 64), (2, 300), (65, 3)]:
        check(mlirfuse.jit(f), f, data(shape), scale=shape[1])


def test_transpose_in_place():
    def f(x, y):
        x += y.T
        return x

    jitted = mlirfuse.jit(f)
    for n, m in [(17, 33), (64, 64), (100, 50), (3, 70), (70, 3)]:
        x, y = data((n, m)), data((m, n), seed=1)
        expected = x + y.T
        jitted(x, y)
        np.testing.assert_allclose(x, expected, rtol=1e-6)


# ---- reductions


@pytest.mark.parametrize("name", ["sum", "max", "min", "prod", "mean", "any", "all", "argmax", "argmin", "var"])
@pytest.mark.parametrize("axis", [-1, 0, 1, None])
def test_reductions(name, axis):
    fn = lambda x: getattr(x, name)(axis)  # noqa: E731
    f = mlirfuse.jit(fn)
    for shape in [(1, 1, 5), (3, 17, 16), (2, 33, 31), (7, 5, 257), (257, 3, 2), (40, 50, 60)]:
        x = data(shape, np.float64, low=0.9, high=1.1) if name == "prod" else np.round(data(shape, np.float64), 2)
        check(f, fn, x, scale=1000)


@pytest.mark.parametrize("dtype", [*FLOATS, np.int32, np.uint8, bool], ids=str)
def test_reduction_dtypes(dtype):
    for fn in (
        lambda x: x.sum(0),
        lambda x: x.sum(1),
        lambda x: x.max(0),
        lambda x: x.max(1),
        lambda x: x.argmin(0),
        lambda x: x.argmax(1),
    ):
        f = mlirfuse.jit(fn)
        for shape in [(5, 3), (100, 17), (33, 770), (300, 64)]:
            check(f, fn, data(shape, dtype), scale=20)


@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_positions_of_ties_nans_and_infinities(name):
    rng = np.random.default_rng(0)
    values = np.array([-np.inf, np.inf, -1, 0, 1, np.nan])
    for axis in (0, 1, None):
        fn = lambda x: getattr(x, name)(axis)  # noqa: E731
        f, g = mlirfuse.jit(fn), mlirfuse.jit(lambda x: fn(x.T))
        for shape in [(3, 40), (200, 5), (33, 100), (9, 3000), (70000, 2)]:
            for known in (1, 2, 5, 6):  # -inf alone, both infinities, no NaN, all
                x = values[rng.integers(0, known, shape)].astype(np.float32)
                check(f, fn, x)
                check(g, lambda x: fn(x.T), x)
            check(f, fn, np.full(shape, np.iinfo(np.int32).min, np.int32))


@pytest.mark.parametrize("columns", [1, 2, 3, 7, 16, 17, 63, 64, 100, 2047, 2049, 5000])
def test_sums_down_columns(columns):
    f = mlirfuse.jit(lambda x: (x * 2).sum(0))
    for rows in (1, 2, 7, 8, 9, 100, 1023):
        x = data((rows, columns))
        check(f, lambda x: (x * 2).sum(0), x, scale=20)
    g = mlirfuse.jit(lambda x, w: (x * w).sum((0, 2)))
    for shape in [(3, columns, 5), (20, columns, 17)]:
        check(g, lambda x, w: (x * w).sum((0, 2)), data(shape), data(shape[-1], seed=1), scale=20)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int8], ids=str)
def test_sums_down_columns_beside_biases(dtype):
    def fn(x, row, column, wide):
        return (x * row - column * wide[:, :, 1:-1]).sum(1)

    f = mlirfuse.jit(fn)
    for n, rows, columns in [(1, 5, 3), (3, 64, 4), (2, 1000, 2), (5, 100, 31), (1, 9001, 15), (2, 17, 63)]:
        x, row, column = data((n, rows, columns), dtype), data((n, 1, columns), dtype, 1), data((rows, 1), dtype, 2)
        wide = data((n, rows, columns + 2), dtype, 3)
        check(f, fn, x, row, column, wide, scale=rows)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64, np.int32], ids=str)
@pytest.mark.parametrize(
    "shape, axes",
    [
        ((1000, 2), -1),
        ((77, 3), -1),
        ((16, 4), -1),
        ((300, 5), -1),
        ((301, 6), -1),
        ((302, 7), -1),
        ((303, 8), -1),
        ((5, 40, 3), -1),
        ((9, 33, 4), (0, 2)),
        ((230, 300, 8), (0, 2)),
        ((40, 50, 140, 2), (1, 3)),
    ],
)
def test_reduced_short_rows(shape, axes, dtype):
    """Vectors run across rows of 2 to 8 elements that lie one behind the other; not where there is something between
    them."""
    x, apart = data(shape, dtype), data((*shape[:-1], shape[-1] + 3), dtype)[..., : shape[-1]]
    x.reshape(-1, shape[-1])[3] = x.reshape(-1, shape[-1])[4, 0]  # equal ones
    for given in (x, apart):
        check(mlirfuse.jit(lambda x: x.max(axes)), lambda x: x.max(axes), given)
        check(mlirfuse.jit(lambda x: x - x.max(axes, keepdims=True)), lambda x: x - x.max(axes, keepdims=True), given)
        check(mlirfuse.jit(lambda x: x.sum(axes)), lambda x: x.sum(axes), given, scale=8)
        if axes == -1:
            check(mlirfuse.jit(lambda x: x.argmin(-1)), lambda x: x.argmin(-1), given)
        if np.dtype(dtype).kind == "f":
            check(mlirfuse.jit(lambda x: softmax(x)), softmax, given)
            check(
                mlirfuse.jit(lambda x: x - x.mean(axes, keepdims=True)),
                lambda x: x - x.mean(axes, keepdims=True),
                given,
                scale=8,
            )


@pytest.mark.parametrize("fn, x, across", [
    (lambda x: x.max(-1), np.ones((5000, 2), np.float32), True),
    (lambda x: x.max(-1), np.ones((5000, 4), np.float32)[:, :2], False),  # something between them
    (lambda x: x.max(-1), np.ones((5000, 8), np.float32), True),
    (lambda x: x.max(-1), np.ones((5000, 9), np.float32), False),
    (lambda x: x - x.max(-1, keepdims=True), np.ones((5000, 4), np.float32), True),
    (lambda x: x - x.max(-1, keepdims=True), np.ones((5000, 5), np.float32), False),
    (lambda x: x.max(-1), np.ones((10, 2), np.float32), False),
    (lambda x: x.argmax(-1), np.ones((5000, 4), np.float32), True),
    (lambda x: x.sum(-1), np.ones((5000, 4), np.float32), True),
    (lambda x: x.sum(-1), np.ones((5000, 5), np.float32), False),
    (lambda x: x.sum((0, 2)), np.ones((256, 1024, 4), np.float32), True),
    (lambda x: x.sum((0, 2)), np.ones((64, 256, 4), np.float32), False),
])  # fmt: skip
def test_vectors_run_across_short_rows(fn, x, across):
    lowered = mlirfuse.jit(fn, target="cpu").lower(x)
    (params,) = Program(lowered.segmented(), targets.of("cpu"), lowered.env).parameters(lowered.env, {})
    assert params.scheduler == ("columns" if across else "rows")
    if across and params.split == 0:  # picked out of whole vectors
        assert params.extent == x.shape[-1]


def test_rows_are_not_said_to_be_where_they_are_not():
    """Steps that are constants of a kernel are those of its arguments."""
    for x, n in ((np.ones((5000, 2), np.float32), 3), (np.ones((5000, 4), np.float32)[:, :2], 2)):
        given = {0: {"scheduler": "columns", "split": 0, "extent": n}}
        with pytest.raises(ScheduleError, match="extent"):
            mlirfuse.jit(lambda x: x.max(-1), schedule=given)(x)


def test_split_reductions():
    for fn in (
        lambda x: x.sum(),
        lambda x: x.sum(0),
        lambda x: x.sum(1),
        lambda x: x.max(0),
        lambda x: x.argmax(0),
        lambda x: (x * x).mean(-1),
    ):
        f = mlirfuse.jit(fn)
        for shape in [(2, 100003), (100003, 2), (70001, 3), (3000, 70), (1, 262144)]:
            check(f, fn, data(shape), scale=100)


def test_sums_are_as_accurate_as_pairwise():
    f = mlirfuse.jit(lambda x: x.sum(-1))
    g = mlirfuse.jit(lambda x: x.sum(0))
    x = data((1 << 20,), low=0.0, high=1.0)
    exact = x.astype(np.float64).sum()
    assert abs(f(x[None])[0] - exact) / exact < 2e-7
    assert abs(g(x[:, None])[0] - exact) / exact < 2e-7
    assert abs(g(np.stack([x] * 20, 1))[7] - exact) / exact < 4e-7


# ---- normalizations


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_softmax(axis, dtype):
    f = mlirfuse.jit(softmax, static_argnames=("axis",))
    shapes = [(2, 3, n) for n in SIZES] + [(2, n, 5) for n in SIZES] + [(n, 2, 40) for n in SIZES]
    for shape in shapes[:: 1 if dtype == np.float32 else 5]:
        check(f, softmax, data(shape, dtype), axis)


@pytest.mark.parametrize("n", [*SIZES, 5000, 40000])
def test_layer_norm(n):
    f = mlirfuse.jit(layer_norm)
    for rows in (1, 5, 40):
        check(f, layer_norm, data((rows, n)), data(n, seed=1), data(n, seed=2), scale=10)


def test_batch_norm():
    f = mlirfuse.jit(batch_norm)
    for shape in [(2, 3, 5), (8, 3, 100), (16, 40, 49), (64, 2, 3136), (300, 5, 1)]:
        check(f, batch_norm, data(shape), data(shape[1], seed=1), data(shape[1], seed=2), scale=10)


def test_expensive_values_are_kept():
    f = mlirfuse.jit(gelu_norm)
    for n in [*SIZES, 5000, 40000]:
        check(f, gelu_norm, data((3, n)), scale=10)


def gelu_norm_of_columns(x):
    g = 0.5 * x * (1 + np.tanh(x))
    return (g - g.max(1, keepdims=True)) / np.sqrt((g * g).mean(1, keepdims=True) + 1e-6)


@pytest.mark.parametrize("shape, kept", [((2, 37, 100), True), ((2, 9, 5), True), ((16, 5000, 256), False)])
def test_expensive_values_of_columns_are_kept(shape, kept):
    """Where they fit in a task's buffer."""
    x = data(shape)
    lowered = mlirfuse.jit(gelu_norm_of_columns, target="cpu").lower(x)
    (params,) = Program(lowered.segmented(), targets.of("cpu"), lowered.env).parameters(lowered.env, {})
    assert params.persistent == kept
    check(mlirfuse.jit(gelu_norm_of_columns), gelu_norm_of_columns, x, scale=10)
    given = {0: targets.of("cpu").schedulers.attributes(params) | {"persistent": False}}
    again = mlirfuse.jit(gelu_norm_of_columns, schedule=given)(x)
    assert np.array_equal(again, mlirfuse.jit(gelu_norm_of_columns)(x))


@pytest.mark.parametrize("shape", [(1, 262144), (2, 65537), (262144, 1), (70000, 3), (3000, 70)])
def test_normalizations_in_stages(shape):
    for axis in (0, 1):
        fn = lambda x: softmax(x, axis)  # noqa: E731
        check(mlirfuse.jit(fn), fn, data(shape), scale=4)
    check(mlirfuse.jit(lambda x: x / x.sum()), lambda x: x / x.sum(), data(shape, low=0.5, high=1.0), scale=4)
    for g in (
        lambda x: (x - x.mean(0), x.std(0)),
        lambda x: (x - x.mean(0), x.mean(0)),
        lambda x: (x / (1 + x.max(0) ** 2), np.sqrt((x * x).sum(0)), x > x.mean(0)),
        lambda x: (
            (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True),
            x.mean(-1, keepdims=True),
            x.std(-1, keepdims=True),
        ),
        lambda x: (x.max(0), x / (1 + x.max(0) ** 2), x.max()),
    ):
        check(mlirfuse.jit(g), g, data(shape), scale=20)


def test_half_types_stay_wide_between_stages():
    fn = lambda x: x - x.sum(-1, keepdims=True)  # noqa: E731
    x = data((1, 1 << 18), np.float16, low=0.0, high=0.001)
    check(mlirfuse.jit(fn), fn, x)
    both = lambda x: (x / x.sum(-1, keepdims=True), x.sum(-1))  # noqa: E731
    check(mlirfuse.jit(both), both, x)


@pytest.mark.parametrize("shape", [(3001, 16), (5000, 8), (1000, 40), (4001, 3)])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_types_down_few_columns_in_stages(shape, dtype):
    def scaled(x):
        d = x - x.max(0)
        return d / (np.abs(d).max(0) + 1)

    def standardized(x):
        d = x - x.mean(0)
        return d / np.sqrt((d * d).mean(0) + 1)

    for fn in (scaled, standardized):
        check(mlirfuse.jit(fn, fallback=False), fn, data(shape, dtype))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the features are x86's")
def test_a_processor_that_cannot_convert_half_types(monkeypatch):
    """Code that would call a library's conversions is not loaded: an error, or with the fallback on a warning and the
    right result."""

    def baseline(processor=None):
        return llvm._target().create_target_machine(cpu="x86-64", features="", opt=2, reloc="pic", codemodel="small")

    monkeypatch.setattr(llvm, "target_machine", baseline)
    here = llvm.host_processor()._replace(flags="none")
    monkeypatch.setattr(llvm, "host_processor", lambda: here)
    fn = lambda x: np.maximum(x * 2, 1)  # noqa: E731
    check(mlirfuse.jit(fn), fn, data((1000,), np.float32))
    x = data((1000,), np.float16)
    with pytest.raises(CompileError, match="__extendhfsf2"):
        mlirfuse.jit(fn)(x)
    with pytest.warns(UserWarning, match="op by op"):
        np.testing.assert_array_equal(mlirfuse.jit(fn, fallback=True)(x), fn(x))


def test_many_packed_inputs():
    """Their buffers share a bounded piece of the stack."""
    first, rows = data((4000, 14), np.float64)[:, :7], [data((7,), np.float64, seed) for seed in range(60)]
    total = mlirfuse.jit(lambda *values: sum(values[1:], values[0]))
    total(first, *rows)  # compiled on a stack as large as usual
    before = threading.stack_size(256 << 10)
    try:
        with ThreadPoolExecutor(1) as pool:
            got = pool.submit(total, first, *rows).result()
    finally:
        threading.stack_size(before)
    np.testing.assert_allclose(got, sum(rows, first), rtol=1e-13)


# ---- outputs that do not fit the caches


@pytest.mark.parametrize("shape", [(1 << 23,), (3001, 2048), (1500, 4001)])
def test_large_outputs(shape):
    f = mlirfuse.jit(relu)
    x, y = data(shape), data(shape, seed=1)
    np.testing.assert_allclose(f(x, y), relu(x, y), rtol=1e-6)
    x = x.reshape(-1, x.shape[-1])[:64]


def test_large_output_over_a_misaligned_argument():
    def add(x, y):
        x += y

    buffer = np.zeros((1 << 23) + 1, np.float32)
    x = buffer[1:]
    f = mlirfuse.jit(add)
    f(x, np.ones(1 << 23, np.float32))
    assert x.min() == x.max() == 1


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.int16, np.complex64, np.complex128])
@pytest.mark.parametrize("step", [2, 3, 4, 5])
def test_elements_in_between_are_left_alone(step, dtype):
    """Also behind the last one, where the page ends: only those that are written are touched."""

    def put(x, y):
        x[...] = y * 2

    f = mlirfuse.jit(put)
    for count in (1, 2, 7, 8, 16, 33, 100):
        room = mmap.mmap(-1, 4 * mmap.PAGESIZE)
        cells = np.frombuffer(room, dtype, count=4 * mmap.PAGESIZE // np.dtype(dtype).itemsize)[-(step * count) :]
        cells[:] = np.arange(cells.size) % 50
        before, y = cells.copy(), (np.arange(count) % 40).astype(dtype)
        f(cells[step - 1 :: step], y)
        before[step - 1 :: step] = y * 2
        np.testing.assert_array_equal(cells, before)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint8, np.int16, np.bool_, np.complex64])
def test_padding_reads_nothing_outside(dtype):
    """A vector runs on past both ends of a row, here those of pages."""
    f = mlirfuse.jit(lambda x: np.pad(x, ((1, 2), (3, 1))))
    for shape in ((1, 1), (3, 7), (2, 16), (5, 33), (4, 130)):
        room = np.frombuffer(mmap.mmap(-1, 4 * mmap.PAGESIZE), dtype)
        for cells in (room[: shape[0] * shape[1]], room[-shape[0] * shape[1] :]):
            x = cells.reshape(shape)
            x[...] = np.arange(x.size).reshape(shape) % 50
            np.testing.assert_array_equal(f(x), np.pad(x, ((1, 2), (3, 1))))


def counted(x):
    return x / (np.arange(x.shape[0], dtype=np.int64)[:, None] + 1).astype(np.float32)


def numbered(x):
    return x * (np.arange(x.shape[1], dtype=np.int64) % 7).astype(np.float32)


@pytest.mark.parametrize("fn", [counted, numbered, lambda x: x - x.mean(-1, keepdims=True)])
def test_integers_do_not_narrow_vectors_of_floats(fn):
    """64-bit integers, of each row, of each element, or a size, are beside full vectors of float32."""
    x, lanes = data((40, 1000)), targets.of("cpu").properties.vector_bytes // 4
    f = mlirfuse.jit(fn)
    text = f.lower(x).as_text("tiled")
    stores = re.findall(r"store %\S+, .* : vector<(\d+)xf32>", text)
    assert {int(found) for found in stores} == {lanes}
    check(f, fn, x)


@pytest.mark.parametrize("transposed", [False, True])
def test_padding_beside_a_part_that_is_known_to_be_inside(transposed):
    def inner(x):
        return np.pad(x, ((3, 1), (2, 5)))[3:-1] if not transposed else np.pad(x.T, ((3, 1), (2, 5)))[:, 2:-5]

    for shape in ((5, 33), (40, 70)):
        x = data(shape)
        np.testing.assert_array_equal(mlirfuse.jit(inner)(x), inner(x))


# ---- calls


def test_new_sizes_compile_nothing():
    f = mlirfuse.jit(layer_norm)
    for n in (300, 500):
        f(data((20, n)), data(n), data(n))
    before = counters.snapshot()
    for rows, n in [(21, 301), (64, 1024), (100, 400)]:
        check(f, layer_norm, data((rows, n)), data(n, seed=1), data(n, seed=2), scale=10)
    assert counters.snapshot() == before
