"""The functions and methods, other than ufuncs, that compiled loops support: rules ``rule(c, args, keywords)`` over the
values of :mod:`mlirfuse.frontend.numpy.loops.values`."""

from __future__ import annotations

import ast
import math
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from mlirfuse.frontend.numpy.loops import arrays, range_checks
from mlirfuse.frontend.numpy.loops.alternatives import merged
from mlirfuse.frontend.numpy.loops.arrays import number
from mlirfuse.frontend.numpy.loops.values import (
    PY_COMPLEX,
    PY_FLOAT,
    PY_INT,
    Array,
    Lazy,
    NotOutlinable,
    Number,
    Static,
    Tuple,
    UnsupportedInt,
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
    """Registers a rule for functions, and for a method's name."""

    def register(created: Callable) -> Callable:
        for function in functions:
            FUNCTIONS[function] = created
        if method:
            METHODS[method] = created
        return created

    return register


def take(args: list, keywords: dict, *names: str) -> list:
    """The arguments for these parameter names; None for those not given. Raises NotOutlinable for others."""
    unknown = set(keywords) - set(names)
    if unknown or len(args) > len(names):
        raise NotOutlinable(f"the argument {', '.join(unknown) or len(args)} of a function")
    return [args[k] if k < len(args) else keywords.get(name) for k, name in enumerate(names)]


def known(found: Any, otherwise: Any = None) -> Any:
    """The value of a constant; ``otherwise`` where the argument is not given."""
    if found is None:
        return otherwise
    if isinstance(found, Static):
        return found.value
    if isinstance(found, Number) and found.known is not None:
        return found.known
    if isinstance(found, Tuple):
        return tuple(known(item) for item in found.items)
    raise NotOutlinable("an argument that must be a constant")


def cast(e, found: Any, kind: DType) -> Any:
    """A number or an array cast to another type."""
    if isinstance(found, Val):
        return e.cast(found, kind)
    return arrays.elementwise(e, kind, lambda x: e.cast(x, kind), [found])


# ---- Python's built-ins


@rule(len)
def _len(c, args, keywords):
    (found,) = args
    if isinstance(found, Tuple):
        return c.constant(len(found.items))
    if not isinstance(found, (Array, Lazy)) or not found.shape:
        raise NotOutlinable("len")
    return c.size(found.shape[0])


def _extreme(predicate: str):
    def pick(c, args, keywords):
        items = args[0].items if len(args) == 1 and isinstance(args[0], Tuple) else args
        if keywords or len(items) < 2 or not all(isinstance(v, Number) for v in items):
            raise NotOutlinable("min and max other than of several numbers")
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
        raise NotOutlinable("abs of Python complex numbers")
    if isinstance(found, Number) and found.type.python and found.type.dtype is not dt.bool_:
        return Number(c.code.abs(found.val), found.type, found.bits)
    return c.ufunc(np.absolute, [found])


def _no_int(bits: int, _: int) -> Exception:
    """The error of ``int`` for a float with these bits."""
    try:
        int(struct.unpack("d", struct.pack("q", bits))[0])
    except (ValueError, OverflowError) as error:  # NaN, infinity
        return error
    return UnsupportedInt("int() of a float beyond 2**62 in a compiled loop")


@rule(int)
def _int(c, args, keywords):
    (found,) = args
    if not isinstance(found, Number) or found.type.dtype.kind == "c":
        raise NotOutlinable("int of something other than a real number")
    if not found.type.dtype.is_float:
        return Number(c.integer(found) if found.type.dtype is not dt.bool_ else c.code.cast(found.val, dt.i64), PY_INT,
                      found.bits)  # fmt: skip
    e, val = c.code, c.code.cast(found.val, dt.f64)
    bits = e.op(f"arith.bitcast {val} : f64 to i64", dt.i64)
    e.fail_if(e.not_(e.cmp("lt", e.abs(val), 2.0**62)), _no_int, bits)
    return Number(e.cast(val, dt.i64), PY_INT, 62)


@rule(float)
def _float(c, args, keywords):
    (found,) = args
    if not isinstance(found, Number) or found.type.dtype is dt.u64 or found.type.dtype.kind == "c":
        raise NotOutlinable("float of something other than a real number")
    return Number(c.code.cast(found.val, dt.f64), PY_FLOAT, known=None)


@rule(bool)
def _bool(c, args, keywords):
    return Number(c.truth_of(args[0]), c.constant(True).type)


@rule(sum)
def _sum_of(c, args, keywords):
    if len(args) != 1 or not isinstance(args[0], Tuple):
        raise NotOutlinable("Python's sum of an array")
    total = c.constant(0)
    for item in args[0].items:
        total = c.binary(ast.Add(), total, item)
    return total


_MATH = {"sqrt": "sqrt", "exp": "exp", "log": "log", "sin": "sin", "cos": "cos", "tan": "tan", "atan": "atan",
         "tanh": "tanh", "sinh": "sinh", "cosh": "cosh", "asin": "asin", "acos": "acos", "log2": "log2",
         "log10": "log10", "fabs": "abs", "expm1": "expm1", "log1p": "log1p", "erf": "erf", "atan2": "atan2",
         "hypot": "hypot", "copysign": "copysign"}  # fmt: skip


_OVERFLOWS = {"exp", "expm1", "sinh", "cosh", "hypot"}  # an infinite result of finite arguments is an error


def _of_math(name: str, op: str):
    def compute(c, args, keywords):
        if keywords or not all(isinstance(v, Number) and v.type.dtype.kind != "c" for v in args):
            raise NotOutlinable(f"math.{name}")
        e = c.code
        vals = [e.cast(v.val, dt.f64) for v in args]
        result = EMIT[op](e, *vals)
        finite = known = e.const(True, dt.bool_)
        for v in vals:
            finite = e.and_(finite, e.cmp("lt", e.abs(v), math.inf))
            known = e.and_(known, e.cmp("eq", v, v))
        undefined = e.and_(known, e.not_(e.cmp("eq", result, result)))
        e.fail_if(undefined, lambda *_: ValueError("math domain error"))
        infinite = e.and_(finite, e.cmp("eq", e.abs(result), math.inf))
        if name in _OVERFLOWS:
            e.fail_if(infinite, lambda *_: OverflowError("math range error"))
        else:
            e.fail_if(infinite, lambda *_: ValueError("math domain error"))
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


# ---- NumPy's scalar types


def _scalar_type(kind: DType):
    def convert(c, args, keywords):
        (found,) = args
        if not isinstance(found, Number) or (found.type.dtype.is_inexact and not kind.is_inexact):
            raise NotOutlinable("a conversion")
        range_checks.fits(c.code, found, kind)
        return number(c.code.cast(found.val, kind))

    return convert


@rule(complex)
def _complex(c, args, keywords):
    if (
        keywords
        or not 1 <= len(args) <= 2
        or not all(isinstance(v, Number) and v.type.dtype is not dt.u64 for v in args)
    ):
        raise NotOutlinable("complex of something other than numbers")
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


# ---- array creation


def extents(c, found: Any) -> list[Val]:
    """A shape: a number or a tuple of numbers, checked not to be negative."""
    items = found.items if isinstance(found, Tuple) else [found]
    out = []
    for item in items:
        count = c.integer(item)
        if c.code.known(count) is None:
            c.code.fail_if(c.code.cmp("lt", count, 0), lambda *_: ValueError("negative dimensions are not allowed"))
        elif c.code.known(count) < 0:
            raise NotOutlinable("a negative extent")
        out.append(count)
    return out


def _filled(value: int | None):
    def make(c, args, keywords):
        shape, dtype = take(args, keywords, "shape", "dtype")
        kind = element_type(dtype, dt.f64)
        created = arrays.dense(c.code, c.fresh_site(), kind, extents(c, shape))
        arrays.fill(c.code, created, c.code.const(value, kind))
        return created

    return make


def _filled_like(value: int | None):
    def make(c, args, keywords):
        like, dtype = take(args, keywords, "a", "dtype")
        kind = element_type(dtype, like.dtype)
        created = arrays.dense(c.code, c.fresh_site(), kind, list(like.shape))
        arrays.fill(c.code, created, c.code.const(value, kind))
        return created

    return make


# np.empty's elements are unspecified: zeros make runs reproducible.
FUNCTIONS |= {np.zeros: _filled(0), np.empty: _filled(0), np.ones: _filled(1)}
FUNCTIONS |= {np.zeros_like: _filled_like(0), np.empty_like: _filled_like(0), np.ones_like: _filled_like(1)}


@rule(np.full)
def _full(c, args, keywords):
    shape, value, dtype = take(args, keywords, "shape", "fill_value", "dtype")
    if not isinstance(value, Number):
        raise NotOutlinable("np.full with an array")
    kind = element_type(dtype, value.type.dtype)
    created = arrays.dense(c.code, c.fresh_site(), kind, extents(c, shape))
    arrays.fill(c.code, created, c.code.cast(value.val, kind))
    return created


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
        raise NotOutlinable("np.array")
    e = c.code
    if all(isinstance(item, Number) for item in found.items):
        kind = element_type(dtype, dt.of(_common(found.items)))
        created = arrays.dense(e, c.fresh_site(), kind, [e.const(len(found.items), dt.i64)])
        for k, item in enumerate(found.items):
            place = arrays.element_pointer(e, created, [e.const(k, dt.i64)])
            e.store(e.cast(item.val, kind), place, memory=True)
        return created
    items = [_array(c, [item], {}) if isinstance(item, Tuple) else item for item in found.items]
    if any(isinstance(item, Number) for item in items):
        raise NotOutlinable("np.array of arrays and numbers")
    joined_up = FUNCTIONS[np.stack](c, [Tuple(items)], {})
    return joined_up if dtype is None else _astype(c, [joined_up, dtype], {})


def _common(items: list[Number]) -> np.dtype:
    try:
        return np.result_type(*(item.type.dtype.numpy for item in items))
    except TypeError:
        raise NotOutlinable("types without a common type") from None


def _astype(c, args, keywords):
    found, dtype = take(args, keywords, "a", "dtype")
    kind = element_type(dtype, dt.f64)
    e = c.code
    if (found.type.dtype if isinstance(found, Number) else found.dtype).kind == "c" and kind.kind not in "cb":
        raise NotOutlinable("complex numbers as real ones")
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
    # for an empty array the offset is out of bounds, but nothing is read
    inner = array.inner and rank - 1 not in axes
    return c.view(array, array.shape, strides, inner, e.offset(array.pointer, offset))


# ---- choices


@rule(np.where)
def _where(c, args, keywords):
    condition, a, b = take(args, keywords, "condition", "x", "y")
    if a is None or b is None:
        raise NotOutlinable("np.where with one argument")
    e = c.code
    kinds = [v.type.operand if isinstance(v, Number) else v.dtype.numpy for v in (a, b)]
    samples = [kind(0) if isinstance(kind, type) else kind for kind in kinds]
    out = dt.of(np.result_type(*samples))
    for v in (a, b):
        range_checks.fits(c.code, v, out)

    def compute(x, y, z):
        return e.select(e.cast(x, dt.bool_), e.cast(y, out), e.cast(z, out))

    if all(isinstance(v, Number) for v in (condition, a, b)):
        raise NotOutlinable("np.where of numbers, which gives an array")
    return arrays.elementwise(e, out, compute, [condition, a, b])


@rule(np.clip, method="clip")
def _clip(c, args, keywords):
    found, low, high = take(args, keywords, "a", "a_min", "a_max")
    if low is None or high is None or isinstance(low, Static) or isinstance(high, Static):
        raise NotOutlinable("np.clip with one bound")
    return c.ufunc(np.minimum, [c.ufunc(np.maximum, [found, low]), high])


# Functions whose results do not depend on the types of numbers, or that handle alternative types.
OF_ANY_TYPE = frozenset([min, max, float, bool, *(getattr(math, name) for name in _MATH)])

FUNCTIONS[np.outer] = lambda c, args, keywords: c._ufunc_method(
    _method(np.multiply), take(args, keywords, "a", "b"), {}
)


def _method(ufunc):
    from mlirfuse.frontend.numpy.loops.values import Method

    return Method(Static(ufunc), "outer")
