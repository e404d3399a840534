"""The native module: the compiler's own where that is loaded, so that a process has one pool of threads."""

from __future__ import annotations

import importlib
import sys
from typing import Any

native: Any = sys.modules.get("mlirfuse._native") or importlib.import_module("mlirfuse_runtime._native")
