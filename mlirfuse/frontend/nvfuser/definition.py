"""``FusionDefinition``: nvFuser's API for writing a fusion op by op.

A definition *records* the user's program (``recorder.py``). Executing it *replays* the record into a :class:`Graph` for
the call's arguments (``replay.py``): extents that must be equal share one symbol, extents of 0 and 1 are constants.
Definitions with equal content share one :class:`DefinitionProgram`, which holds these graphs and their compiled
programs.
"""

from __future__ import annotations

from mlirfuse.core.errors import MlirfuseError
from mlirfuse.dialects.fusion import to_text
from mlirfuse.frontend.nvfuser import printing
from mlirfuse.frontend.nvfuser.engine import LoweredDefinition, runner_of
from mlirfuse.frontend.nvfuser.inputs import flatten
from mlirfuse.frontend.nvfuser.ops.operators import Operators
from mlirfuse.frontend.nvfuser.profiling import PythonProfiler, profiled
from mlirfuse.frontend.nvfuser.program import DefinitionProgram
from mlirfuse.frontend.nvfuser.recorder import Recorder
from mlirfuse.frontend.nvfuser.validation import compare, reference
from mlirfuse.frontend.nvfuser.values import (
    DefinitionError,
    InputError,
    Scalar,
    Tensor,
    at_line,
    input_error,
    no_manual_schedule,
    user_line,
)
from mlirfuse.inspect.explain import Explanation
from mlirfuse.ir.graph import Graph
from mlirfuse.schedule.program import Schedules


