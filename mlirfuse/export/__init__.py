"""Compiled functions that travel: :func:`export` compiles a function ahead of time, for sizes that are named and not
known, and saves it as a C library or as one file for :mod:`mlirfuse_runtime`. See docs/start/export.md.

``sources.py`` makes graphs of what is exported (``function_source.py``, ``definition_source.py``, ``constants.py`` for
arrays that a function reads), ``paths.py`` finds which conditions on sizes lead to which code, ``code.py`` compiles
that (``gpu_choice.py`` chooses for GPUs), ``image.py`` makes machine code ready to be mapped; ``c_source.py`` and
``one_file.py`` write the two forms, ``artifact.py`` saves them.
"""

from __future__ import annotations

import sys
import types
from typing import Any

from mlirfuse.export.artifact import Artifact, export
from mlirfuse.export.specs import ShapeDtype, parse

__all__ = ["Artifact", "ShapeDtype", "export", "parse"]


class _Callable(types.ModuleType):
    """``mlirfuse.export`` is the function, whose name the module has."""

    def __call__(self, *specs: Any, **options: Any) -> Artifact:
        return export(*specs, **options)


sys.modules[__name__].__class__ = _Callable
