"""A process forked while other threads compile: the child compiles too, with none of the parent's locks held."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
import warnings

import numpy as np
import progress
import pytest

import mlirfuse
from mlirfuse.core import threads

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of a fork beside threads
]
X = np.linspace(0, 1, 500, dtype=np.float32)
FORKS = 20


@pytest.fixture(autouse=True)
def no_disk_cache(monkeypatch):
    monkeypatch.setenv("MLIRFUSE_CACHE", "0")


def fresh(k: int):
    """A function that nothing has been compiled for."""
    return mlirfuse.jit(lambda x: np.tanh(x * np.float32(k + 1)) + x.sum() + np.float32(k), fallback=False)


def right(k: int) -> bool:
    want = np.tanh(X.astype(np.float64) * (k + 1)) + X.sum(dtype=np.float64) + k
    return np.allclose(fresh(k)(X), want, rtol=1e-5)


def in_child(check) -> int:
    """What ``check()`` gives in a forked process: 0 where it is true; -9 where it hangs."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if check() else 2
        finally:
            os._exit(status)
    return progress.exit_code(child)


@pytest.fixture
def others_compile():
    """Two threads that compile all the time."""
    stop, compiled, problems = threading.Event(), [], []

    def run(first: int) -> None:
        k = first
        try:
            while not stop.is_set():
                assert right(k)
                compiled.append(k)
                k += 2
        except BaseException as error:
            problems.append(error)

    running = [threading.Thread(target=run, args=(1000 + k,)) for k in range(2)]
    for thread in running:
        thread.start()
    yield compiled
    stop.set()
    assert progress.joined(*running) and not problems


def test_child_compiles_while_the_parent_does(others_compile):
    ended = []
    for k in range(FORKS):
        time.sleep(0.003 * (k % 7))
        ended.append(in_child(lambda k=k: right(k)))
    assert ended == [0] * FORKS
    before = len(others_compile)
    progress.Watch(os.getpid()).until(lambda seconds: time.sleep(seconds) or len(others_compile) > before)


def test_locks_held_by_another_thread_are_free_in_the_child():
    ours, taken, leave = threads.lock(), threading.Event(), threading.Event()

    def hold() -> None:
        with ours:
            taken.set()
            leave.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    taken.wait()
    assert not ours.acquire(blocking=False)
    assert in_child(lambda: ours.acquire(blocking=False)) == 0
    leave.set()
    holder.join()


def test_locks_held_by_the_thread_that_forks_stay_held():
    ours = threads.lock()
    with ours:
        assert in_child(lambda: ours._is_owned()) == 0


def _pool_task(k: int) -> bool:
    return right(k)


def test_multiprocessing(others_compile):
    with multiprocessing.get_context("fork").Pool(2) as pool:
        found = pool.map_async(_pool_task, range(200, 208))
        watch = progress.Watch(*(child.pid for child in multiprocessing.active_children()))
        watch.until(lambda seconds: found.wait(seconds) or found.ready())
        assert all(found.get())


def test_data_loader(others_compile):
    torch = pytest.importorskip("torch")

    class Items(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, k):
            return torch.from_numpy(np.array([right(300 + k)]))

    loader = torch.utils.data.DataLoader(Items(), batch_size=2, num_workers=2, multiprocessing_context="fork")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert all(bool(batch.all()) for batch in loader)
