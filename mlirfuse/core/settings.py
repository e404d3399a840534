"""Environment variables: each as what it takes, or a ValueError that says what that is. An empty one counts as not set.

The C++ reads ``NUM_THREADS`` and ``POOL_BYTES`` here when it is loaded.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection

_ON, _OFF = ("1", "on", "true", "yes"), ("0", "off", "false", "no")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_MOST_BYTES = (1 << 63) - 1


def _wrong(name: str, takes: str) -> ValueError:
    return ValueError(f"the environment variable {name} is '{os.environ[name]}', but takes {takes}")


def flag(name: str, default: bool) -> bool:
    """A switch."""
    text = os.environ.get(name, "").lower()
    if text and text not in _ON + _OFF:
        raise _wrong(name, f"{', '.join(_ON)} or {', '.join(_OFF)}")
    return text in _ON if text else default


def count(name: str, default: int, most: int) -> int:
    """A whole number from 1 to ``most``."""
    text = os.environ.get(name, "")
    if not text:
        return default
    if not re.fullmatch(r"[0-9]{1,18}", text) or not 1 <= int(text) <= most:
        raise _wrong(name, f"a whole number from 1 to {most}")
    return int(text)


def size(name: str) -> int | None:
    """Bytes: a whole number, in units of 1,024 bytes and so on where K, M, G or T follows."""
    text = os.environ.get(name, "")
    if not text:
        return None
    found = re.fullmatch(r"([0-9]{1,19})([KMGT]?)", text.upper())
    value = int(found[1]) * _UNITS[found[2]] if found else _MOST_BYTES + 1
    if value > _MOST_BYTES:
        raise _wrong(name, "a number of bytes such as 500000000, 512M or 2G (K, M, G, T: 1024 and its powers)")
    return value


def choice(name: str, among: Collection[str]) -> str | None:
    """One of a few words."""
    text = os.environ.get(name, "")
    if text and text not in among:
        raise _wrong(name, " or ".join(among))
    return text or None


NUM_THREADS = count("MLIRFUSE_NUM_THREADS", 0, 4096)  # 0: one for each processor
POOL_BYTES = size("MLIRFUSE_POOL_BYTES")  # None: by the RAM
DEFINITIONS = choice("MLIRFUSE_DEFINITIONS", ("compiled", "reference"))


def cache_enabled() -> bool:
    """Whether compiled code is kept on disk."""
    return flag("MLIRFUSE_CACHE", True)


cache_enabled()  # said at import rather than where the first function is compiled
