"""Source locations: errors and ops name the innermost line of user code, neither ours nor NumPy's."""

from __future__ import annotations

import os
import sys
import threading
from types import FrameType
from typing import NoReturn

import numpy as np

from mlirfuse.core import errors
from mlirfuse.core.errors import TraceError, UnsupportedError

OURS = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep


_NUMPYS = os.path.dirname(os.path.abspath(np.__file__)) + os.sep


_internal: dict[str, bool] = {}


def user_frame() -> FrameType | None:
    """The innermost frame that is neither ours nor NumPy's, or None."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        internal = _internal.get(name)
        if not (is_internal(name) if internal is None else internal):
            return frame
        frame = frame.f_back
    return None


def is_internal(file: str) -> bool:
    found = _internal.get(file)
    if found is None:
        found = _internal[file] = file.startswith((OURS, _NUMPYS, "<__array_function__", "<frozen"))
    return found


def location() -> tuple[str, int] | None:
    frame = user_frame()
    return None if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def located(message: str, where: tuple[str, int] | None = None) -> str:
    """``message`` with file, line and source: ``where``, or the user's line that runs now."""
    return errors.located(message, where or location())


class UnsupportedAttribute(UnsupportedError, AttributeError):
    """An attribute of arrays that traced arrays do not have."""


def located_error(error: Exception) -> Exception:
    if getattr(error, "_located", False):
        return error
    created = type(error)(located(str(error)))
    created._located = True  # type: ignore[attr-defined]  # marks an error whose text has the line
    return created


class _Refusals(threading.local):
    """``last``: this thread's last error that NumPy would not raise. User code may have caught it."""

    last: Exception | None = None


refusals = _Refusals()


def fail(kind: type[Exception], message: str, kept: bool = True) -> NoReturn:
    """Raises ``kind`` with the user's line. ``kept``: also records the error, so that a user's handler cannot hide an
    error that NumPy would not raise."""
    error = located_error(kind(message))
    if kept and isinstance(error, (TraceError, UnsupportedError)):
        refusals.last = error
    raise error


def unsupported(what: str, hint: str = "") -> NoReturn:
    """Raises UnsupportedError: compiled functions do not support ``what``; ``hint``: what to do instead."""
    fail(UnsupportedError, f"{what} is not supported in a compiled function{': ' if hint else ''}{hint}")
