"""Every op of the table, compiled for the CPU by our schedulers and by linalg and MLIR's own passes, against NumPy.

What is compared, for each op and each element type that it takes:

- exact ops (arithmetic, comparisons, bits, rounding, selection, casts, shapes, integers): bit for bit what the table's
  reference gives in the type that kernels compute in (half types: float32), rounded once to the result's type;
- functions: the reference in float64 (float64: in long double where NumPy has it). float32 is within 4 ulp, or within
  ``ULPS``; half types are within half a unit in the last place, plus as many ulp of float32. Where lgamma crosses zero,
  and logaddexp of float64, the ulp are those of the terms that cancel;
- reductions: the reference in float64, within the bound that stands at :func:`reduction_bound`.

Inputs hold every special value (NaN, infinities, zeros of both signs, subnormals, the extremes of integers) and every
pair of them, and lie in memory as callers' arrays may: contiguous, sliced, transposed, with negative and zero strides,
misaligned, 0-d, with extents of 1.
"""

from __future__ import annotations

import itertools
import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from math_harness import ulp_error

import mlirfuse
import mlirfuse.numpy as mnp
from mlirfuse.frontend.numpy.trace_state import current
from mlirfuse.frontend.numpy.traced_array import TracedArray
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import interpreter
from mlirfuse.ir import ops as table
from mlirfuse.ir.builder import Builder
from mlirfuse.ir.graph import Block, Value
from mlirfuse.lowering import llvm

REAL = [t for t in dt.ALL if t.kind != "c"]
WIDE = np.longdouble

# Exact in the type that kernels compute in. All other elementwise ops of floats are functions.
EXACT = {
    "neg",
    "abs",
    "sign",
    "floor",
    "ceil",
    "trunc",
    "round",
    "relu",
    "isnan",
    "isinf",
    "isfinite",
    "isposinf",
    "isneginf",
    "isreal",
    "signbit",
    "logical_not",
    "bitwise_not",
    "add",
    "sub",
    "mul",
    "div",
    "sqrt",
    "reciprocal",
    "frac",
    "trunc_div",
    "floor_div",
    "ceil_div",
    "mod",
    "fmod",
    "copysign",
    "nextafter",
    "maximum",
    "minimum",
    "fmax",
    "fmin",
    "gcd",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "logical_and",
    "logical_or",
    "logical_xor",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "shift_left",
    "shift_right",
    "shift_right_logical",
    "where",
    "copy",
    "segment_set",
    "real",
    "conj",
    "decode_e4m3fn",
    "encode_e4m3fn",
    "decode_e5m2",
    "encode_e5m2",
}
ULPS = dict.fromkeys(("exp", "log", "tanh"), 2)  # of all other functions 4

# Ops of the table that no function can be compiled of by itself, and why.
ELSEWHERE = {
    "update": "writes into its operand's memory: jit makes writes functional; test_passes.py",
    "partial_sum": "made by fusion-inner-outer for GPU kernels; test_gpu.py",
    "m2": "made by fusion-one-pass-variance for GPU kernels; test_gpu.py",
    "complex": "jit computes with real numbers only; test_definition_ops.py",
    "imag": "jit computes with real numbers only; test_definition_ops.py",
    "dot": "made for products that a GPU's kernels compute; test_matmul.py",
    "float8_dot": "likewise; test_matmul.py",
    "position": "has an extent: test_indices.py",
    "index_put_accumulate": "adds where indices say; test_scatter_add.py",
    "dtype_of": "a query that passes make; test_passes.py",
    "call": "a function that is not of the table; test_call.py",
    "extent": "a query that passes make; test_passes.py",
}


# The options of jit: by our schedulers, or by linalg and MLIR's own passes.
WAY: dict[str, str] = {}

# What is tested by the schedulers alone, and why.
SCHEDULERS_ONLY = {
    "test_long_sums": "linalg's loops add one element after another, whose error grows with the number of elements",
    "test_every_op_is_tested": "asks the table, compiles nothing",
}


@pytest.fixture(scope="module", autouse=True, params=["schedulers", "linalg"])
def way(request):
    """Every test runs on both ways down."""
    if request.param == "linalg":
        WAY["lowering"] = "linalg"
    yield
    WAY.clear()


@pytest.fixture(autouse=True)
def skip_what_one_way_leaves_out(request):
    reason = SCHEDULERS_ONLY.get(request.node.originalname)
    if WAY and reason:
        pytest.skip(reason)


def op(name: str, **attrs):
    """A function that applies the op ``name`` to the arrays of each list in its arguments; attributes may be functions
    of the values' shapes."""

    def function(*lists):
        t = current()
        out = []
        for arrays in lists:
            values = [a.value for a in arrays]
            created = t.emit(name, *values, **{k: v(values) if callable(v) else v for k, v in attrs.items()})
            out.append([TracedArray(t, v) for v in (created if isinstance(created, list) else [created])])
        return out

    return function


def compiled(name: str, lists, **attrs):
    function = mlirfuse.jit(op(name, **attrs), fallback=False, **WAY)
    with np.errstate(all="ignore"):
        return function(*lists)


def row(name: str):
    return table.TABLE[name]


def taken(name: str, kinds: str | None = None):
    return [t for t in REAL if t.kind in (kinds or row(name).takes)]


# ----------------------------------------------------------------------------------------------------------------
# inputs


