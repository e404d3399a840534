"""The definition of a row of the op table, the table, and inference from rows: element types and shapes of results.

All operands of an op have one element type (front ends insert the casts), except where ``operand_dtypes`` overrides
that. Elementwise operands have the result's rank, or rank 0; extents of 1 broadcast. 16-bit floats compute in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np

from mlirfuse.core.errors import ShapeError
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.dtypes import DType
from mlirfuse.ir.ops.attributes import BY_NAME, AttrType

FLOAT, INT, BOOL, COMPLEX, NARROW = "f", "iu", "b", "c", "n"
NUMBER = FLOAT + INT
ANY = NUMBER + BOOL
ALL_TYPES = ANY + COMPLEX + NARROW

EXPENSIVE = 8  # an op of a higher cost is not recomputed

Kind = Literal[
    "elementwise",
    "reduce",
    "partial",
    "scan",
    "accumulate",
    "product",
    "shape",
    "index",
    "create",
    "query",
    "random",
    "library",
    "composite",
    "update",
    "foreign",
]


@dataclass(frozen=True)
class OpDef:
    """A row of the table.

    ``takes``: the dtype kinds of its operands (:attr:`DType.kind`). ``result``: "same", "bool", "i64", "f32", "real" or
    "complex" (of the operand), "to" or "dtype" (the attribute) or a function of (dtypes, attrs) that returns the type
    of each result. ``operands``: names; a trailing ``*`` marks a variable number. ``attrs``: name to default (``...``:
    required); ``types``: their types where the name does not determine them (:data:`attributes.BY_NAME`).
    ``infer(shapes, attrs)`` returns the results' shapes. ``operand_dtypes(dtypes, attrs)``: an error text or None,
    where "one element type" is not the rule. ``ref`` computes it on NumPy arrays. ``numpy`` and ``nvfuser``: its names
    in the front ends; ``torch``: the ATen ops that compute the same for each element, in all their overloads.
    ``expand(b, *values, **attrs)`` rewrites it into other ops through a :class:`mlirfuse.ir.builder.Builder`. ``cost``:
    roughly the number of instructions per element.

    Properties for passes, analyses and schedulers:

    ``view``: the results are views of the operand: of "all" of its elements, each once; of all of them, "repeated"; or
    of "some". ``in_order``: the result has all elements of the operand in their row-major order, repetitions aside.
    ``indexed``: the kernel computes with the result's index along a dimension, which therefore must exist. ``cuts``:
    its attributes with the indices along a dimension at which another part of the operand begins; no vector crosses
    them. ``accumulator``: what a reduction carries besides values: "position" of the chosen element, "moments" (count,
    mean, squared deviations), "truth" of the elements. ``barrier``: its operand and its users go into different
    kernels. ``calls``: runs code that the table does not know, whose results may alias its operands. ``identity``: the
    result's elements are the operand's, at the same indices. ``chooses``: each element is one of an operand's, bit for
    bit.
    """

    name: str
    kind: Kind
    operands: tuple[str, ...]
    doc: str
    takes: str = ANY
    result: str | Callable = "same"
    attrs: dict[str, Any] = field(default_factory=dict)
    types: dict[str, AttrType] = field(default_factory=dict)
    infer: Callable | None = None
    ref: Callable | None = None
    expand: Callable | None = None
    numpy: tuple[str, ...] = ()
    nvfuser: tuple[str, ...] = ()
    torch: tuple[str, ...] = ()
    cost: int = 1
    operand_dtypes: Callable | None = None
    view: Literal["", "all", "repeated", "some"] = ""
    in_order: bool = False
    indexed: bool = False
    cuts: tuple[str, ...] = ()
    accumulator: Literal["value", "position", "moments", "truth"] = "value"
    barrier: bool = False
    calls: bool = False
    identity: bool = False
    chooses: bool = False

    @property
    def several(self) -> bool:
        """Whether it may have more than one result."""
        return "sizes" in self.attrs or callable(self.result)

    @property
    def variadic(self) -> bool:
        """Whether it has a variable number of operands or results."""
        return self.several or any(name.endswith("*") for name in self.operands)

    @property
    def keeps_all(self) -> bool:
        """Whether it is a view of all elements of the operand."""
        return self.view in ("all", "repeated")

    @property
    def only_moves(self) -> bool:
        """Whether its results' elements are elements of its operands, bit for bit."""
        return self.kind in ("shape", "index") or self.identity or self.chooses

    @property
    def literal(self) -> bool:
        """Whether it is a constant or a size: known without arguments, 0-d."""
        return self.kind == "create" and not self.operands and "shape" not in self.attrs

    @property
    def may_be_copied(self) -> bool:
        """Whether `fusion-segment` may duplicate it in several segments: it is cheap and reads no more memory than its
        result has."""
        return self.kind in ("create", "elementwise") or self.in_order or self.view == "all"

    @property
    def recomputable(self) -> bool:
        """Whether `fusion-segment` may recompute it in each segment that reads it, where that costs less than storing
        it: it has one result, of which no element depends on many."""
        return not self.several and (self.may_be_copied or self.kind in ("index", "shape"))

    @property
    def statistic(self) -> bool:
        """Whether it is a composite reduction that a scheduler may compile as one: mean, var, std."""
        return self.kind == "reduce" and self.expand is not None

    @cached_property
    def attr_types(self) -> dict[str, AttrType]:
        """The type of each attribute."""
        return {key: self.types.get(key) or BY_NAME[key] for key in self.attrs}


