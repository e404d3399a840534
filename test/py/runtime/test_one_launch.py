"""Kernels of one code that do not need each other are one launch in a program for a GPU, whatever the sizes of a call.
They are run by the emulator, and compiled for a stand-in for the driver in ``test_native_cuda.py``."""

from __future__ import annotations

import subprocess

import numpy as np
import pytest
from ptx_emulator import parse
from test_gpu_emulated import run

import mlirfuse
from mlirfuse.lowering.foreach import LEAST, GpuForeach
from mlirfuse.lowering.host import gpu_host
from mlirfuse.runtime import load
from mlirfuse.runtime.program import Program
from mlirfuse.schedule import targets
from mlirfuse.schedule.scheduler import SizedCall

SHAPES = {
    "vectors": [(16,), (4, 32), (2, 3, 48), (4096,), (16, 4), (1, 16), (48, 48), (1040,)],
    "odd": [(3,), (3, 5), (7,), (1025,), (2, 2), (2047,), (5,), (3, 3), (255,)],
    "both": [(16 * (1 + k % 3) + k % 2, 5) for k in range(24)],
    "many": [(16 * (1 + k % 3),) for k in range(130)],
}


def descend(*tensors):
    half = len(tensors) // 2
    return tuple(p - g * p.dtype.type(0.125) for p, g in zip(tensors[:half], tensors[half:]))


def arrays(shapes, dtype=np.float32):
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def compiled(fn, inputs, chip="sm_90", donated=False):
    """The program of a call, the sizes of the call and its parameters."""
    target = targets.of(f"cuda:{chip}")
    lowered = mlirfuse.jit(fn, target=f"cuda:{chip}").lower(*inputs)
    graph = lowered.segmented()
    graph.donated = set(range(len(graph.args))) if donated else set()
    program = Program(graph, target, lowered.env)
    return program, lowered.env, program.parameters(lowered.env, {})


def launched(program, params) -> list[int]:
    """How many members each launch has."""
    kernels = program.target.write(program, params, program.slots()).kernels
    return [len(k.members) if isinstance(k, GpuForeach) else 1 for k in kernels]


def same_alone(fn, inputs, monkeypatch, chip="sm_90", donated=False) -> list[int]:
    """Checks that results are those of kernels launched one by one, to the bit; gives the members of each launch."""
    program, env, params = compiled(fn, inputs, chip, donated)
    assert bool(program.graph.aliases) >= donated
    members = launched(program, params)
    results = run(program, env, params, inputs)
    monkeypatch.setattr(targets.GpuTarget, "one_launch", False)
    alone, env, params = compiled(fn, inputs, chip, donated)
    assert set(launched(alone, params)) == {1}
    for got, want in zip(results, run(alone, env, params, inputs), strict=True):
        np.testing.assert_array_equal(got, want)
    return members


