"""What kernels are written for: a CPU or an NVIDIA GPU. A target chooses schedules and writes the kernels of a program."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from mlirfuse.core.machine import Host, Machine
from mlirfuse.ir.graph import Value
from mlirfuse.lowering import machines
from mlirfuse.lowering.host import cpu_host, gpu_host
from mlirfuse.lowering.module import CpuKernel, GpuKernel, KernelModule
from mlirfuse.lowering.slots import Slots
from mlirfuse.schedule.cpu import choice as cpu_choice
from mlirfuse.schedule.gpu import choice as gpu_choice
from mlirfuse.schedule.program import SegmentedProgram


class CpuTarget:
    """This machine's processor."""

    name = "cpu"
    early_launch = False
    device = None

    @functools.cached_property
    def machine(self) -> Host:
        """The processor."""
        return machines.host()

    def parameters(self, program: SegmentedProgram, env: dict[str, int], alignments: dict[Value, int]) -> tuple:
        """For each segment its scheduler's parameters."""
        return tuple([cpu_choice.choose(step.analysis, env, alignments, self.machine) for step in program.steps])

    def write(self, program: SegmentedProgram, params: tuple, slots: Slots) -> KernelModule:
        """The kernels of ``program`` for these parameters, and their host function."""
        kernels: list[CpuKernel] = []
        for step, choice in zip(program.steps, params):
            kernels += cpu_choice.emit(step.name, step.analysis, slots, choice, self.machine)
        return KernelModule(tuple(kernels), False, self.host(kernels, slots))

    def host(self, kernels: Sequence[CpuKernel], slots: Slots, name: str = "launch") -> str:
        """A function that hands these kernels to the thread pool, as MLIR."""
        return cpu_host(kernels, slots, name)


class GpuTarget:
    """An NVIDIA GPU: a device of this machine, or (``device`` None) an architecture to compile for."""

    name = "cuda"

    def __init__(self, machine: Machine, device: int | None):
        self.machine, self.device, self.early_launch = machine, device, machine.early_launch

    def parameters(self, program: SegmentedProgram, env: dict[str, int], alignments: dict[Value, int]) -> tuple:
        """For each segment its scheduler's parameters."""
        return tuple([gpu_choice.choose(step.analysis, env, alignments, self.machine) for step in program.steps])

    def write(self, program: SegmentedProgram, params: tuple, slots: Slots) -> KernelModule:
        """The kernels of ``program`` for these parameters, and their host function."""
        kernels: list[GpuKernel] = []
        read: set[Any] = set()  # places in memory
        written: set[Any] = set()
        for step, choice in zip(program.steps, params):
            fresh, buffers = not slots.temporaries, set()
            slots.written = frozenset(written)
            for stage, made in gpu_choice.kernels(step.name, step.analysis, slots, choice):
                reads = {slots.place(v) for v in stage.inputs if v not in stage.passed_on}
                writes = {slots.place(v) for v in stage.outputs if v not in stage.passed_on or v in stage.results}
                # What a kernel of an earlier step still uses of the workspace may lie where this step's part of it
                # does.
                used = {slot for kernel in made for kind, slot in kernel.passed if kind == "temporary"}
                apart = not used or (fresh and used.isdisjoint(buffers))
                waits = (
                    "after" if apart and written.isdisjoint(reads | writes) and read.isdisjoint(writes) else "before"
                )
                for kernel in made:
                    if kernels and self.early_launch:
                        kernels[-1].lets, kernel.waits = True, waits
                    kernels.append(kernel)
                    waits = "before"
                read |= reads
                written |= writes
                buffers |= used
        return KernelModule(tuple(kernels), True, self.host(kernels, slots))

    def host(self, kernels: Sequence[GpuKernel], slots: Slots, name: str = "launch") -> str:
        """A function that launches these kernels, as MLIR."""
        return gpu_host(kernels, slots, name)


Target = CpuTarget | GpuTarget


@functools.cache
def cpu() -> CpuTarget:
    """This machine's processor."""
    return CpuTarget()


@functools.cache
def gpu(device: int) -> GpuTarget:
    """The GPU ``device``. Raises :class:`UnsupportedError` where there is none."""
    return GpuTarget(machines.device(device), device)


def of(name: str) -> Target:
    """The target named "cpu", "cuda" (this machine's GPU) or "cuda:sm_90" (any GPU, for looking at its code). Raises
    :class:`UnsupportedError` for any other."""
    if name == "cpu":
        return cpu()
    if name == "cuda":
        return gpu(0)
    machine = machines.named(name)
    assert isinstance(machine, Machine)
    return GpuTarget(machine, None)
