"""Split a segment into stages (:mod:`mlirfuse.analysis.stages`), each scheduled independently."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from mlirfuse.analysis import stages
from mlirfuse.analysis.phases import Analysis, late_outputs
from mlirfuse.core.errors import ScheduleError
from mlirfuse.lowering.slots import Slots
from mlirfuse.schedule import serialize
from mlirfuse.schedule.scheduler import (
    EmittedKernels,
    MultiStageScheduler,
    Schedulers,
    SizedCall,
    require,
)

M = TypeVar("M")


class Params(NamedTuple):
    """The schedule of each stage. ``form`` names the way the segment is split: "phases", or another key of
    :attr:`MultiStage.forms`."""

    stages: tuple[Any, ...]
    form: str = "phases"


class MultiStage(MultiStageScheduler[Params, M]):
    """Schedules the stages of a segment one by one. ``phases`` groups the reductions of a segment into stages;
    ``forms`` names further ways to split a segment besides "phases". The other schedulers decide when a split into
    phases is faster (:meth:`Scheduler.better_in_stages`)."""

    name = "multi_stage"
    parameters = Params

    def __init__(
        self,
        schedulers: Schedulers[M],
        phases: Callable[[Analysis], list[list]],
        forms: Mapping[str, Callable[[Analysis], list[Analysis]]] | None = None,
    ):
        self.schedulers, self.phases = schedulers, phases
        self.forms = {"phases": self._by_phases, **(forms or {})}

    def _by_phases(self, analysis: Analysis) -> list[Analysis]:
        return stages.by_phases(analysis, self.phases)

    def takes(self, analysis: Analysis) -> bool:
        if analysis.scans:
            return bool(analysis.phases)
        return analysis.reduces and (len(analysis.once(self.phases)) > 1 or bool(late_outputs(analysis)[0]))

    def candidates(self, analysis: Analysis, call: SizedCall) -> Iterator[Params]:
        return iter(())

    def in_form(self, form: str, analysis: Analysis, call: SizedCall) -> Params:
        """The parameters for this split, with each stage's schedule chosen independently."""
        stage_analyses = analysis.once(self.forms[form])
        return Params(tuple([self.schedulers.choose(stage, call) for stage in stage_analyses]), form)

    def by_phases(self, analysis: Analysis, call: SizedCall) -> Params:
        """The parameters with one stage per phase of reductions."""
        return self.in_form("phases", analysis, call)

    def emit(self, name: str, analysis: Analysis, slots: Slots, params: Params, properties: M) -> EmittedKernels:
        for at, (stage, given) in enumerate(zip(analysis.once(self.forms[params.form]), params.stages, strict=True)):
            yield from self.schedulers.emit(f"{name}_{at}", stage, slots, given, properties)

    def check(self, analysis: Analysis, params: Params, call: SizedCall) -> None:
        for at, (stage, given) in enumerate(zip(self._stages(analysis, params.form), params.stages, strict=True)):
            with _errors_of_stage(at):
                self.schedulers.check(stage, given, call)

    def attributes(self, params: Params) -> serialize.Attributes:
        return {"form": params.form, "stages": [self.schedulers.attributes(p) for p in params.stages]}

    def read(self, given: serialize.Attributes, analysis: Analysis, call: SizedCall) -> Params:
        for key in given:
            require(key in ("form", "stages"), f"no parameter '{key}': the parameters are form, stages")
        form = given.get("form", "together" if analysis.finishing else "phases")
        stage_analyses = self._stages(analysis, form)
        stage_schedules = given.get("stages", [{}] * len(stage_analyses))
        complete = isinstance(stage_schedules, (list, tuple)) and len(stage_schedules) == len(stage_analyses)
        require(
            complete,
            f"stages: this segment has {len(stage_analyses)} stages; give a list of {len(stage_analyses)} schedules",
        )
        found = []
        for at, (stage, fields) in enumerate(zip(stage_analyses, stage_schedules)):
            with _errors_of_stage(at):
                found.append(self.schedulers.read(fields, stage, call))
        return Params(tuple(found), form)

    def _stages(self, analysis: Analysis, form: str) -> list[Analysis]:
        require(
            form in self.forms and (form == "phases") is not bool(analysis.finishing),
            f"form = '{form}': this segment's stages are "
            + ("'phases'" if not analysis.finishing else "'together' or 'apart'"),
        )
        return analysis.once(self.forms[form])


@contextlib.contextmanager
def _errors_of_stage(at: int) -> Iterator[None]:
    """Prefix schedule errors with the stage that they concern."""
    try:
        yield
    except ScheduleError as error:
        raise ScheduleError(f"stage {at}: {error}") from error
