"""A segment in stages, each of which is a segment by itself: the ways to divide one into several kernels.

*By phases*: each phase of reductions is a stage, and the outputs are another. What follows from the reductions alone is
computed once, after them, and handed on in the workspace. Where there are too few rows for all threads, each stage has
all of them. Where something is scanned, all that does not follow from scans is one stage, and the rest another.

Reductions within rows beside sums over the rows, as in the backward of a norm, are divided in two ways. *Together*: the
kernel that has a row at hand adds it to partial sums as well, and a second one adds those up. What both need is read
once; but each block has a partial sum of every column, so that it takes many rows, whose share of a block's registers
is small. *Apart*: the rows by themselves, and the columns by themselves, as reductions of any other program are, which
read their inputs again, or what the rows have written.
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
    """The segment's stages, each as a segment of its own: one for each of its ``phases``, then one for the outputs
    along the rows and one for the others; or what comes before scans and what follows from them."""
    return analysis.once(_around_scans) if analysis.scans else analysis.once(_stages, phases)


def _around_scans(analysis: Analysis) -> list[Analysis]:
    """What does not follow from scans, with what the others need of the reductions, and what does."""
    scanned = {v for op in analysis.scans + following(analysis.ops, analysis.scans) for v in op.results}
    late = analysis.late_values() - depends_on(analysis, analysis.reduced)
    before, behind = ([v for v in analysis.outputs if (v in scanned) is which] for which in (False, True))
    read = {v for op in live(analysis.ops, behind, late.union(before)) for v in op.operands}
    passed_on = frozenset(late & read)
    first = list(dict.fromkeys([*before, *(v for op in analysis.ops for v in op.results if v in passed_on)]))
    return [
        stage(analysis, analysis.ops, first, set(), passed_on),
        stage(analysis, analysis.ops, behind, passed_on.union(before), passed_on),
    ]


def _stages(analysis: Analysis, phases: Callable[[Analysis], list[list]]) -> list[Analysis]:
    together = analysis.once(phases)
    phase_of = {value.op: at for at, phase in enumerate(together) for reduction in phase for value in reduction.results}
    level: dict[Value, int] = {}  # the phase after which a value is known
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
    """What ops along the reduced axes take of the values that follow from the reductions; and the reductions that
    outputs need beside those, or later ones of those."""
    varying = depends_on(analysis, analysis.reduced)
    constant = analysis.late_values() - varying - set(analysis.outputs)
    taken = {v for op in analysis.ops if varying & set(op.results) for v in op.operands if v in constant}
    reductions = {op.result for phase in analysis.phases for op in phase}

    def needed(values, known: set[Value]) -> set[Value]:
        return {v for op in live(analysis.ops, values, known) for v in op.results if v in reductions}

    later = {r for v in taken for r in needed([v], taken - {v}) if level[r] < level[v]}
    return frozenset(taken | needed(analysis.outputs, taken) | later)


def stage(
    analysis: Analysis, ops: list[Op], outputs: list[Value], known: AbstractSet[Value], passed_on: frozenset[Value]
) -> Analysis:
    """What computes ``outputs`` by ``ops`` from the inputs and the values that are ``known``. ``passed_on``: what the
    stages leave in the workspace, beside what ``analysis``, which may be a stage itself, shall leave there."""
    everything = passed_on | analysis.passed_on
    layouts = {v: Layout(strides, 1) for v, strides in analysis.strides.items() if v not in everything}
    found = analyze(live(ops, outputs, known), outputs, layouts, set(analysis.scalars), analysis.hint, analysis.axes)
    returned = analysis.results | {
        v: analysis.strides[v] for v in passed_on - analysis.passed_on if v in analysis.outputs
    }
    return replace(found, passed_on=everything, results={v: returned[v] for v in outputs if v in returned})


def live(ops: list[Op], outputs: list[Value], known: AbstractSet[Value]) -> list[Op]:
    """Those of ``ops`` that compute ``outputs`` from what is ``known``."""
    needed, out = set(outputs), []
    for op in reversed(ops):
        if any(v in needed and v not in known for v in op.results):
            needed.update(op.operands)
            out.append(op)
    return out[::-1]


def together(analysis: Analysis) -> list[Analysis]:
    """One kernel for the rows and partial sums of them, another that adds those up."""
    within, over = _outputs(analysis)
    sums = [op.result for op in analysis.partials]
    passed_on = frozenset(sums)
    return [
        stage(analysis, analysis.ops, within + sums, set(), passed_on),
        stage(analysis, analysis.ops, over, passed_on, passed_on),
    ]


def apart(analysis: Analysis) -> list[Analysis]:
    """The rows, if anything is written of them, and the columns: first those that need nothing of the others."""
    within, over = _outputs(analysis)
    partials = {op.result: op for op in analysis.partials}
    program = [
        _over_rows(op, partials[op.operands[0]]) if set(op.operands) & set(partials) else op for op in analysis.ops
    ]
    written = set(within).intersection(read_again(analysis))
    taken = _of_rows(analysis, written)
    passed_on = frozenset(taken)
    columns = stage(analysis, program, over, written.union(taken), passed_on)
    if not within + taken:
        return [columns]
    rows = stage(analysis, program, list(dict.fromkeys(within + taken)), set(), passed_on)
    return [rows, columns] if taken or written else [columns, rows]


def _outputs(analysis: Analysis) -> tuple[list[Value], list[Value]]:
    """The outputs that are made of rows, and those that are made of sums over rows."""
    over = {v for op in analysis.finishing for v in op.results}
    return [v for v in analysis.outputs if v not in over], [v for v in analysis.outputs if v in over]


def _over_rows(op: Op, partial: Op) -> Op:
    """The sum ``op`` of partial sums as the sum over rows that it is. Its result is the same value, whose ``op`` is
    still that of the program."""
    whole = copy.copy(op)
    whole.operands, whole.attrs = partial.operands, {"axes": partial.attrs["axes"], "keepdims": False}
    return whole


def _of_rows(analysis: Analysis, known: AbstractSet[Value]) -> list[Value]:
    """What the sums over rows need of reductions within the rows, beside what is ``known``: values with one element a
    row."""
    late = analysis.late_values() - depends_on(analysis, analysis.reduced)
    summed = [op.operands[0] for op in analysis.partials]
    taken = [v for op in live(analysis.ops, summed, late | known) for v in op.operands if v in late]
    return list(dict.fromkeys(taken))


def read_again(analysis: Analysis) -> list[Value]:
    """What the sums over rows read of the elements of rows where they are apart from those: inputs, or what is written
    of the rows, if that is fewer bytes."""
    late = analysis.late_values() - depends_on(analysis, analysis.reduced)
    summed = [op.operands[0] for op in analysis.partials]
    kept, reduced = set(analysis.kept), set(analysis.reduced)

    def sources(known: set[Value]) -> list[Value]:
        ops = live(analysis.ops, summed, late | known)
        created = {v for op in ops for v in op.results} - known
        read = dict.fromkeys(v for v in [*summed, *(v for op in ops for v in op.operands)] if v not in created)
        return [v for v in read if kept & set(analysis.axes.flat(v)) and reduced & set(analysis.axes.flat(v))]

    written = {v for v in analysis.outputs if v.op not in analysis.partials and v.op not in analysis.finishing}
    return min(sources(set()), sources(written), key=lambda values: sum(v.dtype.bytes for v in values))
