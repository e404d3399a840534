"""The exceptions that mlirfuse raises, beside Python's own TypeError and ValueError."""

from __future__ import annotations

import linecache
import os
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path

from mlirfuse.core import notebook


class FallbackWarning(UserWarning):
    """Something works, but another, slower way than was asked for: a function runs op by op, a loop as Python, a call
    on the host, without the cache on disk."""


class MlirfuseError(Exception):
    """Base of mlirfuse's own errors."""


class TraceError(MlirfuseError, TypeError):
    """A function did something while it was traced that cannot be compiled; the message has the user's line and the
    remedy."""


class ShapeError(MlirfuseError, ValueError):
    """Shapes that do not go together."""


class UnsupportedError(MlirfuseError):
    """Something valid that mlirfuse does not do; the message says what to do instead. ``loc`` is the (file, line)
    of the op that it is about, where it is one."""

    def __init__(self, message: str, loc: tuple[str, int] | None = None):
        super().__init__(message)
        self.loc = loc


class CompileError(MlirfuseError):
    """A pass or code generation failed. With ``fallback`` on, the function runs op by op instead."""


class ScheduleError(CompileError):
    """A schedule that was asked for by hand is not possible; the message says which constraint it violates."""


class CudaError(MlirfuseError):
    """A CUDA driver call failed; :attr:`name` is the driver's name for it, such as ``CUDA_ERROR_ILLEGAL_ADDRESS``."""

    def __init__(self, message: str, name: str = "CUDA_ERROR_UNKNOWN"):
        super().__init__(message)
        self.name = name


class FusionIRError(MlirfuseError, ValueError):
    """MLIR that is no valid fusion program. ``location`` is MLIR's, as text, where it is known."""

    def __init__(self, message: str, location: str | None = None):
        super().__init__(f"{location}: error: {message}" if location else message)
        self.message = message
        self.location = location


class IndexOutOfRangeError(IndexError, RuntimeError):
    """An index of a compiled torch function that is not in its tensor: torch raises IndexError for some ops and
    RuntimeError for others."""


def located(message: str, where: tuple[str, int] | None) -> str:
    """``message`` with a place in the user's program, (file, line), and its source."""
    if where is None:
        return message
    source = linecache.getline(*where).strip()
    return f"{message}\n  at {place(*where)}" + (f": {source}" if source else "")


def place(file: str, line: int) -> str:
    """``FILE:LINE``; in a notebook ``Cell In[5], line 3``. A line of 0 stands for all of what ``file`` names."""
    called = notebook.cell(file)
    if called is not None:
        return f"{called}, line {line}"
    return f"{file}:{line}" if line else file


def nearest(name: str, names: Iterable[str], prefix: str = "") -> str:
    """The end of a sentence that says that there is no ``name``: which of ``names`` was meant, or all of them. All
    begin with ``prefix``."""
    import difflib  # late: only mistakes need it

    among = list(names)
    found = difflib.get_close_matches(name.removeprefix(prefix), [other.removeprefix(prefix) for other in among], 1)
    return f": did you mean '{prefix}{found[0]}'?" if found else f"; there are {', '.join(among)}"


def has_line(error: BaseException) -> bool:
    """Whether the text of ``error`` is for the user: its line is in it, and a remedy where there is one."""
    return isinstance(error, MlirfuseError) or getattr(error, "_located", False)


_OURS = (str(Path(__file__).resolve().parent.parent) + os.sep, "<host program", "<loop>", "<sizes>")


def is_ours(file: str) -> bool:
    """Whether the code of ``file`` is this package's, or Python that it has written."""
    return file.startswith(_OURS)


def warn(message: str, category: type[Warning] = FallbackWarning) -> None:
    """A warning at the line that called this package."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None:
        file = frame.f_code.co_filename
        if not is_ours(file) and not file.startswith("<frozen importlib"):
            break
        level += not file.startswith("<frozen importlib._bootstrap")  # which Python does not count
        frame = frame.f_back
    warnings.warn(message, category, stacklevel=level)
