"""What kernels of a GPU may approximate, in the emulator: quotients of a softmax, and what a half type's rounding
hides."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from test_gpu_emulated import check, results_of

import mlirfuse
from mlirfuse import numpy as mnp

bf16, f16, f32 = ml_dtypes.bfloat16, np.float16, np.float32


def exponentials(x, axis):
    return np.exp(x - x.max(axis, keepdims=True))


def shares(x):
    e = exponentials(x, 1)
    return e / e.sum(1, keepdims=True)


def test_shares_round_as_quotients():
    """Of float32, each within an ulp of the quotient, subnormal ones too."""
    x = (np.random.default_rng(0).standard_normal((7, 300)) * 40).astype(f32)
    (got,) = results_of(shares, x)
    wide = np.exp((x - x.max(1, keepdims=True)).astype(np.float64))  # the difference is rounded, as in the kernel
    want = wide / wide.sum(1, keepdims=True)
    assert (want < 2.0**-126).any()
    assert np.all(np.abs(got - want) <= 4 * np.spacing(want.astype(f32)))
    x[2, 5], x[3, :], x[4, 7] = np.nan, -np.inf, np.inf
    (got,) = results_of(shares, x)
    assert np.isnan(got[2:5]).all() and not np.isnan(np.delete(got, [2, 3, 4], 0)).any()


def test_exponentials_over_another_sum():
    """Largest elements of columns, sums of rows: all of a row may be small, and its sum no normal number."""

    def fn(x):
        e = exponentials(x, 0)
        return e / e.sum(1, keepdims=True)

    x = np.zeros((4, 3), f32)
    x[1] = -92
    check(fn, x, bound=1e-5)


def silu_of_parts(x):
    v = x.astype(f32)
    return (v / (1 + np.exp(-v))).astype(x.dtype)


FUNCTIONS = {
    "silu": mnp.silu,
    "silu of parts": silu_of_parts,
    "gelu": lambda x: mnp.gelu(x, approximate="tanh"),
    "sigmoid": mnp.sigmoid,
    "softmax": lambda x: mnp.softmax(x, -1),
    "gated": lambda x: (mnp.sigmoid(x.astype(f32)) * x.astype(f32) / 3).astype(x.dtype),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [bf16, f16])
def test_halves_are_those_of_exact_functions(name, dtype):
    """Over all that a half type holds, but for results below 2**-120: within an ulp of it, rounded once."""
    bits = np.arange(0, 1 << 16, 23, dtype=np.uint16)
    x = bits.view(dtype)
    x = np.sort(x[np.isfinite(x.astype(f32))].astype(f32)).astype(dtype)
    x = x[: x.size // 16 * 16].reshape(-1, 16)
    (got,) = results_of(FUNCTIONS[name], x)
    with np.errstate(all="ignore"):
        want = _exactly(name, x.astype(np.float64))
        rounded = want.astype(dtype).astype(np.float64)
    got = got.astype(np.float64)
    small = np.abs(want) < 2.0**-120
    assert np.all(np.abs(got[small]) < 2.0**-119)
    same = (got == rounded) | (np.isnan(got) & np.isnan(want))
    spacing = np.abs(np.spacing(rounded.astype(dtype)).astype(np.float64))
    close = np.abs(got - want) <= 0.52 * spacing
    assert np.all((same | close)[~small])


def _exactly(name, x):
    if name == "softmax":
        e = np.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)
    u = 2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3) if name == "gelu" else x
    s = 1 / (1 + np.exp(-u))
    return s if name == "sigmoid" else np.where(s == 0, 0, x * s) / (3 if name == "gated" else 1)


@pytest.mark.parametrize("fn, rough", [
    (lambda x: mnp.sigmoid(x.astype(f32)).astype(bf16), True),
    (lambda x: (mnp.sigmoid(x.astype(f32)) * 2 / 3).astype(bf16), True),
    (lambda x: (1 - mnp.sigmoid(x.astype(f32))).astype(bf16), False),
    (lambda x: mnp.sigmoid(x.astype(f32)), False),
])  # fmt: skip
def test_only_what_a_half_type_hides(fn, rough):
    """A difference may be small beside what it is of: nothing hides its error."""
    text = mlirfuse.jit(fn, target="cuda:sm_90").lower(np.zeros(64, bf16)).as_text("tiled")
    assert ("fma.rm" not in text) == rough


@pytest.mark.parametrize("dtype", [bf16, f16])
@pytest.mark.parametrize("power", [1 / 3, 2.5, -1.5, 5, 4, -3, 63])
def test_powers(power, dtype):
    """By constants, of numbers of all magnitudes and signs; special values as NumPy's."""
    x = np.concatenate([
        np.random.default_rng(0).uniform(-3, 3, 2000), np.geomspace(1e-3, 1e3, 500), -np.geomspace(1e-3, 1e3, 500),
        [0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan],
    ]).astype(dtype)  # fmt: skip
    (got,) = results_of(lambda x: (x.astype(f32) ** f32(power)).astype(dtype), x)
    text = mlirfuse.jit(lambda x: (x.astype(f32) ** f32(power)).astype(dtype), target="cuda:sm_90").lower(x)
    assert "lg2.approx" in text.as_text("ptx")
    with np.errstate(all="ignore"):
        want = (x.astype(np.float64) ** np.float64(f32(power))).astype(f32)
        rounded = want.astype(dtype).astype(np.float64)
    got = got.astype(np.float64)
    assert np.array_equal(np.isnan(got), np.isnan(rounded))
    assert np.array_equal(np.signbit(got), np.signbit(rounded) & ~np.isnan(got) | np.isnan(got) & np.signbit(got))
    finite = np.isfinite(rounded) & np.isfinite(got)
    assert np.array_equal(np.isfinite(got), np.isfinite(rounded))
    step = np.spacing(np.abs(rounded).astype(dtype)).astype(np.float64)
    assert np.all((np.abs(got - want) <= 0.52 * step)[finite])


@pytest.mark.parametrize("number", [3, 5, 7, 9, 25, 49, 1000, 262143, -3, 1.5, 0.0078125, 3.0e-5 * 2**20])
def test_divisions_by_numbers(number):
    """Of few bits: as divisions round, but for subnormal quotients."""
    rng = np.random.default_rng(0)
    x = np.concatenate([
        rng.standard_normal(4000), np.ldexp(rng.uniform(1, 2, 2000), rng.integers(-149, 127, 2000)),
        np.arange(1, 2000) * number / 2, [0.0, -0.0, np.inf, -np.inf, np.nan, 3.4028235e38, 1e-45],
    ]).astype(f32)  # fmt: skip
    (got,) = results_of(lambda x: x / f32(number), x)
    with np.errstate(all="ignore"):
        want = x / f32(number)
    small = np.abs(want) < 2.0**-100
    assert np.array_equal(got[~small], want[~small], equal_nan=True)
    assert np.all(np.abs(got - want)[small] <= np.spacing(np.abs(want[small])))
    assert np.array_equal(np.signbit(got[x == 0]), np.signbit(want[x == 0]))
    text = mlirfuse.jit(lambda x: x / f32(number), target="cuda:sm_90").lower(x).as_text("ptx")
    assert ("div.rn" in text) == (number == 3.0e-5 * 2**20)
