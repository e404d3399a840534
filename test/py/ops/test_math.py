"""The elementary functions against references of more precision, over all of float32 in strides and float64 in
samples."""

from __future__ import annotations

import math

import numpy as np
import pytest
from math_harness import HOST_FEATURES, CpuKernel, ptx, ulp_error

from mlirfuse.ir import dtypes as dt
from mlirfuse.lowering import math as fm

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

# Largest errors in units of the last place: (float32, float64). Those of float32 were found over every argument.
UNARY = {
    "exp": (0.95, 1.0),
    "exp2": (1.0, 1.0),
    "expm1": (1.6, 2.0),
    "log": (0.9, 1.0),
    "log2": (2.0, 2.0),
    "log10": (2.6, 2.6),
    "log1p": (1.65, 1.7),
    "sin": (1.6, 1.3),
    "cos": (1.6, 1.3),
    "tan": (3.5, 3.2),
    "asin": (2.4, 2.4),
    "acos": (1.2, 1.2),
    "atan": (1.4, 2.0),
    "sinh": (1.7, 1.8),
    "cosh": (1.4, 1.4),
    "tanh": (1.5, 1.5),
    "asinh": (2.1, 2.1),
    "acosh": (2.2, 2.3),
    "atanh": (2.3, 2.3),
    "sigmoid": (2.5, 2.5),
    "silu": (3.0, 3.0),
    "softplus": (1.95, 2.1),
    "cbrt": (0.75, 0.75),
    "erf": (1.2, 1.2),
    "erfc": (4.0, 3.5),
    "erfinv": (2.2, 2.5),
    "erfcinv": (3.3, 2.5),
    "lgamma": (0.6, 4.0),  # of positive arguments
}
BINARY = {"pow": (1.0, 1.5), "atan2": (1.7, 2.2), "hypot": (1.1, 1.1), "fmod": (0.0, 0.0), "nextafter": (0.0, 0.0)}
NUMPY = {
    "asin": "arcsin",
    "acos": "arccos",
    "atan": "arctan",
    "asinh": "arcsinh",
    "acosh": "arccosh",
    "atanh": "arctanh",
}
LONG = np.finfo(np.longdouble).nmant > 52
F32_SPECIAL = np.array(
    [0.0, -0.0, 1, -1, 0.5, -0.5, 2, -2, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1.1754942e-38, 1.17549435e-38, 3.4028235e38,
     -3.4028235e38, 88.72283, 88.72284, -87.33655, -103.97208, -103.9721, 128, 127.99999, -149, -149.5, -150, -126, 10.05, 10.06,
     0.6, 0.65, 0.99999994, 1.0000001, np.pi / 2, np.pi, 16777216, 1e5, 80000, 1e10, 1e30, 89.415985, 89.41599, 3, 3.9, 4.1],
    np.float32,
)  # fmt: skip


def reference(name: str, x: np.ndarray) -> np.ndarray:
    """``name`` of ``x`` in x's own type, which is wider than the one tested; erf and its kin in float64 by the C
    library."""
    if name == "sigmoid":
        return np.exp(np.minimum(x, 0)) / (1 + np.exp(-np.abs(x)))
    if name == "silu":
        return x * reference("sigmoid", x)
    if name == "softplus":
        return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))
    if name in ("erf", "erfc"):
        return np.array([getattr(math, name)(v) for v in x.tolist()])
    if name == "lgamma":
        return np.array([lgamma(v) for v in x.tolist()])
    if name == "erfinv":
        return erfinv_reference(x, 1 - np.abs(x))
    if name == "erfcinv":
        small = np.minimum(x, 2 - x)
        return np.copysign(erfinv_reference(1 - small, small), 1 - x)
    return getattr(np, NUMPY.get(name, name))(x)


def lgamma(v: float) -> float:
    if v == 0 or abs(v) > 2.5e305 or (v < 0 and v == math.floor(v)):
        return math.inf
    return math.lgamma(v)


