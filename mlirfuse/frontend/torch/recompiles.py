"""Past Dynamo's recompile limit a function runs as plain Python: one warning says which guard failed, and what would
help, in place of torch's line in its log."""

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

_frames: set[int] = set()  # Dynamo's numbers of the functions of which we have compiled graphs


def watch() -> None:
    """Notes that the function which Dynamo is compiling is compiled by us."""
    frame = _frame()
    if frame is not None:
        _frames.add(frame)
        _listen()


def forget() -> None:
    """Dynamo has been reset, and numbers functions anew."""
    _frames.clear()


def _frame() -> int | None:
    current = None if CompileContext is None else CompileContext.current_compile_id()
    return None if current is None else current.frame_id


@functools.cache
def _listen() -> None:
    logging.getLogger(_LOGGER).addFilter(_limit)


def _limit(record: logging.LogRecord) -> bool:
    """Whether torch's own line is to be written: not for a function of ours, of which a warning tells."""
    if not str(record.msg).startswith("torch._dynamo hit config.") or _frame() not in _frames:
        return True
    if not isinstance(record.args, tuple) or len(record.args) < 4:
        return True
    name, limit, function, reason = record.args[:4]
    guard = str(reason).partition("#")[0].partition("\n")[0].partition(": ")[2].strip()
    warn(
        f"{function} was compiled {limit} times, torch._dynamo.config.{name}, and runs without being compiled where "
        f"none of these fits: the last guard that failed is {guard}{help_with(guard)}"
    )
    return False


def help_with(guard: str) -> str:
    """What a user can write so that this guard is not made, as the end of a sentence; nothing where nothing helps."""
    found = _SIZE.search(guard) or _GUARD.search(guard)
    if found:
        return (
            f"\n  before the first call, torch._dynamo.mark_dynamic({found['tensor']}, {found['dim']}) compiles once "
            "for all sizes"
        )
    found = _NUMBER.search(guard)
    if found and ".param_groups[" in found["name"] and found["name"].endswith(("['betas'][0]", "['momentum']")):
        return f"\n  a schedule changes {found['name']}: one with cycle_momentum=False leaves it as it is"
    if found:
        return f"\n  {found['name']} is a number: as a tensor, or with dynamic=None, it is compiled once for all"
    return ""
