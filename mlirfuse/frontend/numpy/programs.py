"""Specializations that run a Python-driven program: with graph breaks, or by straight-line regions between loops. Its
parts compile as it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from mlirfuse import _native
from mlirfuse.ir.graph import Block, Graph
from mlirfuse.runtime import arrays
from mlirfuse.runtime.launch_template import result_placement
from mlirfuse.runtime.specializations import Call, Specialization


class PythonProgram(Protocol):
    """A program that runs calls, and the executor of its specialization: each part that it compiles has its own.
    ``refused``: the reason why it stopped running calls, or None."""

    refused: Any = None
    fuses, computes, graph = True, True, Graph("program", Block())
    target: Any = None

    def run(self, leaves: list) -> Any:
        """The result of a call."""

    def runner(self, leaves: Sequence) -> Callable[[list], Any]:
        """Return the function of the leaves that runs calls with the signature of these."""
        return self.run

    def check(self, env: dict[str, int]) -> None:
        """Check nothing: the program's parts check their own sizes."""
        return


@dataclass(eq=False)
class ProgramSpecialization(Specialization):
    """A specialization whose calls ``program`` runs."""

    program: PythonProgram = field(kw_only=True)
    shape_cacheable = False

    def build(self, target: Any, env: dict[str, int], failed: Any = None) -> Any:
        self.program.target = target
        return self.program

    def record_or_result(self, leaves: Sequence, env: dict[str, int]) -> Any:
        device, proto = result_placement(leaves, None)
        outputs = [("arg", k) for k in range(len(leaves))]
        return _native.Record(0, [], [], [], outputs, 0, device, self.program.runner(leaves), self.program, proto)


def specialization_of(call: Call, name: str, program: PythonProgram) -> ProgramSpecialization:
    """The specialization for ``call`` that runs ``program``."""
    where = [k for k, leaf in enumerate(call.leaves) if arrays.framework(leaf)]
    return ProgramSpecialization(Graph(name, Block()), where, mutated=frozenset(where), program=program)