def erfinv_reference(x: np.ndarray, rest: np.ndarray) -> np.ndarray:
    """erfinv by Newton's method on log(erfc) where x is above 1/2, on erf below, in float64; ``rest`` is 1 - |x|
    exactly."""
    a = np.abs(x).astype(np.float64)
    w = -np.log(np.clip(rest, 5e-324, 1))
    y = np.where(a < 0.5, a * 0.9, np.sqrt(np.maximum(w - 0.3 * np.log1p(w), 1e-9)))
    inside = rest > 0
    for _ in range(60):
        erfc = np.array([math.erfc(v) for v in y.tolist()])
        erf = np.array([math.erf(v) for v in y.tolist()])
        slope = 2 / np.sqrt(np.pi) * np.exp(-y * y)
        step = np.where(a < 0.5, (erf - a) / slope, -(np.log(erfc) + w) * erfc / slope)
        y = np.where(inside, np.clip(y - step, 0, 27.2), 0)
        if not (np.abs(step[inside]) > 1e-15 * y[inside] + 1e-300).any():
            break
    y = np.where(a == 0, 0, y)
    y = np.where(rest > 0, y, np.where(rest == 0, np.inf, np.nan))
    return np.copysign(y, x)


def strided(step: int, offset: int = 0) -> np.ndarray:
    return np.arange(offset, 2**32, step, dtype=np.uint64).astype(np.uint32).view(np.float32)


def around(points: np.ndarray, reach: int = 40) -> np.ndarray:
    """The values whose bits are within ``reach`` of a point's."""
    unsigned = np.uint32 if points.dtype == np.float32 else np.uint64
    bits = points.view(unsigned)[:, None] + np.arange(-reach, reach + 1).astype(unsigned)
    return bits.ravel().view(points.dtype)


def worst(error: np.ndarray, *arguments) -> str:
    at = int(np.argmax(error))
    return f"{error[at]:.3f} ulp at {[a[at] for a in arguments]}"


def lanes_of(dtype, features) -> int:
    return (16 if dtype is dt.f32 else 8) // (1 if features else 2)


@pytest.mark.parametrize("features", [None, ()], ids=["host", "plain"])
@pytest.mark.parametrize("name", UNARY)
def test_float32(name, features):
    if features == () and "avx512f" not in HOST_FEATURES:
        pytest.skip("the same code as for this host")
    step = 4099 if features is None else 65537
    if name in ("erfinv", "erfcinv", "erf", "erfc", "lgamma"):
        step *= 16
    rng = np.random.default_rng(0)
    x = np.concatenate([strided(step, 7), around(F32_SPECIAL), rng.normal(size=20000).astype(np.float32) * 3])
    if name in ("erfinv", "erfcinv"):
        x = np.concatenate([x, rng.uniform(-1, 2, 20000).astype(np.float32)])
    if name == "lgamma":
        x = x[~(x < 0)]
    got = CpuKernel(getattr(fm, name), [dt.f32], [dt.f32], 16 if features is None else 8, features)(x)
    error = ulp_error(got, reference(name, x.astype(np.float64)))
    assert error.max() <= UNARY[name][0], worst(error, x, got)


@pytest.mark.parametrize("dtype", [dt.f32, dt.f64], ids=str)
def test_exponentials_of_what_is_not_above_0(dtype):
    """They are as others, bit for bit, without a bound from above."""
    x = strided(4099, 7) if dtype is dt.f32 else float64_samples("exp")
    x = x[~(x > 0)]
    lanes = lanes_of(dtype, True)
    got = CpuKernel(lambda e, x: fm.exp(e, x, negative=True), [dtype], [dtype], lanes)(x)
    np.testing.assert_array_equal(got, CpuKernel(fm.exp, [dtype], [dtype], lanes)(x))


