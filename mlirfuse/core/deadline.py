"""A limit on the time of one compilation, checked while code is generated."""

from __future__ import annotations

import contextlib
import threading
import time

from mlirfuse.core import config
from mlirfuse.core.errors import CompileError

_state = threading.local()


@contextlib.contextmanager
def compiling(bounded: bool):
    """Within it, :func:`check` raises :class:`CompileError` after ``config.compile_seconds``, if ``bounded``."""
    outer = getattr(_state, "end", None)
    _state.end = time.perf_counter() + config.compile_seconds if bounded else None
    try:
        yield
    finally:
        _state.end = outer


def check() -> None:
    """Raise :class:`CompileError` once the time limit is exceeded."""
    end = getattr(_state, "end", None)
    if end is not None and time.perf_counter() > end:
        raise CompileError(f"it takes longer than {config.compile_seconds:g} s to compile (MLIRFUSE_COMPILE_SECONDS)")
