"""``FusionDefinition``: nvFuser's way to write a fusion by hand, op by op.

A definition *records* the user's program: inputs, ops (each checked and inferred as it is written, so that an error points at
its line) and outputs. When it is executed, the record is *replayed* into a :class:`Graph` for what the call's arguments are:
extents that the program needs equal share one symbol, extents of 0 and 1 are constants. Definitions with equal content share one
:class:`Program`, which holds these graphs and what they compile to.

Symbols of a definition: ``s<k>`` extents, ``t<k>`` strides of the arguments, ``v<k>`` the value of argument ``k``, a scalar.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Callable

import numpy as np

from mlirfuse import dtypes as dt
from mlirfuse import ops as table
from mlirfuse import sizes as sz
from mlirfuse.builder import Builder
from mlirfuse.dtypes import DType
from mlirfuse.effects import VIEWS
from mlirfuse.errors import MlirfuseError, ShapeError
from mlirfuse.frontend import definition_printing as printing
from mlirfuse.frontend.nvfuser_promotion import DataType, from_dtype, to_dtype
from mlirfuse.graph import Block, Graph, Layout, Value
from mlirfuse.sizes import Size


class DefinitionError(MlirfuseError, RuntimeError, ValueError):
    """A definition that cannot be: the message has the user's line and what is wrong there."""


class DefinitionTypeError(DefinitionError, TypeError):
    """An op on element types, or called with arguments, that it does not take."""


class InputError(MlirfuseError, RuntimeError, ValueError):
    """Inputs that are not what the definition declares: their number, element type, rank, sizes, strides or device."""


_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def user_line() -> tuple[str, int] | None:
    """File and line of the innermost frame outside mlirfuse."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return (frame.f_code.co_filename, frame.f_lineno) if frame else None


def at_line(loc) -> str:
    return f"{loc[0]}:{loc[1]}: " if loc else ""


# ---------------------------------------------------------------------------------------------------------------- values


class Val:
    """A value of a definition: a tensor or a scalar. ``record`` is the op that made it (None for inputs and constants)."""

    __slots__ = ("definition", "record", "number", "__weakref__")

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
    """What ``define_tensor`` said. ``contiguity`` goes by memory order, outermost first; None there: broadcast."""

    shape: tuple[int, ...]
    contiguity: tuple[bool | None, ...]
    dtype: DataType
    is_cpu: bool
    stride_order: tuple[int, ...]  # for each dimension, its place counted from the innermost in memory
    loc: tuple[str, int] | None

    @property
    def memory_order(self) -> list[int]:
        """The dimensions, outermost in memory first."""
        order = [0] * len(self.shape)
        for dim, place in enumerate(self.stride_order):
            order[len(self.shape) - 1 - place] = dim
        return order


class Tensor(Val):
    """A tensor of a definition."""

    __slots__ = ("value", "declaration", "stride_order", "expanded")

    def __init__(self, definition, value: Value, declaration=None, stride_order=None, expanded=()):
        self.definition, self.record, self.value = definition, None, value
        self.declaration: Declaration | None = declaration
        self.stride_order = stride_order
        self.expanded = frozenset(expanded)  # dimensions that repeat one element
        self.number = definition._number("tv")

    @property
    def dtype(self) -> DataType:
        return from_dtype(self.value.dtype)

    @property
    def ndim(self) -> int:
        return self.value.rank

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

    ``size`` is its value as a symbolic size where it has one. ``expr`` says how it is computed: (row, operands, attributes, type of
    the operands).
    """

    __slots__ = ("data_type", "constant", "size", "argument", "expr", "_value", "origin")

    def __init__(self, definition, data_type: DataType, constant=None, size=None, argument=None, expr=None):
        self.definition, self.record, self.data_type = definition, None, data_type
        self.constant = constant
        self.size: Size | None = size
        self.argument: int | None = argument
        self.expr = expr
        self._value: Value | None = None
        self.origin: int | None = None  # the index of the record that made it
        self.number = definition._number("c")

    @property
    def dtype(self) -> DType:
        return to_dtype(self.data_type)

    def is_symbolic(self) -> bool:
        return self.constant is None

    def as_value(self, dtype: DType) -> Value:
        """This scalar as a 0-d value of the graph, of that element type."""
        b = self.definition.builder
        if self.constant is not None:
            return b.constant(self.constant, dtype)
        if self._value is None:
            if self.argument is not None:
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
            return np.asarray(table.TABLE[row].ref(*arrays, **attrs)).astype(self.dtype.numpy)[()]

    def __repr__(self) -> str:
        return f"S{self.number}({self.data_type}{'' if self.constant is None else f' {self.constant}'})"


class Vector(tuple):
    """Scalars: a shape. ``size`` is how many."""

    @property
    def size(self) -> int:
        return len(self)


@dataclass(eq=False)
class Record:
    """One call of ``fd.ops``: its arguments as they are printed (key None: positional) and as they are called."""

    name: str
    arguments: list[tuple[str | None, Any]]
    call: dict[str, Any]
    results: list[Val]
    returned: Any
    index: int
    loc: tuple[str, int] | None

    def operands(self) -> list[Val]:
        out: list[Val] = []
        _collect(list(self.call.values()), out)
        return out


def _collect(value, out) -> None:
    if isinstance(value, Val):
        out.append(value)
    elif isinstance(value, (list, tuple)):
        for v in value:
            _collect(v, out)


def results_of(returned) -> list[Val]:
    """The values that an op returned, in order."""
    out: list[Val] = []
    _collect([returned], out)
    return out


@dataclass
class Output:
    value: Tensor
    alias: Tensor | None = None
    stride_order: tuple[int, ...] | None = None
    hidden: bool = False  # made by an op with a side effect


_KIND_TO_TYPE = {"f": float, "i": int, "u": int, "b": bool, "c": complex}


# ---------------------------------------------------------------------------------------------------------------- the definition


