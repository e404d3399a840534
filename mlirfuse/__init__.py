"""mlirfuse: a fusion compiler for array programs, readable from end to end. See README.md.

What is behind the names is imported when it is asked for: the compiler is not, where only :data:`config` is set.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if not getattr(sys, "_is_gil_enabled", lambda: True)():  # of a free-threaded build
    raise ImportError("mlirfuse needs Python's global interpreter lock: run with PYTHON_GIL=1, or a build that has it")

from mlirfuse.core import config, gc_control
from mlirfuse.core.errors import (
    CompileError,
    CudaError,
    FallbackWarning,
    MlirfuseError,
    ShapeError,
    TraceError,
    UnsupportedError,
)
from mlirfuse.core.version import __version__ as __version__
from mlirfuse.runtime import counters

if TYPE_CHECKING:
    from mlirfuse import export, numpy, nvfuser
    from mlirfuse.api import jit, synchronize
    from mlirfuse.frontend.nvfuser.definition import FusionDefinition
    from mlirfuse.frontend.nvfuser.promotion import DataType
    from mlirfuse.runtime.autotune import autotune
    from mlirfuse_runtime import load

__all__ = [
    "CompileError",
    "CudaError",
    "DataType",
    "FallbackWarning",
    "FusionDefinition",
    "MlirfuseError",
    "ShapeError",
    "TraceError",
    "UnsupportedError",
    "autotune",
    "config",
    "counters",
    "export",
    "jit",
    "load",
    "numpy",
    "nvfuser",
    "synchronize",
]

_LATE = {
    "DataType": "mlirfuse.frontend.nvfuser.promotion",
    "FusionDefinition": "mlirfuse.frontend.nvfuser.definition",
    "autotune": "mlirfuse.runtime.autotune",
    "export": "mlirfuse.export",
    "jit": "mlirfuse.api",
    "load": "mlirfuse_runtime",
    "numpy": "mlirfuse.numpy",
    "nvfuser": "mlirfuse.nvfuser",
    "synchronize": "mlirfuse.api",
}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        message = f"module 'mlirfuse' has no attribute '{name}'"
        raise AttributeError(message, name=name, obj=sys.modules[__name__])  # of which Python names the nearest
    with gc_control.gc_disabled(aged=True):  # collections would be a sixth of the import, or of the first call
        module = importlib.import_module(_LATE[name])
    found = globals()[name] = module if _LATE[name] == f"mlirfuse.{name}" else getattr(module, name)
    return found


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__", *(["torch"] if "mlirfuse.torch" in sys.modules else [])])