def float64_samples(name: str) -> np.ndarray:
    rng = np.random.default_rng(1)
    k = 20000 if name not in ("erf", "erfc", "erfinv", "erfcinv", "lgamma") else 1500
    special = np.array(
        [0.0, -0.0, 1, -1, 0.5, -0.5, 2, -2, np.inf, -np.inf, np.nan, 5e-324, -5e-324, 2.2250738585072014e-308, 1e-310, 1e308,
         -1e308, 709.782712893384, 709.7827128933841, -708.4, -745.13, -745.14, 1024, -1074, -1075, 26.5, 27.2, 0.6, 0.65, 8e5, 1e22,
         1e300, 3, 8, 710.4758600739439]
    )  # fmt: skip
    parts = [
        rng.integers(0, 2**64, k, dtype=np.uint64).view(np.float64),
        rng.normal(size=k) * 10.0 ** rng.uniform(-3, 3, k),
        rng.uniform(-2, 2, k),
        1 + rng.normal(size=k) * 10.0 ** rng.uniform(-12, 0, k),
        rng.uniform(-760, 760, k),
        np.round(rng.normal(size=k) * 1e5) * (np.pi / 2),
        around(special, 3),
    ]
    if name in ("erfinv", "erfcinv"):
        parts += [10.0 ** -rng.uniform(0, 300, k), 1 - 10.0 ** -rng.uniform(0, 16, k)]
    x = np.concatenate(parts)
    return np.minimum(np.abs(x), 1e305) if name == "lgamma" else x


def high_precision(name: str, x: np.ndarray) -> np.ndarray:
    """The references that NumPy has not, from mpmath, as long doubles."""
    mpmath = pytest.importorskip("mpmath")
    mp = mpmath.mp
    plain = reference(name, x)

    def erfcinv(v):
        if v > 0.001:
            return mp.erfinv(1 - v)
        y = mp.sqrt(-mp.log(v))
        for _ in range(100):
            c = mp.erfc(y)
            step = (mp.log(c) - mp.log(v)) / (-2 / mp.sqrt(mp.pi) * mp.exp(-y * y) / c)
            y -= step
            if abs(step) < mp.mpf(10) ** -35 * y:
                break
        return y

    function = {"erf": mp.erf, "erfc": mp.erfc, "lgamma": mp.loggamma, "erfinv": mp.erfinv, "erfcinv": erfcinv}[name]
    out = plain.astype(np.longdouble)
    with mpmath.workdps(40):
        for k, (v, p) in enumerate(zip(x.tolist(), plain.tolist(), strict=True)):
            inside = math.isfinite(p) and p != 0 and abs(v) > 1e-300 and not (name in ("erf", "erfc") and abs(v) > 30)
            if inside or (name == "erfcinv" and 0 < v < 1e-3):
                exact = function(mp.mpf(v))
                # a long double has float64's range and more, but mpmath converts to float64 only: in two pieces, scaled
                scaled, exponent = mp.frexp(exact)
                high = float(scaled)
                out[k] = np.ldexp(np.longdouble(high) + np.longdouble(float(scaled - high)), exponent)
    return out


@pytest.mark.skipif(not LONG, reason="needs a long double wider than float64")
@pytest.mark.parametrize("features", [None, ()], ids=["host", "plain"])
@pytest.mark.parametrize("name", UNARY)
def test_float64(name, features):
    if features == () and ("avx512f" not in HOST_FEATURES or name in ("erf", "erfc", "erfinv", "erfcinv", "lgamma")):
        pytest.skip("the same code, or slow")
    x = float64_samples(name)
    got = CpuKernel(getattr(fm, name), [dt.f64], [dt.f64], 8 if features is None else 4, features)(x)
    if name in ("erf", "erfc", "erfinv", "erfcinv", "lgamma"):
        want = high_precision(name, x)
    else:
        want = reference(name, x.astype(np.longdouble))
    error = ulp_error(got, want)
    assert error.max() <= UNARY[name][1], worst(error, x, got)