def specials(t: dt.DType) -> np.ndarray:
    if t is dt.bool_:
        return np.array([False, True])
    if t.is_integer:
        info = np.iinfo(t.numpy)
        values = [info.min, info.min + 1, -7, -2, -1, 0, 1, 2, 3, 7, 10, info.max - 1, info.max, info.max // 2]
        return np.array([v for v in values if info.min <= v <= info.max], t.numpy)
    finfo = {dt.f16: (2.0**-24, 2.0**-14, 65504.0), dt.bf16: (2.0**-133, 2.0**-126, 3.3895314e38)}.get(t)
    least, normal, most = finfo or (
        float(np.finfo(t.numpy).smallest_subnormal),
        float(np.finfo(t.numpy).tiny),
        float(np.finfo(t.numpy).max),
    )
    values = [
        0.0,
        least,
        normal,
        0.25,
        0.5,
        1.0,
        1.5,
        2.0,
        2.5,
        3.0,
        7.0,
        0.1,
        math.pi / 2,
        10.0,
        100.0,
        1000.5,
        most,
        math.inf,
    ]
    with np.errstate(over="ignore"):
        return np.array(values + [-v for v in values] + [math.nan]).astype(t.numpy)


def random_values(g, t: dt.DType, count: int) -> np.ndarray:
    if t is dt.bool_:
        return g.random(count) < 0.5
    if t.is_integer:
        info = np.iinfo(t.numpy)
        small = g.integers(max(info.min, -20), 21, count)
        return np.where(
            g.random(count) < 0.5, small, g.integers(info.min, info.max, count, dtype=t.numpy, endpoint=True)
        ).astype(t.numpy)
    scale = np.exp2(g.uniform(-8, 5, count))
    return (g.standard_normal(count) * scale).astype(t.numpy)


def pairs(t: dt.DType, operands: int) -> list[np.ndarray]:
    """Every combination of special values, one array for each operand."""
    s = specials(t)
    if operands == 1:
        return [s]
    return [np.ascontiguousarray(a) for a in np.meshgrid(*[s] * operands, indexing="ij")]


LAYOUTS = ("plain", "sliced", "transposed", "negative", "repeated", "misaligned")


def lay_out(g, values: np.ndarray, shape, layout: str) -> np.ndarray:
    """An array of these values, as many as the shape has, that lies in memory as ``layout`` says."""
    array = np.resize(values, shape)
    if not array.ndim or layout == "plain":
        return array
    if layout == "transposed":
        return np.ascontiguousarray(array.T).T
    if layout == "repeated":
        return np.broadcast_to(array[:1], shape)
    if layout == "misaligned":
        raw = np.empty(array.nbytes + 1, np.uint8)
        out = raw[1:].view(array.dtype).reshape(shape)
        out[...] = array
        return out
    steps = [g.choice([2, 3]) if layout == "sliced" else -1 for _ in shape]
    whole = np.zeros([n * abs(s) for n, s in zip(shape, steps)], array.dtype)
    out = whole[tuple(slice(None, None, s) for s in steps)]
    out[...] = array
    return out


def drawn(data, t: dt.DType, shape, special=None) -> np.ndarray:
    """An array of this shape, of random values and some special ones, that lies in memory in any way; all as hypothesis
    draws it."""
    g = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1), "seed of the values"))
    count = max(1, math.prod(shape))
    some = specials(t) if special is None or not t.is_float else np.array(special, t.numpy)
    values = np.where(g.random(count) < 0.1, g.choice(some, count), random_values(g, t, count))
    return lay_out(g, values, tuple(shape), data.draw(st.sampled_from(LAYOUTS), "layout"))


# ----------------------------------------------------------------------------------------------------------------
# comparing


def assert_same(got, want, what: str) -> None:
    """Bit for bit, with any NaN for a NaN."""
    got, want = np.asarray(got), np.asarray(want)
    assert got.dtype == want.dtype and got.shape == want.shape, (
        f"{what}: {got.dtype}{got.shape} for {want.dtype}{want.shape}"
    )
    if want.dtype.kind in "fV" or want.dtype.name == "bfloat16":
        bits = f"u{want.dtype.itemsize}"
        with np.errstate(all="ignore"):
            same = (np.ascontiguousarray(got).view(bits) == np.ascontiguousarray(want).view(bits)) | (
                np.isnan(got) & np.isnan(want)
            )
    elif want.dtype.kind == "c":
        same = (got == want) | (np.isnan(got) & np.isnan(want))
    else:
        same = got == want
    if not np.all(same):
        at = tuple(int(i) for i in np.argwhere(~np.atleast_1d(same))[0])
        raise AssertionError(
            f"{what}: {np.atleast_1d(got)[at]!r} at {at}, not {np.atleast_1d(want)[at]!r}; {int((~same).sum())} of {same.size} differ"
        )


def unit_of(t: dt.DType, exact: np.ndarray) -> np.ndarray:
    """The distance of neighbouring numbers of type ``t`` at these values."""
    bits, least = {dt.f16: (10, -24), dt.bf16: (7, -133), dt.f32: (23, -149), dt.f64: (52, -1074)}[t]
    exponent = np.frexp(np.abs(exact))[1] - 1
    return np.ldexp(np.ones_like(exact), np.maximum(exponent - bits, least))


def assert_near(got, exact, t: dt.DType, ulps: float, what: str, inputs=(), slack=0.0) -> None:
    """Within ``ulps`` of float32 (float64 for float64), after one rounding to ``t``; ``slack`` is an absolute error on
    top."""
    got = np.asarray(got)
    assert got.dtype == t.numpy and got.shape == exact.shape, (
        f"{what}: {got.dtype}{got.shape} for {t.numpy}{exact.shape}"
    )
    wide = np.float64 if t is not dt.f64 else WIDE
    g, exact = got.astype(wide), exact.astype(wide)
    with np.errstate(all="ignore"):
        rounded = exact.astype(t.numpy).astype(wide)
        bound = ulps * unit_of(t.compute, exact) + slack + (0.5 * unit_of(t, exact) if t.compute is not t else 0)
        largest = {dt.f16: 65504.0, dt.bf16: 3.3895314e38}.get(t) or np.finfo(t.numpy).max
        # Where the result rounds to infinity, the largest number is as good if the error bound reaches it.
        held = np.clip(exact, -largest, largest)
        near = (np.abs(np.clip(g, -largest, largest) - held) <= bound) & (
            np.isfinite(g) | ~np.isfinite(rounded) | (np.abs(exact) + 2 * bound >= largest)
        )
        good = np.where(np.isnan(exact), np.isnan(g), np.where(np.isfinite(exact), near, g == rounded))
    if not np.all(good):
        k = tuple(int(i) for i in np.argwhere(~np.atleast_1d(good))[0])
        given = ", ".join(repr(np.atleast_1d(np.broadcast_to(i, exact.shape))[k]) for i in inputs)
        off = np.atleast_1d(np.abs(g - exact) / unit_of(t, exact))[k]
        raise AssertionError(
            f"{what}({given}) = {np.atleast_1d(got)[k]!r}, exactly {np.atleast_1d(exact)[k]!r}: {off} ulp off; {int((~good).sum())} of {good.size}"
        )


