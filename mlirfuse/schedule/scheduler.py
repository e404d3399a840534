"""What a scheduler is, and the schedulers of a target together: which takes a segment, with which parameters.

Adding one is a file with a subclass of :class:`Scheduler`, and a line in the list of its target
(``schedule/cpu/choice.py``, ``schedule/gpu/choice.py``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from mlirfuse.analysis.phases import Analysis
from mlirfuse.core import old_names
from mlirfuse.core.errors import CompileError, ScheduleError
from mlirfuse.ir.graph import Value
from mlirfuse.lowering.slots import Slots
from mlirfuse.schedule import serialize

P = TypeVar("P", bound=tuple[Any, ...])
M = TypeVar("M")  # Host or Machine
Sizes = dict[str, int]  # of a call, by symbol
Alignments = dict[Value, int]  # bytes, of tensors' addresses; what is not there is aligned as allocations are
Params = Any  # a scheduler's own named tuple
EmittedKernels = Iterator[tuple[Analysis, list[Any]]]  # the kernels of a segment, or of each of its stages


class Scheduler(ABC, Generic[P, M]):
    """One way to make kernels of a segment.

    ``parameters`` is the class of what decides their code: a named tuple of bools, ints, strings, tuples of those and
    named tuples, since it is hashed and compared whenever a call has new sizes. Two calls with the same parameters run
    the same code.
    """

    name: ClassVar[str]
    parameters: ClassVar[type]

    @abstractmethod
    def takes(self, analysis: Analysis) -> bool:
        """Whether it can write the kernels of this segment, for some sizes at least."""

    @abstractmethod
    def candidates(self, analysis: Analysis, env: Sizes, alignments: Alignments, properties: M) -> Iterator[P]:
        """Parameters worth measuring for these sizes, all different, the model's choice first; none where another
        scheduler shall take it."""

    def together(
        self, analyses: Sequence[Analysis], env: Sizes, alignments: Alignments, properties: M
    ) -> list[P] | None:
        """Parameters of segments that compute the same of tensors of other sizes, so that few of their kernels differ
        and one launch runs those that do not; None: as each is chosen by itself."""
        return None

    def better_in_stages(self, analysis: Analysis, params: P, env: Sizes, properties: M) -> bool | None:
        """Whether stages (:mod:`mlirfuse.schedule.multi_stage`) take less time than ``params``; None: they are not
        worth trying."""
        return None

    @abstractmethod
    def emit(self, name: str, analysis: Analysis, slots: Slots, params: P, properties: M) -> EmittedKernels:
        """The kernels, whose names begin with ``name``, each with the part of the segment that it computes."""

    @abstractmethod
    def check(self, analysis: Analysis, params: P, env: Sizes, alignments: Alignments, properties: M) -> None:
        """Raises :class:`ScheduleError` with the constraint that parameters violate for these sizes: kernels would be
        wrong, or could not be launched."""

    def attributes(self, params: P) -> serialize.Attributes:
        """Every parameter as an attribute."""
        return serialize.attributes(params)

    def read(
        self, given: serialize.Attributes, analysis: Analysis, env: Sizes, alignments: Alignments, properties: M
    ) -> P:
        """The parameters with these attributes, those that are not given as the model chooses them for these sizes.
        Raises :class:`ScheduleError`."""
        chosen = next(self.candidates(analysis, env, alignments, properties), None)
        return serialize.read(self.parameters, given, chosen)


def require(holds: bool, constraint: str) -> None:
    """Raises :class:`ScheduleError` with the constraint where it does not hold."""
    if not holds:
        raise ScheduleError(constraint)


def power_of_two(n: int) -> bool:
    return n > 0 and n & (n - 1) == 0


class MultiStageScheduler(Scheduler[P, M]):
    """One that divides a segment into stages, for which other schedulers write kernels."""

    @abstractmethod
    def by_phases(self, analysis: Analysis, env: Sizes, alignments: Alignments, properties: M) -> P:
        """A stage for each phase of reductions, each as it is chosen by itself."""


class Schedulers(Generic[M]):
    """The schedulers of a target, in the order in which they are asked, first ``multi_stage`` of them all: where
    another says that stages are better than what it has chosen, or none has candidates, those are taken."""

    def __init__(
        self,
        multi_stage: Callable[[Schedulers[M]], MultiStageScheduler[Any, M]],
        schedulers: Sequence[Scheduler[Any, M]],
    ):
        self.multi_stage = multi_stage(self)
        self.all = (self.multi_stage, *schedulers)
        self._of = {s.parameters: s for s in self.all}
        self._named = {s.name: s for s in self.all}

    def of(self, params: Params) -> Scheduler[Any, M]:
        """The scheduler that parameters belong to."""
        return self._of[type(params)]

    def choose(self, analysis: Analysis, env: Sizes, alignments: Alignments, properties: M) -> Params:
        """The model's choice for these sizes: the first of :meth:`candidates`. Raises :class:`CompileError` where no
        scheduler takes the segment."""
        for scheduler in analysis.once(self._takers):
            for params in scheduler.candidates(analysis, env, alignments, properties):
                if scheduler.better_in_stages(analysis, params, env, properties):
                    return self.multi_stage.by_phases(analysis, env, alignments, properties)
                return params
        if not self.multi_stage.takes(analysis):
            raise CompileError("no scheduler takes this segment")
        return self.multi_stage.by_phases(analysis, env, alignments, properties)

    def choose_together(
        self, analyses: Sequence[Analysis], env: Sizes, alignments: Alignments, properties: M
    ) -> list[Params]:
        """As :meth:`choose`, for segments that one launch may run: see :meth:`Scheduler.together`."""
        takers = {analysis.once(self._takers)[0] for analysis in analyses}
        found = takers.pop().together(analyses, env, alignments, properties) if len(takers) == 1 else None
        return found or [self.choose(analysis, env, alignments, properties) for analysis in analyses]

    def candidates(self, analysis: Analysis, env: Sizes, alignments: Alignments, properties: M) -> Iterator[Params]:
        """Parameters worth measuring for these sizes, the model's choice first; the others are made when they are asked
        for. Raises :class:`CompileError` where there are none."""
        none = True
        for scheduler in analysis.once(self._takers):
            found = scheduler.candidates(analysis, env, alignments, properties)
            for first in found:
                none = False
                better = scheduler.better_in_stages(analysis, first, env, properties)
                if better:
                    yield self.multi_stage.by_phases(analysis, env, alignments, properties)
                yield first
                if better is False:
                    yield self.multi_stage.by_phases(analysis, env, alignments, properties)
                yield from found
        if none:
            yield self.choose(analysis, env, alignments, properties)

    def _takers(self, analysis: Analysis) -> list[Scheduler[Any, M]]:
        """Those that are asked for candidates: stages are offered where others say so, but for what they alone take."""
        takers = [scheduler for scheduler in self.all if scheduler.takes(analysis)]
        return takers if takers == [self.multi_stage] else [s for s in takers if s is not self.multi_stage]

    def emit(self, name: str, analysis: Analysis, slots: Slots, params: Params, properties: M) -> EmittedKernels:
        """The kernels of the scheduler that ``params`` belong to."""
        return self.of(params).emit(name, analysis, slots, params, properties)

    def check(self, analysis: Analysis, params: Params, env: Sizes, alignments: Alignments, properties: M) -> None:
        """Raises :class:`ScheduleError` with the constraint that ``params`` violate for these sizes."""
        scheduler = self.of(params)
        if not scheduler.takes(analysis):
            raise ScheduleError(f"scheduler '{scheduler.name}' does not take this segment")
        scheduler.check(analysis, params, env, alignments, properties)

    # ---- as attributes

    def attributes(self, params: Params) -> serialize.Attributes:
        """A schedule as the attribute dictionary that stands on a segment: its scheduler's name and every parameter."""
        scheduler = self.of(params)
        return {"scheduler": scheduler.name} | scheduler.attributes(params)

    def read(
        self, given: serialize.Attributes, analysis: Analysis, env: Sizes, alignments: Alignments, properties: M
    ) -> Params:
        """The schedule of a segment for these sizes, of which ``given`` names some parameters or all; the others are as
        the model chooses them. It is checked. Raises :class:`ScheduleError`."""
        name = given.get("scheduler")
        if name is None:
            name = self.of(self.choose(analysis, env, alignments, properties)).name
        if name not in self._named:
            name = old_names.renamed("the scheduler", str(name), old_names.SCHEDULERS)
        if name not in self._named:
            raise ScheduleError(f"no scheduler '{name}': there are {', '.join(self._named)}")
        scheduler = self._named[name]
        if not scheduler.takes(analysis):
            raise ScheduleError(f"scheduler '{name}' does not take this segment")
        fields = {key: value for key, value in given.items() if key != "scheduler"}
        params = scheduler.read(fields, analysis, env, alignments, properties)
        scheduler.check(analysis, params, env, alignments, properties)
        return params
