"""GPU kernels without a GPU: the PTX of several candidates of each segment, run by test support's emulator, against
NumPy on float64."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math

import ml_dtypes
import numpy as np
import pytest
from heuristics_override import fit
from hopper_emulator import HopperLaunch, TensorMap, parse
from math_harness import ulp_error
from ptx_emulator import EmulationError, Launch, Memory, launch_members, room_for

import mlirfuse
import mlirfuse.numpy as mnp
from mlirfuse.analysis import device_costs, joint, stages
from mlirfuse.core.device_properties import DeviceProperties
from mlirfuse.frontend.numpy.traced_array import TracedArray
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.dtypes import BY_NAME
from mlirfuse.lowering.foreach import GpuForeach
from mlirfuse.runtime import load
from mlirfuse.runtime.program import CompiledProgram, Program
from mlirfuse.schedule import targets
from mlirfuse.schedule.gpu import pointwise_choice
from mlirfuse.schedule.gpu.scheduler_list import SCHEDULERS
from mlirfuse.schedule.scheduler import SizedCall

BOUND = {
    "float16": 2e-3,
    "bfloat16": 1.6e-2,
    "float32": 1e-5,
    "float64": 1e-14,
}  # by the first input's type, relative to the largest result


def spanned(x: np.ndarray) -> np.ndarray:
    """The memory of ``x`` from its first to its last element, with what lies between."""
    if x.flags.c_contiguous or min(x.strides) < 0:
        return x
    count = sum((n - 1) * s for n, s in zip(x.shape, x.strides)) // x.itemsize + 1
    return np.lib.stride_tricks.as_strided(x, (count,), (x.itemsize,))


def run(program: Program, env: dict[str, int], params: tuple, inputs) -> list[np.ndarray]:
    """The program's outputs, computed by its kernels with these schedule parameters; what they do not write stays 0xFF,
    which is NaN. What is written over an argument begins as that."""
    inputs = list(map(spanned, inputs))
    target, slots = program.target, program.slots()
    module = target.write(program, params, slots)
    kernels = module.kernels
    code = parse(load.ptx_of(module.tiled(), target.properties.chip))
    compiled_program = CompiledProgram(params, module, slots, 0, None)
    program.add_plan(compiled_program)
    plan = program.plan(compiled_program, env)

    shapes = [tuple(sz.substitute(n, env) for n in value.shape) for value in program.outputs]
    outputs_bytes = [math.prod(shape) * value.dtype.bytes for shape, value in zip(shapes, program.outputs)]
    memory = Memory(room_for([x.nbytes for x in inputs] + outputs_bytes + [plan.workspace]))
    addresses = {}
    for position, data in zip(program.pointer_args, inputs):
        written = position in program.graph.aliases.values()
        addresses[slots.pointers[program.graph.args[position]]] = memory.allocate(data, writable=written)
    outputs = []
    for value, shape, nbytes in zip(program.outputs, shapes, outputs_bytes):
        if slots.pointers[value] not in addresses:
            addresses[slots.pointers[value]] = memory.allocate(np.full(nbytes, 0xFF, np.uint8), writable=True)
        outputs.append((addresses[slots.pointers[value]], shape, value.dtype.numpy))
    workspace = memory.allocate(np.full(max(plan.workspace, 1), 0xFF, np.uint8), writable=True)

    pointers = [addresses.get(slot, workspace) for slot in range(slots.workspace + 1)]
    for kernel in kernels:
        assert kernel.static_shared + kernel.dynamic_shared <= target.properties.shared_per_block
        if isinstance(kernel, GpuForeach):
            begin = next(slot for key, slot in slots.ints.items() if key[0] == "number" and key[1][0] == kernel.name)
            launch_members(code[kernel.name], memory, plan.ints[begin:], pointers, plan.ints)
            continue
        passed = []
        for kind, slot in kernel.passed:
            if kind == "pointer":
                passed.append(addresses[slot])
            elif kind == "temporary":
                passed.append(workspace + plan.ints[slot])
            elif kind == "tensor_map":
                base, at = slot.place
                address = addresses[at] if base == "pointer" else workspace + plan.ints[at]
                dims = plan.ints[slot.dims[0]], plan.ints[slot.dims[1]]
                passed.append(TensorMap(address, dims, plan.ints[slot.pitch], slot.box, BY_NAME[slot.dtype].bytes))
            else:
                passed.append(plan.ints[slot])
        grid = plan.ints[slots.size(kernel.grid)]
        launch = HopperLaunch(
            code[kernel.name], memory, passed, grid, kernel.threads, kernel.dynamic_shared, kernel.cluster
        )
        launch.run()
    return [memory.fetch(*output) for output in outputs]


def check(
    fn,
    *inputs,
    candidates: int = 4,
    chip: str = "sm_90",
    only=lambda params: True,
    changed=lambda params: params,
    bound: float | None = None,
    donated: bool | None = False,
) -> None:
    """Runs ``fn`` with the first ``candidates`` of each segment that are ``only`` such ones, ``changed``, the other
    segments as chosen, and compares with NumPy. ``donated``: results are written over arguments, at least one is
    (None: where that is possible)."""
    lowered = mlirfuse.jit(fn, target=f"cuda:{chip}").lower(*inputs)
    target = targets.of(f"cuda:{chip}")
    env = lowered.env
    graph = lowered.segmented()
    graph.donated = set(range(len(graph.args))) if donated is not False else set()
    program = Program(graph, target, env)
    assert graph.aliases or not donated
    expected = fn(*[x.astype(np.float64) if x.dtype.name in BOUND else x for x in inputs])
    expected = expected if isinstance(expected, tuple) else (expected,)
    chosen = [SCHEDULERS.choose(step.analysis, SizedCall(env, {}, target.properties)) for step in program.steps]
    for at, step in enumerate(program.steps):
        given = SCHEDULERS.candidates(step.analysis, SizedCall(env, {}, target.properties))
        found = dict.fromkeys(map(changed, filter(only, given)))
        several = list(itertools.islice(found, candidates))
        assert several, "no such candidate"
        for params in several:
            results = run(program, env, (*chosen[:at], params, *chosen[at + 1 :]), inputs)
            for got, want in zip(results, expected, strict=True):
                limit = BOUND.get(inputs[0].dtype.name, 0) if bound is None else bound
                compare(got, np.asarray(want), limit, str(params))


def results_of(fn, *inputs) -> list[np.ndarray]:
    """What ``fn``'s kernels make of ``inputs``, scheduled as chosen."""
    lowered = mlirfuse.jit(fn, target="cuda:sm_90").lower(*inputs)
    program = Program(lowered.segmented(), targets.of("cuda:sm_90"), lowered.env)
    return run(program, lowered.env, program.parameters(lowered.env, {}), inputs)


def compare(got: np.ndarray, want: np.ndarray, bound: float, which: str) -> None:
    """Integers are the same, floats within the bound, NaN and infinities at the same places."""
    assert got.shape == want.shape, which
    if want.dtype.kind != "f":
        assert np.array_equal(got, want), which
        return
    got = got.astype(np.float64)
    finite = np.isfinite(want)
    np.testing.assert_array_equal(np.where(finite, 0, want), np.where(np.isfinite(got), 0, got), which)
    if finite.any():
        assert np.abs(got[finite] - want[finite]).max() <= bound * np.abs(want[finite]).max(), which


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def softmax_of_columns(x):
    e = np.exp(x - x.max(0))
    return e / e.sum(0)


def columns_standardized(x):
    return (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5)


def sum_and_variance(x):
    return x.sum(-1) + x.var(-1)


def layer_norm(x, weight, bias):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + 1e-5) * weight + bias


def centre(x):
    return x - x.mean(-1, keepdims=True)


def norm_backward(g, x):
    return g - x * (g * x).sum(-1, keepdims=True), (g * x).sum(0)


def normal(*shape, dtype=np.float32):
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize(
    "fn, inputs",
    [
        (softmax, [normal(2, 19456)]),
        (softmax, [normal(3, 20004)]),  # the last turn is not for all threads
        (sum_and_variance, [normal(2, 17408)]),
        (layer_norm, [normal(2, 19456), normal(19456), normal(19456)]),
        (layer_norm, [normal(2, 40008, dtype=np.float16), *[normal(40008, dtype=np.float16)] * 2]),
        (centre, [normal(1, 37888, dtype=np.float16)]),
    ],
)
def test_long_rows(fn, inputs):
    """Rows in shared memory, which are the first candidates; in some of them the vectors are a number that no unrolling
    divides."""
    check(fn, *inputs, candidates=9)


def shifted(params):
    return getattr(params, "unaligned", False)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int8])
@pytest.mark.parametrize("columns", [17, 1025, 4099, 6002])
def test_rows_that_begin_at_any_element(columns, dtype):
    """By vectors that begin before the row: what of them is outside is in no result, and is not read where nothing
    lies."""
    x = (normal(5, columns) * 20).astype(dtype)
    x[0, -1] = x[2, 0] = 100  # beside the first and the last of the rows between them
    check(lambda x: (x.argmax(-1), x.sum(-1)), x, only=shifted)
    if dtype is not np.int8:
        w, b = normal(columns, dtype=dtype), normal(columns, dtype=dtype)
        for fn, inputs in (
            (softmax, [x]),
            (sum_and_variance, [x]),
            (layer_norm, [x, w, b]),
            (lambda x, w: w * x - (w * x).mean(-1, keepdims=True), [x, w]),
        ):
            check(fn, *inputs, only=shifted, candidates=3)


