"""The strategies that run calls of a function: what each accepts, how it specializes, and how it explains a call.
:mod:`.dispatch` has their order."""

from __future__ import annotations

import abc
import collections
import contextlib
import copy
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from mlirfuse.core import config
from mlirfuse.core.errors import TraceError, UnsupportedError
from mlirfuse.frontend.numpy import boundary_writes, programs, tracing
from mlirfuse.frontend.numpy.effects import SideEffect
from mlirfuse.frontend.numpy.fallback import located_run
from mlirfuse.frontend.numpy.protocols import TorchFunctionError
from mlirfuse.frontend.numpy.syntax import NotOutlinable
from mlirfuse.frontend.numpy.trace_state import TooLong
from mlirfuse.frontend.numpy.traced import SplitTracedSpecialization, TracedSpecialization
from mlirfuse.frontend.numpy.traced import Traced as TracedFunction
from mlirfuse.inspect.call_explanation import CallExplanation
from mlirfuse.runtime import arrays, overlap, storage_views
from mlirfuse.runtime.signature import Static, key_of
from mlirfuse.runtime.specializations import Call, Specialization
from mlirfuse.runtime.storage_views import StorageViews

if TYPE_CHECKING:
    from mlirfuse.frontend.numpy.dispatch import Entry
    from mlirfuse.frontend.numpy.graph_breaks.program import GraphBreakProgram
    from mlirfuse.inspect.shown import Shown

    View = Callable[[Entry, TracedSpecialization, "FunctionCall"], Any]  # explains a call of one graph

_MOST_EFFECTS = 2  # traces with effects: the first call may have some that later ones lack, such as to fill a cache
_MOST_OPS = 2000  # limit of a trace where the function can run another way
_MOST_OPS_OF_LOOPS = 500  # limit of an unrolled loop; longer ones stay loops where possible


@dataclass(eq=False)
class FunctionCall(Call):
    """A call that looks for its strategy. ``types``: by :func:`types_of`; ``numpys``: all arrays are NumPy's;
    ``error``: why it is not compiled as one graph; ``device_loops``: the function rewritten for it; ``rejected``: the
    strategies before, with reasons; ``strategy``: the one that runs it."""

    types: tuple = ()
    numpys: bool = True
    error: BaseException | None = None
    device_loops: Any = None
    rejected: list[tuple[str, str]] = field(default_factory=list)
    strategy: Strategy | None = None

    def reject(self, strategy: Strategy, why: object) -> bool:
        """Records why a strategy does not run the call; False."""
        reason = str(why).splitlines()[0] if str(why) else type(why).__name__
        if (strategy.name, reason) not in self.rejected:
            self.rejected.append((strategy.name, reason))
        return False

    @property
    def cannot_be_traced(self) -> bool:
        """Whether it has an error of the trace's own, rather than one of the program's or a side effect."""
        followed = isinstance(self.error, (TraceError, UnsupportedError, TypeError))
        return followed and not isinstance(self.error, SideEffect)


class NotThisWay(Exception):
    """A strategy that accepted a call turns out not to run it, as the message says."""


class Strategy(abc.ABC):
    """A way to run calls of ``entry``. ``name``: in explanations; ``in_python``: calls run the function's Python, on
    the caller's arguments."""

    name: ClassVar[str]
    in_python: ClassVar[bool] = False

    def __init__(self, entry: Entry):
        self.entry, self.owner = entry, entry.owner

    @abc.abstractmethod
    def accepts(self, call: FunctionCall) -> bool:
        """Whether to try the call this way; if not, the reason is recorded in ``call.rejected``."""

    @abc.abstractmethod
    def specialize(self, call: FunctionCall) -> Specialization | None:
        """The specialization for calls like this one; None: :meth:`Entry.run_eagerly` runs it. Any exception is passed
        to :meth:`failed`."""

    def failed(self, call: FunctionCall, error: BaseException) -> None:
        """Called with an exception of :meth:`specialize` or :meth:`explain`. Raises it where no other strategy may run
        the call."""
        if not isinstance(error, NotThisWay):
            raise error

    @abc.abstractmethod
    def explain(self, call: FunctionCall, args: tuple, kwargs: dict[str, Any], view: View) -> Shown:
        """How the call runs. Runs it on copies of the arguments where it has no single graph; ``view`` makes the
        explanation of one that has."""


