"""The functions and methods, other than ufuncs, that compiled loops support: rules ``rule(c, *args, **keywords)`` over
the values of :mod:`mlirfuse.frontend.numpy.loops.values`, whose parameters are the supported ones of the function."""

from __future__ import annotations

import ast
import inspect
import math
import struct
from collections.abc import Callable, Sequence
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
    Bytes,
    Lazy,
    NotOutlinable,
    Number,
    Static,
    Tuple,
    UnsupportedInt,
    element_dtype,
    joined,
    require,
)
from mlirfuse.frontend.numpy.promotion import result_type_of
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.dtypes import DType
from mlirfuse.lowering.elementwise import EMIT
from mlirfuse.lowering.emitter import Val

FUNCTIONS: dict[Any, Callable] = {}
METHODS: dict[str, Callable] = {}


def rule(*functions: Any, method: str | None = None):
    """Registers a rule for functions, and for a method's name."""

    def register(created: Callable) -> Callable:
        FUNCTIONS.update(dict.fromkeys(functions, created))
        if method:
            METHODS[method] = created
        return created

    return register


def applied(found: Callable, c, args: Sequence, keywords: dict[str, Any]) -> Any:
    """The value of a call by a rule. Raises NotOutlinable for arguments that the rule does not take."""
    try:
        inspect.signature(found).bind(c, *args, **keywords)
    except TypeError as error:
        raise NotOutlinable(f"the arguments of a function: {error}") from None
    return found(c, *args, **keywords)


def known(found: Any, otherwise: Any = None) -> Any:
    """The value of a constant; ``otherwise`` where the argument is not given."""
    if found is None:
        return otherwise
    if isinstance(found, Static):
        return found.value
    if isinstance(found, Number) and found.known is not None:
        return found.known
    require(isinstance(found, Tuple), "an argument that must be a constant")
    return tuple(known(item) for item in found.items)


def axis_of(found: Any, rank: int, otherwise: int | None = None) -> int:
    """A constant axis, not negative; ``otherwise`` where it is not given."""
    given = known(found, otherwise)
    require(isinstance(given, int) and -rank <= given < rank, "an axis that is no constant in range")
    return given % rank


def axes_of(found: Any, rank: int) -> list[int]:
    """Constant axes, sorted; all where none is given."""
    given = known(found)
    axes = range(rank) if given is None else [given] if isinstance(given, int) else given
    return sorted({axis_of(Static(axis), rank) for axis in axes})


# ---- Python's built-ins


@rule(len)
def _len(c, found):
    if isinstance(found, Tuple):
        return c.constant(len(found.items))
    found = found.array if isinstance(found, Bytes) else found
    require(isinstance(found, (Array, Lazy)) and found.shape, "len")
    return c.size(found.shape[0])


def _extreme(predicate: str):
    def pick(c, *args):
        items = args[0].items if len(args) == 1 and isinstance(args[0], Tuple) else args
        several = len(items) > 1 and all(isinstance(v, Number) for v in items)
        require(several, "min and max other than of several numbers")
        best = items[0]
        for other in items[1:]:
            kind = joined(best.type, other.type)
            a, b = c.code.cast(best.val, kind.dtype), c.code.cast(other.val, kind.dtype)
            best = merged(c.code, c.code.cmp(predicate, b, a), other, best)
        return best

    return pick


FUNCTIONS[min], FUNCTIONS[max] = _extreme("lt"), _extreme("gt")


@rule(abs)
def _abs(c, found):
    require(not (isinstance(found, Number) and found.type == PY_COMPLEX), "abs of Python complex numbers")
    if isinstance(found, Number) and found.type.python and found.dtype is not dt.bool_:
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
def _int(c, found):
    require(isinstance(found, Number) and found.dtype.kind != "c", "int of something other than a real number")
    if not found.dtype.is_float:
        val = c.code.cast(found.val, dt.i64) if found.dtype is dt.bool_ else c.integer(found)
        return Number(val, PY_INT, found.bits)
    e, val = c.code, c.code.cast(found.val, dt.f64)
    bits = e.op(f"arith.bitcast {val} : f64 to i64", dt.i64)
    e.fail_if(e.not_(e.cmp("lt", e.abs(val), 2.0**62)), _no_int, bits)
    return Number(e.cast(val, dt.i64), PY_INT, 62)


@rule(float)
def _float(c, found):
    real = isinstance(found, Number) and found.dtype is not dt.u64 and found.dtype.kind != "c"
    require(real, "float of something other than a real number")
    return Number(c.code.cast(found.val, dt.f64), PY_FLOAT, known=None)


@rule(bool)
def _bool(c, found):
    return Number(c.truth_of(found), c.constant(True).type)


