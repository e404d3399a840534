"""Sorts of which a program takes a few elements at one end: only those are looked for, and they are NumPy's."""

from __future__ import annotations

import numpy as np
import pytest

import mlirfuse

CUTS = {
    "largest": (lambda s: s[:, ::-1][:, :8], 1),
    "largest by one slice": (lambda s: s[:, :-9:-1], 1),
    "largest in order": (lambda s: s[:, -8:], 1),
    "smallest": (lambda s: s[:, :8] * 2, 1),
    "smallest backwards": (lambda s: s[:, 7::-1], 1),
    "both ends": (lambda s: s[:, :8] + s[:, -8:], 2),
    "the last": (lambda s: s[:, -1], 1),
    "of reversed columns": (lambda s: s[:, -4:][:, ::-1], 1),
    "all of it too": (lambda s: s[:, :8] + s.max(-1, keepdims=True), 0),
    "in the middle": (lambda s: s[:, 5:8], 0),
    "every second": (lambda s: s[:, :8:2], 0),
    "some rows": (lambda s: s[2:, -4:], 0),
}


def rows(dtype, shape):
    x = np.random.default_rng(1).normal(size=shape) * 50
    if np.dtype(dtype).kind == "f":
        x[3, 5:15], x[4], x[5, ::3] = np.nan, np.inf, -np.inf
        x[6, 0] = np.nan
    else:
        x = np.round(x)
    return x.astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int8])
@pytest.mark.parametrize("name", CUTS)
def test_what_is_cut_from_a_sort(name, dtype):
    cut, count = CUTS[name]
    fn = mlirfuse.jit(lambda x: cut(np.sort(x, -1)))
    for shape in ((30, 700), (9, 1024), (20, 40)):
        x = rows(dtype, shape)
        np.testing.assert_array_equal(fn(x), cut(np.sort(x, -1)))
    assert str(fn.explain(rows(dtype, (30, 700)))).count("topk(") == count


def test_along_another_axis_and_of_types_that_libraries_do_not_choose_among():
    x = rows(np.float32, (600, 9))
    down = mlirfuse.jit(lambda x: np.sort(x, 0)[-3:])
    np.testing.assert_array_equal(down(x), np.sort(x, 0)[-3:])
    assert "topk(" in str(down.explain(x))
    for dtype in (bool, np.uint16, complex):
        given = np.abs(np.nan_to_num(x, posinf=9, neginf=-9)).astype(dtype)
        fn = mlirfuse.jit(lambda x: np.sort(x, 0)[-3:])
        np.testing.assert_array_equal(fn(given), np.sort(given, 0)[-3:])
        assert "topk(" not in str(fn.explain(given))


def test_what_is_cut_has_no_negative_strides():
    x = rows(np.float32, (30, 700))
    found = mlirfuse.jit(lambda x: np.sort(x, -1)[:, -5:])(x)
    assert min(found.strides) > 0
    np.testing.assert_array_equal(found, np.sort(x, -1)[:, -5:])


@pytest.mark.parametrize("lies", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: np.sort(x, 0).T,
        lambda x: np.sort(x, 1).swapaxes(0, 1),
        lambda x: np.sort(x, 2).reshape(6, 4),
        lambda x: (np.sort(x, 0), np.sort(x + 1, 0).T),
        lambda x: np.sort(x, 0).ravel("K"),
    ],
)
def test_a_sort_keeps_the_order_of_memory(fn, lies):
    x = np.random.default_rng(0).normal(size=[(2, 3, 4)[k] for k in lies]).transpose(np.argsort(lies))
    found, wanted = mlirfuse.jit(fn, fallback=False)(x), fn(x)
    for ours, numpys in zip(*(v if isinstance(v, tuple) else (v,) for v in (found, wanted))):
        np.testing.assert_array_equal(ours, numpys)
        assert ours.strides == numpys.strides


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32, np.uint8, bool, complex])
@pytest.mark.parametrize("shape", [(1001,), (1000,), (7, 40), (6, 41), (1,), (3, 4, 5)])
def test_medians(dtype, shape):
    x = (np.random.default_rng(1).normal(size=shape) * 50).astype(dtype)
    others = [x]
    if x.dtype.kind == "f":
        others.append(x.copy())
        others[1].flat[0] = np.nan
    for axis in (None, -1, 0):
        fn = mlirfuse.jit(lambda x, axis=axis: np.median(x, axis))
        for given in others:
            found, wanted = fn(given), np.median(given, axis)
            assert found.dtype == wanted.dtype
            np.testing.assert_allclose(found, wanted, rtol=2e-3 if dtype is np.float16 else 1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "uint8"])
def test_on_torchs_tensors(dtype):
    torch = pytest.importorskip("torch")
    x = np.nan_to_num(rows(np.float32, (30, 700)), posinf=90, neginf=-90).astype(dtype)
    for fn in (lambda x: np.sort(x, -1)[:, -5:], lambda x: np.sort(x, -1)[:, 4::-1], lambda x: np.median(x, -1)):
        found = mlirfuse.jit(fn)(torch.from_numpy(x))
        np.testing.assert_allclose(found.numpy(), fn(x), rtol=2e-3 if dtype == "float16" else 1e-6)
