"""The result of tracing: the graph, how to build the function's result from the graph's results, and the guards; as a
specialization, whose calls run the graph."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mlirfuse.core.errors import warn
from mlirfuse.frontend import tree as trees
from mlirfuse.frontend.numpy.scope import Captured, follow
from mlirfuse.frontend.numpy.views import At, viewed
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Graph
from mlirfuse.runtime import arrays, op_by_op
from mlirfuse.runtime.signature import key_of
from mlirfuse.runtime.specializations import Assumptions, Call, Specialization
from mlirfuse.runtime.storage_views import StorageViews


@dataclass(frozen=True)
class Out:
    """A leaf of the function's result; between graph breaks also of what a called function gets.

    ``kind`` "result": the graph's result ``index``; "argument": the caller's own object at leaf ``index``, between
    graph breaks the object in this slot; "size": the size ``value``, an int; "constant": the object ``value``;
    "outside": the current object of the :class:`Captured` ``value``; "attribute": where the access path ``value`` leads
    from the caller's object at leaf ``index``; "repeated": the same object as the leaf ``index``.
    ``path``: the steps of a view of a result or an argument. ``scalar``: np.generic, int, float, bool or complex where
    NumPy would return such a number instead of an array. ``read_only``: NumPy makes the result read-only.
    """

    kind: str
    index: int = -1
    value: Any = None
    scalar: type | None = None
    read_only: bool = False
    path: tuple = ()

    @property
    def is_fixed(self) -> bool:
        """Whether each call with the same sizes may return the same object: it is immutable, and no result."""
        return self.kind == "size" or (self.kind == "constant" and type(self.value) is not np.ndarray)

    @property
    def leaves(self) -> set[int]:
        """The call's leaves that this output depends on."""
        positions = {step.index for step in self.path if isinstance(step, At)}
        return positions | {self.index} if self.kind in ("argument", "attribute") else positions

    def shown(self, found: Any, leaf: Callable[[int], Any], sizes: dict[str, int]) -> Any:
        """What the caller gets of the result or argument ``found``; ``leaf`` returns a leaf of the call."""
        if self.path:
            found = viewed(found, self.path, leaf, sizes)
        if self.scalar is not None:
            number = found[()] if isinstance(found, np.ndarray) else found
            return self.scalar(number) if self.scalar is not np.generic and isinstance(number, np.generic) else number
        if self.read_only and isinstance(found, np.ndarray):
            found.flags.writeable = False
        return found

    def reader(self, place: dict[int, int], sizes: dict[str, int]) -> int | Callable[[list], Any]:
        """How to read this leaf from a call's results: an index, or a function of them. ``place``: the indices of the
        caller's own objects among them."""
        if self.kind == "attribute":
            return lambda results: follow(results[place[self.index]], self.value)
        if self.kind not in ("result", "argument"):
            return lambda results: self.created(sizes)
        at = self.index if self.kind == "result" else place[self.index]
        if not self.path and self.scalar is None and not self.read_only:
            return at
        return lambda results: self.shown(results[at], lambda leaf: results[place[leaf]], sizes)

    def created(self, sizes: dict[str, int]):
        """An output that is neither a graph result nor an argument. Created arrays are new in each call."""
        if self.kind == "size":
            return sz.substitute(self.value, sizes)
        if self.kind == "outside":
            return self.value.read()
        return self.value.copy(order="K") if type(self.value) is np.ndarray else self.value


def extent_of(array: Any, what: str, axis: int) -> int:
    """An array's extent ("shape") or stride in elements along an axis."""
    if what == "shape":
        return array.shape[axis]
    if isinstance(array, np.ndarray):
        return array.strides[axis] // array.itemsize
    return arrays.spec_of(array).strides[axis]


@dataclass(kw_only=True)
class Traced(Assumptions):
    """A traced function. It is valid for calls whose arguments have the same dtypes, ranks, extents of 0 and 1 and
    layouts (:func:`layout_of`), and for which its assumptions hold. (Where an equality fails, tracing again raises
    NumPy's error at the user's line.)

    ``arg_leaves``: the leaf of each graph argument; the arrays of ``captured`` follow. ``mutated``: from a leaf's index
    to the graph's result with its new value. ``scope``: (dict or cell, key, value) for numbers and strings in the
    function's scope, which are constants of the trace, and for arrays from which constants were computed. ``warnings``:
    RuntimeWarnings of each call. ``compares``: the function asks whether two of its arguments are one object.
    """

    graph: Graph
    out_tree: trees.Tree
    outs: list[Out]
    mutated: dict[int, int]
    captured: list[Captured]
    arg_leaves: list[int]
    scope: list[tuple[Any, str, Any]]
    warnings: tuple[str, ...]
    compares: bool

    def sizes(self, given: Sequence) -> dict[str, int]:
        """The symbols' values in a call, from the arrays of the graph's arguments."""
        return {name: extent_of(given[k], what, axis) for name, (k, what, axis) in self.symbols.items()}

    def result(self, results, leaves, sizes: dict[str, int]):
        """The function's result, from the graph's results, the leaves of the call and the symbols' values."""
        found, place = [*results, *leaves], {leaf: len(results) + leaf for leaf in range(len(leaves))}
        outs = [out.reader(place, sizes) for out in self.outs]
        return self.out_tree.unflatten([found[o] if isinstance(o, int) else o(found) for o in outs])


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
        if not written and not traced.warnings and traced.out_tree.kind == "leaf" and traced.outs[0].is_fixed:
            value = traced.outs[0].created(env)
            return lambda results: value

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
        finish = self.finisher(env) or operator.itemgetter(0)
        return self.split.record(self.executor, leaves, self.leaf_of_arg, env, finish, self.finisher_leaves)

    def run_op_by_op(self, leaves: Sequence, env: dict[str, int]) -> list:
        return op_by_op.run(self.traced.graph, leaves, self.leaf_of_arg, env)
