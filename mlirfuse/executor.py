"""Runs a grouped and segmented graph on callers' arrays: as one program where everything is fused, in pieces where ops in between run
through a library.

:func:`prepare` compiles nothing yet; :meth:`Executor.record` gives what the dispatcher of :mod:`mlirfuse._native` runs for one
exact signature, compiling the variant if it is new.
"""

from __future__ import annotations

import numpy as np

from mlirfuse import _native, interpreter
from mlirfuse import dtypes as dt
from mlirfuse import graph as gr
from mlirfuse import ops as table
from mlirfuse import sizes as sz
from mlirfuse.errors import ShapeError
from mlirfuse.frontend import arrays
from mlirfuse.graph import Block, Graph, Layout, Value
from mlirfuse.program import Program


class Empty(Exception):
    """A tensor of this call has no elements: nothing to launch; the reference path gives the result."""


class Executor:
    """``graph`` on ``target``; ``hint``: the sizes of the first call. Values for the graph's symbols come as ``env``."""

    def __init__(self, graph: Graph, target, hint: dict[str, int]):
        self.graph, self.target = graph, target
        self.extents = sorted({n for op in graph.ops for v in op.results for n in v.shape if not isinstance(n, int)}, key=str)
        self.empty = any(n == 0 for op in graph.ops for v in op.results + op.operands for n in v.shape)
        self.pieces = None if all(op.group is not None for op in graph.ops) else _Pieces(graph, target, hint)
        self.program = Program(graph, target, hint) if self.pieces is None else None

    def check(self, env: dict[str, int]) -> None:
        """Raises :class:`Empty` where a tensor has no elements, :class:`ShapeError` where an extent is negative."""
        if self.empty:
            raise Empty
        for n in self.extents:
            extent = sz.substitute(n, env)
            if extent < 0:
                raise ShapeError(f"the size {n} is {extent} for this call")
            if extent == 0:
                raise Empty

    def variant(self, leaves, leaf_of_arg: list[int], env: dict[str, int]):
        """The compiled variant for these arguments, compiled now if it is new; for a graph without library ops."""
        alignments = {}
        for k, value in enumerate(self.graph.args):
            if k not in self.graph.scalars:
                alignments[value] = arrays.describe(leaves[leaf_of_arg[k]]).align
        return self.program.variant(env, alignments)

    def record(self, leaves, leaf_of_arg: list[int], env: dict[str, int], result=None):
        """The Record for arguments with this signature. ``leaf_of_arg``: each graph argument's position among ``leaves``."""
        graph, program = self.graph, self.program
        variant = self.variant(leaves, leaf_of_arg, env)
        plan = program.plan(variant, env)
        scalars = []
        for key, slot in variant.slots.ints.items():
            if key[0] == "scalar":
                position = graph.args.index(key[1])
                scalars.append((leaf_of_arg[position], slot, "f" if key[1].dtype.is_float else "i"))
        first = next((leaf_of_arg[k] for k in range(len(graph.args)) if k not in graph.scalars), None)
        outputs = []
        own = {v: k for k, v in enumerate(graph.args)}
        own |= {graph.returns[k]: argument for k, argument in graph.aliases.items()}
        position = {}
        for value, shape in zip(program.outputs, plan.shapes):
            if value in own:
                outputs.append(("arg", leaf_of_arg[own[value]]))
            elif value in program.views:
                root, strides, offset = program.views[value]
                strides = tuple(sz.substitute(s, env) for s in strides)
                source = ("arg", leaf_of_arg[own[root]]) if root in own else ("out", position[root])
                outputs.append(("view", source, shape, strides, sz.substitute(offset, env) * value.dtype.bytes, _dtype(value.dtype)))
            else:
                outputs.append(("new", shape, tuple(sz.contiguous_strides(shape)), _dtype(value.dtype)))
            position[value] = len(outputs) - 1
        slots = [leaf_of_arg[k] for k in program.pointer_args]
        device, proto = _device(leaves, first)
        where = [program.outputs.index(v) for v in graph.returns]
        single = result is None and len(where) == 1
        finish = None if single else _collect(where, result)
        return _native.Record(variant.launch if variant.kernels else 0, plan.ints, slots, scalars, outputs, plan.workspace, device, finish, variant, proto)

    def reference(self, leaves, leaf_of_arg: list[int], env) -> list:
        """The results op by op through the table's reference, in the arguments' framework."""
        graph = self.graph
        given = [arrays.to_numpy(leaves[k]) for k in leaf_of_arg]
        given = [np.asarray(a, v.dtype.numpy) if v.dtype.numpy != getattr(a, "dtype", None) else a for a, v in zip(given, graph.args)]
        like = next((leaves[k] for k in leaf_of_arg if arrays.framework(leaves[k])), np.empty(0))
        with np.errstate(all="ignore"):
            results = interpreter.run(graph, given, env)
        out = []
        for k, value in enumerate(results):
            target = graph.aliases.get(k)
            if target is not None:
                arrays.write_into(leaves[leaf_of_arg[target]], value)
            out.append(arrays.from_numpy(np.array(value, copy=True), like))
        return out


