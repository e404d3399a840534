"""Notebooks: whether this process runs one, and how its cells are named."""

from __future__ import annotations

import sys
from typing import Any


def _shell() -> Any:
    """The process's IPython shell, or None. Does not import IPython."""
    get = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return get() if get is not None else None


def running() -> bool:
    """Whether stderr is shown in a notebook."""
    return getattr(_shell(), "kernel", None) is not None


def cell(file: str) -> str | None:
    """``Cell In[5]``, IPython's name of the cell whose code has the file name ``file``; None for a real file."""
    compiler = getattr(_shell(), "compile", None)
    name = getattr(compiler, "format_code_name", None)
    found = None if name is None else name(file)
    return " ".join(found) if found else None
