"""nvFuser's Python API: change a script's import line to run it with mlirfuse.

``from nvfuser import FusionDefinition, DataType`` (or ``nvfuser_direct``, or ``torch._C._nvfuser``) becomes
``from mlirfuse.nvfuser import FusionDefinition, DataType``. docs/nvfuser/api.md lists what is supported.
"""

from __future__ import annotations

from mlirfuse.frontend.nvfuser.definition import Fusion, FusionDefinition
from mlirfuse.frontend.nvfuser.fusion_cache import FusionCache, LRUCache
from mlirfuse.frontend.nvfuser.inputs import compute_contiguity, compute_tensor_descriptor
from mlirfuse.frontend.nvfuser.profiling import PythonProfiler
from mlirfuse.frontend.nvfuser.promotion import DataType
from mlirfuse.frontend.nvfuser.values import DefinitionError, DefinitionTypeError, InputError, Scalar, Tensor, Vector
from mlirfuse.nvfuser import pytorch_utils
from mlirfuse.nvfuser.nvfuser_version import __version__

TensorView = Tensor  # the direct bindings' name, for annotations and isinstance


def version() -> str:
    """The version of nvFuser's API that mlirfuse implements."""
    return __version__


__all__ = [
    "DataType",
    "DefinitionError",
    "DefinitionTypeError",
    "Fusion",
    "FusionCache",
    "FusionDefinition",
    "InputError",
    "LRUCache",
    "PythonProfiler",
    "Scalar",
    "Tensor",
    "TensorView",
    "Vector",
    "__version__",
    "compute_contiguity",
    "compute_tensor_descriptor",
    "pytorch_utils",
    "version",
]


def __dir__() -> list[str]:
    return __all__
