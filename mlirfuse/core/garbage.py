"""When Python looks for garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Within it Python does not look for cycles of garbage, in any thread: a compiler makes many objects that live on,
    and a model's process has millions that would be looked through again and again. Passes and torch's partition of
    BERT take half and two thirds of the time so. Of several at a time the first that began ends it."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
