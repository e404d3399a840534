"""Sums, means and variances of very many float32 elements, in every scheduler.

The reference is float64. The error of a sum is at most ``4 eps log2(n)`` of the sum of magnitudes, median of seeds.
Arrays that repeat a row by a stride of 0 are as long as they look to a kernel, and small.
"""

import ml_dtypes
import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided
from test_gpu_emulated import check, norm_backward, two_multiprocessors  # noqa: F401  (a fixture)

import mlirfuse
from mlirfuse.core import config
from mlirfuse.core.errors import ScheduleError
from mlirfuse.runtime.program import Program
from mlirfuse.schedule import targets
from mlirfuse.schedule.gpu.scheduler import COMPENSATION_INTERVAL
from mlirfuse.schedule.gpu.scheduler_list import SCHEDULERS
from mlirfuse.schedule.scheduler import SizedCall

EPS = float(np.finfo(np.float32).eps)
STEADY = 4 * EPS  # of however many elements: less than the bound of a thousand


@pytest.fixture(autouse=True)
def no_fallback():
    with config.override(fallback=False):
        yield


def bound(n: int) -> float:
    """Of the error of a sum of ``n`` elements, relative to the sum of magnitudes."""
    return 4 * EPS * np.log2(n)


def repeated(block: np.ndarray, times: int) -> np.ndarray:
    """``block`` so often, one behind the other along a new first axis, in the memory of one."""
    return as_strided(block, (times, *block.shape), (0, *block.strides))


def near(mean: float, shape, seed: int = 0) -> np.ndarray:
    return (mean + np.random.default_rng(seed).random(shape)).astype(np.float32)


def error(got, x: np.ndarray, times: int, axis=None) -> float:
    """The median error of sums of ``x``, so many times each, relative to the sums of magnitudes."""
    wide = x.astype(np.float64)
    exact, size = times * wide.sum(axis), times * np.abs(wide).sum(axis)
    return float(np.median(np.abs(np.asarray(got, np.float64) - exact) / size))


total = mlirfuse.jit(lambda x: x.sum())
down = mlirfuse.jit(lambda x: x.sum(0))
along = mlirfuse.jit(lambda x: x.sum(-1))
VARIANCES = {axis: mlirfuse.jit(lambda x, axis=axis: np.var(x, axis)) for axis in (None, 0, 1)}


# ---- sums


@pytest.mark.parametrize("mean", [0.1, 10000.0])
def test_sum_of_all(mean):
    """One loop, in parts."""
    x = near(mean, 40_000_000)
    assert error(total(x), x, 1) < STEADY


def test_sum_of_equal_numbers():
    """Each addition rounds to the same side."""
    x = np.full(1 << 16, 0.1, np.float32)
    assert error(total(repeated(x, 2000)), x, 2000) < 2 * STEADY


def test_sum_of_a_half_type():
    """Accumulates in float32, and is rounded once."""
    x = np.full(1 << 16, 0.1, np.float32).astype(ml_dtypes.bfloat16)
    got = mlirfuse.jit(lambda x: x.astype(np.float32).sum())(repeated(x, 2000))
    assert error(got, x, 2000) < 2 * STEADY
    exact = 2000 * x.astype(np.float64).sum()
    assert abs(float(total(repeated(x, 2000))) - exact) <= exact * 2.0**-8


@pytest.mark.parametrize("columns", [1, 3, 8, 100, 700])
def test_sums_down_columns(columns):
    """In buffers, of rows that are taken as one and of others."""
    x = near(10000, (64, columns))
    times = 30_000_000 // x.size
    assert error(down(repeated(x, times).reshape(-1, columns)), x, times, 0) < STEADY


@pytest.mark.parametrize("columns", [1, 3, 8, 100, 700])
def test_sums_down_columns_of_many_blocks_of_rows(columns):
    """Two loops over rows, the inner one short: memory does not run through both as through one."""
    x = near(10000, (7, columns))
    times = 20_000_000 // x.size
    got = mlirfuse.jit(lambda x: x.sum((0, 1)))(repeated(x, times))
    assert error(got, x, times, 0) < STEADY


