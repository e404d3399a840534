"""What is measured of a device before its heuristics are derived."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Measured:
    """``bandwidth``: bytes per second, read and written, of large copies. ``launch``: seconds that one more dependent
    kernel adds to a call. ``l2_bytes``: bytes, read and written, up to which copies are faster than from memory."""

    bandwidth: float
    launch: float
    l2_bytes: int
