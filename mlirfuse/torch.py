"""The PyTorch API besides ``torch.compile(model, backend="mlirfuse")``, which needs no import.

Importing this module registers the back end with torch; an installed package does so through its entry point.
"""

from __future__ import annotations

from mlirfuse.frontend.torch.audit import audit
from mlirfuse.frontend.torch.backend import compilers, memory_efficient_fusion, mlirfuse
from mlirfuse.frontend.torch.explain import Explanation, explain
from mlirfuse.frontend.torch.options import Options
from mlirfuse.frontend.torch.profile import Profile, Row, profile
from mlirfuse.frontend.torch.torch_private import compiler_fns, register_backend
from mlirfuse.frontend.torch.torchscript.translate import from_torchscript
from mlirfuse.inspect.audit import Audit, AuditedKernel

__all__ = [
    "Audit",
    "AuditedKernel",
    "Explanation",
    "Options",
    "Profile",
    "Row",
    "audit",
    "compilers",
    "explain",
    "from_torchscript",
    "memory_efficient_fusion",
    "mlirfuse",
    "profile",
]

if compiler_fns is not None and "mlirfuse" not in compiler_fns:
    register_backend(mlirfuse, name="mlirfuse")


def __dir__() -> list[str]:
    return __all__
