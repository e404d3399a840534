"""Emits scans: the state of a run of elements, and the combination of the states of two adjacent runs.

A state is a tuple of values: (sum), (product), (extreme); (m, s) for logcumsumexp, where the run's sum of exponentials
is ``s * exp(m)`` and m its maximum; (a, b) for a linear recurrence, which maps the h before the run to ``a * h + b``.
Combination is associative up to rounding, so that runs may be combined in any tree."""

from __future__ import annotations

import math
from collections.abc import Callable

from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.graph import Op
from mlirfuse.lowering.emitter import Emitter, Val
from mlirfuse.lowering.math import gap_between, log_of_sum, share_of_larger
from mlirfuse.lowering.reductions import extreme, extreme_of

State = tuple[Val, ...]


def state_types(op: Op) -> list[dt.DType]:
    """The element types of a state's components."""
    return [op.result.dtype.compute] * (2 if op.name in ("logcumsumexp", "linear_recurrence") else 1)


def identity(e: Emitter, op: Op, lanes: int) -> State:
    """The state of an empty run. For sums of floats it is -0, since 0 + -0 is 0. LLVM also shuffles -0 into vectors in
    one instruction, whereas it turns shuffles with 0 into expansions, which take several times as long."""
    dtype = op.result.dtype
    zero = -0.0 if dtype.compute.is_float else 0
    values = {
        "cumsum": (zero,),
        "cumprod": (1,),
        "cummax": (extreme(dtype, False),),
        "cummin": (extreme(dtype, True),),
        "logcumsumexp": (-math.inf, 0),
        "linear_recurrence": (1, zero),
    }[op.name]
    return tuple(e.const(value, dtype.compute, lanes) for value in values)


def element(e: Emitter, op: Op, operands: list[Val], lanes: int) -> State:
    """The state of one element, in each of ``lanes`` lanes."""
    vals = tuple(e.splat(v, lanes) for v in operands)
    return (*vals, e.const(1.0, vals[0].dtype, lanes)) if op.name == "logcumsumexp" else vals


def combine(e: Emitter, op: Op, a: State, b: State) -> State:
    """The state of the run ``a`` followed by the run ``b``."""
    match op.name:
        case "cumsum":
            return (e.add(a[0], b[0]),)
        case "cumprod":
            return (e.mul(a[0], b[0]),)
        case "cummax" | "cummin":
            return (extreme_of(e, op.name.removeprefix("cum"), a[0], b[0]),)
        case "linear_recurrence":
            return e.mul(a[0], b[0]), _continued(e, a[1], b)
    gap = gap_between(e, a[0], b[0])
    smaller = share_of_larger(e, gap)
    first = e.cmp("ge", gap, 0.0)
    scaled = e.select(first, e.fma(b[1], smaller, a[1]), e.fma(a[1], smaller, b[1]))
    return e.max(a[0], b[0]), scaled


def _continued(e: Emitter, h: Val, run: State) -> Val:
    """A recurrence's value after a run. If it is 0 before, the run's factors do not matter, even if their product
    overflows."""
    if not h.dtype.is_float:
        return e.add(e.mul(h, run[0]), run[1])
    return e.select(e.cmp("eq", h, 0.0), run[1], e.fma(h, run[0], run[1]))


def result(e: Emitter, op: Op, state: State) -> Val:
    """The scan's element after a run from the row's start. The run's sum of exponentials relative to the largest is at
    least 1; it is NaN only if the maximum is."""
    return e.add(state[0], log_of_sum(e, state[1])) if op.name == "logcumsumexp" else state[-1]


def select(e: Emitter, condition: Val, a: State, b: State) -> State:
    """``a`` where ``condition``, else ``b``."""
    return tuple(e.select(condition, x, y) for x, y in zip(a, b))


def along(e: Emitter, op: Op, state: State, steps: list[int], before: Callable[[State, State, int], State]) -> State:
    """Each lane's or thread's state combined with those of all before it. ``before(state, identity, n)`` returns the
    state ``n`` lanes before, or the identity if there is none (Hillis and Steele, 1986)."""
    nothing = identity(e, op, state[0].lanes)
    for n in steps:
        state = combine(e, op, before(state, nothing, n), state)
    return state
