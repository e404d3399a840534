"""How NumPy's functions become ops: promotion, broadcasting, axes and indexing by NumPy's rules, on traced arrays.

Here is what all of them rest on: operands, promotion, broadcasting, ufuncs, Python's operators and NumPy's protocols.
The functions are in
:mod:`mlirfuse.frontend.numpy.functions`, indexing in :mod:`mlirfuse.frontend.numpy.indexing`; :func:`implements` says which NumPy function each
one stands for. They take traced arrays, numbers, and arrays from outside the trace, and give traced arrays.
"""

from __future__ import annotations

import difflib
import functools
import math
import operator

import numpy as np

from mlirfuse.core.errors import ShapeError, TraceError, UnsupportedError
from mlirfuse.frontend.numpy import tracing as tr
from mlirfuse.frontend.numpy.tracing import SymInt, TracedArray, TracedScalar, fail
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.dtypes import DType
from mlirfuse.ir.graph import Value
from mlirfuse.ir.ops import table as ops
from mlirfuse.ir.sizes import Size
from mlirfuse.runtime import arrays

HANDLED: dict = {}  # NumPy function -> ours
UFUNCS: dict = {}  # ufunc -> (trace, values, input dtypes, output dtypes) -> value or values
METHODS: dict = {}  # (ufunc, its method) -> ours: np.add.reduce …


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


# ----------------------------------------------------------------------------------------------------------------
# operands


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
            fail(
                TraceError,
                "an array traced by another compiled function was used here: it was kept from that function's own trace",
            )
        return x
    if x.__class__ in (int, float, bool, SymInt) or isinstance(x, np.generic):
        return x
    if isinstance(x, np.ndarray) and x.ndim == 0:
        return x[()]
    if is_array(x):
        return t.capture(x)
    if isinstance(x, (list, tuple)):
        if contains_traced(x):
            return np.stack([asarray(item) for item in x])
        return t.capture(np.asarray(x))
    if isinstance(x, int):
        return int(x)
    if isinstance(x, float):
        return float(x)
    if isinstance(x, complex):
        fail(
            UnsupportedError,
            "complex numbers are not supported in elementwise functions: compute the real and the imaginary part",
        )
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
        if dtype.is_integer and dtype.bits < 64 and not wrapping and not t.decide(x.size, "<=", int_range(dtype)[1]):
            fail(OverflowError, f"Python integer {t.hint(x.size)} out of bounds for {dtype.numpy.name}")
        value = t.builder.size(t.canonical(x.size))
        return value if dtype is dt.i64 else t.emit("cast", value, to=dtype)
    if x.__class__ is int and dtype.is_integer:
        low, high = int_range(dtype)
        if not low <= x <= high:
            if not wrapping:
                fail(OverflowError, f"Python integer {x} out of bounds for {dtype.numpy.name}")
            x = (x - low) % 2**dtype.bits + low
    try:
        return t.builder.constant(x, dtype)
    except OverflowError as error:
        fail(OverflowError, str(error))


def int_range(dtype: DType) -> tuple[int, int]:
    return (0, 2**dtype.bits - 1) if dtype.kind == "u" else (-(2 ** (dtype.bits - 1)), 2 ** (dtype.bits - 1) - 1)


def _check_weak_int(t, x, dtype: DType) -> None:
    """A Python int known at run time must fit the type it is used as, as NumPy checks."""
    if x._weak is not int or not dtype.is_integer:
        return
    low, high = int_range(dtype)
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


def _bfloat16_as_half(find):
    """``find(…, kinds)``, which asks NumPy for types, with bfloat16 promoted as float16 is; the two together are
    float32.

    NumPy asks ml_dtypes about bfloat16 as about any foreign type, and agrees but in two things: a Python float counts
    as a float16 there, so that ``x * 2.0`` would be float32 where ``x * 2`` is bfloat16; and functions without a loop
    for bfloat16 (matmul, clip, degrees) give float32.
    """

    @functools.cache
    @functools.wraps(find)
    def types(*given):
        *what, kinds = given
        if _BFLOAT16 not in kinds or _HALF in kinds:
            return find(*what, kinds)
        found = find(*what, tuple(_HALF if k == _BFLOAT16 else k for k in kinds))
        return tuple(dt.bf16 if d is dt.f16 else d for d in found)

    return types