# ----------------------------------------------------------------------------------------------------------------
# elementwise


def reference(name: str, arrays, as_type, **attrs):
    """The table's reference on ``arrays`` converted to ``as_type`` (bools and integers stay); attributes as given or by
    default."""
    attrs = row(name).attrs | attrs
    given = [np.asarray(a).astype(as_type) if dt.of(a.dtype).is_float else np.asarray(a) for a in arrays]
    with np.errstate(all="ignore"):
        return np.asarray(row(name).ref(*given, **attrs))


def check_elementwise(name: str, t: dt.DType, arrays, got, **attrs) -> None:
    what = f"{name} of {t}"
    if not t.is_float or name in EXACT:
        want = reference(name, arrays, t.compute.numpy, **attrs)
        if want.dtype == t.compute.numpy and t.is_float:
            with np.errstate(over="ignore"):
                want = want.astype(t.numpy)
        if name == "nextafter":  # of the type itself, not of the one that is computed in
            want = reference(name, arrays, t.numpy)
        assert_same(got, want, what)
        return
    wide = np.float64
    if t is dt.f64 and isinstance(row(name).ref, np.ufunc):
        wide = WIDE
    exact = reference(name, arrays, wide, **attrs)
    ulps, slack = ULPS.get(name, 4), 0.0
    x = np.abs(arrays[0].astype(np.float64))
    with np.errstate(all="ignore"):
        if t is dt.f64 and wide is not WIDE:
            ulps = 64  # of the reference
        if name == "lgamma":  # crosses zero: relative to the terms that cancel there
            slack = np.nan_to_num(unit_of(t.compute, np.maximum(1.0, x)) * 8, nan=0, posinf=0)
        if name.startswith("logaddexp") and t is not dt.f64:
            slack = 2.0**-51  # float32 is computed in float64 near 0, which results lie as close to as they like
        elif name.startswith("logaddexp"):
            slack = np.nan_to_num(
                unit_of(
                    t.compute, np.maximum(np.abs(arrays[0].astype(np.float64)), np.abs(arrays[1].astype(np.float64)))
                )
                * 4,
                nan=0,
                posinf=0,
            )
    assert_near(got, exact, t, ulps, what, arrays, slack)


ELEMENTWISE = [n for n, r in table.TABLE.items() if r.kind == "elementwise" and n not in ("cast", "where", *ELSEWHERE)]


@pytest.mark.parametrize("t", [dt.f32, dt.f64], ids=str)
@pytest.mark.parametrize("fn", [mnp.softplus, lambda x: np.logaddexp(x, 0), lambda x: np.logaddexp(x.dtype.type(0), x)])
def test_logarithms_of_sums_with_one(fn, t):
    """Beside a constant 0 there is nothing that cancels: all results are within 3 ulp."""
    unsigned = np.uint32 if t is dt.f32 else np.uint64
    every = np.linspace(0, 2.0**t.bits, 200_000, endpoint=False).astype(unsigned).view(t.numpy)
    special = np.array([0, -0.0, np.inf, -np.inf, np.nan, -87.4, -104, -708.5, -745, -746, 710], t.numpy)
    x = np.concatenate([special, every, np.linspace(-750, 40, 100_000).astype(t.numpy)])
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64 if t is dt.f32 else WIDE)
        exact = np.maximum(wide, 0) + np.log1p(np.exp(-np.abs(wide)))
        error = ulp_error(mlirfuse.jit(fn, fallback=False)(x), exact)
    assert error.max() <= 3, (error.max(), x[error.argmax()])


@pytest.mark.parametrize("function, base", [(np.logaddexp, math.e), (np.logaddexp2, 2)])
def test_logarithms_of_sums_near_zero(function, base):
    """The operands cancel: within 4 ulp from 2**-29 on, and nearer to 0 as near as float64 is."""
    rng, many = np.random.default_rng(0), 100_000
    low = -rng.uniform(1e-6, 20, many)
    high = np.log1p(-np.exp(low)) * (1 + rng.choice([0, 1e-7, 1e-4, 0.1, 0.5], many) * rng.uniform(-1, 1, many))
    pairs = [(high, low), (low, high), (rng.uniform(-2, 1, many), rng.uniform(-4, 1, many))]
    pairs.append((-np.exp(rng.uniform(-80, -1, many)), rng.uniform(-88, 0, many)))
    compiled = mlirfuse.jit(lambda a, b: function(a, b))
    for a, b in pairs:
        a, b = ((v / math.log(base)).astype(np.float32) for v in (a, b))
        exact = function(a.astype(np.longdouble), b.astype(np.longdouble)).astype(np.float64)
        error = np.abs(compiled(a, b) - exact)
        assert (error <= 4 * np.spacing(np.abs(exact).astype(np.float32)) + 2.0**-51).all()
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1e38, 3e38], np.float32)
    a, b = np.meshgrid(special, special)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(compiled(a, b), function(a.astype(np.float64), b).astype(np.float32), rtol=1e-6)


def out_of_reach(name: str, t: dt.DType, arrays) -> list[np.ndarray]:
    """The arrays without operands for which NumPy's own result is not defined, or the reference is not good enough."""
    if name == "gcd" and t.kind == "i":  # the absolute value of the smallest integer does not fit
        return [np.where(a == np.iinfo(t.numpy).min, 12, a).astype(t.numpy) for a in arrays]
    return arrays


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise(name):
    operands, types = len(row(name).operands), taken(name)
    g = np.random.default_rng(len(name) + 7 * operands)
    lists = []
    for t in types:  # all special values, and random ones beside
        arrays = [np.concatenate([a.reshape(-1), random_values(g, t, 160)]) for a in pairs(t, operands)]
        lists.append(out_of_reach(name, t, arrays))
    for t, arrays, (got,) in zip(types, lists, compiled(name, lists)):
        check_elementwise(name, t, arrays, got)