class FusionDefinition:
    """A fusion, written op by op::

        with FusionDefinition() as fd:
            x = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=DataType.Float)
            fd.add_output(fd.ops.relu(x))
        (y,) = fd.execute([a])

    A subclass may define ``definition(self)`` instead. ``FusionDefinition(fusion)`` writes into a :class:`Fusion` (the older API).
    """

    def __init__(self, fusion: Fusion | int | None = None, max_length: int = 1 << 20, *_unused, **_unused_options):
        self._target = fusion if isinstance(fusion, Fusion) else None
        self.max_length = max_length
        self._defined = False
        self._program: Program | None = None
        self._reproducers: list[str] | None = None
        self._replay: _Replay | None = None
        self._clear()

    def _clear(self) -> None:
        from mlirfuse.frontend.definition_ops import Operators

        self.inputs: list[Val] = []
        self.outputs: list[Output] = []
        self.records: list[Record] = []
        self.block = Block()
        self.builder = Builder(self.block, user_line)
        self.layouts: list[Layout | None] = []
        self.graph_arguments: list[Value] = []
        self.scalar_arguments: set[int] = set()
        self.hidden: list[Callable[[Bindings], int]] = []  # computed at each call and passed after the inputs
        self._hidden_values: dict[Any, Value] = {}
        self.equalities: dict[tuple[Size, Size], tuple | None] = {}  # extents that must be equal, where it was said
        self.guards: dict[tuple[int, str], tuple[Size, Size]] = {}  # taken to be in order; see at_most
        self.size_arguments: set[int] = set()
        self.evaluated_sizes: dict[int, Scalar] = {}
        self._counts = {"tv": 0, "c": 0, "s": 0, "t": 0, "random": 0}
        self._depth = 0  # within an op
        self._shown: dict[str, Any] = {}  # arguments that the op now running is printed with, in place of those given
        self._extras: list[Tensor] = []  # what it makes beside its results; see update_input
        self._open = False
        self.ops = Operators(self)

    # -- the with statement

    def __enter__(self) -> FusionDefinition:
        self._clear()
        self._program, self._reproducers = None, None
        self._open = True
        return self

    def __exit__(self, exception_type, exception, traceback) -> None:
        self._open = False
        if exception_type is None:
            self._defined = True
            if self._target is not None:
                self._target._definition = self

    def definition(self) -> None:
        """For subclasses: makes the fusion on ``self``."""
        raise NotImplementedError("Fusion does not exist! Use `with FusionDefinition() as fd: ...` to define a fusion.")

    def __getattr__(self, name):
        if not name.startswith("_") and name in dir(sys.modules["mlirfuse.frontend.definition_ops"].Operators):
            raise AttributeError(f"FusionDefinition has no attribute '{name}': operations are in fd.ops, write fd.ops.{name}(...)")
        raise AttributeError(f"FusionDefinition has no attribute '{name}'")

    # -- inputs

    def define_tensor(
        self, shape=None, contiguity=None, dtype=DataType.Float, is_cpu=False, stride_order=None, *,
        sizes=None, strides=None, static_sizes=False, symbolic_sizes=None, contiguous=None,
    ) -> Tensor:  # fmt: skip
        """A tensor argument.

        In ``shape`` (older: ``symbolic_sizes``), -1 is an extent not known yet, 1 broadcasts, others are constants. ``contiguity`` (older:
        ``contiguous``) says for each dimension, outermost in memory first, whether it follows the next one without a gap; None for one
        that broadcasts. With ``sizes`` and ``strides`` of an example instead, shape and contiguity follow from those.
        """
        shape = symbolic_sizes if shape is None else shape
        contiguity = contiguous if contiguity is None else contiguity
        if contiguity is not None and not isinstance(contiguity, bool) and any(type(c) is int for c in contiguity):
            sizes, strides, shape, contiguity = shape, contiguity, None, None  # define_tensor(sizes, strides) of the older API
        if sizes is not None:
            if strides is None or len(sizes) != len(strides):
                raise self._error("define_tensor: sizes and strides must have one length")
            contiguity, stride_order = compute_tensor_descriptor(sizes, strides)
            shape = [int(n) if static_sizes or n == 1 else -1 for n in sizes]
        if shape is None:
            raise self._error("define_tensor needs shape and contiguity, or sizes and strides", DefinitionTypeError)
        shape = [-1] * shape if isinstance(shape, int) else [int(n) for n in shape]
        for k, n in enumerate(shape):
            if n < -1:
                raise self._error(f"The value {n} at index {k} was neither symbolic(-1), zero_element(0), broadcast(1), or static(>1).")
        rank = len(shape)
        if rank and is_cpu:
            raise self._error("CPU non-scalar tensor is not supported!")
        order = self._stride_order(stride_order, rank)
        memory = Declaration(tuple(shape), (), dtype, is_cpu, order, None).memory_order
        if contiguity is None or isinstance(contiguity, bool):
            contiguity = [None if shape[d] == 1 else bool(contiguity) for d in memory]
        if len(contiguity) != rank:
            raise self._error(f"Length of contiguity argument ({len(contiguity)}) must match that of shape argument ({rank})")
        contiguity = tuple(None if c is None or shape[d] == 1 else bool(c) for c, d in zip(contiguity, memory))
        element = self._dtype(dtype)
        declaration = Declaration(tuple(shape), contiguity, dtype, bool(is_cpu), order, user_line())
        extents = tuple(self._substituted(self._symbol("s")) if n == -1 else n for n in shape)
        strides_: list[Size] = [0] * rank
        running: Size = 1
        for c, d in reversed(list(zip(contiguity, memory))):
            stride = self._symbol("t") if c is False else None
            if c is None or extents[d] == 1:
                continue
            strides_[d] = running if stride is None else stride
            running = sz.mul(strides_[d], extents[d])
        value = Value(element, extents)
        tensor = Tensor(self, value, declaration, expanded=[d for c, d in zip(contiguity, memory) if c is None and shape[d] != 1])
        # nvFuser numbers scalars together with the extents: one each for unknown and constant ones, and a zero.
        self._counts["c"] += sum(n != 1 for n in shape) + (1 if rank and not any(i.is_tensor() and i.ndim for i in self.inputs) else 0)
        value.name = f"tv{tensor.number}"
        self._add_input(tensor, value, Layout(tuple(strides_)), scalar=is_cpu)
        return tensor

    def _stride_order(self, stride_order, rank) -> tuple[int, ...]:
        if stride_order is None or len(stride_order) == 0:
            return tuple(range(rank - 1, -1, -1))
        if len(stride_order) != rank:
            raise self._error(f"Length of stride_order argument ({len(stride_order)}) must match that of shape argument ({rank})")
        for k in stride_order:
            if not -rank <= k < rank:
                side = f"expects >= -{rank}" if k < 0 else f"expects < {rank}"
                raise self._error(f"stride_order argument is out of range, {side}, but got: {k}")
        order = tuple(int(k) % rank for k in stride_order)
        if len(set(order)) != rank:
            raise self._error(f"got duplicated stride_order entries: {list(stride_order)}")
        return order

    def define_scalar(self, value=None, dtype: DataType | None = None) -> Scalar:
        """A constant, or without ``value`` a number given at each call (a Double unless ``dtype`` says otherwise)."""
        if isinstance(value, DataType):
            value, dtype = None, value
        if value is None:
            data_type = dtype or DataType.Double
            element = self._dtype(data_type)
            index = len(self.inputs)
            size = self._substituted(sz.symbol(f"v{index}")) if element.kind in "iu" else None
            scalar = Scalar(self, data_type, size=None if isinstance(size, int) else size, argument=index)
            if isinstance(size, int):
                scalar.size = size
            argument = Value(element, (), name=f"c{scalar.number}")
            self._add_input(scalar, argument, None, scalar=True)
            return scalar
        if isinstance(value, np.generic):
            value = value.item()
        if type(value) not in (bool, int, float, complex):
            raise self._error(f"define_scalar takes a bool, int, float or complex, not {type(value).__name__}", DefinitionTypeError)
        return Scalar(self, *self._constant(value, dtype))

    def _constant(self, value, dtype: DataType | None):
        if dtype is None or dtype is DataType.Null:
            dtype = {bool: DataType.Bool, int: DataType.Int, float: DataType.Double, complex: DataType.ComplexDouble}[type(value)]
        kind = _KIND_TO_TYPE[self._dtype(dtype).kind]
        try:
            return dtype, kind(value)
        except (TypeError, OverflowError, ValueError) as error:
            raise self._error(f"define_scalar: {value} is no {dtype}: {error}", DefinitionTypeError) from error

    def define_constant(self, value, dtype: DataType | None = None) -> Scalar:
        """A constant (the older API)."""
        if value is None:
            raise self._error("define_constant needs a value", DefinitionTypeError)
        return self.define_scalar(value, dtype)

    def define_vector(self, values, dtype: DataType = DataType.Int) -> Vector:
        """Scalars for a shape: the given ones, or as many inputs as ``values`` says, passed as one list or one by one."""
        if isinstance(values, int):
            return Vector(self.define_scalar(None, dtype) for _ in range(values))
        return Vector(v if isinstance(v, Scalar) else self.define_scalar(v, dtype) for v in values)

    def define_null_tensor(self) -> None:
        """What stands for an absent optional tensor (the older API): None."""

    def from_pytorch(self, tensor, static_sizes: bool = False) -> Tensor:
        """A tensor argument declared like ``tensor``: a torch tensor, or any array with a shape, strides and a dtype."""
        d = describe(tensor)
        if d is None:
            raise self._error(f"from_pytorch takes a tensor or an array, not {type(tensor).__name__}", DefinitionTypeError)
        is_cpu = d.device == "cpu" and not d.shape and _is_torch(tensor)
        return self.define_tensor(sizes=d.shape, strides=d.strides, dtype=from_dtype(d.dtype), static_sizes=static_sizes, is_cpu=is_cpu)

    def _add_input(self, val: Val, value: Value, layout, scalar: bool) -> None:
        if self._depth and self._replay is None:
            raise self._error("inputs cannot be defined within an op")
        if scalar:
            self.scalar_arguments.add(len(self.inputs))
        self.inputs.append(val)
        self.graph_arguments.append(value)
        self.layouts.append(layout)
        self.block.args.append(value)

    # -- outputs

    def add_output(self, output: Tensor, alias_input: Tensor | None = None, *, stride_order=None) -> None:
        """Returns ``output`` from each call; with ``alias_input``, writes it into that argument instead of returning it."""
        if isinstance(alias_input, (list, tuple)):
            alias_input, stride_order = None, alias_input
        if not isinstance(output, Tensor):
            what = "a scalar" if isinstance(output, Scalar) else type(output).__name__
            raise self._error(f"add_output takes a tensor, not {what}: fd.ops.full([], scalar, dtype) makes a tensor of one", DefinitionTypeError)
        self._own(output)
        if alias_input is not None:
            self._own(alias_input)
            if alias_input.declaration is None:
                raise self._error("add_output: alias_input must be an input of the fusion")
            if alias_input.value.dtype is not output.value.dtype:
                raise self._error(
                    f"add_output: {output.dtype} cannot be written into an input of {alias_input.dtype}: cast it first", DefinitionTypeError
                )
            if len(alias_input.value.shape) != len(output.value.shape):
                raise self._error(f"add_output: a tensor of rank {output.ndim} cannot be written into an input of rank {alias_input.ndim}")
            for a, b in zip(output.value.shape, alias_input.value.shape):
                self.equal(a, b, "add_output")
        order = None if stride_order is None else self._stride_order(stride_order, output.ndim)
        self.outputs.append(Output(output, alias_input, order))

    # -- what the operations use

    def _error(self, text: str, kind=DefinitionError) -> DefinitionError:
        return kind(at_line(user_line()) + text)

    def _dtype(self, data_type: DataType) -> DType:
        try:
            return to_dtype(data_type)
        except MlirfuseError:
            raise
        except TypeError as error:
            raise self._error(str(error), DefinitionTypeError) from error

    def _number(self, kind: str) -> int:
        self._counts[kind] += 1
        return self._counts[kind] - 1

    def _symbol(self, kind: str) -> Size:
        return sz.symbol(f"{kind}{self._number(kind)}")

    def _substituted(self, size: Size) -> Size:
        return size if self._replay is None else sz.substitute(size, self._replay.sizes)

    def _own(self, val: Val) -> None:
        if val.definition is not self:
            raise self._error(f"{val!r} belongs to another FusionDefinition")

    def as_val(self, operand) -> Val:
        """``operand`` as a tensor or scalar of this definition; numbers become constants."""
        if isinstance(operand, Val):
            self._own(operand)
            return operand
        if isinstance(operand, (bool, int, float, complex, np.generic)):
            return self.define_scalar(operand)
        raise self._error(f"expected a tensor, a scalar or a number, not {type(operand).__name__}", DefinitionTypeError)

    def equal(self, a: Size, b: Size, what: str) -> None:
        """Notes that two extents must be equal. Raises :class:`ShapeError` where they are known not to be."""
        if a == b or self._replay is not None:
            return
        if isinstance(a, int) and isinstance(b, int):
            raise ShapeError(f"extents {a} and {b} must be equal")
        self.equalities.setdefault((a, b), (what, user_line()))

    def at_most(self, a: Size, b: Size, label: str) -> Size:
        """``min(a, b)``. Where it is not known which is smaller, ``a`` is taken to be, as nearly always; a call checks that, and
        one where it is not so gets a graph of its own."""
        difference = a - b
        if isinstance(difference, int):
            return a if difference <= 0 else b
        position = (self._replay.record if self._replay else len(self.records), label)
        if self._replay is not None:
            return a if self._replay.guards.get(position, True) else sz.minimum(a, b)
        self.guards[position] = (a, b)
        return a

    def _evaluated_size(self, scalar: Scalar) -> Size:
        """The symbol of a size that is no polynomial: computed on the host and passed as one more argument."""
        if self._replay is not None:
            known = self._replay.evaluated.get(scalar.origin)
            if known is not None:
                return known
            index = self.hidden_argument(("size", scalar.origin), lambda bindings: int(scalar.evaluate(bindings)))[1]
            return sz.symbol(f"v{index}")
        if scalar.origin is None:
            raise self._error(f"{scalar!r} cannot be used as a size here")
        self.evaluated_sizes[scalar.origin] = scalar
        return sz.symbol(f"h{scalar.origin}")

    def hidden_argument(self, key, compute: Callable[[Bindings], int]) -> tuple[Value, int]:
        """One more i64 argument after the inputs, computed at each call; the same for the same ``key``."""
        found = self._hidden_values.get(key)
        if found is None and self._replay is None:
            found = self._hidden_values[key] = (Value(dt.i64, ()), -1)  # the record is only replayed
        elif found is None:
            found = self._hidden_values[key] = (Value(dt.i64, ()), len(self.inputs) + len(self.hidden))
            self.scalar_arguments.add(found[1])
            self.hidden.append(compute)
            self.layouts.append(None)
            self.block.args.append(found[0])
        return found

    def example_argument(self) -> None:
        """Where no input is an array, one more argument, an empty array that results are made like."""
        value = Value(dt.f32, (0,), name="like")
        self.hidden.append(lambda bindings: bindings.example)
        self.layouts.append(Layout((1,)))
        self.block.args.append(value)

    def update_input(self, value: Tensor, target: Tensor) -> None:
        """For ops with a side effect: writes ``value``, computed in the op, into an input."""
        self._extras.append(value)
        if self._replay is None:
            self.outputs.append(Output(value, target, hidden=True))

    def record_op(self, name, arguments, call, returned) -> None:
        if len(self.records) >= self.max_length:
            raise self._error(f"The fusion definition has exceeded {self.max_length} operations: raise max_length")
        results = results_of(returned) + self._extras
        record = Record(name, arguments, call, results, returned, len(self.records), user_line())
        for value in results:
            value.record = record
            if isinstance(value, Scalar):
                value.origin = record.index
        self.records.append(record)

    # -- running

    def _finished(self) -> Program:
        if self._program is None:
            if not self._defined:
                if type(self).definition is FusionDefinition.definition and not self.inputs and not self.outputs:
                    raise NotImplementedError("Fusion does not exist! Use `with FusionDefinition() as fd: ...` to define a fusion.")
                if type(self).definition is not FusionDefinition.definition:
                    with self:
                        self.definition()
            if not self.outputs:
                raise NotImplementedError("Fusion is empty! It has no outputs: use fd.add_output")
            self._program = Program.of(self)
        return self._program

    def execute(self, inputs, *, device=None, auto_schedule=True, override_user_schedule=False, capture_debug_output=False,
                print_repro=False, profile=False, save_repro_inputs=False, _enable_options=(), _disable_options=()) -> list:  # fmt: skip
        """Runs the fusion on ``inputs`` (tensors, arrays, numbers, lists of numbers for vectors) and returns its outputs in a list.

        ``device`` says where to run a fusion that has no tensor inputs. The options that choose among nvFuser's own schedulers are taken
        and have no effect.
        """
        program = self._finished()
        if save_repro_inputs:
            self._reproducers = [printing.input_text(v) for v in inputs]
        if print_repro:
            print(self.repro_script_for(inputs))
        if not isinstance(inputs, (list, tuple)):
            raise InputError(f"inputs must be a list or a tuple, not {type(inputs).__name__}")
        return program.execute(inputs, device)

    def validate(self, inputs, reference_outputs=None, **options) -> list:
        """Executes, and compares with ``reference_outputs``, or with the op table's references computed in double precision.

        Tolerances follow from each output's element type and the number of elements reduced into it. Raises AssertionError; returns the
        outputs.
        """
        from mlirfuse.frontend.definition_validation import compare, reference

        if reference_outputs is None:
            reference_outputs = reference(self._finished(), inputs)
        outputs = self.execute(inputs, **options)
        compare(self._finished(), inputs, outputs, reference_outputs)
        return outputs

    # -- looking at it

    def __repr__(self) -> str:
        return printing.text(self)

    def repro_script_for(self, inputs=None) -> str:
        """A script that makes this fusion and, with ``inputs``, runs it on inputs of their kind."""
        return printing.repro(self, inputs)

    getReproString = repro_script_for

    def last_repro_script(self) -> str:
        """The script for the inputs of the last ``execute(inputs, save_repro_inputs=True)``."""
        assert self._reproducers is not None, (
            "fd.last_repro_script() cannot provide a repro because fd.execute(inputs, save_repro_inputs=True) was not executed!"
        )
        return printing.repro(self, self._reproducers)

    @property
    def fusion(self) -> Fusion:
        """This definition as a :class:`Fusion`."""
        out = Fusion()
        out._definition = self
        return out

    def graph(self, inputs=None) -> Graph:
        """The graph that a call with ``inputs`` compiles; without, the one for extents other than 0 and 1."""
        program = self._finished()
        return program.planned_for(inputs).graph if inputs is not None else program.general().graph

    def fusion_ir(self) -> str:
        """The graph as MLIR, in the fusion dialect."""
        from mlirfuse.dialects.fusion import to_text

        return to_text(self.graph())

    def id(self) -> int | None:
        return None if self._program is None else self._program.id


