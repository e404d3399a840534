"""Heuristics of a GPU that has no file of its own, from its properties: an H100's, with what is proportional to a
property of the device scaled."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from mlirfuse.core.device_properties import DeviceProperties
from mlirfuse.schedule.gpu.tuning import h100
from mlirfuse.schedule.gpu.tuning.heuristics import GpuHeuristics
from mlirfuse.schedule.gpu.tuning.measured import Measured
from mlirfuse.schedule.gpu.tuning.scaled import Scale


def derive(properties: DeviceProperties, measured: Measured | None = None) -> GpuHeuristics:
    """The heuristics of a device with these properties. Without measurements, launches take as long as an H100's, and
    memory and the L2 cache reach as much of their nominal bandwidth and size."""
    if measured is None:
        speed, launches, cached = properties.memory_bandwidth / h100.PROPERTIES.memory_bandwidth, 1.0, 1.0
    else:
        speed = measured.bandwidth / h100.MEASURED.bandwidth
        launches = measured.launch / h100.MEASURED.launch
        share, usual = (m.l2_bytes / p.l2_bytes for m, p in ((measured, properties), (h100.MEASURED, h100.PROPERTIES)))
        cached = share / usual
    per_sm = properties.threads_per_sm / h100.PROPERTIES.threads_per_sm
    multiprocessors = properties.sm_count / h100.PROPERTIES.sm_count
    ratios = {
        Scale.SM_THREADS: per_sm,
        Scale.THREADS: multiprocessors * per_sm,
        Scale.CLUSTER: properties.cluster_sizes[-1] / h100.PROPERTIES.cluster_sizes[-1],
        Scale.L2: cached,
        Scale.BYTES: speed,
        Scale.LAUNCH_BYTES: speed * launches,
        Scale.SM_LAUNCH_BYTES: speed * launches / multiprocessors,
    }
    return _scaled(h100.HEURISTICS, ratios)


def _scaled(heuristics: Any, ratios: dict[Scale, float]) -> Any:
    """The same heuristics with each scaled field multiplied by its ratio."""
    values = {}
    for field in dataclasses.fields(heuristics):
        value, scale = getattr(heuristics, field.name), field.metadata.get("scale")
        if dataclasses.is_dataclass(value):
            values[field.name] = _scaled(value, ratios)
        elif scale:
            found = [_times(n, scale, ratios) for n in (value if isinstance(value, tuple) else [value])]
            values[field.name] = tuple(found) if isinstance(value, tuple) else found[0]
    return dataclasses.replace(heuristics, **values)


def _times(value: Any, scale: Scale, ratios: dict[Scale, float]) -> Any:
    product = value * ratios[scale]
    return 1 << round(math.log2(max(1.0, product))) if scale is Scale.THREADS else type(value)(product)
