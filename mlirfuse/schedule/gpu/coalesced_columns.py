"""How long a GPU's columns are, and which rows across them are taken as one, so that vectors divide them."""

from __future__ import annotations

from mlirfuse.analysis.phases import Analysis, size_of
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Value
from mlirfuse.schedule.gpu.access import Access


def extents(analysis: Analysis) -> tuple:
    """Columns, what is above each other of them among the kept axes, rows."""
    loops = analysis.loops(analysis.kept)
    return (
        size_of(loops[-1]),
        sz.product(size_of(loop) for loop in loops[:-1]),
        sz.product(a.size for a in analysis.reduced),
    )


def _folds(analysis: Analysis) -> bool:
    """Whether rows can be folded: all that is read or written of them lies in memory row behind row."""
    kept, reduced = analysis.loops(analysis.kept), analysis.loops(analysis.reduced)
    if (
        not kept
        or len(reduced) != 1
        or analysis.pinned
        or any(op.row.accumulator == "position" for op in analysis.phases[0])
    ):
        return False
    if any(
        op.row.kind == "random" for op in analysis.ops
    ):  # an element's number is counted in its own tensor's shape, from row and column apart
        return False
    domain, size = set(analysis.domain), size_of(kept[-1])
    full = _full(analysis)
    return all(domain == set(analysis.axes.flat(v)) for v in full) and all(
        (analysis.axis_stride(v, kept[-1][-1]), analysis.axis_stride(v, reduced[0][-1])) == (1, size) for v in full
    )


def written(analysis: Analysis) -> list[Value]:
    """The outputs as long as the columns."""
    reduced = set(analysis.reduced)
    return [v for v in analysis.outputs if reduced & set(analysis.axes.flat(v))]


def _full(analysis: Analysis) -> list[Value]:
    """The inputs with dimensions, and the outputs as long as the columns."""
    return [v for v in analysis.inputs if v.rank] + written(analysis)


def _widest(analysis: Analysis) -> tuple[list[Value], int]:
    """What rows have that is read or written, and the elements of each that an access of at most 16 bytes has."""
    full = _full(analysis)
    return full, min(16 // max((v.dtype.bytes for v in full), default=16), 8)


def unstacked(analysis: Analysis) -> bool:
    """Whether no columns lie above each other: what folded rows leave in parts has no place for those."""
    return len(analysis.loops(analysis.kept)) == 1


def _steps_above(analysis: Analysis) -> tuple:
    """How far columns above each other are in memory."""
    above = analysis.loops(analysis.kept)[:-1]
    return tuple(dict.fromkeys(analysis.axis_stride(v, loop[-1]) for v in analysis.inputs if v.rank for loop in above))


def coalesced(
    analysis: Analysis, access: Access, env: dict[str, int], alignments: dict[Value, int]
) -> tuple[int, Access]:
    """How many rows to take as one so that vectors of 16 bytes divide it, and the access then; 1 where that is not to
    be had."""
    columns, _, rows = analysis.values(extents, env)
    wide, lanes = analysis.once(_widest)
    coalesced_rows = lanes // min(columns & -columns, lanes)
    if coalesced_rows == 1 or access.lanes >= lanes or rows % coalesced_rows or not analysis.once(_folds):
        return 1, access
    if any(step % lanes for step in analysis.values(_steps_above, env)):
        return 1, access
    if any(alignments.get(v, 16) < lanes * v.dtype.bytes for v in wide):
        return 1, access
    values = analysis.inputs + analysis.outputs
    aligns = [(lanes if v in wide else 1) * v.dtype.bytes for v in values]
    return coalesced_rows, access._replace(lanes=lanes, aligns=tuple(aligns), multiples=frozenset())
