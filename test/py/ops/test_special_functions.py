"""``scipy.special`` in compiled functions: one kernel each, beside SciPy's own values."""

from __future__ import annotations

import numpy as np
import pytest

import mlirfuse
from mlirfuse.frontend.numpy import special

scipy_special = pytest.importorskip("scipy.special")
scipy_stats = pytest.importorskip("scipy.stats")

EDGES = [0.0, -0.0, 1, -1, 0.5, -0.5, np.inf, -np.inf, np.nan, 1e-300, 1e300, 2, -3, 1e-20, 0.3, 0.65, 30, -30, -20]
RNG = np.random.default_rng(0)
X = np.concatenate([EDGES, RNG.normal(size=1000) * 3, RNG.random(1000), 0.5 + RNG.normal(size=200) * 1e-3])
Y = RNG.permutation(np.concatenate([EDGES, RNG.random(1200) * 4, RNG.normal(size=1000) * 2]))
# Beyond some units in the last place: what cancels (boxcox, kl_div; cosm1: SciPy's, near multiples of 2 pi; gammaln near
# its zeros), SciPy's exp(-x * x) in the tails of erfc (30 ** 2 units), and subnormal numbers, which it takes for 0.
LOOSE = {"boxcox": 1e-13, "cosm1": 1e-9, "kl_div": 1e-12, "erfc": 2e-13, "ndtr": 2e-13, "log_ndtr": 2e-13}
ZEROS = {"gammaln": 1e-15}


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", sorted([*special._ROWS, *special._RULES]))
def test_values_and_types_are_scipys(name, dtype):
    ufunc = getattr(scipy_special, name)
    with np.errstate(all="ignore"):
        given = [X.astype(dtype), Y.astype(dtype)][: ufunc.nin]
        wanted = ufunc(*given) * 1
    fused = mlirfuse.jit(lambda *args: ufunc(*args) * 1, fallback=False)
    found = fused(*given)
    assert found.dtype == wanted.dtype and fused.kernels(*given) == 1
    tiny, eps = np.finfo(dtype).tiny, np.finfo(dtype).eps
    bounds = dict(rtol=max(LOOSE.get(name, 0), 8 * eps), atol=ZEROS.get(name, 2 * tiny))
    np.testing.assert_allclose(found, wanted, **bounds)


def test_types_that_scipy_converts():
    for x in (np.arange(5), np.ones(3, bool), np.ones(3, np.float16)):
        found = mlirfuse.jit(lambda x: scipy_special.erf(x), fallback=False)(x)
        wanted = scipy_special.erf(x)
        assert found.dtype == wanted.dtype
        np.testing.assert_allclose(found, wanted, rtol=1e-15)


@pytest.mark.parametrize(
    "x", [RNG.normal(size=(6, 70)), RNG.normal(size=(6, 70)).astype("f4"), np.arange(12).reshape(3, 4)]
)
@pytest.mark.parametrize(
    "fn",
    [
        lambda v: scipy_special.softmax(v, axis=1),
        lambda v: scipy_special.softmax(v),
        lambda v: scipy_special.log_softmax(v, axis=0),
        lambda v: scipy_special.logsumexp(v),
        lambda v: scipy_special.logsumexp(v, axis=0, keepdims=True),
    ],
)
def test_functions_along_axes(fn, x):
    fused = mlirfuse.jit(fn, fallback=False)
    found, wanted = fused(x), fn(x)
    assert type(found) is type(wanted) and found.dtype == wanted.dtype and fused.kernels(x) == 1
    np.testing.assert_allclose(found, wanted, rtol=16 * np.finfo(wanted.dtype).eps)


def test_a_normal_density_fuses_with_its_neighbours():
    def black_scholes(s, k, t):
        d = (np.log(s / k) + 0.5 * t) / np.sqrt(t)
        return s * scipy_special.ndtr(d) - k * scipy_special.ndtr(d - np.sqrt(t))

    given = RNG.random((3, 5000)) + 0.5
    fused = mlirfuse.jit(black_scholes, fallback=False)
    np.testing.assert_allclose(fused(*given), black_scholes(*given), rtol=1e-12, atol=1e-15)
    assert fused.kernels(*given) == 1


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: scipy_stats.norm.cdf(x * 2) + 1,
        lambda x: scipy_special.jv(0, x) * 2,
        lambda x: scipy_special.logsumexp(x, b=0.5) + x,
        lambda x: scipy_special.erf(x + 1j).real,
    ],
)
def test_what_has_no_kernel_is_called(fn):
    """Between compiled parts, with the real arrays."""
    x = RNG.random(5000)
    np.testing.assert_allclose(mlirfuse.jit(fn)(x), fn(x), rtol=1e-14)