@pytest.mark.parametrize("name", ELEMENTWISE)
@settings(max_examples=4, deadline=None)
@given(data=st.data())
def test_elementwise_layouts(name, data):
    """Any shape, strides, broadcasting, extents of 0 and 1, 0-d operands."""
    t = data.draw(st.sampled_from(taken(name)), "type")
    shape = data.draw(st.lists(st.sampled_from((1, 2, 3, 5, 8, 17, 33, 0)), max_size=3), "shape")
    arrays = []
    for _ in row(name).operands:
        whole = data.draw(st.sampled_from([True, True, True, False]))
        arrays.append(drawn(data, t, [data.draw(st.sampled_from([n, n, n, 1])) for n in shape] if whole else ()))
    arrays = out_of_reach(name, t, arrays)
    ((got,),) = compiled(name, [arrays])
    check_elementwise(name, t, arrays, np.asarray(got))


def test_where():
    g = np.random.default_rng(0)
    lists = [[g.random(61) < 0.5, random_values(g, t, 61), random_values(g, t, 61)] for t in REAL]
    for arrays, (got,) in zip(lists, compiled("where", lists)):
        assert_same(got, np.where(*arrays), f"where of {arrays[1].dtype}")
    arrays = [
        lay_out(g, np.array([True, False, True]), (1, 7), "negative"),
        np.float32(2).reshape(()),
        lay_out(g, random_values(g, dt.f32, 21), (3, 7), "transposed"),
    ]
    ((got,),) = compiled("where", [arrays])
    assert_same(got, np.where(*arrays), "where")


@pytest.mark.parametrize("source", REAL, ids=str)
def test_cast(source):
    """Between all types. A float out of an integer's range has no defined value in C or NumPy: it must only not
    trap."""
    g = np.random.default_rng(3)
    x = np.concatenate([specials(source), random_values(g, source, 100)])
    # By way of linalg LLVM has library calls for bfloat16.
    known = [t for t in REAL if not WAY or t is not dt.bf16 or "avx512f" in llvm.host_processor().features]
    functions = [op("cast", to=t) for t in known]
    results = mlirfuse.jit(lambda x: [f([x])[0][0] for f in functions], fallback=False, **WAY)(x)
    for t, got in zip(known, results):
        with np.errstate(all="ignore"):
            want, held = x.astype(t.numpy), np.asarray(got)
            if source.is_float and t.is_integer:
                info, wide = np.iinfo(t.numpy), np.trunc(x.astype(np.float64))
                inside = (wide >= float(info.min)) & (wide < float(info.max) + 1.0)
                want, held = want[inside], held[inside]
            if source.is_integer and source.bits > 16 and t.bits == 16 and t.is_float:  # through float64
                want = x.astype(np.float64).astype(t.numpy)
        assert_same(held, want, f"cast of {source} to {t}")


# ----------------------------------------------------------------------------------------------------------------
# reductions

REDUCTIONS = [n for n, r in table.TABLE.items() if r.kind == "reduce" and n not in ELSEWHERE]
SUMS = ("sum", "prod", "mean", "var", "std")  # whose terms are added or multiplied in another order than NumPy's


def reduction_bound(name: str, t: dt.DType, x: np.ndarray, axes, keepdims: bool, correction=0) -> np.ndarray:
    """How far the sum of n terms may be off: 4 + log2(n) roundings of the sum of their absolute values, by linalg's
    chain of additions 4 + n, as docs/reference/limits.md says. Means divide that. A product is off by n roundings. For a
    variance, the terms are the squares, and the mean's own error counts squared times n."""
    u = {32: 2.0**-24, 64: 2.0**-53}[t.compute.bits]
    x = x.astype(np.float64)
    n = math.prod(x.shape[a] for a in axes)
    grow = 4 + (n if WAY.get("lowering") == "linalg" else math.log2(n + 1))
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of no degrees of freedom
        if name == "prod":
            return 2 * n * u * np.abs(np.prod(x, axis=axes, keepdims=keepdims))
        if name in ("sum", "mean"):
            return grow * u * np.abs(x).sum(axis=axes, keepdims=keepdims) / (n if name == "mean" else 1)
        variance = np.var(x, axis=axes, keepdims=keepdims, ddof=correction)
        bound = (
            2 * grow * u * variance
            + n / max(n - correction, 1) * (grow * u * np.abs(x).mean(axis=axes, keepdims=keepdims)) ** 2
        )
        return (
            bound
            if name == "var"
            else bound / np.maximum(np.sqrt(variance), np.sqrt(bound)) + 2 * u * np.sqrt(variance)
        )


def check_reduction(name: str, t: dt.DType, x, axes, keepdims, got, **attrs) -> None:
    what = f"{name} of {t}{x.shape} over {axes}"
    if not t.is_float or name not in SUMS:
        with np.errstate(all="ignore"):
            wide = x.astype(np.float32) if t.compute is not t else x
            want = np.asarray(row(name).ref(wide, axes=axes, keepdims=keepdims, **attrs))
        assert_same(got, want.astype(t.numpy) if t.compute is not t and want.dtype == np.float32 else want, what)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of no degrees of freedom
        exact = np.asarray(row(name).ref(x.astype(np.float64), axes=axes, keepdims=keepdims, **attrs))
    slack = reduction_bound(
        name, t, x, tuple(range(x.ndim)) if axes is None else axes, keepdims, attrs.get("correction", 0)
    )
    assert_near(got, exact, t, 2, what, (), np.nan_to_num(slack, nan=0, posinf=0))


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reduction(name):
    g = np.random.default_rng(REDUCTIONS.index(name))
    types = taken(name)
    correction = {"correction": 1} if name in ("var", "std") else {}
    # All types at once over the last axis; a row of special values each, ties and NaN for the positions.
    lists = []
    for t in types:
        x = random_values(g, t, 6 * 37).reshape(6, 37)
        if name in ("prod", "sum") and t.is_float:
            x = (x.astype(np.float64) / 8).astype(t.numpy)
        if t.is_float:
            x[1, 5] = x[2, 3] = math.nan
            x[3, 7], x[4, 8] = math.inf, -math.inf
        x[5, :] = x[5, 0]
        lists.append([x])
    for keepdims in (False, True):
        for t, (x,), (got,) in zip(types, lists, compiled(name, lists, axes=(1,), keepdims=keepdims, **correction)):
            check_reduction(name, t, x, (1,), keepdims, got, **correction)


