"""Elementwise overloads. Most map to the table's op of the same name."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch

from mlirfuse.frontend.torch.ops.rules import RULES, Context, Unsupported, dtype_of, element, rule
from mlirfuse.frontend.torch.ops.shapes import in_own_memory
from mlirfuse.frontend.torch.torch_private import disable_current_modes
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.graph import Value
from mlirfuse.ir.ops import TABLE, OpDef


def _of_one(row: OpDef) -> Callable[..., Value]:
    """The rule of a unary op: computes in the result's dtype (a float for integers where the op takes only floats), or
    for a predicate in the operand's."""

    def lower(c: Context, x: Value) -> Value:
        dtype = element(x) if row.result == "bool" else c.dtype
        if dtype.kind not in row.takes:
            raise Unsupported(f"{row.name} of {dtype}")
        return c.elementwise(row.name, x, dtype=dtype)

    return lower


def _of_two(row: OpDef) -> Callable[..., Value]:
    def lower(c: Context, a: Any, b: Any) -> Value:
        return c.elementwise(row.name, a, b, dtype=c.common_dtype(), rounds=row.result == "bool")

    return lower


@rule("aten.sign.default")
def sign(c: Context, x: Value) -> Value:
    """torch's sign of NaN is 0; the table's is NaN."""
    created = _of_one(TABLE["sign"])(c, x)
    if not c.dtype.is_float:
        return created
    return c.op("where", c.elementwise("isnan", x, dtype=c.dtype), c.value(0, c.dtype), created)


@rule("aten.add.Tensor", "aten.add.Scalar")
def add(c: Context, a: Any, b: Any, alpha: Any = 1) -> Value:
    return _with_alpha(c, "add", a, b, alpha)


@rule("aten.sub.Tensor", "aten.sub.Scalar")
def sub(c: Context, a: Any, b: Any, alpha: Any = 1) -> Value:
    return _with_alpha(c, "sub", a, b, alpha)


@rule("aten.rsub.Tensor", "aten.rsub.Scalar")
def rsub(c: Context, a: Any, b: Any, alpha: Any = 1) -> Value:
    return _with_alpha(c, "sub", b, a, alpha)


def _with_alpha(c: Context, name: str, a: Any, b: Any, alpha: Any) -> Value:
    """``a`` plus or minus alpha times ``b``; float16 and bfloat16 round once, as in eager."""
    if alpha == 1:
        if c.rounds and c.out.device.type == "cpu":  # only here, and only on the CPU, eager rounds the number too
            a, b = c.value(a, c.dtype), c.value(b, c.dtype)
        return c.elementwise(name, a, b, dtype=c.dtype)
    if c.dtype is dt.bool_:
        raise Unsupported("alpha of bools")
    wide = c.dtype.compute
    scaled = c.b.elementwise("mul", c.value(b, wide), c.value(alpha, wide))
    return c.b.cast(c.b.elementwise(name, c.value(a, wide), scaled), c.dtype)


@rule("aten.mul.Tensor", "aten.mul.Scalar")
def mul(c: Context, a: Any, b: Any) -> Value:
    return _by_number(c, "mul", a, b)


@rule("aten.div.Tensor", "aten.div.Scalar", "aten.true_divide.Tensor")
def div(c: Context, a: Any, b: Any) -> Value:
    return _by_number(c, "div", a, b)


def _by_number(c: Context, name: str, a: Any, b: Any) -> Value:
    """On the CPU eager does not round a wider 0-d second operand to float16 or bfloat16."""
    wider = isinstance(b, Value) and not b.rank and element(b).is_float and element(b).bits > c.dtype.bits
    if wider and c.dtype.is_float and c.out.device.type == "cpu":
        wide = c.dtype.compute
        return c.b.cast(c.b.elementwise(name, c.value(a, wide), c.value(b, wide)), c.dtype)
    return c.elementwise(name, a, b, dtype=c.dtype)


@rule("aten.div.Tensor_mode", "aten.div.Scalar_mode")
def div_mode(c: Context, a: Any, b: Any, rounding_mode: str | None = None) -> Value:
    if rounding_mode is None:
        return div(c, a, b)
    return _divided(c, {"trunc": "trunc_div", "floor": "floor_div"}[rounding_mode], a, b)


@rule("aten.floor_divide.default")
def floor_divide(c: Context, a: Any, b: Any) -> Value:
    return _divided(c, "floor_div", a, b)


@rule("aten.remainder.Tensor", "aten.remainder.Scalar")
def remainder(c: Context, a: Any, b: Any) -> Value:
    """torch's zeros have the dividend's sign; the table's, like NumPy's, the divisor's."""
    if not c.dtype.is_float:
        return _divided(c, "mod", a, b)
    wide = c.dtype.compute
    a, by = (c.b.cast(c.value(x, c.dtype), wide) for x in (a, b))
    rest = c.b.elementwise("fmod", a, by)
    zero = c.b.constant(0, wide)
    apart = c.b.elementwise("ne", c.op("lt", by, zero), c.op("lt", rest, zero))
    moved = c.b.elementwise("logical_and", c.op("ne", rest, zero), apart)
    return c.b.cast(c.b.elementwise("where", moved, c.b.elementwise("add", rest, by), rest), c.dtype)


