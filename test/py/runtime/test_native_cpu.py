"""CPU threads and the pool of buffers."""

import ctypes
import itertools
import os
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import progress
import pytest

from mlirfuse import _native

LoopType = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
parallel_for = ctypes.CFUNCTYPE(None, LoopType, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(
    _native.symbols()["mlirfuse_parallel_for"]
)


@pytest.fixture
def threads():
    before = _native.num_threads()
    yield _native.set_num_threads
    _native.set_num_threads(before)


def chunks_of(n, grain, body=None):
    chunks = []

    def loop(begin, end, ctx):
        chunks.append((begin, end, threading.get_ident()))
        if body:
            body(begin, end)

    parallel_for(LoopType(loop), None, n, grain)
    return sorted(chunks)


def assert_covers(chunks, n):
    assert chunks[0][0] == 0 and chunks[-1][1] == n
    assert all(a[1] == b[0] for a, b in itertools.pairwise(chunks))


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_loops_cover_their_range(threads, count):
    threads(count)
    assert _native.num_threads() == count
    for n, grain in ((1, 1), (7, 1), (1000, 1), (1000, 64), (1001, 64), (64, 64), (10, 0), (100, 1000)):
        chunks = chunks_of(n, grain)
        assert_covers(chunks, n)
        assert all(begin % max(grain, 1) == 0 for begin, _, _ in chunks)
        if n <= grain or count == 1:
            assert len(chunks) == 1
    assert chunks_of(0, 1) == []


def test_workers_take_part(threads):
    threads(4)
    used, several = set(), threading.Event()

    def chunk(begin, end):
        used.add(threading.get_ident())
        if len(used) > 1:
            several.set()
        several.wait(60)  # the first keeps its chunk until another thread has one

    chunks_of(64, 1, chunk)
    assert len(used) > 1


def test_workers_that_sleep_wake_up(threads):
    threads(3)
    for pause in (0, 0.001, 0.05):
        for _ in range(20):
            time.sleep(pause)
            assert_covers(chunks_of(100, 1), 100)


def test_nested_loops_run_inline(threads):
    threads(4)
    total = []
    chunks_of(16, 1, lambda begin, end: total.extend(chunks_of(100, 1)))
    assert sum(end - begin for begin, end, _ in total) % 100 == 0
    assert {(begin, end) for begin, end, _ in total} == {(0, 100)}


def test_loops_of_several_threads_at_once(threads):
    threads(4)
    wrong = []

    def work():
        for n in range(1, 200):
            try:
                assert_covers(chunks_of(n, 1), n)
            except AssertionError:
                wrong.append(n)

    callers = [threading.Thread(target=work) for _ in range(8)]
    for caller in callers:
        caller.start()
    for size in (2, 5, 3, 4):
        _native.set_num_threads(size)
    for caller in callers:
        caller.join()
    assert not wrong


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_loops_of_a_limited_thread(threads, limit):
    threads(6)
    assert _native.limit_threads(limit) == 0
    try:
        assert _native.num_threads() == limit
        for _ in range(5):
            chunks = chunks_of(100, 1, lambda begin, end: time.sleep(1e-5))
            assert_covers(chunks, 100)
            assert len({thread for _, _, thread in chunks}) <= limit
        with ThreadPoolExecutor(1) as other:  # the limit is this thread's
            assert other.submit(_native.num_threads).result() == 6
    finally:
        assert _native.limit_threads(0) == limit
    assert _native.num_threads() == 6


def run_python(code, **environment):
    done = progress.run([sys.executable, "-c", textwrap.dedent(code)], env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_fork():
    run_python(
        """
        import ctypes, os, threading
        from mlirfuse import _native
        LoopType = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
        parallel_for = ctypes.CFUNCTYPE(None, LoopType, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(
            _native.symbols()["mlirfuse_parallel_for"])
        def total():
            seen = []
            parallel_for(LoopType(lambda begin, end, ctx: seen.append(end - begin)), None, 1000, 1)
            return sum(seen)
        assert total() == 1000
        stop = False
        def churn():
            while not stop:
                _native.empty((1000,), "f4")
        thread = threading.Thread(target=churn)
        thread.start()
        for _ in range(20):
            child = os.fork()
            if child == 0:
                ok = total() == 1000 and _native.num_threads() == 3 and _native.empty((10,), "f4").size == 10
                os._exit(0 if ok else 1)
            assert os.waitpid(child, 0)[1] == 0
        stop = True
        thread.join()
        assert total() == 1000
        """,
        MLIRFUSE_NUM_THREADS="3",
    )


def test_thread_count():
    out = run_python("from mlirfuse import _native; print(_native.num_threads())", MLIRFUSE_NUM_THREADS="5")
    assert out.strip() == "5"
    out = run_python(
        "from mlirfuse import _native; print(_native.num_threads())", MLIRFUSE_NUM_THREADS="5", OMP_NUM_THREADS="3"
    )
    assert out.strip() == "5"
    with pytest.raises(ValueError):
        _native.set_num_threads(0)


@pytest.mark.parametrize("said, threads", [("3", 3), ("4,2", 4), ("", None), ("many", None), ("0", None)])
def test_thread_count_of_openmp(said, threads):
    """The variable that torch's, BLAS's and OpenMP's threads follow; what OpenMP ignores is ignored."""
    code = "from mlirfuse import _native; print(_native.num_threads())"
    out = run_python(code, MLIRFUSE_NUM_THREADS="", OMP_NUM_THREADS=said)
    assert int(out) == (threads or len(os.sched_getaffinity(0)))


def test_buffers_are_reused():
    for size in (1, 1000, 10**6, 5 * 10**6, 3 * 10**7):
        a = _native.empty((size,), "u1")
        assert a.ctypes.data % 64 == 0 and a.size == size
        a[:] = 1
        address = a.ctypes.data
        del a
        assert _native.empty((size,), "u1").ctypes.data == address
    a = _native.empty((10**7,), "u1")
    assert a.ctypes.data % (2 << 20) == 0
    part = a[5:10]
    address = a.ctypes.data
    del a
    b = _native.empty((10**7,), "u1")
    assert b.ctypes.data != address  # a view holds the buffer
    del part


def test_empty():
    a = _native.empty((3, 4), np.float32, (4, 12))
    assert a.strides == (4, 12) and a.shape == (3, 4) and a.flags.f_contiguous and a.flags.writeable
    a[:] = 7
    assert _native.empty((), "f8").shape == () and _native.empty((0, 3), "f8", (24, 8)).size == 0
    with pytest.raises(ValueError):
        _native.empty((3,), "f4", (-4,))
    with pytest.raises((MemoryError, ValueError)):
        _native.empty((1 << 62,), "f8")
    with pytest.raises(TypeError):
        _native.empty((3,), "U4")


def test_idle_memory_is_bounded():
    out = run_python(
        """
        from mlirfuse import _native
        for size in range(100_000, 2_000_000, 50_000):
            _native.empty((size,), "u1")
        stats = _native.pool_stats()
        assert stats["idle_limit"] == 1 << 20 and stats["idle_bytes"] <= 1 << 20, stats
        assert stats["live_bytes"] == 0 and stats["idle_buffers"] > 0, stats
        """,
        MLIRFUSE_POOL_BYTES=str(1 << 20),
    )
    assert out == ""
