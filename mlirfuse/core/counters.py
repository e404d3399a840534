"""What has been compiled so far: read these to see that new sizes compile nothing."""

from __future__ import annotations

from mlirfuse.core import events

kinds = 0  # graphs traced and segmented
variants = 0  # choices of schedule parameters compiled
fallbacks = 0  # calls that ran op by op


def snapshot() -> dict[str, int]:
    """The counters as a dict."""
    return {"kinds": kinds, "variants": variants, "fallbacks": fallbacks}


def _kind(event: events.Traced) -> None:
    global kinds
    kinds += 1


def _variant(event: events.Scheduled) -> None:
    global variants
    variants += 1


def _fallback(event: events.FellBack) -> None:
    global fallbacks
    fallbacks += 1


events.observe(events.Traced, _kind)
events.observe(events.Scheduled, _variant)
events.observe(events.FellBack, _fallback)
