"""Shortened tracebacks for a user's error: the user's frames, and one of this package. Others stay complete, for bug
reports."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any, TypeVar, cast

from mlirfuse.core.errors import CompileError, CudaError, MlirfuseError, has_line, is_ours

F = TypeVar("F", bound=Callable[..., Any])
_OF_VALUES = (ArithmeticError, IndexError)  # errors of values found by compiled code, in whatever frame they are raised


def shorten(error: BaseException) -> None:
    """Remove this package's frames but the outermost from the traceback of ``error``, if it is a user's error, and all
    of them from the tracebacks of its causes and contexts."""
    if not isinstance(error, Exception) or not _is_users(error):
        return
    error.__traceback__ = _without_ours(error.__traceback__, 1)
    seen, pending = {id(error)}, [error]
    while pending:
        later = pending.pop()
        if later.__cause__ is not None and _says_the_same(later, later.__cause__):
            later.__cause__ = None  # nor is the cause's own cause shown
        while later.__context__ is not None and _is_internal(later.__context__):
            later.__context__ = later.__context__.__context__
        for earlier in (later.__cause__, None if later.__suppress_context__ else later.__context__):
            if isinstance(earlier, Exception) and id(earlier) not in seen:
                seen.add(id(earlier))
                earlier.__traceback__ = _without_ours(earlier.__traceback__, 0)
                pending.append(earlier)


def shortened(function: F) -> F:
    """Decorator: :func:`shorten` the tracebacks of exceptions."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            shorten(error)
            raise

    return cast(F, call)


def _is_users(error: Exception) -> bool:
    """Whether the message is complete for the user: an error class meant for users, a message with the user's line, or
    an error that the user's own code raised."""
    if isinstance(error, (CompileError, CudaError)):
        return False
    if has_line(error) or isinstance(error, _OF_VALUES):
        return True
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return last is not None and not _of_ours(last)


def _says_the_same(error: Exception, cause: BaseException) -> bool:
    """Whether NumPy's own error, ``cause``, adds nothing and was raised at the same line."""
    return str(error).startswith(str(cause).strip()) and _last_users(error) == _last_users(cause)


def _last_users(error: BaseException) -> tuple[str, int] | None:
    found = _without_ours(error.__traceback__, 0)
    while found is not None and found.tb_next is not None:
        found = found.tb_next
    return None if found is None else (found.tb_frame.f_code.co_filename, found.tb_lineno)


def _is_internal(error: BaseException) -> bool:
    """Whether ``error`` is one that this package uses internally."""
    return type(error).__module__.startswith("mlirfuse.") and not isinstance(error, MlirfuseError)


def _of_ours(frame: types.TracebackType) -> bool:
    return is_ours(frame.tb_frame.f_code.co_filename)


def _without_ours(trace: types.TracebackType | None, keep: int) -> types.TracebackType | None:
    frames = []
    while trace is not None:
        if not _of_ours(trace) or keep > 0:
            keep -= _of_ours(trace)
            frames.append(trace)
        trace = trace.tb_next
    for frame in reversed(frames):
        trace = types.TracebackType(trace, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return trace
