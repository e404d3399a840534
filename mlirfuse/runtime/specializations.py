"""Specializations of a function, and the cache's miss path from an unknown signature to compiled code.

A call goes to a dispatcher in C++ (:mod:`mlirfuse._native`), which has a Record for each signature that has run. For a
new one it calls :meth:`Specializations.miss`, which looks for a specialization (a graph) that is valid for these
arguments, and a compiled program for these sizes, and creates only what is missing. The differences between front ends
are in their :class:`Source`: the description of a call, the creation of a specialization (a trace, a definition bound
to its inputs, a captured graph) and the fallback.
"""

from __future__ import annotations

import abc
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from mlirfuse import _native
from mlirfuse.core import config, deadline, threads
from mlirfuse.core.errors import (
    CompileError,
    CudaError,
    MlirfuseError,
    ScheduleError,
    ShapeError,
    TraceError,
    UnsupportedError,
    warn,
)
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Graph
from mlirfuse.ir.sizes import Size
from mlirfuse.passes import pipelines
from mlirfuse.runtime import conditions, events, failures, op_by_op, overlap, placement
from mlirfuse.runtime.executor import Executor, NoElements
from mlirfuse.runtime.launches import Failed
from mlirfuse.runtime.shape_cache import ShapeCache
from mlirfuse.runtime.signature import ArgSpec, NumberGuard, SizeGuard, Static, same_value
from mlirfuse.schedule.program import Schedules
from mlirfuse.schedule.targets import Target

log = logging.getLogger("mlirfuse")
_NOT_OF_COMPILATION = (TraceError, ShapeError, ScheduleError, CudaError)  # never a reason to fall back


@dataclass(eq=False)
class Call:
    """A call that the dispatcher does not know, as described by its front end.

    ``key``: equal for all calls that one specialization may serve; specializations with one key differ in their
    assumptions. ``device``: "cpu", or the type of device that an array is on. ``aliases``: leaves that are the same
    memory as an earlier one."""

    leaves: list[Any]
    specs: list[ArgSpec | Static]
    key: tuple
    device: str
    aliases: dict[int, int] = field(default_factory=dict)


class _ByIndex(Protocol):
    def __getitem__(self, leaf: int, /) -> Any: ...


@dataclass(eq=False)
class Assumptions:
    """The assumptions of a graph about a call, besides the call's key.

    ``symbols``: for each symbol, the (graph argument, "shape" or "stride", axis) that it is read from. ``constants``:
    leaves that have these values. ``scalar_ranges``, ``index_ranges``: leaves that are numbers in all of these closed
    ranges. ``number_guards``: conditions on numbers computed from leaves.
    """

    symbols: dict[str, tuple[int, str, int]] = field(default_factory=dict)
    size_guards: list[SizeGuard] = field(default_factory=list)
    equalities: list[tuple[Size, Size]] = field(default_factory=list)
    constants: list[tuple[int, Any]] = field(default_factory=list)
    scalar_ranges: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    index_ranges: dict[int, list[tuple[Size, Size]]] = field(default_factory=dict)
    number_guards: list[NumberGuard] = field(default_factory=list)

    @property
    def values(self) -> set[int]:
        """The leaves whose values are read."""
        leaves = {leaf for leaf, _ in self.constants} | self.scalar_ranges.keys() | self.index_ranges.keys()
        return leaves.union(*(guard.leaves for guard in self.number_guards))

    def hold(self, leaves: Sequence, env: dict[str, int]) -> bool:
        """Whether all assumptions hold for a call with these leaves and sizes."""
        return (
            all(guard.holds(env) for guard in self.size_guards)
            and all(sz.evaluated(a, env) == sz.evaluated(b, env) for a, b in self.equalities)
            and self.values_hold(leaves, env)
        )

    def values_hold(self, leaves: _ByIndex, env: dict[str, int]) -> bool:
        """Whether the numbers and constants among the leaves have the assumed values."""
        for leaf, ranges in self.scalar_ranges.items():
            if not all(low <= leaves[leaf] <= high for low, high in ranges):
                return False
        for leaf, bounds in self.index_ranges.items():
            if not all(sz.substitute(low, env) <= leaves[leaf] <= sz.substitute(high, env) for low, high in bounds):
                return False
        return all(same_value(leaves[leaf], value) for leaf, value in self.constants) and all(
            guard.holds(leaves.__getitem__, env) for guard in self.number_guards
        )


