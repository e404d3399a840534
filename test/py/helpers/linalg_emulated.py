"""What ``jit(fn, lowering="linalg")`` makes for a GPU, run in the PTX emulator."""

from __future__ import annotations

import math

import numpy as np
from ptx_emulator import Launch, Memory, parse, room_for

import mlirfuse
from mlirfuse.ir import sizes as sz
from mlirfuse.runtime.linalg_program import LoweringPath
from mlirfuse.runtime.program import CompiledProgram, Program
from mlirfuse.schedule import targets


def run(fn, *args, pipeline: str | None = None) -> list[np.ndarray | None]:
    """The graph's results for these arrays and numbers, None for those that are views; what no kernel writes stays
    0xFF."""
    lowered = mlirfuse.jit(fn, target="cuda:sm_90").lower(*args)
    target = LoweringPath(pipeline).target(targets.of("cuda:sm_90"))
    program = Program(lowered.segmented(), target, lowered.env)
    env, slots = lowered.env, program.slots()
    params = program.parameters(env, {})
    module = target.write(program, params, slots)
    slots.functions = {k.name: 0 for k in module.kernels}
    compiled_program = CompiledProgram(params, module, slots, 0, None)
    program.add_plan(compiled_program)
    plan = program.plan(compiled_program, env)
    given = [np.asarray(argument) for argument in lowered.arguments]
    for key, slot in slots.ints.items():
        if key[0] == "scalar":
            at = program.graph.args.index(key[1])
            number = np.float64(given[at]) if key[1].dtype.is_float else np.int64(given[at])
            plan.ints[slot] = int(number.view(np.int64))

    shapes = [tuple(sz.substitute(n, env) for n in value.shape) for value in program.outputs]
    sizes = [math.prod(shape) * value.dtype.bytes for shape, value in zip(shapes, program.outputs)]
    memory = Memory(room_for([x.nbytes for x in given] + sizes + [plan.workspace]))
    addresses = {}
    for position in program.pointer_args:
        place = memory.allocate(given[position], writable=False)
        addresses[slots.pointers[program.graph.args[position]]] = place
    for value, nbytes in zip(program.outputs, sizes):
        if value in slots.pointers:  # it is no view
            addresses[slots.pointers[value]] = memory.allocate(np.full(nbytes, 0xFF, np.uint8), writable=True)
    workspace = memory.allocate(np.full(max(plan.workspace, 1), 0xFF, np.uint8), writable=True)

    code = parse(module.ptx)
    for kernel in module.kernels:
        passed = [
            addresses[slot]
            if kind == "pointer"
            else workspace + plan.ints[slot]
            if kind == "temporary"
            else plan.ints[slot]
            for kind, slot in kernel.passed
        ]
        Launch(code[kernel.name], memory, passed, kernel.grid, kernel.threads).run()
    return [
        memory.fetch(addresses[slots.pointers[value]], shape, value.dtype.numpy) if value in slots.pointers else None
        for value, shape in zip(program.outputs, shapes)
    ]
