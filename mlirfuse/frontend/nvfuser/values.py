"""The values of a definition, and the records of its ops."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from types import FrameType
from typing import Any

import numpy as np

from mlirfuse.core.errors import CompileError, CudaError, MlirfuseError
from mlirfuse.frontend.nvfuser.promotion import DataType, from_dtype, to_dtype
from mlirfuse.ir import ops as table
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.dtypes import DType
from mlirfuse.ir.graph import Value
from mlirfuse.ir.sizes import Size


class DefinitionError(MlirfuseError, RuntimeError, ValueError):
    """An invalid definition: the message has the user's line and the cause."""


class DefinitionTypeError(DefinitionError, TypeError):
    """An op called with dtypes or arguments that it does not support."""


class InputError(MlirfuseError, RuntimeError, ValueError):
    """Inputs that do not match the declarations: their number, dtype, rank, sizes, strides or device."""


class IndexInputError(InputError, IndexError):
    """An input's element is an out-of-bounds index."""


_HERE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep


def user_line() -> tuple[str, int] | None:
    """File and line of the innermost frame outside mlirfuse."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return (frame.f_code.co_filename, frame.f_lineno) if frame else None


def at_line(loc) -> str:
    return f"{loc[0]}:{loc[1]}: " if loc else ""


# Python's messages for unsupported arguments that reached our own code.
_OF_PYTHON = re.compile(r"object (is not|has no|does not|of type)|unsupported operand|not supported between|to unpack")


def definition_error(what: str, error: Exception, given: str = "") -> DefinitionError:
    """``error``, raised while the user's call of ``what`` was recorded, as a definition error at their line. ``given``:
    a description of the call's arguments."""
    if isinstance(error, DefinitionError):
        return error
    kind = DefinitionTypeError if isinstance(error, TypeError) else DefinitionError
    reported = isinstance(error, (MlirfuseError, TypeError, ValueError, OverflowError))
    reported = reported and not _OF_PYTHON.search(str(error))
    text = str(error) if reported else f"unsupported arguments{f' ({given})' if given else ''}"
    return kind(f"{at_line(user_line())}{what}: {text}")


def input_error(error: Exception) -> Exception:
    """``error``, raised during a call, as an error of its inputs. Compilation and device errors stay unchanged."""
    if isinstance(error, (RuntimeError, CompileError, CudaError, AssertionError)):
        return error
    if isinstance(error, IndexError):
        return IndexInputError(str(error))
    return InputError(str(error))


class Val:
    """A value of a definition: a tensor or a scalar. ``record``: the op that computes it (None for inputs and
    constants)."""

    __slots__ = ("__weakref__", "definition", "number", "record")
    definition: Any  # the recorder, which imports this file
    number: int
    record: Record | None

    def is_tensor(self) -> bool:
        return isinstance(self, Tensor)

    def __add__(self, other):
        return self.definition.ops.add(self, other)

    def __radd__(self, other):
        return self.definition.ops.add(other, self)

    def __sub__(self, other):
        return self.definition.ops.sub(self, other)

    def __rsub__(self, other):
        return self.definition.ops.sub(other, self)

    def __mul__(self, other):
        return self.definition.ops.mul(self, other)

    def __rmul__(self, other):
        return self.definition.ops.mul(other, self)

    def __truediv__(self, other):
        return self.definition.ops.div(self, other)

    def __rtruediv__(self, other):
        return self.definition.ops.div(other, self)

    def __pow__(self, other):
        return self.definition.ops.pow(self, other)

    def __mod__(self, other):
        return self.definition.ops.mod(self, other)

    def __neg__(self):
        return self.definition.ops.neg(self)

    def __abs__(self):
        return self.definition.ops.abs(self)


@dataclass(frozen=True)
class Declaration:
    """The declaration of an input. ``contiguity``: in memory order, outermost first; None for broadcast dimensions."""

    shape: tuple[int, ...]
    contiguity: tuple[bool | None, ...]
    dtype: DataType
    is_cpu: bool
    stride_order: tuple[int, ...]  # for each dimension, its rank in memory order, 0 the innermost
    loc: tuple[str, int] | None

    @property
    def memory_order(self) -> list[int]:
        """The dimensions, outermost in memory first."""
        order = [0] * len(self.shape)
        for dim, place in enumerate(self.stride_order):
            order[len(self.shape) - 1 - place] = dim
        return order


# Methods that nvFuser's schedules call on tensors and definitions.
SCHEDULE_CALLS = frozenset(
    [
        "axis",
        "cache_after",
        "cache_before",
        "cache_fork",
        "commit_leaf_to_logical",
        "compute_at",
        "compute_with",
        "get_loop_domain",
        "get_root_domain",
        "inline_at",
        "inline_most",
        "merge",
        "parallelize",
        "reorder",
        "rfactor",
        "set_allocation_domain",
        "set_device_mesh",
        "set_memory_type",
        "split",
        "swizzle",
        "unroll",
        "vectorize",
    ]
)


def no_manual_schedule(what: str) -> str:
    """The error message for a call of nvFuser's scheduling API, with the alternative here."""
    return (
        f"{what}: manual schedules on the IR are not supported. The compiler chooses parameters for each segment: "
        "print(fd.explain(inputs)) shows them with the segments' numbers, and "
        "FusionDefinition(schedule={0: {'tx': 256}}) overrides them for segment 0; mlirfuse.autotune(...) measures them"
    )


class ScheduleError(DefinitionError, AttributeError):
    """A scheduling call of nvFuser's on a tensor."""


