"""Source locations: errors and ops name the innermost line of user code, neither ours nor NumPy's."""

from __future__ import annotations

import os
import sys
import threading
from types import FrameType
from typing import Any, NoReturn

import numpy as np

from mlirfuse.core import errors
from mlirfuse.core.errors import ShapeError, TraceError, UnsupportedError

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
    """``error`` with the user's line in its text: the one noted by :func:`as_numpys`, or the one that runs now."""
    kind, where = getattr(error, "_leaves_as", (type(error), None))
    if where is None and getattr(error, "_located", False):
        return error
    created: Exception = kind(located(str(error), where))
    if isinstance(error, np.exceptions.AxisError):
        created.axis, created.ndim = error.axis, error.ndim  # type: ignore[attr-defined]
    created._located = True  # type: ignore[attr-defined]  # marks an error that has the line
    return created.with_traceback(error.__traceback__)


def as_numpys(error: Exception) -> Exception:
    """``error`` as NumPy raises it, with the user's line noted: handlers of the traced function see NumPy's text and
    class, and :func:`located_error` adds the line where it leaves the function. Outside a trace, located."""
    if not refusals.traced or getattr(error, "_located", False):
        return located_error(error)
    seen = ValueError(str(error)) if isinstance(error, ShapeError) else error
    seen._leaves_as, seen._located = (type(error), location()), True  # type: ignore[attr-defined]
    return seen


class _Refusals(threading.local):
    """``last``: this thread's last error that NumPy would not raise. User code may have caught it. ``traced``: user
    code runs that may catch errors."""

    last: Exception | None = None
    traced: bool = False


refusals = _Refusals()


def fail(kind: type[Exception], message: str, kept: bool = True) -> NoReturn:
    """Raises ``kind`` with the user's line. ``kept``: also records the error, so that a user's handler cannot hide an
    error that NumPy would not raise."""
    error = kind(message)
    if not isinstance(error, (TraceError, UnsupportedError)):
        raise as_numpys(error)
    error = located_error(error)
    if kept:
        refusals.last = error
    raise error


class at_users_line:
    """A context that raises errors of the classes ``caught`` at the user's line, as ``kind`` or as they are."""

    def __init__(self, *caught: type[Exception], kind: type[Exception] | None = None):
        self.caught, self.kind = caught, kind

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: Any, error: BaseException | None, traceback: Any) -> None:
        if isinstance(error, self.caught):
            fail(self.kind or type(error), str(error))


def unsupported(what: str, hint: str = "") -> NoReturn:
    """Raises UnsupportedError: compiled functions do not support ``what``; ``hint``: what to do instead."""
    fail(UnsupportedError, f"{what} is not supported in a compiled function{': ' if hint else ''}{hint}")


def refuse(name: str, **given) -> None:
    """Raises for unsupported arguments of ``np.{name}`` that differ from NumPy's defaults."""
    for key, value in given.items():
        if value is not None and value is not np._NoValue and value is not True:
            unsupported(f"np.{name}: the argument '{key}'", "use np.where on the operand" if key == "where" else "")