class Fusion:
    """A fusion to be filled in by ``with FusionDefinition(fusion) as fd`` and executed (the older API). Equal by content."""

    def __init__(self):
        self._definition: FusionDefinition | None = None

    def _needed(self) -> FusionDefinition:
        if self._definition is None:
            raise NotImplementedError("Fusion does not exist! Use `with FusionDefinition(fusion) as fd: ...` to define a fusion.")
        return self._definition

    def execute(self, inputs, **options) -> list:
        return self._needed().execute(inputs, **options)

    def print_math(self) -> str:
        return self._needed().fusion_ir()

    def print_ir(self) -> None:
        print(self.print_math())

    def __repr__(self) -> str:
        return repr(self._needed())

    def __hash__(self) -> int:
        return hash(printing.key(self._needed()))

    def __eq__(self, other) -> bool:
        return isinstance(other, Fusion) and printing.key(self._needed()) == printing.key(other._needed())


# ---------------------------------------------------------------------------------------------------------------- programs


@dataclass
class Bindings:
    """The inputs of a call, flattened, and the values of the size symbols."""

    inputs: list
    symbols: dict[str, int]
    example: Any = None  # an empty array that results are made like, where no input is an array

    def size(self, size: Size) -> int:
        return size if isinstance(size, int) else sz.substitute(size, self.symbols)


