"""What is chosen for a GPU kernel's accesses, for all sizes and alignments; no GPU is needed."""

from __future__ import annotations

import functools
import itertools
import random
import re

import gpu_choices
import ml_dtypes
import numpy as np
import pytest
from heuristics_override import fit

import mlirfuse
import mlirfuse.numpy as mnp
from mlirfuse.ir import sizes as sz
from mlirfuse.runtime.program import Program
from mlirfuse.schedule import serialize, targets
from mlirfuse.schedule.gpu import access as gpu_access
from mlirfuse.schedule.gpu import column_choice, row_choice
from mlirfuse.schedule.gpu import (
    inner_outer as gpu_inner_outer,
)
from mlirfuse.schedule.gpu.scheduler_list import SCHEDULERS
from mlirfuse.schedule.scheduler import SizedCall
from mlirfuse_runtime.sizes import inverse_of


def test_choices_are_legal_and_read_back():
    """What is chosen is printed, parsed and checked again; a block fits a multiprocessor, a vector 16 bytes."""
    target = targets.of("cuda:sm_90")
    for of, program, env, params in gpu_choices.choices(target):
        printed = [serialize.parse(serialize.text(one)) for one in target.schedules(program, params)]
        assert target.read(program, printed, env, {}) == params, of
        for choice in params:
            for stage in choice.own.schedules if choice.scheduler == "multi_stage" else (choice,):
                assert all(16 % align == 0 for align in stage.access.aligns) and 8 % stage.access.lanes == 0, of
        for kernel in target.write(program, params, program.slots()).kernels:
            shared = kernel.static_shared + kernel.dynamic_shared
            assert kernel.threads in range(32, 1025, 32) and shared <= target.properties.shared_per_block, of


@pytest.mark.parametrize("name", gpu_choices.WORK)
@pytest.mark.parametrize("width", [257, 4096])
def test_more_rows_have_no_fewer_threads(name, width):
    """In the largest kernel, up to what fills the device: never less than half, where threads get twice the work."""
    target, fill = targets.of("cuda:sm_90"), 132 * 2048
    fn, rows = gpu_choices.WORK[name]
    before = 0
    for height in (16, 64, 256, 1024, 4096, 16_384, 65_536):
        args = [np.empty((height, width), np.float32)] + [np.empty(width, np.float32)] * rows
        lowered = mlirfuse.jit(fn, target="cuda:sm_90").lower(*args)
        program = Program(lowered.segmented(), target, lowered.env)
        kernels = target.write(program, program.parameters(lowered.env, {}), program.slots()).kernels
        total = min(fill, max(sz.substitute(k.grid, lowered.env) * k.threads for k in kernels))
        assert 2 * total >= before, (height, total, before)
        before = total


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.int8])
def test_accesses_are_as_wide_as_sizes_and_alignments_allow(dtype):
    """Rows of a larger array and a contiguous one: a vector may neither cross a row's end nor lie at an address that it
    is not aligned to."""
    function = mlirfuse.jit(lambda x, y: x + y, target="cuda:sm_90")
    lowered = function.lower(np.ones((8, 48), dtype)[:, :24], np.ones((8, 24), dtype))
    program = Program(lowered.segmented(), targets.of("cuda:sm_90"), lowered.env)
    (step,) = program.steps
    x, y = program.graph.args
    columns, stride = str(x.shape[1]), str(program.graph.layouts[0].strides[0])
    nbytes, rng = np.dtype(dtype).itemsize, random.Random(0)
    for _ in range(300):
        env = {
            name: rng.choice([rng.randint(1, 40), 8 * rng.randint(1, 40), 1 << rng.randrange(16)])
            for name in program.symbols
        }
        env[stride] = max(env[stride], env[columns] + 1)
        aligned = {x: 1 << rng.randrange(7), y: 1 << rng.randrange(7)}

        def fits(value, lanes: int) -> bool:
            steps = {x: env[stride], y: env[columns]}.get(value, env[columns])
            return lanes * nbytes <= min(aligned.get(value, 16), 16) and steps % lanes == 0

        wanted = max([n for n in (1, 2, 4, 8) if any(fits(v, n) for v in (x, y, step.analysis.outputs[0]))], default=1)
        access = gpu_access.access_of(step.analysis, True, SizedCall(env, aligned, None))
        assert access.lanes == max(n for n in (1, 2, 4, 8) if n <= wanted and env[columns] % n == 0)
        for value, align in zip((x, y, step.analysis.outputs[0]), access.aligns):
            widest = max([n for n in (1, 2, 4, 8) if fits(value, n)], default=1)
            assert align == min(widest, access.lanes) * nbytes


def test_measured_parameters_are_for_these_alignments():
    """What was measured on aligned arrays is not used for arrays of the same sizes that are not."""
    lowered = mlirfuse.jit(lambda x: x + 1, target="cuda:sm_90").lower(np.ones(4096, np.float32))
    program = Program(lowered.segmented(), targets.of("cuda:sm_90"), lowered.env)
    (step,), (x,), properties = program.steps, program.graph.args, program.target.properties
    measured = list(SCHEDULERS.candidates(step.analysis, SizedCall(lowered.env, {x: 16}, properties)))[1]
    program.tuned[program.call_key(lowered.env, {x: 16})] = (measured,)
    assert program.parameters(lowered.env, {x: 16}) == (measured,)
    (other,) = program.parameters(lowered.env, {x: 4})
    assert max(other.access.aligns[:1]) == 4


