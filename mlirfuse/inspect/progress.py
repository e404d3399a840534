"""Progress lines on stderr while a large model compiles: the first after two seconds, then one every five. On a
terminal, in a notebook, or with ``MLIRFUSE_PROGRESS=1``; never with ``MLIRFUSE_PROGRESS=0``."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable

from mlirfuse.core import environment, notebook
from mlirfuse.runtime import events

FIRST, AGAIN, IDLE = 2.0, 5.0, 5.0  # seconds: to the first line, between lines, idle before a restart


class Progress:
    """Counts compilations and writes lines with ``write``. ``clock`` returns seconds."""

    def __init__(self, write: Callable[[str], object], clock: Callable[[], float] = time.monotonic):
        self._write, self._clock = write, clock
        self._begun = self._heard = self._reported = -float("inf")
        self._done = self._known = 0

    def advanced(self, event: events.Advanced) -> None:
        """A graph has reached another pass, or the number of its kernel programs is known."""
        self._update(event.what, 0, event.programs)

    def compiled(self, event: events.Compiled) -> None:
        """One more kernel program is compiled."""
        self._update("kernels", 1, 0)

    def _update(self, what: str, done: int, known: int) -> None:
        now = self._clock()
        if now - self._heard > IDLE:
            self._begun, self._done, self._known = now, 0, 0
        self._heard = now
        self._done, self._known = self._done + done, self._known + known
        if now - self._begun < FIRST or now - self._reported < AGAIN:
            return
        self._reported = now
        of = f" of {self._known}" if self._known > self._done else ""
        self._write(f"mlirfuse: compiling, {now - self._begun:.0f} s: {what}; {self._done}{of} programs of kernels\n")


@functools.cache
def follow() -> None:
    """Write progress lines from now on, if stderr is shown to a user."""
    looks_on = sys.stderr.isatty() or notebook.running() if environment.PROGRESS is None else environment.PROGRESS
    if not looks_on:
        return
    progress = Progress(lambda line: sys.stderr.write(line))
    events.observe(events.Advanced, progress.advanced)
    events.observe(events.Compiled, progress.compiled)
