"""The CPU schedulers, in order of preference. To add one, write a file and add a line here.

Softmax and layer norm along rows, for example, go to :class:`CpuRows`."""

from __future__ import annotations

from mlirfuse.analysis import joint
from mlirfuse.core.device_properties import HostProperties
from mlirfuse.schedule.cpu.columns import CpuColumns
from mlirfuse.schedule.cpu.pointwise import Pointwise
from mlirfuse.schedule.cpu.rows import CpuRows
from mlirfuse.schedule.cpu.scan_columns import ScanColumns
from mlirfuse.schedule.cpu.scan_few_columns import ScanFewColumns
from mlirfuse.schedule.cpu.scan_rows import ScanRows
from mlirfuse.schedule.cpu.scan_short_rows import ScanShortRows
from mlirfuse.schedule.cpu.scatter_add import ScatterAdd
from mlirfuse.schedule.cpu.transpose import Transpose
from mlirfuse.schedule.multi_stage import MultiStage
from mlirfuse.schedule.scheduler import Schedulers

SCHEDULERS: Schedulers[HostProperties] = Schedulers(
    lambda schedulers: MultiStage(schedulers, joint.in_phases),
    (
        CpuColumns(),
        CpuRows(),
        ScanShortRows(),
        ScanFewColumns(),
        ScanColumns(),
        ScanRows(),
        ScatterAdd(),
        Transpose(),
        Pointwise(),
    ),
)
