"""Commands that compile at the same time and measure one by one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator

import torch


class Turns:
    """Of several commands with the same file ``path`` one measures at a time, and none while another compiles: all hold
    its lock, shared, until they are about to measure. After ``patience`` seconds they do not wait for compilers any
    more, and ``quiet`` is False. Without a path nothing is waited for."""

    def __init__(self, path: str | None, patience: float = float("inf")):
        self.patience, self.quiet, self.files = time.monotonic() + patience, True, []
        if path:
            self.files = [os.open(name, os.O_CREAT | os.O_RDWR) for name in (path, path + ".measuring")]
            fcntl.flock(self.files[0], fcntl.LOCK_SH)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        if not self.files:
            yield
            return
        compiling, measuring = self.files
        torch.cuda.empty_cache()  # the others need memory, too
        fcntl.flock(compiling, fcntl.LOCK_UN)
        fcntl.flock(measuring, fcntl.LOCK_EX)
        self.quiet = self._wait(compiling)
        yield
        torch.cuda.empty_cache()
        for file in self.files:
            fcntl.flock(file, fcntl.LOCK_UN)

    def _wait(self, compiling: int) -> bool:
        """Whether no other command compiles any more."""
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(compiling, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            if time.monotonic() > self.patience:
                return False
            time.sleep(0.1)
