"""Kernels of a host program for a GPU are compiled before they first run, many at a time, while Python goes on.

What takes long of a kernel, MLIR's passes and NVIDIA's compiler, runs in threads without Python's lock; what Python
does for it, in the thread that begins it. So a model's forward is compiled while its backward is lowered, and the
backward's while the forward runs first. One that does not compile, or whose arguments lie otherwise in a call than is
thought here, is compiled when it runs, which tells what is wrong.
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
    """Begins to compile those of ``launches`` that are not compiled for the sizes ``env``, as far as these tell theirs.
    The first of them that runs waits for all."""
    begun: list[tuple[Launches, Callable[[], None]]] = []
    with _lock, gc_control.gc_disabled(), _workers() as workers:
        for one in launches:
            if one.before is not None or _ended:  # another thread has begun it
                continue
            with contextlib.suppress(Exception):
                rest = one.begun(env, workers.run)
                if rest is not None:
                    begun.append((one, rest))
                    one.before = functools.partial(finish, begun)


def finish(begun: list[tuple[Launches, Callable[[], None]]]) -> None:
    """Loads what was begun, in the order in which it was, once its code is there."""
    with _lock, gc_control.gc_disabled():
        while begun:
            one, rest = begun[0]
            with contextlib.suppress(Exception):  # it is raised again when the kernel is compiled by itself
                rest()
            one.before = None
            begun.pop(0)


class _Workers:
    """Threads that run tasks, at most :data:`_MOST`, until they are told that no more come."""

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
            threads.beside(self._serve)
        return task

    def _serve(self) -> None:
        with mlir.without_lock():
            while (task := self._tasks.get()) is not None:
                task.run()

    def working(self) -> bool:
        """Whether a task may still run."""
        return not all(task.done for task in self._asked)

    def close(self) -> None:
        """No more tasks come."""
        for _ in range(self._serving):
            self._tasks.put(None)

    def wait(self) -> None:
        """Until all that was asked for has run."""
        while self._asked:
            self._asked[-1].wait()
            self._asked.pop()

    def drop(self) -> None:
        """What has not begun does not run."""
        with contextlib.suppress(Empty):
            while True:
                task = self._tasks.get_nowait()
                if task is not None:
                    task.drop()
        self.close()


_working: list[_Workers] = []  # those that may not have ended


@contextlib.contextmanager
def _workers() -> Iterator[_Workers]:
    _working[:] = [one for one in _working if one.working()]
    workers = _Workers()
    _working.append(workers)
    try:
        yield workers
    except BaseException:  # an interrupt: maybe before there was a thread for what was asked
        workers.drop()
        raise
    workers.close()


_ended = False


@atexit.register
def _end() -> None:
    """Waits for what is being compiled: a library must not be torn down under a thread. What runs later is compiled by
    itself."""
    global _ended
    _ended = True
    for workers in _working:
        workers.drop()
        workers.wait()


class _Quiet:
    """Held over a fork: nothing is being compiled. A child would lack the threads, and find locks held that they
    hold."""

    def acquire(self) -> None:
        _lock.acquire()
        try:
            for workers in _working:
                workers.wait()
        except BaseException:  # an interrupt: nobody would release it
            _lock.release()
            raise

    def release(self) -> None:
        _lock.release()


threads.hold_over_forks(_Quiet())
