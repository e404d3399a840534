"""Compile-time representations of a loop's variables and expressions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mlirfuse.frontend.numpy.syntax import NotOutlinable as NotOutlinable
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.dtypes import DType
from mlirfuse.lowering.emitter import Val


def require(condition: object, why: str) -> None:
    """Raises NotOutlinable, for this reason, unless the condition holds."""
    if not condition:
        raise NotOutlinable(why)


class UnsupportedInt(OverflowError):
    """An int that compiled loops do not support, and Python does: the function's own handlers must not catch it."""


@dataclass(frozen=True)
class NumberType:
    """A number: Python's (``python``: bool, int in 64 bits, float, complex) or NumPy's scalar of ``dtype``."""

    dtype: DType
    python: bool


@dataclass(frozen=True)
class ArrayType:
    """An array. ``inner``: its last axis is contiguous."""

    dtype: DType
    rank: int
    inner: bool


@dataclass(frozen=True)
class TupleType:
    """A tuple of values with these types."""

    items: tuple


PY_INT, PY_FLOAT, PY_BOOL = NumberType(dt.i64, True), NumberType(dt.f64, True), NumberType(dt.bool_, True)
PY_COMPLEX = NumberType(dt.c128, True)


@dataclass(frozen=True)
class Site:
    """A site in the code that allocates arrays."""

    number: int


@dataclass(frozen=True)
class Copied:
    """Marks memory that must not be written into: it is read-only (-1), or may be a copy where NumPy has a view."""

    site: int


@dataclass
class Number:
    """A number. ``bits``: for a Python int, a bound: its absolute value is at most 2 ** bits. ``other``: its type where
    a condition holds; ``val`` always has ``type``, which holds the values of both."""

    val: Val
    type: NumberType
    bits: int = 64
    known: Any = None  # the value of a constant
    other: tuple[NumberType, Val] | None = None

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def operand(self) -> Any:
        """Its operand in NumPy's type promotion: a dtype, or Python's type."""
        if self.type.python and self.dtype is not dt.bool_:
            return {"f": float, "c": complex}.get(self.dtype.kind, int)
        return self.dtype.numpy


class Elements:
    """An array, in memory or as an expression."""

    dtype: DType

    @property
    def operand(self) -> Any:
        """Its operand in NumPy's type promotion."""
        return self.dtype.numpy


@dataclass
class Array(Elements):
    """Memory viewed as an array: ``pointer`` (``!llvm.ptr``), extents, strides in bytes. ``roots``: the arrays from
    outside, by name, or the allocation sites whose memory it may be; ``base``: the address of its allocation, 0 for
    memory from outside; ``serialized``: the source expression it was read by, which identifies equal views."""

    dtype: DType
    pointer: str
    shape: list[Val]
    strides: list[Val]
    inner: bool
    roots: frozenset[str | Site | Copied]
    base: Val
    serialized: str = ""

    @property
    def type(self) -> ArrayType:
        return ArrayType(self.dtype, len(self.shape), self.inner)


@dataclass
class Lazy(Elements):
    """An array expression that is evaluated at its use. ``at(indices, uniform)`` computes an element; ``uniform``: no
    operand's last axis is broadcast. ``reads``: the arrays it reads; ``last``: the extents of operands' last axes,
    ``outer``: pairs of extents that must broadcast; ``computed``: it is more than elements of an array."""

    dtype: DType
    shape: list[Val]
    at: Callable[[list[Val], bool], Val]
    reads: list[Array]
    pairs: list[tuple[Val, Val]] = field(default_factory=list)
    computed: bool = False


@dataclass
class Tuple:
    """A tuple of constant length."""

    items: list
    is_list: bool = False


@dataclass
class Static:
    """An object known at compile time: a module, a function, a type, None."""

    value: Any


@dataclass
class Bytes:
    """A ``bytes`` object as an array of its bytes, which are Python ints."""

    array: Array


@dataclass
class Method:
    """A method of an array or a number."""

    receiver: Any
    name: str


