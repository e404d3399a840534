"""Elementwise operations, casts and copies. Most are generated from the op table's ``nvfuser`` names."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from mlirfuse.frontend.nvfuser import promotion
from mlirfuse.frontend.nvfuser.ops.base import OperatorBase
from mlirfuse.frontend.nvfuser.ops.operation import operation
from mlirfuse.frontend.nvfuser.promotion import DataType, from_dtype, to_dtype
from mlirfuse.frontend.nvfuser.values import Scalar, Tensor
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import ops as table


class Elementwise(OperatorBase):
    """Casts, copies, selections and compositions of table ops; the table's own ops are added below the class."""

    @operation
    def cast(self, arg, dtype):
        """``arg`` converted to ``dtype``."""
        arg, target = self._fd.as_val(arg), to_dtype(dtype)
        if isinstance(arg, Tensor):
            if arg.value.dtype.kind == "c" and target.kind != "c":
                raise TypeError(f"cannot cast from {arg.dtype} to {dtype}: use real, imag or abs")
            return self._make(self._b.cast(arg.value, target))
        if arg.constant is not None:
            return Scalar(self._fd, dtype, {"f": float, "c": complex, "b": bool}.get(target.kind, int)(arg.constant))
        out = self._scalar("cast", [arg], arg.dtype, {"to": target})
        out.data_type = dtype
        return out

    @operation
    def set(self, x):
        """A copy of the values."""
        x = self._fd.as_val(x)
        if isinstance(x, Scalar):
            return self._scalar("copy", [x], x.dtype, {})
        return self._make(self._b.op("copy", x.value))

    @operation
    def segment_set(self, x):
        """The same values; a kernel boundary between their producers and consumers."""
        return self._make(self._b.op("segment_set", self._tensor(x).value))

    @operation
    def stride_order(self, arg, stride_order):
        """The same values; an output has this memory order (0: innermost)."""
        arg = self._tensor(arg)
        order = self._fd._stride_order(stride_order, arg.ndim)
        return self._make(self._b.op("copy", arg.value), stride_order=order)

    # -- derived elementwise operations

    @operation
    def log2(self, x):
        """Logarithm to base 2."""
        return self._logarithm(x, "log2", 2)

    @operation
    def log10(self, x):
        """Logarithm to base 10."""
        return self._logarithm(x, "log10", 10)

    def _logarithm(self, x, row: str, base: int):
        """Of complex numbers, the angle is divided as torch divides it: beside an infinite part it has to be equal."""
        (x,) = self._operands(x)
        common = self._common([x], **FLOATS)
        found = self._elementwise(row, [x], common, row)
        if common.kind != "c" or isinstance(x, Scalar):
            return found
        angle = self.div(self.imag(self.log(x)), self._number(math.log(base), common.real))
        return self.complex(self.real(found), angle)

    @operation
    def where(self, condition, x, y):
        """``x`` where condition, else ``y``. Half and BFloat16 are not promoted."""
        condition, x, y = self._operands(condition, x, y)
        kind = condition.value.dtype if isinstance(condition, Tensor) else condition.dtype
        if kind is not dt.bool_:
            raise TypeError(f"Condition should be of DataType Bool, not {promotion.from_name(kind)}")
        common = self._common([x, y], halves_to_float=False)
        if not any(isinstance(o, Tensor) for o in (condition, x, y)):
            if condition.constant is not None:
                return self.cast(x if condition.constant else y, from_dtype(common))
            return _Choice(self._fd, from_dtype(common), expr=("where", (condition, x, y), {}, common))
        values = [self._at(condition, dt.bool_), self._at(x, common), self._at(y, common)]
        self._equal_shapes(values, "where")
        return self._make(self._b.elementwise("where", *values))

    @operation
    def addcmul(self, x, y, z, alpha):
        """``x + alpha * y * z``."""
        return self.add(x, self.mul(self.mul(alpha, y), z))

    @operation
    def lerp(self, x, y, weight):
        """``x + weight * (y - x)``, exact at both ends."""
        operands = self._operands(x, y, weight)
        common = self._common(operands)
        start, end, w = (self.cast(o, from_dtype(common)) for o in operands)
        near = self.add(start, self.mul(w, self.sub(end, start)))
        far = self.sub(end, self.mul(self.sub(end, start), self.sub(self._number(1.0, common), w)))
        half = self._number(0.5, common.real if common.kind == "c" else common)
        return self.where(self.lt(self.abs(w), half), near, far)

    @operation
    def clamp(self, x, min=None, max=None):
        """``x`` within [min, max]; NaN stays NaN."""
        x = self._fd.as_val(x)
        out = x
        for bound, row in ((min, "maximum"), (max, "minimum")):
            if bound is not None:
                bound = self._fd.as_val(bound)
                common = self._common([out, bound], halves_to_float=False)
                out = self._elementwise(row, [out, bound], common)
        return out if out is not x else self.set(x)

    @operation
    def threshold(self, x, threshold, value):
        """``value`` where ``x <= threshold``, else ``x``."""
        x, threshold, value = self._operands(x, threshold, value)
        kept = self._common([x, value], halves_to_float=False)
        below = self._elementwise("le", [x, threshold], self._common([x, threshold]))
        x, value = (
            self.cast(x, from_dtype(kept)),
            self.cast(value, from_dtype(kept)) if isinstance(value, Scalar) else value,
        )
        return self.where(below, value, x)

    @operation
    def rsub(self, x, y):
        """``y - x``."""
        return self.sub(y, x)

    @operation
    def add_alpha(self, x, y, alpha):
        """``x + alpha * y``."""
        return self.add(x, self.mul(alpha, y))

    @operation
    def sub_alpha(self, x, y, alpha):
        """``x - alpha * y``."""
        return self.sub(x, self.mul(alpha, y))

    @operation
    def div(self, lhs, rhs):
        """``lhs / rhs``; of integers, truncated toward zero."""
        operands = self._operands(lhs, rhs)
        common = self._common(operands)
        if common.kind == "b":
            raise TypeError("floats and integers are supported, not bools")
        return self._elementwise("div" if common.kind in "fc" else "trunc_div", operands, common, "div")

    @operation
    def truediv(self, lhs, rhs):
        """``lhs / rhs`` as floats."""
        operands = self._operands(lhs, rhs)
        return self._elementwise("div", operands, self._common(operands, integers_to_float=True), "truediv")

    @operation
    def sign(self, x):
        """-1, 0 or 1; 0 for NaN, as in torch."""
        x = self._fd.as_val(x)
        kind = x.value.dtype if isinstance(x, Tensor) else x.dtype
        if kind.kind not in table.NUMBER:
            raise TypeError(f"floats and integers are supported, not {promotion.from_name(kind)}")
        zero = self._number(0, kind)
        return self.where(
            self.gt(x, zero), self._number(1, kind), self.where(self.lt(x, zero), self._number(-1, kind), zero)
        )


