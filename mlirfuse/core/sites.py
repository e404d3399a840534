"""Checked index sites: a kernel names the source location of an index by a number, which is the same in every process,
because its code may come from the disk cache."""

from __future__ import annotations

import hashlib
from typing import NoReturn

from mlirfuse import _native
from mlirfuse.core.errors import located

_SITES: dict[int, tuple[tuple[str, int] | None, int, str]] = {}


def site_of(where: tuple[str, int] | None, axis: int, message: str = "") -> int:
    """Return the number of a source location, (file, line), at which indices along ``axis`` are used. ``message``: of a
    RuntimeError to raise in place of NumPy's IndexError."""
    number = int.from_bytes(hashlib.sha256(repr((where, axis, message)).encode()).digest()[:7], "little")
    _SITES[number] = where, axis, message
    return number


def _raise(site: int, index: int, extent: int) -> NoReturn:
    """Raise the error for an index out of range that a kernel found, with the user's line."""
    where, axis, message = _SITES.get(site, (None, 0, ""))
    if message:
        raise RuntimeError(located(message, where))
    error = IndexError(located(f"index {index} is out of bounds for axis {axis} with size {extent}", where))
    error.found_by_kernel = True  # type: ignore[attr-defined]  # marks an error that no code of the user's has seen
    raise error


_native.raise_bad_index_by(_raise)