def _dtype(dtype: dt.DType):
    return dtype.numpy


def _collect(where: list[int], result):
    """Gives the graph's results, in order, to ``result``: outputs are stored once each."""
    if where == list(range(len(where))):
        return result or (lambda outputs: list(outputs))
    return lambda outputs: (result or list)([outputs[k] for k in where])


def _device(leaves, proto):
    """The dispatcher's word for where results are made, and the leaf that they are made like."""
    if proto is None:
        return ("cpu", "numpy"), -1
    kind, device = arrays.framework(leaves[proto]), arrays.device_of(leaves[proto])
    if device == ("cpu",):
        return ("cpu", kind), proto
    return ("cuda", kind, device[1]), proto


class _Pieces:
    """A graph with library ops: groups between them become programs of their own, run in order from Python."""

    def __init__(self, graph: Graph, target, hint):
        self.graph = graph
        self.steps: list[tuple[str, object]] = []
        ordered = gr.topological(graph.ops, {op: op.group for op in graph.ops if op.group is not None})
        run: list = []
        for op in ordered + [None]:
            if op is not None and op.group is not None:
                run.append(op)
                continue
            if run:
                self.steps.append(("kernels", self._sub(run, target, hint)))
                run = []
            if op is not None:
                self.steps.append(("library", op))

    def _sub(self, ops, target, hint):
        graph = self.graph
        made = {v for op in ops for v in op.results}
        needed = list(dict.fromkeys(v for op in ops for v in op.operands if v not in made))
        users = graph.body.users()
        inside = set(ops)
        outs = [v for op in ops for v in op.results if v in graph.returns or any(u not in inside for u in users.get(v, ()))]
        own = {v: k for k, v in enumerate(graph.args)}
        layouts = [graph.layouts[own[v]] if v in own and own[v] < len(graph.layouts) else Layout(sz.contiguous_strides(v.shape), 16) for v in needed]
        scalars = {k for k, v in enumerate(needed) if v in own and own[v] in graph.scalars}
        sub = Graph(f"{graph.name}_{len(self.steps)}", Block(needed, ops, outs), layouts, scalars, {}, graph.device)
        return Executor(sub, target, hint)

    def run(self, leaves, leaf_of_arg, env) -> list:
        values: dict[Value, object] = {v: leaves[leaf_of_arg[k]] for k, v in enumerate(self.graph.args)}
        for kind, step in self.steps:
            if kind == "library":
                results = _library(step, [values[v] for v in step.operands])
                values.update(zip(step.results, results))
                continue
            given = [values[v] for v in step.graph.args]
            record = step.record(given, list(range(len(given))), env, list)
            outs = _native.Dispatcher(lambda _, r=record: r)(*given)
            values.update(zip(step.graph.returns, outs))
        for k, v in self.graph.aliases.items():
            target = leaves[leaf_of_arg[v]]
            target[...] = values[self.graph.returns[k]]
        return [values[v] for v in self.graph.returns]


def _library(op, given) -> list:
    """Runs an op through the arrays' own framework where that has it, else through the table's reference."""
    kind = next((arrays.framework(a) for a in given if arrays.framework(a)), "numpy")
    if kind == "torch":
        import torch

        functions = {"matmul": torch.matmul, "linear": torch.nn.functional.linear}
        if op.name in functions:
            return [functions[op.name](*given).contiguous()]
    if kind == "cupy" and op.name == "matmul":
        return [given[0] @ given[1]]
    row = table.TABLE[op.name]
    results = row.ref(*(arrays.to_numpy(a) for a in given), **op.attrs)
    results = results if len(op.results) > 1 else [results]
    like = next((a for a in given if arrays.framework(a)), np.empty(0))
    return [arrays.from_numpy(np.ascontiguousarray(np.asarray(r, v.dtype.numpy)), like) for r, v in zip(results, op.results)]
