"""Runs a grouped and segmented graph on callers' arrays: as one program where everything is fused, in pieces where ops
in between run through a library.

:func:`prepare` compiles nothing yet; :meth:`Executor.record` gives what the dispatcher of :mod:`mlirfuse._native` runs for one
exact signature, compiling the variant if it is new.
"""

from __future__ import annotations

import functools

import numpy as np

from mlirfuse import _native
from mlirfuse.analysis.axes import Axes
from mlirfuse.core import config
from mlirfuse.core.errors import ShapeError
from mlirfuse.inspect import dump
from mlirfuse.ir import interpreter
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Block, Graph, Layout, Value
from mlirfuse.ir.order import topological
from mlirfuse.runtime import arrays, library
from mlirfuse.runtime.program import Program, Variant


class Empty(Exception):
    """A tensor of this call has no elements: nothing to launch; the reference path gives the result."""


class Executor:
    """``graph`` on ``target``; ``hint``: the sizes of the first call; ``axes``: see :class:`Program`. Values for the
    graph's symbols come as ``env``."""

    def __init__(self, graph: Graph, target, hint: dict[str, int], axes: Axes | None = None):
        self.graph, self.target = graph, target
        self.extents = sorted(
            {n for op in graph.ops for v in op.results for n in v.shape if not isinstance(n, int)}, key=str
        )
        self.empty = any(n == 0 for op in graph.ops for v in op.results + op.operands for n in v.shape)
        self.pieces = None if all(op.group is not None for op in graph.ops) else _Pieces(graph, target, hint)
        self.program = Program(graph, target, hint, axes) if self.pieces is None else None
        self._forms: dict[tuple, _Form] = {}

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
        return self.program.variant(env, self.alignments(leaves, leaf_of_arg))

    def alignments(self, leaves, leaf_of_arg: list[int]) -> dict[Value, int]:
        """The alignment in bytes of each array argument's address."""
        found = {}
        for k, value in enumerate(self.graph.args):
            if k not in self.graph.scalars:
                found[value] = arrays.describe(leaves[leaf_of_arg[k]]).align
        return found

    def record(self, leaves, leaf_of_arg: list[int], env: dict[str, int], result=None, own=()):
        """The Record for arguments with this signature. ``leaf_of_arg``: each graph argument's position among
        ``leaves``; ``own``: leaves that are given to ``result`` behind the graph's results."""
        return self.form(leaf_of_arg, own).record(self.variant(leaves, leaf_of_arg, env), leaves, env, result)

    def known_variant(self, env: dict[str, int], alignments: dict[Value, int]):
        """As :meth:`variant`, but None where it is not compiled yet or a tensor has no elements. ``alignments``: as
        :meth:`alignments` gives them."""
        if self.empty or self.pieces is not None or not self._has_elements(env):
            return None
        return self.program.known(env, alignments)

    @functools.cached_property
    def _has_elements(self):
        return sz.function(" and ".join(f"({n}) > 0" for n in self.extents) or "True", sz.symbols_of(self.extents))

    def form(self, leaf_of_arg: list[int], own=()) -> _Form:
        """What is the same in all records of calls that bring the graph's arguments at these leaves."""
        key = tuple(leaf_of_arg), tuple(own)
        found = self._forms.get(key)
        if found is None:
            found = self._forms[key] = _Form(self.graph, self.program, leaf_of_arg, own)
        return found

    def reference(self, leaves, leaf_of_arg: list[int], env) -> list:
        """The results op by op through the table's reference, in the arguments' framework."""
        graph = self.graph
        given = [arrays.to_numpy(leaves[k]) for k in leaf_of_arg]
        given = [
            np.asarray(a, v.dtype.numpy) if v.dtype.numpy != getattr(a, "dtype", None) else a
            for a, v in zip(given, graph.args)
        ]
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


