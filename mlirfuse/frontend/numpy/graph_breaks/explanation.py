"""Explanations of calls with graph breaks."""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass

from mlirfuse.frontend.numpy.graph_breaks.program import GraphBreakProgram
from mlirfuse.frontend.numpy.graph_breaks.tree import Call, Read, Return, SizeOf, Step, Subgraph
from mlirfuse.inspect import listing
from mlirfuse.inspect.shown import Table, Tables


@dataclass
class StepRan:
    """A step of one call. ``kind``: "subgraph", "call", "read" or "size"; ``what``: a subgraph's ops, a function, or
    what was read; ``where``: the line of the graph break after it."""

    kind: str
    what: str
    where: tuple[str, int] | None
    seconds: float
    kernels: int = 0  # launched by a subgraph


class GraphBreaksExplanation(Tables):
    """One call of a function with graph breaks (:mod:`mlirfuse.frontend.numpy.graph_breaks`): its ``steps`` in order,
    and ``seconds`` of the whole call."""

    def __init__(self, name: str, steps: list[StepRan], seconds: float):
        self.name, self.steps, self.seconds = name, steps, seconds

    @staticmethod
    def of(name: str, subgraphs: GraphBreakProgram, leaves: list) -> GraphBreaksExplanation:
        """Runs the call three times on copies: to compile, to load, to measure. Raises TraceError where it does not run
        with graph breaks."""
        for _ in range(2):
            subgraphs.with_graph_breaks(copy.deepcopy(leaves))
        state = subgraphs.tree.state(copy.deepcopy(leaves))
        steps: list[StepRan] = []
        step: Step = subgraphs.tree.root
        key: object = None
        start = time.perf_counter()
        while True:
            step = subgraphs.tree.next(step, key, state)
            before = time.perf_counter()
            if isinstance(step, Return):
                step.result(state)
                return GraphBreaksExplanation(name, steps, before - start)
            key = step.run(state)
            seconds = time.perf_counter() - before
            kernels = step.kernels(state.env) if isinstance(step, Subgraph) else 0
            steps.append(StepRan(*_reported(step, key), step.where, seconds, kernels))

    def summary(self) -> str:
        """One line: the numbers of compiled subgraphs and of called functions, and the call's time."""
        count = {kind: sum(step.kind == kind for step in self.steps) for kind in ("subgraph", "call", "read", "size")}
        called = sum(step.seconds for step in self.steps if step.kind == "call")
        reads = count["read"] + count["size"]
        return (
            f"{self.name} runs in {count['subgraph']} compiled subgraphs, with {count['call']} calls of functions "
            f"without an op and {reads} reads of values between them. This call took {self.seconds * 1e3:.3g} ms, "
            f"{called * 1e3:.3g} ms of it in the functions"
        )

    @property
    def launches(self) -> int:
        """The number of kernels launched, over all subgraphs."""
        return sum(step.kernels for step in self.steps)

    def tables(self) -> list[Table]:
        rows = []
        for step in self.steps:
            where = listing.place(step.where), listing.source(step.where)
            rows.append((step.kind, step.what, f"{step.seconds * 1e3:.3g} ms", *where))
        headings = ("step", "what", "took", "ended at", "source")
        return [Table(headings, rows, keys={"took": [step.seconds for step in self.steps]})]


def _reported(step: Step, key: object) -> tuple[str, str]:
    if isinstance(step, Subgraph):
        return "subgraph", ", ".join(dict.fromkeys(op.name for op in step.whole.ops if not op.row.literal)) or "copy"
    if isinstance(step, Call):
        return "call", getattr(step.function, "__name__", type(step.function).__name__)
    if isinstance(step, SizeOf):
        return "size", "any size, no recompilation" if key is None else f"is {key}"
    assert isinstance(step, Read)
    return "read", getattr(step.how, "__name__", "a value")