class NativeLoops(Strategy):
    """The function runs as Python, and each of its loops as a native function (:mod:`.loops`)."""

    name = "native loops"
    in_python = True

    @property
    def _preferred(self) -> bool:
        """Whether to outline the function's loops rather than trace it: a trace would unroll them."""
        eager = self.owner.eager
        found = eager.outlined
        return found is not None and (found.preferred or (found.tried and not eager.loops_failed))

    def accepts(self, call: FunctionCall) -> bool:
        owner = self.owner
        if owner.lowering_requested or not config.fuse_cpu:
            return call.reject(self, "a target, lowering or schedule is requested, or config.fuse_cpu is off")
        if owner.eager.outlined is None:
            return call.reject(self, "its loops cannot be outlined")
        if self._preferred:
            return True
        if owner.eager.loops_failed:
            return call.reject(self, "none of its loops ran natively")
        if any(type(leaf) is bytes for leaf in call.leaves):
            return True  # a trace would hold for these bytes alone
        return call.error is not None or call.reject(self, "a trace is tried first: its loops write into no array")

    def specialize(self, call: FunctionCall) -> None:
        if isinstance(call.error, (TooLong, SideEffect)):
            call.error = None  # nothing to warn of: the loops run natively, and Python does the rest at each call
        self.entry.run_in_python(call, self)

    def explain(self, call: FunctionCall, args: tuple, kwargs: dict[str, Any], view: View) -> Shown:
        from mlirfuse.frontend.numpy.loops.explanation import explanation  # lazy: few programs need it

        eager = self.owner.eager
        assert eager.outlined is not None
        file = eager.original.__code__.co_filename
        found = explanation(eager.name, eager.outlined, file, args, kwargs)
        if not self._preferred and not found.launches:
            raise NotThisWay("none of its loops ran natively")
        return found


class DeviceLoops(Strategy):
    """The loops stay in Python, and the straight-line regions between them are compiled (:mod:`.device_loops`)."""

    name = "device loops"

    def accepts(self, call: FunctionCall) -> bool:
        program = self.program(call)
        if program is None:
            return False
        if call.error is None:
            return program.unrolls or call.reject(self, "a trace is tried first: its loops write into no array")
        return call.cannot_be_traced or isinstance(call.error, (SideEffect, TooLong))

    def program(self, call: FunctionCall) -> Any:
        """The rewritten function, for arrays of torch or CuPy; None where it cannot be rewritten."""
        if call.device_loops is not None:
            return call.device_loops
        if not all_known(call.leaves) or not self.owner.with_graph_breaks(call.leaves):
            call.reject(self, "a target, lowering or schedule is requested, or the arrays are of an unknown library")
            return None
        from mlirfuse.frontend.numpy.device_loops import program

        entry, owner = self.entry, self.owner
        try:
            call.device_loops = program.DeviceLoopProgram(
                owner.fn,
                entry.tree,
                lambda fn: type(owner)(fn, fallback=owner.fallback),
                lambda leaves: entry.graph_breaks.program().run(leaves),
            )
            return call.device_loops
        except NotOutlinable as error:
            call.reject(self, error)
            return None

    def specialize(self, call: FunctionCall) -> Specialization:
        return programs.specialization_of(call, self.entry.name, self.program(call))

    def explain(self, call: FunctionCall, args: tuple, kwargs: dict[str, Any], view: View) -> Shown:
        from mlirfuse.frontend.numpy.device_loops.program import explanation, on_host

        program = self.program(call)
        if on_host(call.leaves):  # its loops run natively
            return program.explain_on_host(call.leaves, view)
        with contextlib.suppress(NotOutlinable):
            return explanation(self.entry.name, program, list(call.leaves))
        raise NotThisWay("a region cannot be compiled")