def test_rows_that_begin_at_any_element_of_1024_threads():
    x, w = normal(3, 40_009, dtype=np.float16), normal(40_009, dtype=np.float16)

    def large(p):
        return p._replace(tx=1024, cluster=1, vectors_per_thread=5, unmasked=(40_009 - 8) // (1024 * 8))

    check(layer_norm, x, w, w, only=shifted, changed=large, candidates=1)


@pytest.mark.parametrize("inputs", [
    [normal(3, 2, 2049), normal(2049, dtype=np.float16)],  # weights of another type
    [normal(3, 2, 2049, dtype=np.float16), normal(2049)],
    [normal(3, 2, 2049, dtype=np.float16), (normal(2049) * 5).astype(np.int8)],
    [normal(3, 2, 2049), normal(3, 2, 2049, dtype=np.float16)],
    [normal(3, 2, 2049), normal(2, 1)],
])  # fmt: skip
def test_rows_that_begin_at_any_element_beside_others(inputs):
    check(lambda x, y: x * y - (x * y).max(-1, keepdims=True), *inputs, only=shifted, candidates=3)


def test_elements_of_rows_that_begin_at_any_element():
    """What is read of a row once more, at an index, is no vector; nor is what lies along the rows otherwise."""
    x, at = normal(6, 1031, dtype=np.float16), np.array([[0], [1030], [5], [7], [8], [1029]])

    def cross_entropy(x, at):
        top = x.max(-1, keepdims=True)
        return np.log(np.exp(x - top).sum(-1)) + (top - np.take_along_axis(x, at, -1))[:, 0]

    check(cross_entropy, x, at, only=shifted, candidates=3)
    check(lambda x: x.max(-1) + x[:, 3], x, only=shifted, candidates=3)
    joined = lambda x, a, b: x * np.concatenate([a.reshape(2048), b.reshape(2051)]) - x.max(-1, keepdims=True)  # noqa: E731
    check(joined, normal(3, 4099), normal(2, 1024), normal(7, 293), only=shifted, candidates=3)


@pytest.mark.parametrize("columns", [770, 4099, 17_408])
def test_variances_of_large_numbers(columns):
    """A variance past the largest float32 is infinite, not NaN, also where the sum of the numbers is past it."""
    x = (normal(2, columns) + np.array([[0], [100]], np.float32)) * np.float32(1e35 if columns < 10_000 else 1e36 / 17)
    lowered = mlirfuse.jit(lambda x: x.var(1), target="cuda:sm_90").lower(x)
    program = Program(lowered.segmented(), targets.of("cuda:sm_90"), lowered.env)
    (step,) = program.steps
    for params in itertools.islice(
        SCHEDULERS.candidates(step.analysis, SizedCall(lowered.env, {}, program.target.properties)), 6
    ):
        (variance,) = run(program, lowered.env, (params,), [x])
        assert np.isposinf(variance).all(), params


def test_every_form_of_long_rows():
    """Also in registers, whole and with values computed again, and in loops."""
    check(softmax, normal(2, 19456), candidates=21)


def test_short_rows():
    check(softmax, normal(5, 300), candidates=6)


def test_another_architecture():
    check(softmax, normal(5, 300), candidates=3, chip="sm_80")


@pytest.mark.parametrize("fn", [lambda x: x.sum(-1), lambda x: x.max(-1)])
def test_reduced_rows(fn):
    check(fn, np.abs(normal(5, 7000)), candidates=14)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("fn", [
    lambda x, y: x[1:] - x[:-1],
    lambda x, y: x[::-1] + x,
    lambda x, y: np.concatenate([x, 2 * y, x * x], 0),
    lambda x, y: np.concatenate([x, np.zeros_like(y)], 0) + 1,
    lambda x, y: np.stack([x, x * 2, x + 1], 1),
    lambda x, y: np.concatenate([y, x], 0)[3:] * 2,
    lambda x, y: np.pad(x, ((1, 2), (0, 0))),
    lambda x, y: np.roll(x, 3, 0),
    lambda x, y: np.concatenate([x[None], x[None, ::-1]], 0)[:, 1:, :16],
])  # fmt: skip
def test_vectors_where_rows_are_cut_or_joined(fn, dtype, monkeypatch):
    """At odd rows: where along a dimension something begins says nothing of vectors along another one. With the vectors
    that larger tensors have."""
    fit(monkeypatch, "pointwise", least_bytes=16)
    wide = lambda p: p.access.lanes * np.dtype(dtype).itemsize == 16 == max(p.access.aligns)  # noqa: E731
    check(fn, normal(5, 24, dtype=dtype), normal(2, 24, dtype=dtype), only=wide, candidates=2)


@pytest.mark.parametrize("fn, shapes", [
    (lambda x: x[:, 3:27] * 2, [(5, 32)]),
    (lambda x: np.roll(x, 3, 1), [(5, 24)]),
    (lambda x: np.pad(x, ((0, 0), (3, 5))), [(5, 24)]),
    (lambda x, y: np.concatenate([x, y], 1), [(5, 3), (5, 13)]),
    (lambda x: (x + x.T)[1:25], [(32, 32)]),
    (lambda x: (x[1:] * 2).reshape(-1)[3:91], [(5, 24)]),
    (lambda x, y: np.multiply(np.concatenate([x.T, y.T], 0), 1, order="C"), [(24, 5), (24, 3)]),
    (lambda x: (x[:, 1:17] + x[:, :16])[1:], [(5, 24)]),
])  # fmt: skip
def test_no_vector_crosses_a_cut_along_itself(fn, shapes):
    check(fn, *[normal(*shape) for shape in shapes])


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("fn, shapes", [
    (lambda x: x[1:-1, :-2] + x[1:-1, 2:] + x[:-2, 1:-1] + x[2:, 1:-1] - 4 * x[1:-1, 1:-1], [(13, 41)]),
    (lambda x, y: np.tanh(np.concatenate([x, y], -1)), [(11, 23), (11, 16)]),
    (lambda x: np.pad(x, ((0, 0), (3, 6))), [(11, 32)]),
    (lambda x: np.maximum(x[:, ::2, ::2], x[:, 1::2, 1::2]), [(3, 10, 38)]),
])  # fmt: skip
def test_several_rows_of_a_thread(fn, shapes, dtype):
    """Rows that are shifted or joined at odd elements: one below the other in a thread, whole tiles and parts of
    them."""

    def several(p, ty, rows):
        aligns = (np.dtype(dtype).itemsize,) * len(p.access.aligns)
        access = p.access._replace(lanes=1, aligns=aligns, multiples=frozenset())
        return pointwise_choice.tiling(access, 32, ty, 1, rows)

    for ty, rows in ((1, 8), (2, 4)):
        changed = functools.partial(several, ty=ty, rows=rows)
        check(fn, *[normal(*shape, dtype=dtype) for shape in shapes], candidates=1, changed=changed)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_norms_whose_scale_is_a_batchs(dtype):
    def adaptive(x, scale, shift):
        u = x.astype(np.float32)
        d = u - u.mean(-1, keepdims=True)
        y = d / np.sqrt((d * d).mean(-1, keepdims=True) + 1e-5)
        return (y * (1 + scale.astype(np.float32)[:, None]) + shift.astype(np.float32)[:, None]).astype(x.dtype)

    check(adaptive, *[normal(*shape, dtype=dtype) for shape in ((2, 5, 352), (2, 352), (2, 352))], candidates=6)


@pytest.mark.parametrize("shape", [(300, 257), (300, 264), (1000, 12)])
def test_reduced_columns(shape):
    check(lambda x: x.sum(0), np.abs(normal(*shape)), candidates=3)
    check(lambda x: x.sum(0), np.abs(normal(*shape)), only=lambda params: params.split > 1, candidates=2)


def test_all_reduced():
    check(lambda x: x.sum(), np.abs(normal(1 << 16)), candidates=18)


@pytest.mark.parametrize("count", [1 << 16, 70_004])
def test_all_reduced_in_two_kernels(count):
    check(lambda x: x.sum(), np.abs(normal(count)), only=lambda params: params.split > 1)


def test_argmax_with_nan_and_infinities():
    x = normal(3, 4096)
    x[0] = -np.inf
    x[1, [70, 3000]] = np.nan
    x[2, ::2] = -np.inf
    check(lambda x: x.argmax(-1), x, candidates=14)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8])
def test_transposes(dtype):
    x = np.random.default_rng(0).integers(-100, 100, (72, 136)).astype(dtype)
    check(lambda x: x.T.copy(), x)


def one_hot_beside(x, y):
    """Rows of channels as channels of rows, each element by whether it is that of the label ``y``."""
    chosen = np.arange(x.shape[-1])[None, :, None] == y[:, None, :]
    return (x.transpose(0, 2, 1) * np.where(chosen, 3, 1)).copy()


def gathered_rows(x, y):
    """Rows at computed indices, as columns, scaled by ``y``."""
    at = np.arange(y.shape[-1], dtype=np.int32) ** 2 >> 9
    return ((x[:, at] * 2).transpose(0, 2, 1) * y[:, None, :]).copy()


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("fn, rows", [(one_hot_beside, 1), (gathered_rows, 2)])
def test_transposes_where_positions_are_used(fn, rows, dtype):
    """Axes whose index is used, and tensors that vary along the rows alone, leave it to transpose tiles."""
    x = np.random.default_rng(0).integers(-100, 100, (2, 80, 54)).astype(dtype)
    y = np.random.default_rng(1).integers(0, 54, (2, 80 * rows)).astype(np.int64 if rows == 1 else dtype)
    (params,) = kernels_of(fn, x, y)
    assert params.scheduler == "transpose"
    check(fn, x, y)


def test_what_is_read_elsewhere_too_is_not_transposed_in_order():
    x = np.random.default_rng(0).integers(-100, 100, (72, 72)).astype(np.float32)
    for fn in (
        lambda x: x.T * 2 + x,
        lambda x: x.T * 2 + x.T[::-1],
        lambda x: (x.T * 2)[:, ::-1] + x.T,
        lambda x: x.T * 2 + np.roll(x, 1, 0),
    ):
        check(lambda x, fn=fn: fn(x).copy(), x)


def beside_its_transpose(y):
    return y, np.swapaxes(y, -1, -2).copy()


def writes_along_both(params) -> bool:
    return params.scheduler == "transpose" and params.own.along_both


def kernels_of(fn, *inputs) -> list:
    """The chosen parameters of each of ``fn``'s kernels, those of stages one by one."""
    lowered = mlirfuse.jit(fn, target="cuda:sm_90").lower(*inputs)
    program = Program(lowered.segmented(), targets.of("cuda:sm_90"), lowered.env)
    chosen = program.parameters(lowered.env, {})
    return [stage for p in chosen for stage in (p.own.schedules if p.scheduler == "multi_stage" else (p,))]


@pytest.mark.parametrize("shape", [(72, 136), (67, 131), (3, 72, 88)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8])
def test_results_beside_their_transposes(dtype, shape):
    """One kernel reads once, and writes along both of two loops."""
    x = np.random.default_rng(0).integers(-60, 60, shape).astype(dtype)
    check(lambda x: beside_its_transpose(x * 2), x, only=writes_along_both)
    check(lambda x: beside_its_transpose(x > 2), x, only=writes_along_both)


def test_several_results_beside_transposes():
    check(lambda x: ((x * 2).T.copy(), x * 3, (x - 1).T.copy()), normal(72, 136), only=writes_along_both)
    inputs = normal(72, 136), normal(72, 1), normal(136)
    check(lambda x, s, b: beside_its_transpose(x * s + b), *inputs, only=writes_along_both, candidates=6)


def scaled(x, axis):
    return x * (448 / np.maximum(np.abs(x).max(axis, keepdims=True), 1e-12))


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_normalizations_beside_their_transposes(monkeypatch, axis):
    """Rows and columns leave results in two orders to a kernel of its own, which transposes tiles."""
    fit(monkeypatch, "transpose", stages=1)
    x = normal(72, 136)
    fn = lambda x: beside_its_transpose(scaled(x, axis))  # noqa: E731
    assert any(map(writes_along_both, kernels_of(fn, x)))
    check(fn, x)