@pytest.mark.parametrize("name", REDUCTIONS)
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_reduction_axes_and_layouts(name, data):
    """Any axes, in any order, of any shape and strides."""
    t = data.draw(st.sampled_from(taken(name)), "type")
    shape = data.draw(st.lists(st.sampled_from((1, 2, 3, 5, 8, 17, 33, 70)), max_size=3), "shape")
    axes = data.draw(
        st.none() | st.lists(st.integers(0, len(shape) - 1), min_size=1, unique=True) if shape else st.none(), "axes"
    )
    axes = axes and tuple(a - len(shape) * data.draw(st.booleans()) for a in axes)
    attrs = {"keepdims": data.draw(st.booleans(), "keepdims")}
    if name in ("var", "std"):
        attrs["correction"] = data.draw(st.integers(0, 1), "correction")
    x = drawn(data, t, shape, special=(0.0, -0.0, math.nan, math.inf, -math.inf) if name in SUMS else None)
    if t.is_float and name == "prod":  # near 1: neither products nor parts of them overflow, or vanish beside infinity
        wide = x.astype(np.float64)
        near = np.copysign(1 + np.minimum(np.abs(wide), 1) * min(0.5, 20 / x.size), wide)
        x = np.where(np.isfinite(wide) & (wide != 0), near, wide).astype(t.numpy)
    ((got,),) = compiled(name, [[x]], axes=axes, **attrs)
    check_reduction(name, t, x, axes, got=np.asarray(got), **attrs)


def test_long_sums():
    """The bound grows with the logarithm of the count only."""
    g = np.random.default_rng(1)
    for shape, axes in (((1 << 18,), None), ((1000, 300), (0,)), ((2, 100_003), (1,))):
        x = g.random(shape, np.float32)
        ((got,),) = compiled("sum", [[x]], axes=axes, keepdims=False)
        check_reduction("sum", dt.f32, x, axes, False, np.asarray(got))


# ----------------------------------------------------------------------------------------------------------------
# scans


