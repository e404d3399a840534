"""Softmax's maximum and its sum of exponentials as one reduction: one pass over memory, or one exchange between threads, instead of two."""

from __future__ import annotations

from mlirfuse.graph import Op, Value
from mlirfuse.lowering.reductions import MaxSumExp
from mlirfuse.schedule.analysis import Analysis
from mlirfuse.schedule.axes import Axes

_SAME_ELEMENTS = ("expand_dims", "squeeze", "broadcast_in_dim", "reshape", "permute")


def phases(analysis: Analysis) -> list[list[Op | MaxSumExp]]:
    """The phases of ``analysis`` with each ``max(x)`` and ``sum(exp(x - max(x)))`` as one :class:`MaxSumExp` in the phase of the maximum, where
    that leaves fewer phases; else as they are."""
    pairs = {}
    for first, second in zip(analysis.phases, analysis.phases[1:]):
        for total in second:
            top = _maximum_of(total, analysis.axes)
            if top in first and top not in pairs.values():
                pairs[total] = top
    merged = {top: MaxSumExp(top.operands, [top.result, total.result]) for total, top in pairs.items()}
    out = []
    for phase in analysis.phases:
        rest = [merged.get(op, op) for op in phase if op not in pairs]
        if rest:
            out.append(rest)
    return out if len(out) < len(analysis.phases) else analysis.phases


def _maximum_of(total: Op, axes: Axes) -> Op | None:
    """The maximum m where ``total`` is the sum of ``exp(x - m)`` over the rows of x that m is the maximum of."""
    power = total.operands[0].op if total.name == "sum" else None
    apart = power.operands[0].op if power is not None and power.name == "exp" else None
    if apart is None or apart.name != "sub":
        return None
    rows, top = apart.operands[0], _source(apart.operands[1]).op
    if top is None or top.name != "max" or top.operands[0] is not rows or not rows.dtype.is_float:
        return None
    reduced = axes.reduced(top)
    return top if reduced == axes.reduced(total) and not set(reduced) & set(axes.flat(apart.operands[1])) else None


def _source(value: Value) -> Value:
    """What a value's elements are taken from, whatever its shape."""
    while value.op is not None and value.op.name in _SAME_ELEMENTS:
        value = value.op.operands[0]
    return value
