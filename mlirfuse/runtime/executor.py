"""Runs a grouped and segmented graph on callers' arrays: as one program where everything is fused, else as a host
program (extern ops, control flow).

:meth:`Executor.record` returns the record that the dispatcher of :mod:`mlirfuse._native` runs for one exact signature,
and compiles the program if it is new.
"""

from __future__ import annotations

import functools

from mlirfuse.core.errors import ShapeError
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Graph, Segment, Value
from mlirfuse.runtime import arrays
from mlirfuse.runtime.host_program import HostProgram
from mlirfuse.runtime.launch_template import LaunchTemplate
from mlirfuse.runtime.launches import Failed
from mlirfuse.runtime.program import Program


class NoElements(Exception):
    """A tensor of this call has no elements: nothing is launched, and the interpreter returns the result."""


class Executor:
    """Runs ``graph`` on ``target``; ``hint``: the sizes of the first call; ``failed``: see :class:`HostProgram`. Values
    of the graph's symbols are passed as ``env``."""

    def __init__(self, graph: Graph, target, hint: dict[str, int], failed: Failed | None = None):
        self.graph, self.target = graph, target
        self.extents = sorted(
            {n for op in graph.ops for v in op.results for n in v.shape if not isinstance(n, int)}, key=str
        )
        self.empty = any(n == 0 for op in graph.ops for v in op.results + op.operands for n in v.shape)
        fused = all(op.group is not None for op in graph.ops)
        # Exactly one of the two is not None.
        self.host = None if fused else HostProgram(graph, target, failed)
        self.program = Program(graph, target, hint) if fused else None
        self._launch_template: LaunchTemplate | None = None

    @property
    def fuses(self) -> bool:
        """Whether there are kernels, not only extern ops and views."""
        return self.host is None or bool(self.host.kernels)

    @property
    def computes(self) -> bool:
        """Whether there are kernels: the results are not only constants, views and results of extern ops."""
        return self.fuses and bool(self.graph.ops)

    def check(self, env: dict[str, int]) -> None:
        """Raise :class:`NoElements` where a tensor has no elements, :class:`ShapeError` where an extent is negative. A
        host program supports tensors without elements."""
        if self.empty and self.host is None:
            raise NoElements
        for n in self.extents:
            extent = sz.substitute(n, env)
            if not isinstance(extent, int):  # known only as the host program runs
                continue
            if extent < 0:
                raise ShapeError(f"the size {n} is {extent} for this call")
            if extent == 0 and self.host is None:
                raise NoElements

    def compiled_program(self, leaves, leaf_of_arg: list[int], env: dict[str, int]):
        """Return the compiled program for these arguments, compiling it if it is new; for a graph without extern
        ops."""
        assert self.program is not None
        return self.program.compiled_program(env, self.alignments(leaves, leaf_of_arg))

    def alignments(self, leaves, leaf_of_arg: list[int]) -> dict[Value, int]:
        """Return the alignment in bytes of each array argument's address."""
        found = {}
        for k, value in enumerate(self.graph.args):
            if k not in self.graph.scalars:
                found[value] = arrays.spec_of(leaves[leaf_of_arg[k]]).useful_alignment
        return found

    def record(self, leaves, leaf_of_arg: list[int], env: dict[str, int], result=None, finisher_leaves=()):
        """Return the Record for arguments with this signature. ``leaf_of_arg``: each graph argument's index among
        ``leaves``; ``finisher_leaves``: leaves passed to ``result`` after the graph's results; ``result`` None: the
        only result itself."""
        if self.host is not None:
            return self.host.record(leaves, leaf_of_arg, env, result or _only, finisher_leaves)
        return self.launch_template(leaf_of_arg, finisher_leaves).record(
            self.compiled_program(leaves, leaf_of_arg, env), leaves, env, result
        )

    def known_program(self, env: dict[str, int], alignments: dict[Value, int]):
        """As :meth:`compiled_program`, but None where it is not compiled yet or a tensor has no elements.
        ``alignments``: from :meth:`alignments`."""
        if self.empty or self.program is None or not self._has_elements(env):
            return None
        return self.program.known_program(env, alignments)

    @functools.cached_property
    def _has_elements(self):
        return sz.function(" and ".join(f"({n}) > 0" for n in self.extents) or "True", sz.symbols_of(self.extents))

    def programs(self, env: dict[str, int]) -> list[tuple[Program, dict[Segment, Segment]]]:
        """Return the kernel programs in launch order, created for these sizes where new, and for each the segment of
        this graph that each of its segments represents: equal subgraphs share a program."""
        if self.program is not None:
            return [(self.program, {step.segment: step.segment for step in self.program.steps})]
        assert self.host is not None
        return [(self.host.launches[step.region].program(env), step.segments) for step in self.host.kernels]

    def launch_template(self, leaf_of_arg: list[int], finisher_leaves=()) -> LaunchTemplate:
        """Return the common parts of all records of calls, which pass the graph's arguments at these leaves: the same
        for each call of one executor."""
        if self._launch_template is None:
            assert self.program is not None
            self._launch_template = LaunchTemplate(self.graph, self.program, leaf_of_arg, finisher_leaves)
        assert self._launch_template.leaf_of_arg == leaf_of_arg
        return self._launch_template


def _only(results: list):
    (only,) = results
    return only
