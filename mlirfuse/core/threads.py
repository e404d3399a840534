"""Locks that are safe across ``fork``, and tasks that signal handlers cannot interrupt."""

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
_IMPORTED = {"llvmlite", "ml_dtypes", "mlirfuse", "numba_cuda_mlir", "numpy"}  # partly imported on demand
_locks: set[weakref.ref] = set()
_libraries: list[Any] = []  # library locks acquired around a fork
_acquired: list[Any] = []  # those acquired for the current fork
_ending = False  # the process is exiting: start no further threads


def lock() -> Any:
    """Return a reentrant lock that is released in the child of a fork, even where another thread of the parent held it:
    that thread does not exist in the child and would never release it. So the data that it guards has to be consistent
    at every moment, as interrupts demand anyway."""
    created = threading.RLock()
    _locks.add(weakref.ref(created, _locks.discard))  # no Python callback: an interrupt in one would be lost
    return created


def _locks_of_properties() -> Iterator[Any]:
    """The locks of this package's cached properties: before Python 3.12 each property has one, for all instances."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "mlirfuse":
            for cls in list(vars(module).values()):
                if isinstance(cls, type):
                    properties = (p for p in vars(cls).values() if isinstance(p, functools.cached_property))
                    yield from (p.lock for p in properties)  # type: ignore[attr-defined]  # gone from 3.12 on


def hold_over_forks(library_lock: Any) -> None:
    """Acquire a library's lock around each fork, so that the child finds the library's data consistent. A thread that
    holds one lock may only acquire those registered before it."""
    _libraries.append(library_lock)


def _finish_imports() -> None:
    """Wait for other threads' imports of modules that compilation needs: in the child their locks would never be
    released."""
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
        _acquired.append(library_lock)


def _after_fork() -> None:
    while _acquired:
        _acquired.pop().release()


def _after_fork_in_child() -> None:
    global _tasks, _serving
    _after_fork()
    _tasks, _serving = SimpleQueue(), False  # the thread is not in the child
    for ref in list(_owners):
        _owners.discard(ref)
        if (owner := weakref.ref.__call__(ref)) is not None:
            _watch(owner, ref.free)
    locks = [
        *(one for ref in list(_locks) if (one := ref()) is not None),
        *(_locks_of_properties() if sys.version_info < (3, 12) else ()),
    ]
    for one in locks:
        if not one._is_owned():  # the forking thread goes on and releases its own
            one._at_fork_reinit()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)


class Task:
    """``function()``, to run in another thread, where no interrupt arrives: Python runs signal handlers in the main
    thread. The process does not wait for it at exit."""

    # Not threading.Thread: its start and join are written in Python, and an interrupt in them can leave a lock held
    # that the new thread needs.

    def __init__(self, function: Callable[[], Any]):
        self._function = function
        self._found: list[Any] = []
        self._error: list[BaseException] = []
        self._done = _thread.allocate_lock()
        self._done.acquire()

    def run(self) -> None:
        """Run the function, once."""
        try:
            self._found.append(self._function())
        except BaseException as error:
            self._error.append(error)
        finally:
            self._done.release()

    @property
    def done(self) -> bool:
        """Whether it has finished."""
        return not self._done.locked()

    def drop(self) -> None:
        """Cancel in place of :meth:`run`: a waiter gets an error."""
        self._error.append(RuntimeError("dropped"))
        self._done.release()

    def wait(self) -> None:
        """Wait until it has finished."""
        with self._done:
            pass

    def result(self) -> Any:
        """Wait and return the function's result, or raise its exception. An interrupt ends the wait; the function runs
        to its end."""
        self.wait()
        if self._error:
            raise self._error[0]
        return self._found[0]


def start_thread(function: Callable[[], Any]) -> Task:
    """Run ``function()`` in a new thread."""
    task = Task(function)
    _thread.start_new_thread(task.run, ())
    return task


# One thread runs everything that must not be interrupted, and frees LLVM's objects wherever Python drops them: malloc
# gives each concurrent thread an arena of its own, and keeps that at the size of the largest compilation.
_tasks: SimpleQueue[Callable[[], Any]] = SimpleQueue()
_serving = False


def _serve(tasks: SimpleQueue[Callable[[], Any]]) -> None:
    while True:
        tasks.get()()


def _submit(function: Callable[[], Any]) -> None:
    global _serving
    if not _serving:
        _thread.start_new_thread(_serve, (_tasks,))
        _serving = True  # an interrupt before this line starts a second thread, which is harmless
    _tasks.put(function)


class _Owner(weakref.ref):
    """A weak reference to an owner of a library's object. As a task, it frees that object once the owner is gone."""

    __slots__ = ("free",)
    free: Callable[[], Any]

    def __call__(self) -> None:
        _owners.discard(self)
        if not _ending:
            Task(self.free).run()


_owners: set[_Owner] = set()


def when_dropped(owner: Any, free: Callable[[], Any]) -> None:
    """Run ``free()`` uninterrupted once ``owner`` is gone; not at exit. No Python code runs where the owner is dropped,
    because an interrupt there would be swallowed: hence this in place of ``__del__``."""
    _submit(lambda: None)  # starts the thread
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
    """Return ``function()``, run where no signal handler raises: for code that hands ownership to a library, or holds a
    library's lock, and must not be left halfway. Frees what was dropped before it."""
    if _ending or threading.get_ident() != threading.main_thread().ident:
        return function()
    task = Task(function)
    _submit(task.run)
    return task.result()
