"""Calls of ufuncs on traced operands: dtypes, out=, where=."""

from __future__ import annotations

import functools
from typing import Any, Literal, NoReturn

import numpy as np

from mlirfuse.core.errors import ShapeError, TraceError, UnsupportedError
from mlirfuse.frontend.numpy import special
from mlirfuse.frontend.numpy.created_array import CreatedArray, as_created, with_known
from mlirfuse.frontend.numpy.memory_order import checked_order, forced, strides_of
from mlirfuse.frontend.numpy.operands import asarray, fresh, operand, trace_of, value_of, wrap
from mlirfuse.frontend.numpy.promotion import dtype_of, int_range, kind_of, resolve, result_type_of
from mlirfuse.frontend.numpy.python_operators import UNMULTIPLIED, by_squaring
from mlirfuse.frontend.numpy.registry import COMPLEX, UFUNCS, suggestion
from mlirfuse.frontend.numpy.shapes import aligned, broadcast_shape, broadcast_value, fits
from mlirfuse.frontend.numpy.source import at_users_line, fail, unsupported
from mlirfuse.frontend.numpy.traced_array import TracedArray, TracedScalar, is_number
from mlirfuse.frontend.numpy.ufunc_rules import COMPARISONS
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.graph import Value
from mlirfuse.runtime import extern_ops

_Casting = Literal["no", "equiv", "safe", "same_kind", "unsafe"]


def call_ufunc(ufunc, inputs, kwargs=None):
    """Traces a call of a ufunc with at least one traced operand."""
    t = trace_of(*inputs)
    operands = [operand(t, x) for x in inputs]
    if any(isinstance(x, CreatedArray) for x in operands) and not (kwargs and kwargs.get("out")):
        constants = with_known((inputs, kwargs or {}))
        if constants is not None:
            return as_created(ufunc(*constants[0], **constants[1]))
    casting: _Casting = "same_kind"
    dtype, out, where_, order = None, None, True, "K"
    if kwargs:
        dtype, out, where_ = kwargs.pop("dtype", None), kwargs.pop("out", None), kwargs.pop("where", True)
        casting, order = kwargs.pop("casting", casting), checked_order(kwargs.pop("order", order))
        if out is not None and not isinstance(out, tuple):
            out = (out,)
        for key in list(kwargs):
            if key != "subok" or kwargs[key] is not True:
                unsupported(f"{ufunc.__name__}: the argument '{key}'")
    lower = UFUNCS.get(ufunc) or COMPLEX.get(ufunc) or special.rule_of(ufunc)
    if lower is None:
        unsupported(f"the function np.{ufunc.__name__}", suggestion(ufunc.__name__))
    if ufunc in COMPARISONS:
        if dtype is not None and dtype_of(dtype) is not dt.bool_:
            no_loop(ufunc)
        early, dtype = _compare_with_big_int(t, ufunc, operands), None
        if early is not None:
            written = out is not None or where_ is not True
            return _stored(t, early.value, (out or [None])[0], where_, ufunc) if written else early
    if ufunc is np.float_power and dtype is None and isinstance(operands[0], TracedArray):
        wide = resolve(ufunc, operands)[0]
        if wide.kind == "c":
            operands[0] = asarray(operands[0], wide.numpy)
    if ufunc is np.power or (ufunc is np.float_power and kind_of(operands[0]) == np.dtype(complex)):
        shortcut = _power(t, operands) if dtype is None and out is None and casting == "same_kind" else None
        if shortcut is not None:
            return shortcut
    if dtype is None and casting == "same_kind":
        types = resolve(ufunc, operands)
    else:
        types = loop_of(ufunc, operands, dtype, casting)
    ins, outs = types[: ufunc.nin], types[ufunc.nin :]
    if ins[0].kind == "c":
        lower = COMPLEX.get(ufunc, lower)
    if ufunc in (np.power, np.float_power) and ins[1].kind in "ic" and t.device == "cpu":
        if where_ is not True:
            unsupported(f"{ufunc.__name__} of {ins[0]} with where=")
        lower = _power_by_numpy
    created = lower(t, [value_of(t, x, d) for x, d in zip(operands, ins)], ins, outs)
    values = created if isinstance(created, tuple) else (created,)
    if out is not None or where_ is not True:
        results = [_stored(t, v, target, where_, ufunc, casting) for v, target in zip(values, out or [None])]
    elif all(map(is_number, operands)):
        several = len(values) > 1
        results = [
            TracedScalar(t, v, None, functools.partial(_computed, ufunc, k if several else None), operands)
            for k, v in enumerate(values)
        ]
    else:
        results = [wrap(t, v if order == "K" else forced(t, v, order, strides_of(t, v))) for v in values]
    return tuple(results) if len(results) > 1 else results[0]


