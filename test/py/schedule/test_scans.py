"""Scans: every scheduler's candidates on both targets, what fuses with them, the bound of float sums, NaN, and the
front ends' names of them. References are in float64."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import re

import ml_dtypes
import numpy as np
import pytest
from test_gpu_emulated import check as check_on_gpu
from test_gpu_emulated import results_of as results_on_gpu
from test_ptxas import PTXAS, assembled

import mlirfuse
import mlirfuse.numpy as mnp
from mlirfuse.core import config
from mlirfuse.core.errors import ScheduleError
from mlirfuse.frontend.numpy.trace_state import current
from mlirfuse.ir.ops import TABLE
from mlirfuse.runtime.program import Program
from mlirfuse.schedule import targets
from mlirfuse.schedule.scheduler import SizedCall

f16, f32, f64 = np.float16, np.float32, np.float64
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def no_fallback():
    with config.override(fallback=False):
        yield


def recurrence(a, b, axis, reverse=False):
    """In float64, one element after the other."""
    a, h = (np.moveaxis(x, axis, 0).copy() for x in np.broadcast_arrays(np.asarray(a, f64), np.asarray(b, f64)))
    order = range(len(h) - 2, -1, -1) if reverse else range(1, len(h))
    for t in order:
        h[t] = a[t] * h[t + 1 if reverse else t - 1] + h[t]
    return np.moveaxis(h, 0, axis)


def of_both(traced, plain):
    """A function that calls ``plain`` on arrays, as which stand-ins pass too."""
    return lambda *xs: (plain if current() is None else traced)(*xs)


def recurring(axis, reverse=False):
    return of_both(
        lambda a, b: mnp.linear_recurrence(a, b, axis, reverse) + 1, lambda a, b: recurrence(a, b, axis, reverse) + 1
    )


def flipped(axis):
    """What is scanned is not 0 where nothing was loaded."""
    return lambda x: np.flip(np.cumsum(np.flip(x * 2 + 1, axis), axis), axis) + 1


FUNCTIONS = {
    "sum": lambda axis: lambda x: np.cumsum(x * 2, axis) + 1,
    "product": lambda axis: lambda x: np.cumprod(1 + x / 100, axis),
    "extrema": lambda axis: lambda x: (np.maximum.accumulate(x, axis), np.minimum.accumulate(x + 1, axis)),
    "sum of sums": lambda axis: lambda x: np.cumsum(np.cumsum(x, axis) / 50, axis),
    "from the end": flipped,
    "logarithm": lambda axis: of_both(
        lambda x: mnp.logcumsumexp(3 * x, axis), lambda x: np.logaddexp.accumulate(3 * x, axis)
    ),
    "recurrence": lambda axis: of_both(
        lambda x: mnp.linear_recurrence(np.sin(x), x, axis), lambda x: recurrence(np.sin(x), x, axis)
    ),
    "recurrence from the end": lambda axis: of_both(
        lambda x: mnp.linear_recurrence(np.sin(x), np.cos(x), axis, True),
        lambda x: recurrence(np.sin(x), np.cos(x), axis, True),
    ),
}


def softmax(x, axis):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def standardized(x, axis):
    return (x - x.mean(axis, keepdims=True)) / np.sqrt(x.var(axis, keepdims=True) + 1e-3)


def both(x, axis):
    p = softmax(x, axis)
    return p, np.cumsum(p, axis), x.max(axis)


# what is scanned follows from reductions of the same rows, or what is scanned meets them
REDUCED = {
    "share": lambda axis: lambda x: np.cumsum(x * x, axis) / (x * x).sum(axis, keepdims=True),
    "nucleus": lambda axis: lambda x: np.cumsum(softmax(x, axis), axis),
    "standardized": lambda axis: lambda x: np.maximum.accumulate(standardized(x, axis), axis) + x,
    "both": lambda axis: lambda x: both(x, axis),
    "from the end": lambda axis: (
        lambda x: np.flip(np.cumsum(np.flip(x - x.mean(axis, keepdims=True), axis), axis), axis)
    ),
    "position": lambda axis: lambda x: np.cumsum(x, axis) * np.argmax(x, axis, keepdims=True),
}


def near(got, want, bound=2e-5):
    """Floats within ``bound`` of the largest."""
    got, want = np.asarray(got).astype(f64), np.asarray(want, f64)
    assert got.shape == want.shape
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    known = ~np.isnan(want)
    assert np.all(np.abs(got - want)[known] <= bound * max(1, np.abs(want[known]).max(initial=0)))


# ----------------------------------------------------------------------------------------------------------------
# the CPU


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_cpu(name, axis):
    """Rows and columns of all lengths around a vector's, and what is left over behind unrolled ones."""
    fn = FUNCTIONS[name](axis)
    jitted = mlirfuse.jit(fn)
    for shape in [(1, 1), (3, 5), (5, 16), (17, 2), (33, 31), (2, 777), (777, 2), (64, 129), (130, 96)]:
        x = RNG.standard_normal(shape).astype(f32)
        wanted = fn(x.astype(f64))
        for got, want in zip(
            *[r if isinstance(r, tuple) else (r,) for r in (jitted(x), wanted)],
            strict=True,
        ):
            near(got, want)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", REDUCED)
def test_cpu_with_reductions(name, axis):
    """One segment, whatever its kernels."""
    fn = REDUCED[name](axis)
    jitted = mlirfuse.jit(fn)
    for shape in [(1, 1), (3, 5), (17, 2), (2, 17), (33, 31), (2, 777), (777, 2), (130, 96)]:
        x = RNG.standard_normal(shape).astype(f32)
        wanted = fn(x.astype(f64))
        for got, want in zip(*[r if isinstance(r, tuple) else (r,) for r in (jitted(x), wanted)], strict=True):
            near(got, want)
    assert len(segments(fn, x)) == 1


LANES = targets.of("cpu").properties.vector_bytes // 4