def test_large_normalizations_store_no_element_alone():
    x = np.broadcast_to(ml_dtypes.bfloat16(0), (2048, 2048)).copy()
    for axis in (None, 0, 1):
        reduction, *_, tiles = kernels_of(lambda x, axis=axis: beside_its_transpose(scaled(x, axis)), x)
        assert writes_along_both(tiles) and tiles.own.read_lanes == tiles.access.lanes == 8
        assert reduction.scheduler != "transpose"


def test_transposes_load_the_scales_of_columns_before_the_barrier(monkeypatch):
    """Threads do not wait for the tile, and for what all of a vector needs after it."""
    fn = lambda x: scaled(x, 0).T.copy()  # noqa: E731
    x = np.zeros((2048, 2048), ml_dtypes.bfloat16)
    ptx = mlirfuse.jit(fn, target="cuda:sm_90").lower(x).as_text("ptx")
    (tiles,) = [
        kernel for kernel in ptx.split(".entry ") if kernel.count("bar.sync") == 1 and "ld.shared.b16" in kernel
    ]
    before, after = tiles.split("bar.sync")
    assert before.count("ld.global.b32") == 2
    assert "ld.global" not in after
    fit(monkeypatch, "transpose", stages=1)
    check(fn, normal(72, 136))


@pytest.mark.parametrize("name, dtype", [("e4m3fn", ml_dtypes.float8_e4m3fn), ("e5m2", ml_dtypes.float8_e5m2)])
def test_float8(name, dtype):
    """The hardware's conversion, of an odd number too, gives the bits of the nearest number, the largest for larger
    ones; of NaNs a NaN with their sign."""

    def encoded(x):
        return TracedArray(x._trace, x._trace.emit(f"encode_{name}", x.value))

    edges = np.array([0, 447.9, 463.9, 464, 480, 57344, 61440, 1e30, np.inf, np.nan, 2**-9, 2**-10, 2**-17], np.float32)
    random = np.random.default_rng(0).integers(0, 2**32, 4001, np.uint32).view(np.float32)
    x = np.concatenate([edges, -edges, random])
    lowered = mlirfuse.jit(encoded, target="cuda:sm_90").lower(x)
    assert f"cvt.rn.satfinite.{name.removesuffix('fn')}x2.f32" in lowered.as_text("ptx")
    assert "satfinite" not in mlirfuse.jit(encoded, target="cuda:sm_80").lower(x).as_text("ptx")
    largest = np.float32(ml_dtypes.finfo(dtype).max)
    with np.errstate(invalid="ignore"):
        want = np.clip(x, -largest, largest).astype(dtype)
    for some in (x, x[:-1]):
        (got,) = results_of(encoded, some)
        nan, bits = np.isnan(some), want[: some.size].view(np.uint8)
        assert np.array_equal(got[~nan], bits[~nan])
        assert np.isnan(got[nan].view(dtype).astype(np.float32)).all()
        assert np.array_equal(got[nan] >> 7, np.signbit(some[nan]))


def test_pointwise():
    check(lambda x, y: x * y + 1, normal(33, 70), normal(70))


def test_pairs_in_batches():
    check(lambda x: x[:, :, None] - x[:, None] * 2, normal(3, 20))
    check(lambda x: (x[:, :, None] * x[:, None]).sum(-1), normal(3, 40))


@pytest.mark.parametrize("shape", [(10,), (4, 7), (3, 4, 6), (300,)])
def test_every_element_is_one_threads(shape):
    """Fewer elements than a block has threads: the emulator refuses two threads that store the same one."""
    check(lambda x, b: x + b, normal(*shape), normal(*shape[-1:]), candidates=8)


@pytest.mark.parametrize("prefetch", [True, False])
@pytest.mark.parametrize("columns", [64, 70, 71])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_what_is_read_after_the_reductions(dtype, columns, prefetch):
    """Loaded before them or not: weights of all sizes of vectors, and another tensor of rows."""

    def scaled(x, y, weight, small, mask):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weight * small + y * mask

    small = np.random.default_rng(1).integers(-9, 9, columns).astype(np.int8)
    inputs = (
        normal(6, columns, dtype=dtype),
        normal(6, columns, dtype=dtype),
        normal(columns, dtype=dtype),
        small,
        small > 0,
    )
    check(scaled, *inputs, candidates=3, only=lambda params: getattr(params, "prefetch", None) is prefetch)


def whole_means(x):
    mean = x.mean(-1, keepdims=True)
    return mean.astype(np.int32), (x - mean).astype(np.int32)


@pytest.mark.parametrize("columns", [3, 70, 257, 1000])
def test_whole_means_are_exact(columns):
    """The emulator's reciprocal is not: the quotient is corrected by what it leaves."""
    x = np.random.default_rng(2).integers(-50, 50, (64, columns)).astype(np.float32)
    x[:, 0] -= x.sum(-1) % columns
    check(whole_means, x)


@pytest.mark.parametrize("columns", [70, 1000, 3000, 12_000])
def test_equal_elements_have_no_variance(columns):
    """However large they are, but for what an ulp of the mean makes: weights that do not add up to 1 would make more of
    its square."""

    def moments(x):
        mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        return variance, (x - mean) / np.sqrt(variance + 1e-5)

    x = np.full((2, columns), 10_000, np.float32)
    ulp = float(np.spacing(x[0, 0]))
    lowered = mlirfuse.jit(moments, target="cuda:sm_90").lower(x)
    program = Program(lowered.segmented(), targets.of("cuda:sm_90"), lowered.env)
    (step,) = program.steps
    for params in itertools.islice(
        SCHEDULERS.candidates(step.analysis, SizedCall(lowered.env, {}, program.target.properties)), 3
    ):
        variance, normalized = run(program, lowered.env, (params,), [x])
        assert variance.max() <= 1.01 * ulp**2 and np.abs(normalized).max() <= 1.01 * ulp / 1e-5**0.5, params


def corrected_variance(x, axis):
    """As ``torch.var`` is expanded: by the corrected two-pass algorithm."""
    apart = x - x.mean(axis, keepdims=True)
    rest, count = apart.sum(axis), x.shape[axis]
    excess = np.minimum(rest * (rest / count), np.finfo(np.float32).max)
    return np.maximum((apart * apart).sum(axis) - excess, 0) / count


@pytest.mark.parametrize(
    "shape, axis, candidates",
    [((5, 19), 1, 6), ((5, 71), 1, 6), ((3, 257), 1, 6), ((3, 1000), 1, 6), ((2, 3001), 1, 6), ((2, 12_000), 1, 6),
     ((1, 40_008), 1, 3), ((19, 33), 0, 6), ((257, 8), 0, 6), ((1000, 5), 0, 6), ((3001, 4), 0, 6)],
)  # fmt: skip
def test_corrected_variances_of_equal_elements_are_0(shape, axis, candidates):
    """Exactly, whatever their sum's rounding: callers compare with 0 and divide by what is left. That of large numbers
    is infinite, not NaN."""

    def variance(x):
        return corrected_variance(x, axis)

    x = np.broadcast_to(np.expand_dims(normal(shape[1 - axis]) * 100, axis), shape).copy()
    lowered = mlirfuse.jit(variance, target="cuda:sm_90").lower(x)
    assert "exact_zero = true" in lowered.as_text("segmented")
    program = Program(lowered.segmented(), targets.of("cuda:sm_90"), lowered.env)
    for k, step in enumerate(program.steps):
        sized = SizedCall(lowered.env, {}, program.target.properties)
        chosen = [SCHEDULERS.choose(other.analysis, sized) for other in program.steps]
        for params in itertools.islice(SCHEDULERS.candidates(step.analysis, sized), candidates):
            (found,) = run(program, lowered.env, (*chosen[:k], params, *chosen[k + 1 :]), [x])
            assert not found.any(), params
            large = normal(*shape) * np.float32(1e30)
            (found,) = run(program, lowered.env, (*chosen[:k], params, *chosen[k + 1 :]), [large])
            assert np.isposinf(found).all(), params
    check(variance, normal(*shape) + 3, candidates=2)


def quotients(x, divisor):
    """Exact ones, as integers: an inverse that is off by a bit makes others of them."""
    return np.floor(x / divisor).astype(np.int8), (x / divisor).astype(np.int16)


@pytest.mark.parametrize("along", [0, 1])
@pytest.mark.parametrize("columns", [64, 71])
def test_quotients_of_half_types_that_are_not_rounded(along, columns):
    divisor = np.expand_dims(np.arange(1, (columns if along else 64) + 1, dtype=np.float16), 1 - along)
    x = np.float16(8) * divisor * np.ones((64, columns), np.float16)
    check(quotients, x, divisor)
    if columns == 71:  # the emulator has no maxima of pairs
        check(lambda x: np.floor(x / x.max(0)).astype(np.int8), x)
        check(lambda x: np.floor(x / x.max(-1, keepdims=True)).astype(np.int8), x)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_quotients_of_special_values(dtype):
    places = np.array([0, 0.3, 1, 3, np.inf, np.nan])
    divisor = np.concatenate([places, -places]).astype(dtype)[:, None]
    x = np.concatenate([np.linspace(-4, 4, 26), places]).astype(dtype) * np.ones_like(divisor)
    with np.errstate(all="ignore"):
        check(lambda x, d: x / d, x, divisor, candidates=1)
        (found,) = results_of(lambda x, d: x / d, x, divisor)
        number = ~np.isnan(found)
        assert np.array_equal(np.signbit(found)[number], np.signbit(x / divisor)[number])


@pytest.mark.parametrize("number", [3, -3000, 0.1, 2.0**-126, 2.0**-130, 3e38, 0, np.inf, np.nan])
def test_half_types_over_constants(number):
    """A multiplication by the inverse where that is a normal number: as near as the rounding to a half type, ties of
    which may differ."""
    x = np.arange(0, 2**16, 7, dtype=np.uint32).astype(np.uint16).view(ml_dtypes.bfloat16).reshape(-1, 3)
    fn = lambda x: (x.astype(np.float32) / np.float32(number)).astype(x.dtype)  # noqa: E731
    with np.errstate(all="ignore"):
        (found,) = results_of(fn, x)
        want = x.astype(np.float64) / np.float64(np.float32(number))
        rounded = want.astype(x.dtype)
    assert np.array_equal(np.isnan(found), np.isnan(rounded))
    apart = np.abs(found.view(np.int16).astype(np.int32) - rounded.view(np.int16))[~np.isnan(rounded)]
    assert apart.max(initial=0) <= 1 and (apart > 0).sum() <= 1e-2 * apart.size
    if 2.0**-126 <= abs(number) <= 2.0**126:
        assert "div." not in mlirfuse.jit(fn, target="cuda:sm_90").lower(x).as_text("ptx")


def test_positions_of_64_bits():
    """A position is compared in 32 bits with a number in 64, which may be no position but have those bits."""
    at = np.array([5, -1, 2**32 + 5, 63, -(2**32) + 5, 2**31, 64, -(2**63)])
    check(lambda x, at: x * (np.arange(x.shape[1]) == at[:, None]), normal(len(at), 64), at)
    check(lambda x, at: x + (at[:, None] != np.arange(x.shape[1])).astype(np.float32), normal(len(at), 64), at)