@rule("aten.fmod.Tensor", "aten.fmod.Scalar")
def fmod(c: Context, a: Any, b: Any) -> Value:
    return _divided(c, "fmod", a, b)


def _divided(c: Context, name: str, a: Any, b: Any) -> Value:
    """Integer division by 0 raises in torch on the CPU, so only a nonzero constant is supported."""
    if not c.dtype.is_float and (isinstance(b, Value) or b == 0):
        raise Unsupported("integers divided by a tensor, which may hold a 0")
    if name in ("trunc_div", "floor_div"):
        return _by_number(c, name, a, b)
    return c.elementwise(name, a, b, dtype=c.dtype, rounds=name == "fmod")


def _check_is_integer(c: Context) -> None:
    if c.out.dtype.is_floating_point:
        raise Unsupported("shifts of floats, which multiply by powers of two, have no kernel")


@rule(
    "aten.bitwise_left_shift.Tensor",
    "aten.bitwise_left_shift.Tensor_Scalar",
    "aten.__lshift__.Tensor",
    "aten.__lshift__.Scalar",
)
def shift_left(c: Context, a: Any, b: Any) -> Value:
    _check_is_integer(c)
    return c.elementwise("shift_left", a, b, dtype=c.dtype)


@rule(
    "aten.bitwise_right_shift.Tensor",
    "aten.bitwise_right_shift.Tensor_Scalar",
    "aten.__rshift__.Tensor",
    "aten.__rshift__.Scalar",
)
def shift_right(c: Context, a: Any, b: Any) -> Value:
    _check_is_integer(c)
    return c.elementwise("shift_right", a, b, dtype=c.dtype)


@rule("aten.pow.Tensor_Scalar", "aten.pow.Tensor_Tensor", "aten.pow.Scalar")
def power(c: Context, a: Any, b: Any) -> Value:
    dtype = c.dtype
    if dtype is dt.bool_:
        raise Unsupported("powers of bools")
    if isinstance(b, (int, float)) and not isinstance(b, bool):
        wide = dtype.compute
        x = c.value(a, wide)
        simple: dict[float, Callable[[], Value]] = {
            2: lambda: c.op("mul", x, x),
            3: lambda: c.op("mul", c.op("mul", x, x), x),
            1: lambda: x,
        }
        if dtype.is_float:
            simple |= {
                0.5: lambda: c.op("sqrt", x),
                -0.5: lambda: c.op("rsqrt", x),
                -1: lambda: c.op("reciprocal", x),
                -2: lambda: c.op("reciprocal", c.op("mul", x, x)),
            }
        if b in simple:
            return c.b.cast(simple[b](), dtype)
        if b < 0 and not dtype.is_float:
            raise Unsupported("integers to a negative power")
    elif not dtype.is_float:
        raise Unsupported("integers to the power of a tensor, which may be negative")
    return c.elementwise("pow", a, b, dtype=dtype)


@rule("aten.where.self")
def where(c: Context, condition: Value, a: Any, b: Any) -> Value:
    dtype = c.dtype
    return c.b.elementwise("where", c.b.cast(condition, dt.bool_), c.value(a, dtype), c.value(b, dtype))