def agree(fn, *args, jitted=None, **options):
    """``fn`` compiled, beside itself in float64; returns the schedulers of its segments."""
    jitted = jitted or mlirfuse.jit(fn, **options)
    got, want = jitted(*args), fn(*(a.astype(f64) for a in args))
    for g, w in zip(*[r if isinstance(r, tuple) else (r,) for r in (got, want)], strict=True):
        near(g, w)
    return re.findall(r'schedule = \{.*?scheduler = "(\w+)"', jitted.lower(*args).as_text("segmented"))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_short_rows(name):
    """Rows of all lengths up to a vector's, as many of them in a vector as there are whole ones; numbers of rows that
    leave some over behind unrolled vectors, behind a vector, and several tasks."""
    fn = FUNCTIONS[name](1)
    jitted = mlirfuse.jit(fn)
    for n in range(2, LANES + 1):
        for rows in (16, 37, 9001 // n):
            assert agree(fn, RNG.standard_normal((rows, n)).astype(f32), jitted=jitted) == ["scan_short_rows"]
    assert agree(fn, RNG.standard_normal((40, LANES + 1)).astype(f32), jitted=jitted) == ["scan_rows"]


@contextlib.contextmanager
def at_the_end(*arrays):
    """Copies of arrays, each with a page behind it that must not be read or written."""
    page, libc, held = mmap.PAGESIZE, ctypes.CDLL(None), []
    for x in arrays:
        size = -(-x.nbytes // page) * page
        memory = mmap.mmap(-1, size + page)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        last = ctypes.c_void_p(address + size), ctypes.c_size_t(page)
        assert libc.mprotect(*last, 0) == 0
        held.append((last, np.frombuffer(memory, x.dtype, x.size, size - x.nbytes).reshape(x.shape)))
        held[-1][1][...] = x
    yield [x for _, x in held]
    for last, _ in held:
        libc.mprotect(*last, mmap.PROT_READ | mmap.PROT_WRITE)


@pytest.mark.parametrize("n", [n for n in (2, 3, 5, 7, 8, 13, 16) if n <= LANES])
def test_short_rows_end_where_memory_does(n):
    """Nothing is read or written past the last row, nor past what is the same in all rows or along one."""

    def fn(x, w, c, y):
        y[...] = np.cumsum(x * w + c, 1) * np.exp(w)

    given = [RNG.standard_normal(s).astype(f32) for s in ((61, n), (n,), (61, 1), (61, n))]
    with at_the_end(*given) as (x, w, c, y):
        assert "scan_short_rows" in mlirfuse.jit(fn).lower(x, w, c, y).as_text("segmented")
        mlirfuse.jit(fn)(x, w, c, y)
        near(y, np.cumsum(x.astype(f64) * w + c, 1) * np.exp(w.astype(f64)))


@pytest.mark.parametrize("n", [n for n in (2, 3, 6, 13, 16) if n <= LANES])
def test_what_short_rows_fuse_with(n):
    """Operands that are the same in all rows, or along a row; outputs over the rows alone; loops around them;
    chains."""
    one = lambda *shape: RNG.standard_normal(shape).astype(f32)  # noqa: E731
    short = ["scan_short_rows"]
    assert agree(lambda x, w, c: np.cumsum(x * w + c, 1) * w - c, one(333, n), one(n), one(333, 1)) == short
    assert agree(lambda x, c: (np.cumsum(x * c, 1), np.exp(c)), one(333, n), one(333, 1)) == short
    agree(lambda x: np.cumsum(x, 2), one(5, 70, n))
    agree(lambda x: np.cumsum(x[:, ::2], 2), one(5, 70, n))
    agree(lambda x: np.cumsum(x[:, 1:], 1), one(70, n + 1))
    agree(lambda x: np.cumsum(np.roll(x, 1, 1), 1) + np.roll(x, 1, 0), one(70, n))
    agree(lambda x: np.cumsum(x.T, 1), one(n, 70))
    agree(lambda x: (np.cumsum(x, 1), np.maximum.accumulate(np.cumsum(x, 1), 1), np.cumprod(x, 1)), one(70, n))
    chosen = lambda x, at: np.cumsum(x[at], 1)  # noqa: E731
    x, at = one(9, n), RNG.integers(0, 9, 50)
    near(mlirfuse.jit(chosen)(x, at), chosen(x.astype(f64), at))


def test_short_rows_in_place():
    """What a vector has beyond its rows is not written, since it may not have been read yet."""
    for n in (3, 5, 16):
        x = RNG.standard_normal((900, n))
        want = np.cumsum(x, 1)

        def fn(x):
            x[...] = np.cumsum(x, 1)

        mlirfuse.jit(fn)(x)
        np.testing.assert_allclose(x, want, rtol=1e-12, atol=1e-12)


def test_short_rows_past_the_caches():
    """Whole vectors of rows may be stored so, and others not."""
    for n in (2, 4, LANES):
        given = {0: {"scheduler": "scan_short_rows", "streamed": True}}
        assert agree(lambda x: np.cumsum(x, 1), RNG.standard_normal((5001, n)).astype(f32), schedule=given)
    wrong = [(3, {"streamed": True}), (3, {"extent": 4}), (LANES + 1, {"extent": 0}), (9, {"streamed": True})]
    for n, fields in wrong:
        with pytest.raises(ScheduleError):
            given = {0: {"scheduler": "scan_short_rows", "extent": 0, "streamed": False} | fields}
            mlirfuse.jit(lambda x: np.cumsum(x, 1), schedule=given)(np.ones((40, n), f32))


@pytest.mark.parametrize("dtype", [f16, ml_dtypes.bfloat16, f64, np.int8, np.uint16, np.int64])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", [(37, 70), (70, 5), (70, 8), (19, 13)])
def test_types(dtype, axis, shape):
    """The result's type is NumPy's; integers wrap as its do, half types are summed in float32."""
    x = (RNG.standard_normal(shape) * 10).astype(dtype)
    got = mlirfuse.jit(lambda x: (np.cumsum(x, axis), np.maximum.accumulate(x, axis)))(x)
    if np.dtype(dtype).kind in "iu":
        for a, b in zip(got, (np.cumsum(x, axis), np.maximum.accumulate(x, axis))):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)
        wrapped = mlirfuse.jit(lambda x: np.cumprod(x, axis, dtype=x.dtype))(x)
        np.testing.assert_array_equal(wrapped, np.cumprod(x, axis, dtype=dtype))
        return
    assert got[0].dtype == got[1].dtype == dtype
    near(got[0], np.cumsum(x.astype(f64), axis), {f16: 1e-3, f64: 1e-14}.get(dtype, 8e-3))
    np.testing.assert_array_equal(got[1], np.maximum.accumulate(x, axis))


def test_float_sums_keep_to_their_bound():
    """docs/reference/limits.md: along contiguous memory an element comes of n / lanes + log2(lanes) additions, not of n: of all
    ones with a small one each, a loop of additions loses what this does not."""
    n, lanes = 1 << 20, targets.of("cpu").properties.vector_bytes // 4
    x = (1 + RNG.random(n) * 1e-3).astype(f32)
    got = mlirfuse.jit(lambda x: np.cumsum(x), schedule={0: {"split": 1}})(x).astype(f64)
    exact = np.cumsum(x.astype(f64))
    count = np.arange(n) / lanes + np.log2(lanes) + 2
    assert np.all(np.abs(got - exact) <= count * 2.0**-24 * exact)
    for reverse in (False, True):
        a = np.full(n, 0.5, f32)
        got = mlirfuse.jit(lambda a, x: mnp.linear_recurrence(a, x, 0, reverse))(a, x).astype(f64)
        assert np.abs(got - recurrence(a, x, 0, reverse)).max() <= 8 * 2.0**-24 * 2.1


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", [f32, f64, np.int32])
def test_a_long_row_in_parts(dtype, reverse):
    """One row for several threads, each from the states of the parts before its own."""
    a, x = (RNG.integers(-2, 3, (1, 40_001)).astype(dtype) for _ in range(2))
    fn = mlirfuse.jit(
        lambda a, x: mnp.linear_recurrence(a / 3 if np.dtype(dtype).kind == "f" else a, x, 1, reverse),
        schedule={0: {"scheduler": "scan_rows", "split": 5}},
    )
    if dtype is np.int32:
        want = TABLE["linear_recurrence"].ref(a, x, axis=1, reverse=reverse)
        np.testing.assert_array_equal(fn(a, x), want)
    else:
        near(fn(a, x), recurrence((a / 3).astype(dtype), x, 1, reverse), 1e-6)


def test_schedules_that_cannot_be():
    """Parts of a scan of a scan are not known without those before them."""
    x = np.ones((2, 64), f32)
    chained = mlirfuse.jit(lambda x: np.cumsum(np.cumsum(x, 1), 1), schedule={0: {"split": 2}})
    with pytest.raises(ScheduleError, match="scans of scans"):
        chained(x)


def test_nan_and_infinities():
    """A maximum stays NaN from the first NaN on; logarithms of sums have no overflow, and begin at minus infinity."""
    x = RNG.standard_normal((4, 50)).astype(f32)
    x[0, 7], x[1, :3], x[2, 9] = np.nan, -np.inf, np.inf
    for axis in (0, 1):
        f = mlirfuse.jit(lambda x: (np.maximum.accumulate(x, axis), mnp.logcumsumexp(x * 200, axis)))
        highest, logarithms = f(x)
        np.testing.assert_array_equal(highest, np.maximum.accumulate(x, axis))
        with np.errstate(invalid="ignore"):
            want = np.logaddexp.accumulate(x.astype(f64) * 200, axis)
        finite = np.isfinite(want)
        np.testing.assert_array_equal(logarithms[~finite], want[~finite])
        np.testing.assert_allclose(logarithms[finite], want[finite], rtol=1e-6)


@pytest.mark.parametrize("axis", [0, 1])
def test_zeros_keep_their_sign(axis):
    """A sum of negative zeros is one, as NumPy's is; rows of all lengths that lanes are left over in."""
    for n in (2, 3, 5, 16, 40):
        x = np.full((20, n), -0.0, f32)
        x[3, n // 2] = 0.0
        got = mlirfuse.jit(lambda x: np.cumsum(x, axis))(x)
        np.testing.assert_array_equal(np.signbit(got), np.signbit(np.cumsum(x, axis)))
        got = mlirfuse.jit(lambda x: mnp.linear_recurrence(np.ones_like(x), x, axis))(x)
        np.testing.assert_array_equal(np.signbit(got)[:, 0], np.signbit(x)[:, 0])


def test_nothing_before_a_recurrence_stays_nothing():
    """Factors whose product overflows do not make NaN of a run that is 0 so far."""
    a, b = np.full((400, 400), 1.5, f32), np.zeros((400, 400), f32)
    b[-1, -1] = 1
    for axis in (0, 1):
        np.testing.assert_array_equal(mlirfuse.jit(lambda a, b: mnp.linear_recurrence(a, b, axis))(a, b), b)


# ----------------------------------------------------------------------------------------------------------------
# what is one kernel


def segments(fn, *args, target=None) -> list[str]:
    text = mlirfuse.jit(fn, target=target).lower(*args).as_text("segmented")
    return [line for line in text.split("\n") if "scheduler = " in line and "schedule = " in line]


@pytest.mark.parametrize(
    "fn, count",
    [
        (lambda x: np.exp(np.cumsum(np.sin(x), 1)) + x, 1),
        (lambda x: (np.cumsum(x, 1), np.maximum.accumulate(x, 1)), 1),
        (lambda x: np.cumsum(np.cumsum(x, 1), 1), 1),
        (flipped(1), 1),
        (lambda x: np.flip(np.cumsum(x, 1), 1), 2),  # the end is known last
        (lambda x: np.cumsum(np.cumsum(x, 1), 0), 2),
        (lambda x: np.cumsum(x, 1) + np.flip(np.cumsum(np.flip(x, 1), 1), 1), 2),  # from both ends
        (lambda x: np.cumsum(x, 1) / x.sum(1, keepdims=True), 1),
        (lambda x: np.cumsum(x, 1) / x.sum(0), 2),  # of other rows
        (lambda x: (np.maximum.accumulate(x, 1) - x).max(1), 2),  # known behind the scan alone
        (lambda x: np.cumsum(np.cumsum(x, 1) / np.cumsum(x, 1).max(1, keepdims=True), 1), 2),
        (lambda x: np.cumsum(x, 1)[:, 3:] - np.cumsum(x, 1)[:, :-3], 2),
    ],
)
def test_kernels(fn, count):
    x = RNG.standard_normal((6, 50))
    assert len(segments(fn, x)) == count
    np.testing.assert_allclose(mlirfuse.jit(fn)(x), fn(x), rtol=1e-9, atol=1e-12)


def test_in_place():
    """A scan may be written over its argument."""
    for axis in (0, 1):
        x = RNG.standard_normal((40, 60))
        want = np.cumsum(x, axis)

        def fn(x, axis=axis):
            x[...] = np.cumsum(x, axis)

        mlirfuse.jit(fn)(x)
        np.testing.assert_allclose(x, want, rtol=1e-12, atol=1e-12)


# ----------------------------------------------------------------------------------------------------------------
# GPUs


def normal(*shape, dtype=f32):
    return np.random.default_rng(3).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gpu(name, axis):
    """Several candidates: parts of a warp, a warp, several warps, and rows that take more than one turn."""
    bound = 3e-5 if name == "logarithm" else None
    for shape in ((3, 37), (70, 12), (2, 700), (300, 5)):
        check_on_gpu(FUNCTIONS[name](axis), normal(*shape), candidates=3, bound=bound)


@pytest.mark.parametrize("axis", [0, 1])
def test_gpu_logarithms_of_infinities(axis):
    """The gap between two infinities is NaN, which is in no result; a NaN among the elements is in all behind it."""
    x = normal(6, 150)
    x[0], x[1, :40], x[4, 3], x[2, [70, 80]], x[3, 5] = -np.inf, -np.inf, -np.inf, np.inf, np.nan
    x = x if axis else np.ascontiguousarray(x.T)
    with np.errstate(invalid="ignore"):
        check_on_gpu(FUNCTIONS["logarithm"](axis), x, candidates=3, bound=3e-5)


def test_gpu_logarithms_of_what_is_far_apart():
    """Each follows from the largest so far, not from the largest of all."""
    rising, falling = np.arange(-300, 300, dtype=f32)[None], np.arange(300, -300, -1, dtype=f32)[None]
    x = np.concatenate([rising, falling, np.where(rising % 7 == 0, 1e30, -1e30)])
    (got,) = results_on_gpu(lambda x: mnp.logcumsumexp(x, 1), x)
    want = np.logaddexp.accumulate(x.astype(f64), 1)
    np.testing.assert_allclose(got, want, rtol=3e-7, atol=3e-7)


@pytest.mark.parametrize("name", REDUCED)
def test_gpu_with_reductions(name):
    """Rows that lanes, a warp and several warps have in registers, and those that take turns; striped ones too."""
    for shape in ((3, 37), (70, 12), (2, 700), (3, 701)):
        check_on_gpu(REDUCED[name](1), normal(*shape), candidates=4, bound=3e-5)
    turns = lambda p: p._replace(tx=64, ty=1, vectors_per_thread=2, persistent=False)  # noqa: E731
    for shape in ((2, 704), (2, 701)):
        check_on_gpu(REDUCED[name](1), normal(*shape), candidates=1, changed=turns, bound=3e-5)


@pytest.mark.parametrize("name", ["share", "both"])
def test_gpu_columns_with_reductions(name):
    """The reductions are kernels of their own."""
    check_on_gpu(REDUCED[name](0), normal(70, 12), bound=3e-5)
    check_on_gpu(REDUCED[name](1), normal(30, 20, 5), bound=3e-5)


def test_gpu_rows_that_no_cache_holds_are_in_stages():
    """A kernel that reads a row again does so where the caches have it; sums of very many are by themselves."""
    x = lambda n: np.empty((4096, n), f32)  # noqa: E731
    for n, form in ((4096, "scan_rows"), (8191, "scan_rows"), (1 << 20, "multi_stage")):
        (found,) = segments(REDUCED["share"](1), x(n), target="cuda:sm_90")
        assert f'scheduler = "{form}"' in found and ("persistent = false" in found) == (n == 1 << 20)


@pytest.mark.parametrize("dtype", [f16, f64])
def test_gpu_types_with_reductions(dtype):
    for shape in ((5, 333), (4, 512)):
        check_on_gpu(REDUCED["both"](1), normal(*shape, dtype=dtype), candidates=2)


@pytest.mark.parametrize("dtype", [f16, f32, f64, np.int8])
@pytest.mark.parametrize("shape", [(1, 3), (5, 33), (70, 13), (3, 701), (2, 5001), (1, 60_001)])
def test_gpu_odd_rows_are_striped(shape, dtype):
    """Elements go through shared memory to the thread that scans them, and back; several scans, one after the other."""
    x, striped = (normal(*shape) * 5).astype(dtype), lambda p: p.in_shared
    check_on_gpu(lambda x: np.cumsum(x, 1), x, candidates=3, only=striped)
    if shape[1] < 1000:
        check_on_gpu(lambda x: (np.cumsum(x, 1) + x, np.maximum.accumulate(x > 1, 1)), x, candidates=2, only=striped)
        check_on_gpu(lambda x: np.maximum.accumulate(np.cumsum(x, 1), 1), x, candidates=2, only=striped)


@pytest.mark.parametrize("reverse", [False, True])
def test_gpu_striped_recurrence(reverse):
    """Two operands go through the same shared memory."""
    args = np.sin(normal(5, 333)), normal(5, 333)
    check_on_gpu(recurring(1, reverse), *args, candidates=3, only=lambda p: p.in_shared)


@pytest.mark.parametrize("chip", ["sm_70", "sm_80"])
def test_gpu_architectures(chip):
    check_on_gpu(FUNCTIONS["sum"](1), normal(3, 520), chip=chip)
    check_on_gpu(FUNCTIONS["sum"](0), normal(90, 24), chip=chip)


@pytest.mark.parametrize("dtype", [f16, f64, np.int8, np.int64])
@pytest.mark.parametrize("axis", [0, 1])
def test_gpu_types(dtype, axis):
    x = (normal(24, 136) * 5).astype(dtype)
    check_on_gpu(lambda x: (np.cumsum(x, axis), np.maximum.accumulate(x, axis)), x, candidates=2)
    check_on_gpu(lambda x: np.maximum.accumulate(x > 1, axis), x, candidates=2)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
def test_gpu_recurrence(axis, reverse):
    """Runs are combined in order: factors and what is added do not commute."""
    for shape in ((5, 300), (150, 24)):
        check_on_gpu(recurring(axis, reverse), np.sin(normal(*shape)), normal(*shape), candidates=4)


def test_gpu_scans_beside_each_other_of_half_types():
    """A thread has one vector, whose states of both scans are all that it may have."""
    both = lambda x: (np.cumsum(x, 1), np.maximum.accumulate(x, 1))  # noqa: E731
    check_on_gpu(both, normal(3, 512).astype(f16), candidates=4)


@pytest.mark.parametrize("name", ["sum", "from the end", "recurrence"])
def test_gpu_linked(name):
    """Long rows and columns whose turns are blocks, each of which begins with the state behind those before it, of its
    own group and of groups before."""
    for shape in ((1, 20_000), (2, 9_001)):  # more than two groups of 32 turns
        check_on_gpu(
            FUNCTIONS[name](1),
            normal(*shape),
            candidates=2,
            only=lambda p: p.tx >= 32,
            changed=lambda p: p._replace(chained=1, persistent=False, tx=32, vectors_per_thread=2),
        )
    for shape in ((300, 40), (70, 130)):
        check_on_gpu(FUNCTIONS[name](0), normal(*shape), candidates=2, changed=lambda p: p._replace(chained=1))


@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.int32])
def test_gpu_linked_numbers_of_other_widths(dtype):
    """Numbers of eight bytes are two words of what others read."""
    rng = np.random.default_rng(3)
    large = 1 << (dtype(0).nbytes * 8 - 12)
    along = lambda p: p._replace(chained=1, persistent=False, tx=32, vectors_per_thread=2)  # noqa: E731
    down = lambda p: p._replace(chained=1)  # noqa: E731
    for axis, shape, changed in ((1, (2, 9001), along), (0, (300, 40), down)):
        x = rng.integers(-large, large, shape).astype(dtype)
        if dtype is np.float64:
            x = x + rng.standard_normal(shape)
        only = (lambda p: p.tx >= 32) if axis else (lambda p: True)
        check_on_gpu(lambda x, axis=axis: np.cumsum(x, axis, x.dtype), x, candidates=1, only=only, changed=changed)


