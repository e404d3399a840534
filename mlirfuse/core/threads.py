"""Locks that a fork does not leave held, and work that no signal handler interrupts."""

from __future__ import annotations

import _thread
import atexit
import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from importlib import _bootstrap
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")
_IMPORTED = {"llvmlite", "ml_dtypes", "mlirfuse", "numba_cuda_mlir", "numpy"}  # some of it only when it is needed
_locks: set[weakref.ref] = set()
_libraries: list[Any] = []  # locks that a fork holds
_held: list[Any] = []  # those that the fork that is going on holds
_ending = False  # the process ends: no thread of ours shall outlive it


def lock() -> Any:
    """A reentrant lock that is free in the child of a fork where another thread of the parent held it: that thread is
    not in the child and would never release it. So what it guards has to be whole at every moment, as an interrupt
    demands anyway."""
    created = threading.RLock()
    _locks.add(weakref.ref(created, _locks.discard))  # no callback in Python, in which an interrupt would be lost
    return created


def _locks_of_properties() -> Iterator[Any]:
    """The locks of our classes' cached properties: before Python 3.12 each has one, for all instances."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "mlirfuse":
            for cls in list(vars(module).values()):
                if isinstance(cls, type):
                    properties = (p for p in vars(cls).values() if isinstance(p, functools.cached_property))
                    yield from (p.lock for p in properties)  # type: ignore[attr-defined]  # gone from 3.12 on


def hold_over_forks(library_lock: Any) -> None:
    """A fork waits for this lock and holds it, so that the child finds whole what a library guards by it. Who holds one
    may only take those that were told of before."""
    _libraries.append(library_lock)


def _finish_imports() -> None:
    """Waits for the threads that import something that compiling needs: the child would wait for ever."""
    waited: set[str] = set()
    module_locks = _bootstrap._module_locks  # type: ignore[attr-defined]  # not in the stubs
    while names := {n for n in list(module_locks) if n.partition(".")[0] in _IMPORTED} - waited:
        for name in names:
            _bootstrap._lock_unlock_module(name)  # type: ignore[attr-defined]  # not in the stubs
        waited |= names


def _before_fork() -> None:
    _finish_imports()
    for library_lock in reversed(_libraries):
        library_lock.acquire()
        _held.append(library_lock)


def _after_fork() -> None:
    while _held:
        _held.pop().release()


def _after_fork_in_child() -> None:
    global _tasks, _serving
    _after_fork()
    _tasks, _serving = SimpleQueue(), False  # the thread is not in the child
    for ref in list(_owners):
        _owners.discard(ref)
        if (owner := weakref.ref.__call__(ref)) is not None:
            _watch(owner, ref.free)
    held = [
        *(one for ref in list(_locks) if (one := ref()) is not None),
        *(_locks_of_properties() if sys.version_info < (3, 12) else ()),
    ]
    for one in held:
        if not one._is_owned():  # by the thread that forks, which goes on and releases it
            one._at_fork_reinit()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)


class Task:
    """``function()``, to be run in another thread. Python runs signal handlers in the main thread, so that no interrupt
    arrives in it. The process does not wait for it at its end."""

    # Not threading.Thread: its start and join are written in Python, and an interrupt in them can leave a lock held
    # that the new thread needs.

    def __init__(self, function: Callable[[], Any]):
        self._function = function
        self._found: list[Any] = []
        self._error: list[BaseException] = []
        self._done = _thread.allocate_lock()
        self._done.acquire()

    def run(self) -> None:
        """Runs the function, once."""
        try:
            self._found.append(self._function())
        except BaseException as error:
            self._error.append(error)
        finally:
            self._done.release()

    @property
    def done(self) -> bool:
        """Whether it has run."""
        return not self._done.locked()

    def drop(self) -> None:
        """Instead of :meth:`run`: whoever waits for the result gets an error."""
        self._error.append(RuntimeError("dropped"))
        self._done.release()

    def wait(self) -> None:
        """Until it has run."""
        with self._done:
            pass

    def result(self) -> Any:
        """What the function gave; raises what it raised. An interrupt ends the waiting; the function runs on to its
        end."""
        self.wait()
        if self._error:
            raise self._error[0]
        return self._found[0]


def beside(function: Callable[[], Any]) -> Task:
    """``function()`` in a thread of its own."""
    task = Task(function)
    _thread.start_new_thread(task.run, ())
    return task


# One thread does what must not be interrupted, and what frees LLVM's things wherever Python collects them: malloc gives
# each thread that runs beside others memory of its own, and keeps that at the size of the largest compilation.
_tasks: SimpleQueue[Callable[[], Any]] = SimpleQueue()
_serving = False


def _serve(tasks: SimpleQueue[Callable[[], Any]]) -> None:
    while True:
        tasks.get()()


def _submit(function: Callable[[], Any]) -> None:
    global _serving
    if not _serving:
        _thread.start_new_thread(_serve, (_tasks,))
        _serving = True  # an interrupt before makes two of them, which does no harm
    _tasks.put(function)


class _Owner(weakref.ref):
    """Of what owns something of a library. As a task, when that is gone, it frees it."""

    __slots__ = ("free",)
    free: Callable[[], Any]

    def __call__(self) -> None:
        _owners.discard(self)
        if not _ending:
            Task(self.free).run()


_owners: set[_Owner] = set()


def when_dropped(owner: Any, free: Callable[[], Any]) -> None:
    """Has ``free()`` run uninterrupted once ``owner`` is gone; not at the process's end. Where it is dropped no Python
    runs, in which an interrupt would be swallowed: so this rather than ``__del__``."""
    _submit(lambda: None)  # has the tasks served
    _watch(owner, free)


def _watch(owner: Any, free: Callable[[], Any]) -> None:
    ref = _Owner(owner, _tasks.put)
    ref.free = free
    _owners.add(ref)


@atexit.register
def _end() -> None:
    global _ending
    _ending = True


def uninterrupted(function: Callable[[], T]) -> T:
    """``function()``, in which no signal handler raises: for code that hands ownership to a library, or holds a
    library's lock, and is no longer sound when it is left halfway. What was dropped before is freed before."""
    if _ending or threading.get_ident() != threading.main_thread().ident:
        return function()
    task = Task(function)
    _submit(task.run)
    return task.result()
