"""How NumPy's functions become ops: promotion, broadcasting, axes and indexing by NumPy's rules, on traced arrays.

Functions here take traced arrays, numbers, and arrays from outside the trace, and give traced arrays. :func:`implements` says which
NumPy function each one stands for; :mod:`mlirfuse.numpy` makes the public names from the same functions.
"""

from __future__ import annotations

import difflib
import functools
import math
import operator

import ml_dtypes
import numpy as np

from mlirfuse import dtypes as dt
from mlirfuse import ops
from mlirfuse import sizes as sz
from mlirfuse.dtypes import DType
from mlirfuse.errors import ShapeError, TraceError, UnsupportedError
from mlirfuse.frontend import tracing as tr
from mlirfuse.frontend.tracing import SymInt, TracedArray, TracedScalar, fail
from mlirfuse.frontend.views import At, Broadcast, ExpandDims, Permute, Reshape, Slice, Squeeze
from mlirfuse.graph import Value
from mlirfuse.sizes import Size

HANDLED: dict = {}  # NumPy function -> ours
UFUNCS: dict = {}  # ufunc -> (trace, values, input dtypes, output dtypes) -> value or values

_sum, _max, _min = sum, max, min  # sum, max, min and round are NumPy's below


def implements(*numpy_functions):
    """Decorator: the function stands for these NumPy functions (a name, for what older NumPys lack)."""

    def mark(function):
        for f in numpy_functions:
            f = getattr(np, f, None) if isinstance(f, str) else f
            if f is not None:
                HANDLED[f] = function
        return function

    return mark


_HINTS = {
    "nonzero": "its result's shape depends on values; use np.where(condition, a, b)",
    "argwhere": "its result's shape depends on values; use np.where(condition, a, b)",
    "flatnonzero": "its result's shape depends on values; use np.where(condition, a, b)",
    "unique": "its result's shape depends on values", "compress": "use np.where(condition, a, b)",
    "extract": "use np.where(condition, a, b)",
    "copyto": "use x[...] = y", "put": "use np.where", "putmask": "use np.where", "place": "use np.where",
    "tofile": "write the result outside the compiled function",
    "fft": "transforms are computed outside the compiled function",
}  # fmt: skip


def suggestion(name: str) -> str:
    """What to use instead of the function ``name``."""
    if name in _HINTS:
        return f": {_HINTS[name]}"
    known = {f.__name__ for f in HANDLED} | {f.__name__ for f in UFUNCS}
    close = difflib.get_close_matches(name, known, 3, 0.5)
    nearest = f"; the nearest that are: {', '.join(close)}" if close else ""
    return f": compute it outside the compiled function{nearest}"


# ---------------------------------------------------------------------------------------------------------------- operands


def trace_of(*xs):
    """The trace that the operands belong to, or the one in progress."""
    for x in xs:
        if isinstance(x, TracedArray):
            return x._trace
        if x.__class__ is SymInt:
            return x.trace
        if isinstance(x, (list, tuple)):
            found = trace_of(*x) if x else None
            if found is not None:
                return found
    return tr.current()


def is_array(x) -> bool:
    return isinstance(x, np.ndarray) or hasattr(x, "__cuda_array_interface__") or hasattr(x, "__dlpack__")


def operand(t, x):
    """``x`` as what the functions below compute with: a traced array, a SymInt or a Python or NumPy number."""
    if isinstance(x, TracedArray):
        if x._trace is not t:
            fail(TraceError, "an array traced by another compiled function was used here: it was kept from that function's own trace")
        return x
    if x.__class__ in (int, float, bool, SymInt) or isinstance(x, np.generic):
        return x
    if isinstance(x, np.ndarray) and x.ndim == 0:
        return x[()]
    if is_array(x):
        return t.capture(x)
    if isinstance(x, (list, tuple)):
        if contains_traced(x):
            return stack([asarray(item) for item in x])
        return t.capture(np.asarray(x))
    if isinstance(x, int):
        return int(x)
    if isinstance(x, float):
        return float(x)
    if isinstance(x, complex):
        fail(UnsupportedError, "complex numbers are not supported in elementwise functions: compute the real and the imaginary part")
    fail(TraceError, f"a {type(x).__name__} cannot be used with a traced array: pass an array or a number")


def contains_traced(x) -> bool:
    if isinstance(x, (TracedArray, SymInt)):
        return True
    return isinstance(x, (list, tuple)) and any(contains_traced(item) for item in x)


def kind_of(x):
    """What NumPy's promotion knows of an operand: a dtype, or int or float for a Python number."""
    if isinstance(x, TracedArray):
        weak = x._weak
        if weak is None or weak is bool:
            return x._value.dtype.numpy
        return weak
    if x.__class__ is SymInt:
        return int
    if x.__class__ is bool:
        return np.dtype(bool)
    if isinstance(x, np.generic):
        return x.dtype
    return x.__class__


def value_of(t, x, dtype: DType, wrapping: bool = False) -> Value:
    """``x`` as a value of ``dtype``. A Python int that does not fit is an OverflowError unless ``wrapping``."""
    if isinstance(x, TracedArray):
        value = x.value
        if value.dtype is dtype:
            return value
        if not wrapping:
            _check_weak_int(t, x, dtype)
        return t.emit("cast", value, to=dtype)
    if x.__class__ is SymInt:
        if dtype.is_integer and dtype.bits < 64 and not wrapping and not t.decide(x.size, "<=", _int_range(dtype)[1]):
            fail(OverflowError, f"Python integer {t.hint(x.size)} out of bounds for {dtype.numpy.name}")
        value = t.builder.size(t.canonical(x.size))
        return value if dtype is dt.i64 else t.emit("cast", value, to=dtype)
    if x.__class__ is int and dtype.is_integer:
        low, high = _int_range(dtype)
        if not low <= x <= high:
            if not wrapping:
                fail(OverflowError, f"Python integer {x} out of bounds for {dtype.numpy.name}")
            x = (x - low) % 2**dtype.bits + low
    try:
        return t.builder.constant(x, dtype)
    except OverflowError as error:
        fail(OverflowError, str(error))


def _int_range(dtype: DType) -> tuple[int, int]:
    return (0, 2**dtype.bits - 1) if dtype.kind == "u" else (-(2 ** (dtype.bits - 1)), 2 ** (dtype.bits - 1) - 1)


def _check_weak_int(t, x, dtype: DType) -> None:
    """A Python int known at run time must fit the type it is used as, as NumPy checks."""
    if x._weak is not int or not dtype.is_integer:
        return
    low, high = _int_range(dtype)
    if isinstance(x, tr.LeafScalar):
        value = x.spec.value
        t.scalar_ranges.setdefault(x.leaf, set()).add((low, high))
    elif dtype is dt.i64:
        return
    else:
        value = x.concrete()
    if not low <= value <= high:
        fail(OverflowError, f"Python integer {value} out of bounds for {dtype.numpy.name}")


def wrap(t, value: Value) -> TracedArray:
    """A new array; of no dimensions: a number, as NumPy's functions give."""
    return TracedArray(t, value, scalar=not value.shape)


def asarray(x, dtype=None) -> TracedArray:
    """``x`` as a traced array; with ``dtype``, converted."""
    t = trace_of(x)
    x = operand(t, x)
    if not isinstance(x, TracedArray):
        kind = kind_of(x)
        x = TracedArray(t, value_of(t, x, dt.of({int: np.int64, float: np.float64}.get(kind, kind))))
    if dtype is not None and x._value.dtype is not dtype_of(dtype):
        return wrap(t, value_of(t, x, dtype_of(dtype)))
    return x


def dtype_of(dtype) -> DType:
    """An element type as users spell it. Raises UnsupportedError."""
    try:
        return dt.of(dtype)
    except TypeError as error:
        fail(UnsupportedError, str(error))


@functools.lru_cache(maxsize=None)
def loop_types(ufunc, kinds: tuple) -> tuple[DType, ...]:
    """The types that NumPy computes the ufunc in and gives: inputs, then outputs."""
    found = ufunc.resolve_dtypes(kinds + (None,) * (ufunc.nin + ufunc.nout - len(kinds)))
    return tuple(dt.of(d) for d in found)


@functools.lru_cache(maxsize=None)
def _result_type(kinds: tuple) -> DType:
    return dt.of(np.result_type(*[{int: 0, float: 0.0}.get(k, k) for k in kinds]))


def result_type_of(kinds: tuple) -> DType:
    """NumPy's common type of dtypes and of int and float for Python numbers."""
    try:
        return _result_type(kinds)
    except TypeError as error:
        fail(TypeError, str(error))


# ---------------------------------------------------------------------------------------------------------------- broadcasting


def broadcast_shape(t, shapes, what: str = "operands could not be broadcast together") -> tuple[Size, ...]:
    """The common shape, equal extents made one. Raises ShapeError with NumPy's words."""
    rank = _max(len(s) for s in shapes)
    out = []
    for k in range(rank):
        found: Size = 1
        for shape in shapes:
            if k < len(shape):
                extent = shape[len(shape) - 1 - k]
                if extent == 1 or extent is found or extent == found:
                    continue
                if found == 1:
                    found = extent
                elif not t.unify(found, extent):
                    seen = " ".join("(" + ",".join(map(str, t.hints_of(s))) + ("," if len(s) == 1 else "") + ")" for s in shapes)
                    fail(ShapeError, f"{what} with shapes {seen}")
                elif isinstance(extent, int):
                    found = extent
        out.append(found)
    return tuple([t.canonical(n) for n in reversed(out)])


def aligned(t, values: list[Value], what="operands could not be broadcast together") -> list[Value]:
    """The values with one rank (or rank 0), their extents known to go together."""
    first = None
    for value in values:
        if value.shape:
            if first is None:
                first = value.shape
            elif value.shape != first:
                break
    else:
        return values
    shapes = [t.shape(v) for v in values if v.shape]
    broadcast_shape(t, shapes, what)
    rank = _max(len(s) for s in shapes)
    return [t.emit("expand_dims", v, axes=tuple(range(rank - v.rank))) if 0 < v.rank < rank else v for v in values]


def broadcast_value(t, value: Value, shape) -> Value:
    shape = tuple(shape)
    if t.shape(value) == shape:
        return value
    return t.emit("broadcast_in_dim", value, shape=shape, dims=tuple(range(len(shape) - value.rank, len(shape))))


def full_shape(t, values) -> tuple[Size, ...]:
    return broadcast_shape(t, [t.shape(v) for v in values])


# ---------------------------------------------------------------------------------------------------------------- ufuncs


def _row_ufunc(name):
    def lower(t, values, ins, outs):
        return t.emit(name, *aligned(t, values))

    return lower


for _row in ops.TABLE.values():
    if _row.kind == "elementwise":
        for _spelled in _row.numpy:
            _function = getattr(np, _spelled, None)
            if isinstance(_function, np.ufunc):
                UFUNCS[_function] = _row_ufunc(_row.name)


def _ufunc(*ufuncs):
    def mark(function):
        for f in ufuncs:
            UFUNCS[f] = function
        return function

    return mark


def _fresh(t, value: Value) -> Value:
    return t.emit("copy", value)


@_ufunc(np.positive, np.conjugate)
def _positive(t, values, ins, outs):
    return _fresh(t, values[0])


def _identity_for_bools(name):
    lower = _row_ufunc(name)

    def either(t, values, ins, outs):
        return _fresh(t, values[0]) if ins[0] is dt.bool_ or (ins[0].is_integer and name in ("floor", "ceil", "trunc")) else lower(t, values, ins, outs)

    return either


for _spelled, _name in (("absolute", "abs"), ("floor", "floor"), ("ceil", "ceil"), ("trunc", "trunc")):
    UFUNCS[getattr(np, _spelled)] = _identity_for_bools(_name)


@_ufunc(np.square)
def _square(t, values, ins, outs):
    return t.emit("mul", values[0], values[0])


@_ufunc(np.reciprocal)
def _reciprocal(t, values, ins, outs):
    if ins[0].is_float:
        return t.emit("reciprocal", values[0])
    return t.emit("trunc_div", t.builder.constant(1, ins[0]), values[0])


@_ufunc(np.float_power)
def _float_power(t, values, ins, outs):
    return t.emit("pow", *aligned(t, values))


@_ufunc(np.divmod)
def _divmod(t, values, ins, outs):
    values = aligned(t, values)
    return t.emit("floor_div", *values), t.emit("mod", *values)


@_ufunc(np.modf)
def _modf(t, values, ins, outs):
    (x,) = values
    whole = t.emit("trunc", x)
    infinite = t.emit("isinf", x)
    part = t.emit("where", infinite, t.builder.constant(0, ins[0]), t.emit("sub", x, whole))
    return t.emit("copysign", part, x), whole


@_ufunc(np.lcm)
def _lcm(t, values, ins, outs):
    a, b = aligned(t, values)
    one = t.builder.constant(1, ins[0])
    divisor = t.emit("maximum", t.emit("gcd", a, b), one)
    product = t.emit("mul", t.emit("trunc_div", a, divisor), b)
    return product if ins[0].kind == "u" else t.emit("abs", product)


@_ufunc(np.heaviside)
def _heaviside(t, values, ins, outs):
    x, h = aligned(t, values)
    zero, one = t.builder.constant(0, ins[0]), t.builder.constant(1, ins[0])
    y = t.emit("where", t.emit("eq", x, zero), h, t.emit("where", t.emit("lt", x, zero), zero, one))
    return t.emit("where", t.emit("isnan", x), x, y)


@_ufunc(np.deg2rad, np.radians)
def _deg2rad(t, values, ins, outs):
    return t.emit("mul", values[0], t.builder.constant(math.pi / 180, ins[0]))


@_ufunc(np.rad2deg, np.degrees)
def _rad2deg(t, values, ins, outs):
    return t.emit("mul", values[0], t.builder.constant(180 / math.pi, ins[0]))


@_ufunc(np.logaddexp2)
def _logaddexp2(t, values, ins, outs):
    a, b = aligned(t, values)
    high, dtype = t.emit("maximum", a, b), ins[0]
    same = t.emit("eq", a, b)
    gap = t.emit("where", same, t.builder.constant(0, dtype), t.emit("neg", t.emit("abs", t.emit("sub", a, b))))
    tail = t.emit("mul", t.emit("log1p", t.emit("exp2", gap)), t.builder.constant(1 / math.log(2), dtype))
    return t.emit("add", high, tail)


