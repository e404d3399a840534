"""The tree of what a function's calls do: steps, and at each read of a value a branch for every outcome."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mlirfuse import _native
from mlirfuse.core import deadline
from mlirfuse.frontend import tree as trees
from mlirfuse.frontend.numpy.captures import Captured
from mlirfuse.frontend.numpy.graph_breaks.views import Repeated, SlotView, on_host, seen
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Graph
from mlirfuse.ir.ops.attributes import sizes_in
from mlirfuse.passes import pipelines
from mlirfuse.runtime import arrays, placement, reference
from mlirfuse.runtime.executor import Empty, Executor
from mlirfuse.runtime.signature import ArgSpec, SizeGuard, key_of, layout_of, same_value
from mlirfuse.runtime.storage_views import StorageViews
from mlirfuse.schedule.targets import Target

_MOST_STEPS = 1000  # of a tree
_MOST_SIZES = 1024  # that a piece keeps what it runs for


class Unknown(Exception):
    """A call has come to where the tree has nothing yet."""


class State:
    """One call on its way: ``slots`` hold its arguments, then what its steps have made, and ``env`` the sizes.
    ``before``: what the arguments that have been written into held before. ``like``: an array of torch or CuPy among
    the arguments, as which all arrays of the call are made; None: NumPy's."""

    def __init__(self, leaves: Sequence, captured: Sequence, env: dict[str, int]):
        self.slots: list = list(leaves)
        self.captured = list(captured)
        self.env = dict(env)
        self.steps: list[tuple[Step, Any]] = []  # that have run, and what came of each
        self.created: list = []  # by each call: its result's leaves and their tree, or the error
        self.before: dict[int, np.ndarray] = {}
        self.final = False  # a step has written into arguments that nothing can follow but the result
        self.arguments = len(self.slots)
        self.like = next((x for x in leaves if arrays.framework(x) not in (None, "numpy")), None)

    def own(self, array: Any) -> Any:
        """An array of NumPy's as one of the call's."""
        return array if self.like is None else arrays.from_numpy(array, self.like)

    def at(self, slot: int) -> Any:
        """What is in a slot; those below 0 are arrays from around the function."""
        return self.slots[slot] if slot >= 0 else self.captured[-1 - slot]

    def writes(self, slot: int, final: bool = False) -> None:
        """Is told before an argument is written into; ``final``: by the last step before the result."""
        if 0 <= slot < self.arguments:
            if final:
                self.final = True
            elif slot not in self.before and (kind := arrays.framework(self.slots[slot])) is not None:
                array = self.slots[slot]
                self.before[slot] = array.clone() if kind == "torch" else array.copy()

    def restore(self) -> None:
        """Gives the arguments back what they held."""
        for slot, content in self.before.items():
            self.slots[slot][...] = content


@dataclass(eq=False)
class Holds:
    """What has to hold for a call to go this way: sizes, and arguments that the function has taken as constants."""

    guards: list[SizeGuard] = field(default_factory=list)
    equalities: list[tuple] = field(default_factory=list)
    values: list[tuple[int, Any]] = field(default_factory=list)
    ranges: list[tuple[int, int, int]] = field(default_factory=list)  # (slot, lowest, highest)
    places: list[tuple[int, sz.Size, sz.Size]] = field(default_factory=list)
    _known: set[tuple] = field(default_factory=set)

    def allows(self, state: State) -> bool:
        """Whether it holds."""
        try:
            self.check(state)
        except Unknown:
            return False
        return True

    def check(self, state: State) -> None:
        """Raises :class:`Unknown`."""
        env = state.env
        if self.guards or self.equalities:
            key = tuple(env.values())
            if key not in self._known:
                same = all(sz.substitute(a, env) == sz.substitute(b, env) for a, b in self.equalities)
                if not (same and all(guard.holds(env) for guard in self.guards)):
                    raise Unknown
                self._known.add(key)
        for slot, value in self.values:
            if not same_value(state.at(slot), value):
                raise Unknown
        for slot, low, high in self.ranges:
            if not low <= state.at(slot) <= high:
                raise Unknown
        for slot, low_size, high_size in self.places:
            if not sz.substitute(low_size, env) <= state.at(slot) <= sz.substitute(high_size, env):
                raise Unknown


@dataclass(eq=False)
class Step:
    """``after``: the next step by what came of this one; in a list where sizes and constants decide between several.
    ``where``: the user's line that ended the piece; None: the function's end."""

    after: dict[Any, list[Step]] = field(default_factory=dict, kw_only=True)
    holds: Holds = field(default_factory=Holds, kw_only=True)
    where: tuple[str, int] | None = field(default=None, kw_only=True)

    def run(self, state: State) -> Any:
        """Runs the step; gives what came of it, a key of ``after``."""
        raise NotImplementedError


