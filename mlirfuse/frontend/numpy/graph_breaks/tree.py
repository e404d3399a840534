"""The tree of a function's steps, with a branch for every outcome of a value that is read."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mlirfuse import _native
from mlirfuse.core import deadline
from mlirfuse.frontend import tree as trees
from mlirfuse.frontend.numpy.scope import Captured
from mlirfuse.frontend.numpy.traced import Out, extent_of
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Graph
from mlirfuse.ir.ops.attributes import sizes_in
from mlirfuse.passes import pipelines
from mlirfuse.runtime import arrays, linear_algebra, op_by_op, placement, storage_views
from mlirfuse.runtime.executor import Executor, NoElements
from mlirfuse.runtime.signature import ArgSpec, key_of, layout_of
from mlirfuse.runtime.size_cache import SizeCache
from mlirfuse.runtime.specializations import Assumptions
from mlirfuse.runtime.storage_views import StorageViews
from mlirfuse.schedule.targets import Target


def seen(leaf: Out, state: State) -> Any:
    """The object of a leaf of a call's arguments, or of the result, in this call."""
    if leaf.kind == "argument":
        return leaf.shown(state[leaf.index], state.__getitem__, state.env)
    return leaf.created(state.env)


def reader(leaf: Out) -> Callable[[State], Any]:
    """Return :func:`seen` for this leaf."""
    slot, value = leaf.index, leaf.value
    if leaf.kind == "argument" and slot >= 0 and not leaf.path and leaf.scalar is None and not leaf.read_only:
        return lambda state: state.slots[slot]
    if leaf.kind == "constant" and leaf.is_fixed:
        return lambda state: value
    return lambda state: seen(leaf, state)


def on_host(leaf: Out, state: State) -> Any:
    """:func:`seen` with the array converted to NumPy's."""
    found = seen(leaf, state)
    if state.like is None or arrays.framework(found) in (None, "numpy"):
        return found
    found = arrays.to_numpy(found)
    return found if leaf.scalar is None else found[()]


_MOST_STEPS = 1000  # step limit of a tree


class Unknown(Exception):
    """A call has reached a step that the tree does not have yet."""


class State:
    """The state of one call: ``slots`` hold its arguments, then its steps' results, and ``env`` the sizes. ``before``:
    the original contents of mutated arguments. ``like``: a torch or CuPy array among the arguments, whose type all
    arrays of the call get; None: NumPy's."""

    def __init__(self, leaves: Sequence, captured: Sequence, env: dict[str, int]):
        self.slots: list = list(leaves)
        self.captured = list(captured)
        self.env = dict(env)
        self.steps: list[tuple[Step, Any]] = []  # executed steps with their outcomes
        self.created: list = []  # per call: its result's leaves and their tree, or the error
        self.before: dict[int, np.ndarray] = {}
        self.final = False  # the step before the result has mutated arguments: no more steps may follow
        self.arguments = len(self.slots)
        self.like: Any = None
        if not _native.numpy_only(self.slots):
            self.like = next((x for x in leaves if arrays.framework(x) not in (None, "numpy")), None)

    def own(self, array: Any) -> Any:
        """A NumPy array converted to the call's array type."""
        return array if self.like is None else arrays.from_numpy(array, self.like)

    def __getitem__(self, slot: int) -> Any:
        """The object in a slot; negative slots are captured arrays."""
        return self.slots[slot] if slot >= 0 else self.captured[-1 - slot]

    def writes(self, slot: int, final: bool = False) -> None:
        """Called before an argument is written; ``final``: by the last step before the result."""
        if 0 <= slot < self.arguments:
            if final:
                self.final = True
            elif slot not in self.before and (kind := arrays.framework(self.slots[slot])) is not None:
                array = self.slots[slot]
                self.before[slot] = array.clone() if kind == "torch" else array.copy()

    def restore(self) -> None:
        """Restores the arguments' original contents."""
        for slot, content in self.before.items():
            self.slots[slot][...] = content


@dataclass(eq=False)
class Holds(Assumptions):
    """The guards of a branch, about the sizes and slots of a call."""

    _known: set[tuple] = field(default_factory=set)  # sizes for which those about sizes hold

    @functools.cached_property
    def always(self) -> bool:
        """Whether they hold in any call."""
        return not (self.size_guards or self.equalities or self.values)

    def allows(self, state: State) -> bool:
        """Whether the guards hold."""
        env = state.env
        if self.always:
            return True
        if self.size_guards or self.equalities:
            key = tuple(env.values())
            if key not in self._known:
                same = all(sz.evaluated(a, env) == sz.evaluated(b, env) for a, b in self.equalities)
                if not (same and all(guard.holds(env) for guard in self.size_guards)):
                    return False
                self._known.add(key)
        return self.values_hold(state, env)