def no_loop(ufunc) -> NoReturn:
    """Raises NumPy's error for a dtype that the ufunc does not compute in."""
    fail(TypeError, f"No loop matching the specified signature and casting was found for ufunc {ufunc.__name__}")


def _power_by_numpy(t, values, ins, outs) -> Value:
    """Powers by a call of NumPy: integer powers, where NumPy rejects negative exponents, and complex ones, where NumPy
    multiplies repeatedly for integer exponents."""
    a, b = aligned(t, values)
    shape = broadcast_shape(t, [t.shape(a), t.shape(b)])
    call = extern_ops.by_numpy(np.power)
    return t.emit("call", a, b, callee="np.power", dtypes=outs, shapes=(shape,), function=call)


def _computed(ufunc, k: int | None, *operands):
    """A function that calls the ufunc on the operands' values at run time; ``k``: the index of the result to return."""
    created = ufunc(*operands)
    return created if k is None else created[k]


def loop_of(ufunc, operands, dtype, casting: _Casting) -> tuple:
    """The dtypes of the loop that NumPy selects for ``dtype=`` and ``casting=``: inputs, then outputs. Raises TypeError
    where there is none, or an input cannot be cast."""
    kinds = tuple(map(kind_of, operands))
    strong = [isinstance(kind, np.dtype) for kind in kinds]
    if not all(strong) and casting in ("no", "equiv"):
        fail(TypeError, f"{ufunc.__name__}: a Python number cannot be cast under the casting rule '{casting}'")
    common = result_type_of(kinds).numpy  # replaces Python numbers, which crash NumPy 2.4 here
    given: dict[str, Any] = {"casting": "unsafe"}
    if dtype is not None:
        given["signature"] = (None,) * ufunc.nin + (dtype_of(dtype).numpy,) * ufunc.nout
    known = [kind if is_strong else common for kind, is_strong in zip(kinds, strong)]
    with at_users_line(TypeError):
        found = tuple(map(dt.of, ufunc.resolve_dtypes((*known, *(None,) * ufunc.nout), **given)))
    for k, (kind, is_strong, kept) in enumerate(zip(known, strong, found)):
        check_cast(kind, kept.numpy, f"ufunc '{ufunc.__name__}' input {k}", casting if is_strong else "same_kind")
    return found


def _stored(t, value: Value, target, where_, ufunc, casting: _Casting = "same_kind"):
    """``out=`` with a ufunc's result where the mask is true."""
    if target is None:
        what = f"{ufunc.__name__}: where= without out= leaves elements undefined"
        fail(UnsupportedError, f"{what}: use np.where(condition, result, otherwise)")
    return store(t, target, value, ufunc.__name__, casting, where_)


def check_cast(given, kept, what: str, casting: _Casting = "same_kind") -> None:
    """Raises TypeError where ``casting`` forbids the cast from ``given`` to ``kept``; ``what`` names the value in the
    message."""
    if not np.can_cast(given, kept, casting):
        fail(TypeError, f"Cannot cast {what} from dtype('{given}') to dtype('{kept}') with casting rule '{casting}'")


def store(t, target, value: Value, name: str, casting: _Casting = "same_kind", where: Any = True) -> TracedArray:
    """``target``, made to hold ``value`` where the mask is true, under the casting and broadcasting rules of a ufunc's
    output."""
    if not isinstance(target, TracedArray):
        fail(TraceError, f"np.{name}: out= is an array from outside the function: make it an argument")
    dtype = target._value.dtype
    check_cast(value.dtype.numpy, dtype.numpy, f"ufunc '{name}' output", casting)
    value = value if value.dtype is dtype else t.emit("cast", value, to=dtype)
    if where is not True:  # the other elements keep their values
        value = t.emit("where", *aligned(t, [asarray(where, bool).value, value, target.value]))
    shape, own = t.shape(target._value), t.shape(value)
    if not fits(t, own, shape):
        found = f"non-broadcastable output operand with shape {t.hints_of(shape)}"
        fail(ShapeError, f"{found} doesn't match the broadcast shape {t.hints_of(own)}")
    target.assign(broadcast_value(t, value, t.shape(target._value)))
    return target


