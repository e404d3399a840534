"""When Python looks for garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_disabled(aged: bool = False) -> Iterator[None]:
    """Within it Python does not look for cycles of garbage, in any thread: a compiler makes many objects that live on,
    and a model's process has millions that would be looked through again and again. Passes and torch's partition of
    BERT take half and two thirds of the time so. Of several at a time the first that began ends it.

    ``aged``: what was made is not looked through afterwards either, but with all other old objects; a fifth of a second
    for BERT. For what a model is compiled by: a process does that a few times."""
    enabled = gc.isenabled()
    if enabled and aged:
        gc.collect(1)  # what was garbage before does not age
    gc.disable()
    try:
        yield
        if enabled and aged and not gc.get_freeze_count():  # else what somebody has frozen would not stay so
            gc.freeze()
            gc.unfreeze()  # into the oldest generation
    finally:
        if enabled:
            gc.enable()
