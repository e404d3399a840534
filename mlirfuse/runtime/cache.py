"""The compile cache on disk: PTX and host objects by everything that decides them.

It lies in ``$MLIRFUSE_CACHE_DIR``, else ``$XDG_CACHE_HOME/mlirfuse``, else ``~/.cache/mlirfuse``; ``MLIRFUSE_CACHE=0``
switches it off. Entries are written to a file of their own and then renamed, so that several processes may write at
once; each carries a checksum, and a damaged one is removed and built again. Where the folder cannot be written,
compilation goes on without it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import warnings
from functools import cache as _once
from importlib import metadata
from pathlib import Path

from mlirfuse.core import events, settings

hits = 0
misses = 0


def enabled() -> bool:
    return settings.cache_enabled()


def folder() -> Path:
    """Where entries lie."""
    named = os.environ.get("MLIRFUSE_CACHE_DIR")
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "mlirfuse"


@_once
def _versions() -> str:
    found = []
    for package in ("mlirfuse", "numba-cuda-mlir", "llvmlite"):
        try:
            found.append(f"{package}={metadata.version(package)}")
        except metadata.PackageNotFoundError:
            found.append(f"{package}=?")
    return ";".join(found)


@_once
def sources() -> str:
    """A digest of this package's Python files, for what depends on all of them."""
    digest, root = hashlib.sha256(_versions().encode()), Path(__file__).parent.parent
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def key(kind: str, *parts) -> str:
    """The name of the entry for what is compiled from ``parts``."""
    digest = hashlib.sha256(_versions().encode())
    for part in parts:
        digest.update(b"\0" + (part if isinstance(part, bytes) else str(part).encode()))
    return f"{kind}-{digest.hexdigest()}"


def load(name: str) -> bytes | None:
    """The entry, or None if it is not there or damaged."""
    global hits, misses
    if not enabled():
        return None
    path = folder() / name
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        misses += 1
        events.report(events.CacheRead(name, None, "is not there"))
        return None
    except OSError:  # there is something that cannot be read
        data = b""
    checksum, body = data[:32], data[32:]
    if hashlib.sha256(body).digest() != checksum:
        _remove(path)
        misses += 1
        events.report(events.CacheRead(name, None, "is damaged and was removed"))
        return None
    hits += 1
    events.report(events.CacheRead(name, body))
    return body


def store(name: str, body: bytes) -> None:
    """Keeps an entry; a folder that cannot be written is told once and otherwise ignored."""
    if not enabled():
        return
    temporary = None
    try:
        where = folder()
        where.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=where, prefix=".writing-")
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(body).digest() + body)
        os.replace(temporary, where / name)
        events.report(events.CacheStored(name, body))
    except OSError as error:
        if temporary is not None:
            _remove(Path(temporary))
        _tell(str(error))


def _remove(path: Path) -> None:
    """Takes away what lies at ``path``, a folder too; what cannot be removed stays."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()
    except OSError:
        pass


@_once
def _tell(problem: str) -> None:
    warnings.warn(
        f"mlirfuse's compile cache cannot be written ({problem}); set MLIRFUSE_CACHE_DIR to a folder that can",
        stacklevel=2,
    )
