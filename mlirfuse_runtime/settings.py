"""What the environment says, as the native module reads it where the compiler is not there."""

from __future__ import annotations

import os

_threads = os.environ.get("MLIRFUSE_NUM_THREADS", "")
if _threads and not (_threads.isdigit() and int(_threads) > 0):
    raise ValueError(f"MLIRFUSE_NUM_THREADS is a number of threads, not {_threads!r}")
_openmp = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()  # of the outermost level
NUM_THREADS = int(_threads or (_openmp if _openmp.isdigit() else 0))  # 0: as many as there are processors
POOL_BYTES = None  # of released results that are kept: an eighth of the memory
