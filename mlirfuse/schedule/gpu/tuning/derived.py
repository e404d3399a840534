"""Heuristics of a GPU that has no file of its own, from its properties.

Each value is an H100's, scaled by what it is made of: the threads that a multiprocessor or the device can hold, the
bytes that memory moves in some microseconds, a launch. At an H100's properties they are that card's values, within a
twentieth."""

from __future__ import annotations

import math

from mlirfuse.core.device_properties import DeviceProperties
from mlirfuse.schedule.gpu.tuning import h100
from mlirfuse.schedule.gpu.tuning import heuristics as h
from mlirfuse.schedule.gpu.tuning import scan_heuristics as scans
from mlirfuse.schedule.gpu.tuning.measured import Measured

LARGEST_BLOCK = 1024  # threads


def _nearest_power_of_two(x: float) -> int:
    return int(2 ** round(math.log2(max(1.0, x))))


def derive(properties: DeviceProperties, measured: Measured | None = None) -> h.GpuHeuristics:
    """The heuristics of a device with these properties. Without measurements, launches take as long as an H100's, and
    memory and the L2 cache reach as much of their nominal bandwidth and size."""
    per_sm = properties.threads_per_sm
    threads = properties.sm_count * per_sm
    if measured is None:
        speed, launches, cached = properties.memory_bandwidth / h100.PROPERTIES.memory_bandwidth, 1.0, 1.0
    else:
        speed = measured.bandwidth / h100.MEASURED.bandwidth
        launches = measured.launch / h100.MEASURED.launch
        share, usual = (m.l2_bytes / p.l2_bytes for m, p in ((measured, properties), (h100.MEASURED, h100.PROPERTIES)))
        cached = share / usual
    bandwidth = speed * h100.PROPERTIES.memory_bandwidth

    def moved(microseconds: float) -> int:
        """The bytes that the device reads or writes in that time."""
        return int(bandwidth * microseconds * 1e-6)

    def moved_in_launches(microseconds: float) -> int:
        """The same for a time that grows with that of a launch."""
        return moved(microseconds * launches)

    def elements(per_thread: int) -> int:
        """As many for each thread of the device, rounded to a power of two."""
        return _nearest_power_of_two(per_thread * threads)

    return h.GpuHeuristics(
        access=h.AccessHeuristics(staying=h100.HEURISTICS.access.staying * cached),
        rows=h.RowHeuristics(
            threads=h.RowThreadHeuristics(
                parallel=per_sm // 2, most_together=LARGEST_BLOCK * properties.cluster_sizes[-1], busy=per_sm // 4
            ),
            loads=h.RowLoadHeuristics(few_threads=per_sm // 8),
            shared=h.SharedRowHeuristics(roomy=per_sm * 3 // 8, least_alone=per_sm // 4, hiding=per_sm // 2),
            looped=h.LoopedRowHeuristics(huge=moved(20) // 16),
            stages=h.RowStageHeuristics(
                kept_bytes=moved_in_launches(4) // properties.sm_count,
                looped_bytes=moved_in_launches(10) // properties.sm_count,
            ),
        ),
        columns=h.ColumnHeuristics(
            coalesced_many=elements(32),
            little=elements(1),
            cluster_bytes=moved_in_launches(40),
            blocks=h.ColumnBlockHeuristics(large_work=elements(8), work=elements(4), much=moved(3.75)),
        ),
        pointwise=h.PointwiseHeuristics(rows_shared=elements(8), coalesced=elements(4)),
        concat_shared=h.ConcatSharedHeuristics(least=elements(4)),
        concat=h.ConcatHeuristics(least=elements(4)),
        inner_outer=h.InnerOuterHeuristics(beginning=moved(1.9)),
        scans=scans.ScanHeuristics(striped=scans.StripedScanHeuristics(busy=per_sm // 4)),
        scatter_add=h.ScatterAddHeuristics(least_bytes=(moved_in_launches(8.75), moved_in_launches(1.9))),
    )
