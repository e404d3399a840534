"""The scheduler protocol, and the ordered set of a target's schedulers, which picks one and its parameters for a
segment.

To add a scheduler, write a file with a subclass of :class:`Scheduler`, and add a line to the target's list
(``schedule/cpu/scheduler_list.py``, ``schedule/gpu/scheduler_list.py``)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar

from mlirfuse.analysis.phases import Analysis
from mlirfuse.core import old_names
from mlirfuse.core.errors import CompileError, ScheduleError
from mlirfuse.ir.graph import Value
from mlirfuse.lowering.slots import Slots
from mlirfuse.schedule import serialize
from mlirfuse.schedule.tiling import Tiling

if TYPE_CHECKING:
    from mlirfuse.schedule.multi_stage import MultiStage

M = TypeVar("M")  # HostProperties or DeviceProperties
Sizes = dict[str, int]  # of a call, by symbol
Alignments = dict[Value, int]  # bytes, of tensors' addresses; a missing tensor has an allocation's alignment


class SizedCall(NamedTuple):
    """What a schedule is chosen for: the sizes and alignments of a call, and the properties of its device."""

    sizes: Sizes
    alignments: Alignments
    properties: Any


class KernelSpec(NamedTuple):
    """What kernels are written from: their name, or its beginning if there are several; the segment or stage; the slots
    of its tensors; its parameters; the properties of the device."""

    name: str
    analysis: Analysis
    slots: Slots
    params: Tiling
    properties: Any


EmittedKernels = Iterator[tuple[Analysis, list[Any]]]  # the kernels of a segment, or of each of its stages


class Scheduler(ABC, Generic[M]):
    """One strategy for generating kernels of a segment.

    Its parameters are a :class:`Tiling`, of which it uses ``fields``; ``own`` is the named tuple of those that only it
    has: bools, ints, strings and tuples of those. They determine the generated code: calls with equal parameters run
    the same code. They are hashed and compared at each call with new sizes."""

    name: ClassVar[str]
    fields: ClassVar[tuple[str, ...]] = ()
    own: ClassVar[type | None] = None
    may_be_zero: ClassVar[tuple[str, ...]] = ()  # numbers of at least 1 for other schedulers

    @property
    def parameters(self) -> dict[str, Any]:
        """The names of its parameters, with their types."""
        return (serialize.types_of(Tiling, self.fields) if self.fields else {}) | serialize.types_of(self.own)

    @abstractmethod
    def takes(self, analysis: Analysis) -> bool:
        """Whether this scheduler can write the kernels of the segment, at least for some sizes."""

    @abstractmethod
    def candidates(self, analysis: Analysis, call: SizedCall) -> Iterator[Tiling]:
        """Parameters worth measuring for these sizes, the heuristic's choice first; :class:`Schedulers` drops those
        that come again. Empty if another scheduler should take the segment."""

    def together(self, analyses: Sequence[Analysis], call: SizedCall) -> list[Tiling] | None:
        """Parameters for segments that compute the same function on tensors of different sizes, chosen so that few
        distinct kernels result and one launch runs equal ones. None: choose for each segment separately."""
        return None

    def better_in_stages(self, analysis: Analysis, params: Tiling, call: SizedCall) -> bool | None:
        """Whether a split into stages (:mod:`mlirfuse.schedule.multi_stage`) is estimated to be faster than ``params``.
        None: stages are not worth measuring."""
        return None

    def kernels(self, spec: KernelSpec) -> list[Any]:
        """The kernels of the segment, which is one stage."""
        raise NotImplementedError

    def emit(self, spec: KernelSpec) -> EmittedKernels:
        """Yield each stage of the segment with its kernels."""
        yield spec.analysis, self.kernels(spec)

    def check_limits(self, p: Tiling, properties: M) -> None:
        """Raise :class:`ScheduleError` if no segment can have these parameters on a device."""
        for name, default in Tiling._field_defaults.items():
            if type(default) is int:
                least = 0 if name in self.may_be_zero else default
                p.must(name, p.value(name) >= least, f"must be at least {least}")

    @abstractmethod
    def check(self, analysis: Analysis, params: Tiling, call: SizedCall) -> None:
        """Raise :class:`ScheduleError`, which names the violated constraint, if these parameters and sizes would give
        wrong kernels or kernels that cannot be launched."""

    def attributes(self, params: Tiling) -> serialize.Attributes:
        """All parameters as attributes."""
        return {name: serialize.attribute(params.value(name)) for name in self.parameters}

    def read(self, given: serialize.Attributes, analysis: Analysis, call: SizedCall) -> Tiling:
        """The parameters given by attributes; missing ones are the heuristic's choice for these sizes. Raises
        :class:`ScheduleError`."""
        chosen = next(self.candidates(analysis, call), None)
        found = serialize.read(self.parameters, given, chosen)
        if chosen is None:
            defaults: Any = getattr(self.own, "_field_defaults", {})
            own = [name for name in serialize.types_of(self.own) if name not in defaults]
            serialize.require_all([name for name in ("access", "tx", "ty") if name in self.fields] + own, found)
            chosen = Tiling(self.name, own=self.own(*[found[name] for name in own]) if self.own else None)
        return chosen.replaced(**found)


def require(holds: bool, constraint: str) -> None:
    """Raise :class:`ScheduleError` with the text ``constraint`` unless it ``holds``."""
    if not holds:
        raise ScheduleError(constraint)


def power_of_two(n: int) -> bool:
    """Whether ``n`` is a positive power of two."""
    return n > 0 and n & (n - 1) == 0


def power_from(n: int) -> int:
    """The smallest power of two that is at least ``n``."""
    return 1 << max(0, n - 1).bit_length()


def power_to(n: int) -> int:
    """The largest power of two that is at most ``n``, for ``n`` >= 1."""
    return 1 << n.bit_length() - 1


class Schedulers(Generic[M]):
    """The schedulers of a target, in order of preference, with ``multi_stage`` first. Stages are chosen if a scheduler
    estimates them to be faster than its own choice, or if no scheduler has candidates."""

    def __init__(self, multi_stage: Callable[[Schedulers[M]], MultiStage[M]], schedulers: Sequence[Scheduler[M]]):
        self.multi_stage = multi_stage(self)
        self.all = (self.multi_stage, *schedulers)
        self._named = {s.name: s for s in self.all}

    def of(self, params: Tiling) -> Scheduler[M]:
        """The scheduler that uses these parameters."""
        return self._named[params.scheduler]

    def choose(self, analysis: Analysis, call: SizedCall) -> Tiling:
        """The heuristic's choice for these sizes: the first of :meth:`candidates`. Raises :class:`CompileError` if no
        scheduler takes the segment."""
        return next(self._offered(analysis, call))

    def choose_together(self, analyses: Sequence[Analysis], call: SizedCall) -> list[Tiling]:
        """Like :meth:`choose`, for segments that one launch may run: see :meth:`Scheduler.together`."""
        takers = {analysis.once(self._takers)[0] for analysis in analyses}
        found = takers.pop().together(analyses, call) if len(takers) == 1 else None
        return found or [self.choose(analysis, call) for analysis in analyses]

    def candidates(self, analysis: Analysis, call: SizedCall) -> Iterator[Tiling]:
        """Distinct parameters worth measuring for these sizes, generated lazily, the heuristic's choice first. Raises
        :class:`CompileError` if there are none."""
        yielded: set[Tiling] = set()
        for params in self._offered(analysis, call):
            if params not in yielded:
                yielded.add(params)
                yield params

    def _offered(self, analysis: Analysis, call: SizedCall) -> Iterator[Tiling]:
        """The candidates of all schedulers that take the segment, and stages where those may be faster, or if there are
        no candidates."""
        first = None
        for scheduler in analysis.once(self._takers):
            found = scheduler.candidates(analysis, call)
            for first in found:
                better = scheduler.better_in_stages(analysis, first, call)
                if better:
                    yield self.multi_stage.by_phases(analysis, call)
                yield first
                if better is False:
                    yield self.multi_stage.by_phases(analysis, call)
                yield from found
        if first is None:
            if not self.multi_stage.takes(analysis):
                raise CompileError("no scheduler takes this segment")
            yield self.multi_stage.by_phases(analysis, call)

    def _takers(self, analysis: Analysis) -> list[Scheduler[M]]:
        """The schedulers to ask for candidates. ``multi_stage`` is among them only if no other takes the segment:
        otherwise the others decide when to offer stages."""
        takers = [scheduler for scheduler in self.all if scheduler.takes(analysis)]
        return takers if takers == [self.multi_stage] else [s for s in takers if s is not self.multi_stage]

    def emit(self, spec: KernelSpec) -> EmittedKernels:
        """The kernels, written by the scheduler that the parameters belong to."""
        return self.of(spec.params).emit(spec)

    def check(self, analysis: Analysis, params: Tiling, call: SizedCall) -> None:
        """Raise :class:`ScheduleError` with the constraint that ``params`` violate for these sizes."""
        scheduler = self.of(params)
        if not scheduler.takes(analysis):
            raise ScheduleError(f"scheduler '{scheduler.name}' does not take this segment")
        scheduler.check_limits(params, call.properties)
        scheduler.check(analysis, params, call)

    # ---- as attributes

    def attributes(self, params: Tiling) -> serialize.Attributes:
        """A schedule as the attribute dictionary of a segment: the scheduler's name and every parameter."""
        scheduler = self.of(params)
        return {"scheduler": scheduler.name} | scheduler.attributes(params)

    def read(self, given: serialize.Attributes, analysis: Analysis, call: SizedCall) -> Tiling:
        """Parse and check a segment's schedule for these sizes. ``given`` may be partial; the heuristic chooses the
        rest. Raises :class:`ScheduleError`."""
        name = given.get("scheduler")
        if name is None:
            name = self.of(self.choose(analysis, call)).name
        if name not in self._named:
            name = old_names.renamed("the scheduler", str(name), old_names.SCHEDULERS)
        if name not in self._named:
            raise ScheduleError(f"no scheduler '{name}': the schedulers are {', '.join(self._named)}")
        scheduler = self._named[name]
        if not scheduler.takes(analysis):
            raise ScheduleError(f"scheduler '{name}' does not take this segment")
        fields = {key: value for key, value in given.items() if key != "scheduler"}
        params = scheduler.read(fields, analysis, call)
        self.check(analysis, params, call)
        return params
