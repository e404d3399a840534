"""``python -m mlirfuse info``: prints what a bug report needs: versions, devices, settings, the cache."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
from collections.abc import Iterator
from pathlib import Path

from mlirfuse import _native
from mlirfuse.core import environment, mlir
from mlirfuse.core.version import TORCH_TESTED, __version__
from mlirfuse.inspect import listing
from mlirfuse.lowering import devices, llvm
from mlirfuse.runtime import cache


def versions() -> str:
    """Return one line: this package, and the versions of the compilers that it uses."""
    return f"mlirfuse {__version__}, MLIR of numba-cuda-mlir {mlir.version()}, Python {platform.python_version()}"


def _installed(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _torch() -> str:
    found, tested = _installed("torch"), f"tested: {', '.join(TORCH_TESTED)}"
    release = ".".join(found.split(".")[:2])
    return f"{found} ({tested if found[0] == 'n' or release in TORCH_TESTED else f'not tested; {tested}'})"


def _processor() -> str:
    """Return the processor's name, from Linux."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())


def _devices() -> Iterator[tuple[str, str]]:
    host = devices.host()
    chip = llvm.host_processor().name
    yield "CPU", f"{_processor()} ({chip}), {host.threads} threads, vectors of {host.vector_bytes} bytes"
    if not _native.cuda_available():
        yield "GPU", f"none: {_native.cuda_error()}"
        return
    for index in range(_native.cuda_device_count()):
        found, properties = _native.cuda_device_attributes(index), devices.device(index)
        driver = f"driver for CUDA {found['driver_version'] // 1000}.{found['driver_version'] % 1000 // 10}"
        reported = f"{properties.chip}, {properties.sm_count} multiprocessors, {driver}"
        yield f"GPU {index}", f"{found['name']}: {reported}"


def _cache() -> str:
    if not cache.enabled():
        return "off (MLIRFUSE_CACHE)"
    try:
        found = cache.entries()
        nbytes = sum(path.lstat().st_size for path in found)
    except OSError as error:
        return f"{cache.folder()}: {error.strerror}"
    return f"{cache.folder()}: {len(found)} entries, {listing.bytes_text(nbytes)}"


def reported() -> list[tuple[str, str]]:
    """Return the properties of this computer and process, by name."""
    rows = [("mlirfuse", f"{__version__}, in {Path(__file__).parent.parent}")]
    rows.append(("Python", f"{platform.python_version()}, {platform.platform()}"))
    rows.append(("MLIR", f"that of numba-cuda-mlir {mlir.version()}"))
    rows += [(name, _installed(name)) for name in ("llvmlite", "numpy", "ml_dtypes")]
    rows.append(("torch", _torch()))
    rows += _devices()
    rows.append(("cache", _cache()))
    rows += [(name, os.environ[name]) for name in sorted(os.environ) if name in environment.VARIABLES]
    return rows


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m mlirfuse info", description="Versions, devices, the cache and the settings that are set."
    )
    parser.parse_args(argv)
    print(listing.table(reported()), end="")
    return 0
