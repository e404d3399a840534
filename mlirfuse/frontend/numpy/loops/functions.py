"""The functions and methods that a loop's code knows, beside ufuncs: rules ``rule(c, args, keywords)`` over the values
of :mod:`mlirfuse.frontend.numpy.loops.values`."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from mlirfuse.frontend.numpy.loops import arrays, holding
from mlirfuse.frontend.numpy.loops.alternatives import merged
from mlirfuse.frontend.numpy.loops.arrays import number
from mlirfuse.frontend.numpy.loops.values import (
    PY_COMPLEX,
    PY_FLOAT,
    PY_INT,
    Array,
    Lazy,
    NotLiftable,
    Number,
    Static,
    Tuple,
    element_dtype,
    joined,
)
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.dtypes import DType
from mlirfuse.lowering.elementwise import EMIT
from mlirfuse.lowering.emitter import Val

FUNCTIONS: dict[Any, Callable] = {}
METHODS: dict[str, Callable] = {}


def rule(*functions: Any, method: str | None = None):
    """Registers a rule under functions, and under the name of a method."""

    def register(made: Callable) -> Callable:
        for function in functions:
            FUNCTIONS[function] = made
        if method:
            METHODS[method] = made
        return made

    return register


def take(args: list, keywords: dict, *names: str) -> list:
    """The arguments by position and name; None where one is not given. Raises NotLiftable for others."""
    unknown = set(keywords) - set(names)
    if unknown or len(args) > len(names):
        raise NotLiftable(f"the argument {', '.join(unknown) or len(args)} of a function")
    return [args[k] if k < len(args) else keywords.get(name) for k, name in enumerate(names)]


def known(found: Any, otherwise: Any = None) -> Any:
    """The value of a constant; ``otherwise`` where nothing is given."""
    if found is None:
        return otherwise
    if isinstance(found, Static):
        return found.value
    if isinstance(found, Number) and found.known is not None:
        return found.known
    if isinstance(found, Tuple):
        return tuple(known(item) for item in found.items)
    raise NotLiftable("an argument that has to be known")


# ---- Python's


@rule(len)
def _len(c, args, keywords):
    (found,) = args
    if isinstance(found, Tuple):
        return c.constant(len(found.items))
    if not isinstance(found, (Array, Lazy)) or not found.shape:
        raise NotLiftable("len")
    return c.size(found.shape[0])


def _extreme(predicate: str):
    def pick(c, args, keywords):
        items = args[0].items if len(args) == 1 and isinstance(args[0], Tuple) else args
        if keywords or len(items) < 2 or not all(isinstance(v, Number) for v in items):
            raise NotLiftable("min and max of others than some numbers")
        best = items[0]
        for other in items[1:]:
            kind = joined(best.type, other.type)
            a, b = c.code.cast(best.val, kind.dtype), c.code.cast(other.val, kind.dtype)
            best = merged(c.code, c.code.cmp(predicate, b, a), other, best)
        return best

    return pick


FUNCTIONS[min], FUNCTIONS[max] = _extreme("lt"), _extreme("gt")


@rule(abs)
def _abs(c, args, keywords):
    (found,) = args
    if isinstance(found, Number) and found.type == PY_COMPLEX:
        raise NotLiftable("abs of Python's complex numbers")
    if isinstance(found, Number) and found.type.python and found.type.dtype is not dt.bool_:
        return Number(c.code.abs(found.val), found.type, found.bits)
    return c.ufunc(np.absolute, [found])


@rule(int)
def _int(c, args, keywords):
    (found,) = args
    if not isinstance(found, Number) or found.type.dtype.kind == "c":
        raise NotLiftable("int of what is no real number")
    if not found.type.dtype.is_float:
        return Number(c.integer(found) if found.type.dtype is not dt.bool_ else c.code.cast(found.val, dt.i64), PY_INT,
                      found.bits)  # fmt: skip
    e, val = c.code, c.code.cast(found.val, dt.f64)
    e.fail_if(
        e.not_(e.cmp("lt", e.abs(val), 2.0**62)),
        lambda *_: OverflowError("a float that is NaN, infinite or beyond 2**62 is made an int in a compiled loop"),
    )
    return Number(e.cast(val, dt.i64), PY_INT, 62)


@rule(float)
def _float(c, args, keywords):
    (found,) = args
    if not isinstance(found, Number) or found.type.dtype is dt.u64 or found.type.dtype.kind == "c":
        raise NotLiftable("float of what is no real number")
    return Number(c.code.cast(found.val, dt.f64), PY_FLOAT, known=None)


@rule(bool)
def _bool(c, args, keywords):
    return Number(c.truth_of(args[0]), c.constant(True).type)


@rule(sum)
def _sum_of(c, args, keywords):
    if len(args) != 1 or not isinstance(args[0], Tuple):
        raise NotLiftable("Python's sum of an array")
    total = c.constant(0)
    for item in args[0].items:
        total = c.binary(ast.Add(), total, item)
    return total


_MATH = {"sqrt": "sqrt", "exp": "exp", "log": "log", "sin": "sin", "cos": "cos", "tan": "tan", "atan": "atan",
         "tanh": "tanh", "sinh": "sinh", "cosh": "cosh", "asin": "asin", "acos": "acos", "log2": "log2",
         "log10": "log10", "fabs": "abs", "expm1": "expm1", "log1p": "log1p", "erf": "erf", "atan2": "atan2",
         "hypot": "hypot", "copysign": "copysign"}  # fmt: skip


def _of_math(name: str, op: str):
    def compute(c, args, keywords):
        if keywords or not all(isinstance(v, Number) and v.type.dtype.kind != "c" for v in args):
            raise NotLiftable(f"math.{name}")
        e = c.code
        vals = [e.cast(v.val, dt.f64) for v in args]
        result = EMIT[op](e, *vals)
        finite = e.const(True, dt.bool_)
        for v in vals:
            finite = e.and_(finite, e.cmp("lt", e.abs(v), math.inf))
        bad = e.and_(finite, e.not_(e.cmp("lt", e.abs(result), math.inf)))
        e.fail_if(bad, lambda *_: ValueError("math domain error"))
        return Number(result, PY_FLOAT)

    return compute


for _name, _op in _MATH.items():
    FUNCTIONS[getattr(math, _name)] = _of_math(_name, _op)


@rule(math.floor)
def _floor(c, args, keywords):
    return _int(c, [number(c.code.floor(c.code.cast(args[0].val, dt.f64)))], {})


@rule(math.ceil)
def _ceil(c, args, keywords):
    return _int(c, [number(c.code.ceil(c.code.cast(args[0].val, dt.f64)))], {})


# ---- types of NumPy's


def _scalar_type(kind: DType):
    def convert(c, args, keywords):
        (found,) = args
        if not isinstance(found, Number) or (found.type.dtype.is_inexact and not kind.is_inexact):
            raise NotLiftable("a conversion")
        holding.fits(c.code, found, kind)
        return number(c.code.cast(found.val, kind))

    return convert


@rule(complex)
def _complex(c, args, keywords):
    if (
        keywords
        or not 1 <= len(args) <= 2
        or not all(isinstance(v, Number) and v.type.dtype is not dt.u64 for v in args)
    ):
        raise NotLiftable("complex of others than numbers")
    e, one = c.code, c.code.cast(args[0].val, dt.c128)
    if len(args) == 2:
        one = e.add(one, e.mul(e.const(1j, dt.c128), e.cast(args[1].val, dt.c128)))
    return Number(one, PY_COMPLEX)


for _kind in (dt.f32, dt.f64, dt.i8, dt.i16, dt.i32, dt.i64, dt.bool_, dt.c64, dt.c128):
    FUNCTIONS[_kind.numpy.type] = _scalar_type(_kind)


def element_type(found: Any, otherwise: DType) -> DType:
    """The element type that a ``dtype`` argument names."""
    given = known(found)
    return otherwise if given is None else element_dtype(given)


# ---- arrays made


def extents(c, found: Any) -> list[Val]:
    """A shape: a number or a tuple of numbers, none of them negative."""
    items = found.items if isinstance(found, Tuple) else [found]
    out = []
    for item in items:
        count = c.integer(item)
        if c.code.known(count) is None:
            c.code.fail_if(c.code.cmp("lt", count, 0), lambda *_: ValueError("negative dimensions are not allowed"))
        elif c.code.known(count) < 0:
            raise NotLiftable("a negative extent")
        out.append(count)
    return out


def _filled(value: int | None):
    def make(c, args, keywords):
        shape, dtype = take(args, keywords, "shape", "dtype")
        kind = element_type(dtype, dt.f64)
        made = arrays.dense(c.code, c.fresh_site(), kind, extents(c, shape))
        arrays.fill(c.code, made, c.code.const(value, kind))
        return made

    return make


def _filled_like(value: int | None):
    def make(c, args, keywords):
        like, dtype = take(args, keywords, "a", "dtype")
        kind = element_type(dtype, like.dtype)
        made = arrays.dense(c.code, c.fresh_site(), kind, list(like.shape))
        arrays.fill(c.code, made, c.code.const(value, kind))
        return made

    return make


# np.empty's elements are nobody's: zeros are as good, and the same in every run.
FUNCTIONS |= {np.zeros: _filled(0), np.empty: _filled(0), np.ones: _filled(1)}
FUNCTIONS |= {np.zeros_like: _filled_like(0), np.empty_like: _filled_like(0), np.ones_like: _filled_like(1)}


@rule(np.full)
def _full(c, args, keywords):
    shape, value, dtype = take(args, keywords, "shape", "fill_value", "dtype")
    if not isinstance(value, Number):
        raise NotLiftable("np.full with an array")
    kind = element_type(dtype, value.type.dtype)
    made = arrays.dense(c.code, c.fresh_site(), kind, extents(c, shape))
    arrays.fill(c.code, made, c.code.cast(value.val, kind))
    return made


@rule(np.copy, method="copy")
def _copy(c, args, keywords):
    (found,) = take(args, keywords, "a")
    if isinstance(found, Number):
        return found
    return arrays.materialized(c.code, found, c.fresh_site())


@rule(np.array, np.asarray)
def _array(c, args, keywords):
    found, dtype = take(args, keywords, "object", "dtype")
    if isinstance(found, (Array, Lazy)) and dtype is None:
        return _copy(c, [found], {})
    if not isinstance(found, Tuple) or not found.items:
        raise NotLiftable("np.array")
    e = c.code
    if all(isinstance(item, Number) for item in found.items):
        kind = element_type(dtype, dt.of(_common(found.items)))
        made = arrays.dense(e, c.fresh_site(), kind, [e.const(len(found.items), dt.i64)])
        for k, item in enumerate(found.items):
            place = arrays.element_pointer(e, made, [e.const(k, dt.i64)])
            e.store(e.cast(item.val, kind), place, memory=True)
        return made
    raise NotLiftable("np.array of arrays")


def _common(items: list[Number]) -> np.dtype:
    try:
        return np.result_type(*(item.type.dtype.numpy for item in items))
    except TypeError:
        raise NotLiftable("types that do not go together") from None


def _astype(c, args, keywords):
    found, dtype = take(args, keywords, "a", "dtype")
    kind = element_type(dtype, dt.f64)
    e = c.code
    if (found.type.dtype if isinstance(found, Number) else found.dtype).kind == "c" and kind.kind not in "cb":
        raise NotLiftable("complex numbers as real ones")
    if isinstance(found, Number):
        return number(e.cast(found.val, kind))
    return arrays.materialized(e, arrays.elementwise(e, kind, lambda x: e.cast(x, kind), [found]), c.fresh_site())


METHODS["astype"] = _astype


def _part(name: str):
    def take_part(c, args, keywords):
        (found,) = take(args, keywords, "val")
        return c.part(found, name)

    return take_part


FUNCTIONS |= {np.real: _part("real"), np.imag: _part("imag")}
METHODS |= {"conj": _part("conjugate"), "conjugate": _part("conjugate")}


# ---- views


@rule(np.flip)
def _flip(c, args, keywords):
    found, axis = take(args, keywords, "m", "axis")
    array = c.array(found)
    given = known(axis)
    rank = len(array.shape)
    axes = range(rank) if given is None else [given % rank]
    e, offset, strides = c.code, c.code.const(0, dt.i64), list(array.strides)
    for k in axes:
        offset = e.count("addi", offset, e.count("muli", e.count("subi", array.shape[k], 1), strides[k]))
        strides[k] = e.count("subi", 0, strides[k])
    # of no elements the offset points nowhere, and nothing is read
    inner = array.inner and rank - 1 not in axes
    return c.view(array, array.shape, strides, inner, e.offset(array.pointer, offset))


@rule(np.transpose, method="transpose")
def _transpose(c, args, keywords):
    (found,) = take(args, keywords, "a")
    array = c.array(found)
    return c.view(array, array.shape[::-1], array.strides[::-1], array.inner and len(array.shape) < 2)


# ---- choices


@rule(np.where)
def _where(c, args, keywords):
    condition, a, b = take(args, keywords, "condition", "x", "y")
    if a is None or b is None:
        raise NotLiftable("np.where with one argument")
    e = c.code
    kinds = [v.type.operand if isinstance(v, Number) else v.dtype.numpy for v in (a, b)]
    samples = [kind(0) if isinstance(kind, type) else kind for kind in kinds]
    out = dt.of(np.result_type(*samples))
    for v in (a, b):
        holding.fits(c.code, v, out)

    def compute(x, y, z):
        return e.select(e.cast(x, dt.bool_), e.cast(y, out), e.cast(z, out))

    if all(isinstance(v, Number) for v in (condition, a, b)):
        raise NotLiftable("np.where of numbers, which makes an array")
    return arrays.elementwise(e, out, compute, [condition, a, b])


@rule(np.clip, method="clip")
def _clip(c, args, keywords):
    found, low, high = take(args, keywords, "a", "a_min", "a_max")
    if low is None or high is None or isinstance(low, Static) or isinstance(high, Static):
        raise NotLiftable("np.clip with one bound")
    return c.ufunc(np.minimum, [c.ufunc(np.maximum, [found, low]), high])


# Whose results do not depend on the types of numbers, or that see to it.
OF_ANY_TYPE = frozenset([min, max, float, bool, *(getattr(math, name) for name in _MATH)])

FUNCTIONS[np.outer] = lambda c, args, keywords: c._ufunc_method(
    _method(np.multiply), take(args, keywords, "a", "b"), {}
)


def _method(ufunc):
    from mlirfuse.frontend.numpy.loops.values import Method

    return Method(Static(ufunc), "outer")


# ---- reductions


def _reduction(c, args, keywords, start, combine, out_of, finish=None):
    """A reduction over all axes or one. ``out_of`` gives the type of the result, ``start(dtype)`` what it begins
    with."""
    found, axis, keepdims = take(args, keywords, "a", "axis", "keepdims")
    if isinstance(found, (Number, Tuple)):
        raise NotLiftable("a reduction of a number")
    e, value = c.code, arrays.lazy(c.code, found)
    given = known(axis)
    rank = len(value.shape)
    if known(keepdims, False) and given is None:
        raise NotLiftable("keepdims")
    axes = list(range(rank)) if given is None else [given] if isinstance(given, int) else list(given)
    if any(not isinstance(a, int) or not -rank <= a < rank for a in axes):
        raise NotLiftable("an axis that is not there")
    axes = sorted({a % rank for a in axes})
    kind = out_of(value.dtype)
    wide = {dt.f32: dt.f64, dt.c64: dt.c128}.get(kind, kind) if combine is arrays.fast_add else kind  # as NumPy's pairs
    count = e.const(1, dt.i64)
    for a in axes:
        count = e.count("muli", count, value.shape[a])
    begin = start(e, wide, count)
    result = arrays.reduced(e, value, axes, begin, lambda so, x: combine(e, so, e.cast(x, wide)), c.fresh_site)
    if finish is not None:
        result = finish(e, result, count)
    if wide is not kind:
        result = _cast(e, result, kind)
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


def _cast(e, found: Any, kind: DType) -> Any:
    """A number or an array as another type."""
    if isinstance(found, Val):
        return e.cast(found, kind)
    return arrays.elementwise(e, kind, lambda x: e.cast(x, kind), [found])


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
            raise NotLiftable(f"the {which} of complex numbers")
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
        """Of the elements along an axis, or of all in their order."""
        found, axis = take(args, keywords, "a", "axis")
        e, array = c.code, c.array(found)
        rank, given = len(array.shape), known(axis)
        if given is not None and (not isinstance(given, int) or not -rank <= given < rank):
            raise NotLiftable("an axis that is not there")
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
        made = arrays.dense(e, c.fresh_site(), dt.i64, [array.shape[k] for k in rest])
        with e.each_of(made.shape) as outer:
            e.store(over(outer), arrays.element_pointer(e, made, outer), memory=True)
        return made

    return find


for _name, _predicate in (("argmin", "lt"), ("argmax", "gt")):
    FUNCTIONS[getattr(np, _name)] = METHODS[_name] = _position_of(_predicate, _name)


def _variance(root: bool):
    def compute(c, args, keywords):
        found, axis = take(args, keywords, "a", "axis")
        if isinstance(found, (Number, Tuple)):
            raise NotLiftable("the variance of a number")
        value = c.array(found)
        if value.dtype.kind == "c":
            raise NotLiftable("the variance of complex numbers")
        apart = {"keepdims": c.constant(True)} if axis is not None else {}
        away = c.ufunc(np.subtract, [value, FUNCTIONS[np.mean](c, [value] if axis is None else [value, axis], apart)])
        away = c.array(away)
        result = FUNCTIONS[np.mean](c, [c.ufunc(np.multiply, [away, away])] + ([] if axis is None else [axis]), {})
        return c.ufunc(np.sqrt, [result]) if root else result

    return compute


FUNCTIONS |= {np.var: _variance(False), np.std: _variance(True)}
METHODS |= {"var": _variance(False), "std": _variance(True)}


@rule(np.arange)
def _arange(c, args, keywords):
    """Of ints, with a step that is known."""
    if keywords or not 1 <= len(args) <= 3 or not all(isinstance(v, Number) and v.type == PY_INT for v in args):
        raise NotLiftable("np.arange of others than ints")
    e, one = c.code, c.constant(1)
    start, stop, step = (c.constant(0), args[0], one) if len(args) == 1 else (*args, one)[:3]
    if not step.known:
        raise NotLiftable("np.arange with a step that is not known")
    size, by = abs(step.known), e.const(step.known, dt.i64)
    far, near = (stop, start) if step.known > 0 else (start, stop)
    count = e.count("addi", e.count("subi", far.val, near.val), size - 1)
    count = e.div(e.larger(count, e.const(0, dt.i64)), e.const(size, dt.i64))
    made = arrays.dense(e, c.fresh_site(), dt.i64, [count])
    with e.each(count) as index:
        value = e.count("addi", start.val, e.count("muli", index, by))
        e.store(value, arrays.element_pointer(e, made, [index]), memory=True)
    return made


@rule(np.cumsum, method="cumsum")
def _cumsum(c, args, keywords):
    found, axis = take(args, keywords, "a", "axis")
    e, value = c.code, arrays.lazy(c.code, found)
    rank = len(value.shape)
    given = known(axis, 0 if rank == 1 else None)
    if not isinstance(given, int) or not -rank <= given < rank:
        raise NotLiftable("np.cumsum of a flattened array")
    kind = _sum_type(value.dtype)
    made = arrays.dense(e, c.fresh_site(), kind, value.shape)
    total, rest = e.slot(kind.signless), [k for k in range(rank) if k != given % rank]

    def nest(uniform: bool) -> None:
        with e.each_of([value.shape[k] for k in rest]) as outer:
            e.store(e.const(0, kind), total)
            with e.each(value.shape[given % rank]) as index:
                indices = [*outer[: given % rank], index, *outer[given % rank :]]
                e.store(e.add(e.load(total, kind), e.cast(value.at(indices, uniform), kind)), total)
                e.store(e.load(total, kind), arrays.element_pointer(e, made, indices), memory=True)

    arrays.run(e, value.pairs, nest)
    return made


@rule(np.linalg.norm)
def _norm(c, args, keywords):
    (found,) = take(args, keywords, "x")
    value = arrays.lazy(c.code, found)
    if not value.dtype.is_float:
        raise NotLiftable("the norm of integers")
    array = c.array(found)
    return c.ufunc(np.sqrt, [FUNCTIONS[np.sum](c, [c.ufunc(np.multiply, [array, array])], {})])


# ---- products


@rule(np.dot, np.matmul, method="dot")
def _matmul(c, args, keywords):
    left, right = take(args, keywords, "a", "b")
    if isinstance(left, Number) or isinstance(right, Number):
        raise NotLiftable("a product with a number")
    left, right = c.array(left), c.array(right)
    ranks = len(left.shape), len(right.shape)
    if ranks not in ((1, 1), (2, 1), (1, 2), (2, 2)):
        raise NotLiftable("a product of arrays of more than two axes")
    e = c.code
    kind = dt.of(np.result_type(left.dtype.numpy, right.dtype.numpy))
    if kind is dt.bool_:
        raise NotLiftable("a product of bools")
    e.fail_if(
        e.cmp("ne", left.shape[-1], right.shape[0]),
        lambda a, b: ValueError(
            "matmul: Input operand 1 has a mismatch in its core dimension 0, with gufunc signature "
            f"(n?,k),(k,m?)->(n?,m?) (size {b} is different from {a})"
        ),
        left.shape[-1],
        right.shape[0],
    )
    if ranks == (1, 1):
        return FUNCTIONS[np.sum](c, [c.ufunc(np.multiply, [left, right])], {}) if kind.bits >= 32 else _narrow()
    if ranks == (2, 2):
        return _of_matrices(c, left, right, kind)
    if ranks == (2, 1):
        if e.known(left.strides[0]) != left.dtype.bytes:
            return _by_rows(c, left, right, kind)
        left, right = right, c.view(left, left.shape[::-1], left.strides[::-1], True)  # columns have no gaps
    made = arrays.dense(e, c.fresh_site(), kind, [right.shape[1]])
    arrays.fill(e, made, e.const(0, kind))
    with e.each(right.shape[0]) as row:
        factor = e.cast(arrays.element(e, left, [row]), kind)
        with e.each(right.shape[1]) as column:
            place = arrays.element_pointer(e, made, [column])
            term = e.mul(factor, e.cast(arrays.element(e, right, [row, column]), kind))
            e.store(e.add(e.load(place, kind), term), place)
    return made


def _narrow():
    raise NotLiftable("a product of narrow integers")


_SMALL = 4096  # multiplications: so many cost less here than the way to the library


def _of_matrices(c, left: Array, right: Array, kind: DType) -> Array:
    """A matrix times a matrix: a large one by NumPy's library."""
    e = c.code
    if not left.dtype is right.dtype is kind:
        left, right = (c.array(_cast(e, c.array(v), kind)) if v.dtype is not kind else v for v in (left, right))
    made = arrays.dense(e, c.fresh_site(), kind, [left.shape[0], right.shape[1]])

    def here() -> None:
        arrays.fill(e, made, e.const(0, kind))
        with e.each_of([left.shape[0], left.shape[1]]) as (row, k):
            factor = arrays.element(e, left, [row, k])
            with e.each(right.shape[1]) as column:
                place = arrays.element_pointer(e, made, [row, column])
                term = e.mul(factor, arrays.element(e, right, [k, column]))
                e.store(e.add(e.load(place, kind), term), place)

    if not kind.is_inexact:
        here()
        return made
    count = e.count("muli", e.count("muli", left.shape[0], left.shape[1]), right.shape[1])
    e.branch(e.cmp("gt", count, _SMALL), lambda: e.multiply(left, right, made), here)
    return made


