"""The IR of a call at each level: ``jit(f).lower(*args)`` returns a :class:`Lowered`, with a text for each level.

=============  ======================================================================================================
``fusion``     the function as it was traced: tensor operations, symbolic sizes
``grouped``    composite ops expanded; ops that are compiled together are in ``fusion.group`` regions
``segmented``  groups cut into ``fusion.segment`` regions, one kernel each, with scheduler and reason of the cut
``linalg``     each segment as ``linalg`` on tensors: executable with MLIR's own passes, for verification
``tiled``      the kernels that each segment's scheduler generates for these sizes: loops or threads, vectors,
reductions
``gpu``        the kernels' ``gpu.module`` with its target, loops as branches (CUDA targets)
``nvvm``       the same in the LLVM and NVVM dialects (CUDA targets)
``ptx``        the input of the driver (CUDA targets)
``host``       the function that a call runs: it launches the kernels in order
``llvm``       LLVM IR of kernels and host function (CPU)
=============  ======================================================================================================
"""

from __future__ import annotations

import numpy as np

from mlirfuse.analysis import traffic
from mlirfuse.core.errors import CompileError, ScheduleError, UnsupportedError
from mlirfuse.inspect.launches import is_of, kernels_of, launch_of, launched
from mlirfuse.ir.graph import Graph, Segment
from mlirfuse.lowering import llvm, ptx
from mlirfuse.passes import pipelines
from mlirfuse.passes.base import IR, run_pipeline
from mlirfuse.runtime import arrays, load
from mlirfuse.runtime.executor import Executor, NoElements
from mlirfuse.runtime.specializations import Specialization
from mlirfuse.schedule import serialize
from mlirfuse.schedule.program import undecided
from mlirfuse.schedule.targets import Target

TENSOR_LEVELS = ("fusion", "grouped", "segmented", "linalg")
CPU_LEVELS = (*TENSOR_LEVELS, "tiled", "host", "llvm")
CUDA_LEVELS = (*TENSOR_LEVELS, "tiled", "gpu", "nvvm", "ptx", "host")
LEVELS = (*TENSOR_LEVELS, "tiled", "gpu", "nvvm", "ptx", "host", "llvm")
BETWEEN = "// -----\n"  # between the programs of a function that extern ops separate


