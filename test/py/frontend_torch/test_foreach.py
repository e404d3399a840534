"""`fusion.foreach`: one kernel and one launch for many tensors. Its GPU kernel is run by the emulator and assembled by
NVIDIA's assembler; ``test_torch_input_mutations.py`` has what optimizers make of it on the CPU."""

from __future__ import annotations

import subprocess

import numpy as np
import pytest
from ptx_emulator import Memory, launch_members, parse, room_for

from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.builder import Builder
from mlirfuse.ir.graph import Block, Graph, Value
from mlirfuse.lowering import host_steps as st
from mlirfuse.lowering.foreach import Table
from mlirfuse.lowering.host_plan import plan
from mlirfuse.lowering.ptx import parameter_bytes
from mlirfuse.passes import pipelines
from mlirfuse.runtime import load
from mlirfuse.runtime.foreach import Foreach
from mlirfuse.schedule import targets


def descent(shapes, dtype, target, in_place=False) -> st.Foreach:
    """The step of ``p - rate * g`` for parameters of these shapes; all share the 0-d ``rate``."""
    block = Block([Value(dtype, ())])
    build = Builder(block)
    for shape in shapes:
        p, g = Value(dtype, shape), Value(dtype, shape)
        block.args += [p, g]
        block.returns.append(build.op("sub", p, build.op("mul", g, build.broadcast_to(block.args[0], shape))))
    graph = Graph("step", block)
    if in_place:
        graph.aliases = {k: 1 + 2 * k for k in range(len(shapes))}
    pipelines.lower_to_segments(graph, target.properties, foreach=True)
    (step,) = [step for step in plan(graph).steps if isinstance(step, st.Foreach)]
    return step


def compiled(step: st.Foreach, target, monkeypatch) -> tuple[str, list[int]]:
    """The PTX of a step, and the integers of its launch."""
    monkeypatch.setattr(load, "start_loading_kernel", lambda target, module, submit: lambda: (1, None))
    run = Foreach(step, target)
    program = run.program({})
    compiled_program = program.compiled_program(run._total_sizes(), dict.fromkeys(run.graph.args, 16))
    text = load.ptx_of(compiled_program.module.tiled(), target.properties.chip)
    return text, run._ints(program, compiled_program)


SHAPES = {
    "vectors": [(16,), (4, 32), (2, 3, 48), (4096,), (16,), (1, 16), (48, 48), (1040,)],
    "odd": [(1,), (3, 5), (7,), (1025,), (2, 2), (2047,), (3,), (1, 1, 1), (255,)],
    "many": [(16 * (1 + k % 3),) for k in range(130)],
}


@pytest.mark.parametrize("in_place", [False, True], ids=["new", "in place"])
@pytest.mark.parametrize("chip", ["sm_80", "sm_90"])
@pytest.mark.parametrize("dtype", [dt.f32, dt.bf16], ids=str)
@pytest.mark.parametrize("shapes", SHAPES)
def test_a_gpus_kernel(shapes, dtype, chip, in_place, monkeypatch):
    """Every member has its own results, and nothing else is written; a table that is too large is several launches."""
    target = targets.of(f"cuda:{chip}")
    step = descent(SHAPES[shapes], dtype, target, in_place)
    assert step.members == len(SHAPES[shapes]) and len(step.region.graph.aliases) == in_place
    text, ints = compiled(step, target, monkeypatch)
    rng = np.random.default_rng(0)
    rate = np.asarray(rng.standard_normal(()), dtype.numpy)
    data = {}
    for value in step.reads:
        data.setdefault(value, rate if not value.shape else rng.standard_normal(value.shape).astype(dtype.numpy))
    sizes = [x.nbytes for x in data.values()] + [v.numel * v.dtype.bytes for v in step.makes]
    memory = Memory(room_for(sizes))
    written = (
        {v for k, v in enumerate(step.reads) if k % 3 in step.region.graph.aliases.values()} if in_place else set()
    )
    at = {v: memory.allocate(x, writable=v in written) for v, x in data.items()}
    pointers = [at[v] for v in step.reads]
    if not in_place:
        pointers += [memory.allocate(np.full(v.numel * v.dtype.bytes, 0xFF, np.uint8), True) for v in step.makes]
    (kernel,) = parse(text).values()
    launches = launch_members(kernel, memory, ints[1:], pointers, ints)
    assert launches == (2 if shapes == "many" and chip == "sm_80" else 1)
    (line,) = step.region.graph.aliases.values() if in_place else (None,)
    for member, value in enumerate(step.makes):
        scalars = [v for v in step.reads[3 * member : 3 * member + 3] if not v.shape]
        p, g = (v for v in step.reads[3 * member : 3 * member + 3] if v.shape)
        place = at[step.reads[3 * member + line]] if in_place else pointers[len(step.reads) + member]
        wanted = data[p].astype(np.float64) - data[scalars[0]].astype(np.float64) * data[g].astype(np.float64)
        found = memory.fetch(place, value.shape, dtype.numpy).astype(np.float64)
        bound = {dt.f32: 2.0**-22, dt.bf16: 2.0**-7}[dtype]
        np.testing.assert_array_less(np.abs(found - wanted), bound * (np.abs(data[p].astype(np.float64)) + 4))


@pytest.mark.parametrize("chip", ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"])
def test_the_assembler_takes_it(chip, monkeypatch):
    ptxas = pytest.importorskip("cuda.pathfinder").find_nvidia_binary_utility("ptxas")
    if ptxas is None:
        pytest.skip("needs ptxas")
    target = targets.of(f"cuda:{chip}")
    step = descent([(16 * (1 + k % 40),) for k in range(800)], dt.f32, target)
    text, _ = compiled(step, target, monkeypatch)
    done = subprocess.run(
        [ptxas, f"-arch={chip}", "-v", "-", "-o", "/dev/null"], input=text, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "0 bytes stack frame, 0 bytes spill stores" in done.stderr


@pytest.mark.parametrize(
    "chip, members, words", [("sm_80", 800, 4), ("sm_90", 800, 4), ("sm_90", 5000, 7), ("sm_80", 3, 2)]
)
def test_a_table_fits_the_parameters(chip, members, words):
    class Kernel:
        passed = dict.fromkeys(range(words))

    table = Table.of(Kernel, members, chip)
    assert (table.padded + table.members * words) * 8 <= parameter_bytes(chip)
    assert 0 < table.members <= min(members, table.padded) and table.padded & (table.padded - 1) == 0
