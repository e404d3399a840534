"""``mlirfuse.jit`` for NumPy functions: argument handling, and traces for calls with a new signature.

A C++ dispatcher runs calls whose signature it has seen. A new one goes to :mod:`mlirfuse.runtime.specializations`,
which asks this module for a specialization: a trace of the function with its guards.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mlirfuse import _native
from mlirfuse.core import config, threads, tracebacks
from mlirfuse.core.errors import TraceError, UnsupportedError
from mlirfuse.frontend import tree as trees
from mlirfuse.frontend.numpy import boundary_writes, programs, tracing
from mlirfuse.frontend.numpy.captures import Captured
from mlirfuse.frontend.numpy.effects import SideEffect
from mlirfuse.frontend.numpy.fallback import EagerFunction, WithContainers, types_of
from mlirfuse.frontend.numpy.fallback import all_known as _all_known
from mlirfuse.frontend.numpy.fallback import all_numpy as _all_numpy
from mlirfuse.frontend.numpy.rebuild import as_traced
from mlirfuse.frontend.numpy.scope import Elements, read_scope, unchanged
from mlirfuse.frontend.numpy.source import fail
from mlirfuse.frontend.numpy.symint import SymInt
from mlirfuse.frontend.numpy.torch_functions import TorchFunctionError
from mlirfuse.frontend.numpy.trace_state import TooLong
from mlirfuse.frontend.numpy.traced import Traced
from mlirfuse.frontend.numpy.traced_array import TracedArray
from mlirfuse.frontend.numpy.traced_specialization import SplitTracedSpecialization, TracedSpecialization
from mlirfuse.inspect import progress
from mlirfuse.inspect.lowered import Lowered
from mlirfuse.passes import pipelines
from mlirfuse.passes.base import build
from mlirfuse.runtime import arrays, overlap, placement
from mlirfuse.runtime.signature import ArgSpec, Static, key_of
from mlirfuse.runtime.specializations import (
    Assumptions,
    Call,
    OneSpecialization,
    Source,
    Specialization,
    Specializations,
)
from mlirfuse.runtime.storage_views import StorageViews
from mlirfuse.schedule import targets
from mlirfuse.schedule.program import Schedules
from mlirfuse.schedule.targets import Target

if TYPE_CHECKING:
    from mlirfuse.frontend.numpy.device_loops.explanation import DeviceLoopsExplanation
    from mlirfuse.frontend.numpy.device_loops.program import DeviceLoopProgram
    from mlirfuse.frontend.numpy.graph_breaks.explanation import GraphBreaksExplanation
    from mlirfuse.frontend.numpy.graph_breaks.program import GraphBreakProgram
    from mlirfuse.frontend.numpy.loops.explanation import LoopsExplanation
    from mlirfuse.inspect.audit import Audit
    from mlirfuse.inspect.eager import EagerExplanation
    from mlirfuse.inspect.explain import Explanation
    from mlirfuse.runtime.linalg_program import LoweringPath

    Explained = Explanation | LoopsExplanation | GraphBreaksExplanation | DeviceLoopsExplanation | EagerExplanation

build(pipelines.fusion_to_segments())  # imports the passes, now rather than at the first call
_TRACED = (TracedArray, SymInt)
_EXACT_TYPES = {np.ndarray, int, float, bool, complex, str, type(None)}  # leaf types that need no conversion
_TRACES_WITH_EFFECTS = 2  # the first call may have effects that later ones lack: fill a cache, say
_UNSUPPORTED_DTYPE = object()  # marks keys of calls with unsupported dtypes: strings, dates, objects, records
_MOST_OPS = 2000  # limit of a trace where the function can run eagerly instead
_MOST_OPS_OF_LOOPS = 500  # limit of an unrolled loop; longer ones stay loops where possible


class Entry(Source):
    """A function with one structure of arguments: its specializations, and the arrays captured from its scope, which
    each call appends to the leaves."""

    owner: Jitted

    def __init__(self, owner: Jitted, tree: trees.Tree):
        progress.follow()
        self.owner, self.tree, self.name = owner, tree, owner.__name__
        self.captured: list[Captured] = []
        self._effects: dict[tuple, int] = {}  # number of traces with this key that had effects
        self.refused: set[tuple] = set()  # by types_of: calls that run eagerly
        self._with_graph_breaks: set[tuple] = set()  # by types_of: calls that run with graph breaks
        self._tried: set[tuple] = set()  # rejected for their loops, which may yet run as Python
        self.statics = owner._static_leaves(tree)
        self.specializations = Specializations(self, self.statics)
        self.dispatch = self.specializations.dispatch
        positional, keyword = tree.children
        self.only_leaves = not keyword.children and all(child.kind == "leaf" for child in positional.children)

    def read_captured(self) -> list:
        """The captured arrays' current values. Raises LookupError, AttributeError or ValueError where one has been
        removed."""
        return [c.read() for c in self.captured]

    # ---- Source: what the miss path calls

    def describe(self, leaves: Sequence) -> Call | None:
        count = self.tree.leaves
        if len(leaves) < count + len(self.captured):  # the call came in before a trace captured arrays
            return None
        leaves = [arrays.host_array(leaf) for leaf in leaves]
        try:
            specs = [self._spec(leaf, k) for k, leaf in enumerate(leaves)]
        except UnsupportedError as error:
            if not (self.may_fall_back() and _all_numpy(leaves)):
                raise
            return Call(leaves, [], (_UNSUPPORTED_DTYPE, types_of(leaves)), "cpu", refused=error)
        self._check_one_device(leaves)
        key = (*(key_of(spec) for spec in specs[:count]), config.compiled_as())
        device = next((s.device for s in specs if isinstance(s, ArgSpec) and s.device != "cpu"), "cpu")
        return Call(leaves, specs, key, device, overlap.aliases(leaves[:count]))

    def _check_one_device(self, leaves: Sequence) -> None:
        apart = overlap.on_two_devices(leaves)
        if apart is None:
            return
        names = self.argument_names()
        which = [repr(names[k]) if k < len(names) else "an array from around the function" for k, _ in apart]
        one, other = (f"{name} on {device}" for name, (_, device) in zip(which, apart))
        fail(
            UnsupportedError,
            f"{self.name} gets arrays on two devices: {one}, {other}. Move them to one; only numbers and 0-d arrays "
            "may stay on the host",
        )

    def _spec(self, leaf: Any, position: int) -> ArgSpec | Static:
        names = self._argument_names
        name = names[position] if position < len(names) else None
        try:
            spec = arrays.describe(leaf, name or "x")
        except (TypeError, UnsupportedError) as error:
            which = f"argument '{name}'" if name else "an array from around the function"
            link = " is" if str(error).startswith(("a ", "an ")) else ":"
            raise UnsupportedError(f"{self.name}: {which}{link} {error}") from None
        if isinstance(spec, ArgSpec) and spec.scalar and position in self.statics:
            return Static(leaf)
        return spec

    def make(self, call: Call) -> Specialization | None:
        """Traces the call; None where the function runs eagerly, because it has effects or cannot be traced."""
        types = types_of(call.leaves[: self.tree.leaves])
        if call.key[0] is _UNSUPPORTED_DTYPE:
            self._refuse(types)
            return None
        if types in self.refused or self._effects.get(call.key, 0) >= _TRACES_WITH_EFFECTS:
            return None
        if not self.may_fall_back():
            return self.trace(call)
        if call.aliases and types in self._with_graph_breaks:  # these require arrays that do not overlap
            return None
        if self.owner.outlines(call):
            self._tried.add(types)
            self._refuse(types)
            return None
        device_loops = self.device_loops(call)
        if device_loops is not None and device_loops.unrolls:
            return programs.specialization_of(call, self.name, device_loops)
        try:
            found = self.trace(call, self.most_ops(call, device_loops))
            numpys = not self.owner.lowering_requested and _all_numpy(call.leaves)
            if (
                numpys and not found.assumes.values and boundary_writes.alone(found.graph)
            ):  # whatever the values of scalar leaves
                self._refuse(types)
                return None
            return found
        except SideEffect as effect:
            if device_loops is not None:
                return programs.specialization_of(call, self.name, device_loops)
            self._effects[call.key] = self._effects.get(call.key, 0) + 1
            if self._effects[call.key] == _TRACES_WITH_EFFECTS:
                self._refuse(types)
            self.owner.eager.log(effect)
        except TooLong as error:
            if device_loops is not None:
                return programs.specialization_of(call, self.name, device_loops)
            self._refuse(types)
            if self._loops(call):
                self._tried.add(types)
            else:
                call.refused = TraceError(str(error))
        except Exception as error:
            if not _all_known(call.leaves):
                raise
            followed = isinstance(error, (TraceError, UnsupportedError, TypeError))
            if followed and device_loops is not None:
                return programs.specialization_of(call, self.name, device_loops)
            if followed and not isinstance(error, TorchFunctionError) and self.owner.with_graph_breaks(call.leaves):
                self._with_graph_breaks.add(types)
                if call.aliases:
                    return None
                return programs.specialization_of(call, self.name, self._graph_breaks())
            if not _all_numpy(call.leaves):
                raise
            self._refuse(types)
            call.refused = error
        return None

    def _loops(self, call: Call) -> bool:
        return not self.owner.lowering_requested and config.fuse_cpu and self.owner.has_loops(call.leaves)

    def most_ops(self, call: Call, device_loops: DeviceLoopProgram | None) -> int:
        """The limit on a trace's ops, where the call can run another way."""
        return _MOST_OPS_OF_LOOPS if device_loops is not None or self._loops(call) else _MOST_OPS

    def lowered(self, call: Call, most_ops: int | None = None) -> LoweredFunction:
        """The traced call, lowered level by level on request. Raises as :meth:`trace` does."""
        return LoweredFunction(self, self.trace(call, most_ops), call)

    def _graph_breaks(self) -> GraphBreakProgram:
        from mlirfuse.frontend.numpy.graph_breaks import program  # lazy: a function without graph breaks needs none

        return program.GraphBreakProgram(self.owner.fn, self.tree, self._eagerly_of, self.owner._watch_scope)

    def device_loops(self, call: Call) -> DeviceLoopProgram | None:
        """The function with its loops left to Python and the straight-line regions compiled, for arrays of torch or
        CuPy."""
        if _all_numpy(call.leaves) or not (_all_known(call.leaves) and self.owner.with_graph_breaks(call.leaves)):
            return None
        if not self.owner.eager.jumps_back:
            return None
        from mlirfuse.frontend.numpy.device_loops import program

        jit = functools.partial(Jitted, fallback=self.owner.fallback)
        try:
            return program.DeviceLoopProgram(
                self.owner.fn, self.tree, jit, lambda leaves: self._graph_breaks().run(leaves)
            )
        except program.NotSplit:
            return None

    def _eagerly_of(self, leaves: list, refused: Any) -> Any:
        """Runs the call eagerly; raises the reason where eager execution does not apply."""
        error = refused if isinstance(refused, Exception) else None if refused is None else TraceError(str(refused))
        if error is not None and not _all_numpy(leaves):
            raise error
        if not self.only_leaves:
            raise WithContainers(error)
        return self.owner.eager.first(error, leaves, {})

    def _is_refused(self, call: Call) -> bool:
        """Whether the function can only run eagerly."""
        return types_of(call.leaves[: self.tree.leaves]) in self.refused or call.key in self._effects

    def _refuse(self, types: tuple) -> None:
        """Marks calls with arguments of these types to run eagerly."""
        self.refused.add(types)
        self.owner.eager.revive()
        if self.only_leaves:
            self.owner._set_fast_path(self.tree.leaves, self._fast)

    def _fast(self, *leaves):
        """A call whose arguments are all leaves, some of types that are not compiled."""
        if types_of(leaves) in self.refused and config.fuse_cpu and self.may_fall_back():
            return self.owner.eager.fn(*leaves)
        return self.owner._dispatch(self, leaves)

    def trace(self, call: Call, most_ops: int | None = None, returns_copies: bool = False) -> TracedSpecialization:
        """A new specialization for ``call``. ``returns_copies``: see :func:`tracing.trace`. Raises
        :class:`TraceError` for what cannot be traced, and :class:`TooLong` for a trace of more than ``most_ops``."""
        count = self.tree.leaves
        specs = call.specs[:count]
        on_cpu = self.target(call.leaves).name == "cpu"
        checks = on_cpu or config.check_indices

        def trace(aliases: dict[int, int]) -> Traced:
            objects = call.leaves[:count]
            return tracing.trace(
                self.owner.fn, specs, self.tree, None, aliases, most_ops, checks, objects, returns_copies
            )

        traced = trace(call.aliases)
        if call.aliases and not traced.mutated:  # aliases do not matter: share the trace
            traced = trace({})
        captured_at = [count + self._captured_index(c) for c in traced.captured]
        self.owner._watch_scope(traced.scope, {id(c.array) for c in (*traced.captured, *self.captured)})
        brought = self.captured[len(call.leaves) - count :]
        call.leaves += [c.array for c in brought]
        call.specs += [arrays.describe(c.array) for c in brought]
        for k, captured in zip(captured_at, traced.captured):
            call.specs[k] = arrays.describe(captured.array)
        statics = [(k, spec.value) for k, spec in enumerate(specs) if isinstance(spec, Static)]
        graph, own = traced.graph, set().union(*(o.leaves for o in traced.outs))
        late = bool(traced.mutated) and on_cpu and any(op.attrs.get("checked") for op in graph.ops)
        if late:
            graph.aliases, own = {}, own | set(traced.mutated)
        make: Callable[..., TracedSpecialization] = TracedSpecialization
        if pipelines.complex_kernels(graph):
            graph = graph.copy()
            make = functools.partial(SplitTracedSpecialization, split=StorageViews(graph))
        return make(
            graph,
            [*traced.arg_leaves, *captured_at],
            Assumptions(
                traced.symbols,
                traced.size_guards,
                traced.equalities,
                [*traced.static_leaves.items(), *statics],
                traced.scalar_ranges,
                traced.index_ranges,
            ),
            frozenset(traced.mutated),
            tuple(sorted(own)),
            call.aliases,
            schedules=self.owner.schedule,
            max_args=self.owner.max_args,
            traced=traced,
            captured_at=captured_at,
            writes_late=late,
            captured_key=tuple(key_of(call.specs[k]) for k in captured_at),
            identical=(count, overlap.identical(call.leaves, count)) if traced.compares else None,
        )

    def _captured_index(self, captured: Captured) -> int:
        """The index of a captured array among those that each call appends."""
        ways = {(id(root), steps) for root, steps in captured.paths}
        for k, known in enumerate(self.captured):
            if known.array is captured.array or (ways and ways == {(id(root), steps) for root, steps in known.paths}):
                return k
        self.captured = [*self.captured, captured]
        return len(self.captured) - 1

    def call_again(self, leaves: Sequence) -> Any:
        self.owner._clear_fast_paths()
        return self.owner._dispatch(self, leaves[: self.tree.leaves])

    def run_eagerly(self, call: Call) -> Any:
        if not _all_numpy(call.leaves) and not self._is_refused(call):
            return NotImplemented
        args, kwargs = self.tree.unflatten(call.leaves[: self.tree.leaves])
        if not self.only_leaves:
            raise WithContainers(call.refused)
        result = self.owner.eager.first(call.refused, args, kwargs)
        self.loops_ran()
        return result

    def loops_ran(self) -> None:
        """After a call with its loops outlined: if none of them ran natively, later calls are traced."""
        if self.owner.eager.loops_failed and self._tried:
            self.refused -= self._tried
            self._tried.clear()
            self.owner._clear_fast_paths()

    def nothing_fused(self, call: Call) -> None:
        """Marks calls like this one to run in NumPy, which is cheaper."""
        if self.may_fall_back() and not self.owner.lowering_requested and _all_numpy(call.leaves):
            self._refuse(types_of(call.leaves[: self.tree.leaves]))

    def overlapping(self, kind: Specialization, call: Call, first: int, second: int) -> Any:
        if not _all_numpy(call.leaves):
            raise UnsupportedError(
                f"arguments {first} and {second} overlap in memory, and {self.name} writes into one of them: "
                "pass a copy of the other"
            )
        return self.run_eagerly(call)

    def target(self, leaves: Sequence) -> Target:
        owner = self.owner
        target = targets.of(owner.target) if owner.target else placement.target_of(leaves)
        return owner.lowering_path.target(target) if owner.lowering_path else target

    def may_fall_back(self) -> bool:
        return config.fallback if self.owner.fallback is None else self.owner.fallback

    def full(self) -> bool:
        return (
            sum(len(entry.specializations) for entry in list(self.owner._entries.values()))
            >= config.max_specializations
        )

    def argument_names(self) -> list[str]:
        return self._argument_names

    @functools.cached_property
    def _argument_names(self) -> list[str]:
        return tracing.argument_names(self.owner.fn, self.tree)


