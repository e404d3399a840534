"""The compilation targets, a CPU or an NVIDIA GPU. A target chooses schedules and writes a program's kernels."""

from __future__ import annotations

import dataclasses
import functools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from mlirfuse.analysis.phases import Analysis
from mlirfuse.core.device_properties import DeviceProperties, HostProperties
from mlirfuse.core.errors import ScheduleError
from mlirfuse.ir.graph import Value
from mlirfuse.lowering import devices
from mlirfuse.lowering.foreach import LEAST, Table, of_many
from mlirfuse.lowering.host import cpu_host, gpu_host
from mlirfuse.lowering.module import CpuKernel, GpuKernel, KernelModule, nameless
from mlirfuse.lowering.slots import Slots
from mlirfuse.schedule.program import SegmentedProgram
from mlirfuse.schedule.scheduler import KernelSpec, Schedulers, SizedCall
from mlirfuse.schedule.serialize import Attributes

STATIC_SHARED = 48 << 10  # bytes of static shared memory per block, the PTX limit


class Scheduled(ABC):
    """Base class of targets whose kernels are written by schedulers."""

    name: str
    properties: Any
    early_launch: bool
    one_launch: bool  # launches kernels with identical code together, see SegmentedProgram.launches
    device: int | None

    @property
    @abstractmethod
    def schedulers(self) -> Schedulers[Any]:
        """The target's schedulers, imported lazily: most processes use only one target's."""

    @abstractmethod
    def write(self, program: SegmentedProgram, params: tuple, slots: Slots) -> KernelModule:
        """The kernels of ``program`` for these parameters, and their host function."""

    def parameters(self, program: SegmentedProgram, env: dict[str, int], alignments: dict[Value, int]) -> tuple:
        """The schedule of each step for these sizes: the one set on its segment, else the heuristic's choice.
        ``alignments`` has the bytes that each argument's address is a multiple of. Raises :class:`ScheduleError`."""
        aligned = program.aligned(alignments, env)
        if program.decided:
            return self.read(program, [step.segment.schedule for step in program.steps], env, aligned)
        out: list[Any] = []
        call = SizedCall(env, aligned, self.properties)
        for numbers in program.launches:
            analyses = [program.steps[at].analysis for at in numbers]
            if len(analyses) == 1:
                out.append(self.schedulers.choose(analyses[0], call))
            else:
                out += self.schedulers.choose_together(analyses, call)
        return tuple(out)

    def read(
        self,
        program: SegmentedProgram,
        given: Sequence[Attributes],
        env: dict[str, int],
        alignments: dict[Value, int],
    ) -> tuple:
        """Parse and check the schedule of each step for these sizes. Attributes may be missing; the heuristic chooses
        those. Raises :class:`ScheduleError`."""
        if len(given) != len(program.steps):
            raise ScheduleError(f"{len(given)} schedules for {len(program.steps)} segments")
        out, call = [], SizedCall(env, alignments, self.properties)
        for step, attributes in zip(program.steps, given):
            try:
                if attributes:
                    out.append(self.schedulers.read(attributes, step.analysis, call))
                else:
                    out.append(self.schedulers.choose(step.analysis, call))
            except ScheduleError as error:
                raise ScheduleError(f"{step.name}: {error}") from error
        return tuple(out)

    def schedules(self, program: SegmentedProgram, params: tuple) -> list[Attributes]:
        """The schedule of each step, as attributes of its segment."""
        return [self.schedulers.attributes(p) for p in params]


class CpuTarget(Scheduled):
    """This machine's processor, or any with the instruction set of a ``level`` such as "x86-64-v3". ``threads``: how
    many of this machine's a program gets; None: all of the pool."""

    name = "cpu"
    early_launch = one_launch = False
    device = None
    host = staticmethod(cpu_host)

    def __init__(self, level: str | None = None, threads: int | None = None):
        self.level, self.threads = level, threads

    @functools.cached_property
    def schedulers(self) -> Schedulers[HostProperties]:
        """The schedulers of ``schedule/cpu/scheduler_list.py``."""
        from mlirfuse.schedule.cpu.scheduler_list import SCHEDULERS

        return SCHEDULERS

    @functools.cached_property
    def properties(self) -> HostProperties:
        """The processor."""
        found = devices.host() if self.level is None else devices.processor(self.level)
        return found if self.threads is None else dataclasses.replace(found, threads=self.threads)

    def write(self, program: SegmentedProgram, params: tuple, slots: Slots) -> KernelModule:
        """The kernels of ``program`` for these parameters, and their host function."""
        kernels: list[CpuKernel] = []
        for step, choice in zip(program.steps, params):
            spec = KernelSpec(step.name, step.analysis, slots, choice, self.properties)
            for _, created in self.schedulers.emit(spec):
                kernels += created
        return KernelModule(tuple(kernels), False, self.host(kernels, slots))


