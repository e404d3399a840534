"""Emits reductions: identity, combination of accumulators, and conversion of elements and results.

An accumulator is a tuple of Vals: one for most reductions, (value, index) for argmax and argmin, (count, mean, squared
deviations) for m2. 16-bit floats accumulate in float32, as in all arithmetic on them."""

from __future__ import annotations

import math

import numpy as np

from mlirfuse.analysis.joint import MaxSumExp, Moments
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.graph import Op
from mlirfuse.lowering.emitter import Emitter, Val
from mlirfuse.lowering.math import corrected_reciprocal, exp, sum_of_exp


def accumulator_types(op: Op) -> list[dt.DType]:
    """The element types of the accumulator's components."""
    source = op.operands[0].dtype.compute
    if op.row.accumulator == "truth":
        return [dt.bool_]
    if op.row.accumulator == "moments":
        return [source] * 3
    if isinstance(op, MaxSumExp):
        return [source] * 2
    return [source, dt.i64] if op.row.accumulator == "position" else [source]


def extreme(dtype: dt.DType, largest: bool):
    """The largest or the smallest value of a type."""
    if dtype.is_float:
        return math.inf if largest else -math.inf
    if dtype is dt.bool_:
        return largest
    low, high = (-(2 ** (dtype.bits - 1)), 2 ** (dtype.bits - 1) - 1) if dtype.kind == "i" else (0, 2**dtype.bits - 1)
    return high if largest else low


def identity(e: Emitter, op: Op, lanes: int) -> tuple[Val, ...]:
    """The identity accumulator."""
    value = {
        "sum": 0, "m2": 0, "max_sum_exp": -math.inf, "prod": 1, "any": False, "all": True,
        "max": extreme(op.operands[0].dtype, False), "argmax": extreme(op.operands[0].dtype, False),
        "min": extreme(op.operands[0].dtype, True), "argmin": extreme(op.operands[0].dtype, True),
    }[op.name]  # fmt: skip
    types = accumulator_types(op)
    parts = [e.const(value, types[0], lanes)]
    if op.row.accumulator == "moments":
        parts *= 3
    elif isinstance(op, MaxSumExp):
        parts.append(e.const(0.0, types[1], lanes))
    elif len(types) == 2:  # if no element is better than the identity, all are equal to it, and the first is the result
        parts.append(e.const(0, dt.i64, lanes))
    return tuple(parts)


def grouped(reductions: list[Op], flat: list[Val]) -> list[tuple[Val, ...]]:
    """A flat list of accumulator components, grouped by reduction."""
    out, at = [], 0
    for op in reductions:
        width = len(accumulator_types(op))
        out.append(tuple(flat[at : at + width]))
        at += width
    return out


def element(e: Emitter, op: Op, value: Val, position: Val | None) -> tuple[Val, ...]:
    """The accumulator of one element; ``position`` (i64) is its index along the reduced axes, for argmax and argmin."""
    if op.row.accumulator == "truth" and value.dtype is not dt.bool_:
        value = e.cmp("ne", value, 0)
    if op.row.accumulator == "position":
        assert position is not None
        return value, e.splat(position, value.lanes)
    if op.row.accumulator == "moments":
        apart = e.sub(value, value)  # 0; NaN for an infinity
        return e.const(1.0, value.dtype, value.lanes), value, apart
    if isinstance(op, MaxSumExp):
        return value, e.const(1.0, value.dtype, value.lanes)
    return (value,)


