"""Base class of CPU schedulers, and which outputs are written with non-temporal stores."""

from __future__ import annotations

from mlirfuse.analysis.phases import Analysis
from mlirfuse.core.device_properties import HostProperties
from mlirfuse.ir import sizes as sz
from mlirfuse.schedule.cpu.heuristics import heuristics_of
from mlirfuse.schedule.cpu.kernel import full_outputs, lanes_of
from mlirfuse.schedule.scheduler import Scheduler, SizedCall, require
from mlirfuse.schedule.tiling import Tiling

UNALIGNED = "streamed: outputs are not aligned for non-temporal stores"
ALIGNED = 64  # bytes: alignment of results and of the workspace


CpuScheduler = Scheduler[HostProperties]


def check_streamed(p: Tiling, analysis: Analysis, call: SizedCall, otherwise: bool = True) -> None:
    """Raise :class:`ScheduleError` unless full-size outputs can be written with non-temporal stores, if they are to
    be. ``otherwise``: whether nothing else prevents it."""
    aligned = not p.streamed or (otherwise and bool(analysis.once(full_outputs)) and can_stream(analysis, call))
    require(aligned, UNALIGNED)


def streams(analysis: Analysis, call: SizedCall) -> bool:
    """Whether full-size outputs should be written with non-temporal stores: together they exceed the caches, and every
    vector of them is aligned."""
    return past_caches(analysis, call) and can_stream(analysis, call)


def past_caches(analysis: Analysis, call: SizedCall) -> bool:
    """Whether full-size outputs together exceed the caches, and the processor has vector non-temporal stores."""
    most = call.properties.last_cache * heuristics_of(call.properties).tasks.past_caches
    return call.properties.vector_bytes >= 32 and output_bytes(analysis, call) > most


def output_bytes(analysis: Analysis, call: SizedCall) -> int:
    """The total bytes of full-size outputs."""
    return analysis.values(_output_sizes, call.sizes)[0]


def can_stream(analysis: Analysis, call: SizedCall) -> bool:
    """Whether every vector of full-size outputs is aligned, and the processor has non-temporal stores for them."""
    _, *strides = analysis.values(_output_sizes, call.sizes)
    lanes = lanes_of(analysis, call.properties)
    return can_stream_line(analysis, call) and all(s % lanes == 0 for s in strides if s != 1)


def can_stream_line(analysis: Analysis, call: SizedCall) -> bool:
    """Like :func:`can_stream`, for outputs that are traversed as one contiguous row."""
    outputs, lanes = analysis.once(full_outputs), lanes_of(analysis, call.properties)
    nbytes = [(value, lanes * value.dtype.bytes) for value in outputs]
    return call.properties.vector_bytes >= 32 and all(
        16 <= n <= min(call.alignments.get(value, ALIGNED), ALIGNED) for value, n in nbytes
    )


def _output_sizes(analysis: Analysis) -> list[sz.Size]:
    """The total bytes of full-size outputs, and all of their strides."""
    outputs = full_outputs(analysis)
    nbytes = sz.total(sz.mul(v.numel, v.dtype.bytes) for v in outputs)
    return [nbytes, *(stride for v in outputs for stride in analysis.strides[v])]