class Tensor(Val):
    """A tensor of a definition."""

    __slots__ = ("declaration", "expanded", "stride_order", "value")

    def __init__(self, definition, value: Value, declaration=None, stride_order=None, expanded=()):
        self.definition, self.record, self.value = definition, None, value
        self.declaration: Declaration = declaration  # of an input; None for ops' results
        self.stride_order = stride_order
        self.expanded = frozenset(expanded)  # dimensions of stride 0
        self.number = definition._number("tv")

    @property
    def dtype(self) -> DataType:
        return from_dtype(self.value.dtype)

    @property
    def ndim(self) -> int:
        return self.value.rank

    def __getattr__(self, name: str):
        if name in SCHEDULE_CALLS:
            raise ScheduleError(at_line(user_line()) + no_manual_schedule(f"Tensor.{name}"))
        raise AttributeError(f"a tensor of a definition has no attribute '{name}'")

    def is_symbolic(self) -> bool:
        return True

    def size(self, dim: int) -> Scalar:
        return self.definition.ops.size(self, dim)

    def shape(self) -> Vector:
        return self.definition.ops.shape(self)

    def __repr__(self) -> str:
        return f"T{self.number}({self.dtype}[{', '.join(map(str, self.value.shape))}])"


class Scalar(Val):
    """A number of a definition: a constant, an input, a size, or computed from those.

    ``size``: its value as a symbolic size, if it has one. ``expr``: its computation: (row, operands, attributes, dtype
    of the operands).
    """

    __slots__ = ("_value", "argument", "constant", "data_type", "expr", "origin", "size")

    def __init__(self, definition, data_type: DataType, constant=None, size=None, argument=None, expr=None):
        self.definition, self.record, self.data_type = definition, None, data_type
        self.constant = constant
        self.size: Any = size  # a Size, or None
        self.argument: int | None = argument
        self.expr: Any = expr
        self._value: Value | None = None
        self.origin: int | None = None  # the index of the record that computes it
        self.number = definition._number("c")

    @property
    def dtype(self) -> DType:
        return to_dtype(self.data_type)

    def is_symbolic(self) -> bool:
        return self.constant is None

    def as_value(self, dtype: DType) -> Value:
        """This scalar as a 0-d value of the graph, of dtype ``dtype``."""
        b = self.definition.builder
        if self.constant is not None:
            return b.constant(self.constant, dtype)
        if self._value is None:
            if self.argument is not None and self.dtype.kind == "c":
                self._value = self.definition.complex_argument(self.argument, self.dtype)
            elif self.argument is not None:
                self._value = self.definition.graph_arguments[self.argument]
            elif self.size is not None:
                self._value = b.cast(b.size(self.size), self.dtype)
            else:
                row, operands, attrs, common = self.expr
                self._value = b.op(row, *(o.as_value(common) for o in operands), **attrs)
        return b.cast(self._value, dtype)

    def as_size(self) -> Size:
        """This scalar as an extent or an offset."""
        if self.constant is not None:
            return int(self.constant)
        if self.size is None:
            self.size = self.definition._evaluated_size(self)
        elif self.argument is not None:
            self.definition.size_arguments.add(self.argument)
        elif self.expr is not None:
            for operand in self.expr[1]:
                operand.as_size()
        return self.size

    def evaluate(self, bindings: Bindings):
        """Its value as a NumPy scalar, for the arguments of a call."""
        if self.constant is not None:
            return np.asarray(self.constant).astype(self.dtype.numpy)[()]
        if self.argument is not None:
            return np.asarray(bindings.inputs[self.argument]).astype(self.dtype.numpy)[()]
        if self.expr is None:
            return np.asarray(bindings.size(self.size)).astype(self.dtype.numpy)[()]
        row, operands, attrs, common = self.expr
        arrays = [np.asarray(o.evaluate(bindings)).astype(common.numpy) for o in operands]
        with np.errstate(all="ignore"):
            reference: Any = table.TABLE[row].ref  # rows on scalars have one
            return np.asarray(reference(*arrays, **attrs)).astype(self.dtype.numpy)[()]

    def __repr__(self) -> str:
        return f"S{self.number}({self.data_type}{'' if self.constant is None else f' {self.constant}'})"


class Vector(tuple):
    """A vector of scalars, e.g. a shape. ``size``: their number."""

    @property
    def size(self) -> int:
        return len(self)


@dataclass(eq=False)
class Record:
    """One call of ``fd.ops``: its arguments as printed (key None: positional) and as passed."""

    name: str
    arguments: list[tuple[str | None, Any]]
    call: dict[str, Any]
    results: list[Tensor | Scalar]
    returned: Any
    index: int
    loc: tuple[str, int] | None

    def operands(self) -> list[Tensor | Scalar]:
        out: list[Tensor | Scalar] = []
        _collect(list(self.call.values()), out)
        return out


def _collect(value, out) -> None:
    if isinstance(value, Val):
        out.append(value)
    elif isinstance(value, (list, tuple)):
        for v in value:
            _collect(v, out)


def results_of(returned) -> list[Tensor | Scalar]:
    """The values that an op returned, flat and in order."""
    out: list[Tensor | Scalar] = []
    _collect([returned], out)
    return out


@dataclass
class Output:
    value: Tensor
    alias: Tensor | None = None
    stride_order: tuple[int, ...] | None = None
    hidden: bool = False  # written by an op with a side effect


@dataclass
class Bindings:
    """A call's flattened inputs, and the values of the size symbols."""

    inputs: list
    symbols: dict[str, int]
    example: Any = None  # an empty array of the results' framework, where no input is an array

    def size(self, size: Size) -> int:
        return size if isinstance(size, int) else sz.substitute(size, self.symbols)