@dataclass(eq=False)
class Specialization:
    """A graph, its assumptions about a call, and its executor.

    ``leaf_of_arg``: the leaf of each of the graph's arguments. ``mutated``: the leaves that are written.
    ``finisher_leaves``: the leaves that :meth:`finisher` gets after the graph's results, because the function returns
    them, or because it writes them. ``aliases``: those of the call that it was created for; ``identical``: the number
    of leaves whose identity the function tests, and the pairs that are one array. ``executor`` is None where nothing is
    compiled, and ``problem`` says why; ``failure``: the report of a failed compilation, of all or of a subgraph.
    ``schedules``: fixed schedules of some segments.
    """

    graph: Graph
    leaf_of_arg: list[int]
    assumes: Assumptions = field(default_factory=Assumptions)
    mutated: frozenset[int] = frozenset()
    finisher_leaves: tuple[int, ...] = ()
    aliases: dict[int, int] = field(default_factory=dict)
    identical: tuple[int, frozenset[tuple[int, int]]] | None = None
    shape_cacheable: ClassVar[bool] = True  # its symbols and conditions are all in its assumptions
    max_args: int | None = None  # of a group; None: the setting
    executor: Executor | None = None
    problem: str = ""
    failure: str = ""
    schedules: Schedules = None

    def env(self, call: Call) -> dict[str, int]:
        """Return the values of the graph's symbols in a call."""
        out = {}
        for name, (argument, what, axis) in self.assumes.symbols.items():
            spec = call.specs[self.leaf_of_arg[argument]]
            assert isinstance(spec, ArgSpec)  # an array
            out[name] = (spec.shape if what == "shape" else spec.strides)[axis]
        return out

    def matches(self, call: Call) -> bool:
        """Whether the graph is valid for a call with the same key."""
        if self.mutated and self.aliases != call.aliases:
            return False
        if self.identical is not None and self.identical[1] != overlap.identical(call.leaves, self.identical[0]):
            return False
        return not config.guards or self.assumes.hold(call.leaves, self.env(call))

    def captured_constants(self) -> list[tuple[str, Any]]:
        """Return names and values of the constants that were read from outside the function, for output."""
        return []

    def finisher(self, env: dict[str, int]) -> Callable[[list], Any] | None:
        """Return a function that computes a call's result from the graph's results and ``finisher_leaves``; None where
        the only result is the graph's. It keeps nothing of one call but the sizes."""
        return None

    def arguments(self, leaves: Sequence, env: dict[str, int]) -> list:
        """Return the arrays and numbers of the graph's arguments in a call."""
        return [leaves[k] for k in self.leaf_of_arg]

    def record_or_result(self, leaves: Sequence, env: dict[str, int]) -> Any:
        """Return the Record that the dispatcher caches for a call with these leaves, or the call's result."""
        assert self.executor is not None
        return self.executor.record(leaves, self.leaf_of_arg, env, self.finisher(env), self.finisher_leaves)

    def build(self, target: Target, env: dict[str, int], failed: Failed | None = None) -> Executor:
        """Lower the graph to segments, and return its executor; ``failed``: see :class:`HostProgram`."""
        graph = pipelines.lower_to_segments(
            self.graph, target.properties, self._report_pass, self.schedules, self.max_args
        )
        return Executor(graph, target, env, failed)

    def _report_pass(self, step: Any, ir: Any, seconds: float) -> None:
        deadline.check()
        if events.PassRan.observers:
            events.report(events.PassRan(self, step, seconds))
        if events.Advanced.observers:
            events.report(events.Advanced(f"{self.graph.name} after {step.name}"))

    def run_op_by_op(self, leaves: Sequence, env: dict[str, int]) -> list:
        """Return the graph's results op by op."""
        return op_by_op.run(self.graph, leaves, self.leaf_of_arg, env)


