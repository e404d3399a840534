"""Positions that are not in their array: an IndexError as NumPy's, from the kernel that meets one; on a GPU where
`config.check_indices` says so, its kernels run by the emulator."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_emulator import Launch, Memory, parse, room_for

import mlirfuse
from mlirfuse.core import sites
from mlirfuse.lowering.slots import BAD_INDEX
from mlirfuse.runtime import load
from mlirfuse.runtime.program import CompiledProgram, Program
from mlirfuse.schedule import targets
from mlirfuse.schedule.gpu.scheduler_list import SCHEDULERS
from mlirfuse.schedule.scheduler import SizedCall


def lookup(image, table):
    """A table of colours applied to an image, as palettes and equalization do."""
    return table[image]


def resize(image, rows, columns):
    """Nearest neighbours."""
    return image[rows[:, None], columns] * 1.0


def sparse_product(values, columns, vector):
    """A matrix of k elements a row, in ELLPACK's form, times a vector."""
    return (values * vector[columns]).sum(axis=1)


def one_hot(labels, classes):
    out = np.zeros((labels.shape[0], classes.shape[0]))
    out[np.arange(labels.shape[0]), labels] = 1.0
    return out


def neighbours(field, links):
    """The mean over each node's neighbours, less the node's own."""
    return np.take(field, links).mean(axis=-1) - field


def picked(scores, choice):
    return np.take_along_axis(scores, choice[:, None], axis=1)[:, 0]


def relabelled(labels, where, value):
    labels[where] = value
    return labels * 2


def pointed(values, pointer):
    return values[pointer[0]] + values[0]


def moved(out, values, order):
    """Written before the positions are looked at."""
    out[...] = values.sum()
    out += values[order]
    return out


def counted(total, bins, weights):
    np.add.at(total, bins, weights)
    return total


RNG = np.random.default_rng(0)
FLOATS = RNG.random(12)
PROGRAMS = {  # arguments, and which of them holds positions into an axis of which extent
    "lookup": (lookup, (RNG.integers(0, 12, (9, 40)).astype(np.uint8), FLOATS), 0, 12),
    "resize": (resize, (RNG.random((6, 7)), np.array([0, 2, 5]), np.array([0, -7, 6, 3])), 2, 7),
    "resize-rows": (resize, (RNG.random((6, 7)), np.array([0, -6, 5]), np.array([0, 1, 6])), 1, 6),
    "sparse": (sparse_product, (RNG.random((30, 5)), RNG.integers(0, 12, (30, 5)), FLOATS), 1, 12),
    "one-hot": (one_hot, (RNG.integers(0, 4, 20), np.zeros(4)), 0, 4),
    "neighbours": (neighbours, (FLOATS, RNG.integers(0, 12, (12, 3))), 1, 12),
    "picked": (picked, (RNG.random((12, 5)), RNG.integers(0, 5, 12).astype(np.int32)), 1, 5),
    "relabelled": (relabelled, (np.arange(12), np.array([3, -1, 7]), 5), 1, 12),
    "pointed": (pointed, (FLOATS, np.array([3])), 1, 12),
    "moved": (moved, (np.zeros(12), FLOATS, RNG.permutation(12)), 2, 12),
    "counted": (counted, (np.zeros(12), RNG.integers(0, 12, 50), RNG.random(50)), 1, 12),
}


def copies(args):
    return [a.copy() if isinstance(a, np.ndarray) else a for a in args]


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name):
    """Right positions give NumPy's result, wrong ones its error, with the line, and leave the arguments as they
    were."""
    fn, args, which, extent = PROGRAMS[name]
    compiled = mlirfuse.jit(fn, fallback=False)
    ours, theirs = copies(args), copies(args)
    np.testing.assert_allclose(compiled(*ours), fn(*theirs), rtol=1e-12)
    for wrong in (extent, extent + 100, -extent - 1):
        if np.issubdtype(args[which].dtype, np.unsignedinteger) and wrong < 0:
            continue
        bad = copies(args)
        bad[which].flat[-1] = wrong
        before = copies(bad)
        with pytest.raises(IndexError, match=f"index {wrong} is out of bounds for axis . with size {extent}") as error:
            compiled(*bad)
        with pytest.raises(IndexError, match=f"index {wrong} is out of bounds"):
            fn(*copies(args)[:which], bad[which], *copies(args)[which + 1 :])
        assert "test_indices.py" in str(error.value)
        for now, was in zip(bad, before):
            np.testing.assert_array_equal(now, was)
        np.testing.assert_allclose(compiled(*copies(args)), fn(*copies(args)), rtol=1e-12)  # the error is over


def test_vectors_and_their_tails():
    """Wherever in a vector the wrong position is, and at no other: elements behind the end are not looked at."""
    compiled = mlirfuse.jit(lambda x, i: x[i - 1] * 2, fallback=False)
    x = np.arange(50.0)
    for n in (1, 3, 8, 17, 40):
        good = np.arange(1, n + 1)
        np.testing.assert_array_equal(compiled(x, good), x[good - 1] * 2)
        for at in range(n):
            bad = good.copy()
            bad[at] = 51 + at
            with pytest.raises(IndexError, match=f"index {50 + at} is out"):
                compiled(x, bad)


@pytest.mark.parametrize("mode", ["clip", "wrap"])
def test_modes_that_have_no_wrong_positions(mode):
    compiled = mlirfuse.jit(lambda x, i: np.take(x, i, mode=mode), fallback=False)
    i = np.array([0, 13, -20, 5])
    np.testing.assert_array_equal(compiled(FLOATS, i), np.take(FLOATS, i, mode=mode))