class _Choice(Scalar):
    """``where`` of scalars, whose operands have two dtypes."""

    __slots__ = ()

    def as_value(self, dtype):
        b = self.definition.builder
        if self._value is None:
            condition, x, y = self.expr[1]
            self._value = b.op("where", condition.as_value(dt.bool_), x.as_value(self.dtype), y.as_value(self.dtype))
        return b.cast(self._value, dtype)

    def evaluate(self, bindings):
        condition, x, y = self.expr[1]
        return np.asarray((x if condition.evaluate(bindings) else y).evaluate(bindings)).astype(self.dtype.numpy)[()]


FLOATS = {"integers_to_float": True}  # as for exp: integers and bools become Float
PLAIN = None  # keeps the operand's dtype
TO_BOOL = "bool"
_DEFAULT: dict[str, bool] = {}

_RULES = {
    **dict.fromkeys(("silu", "frac"), PLAIN),
    **dict.fromkeys(("logical_not", "logical_and", "logical_or"), TO_BOOL),
    "atan2": FLOATS,
    "nextafter": {"full_precision": True},
}


def promotion_rule(row: table.OpDef):
    """The promotion of an elementwise op's operands: ``PLAIN``, ``TO_BOOL``, or arguments of
    :func:`promotion.common_dtype`. Unless ``_RULES`` has the op: ``FLOATS`` for one operand where only floats are
    supported, ``PLAIN`` for other unary ops, the defaults for binary ones."""
    if row.name in _RULES:
        return _RULES[row.name]
    if len(row.operands) == 1:
        return FLOATS if row.takes.replace(table.COMPLEX, "") == table.FLOAT else PLAIN
    return _DEFAULT


def _from_row(row: table.OpDef, name: str):
    rule = promotion_rule(row)

    def emit(self, *values):
        operands = self._operands(*values)
        if rule is TO_BOOL:
            operands, common = [self.cast(o, DataType.Bool) for o in operands], dt.bool_
        elif rule is PLAIN:
            common = operands[0].value.dtype if isinstance(operands[0], Tensor) else operands[0].dtype
        else:
            common = self._common(operands, **rule)
        return self._elementwise(row.name, operands, common, name)

    if len(row.operands) == 1:

        def one(self, x):
            return emit(self, x)

        call: Callable = one
    else:

        def two(self, lhs, rhs):
            return emit(self, lhs, rhs)

        call = two

    call.__name__ = name
    call.__qualname__ = f"Operators.{name}"
    word = row.doc.split()[0]
    # no formula is capitalized
    call.__doc__ = f"{row.doc[0].upper() if word.isalpha() and len(word) > 1 else row.doc[0]}{row.doc[1:]}."
    return operation(call)


for _row in table.TABLE.values():
    if _row.kind == "elementwise" and len(_row.operands) in (1, 2):
        for _name in _row.nvfuser:
            if not hasattr(Elementwise, _name):
                setattr(Elementwise, _name, _from_row(_row, _name))
Elementwise.ceilDiv = Elementwise.ceil_div  # type: ignore[attr-defined]  # nvFuser has both names
