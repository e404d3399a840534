"""What kernels are written for: a CPU or an NVIDIA GPU. A target chooses schedules and writes the kernels of a
program."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from mlirfuse.core.errors import ScheduleError
from mlirfuse.core.machine import Host, Machine
from mlirfuse.ir.graph import Value
from mlirfuse.lowering import machines
from mlirfuse.lowering.host import cpu_host, gpu_host
from mlirfuse.lowering.module import CpuKernel, GpuKernel, KernelModule
from mlirfuse.lowering.slots import Slots
from mlirfuse.schedule.program import SegmentedProgram
from mlirfuse.schedule.scheduler import Schedulers
from mlirfuse.schedule.spelling import Attributes

STATIC_SHARED = 48 << 10  # bytes of a block whose size is not given at launch


class Scheduled(ABC):
    """A target whose kernels schedulers write."""

    name: str
    machine: Any
    early_launch: bool
    device: int | None

    @property
    @abstractmethod
    def schedulers(self) -> Schedulers[Any]:
        """Its schedulers, which are imported when they are asked for: most processes use one target's."""

    @abstractmethod
    def write(self, program: SegmentedProgram, params: tuple, slots: Slots) -> KernelModule:
        """The kernels of ``program`` for these parameters, and their host function."""

    def parameters(self, program: SegmentedProgram, env: dict[str, int], alignments: dict[Value, int]) -> tuple:
        """The schedule of each step for these sizes: as its segment says, as the model chooses where it says nothing.
        ``alignments``: bytes, of each argument's address. Raises :class:`ScheduleError`."""
        aligned = program.aligned(alignments) if program.graph.aliases else alignments
        if program.decided:
            return self.read(program, [step.segment.schedule for step in program.steps], env, aligned)
        choose, machine = self.schedulers.choose, self.machine
        return tuple([choose(step.analysis, env, aligned, machine) for step in program.steps])

    def read(
        self,
        program: SegmentedProgram,
        given: Sequence[Attributes],
        env: dict[str, int],
        alignments: dict[Value, int],
    ) -> tuple:
        """The schedule of each step from its attributes, some or all; the others are as the model chooses. They are
        checked for these sizes. Raises :class:`ScheduleError`."""
        if len(given) != len(program.steps):
            raise ScheduleError(f"{len(given)} schedules for {len(program.steps)} segments")
        out = []
        for step, attributes in zip(program.steps, given):
            try:
                if attributes:
                    out.append(self.schedulers.read(attributes, step.analysis, env, alignments, self.machine))
                else:
                    out.append(self.schedulers.choose(step.analysis, env, alignments, self.machine))
            except ScheduleError as error:
                raise ScheduleError(f"{step.name}: {error}") from error
        return tuple(out)

    def schedules(self, program: SegmentedProgram, params: tuple) -> list[Attributes]:
        """The schedule of each step, as it stands on its segment."""
        return [self.schedulers.attributes(p) for p in params]


class CpuTarget(Scheduled):
    """This machine's processor."""

    name = "cpu"
    early_launch = False
    device = None

    @functools.cached_property
    def schedulers(self) -> Schedulers[Host]:
        """Those of ``schedule/cpu/choice.py``."""
        from mlirfuse.schedule.cpu.choice import SCHEDULERS

        return SCHEDULERS

    @functools.cached_property
    def machine(self) -> Host:
        """The processor."""
        return machines.host()

    def write(self, program: SegmentedProgram, params: tuple, slots: Slots) -> KernelModule:
        """The kernels of ``program`` for these parameters, and their host function."""
        kernels: list[CpuKernel] = []
        for step, choice in zip(program.steps, params):
            for _, made in self.schedulers.emit(step.name, step.analysis, slots, choice, self.machine):
                kernels += made
        return KernelModule(tuple(kernels), False, self.host(kernels, slots))

    def host(self, kernels: Sequence[CpuKernel], slots: Slots, name: str = "launch") -> str:
        """A function that hands these kernels to the thread pool, as MLIR."""
        return cpu_host(kernels, slots, name)


class GpuTarget(Scheduled):
    """An NVIDIA GPU: a device of this machine, or (``device`` None) an architecture to compile for."""

    name = "cuda"

    def __init__(self, machine: Machine, device: int | None):
        self.machine, self.device, self.early_launch = machine, device, machine.early_launch

    @functools.cached_property
    def schedulers(self) -> Schedulers[Machine]:
        """Those of ``schedule/gpu/choice.py``."""
        from mlirfuse.schedule.gpu.choice import SCHEDULERS

        return SCHEDULERS

    def write(self, program: SegmentedProgram, params: tuple, slots: Slots) -> KernelModule:
        """The kernels of ``program`` for these parameters, and their host function."""
        kernels: list[GpuKernel] = []
        read: set[Any] = set()  # places in memory
        written: set[Any] = set()
        for step, choice in zip(program.steps, params):
            fresh = not slots.temporaries
            buffers: set[Any] = set()
            slots.written = frozenset(written)
            for stage, made in self.schedulers.emit(step.name, step.analysis, slots, choice, self.machine):
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
                    _check_limits(kernel, self.machine)
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


def _check_limits(kernel: GpuKernel, machine: Machine) -> None:
    """Raises :class:`ScheduleError` where no block of a kernel can run."""
    static, nbytes = kernel.static_shared, kernel.static_shared + kernel.dynamic_shared
    for what, used, room in (("static", static, STATIC_SHARED), ("", nbytes, machine.shared_per_block)):
        if used > room:
            raise ScheduleError(
                f"{kernel.name}: {used} bytes of {what} shared memory, a block has {room}".replace("  ", " ")
            )


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