_BFLOAT16, _HALF = dt.bf16.numpy, dt.f16.numpy


@_bfloat16_as_half
def loop_types(ufunc, kinds: tuple) -> tuple[DType, ...]:
    """The types that NumPy computes the ufunc in and gives: inputs, then outputs."""
    outputs = (None,) * (ufunc.nin + ufunc.nout - len(kinds))
    found = ufunc.resolve_dtypes(kinds + outputs)
    if any(d == object for d in found):  # NumPy compares two Python ints as such
        found = ufunc.resolve_dtypes(tuple(np.dtype(np.int64) if k is int else k for k in kinds) + outputs)
    return tuple(dt.of(d) for d in found)


@_bfloat16_as_half
def _result_type(kinds: tuple) -> tuple[DType]:
    return (dt.of(np.result_type(*[{int: 0, float: 0.0}.get(k, k) for k in kinds])),)


def result_type_of(kinds: tuple) -> DType:
    """NumPy's common type of dtypes and of int and float for Python numbers."""
    try:
        return _result_type(kinds)[0]
    except TypeError as error:
        fail(TypeError, str(error))


# ----------------------------------------------------------------------------------------------------------------
# broadcasting


def broadcast_shape(t, shapes, what: str = "operands could not be broadcast together") -> tuple[Size, ...]:
    """The common shape, equal extents made one. Raises ShapeError with NumPy's words."""
    rank = max(len(s) for s in shapes)
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
                    seen = " ".join(
                        "(" + ",".join(map(str, t.hints_of(s))) + ("," if len(s) == 1 else "") + ")" for s in shapes
                    )
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
    rank = max(len(s) for s in shapes)
    return [t.emit("expand_dims", v, axes=tuple(range(rank - v.rank))) if 0 < v.rank < rank else v for v in values]


def broadcast_value(t, value: Value, shape) -> Value:
    shape = tuple(shape)
    if t.shape(value) == shape:
        return value
    return t.emit("broadcast_in_dim", value, shape=shape, dims=tuple(range(len(shape) - value.rank, len(shape))))


def full_shape(t, values) -> tuple[Size, ...]:
    return broadcast_shape(t, [t.shape(v) for v in values])


# ----------------------------------------------------------------------------------------------------------------
# ufuncs


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


def fresh(t, value: Value) -> Value:
    return t.emit("copy", value)


@_ufunc(np.positive)
def _positive(t, values, ins, outs):
    return fresh(t, values[0])


@_ufunc(np.conjugate)
def _conjugate(t, values, ins, outs):
    return t.emit("conj", values[0]) if ins[0].kind == "c" else fresh(t, values[0])


def _identity_for_bools(name):
    lower = _row_ufunc(name)

    def either(t, values, ins, outs):
        same = ins[0] is dt.bool_ or (ins[0].is_integer and name != "abs")
        return fresh(t, values[0]) if same else lower(t, values, ins, outs)

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
    divisor = t.emit("gcd", a, b)
    divisor = t.emit(
        "where", t.emit("eq", divisor, t.builder.constant(0, ins[0])), t.builder.constant(1, ins[0]), divisor
    )
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
        when_negative = {
            "eq": False,
            "ne": True,
            "lt": signed_first,
            "le": signed_first,
            "gt": not signed_first,
            "ge": not signed_first,
        }[name]
        if when_negative:
            return t.emit("logical_or", negative, result)
        return t.emit("logical_and", t.emit("logical_not", negative), result)

    return lower


_COMPARISONS = {
    np.equal: "eq",
    np.not_equal: "ne",
    np.less: "lt",
    np.less_equal: "le",
    np.greater: "gt",
    np.greater_equal: "ge",
}
for _function, _name in _COMPARISONS.items():
    UFUNCS[_function] = _comparison(_name)


@_ufunc(np.matmul)
def _matmul(t, values, ins, outs):
    a, b = values
    if not a.shape or not b.shape:
        fail(ValueError, "matmul: a 0-d operand has no matrix dimension; use * for a product with a number")
    (inner_a, inner_b), batch = (
        (t.shape(a)[-1], t.shape(b)[-2 if b.rank > 1 else -1]),
        (t.shape(a)[:-2], t.shape(b)[:-2]),
    )
    if not t.unify(inner_a, inner_b):
        fail(ShapeError, "matmul: Input operand 1 has a mismatch in its core dimension 0, with gufunc signature (n?,k),(k,m?)->(n?,m?) "
             f"(size {t.hint(inner_b)} is different from {t.hint(inner_a)})")  # fmt: skip
    if batch[0] and batch[1]:
        broadcast_shape(t, batch, "matmul: operands could not be broadcast together")
    return t.emit("matmul", a, b)


