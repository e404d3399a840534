"""How a call of a jitted NumPy function runs.

A C++ dispatcher runs calls whose signature has run before. A new one comes to :meth:`Entry.make` (through
:mod:`mlirfuse.runtime.specializations`), which asks the strategies in this order:

1. **native loops**, if the function has loops that a trace would unroll: a ``while``, or writes into arrays;
2. **device loops**, the same for the arrays of torch and CuPy;
3. **traced**: one graph;
4. **native loops** again, if tracing failed or unrolled too many ops;
5. **device loops** again, likewise;
6. **graph breaks**, if the trace needs a value or meets a function without an op;
7. **eager**: NumPy runs the function, with one warning.

The first that accepts the call and can specialize for it runs it. With the fallback off, calls are traced or are
errors. ``explain`` asks in the same order, and says why the strategies before did not run the call.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from mlirfuse.core import config
from mlirfuse.core.errors import TraceError, UnsupportedError
from mlirfuse.frontend import tree as trees
from mlirfuse.frontend.numpy import tracing
from mlirfuse.frontend.numpy.effects import SideEffect
from mlirfuse.frontend.numpy.scope import Captured
from mlirfuse.frontend.numpy.source import fail
from mlirfuse.frontend.numpy.strategies import (
    DeviceLoops,
    Eager,
    FunctionCall,
    GraphBreaks,
    NativeLoops,
    Strategy,
    Traced,
    all_numpy,
    types_of,
)
from mlirfuse.frontend.numpy.trace_state import TooLong
from mlirfuse.inspect import progress
from mlirfuse.runtime import arrays, overlap, placement
from mlirfuse.runtime.signature import ArgSpec, Static, key_of
from mlirfuse.runtime.specializations import Call, Source, Specialization, Specializations
from mlirfuse.schedule import targets
from mlirfuse.schedule.targets import Target

if TYPE_CHECKING:
    from mlirfuse.frontend.numpy.jit import Jitted
    from mlirfuse.frontend.numpy.strategies import View
    from mlirfuse.inspect.shown import Shown

Result = TypeVar("Result")
_UNSUPPORTED_DTYPE = object()  # marks keys of calls with unsupported dtypes: strings, dates, objects, records


class Entry(Source):
    """A function with one structure of arguments: its strategies, its specializations, and the arrays captured from its
    scope, which each call appends to the leaves. ``chosen``: by the arguments' types, the strategy of calls that run in
    Python, or that need graph breaks."""

    owner: Jitted

    def __init__(self, owner: Jitted, tree: trees.Tree):
        progress.follow()
        self.owner, self.tree, self.name = owner, tree, owner.__name__
        self.captured: list[Captured] = []
        self.chosen: dict[tuple, Strategy] = {}
        self._argument_names = tracing.argument_names(owner.fn, tree)
        self.statics = owner._static_leaves(tree)
        self.specializations = Specializations(self, self.statics)
        self.dispatch = self.specializations.dispatch
        self.dispatch.set_bad_index(self.bad_index)
        positional, keyword = tree.children
        self.only_leaves = not keyword.children and all(child.kind == "leaf" for child in positional.children)
        self.native_loops, self.device_loops = NativeLoops(self), DeviceLoops(self)
        self.traced, self.graph_breaks, self.eager = Traced(self), GraphBreaks(self), Eager(self)

    def strategies(self, call: FunctionCall) -> Sequence[Strategy]:
        """The strategies for a call, in the order in which they are tried."""
        if call.error is not None:  # unsupported dtypes
            return (self.eager,)
        if not self.may_fall_back():
            return (self.traced,)
        eager = self.owner.eager
        has_loops = eager.may_outline if call.numpys else eager.has_loops
        loops = [self.native_loops if call.numpys else self.device_loops] if has_loops else []
        return (*loops, self.traced, *loops, self.graph_breaks, self.eager)

    def make(self, call: Call) -> Specialization | None:
        """The specialization of the first strategy that runs the call; None where that runs it in Python."""
        assert isinstance(call, FunctionCall)
        chosen = self.chosen.get(call.types)
        if chosen is not None and chosen.in_python and self.may_fall_back():
            call.strategy = chosen
            return None
        call.strategy, found = self._first(call, self.strategies(call), lambda strategy: strategy.specialize(call))
        if found is not None:
            call.error = None
        return found

    @staticmethod
    def _first(
        call: FunctionCall, strategies: Sequence[Strategy], run: Callable[[Strategy], Result]
    ) -> tuple[Strategy, Result]:
        """The first strategy that accepts the call and that ``run`` does not fail for, and what ``run`` returns. Raises
        what the strategies do where none runs it."""
        for strategy in strategies:
            if not strategy.accepts(call):
                continue
            try:
                return strategy, run(strategy)
            except (Exception, TooLong) as error:
                call.reject(strategy, error)
                strategy.failed(call, error)
        raise AssertionError("the last strategy accepts the call or raises")

    def explain(self, leaves: Sequence, args: tuple, kwargs: dict[str, Any], view: View) -> Shown:
        """How a call runs, by the strategy that runs it, and why those before it do not. ``view`` makes the explanation
        of one that a single graph covers. For a fresh entry. Raises what the call raises."""
        call = self.describe(leaves)
        assert call is not None  # nothing is captured yet
        strategies = self.strategies(call)
        if call.numpys and call.error is None and len(strategies) > 1 and not config.enabled_for(call.device):
            strategies, call.error = (self.eager,), UnsupportedError("config.fuse_cpu is off")
        strategy, found = self._first(call, strategies, lambda strategy: strategy.explain(call, args, kwargs, view))
        found.rejected = [*(why for why in call.rejected if why[0] != strategy.name), *found.rejected]
        return found

    # ---- calls that run in Python

    def run_in_python(self, call: FunctionCall, strategy: Strategy) -> None:
        """Makes calls like this one run by ``strategy``, without a specialization. A call with side effects, or with
        overlapping arguments where others have graph breaks, does so alone."""
        if isinstance(call.error, SideEffect):
            self.owner.eager.log(call.error)
            call.error = None
            if not self.traced.always_acts(call):
                return
        elif self.chosen.get(call.types) is self.graph_breaks:
            return
        self.choose(call.types, strategy)

    def choose(self, types: tuple, strategy: Strategy) -> None:
        """Makes calls with arguments of these types run in Python by ``strategy``."""
        self.chosen[types] = strategy
        self.owner.eager.revive()
        if self.only_leaves:
            self.owner._set_fast_path(self.tree.leaves, self.fast)

    def fast(self, *leaves):
        """A call whose arguments are all leaves, some of types that run in Python."""
        strategy = self.chosen.get(types_of(leaves))
        if strategy is not None and strategy.in_python and config.fuse_cpu and self.may_fall_back():
            return self.owner.eager.fn(*leaves)
        return self.owner._dispatch(self, leaves)

    def run_eagerly(self, call: Call) -> Any:
        assert isinstance(call, FunctionCall)
        strategy = call.strategy or self.chosen.get(call.types)
        if not call.numpys and not (strategy is not None and strategy.in_python):
            return NotImplemented
        return self.eagerly_of(call.leaves, call.error, True)

    def eagerly_of(self, leaves: Sequence, refused: Any, numpy_can: bool = False) -> Any:
        """Runs a call in Python because of ``refused``, on the caller's own containers, which the function may mutate.
        Raises the reason where NumPy cannot run it; ``numpy_can``: it surely can."""
        error = None
        if refused is not None:
            error = refused if isinstance(refused, Exception) else TraceError(str(refused))
            if not numpy_can and not all_numpy(leaves):
                raise error
        eager = self.owner.eager
        result = eager.first(error, *self._given(leaves))
        if eager.loops_failed and self.native_loops in self.chosen.values():  # trace them instead
            self.chosen = {k: found for k, found in self.chosen.items() if found is not self.native_loops}
            self.owner._clear_fast_paths()
        return result

    def bad_index(self, error: IndexError, leaves: Sequence) -> Any:
        """The result of a call whose kernels found an index out of range, or a number that NumPy rejects, and which has
        written nothing yet: NumPy runs it again, as a handler of the function's own may catch the error, and what is
        written before it stays. With the fallback off, only for the error that NumPy raises in place of this one."""
        if not getattr(error, "found_by_kernel", False) or not all_numpy(leaves):
            raise error
        args, kwargs = self._given(leaves)
        if self.may_fall_back():
            return self.owner.eager.original(*args, **kwargs)
        try:
            args, kwargs = copy.deepcopy((args, kwargs))  # which are as they were where this raises
        except Exception:  # what has no copies
            raise error from None
        with contextlib.suppress(IndexError):
            self.owner.eager.original(*args, **kwargs)
        raise error

    def _given(self, leaves: Sequence) -> tuple[Sequence, dict[str, Any]]:
        """The call's arguments, in the caller's own containers."""
        return (leaves[: self.tree.leaves], {}) if self.only_leaves else self.owner.arguments.given

    def nothing_fused(self, call: Call) -> None:
        """Makes calls like this one run in NumPy, which is cheaper."""
        assert isinstance(call, FunctionCall)
        if self.may_fall_back() and not self.owner.lowering_requested and call.numpys:
            self.choose(call.types, self.eager)

    def read_captured(self) -> list:
        """The captured arrays' current values. Raises LookupError, AttributeError or ValueError where one has been
        removed."""
        return [c.read() for c in self.captured]

    # ---- Source: what the miss path calls

    def describe(self, leaves: Sequence) -> FunctionCall | None:
        count = self.tree.leaves
        if len(leaves) < count + len(self.captured):  # the call came in before a trace captured arrays
            return None
        leaves = [arrays.host_array(leaf) for leaf in leaves]
        try:
            specs = [self._spec(leaf, k) for k, leaf in enumerate(leaves)]
        except UnsupportedError as error:
            if not (self.may_fall_back() and all_numpy(leaves)):
                raise
            types = types_of(leaves)
            return FunctionCall(leaves, [], (_UNSUPPORTED_DTYPE, types), "cpu", types=types, error=error)
        self._check_one_device(leaves)
        key = (*(key_of(spec) for spec in specs[:count]), config.compiled_as())
        device = next((s.device for s in specs if isinstance(s, ArgSpec) and s.device != "cpu"), "cpu")
        types = types_of(leaves[:count])
        return FunctionCall(
            leaves, specs, key, device, overlap.aliases(leaves[:count]), types=types, numpys=all_numpy(leaves)
        )

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

    def captured_index(self, captured: Captured) -> int:
        """The index of a captured array among those that each call appends."""
        for k, known in enumerate(self.captured):
            if known.is_of(captured.array, captured.paths):
                return k
        self.captured = [*self.captured, captured]
        return len(self.captured) - 1

    def call_again(self, leaves: Sequence) -> Any:
        self.owner._clear_fast_paths()
        return self.owner._dispatch(self, leaves[: self.tree.leaves])

    def overlapping(self, specialization: Specialization, call: Call, first: int, second: int) -> Any:
        if not all_numpy(call.leaves):
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
