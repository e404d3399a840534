"""Base class of CPU schedulers, which outputs are written with non-temporal stores, and the extents and strides that
heuristics depend on."""

from __future__ import annotations

from mlirfuse.analysis.phases import Analysis, is_outer, late_outputs, row_extents, size_of
from mlirfuse.core.device_properties import HostProperties
from mlirfuse.ir import sizes as sz
from mlirfuse.lowering.kernel.memory import PICKED
from mlirfuse.schedule.cpu.heuristics import heuristics_of
from mlirfuse.schedule.cpu.kernel import full_outputs, lanes_of
from mlirfuse.schedule.scheduler import Scheduler, SizedCall, Sizes, require
from mlirfuse.schedule.tiling import Tiling

ALIGNED = 64  # bytes: alignment of results and of the workspace


class CpuScheduler(Scheduler[HostProperties]):
    """A scheduler whose full-size outputs may be written with non-temporal stores (``streamed``)."""

    def can_stream(self, analysis: Analysis, call: SizedCall) -> bool:
        """Whether every vector of full-size outputs is aligned, and the processor has non-temporal stores for them."""
        _, *strides = analysis.values(_output_sizes, call.sizes)
        lanes = lanes_of(analysis, call.properties)
        return can_stream_line(analysis, call) and all(s % lanes == 0 for s in strides if s != 1)

    def streams(self, analysis: Analysis, call: SizedCall) -> bool:
        """Whether full-size outputs should be written with non-temporal stores: together they exceed the caches."""
        return _past_caches(analysis, call) and self.can_stream(analysis, call)

    def check(self, analysis: Analysis, p: Tiling, call: SizedCall) -> None:
        aligned = bool(analysis.once(full_outputs)) and self.can_stream(analysis, call)
        require(aligned or not p.streamed, "streamed: outputs are not aligned for non-temporal stores")


def _past_caches(analysis: Analysis, call: SizedCall) -> bool:
    """Whether full-size outputs together exceed the caches, and the processor has vector non-temporal stores."""
    most = call.properties.last_cache * heuristics_of(call.properties).tasks.past_caches
    return call.properties.vector_bytes >= 32 and output_bytes(analysis, call) > most


def output_bytes(analysis: Analysis, call: SizedCall) -> int:
    """The total bytes of full-size outputs."""
    return analysis.values(_output_sizes, call.sizes)[0]


def can_stream_line(analysis: Analysis, call: SizedCall) -> bool:
    """Like :meth:`CpuScheduler.can_stream`, for outputs that are traversed as one contiguous row."""
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


def parts(host: HostProperties) -> int:
    """The number of parts that a reduction is split into."""
    tasks = heuristics_of(host).tasks
    return min(tasks.parts_per_thread * host.threads, tasks.most_parts)


def one_pass(analysis: Analysis) -> bool:
    """Whether rows or columns are only reduced, in one phase, without full-size outputs."""
    return len(analysis.phases) == 1 and not late_outputs(analysis)[0]


def runs_across(analysis: Analysis, call: SizedCall) -> bool:
    """Whether vectors run across the reduced axes: along contiguous memory, or across short rows."""
    return is_outer(analysis, call.sizes) or _across_short_rows(analysis, call)


def _across_short_rows(analysis: Analysis, call: SizedCall) -> bool:
    """Whether vectors run across adjacent rows that are a small fraction of a vector.

    Such vectors are shuffled out of contiguous ones, or else loaded by gathers, which pays only for shorter rows. For
    plain sums and for full-size outputs one row at a time is faster from five elements on."""
    if not analysis.kept:
        return False
    kept, reduced, width, height = analysis.values(column_extents, call.sizes)
    columns = heuristics_of(call.properties).columns
    if (
        height > columns.across_height
        or width < columns.across_rows
        or analysis.values(row_steps, call.sizes) != (height,)
    ):
        return False
    if reduced > height:  # several loops over each row
        return kept * reduced >= columns.across_pieces * heuristics_of(call.properties).tasks.shared
    names = {op.name for phase in analysis.phases for op in phase}
    full, _ = analysis.once(late_outputs)
    if apart(analysis, call.sizes):
        return height <= columns.across_sums or not (full or names == {"sum"})
    return names != {"sum"} and height <= (4 if names & {"argmax", "argmin"} else 3)


def apart(analysis: Analysis, env: Sizes) -> int:
    """The distance of adjacent rows in elements, if vectors across them can be shuffled out of contiguous vectors; else
    0."""
    _, _, _, height = analysis.values(column_extents, env)
    known = analysis.once(row_steps) == [size_of(analysis.loops(analysis.reduced)[-1])]
    return height if known and height in PICKED else 0


def across_scanned_rows(analysis: Analysis, call: SizedCall) -> bool:
    """Whether each vector lane scans a row of its own, because rows are a small fraction of a vector."""
    if not analysis.kept:
        return False
    _, length, width, _ = analysis.values(column_extents, call.sizes)
    columns = heuristics_of(call.properties).columns
    return length <= columns.across_height and width >= columns.across_rows


def row_steps(analysis: Analysis) -> list[sz.Size]:
    """The distinct distances in memory between adjacent rows, in elements."""
    row, lane = analysis.loops(analysis.kept)[-1][-1], analysis.loops(analysis.reduced)[-1][-1]
    return list(
        dict.fromkeys(analysis.axis_stride(v, row) for v in analysis.inputs if analysis.axis_stride(v, lane) != 0)
    )


def column_extents(analysis: Analysis) -> list[sz.Size]:
    """:func:`row_extents`, followed by the extents of the innermost kept and innermost reduced loop."""
    inner = [size_of(analysis.loops(axes)[-1]) for axes in (analysis.kept, analysis.reduced)]
    return [*row_extents(analysis), *inner]