def test_gpu_linked_scans_of_odd_rows_beside_each_other():
    """What one scan's elements are read from is written by what the other makes."""
    both = lambda x: (np.cumsum(x, 1), np.maximum.accumulate(x * 2, 1))  # noqa: E731
    for tx, shape in ((32, (1, 2001)), (128, (2, 3003))):
        linked = lambda p, tx=tx: p._replace(chained=1, persistent=False, tx=tx, ty=1, vectors_per_thread=8)  # noqa: E731
        check_on_gpu(both, normal(*shape), candidates=1, only=lambda p: p.in_shared, changed=linked)


@pytest.mark.parametrize("name", ["sum", "from the end", "recurrence", "logarithm"])
@pytest.mark.parametrize("shape", [(2500, 12), (1500, 1, 5), (900, 3)])
def test_gpu_linked_narrow_columns(name, shape):
    """A warp has several rows of threads, as they are chosen for many more rows; there are several groups."""
    x = normal(*shape)
    bound = 3e-5 if name == "logarithm" else None
    linked = lambda p: p._replace(ty=32 // p.tx, rows_per_thread=2, chained=1)  # noqa: E731
    check_on_gpu(FUNCTIONS[name](0), x, candidates=1, changed=linked, bound=bound)


@pytest.mark.parametrize("shape, dtype", [((1100, 2), f32), ((1281, 33), f16), ((1025, 130), f32), ((2100, 3), f32)])
def test_gpu_linked_columns_as_chosen(shape, dtype):
    """Even rows and odd ones, fewer columns than a warp has threads, and more."""
    both = lambda x: (np.cumsum(x * x[:1], 0), np.maximum.accumulate(x, 0))  # noqa: E731
    for fn in (FUNCTIONS["from the end"](0), both):
        check_on_gpu(fn, np.sin(normal(*shape)).astype(dtype), candidates=1, only=lambda p: p.chained)


@pytest.mark.parametrize("name", ["sum", "extrema", "from the end"])
@pytest.mark.parametrize("shape", [(2600, 12), (2100, 31), (2100, 5)])
def test_gpu_linked_narrow_columns_with_high_turns(name, shape):
    """As they are chosen for many more rows; the last turn has some that are not there."""
    tx = 8 if shape[1] < 9 else 16 if shape[1] < 17 else 32
    tall = lambda p: p._replace(tx=tx, ty=4, rows_per_thread=32, chained=2)  # noqa: E731
    check_on_gpu(FUNCTIONS[name](0), np.sin(normal(*shape)), candidates=1, only=lambda p: p.chained, changed=tall)


@pytest.mark.parametrize("shape, dtype, rows, linked", [
    ((2_500_000, 12), f32, 32, 1),
    ((2_000_000, 24), f16, 32, 2),
    ((1_000_000, 31), f32, 32, 2),
    ((1_000_000, 31), np.float64, 16, 2),  # as many bytes
    ((100_000, 129), f16, 32, 1),  # few strips of odd rows of short elements
    ((100_000, 129), f32, 16, 1),
    ((10_000, 2049), f16, 16, 1),
    ((5_000, 129), f16, 16, 1),  # too few turns
    ((262_144, 96), f16, 32, 1),  # vectors of two would leave threads idle
    ((262_144, 128), f16, 16, 1),
    ((2_500_000, 3), f32, 16, 1),
    ((20_000, 12), f32, 16, 1),  # too few turns for all multiprocessors
    ((2_500_000, 40), f32, 32, 1),  # two strips
    ((8, 500_000, 12), f32, 32, 1),  # eight chains
])  # fmt: skip
def test_gpu_long_chains_of_narrow_columns_have_high_turns(shape, dtype, rows, linked):
    params = chosen(lambda x: np.cumsum(x, len(shape) - 2), *shape, dtype=dtype)
    assert (params.rows_per_thread, params.chained) == (rows, linked)


@pytest.mark.parametrize("width, tx, ty, vectors", [
    (3, 1, 128, 3),
    (5, 2, 64, 3),
    (31, 8, 16, 5),
    (63, 16, 8, 5),  # 4 in an odd number
    (127, 32, 4, 4),  # a warp's
    (257, 32, 2, 9),
    (2001, 128, 1, 17),
])  # fmt: skip
def test_gpu_odd_rows_have_an_odd_number_of_elements_a_thread(width, tx, ty, vectors):
    params = chosen(lambda x: np.cumsum(x, 1), 20_000, width)
    assert params.in_shared and (params.tx, params.ty, params.vectors_per_thread) == (tx, ty, vectors)


@pytest.mark.parametrize("count", [5, 9])
@pytest.mark.parametrize("rows, width", [(1, 5), (8, 9), (600, 33), (8, 79), (8, 1001)])
def test_gpu_many_scans_of_short_odd_rows(count, rows, width):
    """Of many numbers a thread has few elements."""

    def fn(x):
        return tuple(np.cumsum(x * k, 1) for k in range(count))

    check_on_gpu(fn, np.sin(normal(rows, width)), candidates=1)


@pytest.mark.parametrize("name", ["sum", "from the end", "recurrence", "logarithm"])
@pytest.mark.parametrize("beside, tx, ty, rows", [(2, 8, 4, 2), (4, 8, 8, 1), (2, 32, 1, 4), (4, 4, 16, 2)])
def test_gpu_several_columns_of_a_thread(name, beside, tx, ty, rows):
    """Of the last strip some columns are there, or a vector's first ones, or none."""
    bound = 3e-5 if name == "logarithm" else None
    several = lambda p: p._replace(vectors_per_thread=beside, tx=tx, ty=ty, rows_per_thread=rows, chained=0)  # noqa: E731
    for shape in ((41, 37), (3, 65), (70, 5), (2, 19, 9)):
        check_on_gpu(FUNCTIONS[name](len(shape) - 2), normal(*shape), candidates=1, changed=several, bound=bound)


def test_gpu_several_columns_of_a_thread_with_outputs_of_a_row():
    fn = lambda x, w: (np.cumsum(x * w, 0), np.maximum.accumulate(x, 0), np.exp(w))  # noqa: E731
    several = lambda p: p._replace(vectors_per_thread=2, tx=16, ty=4, rows_per_thread=2, chained=0)  # noqa: E731
    check_on_gpu(fn, normal(50, 51), normal(1, 51), candidates=1, only=lambda p: p.ty, changed=several)


@pytest.mark.parametrize("dtype", [f16, f32])
def test_gpu_several_columns_of_a_thread_where_rows_are_odd_and_many(dtype):
    """Each multiprocessor has all of its strips at once; of fewer strips turns are linked."""
    for shape, several in (((1024, 50257), True), ((512, 100001), True), ((8192, 8191), False), ((1024, 50256), False)):
        params = chosen(lambda x: np.cumsum(x, 0), *shape, dtype=dtype)
        assert (params.vectors_per_thread > 1) == several
        if several:
            strips = -(-shape[1] // (params.tx * params.width))
            assert 1024 >= -(-strips // 132) * params.tx * params.ty >= 512


def test_gpu_linked_columns_whose_groups_have_several_turns_a_thread():
    for turns in (2, 4):
        linked = lambda p, turns=turns: p._replace(ty=32 // p.tx, rows_per_thread=2, chained=turns)  # noqa: E731
        check_on_gpu(FUNCTIONS["recurrence"](0), np.sin(normal(700, 5)), candidates=1, changed=linked)


def chosen(fn, *shape, dtype=f32):
    """The parameters of the only kernel of ``fn``."""
    lowered = mlirfuse.jit(fn, target="cuda:sm_90").lower(np.empty(shape, dtype))
    program = Program(lowered.segmented(), targets.of("cuda:sm_90"), lowered.env)
    (params,) = program.parameters(lowered.env, {})
    return params


def softplus_sums(x):
    return np.cumsum(mnp.softplus(x), 1)


def test_gpu_few_long_odd_rows_have_many_threads():
    few, some, many = (chosen(lambda x: np.cumsum(x, 1), rows, 8191, dtype=f16) for rows in (16, 500, 4000))
    assert few.in_shared and few.tx > some.tx > many.tx
    for dtype in (f16, np.int8, np.float64):  # the elements of as many threads have room in shared memory
        check_on_gpu(lambda x: np.cumsum(x, 1), (normal(3, 5001) * 9).astype(dtype), candidates=1)


def test_gpu_elements_that_take_many_instructions_are_few():
    """Of a thread, in a turn of a long row: registers hold what is computed of all of them at once."""
    for columns, dtype in ((8191, f32), (8191, f16), (8192, f16)):
        plain = chosen(lambda x: np.cumsum(x, 1), 4000, columns, dtype=dtype)
        dear = chosen(softplus_sums, 4000, columns, dtype=dtype)
        assert dear.vectors_per_thread * dear.access.lanes < plain.vectors_per_thread * plain.access.lanes
    check_on_gpu(softplus_sums, normal(2, 5001), candidates=1, bound=1e-5)


def test_gpu_the_last_turn_of_what_takes_many_instructions_is_full():
    for columns in (3000, 5120, 8192):
        dear = chosen(lambda x: mnp.logcumsumexp(x, 1), 4000, columns)
        turn = dear.tx * dear.vectors_per_thread * dear.access.lanes
        assert not dear.persistent and -columns % turn < columns / 20


def test_gpu_rows_of_one_turn_take_the_vectors_that_they_have():
    """Not a power of two of them, of which some would be past the end for all threads."""
    for columns, dtype in ((770, f32), (3000, f32), (1500, f32), (3000, np.float64)):
        params = chosen(lambda x: np.cumsum(x, 1), 4096, columns, dtype=dtype)
        needed = columns // params.access.lanes
        assert (
            params.persistent
            and (params.vectors_per_thread - 1) * params.tx < needed <= params.vectors_per_thread * params.tx
        )
        check_on_gpu(lambda x: np.cumsum(x, 1), normal(2, columns).astype(dtype), candidates=1)


def test_gpu_costly_scans_of_narrow_vectors_are_striped():
    given = ((770, f32, True), (2002, f16, True), (772, f32, False), (2004, f16, False), (770, f64, False))
    for columns, dtype, striped in given:
        params = chosen(lambda x: mnp.logcumsumexp(x, 1), 4096, columns, dtype=dtype)
        assert params.in_shared == striped
        assert not chosen(lambda x: np.cumsum(x, 1), 4096, columns, dtype=dtype).in_shared


def sums_of(axis):
    return lambda x: np.cumsum(x, axis)


def recurrence_of(axis):
    return lambda x: mnp.linear_recurrence(x, x, axis)


def logarithms_of(axis):
    return lambda x: mnp.logcumsumexp(x, axis)


@pytest.mark.parametrize("fn", [lambda x: mnp.logcumsumexp(x, 0), recurrence_of(0)])
def test_gpu_turns_down_columns_are_as_high_for_states_of_two_numbers(fn):
    for shape in ((5000, 6144), (100_000, 128), (1024, 8192), (1_000_000, 24)):
        params, plain = chosen(fn, *shape), chosen(lambda x: np.cumsum(x, 0), *shape)
        assert params.rows_per_thread == plain.rows_per_thread and params.chained == plain.chained
        assert params.rows_per_thread * params.width <= 32


def test_gpu_long_rows_of_short_elements_have_as_many_whatever_their_states():
    for rows, columns in ((1000, 40_000), (300, 100_000)):
        params = chosen(recurrence_of(1), rows, columns, dtype=f16)
        assert not params.persistent and params.vectors_per_thread * params.access.lanes == 16
    check_on_gpu(recurrence_of(1), np.sin(normal(2, 9000)).astype(f16), candidates=1)


def test_gpu_narrow_columns_fill_the_machine():
    params = chosen(lambda x: np.cumsum(x, 0), 2_500_000, 12)
    assert (
        params.chained and 2_500_000 // (params.ty * params.rows_per_thread) * params.tx * params.ty >= 132 * 2048
    )  # threads


def test_gpu_linked_with_outputs_of_a_row():
    fn = lambda x, w: (np.cumsum(x * w, 1), np.exp(w))  # noqa: E731
    check_on_gpu(fn, normal(2, 80_000), normal(2, 1), candidates=1, only=lambda p: p.chained)
    check_on_gpu(lambda x: np.maximum.accumulate(x > 1, 1), normal(1, 80_000), candidates=1, only=lambda p: p.chained)


@pytest.mark.parametrize("shape, axis", [((1, 1 << 24), 1), ((1 << 20, 12), 0)])
@pytest.mark.parametrize("dtype", [f32, np.float64])
def test_gpu_links_are_seen_at_once(shape, axis, dtype):
    """What other blocks leave is read by the word that says that it is there, which the emulator cannot tell: no other
    load is of memory that is written meanwhile, and each state is shown after the last word that it is made of."""
    lowered = mlirfuse.jit(lambda x: np.cumsum(x, axis), target="cuda:sm_90").lower(np.empty(shape, dtype))
    (kernel,) = [text for text in lowered.as_text("ptx").split(".visible .entry") if "ld.relaxed" in text]
    found = re.findall(r"^\s*(?:@!?%p\d+\s+)?((?:ld|st|atom)\.[\w.]+)", kernel, re.MULTILINE)
    looks = [at for at, op in enumerate(found) if op == "ld.relaxed.gpu.global.b64"]
    shows = [at for at, op in enumerate(found) if op == "st.relaxed.gpu.global.b64"]
    assert all(op.startswith("ld.global.nc") for op in found if op.startswith("ld.global"))
    assert looks and min(shows) < min(looks) and max(looks) < max(shows)


def test_gpu_long_rows_are_linked():
    """A row of 16 million elements is not one block's; chains of scans are."""
    for fn, several in ((lambda x: np.cumsum(x), True), (lambda x: np.cumsum(np.cumsum(x)), False)):
        text = mlirfuse.jit(fn, target="cuda:sm_90").lower(np.empty(1 << 24, f32)).as_text("tiled")
        assert (text.count("gpu.func") == 2) == several


def test_gpu_layouts():
    """Scans over several axes of memory, strided ones, and outputs that are not along the rows."""
    check_on_gpu(lambda x: np.cumsum(x), normal(7, 9, 5), candidates=3)
    check_on_gpu(lambda x: np.cumsum(x.transpose(2, 0, 1).reshape(6, -1), 1), normal(7, 9, 6), candidates=3)
    check_on_gpu(lambda x: np.cumsum(x, 1), normal(3, 20, 6), candidates=3)
    check_on_gpu(lambda x, w: (np.cumsum(x * w, 1), np.exp(w)), normal(9, 40), normal(9, 1), candidates=3)


@pytest.mark.skipif(PTXAS is None, reason="needs ptxas")
@pytest.mark.parametrize("chip", ["sm_75", "sm_90", "sm_100"])
@pytest.mark.parametrize("shape", [(4096, 4096), (64, 1_000_003), (131_072, 33)])
def test_nothing_spills(chip, shape):
    a = np.empty(shape, f32)
    h = np.empty(shape, f16)
    work = [(sums_of(axis), [x]) for axis in (0, 1) for x in (a, h)]
    work += [(recurrence_of(axis), [a]) for axis in (0, 1)]
    if chip != "sm_75":  # up to 16 bytes there
        work += [(logarithms_of(axis), [x]) for axis in (0, 1) for x in (a, h)]
    work += [(REDUCED[name](1), [x]) for name in ("share", "nucleus") for x in (a, h)]
    for fn, args in work:
        for kernel in assembled(fn, *args, chip=chip).values():
            assert kernel.stack == kernel.spilled == 0, kernel


@pytest.mark.skipif(PTXAS is None, reason="needs ptxas")
@pytest.mark.parametrize("fn, shape, dtype", [
    (lambda x: np.cumsum(np.cumsum(x, 0), 0), (5000, 6144), f16),
    (lambda x: mnp.linear_recurrence(x, mnp.logcumsumexp(x, 0), 0), (100_000, 128), f32),
    (lambda x: (np.maximum.accumulate(x, 0), np.minimum.accumulate(x + 1, 0)), (300_000, 5), f64),
    (lambda x: (np.maximum.accumulate(x, 0), np.minimum.accumulate(x + 1, 0)), (300_000, 5), f32),
    (lambda x: (np.cumsum(x, 0), np.cumsum(x * x, 0)), (300_000, 5), np.int8),  # sums of 64 bits
    (lambda x: mnp.logcumsumexp(x, 0), (2_000_000, 12), f64),
    (lambda x: mnp.logcumsumexp(x, 1), (300, 50_257), f64),
    (lambda x: (np.cumsum(x, 1), np.cumsum(x * x, 1)), (16, 100_000), f16),
    (lambda x: tuple(np.cumsum(x * n, 1) for n in range(3)), (4000, 770), f64),
    (lambda x: tuple(np.cumsum(f(x), 0) for f in (np.tanh, np.exp, np.sin)), (5000, 6144), f32),
])  # fmt: skip
def test_states_of_several_numbers_do_not_spill(fn, shape, dtype):
    """Twice as high turns are for two numbers of 32 bits of scans that do not follow from each other."""
    for kernel in assembled(fn, np.empty(shape, dtype), chip="sm_90").values():
        assert kernel.stack == kernel.spilled == 0, kernel


@pytest.mark.parametrize("dtype, columns", [(np.float64, 8193), (np.float64, 10_001), (np.int32, 8193), (f32, 8193)])
def test_odd_rows_that_are_reduced_first_fit_shared_memory(dtype, columns):
    lowered = mlirfuse.jit(lambda x: (np.cumsum(x, -1) + x, x.max(-1)), target="cuda:sm_90").lower(
        np.empty((3, columns), dtype)
    )
    target = targets.of("cuda:sm_90")
    program = Program(lowered.segmented(), target, lowered.env)
    for step, params in zip(program.steps, program.parameters(lowered.env, {}), strict=True):
        target.schedulers.check(step.analysis, params, SizedCall(lowered.env, {}, target.properties))


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90"])
def test_other_schedules_are_refused(target):
    """What a row takes has to fit what is given by hand."""
    lowered = mlirfuse.jit(lambda x: np.cumsum(x, 1), target=target).lower(normal(8, 4096))
    program = Program(lowered.segmented(), targets.of(target), lowered.env)
    (step,) = program.steps
    wrong = [{"split": 0}, {"streamed": True}] if target == "cpu" else [{"persistent": True, "vectors_per_thread": 1, "tx": 32}, {"vectors_per_thread": 3}, {"tx": 64, "ty": 2}]  # fmt: skip
    for given in wrong:
        with pytest.raises(ScheduleError):
            program.target.schedulers.read(given, step.analysis, SizedCall(lowered.env, {step.analysis.outputs[0]: 4}, program.target.properties))  # fmt: skip


# ----------------------------------------------------------------------------------------------------------------
# front ends


@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0), (0, 3), (4, 1), (5,), (2, 3, 4)])
def test_shapes_as_numpy_has_them(shape):
    x = np.asarray(RNG.standard_normal(shape))
    for axis in (None, *range(x.ndim)):
        got = mlirfuse.jit(lambda x: np.cumsum(x, axis))(x)
        assert got.shape == np.cumsum(x, axis).shape
        np.testing.assert_allclose(got, np.cumsum(x, axis))


def test_numpy_names():
    x = RNG.standard_normal((5, 9))
    got = mlirfuse.jit(lambda x: (np.logaddexp.accumulate(x, 1), np.add.accumulate(x), x.cumprod(0)))(x)
    for a, b in zip(got, (np.logaddexp.accumulate(x, 1), np.add.accumulate(x), x.cumprod(0))):
        np.testing.assert_allclose(a, b)
    np.testing.assert_allclose(mnp.linear_recurrence(0.5, x), recurrence(0.5, x, 1))
    np.testing.assert_allclose(mnp.logcumsumexp(x, 0), np.logaddexp.accumulate(x, 0))
    assert mlirfuse.jit(lambda x: mnp.linear_recurrence(2, x.astype(np.int16)))(x).dtype == np.int16


def test_torch():
    """Running sums and their gradients are kernels of ours: those scan from the end."""
    torch = pytest.importorskip("torch")

    def fn(x, dim):
        return (torch.cumsum(x.sin(), dim) * 2).exp(), x.cumprod(dim), torch.logcumsumexp(x, dim)

    for dim in (0, -1):
        x = torch.randn(6, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) / 10
        given = [x.clone().requires_grad_() for _ in range(2)]
        results = []
        for f, y in zip((fn, torch.compile(fn, backend="mlirfuse")), given):
            out = f(y, dim)
            sum(o.sum() for o in out).backward()
            results.append([*out, y.grad])
        for a, b in zip(*results):
            torch.testing.assert_close(a, b)
