"""Output of dumps: under a header to stderr, or in separate files in ``config.dump_dir``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from mlirfuse.core import config, threads
from mlirfuse.inspect.dump.labels import Where

SUFFIXES = {"ptx": "ptx", "llvm": "ll", "groups": "py"} | dict.fromkeys(
    ("fusion", "grouped", "guarded", "segmented", "linalg", "tiled", "gpu", "nvvm", "host"), "mlir"
)
_lock = threads.lock()
_opened: set[str] = set()


def write(what: str, where: Where, text: str, append: bool = False) -> None:
    """Write one dump, under its header or to its file; with ``append``, after what this process has written there."""
    with _lock:
        if not config.dump_dir:
            sys.stderr.write(f"{_comment(what)}===---- mlirfuse {what}: {where} ----===\n{text.rstrip()}\n\n")
            return
        suffix = SUFFIXES.get(what, "txt")
        _file(f"{where.file}.{what}" + (f".{suffix}" if suffix != what else ""), text, append)


def log(what: str, where: Where, line: str) -> None:
    """Write a line of a log. In a folder, the lines about one function go to one file."""
    with _lock:
        if not config.dump_dir:
            sys.stderr.write(f"mlirfuse {what}: {where}: {line}\n")
            return
        _file(f"{Where(where.function).file}.{what}.txt", f"{where}: {line}\n", append=True)


def attempt(make: Callable[[], str]) -> str:
    """Return a text, or the error that prevents it."""
    try:
        return make()
    except Exception as error:
        return f"// {type(error).__name__}: {error}"


def _comment(what: str) -> str:
    return {"groups": "# ", "llvm": "; "}.get(what, "// " if what in SUFFIXES else "")


def _file(name: str, text: str, append: bool) -> None:
    assert config.dump_dir is not None
    folder = Path(config.dump_dir)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    again = append and str(path) in _opened
    _opened.add(str(path))
    with open(path, "a" if again else "w", encoding="utf-8") as file:
        file.write(text.rstrip() + "\n")
