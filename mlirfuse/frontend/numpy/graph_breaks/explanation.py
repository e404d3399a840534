"""What becomes of a call that runs in pieces, for people."""

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
    """A step of one call: ``kind`` "piece", "call", "read" or "size"; ``what``: a piece's ops, a function, what was
    read; the place in the program that ended what was before it, and its seconds."""

    kind: str
    what: str
    where: tuple[str, int] | None
    seconds: float
    kernels: int = 0  # that a piece launches


class GraphBreaksExplanation(Tables):
    """One call of a function that runs in pieces (:mod:`mlirfuse.frontend.numpy.graph_breaks`): its ``steps`` in order,
    and
    ``seconds`` of the whole call."""

    def __init__(self, name: str, steps: list[StepRan], seconds: float):
        self.name, self.steps, self.seconds = name, steps, seconds

    @staticmethod
    def of(name: str, subgraphs: GraphBreakProgram, leaves: list) -> GraphBreaksExplanation:
        """Of a call that runs three times on copies: to compile, to load, to measure. Raises TraceError where it does
        not run in pieces."""
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
        """One line: how many pieces are compiled, how many functions are called, and how long a call takes."""
        count = {kind: sum(step.kind == kind for step in self.steps) for kind in ("subgraph", "call", "read", "size")}
        called = sum(step.seconds for step in self.steps if step.kind == "call")
        reads = count["read"] + count["size"]
        return (
            f"{self.name} runs in {count['subgraph']} subgraphs, with {count['call']} calls of functions that have "
            f"no kernel and {reads} values read between them. This call took {self.seconds * 1e3:.3g} ms, "
            f"{called * 1e3:.3g} ms of it in the functions"
        )

    @property
    def launches(self) -> int:
        """Of kernels, in all pieces."""
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
        return "size", "another one compiles nothing" if key is None else f"is {key}"
    assert isinstance(step, Read)
    return "read", getattr(step.how, "__name__", "a value")