class _Form:
    """What records of a program have in common, whatever the sizes: where arguments lie, and the outputs as a function
    of the sizes."""

    def __init__(self, graph: Graph, program: Program, leaf_of_arg: list[int], own):
        self.graph, self.program, self.leaf_of_arg = graph, program, leaf_of_arg
        self.slots = [leaf_of_arg[k] for k in program.pointer_args]
        self.first = self.slots[0] if self.slots else None
        self.where = [program.outputs.index(v) for v in graph.returns] + [
            len(program.outputs) + k for k in range(len(own))
        ]
        self.in_order = self.where == list(range(len(self.where)))
        self.outputs = self._outputs(own)
        self._scalars: dict[Variant, list[tuple[int, int, str]]] = {}

    def _outputs(self, own):
        """A function of the sizes that says how each output is made, in the words of
        :class:`mlirfuse._native.Record`."""
        graph, program, leaf_of_arg = self.graph, self.program, self.leaf_of_arg
        mine = {v: k for k, v in enumerate(graph.args)}
        mine |= {graph.returns[k]: argument for k, argument in graph.aliases.items()}
        spelled, used, dtypes, position = [], set(), {}, {}
        for value in program.outputs:
            position[value] = len(spelled)
            dtypes[dtype := f"dtype_{value.dtype}"] = value.dtype.numpy
            if value in mine:
                spelled.append(f"('arg', {leaf_of_arg[mine[value]]})")
                continue
            sizes = [*value.shape]
            if value in program.views:
                root, strides, offset = program.views[value]
                source = ("arg", leaf_of_arg[mine[root]]) if root in mine else ("out", position[root])
                spelled.append(
                    f"('view', {source}, {sz.spelled(value.shape)}, {sz.spelled(strides)}, ({offset})*{value.dtype.bytes}, {dtype})"
                )
                sizes += [*strides, offset]
            else:
                spelled.append(f"('new', {sz.spelled(value.shape)}, None, {dtype})")
            used.update(*map(sz.symbols, sizes))
        spelled += [f"('arg', {leaf})" for leaf in own]
        return sz.function(f"[{', '.join(spelled)}]", used, **dtypes)

    def scalars(self, variant) -> list[tuple[int, int, str]]:
        """(leaf, slot, kind) of each argument passed by value."""
        found = self._scalars.get(variant)
        if found is None:
            at = {v: self.leaf_of_arg[k] for k, v in enumerate(self.graph.args)}
            slots = [(key[1], slot) for key, slot in variant.slots.ints.items() if key[0] == "scalar"]
            found = self._scalars[variant] = [(at[v], slot, "f" if v.dtype.is_float else "i") for v, slot in slots]
        return found

    def place(self, leaves) -> tuple:
        """The dispatcher's word for where results are made, and the leaf that they are made like."""
        return _device(leaves, self.first)

    def record(self, variant, leaves, env: dict[str, int], result, place=None):
        """The Record of a call with these sizes; ``place``: as :meth:`place` gives it for such arguments."""
        plan = self.program.plan(variant, env)
        device, proto = place or self.place(leaves)
        finish = None if result is None and len(self.where) == 1 else self._collect(result or list)
        launch, keep = variant.launch if variant.kernels else 0, variant
        if launch and config.dump and not dump.EACH_CALL.isdisjoint(config.dump):
            launch, keep = dump.watched(self.program, variant, env)
        scalars = self.scalars(variant)
        return _native.Record(
            launch, plan.ints, self.slots, scalars, self.outputs(env), plan.workspace, device, finish, keep, proto
        )

    def _collect(self, result):
        """Gives the graph's results, in order, to ``result``: outputs are made once each."""
        where = self.where
        return result if self.in_order else lambda outputs: result([outputs[k] for k in where])


def _device(leaves, proto):
    """The dispatcher's word for where results are made, and the leaf that they are made like."""
    if proto is None:  # the kernels read no array: where the call's arrays are
        proto = max(
            (k for k, leaf in enumerate(leaves) if arrays.framework(leaf)),
            key=lambda k: arrays.device_of(leaves[k]) != ("cpu",),
            default=None,
        )
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
        self.axes = Axes(graph.ops)
        self.steps: list[tuple[str, object]] = []
        ordered = topological(graph.ops, {op: op.group for op in graph.ops if op.group is not None})
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
        outs = [
            v for op in ops for v in op.results if v in graph.returns or any(u not in inside for u in users.get(v, ()))
        ]
        own = {v: k for k, v in enumerate(graph.args)}
        layouts = [
            graph.layouts[own[v]]
            if v in own and own[v] < len(graph.layouts)
            else Layout(sz.contiguous_strides(v.shape), 16)
            for v in needed
        ]
        scalars = {k for k, v in enumerate(needed) if v in own and own[v] in graph.scalars}
        sub = Graph(f"{graph.name}_{len(self.steps)}", Block(needed, ops, outs), layouts, scalars, {}, graph.device)
        return Executor(sub, target, hint, self.axes)

    def run(self, leaves, leaf_of_arg, env) -> list:
        values: dict[Value, object] = {v: leaves[leaf_of_arg[k]] for k, v in enumerate(self.graph.args)}
        own = set(values)
        like = library.like(leaves)
        for kind, step in self.steps:
            if kind == "library":
                results = library.run(step, [values[v] for v in step.operands], env, like)
                values.update(zip(step.results, results))
                continue
            # Kernels take what is no argument to lie row-major; library ops take views of any strides as they are.
            given = [values[v] if v in own else _contiguous(values[v]) for v in step.graph.args]
            where = list(range(len(given)))
            if not any(map(arrays.framework, given)):
                given.append(like)  # made where the call's arrays are
            record = step.record(given, where, env, list)
            outs = _native.Dispatcher(lambda _, r=record: r)(*given)
            values.update(zip(step.graph.returns, outs))
        results = [values[v] for v in self.graph.returns]
        targets = {k: leaves[leaf_of_arg[v]] for k, v in self.graph.aliases.items()}
        results = [_apart(x, targets.values()) for x in results]
        for k, target in targets.items():
            target[...] = results[k]
        return results


def _contiguous(x):
    if isinstance(x, np.ndarray):
        return x if x.flags.c_contiguous else x.copy(order="C")
    return x.contiguous() if hasattr(x, "contiguous") else x


def _apart(x, written):
    """``x``, or a copy of it where it may lie in an array that is written."""
    if not written or (not hasattr(x, "__array__") and not hasattr(x, "__cuda_array_interface__")):
        return x
    if isinstance(x, np.ndarray):
        return x.copy() if any(np.may_share_memory(x, target) for target in written) else x
    return x.clone() if hasattr(x, "clone") else x.copy()
