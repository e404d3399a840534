"""Environment variables (``MLIRFUSE_…``), parsed and checked: a wrong value raises a ValueError that says what the
variable takes. An empty variable counts as unset.

The settings of :mod:`mlirfuse.core.config` take the same values as attributes. The C++ reads ``NUM_THREADS`` and
``POOL_BYTES`` here when it is loaded.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from mlirfuse.core import old_names
from mlirfuse.core.errors import nearest, warn

_ON, _OFF = ("1", "on", "true", "yes"), ("0", "off", "false", "no")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_MOST_BYTES = (1 << 63) - 1
VARIABLES = (
    "MLIRFUSE_CACHE", "MLIRFUSE_CACHE_DIR", "MLIRFUSE_CHECK_INDICES", "MLIRFUSE_COMPILE_SECONDS",
    "MLIRFUSE_DEFINITIONS", "MLIRFUSE_DUMP", "MLIRFUSE_DUMP_DIR", "MLIRFUSE_FALLBACK", "MLIRFUSE_FUSE_CPU",
    "MLIRFUSE_FUSE_GPU", "MLIRFUSE_GUARDS", "MLIRFUSE_HORIZONTAL", "MLIRFUSE_LIBCUDA", "MLIRFUSE_MAX_ARGS",
    "MLIRFUSE_MAX_SPECIALIZATIONS", "MLIRFUSE_NUM_THREADS", "MLIRFUSE_POOL_BYTES",
    "MLIRFUSE_PROGRESS", "MLIRFUSE_SINGLE_OP",
)  # fmt: skip
TESTS = "MLIRFUSE_TEST_"  # prefix of the variables that this project's tests read


@dataclass(frozen=True)
class Flag:
    """A boolean setting: a bool, 0 or 1, or a word such as on or off."""

    takes = f"{', '.join(_ON)} or {', '.join(_OFF)}"

    def parse(self, value: Any) -> bool:
        """Return the bool. Raises ValueError for anything else."""
        value = _as_python(value)
        word = value.lower() if isinstance(value, str) else str(int(value)) if isinstance(value, int) else ""
        if word not in _ON + _OFF:
            raise ValueError
        return word in _ON


@dataclass(frozen=True)
class Count:
    """An integer setting, from ``least`` to ``most``."""

    most: int
    least: int = 1

    @property
    def takes(self) -> str:
        return f"a whole number from {self.least} to {self.most}"

    def parse(self, value: Any) -> int:
        """Return the int. Raises ValueError for anything else."""
        value = _as_python(value)
        if isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}", value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not self.least <= value <= self.most:
            raise ValueError
        return value


def _as_python(value: Any) -> Any:
    """Convert a NumPy scalar to a Python number."""
    return value.item() if hasattr(value, "item") and not getattr(value, "ndim", 1) else value


def _wrong(name: str, takes: str) -> ValueError:
    return ValueError(f"the environment variable {name} is '{os.environ[name]}', but takes {takes}")


def read(name: str, setting: Flag | Count, default: Any) -> Any:
    """Return the parsed value of the variable, or ``default`` where it is unset."""
    text = os.environ.get(name, "")
    try:
        return setting.parse(text) if text else default
    except ValueError:
        raise _wrong(name, setting.takes) from None


def flag(name: str, default: bool) -> bool:
    """Read a boolean variable."""
    return read(name, Flag(), default)


def count(name: str, default: int, most: int) -> int:
    """Read an integer from 1 to ``most``."""
    return read(name, Count(most), default)


def size(name: str) -> int | None:
    """Read a number of bytes: an integer, with the suffix K, M, G or T in units of 1024, 1024² and so on."""
    text = os.environ.get(name, "")
    if not text:
        return None
    found = re.fullmatch(r"([0-9]{1,19})([KMGT]?)", text.upper())
    value = int(found[1]) * _UNITS[found[2]] if found else _MOST_BYTES + 1
    if value > _MOST_BYTES:
        raise _wrong(name, "a number of bytes such as 500000000, 512M or 2G (K, M, G, T: 1024 and its powers)")
    return value


def choice(name: str, words: Collection[str]) -> str | None:
    """Read a variable that takes one of a few words."""
    text = os.environ.get(name, "")
    if text and text not in words:
        raise _wrong(name, " or ".join(words))
    return text or None


def _openmp_threads() -> int:
    """The number of threads that OMP_NUM_THREADS, the common variable of numeric libraries, asks for at the outermost
    level; 0 if it says none."""
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return min(int(first), _MOST_THREADS) if re.fullmatch("[0-9]{1,9}", first) else 0


old_names.read_variables()
_MOST_THREADS = 4096
NUM_THREADS = count("MLIRFUSE_NUM_THREADS", _openmp_threads(), _MOST_THREADS)  # 0: one per processor
POOL_BYTES = size("MLIRFUSE_POOL_BYTES")  # None: derived from the RAM
DEFINITIONS = choice("MLIRFUSE_DEFINITIONS", ("compiled", "reference"))
PROGRESS: bool | None = read("MLIRFUSE_PROGRESS", Flag(), None)  # None: only in a terminal or notebook


def cache_enabled() -> bool:
    """Whether compiled code is cached on disk."""
    return flag("MLIRFUSE_CACHE", True)


cache_enabled()  # a wrong value is reported at import rather than at the first compilation


def _warn_of_unknown() -> None:
    """Emit one warning for all unknown variables with this package's prefix."""
    found = sorted(n for n in os.environ if n.startswith("MLIRFUSE_") and n not in VARIABLES)
    unknown = [name for name in found if not name.startswith(TESTS)]
    if unknown:
        what = "; ".join(f"{name} is no setting of mlirfuse{nearest(name, VARIABLES, 'MLIRFUSE_')}" for name in unknown)
        warn(f"environment: {what}", UserWarning)


_warn_of_unknown()
