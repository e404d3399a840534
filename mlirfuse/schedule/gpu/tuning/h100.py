"""The H100 (SXM), on which the values of :mod:`.heuristics` were measured.

:data:`MEASURED` is an estimate: ``python -m mlirfuse calibrate`` has not run on this card. Only what is derived from
measurements of another card refers to it. An H200 has no file: derived values apply to it."""

from __future__ import annotations

from mlirfuse.core.device_properties import DeviceProperties
from mlirfuse.schedule.gpu.tuning.heuristics import GpuHeuristics
from mlirfuse.schedule.gpu.tuning.measured import Measured

PROPERTIES = DeviceProperties.of_architecture("sm_90")
MEASURED = Measured(bandwidth=2.9e12, launch=2e-6, l2_bytes=32 << 20)
HEURISTICS = GpuHeuristics()
