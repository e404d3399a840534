"""How exact a segment's numbers have to be: what rounding to half types hides, and what operands are known to be."""

from __future__ import annotations

import functools
from collections.abc import Container

from mlirfuse.ir import ops
from mlirfuse.ir.graph import Op, Value


class ReducedPrecision:
    """Which values of the segment ``inside`` end as half types; ``stored``: its inputs and outputs."""

    def __init__(self, inside: set[Op], stored: Container[Value]):
        self.inside, self.stored = inside, stored
        self._found: dict[Value, bool] = {}

    def hide(self, value: Value) -> bool:
        """Whether all that is made of ``value``, by ops that keep its relative error, is rounded to a half type:
        products, quotients, sums of exponentials."""
        found = self._found.get(value)
        if found is None:
            users, stored = self._users.get(value, ()), value in self.stored
            found = bool(users or stored) and (_is_half(value) or not stored) and all(map(self._rounded, users))
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
            return _is_half(op.result)
        created = op.operands[0].op if op.name == "sum" else None
        keeps = op.row.keeps_all or op.name in ("mul", "div", "neg") or (created is not None and created.name == "exp")
        return keeps and self.hide(op.result)


def _is_half(value: Value) -> bool:
    return value.dtype.is_float and value.dtype.bits == 16


def is_less_its_largest(value: Value) -> bool:
    """Whether ``value`` is elements less the largest of them, as a softmax takes the exponentials of: none is above
    0."""
    if value.op is None or value.op.name != "sub":
        return False
    x, largest = value.op.operands
    created = largest.op
    return (
        created is not None and created.name == "max" and bool(created.attrs["keepdims"]) and created.operands[0] is x
    )


def is_share(op: Op) -> bool:
    """Whether ``op`` divides the exponentials of a softmax, none above 1, by their sum, one of which is 1."""
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
