"""The exceptions that mlirfuse raises, besides Python's TypeError and ValueError."""

from __future__ import annotations

import linecache
import os
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path

from mlirfuse.core import notebook


class FallbackWarning(UserWarning):
    """Something works, but more slowly than requested: a function runs op by op, a loop as Python, a call on the host,
    or the disk cache is off."""


class MlirfuseError(Exception):
    """Base of mlirfuse's own errors."""


class TraceError(MlirfuseError, TypeError):
    """A function did something while it was traced that cannot be compiled; the message has the user's line and a
    remedy."""


class ShapeError(MlirfuseError, ValueError):
    """Incompatible shapes."""


class UnsupportedError(MlirfuseError):
    """Something valid that mlirfuse does not support; the message says what to do instead. ``loc``: the (file, line) of
    the op, if known."""

    def __init__(self, message: str, loc: tuple[str, int] | None = None):
        super().__init__(message)
        self.loc = loc


class CompileError(MlirfuseError):
    """A pass or code generation failed. With ``fallback`` on, the function runs op by op instead."""


class ScheduleError(CompileError):
    """A schedule requested by hand is not possible; the message names the violated constraint."""


class CudaError(MlirfuseError):
    """A CUDA driver call failed; :attr:`name` is the driver's error name, such as ``CUDA_ERROR_ILLEGAL_ADDRESS``."""

    def __init__(self, message: str, name: str = "CUDA_ERROR_UNKNOWN"):
        super().__init__(message)
        self.name = name


class FusionIRError(MlirfuseError, ValueError):
    """MLIR that is not a valid fusion program. ``location``: MLIR's location as text, if known."""

    def __init__(self, message: str, location: str | None = None):
        super().__init__(f"{location}: error: {message}" if location else message)
        self.message = message
        self.location = location


class IndexOutOfRangeError(IndexError, RuntimeError):
    """An index of a compiled torch function is out of range. Both base classes: torch raises IndexError for some ops
    and RuntimeError for others."""


def located(message: str, where: tuple[str, int] | None) -> str:
    """Return ``message`` with a location in the user's program, (file, line), and its source line."""
    if where is None:
        return message
    source = linecache.getline(*where).strip()
    return f"{message}\n  at {place(*where)}" + (f": {source}" if source else "")


def place(file: str, line: int) -> str:
    """``FILE:LINE``; in a notebook ``Cell In[5], line 3``. A line of 0 stands for the whole of what ``file`` names."""
    called = notebook.cell(file)
    if called is not None:
        return f"{called}, line {line}"
    return f"{file}:{line}" if line else file


def nearest(name: str, names: Iterable[str], prefix: str = "") -> str:
    """The end of a sentence that rejects an unknown ``name``: the closest of ``names``, or all of them. All of them
    begin with ``prefix``."""
    import difflib  # here: only errors need it

    choices = list(names)
    found = difflib.get_close_matches(name.removeprefix(prefix), [other.removeprefix(prefix) for other in choices], 1)
    return f": did you mean '{prefix}{found[0]}'?" if found else f"; there are {', '.join(choices)}"


def has_line(error: BaseException) -> bool:
    """Whether the message of ``error`` is for the user: it has the user's line, and a remedy where there is one."""
    return isinstance(error, MlirfuseError) or getattr(error, "_located", False)


_OURS = (str(Path(__file__).resolve().parent.parent) + os.sep, "<host program", "<loop>", "<sizes>")


def is_ours(file: str) -> bool:
    """Whether ``file`` is this package's code, or Python that it generated."""
    return file.startswith(_OURS)


def warn(message: str, category: type[Warning] = FallbackWarning) -> None:
    """Emit a warning at the user's line that called this package."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None:
        file = frame.f_code.co_filename
        if not is_ours(file) and not file.startswith("<frozen importlib"):
            break
        level += not file.startswith("<frozen importlib._bootstrap")  # which Python does not count
        frame = frame.f_back
    warnings.warn(message, category, stacklevel=level)
