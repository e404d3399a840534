"""Base class of CPU schedulers, and which outputs are written with non-temporal stores."""

from __future__ import annotations

from abc import abstractmethod

from mlirfuse.analysis.phases import Analysis
from mlirfuse.core.device_properties import HostProperties
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Value
from mlirfuse.lowering.module import CpuKernel
from mlirfuse.lowering.slots import Slots
from mlirfuse.schedule.cpu.heuristics import heuristics_of
from mlirfuse.schedule.cpu.kernel import lanes_of
from mlirfuse.schedule.scheduler import EmittedKernels, Scheduler, SizedCall, Sizes, require
from mlirfuse.schedule.tiling import Tiling

ALIGNED = 64  # bytes: alignment of results and of the workspace


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


def streams(analysis: Analysis, outputs: list[Value], call: SizedCall) -> bool:
    """Whether ``outputs`` should be written with non-temporal stores: together they exceed the caches, and every vector
    of them is aligned."""
    return past_caches(analysis, outputs, call) and can_stream(analysis, outputs, call)


def past_caches(analysis: Analysis, outputs: list[Value], call: SizedCall) -> bool:
    """Whether ``outputs`` together exceed the caches, and the processor has vector non-temporal stores."""
    most = call.properties.last_cache * heuristics_of(call.properties).tasks.past_caches
    return bool(outputs) and call.properties.vector_bytes >= 32 and output_bytes(analysis, outputs, call.sizes) > most


def output_bytes(analysis: Analysis, outputs: list[Value], env: Sizes) -> int:
    """The total bytes of ``outputs``."""
    sizes = dict(zip(analysis.outputs, analysis.once(_output_sizes)(env)))
    return sum([sizes[v][0] for v in outputs])


def can_stream(analysis: Analysis, outputs: list[Value], call: SizedCall) -> bool:
    """Whether every vector of ``outputs`` is aligned, and the processor has non-temporal stores for them."""
    if not can_stream_line(analysis, outputs, call):
        return False
    sizes = dict(zip(analysis.outputs, analysis.once(_output_sizes)(call.sizes)))
    lanes = lanes_of(analysis, call.properties)
    return all(s % lanes == 0 for v in outputs for s in sizes[v][1] if s != 1)


def can_stream_line(analysis: Analysis, outputs: list[Value], call: SizedCall) -> bool:
    """Like :func:`can_stream`, for outputs that are traversed as one contiguous row."""
    nbytes = [(value, lanes_of(analysis, call.properties) * value.dtype.bytes) for value in outputs]
    return call.properties.vector_bytes >= 32 and all(
        16 <= n <= min(call.alignments.get(value, ALIGNED), ALIGNED) for value, n in nbytes
    )


def _output_sizes(analysis: Analysis):
    """A function from sizes to the bytes and strides of each output."""
    pairs = [f"(({v.numel})*{v.dtype.bytes}, {sz.serialized(analysis.strides[v])})" for v in analysis.outputs]
    return sz.function(
        sz.serialized(pairs), sz.symbols_of(n for v in analysis.outputs for n in (v.numel, *analysis.strides[v]))
    )
