"""Values added to rows that indices choose: what is one kernel, every candidate on both targets, errors, and the front
ends' names of it. On a CPU, and on a GPU where it is asked for, sums are added in the order of the indices: the
references are NumPy's own, bit for bit."""

from __future__ import annotations

import functools
import operator

import ml_dtypes
import numpy as np
import pytest
from heuristics_override import fit
from test_gpu_emulated import check as check_on_gpu
from test_gpu_emulated import run as run_on_gpu
from test_ptxas import PTXAS, assembled

import mlirfuse
from mlirfuse.core import config
from mlirfuse.core.errors import ScheduleError, UnsupportedError
from mlirfuse.frontend.numpy.operands import asarray
from mlirfuse.frontend.numpy.trace_state import current
from mlirfuse.frontend.numpy.traced_array import TracedArray
from mlirfuse.ir import sizes as sz
from mlirfuse.runtime.program import Program
from mlirfuse.schedule import targets
from mlirfuse.schedule.gpu.scatter_add import Sums
from mlirfuse.schedule.scheduler import SizedCall

f16, f32, f64 = np.float16, np.float32, np.float64
SHAPES = [
    (5, 60, ()),
    (7, 100, (33,)),
    (300, 9, (2,)),
    (50, 400, (3, 40)),
    (3, 9, (1,)),
    (2, 700, (130,)),
    (1, 5, (4,)),
]


@pytest.fixture(autouse=True)
def no_fallback():
    with config.override(fallback=False):
        yield


def operands(rows, count, rest, dtype=f32, seed=0):
    rng = np.random.default_rng(seed)
    x, v = ((rng.standard_normal((n, *rest)) * 5).astype(dtype) for n in (rows, count))
    return x, rng.integers(0, rows, count), v


def added(x, i, v):
    """NumPy's, half types in float32."""
    out = x.astype(f32) if x.dtype in (f16, ml_dtypes.bfloat16) else x.copy()
    np.add.at(out, i, (v + v).astype(out.dtype))
    return out.astype(x.dtype)


def fused(x, i, v):
    """The op, its values computed in its kernel; NumPy's own on arrays."""
    if current() is None:
        return added(x, i, v)
    t = x._trace
    return TracedArray(t, t.emit("index_put_accumulate", x.value, asarray(i).value, (v + v).value))