TABLE: dict[str, OpDef] = {}
FOREIGN = OpDef("", "foreign", (), "an op of another dialect, which is not in the table")


def row(name: str, kind: Kind, operands: str, doc: str, numpy: str = "", nvfuser: str = "", torch: str = "",
        **fields: Any) -> None:  # fmt: skip
    """Add a row; operands and front ends' names are separated by spaces."""
    known = {"numpy": numpy, "nvfuser": nvfuser, "torch": torch}
    fields.update({front_end: tuple(names.split()) for front_end, names in known.items()})
    TABLE[name] = OpDef(name, kind, tuple(operands.split()), doc, **fields)


def lookup(name: str) -> OpDef:
    """Return the row of the op ``name``, :data:`FOREIGN` for an op that is not in the table."""
    return TABLE.get(name, FOREIGN)


# ----------------------------------------------------------------------------------------------------------------
# inference

_KINDS = {
    "f": "floats",
    "i": "integers",
    "u": "unsigned integers",
    "b": "bools",
    "c": "complex",
    "n": "float8",
}


def result_dtypes(row: OpDef, operand_dtypes: list[DType], attrs: dict[str, Any]) -> list[DType]:
    """Return the element types of the results. Raises TypeError, with operand and rule, where operands do not fit."""
    if row.operand_dtypes:
        problem = row.operand_dtypes(operand_dtypes, attrs)
        if problem:
            raise TypeError(f"{row.name}: {problem}")
    elif len(set(operand_dtypes)) > 1:
        raise TypeError(
            f"{row.name}: operands are {', '.join(map(str, operand_dtypes))}; all must have one element type"
        )
    elif operand_dtypes and operand_dtypes[0].kind not in row.takes:
        raise TypeError(
            f"{row.name}: operand 0 is {operand_dtypes[0]}; it takes {', '.join(_KINDS[k] for k in row.takes)}"
        )
    if callable(row.result):
        return row.result(operand_dtypes, attrs)
    return [_result_dtype(row, operand_dtypes, attrs)] * (len(attrs["sizes"]) if row.several else 1)


def _result_dtype(row: OpDef, dtypes: list[DType], attrs: dict[str, Any]) -> DType:
    match row.result:
        case "same":  # where operands differ in type, that of the values rather than of the indices or conditions
            return dtypes[-1] if row.kind == "elementwise" else dtypes[0]
        case "bool":
            return dt.bool_
        case "f32":
            return dt.f32
        case "i64":
            return dt.i64
        case "real":
            return dtypes[0].real
        case "complex":
            return dtypes[0].complex
    assert isinstance(row.result, str)  # callers handle functions
    return attrs[row.result]


