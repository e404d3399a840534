"""Casts and constants of the Emitter: values at the edges of types, one rounding, and no undefined behaviour."""

from __future__ import annotations

import platform

import numpy as np
import pytest
from math_harness import CpuKernel, ptx

from mlirfuse.ir import dtypes as dt
from mlirfuse.lowering.emitter import Emitter, Val

LANES = [1, 16]

pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered", "ignore:overflow encountered")


def cast_kernel(source, target, lanes):
    return CpuKernel(lambda e, x: e.cast(x, target), [source], [target], lanes)


def interesting_floats(dtype) -> np.ndarray:
    rng = np.random.default_rng(0)
    edges = [0.0, -0.0, 0.5, -0.5, 0.999, 1.5, 2.5, -1.5, np.nan, -np.nan, np.inf, -np.inf]
    for bits in (7, 8, 15, 16, 31, 32, 63, 64):
        for delta in (-1.0, -0.5, 0.0, 0.5, 1.0):
            edges += [2.0**bits + delta, -(2.0**bits) + delta]
    wide = np.concatenate(
        [edges, rng.normal(size=500) * 10.0 ** rng.uniform(-3, 22, 500), [1e300, -1e300, 1e-300, 5e-324]]
    )
    with np.errstate(all="ignore"):
        narrow = wide.astype(dtype.numpy)
        up, down = np.nextafter(narrow, dtype.numpy.type(np.inf)), np.nextafter(narrow, dtype.numpy.type(-np.inf))
    return np.concatenate([narrow, up, down])


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("target", dt.INTEGERS, ids=str)
@pytest.mark.parametrize("source", dt.FLOATS, ids=str)
def test_float_to_integer_truncates_and_never_traps(source, target, lanes):
    x = interesting_floats(source)
    got = cast_kernel(source, target, lanes)(x)
    info = np.iinfo(target.numpy)
    whole = np.trunc(x.astype(np.float64))
    inside = (
        (whole >= float(info.min)) & (whole <= float(info.max)) & (whole < 2.0 ** (target.bits - (target.kind == "i")))
    )
    assert inside.sum() > 50
    np.testing.assert_array_equal(got[inside], whole[inside].astype(target.numpy))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="other processors give other numbers")