@dataclass(eq=False)
class Step:
    """A step of a call, or its start. ``after``: the next step by this one's outcome; a list where sizes and constants
    select among several. ``where``: the user's line of the graph break; None: the function's end. ``identity``: tells
    it from other steps of its class, of which a later trace may come to any."""

    after: dict[Any, list[Step]] = field(default_factory=dict, kw_only=True)
    holds: Holds = field(default_factory=Holds, kw_only=True)
    where: tuple[str, int] | None = field(default=None, kw_only=True)
    identity: Any = field(default=None, kw_only=True)

    def run(self, state: State) -> Any:
        """Runs the step; its outcome, a key of ``after``."""
        return None


@dataclass(eq=False)
class Subgraph(Step):
    """A compiled subgraph: ``sources`` are its arguments' slots, ``writes`` the results that overwrite a slot's array;
    the other results fill new slots."""

    graph: Graph
    sources: list[int]
    writes: list[tuple[int, int]]

    def __post_init__(self) -> None:
        self._split: StorageViews | None = None
        self.whole = self.graph.copy()
        if storage_views.needed(self.graph):
            self._split = StorageViews(self.graph, saturate=False)
        self._executors: dict[int | None, Executor] = {}  # by GPU; None: the CPU
        self._runs = SizeCache()  # by the GPU and sizes: functions of the arguments
        self._symbols = _symbols_of(self.whole)

    def run(self, state: State) -> Any:
        given = [state[k] for k in self.sources]
        env = state.env
        device = None if _native.numpy_only(given) else placement.target_of(given).device
        key = (device, *[env[s] for s in self._symbols])
        run = self._runs.get(key)
        if run is None:
            run = self._runs.add(key, self._runner(placement.target_of(given), dict(env)))
        created = run(*given)
        if state.like is not None:  # results are NumPy arrays where all inputs are numbers
            created = [state.own(x) if isinstance(x, np.ndarray) else x for x in created]
        if not self.writes:
            state.slots += created
            return None
        written = {k for _, k in self.writes}
        final = all(type(step) is Return and step.holds.always for steps in self.after.values() for step in steps)
        for slot, k in self.writes:
            state.writes(slot, final and bool(self.after))
            state[slot][...] = created[k]
        state.slots += [array for k, array in enumerate(created) if k not in written]
        return None

    def known(self, env: dict[str, int]) -> Callable[..., list]:
        """What runs it on the CPU for these sizes, for which it has run."""
        return self._runs[(None, *[env[s] for s in self._symbols])]

    def kernels(self, env: dict[str, int]) -> int:
        """The number of kernels that the last call with these sizes launched."""
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
        except NoElements:
            return lambda *given: op_by_op.run(self.whole, given, where, env)
        record = executor.record if self._split is None else functools.partial(self._split.record, executor)
        return _native.Dispatcher(lambda given: record(list(given), where, env, list))


def _symbols_of(graph: Graph) -> list[str]:
    sizes = [n for v in (*graph.args, *(v for op in graph.ops for v in op.results)) for n in v.shape]
    for op in graph.ops:
        sizes += sizes_in(op.row.attr_types, {k: op.attrs[k] for k in op.row.attrs})
    return sorted(sz.symbols_of(sizes))


@dataclass(eq=False)
class Read(Step):
    """Reads a value from a slot, by bool, int, float …"""

    place: Out
    how: Callable[[Any], Any]

    def run(self, state: State) -> Any:
        return outcome(self.how(on_host(self.place, state)))


def outcome(value: Any) -> Any:
    """A read value as a key: distinguishes 0.0 from -0.0, and makes all NaNs equal."""
    if isinstance(value, (float, complex, np.inexact)):
        return type(value), np.asarray(value).tobytes()
    if isinstance(value, (list, tuple)):
        return type(value), tuple(map(outcome, value))
    return type(value), value


@dataclass(eq=False)
class SizeOf(Step):
    """Turns a number into a size with the symbol ``name``; 1 and less are constants."""

    place: Out
    name: str

    def run(self, state: State) -> Any:
        value = int(seen(self.place, state))
        state.env[self.name] = value
        return value if value < 2 else None


LOST = ("written", "constant")  # the outcome of a call that has written into its copy of an array of the program


def _is_changed(leaf: Out, given: Any) -> bool:
    return type(leaf.value) is np.ndarray and leaf.value.tobytes() != given.tobytes()


