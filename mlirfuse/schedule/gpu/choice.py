"""The schedulers of GPUs, in the order in which they are asked: a new one is a file and a line here.

Rows of softmax and layer norm are :class:`Rows`'.
"""

from __future__ import annotations

from mlirfuse.core.device_properties import Machine
from mlirfuse.schedule.gpu.columns import Columns
from mlirfuse.schedule.gpu.concat import Pieces
from mlirfuse.schedule.gpu.concat_shared import Joins
from mlirfuse.schedule.gpu.inner_outer import InnerOuter
from mlirfuse.schedule.gpu.multi_stage import GpuStaged
from mlirfuse.schedule.gpu.pointwise import Pointwise
from mlirfuse.schedule.gpu.rows import Rows
from mlirfuse.schedule.gpu.scan_columns import ScanColumns
from mlirfuse.schedule.gpu.scan_rows import ScanRows
from mlirfuse.schedule.gpu.scatter_add import Accumulation
from mlirfuse.schedule.gpu.scatter_add_rows import AccumulationRows
from mlirfuse.schedule.gpu.transpose import Transpose
from mlirfuse.schedule.scheduler import Schedulers

SCHEDULERS: Schedulers[Machine] = Schedulers(
    GpuStaged,
    (
        InnerOuter(),
        Columns(),
        Rows(),
        ScanColumns(),
        ScanRows(),
        AccumulationRows(),
        Accumulation(),
        Transpose(),
        Joins(),
        Pieces(),
        Pointwise(),
    ),
)