@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("target", [t for t in dt.INTEGERS if t.kind == "i"], ids=str)
@pytest.mark.parametrize("source", [dt.f32, dt.f64], ids=str)
def test_floats_that_a_signed_integer_does_not_hold(source, target, lanes):
    """NaN, infinities and what is too large give what NumPy and torch give on the same processor."""
    x = interesting_floats(source)
    np.testing.assert_array_equal(cast_kernel(source, target, lanes)(x), x.astype(target.numpy))


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("target", dt.FLOATS, ids=str)
@pytest.mark.parametrize("source", dt.INTEGERS, ids=str)
def test_integer_to_float(source, target, lanes):
    info = np.iinfo(source.numpy)
    rng = np.random.default_rng(1)
    x = rng.integers(info.min, info.max, 2000, dtype=source.numpy, endpoint=True)
    x = np.concatenate(
        [x, np.array([0, 1, info.max, info.min, info.max - 1, info.max // 2, info.max // 2 + 1], source.numpy)]
    )
    x = np.concatenate([x, x >> rng.integers(0, source.bits, x.size).astype(source.numpy)])
    got = cast_kernel(source, target, lanes)(x)
    if target.bits == 16 and source.bits >= 32:  # 64 bits may be rounded to float64 first, and that to odd
        want = round_to(x.astype(np.float64), target)
    else:
        want = x.astype(target.numpy)
    np.testing.assert_array_equal(got.astype(np.float64), want.astype(np.float64))


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("source,target", [(a, b) for a in dt.INTEGERS for b in dt.INTEGERS], ids=str)
def test_integer_to_integer_wraps(source, target, lanes):
    info = np.iinfo(source.numpy)
    x = np.array([0, 1, 2, 100, info.max, info.min, info.max - 1, info.max // 3], source.numpy)
    np.testing.assert_array_equal(cast_kernel(source, target, lanes)(x), x.astype(target.numpy))


def round_to(x: np.ndarray, dtype) -> np.ndarray:
    """float64 to ``dtype`` with one rounding to nearest even: exact arithmetic in float64, with no help from a cast."""
    mantissa, smallest = {"f16": (10, -14), "bf16": (7, -126), "f32": (23, -126)}[dtype.name]
    largest = {"f16": 65504.0, "bf16": (2 - 2.0**-7) * 2.0**127, "f32": (2 - 2.0**-23) * 2.0**127}[dtype.name]
    with np.errstate(all="ignore"):
        exponent = np.maximum(np.frexp(x)[1] - 1, smallest)
        rounded = np.ldexp(np.rint(np.ldexp(x, mantissa - exponent)), exponent - mantissa)
        rounded = np.where(np.isfinite(x), rounded, x)
        rounded = np.where(np.abs(rounded) > largest, np.copysign(np.inf, x), rounded)
        return rounded.astype(dtype.numpy)


def half_way_points(dtype) -> np.ndarray:
    """Values of a half type, the middles between neighbours, and float64 values a hair beside these."""
    values = np.arange(0, 2**16, 7, dtype=np.uint16).view(dtype.numpy).astype(np.float64)
    values = values[np.isfinite(values)]
    step = np.arange(1, 2**16, 7, dtype=np.uint16).view(dtype.numpy).astype(np.float64)[: values.size]
    middle = np.where(np.isfinite(step), (values + step) / 2, values)
    return np.concatenate(
        [values, middle, np.nextafter(middle, np.inf), np.nextafter(middle, -np.inf), middle * (1 + 2.0**-40)]
    )


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("target", [dt.f16, dt.bf16, dt.f32], ids=str)
def test_float64_is_rounded_once(target, lanes):
    rng = np.random.default_rng(2)
    x = np.concatenate(
        [
            half_way_points(target) if target.bits == 16 else np.empty(0),
            rng.normal(size=5000) * 10.0 ** rng.uniform(-45, 40, 5000),
            [
                0.0,
                -0.0,
                np.inf,
                -np.inf,
                65504,
                65519.99,
                65520,
                3.3961775e38,
                3.4e38,
                3.5e38,
                1e-45,
                7e-46,
                5e-324,
                1e308,
                -1e308,
            ],
        ]
    )
    got = cast_kernel(dt.f64, target, lanes)(x)
    want = round_to(x, target)
    np.testing.assert_array_equal(got.view(f"u{target.bytes}"), want.view(f"u{target.bytes}"))
    assert np.isnan(cast_kernel(dt.f64, target, lanes)(np.array([np.nan, -np.nan])).astype(np.float64)).all()


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("target", [dt.f16, dt.bf16], ids=str)
def test_float32_to_half(target, lanes):
    x = np.arange(0, 2**32, 65521, dtype=np.uint64).astype(np.uint32).view(np.float32)
    x = np.concatenate([x, half_way_points(target).astype(np.float32)])
    got = cast_kernel(dt.f32, target, lanes)(x)
    want = round_to(x.astype(np.float64), target)
    nan = np.isnan(x)
    assert np.isnan(got[nan].astype(np.float32)).all()
    np.testing.assert_array_equal(got[~nan].view(np.uint16), want[~nan].view(np.uint16))


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("target", [dt.f32, dt.f64], ids=str)
@pytest.mark.parametrize("source", [dt.f16, dt.bf16], ids=str)
def test_half_to_wider_is_exact(source, target, lanes):
    x = np.arange(0, 2**16, dtype=np.uint32).astype(np.uint16).view(source.numpy)
    got = cast_kernel(source, target, lanes)(x)
    np.testing.assert_array_equal(got, x.astype(target.numpy))


@pytest.mark.parametrize("target", ["cpu", "gpu"])
@pytest.mark.parametrize("half", [dt.f16, dt.bf16], ids=str)
def test_a_half_that_was_made_wider_is_there_still(half, target):
    """Its way back is no code, and what is computed of it is another value."""
    e = Emitter(target)
    x = Val("%x", half, 8)
    wide = e.cast(x, dt.f32)
    lines = len(e.lines)
    assert e.cast(wide, half) == x and len(e.lines) == lines
    assert e.cast(e.neg(wide), half) != x
    other = dt.bf16 if half is dt.f16 else dt.f16
    assert e.cast(wide, other).dtype is other


@pytest.mark.parametrize("target", ["cpu", "gpu"])
@pytest.mark.parametrize(("source", "wide"), [(dt.bf16, dt.f32), (dt.f16, dt.f32), (dt.i8, dt.i32)], ids=str)
def test_of_two_that_were_made_wider_the_narrow_one_is_selected(source, wide, target):
    e = Emitter(target)
    a, b, other = Val("%a", source, 8), Val("%b", source, 8), Val("%d", wide, 8)
    condition = Val("%c", dt.bool_, 8)
    chosen = e.select(condition, e.cast(a, wide), e.cast(b, wide))
    assert chosen.dtype is wide and e.narrow(chosen).dtype is source
    assert e.select(condition, chosen, e.cast(a, wide)).dtype is wide
    assert e.narrow(e.select(condition, e.cast(a, wide), other)) is None


@pytest.mark.parametrize("lanes", LANES)
def test_between_the_half_types(lanes):
    x = np.arange(0, 2**16, dtype=np.uint32).astype(np.uint16)
    for source, target in ((dt.f16, dt.bf16), (dt.bf16, dt.f16)):
        y = x.view(source.numpy)
        got, want = cast_kernel(source, target, lanes)(y), round_to(y.astype(np.float64), target)
        np.testing.assert_array_equal(got.astype(np.float64), want.astype(np.float64))


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("source", dt.FLOATS + dt.INTEGERS, ids=str)
def test_to_bool_and_back(source, lanes):
    x = np.array([0, 1, 2, 3, 0, 1, 100], np.float64).astype(source.numpy)
    if source.is_float:
        x = np.concatenate([x, np.array([np.nan, -0.0, np.inf, -1], np.float64).astype(source.numpy)])
    np.testing.assert_array_equal(cast_kernel(source, dt.bool_, lanes)(x), x.astype(np.bool_))
    b = np.array([True, False, True])
    np.testing.assert_array_equal(cast_kernel(dt.bool_, source, lanes)(b), b.astype(source.numpy))


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", dt.FLOATS, ids=str)
def test_float_constants_keep_their_bits(dtype, lanes):
    values = [0.0, -0.0, 1.0, -1.5, 1 / 3, 1e-5, 1e10, 1e16, 1e22, np.inf, -np.inf, np.nan, 65504.0]
    if dtype.bits >= 32:
        values += [1e-45, 1.1754942e-38, 3.4028234663852886e38, 1e-30]
    if dtype.bits == 64:
        values += [5e-324, 2.2250738585072014e-308, 1.7976931348623157e308, 0.1, 1e-300]
    kernel = CpuKernel(lambda e, x: [e.const(v, dtype, lanes) for v in values], [dtype], [dtype] * len(values), lanes)
    got = kernel(np.ones(1, dtype.numpy))
    for v, g in zip(values, got, strict=True):
        want = np.array([v]).astype(dtype.numpy)
        if np.isnan(v):
            assert np.isnan(g.astype(np.float64)).all()
        else:
            assert g.view(f"u{dtype.bytes}") == want.view(f"u{dtype.bytes}"), (v, g, want)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", dt.INTEGERS, ids=str)
def test_integer_constants(dtype, lanes):
    info = np.iinfo(dtype.numpy)
    values = [0, 1, info.max, info.min, info.max - 1]
    kernel = CpuKernel(lambda e, x: [e.const(v, dtype, lanes) for v in values], [dtype], [dtype] * len(values), lanes)
    assert [g[0] for g in kernel(np.ones(1, dtype.numpy))] == values


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", [dt.f32, dt.f64], ids=str)
def test_rounding_and_sign(dtype, lanes):
    x = np.array(
        [0.5, 1.5, 2.5, -0.5, -1.5, 0.49999997, -0.0, 0.0, 1e20, -1e20, np.inf, np.nan, 3.7, -3.7], dtype.numpy
    )
    cases = {
        "floor": np.floor,
        "ceil": np.ceil,
        "trunc": np.trunc,
        "rint": np.rint,
        "abs": np.abs,
    }
    for name, reference in cases.items():
        got = CpuKernel(lambda e, v, name=name: getattr(e, name)(v), [dtype], [dtype], lanes)(x)
        want = reference(x)
        np.testing.assert_array_equal(got, want)
        np.testing.assert_array_equal(np.signbit(got[:-3]), np.signbit(want[:-3]))


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", [dt.f32, dt.f64], ids=str)
def test_min_and_max_propagate_nan(dtype, lanes):
    a = np.array([1, np.nan, 2, np.nan, -np.inf, np.inf], dtype.numpy)
    b = np.array([2, 1, np.nan, np.nan, np.inf, 0], dtype.numpy)
    for name, reference in (("min", np.minimum), ("max", np.maximum)):
        got = CpuKernel(lambda e, x, y, name=name: getattr(e, name)(x, y), [dtype] * 2, [dtype], lanes)(a, b)
        np.testing.assert_array_equal(got, reference(a, b))


@pytest.mark.parametrize("dtype", [dt.f32, dt.f64], ids=str)
def test_gpu_needs_no_library(dtype):
    """MLIR would turn these operations into calls of libdevice."""

    def everything(e, x, y):
        total = e.fma(x, y, e.sqrt(x))
        for part in (
            e.abs(x),
            e.floor(x),
            e.ceil(x),
            e.trunc(x),
            e.rint(x),
            e.copysign(x, y),
            e.min(x, y),
            e.max(x, y),
        ):
            total = e.add(total, part)
        whole = e.abs(e.cast(x, dt.i32))
        return e.add(total, e.cast(whole, dtype))

    text = ptx(everything, [dtype] * 2, [dtype])
    assert "call" not in text and "__nv" not in text
    for instruction in ("fma.rn", "sqrt.rn", "abs.", "cvt.rmi", "cvt.rpi", "cvt.rzi", "cvt.rni"):
        assert instruction in text, instruction


@pytest.mark.parametrize("source", dt.FLOATS, ids=str)
def test_gpu_casts_compile(source):
    for target in dt.INTEGERS + dt.FLOATS:
        text = ptx(lambda e, x, target=target: e.cast(x, target), [source], [target])
        assert "call" not in text and ".local" not in text, target
