"""The entry function of a program that is lowered by MLIR's own passes: it wraps the functions on tensors, and takes
buffers.

::

    func.func @entry(%p0: memref<4x5xf32, strided<[10, 2]>>, %p1: memref<4xf32>, %s0: i64, %workspace: memref<?xi8>)

Its parameters are the arrays among the arguments with their memory layout, the results, the arguments passed by value
(64 bits each), and a workspace for intermediate values. Sizes and strides are constants. Results that overwrite
arguments (``Graph.aliases``) are written last, after everything has been read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mlirfuse.analysis.traffic import live
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.dtypes import DType
from mlirfuse.ir.graph import Graph, Value
from mlirfuse.ir.sizes import Size
from mlirfuse.lowering.emitter import Emitter, Val
from mlirfuse.lowering.linalg.constants import with_constant_sizes
from mlirfuse.lowering.linalg.program import functions
from mlirfuse.lowering.linalg.writer import type_of
from mlirfuse.lowering.slots import Slots

ENTRY = "entry"
WORKSPACE = "workspace"  # its key among a program's temporaries


@dataclass(frozen=True)
class Parameter:
    """A parameter of the entry. ``kind``: "pointer", a buffer at ``ptrs[slot]``; "scalar", a number with the bits
    ``ints[slot]``, floats as doubles; "workspace", the bytes from offset ``ints[slot]`` of the workspace. Extents,
    strides and ``offset``, the buffer's start, count elements. ``flipped``: dimensions with negative strides, which
    MLIR does not support everywhere."""

    name: str
    kind: str
    slot: int
    dtype: DType
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    offset: int = 0
    flipped: tuple[int, ...] = ()

    @property
    def type(self) -> str:
        if self.kind == "scalar":
            return "i64"
        if self.kind == "workspace":
            return "memref<?xi8>"
        contiguous = sz.contiguous_strides(self.shape) == self.strides
        layout = "" if contiguous else f", strided<[{', '.join(map(str, self.strides))}]>"
        return f"memref<{''.join(f'{n}x' for n in self.shape)}{self.dtype.signless}{layout}>"


@dataclass(frozen=True)
class Entry:
    """``text``: the module with ``@entry`` and its callees; ``parameters``: the entry's, in order; ``writes``: whether
    there is anything to compute."""

    text: str
    parameters: tuple[Parameter, ...]
    writes: bool


def _ints(sizes: Iterable[Size]) -> tuple[int, ...]:
    return tuple(sz.substitute(n, {}) for n in sizes)


def entry_of(graph: Graph, env: dict[str, int], slots: Slots, on_device: bool) -> Entry:
    """The module of the segmented ``graph`` for the sizes ``env``, with tensors at the locations in ``slots``;
    ``on_device``: elements are only read and written in bodies of generics.

    Raises :class:`UnsupportedError` for ops without a linalg form."""
    return _EntryWriter(graph, env, slots, on_device).entry()


class _EntryWriter:
    """Writes the entry of a graph: parameters, the call of ``@compute``, and copies of its results."""

    def __init__(self, graph: Graph, env: dict[str, int], slots: Slots, on_device: bool):
        self.graph, self.slots, self.on_device = graph, slots, on_device
        self.fixed = fixed = with_constant_sizes(graph, env)
        fixed.name = "compute"
        self.written = [
            k
            for k, value in enumerate(graph.returns)
            if value in slots.pointers and value not in graph.args and graph.returns.index(value) == k
        ]
        fixed.body.returns = [fixed.returns[k] for k in self.written]
        fixed.body.ops = live(fixed.ops, fixed.returns)
        fixed.aliases = {}
        self.parameters: list[Parameter] = []
        self.arguments: dict[int, Parameter] = {}
        self.results: dict[int, Parameter] = {}  # by the number of a result that has memory of its own
        self.windows: dict[int, Parameter] = {}  # by that of a result written into a window of an argument
        self.e = Emitter("gpu" if on_device else "linalg")

    def entry(self) -> Entry:
        """The finished module."""
        fixed, e = self.fixed, self.e
        self.declare()
        for k, value in enumerate(fixed.args):
            _as_tensor(e, k, self.arguments[k], value)
        given = ", ".join(f"%t{k}" for k in range(len(fixed.args)))
        types = [type_of(v.shape, v.dtype) for v in fixed.returns]
        signature = f"({', '.join(type_of(v.shape, v.dtype) for v in fixed.args)}) -> ({', '.join(types)})"
        e.line(f"{f'%o:{len(types)} = ' if types else ''}call @compute({given}) : {signature}")
        late = []
        for at, (k, value) in enumerate(zip(self.written, fixed.returns)):
            late += self.store(at, k, value)
        for line in [*late, "return"]:
            e.line(line)
        head = f"func.func @{ENTRY}({', '.join(f'{p.name}: {p.type}' for p in self.parameters)}) {{"
        computing = functions(fixed, self.on_device).replace("func.func @compute(", "func.func private @compute(")
        text = "\n".join(["module {", computing, head, e.text(), "}", "}"]) + "\n"
        return Entry(text, tuple(self.parameters), bool(self.written))

    def declare(self) -> None:
        """Declare the parameters: arguments, results, windows, scalars, the workspace."""
        graph, fixed = self.graph, self.fixed
        for k, value in enumerate(fixed.args):
            if k not in graph.scalars:
                self.arguments[k] = self.buffer(f"%p{k}", graph.args[k], value, self.strides_of(k))
        for k, value in zip(self.written, fixed.returns):
            if k not in graph.aliases:
                strides = sz.contiguous_strides(value.shape)
                self.results[k] = self.buffer(f"%r{k}", graph.returns[k], value, strides)
        for k, value in zip(self.written, fixed.returns):
            if k in graph.windows:
                self.windows[k] = self.window(k, value)
        for k, value in enumerate(fixed.args):
            if k in graph.scalars:
                self.arguments[k] = Parameter(f"%s{k}", "scalar", self.slots.scalar(graph.args[k]), value.dtype)
                self.parameters.append(self.arguments[k])
        self.parameters.append(Parameter("%workspace", "workspace", self.slots.temporary(WORKSPACE, 0), dt.u8))

    def buffer(self, name: str, original: Value, value: Value, strides: tuple[Size, ...], start: int = 0) -> Parameter:
        """Declare the memory of ``original``."""
        shape, steps = _ints(value.shape), _ints(strides)
        flipped = tuple(d for d, step in enumerate(steps) if step < 0)
        offset = start + sum((shape[d] - 1) * steps[d] for d in flipped)
        lengths, slot = tuple(map(abs, steps)), self.slots.pointers[original]
        created = Parameter(name, "pointer", slot, value.dtype, shape, lengths, offset, flipped)
        self.parameters.append(created)
        return created

    def window(self, k: int, value: Value) -> Parameter:
        """The window of an argument that result ``k`` is written into."""
        window, strides = self.fixed.windows[k], self.strides_of(self.graph.aliases[k])
        start = sum(_ints(sz.mul(n, s) for n, s in zip(window.start, strides)))
        return self.buffer(f"%w{k}", self.graph.returns[k], value, tuple(map(sz.mul, strides, window.step)), start)

    def strides_of(self, k: int) -> tuple[Size, ...]:
        """The strides of argument ``k``."""
        layout = self.fixed.layouts[k] if k < len(self.fixed.layouts) else None
        return tuple(layout.strides) if layout else sz.contiguous_strides(self.fixed.args[k].shape)

    def store(self, at: int, k: int, value: Value) -> list[str]:
        """Store output ``at`` of the call, result ``k``. Returns lines for the end: what is written over an argument
        is written last, because others read the argument."""
        e, type_, created, late = self.e, type_of(value.shape, value.dtype), f"%o#{at}", []
        if k in self.results:
            place, to = self.results[k].name, self.results[k].type
        else:
            over = self.windows[k] if k in self.windows else self.arguments[self.graph.aliases[k]]
            place, to = f"%late{k}", type_.replace("tensor", "memref", 1)
            e.line(f"{place} = memref.alloc() : {to}")
            if over.flipped:
                _reversed(e, created, f"o{k}", over, type_)
                created = f"%o{k}"
            late.append(f"memref.copy {place}, {over.name} : {to} to {over.type}")
        stored = f"{created} in restrict writable {place} : ({type_}, {to}) -> ()"
        e.line(f"bufferization.materialize_in_destination {stored}")
        return late


def _as_tensor(e: Emitter, k: int, parameter: Parameter, value: Value) -> None:
    """Define ``%tk`` as the tensor of a parameter."""
    to = type_of(value.shape, value.dtype)
    if parameter.kind == "scalar":
        bits = Val(parameter.name, dt.i64)
        number = e.cast(e.bitcast(bits, dt.f64) if value.dtype.is_float else bits, value.dtype)
        e.line(f"%t{k} = tensor.from_elements {number} : {to}")
        return
    name = f"%f{k}" if parameter.flipped else f"%t{k}"
    e.line(f"{name} = bufferization.to_tensor {parameter.name} restrict : {parameter.type} to {to}")
    if parameter.flipped:
        _reversed(e, name, f"t{k}", parameter, to)


def _reversed(e: Emitter, source: str, created: str, parameter: Parameter, type_: str) -> None:
    """Define the tensor ``%created`` as ``source`` reversed along the parameter's flipped dimensions."""
    rank, element = len(parameter.shape), parameter.dtype.signless
    space, kinds = ", ".join(f"d{d}" for d in range(rank)), ", ".join(['"parallel"'] * rank)
    maps = f"indexing_maps = [affine_map<({space}) -> ({space})>], iterator_types = [{kinds}]"
    e.line(f"%{created}_empty = tensor.empty() : {type_}")
    e.line(f"%{created} = linalg.generic {{{maps}}} outs(%{created}_empty : {type_}) {{")
    e.line(f"^bb0(%unset: {element}):")
    for d, extent in enumerate(parameter.shape):
        e.line(f"  %i{d} = linalg.index {d} : index")
        if d in parameter.flipped:
            e.line(f"  %last{d} = arith.constant {extent - 1} : index")
            e.line(f"  %j{d} = arith.subi %last{d}, %i{d} : index")
    places = ", ".join(f"%{'j' if d in parameter.flipped else 'i'}{d}" for d in range(rank))
    e.line(f"  %value = tensor.extract {source}[{places}] : {type_}")
    e.line(f"  linalg.yield %value : {element}")
    e.line(f"}} -> {type_}")