def test_softplus_of_all_floats():
    """Within 3 ulp, subnormal results included, where the hardware's exponential is rounded."""
    special = np.array([0, -0.0, np.inf, -np.inf, np.nan, -87.4, -103.9, -104.1, -150, 3e38, -3e38, 1e-45], np.float32)
    every = np.arange(0, 2**32, 400_009, dtype=np.uint64).astype(np.uint32).view(np.float32)
    x = np.concatenate([special, every, np.linspace(-104, 20, 20_000, dtype=np.float32)])
    (found,) = results_of(mnp.softplus, x)
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64)
        error = ulp_error(found, np.maximum(wide, 0) + np.log1p(np.exp(-np.abs(wide))))
    assert error.max() <= 3, (error.max(), x[error.argmax()])


@pytest.mark.parametrize(
    "fn, inputs",
    [
        (lambda x, b: x * b + 1, [normal(40, 71), normal(71)]),
        (lambda x, b: x * b + 1, [normal(40, 71, dtype=np.float16), normal(71, dtype=np.float16)]),
        (lambda x, b: x * b + 1, [normal(700, 3), normal(3)]),  # a vector spans rows
        (lambda x, b: x * b, [normal(5, 24, 7), normal(5, 1, 7)]),  # rows of rows
        (lambda x, c, b: x * c + b, [normal(56, 33), normal(56, 1), normal(33)]),
        (lambda x, y, b: (x - b, (x > y).astype(np.int8)), [normal(64, 19), normal(64, 19), normal(19)]),
        (lambda x, b: x.reshape(16, 3, 19) + b, [normal(48, 19), normal(3, 19)]),
    ],
)
def test_vectors_across_rows(fn, inputs):
    check(fn, *inputs, only=lambda p: p.own.row_segments and p.access.lanes > 1, candidates=4)


@pytest.mark.parametrize("shape", [(512, 6), (1024, 33), (2048, 70)])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_rows_that_are_folded_and_written(shape, dtype, monkeypatch):
    """What a row's elements become is written by the vectors of folded rows."""
    fit(monkeypatch, "columns", coalesced_many=0)
    x = normal(*shape, dtype=dtype)
    check(
        lambda g, x: (g * np.tanh(x), (g * np.tanh(x)).sum(0)), x[::-1].copy(), x, only=lambda p: p.coalesced_rows > 1
    )


@pytest.mark.parametrize("order", "CF")
def test_rows_are_folded_where_they_are_written_one_behind_the_other(order):
    """In the other order, a kernel of its own writes them by tiles."""

    def fn(x, out):
        out[:] = x * 2
        return x.sum(0)

    args = np.empty((20_000, 2730), np.float16), np.empty((20_000, 2730), np.float16, order=order)
    lowered = mlirfuse.jit(fn, target="cuda:sm_90").lower(*args)
    (params,) = Program(lowered.segmented(), targets.of("cuda:sm_90"), lowered.env).parameters(lowered.env, {})
    reduces, *writes = params.own.schedules if params.scheduler == "multi_stage" else (params,)
    assert reduces.coalesced_rows > 1 and [stage.own.tile > 1 for stage in writes] == [True] * (order == "F")


@pytest.mark.parametrize("split", [3, 5, 7, 12, 21, 37])
@pytest.mark.parametrize("fold", [False, True])
def test_any_number_of_parts(split, fold, monkeypatch):
    if fold:
        fit(monkeypatch, "columns", coalesced_many=0)
    x = normal(1024, 33 if fold else 32)
    wanted = lambda p: (p.coalesced_rows > 1) == fold and not p.unaligned and p.cluster == 1  # noqa: E731
    check(
        lambda x: (np.tanh(x), np.tanh(x).sum(0), x.max(0)),
        x,
        only=wanted,
        changed=lambda p: p._replace(split=split, ty=8, rows_per_thread=2),
        candidates=1,
    )


@pytest.mark.parametrize("shape, dtype", [((128, 33), np.float16), ((64, 35), np.float32), ((144, 31), np.float16)])
def test_few_odd_rows_that_are_folded(shape, dtype, monkeypatch):
    """As they are of many elements, done on few."""
    fit(monkeypatch, "columns", coalesced_many=0)
    check(lambda x: (x.sum(0), x.max(0)), normal(*shape, dtype=dtype), only=lambda p: p.coalesced_rows > 1)


@pytest.mark.parametrize("shape, dtype, split", [
    ((24, 999), np.float16, False),
    ((128, 999), np.float16, False),
    ((128, 999), np.float16, True),
    ((64, 122), np.float32, False),
    ((64, 122), np.float32, True),
    ((20, 501), np.float32, False),
    ((16, 1978), np.float16, False),  # every fourth row begins alike
    ((16, 1, 487), np.int8, False),
])  # fmt: skip
def test_rows_of_a_fold_that_meet_in_a_block(shape, dtype, split):
    """Whichever columns a thread's vectors begin before, with several rows a thread and one, in all of a column and in
    parts."""
    some = lambda p: p.unaligned and (p.split > 1) == split  # noqa: E731
    x = (np.arange(math.prod(shape)) % 23 - 11).astype(dtype).reshape(shape)
    check(lambda x: x.sum(0), x, only=some, candidates=6)
    if dtype is not np.int8:  # the emulator has no maxima of pairs
        check(lambda x: (x.var(0), x.max(0) * 2), x, only=some, candidates=3)
        check(lambda x, y: ((x * y).sum(0, keepdims=True) / 4, (x < 3).all(0)), x / 4, x, only=some, candidates=2)


@pytest.mark.parametrize("shape, dtype, split", [
    ((3, 64, 59), np.float32, False),
    ((2, 128, 123), np.float32, True),
    ((2, 2, 128, 119), np.float16, False),
    ((3, 256, 247), np.float16, True),
])  # fmt: skip
def test_columns_above_each_other_meet_in_a_block(shape, dtype, split):
    some = lambda p: p.unaligned and (p.split > 1) == split  # noqa: E731
    x = (np.arange(math.prod(shape)) % 23 - 11).astype(dtype).reshape(shape)
    check(lambda x: x.sum(-2), x, only=some, candidates=6)
    check(lambda x, y: ((x * y).sum(-2, keepdims=True) / 4, (x < 3).all(-2)), x / 4, x, only=some, candidates=2)


def test_columns_above_each_other_whose_rows_begin_differently():
    x = normal(3, 61, 45)
    check(lambda x: x.sum(1), x, only=lambda p: not p.unaligned)


@pytest.mark.parametrize("rows", [17, 61, 64, 95])
@pytest.mark.parametrize("split", [1, 4])
def test_rows_left_over_of_a_turn(rows, split):
    """Fewer than a thread has under way, none, and of parts."""
    changed = lambda p: p._replace(tx=8, ty=2, rows_per_thread=8, split=split, cluster=1)  # noqa: E731
    check(
        lambda x: (x.sum(0), x.max(0)),
        normal(rows, 40),
        only=lambda p: not p.persistent,
        candidates=1,
        changed=changed,
    )


@pytest.mark.parametrize("fn, inputs", [
    (columns_standardized, [normal(700, 72)]),
    (columns_standardized, [normal(1500, 40, dtype=np.float16)]),
    (softmax_of_columns, [normal(333, 41)]),
    (softmax_of_columns, [normal(700, 72, dtype=np.float16)]),
    (lambda x: x - x.mean(1, keepdims=True) + x.max(1, keepdims=True), [normal(2, 700, 16)]),
    (lambda x, w, r: ((x - x.mean(0)) * w + r, x.mean(0), (x * r).sum(0)), [normal(500, 40), normal(40), normal(500, 1)]),
    (lambda x, y: (x - x.mean(0)) * y, [normal(400, 24), normal(400, 24)]),
])  # fmt: skip
@pytest.mark.parametrize("several", [False, True])
def test_columns_in_shared_memory(fn, inputs, several):
    """Of a block and of a cluster."""
    check(
        fn,
        *inputs,
        only=lambda p: getattr(p, "scheduler", "") == "columns" and p.stages and (p.cluster > 1) == several,
        candidates=2,
    )


@pytest.mark.thorough
def test_a_row_after_the_other_with_a_result_each():
    """One thread of a warp stores a row's result while the others go on to the next row's shuffles, where they wait for
    it."""
    check(lambda x: (x.sum(1), x.sum(0)), normal(700, 128))


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_positions_along_two_axes(dtype):
    """As where an image is resized."""
    rows, columns = np.arange(40) // 2, np.minimum(np.arange(48) * 2 // 3, 23)
    check(lambda x, i, j: np.take(np.take(x, i, 1), j, 2) * 2, normal(3, 20, 24, dtype=dtype), rows, columns)


@pytest.mark.parametrize("donated", [False, True])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("shape", [(333, 200), (261, 264)])
def test_columns_that_are_written_while_they_are_summed(shape, dtype, donated):
    """The last threads along a row have no column, and what they load is the last one's, which others write over."""
    check(
        lambda g, x: (g * np.maximum(x, 0), (g * np.maximum(x, 0)).sum(0)),
        normal(*shape, dtype=dtype),
        normal(*shape, dtype=dtype),
        only=lambda p: getattr(p, "scheduler", "") == "columns" and p.split > 1,
        candidates=2,
        donated=donated,
    )


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.sum(0),
        lambda x: (x.max(0), x.var(0)),
        lambda x: (x.astype(np.float32), x.sum(0)),
        lambda x: x.argmax(0),
    ],
)
@pytest.mark.parametrize(
    "shape, dtype", [((700, 264), np.float32), ((1100, 512), np.float16), ((611, 520), np.float32)]
)
def test_columns_whose_parts_meet_in_a_cluster(fn, shape, dtype):
    check(
        fn,
        normal(*shape, dtype=dtype),
        only=lambda p: getattr(p, "scheduler", "") == "columns" and p.cluster > 1 and not p.stages,
        candidates=2,
    )


@pytest.mark.parametrize("shape, weights", [((64, 71), (71,)), ((3, 64, 35), (3, 1, 35)), ((2, 36, 42), (1, 42))])
@pytest.mark.parametrize("several", [1, 2])
def test_rows_in_parts(shape, weights, several, monkeypatch):
    """What large tensors of half types take, done on small ones."""
    fit(monkeypatch, "pointwise", coalesced=several * 8)
    inputs = [normal(*shape, dtype=np.float16), normal(*weights), normal(*weights)]
    check(
        lambda x, m, s: ((x - m) * s).astype(np.float16), *inputs, only=lambda p: p.own.row_segments > 1, candidates=1
    )


