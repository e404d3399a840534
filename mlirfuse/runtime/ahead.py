"""Kernels of a host program for a GPU are compiled before they first run, many at a time.

What takes long of a kernel, MLIR's passes and NVIDIA's compiler, runs in threads without Python's lock; what Python
does for it, in this thread. One that does not compile, or whose arguments lie otherwise in a call than is thought here,
is compiled when it runs, which tells what is wrong.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from typing import Any

from mlirfuse.core import garbage, mlir, threads
from mlirfuse.runtime.launches import Launches

_MOST = 16  # threads
_lock = threads.lock()
threads.hold_over_forks(_lock)  # a child would lack the threads, and find locks held that they hold


def compile_ahead(launches: Iterable[Launches], env: dict[str, int]) -> None:
    """Compiles those of ``launches`` that are not compiled for the sizes ``env``, as far as these tell theirs."""
    with _lock, garbage.uncollected():
        workers = _Workers(min(_MOST, os.cpu_count() or 1))
        try:
            begun = []
            for one in launches:
                with contextlib.suppress(Exception):  # it is raised again when the kernel runs
                    begun.append(one.begun(env, workers.run))
            for finish in filter(None, begun):
                with contextlib.suppress(Exception):
                    finish()
        finally:
            workers.end()


class _Workers:
    """Threads that run tasks, at most ``most``."""

    def __init__(self, most: int):
        self._most = most
        self._tasks: SimpleQueue[threads.Task | None] = SimpleQueue()
        self._serving: list[threads.Task] = []

    def run(self, function: Callable[[], Any]) -> threads.Task:
        task = threads.Task(function)
        self._tasks.put(task)
        if len(self._serving) < self._most:
            self._serving.append(threads.beside(self._serve))
        return task

    def _serve(self) -> None:
        with mlir.without_lock():
            while (task := self._tasks.get()) is not None:
                task.run()

    def end(self) -> None:
        """Waits for what was begun."""
        for _ in self._serving:
            self._tasks.put(None)
        for serving in self._serving:
            serving.result()