class Lowered:
    """A call being lowered: a specialization that a front end created, and the arrays and numbers of its graph's
    arguments. Each level is computed on demand."""

    def __init__(self, name: str, kind: Specialization, arguments: list, env: dict[str, int], target: Target):
        self._name, self._specialization, self._arguments, self._env, self._target = name, kind, arguments, env, target
        self._texts: dict[tuple[str, bool], str] = {}
        self._graph: Graph  # computed with the tensor levels
        self._above: dict[str, Graph] = {}  # the graphs of earlier levels, by name
        self._programs: list[_ProgramCode] | None = None

    def __repr__(self) -> str:
        return f"<{self._name} lowered for {self._target.name}; levels: {', '.join(self.levels)}>"

    @property
    def levels(self) -> tuple[str, ...]:
        """The levels of this target, from the function down."""
        below = getattr(self._target, "levels_below", None)  # of the lowering through linalg
        return (*TENSOR_LEVELS, *below) if below else CPU_LEVELS if self._target.name == "cpu" else CUDA_LEVELS

    @property
    def kernels(self) -> int:
        """The number of kernels that the call launches."""
        return sum(len(part.kernels) for part in self._code())

    def as_text(self, level: str = "segmented", locations: bool = False) -> str:
        """Return the program at ``level``; with ``locations``, the ops of the tensor levels carry the user's lines.

        The tensor levels, ``tiled``, ``gpu`` and ``nvvm`` are MLIR that parses. Where extern ops split the function
        into several programs, the levels below have one module each, with ``// -----`` between; ``host`` begins with
        the host code around their launches. Raises ValueError for an unknown level.
        """
        if level not in self.levels:
            there = f"this target's levels are {', '.join(self.levels)}"
            if level not in LEVELS:
                raise ValueError(f"no level '{level}'; {there}")
            only = "a CPU has" if self._target.name == "cpu" else "an NVIDIA GPU has"
            raise ValueError(f"level '{level}' is not one that {only}; {there}")
        if level in TENSOR_LEVELS:
            if (level, locations) not in self._texts:
                self._texts[level, locations] = self._tensor_text(level, locations)
            return self._texts[level, locations]
        key = (level, False)
        if key not in self._texts:
            texts = [part.text(level) for part in self._code()]
            if level == "host" and self._executor().host is not None:  # the host code between the launches
                texts.insert(0, run_pipeline([self._graph.copy()], "convert-fusion-to-host").as_text())
            self._texts[key] = BETWEEN.join(texts)
        return self._texts[key]

    def load(self) -> int:
        """Compile and load the call's code; return the number of kernels that it launches."""
        self._tensor_levels()
        executor = self._executor()
        try:
            executor.check(self._env)
            if executor.host is None:
                executor.compiled_program(self._arguments, list(range(len(self._arguments))), self._env)
            return self.kernels
        except NoElements:
            return 0  # nothing to launch

    # ---- for explanations and dumps

    @property
    def name(self) -> str:
        """The function's name."""
        return self._name

    @property
    def target(self):
        """The target of the code: see :mod:`mlirfuse.schedule.targets`."""
        return self._target

    @property
    def env(self) -> dict[str, int]:
        """The values of the size symbols in this call."""
        return self._env

    @property
    def arguments(self) -> list:
        """The arrays and numbers of the graph's arguments."""
        return self._arguments

    def segmented(self) -> Graph:
        """Return the graph at the segmented level, with the schedules for this call's sizes."""
        self._tensor_levels()
        return self._graph

    def parts(self) -> list[_ProgramCode]:
        """Return the code of the programs between extern ops. Raises where a segment cannot be compiled, or a tensor
        has no elements."""
        return self._code()

    # ---- the tensor levels

    def _tensor_levels(self) -> None:
        if self._above:
            return
        kind = self._specialization
        graph = kind.graph
        above = {"fusion": graph.copy()}

        def after(step, ir, seconds):
            if step.name == "fusion-group":
                above["grouped"] = graph.copy()

        self._graph = pipelines.lower_to_segments(graph, self._target.properties, after, kind.schedules, kind.max_args)
        self._above = above

    def _tensor_text(self, level: str, locations: bool) -> str:
        self._tensor_levels()
        if level == "linalg":
            return run_pipeline([self._graph], "convert-fusion-to-linalg").as_text(locations)
        if level == "segmented":
            return self._segmented_text(locations)
        return IR([self._above[level]]).as_text(locations)

    def _segmented_text(self, locations: bool) -> str:
        """Return the text with the schedules for these sizes on the segments. The graph itself does not change: its
        executor chooses for any sizes."""
        with undecided(self._graph):
            try:
                for program, params, segments in self._choices():
                    program.write_schedules(params, segments)
                    for step in program.steps:
                        found = traffic.of_step(step, self._env)
                        segments.get(step.segment, step.segment).params = traffic.serialized(*found)
            except ScheduleError:
                raise
            except (CompileError, UnsupportedError, NoElements):
                pass  # no scheduler takes it: reported for a lower level
            return IR([self._graph]).as_text(locations)

    # ---- lower levels

    def _executor(self) -> Executor:
        if self._specialization.executor is None:
            self._specialization.executor = Executor(self._graph, self._target, self._env)
        return self._specialization.executor

    def _choices(self) -> list[tuple]:
        """Return (program, parameters, its segments in this graph) of each program between extern ops, in order."""
        executor = self._executor()
        executor.check(self._env)
        aligned = self._alignments()
        out = []
        for program, segments in executor.programs(self._env):
            known = {v: aligned.get(v, 256) for v in program.graph.args}
            out.append((program, program.parameters(self._env, known), segments))
        return out

    def _alignments(self) -> dict:
        """Return the alignment, in bytes, of each argument's address. A NumPy array stands for a CUDA array with the
        same layout in an aligned allocation."""
        found = {}
        for value, array in zip(self._graph.args, self._arguments):
            if arrays.framework(array) is None:
                continue
            found[value] = arrays.spec_of(array).align
            if self._target.name != "cpu" and isinstance(array, np.ndarray):
                found[value] = arrays.alignment(array.ctypes.data - _owner(array).ctypes.data)
        return found

    def _code(self) -> list[_ProgramCode]:
        if self._programs is None:
            self._tensor_levels()
            try:
                choices = self._choices()
            except NoElements:
                raise UnsupportedError("a tensor of this call has no elements: no kernel is generated for it") from None
            self._programs = [_ProgramCode(self._target, *choice) for choice in choices]
        return self._programs


