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


def rotated(x, y):
    """As a rotary embedding: both halves read both."""
    left, right = np.split(x, 2, -1)
    return x * 2 + np.concatenate([-right * y, left], -1)


def summed(x, y):
    """Columns are summed part by part, beside what is stored; parts share nothing."""
    c = np.concatenate([x[0], np.exp(x[-1])], -1).reshape(-1, 2 * x.shape[-1])
    return c * 2, c.sum(0), (c * c).sum(0) + 1


def sums_of_permuted(x, y):
    c = np.concatenate([x[0].transpose(1, 0, 2), x[-1].transpose(1, 0, 2), x[-1].transpose(1, 0, 2) * 2], 2) * 2
    return c.reshape(-1), c.sum((0, 1), keepdims=True)


def of_two(x, y):
    a, b = np.concatenate([x, x * y], 1), np.concatenate([x + y, x - y], 1)
    return a * b, a + b


def centred(x, y):
    """Columns are read again after their sums."""
    c = np.concatenate([x[0], np.exp(x[-1])], -1)
    return c - c.mean(0)


def gate_of_casts(x, g):
    """Each half is read at two elements of the same part."""
    wide = np.exp(x)
    left, right = np.split(wide, 2, -1)
    return np.concatenate([g * right + wide[:, : g.shape[1]], left - right * g], -1)


def turned(x, y):
    """Along the rows of blocks that other dimensions follow."""
    left, middle, right = np.split(np.maximum(x, -1), 3, 1)
    return np.concatenate([left * y + right, middle * y, left * middle], 1)


def gate_and_bias(x, g):
    both = gate(x, g)
    return both, both.sum(0)


def gate_standardized(x, g):
    both = gate(x, g)
    return (both - both.mean(0)) / (both.std(0) + 1)


PROGRAMS = [
    (centred, (2, 9, 64), (1, 1, 64)),
    (rotated, (6, 128), (6, 64)),
    (summed, (2, 3, 5, 48), (1, 1, 1, 48)),
    (sums_of_permuted, (2, 6, 7, 40), (1, 1, 1, 40)),
    (of_two, (5, 64), (5, 64)),
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
        x = normal(rows, *one[1:-1], columns * (one[-1] // other[-1]))
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
        lambda x, y: (lambda c: c * c[:, ::-1])(np.concatenate([x * y, x + y], 1)),  # in another order, too
        lambda x, y: np.concatenate([x * y, x + y]).sum(1),  # rows, each of one part
        lambda x, y: np.concatenate([x * y, x + y], 1).sum(1),  # one result of all parts
        lambda x, y: (lambda c: (c.sum(1), c.sum(0)))(np.concatenate([x * y, x + y], 1)),
    ],
)
def test_selected_by_element(fn):
    inputs = normal(6, 64), normal(6, 64)
    assert not any(step.analysis.inside for step in steps_of(fn, *inputs))
    check(fn, *inputs, candidates=2)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, y: np.stack([y, y * 2]) * x.sum(1),
        lambda x, y: np.concatenate([y[None], y[None]]) + x.max(1) - x.min(1),
        lambda x, y: (np.stack([y, y]) * x.sum(1)).transpose(0, 2, 1).reshape(-1),
    ],
)
def test_beside_reductions_of_another_tensor(fn):
    """A reduction's kernel has no slices of its results."""
    x, y = normal(2, 5, 3, 64), normal(3, 64)
    check(fn, x, y, candidates=2)
    np.testing.assert_allclose(mlirfuse.jit(fn, target="cpu", fallback=False)(x, y), fn(x, y), 1e-5, 1e-5)


OVER_ARGUMENTS = [
    (rotated, (6, 128), (6, 64)),
    (gate, (6, 256), (6, 128)),
    (gate, (37, 2, 3, 128), (37, 2, 3, 64)),
    (gate_of_casts, (5, 192), (5, 96)),
    (turned, (3, 15, 72), (3, 5, 72)),
    (gate_and_bias, (70, 128), (70, 64)),
    (gate_standardized, (70, 128), (70, 64)),
]


