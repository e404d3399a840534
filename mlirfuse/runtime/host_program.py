"""The host program: runs a segmented graph that is more than one kernel program.

A :class:`HostProgram` is created from a graph after ``fusion-segment``, with groups between extern ops, calls of user
functions (``fusion.call``), views, ``scf.if``, ``scf.for`` and ``scf.while`` around any of these, guards with their
fallbacks, and arguments that are written (``graph.aliases``). It is a list of typed steps
(:mod:`mlirfuse.lowering.host_steps`):

- Groups with nothing between them become one kernel program; equal ones share it, whatever the names of their values,
  so that a transformer's layers compile once; so do equal kernels of different programs. A program is compiled when it
  first runs with its sizes; on a GPU those for the first sizes are started earlier
  (:mod:`mlirfuse.runtime.async_compile`).
- Every value has a known layout: an argument its own, a result of a kernel or a library is row-major, a result of a
  call has its ``strides``, a view that of its source. Nothing is copied between steps; where a call returns another
  layout than stated, the program that reads it gets a copy.
- Sizes that an op's result determines (symbols that no argument declares) are read as the program runs.
- A value is freed right after its last reader.
- Results are written into aliased arguments at the end, in the order of the results: by the last kernels where these
  compute them and nothing else exposes the argument's old elements, else by copies.

The steps are generated as one Python function (:attr:`HostProgram.source`); :meth:`HostProgram.function` returns it for
one set of sizes. A front end caches that by the signature of a call, or leaves that to a dispatcher: :meth:`record`.

::

    host = HostProgram(graph, target)
    results = host.run(leaves, {"s0": 64})              # leaves in the order of graph.args
    function = host.function({"s0": 64})                # once for these sizes
    results = function(list_of_leaves)                  # the list is emptied: see `function`
    record = host.record(leaves, leaf_of_arg, env)      # what an `_native.Dispatcher` keeps for the signature
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from mlirfuse import _native
from mlirfuse.core import config
from mlirfuse.core.errors import ShapeError
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Graph
from mlirfuse.lowering import host_steps as st
from mlirfuse.lowering.host_plan import plan
from mlirfuse.runtime import arrays, async_compile, load
from mlirfuse.runtime.foreach import Foreach
from mlirfuse.runtime.host_python import HostFunction, Watch
from mlirfuse.runtime.launch_template import result_placement
from mlirfuse.runtime.launches import Failed, Launches
from mlirfuse.runtime.native_regions import Shim
from mlirfuse.runtime.size_cache import SizeCache


class HostProgram:
    """Runs ``graph``, segmented, on ``target`` (:mod:`mlirfuse.schedule.targets`). Nothing is compiled yet. ``failed``:
    receives compilation errors of kernels, see :class:`Launches`. ``like``: an array that determines the framework
    and device of results; None: one of a call's arguments. ``shim``: runs straight-line parts natively, for torch's
    tensors (:mod:`mlirfuse.runtime.native_regions`).

    Raises :class:`mlirfuse.core.errors.CompileError` for an op that no step can run.
    """

    def __init__(self, graph: Graph, target, failed: Failed | None = None, like: Any = None, shim: Shim | None = None):
        self.graph, self.target, self._like, self._shim = graph, target, like, shim
        self.sequence: st.Sequence = plan(graph)
        self.launches: dict[st.FusedRegion, Launches] = {}
        kernels: load.SharedKernels = {}  # shared: different programs have equal kernels, as a model's layers have
        for step in self.sequence.walk():
            if isinstance(step, st.Kernels):
                self.launches[step.region] = Launches(step.region, target, failed, kernels)
            elif isinstance(step, st.Foreach):
                self.launches[step.region] = Foreach(step, target, failed)
        self._functions = SizeCache()  # the host function, bound to sizes
        self._newest: tuple[int, ...] = ()
        self._compiling_started = False  # in the background
        self._watch: Watch | None = None
        config.listen(self)

    def settings_changed(self) -> None:
        """A setting of :mod:`mlirfuse.config` has changed: every signature is looked up again."""
        self._functions.clear()
        for launches in self.launches.values():
            launches.forget()
        if "_generated" in self.__dict__:
            self._generated.forget()

    @functools.cached_property
    def kernels(self) -> list[st.Kernels]:
        """Return the steps that launch kernels, in order, including those in loops and branches."""
        return [step for step in self.sequence.walk() if isinstance(step, st.Kernels)]

    def watch(self, watch: Watch | None) -> None:
        """Make functions that :meth:`function` returns from now on report each step to ``watch``; None: no reports."""
        self._watch = watch
        self._functions.clear()
        self.__dict__.pop("_generated", None)

    @functools.cached_property
    def _generated(self) -> HostFunction:
        return HostFunction(self.graph, self.sequence, self.launches, self._watch, self._like, self._shim)

    @property
    def source(self) -> str:
        """The source of the Python function that runs the steps."""
        return self._generated.source

    @property
    def symbols(self) -> list[str]:
        """The symbols whose values a call's ``env`` must have."""
        return self._generated.symbols

    @property
    def last_sizes(self) -> dict[str, int]:
        """The latest sizes that :meth:`function` was called with; empty before."""
        return dict(zip(self.symbols, self._newest))

    def function(self, env: dict[str, int]) -> Callable[[list], list]:
        """Return the function for calls with these sizes: it takes a list of the graph's arguments and returns the list
        of its results. It empties its list, so that arguments without other references are freed after their last
        reader. Raises :class:`ShapeError` for sizes that are not as the graph's text states."""
        key = tuple([env[s] for s in self.symbols])
        found = self._functions.get(key)
        if found is None:
            self._check(env)
            if self.target.name == "cuda" and self.target.device is not None and not self._compiling_started:
                async_compile.begin(self.launches.values(), env)
                self._compiling_started = True
            found = self._functions.add(key, self._generated.bound(env))
            self._newest = key
        return found

    def _check(self, env: dict[str, int]) -> None:
        """Raises :class:`ShapeError` where sizes of a call are not equal that the graph's text states to be."""
        for a, b in self.graph.equal or ():
            if (left := sz.evaluated(a, env)) != (right := sz.evaluated(b, env)):
                raise ShapeError(f"{self.graph.name}: {a} == {b} does not hold: {left} against {right}")

    def run(self, leaves, env: dict[str, int]) -> list:
        """The graph's results for ``leaves``, its arguments in order. Raises :class:`ShapeError` where they do not have
        the sizes ``env``."""
        for k, (value, leaf) in enumerate(zip(self.graph.args, leaves)):
            if value.dtype is None or k in self.graph.scalars or arrays.framework(leaf) is None:
                continue
            found = tuple(arrays.spec_of(leaf).shape)
            expected = tuple(sz.evaluated(n, env) for n in value.shape)
            if len(found) != len(expected) or any(isinstance(n, int) and n != m for n, m in zip(expected, found)):
                raise ShapeError(f"argument {k} of {self.graph.name} has shape {found}, expected {expected}")
        return self.function(env)(list(leaves))

    def record(self, leaves, leaf_of_arg: list[int], env: dict[str, int], result: Callable = list, finisher_leaves=()):
        """Return the Record for calls with the signature of ``leaves``, where the graph's arguments are those at
        ``leaf_of_arg``. ``result`` gets the list of the graph's results and, after them, the leaves
        ``finisher_leaves``."""
        run, count = self.function(env), len(leaf_of_arg)

        def call(given: list):
            return result(run(given[:count]) + given[count:] if finisher_leaves else run(given))

        device, proto = result_placement(leaves, None)
        outputs = [("arg", leaf) for leaf in [*leaf_of_arg, *finisher_leaves]]
        return _native.Record(0, [], [], [], outputs, 0, device, call, self, proto)