def into_out(result, out, name: str, repeats: bool = False, casting: _Casting = "same_kind"):
    """The result, or ``out`` holding it; shapes must match unless the function ``repeats`` (broadcasts) its result, as
    ufuncs do."""
    if out is None:
        return result
    t, own = result._trace, result._trace.shape(result._value)
    if isinstance(out, TracedArray) and not repeats:
        shape = t.shape(out._value)
        if len(own) != len(shape) or any(n == 1 != m for n, m in zip(own, shape)):
            fail(ShapeError, f"np.{name}: out= has the shape {t.hints_of(shape)}, the result {t.hints_of(own)}")
    return store(t, out, result.value, name, casting)


def _compare_with_big_int(t, ufunc, operands):
    """A comparison with a Python int that the other operand's dtype cannot hold: NumPy compares exactly."""
    for k in (0, 1):
        number, other = operands[k], operands[1 - k]
        if not isinstance(other, TracedArray) or other._weak is not None or not other._value.dtype.is_integer:
            continue
        if number.__class__ is int:
            low, high = int_range(other._value.dtype)
            if not low <= number <= high:
                outcome = bool(ufunc(*((number, 0) if k == 0 else (0, number))))
                return wrap(t, broadcast_value(t, t.builder.constant(outcome, dt.bool_), other._value.shape))
        if isinstance(number, TracedScalar) and number._weak is int and other._value.dtype is not dt.i64:
            wide = [x.value if x._value.dtype is dt.u64 else value_of(t, x, dt.i64) for x in operands]
            return wrap(t, UFUNCS[ufunc](t, wide, [v.dtype for v in wide], ()))
    return None


def _power(t, operands):
    """Powers with constant exponents that have a cheaper form than the power op; None for others."""
    base, exponent = operands
    of_integers = isinstance(base, TracedArray) and base._value.dtype.is_integer
    if of_integers and isinstance(exponent, TracedScalar) and exponent._weak is int:
        exponent = exponent.concrete()  # a negative exponent is an error
    if not isinstance(base, TracedArray) or isinstance(base, TracedScalar):
        return None
    if (isinstance(exponent, np.floating) and exponent == 0.5) or exponent.__class__ in (int, float):
        (dtype, _, _) = resolve(np.power, (base, exponent))
    else:
        return None
    if exponent == 0.5 and dtype.is_float and dtype is not dt.f16:  # as NumPy does, including -0.0 and -inf
        return wrap(t, t.emit("sqrt", value_of(t, base, dtype)))
    if dtype.is_integer and exponent < 0:
        fail(ValueError, "Integers to negative integer powers are not allowed.")
    if exponent == -1 and dtype.is_float:
        return wrap(t, t.emit("reciprocal", value_of(t, base, dtype)))
    exact = dtype.is_integer and 0 < exponent <= 64
    if dtype.kind == "c" and exponent in range(-99, 100) and exponent != 0:  # as NumPy does
        exact = True
    if exponent not in (1, 2, 3, 4) and not exact:
        return None
    value = value_of(t, base, dtype)
    multiplied = dtype.kind == "c" and exponent not in UNMULTIPLIED
    one = t.builder.constant(1, dtype) if multiplied else None
    result = by_squaring(functools.partial(t.emit, "mul"), value, abs(int(exponent)), one)
    if exponent < 0:
        return wrap(t, _inverse_power(t, value, result))
    if dtype.kind == "c" and not multiplied:
        zero = t.builder.constant(0, dtype)
        result = t.emit("where", t.emit("eq", value, zero), zero, result)
    return wrap(t, fresh(t, result) if result is value else result)


def _inverse_power(t, base: Value, power: Value) -> Value:
    """``1 / power``, a power of a complex ``base``; NumPy's of 0 is NaN."""
    one, zero, nan = (t.builder.constant(x, base.dtype) for x in (1, 0, complex(np.nan, np.nan)))
    return t.emit("where", t.emit("eq", base, zero), nan, t.emit("div", one, power))