@pytest.mark.parametrize("dtype", [f32, bf16])
@pytest.mark.parametrize(("fn", "one", "other"), OVER_ARGUMENTS)
def test_over_donated_arguments(fn, one, other, dtype):
    """Each part overwrites the elements that the same thread reads: no races, and the same results."""
    check(
        fn, normal(*one, dtype=dtype), normal(*other, dtype=dtype), bound=1e-5 if dtype is f32 else 0.03, donated=True
    )


def exchanged(x, g):
    left, right = np.split(x, 2, -1)
    return np.concatenate([right * g, left * g], -1)


@pytest.mark.parametrize(
    ("fn", "over"),
    [
        (exchanged, True),  # each thread reads what it writes, though in another order
        (lambda x, g: exchanged(x, g) + x[:, ::-1], False),
        (lambda x, g: exchanged(np.roll(x, 1, 1), g), False),
        (lambda x, g: exchanged(np.concatenate([x[1:], x[:1]]), g), False),
        (lambda x, g: np.concatenate([x[:, :64] * g, x[:, 32:96] + g], 1), False),  # half a part further on
        (lambda x, g: (exchanged(x, g), x[:, :64].sum(0) * g), False),
        (lambda x, g: (exchanged(x, g), x.sum(1)), False),
    ],
)
def test_what_is_not_stored_over_an_argument(fn, over):
    inputs = normal(6, 128), normal(6, 64)
    for target in "cpu", "cuda:sm_90":
        lowered = mlirfuse.jit(fn, target=target).lower(*inputs)
        graph = lowered.segmented()
        graph.donated = {0}
        Program(graph, targets.of(target), lowered.env)
        assert (0 in graph.aliases) == over
    check(fn, *inputs, donated=over, candidates=2)


def random_parts(seed):
    """A concatenation of random sums and products of the parts of ``x``, sometimes of another slice, and ``y``."""
    rng = np.random.default_rng(seed)
    count, axis = int(rng.integers(2, 5)), int(rng.integers(1, 3))
    chosen = rng.integers(count, size=(count, 3))
    odd, before, after, more = rng.random(4) < 0.25
    shape = [5, 6, 64]

    def fn(x, y):
        x = np.tanh(x) if before else x
        parts = np.split(x, count, axis)
        read = [[parts[k] for k in some] for some in chosen]
        if odd:
            half = parts[0].shape[axis] // 2
            read[-1][0] = x[(slice(None),) * axis + (slice(half, half + parts[0].shape[axis]),)]
        joined = np.concatenate([a * y + b * c for a, b, c in read], axis)
        joined = joined + x if after else joined
        return (joined, y + 1) if more else joined

    return fn, [n * count if d == axis else n for d, n in enumerate(shape)], shape


@pytest.mark.parametrize("seed", range(12))
def test_random_programs_over_donated_arguments(seed):
    fn, one, other = random_parts(seed)
    for donated in False, None:
        check(fn, normal(*one), normal(*other), candidates=2, donated=donated)


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


def test_results_over_arguments():
    """Parts are written over an argument whose elements each thread reads only where it writes; else they need a copy."""

    def added(x, y, z):
        x += np.concatenate([y * z, y + z], 1)

    def overwritten(x, y, z):
        x[...] = np.concatenate([y * z, y + z], 1)

    def crossed(x, y, z):
        left, right = np.split(x, 2, 1)
        x[...] = np.concatenate([right * y, left * y], 1)

    for fn, count, split in (added, 1, True), (overwritten, 1, True), (crossed, 1, True):
        given = [normal(6, 128), normal(6, 64), normal(6, 64)]
        for target in "cpu", "cuda:sm_90":
            steps = steps_of(fn, *given, target=target)
            assert (len(steps), any(step.analysis.inside for step in steps)) == (count, split), fn.__name__
        expected = [x.copy() for x in given]
        fn(*expected)
        mlirfuse.jit(fn, target="cpu")(*given)
        for got, want in zip(given, expected):
            np.testing.assert_allclose(got, want, 1e-6)
