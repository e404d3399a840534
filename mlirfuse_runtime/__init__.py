"""Runs what ``mlirfuse.export`` has saved, with NumPy alone: neither MLIR nor LLVM is needed, nor a compiler::

import mlirfuse_runtime
norm = mlirfuse_runtime.load("norm.mlirfuse")
y = norm(x, w, 1e-5)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlirfuse_runtime.function import LoadedFunction

__all__ = ["load"]


def load(path: Any) -> LoadedFunction:
    """The function that an exported file has: see :class:`mlirfuse_runtime.function.LoadedFunction`.

    Raises OSError where the file cannot be read, ValueError for what is no such file or is of another version, and
    RuntimeError where it has no code for this machine's processor.
    """
    from mlirfuse_runtime.function import LoadedFunction

    return LoadedFunction(path)
