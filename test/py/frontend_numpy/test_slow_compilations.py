"""What takes long to compile: lines that say how far it is, and the bound past which a function runs op by op."""

from __future__ import annotations

import sys

import numpy as np
import progress
import pytest

import mlirfuse
from mlirfuse.runtime import events

X = np.linspace(0, 1, 12).reshape(3, 4)


def waves(x):
    return sum(np.sin(k * x) for k in range(30))


def smoothed(x):
    x = x.copy()
    for _ in range(3):
        x[1:] = np.tanh(x[:-1]) * 0.5 + np.exp(x[1:])
    return x


def read(x):
    return waves(x) if x.max() > 0 else x


@pytest.mark.parametrize("fn", [waves, smoothed, read])
def test_past_the_bound_a_function_runs_op_by_op(fn, monkeypatch):
    """A bound of nothing at all: whatever is compiled is past it."""
    from mlirfuse.frontend.numpy.graph_breaks import program

    monkeypatch.setattr(program, "SMALL", 0)
    monkeypatch.setenv("MLIRFUSE_CACHE", "0")
    run = mlirfuse.jit(fn)
    with mlirfuse.config.override(compile_seconds=0), pytest.warns(UserWarning, match="MLIRFUSE_COMPILE_SECONDS"):
        np.testing.assert_allclose(run(X), fn(X))
    np.testing.assert_allclose(run(X), fn(X))


def test_with_the_fallback_off_there_is_no_bound():
    with mlirfuse.config.override(compile_seconds=0):
        np.testing.assert_allclose(mlirfuse.jit(waves, fallback=False)(X), waves(X))


def test_passes_and_kernels_are_reported():
    heard = []
    stops = [events.observe(kind, heard.append) for kind in (events.Advanced, events.Compiled)]
    try:
        mlirfuse.jit(lambda x: waves(x) + 1)(X)
    finally:
        for stop in stops:
            stop()
    *passes, kernel = heard
    assert isinstance(kernel, events.Compiled) and len(passes) > 5
    assert all(event.what.startswith("lambda after fusion-") for event in passes)


def test_lines_go_to_stderr_where_they_are_asked_for():
    program = (
        "import time, mlirfuse, numpy as np\nfrom mlirfuse.inspect import progress\n"
        "progress.FIRST = progress.AGAIN = 0\nprint(mlirfuse.jit(lambda x: np.sin(x) + 1)(np.zeros(3)))"
    )
    told = {}
    for asked in ("1", "0"):
        environment = {
            "PATH": "/usr/bin:/bin",
            "MLIRFUSE_PROGRESS": asked,
            "MLIRFUSE_CACHE": "0",
            "HOME": "/nonexistent",
        }
        done = progress.run([sys.executable, "-c", program], env=environment)
        assert done.returncode == 0 and done.stdout == "[1. 1. 1.]\n", done.stderr
        told[asked] = [line for line in done.stderr.splitlines() if line.startswith("mlirfuse: compiling")]
    assert told["1"] and not told["0"]
