"""Extents and strides that the heuristics of CPU schedulers depend on."""

from __future__ import annotations

from mlirfuse.analysis.phases import Analysis, is_outer, late_outputs, row_extents, size_of
from mlirfuse.core.device_properties import HostProperties
from mlirfuse.ir import sizes as sz
from mlirfuse.lowering.kernel.memory import PICKED
from mlirfuse.schedule.cpu.heuristics import heuristics_of
from mlirfuse.schedule.scheduler import SizedCall, Sizes


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
