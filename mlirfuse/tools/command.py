"""What all programs on the command line have in common."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable


def command(main: Callable[[list[str] | None], int]) -> Callable[..., int]:
    """``main`` of a program, which ends quietly where nobody reads on, as ``… | head`` does. The status is then that of
    a program that the signal ends: 141."""

    @functools.wraps(main)
    def run(argv: list[str] | None = None) -> int:
        try:
            try:
                return main(argv)
            finally:
                sys.stdout.flush()
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            for stream in (sys.stdout, sys.stderr):  # which Python writes out as it ends
                os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
            return 141

    return run
