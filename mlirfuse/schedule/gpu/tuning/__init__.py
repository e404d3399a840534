"""The heuristics of each GPU: what ``python -m mlirfuse calibrate`` measured on it, else its file here, else values
derived from its properties.

To add a device, write a file like :mod:`.h100` and add it to :data:`DEVICES`."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mlirfuse.core.device_properties import DeviceProperties

if TYPE_CHECKING:  # what is imported where a GPU is asked for takes a tenth of mlirfuse's import
    from mlirfuse.schedule.gpu.tuning.heuristics import GpuHeuristics

DEVICES = ("h100",)
log = logging.getLogger("mlirfuse")
_found: dict[str, GpuHeuristics] = {}  # by the key of a device's properties
_calibrated: list[Callable[[DeviceProperties], GpuHeuristics | None]] = []


def use_calibrations(load: Callable[[DeviceProperties], GpuHeuristics | None]) -> None:
    """Use the heuristics that ``load`` returns for a device, if it returns any: the runtime, above this layer, keeps
    measurements on disk."""
    _calibrated[:] = [load]


def heuristics_of(properties: DeviceProperties) -> GpuHeuristics:
    """The heuristics of the device."""
    found = _found.get(properties.key)
    return _find(properties) if found is None else found


def device_file(properties: DeviceProperties) -> GpuHeuristics | None:
    """The heuristics in the device's file; None if it has none."""
    files = (importlib.import_module(f"{__name__}.{device}") for device in DEVICES)
    return next((file.HEURISTICS for file in files if _same(file.PROPERTIES, properties)), None)


def field(heuristics: GpuHeuristics, path: str) -> Any:
    """The value of a field named by its path, as "rows.registers.usual". Raises AttributeError."""
    return functools.reduce(getattr, path.split("."), heuristics)


def replaced(heuristics: GpuHeuristics, values: Mapping[str, Any]) -> GpuHeuristics:
    """The same heuristics with other values of fields, by their paths. Raises AttributeError for an unknown path."""
    for path, value in values.items():
        new, names = value, path.split(".")
        for at in reversed(range(len(names))):
            holder = functools.reduce(getattr, names[:at], heuristics)
            getattr(holder, names[at])
            new = dataclasses.replace(holder, **{names[at]: new})
        heuristics = new
    return heuristics


@contextmanager
def using(properties: DeviceProperties, heuristics: GpuHeuristics) -> Iterator[None]:
    """Use these heuristics for the device inside a ``with`` block, for schedules that are chosen there."""
    before = _found.get(properties.key)
    _found[properties.key] = heuristics
    try:
        yield
    finally:
        _found.pop(properties.key)
        if before is not None:
            _found[properties.key] = before


@functools.cache
def log_if_derived(properties: DeviceProperties) -> None:
    """Log, once for equal properties, that this computer's GPU has neither a calibration nor a file."""
    if not any(load(properties) for load in _calibrated) and device_file(properties) is None:
        log.warning(
            "no measurements of a GPU like this one (%s, %d multiprocessors): the schedules' thresholds are derived "
            "from its properties; python -m mlirfuse calibrate measures them",
            properties.chip,
            properties.sm_count,
        )


def _find(properties: DeviceProperties) -> GpuHeuristics:
    from mlirfuse.schedule.gpu.tuning.derived import derive

    calibrated = next(filter(None, (load(properties) for load in _calibrated)), None)
    return _found.setdefault(properties.key, calibrated or device_file(properties) or derive(properties))


def _same(ours: DeviceProperties, other: DeviceProperties) -> bool:
    """Whether they are of the same product: memory clocks differ a little from card to card."""
    near = abs(other.memory_bandwidth - ours.memory_bandwidth) <= 0.05 * ours.memory_bandwidth
    return near and (ours.chip, ours.sm_count, ours.l2_bytes) == (other.chip, other.sm_count, other.l2_bytes)