_ROWS = 4  # that are multiplied together, so that the vector is read once for them


def _by_rows(c, left: Array, right: Array, kind: DType) -> Array:
    """A matrix times a vector."""
    e = c.code
    made = arrays.dense(e, c.fresh_site(), kind, [left.shape[0]])
    slots = [e.slot(kind.signless) for _ in range(_ROWS)]

    def rows(first: Val, count: int) -> None:
        at = [e.count("addi", first, k) for k in range(count)]
        for slot in slots[:count]:
            e.store(e.const(0, kind), slot)
        with e.each(left.shape[1]) as column:
            x = e.cast(arrays.element(e, right, [column]), kind)
            for row, slot in zip(at, slots):
                term = e.mul(e.cast(arrays.element(e, left, [row, column]), kind), x)
                e.store(arrays.fast_add(e, e.load(slot, kind), term), slot)
        for row, slot in zip(at, slots):
            e.store(e.load(slot, kind), arrays.element_pointer(e, made, [row]))

    whole = e.div(left.shape[0], e.const(_ROWS, dt.i64))
    with e.each(whole) as k:
        rows(e.count("muli", k, _ROWS), _ROWS)
    done = e.count("muli", whole, _ROWS)
    with e.each(e.count("subi", left.shape[0], done)) as k:
        rows(e.count("addi", done, k), 1)
    return made