@dataclass(eq=False)
class Root(Step):
    """Before all."""

    def run(self, state: State) -> Any:
        return None


@dataclass(eq=False)
class Subgraph(Step):
    """A compiled piece: ``sources`` are its graph's arguments by slot, ``writes`` the results that are written into
    what is in a slot; the others are new slots."""

    graph: Graph
    sources: list[int]
    writes: list[tuple[int, int]]

    def __post_init__(self) -> None:
        self._split: StorageViews | None = None
        self.whole = self.graph.copy()
        if pipelines.complex_kernels(self.graph):
            self._split = StorageViews(self.graph)
        self._executors: dict[int | None, Executor] = {}  # by the GPU; None: the CPU
        self._runs: dict[tuple, Callable[..., list]] = {}
        self._symbols = sorted(
            {s for v in [*self.whole.args, *(r for op in self.whole.ops for r in op.results)] for n in v.shape
             for s in sz.symbols(n)} | {s for op in self.whole.ops for s in _symbols_in(op)}
        )  # fmt: skip

    def run(self, state: State) -> Any:
        given = [state.at(k) for k in self.sources]
        env = state.env
        target = placement.target_of(given)
        key = (target.device, *[env[s] for s in self._symbols])
        run = self._runs.get(key)
        if run is None:
            if len(self._runs) >= _MOST_SIZES:
                self._runs.clear()
            run = self._runs[key] = self._runner(target, dict(env))
        created = run(*given)
        if state.like is not None:  # where only numbers went in, NumPy's arrays come out
            created = [state.own(x) if isinstance(x, np.ndarray) else x for x in created]
        written = {k for _, k in self.writes}
        final = all(type(step) is Return and step.is_certain for steps in self.after.values() for step in steps)
        for slot, k in self.writes:
            state.writes(slot, final and bool(self.after))
            state.at(slot)[...] = created[k]
        state.slots += [array for k, array in enumerate(created) if k not in written]
        return None

    def kernels(self, env: dict[str, int]) -> int:
        """How many kernels the last call with these sizes has launched."""
        programs = [p for executor in self._executors.values() for p, _ in executor.programs(env)]
        return sum(
            [*program.compiled_programs.values()][-1].kernels for program in programs if program.compiled_programs
        )

    def _runner(self, target: Target, env: dict[str, int]) -> Callable[..., list]:
        where = list(range(len(self.sources)))
        executor = self._executors.get(target.device)
        if executor is None:
            graph = self.graph.copy() if self._executors else self.graph
            segments = pipelines.lower_to_segments(graph, target.properties, lambda *_: deadline.check())
            executor = Executor(segments, target, env)
            self._executors[target.device] = executor
        try:
            executor.check(env)
        except Empty:
            return lambda *given: reference.run(self.whole, given, where, env)
        if self._split is None:
            return _native.Dispatcher(lambda given: executor.record(list(given), where, env, list))
        split = self._split
        return _native.Dispatcher(lambda given: split.record(executor, list(given), where, env, list))


def _symbols_in(op) -> set[str]:
    found: set[str] = set()
    for size in sizes_in(op.row.attr_types, {k: op.attrs[k] for k in op.row.attrs}):
        found |= sz.symbols(size)
    return found


@dataclass(eq=False)
class Read(Step):
    """A value is read, by bool, int, float …, from what is in a slot."""

    place: SlotView
    how: Callable[[Any], Any]

    def run(self, state: State) -> Any:
        return outcome(self.how(on_host(self.place, state)))


def outcome(value: Any) -> Any:
    """A value that was read as a key: 0.0 and -0.0 are two, and a NaN is one."""
    if isinstance(value, (float, complex, np.inexact)):
        return type(value), np.asarray(value).tobytes()
    if isinstance(value, (list, tuple)):
        return type(value), tuple(map(outcome, value))
    return type(value), value


@dataclass(eq=False)
class SizeOf(Step):
    """A number that was read becomes a size, whose symbol is ``name``; 0, 1 and what is below are constants."""

    place: SlotView
    name: str

    def run(self, state: State) -> Any:
        value = int(seen(self.place, state))
        state.env[self.name] = value
        return value if value < 2 else None