def result_shapes(row: OpDef, shapes, attrs: dict[str, Any]) -> list[tuple]:
    """Return the symbolic shapes of the results. Raises :class:`ShapeError`."""
    return (row.infer or _elementwise)(list(shapes), attrs)


def _elementwise(shapes, attrs):
    return [broadcast_shapes(shapes)]


def broadcast_shapes(shapes) -> tuple:
    """Return the common shape of shapes of one rank (or rank 0) where extents of 1 broadcast. Unequal symbols are
    assumed to be equal; each call checks that."""
    shapes = [s for s in shapes if s] or [()]
    ranks = {len(s) for s in shapes}
    if len(ranks) > 1:
        raise ShapeError(f"operands of ranks {sorted(ranks)}: all must have one rank, or rank 0")
    out = []
    for extents in zip(*shapes):
        big = [e for e in extents if e != 1]
        known = {e for e in big if isinstance(e, int)}
        if len(known) > 1:
            raise ShapeError(
                f"shapes {' and '.join(map(show, shapes))} do not broadcast: "
                f"{' against '.join(map(str, sorted(known)))}"
            )
        out.append(min(known) if known else big[0] if big else 1)
    return tuple(out)


def show(shape) -> str:
    """Format a shape for a message."""
    return "(" + ", ".join(map(str, shape)) + ")"


def axis_of(axis: int, rank: int) -> int:
    """Return ``axis`` as a non-negative index. Raises :class:`ShapeError` where an operand of this rank has no such
    axis."""
    if not -rank <= axis < rank:
        raise ShapeError(f"axis {axis} is out of range for an operand of rank {rank}")
    return axis % rank


def front_axis(axis: int, rank: int) -> int:
    """Return ``axis``, which must not be negative. Raises :class:`ShapeError` otherwise."""
    if not 0 <= axis < rank:
        raise ShapeError(f"axis {axis} is out of range for an operand of rank {rank}")
    return axis


def check_axes(axes: tuple[int, ...] | None, rank: int) -> None:
    """Raise :class:`ShapeError` for axes that are out of range or repeated."""
    if axes is not None and len({axis_of(axis, rank) for axis in axes}) != len(axes):
        raise ShapeError(f"axes {list(axes)} name an axis of an operand of rank {rank} twice")


def axes_of(attrs: dict[str, Any], rank: int) -> tuple[int, ...]:
    """Return the axes that a reduction of an operand of this rank is over, in the order of its dimensions."""
    axes = attrs["axes"]
    return tuple(range(rank)) if axes is None else tuple(sorted(a % rank for a in axes))


# ----------------------------------------------------------------------------------------------------------------
# rules shared by rows


def same_shape(shapes, attrs):
    """Return the shape of the first operand."""
    return [shapes[0]]


def given_shape(shapes, attrs):
    """Return the attribute ``shape``."""
    return [tuple(attrs["shape"])]


def index_dtypes(dtypes: list[DType], attrs: dict[str, Any]) -> str | None:
    """Check the types of (operand, indices)."""
    return None if dtypes[1] in (dt.i32, dt.i64) else f"the indices are {dtypes[1]}, not i32 or i64"


def scattered_dtypes(dtypes: list[DType], attrs: dict[str, Any]) -> str | None:
    """Check the types of (operand, indices, values)."""
    if dtypes[1] not in (dt.i32, dt.i64):
        return f"the indices are {dtypes[1]}, not i32 or i64"
    return None if dtypes[0] is dtypes[2] else f"the values are {dtypes[2]}, not {dtypes[0]}"


def quietly(function: Callable) -> Callable:
    """Return ``function`` without NumPy's warnings: kernels do not warn either."""

    def ref(*args, **kwargs):
        with np.errstate(all="ignore"):
            return function(*args, **kwargs)

    return ref