@pytest.mark.parametrize("fn, inputs", [
    (lambda x: np.exp(x), [normal(41 * 71)]),
    (lambda x, b: x * b, [normal(41, 71), normal(71)]),
    (lambda x, b: x[:, 1:] * b, [normal(41, 72), normal(71)]),
    (lambda x: x[2:] - x[1:-1] + x[:-2], [normal(41 * 71 + 2)]),
    (lambda x: x[:, 2:] - x[:, 1:-1] + x[:, :-2], [normal(41, 73)]),
    (lambda x: x[1:] - x[:-1], [normal(8, 5)[:, :3]]),  # fewer than a vector
])  # fmt: skip
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_lines_that_end_within_a_vector(fn, inputs, dtype, monkeypatch):
    """Vectors up to the last tile, and in this elements: of one row, and of rows that are folded to one."""
    fit(monkeypatch, "pointwise", spread=1 << 20)
    inputs = [x.astype(dtype) for x in inputs]
    check(fn, *inputs, only=lambda p: p.own.ragged, candidates=3)
    small = lambda p: p._replace(tx=32, vectors_per_thread=2)  # noqa: E731  # several tiles
    check(fn, *inputs, only=lambda p: p.own.ragged, candidates=1, changed=small)
    with_runs = lambda p: small(p).replaced(runs=1)  # noqa: E731
    check(fn, *inputs, only=lambda p: p.own.ragged, candidates=1, changed=with_runs)


def taps(x):
    n = x.shape[1] - 6
    return sum(w * x[:, k : n + k] for k, w in enumerate((0.5, 1, 2, 3, 2, 1, 0.25)))


def of_neighbours(x):
    return x[1:-1, 1:-1] * 4 - x[:-2, 1:-1] - x[2:, 1:-1] - x[1:-1, :-2] - x[1:-1, 2:]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("fn, shapes", [
    (lambda x: x[:, 3:-2] + 1, [(8, 40)]),
    (lambda x, y: np.concatenate([x, y[:, :-1]], 1) * 2, [(8, 40), (8, 40)]),
    (lambda x, y: np.stack([x, y * 2], 1), [(8, 41), (8, 41)]),
    (lambda x: np.pad(x, ((1, 2), (3, 4))) * 2, [(5, 40)]),
    (lambda x: np.roll(x, 3, 1) * 2, [(8, 41)]),
    (lambda x: x[:, ::-1][:, 1:-2] * 2, [(8, 42)]),
    (lambda x: x[1:-1:2, 1:-2:3] * 2, [(17, 42)]),
    (lambda x: x[:, :3] + 1, [(64, 9)]),  # a vector has several rows
    (lambda x: x[:, 1:] + np.arange(x.shape[1] - 1, dtype=x.dtype), [(8, 42)]),
    (lambda x, b: x[1:, 2:] * 2 + b, [(9, 43), (41,)]),
    (taps, [(8, 41)]),
    (of_neighbours, [(10, 43)]),
])  # fmt: skip
def test_shifted_rows_are_folded(fn, shapes, dtype):
    """Vectors run across the ends of rows that are shifted, joined and padded; where they do not, what overlaps is read
    once."""
    inputs = [normal(*shape, dtype=dtype) for shape in shapes]
    check(fn, *inputs, only=lambda p: p.own.row_segments == 1, candidates=3)
    check(
        fn, *inputs, only=lambda p: p.own.row_segments == 1, candidates=2, changed=lambda p: p.replaced(tx=32, runs=1)
    )


OVERLAPPING = [
    (taps, [(8, 128)]),  # vectors of two, at places that are known
    (taps, [(8, 512)]),  # across the ends of rows
    (taps, [(16, 1029)]),  # anywhere
    (lambda x: x[2:] - x[1:-1] + x[:-2], [(2914,)]),
    (lambda x: x[:, 1:-2] * 2 + x[:, 3:], [(8, 47)]),
    (lambda x, b: x[1:, 2:] * 2 + x[1:, 1:-1] + b, [(9, 48), (46,)]),
    (lambda x: x[:, 1:, 3:] * 2 - x[:, :-1, :-3], [(4, 9, 51)]),
    (lambda x: np.pad(x, ((1, 2), (3, 5)))[:, 2:] + np.pad(x, ((1, 2), (3, 5)))[:, :-2], [(8, 40)]),
    (of_neighbours, [(32, 66)]),
]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("fn, shape", [
    (lambda x: x + np.pad(x[:, 1:-1] + x[:, :-2], ((0, 0), (2, 0))), (64, 130)),
    (lambda x: x + np.pad(x[:, 3:-1] + x[:, 1:-3], ((0, 0), (4, 0))), (64, 132)),
    (lambda x: x[1] + 1, (3, 501, 21)),
    (lambda x: x[0] + x[1], (2, 525)),
    (lambda x: x[1:2] + 1, (3, 5001, 7)),
])  # fmt: skip
def test_what_is_read_elsewhere_too_is_not_aligned(fn, shape, dtype, monkeypatch):
    """A tensor that lies as the result does, and is also read where vectors begin at any element."""
    check(fn, normal(*shape, dtype=dtype), candidates=4)
    fit(monkeypatch, "pointwise", spread=1 << 20, least_bytes=16)
    check(fn, normal(*shape, dtype=dtype), candidates=4)


def test_overlapping_reads_of_one_element():
    check(lambda x: x[1:2, 1:2] - x[0:1, 0:1] * x[1:2, 0:1], normal(4, 4), candidates=4)


def of_runs(params) -> int:
    return params.scheduler == "pointwise" and params.own.runs


@pytest.mark.parametrize("dtype", [np.int8, np.float16, np.float32, np.float64])
@pytest.mark.parametrize("fn, shapes", OVERLAPPING)
def test_overlapping_reads_by_several_elements_at_once(fn, shapes, dtype, monkeypatch):
    """Vectors that begin anywhere are put together of some that memory is aligned for, wherever these end."""
    fit(monkeypatch, "pointwise", spread=1 << 20)
    inputs = [(normal(*shape) * 9).astype(dtype) for shape in shapes]
    check(fn, *inputs, only=of_runs, candidates=4, changed=lambda p: p._replace(tx=32))


def of_four(x):
    return np.maximum(
        np.maximum(x[..., ::2, ::2], x[..., ::2, 1::2]), np.maximum(x[..., 1::2, ::2], x[..., 1::2, 1::2])
    )


UNDER_EACH_OTHER = [
    (of_neighbours, (18, 66)),
    (of_neighbours, (19, 258)),
    (of_neighbours, (18, 65)),
    (of_four, (3, 18, 128)),
    (lambda x: x[1:, 1:-1:2] - x[:-1, 2::2] * x[1:, ::2][:, :-1], (20, 382)),  # rows that no four elements divide
    (lambda x: x[1:, 1:-5:3] - x[:-1, 2:-4:3], (9, 198)),
]


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("fn, shape", UNDER_EACH_OTHER)
def test_rows_under_each_other_are_written_in_vectors(fn, shape, dtype, monkeypatch):
    """Also where what is read of them are every second or third element."""
    x = normal(*shape, dtype=dtype)
    for lanes in (2, 4, 8):
        fit(monkeypatch, "pointwise", rows_shared=1, lanes_under=lanes, least_bytes=16)
        check(fn, x, candidates=4)
        check(fn, x, candidates=4, changed=lambda p: p._replace(tx=32, ty=2, rows_per_thread=2))


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("shape", [(20, 75), (20, 73)])
def test_odd_rows_under_each_other_are_folded(shape, dtype, monkeypatch):
    fit(monkeypatch, "pointwise", rows_shared=1, long_under=1, run=1, spread=1 << 20)
    check(of_neighbours, normal(*shape, dtype=dtype), only=lambda p: p.own.runs and p.own.row_segments, candidates=4)
    small = lambda p: p._replace(tx=32)  # noqa: E731
    check(
        of_neighbours,
        normal(*shape, dtype=dtype),
        only=lambda p: p.own.runs and p.own.row_segments,
        candidates=4,
        changed=small,
    )


def test_how_many_elements_are_read_at_once():
    """As many as memory is aligned for where an input begins and ends; one of what is read backwards."""
    line = np.empty(1 << 24, np.float16)
    for x, alignment, at_once in ((line, 16, 4), (line, 4, 2), (line, 2, 1), (line[:-2], 16, 2), (line[::-1], 16, 1)):
        lowered = mlirfuse.jit(lambda x: x[2:] - x[1:-1] + x[:-2], target="cuda:sm_90").lower(x)
        program = Program(lowered.segmented(), targets.of("cuda:sm_90"), lowered.env)
        (params,) = program.parameters(lowered.env, dict.fromkeys(program.graph.args, alignment))
        assert params.own.runs == at_once


def test_overlapping_reads_are_one():
    """Of seven taps of eight half-type elements each, the fourteen elements are read by four at once, out of five such
    vectors, where a vector is inside its row; where the end of memory is no vector's, one by one."""
    for shape, loads in (((4096, 4097), 5), ((4097, 4097), 14)):
        text = mlirfuse.jit(taps, target="cuda:sm_90").lower(np.empty(shape, np.float16)).as_text("tiled")
        inside = text[text.index("scf.if") : text.index("} else {")]
        vectors = inside.count("llvm.store")
        assert vectors and inside.count("llvm.load") == loads * vectors


@pytest.mark.parametrize("shape, lanes, runs", [
    ((131_072, 128), 2, 4),  # rows of 122
    ((131_072, 134), 8, 4),  # of 128
    ((131_072, 77), 4, 0),  # of 71: vectors run across their ends
    ((131_072, 257), 4, 4),  # of 251: across few of them
    ((8192, 2048), 8, 4),  # of 2042, across few of them
    ((1024, 512), 2, 4),  # of 506, little to do
])  # fmt: skip
def test_vectors_of_short_rows_divide_them(shape, lanes, runs):
    lowered = mlirfuse.jit(taps, target="cuda:sm_90").lower(np.empty(shape, np.float16))
    (params,) = Program(lowered.segmented(), targets.of("cuda:sm_90"), lowered.env).parameters(lowered.env, {})
    assert (params.access.lanes, params.own.runs) == (lanes, runs)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("join", [np.concatenate, np.stack])