@dataclass(eq=False)
class Call(Step):
    """A function that is not of the op table, called with the arrays, as NumPy's: ``arguments`` is the nest of its
    arguments, with a :class:`SlotView` for each array. ``pure``: it writes into none of them; ``written``: the
    arguments of the call that it may write into. ``symbols``, by what came of it: those of its results' sizes."""

    function: Callable[..., Any]
    arguments: trees.Tree
    leaves: list
    pure: bool
    written: list[int]
    symbols: dict[Any, list[tuple[str, int, str, int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        positional, keyword = self.arguments.children
        self._flat = all(child.kind == "leaf" for child in (*positional.children, *keyword.children))
        self._count, self._names = len(positional.children), keyword.keys or ()

    def run(self, state: State) -> Any:
        given = [on_host(leaf, state) for leaf in self.leaves]
        if self._flat:
            args, kwargs = given[: self._count], dict(zip(self._names, given[self._count :]))
        else:
            args, kwargs = self.arguments.unflatten(given)
        for slot in self.written:
            state.writes(slot)
        try:
            result = self.function(*args, **kwargs)
        except Exception as error:
            state.created.append(error)
            return "raised", type(error), str(error)
        finally:
            if not self.pure and state.like is not None:
                self._write_back(given, state)
        leaves, tree = trees.flatten_result(result)
        state.created.append((leaves, tree))
        first = len(state.slots)
        key = (tree, *map(kind_of_result, leaves))
        state.slots += [state.own(np.asarray(x)) for x in leaves if isinstance(x, (np.ndarray, np.generic))]
        for name, k, what, axis in self.symbols.get(key, ()):
            state.env[name] = extent(state.slots[first + k], what, axis)
        return key

    def _write_back(self, given: list, state: State) -> None:
        """What the function has left in the host's copies of arrays."""
        for leaf, host in zip(self.leaves, given):
            if type(leaf) is SlotView and isinstance(host, np.ndarray):
                arrays.write_into(seen(leaf, state), host)


def extent(array: Any, what: str, axis: int) -> int:
    """The "shape" or stride, in elements, of an array along an axis."""
    if what == "shape":
        return array.shape[axis]
    if isinstance(array, np.ndarray):
        return array.strides[axis] // array.itemsize
    return arrays.spec_of(array).strides[axis]


def kind_of_result(x: Any) -> tuple:
    """What decides how a trace goes on with a result of a call."""
    if type(x) is np.ndarray:
        if x.flags.c_contiguous:
            return x.dtype.str, tuple([n if n < 2 else -1 for n in x.shape])
        return x.dtype.str, x.flags.writeable, _strided(x.shape, x.strides, x.itemsize) or key_of(ArgSpec.of(x))
    if isinstance(x, np.generic):
        return "number", x.dtype.str
    return outcome(x)


@functools.lru_cache(4096)
def _strided(shape: tuple[int, ...], strides: tuple[int, ...], size: int) -> tuple | None:
    """What of an array's place in memory decides how a trace goes on; None for strides that are no whole items."""
    if any(s % size for s in strides):
        return None
    return tuple([n if n < 2 else -1 for n in shape]), layout_of(shape, tuple(s // size for s in strides))


@dataclass(eq=False)
class Return(Step):
    """The end: ``leaves`` are places, sizes, constants, and what is a result already."""

    tree: trees.Tree
    leaves: list

    def run(self, state: State) -> Any:
        return None

    @property
    def is_certain(self) -> bool:
        """Whether it follows whatever the sizes are."""
        held = self.holds
        return not (held.guards or held.equalities or held.values or held.ranges or held.places)

    def result(self, state: State) -> Any:
        found: list = []
        for leaf in self.leaves:
            found.append(found[leaf.at] if type(leaf) is Repeated else seen(leaf, state))
        return self.tree.of_leaves(found)


class Tree:
    """The tree of one kind of call. ``symbols``: the sizes that arguments tell, ``captured`` the arrays from around the
    function."""

    def __init__(self) -> None:
        self.root = Root()
        self.symbols: dict[str, tuple[int, str, int]] = {}
        self.captured: list[Captured] = []
        self.steps = 0

    @property
    def full(self) -> bool:
        return self.steps >= _MOST_STEPS

    def state(self, leaves: Sequence) -> State:
        """A call that begins."""
        env = {}
        for name, (leaf, what, axis) in self.symbols.items():
            if leaf < 0:
                array = self.captured[-1 - leaf].read()
            else:
                array = leaves[leaf]
            env[name] = extent(array, what, axis)
        return State(leaves, [c.read() for c in self.captured], env)

    def run(self, state: State) -> Any:
        """The result of a call. Raises :class:`Unknown` with the state as far as it came."""
        step: Step = self.root
        key: Any = None
        while True:
            step = self.next(step, key, state)
            if type(step) is Return:
                return step.result(state)
            key = step.run(state)
            state.steps.append((step, key))

    @staticmethod
    def next(step: Step, key: Any, state: State) -> Step:
        """The step after ``step``, of which ``key`` came. Raises :class:`Unknown`."""
        candidates = step.after.get(key)
        if candidates is None:
            raise Unknown
        for candidate in candidates:
            if candidate.holds.allows(state):
                return candidate
        raise Unknown
