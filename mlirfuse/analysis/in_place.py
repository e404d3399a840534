"""Whether a kernel may write a result over an argument that it reads: no other element needs the old one."""

from __future__ import annotations

from mlirfuse.analysis import stages
from mlirfuse.analysis.axes import Axes, Axis
from mlirfuse.analysis.phases import Analysis, is_reduction, late_outputs, maps_index, reads_elsewhere
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Op, Value, Window
from mlirfuse.ir.sizes import Size

# Which element is read for an element of a value, or is where that is stored: its offset in memory where the indices of
# all axes are 0, and the steps along those axes that it depends on, in elements.
_Offsets = tuple[Size, frozenset[tuple[Axis, Size]]]


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
    if parts := parts_of(analysis, value):
        return analysis.elementwise and _reads_where_parts_are(analysis, parts, argument)
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
    if analysis.finishing or analysis.partials or analysis.scans:
        return False
    axes, stored = analysis.axes, parts_of(analysis, value) or [value]
    outputs, _ = late_outputs(analysis)
    late = analysis.late_values()
    if not late.issuperset(stored) and not (
        len(analysis.phases) == 1 and outputs == stored and late.isdisjoint(stored)
    ):
        return False
    if stored != [value]:
        return analysis.reduces and _reads_where_parts_are(analysis, stored, argument)
    return (
        value in analysis.outputs
        and axes.dims(argument) == axes.dims(value)
        and set(analysis.domain) <= set(axes.flat(value))
        and not reads_elsewhere(analysis, argument)
    )


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


def parts_of(analysis: Analysis, value: Value) -> list[Value]:
    """The parts that ``value`` is stored in; none if it is stored as a whole."""
    return [part for part, stored in analysis.inside.items() if stored.whole is value]


def _reads_where_parts_are(analysis: Analysis, parts: list[Value], argument: Value) -> bool:
    """Whether kernels may store ``parts`` over ``argument`` after the reductions: each point of the domain reads only
    elements that it writes itself, and no two points write the same one."""
    axes, domain = analysis.axes, analysis.domain
    if any(set(domain) != set(axes.flat(part)) for part in parts):
        return False
    written = {_offsets(analysis.inside[v].start, {a: analysis.axis_stride(v, a) for a in domain}) for v in parts}
    steps = {axis: analysis.axis_stride(argument, axis) for axis in axes.flat(argument)}
    read: dict[Value, set[_Offsets]] = {argument: {_offsets(0, steps)}}  # of the argument, for an element of a value
    for op in analysis.ops:
        both = [_at_result(axes, op, v, offsets) for v in op.operands for offsets in read.get(v, ())]
        found = {offsets for offsets in both if offsets is not None}
        if None in both:
            return False
        if not (is_reduction(op) and axes.reduced(op)):
            read.update(dict.fromkeys(op.results, found))
        elif not found <= written:  # all of a row is read before any of it is written
            return False
    return all(read.get(v, set()) <= written for v in analysis.outputs)


def _offsets(first: Size, steps: dict[Axis, Size]) -> _Offsets:
    return first, frozenset((axis, step) for axis, step in steps.items() if step != 0)


def _at_result(axes: Axes, op: Op, operand: Value, offsets: _Offsets) -> _Offsets | None:
    """What is read for an element of the result of ``op`` if ``offsets`` is what is read for one of the operand; None
    if that is not known."""
    if op.name == "slice":
        starts, by = op.attrs["start"], op.attrs["step"]
    elif op.row.kind == "elementwise":
        starts, by = (0,) * operand.rank, (1,) * operand.rank
    else:
        return None if maps_index(op, axes) else offsets
    first, steps = offsets[0], dict(offsets[1])
    out: dict[Axis, Size] = {}
    for given, made, start, factor in zip(axes.dims(operand), axes.dims(op.result), starts, by):
        along = step = steps.get(given[-1], 0) if given else 0
        if given == made and (start, factor) == (0, 1):
            out |= {axis: steps.get(axis, 0) for axis in given}
            continue
        for axis in reversed(given):
            if steps.get(axis, 0) != step:
                return None
            step = sz.mul(step, axis.size)
        first, step = first + sz.mul(start, along), sz.mul(factor, along)
        for axis in reversed(made):
            out[axis] = step
            step = sz.mul(step, axis.size)
    return _offsets(first, out)
