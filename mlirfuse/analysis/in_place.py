"""Whether a kernel may write a result over an argument that it reads: no other element needs the old one."""

from __future__ import annotations

from mlirfuse.analysis import stages
from mlirfuse.analysis.phases import Analysis, is_reduction, late_outputs, reads_elsewhere
from mlirfuse.ir.graph import Value, Window


def overwrites(analysis: Analysis, value: Value, argument: Value) -> bool:
    """Whether the kernels of a segment that reads ``argument`` may write ``value`` over it."""
    if analysis.finishing:
        stage_analyses = [stage for form in (stages.together, stages.apart) for stage in analysis.once(form)]
        return all(overwrites(stage, value, argument) for stage in stage_analyses if argument in stage.inputs)
    axes = analysis.axes
    if analysis.scatter_add is not None:  # rows that no index selects keep their values
        readers = [op for op in analysis.ops if argument in op.operands]
        initial, *others = analysis.scatter_add.operands
        return readers == [analysis.scatter_add] and initial is argument and argument not in others
    if (
        value not in analysis.outputs
        or reads_elsewhere(analysis, argument)
        or analysis.partials
        or axes.dims(argument) != axes.dims(value)
    ):
        return False
    written = set(axes.flat(value))
    if not analysis.phases:
        # Each element of the domain writes one element, which no other reads: the value has all the domain's axes.
        return set(analysis.domain) <= written
    # One element per row: one thread writes it after the row's last pass, and only the row itself reads it.
    reached = {argument}
    for op in analysis.ops:
        if any(v in reached for v in op.operands):
            if is_reduction(op) and axes.reduced(op):
                return False
            reached.update(op.results)
    return written == set(analysis.kept) and reached.intersection(analysis.outputs) == {value}


def overwrites_full(analysis: Analysis, value: Value, argument: Value) -> bool:
    """Whether a segment with reductions may write ``value``, which has all elements of the domain, over
    ``argument``.

    The last pass writes what depends on reductions, and computes all of it before it stores any. The first pass
    writes what does not: then no other pass may read the argument."""
    axes = analysis.axes
    full = value in analysis.outputs and axes.dims(argument) == axes.dims(value)
    full = full and set(analysis.domain) <= set(axes.flat(value))
    if not full or analysis.finishing or analysis.partials or analysis.scans:
        return False
    if reads_elsewhere(analysis, argument):
        return False
    outputs, _ = late_outputs(analysis)
    return value in analysis.late_values() or (len(analysis.phases) == 1 and outputs == [value])


def overwrites_window(analysis: Analysis, value: Value, argument: Value, window: Window) -> bool:
    """Whether the kernel of a segment that reads ``argument`` may write ``value`` over a window of it: it reads
    only elements of that window, each where it writes it."""
    if value not in analysis.outputs or analysis.phases or analysis.partials or analysis.scans:
        return False
    axes = analysis.axes
    return set(analysis.domain) <= set(axes.flat(value)) and all(
        op.name == "slice"
        and (op.attrs["start"], op.attrs["step"], op.result.shape) == (window.start, window.step, value.shape)
        and axes.dims(op.result) == axes.dims(value)
        for op in analysis.ops
        if argument in op.operands
    )