@pytest.mark.parametrize("length", [7, 100, 5000])
def test_sums_of_rows_in_pieces(length):
    """Two loops along each row, the outer one long."""
    x = near(10000, (3, length))
    times = 20_000_000 // x.size
    got = mlirfuse.jit(lambda x: x.sum((0, 2)))(repeated(x, times))
    assert error(got, x, times, 1) < STEADY


def test_sums_along_rows_for_each_thread():
    """As many rows as threads share: none in parts."""
    x = near(10000, (64, 5000))
    times = 100
    got = mlirfuse.jit(lambda x: x.sum((0, 2)))(repeated(x, times))
    assert error(got, x, times, 1) < STEADY


def test_strided_sum():
    x = near(10000, 30_000_000)
    assert error(total(x[::3]), x[::3], 1) < STEADY


def test_sum_of_what_is_computed():
    x = near(100, 1 << 16)
    got = mlirfuse.jit(lambda x: (x * x + 1).sum())(repeated(x, 500))
    assert error(got, x.astype(np.float64) ** 2 + 1, 500) < STEADY


def test_sums_beside_outputs_as_long_as_columns():
    """A normalization: accumulators in registers."""
    x = near(10000, (300_000, 40))
    got, shares = mlirfuse.jit(lambda x: (x.sum(0), x / x.sum(0)))(x)
    assert error(got, x, 1, 0) < STEADY
    np.testing.assert_allclose(shares[:9], x[:9] / x.sum(0, dtype=np.float64), rtol=1e-6)


def test_softmax_of_a_long_row():
    """The sum of exponentials."""
    x = np.zeros(30_000_000, np.float32)
    x[1::2] = -1
    got = mlirfuse.jit(lambda x: np.exp(x - x.max()).sum())(x)
    exact = x.size / 2 * (1 + np.exp(-1.0))
    assert abs(float(got) - exact) < exact * STEADY


