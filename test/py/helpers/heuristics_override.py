"""Other thresholds for GPU schedulers: what only large tensors take is then done on small ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mlirfuse.schedule.gpu import heuristics


def fit(monkeypatch: pytest.MonkeyPatch, part: str, **fields: float) -> None:
    """Gives the model of sm_90 other values for fields of one of its parts, for as long as a test runs."""
    model = heuristics.HEURISTICS[90]
    monkeypatch.setitem(heuristics.HEURISTICS, 90, replace(model, **{part: replace(getattr(model, part), **fields)}))