@rule(complex)
def _complex(c, *parts):
    numbers = all(isinstance(v, Number) and v.dtype is not dt.u64 for v in parts)
    require(numbers and 1 <= len(parts) <= 2, "complex of something other than numbers")
    e, (real, *imag) = c.code, [c.code.cast(v.val, dt.c128) for v in parts]
    return Number(e.add(real, e.mul(e.const(1j, dt.c128), imag[0])) if imag else real, PY_COMPLEX)


@rule(sum)
def _sum_of(c, found):
    require(isinstance(found, Tuple), "Python's sum of an array")
    total = c.constant(0)
    for item in found.items:
        total = c.binary(ast.Add(), total, item)
    return total


_SAME_NAMES = (
    "sqrt", "exp", "log", "sin", "cos", "tan", "atan", "tanh", "sinh", "cosh", "asin", "acos", "log2", "log10", "expm1",
    "log1p", "erf", "atan2", "hypot", "copysign",
)  # fmt: skip
_MATH = dict(zip(_SAME_NAMES, _SAME_NAMES)) | {"fabs": "abs"}
_OVERFLOWS = {"exp", "expm1", "sinh", "cosh", "hypot"}  # an infinite result of finite arguments is an error


def _of_math(name: str, op: str):
    def compute(c, *args):
        require(all(isinstance(v, Number) and v.dtype.kind != "c" for v in args), f"math.{name}")
        e = c.code
        vals = [e.cast(v.val, dt.f64) for v in args]
        result = EMIT[op](e, *vals)
        finite = known = e.const(True, dt.bool_)
        for v in vals:
            finite = e.and_(finite, e.cmp("lt", e.abs(v), math.inf))
            known = e.and_(known, e.cmp("eq", v, v))
        undefined = e.and_(known, e.not_(e.cmp("eq", result, result)))
        e.fail_if(undefined, ValueError("math domain error"))
        infinite = e.and_(finite, e.cmp("eq", e.abs(result), math.inf))
        kind, why = (OverflowError, "range") if name in _OVERFLOWS else (ValueError, "domain")
        e.fail_if(infinite, lambda *_: kind(f"math {why} error"))
        return Number(result, PY_FLOAT)

    return compute


FUNCTIONS |= {getattr(math, name): _of_math(name, op) for name, op in _MATH.items()}


def _whole(op: str):
    return lambda c, found: _int(c, number(getattr(c.code, op)(c.code.cast(found.val, dt.f64))))


FUNCTIONS |= {math.floor: _whole("floor"), math.ceil: _whole("ceil")}

# ---- NumPy's scalar types


def _scalar_type(kind: DType):
    def convert(c, found):
        real = isinstance(found, Number) and (kind.is_inexact or not found.dtype.is_inexact)
        require(real, "a conversion")
        range_checks.fits(c.code, found, kind)
        return number(c.code.cast(found.val, kind))

    return convert


_INTEGERS = (dt.i8, dt.i16, dt.i32, dt.i64, dt.u8, dt.u16, dt.u32, dt.u64)
for _kind in (*_INTEGERS, dt.bool_, dt.f16, dt.f32, dt.f64, dt.c64, dt.c128):
    FUNCTIONS[_kind.numpy.type] = _scalar_type(_kind)


def element_type(found: Any, otherwise: DType) -> DType:
    """The element type that a ``dtype`` argument names."""
    given = known(found)
    return otherwise if given is None else element_dtype(given)


# ---- array creation


def extents(c, found: Any) -> list[Val]:
    """A shape: a number or a tuple of numbers, checked not to be negative."""
    out = []
    for item in found.items if isinstance(found, Tuple) else [found]:
        count = c.integer(item)
        if c.code.known(count) is None:
            c.code.fail_if(c.code.cmp("lt", count, 0), ValueError("negative dimensions are not allowed"))
        else:
            require(c.code.known(count) >= 0, "a negative extent")
        out.append(count)
    return out


def _filled_with(name: str, value: int) -> None:
    """Registers ``np.{name}`` and ``np.{name}_like``."""

    @rule(getattr(np, name))
    def create(c, shape, dtype=None):
        kind = element_type(dtype, dt.f64)
        return arrays.filled(c.code, c.fresh_site(), kind, extents(c, shape), c.code.const(value, kind))

    @rule(getattr(np, f"{name}_like"))
    def create_like(c, a, dtype=None):
        kind = element_type(dtype, a.dtype)
        return arrays.filled(c.code, c.fresh_site(), kind, a.shape, c.code.const(value, kind))


for _name, _value in (("zeros", 0), ("empty", 0), ("ones", 1)):  # of np.empty, so that runs are reproducible
    _filled_with(_name, _value)


