"""Builds a definition's graphs: replays its records with the facts about a call.

Extents that must be equal share one symbol, extents of 0 and 1 are constants.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mlirfuse.frontend.nvfuser.inputs import is_torch
from mlirfuse.frontend.nvfuser.promotion import DataType
from mlirfuse.frontend.nvfuser.recorder import Recorder, Replay
from mlirfuse.frontend.nvfuser.values import Bindings, Declaration, Record, Scalar, Tensor, Val, Vector, results_of
from mlirfuse.ir.graph import Graph, Value


@dataclass(eq=False)
class Planned:
    """A graph of a program. ``hidden``: functions of the arguments that follow the inputs; ``outputs``: for each output
    of the definition the index of the graph's return, and the permutation that restores its dimension order (None: no
    permutation)."""

    graph: Graph
    hidden: list[Callable[[Bindings], Any]]
    outputs: list[tuple[int, tuple[int, ...] | None]]

    def collect(self, results) -> list:
        """The definition's outputs from the graph's results."""
        out = []
        for k, order in self.outputs:
            value = results[k]
            if order is not None:
                value = value.permute(*order) if is_torch(value) else value.transpose(order)
            out.append(value)
        return out


def replayed(source: Recorder, live: list[Record], replay: Replay) -> Planned:
    """The graph of a finished definition for the calls that ``replay`` describes; ``live``: the records that its
    outputs need."""
    fd = Recorder(replay=replay)
    mapped: dict[int, Any] = {}

    def image(value):
        if isinstance(value, Val):
            found = mapped.get(id(value))
            if found is None:  # a constant
                assert isinstance(value, Scalar)
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
    # A mutated argument is in memory, not a number passed by value.
    fd.scalar_arguments -= {source.inputs.index(o.alias) for o in source.outputs if o.alias is not None}
    for k, argument in enumerate(fd.graph_arguments):
        argument.name = source.graph_arguments[k].name
    fd._depth = 1
    for record in live:
        replay.record, fd.operation, fd._extras = record.index, record.name, []
        fd.builder.loc = lambda loc=record.loc: loc
        returned = getattr(fd.ops, record.name)(**{key: image(value) for key, value in record.call.items()})
        for created, value in zip([*results_of(returned), *fd._extras], record.results):
            mapped[id(value)] = created
            if isinstance(created, Scalar):
                created.origin = record.index
    if not any(isinstance(v, Tensor) and not v.declaration.is_cpu for v in source.inputs):
        fd.example_argument()  # no argument determines the results' device
    return _planned(fd, source, mapped)


def symbol_values(planned: Planned, bindings: Bindings, leaves) -> dict[str, int]:
    """The values of the graph's symbols: the definition's, and those of computed arguments."""
    env = dict(bindings.symbols)
    count = len(bindings.inputs)
    for k in range(count, len(leaves)):
        if planned.graph.args[k].dtype.is_integer and k in planned.graph.scalars:
            env[f"v{k}"] = int(leaves[k])
    return env


def _planned(fd: Recorder, source: Recorder, mapped) -> Planned:
    """The outputs of a replayed definition as the graph's returns; permutes those in another memory order to
    row-major."""
    arguments = set(fd.graph_arguments)
    returns: list[Value] = []
    aliases: dict[int, int] = {}
    outputs: list[tuple[int, tuple[int, ...] | None]] = []
    positions: dict[tuple, int] = {}
    for output in source.outputs:
        if output.alias is not None:
            value = mapped[id(output.value)].value
            if value in arguments or value in returns:  # each return needs a value of its own
                value = fd.builder.op("copy", value)
            else:
                positions[value, None] = len(returns)
            aliases[len(returns)] = source.inputs.index(output.alias)
            returns.append(value)
    for output in source.outputs:
        if output.alias is not None:
            continue
        tensor = mapped[id(output.value)]
        order, value, back = (output.stride_order or tensor.stride_order, tensor.value, None)
        if order is not None and (value, None) not in positions and list(order) != list(range(value.rank - 1, -1, -1)):
            memory = Declaration((0,) * value.rank, (), DataType.Null, False, tuple(order), None).memory_order
            back = tuple(memory.index(d) for d in range(value.rank))
        if (value, back) not in positions:
            positions[value, back] = len(returns)
            if back is None and _reversed(value):
                value = fd.builder.op("copy", value)  # a copy: torch has no negative strides
            if back is not None:
                value = fd.builder.permute(
                    value if tensor.stride_order is not None else fd.builder.op("copy", value), memory
                )
            returns.append(value)
        outputs.append((positions[tensor.value, back], back))
    fd.block.returns = returns
    graph = Graph("fusion", fd.block, list(fd.layouts), set(fd.scalar_arguments), aliases)
    graph.numbers = {f"v{k}" for k, v in enumerate(graph.args) if k in graph.scalars and v.dtype.is_integer}
    _remove_dead(graph)
    return Planned(graph, list(fd.hidden), outputs)


def _reversed(value: Value) -> bool:
    """Whether ``value`` may be a view of an argument with a reversed dimension."""
    while value.op is not None and value.op.row.view:
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
