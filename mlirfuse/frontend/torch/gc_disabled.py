"""Python's cyclic garbage collector is off while Dynamo traces, too (see :mod:`mlirfuse.core.gc_control`): it would
look through all that was imported and built, up to three times, a tenth of GPT-2's first step.

Dynamo's callbacks do not say for which back end it traces. So this holds for every compilation of Dynamo's from the
first one of this back end until Dynamo is reset, and for the first of all, as the back end is loaded for it."""

from __future__ import annotations

import sys
from typing import Any

from mlirfuse.core import gc_control
from mlirfuse.frontend.torch.torch_private import callbacks

_begun: list[Any] = []  # the regions that have not ended


def while_dynamo_traces() -> None:
    """From now on, until Dynamo is reset."""
    if callbacks is not None and _begin not in callbacks.start_callbacks:
        callbacks.register_start_callback(_begin)
        callbacks.register_end_callback(_end)


def _begin(*_: Any) -> None:
    region = gc_control.gc_disabled(aged=True)
    region.__enter__()
    _begun.append(region)


def _end(*_: Any) -> None:
    while _begun:
        _begun.pop().__exit__(*sys.exc_info())
