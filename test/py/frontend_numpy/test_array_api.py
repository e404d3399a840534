"""What the Python array API standard (2025.12) has, called by its own signatures inside compiled functions and, from
``mlirfuse.numpy``, outside of them, beside NumPy. The standard's own suite is in no package registry: where
``ARRAY_API_TESTS`` names its folder, ``-m slow`` runs it."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import types

import numpy as np
import pytest

import mlirfuse
import mlirfuse.numpy as mnp
from mlirfuse.frontend.numpy.graph_breaks import program as pieces

_RNG = np.random.default_rng(0)
X = _RNG.uniform(0.1, 0.9, (4, 6))
Y = _RNG.uniform(0.1, 0.9, (4, 6))
I, J = (_RNG.integers(1, 9, (4, 6)) for _ in range(2))
B, C = X > 0.5, Y > 0.5
Z = X + 1j * Y
V = _RNG.uniform(0.1, 0.9, 6)
S = X[:, :4] @ X[:, :4].T + 4 * np.eye(4)
IDX = np.array([2, 0, 1])

UNARY = [
    (X, "abs acos asin asinh atan atanh ceil cos cosh exp expm1 floor isfinite isinf isnan log log10 log1p log2 negative "
        "positive reciprocal round sign signbit sin sinh sqrt square tan tanh trunc"),
    (X + 1, "acosh"),
    (I, "abs bitwise_invert negative positive sign square"),
    (B, "logical_not bitwise_invert"),
    (Z, "abs conj exp imag isfinite isinf isnan negative real square"),
]  # fmt: skip
BINARY = [
    (X, Y, "add atan2 copysign divide equal floor_divide greater greater_equal hypot less less_equal logaddexp maximum "
           "minimum multiply nextafter not_equal pow remainder subtract"),
    (I, J, "add bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor equal floor_divide greater "
           "greater_equal less less_equal maximum minimum multiply not_equal pow remainder subtract"),
    (B, C, "bitwise_and bitwise_or bitwise_xor equal logical_and logical_or logical_xor not_equal"),
    (Z, Z.conj(), "add divide equal multiply not_equal subtract"),
]  # fmt: skip
CALLS = {
    "arange": lambda p: p.arange(3, 11, step=2, dtype=p.float64),
    "asarray": lambda p, x: p.asarray(x, dtype=p.float32, copy=True),
    "empty_like": lambda p, x: p.empty_like(x, dtype=p.int64) * 0,
    "eye": lambda p: p.eye(3, 4, k=1, dtype=p.float32),
    "full": lambda p: p.full((2, 3), 7, dtype=p.int32),
    "full_like": lambda p, x: p.full_like(x, 2.5),
    "linspace axis": lambda p, x: p.linspace(x, x + 1, 3, axis=-1),
    "linspace": lambda p: p.linspace(0.0, 1.0, 5, endpoint=False),
    "meshgrid": lambda p, v, w: p.meshgrid(v, w, indexing="ij"),
    "ones": lambda p: p.ones((2, 3), dtype=p.float32),
    "ones_like": lambda p, x: p.ones_like(x),
    "tril": lambda p, x: p.tril(x, k=-1),
    "triu": lambda p, x: p.triu(x, k=1),
    "zeros": lambda p: p.zeros((2, 3)),
    "zeros_like": lambda p, x: p.zeros_like(x, dtype=p.bool),
    "astype": lambda p, x: p.astype(x, p.float32, copy=True),
    "broadcast_arrays": lambda p, x, v: p.broadcast_arrays(x, v),
    "broadcast_to": lambda p, v: p.broadcast_to(v, (4, 6)),
    "can_cast": lambda p, x: x * p.can_cast(p.int32, p.float64),
    "finfo": lambda p, x: x + p.finfo(p.float32).eps,
    "iinfo": lambda p, x: x + p.iinfo(p.int16).max,
    "isdtype": lambda p, x: x * p.isdtype(x.dtype, "real floating"),
    "result_type": lambda p, x: x.astype(p.result_type(p.float32, p.int8)),
    "clip": lambda p, x: p.clip(x, min=0.3, max=0.6),
    "where": lambda p, b, x: p.where(b, x, -x),
    "matmul": lambda p, x, y: p.matmul(x, p.matrix_transpose(y)),
    "tensordot": lambda p, x, y: p.tensordot(x, y, axes=((0, 1), (0, 1))),
    "vecdot": lambda p, x, y: p.vecdot(x, y, axis=-1),
    "take": lambda p, x, k: p.take(x, k, axis=1),
    "take_along_axis": lambda p, x: p.take_along_axis(x, p.argsort(x, axis=1), axis=1),
    "concat": lambda p, x, y: p.concat((x, y), axis=1),
    "expand_dims": lambda p, x: p.expand_dims(x, axis=1),
    "flip": lambda p, x: p.flip(x, axis=0),
    "moveaxis": lambda p, x: p.moveaxis(x, 0, 1),
    "permute_dims": lambda p, x: p.permute_dims(x, axes=(1, 0)),
    "repeat": lambda p, x: p.repeat(x, 3, axis=1),
    "reshape": lambda p, x: p.reshape(x, (3, -1)),
    "roll": lambda p, x: p.roll(x, shift=2, axis=1),
    "squeeze": lambda p, x: p.squeeze(x[None], axis=0),
    "stack": lambda p, x, y: p.stack((x, y), axis=-1),
    "tile": lambda p, x: p.tile(x, (2, 1)),
    "unstack": lambda p, x: p.unstack(x, axis=1),
    "argmax": lambda p, x: p.argmax(x, axis=1, keepdims=True),
    "argmin": lambda p, x: p.argmin(x),
    "count_nonzero": lambda p, x: p.count_nonzero(x > 0.5, axis=0),
    "nonzero": lambda p, x: p.nonzero(x > 0.5),
    "searchsorted": lambda p, v, w: p.searchsorted(p.sort(v), w, side="right"),
    "unique_all": lambda p, i: tuple(p.unique_all(i)),
    "unique_counts": lambda p, i: tuple(p.unique_counts(i)),
    "unique_inverse": lambda p, i: tuple(p.unique_inverse(i)),
    "unique_values": lambda p, i: p.unique_values(i),
    "argsort": lambda p, x: p.argsort(x, axis=0, stable=True),
    "sort": lambda p, x: p.sort(x, axis=0, stable=False),
    "cumulative_sum": lambda p, x: p.cumulative_sum(x, axis=1, include_initial=True),
    "cumulative_prod": lambda p, x: p.cumulative_prod(x, axis=1),
    "max": lambda p, x: p.max(x, axis=1, keepdims=True),
    "mean": lambda p, x: p.mean(x, axis=(0, 1)),
    "min": lambda p, x: p.min(x),
    "prod": lambda p, x: p.prod(x, axis=0, dtype=p.float64),
    "std": lambda p, x: p.std(x, axis=1, correction=1),
    "sum": lambda p, x: p.sum(x, axis=0, keepdims=True),
    "var": lambda p, x: p.var(x, axis=0, correction=1.0),
    "all": lambda p, b: p.all(b, axis=1),
    "any": lambda p, b: p.any(b, axis=0, keepdims=True),
    "diff": lambda p, x: p.diff(x, axis=1, n=2),
    "linalg.cholesky": lambda p, s: p.linalg.cholesky(s, upper=True),
    "linalg.cross": lambda p, x, y: p.linalg.cross(x[:, :3], y[:, :3], axis=-1),
    "linalg.det": lambda p, s: p.linalg.det(s),
    "linalg.diagonal": lambda p, s: p.linalg.diagonal(s, offset=1),
    "linalg.eigvalsh": lambda p, s: p.linalg.eigvalsh(s),
    "linalg.inv": lambda p, s: p.linalg.inv(s),
    "linalg.matrix_norm": lambda p, s: p.linalg.matrix_norm(s, ord="fro"),
    "linalg.matrix_power": lambda p, s: p.linalg.matrix_power(s, 3),
    "linalg.matrix_rank": lambda p, s: p.linalg.matrix_rank(s),
    "linalg.outer": lambda p, v, w: p.linalg.outer(v, w),
    "linalg.pinv": lambda p, s: p.linalg.pinv(s),
    "linalg.slogdet": lambda p, s: tuple(p.linalg.slogdet(s)),
    "linalg.solve": lambda p, s: p.linalg.solve(s, s[:, 0] + 1),
    "linalg.svdvals": lambda p, s: p.linalg.svdvals(s),
    "linalg.trace": lambda p, s: p.linalg.trace(s, offset=1),
    "linalg.vector_norm": lambda p, x: p.linalg.vector_norm(x, axis=1, ord=1),
    "fft.fft": lambda p, v: p.fft.fft(v, n=8, norm="ortho"),
    "fft.irfft": lambda p, v: p.fft.irfft(p.fft.rfft(v)),
    "fft.fftshift": lambda p, v: p.fft.fftshift(v, axes=0),
}
ARGUMENTS = {"x": X, "y": Y, "v": V, "w": V[::-1] * 0.9, "i": I, "b": B, "s": S, "k": IDX}
LACKS = ["argsort descending", "sort descending"]  # as NumPy's; see docs/numpy/programs.md


def cases():
    for x, names in UNARY:
        for name in names.split():
            yield pytest.param(lambda p, x, name=name: getattr(p, name)(x), (x,), id=f"{name}-{x.dtype}")
    for x, y, names in BINARY:
        for name in names.split():
            yield pytest.param(lambda p, x, y, name=name: getattr(p, name)(x, y), (x, y), id=f"{name}-{x.dtype}")
    for name, call in CALLS.items():
        given = call.__code__.co_varnames[1 : call.__code__.co_argcount]
        yield pytest.param(call, tuple(ARGUMENTS[g] for g in given), id=name)


def same(got, want) -> None:
    if isinstance(want, (tuple, list)):
        assert len(got) == len(want)
        for g, w in zip(got, want):
            same(g, w)
        return
    assert np.asarray(got).dtype == np.asarray(want).dtype and np.shape(got) == np.shape(want)
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("call, args", list(cases()))
def test_the_standards_functions(call, args, monkeypatch):
    monkeypatch.setattr(pieces, "SMALL", 0)  # in pieces, though NumPy would be quicker
    want = call(np, *args)
    same(call(mnp, *args), want)
    for p in (np, mnp):
        jitted = mlirfuse.jit(lambda *given, p=p: call(p, *given))
        for _ in range(2):
            same(jitted(*args), want)


@pytest.mark.parametrize("lacking", LACKS)
def test_what_the_docs_say_is_lacking(lacking):
    name, keyword = lacking.split()
    with pytest.raises(TypeError):
        getattr(mnp, name)(X, **{keyword: True})


SUITE = os.environ.get("ARRAY_API_TESTS")


@pytest.mark.slow
@pytest.mark.skipif(not SUITE, reason="ARRAY_API_TESTS names no folder with the standard's suite")
def test_the_standards_own_suite():
    """Over functions that are compiled one by one (``array_api_namespace.py``). ``array_api_xfails.txt`` has what fails,
    over NumPy too, with reasons."""
    here = pathlib.Path(__file__).parent
    environment = os.environ | {
        "ARRAY_API_TESTS_MODULE": "array_api_namespace",
        "ARRAY_API_TESTS_VERSION": "2024.12",
        "PYTHONPATH": os.pathsep.join(
            [str(here.parent / "helpers"), str(here.parents[2]), os.environ.get("PYTHONPATH", "")]
        ),
    }
    options = ["-q", "--max-examples=20", f"--xfails-file={here / 'array_api_xfails.txt'}", "array_api_tests"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options], cwd=SUITE, env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout[-4000:]


def test_namespaces_by_array_api_compat():
    compat = pytest.importorskip("array_api_compat")

    def standardized(x):
        xp = compat.array_namespace(x)
        return (x - xp.mean(x, axis=0)) / xp.std(x, axis=0, correction=1) * compat.size(x)

    jitted = mlirfuse.jit(standardized, fallback=False)
    np.testing.assert_allclose(jitted(X), standardized(X), rtol=1e-13)
    assert jitted.kernels(X) == 1


def test_what_is_called_get_namespace_elsewhere_gives_more(monkeypatch):
    """As scikit-learn's, which gives a pair: it is called as it is."""
    library = types.ModuleType("a_library")
    exec("import numpy\ndef get_namespace(x):\n    return numpy, True", vars(library))
    monkeypatch.setitem(sys.modules, "a_library", library)
    same(mlirfuse.jit(lambda x: library.get_namespace(x)[0].exp(x))(X), np.exp(X))


@pytest.mark.parametrize("axes", [0, ((), ())])
@pytest.mark.parametrize("x", [np.True_, np.float64(2.0)])
@pytest.mark.parametrize("y", [np.uint8(3), np.array(3, np.uint8), np.ones(3, np.uint8)])
def test_products_of_numpys_numbers(x, y, axes):
    """A library's call is given a number in an array's place as it is, and a view of it is one of an array."""
    same(mlirfuse.jit(lambda x, y: np.tensordot(x, y, axes=axes))(x, y), np.tensordot(x, y, axes=axes))
