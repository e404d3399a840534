"""Explanations of calls with graph breaks."""

from __future__ import annotations

import collections
import copy
import time
from dataclasses import dataclass

from mlirfuse.frontend.numpy.graph_breaks.program import GraphBreakProgram
from mlirfuse.frontend.numpy.graph_breaks.tree import Call, Read, Return, SizeOf, Step, Subgraph
from mlirfuse.inspect import listing
from mlirfuse.inspect.call_explanation import CallExplanation
from mlirfuse.inspect.shown import Table

_HEADINGS = ("step", "what", "took", "ended at", "source")


@dataclass
class StepRan:
    """A step of one call. ``kind``: "subgraph", "call", "read" or "size"; ``what``: a subgraph's ops, a function, or
    what was read; ``where``: the line of the graph break after it."""

    kind: str
    what: str
    where: tuple[str, int] | None
    seconds: float
    kernels: int = 0  # launched by a subgraph


def explanation(name: str, subgraphs: GraphBreakProgram, leaves: list) -> CallExplanation:
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
            return _explained(name, steps, before - start)
        key = step.run(state)
        seconds = time.perf_counter() - before
        kernels = step.kernels(state.env) if isinstance(step, Subgraph) else 0
        steps.append(StepRan(*_reported(step, key), step.where, seconds, kernels))


def _explained(name: str, steps: list[StepRan], seconds: float) -> CallExplanation:
    count = collections.Counter(step.kind for step in steps)
    called = sum(step.seconds for step in steps if step.kind == "call")
    text = (
        f"{name} runs in {count['subgraph']} compiled subgraphs, with {count['call']} calls of functions without an op "
        f"and {count['read'] + count['size']} reads of values between them. This call took {seconds * 1e3:.3g} ms, "
        f"{called * 1e3:.3g} ms of it in the functions"
    )
    rows = [
        (s.kind, s.what, f"{s.seconds * 1e3:.3g} ms", listing.place(s.where), listing.source(s.where)) for s in steps
    ]
    table = Table(_HEADINGS, rows, keys={"took": [step.seconds for step in steps]})
    return CallExplanation(name, text, steps, sum(step.kernels for step in steps), seconds, [table])


def _reported(step: Step, key: object) -> tuple[str, str]:
    if isinstance(step, Subgraph):
        return "subgraph", ", ".join(dict.fromkeys(op.name for op in step.whole.ops if not op.row.literal)) or "copy"
    if isinstance(step, Call):
        return "call", getattr(step.function, "__name__", type(step.function).__name__)
    if isinstance(step, SizeOf):
        return "size", "any size, no recompilation" if key is None else f"is {key}"
    assert isinstance(step, Read)
    return "read", getattr(step.how, "__name__", "a value")
