"""A trace as a specialization: builds the function's result from its graph's results."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mlirfuse.core.errors import warn
from mlirfuse.frontend.numpy.traced import Out, Traced
from mlirfuse.runtime import op_by_op
from mlirfuse.runtime.signature import key_of
from mlirfuse.runtime.specializations import Call, Specialization
from mlirfuse.runtime.storage_views import StorageViews


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
        outs, graph = self.traced.outs, self.traced.graph
        alone = len(outs) == 1 and self.traced.out_tree.kind == "leaf" and len(graph.returns) == 1
        return (
            alone
            and outs[0].kind == "result"
            and outs[0].scalar is None
            and not outs[0].read_only
            and not self.traced.warnings
        )

    def finisher(self, env: dict[str, int]) -> Callable[[list], Any] | None:
        if self._simple:
            return None
        traced = self.traced
        place = {leaf: len(traced.graph.returns) + k for k, leaf in enumerate(self.finisher_leaves)}
        written = [(place[leaf], k) for leaf, k in traced.mutated.items()] if self.writes_late else []
        assembled = traced.out_tree.of_leaves
        outs = [_reader(o, place, env) for o in traced.outs]

        def finish(results: list) -> Any:
            for leaf, k in written:
                results[leaf][...] = results[k]
            for message in traced.warnings:
                warn(message, RuntimeWarning)
            return assembled([results[o] if isinstance(o, int) else o(results) for o in outs])

        return finish


@dataclass(eq=False)
class SplitTracedSpecialization(TracedSpecialization):
    """A trace with complex numbers, which compiles to real and imaginary parts."""

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


def _reader(out: Out, place: dict[int, int], env: dict[str, int]) -> int | Callable[[list], Any]:
    """How to read ``out`` from a call's results: an index, or a function of them. ``place``: the indices of the
    caller's own objects among them."""
    if out.kind not in ("result", "argument", "view", "part"):
        return lambda results: out.created(env)
    at = out.index if out.kind in ("result", "part") else place[out.index]
    viewed = out.kind in ("view", "part")
    if not viewed and out.scalar is None and not out.read_only:
        return at

    def read(results: list) -> Any:
        found = results[at]
        found = out.view(found, lambda leaf: results[place[leaf]], env) if viewed else _number(found, out.scalar)
        if out.read_only and isinstance(found, np.ndarray):
            found.flags.writeable = False
        return found

    return read


def _number(value: Any, scalar: type | None) -> Any:
    """A 0-d result as the number that NumPy would return."""
    if scalar is None or not isinstance(value, np.ndarray):
        return value
    return value[()] if scalar is np.generic else scalar(value[()])
