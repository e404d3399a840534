"""What ``python -m mlirfuse calibrate`` measured on a GPU, stored in the compile cache's folder. Importing this module
makes the schedulers use it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlirfuse.core.device_properties import DeviceProperties
from mlirfuse.runtime import cache
from mlirfuse.schedule.gpu import tuning
from mlirfuse.schedule.gpu.tuning.measured import Measured

if TYPE_CHECKING:
    from mlirfuse.schedule.gpu.tuning.heuristics import GpuHeuristics


@dataclass(frozen=True)
class Calibration:
    """Measurements of a device; ``fields``: values of heuristics that were measured to be best, by their paths."""

    measured: Measured
    fields: dict[str, Any]


def name(properties: DeviceProperties) -> str:
    """The name of the file in the cache's folder."""
    return "calibration-" + hashlib.sha256(properties.key.encode()).hexdigest()


def base(properties: DeviceProperties, measured: Measured) -> GpuHeuristics:
    """The heuristics before thresholds are measured: the device's file, else derived."""
    from mlirfuse.schedule.gpu.tuning.derived import derive  # lazy, as a CPU needs none

    return tuning.device_file(properties) or derive(properties, measured)


def store(properties: DeviceProperties, calibration: Calibration) -> None:
    """Store a calibration; processes that start later use it."""
    cache.store(name(properties), json.dumps(dataclasses.asdict(calibration)).encode())


def load(properties: DeviceProperties) -> GpuHeuristics | None:
    """The calibrated heuristics of a device; None if there are none, or of another version of the heuristics."""
    found = cache.load(name(properties))
    if found is None:
        return None
    try:
        content = json.loads(found)
        return tuning.replaced(base(properties, Measured(**content["measured"])), content["fields"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


tuning.use_calibrations(load)