@dataclass
class _Replay:
    sizes: dict[str, Size]
    guards: dict[tuple[int, str], bool]
    evaluated: dict[int, int]
    record: int = 0


@dataclass(eq=False)
class Planned:
    """A graph of a program. ``hidden`` compute the arguments that follow the inputs; ``outputs`` says for each output of the
    definition which of the graph's returns it is, and in which order its dimensions are to be put back (None: as they are).
    ``compiled`` holds what runs it, by kind of device."""

    graph: Graph
    hidden: list[Callable[[Bindings], Any]]
    outputs: list[tuple[int, tuple[int, ...] | None]]
    compiled: dict[str, Any] = field(default_factory=dict)

    def collect(self, results) -> list:
        """The definition's outputs, from the graph's results."""
        out = []
        for k, order in self.outputs:
            value = results[k]
            if order is not None:
                value = value.permute(*order) if _is_torch(value) else value.transpose(order)
            out.append(value)
        return out


_programs: OrderedDict[str, Program] = OrderedDict()
_lock = threading.Lock()
RANDOM = {"uniform", "normal", "rand_like", "randn_like", "dropout"}  # operations that draw a seed at each call unless given one
MAX_PROGRAMS = 8192
MAX_SIGNATURES = 1024


class Program:
    """What definitions with equal content share: their graphs, one a kind of call, and what those compile to."""

    count = 0

    def __init__(self, key: str, definition: FusionDefinition):
        self.key = key
        self.definition = definition
        self.id = Program.count
        Program.count += 1
        self.planned: dict[tuple, Planned] = {}
        self._signatures: OrderedDict[tuple, tuple[Planned, dict[str, int]]] = OrderedDict()
        self._lock = threading.RLock()
        self._runner: Callable[[list], list] | None = None
        self.inputs = len(definition.inputs)
        self.has_arrays = any(isinstance(v, Tensor) for v in definition.inputs)
        self.aliased = any(o.alias is not None for o in definition.outputs)
        self.live = printing.live_records(definition.records, [o.value for o in definition.outputs])
        live = {r.index for r in self.live}
        self.guards = {k: v for k, v in definition.guards.items() if k[0] in live}
        self.evaluated = {k: v for k, v in definition.evaluated_sizes.items() if k in live}
        self.sizes = _unify(definition.equalities)
        self.computes = bool(self.evaluated) or any(r.name in RANDOM and r.call.get("rng_seed") is None for r in self.live) or not any(
            isinstance(v, Tensor) and not v.declaration.is_cpu for v in definition.inputs
        )
        self.extents = sorted(
            {s for v in definition.graph_arguments for n in v.shape for s in sz.symbols(n)} | {f"v{k}" for k in definition.size_arguments},
            key=lambda s: (s[0], int(s[1:])),
        )

    @staticmethod
    def of(definition: FusionDefinition) -> Program:
        """The program of a finished definition: an earlier one's, if there is one with the same content."""
        key = printing.key(definition)
        with _lock:
            found = _programs.get(key)
            if found is None:
                found = _programs[key] = Program(key, definition)
                while len(_programs) > MAX_PROGRAMS:
                    _programs.popitem(last=False)
            else:
                _programs.move_to_end(key)
        return found

    # -- graphs

    def general(self) -> Planned:
        return self._plan((), {}, {})

    def _plan(self, constants: tuple[tuple[str, int], ...], guards: dict, evaluated: dict) -> Planned:
        """The graph where these extents are constants (0 or 1) and the guards hold or not."""
        key = (constants, tuple(sorted(guards.items())), tuple(sorted(evaluated.items())))
        with self._lock:
            found = self.planned.get(key)
            if found is None:
                sizes = dict(self.sizes)
                for name, value in constants:
                    sizes[name] = value
                for name, target in list(sizes.items()):
                    sizes[name] = sz.substitute(target, dict(constants))
                found = self.planned[key] = self._replayed(_Replay(sizes, guards, evaluated))
        return found

    def _replayed(self, replay: _Replay) -> Planned:
        source, fd = self.definition, FusionDefinition()
        fd._replay = replay
        mapped: dict[int, Any] = {}

        def image(value):
            if isinstance(value, Val):
                found = mapped.get(id(value))
                if found is None:  # a constant
                    found = mapped[id(value)] = Scalar(fd, value.data_type, value.constant)
                return found
            if isinstance(value, Vector):
                return Vector(image(v) for v in value)
            if isinstance(value, (list, tuple)):
                return type(value)(image(v) for v in value)
            return value

        for value in source.inputs:
            if isinstance(value, Tensor):
                d = value.declaration
                mapped[id(value)] = fd.define_tensor(d.shape, d.contiguity, d.dtype, d.is_cpu, d.stride_order)
            else:
                mapped[id(value)] = fd.define_scalar(None, value.data_type)
        for k, argument in enumerate(fd.graph_arguments):
            argument.name = source.graph_arguments[k].name
        fd._depth = 1
        for record in self.live:
            replay.record, fd._extras = record.index, []
            fd.builder.loc = lambda loc=record.loc: loc
            returned = getattr(fd.ops, record.name)(**{key: image(value) for key, value in record.call.items()})
            for made, value in zip(results_of(returned) + fd._extras, record.results):
                mapped[id(value)] = made
                if isinstance(made, Scalar):
                    made.origin = record.index
        if not any(isinstance(v, Tensor) and not v.declaration.is_cpu for v in source.inputs):
            fd.example_argument()
        return _planned(fd, source, mapped)

    # -- calls

    def execute(self, inputs, device=None) -> list:
        flat = inputs
        for value in inputs:
            kind = value.__class__
            if kind is list or kind is tuple or isinstance(value, np.generic):
                flat = _flatten(inputs)
                break
        if len(flat) != self.inputs:
            raise _wrong_number(self.inputs, flat)
        if device is not None and self.has_arrays:
            _check_device(flat, device)
        if self.computes:
            flat = [*flat, *self.computed(flat, device)]
        return self.runner()(flat)

    def computed(self, flat, device) -> list:
        """The arguments that are computed at each call."""
        planned, bindings = self._bind(list(flat), device)
        if not self.has_arrays:
            bindings.example = example(device)
        return [compute(bindings) for compute in planned.hidden]

    def runner(self):
        """What runs calls: compiled, or the reference (``MLIRFUSE_DEFINITIONS=reference`` in the environment)."""
        found = self._runner
        if found is None:
            with self._lock:
                if self._runner is None:
                    self._runner = _make_runner(self)
                found = self._runner
        return found

    def planned_for(self, inputs) -> Planned:
        """The graph that a call with ``inputs`` runs."""
        return self._bind(_flatten(inputs), None)[0]

    def _bind(self, flat, device) -> tuple[Planned, Bindings]:
        try:
            signature = tuple(map(self._signature, range(len(flat)), flat))
            found = self._signatures.get(signature)
        except TypeError:
            signature, found = None, None
        if found is None:
            symbols = _check(self.definition, flat, device)
            bindings = Bindings(flat, symbols)
            symbols.update({f"h{k}": int(v.evaluate(bindings)) for k, v in self.evaluated.items()})
            for (a, b), (what, loc) in self.definition.equalities.items():
                if bindings.size(a) != bindings.size(b):
                    raise InputError(
                        f"{at_line(loc)}fd.ops.{what} needs equal sizes ({a} and {b}), got {bindings.size(a)} and {bindings.size(b)} "
                        f"from inputs of shapes {[tuple(d.shape) for d in map(describe, flat) if d]}"
                    )
            constants = tuple(
                (s, symbols[s]) for s in self.extents if symbols[s] in (0, 1) and not isinstance(self.sizes.get(s), (int, sz.Expr))
            )
            guards = {k: bindings.size(a) <= bindings.size(b) for k, (a, b) in self.guards.items()}
            evaluated = {k: symbols[f"h{k}"] for k in self.evaluated if symbols[f"h{k}"] in (0, 1)}
            found = (self._plan(constants, {k: v for k, v in guards.items() if not v}, evaluated), symbols)
            if signature is not None:
                with self._lock:
                    self._signatures[signature] = found
                    while len(self._signatures) > MAX_SIGNATURES:
                        self._signatures.popitem(last=False)
        return found[0], Bindings(flat, found[1])

    def _signature(self, k: int, value):
        """What of an input decides which graph runs and whether it passes the checks."""
        if isinstance(value, (bool, int, float, complex)):
            # The values of numbers count only where sizes are computed from them.
            return (type(value), value) if self.evaluated or k in self.definition.size_arguments else type(value)
        if _is_torch(value):
            return (value.shape, value.stride(), value.dtype, value.device)
        d = describe(value)
        return (type(value), d.shape, d.strides, d.dtype, d.device) if d else (type(value), value)