class Traced(Strategy):
    """The function is traced to one graph, whose operations are fused into kernels."""

    name = "traced"

    def __init__(self, entry: Entry):
        super().__init__(entry)
        self._effects: collections.Counter[tuple] = collections.Counter()  # by key: traces that had effects

    def accepts(self, call: FunctionCall) -> bool:
        if call.aliases and call.numpys and self.entry.chosen.get(call.types) is self.entry.graph_breaks:
            return call.reject(self, "it needs graph breaks")
        return True

    def specialize(self, call: FunctionCall) -> TracedSpecialization:
        may_fall_back = self.entry.may_fall_back()
        found = self.trace(call, self.most_ops(call) if may_fall_back else None)
        at_once = call.numpys and may_fall_back and not self.owner.lowering_requested
        if at_once and not found.assumes.values and boundary_writes.alone(found.graph):
            raise NotThisWay("it only writes boundaries of its arguments, and NumPy touches these alone")
        return found

    def trace(self, call: Call, most_ops: int | None = None, returns_copies: bool = False) -> TracedSpecialization:
        """A trace of ``call``, with its guards. ``returns_copies``: see :func:`tracing.trace`. Raises
        :class:`TraceError` for what cannot be traced, and :class:`TooLong` for more than ``most_ops``. Arrays that the
        trace captures are added to the call's leaves and specs."""
        entry, owner = self.entry, self.owner
        count = entry.tree.leaves
        specs = call.specs[:count]
        on_cpu = entry.target(call.leaves).name == "cpu"
        checks = on_cpu or config.check_indices

        def trace(aliases: dict[int, int]) -> TracedFunction:
            objects = call.leaves[:count]
            return tracing.trace(
                owner.fn, specs, entry.tree, None, aliases, most_ops, checks, objects, returns_copies=returns_copies
            )

        traced = trace(call.aliases)
        if call.aliases and not traced.mutated:  # aliases do not matter: share the trace
            traced = trace({})
        captured_at = [count + entry.captured_index(c) for c in traced.captured]
        owner._watch_scope(traced.scope, {id(c.array) for c in (*traced.captured, *entry.captured)})
        brought = entry.captured[len(call.leaves) - count :]
        call.leaves += [c.array for c in brought]
        call.specs += [arrays.describe(c.array) for c in brought]
        for k, captured in zip(captured_at, traced.captured):
            call.specs[k] = arrays.describe(captured.array)
        traced.constants += [(k, spec.value) for k, spec in enumerate(specs) if isinstance(spec, Static)]
        graph, own = traced.graph, set().union(*(o.leaves for o in traced.outs))
        late = bool(traced.mutated) and on_cpu and any(op.attrs.get("checked") for op in graph.ops)
        if late:
            graph.aliases, own = {}, own | set(traced.mutated)
        make: Callable[..., TracedSpecialization] = TracedSpecialization
        if storage_views.needed(graph):
            graph = graph.copy()
            make = functools.partial(SplitTracedSpecialization, split=StorageViews(graph, saturate=False))
        return make(
            graph,
            [*traced.arg_leaves, *captured_at],
            traced,
            frozenset(traced.mutated),
            tuple(sorted(own)),
            call.aliases,
            schedules=owner.schedule,
            max_args=owner.max_args,
            traced=traced,
            captured_at=captured_at,
            writes_late=late,
            captured_key=tuple(key_of(call.specs[k]) for k in captured_at),
            identical=(count, overlap.identical(call.leaves, count)) if traced.compares else None,
        )

    def most_ops(self, call: FunctionCall, otherwise: int | None = _MOST_OPS) -> int | None:
        """The limit on a trace's ops: lower where the function's loops can run as loops, else ``otherwise``."""
        as_one = self.owner.lowering_requested or not config.fuse_cpu or not self.entry.may_fall_back()
        if as_one or not self.owner.eager.may_outline:
            return otherwise
        loops = self.owner.has_loops(call.leaves) or (
            not call.numpys and self.owner.eager.has_loops and self.entry.device_loops.program(call) is not None
        )
        return _MOST_OPS_OF_LOOPS if loops else otherwise

    def failed(self, call: FunctionCall, error: BaseException) -> None:
        if isinstance(error, NotThisWay):
            return
        if not self.entry.may_fall_back():
            raise error
        if isinstance(error, SideEffect):
            self._effects[call.key] += 1
        elif not isinstance(error, TooLong) and not all_known(call.leaves):
            raise error
        call.error = error

    def always_acts(self, call: FunctionCall) -> bool:
        """Whether every trace of such calls may be expected to have effects."""
        return self._effects[call.key] >= _MOST_EFFECTS

    def explain(self, call: FunctionCall, args: tuple, kwargs: dict[str, Any], view: View) -> Shown:
        return view(self.entry, self.specialize(call), call)


