"""Compiled execution of a :class:`mlirfuse.frontend.nvfuser.definition.Program`: its graphs go through ``jit``'s
pipeline and dispatcher.

A call goes to a dispatcher in C++, which knows what to run for a signature that it has seen. For a new one it comes
back here: the inputs are checked against the definition, the graph for them is found or made, and what runs it is
recorded.
"""

from __future__ import annotations

import logging
import os
import threading
import warnings
from types import SimpleNamespace

import numpy as np

from mlirfuse import _native
from mlirfuse.api import lower_to_segments
from mlirfuse.core import config, counters
from mlirfuse.core.errors import CompileError, CudaError, MlirfuseError, ShapeError, UnsupportedError
from mlirfuse.frontend.nvfuser.inputs import detached, flatten, wrong_number
from mlirfuse.frontend.nvfuser.parts import Split, SplitExecutor, is_split
from mlirfuse.frontend.nvfuser.program import Program, Runner
from mlirfuse.frontend.nvfuser.reference import run_reference
from mlirfuse.frontend.nvfuser.replay import Planned, environment
from mlirfuse.inspect import dump
from mlirfuse.inspect.lowered import Lowered
from mlirfuse.runtime import arrays, placement
from mlirfuse.runtime.executor import Empty, Executor
from mlirfuse.schedule import targets

log = logging.getLogger("mlirfuse")


class Compiled:
    """What runs a program's calls. ``device`` is where results are made if no input is an array."""

    def __init__(self, program: Program):
        self.program = program
        self.lock = threading.RLock()
        self.dispatch = _native.Dispatcher(self._miss)
        self.narrow = any(
            v.is_tensor() and v.value.dtype.kind == "n" for v in program.definition.inputs
        )  # the dispatcher does not know them
        count = len(program.definition.inputs)
        for k in range(count):
            if k in program.definition.size_arguments or (
                program.evaluated and not program.definition.inputs[k].is_tensor()
            ):
                self.dispatch.set_static(k)
        if program.aliased:
            self.dispatch.set_alias_sensitive(True)
        config.listen(self)

    def switched(self) -> None:
        """A switch of :mod:`mlirfuse.config` has changed: every signature is looked up anew."""
        self.dispatch.clear()

    def __call__(self, leaves) -> list:
        if self.program.hands_inputs_on:  # what torch makes of a tensor with a gradient would have one
            leaves = detached(leaves)
        return self._miss(leaves) if self.narrow else self.dispatch(*leaves)

    def _miss(self, leaves):
        program = self.program
        leaves = detached(leaves)
        count = len(program.definition.inputs)
        inputs = leaves[:count]
        planned, bindings = program._bind(inputs, None)
        env = environment(planned, bindings, leaves)
        device = next((arrays.describe(leaf).device for leaf in leaves if arrays.framework(leaf)), "cpu")
        if not config.enabled_for(device) or (planned.graph.aliases and _overlap(planned, leaves)):
            return planned.collect(self._reference(planned, leaves, env))
        executor = self._executor(planned, device, leaves, env)
        if executor is None:
            counters.fallbacks += 1
            return planned.collect(self._reference(planned, leaves, env))
        try:
            executor.check(env)
            if isinstance(executor, SplitExecutor):
                return planned.collect(executor.run(leaves, env))
            where = list(range(len(planned.graph.args)))
            return executor.record(leaves, where, env, planned.collect)
        except Empty:
            return planned.collect(self._reference(planned, leaves, env))
        except (ShapeError, CudaError):
            raise
        except Exception as error:
            self._failed(planned, device, error)
            return planned.collect(self._reference(planned, leaves, env))

    def _executor(self, planned: Planned, device: str, leaves, env) -> Executor | None:
        """The compiled form of a graph for a kind of device; None where compiling failed and the fallback is on."""
        key = (device, config.compiled_as())
        with self.lock:
            if key not in planned.compiled:
                counters.kinds += 1
                try:
                    target = placement.target_of(leaves)
                    graph = planned.graph.copy()
                    if is_split(graph):
                        planned.compiled[key] = SplitExecutor(graph, target, env)
                        return planned.compiled[key]
                    watch = dump.Compilation(self.program, f"fusion{self.program.id}", graph) if config.dump else None
                    executor = planned.compiled[key] = Executor(
                        lower_to_segments(graph, target, watch and watch.after), target, env
                    )
                    if watch:
                        watch.made(executor, leaves, list(range(len(graph.args))), env)
                except ShapeError:
                    raise
                except Exception as error:
                    self._failed(planned, device, error)
            return planned.compiled[key]

    def _failed(self, planned: Planned, device: str, error: Exception) -> None:
        if not config.fallback:
            raise (
                error if isinstance(error, MlirfuseError) else CompileError(f"compiling a fusion failed: {error}")
            ) from error
        planned.compiled[device, config.compiled_as()] = None
        warnings.warn(
            f"mlirfuse could not compile a fusion and runs it op by op: {type(error).__name__}: {error}", stacklevel=4
        )

    @staticmethod
    def _reference(planned: Planned, leaves, env) -> list:
        return run_reference(planned, list(leaves), env)


