"""Coalesces rows of GPU column reductions: treats several rows as one whose length the vector width divides."""

from __future__ import annotations

from mlirfuse.analysis.phases import Analysis, late_outputs, points_of, size_of
from mlirfuse.ir.graph import Value
from mlirfuse.schedule.gpu.access import widened
from mlirfuse.schedule.scheduler import SizedCall
from mlirfuse.schedule.tiling import Access


def extents(analysis: Analysis) -> tuple:
    """The numbers of columns along the innermost kept loop, of points of the outer kept loops, and of rows."""
    *outer, inner = analysis.loops(analysis.kept)
    return size_of(inner), points_of(outer), size_of(analysis.reduced)


def _can_coalesce(analysis: Analysis) -> bool:
    """Whether several rows can be treated as one: all full-size inputs and outputs are contiguous across rows."""
    kept, reduced = analysis.loops(analysis.kept), analysis.loops(analysis.reduced)
    positions = any(op.row.accumulator == "position" for op in analysis.phases[0])
    if not kept or len(reduced) != 1 or analysis.pinned or positions:
        return False
    # A random number depends on its index in its tensor, which is computed from row and column.
    if any(op.row.kind == "random" for op in analysis.ops):
        return False
    domain, across, down = set(analysis.domain), kept[-1][-1], reduced[0][-1]
    return all(
        domain == set(analysis.axes.flat(v))
        and (analysis.axis_stride(v, across), analysis.axis_stride(v, down)) == (1, size_of(kept[-1]))
        for v in _full(analysis)
    )


def _full(analysis: Analysis) -> list[Value]:
    """The inputs with dimensions, and the full-size outputs."""
    return [v for v in analysis.inputs if v.rank] + late_outputs(analysis)[0]


def _widest(analysis: Analysis) -> tuple[list[Value], int]:
    """The full-size inputs and outputs, and the elements of each in an access of at most 16 bytes."""
    full = _full(analysis)
    return full, min(16 // max((v.dtype.bytes for v in full), default=16), 8)


def unstacked(analysis: Analysis) -> bool:
    """Whether there is only one kept loop: the partial accumulators of coalesced rows have no other dimension."""
    return len(analysis.loops(analysis.kept)) == 1


def _steps_above(analysis: Analysis) -> tuple:
    """The strides of inputs along the outer kept loops."""
    above = analysis.loops(analysis.kept)[:-1]
    return tuple(dict.fromkeys(analysis.axis_stride(v, loop[-1]) for v in analysis.inputs if v.rank for loop in above))


def coalesced(analysis: Analysis, access: Access, call: SizedCall) -> tuple[int, Access]:
    """The number of rows to treat as one so that vectors of 16 bytes divide them, and the access then; 1 if
    impossible."""
    columns, _, rows = analysis.values(extents, call.sizes)
    wide, lanes = analysis.once(_widest)
    coalesced_rows = lanes // min(columns & -columns, lanes)
    impossible = rows % coalesced_rows or not analysis.once(_can_coalesce)
    if coalesced_rows == 1 or access.lanes >= lanes or impossible:
        return 1, access
    if any(step % lanes for step in analysis.values(_steps_above, call.sizes)):
        return 1, access
    found = widened(analysis, access, lanes, wide, wide, call)
    return (coalesced_rows, found) if found else (1, access)
