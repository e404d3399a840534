"""Reductions within rows beside sums over the rows, as in the backward of a norm: the two ways to divide such a segment
into kernels.

*Together*: the kernel that has a row at hand adds it to partial sums as well, and a second one adds those up. What both need is read once; but each block
has a partial sum of every column, so that it takes many rows, whose share of a block's registers is small.

*Apart*: the rows by themselves, and the columns by themselves, as reductions of any other program are, which read their inputs again.
"""

from __future__ import annotations

import copy

from mlirfuse.analysis.phases import Analysis, depends_on
from mlirfuse.ir.graph import Op, Value
from mlirfuse.schedule import staged


def together(analysis: Analysis) -> list[Analysis]:
    """One kernel for the rows and partial sums of them, another that adds those up."""
    within, over = _outputs(analysis)
    sums = [op.result for op in analysis.partials]
    passed_on = frozenset(sums)
    return [
        staged.stage(analysis, analysis.ops, within + sums, set(), passed_on),
        staged.stage(analysis, analysis.ops, over, passed_on, passed_on),
    ]


def apart(analysis: Analysis) -> list[Analysis]:
    """The rows, if anything is written of them, and the columns: first those that need nothing of the others."""
    within, over = _outputs(analysis)
    partials = {op.result: op for op in analysis.partials}
    program = [
        _over_rows(op, partials[op.operands[0]]) if set(op.operands) & set(partials) else op for op in analysis.ops
    ]
    taken = _of_rows(analysis, [op.operands[0] for op in analysis.partials])
    passed_on = frozenset(taken)
    columns = staged.stage(analysis, program, over, set(taken), passed_on)
    if not within + taken:
        return [columns]
    rows = staged.stage(analysis, program, list(dict.fromkeys(within + taken)), set(), passed_on)
    return [rows, columns] if taken else [columns, rows]


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


def _of_rows(analysis: Analysis, summed: list[Value]) -> list[Value]:
    """What ``summed`` needs of reductions within the rows: values with one element a row."""
    varying = depends_on(analysis, analysis.reduced)
    late = analysis.late_values() - varying
    taken = [v for op in staged.live(analysis.ops, summed, late) for v in op.operands if v in late]
    return list(dict.fromkeys(taken))
