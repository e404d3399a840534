"""Decides which outputs of CPU kernels are written with non-temporal stores."""

from __future__ import annotations

from mlirfuse.analysis.phases import Analysis
from mlirfuse.core.device_properties import HostProperties
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Value
from mlirfuse.schedule.cpu.heuristics import heuristics_of
from mlirfuse.schedule.cpu.kernel import lanes_of
from mlirfuse.schedule.scheduler import Alignments, SizedCall, Sizes

ALIGNED = 64  # bytes: alignment of results and of the workspace


def streams(analysis: Analysis, outputs: list[Value], call: SizedCall) -> bool:
    """Whether ``outputs`` should be written with non-temporal stores: together they exceed the caches, and every vector
    of them is aligned."""
    return past_caches(analysis, outputs, call) and can_stream(analysis, outputs, call)


def past_caches(analysis: Analysis, outputs: list[Value], call: SizedCall) -> bool:
    """Whether ``outputs`` together exceed the caches, and the processor has vector non-temporal stores."""
    if not outputs or call.properties.vector_bytes < 32:
        return False
    return (
        output_bytes(analysis, outputs, call.sizes)
        > call.properties.last_cache * heuristics_of(call.properties).tasks.past_caches
    )


def output_bytes(analysis: Analysis, outputs: list[Value], env: Sizes) -> int:
    """The total bytes of ``outputs``."""
    sizes = dict(zip(analysis.outputs, analysis.once(_output_sizes)(env)))
    return sum([sizes[v][0] for v in outputs])


def can_stream(analysis: Analysis, outputs: list[Value], call: SizedCall) -> bool:
    """Whether every vector of ``outputs`` is aligned, and the processor has non-temporal stores for them."""
    if call.properties.vector_bytes < 32:
        return False
    sizes = dict(zip(analysis.outputs, analysis.once(_output_sizes)(call.sizes)))
    lanes = lanes_of(analysis, call.properties)
    for value in outputs:
        nbytes, vector = value.dtype.bytes, lanes * value.dtype.bytes
        aligned = all(s * nbytes % vector == 0 for s in sizes[value][1] if s != 1)
        if vector < 16 or not aligned or min(call.alignments.get(value, ALIGNED), ALIGNED) < vector:
            return False
    return True


def can_stream_line(analysis: Analysis, outputs: list[Value], alignments: Alignments, host: HostProperties) -> bool:
    """Like :func:`can_stream`, for outputs that are traversed as one contiguous row."""
    nbytes = [(value, lanes_of(analysis, host) * value.dtype.bytes) for value in outputs]
    return host.vector_bytes >= 32 and all(
        16 <= n <= min(alignments.get(value, ALIGNED), ALIGNED) for value, n in nbytes
    )


def _output_sizes(analysis: Analysis):
    """A function from sizes to the bytes and strides of each output."""
    pairs = [f"(({v.numel})*{v.dtype.bytes}, {sz.serialized(analysis.strides[v])})" for v in analysis.outputs]
    return sz.function(
        sz.serialized(pairs), sz.symbols_of(n for v in analysis.outputs for n in (v.numel, *analysis.strides[v]))
    )