def test_whole_parts_in_narrower_vectors(join, dtype, monkeypatch):
    """Four rows of a thread, some blocks with fewer."""
    fit(monkeypatch, "pointwise", least_bytes=16)

    def narrower(p):
        access = p.access._replace(lanes=p.access.lanes // 2, aligns=tuple(n // 2 for n in p.access.aligns))
        return p._replace(access=access, tx=4, ty=2, vectors_per_thread=1, rows_per_thread=4)

    inputs = normal(27, 32, dtype=dtype), normal(27, 32, dtype=dtype)
    check(lambda x, y: join([x, y * 2], 1), *inputs, candidates=1, changed=narrower)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_vectors_that_divide_rows_read_once(dtype, monkeypatch):
    fit(monkeypatch, "pointwise", soon=0)
    check(taps, normal(8, 40, dtype=dtype), candidates=1, only=lambda p: p.own.runs and p.access.lanes == 2)


@pytest.mark.parametrize(
    "fn, inputs",
    [
        (softmax, [normal(5, 300)]),  # in registers
        (softmax, [normal(2, 19456)]),  # in shared memory
        (lambda x: x.T.copy(), [normal(72, 136)]),
        (lambda x, y: x * y + 1, [normal(33, 72), normal(33, 72)]),
        (norm_backward, [normal(40, 256), normal(40, 256) + 1]),
    ],
)
def test_inputs_that_stay_in_the_cache(fn, inputs, monkeypatch):
    """What large tensors' kernels do, done on small ones."""
    fit(monkeypatch, "access", staying=0)
    fit(monkeypatch, "pointwise", least_bytes=16)
    assert "createpolicy" in mlirfuse.jit(fn, target="cuda:sm_90").lower(*inputs).as_text("ptx")
    check(fn, *inputs, candidates=2)


def test_rows_that_begin_at_any_element_stay_in_the_cache(monkeypatch):
    fit(monkeypatch, "access", staying=0)
    check(softmax, normal(3, 2049, dtype=np.float16), only=lambda p: shifted(p) and p.access.hint, candidates=3)


def test_columns_written_while_their_parts_are_summed(monkeypatch):
    """As of many rows: parts that all run at once."""
    fit(monkeypatch, "columns", few_rows=8, little=64, some_rows=8)

    def fn(g, x):
        dx = g.astype(np.float32) * np.tanh(x.astype(np.float32))
        return dx.astype(g.dtype), dx.sum(0)

    at_once = lambda p: p.split > 1 and p.access.lanes == 8 and p.rows_per_thread == 2  # noqa: E731
    check(fn, normal(533, 264, dtype=np.float16), normal(533, 264, dtype=np.float16), only=at_once, candidates=1)


@pytest.mark.parametrize("columns", [5, 7, 9, 13, 21, 31])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_rows_of_few_elements(columns, dtype):
    check(softmax, normal(300, columns, dtype=dtype), candidates=1, bound=2e-2 if dtype != np.float32 else None)


def test_columns_in_one_turn():
    """Rows that no number of threads divides, all in one turn of a loop."""
    for fn in (lambda x: x.sum(0), lambda x: (x.argmax(0), x.sum(0)), softmax_of_columns):
        check(
            fn,
            np.abs(normal(70, 64)),
            only=lambda params: getattr(params, "scheduler", "") == "columns" and not params.unmasked,
        )
    check(
        lambda x: x.sum(0),
        np.abs(normal(300, 512)),
        only=lambda params: getattr(params, "scheduler", "") == "columns" and not params.unmasked,
        candidates=2,
    )


@pytest.mark.parametrize(
    "shape, dtype",
    [((70, 64), np.float32), ((20, 3300), np.float32), ((5, 256), np.float32), ((300, 12), np.float32), ((33, 77), np.float32), ((65, 40), np.float16),
     ((4, 512), np.float32)],
)  # fmt: skip
def test_columns_in_registers(shape, dtype):
    """Rows that no number of threads divides, or fewer than there are threads, read once for all passes."""

    def standardized(x):
        apart = x - x.mean(0)
        return apart / np.sqrt((apart * apart).mean(0) + 1e-5), x.argmax(0)

    for fn in (softmax_of_columns, standardized, lambda x: (x > x.mean(0)) & (x != x.max(0))):
        check(
            fn,
            normal(*shape, dtype=dtype) + dtype(1),
            only=lambda params: params.persistent,
            candidates=3,
        )


def test_columns_with_more_lanes_than_rows_of_threads():
    """A block has fewer threads than columns to combine."""
    few = lambda params: getattr(params, "scheduler", "") == "columns" and 1 < params.ty < params.access.lanes  # noqa: E731
    check(softmax_of_columns, normal(40, 512, dtype=np.float16), only=few, candidates=2)
    check(lambda x: x.sum(0), np.abs(normal(300, 512, dtype=np.float16)), only=few, candidates=2)


@pytest.fixture
def two_multiprocessors(monkeypatch):
    """The machines have so many: sums over rows have four parts."""
    typical = DeviceProperties.of_architecture
    monkeypatch.setattr(
        DeviceProperties, "of_architecture", staticmethod(lambda chip: dataclasses.replace(typical(chip), sm_count=2))
    )


def layer_norm_backward(g, x, w):
    """With the reductions of the rows among what the sums over them need, and a result of the rows themselves."""
    mean = x.mean(-1, keepdims=True)
    scale = 1 / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    centred, gw = (x - mean) * scale, g * w
    dot = (gw * centred).mean(-1, keepdims=True)
    return (gw - gw.mean(-1, keepdims=True) - centred * dot) * scale, (g * centred).sum(0), g.sum(0), dot


def sums_of_standardized_rows(g, x, w):
    """Nothing as long as the rows is written."""
    return ((x - x.mean(-1, keepdims=True)) * g).sum(0) * w


def shapes_of(params):
    """Of one pass over rows and the sums over them: what differs from one kind of kernel to another."""
    p = params.own.schedules[0]
    return p.tx <= 32, p.ty > 1, p.vectors_per_thread > 1, p.stages, p.min_blocks_per_sm > 1


@pytest.mark.thorough
@pytest.mark.parametrize("fn", [norm_backward, layer_norm_backward, sums_of_standardized_rows])
@pytest.mark.parametrize(
    "chip, rows, columns",
    [("sm_90", 40, 256), ("sm_90", 100, 24), ("sm_90", 33, 65), ("sm_90", 3, 1000), ("sm_70", 33, 65)],
)
def test_rows_and_sums_over_them(fn, chip, rows, columns, two_multiprocessors):
    """In one pass: by threads of a warp or more, one row or several at a time, which no number of blocks divides, on
    their way through shared memory or not; and apart."""
    inputs = [normal(rows, columns), normal(rows, columns) + 1, normal(columns) + 2][: 2 if fn is norm_backward else 3]
    seen = set()

    def new(params):
        kind = params.own.form == "together" and shapes_of(params)
        return kind not in seen and not seen.add(kind)

    check(fn, *inputs, candidates=100, chip=chip, only=new)
    assert False in seen and len(seen) > 5


def pixels_backward(g, x):
    """The norm of each pixel, and sums over all of them as of images whose channels come second, also of what is made
    of the rows."""
    dot = (g * x).sum(-1, keepdims=True)
    created = g - x * dot
    return (
        created,
        (g * x).transpose(0, 3, 1, 2).sum((0, 2, 3), keepdims=True),
        created.transpose(0, 3, 1, 2).sum((0, 2, 3)),
    )


@pytest.mark.parametrize("form", ["together", "apart"])
@pytest.mark.parametrize("channels", [96, 40, 33])
def test_pixels_and_sums_of_channels(channels, form, two_multiprocessors):
    """One kernel reads the rows, whichever way the sums over them see the tensor; and apart."""
    only = lambda params: params.scheduler == "multi_stage" and params.own.form == form  # noqa: E731
    check(pixels_backward, normal(3, 4, 5, channels), normal(3, 4, 5, channels) + 1, candidates=6, only=only)


def test_sums_apart_read_what_the_rows_have_written():
    """Where that is fewer bytes than what it is made of."""

    def backward(g, x):
        created = (g - x * (g * x).astype(np.float32).sum(-1, keepdims=True).astype(g.dtype)).astype(g.dtype)
        return created, created.astype(np.float32).sum(0)

    dtype = ml_dtypes.bfloat16
    given = normal(60, 48).astype(dtype), normal(60, 48).astype(dtype)
    lowered = mlirfuse.jit(backward, target="cuda:sm_90").lower(*given)
    (step,) = Program(lowered.segmented(), targets.of("cuda:sm_90"), lowered.env).steps
    rows, columns = stages.apart(step.analysis)
    assert rows.outputs == columns.inputs and len(columns.inputs) == 1
    check(backward, *given, only=lambda params: params.own.form == "apart")


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_rows_and_sums_over_them_of_other_types(dtype, two_multiprocessors):
    check(norm_backward, normal(50, 64, dtype=dtype), normal(50, 64, dtype=dtype) + dtype(1), candidates=5)


def test_sums_of_many_rows_apart():
    """Parts of them, whose sums are another kernel's, before the rows."""
    apart = lambda params: params.own.form == "apart"  # noqa: E731
    check(norm_backward, normal(4000, 24), normal(4000, 24) + 1, only=apart)
    check(sums_of_standardized_rows, normal(4000, 24), normal(4000, 24), normal(24), only=apart)


def test_sums_apart_from_rows_in_stages():
    """What the rows pass on is known after the first of their stages."""

    def backward(g, x):
        centred = x - x.mean(-1, keepdims=True)
        return centred * g, (g * centred).sum(0), x.mean(-1)

    check(backward, normal(4, 32_768), normal(4, 32_768), candidates=1, chip="sm_80")


def test_sums_of_different_widths(two_multiprocessors):
    """One after the other in the same shared memory, the widest last."""

    def backward(g, x):
        centred = x - x.mean(-1, keepdims=True)
        return centred * g, (g * centred).sum(0), (g.astype(np.float64) * centred).sum(0)

    several = lambda params: params.own.form == "together" and params.own.schedules[0].ty > 1  # noqa: E731
    check(backward, normal(21, 96), normal(21, 96), candidates=4, only=several)


def rolled(g, x):
    y = x * (x * x).sum(-1, keepdims=True)
    z = np.roll(y, 1, 0)
    return y, z * (z * g).sum(-1, keepdims=True), (g * y).sum(0) + (g * z).sum(0)


def one_needs_the_other(g, x):
    y = x * (x * x).sum(-1, keepdims=True)
    z = x - y.max(0)
    return y, z * (z * g).sum(-1, keepdims=True), (g * y).sum(0) + (g * z).sum(0)


def sum_of_sums(g, x):
    dot = (g * x).sum(-1, keepdims=True)
    return g - x * dot, (g * x).sum(0).sum()


@pytest.mark.parametrize("fn", [rolled, one_needs_the_other, sum_of_sums])
def test_sums_over_rows_of_several_segments(fn, two_multiprocessors):
    """What adds up partial sums of two segments joins neither; what sums a sum over rows finds it."""
    check(fn, normal(21, 96), normal(21, 96), candidates=1)


def test_segments_that_have_nothing_to_do_with_each_other():
    """The last block of the second one's kernel waits for the first."""
    check(lambda x, y: (x.sum(0), y * 2), np.abs(normal(1000, 40)), normal(1000, 40))


def standardized(x):
    """With what it was standardized by."""
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + 1e-5), mean, 1 / np.sqrt(variance + 1e-5)


def deviations(x):
    """The sum is needed again after the reductions that depend on the mean."""
    total = x.sum(0)
    apart = np.abs(x - total / x.shape[0])
    return x * (total * apart.sum(0) + apart.max(0))