def combine(e: Emitter, op: Op, a: tuple[Val, ...], b: tuple[Val, ...], in_order: bool = False) -> tuple[Val, ...]:
    """The accumulators ``a`` and ``b`` combined. ``in_order``: in each lane, ``a``'s elements precede ``b``'s."""
    name = op.name
    if name == "sum":
        return (e.add(a[0], b[0]) if a[0].dtype is not dt.bool_ else e.or_(a[0], b[0]),)
    if name == "prod":
        return (e.mul(a[0], b[0]) if a[0].dtype is not dt.bool_ else e.and_(a[0], b[0]),)
    if name in ("max", "min"):
        return (extreme_of(e, name, a[0], b[0]),)
    if name == "any":
        return (e.or_(a[0], b[0]),)
    if name == "all":
        return (e.and_(a[0], b[0]),)
    if name == "m2":
        return _combine_m2(e, op, a, b)
    if name == "max_sum_exp":
        top = e.max(a[0], b[0])
        base = finite_base(e, top)
        return top, e.fma(a[1], exp(e, e.sub(a[0], base)), e.mul(b[1], exp(e, e.sub(b[0], base))))
    # The better value; of equal values, and of NaNs, the lower index.
    beats, no_worse = ("gt", "ge") if name == "argmax" else ("lt", "le")
    if in_order:
        take = e.not_(e.cmp(no_worse, a[0], b[0]))
        take = e.and_(take, e.cmp("ord", a[0], a[0])) if a[0].dtype.is_float else take
        return e.select(take, b[0], a[0]), e.select(take, b[1], a[1])
    better = e.cmp(beats, b[0], a[0])
    tied = e.cmp("eq", a[0], b[0])
    if a[0].dtype.is_float:
        nan_a, nan_b = e.isnan(a[0]), e.isnan(b[0])
        better = e.or_(better, e.and_(nan_b, e.not_(nan_a)))
        better = e.and_(better, e.not_(nan_a))
        tied = e.or_(tied, e.and_(nan_a, nan_b))
    take = e.or_(better, e.and_(tied, e.cmp("lt", b[1], a[1])))
    return e.select(take, b[0], a[0]), e.select(take, b[1], a[1])


def _combine_m2(e: Emitter, op: Op, a: tuple[Val, ...], b: tuple[Val, ...]) -> tuple[Val, ...]:
    """Chan, Golub and LeVeque's update of counts, means and squared deviations. The mean is a weighted average of both,
    so that for infinities it is what their sum is; for an exact zero, that of equal means is theirs."""
    known = e.known(a[0]), e.known(b[0])
    apart = e.sub(b[1], a[1])
    if None not in known and sum(known):  # the same counts in every thread
        weight, dtype, lanes = known[1] / sum(known), a[0].dtype, a[0].lanes
        count, share, rest, scale = (
            e.const(float(n), dtype, lanes) for n in (sum(known), weight, 1 - weight, known[0] * weight)
        )
    else:
        count = e.add(a[0], b[0])
        share = share_of(e, op, b[0], count)
        rest, scale = e.sub(1.0, share), e.mul(a[0], share)
    mean = e.fma(b[1], share, e.mul(a[1], rest))
    if exact_zero(op):
        mean = e.select(e.cmp("eq", apart, 0.0), a[1], mean)
    return (
        count,
        mean,
        e.fma(apart, e.mul(apart, scale), e.add(a[2], b[2])),
    )  # 0 if one is empty, for any mean of the other


def exact_zero(op: Op | Moments) -> bool:
    """Whether squared deviations have to be exactly 0 for equal elements."""
    return bool(op.attrs["exact_zero"])


def share_of(e: Emitter, op: Op | Moments, part: Val, count: Val) -> Val:
    """``part / count``, 0 if both are 0. Accurate, since squared deviations are taken from a mean computed with it: an
    ulp of error would add its square. Correctly rounded for an exact zero, so that the whole is a share of 1."""
    count = e.max(count, 1.0)
    return e.div(part, count) if exact_zero(op) else e.mul(part, corrected_reciprocal(e, count))


def finite_base(e: Emitter, top: Val) -> Val:
    """The base of exponents: the maximum, or a finite value if all elements so far are -inf."""
    return e.select(e.cmp("eq", top, -math.inf), 0.0, top)


def extreme_of(e: Emitter, name: str, a: Val, b: Val) -> Val:
    """The "max" or "min" of two values."""
    if a.dtype is dt.bool_:
        return e.or_(a, b) if name == "max" else e.and_(a, b)
    return e.max(a, b) if name == "max" else e.min(a, b)


