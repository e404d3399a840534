"""What the transposes of both targets ask of a segment."""

from __future__ import annotations

from mlirfuse.analysis.phases import Analysis
from mlirfuse.ir.graph import Value


def unmapped_inputs(analysis: Analysis) -> list[Value]:
    """The inputs that are read at the indices of the loops, of which there are several."""
    domain, several = set(analysis.kept), len(analysis.loops(analysis.kept)) > 1
    axes = {v: set(analysis.axes.flat(v)) for v in analysis.inputs} if several else {}
    return [v for v, own in axes.items() if len(own) > 1 and own <= domain and not own & analysis.pinned]


def frontier(analysis: Analysis, inputs: list[Value]) -> list[Value]:
    """The last values that depend on ``inputs`` alone: those that other ops need, and outputs."""
    alone, needed = set(inputs), []
    for op in analysis.ops:
        of_them = bool(op.operands) and all(v in alone or not v.rank for v in op.operands)
        if op.row.kind in ("elementwise", "create") and of_them:
            alone.update(op.results)
        elif op.name != "constant":
            needed += [v for v in op.operands if v in alone and v.rank]
    return list(dict.fromkeys(needed + [v for v in analysis.outputs if v in alone]))