def _planned(fd: FusionDefinition, source: FusionDefinition, mapped) -> Planned:
    """The outputs of a replayed definition as the graph's returns, those in another memory order permuted to be row-major."""
    arguments = set(fd.graph_arguments)
    returns: list[Value] = []
    aliases: dict[int, int] = {}
    outputs: list[tuple[int, tuple[int, ...] | None]] = []
    positions: dict[tuple, int] = {}
    for output in source.outputs:
        if output.alias is not None:
            value = mapped[id(output.value)].value
            if value in arguments or value in returns:  # each argument is written from a value of its own
                value = fd.builder.op("copy", value)
            else:
                positions[value, None] = len(returns)
            aliases[len(returns)] = source.inputs.index(output.alias)
            returns.append(value)
    for output in source.outputs:
        if output.alias is not None:
            continue
        tensor = mapped[id(output.value)]
        order, value, back = output.stride_order or tensor.stride_order, tensor.value, None
        if order is not None and (value, None) not in positions and list(order) != list(range(value.rank - 1, -1, -1)):
            memory = Declaration((0,) * value.rank, (), DataType.Null, False, tuple(order), None).memory_order
            back = tuple(memory.index(d) for d in range(value.rank))
        if (value, back) not in positions:
            positions[value, back] = len(returns)
            if back is None and _reversed(value):
                value = fd.builder.op("copy", value)  # no view: torch has no negative strides
            if back is not None:
                value = fd.builder.permute(value if tensor.stride_order is not None else fd.builder.op("copy", value), memory)
            returns.append(value)
        outputs.append((positions[tensor.value, back], back))
    fd.block.returns = returns
    graph = Graph("fusion", fd.block, list(fd.layouts), set(fd.scalar_arguments), aliases)
    _remove_dead(graph)
    return Planned(graph, list(fd.hidden), outputs)


