"""``mlirfuse.jit`` over NumPy functions: calls, their structure, and what a trace gives the miss path.

A call goes to a dispatcher in C++, which knows what to run for a signature that it has seen; what happens for a new one
is :mod:`mlirfuse.runtime.specializations`. Here a kind is a trace of the function.
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
from mlirfuse.passes.base import discover
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

discover()  # the passes, now rather than at the first call
_TRACED = (TracedArray, SymInt)
_USUAL = {np.ndarray, int, float, bool, complex, str, type(None)}  # leaves that are what they seem
_TRACES_WITH_EFFECTS = 2  # the first call may do what later ones do not: fill a cache, say
_AS_IT_IS = object()  # begins the keys of calls with what has no type here: strings, dates, objects, records
_MOST_OPS = 2000  # of a trace, where the function may run as it is instead
_MOST_OPS_OF_LOOPS = 500  # that are unrolled: longer ones stay loops, if they can


class Entry(Source):
    """A function with one structure of arguments: its kinds, and the arrays captured from around it, which calls bring
    behind the leaves."""

    owner: Jitted

    def __init__(self, owner: Jitted, tree: trees.Tree):
        progress.follow()
        self.owner, self.tree, self.name = owner, tree, owner.__name__
        self.captured: list[Captured] = []
        self._effects: dict[tuple, int] = {}  # how often a trace with this key met effects
        self.refused: set[tuple] = set()  # by types_of: calls that are not compiled
        self._with_graph_breaks: set[tuple] = set()  # and those that run in pieces
        self._tried: set[tuple] = set()  # refused for loops, which may turn out to run as Python
        self.statics = owner._static_leaves(tree)
        self.specializations = Specializations(self, self.statics)
        self.dispatch = self.specializations.dispatch
        positional, keyword = tree.children
        self.only_leaves = not keyword.children and all(child.kind == "leaf" for child in positional.children)

    def read_captured(self) -> list:
        """The captured arrays that are there now. Raises LookupError, AttributeError or ValueError where they are not
        where they were."""
        return [c.read() for c in self.captured]

    # ---- the miss path's questions

    def describe(self, leaves: Sequence) -> Call | None:
        count = self.tree.leaves
        if len(leaves) < count + len(self.captured):  # the call was made plain before a trace found them
            return None
        leaves = [arrays.host_array(leaf) for leaf in leaves]
        try:
            specs = [self._spec(leaf, k) for k, leaf in enumerate(leaves)]
        except UnsupportedError as error:
            if not (self.may_fall_back() and _all_numpy(leaves)):
                raise
            return Call(leaves, [], (_AS_IT_IS, types_of(leaves)), "cpu", refused=error)
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
        """A trace; None where the function is to run as it is: it has effects, or what a trace cannot follow."""
        types = types_of(call.leaves[: self.tree.leaves])
        if call.key[0] is _AS_IT_IS:
            self._refuse(types)
            return None
        if types in self.refused or self._effects.get(call.key, 0) >= _TRACES_WITH_EFFECTS:
            return None
        if not self.may_fall_back():
            return self.trace(call)
        if call.aliases and types in self._with_graph_breaks:  # which are for arrays that lie apart
            return None
        if self.owner.lifts(call):
            self._tried.add(types)
            self._refuse(types)
            return None
        device_loops = self.device_loops(call)
        if device_loops is not None and device_loops.unrolls:
            return programs.kind_of(call, self.name, device_loops)
        try:
            kind = self.trace(call, self.most_ops(call, device_loops))
            numpys = not self.owner.lowering_requested and _all_numpy(call.leaves)
            if (
                numpys and not kind.assumes.values and boundary_writes.alone(kind.graph)
            ):  # whatever the numbers among the leaves
                self._refuse(types)
                return None
            return kind
        except SideEffect as effect:
            if device_loops is not None:
                return programs.kind_of(call, self.name, device_loops)
            self._effects[call.key] = self._effects.get(call.key, 0) + 1
            if self._effects[call.key] == _TRACES_WITH_EFFECTS:
                self._refuse(types)
            self.owner.eager.log(effect)
        except TooLong as error:
            if device_loops is not None:
                return programs.kind_of(call, self.name, device_loops)
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
                return programs.kind_of(call, self.name, device_loops)
            if followed and not isinstance(error, TorchFunctionError) and self.owner.with_graph_breaks(call.leaves):
                self._with_graph_breaks.add(types)
                if call.aliases:
                    return None
                return programs.kind_of(call, self.name, self._graph_breaks())
            if not _all_numpy(call.leaves):
                raise
            self._refuse(types)
            call.refused = error
        return None

    def _loops(self, call: Call) -> bool:
        return not self.owner.lowering_requested and config.fuse_cpu and self.owner.has_loops(call.leaves)

    def most_ops(self, call: Call, device_loops: DeviceLoopProgram | None) -> int:
        """Of a trace, where there is another way."""
        return _MOST_OPS_OF_LOOPS if device_loops is not None or self._loops(call) else _MOST_OPS

    def lowered(self, call: Call, most_ops: int | None = None) -> LoweredFunction:
        """The call on its way down. Raises as :meth:`trace` does."""
        return LoweredFunction(self, self.trace(call, most_ops), call)

    def _graph_breaks(self) -> GraphBreakProgram:
        from mlirfuse.frontend.numpy.graph_breaks import program  # late: a function that is traced whole needs none

        return program.GraphBreakProgram(self.owner.fn, self.tree, self._eagerly_of, self.owner._watch_scope)

    def device_loops(self, call: Call) -> DeviceLoopProgram | None:
        """The function with its loops left to Python, for calls with arrays of torch or CuPy."""
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
        """A call with these leaves that runs as it is; where that is not NumPy's business, raises why it does."""
        error = refused if isinstance(refused, Exception) else None if refused is None else TraceError(str(refused))
        if error is not None and not _all_numpy(leaves):
            raise error
        if not self.only_leaves:
            raise WithContainers(error)
        return self.owner.eager.first(error, leaves, {})

    def _is_refused(self, call: Call) -> bool:
        """Whether there is nothing to run but the function itself."""
        return types_of(call.leaves[: self.tree.leaves]) in self.refused or call.key in self._effects

    def _refuse(self, types: tuple) -> None:
        """From now on calls with arguments of these types run as they are."""
        self.refused.add(types)
        self.owner.eager.revive()
        if self.only_leaves:
            self.owner._set_plain(self.tree.leaves, self._fast)

    def _fast(self, *leaves):
        """A call with nothing but leaves, some of which are not compiled."""
        if types_of(leaves) in self.refused and config.fuse_cpu and self.may_fall_back():
            return self.owner.eager.fn(*leaves)
        return self.owner._dispatch(self, leaves)

    def trace(self, call: Call, most_ops: int | None = None) -> TracedSpecialization:
        """A new kind for ``call``. Raises :class:`TraceError` for what cannot be traced, and :class:`TooLong` for a
        trace of more than ``most_ops``."""
        count = self.tree.leaves
        specs = call.specs[:count]
        on_cpu = self.target(call.leaves).name == "cpu"
        checks = on_cpu or config.check_indices

        def trace(aliases: dict[int, int]) -> Traced:
            return tracing.trace(self.owner.fn, specs, self.tree, None, aliases, most_ops, checks, call.leaves[:count])

        traced = trace(call.aliases)
        if call.aliases and not traced.mutated:  # then it makes no difference, and the trace serves other arrays too
            traced = trace({})
        captured_at = [count + self._place(c) for c in traced.captured]
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
        kind: Callable[..., TracedSpecialization] = TracedSpecialization
        if pipelines.complex_kernels(graph):
            graph = graph.copy()
            kind = functools.partial(SplitTracedSpecialization, split=StorageViews(graph))
        return kind(
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

    def _place(self, captured: Captured) -> int:
        """The position of a captured array among those that every call brings."""
        ways = {(id(root), steps) for root, steps in captured.paths}
        for k, known in enumerate(self.captured):
            if known.array is captured.array or (ways and ways == {(id(root), steps) for root, steps in known.paths}):
                return k
        self.captured = [*self.captured, captured]
        return len(self.captured) - 1

    def again(self, leaves: Sequence) -> Any:
        self.owner._clear_plain()
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
        """After a call with its loops lifted: where none of them ran natively, calls like it are traced."""
        if self.owner.eager.given_up and self._tried:
            self.refused -= self._tried
            self._tried.clear()
            self.owner._clear_plain()

    def without_kernels(self, call: Call) -> None:
        """NumPy runs it at less cost."""
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
    """A function made by :func:`mlirfuse.jit`. Call it as the function; :meth:`lower` shows what becomes of it."""

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
        """A decorated function is pickled by its name, as functions are; another one (a lambda, a function in a
        function) by the function that it was made of, which cloudpickle takes."""
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
        """Any call; those that :meth:`_set_plain` covers come here only the first time."""
        leaves, tree = trees.flatten((args, kwargs))
        for k, leaf in enumerate(leaves):
            if leaf.__class__ in _USUAL:
                continue
            if isinstance(leaf, _TRACED):  # called by a function that is being traced: a part of it
                return as_traced(self.fn)(*args, **kwargs)
            leaves[k] = arrays.host_array(leaf)
            if leaves[k] is not leaf:
                args, kwargs = tree.unflatten(leaves)
        entry = self._entry(tree)
        if entry.only_leaves:
            self._set_plain(
                len(args), (lambda *leaves: self._dispatch(entry, leaves)) if entry.captured else entry.dispatch
            )
        try:
            return self._dispatch(entry, leaves)
        except WithContainers as plain:
            result = self.eager.first(plain.refused, args, kwargs)
            entry.loops_ran()
            return result

    _raised = staticmethod(tracebacks.shorten)  # is told what a call raises

    def _dispatch(self, entry: Entry, leaves: Sequence) -> Any:
        """Calls with the arrays captured from around the function behind the leaves."""
        try:
            captured = entry.read_captured()
        except (LookupError, AttributeError, ValueError):  # they are not where they were: trace again
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

    # ---- what is read from around the function

    def _watch_scope(self, scope: list[tuple[Any, str, Any]], inputs: set[int]) -> None:
        """Calls look from now on whether what a trace read from around the function is the same. ``inputs``: the ids of
        the arrays that are arguments, of this kind or of another: their elements may change."""
        self._watch = [w for w in self._watch if not (isinstance(w[2], Elements) and id(w[2].array) in inputs)]
        for watched in scope:
            if isinstance(watched[2], Elements) and id(watched[2].array) in inputs:
                continue
            if not any(w[0] is watched[0] and w[1] == watched[1] for w in self._watch):
                self._watch.append(watched)
                self._set_watched(True)

    def _check_scope(self) -> None:
        """Forgets everything if a number or string that the function reads from around it is another now."""
        for namespace, name, value in self._watch if config.guards else ():
            now = read_scope(namespace, name)
            if now is not value and not unchanged(now, value):
                self._forget()
                return

    def _forget(self) -> None:
        self._entries, self._watch = {}, []
        self._clear_plain()
        self._set_watched(False)

    @property
    def lowering_requested(self) -> bool:
        """Whether the caller said how calls are to be compiled."""
        return self.lowering_path is not None or self.schedule is not None or self.target not in (None, "cpu")

    def with_graph_breaks(self, leaves: Sequence) -> bool:
        """Whether what a trace cannot follow to its end may run in pieces; NumPy's loops are better run natively."""
        return not self.lowering_requested and config.fuse_cpu and not self.has_loops(leaves)

    def has_loops(self, leaves: Sequence) -> bool:
        """Whether the function has loops that may run natively in a call with these arguments."""
        return _all_numpy(leaves) and self.eager.outlined and not self.eager.given_up

    def lifts(self, call: Call) -> bool:
        """Whether a call is to run with the function's loops lifted, not traced."""
        return not self.lowering_requested and config.fuse_cpu and _all_numpy(call.leaves) and self.eager.preferred

    # ---- looking inside

    def kind_of(self, *args):
        """The kind that a call with these arguments, which has run before, belongs to; its leaves and sizes. Raises
        LookupError."""
        leaves, tree = trees.flatten((args, {}))
        entry = self._entries[tree]
        call = entry.describe([*leaves, *entry.read_captured()])
        kind = None if call is None else entry.specializations.find(call)
        if call is None or kind is None:
            raise LookupError(f"{self.__name__} has not run with such arguments")
        return kind, call.leaves, kind.env(call)

    @tracebacks.shortened
    def lower(self, *args, **kwargs) -> LoweredFunction:
        """What becomes of a call with these arguments: see :class:`mlirfuse.inspect.lowered.Lowered`. Compiles nothing
        yet."""
        leaves, tree = trees.flatten((args, kwargs))
        entry = Entry(self, tree)
        call = entry.describe(leaves)
        assert call is not None  # nothing is captured yet
        if call.refused is not None:
            raise call.refused
        return entry.lowered(call)

    @tracebacks.shortened
    def explain(self, *args, **kwargs) -> Explained:
        """What becomes of a call with these arguments, for people: ``print`` it, or ``.save("f.html")``. See
        :class:`mlirfuse.inspect.explain.Explanation`. A function that is not compiled whole runs on copies of them."""
        from mlirfuse.inspect.explain import Explanation  # only those who ask pay for importing it

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
        """How many kernels a call with these arguments launches; of loops that run natively, how often one does."""
        found = self._explained(args, kwargs, lambda lowered: lowered)
        return found.kernels if isinstance(found, LoweredFunction) else found.launches

    def _explained(self, args: tuple, kwargs: dict[str, Any], compiled: Callable[[LoweredFunction], Any]) -> Any:
        from mlirfuse.frontend.numpy import explaining

        leaves, tree = trees.flatten((args, kwargs))
        return explaining.explain(Entry(self, tree), leaves, args, kwargs, compiled)


class LoweredFunction(Lowered):
    """A call of a jitted function on its way down: see :mod:`mlirfuse.inspect.lowered`."""

    def __init__(self, entry: Entry, kind: TracedSpecialization, call: Call):
        env = kind.env(call)
        super().__init__(entry.name, kind, kind.arguments(call.leaves, env), env, entry.target(call.leaves))
        self._entry, self._call = entry, call

    def compile(self) -> CompiledFunction:
        """The call compiled, as a callable for arguments of this kind. Raises where this machine cannot run it."""
        kernels = self.load()
        return CompiledFunction(self._entry, self._kind, self._call, kernels)


class CompiledFunction:
    """A compiled call: takes arguments of the kind that it was compiled for, other sizes included, and no others.

    ``kernels`` is the number of kernels that a call with the first sizes launches. Raises TypeError for arguments of
    another kind.
    """

    def __init__(self, entry: Entry, kind: Specialization, call: Call, kernels: int):
        self._entry, self.kernels = entry, kernels
        self._specializations = OneSpecialization(entry, kind, call, entry.statics)

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
