"""Base class of CPU schedulers."""

from __future__ import annotations

from abc import abstractmethod

from mlirfuse.analysis.phases import Analysis
from mlirfuse.core.device_properties import HostProperties
from mlirfuse.ir.graph import Value
from mlirfuse.lowering.module import CpuKernel
from mlirfuse.lowering.slots import Slots
from mlirfuse.schedule.cpu.streaming import can_stream
from mlirfuse.schedule.scheduler import EmittedKernels, Scheduler, SizedCall, require
from mlirfuse.schedule.tiling import Tiling


class CpuScheduler(Scheduler[HostProperties]):
    """A scheduler that writes the kernels of a segment as one stage."""

    @abstractmethod
    def kernels(self, name: str, analysis: Analysis, slots: Slots, p: Tiling, host: HostProperties) -> list[CpuKernel]:
        """The kernels that compute ``analysis``."""

    def emit(
        self, name: str, analysis: Analysis, slots: Slots, params: Tiling, properties: HostProperties
    ) -> EmittedKernels:
        yield analysis, self.kernels(name, analysis, slots, params, properties)


def check_streamed(analysis: Analysis, outputs: list[Value], call: SizedCall) -> None:
    """Raise :class:`ScheduleError` unless ``outputs`` can be written with non-temporal stores."""
    check_aligned(bool(outputs) and can_stream(analysis, outputs, call))


def check_aligned(aligned: bool) -> None:
    """Raise :class:`ScheduleError` unless outputs are ``aligned`` for non-temporal stores."""
    require(aligned, "streamed: outputs are not aligned for non-temporal stores")
