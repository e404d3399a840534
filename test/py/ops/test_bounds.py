"""What kernels know of positions that are computed: of indices and constants something, of arrays nothing."""

from __future__ import annotations

import numpy as np
import pytest
from test_gpu_emulated import check as check_on_gpu

import mlirfuse
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.builder import Builder
from mlirfuse.ir.graph import Block, Value
from mlirfuse.lowering.kernel.bounds import Known


def known(make):
    """What is known of the value that ``make(builder, a float array, an integer array)`` gives."""
    x, i = Value(dt.f32, (5,)), Value(dt.i64, (5,))
    return Known().of(make(Builder(Block([x, i])), x, i))


def iota(b, n=8, dtype=dt.i64):
    return b.op("iota", shape=(n,), axis=0, dtype=dtype)


def source(b, n=8):
    """The position in half as long a row, as in resizing, and how far it is beyond one."""
    half = b.constant(0.5, dt.f32)
    return b.op("sub", b.op("mul", b.op("add", b.cast(iota(b, n), dt.f32), half), half), half)


def at_least(b, value, least):
    least = b.constant(least, dt.f32)
    return b.op("where", b.op("lt", value, least), least, value)


@pytest.mark.parametrize("make, positive, most", [
    (lambda b, x, i: iota(b), True, 8),
    (lambda b, x, i: b.op("add", iota(b), b.constant(3, dt.i64)), True, 11),
    (lambda b, x, i: b.op("sub", iota(b), b.constant(3, dt.i64)), False, 11),
    (lambda b, x, i: b.op("maximum", b.op("sub", iota(b), b.constant(3, dt.i64)), b.constant(0, dt.i64)), True, 11),
    (lambda b, x, i: b.op("minimum", iota(b), b.constant(-1, dt.i64)), False, 8),
    (lambda b, x, i: b.op("mul", iota(b), b.constant(-2, dt.i64)), False, 16),
    (lambda b, x, i: b.cast(source(b), dt.i64), False, 4.75),
    (lambda b, x, i: b.cast(b.op("floor", source(b)), dt.i64), False, 5.75),  # of -0.25 it is -1
    (lambda b, x, i: b.size(7), True, 7),
    (lambda b, x, i: b.op("mod", b.op("sub", iota(b), b.constant(9, dt.i64)), b.constant(5, dt.i64)), True, 5),
    (lambda b, x, i: b.op("mod", iota(b), b.constant(-5, dt.i64)), False, 5),
    (lambda b, x, i: b.cast(at_least(b, source(b), 0.0), dt.i64), True, 4.75),
    (lambda b, x, i: b.cast(at_least(b, source(b), -1.0), dt.i64), False, 4.75),
    (lambda b, x, i: b.op("where", b.op("lt", iota(b, 5), i), iota(b, 5), iota(b, 5)), True, 5),
    (lambda b, x, i: b.op("minimum", iota(b), b.constant(3, dt.i64)), True, 3),
    (lambda b, x, i: b.cast(b.op("maximum", source(b), b.constant(0.0, dt.f32)), dt.i64), True, 4.75),
])  # fmt: skip
def test_of_indices_and_constants(make, positive, most):
    assert known(make) == (positive, most)


@pytest.mark.parametrize("make", [
    lambda b, x, i: i,
    lambda b, x, i: b.op("maximum", i, b.constant(0, dt.i64)),
    # what is not a number is not above 0 either, and any integer
    lambda b, x, i: b.cast(b.op("maximum", x, b.constant(0.0, dt.f32)), dt.i64),
    lambda b, x, i: b.op("add", iota(b, 5), i),
    lambda b, x, i: b.op("mul", b.op("mul", iota(b), b.constant(1 << 40, dt.i64)), b.constant(1 << 40, dt.i64)),
    lambda b, x, i: b.cast(b.op("mul", source(b), b.constant(1e30, dt.f32)), dt.i64),
    lambda b, x, i: b.cast(b.op("iota", shape=(1 << 33,), axis=0, dtype=dt.i64), dt.i32),
    lambda b, x, i: b.cast(source(b), dt.f16),
    lambda b, x, i: b.op("exp", source(b)),
    lambda b, x, i: b.op("add", iota(b), b.size(sz.symbol("s0") - 8)),  # the size may be 5
    lambda b, x, i: b.op("mul", b.constant(np.float32(3e38), dt.f32), b.constant(np.float32(3e38), dt.f32)),
])  # fmt: skip
def test_of_what_arrays_hold_or_numbers_that_are_too_large_nothing_is_known(make):
    assert known(make) is None


@pytest.mark.parametrize("fn", [
    lambda x: x[np.arange(3) + (x.shape[0] - 8)] * 2,
    lambda x: x[np.arange(x.shape[0] - 8, x.shape[0] - 5)] * 2,
    lambda x: x[np.arange(3) * (x.shape[0] - 6)] * 2,
])  # fmt: skip
def test_sizes_less_a_number_count_from_the_end(fn):
    x = np.arange(5, dtype=np.float32)
    np.testing.assert_array_equal(mlirfuse.jit(fn)(x), fn(x))
    check_on_gpu(fn, x, candidates=1)


def test_numbers_that_are_no_positions_stay_what_they_are():
    """Products of 64 bits of what is floored to -1."""

    def fn(x):
        below = np.floor(np.arange(8, dtype=np.float32) * np.float32(0.001) - np.float32(0.004)).astype(np.int64)
        return below * 4_000_000_000 + x

    x = np.zeros(8, np.int64)
    np.testing.assert_array_equal(mlirfuse.jit(fn)(x), fn(x))
    index = lambda x: np.floor(np.arange(x.shape[0]) * 0.001 - 0.004).astype(np.int64) * 4_000_000_000 + x  # noqa: E731
    np.testing.assert_array_equal(mlirfuse.jit(index)(x), index(x))


@pytest.mark.parametrize("shift", [-9, -3, 0, 2])
def test_positions_that_are_computed(shift):
    """Negative ones count from the end."""

    def fn(x):
        i = np.arange(x.shape[0]) + shift
        return x[np.maximum(np.minimum(i, 8), -9)] + x[np.minimum(i * 0 + 3, 8)] * 2

    x = np.random.default_rng(0).standard_normal((9, 5)).astype(np.float32)
    np.testing.assert_array_equal(mlirfuse.jit(fn)(x), fn(x))
    check_on_gpu(fn, x, candidates=2)
