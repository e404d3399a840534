"""Where programs use positions in arrays that kernels check: a kernel names the place by a number, which is the same in
every process, as its code may come from disk."""

from __future__ import annotations

import hashlib
from typing import NoReturn

from mlirfuse import _native
from mlirfuse.core.errors import located

_SITES: dict[int, tuple[tuple[str, int] | None, int, str]] = {}


def site_of(where: tuple[str, int] | None, axis: int, message: str = "") -> int:
    """The number of a place in the user's program, (file, line), where positions along ``axis`` are used. ``message``:
    of a RuntimeError, where it is not NumPy's IndexError."""
    number = int.from_bytes(hashlib.sha256(repr((where, axis, message)).encode()).digest()[:7], "little")
    _SITES[number] = where, axis, message
    return number


def _raise(site: int, index: int, extent: int) -> NoReturn:
    """The error for a position that a kernel has met; with the user's line."""
    where, axis, message = _SITES.get(site, (None, 0, ""))
    if message:
        raise RuntimeError(located(message, where))
    raise IndexError(located(f"index {index} is out of bounds for axis {axis} with size {extent}", where))


_native.raise_bad_index_by(_raise)