@rule("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def masked_fill(c: Context, x: Value, mask: Value, value: Any) -> Value:
    return where(c, mask, value, x)


@functools.cache
def _ignores_nan(device: torch.device) -> bool:
    """Whether a lone bound of ``clamp`` that is NaN changes nothing on ``device``: releases differ."""
    with disable_current_modes(), torch.no_grad():
        return bool(torch.zeros((), device=device).clamp(min=math.nan).isfinite())


@rule("aten.clamp.default")
def clamp_by_numbers(c: Context, x: Any, min: Any = None, max: Any = None) -> Value:
    bounds = [bound for bound in (min, max) if bound is not None]
    if len(bounds) == 1 and bounds[0] != bounds[0] and _ignores_nan(c.out.device):
        return c.value(x, c.dtype)
    return clamp(c, x, min, max)


@rule("aten.clamp.Tensor", "aten.hardtanh.default")
def clamp(c: Context, x: Any, min: Any = None, max: Any = None) -> Value:
    dtype = c.dtype
    wide = dtype.compute
    y = c.value(x, wide)
    for name, outside, bound in (("maximum", "lt", min), ("minimum", "gt", max)):
        if bound is None:
            continue
        limit = c.value(bound, wide)
        if isinstance(bound, (int, float)) and bound == 0 and dtype.is_float:  # a zero keeps its sign
            y = c.b.elementwise("where", c.b.elementwise(outside, y, limit), limit, y)
        else:
            y = c.b.elementwise(name, y, limit)
    return c.b.cast(y, dtype)


@rule("aten.relu.default")
def relu(c: Context, x: Value) -> Value:
    return clamp(c, x, 0)


@rule("aten.fmax.default")
def fmax(c: Context, a: Value, b: Value) -> Value:
    return _first_unless(c, "ge", a, b)


@rule("aten.fmin.default")
def fmin(c: Context, a: Value, b: Value) -> Value:
    return _first_unless(c, "le", a, b)


def _first_unless(c: Context, relation: str, a: Value, b: Value) -> Value:
    """``a`` where ``a relation b`` holds or ``b`` is NaN, else ``b``: for equal zeros the first."""
    a, b = c.value(a, c.dtype), c.value(b, c.dtype)
    taken = c.b.elementwise(relation, a, b)
    if c.dtype.is_float:
        taken = c.b.elementwise("logical_or", taken, c.op("isnan", b))
    return c.b.elementwise("where", taken, a, b)


@rule("aten.clamp_min.default", "aten.clamp_min.Tensor")
def clamp_min(c: Context, x: Any, min: Any) -> Value:
    return clamp(c, x, min)


@rule("aten.clamp_max.default", "aten.clamp_max.Tensor")
def clamp_max(c: Context, x: Any, max: Any) -> Value:
    return clamp(c, x, None, max)


@rule("aten.addcmul.default")
def addcmul(c: Context, x: Any, a: Any, b: Any, value: Any = 1) -> Value:
    return _added(c, "mul", x, a, b, value)


@rule("aten.addcdiv.default")
def addcdiv(c: Context, x: Any, a: Any, b: Any, value: Any = 1) -> Value:
    return _added(c, "div", x, a, b, value)


def _added(c: Context, name: str, x: Any, a: Any, b: Any, value: Any) -> Value:
    dtype = c.dtype
    wide = dtype.compute
    if name == "div" and not wide.is_float:
        raise Unsupported("quotients of integers")
    if name == "mul":
        product = c.b.elementwise("mul", c.value(a, wide), c.value(b, wide))
        scaled = c.b.elementwise("mul", product, c.value(value, wide)) if value != 1 else product
    else:
        scaled = c.b.elementwise("div", c.value(a, wide), c.value(b, wide))
        scaled = c.b.elementwise("mul", scaled, c.value(value, wide)) if value != 1 else scaled
    return c.b.cast(c.b.elementwise("add", c.value(x, wide), scaled), dtype)


@rule("prims.fma.default")
def fma(c: Context, a: Any, b: Any, x: Any) -> Value:
    return _added(c, "mul", x, a, b, 1)


@rule("aten.gelu.default")
def gelu(c: Context, x: Value, approximate: str = "none") -> Value:
    return c.op("gelu", x, approximate=approximate)


@rule("aten.gelu_backward.default")
def gelu_backward(c: Context, dy: Value, x: Value, approximate: str = "none") -> Value:
    return c.op("gelu_backward", c.b.cast(dy, element(x)), x, approximate=approximate)


@rule("aten.clone.default", "aten.lift_fresh_copy.default", "aten.lift_fresh.default")
def clone(c: Context, x: Value, memory_format: Any = None) -> Value:
    return in_own_memory(c, x)


@rule("aten.copy.default")
def copy(c: Context, x: Value, source: Value, non_blocking: bool = False) -> Value:
    return in_own_memory(c, c.spread(c.b.cast(source, c.dtype)))


@rule("aten._to_copy.default")
def to_copy(c: Context, x: Value, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None,
            non_blocking: bool = False, memory_format: Any = None) -> Value:  # fmt: skip
    if x.dtype is c.dtype:
        return in_own_memory(c, x)
    return converted(c, x)


@rule("prims.convert_element_type.default")
def convert_element_type(c: Context, x: Value, dtype: torch.dtype) -> Value:
    return in_own_memory(c, x) if x.dtype is dtype_of(dtype) else converted(c, x)


def converted(c: Context, x: Value) -> Value:
    """Float to integer as in C: out-of-range values depend on the machine."""
    return c.b.cast(x, c.dtype)


@rule("aten.leaky_relu.default")
def leaky_relu(c: Context, x: Value, negative_slope: float = 0.01) -> Value:
    wide = c.dtype.compute
    y = c.value(x, wide)
    if not math.isfinite(negative_slope):
        raise Unsupported("a slope that is not finite")
    scaled = c.op("mul", y, c.b.constant(negative_slope, wide))
    return c.b.cast(c.op("where", c.op("gt", y, c.b.constant(0, wide)), y, scaled), c.dtype)


@rule("aten.elu.default")
def elu(c: Context, x: Value, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Value:
    wide = c.dtype.compute
    y = c.value(x, wide)
    number = lambda n: c.b.constant(n, wide)  # noqa: E731
    low = c.op("mul", c.op("expm1", c.op("mul", y, number(input_scale))), number(alpha * scale))
    high = c.op("mul", y, number(scale))
    return c.b.cast(c.op("where", c.op("gt", y, number(0)), high, low), c.dtype)


for _row in TABLE.values():  # last: the rules above are for the ops whose meaning differs from the table's
    for _name in _row.torch:
        if len(_row.operands) == 1:
            RULES.setdefault(f"aten.{_name}.default", _of_one(_row))
        else:
            for _overload in ("Tensor", "Scalar", "default"):
                RULES.setdefault(f"aten.{_name}.{_overload}", _of_two(_row))