def _nan_apart(e: Emitter, op: Op) -> bool:
    """Whether NaNs are detected separately from the comparisons for a maximum or minimum, because x86's instructions
    lose some."""
    return e.target == "cpu" and op.name in ("max", "min") and op.operands[0].dtype.is_float


def _one_of(e: Emitter, name: str, a: Val, b: Val) -> Val:
    """The larger or smaller of two floats; ``b`` if either is NaN, like x86's instruction."""
    return e.select(e.cmp("gt" if name == "max" else "lt", a, b), a, b)


def _extreme_of_floats(e: Emitter, name: str, vals: list[Val], state: Val | None = None) -> Val:
    """The "max" or "min" of several vectors and the previous ``state``. A NaN in ``state`` persists, since it is the
    second operand."""
    if state is None and len(vals) == 1:
        return vals[0]
    top = in_pairs(lambda a, b: _one_of(e, name, a, b), vals)
    return e.select(_any_nan(e, vals), math.nan, top if state is None else _one_of(e, name, top, state))


def _any_nan(e: Emitter, vals: list[Val]) -> Val:
    """The lanes where one of several vectors is NaN. One comparison checks two vectors."""
    return in_pairs(e.or_, [e.cmp("uno", vals[i], vals[min(i + 1, len(vals) - 1)]) for i in range(0, len(vals), 2)])


def total(e: Emitter, op: Op, rows, in_order: bool = False) -> tuple[Val, ...]:
    """The accumulator of several vectors: ``rows`` of (elements, index, mask or None), combined pairwise. ``in_order``:
    as for :func:`combine`."""
    if op.row.accumulator == "moments":
        return _total_m2(e, op, rows)
    if isinstance(op, MaxSumExp):
        return accumulate(e, op, None, rows)
    if _nan_apart(e, op):
        return (_extreme_of_floats(e, op.name, [value for (value,) in _accumulators(e, op, rows)]),)
    return in_pairs(lambda a, b: combine(e, op, a, b, in_order), _accumulators(e, op, rows))


def _accumulators(e: Emitter, op: Op, rows) -> list[tuple[Val, ...]]:
    """The accumulator of each vector: ``rows`` as for :func:`total`."""
    parts = []
    for value, position, inside in rows:
        new = element(e, op, value, position)
        if inside is not None:
            new = tuple(e.select(inside, a, b) for a, b in zip(new, identity(e, op, value.lanes)))
        parts.append(new)
    return parts


def accumulate(e: Emitter, op: Op, state: tuple[Val, ...] | None, rows, in_order: bool = False) -> tuple[Val, ...]:
    """The accumulator of ``state`` and several vectors: ``rows``, ``in_order`` as for :func:`total`. For a
    :class:`MaxSumExp` it has one lane, shared by the vectors' lanes, unless ``state`` has more."""
    if not isinstance(op, MaxSumExp):
        assert state is not None
        if _nan_apart(e, op):
            return (_extreme_of_floats(e, op.name, [value for (value,) in _accumulators(e, op, rows)], state[0]),)
        if state[0].lanes == 1:
            return combine(e, op, state, of_thread(e, op, rows))
        return combine(e, op, state, total(e, op, rows, in_order), in_order)
    values = [value if inside is None else e.select(inside, value, -math.inf) for value, _, inside in rows]
    if state is None or state[0].lanes < values[0].lanes:
        values = [e.extract(value, lane) for value in values for lane in range(value.lanes)]
    top = in_pairs(e.max, values if state is None else [*values, state[0]])
    base = finite_base(e, top)
    new = sum_of_exp(e, values, base)
    return top, new if state is None else e.fma(state[1], exp(e, e.sub(state[0], base)), new)