class Jitted(_native.Function):
    """A function compiled by :func:`mlirfuse.jit`. Call it like the function; :meth:`lower` shows its stages of
    compilation."""

    __name__: str
    __qualname__: str

    def __init__(
        self,
        fn: Callable,
        static_argnames: str | Sequence[str] = (),
        target: str | None = None,
        fallback: bool | None = None,
        lowering_path: LoweringPath | None = None,
        schedule: Schedules = None,
        max_args: int | None = None,
    ):
        functools.update_wrapper(self, fn)
        if not hasattr(fn, "__name__"):  # a functools.partial
            self.__name__ = "f"
        self.fn = fn
        self.static = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames)
        self.target = target
        self.fallback = fallback
        self.lowering_path, self.schedule, self.max_args = lowering_path, schedule, max_args
        self._entries: dict[trees.Tree, Entry] = {}
        self._watch: list[tuple[Any, str, Any]] = []
        self._lock = threads.lock()
        self.eager = EagerFunction(fn, self.__name__)
        self._names = [] if not self.static else tracing.parameter_names(fn, self.static)

    def __repr__(self) -> str:
        return f"<mlirfuse.jit({self.__module__}.{self.__qualname__})>"

    # ---- calls

    def __reduce__(self):
        """A decorated function is pickled by name, as functions are; any other (a lambda, a local function) by the
        function that it wraps, which cloudpickle accepts."""
        found: Any = sys.modules.get(self.__module__)
        for name in self.__qualname__.split("."):
            found = getattr(found, name, None)
        if found is self:
            return self.__qualname__
        options = (self.static, self.target, self.fallback, self.lowering_path, self.schedule, self.max_args)
        return Jitted, (self.fn, *options)

    def __get__(self, instance, owner=None):
        return self if instance is None else functools.partial(self, instance)

    def _call(self, args, kwargs):
        """The general call; calls that :meth:`_set_fast_path` covers come here only the first time."""
        leaves, tree = trees.flatten((args, kwargs))
        for k, leaf in enumerate(leaves):
            if leaf.__class__ in _EXACT_TYPES:
                continue
            if isinstance(leaf, _TRACED):  # called by a function that is being traced: inline it
                return as_traced(self.fn)(*args, **kwargs)
            leaves[k] = arrays.host_array(leaf)
            if leaves[k] is not leaf:
                args, kwargs = tree.unflatten(leaves)
        entry = self._entry(tree)
        if entry.only_leaves:
            self._set_fast_path(
                len(args), (lambda *leaves: self._dispatch(entry, leaves)) if entry.captured else entry.dispatch
            )
        try:
            return self._dispatch(entry, leaves)
        except WithContainers as plain:
            result = self.eager.first(plain.refused, args, kwargs)
            entry.loops_ran()
            return result

    _raised = staticmethod(tracebacks.shorten)  # receives each exception that a call raises

    def _dispatch(self, entry: Entry, leaves: Sequence) -> Any:
        """Runs a call with the captured arrays appended to the leaves."""
        try:
            captured = entry.read_captured()
        except (LookupError, AttributeError, ValueError):  # a captured array was removed: trace again
            self._forget()
            entry, captured = self._entry(entry.tree), []
        return entry.dispatch(*leaves, *captured)

    def _entry(self, tree: trees.Tree) -> Entry:
        entry = self._entries.get(tree)
        if entry is None:
            with self._lock:
                entry = self._entries.get(tree)
                if entry is None:
                    entry = self._entries[tree] = Entry(self, tree)
        return entry

    def _static_leaves(self, tree: trees.Tree) -> list[int]:
        """The leaves of the arguments named in ``static_argnames``."""
        if not self.static:
            return []
        positional, keyword = tree.children
        out: list[int] = []
        at = 0
        for k, child in enumerate(positional.children):
            if k < len(self._names) and self._names[k] in self.static:
                out += range(at, at + child.leaves)
            at += child.leaves
        for name, child in zip(keyword.keys or (), keyword.children):
            if name in self.static:
                out += range(at, at + child.leaves)
            at += child.leaves
        return out

    # ---- the function's scope: globals and closure variables

    def _watch_scope(self, scope: list[tuple[Any, str, Any]], inputs: set[int]) -> None:
        """Makes later calls check that what a trace read from the function's scope has not changed. ``inputs``: ids of
        arrays that are arguments of some specialization: their elements may change."""
        self._watch = [w for w in self._watch if not (isinstance(w[2], Elements) and id(w[2].array) in inputs)]
        for watched in scope:
            if isinstance(watched[2], Elements) and id(watched[2].array) in inputs:
                continue
            if not any(w[0] is watched[0] and w[1] == watched[1] for w in self._watch):
                self._watch.append(watched)
                self._set_watched(True)

    def _check_scope(self) -> None:
        """Drops all specializations if a number or string that the function reads from its scope has changed."""
        for namespace, name, value in self._watch if config.guards else ():
            now = read_scope(namespace, name)
            if now is not value and not unchanged(now, value):
                self._forget()
                return

    def _forget(self) -> None:
        self._entries, self._watch = {}, []
        self._clear_fast_paths()
        self._set_watched(False)

    @property
    def lowering_requested(self) -> bool:
        """Whether the caller chose a lowering path or passes."""
        return self.lowering_path is not None or self.schedule is not None or self.target not in (None, "cpu")

    def with_graph_breaks(self, leaves: Sequence) -> bool:
        """Whether a function that cannot be traced to its end may run with graph breaks; loops over NumPy arrays run
        natively instead."""
        return not self.lowering_requested and config.fuse_cpu and not self.has_loops(leaves)

    def has_loops(self, leaves: Sequence) -> bool:
        """Whether the function has loops that may run natively in a call with these arguments."""
        return _all_numpy(leaves) and self.eager.outlined and not self.eager.loops_failed

    def outlines(self, call: Call) -> bool:
        """Whether a call runs with the function's loops outlined rather than traced."""
        return not self.lowering_requested and config.fuse_cpu and _all_numpy(call.leaves) and self.eager.preferred

    # ---- inspection

    def specialization_of(self, *args):
        """The specialization of a call with these arguments, which must have run before; its leaves and sizes. Raises
        LookupError."""
        leaves, tree = trees.flatten((args, {}))
        entry = self._entries[tree]
        call = entry.describe([*leaves, *entry.read_captured()])
        found = None if call is None else entry.specializations.find(call)
        if call is None or found is None:
            raise LookupError(f"{self.__name__} has not run with such arguments")
        return found, call.leaves, found.env(call)

    @tracebacks.shortened
    def lower(self, *args, **kwargs) -> LoweredFunction:
        """A call with these arguments at each level of lowering: see :class:`mlirfuse.inspect.lowered.Lowered`.
        Compiles nothing yet."""
        leaves, tree = trees.flatten((args, kwargs))
        entry = Entry(self, tree)
        call = entry.describe(leaves)
        assert call is not None  # nothing is captured yet
        if call.refused is not None:
            raise call.refused
        return entry.lowered(call)

    @tracebacks.shortened
    def explain(self, *args, **kwargs) -> Explained:
        """How a call with these arguments is compiled and run: ``print`` it, or ``.save("f.html")``. See
        :class:`mlirfuse.inspect.explain.Explanation`. A function that is not compiled as one graph runs on copies of
        the arguments."""
        from mlirfuse.inspect.explain import Explanation  # lazy: few programs need it

        return self._explained(args, kwargs, Explanation.of)

    @tracebacks.shortened
    def audit(self, *args, tune: bool = False, **kwargs) -> Audit:
        """Each kernel of a call with these arguments beside what the device could do: ``print`` it, or
        ``.save("f.html")``. See :class:`mlirfuse.inspect.audit.Audit`. Calls the function some twenty times, which
        writes into these arguments if it does so at all; ``tune`` also measures other schedules. Raises what a call
        raises."""
        from mlirfuse.inspect import launch_audit

        return launch_audit.audited(lambda: self(*args, **kwargs), trees.flatten((args, kwargs))[0], tune)

    @tracebacks.shortened
    def kernels(self, *args, **kwargs) -> int:
        """The number of kernels that a call with these arguments launches; of loops that run natively, of their first
        run."""
        found = self._explained(args, kwargs, lambda lowered: lowered)
        return found.kernels if isinstance(found, LoweredFunction) else found.launches

    def _explained(self, args: tuple, kwargs: dict[str, Any], compiled: Callable[[LoweredFunction], Any]) -> Any:
        from mlirfuse.frontend.numpy import explaining

        leaves, tree = trees.flatten((args, kwargs))
        return explaining.explain(Entry(self, tree), leaves, args, kwargs, compiled)


