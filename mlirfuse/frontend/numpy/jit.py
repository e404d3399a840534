"""``mlirfuse.jit`` for NumPy functions: the compiled function, its calls, and what can be asked about one.

A C++ dispatcher runs calls whose signature it has seen; :mod:`.dispatch` chooses how a new one runs.
"""

from __future__ import annotations

import functools
import sys
import threading
import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mlirfuse import _native
from mlirfuse.core import config, threads, tracebacks
from mlirfuse.core.errors import TraceError
from mlirfuse.frontend import tree as trees
from mlirfuse.frontend.numpy import tracing
from mlirfuse.frontend.numpy.dispatch import Entry
from mlirfuse.frontend.numpy.fallback import EagerFunction
from mlirfuse.frontend.numpy.rebuild import as_traced
from mlirfuse.frontend.numpy.scope import Elements, Members, read_scope, unchanged
from mlirfuse.frontend.numpy.stand_in import StandIn
from mlirfuse.frontend.numpy.strategies import all_numpy
from mlirfuse.frontend.numpy.trace_state import TooLong
from mlirfuse.frontend.numpy.traced import TracedSpecialization
from mlirfuse.inspect.lowered import Lowered
from mlirfuse.passes import pipelines
from mlirfuse.passes.base import build
from mlirfuse.runtime import arrays
from mlirfuse.runtime.specializations import Call, OneSpecialization, Specialization
from mlirfuse.schedule.program import Schedules

if TYPE_CHECKING:
    from mlirfuse.frontend.numpy.strategies import View
    from mlirfuse.inspect.audit import Audit
    from mlirfuse.inspect.shown import Shown
    from mlirfuse.runtime.linalg_program import LoweringPath

build(pipelines.fusion_to_segments())  # imports the passes, now rather than at the first call
_EXACT_TYPES = {np.ndarray, int, float, bool, complex, str, type(None)}  # leaf types that need no conversion