@rule(np.full)
def _full(c, shape, fill_value, dtype=None):
    require(isinstance(fill_value, Number), "np.full with an array")
    kind = element_type(dtype, fill_value.dtype)
    range_checks.fits(c.code, fill_value, kind)
    return arrays.filled(c.code, c.fresh_site(), kind, extents(c, shape), c.code.cast(fill_value.val, kind))


@rule(np.copy, method="copy")
def _copy(c, a):
    return a if isinstance(a, Number) else arrays.materialized(c.code, a, c.fresh_site())


@rule(np.array, np.asarray)
def array(c, object, dtype=None):  # NumPy's name
    """An array of nested tuples of numbers and arrays, or a copy of an array."""
    if isinstance(object, (Array, Lazy)) and dtype is None:
        return _copy(c, object)
    require(isinstance(object, Tuple) and object.items, "np.array")
    e = c.code
    if all(isinstance(item, Number) for item in object.items):
        kind = element_type(dtype, result_type_of(tuple(item.dtype.numpy for item in object.items)))
        created = arrays.dense(e, c.fresh_site(), kind, [e.const(len(object.items), dt.i64)])
        for k, item in enumerate(object.items):
            place = arrays.element_pointer(e, created, [e.const(k, dt.i64)])
            range_checks.stored(e, item, kind)
            e.store(e.cast(item.val, kind), place, memory=True)
        return created
    items = [array(c, item) if isinstance(item, Tuple) else item for item in object.items]
    require(not any(isinstance(item, Number) for item in items), "np.array of arrays and numbers")
    joined_up = FUNCTIONS[np.stack](c, Tuple(items))
    return joined_up if dtype is None else _astype(c, joined_up, dtype)


@rule(method="astype")
def _astype(c, a, dtype):
    kind = element_type(dtype, dt.f64)
    require(a.dtype.kind != "c" or kind.kind in "cb", "complex numbers as real ones")
    found = c.cast(a, kind)
    return found if isinstance(found, Number) else arrays.materialized(c.code, found, c.fresh_site())


def _part(name: str):
    return lambda c, val: c.part(val, name)


METHODS |= {"conj": _part("conjugate"), "conjugate": _part("conjugate")}
ATTRIBUTES: dict[str, Callable] = {
    "shape": lambda c, a: Tuple([c.size(extent) for extent in a.shape]),
    "ndim": lambda c, a: c.constant(len(a.shape)),
    "size": lambda c, a: c.size(c.code.product(a.shape)),
    "dtype": lambda c, a: Static(a.dtype.numpy),
    "T": lambda c, a: FUNCTIONS[np.transpose](c, a),
    "real": _part("real"),
    "imag": _part("imag"),
}
OF_NUMBERS = frozenset(["real", "imag"])  # the attributes that numbers have
FUNCTIONS |= {getattr(np, name): ATTRIBUTES[name] for name in OF_NUMBERS}

# ---- views


@rule(np.flip)
def _flip(c, m, axis=None):
    array = c.array(m)
    axes = axes_of(axis, len(array.shape))
    e, offset, strides = c.code, c.code.zero, list(array.strides)
    for k in axes:
        offset = e.count("addi", offset, e.count("muli", e.count("subi", array.shape[k], 1), strides[k]))
        strides[k] = e.count("subi", 0, strides[k])
    # for an empty array the offset is out of bounds, but nothing is read
    inner = array.inner and len(array.shape) - 1 not in axes
    return c.view(array, array.shape, strides, inner, e.offset(array.pointer, offset))


# ---- choices


@rule(np.where)
def _where(c, condition, x, y):
    operands = [c.as_operand(v) for v in (condition, x, y)]
    require(not all(isinstance(v, Number) for v in operands), "np.where of numbers, which gives an array")
    e, out = c.code, result_type_of((x.operand, y.operand))
    for v in (x, y):
        range_checks.fits(e, v, out)
    compute = lambda chosen, a, b: e.select(e.cast(chosen, dt.bool_), e.cast(a, out), e.cast(b, out))  # noqa: E731
    return arrays.elementwise(e, out, compute, operands)


@rule(np.clip, method="clip")
def _clip(c, a, a_min, a_max):
    require(not isinstance(a_min, Static) and not isinstance(a_max, Static), "np.clip with one bound")
    return c.ufunc(np.minimum, [c.ufunc(np.maximum, [a, a_min]), a_max])


# Functions whose results do not depend on the types of numbers, or that handle alternative types.
OF_ANY_TYPE = frozenset([min, max, float, bool, *(getattr(math, name) for name in _MATH)])
FUNCTIONS[np.outer] = lambda c, a, b: c.outer(np.multiply, a, b)