class LoweredFunction(Lowered):
    """A call of a jitted function at each level of lowering: see :mod:`mlirfuse.inspect.lowered`."""

    def __init__(self, entry: Entry, specialization: TracedSpecialization, call: Call):
        env = specialization.env(call)
        super().__init__(
            entry.name, specialization, specialization.arguments(call.leaves, env), env, entry.target(call.leaves)
        )
        self._entry, self._call = entry, call

    def compile(self) -> CompiledFunction:
        """The compiled call, a callable for arguments of this specialization. Raises where this machine cannot run
        it."""
        kernels = self.load()
        return CompiledFunction(self._entry, self._specialization, self._call, kernels)


class CompiledFunction:
    """A compiled call: takes arguments of the specialization that it was compiled for, other sizes included.

    ``kernels`` is the number of kernels that a call with the first sizes launches. Raises TypeError for arguments that
    need another specialization.
    """

    def __init__(self, entry: Entry, specialization: Specialization, call: Call, kernels: int):
        self._entry, self.kernels = entry, kernels
        self._specializations = OneSpecialization(entry, specialization, call, entry.statics)

    @tracebacks.shortened
    def __call__(self, *args, **kwargs):
        leaves, tree = trees.flatten((args, kwargs))
        if tree != self._entry.tree:
            raise TypeError(
                f"{self._entry.name} was compiled for arguments of another structure: {self._entry.tree.paths()}"
            )
        try:
            return self._specializations.dispatch(*leaves, *self._entry.read_captured())
        except WithContainers:
            return self._entry.owner.fn(*args, **kwargs)
