"""Complex numbers in `jit`: programs as people write them, and each function, beside NumPy; on a GPU's kernels by the
emulator.

The bound: each part within 8 units of the last place of the number's magnitude for arithmetic and elementary functions
(``test_complex_functions`` measures those against mpmath), sums and products of many as those of real numbers."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from ptx_emulator import Launch, Memory, parse, room_for

import mlirfuse
from mlirfuse.ir import sizes as sz
from mlirfuse.runtime import load
from mlirfuse.runtime.program import CompiledProgram, Program
from mlirfuse.schedule import targets
from mlirfuse.schedule.gpu.scheduler_list import SCHEDULERS
from mlirfuse.schedule.scheduler import SizedCall

BOUNDS = {4: 2e-5, 8: 1e-12}  # by the bytes of a part, relative to the largest result


@pytest.fixture(autouse=True)
def told():
    """Nothing falls back."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        yield


def numbers(*shape, dtype=np.complex128, seed=0):
    rng = np.random.default_rng(seed)
    return (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(dtype)


def agree(got, want) -> None:
    if isinstance(want, (tuple, list)):
        assert type(got) is type(want) and len(got) == len(want)
        for g, w in zip(got, want):
            agree(g, w)
        return
    assert type(got) is type(want), (type(got), type(want))
    got, want = np.asarray(got), np.asarray(want)
    assert got.dtype == want.dtype and got.shape == want.shape
    if want.dtype.kind not in "fc":
        np.testing.assert_array_equal(got, want)
        return
    bound = BOUNDS.get(want.real.dtype.itemsize, 1e-2)
    scale = float(np.abs(want[np.isfinite(want)]).max(initial=1e-300))
    np.testing.assert_allclose(got, want, rtol=bound, atol=bound * scale)


def check(fn, *args):
    """Results and what is written into the arguments, of two calls, as NumPy's."""
    compiled = mlirfuse.jit(fn, fallback=False)
    for _ in range(2):
        ours, theirs = ([a.copy() if isinstance(a, np.ndarray) else a for a in args] for _ in range(2))
        with np.errstate(all="ignore"):
            agree(compiled(*ours), fn(*theirs))
        agree([a for a in ours if isinstance(a, np.ndarray)], [a for a in theirs if isinstance(a, np.ndarray)])


# ---- programs


def mandelbrot(c, limit):
    z = np.zeros_like(c)
    inside = np.ones(c.shape, dtype=bool)
    for _ in range(limit):
        z = np.where(inside, z * z + c, z)
        inside = inside & (np.abs(z) <= 2)
    return inside, z


def julia(x, y, c):
    z = x[np.newaxis, :] + 1j * y[:, np.newaxis]
    count = np.zeros(z.shape, dtype=int)
    for _ in range(8):
        mask = np.abs(z) < 2
        z = np.where(mask, z**2 + c, z)
        count = count + mask
    return count


def dft(x):
    n = len(x)
    k = np.arange(n).reshape(n, 1)
    return np.dot(np.exp(-2j * np.pi * k * np.arange(n) / n), x)


def radix2(x):
    if len(x) == 1:
        return x.astype(complex)
    even, odd = radix2(x[::2]), radix2(x[1::2])
    turned = np.exp(-2j * np.pi * np.arange(len(x) // 2) / len(x)) * odd
    return np.concatenate([even + turned, even - turned])


def impedance(frequency, r, l, c):
    omega = 2 * np.pi * frequency
    z = r + 1j * omega * l + 1 / (1j * omega * c)
    return np.abs(z), np.angle(z, deg=True), 20 * np.log10(np.abs(1 / z))


def newton(z):
    for _ in range(6):
        z = z - (z**3 - 1) / (3 * z**2)
    roots = np.exp(2j * np.pi * np.arange(3) / 3)
    return np.argmin(np.abs(z[..., None] - roots), axis=-1)


def expectation(state, operator):
    state = state / np.sqrt(np.vdot(state, state).real)
    return np.real(state.conj() @ operator @ state), np.abs(state) ** 2


def evolve(psi, potential, dx, dt):
    """A step of Schroedinger's equation, its borders held at 0."""
    hamiltonian = -0.5 * (np.roll(psi, 1) - 2 * psi + np.roll(psi, -1)) / dx**2 + potential * psi
    psi = psi - 1j * dt * hamiltonian
    psi[0] = psi[-1] = 0
    return psi / np.sqrt(np.sum(np.abs(psi) ** 2) * dx)


def filter_response(b, a, omega):
    z = np.exp(1j * omega)
    top = sum(c * z**-k for k, c in enumerate(b))
    return 20 * np.log10(np.abs(top / sum(c * z**-k for k, c in enumerate(a)))), np.unwrap(np.angle(z * 0.5))[:1]


def joukowski(r, theta, centre):
    zeta = centre + r * np.exp(1j * theta)
    z = zeta + 1 / zeta
    return z.real, z.imag


def rotate(points, degrees):
    turned = (points[:, 0] + 1j * points[:, 1]) * np.exp(1j * np.deg2rad(degrees))
    return np.stack([turned.real, turned.imag], axis=1)


def beamform(signals, steering):
    return np.sum(signals * steering.conj()[:, None], axis=0) / len(steering)


def sign_flip(z):
    z.real = -z.real
    z.imag[::2] = 0
    z *= 2j
    return z


REAL = np.linspace(-1.5, 1.5, 24)
PROGRAMS = {
    "mandelbrot": (mandelbrot, REAL[None, :] + 1j * REAL[:, None], 6),
    "julia": (julia, REAL, REAL[:9], -0.4 + 0.6j),
    "dft": (dft, REAL),
    "radix-2": (radix2, np.cos(np.arange(16.0))),
    "impedance": (impedance, np.linspace(10.0, 1e4, 30), 50.0, 1e-3, 1e-6),
    "newton": (newton, numbers(5, 6)),
    "expectation": (expectation, numbers(4), numbers(4, 4, seed=1)),
    "evolve": (evolve, numbers(33), REAL[0] * np.ones(33), 0.1, 1e-3),
    "joukowski": (joukowski, 1.1, np.linspace(0, 6.28, 40), -0.1 + 0.1j),
    "rotate": (rotate, np.stack([REAL, REAL**2], 1), 30.0),
    "beamform": (beamform, numbers(4, 50), numbers(4, seed=2)),
    "sign-flip": (sign_flip, numbers(9)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name):
    fn, *args = PROGRAMS[name]
    check(fn, *args)


def test_an_array_whose_extents_change_compiles_once():
    compiled = mlirfuse.jit(dft, fallback=False)
    compiled(np.ones(7))
    before = mlirfuse.counters.specializations
    for n in (8, 9, 30):
        x = np.sin(np.arange(float(n)))
        agree(compiled(x), dft(x))
    assert mlirfuse.counters.specializations == before


# ---- functions

UNARY = """exp exp2 expm1 log log2 log10 log1p sqrt sin cos tan arcsin arccos arctan sinh cosh tanh arcsinh arccosh
arctanh square reciprocal negative positive conj sign rint abs angle real imag isnan isinf isfinite isreal iscomplex
logical_not nan_to_num sum prod mean var std max min argmax argmin any all count_nonzero cumsum cumprod sort argsort
diff fliplr transpose nansum nanmean ravel"""
BINARY = """add subtract multiply divide power equal not_equal less less_equal greater greater_equal maximum minimum fmax
fmin logical_and logical_or logical_xor matmul dot vdot inner outer isclose float_power"""


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
@pytest.mark.parametrize("name", UNARY.split())
def test_functions_of_one(name, dtype):
    check(lambda z: getattr(np, name)(z), numbers(4, 4, dtype=dtype))


@pytest.mark.parametrize("name", BINARY.split())
def test_functions_of_two(name):
    z, w = numbers(4, 4), numbers(4, 4, seed=1)
    w[0] = z[0]
    check(lambda z, w: getattr(np, name)(z, w), z, w)


@pytest.mark.parametrize("fn", [
    lambda x: 1j * x, lambda x: x * (2 + 1j) - 3j / x, lambda x: x.astype(complex), lambda x: x.astype(np.complex64) ** 2,
    lambda x: np.zeros(x.shape, dtype=complex) + x, lambda x: np.array([x[0] + 1j, 2 * x[1]]), lambda x: (x + 0j).imag,
    lambda x: (-x + 0j) ** 0.5, lambda x: (x + 1j) ** -3, lambda x: np.where(x > 0, x * 1j, 0), lambda x: (1j**x).real,
    lambda x: np.full(3, 1j) * x[:3], lambda x: np.pad(x * 1j, 2)[1:], lambda x: np.round(x * (1 + 2j), 1),
], ids=range(14))  # fmt: skip
def test_literals_and_types(fn):
    check(fn, np.linspace(-2.0, 3.0, 6))
    check(fn, np.linspace(-2.0, 3.0, 6).astype(np.float32))


@pytest.mark.parametrize("number", [2 - 1j, np.complex64(1 + 2j), np.complex128(-1j)])
def test_numbers_that_are_arguments(number):
    """They are no constants of what is compiled, and promote as NumPy's."""
    compiled = mlirfuse.jit(lambda x, c: (x * c + c, abs(c), c.real, c.conjugate()), fallback=False)
    for dtype in (np.float32, np.float64, np.complex64):
        x = numbers(5, dtype=np.complex64).real.astype(dtype)
        for c in (number, number * type(number)(3)):
            agree(compiled(x, c), (x * c + c, abs(c), c.real, c.conjugate()))


def test_special_values():
    inf, nan = np.inf, np.nan
    parts = [0.0, -0.0, 1.0, -2.0, inf, -inf, nan]
    z = np.array([complex(a, b) for a in parts for b in parts])
    check(lambda z: (np.sign(z), np.isnan(z), z == z, np.maximum(z, 1j), np.nan_to_num(z), z.conj()), z)
    check(lambda z: z ** np.array([0, 1j, -1 + 0j, 2])[:, None], np.zeros(2, complex))


@pytest.mark.parametrize("make", [
    lambda z: z[::2], lambda z: z.T, lambda z: z[:, 1:], lambda z: z[:0], lambda z: z[0, 0].reshape(()), lambda z: z[:1],
], ids=range(6))  # fmt: skip
def test_layouts(make):
    z = make(numbers(6, 5))
    check(lambda z: (z * z + 1j, z.real, z.sum(), z.copy()), z)


def test_views_of_the_parts():
    """`z.real` is a view: what is written through it is seen in the array, and the result lies in the argument."""
    z = numbers(4)
    part = mlirfuse.jit(lambda z: z.imag, fallback=False)(z)
    assert np.shares_memory(part, z)

    def written(z):
        part = z.real
        part += 1
        z[0] = 5j
        return part.copy()

    check(written, numbers(4))


# ---- a GPU's kernels


def emulated(fn, *inputs) -> list[np.ndarray]:
    """The results of ``fn`` by its kernels for sm_90, complex arguments and results as they lie in memory."""
    lowered = mlirfuse.jit(fn, target="cuda:sm_90").lower(*inputs)
    target, env, split = targets.of("cuda:sm_90"), lowered.env, lowered._specialization.split
    program = Program(lowered.segmented(), target, env)
    params = tuple(SCHEDULERS.choose(step.analysis, SizedCall(env, {}, target.properties)) for step in program.steps)
    slots = program.slots()
    module = target.write(program, params, slots)
    code = parse(load.ptx_of(module.tiled(), target.properties.chip))
    compiled_program = CompiledProgram(params, module, slots, 0, None)
    program.add_plan(compiled_program)
    plan = program.plan(compiled_program, env)
    created = [np.zeros([sz.substitute(n, env) for n in v.shape], v.dtype.numpy) for v in split.created]
    whole = {"argument": list(inputs), "created": created}
    memory = Memory(room_for([a.nbytes for some in whole.values() for a in some] + [1 << 16, plan.workspace]))
    at = {what: [memory.allocate(a, writable=what == "created") for a in some] for what, some in whole.items()}
    addresses = {}
    for value, (what, k, part) in zip(program.graph.args, split.sources):
        skipped = whole[what][k].real.itemsize if part == "im" else 0
        if value in slots.pointers:
            addresses[slots.pointers[value]] = at[what][k] + skipped
    results = {}
    for k, value in enumerate(program.outputs):
        if slots.pointers.get(value) not in addresses and value in slots.pointers:
            shape = tuple(sz.substitute(n, env) for n in value.shape)
            results[k] = memory.allocate(np.zeros(shape, value.dtype.numpy), writable=True), shape, value.dtype.numpy
            addresses[slots.pointers[value]] = results[k][0]
    workspace = memory.allocate(np.zeros(max(plan.workspace, 1), np.uint8), writable=True)
    for kernel in module.kernels:
        passed = [
            addresses[slot] if kind == "pointer" else workspace + plan.ints[slot] if kind == "temporary" else plan.ints[slot]
            for kind, slot in kernel.passed
        ]  # fmt: skip
        grid = plan.ints[slots.size(kernel.grid)]
        Launch(code[kernel.name], memory, passed, grid, kernel.threads, kernel.dynamic_shared, kernel.cluster).run()
    complex_ = [memory.fetch(at["created"][k], a.shape, a.dtype) for k, a in enumerate(created)]
    return complex_ + [memory.fetch(*result) for result in results.values()]


@pytest.mark.parametrize("fn", [
    lambda z, w: z * w + 2j, lambda z, w: np.exp(1j * z.real) / w, lambda z, w: np.abs(z) ** 2, lambda z, w: (z * w.conj()).sum(-1),
    lambda z, w: np.sqrt(z) + w**3, lambda z, w: np.angle(z),
], ids=range(6))  # fmt: skip
def test_kernels_of_a_gpu(fn):
    z, w = numbers(3, 40, dtype=np.complex64), numbers(3, 40, dtype=np.complex64, seed=1)
    (got,) = emulated(fn, z, w)
    want = fn(z.astype(np.complex128), w.astype(np.complex128))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())


@pytest.mark.parametrize("order", [(0, 2, 1), (1, 0, 2), (2, 1, 0), (1, 2, 0)])
def test_memory_order_of_extrema_products_and_rounding(order):
    def program(x):
        return (
            x.max(0),
            x.prod(1),
            x.min((0,), keepdims=True),
            np.round(x, 1),
            np.sort(np.broadcast_to(x[0], (2, *x[0].shape)), 0),
        )

    x = (np.arange(60).reshape(np.array([3, 4, 5])[list(order)]) * (1 + 0.25j)).transpose(np.argsort(order))
    for found, expected in zip(mlirfuse.jit(program)(x), program(x), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-14)
        wide = [n > 1 for n in expected.shape]
        assert [s for s, w in zip(found.strides, wide) if w] == [s for s, w in zip(expected.strides, wide) if w]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_reciprocal_of_zero():
    x = np.array([0, -0.0, 1 + 1j, complex(0, np.inf)], np.complex64)
    np.testing.assert_array_equal(mlirfuse.jit(lambda x: np.reciprocal(x))(x), np.reciprocal(x))


@pytest.mark.parametrize("f", [
    lambda z: np.nansum(z, dtype="f4"), lambda z: z.astype(float) + 1, lambda z: np.cumsum(z, dtype=float),
    lambda z: np.mean(z, dtype=float),
])  # fmt: skip
def test_discarded_imaginary_parts_give_no_warning(f):
    z = np.array([1 + 2j, 3j, -2.5])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = mlirfuse.jit(f)(z)
    with pytest.warns(np.exceptions.ComplexWarning):
        wanted = f(z)
    np.testing.assert_array_equal(found, wanted)
    assert found.dtype == wanted.dtype


def _in_loop(power):
    def f(z):
        out = np.empty_like(z)
        for k in range(len(z)):
            out[k] = power(z[k])
        return out

    return f


def _in_a_native_loop(z):
    out = np.empty((3, len(z)), z.dtype)
    for k in range(len(z)):
        out[0, k], out[1, k], out[2, k] = z[k] ** 1, z[k] ** 2, z[k] ** 3
    return out


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
@pytest.mark.parametrize("f", [
    _in_a_native_loop, np.reciprocal, lambda z: z**-1, lambda z: np.power(z, -1), lambda z: z**-1.0, lambda z: z**-2, lambda z: z**1,
    lambda z: z**2, lambda z: z**3, lambda z: z**4, lambda z: z**5, lambda z: z**2.0, lambda z: z**0.5,
    lambda z: np.power(z, 1), lambda z: np.power(z, 2), lambda z: np.power(z, 3), lambda z: np.power(z, 0.5),
    lambda z: np.stack([z[1] ** 1, z[5] ** 2, z[1] ** 2]),
    *map(_in_loop, (lambda z: z**-1, lambda z: z**1, lambda z: z**2, lambda z: z**3, lambda z: z**4, lambda z: z**-2)),
])  # fmt: skip
@pytest.mark.parametrize("parts", [[np.inf, -np.inf, np.nan, 1.5, -2.0], [0.0, -0.0, -2.0]])
def test_powers_of_infinite_numbers_and_zeros(f, dtype, parts):
    z = np.array([complex(a, b) for a in parts for b in parts], dtype)
    with np.errstate(all="ignore"):
        wanted = f(z)
    found = mlirfuse.jit(f if f is _in_a_native_loop else lambda z: f(z))(z)
    for part in ("real", "imag"):
        np.testing.assert_allclose(getattr(found, part), getattr(wanted, part), rtol=1e-6)
        zeros = getattr(wanted, part) == 0
        np.testing.assert_array_equal(np.signbit(getattr(found, part))[zeros], np.signbit(getattr(wanted, part))[zeros])
