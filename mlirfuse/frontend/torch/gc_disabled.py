"""Disables Python's cyclic garbage collector also while Dynamo traces (see :mod:`mlirfuse.core.gc_control`): it would
traverse everything imported and built up to three times, a tenth of GPT-2's first step.

Dynamo's callbacks do not say for which back end it traces. So this applies to all of Dynamo's compilations from this
back end's first one until Dynamo is reset, and also to the first one, during which the back end is loaded."""

from __future__ import annotations

import sys
from typing import Any

from mlirfuse.core import gc_control
from mlirfuse.frontend.torch.torch_private import callbacks

_begun: list[Any] = []  # active regions


def while_dynamo_traces() -> None:
    """Registers the callbacks, until Dynamo is reset."""
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
