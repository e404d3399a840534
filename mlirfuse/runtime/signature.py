"""The signature of a call: the specification of each leaf, and conditions on sizes."""

from __future__ import annotations

import functools
import math
import operator
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mlirfuse.core.errors import UnsupportedError
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.dtypes import DType
from mlirfuse.ir.sizes import Size


@dataclass(frozen=True)
class ArgSpec:
    """An array or number argument. Strides are in elements; ``align`` in bytes.

    ``scalar``: passed by value (a Python or NumPy number, or a 0-d host array along with CUDA arrays). ``weak``: a
    Python number, in NumPy's promotion. ``writable`` False: writing into it is an error (for a number: ``+=`` creates a
    new one). ``value``: the number itself for a scalar or a 0-d host array, read where the function uses it as a
    constant.
    """

    dtype: DType
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    align: int = 1
    scalar: bool = False
    weak: bool = False
    device: str = "cpu"
    writable: bool = True
    value: Any = field(default=None, compare=False)

    @property
    def useful_alignment(self) -> int:
        """The bytes of ``align`` that kernels may use: of small arrays in host memory what any allocation has, as only
        stores past the caches need more, so that accidental alignments do not multiply records."""
        small = self.device == "cpu" and math.prod(self.shape) * self.dtype.bytes <= _MOST_SMALL
        return min(self.align, _ALLOCATED) if small else self.align

    @staticmethod
    def of(value) -> ArgSpec | Static:
        """Return the specification of a NumPy array or a number; :class:`Static` for anything else."""
        if isinstance(value, np.ndarray):
            dtype, size = dt.of(value.dtype), value.itemsize
            if any(s % size for s in value.strides):
                raise UnsupportedError(
                    f"an array whose strides {value.strides} are not multiples of its {size}-byte items: pass a copy"
                )
            address = value.ctypes.data
            strides = tuple(s // size for s in value.strides)
            number = None if value.ndim else value[()]
            writable = value.flags.writeable
            return ArgSpec(dtype, value.shape, strides, alignment(address), writable=writable, value=number)
        if isinstance(value, np.generic):
            return ArgSpec(dt.of(value.dtype), scalar=True, writable=False, value=value)
        if type(value) in _WEAK and not (type(value) is int and not -(2**63) <= value < 2**63):
            return ArgSpec(_WEAK[type(value)], scalar=True, weak=type(value) is not bool, writable=False, value=value)
        return Static(value)


@dataclass(frozen=True)
class Static:
    """An argument that is a constant of the compiled function: a string, None, a dtype …"""

    value: Any


def alignment(address: int) -> int:
    """Return the largest power of two, up to 256, that divides an address."""
    return min(address & -address, 256) if address else 256


_MOST_SMALL, _ALLOCATED = 1 << 18, 16  # bytes; kMostSmall and kAllocated of signature.cpp
_WEAK = {bool: dt.bool_, int: dt.i64, float: dt.f64, complex: dt.c128}


def layout_of(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    """Return the properties of strides that compiled code may assume, for each dimension. Part of the key of a call.

    ``k >= 0``: the stride is the product of the extents of the dimensions inside it, ``k`` being the dimension next
    inside (the rank: it is innermost, stride 1); ``-2 - k``: the same, negated; -1: unknown. A dimension of extent 1,
    and one of stride 0, is 0.
    """
    rank = len(shape)
    out = [0] * rank
    if 0 in shape:
        return tuple(out)
    expected, inner = 1, rank
    for axis in sorted(
        (a for a in range(rank) if shape[a] != 1 and strides[a] != 0), key=lambda a: (abs(strides[a]), -a)
    ):
        stride = strides[axis]
        if abs(stride) == expected:
            out[axis] = inner + 1 if stride > 0 else -2 - inner
        else:
            out[axis] = -1
        expected, inner = abs(stride) * shape[axis], axis
    return tuple(out)


def key_of(spec: ArgSpec | Static) -> tuple:
    """Return the properties of an argument that specializations of a call depend on."""
    if isinstance(spec, Static):
        return "static", type(spec.value).__name__, repr(spec.value)
    extents = tuple(n if n in (0, 1) else -1 for n in spec.shape)
    layout = layout_of(spec.shape, spec.strides)
    python = spec.weak or spec.value.__class__ is bool  # unlike np.bool_, though both promote alike
    return spec.dtype.name, extents, layout, spec.scalar, python, spec.device, spec.writable


@dataclass(frozen=True)
class SizeGuard:
    """A condition on the sizes of a call for a specialization to be valid: ``left op right``, op being ==, !=, <, <=, >
    or >=."""

    left: Size
    op: str
    right: Size

    def holds(self, values: dict[str, int]) -> bool:
        """Whether it holds for these values of the symbols."""
        left: Any = sz.evaluated(self.left, values)
        right: Any = sz.evaluated(self.right, values)
        return COMPARE[self.op](left, right)

    def __str__(self) -> str:
        """Return Python source over the symbols."""
        return f"{self.left} {self.op} {self.right}"


@dataclass(frozen=True)
class NumberStep:
    """One operation on numbers: ``compute`` of ``operands``, which are ("step", its index), ("size", a size) or
    ("value", a number). Without ``compute``: the argument whose leaf is the only operand."""

    compute: Callable[..., Any] | None
    operands: tuple


@dataclass(frozen=True)
class NumberGuard:
    """A condition on the numbers of a call for a specialization to be valid: the last step's value ``op`` 0.
    ``decides``: a branch of the function depends on it; else only whether an operator raises an error."""

    steps: tuple[NumberStep, ...]
    op: str
    decides: bool = False

    @property
    def leaves(self) -> set[int]:
        """The leaves whose values are read."""
        return {step.operands[0] for step in self.steps if step.compute is None}

    def value(self, leaf: Callable[[int], Any], env: dict[str, int]) -> Any:
        """Return the last step's value, from the values of leaves and symbols; None where a step raises an error."""
        values: list[Any] = []

        def operand(what: str, x: Any) -> Any:
            return values[x] if what == "step" else sz.substitute(x, env) if what == "size" else x

        try:
            for step in self.steps:
                if step.compute is None:
                    values.append(leaf(step.operands[0]))
                else:
                    values.append(step.compute(*[operand(*x) for x in step.operands]))
        except (ArithmeticError, TypeError, ValueError):
            return None
        return values[-1]

    def holds(self, leaf: Callable[[int], Any], env: dict[str, int]) -> bool:
        """Whether it holds for these values of leaves and symbols."""
        value = self.value(leaf, env)
        return value is not None and bool(COMPARE[self.op](value, 0))


COMPARE = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
OPPOSITE = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}


def same_value(a, b) -> bool:
    """Whether two constants are equal as compiled code sees them: 0.0 and -0.0 differ, a NaN equals itself."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, (float, complex, np.inexact)):
        return np.asarray(a).tobytes() == np.asarray(b).tobytes()
    try:
        if isinstance(a, np.ndarray):
            return bool(np.array_equal(a, b))
        return bool(a == b) and _same_attributes(a, b)
    except Exception:  # the objects' own comparison may raise anything
        return False


_ABSENT = object()
_MUTABLE = (list, dict, set, bytearray, np.ndarray)


def _same_attributes(a, b) -> bool:
    """Whether equal objects of a user's class have the same attributes, those that ``==`` does not compare included:
    equal constants, and the same arrays and containers, which may change."""
    kind: Any = type(a)
    if kind.__module__.partition(".")[0] in _LIBRARIES:
        return True
    names = {*getattr(a, "__dict__", ()), *getattr(b, "__dict__", ()), *_slots(kind)}
    pairs = [(getattr(a, name, _ABSENT), getattr(b, name, _ABSENT)) for name in names]
    return all(x is y or (not isinstance(x, _MUTABLE) and same_value(x, y)) for x, y in pairs)


_LIBRARIES = {"numpy", "torch", "cupy", "ml_dtypes", *sys.stdlib_module_names} - {"__main__"}


@functools.lru_cache(1024)
def _slots(kind: Any) -> list[str]:
    return [name for base in kind.__mro__ for name in own_slots(base)]


def own_slots(kind: type) -> list[str]:
    """The attributes of ``__slots__`` in the body of a class, private ones by the names they have in memory."""
    inside = vars(kind)
    members = inside.items() if "__slots__" in inside else ()
    return [name for name, member in members if isinstance(member, types.MemberDescriptorType)]
