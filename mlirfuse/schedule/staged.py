"""Normalizations in stages, on the CPU: where there are too few rows to share, each phase of reductions is a reduction in parts of its own,
and the outputs are written by a pointwise kernel. The stages hand the reductions' results on in the workspace.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from mlirfuse.graph import Layout, Op, Value
from mlirfuse.schedule.analysis import Analysis, analyze
from mlirfuse.schedule.rows import late_outputs


@dataclass(frozen=True)
class Params:
    """The parameters of each stage."""

    stages: tuple[Any, ...]


def stages(analysis: Analysis) -> list[Analysis]:
    """The segment's stages, each as a segment of its own."""
    return analysis.once(_stages)


def possible(analysis: Analysis) -> bool:
    """Whether the segment can be cut into stages."""
    reductions = {op.result for phase in analysis.phases for op in phase}
    return not reductions & set(analysis.outputs)


def _stages(analysis: Analysis) -> list[Analysis]:
    passed_on = frozenset(op.result for phase in analysis.phases for op in phase)
    known: set[Value] = set()
    out = []
    for phase in analysis.phases:
        results = [op.result for op in phase]
        out.append(_stage(analysis, results, known))
        known.update(results)
    out += [_stage(analysis, outputs, known) for outputs in late_outputs(analysis) if outputs]
    return [replace(stage, passed_on=passed_on) for stage in out]


def _stage(analysis: Analysis, outputs: list[Value], known: set[Value]) -> Analysis:
    """What computes ``outputs`` from the inputs and the values that are ``known``."""
    layouts = {v: Layout(strides, 1) for v, strides in analysis.strides.items()}
    return analyze(_live(analysis.ops, outputs, known), outputs, layouts, set(analysis.scalars), analysis.hint)


def _live(ops: list[Op], outputs: list[Value], known: set[Value]) -> list[Op]:
    needed, out = set(outputs), []
    for op in reversed(ops):
        if any(v in needed and v not in known for v in op.results):
            needed.update(op.operands)
            out.append(op)
    return out[::-1]
