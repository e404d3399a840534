"""Sizes that the choices of CPU schedulers depend on."""

from __future__ import annotations

from mlirfuse.analysis.phases import Analysis, is_outer, late_outputs, size_of
from mlirfuse.core.device_properties import HostProperties
from mlirfuse.ir import sizes as sz
from mlirfuse.lowering.kernel.memory import PICKED
from mlirfuse.schedule.cpu.heuristics import heuristics_of
from mlirfuse.schedule.scheduler import Sizes


def parts(host: HostProperties) -> int:
    """Parts that a reduction is split into."""
    tasks = heuristics_of(host).tasks
    return min(tasks.parts_per_thread * host.threads, tasks.most_parts)


def runs_across(analysis: Analysis, env: Sizes, host: HostProperties) -> bool:
    """Whether vectors run across the reduced axes: along memory, or across short rows."""
    return is_outer(analysis, env) or _across_short_rows(analysis, env, host)


def _across_short_rows(analysis: Analysis, env: Sizes, host: HostProperties) -> bool:
    """Whether vectors run across rows that lie one behind the other, where a row is a small part of a vector. They are
    picked out of whole ones; where that cannot be they are gathered, and rows have to be shorter. Sums alone, and what
    is written as long as the rows, take less time a row at a time from five elements on."""
    if not analysis.kept:
        return False
    kept, reduced, width, height = analysis.values(column_extents, env)
    columns = heuristics_of(host).columns
    if height > columns.across_height or width < columns.across_rows or analysis.values(row_steps, env) != (height,):
        return False
    if reduced > height:  # each row in pieces
        return kept * reduced >= columns.across_pieces * heuristics_of(host).tasks.shared
    names = {op.name for phase in analysis.phases for op in phase}
    full, _ = analysis.once(late_outputs)
    if apart(analysis, env):
        return height <= columns.across_sums or not (full or names == {"sum"})
    return names != {"sum"} and height <= (4 if names & {"argmax", "argmin"} else 3)


def apart(analysis: Analysis, env: Sizes) -> int:
    """How far apart in memory rows that lie one behind the other are, if vectors that run across them are picked out of
    whole ones; else 0."""
    _, _, _, height = analysis.values(column_extents, env)
    known = analysis.once(row_steps) == [size_of(analysis.loops(analysis.reduced)[-1])]
    return height if known and height in PICKED else 0


def across_scanned_rows(analysis: Analysis, env: Sizes, host: HostProperties) -> bool:
    """Whether the lanes of a vector take a row each of those that are scanned, as they are a small part of a vector."""
    if not analysis.kept:
        return False
    _, length, width, _ = analysis.values(column_extents, env)
    columns = heuristics_of(host).columns
    return length <= columns.across_height and width >= columns.across_rows


def row_steps(analysis: Analysis) -> list[sz.Size]:
    """How far apart rows lie in memory, each such distance once."""
    row, lane = analysis.loops(analysis.kept)[-1][-1], analysis.loops(analysis.reduced)[-1][-1]
    return list(
        dict.fromkeys(analysis.axis_stride(v, row) for v in analysis.inputs if analysis.axis_stride(v, lane) != 0)
    )


def row_extents(analysis: Analysis) -> list[sz.Size]:
    """Points of the kept axes, and of the reduced ones."""
    return [sz.product(a.size for a in analysis.kept), sz.product(a.size for a in analysis.reduced)]


def column_extents(analysis: Analysis) -> list[sz.Size]:
    """The same, and of the innermost loop over each."""
    inner = [size_of(analysis.loops(axes)[-1]) for axes in (analysis.kept, analysis.reduced)]
    return [*row_extents(analysis), *inner]
