"""Fields of heuristics whose values grow with properties of the device."""

from __future__ import annotations

import dataclasses
from enum import Enum, auto
from typing import Any


class Scale(Enum):
    """What a value is proportional to. Bytes are those that memory moves in a fixed time, or in that of a launch."""

    SM_THREADS = auto()  # that a multiprocessor can hold
    THREADS = auto()  # that the device can hold; such values are powers of two
    CLUSTER = auto()  # blocks of the largest cluster
    L2 = auto()  # the fraction of its L2 cache that copies use
    BYTES = auto()
    LAUNCH_BYTES = auto()
    SM_LAUNCH_BYTES = auto()  # for each multiprocessor


def scaled(h100: Any, scale: Scale) -> Any:
    """A field with an H100's value, a number or a tuple of numbers, that is proportional to ``scale`` on other GPUs."""
    return dataclasses.field(default=h100, metadata={"scale": scale})
