"""Base class and helpers of GPU schedulers."""

from __future__ import annotations

from mlirfuse.analysis.phases import Analysis
from mlirfuse.core.device_properties import DeviceProperties
from mlirfuse.lowering import compensated_sums
from mlirfuse.schedule import serialize
from mlirfuse.schedule.gpu import access
from mlirfuse.schedule.scheduler import Scheduler, SizedCall, power_of_two, require
from mlirfuse.schedule.tiling import Tiling

WARP, LARGEST_BLOCK = 32, 1024  # threads
# The most additions of a thread without compensation: of equal numbers, so many err by 64 ulp.
COMPENSATION_INTERVAL = 256


class GpuScheduler(Scheduler[DeviceProperties]):
    """A scheduler whose parameters have an ``access``."""

    def check_limits(self, p: Tiling, properties: DeviceProperties) -> None:
        """Raise :class:`ScheduleError` unless a device can have blocks and clusters of these sizes, and numbers are in
        range."""
        tx, ty, threads, sizes = p.tx, p.ty, p.tx * p.ty, properties.cluster_sizes
        require(power_of_two(tx) and power_of_two(ty), f"tx = {tx}, ty = {ty}: both must be powers of two")
        require(threads <= LARGEST_BLOCK, f"tx * ty = {threads}: a block has at most {LARGEST_BLOCK} threads")
        p.must("cluster", p.cluster in sizes, f"{properties.chip} has clusters of {', '.join(map(str, sizes))} blocks")
        most = properties.threads_per_sm // threads
        p.must("min_blocks_per_sm", 1 <= p.min_blocks_per_sm <= most, f"must be from 1 to {most}")
        super().check_limits(p, properties)

    def widest(self, analysis: Analysis, params: Tiling) -> list[int]:
        """The bytes of the widest vector of each input and output."""
        lanes = params.access.lanes
        return [lanes * analysis.stored(v).bytes for v in analysis.inputs + analysis.outputs]

    def read(self, given: serialize.Attributes, analysis: Analysis, call: SizedCall) -> Tiling:
        """Like :meth:`Scheduler.read`. If lanes are given without alignments, those are adapted to the lanes."""
        params = super().read(given, analysis, call)
        wanted = given.get("access", {})
        if "lanes" in wanted and "aligns" not in wanted:
            aligns = tuple(map(min, params.access.aligns, self.widest(analysis, params)))
            params = params._replace(access=params.access._replace(aligns=aligns))
        return params

    def check_access(
        self, analysis: Analysis, params: Tiling, along_kept: bool, call: SizedCall, innermost: bool = True
    ) -> None:
        """Raise :class:`ScheduleError` if memory does not satisfy the assumptions of the parameters, see
        :func:`access.check`."""
        access.check(analysis, params.access, along_kept, call, self.widest(analysis, params), innermost)


def compensated(p: Tiling, analysis: Analysis, iterations: int) -> Tiling:
    """``p``; with compensated totals if a thread would make so many uncompensated additions that they round too much.
    ``iterations``: their number."""
    return p._replace(compensation_interval=COMPENSATION_INTERVAL) if chained(analysis, iterations) else p


def chained(analysis: Analysis, iterations: int) -> bool:
    """Whether a chain of ``iterations`` uncompensated additions rounds too much."""
    return iterations > COMPENSATION_INTERVAL and analysis.once(_round_off)


def _round_off(analysis: Analysis) -> bool:
    """Whether the segment has sums that round."""
    partial = any(op.operands[0].dtype.is_float for op in analysis.partials)
    return partial or any(map(compensated_sums.round_off, analysis.phases))
