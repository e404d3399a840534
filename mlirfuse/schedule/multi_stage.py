"""Split a segment into stages (:mod:`mlirfuse.analysis.stages`), each scheduled independently."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

from mlirfuse.analysis import stages
from mlirfuse.analysis.phases import Analysis, late_outputs
from mlirfuse.core.errors import CompileError, ScheduleError
from mlirfuse.schedule import serialize
from mlirfuse.schedule.scheduler import EmittedKernels, KernelSpec, Scheduler, Schedulers, SizedCall, require
from mlirfuse.schedule.tiling import Tiling

M = TypeVar("M")


class Stages(NamedTuple):
    """The schedule of each stage. ``form`` names the way the segment is split: "phases", or another key of
    :attr:`MultiStage.forms`."""

    schedules: tuple[Tiling, ...]
    form: str = "phases"


class MultiStage(Scheduler[M]):
    """Schedules the stages of a segment one by one. ``phases`` groups the reductions of a segment into stages;
    ``forms`` names further ways to split a segment besides "phases". The other schedulers decide when a split into
    phases is faster (:meth:`Scheduler.better_in_stages`)."""

    name = "multi_stage"
    own = Stages

    def __init__(
        self,
        schedulers: Schedulers[M],
        phases: Callable[[Analysis], list[list]],
        forms: Mapping[str, Callable[[Analysis], list[Analysis]]] | None = None,
    ):
        self.schedulers, self.phases = schedulers, phases
        self.forms = {"phases": lambda analysis: stages.by_phases(analysis, phases), **(forms or {})}

    def takes(self, analysis: Analysis) -> bool:
        if analysis.scans:
            return bool(analysis.phases)
        return analysis.reduces and (len(analysis.once(self.phases)) > 1 or bool(late_outputs(analysis)[0]))

    def candidates(self, analysis: Analysis, call: SizedCall) -> Iterator[Tiling]:
        return iter(())

    def params(self, form: str, schedules: Iterable[Tiling]) -> Tiling:
        """The parameters with these schedules of the stages."""
        return Tiling(self.name, own=Stages(tuple(schedules), form))

    def in_form(self, form: str, analysis: Analysis, call: SizedCall) -> Tiling:
        """The parameters for this split, with each stage's schedule chosen independently."""
        return self.params(form, [self.schedulers.choose(stage, call) for stage in analysis.once(self.forms[form])])

    def by_phases(self, analysis: Analysis, call: SizedCall) -> Tiling:
        """The parameters with one stage per phase of reductions, each chosen independently."""
        return self.in_form("phases", analysis, call)

    def emit(self, spec: KernelSpec) -> EmittedKernels:
        schedules, form = spec.params.own
        for at, (stage, given) in enumerate(zip(spec.analysis.once(self.forms[form]), schedules, strict=True)):
            yield from self.schedulers.emit(spec._replace(name=f"{spec.name}_{at}", analysis=stage, params=given))

    def check(self, analysis: Analysis, params: Tiling, call: SizedCall) -> None:
        stage_analyses = self._stages(analysis, params.own.form)
        for at, (stage, given) in enumerate(zip(stage_analyses, params.own.schedules, strict=True)):
            with _errors_of_stage(at):
                self.schedulers.check(stage, given, call)

    def attributes(self, params: Tiling) -> serialize.Attributes:
        return {"form": params.own.form, "stages": [self.schedulers.attributes(p) for p in params.own.schedules]}

    def read(self, given: serialize.Attributes, analysis: Analysis, call: SizedCall) -> Tiling:
        for key in given:
            require(key in ("form", "stages"), f"no parameter '{key}': the parameters are form, stages")
        chosen = next(self.candidates(analysis, call), None)
        form = given.get("form", chosen.own.form if chosen else "phases")
        stage_analyses = self._stages(analysis, form)
        count = len(stage_analyses)
        schedules = given.get("stages", [{}] * count)
        complete = isinstance(schedules, (list, tuple)) and len(schedules) == count
        require(complete, f"stages: this segment has {count} stages; give a list of {count} schedules")
        found = []
        for at, (stage, fields) in enumerate(zip(stage_analyses, schedules)):
            with _errors_of_stage(at):
                found.append(self.schedulers.read(fields, stage, call))
        return self.params(form, found)

    def _stages(self, analysis: Analysis, form: str) -> list[Analysis]:
        forms = "'together' or 'apart'" if analysis.finishing else "'phases'"
        known = form in self.forms and (form == "phases") is not bool(analysis.finishing)
        require(known, f"form = '{form}': this segment's stages are {forms}")
        return analysis.once(self.forms[form])


@contextlib.contextmanager
def _errors_of_stage(at: int) -> Iterator[None]:
    """Prefix errors with the stage that they concern."""
    try:
        yield
    except CompileError as error:
        raise ScheduleError(f"stage {at}: {error}") from error