class _ProgramCode:
    """The code of one program for one choice of parameters, not loaded. ``segments``: the segments of the whole graph
    that the program's represent here, as equal regions share a program."""

    def __init__(self, target, program, params, segments):
        self.target, self.program, self.params, self.segments = target, program, params, segments
        slots = program.slots()
        self.module = target.write(program, params, slots)
        self.kernels = self.module.kernels
        self.heads = _heads(program, params, self.kernels)

    def steps(self) -> list[tuple]:
        """Return (segment, step, its parameters by name, its kernels) for each segment that launches, in order."""
        return [
            (
                self.segments.get(step.segment, step.segment),
                step,
                serialize.flat(schedule),
                kernels_of(step, self.kernels),
            )
            for step, schedule in zip(self.program.steps, self.target.schedules(self.program, self.params))
        ]

    def within(self, step) -> int | None:
        """Return the number of the segment whose launch includes ``step``; None if it has its own, or none."""
        kernel = launch_of(step, self.kernels)
        first = next((s.segment for s in self.program.steps if kernel and is_of(s, kernel.name)), None)
        return first and self.segments.get(first, first).number

    def text(self, level: str) -> str:
        if level == "host":
            declared = (
                "".join(f"func.func private @{k.name}(i64, i64, !llvm.ptr)\n" for k in self.kernels)
                if self.target.name == "cpu"
                else ""
            )
            return f"module {{\n{declared}{self.module.host}\n}}\n"
        if level == "tiled":
            return self.heads + self.module.tiled()
        if level == "llvm":
            return llvm.to_llvm_ir(self.module.text())
        chip = self.target.properties.chip
        if level == "ptx":
            return load.ptx_of_kernels(self.module, chip) if self.kernels else "// no kernel: every result is a view\n"
        return _as_text((ptx.to_gpu if level == "gpu" else ptx.to_nvvm)(self.module.tiled(), chip))


def _heads(program, params, kernels) -> str:
    """Return comments that map kernels to segments and describe their launches."""
    lines = []
    for step, schedule in zip(program.steps, program.target.schedules(program, params)):
        segment: Segment = step.segment
        given = ", ".join(f"{k} = {v}" for k, v in serialize.flat(schedule).items())
        lines.append(
            f"// segment {segment.number}: {segment.scheduler}"
            + (f" {{{given}}}" if given else "")
            + (f": {segment.why}" if segment.why else "")
        )
        lines += [f"//   @{kernel.name}: {launched(kernel)}" for kernel in kernels_of(step, kernels)]
        with_others = launch_of(step, kernels)
        lines += [f"//   in the launch of @{with_others.name}"] if with_others else []
    return "".join(line + "\n" for line in lines)


def _as_text(module, locations: bool = False) -> str:
    return module.operation.get_asm(enable_debug_info=locations, use_local_scope=locations).rstrip("\n") + "\n"


def _owner(array: np.ndarray) -> np.ndarray:
    """Return the array whose memory a view shares."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array
