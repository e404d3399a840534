"""mlirfuse: a fusion compiler for array programs, readable from end to end. See README.md."""

from mlirfuse import config, counters
from mlirfuse.api import jit
from mlirfuse.errors import CompileError, CudaError, MlirfuseError, ShapeError, TraceError, UnsupportedError

__version__ = "0.1.0"
__all__ = ["CompileError", "CudaError", "MlirfuseError", "ShapeError", "TraceError", "UnsupportedError", "config", "counters", "jit"]
