"""The result of tracing: the graph, how to build the function's result from the graph's results, and the guards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mlirfuse.frontend import tree as trees
from mlirfuse.frontend.numpy import real_views
from mlirfuse.frontend.numpy.captures import Captured
from mlirfuse.frontend.numpy.scope import read_scope, unchanged
from mlirfuse.frontend.numpy.views import FullView
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Graph
from mlirfuse.ir.sizes import Size
from mlirfuse.runtime.signature import NumberGuard, SizeGuard


@dataclass(frozen=True)
class Out:
    """A leaf of the result.

    ``kind`` "result": the graph's result ``index``; "argument": the caller's own object at leaf ``index``; "view": a
    view of that by the steps ``path``; "part": such a view of the result ``index``; "size": the size ``value``, an int;
    "constant": the object ``value``; "outside": the current object of the :class:`Captured` ``value``. ``scalar``:
    np.generic, int, float, bool or complex where NumPy would return such a number instead of an array. ``read_only``:
    NumPy makes the result read-only.
    """

    kind: str
    index: int = -1
    value: Any = None
    scalar: type | None = None
    read_only: bool = False
    path: tuple = ()

    @property
    def leaves(self) -> set[int]:
        """The call's leaves that this output depends on."""
        positions = {step.leaf for step in self.path if isinstance(step, real_views.IndexStep)}
        return positions | {self.index} if self.kind in ("argument", "view") else positions

    def view(self, array: Any, leaf: Callable[[int], Any], sizes: dict[str, int]) -> Any:
        """The returned view of ``array``, for the kinds "view" and "part"; ``leaf`` returns a leaf of the call."""
        return real_views.viewed(array, self.path or (FullView(),), leaf, sizes)

    def reader(self, place: dict[int, int], sizes: dict[str, int]) -> int | Callable[[list], Any]:
        """How to read this leaf from a call's results: an index, or a function of them. ``place``: the indices of the
        caller's own objects among them."""
        if self.kind not in ("result", "argument", "view", "part"):
            return lambda results: self.created(sizes)
        at = self.index if self.kind in ("result", "part") else place[self.index]
        viewed = self.kind in ("view", "part")
        if not viewed and self.scalar is None and not self.read_only:
            return at

        def read(results: list) -> Any:
            found = results[at]
            if viewed:
                found = self.view(found, lambda leaf: results[place[leaf]], sizes)
            elif self.scalar is not None and isinstance(found, np.ndarray):
                found = found[()] if self.scalar is np.generic else self.scalar(found[()])
            if self.read_only and isinstance(found, np.ndarray):
                found.flags.writeable = False
            return found

        return read

    def created(self, sizes: dict[str, int]):
        """An output that is neither a graph result nor an argument. Created arrays are new in each call."""
        if self.kind == "size":
            return sz.substitute(self.value, sizes)
        if self.kind == "outside":
            return self.value.read()
        return self.value.copy(order="K") if type(self.value) is np.ndarray else self.value


@dataclass
class Traced:
    """A traced function. It is valid for calls where

    - its arguments have the same dtypes, ranks, extents of 0 and 1 and layouts (:func:`layout_of`),
    - the leaves in ``static_leaves`` have the same values,
    - all ``size_guards`` hold, in their order,
    - all ``equalities`` hold, pairs of sizes (tracing again where one fails raises NumPy's error at the user's line),
    - every number in ``scalar_ranges`` and ``index_ranges`` (by leaf) lies in its ranges, bounds included,
    - all ``number_guards`` hold.

    ``symbols``: for each symbol, the (graph argument, "shape" or "stride", axis) that defines it. ``arg_leaves``: the
    leaf of each graph argument; the arrays of ``captured`` follow. ``mutated``: from a leaf's index to the graph's
    result with its new value. ``scope``: (dict or cell, key, value) for numbers and strings in the function's scope,
    which are constants of the trace, and for arrays from which constants were computed; :meth:`scope_holds` checks it.
    ``warnings``: RuntimeWarnings of each call. ``compares``: the function asks whether two of its arguments are one
    object.
    """

    graph: Graph
    out_tree: trees.Tree
    outs: list[Out]
    static_leaves: dict[int, Any]
    size_guards: list[SizeGuard]
    equalities: list[tuple[Size, Size]]
    mutated: dict[int, int]
    captured: list[Captured]
    symbols: dict[str, tuple[int, str, int]]
    arg_leaves: list[int]
    scalar_ranges: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    index_ranges: dict[int, list[tuple[Size, Size]]] = field(default_factory=dict)
    number_guards: list[NumberGuard] = field(default_factory=list)
    scope: list[tuple[Any, str, Any]] = field(default_factory=list)
    warnings: tuple[str, ...] = ()
    compares: bool = False

    def scope_holds(self) -> bool:
        """Whether everything that the function read from its scope is unchanged."""
        return all(unchanged(read_scope(namespace, key), value) for namespace, key, value in self.scope)

    def sizes(self, arrays) -> dict[str, int]:
        """The symbols' values in a call, from the arrays of the graph's arguments."""
        out = {}
        for name, (position, what, axis) in self.symbols.items():
            array = arrays[position]
            out[name] = array.shape[axis] if what == "shape" else array.strides[axis] // array.itemsize
        return out

    def result(self, results, leaves, sizes: dict[str, int]):
        """The function's result, from the graph's results, the leaves of the call and the symbols' values."""
        found, place = [*results, *leaves], {leaf: len(results) + leaf for leaf in range(len(leaves))}
        outs = [out.reader(place, sizes) for out in self.outs]
        return self.out_tree.unflatten([found[o] if isinstance(o, int) else o(found) for o in outs])