class GraphBreaks(Strategy):
    """The function is traced up to each read of a value and each call of a function without an op, compiled in
    subgraphs (:mod:`.graph_breaks`)."""

    name = "graph breaks"

    def accepts(self, call: FunctionCall) -> bool:
        known = self.entry.chosen.get(call.types) is self
        if not known and (not call.cannot_be_traced or isinstance(call.error, TorchFunctionError)):
            return call.reject(self, "they would not help: the trace would end in the same way again")
        if not known and not self.owner.with_graph_breaks(call.leaves):
            return call.reject(self, "it has loops that run natively, or a target, lowering or schedule is requested")
        if not call.aliases:
            return True
        if call.numpys:
            self.entry.chosen[call.types] = self
            call.error = None  # nothing to warn of: other calls with such arguments do run so
        else:
            second, first = next(iter(call.aliases.items()))
            call.error = UnsupportedError(
                f"arguments {first} and {second} are the same memory, and {self.entry.name} needs graph breaks, as "
                f"{call.error}\n  Pass a copy of one"
            )
        return call.reject(self, "its arguments overlap")

    def program(self, run_eagerly: Callable[[list, Any], Any] | None = None) -> GraphBreakProgram:
        """A program without steps yet. ``run_eagerly``: runs what it cannot, given the reason."""
        from mlirfuse.frontend.numpy.graph_breaks import program  # lazy: a function without graph breaks needs none

        owner, entry = self.owner, self.entry
        takes_leaves = run_eagerly is None and entry.only_leaves and owner.eager.outlined is None
        return program.GraphBreakProgram(
            owner.fn, entry.tree, run_eagerly or entry.eagerly_of, owner._watch_scope, takes_leaves
        )

    def specialize(self, call: FunctionCall) -> Specialization:
        self.entry.chosen[call.types] = self
        return programs.specialization_of(call, self.entry.name, self.program())

    def failed(self, call: FunctionCall, error: BaseException) -> None:
        call.error = error

    def explain(self, call: FunctionCall, args: tuple, kwargs: dict[str, Any], view: View) -> Shown:
        from mlirfuse.frontend.numpy.graph_breaks.program import explanation

        def not_so(_: list, refused: Any) -> Any:
            why = created.refused if refused is None else refused
            raise why if isinstance(why, Exception) else TraceError(str(why))

        created = self.program(not_so)
        return explanation(self.entry.name, created, list(call.leaves))


class Eager(Strategy):
    """NumPy runs the function."""

    name = "eager"
    in_python = True

    def accepts(self, call: FunctionCall) -> bool:
        if call.numpys or isinstance(call.error, (SideEffect, TooLong)):
            return True
        assert call.error is not None
        raise call.error  # NumPy cannot run it

    def specialize(self, call: FunctionCall) -> None:
        self.entry.run_in_python(call, self)

    def explain(self, call: FunctionCall, args: tuple, kwargs: dict[str, Any], view: View) -> Shown:
        error, eager = call.error, self.owner.eager
        if not (error is None or isinstance(error, (TraceError, UnsupportedError, TooLong)) or eager.outlined):
            located_run(eager.original, error, *copy.deepcopy((args, kwargs)))  # possibly the user's mistake
        why = error or dict(call.rejected).get(Traced.name)
        return CallExplanation(self.entry.name, f"{self.entry.name} runs op by op: {why}")


def types_of(leaves: Sequence) -> tuple:
    """The types, dtypes and ranks of arguments, which decide whether a call is compiled."""
    return tuple([(x.dtype, x.ndim) if type(x) is np.ndarray else type(x) for x in leaves])


def all_known(leaves: Sequence) -> bool:
    """Whether all arrays belong to known libraries (NumPy, torch, CuPy)."""
    return all(arrays.framework(leaf) in ("numpy", "torch", "cupy", None) for leaf in leaves)


def all_numpy(leaves: Sequence) -> bool:
    """Whether all arrays are NumPy's."""
    return all(arrays.framework(leaf) in ("numpy", None) for leaf in leaves)
