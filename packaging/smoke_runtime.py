"""What the wheel of mlirfuse_runtime has to do, where neither a compiler nor mlirfuse is installed: see build.py. The
argument is a file that smoke.py has exported."""

from __future__ import annotations

import importlib.util
import sys

import numpy as np

import mlirfuse_runtime

assert not any(map(importlib.util.find_spec, ("mlirfuse", "llvmlite"))), "more is installed than is needed"
norm = mlirfuse_runtime.load(sys.argv[1])
x, w = np.random.default_rng(0).normal(size=(64, 256)), np.ones(256)
d = x - x.mean(-1, keepdims=True)
expected = w * (d / np.sqrt((d * d).mean(-1, keepdims=True) + 1e-5))
np.testing.assert_allclose(norm(x, w), expected, rtol=1e-12, atol=1e-12)
