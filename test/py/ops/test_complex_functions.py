"""Functions of complex numbers, expanded into real arithmetic by fusion-split-complex: how accurate they are, and what
they make of zeros, infinities and NaN."""

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")
mpmath = pytest.importorskip("mpmath")

from mlirfuse.nvfuser import DataType, FusionDefinition

UNARY = {
    "acos": mpmath.acos,
    "acosh": mpmath.acosh,
    "asin": mpmath.asin,
    "asinh": mpmath.asinh,
    "atan": mpmath.atan,
    "atanh": mpmath.atanh,
    "cos": mpmath.cos,
    "cosh": mpmath.cosh,
    "exp": mpmath.exp,
    "log": mpmath.log,
    "log10": mpmath.log10,
    "log2": lambda z: mpmath.log(z) / mpmath.log(2),
    "reciprocal": lambda z: 1 / z,
    "rsqrt": lambda z: 1 / mpmath.sqrt(z),
    "sigmoid": lambda z: 1 / (1 + mpmath.exp(-z)),
    "sin": mpmath.sin,
    "sinh": mpmath.sinh,
    "sqrt": mpmath.sqrt,
    "tan": mpmath.tan,
    "tanh": mpmath.tanh,
}
TYPES = {
    "c64": (DataType.ComplexFloat, np.complex64, np.float32),
    "c128": (DataType.ComplexDouble, np.complex128, np.float64),
}
INF, NAN = math.inf, math.nan
PARTS = [0.0, -0.0, 1.0, -1.0, 0.5, 100.0, -100.0, INF, -INF, NAN]
SPECIAL = [complex(a, b) for a in PARTS for b in PARTS]


def run(name, data_type, *arrays):
    with FusionDefinition() as fd:
        tensors = [fd.define_tensor(shape=[-1], contiguity=[True], dtype=data_type) for _ in arrays]
        fd.add_output(getattr(fd.ops, name)(*tensors))
    return fd.execute(list(arrays))[0]


def numbers(rng, real, count):
    """Of all sizes; beside 1, i and the unit circle, where inverse functions and logarithms cancel; where the
    exponential function is about to overflow."""
    top = np.finfo(real).maxexp

    def signed(low, high):
        return np.exp2(rng.uniform(low, high, count)) * rng.choice([-1, 1], count)

    unit = np.exp(1j * rng.uniform(-4, 4, count))
    edge = math.log2(np.log(np.finfo(real).max))
    return np.concatenate(
        [
            signed(-8, 4) + 1j * signed(-8, 4),
            signed(2 - top, top - 1) + 1j * signed(2 - top, top - 1),
            signed(-30, 30) + 1j * signed(-30, 30),
            1 + signed(-24, -1) + 1j * signed(-30, -1),
            signed(-30, -1) + 1j * (1 + signed(-30, -1)),
            unit * (1 + signed(-30, -3)),
            signed(edge - 1, edge + 0.1) + 1j * signed(-3, 3),
        ]
    )


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("name", UNARY)
def test_accuracy(name, kind):
    """Within 4 units of the last place, measured along the whole number; sigmoid, whose 1 + e^-z cancels beside its
    poles, within 4 of the result times 1 + its size."""
    data_type, complex_type, real = TYPES[kind]
    x = numbers(np.random.default_rng(len(name)), real, 60).astype(complex_type)
    given = run(name, data_type, x)
    largest, smallest, eps = (float(v) for v in (np.finfo(real).max, np.finfo(real).tiny, np.finfo(real).eps))
    checked = 0
    # The smallest double beside 1 needs 2,100 bits.
    with mpmath.workprec(2200 if real is np.float64 else 400):
        for z, got in zip(x, given):
            wanted = UNARY[name](mpmath.mpc(float(z.real), float(z.imag)))
            if max(abs(wanted.real), abs(wanted.imag)) > largest:
                continue
            assert np.isfinite(got), (z, got)
            size = max(abs(wanted), smallest)
            bound = 4 * eps * (1 + size if name == "sigmoid" else 1)
            assert abs(mpmath.mpc(float(got.real), float(got.imag)) - wanted) <= bound * size, (z, got)
            checked += 1
    assert checked > 200


