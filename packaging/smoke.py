"""What an installed wheel has to do, in an environment without a compiler: see build.py."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

import mlirfuse

assert not any(map(shutil.which, ("cc", "c++", "gcc", "g++", "clang", "nvcc"))), "there is a compiler on the PATH"
assert "site-packages" in mlirfuse.__file__, mlirfuse.__file__
assert not any(map(importlib.util.find_spec, ("cuda", "numba_cuda_mlir"))), "more is installed than is needed"


@mlirfuse.jit(fallback=False)
def norm(x, w):
    d = x - x.mean(-1, keepdims=True)
    return w * (d / np.sqrt((d * d).mean(-1, keepdims=True) + 1e-5))


@mlirfuse.jit
def smoothed(a):
    s = np.zeros_like(a)
    for i in range(1, len(a)):
        s[i] = s[i - 1] * 0.5 + a[i]
    return s


x, w = np.random.default_rng(0).normal(size=(64, 256)), np.ones(256)
np.testing.assert_allclose(norm(x, w), norm.fn(x, w), rtol=1e-12, atol=1e-12)
np.testing.assert_allclose(smoothed(x[0]), smoothed.fn(x[0]), rtol=1e-12)
assert norm.kernels(x, w) == smoothed.kernels(x[0]) == 1
assert ".entry" in mlirfuse.jit(norm.fn, target="cuda:sm_90").lower(x, w).as_text("ptx")
text = subprocess.run([sys.executable, "-m", "mlirfuse", "info"], capture_output=True, text=True, check=True).stdout
assert "mlirfuse" in text and "MLIR" in text, text
TARGET = "cpu:x86-64-v3"
mlirfuse.export(norm, x, w, targets=(TARGET,)).save(sys.argv[1])  # for smoke_runtime.py
np.testing.assert_array_equal(mlirfuse.load(sys.argv[1])(x, w), mlirfuse.jit(norm.fn, target=TARGET)(x, w))
listed = subprocess.run(
    [Path(sys.executable).with_name("mlirfuse-opt"), "--list-passes"], capture_output=True, text=True, check=True
).stdout
assert "fusion-group" in listed
try:
    mlirfuse.jit(lambda a, b: a + b, fallback=False)(np.ones(2), np.ones(3))
except mlirfuse.ShapeError:
    pass  # C++ calls Python with an error that C++ has caught: unwinding works
else:
    raise AssertionError("shapes that do not go together")
