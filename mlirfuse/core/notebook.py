"""Notebooks: whether this process runs one, and what their cells are called."""

from __future__ import annotations

import sys
from typing import Any


def _shell() -> Any:
    """IPython's shell of this process, None where there is none. IPython is not imported for that."""
    get = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return get() if get is not None else None


def running() -> bool:
    """Whether what is written to stderr is seen in a notebook."""
    return getattr(_shell(), "kernel", None) is not None


def cell(file: str) -> str | None:
    """``Cell In[5]``, what IPython calls the cell of which the code's file is ``file``; None for a file."""
    compiler = getattr(_shell(), "compile", None)
    name = getattr(compiler, "format_code_name", None)
    found = None if name is None else name(file)
    return " ".join(found) if found else None
