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
from mlirfuse.lowering.slots import Slots, inverse_of
from mlirfuse.runtime import (
    calibration,  # noqa: F401  schedules are chosen by it
    events,
    kernel_artifacts,
    load,
    tuned,
)
from mlirfuse.schedule.program import SegmentedProgram


@dataclass
class Plan:
    """The values for one set of sizes: ``ints`` for the host function, bytes of workspace."""

    ints: list[int]
    workspace: int


@dataclass(eq=False)
class CompiledProgram:
    """Compiled code for one choice of parameters. ``evaluate(env)`` returns the ``ints`` of a plan and the sizes of its
    buffers."""

    params: tuple
    module: KernelModule
    slots: Slots
    launch: int  # address of the host function
    keep: Any
    evaluate: Any = None
    offsets: list[tuple[int, int, int, int]] = field(
        default_factory=list
    )  # (ints slot, size index, first step, last step)

    @property
    def kernels(self) -> int:
        """The number of kernels that a call launches."""
        return len(self.module.kernels)


def _key(params: tuple) -> tuple:
    """Return the key of a compiled program: parameters of two schedulers may be equal as tuples."""
    return params, tuple(map(type, params))


class Program(SegmentedProgram):
    """A :class:`SegmentedProgram` with its compiled programs, of which each call runs one. ``known``: the kernels
    shared with other programs."""

    def __init__(
        self, graph: Graph, target, hint: dict[str, int], axes: Axes | None = None, known: load.Known | None = None
    ):
        super().__init__(graph, target, hint, axes)
        self.known_kernels = known
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

    def known(self, env: dict[str, int], alignments: dict[Value, int]) -> CompiledProgram | None:
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
            self.tuned_before = self.target.name == "cuda" and tuned.any_kept()
            if not self.tuned and not self.tuned_before:
                return None
        alignments = self.aligned(alignments)
        key = self.call_key(env, alignments)
        if key not in self.tuned:
            self.tuned[key] = tuned.load(self, env, alignments)
        return self.tuned[key]

    def begun(
        self, env: dict[str, int], alignments: dict[Value, int], elsewhere: load.Elsewhere, entry: str | None = None
    ) -> Callable[[], None] | None:
        """As :meth:`compiled_program`, in two steps: see :func:`mlirfuse.runtime.load.begun`. None where it is
        compiled. ``entry``: the artifact on disk (:mod:`mlirfuse.runtime.kernel_artifacts`) that an earlier process may
        have stored."""
        entry = None if self.tuned or tuned.any_kept() else entry
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
            found = self._written(params)
            if entry is not None:
                kernel_artifacts.store(entry, self.graph, found)
        finish = self._begun(found, elsewhere)
        spent = time.perf_counter() - start

        def finished() -> None:
            start = time.perf_counter()
            found = self.compiled_programs.setdefault(key, finish())
            events.report(events.Compiled(self, found, env, spent + time.perf_counter() - start))

        return finished

    def _compile(self, params: tuple, env: dict[str, int]) -> CompiledProgram:
        return self._begun(self._written(params))()

    def _written(self, params: tuple) -> kernel_artifacts.KernelArtifact:
        slots = self.slots()
        return kernel_artifacts.KernelArtifact(params, self.target.write(self, params, slots), slots)

    def _loading(
        self, text: kernel_artifacts.KernelArtifact, elsewhere: load.Elsewhere | None
    ) -> Callable[[], load.Loaded]:
        return load.begun(self.target, text.module, text.slots, self.known_kernels, elsewhere)

    def _begun(
        self, text: kernel_artifacts.KernelArtifact, elsewhere: load.Elsewhere | None = None
    ) -> Callable[[], CompiledProgram]:
        loaded = self._loading(text, elsewhere)

        def finish() -> CompiledProgram:
            compiled_program = CompiledProgram(*text, *loaded())
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
        spans = self.lifetimes(slots)
        compiled_program.offsets = [
            (slot, at, *spans.get(key, (0, len(self.steps))))
            for at, (key, slot) in enumerate(slots.temporaries.items())
        ]

    def plan(self, compiled_program: CompiledProgram, env: dict[str, int]) -> Plan:
        """Return the plan of a call with these sizes."""
        ints, nbytes = compiled_program.evaluate(env)
        workspace = 0
        placed: list[tuple[int, int, int, int]] = []  # (offset, end, first, last)
        for slot, at, first, last in compiled_program.offsets:
            size = (nbytes[at] + 255) // 256 * 256
            offset = 0
            for start, end, f, l in sorted(placed):
                if f <= last and first <= l and start < offset + size and offset < end:
                    offset = end
            placed.append((offset, offset + size, first, last))
            ints[slot] = offset
            workspace = max(workspace, offset + size)
        return Plan(ints, workspace)
