"""Records a definition: inputs, ops (each checked and inferred when it is written, so that an error has its line) and
outputs.

Symbols of a definition: ``s<k>`` extents, ``t<k>`` strides of the arguments, ``v<k>`` the value of argument ``k``, a
scalar.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlirfuse.core.errors import MlirfuseError, ShapeError
from mlirfuse.frontend.nvfuser.inputs import compute_tensor_descriptor, describe, is_torch
from mlirfuse.frontend.nvfuser.ops.operators import Operators
from mlirfuse.frontend.nvfuser.promotion import DataType, from_dtype, to_dtype
from mlirfuse.frontend.nvfuser.values import (
    Bindings,
    Declaration,
    DefinitionError,
    DefinitionTypeError,
    Output,
    Record,
    Scalar,
    Tensor,
    Val,
    Vector,
    at_line,
    definition_error,
    results_of,
    user_line,
)
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.builder import Builder
from mlirfuse.ir.dtypes import DType
from mlirfuse.ir.graph import Block, Layout, Value
from mlirfuse.ir.sizes import Size
from mlirfuse.schedule.program import Schedules

_KIND_TO_TYPE = {"f": float, "i": int, "u": int, "b": bool, "c": complex, "n": float}


@dataclass
class Replay:
    """The calls that a graph is built for: each extent's value or replacement, the guards that do not hold, the sizes
    computed on the host that are 0 or 1. ``record``: the index of the record in replay."""

    sizes: dict[str, Size]
    guards: dict[tuple[int, str], bool]
    evaluated: dict[int, int]
    record: int = 0


def _checked(method):
    """Wraps a method that extends a definition: its errors become definition errors at the user's line, and a finished
    definition rejects it."""

    @functools.wraps(method)
    def call(self, *args, **kwargs):
        try:
            self.check_open()
            return method(self, *args, **kwargs)
        except DefinitionError:
            raise
        except Exception as error:
            raise definition_error(f"fd.{method.__name__}", error) from error

    return call


class Recorder:
    """Records a definition or, with ``replay``, builds its graph for one signature of calls: the same methods serve
    both. ``schedules``: schedule parameters of some segments."""

    schedules: Schedules = None

    def __init__(self, max_length: int = 1 << 20, replay: Replay | None = None):
        self.max_length = max_length
        self._replay = replay
        self._defined = False
        self._clear()

    def check_open(self) -> None:
        """Raises :class:`DefinitionError` where the definition is finished."""
        if self._defined and not self._depth:
            raise self._error("Attempting to add to a completed definition! Write it within `with ... as fd:`")

    def _clear(self) -> None:
        self.inputs: list[Tensor | Scalar] = []
        self.outputs: list[Output] = []
        self.records: list[Record] = []
        self.block = Block()
        self.builder = Builder(self.block, user_line)
        self.layouts: list[Layout | None] = []
        self.graph_arguments: list[Value] = []
        self.scalar_arguments: set[int] = set()
        self.hidden: list[Callable[[Bindings], int]] = []  # compute further arguments of each call
        self._hidden_values: dict[Any, tuple[Value, int]] = {}
        self.equalities: dict[tuple[Size, Size], tuple] = {}  # extents that must be equal -> line and op
        self.guards: dict[tuple[int, str], tuple[Size, Size]] = {}  # assumed inequalities; see at_most
        self.size_arguments: set[int] = set()
        self.evaluated_sizes: dict[int, Scalar] = {}
        self._counts = {"tv": 0, "c": 0, "s": 0, "t": 0, "random": 0}
        self._depth = 0  # nesting depth of ops
        self.operation = ""  # the op that is recorded or replayed
        self._shown: dict[str, Any] = {}  # the current op's arguments as printed, where they differ
        self._extras: list[Tensor] = []  # its additional outputs; see update_input
        self.ops = Operators(self)

    # -- inputs

    @_checked
    def define_tensor(
        self,
        shape=None,
        contiguity=None,
        dtype=DataType.Float,
        is_cpu=False,
        stride_order=None,
        *,
        sizes=None,
        strides=None,
        static_sizes=False,
        symbolic_sizes=None,
        contiguous=None,
    ) -> Tensor:
        """A tensor argument.

        In ``shape`` (older: ``symbolic_sizes``), -1 is an unknown extent, 1 broadcasts, others are constants.
        ``contiguity`` (older: ``contiguous``) says for each dimension, outermost in memory first, whether it is
        contiguous with the next one; None for one that broadcasts. Given ``sizes`` and ``strides`` of an example
        instead, it derives shape and contiguity.
        """
        shape = symbolic_sizes if shape is None else shape
        contiguity = contiguous if contiguity is None else contiguity
        if contiguity is not None and not isinstance(contiguity, bool) and any(type(c) is int for c in contiguity):
            sizes, strides, shape, contiguity = shape, contiguity, None, None  # the older API's order
        if sizes is not None:
            if strides is None or len(sizes) != len(strides):
                raise self._error("define_tensor: sizes and strides must have the same length")
            contiguity, stride_order = compute_tensor_descriptor(sizes, strides)
            shape = [int(n) if static_sizes or n == 1 else -1 for n in sizes]
        shape = self._declared_shape(shape)
        if shape and is_cpu:
            raise self._error("CPU non-scalar tensor is not supported!")
        order = self._stride_order(stride_order, len(shape))
        memory = Declaration(shape, (), dtype, is_cpu, order, None).memory_order
        contiguity = self._declared_contiguity(contiguity, shape, memory)
        element = self._dtype(dtype)
        if is_cpu and element.kind in "cn":
            raise self._error(f"a CPU scalar tensor of {dtype} is not supported: pass a number, to define_scalar")
        return self._declared(Declaration(shape, contiguity, dtype, bool(is_cpu), order, user_line()), element)

    def _declared_shape(self, shape) -> tuple[int, ...]:
        """The shape that :meth:`define_tensor` is given, of numbers from -1 on."""
        if shape is None:
            raise self._error("define_tensor needs shape and contiguity, or sizes and strides", DefinitionTypeError)
        shape = [-1] * shape if isinstance(shape, int) else list(shape)
        if not all(isinstance(n, (int, np.integer)) and abs(int(n)) < 2**63 for n in shape):
            raise self._error(
                f"define_tensor(): incompatible function arguments: shape must be 64-bit integers, not {shape}",
                DefinitionTypeError,
            )
        shape = tuple(map(int, shape))
        for k, n in enumerate(shape):
            if n < -1:
                raise self._error(
                    f"The value {n} at index {k} was neither symbolic(-1), zero_element(0), broadcast(1), "
                    "or static(>1)."
                )
        return shape

    def _declared_contiguity(self, contiguity, shape: tuple[int, ...], memory: list[int]) -> tuple[bool | None, ...]:
        """The contiguity that :meth:`define_tensor` is given, in ``memory`` order; None for broadcast dimensions."""
        if contiguity is None or isinstance(contiguity, bool):
            contiguity = [None if shape[d] == 1 else bool(contiguity) for d in memory]
        if len(contiguity) != len(shape):
            raise self._error(
                f"Length of contiguity argument ({len(contiguity)}) must match that of shape argument ({len(shape)}). "
                "The size of contiguity must equal to the number of non-broadcasting IterDomains"
            )
        return tuple(None if c is None or shape[d] == 1 else bool(c) for c, d in zip(contiguity, memory))

    def _declared(self, declaration: Declaration, element: DType) -> Tensor:
        """The input of a declaration, with symbols for unknown extents and strides."""
        shape, contiguity = declaration.shape, list(zip(declaration.contiguity, declaration.memory_order))
        extents = tuple(self._substituted(self._symbol("s")) if n == -1 else n for n in shape)
        strides: list[Size] = [0] * len(shape)
        running: Size = 1
        for c, d in reversed(contiguity):
            stride = self._symbol("t") if c is False else None
            if c is None or extents[d] == 1:
                continue
            strides[d] = running if stride is None else stride
            running = sz.mul(strides[d], extents[d])
        value = Value(element, extents)
        tensor = Tensor(self, value, declaration, expanded=[d for c, d in contiguity if c is None and shape[d] != 1])
        # nvFuser numbers scalars together with the extents: one each for unknown and constant ones, and a zero.
        zero = bool(shape) and not any(isinstance(i, Tensor) and i.ndim for i in self.inputs)
        self._counts["c"] += sum(n != 1 for n in shape) + zero
        value.name = f"tv{tensor.number}"
        self._add_input(tensor, value, Layout(tuple(strides)), scalar=declaration.is_cpu)
        return tensor

    def _stride_order(self, stride_order, rank) -> tuple[int, ...]:
        if stride_order is not None and not isinstance(stride_order, (list, tuple)):
            raise TypeError(f"stride_order must be a list of integers, not {type(stride_order).__name__}")
        if stride_order is None or len(stride_order) == 0:
            return tuple(range(rank - 1, -1, -1))
        if len(stride_order) != rank:
            raise self._error(
                f"Length of stride_order argument ({len(stride_order)}) must match that of shape argument ({rank})"
            )
        for k in stride_order:
            if isinstance(k, bool) or not isinstance(k, (int, np.integer)):
                raise TypeError(f"stride_order has a {type(k).__name__}, not only integers")
            if not -rank <= k < rank:
                side = f"expects >= -{rank}" if k < 0 else f"expects < {rank}"
                raise self._error(f"stride_order argument is out of range, {side}, but got: {k}")
        order = tuple(int(k) % rank for k in stride_order)
        if len(set(order)) != rank:
            raise self._error(f"got duplicated stride_order entries: {list(stride_order)}")
        return order

    @_checked
    def define_scalar(self, value=None, dtype: DataType | None = None) -> Scalar:
        """A constant; without ``value``, a number passed at each call (a Double unless ``dtype`` is given)."""
        if isinstance(value, DataType):
            value, dtype = None, value
        if value is None:
            data_type = dtype or DataType.Double
            element = self._dtype(data_type)
            if element.kind == "n":
                raise self._error(
                    f"define_scalar: a number of {data_type} is not supported: pass a Float and cast it",
                    DefinitionTypeError,
                )
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
            raise self._error(
                f"define_scalar takes a bool, int, float or complex, not {type(value).__name__}", DefinitionTypeError
            )
        return Scalar(self, *self._constant(value, dtype))

    def _constant(self, value, dtype: DataType | None):
        if dtype is None or dtype is DataType.Null:
            dtype = {bool: DataType.Bool, int: DataType.Int, float: DataType.Double, complex: DataType.ComplexDouble}[
                type(value)
            ]
        kind = _KIND_TO_TYPE[self._dtype(dtype).kind]
        try:
            number = kind(value)
            if isinstance(number, int) and not isinstance(number, bool):
                self._check_range(number, self._dtype(dtype))
            return dtype, number
        except (TypeError, OverflowError, ValueError) as error:
            raise self._error(f"define_scalar: {value} is not a {dtype}: {error}", DefinitionTypeError) from error

    @staticmethod
    def _check_range(number: int, dtype: DType) -> None:
        limits = np.iinfo(dtype.numpy)
        if not min(limits.min, -(2**63) if dtype.bits == 64 else 0) <= number <= limits.max:
            raise OverflowError(f"it is beyond {dtype.bits} bits")

    @_checked
    def define_constant(self, value, dtype: DataType | None = None) -> Scalar:
        """A constant (the older API)."""
        if value is None:
            raise self._error("define_constant needs a value", DefinitionTypeError)
        return self.define_scalar(value, dtype)

    @_checked
    def define_vector(self, values, dtype: DataType = DataType.Int) -> Vector:
        """Scalars for a shape: the given ones, or as many inputs as ``values`` says, passed as one list or one by
        one."""
        if isinstance(values, int):
            return Vector(self.define_scalar(None, dtype) for _ in range(values))
        return Vector(v if isinstance(v, Scalar) else self.define_scalar(v, dtype) for v in values)

    def define_null_tensor(self) -> None:
        """None, for an absent optional tensor (the older API)."""

    @_checked
    def from_pytorch(self, tensor, static_sizes: bool = False) -> Tensor:
        """A tensor argument declared like ``tensor``: a torch tensor, or any array with a shape, strides and a
        dtype."""
        d = describe(tensor)
        if d is None:
            raise self._error(
                f"from_pytorch takes a tensor or an array, not {type(tensor).__name__}", DefinitionTypeError
            )
        is_cpu = d.device == "cpu" and not d.shape and is_torch(tensor) and d.dtype.kind not in "cn"
        return self.define_tensor(
            sizes=d.shape, strides=d.strides, dtype=from_dtype(d.dtype), static_sizes=static_sizes, is_cpu=is_cpu
        )

    def _add_input(self, val: Tensor | Scalar, value: Value, layout, scalar: bool) -> None:
        if self._depth and self._replay is None:
            raise self._error("inputs cannot be defined within an op")
        if scalar:
            self.scalar_arguments.add(len(self.inputs))
        self.inputs.append(val)
        self.graph_arguments.append(value)
        self.layouts.append(layout)
        self.block.args.append(value)

    # -- outputs

    @_checked
    def add_output(self, output: Tensor, alias_input: Tensor | None = None, *, stride_order=None) -> None:
        """Returns ``output`` from each call; with ``alias_input``, writes it into that argument instead of returning
        it."""
        if isinstance(alias_input, (list, tuple)):
            alias_input, stride_order = None, alias_input
        if not isinstance(output, Tensor):
            what = "a scalar" if isinstance(output, Scalar) else type(output).__name__
            raise self._error(
                f"add_output takes a tensor, not {what}: fd.ops.full([], scalar, dtype) creates a tensor from one",
                DefinitionTypeError,
            )
        self._own(output)
        if alias_input is not None:
            self._own(alias_input)
            if alias_input.declaration is None:
                raise self._error("add_output: alias_input must be an input of the fusion")
            if alias_input.value.dtype is not output.value.dtype:
                raise self._error(
                    f"add_output: {output.dtype} cannot be written into an input of {alias_input.dtype}: cast it first",
                    DefinitionTypeError,
                )
            if len(alias_input.value.shape) != len(output.value.shape):
                raise self._error(
                    f"add_output: a tensor of rank {output.ndim} cannot be written into an input of rank "
                    f"{alias_input.ndim}"
                )
            for a, b in zip(output.value.shape, alias_input.value.shape):
                self.equal(a, b, "add_output")
        order = None if stride_order is None else self._stride_order(stride_order, output.ndim)
        self.outputs.append(Output(output, alias_input, order))

    # -- for the operations

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

    def as_val(self, operand) -> Tensor | Scalar:
        """``operand`` as a tensor or scalar of this definition; numbers become constants."""
        if isinstance(operand, (Tensor, Scalar)):
            self._own(operand)
            return operand
        if isinstance(operand, (bool, int, float, complex, np.generic)):
            return self.define_scalar(operand)
        raise self._error(f"expected a tensor, a scalar or a number, not {type(operand).__name__}", DefinitionTypeError)

    def equal(self, a: Size, b: Size, what: str) -> None:
        """Records that two extents must be equal. Raises :class:`ShapeError` where they are known to differ."""
        if a == b or self._replay is not None:
            return
        if isinstance(a, int) and isinstance(b, int):
            raise ShapeError(f"extents {a} and {b} must be equal")
        self.equalities.setdefault((a, b), (what, user_line()))

    def at_most(self, a: Size, b: Size, label: str) -> Size:
        """``min(a, b)``. Where the order is unknown, assumes the common case that ``a`` is smaller, with a guard; a
        call that violates it gets another graph."""
        difference = a - b
        if isinstance(difference, int):
            return a if difference <= 0 else b
        position = (self._replay.record if self._replay else len(self.records), label)
        if self._replay is not None:
            return a if self._replay.guards.get(position, True) else sz.minimum(a, b)
        self.guards[position] = (a, b)
        return a

    def _evaluated_size(self, scalar: Scalar) -> Size:
        """The symbol of a size that is no polynomial: computed on the host and passed as an additional argument."""
        if self._replay is not None:
            known = None if scalar.origin is None else self._replay.evaluated.get(scalar.origin)
            if known is not None:
                return known
            index = self.hidden_argument(("size", scalar.origin), lambda bindings: int(scalar.evaluate(bindings)))[1]
            return sz.symbol(f"v{index}")
        if scalar.origin is None:
            raise self._error(f"{scalar!r} cannot be used as a size here")
        self.evaluated_sizes[scalar.origin] = scalar
        return sz.symbol(f"h{scalar.origin}")

    def hidden_argument(self, key, compute: Callable[[Bindings], Any], dtype: DType = dt.i64) -> tuple[Value, int]:
        """An additional argument, a number computed at each call; the same for the same ``key``."""
        found = self._hidden_values.get(key)
        if found is None and self._replay is None:
            found = self._hidden_values[key] = (Value(dtype, ()), -1)  # only replay uses the argument
        elif found is None:
            found = self._hidden_values[key] = (Value(dtype, ()), len(self.inputs) + len(self.hidden))
            self.scalar_arguments.add(found[1])
            self.hidden.append(compute)
            self.layouts.append(None)
            self.block.args.append(found[0])
        return found

    def complex_argument(self, index: int, dtype: DType) -> Value:
        """A complex input number, built from its real and imaginary parts, which can be passed by value."""

        def part(name):
            return self.hidden_argument(
                (name, index), lambda bindings: getattr(complex(bindings.inputs[index]), name), dt.f64
            )[0]

        return self.builder.cast(self.builder.op("complex", part("real"), part("imag")), dtype)

    def example_argument(self) -> None:
        """Adds an empty array argument that determines the results' framework, where no input is an array."""
        value = Value(dt.f32, (0,), name="like")
        self.hidden.append(lambda bindings: bindings.example)
        self.layouts.append(Layout((1,)))
        self.block.args.append(value)

    def update_input(self, value: Tensor, target: Tensor) -> None:
        """For ops with a side effect: writes ``value``, which the op computes, into an input."""
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