@_ufunc(np.spacing)
def _spacing(t, values, ins, outs):
    (x,) = values
    limit = t.emit("copysign", t.builder.constant(math.inf, ins[0]), x)
    return t.emit("sub", t.emit("nextafter", x, limit), x)


def _comparison(name):
    def lower(t, values, ins, outs):
        a, b = aligned(t, values)
        if ins[0] is ins[1]:
            return t.emit(name, a, b)
        # int64 against uint64: exact, as NumPy compares them.
        signed_first = ins[0] is dt.i64
        signed, other = (a, b) if signed_first else (b, a)
        negative = t.emit("lt", signed, t.builder.constant(0, dt.i64))
        cast = t.emit("cast", signed, to=dt.u64)
        result = t.emit(name, cast, other) if signed_first else t.emit(name, other, cast)
        when_negative = {"eq": False, "ne": True, "lt": signed_first, "le": signed_first, "gt": not signed_first, "ge": not signed_first}[name]
        if when_negative:
            return t.emit("logical_or", negative, result)
        return t.emit("logical_and", t.emit("logical_not", negative), result)

    return lower


_COMPARISONS = {np.equal: "eq", np.not_equal: "ne", np.less: "lt", np.less_equal: "le", np.greater: "gt", np.greater_equal: "ge"}
for _function, _name in _COMPARISONS.items():
    UFUNCS[_function] = _comparison(_name)


@_ufunc(np.matmul)
def _matmul(t, values, ins, outs):
    a, b = values
    if not a.shape or not b.shape:
        fail(ValueError, "matmul: a 0-d operand has no matrix dimension; use * for a product with a number")
    (inner_a, inner_b), batch = (t.shape(a)[-1], t.shape(b)[-2 if b.rank > 1 else -1]), (t.shape(a)[:-2], t.shape(b)[:-2])
    if not t.unify(inner_a, inner_b):
        fail(ShapeError, "matmul: Input operand 1 has a mismatch in its core dimension 0, with gufunc signature (n?,k),(k,m?)->(n?,m?) "
             f"(size {t.hint(inner_b)} is different from {t.hint(inner_a)})")  # fmt: skip
    if batch[0] and batch[1]:
        broadcast_shape(t, batch, "matmul: operands could not be broadcast together")
    return t.emit("matmul", a, b)


def _resolve(ufunc, operands):
    try:
        return loop_types(ufunc, tuple([kind_of(x) for x in operands]))
    except TypeError as error:
        fail(TypeError if "supported" not in str(error) or "dtype" not in str(error) else UnsupportedError, str(error))


def _is_number(x) -> bool:
    return not isinstance(x, TracedArray) or isinstance(x, TracedScalar)


def concrete(x):
    """The value of a number in this call, to which the trace is fixed from here on."""
    if isinstance(x, TracedScalar):
        return x.concrete()
    return int(x) if x.__class__ is SymInt else x


_NOT_SUPPORTED_KWARGS = {"casting", "order", "subok", "signature", "axes", "axis", "keepdims"}


def call_ufunc(ufunc, inputs, kwargs=None):
    """A ufunc on operands of which at least one is traced."""
    t = trace_of(*inputs)
    operands = [operand(t, x) for x in inputs]
    dtype, out, where_ = None, None, True
    if kwargs:
        dtype, out, where_ = kwargs.pop("dtype", None), kwargs.pop("out", None), kwargs.pop("where", True)
        for key in list(kwargs):
            if key not in ("casting", "order", "subok") or kwargs[key] not in ("same_kind", "K", True):
                fail(UnsupportedError, f"{ufunc.__name__}: the argument '{key}' is not supported in a compiled function")
    lower = UFUNCS.get(ufunc)
    if lower is None:
        fail(UnsupportedError, f"the function np.{ufunc.__name__} is not supported in a compiled function{suggestion(ufunc.__name__)}")
    if ufunc in _COMPARISONS:
        early = _compare_with_big_int(t, ufunc, operands)
        if early is not None:
            return early
    if ufunc is np.power:
        shortcut = _power(t, operands) if dtype is None and out is None else None
        if shortcut is not None:
            return shortcut
    types = _resolve(ufunc, operands)
    ins, outs = types[: ufunc.nin], types[ufunc.nin :]
    if dtype is not None:
        ins = outs = (dtype_of(dtype),) * ufunc.nin
        outs = outs[: ufunc.nout] if ufunc not in _COMPARISONS else (dt.bool_,)
    made = lower(t, [value_of(t, x, d) for x, d in zip(operands, ins)], ins, outs)
    values = made if isinstance(made, tuple) else (made,)
    if out is not None or where_ is not True:
        targets = out if isinstance(out, tuple) else (out,)
        results = [_store(t, v, target, where_, ufunc.__name__) for v, target in zip(values, targets)]
    elif all(_is_number(x) for x in operands):
        results = [
            TracedScalar(t, v, None, lambda k=k: _nth(ufunc(*[concrete(x) for x in operands]), k if len(values) > 1 else None)) for k, v in enumerate(values)
        ]
    else:
        results = [wrap(t, v) for v in values]
    return tuple(results) if len(results) > 1 else results[0]


def _nth(x, k):
    return x if k is None else x[k]


def _store(t, value: Value, target, where_, name: str):
    """Writes a result into ``out=``, where the mask says so."""
    if target is None:
        fail(UnsupportedError, f"{name}: where= without out= leaves elements undefined: use np.where(condition, result, otherwise)")
    if not isinstance(target, TracedArray):
        fail(TraceError, f"{name}: out= is an array from outside the function: make it an argument")
    if where_ is not True:
        old = value_of(t, target, value.dtype)
        value = t.emit("where", *aligned(t, [asarray(where_, bool).value, value, old]))
    store(t, target, value, name)
    return target


def store(t, target: TracedArray, value: Value, name: str, casting: str = "same_kind") -> None:
    """Makes ``target`` hold ``value``, by the rules for a ufunc's output."""
    dtype = target._value.dtype
    if not np.can_cast(value.dtype.numpy, dtype.numpy, casting):
        fail(TypeError,
             f"Cannot cast ufunc '{name}' output from dtype('{value.dtype.numpy}') to dtype('{dtype.numpy}') with casting rule '{casting}'")  # fmt: skip
    target_shape, shape = t.shape(target._value), t.shape(value)
    if shape != target_shape:
        message = (
            f"non-broadcastable output operand with shape {t.hints_of(target_shape)} doesn't match the broadcast shape "
            f"{t.hints_of(shape)}"
        )
        if len(shape) > len(target_shape) or any(
            n != 1 and not t.unify(n, m) for n, m in zip(reversed(shape), reversed(target_shape))
        ):
            fail(ShapeError, message)
        value = broadcast_value(t, value, t.shape(target._value))
    target.assign(value if value.dtype is dtype else t.emit("cast", value, to=dtype))


def _compare_with_big_int(t, ufunc, operands):
    """A comparison with a Python int that the other operand's type cannot hold: NumPy compares exactly."""
    for k in (0, 1):
        number, other = operands[k], operands[1 - k]
        if number.__class__ is int and isinstance(other, TracedArray) and other._weak is None and other._value.dtype.is_integer:
            low, high = _int_range(other._value.dtype)
            if not low <= number <= high:
                smaller, larger = (number, 0) if k == 0 else (0, number)
                outcome = bool(ufunc(*((number, 0) if k == 0 else (0, number)))) if abs(number) < 2**62 else bool(ufunc(float(smaller), float(larger)))
                return wrap(t, broadcast_value(t, t.builder.constant(outcome, dt.bool_), other._value.shape))
        if isinstance(number, TracedScalar) and number._weak is int and isinstance(other, TracedArray) and other._weak is None:
            if other._value.dtype.is_integer and other._value.dtype is not dt.i64:
                wide = [x.value if x._value.dtype is dt.u64 else value_of(t, x, dt.i64) for x in operands]
                return wrap(t, UFUNCS[ufunc](t, wide, [v.dtype for v in wide], ()))
    return None


def _power(t, operands):
    """Constant exponents for which there is something better than the power function."""
    base, exponent = operands
    if isinstance(exponent, TracedScalar) and exponent._weak is int and isinstance(base, TracedArray) and base._value.dtype.is_integer:
        exponent = exponent.concrete()  # its sign decides whether the power exists
    if not isinstance(base, TracedArray) or isinstance(base, TracedScalar):
        return None
    if isinstance(exponent, np.floating) and exponent == 0.5 or exponent.__class__ in (int, float):
        (dtype, _, _) = _resolve(np.power, (base, exponent))
    else:
        return None
    if exponent == 0.5 and dtype in (dt.f32, dt.f64):  # as NumPy has it, down to -0.0 and -inf
        return wrap(t, t.emit("sqrt", value_of(t, base, dtype)))
    if dtype.is_integer and exponent < 0:
        fail(ValueError, "Integers to negative integer powers are not allowed.")
    if exponent == -1 and dtype.is_float:
        return wrap(t, t.emit("reciprocal", value_of(t, base, dtype)))
    if exponent not in (1, 2, 3, 4) and not (dtype.is_integer and 0 < exponent <= 64):
        return None
    value = value_of(t, base, dtype)
    result, square, left = None, value, int(exponent)
    while left:
        if left & 1:
            result = square if result is None else t.emit("mul", result, square)
        left >>= 1
        if left:
            square = t.emit("mul", square, square)
    return wrap(t, _fresh(t, result) if result is value else result)


def scalar_operator(function, *inputs):
    """A Python operator on numbers of which one is known only at run time: by Python's rules."""
    t = trace_of(*inputs)
    ufunc = _OPERATOR_UFUNCS[function]
    operands = [operand(t, x) for x in inputs]
    weak = [x._weak if isinstance(x, TracedArray) else int if x.__class__ is SymInt else None if isinstance(x, np.generic) else x.__class__ for x in operands]
    if any(w is None for w in weak):
        return call_ufunc(ufunc, operands)
    if ufunc is np.power and weak[1] is int and operands[1].__class__ is not int:
        operands[1] = concrete(operands[1])
    try:
        kind = type(function(*[_PROTOTYPES[w] if x.__class__ is not int else x for w, x in zip(weak, operands)]))
    except ZeroDivisionError:
        fail(ZeroDivisionError, "division by zero")
    kinds = tuple([int if w is bool and kind is not bool else np.dtype(bool) if w is bool else w for w in weak])
    try:
        types = loop_types(ufunc, kinds)
    except TypeError as error:
        fail(TypeError, str(error))
    value = UFUNCS[ufunc](t, [value_of(t, x, d) for x, d in zip(operands, types)], types[: ufunc.nin], types[ufunc.nin :])
    return TracedScalar(t, value, kind, lambda: function(*[concrete(x) for x in operands]))


_PROTOTYPES = {int: 1, float: 1.0, bool: True}


# ---------------------------------------------------------------------------------------------------------------- Python's operators

_OPERATORS = {
    "add": (np.add, operator.add), "sub": (np.subtract, operator.sub), "mul": (np.multiply, operator.mul),
    "truediv": (np.true_divide, operator.truediv), "floordiv": (np.floor_divide, operator.floordiv), "mod": (np.remainder, operator.mod),
    "pow": (np.power, operator.pow), "and": (np.bitwise_and, operator.and_), "or": (np.bitwise_or, operator.or_),
    "xor": (np.bitwise_xor, operator.xor), "lshift": (np.left_shift, operator.lshift), "rshift": (np.right_shift, operator.rshift),
    "matmul": (np.matmul, operator.matmul),
}  # fmt: skip
_COMPARE_OPERATORS = {
    "eq": (np.equal, operator.eq), "ne": (np.not_equal, operator.ne), "lt": (np.less, operator.lt), "le": (np.less_equal, operator.le),
    "gt": (np.greater, operator.gt), "ge": (np.greater_equal, operator.ge),
}  # fmt: skip
_UNARY_OPERATORS = {"neg": (np.negative, operator.neg), "pos": (np.positive, operator.pos), "abs": (np.absolute, operator.abs),
                    "invert": (np.invert, operator.invert)}  # fmt: skip
_OPERATOR_UFUNCS = {f: u for group in (_OPERATORS, _COMPARE_OPERATORS, _UNARY_OPERATORS) for u, f in group.values()}


def _binary_method(ufunc, function, reflected: bool):
    def method(self, other):
        if ufunc is np.power and not reflected and other.__class__ is int and other == 2 and self._value.dtype is dt.bool_ and self._weak is None:
            return call_ufunc(np.square, (self,))  # bools to the second are int8, to any other power int64
        if ufunc is np.power and not reflected and other.__class__ is float and other == 0.5 and self._value.dtype is dt.f16:
            return call_ufunc(np.sqrt, (self,))  # np.power has the power here, which differs at -0.0 and -inf
        if other.__class__ not in _PLAIN:
            if not (isinstance(other, (TracedArray, np.generic, np.ndarray, int, float, list, tuple)) or is_array(other)):
                return NotImplemented
        pair = (other, self) if reflected else (self, other)
        if self._weak is not None and (other.__class__ in _PLAIN or getattr(other, "_weak", None) is not None):
            return scalar_operator(function, *pair)
        return call_ufunc(ufunc, pair)

    return method


_PLAIN = {int, float, bool, SymInt}


def _comparison_method(ufunc, function):
    arithmetic = _binary_method(ufunc, function, False)

    def method(self, other):
        if other is None or isinstance(other, (str, type, np.dtype)):
            if isinstance(self, TracedScalar):
                return function(self.concrete(), other) if ufunc in (np.equal, np.not_equal) else NotImplemented
            return NotImplemented
        return arithmetic(self, other)

    return method


def _in_place_method(ufunc, function):
    arithmetic = _binary_method(ufunc, function, False)

    def method(self, other):
        if self._scalar:
            return arithmetic(self, other)
        result = arithmetic(self, other)
        if result is NotImplemented:
            return result
        t = self._trace
        store(t, self, result.value, ufunc.__name__)
        return self

    return method


def _unary_method(ufunc, function):
    def method(self):
        return scalar_operator(function, self) if self._weak is not None else call_ufunc(ufunc, (self,))

    return method


for _name, (_u, _f) in _OPERATORS.items():
    setattr(TracedArray, f"__{_name}__", _binary_method(_u, _f, False))
    setattr(TracedArray, f"__r{_name}__", _binary_method(_u, _f, True))
    setattr(TracedArray, f"__i{_name}__", _in_place_method(_u, _f))
for _name, (_u, _f) in _COMPARE_OPERATORS.items():
    setattr(TracedArray, f"__{_name}__", _comparison_method(_u, _f))