class FusionDefinition(Recorder):
    """A fusion, written op by op::

        with FusionDefinition() as fd:
            x = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=DataType.Float)
            fd.add_output(fd.ops.relu(x))
        (y,) = fd.execute([a])

    A subclass may define ``definition(self)`` instead. ``FusionDefinition(fusion)`` writes into a :class:`Fusion` (the
    older API).

    ``schedule``: schedule parameters that override the heuristics' choice for some segments, as for
    :func:`mlirfuse.jit`: ``FusionDefinition(schedule={0: {"split": 4}})``. A call raises :class:`ScheduleError` where a
    schedule is invalid for its sizes.
    """

    def __init__(
        self,
        fusion: Fusion | int | None = None,
        max_length: int = 1 << 20,
        *_unused,
        schedule: Schedules = None,
        **_unused_options,
    ):
        super().__init__(max_length)
        self.schedules = schedule
        self._target = fusion if isinstance(fusion, Fusion) else None
        self._dropped = False  # `del fd._fusion`
        self._program: DefinitionProgram | None = None
        self._reproducers: list[str] | None = None

    # -- the with statement

    def __enter__(self) -> FusionDefinition:
        self._clear()
        self._defined = self._dropped = False
        self._program, self._reproducers = None, None
        self.__dict__.pop("fec", None)
        return self

    def __exit__(self, exception_type, exception, traceback) -> None:
        if exception_type is None:
            self._defined = True
            if self._target is not None:
                self._target._definition = self

    def definition(self) -> None:
        """For subclasses: writes the fusion on ``self``."""
        raise NotImplementedError("Fusion does not exist! Use `with FusionDefinition() as fd: ...` to define a fusion.")

    def __getattr__(self, name):
        if not name.startswith("_") and hasattr(Operators, name):
            raise AttributeError(
                f"FusionDefinition has no attribute '{name}': operations are in fd.ops, write fd.ops.{name}(...)"
            )
        raise AttributeError(f"FusionDefinition has no attribute '{name}'")

    # -- running

    def _finished(self) -> DefinitionProgram:
        cached = self.__dict__.get("fec")
        if isinstance(cached, Fusion) and cached._needed() is not self:
            return cached._needed()._finished()
        if self._program is None:
            if not self._defined:
                if type(self).definition is FusionDefinition.definition and not self.inputs and not self.outputs:
                    raise NotImplementedError(
                        "Fusion does not exist! Use `with FusionDefinition() as fd: ...` to define a fusion."
                    )
                if type(self).definition is not FusionDefinition.definition:
                    with self:
                        self.definition()
            if not self.outputs:
                raise NotImplementedError("Fusion is empty! It has no outputs: use fd.add_output")
            self._program = DefinitionProgram.of(self, runner_of)
        return self._program

    def execute(
        self,
        inputs,
        *,
        device=None,
        auto_schedule=True,
        override_user_schedule=False,
        capture_debug_output=False,
        print_repro=False,
        profile=False,
        save_repro_inputs=False,
        _enable_options=(),
        _disable_options=(),
    ) -> list:
        """Runs the fusion on ``inputs`` (tensors, arrays, numbers, lists of numbers for vectors) and returns its
        outputs in a list.

        ``device`` is where to run a fusion without tensor inputs. ``override_user_schedule`` ignores a subclass's
        ``schedule`` method, which cannot run here; otherwise there must be none. Options that choose among nvFuser's
        own schedulers have no effect.
        """
        program = self._finished()
        if type(self).schedule is not FusionDefinition.schedule and not override_user_schedule:
            code = type(self).schedule.__code__
            where = at_line((code.co_filename, code.co_firstlineno))
            raise DefinitionError(where + no_manual_schedule("schedule(self)"))
        if save_repro_inputs:
            self._reproducers = [printing.input_text(v) for v in inputs]
        if print_repro:
            print(self.repro_script_for(inputs))
        if not isinstance(inputs, (list, tuple)):
            raise InputError(f"inputs must be a list or a tuple, not {type(inputs).__name__}")
        try:
            if PythonProfiler.active:
                return profiled(self, inputs, lambda: program.execute(inputs, device))
            return program.execute(inputs, device)
        except (MlirfuseError, LookupError, TypeError, ValueError, ArithmeticError) as error:
            found = input_error(error)
            if found is error:
                raise
            raise found from error

    def validate(self, inputs, reference_outputs=None, **options) -> list:
        """Executes the fusion and compares its outputs with ``reference_outputs``, or with the op table's references in
        double precision.

        Tolerances follow from each output's dtype, the number of elements reduced into it, and the effect of the
        definition's intermediate roundings. Returns the outputs. Raises AssertionError.
        """
        program, device = self._finished(), options.get("device")
        arguments = program.arguments(flatten(inputs), device)  # the same seed for both
        if reference_outputs is None:
            reference_outputs = reference(program, arguments)
        outputs = program.runner()(arguments)
        compare(program, arguments, outputs, reference_outputs)
        return outputs

    # -- inspection

    def __repr__(self) -> str:
        return printing.text(self)

    def repro_script_for(self, inputs=None) -> str:
        """A script that defines this fusion and, given ``inputs``, runs it on inputs of the same dtypes and shapes."""
        return printing.repro(self, inputs)

    getReproString = repro_script_for

    def last_repro_script(self) -> str:
        """The script for the inputs of the last ``execute(inputs, save_repro_inputs=True)``."""
        assert self._reproducers is not None, (
            "fd.last_repro_script() cannot provide a repro because fd.execute(inputs, "
            "save_repro_inputs=True) was not executed!"
        )
        return printing.repro(self, self._reproducers)

    def manual_execute(self, *_arguments, **_options) -> None:
        """Raises DefinitionError with the alternative: schedules are parameters here, not programs on the IR."""
        raise DefinitionError(at_line(user_line()) + no_manual_schedule("fd.manual_execute"))

    def schedule(self) -> None:
        """As :meth:`manual_execute`."""
        raise DefinitionError(at_line(user_line()) + no_manual_schedule("fd.schedule"))

    @property
    def sched(self) -> None:
        """As :meth:`manual_execute`."""
        raise DefinitionError(at_line(user_line()) + no_manual_schedule("fd.sched"))

    @property
    def fusion(self) -> Fusion:
        """This definition as a ``Fusion``; the cached one that was passed to ``fd.fec``."""
        cached = self.__dict__.get("fec")
        if isinstance(cached, Fusion):
            return cached
        out = Fusion()
        out._definition = self
        return out

    @property
    def _fusion(self) -> Fusion:
        """:attr:`fusion`, until it is deleted, as scripts that execute by ``fd.fec`` do."""
        if self._dropped:
            raise AttributeError("the fusion of this definition was deleted")
        return self.fusion

    @_fusion.deleter
    def _fusion(self) -> None:
        self._dropped = True

    def graph(self, inputs=None) -> Graph:
        """The graph that a call with ``inputs`` compiles; without inputs, the one for extents other than 0 and 1."""
        program = self._finished()
        return program.planned_for(inputs).graph if inputs is not None else program.general().graph

    def fusion_ir(self) -> str:
        """The graph as MLIR, in the fusion dialect."""
        return to_text(self.graph())

    def lower(self, inputs, target: str | None = None):
        """A call with ``inputs`` at each level of lowering: ``fd.lower(inputs).as_text(level)`` prints it (fusion,
        grouped, segmented, …), ``.kernels`` counts its launches. ``target`` is "cpu", "cuda" or "cuda:sm_90"; the
        default follows the inputs."""
        return LoweredDefinition(self._finished(), inputs, target)

    def explain(self, inputs, target: str | None = None):
        """How a call with ``inputs`` is compiled and run: ``print`` it, or ``.save("fusion.html")`` to draw it.
        ``target`` as for :meth:`lower`."""
        return Explanation.of(self.lower(inputs, target))

    def audit(self, inputs, tune: bool = False):
        """Each kernel of an execution with ``inputs`` beside what the device could do, for people: ``print`` it, or
        ``.save("fusion.html")``. Executes the definition some twenty times; ``tune`` also measures other schedules.
        See :class:`mlirfuse.inspect.audit.Audit`."""
        from mlirfuse.inspect import launch_audit

        return launch_audit.audited(lambda: self.execute(inputs), inputs, tune)

    def id(self) -> int | None:
        """A number that definitions of equal content share; None before the first execution."""
        return None if self._program is None else self._program.id


