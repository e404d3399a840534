"""The GPU schedulers, in order of preference. To add one, write a file and add a line here.

Softmax and layer norm along rows, for example, go to :class:`GpuRows`."""

from __future__ import annotations

from mlirfuse.core.device_properties import DeviceProperties
from mlirfuse.schedule.gpu.columns import GpuColumns
from mlirfuse.schedule.gpu.concat import Concat
from mlirfuse.schedule.gpu.concat_shared import ConcatShared
from mlirfuse.schedule.gpu.inner_outer import InnerOuter
from mlirfuse.schedule.gpu.matmul.scheduler import Matmul
from mlirfuse.schedule.gpu.multi_stage import GpuMultiStage
from mlirfuse.schedule.gpu.pointwise import Pointwise
from mlirfuse.schedule.gpu.rows import GpuRows
from mlirfuse.schedule.gpu.scan_columns import ScanColumns
from mlirfuse.schedule.gpu.scan_rows import ScanRows
from mlirfuse.schedule.gpu.scatter_add import ScatterAdd
from mlirfuse.schedule.gpu.scatter_add_rows import ScatterAddRows
from mlirfuse.schedule.gpu.stencil import Stencil
from mlirfuse.schedule.gpu.transpose import Transpose
from mlirfuse.schedule.scheduler import Schedulers

SCHEDULERS: Schedulers[DeviceProperties] = Schedulers(
    GpuMultiStage,
    (
        InnerOuter(),
        GpuColumns(),
        GpuRows(),
        ScanColumns(),
        ScanRows(),
        ScatterAddRows(),
        ScatterAdd(),
        Matmul(),
        Transpose(),
        ConcatShared(),
        Concat(),
        Stencil(),
        Pointwise(),
    ),
)
