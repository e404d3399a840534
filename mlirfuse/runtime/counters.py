"""Counts of compilations and fallbacks: read them to check that new sizes compile nothing."""

from __future__ import annotations

from mlirfuse.core import old_names
from mlirfuse.runtime import events

specializations = 0  # graphs traced and segmented
compiled_programs = 0  # sets of schedule parameters compiled
fallbacks = 0  # calls that ran op by op


def __getattr__(name: str) -> int:
    today = old_names.renamed("the counter", name, old_names.COUNTERS)
    if today == name:
        raise AttributeError(f"module 'mlirfuse.counters' has no attribute '{name}'")
    return globals()[today]


def snapshot() -> dict[str, int]:
    """The counters as a dict."""
    return {"specializations": specializations, "compiled_programs": compiled_programs, "fallbacks": fallbacks}


def _specialization(event: events.Traced) -> None:
    global specializations
    specializations += 1


def _compiled_program(event: events.Scheduled) -> None:
    global compiled_programs
    compiled_programs += 1


def _fallback(event: events.FellBack) -> None:
    global fallbacks
    fallbacks += 1


events.observe(events.Traced, _specialization)
events.observe(events.Scheduled, _compiled_program)
events.observe(events.FellBack, _fallback)
