"""Reductions and scans in compiled loops, as rules of ``functions.py``."""

from __future__ import annotations

import math

import numpy as np

from mlirfuse.frontend.numpy.loops import arrays
from mlirfuse.frontend.numpy.loops.arrays import number
from mlirfuse.frontend.numpy.loops.functions import FUNCTIONS, METHODS, cast, known, rule, take
from mlirfuse.frontend.numpy.loops.values import (
    PY_INT,
    NotOutlinable,
    Number,
    Tuple,
)
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.dtypes import DType
from mlirfuse.lowering.elementwise import EMIT
from mlirfuse.lowering.emitter import Val


def _reduction(c, args, keywords, start, combine, out_of, finish=None):
    """A reduction over all axes or one. ``out_of`` maps the operand's dtype to the result's, ``start(dtype)`` gives the
    initial value."""
    found, axis, keepdims = take(args, keywords, "a", "axis", "keepdims")
    if isinstance(found, Tuple):
        found = c.array_of(found)
    if isinstance(found, Number) and found.other is None:
        return number(c.code.cast(found.val, out_of(found.type.dtype)))
    e, value = c.code, arrays.lazy(c.code, found)
    given = known(axis)
    rank = len(value.shape)
    axes = list(range(rank)) if given is None else [given] if isinstance(given, int) else list(given)
    if any(not isinstance(a, int) or not -rank <= a < rank for a in axes):
        raise NotOutlinable("an axis out of range")
    axes = sorted({a % rank for a in axes})
    kind = out_of(value.dtype)
    wide = {dt.f32: dt.f64, dt.c64: dt.c128}.get(kind, kind) if combine is arrays.fast_add else kind  # see fast_add
    count = e.const(1, dt.i64)
    for a in axes:
        count = e.count("muli", count, value.shape[a])
    begin = start(e, wide, count)
    result = arrays.reduced(e, value, axes, begin, lambda so, x: combine(e, so, e.cast(x, wide)), c.fresh_site)
    if finish is not None:
        result = finish(e, result, count)
    if wide is not kind:
        result = cast(e, result, kind)
    if isinstance(result, Val) and known(keepdims, False):
        created = arrays.dense(e, c.fresh_site(), result.dtype, [e.const(1, dt.i64)] * rank)
        arrays.fill(e, created, result)
        return created
    if isinstance(result, Val):
        return number(result)
    if known(keepdims, False):
        result = c.array(result)
        shape, strides = list(result.shape), list(result.strides)
        for a in axes:
            shape.insert(a, e.const(1, dt.i64))
            strides.insert(a, e.const(0, dt.i64))
        return c.view(result, shape, strides, result.inner and rank - 1 not in axes)
    return result


def _sum_type(kind: DType) -> DType:
    if kind.kind in "bi":
        return dt.i64
    return dt.u64 if kind.kind == "u" else kind


def _divided(e, result, count):
    dtype = result.dtype
    by = e.cast(count, dtype)
    if isinstance(result, Val):
        return e.div(result, by)
    return arrays.elementwise(e, dtype, lambda x: e.div(x, by), [result])


def _mean_type(kind: DType) -> DType:
    return kind if kind.is_inexact else dt.f64


def _zero(e, kind, count):
    return e.const(0, kind)


def _worst(which: str):
    def start(e, kind, count):
        e.fail_if(
            e.cmp("eq", count, 0),
            lambda *_: ValueError(f"zero-size array to reduction operation {which} which has no identity"),
        )
        if kind.kind == "c":
            raise NotOutlinable(f"the {which} of complex numbers")
        if kind.is_float:
            return e.const(-math.inf if which == "maximum" else math.inf, kind)
        if kind is dt.bool_:
            return e.const(which != "maximum", kind)
        info = np.iinfo(kind.numpy)
        return e.const(info.min if which == "maximum" else info.max, kind)

    return start


def _named(name: str, functions: tuple, start, combine, out_of, finish=None) -> None:
    def reduction(c, args, keywords):
        return _reduction(c, args, keywords, start, combine, out_of, finish)

    METHODS[name] = reduction
    for function in functions:
        FUNCTIONS[function] = reduction