def accumulate_start(e: Emitter, op: Op, state: tuple[Val, ...], rows, start: Val) -> tuple[Val, Val]:
    """Like :func:`accumulate` for argmax or argmin with elements in order, except that the index is the ``start`` of
    the vectors that contain the value: one comparison for all of them. :func:`first_offset` finds the value there."""
    name, vals = op.name.removeprefix("arg"), [value for value, _, _ in rows]
    beats, (best, position) = "gt" if name == "max" else "lt", state
    if not best.dtype.is_float:
        top = in_pairs(lambda a, b: extreme_of(e, name, a, b), vals)
        return extreme_of(e, name, top, best), e.select(e.cmp(beats, top, best), start, position)
    top, nan = in_pairs(lambda a, b: _one_of(e, name, a, b), vals), _any_nan(e, vals)
    better = e.or_(e.cmp(beats, top, best), e.and_(nan, e.cmp("ord", best, best)))
    return e.select(nan, math.nan, _one_of(e, name, top, best)), e.select(better, start, position)


def first_offset(e: Emitter, vals: list[Val], best: Val) -> Val:
    """The first index of ``best`` in adjacent vectors."""
    here = in_pairs(lambda a, b: e.shuffle(a, b, range(a.lanes + b.lanes)), [_is_best(e, val, best) for val in vals])
    bits, count = e.fresh(), e.fresh()
    e.line(f"{bits} = llvm.bitcast {here} : {here.type} to i{here.lanes}")
    e.line(f'{count} = "llvm.intr.cttz"({bits}) <{{is_zero_poison = false}}> : (i{here.lanes}) -> i{here.lanes}')
    if here.lanes == 64:
        return Val(count, dt.i64)
    return e.op(f"arith.{'extui' if here.lanes < 64 else 'trunci'} {count} : i{here.lanes} to i64", dt.i64)


def _is_best(e: Emitter, val: Val, best: Val) -> Val:
    """The lanes equal to ``best``, which is NaN if any value is."""
    equal = e.cmp("eq", val, best)
    return e.or_(equal, e.isnan(val)) if val.dtype.is_float else equal


def state_lanes(op: Op, lanes: int) -> int:
    """The lanes of the accumulator of vectors along a row."""
    return 1 if isinstance(op, MaxSumExp) else lanes


def in_pairs(combine, vals: list):
    """Vals, or accumulators, combined pairwise."""
    while len(vals) > 1:
        vals = [combine(vals[i], vals[i + 1]) if i + 1 < len(vals) else vals[i] for i in range(0, len(vals), 2)]
    return vals[0]


def of_thread(e: Emitter, op: Op, rows) -> tuple[Val, ...]:
    """Like :func:`total`, combined across lanes, too. For an m2, deviations are from the mean of all elements:
    combining those of each lane takes four more instructions per lane."""
    if op.row.accumulator != "moments":
        return across_lanes(e, op, total(e, op, rows))
    count, sums = counted(e, rows)
    known = e.known(count)
    count = sum_of_lanes(e, count) if known is None else e.const(known * count.lanes, count.dtype)
    return means_and_deviations(e, op, count, sums, lambda mean: deviations(e, op, rows, mean))


def means_and_deviations(e: Emitter, op: Op, count: Val, sums: Val, deviations_from) -> tuple[Val, ...]:
    """The m2 accumulator for ``count`` elements with these sums per lane; ``deviations_from(mean)``, also per lane,
    reads the elements again, for :func:`deviations`."""
    mean = sum_of_lanes(e, mean_of(e, op, count, sums))  # weighted before summation, because a total may overflow
    return _from_deviations(e, count, mean, *(sum_of_lanes(e, val) for val in deviations_from(mean)))


def _total_m2(e: Emitter, op: Op, rows) -> tuple[Val, ...]:
    """The deviations of a thread's elements from their own mean: two passes over registers."""
    count, sums = counted(e, rows)
    mean = mean_of(e, op, count, sums)
    return _from_deviations(e, count, mean, *deviations(e, op, rows, mean))


