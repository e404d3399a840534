"""Pointwise segments on the CPU whose rows are so short that they share vectors."""

import numpy as np
import pytest
from test_cpu_schedules import FLOATS, check, data

import mlirfuse
from mlirfuse.core import config
from mlirfuse.schedule import targets


@pytest.fixture(autouse=True)
def no_fallback():
    with config.override(fallback=False):
        yield


@pytest.mark.parametrize("dtype", [*FLOATS, np.int8, np.int32, np.uint64, bool], ids=str)
@pytest.mark.parametrize("columns", [2, 3, 4, 7, 8, 15, 31])
def test_short_rows_of_several_layouts(columns, dtype):
    def fn(x, m, row, column, wide, several):
        return np.where(m, x, row), np.where(m, column, wide[:, 1:-1]), np.where(several > 0, x, several)

    f = mlirfuse.jit(fn)
    for rows in (1, 2, 67, 1025, 2000):
        m, row, column = data((rows, columns), bool), data(columns, dtype, 2), data((rows, 1), dtype, 3)
        check(
            f,
            fn,
            data((rows, columns), dtype, 1),
            m,
            row,
            column,
            data((rows, columns + 2), dtype, 4),
            data((3, 1, columns), dtype, 5),
        )


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint8], ids=str)
def test_rows_of_up_to_two_vectors(dtype):
    """They share vectors where outputs are in no core's own cache, and nothing is gathered."""
    lanes, properties = (
        targets.of("cpu").properties.vector_bytes // np.dtype(dtype).itemsize,
        targets.of("cpu").properties,
    )
    fn = lambda x, row, column: x * row + column  # noqa: E731
    f = mlirfuse.jit(fn)
    for columns in (lanes - 1, lanes, lanes + 1, 2 * lanes - 1):
        many = properties.own_cache * properties.threads // columns // np.dtype(dtype).itemsize + 100
        for rows in (2, 67, many):
            x, row, column = data((rows, columns + 1), dtype), data(columns, dtype, 1), data((rows, 1), dtype, 2)
            given = x[:, :-1], row, column
            np.testing.assert_array_equal(f(*given), fn(*given))
            chosen = f.lower(*given).as_text("segmented")
            assert ("coalesced_rows = 0" in chosen) == (
                columns < min(lanes, 64) or (rows == many and columns < 64 and columns % lanes > 0)
            ), columns
    x = data((2 * many, lanes + 3), dtype)  # backwards, what vectors across rows have would be gathered
    assert "coalesced_rows = 0" not in mlirfuse.jit(lambda x, y: x + y).lower(x, x[:, ::-1]).as_text("segmented")


def test_short_rows_in_place():
    def fn(x, b, c):
        x *= b
        x += c

    f = mlirfuse.jit(fn)
    for rows, columns in [(5, 3), (1500, 7), (400, 15), (30_000, 24)]:
        whole = data((rows, columns + 3))
        x, b, c = whole[:, :columns], data(columns, seed=1), data((rows, 1), seed=2)
        expected = np.concatenate([x * b + c, whole[:, columns:]], 1)
        f(x, b, c)
        np.testing.assert_allclose(whole, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint8], ids=str)
@pytest.mark.parametrize("columns", [2, 3, 4])
def test_neighbours_that_share_lines_of_the_cache(columns, dtype):
    """Where what is packed lies a power of two apart, neighbours along the loop around are taken together."""
    properties = targets.of("cpu").properties
    fn = lambda x, row, column: np.add(np.transpose(x, (1, 0, 2)) * row, column, order="C")  # noqa: E731
    f = mlirfuse.jit(fn)
    rows, size = 66, np.dtype(dtype).itemsize * columns
    if size % properties.vector_bytes == 0:
        pytest.skip("a row fills vectors: nothing is packed")
    far = 1 << (properties.own_cache // 32).bit_length()  # bytes of a row of all neighbours, which are then 64 lines
    for third in (far // size, far // size + 1):
        x = data((rows, third, columns), dtype)[:, : third - 3]  # a last group of fewer
        given = x, data(columns, dtype, 1), data((rows, 1), dtype, 2)
        np.testing.assert_array_equal(f(*given), fn(*given))
        chosen = f.lower(*given).as_text("segmented")
        assert "coalesced_rows = 0" in chosen
        assert ("rows_per_thread = 1 :" not in chosen) == (third * size == far), third
