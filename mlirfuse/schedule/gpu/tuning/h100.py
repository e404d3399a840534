"""The H100 (SXM): its properties and the heuristics' values that depend on the device. The measurements behind each
are beside the field in :mod:`.heuristics`.

:data:`MEASURED` is an estimate: ``python -m mlirfuse calibrate`` has not run on this card. Only what is derived from
measurements of another card refers to it. An H200 has no file: derived values apply to it."""

from __future__ import annotations

from mlirfuse.core.device_properties import DeviceProperties
from mlirfuse.schedule.gpu.tuning import heuristics as h
from mlirfuse.schedule.gpu.tuning import scan_heuristics as scans
from mlirfuse.schedule.gpu.tuning.measured import Measured

PROPERTIES = DeviceProperties.of_architecture("sm_90")
MEASURED = Measured(bandwidth=2.9e12, launch=2e-6, l2_bytes=32 << 20)
HEURISTICS = h.GpuHeuristics(
    access=h.AccessHeuristics(staying=1.5),
    rows=h.RowHeuristics(
        threads=h.RowThreadHeuristics(parallel=1024, most_together=16 * 1024, busy=512),
        loads=h.RowLoadHeuristics(few_threads=256),
        shared=h.SharedRowHeuristics(roomy=768, least_alone=512, hiding=1024),
        looped=h.LoopedRowHeuristics(huge=4 << 20),
        stages=h.RowStageHeuristics(kept_bytes=100_000, looped_bytes=250_000),
    ),
    columns=h.ColumnHeuristics(
        coalesced_many=8 << 20,
        little=256 << 10,
        cluster_bytes=128 << 20,
        blocks=h.ColumnBlockHeuristics(large_work=2 << 20, work=1 << 20, much=12 << 20),
    ),
    pointwise=h.PointwiseHeuristics(rows_shared=2 << 20, coalesced=1 << 20),
    concat_shared=h.ConcatSharedHeuristics(least=1 << 20),
    concat=h.ConcatHeuristics(least=1 << 20),
    inner_outer=h.InnerOuterHeuristics(beginning=6 << 20),
    scans=scans.ScanHeuristics(striped=scans.StripedScanHeuristics(busy=512)),
    scatter_add=h.ScatterAddHeuristics(least_bytes=(28 << 20, 6 << 20)),
)
