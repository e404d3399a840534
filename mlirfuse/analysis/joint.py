"""Reductions that schedulers accumulate jointly: a sum along with the squared deviations, whose computation includes
the mean; and softmax's maximum with its sum of exponentials (online softmax), which then take one pass over memory, or
one exchange between threads, instead of two."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mlirfuse.analysis.axes import Axes
from mlirfuse.analysis.phases import Analysis
from mlirfuse.ir.graph import Op, Value
from mlirfuse.ir.ops import FOREIGN, TABLE, OpDef


@dataclass(eq=False)
class MaxSumExp:
    """A maximum ``m`` over rows and the sum of ``exp(x - m)``, its ``results``, accumulated in one pass as (m, sum),
    where the sum is relative to the m so far (Milakov and Gimelshein, Online normalizer calculation for softmax, 2018).
    ``guarded``: the sum is of ``exp(x)`` where m is not finite."""

    operands: list[Value]
    results: list[Value]
    guarded: bool = False
    name: str = "max_sum_exp"
    row: OpDef = FOREIGN


@dataclass(eq=False)
class Moments:
    """A sum and the squared deviations of the same elements, its ``results``: accumulated like m2 alone, whose mean
    yields the sum. ``attrs``: m2's."""

    operands: list[Value]
    results: list[Value]
    attrs: dict[str, Any]
    name: str = "m2"
    row: OpDef = TABLE["m2"]


def in_phases(analysis: Analysis) -> list[list]:
    """Return the phases of ``analysis`` with each pair of ``sum(x)`` and ``m2(x)`` as one :class:`Moments`."""
    return [_with_moments(phase) for phase in analysis.phases]


def online(analysis: Analysis) -> list[list]:
    """Return the phases of :func:`in_phases` with each ``max(x)`` and ``sum(exp(x - max(x)))`` as one
    :class:`MaxSumExp` in the phase of the maximum, where that leaves fewer phases."""
    pairs: dict[Op, Op] = {}
    merged: dict[Op, MaxSumExp] = {}
    for first, second in zip(analysis.phases, analysis.phases[1:]):
        for total in second:
            top, guarded = _maximum_of(total, analysis.axes)
            if top in first and top not in merged:
                pairs[total] = top
                merged[top] = MaxSumExp(top.operands, [top.result, total.result], guarded)
    phases = [[merged.get(op, op) for op in phase if op not in pairs] for phase in analysis.phases]
    return [_with_moments(phase) for phase in phases if phase] if not all(phases) else in_phases(analysis)


def _with_moments(phase: list) -> list:
    deviations = {op.operands[0]: op for op in phase if op.row.accumulator == "moments"}
    totals = {op.operands[0]: op for op in phase if op.name == "sum" and op.operands[0] in deviations}
    out = []
    for op in phase:
        total = totals.get(op.operands[0])
        if op.row.accumulator == "moments" and total is not None:
            out.append(Moments(op.operands, [total.result, op.result], op.attrs))
        elif op is not total:
            out.append(op)
    return out


def _maximum_of(total: Op, axes: Axes) -> tuple[Op | None, bool]:
    """Return the maximum m where ``total`` is the sum of ``exp(x - m)`` over the rows whose maximum m is, and whether 0
    replaces an m that is not finite."""
    power = total.operands[0].op if total.name == "sum" else None
    apart = power.operands[0].op if power is not None and power.name == "exp" else None
    if apart is None or apart.name != "sub":
        return None, False
    rows, top = apart.operands[0], _source(apart.operands[1]).op
    finite = _finite_or_zero(top)
    top = finite or top
    if top is None or top.name != "max" or top.operands[0] is not rows or not rows.dtype.is_float:
        return None, False
    reduced = axes.reduced(top)
    same = reduced == axes.reduced(total) and not set(reduced) & set(axes.flat(apart.operands[1]))
    return (top, finite is not None) if same else (None, False)


def _finite_or_zero(op: Op | None) -> Op | None:
    """Return the op that computes m, where ``op`` is ``where(isfinite(m), m, 0)``."""
    if op is None or op.name != "where":
        return None
    finite, value, other = (_source(v) for v in op.operands)
    zero = other.op is not None and other.op.name == "constant" and other.op.attrs["value"] == 0
    guarded = finite.op is not None and finite.op.name == "isfinite" and _source(finite.op.operands[0]) is value
    return value.op if zero and guarded else None


def _source(value: Value) -> Value:
    """Return the value that a value is a reshape of, through any number of views."""
    while value.op is not None and value.op.row.keeps_all:
        value = value.op.operands[0]
    return value
