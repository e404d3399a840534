"""Running totals: the accumulator of very many accumulators, one after the other, whose sums lose nothing of what is
small beside them.

A loop adds up a block of elements in a plain accumulator (:mod:`mlirfuse.lowering.reductions`), whose error is that of
as many additions as the block has turns, and then adds that to a running total. A running total has for each of its
sums what rounding took from it (Knuth's TwoSum), so that its error does not grow with the number of blocks. What does
not round, as a maximum or a sum of integers, and products, whose error is relative, are their plain accumulators.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.graph import Op
from mlirfuse.lowering import reductions as red
from mlirfuse.lowering.emitter import Emitter, Val
from mlirfuse.lowering.math import exp
from mlirfuse.lowering.math.arithmetic import two_sum

Total = tuple[Val, ...]  # an accumulator's parts, then what rounding took from each of its sums


def rounded(op: Op) -> tuple[int, ...]:
    """Which parts of an accumulator of ``op`` are sums that round: a sum's own, an m2's mean and squared deviations,
    the sum of exponentials beside a maximum."""
    if not op.operands[0].dtype.is_float:
        return ()
    return {"sum": (0,), "partial_sum": (0,), "m2": (1, 2), "max_sum_exp": (1,)}.get(op.name, ())


def types(op: Op) -> list[dt.DType]:
    """The element types of a running total's parts."""
    parts = red.accumulator_types(op)
    return parts + [parts[at] for at in rounded(op)]


def round_off(phase: list[Op]) -> bool:
    """Whether the accumulators of ``phase`` have sums that round."""
    return any(rounded(op) for op in phase)


def nothing(e: Emitter, phase: list[Op], lanes: int) -> list[Val]:
    """The running totals of nothing, as a loop carries them."""
    out: list[Val] = []
    for op in phase:
        start = red.identity(e, op, lanes)
        out += [*start, *(e.const(0.0, start[at].dtype, lanes) for at in rounded(op))]
    return out


def added(
    e: Emitter,
    phase: list[Op],
    totals: list[Val],
    block: list[Val],
    in_order: Callable[[Op], bool] = lambda op: False,
) -> list[Val]:
    """``totals`` with the accumulators of a block added. ``in_order``: whether its elements of an op come after
    theirs."""
    pairs = zip(phase, _grouped(phase, totals), red.grouped(phase, block))
    return [v for op, total, a in pairs for v in _add(e, op, total, a, in_order(op))]


def settled(e: Emitter, phase: list[Op], totals: list[Val]) -> list[Val]:
    """The accumulators with the values of running totals."""
    return [v for op, total in zip(phase, _grouped(phase, totals)) for v in _settled(e, op, total)]


def _grouped(phase: list[Op], flat: list[Val]) -> list[Total]:
    values = iter(flat)
    return [tuple(next(values) for _ in types(op)) for op in phase]


def _add(e: Emitter, op: Op, total: Total, a: tuple[Val, ...], in_order: bool) -> Total:
    if not rounded(op):
        return red.combine(e, op, total, a, in_order)
    if op.name == "m2":
        return _add_moments(e, op, total, a)
    if op.name == "max_sum_exp":
        top = e.max(total[0], a[0])
        base = red.finite_base(e, top)
        kept, new = (exp(e, e.sub(part, base)) for part in (total[0], a[0]))
        value, lost = two_sum(e, e.mul(total[1], kept), e.mul(a[1], new))
        return top, value, e.fma(total[2], kept, lost)
    value, lost = two_sum(e, total[0], a[0])
    return value, e.add(total[1], lost)


def _settled(e: Emitter, op: Op, total: Total) -> tuple[Val, ...]:
    at = rounded(op)
    out = list(total[: len(total) - len(at)])
    for place, lost in zip(at, total[len(out) :]):
        out[place] = e.select(_finite(e, lost), e.add(out[place], lost), out[place])
    return tuple(out)


def _finite(e: Emitter, val: Val) -> Val:
    return e.cmp("lt", e.abs(val), math.inf)


def _add_moments(e: Emitter, op: Op, total: Total, a: tuple[Val, ...]) -> Total:
    """Chan, Golub and LeVeque's update, of a mean that is two numbers: one would stop moving where a block's share of
    its distance is less than an ulp, and the distances of all later blocks would be too large."""
    count, mean, squares, mean_lost, squares_lost = total
    plain = red.combine(e, op, (count, mean, squares), a)
    apart = e.sub(e.sub(a[1], mean), mean_lost)
    share = red.share_of(e, a[0], plain[0])
    moved, lost = two_sum(e, mean, e.fma(apart, share, mean_lost))
    between = e.mul(apart, e.mul(apart, e.mul(count, share)))  # 0 beside a mean of nothing, however large the other
    added, less = two_sum(e, squares, e.add(a[2], between))
    less = e.add(squares_lost, less)
    whole = _finite(e, e.add(lost, less))  # else a mean, or a distance, is not finite: as with one number
    zero = e.const(0.0, mean.dtype, mean.lanes)
    return (
        plain[0],
        e.select(whole, moved, plain[1]),
        e.select(whole, added, plain[2]),
        e.select(whole, lost, zero),
        e.select(whole, less, zero),
    )
