"""Interrupts at random moments of a compilation: nothing breaks, no lock stays held, and the next call compiles."""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import progress
import pytest

import mlirfuse

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs setitimer")
X = np.linspace(0, 1, 300, dtype=np.float32)


class Interrupt(BaseException):
    """Raised by the signal's handler, as KeyboardInterrupt is."""


def _raise(*_):
    raise Interrupt


def fresh(k: int):
    """A function that nothing has been compiled for, and its result."""
    scale = np.float32(k % 9973 + 1)
    compiled = mlirfuse.jit(lambda x: np.exp(-x * scale) / (x.max() + scale), fallback=False)
    wide = X.astype(np.float64)
    return compiled, np.exp(-wide * float(scale)) / (wide.max() + float(scale))


def interrupt(count: int, seed: int) -> int:
    """Interrupts ``count`` compilations; gives how many were hit."""
    rng, hit = random.Random(seed), 0
    fresh(0)[0](X)
    start = time.perf_counter()
    fresh(1)[0](X)
    longest = 1.3 * (time.perf_counter() - start)
    before = signal.signal(signal.SIGALRM, _raise)
    try:
        for k in range(count):
            compiled, want = fresh(seed * 100003 + k)
            try:
                try:
                    signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, longest))
                    compiled(X)
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except Interrupt:
                hit += 1
            if k % 8 == 0:
                np.testing.assert_allclose(compiled(X), want, rtol=1e-5, atol=1e-30)
        found = []
        other = threading.Thread(target=lambda: found.append(fresh(seed + 7)[0](X)), daemon=True)
        other.start()  # which would wait for a lock that an interrupt left held
        assert progress.joined(other) and found, "a lock is held"
    finally:
        signal.signal(signal.SIGALRM, before)
    return hit


def run_apart(count: int, seed: int) -> None:
    """In a process of its own, which must end well."""
    code = f"import test_interrupts as t; hit = t.interrupt({count}, {seed}); print('hit', hit)"
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", code], capture_output=True, text=True, env=_environment()
    )
    assert done.returncode == 0, f"{done.returncode}: {done.stderr[-3000:]}"
    assert int(done.stdout.split()[-1]) >= count // 4, done.stdout


def _environment() -> dict[str, str]:
    here = str(Path(__file__).parent)
    return {**os.environ, "MLIRFUSE_CACHE": "0", "PYTHONPATH": os.pathsep.join([here, *sys.path])}


@pytest.mark.thorough
def test_interrupts():
    run_apart(300, seed=1)


def test_an_interrupt_is_not_lost_where_a_function_is_dropped():
    """Python ignores what is raised in the callbacks that it runs then; so none of ours is written in Python."""
    gc.collect()
    ran = []
    compiled = [fresh(3)[0]]
    compiled[0](X)
    sys.setprofile(lambda frame, event, argument: ran.append(frame.f_code) if event == "call" else None)
    try:
        compiled.clear()
        gc.collect()
    finally:
        sys.setprofile(None)
    others = ("torch", "_pytest", "hypothesis")  # what else is garbage by then
    assert not [code for code in ran if not any(f"{name}{os.sep}" in code.co_filename for name in others)]


@pytest.mark.abuse
def test_very_many_interrupts():
    for seed in range(20):
        run_apart(1000, seed)
