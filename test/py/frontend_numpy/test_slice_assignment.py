"""Slices of arguments that a function writes: as NumPy, with the bytes of the slice moved and no others."""

import numpy as np
import pytest

import mlirfuse
from mlirfuse.inspect.explain import Explanation


def interior(a, b):
    b[1:-1, 1:-1] = a[1:-1, 1:-1]


def computed(a, b):
    b[1:-1, 1:-1] = np.sqrt(a[:-2, 1:-1] * a[:-2, 1:-1] + 1) + a[1:-1, 2:]


def same_place(a, b):
    b[2:5, 1:] = b[2:5, 1:] * 2 + a[2:5, 1:]


def neighbours(a, b):
    b[1:-1, 1:-1] = (b[1:-1, :-2] + b[1:-1, 2:]) / 2


def shifted(a, b):
    b[1:] = b[:-1]


def backwards(a, b):
    b[::-2, 1:3] = a[: (b.shape[0] + 1) // 2, :2]


def number(a, b):
    b[0] = 3


def repeated(a, b):
    b[1:4] = a[0]


def sums(a, b):
    b[:, 0] = a.sum(1)


def returned(a, b):
    b[:2] = a[:2]
    return b


def beside(a, b):
    b[:2] = a[:2] + 1
    return a[:2] + 1, a * 2


def read_before(a, b):
    total = b.sum()
    b[:, 1] = a[:, 1]
    return total, b[0, 0] + 0


def read_after(a, b):
    b[:2] = a[:2]
    return b.sum(0)


def twice(a, b):
    b[:2] = a[:2]
    b[1:3] = a[1:3] * 2


def both(a, b):
    a[:2], b[1:3] = b[:2] + 1, a[1:3] + 1


def product(a, b):
    b[:2] = (a @ a.T)[:2, :1] + b[:2]


def argument(a, b):
    b[:, :] = a
    b[0, 1:] = a[0, 1:]


PROGRAMS = [
    interior, computed, same_place, neighbours, shifted, backwards, number, repeated, sums, returned, beside,
    read_before, read_after, twice, both, product, argument,
]  # fmt: skip
LAYOUTS = {
    "row-major": lambda x: x.copy(),
    "transposed": lambda x: np.asfortranarray(x),
    "strided": lambda x: np.repeat(np.repeat(x, 2, 0), 3, 1)[::2, ::3],
    "backwards": lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
}


def check(function, program, layout, shape=(7, 6)):
    make, rng = LAYOUTS[layout], np.random.default_rng(5)
    a, b = rng.standard_normal(shape), rng.standard_normal(shape)
    found, want = (make(a), make(b)), (make(a), make(b))
    got, expected = function(*found), program(*want)
    for x, y in zip(found, want):
        np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-12)
    if expected is None:
        assert got is None
    elif isinstance(expected, tuple):
        for x, y in zip(got, expected, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-12)
    else:
        np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)
        assert (got is found[1]) == (expected is want[1])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_as_numpy(program, layout):
    compiled = mlirfuse.jit(program, fallback=False)
    check(compiled, program, layout)
    check(compiled, program, layout, (70, 60))
    if program not in (repeated,):
        check(compiled, program, layout, (40, 1000))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("program", [p for p in PROGRAMS if p is not product])
def test_as_numpy_by_linalg(program, layout):
    check(mlirfuse.jit(program, fallback=False, lowering="linalg"), program, layout)


def test_without_elements():
    """The slice that is written may be empty for some sizes."""
    compiled = mlirfuse.jit(interior, fallback=False)
    for shape in ((7, 6), (2, 6), (2, 2), (9, 3)):
        check(compiled, interior, "row-major", shape)


@pytest.mark.parametrize("program", [interior, computed, same_place, number, backwards])
def test_only_the_slice_is_moved(program):
    a, b = np.zeros((100, 100)), np.zeros((100, 100))
    want = b.copy()
    want[:] = np.nan
    program(np.zeros_like(a), want)
    written = int((~np.isnan(want)).sum()) if program is not same_place else 3 * 99
    found = Explanation.of(mlirfuse.jit(program).lower(a, b))
    assert found.launches == 1 and found.bytes_written == written * 8
    assert found.bytes_read <= 2 * 100 * 100 * 8


def test_text_keeps_the_slice():
    """The IR says where a result is written."""
    from mlirfuse.dialects import fusion

    graph = mlirfuse.jit(computed).lower(np.zeros((8, 8)), np.zeros((8, 8))).segmented()
    (read,) = fusion.read(fusion.parse(fusion.to_module_text([graph])))
    assert read.windows == graph.windows and read.windows
