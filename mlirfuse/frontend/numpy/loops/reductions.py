"""Reductions and scans in compiled loops, as rules of ``functions.py``."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from mlirfuse.frontend.numpy.loops import arrays
from mlirfuse.frontend.numpy.loops.arrays import number
from mlirfuse.frontend.numpy.loops.functions import FUNCTIONS, METHODS, array, axes_of, axis_of, known, rule
from mlirfuse.frontend.numpy.loops.values import PY_INT, Lazy, Number, Tuple, require
from mlirfuse.frontend.numpy.promotion import sum_type
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.dtypes import DType
from mlirfuse.lowering.elementwise import EMIT
from mlirfuse.lowering.emitter import Val


def _reduction(name: str, start: Callable, combine: Callable, out_of: Callable, mean: bool = False):
    """Registers a reduction over all axes or some. ``out_of`` maps the operand's dtype to the result's,
    ``start(e, dtype, count)`` gives the initial value; ``mean``: the result is divided by the number of elements."""

    def reduction(c, a, axis=None, *, keepdims=None):
        if isinstance(a, Tuple):
            a = array(c, a)
        if isinstance(a, Number) and a.other is None:
            return number(c.code.cast(a.val, out_of(a.dtype)))
        e, value = c.code, arrays.lazy(c.code, a)
        rank, axes, kept = len(value.shape), axes_of(axis, len(value.shape)), known(keepdims, False)
        kind = out_of(value.dtype)
        wide = {dt.f32: dt.f64, dt.c64: dt.c128}.get(kind, kind) if combine is arrays.fast_add else kind
        count = e.product(value.shape[axis] for axis in axes)
        begin = start(e, wide, count)
        fold = lambda so, x: [combine(e, so, e.cast(x, wide))]  # noqa: E731
        result = arrays.reduced(e, value, axes, [begin], fold, c.fresh_site)
        if mean:
            by = e.cast(count, wide)
            result = c.mapped(wide, lambda x: e.div(x, by), [result])
        if wide is not kind:
            result = c.cast(result, kind)
        if not kept:
            return result
        if isinstance(result, Number):
            return arrays.filled(e, c.fresh_site(), kind, [e.one] * rank, result.val)
        return arrays.expanded(e, c.array(result), axes)

    METHODS[name] = FUNCTIONS[getattr(np, name)] = reduction


def _constant(value: int):
    return lambda e, kind, count: e.const(value, kind)


def _worst(e, kind: DType, largest: bool) -> Val:
    """The largest value of a type, or the smallest."""
    require(kind.kind != "c", "an order of complex numbers")
    if kind.is_float:
        return e.const(math.inf if largest else -math.inf, kind)
    if kind is dt.bool_:
        return e.const(largest, kind)
    info = np.iinfo(kind.numpy)
    return e.const(info.max if largest else info.min, kind)


def _extreme(name: str):
    def start(e, kind, count):
        error = f"zero-size array to reduction operation {name} which has no identity"
        e.fail_if(e.cmp("eq", count, 0), ValueError(error))
        return _worst(e, kind, name == "minimum")

    return start


_same = lambda kind: kind  # noqa: E731
_bool = lambda kind: dt.bool_  # noqa: E731
_reduction("sum", _constant(0), arrays.fast_add, sum_type)
_reduction("mean", _constant(0), arrays.fast_add, lambda kind: kind if kind.is_inexact else dt.f64, mean=True)
_reduction("prod", _constant(1), lambda e, a, b: e.mul(a, b), sum_type)
_reduction("max", _extreme("maximum"), EMIT["maximum"], _same)
_reduction("min", _extreme("minimum"), EMIT["minimum"], _same)
_reduction("any", _constant(0), lambda e, a, b: e.or_(a, b), _bool)
_reduction("all", _constant(1), lambda e, a, b: e.and_(a, b), _bool)
FUNCTIONS |= {np.amax: FUNCTIONS[np.max], np.amin: FUNCTIONS[np.min]}


def _index_of(predicate: str, name: str):
    def find(c, a, axis=None):
        """Searches along an axis, or the flattened array."""
        e, value = c.code, arrays.lazy(c.code, c.array(a))  # in memory: its elements are computed in vectors
        rank, kind = len(value.shape), value.dtype
        axes = list(range(rank)) if known(axis) is None else [axis_of(axis, rank)]
        for k in axes:
            empty = e.cmp("eq", value.shape[k], 0)
            e.fail_if(empty, ValueError(f"attempt to get {name} of an empty sequence"))

        def fold(at: Val, best: Val, index: Val, x: Val) -> list[Val]:
            better = e.cmp(predicate, x, best)
            if kind.is_float:
                better = e.and_(e.or_(better, e.isnan(x)), e.not_(e.isnan(best)))
            return [e.select(better, index, at), e.select(better, x, best), e.count("addi", index, 1)]

        start = [e.zero, _worst(e, kind, largest=predicate == "lt"), e.zero]
        return arrays.reduced(e, value, axes, start, fold, c.fresh_site)

    return find


for _name, _predicate in (("argmin", "lt"), ("argmax", "gt")):
    FUNCTIONS[getattr(np, _name)] = METHODS[_name] = _index_of(_predicate, _name)


@rule(np.var, method="var")
def _variance(c, a, axis=None, *, ddof=None, keepdims=None):
    require(known(ddof, 0) == 0, "a variance with ddof")
    require(not isinstance(a, (Number, Tuple)), "the variance of a number")
    value, mean = c.array(a), FUNCTIONS[np.mean]
    require(value.dtype.kind != "c", "the variance of complex numbers")
    middle = mean(c, value, axis, keepdims=None if axis is None else c.constant(True))
    away = c.array(c.ufunc(np.subtract, [value, middle]))
    return mean(c, c.ufunc(np.multiply, [away, away]), axis, keepdims=keepdims)


@rule(np.std, method="std")
def _deviation(c, a, axis=None, *, ddof=None, keepdims=None):
    return c.ufunc(np.sqrt, [_variance(c, a, axis, ddof=ddof, keepdims=keepdims)])


@rule(np.arange)
def _arange(c, *bounds):
    """np.arange of ints with a constant step."""
    ints = 1 <= len(bounds) <= 3 and all(isinstance(v, Number) and v.type == PY_INT for v in bounds)
    require(ints, "np.arange other than of ints")
    e, one = c.code, c.constant(1)
    start, stop, step = (c.constant(0), bounds[0], one) if len(bounds) == 1 else (*bounds, one)[:3]
    require(step.known, "np.arange with a step that is not constant")
    at = lambda indices, uniform: e.count("addi", start.val, e.count("muli", indices[0], step.known))  # noqa: E731
    return Lazy(dt.i64, [e.range_length(start.val, stop.val, step.known)], at, [])


@rule(np.cumsum, method="cumsum")
def _cumsum(c, a, axis=None):
    e, value = c.code, arrays.lazy(c.code, a)
    rank = len(value.shape)
    at = axis_of(axis, rank, 0 if rank == 1 else None)
    kind = sum_type(value.dtype)
    created = arrays.dense(e, c.fresh_site(), kind, value.shape)
    total = e.slot(kind.signless)

    def nest(uniform: bool) -> None:
        with e.each_of([*value.shape[:at], *value.shape[at + 1 :]]) as outer:
            e.store(e.const(0, kind), total)
            with e.each(value.shape[at]) as index:
                indices = [*outer[:at], index, *outer[at:]]
                e.store(e.add(e.load(total, kind), e.cast(value.at(indices, uniform), kind)), total)
                e.store(e.load(total, kind), arrays.element_pointer(e, created, indices), memory=True)

    arrays.run(e, value.pairs, nest)
    return created


@rule(np.linalg.norm)
def _norm(c, x, ord=None, axis=None, keepdims=None):
    array, way = c.array(x), known(ord)
    vector = len(array.shape) == 1 or isinstance(known(axis), int)
    require(way is None or (way in (1, 2, math.inf, -math.inf) and vector), "a norm of this order")
    require(array.dtype.kind != "b", "the norm of bools")
    if way in (1, math.inf, -math.inf):
        reduce = FUNCTIONS[{1: np.sum, math.inf: np.max}.get(way, np.min)]
        inexact = array if array.dtype.is_inexact else c.cast(array, dt.f64)
        return reduce(c, c.ufunc(np.absolute, [inexact]), axis, keepdims=keepdims)
    if array.dtype.kind == "c":
        parts = [c.part(array, name) for name in ("real", "imag")]
        squares = c.ufunc(np.add, [c.ufunc(np.multiply, [v, v]) for v in parts])
    else:
        real = array if array.dtype.is_float else c.cast(array, dt.f64)
        squares = c.ufunc(np.multiply, [real, real])
    return c.ufunc(np.sqrt, [FUNCTIONS[np.sum](c, squares, axis, keepdims=keepdims)])
