"""Records of a program's calls: the launch template common to all of them, and the values for one set of sizes."""

from __future__ import annotations

from typing import Any

from mlirfuse import _native
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Graph, Value
from mlirfuse.runtime import arrays, events
from mlirfuse.runtime.program import Program


class LaunchTemplate:
    """The common parts of a program's records, independent of sizes: argument indices, and the outputs as a function of
    the sizes."""

    def __init__(self, graph: Graph, program: Program, leaf_of_arg: list[int], finisher_leaves):
        self.graph, self.program, self.leaf_of_arg = graph, program, leaf_of_arg
        self.arg_slots = [leaf_of_arg[k] for k in program.pointer_args]  # the leaves whose addresses kernels get
        self.first_array = self.arg_slots[0] if self.arg_slots else None
        self.output_of_result = [program.outputs.index(v) for v in graph.returns] + [
            len(program.outputs) + k for k in range(len(finisher_leaves))
        ]
        self.in_order = self.output_of_result == list(range(len(self.output_of_result)))
        self.outputs = self._outputs(finisher_leaves)

    def _outputs(self, finisher_leaves):
        """Return a function of the sizes that describes how each output is allocated, in the format of
        :class:`mlirfuse._native.Record`."""
        graph, program, leaf_of_arg = self.graph, self.program, self.leaf_of_arg
        argument_of = {v: k for k, v in enumerate(graph.args)}
        argument_of |= {graph.returns[k]: argument for k, argument in graph.aliases.items()}
        serialized: list[str] = []
        used: set[str] = set()
        dtypes: dict[str, Any] = {}
        index: dict[Value, int] = {}
        for value in program.outputs:
            index[value] = len(serialized)
            dtypes[dtype := f"dtype_{value.dtype}"] = value.dtype.numpy
            if value in argument_of:
                serialized.append(f"('arg', {leaf_of_arg[argument_of[value]]})")
                continue
            sizes = [*value.shape]
            if value in program.views:
                root, strides, offset = program.views[value]
                source = ("arg", leaf_of_arg[argument_of[root]]) if root in argument_of else ("out", index[root])
                start = f"({offset})*{value.dtype.bytes}"
                shape = sz.serialized(value.shape)
                serialized.append(f"('view', {source}, {shape}, {sz.serialized(strides)}, {start}, {dtype})")
                sizes += [*strides, offset]
            else:
                serialized.append(f"('new', {sz.serialized(value.shape)}, None, {dtype})")
            used.update(*map(sz.symbols, sizes))
        serialized += [f"('arg', {leaf})" for leaf in finisher_leaves]
        return sz.function(f"[{', '.join(serialized)}]", used, **dtypes)

    def placement(self, leaves) -> tuple:
        """Return the dispatcher's device for results, and the leaf whose framework allocates them."""
        return result_placement(leaves, self.first_array)

    def record(self, compiled_program, leaves, env: dict[str, int], result, placement=None):
        """Return the Record of a call with these sizes; ``placement``: from :meth:`placement` for such arguments."""
        plan = self.program.plan(compiled_program, env)
        device, proto = placement or self.placement(leaves)
        finish = None if result is None and len(self.output_of_result) == 1 else self._collect(result or list)
        launch, keep = compiled_program.launch if compiled_program.kernels else 0, compiled_program
        if launch and events.Launching.observers:
            event = events.Launching(self.program, compiled_program, env, launch, keep)
            events.report(event)
            launch, keep = event.launch, event.keep
        scalars = [(self.leaf_of_arg[k], slot, kind) for k, slot, kind in compiled_program.scalars]
        return _native.Record(
            launch, plan.ints, self.arg_slots, scalars, self.outputs(env), plan.workspace, device, finish, keep, proto
        )

    def _collect(self, result):
        """Pass the graph's results, in order, to ``result``; each output is allocated once."""
        outputs_of_results = self.output_of_result
        return result if self.in_order else lambda outputs: result([outputs[k] for k in outputs_of_results])


def result_placement(leaves, proto):
    """Return the dispatcher's device for results, and the leaf whose framework allocates them."""
    if proto is None:  # the kernels read no array: use the device of the call's arrays
        proto = max(
            (k for k, leaf in enumerate(leaves) if arrays.framework(leaf)),
            key=lambda k: arrays.device_of(leaves[k]) != ("cpu",),
            default=None,
        )
    if proto is None:
        return ("cpu", "numpy"), -1
    kind, device = arrays.framework(leaves[proto]), arrays.device_of(leaves[proto])
    if device is None or device == ("cpu",):
        return ("cpu", kind), proto
    return ("cuda", kind, device[1]), proto