def added_twice(x, i, v):
    """The values, and multiples of them at other rows, in one op."""
    if current() is None:
        out = x.astype(f32) if x.dtype in (f16, ml_dtypes.bfloat16) else x.copy()
        for rows, values in ((i, v + v), (i // 2, v * v)):
            np.add.at(out, rows, values.astype(out.dtype))
        return out.astype(x.dtype)
    t, at = x._trace, asarray(i)
    more = (at // 2).value, (v * v).value
    return TracedArray(t, t.emit("index_put_accumulate", x.value, at.value, (v + v).value, *more))


# ----------------------------------------------------------------------------------------------------------------
# the CPU


@pytest.mark.parametrize("schedule", [None, (1, False), (3, False), (2, True)])
@pytest.mark.parametrize("dtype", [f32, f64, f16, ml_dtypes.bfloat16, np.int8, np.int64])
def test_cpu(dtype, schedule):
    given = {0: dict(zip(("split", "columns"), schedule))} if schedule else {}
    jitted = mlirfuse.jit(fused, schedule=given)
    for shape in SHAPES:
        x, i, v = operands(*shape, dtype)
        np.testing.assert_array_equal(jitted(x, i, v), added(x, i, v), f"{shape}")
        np.testing.assert_array_equal(jitted(x, i.astype(np.int32), v), added(x, i, v), f"{shape}")


@pytest.mark.parametrize("schedule", [None, (3, False), (2, True)])
@pytest.mark.parametrize("dtype", [f32, f16, np.int64])
def test_cpu_of_more_indices(dtype, schedule):
    given = {0: dict(zip(("split", "columns"), schedule))} if schedule else {}
    jitted = mlirfuse.jit(added_twice, schedule=given)
    for shape in SHAPES:
        x, i, v = operands(*shape, dtype)
        bound = {f32: 1e-4, f16: 4e-3}.get(dtype, 0)
        np.testing.assert_allclose(jitted(x, i, v), added_twice(x, i, v), rtol=bound, atol=bound * 100)


def test_in_place():
    """What is added to an argument moves no more than the rows that it is added to."""

    def fn(x, i, v):
        np.add.at(x, i, v)

    x, i, v = operands(50, 400, (40,))
    want = x.copy()
    np.add.at(want, i, v)
    jitted = mlirfuse.jit(fn)
    text = jitted.lower(x, i, v).as_text("tiled")
    assert text.count("func.func @mlirfuse_") == 1
    jitted(x, i, v)
    np.testing.assert_array_equal(x, want)
    jitted(x, -1 - i, x[i].copy())  # from the end


def test_the_operand_is_read_elsewhere_too():
    """Then it is not written over as it is read."""

    def fn(x, i):
        np.add.at(x, i, x[: len(i)])
        return x * 1

    x, i, _ = operands(30, 20, (3,))
    want = x.copy()
    np.add.at(want, i, want[:20].copy())
    np.testing.assert_array_equal(mlirfuse.jit(fn)(x, i), want)
    np.testing.assert_array_equal(x, want)


@pytest.mark.parametrize(
    "fn, kernels",
    [
        (lambda x, i, v: fused(x * 2, i, np.exp(v) + 1), 1),  # what begins the rows, too
        (lambda x, i, v: fused(x, i // 2, v), 1),
        (lambda x, i, v: fused(x, i, v) * 2, 2),
        (lambda x, i, v: (fused(x, i, v * 2), v * 2 + 1), 2),
        (lambda x, i, v: fused(x, i, v - v.mean(0)), 2),
        (lambda x, i, v: fused(fused(x, i, v), i, v), 2),
        (lambda x, i, v: fused(x, i, np.cumsum(v, 0)), 2),
    ],
)
def test_kernels(fn, kernels):
    x, i, v = operands(20, 70, (11,), f64)
    got, want = mlirfuse.jit(fn)(x, i, v), fn(x, i, v)
    for a, b in zip(*(r if isinstance(r, tuple) else (r,) for r in (got, want)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)
    assert mlirfuse.jit(fn).lower(x, i, v).as_text("segmented").count("schedule = {") == kernels


def test_values_along_other_axes():
    """Rows and columns of the values are the operand's the other way round."""
    x, i, _ = operands(30, 30, (30,))
    for fn in (lambda x, i: fused(x, i, x.T), lambda x, i: fused(x, i, x[::-1]), lambda x, i: fused(x.T, i, x).copy()):
        np.testing.assert_array_equal(mlirfuse.jit(fn)(x, i), fn(x, i))
        check_on_gpu(fn, x, i, candidates=1)


@pytest.mark.parametrize("wrong", [4, -5])
def test_an_index_outside_is_an_error(wrong):
    jitted = mlirfuse.jit(lambda x, i: np.add.at(x, i, 1))
    x, i = np.zeros((4, 3)), np.array([0, 1, 3, -4])
    jitted(x, i)
    assert x.sum() == 12
    i[2] = wrong
    with pytest.raises(IndexError, match=f"index {wrong} is out of bounds for axis 0 with size 4"):
        jitted(x, i)


def test_no_linalg_form():
    with pytest.raises(UnsupportedError, match="index_put_accumulate has no linalg form"):
        mlirfuse.jit(fused, lowering="linalg")(*operands(5, 60, (3,)))


@pytest.mark.parametrize("written", [0, 1, 2])
def test_results_over_an_operand(written):
    """Over what is added to, the positions, and the values."""

    def fn(x, i, v):
        (x, i, v)[written][:] = fused(x, i, v)

    rng = np.random.default_rng(written)
    args = [rng.integers(0, 30, 30) for _ in range(3)]
    expected = added(*args)
    mlirfuse.jit(fn)(*args)
    np.testing.assert_array_equal(args[written], expected)


def test_nothing_to_add():
    x, i, v = operands(4, 1, (3,))
    np.testing.assert_array_equal(mlirfuse.jit(fused)(x, i[:0], v[:0]), x)


# ----------------------------------------------------------------------------------------------------------------
# GPUs


@pytest.mark.parametrize("dtype", [f32, f64, f16, np.int8, np.int32, np.int64])
@pytest.mark.parametrize("chip", ["sm_70", "sm_90"])
def test_gpu(dtype, chip):
    """Atomic additions, and one after the other."""
    for shape in SHAPES[:4]:
        x, i, v = operands(*shape, dtype)
        check_on_gpu(fused, x, i, v, candidates=3, chip=chip, bound=2e-3 if dtype is f16 else 1e-5)


def test_gpu_sums_of_accumulations_are_one():
    """As in the gradient of a resized image, whose values share what they are computed from."""

    def fn(i, v):
        parts = [np.zeros(12, f32) for _ in range(3)]
        for n, part in enumerate(parts):
            np.add.at(part, (i + n) % 12, np.exp(v) * n)
        return functools.reduce(operator.add, parts)

    _, i, v = operands(12, 100, ())
    check_on_gpu(fn, i, v, candidates=2, bound=1e-5)
    text = mlirfuse.jit(fn, target="cuda:sm_90").lower(i, v).as_text("segmented")
    assert text.count("schedule = {") == 1 and text.count("fusion.index_put_accumulate") == 1


@pytest.mark.parametrize("dtype", [f32, f16, np.int64])
@pytest.mark.parametrize("shared", [0, 16])
def test_gpu_of_more_indices(dtype, shared):
    bound = 4e-3 if dtype is f16 else 1e-5
    for shape in [(5, 60, ()), (7, 100, (2,))]:
        x, i, v = operands(*shape, dtype)
        if not shared:
            check_on_gpu(added_twice, x, i, v, candidates=3, bound=bound)
            continue
        changed = lambda p: p.replaced(shared_elements=shared, split=3, tx=32, vectors_per_thread=2)  # noqa: E731
        plain = lambda p: p.scheduler == "scatter_add" and p.own == Sums()  # noqa: E731
        check_on_gpu(added_twice, x, i, v, only=plain, candidates=1, changed=changed, bound=bound)


@pytest.mark.parametrize("dtype", [f32, f16, np.int8, np.uint16, np.int32, np.int64])
@pytest.mark.parametrize("shape", [(5, 700, (3,)), (16, 300, ()), (3, 1, (2,)), (2, 90, (2, 3))])
def test_gpu_sums_in_shared_memory(dtype, shape):
    """Each block adds up its values there; few of them, and blocks without any."""
    x, i, v = operands(*shape, dtype)
    plain = lambda p: p.scheduler == "scatter_add" and p.own == Sums()  # noqa: E731
    changed = lambda p: p.replaced(shared_elements=16, split=3, tx=32, vectors_per_thread=2)  # noqa: E731
    bound = 2e-3 if dtype is f16 else 1e-5
    check_on_gpu(fused, x, i, v, only=plain, candidates=1, changed=changed, bound=bound)


@pytest.mark.parametrize("dtype", [f32, f16])
def test_gpu_places_that_are_computed(dtype):
    """Positions along several axes, of which the kernel makes one: as in the gradient of resizing an image."""

    def resized(x, v, rows, columns):
        image = np.arange(3)[:, None, None] * 60 + rows[:, None] * 12 + columns
        if current() is None:
            out = x.astype(np.float64)
            np.add.at(out, image.reshape(-1), v.reshape(-1).astype(np.float64) * 2)
            return out
        t = x._trace
        values = (v * 2).reshape(-1)
        return TracedArray(t, t.emit("index_put_accumulate", x.value, image.reshape(-1).value, values.value))

    rows, columns = np.arange(10) // 2, np.minimum(np.arange(24) * 2 // 3, 11)
    x, v = np.zeros(180, dtype), np.random.default_rng(3).standard_normal((3, 10, 24)).astype(dtype)
    check_on_gpu(resized, x, v, rows, columns, candidates=3, bound=2e-3 if dtype is f16 else 1e-5)


def test_gpu_sums_of_64_bits_in_shared_memory_carry():
    generator = np.random.default_rng(5)
    x, i = np.zeros(3, np.int64), generator.integers(0, 3, 200)
    v = generator.integers(-(2**62) // 100, 2**62 // 100, 200) | 0xFFFFFFF0
    changed = lambda p: p.replaced(shared_elements=4, split=2, tx=32)  # noqa: E731
    check_on_gpu(
        fused, x, i, v, only=lambda p: p.scheduler == "scatter_add" and p.own == Sums(), candidates=1, changed=changed
    )
    check_on_gpu(
        fused, x, i, -v, only=lambda p: p.scheduler == "scatter_add" and p.own == Sums(), candidates=1, changed=changed
    )


@pytest.mark.parametrize("dtype, rows, count, shared", [
    (np.int64, 256, 1_000_000, True),
    (f32, 16, 1_000_000, True),
    (f32, 5000, 1_000_000, False),  # more than shared memory shall hold
    (np.int64, 256, 3000, False),  # soon added in memory
    (f64, 16, 1_000_000, False),  # shared memory adds no such
])  # fmt: skip
def test_gpu_few_sums_are_begun_in_shared_memory(dtype, rows, count, shared):
    args = np.zeros(rows, dtype), np.empty(count, np.int64), np.empty(count, dtype)
    target = targets.of("cuda:sm_90")
    lowered = mlirfuse.jit(fused, target="cuda:sm_90").lower(*args)
    (params,) = Program(lowered.segmented(), target, lowered.env).parameters(lowered.env, {})
    assert bool(params.own.shared_elements) == shared


def test_gpu_ordered_sums_are_numpys():
    x, i, v = operands(3, 500, (20,))
    target = targets.of("cuda:sm_90")
    lowered = mlirfuse.jit(fused, target="cuda:sm_90").lower(x, i, v)
    program = Program(lowered.segmented(), target, lowered.env)
    (step,) = program.steps
    ordered = target.schedulers.read({"ordered": True}, step.analysis, SizedCall(lowered.env, {}, target.properties))
    (got,) = run_on_gpu(program, lowered.env, (ordered,), (x, i, v))
    np.testing.assert_array_equal(got, added(x, i, v))


def by_rows(params):
    return params.scheduler == "scatter_add_rows"


@pytest.fixture
def rows_of_any_size(monkeypatch):
    """Values are sorted however few they are, and rows of more than four split."""
    fit(monkeypatch, "scatter_add", few=0, row_bytes=(1, 1), least_bytes=(0, 0), rows_a_value=1000, chunk=4)


@pytest.mark.parametrize("dtype", [f32, f64, f16, ml_dtypes.bfloat16, np.int8, np.uint16, np.int32, np.int64])
@pytest.mark.parametrize("shape", [(50, 400, (3, 40)), (3, 9, (8,)), (2, 700, (130,)), (1, 5, (4,)), (70, 100, (33,))])
def test_gpu_rows(dtype, shape, rows_of_any_size):
    """Rows without values and rows that are split, several vectors of a thread, positions that are nowhere; also where
    the result lies in the operand."""
    x, i, v = operands(*shape, dtype)
    i[::5], i[1::11], i[2::13] = i[0], -5, shape[0]

    def inside(x, i, v):
        if current() is not None:
            return fused(x, i, v)
        there = (i >= 0) & (i < shape[0])
        return added(x, i[there], v[there])

    bound = {f64: 1e-14, f32: 2e-6, f16: 2e-3}.get(dtype, 2e-2)
    for donated in (False, True):
        check_on_gpu(inside, x, i, v, only=by_rows, candidates=3, bound=bound, donated=donated)


@pytest.mark.parametrize("dtype", [f32, f64, f16])
def test_gpu_rows_keep_the_sign_of_zero(dtype, rows_of_any_size):
    x, i, v = -np.zeros((6, 8), dtype), np.array([1, 1, 4, 5, *[2] * 9]), -np.zeros((13, 8), dtype)
    v[3] = 0
    lowered = mlirfuse.jit(fused, target="cuda:sm_90").lower(x, i, v)
    program = Program(lowered.segmented(), targets.of("cuda:sm_90"), lowered.env)
    (params,) = program.parameters(lowered.env, {})
    (got,) = run_on_gpu(program, lowered.env, (params,), (x, i, v))
    assert by_rows(params) and np.array_equal(np.signbit(got), np.signbit(added(x, i, v)))


def test_gpu_results_that_lie_in_columns(rows_of_any_size):
    """Whose innermost loop, as they are written, is along the values."""
    x = np.asfortranarray(operands(8, 1, (23,))[0])

    def fn(x, i, out):
        out[:] = fused(x * 3, i, x * 2)

    lowered = mlirfuse.jit(fn, target="cuda:sm_90").lower(x, np.arange(8), x.copy(order="F"))
    program = Program(lowered.segmented(), targets.of("cuda:sm_90"), lowered.env)
    assert not any(map(by_rows, program.parameters(lowered.env, {})))


@pytest.mark.parametrize("dtype, rows, count, width, sorted_first", [
    (f32, 60_000, 200_000, 256, True),
    (f16, 50_257, 16_384, 1280, True),
    (f32, 48, 100_000, 512, True),
    (f32, 60_000, 200_000, 16, False),  # an addition in memory is cheaper than a place in a list
    (f32, 4096, 4096, 512, False),  # soon added in memory
    (f16, 4096, 16_384, 512, True),  # half types are not
    (f32, 10, 1_000_000, 64, False),  # added up in shared memory
    (f32, 1_000_000, 32_768, 256, False),  # each of so many rows would be looked at
])  # fmt: skip
def test_gpu_values_of_wide_rows_are_sorted_first(dtype, rows, count, width, sorted_first):
    args = np.zeros((rows, width), dtype), np.empty(count, np.int64), np.empty((count, width), dtype)
    lowered = mlirfuse.jit(fused, target="cuda:sm_90").lower(*args)
    (params,) = Program(lowered.segmented(), targets.of("cuda:sm_90"), lowered.env).parameters(lowered.env, {})
    assert by_rows(params) == sorted_first


@pytest.mark.parametrize("width", [1, 256])
def test_gpu_zeros_that_are_added_to_take_no_memory(width):
    def fn(i, v):
        out = np.zeros((60_000, width), f32)
        np.add.at(out, i, v)
        return out

    target = targets.of("cuda:sm_90")
    lowered = mlirfuse.jit(fn, target="cuda:sm_90").lower(np.empty(200_000, np.int64), np.empty((200_000, width), f32))
    program = Program(lowered.segmented(), target, lowered.env)
    params, slots = program.parameters(lowered.env, {}), program.slots()
    target.write(program, params, slots)
    held = [sz.substitute(n, lowered.env) for n in slots.temporary_bytes.values()]
    assert by_rows(params[0]) == (width > 1) and sum(held) < 60_000 * width * 4 / 5


@pytest.mark.parametrize("given, says", [
    ({"chunk": 3}, "chunk"),
    ({"chunk": 1 << 31}, "too many"),
    ({"vectors_per_thread": 0}, "vectors_per_thread"),
    ({"rows_per_thread": 17}, "rows_per_thread"),
    ({"tx": 48}, "tx"),
])  # fmt: skip
def test_gpu_rows_have_no_other_schedules(given, says):
    target = targets.of("cuda:sm_90")
    args = np.zeros((6000, 256), f32), np.empty(200_000, np.int64), np.empty((200_000, 256), f32)
    lowered = mlirfuse.jit(fused, target="cuda:sm_90").lower(*args)
    (step,) = Program(lowered.segmented(), target, lowered.env).steps
    with pytest.raises(ScheduleError, match=says):
        target.schedulers.read(given, step.analysis, SizedCall(lowered.env, {}, target.properties))


@pytest.mark.skipif(PTXAS is None, reason="needs ptxas")
@pytest.mark.parametrize("chip", ["sm_75", "sm_90", "sm_100"])
@pytest.mark.parametrize("dtype", [f32, f16, f64, np.int8, np.int64])
@pytest.mark.parametrize("shape", [(50, 400, (30,)), (60_000, 200_000, (256,)), (60_000, 200_000, (257,))])
def test_gpu_code_is_valid(dtype, chip, shape):
    rows, count, rest = shape
    args = np.empty((rows, *rest), dtype), np.empty(count, np.int64), np.empty((count, *rest), dtype)
    for kernel in assembled(fused, *args, chip=chip).values():
        assert kernel.stack == kernel.spilled == 0


# ----------------------------------------------------------------------------------------------------------------
# torch


def test_torch():
    """Gradients of an embedding, and additions at positions, are kernels of ours on a CPU, beside what makes them."""
    torch = pytest.importorskip("torch")
    make = functools.partial(torch.randn, generator=torch.Generator().manual_seed(0))
    weight, x, values = make(30, 24), make(12, 24), make(40, 24)
    index, rows = torch.randint(0, 30, (5, 8)), torch.randint(0, 12, (40,))

    def fn(weight, x, values):
        h = torch.nn.functional.embedding(index, weight, padding_idx=3)
        return h.sin(), x.index_add(0, rows, values * 2), x.index_put((rows,), values.exp(), accumulate=True)

    results = []
    for f in (fn, torch.compile(fn, backend="mlirfuse")):
        leaves = [v.clone().requires_grad_() for v in (weight, x, values)]
        out = f(*leaves)
        sum((o * o).sum() for o in out).backward()
        results.append([*out, *(v.grad for v in leaves)])
    for a, b in zip(*results):
        torch.testing.assert_close(a, b)
    for wrong in (4, -1):  # torch's do not count from the end
        with pytest.raises(IndexError):
            torch.compile(lambda x, i: x.index_add(0, i, x * 2), backend="mlirfuse")(
                make(4, 3), torch.tensor([0, 1, 2, wrong])
            )
