"""Results stored part by part, in the emulator and on the CPU: it finds what is stored twice, or outside of a result."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from test_gpu_emulated import check, normal

import mlirfuse
from mlirfuse.runtime.program import Program
from mlirfuse.schedule import targets

f32, bf16 = np.float32, ml_dtypes.bfloat16


def gate(x, g):
    """The gradient of a gated layer: both halves read the same."""
    left, right = np.split(x, 2, -1)
    s = 1 / (1 + np.exp(-left))
    return np.concatenate([g * right * s * (1 + left * (1 - s)), g * left * s], -1)


def several(x, y):
    return np.concatenate([x * y, x + y], 1), x - y, np.concatenate([x, x, y, x * 2], 1)


def transposed(x, y):
    return np.concatenate([x * y, x + y], 0).T.reshape(-1)


def viewed(x, y):
    return np.exp(np.concatenate([x * y, x + y, x - y], 1) * 2).reshape(-1)


def in_the_middle(x, y):
    return np.concatenate([x * y, x + y], 1).transpose(1, 0, 2).reshape(-1)


def in_front(x, y):
    return np.stack([x * y, x + y, y])


def read_reversed(x, y):
    """One part reads what all share in another order."""
    return np.concatenate([x * y, (x + y)[:, ::-1], y], 1)


def repeated(x, y):
    part = x * y
    return part, np.concatenate([part, part, x], 1)


PROGRAMS = [
    (gate, (6, 256), (6, 128)),
    (several, (5, 64), (5, 64)),
    (transposed, (64, 24), (64, 24)),
    (viewed, (3, 160), (3, 160)),
    (in_the_middle, (3, 4, 72), (3, 4, 72)),
    (in_front, (7, 48), (7, 48)),
    (read_reversed, (4, 64), (4, 64)),
    (repeated, (4, 64), (4, 64)),
]
NAMES = [row[0].__name__ for row in PROGRAMS]


def steps_of(fn, *inputs, target="cuda:sm_90"):
    lowered = mlirfuse.jit(fn, target=target).lower(*inputs)
    return Program(lowered.segmented(), targets.of(target), lowered.env).steps


@pytest.mark.parametrize("dtype", [f32, bf16])
@pytest.mark.parametrize(("fn", "one", "other"), PROGRAMS, ids=NAMES)
def test_on_a_gpu(fn, one, other, dtype):
    inputs = normal(*one, dtype=dtype), normal(*other, dtype=dtype)
    assert any(step.analysis.inside for step in steps_of(fn, *inputs))
    check(fn, *inputs, candidates=3, bound=1e-5 if dtype is f32 else 0.03)


@pytest.mark.parametrize("rows", [1, 3, 700])
@pytest.mark.parametrize(("fn", "one", "other"), PROGRAMS, ids=NAMES)
def test_on_the_cpu(fn, one, other, rows):
    """Also of sizes that those of the first call are no model for: parts without a full vector, and odd ones."""
    compiled = mlirfuse.jit(fn, target="cpu")
    for columns in (one[-1] // 2, one[-1] // 4 - 1, 3):
        x = normal(rows, *one[1:-1], columns * (2 if fn is gate else 1))
        y = normal(rows, *other[1:-1], columns)
        expected = fn(x.astype(float), y.astype(float))
        for got, want in zip(*(r if isinstance(r, tuple) else (r,) for r in (compiled(x, y), expected)), strict=True):
            np.testing.assert_allclose(got, want, 2e-5, 2e-5)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, y: np.concatenate([x * y, (x + y)[:, :32]], 1),  # unequal
        lambda x, y: np.concatenate([np.exp(x), -y], 1),  # nothing shared
        lambda x, y: np.stack([x * y, x + y], -1),  # every other element
        lambda x, y: np.concatenate([x * y, x + y], 1) * np.concatenate([y, x], 1)[:, ::-1],  # read by others, too
    ],
)
def test_selected_by_element(fn):
    inputs = normal(6, 64), normal(6, 64)
    assert not any(step.analysis.inside for step in steps_of(fn, *inputs))
    check(fn, *inputs, candidates=2)


def test_empty_parts():
    def fn(x, y):
        return np.concatenate([x * y, (x + y)[:, :0], x - y], 1)

    check(fn, normal(6, 64), normal(6, 64), candidates=2)


def test_offsets_that_vectors_do_not_divide():
    """The second call's parts begin at odd elements, where the first call's were aligned."""

    def fn(x, y):
        return np.concatenate([x * y, x + y], 1)

    lowered = mlirfuse.jit(fn, target="cuda:sm_90").lower(normal(4, 64), normal(4, 64))
    program = Program(lowered.segmented(), targets.of("cuda:sm_90"), lowered.env)
    assert program.steps[0].analysis.inside
    sizes = [dict.fromkeys(program.symbols, n) for n in (2048, 2050, 2051)]
    lanes = [program.parameters(env, {})[0].access.lanes for env in sizes]
    assert lanes == [4, 2, 1]