class GpuTarget(Scheduled):
    """An NVIDIA GPU: a device of this machine, or, if ``device`` is None, an architecture to compile for."""

    name = "cuda"
    one_launch = True
    host = staticmethod(gpu_host)

    def __init__(self, properties: DeviceProperties, device: int | None):
        self.properties, self.device, self.early_launch = properties, device, properties.early_launch

    @functools.cached_property
    def schedulers(self) -> Schedulers[DeviceProperties]:
        """The schedulers of ``schedule/gpu/scheduler_list.py``."""
        from mlirfuse.schedule.gpu import tuning
        from mlirfuse.schedule.gpu.scheduler_list import SCHEDULERS

        if self.device is not None:
            tuning.log_if_derived(self.properties)
        return SCHEDULERS

    def write(self, program: SegmentedProgram, params: tuple, slots: Slots) -> KernelModule:
        """The kernels of ``program`` for these parameters, and their host function."""
        kernels: list[GpuKernel] = []
        read: set[Any] = set()  # slots that earlier kernels read
        written: set[Any] = set()
        slots.features = self.properties.features
        for numbers in program.launches:
            fresh = not slots.temporaries
            buffers: set[Any] = set()
            slots.written = frozenset(written)
            stages: list[tuple[Analysis, list[GpuKernel]]] = []
            for step, choice in zip(program.steps[numbers.start : numbers.stop], params[numbers.start : numbers.stop]):
                spec = KernelSpec(step.name, step.analysis, slots, choice, self.properties)
                stages += self.schedulers.emit(spec)
            for computed, created in _together(stages) if len(numbers) > 1 else _apart(stages):
                reads = {slots.place(v) for stage in computed for v in stage.inputs if v not in stage.passed_on}
                writes = {
                    slots.place(v)
                    for stage in computed
                    for v in stage.outputs
                    if v not in stage.passed_on or v in stage.results
                }
                # This step's part of the workspace may overlap one that a kernel of an earlier step still uses.
                used = {slot for one in created for k in one for kind, slot in k.buffers() if kind == "temporary"}
                apart = not used or (fresh and used.isdisjoint(buffers))
                waits = (
                    "after" if apart and written.isdisjoint(reads | writes) and read.isdisjoint(writes) else "before"
                )
                for several in created:
                    kernel = several[0]
                    if len(several) > 1:
                        kernel = of_many(several, Table.of(kernel, len(several), self.properties.chip))
                    _check_limits(kernel, self.properties)
                    if kernels and self.early_launch:
                        kernels[-1].lets, kernel.waits = True, waits
                    kernels.append(kernel)
                    waits = "before"
                read |= reads
                written |= writes
                buffers |= used
        return KernelModule(tuple(kernels), True, self.host(kernels, slots))


Launched = Iterator[tuple[list[Analysis], list[list[GpuKernel]]]]  # the computed stages, and the kernels of each launch


def _apart(stages: Sequence[tuple[Analysis, list[GpuKernel]]]) -> Launched:
    """One launch per kernel."""
    for stage, kernels in stages:
        yield [stage], [[kernel] for kernel in kernels]


def _together(stages: Sequence[tuple[Analysis, list[GpuKernel]]]) -> Launched:
    """One launch for kernels with identical code, if there are at least ``LEAST`` of them. The ``stages`` are
    independent."""
    alike: dict[object, list[int]] = {}
    for at, (_, kernels) in enumerate(stages):
        first = kernels[0]
        simple = len(kernels) == first.cluster == 1 and not first.static_shared + first.dynamic_shared
        alike.setdefault(nameless(first) if simple else at, []).append(at)
    for numbers in alike.values():
        found = [stages[at] for at in numbers]
        if len(found) < LEAST:
            yield from _apart(found)
        else:
            yield [stage for stage, _ in found], [[kernel for _, (kernel,) in found]]


def _check_limits(kernel: GpuKernel, properties: DeviceProperties) -> None:
    """Raise :class:`ScheduleError` if a block of the kernel needs more shared memory than the device has."""
    static, nbytes = kernel.static_shared, kernel.static_shared + kernel.dynamic_shared
    for what, used, room in (("static", static, STATIC_SHARED), ("", nbytes, properties.shared_per_block)):
        if used > room:
            raise ScheduleError(
                f"{kernel.name}: {used} bytes of {what} shared memory, but a block has {room}".replace("  ", " ")
            )


Target = CpuTarget | GpuTarget


@functools.cache
def cpu(level: str | None = None, threads: int | None = None) -> CpuTarget:
    """This machine's processor, with ``threads`` or all of the pool's, or any of a ``level``."""
    return CpuTarget(level, threads)


@functools.cache
def gpu(device: int) -> GpuTarget:
    """The target for GPU number ``device``. Raises :class:`UnsupportedError` if there is no such GPU."""
    return GpuTarget(devices.device(device), device)


def of(name: str) -> Target:
    """The target named "cpu", "cpu:x86-64-v3" (any such processor), "cuda" (this machine's GPU) or "cuda:sm_90" (any
    GPU, for looking at its code). Raises :class:`UnsupportedError` for any other."""
    if name == "cpu":
        return cpu()
    if name == "cuda":
        return gpu(0)
    properties = devices.named(name)
    if not isinstance(properties, DeviceProperties):
        return cpu(name.removeprefix("cpu:"))
    return GpuTarget(properties, None)