def _from_deviations(e: Emitter, count: Val, mean: Val, squares: Val, rest: Val | None = None) -> tuple[Val, ...]:
    """The m2 accumulator from the sum of squared deviations from a rounded mean, and, for an exact zero, the sum of
    these deviations, with which the mean is corrected (Chan, Golub and LeVeque's corrected two-pass algorithm). Where
    all elements are equal, deviations are a few units in the last place, whose sums and their product are exact."""
    if rest is None:
        return count, mean, squares
    off = e.div(rest, e.max(count, 1.0))
    better = e.add(mean, off)
    finite = e.cmp("lt", e.abs(better), math.inf)  # else the mean is an infinity
    excess = e.min(e.mul(rest, off), float(np.finfo(mean.dtype.numpy).max))  # infinite squares stay so
    return count, e.select(finite, better, mean), e.max(e.sub(squares, excess), 0.0)


def counted(e: Emitter, rows) -> tuple[Val, Val]:
    """The number and the sum of several vectors' elements, per lane: ``rows`` as for :func:`total`."""
    dtype, lanes = rows[0][0].dtype, rows[0][0].lanes
    one, zero = e.const(1.0, dtype, lanes), e.const(0.0, dtype, lanes)
    certain = all(inside is None for _, _, inside in rows)
    count = (
        e.const(float(len(rows)), dtype, lanes)
        if certain
        else _sum(e, [one if inside is None else e.select(inside, one, zero) for _, _, inside in rows])
    )
    return count, _sum(e, [value if inside is None else e.select(inside, value, zero) for value, _, inside in rows])


def gather(e: Emitter, state: tuple[Val, ...], rows) -> tuple[Val, ...]:
    """``state``, an m2 accumulator with the sum in place of the mean, plus several vectors' counts and sums."""
    count, total = counted(e, rows)
    return e.add(state[0], count), e.add(state[1], total), state[2]


def mean_of(e: Emitter, op: Op, count: Val, total: Val) -> Val:
    """The mean of ``count`` elements with this sum; 0 if there are none."""
    known = e.known(count)
    return (
        share_of(e, op, total, count) if known is None else e.mul(total, e.const(1.0 / known, count.dtype, count.lanes))
    )


def deviations(e: Emitter, op: Op, rows, mean: Val) -> list[Val]:
    """The sum of several vectors' squared deviations from ``mean``, per lane; for an exact zero also the sum of their
    deviations."""
    apart = [
        e.sub(value, mean) if inside is None else e.select(inside, e.sub(value, mean), 0.0) for value, _, inside in rows
    ]
    squares = _sum(e, [_squares(e, apart[i : i + 4]) for i in range(0, len(apart), 4)])
    return [squares, _sum(e, apart)] if exact_zero(op) else [squares]


def _squares(e: Emitter, vals: list[Val]) -> Val:
    """The sum of a few squares."""
    total = e.mul(vals[0], vals[0])
    for val in vals[1:]:
        total = e.fma(val, val, total)
    return total


def _sum(e: Emitter, vals: list[Val]) -> Val:
    return in_pairs(e.add, vals)


def sum_of_lanes(e: Emitter, val: Val) -> Val:
    """The sum of a vector's lanes."""
    return _sum(e, [e.extract(val, lane) for lane in range(val.lanes)])


def across(e: Emitter, op: Op, a: tuple[Val, ...], pairwise, fold) -> tuple[Val, ...]:
    """Combine the many instances of ``a``, in lanes or threads. ``pairwise(combine, a)`` combines accumulators two at a
    time, ``fold(function, val)`` single values.

    For a :class:`MaxSumExp` this takes one exponential per instance, instead of two; for an m2 with unknown counts one
    reciprocal."""
    if isinstance(op, MaxSumExp):
        top = fold(e.max, a[0])
        return top, fold(e.add, e.mul(a[1], exp(e, e.sub(a[0], finite_base(e, top)))))
    if op.row.accumulator == "moments" and e.known(a[0]) is None:
        count = fold(e.add, a[0])
        # Weighted before summation, because a total may overflow.
        mean = fold(e.add, e.mul(a[1], share_of(e, op, a[0], count)))
        apart = e.sub(a[1], mean)
        weighted = e.mul(apart, a[0])
        squares = fold(e.add, e.fma(apart, weighted, a[2]))  # 0 for an empty instance, for any mean
        return _from_deviations(e, count, mean, squares, *([fold(e.add, weighted)] if exact_zero(op) else []))
    return pairwise(lambda x, y: combine(e, op, x, y), a)