for _name, (_u, _f) in _UNARY_OPERATORS.items():
    setattr(TracedArray, f"__{_name}__", _unary_method(_u, _f))
TracedArray.__hash__ = None
TracedArray.__divmod__ = lambda self, other: (self // other, self % other)
TracedArray.__rdivmod__ = lambda self, other: (other // self, other % self)
TracedArray.__contains__ = lambda self, item: (self == item).any()
for _compare in ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"):  # a class that defines __hash__ keeps it only so
    setattr(TracedScalar, _compare, getattr(TracedArray, _compare))
for _compare in ("lshift", "rshift", "and", "or", "xor"):
    if not hasattr(SymInt, f"__{_compare}__"):
        _f = _OPERATORS[_compare][1]
        setattr(SymInt, f"__{_compare}__", lambda self, other, f=_f: tr._sym_arith(f, self, other))
        setattr(SymInt, f"__r{_compare}__", lambda self, other, f=_f: tr._sym_arith(f, other, self))


# ---------------------------------------------------------------------------------------------------------------- protocols


def array_ufunc(ufunc, method: str, inputs, kwargs):
    """NumPy's ``__array_ufunc__``."""
    kwargs = {k: v for k, v in kwargs.items() if v is not None or k not in ("out",)}
    if not (contains_traced(inputs) or contains_traced(tuple(kwargs.values()))):
        return NotImplemented
    if method == "__call__":
        if ufunc in (np.isnan, np.isinf, np.isfinite) and isinstance(inputs[0], SymInt):
            return ufunc(0)
        out = kwargs.get("out")
        if isinstance(out, tuple) and any(isinstance(o, np.ndarray) for o in out):
            fail(TraceError, f"np.{ufunc.__name__} would write a traced value into an array from outside the function: "
                 "make that array an argument, or compute into a new one")  # fmt: skip
        return call_ufunc(ufunc, inputs, kwargs)
    if method == "reduce" and ufunc in _REDUCTIONS:
        axis = kwargs.pop("axis", 0)
        out = kwargs.pop("out", None)
        return _REDUCTIONS[ufunc](inputs[0], axis=axis, out=out[0] if isinstance(out, tuple) else out, **kwargs)
    if method == "accumulate" and ufunc in _SCANS:
        axis, out = kwargs.pop("axis", 0), kwargs.pop("out", None)
        return _SCANS[ufunc](inputs[0], axis=axis, out=out[0] if isinstance(out, tuple) else out, **kwargs)
    if method == "at" and ufunc is np.add:
        return _add_at(*inputs)
    if method == "outer":
        a, b = (asarray(x) for x in inputs)
        return call_ufunc(ufunc, (reshape(a, a.shape + (1,) * b.ndim), b), kwargs)
    fail(UnsupportedError, f"np.{ufunc.__name__}.{method} is not supported in a compiled function: compute it outside")


def array_function(function, args, kwargs):
    """NumPy's ``__array_function__``."""
    ours = HANDLED.get(function)
    if ours is None:
        name = function.__name__
        module = getattr(function, "__module__", None) or "numpy"
        if module.startswith("numpy.random"):
            fail(TraceError, f"np.random.{name} inside a compiled function: use mlirfuse.numpy.uniform, normal or dropout with a seed")
        spelled = f"{module.replace('numpy', 'np', 1)}.{name}"
        fail(UnsupportedError, f"the function {spelled} is not supported in a compiled function{suggestion(name)}")
    try:
        return ours(*args, **kwargs)
    except TypeError as error:
        if "unexpected keyword argument" in str(error) and not getattr(error, "_located", False):
            key = str(error).rsplit("'", 2)[1]
            fail(UnsupportedError, f"np.{function.__name__}: the argument '{key}' is not supported in a compiled function")
        raise


def refuse(name: str, **given) -> None:
    """Raises for arguments that are not supported unless they are what NumPy has by default."""
    for key, value in given.items():
        if value is not None and value is not np._NoValue and value is not True:
            fail(UnsupportedError, f"np.{name}: the argument '{key}' is not supported in a compiled function"
                 + (": use np.where on the operand" if key == "where" else ""))  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------- axes and shapes


def axis_of(axis, rank: int) -> int:
    """One axis, made non-negative."""
    number = operator.index(axis)
    if not -rank <= number < rank:
        fail(np.exceptions.AxisError, f"axis {number} is out of bounds for array of dimension {rank}")
    return number % rank


def axes_of(axis, rank: int) -> tuple[int, ...] | None:
    """Axes as users give them (None, a number, a tuple), made non-negative; None stays."""
    if axis is None:
        return None
    if isinstance(axis, (tuple, list, range, np.ndarray)):
        axes = tuple(axis_of(a, rank) for a in axis)
        if len(set(axes)) != len(axes):
            fail(ValueError, "duplicate value in 'axis'")
        return axes
    return (axis_of(axis, rank),)


def size_of(t, n) -> Size:
    """An extent or an index as a size."""
    if n.__class__ is int:
        return n
    if n.__class__ is SymInt:
        return t.canonical(n.size)
    return operator.index(n)


def shape_of(t, shape) -> tuple[Size, ...]:
    """A shape as users give it."""
    if isinstance(shape, (tuple, list)):
        return tuple([size_of(t, n) for n in shape])
    if isinstance(shape, np.ndarray):
        return tuple(int(n) for n in shape.reshape(-1))
    if isinstance(shape, TracedArray) and shape.ndim:
        fail(TraceError, "a shape that is a traced array: shapes must be known without the arrays' values; use x.shape or arguments that are ints")
    return (size_of(t, shape),)


# ---------------------------------------------------------------------------------------------------------------- reductions


def _reduce(x, row: str, axis=None, keepdims=False, to: DType | None = None, **attrs) -> TracedArray:
    t = x._trace
    axes = axes_of(axis, x.ndim)
    keepdims = False if keepdims is np._NoValue else bool(keepdims)
    value = value_of(t, x, to or x._value.dtype)
    return wrap(t, t.emit(row, value, axes=axes, keepdims=keepdims, **attrs))


def _finish_reduction(result, out, name: str):
    if out is None:
        return result
    if not isinstance(out, TracedArray):
        fail(TraceError, f"np.{name}: out= is an array from outside the function: make it an argument")
    store(result._trace, out, result.value, name)
    return out


def _accumulation_type(x, ufunc, dtype) -> DType:
    if dtype is not None:
        return dtype_of(dtype)
    kind = x._value.dtype
    if kind.kind in "b":
        return dt.i64
    if kind.is_integer and kind.bits < 64:
        return dt.i64 if kind.kind == "i" else dt.u64
    return kind


def _selected(x, where_, neutral, to: DType) -> TracedArray:
    """``x`` where the mask holds, elsewhere ``neutral``."""
    if where_ is True or where_ is np._NoValue:
        return x
    t = x._trace
    mask = asarray(where_, bool)
    value = t.emit("where", *aligned(t, [mask.value, value_of(t, x, to), t.builder.constant(neutral, to)]))
    return TracedArray(t, value)


def _with_initial(result, initial, ufunc):
    if initial is np._NoValue or initial is None:
        return result
    combined = call_ufunc(ufunc, (result, initial))
    return combined if combined._value.dtype is result._value.dtype else asarray(combined, result.dtype)


@implements(np.sum)
def sum(a, axis=None, dtype=None, out=None, keepdims=False, initial=np._NoValue, where=True):
    x = asarray(a)
    to = _accumulation_type(x, np.add, dtype)
    result = _reduce(_selected(x, where, 0, to), "any" if to is dt.bool_ else "sum", axis, keepdims, to)
    return _finish_reduction(_with_initial(result, initial, np.add), out, "sum")


@implements(np.prod)
def prod(a, axis=None, dtype=None, out=None, keepdims=False, initial=np._NoValue, where=True):
    x = asarray(a)
    to = _accumulation_type(x, np.multiply, dtype)
    result = _reduce(_selected(x, where, 1, to), "all" if to is dt.bool_ else "prod", axis, keepdims, to)
    return _finish_reduction(_with_initial(result, initial, np.multiply), out, "prod")


def _extreme(name: str, row: str, ufunc, a, axis, out, keepdims, initial, where_):
    x = asarray(a)
    t = x._trace
    if where_ is not True and where_ is not np._NoValue:
        if initial is np._NoValue:
            fail(ValueError, f"reduction operation '{ufunc.__name__}' does not have an identity, so to use a where mask one has to specify 'initial'")
        x = _selected(x, where_, initial, x._value.dtype)
    axes = axes_of(axis, x.ndim)
    if initial is np._NoValue and any(n == 0 for k, n in enumerate(t.shape(x._value)) if axes is None or k in axes):
        fail(ValueError, f"zero-size array to reduction operation {ufunc.__name__} which has no identity")
    if initial is not np._NoValue and any(n == 0 for n in t.shape(x._value)):
        shape = [1 if axes is None or k in axes else n for k, n in enumerate(t.shape(x._value)) if keepdims or not (axes is None or k in axes)]
        return full(tuple(shape), initial, x.dtype)
    return _finish_reduction(_with_initial(_reduce(x, row, axis, keepdims), initial, ufunc), out, name)


@implements(np.max, np.amax)
def max(a, axis=None, out=None, keepdims=False, initial=np._NoValue, where=True):
    return _extreme("max", "max", np.maximum, a, axis, out, keepdims, initial, where)


@implements(np.min, np.amin)
def min(a, axis=None, out=None, keepdims=False, initial=np._NoValue, where=True):
    return _extreme("min", "min", np.minimum, a, axis, out, keepdims, initial, where)


@implements(np.any)
def any_(a, axis=None, out=None, keepdims=False, where=True):
    x = asarray(a)
    return _finish_reduction(_reduce(_selected(x, where, 0, x._value.dtype), "any", axis, keepdims), out, "any")


@implements(np.all)
def all_(a, axis=None, out=None, keepdims=False, where=True):
    x = asarray(a)
    return _finish_reduction(_reduce(_selected(x, where, 1, x._value.dtype), "all", axis, keepdims), out, "all")


def _float_type(x, dtype=None) -> DType:
    """The type that NumPy takes means in."""
    if dtype is not None:
        found = dtype_of(dtype)
        if not found.is_float:
            fail(UnsupportedError, f"a mean or variance in dtype {found}: use a float dtype")
        return found
    return x._value.dtype if x._value.dtype.is_float else dt.f64


@implements(np.mean)
def mean(a, axis=None, dtype=None, out=None, keepdims=False, where=True):
    x = asarray(a)
    to = _float_type(x, dtype)
    if where is not True and where is not np._NoValue:
        count = sum(broadcast_to(asarray(where, bool), x.shape), axis, to, keepdims=keepdims)
        return _finish_reduction(sum(x, axis, to, keepdims=keepdims, where=where) / count, out, "mean")
    return _finish_reduction(_reduce(x, "mean", axis, keepdims, to), out, "mean")


def _variance(row: str, a, axis, dtype, out, ddof, keepdims, where_, mean_, correction):
    refuse(row, where=where_, mean=mean_)
    if correction is not np._NoValue:
        ddof = correction
    x = asarray(a)
    ddof = concrete(ddof)
    return _finish_reduction(_reduce(x, row, axis, keepdims, _float_type(x, dtype), correction=ddof), out, row)


@implements(np.var)
def var(a, axis=None, dtype=None, out=None, ddof=0, keepdims=False, *, where=True, mean=np._NoValue, correction=np._NoValue):
    return _variance("var", a, axis, dtype, out, ddof, keepdims, where, mean, correction)


@implements(np.std)
def std(a, axis=None, dtype=None, out=None, ddof=0, keepdims=False, *, where=True, mean=np._NoValue, correction=np._NoValue):
    return _variance("std", a, axis, dtype, out, ddof, keepdims, where, mean, correction)


def _argument(row: str, a, axis, out, keepdims):
    x = asarray(a)
    t = x._trace
    axes = axes_of(axis, x.ndim)
    if any(n == 0 for k, n in enumerate(t.shape(x._value)) if axes is None or k in axes):
        fail(ValueError, f"attempt to get {row} of an empty sequence")
    return _finish_reduction(_reduce(x, row, None if axis is None else operator.index(axis), keepdims), out, row)


@implements(np.argmax)
def argmax(a, axis=None, out=None, *, keepdims=False):
    return _argument("argmax", a, axis, out, keepdims)


@implements(np.argmin)
def argmin(a, axis=None, out=None, *, keepdims=False):
    return _argument("argmin", a, axis, out, keepdims)


@implements(np.count_nonzero)
def count_nonzero(a, axis=None, *, keepdims=False):
    return sum(asarray(a) != 0, axis, np.int64, keepdims=keepdims)


@implements(np.ptp)
def ptp(a, axis=None, out=None, keepdims=False):
    x = asarray(a)
    return _finish_reduction(max(x, axis, keepdims=keepdims) - min(x, axis, keepdims=keepdims), out, "ptp")


@implements(np.average)
def average(a, axis=None, weights=None, returned=False, *, keepdims=False):
    x = asarray(a)
    if weights is None:
        result = mean(x, axis, keepdims=keepdims)
        if not returned:
            return result
        t = x._trace
        axes = axes_of(axis, x.ndim)
        count = t.sym(sz.product(n for k, n in enumerate(x._value.shape) if axes is None or k in axes))
        return result, full_like(result, count)
    w = asarray(weights)
    kinds = (x.dtype, w.dtype) + ((np.dtype("f8"),) if not x._value.dtype.is_float else ())
    to = result_type_of(kinds)
    if w.ndim != x.ndim or w.shape != x.shape:
        if axis is None:
            fail(TypeError, "Axis must be specified when shapes of a and weights differ.")
        axes = axes_of(axis, x.ndim)
        w = reshape(w, tuple(x.shape[k] if k in axes else 1 for k in range(x.ndim))) if len(axes) == 1 else w
    total = sum(broadcast_to(w, x.shape), axis, to, keepdims=keepdims)
    result = sum(asarray(x, to) * asarray(w, to), axis, keepdims=keepdims) / total
    return (result, total) if returned else result


def _nan_aware(x, neutral):
    return where(isnan_(x), x.dtype.type(neutral), x) if x._value.dtype.is_float else x


def isnan_(x):
    return call_ufunc(np.isnan, (x,))


@implements(np.nansum)
def nansum(a, axis=None, dtype=None, out=None, keepdims=False, initial=np._NoValue, where=True):
    return sum(_nan_aware(asarray(a), 0), axis, dtype, out, keepdims, initial, where)


@implements(np.nanprod)
def nanprod(a, axis=None, dtype=None, out=None, keepdims=False, initial=np._NoValue, where=True):
    return prod(_nan_aware(asarray(a), 1), axis, dtype, out, keepdims, initial, where)


@implements(np.nanmax)
def nanmax(a, axis=None, out=None, keepdims=False):
    x = asarray(a)
    if not x._value.dtype.is_float:
        return max(x, axis, out, keepdims)
    nans = isnan_(x)
    result = max(where(nans, x.dtype.type(-np.inf), x), axis, keepdims=keepdims)
    return where(all_(nans, axis, keepdims=keepdims), x.dtype.type(np.nan), result)


@implements(np.nanmin)
def nanmin(a, axis=None, out=None, keepdims=False):
    x = asarray(a)
    if not x._value.dtype.is_float:
        return min(x, axis, out, keepdims)
    nans = isnan_(x)
    result = min(where(nans, x.dtype.type(np.inf), x), axis, keepdims=keepdims)
    return where(all_(nans, axis, keepdims=keepdims), x.dtype.type(np.nan), result)


@implements(np.nanmean)
def nanmean(a, axis=None, dtype=None, out=None, keepdims=False):
    x = asarray(a)
    to = _float_type(x, dtype)
    count = sum(~isnan_(x), axis, to, keepdims=keepdims)
    return nansum(asarray(x, to), axis, keepdims=keepdims) / count


@implements(np.nanvar)
def nanvar(a, axis=None, dtype=None, out=None, ddof=0, keepdims=False):
    x = asarray(a)
    x = asarray(x, _float_type(x, dtype))
    valid = ~isnan_(x)
    count = sum(valid, axis, x.dtype, keepdims=True)
    d = where(valid, x - nansum(x, axis, keepdims=True) / count, x.dtype.type(0))
    left = sum(valid, axis, x.dtype, keepdims=keepdims) - ddof
    return where(left > 0, sum(d * d, axis, keepdims=keepdims) / left, x.dtype.type(np.nan))


@implements(np.nanstd)
def nanstd(a, axis=None, dtype=None, out=None, ddof=0, keepdims=False):
    return call_ufunc(np.sqrt, (nanvar(a, axis, dtype, None, ddof, keepdims),))


_REDUCTIONS = {np.add: sum, np.multiply: prod, np.maximum: max, np.minimum: min, np.logical_or: any_, np.logical_and: all_}
_REDUCTIONS_WITHOUT_DTYPE = (np.maximum, np.minimum, np.logical_or, np.logical_and)
for _f in _REDUCTIONS_WITHOUT_DTYPE:

    def _reduction_of(x, axis=0, dtype=None, out=None, _function=_REDUCTIONS[_f], **kwargs):
        result = _function(x if dtype is None else asarray(x, dtype), axis=axis, out=out, **kwargs)
        return result

    _REDUCTIONS[_f] = _reduction_of


# ---------------------------------------------------------------------------------------------------------------- scans and sorts


def _scan(row: str, a, axis, to: DType | None, out):
    x = asarray(a)
    if axis is None:
        x, axis = reshape(x, -1), 0
    t = x._trace
    value = t.emit(row, value_of(t, x, to or x._value.dtype), axis=axis_of(axis, x.ndim))
    return _finish_reduction(TracedArray(t, value), out, row)


@implements(np.cumsum)
def cumsum(a, axis=None, dtype=None, out=None):
    return _scan("cumsum", a, axis, _accumulation_type(asarray(a), np.add, dtype), out)


@implements(np.cumprod)
def cumprod(a, axis=None, dtype=None, out=None):
    return _scan("cumprod", a, axis, _accumulation_type(asarray(a), np.multiply, dtype), out)


def _cummax(a, axis=0, dtype=None, out=None):
    return _scan("cummax", a, axis, None if dtype is None else dtype_of(dtype), out)


def _cummin(a, axis=0, dtype=None, out=None):
    return _scan("cummin", a, axis, None if dtype is None else dtype_of(dtype), out)


_SCANS = {np.add: cumsum, np.multiply: cumprod, np.maximum: _cummax, np.minimum: _cummin}


@implements(np.argsort)
def argsort(a, axis=-1, kind=None, order=None, *, stable=None):
    x = asarray(a)
    if axis is None:
        x, axis = reshape(x, -1), 0
    return TracedArray(x._trace, x._trace.emit("argsort", x.value, axis=axis_of(axis, x.ndim)))


@implements(np.sort)
def sort(a, axis=-1, kind=None, order=None, *, stable=None):
    x = asarray(a)
    if axis is None:
        x, axis = reshape(x, -1), 0
    return take_along_axis(x, argsort(x, axis), axis)


@implements(np.median)
def median(a, axis=None, out=None, overwrite_input=False, keepdims=False):
    x = asarray(a)
    axes = tuple(range(x.ndim)) if axis is None else axes_of(axis, x.ndim)
    kept = [k for k in range(x.ndim) if k not in axes]
    flat = reshape(transpose(x, (*kept, *axes)), tuple(x.shape[k] for k in kept) + (-1,))
    ordered = sort(flat, -1)
    n = ordered.shape[-1]
    middle = mean(ordered[..., (n - 1) // 2 : n // 2 + 1], -1)
    if x._value.dtype.is_float:
        middle = where(isnan_(ordered[..., -1]), middle.dtype.type(np.nan), middle)
    if keepdims:
        middle = reshape(middle, tuple(1 if k in axes else m for k, m in enumerate(x.shape)))
    return _finish_reduction(middle, out, "median")


# ---------------------------------------------------------------------------------------------------------------- elementwise functions


@implements(np.where)
def where(condition, *branches):
    if len(branches) != 2:
        fail(TraceError, "np.where(condition) alone gives as many positions as there are true values, a shape that depends on values: "
             "use np.where(condition, a, b)")  # fmt: skip
    t = trace_of(condition, *branches)
    condition = asarray(condition, bool)
    a, b = (operand(t, x) for x in branches)
    to = result_type_of((kind_of(a), kind_of(b)))
    values = aligned(t, [condition.value, value_of(t, a, to, True), value_of(t, b, to, True)])
    return wrap(t, t.emit("where", *values))


_CLIP = np._core.umath.clip  # what np.clip promotes by, with both bounds


@implements(np.clip)
def clip(a, a_min=np._NoValue, a_max=np._NoValue, out=None, *, min=np._NoValue, max=np._NoValue, dtype=None):
    low = a_min if min is np._NoValue else min
    high = a_max if max is np._NoValue else max
    low, high = (None if x is np._NoValue else x for x in (low, high))
    t = trace_of(a, low, high)
    x = operand(t, a)
    bounds = [None if y is None else operand(t, y) for y in (low, high)]
    if kind_of(x) not in (int, float) and dt.of(kind_of(x)).is_integer:  # a Python int beyond the type bounds nothing
        low, high = _int_range(dt.of(kind_of(x)))
        bounds = [None if y.__class__ is int and (y <= low if k == 0 else y >= high) else y for k, y in enumerate(bounds)]
    given = [y for y in (x, *bounds) if y is not None]
    if dtype is not None:
        to = dtype_of(dtype)
    elif len(given) == 1:
        to = result_type_of((kind_of(x),))
    else:
        to = _resolve(_CLIP if len(given) == 3 else np.maximum, given)[-1]
    value = value_of(t, x, to)
    for row, bound in zip(("maximum", "minimum"), bounds):
        if bound is not None:
            value = t.emit(row, *aligned(t, [value, value_of(t, bound, to)]))
    if bounds == [None, None]:
        value = _fresh(t, value)
    return _finish_reduction(wrap(t, value), out, "clip")


@implements(np.round, np.around)
def round(a, decimals=0, out=None):
    x = asarray(a)
    t, to, decimals = x._trace, x._value.dtype, operator.index(decimals)
    if to is dt.bool_:
        return _finish_reduction(wrap(t, value_of(t, x, dt.f16)), out, "round")
    if to.is_integer:
        if decimals >= 0:
            return _finish_reduction(wrap(t, _fresh(t, x.value)), out, "round")
        unit = 10**-decimals
        half = asarray(call_ufunc(np.rint, (asarray(x, np.float64) / unit,)) * unit, x.dtype)
        return _finish_reduction(half, out, "round")
    if decimals == 0:
        return _finish_reduction(wrap(t, t.emit("round", x.value)), out, "round")
    unit = t.builder.constant(10.0 ** abs(decimals), to)
    first, second = ("mul", "div") if decimals > 0 else ("div", "mul")
    return _finish_reduction(wrap(t, t.emit(second, t.emit("round", t.emit(first, x.value, unit)), unit)), out, "round")


@implements(np.fix)
def fix(x, out=None):
    return _finish_reduction(call_ufunc(np.trunc, (x,)), out, "fix")


@implements(np.isposinf)
def isposinf(x, out=None):
    x = asarray(x)
    return _finish_reduction(wrap(x._trace, x._trace.emit("isposinf", x.value)), out, "isposinf")


@implements(np.isneginf)
def isneginf(x, out=None):
    x = asarray(x)
    return _finish_reduction(wrap(x._trace, x._trace.emit("isneginf", x.value)), out, "isneginf")


@implements(np.isreal)
def isreal(x):
    x = asarray(x)
    return wrap(x._trace, x._trace.emit("isreal", x.value))


@implements(np.real)
def real(val):
    return asarray(val)


@implements(np.imag)
def imag(val):
    return zeros_like(val)


@implements(np.iscomplexobj)
def iscomplexobj(x):
    return asarray(x)._value.dtype.kind == "c"


@implements(np.isrealobj)
def isrealobj(x):
    return not iscomplexobj(x)


@implements(np.nan_to_num)
def nan_to_num(x, copy=True, nan=0.0, posinf=None, neginf=None):
    x = asarray(x)
    if not x._value.dtype.is_float:
        return wrap(x._trace, _fresh(x._trace, x.value))
    info = ml_dtypes.finfo(x.dtype)
    kind = x.dtype.type
    y = where(call_ufunc(np.isnan, (x,)), kind(nan), x)
    y = where(isposinf(x), kind(info.max if posinf is None else posinf), y)
    y = where(isneginf(x), kind(info.min if neginf is None else neginf), y)
    if not copy:
        store(x._trace, x, y.value, "nan_to_num")
        return x
    return y


@implements(np.isclose)
def isclose(a, b, rtol=1e-05, atol=1e-08, equal_nan=False):
    t = trace_of(a, b, rtol, atol)
    x, y = asarray(a) if contains_traced(a) else operand(t, a), asarray(b) if contains_traced(b) else operand(t, b)
    y = asarray(y)
    y = y if y._value.dtype.is_float else asarray(y, np.float64)
    close = (call_ufunc(np.absolute, (x - y,)) <= atol + rtol * call_ufunc(np.absolute, (y,))) & call_ufunc(np.isfinite, (y,)) | (x == y)
    if equal_nan:
        close = close | (isnan_(asarray(x)) & isnan_(y))
    return close


@implements(np.allclose)
def allclose(a, b, rtol=1e-05, atol=1e-08, equal_nan=False):
    return all_(isclose(a, b, rtol, atol, equal_nan))


@implements(np.array_equal)
def array_equal(a1, a2, equal_nan=False):
    a, b = asarray(a1), asarray(a2)
    if a.ndim != b.ndim or any(n != m for n, m in zip(a.shape, b.shape)):
        return False
    same = a == b
    if equal_nan and a._value.dtype.is_float and b._value.dtype.is_float:
        same = same | (isnan_(a) & isnan_(b))
    return all_(same)


@implements(np.sinc)
def sinc(x):
    x = asarray(x)
    x = x if x._value.dtype.is_float else asarray(x, np.float64)
    y = np.pi * where(x == 0, x.dtype.type(1.0e-20), x)
    return call_ufunc(np.sin, (y,)) / y


@implements(np.select)
def select(condlist, choicelist, default=0):
    t = trace_of(*condlist, *choicelist, default)
    choices = [operand(t, x) for x in [*choicelist, default]]
    to = result_type_of(tuple(kind_of(x) for x in choices))
    result = asarray(choices[-1], to)
    for condition, choice in zip(reversed(condlist), reversed(choices[:-1])):
        result = where(condition, asarray(choice, to), result)
    return result


@implements("astype")
def astype(x, dtype, /, *, copy=True, device=None):
    return x.astype(dtype, copy=copy)


@implements(np.copy)
def copy(a, order="K", subok=False):
    x = asarray(a)
    return TracedArray(x._trace, _fresh(x._trace, x.value))


@implements(np.can_cast)
def can_cast(from_, to, casting="safe"):
    return np.can_cast(from_.dtype if isinstance(from_, TracedArray) else from_, to, casting)


@implements(np.result_type)
def result_type(*arrays_and_dtypes):
    t = trace_of(*arrays_and_dtypes)
    kinds = []
    for x in arrays_and_dtypes:
        kinds.append(np.dtype(x) if isinstance(x, (type, str, np.dtype)) else kind_of(operand(t, x)))
    return result_type_of(tuple(kinds)).numpy


@implements(np.common_type)
def common_type(*arrays):
    kinds = tuple(asarray(a).dtype if asarray(a)._value.dtype.is_float else np.dtype("f8") for a in arrays)
    return result_type_of(kinds).numpy.type


@implements(np.min_scalar_type)
def min_scalar_type(a):
    return asarray(a).dtype


@implements(np.shape)
def shape(a):
    return asarray(a).shape


@implements(np.ndim)
def ndim(a):
    return asarray(a).ndim


@implements(np.size)
def size(a, axis=None):
    x = asarray(a)
    return x.size if axis is None else x.shape[axis_of(axis, x.ndim)]


# ---------------------------------------------------------------------------------------------------------------- shapes


@implements(np.reshape)
def reshape(a, /, shape=None, order="C", *, copy=None):
    x = asarray(a)
    t = x._trace
    if order == "F":
        target = shape if isinstance(shape, (tuple, list)) else (shape,)
        return transpose(reshape(transpose(x), tuple(reversed(target))))
    target = list(shape_of(t, shape))
    old = t.shape(x._value)
    numel = sz.product(old)
    unknown = [k for k, n in enumerate(target) if isinstance(n, int) and n == -1]
    shown = tuple(-1 if k in unknown else t.hint(n) for k, n in enumerate(target))
    message = f"cannot reshape array of size {t.hint(numel)} into shape ({','.join(map(str, shown))}{',' if len(shown) == 1 else ''})"
    if len(unknown) > 1:
        fail(ValueError, "can only specify one unknown dimension")
    if unknown:
        known = sz.product(n for k, n in enumerate(target) if k not in unknown)
        if (t.hint(known) == 0) or t.hint(numel) % t.hint(known):
            fail(ShapeError, message)
        exact = sz.quotient(numel, known)
        if exact is None:
            t.unify(sz.mod(numel, known), 0)
            numel, known = t.canonical(numel), t.canonical(known)
            exact = sz.floordiv(numel, known)
        target[unknown[0]] = t.extent(exact)
        target = [t.canonical(n) for n in target]
    elif any(isinstance(n, int) and n < 0 for n in target):
        fail(ShapeError, "negative dimensions are not allowed")
    elif not t.unify(numel, sz.product(target)):
        fail(ShapeError, message)
    else:
        target = [t.canonical(n) for n in target]
    if tuple(target) == t.shape(x._value):
        return x.alias()
    if copy:
        x = TracedArray(t, _fresh(t, x.value))
    return x.step(Reshape(tuple(target)))


@implements(np.ravel)
def ravel(a, order="C"):
    if order not in ("C", "K", "A"):
        return reshape(a, -1, order)
    return reshape(a, -1)


@implements(np.transpose, np.permute_dims)
def transpose(a, axes=None):
    x = asarray(a)
    if axes is None:
        axes = tuple(reversed(range(x.ndim)))
    axes = axes_of(tuple(axes), x.ndim)
    if len(axes) != x.ndim:
        fail(ValueError, "axes don't match array")
    return x.alias() if axes == tuple(range(x.ndim)) else x.step(Permute(axes))


@implements(np.swapaxes)
def swapaxes(a, axis1, axis2):
    x = asarray(a)
    order = list(range(x.ndim))
    i, j = axis_of(axis1, x.ndim), axis_of(axis2, x.ndim)
    order[i], order[j] = order[j], order[i]
    return transpose(x, order)


@implements(np.matrix_transpose, np.linalg.matrix_transpose)
def matrix_transpose(x, /):
    return swapaxes(x, -1, -2)


@implements(np.moveaxis)
def moveaxis(a, source, destination):
    x = asarray(a)
    source, destination = axes_of(source, x.ndim), axes_of(destination, x.ndim)
    if len(source) != len(destination):
        fail(ValueError, "`source` and `destination` arguments must have the same number of elements")
    order = [k for k in range(x.ndim) if k not in source]
    for where_to, axis in sorted(zip(destination, source)):
        order.insert(where_to, axis)
    return transpose(x, order)


@implements(np.rollaxis)
def rollaxis(a, axis, start=0):
    x = asarray(a)
    axis = axis_of(axis, x.ndim)
    start = operator.index(start)
    start = start + x.ndim if start < 0 else start
    order = [k for k in range(x.ndim) if k != axis]
    order.insert(start - 1 if axis < start else start, axis)
    return transpose(x, order)


@implements(np.expand_dims)
def expand_dims(a, axis):
    x = asarray(a)
    rank = x.ndim + (len(axis) if isinstance(axis, (tuple, list)) else 1)
    return x.step(ExpandDims(tuple(sorted(axes_of(axis, rank)))))


@implements(np.squeeze)
def squeeze(a, axis=None):
    x = asarray(a)
    extents = x._trace.shape(x._value)
    axes = tuple(k for k, n in enumerate(extents) if n == 1) if axis is None else axes_of(axis, x.ndim)
    if any(extents[k] != 1 for k in axes):
        fail(ShapeError, "cannot select an axis to squeeze out which has size not equal to one")
    return x.step(Squeeze(tuple(sorted(axes)))) if axes else x.alias()


@implements(np.broadcast_to)
def broadcast_to(array, shape, subok=False):
    x = asarray(array)
    t = x._trace
    target, own = shape_of(t, shape), t.shape(x._value)
    ok = len(own) <= len(target)
    for n, m in zip(reversed(own), reversed(target)):
        ok = ok and (n == 1 or t.unify(n, m))
    if not ok:
        fail(ShapeError, "operands could not be broadcast together with remapped shapes [original->remapped]: "
             f"{t.hints_of(own)} and requested shape {t.hints_of(target)}")  # fmt: skip
    target = tuple(map(t.canonical, target))
    return x.step(Broadcast(target)) if t.shape(x._value) != target else x.alias()


@implements(np.broadcast_arrays)
def broadcast_arrays(*args, subok=False):
    arrays = [asarray(x) for x in args]
    shape = full_shape(arrays[0]._trace, [x._value for x in arrays])
    return tuple(broadcast_to(x, [x._trace.sym(n) for n in shape]) for x in arrays)


@implements(np.broadcast_shapes)
def broadcast_shapes(*args):
    t = trace_of(*args)
    return tuple(t.sym(n) for n in broadcast_shape(t, [shape_of(t, s) for s in args]))


@implements(np.atleast_1d)
def atleast_1d(*arys):
    out = tuple(reshape(x, (1,)) if not x.ndim else x for x in map(asarray, arys))
    return out[0] if len(out) == 1 else out


@implements(np.atleast_2d)
def atleast_2d(*arys):
    out = []
    for x in map(asarray, arys):
        out.append(expand_dims(x, tuple(range(2 - x.ndim))) if x.ndim < 2 else x)
    return out[0] if len(out) == 1 else tuple(out)


@implements(np.atleast_3d)
def atleast_3d(*arys):
    out = []
    for x in map(asarray, arys):
        out.append(reshape(x, (1, 1, 1)) if x.ndim == 0 else expand_dims(x, (0, 2)) if x.ndim == 1 else expand_dims(x, 2) if x.ndim == 2 else x)
    return out[0] if len(out) == 1 else tuple(out)


def _joined(arrays, dtype=None) -> tuple:
    """Operands of one type."""
    t = trace_of(*arrays)
    arrays = [operand(t, x) for x in arrays]
    to = result_type_of(tuple(kind_of(x) for x in arrays)) if dtype is None else dtype_of(dtype)
    return t, [asarray(x) for x in arrays], to


@implements(np.concatenate, np.concat)
def concatenate(arrays, axis=0, out=None, *, dtype=None, casting="same_kind"):
    arrays = list(arrays)
    if not arrays:
        fail(ValueError, "need at least one array to concatenate")
    t, arrays, to = _joined(arrays, dtype)
    if axis is None:
        arrays, axis = [reshape(x, -1) for x in arrays], 0
    if any(x.ndim == 0 for x in arrays):
        fail(ValueError, "zero-dimensional arrays cannot be concatenated")
    rank = arrays[0].ndim
    axis = axis_of(axis, rank)
    for k, x in enumerate(arrays):
        if x.ndim != rank:
            fail(ShapeError, "all the input array dimensions except for the concatenation axis must match exactly, but along dimension 0, the array "
                 f"at index 0 has {rank} dimension(s) and the array at index {k} has {x.ndim} dimension(s)")  # fmt: skip
        for d, (n, m) in enumerate(zip(t.shape(arrays[0]._value), t.shape(x._value))):
            if d != axis and not t.unify(n, m):
                fail(ShapeError, f"all the input array dimensions except for the concatenation axis must match exactly, but along dimension {d}, "
                     f"the array at index 0 has size {t.hint(n)} and the array at index {k} has size {t.hint(m)}")  # fmt: skip
    values = [value_of(t, x, to) for x in arrays]
    if len(values) == 1:
        return _finish_reduction(wrap(t, _fresh(t, values[0])), out, "concatenate")
    made = t.emit("concatenate", *values, axis=axis)
    made.shape = tuple(t.canonical(n) for n in made.shape)
    return _finish_reduction(wrap(t, made), out, "concatenate")


@implements(np.stack)
def stack(arrays, axis=0, out=None, *, dtype=None, casting="same_kind"):
    t, arrays, to = _joined(list(arrays), dtype)
    axis = axis_of(axis, arrays[0].ndim + 1)
    for x in arrays[1:]:
        if x.ndim != arrays[0].ndim or not all(t.unify(n, m) for n, m in zip(t.shape(x._value), t.shape(arrays[0]._value))):
            fail(ShapeError, "all input arrays must have the same shape")
    return concatenate([expand_dims(x, axis) for x in arrays], axis, out, dtype=to.numpy)


@implements(np.vstack)
def vstack(tup, *, dtype=None, casting="same_kind"):
    arrays = [atleast_2d(x) for x in tup]
    return concatenate(arrays, 0, dtype=dtype)


@implements(np.hstack)
def hstack(tup, *, dtype=None, casting="same_kind"):
    arrays = [atleast_1d(x) for x in tup]
    return concatenate(arrays, 0 if arrays[0].ndim == 1 else 1, dtype=dtype)


@implements(np.dstack)
def dstack(tup):
    return concatenate([atleast_3d(x) for x in tup], 2)


@implements(np.column_stack)
def column_stack(tup):
    return concatenate([atleast_2d(x).T if asarray(x).ndim < 2 else x for x in tup], 1)


@implements(np.append)
def append(arr, values, axis=None):
    if axis is None:
        return concatenate([ravel(arr), ravel(values)])
    return concatenate([arr, values], axis)


def _pieces(x, axis: int, sizes) -> list:
    """Consecutive slices, as views."""
    t, shape = x._trace, x._value.shape
    out, start = [], 0
    for n in sizes:
        n = t.extent(n)
        starts = tuple(start if k == axis else 0 for k in range(len(shape)))
        extents = tuple(n if k == axis else m for k, m in enumerate(t.shape(x._value)))
        out.append(x.step(Slice(starts, extents, (1,) * len(shape))))
        start = start + n
    return out


def _split(a, indices_or_sections, axis, even: bool):
    x = asarray(a)
    t = x._trace
    axis = axis_of(axis, x.ndim)
    extent = t.shape(x._value)[axis]
    if isinstance(indices_or_sections, (tuple, list, np.ndarray)):
        points = [slice_bound(t, size_of(t, p), extent) for p in indices_or_sections]
        bounds = [0, *points, extent]
        return _pieces(x, axis, [b - a if t.decide(a, "<", b) else 0 for a, b in zip(bounds, bounds[1:])])
    sections = operator.index(indices_or_sections)
    if sections <= 0:
        fail(ValueError, "number sections must be larger than 0.")
    if even or t.hint(extent) % sections == 0:
        if not t.unify(sz.mod(extent, sections), 0) if even else not t.decide(sz.mod(extent, sections), "==", 0):
            fail(ShapeError, "array split does not result in an equal division")
        return _pieces(x, axis, [sz.floordiv(t.canonical(extent), sections)] * sections)
    extent = t.concretise(extent)
    each, extra = divmod(extent, sections)
    return _pieces(x, axis, [each + 1] * extra + [each] * (sections - extra))


@implements(np.split)
def split(ary, indices_or_sections, axis=0):
    return _split(ary, indices_or_sections, axis, True)


@implements(np.array_split)
def array_split(ary, indices_or_sections, axis=0):
    return _split(ary, indices_or_sections, axis, False)


@implements(np.vsplit)
def vsplit(ary, indices_or_sections):
    return split(ary, indices_or_sections, 0)


@implements(np.hsplit)
def hsplit(ary, indices_or_sections):
    return split(ary, indices_or_sections, 1 if asarray(ary).ndim > 1 else 0)


@implements(np.dsplit)
def dsplit(ary, indices_or_sections):
    return split(ary, indices_or_sections, 2)


@implements("unstack")
def unstack(x, /, *, axis=0):
    x = moveaxis(x, axis, 0)
    return tuple(x[k] for k in range(len(x)))


@implements(np.flip)
def flip(m, axis=None):
    x = asarray(m)
    t, shape = x._trace, x._trace.shape(asarray(m)._value)
    axes = axes_of(axis, x.ndim) if axis is not None else tuple(range(x.ndim))
    if not axes or not shape:
        return x.alias()
    start = tuple(n - 1 if k in axes and n != 0 else 0 for k, n in enumerate(shape))
    step = tuple(-1 if k in axes and n not in (0, 1) else 1 for k, n in enumerate(shape))
    return x.step(Slice(start, shape, step))


@implements(np.fliplr)
def fliplr(m):
    return flip(m, 1)


@implements(np.flipud)
def flipud(m):
    return flip(m, 0)


@implements(np.rot90)
def rot90(m, k=1, axes=(0, 1)):
    x = asarray(m)
    a, b = axes_of(tuple(axes), x.ndim)
    k = operator.index(k) % 4
    if k == 0:
        return x
    if k == 2:
        return flip(x, (a, b))
    return swapaxes(flip(x, b), a, b) if k == 1 else flip(swapaxes(x, a, b), b)


@implements(np.roll)
def roll(a, shift, axis=None):
    x = asarray(a)
    if axis is None:
        return reshape(roll(reshape(x, -1), shift, 0), x.shape)
    axes = axis if isinstance(axis, (tuple, list)) else (axis,)
    shifts = shift if isinstance(shift, (tuple, list)) else (shift,) * len(axes)
    axes = axes if len(axes) > 1 else tuple(axes) * len(shifts)
    t = x._trace
    x = TracedArray(t, _fresh(t, x.value))
    for s, ax in zip(shifts, axes):
        ax = axis_of(ax, x.ndim)
        extent = t.shape(x._value)[ax]
        s = size_of(t, s)
        if extent in (0, 1) or s == 0:
            continue
        if isinstance(s, int) and t.decide(extent, ">", abs(s)):
            cut = s if s > 0 else extent + s
        else:
            cut = t.concretise(s) % t.concretise(extent)
            extent = t.canonical(extent)
        if cut == 0:
            continue
        head, tail = _pieces(x, ax, [extent - cut, cut])
        x = concatenate([tail, head], ax)
    return x


@implements(np.tile)
def tile(A, reps):
    x = asarray(A)
    t = x._trace
    reps = [size_of(t, r) for r in (reps if isinstance(reps, (tuple, list)) else (reps,))]
    rank = _max(x.ndim, len(reps))
    reps = [1] * (rank - len(reps)) + reps
    shape = (1,) * (rank - x.ndim) + t.shape(x._value)
    between, dims = [], []
    for r, n in zip(reps, shape):
        between.append(r)
        dims.append(len(between))
        between.append(n)
    value = t.emit("reshape", x.value, shape=shape) if rank != x.ndim else x.value
    value = t.emit("broadcast_in_dim", value, shape=tuple(between), dims=tuple(dims))
    value = t.emit("reshape", value, shape=tuple(t.extent(sz.mul(r, n)) for r, n in zip(reps, shape)))
    return TracedArray(t, value)


@implements(np.repeat)
def repeat(a, repeats, axis=None):
    x = asarray(a)
    if axis is None:
        x, axis = reshape(x, -1), 0
    if isinstance(repeats, TracedArray) and repeats.ndim or isinstance(repeats, (list, tuple, np.ndarray)) and np.size(repeats) != 1:
        fail(UnsupportedError, "np.repeat with an array of counts has a shape that depends on values: use one count")
    t = x._trace
    axis, count = axis_of(axis, x.ndim), size_of(t, repeats if not isinstance(repeats, (list, tuple, np.ndarray)) else int(np.asarray(repeats).item()))
    shape = t.shape(x._value)
    between = shape[: axis + 1] + (count,) + shape[axis + 1 :]
    dims = tuple(k if k <= axis else k + 1 for k in range(len(shape)))
    value = t.emit("broadcast_in_dim", x.value, shape=between, dims=dims)
    value = t.emit("reshape", value, shape=shape[:axis] + (t.extent(sz.mul(shape[axis], count)),) + shape[axis + 1 :])
    return TracedArray(t, value)


@implements(np.pad)
def pad(array, pad_width, mode="constant", constant_values=0, **kwargs):
    x = asarray(array)
    t = x._trace
    if isinstance(pad_width, dict):
        pad_width = [pad_width.get(k, pad_width.get(k - x.ndim, (0, 0))) for k in range(x.ndim)]
    widths = _pairs(pad_width, x.ndim, "pad_width", lambda n: size_of(t, n))
    if any(isinstance(n, int) and n < 0 for pair in widths for n in pair):
        fail(ValueError, "index can't contain negative values")
    if mode == "edge" or (mode in ("reflect", "wrap", "symmetric") and not kwargs.get("reflect_type", "even") == "odd"):
        return _pad_by_index(x, widths, mode)
    if mode not in ("constant", "empty"):
        fail(UnsupportedError, f"np.pad with mode '{mode}' is not supported in a compiled function: use constant, edge, reflect, symmetric or wrap")
    values = _pairs(constant_values, x.ndim, "constant_values", lambda n: n)
    result, shape = x.value, t.shape(x._value)
    flat = {id(v): v for pair in values for v in pair}
    if len({repr(v) for v in flat.values()}) == 1:
        low, high = zip(*widths) if widths else ((), ())
        fill = value_of(t, operand(t, next(iter(flat.values()))), x._value.dtype, True)
        return TracedArray(t, _sized(t, t.emit("pad", result, fill, low=tuple(low), high=tuple(high))))
    for k in range(len(shape)):
        for side in (0, 1):
            if widths[k][side] != 0:
                low = tuple(widths[k][0] if side == 0 and d == k else 0 for d in range(len(shape)))
                high = tuple(widths[k][1] if side == 1 and d == k else 0 for d in range(len(shape)))
                result = t.emit("pad", result, value_of(t, operand(t, values[k][side]), x._value.dtype, True), low=low, high=high)
    return TracedArray(t, _sized(t, result))


def _sized(t, value: Value) -> Value:
    """``value`` with extents of 0 and 1 as ints."""
    shape = tuple(t.extent(n) for n in value.shape)
    if shape != value.shape:
        value.shape = shape
        value.type = Value(value.dtype, shape).type
    return value


def _pairs(given, rank: int, name: str, convert) -> list[tuple]:
    """NumPy's ways to spell a pair for each axis."""
    if isinstance(given, np.ndarray):
        given = given.tolist()
    if not isinstance(given, (tuple, list)):
        return [(convert(given),) * 2] * rank
    if len(given) == 1:
        given = given[0]
        if not isinstance(given, (tuple, list)):
            return [(convert(given),) * 2] * rank
        return [tuple(map(convert, given * 2 if len(given) == 1 else given))] * rank
    if not isinstance(given[0], (tuple, list)):
        if len(given) != 2:
            fail(ValueError, f"{name}: one number, a pair, or a pair for each of {rank} axes")
        return [tuple(map(convert, given))] * rank
    if len(given) != rank:
        fail(ValueError, f"{name} has {len(given)} pairs, the array {rank} axes")
    return [tuple(map(convert, pair)) * (2 if len(pair) == 1 else 1) for pair in given]


def _pad_by_index(x, widths, mode: str):
    t = x._trace
    for axis, (low, high) in enumerate(widths):
        if low == 0 and high == 0:
            continue
        n = t.shape(x._value)[axis]
        if n == 0:
            fail(ValueError, f"can't extend empty axis {axis} using modes other than 'constant' or 'empty'")
        total = t.extent(low + n + high)
        position = t.emit("sub", t.emit("iota", shape=(total,), axis=0, dtype=dt.i64), t.builder.size(low))
        if mode == "edge":
            position = t.emit("minimum", t.emit("maximum", position, t.builder.size(0)), t.builder.size(n - 1))
        elif mode == "wrap":
            position = t.emit("mod", position, t.builder.size(n))
        elif n == 1:
            position = t.emit("mul", position, t.builder.size(0))
        else:
            period = sz.mul(n, 2) - (2 if mode == "reflect" else 0)
            position = t.emit("mod", position, t.builder.size(period))
            mirrored = t.emit("sub", t.builder.size(period - (0 if mode == "reflect" else 1)), position)
            position = t.emit("minimum", position, mirrored)
        x = TracedArray(t, t.emit("take", x.value, position, axis=axis))
    return x


@implements(np.diff)
def diff(a, n=1, axis=-1, prepend=np._NoValue, append=np._NoValue):
    x = asarray(a)
    axis = axis_of(axis, x.ndim)
    ends = [None if e is np._NoValue else asarray(e) for e in (prepend, append)]
    ends = [e if e is None or e.ndim else broadcast_to(e, tuple(1 if k == axis else m for k, m in enumerate(x.shape))) for e in ends]
    parts = [p for p in (ends[0], x, ends[1]) if p is not None]
    x = concatenate(parts, axis) if len(parts) > 1 else x
    for _ in range(operator.index(n)):
        after, before = (x[(slice(None),) * axis + (slice(*bounds),)] for bounds in ((1, None), (None, -1)))
        x = call_ufunc(np.not_equal if x._value.dtype is dt.bool_ else np.subtract, (after, before))
    return x


def _band(x, k, keep_lower: bool):
    x = asarray(x)
    t = x._trace
    x = x if x.ndim > 1 else broadcast_to(x, (x.shape[0], x.shape[0]))
    n, m = t.shape(x._value)[-2:]
    row = t.emit("iota", shape=(n, 1), axis=0, dtype=dt.i64)
    column = t.emit("iota", shape=(1, m), axis=1, dtype=dt.i64)
    offset = value_of(t, operand(t, k), dt.i64)
    mask = t.emit("le" if keep_lower else "ge", column, t.emit("add", row, offset))
    zero = t.builder.constant(0, x._value.dtype)
    return wrap(t, t.emit("where", *aligned(t, [mask, x.value, zero])))


@implements(np.tril)
def tril(m, k=0):
    return _band(m, k, True)


@implements(np.triu)
def triu(m, k=0):
    return _band(m, k, False)


@implements(np.diagonal, np.linalg.diagonal)
def diagonal(a, offset=0, axis1=0, axis2=1):
    x = asarray(a)
    x = moveaxis(x, (axis1, axis2), (-2, -1))
    t = x._trace
    offset = operator.index(offset)
    n, m = t.shape(x._value)[-2:]
    n, m = (n, m - offset) if offset >= 0 else (n + offset, m)
    length = t.extent(n if t.decide(n, "<=", m) else m)
    columns = t.emit("iota", shape=(length,), axis=0, dtype=dt.i64)
    rows_at, columns_at = (columns, t.emit("add", columns, t.builder.size(offset))) if offset >= 0 else (t.emit("sub", columns, t.builder.size(offset)), columns)  # fmt: skip
    width = t.shape(x._value)[-1]
    flat = reshape(x, x.shape[:-2] + (-1,))
    index = t.emit("add", t.emit("mul", rows_at, t.builder.size(width)), columns_at)
    return TracedArray(t, t.emit("take", flat.value, index, axis=flat.ndim - 1))


@implements(np.diag)
def diag(v, k=0):
    x = asarray(v)
    if x.ndim == 2:
        return diagonal(x, k)
    if x.ndim != 1:
        fail(ValueError, "Input must be 1- or 2-d.")
    t, k = x._trace, operator.index(k)
    n = t.shape(x._value)[0]
    side = t.extent(n + abs(k))
    row = t.emit("iota", shape=(side, 1), axis=0, dtype=dt.i64)
    column = t.emit("iota", shape=(1, side), axis=1, dtype=dt.i64)
    on = t.emit("eq", column, t.emit("add", row, t.builder.constant(k, dt.i64)))
    padded = t.emit("pad", x.value, t.builder.constant(0, x._value.dtype), low=(_max(k, 0),), high=(_max(-k, 0),))
    spread = t.emit("expand_dims", padded, axes=(0,))
    return wrap(t, t.emit("where", on, spread, t.builder.constant(0, x._value.dtype)))


@implements(np.trace, np.linalg.trace)
def trace(a, offset=0, axis1=0, axis2=1, dtype=None, out=None):
    return sum(diagonal(a, offset, axis1, axis2), -1, dtype, out)


@implements(np.meshgrid)
def meshgrid(*xi, copy=True, sparse=False, indexing="xy"):
    arrays = [reshape(x, -1) for x in xi]
    rank = len(arrays)
    out = [reshape(x, tuple(-1 if k == d else 1 for d in range(rank))) for k, x in enumerate(arrays)]
    if indexing == "xy" and rank > 1:
        out = [swapaxes(x, 0, 1) for x in out]
    return tuple(out) if sparse else tuple(wrap(x._trace, _fresh(x._trace, x.value)) for x in broadcast_arrays(*out))


# ---------------------------------------------------------------------------------------------------------------- products


@implements(np.dot)
def dot(a, b, out=None):
    x, y = asarray(a), asarray(b)
    if x.ndim == 0 or y.ndim == 0:
        return _finish_reduction(x * y, out, "dot")
    if y.ndim <= 2:
        return _finish_reduction(call_ufunc(np.matmul, (x, y)), out, "dot")
    return _finish_reduction(tensordot(x, y, ((x.ndim - 1,), (y.ndim - 2,))), out, "dot")


@implements(np.vdot)
def vdot(a, b, /):
    return dot(reshape(a, -1), reshape(b, -1))


@implements(np.inner)
def inner(a, b, /):
    x, y = asarray(a), asarray(b)
    return x * y if x.ndim == 0 or y.ndim == 0 else tensordot(x, y, ((-1,), (-1,)))


@implements(np.outer, np.linalg.outer)
def outer(a, b, out=None):
    return _finish_reduction(reshape(a, (-1, 1)) * reshape(b, (1, -1)), out, "outer")


@implements(np.tensordot, np.linalg.tensordot)
def tensordot(a, b, axes=2):
    x, y = asarray(a), asarray(b)
    if isinstance(axes, (tuple, list)):
        first, second = (axes_of(s, z.ndim) for s, z in zip(axes, (x, y)))
    else:
        count = operator.index(axes)
        first, second = tuple(range(x.ndim - count, x.ndim)), tuple(range(count))
    free_x, free_y = [k for k in range(x.ndim) if k not in first], [k for k in range(y.ndim) if k not in second]
    t = x._trace
    for i, j in zip(first, second):
        if not t.unify(t.shape(x._value)[i], t.shape(y._value)[j]):
            fail(ShapeError, "shape-mismatch for sum")
    k = t.sym(sz.product(t.shape(x._value)[i] for i in first))
    left = reshape(transpose(x, (*free_x, *first)), (t.sym(sz.product(x._value.shape[i] for i in free_x)), k))
    right = reshape(transpose(y, (*second, *free_y)), (k, t.sym(sz.product(y._value.shape[i] for i in free_y))))
    product = call_ufunc(np.matmul, (left, right))
    result = reshape(product, tuple(x.shape[i] for i in free_x) + tuple(y.shape[i] for i in free_y))
    return wrap(t, result.value)


@implements(np.einsum)
def einsum(subscripts, *operands, out=None, optimize=False, **kwargs):
    refuse("einsum", **kwargs)
    if not isinstance(subscripts, str):
        fail(UnsupportedError, "np.einsum with lists of labels: give the subscripts as a string")
    spec = subscripts.replace(" ", "")
    if "." in spec:
        fail(UnsupportedError, "np.einsum with an ellipsis is not supported in a compiled function: name all axes")
    terms, _, result = spec.partition("->")
    terms = terms.split(",")
    if "->" not in spec:
        result = "".join(sorted(c for c in set("".join(terms)) if _sum(term.count(c) for term in terms) == 1))
    t, arrays, to = _joined(operands)
    if len(terms) != len(arrays) or any(len(term) != x.ndim for term, x in zip(terms, arrays)):
        fail(ValueError, f"einsum: subscripts '{subscripts}' do not fit operands of ranks {[x.ndim for x in arrays]}")
    if any(len(set(term)) != len(term) for term in terms):
        fail(UnsupportedError, "np.einsum with a label twice in one operand takes a diagonal: use np.diagonal first")
    extents: dict = {}
    for term, x in zip(terms, arrays):
        for label, n in zip(term, t.shape(x._value)):
            if not t.unify(extents.setdefault(label, n), n):
                fail(ShapeError, f"einsum: operands could not be broadcast together: label '{label}' has extents {t.hint(extents[label])} and {t.hint(n)}")
    arrays = [TracedArray(t, value_of(t, x, to)) for x in arrays]
    have, left = "", None
    for k, (term, x) in enumerate(zip(terms, arrays)):
        later = set(result).union(*terms[k + 1 :])
        x, term = _sum_out(x, term, later | set(have), to)
        if left is None:
            left, have = _sum_out(x, term, later, to)
            continue
        both, mine, theirs = [c for c in have if c in term], [c for c in have if c not in term], [c for c in term if c not in have]
        gone, batch = [c for c in both if c not in later], [c for c in both if c in later]
        if gone and mine and theirs:
            one = reshape(transpose(left, [have.index(c) for c in batch + mine + gone]), [*(left.shape[have.index(c)] for c in batch), _span(left, have, mine), _span(left, have, gone)])  # fmt: skip
            two = reshape(transpose(x, [term.index(c) for c in batch + gone + theirs]), [*(x.shape[term.index(c)] for c in batch), _span(x, term, gone), _span(x, term, theirs)])  # fmt: skip
            shape = [left.shape[have.index(c)] for c in batch + mine] + [x.shape[term.index(c)] for c in theirs]
            left, have = reshape(call_ufunc(np.matmul, (one, two)), shape), "".join(batch + mine + theirs)
        else:
            labels = batch + mine + theirs + gone
            one, two = (reshape(transpose(y, [s.index(c) for c in labels if c in s]), [y.shape[s.index(c)] if c in s else 1 for c in labels])
                        for y, s in ((left, have), (x, term)))  # fmt: skip
            left, have = _sum_out(call_ufunc(np.multiply, (one, two)), "".join(labels), later, to)
    left = transpose(left, [have.index(c) for c in result])
    return _finish_reduction(wrap(t, _fresh(t, left.value) if left.value.op is None else left.value), out, "einsum")


def _sum_out(x, labels: str, keep, to: DType):
    """``x`` summed over the axes whose labels are not kept."""
    axes = tuple(k for k, c in enumerate(labels) if c not in keep)
    if axes:
        x = _reduce(x, "any" if to is dt.bool_ else "sum", axes)
    return x, "".join(c for c in labels if c in keep)


def _span(x, labels: str, some) -> SymInt | int:
    return x._trace.sym(sz.product(x._value.shape[labels.index(c)] for c in some))


@implements(np.trapezoid)
def trapezoid(y, x=None, dx=1.0, axis=-1):
    y = asarray(y)
    axis = axis_of(axis, y.ndim)
    if x is not None:
        d = diff(x, axis=-1 if asarray(x).ndim == 1 else axis)
        dx = reshape(d, tuple(-1 if k == axis else 1 for k in range(y.ndim))) if d.ndim == 1 else d
    before, after = (slice(None),) * axis + (slice(None, -1),), (slice(None),) * axis + (slice(1, None),)
    return sum(dx * (y[after] + y[before]) / 2.0, axis)


@implements(np.linalg.vecdot)
def vecdot(x1, x2, /, *, axis=-1):
    return sum(asarray(x1) * asarray(x2), axis)


@implements(np.linalg.matmul)
def linalg_matmul(x1, x2, /):
    return call_ufunc(np.matmul, (x1, x2))


@implements(np.cross, np.linalg.cross)
def cross(a, b, axisa=-1, axisb=-1, axisc=-1, axis=None):
    if axis is not None:
        axisa = axisb = axisc = axis
    x, y = moveaxis(a, axisa, -1), moveaxis(b, axisb, -1)
    t = x._trace
    if not t.unify(t.shape(x._value)[-1], 3) or not t.unify(t.shape(y._value)[-1], 3):
        fail(ShapeError, "np.cross: both operands must have 3 components")
    (a0, a1, a2), (b0, b1, b2) = ([z[..., k] for k in range(3)] for z in (x, y))
    return moveaxis(stack([a1 * b2 - a2 * b1, a2 * b0 - a0 * b2, a0 * b1 - a1 * b0], -1), -1, axisc)


@implements(np.linalg.norm)
def norm(x, ord=None, axis=None, keepdims=False):
    x = asarray(x)
    x = x if x._value.dtype.is_float else asarray(x, np.float64)
    if axis is None and (ord is None or x.ndim == 1 and ord == 2 or x.ndim == 2 and ord in ("f", "fro")):
        return call_ufunc(np.sqrt, (sum(x * x, None, keepdims=keepdims),))
    axes = tuple(range(x.ndim)) if axis is None else axes_of(axis, x.ndim)
    ord = concrete(ord)
    magnitude = call_ufunc(np.absolute, (x,))
    if len(axes) == 1:
        if ord is None or ord == 2:
            return call_ufunc(np.sqrt, (sum(x * x, axes, keepdims=keepdims),))
        if isinstance(ord, str):
            fail(ValueError, f"Invalid norm order '{ord}' for vectors")
        if ord == np.inf:
            return max(magnitude, axes, keepdims=keepdims)
        if ord == -np.inf:
            return min(magnitude, axes, keepdims=keepdims)
        if ord == 0:
            return sum(asarray(x != 0, x.dtype), axes, keepdims=keepdims)
        if ord == 1:
            return sum(magnitude, axes, keepdims=keepdims)
        return sum(magnitude**ord, axes, keepdims=keepdims) ** (1.0 / ord)
    if len(axes) == 2:
        if ord in (None, "f", "fro"):
            return call_ufunc(np.sqrt, (sum(x * x, axes, keepdims=keepdims),))
        rows, columns = axes
        choose = {np.inf: (max, columns, rows), -np.inf: (min, columns, rows), 1: (max, rows, columns), -1: (min, rows, columns)}.get(ord)
        if choose is not None:
            pick, inner_axis, outer_axis = choose
            result = pick(sum(magnitude, inner_axis, keepdims=True), outer_axis, keepdims=True)
            return result if keepdims else wrap(x._trace, squeeze(result, axes).value)
    fail(UnsupportedError, f"np.linalg.norm with ord={ord!r} over {len(axes)} axes is not supported in a compiled function: "
         "it needs singular values; use 'fro', 1, -1, inf or -inf")  # fmt: skip


@implements(np.linalg.vector_norm)
def vector_norm(x, /, *, axis=None, keepdims=False, ord=2):
    x = asarray(x)
    if axis is None and x.ndim != 1:
        result = norm(reshape(x, -1), ord, 0)
        return reshape(result, (1,) * x.ndim) if keepdims else result
    if isinstance(axis, (tuple, list)) and len(axis) > 1:
        if ord != 2:
            fail(UnsupportedError, "np.linalg.vector_norm over several axes supports ord=2 only in a compiled function")
        return norm(x, None, None if len(axis) == x.ndim else axis, keepdims) if len(axis) != 2 else norm(x, "fro", axis, keepdims)
    return norm(x, ord, axis, keepdims)


# ---------------------------------------------------------------------------------------------------------------- creation


def full(shape, fill_value, dtype=None):
    """An array of ``fill_value``, whose shape may hold what ``x.shape`` holds."""
    t = trace_of(shape, fill_value)
    fill = operand(t, fill_value)
    kind = kind_of(fill)
    to = dt.of({int: np.int64, float: np.float64}.get(kind, kind)) if dtype is None else dtype_of(dtype)
    shape = tuple(t.extent(n) for n in shape_of(t, shape))
    value = value_of(t, fill, to)
    if value.rank:
        return TracedArray(t, _fresh(t, broadcast_to(TracedArray(t, value), [t.sym(n) for n in shape]).value))
    return TracedArray(t, t.emit("full", value, shape=shape))


def _like(prototype, fill, dtype, shape):
    x = asarray(prototype)
    return full(x.shape if shape is None else shape, fill, x.dtype if dtype is None else dtype)


@implements(np.zeros_like)
def zeros_like(a, dtype=None, order="K", subok=True, shape=None, *, device=None):
    return _like(a, 0, dtype, shape)


@implements(np.ones_like)
def ones_like(a, dtype=None, order="K", subok=True, shape=None, *, device=None):
    return _like(a, 1, dtype, shape)


@implements(np.empty_like)
def empty_like(prototype, dtype=None, order="K", subok=True, shape=None, *, device=None):
    return _like(prototype, 0, dtype, shape)


@implements(np.full_like)
def full_like(a, fill_value, dtype=None, order="K", subok=True, shape=None, *, device=None):
    x = asarray(a)
    return full(x.shape if shape is None else shape, asarray(fill_value, x.dtype if dtype is None else dtype) if isinstance(fill_value, TracedArray) else fill_value, x.dtype if dtype is None else dtype)  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------- indexing


def slice_bound(t, bound: Size, extent: Size) -> Size:
    """A slice's bound, step forward, clamped to the extent as Python clamps it."""
    if t.decide(bound, "<", 0):
        bound = bound + extent
        return bound if t.decide(bound, ">=", 0) else 0
    return bound if t.decide(bound, "<=", extent) else extent


def slice_of(t, s, extent: Size) -> tuple[Size, Size, int]:
    """(start, number of elements, step) of a Python slice of an extent."""
    step = 1 if s.step is None else operator.index(s.step)
    if step == 0:
        fail(ValueError, "slice step cannot be zero")
    if step > 0:
        start = 0 if s.start is None else slice_bound(t, size_of(t, s.start), extent)
        stop = extent if s.stop is None else slice_bound(t, size_of(t, s.stop), extent)
        span = stop - start
    else:
        start = extent - 1 if s.start is None else _back_bound(t, size_of(t, s.start), extent)
        stop = -1 if s.stop is None else _back_bound(t, size_of(t, s.stop), extent)
        span = start - stop
    if not t.decide(span, ">", 0):
        return 0, 0, 1
    count = t.extent(sz.ceildiv(t.canonical(span), abs(step)))
    return (start, 1, 1) if count == 1 else (t.canonical(start), count, step)


def _back_bound(t, bound: Size, extent: Size) -> Size:
    if t.decide(bound, "<", 0):
        bound = bound + extent
        return bound if t.decide(bound, ">=", 0) else -1
    return bound if t.decide(bound, "<", extent) else extent - 1


def _is_index_array(k) -> bool:
    return isinstance(k, (list, np.ndarray)) or (isinstance(k, TracedArray) and not isinstance(k, TracedScalar)) or is_array(k) and not isinstance(k, np.generic)


def _index_parts(x, key) -> list:
    """The key as a list of one item an axis and None for new axes, the ellipsis written out."""
    key = list(key) if isinstance(key, tuple) else [key]
    used = _sum(1 if not _is_mask(k) else k.ndim for k in key if k is not None and k is not Ellipsis)
    if used > x.ndim:
        fail(IndexError, f"too many indices for array: array is {x.ndim}-dimensional, but {used} were indexed")
    at = next((i for i, k in enumerate(key) if k is Ellipsis), None)
    fill = [slice(None)] * (x.ndim - used)
    if at is None:
        key += fill
    else:
        key[at : at + 1] = fill
        if any(k is Ellipsis for k in key):
            fail(IndexError, "an index can only have a single ellipsis ('...')")
    return key


def _is_mask(k) -> bool:
    return isinstance(k, (TracedArray, np.ndarray)) and k.dtype == bool


def getitem(self, key):
    """``x[key]``: a view for ints and slices, a copy for an array of positions."""
    t = self._trace
    parts = _index_parts(self, key)
    for k in parts:
        if _is_mask(k) or isinstance(k, (bool, np.bool_)) or isinstance(k, list) and any(isinstance(b, (bool, np.bool_)) for b in k):
            fail(TraceError, "an index that is an array of bools gives as many elements as are true, a shape that depends on values: use "
                 "np.where(mask, x, 0), or multiply by the mask, and keep the shape")  # fmt: skip
    view = _basic(self, [slice(None) if _is_index_array(k) else k for k in parts]) if not all(map(_is_index_array, parts)) or not parts else self
    if not any(_is_index_array(k) for k in parts):
        if parts and all(not isinstance(k, slice) and k is not None for k in parts) and Ellipsis not in _plain(key):
            return TracedArray(t, view.value, scalar=True)
        return view
    return _gather(self, view, parts)


def _plain(key) -> list:
    return [k for k in (key if isinstance(key, tuple) else (key,)) if k is Ellipsis]


def _basic(x, parts) -> TracedArray:
    """The view that ints, slices and None make."""
    t = x._trace
    axis, start, size, step, drop, new = 0, [], [], [], [], []
    dynamic = []
    shape = t.shape(x._value)
    kept = 0
    for k in parts:
        if k is None:
            new.append(kept)
            kept += 1
            continue
        extent = shape[axis]
        if isinstance(k, slice):
            s, n, p = slice_of(t, k, extent)
            kept += 1
        elif isinstance(k, tr.LeafScalar) and k._value.dtype.is_integer and extent not in (0, 1):
            value = k.spec.value
            if not t.decide(extent, ">", value) or not t.decide(extent + value, ">=", 0):
                fail(IndexError, f"index {value} is out of bounds for axis {axis} with size {t.hint(extent)}")
            dynamic.append((axis, k, extent))
            s, n, p = 0, extent, 1
            drop.append(axis)
        else:
            try:
                n = size_of(t, k)
            except TypeError as error:
                if getattr(error, "_located", False):
                    raise
                fail(IndexError, "only integers, slices (`:`), ellipsis (`...`), None and integer arrays are valid indices")
            if t.decide(n, "<", 0):
                n = n + extent
            if not t.decide(n, "<", extent) or not t.decide(n, ">=", 0):
                fail(IndexError, f"index {t.hint(k.size if isinstance(k, SymInt) else operator.index(k))} is out of bounds for axis {axis} with size {t.hint(extent)}")  # fmt: skip
            s, n, p = t.canonical(n), 1, 1
            drop.append(axis)
        start.append(s)
        size.append(n)
        step.append(p)
        axis += 1
    shape = t.shape(x._value)
    view = x
    if any((s, n, p) != (0, m, 1) for s, n, p, m in zip(start, size, step, shape)):
        view = view.step(Slice(tuple(start), tuple(size), tuple(step)))
    removed = [a for a in drop if a not in [d[0] for d in dynamic]]
    if removed:
        view = view.step(Squeeze(tuple(removed)))
    for a, k, extent in reversed(dynamic):
        t.index_ranges.setdefault(k.leaf, []).append((sz.mul(extent, -1), extent - 1))
        view = view.step(At(a - len([r for r in removed if r < a]), value_of(t, k, dt.i64)))
    if new:
        view = view.step(ExpandDims(tuple(new)))
    return x.alias() if view is x else view


def _indices(t, k, extent: Size) -> TracedArray:
    """An array of positions as int64, not checked against the extent."""
    if isinstance(k, list):
        k = asarray(k) if contains_traced(k) else np.asarray(k, np.int64 if not k else None)
    if isinstance(k, np.ndarray):
        if k.dtype.kind not in "iu":
            fail(IndexError, "arrays used as indices must be of integer type")
        low, high = (int(k.min()), int(k.max())) if k.size else (0, 0)
        if k.size and not (t.decide(extent, ">", high) and t.decide(extent + low, ">=", 0)):
            wrong = high if high >= t.hint(extent) else low
            fail(IndexError, f"index {wrong} is out of bounds for an axis with size {t.hint(extent)}")
    k = asarray(k)
    if not k._value.dtype.is_integer:
        fail(IndexError, f"arrays used as indices must be of integer type, not {k.dtype}")
    return k if k._value.dtype in (dt.i64, dt.i32) else asarray(k, np.int64)


def _merged_indices(x, view, parts) -> tuple:
    """For a view indexed by ints and slices and the arrays of positions that are left: the view, its value with the arrays' axes made one, the
    position array for that axis, the axis, and whether NumPy puts the arrays' dimensions in place (else first)."""
    t = x._trace
    arrays, axis = [], 0
    for k in parts:
        if _is_index_array(k):
            arrays.append((axis, k))
            axis += 1
        elif k is None or isinstance(k, slice):
            axis += 1
    advanced = [i for i, k in enumerate(parts) if _is_index_array(k) or not (k is None or isinstance(k, slice))]
    in_place = advanced == list(range(advanced[0], advanced[-1] + 1))
    axes = [a for a, _ in arrays]
    if len(arrays) > 1 and axes != list(range(axes[0], axes[-1] + 1)):
        view = moveaxis(view, axes, range(len(axes)))
        axes, in_place = list(range(len(axes))), False
    shape = t.shape(view._value)
    indices = [_indices(t, k, shape[a]) for a, (_, k) in zip(axes, arrays)]
    value, index = view.value, indices[0].value
    if len(indices) > 1:
        flat, merged = None, sz.product(shape[a] for a in axes)
        for a, k in zip(axes, indices):
            at = _from_start(t, value_of(t, k, dt.i64), shape[a])
            if flat is not None:
                words = "shape mismatch: indexing arrays could not be broadcast together"
                at = t.emit("add", *aligned(t, [t.emit("mul", flat, t.builder.size(shape[a])), at], words))
            flat = at
        value = t.emit("reshape", value, shape=shape[: axes[0]] + (t.extent(merged),) + shape[axes[-1] + 1 :])
        index = flat
    return view, value, index, axes[0], in_place


def _from_start(t, index: Value, extent: Size) -> Value:
    """Positions with negative ones counted from the end."""
    size = t.builder.cast(t.builder.size(extent), index.dtype)
    return t.emit("where", t.emit("lt", index, t.builder.constant(0, index.dtype)), t.emit("add", index, size), index)


def _gather(x, view, parts) -> TracedArray:
    """``view`` is ``x`` indexed by the ints and slices of ``parts``; what is left are the arrays of positions."""
    t = x._trace
    _, value, index, axis, in_place = _merged_indices(x, view, parts)
    result = TracedArray(t, t.emit("take", value, index, axis=axis))
    if not in_place and axis != 0:
        result = moveaxis(result, range(axis, axis + index.rank), range(index.rank))
    return wrap(t, result.value)


def _scatter(x, parts, new) -> None:
    """``x[parts] = new`` with arrays of positions among the parts."""
    t = x._trace
    view, value, index, axis, in_place = _merged_indices(x, _basic(x, [slice(None) if _is_index_array(k) else k for k in parts]), parts)
    shape = t.shape(value)
    inner = shape[:axis] + t.shape(index) + shape[axis + 1 :]
    source = TracedArray(t, value_of(t, operand(t, new), value.dtype))
    if not in_place and axis != 0:  # NumPy's result has the positions' dimensions first
        rank = index.rank
        first = broadcast_to(source, [t.sym(n) for n in t.shape(index) + shape[:axis] + shape[axis + 1 :]])
        source = moveaxis(first, range(rank), range(axis, axis + rank))
    own = t.shape(source._value)
    while len(own) > len(inner) and own[0] == 1:
        source = squeeze(source, 0)
        own = own[1:]
    if len(own) > len(inner) or any(n != 1 and not t.unify(n, m) for n, m in zip(reversed(own), reversed(inner))):
        fail(ShapeError, f"shape mismatch: value array of shape {t.hints_of(own)} could not be broadcast to indexing result of shape {t.hints_of(inner)}")
    count = t.extent(sz.product(t.shape(index)))
    flat_shape = shape[:axis] + (count,) + shape[axis + 1 :]
    values = t.builder.reshape(broadcast_value(t, source.value, tuple(map(t.canonical, inner))), flat_shape) if own else source.value
    index = t.builder.reshape(_from_start(t, index, shape[axis]), (count,))
    index = t.emit("broadcast_in_dim", index, shape=flat_shape, dims=(axis,)) if len(flat_shape) > 1 else index
    made = t.emit("scatter", value, index, values, axis=axis)
    view.assign(t.builder.reshape(made, t.shape(view._value)))


@implements(np.put_along_axis)
def put_along_axis(arr, indices, values, axis):
    x, index = asarray(arr), asarray(indices)
    t = x._trace
    if axis is None:
        x, axis = reshape(x, -1), 0
    axis = axis_of(axis, x.ndim)
    if index.ndim != x.ndim:
        fail(ValueError, "`indices` and `arr` must have the same number of dimensions")
    shape, given = t.shape(x._value), list(t.shape(index._value))
    for k in range(x.ndim):
        if k != axis and given[k] != shape[k]:
            given[k] = broadcast_shape(t, [(shape[k],), (given[k],)])[0]
    at = broadcast_value(t, _from_start(t, _indices(t, index, shape[axis]).value, shape[axis]), given)
    source = value_of(t, operand(t, values), x._value.dtype)
    if source.rank:
        source = broadcast_to(TracedArray(t, source), [t.sym(n) for n in given]).value
    x.assign(t.emit("scatter", x.value, at, source, axis=axis))


def _add_at(a, indices, b) -> None:
    """np.add.at for positions along the first axis."""
    if not isinstance(a, TracedArray):
        fail(TraceError, "np.add.at would write traced values into an array from outside the function: make it an argument")
    t = a._trace
    if isinstance(indices, tuple) and len(indices) == 1:
        indices = indices[0]
    if isinstance(indices, tuple) or not _is_index_array(indices):
        fail(UnsupportedError, "np.add.at with indices other than one array of positions is not supported in a compiled function")
    extent = t.shape(a._value)[0]
    index = _from_start(t, _indices(t, indices, extent).value, extent)
    rest = t.shape(a._value)[1:]
    values = broadcast_to(asarray(b, a.dtype), [t.sym(n) for n in t.shape(index) + rest])
    count = t.extent(sz.product(t.shape(index)))
    made = t.emit("index_put_accumulate", a.value, t.builder.reshape(index, (count,)), t.builder.reshape(values.value, (count, *rest)))
    a.assign(made)


def setitem(self, key, new) -> None:
    """``x[key] = new``, made functional."""
    t = self._trace
    if _is_mask(key) or isinstance(key, tuple) and len(key) == 1 and _is_mask(key[0]):
        _set_masked(self, key[0] if isinstance(key, tuple) else key, new)
        return
    parts = _index_parts(self, key)
    if any(_is_mask(k) or isinstance(k, (bool, np.bool_)) for k in parts):
        fail(UnsupportedError, "assignment to a mask beside other indices is not supported in a compiled function: use x[...] = np.where(mask, new, x)")
    if any(_is_index_array(k) for k in parts):
        _scatter(self, parts, new)
        return
    target = _basic(self, parts)
    if isinstance(new, TracedArray) and new._buffer is target._buffer and new._path == target._path and not new._scalar:
        return  # the second half of x[k] += y, which has been written
    source = operand(t, new)
    dtype = target._value.dtype
    value = value_of(t, source, dtype)
    shape, own = t.shape(target._value), t.shape(value)
    while len(own) > len(shape) and own[0] == 1:
        value = t.emit("squeeze", value, axes=(0,))
        own = own[1:]
    if len(own) > len(shape) or any(n != 1 and not t.unify(n, m) for n, m in zip(reversed(own), reversed(shape))):
        fail(ShapeError, f"could not broadcast input array from shape {t.hints_of(own)} into shape {t.hints_of(shape)}")
    target.assign(broadcast_value(t, value, t.shape(target._value)))


def _set_masked(self, mask, new) -> None:
    t = self._trace
    mask = asarray(mask)
    source = operand(t, new)
    if isinstance(source, TracedArray) and source.ndim:
        fail(TraceError, "x[mask] = values takes as many values as the mask has true elements, a number that depends on values: use "
             "x[...] = np.where(mask, values_of_the_shape_of_x, x); a single number can be assigned")  # fmt: skip
    value = mask.value
    if mask.ndim < self.ndim:
        value = t.emit("expand_dims", value, axes=tuple(range(mask.ndim, self.ndim)))
    new_value = t.emit("where", *aligned(t, [value, value_of(t, source, self._value.dtype), self.value]))
    self.assign(broadcast_value(t, new_value, t.shape(self._value)))


@implements(np.take)
def take(a, indices, axis=None, out=None, mode="raise"):
    x = asarray(a)
    t = x._trace
    if axis is None:
        x, axis = reshape(x, -1), 0
    axis = axis_of(axis, x.ndim)
    extent = t.shape(x._value)[axis]
    scalar_index = isinstance(indices, (int, np.integer, SymInt)) and not isinstance(indices, bool)
    if scalar_index:
        return x[(slice(None),) * axis + (indices,)]
    if isinstance(indices, (tuple, list, np.ndarray)) and not contains_traced(indices) and mode == "raise":
        index = _indices(t, np.asarray(indices), extent)
    else:
        index = _indices(t, asarray(indices), extent)
    value = value_of(t, index, dt.i64) if mode == "wrap" else index.value
    if mode == "wrap":
        value = t.emit("mod", value, t.builder.size(extent))
    elif mode == "clip":
        value = t.emit("maximum", value, t.builder.constant(0, value.dtype))
    return _finish_reduction(wrap(t, t.emit("take", x.value, value, axis=axis)), out, "take")


@implements(np.take_along_axis)
def take_along_axis(arr, indices, axis=-1):
    x, index = asarray(arr), asarray(indices)
    t = x._trace
    if axis is None:
        x, axis = reshape(x, -1), 0
    axis = axis_of(axis, x.ndim)
    if index.ndim != x.ndim:
        fail(ValueError, "`indices` and `arr` must have the same number of dimensions")
    index = _indices(t, index, x.shape[axis])
    own, other = list(t.shape(x._value)), list(t.shape(index._value))
    target, given = list(own), list(other)
    for k in range(x.ndim):
        if k != axis and own[k] != other[k]:
            common = broadcast_shape(t, [(own[k],), (other[k],)])[0]
            target[k] = given[k] = common
    return wrap(t, t.emit("take_along_axis", broadcast_value(t, x.value, target), broadcast_value(t, index.value, given), axis=axis))


# ---------------------------------------------------------------------------------------------------------------- array methods


def _method(name):
    def mark(function):
        setattr(TracedArray, name, function)
        return function

    return mark


TracedArray.__getitem__ = getitem
TracedArray.__setitem__ = setitem
for _name, _f in {"sum": sum, "prod": prod, "max": max, "min": min, "any": any_, "all": all_, "mean": mean, "var": var, "std": std, "argmax": argmax,
                  "argmin": argmin, "clip": clip, "round": round, "ravel": ravel, "squeeze": squeeze, "swapaxes": swapaxes, "dot": dot, "take": take,
                  "repeat": repeat, "diagonal": diagonal, "trace": trace, "cumsum": cumsum, "cumprod": cumprod, "argsort": argsort}.items():  # fmt: skip
    setattr(TracedArray, _name, _f)
TracedArray.T = property(lambda self: transpose(self))
TracedArray.mT = property(lambda self: matrix_transpose(self))
TracedArray.real = property(lambda self: self)
TracedArray.conj = TracedArray.conjugate = lambda self: call_ufunc(np.conjugate, (self,))
TracedArray.__copy__ = lambda self: copy(self)
TracedArray.__deepcopy__ = lambda self, memo: copy(self)


@_method("reshape")
def _reshape_method(self, *shape, order="C", copy=None):
    return reshape(self, shape[0] if len(shape) == 1 else shape, order, copy=copy)


@_method("transpose")
def _transpose_method(self, *axes):
    if len(axes) == 1 and (axes[0] is None or isinstance(axes[0], (tuple, list))):
        axes = axes[0]
    return transpose(self, axes or None)


@_method("astype")
def _astype(self, dtype, order="K", casting="unsafe", subok=True, copy=True):
    to, t = dtype_of(dtype), self._trace
    if not np.can_cast(self.dtype, to.numpy, casting):
        fail(TypeError, f"Cannot cast array data from {self.dtype!r} to {to.numpy!r} according to the rule '{casting}'")
    if to is self._value.dtype and not copy:
        return self
    if to is self._value.dtype and self._weak is None:
        return TracedArray(t, _fresh(t, self.value), scalar=self._scalar)
    return TracedArray(t, t.emit("cast", self.value, to=to) if to is not self._value.dtype else self.value, scalar=self._scalar)


@_method("copy")
def _copy_method(self, order="C"):
    return TracedArray(self._trace, _fresh(self._trace, self.value), scalar=self._scalar)


@_method("flatten")
def _flatten(self, order="C"):
    x = reshape(self, -1, order)
    return TracedArray(x._trace, _fresh(x._trace, x.value) if x.value is self.value else x.value)


@_method("sort")
def _sort_method(self, axis=-1, kind=None, order=None, *, stable=None):
    self.assign(sort(self, axis).value)


@_method("fill")
def _fill(self, value):
    setitem(self, Ellipsis, value)


@_method("view")
def _view_method(self, dtype=None, type=None):
    if dtype is None:
        return self.alias()
    fail(UnsupportedError, "x.view(dtype) reads the bits of an array as another type, which is not supported in a compiled function: use x.astype(dtype)")


def spec_of(array):
    """The :class:`ArgSpec` of an array from outside the function. Raises UnsupportedError."""
    if isinstance(array, np.ndarray):
        try:
            return tr.ArgSpec.of(array)
        except TypeError as error:
            fail(UnsupportedError, str(error))
    name = str(array.dtype).rpartition(".")[2]
    found = dtype_of(np.dtype(name) if name != "bfloat16" else dt.bf16)
    shape = tuple(int(n) for n in array.shape)
    strides = array.stride() if hasattr(array, "stride") and callable(array.stride) else None
    if strides is None:
        given = getattr(array, "strides", None)
        strides = tuple(s // found.bytes for s in given) if given else tuple(math.prod(shape[k + 1 :]) for k in range(len(shape)))
    device = "cuda" if hasattr(array, "__cuda_array_interface__") or "cuda" in str(getattr(array, "device", "")) else "cpu"
    address = array.data_ptr() if hasattr(array, "data_ptr") else 16
    return tr.ArgSpec(found, shape, tuple(strides), (address & -address) & 0xFF or 256, device=device)



