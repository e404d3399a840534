"""mlirfuse: a fusion compiler for array programs, readable from end to end. See README.md."""

from mlirfuse.api import jit
from mlirfuse.core import config, counters
from mlirfuse.core.errors import CompileError, CudaError, MlirfuseError, ShapeError, TraceError, UnsupportedError
from mlirfuse.runtime.autotune import autotune

__version__ = "0.1.0"
__all__ = [
    "CompileError", "CudaError", "DataType", "FusionDefinition", "MlirfuseError", "ShapeError", "TraceError", "UnsupportedError", "autotune",
    "config", "counters", "jit",
]  # fmt: skip

_LATE = {
    "DataType": "mlirfuse.frontend.nvfuser.promotion",
    "FusionDefinition": "mlirfuse.frontend.nvfuser.definition",
}  # imported at first use


def __getattr__(name: str):
    if name not in _LATE:
        raise AttributeError(f"module 'mlirfuse' has no attribute '{name}'")
    import importlib

    found = globals()[name] = getattr(importlib.import_module(_LATE[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