@pytest.mark.parametrize("donated", [False, True], ids=["new", "in place"])
@pytest.mark.parametrize("chip", ["sm_80", "sm_90"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=["f32", "f16"])
@pytest.mark.parametrize("shapes", SHAPES)
def test_a_step_over_many_tensors(shapes, dtype, chip, donated, monkeypatch):
    given = arrays(SHAPES[shapes] * 2, dtype)
    members = same_alone(descend, given, monkeypatch, chip, donated)
    assert sum(members) == len(SHAPES[shapes]) and len(members) <= 2
    if shapes in ("vectors", "many"):
        assert len(members) == 1
    expected = descend(*[x.astype(np.float64) for x in given])
    program, env, params = compiled(descend, given, chip)
    for got, want in zip(run(program, env, params, given), expected, strict=True):
        np.testing.assert_allclose(got.astype(np.float64), want, rtol=0, atol=8 * np.finfo(dtype).eps)


def test_members_that_read_what_was_computed_before(monkeypatch):
    """The norm lies in the workspace, and a launch that starts early waits for it."""

    def clipped(*grads):
        norm = np.sqrt((grads[0] * grads[0]).sum())
        return tuple(g / norm for g in grads)

    inputs = arrays([(16 * (k + 1),) for k in range(12)])
    program, _, params = compiled(clipped, inputs)
    kernel = program.target.write(program, params, program.slots()).kernels[-1]
    assert kernel.waits == "before" and "_early" in kernel.text
    assert same_alone(clipped, inputs, monkeypatch) == [1, 11]


def test_members_that_write_what_others_read(monkeypatch):
    """Each tensor becomes twice the next one: all are computed in the workspace, then all are copied."""

    def around(*xs):
        created = [x * 2 for x in (*xs[1:], xs[0])]
        for x, y in zip(xs, created):
            x[...] = y

    inputs = arrays([(48,)] * 9)
    program, env, params = compiled(around, inputs)
    assert len(program.graph.aliases) == 9
    for k, got in enumerate(run(program, env, params, inputs)):
        np.testing.assert_array_equal(got, 2 * inputs[(k + 1) % 9])
    assert same_alone(around, inputs, monkeypatch) == [9, 9]


def test_a_launchs_part_of_the_workspace(monkeypatch):
    """What one member reads there for the last time is not yet free for what another writes."""

    def around(*given):
        xs, ys = given[:9], given[9:]
        created = [x * y.sum() for x, y in zip((*xs[1:], xs[0]), ys)]
        for x, y in zip(xs, created):
            x[...] = y

    inputs = arrays([(48,)] * 9 + [(32,)] * 9)
    program, _, params = compiled(around, inputs)
    slots = program.slots()
    program.target.write(program, params, slots)
    spans = program.lifetimes(slots)
    members = next(numbers for numbers in program.launches if len(numbers) > 1)
    for step in program.steps[members.start : members.stop]:
        held = [spans[v] for v in step.analysis.inputs + step.analysis.outputs if v in slots.temporaries]
        assert len(held) == 2 and all(first <= members.start <= last for first, last in held)
    assert same_alone(around, inputs, monkeypatch)[-2:] == [9, 9]


def test_numbers_and_broadcasts(monkeypatch):
    def scaled(rate, *xs):
        return tuple(x * rate for x in xs)

    rate = np.asarray(0.3, np.float32)
    members = same_alone(scaled, [rate, *arrays([(16 * (k + 1),) for k in range(8)])], monkeypatch)
    assert members == [8]

    def biased(*xs):
        return tuple(x + b for x, b in zip(xs[:8], xs[8:]))

    same_alone(biased, arrays([(6, 16)] * 8 + [(16,)] * 8), monkeypatch)


def test_others_are_launched_by_themselves():
    """Too few, other ops, other numbers, and what needs another member."""
    few, mixed = (arrays([(16 * (k + 1),) for k in range(n * (LEAST - 1))]) for n in (1, 2))
    chained = arrays([(16 * (k + 1),) for k in range(16)])

    def half(*xs):
        return tuple((np.exp if k % 2 else np.tanh)(x) for k, x in enumerate(xs))

    def numbered(*xs):
        return tuple(x * np.float32(k + 2) for k, x in enumerate(xs))

    for fn, inputs in ((descend, few + few), (half, mixed), (numbered, mixed)):
        program, _, params = compiled(fn, inputs)
        assert set(launched(program, params)) == {1}
    program, _, params = compiled(half, chained)
    assert sorted(launched(program, params)) == [8, 8]


@pytest.mark.parametrize("shapes", ["vectors", "odd", "both"])
def test_parameters_hold_for_each_member(shapes):
    """As they stand on the segments, where they are read and checked again."""
    inputs = arrays(SHAPES[shapes] * 2)
    program, env, params = compiled(descend, inputs)
    for step, chosen in zip(program.steps, params):
        program.target.schedulers.check(step.analysis, chosen, SizedCall(env, {}, program.target.properties))
    program.write_schedules(params)
    again = Program(program.graph, program.target, env)
    assert again.decided and again.parameters(env, {}) == params
    assert launched(again, params) == launched(program, params)


def test_one_variant_for_other_sizes_of_as_wide_vectors():
    program, _, params = compiled(descend, arrays(SHAPES["vectors"] * 2))
    target = targets.of("cuda:sm_90")
    shapes = [(8 * (k + 3), *shape[1:]) if shape[0] != 1 else shape for k, shape in enumerate(SHAPES["vectors"])]
    lowered = mlirfuse.jit(descend, target="cuda:sm_90").lower(*arrays(shapes * 2))
    found = program.parameters(lowered.env, {})
    assert (
        target.write(program, found, program.slots()).tiled() == target.write(program, params, program.slots()).tiled()
    )
    assert found == params


@pytest.mark.parametrize("misaligned", [False, True])
def test_alignment_decides_which_are_members(misaligned):
    long = [np.zeros(n << 16, np.float32) for n in range(1, 17)]
    program, env, _ = compiled(descend, long * 2)
    alignments = dict.fromkeys(program.graph.args, 256)
    if misaligned:
        alignments[program.graph.args[0]] = 4
    params = program.parameters(env, alignments)
    assert sorted(launched(program, params)) == ([1, 15] if misaligned else [16])


def test_an_explanation_says_which_launch():
    explained = mlirfuse.jit(descend, target="cuda:sm_90").explain(*arrays(SHAPES["vectors"] * 2))
    assert "8 kernels, 1 launch," in explained.summary()
    assert [k.within for k in explained.kernels] == [None, *[0] * 7]
    assert "in the launch of kernel 0" in str(explained) and "in the launch of kernel 0" in explained.to_html()
    ((kernel, read, written),) = explained.launched()
    assert kernel.number == 0 and (read, written) == (explained.bytes_read, explained.bytes_written)


def test_levels_of_one_launch():
    lowered = mlirfuse.jit(descend, target="cuda:sm_90").lower(*arrays(SHAPES["vectors"] * 2))
    assert lowered.kernels == 1
    assert "//   in the launch of @mlirfuse_pointwise0" in lowered.as_text("tiled")
    for level in ("gpu", "nvvm"):
        assert lowered.as_text(level).count("llvm.func @") == 1
    assert list(parse(lowered.as_text("ptx"))) == ["mlirfuse_pointwise0"]
    assert lowered.as_text("host").count("llvm.call") == 1


def test_the_host_function_is_as_short_for_any_number():
    """Its loop over members is in native code, so that it is soon compiled."""
    lines = set()
    for count in (8, 64):
        program, _, params = compiled(descend, arrays([(16 * (k + 1),) for k in range(count)] * 2))
        slots = program.slots()
        kernels = program.target.write(program, params, slots).kernels
        lines.add(len(gpu_host(kernels, slots).splitlines()))
    assert len(lines) == 1
    assert load.host_code(program.target.write(program, params, program.slots()).launching()).address("launch")


@pytest.mark.parametrize("chip", ["sm_75", "sm_80", "sm_89", "sm_90", "sm_100"])
def test_the_assembler_takes_it(chip):
    """Of a launch that waits for an earlier one, and that one for it, where the machine starts kernels early."""
    ptxas = pytest.importorskip("cuda.pathfinder").find_nvidia_binary_utility("ptxas")
    if ptxas is None:
        pytest.skip("needs ptxas")

    def clipped(*grads):
        norm = np.sqrt((grads[0] * grads[0]).sum())
        return tuple(g / norm for g in grads)

    program, _, params = compiled(clipped, arrays([(64 * (k + 1),) for k in range(40)]), chip)
    text = load.ptx_of(program.target.write(program, params, program.slots()).tiled(), chip)
    done = subprocess.run(
        [ptxas, f"-arch={chip}", "-v", "-", "-o", "/dev/null"], input=text, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("0 bytes stack frame, 0 bytes spill stores") == text.count(".entry")
