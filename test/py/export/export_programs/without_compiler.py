"""Run by test_export.py as ``python -S`` with NumPy and mlirfuse_runtime alone on the path: loads an exported norm, a
softmax and a stencil, and compares results with those in a file."""

import sys
import threading
import types

import numpy as np

import mlirfuse_runtime

folder = sys.argv[1]
known = np.load(f"{folder}/known.npz")
norm, softmax, heat = (mlirfuse_runtime.load(f"{folder}/{name}.mlirfuse") for name in ("norm", "softmax", "heat"))
x, w = known["x"], known["w"]
assert norm(x, w, 1e-5).tobytes() == known["norm"].tobytes()
assert norm(x, eps=1e-5, w=w).tobytes() == known["norm"].tobytes()
assert softmax(x).tobytes() == known["softmax"].tobytes() and heat(x).tobytes() == known["heat"].tobytes()


class Foreign:  # an array of another framework
    def __dlpack__(self, **options):
        return x.__dlpack__(**options)

    def __dlpack_device__(self):
        return x.__dlpack_device__()


assert softmax(Foreign()).tobytes() == known["softmax"].tobytes()
failures = []


def many():
    failures.extend(1 for _ in range(200) if softmax(x).tobytes() != known["softmax"].tobytes())


threads = [threading.Thread(target=many) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not failures

for arguments, error in (
    ((x.astype("f8"), w, 1e-5), TypeError),
    ((x[:, :-1].copy(), w, 1e-5), ValueError),
    ((x[:, ::-1], w, 1e-5), ValueError),
    ((x, w), TypeError),
    ((x, w, "a"), TypeError),
    ((x[0], w, 1e-5), TypeError),
    (([1.0], w, 1e-5), TypeError),
):
    try:
        norm(*arguments)
    except error as raised:
        assert "norm" in str(raised) or "x" in str(raised) or "eps" in str(raised), raised
    else:
        raise AssertionError(arguments)
loaded = [name for name in sys.modules if name.partition(".")[0] in ("mlirfuse", "llvmlite", "numba_cuda_mlir")]
assert not loaded, loaded
assert isinstance(norm, types.ModuleType) is False and "n,1024" in norm.signature
print("done")