@pytest.mark.parametrize("name", [n for n, r in table.TABLE.items() if r.kind == "scan"])
def test_scan(name):
    """Within the error of a loop, an operation an element; what only chooses or wraps, exactly."""
    g = np.random.default_rng(6)
    types = [t for t in REAL if t.kind in row(name).takes]
    for k, (shape, axis) in enumerate([((3, 5), 1), ((40, 33), 0), ((2, 300), 1), ((4, 1, 6), 1), ((2, 19, 5), 1)]):
        reverse, chosen = bool(k % 2), types if k < 2 else [dt.f32, dt.f64]
        lists = []
        for j, t in enumerate(chosen):
            x = lay_out(g, random_values(g, t, math.prod(shape)), shape, LAYOUTS[(k + j) % len(LAYOUTS)])
            factor = (1 + g.random(shape) / 16 if name == "cumprod" else g.random(shape)).astype(t.compute.numpy)
            if t.is_float and name == "cumprod":
                x = factor.astype(t.numpy)
            lists.append([factor.astype(t.numpy), x] if len(row(name).operands) == 2 else [x])
        for t, arrays, (got,) in zip(chosen, lists, compiled(name, lists, axis=axis, reverse=reverse)):
            got = np.asarray(got)
            assert got.dtype == t.numpy and got.shape == shape
            wide = [a.astype(np.float64) for a in arrays] if t.is_float else arrays
            want = row(name).ref(*wide, axis=axis, reverse=reverse)
            if not t.is_float or name in ("cummax", "cummin"):
                assert_same(got, want.astype(t.numpy), f"{name} of {t}{shape}")
                continue
            sizes = row(name).ref(*map(np.abs, wide), axis=axis, reverse=reverse) + 1
            unit = {8: 2.0**-53, 4: 2.0**-24, 2: 2.0**-24}[t.bits // 8]
            stored = np.abs(want) * {dt.f16: 2.0**-11, dt.bf16: 2.0**-8}.get(t, 0) + (2.0**-24 if t is dt.f16 else 0)
            apart = np.abs(got.astype(np.float64) - want)
            assert np.all(apart <= (4 * shape[axis] + 16) * unit * sizes + stored), f"{name} of {t}{shape}"


# ----------------------------------------------------------------------------------------------------------------
# shapes, indices, creation

_SHAPES = {
    "broadcast_in_dim": [((3, 1), dict(shape=(4, 3, 5), dims=(1, 2))), ((), dict(shape=(2, 3), dims=())), ((1, 7), dict(shape=(7, 3), dims=(1, 0)))],
    "reshape": [((4, 6), dict(shape=(3, 8))), ((1,), dict(shape=())), ((2, 3, 5), dict(shape=(30,))), ((12,), dict(shape=(2, 1, 6)))],
    "permute": [((3, 4, 5), dict(dims=(2, 0, 1))), ((17, 33), dict(dims=(1, 0)))],
    "squeeze": [((1, 3, 1), dict(axes=(0, 2)))],
    "expand_dims": [((3,), dict(axes=(0, 2))), ((), dict(axes=(0,)))],
    "slice": [((9, 7), dict(start=(1, 6), size=(3, 7), step=(2, -1))), ((40,), dict(start=(3,), size=(33,), step=(1,)))],
    "pad": [((5, 4), dict(low=(1, -1), high=(0, 3))), ((33,), dict(low=(3,), high=(2,)))],
    "split": [((7, 4), dict(axis=0, sizes=(2, 4, 1)))],
    "concatenate": [((3, 5), dict(axis=1)), ((20,), dict(axis=0))],
    "roll": [((5, 7), dict(axis=1, shift=2)), ((5, 7), dict(axis=0, shift=4)), ((40,), dict(axis=0, shift=8)), ((2, 1), dict(axis=1, shift=0))],
    "take": [((6, 4), dict(axis=0)), ((3, 9), dict(axis=1))],
    "take_along_axis": [((5, 4), dict(axis=0)), ((4, 17), dict(axis=1))],
    "set_slice": [((9, 7), dict(start=(1, 6), size=(3, 4), step=(2, -1))), ((40,), dict(start=(3,), size=(30,), step=(1,)))],
    "full": [((), dict(shape=(3, 17)))],
}  # fmt: skip


def _operands(name, g, t, shape, attrs, layout):
    x = lay_out(g, random_values(g, t, max(1, math.prod(shape))), shape, layout)
    if name == "pad":
        return [x, np.asarray(random_values(g, t, 1)[0])]
    if name == "concatenate":
        return [x, x[tuple(slice(0, 2) if k == attrs["axis"] else slice(None) for k in range(x.ndim))], x[::-1]]
    if name == "take":
        return [
            x,
            g.integers(-2 * shape[attrs["axis"]], 2 * shape[attrs["axis"]], (2, 9)).astype(np.int32),
        ]  # out of range: clamped
    if name == "take_along_axis":
        indices = list(shape)
        indices[attrs["axis"]] = 7
        return [x, g.integers(-shape[attrs["axis"]], shape[attrs["axis"]], indices)]
    if name == "set_slice":
        return [x, random_values(g, t, math.prod(attrs["size"])).reshape(attrs["size"])]
    return [x]


@pytest.mark.parametrize(
    "name", [n for n, r in table.TABLE.items() if r.kind in ("shape", "index") or n in ("set_slice", "full")]
)
def test_shape(name):
    """Every element comes from its place, whatever its type; most of these are only an index within a kernel, so
    something is computed, too."""
    g = np.random.default_rng(5)
    types = [t for t in REAL if t.kind in row(name).takes]
    for k, (shape, attrs) in enumerate(_SHAPES[name]):

        def function(*lists, attrs=attrs):
            t = current()
            out = op(name, **attrs)(*lists)
            return out, [[TracedArray(t, t.emit("eq", v.value, v.value)) for v in vs] for vs in out]

        chosen = types if k == 0 else [dt.f32, dt.i8, dt.f64]
        lists = [_operands(name, g, t, shape, attrs, LAYOUTS[(k + j) % len(LAYOUTS)]) for j, t in enumerate(chosen)]
        results, computed = mlirfuse.jit(function, fallback=False, **WAY)(*lists)
        for t, arrays, got, equal in zip(chosen, lists, results, computed):
            want = row(name).ref(*arrays, **attrs)
            for a, b, c in zip(got, want if isinstance(want, list) else [want], equal):
                assert_same(a, np.asarray(b), f"{name} {attrs} of {t}{shape}")
                assert_same(c, np.asarray(b) == np.asarray(b), f"{name} {attrs} of {t}{shape}, compared")


def test_complex_moves():
    """Complex arrays are not computed with, but they can be viewed."""
    x = (np.arange(12.0) + 1j).reshape(3, 4)
    got = mlirfuse.jit(lambda x: (x.T, x[::-1, 1:], x.reshape(-1)), fallback=False, **WAY)(x)
    for a, b in zip(got, (x.T, x[::-1, 1:], x.reshape(-1))):
        assert_same(a, b, "a view")


@pytest.mark.parametrize(
    "name", [n for n, r in table.TABLE.items() if r.kind == "create" and n != "full" and n not in ELSEWHERE]
)
def test_creation(name):
    anchor = np.ones((3, 17), np.float32)
    t_of = {"iota": [t for t in REAL if t.kind in "fiu"], "constant": REAL, "size": [dt.i64]}[name]
    constants = {d: list(specials(d)) for d in t_of}  # here, as what the function makes is traced

    def function(x):
        t = current()
        out = []
        for d in t_of:
            if name == "iota":
                out += [t.emit("iota", shape=x.value.shape, axis=axis, dtype=d) for axis in (0, 1)]
            elif name == "constant":
                out += [t.emit("constant", value=v, dtype=d) for v in constants[d]]
            else:
                out.append(t.emit("size", value=x.value.shape[1]))
        return [TracedArray(t, v) for v in out]

    got = iter(mlirfuse.jit(function, fallback=False, **WAY)(anchor))
    for d in t_of:
        if name == "iota":
            for axis in (0, 1):
                assert_same(next(got), np.indices((3, 17))[axis].astype(d.numpy), f"iota of {d}")
        elif name == "constant":
            for v in specials(d):
                assert_same(next(got), np.asarray(v), f"constant {v!r} of {d}")
        else:
            assert_same(next(got), np.asarray(17), "size")


@pytest.mark.parametrize("name", [n for n, r in table.TABLE.items() if r.kind == "random"])
def test_random(name):
    """The same numbers as the table's reference; normal ones within the error of the float32 logarithm and cosine."""
    seed, offset = np.uint64(12345678901234567890), np.int64(7)
    for t in dt.FLOATS:
        for shape in ((5, 33), (64,), ()):

            def function(x, seed, offset, t=t):
                trace = current()
                seed = trace.emit("cast", seed.value, to=dt.i64)
                return TracedArray(trace, trace.emit(name, seed, offset.value, shape=x.value.shape, dtype=t))

            got = np.asarray(mlirfuse.jit(function, fallback=False, **WAY)(np.ones(shape), seed, offset))
            want = row(name).ref(np.int64(seed.astype(np.int64)), offset, shape, t)
            assert got.dtype == t.numpy and got.shape == shape
            if name == "uniform" and t in (dt.f32, dt.f64):
                assert_same(got, want, f"{name} of {t}")
            else:
                near = 4 * np.maximum(unit_of(t, want.astype(np.float64)), 2.0**-22 if t is not dt.f64 else 2.0**-48)
                assert np.all(np.abs(got.astype(np.float64) - want.astype(np.float64)) <= near), f"{name} of {t}{shape}"


# ----------------------------------------------------------------------------------------------------------------
# library ops


def _library_cases(g, t):
    v = lambda *s: random_values(g, t, math.prod(s)).reshape(s)  # noqa: E731
    return {
        "matmul": [([v(4, 5), v(5, 3)], {}), ([v(5), v(5)], {}), ([v(2, 4, 5), v(5)], {}), ([v(2, 1, 3, 4), v(3, 4, 2)], {})],
        "linear": [([v(3, 5), v(4, 5)], {}), ([v(3, 5), v(4, 5), v(4)], {})],
        "argsort": [([v(3, 9)], dict(axis=1)), ([v(3, 9)], dict(axis=0, descending=True))],
        "sort": [([v(3, 9)], dict(axis=1)), ([v(3, 9)], dict(axis=0, stable=False))],
        "partition": [([v(3, 9)], dict(axis=1, at=(4, 8))), ([v(700, 2)], dict(axis=0, at=(0,)))],
        "topk": [([v(3, 9)], dict(axis=1, count=4)), ([v(700, 2)], dict(axis=0, count=3, largest=False))],
        "scatter": [([v(4, 5), np.array([[0, 2], [1, 0]]), v(2, 2)], dict(axis=1))],
        "attention": [([v(2, 4, 5), v(2, 6, 5), v(2, 6, 3)], dict(scale=0.25)), ([v(1, 4, 5), v(1, 4, 5), v(1, 4, 5)], dict(causal=True))],
        "conv": [([v(2, 4, 9), v(6, 2, 3), v(6)], dict(stride=(2,), padding=(1,), dilation=(2,), groups=2)), ([v(1, 2, 5, 6), v(3, 2, 2, 3)], {})],
    }  # fmt: skip


@pytest.mark.parametrize("name", [n for n, r in table.TABLE.items() if r.kind == "library" and not r.calls])
def test_library(name):
    """These run through NumPy; what is before and after them is compiled."""
    g = np.random.default_rng(2)
    for t in [dt.f32, dt.f64, dt.i32] if "i" in row(name).takes else [dt.f32, dt.f64, dt.f16]:
        for arrays, attrs in _library_cases(g, t)[name]:
            ((got,),) = compiled(name, [arrays], **attrs)
            full = {k: attrs.get(k, v) for k, v in row(name).attrs.items()}
            with np.errstate(all="ignore"):
                want = np.asarray(row(name).ref(*arrays, **full))
            if t.is_float and want.dtype == t.numpy:
                scale = (
                    np.abs(want.astype(np.float64)).max()
                    + max(np.abs(a.astype(np.float64)).max() for a in arrays if a.dtype == t.numpy) ** 2
                )
                unit = {dt.f16: 2.0**-9, dt.f32: 2.0**-21, dt.f64: 2.0**-50}[t]
                assert np.asarray(got).dtype == want.dtype and np.asarray(got).shape == want.shape
                assert np.all(np.abs(np.asarray(got, np.float64) - want.astype(np.float64)) <= 16 * unit * scale), (
                    f"{name} of {t}"
                )
            else:
                assert_same(got, want, f"{name} of {t}")


# ----------------------------------------------------------------------------------------------------------------
# composites


def _composite_cases(g, t):
    """(operands, attributes, the same in plain NumPy in float64) for each composite op."""
    v = lambda *s: random_values(g, t, math.prod(s)).reshape(s)  # noqa: E731
    positive = lambda *s: (g.random(s) + 0.5).astype(t.compute.numpy)  # noqa: E731
    erf = np.vectorize(math.erf, otypes=[np.float64])
    seed, offset = np.asarray(3, np.int64), np.asarray(0, np.int64)
    targets = np.array([1, 0, -100, 4, 2])

    def softmax(x, axis):
        e = np.exp(x - x.max(axis, keepdims=True))
        return e / e.sum(axis, keepdims=True)

    def layer_norm(x, w, b):
        return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * w + b

    def group_norm(x):
        y = x.reshape(x.shape[0], 2, -1)
        return ((y - y.mean(-1, keepdims=True)) / np.sqrt(y.var(-1, keepdims=True) + 1e-5)).reshape(x.shape)

    def batch_norm(x):
        mean, var = x.mean((0, 2)), x.var((0, 2))
        return (x - mean[:, None]) / np.sqrt(var[:, None] + 1e-5), mean, 1 / np.sqrt(var + 1e-5)

    def instance_norm(x):
        mean, var = x.mean(2), x.var(2)
        return (x - mean[..., None]) / np.sqrt(var[..., None] + 1e-5), mean, 1 / np.sqrt(var + 1e-5)

    def cross_entropy(x):
        losses = -np.log(softmax(x, 1))[np.arange(5), np.maximum(targets, 0)]
        return losses[targets != -100].mean()

    return {
        "softmax": [([v(4, 33)], dict(axis=-1), lambda x: softmax(x, -1)), ([v(7, 3)], dict(axis=0), lambda x: softmax(x, 0))],
        "log_softmax": [([v(4, 33)], dict(axis=1), lambda x: np.log(softmax(x, 1)))],
        "softmax_backward": [([v(4, 9), v(4, 9)], {}, lambda g, y: y * (g - (g * y).sum(-1, keepdims=True)))],
        "log_softmax_backward": [([v(4, 9), -np.abs(v(4, 9))], {}, lambda g, y: g - np.exp(y) * g.sum(-1, keepdims=True))],
        "gelu": [([v(50)], {}, lambda x: 0.5 * x * (1 + erf(x / math.sqrt(2)))),
                 ([v(50)], dict(approximate="tanh"), lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))],
        "gelu_backward": [([v(50), v(50)], {}, lambda g, x: g * (0.5 * (1 + erf(x / math.sqrt(2))) + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi))),
                          ([v(50), v(50)], dict(approximate="tanh"), None)],
        "silu_backward": [([v(50), v(50)], {}, lambda g, x: g / (1 + np.exp(-x)) * (1 + x * (1 - 1 / (1 + np.exp(-x)))))],
        "layer_norm": [([v(4, 33), v(33), v(33)], {}, layer_norm), ([v(4, 33)], dict(stats=True), None)],
        "rms_norm": [([v(4, 33), v(33)], {}, lambda x, w: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * w), ([v(4, 33)], dict(stats=True), None)],
        "layer_norm_backward": [([v(4, 9), v(4, 9), v(4, 1), positive(4, 1), v(9)], {}, None), ([v(4, 9), v(4, 9), v(4, 1), positive(4, 1)], {}, None)],
        "rms_norm_backward": [([v(4, 9), v(4, 9), positive(4, 1), v(9)], {}, None)],
        "group_norm": [([v(3, 4, 5)], dict(groups=2), group_norm), ([v(3, 4, 5), v(4), v(4)], dict(groups=4), None)],
        "group_norm_backward": [([v(3, 4, 5), v(3, 4, 5), v(4)], dict(groups=2), None)],
        "batch_norm": [([v(3, 4, 5)], {}, batch_norm), ([v(3, 4, 5), v(4), v(4), v(4), positive(4).astype(t.numpy)], {}, None),
                       ([v(3, 4, 5), v(4), v(4), v(4), positive(4).astype(t.numpy)], dict(training=False), None)],
        "batch_norm_backward": [([v(3, 4, 5), v(3, 4, 5), v(4), positive(4), v(4)], dict(training=k), None) for k in (True, False)],
        "instance_norm": [([v(3, 4, 5)], {}, instance_norm), ([v(3, 4, 5), v(4), v(4), v(4), positive(4).astype(t.numpy)], {}, None)],
        "instance_norm_backward": [([v(3, 4, 5), v(3, 4, 5), v(3, 4), positive(3, 4), v(4)], {}, None)],
        "dropout": [([v(4, 33), seed, offset], dict(p=p), None) for p in (0.0, 0.3, 1.0)],
        "dropout_backward": [([v(40), g.random(40) < 0.5], dict(p=0.25), None)],
        "cross_entropy": [([v(5, 7), targets], {}, cross_entropy), ([v(5, 7), targets], dict(reduction="none", label_smoothing=0.1), None),
                          ([v(5, 7, 2), g.integers(0, 7, (5, 2))], dict(reduction="sum"), None)],
        "cross_entropy_backward": [([v(), v(5, 7), targets], {}, None), ([v(5), v(5, 7), targets], dict(reduction="none", label_smoothing=0.1), None)],
    }  # fmt: skip