def same(a, b, eps):
    """Zeros and infinities with their signs, NaN as NaN, all else within a few units of the last place."""

    def part(x, y):
        if np.isnan(x) or np.isnan(y):
            return np.isnan(x) and np.isnan(y)
        if np.isinf(x) or np.isinf(y) or (x == 0 and y == 0):
            return x == y and np.signbit(x) == np.signbit(y)
        return abs(x - y) <= 8 * eps * max(abs(y), 1)

    return part(a.real, b.real) and part(a.imag, b.imag)


def differing(name, kind, arrays, wanted):
    data_type, complex_type, real = TYPES[kind]
    given = run(name, data_type, *(np.array(a, complex_type) for a in arrays))
    eps = float(np.finfo(real).eps)
    return [(*z, g, w) for *z, g, w in zip(*arrays, given, wanted) if not same(g, w, eps)]


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("name", UNARY)
def test_special_values(name, kind):
    """As torch's on the CPU. It has NaN for the sigmoid of numbers far left of 0, where that is 0, and a wrong sign of
    zero in acos of complex128, where NumPy has C's."""
    complex_type = TYPES[kind][1]
    given = [z for z in SPECIAL if name != "sigmoid" or z.real > -100]
    wanted = getattr(torch, name)(torch.tensor(given, dtype=getattr(torch, np.dtype(complex_type).name))).numpy()
    if name == "acos":
        with np.errstate(invalid="ignore"):
            wanted = np.arccos(np.array(given, complex_type))
    assert not differing(name, kind, [given], wanted)


@pytest.mark.parametrize("kind", TYPES)
def test_sigmoid_far_from_zero(kind):
    far = [complex(a, b) for a in (-1e4, -INF) for b in (0.0, 1.0, -2.0)]
    assert all(run("sigmoid", TYPES[kind][0], np.array(far, TYPES[kind][1])) == 0)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("name", ["div", "mul"])
def test_special_values_of_two(name, kind):
    pairs = np.array([(a, b) for a in SPECIAL for b in SPECIAL], TYPES[kind][1])
    wanted = getattr(torch, name)(*map(torch.from_numpy, pairs.T.copy())).numpy()
    assert not differing(name, kind, list(pairs.T), wanted)


@pytest.mark.parametrize("kind", TYPES)
def test_pow(kind):
    """e^(y log x): the error grows with y log x. 0 to the 0 is 1, 0 to what is right of 0 is 0, as NumPy has it; torch
    has NaN for the first."""
    data_type, complex_type, real = TYPES[kind]
    rng = np.random.default_rng(5)
    x, y = ((rng.normal(size=400) + 1j * rng.normal(size=400)).astype(complex_type) * by for by in (3, 2))
    given = run("pow", data_type, x, y)
    eps = float(np.finfo(real).eps)
    with mpmath.workprec(200):
        for a, b, got in zip(x, y, given):
            a, b = (mpmath.mpc(float(v.real), float(v.imag)) for v in (a, b))
            error = abs(mpmath.mpc(float(got.real), float(got.imag)) - a**b) / abs(a**b)
            assert error <= eps * (4 + 4 * abs(b * mpmath.log(a))), (a, b, got)
    zero = np.zeros(3, complex_type)
    assert run("pow", data_type, zero, np.array([0, 2, 0.5 + 1j], complex_type)).tolist() == [1, 0, 0]


@pytest.mark.parametrize("kind", TYPES)
def test_moments(kind):
    """The variance of complex numbers is a real number, that of the parts added up."""
    data_type, complex_type, real = TYPES[kind]
    rng = np.random.default_rng(2)
    x = (rng.normal(size=(6, 50)) + 1j * rng.normal(size=(6, 50)) + 3).astype(complex_type)
    with FusionDefinition() as fd:
        t = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=data_type)
        for value in (
            *fd.ops.var_mean(t, [1], 1, False),
            fd.ops.var(t, [0]),
            fd.ops.std(t, [1]),
            fd.ops.mean(t, [0, 1]),
        ):
            fd.add_output(value)
    var, mean, columns, std, whole = fd.execute([x])
    wide = x.astype(np.complex128)
    eps = float(np.finfo(real).eps)
    assert [v.dtype for v in (var, mean, columns, std, whole)] == [real, complex_type, real, real, complex_type]
    for got, wanted in (
        (var, wide.var(1, ddof=1)),
        (columns, wide.var(0, ddof=1)),
        (std, wide.std(1, ddof=1)),
        (mean, wide.mean(1)),
        (whole, wide.mean()),
    ):
        np.testing.assert_allclose(got, wanted, rtol=50 * eps, atol=50 * eps)