def test_division_by_a_product_and_a_shift():
    """Whatever index, up to the largest: around multiples of the size, and at the ends."""
    rng = random.Random(0)
    sizes = [
        1,
        2,
        3,
        5,
        7,
        641,
        65535,
        65536,
        65537,
        2**30 - 1,
        2**30,
        2**30 + 1,
        2**31 - 1,
        *(rng.randint(1, 2 ** rng.randint(1, 31) - 1) for _ in range(500)),
    ]
    for size in sizes:
        packed = inverse_of(size)
        factor, shift = packed & 0xFFFFFFFF, packed >> 32
        assert packed < 2**63 and shift < 64
        many = (2**31 - 1) // size
        for n in {0, 1, 2**31 - 1, *(k * size + d for k in (1, 2, many // 2, many) for d in (-1, 0, 1))}:
            if 0 <= n < 2**31:
                assert n * factor < 2**64 and n * factor >> shift == n // size, (n, size)
    assert inverse_of(0) == inverse_of(1)


def sum_and_write(x, y):
    y[...] = np.tanh(y)
    return x.sum(0)


@pytest.mark.parametrize(
    "fn, waits",
    [
        (
            lambda x, y: (x.sum(0), np.tanh(y)),
            ["", "before", "after"],
        ),  # a split sum, its second half, and what has nothing to do with them
        (
            lambda x, y: (x.sum(0), y.sum(0)),
            ["", "before", "before", "before"],
        ),  # both leave their parts in the workspace, maybe at the same place
        (lambda x, y: (x.sum(0), np.tanh(y) + x.sum(0)), ["", "before", "before"]),  # reads the sum
        (sum_and_write, ["", "before", "after"]),  # over an argument that nothing else reads
        (lambda x, y: (np.tanh(x), np.exp(y)), ["", "after"]),
    ],
)
def test_kernels_of_a_call_wait_for_those_that_they_depend_on(fn, waits):
    x, y = np.ones((65_536, 64), np.float32), np.ones((65_536, 64), np.float32)
    lowered = mlirfuse.jit(fn, target="cuda:sm_90").lower(x, y[:4096] if "exp" in fn.__code__.co_names else y)
    target = targets.of("cuda:sm_90")
    program = Program(lowered.segmented(), target, lowered.env)
    kernels = target.write(program, program.parameters(lowered.env, {}), program.slots()).kernels
    assert [kernel.waits for kernel in kernels] == waits
    assert [kernel.lets for kernel in kernels] == [True] * (len(kernels) - 1) + [False]


def test_what_earlier_kernels_write_is_no_constant():
    """A kernel may be there before it is written: it is read neither through caches for what never changes nor with
    their hints."""
    g = np.ones((4096, 1024), np.float32)
    lowered = mlirfuse.jit(
        lambda g, x: (g - x * (g * x).sum(-1, keepdims=True), (g * x).sum(0)), target="cuda:sm_90"
    ).lower(g, g.copy())
    rows, sums = lowered.as_text("ptx").split(".visible .entry")[1:]
    if "inner_outer0_1" in rows[:40]:  # in whichever order they are written
        rows, sums = sums, rows
    assert "ld.global" in sums and "ld.global.nc" not in sums and "no_allocate" not in sums
    assert "cp.async" in rows or "ld.global.nc" in rows


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: mnp.softmax(x),
        lambda x: x.sum(0),
        lambda x: x.T * 2,
        lambda x: x + 1,
    ],
)
def test_a_reshaped_argument_is_scheduled_as_if_it_came_so(fn):
    """Whatever shape a contiguous argument has, a reshape of it to constant sizes is read as an array of that shape
    is."""
    target = targets.of("cuda:sm_90")

    def chosen(fn, x):
        lowered = mlirfuse.jit(fn, target="cuda:sm_90").lower(x)
        program = Program(lowered.segmented(), target, lowered.env)
        return [p._replace(access=p.access._replace(multiples=())) for p in program.parameters(lowered.env, {})]

    shape = 8192, 1024
    assert chosen(lambda x: fn(x.reshape(shape)), np.empty((256, 32768), np.float32)) == chosen(
        fn, np.empty(shape, np.float32)
    )


def test_long_rows_of_half_types_leave_room_for_other_blocks():
    """A softmax's rows of 32768 half-type elements are kept in shared memory: in registers, one block would fill a
    multiprocessor."""
    lowered = mlirfuse.jit(mnp.softmax, target="cuda:sm_90").lower(np.empty((4096, 32768), np.float16))
    (params,) = Program(lowered.segmented(), targets.of("cuda:sm_90"), lowered.env).parameters(lowered.env, {})
    assert params.in_shared


def first_choice(fn, *shapes, dtype=np.float32):
    """What is chosen for the only segment of a function of arrays of these shapes on an H100."""
    lowered = mlirfuse.jit(fn, target="cuda:sm_90").lower(*(np.empty(shape, dtype) for shape in shapes))
    (params,) = Program(lowered.segmented(), targets.of("cuda:sm_90"), lowered.env).parameters(lowered.env, {})
    return params


@pytest.mark.parametrize("target", ["cuda:sm_90", "cpu"])
@pytest.mark.parametrize("reduce", ["sum", "max"])
def test_rows_that_are_looked_up_and_reduced_are_read_along_their_elements(target, reduce):
    """Not along the indices, which have fewer axes than what they select."""
    given = np.zeros((512, 100), np.int64), np.empty((1000, 300), np.float32)
    lowered = mlirfuse.jit(lambda i, w: getattr(w[i], reduce)(1), target=target).lower(*given)
    (params,) = Program(lowered.segmented(), targets.of(target), lowered.env).parameters(lowered.env, {})
    assert params.scheduler == "columns"


def layer_norm(x, w, b):
    return mnp.layer_norm(x, w, b, eps=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("length", [49152, 65536, 131072])
def test_long_rows_beside_weights_are_in_registers(length, dtype):
    """All weights are loaded at once there; from shared memory, some at a time. Without weights, and where some threads
    have less than others, shared memory takes less time."""
    rows, bias = (1024, length), (length,)
    params = first_choice(layer_norm, rows, bias, bias, dtype=dtype)
    assert not params.in_shared and params.cluster > 1 and params.unmasked == params.vectors_per_thread
    assert first_choice(mnp.softmax, rows, dtype=dtype).in_shared
    assert first_choice(layer_norm, (1024, 100_000), (100_000,), (100_000,), dtype=dtype).in_shared


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("length", [40_000, 50_256, 70_000, 100_000, 120_000])
def test_half_types_beside_weights_hide_each_others_waiting(length, dtype):
    """Two rows a multiprocessor, each in a block of its own, if they find room; else blocks of larger clusters than
    two, which wait for each other most."""
    params = first_choice(layer_norm, (1500, length), (length,), (length,), dtype=dtype)
    nbytes = params.vectors_per_thread * params.tx * 16
    blocks = (227 << 10) // nbytes
    assert params.in_shared and blocks * params.tx >= 1024
    assert (blocks >= 2 and params.cluster == 1) if length < 56_000 else (blocks >= 3 and params.cluster == 4)


@pytest.mark.parametrize("length, in_shared", [(4096, False), (8192, False), (12_288, True), (16_384, True)])
def test_long_rows_of_16_bit_floats_with_weights(length, in_shared):
    """Widened in registers, those of 512 threads would leave two blocks per multiprocessor."""
    params = first_choice(layer_norm, (4096, length), (length,), (length,), dtype=np.float16)
    assert params.in_shared == in_shared
    assert first_choice(layer_norm, (4096, length), (length,), (length,)).in_shared == (length > 16_384)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("length", [50_001, 60_001, 70_001, 110_001])
def test_half_types_odd_rows_beside_weights_have_many_threads(length, dtype):
    """A block each, of which a multiprocessor holds two, or one of 1024 threads, unless rows are few."""
    params = first_choice(layer_norm, (1500, length), (length,), (length,), dtype=dtype)
    blocks = (227 << 10) // (params.vectors_per_thread * params.tx * 16)
    assert params.unaligned and params.cluster == 1 and blocks * params.tx == 1024
    if blocks == 1:
        assert first_choice(layer_norm, (140, length), (length,), (length,), dtype=dtype).cluster == 4


def test_odd_rows_of_several_inputs_have_no_1024_threads():
    """Whose registers would not hold what each computes."""

    def backward(g, x, w):
        centred = x - x.mean(-1, keepdims=True)
        return g * w - centred * (g * w * centred).mean(-1, keepdims=True)

    for length in (40_007, 50_257):
        rows = (1000, length)
        assert first_choice(backward, rows, rows, (length,), dtype=np.float16).tx <= 512


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("length", [100_000, 150_000, 200_000])
def test_rows_that_threads_cannot_share_evenly_leave_room_for_other_blocks(length, dtype):
    """In shared memory, of which a block takes at most half of a multiprocessor's."""
    params = first_choice(mnp.softmax, (512, length), dtype=dtype)
    assert params.in_shared and params.cluster <= 8
    assert params.vectors_per_thread * params.tx * 16 <= 113 << 10


def rows_of_half_types(columns, w=np.float16):
    return [np.empty((4096, columns), np.float16), np.empty(columns, w), np.empty(columns, w)]


@pytest.mark.parametrize("fn, inputs, shifted", [
    (mnp.softmax, rows_of_half_types(50_257)[:1], True),
    (mnp.softmax, rows_of_half_types(12_345)[:1], True),
    (mnp.softmax, rows_of_half_types(50_256)[:1], False),  # vectors divide them
    (mnp.softmax, rows_of_half_types(4_099)[:1], False),
    (mnp.softmax, [np.empty((8, 50_257), np.float16)], False),  # most multiprocessors would have nothing
    # rows of what is read begin elsewhere than of what is written
    (lambda x: mnp.softmax(x[:, :-3]), rows_of_half_types(50_260)[:1], False),
    (mnp.softmax, [np.empty((4096, 50_264), np.float16)[:, :50_257]], False),
    (lambda x: x.sum(-1), [np.empty((4096, 50_264), np.float16)[:, :50_257]], True),
    (lambda x: x.sum(-1), rows_of_half_types(50_257)[:1], True),
    (layer_norm, rows_of_half_types(50_257), True),
    (layer_norm, rows_of_half_types(12_345), False),  # a block's registers hold it
    (layer_norm, rows_of_half_types(50_257, np.float32), False),
])  # fmt: skip
def test_vectors_begin_before_long_rows_that_they_do_not_divide(fn, inputs, shifted):
    lowered = mlirfuse.jit(fn, target="cuda:sm_90").lower(*inputs)
    program = Program(lowered.segmented(), targets.of("cuda:sm_90"), lowered.env)
    (params,) = program.parameters(lowered.env, {})
    assert params.unaligned == shifted
    (step,) = program.steps
    (params,) = program.parameters(lowered.env, dict.fromkeys(step.analysis.inputs, 2))
    assert not params.unaligned  # where arrays are not aligned


@pytest.mark.parametrize(
    "length, looped", [(2049, False), (4099, False), (12_345, False), (32_768, True), (200_001, False)]
)
def test_odd_rows_that_are_only_reduced_are_loaded_at_once(length, looped):
    """Elements one by one keep too little of memory busy in a loop of some turns."""
    assert (first_choice(lambda x: x.sum(-1), (8192, length), dtype=np.float16).vectors_per_thread == 0) == looped


def sum_of_columns(*shape, dtype=np.float16):
    return first_choice(lambda x: x.sum(0), shape, dtype=dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("shape", [(16, 50_257), (128, 50_257), (512, 12_345), (4096, 50_257), (2048, 33_333)])
def test_odd_rows_meet_in_a_block(shape, dtype):
    """Where blocks are enough, or soon done: the second kernel that puts the rows of a fold together took 3 to 30%
    longer."""
    params = sum_of_columns(*shape, dtype=dtype)
    assert (
        params.unaligned
        and params.split == 1
        and params.coalesced_rows == params.access.lanes == 16 // np.dtype(dtype).itemsize
    )


@pytest.mark.parametrize("shape", [(4096, 8191), (512, 1001), (255, 8191), (131_072, 257)])
def test_odd_rows_of_few_columns_have_a_second_kernel(shape):
    """Blocks that gather columns would be too few."""
    assert not sum_of_columns(*shape).unaligned


@pytest.mark.parametrize("shape, dtype, gathered", [
    ((64, 1000, 333), np.float32, True),
    ((160, 1024, 197), np.float16, True),
    ((2048, 64, 333), np.float32, True),
    ((64, 1001, 333), np.float32, False),  # each matrix begins at another element of a vector
    ((300, 256, 77), np.float16, False),  # two thirds of the threads would have no column
    ((10, 1000, 333), np.float32, False),  # too few blocks
])  # fmt: skip
def test_odd_rows_of_columns_above_each_other_meet_in_a_block(shape, dtype, gathered):
    assert first_choice(lambda x: x.sum(1), shape, dtype=dtype).unaligned == gathered


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("shape", [(48, 1001), (48, 4099), (200, 4099), (256, 770)])
def test_few_rows_of_narrow_vectors_are_loaded_at_once(shape, dtype):
    """A second turn of a loop waits for the memory again: up to 1.3 times as long."""
    params = sum_of_columns(*shape, dtype=dtype)
    assert (
        not params.unmasked
        and params.split == 1
        and params.ty * params.rows_per_thread >= shape[0]
        and params.tx * params.ty <= 512
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(
    "rows, columns", [(1024, 512), (1024, 2048), (4096, 768), (4096, 1280), (8192, 4096), (16_384, 1024), (32_768, 384)]
)
def test_parts_of_few_columns_meet_in_a_cluster(rows, columns, dtype):
    """For most multiprocessors, whose blocks are all there at once; a thread has a row at least."""
    params, sm_count = sum_of_columns(rows, columns, dtype=dtype), targets.of("cuda:sm_90").properties.sm_count
    blocks = -(-columns // (params.tx * params.access.lanes)) * params.cluster
    assert params.cluster > 1 and params.split == params.coalesced_rows == 1
    assert 0.7 * sm_count <= blocks <= 3 * sm_count
    assert params.ty * params.rows_per_thread * params.cluster <= rows


@pytest.mark.parametrize("shape", [(64, 4096), (512, 1024), (8192, 16_384), (131_072, 64), (262_144, 1024)])
def test_parts_meet_in_clusters_only_where_these_suffice(shape):
    """Not where there are blocks enough without, nor where even the largest clusters leave multiprocessors without one,
    nor where a second kernel's time is little of the whole."""
    assert sum_of_columns(*shape, dtype=np.float32).cluster == 1


def test_exponentials_of_columns_do_not_meet_in_clusters():
    assert all(
        stage.cluster == 1
        for stage in first_choice(lambda x: mnp.softmax(x, axis=0), (65_536, 256)).own.schedules
        if stage.scheduler == "columns"
    )


def softmax_of_columns(x):
    return mnp.softmax(x, axis=0)


def standardized_columns(x):
    apart = x - x.mean(0, keepdims=True)
    return apart / np.sqrt((apart * apart).mean(0, keepdims=True) + 1e-5)


@pytest.mark.parametrize(
    "fn, dtype, shapes",
    [
        (softmax_of_columns, np.float32, [(2048, 256), (1024, 16_384), (4096, 4096), (8192, 8192)]),
        (standardized_columns, np.float32, [(2048, 256), (1024, 16_384), (4096, 4096), (8192, 8192)]),
        (softmax_of_columns, np.float16, [(1024, 4096), (768, 65_536)]),
        (standardized_columns, np.float16, [(512, 4096), (1024, 1024), (4096, 16_384), (16_384, 4096)]),
    ],
)
def test_columns_are_kept_in_shared_memory(fn, dtype, shapes):
    """They are read once, by two blocks a multiprocessor at least."""
    for shape in shapes:
        params = first_choice(fn, shape, dtype=dtype)
        assert params.stages and params.stages * params.ty * params.cluster >= shape[0]
        assert 2 * params.stages * params.tx * params.ty * 16 < 228 << 10


@pytest.mark.parametrize(
    "fn, dtype, shape",
    [
        (softmax_of_columns, np.float32, (65_536, 256)),
        (softmax_of_columns, np.float32, (8192, 32)),
        (softmax_of_columns, np.float16, (4096, 4096)),
        (standardized_columns, np.float32, (16_384, 4096)),
    ],
)
def test_columns_are_read_once_more_where_that_is_faster(fn, dtype, shape):
    """Large clusters wait too long for each other, and half types' exponentials take longer than a second read."""
    assert first_choice(fn, shape, dtype=dtype).scheduler == "multi_stage"


@pytest.mark.parametrize("fn", [softmax_of_columns, standardized_columns])
def test_few_rows_of_columns_are_held_in_registers(fn):
    assert first_choice(fn, (512, 1024)).persistent and first_choice(fn, (128, 65_536), dtype=np.float16).persistent


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("shape", [(17, 50_257), (127, 50_257), (64, 131_072), (256, 262_144)])
def test_few_threads_share_a_column_of_many(shape, dtype):
    """There are threads enough without; 16 to a column and one row each took 1.3 times as long."""
    params = sum_of_columns(*shape, dtype=dtype)
    assert (
        params.ty <= (8 if params.access.lanes > 1 else 16)
        and params.rows_per_thread >= 4
        and params.split == params.coalesced_rows == 1
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(
    "rows, columns", [(131_072, 257), (32_768, 770), (65_536, 128), (262_144, 256), (262_144, 1024)]
)
def test_parts_of_columns_run_at_once(rows, columns, dtype):
    """A part that waits for another's end takes as long again; and the fewer parts, the sooner they are combined."""
    params, properties = sum_of_columns(rows, columns, dtype=dtype), targets.of("cuda:sm_90").properties
    blocks = -(-columns * params.coalesced_rows // (params.tx * params.access.lanes)) * params.split
    assert properties.sm_count * 3 // 4 <= blocks <= properties.sm_count * 3
    assert properties.sm_count * 256 <= blocks * params.tx * params.ty <= properties.sm_count * 768


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("shape", [(32_768, 257), (8192, 770), (8192, 2049), (8192, 4099)])
def test_parts_of_odd_rows_run_at_once(shape, dtype):
    """Too many made the kernel that combines them take as long as the other, too few (16384×4099) left most threads of
    the machine without work."""
    sm_count = targets.of("cuda:sm_90").properties.sm_count
    for fn in (lambda x: x.sum(0), lambda x: x.var(0)):
        params = first_choice(fn, shape, dtype=dtype)
        blocks = -(-shape[1] * params.coalesced_rows // (params.tx * params.access.lanes)) * params.split
        assert (
            params.coalesced_rows > 1
            and 0.5 * sm_count <= blocks
            and sm_count * 256 <= blocks * params.tx * params.ty <= sm_count * 580
        )


@pytest.mark.parametrize("rows", [16, 64, 256])
def test_columns_are_read_by_whole_vectors_where_there_are_blocks_enough(rows):
    assert sum_of_columns(rows, 16_384, dtype=np.float32).access.lanes == 4
    assert sum_of_columns(rows, 4096, dtype=np.float32).access.lanes < 4


@pytest.mark.parametrize("dtype, parts", [(np.float32, 1), (np.float16, 4)])
def test_several_rows_share_what_is_read_by_elements(dtype, parts):
    def standardized(x, mean, scale):
        return ((x - mean) * scale).astype(x.dtype)

    columns = (8191,)
    assert first_choice(standardized, (4096, *columns), columns, columns, dtype=dtype).own.row_segments == parts
    assert first_choice(lambda x, b: x + b, (4096, *columns), columns, dtype=dtype).own.row_segments == 1
    assert first_choice(lambda x, b: x + b, (4096, 8192), (8192,), dtype=dtype).own.row_segments == 0


def normalized(x, mean, var, weight, bias):
    return (x - mean) * (1 / np.sqrt(var + 1e-5)) * weight + bias


@pytest.mark.parametrize(
    "fn, rows",
    [
        (lambda *of: np.maximum(normalized(*of), 0), 4),
        (lambda x, mean, *_: x - mean, 1),  # a load, which takes no longer than the element's
        (lambda *of: np.exp(np.sin(np.exp(normalized(*of)))), 1),
    ],
    ids=["norm", "one load", "elements that take longer"],
)
def test_rows_share_what_depends_on_the_column_alone(fn, rows):
    columns = [(256,)] * 4
    assert first_choice(fn, (131_072, 256), *columns).rows_per_thread == rows
    assert first_choice(fn, (512, 256), *columns).rows_per_thread == 1  # threads enough come first


@pytest.mark.parametrize(
    "fn, shape",
    [(mnp.softmax, (16384, 8192)), (mnp.softmax, (4096, 16384)), (lambda x: mnp.logsumexp(x, -1), (4096, 131072))],
)
def test_few_exponentials_are_computed_at_once(fn, shape):
    """A thread's code has at most some 40 of them, however long its row is: 70 took the driver twice as long to
    compile, and were no faster."""
    text = mlirfuse.jit(fn, target="cuda:sm_90").lower(np.empty(shape, np.float16)).as_text("ptx")
    assert 8 <= text.count("ex2.approx") <= 40


@pytest.mark.parametrize(
    "fn, dtype, inputs", [(lambda x: x - x.mean(0), np.float32, 1), (lambda x, y, z: (x * y + z).sum(0), np.float64, 3)]
)
def test_columns_take_powers_of_two_of_threads(fn, dtype, inputs):
    """Whatever the number of rows: threads find their place by shifts and masks."""
    lowered = mlirfuse.jit(fn, target="cuda:sm_90").lower(*(np.empty((64, 4096), dtype) for _ in range(inputs)))
    program = Program(lowered.segmented(), targets.of("cuda:sm_90"), lowered.env)
    rows, columns = map(str, program.graph.args[0].shape)
    for n in range(1, 1100):
        for m in (24, 2344, 4096, 80_000):
            for params in itertools.islice(
                SCHEDULERS.candidates(
                    program.steps[0].analysis, SizedCall({rows: n, columns: m}, {}, program.target.properties)
                ),
                4,
            ):
                if getattr(params, "scheduler", "") == "columns":
                    assert (
                        all(k & (k - 1) == 0 for k in (params.tx, params.ty, params.split))
                        and params.tx * params.ty <= 1024
                    )
                    assert params.rows_per_thread in (1, 2, 4, 8, 12, 16)


@pytest.mark.parametrize("chip", ["sm_75", "sm_80", "sm_86", "sm_90", "sm_120"])
@pytest.mark.parametrize("shape", [(151_477, 400), (300_000, 257 * 8), (100_000, 1001)])
def test_parts_of_long_columns_for_all_multiprocessors(shape, chip):
    """Of machines with half as many threads a multiprocessor too."""
    target = targets.of(f"cuda:{chip}")
    lowered = mlirfuse.jit(lambda x: x.sum(0), target=f"cuda:{chip}").lower(np.empty(shape, np.float32))
    (params,) = Program(lowered.segmented(), target, lowered.env).parameters(lowered.env, {})
    blocks = -(-shape[1] * params.coalesced_rows // (params.tx * params.access.lanes)) * params.split * params.cluster
    assert blocks >= target.properties.sm_count / 2


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_weights_are_under_way_before_reductions_where_registers_hold_them(dtype):
    """All of few rows; of many only what leaves registers for other blocks, which wait for memory meanwhile."""

    def norm(x, weight, bias):
        return mnp.layer_norm(x, weight, bias)

    for rows, columns in itertools.product((16, 64, 4096, 65_536), (128, 257, 770, 1024, 4096, 8191, 8192, 10_240)):
        params = first_choice(norm, (rows, columns), (columns,), (columns,), dtype=dtype)
        if not params.vectors_per_thread or params.in_shared:
            assert not params.prefetch
            continue
        registers = 3 * params.vectors_per_thread * max(1, params.access.lanes * np.dtype(dtype).itemsize // 4)
        if params.prefetch:
            assert params.min_blocks_per_sm == 1 and registers <= (
                96 if rows * params.tx * params.cluster <= 132 * 256 else 64
            )
        else:
            assert params.min_blocks_per_sm > 1 or registers > 48
    assert first_choice(norm, (16, 8191), (8191,), (8191,), dtype=dtype).prefetch
    long = 8192 if dtype == np.float32 else 8191
    assert not first_choice(norm, (65_536, long), (long,), (long,), dtype=dtype).prefetch
    bounded = first_choice(
        lambda x, weight: mnp.rms_norm(x, weight), (4, 36_093), (36_093,), dtype=dtype
    )  # few rows, but the registers of 2 or 3 blocks
    assert bounded.min_blocks_per_sm > 1 and not bounded.prefetch


def test_loading_first_is_tried_both_ways():
    """Where something is read after the reductions only."""

    def ways(fn, *shapes) -> set[bool]:
        lowered = mlirfuse.jit(fn, target="cuda:sm_90").lower(*(np.empty(shape, np.float32) for shape in shapes))
        program = Program(lowered.segmented(), targets.of("cuda:sm_90"), lowered.env)
        (step,) = program.steps
        found = list(SCHEDULERS.candidates(step.analysis, SizedCall(lowered.env, {}, program.target.properties)))
        return {
            p.prefetch
            for p in found
            if p.scheduler == found[0].scheduler and p._replace(prefetch=False) == found[0]._replace(prefetch=False)
        }

    assert ways(lambda x, w: mnp.rms_norm(x, w), (64, 1024), (1024,)) == {True, False}
    assert ways(lambda x, y: mnp.softmax(x) * y, (64, 1024), (64, 1024)) == {True, False}
    assert len(ways(mnp.softmax, (64, 1024))) == 1


def norm_backward(g, x, w):
    centred = x - x.mean(-1, keepdims=True)
    gw = g * w
    return (gw - centred * (gw * centred).mean(-1, keepdims=True)).astype(x.dtype), (g * centred).sum(0).astype(x.dtype)


def backward_choice(rows, columns, dtype=np.float32):
    return first_choice(norm_backward, (rows, columns), (rows, columns), (columns,), dtype=dtype)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_many_rows_are_summed_in_the_pass_that_normalizes_them(dtype):
    """Of short ones a block has several at a time; long ones have all of a block's threads."""
    short, long = backward_choice(65_536, 256, dtype), backward_choice(16_384, 4096, dtype)
    assert short.own.form == long.own.form == "together"
    assert short.own.schedules[0].ty >= 4 and short.own.schedules[0].tx <= 32 and short.own.schedules[0].stages
    assert long.own.schedules[0].ty == 1 and long.own.schedules[0].tx >= 256


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize(
    "rows, columns", [(2, 4096), (64, 1024), (512, 768), (512, 65_536), (4096, 40_000), (16_384, 32_768)]
)
def test_few_rows_and_long_ones_are_summed_apart(rows, columns, dtype):
    """Partial sums would be as much to write as there is to read, or a multiprocessor does not hold a row."""
    assert backward_choice(rows, columns, dtype).own.form == "apart"


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("columns", [4097, 8191])
def test_rows_of_odd_lengths_are_summed_as_others_are(columns, dtype):
    assert backward_choice(16_384, columns, dtype).own.form == "together"
    assert backward_choice(64, columns, dtype).own.form == "apart"


@pytest.mark.parametrize("columns, dtype", [(257, np.float32), (8191, np.float32), (8190, ml_dtypes.bfloat16)])
def test_rows_are_loaded_once_though_they_end_within_a_vector(columns, dtype):
    """A turn before they are needed: what is loaded then is found again. The first row's loads are before the loop, the
    next one's in it, a weight's before."""
    x = np.empty((16_384, columns), dtype)
    p = backward_choice(16_384, columns, dtype).own.schedules[0]
    kernel = (
        mlirfuse.jit(norm_backward, target="cuda:sm_90")
        .lower(x, x, x[0])
        .as_text("ptx")
        .split(".entry mlirfuse_inner_outer0_0(")[1]
        .split(".entry")[0]
    )
    assert p.unmasked == p.vectors_per_thread - 1 and not p.stages
    assert kernel.count("ld.global") == p.vectors_per_thread * (1 + 2 * 2)


@pytest.mark.parametrize("columns", [257, 770, 5120])
def test_threads_have_little_behind_the_end_of_rows_that_they_sum_up(columns):
    for params in (backward_choice(65_536, columns), backward_choice(65_536, columns, ml_dtypes.bfloat16)):
        p = params.own.schedules[0]
        assert (
            params.own.form == "together"
            and p.tx * p.vectors_per_thread * p.access.lanes < 1.65 * columns
            and not p.stages
        )


def test_what_threads_have_no_registers_for_is_copied_ahead():
    """Though it is not as much for each: the next row of 1024 threads, of vectors of which a copy is not too little."""
    wide, narrow = backward_choice(16_384, 12_000).own.schedules[0], backward_choice(16_384, 10_001).own.schedules[0]
    assert (
        wide.tx == narrow.tx == 1024
        and wide.unmasked < wide.vectors_per_thread
        and wide.stages == 2
        and not narrow.stages
    )


def test_the_shortest_rows_are_not_copied_ahead():
    """The copies take longer than what they bring."""
    for dtype in (np.float32, ml_dtypes.bfloat16):
        for columns in (24, 32):
            p = backward_choice(262_144, columns, dtype).own.schedules[0]
            assert p.tx == 8 and not p.stages


@pytest.mark.parametrize(
    "fn, shape",
    [
        (lambda x, t, at: (x - x.mean(-1, keepdims=True)) * t[at], (11, 1024)),
        (lambda x, y, at: (x - x.mean(-1, keepdims=True)) * y[1:], (9, 1024)),
    ],
)
def test_only_what_lies_where_the_row_does_is_loaded_before_its_reductions(fn, shape):
    """Of what is taken or sliced there is nothing at the row's own index: the rows that are used are loaded where they
    are used, and no others."""
    x, at = np.empty((8, 1024), np.float32), np.arange(8)
    assert "trap" in mlirfuse.jit(lambda x, y: (x - x.mean(-1, keepdims=True)) * y, target="cuda:sm_90").lower(
        x, x
    ).as_text("ptx")
    assert "trap" not in mlirfuse.jit(fn, target="cuda:sm_90").lower(x, np.empty(shape, np.float32), at).as_text("ptx")


def test_variants_do_not_differ_by_loads_that_there_are_not():
    """Without weights, and without anything else to read late, there is one way to load rows."""
    norm = lambda x: (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)  # noqa: E731
    assert first_choice(norm, (16, 24_576), dtype=np.float16) == first_choice(norm, (256, 24_576), dtype=np.float16)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("shape", [(32, 256, 56, 56), (8, 512, 32, 32), (4, 128, 256, 256), (64, 1024, 7, 7)])
def test_group_norm_reads_its_input_once(shape, dtype):
    """In one kernel, which keeps a group of channels; weights of channels do not count as rows."""
    params = first_choice(lambda x, w, b: mnp.group_norm(x, 32, w, b), shape, shape[1:2], shape[1:2], dtype=dtype)
    assert params.vectors_per_thread


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("columns", [33, 49, 63, 66, 99, 127, 130, 129])
def test_short_odd_rows_have_few_threads(columns, dtype):
    """Each with several elements: lines that a warp's access has a part of are all read soon."""
    params = first_choice(lambda x: x.sum(-1), (262_144, columns), dtype=dtype)
    assert params.tx <= 32 and params.vectors_per_thread >= 2
    assert params.tx * params.vectors_per_thread * params.access.lanes < columns + 8 * params.tx * params.access.lanes


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("shape", [(16_384, 4096), (4096, 2048), (4096, 768), (512, 3072), (256, 1024)])
def test_columns_that_are_written_too_are_in_many_parts(shape, dtype):
    """With few rows under way at a time, and not in a cluster: what is made of an element takes registers. Half types
    are loaded by vectors of four."""
    relu = lambda x: (np.maximum(x, 0), np.maximum(x, 0).sum(0))  # noqa: E731
    params = first_choice(relu, shape, dtype=dtype)
    across = -(-shape[1] // (params.tx * params.access.lanes))
    assert params.cluster == 1 and params.split * across >= 64
    assert params.access.lanes == 4 and params.rows_per_thread * params.access.lanes <= 32


def test_columns_that_are_only_summed_meet_in_clusters():
    assert first_choice(lambda x: x.sum(0), (16_384, 4096), dtype=ml_dtypes.bfloat16).cluster > 1


def test_columns_are_written_without_a_branch():
    """Rows of a turn are computed together then: around a branch, the last rows would wait for the first one's."""
    relu = lambda x: (np.maximum(x, 0), np.maximum(x, 0).sum(0))  # noqa: E731
    x = np.empty((16_384, 4096), ml_dtypes.bfloat16)
    ptx = mlirfuse.jit(relu, target="cuda:sm_90").lower(x).as_text("ptx")
    loop = max(re.split(r"^\$L__BB\w+:", ptx, flags=re.M), key=lambda block: block.count("ld.global"))
    assert loop.count("ld.global") == len(re.findall(r"@%p\d+ st\.global", loop)) > 1


def test_vectors_of_what_is_concatenated_are_several_under_way():
    params = first_choice(lambda a, b: np.concatenate([a, b], 1) * 2, (8192, 1000), (8192, 2001))
    assert params.access.lanes * params.vectors_per_thread == 8  # vectors run across the ends of the odd rows


def test_a_gradient_is_added_to_its_weight_in_place():
    """The rows do not read the weight, so that what makes its gradient writes over it: no kernel more."""

    def step(g, x, w):
        centred = x - x.mean(-1, keepdims=True)
        w -= np.float32(0.1) * (g * centred).sum(0)
        return centred * g

    def step_that_reads_it(g, x, w):
        centred = x - x.mean(-1, keepdims=True)
        gradient = (g * centred).sum(0)
        out = centred * g * w
        w -= np.float32(0.1) * gradient
        return out

    arrays = [np.empty(s, np.float32) for s in ((21, 96), (21, 96), 96)]
    assert mlirfuse.jit(step, target="cuda:sm_90").lower(*arrays).kernels == 2
    assert mlirfuse.jit(step_that_reads_it, target="cuda:sm_90").lower(*arrays).kernels == 3


@pytest.mark.parametrize(
    "fn, shapes",
    [
        (mnp.softmax, [(4096, 1024)]),
        (lambda x: x.sum(-1), [(4096, 1024)]),
        (norm_backward, [(4096, 1024), (4096, 1024), 1024]),
    ],
)
def test_numbers_of_rows_that_differ_little_share_a_choice(fn, shapes, monkeypatch):
    """A call with some rows more or fewer does not run the model again; one with many fewer does, where their number
    matters."""
    worked_out = []
    for owner, name in (
        (row_choice.RowsOfSize, "choice"),
        (column_choice.ColumnsOfSize, "choice"),
        (gpu_inner_outer, "_ordered"),
    ):
        created = getattr(owner, name)
        monkeypatch.setattr(
            owner, name, lambda *given, created=created, name=name: worked_out.append(name) or created(*given)
        )
    lowered = mlirfuse.jit(fn, target="cuda:sm_90").lower(*(np.empty(shape, np.float32) for shape in shapes))
    program = Program(lowered.segmented(), targets.of("cuda:sm_90"), lowered.env)

    def chosen(rows):
        return program.parameters({name: rows if size == 4096 else size for name, size in lowered.env.items()}, {})

    first = chosen(4100)
    worked_out.clear()
    assert [chosen(rows) for rows in (4096, 4101, 4220)] == [first] * 3
    assert not worked_out
    assert chosen(16) != first
    assert worked_out


def test_numbers_of_rows_are_known_to_a_32nd():
    for rows in (*range(1, 5000), 10**6, 2**31):
        assert rows * 31 / 32 < row_choice.leading_bits(rows) <= rows
    assert all(row_choice.leading_bits(rows) == rows for rows in (*range(64), 132, 264))


def test_another_gpu_is_fitted_by_filling_in_fields(monkeypatch):
    """A threshold of the model of an architecture changes the choices for it, and for no other."""

    def threads(chip: str) -> int:
        lowered = mlirfuse.jit(lambda x: mnp.softmax(x, axis=-1), target=chip).lower(np.empty((8192, 4096), np.float32))
        program = Program(lowered.segmented(), targets.of(chip), lowered.env)
        (params,) = program.parameters(lowered.env, {})
        return params.tx

    before = threads("cuda:sm_90"), threads("cuda:sm_80")
    fit(monkeypatch, "rows.registers", chip="sm_80", usual=8)  # 8 of 512 threads
    assert (threads("cuda:sm_90"), threads("cuda:sm_80")) == (before[0], 2 * before[1])


@pytest.mark.parametrize("dtype, width", [(np.float32, 1408), (np.float16, 1152)])
def test_threads_of_a_row_beside_a_batchs_scale_have_vectors_of_it(dtype, width):
    """What several rows share is not held, and few threads have no vector: 92 → 73 µs."""
    params = first_choice(
        lambda x, s: (x - x.mean(-1, keepdims=True)) * s[:, None], (64, 1024, width), (64, width), dtype=dtype
    )
    assert params.tx * params.vectors_per_thread * params.access.lanes <= 1.25 * width


def chosen(fn, *args):
    """The analysed steps of a function on an H100, and their schedules."""
    target = targets.of("cuda:sm_90")
    lowered = mlirfuse.jit(fn, target="cuda:sm_90").lower(*args)
    program = Program(lowered.segmented(), target, lowered.env)
    return lowered.env, list(zip(program.steps, program.parameters(lowered.env, {})))


def test_a_reduction_reads_in_the_order_of_its_input():
    """Also where its result, which is a small part of what it reads, lies in another order."""
    turned = lambda x: mnp.ascontiguousarray(mnp.transpose((2 * x).sum(0), (1, 2, 0)))  # noqa: E731
    env, ((step, _),) = chosen(turned, np.empty((64, 8, 128, 512), np.float32))
    (x,) = step.analysis.inputs
    strides = [sz.substitute(step.analysis.axis_stride(x, axis), env) for axis in step.analysis.kept]
    assert strides == sorted(strides, reverse=True) and strides[-1] == 1


def test_long_rows_of_a_slice_are_split():
    """As those of an array: a block for each of four rows would leave all other multiprocessors idle."""

    def standardized(x, n):
        x = x.reshape(-1)[:n].reshape(4, -1)
        return (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True)

    x = np.empty((2100, 8192), np.float32)
    for n in (x.size, 4 << 22):
        _, found = chosen(lambda x, n=n: standardized(x, n), x)
        assert found[0][1].scheduler == "multi_stage", n


@pytest.mark.parametrize("channels, tile", [(128, 64), (144, 32), (32, 32), (96, 32), (1000, 64)])
def test_tiles_that_the_tensor_fills(channels, tile):
    """Smaller tiles where the last ones along a loop would be empty for more than a tenth of all."""
    _, ((_, params),) = chosen(
        lambda x: mnp.ascontiguousarray(mnp.transpose(x * 2, (0, 2, 1))), np.empty((64, 3249, channels), np.float32)
    )
    assert (params.scheduler, params.own.tile) == ("transpose", tile)


@pytest.mark.parametrize("kernel, rows", [(2, 2), (3, 1), (5, 1)])
def test_elements_of_many_loads_have_one_row_a_thread(kernel, rows):
    """Each element has several loads in flight, which the next row's would only lengthen."""

    def largest(x):  # of windows below each other in memory
        height, width = x.shape[1] - kernel + 1, x.shape[2] - kernel + 1
        windows = [x[:, a : a + height, b : b + width] for a in range(kernel) for b in range(kernel)]
        return functools.reduce(np.maximum, windows)

    _, ((_, params),) = chosen(largest, np.empty((32, 65, 65, 64), np.float16))
    assert (params.scheduler, params.vectors_per_thread) == ("pointwise", 1)
    assert params.rows_per_thread <= rows


@pytest.mark.parametrize("dtype, scheduler", [(np.float16, "pointwise"), (np.float32, "stencil")])
def test_odd_rows_of_half_types_that_share_no_loads_have_vectors(dtype, scheduler):
    """Windows of 5 with a stride of 3 and padding: a stencil's thread would write one 16-bit float."""

    def windows(x):
        padded = np.pad(x, ((0, 0), (2, 2)))
        return functools.reduce(np.add, [padded[:, k : k + 3001 : 3] for k in range(5)])

    _, ((_, params),) = chosen(windows, np.empty((8192, 3001), dtype))
    assert params.scheduler == scheduler
