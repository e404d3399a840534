"""The assumptions of a ``fusion.guard`` about its inputs, and the check of a call's tensors against them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.dtypes import DType
from mlirfuse.ir.graph import Op
from mlirfuse.ir.sizes import Size


class Described(NamedTuple):
    """A tensor of a call: strides in elements; ``align``: a divisor of its address, in bytes."""

    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    align: int

    @classmethod
    def of(cls, array: np.ndarray) -> Described:
        address = array.__array_interface__["data"][0]
        strides = tuple(stride // array.itemsize for stride in array.strides)
        return cls(dt.of(array.dtype), array.shape, strides, address & -address)


def equalities(op: Op) -> list[tuple[Size, Size]]:
    """Return the pairs of sizes that a kernel with ``op`` assumes to be equal, and that are not known to be."""
    pairs: list[tuple[Size, Size]] = []
    if op.row.kind == "elementwise":
        shapes = [v.shape for v in (*op.operands, *op.results) if v.shape]
        for extents in zip(*shapes):
            first, *others = [n for n in extents if n != 1] or [1]
            pairs += [(first, n) for n in others]
    elif op.name == "reshape":
        pairs.append((op.operands[0].numel, op.result.numel))
    elif op.name in ("broadcast_to", "broadcast_in_dim"):
        given, created = op.operands[0].shape, op.result.shape
        dims = op.attrs.get("dims")
        dims = range(len(created) - len(given), len(created)) if dims is None else dims
        pairs += [(n, created[d]) for n, d in zip(given, dims) if n != 1]
    elif op.name == "squeeze":
        pairs += [(op.operands[0].shape[axis], 1) for axis in op.attrs["axes"]]
    elif op.name in ("concatenate", "take_along_axis"):
        axis = op.attrs["axis"] % max(op.operands[0].rank, 1)
        for other in op.operands[1:]:
            both = zip(op.operands[0].shape, other.shape)
            pairs += [(a, b) for k, (a, b) in enumerate(both) if k != axis and 1 not in (a, b)]
    elif op.name == "index_put_accumulate":
        for indices, values in zip(op.operands[1::2], op.operands[2::2]):
            pairs += zip((indices.shape[0], *op.operands[0].shape[1:]), values.shape)
    return [(a, b) for a, b in dict.fromkeys(pairs) if a != b]


def substituted(attrs: dict, same: Mapping[str, Size]) -> dict:
    """Return the attributes of a ``fusion.guard`` with the symbols ``same`` replaced by other sizes."""

    def renamed(text: str) -> str:
        return str(sz.substitute(sz.parse(text), same))

    def listed(text: str) -> str:
        head, bracket, sizes = text.partition("[")
        return head + bracket + ", ".join(renamed(n) for n in sizes.rstrip("]").split(", ") if n) + "]" * bool(bracket)

    out = dict(attrs)
    for key in ("types", "strides"):
        if key in attrs:
            out[key] = [listed(text) for text in attrs[key]]
    if "equal" in attrs:
        sides = [[renamed(side) for side in text.split(" == ")] for text in attrs["equal"]]
        out["equal"] = [" == ".join(pair) for pair in sides if pair[0] != pair[1]]
        if not out["equal"]:
            del out["equal"]
    return out


def failed_assumption(guard: Op, tensors: list[Described], symbols: dict[str, int]) -> str | None:
    """Return the assumption of a guard that ``tensors`` violate, as text, or None. ``symbols``: the sizes of the
    call."""
    for k, (text, tensor) in enumerate(zip(guard.attrs["types"], tensors)):
        dtype, _, extents = text.partition("[")
        shape = [sz.parse(n) for n in extents.rstrip("]").split(", ") if n]
        if tensor.dtype.name != dtype:
            return f"input {k} is {tensor.dtype}, not {dtype}"
        if len(shape) != len(tensor.shape):
            return f"input {k} has rank {len(tensor.shape)}, not {len(shape)}"
        for axis, (size, extent) in enumerate(zip(shape, tensor.shape)):
            expected = sz.substitute(size, symbols)
            if isinstance(expected, int) and expected != extent:
                return f"input {k} has extent {extent} in dimension {axis}, not {expected}"
        if "strides" in guard.attrs:
            problem = _layout_problem(tensor, guard.attrs["strides"][k], guard.attrs["aligns"][k], symbols)
            if problem:
                return f"input {k} {problem}"
    for text in guard.attrs.get("equal", ()):
        a, b = (sz.substitute(sz.parse(side), symbols) for side in text.split(" == "))
        if a != b:
            return f"{text} does not hold: {a} against {b}"
    return None


def _layout_problem(tensor: Described, strides: str, align: int, symbols: dict[str, int]) -> str | None:
    if 0 not in tensor.shape and tensor.align % align:
        return f"is not aligned to {align} bytes"
    if strides == "any":
        return None
    expected = [sz.substitute(sz.parse(n), symbols) for n in strides.strip("[]").split(", ") if n]
    for axis, (stride, given, extent) in enumerate(zip(expected, tensor.strides, tensor.shape)):
        if isinstance(stride, int) and extent > 1 and stride != given:
            return f"has stride {given} in dimension {axis}, not {stride}"
    return None