class Source(abc.ABC):
    """A front end's interface: a function, for one structure of arguments. ``owner``: the function, where it has
    several structures; ``name``: its name in messages."""

    owner: object
    name: str

    @abc.abstractmethod
    def describe(self, leaves: Sequence) -> Call | None:
        """Describe the call with these leaves; None if it has to go through :meth:`call_again`. Raises
        :class:`UnsupportedError` for unsupported arguments."""

    @abc.abstractmethod
    def make(self, call: Call) -> Specialization | None:
        """Create a specialization for ``call``, without its executor; None where the call has to use
        :meth:`run_eagerly`. If the graph reads objects besides the leaves, they are added to the call's leaves and
        specs, and the call goes through :meth:`call_again`."""

    def call_again(self, leaves: Sequence) -> Any:
        """Repeat the call from its start, with the objects that its graph reads besides these leaves, and return the
        result."""
        raise NotImplementedError(f"{self.name} reads nothing but its arguments")

    def run_eagerly(self, call: Call) -> Any:
        """Return the result of a call that nothing is compiled for; NotImplemented where its graph has to be run op by
        op."""
        return NotImplemented

    def nothing_fused(self, call: Call) -> None:
        """Hook for a call whose specialization has no kernels, only extern ops and views."""
        return

    def overlapping(self, specialization: Specialization, call: Call, first: int, second: int) -> Any:
        """Return the result of a call where two leaves share memory and one of them is written. NotImplemented: all of
        the graph is computed before anything is written."""
        return NotImplemented

    def target(self, leaves: Sequence) -> Target:
        """Return the target of a call's kernels."""
        return placement.target_of(leaves)

    def may_fall_back(self) -> bool:
        """Whether code that cannot be compiled runs op by op; else it is an error."""
        return config.fallback

    def full(self) -> bool:
        """Whether the function has reached the limit on specializations."""
        return False

    def argument_names(self) -> list[str]:
        """Return the leaves' names, for output."""
        return []