class LoweredDefinition(Lowered):
    """What becomes of a call of a definition, level by level: see :mod:`mlirfuse.inspect.lowered`."""

    def __init__(self, program: Program, inputs, target: str | None):
        leaves = flatten(inputs)
        if len(leaves) != program.inputs:
            raise wrong_number(program.inputs, leaves)
        if program.computes:
            leaves += program.computed(leaves, None)
        planned, bindings = program._bind(leaves[: program.inputs], None)
        env = environment(planned, bindings, leaves)
        graph = planned.graph.copy()
        where = list(range(len(graph.args)))
        if is_split(graph):  # the levels are those of the real graph, and what it writes to stands behind the leaves
            split = Split(graph)
            where = [k if what == "argument" else len(leaves) + k for what, k, _ in split.sources]
            leaves += [np.empty(0, v.dtype.numpy) for v in split.made]
        kind = SimpleNamespace(traced=SimpleNamespace(graph=graph), executor=None, leaf_of_arg=where)
        owner = SimpleNamespace(__name__="this fusion")
        super().__init__(owner, kind, None, leaves, env, targets.of(target) if target else placement.target_of(leaves))

    def compile(self):
        """There is none: ``fd.execute`` compiles."""
        raise UnsupportedError("a definition is compiled by fd.execute(inputs); fd.lower(inputs) shows what that runs")


def _overlap(planned: Planned, leaves) -> bool:
    """Whether an argument that is written shares memory with another: then all is computed before anything is
    written."""
    written = set(planned.graph.aliases.values())
    spans = []
    for k, leaf in enumerate(leaves):
        if arrays.framework(leaf) is None or k in planned.graph.scalars:
            continue
        low, high = _span(leaf)
        spans.append((k, low, high))
    return any(
        a != b and low < end and start < high for a, low, high in spans if a in written for b, start, end in spans
    )


def _span(leaf) -> tuple[int, int]:
    spec, address = arrays.describe(leaf), arrays.address_of(leaf)
    if 0 in spec.shape:
        return address, address
    size = spec.dtype.bytes
    offsets = [(n - 1) * s * size for n, s in zip(spec.shape, spec.strides)]
    return address + sum(o for o in offsets if o < 0), address + sum(o for o in offsets if o > 0) + size


def runner_of(program: Program) -> Runner:
    """What runs a program's calls: compiled, or the reference (``MLIRFUSE_DEFINITIONS=reference`` in the
    environment)."""
    if os.environ.get("MLIRFUSE_DEFINITIONS") != "reference":
        return Compiled(program)

    def run(leaves: list) -> list:
        planned, bindings = program._bind(list(leaves[: program.inputs]), None)
        return planned.collect(run_reference(planned, list(leaves), environment(planned, bindings, leaves)))

    return run
