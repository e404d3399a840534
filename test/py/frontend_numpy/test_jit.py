"""The contract of ``jit``: what a call may look like, what is compiled again and what is not, and what goes wrong in
which words."""

from __future__ import annotations

import collections
import copy
import dataclasses
import errno
import gc
import io
import os
import pathlib
import pickle
import re
import shlex
import subprocess
import sys
import threading
import warnings
import weakref

import ml_dtypes
import numpy as np
import progress
import pytest

import mlirfuse
from mlirfuse.core import config
from mlirfuse.core.errors import CompileError, ShapeError, TraceError, UnsupportedError
from mlirfuse.frontend.numpy.trace_state import current
from mlirfuse.passes import pipelines
from mlirfuse.runtime import cache, counters

HERE = pathlib.Path(__file__)
ROOT = HERE.parents[3]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MLIRFUSE_CACHE_DIR", str(tmp_path / "cache"))


def floats(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def strict(fn, **options):
    return mlirfuse.jit(fn, fallback=False, **options)


def close(got, want, tolerance=1e-5):
    """Of the same types, shapes and, within the tolerance, values; nested."""
    if isinstance(want, dict):
        assert list(got) == list(want)
        got, want = list(got.values()), list(want.values())
    if isinstance(want, (tuple, list)):
        assert len(got) == len(want) and (isinstance(got, type(want)) or isinstance(want, list))
        for a, b in zip(got, want):
            close(a, b, tolerance)
        return
    assert type(got) is type(want), f"a {type(got).__name__}, not a {type(want).__name__}"
    if not isinstance(want, (np.ndarray, np.generic)):
        assert got == want or got is want or (got != got and want != want)
        return
    assert got.dtype == want.dtype and got.shape == want.shape, f"{got.dtype}{got.shape}, not {want.dtype}{want.shape}"
    if want.dtype.kind in "fV" or want.dtype == ml_dtypes.bfloat16:
        np.testing.assert_allclose(
            np.asarray(got, np.float64), np.asarray(want, np.float64), rtol=tolerance, atol=tolerance
        )
    else:
        np.testing.assert_array_equal(got, want)


def agree(fn, *calls, compiled=None):
    """Compiled and plain give the same results and change their arguments in the same way, call after call."""
    compiled = compiled or strict(fn)
    for args in calls:
        mine, theirs = copied(args), copied(args)
        want, got = fn(*theirs), compiled(*mine)
        close(got, want)
        close(tuple(mine), tuple(theirs))
    return compiled


def copied(args):
    """Copies of the arrays, in the same layout; what is one array stays one."""
    done: dict[int, object] = {}
    out = []
    for a in args:
        if id(a) not in done:
            done[id(a)] = a.copy(order="K") if isinstance(a, np.ndarray) else a
        out.append(done[id(a)])
    return out


class compiles:
    """``with compiles(specializations=0, compiled_programs=0):`` what is compiled inside."""

    def __init__(self, **expected):
        self.expected = expected

    def __enter__(self):
        self.before = counters.snapshot()
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            now = counters.snapshot()
            assert {k: now[k] - self.before[k] for k in self.expected} == self.expected


# ---------------------------------------------------------------------------------------------------------------- sizes
# and numbers


def norm(x, r, w, b1, b2):
    n = x + b1 + r
    d = n - n.mean(-1, keepdims=True)
    return w * (d / np.sqrt((d * d).mean(-1, keepdims=True) + 1e-12)) + b2


def test_random_sizes_run_on_one_compilation():
    """The tutorial's chapter on dynamic shapes: 20 random batch and sequence sizes."""
    compiled, hidden, g = strict(norm), 96, np.random.default_rng(0)
    w, b1, b2 = (floats(hidden, seed=k) for k in range(3))
    sizes = [(int(g.integers(2, 7)), int(g.integers(8, 60))) for _ in range(20)]
    inputs = [(floats(b, s, hidden), floats(b, s, hidden, seed=1)) for b, s in sizes]
    with compiles(specializations=1, compiled_programs=1, fallbacks=0):
        for x, r in inputs:
            np.testing.assert_allclose(compiled(x, r, w, b1, b2), norm(x, r, w, b1, b2), rtol=2e-5, atol=2e-5)


def test_new_sizes_compile_nothing_where_they_are_alike():
    """Schedules differ between rows shorter than a vector of this machine (4 to 16 floats), shorter than 64 and longer,
    and by how many there are."""
    compiled = strict(lambda x, y: np.tanh(x) * y.sum(0) + x.shape[0])
    narrow, wide = [(5, 9, 3), (4, 3, 2), (6, 2, 3), (9, 5, 2)], [(5, 9, 70), (4, 3, 64), (6, 2, 90), (8, 4, 300)]
    for alike in (narrow, wide):
        for at, (n, m, k) in enumerate(alike):
            x, y = floats(n, k), floats(m, k)
            with compiles(
                **(
                    {"specializations": 0, "compiled_programs": 0}
                    if at
                    else {"specializations": int(alike is narrow), "compiled_programs": 1}
                )
            ):
                close(compiled(x, y), np.tanh(x) * y.sum(0) + n)
    before = counters.snapshot()
    for n, m, k in ((50, 2, 70), (300, 2, 1000), (2, 3000, 20), (1000, 90, 3), (2, 2, 2)):
        x, y = floats(n, k), floats(m, k)
        close(compiled(x, y), np.tanh(x) * y.sum(0) + n, 1e-4)
    assert (
        counters.specializations == before["specializations"]
        and counters.compiled_programs <= before["compiled_programs"] + 4
    )  # schedules for many or few rows


@pytest.mark.parametrize(
    "shapes",
    [((1, 7), (5, 1)), ((1, 1), (5, 7)), ((5, 7), (5, 7)), ((1, 7), (1, 7)), ((5, 1), (1, 1)), ((2, 7), (1, 1))],
)
def test_sizes_that_become_one(shapes):
    compiled = strict(lambda x, y: (x - y).sum(0) + (x * y).max())
    agree(
        lambda x, y: (x - y).sum(0) + (x * y).max(),
        (floats(5, 7), floats(5, 7)),
        tuple(map(floats_of, shapes)),
        compiled=compiled,
    )


def floats_of(shape):
    return floats(*shape)


def test_equal_sizes_once_do_not_stay_equal():
    agree(
        lambda x, y: np.concatenate([x, y]) * 2, (floats(5), floats(5)), (floats(5), floats(8)), (floats(1), floats(8))
    )
    agree(
        lambda x, y: (x.T + x if x.shape[0] == x.shape[1] else x) * y,
        (floats(4, 4), floats(4)),
        (floats(3, 4), floats(4)),
        (floats(5, 5), floats(5)),
    )


def test_sizes_in_arithmetic_and_conditions():
    def f(x):
        n = x.shape[0]
        y = x.reshape(n * 2, -1) if n > 4 else x[: n // 2]
        return y * x.size + len(x) + x.ndim, y.shape, x.dtype

    agree(f, (floats(6, 4),), (floats(10, 8),), (floats(3, 4),), (floats(4, 4),), (floats(7, 2),))


def test_numbers_are_passed_at_run_time():
    def f(x, s):
        return x * s + 1

    x = floats(33)
    for kind, values in ((float, [0.5, -2.0, np.inf, 3.0]), (int, [2, 0, -7, 12345]), (np.float32, [1.5, 2.5]), (np.float64, [1.5, 0.1]), (np.int8, [3, -4]),
                         (np.bool_, [True, False])):  # fmt: skip
        compiled = agree(f, (x, kind(values[0])))
        with compiles(specializations=0, compiled_programs=0):
            agree(f, *[(x, kind(v)) for v in values[1:]], compiled=compiled)
    compiled = agree(f, (x, np.array(2.0)))
    with compiles(specializations=0, compiled_programs=0):
        agree(f, (x, np.array(3.0)), (x, np.array(-0.0)), compiled=compiled)


def test_numbers_that_do_not_fit():
    u8 = np.arange(5, dtype=np.uint8)
    agree(lambda x, n: x + n, (u8, 3), (u8, 255))
    compiled = strict(lambda x, n: x + n)
    for n in (256, -1, 2**70):
        with pytest.raises(OverflowError):
            compiled(u8, n)
        close(compiled(u8, 7), u8 + 7)
    agree(
        lambda x, n: x * n,
        (floats(3), 3),
        (floats(3), 2**63),
        (floats(3), -(2**70)),
        (floats(3), 2**64),
        (floats(3), 4),
    )
    agree(
        lambda x, n: x * n,
        (np.ones(3, np.uint64), 2**63),
        (np.ones(3, np.uint64), 3),
        (np.ones(3, np.uint64), 2**64 - 1),
    )

    def store(x, s):
        x[1:] = s
        return x

    agree(store, (u8, 1.75), (u8, 3))
    with pytest.raises(OverflowError):
        strict(store)(u8.copy(), -1.5)


# ----------------------------------------------------------------------------------------------------------------
# constants


def test_axes_shapes_strings_and_conditions_are_guarded():
    x = floats(3, 4)
    agree(lambda x, a: x.sum(axis=a), *[(x, a) for a in (0, 1, 0, -1, None, (0, 1), 1)])
    agree(lambda x, k: x.max(0, keepdims=k), (x, True), (x, False), (x, True))
    agree(lambda x, m: x * 2 if m == "double" else x + 1, (x, "double"), (x, "other"), (x, "double"))
    agree(lambda x, n: x.reshape(n, -1), (x, 2), (x, 3), (x, 6), (x, 2))
    agree(lambda x, s: x.reshape(s), (x, (2, 6)), (x, (12,)), (x, (4, 3)))
    agree(lambda x, d: x.astype(d), (x, np.float64), (x, np.dtype("i4")), (x, "f2"), (x, np.float64))
    agree(lambda x, n: sum(x * k for k in range(1, n)), (x, 3), (x, 5), (x, 3))
    agree(lambda x, s: np.abs(x) if s < 0 else x, (x, -1), (x, 1), (x, -2.5), (x, 0))
    agree(lambda x, s: x * (0.0 if s != s else 1.0), (x, np.nan), (x, 1.0), (x, np.nan))
    agree(lambda x, i: x[i], (x, 1), (x, 2), (x, -1), (x, 0))


def test_the_sign_of_a_constant_zero():
    compiled = strict(lambda x, s: x * s if s == 0 else x)
    for s in (0.0, -0.0, 0.0):
        np.testing.assert_array_equal(np.signbit(compiled(np.ones(3), s)), [np.signbit(s)] * 3)


def test_a_constant_value_compiles_once():
    compiled, x = strict(lambda x, a: x.sum(axis=a)), floats(3, 4)
    with compiles(specializations=2):
        for a in (0, 1, 0, 1, 0):
            compiled(x, a)


def test_static_argnames():
    def f(x, n, *, scale=1):
        return x * (scale + n)

    compiled = strict(f, static_argnames=("n", "scale"))
    x = floats(5)
    with compiles(specializations=3):
        for n, scale in ((1, 2), (3, 2), (1, 5), (3, 2)):
            close(compiled(x, n, scale=scale), f(x, n, scale=scale))
    close(compiled(x, n=1, scale=2), f(x, 1, scale=2))
    assert strict(f, static_argnames="n")(x, 2).dtype == np.float32


class Scaled:
    """Its repr says nothing of its state."""

    def __init__(self, scale):
        self.scale = scale

    def __repr__(self):
        return "Scaled"

    def __call__(self, x):
        return x * self.scale


def test_objects_as_arguments():
    compiled = strict(lambda x, how: how(x) + 1)
    x, one, two = floats(5), Scaled(2.0), Scaled(3.0)
    for how in (one, two, one):
        close(compiled(x, how), how(x) + 1)
    one.scale = 7.0
    close(compiled(x, one), one(x) + 1)
    close(compiled(x, two), two(x) + 1)
    with pytest.raises(UnsupportedError, match="argument .how. is a set.*pass its arrays and numbers"):
        compiled(x, {1, 2})


# ---------------------------------------------------------------------------------------------------------------- ways
# to call


def test_keywords_and_defaults():
    def f(x, y=2.0, *rest, scale=1.0, **more):
        out = x * y * scale
        for r in rest:
            out = out + r
        return out + more.get("shift", 0)

    compiled, x = strict(f), floats(4)
    for args, kwargs in (
        ((x,), {}),
        ((x, 3.0), {}),
        ((x, x, x, x), {}),
        ((x,), dict(scale=2.0)),
        ((x,), dict(shift=x, scale=x)),
        ((x,), dict(scale=x, shift=x)),
        ((), dict(x=x)),
    ):
        close(compiled(*args, **kwargs), f(*args, **kwargs))


Pair = collections.namedtuple("Pair", "a b")


def test_containers():
    def f(d, pair, nested):
        return {
            "sum": d["x"] + pair.a,
            "more": [nested[0][0] * 2, (pair.b, d["n"])],
            "pair": Pair(d["x"], None),
            "size": d["x"].shape[0],
        }

    agree(f, ({"x": floats(3), "n": 4}, Pair(floats(3), floats(1)), [(floats(2),)]))
    compiled = strict(lambda d: d["a"] - d["b"])
    x, y = floats(3), floats(3, seed=1)
    close(compiled({"a": x, "b": y}), x - y)
    close(compiled({"b": y, "a": x}), x - y)
    assert strict(lambda *xs: xs)() == ()


def test_results_that_are_arguments_numbers_or_nothing():
    x = floats(4)
    agree(lambda x, y: (y, x + 1, x, None, "s", 3, 2.5, True, x.shape), (x, 2.0))
    for argument in (x, 3, 2.5, "a", None, True, np.float32(3)):
        assert strict(lambda x: x)(argument) is argument
    assert strict(lambda x: None)(x) is None
    y, z = strict(lambda x: (lambda r: (r, r))(x * 2))(x)
    close(y, z)


def test_numbers_in_numbers_out():
    agree(
        lambda x, y: (x + y, x * 2.0, -x, abs(y)),
        (np.float64(3), 4.0),
        (np.array(3.0), np.array(4.0)),
        (np.float32(3), 4),
        (3, 4),
        (2.5, 4),
        (True, 2),
    )
    agree(lambda x: (x.sum(), x.mean(), x.argmax(), x.any()), (floats(3, 4),), (floats(1),))


class Model:
    def __init__(self, scale, weight):
        self.scale, self.weight, self.parts = scale, weight, {"bias": 1.0}

    @mlirfuse.jit
    def forward(self, x):
        return np.maximum(x * self.scale + self.weight, 0) + self.parts["bias"]


def test_methods():
    x = floats(5)
    first, second = Model(2.0, floats(5, seed=1)), Model(-3.0, floats(5, seed=2))

    def check():
        for model in (first, second, first):
            close(model.forward(x), np.maximum(x * model.scale + model.weight, 0) + model.parts["bias"])

    check()
    first.scale = 5.0
    check()
    first.weight = floats(5, seed=3)
    check()
    first.weight[2] = 9
    check()
    second.scale = np.float64(0.5)
    check()
    second.parts["bias"] = -4.0
    check()
    first.parts = {"bias": 8.0}
    check()
    assert Model.forward.__name__ == "forward"


SCALE = 2.0
WEIGHT = np.arange(5, dtype=np.float32)
CONFIG = {"scale": 1.0, "list": [1.0, 2.0]}


def test_globals_and_closures():
    global SCALE, WEIGHT, CONFIG
    x, inner, offset, act = floats(5), 3.0, floats(5), np.tanh

    def helper(y):
        return y + CONFIG["scale"] + sum(CONFIG["list"])

    def f(x):
        return act(helper(x * SCALE * inner + WEIGHT + offset))

    compiled = strict(f)
    changes = [
        lambda: globals().update(SCALE=4.0), lambda: globals().update(SCALE=np.float32(3)), lambda: globals().update(WEIGHT=WEIGHT + 1),
        lambda: WEIGHT.__setitem__(slice(2), 7), lambda: CONFIG.update(scale=-1.0), lambda: CONFIG["list"].append(3.0),
        lambda: globals().update(CONFIG={"scale": 0.5, "list": []}), lambda: globals().update(WEIGHT=np.float64(2)),
    ]  # fmt: skip
    close(compiled(x), f(x))
    for change in changes:
        change()
        close(compiled(x), f(x))
    inner = 0.25
    close(compiled(x), f(x))
    inner = floats(5)
    close(compiled(x), f(x))
    offset[1:] = 2
    close(compiled(x), f(x))
    act = np.exp
    close(compiled(x), f(x))
    with compiles(specializations=0, compiled_programs=0):
        close(compiled(x), f(x))


FIRST, SECOND = np.arange(4, dtype=np.float32), np.ones((3, 4), np.float32)


class Factor:
    """Numbers that a class has, its objects may have of their own, and methods and properties give."""

    scale = 2.0

    @mlirfuse.jit
    def method(self, x):
        return x * self.scale

    @classmethod
    @mlirfuse.jit
    def of_class(cls, x):
        return x * cls.scale

    @classmethod
    def doubled(cls):
        return 2 * cls.scale

    @property
    def halved(self):
        return self.scale / 2

    def squared(self):
        return self.scale**2


class OwnFactor(Factor):
    pass


def test_numbers_of_classes():
    x, thing = np.ones(3, "f4"), OwnFactor()
    fns = {
        "class": (lambda x: x * OwnFactor.scale, 1),
        "object": (lambda x: x * thing.scale, 1),
        "class method": (lambda x: x * OwnFactor.doubled(), 2),
        "property": (lambda x: x * thing.halved, 0.5),
        "method": (lambda x: x * thing.squared(), 0),
    }
    compiled = {name: mlirfuse.jit(fn) for name, (fn, _) in fns.items()}
    try:
        for scale in (2.0, 3.0, 5.0):
            Factor.scale = scale
            for name, (_, factor) in fns.items():
                assert compiled[name](x)[0] == (factor * scale or scale**2), name
            assert thing.method(x)[0] == OwnFactor.of_class(x)[0] == scale
        with compiles(specializations=0, compiled_programs=0):
            for fn in compiled.values():
                fn(x)
        thing.scale = 7.0
        assert compiled["object"](x)[0] == thing.method(x)[0] == 7 and compiled["property"](x)[0] == 3.5
        assert compiled["class"](x)[0] == OwnFactor.of_class(x)[0] == 5
        OwnFactor.scale = 11.0
        assert compiled["class"](x)[0] == OwnFactor.of_class(x)[0] == 11 and compiled["object"](x)[0] == 7
        assert OwnFactor().method(x)[0] == 11
    finally:
        Factor.scale = 2.0
        if "scale" in vars(OwnFactor):
            del OwnFactor.scale


class Weights:
    first = np.full(3, 2, "f4")


class MoreWeights(Weights):
    second = np.full(3, 3, "f4")

    @mlirfuse.jit
    def apply(self, x):
        return x * self.first + self.second


@dataclasses.dataclass
class Layer:
    scale: float
    weights: np.ndarray


@dataclasses.dataclass(frozen=True)
class Fixed:
    scale: float
    weights: np.ndarray


@pytest.mark.parametrize("created", [Layer, Fixed])
def test_data_classes_that_hold_arrays(created):
    """They have no hash: each is what it is, and what is read of it is compared at each call."""
    compiled = mlirfuse.jit(lambda layer, x: x @ layer.weights * layer.scale)
    x = np.ones((5, 4))
    for k in range(3):
        layer = created(float(k), np.arange(4.0) + k)
        for _ in range(2):
            assert np.array_equal(compiled(layer, x), x @ layer.weights * layer.scale)
            if created is Layer:
                layer.scale, layer.weights = k + 0.5, np.full(4, k + 2.0)

    def counted(layer, x):
        layer.scale += 1
        return x * layer.scale

    layer = Layer(1.0, np.ones(4))
    for wanted in (2.0, 3.0, 4.0):
        assert np.array_equal(mlirfuse.jit(counted)(layer, x), x * wanted) and layer.scale == wanted


def test_arrays_of_classes():
    """They are read at each call: assigned anew or written to, in the class, a base of it or the object."""
    x, thing = np.ones(3, "f4"), MoreWeights()
    of_class = mlirfuse.jit(lambda x: x * MoreWeights.first + MoreWeights.second)
    of_object = mlirfuse.jit(lambda x: x * thing.first + thing.second)

    def results():
        return [fn(x)[0] for fn in (of_class, of_object, thing.apply)]

    assert results() == [5, 5, 5]
    with compiles(specializations=0, compiled_programs=0):
        Weights.first = np.full(3, 4, "f4")
        assert results() == [7, 7, 7]
        MoreWeights.second[:] = 10
        assert results() == [14, 14, 14]
    thing.second = np.full(3, 20, "f4")
    assert results() == [14, 24, 24]


def edges_of(u):
    u[0] = u[1]
    u[-1] = u[-2] * 2
    u[:, 0] = 0
    return u


def ends_of(v):
    v[0] = v[1]
    v[-1] += 1


@pytest.mark.parametrize("fn, shape", [(edges_of, (40, 30)), (edges_of, (2, 3)), (ends_of, (9,))])
def test_edges_alone_are_numpys(fn, shape):
    """The whole array would be written otherwise."""
    compiled = mlirfuse.jit(fn)
    with compiles(specializations=0, compiled_programs=0):
        for seed in range(3):
            x = np.random.default_rng(seed).random(shape)
            want = x.copy()
            assert (compiled(x) is x) == (fn(want) is want)
            np.testing.assert_array_equal(x, want)


def test_edges_for_one_number_are_not_those_for_another():
    def step(u, k):
        if k > 0:
            u[0] = u[-1] = k
        else:
            u *= 2

    compiled = mlirfuse.jit(step)
    x = np.random.default_rng(0).random((40, 30))
    want = x.copy()
    compiled(x, 1), step(want, 1)
    before = counters.snapshot()
    compiled(x, 0), step(want, 0)
    assert counters.snapshot() != before
    np.testing.assert_array_equal(x, want)


@pytest.mark.parametrize(
    "fn",
    [
        lambda u: (u.__setitem__(0, 1), u.__setitem__(-1, 2), u * 2)[2],
        lambda u: (u.__setitem__(slice(1, -1), 1), u.__setitem__(0, 2))[0],
        lambda u: (u.__setitem__(0, u.sum(0)), u.__setitem__(-1, 2))[0],
    ],
)
def test_edges_beside_something_else_are_compiled(fn):
    x = np.random.default_rng(0).random((40, 30))
    want = x.copy()
    expected = fn(want)
    before = counters.snapshot()
    got = mlirfuse.jit(fn)(x)
    assert counters.snapshot() != before
    np.testing.assert_allclose(x, want, rtol=1e-12)
    assert expected is None or np.allclose(got, expected)


def test_a_kind_that_captures_after_one_that_does_not():
    weight = np.full(4, 3, "f4")

    @mlirfuse.jit
    def scaled(x):
        return x * weight if x.ndim == 2 else x + 1

    x, y = np.ones(4, "f4"), np.ones((3, 4), "f4")
    scaled(x), scaled(y), scaled(y)
    before = counters.snapshot()
    for factor in (5, 7):
        weight = np.full(4, factor, "f4")
        assert scaled(x)[0] == 2 and scaled(y)[0, 0] == factor
    assert counters.snapshot() == before


def test_kinds_that_capture_different_arrays():
    def f(x):
        return x * FIRST if x.ndim == 1 else x * SECOND + FIRST

    agree(f, (floats(4),), (floats(3, 4),), (floats(4),), (floats(3, 4),), (floats(3, 4).astype(np.float64),))


def test_arrays_made_while_it_is_traced():
    def f(x):
        v = np.arange(x.shape[0]).astype(np.float32)
        y = x + v
        v += 1
        return y, x + v, v

    compiled = strict(f)
    for n in (9, 4, 9):
        for got, want in zip(compiled(floats(n))[:2], f(floats(n))[:2]):
            close(got, want)


def test_compiled_functions_in_compiled_functions():
    inner = strict(lambda x, k: np.tanh(x) * k)

    @mlirfuse.jit(fallback=False)
    def halve(x):
        return x if x.shape[0] < 2 else halve(x[: x.shape[0] // 2]) + inner(x[:1], 2.0)

    def plain(x):
        return x if x.shape[0] < 2 else plain(x[: x.shape[0] // 2]) + np.tanh(x[:1]) * 2.0

    for n in (1, 2, 9, 8):
        close(halve(floats(n)), plain(floats(n)))
    outer = strict(lambda x: {"a": inner(x, 3.0), "b": inner(x, 3.0).sum()})
    x = floats(6)
    close(outer(x), {"a": np.tanh(x) * 3, "b": (np.tanh(x) * 3).sum()})


# ----------------------------------------------------------------------------------------------------------------
# layouts, empties, dtypes


def layouts():
    whole = floats(12, 14, 3)
    buffer = bytearray(4 * 7 * 5 + 1)
    odd = np.frombuffer(buffer, np.float32, 35, offset=1).reshape(5, 7)
    odd[...] = floats(5, 7)
    return {
        "contiguous": floats(5, 7), "transposed": floats(7, 5).T, "reversed": floats(5, 7)[::-1, ::-1], "every second": whole[::2, ::2, 0][:5, :7],
        "repeated": np.broadcast_to(floats(7), (5, 7)), "repeated inside": np.broadcast_to(floats(5, 1), (5, 7)), "one element": np.broadcast_to(np.float32(3), (5, 7)),
        "misaligned": odd, "a window": whole[2:7, 3:10, 1], "Fortran, reversed": np.asfortranarray(floats(5, 7))[:, ::-1],
    }  # fmt: skip


@pytest.mark.parametrize("layout", layouts())
def test_layouts(layout):
    """Each as the first and as the second argument, beside a contiguous one."""

    def f(x, y):
        return x * 2 + y, x.T - y.T, (x * y).sum(0), (x + y).max(1, keepdims=True), x[1:, ::2].mean()

    x, y = layouts()[layout], floats(5, 7, seed=9)
    compiled = strict(f)
    for pair in ((x, y), (y, x), (x, x)):
        close(compiled(*pair), f(*pair))


def test_empty_and_0d():
    agree(
        lambda x: (x * 2, x.sum(0), x.sum(), x.T, x[:0]),
        (np.zeros((0, 3)),),
        (np.zeros((3, 0)),),
        (np.zeros((2, 3)),),
        (np.zeros((0, 0)),),
    )
    agree(lambda x, y: np.concatenate([x, y]), (floats(0), floats(3)), (floats(3), floats(0)), (floats(2), floats(3)))
    agree(lambda x: (x.sum(), x + 1, x.reshape(1, 1)), (np.array(2.5),), (np.array(2.5, np.float32),))
    compiled = strict(lambda x: x.max(0))
    assert compiled(np.zeros((3, 0))).shape == (0,)
    with pytest.raises(ValueError, match="zero-size"):
        compiled(np.zeros((0, 3)))
    close(compiled(floats(2, 3)), floats(2, 3).max(0))

    def fill(x, y):
        x[...] = y
        x[1:1] = 5

    agree(fill, (np.zeros((0, 3)), np.ones(3)), (np.zeros((2, 3)), np.ones(3)))


@pytest.mark.parametrize(
    "dtype", [np.float16, ml_dtypes.bfloat16, np.float64, np.int8, np.uint16, np.int64, np.uint64, np.bool_]
)
def test_dtypes(dtype):
    x = (floats(5, 9) * 5).astype(dtype)
    tolerance = {2: 2e-2}.get(np.dtype(dtype).itemsize, 1e-6) if np.dtype(dtype).kind not in "iub" else 0
    f = lambda x: (x + x, x * 2, x > 1, x.max(0), np.where(x != 0, x, x + 1), x.astype(np.float32).sum())  # noqa: E731
    close(strict(f)(x), f(x), tolerance or 1e-5)


def test_numbers_beside_half_types_of_torch():
    """The tensor's type stays, as in torch, also where the number is known only at run time."""
    torch = pytest.importorskip("torch")
    for dtype in (torch.bfloat16, torch.float16):
        x = torch.from_numpy(floats(5, 5)).to(dtype)
        for fn in (lambda x: x * 2.0, lambda x: 1.5 - x, lambda x: x + 3, lambda x: x @ x, lambda x: x.mean() * 0.5):
            got, want = strict(fn)(x), fn(x)
            assert got.dtype == want.dtype == dtype
            torch.testing.assert_close(got, want)
        assert strict(lambda x, s: x * s)(x, 2.5).dtype == dtype
        assert (
            strict(lambda x: np.where(x > 0, x, 0.0))(x).dtype
            == strict(lambda x: np.clip(x, -1.0, 1))(x).dtype
            == dtype
        )


def test_integers_overflow_and_divide_as_in_numpy():
    extremes = np.array([-128, -127, -1, 0, 1, 5, 127] * 5, np.int8)
    a, b = (g.reshape(-1) for g in np.meshgrid(extremes, extremes))
    with np.errstate(all="ignore"):
        for k in range(8):  # every length of the last vector, all of whose lanes divide by 0
            agree(
                lambda a, b: (a + b, a * b, a // b, a % b, np.fmod(a, b), -a, np.abs(a)),
                (a[k:], b[k:]),
                (a[: 7 + k].astype(np.int64), np.zeros(7 + k, np.int64)),
            )
        big = np.array([2**63 - 1, -(2**63), 5])
        agree(lambda x: (x + x, x * x, x.sum(), (x // -1)), (big,))


def test_sums_of_zeros():
    """A sum begins at 0, also over extents of 1: that of -0 is 0; a product of one number is that."""
    for shape in ((), (1,), (1, 3), (2, 1), (4, 5)):
        x = np.full(shape, -0.0, np.float32)
        for fn in (
            lambda x: x.sum(),
            lambda x: np.sum(x, axis=None, keepdims=True),
            lambda x: x.prod(),
            lambda x: x.max(),
        ):
            assert np.array_equal(np.signbit(strict(fn)(x)), np.signbit(fn(x)))


def test_floats_out_of_range_of_integers():
    """No value is defined for these, but nothing traps, and the others are right."""
    x = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 2.5, -2.5], np.float32)
    for dtype in (np.int8, np.uint8, np.int32, np.int64, np.uint64):
        got = strict(lambda x: x.astype(dtype))(x)
        assert got[5] == 2 and (got[6] == -2 or np.dtype(dtype).kind == "u")


@pytest.mark.skipif(not os.environ.get("MLIRFUSE_TEST_HUGE"), reason="takes 10 GB: set MLIRFUSE_TEST_HUGE=1")
def test_more_than_2_31_elements():
    n = 2**31 + 17
    x = np.ones(n, np.int8)
    x[-1] = 5
    compiled = strict(lambda x: (x + 1, x.astype(np.int64).sum(), x.argmax()))
    y, total, where = compiled(x)
    assert y[-1] == 6 and y[0] == 2 and total == n + 4 and where == n - 1


# ----------------------------------------------------------------------------------------------------------------
# writing into arguments


def test_writing():
    def f(x, y):
        x += y
        x[1:, ::2] *= 2
        y[...] = x.sum(0)
        return x[0] + 1, y.max()

    agree(
        f,
        (floats(5, 7), floats(7)),
        (floats(3, 9), floats(9)),
        (floats(7, 5).T, floats(7)),
        (floats(10, 14)[::2, ::-2], floats(14)[::-2]),
    )


def test_writing_what_others_still_read():
    def outer(x, w):
        z = w[:, None] * x[None, :]
        x += 1
        return z

    def first_written(x, y):
        t = y * 3
        z = x * 2
        x[...] = t
        return z

    def swap(x, y):
        t = x * 2
        x[...] = y + 1
        y[...] = t

    def swap_through_a_library(x, y, w):
        t = x.copy()
        x[...] = y.T
        y[...] = t.T
        return x @ w

    def shifted(x):
        x[1:] += x[:-1]
        return x

    def transposed(x):
        x += x.T
        return x.sum()

    def twice(x, y):
        x[...] = y
        y[...] = x + 1
        return x

    agree(outer, (floats(33), floats(5)))
    agree(first_written, (floats(33), floats(33, seed=1)))
    agree(swap, (floats(33), floats(33, seed=1)))
    agree(swap_through_a_library, (floats(5, 5), floats(5, 5, seed=1), floats(5, 3)))
    agree(shifted, (floats(40),), (floats(40)[::-1],))
    agree(transposed, (floats(7, 7),))
    agree(twice, (floats(6), floats(6, seed=1)))


def add_one(x, y):
    x += 1
    return y * 2, x, y


def add(x, y):
    x += y
    return y * 2, x, y


@pytest.mark.parametrize("fn", [add_one, add])
@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 1, 0), (2, 0, 1)])
def test_arguments_that_overlap(fn, order):
    """Disjoint, the same array, and views that overlap, whichever comes first."""
    compiled = strict(fn)
    for k in order + order:
        mine, theirs = floats(21), floats(21)
        views = {0: lambda a: (a[:10], a[10:20]), 1: lambda a: (a, a), 2: lambda a: (a[1:], a[:-1])}[k]
        close(compiled(*views(mine)), fn(*views(theirs)))
        close(mine, theirs)
    for views in (
        lambda a: (a, a[::-1]),
        lambda a: (a[::2], a[1::2]),
        lambda a: (a[:10].reshape(2, 5), a[5:15].reshape(2, 5)),
        lambda a: (a[:5], np.broadcast_to(a[2:3], (5,))),
    ):
        mine, theirs = floats(20), floats(20)
        close(compiled(*views(mine)), fn(*views(theirs)))
        close(mine, theirs)


def test_two_names_for_one_array_that_is_only_read():
    compiled = strict(lambda x, y: (x * 2 + y, y.sum()))
    x, y = floats(9), floats(9, seed=1)
    for pair in ((x, x), (x, y), (y, x), (y, y)):
        close(compiled(*pair), (pair[0] * 2 + pair[1], pair[1].sum()))


def test_read_only():
    def f(x):
        x += 1

    def same(x):
        x[:] = x
        return x + 1

    x = floats(4)
    x.flags.writeable = False
    for fn in (f, same):
        compiled = strict(fn)
        for _ in range(2):
            with pytest.raises(ValueError, match=r"read-only[\s\S]*test_jit.py:\d+: x"):
                compiled(x)
            compiled(floats(4))
    np.testing.assert_array_equal(x, floats(4))
    close(strict(lambda x: x + 1)(x), x + 1)


@pytest.mark.parametrize("fn", [
    lambda x: x + 0, lambda x: x.copy(), lambda x: x.astype(x.dtype), lambda x: np.array(x.shape) * 1.0 + x[0, 0], lambda x: x.flatten(), lambda x: np.concatenate([x]),
    lambda x: np.where(x == x, x, x), lambda x: np.pad(x, 0), lambda x: np.roll(x, 0), lambda x: np.tile(x, 1), lambda x: np.repeat(x, 1), lambda x: np.copy(x).T,
    lambda x: np.abs(np.abs(x)), lambda x: x[[0, 1]], lambda x: np.take(x, [0, 1], 0), lambda x: x.sum(0, keepdims=True), lambda x: np.stack([x])[0],
    lambda x: np.clip(x, -9, 9), lambda x: +x, lambda x: np.tril(x) + np.triu(x, 1),
])  # fmt: skip
def test_results_share_memory_with_arguments_only_where_numpys_do(fn):
    x = floats(4, 4)
    got, want = strict(fn)(x), fn(x)
    close(got, want)
    assert np.shares_memory(got, x) <= np.shares_memory(want, x)


def test_views_are_views():
    x = floats(4, 6)
    for fn in (
        lambda x: x.T,
        lambda x: x[1:, ::-2],
        lambda x: x.reshape(6, 4),
        lambda x: x[None, :, None],
        lambda x: np.broadcast_to(x, (2, 4, 6)),
        lambda x: x.ravel(),
    ):
        got = strict(fn)(x)
        close(got, fn(x))
        assert np.shares_memory(got, x)


# ----------------------------------------------------------------------------------------------------------------
# memory


def test_results_are_not_overwritten():
    """Buffers come from a pool and are used again, but not while anything of them is alive: a view of a view counts."""
    compiled, inputs = strict(lambda x: (x * 2, (x + 1).T, x.sum(0))), [floats(40, 50, seed=k) for k in range(30)]
    kept = []
    for x in inputs:
        a, b, c = compiled(x)
        kept.append((a[3:, ::2].T[1:], b[5], memoryview(c)))
        del a, b, c
    gc.collect()
    for x, (a, b, c) in zip(inputs, kept):
        np.testing.assert_array_equal(a, (x * 2)[3:, ::2].T[1:])
        np.testing.assert_allclose(b, (x + 1).T[5])
        np.testing.assert_allclose(np.asarray(c), x.sum(0), rtol=1e-5, atol=1e-5)


def test_results_are_the_callers():
    compiled, x = strict(lambda x: x * 2), floats(9)
    first = compiled(x)
    assert first.flags.writeable and first.flags.aligned
    first[...] = 7
    close(compiled(x), x * 2)
    close(first, np.full(9, 7, np.float32))


def test_arguments_and_results_are_let_go():
    compiled = strict(lambda x: x * 2 + 1)
    x = floats(1000)
    argument, result = weakref.ref(x), compiled(x)
    got = weakref.ref(result)
    del x, result
    gc.collect()
    assert argument() is None and got() is None


# ----------------------------------------------------------------------------------------------------------------
# errors


def here(error, code: str) -> None:
    """The error names a line of this file, which holds ``code``."""
    found = re.search(r"at (.*test_jit\.py):(\d+)", str(error.value))
    assert found, str(error.value)
    assert code in HERE.read_text().splitlines()[int(found[2]) - 1]


def test_branching_on_an_array():
    def f(x):
        if x.sum() > 0:
            return x
        return -x

    with pytest.raises(TraceError, match="np.where") as error:
        strict(f)(floats(4))
    here(error, "if x.sum() > 0")


def test_shapes_that_do_not_broadcast():
    def f(x, y):
        return np.exp(x) + y

    compiled = strict(f)
    close(compiled(floats(3), floats(3)), f(floats(3), floats(3)))
    for shapes in ((3, 4), (2, 3)):
        with pytest.raises(ValueError, match=rf"shapes \({shapes[0]},\) \({shapes[1]},\)") as error:
            compiled(floats(shapes[0]), floats(shapes[1]))
        here(error, "np.exp(x) + y")
    close(compiled(floats(1), floats(4)), f(floats(1), floats(4)))


@pytest.mark.parametrize("fn, words", [
    (lambda x: np.linalg.svd(x), "svd"), (lambda x: np.unique(x), "unique.*shape depends on values"), (lambda x: [0] * int(x.sum()), "needs a number"),
    (lambda x: x[x > 0], "mask"), (lambda x: x.sum().item(), "needs a number"), (lambda x: [0, 1][x[0, 0]], "index"),
])  # fmt: skip
def test_what_cannot_be_traced(fn, words):
    with pytest.raises((TraceError, UnsupportedError, TypeError), match=words) as error:
        strict(fn)(floats(3, 4))
    here(error, "lambda x")


@pytest.mark.parametrize("array", [
    np.arange(3, dtype=">f4"), np.array([1, None], object), np.array(["2020-01-01"], "M8[D]"), np.arange(3, dtype=np.longdouble), np.array(["a"]),
    np.zeros(3, [("a", "f4"), ("b", "i4")]), np.ma.masked_array(floats(3), [0, 1, 0]), np.ones((1, 2)).view(np.matrix),
    np.lib.stride_tricks.as_strided(np.zeros(8, np.float32), (3,), (6,)),
], ids=str)  # fmt: skip
def test_arrays_that_are_not_supported(array):
    """The argument is named, and what to do."""
    compiled = strict(lambda first, second: first)
    with pytest.raises(UnsupportedError, match=r"argument 'second'( is|:) .*(convert|pass)"):
        compiled(floats(2), array)
    close(compiled(floats(2), floats(2)), floats(2))


class OnGpu:
    """An array that says it lies on a GPU."""

    def __init__(self, array):
        self.array, self.shape, self.dtype, self.ndim = array, array.shape, array.dtype, array.ndim

    @property
    def __cuda_array_interface__(self):
        return {"shape": self.shape, "typestr": self.dtype.str, "data": (0, False), "version": 3, "strides": None}


def test_arrays_on_two_devices():
    with pytest.raises(UnsupportedError, match="'x' on cpu, 'y' on cuda:0. Move them to one") as error:
        strict(lambda x, y: x + y)(floats(3), OnGpu(floats(3)))
    assert "test_jit.py" in str(error.value)


def test_targets():
    with pytest.raises(UnsupportedError, match="no target 'tpu'"):
        strict(lambda x: x + 1, target="tpu")(floats(3))
    with pytest.raises(UnsupportedError, match="its code can only be inspected"):
        strict(lambda x: x + 1, target="cuda:sm_90")(floats(3))


def test_errors_of_the_function_pass_through_and_leave_nothing_behind():
    hot = [True]

    def f(x):
        y = x * 2
        if hot[0]:
            raise KeyError("mine")
        return y

    compiled = strict(f)
    for _ in range(2):
        with pytest.raises(KeyError, match="mine"):
            compiled(floats(3))
        assert current() is None
    hot[0] = False
    close(compiled(floats(3)), floats(3) * 2)


def test_nothing_warns():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x = np.array([0.0, -1.0, np.nan, np.inf, 1e30], np.float32)
        strict(lambda x: (np.log(x), 1 / x, np.sqrt(x), x.astype(np.int32), np.exp(x * x), x.mean()))(x)


# ----------------------------------------------------------------------------------------------------------------
# fallback


def broken(monkeypatch):
    def fails(*_):
        raise RuntimeError("out of luck")

    monkeypatch.setattr(pipelines, "lower_to_segments", fails)


def test_fallback(monkeypatch):
    broken(monkeypatch)

    def f(x, s):
        x *= s
        return x.sum(0), np.tanh(x)[1:], x

    compiled = mlirfuse.jit(f, fallback=True)
    mine, theirs = floats(3, 4), floats(3, 4)
    with pytest.warns(UserWarning, match="could not compile f and runs it op by op: RuntimeError: out of luck"):
        close(compiled(mine, 2.0), f(theirs, 2.0))
    close(mine, theirs)
    before = counters.fallbacks
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # once is enough
        close(compiled(floats(5, 2), 3.0), f(floats(5, 2), 3.0))
    assert counters.fallbacks == before + 1


def test_fallback_off(monkeypatch):
    broken(monkeypatch)
    for compiled, context in (
        (strict(lambda x: x + 1), config.override()),
        (mlirfuse.jit(lambda x: x + 1), config.override(fallback=False)),
    ):
        with context, pytest.raises(CompileError, match="out of luck"):
            compiled(floats(3))


def test_code_generation_that_fails(monkeypatch):
    from mlirfuse.lowering import llvm

    def fails(*_):
        raise CompileError("no such instruction")

    monkeypatch.setattr(llvm, "compile_object", fails)
    with pytest.warns(UserWarning, match="no such instruction"):
        close(mlirfuse.jit(lambda x: x * 3, fallback=True)(floats(4)), floats(4) * 3)
    with pytest.raises(CompileError, match="no such instruction"):
        strict(lambda x: x * 3)(floats(4))
    monkeypatch.undo()


def no_tanh(monkeypatch):
    from mlirfuse.lowering import elementwise

    def fails(*_):
        raise RuntimeError("no tanh today")

    monkeypatch.setitem(elementwise.EMIT, "tanh", fails)


def test_the_error_of_a_failed_compilation(monkeypatch, tmp_path):
    """It names segment, op and line, and what to send: the command gives the same error from the file alone."""
    no_tanh(monkeypatch)
    compiled, x = mlirfuse.jit(lambda x: np.tanh(x - x.max(1, keepdims=True)), fallback=True), floats(5, 7)
    with config.override(dump_dir=str(tmp_path)), pytest.warns(UserWarning) as told:
        close(compiled(x), np.tanh(x - x.max(1, keepdims=True)))
    text = str(told[0].message)
    assert "RuntimeError: no tanh today\n  in segment 0 (normalization: max, sub, tanh)\n  at the op tanh\n" in text
    assert re.search(r"  at .*test_jit.py:\d+: compiled, x = mlirfuse.jit\(lambda x: np.tanh", text)
    command = re.search(r"send (\S+\.mlir), with: (mlirfuse-opt \1 --pass-pipeline='.*')", text)
    assert command and command[1].startswith(str(tmp_path))
    _, path, pipeline = shlex.split(command[2])
    monkeypatch.undo()
    from mlirfuse.tools import opt

    assert opt.main([path, pipeline]) == 0  # the file is whole: with tanh back, it compiles


def test_what_has_fallen_back_raises_once_the_fallback_is_off(monkeypatch):
    """Whole functions and parts between library ops alike, and every call op by op is counted."""
    no_tanh(monkeypatch)
    x = floats(4, 4)
    for function in (lambda x: np.tanh(x) * 2, lambda x: np.tanh(x @ x) * 2):
        compiled = mlirfuse.jit(function)
        with config.override(fallback=True):
            before = counters.fallbacks
            with pytest.warns(UserWarning, match="no tanh today") as told:
                close(compiled(x), function(x))
                close(compiled(x), function(x))
            assert len(told) == 1 and told[0].filename == __file__
            assert counters.fallbacks == before + 2
        with config.override(fallback=False):
            for _ in range(2):
                with pytest.raises(CompileError, match="no tanh today"):
                    compiled(x)
        with config.override(fallback=True):
            close(compiled(x), function(x))


def test_more_kinds_than_are_allowed():
    def f(x, k):
        return x.sum(axis=k % x.ndim) * k if k > -100 else x

    compiled, x = mlirfuse.jit(f, fallback=True), floats(3, 4)
    with config.override(max_specializations=3), compiles(specializations=3):
        for k in (0, 1, 2, 3, 4, 5, 0, 1, 5):
            close(compiled(x, k), f(x, k))
    with config.override(max_specializations=2), pytest.raises(CompileError, match="max_specializations"):
        compiled = strict(f)
        for k in range(3):
            compiled(x, k)


FLOAT8 = [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]


@pytest.mark.parametrize("dtype", FLOAT8)
def test_float8_is_read(dtype):
    x = np.arange(256, dtype=np.uint8).view(dtype)  # every value, NaNs and infinities included
    compiled = strict(lambda x: (x.astype(np.float32) * 2, x[::2].copy(), x.astype(np.float64).reshape(16, 16).T))
    for _ in range(3):
        doubled, every_other, wide = compiled(x)
        np.testing.assert_array_equal(doubled, x.astype(np.float32) * 2)
        np.testing.assert_array_equal(every_other.view(np.uint8), x[::2].copy().view(np.uint8))
        np.testing.assert_array_equal(wide, x.astype(np.float64).reshape(16, 16).T)


@pytest.mark.parametrize("source", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int32, np.int64, bool])
@pytest.mark.parametrize("dtype", FLOAT8)
@np.errstate(over="ignore", invalid="ignore")
def test_casts_to_float8_are_those_of_ml_dtypes(dtype, source):
    """Bit for bit: every float8 number, the ties between them and their neighbours, what is too large, infinities and
    NaN."""
    numbers = np.sort(np.arange(256, dtype=np.uint8).view(dtype).astype(np.float32))
    numbers = numbers[np.isfinite(numbers)]
    numbers = np.concatenate([numbers, (numbers[1:] + numbers[:-1]) / 2, [464, -464, 61440, -61440, 1e9, -1e9]])
    if np.dtype(source).kind in "ib":
        x = np.clip(numbers, -(2**30), 2**30).astype(source)
    else:
        numbers = np.concatenate([numbers, np.nextafter(numbers, np.float32(np.inf)), numbers * 1.000001])
        x = np.concatenate([numbers, [np.inf, -np.inf, np.nan, -np.nan]]).astype(source)
        x = np.concatenate([x, (numbers.astype(np.float64) * (1 + 2.0**-40)).astype(source)])
    compiled = strict(lambda x: x.astype(dtype))
    for _ in range(2):
        assert compiled(x).view(np.uint8).tolist() == x.astype(dtype).view(np.uint8).tolist()


@pytest.mark.parametrize("dtype", FLOAT8)
def test_scales_casts_and_transposed_copies_of_float8(dtype):
    def f(x, out):
        scale = np.float32(ml_dtypes.finfo(dtype).max) / np.abs(x).max(1, keepdims=True)
        y = (x * scale).astype(dtype)
        out[...] = y
        return y, np.ascontiguousarray(y.T), scale

    x = np.random.default_rng(0).standard_normal((64, 96), np.float32)
    mine, theirs = np.zeros((64, 96), dtype), np.zeros((64, 96), dtype)
    for got, wanted in zip((*strict(f)(x, mine), mine), (*f(x, theirs), theirs)):
        assert got.dtype == wanted.dtype
        assert got.tobytes() == wanted.tobytes()


def test_a_recursive_function_in_python_gets_its_own_containers():
    def counted(out, n):
        print(end="")  # runs in Python
        if n:
            inner = {"log": out["log"]}
            compiled(inner, n - 1)
            assert inner["last"] == n - 1
        out["log"].append(n)
        out["last"] = n

    compiled = mlirfuse.jit(counted)
    for _ in range(3):
        given = {"log": []}
        with warnings.catch_warnings(action="ignore"):
            compiled(given, 3)
        assert given == {"log": [0, 1, 2, 3], "last": 3}


def test_switched_off():
    with config.override(fuse_cpu=False), compiles(specializations=0):
        close(strict(lambda x: np.tanh(x).sum(0))(floats(3, 4)), np.tanh(floats(3, 4)).sum(0))
    with pytest.raises(TypeError, match="no setting 'fuse'"), config.override(fuse=True):
        pass


# ----------------------------------------------------------------------------------------------------------------
# threads, processes, the cache


def test_eight_threads_call_a_new_function_at_once():
    for shapes in ([(50, 40)] * 8, [(50 + k % 2, 40 + k) for k in range(8)]):
        compiled = strict(lambda x, y: np.exp(x) * y + x.sum(-1, keepdims=True))
        inputs, results, barrier = [floats(*s, seed=k) for k, s in enumerate(shapes)], [None] * 8, threading.Barrier(8)

        def run(k):
            barrier.wait()
            results[k] = [compiled(inputs[k], inputs[k]) for _ in range(3)]

        with compiles(specializations=1, compiled_programs=1):
            threads = [threading.Thread(target=run, args=(k,)) for k in range(8)]
            for t in threads:
                t.start()
            assert progress.joined(*threads)
        for x, mine in zip(inputs, results):
            for r in mine:
                np.testing.assert_allclose(r, np.exp(x) * x + x.sum(-1, keepdims=True), rtol=1e-5, atol=1e-5)


def test_threads_with_numbers_and_writes():
    def f(x, s):
        x += s
        return x * 2

    compiled, failures = strict(f), []

    def run(k):
        try:
            for j in range(60):
                x = np.full(10 + j % 3, float(k))
                r = compiled(x, float(j))
                assert (x == k + j).all() and (r == 2 * (k + j)).all()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(8)]
    for t in threads:
        t.start()
    assert progress.joined(*threads) and not failures


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_fork():
    compiled, x = strict(lambda x: np.tanh(x) @ x.T), floats(200, 200)
    want = compiled(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
        child = os.fork()
    if child == 0:
        status = 1
        try:
            known = np.allclose(compiled(x), want)
            new = np.allclose(strict(lambda x: np.exp(x).sum(0))(x), np.exp(x).sum(0), rtol=1e-4)
            status = 0 if known and new else 2
        finally:
            os._exit(status)
    assert progress.exit_code(child) == 0
    close(compiled(x), want)


def test_pickling_and_copying():
    assert pickle.loads(pickle.dumps(decorated)) is decorated
    assert copy.deepcopy(decorated) is decorated
    with pytest.raises(
        (pickle.PicklingError, AttributeError), match="Can't pickle|local object|not found|not the same object"
    ):
        pickle.dumps(strict(lambda x: x))


@mlirfuse.jit
def decorated(x):
    """Twice x."""
    return x * 2


def test_looks_like_the_function():
    assert (
        decorated.__name__ == "decorated" and decorated.__doc__ == "Twice x." and decorated.__wrapped__ is decorated.fn
    )


def of_the_cache():
    """A new function each time, whose code is the same; checks what it computes. Entries of the cache on disk that it
    found and missed."""
    before = cache.hits, cache.misses
    x = floats(40, 50)
    close(strict(lambda x: np.exp(x) * x.sum(0) + 1)(x), np.exp(x) * x.sum(0) + 1, 1e-4)
    return cache.hits - before[0], cache.misses - before[1]


@pytest.fixture
def fresh_warning():
    """The warning of a cache that cannot be written comes once a process."""
    cache._warn_once.cache_clear()
    yield
    cache._warn_once.cache_clear()


def is_folder(entry):
    entry.unlink()
    (entry / "with").mkdir(parents=True)
    (entry / "with" / "a file").write_text("")


def is_dangling_link(entry):
    entry.unlink()
    entry.symlink_to(entry.parent / "nowhere")


DAMAGE = {
    "half is there": lambda entry: entry.write_bytes(entry.read_bytes()[: entry.stat().st_size // 2]),
    "empty": lambda entry: entry.write_bytes(b""),
    "shorter than a checksum": lambda entry: entry.write_bytes(b"short"),
    "its end differs": lambda entry: entry.write_bytes(entry.read_bytes()[:-9] + b"123456789"),
    "all zeros": lambda entry: entry.write_bytes(b"\0" * entry.stat().st_size),
    "a folder": is_folder,
    "a dangling link": is_dangling_link,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_cache_entries_are_made_again(damage, fresh_warning):
    entries = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert of_the_cache() == (0, 1)
        entries = list(cache.folder().iterdir())
        assert len(entries) == 1 and of_the_cache() == (1, 0)
        DAMAGE[damage](entries[0])
        assert of_the_cache() == (0, 1)
        assert of_the_cache() == (1, 0)
    assert list(cache.folder().iterdir()) == entries  # nothing half written beside it


@pytest.mark.parametrize("where", ["a file", "a file/below", "/proc/no/such", "/dev/null"])
def test_cache_that_cannot_be_written(where, tmp_path, monkeypatch, fresh_warning):
    """One warning, which says what to do, and right results."""
    (tmp_path / "a file").write_text("no folder")
    monkeypatch.setenv("MLIRFUSE_CACHE_DIR", str(tmp_path / where))
    with pytest.warns(UserWarning, match="cache cannot be written.*set MLIRFUSE_CACHE_DIR") as told:
        assert of_the_cache() == of_the_cache() == (0, 1)
    assert len(told) == 1


def test_cache_on_a_disk_that_is_full(monkeypatch, fresh_warning):
    """Nothing half written stays behind."""

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.warns(UserWarning, match="No space left"):
        assert of_the_cache() == (0, 1)
    assert not list(cache.folder().iterdir())


def _one_entry():
    assert of_the_cache() == (0, 1)
    (entry,) = cache.folder().iterdir()
    assert of_the_cache() == (1, 0)
    return entry


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_cache_in_a_folder_that_others_can_write(mode, fresh_warning):
    """It is off: nothing is read and nothing is written. One warning, which says what to do."""
    entry = _one_entry()
    written = entry.stat().st_mtime_ns
    cache.folder().chmod(mode)
    with pytest.warns(UserWarning, match="is not used: .* does not belong to this user alone.*chmod go-w") as told:
        assert of_the_cache() == of_the_cache() == (0, 1)
    assert len(told) == 1 and entry.stat().st_mtime_ns == written
    cache.folder().chmod(0o755)
    assert of_the_cache() == (1, 0)


@pytest.mark.parametrize("whose", ["the folder", "the entry"])
def test_cache_of_another_user(whose, monkeypatch, fresh_warning):
    entry = _one_entry()
    theirs = (cache.folder() if whose == "the folder" else entry).stat().st_ino
    real = os.fstat

    def fstat(handle):
        found = real(handle)
        return os.stat_result((*found[:4], os.geteuid() + 1, *found[5:])) if found.st_ino == theirs else found

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        monkeypatch.setattr(os, "fstat", fstat)
        assert of_the_cache() == (0, 1)
    assert [str(w.message).count("does not belong to this user alone") for w in told] == [1] * (whose == "the folder")


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_cache_entry_that_others_can_write(mode):
    entry = _one_entry()
    entry.chmod(mode)
    assert cache.load(entry.name) is None and entry.exists()
    assert of_the_cache() == (0, 1)  # a new one takes its place
    assert of_the_cache() == (1, 0) and entry.stat().st_mode & 0o777 == 0o600


def test_cache_entry_that_is_a_link(tmp_path):
    """A link is not followed, whatever it leads to."""
    entry = _one_entry()
    entry.rename(tmp_path / "elsewhere")
    entry.symlink_to(tmp_path / "elsewhere")
    assert cache.load(entry.name) is None and not entry.is_symlink()
    assert (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("code", [errno.EACCES, errno.EMFILE, errno.ENFILE, errno.EIO, errno.ENOMEM])
@pytest.mark.parametrize("when", ["opened", "read"])
def test_cache_entry_that_cannot_be_read_stays(code, when, monkeypatch):
    entry = _one_entry()
    name, real = entry.name, os.open

    def fails(path, *args, **kwargs):
        if path == name and when == "opened":
            raise OSError(code, os.strerror(code))
        return real(path, *args, **kwargs)

    class Unreadable(io.FileIO):
        def read(self, size=-1):
            raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", fails)
        if when == "read":
            patched.setattr(cache, "open", lambda handle, mode: Unreadable(handle), raising=False)
        assert cache.load(name) is None
    assert entry.exists() and cache.load(name) is not None


def test_cache_folder_is_made_for_the_user_alone():
    before = os.umask(0)
    try:
        entry = _one_entry()
    finally:
        os.umask(before)
    assert cache.folder().stat().st_mode & 0o777 == 0o700 and entry.stat().st_mode & 0o777 == 0o600


def test_cache_switched_off(monkeypatch):
    monkeypatch.setenv("MLIRFUSE_CACHE", "0")
    assert of_the_cache() == (0, 0)
    assert not cache.folder().exists()


PROGRAM = """
import numpy as np, mlirfuse, warnings
warnings.simplefilter("error")
from mlirfuse.runtime import cache
x = np.arange(2000, dtype=np.float32).reshape(40, 50) / 1000
f = mlirfuse.jit(lambda x: np.exp(x) * x.sum(0) + 1, fallback=False)
assert np.allclose(f(x), np.exp(x) * x.sum(0) + 1, rtol=1e-5)
print(cache.hits, cache.misses)
"""


def test_cache_of_several_processes(tmp_path):
    """Written by two at once, read by a third."""
    folder = tmp_path / "a folder" / "to be made"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MLIRFUSE_CACHE": "1", "MLIRFUSE_CACHE_DIR": str(folder)}

    def start():
        return subprocess.Popen(
            [sys.executable, "-c", PROGRAM], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def finish(process) -> list[int]:
        out, err = process.communicate()
        assert process.returncode == 0, err
        return list(map(int, out.split()))

    for first in [start() for _ in range(2)]:
        assert sum(finish(first)) == 1
    assert len(list(folder.iterdir())) == 1
    assert finish(start()) == [1, 0]


def test_groups_of_channels_are_one_kernel():
    """What is split and put together again: the sizes are known to be multiples, in calls with others too."""

    @strict
    def group_norm(x, w):
        n, c, *rest = x.shape
        groups = x.reshape(n, 4, c // 4 * rest[0] * rest[1])
        centred = groups - groups.mean(-1, keepdims=True)
        return (centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)).reshape(x.shape) * w[
            :, None, None
        ]

    for shape in ((2, 12, 5, 7), (3, 20, 8, 8), (1, 4, 3, 3)):
        x, w = floats(*shape), floats(shape[1])
        close(group_norm(x, w), group_norm.fn(x.astype(np.float64), w.astype(np.float64)).astype(np.float32))
        assert group_norm.lower(x, w).kernels == 1
    with pytest.raises(ShapeError, match="cannot reshape array of size 630"):
        group_norm(floats(2, 9, 5, 7), floats(9))
