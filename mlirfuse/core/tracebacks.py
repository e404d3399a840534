"""Tracebacks of a user's mistake: the user's frames, and one of ours. Any other stays whole, for reports."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any, TypeVar, cast

from mlirfuse.core.errors import CompileError, CudaError, MlirfuseError, has_line, is_ours

F = TypeVar("F", bound=Callable[..., Any])
_OF_VALUES = (ArithmeticError, IndexError)  # which compiled code finds, in whatever frame they are raised


def shorten(error: BaseException) -> None:
    """Takes our frames but the outermost out of the traceback of ``error``, if it is a user's mistake, and all of them
    out of those of the errors that it came from."""
    if not isinstance(error, Exception) or not _is_users(error):
        return
    error.__traceback__ = _without_ours(error.__traceback__, 1)
    seen, pending = {id(error)}, [error]
    while pending:
        later = pending.pop()
        if later.__cause__ is not None and _says_the_same(later, later.__cause__):
            later.__cause__ = None  # and what it came from is not shown
        while later.__context__ is not None and _is_internal(later.__context__):
            later.__context__ = later.__context__.__context__
        for earlier in (later.__cause__, None if later.__suppress_context__ else later.__context__):
            if isinstance(earlier, Exception) and id(earlier) not in seen:
                seen.add(id(earlier))
                earlier.__traceback__ = _without_ours(earlier.__traceback__, 0)
                pending.append(earlier)


def shortened(function: F) -> F:
    """Decorator: what the function raises has the traceback that :func:`shorten` leaves."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            shorten(error)
            raise

    return cast(F, call)


def _is_users(error: Exception) -> bool:
    """Whether the message says all that there is to know: an error for the user by its class, one with the user's line,
    or one that the user's own code raised."""
    if isinstance(error, (CompileError, CudaError)):
        return False
    if has_line(error) or isinstance(error, _OF_VALUES):
        return True
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return last is not None and not _of_ours(last)


def _says_the_same(error: Exception, cause: BaseException) -> bool:
    """Whether NumPy's own error, ``cause``, says no more, at the same line."""
    return str(error).startswith(str(cause).strip()) and _last_users(error) == _last_users(cause)


def _last_users(error: BaseException) -> tuple[str, int] | None:
    found = _without_ours(error.__traceback__, 0)
    while found is not None and found.tb_next is not None:
        found = found.tb_next
    return None if found is None else (found.tb_frame.f_code.co_filename, found.tb_lineno)


def _is_internal(error: BaseException) -> bool:
    """Whether it is how our functions tell each other something."""
    return type(error).__module__.startswith("mlirfuse.") and not isinstance(error, MlirfuseError)


def _of_ours(part: types.TracebackType) -> bool:
    return is_ours(part.tb_frame.f_code.co_filename)


def _without_ours(trace: types.TracebackType | None, keep: int) -> types.TracebackType | None:
    parts = []
    while trace is not None:
        if not _of_ours(trace) or keep > 0:
            keep -= _of_ours(trace)
            parts.append(trace)
        trace = trace.tb_next
    for part in reversed(parts):
        trace = types.TracebackType(trace, part.tb_frame, part.tb_lasti, part.tb_lineno)
    return trace
