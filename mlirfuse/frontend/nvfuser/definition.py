"""``FusionDefinition``: nvFuser's way to write a fusion by hand, op by op.

A definition *records* the user's program: inputs, ops (each checked and inferred as it is written, so that an error
points at its line) and outputs. When it is executed, the record is *replayed* into a :class:`Graph` for what the call's
arguments are: extents that the program needs equal share one symbol, extents of 0 and 1 are constants. Definitions with
equal content share one
:class:`Program`, which holds these graphs and what they compile to.

Symbols of a definition: ``s<k>`` extents, ``t<k>`` strides of the arguments, ``v<k>`` the value of argument ``k``, a
scalar.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from mlirfuse.core.errors import MlirfuseError, ShapeError
from mlirfuse.frontend.nvfuser import printing
from mlirfuse.frontend.nvfuser.inputs import compute_tensor_descriptor, describe, is_torch
from mlirfuse.frontend.nvfuser.program import Program, Replay
from mlirfuse.frontend.nvfuser.promotion import DataType, from_dtype, to_dtype
from mlirfuse.frontend.nvfuser.values import (
    Bindings,
    Declaration,
    DefinitionError,
    DefinitionTypeError,
    InputError,
    Output,
    Record,
    Scalar,
    Tensor,
    Val,
    Vector,
    at_line,
    results_of,
    user_line,
)
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.builder import Builder
from mlirfuse.ir.dtypes import DType
from mlirfuse.ir.graph import Block, Graph, Layout, Value
from mlirfuse.ir.sizes import Size

_KIND_TO_TYPE = {"f": float, "i": int, "u": int, "b": bool, "c": complex, "n": float}


# ---------------------------------------------------------------------------------------------------------------- the
# definition


class FusionDefinition:
    """A fusion, written op by op::

        with FusionDefinition() as fd:
            x = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=DataType.Float)
            fd.add_output(fd.ops.relu(x))
        (y,) = fd.execute([a])

    A subclass may define ``definition(self)`` instead. ``FusionDefinition(fusion)`` writes into a :class:`Fusion` (the
    older API).
    """

    def __init__(self, fusion: Fusion | int | None = None, max_length: int = 1 << 20, *_unused, **_unused_options):
        self._target = fusion if isinstance(fusion, Fusion) else None
        self.max_length = max_length
        self._defined = False
        self._program: Program | None = None
        self._reproducers: list[str] | None = None
        self._replay: Replay | None = None
        self._clear()

    def _clear(self) -> None:
        from mlirfuse.frontend.nvfuser.ops import Operators

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
        if not name.startswith("_") and name in dir(sys.modules["mlirfuse.frontend.nvfuser.ops"].Operators):
            raise AttributeError(
                f"FusionDefinition has no attribute '{name}': operations are in fd.ops, write fd.ops.{name}(...)"
            )
        raise AttributeError(f"FusionDefinition has no attribute '{name}'")

    # -- inputs

    def define_tensor(
        self, shape=None, contiguity=None, dtype=DataType.Float, is_cpu=False, stride_order=None, *,
        sizes=None, strides=None, static_sizes=False, symbolic_sizes=None, contiguous=None,
    ) -> Tensor:  # fmt: skip
        """A tensor argument.

        In ``shape`` (older: ``symbolic_sizes``), -1 is an extent not known yet, 1 broadcasts, others are constants.
        ``contiguity`` (older: ``contiguous``) says for each dimension, outermost in memory first, whether it follows
        the next one without a gap; None for one that broadcasts. With ``sizes`` and ``strides`` of an example instead,
        shape and contiguity follow from those.
        """
        shape = symbolic_sizes if shape is None else shape
        contiguity = contiguous if contiguity is None else contiguity
        if contiguity is not None and not isinstance(contiguity, bool) and any(type(c) is int for c in contiguity):
            sizes, strides, shape, contiguity = (
                shape,
                contiguity,
                None,
                None,
            )  # define_tensor(sizes, strides) of the older API
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
                raise self._error(
                    f"The value {n} at index {k} was neither symbolic(-1), zero_element(0), broadcast(1), or static(>1)."
                )
        rank = len(shape)
        if rank and is_cpu:
            raise self._error("CPU non-scalar tensor is not supported!")
        order = self._stride_order(stride_order, rank)
        memory = Declaration(tuple(shape), (), dtype, is_cpu, order, None).memory_order
        if contiguity is None or isinstance(contiguity, bool):
            contiguity = [None if shape[d] == 1 else bool(contiguity) for d in memory]
        if len(contiguity) != rank:
            raise self._error(
                f"Length of contiguity argument ({len(contiguity)}) must match that of shape argument ({rank})"
            )
        contiguity = tuple(None if c is None or shape[d] == 1 else bool(c) for c, d in zip(contiguity, memory))
        element = self._dtype(dtype)
        if is_cpu and element.kind in "cn":
            raise self._error(f"a CPU scalar tensor of {dtype} is not supported: pass a number, to define_scalar")
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
        tensor = Tensor(
            self, value, declaration, expanded=[d for c, d in zip(contiguity, memory) if c is None and shape[d] != 1]
        )
        # nvFuser numbers scalars together with the extents: one each for unknown and constant ones, and a zero.
        self._counts["c"] += sum(n != 1 for n in shape) + (
            1 if rank and not any(i.is_tensor() and i.ndim for i in self.inputs) else 0
        )
        value.name = f"tv{tensor.number}"
        self._add_input(tensor, value, Layout(tuple(strides_)), scalar=is_cpu)
        return tensor

    def _stride_order(self, stride_order, rank) -> tuple[int, ...]:
        if stride_order is None or len(stride_order) == 0:
            return tuple(range(rank - 1, -1, -1))
        if len(stride_order) != rank:
            raise self._error(
                f"Length of stride_order argument ({len(stride_order)}) must match that of shape argument ({rank})"
            )
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
            return dtype, kind(value)
        except (TypeError, OverflowError, ValueError) as error:
            raise self._error(f"define_scalar: {value} is no {dtype}: {error}", DefinitionTypeError) from error

    def define_constant(self, value, dtype: DataType | None = None) -> Scalar:
        """A constant (the older API)."""
        if value is None:
            raise self._error("define_constant needs a value", DefinitionTypeError)
        return self.define_scalar(value, dtype)

    def define_vector(self, values, dtype: DataType = DataType.Int) -> Vector:
        """Scalars for a shape: the given ones, or as many inputs as ``values`` says, passed as one list or one by
        one."""
        if isinstance(values, int):
            return Vector(self.define_scalar(None, dtype) for _ in range(values))
        return Vector(v if isinstance(v, Scalar) else self.define_scalar(v, dtype) for v in values)

    def define_null_tensor(self) -> None:
        """What stands for an absent optional tensor (the older API): None."""

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
        """Returns ``output`` from each call; with ``alias_input``, writes it into that argument instead of returning
        it."""
        if isinstance(alias_input, (list, tuple)):
            alias_input, stride_order = None, alias_input
        if not isinstance(output, Tensor):
            what = "a scalar" if isinstance(output, Scalar) else type(output).__name__
            raise self._error(
                f"add_output takes a tensor, not {what}: fd.ops.full([], scalar, dtype) makes a tensor of one",
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
                    f"add_output: a tensor of rank {output.ndim} cannot be written into an input of rank {alias_input.ndim}"
                )
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
        """``min(a, b)``. Where it is not known which is smaller, ``a`` is taken to be, as nearly always; a call checks
        that, and one where it is not so gets a graph of its own."""
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

    def hidden_argument(self, key, compute: Callable[[Bindings], Any], dtype: DType = dt.i64) -> tuple[Value, int]:
        """One more number as an argument after the inputs, computed at each call; the same for the same ``key``."""
        found = self._hidden_values.get(key)
        if found is None and self._replay is None:
            found = self._hidden_values[key] = (Value(dtype, ()), -1)  # the record is only replayed
        elif found is None:
            found = self._hidden_values[key] = (Value(dtype, ()), len(self.inputs) + len(self.hidden))
            self.scalar_arguments.add(found[1])
            self.hidden.append(compute)
            self.layouts.append(None)
            self.block.args.append(found[0])
        return found

    def complex_argument(self, index: int) -> Value:
        """A complex number among the inputs, put together from its parts: those can be passed by value."""

        def part(name):
            return self.hidden_argument(
                (name, index), lambda bindings: getattr(complex(bindings.inputs[index]), name), dt.f64
            )[0]

        return self.builder.cast(self.builder.op("complex", part("real"), part("imag")), self.inputs[index].dtype)

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
                    raise NotImplementedError(
                        "Fusion does not exist! Use `with FusionDefinition() as fd: ...` to define a fusion."
                    )
                if type(self).definition is not FusionDefinition.definition:
                    with self:
                        self.definition()
            if not self.outputs:
                raise NotImplementedError("Fusion is empty! It has no outputs: use fd.add_output")
            self._program = Program.of(self)
        return self._program

    def execute(
        self,
        inputs,
        *,
        device=None,
        auto_schedule=True,
        override_user_schedule=False,
        capture_debug_output=False,
        print_repro=False,
        profile=False,
        save_repro_inputs=False,
        _enable_options=(),
        _disable_options=(),
    ) -> list:
        """Runs the fusion on ``inputs`` (tensors, arrays, numbers, lists of numbers for vectors) and returns its
        outputs in a list.

        ``device`` says where to run a fusion that has no tensor inputs. The options that choose among nvFuser's own
        schedulers are taken and have no effect.
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
        """Executes, and compares with ``reference_outputs``, or with the op table's references computed in double
        precision.

        Tolerances follow from each output's element type and the number of elements reduced into it. Raises
        AssertionError; returns the outputs.
        """
        from mlirfuse.frontend.nvfuser.validation import compare, reference

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

    def lower(self, inputs, target: str | None = None):
        """What becomes of a call with ``inputs``: ``fd.lower(inputs).as_text(level)`` prints it at any level (fusion,
        grouped, segmented, …), ``.kernels`` counts its launches. ``target`` is "cpu", "cuda" or "cuda:sm_90"; the
        default follows the inputs."""
        from mlirfuse.frontend.nvfuser.engine import LoweredDefinition

        return LoweredDefinition(self._finished(), inputs, target)

    def explain(self, inputs, target: str | None = None):
        """What becomes of a call with ``inputs``, for people: ``print`` it, or ``.save("fusion.html")`` draws it.
        ``target`` as for :meth:`lower`."""
        from mlirfuse.inspect.explain import Explanation

        return Explanation.of(self.lower(inputs, target))

    def id(self) -> int | None:
        """A number that definitions of equal content share; None before the first execution."""
        return None if self._program is None else self._program.id


class Fusion:
    """A fusion to be filled in by ``with FusionDefinition(fusion) as fd`` and executed (the older API). Equal by
    content."""

    def __init__(self):
        self._definition: FusionDefinition | None = None

    def _needed(self) -> FusionDefinition:
        if self._definition is None:
            raise NotImplementedError(
                "Fusion does not exist! Use `with FusionDefinition(fusion) as fd: ...` to define a fusion."
            )
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