# ---- means and variances


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("columns", [1, 8, 100, 1000])
def test_variance(axis, columns):
    """Far from 0, where squares of elements say nothing of it."""
    x = near(10000, (30_000_000 // columns, columns))
    x = np.ascontiguousarray(x.T) if axis == 1 else x
    got, exact = VARIANCES[axis](x), np.var(x, axis, dtype=np.float64)
    np.testing.assert_allclose(got, exact, rtol=2e-4)


def test_variance_beside_something_large():
    """The mean of the first block says nothing of the others'."""
    x = near(10000, 20_000_000)
    x[:5000] = 0
    np.testing.assert_allclose(VARIANCES[None](x), np.var(x, dtype=np.float64), rtol=2e-4)


def test_variance_that_drifts():
    """Each block has another mean."""
    x = np.linspace(0, 1000, 20_000_000, dtype=np.float32)
    np.testing.assert_allclose(VARIANCES[None](x), np.var(x, dtype=np.float64), rtol=1e-5)


def test_batch_norm():
    """Two loops along a row, of which many outputs are made."""
    x = near(1000, (4000, 4, 700))

    def norm(x):
        return (x - x.mean((0, 2), keepdims=True)) / np.sqrt(x.var((0, 2), keepdims=True))

    wide = x.astype(np.float64)
    exact = (wide - wide.mean((0, 2), keepdims=True)) / wide.std((0, 2), keepdims=True)
    np.testing.assert_allclose(mlirfuse.jit(norm)(x), exact, atol=2e-3)


def test_layer_norm_of_long_rows():
    torch = pytest.importorskip("torch")
    x = near(1000, (2, 4_000_000))
    wide = x.astype(np.float64)
    exact = (wide - wide.mean(1, keepdims=True)) / wide.std(1, keepdims=True)
    norm = torch.compile(lambda x: torch.nn.functional.layer_norm(x, x.shape[1:]), backend="mlirfuse")
    np.testing.assert_allclose(norm(torch.from_numpy(x)).numpy(), exact, atol=2e-3)
    both = torch.compile(lambda x: torch.var_mean(x, 0), backend="mlirfuse")
    variance, mean = both(torch.from_numpy(x.reshape(-1, 4)))
    np.testing.assert_allclose(variance, np.var(x.reshape(-1, 4), 0, dtype=np.float64), rtol=2e-4)
    np.testing.assert_allclose(mean, np.mean(x.reshape(-1, 4), 0, dtype=np.float64), rtol=1e-6)


@pytest.mark.parametrize(
    "fn, long", [(lambda x: x.sum(-1), True), (lambda x: np.var(x, -1), True), (lambda x: x.max(-1), False)]
)
def test_running_totals_are_for_long_rows(fn, long):
    """Others' loops are what they would be without, and a schedule cannot do without where they are needed."""

    def lowered(width: int):
        return mlirfuse.jit(fn, target="cpu").lower(np.zeros((40, width), np.float32))

    short, wide = (lowered(width).as_text("tiled") for width in (4096, 400_000))
    assert "compensation_interval = 0" in short and f"compensation_interval = {64 * long}" in wide
    asked = mlirfuse.jit(fn, target="cpu", schedule={0: {"scheduler": "rows", "compensation_interval": 0}})
    x = np.zeros((40, 400_000), np.float32)
    if long:
        with pytest.raises(ScheduleError, match="compensation_interval = 0: sums of 400000 elements need one"):
            asked.lower(x).as_text("tiled")
    else:
        asked.lower(x).as_text("tiled")


# ---- what a total must not change


@pytest.mark.parametrize("values", [(np.inf,), (-np.inf,), (np.nan,), (np.inf, -np.inf), (3e38, 3e38)], ids=str)
@pytest.mark.parametrize("columns", [1, 40])
def test_what_is_not_finite(values, columns):
    """An infinity stays one, wherever it stands; a sum past the largest number is one."""
    x = np.ones((6_000_000 // columns, columns), np.float32)
    for at, value in enumerate(values):
        x[at * 2_000_000 // columns + 7] = value
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(total(x), x.astype(np.float64).sum().astype(np.float32))
        np.testing.assert_array_equal(down(x), x.astype(np.float64).sum(0).astype(np.float32))
        if not np.isfinite(values[0]):
            np.testing.assert_array_equal(VARIANCES[0](x), np.full(columns, np.nan, np.float32))
            mean, variance = mlirfuse.jit(lambda x: (x.mean(0), x.var(0)))(x)
            np.testing.assert_array_equal(mean, x.astype(np.float64).mean(0).astype(np.float32))
            np.testing.assert_array_equal(variance, np.full(columns, np.nan, np.float32))


def test_integers_wrap_and_extremes_are_exact():
    x = np.arange(20_000_000, dtype=np.int32)
    assert int(mlirfuse.jit(lambda x: x.sum(dtype=np.int32))(x)) == int(x.sum(dtype=np.int32))
    y = near(0, 20_000_000)
    assert mlirfuse.jit(lambda x: (x.max(), x.argmin()))(y) == (y.max(), y.argmin())


def test_nothing_and_one():
    assert total(np.zeros(0, np.float32)) == 0
    np.testing.assert_array_equal(down(np.zeros((0, 3), np.float32)), np.zeros(3))
    np.testing.assert_array_equal(along(np.zeros((3, 0), np.float32)), np.zeros(3))
    assert total(np.array([7], np.float32)) == 7
    np.testing.assert_array_equal(VARIANCES[0](np.ones((1, 5), np.float32)), np.zeros(5))


# ---- on a GPU: the PTX, emulated. A few threads take as many turns as thousands do of a billion elements.


def few_threads(params, turns=16):
    """Of a loop over rows or columns."""
    if getattr(params, "scheduler", "") == "rows":
        return params._replace(
            tx=32,
            ty=1,
            vectors_per_thread=0,
            split=1,
            cluster=1,
            unmasked=0,
            in_shared=False,
            prefetch=False,
            compensation_interval=turns,
        )
    if getattr(params, "scheduler", "") == "columns":
        return params._replace(
            tx=8,
            ty=4,
            rows_per_thread=4,
            split=1,
            cluster=1,
            persistent=False,
            stages=0,
            compensation_interval=turns,
        )
    one, *others = params.own.schedules
    one = one._replace(ty=1, stages=0, compensation_interval=turns)
    return params.replaced(schedules=(one, *others))


def long_equal(*shape):
    return np.full(shape, 0.1, np.float32)


def test_rows_of_many_turns():
    check(lambda x: x.sum(-1), long_equal(1, 300_000), changed=few_threads, candidates=1, bound=2 * STEADY)
    check(lambda x: x.sum(-1), long_equal(1, 30_001).repeat(2, 1), changed=few_threads, candidates=1, bound=2 * STEADY)


def test_columns_of_many_turns():
    check(lambda x: x.sum(0), long_equal(9600, 32), changed=few_threads, candidates=1, bound=2 * STEADY)


def test_variances_of_many_turns():
    """An error of the mean becomes one of each later turn's deviations."""
    x = near(100_000, (1, 200_000))
    check(lambda x: x.var(-1), x, changed=few_threads, candidates=1, bound=5e-3)
    x = near(100_000, (6400, 32))
    check(lambda x: x.var(0), x, changed=few_threads, candidates=1, bound=5e-3)


def test_sums_over_many_rows_beside_reductions_in_them(two_multiprocessors):  # noqa: F811
    """What each block of threads adds up of its rows."""
    together = lambda p: p.own.form == "together"  # noqa: E731
    inputs = [long_equal(2000, 32), long_equal(2000, 32)]
    check(norm_backward, *inputs, only=together, changed=few_threads, candidates=1, bound=2 * STEADY)


@pytest.mark.parametrize(
    "fn, shape, long",
    [
        (lambda x: x.sum(-1), (16384, 16384), False),
        (lambda x: x.sum(0), (16384, 16384), False),
        (lambda x: x.sum(), (16384, 16384), False),
        (lambda x: np.var(x, 0), (1 << 24, 64), True),
        (lambda x: x.sum(-1), (2000, 10_000_000), True),
        (lambda x: x.max(-1), (2000, 10_000_000), False),
        (lambda x: x.sum(0), (1 << 22, 16384), True),
        (lambda x: x.sum(1), (100, 1 << 22, 512), True),
    ],
)
def test_blocks_are_for_long_loops(fn, shape, long):
    """Kernels whose threads have fewer turns are what they were."""
    lowered = mlirfuse.jit(fn, target="cuda:sm_90").lower(np.zeros([8] * len(shape), np.float32))
    target = targets.of("cuda:sm_90")
    program = Program(lowered.segmented(), target, lowered.env)
    env = {str(size): n for size, n in zip(program.graph.args[0].shape, shape)}
    params = SCHEDULERS.choose(program.steps[0].analysis, SizedCall(env, {}, target.properties))
    assert params.compensation_interval == (COMPENSATION_INTERVAL if long else 0)


# ---- of all lengths


@pytest.mark.slow
@pytest.mark.parametrize("n", [10**k for k in range(3, 10)])
def test_bound(n):
    """The bound itself: 20 seeds, and over either axis. 1e9 elements take 4 GB."""
    errors = {"all": [], "axis 0": [], "axis 1": []}
    for seed in range(20 if n < 10**8 else 3):
        x = np.random.default_rng(seed).random(n, np.float32)
        x += 10000
        size = sum(part.sum(dtype=np.float64) for part in np.array_split(x, 64))
        errors["all"].append(abs(float(total(x)) - size) / size)
        for name, fn, shape in (("axis 0", down, (-1, 10)), ("axis 1", along, (10, -1))):
            rows = x.reshape(shape)
            exact = rows.sum(0 if name == "axis 0" else 1, dtype=np.float64)
            errors[name].append(np.max(np.abs(fn(rows) - exact) / exact))
    for name, found in errors.items():
        assert np.median(found) <= bound(n if name == "all" else n // 10), name
