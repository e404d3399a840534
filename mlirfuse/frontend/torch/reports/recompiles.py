"""Replaces torch's log line about Dynamo's recompile limit by one warning that names the failed guard and a remedy."""

from __future__ import annotations

import functools
import logging
import re

from mlirfuse.core.errors import warn
from mlirfuse.frontend.torch.torch_private import CompileContext

_LOGGER = "torch._dynamo.convert_frame"
_SIZE = re.compile(r"tensor '(?P<tensor>.+)' size mismatch at index (?P<dim>\d+)")
_GUARD = re.compile(r"(?P<tensor>[^\s<>=]+)\.size\(\)\[(?P<dim>\d+)\]")
_NUMBER = re.compile(r"(?P<name>[^\s=]+) == -?\d")

_frames: set[int] = set()  # Dynamo's ids of functions with graphs compiled by this back end


def watch() -> None:
    """Records that this back end compiles the function in progress."""
    frame = _frame()
    if frame is not None:
        _frames.add(frame)
        _listen()


def forget() -> None:
    """Forgets the functions: Dynamo has been reset, and restarts its ids."""
    _frames.clear()


def _frame() -> int | None:
    current = None if CompileContext is None else CompileContext.current_compile_id()
    return None if current is None else current.frame_id


@functools.cache
def _listen() -> None:
    logging.getLogger(_LOGGER).addFilter(_limit)


def _limit(record: logging.LogRecord) -> bool:
    """A log filter: drops torch's line for a function of this back end, which gets a warning instead."""
    if not str(record.msg).startswith("torch._dynamo hit config.") or _frame() not in _frames:
        return True
    if not isinstance(record.args, tuple) or len(record.args) < 4:
        return True
    name, limit, function, reason = record.args[:4]
    guard = str(reason).partition("#")[0].partition("\n")[0].partition(": ")[2].strip()
    warn(
        f"{function} was compiled {limit} times, torch._dynamo.config.{name}, and runs uncompiled where "
        f"no compiled version matches: the last failed guard is {guard}{help_with(guard)}"
    )
    return False


def help_with(guard: str) -> str:
    """How the user can avoid this guard, as the end of a sentence; empty where unknown."""
    found = _SIZE.search(guard) or _GUARD.search(guard)
    if found:
        return (
            f"\n  before the first call, torch._dynamo.mark_dynamic({found['tensor']}, {found['dim']}) compiles once "
            "for all sizes"
        )
    found = _NUMBER.search(guard)
    if found and ".param_groups[" in found["name"] and found["name"].endswith(("['betas'][0]", "['momentum']")):
        return f"\n  a learning rate schedule changes {found['name']}: cycle_momentum=False prevents that"
    if found:
        return f"\n  {found['name']} is a number: pass a tensor, or use dynamic=None, to compile once for all values"
    return ""