def batch_norm(x, weight, bias):
    centred = x - x.mean((0, 1), keepdims=True)
    return centred / np.sqrt((centred * centred).mean((0, 1), keepdims=True) + 1e-5) * weight + bias


@pytest.mark.parametrize(
    "fn, inputs",
    [
        (softmax, [normal(3, 5000)]),
        (softmax, [normal(2, 4099, dtype=np.float16)]),
        (lambda x: softmax(x.reshape(-1)), [normal(30, 129)]),
        (standardized, [normal(3, 2048) + 5]),
        (standardized, [normal(2, 2050, dtype=np.float16)]),
        (
            lambda x: x / x.sum(-1, keepdims=True),
            [normal(2, 2050, dtype=np.float16) + np.float16(40)],
        ),  # past the largest number in half precision
        (lambda x: x / np.abs(x).max(), [normal(50, 70)]),
        (lambda x: np.where(x > x.mean(), x, 0), [normal(4000)]),
        (lambda x: (x - x.max(-1, keepdims=True)) * (x * x).sum(-1, keepdims=True), [normal(2, 3000)]),
        (layer_norm, [normal(2, 3001), normal(3001), normal(3001)]),
        (softmax_of_columns, [normal(900, 24)]),
        (softmax_of_columns, [normal(301, 7, dtype=np.float16)]),
        (batch_norm, [normal(20, 30, 24) + 3, normal(24), normal(24)]),
        (deviations, [normal(900, 64)]),
        (
            lambda x: (x / x.max(-1, keepdims=True), x.max(-1, keepdims=True), (x * x).sum(-1)),
            [normal(3, 1025)],
        ),  # reductions that are results too
        (
            lambda x: (x / x.sum(-1, keepdims=True), x.sum(-1, keepdims=True)),
            [np.abs(normal(2, 520, dtype=np.float16))],
        ),
        (
            lambda g, x: (g.sum(0), (g * x).sum(0), g - g.sum(0) / 500 - x * (g * x).sum(0) / 500),
            [normal(500, 24) + 1, normal(500, 24)],
        ),
        (
            lambda x: x - x.transpose(1, 0, 2).reshape(12, -1).mean(-1)[:, None],
            [normal(6, 12, 70)],
        ),  # rows of several pieces
    ],
)
def test_few_rows_in_stages(fn, inputs):
    """A reduction in parts for each phase and a pointwise kernel, where a block for each row would be too few."""
    check(fn, *inputs, only=lambda params: params.scheduler == "multi_stage")


@pytest.mark.parametrize("shape", [(3, 40_000), (1, 70_001), (2, 33_000), (70_000,)])
def test_rows_that_are_written_as_they_are_reduced(shape):
    """In one pass, by parts of each row where rows are few."""
    relu = lambda x: np.maximum(x, 0)  # noqa: E731
    in_parts = lambda params: getattr(params, "scheduler", "") == "rows" and params.vectors_per_thread == 0  # noqa: E731
    for fn in (lambda x: (relu(x), relu(x).sum(-1)), lambda x: (x * 2, (x * x).mean(-1, keepdims=True), x.max(-1))):
        check(fn, normal(*shape), candidates=1)
        check(fn, normal(*shape), candidates=1, only=in_parts)
    lowered = mlirfuse.jit(lambda x: (relu(x), relu(x).sum()), target="cuda:sm_90").lower(
        np.empty((4096, 4096), np.float32)
    )
    (params,) = Program(lowered.segmented(), targets.of("cuda:sm_90"), lowered.env).parameters(lowered.env, {})
    assert params.split > 100


@pytest.mark.parametrize("columns", [700, 40000])
def test_logarithms_of_sums_that_are_not_finite(columns):
    """Rows with infinities or NaN, or of nothing but -inf: in one pass, as in two."""
    x = normal(6, columns)
    x[1, 5], x[2, 7], x[3, 3], x[4] = np.inf, -np.inf, np.nan, -np.inf
    x[5, 1:3] = np.inf, -np.inf

    def logsumexp(x):
        high = x.max(-1, keepdims=True)
        high = np.where(np.isfinite(high), high, 0)
        return (np.log(np.exp(x - high).sum(-1, keepdims=True)) + high)[:, 0]

    with np.errstate(all="ignore"):
        check(logsumexp, x, candidates=3)
    lowered = mlirfuse.jit(logsumexp, target="cuda:sm_90").lower(x)
    (step,) = Program(lowered.segmented(), targets.of("cuda:sm_90"), lowered.env).steps
    assert len(joint.online(step.analysis)) == 1


@pytest.mark.parametrize("fn, shapes", [
    (softmax, [(5, 770)]),
    (softmax, [(2, 19_456)]),
    (layer_norm, [(7, 1024), (1024,), (1024,)]),
    (layer_norm, [(7, 1027), (1027,), (1027,)]),
    (lambda x: (x.sum(-1), x.argmax(-1)), [(40, 99)]),
    (lambda x: (x.max(0), abs(x).sum(0)), [(300, 264)]),
    (columns_standardized, [(300, 64)]),
    (lambda x: (x + 1).T.copy(), [(70, 130)]),
    (lambda x, y: np.maximum(x + y, 0) * 2, [(30, 257), (257,)]),
    (lambda x, y: np.where(x > y, x, y * x), [(30, 256), (30, 256)]),
    (lambda x: np.exp(x) * np.tanh(x), [(30, 256)]),
    (lambda x, y: np.where(x > y, np.tanh(x), x).sum(-1), [(33, 14), (14,)]),
    (lambda x: (x * 8).astype(np.int8), [(30, 256)]),
])  # fmt: skip
def test_bfloat16(fn, shapes):
    """Computed in float32, but for what loses nothing in pairs of bfloat16."""
    check(fn, *(normal(*shape).astype(ml_dtypes.bfloat16) for shape in shapes), candidates=6)


# ---- what the emulator finds


COPY = """.visible .entry copy(.param .u64 copy_param_0, .param .u64 copy_param_1)
{
    ld.param.u64 %rd1, [copy_param_0];
    ld.param.u64 %rd2, [copy_param_1];
    mov.u32 %r1, %tid.x;
    mad.wide.u32 %rd3, %r1, 4, %rd1;
    mad.wide.u32 %rd4, %r1, 4, %rd2;
    INSTRUCTION
    st.global.b32 [%rd4], %r2;
    ret;
}
"""


@pytest.mark.parametrize(
    "instruction, message",
    [
        ("ld.global.b32 %r2, [%rd3];", None),
        ("ld.global.b32 %r2, [%rd3+4];", "out of bounds of 4 bytes at 4224, block 0, thread 31"),
        ("ld.global.b32 %r2, [%rd3+-2];", "misaligned"),
        ("ld.shared.b32 %r2, [%rd3];", "shared access out of bounds"),
        ("st.global.b32 [%rd3], %r1;", "out of bounds"),  # the input may only be read
        ("vote.sync.any.pred %p1, %p2, -1;", "unknown opcode vote.sync.any.pred"),
        ("mad.hi.u32 %r2, %r1, %r1, %r1;", "unknown opcode mad.hi.u32"),
        ("add.rn.f32.f16 %r2, %r1, %r1;", "unknown opcode add.rn.f32.f16"),
        ("barrier.cluster.wait; ld.global.b32 %r2, [%rd3];", "wait for ever"),
    ],
)
def test_the_emulator_finds_errors(instruction, message):
    memory, x = Memory(1 << 18), np.arange(32, dtype=np.int32)
    source = memory.allocate(x, writable=False)
    target = memory.allocate(np.full_like(x, -1), writable=True)

    def launch():
        Launch(parse(COPY.replace("INSTRUCTION", instruction))["copy"], memory, [source, target], 1, 32).run()

    if message is None:
        launch()
        assert np.array_equal(memory.fetch(target, x.shape, x.dtype), x)
    else:
        with pytest.raises(EmulationError, match=message):
            launch()


EXCHANGE = """.visible .entry exchange(.param .u64 exchange_param_0)
{
    .shared .align 16 .b8 buffer[256];
    ld.param.u64 %rd1, [exchange_param_0];
    mov.u32 %r1, %tid.x;
    mul.lo.s32 %r2, %r1, 4;
    xor.b32 %r3, %r2, 252;
    cvt.u64.u32 %rd2, %r2;
    cvt.u64.u32 %rd3, %r3;
    mov.b64 %rd4, buffer;
    add.s64 %rd5, %rd4, %rd2;
    add.s64 %rd6, %rd4, %rd3;
    BODY
    add.s64 %rd7, %rd1, %rd2;
    st.global.b32 [%rd7], %r4;
    ret;
}
"""


@pytest.mark.parametrize(
    "body, message",
    [
        ("st.shared.b32 [%rd5], %r1; bar.sync 0; ld.shared.b32 %r4, [%rd6];", None),
        ("st.shared.b32 [%rd5], %r1; ld.shared.b32 %r4, [%rd5]; bar.sync 0; ld.shared.b32 %r4, [%rd6];", None),
        ("st.shared.b32 [%rd5], %r1; ld.shared.b32 %r4, [%rd6];", "race: reads"),
        (
            "st.shared.b32 [%rd5], %r1; bar.sync 0; ld.shared.b32 %r4, [%rd6]; st.shared.b32 [%rd5], %r2;",
            "race: changes",
        ),
        ("st.shared.b32 [%rd4], %r1; bar.sync 0; ld.shared.b32 %r4, [%rd4];", "race: several"),
        (
            "st.shared.b32 [%rd4], 5; bar.sync 0; ld.shared.b32 %r4, [%rd4]; st.shared.b32 [%rd4], 5;",
            None,
        ),  # all the same
    ],
)
def test_the_emulator_finds_races(body, message):
    memory = Memory(1 << 18)
    target = memory.allocate(np.full(64, -1, np.int32), writable=True)
    launch = Launch(parse(EXCHANGE.replace("BODY", body))["exchange"], memory, [target], 1, 64)
    if message is None:
        launch.run()
        return
    with pytest.raises(EmulationError, match=message):
        launch.run()