@pytest.mark.parametrize("dtype", [dt.f32, dt.f64], ids=str)
def test_lgamma_of_negative_arguments(dtype):
    """An absolute bound: between the poles the function crosses zero."""
    rng = np.random.default_rng(3)
    x = -np.concatenate([rng.uniform(0, 6, 3000), rng.uniform(0, 200, 3000), 10.0 ** rng.uniform(-30, 6, 3000)]).astype(
        dtype.numpy
    )
    x = np.concatenate([x, np.array([-1, -2, -100, -1e20, -np.inf, -1e-30], dtype.numpy)])
    got = CpuKernel(fm.lgamma, [dtype], [dtype], 8)(x)
    want = reference("lgamma", x.astype(np.float64))
    finite = np.isfinite(want)
    np.testing.assert_array_equal(got[~finite], np.inf)
    x, got, want = x[finite].astype(np.float64), got[finite].astype(np.float64), want[finite]
    if dtype is dt.f32:
        allowed = 1e-8 + 4 * np.spacing(np.abs(want).astype(np.float32)).astype(np.float64)
    else:
        distance = np.abs(x - np.round(x))
        allowed = 2e-15 * (
            1 + np.abs(np.log(np.sin(np.pi * distance))) + np.array([abs(math.lgamma(1 - v)) for v in x])
        )
    error = np.abs(got - want) / allowed
    assert error.max() <= 1, worst(error, x, got, want)


SPECIAL_PAIRS = np.array(
    [0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 0.5, -0.5, 2, -2, 3, -3, 1e-45, -1e-45, 3e38, -3e38, 1e-38, 16777216, 16777217,
     33554432, 1.5, -1.5, 1e-30, 65536, 5, 101, -101, 1024, 149, -149, 0.3, 1.0000001, 0.99999994]
)  # fmt: skip


