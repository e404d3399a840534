"""Programs of functions with graph breaks, and explanations of their calls."""

from __future__ import annotations

import collections
import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlirfuse import _native
from mlirfuse.core import deadline
from mlirfuse.core.errors import CompileError, TraceError, UnsupportedError
from mlirfuse.frontend import tree as trees
from mlirfuse.frontend.numpy import tracing
from mlirfuse.frontend.numpy.graph_breaks.replay import Replay
from mlirfuse.frontend.numpy.graph_breaks.session import NotSplittable, Session
from mlirfuse.frontend.numpy.graph_breaks.tree import Call, Read, Return, SizeOf, State, Step, Subgraph, Tree, Unknown
from mlirfuse.frontend.numpy.programs import PythonProgram
from mlirfuse.frontend.numpy.scope import scope_of
from mlirfuse.frontend.numpy.trace_state import TooLong, Trace
from mlirfuse.inspect import listing
from mlirfuse.inspect.call_explanation import CallExplanation
from mlirfuse.inspect.shown import Table
from mlirfuse.runtime import arrays

_MOST_OPS = 2000
_MOST_FAILURES = 16  # calls calls that failed and left the error to NumPy, after a useless trace
SMALL = 2048  # elements of all arguments; below, NumPy costs less than the steps between subgraphs


class GraphBreakProgram(PythonProgram):
    """A function for arguments of one structure, run with graph breaks. ``run_eagerly``: runs a call eagerly, given the
    reason, or raises it; ``watch``: records what the function reads from its scope. ``takes_leaves``: the function
    takes the leaves themselves, and has no loops that could run natively."""

    def __init__(self, fn: Callable, structure: trees.Tree, run_eagerly: Callable[[list, Any], Any],
                 watch: Callable[[list, set[int]], None], takes_leaves: bool = False):  # fmt: skip
        self.fn, self.structure, self.run_eagerly, self.watch = fn, structure, run_eagerly, watch
        self.takes_leaves = takes_leaves
        self.tree = Tree()
        self._failures = 0

    def run(self, leaves: list, walked: Callable[[State], Any] | None = None) -> Any:
        """The result of a call. Captured arrays, found by specializations with a single graph, may follow its own
        leaves. ``walked`` gets the state of a call that has run along known steps."""
        leaves = leaves[: self.structure.leaves]
        if self.refused is not None or self._is_small(leaves):
            return self._reported(leaves, self.refused)
        return self.with_graph_breaks(leaves, walked)

    def runner(self, leaves: Sequence) -> Callable[[list], Any]:
        """For small arrays the user's function itself, as a step in between would take as long as one of NumPy's; else
        a :class:`Replay` of NumPy's arrays."""
        if len(leaves) != self.structure.leaves or not _native.numpy_only(leaves):
            return self.run
        if not self._is_small(leaves):
            return Replay(self)
        fn = self.fn
        return (lambda given: fn(*given)) if self.takes_leaves else self.run

    def with_graph_breaks(self, leaves: list, walked: Callable[[State], Any] | None = None) -> Any:
        """The result of a call, even of small arrays; ``walked``: as for :meth:`run`."""
        try:
            state = self.tree.state(leaves)
        except (LookupError, AttributeError, ValueError):  # captured arrays have been removed
            self.tree = Tree()
            state = self.tree.state(leaves)
        try:
            result = self.tree.run(state)
            if walked is not None:
                walked(state)
            return result
        except Unknown:
            return self._trace(state)
        except Exception as error:
            if state.final:
                raise
            state.restore()
            return self._reported(leaves, error)

    def _reported(self, leaves: list, why: Any) -> Any:
        """Runs a call eagerly because an earlier call was rejected, or because NumPy will raise its error again."""
        known = why is None or all(arrays.framework(x) in (None, "numpy") for x in leaves)
        return self.run_eagerly(leaves, None if known else why)

    @staticmethod
    def _is_small(leaves: Sequence) -> bool:
        """Whether NumPy is faster for these small arrays."""
        if _native.numpy_only(leaves):
            return sum([x.size for x in leaves if isinstance(x, np.ndarray)]) < SMALL
        sizes = [x.size if isinstance(x, np.ndarray) else SMALL for x in leaves if arrays.framework(x)]
        return sum(sizes) < SMALL

    def _trace(self, state: State) -> Any:
        """Resumes tracing for a call that reached an unknown outcome."""
        leaves = state.slots[: state.arguments]
        try:
            with deadline.compiling(True):
                return self._session(state, leaves)
        except (Exception, NotSplittable, TooLong) as error:
            problem: Any = error
        state.restore()
        self._failures += 1
        ours = not isinstance(problem, Exception) or isinstance(problem, (TraceError, UnsupportedError, CompileError))
        if ours or self._failures >= _MOST_FAILURES:
            self.refused = problem
        return self.run_eagerly(leaves, problem)

    def _session(self, state: State, leaves: list) -> Any:
        t = Trace(_MOST_OPS)
        specs = [arrays.describe(leaf) for leaf in leaves]
        session = t.session = Session(t, self.tree, state, tracing.graph_name(self.fn))
        given = tracing.stand_ins_for(t, self.fn, specs, self.structure)
        session.begin(given.leaves, given.arrays)
        args, kwargs = self.structure.unflatten(given.stand_ins)
        returned = tracing.run(self.fn, t, args, kwargs)
        result = session.end(returned, lambda x: tracing.constant_of(t, x, given.objects))
        self.watch(scope_of(t, set()), {id(c.array) for c in self.tree.captured})
        return result


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