class Specializations:
    """The specializations of a :class:`Source`, and their dispatcher. ``statics``: leaves whose values are always
    constants, numbers included."""

    def __init__(self, source: Source, statics: Iterable[int] = ()):
        self.source = source
        self.by_key: dict[tuple, list[Specialization]] = {}
        self.shape_cache = ShapeCache(tuple(statics))
        self.dispatch = _native.Dispatcher(self.miss)
        self.dispatch.set_alias_sensitive(False)
        for leaf in self.shape_cache.statics:
            self.dispatch.set_static(leaf)
        self._lock = threads.lock()
        self._locks: dict[tuple, Any] = {}
        self._conditions: set[conditions.Steps] = set()  # that the dispatcher evaluates
        self._full = False  # the limit has been reported
        config.listen(self)

    def __len__(self) -> int:
        return sum(map(len, self.by_key.values()))

    def all(self) -> list[Specialization]:
        """Return the specializations, in the order of their keys' first calls."""
        return [specialization for specializations in self.by_key.values() for specialization in specializations]

    def settings_changed(self) -> None:
        """A setting of :mod:`mlirfuse.config` has changed: every signature is looked up again."""
        self.dispatch.clear()
        self.shape_cache.clear()

    # ---- a signature that the dispatcher does not know

    def miss(self, leaves: tuple) -> Any:
        """Return the Record that the dispatcher caches for the signature of these leaves, or the call's result."""
        record = self.shape_cache.record(leaves)
        if record is not None:
            if events.SpecializationFound.observers:
                events.report(events.SpecializationFound(self.source))
            return record
        call = self.source.describe(leaves)
        if call is None:
            return self.source.call_again(leaves)
        if not config.enabled_for(call.device):
            result = self.source.run_eagerly(call)
            if result is not NotImplemented:
                return result
        with self._lock:
            lock = self._locks.setdefault(call.key, threads.lock())
        with lock:
            specialization = self.find(call)
            if specialization is None:
                specialization = self._make(call)
            elif events.SpecializationFound.observers:
                events.report(events.SpecializationFound(self.source))
            if specialization is not None and len(call.leaves) == len(leaves):
                return self._record_or_result(specialization, call)
        return self.source.run_eagerly(call) if specialization is None else self.source.call_again(leaves)

    def find(self, call: Call) -> Specialization | None:
        """Return the existing specialization for ``call``, or None."""
        return next(
            (specialization for specialization in self.by_key.get(call.key, ()) if specialization.matches(call)), None
        )

    def _make(self, call: Call) -> Specialization | None:
        source, enabled = self.source, config.enabled_for(call.device)
        full = enabled and source.full()
        if full:
            self._too_many()
            known = self.by_key.get(call.key, ())
            if known and not any(s.executor is not None and s.executor.computes for s in known):
                source.nothing_fused(call)  # its specializations are values of its arguments
        specialization = source.make(call)
        if specialization is None:
            return None
        self._key_on(specialization, call.leaves)
        if specialization.mutated or specialization.identical is not None:
            self.dispatch.set_alias_sensitive(True)
        if full:
            specialization.problem = "too many specializations"
            return specialization
        if enabled:
            self._compile(specialization, call)
            if specialization.executor is not None and not specialization.executor.fuses:
                source.nothing_fused(call)
        else:
            specialization.problem = "fusion is switched off"
        self.by_key.setdefault(call.key, []).append(specialization)
        return specialization

    def _key_on(self, specialization: Specialization, leaves: Sequence) -> None:
        """Make what the specialization assumes about numbers part of the dispatcher's key."""
        found, values = conditions.split(specialization, leaves)
        for leaf in values:
            self.dispatch.set_static(leaf)
        for steps in found - self._conditions:
            self.dispatch.add_condition(steps)
        self._conditions |= found

    def _compile(self, specialization: Specialization, call: Call) -> None:
        start, env = time.perf_counter(), specialization.env(call)
        events.report(events.Traced(self.source, specialization, call, self.by_key))
        traced, target = specialization.graph.copy(), None  # passes change the graph in place

        def subgraph_failed(_: Graph, error: Exception) -> None:
            if isinstance(error, _NOT_OF_COMPILATION):
                raise error
            self._failed(specialization, error, lambda: failures.bug_report(specialization.graph, target, env))
            events.report(events.FellBack(self.source, specialization.failure))

        try:
            target = self.source.target(call.leaves)
            placement.check_placement(target, call.leaves)
            with deadline.compiling(self.source.may_fall_back()):
                specialization.executor = specialization.build(target, env, subgraph_failed)
        except _NOT_OF_COMPILATION:
            raise
        except Exception as error:
            self._failed(specialization, error, lambda: failures.bug_report(traced, target, env))
            specialization.problem = str(error)
        else:
            events.report(events.Segmented(self.source, specialization, call, env, time.perf_counter() - start))

    def _record_or_result(self, specialization: Specialization, call: Call) -> Any:
        env = specialization.env(call)
        if not specialization.mutated:
            record_or_result = self._run(specialization, call, env)
            if specialization.shape_cacheable and specialization.identical is None:
                self.shape_cache.add(specialization, tuple(call.leaves))
            return record_or_result
        found = overlap.find_overlap(
            specialization.mutated, specialization.aliases, specialization.leaf_of_arg, call.leaves
        )
        if found is None:
            return self._run(specialization, call, env)
        if found.shared:  # reads after a write depend on the overlap
            result = self.source.overlapping(specialization, call, found.first, found.second)
            return self._run_op_by_op(specialization, call, env) if result is NotImplemented else result
        # Not cached: the next arrays with this signature may share elements.
        return run_uncached(self._run(specialization, call, env), call.leaves)

    def _run(self, specialization: Specialization, call: Call, env: dict[str, int]) -> Any:
        if specialization.executor is None:
            if specialization.failure and not self.source.may_fall_back():
                raise CompileError(f"compiling {self.source.name} failed: {specialization.failure}")
            events.report(events.FellBack(self.source, specialization.problem))
            return self._uncompiled(specialization, call, env)
        target = specialization.executor.target
        try:
            with deadline.compiling(self.source.may_fall_back()):
                specialization.executor.check(env)
                return specialization.record_or_result(call.leaves, env)
        except NoElements:
            pass
        except _NOT_OF_COMPILATION:
            raise
        except Exception as error:
            self._failed(specialization, error, lambda: failures.bug_report(specialization.graph, target, env))
            specialization.executor, specialization.problem = None, str(error)
            events.report(events.FellBack(self.source, specialization.problem))
            return self._uncompiled(specialization, call, env)
        return self._run_op_by_op(specialization, call, env)

    def _uncompiled(self, specialization: Specialization, call: Call, env: dict[str, int]) -> Any:
        """Return the result of a call whose specialization could not be compiled."""
        result = self.source.run_eagerly(call)
        return self._run_op_by_op(specialization, call, env) if result is NotImplemented else result

    @staticmethod
    def _run_op_by_op(specialization: Specialization, call: Call, env: dict[str, int]) -> Any:
        results = [
            *specialization.run_op_by_op(call.leaves, env),
            *(call.leaves[k] for k in specialization.finisher_leaves),
        ]
        finish = specialization.finisher(env)
        return results[0] if finish is None else finish(results)

    # ---- failures

    def _too_many(self) -> None:
        """Report that the limit on specializations is reached: a warning in the log, once; an error with the fallback
        off."""
        limit = f"has {config.max_specializations} specializations, the limit max_specializations"
        if not self.source.may_fall_back():
            raise CompileError(f"{self.source.name} {limit}, and the fallback is off")
        if not self._full:
            self._full = True
            log.warning("%s %s; new ones run op by op", self.source.name, limit)

    def _failed(self, specialization: Specialization, error: Exception, bug_report: Callable[[], str]) -> None:
        """Warn the first time with the fallback on; else raise an error. ``bug_report`` returns what to send in
        one."""
        name, known = self.source.name, specialization.failure
        if not known:
            specialization.failure = failures.describe(error)
            if not isinstance(error, UnsupportedError):  # whose message has a remedy
                specialization.failure += f"\n  {bug_report()}"
        if not self.source.may_fall_back():
            if isinstance(error, MlirfuseError):
                error.add_note(specialization.failure.removeprefix(f"{type(error).__name__}: {error}").lstrip("\n"))
                raise error
            raise CompileError(f"compiling {name} failed: {specialization.failure}") from error
        if not known:
            warn(f"mlirfuse could not compile {name} and runs it op by op: {specialization.failure}")


class OneSpecialization(Specializations):
    """Runs one specialization, created from ``call``, and rejects all other calls."""

    def __init__(self, source: Source, specialization: Specialization, call: Call, statics: Iterable[int] = ()):
        super().__init__(source, statics)
        self._key_on(specialization, call.leaves)
        self.by_key[call.key] = [specialization]
        self.dispatch.set_alias_sensitive(bool(specialization.mutated))

    def _make(self, call: Call) -> Specialization:
        raise TypeError(
            f"{self.source.name} was compiled for other arguments (dtypes, ranks, layouts, extents of 0 and "
            "1, values taken as constants): call the jitted function itself, which compiles what is new"
        )


def run_uncached(record_or_result: Any, leaves: Sequence) -> Any:
    """Run a Record for these leaves without caching it, and return the result; return anything else as it is."""
    if not isinstance(record_or_result, _native.Record):
        return record_or_result
    return _native.Dispatcher(lambda _: record_or_result)(*leaves)