def pairs(dtype, count: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(4)
    unsigned = np.uint32 if dtype is dt.f32 else np.uint64
    x, y = rng.integers(0, np.iinfo(unsigned).max, (2, count), dtype=unsigned).view(dtype.numpy)
    half = count // 2
    reach = 40 if dtype is dt.f32 else 300
    x[:half] = np.exp(rng.normal(size=half) * rng.choice([0.001, 0.1, 1, 10, reach], half))
    y[:half] = rng.normal(size=half) * rng.choice([0.1, 1, 10, 100, 1e4], half)
    x[: half // 4] *= rng.choice([1, -1], half // 4)
    y[: half // 8] = np.round(y[: half // 8])
    grid = np.array(np.meshgrid(SPECIAL_PAIRS, SPECIAL_PAIRS), dtype.numpy).reshape(2, -1)
    return np.concatenate([x, grid[0]]), np.concatenate([y, grid[1]])


@pytest.mark.parametrize("dtype", [dt.f32, dt.f64], ids=str)
@pytest.mark.parametrize("features", [None, ()], ids=["host", "plain"])
@pytest.mark.parametrize("name", BINARY)
def test_two_arguments(name, features, dtype):
    if dtype is dt.f64 and not LONG:
        pytest.skip("needs a long double wider than float64")
    x, y = pairs(dtype, 400_000 if dtype is dt.f32 else 40_000)
    got = CpuKernel(getattr(fm, name), [dtype] * 2, [dtype], lanes_of(dtype, features is None), features)(x, y)
    wide = np.float64 if dtype is dt.f32 else np.longdouble
    if name in ("fmod", "nextafter"):
        want = getattr(np, name)(x, y)
        np.testing.assert_array_equal(got, want)
        assert (np.signbit(got) == np.signbit(want))[~np.isnan(want)].all()
        return
    function = {"pow": np.power, "atan2": np.arctan2, "hypot": np.hypot}[name]
    error = ulp_error(got, function(x.astype(wide), y.astype(wide)))
    assert error.max() <= BINARY[name][dtype is dt.f64], worst(error, x, y, got)


@pytest.mark.parametrize("dtype", [dt.f32, dt.f64], ids=str)
def test_special_values_of_pow(dtype):
    """C's table, by Python's own pow, which follows it but for raising."""

    def c_pow(a: float, b: float) -> float:
        try:
            return math.pow(a, b)
        except OverflowError:
            return -math.inf if a < 0 and b % 2 == 1 else math.inf
        except ValueError:
            if a == 0:
                return math.copysign(math.inf, a) if b % 2 == 1 else math.inf
            return math.nan

    values = np.array([0.0, -0.0, 1, -1, 2, -2, 3, -3, 0.5, -0.5, np.inf, -np.inf, np.nan, 1e30, -1e30], dtype.numpy)
    x, y = np.array(np.meshgrid(values, values)).reshape(2, -1)
    got = CpuKernel(fm.pow, [dtype] * 2, [dtype], 8)(x, y)
    want = np.array([c_pow(float(a), float(b)) for a, b in zip(x, y, strict=True)]).astype(dtype.numpy)
    exact = (want * 64 == np.round(want * 64)) & (np.abs(want) < 1e6) | np.isinf(want) | np.isnan(want)
    np.testing.assert_array_equal(got[exact], want[exact])
    assert (np.signbit(got) == np.signbit(want))[~np.isnan(want)].all()


def test_exact_values():
    """Results that are exact stay exact."""
    n = np.arange(-149, 128)
    powers = np.ldexp(np.float32(1), n)
    np.testing.assert_array_equal(CpuKernel(fm.log2, [dt.f32], [dt.f32])(powers), n.astype(np.float32))
    np.testing.assert_array_equal(CpuKernel(fm.exp2, [dt.f32], [dt.f32])(n.astype(np.float32)), powers)
    n = np.arange(-1074, 1024)
    powers = np.ldexp(1.0, n)
    np.testing.assert_array_equal(CpuKernel(fm.log2, [dt.f64], [dt.f64], 8)(powers), n.astype(np.float64))
    np.testing.assert_array_equal(CpuKernel(fm.exp2, [dt.f64], [dt.f64], 8)(n.astype(np.float64)), powers)
    for dtype in (dt.f32, dt.f64):
        x = np.arange(0, 40).astype(dtype.numpy)
        np.testing.assert_array_equal(CpuKernel(fm.cbrt, [dtype], [dtype], 8)(x**3), x)
        np.testing.assert_array_equal(CpuKernel(fm.pow, [dtype] * 2, [dtype], 8)(x, np.full_like(x, 2)), x**2)


@pytest.mark.parametrize("dtype", [dt.f32, dt.f64], ids=str)
@pytest.mark.parametrize("lanes", [1, 8])
def test_ldexp(dtype, lanes):
    rng = np.random.default_rng(5)
    unsigned = np.uint32 if dtype is dt.f32 else np.uint64
    x = rng.integers(0, np.iinfo(unsigned).max, 50_000, dtype=unsigned).view(dtype.numpy)
    x = np.concatenate([x, np.array([0, -0.0, np.inf, -np.inf, np.nan, 1e-45, 1, -1], dtype.numpy)])
    n = rng.integers(-2200, 2200, x.size).astype(np.int32)
    n[::7] = rng.integers(-300, 300, n[::7].size)
    n[-8:] = [2**31 - 1, -(2**31), 0, 1, -1, 149, 5000, -5000]
    got = CpuKernel(fm.ldexp, [dtype, dt.i32], [dtype], lanes)(x, n)
    np.testing.assert_array_equal(got, np.ldexp(x, n))


# ---- scalars give the same bits as vectors, and the GPU needs no library


@pytest.mark.parametrize("name", [*UNARY, *BINARY])
def test_scalars_are_as_vectors(name):
    for dtype in (dt.f32, dt.f64):
        count = 2 if name in BINARY else 1
        x = pairs(dtype, 2000)[:count]
        vector = CpuKernel(getattr(fm, name), [dtype] * count, [dtype], 8, ())(*x)
        scalar = CpuKernel(getattr(fm, name), [dtype] * count, [dtype], 1, ())(*x)
        np.testing.assert_array_equal(vector, scalar)


@pytest.mark.parametrize("dtype", [dt.f32, dt.f64], ids=str)
@pytest.mark.parametrize("name", [*UNARY, *BINARY])
def test_gpu_code_is_self_contained(name, dtype):
    text = ptx(getattr(fm, name), [dtype] * (2 if name in BINARY else 1), [dtype])
    assert "call" not in text and "__nv" not in text and ".local" not in text


# ---- random numbers


def philox_reference(counter: list[int], key: list[int]) -> list[int]:
    c, k = list(counter), list(key)
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & 0xFFFFFFFF, (p0 >> 32) ^ c[3] ^ k[1], p0 & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


@pytest.mark.parametrize("lanes", [1, 16])
def test_philox(lanes):
    """The known answers of Random123, and a plain implementation."""
    known = [
        ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ]
    words = CpuKernel(
        lambda e, a, b, c, d, k, l: fm.philox4x32(e, (a, b, c, d), (k, l)), [dt.u32] * 6, [dt.u32] * 4, lanes
    )
    columns = np.array([counter + key for counter, key, _ in known], np.uint32).T
    np.testing.assert_array_equal(np.array(words(*columns)).T, [want for *_, want in known])
    long = CpuKernel(fm.philox4x32, [dt.u64, dt.u64], [dt.u32] * 4, lanes)
    rng = np.random.default_rng(6)
    counter, key = rng.integers(0, 2**64, (2, 40), dtype=np.uint64)
    want = [
        philox_reference([c & 0xFFFFFFFF, c >> 32, 0, 0], [k & 0xFFFFFFFF, k >> 32])
        for c, k in zip(counter.tolist(), key.tolist(), strict=True)
    ]
    np.testing.assert_array_equal(np.array(long(counter, key)).T, want)


def test_uniform():
    edges = np.array([0, 1, 255, 256, 2**31, 2**32 - 1], np.uint32)
    got = CpuKernel(lambda e, b: fm.uniform_from_bits(e, b, dt.f32), [dt.u32], [dt.f32])(edges)
    np.testing.assert_array_equal(got, (edges >> 8) / 2.0**24)
    low = np.array([0, 2**32 - 1, 2**32 - 1], np.uint32)
    high = np.array([0, 2**32 - 1, 0], np.uint32)
    pair = CpuKernel(lambda e, a, b: fm.uniform_from_bits(e, a, dt.f64, b), [dt.u32, dt.u32], [dt.f64], 8)(low, high)
    np.testing.assert_array_equal(pair, [0, 1 - 2.0**-53, (2**32 - 1 >> 11) / 2.0**53])
    assert pair.max() < 1 and got.max() < 1


@pytest.mark.parametrize("dtype", [dt.f32, dt.f64], ids=str)
def test_normal(dtype):
    word = dt.u32 if dtype is dt.f32 else dt.u64
    rng = np.random.default_rng(7)
    a, b = rng.integers(0, np.iinfo(word.numpy).max, (2, 400_000), dtype=word.numpy, endpoint=True)
    a[:3], b[:3] = [0, np.iinfo(word.numpy).max, 0], [0, 0, np.iinfo(word.numpy).max]
    x, y = CpuKernel(lambda e, p, q: fm.normal_from_bits(e, p, q, dtype), [word] * 2, [dtype] * 2, 8)(a, b)
    u = (a.astype(np.longdouble) + 0.5) / 2.0**word.bits
    radius = np.sqrt(-2 * np.log(u))
    angle = 2 * np.pi * (b.astype(np.longdouble) / 2.0**word.bits)
    near = 2e-6 if dtype is dt.f32 else 1e-14
    clear = u < 0.999  # nearer to 1 the uniform number's own rounding shows
    assert np.abs(x - radius * np.cos(angle))[clear].max() < near
    assert np.abs(y - radius * np.sin(angle))[clear].max() < near
    for v in (x, y):
        assert np.isfinite(v).all()
        assert abs(v.mean()) < 0.01 and abs(v.var() - 1) < 0.01 and abs((v.astype(np.float64) ** 4).mean() - 3) < 0.05
    assert abs((x * y).mean()) < 0.01
