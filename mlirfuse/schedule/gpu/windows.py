"""Overlapping reads of pointwise segments on a GPU: windows, stencils, strided slices. Chooses how many elements are
loaded at once, and the vector width across the boundaries of coalesced rows."""

from __future__ import annotations

import collections
import functools
import operator

from mlirfuse.analysis.phases import Analysis
from mlirfuse.ir.graph import Value
from mlirfuse.lowering.kernel import WIDEST
from mlirfuse.schedule.gpu.tuning.heuristics import PointwiseHeuristics
from mlirfuse.schedule.scheduler import SizedCall


def unaligned_reads(analysis: Analysis) -> int:
    """The most indices at which one value is read, per element of a result."""
    return max(collections.Counter(op.operands[0] for op in analysis.ops if op.name == "slice").values(), default=0)


def rows_read(analysis: Analysis) -> int:
    """The most rows of one value that are read, per element of a result: slices of the results' rank that start at
    different indices along other dimensions than the innermost."""
    loops, result = analysis.loops(analysis.kept), analysis.outputs[0]
    if not loops:
        return 1
    inner = loops[-1][-1]
    along = [inner in dim for dim in analysis.axes.dims(result)]
    rows = collections.defaultdict(set)
    for op in analysis.ops:
        if op.name == "slice" and op.result.rank == result.rank:
            rows[op.operands[0]].add(tuple(n for n, skipped in zip(op.attrs["start"], along) if not skipped))
    return max(map(len, rows.values()), default=0)


def read_at_once(analysis: Analysis, call: SizedCall, along: bool = False) -> int:
    """The number of elements of the narrowest type that can be loaded at once if vectors are unaligned: inputs start
    and end at a multiple of it. With ``along``, only the inputs that vary along the innermost loop count. 0 if a stride
    is negative, or no input counts."""
    inputs, strides = analysis.once(_inputs, along), analysis.values(input_strides, call.sizes)
    if not inputs or min(strides, default=0) < 0:
        return 0
    sizes = [analysis.stored(v).bytes for v in inputs]
    aligned = [call.alignments.get(v, WIDEST) // n for v, n in zip(inputs, sizes)]
    together = functools.reduce(operator.or_, (*analysis.values(_spans, call.sizes, along), *aligned))
    return min(together & -together, WIDEST // min(sizes))


def _inputs(analysis: Analysis, along: bool) -> list[Value]:
    """The inputs with dimensions; ``along``: that vary along the innermost loop, or are read at other indices."""
    if not along:
        return [v for v in analysis.inputs if v.rank]
    lane, domain = analysis.loops(analysis.kept)[-1][-1], set(analysis.domain)
    return [
        v for v in analysis.inputs if analysis.axis_stride(v, lane) != 0 or not domain >= set(analysis.axes.flat(v))
    ]


def _spans(analysis: Analysis, along: bool) -> tuple:
    return tuple(analysis.span(v) for v in analysis.once(_inputs, along))


def input_strides(analysis: Analysis) -> tuple:
    return tuple(dict.fromkeys(s for v in analysis.inputs for s in analysis.strides[v]))


def of_window(lanes: int, row: int, busy: bool, least: int, heuristics: PointwiseHeuristics) -> tuple[int, int]:
    """The vector width, up to ``lanes``, for overlapping reads, and the vectors per thread; 0: as many as have enough
    bytes in flight. ``row``: the elements of a coalesced row, 0 if there is only one row. ``least``: the bytes of the
    narrowest type that is read."""
    divides, long = min(lanes, row & -row), busy and row >= heuristics.run
    if row % lanes == 0:
        return lanes, 1
    if divides > 1 and not long:
        return divides, heuristics.most_narrow
    if busy and least < 4 and row < heuristics.run_of_eight:
        return min(lanes, 4), 1
    return lanes, int(long)
