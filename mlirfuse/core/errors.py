"""The exceptions that mlirfuse raises, beside Python's own TypeError and ValueError."""

from __future__ import annotations

import linecache
import sys
import warnings
from pathlib import Path


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
    return f"{message}\n  at {where[0]}:{where[1]}" + (f": {source}" if source else "")


_PACKAGE = str(Path(__file__).resolve().parent.parent)


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """A warning at the line that called this package, or the Python that it wrote for a host program."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith((_PACKAGE, "<host program")):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
