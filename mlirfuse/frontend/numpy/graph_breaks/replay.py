"""Straight-line code for the steps that calls of one signature take again and again.

A walk along the tree looks up each step by the outcome of the one before, and the code of a subgraph by sizes. What two
calls in a row of one signature (arguments of the same types and layouts) have done is written as a Python function
instead. It checks that each called function gives arrays of the same type and layout, and that each value read is the
same. Where a check fails, or anything raises, the call starts again along the tree: only functions without effects are
replayed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from mlirfuse.frontend import tree as trees
from mlirfuse.frontend.numpy.graph_breaks import calls
from mlirfuse.frontend.numpy.graph_breaks.tree import (
    Call,
    Read,
    Return,
    SizeOf,
    State,
    Step,
    Subgraph,
    Tree,
    outcome,
    seen,
)
from mlirfuse.frontend.numpy.traced import Out
from mlirfuse.frontend.numpy.views import Permute

if TYPE_CHECKING:
    from mlirfuse.frontend.numpy.graph_breaks.program import GraphBreakProgram

_MOST_FAILURES = 4  # of checks, after which the calls of a signature walk along the tree


class NotReplayable(Exception):
    """The steps of a call must be walked."""


class Replay:
    """Runs the calls of one signature, of NumPy arrays and numbers, of ``program``."""

    def __init__(self, program: GraphBreakProgram):
        self.program = program
        self._path: list[tuple[Step, Any]] = []  # of the call before
        self._code: Callable[..., Any] | None = None
        self._failures = 0

    def __call__(self, leaves: list) -> Any:
        if self._code is not None:
            try:
                return self._code(*leaves)
            except Exception:  # the walk raises it again, if it is the program's
                self._code, self._path, self._failures = None, [], self._failures + 1
        states: list[State] = []
        result = self.program.run(leaves, states.append)
        if states and self._failures < _MOST_FAILURES:
            (state,) = states
            if state.steps == self._path:
                try:
                    self._code = _Writer(self.program.tree, state).written()
                except NotReplayable:
                    self._failures = _MOST_FAILURES
            self._path = state.steps
        return result


def _require(condition: object) -> None:
    if not condition:
        raise NotReplayable


class _Writer:
    """Writes the function of a call's leaves for the steps that ``state`` has taken. Its variables are the slots; the
    sizes are those of ``state``, as all extents are checked."""

    def __init__(self, tree: Tree, state: State):
        self.tree, self.state = tree, state
        self.scope: dict[str, Any] = {"ndarray": np.ndarray, "asarray": np.asarray, "outcome": outcome}
        self.lines: list[str] = []
        self.slots = state.arguments  # that have a value so far
        self.results = iter(state.created)
        self._env = self._constant(state.env)

    def written(self) -> Callable[..., Any]:
        _require(self.state.like is None and not any(captured.paths for captured in self.tree.captured))
        step, key = self.tree.root, None
        for step, key in self.state.steps:
            self._guard(step)
            if isinstance(step, Subgraph):
                self._subgraph(step)
            elif isinstance(step, Call):
                self._call(step)
            elif isinstance(step, SizeOf):
                self._unless(f"{self._leaf(step.place)} == {int(seen(step.place, self.state))}")
            else:
                assert isinstance(step, Read)
                read = f"outcome({self._constant(step.how)}({self._leaf(step.place)}))"
                self._unless(f"{read} == {self._constant(key)}")
        end = self.tree.next(step, key, self.state)
        assert isinstance(end, Return)
        self._guard(end)
        _require(all(leaf.kind != "repeated" for leaf in end.leaves))
        found = "".join(f"{self._leaf(leaf)}, " for leaf in end.leaves)
        self.lines.append(f"return {self._constant(end.tree.of_leaves)}([{found}])")
        head = f"def run({', '.join(self._slots(0, self.state.arguments))}):\n"
        exec(compile(head + "".join(f"    {line}\n" for line in self.lines), "<replay>", "exec"), self.scope)
        return self.scope["run"]

    def _guard(self, step: Step) -> None:
        """Checks the numbers that the step is for."""
        values = step.holds.values
        if values:
            _require(min(values) >= 0)
            self._unless(f"{self._constant(step.holds.values_hold)}({self._all()}, {self._env})")

    def _constant(self, value: Any) -> str:
        name = f"k{len(self.scope)}"
        self.scope[name] = value
        return name

    def _unless(self, condition: str) -> None:
        self.lines.append(f"if not ({condition}): raise ValueError")

    @staticmethod
    def _slots(begin: int, end: int) -> list[str]:
        return [f"s{k}" for k in range(begin, end)]

    def _slot(self, index: int) -> str:
        return f"s{index}" if index >= 0 else self._constant(self.state.captured[-1 - index])

    def _all(self) -> str:
        """A tuple of the slots."""
        return f"({''.join(f'{slot}, ' for slot in self._slots(0, self.slots))})"

    def _leaf(self, leaf: Out) -> str:
        """The expression of :func:`seen`."""
        if leaf.kind != "argument":
            if leaf.is_fixed:
                return self._constant(leaf.created(self.state.env))
            return f"{self._constant(leaf.created)}({self._env})"
        found = self._slot(leaf.index)
        if leaf.scalar is None and not leaf.read_only and all(isinstance(step, Permute) for step in leaf.path):
            return found + "".join(f".transpose({step.dims})" for step in leaf.path)
        _require(min(leaf.leaves) >= 0)
        return f"{self._constant(leaf.shown)}({found}, {self._all()}.__getitem__, {self._env})"

    def _subgraph(self, step: Subgraph) -> None:
        _require(not step.writes)
        made = self._slots(self.slots, self.slots + len(step.whole.returns))
        given = ", ".join(map(self._slot, step.sources))
        run = self._constant(step.known(self.state.env))
        self.lines.append(f"{''.join(f'{slot}, ' for slot in made)} = {run}({given})")
        self.slots += len(made)

    def _call(self, step: Call) -> None:
        _require(step.pure and step.flat)
        _require(calls.repeatable(step.function, [leaf.value for leaf in step.leaves if leaf.kind == "constant"]))
        made = next(self.results)
        _require(not isinstance(made, BaseException))
        leaves, tree = made
        given = [self._leaf(leaf) for leaf in step.leaves]
        count = len(given) - len(step.names)
        given[count:] = [f"{name}={value}" for name, value in zip(step.names, given[count:])]
        self.lines.append(f"r = {self._constant(step.called)}({', '.join(given)})")
        names = [f"r{k}" for k in range(len(leaves))]
        if tree == trees.LEAF:
            names = ["r"]
        else:
            _require(tree.kind in ("tuple", "named") and len(tree.nodes) == tree.leaves + 1)
            kind = self._constant(tree.keys if tree.kind == "named" else tuple)
            self._unless(f"r.__class__ is {kind} and len(r) == {len(leaves)}")
            self.lines.append(f"{''.join(f'{name}, ' for name in names)} = r")
        for name, leaf in zip(names, leaves):
            self._unless(self._alike(name, leaf))
            if isinstance(leaf, (np.ndarray, np.generic)):
                self.lines.append(f"s{self.slots} = {name if type(leaf) is np.ndarray else f'asarray({name})'}")
                self.slots += 1

    def _alike(self, name: str, leaf: Any) -> str:
        """The condition that a function gives what it gave before, or an array or a number like it."""
        if not isinstance(leaf, (np.ndarray, np.generic)):
            return f"outcome({name}) == {self._constant(outcome(leaf))}"
        if type(leaf) is not np.ndarray:
            return f"{name}.__class__ is {self._constant(type(leaf))}"
        layout = f"{name}.strides == {leaf.strides} and {name}.flags.writeable is {leaf.flags.writeable}"
        layout = f"{name}.flags.c_contiguous" if leaf.flags.c_contiguous else layout
        dtype = self._constant(leaf.dtype)
        return f"{name}.__class__ is ndarray and {name}.dtype == {dtype} and {name}.shape == {leaf.shape} and {layout}"
