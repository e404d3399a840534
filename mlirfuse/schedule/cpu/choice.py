"""The schedulers of CPUs, in the order in which they are asked: a new one is a file and a line here.

Rows of softmax and layer norm are :class:`Rows`'.
"""

from __future__ import annotations

from mlirfuse.analysis import joint
from mlirfuse.core.device_properties import Host
from mlirfuse.schedule.cpu.columns import Columns
from mlirfuse.schedule.cpu.pointwise import Pointwise
from mlirfuse.schedule.cpu.rows import Rows
from mlirfuse.schedule.cpu.scan_columns import ScanColumns
from mlirfuse.schedule.cpu.scan_few_columns import ScanFewColumns
from mlirfuse.schedule.cpu.scan_rows import ScanRows
from mlirfuse.schedule.cpu.scan_short_rows import ScanShortRows
from mlirfuse.schedule.cpu.scatter_add import Accumulation
from mlirfuse.schedule.cpu.transpose import Transpose
from mlirfuse.schedule.multi_stage import Staged
from mlirfuse.schedule.scheduler import Schedulers

SCHEDULERS: Schedulers[Host] = Schedulers(
    lambda schedulers: Staged(schedulers, joint.in_phases),
    (
        Columns(),
        Rows(),
        ScanShortRows(),
        ScanFewColumns(),
        ScanColumns(),
        ScanRows(),
        Accumulation(),
        Transpose(),
        Pointwise(),
    ),
)
