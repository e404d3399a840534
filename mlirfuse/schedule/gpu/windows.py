"""Reads of pointwise segments that overlap, on a GPU: windows, stencils, strided slices. How many elements are read at
once, and how long vectors are where they run across the ends of folded rows."""

from __future__ import annotations

import collections
import functools

from mlirfuse.analysis.phases import Analysis
from mlirfuse.lowering.kernel import WIDEST
from mlirfuse.schedule.gpu.heuristics import PointwiseHeuristics
from mlirfuse.schedule.scheduler import Alignments, Sizes


def unaligned_reads(analysis: Analysis) -> int:
    """At how many places a value is read at most, for each of a result."""
    return max(collections.Counter(op.operands[0] for op in analysis.ops if op.name == "slice").values(), default=0)


def rows_read(analysis: Analysis) -> int:
    """Of how many rows a value is read at most, for each element of a result: slices of the results' rank begin at
    different places along other dimensions than the innermost."""
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


def read_at_once(analysis: Analysis, env: Sizes, alignments: Alignments) -> int:
    """How many elements of a shorter type can be loaded at once where vectors are not aligned: inputs begin where such
    are, and end where one does."""
    inputs = [v for v in analysis.inputs if v.rank]
    spans, strides = analysis.values(_spans, env), analysis.values(_input_strides, env)
    if not inputs or min(strides, default=0) < 0:
        return 1
    sizes = [analysis.stored(v).bytes for v in inputs]
    aligned = [alignments.get(v, WIDEST) // n for v, n in zip(inputs, sizes)]
    together = functools.reduce(lambda a, b: a | b, (*spans, *aligned))
    return min(together & -together, WIDEST // min(sizes))


def _spans(analysis: Analysis) -> tuple:
    return tuple(analysis.span(v) for v in analysis.inputs if v.rank)


def _input_strides(analysis: Analysis) -> tuple:
    return tuple(dict.fromkeys(s for v in analysis.inputs for s in analysis.strides[v]))


def of_window(lanes: int, row: int, busy: bool, least: int, heuristics: PointwiseHeuristics) -> tuple[int, int]:
    """The lanes of vectors, up to ``lanes``, where what is read for them overlaps, and how many a thread has; 0: as
    many as have enough under way. ``row``: the elements of a folded row; 0: there is one. ``least``: the bytes of the
    shortest type that is read."""
    divides, long = min(lanes, row & -row), busy and row >= heuristics.run
    if row % lanes == 0:
        return lanes, 1
    if divides > 1 and not long:
        return divides, heuristics.most_narrow
    if busy and least < 4 and row < heuristics.run_of_eight:
        return min(lanes, 4), 1
    return lanes, int(long)