def _expanded(name, arrays, attrs):
    """The op's own expansion, run op by op in float64."""
    wide = [a.astype(np.float64) if dt.of(a.dtype).is_float else a for a in arrays]
    block = Block([Value(dt.of(a.dtype), a.shape) for a in wide])
    created = Builder(block).op(name, *block.args, **attrs)
    results = created if isinstance(created, list) else [created]
    block.returns = results
    from mlirfuse.ir.graph import Graph

    return interpreter.run(Graph("f", block, [None] * len(wide)), wide)


@pytest.mark.parametrize("name", [n for n, r in table.TABLE.items() if r.kind == "composite" and n != "set_slice"])
def test_composite(name):
    """Within the error of a float32 computation, and one rounding: of the expansion run in float64, and of plain NumPy
    where that is short."""
    g = np.random.default_rng(4)
    for t in (dt.f32, dt.f16, dt.f64):
        for arrays, attrs, plain in _composite_cases(g, t)[name]:
            (got,) = compiled(name, [arrays], **attrs)
            wanted = _expanded(name, arrays, attrs)
            assert len(got) == len(wanted)
            if plain is not None:
                ours = plain(*[a.astype(np.float64) for a in arrays if dt.of(a.dtype).is_float])
                for a, b in zip(wanted, ours if isinstance(ours, tuple) else (ours,)):
                    np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)
            for a, b in zip(got, wanted):
                a = np.asarray(a)
                if b.dtype == bool:
                    assert_same(a, b, name)
                    continue
                held = dt.of(a.dtype)
                size = max(
                    [np.abs(x.astype(np.float64)).max() for x in arrays if dt.of(x.dtype).is_float and x.size] + [1.0]
                )
                unit = {16: 2.0**-11, 32: 2.0**-24, 64: 2.0**-53}[held.bits] + {32: 2.0**-24, 64: 2.0**-53}[
                    t.compute.bits
                ]
                bound = (
                    64 * (size + np.abs(b).max()) * unit
                    if held.bits > 16
                    else np.maximum(2.0**-11 * np.abs(b) * 1.01, 64 * 2.0**-24 * (size + np.abs(b).max()) ** 2)
                    + 2.0**-24
                )
                bad = np.abs(a.astype(np.float64) - b) > bound
                assert a.shape == b.shape and not bad.any(), f"{name} {attrs} of {t}: {a[bad][:3]} for {b[bad][:3]}"


def test_every_op_is_tested():
    """Whoever adds a row finds it here."""
    tested = set(ELEMENTWISE) | {"where", "cast", "full", "set_slice"} | set(REDUCTIONS) | set(ELSEWHERE)
    tested |= {n for n, r in table.TABLE.items() if r.kind in ("scan", "shape", "index", "create", "random")}
    g = np.random.default_rng(0)
    tested |= set(_library_cases(g, dt.f32)) | set(_composite_cases(g, dt.f32))
    assert set(table.TABLE) - tested == set() and set(ELSEWHERE) <= set(table.TABLE)
    assert set(itertools.chain(EXACT, ULPS)) <= set(table.TABLE)
