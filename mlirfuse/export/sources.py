"""What is exported, as graphs for sizes: functions that are traced, and nvFuser's definitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlirfuse.core.errors import MlirfuseError, UnsupportedError, located
from mlirfuse.export.paths import Condition, Failed, Point
from mlirfuse.export.specs import ShapeDtype, of_example
from mlirfuse.frontend import tree as trees
from mlirfuse.frontend.numpy.dispatch import Entry
from mlirfuse.frontend.numpy.jit import Jitted
from mlirfuse.frontend.numpy.traced_specialization import TracedSpecialization
from mlirfuse.frontend.nvfuser.definition import FusionDefinition
from mlirfuse.frontend.nvfuser.engine import BoundCall, DefinitionSource
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Graph, Op, walk
from mlirfuse.ir.sizes import Size
from mlirfuse.runtime.program import Program
from mlirfuse.runtime.specializations import Call, Specialization
from mlirfuse.schedule.targets import Target


@dataclass(eq=False)
class ExportSpecialization:
    """The program for some sizes. ``sizes``: what the graph's symbols are in the caller's; ``conditions``: what has to
    hold of these; ``outs``: each leaf of the result, ("result", which of the graph's) or ("argument", leaf);
    ``constants``: leaves whose values it takes for granted."""

    program: Program
    leaf_of_arg: list[int]
    sizes: dict[str, Size]
    conditions: list[Condition]
    outs: list[tuple[str, int]]
    constants: dict[int, Any]

    def env(self, number: Callable[[Size], Any]) -> dict[str, Any]:
        """The values of the graph's symbols, of what ``number`` makes of a size."""
        return {name: number(size) for name, size in self.sizes.items()}


class Function:
    """A Python function, traced. ``leaves``: what stands for its arguments, flattened; ``names``: theirs."""

    def __init__(self, jitted: Jitted, specs: Sequence[Any], keywords: dict[str, Any], target: Target, name: str):
        options = jitted.static, name, False, None, jitted.schedule, jitted.max_args
        self.target, self.jitted = target, Jitted(jitted.fn, *options)
        if jitted.lowering_path is not None:
            raise UnsupportedError("what is compiled by MLIR's own passes cannot be exported: leave lowering= out")
        given, self.tree = trees.flatten((tuple(specs), keywords))
        entry = Entry(self.jitted, self.tree)
        self.names = entry.argument_names()
        self.name = jitted.__name__
        self.leaves = [of_example(leaf, name) for leaf, name in zip(given, self.names)]
        positional, keyword = self.tree.children
        single = all(child.kind == "leaf" for child in (*positional.children, *keyword.children))
        self.parameters = self.names if single else None
        self.out_tree: trees.Tree | None = None
        self.scalars: list[str | None] = []

    def specialization(self, point: Point) -> ExportSpecialization:
        """The trace for the sizes of a point. Raises :class:`TraceError` and the like, with the user's line."""
        entry = Entry(self.jitted, self.tree)
        call = entry.describe(_stand_ins(self.leaves, point))
        assert call is not None
        if call.error is not None:
            raise call.error
        found = entry.traced.trace(call)
        traced = found.traced
        if traced.captured:
            names = ", ".join(sorted({_path_of(c) for c in traced.captured}))
            raise UnsupportedError(f"{self.name} reads arrays from around it ({names}): make them arguments")
        refused = {
            "computes with complex numbers or float8": type(found) is not TracedSpecialization,
            "indexes by the value of a number: make it an array, or a constant": bool(
                found.assumes.index_ranges or found.assumes.scalar_ranges
            ),
            "writes into an argument after indices were checked: return the new array": found.writes_late,
            "asks whether two of its arguments are one": traced.compares,
        }
        for what, there in refused.items():
            if there:
                raise UnsupportedError(f"{self.name} cannot be exported: it {what}")
        outs = []
        for out in traced.outs:
            if out.kind not in ("result", "argument"):
                what = "a view of an argument or of a result" if out.kind in ("view", "part") else "a constant"
                raise UnsupportedError(f"{self.name} cannot be exported: it returns {what}; return a copy (np.copy)")
            outs.append((out.kind, out.index))
        if self.out_tree not in (None, traced.out_tree):
            raise UnsupportedError(f"{self.name} cannot be exported: what it returns depends on sizes")
        self.out_tree = traced.out_tree
        self.scalars = [_number(out.scalar) for out in traced.outs]
        constants = {
            leaf: value for leaf, value in found.assumes.constants if not isinstance(self.leaves[leaf], ShapeDtype)
        }
        return _specialization(found, call, self.leaves, self.target, point, outs, constants)


def _specialization(
    found: Specialization, call: Call, leaves, target: Target, point: Point, outs, constants
) -> ExportSpecialization:
    sizes = {}
    for name, (argument, what, axis) in found.assumes.symbols.items():
        spec = leaves[found.leaf_of_arg[argument]]
        sizes[name] = (spec.sizes if what == "shape" else spec.steps)[axis]
    given = [(g.left, g.op, g.right) for g in found.assumes.size_guards]
    given += [(a, "==", b) for a, b in found.assumes.equalities]
    conditions = [Condition(sz.substitute(a, sizes), op, sz.substitute(b, sizes)) for a, op, b in given]
    return ExportSpecialization(
        _program(found, target, found.env(call)), found.leaf_of_arg, sizes, conditions, outs, constants
    )


def _program(found: Specialization, target: Target, env: dict[str, int]) -> Program:
    executor = found.build(target, env, _raise)
    if executor.program is None:
        refuse_steps(executor.graph)
        raise UnsupportedError(f"{found.graph.name} is more than kernels: it cannot be exported")
    return executor.program


def _raise(_: Graph, error: Exception) -> None:
    raise error


def refuse_steps(graph: Graph) -> None:
    """Raises :class:`UnsupportedError` for the first op that no kernel computes, with its line."""
    for op in walk(graph.body):
        if op.group is None and not op.row.view:
            raise UnsupportedError(located(f"{_called(op)} cannot be exported: {_why(op)}", op.loc), op.loc)
    for op in walk(graph.body):
        if op.group is None:
            raise UnsupportedError(located(f"{op.name} cannot be exported: it computes nothing", op.loc), op.loc)


def _called(op: Op) -> str:
    return op.attrs.get("name") or op.name if op.row.calls else op.name


def _why(op: Op) -> str:
    if op.blocks:
        return "a loop or branch whose trip count depends on values needs Python around its kernels"
    return "NumPy or a library runs it, and neither is there; compute it outside and pass the result"


class Definition:
    """A definition of nvFuser's, as :class:`Function`."""

    def __init__(self, definition: FusionDefinition, specs: Sequence[Any], target: Target):
        program = definition._finished()
        self.program, self.target, self.name = program, target, "fusion"
        self.names = [f"in{k}" for k in range(program.inputs)]
        if len(specs) != program.inputs:
            raise TypeError(f"the definition has {program.inputs} inputs, {len(specs)} were given")
        self.leaves = [of_example(spec, name) for spec, name in zip(specs, self.names)]
        self.parameters: list[str] | None = self.names
        self.out_tree: trees.Tree | None = None
        self.scalars: list[str | None] = []
        refused = {
            "computes sizes from values": bool(program.evaluated or program.definition.size_arguments),
            "draws random numbers, or has no tensor as an input": program.computes,
            "asks for sizes": bool(program.guards),
            "reshapes by sizes that depend on each other": bool(program.rules),
        }
        for what, there in refused.items():
            if there:
                raise UnsupportedError(f"the definition cannot be exported: it {what}")

    def specialization(self, point: Point) -> ExportSpecialization:
        """The graph for the sizes of a point."""
        source = DefinitionSource(self.program)
        call = source.describe(_stand_ins(self.leaves, point))
        found = source.make(call)
        assert isinstance(call, BoundCall)
        if any(order is not None for _, order in call.planned.outputs):
            raise UnsupportedError("the definition cannot be exported: an output has a memory order of its own")
        sizes: dict[str, Size] = {}
        definition = self.program.definition
        for value, layout, spec in zip(definition.graph_arguments, definition.layouts, self.leaves):
            if isinstance(spec, ShapeDtype):
                pairs = [*zip(value.shape, spec.sizes), *zip(layout.strides if layout else (), spec.steps)]
                sizes |= {str(name): size for name, size in pairs if isinstance(name, sz.Expr) and name.is_symbol}
        conditions = [
            Condition(sizes[name], "==", sz.substitute(other, sizes))
            for name, other in self.program.sizes.items()
            if name in sizes
        ]
        outs = [("result", k) for k, _ in call.planned.outputs]
        self.scalars = [None] * len(outs)
        self.out_tree = trees.Tree((*(("leaf", 0, None),) * len(outs), ("list", len(outs), None)))
        program = _program(found, self.target, found.env(call))
        known = {name: size for name, size in sizes.items() if name in program.symbols}
        for name in set(program.symbols) - set(known):
            raise UnsupportedError(f"the definition cannot be exported: its size {name} is no input's")
        return ExportSpecialization(program, found.leaf_of_arg, known, conditions, outs, {})


def source_of(
    f: Any, specs: Sequence[Any], keywords: dict[str, Any], target: Target, name: str
) -> Function | Definition:
    """What is exported, for one target. Raises TypeError for what is no function."""
    if isinstance(f, FusionDefinition):
        if keywords:
            raise TypeError("a definition's inputs have no names: give them in order")
        return Definition(f, specs, target)
    if not isinstance(f, Jitted):
        if not callable(f):
            raise TypeError(f"mlirfuse.export takes a function or a FusionDefinition, and not {f!r}")
        f = Jitted(f)
    return Function(f, specs, keywords, target, name)


def _stand_ins(leaves: Sequence[Any], point: Point) -> list[Any]:
    return [leaf.stand_in(point) if isinstance(leaf, ShapeDtype) else leaf for leaf in leaves]


def _number(scalar: type | None) -> str | None:
    return None if scalar is None else "generic" if scalar is np.generic else "python"


def _path_of(captured: Any) -> str:
    return next((str(steps) for _, steps in captured.paths), "a captured array")


def specialization_at(source: Function | Definition, point: Point) -> ExportSpecialization:
    """The program for a point. Raises :class:`Failed` from the error where there is none for these sizes."""
    try:
        return source.specialization(point)
    except UnsupportedError:
        raise  # whatever the sizes
    except (MlirfuseError, ValueError, TypeError, IndexError) as error:
        raise Failed(str(error)) from error
