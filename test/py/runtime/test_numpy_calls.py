"""Extern ops on NumPy arrays: products past the ufunc, no Python code in between, NumPy's values and layouts."""

import sys
import warnings

import numpy as np
import pytest

import mlirfuse
from mlirfuse.runtime import extern_ops, launches

rng = np.random.default_rng(5)


def python_calls(function, *args) -> list[str]:
    """The names of the Python functions that a call runs."""
    names: list[str] = []
    sys.setprofile(lambda frame, event, _: names.append(frame.f_code.co_name) if event == "call" else None)
    try:
        function(*args)
    finally:
        sys.setprofile(None)
    return names


def updated(x, y, a, b, matrix):
    x += matrix @ a
    y += b @ matrix


def products(a, b):
    return (a @ b + 1) @ a


@pytest.mark.parametrize("dtype", ["f", "d", "l", "e"])
@pytest.mark.parametrize("function", [updated, products])
def test_hot_calls_run_no_python_but_the_host_program(function, dtype):
    matrix = (rng.random((7, 7)) * 8).astype(dtype)
    vectors = [(rng.random(7) * 8).astype(dtype) for _ in range(4)]
    args = [matrix, matrix.T] if function is products else [*vectors, matrix]
    jitted = mlirfuse.jit(function)
    for _ in range(3):
        jitted(*args)
    called = min((python_calls(jitted, *args) for _ in range(5)), key=len)
    assert set(called) <= {"call", "run", "like", "_only", "<lambda>"} and len(called) <= 4


def test_kernels_read_complex_results_where_numpy_left_them(monkeypatch):
    def rotated(matrix, *vectors):
        phases = np.exp(1j * matrix)
        return sum((phases @ v) * (v @ phases) for v in vectors), phases @ matrix[:, :3] + 1

    args = [rng.random((5, 5)), *rng.random((6, 5))]
    copied = []
    monkeypatch.setattr(launches, "restrided", lambda *args: copied.append(args))
    for got, want in zip(mlirfuse.jit(rotated)(*args), rotated(*args), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-13)
    assert not copied


LAYOUTS = {
    "row-major": lambda a: a,
    "transposed": lambda a: np.ascontiguousarray(a.T).T,
    "strided": lambda a: np.repeat(np.repeat(a, 2, 0), 3, 1)[::2, ::3],
    "reversed": lambda a: np.ascontiguousarray(a[::-1, ::-1])[::-1, ::-1],
    "broadcast": lambda a: np.broadcast_to(a[:1], a.shape),
    "unaligned": lambda a: np.frombuffer(b"\0" + a.tobytes(), np.uint8)[1:].view(a.dtype).reshape(a.shape),
}


@pytest.mark.parametrize("right", LAYOUTS)
@pytest.mark.parametrize("left", LAYOUTS)
def test_products_of_any_layout_are_numpys(left, right):
    a, b = rng.standard_normal((2, 6, 6))
    a, b = LAYOUTS[left](a), LAYOUTS[right](b)

    def products(a, b):
        return a @ b, a[0] @ b, a @ b[1], a[1] @ b[0], a @ a.T, a.T @ a

    jitted = mlirfuse.jit(products)
    for _ in range(2):
        for got, want in zip(jitted(a, b), products(a, b), strict=True):
            assert type(got) is type(want) and np.shape(got) == np.shape(want)
            np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


def test_extern_ops_do_not_warn_and_do_not_change_the_error_state():
    for dtype in ("d", "f", "e", "D"):
        given = np.array([[np.finfo(dtype).max, np.inf], [-np.inf, np.nan]], dtype)
        jitted = mlirfuse.jit(lambda a: np.linalg.matmul(a, a) * 2)
        before = np.geterr()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            got = jitted(given), jitted(given)
        assert np.geterr() == before
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(got[1], given @ given * 2)


def test_an_error_of_the_reference_leaves_the_error_state():
    from mlirfuse._native import NumpyCall

    def failing(x):
        assert np.geterr()["divide"] == "ignore"
        raise KeyError("no")

    types = (np.dtype("d"),)
    call = NumpyCall(failing, types, types[0], lambda found, given: found, lambda *given: ["otherwise"],
                     *extern_ops._ERROR_STATE)  # fmt: skip
    before = np.geterr()
    with np.errstate(divide="raise"):
        with pytest.raises(KeyError):
            call(np.empty(0), np.ones(3))
        assert np.geterr()["divide"] == "raise"
    assert np.geterr() == before
    assert call(np.empty(0), np.ones(3, "f")) == ["otherwise"]
    assert call(None, np.ones(3)) == ["otherwise"]


def test_results_are_row_major_in_memory_of_their_own():
    from mlirfuse._native import NumpyCall

    given = rng.random((3, 4))
    for function in (lambda x: x, lambda x: x.T, np.transpose, lambda x: x.astype("f"), np.sort):
        call = NumpyCall(
            function, (given.dtype,), given.dtype,
            lambda found, operands: extern_ops._owned(np.asarray(found, given.dtype), operands), None,
            *extern_ops._ERROR_STATE,
        )  # fmt: skip
        (found,) = call(np.empty(0), given)
        assert found.flags.c_contiguous and not np.may_share_memory(found, given) and found.dtype == given.dtype
        np.testing.assert_array_equal(found, np.asarray(function(given), given.dtype))


def test_a_function_that_writes_and_returns_none_has_no_finisher_in_python():
    def step(x, y):
        x += y @ y

    jitted = mlirfuse.jit(step)
    x, y = rng.random((2, 5, 5))
    x, y = x.copy(), y.copy()
    want = x + 2 * (y @ y)
    assert jitted(x, y) is None
    names = python_calls(jitted, x, y)
    assert "finish" not in names and "copy_all" not in names
    np.testing.assert_allclose(x, want)