def test_an_axis_without_elements():
    compiled = mlirfuse.jit(lambda x, i: x[i], fallback=False)
    np.testing.assert_array_equal(compiled(FLOATS[:0], np.arange(0)), FLOATS[:0])
    with pytest.raises(IndexError):
        compiled(FLOATS[:0], np.array([0]))


# ---- a GPU's kernels


def told(fn, x, positions) -> list[int]:
    """What kernels for sm_90 tell of positions, run by the emulator: the flag, the position, its place, the extent."""
    target = targets.of("cuda:sm_90")
    lowered = mlirfuse.jit(fn, target="cuda:sm_90").lower(x, positions)
    env = lowered.env
    program = Program(lowered.segmented(), target, env)
    slots = program.slots()
    params = tuple(SCHEDULERS.choose(step.analysis, SizedCall(env, {}, target.properties)) for step in program.steps)
    module = target.write(program, params, slots)
    code = parse(load.ptx_of(module.tiled(), target.properties.chip))
    compiled_program = CompiledProgram(params, module, slots, 0, None)
    program.add_plan(compiled_program)
    plan = program.plan(compiled_program, env)
    memory = Memory(room_for([x.nbytes, positions.nbytes, 1 << 16, 64, plan.workspace]))
    flag = memory.allocate(np.zeros(4, np.int64), writable=True)
    addresses = {}
    for position, data in zip(program.pointer_args, (x, positions)):
        addresses[slots.pointers[program.graph.args[position]]] = memory.allocate(data, writable=False)
    for value in program.outputs:
        addresses[slots.pointers[value]] = memory.allocate(np.zeros(1 << 15, np.uint8), writable=True)
    workspace = memory.allocate(np.zeros(max(plan.workspace, 1), np.uint8), writable=True)
    ints = list(plan.ints)
    if ("handle", BAD_INDEX) in slots.ints:
        ints[slots.ints["handle", BAD_INDEX]] = flag
    for kernel in module.kernels:
        passed = [
            addresses[slot] if kind == "pointer" else workspace + ints[slot] if kind == "temporary" else ints[slot]
            for kind, slot in kernel.passed
        ]
        grid = ints[slots.size(kernel.grid)]
        Launch(code[kernel.name], memory, passed, grid, kernel.threads, kernel.dynamic_shared, kernel.cluster).run()
    return memory.fetch(flag, (4,), np.dtype(np.int64)).tolist()


@pytest.mark.parametrize("fn", [
    lambda x, i: x[i] * 2, lambda x, i: np.take(x, i, axis=0).sum(), lambda x, i: x[:, None][i] + 1,
], ids=range(3))  # fmt: skip
def test_kernels_of_a_gpu(fn):
    x, good = np.arange(50, dtype=np.float32), np.arange(300) % 50
    with mlirfuse.config.override(check_indices=True):
        assert told(fn, x, good) == [0, 0, 0, 0]
        for at, wrong in ((0, 50), (299, -51)):
            bad = good.copy()
            bad[at] = wrong
            flag, position, site, extent = told(fn, x, bad)
            assert (flag, position, extent) == (1, wrong, 50)
            (place, line), axis, _ = sites._SITES[site]
            assert place.endswith("test_indices.py") and line > 0 and axis == 0


def test_a_gpu_is_not_asked_by_default():
    x, i = np.arange(50, dtype=np.float32), np.arange(30)
    text = [mlirfuse.jit(lambda x, i: x[i], target="cuda:sm_90").lower(x, i).as_text("segmented")]
    with mlirfuse.config.override(check_indices=True):
        text.append(mlirfuse.jit(lambda x, i: x[i], target="cuda:sm_90").lower(x, i).as_text("segmented"))
    assert ["fusion.position" in t for t in text] == [False, True]


def test_synchronize_raises_what_a_kernel_has_told():
    """As a GPU's kernel tells it, after the call: by memory that both see."""
    import ctypes

    from mlirfuse import _native

    cells = (ctypes.c_int64 * 4).from_address(_native.symbols()[BAD_INDEX])
    mlirfuse.synchronize()
    cells[1], cells[2], cells[3], cells[0] = 7, sites.site_of(None, 2), 5, 1
    with pytest.raises(IndexError, match="index 7 is out of bounds for axis 2 with size 5"):
        mlirfuse.synchronize()
    mlirfuse.synchronize()


def _caught(a, i):
    try:
        return np.take(a, i) + 1
    except IndexError:
        return np.zeros(len(i))
    finally:
        a[0] = 5


def _partly_written(pair, i):
    a, b = pair
    a[0] = 7
    b += 1
    c = a[i]
    b *= 2
    return c


@pytest.mark.parametrize("cached", [False, True])
def test_numpy_runs_calls_with_an_index_out_of_range_again(cached):
    """So that the function's own handlers catch the error, and what was written before it stays."""
    caught, partly = mlirfuse.jit(_caught), mlirfuse.jit(_partly_written)
    if cached:
        caught(np.arange(4.0), np.array([0, 2]))
        partly([np.arange(4.0), np.ones(2)], np.array([0, 2]))
    a, wrong = np.arange(4.0), np.array([0, 9])
    np.testing.assert_array_equal(caught(a, wrong), [0, 0])
    assert a[0] == 5
    pair = [np.arange(4.0), np.ones(2)]
    with pytest.raises(IndexError, match="index 9 is out of bounds for axis 0 with size 4") as error:
        partly(pair, wrong)
    assert error.traceback[-1].lineno == _partly_written.__code__.co_firstlineno + 3
    np.testing.assert_array_equal(pair[0], [7, 1, 2, 3])
    np.testing.assert_array_equal(pair[1], [2, 2])
    with pytest.raises(IndexError, match="out of bounds"):
        mlirfuse.jit(_caught, fallback=False)(np.arange(4.0), wrong)
