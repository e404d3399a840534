"""Python does not look for garbage while Dynamo traces what we compile, either (see :mod:`mlirfuse.core.garbage`): it
would look through all that was imported and built, up to three times, a tenth of GPT-2's first step."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from torch._dynamo.callback import callback_handler

from mlirfuse.core import garbage

_COMPILING = ("torch._dynamo.convert_frame", "_compile")
_begun: list[Any] = []  # the regions that have not ended


def while_dynamo_traces(backend: Callable[..., Any]) -> None:
    """From now on, until Dynamo is reset, for what ``backend`` is to compile."""
    begin = _begin(backend)
    if begin not in callback_handler.start_callbacks:
        callback_handler.register_start_callback(begin)
        callback_handler.register_end_callback(_end)


@functools.cache
def _begin(backend: Callable[..., Any]) -> Callable[..., None]:
    def begin(*_: Any) -> None:
        if _asks_for(backend, sys._getframe()):
            region = garbage.uncollected(aged=True)
            region.__enter__()
            _begun.append(region)

    return begin


def _end(*_: Any) -> None:
    while _begun:
        _begun.pop().__exit__(*sys.exc_info())


def _asks_for(backend: Callable[..., Any], frame: FrameType | None) -> bool:
    """Whether Dynamo, which calls ``frame``, compiles for ``backend``. It tells callbacks nothing of that."""
    while frame is not None and (frame.f_globals.get("__name__"), frame.f_code.co_name) != _COMPILING:
        frame = frame.f_back
    asked = None if frame is None else frame.f_locals.get("compiler_fn")
    while (inner := getattr(asked, "_torchdynamo_orig_backend", getattr(asked, "compiler_fn", None))) is not None:
        asked = inner
    return asked is backend