_same = lambda kind: kind  # noqa: E731
_named("sum", (np.sum,), _zero, arrays.fast_add, _sum_type)
_named("mean", (np.mean,), _zero, arrays.fast_add, _mean_type, _divided)
_named("prod", (np.prod,), lambda e, kind, count: e.const(1, kind), lambda e, a, b: e.mul(a, b), _sum_type)
_named("max", (np.max, np.amax), _worst("maximum"), lambda e, a, b: EMIT["maximum"](e, a, b), _same)
_named("min", (np.min, np.amin), _worst("minimum"), lambda e, a, b: EMIT["minimum"](e, a, b), _same)
_named("any", (np.any,), _zero, lambda e, a, b: e.or_(a, b), lambda kind: dt.bool_)
_named("all", (np.all,), lambda e, k, n: e.const(True, dt.bool_), lambda e, a, b: e.and_(a, b), lambda k: dt.bool_)


def _position_of(predicate: str, name: str):
    def find(c, args, keywords):
        """Searches along an axis, or the flattened array."""
        found, axis = take(args, keywords, "a", "axis")
        e, array = c.code, c.array(found)
        rank, given = len(array.shape), known(axis)
        if given is not None and (not isinstance(given, int) or not -rank <= given < rank):
            raise NotOutlinable("an axis out of range")
        axes = list(range(rank)) if given is None else [given % rank]
        rest = [k for k in range(rank) if k not in axes]
        for k in axes:
            empty = e.cmp("eq", array.shape[k], 0)
            e.fail_if(empty, lambda *_: ValueError(f"attempt to get {name} of an empty sequence"))
        best, at, passed = e.slot(array.dtype.signless), e.slot("i64"), e.slot("i64")
        zero = e.const(0, dt.i64)

        def element(outer: list[Val], inner: list[Val]) -> Val:
            indices = dict(zip(rest, outer)) | dict(zip(axes, inner))
            return arrays.element(e, array, [indices[k] for k in range(rank)])

        def over(outer: list[Val]) -> Val:
            e.store(element(outer, [zero] * len(axes)), best)
            e.store(zero, at)
            e.store(zero, passed)
            with e.each_of([array.shape[k] for k in axes]) as inner:
                x, so_far, index = element(outer, inner), e.load(best, array.dtype), e.load(passed, dt.i64)
                better = e.cmp(predicate, x, so_far)
                if array.dtype.is_float:
                    better = e.and_(e.or_(better, e.isnan(x)), e.not_(e.isnan(so_far)))
                e.store(e.select(better, x, so_far), best)
                e.store(e.select(better, index, e.load(at, dt.i64)), at)
                e.store(e.count("addi", index, 1), passed)
            return e.load(at, dt.i64)

        if not rest:
            return number(over([]))
        created = arrays.dense(e, c.fresh_site(), dt.i64, [array.shape[k] for k in rest])
        with e.each_of(created.shape) as outer:
            e.store(over(outer), arrays.element_pointer(e, created, outer), memory=True)
        return created

    return find


for _name, _predicate in (("argmin", "lt"), ("argmax", "gt")):
    FUNCTIONS[getattr(np, _name)] = METHODS[_name] = _position_of(_predicate, _name)


def _variance(root: bool):
    def compute(c, args, keywords):
        found, axis, ddof, keepdims = take(args, keywords, "a", "axis", "ddof", "keepdims")
        if known(ddof, 0) != 0:
            raise NotOutlinable("a variance with ddof")
        if isinstance(found, (Number, Tuple)):
            raise NotOutlinable("the variance of a number")
        value = c.array(found)
        if value.dtype.kind == "c":
            raise NotOutlinable("the variance of complex numbers")
        apart = {"keepdims": c.constant(True)} if axis is not None else {}
        away = c.ufunc(np.subtract, [value, FUNCTIONS[np.mean](c, [value] if axis is None else [value, axis], apart)])
        away = c.array(away)
        kept = {} if keepdims is None else {"keepdims": keepdims}
        result = FUNCTIONS[np.mean](c, [c.ufunc(np.multiply, [away, away])] + ([] if axis is None else [axis]), kept)
        return c.ufunc(np.sqrt, [result]) if root else result

    return compute


