"""Compensated totals, for sums over very many blocks of elements.

A loop sums a block of elements in uncompensated accumulators (:mod:`mlirfuse.lowering.reductions`), whose error is that
of one block, and then adds them to a total. A total has, for each of its sums, the rounding error (Knuth's TwoSum), so
that its error does not grow with the number of blocks. Reductions that do not round, such as maxima and sums of
integers, and products, whose error is relative, use their uncompensated accumulators as totals."""

from __future__ import annotations

import math
from collections.abc import Callable

from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.graph import Op
from mlirfuse.lowering import reductions as red
from mlirfuse.lowering.emitter import Emitter, Val
from mlirfuse.lowering.math import exp
from mlirfuse.lowering.math.arithmetic import two_sum

Total = tuple[Val, ...]  # an accumulator's components, then the rounding error of each of its sums


def rounded(op: Op) -> tuple[int, ...]:
    """The indices of the accumulator components of ``op`` that are sums that round: of a sum itself, of an m2's mean
    and squared deviations, of the sum of exponentials beside a maximum."""
    if not op.operands[0].dtype.is_float:
        return ()
    return {"sum": (0,), "partial_sum": (0,), "m2": (1, 2), "max_sum_exp": (1,)}.get(op.name, ())


def types(op: Op) -> list[dt.DType]:
    """The element types of a total's components."""
    components = red.accumulator_types(op)
    return components + [components[at] for at in rounded(op)]


def round_off(phase: list[Op]) -> bool:
    """Whether the accumulators of ``phase`` have sums that round."""
    return any(rounded(op) for op in phase)


def nothing(e: Emitter, phase: list[Op], lanes: int) -> list[Val]:
    """The identity totals of ``phase``, as a flat list."""
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
    """``totals`` plus the accumulators of a block. ``in_order(op)``: whether the block's elements of an op come after
    those of the totals."""
    pairs = zip(phase, _grouped(phase, totals), red.grouped(phase, block))
    return [v for op, total, a in pairs for v in _add(e, op, total, a, in_order(op))]


def settled(e: Emitter, phase: list[Op], totals: list[Val]) -> list[Val]:
    """The accumulators with the totals' values, rounding errors added."""
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
    for component, lost in zip(at, total[len(out) :]):
        out[component] = e.select(_finite(e, lost), e.add(out[component], lost), out[component])
    return tuple(out)


def _finite(e: Emitter, val: Val) -> Val:
    return e.cmp("lt", e.abs(val), math.inf)


def _add_moments(e: Emitter, op: Op, total: Total, a: tuple[Val, ...]) -> Total:
    """Chan, Golub and LeVeque's update with a compensated mean. An uncompensated mean would stop changing once a
    block's contribution is less than an ulp, and the deviations of all later blocks would be too large."""
    count, mean, squares, mean_lost, squares_lost = total
    uncompensated = red.combine(e, op, (count, mean, squares), a)
    apart = e.sub(e.sub(a[1], mean), mean_lost)
    share = red.share_of(e, op, a[0], uncompensated[0])
    moved, lost = two_sum(e, mean, e.fma(apart, share, mean_lost))
    between = e.mul(apart, e.mul(apart, e.mul(count, share)))  # 0 if the total is empty, for any mean of the block
    added, less = two_sum(e, squares, e.add(a[2], between))
    less = e.add(squares_lost, less)
    finite = _finite(e, e.add(lost, less))  # else a mean or deviation is not finite: use the uncompensated update
    zero = e.const(0.0, mean.dtype, mean.lanes)
    return (
        uncompensated[0],
        e.select(finite, moved, uncompensated[1]),
        e.select(finite, added, uncompensated[2]),
        e.select(finite, lost, zero),
        e.select(finite, less, zero),
    )
