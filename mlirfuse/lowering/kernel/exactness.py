"""The precision that a segment's values need: errors that rounding to 16-bit floats hides, and known operand ranges."""

from __future__ import annotations

import functools
from collections.abc import Container

from mlirfuse.ir import ops
from mlirfuse.ir.graph import Op, Value


class ReducedPrecision:
    """Which values of the segment ``inside`` are eventually rounded to 16-bit floats; ``stored``: its inputs and
    outputs."""

    def __init__(self, inside: set[Op], stored: Container[Value]):
        self.inside, self.stored = inside, stored
        self._found: dict[Value, bool] = {}

    def hide(self, value: Value) -> bool:
        """Whether everything computed from ``value``, by ops that preserve its relative error (products, quotients,
        sums of exponentials), is rounded to a 16-bit float."""
        found = self._found.get(value)
        if found is None:
            users, stored = self._users.get(value, ()), value in self.stored
            found = bool(users or stored) and (_is_16bit_float(value) or not stored) and all(map(self._rounded, users))
            self._found[value] = found
        return found

    @functools.cached_property
    def _users(self) -> dict[Value, list[Op]]:
        """The segment's ops that use each value."""
        out: dict[Value, list[Op]] = {}
        for op in self.inside:
            for value in dict.fromkeys(op.operands):
                out.setdefault(value, []).append(op)
        return out

    def _rounded(self, op: Op) -> bool:
        if op.name == "cast":
            return _is_16bit_float(op.result)
        producer = op.operands[0].op if op.name == "sum" else None
        keeps = (
            op.row.keeps_all or op.name in ("mul", "div", "neg") or (producer is not None and producer.name == "exp")
        )
        return keeps and self.hide(op.result)


def _is_16bit_float(value: Value) -> bool:
    return value.dtype.is_float and value.dtype.bits == 16


def is_less_its_largest(value: Value) -> bool:
    """Whether ``value`` is a tensor minus its maximum, as in a softmax: no element is above 0."""
    if value.op is None or value.op.name != "sub":
        return False
    x, largest = value.op.operands
    producer = largest.op
    return (
        producer is not None
        and producer.name == "max"
        and bool(producer.attrs["keepdims"])
        and producer.operands[0] is x
    )


def is_share(op: Op) -> bool:
    """Whether ``op`` divides the exponentials of a softmax, none above 1, by their sum, of which one term is 1."""
    dividend, total = op.operands[0].op, op.operands[1].op
    while total is not None and total.name in ("expand_dims", "broadcast_in_dim"):
        total = total.operands[0].op
    if dividend is None or dividend.name != "exp" or total is None or total.name != "sum":
        return False
    shifted, rank = dividend.operands[0], total.operands[0].rank
    if total.operands[0] is not op.operands[0] or not is_less_its_largest(shifted):
        return False
    assert shifted.op is not None and shifted.op.operands[1].op is not None
    return set(ops.axes_of(shifted.op.operands[1].op.attrs, rank)) == set(ops.axes_of(total.attrs, rank))


def is_size(value: Value) -> bool:
    """Whether ``value`` is a number of elements."""
    while value.op is not None and (value.op.name == "cast" or value.op.row.keeps_all):
        value = value.op.operands[0]
    return value.op is not None and value.op.name == "size"
