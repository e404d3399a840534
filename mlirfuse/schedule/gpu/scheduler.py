"""What schedulers of a GPU share."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, TypeVar

from mlirfuse.analysis.phases import Analysis
from mlirfuse.core.device_properties import DeviceProperties
from mlirfuse.lowering import compensated_sums
from mlirfuse.lowering.module import GpuKernel
from mlirfuse.lowering.slots import Slots
from mlirfuse.schedule import serialize
from mlirfuse.schedule.gpu import access
from mlirfuse.schedule.scheduler import Alignments, EmittedKernels, Scheduler, Sizes, power_of_two, require

P = TypeVar("P", bound=tuple[Any, ...])
LARGEST_BLOCK = 1024  # threads
COMPENSATION_INTERVAL = (
    256  # turns of a thread that add up plainly: one after the other, equal numbers err by 64 units in the last place
)


class GpuScheduler(Scheduler[P, DeviceProperties]):
    """A scheduler whose parameters begin with an ``access``."""

    @abstractmethod
    def kernels(self, name: str, analysis: Analysis, slots: Slots, params: P) -> list[GpuKernel]:
        """The kernels that compute ``analysis``."""

    def emit(
        self, name: str, analysis: Analysis, slots: Slots, params: P, properties: DeviceProperties
    ) -> EmittedKernels:
        yield analysis, self.kernels(name, analysis, slots, params)

    def widest(self, analysis: Analysis, params: P) -> list[int]:
        """The bytes of the widest vector of each input and output."""
        lanes = params.access.lanes  # type: ignore[attr-defined]
        return [lanes * analysis.stored(v).bytes for v in analysis.inputs + analysis.outputs]

    def read(
        self,
        given: serialize.Attributes,
        analysis: Analysis,
        env: Sizes,
        alignments: Alignments,
        properties: DeviceProperties,
    ) -> P:
        """As :meth:`Scheduler.read`; where lanes are given and no alignments, these are of such vectors."""
        params: Any = super().read(given, analysis, env, alignments, properties)
        wanted = given.get("access", {})
        if "lanes" in wanted and "aligns" not in wanted:
            aligns = tuple(map(min, params.access.aligns, self.widest(analysis, params)))
            params = params._replace(access=params.access._replace(aligns=aligns))
        return params

    def check_access(
        self,
        analysis: Analysis,
        params: P,
        along_kept: bool,
        env: Sizes,
        alignments: Alignments,
        properties: DeviceProperties,
    ) -> None:
        """Raises :class:`ScheduleError` where memory is not as the parameters assume."""
        given = params.access  # type: ignore[attr-defined]
        access.check(analysis, given, along_kept, env, alignments, properties, self.widest(analysis, params))


def in_blocks(p: P, analysis: Analysis, iterations: int) -> P:
    """``p``, or with blocks where a thread takes so many ``iterations`` that sums shall not be one chain of
    additions."""
    return p._replace(blocks=COMPENSATION_INTERVAL) if chained(analysis, iterations) else p  # type: ignore[attr-defined]


def chained(analysis: Analysis, iterations: int) -> bool:
    """Whether a chain of so many additions of a thread rounds too much."""
    return iterations > COMPENSATION_INTERVAL and analysis.once(_round_off)


def _round_off(analysis: Analysis) -> bool:
    """Whether the segment has sums that round."""
    partial = any(op.operands[0].dtype.is_float for op in analysis.partials)
    return partial or any(map(compensated_sums.round_off, analysis.phases))


def check_threads(tx: int, ty: int) -> None:
    """Raises :class:`ScheduleError` where there are no blocks of ``tx`` by ``ty`` threads."""
    require(power_of_two(tx) and power_of_two(ty), f"tx = {tx}, ty = {ty}: both are powers of two")
    require(tx * ty <= LARGEST_BLOCK, f"tx * ty = {tx * ty}: a block has at most {LARGEST_BLOCK} threads")


def check_cluster(cluster: int, properties: DeviceProperties) -> None:
    """Raises :class:`ScheduleError` where the machine has no such clusters."""
    sizes = properties.cluster_sizes
    require(
        cluster in sizes, f"cluster = {cluster}: {properties.chip} has clusters of {', '.join(map(str, sizes))} blocks"
    )
