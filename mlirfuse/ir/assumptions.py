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

_RELATIONS = {"equal": " == ", "within": " <= "}  # attributes of a guard, with what stands between two sizes


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


def substituted(attrs: dict, same: Mapping[str, Size]) -> dict:
    """Return the attributes of a ``fusion.guard`` with the symbols ``same`` replaced by other sizes."""

    def renamed(size: Size) -> Size:
        return sz.substitute(size, same)

    def listed(text: str) -> str:
        head, bracket, sizes = text.partition("[")
        return head + bracket + ", ".join(str(renamed(n)) for n in listed_sizes(bracket + sizes)) + "]" * bool(bracket)

    out = dict(attrs)
    for key in ("types", "strides"):
        if key in attrs:
            out[key] = [listed(text) for text in attrs[key]]
    for key in _RELATIONS:
        pairs = [(renamed(a), renamed(b)) for a, b in related(attrs, key)]
        out.pop(key, None)
        out |= relation(key, pairs)
    return out


def listed_sizes(text: str) -> tuple[Size, ...]:
    """The sizes in the brackets of a type (``f32[s0, 4]``) or of strides."""
    return sz.parse_all(text.partition("[")[2].rstrip("]"))


def relation(key: str, pairs: list[tuple[Size, Size]]) -> dict[str, list[str]]:
    """The attribute ``key`` of a guard that states ``pairs`` of sizes: "equal" ones, or each "within" the second."""
    texts = [f"{a}{_RELATIONS[key]}{b}" for a, b in dict.fromkeys(pairs) if a != b]
    return {key: texts} if texts else {}


def related(attrs: Mapping, key: str) -> list[tuple[Size, Size]]:
    """The pairs that the attribute ``key`` of a guard states."""
    return [(sz.parse(a), sz.parse(b)) for a, b in (text.split(_RELATIONS[key]) for text in attrs.get(key, ()))]


def stated_equalities(guard: Op) -> list[tuple[Size, Size]]:
    """The equalities of sizes that hold where the tensors meet what ``guard`` states."""
    pairs = related(guard.attrs, "equal")
    for text, value in zip(guard.attrs["types"], guard.operands):
        pairs += zip(listed_sizes(text), value.shape)
    return [(a, b) for a, b in pairs if a != b]


def guard_symbols(guard: Op) -> set[str]:
    """The symbols in what a guard states."""
    sizes = [n for text in guard.attrs["types"] for n in listed_sizes(text)]
    sizes += [n for text in guard.attrs.get("strides", ()) if text != "any" for n in listed_sizes(text)]
    sizes += [n for key in _RELATIONS for pair in related(guard.attrs, key) for n in pair]
    return sz.symbols_of(sizes)


def failed_assumption(guard: Op, tensors: list[Described], symbols: dict[str, int]) -> str | None:
    """Return the assumption of a guard that ``tensors`` violate, as text, or None. ``symbols``: the sizes of the
    call."""
    for k, (text, tensor) in enumerate(zip(guard.attrs["types"], tensors)):
        dtype, shape = text.partition("[")[0], listed_sizes(text)
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
    for key, between in _RELATIONS.items():
        for pair in related(guard.attrs, key):
            a, b = (sz.substitute(side, symbols) for side in pair)
            if not (a == b or (key == "within" and isinstance(a, int) and isinstance(b, int) and a < b)):
                return f"{pair[0]}{between}{pair[1]} does not hold: {a} against {b}"
    return None


def _layout_problem(tensor: Described, strides: str, align: int, symbols: dict[str, int]) -> str | None:
    if 0 not in tensor.shape and tensor.align % align:
        return f"is not aligned to {align} bytes"
    if strides == "any":
        return None
    expected = [sz.substitute(n, symbols) for n in listed_sizes(strides)]
    for axis, (stride, given, extent) in enumerate(zip(expected, tensor.strides, tensor.shape)):
        if isinstance(stride, int) and extent > 1 and stride != given:
            return f"has stride {given} in dimension {axis}, not {stride}"
    return None
