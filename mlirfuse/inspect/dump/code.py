"""The levels from ``tiled`` down, ``launch-params``, ``occupancy`` and ``sass``: the code of a new compiled program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from mlirfuse import _native
from mlirfuse.core import config
from mlirfuse.core.device_properties import DeviceProperties
from mlirfuse.inspect.dump import labels
from mlirfuse.inspect.dump.labels import Where
from mlirfuse.inspect.dump.output import attempt, log, write
from mlirfuse.inspect.dump.sass import sass
from mlirfuse.inspect.launches import threads_text
from mlirfuse.ir import sizes as sz
from mlirfuse.lowering import llvm, ptx
from mlirfuse.lowering.module import CpuKernel, GpuKernel, Kernel, KernelModule
from mlirfuse.runtime import events, load
from mlirfuse.runtime.program import CompiledProgram, Program
from mlirfuse.schedule import serialize

_ONLY_GPU, _ONLY_CPU = frozenset({"gpu", "nvvm", "ptx", "sass"}), frozenset({"llvm"})
_WRITTEN = frozenset({"tiled", "gpu", "nvvm", "ptx", "host", "llvm", "launch-params", "sass"})
NAMES = _WRITTEN | {"occupancy"}


def scheduled(event: events.Scheduled) -> None:
    """A program is compiled next."""
    dumps = config.dump
    if not dumps & _WRITTEN:
        return
    program = event.program
    where = labels.of_program(program)
    if not program.compiled_programs:
        on_gpu = isinstance(program.target.properties, DeviceProperties)
        for level in sorted(dumps & (_ONLY_CPU if on_gpu else _ONLY_GPU)):
            log(level, where, f"code for {'a GPU' if on_gpu else 'the CPU'} has no such level")
    where = replace(where, program=len(program.compiled_programs))
    module = module_of(program, event.params)
    segments = list(labels.by_segment(program, list(module.kernels), where))
    if "launch-params" in dumps:
        for (segment, created), schedule in zip(segments, program.target.schedules(program, event.params)):
            write("launch-params", segment, launch_params(created, serialize.flat(schedule), event.env))
    for segment, created in segments:
        if created:
            _write_levels(segment, module.only(created).tiled(), program.target.properties)
    if "host" in dumps and module.kernels:
        write("host", where, f"module {{\n{module.host}\n}}")


def _write_levels(where: Where, tiled: str, properties: Any) -> None:
    makers: dict[str, Callable[[], str]] = {"tiled": lambda: tiled}
    if isinstance(properties, DeviceProperties):
        chip = properties.chip
        makers["gpu"] = lambda: str(ptx.to_gpu(tiled, chip))
        makers["nvvm"] = lambda: str(ptx.to_nvvm(tiled, chip))
        makers["ptx"] = lambda: load.ptx_of(tiled, chip)
        makers["sass"] = lambda: sass(load.ptx_of(tiled, chip), chip)
    else:
        makers["llvm"] = lambda: llvm.to_llvm_ir(tiled)
    for level, make in makers.items():
        if level in config.dump:
            write(level, where, attempt(make))


def compiled(event: events.Compiled) -> None:
    """A program is compiled."""
    if "occupancy" in config.dump:
        program, compiled_program = event.program, event.compiled_program
        where = replace(labels.of_program(program), program=len(program.compiled_programs))
        for segment, kernels in labels.by_segment(program, list(compiled_program.module.kernels), where):
            write("occupancy", segment, occupancy(program, compiled_program, kernels, event.env))


def module_of(program: Program, params: tuple) -> KernelModule:
    """Return the kernels of a compiled program and their host function."""
    return program.target.write(program, params, program.slots())


def launch_params(kernels: list[Kernel], params: dict[str, Any], env: dict[str, int]) -> str:
    """Format the launches of a segment's kernels."""
    out = []
    for k in kernels:
        shared = k.static_shared + k.dynamic_shared if isinstance(k, GpuKernel) else 0
        out.append(f"{k.name}: {threads_text(k, env)}" + (f", {shared} bytes of shared memory" if shared else ""))
    out += [f"  {name} = {value}" for name, value in params.items()]
    return "\n".join(out)


def occupancy(program: Program, compiled_program: CompiledProgram, kernels: list[Kernel], env: dict[str, int]) -> str:
    """Format the device resources that a segment's kernels use."""
    properties = program.target.properties
    if not isinstance(properties, DeviceProperties):
        return "\n".join(_threads_busy(k, env) for k in kernels if isinstance(k, CpuKernel))
    return "\n".join(
        _blocks_resident(k, compiled_program.keep[1][k.name], properties, env)
        for k in kernels
        if isinstance(k, GpuKernel)
    )


def _threads_busy(kernel: CpuKernel, env: dict[str, int]) -> str:
    there = _native.num_threads()
    tasks, grain = sz.substitute(kernel.tasks, env), sz.substitute(kernel.grain, env)
    threads = min(there, -(-tasks // max(grain, 1)))
    return f"{kernel.name}: {threads} of {there} threads busy, {tasks / max(threads, 1):.4g} tasks each"


def _blocks_resident(
    kernel: GpuKernel, loaded: load.LoadedKernel, properties: DeviceProperties, env: dict[str, int]
) -> str:
    handle, home = loaded.address, loaded.keep
    facts, blocks = home.attributes(handle), home.occupancy(handle, kernel.threads, kernel.dynamic_shared)
    grid = sz.substitute(kernel.grid, env)
    waves = grid / (blocks * properties.sm_count) if blocks else float("inf")
    shared, busy = facts["shared_bytes"] + kernel.dynamic_shared, blocks * kernel.threads / properties.threads_per_sm
    return (
        f"{kernel.name}: {facts['registers']} registers, {shared} bytes of shared memory, "
        f"{facts['local_bytes']} bytes spilled; "
        f"{blocks} blocks of {kernel.threads} threads a multiprocessor, {busy:.0%} of its threads; "
        f"{grid} blocks are {waves:.2f} waves on {properties.sm_count} multiprocessors"
    )
