"""Definitions of nvFuser's as what is exported."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mlirfuse.core.errors import UnsupportedError
from mlirfuse.export.constants import Constants
from mlirfuse.export.paths import Condition, Point
from mlirfuse.export.specialization import ExportSpecialization, program_of, stand_ins
from mlirfuse.export.specs import ShapeDtype, of_example
from mlirfuse.frontend import tree as trees
from mlirfuse.frontend.nvfuser.definition import FusionDefinition
from mlirfuse.frontend.nvfuser.engine import BoundCall, DefinitionSource
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.builder import Builder
from mlirfuse.ir.graph import Graph
from mlirfuse.ir.sizes import Size
from mlirfuse.schedule.targets import Target


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
        self.constants = Constants(self.name)
        refused = {
            "computes sizes from values": bool(program.evaluated or program.definition.size_arguments),
            "draws random numbers, or has no tensor as an input": program.computes,
        }
        for what, there in refused.items():
            if there:
                raise UnsupportedError(f"the definition cannot be exported: it {what}")

    def specialization(self, point: Point) -> ExportSpecialization:
        """The graph for the sizes of a point."""
        source = DefinitionSource(self.program)
        call = source.describe(stand_ins(self.leaves, point))
        found = source.make(call)
        assert isinstance(call, BoundCall)
        outs = _copied(found.graph, call.planned.outputs)
        env = found.env(call)
        sizes: dict[str, Size] = {}
        definition = self.program.definition
        for value, layout, spec in zip(definition.graph_arguments, definition.layouts, self.leaves):
            if isinstance(spec, ShapeDtype):
                pairs = [*zip(value.shape, spec.sizes), *zip(layout.strides if layout else (), spec.steps)]
                sizes |= {str(name): size for name, size in pairs if isinstance(name, sz.Expr) and name.is_symbol}
        divided = self.program._concrete(env)[1]
        sizes |= {f"q{name[1:]}": sz.floordiv(sizes[name], by) for name, by in divided if name in sizes}
        self.scalars = [None] * len(outs)
        self.out_tree = trees.Tree((*(("leaf", 0, None),) * len(outs), ("list", len(outs), None)))
        program = program_of(found, self.target, env)
        known = {name: size for name, size in sizes.items() if name in program.symbols}
        for name in set(program.symbols) - set(known):
            raise UnsupportedError(f"the definition cannot be exported: its size {name} is no input's")
        return ExportSpecialization(program, found.leaf_of_arg, known, self._conditions(env, sizes), outs, {})

    def _conditions(self, env: dict[str, int], sizes: dict[str, Size]) -> list[Condition]:
        """What has to hold of sizes for the graph that is planned where the definition's symbols are ``env``."""
        given = [(a, "==", b) for a, b in self.program.definition.equalities]
        for low, high in self.program.guards.values():
            at_most = sz.substitute(low, env) <= sz.substitute(high, env)
            given.append((low, "<=", high) if at_most else (high, "<", low))
        given += [(sz.symbol(name), "==", value) for name, value in self.program._concrete(env)[0]]
        multiples: dict[str, int] = {}
        for _, names, divisor in self.program.rules:
            for name in (str(self.program.sizes.get(name, name)) for name in names):
                if divisor is None or name not in sizes:
                    continue
                by = math.lcm(divisor, multiples.get(name, 1))
                given.append((sz.mod(sz.symbol(name), by), "==" if env[name] % by == 0 else "!=", 0))
                if env[name] % by == 0:
                    given.append((sz.symbol(name), "==" if env[name] == by else "!=", by))
                    multiples[name] = by
        conditions = []
        for left, op, right in given:
            left, right = sz.substitute(left, sizes), sz.substitute(right, sizes)
            if not (isinstance(left, int) and isinstance(right, int)):
                conditions.append(Condition(left, op, right))
        return conditions


def _copied(graph: Graph, outputs: Sequence[tuple[int, tuple[int, ...] | None]]) -> list[tuple[str, int]]:
    """Makes each output, an index among the graph's results and a permutation of it, a C-contiguous array of its own;
    returns where they are."""
    builder, returns = Builder(graph.body), [graph.returns[k] for k in sorted(graph.aliases)]
    outs = []
    for k, order in outputs:
        value = graph.returns[k] if order is None else builder.permute(graph.returns[k], order)
        if value in returns or value.op is None or value.op.row.view:
            value = builder.op("copy", value)
        outs.append(("result", len(returns)))
        returns.append(value)
    graph.body.returns = returns
    return outs
