"""Compiles the GPU kernels of a host program before their first run, many in parallel, while Python continues.

The slow steps of a kernel's compilation, MLIR's passes and NVIDIA's compiler, run in threads without the GIL; the
Python part runs in the thread that starts it. So a model's forward is compiled while its backward is lowered, and the
backward's while the forward runs first. A kernel that fails to compile, or whose arguments have another layout in a
call than assumed here, is compiled when it runs, which reports the error.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
from collections.abc import Callable, Iterable, Iterator
from queue import Empty, SimpleQueue
from typing import Any

from mlirfuse.core import gc_control, mlir, threads
from mlirfuse.runtime.launches import Launches

_MOST = 16  # threads
_lock = threads.lock()


def begin(launches: Iterable[Launches], env: dict[str, int]) -> None:
    """Start to compile those of ``launches`` that are not compiled for the sizes ``env``, as far as ``env`` has their
    sizes. The first of them that runs waits for all."""
    started: list[tuple[Launches, Callable[[], None]]] = []
    with _lock, gc_control.gc_disabled(), _workers() as workers:
        for one in launches:
            if one.finish is not None or _ended:  # another thread has started it
                continue
            with contextlib.suppress(Exception):
                rest = one.start_compiling(env, workers.run)
                if rest is not None:
                    started.append((one, rest))
                    one.finish = functools.partial(finish, started)


def finish(started: list[tuple[Launches, Callable[[], None]]]) -> None:
    """Load the started kernels, in the order in which they were started, once their code is ready."""
    with _lock, gc_control.gc_disabled():
        while started:
            one, rest = started[0]
            with contextlib.suppress(Exception):  # it is raised again when the kernel is compiled at its run
                rest()
            one.finish = None
            started.pop(0)


class _Workers:
    """A pool of at most :data:`_MOST` threads that run tasks until it is closed."""

    def __init__(self) -> None:
        self._most = min(_MOST, os.cpu_count() or 1)
        self._tasks: SimpleQueue[threads.Task | None] = SimpleQueue()
        self._serving = 0
        self._asked: list[threads.Task] = []

    def run(self, function: Callable[[], Any]) -> threads.Task:
        task = threads.Task(function)
        self._tasks.put(task)
        self._asked.append(task)
        if self._serving < self._most:
            self._serving += 1
            threads.start_thread(self._serve)
        return task

    def _serve(self) -> None:
        with mlir.without_lock():
            while (task := self._tasks.get()) is not None:
                task.run()

    def working(self) -> bool:
        """Whether a task may still run."""
        return not all(task.done for task in self._asked)

    def close(self) -> None:
        """Accept no more tasks."""
        for _ in range(self._serving):
            self._tasks.put(None)

    def wait(self) -> None:
        """Wait until all submitted tasks have run."""
        while self._asked:
            self._asked[-1].wait()
            self._asked.pop()

    def drop(self) -> None:
        """Cancel the tasks that have not started."""
        with contextlib.suppress(Empty):
            while True:
                task = self._tasks.get_nowait()
                if task is not None:
                    task.drop()
        self.close()


_working: list[_Workers] = []  # pools that may still run


@contextlib.contextmanager
def _workers() -> Iterator[_Workers]:
    _working[:] = [one for one in _working if one.working()]
    workers = _Workers()
    _working.append(workers)
    try:
        yield workers
    except BaseException:  # an interrupt: perhaps before a thread for a submitted task was started
        workers.drop()
        raise
    workers.close()


_ended = False


@atexit.register
def _end() -> None:
    """Wait for running compilations: a library must not be torn down under a thread. Kernels that run later are
    compiled at their run."""
    global _ended
    _ended = True
    for workers in _working:
        workers.drop()
        workers.wait()


class _NoCompilation:
    """A lock held across a fork: no compilation runs then. The child would lack the threads, and find their locks
    held."""

    def acquire(self) -> None:
        _lock.acquire()
        try:
            for workers in _working:
                workers.wait()
        except BaseException:  # an interrupt: nothing else would release it
            _lock.release()
            raise

    def release(self) -> None:
        _lock.release()


threads.hold_over_forks(_NoCompilation())