class _Arguments(threading.local):
    """The arguments of this thread's current call, if they have containers: a function that runs in Python may mutate
    the caller's own lists and dicts."""

    given: tuple[tuple, dict[str, Any]] = ((), {})


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
        self._watch: dict[tuple[int, Any], tuple[Any, Any, Any]] = {}  # by namespace and key
        self._compared = self._watch  # those that each call compares in Python
        self._lock = threads.lock()
        self.eager = EagerFunction(fn, self.__name__)
        self.arguments = _Arguments()
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
            if isinstance(leaf, StandIn):  # called by a function that is being traced: inline it
                return as_traced(self.fn)(*args, **kwargs)
            leaves[k] = arrays.host_array(leaf)
            if leaves[k] is not leaf:
                args, kwargs = tree.unflatten(leaves)
        entry = self._entry(tree)
        if entry.only_leaves:
            if entry.chosen:  # some calls run in Python
                self._set_fast_path(len(args), entry.fast)
                return entry.fast(*leaves)
            self._set_fast_path(
                len(args), (lambda *leaves: self._dispatch(entry, leaves)) if entry.captured else entry.dispatch
            )
            return self._dispatch(entry, leaves)
        arguments = self.arguments
        before, arguments.given = arguments.given, (args, kwargs)
        try:
            return self._dispatch(entry, leaves)
        finally:
            arguments.given = before

    _raised = staticmethod(tracebacks.shorten)  # receives each exception that a call raises

    def _dispatch(self, entry: Entry, leaves: Sequence) -> Any:
        """Runs a call with the captured arrays appended to the leaves."""
        if not entry.captured:
            return entry.dispatch(*leaves)
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
        names = [name for name, child in tracing.arguments_of(self._names, tree) for _ in range(child.leaves)]
        return [k for k, name in enumerate(names) if name in self.static]

    # ---- the function's scope: globals and closure variables

    def _watch_scope(self, scope: list[tuple[Any, str, Any]], inputs: set[int]) -> None:
        """Makes later calls check that what a trace read from the function's scope has not changed. ``inputs``: ids of
        arrays that are arguments of some specialization: their elements may change."""
        entries = {key: w for key, w in self._watch.items() if not _has_elements(w, inputs)}
        for watched in scope:
            if not _has_elements(watched, inputs):
                entries.setdefault((id(watched[0]), watched[1]), watched)
        self._set_watch(entries)

    def _set_watch(self, entries: dict[tuple[int, Any], tuple]) -> None:
        self._watch = entries
        native = [_native_entry(*watched) for watched in entries.values()]
        self._compared = {key: watched for (key, watched), entry in zip(entries.items(), native) if not entry}
        self._set_watched(native)

    def _check_scope(self, changed: bool) -> None:
        """Drops all specializations if something that the function reads from its scope has changed. ``changed``: some
        entry leads to another object, perhaps an equal number; else only the entries that are compared may differ."""
        if not config.guards:
            return
        replaced = {}
        for key, (namespace, name, value) in (self._watch if changed else self._compared).items():
            now = read_scope(namespace, name)
            if now is value:
                continue
            if not unchanged(now, value):
                self._forget()
                return
            if not isinstance(value, (Elements, Members)):
                replaced[key] = (namespace, name, now)
        if replaced:
            self._set_watch(self._watch | replaced)

    def _forget(self) -> None:
        self._entries = {}
        self._clear_fast_paths()
        self._set_watch({})

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
        return all_numpy(leaves) and self.eager.outlined is not None and not self.eager.loops_failed

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
        Compiles nothing yet. Raises TraceError for what one graph does not cover, such as long loops."""
        leaves, tree = trees.flatten((args, kwargs))
        entry = Entry(self, tree)
        call = entry.describe(leaves)
        assert call is not None  # nothing is captured yet
        if call.error is not None:
            raise call.error
        try:
            return LoweredFunction(entry, entry.traced.trace(call, entry.traced.most_ops(call, None)), call)
        except TooLong as error:
            raise TraceError(
                f"{self.__name__} has no single graph: a call runs its loops as loops, as explain() shows. "
                f"Unrolled, {error}"
            ) from None

    @tracebacks.shortened
    def explain(self, *args, **kwargs) -> Shown:
        """How a call with these arguments is compiled and run: ``print`` it, or ``.save("f.html")``. See
        :class:`mlirfuse.inspect.explain.Explanation`. A function that is not compiled as one graph runs on copies of
        the arguments."""
        from mlirfuse.inspect.explain import Explanation  # lazy: few programs need it

        return self._explained(args, kwargs, lambda *traced: Explanation.of(LoweredFunction(*traced)))

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
        found: Any = self._explained(args, kwargs, LoweredFunction)
        return found.kernels if isinstance(found, LoweredFunction) else found.launches

    def _explained(self, args: tuple, kwargs: dict[str, Any], view: View) -> Shown:
        leaves, tree = trees.flatten((args, kwargs))
        return Entry(self, tree).explain(leaves, args, kwargs, view)


def _has_elements(watched: tuple, inputs: set[int]) -> bool:
    """Whether a scope entry compares the elements of one of these arrays (ids)."""
    return isinstance(watched[2], Elements) and id(watched[2].array) in inputs


def _native_entry(namespace: Any, key: Any, value: Any) -> tuple:
    """A scope entry as :meth:`_set_watched` takes it; () for one that each call compares in Python."""
    if isinstance(value, Elements) or isinstance(namespace, types.MappingProxyType):
        return ()
    if isinstance(value, Members):
        return namespace, key, value.container, value.content
    if key is len and type(namespace) not in (dict, list):
        return ()
    if key is len:
        return namespace, None, None, value
    return (namespace, key) if value is read_scope else (namespace, key, value)


class LoweredFunction(Lowered):
    """A call of a jitted function at each level of lowering: see :mod:`mlirfuse.inspect.lowered`."""

    rejected: Sequence[tuple[str, str]] = ()  # as of an explanation

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
        leaves += self._entry.read_captured()
        arguments = self._entry.owner.arguments
        before, arguments.given = arguments.given, (args, kwargs)
        try:
            return self._specializations.dispatch(*leaves)
        finally:
            arguments.given = before
