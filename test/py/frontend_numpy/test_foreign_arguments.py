"""Arguments that are neither arrays of NumPy's own class nor numbers: subclasses with rules of their own, containers
that are not Python's own, other libraries' arrays and tables. They run by NumPy with one warning, or are an error that
names the argument and the remedy."""

import collections
import functools
import sys
import types
import warnings

import numpy as np
import pytest

import mlirfuse
from mlirfuse.core.errors import UnsupportedError


class Metres(np.ndarray):
    """As a unit package's array: the unit is in the subclass."""

    factor = 1.0

    def __array_finalize__(self, other):
        self.factor = getattr(other, "factor", 1.0)

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        return getattr(ufunc, method)(*[np.asarray(i) * getattr(i, "factor", 1.0) for i in inputs], **kwargs)


class Plainest(np.ndarray):
    """Without rules: NumPy's results are of this class."""


class Named(list):
    pass


class Series:
    """As a table library's column: no array, and without a hash."""

    def __init__(self, values):
        self.values = np.asarray(values)

    def __eq__(self, other):
        return self.values == other

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        return Series(getattr(ufunc, method)(*[getattr(i, "values", i) for i in inputs], **kwargs))

    def __mul__(self, other):
        return Series(self.values * other)

    def to_numpy(self):
        return self.values

    def __array__(self, dtype=None, copy=None):
        return self.values


class OfDlpack:
    """An array in the host's memory that speaks DLPack alone."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return 1, 0


def metres(factor):
    created = np.ones(5000).view(Metres)
    created.factor = factor
    return created


def recorded(function, *args):
    """The result of a call, and what it warned of."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        return function(*args), [str(w.message) for w in told if "mlirfuse" in str(w.message)]


x = np.linspace(0, 1, 5000)
FOREIGN = {
    "units": (lambda a, b: a + b, metres(1.0), metres(1000.0)),
    "subclass": (lambda a: a * 2, x.view(Plainest)),
    "recarray": (lambda a: a + 1, x.view(np.recarray)),
    "matrix": (lambda a: a * a, np.ones((2, 2)).view(np.matrix)),
    "masked": (lambda a: a + 1, np.ma.masked_array([1.0, 2.0], [0, 1])),
    "inside": (lambda d: d["a"][0] + 1, {"a": [metres(2.0)]}),
    "OrderedDict": (lambda d: d["v"] * 2, collections.OrderedDict(v=x)),
    "defaultdict": (lambda d: d["v"] + d["none"], collections.defaultdict(int, v=x)),
    "list subclass": (lambda v: v[0] * 2, Named([x])),
    "SimpleNamespace": (lambda s: s.v * 2, types.SimpleNamespace(v=x)),
    "deque": (lambda d: d[0] * 2, collections.deque([x])),
    "slice": (lambda v, s: v[s] * 2, x, slice(0, 4000, 2)),
    "set": (lambda v, s: v * len(s), x, {1, 2}),
    "bytearray": (lambda v, s: v * len(s), x, bytearray(2)),
    "series": (lambda s: (s * 2).values, Series(x)),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_they_run_by_numpy(name):
    f, *args = FOREIGN[name]
    want, compiled = f(*args), mlirfuse.jit(f)
    got, told = recorded(compiled, *args)
    assert type(got) is type(want) and np.array_equal(got, want), name
    assert len(told) <= 1 and all("argument '" in text for text in told)
    again, told = recorded(compiled, *args)
    assert np.array_equal(again, want) and not told


def test_a_subclass_after_a_plain_array():
    """What is compiled for a plain array is not taken for a subclass of the same dtype and shape."""
    compiled = mlirfuse.jit(lambda a, b: a + b)
    plain = np.ones(5000)
    for _ in range(2):
        assert compiled(plain, plain)[0] == 2
        got, _ = recorded(compiled, metres(1.0), metres(1000.0))
        assert got[0] == 1001


@pytest.mark.parametrize("value, words", [
    (Series(x), "'prices' is a .*Series.*pass prices.to_numpy\\(\\)"),
    (x.view(Plainest), "'prices' is a .*Plainest.*np.asarray\\(prices\\)"),
    (np.ma.masked_array([1.0]), "'prices' is a MaskedArray.*np.ma.getdata\\(prices\\)"),
    ({1, 2}, "'prices' is a set"),
    (collections.deque([x]), "'prices' is a collections.deque"),
])  # fmt: skip
def test_the_error_names_the_argument(value, words):
    with pytest.raises(UnsupportedError, match=words):
        mlirfuse.jit(lambda prices: prices * 2, fallback=False)(value)


def test_host_arrays_that_speak_dlpack():
    compiled = mlirfuse.jit(lambda v: v * v, fallback=False)
    for n in (1000, 1000, 3000):
        got = compiled(OfDlpack(np.arange(n, dtype="f4")))
        assert type(got) is np.ndarray and np.array_equal(got, np.arange(n, dtype="f4") ** 2)
    with_graph_breaks = mlirfuse.jit(lambda v: np.unique(v) if v.sum() > 0 else v.T)
    assert with_graph_breaks(OfDlpack(np.ones(4000))).tolist() == [1.0]
    assert with_graph_breaks(OfDlpack(np.zeros(4000))).shape == (4000,)


class Methods:
    factor = 2.0

    def __init__(self, x):
        self.x = x

    @mlirfuse.jit
    @classmethod
    def of_class(cls, x):
        return x * cls.factor

    @mlirfuse.jit
    @staticmethod
    def of_none(x):
        return x + 1

    @mlirfuse.jit
    @property
    def tripled(self):
        return self.x * 3

    @mlirfuse.jit(fallback=False)
    @functools.cached_property
    def kept(self):
        return self.x * 4

    @classmethod
    @mlirfuse.jit
    def below(cls, x):
        return x - cls.factor


def test_above_descriptors():
    x = np.ones(3)
    created = Methods(x)
    for got, want in (
        (Methods.of_class(x), x * 2), (created.of_class(x), x * 2), (Methods.of_none(x), x + 1), (created.of_none(x), x + 1),
        (created.tripled, x * 3), (created.kept, x * 4), (created.below(x), x - 2),
    ):  # fmt: skip
        assert np.array_equal(got, want)
    assert created.kept is created.kept


def test_with_fusion_switched_off_each_line_runs():
    """Loops too, so that breakpoints are hit and tracers see each line; and back."""

    def g(a):
        for i in range(1, len(a)):
            a[i] = a[i - 1] + 1
        return a

    compiled, lines = mlirfuse.jit(g), []
    code = g.__code__

    def tracer(frame, event, arg):
        if frame.f_code is code and event == "line":
            lines.append(frame.f_lineno)
        return tracer

    compiled(np.zeros(300))
    before = sys.gettrace()
    with mlirfuse.config.override(fuse_cpu=False):
        sys.settrace(tracer)
        try:
            got = compiled(np.zeros(300))
        finally:
            sys.settrace(before)
    assert got[-1] == 299 and lines.count(code.co_firstlineno + 2) == 299
    assert compiled(np.zeros(300))[-1] == 299
