"""Where in the user's program a node of a traced graph comes from."""

from __future__ import annotations

import functools
import re

from torch.fx import Node

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')


def user_line(node: Node | None) -> tuple[str, int] | None:
    """File and line of the innermost frame of a node's stack trace, which torch strips of its own frames."""
    trace = node.meta.get("stack_trace") if node is not None else None
    return _line(trace) if trace else None


@functools.lru_cache(maxsize=4096)
def _line(trace: str) -> tuple[str, int] | None:
    found = list(_FRAME.finditer(trace))
    return (found[-1]["file"], int(found[-1]["line"])) if found else None
