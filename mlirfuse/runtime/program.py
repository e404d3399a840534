"""An executable segmented graph: its compiled programs, and the plan of a call.

One :class:`Program` belongs to a specialization; each :class:`CompiledProgram` of it is one choice of schedules,
compiled once. The plan evaluates the quantities that depend on the sizes of a call: output shapes, grid dimensions, the
workspace.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mlirfuse.analysis.axes import Axes
from mlirfuse.core import gc_control, threads
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Graph, Value
from mlirfuse.lowering.module import KernelModule
from mlirfuse.lowering.slots import Slots
from mlirfuse.runtime import (
    calibration,  # noqa: F401  schedules are chosen by it
    events,
    kernel_artifacts,
    load,
    tuned_schedules,
)
from mlirfuse.schedule.program import SegmentedProgram
from mlirfuse_runtime.sizes import inverse_of, place


@dataclass
class Plan:
    """The values for one set of sizes: ``ints`` for the host function, bytes of workspace."""

    ints: list[int]
    workspace: int


@dataclass(eq=False)
class CompiledProgram:
    """Compiled code for one choice of parameters. ``evaluate(env)`` returns the ``ints`` of a plan and the sizes of its
    buffers. ``scalars``: (argument of the graph, ints slot, "f" or "i") of each that is passed by value."""

    params: tuple
    module: KernelModule
    slots: Slots
    launch: int  # address of the host function
    keep: Any
    evaluate: Any = None
    offsets: list[tuple[int, int, int, int]] = field(
        default_factory=list
    )  # (ints slot, size index, first step, last step)
    scalars: list[tuple[int, int, str]] = field(default_factory=list)

    @property
    def kernels(self) -> int:
        """The number of kernels that a call launches."""
        return len(self.module.kernels)


def _key(params: tuple) -> tuple:
    """Return the key of a compiled program: parameters of two schedulers may be equal as tuples."""
    return params, tuple(map(type, params))


class Program(SegmentedProgram):
    """A :class:`SegmentedProgram` with its compiled programs, of which each call runs one. ``shared_kernels``: those
    that it shares with other programs."""

    def __init__(
        self,
        graph: Graph,
        target,
        hint: dict[str, int],
        axes: Axes | None = None,
        shared_kernels: load.SharedKernels | None = None,
    ):
        super().__init__(graph, target, hint, axes)
        self.shared_kernels = shared_kernels
        self.compiled_programs: dict[tuple, CompiledProgram] = {}  # by _key
        self.chosen: dict[tuple, tuple] = {}  # by call_key: parameters chosen by an earlier process
        self.tuned: dict[tuple, tuple | None] = {}  # by call_key: autotuned parameters
        self.tuned_before: bool | None = None  # whether earlier processes stored any; None: unknown
        self._lock = threads.lock()

    # ---- compiled programs

    def compiled_program(self, env: dict[str, int], alignments: dict[Value, int]) -> CompiledProgram:
        """Return the compiled program for these sizes, compiling it if it is new. ``alignments``: bytes, of each
        argument's address."""
        params = self.parameters(env, alignments)
        key = _key(params)
        found = self.compiled_programs.get(key)
        if found is None:
            with self._lock:
                found = self.compiled_programs.get(key)
                if found is None:
                    events.report(events.Scheduled(self, params, env))
                    start = time.perf_counter()
                    with gc_control.gc_disabled():
                        found = self._compile(params, env)
                    events.report(events.Compiled(self, found, env, time.perf_counter() - start))
                    self.compiled_programs[key] = found
        return found

    def known_program(self, env: dict[str, int], alignments: dict[Value, int]) -> CompiledProgram | None:
        """Return the compiled program for these sizes, None if it is not compiled."""
        return self.compiled_programs.get(_key(self.parameters(env, alignments)))

    def parameters(self, env: dict[str, int], alignments: dict[Value, int]) -> tuple:
        """Return for each segment its scheduler's parameters for these sizes. ``alignments``: bytes, of each argument's
        address."""
        if self.tuned or self.tuned_before is not False:
            found = self._tuned(env, alignments)
            if found is not None:
                return found
        chosen = self.chosen.get(self.call_key(env, alignments)) if self.chosen else None
        return self.target.parameters(self, env, alignments) if chosen is None else chosen

    def _tuned(self, env: dict[str, int], alignments: dict[Value, int]) -> tuple | None:
        """Return the autotuned parameters for these sizes, from this process or an earlier one."""
        if self.tuned_before is None:
            self.tuned_before = self.target.name == "cuda" and tuned_schedules.any_stored()
            if not self.tuned and not self.tuned_before:
                return None
        alignments = self.aligned(alignments, env)
        key = self.call_key(env, alignments)
        if key not in self.tuned:
            self.tuned[key] = tuned_schedules.load(self, env, alignments)
        return self.tuned[key]

    def start_compiling(
        self, env: dict[str, int], alignments: dict[Value, int], submit: load.Submit, entry: str | None = None
    ) -> Callable[[], None] | None:
        """Start to compile the program for these sizes, and return a function that finishes it; None where it is
        compiled. ``submit``: see :func:`mlirfuse.runtime.load.start_loading`. ``entry``: the artifact on disk
        (:mod:`mlirfuse.runtime.kernel_artifacts`) that an earlier process may have stored."""
        entry = None if self.tuned or tuned_schedules.any_stored() else entry
        found = kernel_artifacts.load(entry, self.graph) if entry is not None else None
        if found is not None:
            self.chosen[self.call_key(env, alignments)] = found.params
        params = self.parameters(env, alignments)
        key = _key(params)
        if key in self.compiled_programs:
            return None
        events.report(events.Scheduled(self, params, env))
        start = time.perf_counter()
        if found is None:
            found = self._emit(params)
            if entry is not None:
                kernel_artifacts.store(entry, self.graph, found)
        finish = self._start_loading(found, submit)
        spent = time.perf_counter() - start

        def finished() -> None:
            start = time.perf_counter()
            found = self.compiled_programs.setdefault(key, finish())
            events.report(events.Compiled(self, found, env, spent + time.perf_counter() - start))

        return finished

    def _compile(self, params: tuple, env: dict[str, int]) -> CompiledProgram:
        return self._start_loading(self._emit(params))()

    def _emit(self, params: tuple) -> kernel_artifacts.KernelArtifact:
        """Generate the kernels for these parameters."""
        slots = self.slots()
        return kernel_artifacts.KernelArtifact(params, self.target.write(self, params, slots), slots)

    def _start_loading_kernels(
        self, artifact: kernel_artifacts.KernelArtifact, submit: load.Submit | None
    ) -> Callable[[], load.Loaded]:
        """Start to load the kernels: see :func:`mlirfuse.runtime.load.start_loading`."""
        return load.start_loading(self.target, artifact.module, artifact.slots, self.shared_kernels, submit)

    def _start_loading(
        self, artifact: kernel_artifacts.KernelArtifact, submit: load.Submit | None = None
    ) -> Callable[[], CompiledProgram]:
        """Start to load the program; the returned function finishes it."""
        loaded = self._start_loading_kernels(artifact, submit)

        def finish() -> CompiledProgram:
            compiled_program = CompiledProgram(*artifact, *loaded())
            self.add_plan(compiled_program)
            return compiled_program

        return finish

    def add_plan(self, compiled_program: CompiledProgram) -> None:
        """Compile the expressions of the plan to one Python function of the sizes."""
        slots = compiled_program.slots
        exprs: list[str] = []
        for kind, what in slots.ints:
            if kind in ("handle", "number"):
                what = slots.functions.get(what, 0) if kind == "handle" else what[-1]
            reported = kind in ("size", "handle", "number")
            exprs.append(str(what) if reported else f"_inverse_of({what})" if kind == "inverse" else "0")
        nbytes = [str(slots.temporary_bytes[k]) for k in slots.temporaries]
        sizes = [key[1] for key in slots.ints if key[0] in ("size", "inverse")] + [
            slots.temporary_bytes[k] for k in slots.temporaries
        ]
        symbols = sz.symbols_of(sizes)
        compiled_program.evaluate = sz.function(
            f"([{', '.join(exprs)}], [{', '.join(nbytes)}])", symbols, _inverse_of=inverse_of
        )
        at = {v: k for k, v in enumerate(self.graph.args)}
        compiled_program.scalars = [
            (at[what], slot, "f" if what.dtype.is_float else "i")
            for (kind, what), slot in slots.ints.items()
            if kind == "scalar"
        ]
        spans = self.lifetimes(slots)
        compiled_program.offsets = [
            (slot, at, *spans.get(key, (0, len(self.steps))))
            for at, (key, slot) in enumerate(slots.temporaries.items())
        ]

    def plan(self, compiled_program: CompiledProgram, env: dict[str, int]) -> Plan:
        """Return the plan of a call with these sizes."""
        ints, nbytes = compiled_program.evaluate(env)
        if not compiled_program.offsets:
            return Plan(ints, 0)
        spans = [(first, last) for _, _, first, last in compiled_program.offsets]
        offsets, workspace = place([nbytes[at] for _, at, _, _ in compiled_program.offsets], spans)
        for (slot, *_), offset in zip(compiled_program.offsets, offsets):
            ints[slot] = offset
        return Plan(ints, workspace)