@dataclass
class Slots:
    """A variable's slots: for a number one; for an array those of its pointer, base, extents and strides; for a tuple
    those of its items. ``assigned``: a slot that says whether the variable has been assigned. ``other``: a number's
    alternative type, and a slot that says whether the number has it."""

    type: Any
    assigned: str
    slots: list
    base: str = ""  # of an array: where it keeps the address of its allocation
    other: tuple[NumberType, str] | None = None


def type_of(value: Any) -> NumberType | ArrayType | TupleType:
    """The type of a variable's value, as a key of the loop's code. Raises NotOutlinable."""
    kind = type(value)
    found = _NUMBERS.get(kind)
    if found is not None:
        return found
    if kind is np.ndarray:
        dtype = element_dtype(value.dtype)
        return ArrayType(dtype, value.ndim, value.ndim > 0 and value.strides[-1] == value.itemsize)
    if isinstance(value, np.generic):
        return NumberType(element_dtype(value.dtype), False)
    if kind is tuple and len(value) <= 8:
        return TupleType(tuple(map(type_of, value)))
    raise NotOutlinable(f"a {kind.__name__}")


PYTHONS = {int: PY_INT, float: PY_FLOAT, bool: PY_BOOL, complex: PY_COMPLEX}
_NUMBERS = PYTHONS | {np.float64: NumberType(dt.f64, False)}
_SUPPORTED = {*dt.INTEGERS, dt.f32, dt.f64, dt.bool_, dt.c64, dt.c128}


def element_dtype(dtype: Any) -> DType:
    """The element dtype of arrays of ``dtype``. Raises NotOutlinable."""
    try:
        found = dt.of(dtype)
    except TypeError:
        raise NotOutlinable(f"arrays of {dtype}") from None
    require(found in _SUPPORTED, f"arrays of {dtype}")
    return found


def kind_of(found: Any) -> Any:
    """The type of a variable that is assigned this value. Raises NotOutlinable."""
    if isinstance(found, (Number, Array)):
        return found.type
    mixed = isinstance(found, Tuple) and any(isinstance(item, Number) and item.other for item in found.items)
    require(not mixed, "a tuple with a number whose type is only known at run time")
    if isinstance(found, Tuple) and not found.is_list:
        return TupleType(tuple(kind_of(item) for item in found.items))
    raise NotOutlinable("a list or an object is assigned to a variable")


def words_of(kind: Any) -> int:
    """The number of words that a value of this type takes."""
    if isinstance(kind, TupleType):
        return sum(map(words_of, kind.items))
    if isinstance(kind, ArrayType):
        return 1 + 2 * kind.rank
    return 2 if kind.dtype is dt.c128 else 1


def joined(a, b):
    """The type of a variable that is assigned values of both types. Raises NotOutlinable where there is none."""
    if a == b:
        return a
    if isinstance(a, ArrayType) and isinstance(b, ArrayType) and (a.dtype, a.rank) == (b.dtype, b.rank):
        return ArrayType(a.dtype, a.rank, a.inner and b.inner)
    if isinstance(a, NumberType) and isinstance(b, NumberType):
        if a.python and b.python and dt.bool_ not in (a.dtype, b.dtype):
            return PY_COMPLEX if "c" in (a.dtype.kind, b.dtype.kind) else PY_FLOAT
        if a.python != b.python:
            python, numpy = (a, b) if a.python else (b, a)
            if numpy.dtype is python.dtype or (python.dtype is not dt.bool_ and numpy.dtype.is_float and
                                               python.dtype.kind != "c"):  # fmt: skip
                return numpy
            if numpy.dtype is dt.c128 and python.dtype is not dt.bool_:
                return numpy
            if python.dtype is dt.i64 and numpy.dtype.is_integer and numpy.dtype.bits >= 32:
                return numpy
    if isinstance(a, TupleType) and isinstance(b, TupleType) and len(a.items) == len(b.items):
        return TupleType(tuple(joined(x, y) for x, y in zip(a.items, b.items)))
    raise NotOutlinable("values of different types are assigned to a variable")
