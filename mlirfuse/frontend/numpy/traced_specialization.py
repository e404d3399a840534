"""A trace as a specialization: builds the function's result from its graph's results."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mlirfuse.core import config
from mlirfuse.core.errors import warn
from mlirfuse.frontend.numpy import tracing
from mlirfuse.frontend.numpy.traced import Out, Traced
from mlirfuse.runtime import arrays, op_by_op, overlap, storage_views
from mlirfuse.runtime.signature import Static, key_of
from mlirfuse.runtime.specializations import Assumptions, Call, Specialization
from mlirfuse.runtime.storage_views import StorageViews

if TYPE_CHECKING:
    from mlirfuse.frontend.numpy.dispatch import Entry


@dataclass(eq=False)
class TracedSpecialization(Specialization):
    """A trace. ``captured_at``: the leaves of its captured arrays; ``captured_key``: their part of the guard key.
    ``writes_late``: arguments are written at the end, once all indices are checked."""

    traced: Traced = field(kw_only=True)
    captured_at: list[int] = field(kw_only=True)
    captured_key: tuple = field(kw_only=True)
    writes_late: bool = field(kw_only=True)

    def matches(self, call: Call) -> bool:
        return self.captured_key == tuple(key_of(call.specs[k]) for k in self.captured_at) and super().matches(call)

    def captured_constants(self) -> list[tuple[str, Any]]:
        constants = (int, float, complex, str)
        return [(name, value) for _, name, value in self.traced.scope if isinstance(value, constants)]

    @functools.cached_property
    def _simple(self) -> bool:
        """Whether the function returns the graph's only result unchanged."""
        traced = self.traced
        alone = traced.out_tree.kind == "leaf" and len(traced.graph.returns) == 1
        return alone and traced.outs == [Out("result", 0)] and not traced.warnings

    def finisher(self, env: dict[str, int]) -> Callable[[list], Any] | None:
        if self._simple:
            return None
        traced = self.traced
        place = {leaf: len(traced.graph.returns) + k for k, leaf in enumerate(self.finisher_leaves)}
        written = [(place[leaf], k) for leaf, k in traced.mutated.items()] if self.writes_late else []
        assembled = traced.out_tree.of_leaves
        outs = [out.reader(place, env) for out in traced.outs]

        def finish(results: list) -> Any:
            for leaf, k in written:
                results[leaf][...] = results[k]
            for message in traced.warnings:
                warn(message, RuntimeWarning)
            return assembled([results[o] if isinstance(o, int) else o(results) for o in outs])

        return finish


@dataclass(eq=False)
class SplitTracedSpecialization(TracedSpecialization):
    """A trace with complex numbers, which compiles to real and imaginary parts, or with float8, which compiles to
    bytes."""

    split: StorageViews = field(kw_only=True)
    shape_cacheable = False

    def arguments(self, leaves: Sequence, env: dict[str, int]) -> list:
        given = super().arguments(leaves, env)
        return self.split.arguments(given, self.split.make(given, env))

    def record_or_result(self, leaves: Sequence, env: dict[str, int]) -> Any:
        assert self.executor is not None
        finish = self.finisher(env) or _only
        return self.split.record(self.executor, leaves, self.leaf_of_arg, env, finish, self.finisher_leaves)

    def run_op_by_op(self, leaves: Sequence, env: dict[str, int]) -> list:
        return op_by_op.run(self.traced.graph, leaves, self.leaf_of_arg, env)


def _only(results: list) -> Any:
    (only,) = results
    return only


def traced_specialization(
    entry: Entry, call: Call, most_ops: int | None, returns_copies: bool = False
) -> TracedSpecialization:
    """A trace of ``call``, with its guards. ``returns_copies``: see :func:`tracing.trace`. Raises :class:`TraceError`
    for what cannot be traced, and :class:`TooLong` for more than ``most_ops``. Arrays that the trace captures are added
    to the call's leaves and specs."""
    owner = entry.owner
    count = entry.tree.leaves
    specs = call.specs[:count]
    on_cpu = entry.target(call.leaves).name == "cpu"
    checks = on_cpu or config.check_indices

    def trace(aliases: dict[int, int]) -> Traced:
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
    statics = [(k, spec.value) for k, spec in enumerate(specs) if isinstance(spec, Static)]
    graph, own = traced.graph, set().union(*(o.leaves for o in traced.outs))
    late = bool(traced.mutated) and on_cpu and any(op.attrs.get("checked") for op in graph.ops)
    if late:
        graph.aliases, own = {}, own | set(traced.mutated)
    make: Callable[..., TracedSpecialization] = TracedSpecialization
    if storage_views.needed(graph):
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
            traced.number_guards,
        ),
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