def across_lanes(e: Emitter, op: Op, a: tuple[Val, ...]) -> tuple[Val, ...]:
    """Combine a vector accumulator's lanes."""
    if a[0].lanes == 1:
        return a
    if e.target == "cpu" and op.row.accumulator == "position":
        return _first_of_lanes(e, op, *a)
    if _nan_apart(e, op):
        return (_extreme_of_lanes(e, op.name, a[0]),)
    return across(
        e,
        op,
        a,
        lambda combine, a: _by_halves(e, combine, a),
        lambda function, val: in_pairs(function, [e.extract(val, k) for k in range(val.lanes)]),
    )


def _extreme_of_lanes(e: Emitter, name: str, val: Val) -> Val:
    """The "max" or "min" of a vector's lanes."""
    if not val.dtype.is_float:
        return _by_halves(e, lambda a, b: (extreme_of(e, name, a[0], b[0]),), (val,))[0]
    (top,) = _by_halves(e, lambda a, b: (_one_of(e, name, a[0], b[0]),), (val,))
    nan = e.isnan(val)
    return e.select(e.op(f"vector.reduction <or>, {nan} : {nan.type} into i1", dt.bool_), math.nan, top)


def _first_of_lanes(e: Emitter, op: Op, value: Val, position: Val) -> tuple[Val, ...]:
    """The best value of a vector's lanes, and its lowest index."""
    best = _extreme_of_lanes(e, op.name.removeprefix("arg"), value)
    candidates = e.select(_is_best(e, value, best), position, extreme(position.dtype, True))
    least = f"vector.reduction <minsi>, {candidates} : {candidates.type} into {position.dtype.signless}"
    return best, e.op(least, position.dtype)


def _by_halves(e: Emitter, combine, a: tuple[Val, ...]) -> tuple[Val, ...]:
    """A vector accumulator's lanes combined in the order of pairwise summation."""
    while a[0].lanes > 1:
        half = a[0].lanes // 2
        a = combine(tuple(_part(e, v, 0, half) for v in a), tuple(_part(e, v, half, half) for v in a))
    return a


def _part(e: Emitter, v: Val, start: int, count: int) -> Val:
    known = e.known(v)
    if known is not None:
        return e.const(known, v.dtype, count)
    if count == 1:
        return e.extract(v, start)
    to = f"vector<{count}x{v.dtype.signless}>"
    text = (
        f"vector.extract_strided_slice {v} {{offsets = [{start}], sizes = [{count}], strides = [1]}} : {v.type} to {to}"
    )
    return e.op(text, v.dtype, count)


def result(e: Emitter, op: Op, a: tuple[Val, ...]) -> Val:
    """The reduction's value from its accumulator."""
    return a[-1] if op.row.accumulator in ("position", "moments") else a[0]


def results(e: Emitter, op: Op | MaxSumExp | Moments, a: tuple[Val, ...]) -> tuple[Val, ...]:
    """All of the reduction's values from its accumulator."""
    if isinstance(op, MaxSumExp) and op.guarded:  # if m is not finite, the sum is exp(m)
        return a[0], e.select(e.cmp("lt", e.abs(a[0]), math.inf), a[1], exp(e, a[0]))
    if isinstance(op, MaxSumExp):  # if all elements are -inf, the sum is NaN
        return a[0], e.select(e.cmp("eq", a[0], -math.inf), math.nan, a[1])
    if isinstance(op, Moments):
        return e.mul(a[1], a[0]), a[2]
    return (result(e, op, a),)
