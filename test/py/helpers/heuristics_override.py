"""Other thresholds for GPU schedulers: what only large tensors take is then done on small ones."""

from __future__ import annotations

from typing import Any

import pytest

from mlirfuse import _native
from mlirfuse.core.device_properties import DeviceProperties
from mlirfuse.lowering import devices
from mlirfuse.schedule.gpu import tuning


def fit(monkeypatch: pytest.MonkeyPatch, part: str, *, chip: str = "sm_90", **fields: Any) -> None:
    """Gives the heuristics of a chip, and of this computer's GPU, other values for fields of one of their parts, as
    "rows.registers", for as long as a test runs."""
    typical = DeviceProperties.of_architecture(chip)
    present = [devices.device(0)] if _native.cuda_available() and chip == "sm_90" else []
    for properties in (typical, *present):
        values = {f"{part}.{name}": value for name, value in fields.items()}
        changed = tuning.replaced(tuning.heuristics_of(properties), values)
        monkeypatch.setitem(tuning._found, properties.key, changed)