FUNCTIONS |= {np.var: _variance(False), np.std: _variance(True)}
METHODS |= {"var": _variance(False), "std": _variance(True)}


@rule(np.arange)
def _arange(c, args, keywords):
    """np.arange of ints with a constant step."""
    if keywords or not 1 <= len(args) <= 3 or not all(isinstance(v, Number) and v.type == PY_INT for v in args):
        raise NotOutlinable("np.arange other than of ints")
    e, one = c.code, c.constant(1)
    start, stop, step = (c.constant(0), args[0], one) if len(args) == 1 else (*args, one)[:3]
    if not step.known:
        raise NotOutlinable("np.arange with a step that is not constant")
    size, by = abs(step.known), e.const(step.known, dt.i64)
    far, near = (stop, start) if step.known > 0 else (start, stop)
    count = e.count("addi", e.count("subi", far.val, near.val), size - 1)
    count = e.div(e.larger(count, e.const(0, dt.i64)), e.const(size, dt.i64))
    created = arrays.dense(e, c.fresh_site(), dt.i64, [count])
    with e.each(count) as index:
        value = e.count("addi", start.val, e.count("muli", index, by))
        e.store(value, arrays.element_pointer(e, created, [index]), memory=True)
    return created


@rule(np.cumsum, method="cumsum")
def _cumsum(c, args, keywords):
    found, axis = take(args, keywords, "a", "axis")
    e, value = c.code, arrays.lazy(c.code, found)
    rank = len(value.shape)
    given = known(axis, 0 if rank == 1 else None)
    if not isinstance(given, int) or not -rank <= given < rank:
        raise NotOutlinable("np.cumsum of a flattened array")
    kind = _sum_type(value.dtype)
    created = arrays.dense(e, c.fresh_site(), kind, value.shape)
    total, rest = e.slot(kind.signless), [k for k in range(rank) if k != given % rank]

    def nest(uniform: bool) -> None:
        with e.each_of([value.shape[k] for k in rest]) as outer:
            e.store(e.const(0, kind), total)
            with e.each(value.shape[given % rank]) as index:
                indices = [*outer[: given % rank], index, *outer[given % rank :]]
                e.store(e.add(e.load(total, kind), e.cast(value.at(indices, uniform), kind)), total)
                e.store(e.load(total, kind), arrays.element_pointer(e, created, indices), memory=True)

    arrays.run(e, value.pairs, nest)
    return created


@rule(np.linalg.norm)
def _norm(c, args, keywords):
    found, order, axis, keepdims = take(args, keywords, "x", "ord", "axis", "keepdims")
    array, along = c.array(found), {} if axis is None else {"axis": axis}
    if keepdims is not None:
        along["keepdims"] = keepdims
    vector = len(array.shape) == 1 or isinstance(known(axis), int)
    way = known(order)
    if way not in (None, 1, 2, math.inf, -math.inf) or (way is not None and not vector):
        raise NotOutlinable("a norm of this order")
    if array.dtype.kind == "b":
        raise NotOutlinable("the norm of bools")
    if way in (1, math.inf, -math.inf):
        size = c.ufunc(np.absolute, [array])
        return FUNCTIONS[{1: np.sum, math.inf: np.max}.get(way, np.min)](c, [size], along)
    if array.dtype.kind == "c":
        parts = [c.part(array, name) for name in ("real", "imag")]
        squares = c.ufunc(np.add, [c.ufunc(np.multiply, [v, v]) for v in parts])
    else:
        kind = array.dtype if array.dtype.is_float else dt.f64
        real = array if kind is array.dtype else cast(c.code, array, kind)
        squares = c.ufunc(np.multiply, [real, real])
    return c.ufunc(np.sqrt, [FUNCTIONS[np.sum](c, [squares], along)])
