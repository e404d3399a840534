"""Splits of a segment into stages, each a segment of its own: the ways to compile one as several kernels.

*By phases*: each phase of reductions is a stage, and the outputs are another. What depends on the reductions alone is
computed once, after them, and passed on in the workspace. Where there are too few rows to occupy all threads, each
stage uses all of them. In a segment with scans, the ops that do not depend on scans are one stage, and the others
another.

Reductions within rows along with sums over the rows, as in the backward of a norm, are split in two ways. *Together*:
the kernel that processes a row also adds it to partial sums, and a second kernel adds those up. Common inputs are read
once; but each block has a partial sum of every column, so that it processes many rows, of which few fit into a block's
registers at a time. *Apart*: one kernel for the rows and one for the columns, like reductions of any other program,
which read their inputs again, or the outputs of the row kernel.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import replace

from mlirfuse.analysis.joint import in_phases
from mlirfuse.analysis.phases import Analysis, analyze, depends_on, following, late_outputs
from mlirfuse.ir.graph import Layout, Op, Value


def by_phases(analysis: Analysis, phases: Callable[[Analysis], list[list]] = in_phases) -> list[Analysis]:
    """Return the segment's stages: one for each of its ``phases``, then one for the outputs along the rows and one for
    the others; or the ops before scans and those that depend on them."""
    return analysis.once(_around_scans) if analysis.scans else analysis.once(_stages, phases)


def _around_scans(analysis: Analysis) -> list[Analysis]:
    """Return the stage of ops that do not depend on scans, with the reductions that the others need, and the stage of
    those that do."""
    scanned = {v for op in analysis.scans + following(analysis.ops, analysis.scans) for v in op.results}
    late = analysis.late_values() - depends_on(analysis, analysis.reduced)
    independent, dependent = ([v for v in analysis.outputs if (v in scanned) is which] for which in (False, True))
    read = {v for op in live(analysis.ops, dependent, late.union(independent)) for v in op.operands}
    passed_on = frozenset(late & read)
    first = list(dict.fromkeys([*independent, *(v for op in analysis.ops for v in op.results if v in passed_on)]))
    return [
        stage(analysis, analysis.ops, first, set(), passed_on),
        stage(analysis, analysis.ops, dependent, passed_on.union(independent), passed_on),
    ]


def _stages(analysis: Analysis, phases: Callable[[Analysis], list[list]]) -> list[Analysis]:
    together = analysis.once(phases)
    phase_of = {value.op: at for at, phase in enumerate(together) for reduction in phase for value in reduction.results}
    level: dict[Value, int] = {}  # the phase after which a value is available
    for op in analysis.ops:
        level.update(
            dict.fromkeys(op.results, phase_of.get(op, max((level.get(v, -1) for v in op.operands), default=-1)))
        )
    passed_on = _passed_on(analysis, level)
    known: set[Value] = set()
    out = []
    for at in range(len(together)):
        results = [v for v in level if v in passed_on and level[v] == at]
        out.append(stage(analysis, analysis.ops, results, known, passed_on))
        known.update(results)
    left = [[v for v in outputs if v not in passed_on] for outputs in late_outputs(analysis)]
    return out + [stage(analysis, analysis.ops, outputs, known, passed_on) for outputs in left if outputs]


def _passed_on(analysis: Analysis, level: dict[Value, int]) -> frozenset[Value]:
    """Return the values derived from reductions that ops along the reduced axes use; and the reductions that outputs,
    or later reductions, need besides those."""
    varying = depends_on(analysis, analysis.reduced)
    constant = analysis.late_values() - varying - set(analysis.outputs)
    per_row = {v for op in analysis.ops if varying & set(op.results) for v in op.operands if v in constant}
    reductions = {op.result for phase in analysis.phases for op in phase}

    def needed(values, known: set[Value]) -> set[Value]:
        return {v for op in live(analysis.ops, values, known) for v in op.results if v in reductions}

    later = {r for v in per_row for r in needed([v], per_row - {v}) if level[r] < level[v]}
    return frozenset(per_row | needed(analysis.outputs, per_row) | later)


def stage(
    analysis: Analysis, ops: list[Op], outputs: list[Value], known: AbstractSet[Value], passed_on: frozenset[Value]
) -> Analysis:
    """Return the stage that computes ``outputs`` with ``ops`` from the inputs and the ``known`` values. ``passed_on``:
    the values that stages leave in the workspace, besides those that ``analysis``, which may be a stage itself, leaves
    there."""
    everything = passed_on | analysis.passed_on
    layouts = {v: Layout(strides, 1) for v, strides in analysis.strides.items() if v not in everything}
    found = analyze(
        live(ops, outputs, known), outputs, layouts, set(analysis.scalars), analysis.hint, analysis.axes, False
    )
    returned = analysis.results | {
        v: analysis.strides[v] for v in passed_on - analysis.passed_on if v in analysis.outputs
    }
    inside = {v: analysis.inside[v] for v in outputs if v in analysis.inside}
    results = {v: returned[v] for v in outputs if v in returned}
    return replace(found, passed_on=everything, inside=inside, results=results)


def live(ops: list[Op], outputs: list[Value], known: AbstractSet[Value]) -> list[Op]:
    """Return those of ``ops`` that compute ``outputs`` from the ``known`` values."""
    needed, out = set(outputs), []
    for op in reversed(ops):
        if any(v in needed and v not in known for v in op.results):
            needed.update(op.operands)
            out.append(op)
    return out[::-1]


def together(analysis: Analysis) -> list[Analysis]:
    """Return two stages: the rows with partial sums over them, and the sums of the partial sums."""
    within, over = _outputs(analysis)
    sums = [op.result for op in analysis.partials]
    passed_on = frozenset(sums)
    return [
        stage(analysis, analysis.ops, within + sums, set(), passed_on),
        stage(analysis, analysis.ops, over, passed_on, passed_on),
    ]


def apart(analysis: Analysis) -> list[Analysis]:
    """Return two stages: the rows, if they have outputs, and the columns; the one that needs nothing of the other is
    first."""
    within, over = _outputs(analysis)
    partials = {op.result: op for op in analysis.partials}
    program = [
        _over_rows(op, partials[op.operands[0]]) if set(op.operands) & set(partials) else op for op in analysis.ops
    ]
    stored = set(within).intersection(read_again(analysis))
    per_row = _of_rows(analysis, stored)
    passed_on = frozenset(per_row)
    columns = stage(analysis, program, over, stored.union(per_row), passed_on)
    if not within + per_row:
        return [columns]
    rows = stage(analysis, program, list(dict.fromkeys(within + per_row)), set(), passed_on)
    return [rows, columns] if per_row or stored else [columns, rows]


def _outputs(analysis: Analysis) -> tuple[list[Value], list[Value]]:
    """Return the outputs computed from rows, and those computed from sums over rows."""
    over = {v for op in analysis.finishing for v in op.results}
    return [v for v in analysis.outputs if v not in over], [v for v in analysis.outputs if v in over]


def _over_rows(op: Op, partial: Op) -> Op:
    """Return the sum ``op`` of partial sums as a direct sum over rows. Its result is the same value, whose ``op`` is
    still that of the program."""
    direct = copy.copy(op)
    direct.operands, direct.attrs = partial.operands, {"axes": partial.attrs["axes"], "keepdims": False}
    return direct


def _of_rows(analysis: Analysis, known: AbstractSet[Value]) -> list[Value]:
    """Return what the sums over rows need of reductions within the rows, besides the ``known`` values: values with one
    element per row."""
    late = analysis.late_values() - depends_on(analysis, analysis.reduced)
    summed = [op.operands[0] for op in analysis.partials]
    per_row = [v for op in live(analysis.ops, summed, late | known) for v in op.operands if v in late]
    return list(dict.fromkeys(per_row))


def read_again(analysis: Analysis) -> list[Value]:
    """Return the tensors that the sums over rows read where they are separate from the rows: inputs, or outputs of the
    row kernel, if those are fewer bytes."""
    late = analysis.late_values() - depends_on(analysis, analysis.reduced)
    summed = [op.operands[0] for op in analysis.partials]
    kept, reduced = set(analysis.kept), set(analysis.reduced)

    def sources(known: set[Value]) -> list[Value]:
        ops = live(analysis.ops, summed, late | known)
        created = {v for op in ops for v in op.results} - known
        read = dict.fromkeys(v for v in [*summed, *(v for op in ops for v in op.operands)] if v not in created)
        return [v for v in read if kept & set(analysis.axes.flat(v)) and reduced & set(analysis.axes.flat(v))]

    stored = {v for v in analysis.outputs if v.op not in analysis.partials and v.op not in analysis.finishing}
    return min(sources(set()), sources(stored), key=lambda values: sum(v.dtype.bytes for v in values))