def _reversed(value: Value) -> bool:
    """Whether ``value`` may be a view of an argument with dimensions in reverse."""
    while value.op is not None and value.op.name in VIEWS:
        if any(step < 0 for step in value.op.attrs.get("step", ())):
            return True
        value = value.op.operands[0]
    return False


def _remove_dead(graph: Graph) -> None:
    needed = set(graph.returns)
    kept = []
    for op in reversed(graph.ops):
        if any(v in needed for v in op.results):
            kept.append(op)
            needed.update(op.operands)
    graph.body.ops = kept[::-1]


def _unify(equalities) -> dict[str, Size]:
    """Which symbol stands for another, from extents that must be equal: a constant, else the earliest extent."""
    parent: dict[Size, Size] = {}

    def find(x):
        while parent.get(x, x) != x:
            x = parent[x]
        return x

    def preference(x):
        if isinstance(x, int):
            return (0, x)
        name = str(x)
        return ({"s": 1, "v": 2}.get(name[0], 3), int(name[1:]))

    for a, b in equalities:
        if all(isinstance(x, int) or (x.is_symbol and str(x)[0] in "sv") for x in (a, b)):
            a, b = sorted((find(a), find(b)), key=preference)
            if a != b and not isinstance(b, int):
                parent[b] = a
    return {str(x): find(x) for x in list(parent)}


# ---------------------------------------------------------------------------------------------------------------- inputs


@dataclass(frozen=True)
class Description:
    """An array: strides in elements; ``device`` as "cpu" or "cuda:0"."""

    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    device: str


_TORCH_DTYPES: dict[Any, DType] = {}


def _is_torch(value) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def torch_dtypes() -> dict:
    """torch's dtypes with ours."""
    if not _TORCH_DTYPES:
        import torch

        names = {
            "float16": dt.f16, "bfloat16": dt.bf16, "float32": dt.f32, "float64": dt.f64, "int8": dt.i8, "int16": dt.i16, "int32": dt.i32,
            "int64": dt.i64, "uint8": dt.u8, "uint16": dt.u16, "uint32": dt.u32, "uint64": dt.u64, "bool": dt.bool_, "complex64": dt.c64,
            "complex128": dt.c128, "float8_e4m3fn": dt.BY_NAME.get("f8e4m3fn"), "float8_e5m2": dt.BY_NAME.get("f8e5m2"),
        }  # fmt: skip
        _TORCH_DTYPES.update({getattr(torch, name): t for name, t in names.items() if t is not None and hasattr(torch, name)})
    return _TORCH_DTYPES