def resolve(ufunc, operands):
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


_NARROWEST = {int: np.uint8, float: np.float16}  # of Python's numbers, which take on any type of their kind


def call_ufunc(ufunc, inputs, kwargs=None):
    """A ufunc on operands of which at least one is traced."""
    t = trace_of(*inputs)
    operands = [operand(t, x) for x in inputs]
    dtype, out, where_ = None, None, True
    if kwargs:
        dtype, out, where_ = kwargs.pop("dtype", None), kwargs.pop("out", None), kwargs.pop("where", True)
        for key in list(kwargs):
            if key not in ("casting", "order", "subok") or kwargs[key] not in ("same_kind", "K", True):
                fail(
                    UnsupportedError, f"{ufunc.__name__}: the argument '{key}' is not supported in a compiled function"
                )
    lower = UFUNCS.get(ufunc)
    if lower is None:
        fail(
            UnsupportedError,
            f"the function np.{ufunc.__name__} is not supported in a compiled function{suggestion(ufunc.__name__)}",
        )
    if ufunc in _COMPARISONS:
        if dtype is not None and dtype_of(dtype) is not dt.bool_:
            fail(
                TypeError, f"No loop matching the specified signature and casting was found for ufunc {ufunc.__name__}"
            )
        early, dtype = _compare_with_big_int(t, ufunc, operands), None
        if early is not None:
            return (
                early
                if out is None and where_ is True
                else _store(t, early.value, out[0] if isinstance(out, tuple) else out, where_, ufunc.__name__)
            )
    if ufunc is np.power:
        shortcut = _power(t, operands) if dtype is None and out is None else None
        if shortcut is not None:
            return shortcut
    types = resolve(ufunc, operands)
    ins, outs = types[: ufunc.nin], types[ufunc.nin :]
    if dtype is not None:
        ins = outs = (dtype_of(dtype),) * ufunc.nin
        outs = outs[: ufunc.nout]
        for k, kind in enumerate(map(kind_of, operands)):
            if not np.can_cast(_NARROWEST.get(kind, kind), ins[0].numpy, "same_kind"):
                _check_cast(np.dtype(kind), ins[0].numpy, f"ufunc '{ufunc.__name__}' input {k}")
    made = lower(t, [value_of(t, x, d) for x, d in zip(operands, ins)], ins, outs)
    values = made if isinstance(made, tuple) else (made,)
    if out is not None or where_ is not True:
        targets = out if isinstance(out, tuple) else (out,)
        results = [_store(t, v, target, where_, ufunc.__name__) for v, target in zip(values, targets)]
    elif all(_is_number(x) for x in operands):
        several = len(values) > 1
        results = [
            TracedScalar(t, v, None, lambda k=k: _nth(ufunc(*map(concrete, operands)), k if several else None))
            for k, v in enumerate(values)
        ]
    else:
        results = [wrap(t, v) for v in values]
    return tuple(results) if len(results) > 1 else results[0]


def _nth(x, k):
    return x if k is None else x[k]


def _store(t, value: Value, target, where_, name: str):
    """Writes a result into ``out=``, where the mask says so."""
    if target is None:
        fail(
            UnsupportedError,
            f"{name}: where= without out= leaves elements undefined: use np.where(condition, result, otherwise)",
        )
    if not isinstance(target, TracedArray):
        fail(TraceError, f"{name}: out= is an array from outside the function: make it an argument")
    if where_ is not True:
        to = target._value.dtype  # in which the elements that stay are what they were
        _check_cast(value.dtype.numpy, to.numpy, f"ufunc '{name}' output")
        value = value if value.dtype is to else t.emit("cast", value, to=to)
        value = t.emit("where", *aligned(t, [asarray(where_, bool).value, value, target.value]))
    store(t, target, value, name)
    return target


def _check_cast(given, kept, what: str, casting: str = "same_kind") -> None:
    if not np.can_cast(given, kept, casting):
        fail(TypeError, f"Cannot cast {what} from dtype('{given}') to dtype('{kept}') with casting rule '{casting}'")


