"""The compile cache on disk: PTX and host objects, keyed by everything that they depend on.

It is in ``$MLIRFUSE_CACHE_DIR``, else ``$XDG_CACHE_HOME/mlirfuse``, else ``~/.cache/mlirfuse``; ``MLIRFUSE_CACHE=0``
disables it. Entries are written to a temporary file and then renamed, so that several processes may write at once; each
carries a checksum, and a damaged one is removed and rebuilt. If the folder cannot be written, compilation continues
without it.

Entries are native code. So folder and entries have to belong to the user; they are ignored if other users can write to
them. An entry is opened once, and the checked contents are what runs.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import stat
import tempfile
from functools import cache as _once
from pathlib import Path

import llvmlite

from mlirfuse.core import environment, mlir
from mlirfuse.core.errors import warn
from mlirfuse.core.version import __version__
from mlirfuse.runtime import events

hits = 0
misses = 0


def enabled() -> bool:
    return environment.cache_enabled()


def folder() -> Path:
    """Return the folder of the entries."""
    named = os.environ.get("MLIRFUSE_CACHE_DIR")
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "mlirfuse"


@_once
def _versions() -> str:
    return f"mlirfuse={__version__};MLIR={mlir.version()};llvmlite={llvmlite.__version__}"


@_once
def sources() -> str:
    """Return a digest of this package's Python files, as a key for everything that depends on all of them."""
    digest, root = hashlib.sha256(_versions().encode()), Path(__file__).parent.parent
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def key(kind: str, *parts) -> str:
    """Return the name of the entry for code compiled from ``parts``."""
    digest = hashlib.sha256(_versions().encode())
    for part in parts:
        digest.update(b"\0" + (part if isinstance(part, bytes) else str(part).encode()))
    return f"{kind}-{digest.hexdigest()}"


def load(name: str) -> bytes | None:
    """Return the entry, or None if it is missing, damaged or unreadable."""
    global hits, misses
    if not enabled():
        return None
    body, problem = _read(name)
    if body is None:
        misses += 1
        events.report(events.CacheRead(name, None, problem))
        return None
    hits += 1
    events.report(events.CacheRead(name, body))
    return body


def _read(name: str) -> tuple[bytes | None, str]:
    """Return an entry's contents, or None and the reason."""
    try:
        where = _open_folder()
    except (FileNotFoundError, NotADirectoryError):
        return None, "is not there"
    except OSError as error:
        return None, f"cannot be read: {error.strerror}"
    if where is None:
        return None, "is not used: another user owns or can write to its folder"
    try:
        handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=where)
        with open(handle, "rb") as file:
            found = os.fstat(handle)
            if not stat.S_ISREG(found.st_mode):
                raise OSError(errno.ELOOP, "no file")
            if not _is_users_own(found):
                return None, "is not used: another user owns or can write to it"
            data = file.read()
    except FileNotFoundError:
        return None, "is not there"
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EISDIR):  # a symbolic link, a folder
            return None, f"cannot be read: {error.strerror}"  # it may be intact: it stays
        data = b""
    finally:
        os.close(where)
    checksum, body = data[:32], data[32:]
    if hashlib.sha256(body).digest() != checksum:
        _remove(folder() / name)
        return None, "is damaged and was removed"
    return body, ""


def _is_users_own(found: os.stat_result) -> bool:
    return found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _open_folder() -> int | None:
    """Return a descriptor of the folder; None, with one warning, where other users could have written to it."""
    where = folder()
    handle = os.open(where, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    if _is_users_own(os.fstat(handle)):
        return handle
    os.close(handle)
    _warn_once(
        f"is not used: the folder {where} does not belong to this user alone, and entries are native code; "
        f"`chmod go-w {where}`, or set MLIRFUSE_CACHE_DIR to a folder that nobody else owns or can write to"
    )
    return None


def store(name: str, body: bytes) -> None:
    """Store an entry; a folder that cannot be written, or that others can write to, is reported once and otherwise
    ignored."""
    if not enabled():
        return
    temporary = None
    try:
        where = folder()
        where.mkdir(mode=0o700, parents=True, exist_ok=True)
        trusted = _open_folder()
        if trusted is None:
            return
        os.close(trusted)
        handle, temporary = tempfile.mkstemp(dir=where, prefix=".writing-")
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(body).digest() + body)
        os.replace(temporary, where / name)
        events.report(events.CacheStored(name, body))
    except OSError as error:
        if temporary is not None:
            _remove(Path(temporary))
        _warn_once(f"cannot be written ({error}); set MLIRFUSE_CACHE_DIR to a folder that can")


_ENTRY = re.compile(r"[a-z]+-[0-9a-f]{64}|\.writing-.*")  # names of files in the folder


def entries() -> list[Path]:
    """Return the cache's files in the folder, complete or partial. Raises OSError where it cannot be read."""
    where = folder()
    return sorted(path for path in where.iterdir() if _ENTRY.fullmatch(path.name)) if where.is_dir() else []


def clear() -> tuple[int, int]:
    """Remove the entries, and no other files in the folder. Returns their number and their bytes."""
    removed, nbytes = 0, 0
    for path in entries():
        size = path.lstat().st_size
        _remove(path)
        if not os.path.lexists(path):
            removed, nbytes = removed + 1, nbytes + size
    return removed, nbytes


def _remove(path: Path) -> None:
    """Remove the file or folder at ``path``, if possible."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()
    except OSError:
        pass


@_once
def _warn_once(problem: str) -> None:
    warn(f"mlirfuse's compile cache {problem}")
