"""A function or definition for some sizes, as a program to be exported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mlirfuse.core.errors import UnsupportedError, located
from mlirfuse.export.paths import Condition, Failed, Point
from mlirfuse.export.specs import ShapeDtype
from mlirfuse.ir.graph import Graph, Op, walk
from mlirfuse.ir.sizes import Size
from mlirfuse.runtime.program import Program
from mlirfuse.runtime.specializations import Specialization
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


def program_of(found: Specialization, target: Target, env: dict[str, int]) -> Program:
    executor = found.build(target, env, _raise)
    if executor.empty:
        why = UnsupportedError(
            f"{found.graph.name} has a tensor without elements for these sizes: it cannot be exported"
        )
        raise Failed(str(why)) from why
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


def stand_ins(leaves: Sequence[Any], point: Point) -> list[Any]:
    return [leaf.stand_in(point) if isinstance(leaf, ShapeDtype) else leaf for leaf in leaves]