def store(t, target: TracedArray, value: Value, name: str, casting: str = "same_kind") -> None:
    """Makes ``target`` hold ``value``, by the rules for a ufunc's output."""
    dtype = target._value.dtype
    _check_cast(value.dtype.numpy, dtype.numpy, f"ufunc '{name}' output", casting)
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


def into_out(result, out, name: str, repeats: bool = False):
    """The result, or ``out`` holding it, of the same shape unless the function ``repeats`` it, as ufuncs do."""
    if out is None:
        return result
    if not isinstance(out, TracedArray):
        fail(TraceError, f"np.{name}: out= is an array from outside the function: make it an argument")
    shape, given = result._trace.shape(result._value), result._trace.shape(out._value)
    if not repeats and (len(shape) != len(given) or any(n == 1 != m for n, m in zip(shape, given))):
        fail(
            ShapeError,
            f"np.{name}: out= has the shape {result._trace.hints_of(given)}, the result {result._trace.hints_of(shape)}",
        )
    store(result._trace, out, result.value, name)
    return out


def _compare_with_big_int(t, ufunc, operands):
    """A comparison with a Python int that the other operand's type cannot hold: NumPy compares exactly."""
    for k in (0, 1):
        number, other = operands[k], operands[1 - k]
        if (
            number.__class__ is int
            and isinstance(other, TracedArray)
            and other._weak is None
            and other._value.dtype.is_integer
        ):
            low, high = int_range(other._value.dtype)
            if not low <= number <= high:
                outcome = bool(ufunc(*((number, 0) if k == 0 else (0, number))))
                return wrap(t, broadcast_value(t, t.builder.constant(outcome, dt.bool_), other._value.shape))
        if (
            isinstance(number, TracedScalar)
            and number._weak is int
            and isinstance(other, TracedArray)
            and other._weak is None
        ):
            if other._value.dtype.is_integer and other._value.dtype is not dt.i64:
                wide = [x.value if x._value.dtype is dt.u64 else value_of(t, x, dt.i64) for x in operands]
                return wrap(t, UFUNCS[ufunc](t, wide, [v.dtype for v in wide], ()))
    return None


def _power(t, operands):
    """Constant exponents for which there is something better than the power function."""
    base, exponent = operands
    if (
        isinstance(exponent, TracedScalar)
        and exponent._weak is int
        and isinstance(base, TracedArray)
        and base._value.dtype.is_integer
    ):
        exponent = exponent.concrete()  # its sign decides whether the power exists
    if not isinstance(base, TracedArray) or isinstance(base, TracedScalar):
        return None
    if (isinstance(exponent, np.floating) and exponent == 0.5) or exponent.__class__ in (int, float):
        (dtype, _, _) = resolve(np.power, (base, exponent))
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
    return wrap(t, fresh(t, result) if result is value else result)


def scalar_operator(function, *inputs):
    """A Python operator on numbers of which one is known only at run time: by Python's rules."""
    t = trace_of(*inputs)
    ufunc = _OPERATOR_UFUNCS[function]
    operands = [operand(t, x) for x in inputs]
    weak = [_weak_kind(x) for x in operands]
    if any(w is None for w in weak):
        return call_ufunc(ufunc, operands)
    if ufunc is np.power and weak[1] is int and operands[1].__class__ is not int:
        operands[1] = concrete(operands[1])
    try:
        kind = type(function(*[_PROTOTYPES[w] if x.__class__ is not int else x for w, x in zip(weak, operands)]))
    except ZeroDivisionError:
        fail(ZeroDivisionError, "division by zero")
    if ufunc is np.power and kind is float:
        weak = [float] * 2  # of an integer and a negative one too
    kinds = tuple([int if w is bool and kind is not bool else np.dtype(bool) if w is bool else w for w in weak])
    try:
        types = loop_types(ufunc, kinds)
    except TypeError as error:
        fail(TypeError, str(error))
    value = UFUNCS[ufunc](
        t, [value_of(t, x, d) for x, d in zip(operands, types)], types[: ufunc.nin], types[ufunc.nin :]
    )
    return TracedScalar(t, value, kind, lambda: function(*[concrete(x) for x in operands]))


_PROTOTYPES = {int: 1, float: 1.0, bool: True}