@dataclass(eq=False)
class Call(Step):
    """Calls a function without an op on real arrays, converted to NumPy's: ``arguments`` is the nested structure of its
    arguments, with an :class:`Out` for each leaf. ``pure``: it writes into none of them; ``written``: the call's
    arguments that it may write into. ``symbols``, by outcome: the size symbols of its results."""

    function: Callable[..., Any]
    arguments: trees.Tree
    leaves: list[Out]
    pure: bool
    written: list[int]
    symbols: dict[Any, list[tuple[str, int, str, int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        positional, keyword = self.arguments.children
        self.called = linear_algebra.direct(self.function)
        self.flat = all(child.kind == "leaf" for child in (*positional.children, *keyword.children))
        self._count, self.names = len(positional.children), keyword.keys or ()
        self._readers = list(map(reader, self.leaves))
        self._constants = not self.pure and any(type(leaf.value) is np.ndarray for leaf in self.leaves)

    def run(self, state: State) -> Any:
        if state.like is None:
            given = [read(state) for read in self._readers]
        else:
            given = [on_host(leaf, state) for leaf in self.leaves]
        if self.flat:
            args, kwargs = given[: self._count], dict(zip(self.names, given[self._count :]))
        else:
            args, kwargs = self.arguments.unflatten(given)
        for slot in self.written:
            state.writes(slot)
        try:
            result = self.called(*args, **kwargs)
        except Exception as error:
            state.created.append(error)
            return "raised", type(error), str(error)
        finally:
            if not self.pure and state.like is not None:
                self._write_back(given, state)
        if self._constants and any(map(_is_changed, self.leaves, given)):
            return LOST
        leaves, tree = trees.flatten_result(result)
        state.created.append((leaves, tree))
        first = len(state.slots)
        key = (tree, *map(kind_of_result, leaves))
        created = [np.asarray(x) for x in leaves if isinstance(x, (np.ndarray, np.generic))]
        state.slots += created if state.like is None else map(state.own, created)
        for name, k, what, axis in self.symbols.get(key, ()):
            state.env[name] = extent_of(state.slots[first + k], what, axis)
        return key

    def _write_back(self, given: list, state: State) -> None:
        """Copies mutated host copies back to the device arrays."""
        for leaf, host in zip(self.leaves, given):
            if leaf.kind == "argument" and isinstance(host, np.ndarray):
                arrays.write_into(seen(leaf, state), host)


def kind_of_result(x: Any) -> tuple:
    """The part of a call's result that decides how tracing goes on."""
    if type(x) is np.ndarray:
        if x.flags.c_contiguous:
            return x.dtype, tuple([n if n < 2 else -1 for n in x.shape])
        return x.dtype, x.flags.writeable, _strided(x.shape, x.strides, x.itemsize) or key_of(ArgSpec.of(x))
    if isinstance(x, np.generic):
        return "number", x.dtype
    return outcome(x)


@functools.lru_cache(4096)
def _strided(shape: tuple[int, ...], strides: tuple[int, ...], size: int) -> tuple | None:
    """The part of an array's layout that decides how tracing goes on; None for strides that are not multiples of the
    item size."""
    if any(s % size for s in strides):
        return None
    return tuple([n if n < 2 else -1 for n in shape]), layout_of(shape, tuple(s // size for s in strides))


@dataclass(eq=False)
class Return(Step):
    """The end, with the function's result."""

    tree: trees.Tree
    leaves: list[Out]

    def __post_init__(self) -> None:
        self._readers = None if any(leaf.kind == "repeated" for leaf in self.leaves) else list(map(reader, self.leaves))

    def result(self, state: State) -> Any:
        if self._readers is not None:
            return self.tree.of_leaves([read(state) for read in self._readers])
        found: list = []
        for leaf in self.leaves:
            found.append(found[leaf.index] if leaf.kind == "repeated" else seen(leaf, state))
        return self.tree.of_leaves(found)


class Tree:
    """The tree of one argument signature. ``symbols``: the sizes that arguments define, ``captured`` the captured
    arrays."""

    def __init__(self) -> None:
        self.root = Step()
        self.symbols: dict[str, tuple[int, str, int]] = {}
        self.captured: list[Captured] = []
        self.steps = 0

    @property
    def full(self) -> bool:
        return self.steps >= _MOST_STEPS

    def state(self, leaves: Sequence) -> State:
        """The initial state of a call."""
        env = {}
        for name, (leaf, what, axis) in self.symbols.items():
            array = self.captured[-1 - leaf].read() if leaf < 0 else leaves[leaf]
            env[name] = extent_of(array, what, axis)
        return State(leaves, [c.read() for c in self.captured], env)

    def run(self, state: State) -> Any:
        """The result of a call. Raises :class:`Unknown` with the state at that point."""
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
        """The step after ``step`` for the outcome ``key``. Raises :class:`Unknown`."""
        candidates = step.after.get(key)
        if candidates is None:
            raise Unknown
        for candidate in candidates:
            if candidate.holds.allows(state):
                return candidate
        raise Unknown