@pytest.mark.parametrize(
    "body, message",
    [
        ("@%p1 bra ON; bar.sync 0; ON: bar.sync 0;", "different barriers"),
        ("@%p2 bra ON; bar.sync 0; ON: bar.sync 0;", "wait for ever"),
        ("@%p2 bra ON; add.s32 %r2, %r2, 1; ON: bar.sync 0;", None),  # together again
        ("@%p2 bra AWAY; BACK: bar.sync 0; bra ON; AWAY: bra BACK; ON: add.s32 %r2, %r2, 1;", None),
        ("@%p2 bar.sync 0;", "all lanes of the warp of block 0, thread 0"),
        ("@%p2 bar.sync 0; @!%p2 barrier.cluster.wait;", "all lanes"),
        ("@%p1 bar.sync 0; @!%p1 barrier.cluster.wait;", "wait for ever"),
        ("@%p1 bar.sync 0;", "ended before one"),
        ("@%p1 ret; bar.sync 0;", "ended before one"),
        ("@%p2 ret; bar.sync 0;", "all lanes of the warp of block 0, thread 0"),
        ("@%p2 barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;", "all lanes"),
        ("@%p2 barrier.cluster.arrive; @!%p2 barrier.cluster.arrive; barrier.cluster.wait.aligned;", None),
    ],
)
def test_the_emulator_finds_barriers_apart(body, message):
    """Of two warps, %p1 holds in the second and %p2 in the first's first half."""
    memory = Memory(1 << 18)
    body = "setp.ge.s32 %p1, %r1, 32; setp.lt.s32 %p2, %r1, 16; " + body.replace(";", ";\n").replace(":", ":\n")
    launch = Launch(
        parse(EXCHANGE.replace("BODY", body))["exchange"],
        memory,
        [memory.allocate(np.zeros(64, np.int32), writable=True)],
        1,
        64,
    )
    if message is None:
        launch.run()
        return
    with pytest.raises(EmulationError, match=message):
        launch.run()


@pytest.mark.parametrize(
    "fn, x",
    [
        (lambda x: softmax(x.reshape(12, 1024)), normal(24, 512)),
        (lambda x: x.reshape(4, 12, 256).sum(1), normal(24, 512)),
        (lambda x: (x.reshape(3, 64, 64).transpose(0, 2, 1) * 2).copy(), normal(24, 512)),
        (lambda x: x.reshape(3, 4, 8, 64).transpose(0, 2, 1, 3).reshape(24, 256), normal(12, 8, 64)),
        (lambda x: x.reshape(3, 4, 8, 64)[:, 1:, :, 4:] + 1, normal(12, 8, 64)),
        (lambda x: (x.reshape(48, 256).sum(1), x * 2), normal(24, 512)),
        # Rows that vectors do not divide, of which as much is read as vectors do.
        (lambda x: x.reshape(4, 6)[:, :4] * 2, normal(6, 4)),
        (lambda x: x.reshape(2048, 6)[:, :4].sum(1), normal(24, 512)),
        (lambda x: x.reshape(2048, 6)[:, :4] + 1 + x[:1, :4], normal(24, 512)),
        (lambda x: softmax(x.reshape(48, 258)[:, :256]), normal(24, 516)),
        (lambda x: (x.reshape(8, 3, 6)[:, :, :4].transpose(1, 0, 2) * 2).copy(), normal(9, 16)),
        (lambda x: x.sum(0).reshape(64, 6)[:, :4] * 2, normal(4, 8, 48)),
        (lambda x: x.reshape(-1, 6)[:, :4] + 1, normal(12288)),
        (
            lambda x: x.reshape(8, 48, 32) - x.reshape(8, 48, 32).max((0, 2), keepdims=True),
            normal(12288),
        ),  # a bit of the index extends to all
    ],
)
def test_reshapes_to_constants(fn, x):
    """Of an argument whose sizes are not known to divide those."""
    check(fn, x, candidates=4)


@pytest.mark.parametrize("shape, axis, shift", [
    ((6, 256), 1, 8),  # vectors lie on one side
    ((6, 256), 1, 3),
    ((5, 37), 1, -2),
    ((33, 20), 0, 7),
    ((4, 5, 64), (0, 2), (1, 32)),
])  # fmt: skip
def test_roll(shape, axis, shift):
    x = normal(*shape)
    check(lambda x: np.roll(x, shift, axis) * 2 + x, x, candidates=4)
    check(lambda x: np.roll(x, shift, axis).sum(-1), x, candidates=3)


@pytest.mark.parametrize("shift", [np.left_shift, np.right_shift])
@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.int32])
def test_shifts_by_the_width_and_more(shift, dtype):
    """Also by numbers of which the low 32 bits are a small one."""
    amounts = np.array([64, 2**32, 2**63, 2**64 - 1, 63, 32, 1], np.uint64).astype(dtype)
    values = np.resize(np.array([-1, 1, 5, -(2**31), 12345, 2**31 - 1]), 42).astype(dtype)
    check(shift, values, np.repeat(amounts, 6))


# ---- sums in blocks of turns


def in_blocks(params):
    """With the smallest blocks, where threads have turns at all."""
    if params.scheduler == "multi_stage":
        return params.replaced(schedules=tuple(map(in_blocks, params.own.schedules)))
    if "compensation_interval" not in SCHEDULERS.of(params).fields:
        return params
    kept = {"rows": params.vectors_per_thread, "columns": params.stages}.get(params.scheduler, 0)
    return params if kept or params.persistent else params._replace(compensation_interval=2)


def has_turns(params):
    return in_blocks(params) != params


@pytest.mark.parametrize(
    "fn, inputs",
    [
        (sum_and_variance, [normal(2, 20_003)]),
        (softmax, [normal(3, 20_004)]),
        (lambda x: (x.sum(), x.argmax(), x.max()), [normal(40_001)]),
        (lambda x: (x.sum(-1), x.var(-1)), [normal(3, 30_000, dtype=np.float16)]),
        (lambda x: x.sum(0), [normal(2000, 40) + 1]),
        (lambda x: (x.sum(0), x.max(0), x.argmin(0)), [normal(700, 33) + 1]),
        (columns_standardized, [normal(900, 64)]),
        (softmax_of_columns, [normal(900, 64)]),
        (lambda x: (x.var(0), x.sum(0)), [normal(1500, 7) + 1]),
        (lambda x: x.sum(0), [np.arange(30_000, dtype=np.int32).reshape(600, 50)]),
    ],
)
def test_sums_in_blocks(fn, inputs):
    check(fn, *inputs, only=has_turns, changed=in_blocks, candidates=5)


@pytest.mark.thorough
@pytest.mark.parametrize("fn, rows, columns", [(norm_backward, 60, 40), (layer_norm_backward, 33, 65)])
def test_sums_over_rows_in_blocks(fn, rows, columns, two_multiprocessors):
    inputs = [normal(rows, columns), normal(rows, columns) + 1, normal(columns) + 2][: 2 if fn is norm_backward else 3]
    seen = set()

    def new(params):
        kind = params.own.form == "together" and shapes_of(params)
        return kind and kind not in seen and not seen.add(kind)

    check(fn, *inputs, only=new, changed=in_blocks, candidates=100)
    assert len(seen) > 3


# ---- results over donated arguments


@pytest.mark.parametrize(
    ("fn", "inputs"),
    [
        (softmax, [normal(6, 300)]),
        (softmax, [normal(3, 5000)]),
        (softmax_of_columns, [normal(300, 40)]),
        (lambda x, y: (np.tanh(x) * y, (np.tanh(x) * y).sum(0)), [normal(200, 64), normal(200, 64)]),
        (lambda x, y: (np.tanh(x) * y, (np.tanh(x) * y).sum(1)), [normal(20, 640), normal(20, 640)]),
        (lambda x, y: x * y + 1, [normal(40, 50), normal(40, 50)]),
    ],
)
def test_results_over_donated_arguments(fn, inputs):
    check(fn, *inputs, donated=True)


def test_reciprocals_of_all_floats():
    """Without a branch: zeros, infinities, NaN, subnormal numbers and those whose reciprocal is subnormal; within an
    ulp, two where the reciprocal is that small."""
    small = np.array([1, 3, 1000, 2**22 - 1, 2**22 + 1], np.uint32).view(np.float32)
    large = np.float32(2.0) ** np.arange(120, 128, dtype=np.float32) * np.float32(1.7)
    values = np.concatenate([[0.0, -0.0, np.inf, -np.inf, np.nan], small, large, np.geomspace(1e-37, 1e37, 494)])
    x = np.concatenate([values, -values]).astype(np.float32).reshape(2, -1)
    (found,) = results_of(np.reciprocal, x)
    with np.errstate(all="ignore"):
        exact = 1 / x.astype(np.float64)
        wanted = exact.astype(np.float32)
    special = ~np.isfinite(wanted) | (x == 0)
    assert np.array_equal(found[special], wanted[special], equal_nan=True)
    off = np.abs(found[~special] - exact[~special]) / np.spacing(np.abs(wanted[~special]))
    assert off.max() <= 2 and off[np.abs(wanted[~special]) > 1e-30].max() <= 1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_columns_whose_elements_are_stored_between_two_passes(dtype, monkeypatch):
    """A kernel for the sums, which stores what both need, and one for the rest, where that is predicted to be faster:
    here at any size, as launches cost nothing, and instructions much."""
    device = dataclasses.replace(device_costs.H100, launch=0.0, phase=0.0, code=0.0, column=16, instruction=1e-12)
    monkeypatch.setitem(device_costs.DEVICES, "h100", device)

    def gradient(x, y):
        s = 1 / (1 + mnp.exp(-x))
        g = y * mnp.tanh(s + x * s * (1 - s)) * mnp.sin(x)
        return g - x * (g * x).mean(0) - g.mean(0), g.sum(0)

    x, y = np.random.default_rng(0).standard_normal((2, 96, 40)).astype(np.dtype(dtype))
    segments = dict.fromkeys(
        op.segment for op in mlirfuse.jit(gradient, target="cuda:sm_90").lower(x, y).segmented().ops
    )
    assert [s.scheduler for s in segments] == ["reduction", "pointwise"]
    check(gradient, x, y, candidates=2)


def patches(x, part=8):
    """Four parts of each row as the elements between each other of an image, twice its height and width, and the rows
    of windows of it."""
    a, b, c, d = (x.reshape(2, 6, 6, 4 * part)[..., k * part : (k + 1) * part] for k in range(4))
    rows = [np.stack([a, b], axis=3), np.stack([c, d], axis=3)]
    image = np.stack(rows, axis=2).reshape(2, 12, 12, part)
    windows = image.reshape(2, 3, 4, 3, 4, part).transpose(0, 1, 3, 2, 4, 5)
    return windows.reshape(-1, 4, 4, part) + 0, windows.reshape(-1, part).sum(0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sums_of_interleaved_rows_are_of_columns(dtype):
    """The axis along which memory is contiguous is kept, though parts of it are read."""
    x = np.random.default_rng(0).standard_normal((2, 36, 32)).astype(dtype)
    lowered = mlirfuse.jit(patches, target="cuda:sm_90").lower(x)
    program = Program(lowered.segmented(), targets.of("cuda:sm_90"), lowered.env)
    assert "columns" in {p.scheduler for p in program.parameters(lowered.env, {})}
    check(patches, x)


def test_a_reshape_of_what_it_permutes_is_no_longer_one_row():
    """The axes are the same on both sides, in another order."""
    x = np.random.default_rng(0).standard_normal((2, 7, 33)).astype(np.float32)
    fn = lambda x: np.swapaxes(x, 1, 2).reshape(x.shape) + x  # noqa: E731
    check(fn, x)
    np.testing.assert_array_equal(mlirfuse.jit(fn)(x), fn(x))
