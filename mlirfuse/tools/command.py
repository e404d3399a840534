"""Common code of all command-line programs."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable


def command(main: Callable[[list[str] | None], int]) -> Callable[..., int]:
    """Decorate a program's ``main``, so that it ends quietly when its output is closed, as ``… | head`` does. The exit
    status is then 141, that of a program ended by the signal."""

    @functools.wraps(main)
    def run(argv: list[str] | None = None) -> int:
        try:
            try:
                return main(argv)
            finally:
                sys.stdout.flush()
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            for stream in (sys.stdout, sys.stderr):  # Python flushes them at exit
                os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
            return 141

    return run