def describe(value) -> Description | None:
    """``value`` as an array; None if it is none. Raises InputError for an array that cannot be taken."""
    if _is_torch(value):
        dtype = torch_dtypes().get(value.dtype)
        if dtype is None:
            raise InputError(f"a tensor of {value.dtype} is not supported: cast it first")
        return Description(dtype, tuple(value.shape), tuple(value.stride()), str(value.device))
    if isinstance(value, np.ndarray):
        try:
            dtype = dt.of(value.dtype)
        except TypeError as error:
            raise InputError(str(error)) from error
        if any(s % value.itemsize for s in value.strides):
            raise InputError("an array whose strides are no multiples of its element size is not supported: copy it first")
        return Description(dtype, value.shape, tuple(s // value.itemsize for s in value.strides), "cpu")
    interface = getattr(value, "__cuda_array_interface__", None)
    if interface is not None:
        dtype, shape = dt.of(np.dtype(interface["typestr"])), tuple(interface["shape"])
        strides = interface.get("strides")
        strides = sz.contiguous_strides(shape) if strides is None else tuple(s // dtype.bytes for s in strides)
        device = getattr(value, "device", None)
        return Description(dtype, shape, tuple(strides), f"cuda:{getattr(device, 'id', 0)}")
    return None


def _flatten(inputs) -> list:
    """The inputs with vectors, given as lists or tuples of numbers, spread out."""
    flat: list = []
    for value in inputs:
        if isinstance(value, (list, tuple)):
            flat.extend(value)
        else:
            flat.append(value)
    return [v.item() if isinstance(v, np.generic) else v for v in flat]


_SCALARS = {"f": (bool, int, float), "i": (bool, int), "u": (bool, int), "b": (bool,), "c": (bool, int, float, complex)}


def _check(definition: FusionDefinition, flat: list, device) -> dict[str, int]:
    """Raises :class:`InputError` unless ``flat`` are inputs of ``definition``; gives the values of its symbols."""
    declared = definition.inputs
    if len(flat) != len(declared):
        raise _wrong_number(len(declared), flat)
    symbols: dict[str, int] = {}
    devices: dict[str, int] = {}
    for k, (val, given) in enumerate(zip(declared, flat)):
        if isinstance(val, Scalar):
            _check_scalar(k, val, given)
            if val.dtype.kind in "iu":
                symbols[f"v{k}"] = int(given)
            continue
        d = describe(given)
        name = f"{at_line(val.declaration.loc)}Expected input {k}, tv{val.number}"
        if d is None:
            raise InputError(f"{name}, to be an at::Tensor but got {_scalar_text(given)}")
        if d.dtype is not val.value.dtype:
            expected, got = val.dtype.value, from_dtype(d.dtype).value if _has_name(d.dtype) else str(d.dtype)
            raise InputError(f"{name}, to be bound to a tensor of dtype {expected}, but got a tensor of dtype {got}")
        if len(d.shape) != val.ndim:
            raise InputError(f"{name}, to be bound to a tensor of rank {val.ndim}, but got a tensor of rank {len(d.shape)}")
        if val.declaration.is_cpu:
            if d.device != "cpu":
                raise InputError(f"{name}, to be a CPU scalar tensor (is_cpu=True), but it is on {d.device}")
        else:
            devices.setdefault(d.device, k)
        _check_layout(definition, k, val, d, name, symbols)
    if len(devices) > 1:
        where = ", ".join(f"input {k} on {name}" for name, k in devices.items())
        raise InputError(f"the inputs are on several devices: {where}; nothing is copied between devices (a CPU scalar tensor needs is_cpu=True)")
    return symbols


def _wrong_number(expected: int, flat) -> InputError:
    return InputError(f"Number of inputs does not match: this fusion has {expected} inputs, but received {len(flat)}")


def _check_device(flat, device) -> None:
    """Raises :class:`InputError` where an array, but for CPU scalars, is not on ``device``."""
    wanted = _device_text(device)
    for k, value in enumerate(flat):
        d = describe(value)
        if d is not None and (d.shape or d.device != "cpu") and d.device != wanted and not (wanted == "cuda" and d.device.startswith("cuda")):
            raise InputError(f"input {k} is on {d.device}, but device={wanted} was asked for")


def _has_name(dtype: DType) -> bool:
    try:
        from_dtype(dtype)
    except MlirfuseError:
        return False
    return True


def _device_text(device) -> str:
    return f"cuda:{device}" if isinstance(device, int) else str(device)


def _scalar_text(value) -> str:
    return f"scalar {value:g}" if isinstance(value, (int, float)) else f"{type(value).__name__}"


def _check_scalar(k: int, val: Scalar, given) -> None:
    if isinstance(given, np.generic):
        given = given.item()
    if not isinstance(given, (bool, int, float, complex)):
        d = describe(given)
        if d is not None:
            got = from_dtype(d.dtype).value if _has_name(d.dtype) else str(d.dtype)
            raise InputError(f"Expected input {k}, {val.dtype.name[0]}{val.number}, to be a scalar but got {got} tensor of rank {len(d.shape)}")
        raise InputError(f"Expected input {k}, {val.dtype.name[0]}{val.number}, to be a scalar but got {type(given).__name__}")
    if type(given) not in _SCALARS[val.dtype.kind]:
        shown = f"({given.real:g},{given.imag:g})" if isinstance(given, complex) else f"{given}"
        raise InputError(f"Scalar value {shown} is not compatible with the expected data type: {val.data_type.value}. (input {k})")


def _check_layout(definition, k, val: Tensor, d: Description, name, symbols) -> None:
    declaration, layout = val.declaration, definition.layouts[k]
    for dim, (n, extent) in enumerate(zip(d.shape, val.value.shape)):
        if isinstance(extent, int):
            if n != extent:
                raise InputError(f"{name}, to have extent {extent} in dimension {dim}, but its shape is {d.shape}")
        else:
            symbols[str(extent)] = n
    for dim, stride in enumerate(layout.strides):
        if isinstance(stride, sz.Expr) and stride.is_symbol and str(stride)[0] == "t":
            symbols[str(stride)] = d.strides[dim]
    if 0 in d.shape:
        return
    expected = 1
    for contiguous, dim in reversed(list(zip(declaration.contiguity, declaration.memory_order))):
        n, stride = d.shape[dim], d.strides[dim]
        if n == 1:
            continue
        if contiguous is None:
            if declaration.shape[dim] != 1 and stride != 0:
                raise InputError(f"{name}, to be expanded (stride 0) in dimension {dim}, but its strides are {d.strides}")
            continue
        if contiguous and stride != expected:
            raise InputError(
                f"{name}, to be contiguous in dimension {dim} (a stride of {expected}), but shape {d.shape} has strides {d.strides}: "
                f"declare contiguity False there, or make it contiguous"
            )
        expected = stride * n


# ---------------------------------------------------------------------------------------------------------------- running


def example(device):
    """An empty array that results are made like: torch's if torch is loaded, on ``device`` or on the GPU if there is one."""
    torch = sys.modules.get("torch")
    if torch is None:
        if device is not None and _device_text(device) != "cpu":
            raise InputError(f"device={_device_text(device)} needs torch where no input is an array: import torch first")
        return np.empty(0, np.float32)
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.empty(0, dtype=torch.float32, device=_device_text(device))


def _make_runner(program: Program):
    if os.environ.get("MLIRFUSE_DEFINITIONS") == "reference":
        return lambda leaves: _reference_call(program, leaves)
    from mlirfuse.frontend.definition_engine import Compiled

    return Compiled(program)


def _reference_call(program: Program, leaves) -> list:
    planned, bindings = program._bind(list(leaves[: program.inputs]), None)
    from mlirfuse.frontend.definition_engine import environment

    return planned.collect(run_reference(planned, list(leaves), environment(planned, bindings, leaves)))


def run_reference(planned: Planned, leaves: list, env: dict[str, int]) -> list:
    """The results of the graph op by op through the table's references, on the CPU, in the framework and on the device of the inputs.
    Those with an alias are written into that argument; those that are an argument are it."""
    from mlirfuse import interpreter
    from mlirfuse.frontend import arrays

    graph = planned.graph
    given = [np.asarray(arrays.to_numpy(leaf)).astype(v.dtype.numpy, copy=False) for leaf, v in zip(leaves, graph.args)]
    results = interpreter.run(graph, given, env)
    like = next(leaf for leaf, v in zip(leaves, graph.args) if arrays.framework(leaf) and v.shape != ()) if any(v.shape for v in graph.args) else (
        next(leaf for leaf in leaves if arrays.framework(leaf))
    )
    position = {v: k for k, v in enumerate(graph.args)}
    written = {k: np.array(results[k], copy=True) for k in graph.aliases}
    out = []
    for k, (value, result) in enumerate(zip(graph.returns, results)):
        if k in graph.aliases:
            target = leaves[graph.aliases[k]]
            arrays.write_into(target, written[k].reshape(given[graph.aliases[k]].shape))
            out.append(target)
        elif value in position:
            out.append(leaves[position[value]])
        else:
            own = any(result is a or np.may_share_memory(result, a) for a in given) and result.flags.writeable
            result = result if own else np.array(result, copy=True, order="C")
            out.append(_shared(result, like))
    return out


def _shared(array: np.ndarray, like):
    """``array`` as the framework of ``like`` has it, over the same memory where that can be."""
    from mlirfuse.frontend import arrays

    if not _is_torch(like) or like.is_cuda or not array.ndim or any(s < 0 for s in array.strides):
        return arrays.from_numpy(array, like)
    import torch

    dtype = dt.of(array.dtype)
    if dtype is dt.bf16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


@dataclass
class Statistics:
    """How many programs there are, and how many graphs were made for them (each compiled once)."""

    programs: int = 0
    graphs: int = 0
    by_program: list[int] = field(default_factory=list)


def statistics() -> Statistics:
    with _lock:
        counts = [len(p.planned) for p in _programs.values()]
    return Statistics(len(counts), sum(counts), counts)


def reset_programs() -> None:
    """Forgets all programs."""
    with _lock:
        _programs.clear()


# ---------------------------------------------------------------------------------------------------------------- descriptors


def compute_tensor_descriptor(sizes, strides) -> tuple[list[bool | None], list[int]]:
    """Contiguity, outermost in memory first, and stride order of an array with these sizes and strides (in elements)."""
    if len(sizes) != len(strides):
        raise InputError("compute_tensor_descriptor: Sizes and strides must have the same number of dimensions")
    for k, s in enumerate(strides):
        if s < 0:
            raise InputError(f"negative stride on tensor is not supported: strides[{k}]={s}")
    rank = len(sizes)
    memory = sorted((d for d in range(rank) if strides[d]), key=lambda d: -strides[d])
    for d in range(rank):  # dimensions of stride 0 stay where they are
        if not strides[d]:
            memory.insert(d, d)
    contiguity: list[bool | None] = [None] * rank
    expected = 1
    for place in range(rank - 1, -1, -1):
        d = memory[place]
        if strides[d] and sizes[d] != 1:
            contiguity[place] = strides[d] == expected
            expected = strides[d] * sizes[d]
    order = [0] * rank
    for place, d in enumerate(memory):
        order[d] = rank - 1 - place
    return contiguity, order


def compute_contiguity(sizes, strides) -> list[bool | None]:
    """Contiguity of each dimension, None for those that broadcast (the older API)."""
    return compute_tensor_descriptor(sizes, strides)[0]


class LRUCache:
    """Programs by content, at most ``max_fusions``, the least recently used forgotten first."""

    def __init__(self, max_fusions: int):
        self.max_fusions = max_fusions
        self._items: OrderedDict[str, list] = OrderedDict()  # key to [fusion, hits]
        self._lookups = self._hits = self._compiled = 0

    def cache_compile(self, fusion: Fusion) -> Fusion:
        """The cached fusion of this content, with everything compiled for it."""
        key = printing.key(fusion._needed())
        self._lookups += 1
        if key in self._items:
            self._hits += 1
            self._items.move_to_end(key, last=False)
            self._items[key][1] += 1
            return self._items[key][0]
        if len(self._items) == self.max_fusions:
            self._items.popitem()
        self._items[key] = [fusion, 0]
        self._items.move_to_end(key, last=False)
        self._compiled += 1
        return fusion

    def num_fusions(self) -> int:
        return len(self._items)

    def stats(self) -> str:
        out = f"Max Fusions Allowed: {self.max_fusions}\n"
        if not self._items:
            return out + "The fusion cache is empty.\n"
        out += f"Total Fusions in Cache: {len(self._items)}\nTotal Unique Fusions Compiled: {self._compiled}\nCache Hits by LRU ordering:\n"
        out += "".join(f"\t{k} -> {hits} hits\n" for k, (_, hits) in enumerate(self._items.values()))
        rate = 100.0 * self._hits / self._lookups
        return out + f"Cache Lookups: {self._lookups}\nCache Hits: {self._hits}\nHit Rate: {rate:g}%\n"
