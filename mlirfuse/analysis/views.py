"""Results that are views of a tensor: an alias instead of a kernel.

:func:`view_of` follows views (permute, slice, squeeze, expand_dims, broadcast, and a reshape that strides permit) back
to the tensor in memory, with strides and offset as symbolic sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Op, Value
from mlirfuse.ir.sizes import Size

View = tuple[Value, tuple[Size, ...], Size]  # root, strides in elements, offset in elements


def view_of(value: Value, strides: dict[Value, tuple[Size, ...]]) -> View | None:
    """Return ``value`` as a view of a tensor in ``strides``; None where it is computed, or no strides describe it."""
    chain: list[Op] = []
    while value not in strides:
        op = value.op
        if op is None or not op.row.view or len(op.results) != 1 or "sizes" in op.attrs:
            return None
        chain.append(op)
        value = op.operands[0]
    root, found = value, strides[value]
    offset: Size = 0
    for op in reversed(chain):
        if op.name == "slice":
            offset = offset + sz.total(map(sz.mul, op.attrs["start"], found))
        through = view_strides(op.name, op.attrs, op.operands[0].shape, found, op.result.shape)
        if through is None:
            return None
        found = through
    return root, found, offset


def strides_through(op: Op, strides: tuple[Size, ...]) -> tuple[Size, ...] | None:
    """Return the strides of the result of the view ``op`` of a tensor with ``strides``; None where it has none."""
    if op.row.view == "some" and op.name != "slice":
        return strides
    return view_strides(op.name, op.attrs, op.operands[0].shape, strides, op.result.shape)


def view_strides(name: str, attrs: Mapping[str, Any], shape, strides, new) -> tuple[Size, ...] | None:
    """Return the strides of a view, by the op ``name``, with the extents ``new`` of a tensor of these extents and
    strides; None for a reshape that must copy."""
    if name == "permute":
        return tuple(strides[d] for d in attrs["dims"])
    if name == "squeeze":
        return tuple(s for d, s in enumerate(strides) if d not in attrs["axes"])
    if name == "expand_dims":
        out = list(strides)
        for a in sorted(attrs["axes"]):
            out.insert(a, 0)
        return tuple(out)
    if name == "slice":
        return tuple(sz.mul(s, p) for s, p in zip(strides, attrs["step"]))
    if name == "broadcast_in_dim":
        out = [0] * len(new)
        for d, n, s in zip(attrs["dims"], shape, strides):
            out[d] = 0 if n == 1 else s
        return tuple(out)
    return reshaped_strides(shape, strides, new)


def reshaped_strides(shape, strides, new) -> tuple[Size, ...] | None:
    """Return the strides of a reshape without a copy: each run of old dimensions that is one dimension in memory is
    split anew; None if that is impossible."""
    runs: list[list[Size]] = []  # [extent, stride of its innermost element]
    for n, s in zip(shape, strides):
        if n == 1:
            continue
        if runs and runs[-1][1] == sz.mul(n, s):
            runs[-1] = [sz.mul(runs[-1][0], n), s]
        else:
            runs.append([n, s])
    out: list[Size] = []
    for k, n in reversed(list(enumerate(new))):
        if (
            len(runs) == 1 and n != 1
        ):  # everything left is in one run, whose extent is the product of the rest of the new shape
            inner = sz.contiguous_strides(new[: k + 1])
            return *(0 if m == 1 else sz.mul(s, runs[0][1]) for m, s in zip(new, inner)), *reversed(out)
        if n == 1:
            out.append(0)
            continue
        if not runs:
            return None
        extent, stride = runs[-1]
        rest = sz.quotient(extent, n)
        if rest is None:
            return None
        out.append(stride)
        if rest == 1:
            runs.pop()
        else:
            runs[-1] = [rest, sz.mul(stride, n)]
    return tuple(reversed(out)) if not runs else None