def _weak_kind(x) -> type | None:
    """The Python type of a Python number; None for NumPy's numbers and arrays."""
    if isinstance(x, TracedArray):
        return x._weak
    return int if x.__class__ is SymInt else None if isinstance(x, np.generic) else x.__class__


# ----------------------------------------------------------------------------------------------------------------
# Python's operators

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
        if (
            ufunc is np.power
            and not reflected
            and other.__class__ is int
            and other == 2
            and self._value.dtype is dt.bool_
            and self._weak is None
        ):
            return call_ufunc(np.square, (self,))  # bools to the second are int8, to any other power int64
        if (
            ufunc is np.power
            and not reflected
            and other.__class__ is float
            and other == 0.5
            and self._value.dtype is dt.f16
        ):
            return call_ufunc(np.sqrt, (self,))  # np.power has the power here, which differs at -0.0 and -inf
        if other.__class__ not in _PLAIN:
            if not (
                isinstance(other, (TracedArray, np.generic, np.ndarray, int, float, list, tuple)) or is_array(other)
            ):
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
for _compare in (
    "__eq__",
    "__ne__",
    "__lt__",
    "__le__",
    "__gt__",
    "__ge__",
):  # a class that defines __hash__ keeps it only so
    setattr(TracedScalar, _compare, getattr(TracedArray, _compare))
for _compare in ("lshift", "rshift", "and", "or", "xor"):
    if not hasattr(SymInt, f"__{_compare}__"):
        _f = _OPERATORS[_compare][1]
        setattr(SymInt, f"__{_compare}__", lambda self, other, f=_f: tr._sym_arith(f, self, other))
        setattr(SymInt, f"__r{_compare}__", lambda self, other, f=_f: tr._sym_arith(f, other, self))


# ----------------------------------------------------------------------------------------------------------------
# protocols


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
    if method == "outer":
        a, b = (asarray(x) for x in inputs)
        return call_ufunc(ufunc, (np.reshape(a, a.shape + (1,) * b.ndim), b), kwargs)
    function = METHODS.get((ufunc, method))
    if function is not None:
        if isinstance(kwargs.get("out"), tuple):
            kwargs["out"] = kwargs["out"][0]
        return function(*inputs, **kwargs)
    fail(UnsupportedError, f"np.{ufunc.__name__}.{method} is not supported in a compiled function: compute it outside")


def array_function(function, args, kwargs):
    """NumPy's ``__array_function__``."""
    ours = HANDLED.get(function)
    if ours is None:
        name = function.__name__
        module = getattr(function, "__module__", None) or "numpy"
        if module.startswith("numpy.random"):
            fail(
                TraceError,
                f"np.random.{name} inside a compiled function: use mlirfuse.numpy.uniform, normal or dropout with a seed",
            )
        spelled = f"{module.replace('numpy', 'np', 1)}.{name}"
        fail(UnsupportedError, f"the function {spelled} is not supported in a compiled function{suggestion(name)}")
    try:
        return ours(*args, **kwargs)
    except TypeError as error:
        if "unexpected keyword argument" in str(error) and not getattr(error, "_located", False):
            key = str(error).rsplit("'", 2)[1]
            fail(
                UnsupportedError,
                f"np.{function.__name__}: the argument '{key}' is not supported in a compiled function",
            )
        raise


def refuse(name: str, **given) -> None:
    """Raises for arguments that are not supported unless they are what NumPy has by default."""
    for key, value in given.items():
        if value is not None and value is not np._NoValue and value is not True:
            fail(UnsupportedError, f"np.{name}: the argument '{key}' is not supported in a compiled function"
                 + (": use np.where on the operand" if key == "where" else ""))  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------- axes
# and shapes


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
        fail(
            TraceError,
            "a shape that is a traced array: shapes must be known without the arrays' values; use x.shape or arguments that are ints",
        )
    return (size_of(t, shape),)


def slice_bound(t, bound: Size, extent: Size) -> Size:
    """A slice's bound, step forward, clamped to the extent as Python clamps it."""
    if t.decide(bound, "<", 0):
        bound = bound + extent
        return bound if t.decide(bound, ">=", 0) else 0
    return bound if t.decide(bound, "<=", extent) else extent


def spec_of(array):
    """The :class:`ArgSpec` of an array from outside the function. Raises UnsupportedError."""
    try:
        return arrays.describe(array)
    except (TypeError, UnsupportedError) as error:
        fail(UnsupportedError, str(error))