class Fusion:
    """A fusion to be defined by ``with FusionDefinition(fusion) as fd`` and executed (the older API). Equality is by
    content."""

    def __init__(self):
        self._definition: FusionDefinition | None = None

    def inputs(self) -> list[Tensor | Scalar]:
        """The tensors and scalars that a call takes."""
        return list(self._needed().inputs)

    def outputs(self) -> list[Tensor]:
        """The tensors that a call returns, or writes into an input."""
        return [o.value for o in self._needed().outputs if not o.hidden]

    def _needed(self) -> FusionDefinition:
        if self._definition is None:
            raise NotImplementedError(
                "Fusion does not exist! Use `with FusionDefinition(fusion) as fd: ...` to define a fusion."
            )
        return self._definition

    def fusion(self) -> Fusion:
        """The fusion that a cache's executor runs: itself."""
        return self

    def execute(self, inputs, **options) -> list:
        """As :meth:`FusionDefinition.execute`."""
        return self._needed().execute(inputs, **options)

    def print_math(self) -> str:
        """Prints and returns the computation: the graph in the fusion dialect."""
        text = self._needed().fusion_ir()
        print(text)
        return text

    print_ir = print_math

    def print_kernel(self, inputs=None, target: str | None = None) -> str:
        """Prints and returns the kernels of a call with ``inputs``, whose sizes they depend on: in MLIR on a CPU, in
        PTX on a GPU. ``target`` as for :meth:`FusionDefinition.lower`."""
        if inputs is None:
            raise DefinitionError(
                "print_kernel: kernels depend on a call's sizes: pass inputs, fd.fusion.print_kernel(inputs)"
            )
        lowered = self._needed().lower(inputs, target)
        text = lowered.as_text("tiled" if "ptx" not in lowered.levels else "ptx")
        print(text)
        return text

    def __repr__(self) -> str:
        return repr(self._needed())

    def __hash__(self) -> int:
        return hash(printing.key(self._needed()))

    def __eq__(self, other) -> bool:
        return isinstance(other, Fusion) and printing.key(self._needed()) == printing.key(other._needed())
